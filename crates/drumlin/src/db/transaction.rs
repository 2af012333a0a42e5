//! Transactions: reads at a snapshot, and writes that are committed together or not at all.

use std::future::Future;
use std::io::Read;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::Keyspace;
use super::handle::Handle;
use super::keyspace::WithHead;
use super::pending_spill::PendingSpill;
use super::reader::Reader;
use super::rows::{Horizon, ReadView, Rows};
use super::shortage::Shortage;
use crate::coverage;
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::memory::{Account, Grant};
use crate::seglog::Appended;
use crate::space::runs::REMOVAL_COUNT_MAX;
use crate::store::{LOCK_TIMEOUT, OpenKeyspace, Store};
use crate::sync::Mutex;
use crate::task::{Rooted, WaitMode, ready};
use crate::txn::TransactionId;
use crate::txn::commit::{Durability, Removals, Row, RowsSeen};
use crate::txn::interrupt::Interrupt;
use crate::txn::locks::SHARER_BYTES;
use crate::txn::read_set::{ReadSet, Reads};
use crate::txn::row_locks::{Planned, RowLocks};
use crate::txn::running::BodyOf;
use crate::txn::values::{self, Blocking, LargeValue, MEDIUM_BYTES_MAX, Source};
use crate::txn::write_set::{Change, SharedWrites, WriteSet};

/// The maximum number of rows in a commit that a task applies itself. Applying this many rows takes about 300 µs.
/// Larger commits are handed to another thread, with a round trip of about 60 µs. The simulation uses a lower limit
/// because its commits are smaller.
/// Measured: decision 034.
pub(super) const ROWS_ON_TASK_MAX: usize = if cfg!(feature = "sim") { 12 } else { 512 };
/// The maximum log record size of a commit that a task applies itself.
/// Measured: decision 034.
pub(super) const RECORD_BYTES_ON_TASK_MAX: usize = if cfg!(feature = "sim") { 8 << 10 } else { 256 << 10 };

/// The isolation level of a transaction.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use drumlin::{Isolation, TxOptions};
///
/// # let doctors = db.keyspace("doctors on call")?;
/// doctors.insert("ann", "")?;
/// doctors.insert("bob", "")?;
/// // If two doctors leave at the same time, one of the commits fails with a conflict and is retried.
/// let options = TxOptions { isolation: Isolation::Serializable, ..db.tx_options() };
/// db.transact_with(options, |tx| {
///     if tx.count(&doctors, ..)? > 1 { tx.remove(&doctors, "ann") } else { Ok(()) }
/// })?;
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// Reads see the database as of the transaction's beginning, plus its own changes. If two transactions change the
    /// same row, the second one fails with [`Error::Conflict`].
    ///
    /// This prevents lost updates and phantoms. Write skew is possible: two transactions can read the same rows and
    /// each change a different one.
    #[default]
    Snapshot,
    /// Behaves as if transactions ran one after another. As with [`Snapshot`](Isolation::Snapshot), reads see the
    /// database as of the transaction's beginning, plus its own changes. A commit with changes fails with
    /// [`Error::Conflict`] if another transaction has since changed a row that this one has read, or inserted a row
    /// where this one found none.
    ///
    /// Adds no cost to other transactions. Reads are recorded (scans and counts by their bounds), and the records count
    /// towards the transaction's size. The commit revisits every leaf that was read, including all leaves between the
    /// bounds of a scan or count, so its cost grows with their number. The leaves may amount to nearly a quarter of the
    /// pages that fit into the memory budget. If there are more, the transaction fails with
    /// [`Error::TransactionTooLarge`]. A transaction without changes validates nothing, and may read any number of
    /// rows. Rows locked by [`get_for_update`](Transaction::get_for_update) need no validation.
    Serializable,
    /// Each read sees the newest committed state and the transaction's own changes. A scan or value reader sees the
    /// database as of when it began. Writes wait for each other and never conflict, unless a bulk load or a range
    /// delete overtakes the lock of a row. Between its reads, the transaction retains no old versions in memory.
    ReadCommitted,
}

/// The options of a transaction.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use std::time::Duration;
///
/// use drumlin::{Durability, TxOptions};
///
/// # let k = db.keyspace("k")?;
/// let options = TxOptions {
///     durability: Durability::Relaxed,
///     lock_timeout: Duration::from_millis(100),
///     ..TxOptions::default()
/// };
/// db.transact_with(options, |tx| tx.insert(&k, "a", "1"))?;
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TxOptions {
    /// The isolation from other transactions. Default: [`Isolation::Snapshot`].
    pub isolation: Isolation,
    /// The durability of the commit when it returns. Default: [`Durability::Full`];
    /// [`Database::tx_options`](crate::Database::tx_options) returns the database's own default instead.
    pub durability: Durability,
    /// The maximum time that a write waits for a row locked by another transaction. Then it fails with
    /// [`Error::LockTimeout`]. Default 10 seconds. With zero, the write fails without waiting, and the transaction can
    /// try other rows. In this way, it can [skip locked rows](crate::LockHolder). A queue does not need this:
    /// [`pop_first_in`](Transaction::pop_first_in) skips locked rows with any timeout.
    ///
    /// A write outside of transactions waits for up to 10 seconds. It waits even if its own thread has locked the row
    /// in a transaction, because another thread may end that transaction.
    pub lock_timeout: Duration,
    /// The time after which [`transact`](crate::Database::transact) and its variants stop retrying. Default:
    /// [`Duration::MAX`], no limit.
    pub retry_timeout: Duration,
}

impl Default for TxOptions {
    fn default() -> TxOptions {
        TxOptions {
            isolation: Isolation::default(),
            durability: Durability::default(),
            lock_timeout: LOCK_TIMEOUT,
            retry_timeout: Duration::MAX,
        }
    }
}

/// A transaction over any number of keyspaces. Its changes are invisible to others until
/// [`commit`](Transaction::commit), and are discarded on drop.
///
/// A transaction can be larger than memory. Changes beyond a sixteenth of the memory budget go to disk until the
/// commit; [`Error::TransactionTooLarge`] lists the exceptions. The commit of such a transaction is always durable when
/// it returns. It costs O(rows of the transaction), during which other commits go on.
///
/// Its reading methods are those of [`Reader`].
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let (accounts, log) = (db.keyspace("accounts")?, db.keyspace("log")?);
/// let mut tx = db.begin()?;
/// tx.insert(&accounts, "ann", "5")?;
/// tx.insert(&log, "1", "ann was given 5")?;
/// assert_eq!(tx.get(&accounts, "ann")?.unwrap(), "5"); // its own changes
/// assert!(accounts.get("ann")?.is_none()); // other callers do not see them yet
/// tx.commit()?; // Error::Conflict if another transaction was first; Database::transact would retry
/// assert_eq!(accounts.get("ann")?.unwrap(), "5");
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Transaction {
    pub(super) reader: Reader,
    pub(super) id: TransactionId,
    pub(super) options: TxOptions,
    pub(super) locks: RowLocks,
    /// `false` if the transaction takes no row locks. See [`begin_alone`](Transaction::begin_alone).
    pub(super) takes_locks: bool,
    /// The memory grant for row locks. The write set and the read set have their own grants.
    pub(super) memory: Grant,
    roll_backs: RollBacks,
    /// The highest position of a savepoint.
    pub(super) savepoint_max: usize,
    /// A spill whose result has not been taken yet.
    pub(super) pending_spill: Option<Arc<PendingSpill>>,
    /// The reason for the conflict that has ended the transaction.
    pub(super) conflict: Option<&'static str>,
    /// Present once [`interrupter`](Transaction::interrupter) has been called, so that other threads can end the
    /// transaction's waits.
    pub(super) interrupt: Option<Arc<Interrupt>>,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (isolation, seen) = (self.options.isolation, self.reader.view.horizon.seen());
        write!(f, "Transaction({isolation:?} at {seen}, {} rows changed)", self.writes().set.row_count())
    }
}

/// A point in a transaction to which its changes can be rolled back.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// let mut tx = db.begin()?;
/// tx.insert(&k, "a", "1")?;
/// let savepoint = tx.savepoint();
/// tx.insert(&k, "a", "2")?;
/// tx.rollback_to(savepoint)?;
/// assert_eq!(tx.get(&k, "a")?.unwrap(), "1");
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    /// The number of the opening. Each opening numbers its transactions from the start.
    opening: u64,
    transaction: TransactionId,
    position: usize,
    /// The number of roll-backs before this savepoint.
    roll_backs: u64,
}

/// The outcome of an attempt to apply the changes of a transaction.
enum Outcome {
    /// The changes are applied. Their log write may be pending.
    Applied(Arc<Handle>, Appended),
    /// The changes can be committed only as spilled ones.
    TooLarge(Box<Transaction>),
}

/// The roll-backs that can invalidate a savepoint, as pairs of roll-back number and position. Both ascend.
#[derive(Default)]
struct RollBacks {
    count: u64,
    lowest: Vec<(u64, usize)>,
}

impl RollBacks {
    fn record(&mut self, position: usize) {
        self.count += 1;
        while self.lowest.last().is_some_and(|(_, higher)| *higher >= position) {
            self.lowest.pop();
        }
        self.lowest.push((self.count, position));
    }

    /// Returns `true` if there has since been a roll-back to a position before the savepoint.
    fn have_passed(&self, savepoint: &Savepoint) -> bool {
        let since = self.lowest.partition_point(|(number, _)| *number <= savepoint.roll_backs);
        self.lowest.get(since).is_some_and(|(_, position)| *position < savepoint.position)
    }
}

impl Transaction {
    /// Begins a transaction that locks its rows only when it commits, and never reads.
    pub(super) fn begin_batch(handle: &Arc<Handle>, options: TxOptions) -> Result<Transaction> {
        let mut transaction = Transaction::begin(handle, options)?;
        transaction.locks.planned = Some(Planned::default());
        Ok(transaction)
    }

    /// Begins a transaction that takes no row locks, because all other transactions are prepared ones. Like a bulk
    /// load, it may change rows that those have locked.
    pub(super) fn begin_alone(handle: &Arc<Handle>, options: TxOptions) -> Result<Transaction> {
        Ok(Transaction { takes_locks: false, ..Transaction::begin(handle, options)? })
    }

    pub(super) fn set_durability(&mut self, durability: Durability) {
        self.options.durability = durability;
    }

    pub(crate) fn begin(handle: &Arc<Handle>, options: TxOptions) -> Result<Transaction> {
        let store = handle.store()?;
        store.engine.check_failure()?;
        let id = store.next_transaction();
        let locks = RowLocks::new(&store.engine, id);
        let budget = &store.engine.budget;
        let horizon = match options.isolation {
            Isolation::Snapshot | Isolation::Serializable => {
                Horizon::Fixed(store.open_snapshot(|| store.engine.clock.published()))
            }
            Isolation::ReadCommitted => Horizon::Published(Arc::new(AtomicU64::new(store.engine.clock.visible().0))),
        };
        let reads = (options.isolation == Isolation::Serializable).then(|| Arc::new(Mutex::new(ReadSet::new(budget))));
        let own = Some(SharedWrites::new(budget.grant(Account::Transactions)));
        let memory = budget.grant(Account::Transactions);
        let view = ReadView { horizon, own, reads, shortage: Shortage::watched() };
        let reader = Reader { handle: Arc::clone(handle), view, kept: None, kind: "transaction" };
        Ok(Transaction {
            reader,
            id,
            options,
            locks,
            takes_locks: true,
            memory,
            roll_backs: RollBacks::default(),
            savepoint_max: 0,
            pending_spill: None,
            conflict: None,
            interrupt: None,
        })
    }

    pub(crate) fn store(&self) -> Result<&Arc<Store>> {
        self.reader.store()
    }

    /// Returns the open keyspace. Fails if it belongs to a different database.
    pub(super) fn open<'k>(&self, keyspace: &'k Keyspace) -> Result<&'k OpenKeyspace> {
        keyspace.named_in(&self.reader.handle, self.reader.kind)
    }

    /// Returns the rows of a keyspace as this transaction sees them. Fails if the keyspace belongs to a different
    /// database.
    pub(super) fn rows<'r>(&'r self, keyspace: &'r Keyspace) -> Result<Rows<'r>> {
        self.reader.rows(keyspace)
    }

    pub(super) fn writes(&self) -> &SharedWrites {
        self.reader.view.own.as_ref().expect("a transaction has writes")
    }

    pub(super) fn writes_mut(&mut self) -> &mut Arc<SharedWrites> {
        self.reader.view.own.as_mut().expect("a transaction has writes")
    }

    /// Ends the transaction with a conflict that the caller declares. As after a conflict with another transaction,
    /// further writes and the commit fail with the returned [`Error::Conflict`], and
    /// [`Database::transact`](crate::Database::transact) retries the transaction.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let seats = db.keyspace("seats")?;
    /// let mut seats_tried = 0..;
    /// db.transact(|tx| {
    ///     let seat = format!("seat {:?}", seats_tried.next());
    ///     if tx.contains_key(&seats, &seat)? {
    ///         return Err(tx.conflict("the seat is taken"));
    ///     }
    ///     tx.insert(&seats, &seat, "ann")
    /// })?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    pub fn conflict(&mut self, reason: &'static str) -> Error {
        let reason = *self.conflict.get_or_insert(reason);
        Error::Conflict { reason }
    }

    /// Returns the transaction's body, which [`transact`](crate::Database::transact) marks as running.
    pub(super) fn body(&self) -> BodyOf {
        BodyOf::new(&self.locks.engine.locks, self.id)
    }

    /// Returns `true` if the transaction's snapshot was ended.
    pub(super) fn is_too_old(&self) -> bool {
        self.reader.view.horizon.check().is_err()
    }

    /// Returns `true` if other transactions caused the failure, in which case an immediate retry may succeed.
    pub(super) fn was_hindered(&self) -> bool {
        let view = &self.reader.view;
        self.conflict.is_some() || self.is_too_old() || view.shortage.was_met()
    }

    pub(super) fn check_conflict(&self) -> Result<()> {
        self.conflict.map_or(Ok(()), |reason| Err(Error::Conflict { reason }))
    }

    /// Reserves memory for locking a row. With `value_bytes`, also reserves memory for writing the row with a value of
    /// that length; a removal passes 0.
    pub(super) fn secure_memory(&mut self, key: &[u8], value_bytes: Option<usize>) -> Result<()> {
        let limit_bytes = self.store()?.engine.budget.transaction_memory_max();
        let writes = &self.writes().set;
        let write_bytes = writes.memory_bytes_with(key, value_bytes.unwrap_or(0));
        // A lock without a write may be a shared one.
        let sharer_bytes = if value_bytes.is_none() { SHARER_BYTES } else { 0 };
        let lock_bytes = self.locks.memory_bytes_with(key) + sharer_bytes;
        let bytes = write_bytes + lock_bytes;
        if value_bytes.is_none() {
            self.check_locks(lock_bytes as u64, limit_bytes)?;
        }
        if bytes as u64 > limit_bytes && SharedWrites::free_unused(self.writes_mut()) {
            return self.secure_memory(key, value_bytes);
        }
        if bytes as u64 > limit_bytes || self.should_spill(bytes as u64)? {
            return Err(Error::writes_too_large(self.writes().set.position() + 1, bytes as u64, limit_bytes));
        }
        if let Some(reads) = &self.reader.view.reads {
            let mut reads = reads.lock();
            let bytes_with_reads = (bytes + reads.memory_bytes()) as u64;
            if bytes_with_reads > limit_bytes {
                return Err(Error::reads_too_large(bytes_with_reads, limit_bytes));
            }
            reads.extra_bytes = bytes;
        }
        let has_memory = self.memory.cover(lock_bytes as u64)
            && (value_bytes.is_none() || SharedWrites::secure(self.writes_mut(), write_bytes));
        if !has_memory {
            return self.reader.view.shortage.noting(Err(Error::transactions_in_memory(self.memory.limit_bytes())));
        }
        Ok(())
    }

    /// Fails if the locks would take too much of the transaction's memory with one more row that is only locked. The
    /// locks of changed rows are spilled together with the changes, but these can't be. They leave a quarter of the
    /// memory for changes, so that these are spilled in parts of a useful size.
    fn check_locks(&self, lock_bytes: u64, limit_bytes: u64) -> Result<()> {
        let quarter_bytes = limit_bytes / 4;
        let are_changes_locked = self.writes().set.can_spill();
        // With changes in memory, some of the locks are theirs. Spill them, and check the others alone.
        let lock_bytes_max = limit_bytes - if are_changes_locked { quarter_bytes / 2 } else { quarter_bytes };
        if lock_bytes > lock_bytes_max {
            let row_count = self.locks.rows().count() + 1;
            return Err(Error::locks_too_large(row_count, lock_bytes, limit_bytes - quarter_bytes));
        }
        Ok(())
    }

    /// Returns `true` if the transaction has enough changes to spill them, now that it would take `bytes` of memory
    /// with the next one. If other transactions leave little memory, fewer are enough.
    #[inline]
    fn should_spill(&self, bytes: u64) -> Result<bool> {
        let budget = &self.store()?.engine.budget;
        let (spill_bytes, write_bytes) = (budget.spill_bytes(), self.writes().set.entry_bytes() as u64);
        let is_large = bytes > spill_bytes && write_bytes > spill_bytes / 4;
        let is_due = is_large || write_bytes > spill_bytes / 8 && budget.is_scarce(Account::Transactions);
        Ok(is_due && self.may_spill())
    }

    /// Reserves memory for a write set of this size.
    pub(super) fn secure_writes(&mut self, write_bytes: usize) -> Result<()> {
        let limit_bytes = self.store()?.engine.budget.transaction_memory_max();
        let bytes = (write_bytes + self.locks.memory_bytes_with(&[])) as u64;
        if bytes > limit_bytes {
            return Err(Error::writes_too_large(self.writes().set.position() + 1, bytes, limit_bytes));
        }
        if !SharedWrites::secure(self.writes_mut(), write_bytes) {
            return self.reader.view.shortage.noting(Err(Error::transactions_in_memory(self.memory.limit_bytes())));
        }
        Ok(())
    }

    /// Fails if a write would make the transaction's commit record too long for the log.
    pub(super) fn check_record(&self, open: &OpenKeyspace, key: &[u8], change: &Change<'_>) -> Result<()> {
        let writes = &self.writes().set;
        let limit_bytes = self.store()?.engine.log().body_bytes_max();
        if let Some(bytes) = writes.record_bytes_above(limit_bytes, open.tree.pages.id, key, change) {
            return Err(Error::record_too_large(writes.row_count() + 1, bytes as u64, limit_bytes as u64));
        }
        Ok(())
    }

    /// Puts a row, replacing any row with the same key.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another transaction has changed the row since this one began, or if waiting for its lock
    /// would cause a deadlock; [`Error::LockTimeout`] if another transaction holds the row's lock for too long;
    /// [`Error::KeyTooLong`], [`Error::TransactionTooLarge`], [`Error::MemoryInUse`], [`Error::Invalid`] for a keyspace
    /// of a different database. The transaction stays usable after any of these errors except a conflict. After a
    /// conflict, its writes and its commit fail with the same error.
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        ready(self.insert_in(WaitMode::Blocking, keyspace, key.as_ref(), value.as_ref()))
    }

    #[inline(never)]
    pub(crate) fn insert_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            let open = self.open(keyspace)?;
            if value.len() > MEDIUM_BYTES_MAX {
                self.lock_large(mode, open, key).await?;
                let memory = self.source_memory(mode).await?;
                return self.insert_large(mode, open, key, Blocking(value), memory).await.map(drop);
            }
            self.make_room(mode, open, key, Some(&Change::Put(value)), value.len()).await?;
            self.lock(mode, open, key).await?;
            SharedWrites::unshared(self.writes_mut()).put(&open.tree, key, value);
            Ok(())
        })
    }

    /// Stores everything that `reader` yields, of any length, as the row's value. The bytes are written to disk before
    /// the commit and do not count towards the transaction's size. Returns the value's length.
    ///
    /// # Errors
    /// [`Error::Source`] if the reader fails; [`Error::DiskFull`]; [`Error::MemoryInUse`] if other writers have used up
    /// the memory for such values for 10 seconds, in which case nothing was read from `reader`. Otherwise the errors of
    /// [`insert`](Transaction::insert).
    pub fn insert_from(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, mut reader: impl Read) -> Result<u64> {
        self.insert_read(keyspace, key.as_ref(), &mut reader)
    }

    #[inline(never)]
    pub(super) fn insert_read(&mut self, keyspace: &Keyspace, key: &[u8], reader: &mut dyn Read) -> Result<u64> {
        ready(self.insert_from_in(WaitMode::Blocking, keyspace, key, Blocking(reader)))
    }

    pub(crate) async fn insert_from_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        mut source: impl Source,
    ) -> Result<u64> {
        let open = self.open(keyspace)?;
        // Lock the row before reserving memory. A call must not hold such memory while it waits for a row, because the
        // lock's holder may be waiting for memory.
        self.lock_large(mode, open, key).await?;
        let memory = self.source_memory(mode).await?;
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
        let store = self.store()?;
        store.engine.check_failure()?;
        let (tree, reclaim) = (&open.tree, &store.engine.reclaim);
        let value = values::write_large(mode, tree, store.new_value(), source, memory, reclaim).await?;
        let length = value.length;
        debug_assert!(value.reference().is_none(), "a value is put again that a commit has named");
        SharedWrites::unshared(self.writes_mut()).put_large(&open.tree, key, value);
        Ok(length)
    }

    async fn source_memory(&self, mode: WaitMode<'_>) -> Result<Grant> {
        self.reader.view.shortage.noting(self.store()?.source_memory(mode).await)
    }

    async fn lock_large(&mut self, mode: WaitMode<'_>, open: &OpenKeyspace, key: &[u8]) -> Result<()> {
        self.make_room(mode, open, key, None, size_of::<LargeValue>()).await?;
        self.lock(mode, open, key).await
    }

    /// Removes the row, if there is one.
    ///
    /// # Errors
    /// Same as [`insert`](Transaction::insert).
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        ready(self.remove_in(WaitMode::Blocking, keyspace, key.as_ref()))
    }

    #[inline(never)]
    pub(crate) fn remove_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            let open = self.open(keyspace)?;
            self.make_room(mode, open, key, Some(&Change::Remove), 0).await?;
            self.lock(mode, open, key).await?;
            SharedWrites::unshared(self.writes_mut()).remove(&open.tree, key);
            Ok(())
        })
    }

    /// Returns a point to which the transaction can be rolled back.
    #[must_use]
    pub fn savepoint(&mut self) -> Savepoint {
        let position = self.writes().set.position();
        self.savepoint_max = self.savepoint_max.max(position);
        Savepoint {
            opening: self.reader.handle.number(),
            transaction: self.id,
            position,
            roll_backs: self.roll_backs.count,
        }
    }

    /// Undoes all changes since the savepoint, but retains the row locks acquired since then.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a savepoint of a different transaction, or a savepoint that an earlier roll-back has
    /// undone; [`Error::MemoryInUse`] if some of the transaction's ranges are still open and there is no memory to copy
    /// its changes for them.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let is_of_this = savepoint.opening == self.reader.handle.number() && savepoint.transaction == self.id;
        if !is_of_this || self.roll_backs.have_passed(&savepoint) {
            return Err(Error::Invalid(
                "the savepoint belongs to another transaction, or an earlier roll-back has passed it".into(),
            ));
        }
        // A spill whose call was dropped is made again: its changes may be undone now.
        self.pending_spill = None;
        let bytes = self.writes().set.memory_bytes_with(&[], 0);
        if !SharedWrites::secure(self.writes_mut(), bytes) {
            return self.reader.view.shortage.noting(Err(Error::transactions_in_memory(self.memory.limit_bytes())));
        }
        self.roll_backs.record(savepoint.position);
        SharedWrites::unshared(self.writes_mut()).roll_back(savepoint.position);
        Ok(())
    }

    /// Makes the changes visible to all readers and, with [`Durability::Full`], durable. Returns the commit's
    /// timestamp.
    ///
    /// A transaction without changes, whatever its durability, waits until everything that it has read is durable and
    /// visible to all other readers. It returns the timestamp of its snapshot or, if read-committed, of its last read.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::TransactionTooLarge`], [`Error::Closed`], [`Error::Failed`],
    /// [`Error::SnapshotTooOld`]; [`Error::Conflict`] if the transaction is serializable and rows that it read have
    /// changed, or if one of its writes had a conflict. After any of these errors, the transaction has changed nothing.
    /// [`Error::OutcomeUnknown`] if only reopening the database can tell whether it was committed.
    pub fn commit(self) -> Result<Timestamp> {
        ready(self.commit_in(WaitMode::Blocking))
    }

    #[inline(never)]
    pub(crate) fn commit_in(mut self, mode: WaitMode<'_>) -> Rooted<impl Future<Output = Result<Timestamp>>> {
        Rooted::new(async move {
            self.check_conflict()?;
            self.lock_planned(mode).await?;
            let durability = self.options.durability;
            let writes = &self.writes().set;
            if writes.is_empty() {
                let Transaction { reader, locks, .. } = self;
                let seen = reader.view.horizon.seen();
                drop(locks);
                reader.store()?.engine.show_durable(mode, seen).await?;
                return Ok(seen);
            }
            if !writes.spilled().is_empty() {
                return self.commit_spilled_in(mode).await;
            }
            let outcome = match mode {
                // The rows are changed without yielding, so a long commit on this thread would stall its other tasks.
                // Folding older removals blocks the thread too.
                WaitMode::Tasks(tasks)
                    if writes.is_longer_than(ROWS_ON_TASK_MAX, RECORD_BYTES_ON_TASK_MAX) || needs_room(writes) =>
                {
                    let body = move || {
                        coverage::mark!("a long commit of a task was made by another thread");
                        ready(self.apply(WaitMode::Blocking, true))
                    };
                    tasks.committers.run(coverage::on_behalf(body)).await?
                }
                _ => self.apply(mode, mode.is_task()).await?,
            };
            match outcome {
                // The commit has been applied, even if the database has been closed since. Only its log write is still
                // pending.
                Outcome::Applied(handle, logged) => {
                    handle.store_here().engine.await_written(mode, &logged, durability).await
                }
                Outcome::TooLarge(transaction) => transaction.commit_spilled_in(mode).await,
            }
        })
    }

    /// Applies the changes and requests their log write. The transaction must have locked their rows.
    async fn apply(mut self, mode: WaitMode<'_>, for_task: bool) -> Result<Outcome> {
        let applied = self.try_apply(mode, for_task).await;
        match applied {
            // The pages of its rows, or their old versions, do not fit in memory together.
            Err(Error::TransactionTooLarge { .. }) if self.may_spill() => Ok(Outcome::TooLarge(Box::new(self))),
            applied => Ok(Outcome::Applied(Arc::clone(&self.reader.handle), applied?)),
        }
    }

    async fn try_apply(&mut self, mode: WaitMode<'_>, for_task: bool) -> Result<Appended> {
        let Transaction { reader, options, locks, .. } = self;
        let Reader { handle, view: ReadView { horizon, own, reads, .. }, .. } = reader;
        let store = handle.store()?;
        horizon.check()?;
        let writes = &own.as_ref().expect("a transaction has writes").set;
        let rows: Vec<Row<'_>> = writes.rows().map(|(tree, key, change)| Row { tree, key, change }).collect();
        let read_set = reads.as_deref().map(ReadSet::end).filter(|set| !set.is_empty());
        let reads = read_set.as_ref().zip(horizon.snapshot()).map(|(set, snapshot)| {
            let spilled = &store.engine.spilled;
            Reads { set, snapshot, spilled, published: spilled.published() }
        });
        let seen = rows_seen(horizon, locks);
        let list: Vec<_> = writes.removals().collect();
        let applied = if list.is_empty() {
            store.apply(mode, for_task, &rows, reads, seen, options.durability, locks).await
        } else {
            let removals = Removals {
                list: &list,
                snapshot: horizon.snapshot().map(|snapshot| &**snapshot),
                spilled_published: store.engine.spilled.published(),
                meets_prepared: &|keyspace, removed| {
                    store.engine.locks.any_held_by(keyspace, removed, |owner| store.prepared.may_be_owner(owner))
                },
            };
            store.apply_removing(mode, for_task, &rows, &removals, reads, seen, options.durability, locks).await
        };
        store.contention.noting(applied)
    }

    /// Returns the timestamp of the snapshot or, for a read-committed transaction, of the newest commit that it may
    /// have seen.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    #[must_use]
    pub fn snapshot_timestamp(&self) -> Timestamp {
        self.reader.view.horizon.seen()
    }

    /// Discards the transaction and its changes. Dropping it has the same effect.
    pub fn abort(self) {}
}

/// Returns `true` if the commit has to fold older removals before it can attach its own.
fn needs_room(writes: &WriteSet) -> bool {
    writes.removals().any(|(tree, _)| tree.pages.runs.are_many(|run| !run.has_rows(), REMOVAL_COUNT_MAX))
}

/// Returns the versions of its rows on which a transaction depends.
pub(super) fn rows_seen<'h>(horizon: &'h Horizon, locks: &RowLocks) -> RowsSeen<'h> {
    match (horizon.snapshot(), locks.since) {
        // Some rows may have been locked and read before this snapshot was taken.
        (Some(snapshot), Some(since)) if since < snapshot.timestamp => RowsSeen::Newest(since),
        (Some(snapshot), _) => RowsSeen::Snapshot(snapshot),
        (None, Some(since)) => RowsSeen::Newest(since),
        (None, None) => RowsSeen::Nothing,
    }
}

impl Deref for Transaction {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}
