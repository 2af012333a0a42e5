//! Transactions across collections.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use drumlin::{Error as StoreError, Reader};

use crate::error::Result;
use crate::hub::{PendingChange, lock};

/// The changes that a transaction has made so far. They will be delivered to subscribers after the commit.
pub(crate) type Pending = Arc<Mutex<Vec<PendingChange>>>;

/// A transaction across any number of collections. [`Collections::transact`](crate::Collections::transact) passes it to
/// its closure. Its write methods take the collection's handle as their first argument. It derefs to Drumlin's
/// [`Reader`]: [`orders.at(&tx)`](crate::Documents::at) reads within the transaction, including its own writes.
///
/// ```
/// # use drumlin_collections::{Collection, Collections, Error, Parts, Postcard, Transaction};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Account { name: String, cents: i64 }
/// # impl Collection for Account {
/// #     type Key = String;
/// #     type Codec = Postcard;
/// #     const NAME: &'static str = "accounts";
/// #     fn key(&self) -> String { self.name.clone() }
/// # }
/// # let collections = Collections::new(&drumlin::Config::in_memory().open("")?);
/// let accounts = collections.open::<Account>()?;
/// for name in ["ann", "bob"] {
///     accounts.insert(&Account { name: name.into(), cents: 100 })?;
/// }
/// collections.transact(|tx: &mut Transaction<'_>| {
///     tx.update(&accounts, "ann", |account| account.cents -= 30)?;
///     tx.update(&accounts, "bob", |account| account.cents += 30)
/// })?;
/// assert_eq!(accounts.get("bob")?.unwrap().cents, 130);
/// # Ok::<(), Error>(())
/// ```
pub struct Transaction<'t> {
    pub(crate) raw: &'t mut drumlin::Transaction,
    pub(crate) pending: Pending,
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, over collections", self.raw)
    }
}

/// A point in a transaction to which it can be rolled back: see [`Transaction::savepoint`].
///
/// ```
/// # let collections = drumlin_collections::Collections::new(&drumlin::Config::in_memory().open("")?);
/// collections.transact(|tx| {
///     let savepoint = tx.savepoint();
///     tx.rollback_to(savepoint)
/// })?;
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    raw: drumlin::Savepoint,
    pending: usize,
}

impl<'t> Transaction<'t> {
    pub(crate) fn new(raw: &'t mut drumlin::Transaction) -> Transaction<'t> {
        Transaction { raw, pending: Pending::default() }
    }

    /// Returns the underlying Drumlin transaction, for rows of other keyspaces. Do not use it to write to the keyspaces
    /// of collections. To roll back, call [`rollback_to`](Transaction::rollback_to) on this type, not on the underlying
    /// transaction.
    pub fn raw(&mut self) -> &mut drumlin::Transaction {
        self.raw
    }

    /// Marks a point to which the transaction can be rolled back.
    #[must_use]
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint { raw: self.raw.savepoint(), pending: lock(&self.pending).len() }
    }

    /// Undoes all changes made since the savepoint.
    ///
    /// # Errors
    /// See [`drumlin::Transaction::rollback_to`].
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.raw.rollback_to(savepoint.raw)?;
        lock(&self.pending).truncate(savepoint.pending);
        Ok(())
    }

    /// Ends the transaction with a conflict that the caller has detected.
    /// [`Collections::transact`](crate::Collections::transact) then runs the body again. See
    /// [`drumlin::Transaction::conflict`].
    pub fn conflict(&mut self, reason: &'static str) -> StoreError {
        self.raw.conflict(reason)
    }
}

impl Deref for Transaction<'_> {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.raw
    }
}
