//! Changes on their way to those who subscribed to them, in the order of the transactions that made them.
//!
//! A transaction takes a *ticket* when its body has returned and its commit begins. Changes are delivered in the order
//! of tickets, once no smaller one is left. Where one transaction has seen or overwritten what another wrote, it did so
//! after the other's commit, and so its ticket is the larger.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// Locks; what a panicking thread leaves behind is whole, since nothing below a lock calls foreign code but wakers.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A document's new bytes, or none if it was removed.
#[derive(Clone)]
pub(crate) struct RawChange {
    pub(crate) key: Vec<u8>,
    pub(crate) document: Option<Arc<[u8]>>,
}

/// A change that is not committed yet.
pub(crate) struct PendingChange {
    pub(crate) channel: Arc<Channel>,
    pub(crate) change: RawChange,
}

/// The subscribers of one collection.
#[derive(Default)]
pub(crate) struct Channel {
    queues: Mutex<Vec<Arc<Queue>>>,
    queue_count: AtomicUsize,
}

impl Channel {
    pub(crate) fn has_subscribers(&self) -> bool {
        self.queue_count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn subscribe(&self, capacity: usize) -> Arc<Queue> {
        let queue = Arc::new(Queue { capacity: capacity.max(1), ..Queue::default() });
        let mut queues = lock(&self.queues);
        queues.push(Arc::clone(&queue));
        self.queue_count.store(queues.len(), Ordering::Release);
        queue
    }

    pub(crate) fn unsubscribe(&self, queue: &Arc<Queue>) {
        let mut queues = lock(&self.queues);
        queues.retain(|other| !Arc::ptr_eq(other, queue));
        self.queue_count.store(queues.len(), Ordering::Release);
    }

    fn deliver(&self, change: &RawChange) {
        for queue in lock(&self.queues).iter() {
            queue.push(change.clone());
        }
    }
}

/// The changes that a subscriber has not taken yet.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    filled: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct QueueState {
    changes: VecDeque<RawChange>,
    /// Changes that had no room, older than those in the queue.
    lost: u64,
    waker: Option<Waker>,
}

/// The next that a queue has.
pub(crate) enum Taken {
    Change(RawChange),
    Lost(u64),
}

impl QueueState {
    fn take(&mut self) -> Option<Taken> {
        if self.lost > 0 {
            return Some(Taken::Lost(std::mem::take(&mut self.lost)));
        }
        self.changes.pop_front().map(Taken::Change)
    }
}

impl Queue {
    fn push(&self, change: RawChange) {
        let mut state = lock(&self.state);
        if state.changes.len() == self.capacity {
            state.changes.pop_front();
            state.lost += 1;
        }
        state.changes.push_back(change);
        let waker = state.waker.take();
        drop(state);
        self.filled.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn try_take(&self) -> Option<Taken> {
        lock(&self.state).take()
    }

    /// Takes the next, and waits for it until `deadline`; for ever without one.
    pub(crate) fn take(&self, deadline: Option<Instant>) -> Option<Taken> {
        let mut state = lock(&self.state);
        loop {
            if let Some(taken) = state.take() {
                return Some(taken);
            }
            state = match deadline {
                None => self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
                    self.filled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    pub(crate) fn poll_take(&self, waker: &Waker) -> Option<Taken> {
        let mut state = lock(&self.state);
        let taken = state.take();
        if taken.is_none() {
            state.waker = Some(waker.clone());
        }
        taken
    }
}

/// Orders the changes of commits: see the head of this file.
#[derive(Default)]
pub(crate) struct Hub {
    tickets: Mutex<Tickets>,
}

#[derive(Default)]
struct Tickets {
    next: u64,
    /// The changes of each ticket once its commit has returned.
    committing: BTreeMap<u64, Option<Vec<PendingChange>>>,
}

impl Hub {
    /// The commit of a transaction, before it begins.
    pub(crate) fn commit(self: &Arc<Hub>) -> Committing {
        Committing { hub: Arc::clone(self), ticket: None, changes: Vec::new() }
    }

    fn end(&self, ticket: u64, changes: Vec<PendingChange>) {
        let mut tickets = lock(&self.tickets);
        let entry = tickets.committing.insert(ticket, Some(changes));
        debug_assert!(matches!(entry, Some(None)), "a ticket ends once");
        // Delivered under the lock, so that nothing comes between.
        while let Some(first) = tickets.committing.first_entry() {
            if first.get().is_none() {
                break;
            }
            for pending in first.remove().into_iter().flatten() {
                pending.channel.deliver(&pending.change);
            }
        }
    }
}

/// One commit, and its ticket from the moment at which it begins. Dropping it cancels the ticket.
pub(crate) struct Committing {
    hub: Arc<Hub>,
    ticket: Option<u64>,
    changes: Vec<PendingChange>,
}

impl Committing {
    /// The transaction's body has returned: its commit begins.
    pub(crate) fn begin(&mut self, changes: Vec<PendingChange>) {
        self.cancel();
        if changes.is_empty() {
            return;
        }
        let mut tickets = lock(&self.hub.tickets);
        let ticket = tickets.next;
        tickets.next += 1;
        tickets.committing.insert(ticket, None);
        drop(tickets);
        (self.ticket, self.changes) = (Some(ticket), changes);
    }

    /// The commit has failed, or not begun.
    pub(crate) fn cancel(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.hub.end(ticket, Vec::new());
        }
    }

    /// The commit has returned.
    pub(crate) fn publish(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.hub.end(ticket, std::mem::take(&mut self.changes));
        }
    }
}

impl Drop for Committing {
    fn drop(&mut self) {
        self.cancel();
    }
}
