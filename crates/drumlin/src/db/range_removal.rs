//! Range deletes: all rows of a range are removed by one commit, however many there are.

use std::future::Future;

use super::batch::Batch;
use super::bounds::{self, KeyRange, OwnedBounds};
use super::counting::interval;
use super::transaction::Transaction;
use super::{Isolation, Keyspace, TxOptions};
use crate::error::{Error, Result};
use crate::format::node::key_bytes_max;
use crate::space::runs::RemovedRange;
use crate::task::{Rooted, WaitMode, ready};
use crate::txn::write_set::SharedWrites;

/// The maximum number of ranges that a transaction may remove.
const RANGE_COUNT_MAX: usize = 256;

/// Shortens the end of a range if it is longer than any key can be. The range keeps the same keys.
fn shortened(mut end: Vec<u8>, key_bytes_max: usize) -> Vec<u8> {
    if end.len() > key_bytes_max {
        // Of the keys that begin with these bytes, only the one that ends here comes before both ends.
        end.truncate(key_bytes_max);
        end.push(0);
    }
    end
}

/// Range deletes. Removing a range is a single change, however many rows the range has: it takes O(1) time, memory and
/// log space. The rows are taken out of their pages in the background; until then, reads skip them.
///
/// The commit removes all rows that the range has at that moment, except those that the transaction itself has put
/// after removing the range. Before it, the commit waits for rows of the range that other transactions have locked. In
/// a [`Snapshot`](Isolation::Snapshot) or [`Serializable`](Isolation::Serializable) transaction, the commit fails with
/// [`Error::Conflict`] if another transaction has changed a row of the range since this one began. A
/// [`ReadCommitted`](Isolation::ReadCommitted) transaction removes such rows too.
///
/// If another transaction locks a row of the range while the commit is being made, or has read the range and is
/// serializable, that transaction ends with a conflict.
///
/// While a prepared transaction is [ready](crate::Database::ready_prepared), the commit waits, and fails with a
/// conflict after five seconds.
impl Transaction {
    /// Removes all rows of a range. O(changes that the transaction itself has made in the range).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// ["a", "b", "c"].into_iter().try_for_each(|key| k.insert(key, "old"))?;
    /// let mut tx = db.begin()?;
    /// tx.remove_range(&k, "b"..)?;
    /// tx.insert(&k, "c", "new")?;
    /// assert_eq!(tx.count(&k, ..)?, 2);
    /// tx.commit()?;
    /// assert!(k.get("b")?.is_none());
    /// assert_eq!(k.get("c")?.unwrap(), "new");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`]; [`Error::Invalid`] if the transaction has removed 256 ranges already, or for a
    /// keyspace of a different database; [`Error::MemoryInUse`]; [`Error::ReadOnly`]. The transaction stays usable. The
    /// commit may also fail with [`Error::LockTimeout`] or [`Error::Conflict`]. A transaction that has removed a range
    /// can't be prepared.
    pub fn remove_range(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Result<()> {
        self.remove_within(keyspace, &bounds::owned(&range))
    }

    /// Removes all rows whose key begins with `prefix`. Otherwise like [`remove_range`](Transaction::remove_range).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("2025-12-31", "")?;
    /// k.insert("2026-01-01", "")?;
    /// db.transact(|tx| tx.remove_prefix(&k, "2025-"))?;
    /// assert_eq!(k.count(..)?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`remove_range`](Transaction::remove_range).
    pub fn remove_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<()> {
        self.remove_within(keyspace, &bounds::of_prefix(prefix.as_ref()))
    }

    #[inline(never)]
    fn remove_within(&mut self, keyspace: &Keyspace, bounds: &OwnedBounds) -> Result<()> {
        self.check_conflict()?;
        let open = self.open(keyspace)?;
        self.store()?.check_write(open, &[])?;
        let Some((lower, upper)) = interval(bounds) else { return Ok(()) };
        let key_bytes_max = key_bytes_max(open.tree.pages.page_bytes());
        let [lower, upper] = [Some(lower), upper].map(|end| end.map(|end| shortened(end, key_bytes_max)));
        let range = RemovedRange { lower: lower.expect("a range has a lower end"), upper };
        if range.is_empty() {
            return Ok(());
        }
        // A spill whose call was dropped is made again, without the ranges.
        self.pending_spill = None;
        if !self.writes().set.spilled().is_empty() {
            let (writes, limit_bytes) = (&self.writes().set, self.store()?.engine.budget.transaction_memory_max());
            return Err(Error::ranges_too_large(writes.position(), writes.spilled().bytes(), limit_bytes));
        }
        if self.writes().set.range_count() >= RANGE_COUNT_MAX {
            return Err(Error::Invalid(format!("a transaction can remove up to {RANGE_COUNT_MAX} ranges")));
        }
        let bytes = self.writes().set.memory_bytes_with_range(open.tree.pages.id, &range);
        self.secure_writes(bytes)?;
        SharedWrites::unshared(self.writes_mut()).remove_range(&open.tree, range);
        Ok(())
    }
}

/// Range deletes. See [`Transaction::remove_range`]. A batch that removes a range fails with [`Error::Conflict`] only
/// if a prepared transaction has locked a row of the range, or stays [ready](crate::Database::ready_prepared) for five
/// seconds.
impl Batch {
    /// Removes all rows of a range, except those that the batch puts later. O(writes of the batch in the range).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("old", "")?;
    /// let mut batch = db.batch()?;
    /// batch.remove_range(&k, ..)?;
    /// batch.insert(&k, "new", "")?;
    /// batch.commit()?;
    /// assert_eq!(k.first()?.unwrap().0, "new");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Transaction::remove_range`].
    pub fn remove_range(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Result<()> {
        self.transaction.remove_range(keyspace, range)?;
        self.len += 1;
        Ok(())
    }

    /// Removes all rows whose key begins with `prefix`. Otherwise like [`remove_range`](Batch::remove_range).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut batch = db.batch()?;
    /// batch.remove_prefix(&k, "2025-")?;
    /// batch.commit()?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Transaction::remove_range`].
    pub fn remove_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<()> {
        self.transaction.remove_prefix(keyspace, prefix)?;
        self.len += 1;
        Ok(())
    }
}

/// Range deletes: each call is one commit, however many rows it removes. The rows are taken out of their pages in the
/// background; until then, reads skip them. See [`Transaction::remove_range`].
impl Keyspace {
    /// Removes all rows whose key begins with `prefix`, in one commit. Otherwise like
    /// [`remove_range`](Keyspace::remove_range).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("2025-12-31", "")?;
    /// k.insert("2026-01-01", "")?;
    /// k.remove_prefix("2025-")?;
    /// assert_eq!(k.count(..)?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`remove_range`](Keyspace::remove_range).
    pub fn remove_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<()> {
        ready(self.remove_keys(WaitMode::Blocking, bounds::of_prefix(prefix.as_ref())))
    }

    /// Removes all rows of a range in one commit: all of them or, after an error, none. O(1), whatever the number of
    /// rows. Durable when it returns, unless the handle's durability is relaxed. Waits for rows of the range that
    /// transactions have locked.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "")?;
    /// k.insert("b", "")?;
    /// k.remove_range("b"..)?;
    /// assert_eq!(k.count(..)?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Batch::commit`]. Also works on a full disk.
    pub fn remove_range(&self, range: impl KeyRange) -> Result<()> {
        ready(self.remove_keys(WaitMode::Blocking, bounds::owned(&range)))
    }

    /// Removes all rows. Otherwise like [`remove_range`](Keyspace::remove_range).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// let before = db.snapshot();
    /// k.clear()?;
    /// assert!(k.is_empty()?);
    /// assert_eq!(before.get(&k, "a")?.unwrap(), "1");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`remove_range`](Keyspace::remove_range).
    pub fn clear(&self) -> Result<()> {
        ready(self.remove_keys(WaitMode::Blocking, bounds::ALL))
    }

    #[inline(never)]
    pub(super) fn remove_keys(
        &self,
        mode: WaitMode<'_>,
        bounds: OwnedBounds,
    ) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            let (isolation, durability) = (Isolation::ReadCommitted, self.durability);
            let options = TxOptions { isolation, durability, ..TxOptions::default() };
            let mut transaction = Transaction::begin_batch(&self.handle, options)?;
            transaction.remove_within(self, &bounds)?;
            transaction.commit_in(mode).await.map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::shortened;

    /// Shortening the end of a range changes no comparison with a key.
    #[test]
    fn shortened_ends_are_before_the_same_keys() {
        let keys: Vec<Vec<u8>> = [&b""[..], b"\0", b"a", b"a\0", b"aa", b"ab", b"b", b"\xff\xff"].map(Vec::from).into();
        for end in [&b"aaa"[..], b"aa\0", b"aa\xff", b"ab\0\0", b"a", b"\xff\xff\xff"] {
            let short = shortened(end.to_vec(), 2);
            assert!(short.len() <= 3);
            assert!(keys.iter().all(|key| (key[..] < *end) == (*key < short)), "{end:?} and {short:?}");
        }
    }
}
