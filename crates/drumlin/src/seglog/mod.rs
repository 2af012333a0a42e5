//! The log: segmented, append-only, redo-only. A commit waits only for the log.
//!
//! A log has one or more parallel *streams*. A stream is one contiguous space of bytes, addressed by position; each of
//! its segment files (`<stream>-<slot>.seg`) holds a *window* of it. Every record has a timestamp; timestamps are dense
//! over all streams and ascend within each stream. The *durable horizon* is the largest timestamp up to which every
//! record is on the medium. The byte formats are in [`format::log`](crate::format::log).
//!
//! # Invariants
//! 1. A timestamp is assigned and its record's bytes are placed in one step, under the stream's mutex, in space that
//!    was reserved before. So nothing fails or waits once a timestamp exists, and there are no holes.
//! 2. A stream has at most one write in flight. A buffer in flight never changes: records that arrive during the write
//!    go to the other buffer.
//! 3. Durable bytes are rewritten only with the same bytes: a tail block is rewritten together with the records that
//!    follow in it, and recovery continues after the last record that verifies. Only void records may be erased (7).
//! 4. The horizon never passes a record that is not on the medium, in any stream, and never moves back. So the records
//!    reported durable are a contiguous prefix. A failed write or sync stays pending forever, so the horizon can't pass
//!    it.
//! 5. A segment's header is durable before a record is written in its window, and the seed of every record's checksum
//!    includes the segment's use number. So bytes of an earlier use never verify.
//! 6. A window is filled with zeros before records are written in it, and recycled files are rewritten in place. So a
//!    commit's durable write changes no metadata. (A new file is filled in steps; records stay below the filled part.)
//! 7. A record of an older incarnation at or above a later incarnation's start is void: it is ignored forever. The
//!    superblock lists the starts. When the list is full, an opening erases the records that the starts void
//!    ([`Scan::erase_void`]) and lists only its own start.
//! 8. Recovery applies the dense run of timestamps above the checkpoint's timestamp. A missing timestamp at or below
//!    any horizon that is found in a header (of a record or a segment) or implied by the start of an opening is
//!    corruption. A missing timestamp above all these horizons ends the replay, even if records follow it.
//! 9. A segment that names a newer checkpoint than the newest superblock indicates corruption: a superblock was lost.
//! 10. A segment is reused only once all its records are covered and no reader holds it.
//! 11. The superblock durably lists the windows that must exist ([`Hooks::list`]). It is updated before records are put
//!     into a window, and before the file of a window that is no longer needed is reused. The windows of a stream abut.
//!     So a lost segment is detected, whatever its contents were.
//! 12. The log writes only to files that it knows to be its own: new files get unused names, and a file is inspected
//!     before it is reused.
//! 13. No record is appended to a sealed stream: [`Reservation::append`] checks a flag under the stream's mutex before
//!     it takes a timestamp. Once all streams are sealed, a flush or checkpoint includes every record.
//! 14. A failed write or sync of the log is final. But if a segment can't be created (no disk space, no file handles,
//!     or a missing folder) before any record in it is needed, the log does not fail: the commit that waits for
//!     the segment gets the error, and the next commit retries.
//!
//! # States
//! A record: reserved ([`Log::reserve`]) → pending ([`Reservation::append`]) → in flight (`Tail::begin_write`) → on the
//! medium (`Tail::complete`) → durable (`Shared::publish`) → covered ([`Log::truncate`]).
//! A segment file: spare → prepared (`Shared::prepare_window`) → current (`Tail::append`) → full → covered → spare.
//! The log: open → sealed ([`Log::seal`]) → closed ([`Log::close`]); failed ([`Log::fail`]) from any of them.
//!
//! # Who writes
//! No committer waits for a timer. A committer that finds its record pending and no write in flight writes everything
//! that is pending, on its own thread. Later committers wait, and the next write covers all of their records. One
//! background thread writes for tasks ([`Log::request_flush`]), and after a short delay writes records that no
//! committer waits for ([`Log::request_relaxed_flush`]). A second one prepares segments, and removes spare ones once
//! the log is idle. If the backend has no threads (`Unsupported`), the callers prepare segments and write records
//! themselves.
//!
//! # Lock order
//! `preparing` → `listed` → `old` → one stream's `tail` → `doomed`, `tasks` or the signal's mutex. No lock except
//! `preparing` and `listed` is held during hooks and I/O.

mod buffers;
mod commit;
mod hooks;
mod horizon;
mod live;
pub(crate) mod observe;
mod options;
mod prepare;
mod queue;
mod reader;
mod record;
mod reservation;
mod scan;
mod segment;
mod shared;
mod signal;
mod spares;
mod stream;
#[cfg(test)]
mod tests;
mod wait;
mod windows;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::format::log::record_bytes;
use crate::format::superblock::LogRange;
use crate::format::{BLOCK_BYTES, CheckpointNumber, Incarnation, SlotNumber, StreamPosition, Timestamp, UseNumber};
use crate::io::{Backend, FolderRef};
use crate::sync::Mutex;
use horizon::Horizon;
use prepare::Refusal;
use reader::History;
use segment::Spare;
use shared::SharedLog;
use signal::{Call, Signal, Urgency};
use spares::Spares;
use stream::Stream;
use windows::{Limit, Window};

pub(crate) use hooks::Hooks;
pub(crate) use live::Verified;
pub(crate) use observe::{database_of_log, observe};
pub(crate) use options::{Claim, LogOptions, READY_COMMITS_MAX};
pub(crate) use reader::{Record, Records};
pub(crate) use record::{Appended, Body};
pub(crate) use reservation::Reservation;
pub(crate) use scan::{Scan, SuperblockLogState};
pub(crate) use signal::RELAXED_DELAY;

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<SharedLog>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Says whether the log was created, recovered or reopened after closing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// Created together with the database. Its first windows are prepared immediately, so opening fails on a full disk.
    New,
    /// Recovered because the database had not been closed. Windows are prepared when records arrive, so the log can be
    /// opened on a full disk.
    Recovered,
    /// Reopened after the database was closed. Nothing is written before the first record.
    Closed,
}

/// The parts that a log is assembled from.
struct LogParts {
    backend: Arc<dyn Backend>,
    folder: FolderRef,
    options: LogOptions,
    incarnation: Incarnation,
    history: History,
    /// The newest timestamp that the checkpoint numbered `checkpoint` covers.
    covered: Timestamp,
    checkpoint: CheckpointNumber,
    /// The timestamp of the newest record.
    last: Timestamp,
    streams: Vec<Stream>,
    old: Vec<Window>,
    doomed: Vec<Spare>,
    listed: Vec<LogRange>,
    hooks: Hooks,
}

impl Log {
    /// Creates an empty log in a folder that has none.
    pub(crate) fn create(
        backend: &Arc<dyn Backend>,
        folder: &FolderRef,
        options: &LogOptions,
        incarnation: Incarnation,
        hooks: Hooks,
    ) -> Result<Log> {
        options.check()?;
        let found = folder.list().map_err(|error| Error::io("listing", folder.path(), error))?;
        if let Some(name) = found.iter().find(|name| segment::parse_name(name).is_some()) {
            let path = folder.path().join(name);
            return Err(Error::corrupted(&path, "the log", "it is there, though the database was never opened"));
        }
        let mut history = History::default();
        history.add(incarnation, Timestamp(1));
        let new_stream = |index| {
            let spares = Spares::new(Vec::new(), UseNumber::FIRST, SlotNumber::FIRST);
            Stream::new(index, options, StreamPosition::START, Vec::new(), spares)
        };
        let streams = (0..usize::from(options.streams)).map(new_stream).collect();
        let log = Log::assemble(LogParts {
            backend: Arc::clone(backend),
            folder: Arc::clone(folder),
            options: options.clone(),
            incarnation,
            history,
            covered: Timestamp(0),
            last: Timestamp(0),
            checkpoint: CheckpointNumber::NONE,
            streams,
            old: Vec::new(),
            doomed: Vec::new(),
            listed: Vec::new(),
            hooks,
        });
        log.begin(Origin::New)?;
        Ok(log)
    }

    fn assemble(parts: LogParts) -> Log {
        assert!(!parts.streams.is_empty(), "a log without a stream");
        assert!(parts.covered <= parts.last, "a checkpoint covers {}, the log ends at {}", parts.covered, parts.last);
        let LogParts { backend, folder, options, incarnation, history, checkpoint, streams, hooks, .. } = parts;
        let signal = Signal::new(options.relaxed_delay);
        assert!(streams.len() == usize::from(options.streams), "a log of other streams than it is to have");
        let shared = SharedLog {
            backend,
            folder,
            options,
            incarnation,
            history,
            hooks,
            horizon: Horizon::new(streams.len(), parts.last),
            streams: streams.into_boxed_slice(),
            old: Mutex::new(parts.old),
            truncated: AtomicU64::new(parts.covered.0),
            checkpoint: AtomicU64::new(checkpoint.0),
            failure: OnceLock::new(),
            sync_count: AtomicU64::new(0),
            write_bytes: AtomicU64::new(0),
            tasks: Mutex::new(Vec::new()),
            tasks_count: AtomicUsize::new(0),
            signal,
            preparing: Mutex::new(()),
            listed: Mutex::new(parts.listed),
            doomed: Mutex::new(parts.doomed),
            is_shortage_logged: AtomicBool::new(false),
            has_threads: AtomicBool::new(false),
        };
        Log { shared: Arc::new(shared), threads: Mutex::new(Vec::new()) }
    }

    /// Prepares each stream of a new log for its first records, and starts the threads.
    fn begin(&self, origin: Origin) -> Result<()> {
        let shared = &self.shared;
        let prepared = if origin == Origin::New { shared.streams.len() } else { 0 };
        for index in 0..prepared {
            shared.streams[index].tail.lock().want_window();
            while !shared.streams[index].tail.lock().windows_admit(BLOCK_BYTES, 0) {
                let Some(preparation) = shared.streams[index].tail.lock().preparation() else { break };
                match shared.prepare(index, preparation) {
                    Ok(()) => {}
                    Err(Refusal::Full(_)) => return Err(shared.disk_full()),
                    Err(Refusal::Passing(error) | Refusal::Final(error)) => {
                        return Err(Error::io("preparing a log segment in", shared.folder.path(), error));
                    }
                }
            }
        }
        if origin != Origin::Closed {
            shared.list().map_err(|error| Error::io("listing the segments of", shared.folder.path(), error))?;
        }
        self.spawn("drumlin-log-prepare", |shared| {
            loop {
                match shared.signal.wait_prepare(shared.has_surplus()) {
                    Call::Prepare => shared.prepare_all(),
                    Call::Idle => shared.remove_idle(),
                    Call::Stop => break,
                }
            }
        })?;
        self.spawn("drumlin-log-flush", |shared| {
            while shared.signal.wait_flush() {
                shared.flush_requested_streams();
            }
        })?;
        if origin != Origin::Closed && shared.has_threads() {
            shared.signal.prepare();
        }
        Ok(())
    }

    fn spawn(&self, name: &str, body: fn(&SharedLog)) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        match self.shared.backend.spawn(name, Box::new(move || body(&shared))) {
            Ok(thread) => {
                self.shared.has_threads.store(true, Ordering::Release);
                self.threads.lock().push(thread);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            Err(error) => Err(Error::io("starting a thread for", self.shared.folder.path(), error)),
        }
    }

    /// Appends a record without a reservation and assigns its timestamp. Returns `None` if there is not enough space at
    /// present, or if threads or tasks are waiting for space.
    ///
    /// # Errors
    /// Same as [`Reservation::append`].
    pub(crate) fn try_append(&self, stream: usize, body: &Body) -> Result<Option<Appended>> {
        if !self.takes(stream, body.bytes().len()) {
            return Ok(None);
        }
        let shared = &self.shared;
        let mut tail = shared.streams[stream].tail.lock();
        shared.check_open(&tail)?;
        let margin_bytes = shared.options.margin_bytes(Claim::Ordinary, tail.windows.count());
        if !tail.fits_at_once(record_bytes(body.bytes().len()), margin_bytes) {
            return Ok(None);
        }
        let appended = shared.append(stream, &mut tail, body);
        Ok(Some(Appended { wants_preparation: tail.preparation().is_some(), ..appended }))
    }

    /// Requests the next window of each stream that needs one.
    pub(crate) fn request_preparation(&self) {
        self.shared.request_preparation();
    }

    /// Reserves space for a record whose body has at most `body_bytes`. If necessary, waits until other records are
    /// written or the next segment is prepared. Fails with [`Error::DiskFull`] if there is no disk space for a segment.
    pub(crate) fn reserve(&self, stream: usize, body_bytes: usize) -> Result<Reservation<'_>> {
        self.shared.reserve(stream, body_bytes, Claim::Ordinary)
    }

    /// Like [`reserve`](Self::reserve), for the first stream, with this claim on its space.
    pub(crate) fn reserve_with(&self, body_bytes: usize, claim: Claim) -> Result<Reservation<'_>> {
        self.shared.reserve(0, body_bytes, claim)
    }

    /// Like [`reserve_with`](Self::reserve_with), for a task.
    pub(crate) async fn reserve_as_task_with(&self, body_bytes: usize, claim: Claim) -> Result<Reservation<'_>> {
        self.shared.reserve_as_task(0, body_bytes, claim).await
    }

    /// Like [`reserve`](Self::reserve), for a task. Tasks wait in the same queue as threads.
    pub(crate) async fn reserve_as_task(&self, stream: usize, body_bytes: usize) -> Result<Reservation<'_>> {
        self.shared.reserve_as_task(stream, body_bytes, Claim::Ordinary).await
    }

    /// Returns the maximum length of a body. It is the limit of the first stream, which accepts the longest bodies.
    pub(crate) fn body_bytes_max(&self) -> usize {
        self.shared.streams[0].body_bytes_max
    }

    /// Returns `true` if the stream accepts a body of this length. The first stream accepts every body that any other
    /// stream accepts.
    pub(crate) fn takes(&self, stream: usize, body_bytes: usize) -> bool {
        let body_bytes_max = self.shared.streams[stream].body_bytes_max;
        debug_assert!(body_bytes_max <= self.body_bytes_max(), "stream {stream} takes what the first does not");
        body_bytes <= body_bytes_max
    }

    pub(crate) fn stream_count(&self) -> usize {
        self.shared.streams.len()
    }

    /// Waits until the durable horizon covers the record. Fails with [`Error::OutcomeUnknown`] if the log fails first.
    pub(crate) fn wait_durable(&self, appended: &Appended) -> Result<()> {
        self.shared.wait_durable(appended.stream.index(), appended.timestamp)
    }

    /// Waits until the durable horizon covers all records up to this timestamp, in every stream.
    pub(crate) fn wait_durable_up_to(&self, timestamp: Timestamp) -> Result<()> {
        self.shared.wait_durable_up_to(timestamp)
    }

    /// Like [`wait_durable_up_to`](Self::wait_durable_up_to), for a task, which is woken when it should poll again. A
    /// background thread writes the records.
    pub(crate) fn poll_durable(&self, timestamp: Timestamp, waker: &Waker) -> Poll<Result<()>> {
        self.shared.poll_durable(timestamp, waker)
    }

    /// Asks a background thread to write a record that a task waits for.
    pub(crate) fn request_flush(&self, appended: &Appended) {
        self.shared.request_flush(appended.stream.index(), Urgency::Now);
    }

    /// Asks a background thread to write a record that no thread waits for, together with other records, within about a
    /// millisecond.
    pub(crate) fn request_relaxed_flush(&self, appended: &Appended) {
        let urgency = if appended.is_near_full { Urgency::Now } else { Urgency::Soon };
        self.shared.request_flush(appended.stream.index(), urgency);
    }

    /// Returns the durable horizon.
    pub(crate) fn durable(&self) -> Timestamp {
        self.shared.horizon.durable()
    }

    /// Returns the newest timestamp that was assigned.
    pub(crate) fn last(&self) -> Timestamp {
        self.shared.horizon.last()
    }

    /// Allows the reuse of segments that have no record above `covered`. All records up to `covered` must be in the
    /// durable checkpoint numbered `checkpoint`, which the headers of later segments will name.
    pub(crate) fn truncate(&self, covered: Timestamp, checkpoint: CheckpointNumber) {
        assert!(covered <= self.durable(), "a checkpoint covers what is not durable");
        self.shared.truncate(Limit::Covered(covered), checkpoint);
    }

    /// Allows the reuse of the segments of the only stream that end at or below `position`. Everything below it must be
    /// durable, and nothing of it is read again. Later segments will name `checkpoint`.
    pub(crate) fn truncate_below(&self, position: StreamPosition, checkpoint: CheckpointNumber) {
        assert!(self.shared.streams.len() == 1, "a position is in one of several streams");
        self.shared.truncate(Limit::Below(position), checkpoint);
    }

    /// Returns the timestamp of the newest record, and the position at which the only stream continues.
    pub(crate) fn tail(&self) -> (Timestamp, StreamPosition) {
        let [stream] = &*self.shared.streams else { panic!("a position is in one of several streams") };
        // Timestamps are taken under this lock.
        let tail = stream.tail.lock();
        (self.last(), tail.end())
    }

    /// Reads the bytes of the only stream from `position` on into `target`, which must be durable. Returns `false` if
    /// they were truncated.
    pub(crate) fn read_at(&self, position: StreamPosition, target: &mut [u8]) -> Result<bool> {
        self.shared.read_at(position, target)
    }

    /// Returns the file that holds this position of the only stream, and the offset in it.
    pub(crate) fn place_of(&self, position: StreamPosition) -> Option<(PathBuf, u64)> {
        let segment = self.shared.segment_at(position)?;
        Some((segment.path().to_path_buf(), segment.offset(position)))
    }

    /// Returns the position of the only stream below which everything is on the medium.
    pub(crate) fn durable_position(&self) -> StreamPosition {
        self.shared.streams[0].tail.lock().durable_position()
    }

    /// Returns the windows of the only stream that are full and on the medium, from the oldest on: the start and the
    /// end of each.
    pub(crate) fn full_windows(&self) -> Vec<(StreamPosition, StreamPosition)> {
        self.shared.full_windows()
    }

    /// Asks a background thread to write the pending records of the first stream, which a task or a callback waits for.
    pub(crate) fn request_flush_of_first(&self) {
        self.shared.request_flush(0, Urgency::Now);
    }

    /// Asks a background thread to write the pending records of the first stream within about a millisecond.
    pub(crate) fn request_relaxed_flush_of_first(&self) {
        self.shared.request_flush(0, Urgency::Soon);
    }

    /// Returns the total size of all segment files, spare ones included, in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.shared.file_bytes()
    }

    /// Returns the durable records above `after`.
    pub(crate) fn read_from(&self, after: Timestamp) -> Result<Records> {
        self.shared.read_from(after)
    }

    /// Returns the oldest timestamp that may be passed to [`read_from`](Log::read_from).
    #[cfg(test)]
    pub(crate) fn truncated(&self) -> Timestamp {
        Timestamp(self.shared.truncated.load(Ordering::SeqCst))
    }

    /// Removes the segment files that an idle log does not need.
    pub(crate) fn remove_idle(&self) {
        self.shared.remove_idle();
    }

    /// Returns the total length of all record bodies appended since the log was opened, in bytes.
    #[inline]
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.shared.streams.iter().map(|stream| stream.appended_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns the total size of the segments whose records have not been truncated, in bytes.
    pub(crate) fn live_bytes(&self) -> u64 {
        let old: u64 = self.shared.old.lock().iter().map(|window| window.segment.header.window_bytes).sum();
        let streams = self.shared.streams.iter().map(|stream| {
            let tail = stream.tail.lock();
            tail.position() - tail.windows.start()
        });
        old + streams.sum::<u64>()
    }

    /// Returns the number of durable writes of records so far.
    pub(crate) fn sync_count(&self) -> u64 {
        self.shared.sync_count.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes written to the log's files so far, in whole blocks: padded records, headers, and
    /// zeros.
    pub(crate) fn write_bytes(&self) -> u64 {
        let bytes = self.shared.write_bytes.load(Ordering::Relaxed);
        assert!(bytes.is_multiple_of(BLOCK_BYTES as u64), "{bytes} bytes are no whole blocks");
        bytes
    }

    /// Returns the reason why the log failed, if it has.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.shared.failure()
    }

    /// Makes the log fail at the request of another module. No more records will become durable.
    #[cfg_attr(not(test), expect(dead_code, reason = "for failures outside of the log"))]
    pub(crate) fn fail(&self, reason: &str) {
        self.shared.fail(reason);
    }

    /// Stops accepting records. When this returns, [`last`](Self::last) is final. The log then refuses new
    /// reservations, and also records whose space was reserved before. This call does not wait for the owners of such
    /// reservations.
    pub(crate) fn seal(&self) {
        for stream in &self.shared.streams {
            stream.tail.lock().seal();
            stream.announce_end();
        }
    }

    /// Seals the log, writes everything that is pending and stops the threads.
    pub(crate) fn end(&self) -> Result<()> {
        self.seal();
        let mut flushed = Ok(());
        for index in 0..self.shared.streams.len() {
            flushed = flushed.and(self.shared.flush(index));
        }
        self.stop();
        flushed?;
        let is_pending = |stream: &Stream| stream.tail.lock().floor().is_some();
        assert!(!self.shared.streams.iter().any(is_pending), "a record is pending in a log that is closed");
        Ok(())
    }

    /// [Ends](Log::end) the log. If a checkpoint at `covered` covers all records, the log is no longer needed, so only
    /// one segment of each stream is kept.
    pub(crate) fn close(&self, covered: Timestamp) -> Result<()> {
        self.end()?;
        assert!(covered <= self.last(), "a checkpoint of {covered} covers more than the log has");
        if self.failure().is_none() && self.last() <= covered {
            let closed = (self.shared.hooks.on_closed)();
            closed.map_err(|error| Error::io("recording the end of", self.shared.folder.path(), error))?;
            let has_windows = |stream: &Stream| !stream.tail.lock().windows.is_empty();
            if self.shared.streams.iter().any(has_windows) {
                self.shared.remove_closed();
            }
        }
        Ok(())
    }

    fn stop(&self) {
        self.seal();
        self.shared.signal.stop();
        for thread in self.threads.lock().drain(..) {
            if crate::sync::join(thread).is_err() {
                log::error!("a thread of the log panicked");
            }
        }
    }

    /// Reads every live segment and verifies its header and records, continuing after any corruption.
    pub(crate) fn verify(&self) -> Result<Verified> {
        self.shared.verify()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop();
    }
}
