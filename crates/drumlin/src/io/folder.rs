//! An open folder: names are looked up in the folder itself, wherever it is moved to and whatever becomes of the
//! process's working directory.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Backend, FileRef, Lock, OpenOptions};

/// A shared handle of an open folder.
pub type FolderRef = Arc<dyn Folder>;

/// An open folder. Names are those of files directly in it.
pub trait Folder: Send + Sync + fmt::Debug {
    /// The path it was opened by, for messages: it may have been moved since.
    fn path(&self) -> &Path;
    /// Opens a file; anything else of that name is an error. With [`OpenOptions::create`] a symbolic link is one too: a
    /// file that may be made in the folder lies in the folder.
    fn open(&self, name: &str, options: OpenOptions) -> io::Result<FileRef>;
    /// Opens a folder in it.
    fn folder(&self, name: &str) -> io::Result<FolderRef>;
    /// Creates a folder in it; one that is there already is no error.
    fn create_folder(&self, name: &str) -> io::Result<()>;
    /// The names of the files and folders in it, in no order. One that is not UTF-8 comes with replacement characters.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Returns `true` if the name is that of a file or folder.
    fn exists(&self, name: &str) -> io::Result<bool>;
    /// Renames a file, replacing what was there.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes names created, renamed or removed in it durable.
    fn sync(&self) -> io::Result<()>;
    /// Like [`File::try_lock`](super::File::try_lock). A backend whose folders have no lock says `true`: files have
    /// one.
    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        let _ = lock;
        Ok(true)
    }
    /// Like [`File::unlock`](super::File::unlock).
    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
    /// The size of the file system that it lies on, in bytes; the largest number where that has none.
    fn capacity_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
    /// Returns `true` if the name still refers to `file`. A backend that can't tell returns `true`.
    fn is_same(&self, name: &str, file: &FileRef) -> io::Result<bool> {
        let _ = (name, file);
        Ok(true)
    }
}

/// Opens a folder: by a handle where the backend has one, by its path otherwise.
///
/// # Errors
/// The operating system's error: there is no folder at the path, or it may not be entered.
pub fn open_folder(backend: &Arc<dyn Backend>, path: &Path) -> io::Result<FolderRef> {
    Ok(match backend.folder_handle(path)? {
        Some(folder) => folder,
        None => Arc::new(PathFolder { backend: Arc::clone(backend), path: path.to_path_buf() }),
    })
}

/// A folder of a backend that knows paths only.
struct PathFolder {
    backend: Arc<dyn Backend>,
    path: PathBuf,
}

impl fmt::Debug for PathFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PathFolder({})", self.path.display())
    }
}

impl Folder for PathFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str, options: OpenOptions) -> io::Result<FileRef> {
        self.backend.open(&self.path.join(name), options)
    }

    fn folder(&self, name: &str) -> io::Result<FolderRef> {
        open_folder(&self.backend, &self.path.join(name))
    }

    fn create_folder(&self, name: &str) -> io::Result<()> {
        self.backend.create_dir_all(&self.path.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let name = |path: PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
        Ok(self.backend.list(&self.path)?.into_iter().filter_map(name).collect())
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.backend.exists(&self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.backend.rename(&self.path.join(from), &self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.backend.remove(&self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.backend.sync_dir(&self.path)
    }
}
