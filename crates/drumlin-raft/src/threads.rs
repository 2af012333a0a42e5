//! Threads for calls that wait, whichever runtime the tasks have.
//!
//! In a simulation (feature `sim`), such a thread is a task of the simulation's scheduler. So are the threads that wait
//! for a future: nothing in this crate waits where the scheduler does not know of it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

pub(crate) use system::{Job, unblock};

use system::Thread;

/// Wakes a thread in [`wait`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

/// Blocks the calling thread until a future is ready.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(Thread::current())));
    let mut future: Pin<&mut F> = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => Thread::park(),
        }
    }
}

#[cfg(not(feature = "sim"))]
mod system {
    pub(crate) use blocking::{Task as Job, unblock};

    /// A thread that can be woken.
    pub(super) struct Thread(std::thread::Thread);

    impl Thread {
        pub(super) fn current() -> Thread {
            Thread(std::thread::current())
        }

        pub(super) fn wake(&self) {
            self.0.unpark();
        }

        pub(super) fn park() {
            std::thread::park();
        }
    }
}

/// Threads that are tasks of a simulation if the caller is one.
#[cfg(feature = "sim")]
mod system {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use drumlin_io::testing::sim::{self, Sleeper};
    use futures_channel::oneshot;

    /// A call that runs on a thread. Dropping it does not end the call.
    pub(crate) struct Job<T>(oneshot::Receiver<std::thread::Result<T>>);

    impl<T> Job<T> {
        pub(crate) fn detach(self) {}
    }

    impl<T> Future for Job<T> {
        type Output = T;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
            let answer = ready!(Pin::new(&mut self.0).poll(context)).expect("the thread answers");
            Poll::Ready(answer.unwrap_or_else(|panic| resume_unwind(panic)))
        }
    }

    /// Runs a call on a thread.
    pub(crate) fn unblock<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Job<T> {
        let (answer, answered) = oneshot::channel();
        let body = move || drop(answer.send(catch_unwind(AssertUnwindSafe(call))));
        sim::spawn("a call of raft", Box::new(body)).expect("a thread");
        Job(answered)
    }

    /// A thread that can be woken.
    pub(super) struct Thread(Sleeper);

    impl Thread {
        pub(super) fn current() -> Thread {
            Thread(Sleeper::current())
        }

        pub(super) fn wake(&self) {
            // A channel may call this with a lock of its own, which the scheduler does not know.
            self.0.rouse();
        }

        pub(super) fn park() {
            sim::park(None);
        }
    }
}
