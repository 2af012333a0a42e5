//! Prepares transactions, and commits or aborts them later. `txn/prepared.rs` has their states.
//!
//! - *Prepare* is a commit of one row in the hidden keyspace: the transaction's changes. Its large values, which are on
//!   disk already, become rows there too.
//! - *Commit* reads the changes back and makes them. Its log record is short: it names the id, because a recovery finds
//!   the changes in the hidden keyspace, where the prepare has put them.
//! - *Abort* is a commit that removes these rows.
//! - A coordinator may split the commit: it makes it *ready*, and gives the signal later (`txn/commit/ready.rs`).
//!
//! So everything about a prepared transaction is in checkpoints, and it keeps no part of the log.

use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::format::prepared::{self, Head};
use crate::format::record::{self, Operation};
use crate::memory::{Account, Grant};
use crate::seglog::Appended;
use crate::task::WaitMode;
use crate::tree::Target;
use crate::tree::node::Leaf;
use crate::txn::LOCK_TIMEOUT;
use crate::txn::commit::ready::{Gate, Signal};
use crate::txn::commit::{Applied, Durability, LockedRows, Recorded, Row, RowsSeen};
use crate::txn::engine::{Found, ReadAt};
use crate::txn::keyspace::OpenKeyspace;
use crate::txn::locks::{Granted, LockMode, LockRequest};
use crate::txn::prepared::{HeldLocks, PreparedFacts, TakenTransaction};
use crate::txn::row_locks::RowLocks;
use crate::txn::values::{self, Blocking, LargeValue, MEDIUM_BYTES_MAX};
use crate::txn::write_set::{Change, WriteSet};

/// The changes of a transaction in the form in which the hidden keyspace has them, and its large values.
struct EncodedChanges<'w> {
    changes: Vec<u8>,
    row_count: u32,
    values: Vec<&'w Arc<LargeValue>>,
}

impl<'w> EncodedChanges<'w> {
    /// Encodes changes, and the locks of rows that are not changed.
    fn new(writes: &'w WriteSet, locks: &RowLocks, time: Duration) -> EncodedChanges<'w> {
        let row_count = u32::try_from(writes.row_count()).expect("a write set has few rows");
        let mut values = Vec::new();
        let mut operations = Vec::new();
        for (tree, key, change) in writes.rows() {
            let operation = match change {
                Change::Put(value) => Operation::Put { key, value },
                Change::PutLarge(value) => {
                    values.push(value);
                    Operation::PutStored { key, number: values.len() as u32 - 1 }
                }
                Change::Remove => Operation::Remove { key },
            };
            record::encode(tree.pages.id, &operation, &mut operations);
        }
        for (keyspace, key) in locks.rows().filter(|(keyspace, key)| writes.get(*keyspace, key).is_none()) {
            let is_shared = locks.engine.locks.mode(keyspace, key) == Some(LockMode::Shared);
            record::encode(keyspace, &Operation::Lock { key, is_shared }, &mut operations);
        }
        let mut changes = Vec::with_capacity(prepared::OPERATIONS_OFFSET + operations.len());
        let head = Head { time_ms: time.as_millis() as u64, row_count, value_count: values.len() as u32 };
        head.encode(&mut changes);
        changes.extend_from_slice(&operations);
        debug_assert_eq!(Head::decode(&changes), Some(head), "changes can't be read as they were written");
        EncodedChanges { changes, row_count, values }
    }

    /// Returns an upper bound of the length of the encoded changes.
    fn bytes_max(writes: &WriteSet, locks: &RowLocks) -> usize {
        let locks_bytes: usize = locks.rows().map(|(_, key)| record::LOCK_BYTES + key.len()).sum();
        prepared::OPERATIONS_OFFSET + writes.record_bytes() + locks_bytes
    }
}

/// The changes of a prepared transaction, as read from the hidden keyspace.
struct StoredChanges {
    changes: Vec<u8>,
    values: Vec<Arc<LargeValue>>,
    /// The keyspaces of its rows, in the order of their numbers.
    open: Vec<Arc<OpenKeyspace>>,
    hidden: Arc<OpenKeyspace>,
    /// The keys of its rows in the hidden keyspace.
    hidden_keys: Vec<Vec<u8>>,
    _memory: Grant,
}

impl StoredChanges {
    /// Returns an upper bound of the bytes of its changes as a record repeats them.
    fn feed_bytes(&self) -> usize {
        let reference_bytes = record::PUT_REFERENCE_BYTES - record::PUT_STORED_BYTES;
        self.changes.len() + self.values.len() * reference_bytes
    }

    /// Returns the rows that the transaction changes, and the removals of its rows in the hidden keyspace, in order.
    fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for (keyspace, operation) in prepared::operations(&self.changes) {
            let (key, change) = match operation {
                Operation::Put { key, value } => (key, Change::Put(value)),
                Operation::PutStored { key, number } => (key, Change::PutLarge(&self.values[number as usize])),
                Operation::Remove { key } => (key, Change::Remove),
                _ => continue,
            };
            let at = self.open.binary_search_by_key(&keyspace, |open| open.tree.pages.id).expect("it was opened");
            rows.push(Row { tree: &self.open[at].tree, key, change });
        }
        let removal = |key| Row { tree: &self.hidden.tree, key, change: Change::Remove };
        rows.extend(self.hidden_keys.iter().map(|key| removal(&key[..])));
        rows
    }
}

/// Returns the keys of a transaction's rows in the hidden keyspace, in order.
fn hidden_keys(id: &[u8], value_count: u32) -> Vec<Vec<u8>> {
    let mut keys = vec![prepared::changes_key(id)];
    keys.extend((0..value_count).map(|number| prepared::value_key(id, number)));
    keys
}

impl Store {
    /// Returns the keyspace of prepared transactions, and creates it first if it does not exist.
    async fn prepared_keyspace(self: &Arc<Self>, mode: WaitMode<'_>) -> Result<Arc<OpenKeyspace>> {
        if let Some(open) = self.keyspaces.prepared() {
            return Ok(open);
        }
        let store = Arc::clone(self);
        let create = move || {
            let _defining = store.defining.lock();
            match store.keyspaces.prepared() {
                Some(open) => Ok(open),
                None => {
                    store.create_prepared_keyspace(prepared::PAGE_BYTES)?;
                    Ok(store.keyspaces.prepared().expect("it was created, and is never dropped"))
                }
            }
        };
        mode.run(create).await
    }

    /// Prepares a transaction: makes its changes durable without making them visible, and keeps its locks. If this
    /// fails, the locks are released. `for_task` means that a task will wait for the log write, even if this call
    /// itself blocks. `time` is that of the prepare, since 1970.
    #[expect(clippy::too_many_arguments, reason = "the parts of one prepare")]
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        mode: WaitMode<'_>,
        for_task: bool,
        id: &[u8],
        time: Duration,
        writes: &WriteSet,
        seen: RowsSeen<'_>,
        mut held: HeldLocks,
    ) -> Result<Appended> {
        let engine = &self.engine;
        self.check_writable()?;
        engine.check_failure()?;
        let mut keyspaces = Vec::new();
        let of_writes = writes.rows().map(|(tree, _, _)| tree.pages.id);
        for keyspace in of_writes.chain(held.locks.rows().map(|(keyspace, _)| keyspace)) {
            if keyspaces.last() != Some(&keyspace) {
                keyspaces.push(keyspace);
            }
        }
        keyspaces.sort_unstable();
        keyspaces.dedup();
        let reserved = self.prepared.reserve(id, held.locks.owner(), keyspaces.clone())?;
        for keyspace in keyspaces {
            if engine.space.page_space(keyspace).is_none_or(|pages| pages.is_dropped()) {
                let written = writes.rows().find(|(tree, _, _)| tree.pages.id == keyspace);
                let name = written.map(|(tree, _, _)| tree.pages.name().to_string());
                return Err(Error::KeyspaceDropped { name: name.unwrap_or_else(|| self.keyspace_name(keyspace)) });
            }
        }
        let locks_bytes = held.locks.memory_bytes() as u64;
        let limit_bytes = engine.budget.transaction_memory_max();
        if self.prepared.memory_bytes() + locks_bytes > limit_bytes {
            return Err(Error::prepared_in_memory(limit_bytes));
        }
        let bytes_max = EncodedChanges::bytes_max(writes, &held.locks);
        // The record of the commit repeats the changes if they are kept for readers.
        let commit_bytes = if self.feed.is_some() { record::commit_prepared_bytes(id) } else { 0 };
        let record_bytes_max = engine.log().body_bytes_max() - commit_bytes;
        if bytes_max > record_bytes_max + prepared::OPERATIONS_OFFSET {
            return Err(Error::record_too_large(writes.row_count(), bytes_max as u64, record_bytes_max as u64));
        }
        // The operations are encoded first, and then copied to their place after the head.
        if !held.memory.cover(locks_bytes + 2 * bytes_max as u64) {
            return Err(Error::transactions_in_memory(held.memory.limit_bytes()));
        }
        let hidden = self.prepared_keyspace(mode).await?;
        let tree = &hidden.tree;
        let time = Duration::from_millis(time.as_millis() as u64);
        let EncodedChanges { changes, row_count, values } = EncodedChanges::new(writes, &held.locks, time);
        let large = match changes.len() > MEDIUM_BYTES_MAX {
            false => None,
            true => {
                let memory = self.source_memory(mode).await?;
                let source = Blocking(&changes[..]);
                Some(values::write_large(mode, tree, self.new_value(), source, memory, &engine.reclaim).await?)
            }
        };
        let keys = hidden_keys(id, values.len() as u32);
        let change = large.as_ref().map_or(Change::Put(&changes), Change::PutLarge);
        let all = std::iter::once(change).chain(values.iter().map(|value| Change::PutLarge(value)));
        let rows: Vec<Row<'_>> = keys.iter().zip(all).map(|(key, change)| Row { tree, key, change }).collect();
        let open = |id| self.keyspace_with_id(id);
        let locked = LockedRows { locks: &held.locks, open: &open };
        let seen = RowsSeen::Of(&locked, &seen);
        let applied = self.apply_hidden(mode, &rows, seen, Durability::Full, Recorded::Rows).await?;
        let logged = engine.request_write(for_task, &rows, applied, Durability::Full);
        let is_smaller = held.memory.resize(locks_bytes);
        assert!(is_smaller, "memory was not given back");
        let facts = PreparedFacts {
            owner: held.locks.owner(),
            time,
            row_count,
            value_count: values.len() as u32,
            changes_bytes: changes.len(),
            timestamp: logged.timestamp,
        };
        reserved.keep(facts, held);
        self.end_locks(());
        Ok(logged)
    }

    /// Applies a commit of rows of prepared transactions.
    async fn apply_hidden<'a>(
        &'a self,
        mode: WaitMode<'a>,
        rows: &'a [Row<'a>],
        seen: RowsSeen<'a>,
        durability: Durability,
        recorded: Recorded<'a, 'a>,
    ) -> Result<Applied<'a>> {
        if let Some(applied) = self.engine.commit_at_once_as(rows, 0, seen, durability, recorded)? {
            return Ok(applied);
        }
        let admitted = self.engine.admit(mode, rows, None, 0).await;
        let (applied, _admitted) = self.engine.apply_as(mode, rows, None, seen, admitted, recorded, durability).await?;
        Ok(applied)
    }

    /// Commits a prepared transaction. If this fails, it stays prepared.
    pub(crate) async fn commit_prepared(
        &self,
        mode: WaitMode<'_>,
        for_task: bool,
        id: &[u8],
        durability: Durability,
    ) -> Result<Appended> {
        self.check_writable()?;
        let taken = self.prepared.take(id)?;
        let stored = self.stored_changes(mode, &taken).await?;
        let rows = stored.rows();
        let feed_changes = self.feed_changes(id, &stored)?;
        let recorded = Recorded::Prepared { id, feed_changes: &feed_changes, gate: None };
        let applied = self.apply_hidden(mode, &rows, RowsSeen::Nothing, durability, recorded).await?;
        taken.end();
        self.end_locks(());
        Ok(self.engine.request_write(for_task, &rows, applied, durability))
    }

    /// Makes the commit of a prepared transaction ready, and applies it at the first poll after the signal. If this
    /// fails or is dropped, the transaction stays prepared. Returns the commit's timestamp; the record is written soon
    /// afterwards.
    pub(crate) async fn commit_at_signal(&self, mode: WaitMode<'_>, id: &[u8], signal: &Signal) -> Result<Timestamp> {
        self.check_writable()?;
        self.engine.check_failure()?;
        let taken = self.prepared.take(id)?;
        let mut permit = self.ready.permit(mode, self.engine.backend.as_ref()).await?;
        permit.hold_changes(&self.engine.budget, taken.facts.changes_bytes as u64)?;
        let gate = Gate::new(permit, signal);
        let stored = self.stored_changes(mode, &taken).await?;
        let rows = stored.rows();
        let feed_changes = self.feed_changes(id, &stored)?;
        let recorded = Recorded::Prepared { id, feed_changes: &feed_changes, gate: Some(&gate) };
        let admitted = self.engine.admit(mode, &rows, None, 0).await;
        let (applied, _admitted) =
            self.engine.apply_as(mode, &rows, None, RowsSeen::Nothing, admitted, recorded, Durability::Relaxed).await?;
        taken.end();
        self.end_locks(());
        Ok(self.engine.end_ready(&rows, applied))
    }

    /// Aborts a prepared transaction. If this fails, it stays prepared.
    pub(crate) async fn abort_prepared(
        &self,
        mode: WaitMode<'_>,
        id: &[u8],
        durability: Durability,
    ) -> Result<Appended> {
        self.check_writable()?;
        let taken = self.prepared.take(id)?;
        let hidden = self.keyspaces.prepared().expect("there is a prepared transaction");
        let keys = hidden_keys(id, taken.facts.value_count);
        let row = |key| Row { tree: &hidden.tree, key, change: Change::Remove };
        let rows: Vec<Row<'_>> = keys.iter().map(|key| row(&key[..])).collect();
        let applied = self.apply_hidden(mode, &rows, RowsSeen::Nothing, durability, Recorded::Rows).await?;
        taken.end();
        self.end_locks(());
        Ok(self.engine.request_write(mode.is_task(), &rows, applied, durability))
    }

    /// Reads the changes of a prepared transaction. No other call changes its rows in the hidden keyspace.
    async fn stored_changes(&self, mode: WaitMode<'_>, taken: &TakenTransaction<'_>) -> Result<StoredChanges> {
        let hidden = self.keyspaces.prepared().expect("there is a prepared transaction");
        let (engine, tree) = (&self.engine, &hidden.tree);
        // The record repeats the changes for the readers of changes.
        let copies = if self.feed.is_some() { 3 } else { 1 };
        let bytes = copies * taken.facts.changes_bytes as u64;
        let memory = engine.reserve_in_turn(mode, Account::Transactions, bytes, LOCK_TIMEOUT).await;
        let limit_bytes = engine.budget.limit_bytes(Account::Transactions);
        let memory = memory.ok_or_else(|| Error::transactions_in_memory(limit_bytes))?;
        let mut changes: Option<Vec<u8>> = None;
        engine.get_in(mode, tree, &prepared::changes_key(taken.id), ReadAt::Published, &mut changes).await?;
        let changes = changes.ok_or_else(|| self.damaged(taken.id))?;
        let head = Head::decode(&changes).ok_or_else(|| self.damaged(taken.id))?;
        let mut values = Vec::new();
        for number in 0..head.value_count {
            let key = prepared::value_key(taken.id, number);
            match engine.find_in(mode, tree, &key, ReadAt::Published, |_| ()).await? {
                Some(Found::Large(reference)) => {
                    values.push(Arc::new(LargeValue::of_prepared(&engine.pool, &tree.pages, &reference)?));
                }
                _ => return Err(self.damaged(taken.id)),
            }
        }
        let mut open: Vec<Arc<OpenKeyspace>> = Vec::new();
        let of_rows =
            prepared::operations(&changes).filter(|(_, operation)| !matches!(operation, Operation::Lock { .. }));
        for (keyspace, _) in of_rows {
            if open.last().is_none_or(|open| open.tree.pages.id != keyspace) {
                open.push(self.keyspaces.get_by_id(engine, keyspace).ok_or_else(|| self.damaged(taken.id))?);
            }
        }
        if !open.is_sorted_by_key(|open| open.tree.pages.id) {
            return Err(self.damaged(taken.id));
        }
        let hidden_keys = hidden_keys(taken.id, head.value_count);
        Ok(StoredChanges { changes, values, open, hidden, hidden_keys, _memory: memory })
    }

    /// Returns the changes of a prepared transaction as its record repeats them for the readers of changes. They are
    /// empty if no changes are kept.
    fn feed_changes(&self, id: &[u8], stored: &StoredChanges) -> Result<Vec<u8>> {
        let mut feed_changes = Vec::new();
        if self.feed.is_none() {
            return Ok(feed_changes);
        }
        feed_changes.reserve_exact(stored.feed_bytes());
        for (keyspace, operation) in prepared::operations(&stored.changes) {
            let operation = match operation {
                Operation::PutStored { key, number } => {
                    let value = &stored.values[number as usize];
                    Operation::PutReference { key, length: value.length, value_id: value.value_id }
                }
                Operation::Lock { .. } => continue,
                other => other,
            };
            record::encode(keyspace, &operation, &mut feed_changes);
        }
        let (bytes, limit_bytes) =
            (feed_changes.len() + record::commit_prepared_bytes(id), self.engine.log().body_bytes_max());
        if bytes > limit_bytes {
            let row_count = stored.values.len();
            return Err(Error::record_too_large(row_count, bytes as u64, limit_bytes as u64));
        }
        Ok(feed_changes)
    }

    /// Returns the error for a prepared transaction whose rows verify but make no sense.
    fn damaged(&self, id: &[u8]) -> Error {
        let what = format!("the prepared transaction {:?}", crate::error::QuotedKey(id));
        Error::corrupted(self.engine.space.path(), what, "its rows verify but make no sense")
    }

    /// Enters the prepared transactions of a database that is being opened, and takes their locks again. An opening
    /// that salvages a corrupted database passes the errors to `on_error`.
    pub(super) fn lock_prepared(&self, on_error: &mut dyn FnMut(Error) -> Result<()>) -> Result<()> {
        let Some(hidden) = self.keyspaces.prepared() else { return Ok(()) };
        let mut lower = Vec::new();
        loop {
            let found = hidden.tree.pool.waiting(|_| {
                let page = hidden.tree.read_leaf(Target::At(&lower))?;
                let leaf = Leaf::new(&page);
                let mut ids = Vec::new();
                let mut key = Vec::new();
                for index in 0..leaf.len() {
                    leaf.key_into(index, &mut key);
                    ids.extend(prepared::id_of(&key).map(<[u8]>::to_vec));
                }
                Ok::<_, crate::pool::Stop>((ids, leaf.upper_fence().map(<[u8]>::to_vec)))
            });
            let (ids, upper) = match found {
                Ok(found) => found,
                Err(error) => return on_error(error),
            };
            for id in ids {
                if let Err(error) = self.lock_rows_of(&hidden, &id) {
                    on_error(error)?;
                }
            }
            match upper {
                Some(upper) => lower = upper,
                None => break,
            }
        }
        let (taken, budget) = (self.prepared.memory_bytes(), &self.engine.budget);
        if taken > budget.limit_bytes(Account::Transactions) {
            // The account has an eighth of the budget.
            return on_error(Error::BudgetTooSmall { given_bytes: budget.total_bytes(), minimum_bytes: 8 * taken });
        }
        Ok(())
    }

    /// Takes the locks of a prepared transaction that an opening has found.
    fn lock_rows_of(&self, hidden: &OpenKeyspace, id: &[u8]) -> Result<()> {
        let engine = &self.engine;
        if id.is_empty() {
            return Err(self.damaged(id));
        }
        let changes: Option<Vec<u8>> = engine.get(&hidden.tree, &prepared::changes_key(id), ReadAt::Published)?;
        let changes = changes.ok_or_else(|| self.damaged(id))?;
        let head = Head::decode(&changes).ok_or_else(|| self.damaged(id))?;
        let owner = self.next_transaction();
        let mut locks = RowLocks::new(engine, owner);
        let mut keyspaces = Vec::new();
        for (keyspace, operation) in prepared::operations(&changes) {
            let (key, mode) = match operation {
                Operation::Lock { key, is_shared: true } => (key, LockMode::Shared),
                Operation::Put { key, .. }
                | Operation::PutStored { key, .. }
                | Operation::Remove { key }
                | Operation::Lock { key, .. } => (key, LockMode::Exclusive),
                _ => unreachable!("the head was decoded"),
            };
            if engine.space.page_space(keyspace).is_none_or(|pages| pages.is_dropped()) {
                return Err(self.damaged(id));
            }
            match engine.locks.try_request(&LockRequest { owner, keyspace, key, mode }) {
                Ok(Granted::Acquired) => locks.add(keyspace, key, mode),
                Ok(Granted::AlreadyHeld) | Err(_) => return Err(self.damaged(id)),
            }
            keyspaces.push(keyspace);
            keyspaces.dedup();
        }
        keyspaces.sort_unstable();
        keyspaces.dedup();
        let mut memory = engine.budget.grant(Account::Transactions);
        memory.take(locks.memory_bytes() as u64);
        let facts = PreparedFacts {
            owner,
            time: Duration::from_millis(head.time_ms),
            row_count: head.row_count,
            value_count: head.value_count,
            changes_bytes: changes.len(),
            timestamp: Timestamp(0),
        };
        self.prepared.reserve(id, owner, keyspaces)?.keep(facts, HeldLocks { locks, memory });
        crate::coverage::mark!("an opening found a prepared transaction");
        Ok(())
    }

    /// Returns the prepared transactions that no power cut can undo, in the order of their ids.
    pub(crate) fn prepared(&self) -> Vec<(Vec<u8>, PreparedFacts)> {
        let durable = self.engine.log().durable();
        let mut all = self.prepared.list();
        all.retain(|(_, facts)| facts.timestamp <= durable);
        all
    }
}
