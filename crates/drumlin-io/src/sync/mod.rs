//! The primitives with which threads wait: locks, condition variables, parking, back-off.
//!
//! The library waits only through this module and the I/O backends, so that a simulation can replace the operating
//! system's scheduler. With the feature `sim`, the modules `scheduler` and `simulated` replace it. Threads outside of a
//! simulation wait as usual.

mod exclusive;
mod padded;
#[cfg_attr(feature = "sim", allow(unreachable_pub, reason = "wrapped by those of `simulated`"))]
mod parking;
mod random;
#[cfg(feature = "sim")]
pub(crate) mod scheduler;
#[cfg(not(feature = "sim"))]
mod sharded;
#[cfg(feature = "sim")]
#[allow(missing_docs, reason = "named and used as what they replace")]
mod simulated;
mod thread_index;

#[cfg(feature = "sim")]
pub use simulated::{
    Backoff, Condvar, Mutex, MutexGuard, Parker, RwLock, RwLockReadGuard, RwLockWriteGuard, ShardedLock,
    ShardedReadGuard, ShardedWriteGuard, Thread, Unparker, current, join, park_timeout, sleep, thread_number,
    yield_now,
};

pub use self::exclusive::Exclusive;
pub use self::padded::CachePadded;
#[cfg(not(feature = "sim"))]
pub use self::system::*;
pub use self::thread_index::{ThreadTag, thread_index, thread_tag};

pub use random::Random;

/// The primitives for the operating system's threads.
#[cfg(not(feature = "sim"))]
mod system {
    pub use std::thread::{Thread, current, park_timeout, sleep, yield_now};

    pub use super::parking::{Backoff, Parker, Unparker};
    pub use super::sharded::{ShardedLock, ShardedReadGuard, ShardedWriteGuard};
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

    /// Waits for a thread to end.
    pub fn join(thread: std::thread::JoinHandle<()>) -> std::thread::Result<()> {
        thread.join()
    }

    /// Returns the number of the calling thread in its simulation. Always `None` in a build without simulations.
    #[inline]
    pub fn thread_number() -> Option<usize> {
        None
    }
}

/// Replaces the scheduler in builds without simulations, where no thread is a task.
#[cfg(all(not(feature = "sim"), any(test, feature = "testing")))]
pub(crate) mod scheduler {
    use std::thread::JoinHandle;
    use std::time::Duration;

    /// A task of a simulation. In this build, no value of the type exists.
    pub(crate) enum Task {}

    pub(crate) fn current() -> Option<Task> {
        None
    }

    impl Task {
        pub(crate) fn name(&self) -> String {
            match *self {}
        }

        pub(crate) fn now(&self) -> Duration {
            match *self {}
        }

        pub(crate) fn note(&self, _what: u64) {
            match *self {}
        }

        pub(crate) fn sleep(&self, _duration: Duration) {
            match *self {}
        }

        pub(crate) fn spawn(&self, _name: &str, _body: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>> {
            match *self {}
        }
    }
}

// With `--cfg drumlin_loom`, code that loom models check uses loom's atomics.
#[cfg(drumlin_loom)]
pub use loom::sync::atomic;
#[cfg(not(drumlin_loom))]
pub use std::sync::atomic;
