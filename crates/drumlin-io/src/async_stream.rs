//! Asynchronous streams, for any executor.
//!
//! Each backend has one thread, the *driver*, with one queue for all asynchronous streams. The driver starts with the
//! first stream and ends with the last. A task waits for nothing but a short mutex: it posts requests to the driver,
//! and is woken when the request it needs has finished.
//!
//! # Invariants
//! 1. A stream has `StreamOptions::requests` requests posted, in flight or finished, and posts another only when one is
//!    taken. So a task that reads slowly holds no more memory than one that reads fast.
//! 2. Every posted request is answered once, even if the queue fails. So no task waits for ever.
//! 3. A waker is called while no lock is held.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use crate::sync::{Condvar, Mutex};
use futures_io::{AsyncBufRead, AsyncRead};

use super::read::BufferHome;
use super::stream::{Part, Plan};
use super::{AlignedBuffer, Backend, FileRef, Queue, ReadBuffer, StreamOptions};

/// Requests in flight for all streams of a backend. Further requests wait in the order of arrival.
const DRIVER_DEPTH: usize = 64;

/// Reads a range of a file sequentially without ever blocking the reading task, on any executor.
///
/// It implements [`futures_io::AsyncRead`] and [`AsyncBufRead`]; [`next_buffer`](AsyncReadStream::next_buffer) returns
/// what was read without copying it. Otherwise it is like [`ReadStream`](super::ReadStream).
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use drumlin_io::{AsyncReadStream, OpenOptions, Persist, StreamOptions};
/// # struct Unpark(std::thread::Thread);
/// # impl std::task::Wake for Unpark { fn wake(self: Arc<Self>) { self.0.unpark() } }
/// # fn block_on<T>(future: impl Future<Output = T>) -> T {
/// #     let mut future = std::pin::pin!(future);
/// #     let waker = Arc::new(Unpark(std::thread::current())).into();
/// #     loop {
/// #         match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
/// #             std::task::Poll::Ready(value) => return value,
/// #             std::task::Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
///
/// let backend = drumlin_io::in_memory();
/// let file = backend.open("kame".as_ref(), OpenOptions { write: true, create: true, ..Default::default() })?;
/// file.write_at(b"sand and gravel", 0, Persist::Later)?;
/// let mut stream = AsyncReadStream::open(&backend, &file, 9..15, StreamOptions::default())?;
/// block_on(async {
///     while let Some(buffer) = stream.next_buffer().await? {
///         assert_eq!(&buffer[..], b"gravel");
///     }
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct AsyncReadStream {
    driver: Arc<DriverHandle>,
    file: FileRef,
    plan: Plan,
    /// The number of the next request to post.
    posted: u64,
    shared: Arc<Shared>,
    /// The rest of the buffer that [`AsyncRead`] copies from.
    current: ReadBuffer,
}

/// The state that a stream shares with its driver.
struct Shared {
    home: Arc<BufferHome>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The answers from number `first` on; `None` for a request that has not finished.
    answers: VecDeque<(Part, Option<io::Result<AlignedBuffer>>)>,
    first: u64,
    waker: Option<Waker>,
    /// The stream was dropped or has failed: requests that have not begun need not begin.
    closed: bool,
}

impl Shared {
    fn answer(&self, number: u64, result: io::Result<AlignedBuffer>) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        let index = (number - state.first) as usize;
        state.answers[index].1 = Some(result);
        let waker = if index == 0 { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker
            && catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err()
        {
            log::error!("an executor's waker panicked in the thread that drives streams");
        }
    }
}

impl AsyncReadStream {
    /// Begins to read `range`, given in bytes, of `file`, which must belong to this `backend`.
    ///
    /// # Errors
    /// Those of [`ReadStream::open`](super::ReadStream::open), and an error if the driver's thread cannot be started.
    pub fn open(
        backend: &Arc<dyn Backend>,
        file: &FileRef,
        range: Range<u64>,
        mut options: StreamOptions,
    ) -> io::Result<AsyncReadStream> {
        let range_bytes = range.end.saturating_sub(range.start);
        let plan = Plan::new(file.as_ref(), range, &mut options)?;
        let mut stream = AsyncReadStream {
            driver: driver_of(backend)?,
            file: FileRef::clone(file),
            plan,
            posted: 0,
            shared: Arc::new(Shared { home: options.home(range_bytes), state: Mutex::default() }),
            current: ReadBuffer::empty(),
        };
        for _ in 0..options.requests {
            stream.post_next();
        }
        Ok(stream)
    }

    fn post_next(&mut self) {
        let Some(part) = self.plan.next() else { return };
        self.shared.state.lock().answers.push_back((part.clone(), None));
        let job = Job { file: FileRef::clone(&self.file), part, stream: Arc::clone(&self.shared), number: self.posted };
        self.posted += 1;
        self.driver.shared.post(job);
    }

    /// Returns the next bytes of the range: one request's worth, or the rest of the range, or `None` at its end. If the
    /// future is dropped, no bytes are lost: the next call returns them.
    ///
    /// # Errors
    /// Those of [`ReadStream::next_buffer`](super::ReadStream::next_buffer).
    pub async fn next_buffer(&mut self) -> io::Result<Option<ReadBuffer>> {
        std::future::poll_fn(|context| self.poll_next_buffer(context)).await
    }

    /// [`next_buffer`](Self::next_buffer) for hand-written futures. Wakes the `context` of the last call.
    pub fn poll_next_buffer(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<ReadBuffer>>> {
        if !self.current.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::replace(&mut self.current, ReadBuffer::empty()))));
        }
        let mut state = self.shared.state.lock();
        let (part, result) = match state.answers.pop_front() {
            None => return Poll::Ready(Ok(None)),
            Some((part, None)) => {
                state.answers.push_front((part, None));
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Some((part, Some(result))) => (part, result),
        };
        state.first += 1;
        match result {
            Ok(buffer) => {
                drop(state);
                self.post_next();
                Poll::Ready(Ok(Some(ReadBuffer::of_home(buffer, part.visible, &self.shared.home))))
            }
            Err(error) => {
                state.closed = true;
                state.answers.clear();
                Poll::Ready(Err(error))
            }
        }
    }
}

impl AsyncBufRead for AsyncReadStream {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let stream = self.get_mut();
        if stream.current.is_empty() {
            match stream.poll_next_buffer(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(buffer)) => stream.current = buffer.unwrap_or_else(ReadBuffer::empty),
            }
        }
        Poll::Ready(Ok(&stream.current))
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        self.get_mut().current.advance(bytes);
    }
}

impl AsyncRead for AsyncReadStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        let count = match self.as_mut().poll_fill_buf(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(available)) => {
                let count = available.len().min(target.len());
                target[..count].copy_from_slice(&available[..count]);
                count
            }
        };
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

impl Drop for AsyncReadStream {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        state.answers.clear();
        let waker = state.waker.take();
        drop(state);
        drop(waker);
    }
}

impl fmt::Debug for AsyncReadStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncReadStream({:?}, {:?})", self.plan, self.file)
    }
}

/// A request of a stream.
struct Job {
    file: FileRef,
    part: Part,
    stream: Arc<Shared>,
    number: u64,
}

impl Job {
    /// Answers the request. Drops its handle of the file before, because a caller that has read a stream to its end may
    /// expect to own the only handle.
    fn answer(self, result: io::Result<AlignedBuffer>) {
        drop(self.file);
        self.stream.answer(self.number, result);
    }
}

/// The running drivers, each with the address of its backend. A driver holds its backend, so while it runs, no other
/// backend can have that address.
static DRIVERS: Mutex<Vec<(usize, Weak<DriverHandle>)>> = Mutex::new(Vec::new());

fn driver_of(backend: &Arc<dyn Backend>) -> io::Result<Arc<DriverHandle>> {
    let address = Arc::as_ptr(backend).addr();
    let mut drivers = DRIVERS.lock();
    drivers.retain(|(_, driver)| driver.strong_count() > 0);
    let known = drivers.iter().filter(|(of, _)| *of == address).find_map(|(_, driver)| driver.upgrade());
    if let Some(driver) = known.filter(|driver| driver.shared.inbox.lock().failure.is_none()) {
        return Ok(driver);
    }
    let driver = DriverHandle::start(backend)?;
    drivers.push((address, Arc::downgrade(&driver)));
    Ok(driver)
}

/// Ends the driver's thread when the last stream is dropped.
struct DriverHandle {
    shared: Arc<Driver>,
    _backend: Arc<dyn Backend>,
}

#[derive(Default)]
struct Driver {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
}

#[derive(Default)]
struct Inbox {
    jobs: VecDeque<Job>,
    closed: bool,
    /// The queue failed with this error, so no further request can begin.
    failure: Option<String>,
}

impl DriverHandle {
    fn start(backend: &Arc<dyn Backend>) -> io::Result<Arc<DriverHandle>> {
        let queue = backend.queue(DRIVER_DEPTH)?;
        let shared = Arc::new(Driver::default());
        let driver = Arc::clone(&shared);
        backend.spawn("drumlin-streams", Box::new(move || driver.run(queue)))?;
        Ok(Arc::new(DriverHandle { shared, _backend: Arc::clone(backend) }))
    }
}

impl Drop for DriverHandle {
    fn drop(&mut self) {
        self.shared.inbox.lock().closed = true;
        self.shared.arrived.notify_one();
    }
}

impl Driver {
    fn post(&self, job: Job) {
        let mut inbox = self.inbox.lock();
        if let Some(failure) = &inbox.failure {
            let error = io::Error::other(failure.clone());
            drop(inbox);
            return job.answer(Err(error));
        }
        inbox.jobs.push_back(job);
        drop(inbox);
        self.arrived.notify_one();
    }

    /// The body of the thread. While requests are in flight, new ones wait for the next of these to finish, which is
    /// never long. Only an idle driver sleeps until a request is posted.
    fn run(&self, queue: Box<dyn Queue>) {
        let mut slots: Vec<Option<Job>> = (0..DRIVER_DEPTH).map(|_| None).collect();
        let mut slots_free: Vec<usize> = (0..DRIVER_DEPTH).collect();
        let mut jobs = VecDeque::new();
        let mut finished = Vec::new();
        loop {
            if !self.collect(&mut jobs, queue.in_flight()) {
                return;
            }
            while !slots_free.is_empty()
                && let Some(job) = jobs.pop_front()
            {
                let Some((job, buffer)) = begin(job) else { continue };
                let slot = slots_free.pop().expect("checked above");
                queue.push_read(&job.file, job.part.offset, buffer, slot as u64);
                slots[slot] = Some(job);
            }
            if let Err(error) = queue.wait(1, &mut finished) {
                let begun = slots.into_iter().flatten();
                return self.fail(&error, begun.chain(jobs));
            }
            for completion in finished.drain(..) {
                let slot = completion.token as usize;
                let job = slots[slot].take().expect("a completion for each request");
                slots_free.push(slot);
                job.answer(completion.result.map(|()| completion.buffer));
            }
        }
    }

    /// Moves the posted jobs to `jobs`. Returns `false` if there is nothing left to do and nothing more can come.
    fn collect(&self, jobs: &mut VecDeque<Job>, in_flight: usize) -> bool {
        let mut inbox = self.inbox.lock();
        while in_flight == 0 && jobs.is_empty() && inbox.jobs.is_empty() {
            if inbox.closed {
                return false;
            }
            self.arrived.wait(&mut inbox);
        }
        jobs.append(&mut inbox.jobs);
        true
    }

    /// Answers all requests with an error (invariant 2).
    fn fail(&self, error: &io::Error, begun: impl Iterator<Item = Job>) {
        let text = format!("the queue that drives asynchronous streams failed: {error}");
        let posted = {
            let mut inbox = self.inbox.lock();
            inbox.failure = Some(text.clone());
            std::mem::take(&mut inbox.jobs)
        };
        for job in begun.chain(posted) {
            job.answer(Err(io::Error::other(text.clone())));
        }
    }
}

/// Returns the job and its buffer if it must go through the queue. Reads a tail here and now: it is a single block,
/// once for each stream.
fn begin(job: Job) -> Option<(Job, AlignedBuffer)> {
    if job.stream.state.lock().closed {
        return None;
    }
    let buffer = job.stream.home.take(job.part.bytes);
    if !job.part.tail {
        return Some((job, buffer));
    }
    let result = job.part.read_tail(job.file.as_ref(), buffer);
    job.answer(result);
    None
}
