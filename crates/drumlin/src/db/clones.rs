//! Cloning keyspaces.

use std::sync::Arc;

use super::{Database, Keyspace};
use crate::error::Result;
use crate::format::Timestamp;
use crate::txn::keyspace::OpenKeyspace;

/// A description of a clone.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// db.keyspace("prices")?.insert("pear", "30")?;
/// db.clone_keyspace("prices", "what if")?;
/// for clone in db.clones() {
///     println!("{}: dropping it frees {} of {} bytes", clone.name, clone.exclusive_bytes, clone.disk_bytes);
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CloneInfo {
    /// The name of the keyspace.
    pub name: String,
    /// [`Keyspace::disk_bytes`]: the bytes of its pages, shared ones included.
    pub disk_bytes: u64,
    /// [`Keyspace::exclusive_bytes`]: the bytes that dropping it frees.
    pub exclusive_bytes: u64,
}

impl Database {
    /// Returns all keyspaces that were [cloned](Database::clone_keyspace) from others, sorted by name, with the space
    /// that dropping each would free. O(pages).
    #[must_use]
    pub fn clones(&self) -> Vec<CloneInfo> {
        let Ok(store) = self.store() else { return Vec::new() };
        let mut keyspaces = store.keyspaces.all();
        keyspaces.retain(|open| store.has_created(open) && !open.tree.pages.origins().is_empty());
        let describe = |open: &Arc<OpenKeyspace>| CloneInfo {
            name: open.name().to_string(),
            disk_bytes: store.disk_bytes(open),
            exclusive_bytes: store.exclusive_bytes(open),
        };
        keyspaces.iter().map(describe).collect()
    }

    /// Creates the keyspace `to` with the rows of `from`. From then on, each is written independently of the other.
    /// Durable when it returns. Returns the newest commit whose changes the clone has: all commits that have returned
    /// before the call are included, and those made during the call may not be.
    ///
    /// Copies no rows: the call makes a checkpoint, and the clone shares its pages. A page takes space twice once one
    /// of the keyspaces changes it. The clone's page table takes 8 bytes of memory for each page, like that of any
    /// keyspace, and the call reads it: a few milliseconds for each gigabyte. Commits continue during that. Pages are
    /// cached for each keyspace.
    ///
    /// Snapshots and transactions that are older than the clone see it as an empty keyspace. Prepared transactions
    /// change only `from`, if they are committed later. The clone has the page size of `from`.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let prices = db.keyspace("prices")?;
    /// prices.insert("pear", "30")?;
    /// db.clone_keyspace("prices", "what if")?;
    /// let clone = db.keyspace("what if")?;
    /// clone.insert("pear", "35")?;
    /// assert_eq!(prices.get("pear")?.unwrap(), "30");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoSuchKeyspace`](crate::Error::NoSuchKeyspace) for `from`; [`KeyspaceExists`](crate::Error::KeyspaceExists)
    /// and, for a name that is empty or over 255 bytes, [`Invalid`](crate::Error::Invalid) for `to`;
    /// [`BudgetTooSmall`](crate::Error::BudgetTooSmall) if the memory budget has no room for another page table;
    /// [`Corrupted`](crate::Error::Corrupted) if the page table can't be read; the errors of
    /// [`checkpoint`](Database::checkpoint) and of a commit. After any error but
    /// [`OutcomeUnknown`](crate::Error::OutcomeUnknown) there is no clone.
    pub fn clone_keyspace(&self, from: &str, to: &str) -> Result<Timestamp> {
        self.store()?.clone_keyspace(from, to)
    }
}

impl Keyspace {
    /// Returns the number of bytes of the data file that only this keyspace needs: those of
    /// [`disk_bytes`](Keyspace::disk_bytes), except for pages that it shares with its
    /// [clones](Database::clone_keyspace) or with the keyspace from which it was cloned. Dropping the keyspace makes
    /// them free, unless a kept snapshot needs them. O(pages).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let texts = db.keyspace("texts")?;
    /// (0..1000u32).try_for_each(|n| texts.insert(n.to_be_bytes(), "all the same"))?;
    /// db.clone_keyspace("texts", "copy")?;
    /// assert_eq!(texts.exclusive_bytes()?, 0);
    /// assert_eq!(db.keyspace("copy")?.exclusive_bytes()?, 0);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Closed`](crate::Error) if the database was closed.
    pub fn exclusive_bytes(&self) -> Result<u64> {
        Ok(self.store()?.exclusive_bytes(&self.open))
    }
}
