//! Write batches: many writes in one commit, without reads.

use std::io::Read;

use super::transaction::Transaction;
use super::{Database, Isolation, Keyspace, TxOptions};
use crate::error::Result;
use crate::format::Timestamp;
use crate::task::{WaitMode, ready};
use crate::txn::commit::Durability;
use crate::txn::values::Source;

/// Writes to any number of keyspaces that are committed together or not at all. Created by
/// [`Database::batch`](crate::Database::batch); discarded on drop.
///
/// A batch does not read. So it needs no snapshot, retains no old versions in memory, and does not conflict with other
/// commits, except for [range deletes](Batch::remove_range) and prepared transactions. It locks its rows only at the
/// commit, so an open batch blocks no writer. It locks them in a fixed order: one batch may wait for another, but
/// batches never deadlock with each other. If a batch writes a row twice, the later write wins.
///
/// A batch can be larger than memory. Writes beyond a sixteenth of the memory budget go to disk until the commit. Such
/// a batch then locks no rows: like a [bulk load](crate::Database::bulk_load), it does not wait for transactions that
/// have locked a row, and they end with a conflict if they depend on it. A batch that removes ranges stays in memory; a
/// write beyond the limit fails with [`TransactionTooLarge`](crate::Error::TransactionTooLarge), and the batch can
/// still be committed without that write.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let (orders, stock) = (db.keyspace("orders")?, db.keyspace("stock")?);
/// let mut batch = db.batch()?;
/// batch.insert(&orders, "2026-11-21/0001", "three apples")?;
/// batch.remove(&stock, "apples")?;
/// batch.commit()?;
/// assert_eq!(orders.count(..)?, 1);
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Batch {
    pub(super) transaction: Transaction,
    pub(super) len: usize,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} writes)", self.len)
    }
}

impl Batch {
    /// Puts a row, replacing any row with the same key. O(log n), where n is the number of rows in the batch. A value
    /// over 64 KiB is written to disk before the commit.
    ///
    /// # Errors
    /// [`KeyTooLong`](crate::Error::KeyTooLong), [`TransactionTooLarge`](crate::Error::TransactionTooLarge),
    /// [`MemoryInUse`](crate::Error::MemoryInUse), [`Invalid`](crate::Error::Invalid) for a keyspace of another
    /// database; [`DiskFull`](crate::Error::DiskFull) for a value over 64 KiB. After any of these errors, the batch
    /// stays usable.
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        ready(self.insert_in(WaitMode::Blocking, keyspace, key.as_ref(), value.as_ref()))
    }

    pub(super) async fn insert_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.transaction.insert_in(mode, keyspace, key, value).await?;
        self.len += 1;
        Ok(())
    }

    /// Stores everything that `reader` yields, of any length, as the row's value. The bytes are written to disk before
    /// the commit. Returns the value's length.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut batch = db.batch()?;
    /// batch.insert_from(&k, "film", &[7; 300_000][..])?;
    /// batch.commit()?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Transaction::insert_from`](crate::Transaction::insert_from), except for conflicts.
    pub fn insert_from(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, mut reader: impl Read) -> Result<u64> {
        let bytes = self.transaction.insert_read(keyspace, key.as_ref(), &mut reader)?;
        self.len += 1;
        Ok(bytes)
    }

    pub(super) async fn insert_from_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        source: impl Source,
    ) -> Result<u64> {
        let bytes = self.transaction.insert_from_in(mode, keyspace, key, source).await?;
        self.len += 1;
        Ok(bytes)
    }

    /// Removes the row, if there is one.
    ///
    /// # Errors
    /// Same as [`insert`](Batch::insert).
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        ready(self.transaction.remove_in(WaitMode::Blocking, keyspace, key.as_ref()))?;
        self.len += 1;
        Ok(())
    }

    /// Returns the number of writes so far. Repeated writes to the same row count separately.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no writes yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Commits the writes with the database's default durability ([`Config::durability`](crate::Config::durability)).
    /// Returns the commit's timestamp. A batch without writes commits nothing.
    ///
    /// # Errors
    /// [`LockTimeout`](crate::Error::LockTimeout) if a transaction holds the lock of one of the rows for 10 seconds;
    /// [`DiskFull`](crate::Error::DiskFull), [`TransactionTooLarge`](crate::Error::TransactionTooLarge),
    /// [`Closed`](crate::Error::Closed), [`Failed`](crate::Error::Failed); if the batch removes ranges,
    /// [`Conflict`](crate::Error::Conflict) with a prepared transaction, as in [`remove_range`](Batch::remove_range).
    /// After any of these errors, the batch has changed nothing. [`OutcomeUnknown`](crate::Error::OutcomeUnknown) if
    /// only reopening the database can tell whether the batch was committed.
    pub fn commit(self) -> Result<Timestamp> {
        ready(self.transaction.commit_in(WaitMode::Blocking))
    }

    /// Like [`commit`](Batch::commit), with the given durability.
    ///
    /// ```
    /// use drumlin::Durability;
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut batch = db.batch()?;
    /// batch.insert(&k, "a", "1")?;
    /// batch.commit_with(Durability::Relaxed)?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`commit`](Batch::commit).
    pub fn commit_with(mut self, durability: Durability) -> Result<Timestamp> {
        self.transaction.set_durability(durability);
        self.commit()
    }
}

impl Database {
    /// Begins a batch of writes.
    ///
    /// # Errors
    /// [`Closed`](crate::Error::Closed), or [`Failed`](crate::Error::Failed) once the database accepts no more commits.
    pub fn batch(&self) -> Result<Batch> {
        let options = TxOptions { isolation: Isolation::ReadCommitted, ..self.tx_options() };
        Ok(Batch { transaction: Transaction::begin_batch(&self.handle, options)?, len: 0 })
    }
}
