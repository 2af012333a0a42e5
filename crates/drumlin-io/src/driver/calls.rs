//! Operations for calls that can only block: renaming and removing files, syncing folders, and arbitrary calls of a
//! backend.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Driver;
use super::operation::Operation;
use crate::backend::Backend;

impl Driver {
    /// Renames a file, within its folder or into a different one, replacing any file of that name. Makes the names in
    /// both folders durable.
    ///
    /// # Errors
    /// Any error that the system reports. If only the sync of a folder fails, the file has been renamed, but a power
    /// cut may undo the renaming.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<()> {
        let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
        self.on_backend(move |backend| {
            backend.rename(&from, &to)?;
            let (old, new) = (folder_of(&from), folder_of(&to));
            backend.sync_dir(&new)?;
            if old == new { Ok(()) } else { backend.sync_dir(&old) }
        })
    }

    /// Removes a file and makes the removal durable. Open handles of the file stay valid.
    ///
    /// # Errors
    /// Any error that the system reports.
    pub fn remove(&self, path: impl AsRef<Path>) -> Operation<()> {
        let path = path.as_ref().to_owned();
        self.on_backend(move |backend| {
            backend.remove(&path)?;
            backend.sync_dir(&folder_of(&path))
        })
    }

    /// Makes durable under their names all files that have been created, renamed or removed in a folder so far. A new
    /// file survives a power cut only after both the file and its folder have been synced.
    ///
    /// # Errors
    /// Any error that the system reports.
    pub fn sync_folder(&self, path: impl AsRef<Path>) -> Operation<()> {
        let path = path.as_ref().to_owned();
        self.on_backend(move |backend| backend.sync_dir(&path))
    }

    fn on_backend<T: Send + 'static>(
        &self,
        body: impl FnOnce(&dyn Backend) -> io::Result<T> + Send + 'static,
    ) -> Operation<T> {
        let backend = Arc::clone(self.backend());
        self.run(move || body(backend.as_ref()))
    }

    /// Returns an operation that calls `body`. If a thread waits for the operation, that thread makes the call; if a
    /// task does, a worker makes it.
    pub(crate) fn run<T: Send + 'static>(&self, body: impl FnOnce() -> io::Result<T> + Send + 'static) -> Operation<T> {
        Operation::call(self.clone(), Box::new(body))
    }
}

/// Returns the folder that contains the file at `path`. The empty path is the current folder.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}
