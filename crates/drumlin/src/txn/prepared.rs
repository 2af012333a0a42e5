//! Prepared transactions: their changes are durable and invisible, and their rows stay locked, until a later call
//! commits or aborts them.
//!
//! The changes are rows of the hidden keyspace [`KeyspaceId::PREPARED`] (`format/prepared.rs`). The table in this file
//! has what an open database knows about each of them: its row locks, and whether a call is deciding about it.
//!
//! ```text
//!            reserve            keep                     take               end
//! (no entry) ------> preparing ------> prepared <-----> deciding ------> (no entry)
//!      ^                |                       (dropped)
//!      +--- (dropped) --+
//! ```
//!
//! # Invariants
//! 1. An entry is *prepared* or *deciding* exactly if the hidden keyspace has the transaction's rows, up to commits
//!    that are being applied. An opening enters the rows that it finds.
//! 2. At most one call decides about a transaction, so no other call reads or changes its rows in the hidden keyspace.
//! 3. The row locks of an entry are released after the commit or abort is published.
//! 4. A keyspace is not dropped while an entry names it: [`PreparedTransactions::begin_drop`] and
//!    [`PreparedTransactions::reserve`] look at each other's notes under one mutex.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::prepared::ID_BYTES_MAX;
use crate::format::{KeyspaceId, Timestamp};
use crate::memory::Grant;
use crate::sync::Mutex;
use crate::txn::TransactionId;
use crate::txn::row_locks::RowLocks;

/// The locks of a prepared transaction, with their memory.
pub(crate) struct HeldLocks {
    pub(crate) locks: RowLocks,
    pub(crate) memory: Grant,
}

/// The facts about a prepared transaction that do not change.
#[derive(Clone, Debug)]
pub(crate) struct PreparedFacts {
    /// The id under which the lock table knows the transaction.
    pub(crate) owner: TransactionId,
    /// The time of the prepare, since 1970.
    pub(crate) time: Duration,
    pub(crate) row_count: u32,
    /// The number of its large values.
    pub(crate) value_count: u32,
    /// The length of its changes in the hidden keyspace.
    pub(crate) changes_bytes: usize,
    /// The timestamp of the prepare, or 0 if it precedes the opening.
    pub(crate) timestamp: Timestamp,
}

struct Entry {
    /// The id under which the lock table knows the transaction.
    owner: TransactionId,
    /// The keyspaces of the rows that it has changed or locked.
    keyspaces: Vec<KeyspaceId>,
    /// `None` while the transaction is being prepared.
    facts: Option<PreparedFacts>,
    /// `None` while the transaction is being prepared, or while a call decides about it.
    held: Option<HeldLocks>,
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<Box<[u8]>, Entry>,
    /// The keyspaces that are being dropped.
    dropping: Vec<KeyspaceId>,
}

/// The prepared transactions of an open database.
#[derive(Default)]
pub(crate) struct PreparedTransactions {
    table: Mutex<Table>,
}

impl std::fmt::Debug for PreparedTransactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PreparedTransactions({})", self.table.lock().entries.len())
    }
}

/// Returns an error unless this can be the id of a prepared transaction.
pub(crate) fn check_id(id: &[u8]) -> Result<()> {
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        let hint = format!("an id of {} bytes can't name a prepared transaction: ids have 1 to 140 bytes", id.len());
        return Err(Error::Invalid(hint));
    }
    Ok(())
}

impl PreparedTransactions {
    /// Reserves an id for a transaction that is about to be prepared and has locked rows of these keyspaces. Dropping
    /// the result gives the id up.
    pub(crate) fn reserve<'p>(
        &'p self,
        id: &'p [u8],
        owner: TransactionId,
        keyspaces: Vec<KeyspaceId>,
    ) -> Result<ReservedId<'p>> {
        assert!(check_id(id).is_ok(), "an id of {} bytes is reserved", id.len());
        debug_assert!(keyspaces.is_sorted_by(|left, right| left < right), "a keyspace is listed twice");
        let mut table = self.table.lock();
        if table.entries.contains_key(id) {
            return Err(Error::AlreadyPrepared { id: id.to_vec() });
        }
        if keyspaces.iter().any(|keyspace| table.dropping.contains(keyspace)) {
            return Err(Error::Conflict { reason: "a keyspace of the transaction is being dropped" });
        }
        table.entries.insert(id.into(), Entry { owner, keyspaces, facts: None, held: None });
        Ok(ReservedId { all: self, id, is_kept: false })
    }

    /// Takes a prepared transaction for a call that will commit or abort it. Dropping the result leaves the transaction
    /// prepared.
    pub(crate) fn take<'p>(&'p self, id: &'p [u8]) -> Result<TakenTransaction<'p>> {
        let mut table = self.table.lock();
        let entry = table.entries.get_mut(id);
        let Some((entry, facts)) = entry.and_then(|entry| entry.facts.clone().map(|facts| (entry, facts))) else {
            return Err(Error::NotPrepared { id: id.to_vec() });
        };
        let Some(held) = entry.held.take() else { return Err(Error::PreparedInUse { id: id.to_vec() }) };
        assert!(held.locks.owner() == facts.owner, "a prepared transaction has the locks of another");
        Ok(TakenTransaction { all: self, id, facts, held: Some(held) })
    }

    /// Returns the prepared transactions in the order of their ids.
    pub(crate) fn list(&self) -> Vec<(Vec<u8>, PreparedFacts)> {
        let table = self.table.lock();
        table.entries.iter().filter_map(|(id, entry)| Some((id.to_vec(), entry.facts.clone()?))).collect()
    }

    /// Returns the facts about a prepared transaction.
    pub(crate) fn facts(&self, id: &[u8]) -> Option<PreparedFacts> {
        self.table.lock().entries.get(id)?.facts.clone()
    }

    /// Returns `true` if a prepared transaction holds its locks under this number.
    pub(crate) fn is_owner(&self, owner: TransactionId) -> bool {
        let is_it = |entry: &Entry| entry.facts.as_ref().is_some_and(|facts| facts.owner == owner);
        self.table.lock().entries.values().any(is_it)
    }

    /// Returns `true` if the transaction that holds its locks under this number is prepared or is being prepared.
    pub(crate) fn may_be_owner(&self, owner: TransactionId) -> bool {
        self.table.lock().entries.values().any(|entry| entry.owner == owner)
    }

    /// Returns the memory that the locks of prepared transactions take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.table.lock().entries.values().filter_map(|entry| entry.held.as_ref()).map(|held| held.memory.bytes()).sum()
    }

    /// Announces that a keyspace is about to be dropped, until the result is dropped. Returns an error if a prepared
    /// transaction has rows of the keyspace.
    pub(crate) fn begin_drop(&self, keyspace: KeyspaceId, name: &str) -> Result<DroppingKeyspace<'_>> {
        let mut table = self.table.lock();
        let with_rows = table.entries.iter().filter(|(_, entry)| entry.keyspaces.contains(&keyspace));
        let ids: Vec<Vec<u8>> = with_rows.map(|(id, _)| id.to_vec()).collect();
        if !ids.is_empty() {
            return Err(Error::PreparedRows { keyspace: name.to_owned(), ids });
        }
        assert!(!table.dropping.contains(&keyspace), "a keyspace is dropped by two calls at once");
        table.dropping.push(keyspace);
        Ok(DroppingKeyspace { all: self, keyspace })
    }
}

/// An id that is reserved while its transaction is being prepared.
pub(crate) struct ReservedId<'p> {
    all: &'p PreparedTransactions,
    id: &'p [u8],
    is_kept: bool,
}

impl ReservedId<'_> {
    /// Enters the transaction, whose changes are now in the hidden keyspace.
    pub(crate) fn keep(mut self, facts: PreparedFacts, held: HeldLocks) {
        assert!(facts.owner == held.locks.owner(), "a prepared transaction keeps the locks of another");
        assert!(facts.value_count <= facts.row_count, "{facts:?} has more large values than rows");
        self.is_kept = true;
        let mut table = self.all.table.lock();
        let entry = table.entries.get_mut(self.id).expect("its id is reserved");
        assert!(entry.facts.is_none(), "a transaction is prepared twice");
        (entry.facts, entry.held) = (Some(facts), Some(held));
    }
}

impl Drop for ReservedId<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let entry = self.all.table.lock().entries.remove(self.id);
            assert!(entry.is_some_and(|entry| entry.facts.is_none()), "a prepared transaction is forgotten");
        }
    }
}

/// A prepared transaction that a call is about to commit or abort.
pub(crate) struct TakenTransaction<'p> {
    all: &'p PreparedTransactions,
    pub(crate) id: &'p [u8],
    pub(crate) facts: PreparedFacts,
    held: Option<HeldLocks>,
}

impl TakenTransaction<'_> {
    /// Ends the transaction, whose commit or abort has been published: forgets its id and releases its locks.
    pub(crate) fn end(mut self) {
        let held = self.held.take();
        let entry = self.all.table.lock().entries.remove(self.id);
        assert!(entry.is_some_and(|entry| entry.held.is_none()), "two calls end a prepared transaction");
        drop(held);
    }
}

impl Drop for TakenTransaction<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let mut table = self.all.table.lock();
            let entry = table.entries.get_mut(self.id).expect("a transaction that is being decided about");
            assert!(entry.held.is_none(), "two calls have taken a prepared transaction");
            entry.held = Some(held);
        }
    }
}

/// A keyspace that is being dropped.
pub(crate) struct DroppingKeyspace<'p> {
    all: &'p PreparedTransactions,
    keyspace: KeyspaceId,
}

impl Drop for DroppingKeyspace<'_> {
    fn drop(&mut self) {
        let mut table = self.all.table.lock();
        let at = table.dropping.iter().position(|keyspace| *keyspace == self.keyspace);
        table.dropping.swap_remove(at.expect("it was noted"));
    }
}
