//! The row locks that calls and transactions hold, and the row locks that a batch will acquire.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::format::{KeyspaceId, Timestamp};
use crate::memory::{grown_capacity, reserve};
use crate::txn::TransactionId;
use crate::txn::engine::Engine;
use crate::txn::locks::{
    Granted, HeldBy, LockHash, LockMode, LockRequest, LockTable, SHARER_BYTES, WAITING_BYTES, lock_bytes,
};
use crate::txn::spilled::writes::SpilledWrites;
use crate::txn::spilled_locks::SpilledOwner;

/// The lock of one row, released on drop.
pub(crate) struct RowLock<'a> {
    table: &'a LockTable,
    pub(crate) owner: TransactionId,
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: &'a [u8],
    lock_hash: LockHash,
}

impl<'a> RowLock<'a> {
    /// Locks a row that `owner` has not locked yet. Returns an error if another transaction holds the lock.
    #[inline]
    pub(crate) fn try_new(
        table: &'a LockTable,
        owner: TransactionId,
        keyspace: KeyspaceId,
        key: &'a [u8],
    ) -> Result<RowLock<'a>, HeldBy> {
        let lock_hash = table.lock_hash(keyspace, key);
        table.try_lock_at(lock_hash, owner, keyspace, key)?;
        Ok(RowLock { table, owner, keyspace, key, lock_hash })
    }

    /// Takes over a lock that was granted.
    pub(crate) fn of_held(table: &'a LockTable, request: &LockRequest<'a>) -> RowLock<'a> {
        let LockRequest { owner, keyspace, key, .. } = *request;
        let lock_hash = table.lock_hash(keyspace, key);
        debug_assert_eq!(
            table.try_request(request),
            Ok(Granted::AlreadyHeld),
            "a row is not locked by the owner of its lock"
        );
        RowLock { table, owner, keyspace, key, lock_hash }
    }
}

impl Drop for RowLock<'_> {
    fn drop(&mut self) {
        self.table.unlock_at(self.lock_hash, self.owner, self.keyspace, self.key);
    }
}

/// The row locks of a transaction, released on drop.
pub(crate) struct RowLocks {
    pub(crate) engine: Arc<Engine>,
    owner: TransactionId,
    /// The keys, concatenated.
    key_bytes: Vec<u8>,
    /// The keyspace of each key, and the end of the key in `key_bytes`.
    keys: Vec<(KeyspaceId, usize)>,
    /// The row of a call that is waiting for its lock, or that has the lock but has not checked for a conflict yet.
    pub(crate) pending: Option<PendingLock>,
    /// The memory of the locks in the lock table.
    table_bytes: usize,
    /// The locks that a batch will acquire when it is committed. `None` in a transaction, which acquires a lock at each
    /// write.
    pub(crate) planned: Option<Planned>,
    /// A timestamp from before the first row was locked and read.
    pub(crate) since: Option<Timestamp>,
    /// The spilled changes, whose rows are locked without entries in the lock table.
    spilled: Option<Arc<SpilledOwner>>,
}

/// A row whose lock has been requested.
pub(crate) struct PendingLock {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: Box<[u8]>,
    /// `true` if the transaction already has a shared lock of the row and requests the exclusive lock.
    pub(crate) is_upgrade: bool,
}

/// Locks that will be acquired later.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planned {
    key_count: usize,
    key_bytes: usize,
    table_bytes: usize,
}

impl Planned {
    /// Adds a row to the rows that will be locked.
    pub(crate) fn add(&mut self, key: &[u8]) {
        self.key_count += 1;
        self.key_bytes += key.len();
        self.table_bytes += lock_bytes(key);
    }
}

impl RowLocks {
    pub(crate) fn new(engine: &Arc<Engine>, owner: TransactionId) -> RowLocks {
        let engine = Arc::clone(engine);
        let (key_bytes, keys) = (Vec::new(), Vec::new());
        RowLocks {
            engine,
            owner,
            key_bytes,
            keys,
            pending: None,
            table_bytes: 0,
            planned: None,
            since: None,
            spilled: None,
        }
    }

    /// Returns the memory that the locks would use with one more lock on `key`, including what the transaction needs if
    /// it has to wait for it.
    pub(crate) fn memory_bytes_with(&self, key: &[u8]) -> usize {
        let planned = self.planned.unwrap_or_default();
        let key_bytes = planned.key_bytes + grown_capacity(&self.key_bytes, key.len());
        let key_count = planned.key_count + grown_capacity(&self.keys, 1);
        let table_bytes = self.table_bytes + planned.table_bytes + lock_bytes(key);
        key_bytes + key_count * size_of::<(KeyspaceId, usize)>() + table_bytes + WAITING_BYTES + key.len()
    }

    /// Takes over the lock of a row.
    pub(crate) fn take(&mut self, lock: RowLock<'_>, mode: LockMode) {
        let lock = ManuallyDrop::new(lock);
        assert_eq!(lock.owner, self.owner, "a transaction takes the lock of another");
        self.add(lock.keyspace, lock.key, mode);
    }

    /// Records that the transaction holds the lock of a row.
    pub(crate) fn add(&mut self, keyspace: KeyspaceId, key: &[u8], mode: LockMode) {
        if self.since.is_none() {
            self.since = Some(self.engine.clock.published());
        }
        let end = self.keys.last().map_or(0, |(_, end)| *end);
        debug_assert_eq!(end, self.key_bytes.len(), "the key of a lock is not after the one before");
        reserve(&mut self.key_bytes, key.len());
        self.key_bytes.extend_from_slice(key);
        reserve(&mut self.keys, 1);
        self.keys.push((keyspace, self.key_bytes.len()));
        self.table_bytes += lock_bytes(key) + if mode == LockMode::Shared { SHARER_BYTES } else { 0 };
    }

    /// Publishes spilled changes as locks of their rows, and releases the locks of the rows that were spilled last.
    /// These are `spilled`, in any order; `is_spilled` returns `true` for them.
    pub(crate) fn spill<'k>(
        &mut self,
        writes: &SpilledWrites,
        mut spilled: impl Iterator<Item = (KeyspaceId, &'k [u8])>,
        is_spilled: impl Fn(KeyspaceId, &[u8]) -> bool,
    ) {
        assert!(self.planned.is_none(), "a batch locks rows that it has spilled");
        let engine = &self.engine;
        let owner = self.spilled.get_or_insert_with(|| engine.spilled_locks.add(self.owner, &engine.budget));
        assert_eq!(owner.id, self.owner, "a transaction spills as another");
        owner.publish(writes);
        let (mut key_bytes, mut keys) = (std::mem::take(&mut self.key_bytes), std::mem::take(&mut self.keys));
        self.table_bytes = 0;
        // Rows that are written in key order are locked in the same order, and need not be searched for.
        let mut next = spilled.next();
        let mut start = 0;
        for &(keyspace, end) in &keys {
            let key = &key_bytes[std::mem::replace(&mut start, end)..end];
            if next == Some((keyspace, key)) {
                next = spilled.next();
            } else if !is_spilled(keyspace, key) {
                // If a call whose future was dropped has released the lock, the mode is unknown. A shared lock takes
                // more memory.
                let mode = self.engine.locks.mode(keyspace, key).unwrap_or(LockMode::Shared);
                self.add(keyspace, key, mode);
                continue;
            }
            self.engine.locks.unlock(self.owner, keyspace, key);
        }
        if self.keys.is_empty() {
            // The next locks use the same memory.
            key_bytes.clear();
            keys.clear();
            (self.key_bytes, self.keys) = (key_bytes, keys);
        }
    }

    /// Makes room for planned locks.
    pub(crate) fn reserve(&mut self, planned: &Planned) {
        self.key_bytes.reserve_exact(planned.key_bytes);
        self.keys.reserve_exact(planned.key_count);
    }

    /// Releases the lock that was requested by a call whose future was leaked.
    pub(crate) fn end_pending(&mut self) {
        if let Some(PendingLock { keyspace, key, is_upgrade }) = self.pending.take() {
            let is_restored = self.spilled.as_ref().is_some_and(|spilled| spilled.has_restored(keyspace, &key));
            self.engine.locks.abandon(self.owner, keyspace, &key, is_upgrade || is_restored);
        }
    }
}

impl RowLocks {
    pub(crate) fn owner(&self) -> TransactionId {
        self.owner
    }

    /// Returns the rows whose locks the transaction holds, in the order in which it took them.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (KeyspaceId, &[u8])> {
        let end = self.keys.last().map_or(0, |(_, end)| *end);
        assert_eq!(end, self.key_bytes.len(), "a lock has a key that belongs to no row");
        let mut start = 0;
        self.keys.iter().map(move |&(keyspace, end)| {
            let key = &self.key_bytes[std::mem::replace(&mut start, end)..end];
            (keyspace, key)
        })
    }

    /// Returns the memory of the locks.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.key_bytes.capacity() + self.keys.capacity() * size_of::<(KeyspaceId, usize)>() + self.table_bytes
    }
}

impl RowLocks {
    fn release_all(&mut self) {
        self.end_pending();
        match self.spilled.take() {
            Some(spilled) => {
                self.engine.spilled_locks.remove(&spilled, &self.engine.locks);
                // Some of these may have been restored too.
                self.engine.locks.unlock_held(self.owner, self.rows());
            }
            None => self.engine.locks.unlock_all(self.owner, self.rows()),
        }
        assert!(self.spilled.is_none() && self.pending.is_none(), "locks are left");
        self.keys.clear();
        self.key_bytes.clear();
    }
}

impl Drop for RowLocks {
    fn drop(&mut self) {
        self.release_all();
    }
}

/// The row locks that a transaction or a call hands to its commit. The commit releases them once its changes are
/// published.
pub(crate) trait CommitLocks {
    /// Returns the locks of a transaction, which depends on all rows that it has locked.
    fn of_transaction(&self) -> Option<&RowLocks> {
        None
    }

    fn release(self);
}

impl CommitLocks for RowLock<'_> {
    fn release(self) {}
}

/// If the commit fails, the transaction keeps its locks.
impl CommitLocks for &mut RowLocks {
    fn of_transaction(&self) -> Option<&RowLocks> {
        Some(self)
    }

    fn release(self) {
        self.release_all();
    }
}

impl CommitLocks for () {
    fn release(self) {}
}
