//! Calls that only block, as operations: names of files, and whatever else a backend does at once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Driver;
use super::operation::Operation;
use crate::backend::Backend;

impl Driver {
    /// Renames a file within its folder or to another one, replacing any file of that name, and makes the names durable
    /// in both.
    ///
    /// # Errors
    /// Any that the system reports. If only a sync of a folder fails, the file has been renamed, but a power cut may
    /// undo that.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<()> {
        let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
        self.on_backend(move |backend| {
            backend.rename(&from, &to)?;
            let (old, new) = (folder_of(&from), folder_of(&to));
            backend.sync_dir(&new)?;
            if old == new { Ok(()) } else { backend.sync_dir(&old) }
        })
    }

    /// Removes a file and makes that durable. Open handles of the file stay valid.
    ///
    /// # Errors
    /// Any that the system reports.
    pub fn remove(&self, path: impl AsRef<Path>) -> Operation<()> {
        let path = path.as_ref().to_owned();
        self.on_backend(move |backend| {
            backend.remove(&path)?;
            backend.sync_dir(&folder_of(&path))
        })
    }

    /// Makes the names of the files in a folder durable: those created, renamed and removed before. A new file survives
    /// a power cut only after its own sync and this one.
    ///
    /// # Errors
    /// Any that the system reports.
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

    /// Returns the operation that calls `body`: on the thread that waits for it, or on a worker for a task.
    pub(crate) fn run<T: Send + 'static>(&self, body: impl FnOnce() -> io::Result<T> + Send + 'static) -> Operation<T> {
        Operation::call(self.clone(), Box::new(body))
    }
}

/// Returns the folder that a path leads to. Empty is the current one.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}
