//! Removing many rows: in parts, each a transaction.

use std::ops::Bound;
use std::time::Duration;

use super::bounds::{self, KeyRange, OwnedBounds};
use super::range::Steps;
use super::transaction::Transaction;
use super::{Isolation, Keyspace, TxOptions, Value};
use crate::error::{Error, Recourse, Result};
use crate::store::LOCK_TIMEOUT;
use crate::task::{WaitMode, ready};
use crate::tree::Direction;

/// Rows that one part removes at the most.
const PART_ROWS_MAX: usize = 512;
/// Bytes of keys with which a part ends.
const PART_KEY_BYTES_MAX: usize = 32 << 10;

/// The runs of one part. Not a closure that is run again: a future that borrows one can't be shown to be `Send`.
struct Attempts {
    began: Duration,
    count: u32,
}

/// Removing many rows. They are removed in parts of up to 512, in the order of their keys. **Each part is atomic, the
/// whole is not**: readers may see some parts removed and others not yet, and after an error or a power cut the first
/// parts may be removed. Running the call again removes the rest. So any number of rows can be removed in little
/// memory, and other writers go on meanwhile. A row that they insert during the call is removed or stays.
///
/// To remove few rows at once, remove them in a transaction; to remove a keyspace with all its rows at once,
/// [`drop_keyspace`](crate::Database::drop_keyspace).
impl Keyspace {
    /// Removes all rows; returns their number. Durable when it returns, unless the handle's durability is relaxed.
    /// O(rows).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(k.clear()?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first) and [`insert`](Keyspace::insert). Works on a full disk too.
    pub fn clear(&self) -> Result<u64> {
        ready(self.remove_rows(WaitMode::Blocking, bounds::ALL))
    }

    /// Removes all rows whose key begins with `prefix`; returns their number. Otherwise like
    /// [`clear`](Keyspace::clear).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("2025-12-31", "")?;
    /// k.insert("2026-01-01", "")?;
    /// assert_eq!(k.remove_prefix("2025-")?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`clear`](Keyspace::clear).
    pub fn remove_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<u64> {
        ready(self.remove_rows(WaitMode::Blocking, bounds::of_prefix(prefix.as_ref())))
    }

    /// Removes all rows of a range; returns their number. Otherwise like [`clear`](Keyspace::clear).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "")?;
    /// k.insert("b", "")?;
    /// assert_eq!(k.remove_range("b"..)?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`clear`](Keyspace::clear).
    pub fn remove_range(&self, range: impl KeyRange) -> Result<u64> {
        ready(self.remove_rows(WaitMode::Blocking, bounds::owned(&range)))
    }

    pub(super) async fn remove_rows(&self, mode: WaitMode<'_>, (mut lower, upper): OwnedBounds) -> Result<u64> {
        let store = self.store()?;
        store.check_writable()?;
        store.engine.check_failure()?;
        let mut removed = 0;
        let mut part_rows_max = PART_ROWS_MAX;
        loop {
            let range = (lower.clone(), upper.clone());
            let mut attempts = Attempts { began: store.now(), count: 0 };
            let (keys, is_last) = loop {
                match self.keys_of_part(mode, range.clone(), part_rows_max).await {
                    Ok(part) => break part,
                    Err(error) => self.pause_after(mode, error, &mut attempts).await?,
                }
            };
            let Some(last) = keys.last() else { return Ok(removed) };
            let mut attempts = Attempts { began: store.now(), count: 0 };
            let count = loop {
                match self.remove_part(mode, &keys).await {
                    Ok(count) => break Some(count),
                    // Their old values take more memory than their keys tell.
                    Err(Error::TransactionTooLarge { .. }) if keys.len() > 1 => break None,
                    Err(error) => self.pause_after(mode, error, &mut attempts).await?,
                }
            };
            let Some(count) = count else {
                part_rows_max = keys.len() / 2;
                continue;
            };
            removed += count;
            // Once all is removed, no read may fail.
            if is_last {
                return Ok(removed);
            }
            lower = Bound::Excluded(last.to_vec());
        }
    }

    /// The first keys of a range, and `true` if it has no others.
    async fn keys_of_part(
        &self,
        mode: WaitMode<'_>,
        range: OwnedBounds,
        rows_max: usize,
    ) -> Result<(Vec<Value>, bool)> {
        let mut scan = self.rows().scan(range).keys();
        let (mut keys, mut bytes) = (Vec::new(), 0);
        while keys.len() < rows_max && bytes < PART_KEY_BYTES_MAX {
            let Some(key) = scan.next_in(mode, Direction::Forward).await.transpose()? else { return Ok((keys, true)) };
            bytes += key.len();
            keys.push(key);
        }
        Ok((keys, false))
    }

    /// Pauses after an error that is over then, before a part is run again: a conflict, or a snapshot that was ended
    /// for its memory. Returns any other.
    async fn pause_after(&self, mode: WaitMode<'_>, error: Error, attempts: &mut Attempts) -> Result<()> {
        // A deadlock is over at once; a row that another holds has been waited for already.
        let is_over = self.store()?.now() - attempts.began >= LOCK_TIMEOUT;
        if error.recourse() != Recourse::Retry || is_over {
            return Err(error);
        }
        attempts.count += 1;
        self.handle.pause(mode, attempts.count).await;
        Ok(())
    }

    /// Removes those rows that are there, in a transaction; returns their number.
    async fn remove_part(&self, mode: WaitMode<'_>, keys: &[Value]) -> Result<u64> {
        let (isolation, durability) = (Isolation::ReadCommitted, self.durability);
        let options = TxOptions { isolation, durability, ..TxOptions::default() };
        let mut transaction = Transaction::begin(&self.handle, options)?;
        let mut count = 0;
        for key in keys {
            count += u64::from(transaction.remove_if_there(mode, self, key).await?);
        }
        transaction.commit_in(mode).await?;
        Ok(count)
    }
}
