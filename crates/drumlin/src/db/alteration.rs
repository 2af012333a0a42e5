//! `Alteration`: changes of several keyspaces in one atomic step.

use super::config::check_page_bytes;
use super::database::Database;
use super::keyspace::KeyspaceOptions;
use crate::error::Result;
use crate::store::Change;

/// Changes of the keyspaces of a database that [`commit`](Alteration::commit) makes in one atomic step: all of them or
/// none, even if the process is killed or the power fails. Made by [`Database::alter`].
///
/// The changes apply one after the other. Each refers to the names that the changes before it have left.
///
/// Handles belong to a keyspace, not to its name: after a keyspace was renamed, its handles, snapshots, transactions,
/// open ranges and bulk loads continue to work on the same rows, and [`Keyspace::name`](crate::Keyspace::name) returns
/// the new name. Names have no versions: a snapshot that was taken before the step finds its keyspaces through handles,
/// or under their new names.
///
/// Use it to build a new version of a keyspace under a temporary name, and then replace the old one in one step:
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let prices = db.keyspace("prices")?;
/// prices.insert("pear", "30")?;
/// let next = db.keyspace("prices, next")?;
/// next.insert("pear", "35")?;
///
/// db.alter().swap("prices", "prices, next").drop("prices, next").commit()?;
/// assert_eq!(db.keyspace("prices")?.get("pear")?.unwrap(), "35");
/// assert_eq!(next.name(), "prices");
/// assert_eq!(db.keyspaces().len(), 1);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an alteration does nothing until it is committed"]
pub struct Alteration {
    database: Database,
    changes: Vec<Change>,
}

impl Database {
    /// Begins a list of changes of keyspaces that are committed in one atomic step. See [`Alteration`].
    ///
    /// ```
    /// use drumlin::KeyspaceOptions;
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # db.keyspace("orders")?;
    /// db.alter().rename("orders", "orders of 2025").create("orders", KeyspaceOptions::new()).commit()?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    pub fn alter(&self) -> Alteration {
        Alteration { database: self.clone(), changes: Vec::new() }
    }
}

impl Alteration {
    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    fn with(mut self, change: Change) -> Alteration {
        self.changes.push(change);
        self
    }

    /// Creates an empty keyspace. Unlike [`Database::keyspace`], fails if there is a keyspace with this name.
    pub fn create(self, name: &str, options: KeyspaceOptions) -> Alteration {
        self.with(Change::Create { name: name.to_owned(), page_bytes: options.page_bytes })
    }

    /// Gives the keyspace `from` the name `to`, which no keyspace may have.
    pub fn rename(self, from: &str, to: &str) -> Alteration {
        self.with(Change::Rename { from: from.to_owned(), to: to.to_owned() })
    }

    /// Exchanges the names of two keyspaces.
    pub fn swap(self, one: &str, other: &str) -> Alteration {
        self.with(Change::Swap { one: one.to_owned(), other: other.to_owned() })
    }

    /// Drops a keyspace and all its rows, like [`Database::drop_keyspace`]. If an earlier change of this step has
    /// created the keyspace, it is not created.
    pub fn drop(self, name: &str) -> Alteration {
        self.with(Change::Drop { name: name.to_owned() })
    }

    /// Makes all of the changes, or none of them. Durable when it returns. Commits wait while the changes are made.
    ///
    /// # Errors
    /// [`NoSuchKeyspace`](crate::Error::NoSuchKeyspace); [`KeyspaceExists`](crate::Error::KeyspaceExists);
    /// [`Invalid`](crate::Error::Invalid) for a name that is empty or over 255 bytes, and for a page size that is not
    /// allowed; [`TransactionTooLarge`](crate::Error::TransactionTooLarge) if the first pages of the keyspaces that it
    /// creates take more than a quarter of the memory for pages; the errors of a commit. Nothing has changed after any
    /// error but [`OutcomeUnknown`](crate::Error::OutcomeUnknown).
    pub fn commit(self) -> Result<()> {
        let store = self.database.store()?;
        for change in &self.changes {
            if let Change::Create { page_bytes: Some(page_bytes), .. } = change {
                check_page_bytes(*page_bytes)?;
            }
        }
        store.alter(&self.changes)
    }
}
