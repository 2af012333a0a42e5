//! Transactions that write.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, LOCK_TIMEOUT};
use super::range::{self, Content, OwnValue, Range, ValueReader};
use super::{Handle, Keyspace, Value};
use crate::error::{Error, Result};
use crate::format::{KeyspaceId, Timestamp};
use crate::txn::TransactionId;
use crate::txn::engine::{Durability, Row, View};
use crate::txn::locks::Granted;
use crate::txn::snapshots::Registration;
use crate::txn::values::{self, MEDIUM_BYTES_MAX};
use crate::txn::write_set::{Change, LargeValue, WriteSet};

/// What a transaction sees of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// The state when it began, and its own changes. Of two transactions that change the same row, the second to do so gets
    /// [`Error::Conflict`].
    #[default]
    Snapshot,
    /// Each read sees the newest committed state, and its own changes. Writes wait for each other and never conflict.
    ReadCommitted,
}

/// How a transaction runs.
#[derive(Clone, Copy, Debug)]
pub struct TxOptions {
    /// What it sees of others. Default: [`Isolation::Snapshot`].
    pub isolation: Isolation,
    /// When its commit returns. Default: [`Durability::Full`].
    pub durability: Durability,
    /// How long a write waits for a row that another transaction holds before it ends in [`Error::Conflict`]. Default 10 seconds.
    pub lock_timeout: Duration,
}

impl Default for TxOptions {
    fn default() -> TxOptions {
        TxOptions { isolation: Isolation::default(), durability: Durability::default(), lock_timeout: LOCK_TIMEOUT }
    }
}

/// A transaction over any number of keyspaces. Its changes are private until [`commit`](Transaction::commit) and gone if it
/// is dropped.
#[derive(Debug)]
pub struct Transaction {
    handle: Arc<Handle>,
    id: TransactionId,
    options: TxOptions,
    moment: Arc<Registration>,
    writes: WriteSet,
    /// Rows whose lock is held.
    locked: Vec<(KeyspaceId, Box<[u8]>)>,
    locked_bytes: usize,
}

/// A point of a transaction that it can go back to.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    transaction: TransactionId,
    position: usize,
}

impl Transaction {
    pub(crate) fn begin(handle: &Arc<Handle>, options: TxOptions) -> Result<Transaction> {
        let core = &handle.core;
        core.engine.check_failure()?;
        let moment = core.register(|| core.engine.clock.published());
        Ok(Transaction {
            handle: Arc::clone(handle),
            id: core.next_transaction(),
            options,
            moment,
            writes: WriteSet::default(),
            locked: Vec::new(),
            locked_bytes: 0,
        })
    }

    fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    fn view(&self) -> View {
        match self.options.isolation {
            Isolation::Snapshot => View::At(self.moment.timestamp),
            Isolation::ReadCommitted => View::At(self.core().engine.clock.published()),
        }
    }

    fn check_owner(&self, keyspace: &Keyspace) -> Result<()> {
        if Arc::ptr_eq(&self.handle.core, keyspace.core()) {
            return Ok(());
        }
        Err(Error::Invalid(format!("keyspace {:?} belongs to another database than the transaction", keyspace.name())))
    }

    /// The row's value as the transaction sees it. O(log n).
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], [`Error::Damaged`], [`Error::Io`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.check_owner(keyspace)?;
        let key = key.as_ref();
        let tree = &keyspace.named.tree;
        match self.writes.get(tree.pages.id, key) {
            Some(Change::Put(value)) => return Ok(Some(value.to_vec().into())),
            Some(Change::PutLarge(value)) => return Ok(Some(self.core().read_unplaced(tree, value)?.into())),
            Some(Change::Remove) => return Ok(None),
            None => {}
        }
        let value = match self.options.isolation {
            Isolation::Snapshot => self.core().engine.get(tree, key, self.view())?,
            Isolation::ReadCommitted => {
                let now = self.core().register(|| self.core().engine.clock.published());
                self.core().engine.get(tree, key, View::At(now.timestamp))?
            }
        };
        self.moment.check()?;
        Ok(value.map(Value::from))
    }

    /// As [`get`](Transaction::get), and takes the row's lock: no other transaction changes it until this one ends.
    ///
    /// # Errors
    /// Those of [`get`](Transaction::get) and of [`insert`](Transaction::insert).
    pub fn get_for_update(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.lock(keyspace, key.as_ref())?;
        self.get(keyspace, key)
    }

    /// Takes a row's lock, and refuses a row that another transaction has changed since this one's snapshot.
    fn lock(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        self.check_owner(keyspace)?;
        let core = Arc::clone(self.core());
        core.check_key(&keyspace.named, key)?;
        let tree = &keyspace.named.tree;
        match core.lock_row(self.id, tree.pages.id, key, self.options.lock_timeout)? {
            Granted::AlreadyMine => return Ok(()),
            Granted::Acquired => {
                self.locked.push((tree.pages.id, key.into()));
                self.locked_bytes += key.len() + 64;
            }
        }
        // Whoever changed the row had its lock until the change was published: where nothing was published since the
        // snapshot, the row can't have changed.
        let snapshot = self.options.isolation == Isolation::Snapshot;
        if snapshot && core.engine.clock.published() > self.moment.timestamp {
            let changed = core.engine.changed_since(tree, key, self.moment.timestamp);
            let changed = changed.and_then(|changed| self.moment.check().map(|()| changed));
            if let Err(error) = changed {
                // Without the answer the lock is worth nothing: with it, the next call would not ask again.
                self.locked.pop();
                self.locked_bytes -= key.len() + 64;
                core.engine.locks.unlock(self.id, tree.pages.id, key);
                return Err(error);
            }
            if changed.is_ok_and(|changed| changed) {
                return Err(Error::Conflict { reason: "another transaction changed a row after this one began" });
            }
        }
        Ok(())
    }

    fn check_size(&self, key: &[u8], value_bytes: usize) -> Result<()> {
        let limit_bytes = self.core().engine.write_set_bytes_max;
        let bytes = self.writes.memory_bytes() + self.locked_bytes + WriteSet::cost_bytes(key, value_bytes);
        if bytes as u64 > limit_bytes {
            return Err(Error::TransactionTooLarge { limit_bytes });
        }
        Ok(())
    }

    /// Puts a row in place of one with the same key, if there is one.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another transaction has changed the row since this one began, or holds it for too long;
    /// [`Error::KeyTooLong`], [`Error::TransactionTooLarge`]. The transaction can go on after all but conflicts.
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        if value.len() > MEDIUM_BYTES_MAX {
            return self.insert_large(keyspace, key, value).map(drop);
        }
        self.check_size(key, value.len())?;
        self.lock(keyspace, key)?;
        self.writes.put(&keyspace.named.tree, key, value);
        Ok(())
    }

    /// Stores what `reader` yields as the row's value, of any length. Its bytes go to disk at once and count for nothing in
    /// the transaction's size. Returns their number.
    ///
    /// # Errors
    /// [`Error::Source`] if the reader fails, [`Error::DiskFull`]; otherwise as [`insert`](Transaction::insert).
    pub fn insert_from(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, reader: impl Read) -> Result<u64> {
        let mut reader = reader;
        let head = super::keyspace::read_head(&mut reader)?;
        if head.len() <= MEDIUM_BYTES_MAX {
            self.insert(keyspace, key, &head)?;
            return Ok(head.len() as u64);
        }
        self.insert_large(keyspace, key.as_ref(), head.chain(reader))
    }

    fn insert_large(&mut self, keyspace: &Keyspace, key: &[u8], reader: impl Read) -> Result<u64> {
        self.check_size(key, size_of::<LargeValue>())?;
        self.lock(keyspace, key)?;
        let core = Arc::clone(self.core());
        core.engine.check_failure()?;
        let value = {
            let (pool, pages) = (&core.engine.pool, &keyspace.named.tree.pages);
            values::write_large(pool, pages, core.new_value(), reader, &core.engine.make_space)?
        };
        let length = value.length;
        self.writes.put_large(&keyspace.named.tree, key, value);
        Ok(length)
    }

    /// Removes the row, if there is one.
    ///
    /// # Errors
    /// As [`insert`](Transaction::insert).
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        self.check_size(key, 0)?;
        self.lock(keyspace, key)?;
        self.writes.remove(&keyspace.named.tree, key);
        Ok(())
    }

    /// A value as a stream, as the transaction sees it now.
    ///
    /// # Errors
    /// As [`get`](Transaction::get).
    pub fn read(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        self.check_owner(keyspace)?;
        let tree = &keyspace.named.tree;
        let content = match self.writes.get(tree.pages.id, key.as_ref()) {
            Some(Change::Put(value)) => Content::Bytes(value.to_vec()),
            Some(Change::PutLarge(value)) => Content::Unplaced(value.clone()),
            Some(Change::Remove) => return Ok(None),
            None => return self.core().value_reader(tree, key.as_ref(), self.scan_moment()),
        };
        Ok(Some(ValueReader {
            core: Arc::clone(self.core()),
            tree: tree.clone(),
            moment: Arc::clone(&self.moment),
            content,
            position: 0,
            chunk: None,
        }))
    }

    fn scan_moment(&self) -> Arc<Registration> {
        match self.options.isolation {
            Isolation::Snapshot => Arc::clone(&self.moment),
            Isolation::ReadCommitted => self.core().register(|| self.core().engine.clock.published()),
        }
    }

    /// The rows of a range as the transaction sees them now, its own changes included.
    ///
    /// # Panics
    /// If the keyspace belongs to another database.
    pub fn range<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Range {
        self.scan(keyspace, (range.start_bound().cloned(), range.end_bound().cloned()))
    }

    fn scan(&self, keyspace: &Keyspace, bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Range {
        assert!(self.check_owner(keyspace).is_ok(), "the keyspace belongs to another database");
        let tree = keyspace.named.tree.clone();
        let within = (bounds.0.as_ref().map(|key| &key[..]), bounds.1.as_ref().map(|key| &key[..]));
        let own: BTreeMap<Vec<u8>, Option<OwnValue>> = (self.writes.range(tree.pages.id, within))
            .map(|(key, change)| {
                let value = match change {
                    Change::Put(value) => Some(OwnValue::Bytes(value.to_vec())),
                    Change::PutLarge(value) => Some(OwnValue::Large(value.clone())),
                    Change::Remove => None,
                };
                (key.to_vec(), value)
            })
            .collect();
        Range::new(Arc::clone(self.core()), tree, self.scan_moment(), bounds, own)
    }

    /// All rows.
    ///
    /// # Panics
    /// As [`range`](Transaction::range).
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.range(keyspace, ..)
    }

    /// All rows whose key begins with `prefix`.
    ///
    /// # Panics
    /// As [`range`](Transaction::range).
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        self.scan(keyspace, range::prefix_bounds(prefix.as_ref()))
    }

    /// The number of rows in a range. O(rows) as yet.
    ///
    /// # Errors
    /// As [`get`](Transaction::get).
    pub fn count<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Result<u64> {
        self.check_owner(keyspace)?;
        self.range(keyspace, range).count_rows()
    }

    /// A point to go back to.
    #[must_use]
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint { transaction: self.id, position: self.writes.position() }
    }

    /// Undoes what the transaction changed since the savepoint. Locks that it took since then stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a savepoint of another transaction, or one that an earlier roll-back has passed.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        if savepoint.transaction != self.id || savepoint.position > self.writes.position() {
            return Err(Error::Invalid("the savepoint is not one of this transaction's any more".into()));
        }
        for value in self.writes.roll_back(savepoint.position) {
            values::discard(&self.core().engine.pool, &value);
        }
        Ok(())
    }

    /// Makes the transaction's changes seen by all and, with [`Durability::Full`], durable. Returns its timestamp; without
    /// changes that of its snapshot, once it is durable.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::TransactionTooLarge`], [`Error::Failed`]: nothing of it remains.
    /// [`Error::OutcomeUnknown`]: reopening tells.
    pub fn commit(mut self) -> Result<Timestamp> {
        let core = Arc::clone(self.core());
        if self.writes.is_empty() {
            core.engine.wait_durable(self.moment.timestamp)?;
            return Ok(self.moment.timestamp);
        }
        self.moment.check()?;
        let writes = std::mem::take(&mut self.writes);
        let rows: Vec<Row<'_>> = writes.rows().map(|(tree, key, change)| Row { tree, key, change }).collect();
        if rows.is_empty() {
            return Ok(self.moment.timestamp);
        }
        let result = core.engine.commit(&rows, self.options.durability);
        drop(rows);
        match &result {
            Ok(_) => {
                for value in writes.superseded_large() {
                    values::discard(&core.engine.pool, &value);
                }
            }
            Err(Error::OutcomeUnknown { .. }) => {}
            Err(_) => {
                let mut writes = writes;
                for value in writes.roll_back(0) {
                    values::discard(&core.engine.pool, &value);
                }
            }
        }
        core.after_commit();
        result
    }

    /// The commit after which it sees the database.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    #[must_use]
    pub fn snapshot_timestamp(&self) -> Timestamp {
        self.moment.timestamp
    }

    /// Ends the transaction without a trace; dropping it does the same.
    pub fn abort(self) {}
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let core = Arc::clone(self.core());
        for value in self.writes.roll_back(0) {
            values::discard(&core.engine.pool, &value);
        }
        let keys = self.locked.iter().map(|(keyspace, key)| (*keyspace, &key[..]));
        core.engine.locks.unlock_all(self.id, keys);
    }
}
