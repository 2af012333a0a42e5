//! Transactions that write.

use std::io::Read;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::keyspace::WithHead;
use super::range::{self, Content, Range, ValueReader};
use super::{Handle, Keyspace, Value};
use crate::error::{Error, Result};
use crate::format::{KeyspaceId, Timestamp};
use crate::memory::{Account, Grant, grown_capacity, heap_bytes, reserve};
use crate::store::{LOCK_TIMEOUT, OpenKeyspace, RowLock, Store};
use crate::sync::Mutex;
use crate::task::{WaitMode, ready};
use crate::tree::Tree;
use crate::txn::TransactionId;
use crate::txn::engine::{Durability, Engine, ReadAt, Row};
use crate::txn::locks::{Granted, WAITING_BYTES, lock_bytes};
use crate::txn::read_set::{ReadSet, Reads, SharedReads};
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::values::{self, Blocking, LargeValue, MEDIUM_BYTES_MAX, Source};
use crate::txn::write_set::{Change, SharedWrites};

/// The isolation of a transaction from others that run at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// The state when it began, and its own changes. Of two transactions that change the same row, the second to do so
    /// gets [`Error::Conflict`].
    #[default]
    ///
    /// Lost updates and phantoms can't happen. Write skew can: two transactions that read the same rows and change
    /// different ones.
    Snapshot,
    /// As if the transactions ran one after the other. Reads the state when it began, and its own changes, as
    /// [`Snapshot`](Isolation::Snapshot) does; a commit with changes ends in [`Error::Conflict`] if another transaction
    /// has changed since then a row that this one read, or put one where it found none.
    ///
    /// Costs other transactions nothing. What was read is remembered, scans by their ends, and counts for the
    /// transaction's size; at the commit the leaves it lies in are looked at, which takes time and memory in
    /// proportion. Without changes there is nothing to validate. Locks from
    /// [`get_for_update`](Transaction::get_for_update) keep what was read as it is.
    Serializable,
    /// Each read sees the newest committed state, and its own changes; a scan or a value's reader that of its
    /// beginning. Writes wait for each other and never conflict. Between its reads it keeps no versions in memory.
    ReadCommitted,
}

/// At which moments a transaction reads.
#[derive(Debug)]
enum ReadView {
    /// That of its beginning.
    Fixed(Arc<SnapshotHandle>),
    /// The newest, each time. Everything it has seen is at or below this timestamp.
    Latest(AtomicU64),
}

impl ReadView {
    fn new(store: &Store, isolation: Isolation) -> ReadView {
        match isolation {
            Isolation::Snapshot | Isolation::Serializable => {
                ReadView::Fixed(store.open_snapshot(|| store.engine.clock.published()))
            }
            Isolation::ReadCommitted => ReadView::Latest(AtomicU64::new(store.engine.clock.visible().0)),
        }
    }

    /// A moment for reads that take a while.
    fn open_snapshot(&self, store: &Store) -> Arc<SnapshotHandle> {
        match self {
            ReadView::Fixed(snapshot) => Arc::clone(snapshot),
            ReadView::Latest(seen) => {
                let now = store.open_snapshot(|| store.engine.clock.published());
                seen.fetch_max(now.timestamp.0, Ordering::Relaxed);
                now
            }
        }
    }

    /// Up to which commit the transaction has seen the database.
    fn seen(&self) -> Timestamp {
        match self {
            ReadView::Fixed(snapshot) => snapshot.timestamp,
            ReadView::Latest(seen) => Timestamp(seen.load(Ordering::Relaxed)),
        }
    }

    /// The moment of all reads, where there is one.
    fn snapshot(&self) -> Option<&Arc<SnapshotHandle>> {
        match self {
            ReadView::Fixed(snapshot) => Some(snapshot),
            ReadView::Latest(_) => None,
        }
    }

    /// Fails once the moment of all reads has been ended.
    fn check(&self) -> Result<()> {
        self.snapshot().map_or(Ok(()), |snapshot| snapshot.check())
    }
}

/// Settings of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct TxOptions {
    /// Default: [`Isolation::Snapshot`].
    pub isolation: Isolation,
    /// When its commit returns. Default: [`Durability::Full`].
    pub durability: Durability,
    /// The longest time that a write waits for a row that another transaction holds before it ends in
    /// [`Error::Conflict`]. Default 10 seconds.
    pub lock_timeout: Duration,
}

impl Default for TxOptions {
    fn default() -> TxOptions {
        TxOptions { isolation: Isolation::default(), durability: Durability::default(), lock_timeout: LOCK_TIMEOUT }
    }
}

/// A transaction over any number of keyspaces. Its changes are private until [`commit`](Transaction::commit) and gone
/// if it is dropped.
#[derive(Debug)]
pub struct Transaction {
    handle: Arc<Handle>,
    id: TransactionId,
    options: TxOptions,
    view: ReadView,
    writes: Arc<SharedWrites>,
    /// The read set of a serializable transaction.
    reads: Option<SharedReads>,
    locks: Locks,
    /// For its locks; the write set and the read set have their own.
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

    /// Bytes of memory with another lock, which may have to be waited for.
    fn memory_bytes_with(&self, key: &[u8]) -> usize {
        let key_count = grown_capacity(self.keys.len(), self.keys.capacity(), 1);
        let own_bytes = heap_bytes(key.len()) + lock_bytes(key) + WAITING_BYTES;
        key_count * size_of::<(KeyspaceId, Box<[u8]>)>() + self.heap_bytes + own_bytes
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

/// To where the transaction was rolled back, as far as it matters to savepoints: number of the roll-back and position,
/// both ascending.
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

    /// Returns `true` if one since the savepoint went back beyond it.
    fn have_passed(&self, savepoint: &Savepoint) -> bool {
        let since = self.lowest.partition_point(|(number, _)| *number <= savepoint.roll_backs);
        self.lowest.get(since).is_some_and(|(_, position)| *position < savepoint.position)
    }
}

impl Transaction {
    pub(crate) fn begin(handle: &Arc<Handle>, options: TxOptions) -> Result<Transaction> {
        let store = handle.store()?;
        store.engine.check_failure()?;
        let view = ReadView::new(store, options.isolation);
        let id = store.next_transaction();
        let locks = Locks::new(&store.engine, id);
        let reads = (options.isolation == Isolation::Serializable)
            .then(|| Arc::new(Mutex::new(ReadSet::new(&store.engine.budget))));
        Ok(Transaction {
            handle: Arc::clone(handle),
            id,
            options,
            view,
            writes: SharedWrites::new(store.engine.budget.grant(Account::Transactions)),
            reads,
            locks,
            memory: store.engine.budget.grant(Account::Transactions),
            roll_backs: RollBacks::default(),
            conflict: None,
        })
    }

    pub(crate) fn store(&self) -> Result<&Arc<Store>> {
        self.handle.store()
    }

    /// The keyspace itself, if it is of the same database.
    fn open<'k>(&self, keyspace: &'k Keyspace) -> Result<&'k OpenKeyspace> {
        keyspace.named_in(&self.handle, "transaction")
    }

    /// The row's value as the transaction sees it. O(log n).
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], [`Error::Corrupted`], [`Error::Io`]; if what a serializable transaction has read
    /// takes too much memory, [`Error::TransactionTooLarge`], or [`Error::MemoryInUse`] where it is that of all of
    /// them. [`Error::Invalid`] for a keyspace of another database.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.get_in(WaitMode::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn get_in(&self, mode: WaitMode<'_>, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        let open = self.open(keyspace)?;
        self.get_row(mode, &open.tree, key, self.reads.as_ref()).await
    }

    /// The row's value; recorded in `reads` unless it is the transaction's own.
    async fn get_row(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        key: &[u8],
        reads: Option<&SharedReads>,
    ) -> Result<Option<Value>> {
        match self.writes.set.get(tree.pages.id, key) {
            Some(Change::Put(value)) => return Ok(Some(value.to_vec().into())),
            Some(Change::PutLarge(value)) => {
                let snapshot = self.view.open_snapshot(self.store()?);
                return Ok(Some(self.store()?.read_own(mode, tree, value, &snapshot).await?.into()));
            }
            Some(Change::Remove) => return Ok(None),
            None => {}
        }
        if let Some(reads) = reads {
            reads.lock().add_key(tree, key)?;
        }
        let engine = &self.store()?.engine;
        let value = match &self.view {
            ReadView::Fixed(snapshot) => {
                let value = engine.get_in(mode, tree, key, ReadAt::Timestamp(snapshot.timestamp)).await?;
                snapshot.check()?;
                value
            }
            ReadView::Latest(seen) => {
                let value = engine.get_in(mode, tree, key, ReadAt::Published).await?;
                seen.fetch_max(engine.clock.published().0, Ordering::Relaxed);
                value
            }
        };
        Ok(value.map(Value::from))
    }

    /// Like [`get`](Transaction::get), and takes the row's lock: no other transaction changes it until this one ends.
    ///
    /// # Errors
    /// Those of [`get`](Transaction::get) and of [`insert`](Transaction::insert).
    pub fn get_for_update(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.get_for_update_in(WaitMode::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn get_for_update_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<Value>> {
        let open = self.open(keyspace)?;
        self.secure_memory(key, None)?;
        self.lock(mode, open, key).await?;
        // The lock keeps the row as it is: there will be nothing to validate.
        self.get_row(mode, &open.tree, key, None).await
    }

    /// Takes a row's lock, and refuses a row that another transaction has changed since this one's snapshot. A conflict
    /// is remembered: it ends the transaction.
    async fn lock(&mut self, mode: WaitMode<'_>, open: &OpenKeyspace, key: &[u8]) -> Result<()> {
        self.check_conflict()?;
        let result = self.try_lock(mode, open, key).await;
        if let Err(Error::Conflict { reason }) = result {
            self.conflict = Some(reason);
        }
        result
    }

    fn check_conflict(&self) -> Result<()> {
        self.conflict.map_or(Ok(()), |reason| Err(Error::Conflict { reason }))
    }

    async fn try_lock(&mut self, mode: WaitMode<'_>, open: &OpenKeyspace, key: &[u8]) -> Result<()> {
        // Nothing that keeps the database is cloned here: it would stay for ever with a future that is leaked.
        let Transaction { handle, id, options, view, locks, .. } = self;
        let store = handle.store()?;
        store.check_key(open, key)?;
        let tree = &open.tree;
        locks.end_pending();
        let tried = store.engine.locks.try_lock(*id, tree.pages.id, key);
        if tried == Ok(Granted::AlreadyMine) {
            return Ok(());
        }
        locks.pending = Some((tree.pages.id, key.into()));
        if tried.is_err() {
            store.lock_row(mode, *id, tree.pages.id, key, options.lock_timeout).await?;
        }
        // Without the answer to what follows the lock is worth nothing: kept, the next call would not ask again.
        let lock = RowLock { engine: &store.engine, owner: *id, keyspace: tree.pages.id, key };
        // Whoever changed the row had its lock until the change was published: where nothing was published since the
        // snapshot, the row can't have changed.
        if let Some(snapshot) = view.snapshot()
            && store.engine.clock.published() > snapshot.timestamp
        {
            let changed = store.engine.changed_since(mode, tree, key, snapshot.timestamp).await?;
            snapshot.check()?;
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

    /// Reserves memory for a row that is about to be locked, and written if there is a value, or the lack of one, of so
    /// many bytes.
    fn secure_memory(&mut self, key: &[u8], value_bytes: Option<usize>) -> Result<()> {
        let limit_bytes = self.store()?.engine.budget.transaction_memory_max();
        let write_bytes = self.writes.set.memory_bytes_with(key, value_bytes.unwrap_or(0));
        let lock_bytes = self.locks.memory_bytes_with(key);
        let bytes = write_bytes + lock_bytes;
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
        let has_memory = self.memory.cover(lock_bytes as u64)
            && (value_bytes.is_none() || SharedWrites::secure(&mut self.writes, write_bytes));
        if !has_memory {
            return Err(Error::transactions_in_memory(self.memory.limit_bytes()));
        }
        Ok(())
    }

    /// Puts a row in place of one with the same key, if there is one.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another transaction has changed the row since this one began, or holds it for too long;
    /// [`Error::KeyTooLong`], [`Error::TransactionTooLarge`], [`Error::MemoryInUse`], [`Error::Invalid`] for a keyspace
    /// of another database. The transaction can go on after all but a conflict, which its further writes and its commit
    /// get as well.
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        ready(self.insert_in(WaitMode::Blocking, keyspace, key.as_ref(), value.as_ref()))
    }

    pub(crate) async fn insert_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let open = self.open(keyspace)?;
        if value.len() > MEDIUM_BYTES_MAX {
            self.lock_large(mode, open, key).await?;
            let memory = self.store()?.source_memory(mode).await?;
            return self.insert_large(mode, open, key, Blocking(value), memory).await.map(drop);
        }
        self.secure_memory(key, Some(value.len()))?;
        self.lock(mode, open, key).await?;
        SharedWrites::alone(&mut self.writes).put(&open.tree, key, value);
        Ok(())
    }

    /// Stores what `reader` yields as the row's value, of any length. Its bytes go to disk at once and count for
    /// nothing in the transaction's size. Returns their number.
    ///
    /// # Errors
    /// [`Error::Source`] if the reader fails, [`Error::DiskFull`]; [`Error::MemoryInUse`] if others' values have had
    /// all the memory that is for them for 10 seconds, and nothing has been read; otherwise as
    /// [`insert`](Transaction::insert).
    pub fn insert_from(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, reader: impl Read) -> Result<u64> {
        ready(self.insert_from_in(WaitMode::Blocking, keyspace, key.as_ref(), Blocking(reader)))
    }

    pub(crate) async fn insert_from_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        mut source: impl Source,
    ) -> Result<u64> {
        let open = self.open(keyspace)?;
        // Who waits for a row must not have the memory that the row's owner may wait for.
        self.lock_large(mode, open, key).await?;
        let memory = self.store()?.source_memory(mode).await?;
        let head = super::keyspace::read_head(&mut source).await?;
        if head.len() <= MEDIUM_BYTES_MAX {
            drop(memory);
            self.insert_in(mode, keyspace, key, &head).await?;
            return Ok(head.len() as u64);
        }
        self.insert_large(mode, open, key, WithHead { head: &head, source }, memory).await
    }

    async fn insert_large(
        &mut self,
        mode: WaitMode<'_>,
        open: &OpenKeyspace,
        key: &[u8],
        source: impl Source,
        memory: Grant,
    ) -> Result<u64> {
        let store = self.handle.store()?;
        store.engine.check_failure()?;
        let (tree, make_space) = (&open.tree, &store.engine.make_space);
        let value = values::write_large(mode, tree, store.new_value(), source, memory, make_space).await?;
        let length = value.length;
        SharedWrites::alone(&mut self.writes).put_large(&open.tree, key, value);
        Ok(length)
    }

    async fn lock_large(&mut self, mode: WaitMode<'_>, open: &OpenKeyspace, key: &[u8]) -> Result<()> {
        self.secure_memory(key, Some(size_of::<LargeValue>()))?;
        self.lock(mode, open, key).await
    }

    /// Removes the row, if there is one.
    ///
    /// # Errors
    /// Those of [`insert`](Transaction::insert).
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        ready(self.remove_in(WaitMode::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn remove_in(&mut self, mode: WaitMode<'_>, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let open = self.open(keyspace)?;
        self.secure_memory(key, Some(0))?;
        self.lock(mode, open, key).await?;
        SharedWrites::alone(&mut self.writes).remove(&open.tree, key);
        Ok(())
    }

    /// A value as a stream, as the transaction sees it now. Can be read on when the transaction has ended, however it
    /// did.
    ///
    /// # Errors
    /// Those of [`get`](Transaction::get).
    pub fn read(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ready(self.read_in(WaitMode::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn read_in(
        &self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<ValueReader>> {
        let tree = &self.open(keyspace)?.tree;
        let content = match self.writes.set.get(tree.pages.id, key) {
            Some(Change::Put(value)) => Content::bytes(value, &self.store()?.engine)?,
            Some(Change::PutLarge(value)) => Content::Own(Arc::clone(value)),
            Some(Change::Remove) => return Ok(None),
            None => {
                if let Some(reads) = &self.reads {
                    reads.lock().add_key(tree, key)?;
                }
                return self.handle.value_reader(mode, tree, key, self.view.open_snapshot(self.store()?)).await;
            }
        };
        Ok(Some(ValueReader::new(&self.handle, tree, self.view.open_snapshot(self.store()?), content)))
    }

    /// The rows of a range as the transaction sees them now, its own changes included. The first change while it is
    /// open copies what the transaction has changed so far, which counts for the memory of open transactions: an eighth
    /// of the budget, in which there is room for the largest transaction and one copy. So a change ends in
    /// [`Error::MemoryInUse`] where scans of two earlier moments of the largest are open, or one beside other
    /// transactions that have the rest; the scans are not affected. Can go on
    /// when the transaction has ended, but for a serializable one that was committed: then it ends in
    /// [`Error::Invalid`]. One of a keyspace of another database yields [`Error::Invalid`] alone.
    pub fn range<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Range {
        self.scan(keyspace, (range.start_bound().cloned(), range.end_bound().cloned()))
    }

    fn scan(&self, keyspace: &Keyspace, bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Range {
        let tree = match self.open(keyspace) {
            Ok(open) => open.tree.clone(),
            Err(error) => return Range::refused(error),
        };
        let within = (bounds.0.as_ref().map(|key| &key[..]), bounds.1.as_ref().map(|key| &key[..]));
        let has_own = self.writes.set.range(tree.pages.id, within).next().is_some();
        let own = has_own.then(|| Arc::clone(&self.writes));
        Range::new(
            Arc::clone(&self.handle),
            tree,
            self.view.open_snapshot(self.handle.store_here()),
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
    /// Those of [`get`](Transaction::get).
    pub fn count<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Result<u64> {
        ready(self.range(keyspace, range).count_rows(WaitMode::Blocking))
    }

    /// A point to go back to.
    #[must_use]
    pub fn savepoint(&mut self) -> Savepoint {
        let position = self.writes.set.position();
        Savepoint { opening: self.handle.number, transaction: self.id, position, roll_backs: self.roll_backs.count }
    }

    /// Undoes what the transaction changed since the savepoint. Locks that it took since then stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a savepoint of another transaction, or one that an earlier roll-back has passed;
    /// [`Error::MemoryInUse`] if scans of the transaction are still open and there is no memory to leave its changes to
    /// them.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let is_mine = savepoint.opening == self.handle.number && savepoint.transaction == self.id;
        if !is_mine || self.roll_backs.have_passed(&savepoint) {
            return Err(Error::Invalid("the savepoint is not one of this transaction's any more".into()));
        }
        let bytes = self.writes.set.memory_bytes_with(&[], 0);
        if !SharedWrites::secure(&mut self.writes, bytes) {
            return Err(Error::transactions_in_memory(self.memory.limit_bytes()));
        }
        self.roll_backs.note(savepoint.position);
        SharedWrites::alone(&mut self.writes).roll_back(savepoint.position);
        Ok(())
    }

    /// Makes the transaction's changes seen by all and, with [`Durability::Full`], durable. Returns its timestamp.
    ///
    /// Without changes it waits, whatever its durability, until all that it has read is durable and every other reader
    /// sees it too, and returns the timestamp up to which it has read: that of its snapshot, or of its last read.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::TransactionTooLarge`], [`Error::Failed`], [`Error::SnapshotTooOld`];
    /// [`Error::Conflict`] if it is serializable and rows that it read have changed, or if one of its writes got it:
    /// nothing of it remains. [`Error::OutcomeUnknown`]: reopening tells.
    pub fn commit(self) -> Result<Timestamp> {
        ready(self.commit_in(WaitMode::Blocking))
    }

    pub(crate) async fn commit_in(self, mode: WaitMode<'_>) -> Result<Timestamp> {
        self.check_conflict()?;
        let Transaction { handle, options, view, writes, reads, locks, memory: _memory, .. } = self;
        let store = handle.store()?;
        let writes = &writes.set;
        if writes.is_empty() {
            drop(locks);
            store.engine.show_durable(mode, view.seen()).await?;
            return Ok(view.seen());
        }
        view.check()?;
        let rows: Vec<Row<'_>> = writes.rows().map(|(tree, key, change)| Row { tree, key, change }).collect();
        let read_set = reads.as_deref().map(ReadSet::end).filter(|set| !set.is_empty());
        let reads = read_set.as_ref().zip(view.snapshot()).map(|(set, snapshot)| Reads { set, snapshot });
        store.commit(mode, &rows, reads, options.durability, locks).await
    }

    /// The commit after which it sees the database; if it is read committed, that up to which it has seen it.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    #[must_use]
    pub fn snapshot_timestamp(&self) -> Timestamp {
        self.view.seen()
    }

    /// Ends the transaction without a trace; dropping it does the same.
    pub fn abort(self) {}
}
