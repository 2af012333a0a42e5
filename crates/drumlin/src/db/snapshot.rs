//! Snapshots: the whole database as of one commit, for reading.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::range::{self, Range, ValueReader};
use super::{Handle, Keyspace, Value};
use crate::error::Result;
use crate::format::Timestamp;
use crate::task::{WaitMode, ready};
use crate::tree::Tree;
use crate::txn::engine::{Found, ReadAt};
use crate::txn::snapshots::SnapshotHandle;

/// A read-only view of all keyspaces as of one commit. All that it shows is durable, as long as every commit is
/// [`Full`](crate::Durability::Full).
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) handle: Arc<Handle>,
    pub(crate) snapshot: Arc<SnapshotHandle>,
}

impl Snapshot {
    /// The timestamp of the newest commit that it shows.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.snapshot.timestamp
    }

    /// The keyspace's tree, if it belongs to the same database.
    fn tree<'k>(&self, keyspace: &'k Keyspace) -> Result<&'k Tree> {
        Ok(&keyspace.named_in(&self.handle, "snapshot")?.tree)
    }

    async fn find(&self, mode: WaitMode<'_>, tree: &Tree, key: &[u8]) -> Result<Option<Found>> {
        let view = ReadAt::Timestamp(self.snapshot.timestamp);
        let found = self.handle.store()?.engine.find_in(mode, tree, key, view).await?;
        self.snapshot.check()?;
        Ok(found)
    }

    /// Returns the row's value as of the snapshot. O(log n).
    ///
    /// # Errors
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld), [`Corrupted`](crate::Error::Corrupted),
    /// [`Io`](crate::Error::Io); [`Invalid`](crate::Error::Invalid) for a keyspace of another database.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.get_in(WaitMode::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn get_in(&self, mode: WaitMode<'_>, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        let tree = self.tree(keyspace)?;
        Ok(match self.find(mode, tree, key).await? {
            None => None,
            Some(Found::Inline(value)) => Some(value.into()),
            Some(Found::Large(reference)) => {
                Some(self.handle.store()?.read_large(mode, tree, &reference, &self.snapshot).await?.into())
            }
        })
    }

    /// Returns `true` if the row existed. O(log n).
    ///
    /// # Errors
    /// Those of [`get`](Snapshot::get).
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        ready(self.contains_key_in(WaitMode::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn contains_key_in(&self, mode: WaitMode<'_>, keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
        Ok(self.find(mode, self.tree(keyspace)?, key).await?.is_some())
    }

    /// The rows of a range as of the snapshot. A range of another database's keyspace yields only
    /// [`Invalid`](crate::Error::Invalid).
    pub fn range<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Range {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        match self.tree(keyspace) {
            Ok(tree) => {
                let (handle, snapshot) = (Arc::clone(&self.handle), Arc::clone(&self.snapshot));
                Range::new(handle, tree.clone(), snapshot, bounds, None, None)
            }
            Err(error) => Range::refused(error),
        }
    }

    /// All rows.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.range(keyspace, ..)
    }

    /// All rows whose key begins with `prefix`.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        self.range(keyspace, range::prefix_bounds(prefix.as_ref()))
    }

    /// Counts the rows of a range. O(rows).
    ///
    /// # Errors
    /// Those of [`get`](Snapshot::get).
    pub fn count<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Result<u64> {
        ready(self.range(keyspace, range).count_rows(WaitMode::Blocking))
    }

    /// Opens a value as a stream.
    ///
    /// # Errors
    /// Those of [`get`](Snapshot::get).
    pub fn read(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ready(self.read_in(WaitMode::Blocking, keyspace, key.as_ref()))
    }

    pub(crate) async fn read_in(
        &self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<ValueReader>> {
        let tree = self.tree(keyspace)?;
        self.handle.value_reader(mode, tree, key, Arc::clone(&self.snapshot)).await
    }
}
