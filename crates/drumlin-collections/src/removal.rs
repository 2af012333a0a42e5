//! Removal of many documents in several transactions.

use std::ops::Bound;
use std::sync::Arc;

use drumlin::{Keyspace, Value};

use crate::collection::Collection;
use crate::documents::Documents;
use crate::encoding::{KeyBounds, RowBounds};
use crate::error::{Error, Result};
use crate::mode::{Mode, ready};
use crate::open::OpenCollection;
use crate::transaction::Transaction;

/// The maximum number of documents that one transaction of a range removal deletes.
const REMOVE_DOCUMENTS_MAX: usize = 128;

/// Bulk removal. Documents without derived rows are removed by one transaction. Other documents are removed in key
/// order along with all rows derived from them, at most 128 documents per transaction. **Each transaction is atomic,
/// but the call as a whole is not**: readers may see some documents gone while others remain, and an error or a power
/// cut may leave the removal unfinished. Repeat the call to remove the rest. A document that another transaction writes
/// during the call may or may not be removed.
impl<C: Collection> Documents<C> {
    /// Removes the documents in a range of keys and returns their number, including those that had
    /// [expired](crate::Parts::expires). O(documents).
    ///
    /// ```
    /// # use drumlin_collections::{Collection, Collections, Postcard};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Day(u32);
    /// # impl Collection for Day {
    /// #     type Key = u32;
    /// #     type Codec = Postcard;
    /// #     const NAME: &'static str = "days";
    /// #     fn key(&self) -> u32 { self.0 }
    /// # }
    /// # let days = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Day>()?;
    /// for day in 1..=9 {
    ///     days.put(&Day(day))?;
    /// }
    /// assert_eq!(days.remove_range(..3)?, 2);
    /// assert_eq!(days.clear()?, 7);
    /// # Ok::<(), drumlin_collections::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`remove`](Documents::remove).
    pub fn remove_range(&self, bounds: impl KeyBounds<C::Key>) -> Result<u64> {
        ready(self.remove_range_in(Mode::Blocking, bounds.row_bounds()))
    }

    /// Asynchronous [`remove_range`](Documents::remove_range). If the future is dropped, the documents that it has not
    /// yet reached stay.
    ///
    /// # Errors
    /// See [`remove`](Documents::remove).
    pub async fn remove_range_async(&self, bounds: impl KeyBounds<C::Key>) -> Result<u64> {
        let bounds = bounds.row_bounds();
        self.remove_range_in(Mode::Async, bounds).await
    }

    /// Removes all documents. Same as [`remove_range(..)`](Documents::remove_range).
    ///
    /// # Errors
    /// See [`remove`](Documents::remove).
    pub fn clear(&self) -> Result<u64> {
        self.remove_range(..)
    }

    /// Asynchronous [`clear`](Documents::clear); see [`remove_range_async`](Documents::remove_range_async).
    ///
    /// # Errors
    /// See [`remove`](Documents::remove).
    pub async fn clear_async(&self) -> Result<u64> {
        self.remove_range_async(..).await
    }

    async fn remove_range_in(&self, mode: Mode, (mut lower, upper): RowBounds) -> Result<u64> {
        if let Some(rows) = self.plain_rows() {
            return self.remove_plain(mode, Arc::new((rows, (lower, upper)))).await;
        }
        let (mut removed, mut documents_max) = (0, REMOVE_DOCUMENTS_MAX);
        loop {
            let mut rows = self.open.documents.range((lower.clone(), upper.clone())).keys();
            let mut keys = Vec::new();
            while keys.len() < documents_max
                && let Some(key) = mode.next_key(&mut rows).await
            {
                keys.push(key?);
            }
            drop(rows);
            let Some(last) = keys.last().cloned() else { return Ok(removed) };
            match self.remove_keys(mode, Arc::new(keys)).await {
                Ok(count) => removed += count,
                Err(Error::Store(drumlin::Error::TransactionTooLarge { .. })) if documents_max > 1 => {
                    documents_max /= 2;
                    continue;
                }
                Err(error) => return Err(error),
            }
            lower = Bound::Excluded(last.into_vec());
        }
    }

    /// Removes the rows of a range in one transaction, for a collection without derived rows. Returns their number.
    async fn remove_plain(&self, mode: Mode, removed: Arc<(Keyspace, RowBounds)>) -> Result<u64> {
        let shared = &self.core.shared;
        match mode {
            Mode::Blocking => {
                shared.transact(self.options(), |tx| ready(remove_counted(Mode::Blocking, tx, &removed.0, &removed.1)))
            }
            Mode::Async => {
                let removed = shared.transact_async(self.options(), |mut tx| {
                    let removed = Arc::clone(&removed);
                    Box::pin(async move { remove_counted(Mode::Async, &mut tx, &removed.0, &removed.1).await })
                });
                removed.await
            }
        }
    }

    /// Removes the documents with these keys in one transaction. Returns the number of documents that existed.
    async fn remove_keys(&self, mode: Mode, keys: Arc<Vec<Value>>) -> Result<u64> {
        let shared = &self.core.shared;
        match mode {
            Mode::Blocking => {
                shared.transact(self.options(), |tx| ready(remove_stored(Mode::Blocking, &self.open, tx, &keys)))
            }
            Mode::Async => {
                let removed = shared.transact_async(self.options(), |mut tx| {
                    let (open, keys) = (Arc::clone(&self.open), Arc::clone(&keys));
                    Box::pin(async move { remove_stored(Mode::Async, &open, &mut tx, &keys).await })
                });
                removed.await
            }
        }
    }
}

/// Removes the rows of a range and returns their number.
async fn remove_counted(mode: Mode, tx: &mut Transaction<'_>, keyspace: &Keyspace, bounds: &RowBounds) -> Result<u64> {
    let count = mode.count(tx.raw, keyspace, bounds).await?;
    tx.raw.remove_range(keyspace, bounds)?;
    Ok(count)
}

/// Removes the documents with these keys. Returns the number of documents that existed.
async fn remove_stored<C: Collection>(
    mode: Mode,
    open: &OpenCollection<C>,
    tx: &mut Transaction<'_>,
    keys: &[Value],
) -> Result<u64> {
    let mut removed = 0;
    for key in keys {
        let Some(before) = open.lock_stored(mode, tx, key).await? else { continue };
        open.change(mode, tx, key, Some(&before), None).await?;
        removed += 1;
    }
    Ok(removed)
}
