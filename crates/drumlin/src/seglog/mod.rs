//! The log: segmented, append-only, redo-only. It is what a commit waits for.
//!
//! A log has one or more parallel *streams*. A stream is one contiguous space of bytes, addressed by position; its
//! segment files (`<stream>-<slot>.seg`) each hold a *window* of it. A record has a timestamp; timestamps are dense
//! over all streams and ascend within each. The *durable horizon* is the largest timestamp up to which every record is
//! on the medium. The byte formats are in [`format::log`](crate::format::log).
//!
//! # Invariants
//! 1. A timestamp is assigned and its record's bytes are placed in one step, under the stream's mutex, with space that
//!    was reserved before. So nothing fails or waits once a timestamp exists, and there are no holes.
//! 2. A stream has one write in flight. A buffer in flight never changes: records that arrive during the write go to
//!    the other buffer.
//! 3. Durable bytes are rewritten only with the same bytes: a tail block is written again together with the records
//!    that follow in it, and recovery continues after the last record that verifies. Only void records may be erased
//!    (7).
//! 4. The horizon never passes a record that is not on the medium, in any stream, and never goes back. So what is
//!    reported durable is a contiguous prefix. A failed write or sync stays pending forever, so the horizon can't pass
//!    it.
//! 5. A segment's header is durable before a record is written in its window, and its use number is in the seed of
//!    every record's checksum. So bytes of an earlier use never verify.
//! 6. A window is filled with zeros before records are written in it, and recycled files are rewritten in place. So a
//!    commit's durable write changes no metadata. (A new file is filled in steps; records stay below the filled part.)
//! 7. A record of an older incarnation at or above a later one's start is void, which means ignored forever. The
//!    superblock lists the starts. When it has no room for another, an opening erases the records that they void
//!    ([`Scan::erase_void`]) and lists only its own start.
//! 8. Recovery applies the dense run of timestamps above the checkpoint's. A missing timestamp at or below any horizon
//!    found in a header (of a record, of a segment, or implied by the start of an opening) is corruption. A missing
//!    timestamp above all of them ends the replay, whatever follows it.
//! 9. A segment that names a newer checkpoint than the newest superblock is damage: the superblock is lost.
//! 10. A segment is reused only when all its records are covered and no reader holds it.
//! 11. The superblock lists durably which windows must exist ([`Hooks::list`]). It is updated before records are put
//!     into a window, and before the file of an unneeded window is reused. Windows of a stream abut. So a lost segment
//!     is noticed, whatever it held.
//! 12. The log writes only to files that it knows to be its own: new files get unused names, and a file is inspected
//!     before it is reused.
//! 13. No record is appended to a sealed stream: [`Reservation::append`] checks a flag under the stream's mutex before
//!     it takes a timestamp. Once all streams are sealed, a flush or checkpoint leaves no record out.
//! 14. A failed write or sync of the log is final. If a segment cannot be made, for lack of space, of file handles or
//!     of the folder, before anything in it is needed, the log does not fail: the commit that waits for the segment
//!     gets the error, and the next commit tries again.
//!
//! # States
//! A record: reserved ([`Log::reserve`]) → pending ([`Reservation::append`]) → in flight (`Tail::begin_write`) → on the
//! medium (`Tail::complete`) → durable (`Shared::publish`) → covered ([`Log::truncate`]).
//! A segment file: spare → prepared (`Shared::prepare_window`) → current (`Tail::append`) → full → covered → spare.
//! The log: open → sealed ([`Log::seal`]) → closed ([`Log::close`]); failed ([`Log::fail`]) from any of them.
//!
//! # Who writes
//! No committer waits for a timer. A committer that finds its record pending and no write in flight writes everything
//! that is pending, on its own thread. Later committers wait, and the next write covers all of them. A background
//! thread writes for tasks ([`Log::request_flush`]), and after a short delay writes records that no committer waits for
//! ([`Log::request_relaxed_flush`]). Another one prepares segments, and removes spare ones once the log is idle. If the
//! backend has no threads (`Unsupported`), the callers prepare and write themselves.
//!
//! # Lock order
//! `preparing` → `listed` → `old` → one stream's `tail` → `doomed`, `tasks` or the signal's mutex. Hooks and I/O run
//! while no lock is held, except `preparing` and `listed`.

mod buffers;
mod commit;
mod horizon;
mod live;
mod prepare;
mod queue;
mod reader;
mod scan;
mod segment;
mod spares;
mod stream;
#[cfg(test)]
mod tests;
mod wait;
mod windows;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use crate::sync::Mutex;

pub(crate) use reader::Records;
pub(crate) use scan::Scan;

use crate::error::{Error, Result};
use crate::format::log::record_bytes;
use crate::format::superblock::LogRange;
use crate::format::{
    BLOCK_BYTES, CheckpointNumber, DatabaseId, Incarnation, SlotNumber, StreamId, StreamPosition, Timestamp, UseNumber,
    checksum,
};
use crate::io::{Backend, FolderRef, Persist, Share, SyncMethod};
use buffers::Buffers;
use horizon::Horizon;
use prepare::{Call, Refusal, Signal, Urgency};
use reader::History;
use segment::{BLOCK, Spare};
use spares::Spares;
use stream::{Stream, Tail};
use wait::Waiter;
use windows::Window;

/// The minimum size of a stream's buffer. Each stream has two.
const BUFFER_BYTES_MIN: usize = 4 * BLOCK_BYTES;

const _: () = assert!(BUFFER_BYTES_MIN >= 2 * BLOCK_BYTES + record_bytes(0), "the least buffer has room for no record");

/// The settings of a log.
#[derive(Clone, Debug)]
pub(crate) struct LogOptions {
    pub(crate) streams: u16,
    /// Bytes of a segment file, header included; a multiple of 4,096.
    pub(crate) segment_bytes: u64,
    /// Memory for the append buffers of all streams: at least 32 KiB each.
    pub(crate) buffer_bytes: usize,
    /// Memory for reading the log while it is open.
    pub(crate) reader_bytes: usize,
    /// The longest body that must fit. The first stream gets larger buffers if it needs them for this.
    pub(crate) body_bytes: usize,
    pub(crate) sync: SyncMethod,
    /// The database's id, in every header.
    pub(crate) database: DatabaseId,
}

impl LogOptions {
    fn check(&self) -> Result<()> {
        if self.streams == 0 {
            return Err(Error::Invalid("a log needs at least one stream".into()));
        }
        if !self.segment_bytes.is_multiple_of(BLOCK) || self.segment_bytes < 2 * BLOCK {
            let given = self.segment_bytes;
            return Err(Error::Invalid(format!(
                "log segments of {given} bytes are not allowed: use a multiple of 4096, at least 8192"
            )));
        }
        let others = usize::from(self.streams) - 1;
        let minimum_bytes = 2 * (self.first_buffer_bytes_min() + others * BUFFER_BYTES_MIN);
        if self.buffer_bytes < minimum_bytes {
            return Err(Error::BudgetTooSmall {
                given_bytes: self.buffer_bytes as u64,
                minimum_bytes: minimum_bytes as u64,
            });
        }
        Ok(())
    }

    /// Returns the minimum size of the first stream's buffers, which have to hold the longest record.
    fn first_buffer_bytes_min(&self) -> usize {
        Buffers::buffer_bytes_for(record_bytes(self.body_bytes)).max(BUFFER_BYTES_MIN)
    }

    /// Returns the length of a stream's two buffers. One can be filled while the other is written.
    fn stream_buffer_bytes(&self, stream: usize) -> usize {
        let streams = usize::from(self.streams);
        let share = self.buffer_bytes / streams / 2;
        let first = share.max(self.first_buffer_bytes_min());
        let bytes = match stream {
            0 => first,
            _ => (self.buffer_bytes / 2 - first) / (streams - 1),
        };
        let bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
        debug_assert!(bytes >= BUFFER_BYTES_MIN, "stream {stream} has buffers of {bytes} bytes");
        bytes
    }

    /// Returns the length of the longest body that a stream takes.
    fn body_bytes_max(&self, stream: usize) -> usize {
        let record_max = Buffers::record_bytes_max(self.stream_buffer_bytes(stream));
        (record_max - record_bytes(0)).min(u32::MAX as usize - record_bytes(0))
    }

    fn window_bytes(&self) -> u64 {
        self.segment_bytes - BLOCK
    }
}

/// The facts about the log that the superblock has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuperblockLogState<'a> {
    /// The openings of the database, each with its first timestamp. Records of openings older than the first listed one
    /// count if they are below its start.
    pub(crate) incarnations: &'a [(Incarnation, Timestamp)],
    /// Sequence number of the newest valid superblock.
    pub(crate) checkpoint: CheckpointNumber,
    /// Everything up to this timestamp is in the checkpoint.
    pub(crate) covered: Timestamp,
    /// The log ranges that must exist.
    pub(crate) ranges: &'a [LogRange],
    /// The database was closed, so no record is above `covered` unless a superblock is lost.
    pub(crate) is_closed: bool,
}

/// Called at a step of writing; see [`Hooks`].
pub(crate) type BeforeWrite = Box<dyn Fn() -> io::Result<()> + Send + Sync>;
/// Called when the horizon has moved; see [`Hooks`].
pub(crate) type OnDurable = Box<dyn Fn(Timestamp) + Send + Sync>;

/// Called when the ranges that must exist change; see [`Hooks`].
pub(crate) type List = Box<dyn Fn(&[LogRange]) -> io::Result<()> + Send + Sync>;

/// Callbacks of the log. Called with none of its locks held, except those that its background work takes.
pub(crate) struct Hooks {
    /// Called before the log prepares a window. Records the opening durably, if that was deferred. If it fails, the log
    /// fails.
    pub(crate) before_window: BeforeWrite,
    /// Called before the log writes a record that names extents. Makes the extents of large values durable. If it
    /// fails, the log fails.
    pub(crate) before_write: BeforeWrite,
    /// Called when the durable horizon has moved to this timestamp. Several threads may call it at once, and so out of
    /// order: the receiver keeps the maximum.
    pub(crate) on_durable: OnDurable,
    /// Records durably which ranges must exist when the log is opened again. Called before records are put into a new
    /// window, and before the file of an unneeded window is reused. If it fails, the log fails.
    pub(crate) list: List,
    /// Records durably that the log is closed: nothing in it is needed, and nothing more is written to it.
    pub(crate) on_closed: BeforeWrite,
    /// Counts the log's writes, so that background work yields to them.
    pub(crate) share: Arc<Share>,
}

impl Hooks {
    /// Hooks that do nothing.
    pub(crate) fn none() -> Hooks {
        Hooks {
            before_window: Box::new(|| Ok(())),
            before_write: Box::new(|| Ok(())),
            on_durable: Box::new(|_| {}),
            list: Box::new(|_| Ok(())),
            on_closed: Box::new(|| Ok(())),
            share: Arc::default(),
        }
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooks")
    }
}

/// The body of a record with its checksum, which is computed outside of any lock.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    checksum: u64,
    names_extents: bool,
}

impl Body {
    pub(crate) fn new(bytes: Vec<u8>) -> Body {
        let checksum = checksum(&bytes, 0);
        Body { bytes, checksum, names_extents: false }
    }

    /// Creates the body of a record that names values in extents. The extents must be durable before the record. See
    /// [`Hooks::before_write`].
    pub(crate) fn naming_extents(bytes: Vec<u8>) -> Body {
        Body { names_extents: true, ..Body::new(bytes) }
    }

    fn names_extents(&self) -> bool {
        self.names_extents
    }

    /// Returns the vector that the body was made from, for reuse.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn checksum(&self) -> u64 {
        self.checksum
    }
}

/// The position of an appended record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Appended {
    pub(crate) timestamp: Timestamp,
    pub(crate) stream: StreamId,
    /// The position after the record in its stream.
    pub(crate) end: StreamPosition,
    /// The stream's buffer is filling up.
    pub(crate) is_near_full: bool,
    /// The stream needs its next window prepared, and the caller has to request this.
    pub(crate) wants_preparation: bool,
}

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<SharedLog>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct SharedLog {
    backend: Arc<dyn Backend>,
    folder: FolderRef,
    options: LogOptions,
    incarnation: Incarnation,
    history: History,
    hooks: Hooks,
    horizon: Horizon,
    streams: Box<[Stream]>,
    /// Windows of earlier openings that no checkpoint covers yet. Those of a stream are ordered by use number.
    old: Mutex<Vec<Window>>,
    /// Records at or below this timestamp may be gone.
    truncated: AtomicU64,
    checkpoint: AtomicU64,
    failure: OnceLock<Arc<str>>,
    sync_count: AtomicU64,
    /// Bytes written to the log's files: blocks of records, headers, zeros.
    write_bytes: AtomicU64,
    /// Tasks that wait for a timestamp. `tasks_count` is checked whenever the horizon moves.
    tasks: Mutex<Vec<(Timestamp, Waker)>>,
    tasks_count: AtomicUsize,
    signal: Signal,
    /// Held while segments are prepared or removed.
    preparing: Mutex<()>,
    /// The ranges that were last listed. See [`Hooks::list`].
    listed: Mutex<Vec<LogRange>>,
    doomed: Mutex<Vec<Spare>>,
    /// A full disk has been reported, and no segment has been made since.
    is_shortage_logged: AtomicBool,
    /// `true` if the background threads run. Otherwise callers do their work.
    has_threads: AtomicBool,
}

/// Space reserved in a stream for one record. Its owner must not reserve again in the same stream, nor wait for a
/// thread that might, because the second reservation may have to wait for the first.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    log: &'a SharedLog,
    stream: usize,
    bytes: usize,
}

impl Reservation<'_> {
    /// Appends the record and gives it its timestamp.
    ///
    /// # Errors
    /// [`Error::Failed`] if the log was sealed or has failed since the reservation: there is no timestamp and no
    /// record.
    ///
    /// # Panics
    /// If the body is longer than what was reserved.
    pub(crate) fn append(mut self, body: &Body) -> Result<Appended> {
        assert!(record_bytes(body.bytes().len()) <= self.bytes, "a record is longer than its reservation");
        let shared = self.log;
        let stream = &shared.streams[self.stream];
        let mut tail = stream.tail.lock();
        tail.release(std::mem::take(&mut self.bytes));
        let appended = shared.check_open(&tail).map(|()| shared.append(self.stream, &mut tail, body));
        let has_waiters = tail.is_contended();
        drop(tail);
        if has_waiters {
            stream.announce_space();
        }
        appended
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let stream = &self.log.streams[self.stream];
            let mut tail = stream.tail.lock();
            tail.release(self.bytes);
            let has_waiters = tail.is_contended();
            drop(tail);
            if has_waiters {
                stream.announce_space();
            }
        }
    }
}

/// The origin of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// Created with its database, along with its first windows: a full disk is an error.
    New,
    /// Recovered from a database that was not closed. Windows are prepared when records arrive, so it can be opened on
    /// a full disk.
    Recovered,
    /// The log of a database that was closed. Nothing is written before the first record.
    Closed,
}

/// The parts that a log is assembled from.
struct LogParts {
    backend: Arc<dyn Backend>,
    folder: FolderRef,
    options: LogOptions,
    incarnation: Incarnation,
    history: History,
    /// The newest timestamp covered by the checkpoint with the number below.
    covered: Timestamp,
    checkpoint: CheckpointNumber,
    /// The newest record.
    last: Timestamp,
    streams: Vec<Stream>,
    old: Vec<Window>,
    doomed: Vec<Spare>,
    listed: Vec<LogRange>,
    hooks: Hooks,
}

/// The result of [`Log::verify`].
#[derive(Debug, Default)]
pub(crate) struct Verified {
    pub(crate) segment_count: u64,
    pub(crate) record_count: u64,
    pub(crate) record_bytes: u64,
    /// Each is an [`Error::Corrupted`] or a read error.
    pub(crate) corruption: Vec<Error>,
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
            let buffer_bytes = options.stream_buffer_bytes(index);
            let spares = Spares::new(Vec::new(), UseNumber::FIRST, SlotNumber::FIRST);
            Stream::new(buffer_bytes, StreamPosition::START, Vec::new(), spares)
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
            signal: Signal::default(),
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
            while !shared.streams[index].tail.lock().windows_admit(BLOCK_BYTES) {
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

    /// Appends a record without a reservation, and gives it its timestamp. Returns `None` if there is not enough space
    /// right now, or others are waiting for space.
    ///
    /// # Errors
    /// Like [`Reservation::append`].
    pub(crate) fn try_append(&self, stream: usize, body: &Body) -> Result<Option<Appended>> {
        if !self.takes(stream, body.bytes().len()) {
            return Ok(None);
        }
        let shared = &self.shared;
        let mut tail = shared.streams[stream].tail.lock();
        shared.check_open(&tail)?;
        if !tail.fits_at_once(record_bytes(body.bytes().len())) {
            return Ok(None);
        }
        let appended = shared.append(stream, &mut tail, body);
        Ok(Some(Appended { wants_preparation: tail.preparation().is_some(), ..appended }))
    }

    /// Requests the next window of each stream that wants one.
    pub(crate) fn request_preparation(&self) {
        self.shared.request_preparation();
    }

    /// Reserves space for a record with a body of up to `body_bytes`. If necessary, waits for other records to be
    /// written, or for the next segment. Fails with [`Error::DiskFull`] if there is no space for a segment.
    pub(crate) fn reserve(&self, stream: usize, body_bytes: usize) -> Result<Reservation<'_>> {
        self.shared.reserve(stream, body_bytes)
    }

    /// Like [`reserve`](Self::reserve), for a task, which waits in the same queue.
    pub(crate) async fn reserve_as_task(&self, stream: usize, body_bytes: usize) -> Result<Reservation<'_>> {
        self.shared.reserve_as_task(stream, body_bytes).await
    }

    /// Returns the length of the longest body that the log takes, which is that of the first stream.
    pub(crate) fn body_bytes_max(&self) -> usize {
        self.shared.options.body_bytes_max(0)
    }

    /// Returns `true` if the stream takes a body of this length. The first stream takes every body that any other
    /// stream takes.
    pub(crate) fn takes(&self, stream: usize, body_bytes: usize) -> bool {
        let body_bytes_max = self.shared.options.body_bytes_max(stream);
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

    /// Like [`wait_durable_up_to`](Self::wait_durable_up_to), for a task, which is woken to poll again. A background
    /// thread writes for it.
    pub(crate) fn poll_durable(&self, timestamp: Timestamp, waker: &Waker) -> Poll<Result<()>> {
        self.shared.poll_durable(timestamp, waker)
    }

    /// Asks a background thread to write a record that a task waits for.
    pub(crate) fn request_flush(&self, appended: &Appended) {
        self.shared.request_flush(appended.stream.index(), Urgency::Now);
    }

    /// Asks a background thread to write a record that no thread waits for, along with others, within about a
    /// millisecond.
    pub(crate) fn request_relaxed_flush(&self, appended: &Appended) {
        let urgency = if appended.is_near_full { Urgency::Now } else { Urgency::Soon };
        self.shared.request_flush(appended.stream.index(), urgency);
    }

    /// The durable horizon.
    pub(crate) fn durable(&self) -> Timestamp {
        self.shared.horizon.durable()
    }

    /// The newest timestamp that was assigned.
    pub(crate) fn last(&self) -> Timestamp {
        self.shared.horizon.last()
    }

    /// Lets segments with nothing above `covered` be reused. Everything up to there must be in the durable checkpoint
    /// with this number, which later segments name.
    pub(crate) fn truncate(&self, covered: Timestamp, checkpoint: CheckpointNumber) {
        assert!(covered <= self.durable(), "a checkpoint covers what is not durable");
        self.shared.truncate(covered, checkpoint);
    }

    /// Returns the durable records above `after`.
    #[cfg_attr(not(test), expect(dead_code, reason = "the change feed will use it"))]
    pub(crate) fn read_from(&self, after: Timestamp) -> Result<Records> {
        self.shared.read_from(after)
    }

    /// The oldest timestamp that [`read_from`](Log::read_from) can begin after.
    #[cfg_attr(not(test), expect(dead_code, reason = "the change feed will use it"))]
    pub(crate) fn truncated(&self) -> Timestamp {
        Timestamp(self.shared.truncated.load(Ordering::SeqCst))
    }

    /// Removes the files of segments that an idle log does not need.
    pub(crate) fn remove_idle(&self) {
        self.shared.remove_idle();
    }

    /// Bytes of the bodies of records appended since the log was opened.
    #[inline]
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.shared.streams.iter().map(|stream| stream.appended_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns the bytes of the segments whose records no truncation has covered.
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

    /// Returns the bytes written to the log's files so far, in whole blocks: records with their padding, headers,
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

    /// Fails the log on behalf of another part. Nothing more becomes durable.
    #[cfg_attr(not(test), expect(dead_code, reason = "for failures outside of the log"))]
    pub(crate) fn fail(&self, reason: &str) {
        self.shared.fail(reason);
    }

    /// Ends appending. When this returns, [`last`](Self::last) is final. New reservations are refused, and so are
    /// records whose space was reserved before; this waits for neither.
    pub(crate) fn seal(&self) {
        for stream in &self.shared.streams {
            stream.tail.lock().seal();
            stream.announce_end();
        }
    }

    /// Seals the log, writes everything that is pending and ends the threads. If a checkpoint at `covered` covers all
    /// records, the log is no longer needed: only one segment of each stream is kept.
    pub(crate) fn close(&self, covered: Timestamp) -> Result<()> {
        self.seal();
        assert!(covered <= self.last(), "a checkpoint of {covered} covers more than the log has");
        let mut flushed = Ok(());
        for index in 0..self.shared.streams.len() {
            flushed = flushed.and(self.shared.flush(index));
        }
        self.stop();
        flushed?;
        let is_pending = |stream: &Stream| stream.tail.lock().floor().is_some();
        assert!(!self.shared.streams.iter().any(is_pending), "a record is pending in a log that is closed");
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

    /// Reads every live segment and checks headers and records, continuing after damage.
    pub(crate) fn verify(&self) -> Result<Verified> {
        self.shared.verify()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop();
    }
}

impl SharedLog {
    fn persist(&self) -> Persist {
        Persist::Now(self.options.sync)
    }

    fn has_threads(&self) -> bool {
        self.has_threads.load(Ordering::Acquire)
    }

    fn disk_full(&self) -> Error {
        Error::DiskFull { path: self.folder.path().to_path_buf(), needed_bytes: self.options.segment_bytes }
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

    /// Lists the ranges that must exist durably, if they have changed.
    fn list(&self) -> io::Result<()> {
        // Hold the lock during the call, so that a later list is a newer one.
        let mut listed = self.listed.lock();
        let ranges = self.ranges();
        if *listed != ranges {
            (self.hooks.list)(&ranges)?;
            *listed = ranges;
        }
        Ok(())
    }

    fn failure(&self) -> Option<Arc<str>> {
        self.failure.get().cloned()
    }

    /// Appends a record that the stream has room for.
    fn append(&self, stream: usize, tail: &mut Tail, body: &Body) -> Appended {
        let floor = tail.floor();
        // No other thread changes the counter, because the tail is locked.
        let appended_bytes = &self.streams[stream].appended_bytes;
        appended_bytes.store(appended_bytes.load(Ordering::Relaxed) + body.bytes().len() as u64, Ordering::Relaxed);
        let (timestamp, end) = tail.append(body, self.incarnation, || self.horizon.take(stream, floor));
        Appended {
            timestamp,
            stream: StreamId::of_index(stream),
            end,
            is_near_full: tail.is_near_full(),
            wants_preparation: false,
        }
    }

    /// Fails if records must not be appended to the stream with this tail.
    fn check_open(&self, tail: &Tail) -> Result<()> {
        match self.failure.get() {
            Some(reason) => Err(Error::Failed { reason: Arc::clone(reason) }),
            None if tail.is_sealed() => Err(Error::Closed),
            None => Ok(()),
        }
    }

    fn fail(&self, reason: &str) {
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
    }
}
