//! The life of a record: reserving its space, writing it to the medium, and waking the threads that wait for it.
//!
//! Space that is not available immediately is granted to threads and tasks alike, in the order of their requests. The
//! head of a stream's queue drives its own progress: a thread writes and prepares windows itself, while a task asks a
//! background thread to do so.
//!
//! Group commit needs no timer, and no extra thread for callers that wait. A committer that finds its record pending
//! and no write in flight writes everything that is pending. When that write ends, it wakes the committers whose
//! records it wrote, and one of the remaining committers, which writes next.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use crate::sync::MutexGuard;

use super::buffers::{Buffers, LogBuffer};
use super::options::Claim;
use super::queue::Ticket;
use super::reservation::Reservation;
use super::segment::Segment;
use super::shared::SharedLog;
use super::signal::Urgency;
use super::stream::Tail;
use super::wait::{self, Waiter};
use crate::error::{Error, Result};
use crate::format::log::record_bytes;
use crate::format::{BLOCK_BYTES, Timestamp};

/// A reservation that was not available immediately. It keeps its place in the stream's queue until it is dropped.
struct ReservationTicket<'a> {
    log: &'a SharedLog,
    stream: usize,
    bytes: usize,
    margin_bytes: u64,
    ticket: Ticket,
    /// The stream's refusal count when this ticket joined the queue.
    refusal_count: u64,
}

impl Drop for ReservationTicket<'_> {
    fn drop(&mut self) {
        let stream = &self.log.streams[self.stream];
        let waker = stream.tail.lock().queue.leave(self.ticket);
        drop(waker);
        stream.announce_space();
    }
}

enum Answer<'a> {
    Had(Reservation<'a>),
    Queued(ReservationTicket<'a>),
}

/// The next step of a ticket in the queue.
enum Turn {
    /// Its space is reserved.
    Admitted,
    /// Another ticket is first in the queue, or a write that will free the buffer is in flight.
    Wait,
    /// Pending records have to be written first.
    Write,
    /// The next window has to be prepared first.
    Prepare,
}

impl SharedLog {
    /// Waits until space for a record is granted. Requests are granted in order.
    pub(super) fn reserve(&self, index: usize, body_bytes: usize, claim: Claim) -> Result<Reservation<'_>> {
        let asked = match self.ask(index, body_bytes, claim)? {
            Answer::Had(reservation) => return Ok(reservation),
            Answer::Queued(asked) => asked,
        };
        let stream = &self.streams[index];
        let mut tail = stream.tail.lock();
        loop {
            match self.take_turn(&asked, &mut tail)? {
                Turn::Admitted => return Ok(self.admitted(index, asked.bytes, tail)),
                Turn::Wait => stream.space.wait(&mut tail),
                Turn::Write => {
                    self.flush_as_leader(index, tail);
                    tail = stream.tail.lock();
                }
                Turn::Prepare if self.has_threads() => {
                    self.signal.prepare();
                    stream.space.wait(&mut tail);
                }
                Turn::Prepare => {
                    drop(tail);
                    self.prepare_all();
                    tail = stream.tail.lock();
                }
            }
        }
    }

    /// Like [`reserve`](Self::reserve), for a task. Tasks wait in the same queue as threads; background threads write
    /// and prepare windows for them.
    pub(super) async fn reserve_as_task(
        &self,
        index: usize,
        body_bytes: usize,
        claim: Claim,
    ) -> Result<Reservation<'_>> {
        match self.ask(index, body_bytes, claim)? {
            Answer::Had(reservation) => Ok(reservation),
            Answer::Queued(asked) => poll_fn(|context| self.poll_turn(&asked, context.waker())).await,
        }
    }

    fn poll_turn<'a>(&'a self, asked: &ReservationTicket<'a>, waker: &Waker) -> Poll<Result<Reservation<'a>>> {
        let mut tail = self.streams[asked.stream].tail.lock();
        let turn = self.take_turn(asked, &mut tail)?;
        if matches!(turn, Turn::Admitted) {
            return Poll::Ready(Ok(self.admitted(asked.stream, asked.bytes, tail)));
        }
        tail.queue.wake_later(asked.ticket, waker);
        drop(tail);
        match turn {
            Turn::Admitted | Turn::Wait => {}
            Turn::Write => self.request_flush(asked.stream, Urgency::Now),
            Turn::Prepare => self.request_preparation(),
        }
        Poll::Pending
    }

    /// Reserves space if it is available immediately. Otherwise takes a place in the stream's queue.
    fn ask(&self, index: usize, body_bytes: usize, claim: Claim) -> Result<Answer<'_>> {
        let body_bytes_max = self.streams[index].body_bytes_max;
        if body_bytes > body_bytes_max {
            return Err(Error::record_too_large(0, body_bytes as u64, body_bytes_max as u64));
        }
        let bytes = record_bytes(body_bytes);
        let bytes_max = Buffers::record_bytes_max(self.options.stream_buffer_bytes(index));
        debug_assert!(bytes <= bytes_max, "a record of {bytes} bytes waits for a buffer of {bytes_max}");
        let old_count = if self.options.window_margin_bytes > 0 { self.old.lock().len() } else { 0 };
        let mut tail = self.streams[index].tail.lock();
        let margin_bytes = self.options.margin_bytes(claim, old_count + tail.windows.count());
        self.check_open(&tail)?;
        if tail.fits_at_once(bytes, margin_bytes) {
            tail.admit(bytes);
            return Ok(Answer::Had(self.admitted(index, bytes, tail)));
        }
        crate::coverage::mark!("a commit waited for space in the log");
        let (ticket, refusal_count) = (tail.queue.join(), tail.refusal_count());
        Ok(Answer::Queued(ReservationTicket { log: self, stream: index, bytes, margin_bytes, ticket, refusal_count }))
    }

    /// Returns the next step of a ticket in the queue. A ticket leaves the queue once it is admitted or refused.
    fn take_turn(&self, asked: &ReservationTicket<'_>, tail: &mut Tail) -> Result<Turn> {
        self.check_open(tail)?;
        if !tail.queue.is_first(asked.ticket) {
            Ok(Turn::Wait)
        } else if !tail.buffer_admits(asked.bytes) {
            Ok(if tail.may_lead() { Turn::Write } else { Turn::Wait })
        } else if tail.windows_admit(asked.bytes, asked.margin_bytes) {
            tail.admit(asked.bytes);
            Ok(Turn::Admitted)
        } else if tail.refusal_count() != asked.refusal_count {
            Err(match tail.last_refusal() {
                None => self.disk_full(),
                Some(source) => Error::Io {
                    action: "making a log segment in",
                    path: self.folder.path().to_path_buf(),
                    source: Arc::clone(source),
                },
            })
        } else {
            tail.want_windows_for(asked.bytes, asked.margin_bytes);
            Ok(Turn::Prepare)
        }
    }

    /// Returns the reservation for bytes that the tail has admitted. If the stream needs its next window, requests it.
    fn admitted<'a>(&'a self, index: usize, bytes: usize, tail: MutexGuard<'a, Tail>) -> Reservation<'a> {
        debug_assert!(bytes <= tail.reserved_bytes(), "a reservation of {bytes} bytes was not admitted");
        let prepares = tail.preparation().is_some();
        drop(tail);
        if prepares {
            self.request_preparation();
        }
        Reservation { log: self, stream: index, bytes }
    }

    pub(super) fn request_preparation(&self) {
        if self.has_threads() {
            self.signal.prepare();
        } else {
            self.prepare_all();
        }
    }

    /// Writes the pending records of a stream. Then wakes the threads that waited for these records, and one of the
    /// remaining waiters, which writes next.
    fn flush_as_leader<'a>(&'a self, index: usize, mut tail: MutexGuard<'a, Tail>) {
        let stream = &self.streams[index];
        let (batch, segment) = tail.begin_write();
        drop(tail);
        match self.write(index, &batch, segment) {
            Ok(()) => {
                let mut tail = stream.tail.lock();
                let written = batch.pending.map(|pending| pending.last);
                tail.complete(batch);
                assert!(tail.floor().is_none_or(|floor| Some(floor) > written), "a record is pending that was written");
                self.horizon.raise_floor(index, tail.floor());
                let covered = tail.take_covered();
                let successor = if tail.may_lead() { tail.waiters.pop() } else { None };
                let has_waiters = tail.is_contended();
                drop(tail);
                self.publish();
                // Wake these threads first, so that they may append their next records before the next write begins.
                covered.iter().for_each(Waiter::wake);
                if let Some(successor) = successor {
                    crate::coverage::mark!("a committer wrote records that arrived during its write");
                    successor.wake();
                }
                if has_waiters {
                    stream.announce_space();
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Writes a batch to the medium, with one durable write for each window that it touches.
    fn write(&self, index: usize, batch: &LogBuffer, first: Arc<Segment>) -> Result<(), String> {
        if batch.names_extents {
            (self.hooks.before_write)().map_err(|error| format!("syncing large values failed: {error}"))?;
        }
        assert!(batch.base.is_block_start(), "a batch begins within a block: {}", batch.base);
        assert!(batch.pending.is_some(), "a batch of no records is written");
        let end = batch.end().block_end();
        let padding = &batch.buffer[batch.used..(end - batch.base) as usize];
        debug_assert!(padding.iter().all(|byte| *byte == 0), "a batch ends in bytes of earlier records");
        let mut position = batch.base;
        let mut segment = first;
        while position < end {
            if position >= segment.end() {
                crate::coverage::mark!("a batch of the log crossed into the next segment");
                segment = self.streams[index].tail.lock().windows.segment_at(position);
            }
            let piece_end = end.min(segment.end());
            let bytes = (position - batch.base) as usize..(piece_end - batch.base) as usize;
            assert!(bytes.len().is_multiple_of(BLOCK_BYTES), "a part of a block is written: {bytes:?}");
            self.sync_count.fetch_add(1, Ordering::Relaxed);
            self.write_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let _in_flight = self.hooks.share.foreground();
            let written = segment.file.write_at(&batch.buffer[bytes], segment.offset(position), self.persist());
            written.map_err(|error| format!("writing {} failed: {error}", segment.path().display()))?;
            position = piece_end;
        }
        Ok(())
    }

    /// Advances the horizon as far as the streams allow. Reports the new horizon, and wakes the tasks whose records it
    /// covers.
    fn publish(&self) {
        if let Some(horizon) = self.horizon.advance() {
            (self.hooks.on_durable)(horizon);
            if self.tasks_count.load(Ordering::SeqCst) > 0 {
                self.wake_tasks(horizon);
            }
        }
    }

    /// Waits until the horizon covers a record of this stream.
    pub(super) fn wait_durable(&self, index: usize, timestamp: Timestamp) -> Result<()> {
        self.wait_stream(index, timestamp)?;
        if self.horizon.durable() >= timestamp {
            return Ok(());
        }
        assert!(timestamp <= self.horizon.last(), "a thread waits for {timestamp}, which was not given out");
        // Older records of other streams are still pending.
        crate::coverage::mark!("a commit waited for another stream");
        self.wait_durable_up_to(timestamp)
    }

    /// Waits until the horizon covers all records up to this timestamp.
    pub(super) fn wait_durable_up_to(&self, timestamp: Timestamp) -> Result<()> {
        for other in 0..self.streams.len() {
            if self.horizon.is_held_back(other, timestamp) {
                self.wait_stream(other, timestamp)?;
            }
        }
        self.publish();
        assert!(self.horizon.durable() >= timestamp, "the horizon is behind what is on the medium");
        Ok(())
    }

    /// Waits until no record of the stream at or below `timestamp` is pending. Writes the pending records unless
    /// another thread is writing.
    pub(super) fn wait_stream(&self, index: usize, timestamp: Timestamp) -> Result<()> {
        let stream = &self.streams[index];
        let mut registered = None;
        loop {
            let mut tail = stream.tail.lock();
            if let Some(id) = registered.take() {
                tail.waiters.remove(id);
            }
            if tail.floor().is_none_or(|floor| floor > timestamp) {
                return Ok(());
            }
            if let Some(reason) = self.failure.get() {
                return Err(Error::OutcomeUnknown { reason: Arc::clone(reason) });
            }
            if tail.may_lead() {
                self.flush_as_leader(index, tail);
                continue;
            }
            registered = Some(tail.waiters.add_current(timestamp));
            drop(tail);
            wait::park();
            if self.horizon.durable() >= timestamp {
                // The thread that advanced the horizon has removed this waiter from the list, or will do so.
                return Ok(());
            }
        }
    }

    pub(super) fn poll_durable(&self, timestamp: Timestamp, waker: &Waker) -> Poll<Result<()>> {
        if self.horizon.durable() >= timestamp {
            return Poll::Ready(Ok(()));
        }
        assert!(timestamp <= self.horizon.last(), "a task waits for {timestamp}, which was not given out");
        {
            let mut tasks = self.tasks.lock();
            if !tasks.iter().any(|(other, task)| *other == timestamp && task.will_wake(waker)) {
                tasks.push((timestamp, waker.clone()));
                self.tasks_count.store(tasks.len(), Ordering::SeqCst);
            }
        }
        for index in 0..self.streams.len() {
            if self.horizon.is_held_back(index, timestamp) {
                self.request_flush(index, Urgency::Now);
            }
        }
        // The horizon may have advanced, or the log may have failed, between the first check and the registration.
        if self.horizon.durable() >= timestamp {
            return Poll::Ready(Ok(()));
        }
        match self.failure.get() {
            Some(reason) => Poll::Ready(Err(Error::OutcomeUnknown { reason: Arc::clone(reason) })),
            None => Poll::Pending,
        }
    }

    pub(super) fn wake_tasks(&self, horizon: Timestamp) {
        let woken: Vec<(Timestamp, Waker)> = {
            let mut tasks = self.tasks.lock();
            let woken = tasks.extract_if(.., |(timestamp, _)| *timestamp <= horizon).collect();
            self.tasks_count.store(tasks.len(), Ordering::SeqCst);
            woken
        };
        for (_, waker) in woken {
            waker.wake();
        }
    }

    pub(super) fn request_flush(&self, index: usize, urgency: Urgency) {
        let flush_requested = &self.streams[index].flush_requested;
        // Check before storing: a cache line that is only read stays in every processor's cache. The thread that takes
        // the request locks the tail afterwards, so it finds the records appended before this check.
        if flush_requested.load(Ordering::SeqCst) >= urgency as u8 {
            return;
        }
        if flush_requested.fetch_max(urgency as u8, Ordering::SeqCst) < urgency as u8 {
            if self.has_threads() {
                self.signal.flush(urgency);
            } else {
                self.flush_requested_streams();
            }
        }
    }

    pub(super) fn flush_requested_streams(&self) {
        for (index, stream) in self.streams.iter().enumerate() {
            if stream.flush_requested.swap(0, Ordering::SeqCst) > 0 {
                // A failure is permanent, so later calls will report it.
                let _ = self.flush(index);
            }
        }
    }

    /// Writes all pending records of a stream.
    pub(super) fn flush(&self, index: usize) -> Result<()> {
        let pending = self.streams[index].tail.lock().last_pending();
        match pending {
            Some(last) => self.wait_stream(index, last),
            None => Ok(()),
        }
    }
}
