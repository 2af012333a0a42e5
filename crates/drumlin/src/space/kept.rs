//! Kept snapshots: checkpoints that stay readable until they are dropped.
//!
//! A kept snapshot is the base image of the page tables as of one checkpoint, listed in a catalogue of its own. It
//! *pins* the segments that contain this base image and the pages that it names. A pinned segment is not reused, so
//! nothing that the snapshot refers to is overwritten. Taking a snapshot therefore copies no pages: it makes one
//! checkpoint, which also folds the changes of the page tables.
//!
//! Snapshots pin whole segments, and the reclaimer neither moves their extents nor changes their tables. Compared with
//! counting the references to each extent, this costs the space of extents in pinned segments that no snapshot needs.
//! The reclaimer bounds this space: it moves the last live extents out of a pinned segment, so that later snapshots
//! don't pin the segment again (`store/reclaim`).
//!
//! The snapshot of a backup may be *temporary*: the database's catalogue does not list it, so it does not outlive the
//! opening.
//!
//! The parts of a snapshot's catalogue are ordinary live extents, which checkpoints move out of segments that are being
//! emptied.
//!
//! # Life of a kept snapshot
//! 1. *Wanted.* Its name is taken, and the next checkpoint will keep it.
//! 2. *Kept.* The checkpoint is durable. The snapshot can be opened: its tables are then read into memory, under ids
//!    that only this opening uses, and each open tree holds a reference to the [`KeptSnapshot`].
//! 3. *Dropping.* It can't be opened anymore, and the next checkpoint no longer lists it.
//! 4. *Dropped.* That checkpoint is durable. Once no open tree refers to the snapshot, a checkpoint unpins its
//!    segments.
//!
//! `kept_list.rs` makes these transitions, and `kept_tables.rs` reads the tables.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use super::page_space::PageSpace;
use super::segments::Segments;
use crate::error::{Error, Result};
use crate::format::backup::{SnapshotId, SnapshotRef};
use crate::format::{ExtentRef, KeyspaceId, SegmentId, Timestamp};
use crate::hash::HashMap;
use crate::sync::{Mutex, RwLock};

/// The place of a kept snapshot's catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CatalogueRef {
    pub(super) last: ExtentRef,
    pub(super) bytes: u64,
}

/// A snapshot that is kept on disk.
#[derive(Debug)]
pub(crate) struct KeptSnapshot {
    pub(crate) name: Arc<str>,
    pub(crate) id: SnapshotId,
    pub(crate) timestamp: Timestamp,
    /// The time at which it was taken, in milliseconds since 1970.
    pub(crate) taken_at_ms: u64,
    /// The pinned segments.
    pub(super) segments: Vec<SegmentId>,
    /// The place of the catalogue as of the newest durable checkpoint.
    pub(super) catalogue: Mutex<CatalogueRef>,
}

impl KeptSnapshot {
    /// Returns the bytes on disk that would become free if this snapshot were dropped: those of its segments that
    /// nothing else needs. The live extents in these segments must be moved first, which happens in the background.
    pub(crate) fn exclusive_bytes(&self, segments: &Segments) -> u64 {
        segments.bytes_pinned_once(&self.segments)
    }

    /// Returns the snapshot as backups name it.
    pub(crate) fn reference(&self) -> SnapshotRef {
        SnapshotRef { id: self.id, timestamp: self.timestamp }
    }

    /// Returns the memory that the snapshot takes while it is not open, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        /// Its entries in the list and in the map of names.
        const ENTRIES_BYTES: usize = 128;
        debug_assert!(self.segments.is_sorted(), "the pinned segments are out of order");
        let segments_bytes = self.segments.capacity() * size_of::<SegmentId>();
        (size_of::<KeptSnapshot>() + ENTRIES_BYTES + self.name.len() + segments_bytes) as u64
    }
}

/// The kept snapshots that can be opened, and the keyspaces of those that are open.
#[derive(Debug)]
pub(crate) struct KeptSnapshots {
    by_name: Mutex<BTreeMap<Arc<str>, Arc<KeptSnapshot>>>,
    opened: RwLock<HashMap<KeyspaceId, Weak<PageSpace>>>,
    next_id: AtomicU32,
}

impl Default for KeptSnapshots {
    fn default() -> KeptSnapshots {
        let next_id = AtomicU32::new(KeyspaceId::KEPT_FIRST.0);
        KeptSnapshots { by_name: Mutex::default(), opened: RwLock::default(), next_id }
    }
}

impl KeptSnapshots {
    /// Returns the kept snapshot with this name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<KeptSnapshot>> {
        let found = self.by_name.lock().get(name).cloned();
        found.ok_or_else(|| Error::NoSuchSnapshot { name: name.to_owned() })
    }

    /// Returns all kept snapshots, sorted by name.
    pub(crate) fn all(&self) -> Vec<Arc<KeptSnapshot>> {
        self.by_name.lock().values().cloned().collect()
    }

    /// Lets a snapshot be opened.
    pub(super) fn publish(&self, snapshot: &Arc<KeptSnapshot>) {
        let mut by_name = self.by_name.lock();
        let published = by_name.entry(Arc::clone(&snapshot.name)).or_insert_with(|| Arc::clone(snapshot));
        assert!(Arc::ptr_eq(published, snapshot), "two snapshots have the name {:?}", snapshot.name);
    }

    /// Keeps a snapshot from being opened.
    pub(super) fn withdraw(&self, snapshot: &KeptSnapshot) {
        let withdrawn = self.by_name.lock().remove(&snapshot.name);
        assert!(withdrawn.is_some_and(|withdrawn| std::ptr::eq(&*withdrawn, snapshot)), "{snapshot:?} is unknown");
    }

    /// Returns the pages of a keyspace of an opened snapshot, unless the snapshot has been closed.
    pub(super) fn pages(&self, id: KeyspaceId) -> Option<Arc<PageSpace>> {
        debug_assert!(id.is_of_kept(), "keyspace {id} is of no snapshot");
        self.opened.read().get(&id)?.upgrade()
    }

    /// Returns an id for a keyspace of a snapshot that is being opened.
    pub(super) fn new_id(&self) -> KeyspaceId {
        let id = KeyspaceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        assert!(id.is_of_kept(), "the ids for opened snapshots are used up");
        id
    }

    /// Adds the pages of a snapshot that is being opened, and forgets those of snapshots that have been closed.
    pub(super) fn add(&self, pages: &Arc<PageSpace>) {
        debug_assert!(pages.id.is_of_kept() && !pages.origins().is_empty(), "{} opens nothing", pages.id);
        let mut opened = self.opened.write();
        opened.retain(|_, pages| pages.strong_count() > 0);
        let replaced = opened.insert(pages.id, Arc::downgrade(pages));
        assert!(replaced.is_none(), "two opened keyspaces have the id {}", pages.id);
    }
}
