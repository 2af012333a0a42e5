//! When the index is written and space is given back, and how far the index on the medium reaches.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::format::StreamPosition;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The number of rounds that may be due before an append makes a round itself, so that appends can't outrun the thread.
const LATE_ROUND_COUNT: u64 = 4;

/// Who should make a round of maintenance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    Nothing,
    Thread,
    Caller,
}

/// The background work of a folder of logs, and what it knows.
#[derive(Debug)]
pub(super) struct Maintenance {
    /// Held while the index is written or space is reclaimed.
    pub(super) index: Mutex<WrittenIndex>,
    /// The bytes that were appended or died since the last round.
    due_bytes: AtomicU64,
    /// The bytes after which a round is due.
    round_bytes: u64,
    has_thread: AtomicBool,
    state: Mutex<Wanted>,
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    round: bool,
    stop: bool,
}

/// The newest index on the medium.
#[derive(Debug)]
pub(super) struct WrittenIndex {
    pub(super) number: u64,
    pub(super) index_bytes: u64,
    /// Set once the other file has the same index.
    pub(super) is_copied: bool,
    /// The position at or after which the records begin that it does not cover.
    pub(super) position: StreamPosition,
}

impl Maintenance {
    pub(super) fn new(index: WrittenIndex, segment_bytes: u64) -> Maintenance {
        Maintenance {
            index: Mutex::new(index),
            due_bytes: AtomicU64::new(0),
            round_bytes: segment_bytes / 8,
            has_thread: AtomicBool::new(false),
            state: Mutex::default(),
            wanted: Condvar::new(),
        }
    }

    /// Counts bytes that were appended or died.
    pub(super) fn note(&self, bytes: u64) {
        self.due_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_has_thread(&self) {
        self.has_thread.store(true, Ordering::Release);
    }

    /// Says who should make a round now.
    pub(super) fn due(&self) -> Due {
        let due_bytes = self.due_bytes.load(Ordering::Relaxed);
        if due_bytes < self.round_bytes {
            Due::Nothing
        } else if self.has_thread.load(Ordering::Acquire) && due_bytes < LATE_ROUND_COUNT * self.round_bytes {
            Due::Thread
        } else {
            Due::Caller
        }
    }

    /// Has the thread make a round.
    pub(super) fn request_round(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.round, true) {
            self.wanted.notify_one();
        }
    }

    /// Begins a round.
    pub(super) fn begin_round(&self) -> MutexGuard<'_, WrittenIndex> {
        self.due_bytes.store(0, Ordering::Relaxed);
        self.index.lock()
    }

    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.wanted.notify_one();
    }

    /// Waits until a round is due. Returns `false` once the thread is to stop.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.wanted.wait_while(&mut state, |wanted| !wanted.round && !wanted.stop);
        state.round = false;
        !state.stop
    }
}
