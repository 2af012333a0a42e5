//! Waiting for a stream, so that only the threads that can proceed are woken.

use std::cell::RefCell;

use crate::format::Timestamp;
use crate::sync::{Parker, Unparker};

thread_local! {
    static PARKER: RefCell<Option<Parker>> = const { RefCell::new(None) };
}

/// The number of a waiter, by which its thread finds it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct WaiterId(u64);

impl WaiterId {
    pub(super) fn next(self) -> WaiterId {
        WaiterId(self.0 + 1)
    }
}

/// A thread that waits until a stream has no pending record at or below a timestamp.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: WaiterId,
    pub(super) timestamp: Timestamp,
    unparker: Unparker,
}

impl Waiter {
    /// Makes a waiter of the calling thread.
    pub(super) fn current(id: WaiterId, timestamp: Timestamp) -> Waiter {
        let unparker = PARKER.with_borrow_mut(|parker| parker.get_or_insert_default().unparker().clone());
        Waiter { id, timestamp, unparker }
    }

    pub(super) fn wake(&self) {
        self.unparker.unpark();
    }
}

/// Sleeps until a waiter of this thread is woken. May return early.
pub(super) fn park() {
    PARKER.with_borrow(|parker| {
        debug_assert!(parker.is_some(), "a thread sleeps that nobody can wake");
        if let Some(parker) = parker {
            parker.park();
        }
    });
}
