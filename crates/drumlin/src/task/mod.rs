//! Waiting of calls: by blocking their thread, or as tasks of whatever executor polls them.
//!
//! The engine's operations are written once, as `async` functions, and told by a [`WaitMode`] how to wait. Where it is
//! `Blocking`, every wait blocks inside its poll, so the whole operation is ready at the first one ([`ready`]). Where
//! it is `Tasks`, a wait leaves a waker behind and costs no thread, but for work that only blocking calls can do or
//! that can't be divided (growing a file, large values, definitions, commits of many rows), which [`Workers`] take
//! over. A task that finds nothing to wait for gives way after a [`turn`].

mod timer;
pub(crate) mod turn;
mod workers;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::io::Backend;
use crate::sync::{Parker, Thread, Unparker};
pub(crate) use timer::Timer;
use turn::Work;
pub(crate) use workers::Workers;

/// The background services for asynchronous callers.
#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) workers: Workers,
    /// Make room for frames. Not `workers`: a commit that holds log space needs them, and jobs of `workers` wait for
    /// log space, or take minutes.
    pub(crate) evictors: Workers,
    /// Make the commits of many rows. Not `workers`: a commit waits for space in the file and in the log, and those
    /// that have it may need `workers`. A commit in their queue holds row locks alone, for which no other one waits.
    pub(crate) committers: Workers,
    pub(crate) timer: Timer,
}

impl Tasks {
    /// The wait mode of a call that begins, once it has let others go on if its thread's turn is over.
    #[inline]
    pub(crate) async fn begin_call(&self) -> WaitMode<'_> {
        Work::call().await;
        WaitMode::Tasks(self)
    }

    pub(crate) fn new(backend: &Arc<dyn Backend>) -> Tasks {
        Tasks {
            workers: Workers::new(Arc::clone(backend)),
            evictors: Workers::new(Arc::clone(backend)),
            committers: Workers::new(Arc::clone(backend)),
            timer: Timer::new(Arc::clone(backend)),
        }
    }

    /// Ends the threads, after what they have been given.
    pub(crate) fn stop(&self) {
        self.workers.stop();
        self.evictors.stop();
        self.committers.stop();
        self.timer.stop();
    }
}

/// The way in which an operation waits.
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

    /// Lets a task give way before a piece of work, if its thread's turn is over, and counts the piece.
    #[inline]
    pub(crate) fn work(self, units: u32) -> Work {
        match self {
            WaitMode::Blocking => Work::BLOCKING,
            WaitMode::Tasks(_) => Work::piece(units),
        }
    }

    /// Counts work whose size shows only when it is done.
    #[inline]
    pub(crate) fn worked(self, units: u32) {
        if let WaitMode::Tasks(_) = self {
            turn::count(units);
        }
    }

    /// Runs what may block: here, or on a worker.
    pub(crate) async fn run<T: Send + 'static>(self, body: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            WaitMode::Blocking => body(),
            WaitMode::Tasks(tasks) => tasks.workers.run(body).await,
        }
    }
}

/// Wakes a thread that is parked.
struct Unpark(Unparker);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Wakes a thread that is parked with a time limit.
struct UnparkThread(Thread);

impl Wake for UnparkThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl WaitMode<'_> {
    /// Polls until it is ready; polls again whenever the waker that it passes is called.
    pub(crate) async fn until<T>(self, mut poll: impl FnMut(&Waker) -> Poll<T>) -> T {
        match self {
            WaitMode::Blocking => {
                let parker = Parker::new();
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

    /// Like [`until`](Self::until), but no longer than until the clock of `backend` shows `deadline`: then `None`.
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

    /// Lets others go on.
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

/// The result of an operation that blocks wherever it waits.
///
/// # Panics
/// If the future is not ready at its first poll: it was given another face.
#[inline]
pub(crate) fn ready<T>(operation: impl Future<Output = T>) -> T {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("an operation that blocks was not ready at once"),
    }
}
