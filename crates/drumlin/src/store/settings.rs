//! The settings of an opening.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::lock_wait::LockWaitHook;
use crate::archive::Archive;
use crate::error::{Error, Result};
use crate::feed::Retention;
use crate::io::{self, Backend, IoBackend};
use crate::txn::commit::Durability;
use crate::txn::spilled::SpillLimit;

/// The settings of one opening. [`Config`](crate::Config) describes and checks them.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) memory_bytes: u64,
    pub(crate) log_stream_count: u16,
    pub(crate) page_bytes: usize,
    pub(crate) segment_bytes: u64,
    /// `None` means that the size depends on the file system.
    pub(crate) log_segment_bytes: Option<u64>,
    pub(crate) checkpoint_log_bytes: u64,
    /// `None` means that no changes are kept for readers.
    pub(crate) retention: Option<Retention>,
    /// `None` means that of the last opening, without a place to deliver to.
    pub(crate) archive: Option<Archive>,
    /// `true` if the database is being restored: its data file has another name.
    pub(crate) is_restoring: bool,
    /// The durability of commits that do not specify one.
    pub(crate) durability: Durability,
    /// The time after which a relaxed commit is written.
    pub(crate) relaxed_delay: Duration,
    pub(crate) io_backend: IoBackend,
    pub(crate) in_memory: bool,
    pub(crate) create: bool,
    pub(crate) read_only: bool,
    pub(crate) warm_start: bool,
    /// The maximum disk space for spilled versions.
    pub(crate) spill_limit: SpillLimit,
    /// `true` if the database is opened for reading only, skipping all corrupted parts.
    pub(crate) salvage: bool,
    /// Called before each wait for a row lock.
    pub(crate) on_lock_wait: Option<LockWaitHook>,
    pub(crate) backend: Option<Arc<dyn Backend>>,
}

impl Settings {
    /// Returns the backend for files at `path`.
    pub(crate) fn choose_backend(&self, path: &Path) -> Result<Arc<dyn Backend>> {
        match (&self.backend, self.in_memory) {
            (Some(backend), _) => Ok(Arc::clone(backend)),
            (None, true) => Ok(io::in_memory()),
            (None, false) => io::backend(self.io_backend).map_err(|error| Error::io("setting up I/O for", path, error)),
        }
    }
}
