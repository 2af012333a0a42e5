//! Waiting for a stream: only those threads are woken that can proceed.

use std::cell::RefCell;

use crate::format::Timestamp;
use crate::sync::{Parker, Unparker};

thread_local! {
    static PARKER: RefCell<Option<Parker>> = const { RefCell::new(None) };
}

/// Identifies a waiter, so that its thread can remove it from the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct WaiterId(u64);

impl WaiterId {
    fn next(self) -> WaiterId {
        WaiterId(self.0 + 1)
    }
}

/// A thread that waits until a stream has no pending record at or below a timestamp.
#[derive(Debug)]
pub(super) struct Waiter {
    id: WaiterId,
    timestamp: Timestamp,
    unparker: Unparker,
}

impl Waiter {
    /// Creates a waiter for the calling thread.
    fn current(id: WaiterId, timestamp: Timestamp) -> Waiter {
        let unparker = PARKER.with_borrow_mut(|parker| parker.get_or_insert_default().unparker().clone());
        Waiter { id, timestamp, unparker }
    }

    pub(super) fn wake(&self) {
        self.unparker.unpark();
    }
}

/// The threads that wait for records of a stream. Each id is assigned only once.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    list: Vec<Waiter>,
    next: WaiterId,
}

impl Waiters {
    /// Adds a waiter for the calling thread. Returns its id.
    pub(super) fn add_current(&mut self, timestamp: Timestamp) -> WaiterId {
        let id = self.next;
        self.next = id.next();
        self.list.push(Waiter::current(id, timestamp));
        id
    }

    /// Removes a waiter, unless it has been taken.
    pub(super) fn remove(&mut self, id: WaiterId) {
        self.list.retain(|waiter| waiter.id != id);
    }

    /// Takes the newest waiter.
    pub(super) fn pop(&mut self) -> Option<Waiter> {
        self.list.pop()
    }

    /// Takes the waiters for timestamps below `floor`, or all waiters if it is `None`.
    pub(super) fn take_below(&mut self, floor: Option<Timestamp>) -> Vec<Waiter> {
        self.list.extract_if(.., |waiter| floor.is_none_or(|floor| waiter.timestamp < floor)).collect()
    }

    pub(super) fn take_all(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.list)
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
