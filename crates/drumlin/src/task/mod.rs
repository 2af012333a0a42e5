//! Two ways for a call to wait: by blocking its thread, or as a task of the executor that polls it.
//!
//! The engine's operations are written once, as `async` functions, and a [`WaitMode`] determines how they wait. In
//! `Blocking` mode, every wait blocks inside its poll, so the operation as a whole is ready at its first poll
//! ([`ready`]). In `Tasks` mode, a wait stores a waker and occupies no thread. The exceptions are operations that need
//! blocking system calls or cannot be split up (growing a file, large values, definitions, commits of many rows): these
//! run on [`Workers`]. A task that never has to wait yields to its executor after a [`turn`].

mod rooted;
mod timer;
pub(crate) mod turn;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::io::Backend;
pub(crate) use crate::io::Workers;
use crate::sync::{Parker, Thread, Unparker};
pub(crate) use rooted::Rooted;
pub(crate) use timer::Timer;
use turn::Work;

/// The number of threads in each pool. A job may wait for the disk, for other threads and for running jobs, but never
/// for a queued job. So a task that holds a resource that jobs wait for (log space) must not depend on a job of the
/// same pool.
const WORKER_THREADS_MAX: usize = 2;

/// Returns a thread pool for operations that must block. Its threads are started by the first jobs.
pub(crate) fn new_workers(backend: &Arc<dyn Backend>) -> Workers {
    Workers::new(Arc::clone(backend), WORKER_THREADS_MAX)
}

/// A boxed future, for operations that are rare or take long compared with an allocation, such as reading a page or a
/// commit that waits. Boxing keeps the callers' futures small, and the operation is compiled only once.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Threads for the jobs of one call, which end with it.
#[derive(Debug)]
pub(crate) struct Helpers(Arc<Workers>);

impl Helpers {
    pub(crate) fn new(backend: &Arc<dyn Backend>, threads_max: usize) -> Helpers {
        Helpers(Arc::new(Workers::new(Arc::clone(backend), threads_max)))
    }

    /// Starts a job, which runs even if the future is dropped. If no thread can be started, the calling thread does the
    /// work.
    pub(crate) fn start<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> Boxed<'static, T> {
        let workers = Arc::clone(&self.0);
        let mut running: Boxed<'static, T> = Box::pin(async move { workers.run(body).await });
        // The first poll hands the job to a thread.
        match running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Box::pin(std::future::ready(value)),
            Poll::Pending => running,
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The background services for asynchronous callers.
#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) workers: Workers,
    /// Threads that make room for frames. They are separate from `workers`, because a commit that holds log space needs
    /// them, and jobs of `workers` may wait for log space or take minutes.
    pub(crate) evictors: Workers,
    /// Threads for commits of many rows. They are separate from `workers`, because a commit waits for space in the file
    /// and in the log, and the commits that hold this space may need `workers`. A commit queued here holds only row
    /// locks, which no commit waits for.
    pub(crate) committers: Workers,
    pub(crate) timer: Timer,
}

impl Tasks {
    /// Returns the wait mode for a new call. If the thread's turn is over, first yields to other tasks.
    #[inline]
    pub(crate) async fn begin_call(&self) -> WaitMode<'_> {
        Work::call().await;
        WaitMode::Tasks(self)
    }

    pub(crate) fn new(backend: &Arc<dyn Backend>) -> Tasks {
        Tasks {
            workers: new_workers(backend),
            evictors: new_workers(backend),
            committers: new_workers(backend),
            timer: Timer::new(Arc::clone(backend)),
        }
    }

    /// Lets the threads finish their queued jobs, then stops them.
    pub(crate) fn stop(&self) {
        self.workers.stop();
        self.evictors.stop();
        self.committers.stop();
        self.timer.stop();
    }
}

/// The way an operation waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitMode<'t> {
    /// The calling thread blocks.
    Blocking,
    /// The calling task is woken.
    Tasks(&'t Tasks),
}

impl WaitMode<'_> {
    pub(crate) fn is_task(self) -> bool {
        matches!(self, WaitMode::Tasks(_))
    }

    /// Charges the thread's turn for work that is about to begin. If too little of the turn is left, first yields.
    #[inline]
    pub(crate) fn work(self, units: u32) -> Work {
        match self {
            WaitMode::Blocking => Work::BLOCKING,
            WaitMode::Tasks(_) => Work::piece(units),
        }
    }

    /// Charges the thread's turn for finished work whose size was not known in advance.
    #[inline]
    pub(crate) fn worked(self, units: u32) {
        if let WaitMode::Tasks(_) = self {
            turn::count(units);
        }
    }

    /// Runs a body that may block: on this thread in blocking mode, on a worker thread for a task.
    pub(crate) async fn run<T: Send + 'static>(self, body: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            WaitMode::Blocking => body(),
            WaitMode::Tasks(tasks) => tasks.workers.run(body).await,
        }
    }
}

/// Wakes a parked thread.
struct Unpark(Unparker);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Wakes a thread that is parked with a timeout.
struct UnparkThread(Thread);

impl Wake for UnparkThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl WaitMode<'_> {
    /// Calls `poll` until it returns `Ready`: the first time immediately, then each time the waker is called.
    pub(crate) async fn until<T>(self, mut poll: impl FnMut(&Waker) -> Poll<T>) -> T {
        match self {
            WaitMode::Blocking => {
                let parker = Parker::default();
                let waker = Waker::from(Arc::new(Unpark(parker.unparker().clone())));
                loop {
                    if let Poll::Ready(value) = poll(&waker) {
                        return value;
                    }
                    parker.park();
                }
            }
            WaitMode::Tasks(_) => std::future::poll_fn(|context| poll(context.waker())).await,
        }
    }

    /// Like [`until`](Self::until), but returns `None` once the clock of `backend` reaches `deadline`.
    pub(crate) async fn until_deadline<T>(
        self,
        backend: &dyn Backend,
        deadline: Duration,
        mut poll: impl FnMut(&Waker) -> Poll<T>,
    ) -> Option<T> {
        match self {
            WaitMode::Blocking => {
                let waker = Waker::from(Arc::new(UnparkThread(crate::sync::current())));
                loop {
                    if let Poll::Ready(value) = poll(&waker) {
                        return Some(value);
                    }
                    let now = backend.now();
                    if now >= deadline {
                        return None;
                    }
                    crate::sync::park_timeout(deadline - now);
                }
            }
            WaitMode::Tasks(tasks) => {
                let mut alarm = None;
                std::future::poll_fn(|context| match poll(context.waker()) {
                    Poll::Ready(value) => Poll::Ready(Some(value)),
                    Poll::Pending if backend.now() >= deadline => Poll::Ready(None),
                    Poll::Pending => {
                        alarm = Some(tasks.timer.wake_at(deadline, context.waker().clone()));
                        Poll::Pending
                    }
                })
                .await
            }
        }
    }

    /// Lets other threads or tasks run.
    pub(crate) async fn pause(self) {
        let mut paused = matches!(self, WaitMode::Blocking);
        if paused {
            crate::sync::yield_now();
        }
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut paused, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// Returns the result of an operation in blocking mode.
///
/// # Panics
/// If the future is not ready at its first poll, because it was given a different wait mode.
#[inline]
pub(crate) fn ready<T>(operation: impl Future<Output = T>) -> T {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("an operation that blocks was not ready at once"),
    }
}
