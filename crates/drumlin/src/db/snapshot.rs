//! Snapshots: the whole database as of one commit, for reading.

use std::ops::Deref;
use std::sync::Arc;

use super::handle::Handle;
use super::reader::Reader;
use super::rows::{Horizon, ReadView};
use super::shortage::Shortage;
use crate::format::Timestamp;
use crate::txn::snapshots::SnapshotHandle;

/// A read-only view of all keyspaces as of one commit. Everything that it shows is durable, unless commits are
/// [`Relaxed`](crate::Durability::Relaxed). Its reading methods are those of [`Reader`].
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let accounts = db.keyspace("accounts")?;
/// accounts.insert("ann", "5")?;
/// let snapshot = db.snapshot();
/// accounts.insert("ann", "7")?;
/// assert_eq!(snapshot.get(&accounts, "ann")?.unwrap(), "5");
/// assert_eq!(snapshot.count(&accounts, ..)?, 1);
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Snapshot {
    reader: Reader,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot(at {})", self.timestamp())
    }
}

impl Snapshot {
    pub(super) fn new(handle: &Arc<Handle>, snapshot: Arc<SnapshotHandle>) -> Snapshot {
        let view =
            ReadView { horizon: Horizon::Fixed(snapshot), own: None, reads: None, shortage: Shortage::default() };
        Snapshot { reader: Reader { handle: Arc::clone(handle), view, kept: None, kind: "snapshot" } }
    }

    /// Returns the timestamp of the newest commit that is visible in the snapshot.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.reader.view.horizon.seen()
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        let snapshot = self.reader.view.horizon.snapshot().expect("a snapshot has one");
        Snapshot::new(&self.reader.handle, Arc::clone(snapshot))
    }
}

impl Deref for Snapshot {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}
