//! Waiting for memory in the order of asking.
//!
//! # Invariants
//! 1. Only the first in the queue takes what comes free; later callers join the queue behind it. So a large request is
//!    not overtaken for ever by small ones.
//! 2. The first is woken whenever something is released. It joins the queue before it looks, and a release looks at the
//!    queue afterwards; all four accesses are sequentially consistent: one of them sees the other.
//! 3. No waker is called or dropped with the lock held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use crate::sync::Mutex;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    queue: Mutex<Queue>,
    /// Those in the queue.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u64, Option<Waker>)>,
    ticket_next: u64,
}

impl Queue {
    /// The position of a ticket. Tickets ascend, and each is in the queue until its [`QueueTicket`] is dropped.
    fn position(&self, ticket: u64) -> usize {
        self.waiting.binary_search_by_key(&ticket, |(other, _)| *other).expect("in the queue until dropped")
    }
}

/// A place in the queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct QueueTicket<'t> {
    turns: &'t WaitQueue,
    ticket: u64,
}

impl WaitQueue {
    /// Returns `true` if the queue is not empty.
    #[inline]
    pub(crate) fn are_awaited(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Takes a place in the queue.
    pub(crate) fn join(&self) -> QueueTicket<'_> {
        let mut queue = self.queue.lock();
        let ticket = queue.ticket_next;
        queue.ticket_next += 1;
        queue.waiting.push_back((ticket, None));
        self.count.store(queue.waiting.len(), Ordering::SeqCst);
        QueueTicket { turns: self, ticket }
    }

    /// Something was given back.
    #[inline]
    pub(crate) fn announce(&self) {
        if self.are_awaited() {
            self.wake_first();
        }
    }

    #[cold]
    fn wake_first(&self) {
        let waker = self.queue.lock().waiting.front_mut().and_then(|(_, waker)| waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl QueueTicket<'_> {
    /// Polls `attempt` once it is this ticket's turn, until it returns a value. The waker is called when it is worth
    /// asking again.
    pub(crate) fn poll<T>(&self, waker: &Waker, attempt: impl FnOnce() -> Option<T>) -> Poll<T> {
        let (is_first, before) = {
            let mut queue = self.turns.queue.lock();
            let at = queue.position(self.ticket);
            (at == 0, queue.waiting[at].1.replace(waker.clone()))
        };
        drop(before);
        if !is_first {
            return Poll::Pending;
        }
        attempt().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        let left = {
            let mut queue = self.turns.queue.lock();
            let at = queue.position(self.ticket);
            let left = queue.waiting.remove(at);
            self.turns.count.store(queue.waiting.len(), Ordering::SeqCst);
            left
        };
        drop(left);
        self.turns.announce();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first gets what is there, the second only when the first has left.
    #[test]
    fn turns_are_taken_in_order() {
        let turns = WaitQueue::default();
        let (first, second) = (turns.join(), turns.join());
        let poll = |turn: &QueueTicket<'_>, value| turn.poll(Waker::noop(), || value);
        assert_eq!(poll(&second, Some(2)), Poll::Pending);
        assert_eq!(poll(&first, None::<i32>), Poll::Pending);
        assert_eq!(poll(&first, Some(1)), Poll::Ready(1));
        drop(first);
        assert_eq!(poll(&second, Some(2)), Poll::Ready(2));
        drop(second);
        assert!(!turns.are_awaited());
    }
}
