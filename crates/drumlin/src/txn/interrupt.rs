//! Ends another thread's wait for a row lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use crate::sync::Mutex;

/// A request to end a transaction's wait for a row lock. It stays in effect until it has ended one wait.
#[derive(Debug, Default)]
pub(crate) struct Interrupt {
    is_requested: AtomicBool,
    /// Wakes the call that is waiting.
    waker: Mutex<Option<Waker>>,
}

impl Interrupt {
    /// Ends the current wait of the transaction, or its next one.
    pub(crate) fn request(&self) {
        self.is_requested.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Stores the waker of a wait, and only then checks for a request. So a concurrent request either sees the waker or
    /// is seen by this check. Returns `true` if the wait has to end.
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
