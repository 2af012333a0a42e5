//! The transactions whose bodies the current thread is running. Such a transaction holds its row locks until its body
//! returns, so a call from the body that waited for one of these rows would never return.

use std::cell::RefCell;

use super::TransactionId;
use super::locks::LockTable;

thread_local! {
    static RUNNING: RefCell<Vec<BodyOf>> = const { RefCell::new(Vec::new()) };
}

/// The body of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BodyOf {
    /// The address of the lock table. The transaction's id is unique within this table, which outlives the body.
    locks: usize,
    transaction: TransactionId,
}

impl BodyOf {
    pub(crate) fn new(locks: &LockTable, transaction: TransactionId) -> BodyOf {
        BodyOf { locks: std::ptr::from_ref(locks).addr(), transaction }
    }

    /// Records that the thread is running the body until the returned guard is dropped. If the body is a future, this
    /// is called at each poll.
    pub(crate) fn enter(self) -> RunningBody {
        RUNNING.with_borrow_mut(|running| running.push(self));
        debug_assert!(self.is_running(), "a body that is entered is not found");
        RunningBody(self)
    }

    /// Returns `true` if the current thread is running the body.
    pub(crate) fn is_running(self) -> bool {
        RUNNING.with_borrow(|running| running.contains(&self))
    }
}

/// The guard of a running body; see [`BodyOf::enter`].
pub(crate) struct RunningBody(BodyOf);

impl Drop for RunningBody {
    fn drop(&mut self) {
        let left = RUNNING.with_borrow_mut(Vec::pop);
        assert_eq!(left, Some(self.0), "a body is left before one that it runs");
    }
}
