//! The state that the copier and the readers of a feed share: which files there are, and how far they go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::sync::Mutex;

/// A change file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedFile {
    pub(super) number: u64,
    /// The commits of the file begin after this timestamp.
    pub(super) after: Timestamp,
    /// The time at which the file was created, in milliseconds since 1970.
    pub(super) time_ms: u64,
    /// The offset of the first commit.
    pub(super) start: u64,
    /// Readers may read up to this offset.
    pub(super) end: u64,
}

impl ListedFile {
    fn commit_bytes(&self) -> u64 {
        assert!(self.start <= self.end, "a change file ends before its first commit");
        self.end - self.start
    }
}

/// The part of the files in which a reader finds its next commits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) number: u64,
    pub(super) end: u64,
    /// The file has all commits up to this one.
    pub(super) upto: Timestamp,
    /// Set if nothing more is written to the file.
    pub(super) is_complete: bool,
}

/// The figures of a feed for statistics.
#[derive(Clone, Debug, Default)]
pub(crate) struct FeedFigures {
    pub(crate) bytes: u64,
    pub(crate) from: Timestamp,
    pub(crate) last: Timestamp,
    pub(crate) reader_count: u64,
    /// The position of the slowest reader.
    pub(crate) slowest: Option<Timestamp>,
    pub(crate) failure: Option<Arc<str>>,
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The files in ascending order. The commits of each end where those of the next begin.
    files: VecDeque<ListedFile>,
    /// All commits up to this one have been copied.
    copied: Timestamp,
    failure: Option<Arc<str>>,
    is_closed: bool,
    /// The readers that wait for a commit.
    waiting: Vec<Waker>,
    /// The position of each reader.
    readers: Vec<Arc<AtomicU64>>,
}

impl State {
    /// Returns the timestamp after which the feed has all commits.
    fn from(&self) -> Timestamp {
        self.files.front().map_or(self.copied, |file| file.after)
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.end).sum()
    }

    fn commit_bytes(&self) -> u64 {
        self.files.iter().map(ListedFile::commit_bytes).sum()
    }
}

impl Shared {
    pub(super) fn new(copied: Timestamp) -> Shared {
        let state = State {
            files: VecDeque::new(),
            copied,
            failure: None,
            is_closed: false,
            waiting: Vec::new(),
            readers: Vec::new(),
        };
        Shared { state: Mutex::new(state) }
    }

    /// Adds the files that an opening has found, in ascending order. They have all commits up to `copied`.
    pub(super) fn enter(&self, files: Vec<ListedFile>, copied: Timestamp) {
        assert!(files.is_sorted_by(|left, right| left.number + 1 == right.number), "a change file is missing");
        assert!(
            files.last().is_none_or(|last| last.after <= copied),
            "a file begins after the commits that are copied"
        );
        let mut state = self.state.lock();
        assert!(state.files.is_empty(), "files are entered twice");
        assert!(state.copied <= copied, "the feed goes back from {} to {copied}", state.copied);
        (state.files, state.copied) = (files.into(), copied);
    }

    /// Returns the offset at which the commits of the newest file end, or 0 if there is no file.
    pub(super) fn newest_end(&self) -> u64 {
        self.state.lock().files.back().map_or(0, |newest| newest.end)
    }

    /// Adds a file, which continues after all commits that were copied.
    pub(super) fn begin_file(&self, file: ListedFile) {
        let mut state = self.state.lock();
        assert!(file.after == state.copied, "a file begins after {}, not {}", file.after, state.copied);
        assert!(state.files.back().is_none_or(|last| last.number + 1 == file.number), "a change file is missing");
        state.files.push_back(file);
    }

    /// Shows readers the commits up to `copied`, which end at `end` in the newest file.
    pub(super) fn show(&self, copied: Timestamp, end: u64) {
        let mut state = self.state.lock();
        assert!(state.copied <= copied, "the feed goes back from {} to {copied}", state.copied);
        let newest = state.files.back_mut().expect("commits were copied to a file");
        assert!(newest.end <= end, "a change file shrinks");
        newest.end = end;
        state.copied = copied;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.iter().for_each(Waker::wake_by_ref);
    }

    /// Takes the oldest file from the list, if another follows it and `may_go` agrees. Its arguments are the oldest
    /// file, the next one, and the bytes of commits that would be left. The caller then removes the file.
    pub(super) fn take_oldest(&self, may_go: impl FnOnce(&ListedFile, &ListedFile, u64) -> bool) -> Option<u64> {
        let mut state = self.state.lock();
        let left_bytes = state.commit_bytes() - state.files.front()?.commit_bytes();
        if !may_go(state.files.front()?, state.files.get(1)?, left_bytes) {
            return None;
        }
        state.files.pop_front().map(|file| file.number)
    }

    /// Ends the feed because its files can't be continued. Commits that were copied stay readable.
    pub(super) fn fail(&self, reason: &str) {
        let mut state = self.state.lock();
        if state.failure.is_none() {
            state.failure = Some(reason.into());
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.iter().for_each(Waker::wake_by_ref);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state.lock().failure.is_some()
    }

    /// Ends the feed because the database is closed.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.iter().for_each(Waker::wake_by_ref);
    }

    pub(super) fn copied(&self) -> Timestamp {
        self.state.lock().copied
    }

    pub(super) fn figures(&self) -> FeedFigures {
        let state = self.state.lock();
        FeedFigures {
            bytes: state.bytes(),
            from: state.from(),
            last: state.copied,
            reader_count: state.readers.len() as u64,
            slowest: state.readers.iter().map(|position| Timestamp(position.load(Ordering::Relaxed))).min(),
            failure: state.failure.clone(),
        }
    }

    /// Registers a reader, which keeps `position` at the last commit that it has read.
    pub(super) fn add_reader(&self, position: &Arc<AtomicU64>) {
        self.state.lock().readers.push(Arc::clone(position));
    }

    pub(super) fn remove_reader(&self, position: &Arc<AtomicU64>) {
        self.state.lock().readers.retain(|other| !Arc::ptr_eq(other, position));
    }

    /// Returns the part of the files with the commits after `position`, or `None` if no such commit has been copied
    /// yet. Fails if the feed no longer has all of them, or gets no more.
    pub(super) fn target(&self, position: Timestamp) -> Result<Option<Target>> {
        let state = self.state.lock();
        let from = state.from();
        if position < from {
            let reason = "the retention has removed them".into();
            return Err(Error::ChangesGone { since: position, from, reason });
        }
        if position >= state.copied {
            return match &state.failure {
                Some(reason) => {
                    let reason = Arc::clone(reason);
                    Err(Error::ChangesGone { since: position, from: state.copied, reason })
                }
                None => Ok(None),
            };
        }
        let next = state.files.partition_point(|file| file.after <= position);
        let file = state.files[next - 1];
        let following = state.files.get(next).map(|file| file.after);
        let upto = following.unwrap_or(state.copied);
        Ok(Some(Target { number: file.number, end: file.end, upto, is_complete: following.is_some() }))
    }

    /// Waits for a commit after `position`, a failure, or the end of the database. Returns an error for the last.
    pub(super) fn poll_news(&self, position: Timestamp, waker: &Waker) -> Poll<Result<()>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Poll::Ready(Err(Error::Closed));
        }
        if position < state.copied || state.failure.is_some() {
            return Poll::Ready(Ok(()));
        }
        if !state.waiting.iter().any(|other| other.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
        Poll::Pending
    }
}
