//! Turns: the amount of work that a thread does for tasks before giving its executor a chance to run other tasks.
//!
//! A task whose pages are in memory never has to wait, but an executor regains control of its thread only when a future
//! returns. So tasks count their work. A task that uses up the turn wakes itself and returns `Pending` once.
//!
//! # Invariants
//! 1. The count belongs to the thread. A loop of `get_async` consists of thousands of calls, each only a microsecond
//!    long, and a library cannot tell which task it is running in.
//! 2. The count depends only on the calls, not on a clock, so that a simulation is repeatable.
//! 3. Yielding begins the next turn. So the next poll makes progress on any executor, and a call that is dropped and
//!    then repeated has a whole turn.
//! 4. A call yields before it begins a piece of work, never between the work and its result. So nothing is lost if a
//!    future is dropped while it yields.
//! 5. When a call has begun, at least [`CALL_UNITS_MAX`] units are left. If the call needs no more than that and waits
//!    for nothing else, it completes without yielding a second time.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The length of a turn, in units. A unit is about 0.1 µs, so a turn takes about 15 µs, and yielding costs little
/// compared with that. The turn is no longer because executors check timers and sockets only after many polls. For
/// example, tokio does so after 61 polls, which take a millisecond with turns of this length.
/// Measured: decision 034.
const TURN_UNITS: u32 = 160;

/// The number of units that a turn must have left for a call to begin in it.
const CALL_UNITS_MAX: u32 = 40;

/// The overhead of a call, in units.
/// Measured: decision 034, together with [`TURN_UNITS`].
pub(crate) const CALL_UNITS: u32 = 3;
/// The cost of descending to a leaf, in units.
/// Measured: decision 034, together with [`TURN_UNITS`].
pub(crate) const LEAF_UNITS: u32 = 8;
/// The cost of copying a row out of a leaf or passing it to a closure, in units.
/// Measured: decision 034, together with [`TURN_UNITS`].
pub(crate) const ROW_UNITS: u32 = 1;
/// The cost of locking a row for a commit, in units.
/// Measured: decision 034, together with [`TURN_UNITS`].
pub(crate) const LOCK_UNITS: u32 = 1;
/// The cost of committing a row, in units.
/// Measured: decision 034, together with [`TURN_UNITS`].
pub(crate) const CHANGE_UNITS: u32 = 20;
/// The number of bytes copied in one unit.
/// Measured: decision 034, together with [`TURN_UNITS`].
const UNIT_BYTES: usize = 1 << 10;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(TURN_UNITS) };
}

/// Returns the cost of copying `bytes`, in units.
#[inline]
pub(crate) fn units_of_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX)
}

/// Charges this thread's turn for finished work.
#[inline]
pub(crate) fn count(units: u32) {
    LEFT.with(|left| left.set(left.get().saturating_sub(units)));
}

/// Work that is about to begin. As a future, it is ready immediately unless the turn is over.
#[derive(Debug)]
pub(crate) struct Work {
    /// `None` for a blocking call, which has no turns.
    units: Option<u32>,
    /// The number of units that must be left for the work to begin.
    left_min: u32,
    has_yielded: bool,
}

impl Work {
    pub(super) const BLOCKING: Work = Work { units: None, left_min: 0, has_yielded: false };

    /// Returns a piece of work within a call. Work that is longer than a turn begins only when a whole turn is left.
    pub(super) fn piece(units: u32) -> Work {
        Work { units: Some(units), left_min: units.clamp(1, TURN_UNITS), has_yielded: false }
    }

    /// Returns the work of starting a call. It costs [`CALL_UNITS`], and begins only if at least [`CALL_UNITS_MAX`]
    /// units of the turn are left.
    pub(crate) fn call() -> Work {
        Work { units: Some(CALL_UNITS), left_min: CALL_UNITS_MAX, has_yielded: false }
    }
}

impl Future for Work {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(units) = self.units else { return Poll::Ready(()) };
        if !self.has_yielded && LEFT.with(|left| left.get() < self.left_min) {
            self.has_yielded = true;
            LEFT.with(|left| left.set(TURN_UNITS));
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        count(units);
        Poll::Ready(())
    }
}
