//! The row locks that a transaction holds, and those that a batch will take.

use std::sync::Arc;

use crate::format::KeyspaceId;
use crate::memory::{grown_capacity, reserve};
use crate::txn::TransactionId;
use crate::txn::engine::Engine;
use crate::txn::locks::{WAITING_BYTES, lock_bytes};

/// The row locks of a transaction, released on drop.
pub(super) struct Locks {
    pub(super) engine: Arc<Engine>,
    owner: TransactionId,
    /// The keys, concatenated.
    key_bytes: Vec<u8>,
    /// The keyspace of each key, and the end of the key in `key_bytes`.
    keys: Vec<(KeyspaceId, usize)>,
    /// The row of a call that waits for its lock, or holds it but has not checked for a conflict yet.
    pub(super) pending: Option<(KeyspaceId, Box<[u8]>)>,
    /// Memory of the locks in the lock table.
    table_bytes: usize,
    /// The locks that a batch will take when it is committed. `None` in a transaction, which takes them at each write.
    pub(super) planned: Option<Planned>,
}

/// Locks that will be taken later.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Planned {
    key_count: usize,
    key_bytes: usize,
    table_bytes: usize,
}

impl Planned {
    /// Plans the lock of another row.
    pub(super) fn add(&mut self, key: &[u8]) {
        self.key_count += 1;
        self.key_bytes += key.len();
        self.table_bytes += lock_bytes(key);
    }
}

impl Locks {
    pub(super) fn new(engine: &Arc<Engine>, owner: TransactionId) -> Locks {
        let engine = Arc::clone(engine);
        let (key_bytes, keys) = (Vec::new(), Vec::new());
        Locks { engine, owner, key_bytes, keys, pending: None, table_bytes: 0, planned: None }
    }

    /// Returns the memory with one more lock, which may have to be waited for.
    pub(super) fn memory_bytes_with(&self, key: &[u8]) -> usize {
        let planned = self.planned.unwrap_or_default();
        let key_bytes = planned.key_bytes + grown_capacity(&self.key_bytes, key.len());
        let key_count = planned.key_count + grown_capacity(&self.keys, 1);
        let table_bytes = self.table_bytes + planned.table_bytes + lock_bytes(key);
        key_bytes + key_count * size_of::<(KeyspaceId, usize)>() + table_bytes + WAITING_BYTES + key.len()
    }

    /// Records that the lock of a row is held.
    pub(super) fn add(&mut self, keyspace: KeyspaceId, key: &[u8]) {
        reserve(&mut self.key_bytes, key.len());
        self.key_bytes.extend_from_slice(key);
        reserve(&mut self.keys, 1);
        self.keys.push((keyspace, self.key_bytes.len()));
        self.table_bytes += lock_bytes(key);
    }

    /// Makes room for planned locks.
    pub(super) fn reserve(&mut self, planned: &Planned) {
        self.key_bytes.reserve_exact(planned.key_bytes);
        self.keys.reserve_exact(planned.key_count);
    }

    /// Releases the lock of a call whose future was leaked.
    pub(super) fn end_pending(&mut self) {
        if let Some((keyspace, key)) = self.pending.take() {
            self.engine.locks.abandon(self.owner, keyspace, &key);
        }
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.end_pending();
        let end = self.keys.last().map_or(0, |(_, end)| *end);
        assert_eq!(end, self.key_bytes.len(), "a lock has a key that belongs to no row");
        let mut start = 0;
        let keys = self.keys.iter().map(|&(keyspace, end)| {
            let key = &self.key_bytes[std::mem::replace(&mut start, end)..end];
            (keyspace, key)
        });
        self.engine.locks.unlock_all(self.owner, keys);
    }
}
