//! The progress of moving pages out of segments.

use crate::error::{Error, Result};

/// The progress of moving pages out of segments.
#[derive(Clone, Copy, Default)]
pub(super) struct Emptied {
    pub(super) page_count: u64,
    /// The reason why pages are left in the segments, if any are.
    pub(super) left: Option<Left>,
}

/// The reason why the remaining pages must wait for the next checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// There was no disk space to move them to.
    NoSpace,
    /// The changes of the page tables filled their memory.
    ManyChanges,
}

impl Emptied {
    pub(super) fn and(self, more: Emptied) -> Emptied {
        Emptied { page_count: self.page_count + more.page_count, left: self.left.or(more.left) }
    }

    /// Stops moving pages because of `error`, and returns the progress if the disk is full, which is no failure.
    pub(super) fn ended_by(self, error: Error) -> Result<Emptied> {
        match error {
            Error::DiskFull { .. } => Ok(Emptied { left: Some(Left::NoSpace), ..self }),
            error => Err(error),
        }
    }
}
