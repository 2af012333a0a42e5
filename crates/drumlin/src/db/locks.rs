//! The public view of a database's row locks: the transactions that hold them and the transactions that wait for them.

use std::sync::Arc;
use std::time::Duration;

use super::Database;
use crate::error::Result;
use crate::txn::interrupt::Interrupt;
use crate::txn::locks::LockMode;

/// A locked row, with the holders of its lock and the transactions that wait for it.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// let mut tx = db.begin()?;
/// tx.get_for_share(&k, "a")?;
/// let row = &db.locks()?[0];
/// assert_eq!((&row.keyspace[..], &row.key[..], &row.holders[..]), ("k", &b"a"[..], &[tx.number()][..]));
/// assert!(row.waiters.is_empty());
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LockedRow {
    /// The name of the row's keyspace.
    pub keyspace: String,
    /// The row's key.
    pub key: Vec<u8>,
    /// The mode in which the row is locked.
    pub mode: LockMode,
    /// The [numbers](crate::Transaction::number) of the transactions that hold the lock. A write outside of a
    /// transaction has such a number too.
    pub holders: Vec<u64>,
    /// The transactions that wait for the lock, in the order in which they will acquire it.
    pub waiters: Vec<LockWaiter>,
}

/// A transaction that waits for a row lock.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// // The row whose first waiter has waited longest.
/// let rows = db.locks()?;
/// let longest = rows.iter().max_by_key(|row| row.waiters.first().map(|waiter| waiter.waited));
/// assert!(longest.is_none());
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LockWaiter {
    /// The transaction's [number](crate::Transaction::number).
    pub transaction: u64,
    /// The mode of the lock that the transaction waits for.
    pub mode: LockMode,
    /// The time since the transaction began to wait.
    pub waited: Duration,
}

/// Ends a transaction's waits for row locks, from any thread. Returned by
/// [`Transaction::interrupter`](crate::Transaction::interrupter).
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// let (mut holder, mut tx) = (db.begin()?, db.begin()?);
/// holder.insert(&k, "a", "1")?;
/// tx.interrupter().interrupt();
/// assert!(matches!(tx.insert(&k, "a", "2"), Err(drumlin::Error::Interrupted { .. })));
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Interrupter {
    pub(super) interrupt: Arc<Interrupt>,
}

impl Interrupter {
    /// Makes the transaction's current wait for a row lock fail with [`Interrupted`](crate::Error::Interrupted). If it
    /// is not waiting now, its next wait fails. Each call ends at most one wait. After the transaction has ended, a
    /// call does nothing.
    pub fn interrupt(&self) {
        self.interrupt.request();
    }
}

impl Database {
    /// Returns the locked rows, ordered by keyspace and key, with the transactions that hold or wait for each lock.
    /// Writers continue during the call, so the entries may be from slightly different points in time. O(locks).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// use drumlin::LockMode;
    ///
    /// # let k = db.keyspace("k")?;
    /// let mut tx = db.begin()?;
    /// tx.insert(&k, "a", "1")?;
    /// let locks = db.locks()?;
    /// assert_eq!((&locks[0].key[..], locks[0].mode), (&b"a"[..], LockMode::Exclusive));
    /// assert_eq!(locks[0].holders, [tx.number()]);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Closed`](crate::Error::Closed).
    pub fn locks(&self) -> Result<Vec<LockedRow>> {
        let store = self.store()?;
        let now = store.now();
        let of_waiter = |(transaction, mode, since): (crate::txn::TransactionId, LockMode, Duration)| LockWaiter {
            transaction: transaction.0,
            mode,
            waited: now.saturating_sub(since),
        };
        let rows = store.engine.locks.all().into_iter().map(|row| LockedRow {
            keyspace: store.keyspace_name(row.keyspace),
            key: row.key.into_vec(),
            mode: row.mode,
            holders: row.holders.into_iter().map(|holder| holder.0).collect(),
            waiters: row.waiters.into_iter().map(of_waiter).collect(),
        });
        let mut rows: Vec<LockedRow> = rows.collect();
        rows.sort_unstable_by(|left, right| (&left.keyspace, &left.key).cmp(&(&right.keyspace, &right.key)));
        Ok(rows)
    }
}
