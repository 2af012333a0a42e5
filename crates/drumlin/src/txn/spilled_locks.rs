//! Row locks of transactions whose changes are spilled.
//!
//! Each lock in the lock table takes about a hundred bytes of memory. A transaction that spills its changes
//! (`txn/spilled/writes.rs`) therefore removes the locks of these rows from the table. The rows stay locked, because
//! every writer also looks for its row in the spilled changes of the other transactions, once it has acquired the lock.
//! If it finds the row there, it *restores* the lock: it puts the lock of the other transaction into the table in place
//! of its own, and waits for it in the usual way. So queues, deadlocks, timeouts and interrupts are those of the lock
//! table. Waiters in the queue of the replaced lock request it again. A writer that shares its lock with others
//! releases it instead, and requests the exclusive lock, which it gets after the others have ended.
//!
//! # Why this is correct
//! - A transaction publishes its parts before it releases the locks of their rows, and a writer looks for parts after
//!   it has acquired the lock. So one of the two sees the other.
//! - A transaction releases its restored locks after it has withdrawn its parts. A writer that comes later finds
//!   neither.
//! - A writer that has to give back a lock has not read or changed the row.
//! - No two writers hand the lock to and fro: either it is replaced, or the writer comes after those that share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use super::TransactionId;
use super::locks::LockTable;
use super::spilled::writes::SpilledWrites;
use crate::error::{Error, Result};
use crate::format::KeyspaceId;
use crate::memory::{Account, Budget, Grant};
use crate::sync::Mutex;
use crate::txn::locks::lock_bytes;

/// The transactions that have spilled changes.
#[derive(Debug, Default)]
pub(crate) struct SpilledLocks {
    count: AtomicUsize,
    owners: Mutex<Vec<Arc<SpilledOwner>>>,
}

/// A transaction with spilled changes.
#[derive(Debug)]
pub(crate) struct SpilledOwner {
    pub(crate) id: TransactionId,
    writes: Mutex<SpilledWrites>,
    restored: Mutex<RestoredLocks>,
}

/// The locks that other transactions have put into the lock table for this one.
#[derive(Debug)]
struct RestoredLocks {
    has_ended: bool,
    rows: Vec<(KeyspaceId, Box<[u8]>)>,
    /// The memory of `rows` and of their locks.
    bytes: u64,
    memory: Grant,
}

impl SpilledLocks {
    /// Returns `true` if a transaction has spilled changes.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Returns `true` if another transaction than this one may have spilled a change of the row. Reads nothing, so
    /// `true` does not mean that it has. The caller has acquired the row's lock.
    #[inline]
    pub(crate) fn may_have_row(&self, id: TransactionId, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.has_any() && self.any_may_have_row(id, keyspace, key)
    }

    #[cold]
    fn any_may_have_row(&self, id: TransactionId, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let owners = self.owners.lock();
        owners.iter().any(|owner| owner.id != id && owner.writes.lock().may_have_row(keyspace, key))
    }

    /// Adds a transaction that will publish spilled changes.
    pub(crate) fn add(&self, id: TransactionId, budget: &Arc<Budget>) -> Arc<SpilledOwner> {
        let memory = budget.grant(Account::Transactions);
        let restored = Mutex::new(RestoredLocks { has_ended: false, rows: Vec::new(), bytes: 0, memory });
        let owner = Arc::new(SpilledOwner { id, writes: Mutex::default(), restored });
        let mut owners = self.owners.lock();
        assert!(owners.iter().all(|other| other.id != id), "a transaction spills as two");
        owners.push(Arc::clone(&owner));
        self.count.store(owners.len(), Ordering::SeqCst);
        owner
    }

    /// Withdraws the changes of a transaction that has ended, and releases its restored locks.
    pub(crate) fn remove(&self, owner: &SpilledOwner, locks: &LockTable) {
        // In a forked child, a mutex may have been locked by a thread that exists only in the parent.
        if !locks.is_here() {
            return;
        }
        {
            let mut owners = self.owners.lock();
            let before = owners.len();
            owners.retain(|other| other.id != owner.id);
            assert_eq!(owners.len() + 1, before, "a transaction ends that has spilled nothing");
            self.count.store(owners.len(), Ordering::SeqCst);
        }
        let mut restored = owner.restored.lock();
        assert!(!restored.has_ended, "a transaction ends twice");
        restored.has_ended = true;
        let rows = std::mem::take(&mut restored.rows);
        drop(restored);
        // The transaction itself may have released such a lock, with that of a call whose future was dropped.
        locks.unlock_held(owner.id, rows.iter().map(|(keyspace, key)| (*keyspace, &key[..])));
    }

    /// Returns the transactions except this one that have spilled changes.
    pub(crate) fn others(&self, id: TransactionId) -> Vec<Arc<SpilledOwner>> {
        self.owners.lock().iter().filter(|owner| owner.id != id).cloned().collect()
    }

    /// Returns `true` if a transaction may have spilled changes of the keyspace.
    pub(crate) fn has_any_in(&self, keyspace: KeyspaceId) -> bool {
        self.has_any() && self.owners.lock().iter().any(|owner| owner.writes().may_have(keyspace))
    }
}

impl SpilledOwner {
    /// Returns the published changes.
    pub(crate) fn writes(&self) -> SpilledWrites {
        self.writes.lock().clone()
    }

    /// Publishes changes. Afterwards, their rows stay locked without an entry in the lock table.
    pub(crate) fn publish(&self, writes: &SpilledWrites) {
        assert!(!writes.is_empty(), "a transaction publishes no changes");
        let before = std::mem::replace(&mut *self.writes.lock(), writes.clone());
        drop(before);
    }

    /// Returns `true` if another transaction has put the lock of this row into the lock table.
    pub(crate) fn has_restored(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.restored.lock().rows.iter().any(|(of, row)| (*of, &row[..]) == (keyspace, key))
    }

    /// Puts the exclusive lock of a spilled row into the lock table: in place of the giver's lock, or if nobody has
    /// locked the row. Returns `false` if the transaction has ended or others have locked the row.
    pub(crate) fn restore(
        &self,
        locks: &LockTable,
        giver: Option<TransactionId>,
        keyspace: KeyspaceId,
        key: &[u8],
    ) -> Result<bool> {
        let mut restored = self.restored.lock();
        if restored.has_ended {
            return Ok(false);
        }
        let row_bytes = lock_bytes(key) + 2 * size_of::<(KeyspaceId, Box<[u8]>)>() + key.len();
        let bytes = restored.bytes + row_bytes as u64;
        if !restored.memory.cover(bytes) {
            return Err(Error::transactions_in_memory(restored.memory.limit_bytes()));
        }
        let Some(wakers) = locks.restore(self.id, giver, keyspace, key) else { return Ok(false) };
        crate::coverage::mark!("the lock of a spilled row was restored");
        restored.rows.push((keyspace, key.into()));
        restored.bytes = bytes;
        debug_assert!(restored.memory.bytes() >= bytes, "a lock is restored without memory");
        drop(restored);
        wakers.into_iter().for_each(Waker::wake);
        Ok(true)
    }
}
