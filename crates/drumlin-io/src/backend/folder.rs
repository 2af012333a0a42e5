//! Open folders. Names are looked up in the folder itself, even if it has been moved or the process's working directory
//! has changed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Backend, FileRef, Lock, OpenOptions};

/// A shared handle of an open folder.
pub type FolderRef = Arc<dyn Folder>;

/// An open folder. Names refer to files directly in it.
pub trait Folder: Send + Sync + fmt::Debug {
    /// Returns the path that the folder was opened by, for messages: the folder may have been moved since.
    fn path(&self) -> &Path;
    /// Opens a file. Anything else of that name is an error. With [`OpenOptions::create`] a symbolic link is an error
    /// too, so that a file created in this folder is really in this folder.
    fn open(&self, name: &str, options: OpenOptions) -> io::Result<FileRef>;
    /// Opens a folder in this folder.
    fn folder(&self, name: &str) -> io::Result<FolderRef>;
    /// Creates a folder in this folder. An existing folder is no error.
    fn create_folder(&self, name: &str) -> io::Result<()>;
    /// Returns the names of the files and folders in this folder, in no particular order. In a name that is not UTF-8,
    /// replacement characters stand for the invalid bytes.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Returns `true` if the name refers to a file or folder.
    fn exists(&self, name: &str) -> io::Result<bool>;
    /// Renames a file, replacing any file of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes the names that were created, renamed or removed in this folder durable.
    fn sync(&self) -> io::Result<()>;
    /// Locks the folder like [`BackendFile::try_lock`](super::BackendFile::try_lock). A backend that cannot lock
    /// folders returns `true`, since it can lock files.
    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        let _ = lock;
        Ok(true)
    }
    /// Releases the lock like [`BackendFile::unlock`](super::BackendFile::unlock).
    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
    /// Returns the size of the file system that the folder is on, in bytes, or `u64::MAX` if there is none.
    fn capacity_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
    /// Returns `true` if the name still refers to `file`. A backend that cannot find out returns `true`.
    fn is_same(&self, name: &str, file: &FileRef) -> io::Result<bool> {
        let _ = (name, file);
        Ok(true)
    }
}

/// Opens a folder: by a handle if the backend has handles, otherwise by its path.
///
/// # Errors
/// The operating system's error, if there is no folder at the path or it may not be entered.
pub fn open_folder(backend: &Arc<dyn Backend>, path: &Path) -> io::Result<FolderRef> {
    Ok(match backend.folder_handle(path)? {
        Some(folder) => folder,
        None => Arc::new(PathFolder { backend: Arc::clone(backend), path: path.to_path_buf() }),
    })
}

/// A folder of a backend that knows folders only by path.
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
