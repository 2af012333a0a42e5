//! The `portable` backend: positional reads and writes on a small pool of threads. It runs on any Unix, including
//! systems that forbid io_uring, as many containers do.
//!
//! A queue gathers requests, passes them to the pool in batches, and collects the finished ones. All queues of a
//! backend share its threads. The pool starts a thread if more requests are waiting than threads are idle. The threads
//! end when the last queue or handle of the backend is dropped.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::sync::{Condvar, Mutex};

use super::disk::DiskBackend;
use super::disk::end_of_file;
use super::{AlignedBuffer, Completion, FileRef, Persist, Queue, QueueOptions};

/// The maximum number of threads. A drive serves more requests in parallel than the machine has processors, and each
/// thread has only one request in flight. With 64 direct 4 KiB reads in flight, 8 threads did 53 k/s at 12 µs of
/// processor time each, 16 did 62 k/s at 10.4 µs, 32 did 67 k/s at 9.9 µs, and 64 did 64 k/s at 13 µs.
/// Measured: the figures above.
const POOL_THREADS_MAX: usize = 32;

/// Creates the backend.
pub(crate) fn backend() -> DiskBackend {
    let pool = Arc::new(PoolHandle { shared: Arc::new(Pool::default()) });
    DiskBackend::new("portable", Box::new(move |options| queue(&pool, options)))
}

fn queue(pool: &Arc<PoolHandle>, options: QueueOptions) -> io::Result<Box<dyn Queue>> {
    if options.polled {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the portable backend has no polled queues"));
    }
    Ok(Box::new(PortableQueue::new(pool, options.depth)))
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

struct Request {
    direction: Direction,
    file: FileRef,
    offset: u64,
    buffer: AlignedBuffer,
    token: u64,
    finished: Arc<Finished>,
}

impl Request {
    fn run(mut self) {
        let transferred = match self.direction {
            Direction::Read => self.file.read_up_to(&mut self.buffer, self.offset),
            Direction::Write => {
                self.file.write_at(&self.buffer, self.offset, Persist::Later).map(|()| self.buffer.len())
            }
        };
        let (result, transferred) = match transferred {
            Ok(count) if count < self.buffer.len() => (Err(end_of_file()), count),
            Ok(count) => (Ok(()), count),
            Err(error) => (Err(error), 0),
        };
        // Drop the file before the request counts as finished. Once all requests of a file have been returned, a caller
        // may rely on being its last owner.
        drop(self.file);
        let completion = Completion { token: self.token, buffer: self.buffer, result, transferred };
        self.finished.state.lock().completions.push(completion);
        self.finished.arrived.notify_one();
    }
}

/// The completions that the threads have produced for a queue.
#[derive(Default)]
struct Finished {
    state: Mutex<FinishedState>,
    arrived: Condvar,
}

#[derive(Default)]
struct FinishedState {
    completions: Vec<Completion>,
    interrupted: bool,
}

#[derive(Default)]
struct Pool {
    work: Mutex<Work>,
    arrived: Condvar,
}

#[derive(Default)]
struct Work {
    requests: VecDeque<Request>,
    threads: usize,
    threads_idle: usize,
    closed: bool,
}

/// Ends the threads once the last queue and the backend are dropped.
struct PoolHandle {
    shared: Arc<Pool>,
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        self.shared.work.lock().closed = true;
        self.shared.arrived.notify_all();
    }
}

impl PoolHandle {
    /// Queues `requests` and starts threads for them if too few are idle.
    fn run(&self, requests: &mut Vec<Request>) -> io::Result<()> {
        let mut work = self.shared.work.lock();
        let waking = requests.len();
        // Start threads before queueing: if the pool has no thread and can't start one, the requests remain with the
        // caller.
        while work.threads_idle < work.requests.len() + waking && work.threads < POOL_THREADS_MAX {
            let pool = Arc::clone(&self.shared);
            let started =
                thread::Builder::new().name("drumlin-io".to_owned()).stack_size(128 << 10).spawn(move || pool.serve());
            match started {
                Ok(_) => {
                    work.threads += 1;
                    work.threads_idle += 1;
                }
                Err(error) if work.threads == 0 => return Err(error),
                Err(_) => break,
            }
        }
        work.requests.extend(requests.drain(..));
        drop(work);
        for _ in 0..waking.min(POOL_THREADS_MAX) {
            self.shared.arrived.notify_one();
        }
        Ok(())
    }
}

impl Pool {
    /// The body of a thread. A thread counts as idle from its start, so a burst of requests does not start two threads
    /// for one request.
    fn serve(&self) {
        let mut work = self.work.lock();
        loop {
            if let Some(request) = work.requests.pop_front() {
                work.threads_idle -= 1;
                drop(work);
                request.run();
                work = self.work.lock();
                work.threads_idle += 1;
            } else if work.closed {
                work.threads -= 1;
                work.threads_idle -= 1;
                return;
            } else {
                self.arrived.wait(&mut work);
            }
        }
    }
}

/// A queue of requests to the pool.
struct PortableQueue {
    pool: Arc<PoolHandle>,
    depth: usize,
    in_flight: AtomicUsize,
    pushed: Mutex<Vec<Request>>,
    finished: Arc<Finished>,
}

impl PortableQueue {
    fn new(pool: &Arc<PoolHandle>, depth: usize) -> PortableQueue {
        PortableQueue {
            pool: Arc::clone(pool),
            depth,
            in_flight: AtomicUsize::new(0),
            pushed: Mutex::new(Vec::with_capacity(depth)),
            finished: Arc::new(Finished::default()),
        }
    }

    fn push(&self, direction: Direction, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed);
        assert!(in_flight < self.depth, "more requests than the queue's depth of {}", self.depth);
        let finished = Arc::clone(&self.finished);
        self.pushed.lock().push(Request { direction, file: Arc::clone(file), offset, buffer, token, finished });
    }
}

impl fmt::Debug for PortableQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortableQueue({} of {} in flight)", self.in_flight(), self.depth)
    }
}

impl Queue for PortableQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn push_read(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.push(Direction::Read, file, offset, buffer, token);
    }

    fn push_write(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.push(Direction::Write, file, offset, buffer, token);
    }

    fn submit(&self) -> io::Result<()> {
        let mut pushed = self.pushed.lock();
        if pushed.is_empty() { Ok(()) } else { self.pool.run(&mut pushed) }
    }

    fn wait(&self, minimum: usize, finished: &mut Vec<Completion>) -> io::Result<()> {
        self.submit()?;
        let minimum = minimum.min(self.in_flight());
        let mut state = self.finished.state.lock();
        while state.completions.len() < minimum && !state.interrupted {
            self.finished.arrived.wait(&mut state);
        }
        state.interrupted = false;
        self.in_flight.fetch_sub(state.completions.len(), Ordering::Relaxed);
        finished.append(&mut state.completions);
        Ok(())
    }

    fn interrupt(&self) {
        self.finished.state.lock().interrupted = true;
        self.finished.arrived.notify_all();
    }
}

impl Drop for PortableQueue {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            // The wait fails only if no thread was ever started. In that case no request has begun.
            if self.wait(self.in_flight(), &mut Vec::new()).is_err() {
                let count = self.pushed.lock().len();
                log::error!("{count} requests of a dropped queue were not begun: no thread could be started");
                return;
            }
        }
    }
}
