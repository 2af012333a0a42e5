//! The state that the copier and the deliverer of an archive share: which files wait, and how far the archive goes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::spool::ArchiveFile;
use crate::format::Timestamp;
use crate::sync::{Condvar, Mutex};

/// A file that has its end and waits for its delivery.
#[derive(Clone, Debug)]
pub(super) struct WaitingFile {
    pub(super) file: ArchiveFile,
    pub(super) last: Timestamp,
}

/// The figures of an archive for statistics.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArchiveFigures {
    /// The timestamp after which the chain begins.
    pub(crate) from: Timestamp,
    /// The newest commit that has been delivered.
    pub(crate) delivered: Timestamp,
    /// The bytes of the files that wait, and of the one that is written.
    pub(crate) waiting_bytes: u64,
    /// The reason why the archive has ended, or else why the last delivery failed.
    pub(crate) failure: Option<Arc<str>>,
    pub(crate) has_ended: bool,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<WaitingFile>,
    /// The bytes of the file that is being written.
    newest_bytes: u64,
    from: Timestamp,
    copied: Timestamp,
    delivered: Timestamp,
    /// The reason why the last delivery failed.
    undelivered: Option<Arc<str>>,
    /// The reason why no more commits are copied.
    ended: Option<Arc<str>>,
    /// Set when nothing more is copied because the database is being closed.
    is_stopped: bool,
}

impl State {
    /// Returns the bytes of the files that wait for their delivery.
    fn waiting_bytes(&self) -> u64 {
        self.waiting.iter().map(|waiting| waiting.file.bytes).sum()
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The bytes that wait after a delivery has failed.
    held_bytes: Arc<AtomicU64>,
}

impl Shared {
    pub(super) fn new(covered: Timestamp, held_bytes: Arc<AtomicU64>) -> Shared {
        let state = State {
            waiting: VecDeque::new(),
            newest_bytes: 0,
            from: covered,
            copied: covered,
            delivered: covered,
            undelivered: None,
            ended: None,
            is_stopped: false,
        };
        Shared { state: Mutex::new(state), changed: Condvar::new(), held_bytes }
    }

    /// Enters what an opening has found: the files that wait, the beginning of the chain, and its last commit.
    pub(super) fn enter(&self, waiting: Vec<WaitingFile>, from: Timestamp, copied: Timestamp) {
        let mut state = self.state.lock();
        assert!(state.waiting.is_empty(), "files are entered twice");
        assert!(from <= copied, "a chain begins after its last commit");
        state.delivered = waiting.first().map_or(copied, |first| first.file.header.after);
        (state.waiting, state.from, state.copied) = (waiting.into(), from, copied);
        self.changed.notify_all();
    }

    /// Announces the commits up to `copied` in the newest file.
    pub(super) fn show(&self, copied: Timestamp, newest_bytes: u64) {
        let mut state = self.state.lock();
        assert!(state.copied <= copied, "the archive goes back from {} to {copied}", state.copied);
        (state.copied, state.newest_bytes) = (copied, newest_bytes);
    }

    /// Adds a file that has its end.
    pub(super) fn add(&self, file: WaitingFile) {
        let mut state = self.state.lock();
        state.waiting.push_back(file);
        self.tell_held(&state);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn copied(&self) -> Timestamp {
        self.state.lock().copied
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    /// Ends the archive.
    pub(super) fn end(&self, reason: &str) {
        self.state.lock().ended.get_or_insert_with(|| reason.into());
    }

    /// Returns the bytes that wait although the oldest file has had its chance, and the reason why they wait.
    pub(super) fn held_back(&self) -> (u64, Option<Arc<str>>) {
        let state = self.state.lock();
        let in_delivery = usize::from(state.undelivered.is_none());
        let bytes = state.waiting.iter().skip(in_delivery).map(|waiting| waiting.file.bytes).sum();
        (bytes, state.undelivered.clone())
    }

    /// Waits for a file to deliver. Returns the oldest, and `true` if the archive is stopped. Returns `None` once it is
    /// stopped and no file is left.
    pub(super) fn wait_for_file(&self) -> Option<(WaitingFile, bool)> {
        let mut state = self.state.lock();
        loop {
            if let Some(oldest) = state.waiting.front() {
                return Some((oldest.clone(), state.is_stopped));
            }
            if state.is_stopped {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Removes the oldest file from the list, because it has been delivered.
    pub(super) fn take_delivered(&self) {
        let mut state = self.state.lock();
        let delivered = state.waiting.pop_front().expect("the file that was delivered is the oldest");
        state.delivered = delivered.last;
        state.undelivered = None;
        self.tell_held(&state);
    }

    /// Notes why a delivery failed. Returns `true` if the one before it did not fail.
    pub(super) fn note_failure(&self, reason: &str) -> bool {
        let mut state = self.state.lock();
        let is_first = state.undelivered.replace(reason.into()).is_none();
        self.tell_held(&state);
        is_first
    }

    fn tell_held(&self, state: &State) {
        let is_held = state.undelivered.is_some();
        self.held_bytes.store(if is_held { state.waiting_bytes() } else { 0 }, Ordering::Relaxed);
    }

    /// Waits for `pause`, or until something happens, unless the archive is stopped.
    pub(super) fn pause(&self, pause: Duration) {
        let mut state = self.state.lock();
        if !state.is_stopped {
            self.changed.wait_for(&mut state, pause);
        }
    }

    /// Waits for `pause`, or until something happens. Returns `true` if the archive is stopped.
    pub(super) fn nap(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_for(&mut state, pause);
        state.is_stopped
    }

    /// Stops the deliverer once it has tried to deliver what waits.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    pub(super) fn figures(&self) -> ArchiveFigures {
        let state = self.state.lock();
        let waiting_bytes = state.waiting_bytes();
        ArchiveFigures {
            from: state.from,
            delivered: state.delivered,
            waiting_bytes: waiting_bytes + state.newest_bytes,
            failure: state.ended.clone().or_else(|| state.undelivered.clone()),
            has_ended: state.ended.is_some(),
        }
    }
}
