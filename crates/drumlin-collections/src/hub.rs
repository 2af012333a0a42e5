//! Delivers changes to subscribers in the order of the transactions that made the changes.
//!
//! A transaction takes a *ticket* after its body has returned, when its commit begins. Changes are delivered in ticket
//! order: the changes of a ticket wait until all smaller tickets have ended. If a transaction saw or overwrote a write
//! of another transaction, it did so after the other's commit, so it has the larger ticket.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// Locks a mutex and ignores poisoning. The data is consistent even after a panic, because wakers are the only foreign
/// code that runs under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A change to a document: its key and its new row, or `None` if the document was removed.
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

    fn deliver(&self, change: Option<&RawChange>) {
        for queue in lock(&self.queues).iter() {
            queue.push(change.cloned());
        }
    }
}

/// The queue of changes that a subscriber has not received yet.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    filled: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct QueueState {
    changes: VecDeque<RawChange>,
    /// The number of lost changes. All of them are older than the queued changes.
    lost: u64,
    waker: Option<Waker>,
}

/// An event taken from a queue.
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
    /// Adds a change. `None` stands for a lost change; all queued changes then count as lost too.
    fn push(&self, change: Option<RawChange>) {
        let mut state = lock(&self.state);
        match change {
            None => {
                state.lost += 1 + state.changes.len() as u64;
                state.changes.clear();
            }
            Some(change) => {
                if state.changes.len() == self.capacity {
                    state.changes.pop_front();
                    state.lost += 1;
                }
                state.changes.push_back(change);
            }
        }
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

    /// Takes the next event. Waits for it until `deadline`, or indefinitely if there is no deadline.
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

/// Delivers the changes of commits in ticket order: see the module documentation.
#[derive(Default)]
pub(crate) struct Hub {
    tickets: Mutex<Tickets>,
}

#[derive(Default)]
struct Tickets {
    next: u64,
    /// The tickets whose changes have not been delivered yet, in order, each with the outcome of its commit, or `None`
    /// if the commit has not returned yet.
    committing: BTreeMap<u64, Option<End>>,
}

/// The outcome of a commit that has returned, along with its changes.
enum End {
    Committed(Vec<PendingChange>),
    Failed,
    /// The transaction may or may not have been committed.
    Unknown(Vec<PendingChange>),
}

impl End {
    fn deliver(self) {
        match self {
            End::Failed => {}
            End::Committed(changes) => {
                changes.iter().for_each(|pending| pending.channel.deliver(Some(&pending.change)));
            }
            End::Unknown(changes) => changes.iter().for_each(|pending| pending.channel.deliver(None)),
        }
    }
}

impl Hub {
    /// Creates the guard for a commit that has not begun yet.
    pub(crate) fn commit(self: &Arc<Hub>) -> Committing {
        Committing { hub: Arc::clone(self), ticket: None, changes: Vec::new() }
    }

    fn end(&self, ticket: u64, end: End) {
        let mut tickets = lock(&self.tickets);
        let entry = tickets.committing.insert(ticket, Some(end));
        debug_assert!(matches!(entry, Some(None)), "a ticket ends once");
        // Deliver under the lock, so no other thread can deliver changes in between.
        while let Some(first) = tickets.committing.first_entry() {
            if first.get().is_none() {
                break;
            }
            first.remove().into_iter().for_each(End::deliver);
        }
    }
}

/// One commit. It holds a ticket from its beginning until its outcome is known. If it is dropped before that, the
/// outcome remains unknown, and its changes count as lost.
pub(crate) struct Committing {
    hub: Arc<Hub>,
    ticket: Option<u64>,
    changes: Vec<PendingChange>,
}

impl Committing {
    /// Begins the commit, after the transaction's body has returned. Takes a ticket if there are changes.
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

    /// Ends a commit that failed or never began.
    pub(crate) fn cancel(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.hub.end(ticket, End::Failed);
        }
    }

    /// Ends a commit that succeeded, and delivers its changes in ticket order.
    pub(crate) fn publish(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.hub.end(ticket, End::Committed(std::mem::take(&mut self.changes)));
        }
    }
}

impl Drop for Committing {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.hub.end(ticket, End::Unknown(std::mem::take(&mut self.changes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Channel, Hub, PendingChange, RawChange, Taken};

    fn changes(channel: &Arc<Channel>, keys: &[u8]) -> Vec<PendingChange> {
        let change = |key: &u8| RawChange { key: vec![*key], document: None };
        keys.iter().map(|key| PendingChange { channel: Arc::clone(channel), change: change(key) }).collect()
    }

    /// Changes wait until all smaller tickets have ended, whatever their outcome. If the outcome of a commit is
    /// unknown, its changes count as lost, and so do all changes queued before them.
    #[test]
    fn changes_follow_their_tickets() {
        let (hub, channel) = (Arc::<Hub>::default(), Arc::<Channel>::default());
        let queue = channel.subscribe(10);
        let mut commits: Vec<_> = (0..4).map(|_| hub.commit()).collect();
        for (number, commit) in commits.iter_mut().enumerate() {
            commit.begin(changes(&channel, &[number as u8]));
        }
        commits[2].publish();
        commits[1].publish();
        assert!(queue.try_take().is_none());
        commits[0].cancel();
        for key in [1, 2] {
            assert!(matches!(queue.try_take(), Some(Taken::Change(change)) if change.key == [key]));
        }
        let mut last = hub.commit();
        last.begin(changes(&channel, &[4, 5]));
        last.publish();
        let mut unknown = commits.pop().unwrap();
        unknown.begin(changes(&channel, &[6]));
        assert!(matches!(queue.try_take(), Some(Taken::Change(change)) if change.key == [4]));
        drop(unknown);
        assert!(matches!(queue.try_take(), Some(Taken::Lost(2))));
        assert!(queue.try_take().is_none());
    }
}
