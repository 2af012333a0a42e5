//! Removes many rows in parts. Each part is a transaction.

use std::future::Future;
use std::ops::Bound;
use std::time::Duration;

use super::bounds::{self, OwnedBounds};
use super::range::Steps;
use super::transaction::Transaction;
use super::{Isolation, Keyspace, TxOptions, Value};
use crate::error::{Error, Recourse, Result};
use crate::store::LOCK_TIMEOUT;
use crate::task::{Rooted, WaitMode, ready};
use crate::tree::Direction;

/// The maximum number of rows that one part removes.
const PART_ROWS_MAX: usize = 512;
/// A part ends once its keys total this many bytes.
const PART_KEY_BYTES_MAX: usize = 32 << 10;

/// The attempts to remove one part. A retry closure would not do: if a future borrows a closure, the compiler can't
/// prove that the future is `Send`.
struct Attempts {
    began: Duration,
    count: u32,
}

/// Removal of many rows, in key order and in parts of up to 512. **Each part is atomic, but the whole is not**: readers
/// may see that some parts have been removed and others have not, and an error or a power cut may leave only the first
/// parts removed. Repeating the call removes the rest. So any number of rows can be removed with little memory, while
/// other writers continue. A row that another writer inserts during the call may or may not be removed.
///
/// To remove all rows atomically, use [`remove_range(..)`](Keyspace::remove_range). To remove a keyspace with all its
/// rows, use [`drop_keyspace`](crate::Database::drop_keyspace).
impl Keyspace {
    /// Removes all rows and returns their number. Durable when it returns, unless the handle's durability is relaxed.
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
    /// The errors of [`first`](Keyspace::first) and [`insert`](Keyspace::insert). Also works on a full disk.
    pub fn clear(&self) -> Result<u64> {
        ready(self.remove_rows(WaitMode::Blocking, bounds::ALL))
    }

    #[inline(never)]
    pub(super) fn remove_rows(
        &self,
        mode: WaitMode<'_>,
        (mut lower, upper): OwnedBounds,
    ) -> Rooted<impl Future<Output = Result<u64>>> {
        Rooted::new(async move {
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
                        // The old values of these rows need too much memory, which could not be known from their keys.
                        // Retry with half as many rows.
                        Err(Error::TransactionTooLarge { .. }) if keys.len() > 1 => break None,
                        Err(error) => self.pause_after(mode, error, &mut attempts).await?,
                    }
                };
                let Some(count) = count else {
                    part_rows_max = keys.len() / 2;
                    continue;
                };
                removed += count;
                // Return after the last part instead of reading once more, which could fail.
                if is_last {
                    return Ok(removed);
                }
                lower = Bound::Excluded(last.to_vec());
            }
        })
    }

    /// Returns the first keys of a range, and `true` if the range has no other keys.
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

    /// Pauses before a part is retried if the error was a conflict, or if the snapshot was ended because old versions
    /// used too much space. Returns any other error.
    async fn pause_after(&self, mode: WaitMode<'_>, error: Error, attempts: &mut Attempts) -> Result<()> {
        // After a deadlock, an immediate retry can succeed. If another transaction has locked a row, the failed attempt
        // has already waited for it.
        let is_over = self.store()?.now() - attempts.began >= LOCK_TIMEOUT;
        if error.recourse() != Recourse::Retry || is_over {
            return Err(error);
        }
        attempts.count += 1;
        self.handle.pause(mode, attempts.count).await;
        Ok(())
    }

    /// Removes the rows with these keys, if they still exist, in one transaction. Returns the number of rows removed.
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
