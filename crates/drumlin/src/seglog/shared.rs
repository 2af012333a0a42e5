//! The state of an open log, shared by its callers and its threads.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::hooks::Hooks;
use super::horizon::Horizon;
use super::options::LogOptions;
use super::reader::History;
use super::record::{Appended, Body};
use super::segment::Spare;
use super::signal::Signal;
use super::stream::{Stream, Tail};
use super::wait::Waiter;
use super::windows::Window;
use crate::error::{Error, Result};
use crate::format::superblock::LogRange;
use crate::format::{Incarnation, StreamId, Timestamp};
use crate::io::{Backend, FolderRef, Persist};
use crate::sync::Mutex;

/// The state of an open log.
#[derive(Debug)]
pub(super) struct SharedLog {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) folder: FolderRef,
    pub(super) options: LogOptions,
    pub(super) incarnation: Incarnation,
    pub(super) history: History,
    pub(super) hooks: Hooks,
    pub(super) horizon: Horizon,
    pub(super) streams: Box<[Stream]>,
    /// Windows of earlier openings that no checkpoint covers yet. The windows of each stream are ordered by use number.
    pub(super) old: Mutex<Vec<Window>>,
    /// Records at or below this timestamp may have been removed.
    pub(super) truncated: AtomicU64,
    pub(super) checkpoint: AtomicU64,
    pub(super) failure: OnceLock<Arc<str>>,
    pub(super) sync_count: AtomicU64,
    /// The number of bytes written to the log's files: blocks of records, headers, and zeros.
    pub(super) write_bytes: AtomicU64,
    /// The tasks that wait for a timestamp, and their number, which is checked whenever the horizon advances.
    pub(super) tasks: Mutex<Vec<(Timestamp, Waker)>>,
    pub(super) tasks_count: AtomicUsize,
    pub(super) signal: Signal,
    /// Held while segments are prepared or removed.
    pub(super) preparing: Mutex<()>,
    /// The ranges as last listed by [`Hooks::list`].
    pub(super) listed: Mutex<Vec<LogRange>>,
    pub(super) doomed: Mutex<Vec<Spare>>,
    /// Set if a full disk has been logged and no segment has been created since.
    pub(super) is_shortage_logged: AtomicBool,
    /// Set if the background threads are running. Otherwise, callers prepare segments and write records themselves.
    pub(super) has_threads: AtomicBool,
}

impl SharedLog {
    pub(super) fn persist(&self) -> Persist {
        Persist::Now(self.options.sync)
    }

    pub(super) fn has_threads(&self) -> bool {
        self.has_threads.load(Ordering::Acquire)
    }

    pub(super) fn disk_full(&self) -> Error {
        Error::disk_full(self.folder.path().to_path_buf(), self.options.segment_bytes)
    }

    /// Returns the log ranges that must exist when the log is reopened.
    fn ranges(&self) -> Vec<LogRange> {
        let old = self.old.lock();
        let mut ranges: BTreeMap<StreamId, LogRange> = BTreeMap::new();
        for window in old.iter() {
            let (stream, from, to) = (window.segment.header.stream, window.segment.start(), window.end());
            let range = ranges.entry(stream).or_insert(LogRange { stream, from, to });
            *range = LogRange { stream, from: range.from.min(from), to: range.to.max(to) };
        }
        for (index, stream) in self.streams.iter().enumerate() {
            let tail = stream.tail.lock();
            let (from, to) = (tail.windows.start(), tail.windows.end());
            assert!(from <= to, "a stream ends before it begins");
            let durable = tail.durable_position();
            assert!((from..=to).contains(&durable), "stream {index} has records outside of its windows");
            let number = StreamId::of_index(index);
            let range = ranges.entry(number).or_insert(LogRange { stream: number, from, to });
            assert!(range.from == from || range.to == from, "windows of a stream abut");
            range.to = to;
        }
        ranges.into_values().filter(|range| range.from < range.to).collect()
    }

    /// Durably lists the ranges that must exist, if they have changed.
    pub(super) fn list(&self) -> io::Result<()> {
        // Hold the lock during the hook, so that lists are recorded in the order in which they were made.
        let mut listed = self.listed.lock();
        let ranges = self.ranges();
        if *listed != ranges {
            (self.hooks.list)(&ranges)?;
            *listed = ranges;
        }
        Ok(())
    }

    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.failure.get().cloned()
    }

    /// Appends a record. The stream must have room for it.
    pub(super) fn append(&self, stream: usize, tail: &mut Tail, body: &Body) -> Appended {
        let floor = tail.floor();
        // A load and a store suffice: the tail is locked, so no other thread changes the counter.
        let appended_bytes = &self.streams[stream].appended_bytes;
        appended_bytes.store(appended_bytes.load(Ordering::Relaxed) + body.bytes().len() as u64, Ordering::Relaxed);
        let wall_clock = || self.backend.wall_clock();
        let (timestamp, end) = tail.append(body, self.incarnation, wall_clock, || self.horizon.take(stream, floor));
        Appended {
            timestamp,
            stream: StreamId::of_index(stream),
            end,
            is_near_full: tail.is_near_full(),
            wants_preparation: false,
        }
    }

    /// Returns an error if the log has failed or the tail is sealed.
    pub(super) fn check_open(&self, tail: &Tail) -> Result<()> {
        match self.failure.get() {
            Some(reason) => Err(Error::Failed { reason: Arc::clone(reason) }),
            None if tail.is_sealed() => Err(Error::Closed),
            None => Ok(()),
        }
    }

    pub(super) fn fail(&self, reason: &str) {
        if self.failure.set(reason.into()).is_err() {
            return;
        }
        crate::coverage::mark!("the log failed");
        log::error!("the log in {} failed: {reason}", self.folder.path().display());
        for stream in &self.streams {
            let waiters = stream.tail.lock().waiters.take_all();
            stream.announce_end();
            waiters.iter().for_each(Waiter::wake);
        }
        self.wake_tasks(Timestamp(u64::MAX));
        (self.hooks.on_failed)(self.failure.get().expect("just set"));
    }
}
