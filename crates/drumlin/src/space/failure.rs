//! The reason why a database accepts no more commits: the first failed write or sync, or closing.

use std::sync::atomic::Ordering;

use super::Space;
use crate::error::{Error, Result, Stopped};

impl Space {
    /// Records that a write or sync failed, so that nothing will be written after this. Returns the error for the
    /// caller.
    pub(crate) fn fail(&self, reason: &str) -> Error {
        debug_assert!(!reason.is_empty(), "a failure has no reason");
        if self.failure.stopped.set(Stopped::Failed(reason.into())).is_ok() {
            log::error!("{reason}; the database accepts no more commits until it is reopened");
        }
        self.failure.stopped.get().expect("set above").clone().into_error()
    }

    /// Like [`fail`](Self::fail), for callers that report no error.
    pub(crate) fn fail_quietly(&self, reason: &str) {
        debug_assert!(!reason.is_empty(), "a quiet failure has no reason");
        let _ = self.failure.stopped.set(Stopped::Failed(reason.into()));
    }

    /// Stops all writing because the database is closed. An earlier failure remains the recorded reason.
    pub(crate) fn close(&self) {
        let _ = self.failure.stopped.set(Stopped::Closed);
        let was_closed = self.failure.is_closed.swap(true, Ordering::AcqRel);
        assert!(!was_closed, "a database is closed twice");
        assert!(self.failure.stopped.get().is_some(), "a closed database goes on writing");
    }

    pub(crate) fn failure(&self) -> Option<Stopped> {
        self.failure.stopped.get().cloned()
    }

    /// Fails if the database was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.failure.is_closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Returns the error to report for a failed read. It is `Closed` if the database was closed, because the file may
    /// already belong to a different opening.
    pub(crate) fn read_error(&self, error: Error) -> Error {
        self.check_open().err().unwrap_or(error)
    }

    pub(crate) fn check_failure(&self) -> Result<()> {
        match self.failure.stopped.get() {
            Some(stopped) => Err(stopped.clone().into_error()),
            None => Ok(()),
        }
    }
}
