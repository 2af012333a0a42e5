//! A few threads that make blocking calls on behalf of tasks.
//!
//! # Invariants
//! 1. An accepted job runs even if its task no longer waits: dropping the future does not cancel the job.
//! 2. At most [`JOBS_MAX`] jobs are queued. A task with one more job waits until the queue has room.
//! 3. No lock is held while a waker is called.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use crate::backend::Backend;
use crate::sync::{Condvar, Mutex};

/// The maximum number of jobs that wait for a thread. A task with one more job has to wait.
const JOBS_MAX: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads for blocking calls. It starts them when the first jobs arrive.
///
/// A job may wait for running jobs of the same pool, but never for a queued one: if the jobs on all threads did so, the
/// queued job would never start.
///
/// # Examples
/// ```
/// use drumlin_io::{Driver, Workers};
///
/// let driver = Driver::new()?;
/// let workers = Workers::new(driver.backend().clone(), 2);
/// let bytes = driver.block_on(workers.run(|| std::fs::read("/proc/version")));
/// assert!(bytes.map_or(true, |bytes| !bytes.is_empty()));
/// workers.stop();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Workers {
    backend: Arc<dyn Backend>,
    threads_max: usize,
    shared: Arc<WorkerPool>,
}

#[derive(Default)]
struct WorkerPool {
    state: Mutex<JobQueue>,
    arrived: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    /// The tasks that wait for room in the queue.
    crowd: Vec<Waker>,
    threads: Vec<JoinHandle<()>>,
    idle_count: usize,
    stop: bool,
}

impl std::fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs", self.state.lock().jobs.len())
    }
}

/// The result of a job, and the task that waits for it.
struct Answer<T> {
    value: Option<std::thread::Result<T>>,
    waker: Option<Waker>,
}

impl Workers {
    /// Returns a pool of up to `threads_max` threads, which `backend` starts.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, threads_max: usize) -> Workers {
        Workers { backend, threads_max, shared: Arc::default() }
    }

    /// Runs `body` on one of the threads and returns its result. If no thread can be started, runs it on the calling
    /// thread.
    ///
    /// # Panics
    /// If `body` panics.
    pub async fn run<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        let answer = Arc::new(Mutex::new(Answer { value: None, waker: None }));
        let answer_slot = Arc::clone(&answer);
        let mut job: Option<Job> = Some(Box::new(move || {
            let value = catch_unwind(AssertUnwindSafe(body));
            let waker = {
                let mut answer = answer_slot.lock();
                answer.value = Some(value);
                answer.waker.take()
            };
            // If the task has been dropped, the result is dropped here.
            drop(answer_slot);
            if let Some(waker) = waker {
                waker.wake();
            }
        }));
        poll_fn(|context| self.poll_accept(&mut job, context.waker())).await;
        let value = poll_fn(|context| {
            let mut answer = answer.lock();
            match answer.value.take() {
                Some(value) => Poll::Ready(value),
                None => {
                    answer.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        match value.await {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn poll_accept(&self, job: &mut Option<Job>, waker: &Waker) -> Poll<()> {
        let mut state = self.shared.state.lock();
        if state.stop {
            drop(state);
            // The pool's threads have been stopped, so run the job on the calling thread.
            (job.take().expect("accepted once"))();
            return Poll::Ready(());
        }
        if state.jobs.len() >= JOBS_MAX {
            state.crowd.push(waker.clone());
            return Poll::Pending;
        }
        state.jobs.push_back(job.take().expect("accepted once"));
        if state.idle_count == 0 && state.threads.len() < self.threads_max {
            let shared = Arc::clone(&self.shared);
            match self.backend.spawn("drumlin-work", Box::new(move || shared.serve())) {
                Ok(thread) => state.threads.push(thread),
                // The pool has no thread and cannot start one, so run the jobs on the calling thread.
                Err(_) if state.threads.is_empty() => {
                    let jobs = std::mem::take(&mut state.jobs);
                    drop(state);
                    jobs.into_iter().for_each(|job| job());
                    return Poll::Ready(());
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.shared.arrived.notify_one();
        Poll::Ready(())
    }

    /// Stops the threads after they have finished all accepted jobs.
    pub fn stop(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.stop = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.arrived.notify_all();
        for thread in threads {
            // The calling thread may be a worker whose job dropped the database's last handle. It cannot join itself.
            if thread.thread().id() != crate::sync::current().id() {
                let _ = crate::sync::join(thread);
            }
        }
    }
}

impl WorkerPool {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            while state.jobs.is_empty() {
                if state.stop {
                    return;
                }
                state.idle_count += 1;
                self.arrived.wait(&mut state);
                state.idle_count -= 1;
            }
            let job = state.jobs.pop_front().expect("looked at");
            let crowd = std::mem::take(&mut state.crowd);
            drop(state);
            crowd.into_iter().for_each(Waker::wake);
            job();
            state = self.state.lock();
        }
    }
}
