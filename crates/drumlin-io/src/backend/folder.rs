//! Opens folders on any backend. Names are looked up relative to the folder's handle if the backend has such handles,
//! and by path otherwise.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Backend, FileRef, Folder, FolderRef, OpenOptions};

/// Opens a folder: by a handle if the backend has folder handles, otherwise by its path.
///
/// # Errors
/// The operating system's error if there is no folder at the path, or the process lacks permission to enter it.
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
