//! Page faults of tasks: one thread performs the reads of all tasks.
//!
//! A task that lacks a page posts a request, and is woken once the request has been answered. The reading thread claims
//! the page like any other fault. If the page is already being read, the request is answered immediately, and the task
//! waits for that read to end.
//!
//! # Invariants
//! 1. Every request is answered exactly once, even if the queue fails, the thread panics or the pool is stopped. So no
//!    task waits forever.
//! 2. A task that has posted requests posts no more until all of them have been answered. So the number of tasks bounds
//!    the queue.
//! 3. No lock is held when a waker is called.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::Pool;
use super::frames::NewFrame;
use super::needs::Wanted;
use super::queues::{OnShortage, QUEUE_DEPTH};
use super::requests::{FetchRequest, ReadTicket};
use crate::error::{Error, Result};
use crate::format::extent::ExtentError;
use crate::format::node::is_page_bytes;
use crate::format::{ExtentAddress, PageId};
use crate::io::{AlignedBuffer, Completion, InFlight, Queue};
use crate::space::{PageEntry, PageSpace};

/// A read in flight.
struct Fetch<'p> {
    request: FetchRequest,
    address: ExtentAddress,
    /// The offset of the extent in the buffer.
    offset: usize,
    buffer_bytes: usize,
    frame: NewFrame<'p>,
    in_flight: Option<InFlight<'p>>,
}

/// The state of the reading thread.
struct ReadState<'p> {
    waiting: VecDeque<FetchRequest>,
    /// Reads in flight, indexed by their token.
    slots: Vec<Option<Fetch<'p>>>,
    slots_free: Vec<usize>,
    /// Wakers of tasks whose requests have been answered.
    woken: Vec<Waker>,
}

impl ReadState<'_> {
    /// Wakes the tasks one by one: if a waker panics, the remaining ones are still in `woken`.
    fn wake(&mut self) {
        while let Some(waker) = self.woken.pop() {
            waker.wake();
        }
    }
}

/// The outcome of starting a request.
enum StartedRead<'p> {
    Reading(Fetch<'p>, u64, AlignedBuffer),
    /// The request was answered without a read: either another thread is reading the page, or no read is needed.
    Answered(Option<Waker>),
    /// No frame or buffer is free, so the request will have to be retried.
    Later(FetchRequest),
}

impl Pool {
    /// Like [`fault`](Pool::fault), for a task.
    pub(crate) async fn fault_as_task(self: &Arc<Pool>, pages: &Arc<PageSpace>, wanted: Wanted) -> Result<()> {
        let Wanted { page, frame_bytes, .. } = wanted;
        loop {
            match pages.table.load(page) {
                PageEntry::OnDisk(address) if address.length() > frame_bytes as u64 => {
                    return Err(self.space.corrupted(&pages.quoted_page(page), address, ExtentError::Length));
                }
                PageEntry::OnDisk(_) => {
                    let ticket = self.post(pages, wanted)?;
                    poll_fn(|context| ticket.poll(context.waker())).await?;
                }
                PageEntry::Reading(_) => poll_fn(|context| self.poll_arrival(pages, page, context.waker())).await,
                _ => return Ok(()),
            }
        }
    }

    /// Like [`fault_many`](Pool::fault_many), for a task. Returns the number of pages that were read without an error.
    pub(crate) async fn fault_many_as_task(
        self: &Arc<Pool>,
        pages: &Arc<PageSpace>,
        wanted: &[Wanted],
    ) -> Result<usize> {
        let mut tickets = Vec::with_capacity(wanted.len());
        for &wanted in wanted {
            if matches!(pages.table.load(wanted.page), PageEntry::OnDisk(address) if address.length() <= wanted.frame_bytes as u64)
            {
                tickets.push(self.post(pages, wanted)?);
            }
        }
        let mut count = 0;
        for ticket in tickets {
            // If a page can't be read, the task that needs it gets the error when it faults that page.
            count += usize::from(poll_fn(|context| ticket.poll(context.waker())).await.is_ok());
        }
        for wanted in wanted {
            poll_fn(|context| self.poll_arrival(pages, wanted.page, context.waker())).await;
        }
        Ok(count)
    }

    fn poll_arrival(&self, pages: &PageSpace, page: PageId, waker: &Waker) -> Poll<()> {
        let mut waiting = self.page_locks(pages, page).waiting.lock();
        // A thread that completes a read changes the entry before it takes this lock, so this check misses no
        // completion.
        if !matches!(pages.table.load(page), PageEntry::Reading(_)) {
            return Poll::Ready(());
        }
        if !waiting.iter().any(|(keyspace, of, other)| (*keyspace, *of) == (pages.id, page) && other.will_wake(waker)) {
            waiting.push((pages.id, page, waker.clone()));
        }
        Poll::Pending
    }

    fn post(self: &Arc<Pool>, pages: &Arc<PageSpace>, wanted: Wanted) -> Result<Arc<ReadTicket>> {
        // Check here, in the task's own call, because a panic in the reading thread would end that thread.
        assert!(is_page_bytes(wanted.frame_bytes), "no frame has {} bytes", wanted.frame_bytes);
        let ticket = Arc::new(ReadTicket::default());
        let request = FetchRequest { pages: Arc::clone(pages), wanted, ticket: Arc::clone(&ticket) };
        let mut inbox = self.read_service.inbox.lock();
        if inbox.stop {
            drop(inbox);
            self.space.check_failure()?;
            return Err(Error::Closed);
        }
        if inbox.thread.is_none() {
            let pool = Arc::clone(self);
            let spawned = self.backend.spawn("drumlin-fetch", Box::new(move || pool.run_fetch()));
            inbox.thread = Some(spawned.map_err(|error| Error::io("starting a thread for", self.space.path(), error))?);
        }
        inbox.requests.push_back(request);
        drop(inbox);
        self.read_service.arrived.notify_one();
        Ok(ticket)
    }

    /// Stops the reading thread after it has answered all posted requests.
    pub(super) fn stop_fetching(&self) {
        let thread = {
            let mut inbox = self.read_service.inbox.lock();
            inbox.stop = true;
            inbox.thread.take()
        };
        self.read_service.arrived.notify_all();
        if let Some(thread) = thread
            && thread.thread().id() != crate::sync::current().id()
        {
            let _ = crate::sync::join(thread);
        }
    }

    /// The body of the reading thread.
    fn run_fetch(&self) {
        let mut reads = ReadState {
            waiting: VecDeque::new(),
            slots: (0..QUEUE_DEPTH).map(|_| None).collect(),
            slots_free: (0..QUEUE_DEPTH).rev().collect(),
            woken: Vec::new(),
        };
        let error = match catch_unwind(AssertUnwindSafe(|| self.serve_tasks(&mut reads))) {
            Ok(Ok(())) => {
                assert!(reads.waiting.is_empty() && reads.woken.is_empty(), "the thread ends and tasks wait for it");
                return;
            }
            Ok(Err(error)) => error,
            Err(_) => io::Error::other("the thread that reads for tasks panicked"),
        };
        log::error!("no more reads for tasks: {error}");
        self.give_up(&mut reads, &error);
        reads.wake();
    }

    fn serve_tasks<'p>(&'p self, reads: &mut ReadState<'p>) -> io::Result<()> {
        let mut kept = None;
        let mut finished: Vec<Completion> = Vec::new();
        loop {
            let in_flight = QUEUE_DEPTH - reads.slots_free.len();
            if !self.collect_requests(&mut reads.waiting, in_flight) {
                return Ok(());
            }
            let queue: &mut Box<dyn Queue> = match &mut kept {
                Some(queue) => queue,
                none => match self.take_queue() {
                    Ok(made) => none.insert(made),
                    Err(error) => {
                        let text = error.to_string();
                        let answer = |request: FetchRequest| {
                            let error = Error::io("reading", self.space.path(), io::Error::other(text.clone()));
                            request.ticket.answer(Err(error))
                        };
                        reads.woken.extend(reads.waiting.drain(..).filter_map(answer));
                        reads.wake();
                        continue;
                    }
                },
            };
            while let Some(&slot) = reads.slots_free.last()
                && let Some(request) = reads.waiting.pop_front()
            {
                match self.begin_fetch(request, OnShortage::of(queue.as_ref())) {
                    StartedRead::Reading(fetch, start, buffer) => {
                        self.space.count_read(buffer.len());
                        queue.push_read(self.space.file(), start, buffer, slot as u64);
                        let replaced = reads.slots[slot].replace(fetch);
                        assert!(replaced.is_none(), "a free slot has a read in flight");
                        reads.slots_free.pop();
                    }
                    StartedRead::Answered(waker) => reads.woken.extend(waker),
                    StartedRead::Later(request) => {
                        reads.waiting.push_front(request);
                        break;
                    }
                }
            }
            reads.wake();
            if queue.in_flight() == 0 {
                continue;
            }
            let taken = reads.slots.len() - reads.slots_free.len();
            assert_eq!(queue.in_flight(), taken, "the queue has other reads in flight than the slots");
            let waited = queue.wait(1, &mut finished);
            // A queue that fails may have completed some of its reads before.
            for completion in finished.drain(..) {
                let slot = completion.token as usize;
                let fetch = reads.slots[slot].take().expect("a completion for each request");
                assert_eq!(completion.buffer.capacity(), fetch.buffer_bytes, "a read ends with another's buffer");
                debug_assert!(!reads.slots_free.contains(&slot), "a slot in use is free");
                reads.slots_free.push(slot);
                reads.woken.extend(self.end_fetch(fetch, completion.result, &completion.buffer));
                self.buffers.give(completion.buffer);
            }
            if let Err(error) = waited {
                // Dropping the queue waits for its reads in flight. The next read creates a new queue.
                kept = None;
                self.end_fetches(reads, &error);
            }
            reads.wake();
        }
    }

    /// Fails the reads in flight after their queue has failed.
    fn end_fetches(&self, reads: &mut ReadState<'_>, error: &io::Error) {
        for (slot, fetch) in reads.slots.iter_mut().enumerate().filter_map(|(slot, fetch)| Some((slot, fetch.take()?)))
        {
            reads.slots_free.push(slot);
            self.buffers.forfeit(fetch.buffer_bytes);
            reads.woken.extend(self.end_fetch(fetch, Err(error.kind().into()), &[]));
        }
        assert_eq!(reads.slots_free.len(), reads.slots.len(), "a slot is neither free nor in use");
    }

    /// Answers every request with the error, to keep invariant 1. The caller has already dropped the queue, which ended
    /// its reads.
    fn give_up(&self, reads: &mut ReadState<'_>, error: &io::Error) {
        let posted = {
            let mut inbox = self.read_service.inbox.lock();
            inbox.stop = true;
            std::mem::take(&mut inbox.requests)
        };
        self.end_fetches(reads, error);
        for request in reads.waiting.drain(..).chain(posted) {
            let error = Error::io("reading", self.space.path(), error.kind().into());
            reads.woken.extend(request.ticket.answer(Err(error)));
        }
    }

    /// Collects the posted requests. If there is nothing else to do, waits for one. Returns `false` once the pool has
    /// been stopped and no request is left. A request that is posted while reads are in flight waits until one of them
    /// ends, which never takes long.
    fn collect_requests(&self, waiting: &mut VecDeque<FetchRequest>, in_flight: usize) -> bool {
        let mut inbox = self.read_service.inbox.lock();
        while in_flight == 0 && waiting.is_empty() && inbox.requests.is_empty() {
            if inbox.stop {
                return false;
            }
            self.read_service.arrived.wait(&mut inbox);
        }
        waiting.append(&mut inbox.requests);
        debug_assert!(in_flight > 0 || !waiting.is_empty(), "an idle thread goes on with nothing to do");
        true
    }

    fn begin_fetch(&self, request: FetchRequest, on_shortage: OnShortage) -> StartedRead<'_> {
        let Wanted { page, frame_bytes, .. } = request.wanted;
        let PageEntry::OnDisk(address) = request.pages.table.load(page) else {
            return StartedRead::Answered(request.ticket.answer(Ok(())));
        };
        if address.length() > frame_bytes as u64 {
            // The task will reload the entry and report the error.
            return StartedRead::Answered(request.ticket.answer(Ok(())));
        }
        let frame = match self.frames.try_take(frame_bytes) {
            Some(frame) => frame,
            None if on_shortage == OnShortage::Wait => match self.take_frame(frame_bytes) {
                Ok(frame) => frame,
                Err(error) => return StartedRead::Answered(request.ticket.answer(Err(error))),
            },
            None => return StartedRead::Later(request),
        };
        let (start, length, offset) = self.space.cover(address);
        let buffer = match self.buffers.try_take(length) {
            Some(buffer) => buffer,
            None if on_shortage == OnShortage::Wait => self.buffers.take(length),
            None => return StartedRead::Later(request),
        };
        if self.frames.available(frame_bytes) < self.low_water(frame_bytes) {
            self.wake_background();
        }
        if !request.pages.table.exchange(page, PageEntry::OnDisk(address), PageEntry::Reading(address)) {
            self.buffers.give(buffer);
            return StartedRead::Answered(request.ticket.answer(Ok(())));
        }
        let in_flight = (!request.wanted.is_of_scan).then(|| self.space.share.foreground());
        let fetch = Fetch { request, address, offset, buffer_bytes: buffer.capacity(), frame, in_flight };
        StartedRead::Reading(fetch, start, buffer)
    }

    fn end_fetch(&self, fetch: Fetch<'_>, result: io::Result<()>, bytes: &[u8]) -> Option<Waker> {
        let Fetch { request, address, offset, frame, in_flight, .. } = fetch;
        drop(in_flight);
        self.cache.misses.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let bytes = bytes.get(offset..).unwrap_or_default();
        let arrived = self.arrive(&request.pages, request.wanted, address, frame, result, bytes);
        request.ticket.answer(arrived)
    }
}
