//! One stream: the position of the next record, the records that are not on the medium yet, and their waiters.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::task::Waker;

use crate::sync::{CachePadded, Condvar, Mutex};

use super::Body;
use super::segment::{BLOCK, Segment, Spare, SpareSize};
use super::wait::{Waiter, WaiterId};
use crate::format::log::{
    FLAG_AFTER_DATA, RECORD_ALIGNMENT_BYTES, RECORD_HEADER_BYTES, RecordHeader, record_bytes, record_seed,
};
use crate::format::{BLOCK_BYTES, Incarnation, SlotNumber, StreamPosition, Timestamp, UseNumber};
use crate::io::AlignedBuffer;

/// Distance between entries of a window's index: the most that a reader has to read before its starting point.
const INDEX_STRIDE_BYTES: u64 = 64 << 10;

const _: () = assert!(BLOCK_BYTES.is_multiple_of(RECORD_ALIGNMENT_BYTES), "a record can't begin with a block");

/// A window of the stream and the index of its records.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) segment: Arc<Segment>,
    /// The file is filled up to this position. Records may lie below it.
    pub(super) ready: StreamPosition,
    /// The newest record that has bytes in the window.
    pub(super) last: Option<Timestamp>,
    /// In ascending order, the timestamp and position of one record per stride.
    pub(super) index: Vec<(Timestamp, StreamPosition)>,
}

impl Window {
    /// Creates a window. `held_bytes` are the bytes of it that the file holds: for a header alone it is not worth
    /// allocating an index of full size.
    pub(super) fn new(segment: Arc<Segment>, ready: StreamPosition, held_bytes: u64) -> Window {
        assert!((segment.start()..=segment.end()).contains(&ready), "{segment:?} is ready up to {ready}");
        let entries = segment.header.window_bytes.min(held_bytes) / INDEX_STRIDE_BYTES + 1;
        // Allocate here, because appending must not allocate.
        Window { segment, ready, last: None, index: Vec::with_capacity(entries as usize) }
    }

    /// Records that a record starts at `position`.
    pub(super) fn index_record(&mut self, timestamp: Timestamp, position: StreamPosition) {
        assert!(self.last < Some(timestamp), "records of a window ascend");
        assert!((self.start()..self.end()).contains(&position), "a record begins in another window");
        let is_after = |&(_, indexed): &(Timestamp, StreamPosition)| indexed < position;
        debug_assert!(self.index.last().is_none_or(is_after), "records of a window ascend in position");
        self.last = Some(timestamp);
        let due = self.index.last().is_none_or(|&(_, indexed)| position - indexed >= INDEX_STRIDE_BYTES);
        if due && self.index.len() < self.index.capacity() {
            self.index.push((timestamp, position));
        }
    }

    pub(super) fn start(&self) -> StreamPosition {
        self.segment.start()
    }

    pub(super) fn end(&self) -> StreamPosition {
        self.segment.end()
    }
}

/// The first and the last record of those that are not on the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnwrittenRecords {
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// A buffer, and the range of the stream that it holds, which starts at the beginning of a block.
#[derive(Debug)]
pub(super) struct LogBuffer {
    pub(super) buffer: AlignedBuffer,
    pub(super) base: StreamPosition,
    pub(super) used: usize,
    /// Records before these in the first block are on the medium, and are written again with the same bytes.
    pub(super) pending: Option<UnwrittenRecords>,
    /// One of the pending records names values in extents; see [`Body::naming_extents`].
    pub(super) names_extents: bool,
}

impl LogBuffer {
    pub(super) fn end(&self) -> StreamPosition {
        self.base + self.used as u64
    }
}

/// The state that the stream's mutex protects.
#[derive(Debug)]
pub(super) struct Tail {
    /// The buffer that new records are copied to.
    pub(super) active: LogBuffer,
    /// The other buffer, unless it is being written.
    idle: Option<AlignedBuffer>,
    /// The records that are being written. If the write fails, this is never cleared.
    pub(super) writing: Option<UnwrittenRecords>,
    /// Everything below this position is on the medium.
    pub(super) durable_position: StreamPosition,
    /// Bytes of records that are reserved and not appended yet.
    pub(super) reserved_bytes: usize,
    /// `reserved_bytes` plus the padding that each record may cause.
    reserved_span: u64,
    /// The windows without gaps, from the oldest kept to the newest prepared.
    pub(super) windows: VecDeque<Window>,
    /// The index of the window in which the last record started.
    current: usize,
    pub(super) spares: Vec<Spare>,
    pub(super) next_use: UseNumber,
    pub(super) next_slot: SlotNumber,
    /// The start of the next window, while there are no windows.
    pub(super) origin: StreamPosition,
    /// The position of this opening's first record.
    began: StreamPosition,
    /// A reservation waits for windows up to this position.
    pub(super) wanted: StreamPosition,
    /// The number of refused preparations, and the last reason, which is `None` for lack of space.
    pub(super) prepare_failures: u64,
    pub(super) prepare_error: Option<Arc<io::Error>>,
    /// The last attempt to prepare a window found no space.
    pub(super) full: bool,
    /// The number of windows begun since the last truncation, and the number of spares that it suggests keeping.
    pub(super) begun_windows: usize,
    pub(super) spares_wanted: usize,
    /// Reservations, appends and preparations are refused from now on.
    pub(super) is_sealed: bool,
    pub(super) waiters: Vec<Waiter>,
    pub(super) waiter_next: WaiterId,
    /// Reservations that were not available immediately; first come, first served.
    pub(super) queue: VecDeque<Queued>,
    pub(super) ticket_next: Ticket,
}

/// The place of a reservation in a stream's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ticket(u64);

/// A thread or task that waits for space in a stream.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) ticket: Ticket,
    /// The waker of a task; a thread waits on [`Stream::space`].
    pub(super) waker: Option<Waker>,
}

/// A stream of the log.
#[derive(Debug)]
pub(super) struct Stream {
    /// The [`Urgency`](super::prepare::Urgency) with which the background thread was asked to write, or 0 if it was not
    /// asked.
    pub(super) flush_requested: CachePadded<AtomicU8>,
    pub(super) tail: Mutex<Tail>,
    /// Bytes of the bodies of records appended since the log was opened. Changed with the tail locked.
    pub(super) appended_bytes: AtomicU64,
    /// Signalled when space in the buffer or a window becomes free, or when it never will.
    pub(super) space: Condvar,
}

impl Stream {
    /// Creates an idle stream that continues at `position`, which must be the start of a block.
    pub(super) fn new(
        buffer_bytes: usize,
        position: StreamPosition,
        windows: Vec<Window>,
        next_use: UseNumber,
        next_slot: SlotNumber,
    ) -> Stream {
        assert!(position.is_block_start(), "a stream goes on within a block: {position}");
        assert!(buffer_bytes.is_multiple_of(BLOCK_BYTES), "a buffer ends within a block");
        assert!(windows.is_sorted_by(|left, right| left.end() == right.start()), "windows of a stream abut");
        let is_within = |first: &Window| (first.start()..first.end()).contains(&position);
        assert!(windows.first().is_none_or(is_within), "a stream goes on at {position}, outside of its window");
        let active = LogBuffer {
            buffer: AlignedBuffer::zeroed(buffer_bytes),
            base: position,
            used: 0,
            pending: None,
            names_extents: false,
        };
        let tail = Tail {
            active,
            idle: Some(AlignedBuffer::zeroed(buffer_bytes)),
            writing: None,
            durable_position: position,
            reserved_bytes: 0,
            reserved_span: 0,
            windows: windows.into(),
            current: 0,
            spares: Vec::new(),
            next_use,
            next_slot,
            origin: position,
            began: position,
            wanted: StreamPosition::START,
            prepare_failures: 0,
            prepare_error: None,
            full: false,
            begun_windows: 0,
            spares_wanted: 1,
            is_sealed: false,
            waiters: Vec::new(),
            waiter_next: WaiterId::default(),
            queue: VecDeque::new(),
            ticket_next: Ticket::default(),
        };
        Stream {
            flush_requested: CachePadded::new(AtomicU8::new(0)),
            tail: Mutex::new(tail),
            appended_bytes: AtomicU64::new(0),
            space: Condvar::new(),
        }
    }

    /// Announces that space may have become free. The head of the queue checks again.
    pub(super) fn announce_space(&self) {
        let waker = self.tail.lock().queue.front_mut().and_then(|queued| queued.waker.take());
        self.space.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Announces that there will be no more space. The whole queue checks again.
    pub(super) fn announce_end(&self) {
        let wakers: Vec<Waker> = self.tail.lock().queue.iter_mut().filter_map(|queued| queued.waker.take()).collect();
        self.space.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The next step of preparing a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Preparation {
    Fill,
    Window,
}

impl Tail {
    /// Returns the maximum bytes of a record: it must fit into an otherwise empty buffer together with the earlier
    /// records of its block and one padding.
    pub(super) fn record_bytes_max(buffer_bytes: usize) -> usize {
        buffer_bytes - 2 * BLOCK_BYTES
    }

    /// Returns the size of the buffer that a record of this size needs.
    pub(super) fn buffer_bytes_for(record_bytes: usize) -> usize {
        (record_bytes + 2 * BLOCK_BYTES).next_multiple_of(BLOCK_BYTES)
    }

    /// The position after the last record.
    pub(super) fn position(&self) -> StreamPosition {
        self.active.end()
    }

    /// The position up to which records may be written.
    fn ready(&self) -> StreamPosition {
        let mut ready = self.origin;
        for window in self.windows.iter().skip(self.current) {
            ready = window.ready;
            if window.ready < window.end() {
                break;
            }
        }
        ready
    }

    /// The position after the last window.
    pub(super) fn prepared_end(&self) -> StreamPosition {
        self.windows.back().map_or(self.origin, Window::end)
    }

    pub(super) fn is_contended(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns `true` if the ticket is at the head of the queue.
    pub(super) fn is_first(&self, ticket: Ticket) -> bool {
        self.queue.front().is_some_and(|first| first.ticket == ticket)
    }

    /// Takes a place in the queue.
    pub(super) fn queue_up(&mut self) -> Ticket {
        let ticket = self.ticket_next;
        self.ticket_next = Ticket(ticket.0 + 1);
        self.queue.push_back(Queued { ticket, waker: None });
        ticket
    }

    /// Leaves the queue. Returns the waker of the ticket's task.
    pub(super) fn leave_queue(&mut self, ticket: Ticket) -> Option<Waker> {
        let index = self.queue.iter().position(|queued| queued.ticket == ticket);
        self.queue.remove(index.expect("who leaves the queue is in it")).and_then(|queued| queued.waker)
    }

    /// Stores the waker of a task, which is woken when it should check again.
    pub(super) fn wake_later(&mut self, ticket: Ticket, waker: &Waker) {
        let queued = self.queue.iter_mut().find(|queued| queued.ticket == ticket);
        assert!(queued.is_some(), "a task waits that has no place in the queue");
        if let Some(queued) = queued {
            queued.waker = Some(waker.clone());
        }
    }

    /// Returns `true` if the buffer has room for a record of `bytes`.
    ///
    /// One block is kept in reserve. If nothing is appended during a write, the last block of the write, which the next
    /// record shares, moves to the front of the empty buffer.
    pub(super) fn buffer_admits(&self, bytes: usize) -> bool {
        self.active.used + self.reserved_bytes + bytes <= self.active.buffer.capacity() - BLOCK_BYTES
    }

    /// Returns `true` if half of the buffer is used, so that pending records should not wait any longer.
    pub(super) fn is_near_full(&self) -> bool {
        self.active.used > self.active.buffer.capacity() / 2
    }

    /// Returns the position that the windows must reach for a record of `bytes`, counting the padding before each
    /// reserved record.
    pub(super) fn span_end(&self, bytes: usize) -> StreamPosition {
        self.position() + self.reserved_span + bytes as u64 + BLOCK
    }

    pub(super) fn windows_admit(&self, bytes: usize) -> bool {
        self.span_end(bytes) <= self.ready()
    }

    /// Returns `true` if a record of `bytes` fits and would not overtake another one in the queue.
    pub(super) fn fits_at_once(&self, bytes: usize) -> bool {
        !self.is_contended() && self.buffer_admits(bytes) && self.windows_admit(bytes)
    }

    pub(super) fn admit(&mut self, bytes: usize) {
        debug_assert!(
            self.buffer_admits(bytes) && self.windows_admit(bytes),
            "more is admitted than there is room for"
        );
        self.reserved_bytes += bytes;
        self.reserved_span += bytes as u64 + BLOCK;
    }

    /// Releases the space of a reservation of `bytes`.
    pub(super) fn release(&mut self, bytes: usize) {
        assert!(bytes <= self.reserved_bytes, "more of a stream is released than is reserved");
        self.reserved_bytes -= bytes;
        self.reserved_span -= bytes as u64 + BLOCK;
        debug_assert_eq!(self.reserved_bytes == 0, self.reserved_span == 0, "one of two sums was not released");
    }

    /// Requests a window, if there is none, before a record needs it.
    pub(super) fn want_window(&mut self) {
        self.wanted = self.wanted.max(self.span_end(BLOCK_BYTES));
        assert!(self.wanted > self.position(), "a window is wanted that nothing needs");
    }

    /// Returns the bytes that are kept ready after the last record: as many as were appended since the opening, up to a
    /// window. So a short opening prepares little that it does not use, and a busy one has a window ahead, so that no
    /// append waits for one.
    fn lead_bytes(&self) -> u64 {
        let window_bytes = self.windows.back().map_or(0, |window| window.segment.header.window_bytes);
        assert!(self.began <= self.position(), "a stream that began at {} is at {}", self.began, self.position());
        (self.position() - self.began).min(window_bytes)
    }

    /// Returns the next step of preparation, if one is needed.
    pub(super) fn preparation(&self) -> Option<Preparation> {
        if self.is_sealed {
            return None;
        }
        let is_filled = |window: &Window| window.ready == window.end();
        debug_assert!(
            self.windows.iter().rev().skip(1).all(is_filled),
            "a window was begun before the last was filled"
        );
        let ahead = self.position() + self.lead_bytes();
        let last = self.windows.back().map_or((self.origin, self.origin), |window| (window.ready, window.end()));
        match last {
            (ready, end) if ready < end => (ready < self.wanted.max(ahead)).then_some(Preparation::Fill),
            (_, end) if end < self.wanted || (end < ahead && !self.full) => Some(Preparation::Window),
            _ => None,
        }
    }

    /// Returns `true` if there is a window that holds no record yet.
    fn has_window_ahead(&self) -> bool {
        self.windows.back().is_some_and(|window| window.start() > self.position())
    }

    /// Refuses another window. The reservations that wait for it get the error.
    pub(super) fn refuse(&mut self, error: Option<Arc<io::Error>>) {
        self.wanted = StreamPosition::START;
        self.prepare_failures += 1;
        self.prepare_error = error;
    }

    /// Returns the index of a spare that can be used immediately.
    pub(super) fn free_spare(&self, window_bytes: u64) -> Option<usize> {
        let size = self.spare_size(window_bytes);
        self.spares.iter().position(|spare| spare.is_free() && spare.serves(size))
    }

    /// Returns which spares are suitable for windows of this size.
    pub(super) fn spare_size(&self, window_bytes: u64) -> SpareSize {
        if self.full { SpareSize::Any } else { SpareSize::Window(window_bytes) }
    }

    /// Returns which spares are worth keeping: those of any size while the stream lacks its next window, because the
    /// disk may have no space for it.
    pub(super) fn kept_spare_size(&self, window_bytes: u64) -> SpareSize {
        if self.has_window_ahead() { self.spare_size(window_bytes) } else { SpareSize::Any }
    }

    /// Copies a record into the buffer. Returns its timestamp and the position after it.
    ///
    /// `assign` returns the timestamp, and the horizon to store in the record.
    pub(super) fn append(
        &mut self,
        body: &Body,
        incarnation: Incarnation,
        assign: impl FnOnce() -> (Timestamp, Timestamp),
    ) -> (Timestamp, StreamPosition) {
        let bytes = record_bytes(body.bytes().len());
        let position = self.position();
        let end = position + bytes as u64;
        while position >= self.windows[self.current].end() {
            self.current += 1;
            self.begun_windows += 1;
        }
        assert!(!self.is_sealed, "a record is appended to a sealed stream");
        assert!(self.active.used + bytes <= self.active.buffer.capacity(), "a record overflows its reservation");
        assert!(end <= self.ready(), "a record reaches beyond the prepared windows");
        let (timestamp, horizon) = assign();
        assert!(horizon < timestamp, "a horizon covers a record that is only being appended");
        assert!(self.last_pending() < Some(timestamp), "timestamps of a stream ascend");

        let header = RecordHeader {
            flags: if body.names_extents() { FLAG_AFTER_DATA } else { 0 },
            timestamp,
            horizon,
            incarnation,
            body_bytes: body.bytes().len() as u32,
            body_checksum: body.checksum(),
        };
        let window = &mut self.windows[self.current];
        let record = &mut self.active.buffer[self.active.used..self.active.used + bytes];
        let (head, rest) = record.split_at_mut(RECORD_HEADER_BYTES);
        header.encode(record_seed(window.segment.seed, position), head);
        debug_assert_eq!(
            RecordHeader::decode(head, record_seed(window.segment.seed, position)),
            Some(header),
            "a record can't be read as it was written"
        );
        let (content, padding) = rest.split_at_mut(body.bytes().len());
        content.copy_from_slice(body.bytes());
        padding.fill(0);
        window.index_record(timestamp, position);
        let mut reached = self.current;
        while self.windows[reached].end() < end {
            reached += 1;
            self.windows[reached].last = Some(timestamp);
        }

        self.active.used += bytes;
        let first = self.active.pending.map_or(timestamp, |pending| pending.first);
        self.active.pending = Some(UnwrittenRecords { first, last: timestamp });
        self.active.names_extents |= body.names_extents();
        (timestamp, end)
    }

    /// The first record that is not on the medium.
    pub(super) fn floor(&self) -> Option<Timestamp> {
        self.writing.or(self.active.pending).map(|pending| pending.first)
    }

    /// The last record that is not on the medium.
    pub(super) fn last_pending(&self) -> Option<Timestamp> {
        self.active.pending.or(self.writing).map(|pending| pending.last)
    }

    pub(super) fn may_lead(&self) -> bool {
        self.writing.is_none() && self.active.pending.is_some()
    }

    /// Takes the pending records, padded to whole blocks. Until [`complete`](Tail::complete) is called, new records go
    /// to the other buffer, starting at the next block: bytes in flight never change.
    pub(super) fn begin_write(&mut self) -> LogBuffer {
        assert!(self.may_lead());
        let buffer = self.idle.take().expect("the idle buffer is free when nothing is being written");
        let padded = self.active.used.next_multiple_of(BLOCK_BYTES);
        self.active.buffer[self.active.used..padded].fill(0);
        let base = self.active.base + padded as u64;
        let next = LogBuffer { buffer, base, used: 0, pending: None, names_extents: false };
        let batch = std::mem::replace(&mut self.active, next);
        assert!(base <= self.ready(), "the padding of a batch reaches beyond the prepared windows");
        self.writing = batch.pending;
        batch
    }

    /// Gives back the batch from [`begin_write`](Tail::begin_write), which is on the medium now. If nothing was
    /// appended during the write, the next record follows in its last block.
    pub(super) fn complete(&mut self, batch: LogBuffer) {
        assert_eq!(self.writing, batch.pending, "another batch than was begun is completed");
        assert!(self.durable_position <= batch.end(), "a stream's durable position goes back");
        self.durable_position = batch.end();
        if self.active.pending.is_none() {
            assert_eq!(self.active.used, 0);
            let shared_bytes = batch.used % BLOCK_BYTES;
            let block_start = batch.used - shared_bytes;
            self.active.base = batch.base + block_start as u64;
            self.active.used = shared_bytes;
            self.active.buffer[..shared_bytes].copy_from_slice(&batch.buffer[block_start..batch.used]);
        }
        // This includes the block kept in reserve.
        let reserved = self.active.used + self.reserved_bytes;
        assert!(reserved <= self.active.buffer.capacity(), "{reserved} bytes are reserved in a buffer");
        assert!(self.idle.is_none(), "a stream has three buffers");
        self.idle = Some(batch.buffer);
        self.writing = None;
    }

    /// The segment that holds `position`.
    pub(super) fn segment_at(&self, position: StreamPosition) -> Arc<Segment> {
        let window = self.windows.iter().rev().find(|window| window.start() <= position);
        let window = window.expect("a record lies in no window");
        assert!(position < window.end());
        Arc::clone(&window.segment)
    }

    /// Takes the waiters whose records are on the medium.
    pub(super) fn take_covered(&mut self) -> Vec<Waiter> {
        let floor = self.floor();
        self.waiters.extract_if(.., |waiter| floor.is_none_or(|floor| waiter.timestamp < floor)).collect()
    }

    /// Takes the windows before the current one whose records are all at or below `covered`. Returns them with the
    /// newest timestamp that they hold.
    pub(super) fn take_covered_windows(&mut self, covered: Timestamp) -> (Vec<Arc<Segment>>, Option<Timestamp>) {
        let mut taken = Vec::new();
        let mut newest = None;
        while let Some(window) = self.windows.front() {
            if self.current == 0 || window.end() > self.durable_position || window.last > Some(covered) {
                break;
            }
            newest = newest.max(window.last);
            let window = self.windows.pop_front().expect("there is a front");
            self.current -= 1;
            taken.push(window.segment);
        }
        assert!(self.current == 0 || self.current < self.windows.len(), "the window in use is given up");
        (taken, newest)
    }
}

impl Tail {
    /// Takes all windows of a closed log, because nothing in them is needed.
    pub(super) fn take_windows(&mut self) -> Vec<Arc<Segment>> {
        assert!(self.is_sealed && self.floor().is_none(), "a stream that goes on gives up its windows");
        self.current = 0;
        self.origin = self.position();
        self.windows.drain(..).map(|window| window.segment).collect()
    }

    /// Takes the only window, if all its records are at or below `covered` and nothing is being written to it. The
    /// stream continues after it, and the rest of the window stays empty.
    pub(super) fn take_last_window(&mut self, covered: Timestamp) -> Option<Window> {
        let quiet = self.floor().is_none() && self.reserved_bytes == 0;
        let window = self.windows.front()?;
        if !quiet || self.windows.len() > 1 || window.ready < window.end() || window.last > Some(covered) {
            return None;
        }
        let end = window.end();
        assert!(self.position() <= end, "a stream that ends at {} goes on at {end}", self.position());
        let window = self.windows.pop_front();
        self.current = 0;
        self.origin = end;
        self.durable_position = end;
        self.active.base = end;
        self.active.used = 0;
        window
    }
}
