//! One moment of the whole database, for reading.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::range::{self, Range, ValueReader};
use super::{Handle, Keyspace, Value};
use crate::error::Result;
use crate::format::Timestamp;
use crate::txn::engine::{Found, View};
use crate::txn::snapshots::Registration;

/// A read-only view of all keyspaces at one moment. Everything in it is durable, as long as all commits are
/// [`Full`](crate::Durability::Full).
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) handle: Arc<Handle>,
    pub(crate) moment: Arc<Registration>,
}

impl Snapshot {
    /// The newest commit that it shows.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.moment.timestamp
    }

    fn find(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Found>> {
        let found = self.handle.core.engine.find(&keyspace.named.tree, key, View::At(self.moment.timestamp))?;
        self.moment.check()?;
        Ok(found)
    }

    /// The row's value at the snapshot's moment. O(log n).
    ///
    /// # Errors
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld), [`Damaged`](crate::Error::Damaged), [`Io`](crate::Error::Io).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        Ok(match self.find(keyspace, key.as_ref())? {
            None => None,
            Some(Found::Inline(value)) => Some(value.into()),
            Some(Found::Large(reference)) => {
                Some(self.handle.core.read_large(&keyspace.named.tree, &reference, &self.moment)?.into())
            }
        })
    }

    /// Whether the row was there. O(log n).
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.find(keyspace, key.as_ref())?.is_some())
    }

    /// The rows of a range at the snapshot's moment.
    pub fn range<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Range {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let tree = keyspace.named.tree.clone();
        Range::new(Arc::clone(&self.handle.core), tree, Arc::clone(&self.moment), bounds, Default::default(), None)
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

    /// The number of rows in a range. O(rows) as yet.
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub fn count<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Result<u64> {
        self.range(keyspace, range).count_rows()
    }

    /// A value as a stream.
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub fn read(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        self.handle.core.value_reader(&keyspace.named.tree, key.as_ref(), Arc::clone(&self.moment))
    }
}
