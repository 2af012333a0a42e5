//! Transactions that write.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::core::{Core, LOCK_TIMEOUT, Named, RowLock};
use super::keyspace::WithHead;
use super::range::{self, Content, OwnValue, Range, ValueReader};
use super::{Handle, Keyspace, Value};
use crate::error::{Error, Result};
use crate::format::{KeyspaceId, Timestamp};
use crate::memory::{Grant, Use, grown_capacity, heap_bytes, reserve};
use crate::sync::Mutex;
use crate::task::{Face, ready};
use crate::tree::Tree;
use crate::txn::TransactionId;
use crate::txn::engine::{Durability, Engine, Row, View};
use crate::txn::locks::{Granted, lock_bytes};
use crate::txn::read_set::{ReadSet, Reads, SharedReads};
use crate::txn::snapshots::Registration;
use crate::txn::values::{self, Blocking, LargeValue, MEDIUM_BYTES_MAX, Source};
use crate::txn::write_set::{Change, WriteSet};

/// What a transaction sees of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// The state when it began, and its own changes. Of two transactions that change the same row, the second to do so gets
    /// [`Error::Conflict`].
    #[default]
    ///
    /// Lost updates and phantoms can't happen. Write skew can: two transactions that read the same rows and change different
    /// ones.
    Snapshot,
    /// As if the transactions ran one after the other. Reads the state when it began, and its own changes, as
    /// [`Snapshot`](Isolation::Snapshot) does; a commit with changes ends in [`Error::Conflict`] if another transaction has
    /// changed since then a row that this one read, or put one where it found none.
    ///
    /// Costs other transactions nothing. What was read is remembered, scans by their ends, and counts for the transaction's
    /// size; at the commit the leaves it lies in are looked at, which takes time and memory in proportion. Without changes
    /// there is nothing to validate. Locks from [`get_for_update`](Transaction::get_for_update) keep what was read as it is.
    Serializable,
    /// Each read sees the newest committed state, and its own changes; a scan or a value's reader that of its beginning.
    /// Writes wait for each other and never conflict. Between its reads it keeps no versions in memory.
    ReadCommitted,
}

/// At which moments a transaction reads.
#[derive(Debug)]
enum Moments {
    /// That of its beginning.
    First(Arc<Registration>),
    /// The newest, each time. Everything it has seen is at or below this timestamp.
    Newest(AtomicU64),
}

impl Moments {
    fn new(core: &Core, isolation: Isolation) -> Moments {
        match isolation {
            Isolation::Snapshot | Isolation::Serializable => {
                Moments::First(core.register(|| core.engine.clock.published()))
            }
            Isolation::ReadCommitted => Moments::Newest(AtomicU64::new(core.engine.clock.visible().0)),
        }
    }

    /// A moment for reads that take a while.
    fn register(&self, core: &Core) -> Arc<Registration> {
        match self {
            Moments::First(moment) => Arc::clone(moment),
            Moments::Newest(seen) => {
                let now = core.register(|| core.engine.clock.published());
                seen.fetch_max(now.timestamp.0, Ordering::Relaxed);
                now
            }
        }
    }

    /// Up to which commit the transaction has seen the database.
    fn seen(&self) -> Timestamp {
        match self {
            Moments::First(moment) => moment.timestamp,
            Moments::Newest(seen) => Timestamp(seen.load(Ordering::Relaxed)),
        }
    }

    /// The moment of all reads, where there is one.
    fn first(&self) -> Option<&Arc<Registration>> {
        match self {
            Moments::First(moment) => Some(moment),
            Moments::Newest(_) => None,
        }
    }

    /// Fails once the moment of all reads has been ended.
    fn check(&self) -> Result<()> {
        self.first().map_or(Ok(()), |moment| moment.check())
    }
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
    moments: Moments,
    writes: WriteSet,
    /// What it has read, if it is serializable.
    reads: Option<SharedReads>,
    locks: Locks,
    /// For its writes and locks; the read set has its own.
    memory: Grant,
    roll_backs: RollBacks,
    /// The conflict that has ended it.
    conflict: Option<&'static str>,
}

/// Rows whose lock a transaction holds, until it is dropped.
#[derive(Debug)]
struct Locks {
    engine: Arc<Engine>,
    owner: TransactionId,
    keys: Vec<(KeyspaceId, Box<[u8]>)>,
    /// The row whose lock a call wants, or has and does not know yet what it is worth.
    pending: Option<(KeyspaceId, Box<[u8]>)>,
    /// Of the keys, and of the locks in their table.
    heap_bytes: usize,
}

impl Locks {
    fn new(engine: &Arc<Engine>, owner: TransactionId) -> Locks {
        Locks { engine: Arc::clone(engine), owner, keys: Vec::new(), pending: None, heap_bytes: 0 }
    }

    /// Bytes of memory with another lock.
    fn memory_bytes_with(&self, key: &[u8]) -> usize {
        let key_count = grown_capacity(self.keys.len(), self.keys.capacity(), 1);
        key_count * size_of::<(KeyspaceId, Box<[u8]>)>() + self.heap_bytes + heap_bytes(key.len()) + lock_bytes(key)
    }
}

impl Locks {
    /// Ends what a call has left whose future was leaked.
    fn end_pending(&mut self) {
        if let Some((keyspace, key)) = self.pending.take() {
            self.engine.locks.abandon(self.owner, keyspace, &key);
        }
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.end_pending();
        let keys = self.keys.iter().map(|(keyspace, key)| (*keyspace, &key[..]));
        self.engine.locks.unlock_all(self.owner, keys);
    }
}

/// A point of a transaction that it can go back to.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    /// The number of the transaction's opening: transactions are numbered within one.
    opening: u64,
    transaction: TransactionId,
    position: usize,
    /// Roll-backs that came before it.
    roll_backs: u64,
}

/// To where the transaction was rolled back, as far as it matters to savepoints: number of the roll-back and position, both
/// ascending.
#[derive(Debug, Default)]
struct RollBacks {
    count: u64,
    lowest: Vec<(u64, usize)>,
}

impl RollBacks {
    fn note(&mut self, position: usize) {
        self.count += 1;
        while self.lowest.last().is_some_and(|(_, higher)| *higher >= position) {
            self.lowest.pop();
        }
        self.lowest.push((self.count, position));
    }

    /// Whether one since the savepoint went back beyond it.
    fn have_passed(&self, savepoint: &Savepoint) -> bool {
        let since = self.lowest.partition_point(|(number, _)| *number <= savepoint.roll_backs);
        self.lowest.get(since).is_some_and(|(_, position)| *position < savepoint.position)
    }
}

impl Transaction {
    pub(crate) fn begin(handle: &Arc<Handle>, options: TxOptions) -> Result<Transaction> {
        let core = handle.core()?;
        core.engine.check_failure()?;
        let moments = Moments::new(core, options.isolation);
        let id = core.next_transaction();
        let locks = Locks::new(&core.engine, id);
        let reads = (options.isolation == Isolation::Serializable)
            .then(|| Arc::new(Mutex::new(ReadSet::new(&core.engine.budget))));
        Ok(Transaction {
            handle: Arc::clone(handle),
            id,
            options,
            moments,
            writes: WriteSet::default(),
            reads,
            locks,
            memory: core.engine.budget.grant(Use::Transactions),
            roll_backs: RollBacks::default(),
            conflict: None,
        })
    }

    pub(crate) fn core(&self) -> Result<&Arc<Core>> {
        self.handle.core()
    }

    /// The keyspace itself, if it is of the same database.
    fn named<'k>(&self, keyspace: &'k Keyspace) -> Result<&'k Named> {
        keyspace.named_in(&self.handle, "transaction")
    }

    /// The row's value as the transaction sees it. O(log n).
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], [`Error::Damaged`], [`Error::Io`]; if what a serializable transaction has read takes too much
    /// memory, [`Error::TransactionTooLarge`], or [`Error::MemoryInUse`] where it is that of all of them. [`Error::Invalid`] for a
    /// keyspace of another database.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.get_as(Face::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn get_as(&self, face: Face<'_>, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        let named = self.named(keyspace)?;
        self.get_row(face, &named.tree, key, self.reads.as_ref()).await
    }

    /// The row's value; recorded in `reads` unless it is the transaction's own.
    async fn get_row(
        &self,
        face: Face<'_>,
        tree: &Tree,
        key: &[u8],
        reads: Option<&SharedReads>,
    ) -> Result<Option<Value>> {
        match self.writes.get(tree.pages.id, key) {
            Some(Change::Put(value)) => return Ok(Some(value.to_vec().into())),
            Some(Change::PutLarge(value)) => {
                let moment = self.moments.register(self.core()?);
                return Ok(Some(self.core()?.read_own(face, tree, value, &moment).await?.into()));
            }
            Some(Change::Remove) => return Ok(None),
            None => {}
        }
        if let Some(reads) = reads {
            reads.lock().add_key(tree, key)?;
        }
        let engine = &self.core()?.engine;
        let value = match &self.moments {
            Moments::First(moment) => {
                let value = engine.get_as(face, tree, key, View::At(moment.timestamp)).await?;
                moment.check()?;
                value
            }
            Moments::Newest(seen) => {
                let value = engine.get_as(face, tree, key, View::Published).await?;
                seen.fetch_max(engine.clock.published().0, Ordering::Relaxed);
                value
            }
        };
        Ok(value.map(Value::from))
    }

    /// As [`get`](Transaction::get), and takes the row's lock: no other transaction changes it until this one ends.
    ///
    /// # Errors
    /// Those of [`get`](Transaction::get) and of [`insert`](Transaction::insert).
    pub fn get_for_update(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.get_for_update_as(Face::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn get_for_update_as(
        &mut self,
        face: Face<'_>,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<Value>> {
        let named = self.named(keyspace)?;
        self.secure_memory(key, 0)?;
        self.lock(face, named, key).await?;
        // The lock keeps the row as it is: there will be nothing to validate.
        self.get_row(face, &named.tree, key, None).await
    }

    /// Takes a row's lock, and refuses a row that another transaction has changed since this one's snapshot. A conflict is
    /// remembered: it ends the transaction.
    async fn lock(&mut self, face: Face<'_>, named: &Named, key: &[u8]) -> Result<()> {
        self.check_conflict()?;
        let result = self.try_lock(face, named, key).await;
        if let Err(Error::Conflict { reason }) = result {
            self.conflict = Some(reason);
        }
        result
    }

    fn check_conflict(&self) -> Result<()> {
        self.conflict.map_or(Ok(()), |reason| Err(Error::Conflict { reason }))
    }

    async fn try_lock(&mut self, face: Face<'_>, named: &Named, key: &[u8]) -> Result<()> {
        // Nothing that keeps the database is cloned here: it would stay for ever with a future that is leaked.
        let Transaction { handle, id, options, moments, locks, .. } = self;
        let core = handle.core()?;
        core.check_key(named, key)?;
        let tree = &named.tree;
        locks.end_pending();
        let tried = core.engine.locks.try_lock(*id, tree.pages.id, key);
        if tried == Ok(Granted::AlreadyMine) {
            return Ok(());
        }
        locks.pending = Some((tree.pages.id, key.into()));
        if tried.is_err() {
            core.lock_row(face, *id, tree.pages.id, key, options.lock_timeout).await?;
        }
        // Without the answer to what follows the lock is worth nothing: kept, the next call would not ask again.
        let lock = RowLock { engine: &core.engine, owner: *id, keyspace: tree.pages.id, key };
        // Whoever changed the row had its lock until the change was published: where nothing was published since the
        // snapshot, the row can't have changed.
        if let Some(moment) = moments.first()
            && core.engine.clock.published() > moment.timestamp
        {
            let changed = core.engine.changed_since(face, tree, key, moment.timestamp).await?;
            moment.check()?;
            if changed {
                return Err(Error::Conflict { reason: "another transaction changed a row after this one began" });
            }
        }
        std::mem::forget(lock);
        reserve(&mut locks.keys, 1);
        locks.keys.extend(locks.pending.take());
        locks.heap_bytes += heap_bytes(key.len()) + lock_bytes(key);
        Ok(())
    }

    /// Reserves memory for a row that is about to be locked and written.
    fn secure_memory(&mut self, key: &[u8], value_bytes: usize) -> Result<()> {
        let limit_bytes = self.core()?.engine.budget.transaction_memory_max();
        let bytes = self.writes.memory_bytes_with(key, value_bytes) + self.locks.memory_bytes_with(key);
        if bytes as u64 > limit_bytes {
            return Err(Error::writes_too_large(limit_bytes));
        }
        if let Some(reads) = &self.reads {
            let mut reads = reads.lock();
            if (bytes + reads.memory_bytes()) as u64 > limit_bytes {
                return Err(Error::reads_too_large(limit_bytes));
            }
            reads.beside_bytes = bytes;
        }
        if !self.memory.cover(bytes as u64) {
            return Err(Error::transactions_in_memory(self.memory.limit_bytes()));
        }
        Ok(())
    }

    /// Puts a row in place of one with the same key, if there is one.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another transaction has changed the row since this one began, or holds it for too long;
    /// [`Error::KeyTooLong`], [`Error::TransactionTooLarge`], [`Error::MemoryInUse`], [`Error::Invalid`] for a keyspace of
    /// another database. The transaction can go on after all but a conflict, which its further writes and its commit get as
    /// well.
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        ready(self.insert_as(Face::Blocking, keyspace, key.as_ref(), value.as_ref()))
    }

    pub(crate) async fn insert_as(
        &mut self,
        face: Face<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let named = self.named(keyspace)?;
        if value.len() > MEDIUM_BYTES_MAX {
            return self.insert_large(face, named, key, Blocking(value)).await.map(drop);
        }
        self.secure_memory(key, value.len())?;
        self.lock(face, named, key).await?;
        self.writes.put(&named.tree, key, value);
        Ok(())
    }

    /// Stores what `reader` yields as the row's value, of any length. Its bytes go to disk at once and count for nothing in
    /// the transaction's size. Returns their number.
    ///
    /// # Errors
    /// [`Error::Source`] if the reader fails, [`Error::DiskFull`]; otherwise as [`insert`](Transaction::insert).
    pub fn insert_from(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, reader: impl Read) -> Result<u64> {
        ready(self.insert_from_as(Face::Blocking, keyspace, key.as_ref(), Blocking(reader)))
    }

    pub(crate) async fn insert_from_as(
        &mut self,
        face: Face<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        mut source: impl Source,
    ) -> Result<u64> {
        let named = self.named(keyspace)?;
        let head = super::keyspace::read_head(&mut source).await?;
        if head.len() <= MEDIUM_BYTES_MAX {
            self.insert_as(face, keyspace, key, &head).await?;
            return Ok(head.len() as u64);
        }
        self.insert_large(face, named, key, WithHead { head: &head, source }).await
    }

    async fn insert_large(&mut self, face: Face<'_>, named: &Named, key: &[u8], source: impl Source) -> Result<u64> {
        self.secure_memory(key, size_of::<LargeValue>())?;
        self.lock(face, named, key).await?;
        let core = self.handle.core()?;
        core.engine.check_failure()?;
        let value = values::write_large(face, &named.tree, core.new_value(), source, &core.engine.make_space).await?;
        let length = value.length;
        self.writes.put_large(&named.tree, key, value);
        Ok(length)
    }

    /// Removes the row, if there is one.
    ///
    /// # Errors
    /// As [`insert`](Transaction::insert).
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        ready(self.remove_as(Face::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn remove_as(&mut self, face: Face<'_>, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let named = self.named(keyspace)?;
        self.secure_memory(key, 0)?;
        self.lock(face, named, key).await?;
        self.writes.remove(&named.tree, key);
        Ok(())
    }

    /// A value as a stream, as the transaction sees it now. Can be read on when the transaction has ended, however it did.
    ///
    /// # Errors
    /// As [`get`](Transaction::get).
    pub fn read(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ready(self.read_as(Face::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn read_as(&self, face: Face<'_>, keyspace: &Keyspace, key: &[u8]) -> Result<Option<ValueReader>> {
        let tree = &self.named(keyspace)?.tree;
        let content = match self.writes.get(tree.pages.id, key) {
            Some(Change::Put(value)) => Content::Bytes(value.to_vec()),
            Some(Change::PutLarge(value)) => Content::Own(Arc::clone(value)),
            Some(Change::Remove) => return Ok(None),
            None => {
                if let Some(reads) = &self.reads {
                    reads.lock().add_key(tree, key)?;
                }
                return self.handle.value_reader(face, tree, key, self.moments.register(self.core()?)).await;
            }
        };
        Ok(Some(ValueReader::new(&self.handle, tree, self.moments.register(self.core()?), content)))
    }

    /// The rows of a range as the transaction sees them now, its own changes included. Can go on when the transaction has
    /// ended, but for a serializable one that was committed: then it ends in [`Error::Invalid`]. One of a keyspace of
    /// another database yields [`Error::Invalid`] alone.
    pub fn range<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Range {
        self.scan(keyspace, (range.start_bound().cloned(), range.end_bound().cloned()))
    }

    fn scan(&self, keyspace: &Keyspace, bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Range {
        let tree = match self.named(keyspace) {
            Ok(named) => named.tree.clone(),
            Err(error) => return Range::refused(error),
        };
        let within = (bounds.0.as_ref().map(|key| &key[..]), bounds.1.as_ref().map(|key| &key[..]));
        let own: BTreeMap<Vec<u8>, Option<OwnValue>> = (self.writes.range(tree.pages.id, within))
            .map(|(key, change)| {
                let value = match change {
                    Change::Put(value) => Some(OwnValue::Bytes(value.to_vec())),
                    Change::PutLarge(value) => Some(OwnValue::Large(Arc::clone(value))),
                    Change::Remove => None,
                };
                (key.to_vec(), value)
            })
            .collect();
        Range::new(
            Arc::clone(&self.handle),
            tree,
            self.moments.register(self.handle.core_here()),
            bounds,
            own,
            self.reads.clone(),
        )
    }

    /// All rows.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.range(keyspace, ..)
    }

    /// All rows whose key begins with `prefix`.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        self.scan(keyspace, range::prefix_bounds(prefix.as_ref()))
    }

    /// The number of rows in a range. O(rows) as yet.
    ///
    /// # Errors
    /// As [`get`](Transaction::get).
    pub fn count<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Result<u64> {
        ready(self.range(keyspace, range).count_rows(Face::Blocking))
    }

    /// A point to go back to.
    #[must_use]
    pub fn savepoint(&mut self) -> Savepoint {
        let position = self.writes.position();
        Savepoint { opening: self.handle.number, transaction: self.id, position, roll_backs: self.roll_backs.count }
    }

    /// Undoes what the transaction changed since the savepoint. Locks that it took since then stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a savepoint of another transaction, or one that an earlier roll-back has passed.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let is_mine = savepoint.opening == self.handle.number && savepoint.transaction == self.id;
        if !is_mine || self.roll_backs.have_passed(&savepoint) {
            return Err(Error::Invalid("the savepoint is not one of this transaction's any more".into()));
        }
        self.roll_backs.note(savepoint.position);
        self.writes.roll_back(savepoint.position);
        Ok(())
    }

    /// Makes the transaction's changes seen by all and, with [`Durability::Full`], durable. Returns its timestamp.
    ///
    /// Without changes it waits, whatever its durability, until all that it has read is durable and every other reader
    /// sees it too, and returns the timestamp up to which it has read: that of its snapshot, or of its last read.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::TransactionTooLarge`], [`Error::Failed`], [`Error::SnapshotTooOld`];
    /// [`Error::Conflict`] if it is serializable and rows that it read have changed, or if one of its writes got it: nothing
    /// of it remains.
    /// [`Error::OutcomeUnknown`]: reopening tells.
    pub fn commit(self) -> Result<Timestamp> {
        ready(self.commit_as(Face::Blocking))
    }

    pub(crate) async fn commit_as(self, face: Face<'_>) -> Result<Timestamp> {
        self.check_conflict()?;
        let Transaction { handle, options, moments, writes, reads, locks, memory: _memory, .. } = self;
        let core = handle.core()?;
        if writes.is_empty() {
            drop(locks);
            core.engine.show_durable(face, moments.seen()).await?;
            return Ok(moments.seen());
        }
        moments.check()?;
        let rows: Vec<Row<'_>> = writes.rows().map(|(tree, key, change)| Row { tree, key, change }).collect();
        let read_set = reads.as_deref().map(ReadSet::end).filter(|set| !set.is_empty());
        let reads = read_set.as_ref().zip(moments.first()).map(|(set, moment)| Reads { set, moment });
        core.commit(face, &rows, reads, options.durability, locks).await
    }

    /// The commit after which it sees the database; if it is read committed, that up to which it has seen it.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    #[must_use]
    pub fn snapshot_timestamp(&self) -> Timestamp {
        self.moments.seen()
    }

    /// Ends the transaction without a trace; dropping it does the same.
    pub fn abort(self) {}
}
