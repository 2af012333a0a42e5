//! Turns: the work that a thread does for tasks between two moments at which its executor can look at others.
//!
//! A task whose pages are in memory finds nothing to wait for, and an executor gets its thread back only when a future
//! returns. So tasks count their work, and the one that finds the turn over wakes itself and returns once.
//!
//! # Invariants
//! 1. The count is the thread's. A loop of `get_async` is thousands of calls of a microsecond, none of which is long by
//!    itself; and nothing tells a library which task it runs in.
//! 2. The count follows from the calls alone, not from a clock: a simulation runs the same way again.
//! 3. Giving way begins the next turn. So a future that is polled again goes on, by any executor, and a call that is
//!    made again after it was dropped has a whole turn.
//! 4. A call gives way before it does a piece of work, never between the piece and its result: a future that is dropped
//!    there loses nothing.
//! 5. [`CALL_MAX`] units are left when a call begins. One that needs no more, and waits for nothing else, is ready at
//!    its first poll from there on.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Units of a turn. A unit is about 0.1 us, so that a turn takes some 15 us, and giving way costs little beside it. It
/// is not longer because executors look at timers and sockets only after many polls: tokio after 61, which are a
/// millisecond of such turns.
const TURN: u32 = 160;

/// Units that are left when a call begins.
const CALL_MAX: u32 = 40;

/// A call of its own, with what surrounds its work.
pub(crate) const CALL: u32 = 3;
/// Going down to a leaf.
pub(crate) const LEAF: u32 = 8;
/// A row that is copied out of a leaf, or shown.
pub(crate) const ROW: u32 = 1;
/// A row that is locked for a commit.
pub(crate) const LOCK: u32 = 1;
/// A row that is committed.
pub(crate) const CHANGE: u32 = 20;
/// Bytes that are copied in a unit.
const UNIT_BYTES: usize = 1 << 10;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(TURN) };
}

/// Units that copying so many bytes takes.
#[inline]
pub(crate) fn units_of_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX)
}

/// Counts work that was done.
#[inline]
pub(crate) fn count(units: u32) {
    LEFT.with(|left| left.set(left.get().saturating_sub(units)));
}

/// Work that is about to be done: ready at once while the turn lasts.
#[derive(Debug)]
pub(crate) struct Work {
    /// `None` for a call that blocks, which has no turns.
    units: Option<u32>,
    /// Units that have to be left for it.
    left_min: u32,
    gave_way: bool,
}

impl Work {
    pub(super) const BLOCKING: Work = Work { units: None, left_min: 0, gave_way: false };

    /// A piece of a call. One of more than a turn takes a whole one.
    pub(super) fn piece(units: u32) -> Work {
        Work { units: Some(units), left_min: units.clamp(1, TURN), gave_way: false }
    }

    /// The beginning of a call.
    pub(super) fn call() -> Work {
        Work { units: Some(CALL), left_min: CALL_MAX, gave_way: false }
    }
}

impl Future for Work {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(units) = self.units else { return Poll::Ready(()) };
        if !self.gave_way && LEFT.with(|left| left.get() < self.left_min) {
            self.gave_way = true;
            LEFT.with(|left| left.set(TURN));
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        count(units);
        Poll::Ready(())
    }
}
