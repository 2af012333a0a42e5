//! The state of a warm start: the progress of reading the list of resident pages, and the number of page changes since.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::advice::{AdviceFiles, RESIDENT_NAME};
use crate::sync::{Condvar, Mutex};

/// The warm start of an open database.
#[derive(Debug)]
pub(super) struct WarmStart {
    pub(super) files: AdviceFiles,
    /// Pages that were read because of the list.
    pub(super) page_count: AtomicU64,
    /// Pages that checkpoints have written since the database was opened.
    pub(super) written_count: AtomicU64,
    pub(super) state: Mutex<WarmState>,
    stopped: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct WarmState {
    /// `true` if there may be a list and it has not been read to its end.
    pub(super) is_unread: bool,
    pub(super) stop: bool,
    /// The number of pages in the list.
    pub(super) listed_count: u64,
    /// The value of [`residence_changes`](super::Store::residence_changes) when the list was written.
    pub(super) listed_at: u64,
}

impl WarmStart {
    pub(super) fn new(files: AdviceFiles) -> WarmStart {
        let is_unread = files.is_on();
        WarmStart {
            files,
            page_count: AtomicU64::new(0),
            written_count: AtomicU64::new(0),
            state: Mutex::new(WarmState { is_unread, ..WarmState::default() }),
            stopped: Condvar::new(),
        }
    }

    /// Counts pages that a checkpoint has written.
    pub(super) fn count_written(&self, count: u64) {
        self.written_count.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns `true` while the list is being read.
    pub(super) fn is_reading(&self) -> bool {
        let state = self.state.lock();
        state.is_unread && !state.stop
    }

    /// Stops reading the list. A list that has not been read to its end will not be rewritten.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.stopped.notify_all();
    }

    /// Waits for `duration`. Returns `false` if reading must stop.
    pub(super) fn pause(&self, duration: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stop && !duration.is_zero() {
            let _ = self.stopped.wait_for(&mut state, duration);
        }
        !state.stop
    }

    /// Returns `true` if there is a list to read. Until it has been read, it will not be rewritten.
    pub(super) fn begin(&self) -> bool {
        let exists = self.files.is_on() && self.files.exists(RESIDENT_NAME);
        self.state.lock().is_unread = exists;
        exists
    }

    /// Continues without the list, because no thread could be started to read it.
    pub(super) fn give_up(&self) {
        self.state.lock().is_unread = false;
    }
}
