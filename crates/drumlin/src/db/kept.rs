//! Kept snapshots: taking them, and reading them.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::handle::Handle;
use super::reader::Reader;
use super::rows::{Horizon, ReadView};
use super::shortage::Shortage;
use super::{Database, Keyspace, KeyspaceInfo};
use crate::error::{Error, Result};
use crate::format::{KeyspaceId, Timestamp};
use crate::store::{OpenKeyspace, OpenedSnapshot};
use crate::txn::snapshots::SnapshotHandle;

/// A description of a kept snapshot. Obtaining it reads nothing from disk.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// db.keep_snapshot("before the import")?;
/// for info in db.kept_snapshots() {
///     println!("{}: as of commit {}, dropping it frees {} bytes", info.name, info.timestamp, info.exclusive_bytes);
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeptSnapshotInfo {
    /// The name of the snapshot.
    pub name: String,
    /// The newest commit in the snapshot.
    pub timestamp: Timestamp,
    /// The time since the snapshot was taken, by the system's clock.
    pub age: Duration,
    /// The bytes of the data file that only this snapshot needs. Dropping it frees the segments that nothing else
    /// needs at once, and the rest once their live pages have been moved, or by [`compact`](Database::compact).
    pub exclusive_bytes: u64,
}

/// A kept snapshot that is open for reading. Its reading methods are those of [`Reader`]. They accept the keyspaces of
/// the database, which they find by identity, not by name, and those that [`keyspace`](KeptSnapshot::keyspace) returns.
/// For a keyspace that was created after the snapshot, they fail with [`Error::NoSuchKeyspace`].
///
/// While it is open, its page tables take 8 bytes of memory for each page, and counts and pages are cached as those of
/// the database are. It needs no old versions of rows, so it never ends with
/// [`SnapshotTooOld`](Error::SnapshotTooOld).
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("1", "three apples")?;
/// db.keep_snapshot("monday")?;
/// orders.insert("1", "four apples")?;
/// let monday = db.open_snapshot("monday")?;
/// assert_eq!(monday.get(&orders, "1")?.unwrap(), "three apples");
/// db.drop_keyspace("orders")?;
/// let orders = monday.keyspace("orders")?;
/// assert_eq!(orders.get("1")?.unwrap(), "three apples");
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct KeptSnapshot {
    reader: Reader,
}

impl std::fmt::Debug for KeptSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeptSnapshot({:?} at {})", self.name(), self.timestamp())
    }
}

impl KeptSnapshot {
    fn new(handle: &Arc<Handle>, opened: Arc<OpenedSnapshot>) -> KeptSnapshot {
        let horizon = Horizon::Fixed(Arc::new(SnapshotHandle::of_kept(opened.kept.timestamp)));
        let view = ReadView { horizon, own: None, reads: None, shortage: Shortage::default() };
        let (handle, kept) = (Arc::clone(handle), Some(opened));
        KeptSnapshot { reader: Reader { handle, view, kept, kind: "kept snapshot" } }
    }

    fn opened(&self) -> &Arc<OpenedSnapshot> {
        self.reader.kept.as_ref().expect("it reads a kept snapshot")
    }

    /// Returns the snapshot's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.opened().kept.name
    }

    /// Returns the timestamp of the newest commit in the snapshot.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.opened().kept.timestamp
    }

    /// Returns the keyspaces in the snapshot, sorted by name. The ids are those of the database.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let info = |(id, open): (KeyspaceId, &Arc<OpenKeyspace>)| KeyspaceInfo {
            name: open.name().to_string(),
            id,
            page_bytes: open.tree.pages.page_bytes(),
            page_count: open.tree.pages.table.page_count(),
        };
        self.opened().keyspaces().into_iter().map(info).collect()
    }

    /// Returns the keyspace that had this name when the snapshot was taken, to be read with the methods of the keyspace
    /// or of this snapshot. It can't be changed: calls that write fail with [`Error::Invalid`]. The snapshot stays open
    /// until the keyspace and everything that reads from it are dropped.
    ///
    /// # Errors
    /// [`Error::NoSuchKeyspace`].
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let open = self.opened().keyspace(name);
        let open = open.ok_or_else(|| Error::NoSuchKeyspace { name: name.to_owned() })?;
        Ok(Keyspace::new(&self.reader.handle, Arc::clone(open)))
    }
}

impl Clone for KeptSnapshot {
    fn clone(&self) -> KeptSnapshot {
        KeptSnapshot::new(&self.reader.handle, Arc::clone(self.opened()))
    }
}

impl Deref for KeptSnapshot {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

impl Database {
    /// Keeps a snapshot of all keyspaces on disk under this name. It survives restarts and lasts until it is
    /// [dropped](Database::drop_snapshot). Returns the newest commit in it. Commits that have returned before the call
    /// are in the snapshot.
    ///
    /// Copies no pages: the call makes a checkpoint, which also writes the page tables as far as they have changed.
    /// From then on, pages that change take space twice. The data file is allotted in segments
    /// ([`Stats::segment_bytes`](crate::Stats::segment_bytes)), and the snapshot keeps every segment that contains one
    /// of its pages.
    ///
    /// # Errors
    /// [`Error::SnapshotExists`]; [`Error::Invalid`] for a name that is empty or over 255 bytes; the errors of
    /// [`checkpoint`](Database::checkpoint).
    pub fn keep_snapshot(&self, name: &str) -> Result<Timestamp> {
        self.store()?.keep_snapshot(name, false)
    }

    /// Opens a kept snapshot for reading. Reads its page tables: O(pages), a few milliseconds for each gigabyte.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]; [`Error::BudgetTooSmall`] if the memory budget has no room for its page tables;
    /// [`Error::Corrupted`], [`Error::Io`].
    pub fn open_snapshot(&self, name: &str) -> Result<KeptSnapshot> {
        Ok(KeptSnapshot::new(&self.handle, Arc::new(self.store()?.open_kept(name)?)))
    }

    /// Drops a kept snapshot, and makes a checkpoint, after which the space that only the snapshot needed is free. If
    /// the snapshot is open, its readers continue, and its space is free at the first checkpoint after the last of them
    /// is gone.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]; the errors of [`checkpoint`](Database::checkpoint). After an error, the snapshot is
    /// still kept.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        self.store()?.drop_snapshot(name)
    }

    /// Returns all kept snapshots, sorted by name.
    #[must_use]
    pub fn kept_snapshots(&self) -> Vec<KeptSnapshotInfo> {
        let Ok(store) = self.store() else { return Vec::new() };
        let space = &store.engine.space;
        let now = store.engine.backend.wall_clock();
        (space.kept.all().iter())
            .map(|kept| KeptSnapshotInfo {
                name: kept.name.to_string(),
                timestamp: kept.timestamp,
                age: now.saturating_sub(Duration::from_millis(kept.taken_at_ms)),
                exclusive_bytes: kept.exclusive_bytes(&space.segments),
            })
            .collect()
    }
}
