//! Transactions over collections.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use drumlin::{Error as StoreError, Reader};

use crate::error::Result;
use crate::hub::{PendingChange, lock};

/// The changes that a transaction has made, for subscribers.
pub(crate) type Pending = Arc<Mutex<Vec<PendingChange>>>;

/// A transaction over any number of collections: what [`Collections::transact`](crate::Collections::transact) gives its
/// closure. Its writes name the collection first. It derefs to Drumlin's [`Reader`], so that
/// [`orders.at(&tx)`](crate::Documents::at) reads in it, its own writes included.
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

/// A point of a transaction to roll back to: see [`Transaction::savepoint`].
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

    /// Drumlin's transaction, for rows of other keyspaces. Leave the collections' own keyspaces to the collections, and
    /// roll back by [`rollback_to`](Transaction::rollback_to).
    pub fn raw(&mut self) -> &mut drumlin::Transaction {
        self.raw
    }

    /// Marks a point to roll back to.
    #[must_use]
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint { raw: self.raw.savepoint(), pending: lock(&self.pending).len() }
    }

    /// Undoes all changes since the savepoint.
    ///
    /// # Errors
    /// Those of [`drumlin::Transaction::rollback_to`].
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.raw.rollback_to(savepoint.raw)?;
        lock(&self.pending).truncate(savepoint.pending);
        Ok(())
    }

    /// Ends the transaction with a conflict of the caller's own:
    /// [`Collections::transact`](crate::Collections::transact) runs it again. See
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
