//! The requests of a driver, and the threads that collect them.
//!
//! # Roles
//! At any time at most one thread is the *collector*: it waits in the queue, takes the finished requests, begins
//! requests that had to wait for a free slot in the queue, and calls wakers. The collector is a thread in
//! `Driver::block_on`, or the driver's own thread. A thread that is polling its future is never the collector, since it
//! may compute for a long time.
//!
//! The driver's thread is needed only for requests whose owner is a task outside of `block_on`, was dropped, or is a
//! thread that parked because a different thread was the collector. `State::outside` counts the first two kinds of
//! request, and `State::parked` the parked threads. All other requests are collected when their owner waits.
//!
//! # Submission
//! Each time the collector waits, it first submits the pushed requests. So a thread can leave its requests unsubmitted
//! if it is about to wait, or if the collector is awake. Otherwise it submits them itself. No request is overlooked:
//! `State::is_collector_awake` and the pushes are guarded by the same lock, and the collector clears that flag before
//! it enters the queue.
//!
//! # Invariants
//! 1. Every request that has begun is answered once, even if the queue fails. So no task or thread waits forever.
//! 2. The owner of a slot frees it after the answer. If the owner was dropped earlier, the collector frees the slot.
//!    The buffer of a request in flight belongs to the queue.
//! 3. No lock is held while a waker is called, or a buffer or file is dropped.
//! 4. Neither class starves: if both have requests, at least one of each is in flight. In a queue of depth 1, the
//!    classes alternate.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::backend::{AlignedBuffer, Backend, Completion, FileRef, Process, Queue};
use crate::share::{FOREGROUND_LINGER, background_max};
use crate::sync::{Condvar, Mutex, MutexGuard};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The priority class of a request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Class {
    #[default]
    Foreground,
    Background,
}

impl Class {
    fn other(self) -> Class {
        match self {
            Class::Foreground => Class::Background,
            Class::Background => Class::Foreground,
        }
    }
}

const CLASSES: [Class; 2] = [Class::Foreground, Class::Background];

/// A request that has not been pushed to the queue yet.
pub(crate) struct Request {
    pub(crate) direction: Direction,
    pub(crate) file: FileRef,
    pub(crate) offset: u64,
    pub(crate) buffer: AlignedBuffer,
}

/// The answer to a request: the buffer, the number of bytes transferred, and an error if the request failed or the file
/// ended early.
pub(crate) struct Answer {
    pub(crate) buffer: AlignedBuffer,
    pub(crate) transferred: usize,
    pub(crate) result: io::Result<()>,
}

enum Phase {
    /// Waits for a free slot in the queue.
    Pending(Request),
    InFlight,
    Finished(io::Result<Answer>),
}

struct Slot {
    phase: Phase,
    class: Class,
    waker: Option<Waker>,
    /// Set if the request is counted in `State::outside`.
    is_outside: bool,
    /// Set once the owner has been dropped. The answer will then be dropped too.
    is_dropped: bool,
}

/// Identifies a request that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key(usize);

#[derive(Default)]
struct State {
    slots: Vec<Option<Slot>>,
    slots_free: Vec<usize>,
    /// The keys of the pending requests of each class, in the order of `CLASSES`.
    pending: [VecDeque<usize>; 2],
    /// The number of requests of each class in the queue.
    in_queue: [usize; 2],
    outside: usize,
    parked: usize,
    has_collector: bool,
    is_collector_awake: bool,
    /// The class other than that of the last pushed request.
    other_than_last: Class,
    /// The share of background requests while foreground requests are active.
    share: f64,
    foreground_seen: Option<Duration>,
    thread: ThreadState,
    is_closed: bool,
    /// The error with which the queue failed, if it has failed.
    failure: Option<String>,
    /// The collector's lists. They are reused, to retain their capacity.
    finished: Vec<Completion>,
    aftermath: Aftermath,
    /// Set if requests have been pushed to the queue but not submitted yet.
    has_unsubmitted: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ThreadState {
    #[default]
    NotStarted,
    Running,
}

/// The requests of a driver.
pub(crate) struct Reactor {
    backend: Arc<dyn Backend>,
    queue: Box<dyn Queue>,
    state: Mutex<State>,
    /// The driver's thread waits here until it is needed.
    needed: Condvar,
    may_start_thread: bool,
    process: Process,
}

thread_local! {
    /// The address of the reactor whose `block_on` is polling a future on this thread, or 0 if there is none.
    static DRIVING: Cell<usize> = const { Cell::new(0) };
}

/// Marks the calling thread as one that collects its own requests.
pub(super) struct DrivingThread {
    before: usize,
}

impl DrivingThread {
    pub(super) fn mark(reactor: &Arc<Reactor>) -> DrivingThread {
        DrivingThread { before: DRIVING.replace(Arc::as_ptr(reactor).addr()) }
    }
}

impl Drop for DrivingThread {
    fn drop(&mut self) {
        DRIVING.set(self.before);
    }
}

/// The flags of a thread in `block_on`, which a waker may interrupt while it waits in the queue.
#[derive(Default)]
pub(super) struct WaitFlags {
    pub(super) is_woken: AtomicBool,
    pub(super) is_waiting: AtomicBool,
}

/// The event for which a collector waits.
#[derive(Clone, Copy)]
enum Wait<'w> {
    /// None: it takes only the requests that have already finished.
    No,
    /// One finished request.
    One,
    /// One finished request, or a call of the waker with these flags.
    OneOrWaker(&'w WaitFlags),
}

/// Counts a thread that waits while a different thread is the collector.
pub(super) struct Parked<'r>(&'r Reactor);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.state.lock().parked -= 1;
    }
}

/// The wakers to call and the buffers to drop after the collector has released the lock (invariant 3).
#[derive(Default)]
struct Aftermath {
    wakers: Vec<Waker>,
    dropped: Vec<AlignedBuffer>,
}

impl Aftermath {
    /// Drops the buffers and calls the wakers. Both lists retain their capacity.
    fn run(&mut self) {
        self.dropped.clear();
        for waker in self.wakers.drain(..) {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                log::error!("the waker of a task that waits for I/O panicked");
            }
        }
    }
}

impl State {
    fn insert(&mut self, slot: Slot) -> usize {
        let key = self.slots_free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        debug_assert!(self.slots[key].is_none(), "a free slot is in use");
        self.slots[key] = Some(slot);
        key
    }

    fn slot(&mut self, key: usize) -> &mut Slot {
        self.slots[key].as_mut().expect("a request has its slot until it is answered")
    }

    fn remove(&mut self, key: usize) -> Slot {
        let slot = self.slots[key].take().expect("a request has its slot until it is answered");
        self.slots_free.push(key);
        if slot.is_outside {
            self.outside -= 1;
        }
        slot
    }

    fn in_queue(&self) -> usize {
        self.in_queue[0] + self.in_queue[1]
    }

    fn needs_thread(&self) -> bool {
        !self.has_collector && self.in_queue() > 0 && (self.outside > 0 || self.parked > 0)
    }

    fn count_outside(&mut self, key: usize) {
        if !std::mem::replace(&mut self.slot(key).is_outside, true) {
            self.outside += 1;
        }
    }
}

impl Reactor {
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        queue: Box<dyn Queue>,
        may_start_thread: bool,
    ) -> io::Result<Arc<Reactor>> {
        Process::watch()?;
        let state = Mutex::new(State { share: 1.0, ..State::default() });
        let process = Process::here();
        Ok(Arc::new(Reactor { backend, queue, state, needed: Condvar::default(), may_start_thread, process }))
    }

    pub(super) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(super) fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.queue.as_fd()
    }

    /// Returns `true` if the calling process created the driver. A fork of that process gets `false`.
    pub(super) fn is_here(&self) -> bool {
        self.process.is_here()
    }

    pub(super) fn in_flight(&self) -> usize {
        let state = self.state.lock();
        state.in_queue() + state.pending.iter().map(VecDeque::len).sum::<usize>()
    }

    pub(super) fn set_share(&self, share: f64) {
        self.state.lock().share = share;
    }

    /// Ends the driver's thread. Called when the last handle or operation of the driver is dropped.
    pub(super) fn close(&self) {
        // In a fork, the lock may stay locked forever: a thread of the parent may have held it at the time of the fork.
        if self.is_here() {
            self.state.lock().is_closed = true;
            self.needed.notify_one();
        }
    }

    fn is_driving_here(&self) -> bool {
        DRIVING.get() == std::ptr::from_ref(self).addr()
    }

    /// Begins a request. If the calling thread will collect it, stores the waker, as [`poll`](Self::poll) does. Returns
    /// the request's key, and `true` if the waker was stored.
    ///
    /// # Errors
    /// The queue has failed, or the process is a fork.
    pub(crate) fn begin(&self, request: Request, class: Class, waker: Option<&Waker>) -> io::Result<(Key, bool)> {
        self.check_process()?;
        let mut state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(io::Error::other(failure.clone()));
        }
        let is_driving = self.is_driving_here();
        let waker = waker.filter(|_| is_driving).cloned();
        let is_awaited = waker.is_some();
        let slot = Slot { phase: Phase::Pending(request), class, waker, is_outside: false, is_dropped: false };
        let key = state.insert(slot);
        state.pending[class as usize].push_back(key);
        self.fill(&mut state);
        if !state.is_collector_awake && !is_driving {
            self.submit(state);
        }
        Ok((Key(key), is_awaited))
    }

    fn check_process(&self) -> io::Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(io::Error::other("the driver belongs to the process that this one was forked from; make another one here"))
    }

    /// Releases the lock, then submits the pushed requests.
    fn submit(&self, mut state: MutexGuard<'_, State>) {
        let must_submit = std::mem::take(&mut state.has_unsubmitted);
        drop(state);
        if must_submit && let Err(error) = self.queue.submit() {
            self.fail(&error);
        }
    }

    /// Pushes pending requests while the queue has room for them.
    fn fill(&self, state: &mut State) {
        while state.in_queue() < self.queue.depth()
            && let Some(class) = self.next_class(state)
        {
            let key = state.pending[class as usize].pop_front().expect("the class has a pending request");
            let slot = state.slot(key);
            let Phase::Pending(request) = std::mem::replace(&mut slot.phase, Phase::InFlight) else {
                unreachable!("a request in the list of pending ones")
            };
            let Request { direction, file, offset, buffer } = request;
            match direction {
                Direction::Read => self.queue.push_read(&file, offset, buffer, key as u64),
                Direction::Write => self.queue.push_write(&file, offset, buffer, key as u64),
            }
            state.in_queue[class as usize] += 1;
            state.other_than_last = class.other();
            state.has_unsubmitted = true;
        }
    }

    /// Returns the class whose next request may begin.
    fn next_class(&self, state: &State) -> Option<Class> {
        let [foreground, background] = CLASSES.map(|class| !state.pending[class as usize].is_empty());
        let may_begin = background && state.in_queue[Class::Background as usize] < self.background_max(state);
        match (foreground, may_begin) {
            (true, true) if self.queue.depth() == 1 => Some(state.other_than_last),
            (_, true) => Some(Class::Background),
            (true, false) => Some(Class::Foreground),
            (false, false) => None,
        }
    }

    /// Returns the number of background requests that may be in flight now.
    fn background_max(&self, state: &State) -> usize {
        let foreground = state.in_queue[0] + state.pending[0].len();
        let is_active = foreground > 0
            || state.foreground_seen.is_some_and(|seen| self.backend.now().saturating_sub(seen) < FOREGROUND_LINGER);
        if is_active { background_max(state.share, foreground) } else { usize::MAX }
    }

    /// Returns the answer if the request has been answered. Otherwise stores the waker, to be called when it is. If the
    /// calling thread will not collect the request, ensures that a different thread will.
    pub(crate) fn poll(self: &Arc<Self>, key: Key, waker: &Waker) -> Poll<io::Result<Answer>> {
        if let Err(error) = self.check_process() {
            return Poll::Ready(Err(error));
        }
        let mut state = self.state.lock();
        for is_retry in [false, true] {
            let slot = state.slot(key.0);
            if let Phase::Finished(_) = slot.phase {
                let Phase::Finished(answer) = state.remove(key.0).phase else { unreachable!("matched above") };
                if is_retry {
                    // Other threads may have relied on this one while it was the collector.
                    self.hand_over(state);
                }
                return Poll::Ready(answer);
            }
            if !slot.waker.as_ref().is_some_and(|stored| stored.will_wake(waker)) {
                slot.waker = Some(waker.clone());
            }
            if self.is_driving_here() {
                return Poll::Pending;
            }
            state.count_outside(key.0);
            if is_retry || state.has_collector {
                break;
            }
            // The request may have finished immediately, if the backend is in memory or the page cache had the bytes.
            state.slot(key.0).waker = None;
            state = match self.collect(state, Wait::No) {
                Ok((state, _)) => state,
                Err(()) => self.state.lock(),
            };
        }
        let called = self.call_thread(&mut state);
        self.submit(state);
        match called {
            Ok(()) => Poll::Pending,
            Err(error) => {
                self.release(key);
                Poll::Ready(Err(error))
            }
        }
    }

    /// Makes the driver's thread collect if it is needed and no other thread is collecting.
    fn call_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if !state.needs_thread() || !self.may_start_thread {
            return Ok(());
        }
        if state.thread == ThreadState::NotStarted {
            let reactor = Arc::clone(self);
            self.backend.spawn("drumlin-io", Box::new(move || reactor.serve()))?;
            state.thread = ThreadState::Running;
        }
        self.needed.notify_one();
        Ok(())
    }

    /// Abandons a request. If the request is in flight, its buffer is dropped when the request has finished; otherwise
    /// immediately.
    pub(crate) fn release(self: &Arc<Self>, key: Key) {
        if !self.is_here() {
            return;
        }
        let mut state = self.state.lock();
        let slot = state.slot(key.0);
        let waker = slot.waker.take();
        let mut removed = None;
        match slot.phase {
            Phase::InFlight => {
                slot.is_dropped = true;
                state.count_outside(key.0);
                if let Err(error) = self.call_thread(&mut state) {
                    log::error!("a dropped request stays in memory, since no thread can be started: {error}");
                }
            }
            Phase::Pending(_) | Phase::Finished(_) => {
                let slot = state.remove(key.0);
                state.pending[slot.class as usize].retain(|pending| *pending != key.0);
                removed = Some(slot);
            }
        }
        drop(state);
        drop((waker, removed));
    }

    /// The body of the driver's own thread.
    fn serve(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while state.failure.is_none() {
            if state.needs_thread() {
                state = match self.collect(state, Wait::One) {
                    Ok((state, _)) => state,
                    Err(()) => return,
                };
            } else if state.is_closed {
                return;
            } else if state.has_unsubmitted {
                self.submit(state);
                state = self.state.lock();
            } else {
                self.needed.wait(&mut state);
            }
        }
    }

    /// Collects on behalf of the thread in `block_on` to which these flags belong. Returns `false` without collecting
    /// if the queue has no request or a different thread is the collector.
    pub(super) fn drive(self: &Arc<Self>, flags: &WaitFlags) -> bool {
        if !self.is_here() {
            return false;
        }
        let state = self.state.lock();
        if state.has_collector || state.in_queue() == 0 {
            return false;
        }
        match self.collect(state, Wait::OneOrWaker(flags)) {
            Ok((state, _)) => {
                self.hand_over(state);
                true
            }
            Err(()) => true,
        }
    }

    /// Collects the finished requests without waiting, and returns their number.
    pub(super) fn turn(self: &Arc<Self>) -> io::Result<usize> {
        self.check_process()?;
        let state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(io::Error::other(failure.clone()));
        }
        if state.has_collector {
            return Ok(0);
        }
        match self.collect(state, Wait::No) {
            Ok((state, count)) => {
                self.hand_over(state);
                Ok(count)
            }
            Err(()) => Err(io::Error::other("the I/O queue has failed")),
        }
    }

    /// Passes the role of collector to the driver's thread if it is needed, and submits the pushed requests.
    fn hand_over(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let called = self.call_thread(&mut state);
        self.submit(state);
        if let Err(error) = called {
            log::error!("no thread collects the requests in flight, since none can be started: {error}");
        }
    }

    /// Collects once, and answers the finished requests. Returns the reacquired lock and the number of finished
    /// requests. If the queue has failed, returns an error, without the lock.
    fn collect<'r>(
        &'r self,
        mut state: MutexGuard<'r, State>,
        wait: Wait<'_>,
    ) -> Result<(MutexGuard<'r, State>, usize), ()> {
        assert!(!state.has_collector, "there is one collector at a time");
        state.has_collector = true;
        state.has_unsubmitted = false;
        let mut finished = std::mem::take(&mut state.finished);
        drop(state);
        let waited = match wait {
            Wait::No => self.queue.wait(0, &mut finished),
            Wait::One => self.queue.wait(1, &mut finished),
            Wait::OneOrWaker(flags) => {
                // The waker sets `is_woken` before it reads `is_waiting`, and this thread sets `is_waiting` before it
                // reads `is_woken`. So at least one of the two sees the other's store.
                flags.is_waiting.store(true, Ordering::SeqCst);
                let minimum = usize::from(!flags.is_woken.load(Ordering::SeqCst));
                let waited = self.queue.wait(minimum, &mut finished);
                flags.is_waiting.store(false, Ordering::SeqCst);
                waited
            }
        };
        let count = finished.len();
        let mut state = self.state.lock();
        let mut aftermath = std::mem::take(&mut state.aftermath);
        self.answer(&mut state, &mut finished, &mut aftermath);
        self.fill(&mut state);
        state.finished = finished;
        if let Err(error) = waited {
            state.has_collector = false;
            drop(state);
            aftermath.run();
            self.fail(&error);
            return Err(());
        }
        // While this flag is set, the woken tasks don't submit the requests that they push.
        state.is_collector_awake = true;
        drop(state);
        aftermath.run();
        let mut state = self.state.lock();
        state.aftermath = aftermath;
        state.has_collector = false;
        state.is_collector_awake = false;
        Ok((state, count))
    }

    fn answer(&self, state: &mut State, finished: &mut Vec<Completion>, aftermath: &mut Aftermath) {
        let has_background = state.share < 1.0;
        // A different thread may have detected a failure of the queue while this one waited. It has then answered all
        // requests.
        if state.failure.is_some() {
            aftermath.dropped.extend(finished.drain(..).map(|completion| completion.buffer));
            return;
        }
        for completion in finished.drain(..) {
            let key = completion.token as usize;
            let class = state.slot(key).class;
            state.in_queue[class as usize] -= 1;
            if has_background && class == Class::Foreground {
                state.foreground_seen = Some(self.backend.now());
            }
            if state.slot(key).is_dropped {
                state.remove(key);
                aftermath.dropped.push(completion.buffer);
                continue;
            }
            let Completion { buffer, transferred, result, .. } = completion;
            let slot = state.slot(key);
            slot.phase = Phase::Finished(Ok(Answer { buffer, transferred, result }));
            aftermath.wakers.extend(slot.waker.take());
            if std::mem::take(&mut slot.is_outside) {
                state.outside -= 1;
            }
        }
    }

    /// Called when a thread leaves `block_on`.
    pub(super) fn leave(self: &Arc<Self>) {
        if self.is_here() {
            self.hand_over(self.state.lock());
        }
    }

    /// Counts the calling thread as waiting for a collector, and ensures that there is a collector.
    pub(super) fn parked(self: &Arc<Self>) -> Parked<'_> {
        let mut state = self.state.lock();
        state.parked += 1;
        self.hand_over(state);
        Parked(self)
    }

    /// Returns the number of threads that wait for a collector.
    #[cfg(test)]
    pub(super) fn parked_count(&self) -> usize {
        self.state.lock().parked
    }

    /// Interrupts the collector's wait in the queue.
    pub(super) fn interrupt(&self) {
        self.queue.interrupt();
    }

    /// Answers all requests with an error (invariant 1).
    fn fail(&self, error: &io::Error) {
        let text = format!("the I/O queue has failed, and with it every request of this driver: {error}");
        let mut wakers = Vec::new();
        let mut requests = Vec::new();
        {
            let mut state = self.state.lock();
            state.failure = Some(text.clone());
            state.pending.iter_mut().for_each(VecDeque::clear);
            // Requests still in the queue will never be collected. The queue waits for them when it is dropped.
            (state.in_queue, state.outside) = ([0, 0], 0);
            for slot in state.slots.iter_mut().flatten() {
                slot.is_outside = false;
                if !matches!(slot.phase, Phase::Finished(_)) {
                    let failed = Phase::Finished(Err(io::Error::other(text.clone())));
                    requests.push(std::mem::replace(&mut slot.phase, failed));
                    wakers.extend(slot.waker.take());
                }
            }
        }
        self.needed.notify_one();
        drop(requests);
        Aftermath { wakers, dropped: Vec::new() }.run();
    }
}
