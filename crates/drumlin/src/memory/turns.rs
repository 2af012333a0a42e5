//! A queue of threads and tasks that wait for memory, served in the order of their requests.
//!
//! # Invariants
//! 1. Only the waiter at the head of the queue takes memory that is freed; later callers queue up. So small requests
//!    cannot overtake a large one forever.
//! 2. The waiter at the head is woken whenever memory is released. A waiter joins the queue before it checks for
//!    memory, and a release returns the memory before it checks the queue. All four accesses are sequentially
//!    consistent, so either the waiter sees the memory or the release sees the waiter.
//! 3. No waker is called or dropped while the lock is held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use crate::sync::Mutex;

/// A queue of requests for memory. See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    queue: Mutex<Queue>,
    /// The length of the queue.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u64, Option<Waker>)>,
    ticket_next: u64,
}

impl Queue {
    /// Returns the index of a ticket. Tickets ascend, and each stays in the queue until its [`QueueTicket`] is dropped.
    fn position(&self, ticket: u64) -> usize {
        self.waiting.binary_search_by_key(&ticket, |(other, _)| *other).expect("in the queue until dropped")
    }
}

/// A place in the queue. Dropping it leaves the queue.
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

    /// Joins the end of the queue.
    pub(crate) fn join(&self) -> QueueTicket<'_> {
        let mut queue = self.queue.lock();
        let ticket = queue.ticket_next;
        queue.ticket_next += 1;
        queue.waiting.push_back((ticket, None));
        self.count.store(queue.waiting.len(), Ordering::SeqCst);
        QueueTicket { turns: self, ticket }
    }

    /// Announces that memory was returned. Wakes the waiter at the head of the queue.
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
    /// Calls `attempt` if this ticket is at the head of the queue. If `attempt` returns a value, returns that.
    /// Otherwise, the waker is called when the next poll may succeed.
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

    /// The first ticket gets the available memory. The second ticket gets memory only after the first has left the
    /// queue.
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
