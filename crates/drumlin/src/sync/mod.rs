//! The primitives that threads wait on: locks, condition variables, parking, back-off.
//!
//! The library waits only through this module and the I/O backends, so that a simulation can replace the operating
//! system's scheduler: with the feature `sim`, [`scheduler`] and `simulated` do. Threads outside of a simulation wait
//! as usual.

mod exclusive;
mod random;
#[cfg(feature = "sim")]
pub(crate) mod scheduler;
#[cfg(feature = "sim")]
pub(crate) mod simulated;
mod thread_index;

#[cfg(feature = "sim")]
pub(crate) use simulated::{
    Backoff, Condvar, Mutex, MutexGuard, Parker, RwLock, RwLockReadGuard, RwLockWriteGuard, ShardedLock,
    ShardedReadGuard, ShardedWriteGuard, Thread, Unparker, current, join, park_timeout, sleep, thread_number,
    yield_now,
};

pub(crate) use self::exclusive::Exclusive;
#[cfg(not(feature = "sim"))]
pub(crate) use self::system::*;
pub(crate) use self::thread_index::{ThreadTag, thread_index, thread_tag};

pub use random::Random;

/// The operating system's threads.
#[cfg(not(feature = "sim"))]
mod system {
    pub(crate) use std::thread::{Thread, current, park_timeout, sleep, yield_now};

    pub(crate) use crossbeam_utils::Backoff;
    pub(crate) use crossbeam_utils::sync::{Parker, Unparker};
    pub(crate) use crossbeam_utils::sync::{
        ShardedLockReadGuard as ShardedReadGuard, ShardedLockWriteGuard as ShardedWriteGuard,
    };
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

    use std::sync::PoisonError;

    /// A lock that every commit shares and few threads take alone. To share it touches a cache line that few other
    /// threads touch; to have it alone takes as long as some ten locks.
    #[derive(Debug)]
    pub(crate) struct ShardedLock<T>(crossbeam_utils::sync::ShardedLock<T>);

    impl<T> ShardedLock<T> {
        pub(crate) fn new(value: T) -> ShardedLock<T> {
            ShardedLock(crossbeam_utils::sync::ShardedLock::new(value))
        }

        #[inline]
        pub(crate) fn read(&self) -> ShardedReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> ShardedWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// Waits until a thread has ended.
    pub(crate) fn join(thread: std::thread::JoinHandle<()>) -> std::thread::Result<()> {
        thread.join()
    }

    /// The number that a simulation gives the calling thread.
    #[inline]
    pub(crate) fn thread_number() -> Option<usize> {
        None
    }
}

/// No simulation: no thread is a task of one.
#[cfg(not(feature = "sim"))]
pub(crate) mod scheduler {
    use std::thread::JoinHandle;
    use std::time::Duration;

    /// A task of a simulation: there is none.
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

// Under `--cfg drumlin_loom` the parts that have models use its atomics.
#[cfg(drumlin_loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(drumlin_loom))]
pub(crate) use std::sync::atomic;
