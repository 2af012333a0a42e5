//! One stream: the position of the next record, the records that are not on the medium yet, and their waiters.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::task::Waker;
use std::time::Duration;

use crate::sync::{CachePadded, Condvar, Mutex};

use super::buffers::{Buffers, LogBuffer};
use super::options::LogOptions;
use super::queue::Queue;
use super::record::Body;
use super::segment::{BLOCK, Segment, Spare, SpareSize};
use super::spares::Spares;
use super::wait::{Waiter, Waiters};
use super::windows::{Limit, Preparation, Window, Windows};
use crate::format::log::{FLAG_AFTER_DATA, RECORD_HEADER_BYTES, RecordHeader, record_bytes, record_seed};
use crate::format::{BLOCK_BYTES, Incarnation, StreamId, StreamPosition, Timestamp, UseNumber};

/// The space of a stream that is reserved for records not appended yet. Either both sums are zero or both are positive.
#[derive(Debug, Default)]
struct Reserved {
    bytes: usize,
    /// The reserved bytes, plus the padding that each record may cause.
    span_bytes: u64,
}

impl Reserved {
    fn add(&mut self, bytes: usize) {
        debug_assert!(bytes > 0, "space is reserved for a record without bytes");
        self.bytes += bytes;
        self.span_bytes += bytes as u64 + BLOCK;
    }

    fn remove(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "more of a stream is released than is reserved");
        self.bytes -= bytes;
        self.span_bytes -= bytes as u64 + BLOCK;
        debug_assert_eq!(self.bytes == 0, self.span_bytes == 0, "one of two sums was not released");
    }
}

/// The history of failed attempts to prepare a window.
#[derive(Debug, Default)]
struct Refusals {
    count: u64,
    /// The reason for the last refusal, or `None` if the disk was full.
    last: Option<Arc<io::Error>>,
    /// Set if the last attempt to prepare a window found no space.
    is_disk_full: bool,
}

/// The state that the stream's mutex protects.
#[derive(Debug)]
pub(super) struct Tail {
    buffers: Buffers,
    /// The time when the batch was begun to which records are appended, in milliseconds since 1970.
    batch_time_ms: u64,
    reserved: Reserved,
    pub(super) windows: Windows,
    pub(super) spares: Spares,
    refusals: Refusals,
    /// Set once the stream refuses reservations, appends and preparations.
    is_sealed: bool,
    /// The reservations that wait for space.
    pub(super) queue: Queue,
    /// The threads that wait for records to be written.
    pub(super) waiters: Waiters,
}

/// A stream of the log.
#[derive(Debug)]
pub(super) struct Stream {
    /// The highest [`Urgency`](super::signal::Urgency) of the pending requests for the background thread to write, or 0
    /// if no request is pending.
    pub(super) flush_requested: CachePadded<AtomicU8>,
    pub(super) tail: Mutex<Tail>,
    /// The total length of all record bodies appended since the log was opened, in bytes. Changed only while the tail
    /// is locked.
    pub(super) appended_bytes: AtomicU64,
    /// The length of the longest body that the stream accepts. Every commit asks for it.
    pub(super) body_bytes_max: usize,
    /// Signalled when space in the buffer or a window is freed, or when no more space will ever be freed.
    pub(super) space: Condvar,
}

impl Stream {
    /// Creates an idle stream that continues at `position`, which must be the start of a block.
    pub(super) fn new(
        index: usize,
        options: &LogOptions,
        position: StreamPosition,
        windows: Vec<Window>,
        spares: Spares,
    ) -> Stream {
        let tail = Tail {
            buffers: Buffers::new(options.stream_buffer_bytes(index), position),
            batch_time_ms: 0,
            reserved: Reserved::default(),
            windows: Windows::new(windows, position),
            spares,
            refusals: Refusals::default(),
            is_sealed: false,
            queue: Queue::default(),
            waiters: Waiters::default(),
        };
        Stream {
            flush_requested: CachePadded::new(AtomicU8::new(0)),
            tail: Mutex::new(tail),
            appended_bytes: AtomicU64::new(0),
            body_bytes_max: options.body_bytes_max(index),
            space: Condvar::new(),
        }
    }

    /// Announces that space may have been freed, so that the head of the queue checks again.
    pub(super) fn announce_space(&self) {
        let waker = self.tail.lock().queue.take_first_waker();
        self.space.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Announces that no more space will be freed, so that the whole queue checks again.
    pub(super) fn announce_end(&self) {
        let wakers = self.tail.lock().queue.take_wakers();
        self.space.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Tail {
    /// Returns the position after the last record, at or above which the next one begins.
    pub(super) fn end(&self) -> StreamPosition {
        self.buffers.end()
    }

    /// Returns the position at which a record that is appended now begins.
    pub(super) fn position(&self) -> StreamPosition {
        self.buffers.position()
    }

    /// Returns the position below which everything is on the medium.
    pub(super) fn durable_position(&self) -> StreamPosition {
        self.buffers.durable_position()
    }

    /// Returns `true` if a thread or task waits for space.
    pub(super) fn is_contended(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Refuses reservations, appends and preparations from now on.
    pub(super) fn seal(&mut self) {
        self.is_sealed = true;
    }

    /// Returns `true` if the buffer has room for a record of `bytes`, in addition to the reserved records.
    pub(super) fn buffer_admits(&self, bytes: usize) -> bool {
        self.buffers.admits(self.reserved.bytes + bytes)
    }

    /// Returns `true` if more than half of the buffer is used. Pending records should then be written soon.
    pub(super) fn is_near_full(&self) -> bool {
        self.buffers.is_near_full()
    }

    /// Returns the position that the windows must reach for a record of `bytes`. Allows for the padding before each
    /// reserved record.
    fn span_end(&self, bytes: usize) -> StreamPosition {
        self.position() + self.reserved.span_bytes + bytes as u64 + BLOCK
    }

    /// Returns `true` if a record of `bytes` fits into the prepared windows and leaves `margin_bytes` of them.
    pub(super) fn windows_admit(&self, bytes: usize, margin_bytes: u64) -> bool {
        self.span_end(bytes) + margin_bytes <= self.windows.ready()
    }

    /// Returns `true` if a record of `bytes` fits and no request is waiting in the queue.
    pub(super) fn fits_at_once(&self, bytes: usize, margin_bytes: u64) -> bool {
        !self.is_contended() && self.buffer_admits(bytes) && self.windows_admit(bytes, margin_bytes)
    }

    /// Reserves space for a record of `bytes`.
    pub(super) fn admit(&mut self, bytes: usize) {
        debug_assert!(
            self.buffer_admits(bytes) && self.windows_admit(bytes, 0),
            "more is admitted than there is room for"
        );
        self.reserved.add(bytes);
    }

    /// Releases the space of a reservation of `bytes`.
    pub(super) fn release(&mut self, bytes: usize) {
        self.reserved.remove(bytes);
    }

    /// Returns the number of bytes reserved for records that have not been appended yet.
    pub(super) fn reserved_bytes(&self) -> usize {
        self.reserved.bytes
    }

    /// Requests enough windows for a record of `bytes` and a margin after it.
    pub(super) fn want_windows_for(&mut self, bytes: usize, margin_bytes: u64) {
        let needed = self.span_end(bytes) + margin_bytes;
        assert!(needed > self.position(), "a window is wanted that nothing needs");
        self.windows.want(needed);
    }

    /// Requests a window before any record needs it, if the stream has none.
    pub(super) fn want_window(&mut self) {
        self.want_windows_for(BLOCK_BYTES, 0);
    }

    /// Returns the next step of preparation, if one is needed.
    pub(super) fn preparation(&self) -> Option<Preparation> {
        if self.is_sealed {
            return None;
        }
        self.windows.preparation(self.position(), self.refusals.is_disk_full)
    }

    /// Refuses the requested window. The reservations that wait for it fail with `error`, or with a disk-full error if
    /// that is `None`.
    pub(super) fn refuse(&mut self, error: Option<Arc<io::Error>>) {
        self.windows.want_nothing();
        self.refusals.count += 1;
        self.refusals.last = error;
    }

    /// Returns the number of refusals so far.
    pub(super) fn refusal_count(&self) -> u64 {
        self.refusals.count
    }

    /// Returns the reason for the last refusal, or `None` if the disk was full.
    pub(super) fn last_refusal(&self) -> Option<&Arc<io::Error>> {
        self.refusals.last.as_ref()
    }

    /// Records whether the disk had space for a window. Returns `true` if the previous attempt found none.
    pub(super) fn set_disk_full(&mut self, is_disk_full: bool) -> bool {
        std::mem::replace(&mut self.refusals.is_disk_full, is_disk_full)
    }

    /// Returns `true` if the last attempt to prepare a window found no space.
    pub(super) fn is_disk_full(&self) -> bool {
        self.refusals.is_disk_full
    }

    /// Returns which spares are suitable for windows of this size.
    fn spare_size(&self, window_bytes: u64) -> SpareSize {
        if self.refusals.is_disk_full { SpareSize::Any } else { SpareSize::Window(window_bytes) }
    }

    /// Returns `true` if a spare is available for the next window.
    pub(super) fn has_free_spare(&self, window_bytes: u64) -> bool {
        self.spares.has_free(self.spare_size(window_bytes))
    }

    /// Takes a file for the next window, and the number of the file's new use.
    pub(super) fn take_spare(&mut self, stream: StreamId, window_bytes: u64) -> (Spare, UseNumber) {
        let size = self.spare_size(window_bytes);
        (self.spares.take(stream, size, window_bytes), self.spares.take_use_number())
    }

    /// Takes the spares that are not worth keeping. While the stream has no window ahead, spares of every size are
    /// worth keeping, because the disk may have no space for a new file.
    pub(super) fn take_surplus(&mut self, window_bytes: u64) -> Vec<Spare> {
        let has_window_ahead = self.windows.has_window_ahead(self.position());
        let size = if has_window_ahead { self.spare_size(window_bytes) } else { SpareSize::Any };
        self.spares.take_surplus(size, window_bytes)
    }

    /// Copies a record into the buffer. Returns its timestamp and the position after it.
    ///
    /// `assign` returns the timestamp and the horizon to store in the record. `wall_clock` is read once for each batch:
    /// a batch collects records no longer than one write takes, or a millisecond.
    pub(super) fn append(
        &mut self,
        body: &Body,
        incarnation: Incarnation,
        wall_clock: impl FnOnce() -> Duration,
        assign: impl FnOnce() -> (Timestamp, Timestamp),
    ) -> (Timestamp, StreamPosition) {
        let bytes = record_bytes(body.bytes().len());
        let position = self.position();
        let end = position + bytes as u64;
        self.spares.note_begun(self.windows.advance(position));
        assert!(!self.is_sealed, "a record is appended to a sealed stream");
        assert!(self.buffers.fits(bytes), "a record overflows its reservation");
        assert!(end <= self.windows.ready(), "a record reaches beyond the prepared windows");
        let (timestamp, horizon) = assign();
        assert!(horizon < timestamp, "a horizon covers a record that is only being appended");
        assert!(self.last_pending() < Some(timestamp), "timestamps of a stream ascend");

        if self.buffers.is_batch_empty() {
            self.batch_time_ms = wall_clock().as_millis() as u64;
        }
        let header = RecordHeader {
            flags: if body.names_extents() { FLAG_AFTER_DATA } else { 0 },
            timestamp,
            horizon,
            time_ms: self.batch_time_ms,
            incarnation,
            body_bytes: body.bytes().len() as u32,
            body_checksum: body.checksum(),
        };
        let seed = record_seed(self.windows.current().segment.seed, position);
        let record = self.buffers.push(timestamp, bytes, body.names_extents());
        let (head, rest) = record.split_at_mut(RECORD_HEADER_BYTES);
        header.encode(seed, head);
        debug_assert_eq!(RecordHeader::decode(head, seed), Some(header), "a record can't be read as it was written");
        let (content, padding) = rest.split_at_mut(body.bytes().len());
        content.copy_from_slice(body.bytes());
        padding.fill(0);
        self.windows.index_record(timestamp, position, end);
        (timestamp, end)
    }

    /// Returns the timestamp of the first record that is not on the medium.
    pub(super) fn floor(&self) -> Option<Timestamp> {
        self.buffers.floor()
    }

    /// Returns the timestamp of the last record that is not on the medium.
    pub(super) fn last_pending(&self) -> Option<Timestamp> {
        self.buffers.last_pending()
    }

    /// Returns `true` if there are pending records and no write is in flight, so that a thread may write them.
    pub(super) fn may_lead(&self) -> bool {
        self.buffers.may_write()
    }

    /// Takes the pending records, and the segment that holds the first of them. See [`Buffers::begin_write`].
    pub(super) fn begin_write(&mut self) -> (LogBuffer, Arc<Segment>) {
        let batch = self.buffers.begin_write();
        assert!(self.position() <= self.windows.ready(), "a batch's padding reaches beyond the prepared windows");
        let segment = self.windows.segment_at(batch.base);
        (batch, segment)
    }

    /// Takes back the batch from [`begin_write`](Self::begin_write), which is now on the medium.
    pub(super) fn complete(&mut self, batch: LogBuffer) {
        debug_assert!(batch.used > 0, "a write of no records is completed");
        self.buffers.complete(batch, self.reserved.bytes);
    }

    /// Takes the waiters whose records are on the medium.
    pub(super) fn take_covered(&mut self) -> Vec<Waiter> {
        self.waiters.take_below(self.buffers.floor())
    }

    /// Takes the windows before the current one that are entirely below `limit`. Returns their segments, and the newest
    /// timestamp in them.
    pub(super) fn take_covered_windows(&mut self, limit: Limit) -> (Vec<Arc<Segment>>, Option<Timestamp>) {
        self.windows.take_covered(limit, self.buffers.durable_position())
    }

    /// Takes the stream's only window, if all its records are below `limit` and none of them is being written. The
    /// stream continues after the window, whose remainder stays empty.
    pub(super) fn take_last_window(&mut self, limit: Limit) -> Option<Window> {
        if self.floor().is_some() || self.reserved.bytes > 0 {
            return None;
        }
        let window = self.windows.take_only(limit, self.position())?;
        self.buffers.skip_to(window.end());
        Some(window)
    }

    /// Takes all windows of a closed log, because no record in them is needed.
    pub(super) fn take_windows(&mut self) -> Vec<Arc<Segment>> {
        assert!(self.is_sealed && self.floor().is_none(), "a stream that goes on gives up its windows");
        self.windows.take_all(self.position())
    }
}
