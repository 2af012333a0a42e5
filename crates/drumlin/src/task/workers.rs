//! A few threads that do for tasks what only blocking calls can.
//!
//! # Invariants
//! 1. What was accepted is done, whether or not its task still waits: a dropped future does not take it back.
//! 2. At most [`JOBS_MAX`] jobs wait; a task that brings another waits until there is room.
//! 3. Wakers are called with no lock held.
//! 4. A job waits for the disk, for other threads and for jobs that run, never for one that is queued: with all threads
//!    in such a wait its turn would not come. So a task that holds what a job may wait for (log space) needs no job
//!    here.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use crate::io::Backend;
use crate::sync::{Condvar, Mutex};

const THREADS_MAX: usize = 2;
const JOBS_MAX: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// See the module. Threads start with the first job.
#[derive(Debug)]
pub(crate) struct Workers {
    backend: Arc<dyn Backend>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Tasks that wait for room.
    crowd: Vec<Waker>,
    threads: Vec<JoinHandle<()>>,
    idle_count: usize,
    stop: bool,
}

impl std::fmt::Debug for Shared {
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
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Workers {
        Workers { backend, shared: Arc::default() }
    }

    /// Runs `body` on one of the threads and returns what it returns.
    ///
    /// # Panics
    /// If `body` does.
    pub(crate) async fn run<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        let answer = Arc::new(Mutex::new(Answer { value: None, waker: None }));
        let place = Arc::clone(&answer);
        let mut job: Option<Job> = Some(Box::new(move || {
            let value = catch_unwind(AssertUnwindSafe(body));
            let waker = {
                let mut answer = place.lock();
                answer.value = Some(value);
                answer.waker.take()
            };
            // The result for a task that has gone is dropped here.
            drop(place);
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
            // There is no other thread left to run it.
            (job.take().expect("accepted once"))();
            return Poll::Ready(());
        }
        if state.jobs.len() >= JOBS_MAX {
            state.crowd.push(waker.clone());
            return Poll::Pending;
        }
        state.jobs.push_back(job.take().expect("accepted once"));
        if state.idle_count == 0 && state.threads.len() < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            match self.backend.spawn("drumlin-work", Box::new(move || shared.serve())) {
                Ok(thread) => state.threads.push(thread),
                // Without any thread it is done here and now: late is better than never.
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

    /// Ends the threads once they have done what they were given.
    pub(crate) fn stop(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.stop = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.arrived.notify_all();
        for thread in threads {
            // The last handle of the database may go on one of them.
            if thread.thread().id() != crate::sync::current().id() {
                let _ = crate::sync::join(thread);
            }
        }
    }
}

impl Shared {
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
