//! The queue for space in a stream.

use std::collections::VecDeque;
use std::task::Waker;

/// The place of a reservation in a stream's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ticket(u64);

/// A thread or task that waits for space in a stream.
#[derive(Debug)]
struct Queued {
    ticket: Ticket,
    /// The waker of a task, or `None` for a thread, which waits on [`Stream::space`](super::stream::Stream::space).
    waker: Option<Waker>,
}

/// The waiting reservations of a stream, in first-come, first-served order. Each ticket is issued only once.
#[derive(Debug, Default)]
pub(super) struct Queue {
    list: VecDeque<Queued>,
    ticket_next: Ticket,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns `true` if the ticket is at the head of the queue.
    pub(super) fn is_first(&self, ticket: Ticket) -> bool {
        self.list.front().is_some_and(|first| first.ticket == ticket)
    }

    /// Adds a ticket at the end of the queue.
    pub(super) fn join(&mut self) -> Ticket {
        let ticket = self.ticket_next;
        debug_assert!(self.list.back().is_none_or(|last| last.ticket.0 < ticket.0), "tickets ascend");
        self.ticket_next = Ticket(ticket.0 + 1);
        self.list.push_back(Queued { ticket, waker: None });
        ticket
    }

    /// Removes a ticket from the queue. Returns the waker of its task, if it has one.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waker> {
        let index = self.list.iter().position(|queued| queued.ticket == ticket);
        self.list.remove(index.expect("who leaves the queue is in it")).and_then(|queued| queued.waker)
    }

    /// Stores the waker of the ticket's task. The task will be woken when it should check its turn again.
    pub(super) fn wake_later(&mut self, ticket: Ticket, waker: &Waker) {
        let queued = self.list.iter_mut().find(|queued| queued.ticket == ticket);
        assert!(queued.is_some(), "a task waits that has no place in the queue");
        if let Some(queued) = queued {
            queued.waker = Some(waker.clone());
        }
    }

    /// Takes the waker of the task at the head of the queue.
    pub(super) fn take_first_waker(&mut self) -> Option<Waker> {
        debug_assert!(self.list.iter().is_sorted_by_key(|queued| queued.ticket.0), "first come, first served");
        self.list.front_mut().and_then(|queued| queued.waker.take())
    }

    /// Takes the wakers of all tasks in the queue.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        self.list.iter_mut().filter_map(|queued| queued.waker.take()).collect()
    }
}
