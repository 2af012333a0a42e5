//! Ending another thread's wait for a row lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use crate::sync::Mutex;

/// A request to end a transaction's wait for a row lock. It stays until one wait has ended by it.
#[derive(Debug, Default)]
pub(crate) struct Interrupt {
    is_requested: AtomicBool,
    /// Wakes the call that waits.
    waker: Mutex<Option<Waker>>,
}

impl Interrupt {
    /// Ends the wait that the transaction is in, or its next one.
    pub(crate) fn request(&self) {
        self.is_requested.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the waker of a wait, and only then returns whether the wait has to end. So a request either sees the waker
    /// or is seen.
    pub(crate) fn take(&self, waker: &Waker) -> bool {
        debug_assert!(!waker.will_wake(Waker::noop()), "a wait that nothing can end");
        let before = self.waker.lock().replace(waker.clone());
        drop(before);
        self.is_requested.swap(false, Ordering::SeqCst)
    }

    /// Forgets the waker of a wait that has ended.
    pub(crate) fn end_wait(&self) {
        let waker = self.waker.lock().take();
        drop(waker);
    }
}
