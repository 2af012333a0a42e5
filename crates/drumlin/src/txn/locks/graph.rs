//! The graph of waits. A cycle in it is a deadlock.
//!
//! A transaction that waits for a lock waits for every other holder of the lock. It also waits for the transactions
//! ahead of it in the queue, but those wait for the same holders, so they need no edges.

use std::collections::BTreeSet;

use crate::hash::{HashMap, HashSet};
use crate::txn::TransactionId;

/// The graph of waits.
#[derive(Default)]
pub(super) struct WaitGraph {
    locks_count: u64,
    /// The id of the lock for which each transaction waits.
    awaited: HashMap<TransactionId, u64>,
    /// The holders of each lock that has a queue, as pairs of lock id and holder.
    holders: BTreeSet<(u64, TransactionId)>,
}

impl WaitGraph {
    /// Adds a lock that is about to have a queue. Returns its id, which is never 0.
    pub(super) fn add_lock(&mut self, holders: impl Iterator<Item = TransactionId>) -> u64 {
        self.locks_count += 1;
        let number = self.locks_count;
        self.holders.extend(holders.map(|holder| (number, holder)));
        debug_assert!(self.holders_of(number).next().is_some(), "a lock that nobody holds has a queue");
        number
    }

    /// Removes a lock whose queue is empty.
    pub(super) fn remove_lock(&mut self, number: u64) {
        debug_assert!(
            !self.awaited.values().any(|awaited| *awaited == number),
            "a transaction waits for a lock that has no queue"
        );
        let holders: Vec<TransactionId> = self.holders_of(number).collect();
        for holder in holders {
            self.remove_holder(number, holder);
        }
    }

    pub(super) fn add_holder(&mut self, number: u64, holder: TransactionId) {
        let is_new = self.holders.insert((number, holder));
        assert!(is_new, "a transaction is given a lock that it holds");
    }

    pub(super) fn remove_holder(&mut self, number: u64, holder: TransactionId) {
        let was_there = self.holders.remove(&(number, holder));
        assert!(was_there, "the graph of waits does not know a holder of a lock");
    }

    pub(super) fn begin_wait(&mut self, waiter: TransactionId, number: u64) {
        let before = self.awaited.insert(waiter, number);
        assert_eq!(before, None, "a transaction waits for two locks");
    }

    pub(super) fn end_wait(&mut self, waiter: TransactionId, number: u64) {
        let awaited = self.awaited.remove(&waiter);
        assert_eq!(awaited, Some(number), "a transaction is in the queue of another lock than it waits for");
    }

    fn holders_of(&self, number: u64) -> impl Iterator<Item = TransactionId> {
        let all = (number, TransactionId(0))..=(number, TransactionId(u64::MAX));
        self.holders.range(all).map(|(_, holder)| *holder)
    }

    /// Returns `true` if one of the holders waits for `requester`, directly or through other transactions. O(waiting
    /// transactions).
    pub(super) fn leads(&self, holders: impl Iterator<Item = TransactionId>, requester: TransactionId) -> bool {
        let mut pending: Vec<TransactionId> = holders.filter(|holder| *holder != requester).collect();
        let mut seen: HashSet<TransactionId> = pending.iter().copied().collect();
        while let Some(holder) = pending.pop() {
            if holder == requester {
                return true;
            }
            if let Some(number) = self.awaited.get(&holder) {
                pending.extend(self.holders_of(*number).filter(|next| seen.insert(*next)));
            }
        }
        false
    }

    /// Returns the number of waiting transactions, and the number of locks with a queue.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.awaited.len(), self.holders.iter().map(|(number, _)| number).collect::<BTreeSet<_>>().len())
    }
}
