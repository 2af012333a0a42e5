//! The pages of a keyspace: their table, and the state that concerns all of them.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use super::epoch::EpochGuard;
use super::load_gate::LoadGate;
use super::runs::Runs;
use super::table::PageTable;
use crate::error::quoted;
use crate::format::catalogue::CloneOrigin;
use crate::format::node::is_page_bytes;
use crate::format::{Epoch, KeyspaceId, PageId, Timestamp};
use crate::memory::Budget;
use crate::sync::{self, RwLock};

/// The leaves that have an image on disk, and the rows in these images. Only estimates depend on these numbers, which
/// are not exact after a salvage, or after a crash during a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct LeavesOnDisk {
    leaf_count: AtomicI64,
    row_count: AtomicI64,
}

impl LeavesOnDisk {
    /// Replaces the image of a leaf. `before` and `after` are the numbers of rows in the images, or `None` if there is
    /// no image.
    pub(crate) fn replace(&self, before: Option<u32>, after: Option<u32>) {
        let leaf = |image: Option<u32>| i64::from(image.is_some());
        let rows = |image: Option<u32>| i64::from(image.unwrap_or(0));
        self.add(leaf(after) - leaf(before), rows(after) - rows(before));
    }

    /// Adds leaves and their rows.
    pub(crate) fn add(&self, leaf_count: i64, row_count: i64) {
        self.leaf_count.fetch_add(leaf_count, Ordering::Relaxed);
        self.row_count.fetch_add(row_count, Ordering::Relaxed);
    }

    /// Sets the numbers of leaves and rows.
    pub(crate) fn set(&self, leaf_count: u64, row_count: u64) {
        self.leaf_count.store(leaf_count as i64, Ordering::Relaxed);
        self.row_count.store(row_count as i64, Ordering::Relaxed);
    }

    /// Returns the numbers of leaves and rows.
    pub(crate) fn get(&self) -> (u64, u64) {
        let [leaves, rows] =
            [&self.leaf_count, &self.row_count].map(|count| count.load(Ordering::Relaxed).max(0) as u64);
        (leaves, rows)
    }

    /// Returns the average number of rows in a leaf, or `None` if no leaf has an image.
    pub(crate) fn average_rows(&self) -> Option<f64> {
        let (leaves, rows) = self.get();
        (leaves > 0).then(|| rows as f64 / leaves as f64)
    }
}

/// The pages of one keyspace.
#[derive(Debug)]
pub(crate) struct PageSpace {
    pub(crate) id: KeyspaceId,
    /// The keyspaces whose ids its extents may have besides its own: those from which it was cloned, newest first, or
    /// the keyspace of which a kept snapshot has this form, and the origins of that one. `None` if there are none,
    /// because few keyspaces have any.
    origins: Option<Box<Origins>>,
    /// The logarithm of the page size. A byte keeps an empty keyspace small.
    page_bytes_log2: u8,
    /// The keyspace's name, for the catalogue and for error messages. It changes under the epoch latch.
    name: RwLock<Arc<str>>,
    pub(crate) table: PageTable,
    /// The epoch in which the keyspace was dropped, or 0. It changes under the exclusive epoch latch.
    dropped_in: AtomicU64,
    /// Set if page-table entries were lost when the database was opened despite corruption. In that case nodes may name
    /// pages that do not exist.
    has_lost_pages: AtomicBool,
    /// The bulk loads that are attached to the keyspace.
    pub(crate) load_gate: LoadGate,
    /// A commit that changed rows of the keyspace, or 0. It need not be the newest one: see `txn/snapshots.rs`.
    pub(crate) changed_at: sync::atomic::AtomicU64,
    pub(crate) leaves_on_disk: LeavesOnDisk,
    /// Set once a row may have had a value on pages of its own. Leaves without such rows need not be read to be freed.
    has_values: AtomicBool,
    /// The runs above the keyspace's tree.
    pub(crate) runs: Runs,
}

/// Pages in a set of keyspaces, which are found by their id. A map would need more memory for the ids.
#[derive(Debug)]
pub(super) struct PagesById(pub(super) Arc<PageSpace>);

impl Borrow<KeyspaceId> for PagesById {
    fn borrow(&self) -> &KeyspaceId {
        &self.0.id
    }
}

impl Hash for PagesById {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl PartialEq for PagesById {
    fn eq(&self, other: &PagesById) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for PagesById {}

/// A keyspace's origins.
#[derive(Debug)]
struct Origins(Box<[CloneOrigin]>);

impl PageSpace {
    pub(crate) fn new(id: KeyspaceId, page_bytes: usize, name: &str, budget: &Arc<Budget>) -> PageSpace {
        assert!(is_page_bytes(page_bytes), "keyspace {id} has pages of {page_bytes} bytes");
        let (table, dropped_in) = (PageTable::new(budget), AtomicU64::new(0));
        let (has_lost_pages, load_gate) = (AtomicBool::new(false), LoadGate::new());
        PageSpace {
            id,
            origins: None,
            page_bytes_log2: page_bytes.ilog2() as u8,
            name: RwLock::new(name.into()),
            table,
            dropped_in,
            has_lost_pages,
            load_gate,
            changed_at: sync::atomic::AtomicU64::new(0),
            leaves_on_disk: LeavesOnDisk::default(),
            has_values: AtomicBool::new(false),
            runs: Runs::default(),
        }
    }

    /// Lets extents have the ids of these keyspaces too.
    pub(crate) fn with_origins(self, origins: &[CloneOrigin]) -> PageSpace {
        let is_itself = |origin: &CloneOrigin| origin.keyspace == self.id;
        debug_assert!(!origins.iter().any(is_itself), "keyspace {} is a clone of itself", self.id);
        debug_assert!(self.origins.is_none(), "keyspace {} has origins already", self.id);
        let origins = (!origins.is_empty()).then(|| Box::new(Origins(origins.into())));
        PageSpace { origins, ..self }
    }

    /// Returns the keyspaces whose ids its extents may have besides its own.
    pub(crate) fn origins(&self) -> &[CloneOrigin] {
        self.origins.as_ref().map_or(&[], |origins| &origins.0)
    }

    /// Returns `true` if extents with this id are shared with the keyspace that has it.
    pub(crate) fn has_origin(&self, id: KeyspaceId) -> bool {
        self.origins().iter().any(|origin| origin.keyspace == id)
    }

    /// Returns `true` if extents of the keyspace may have this id.
    #[inline]
    pub(crate) fn is_stored_as(&self, id: KeyspaceId) -> bool {
        id == self.id || self.has_origin(id)
    }

    /// Returns `true` if the two keyspaces may share extents: one is a clone of the other, or both have an origin in
    /// common.
    pub(crate) fn is_related(&self, other: &PageSpace) -> bool {
        debug_assert!(self.id != other.id, "keyspace {} is compared with itself", self.id);
        self.is_stored_as(other.id)
            || self.origins().iter().any(|origin| other.is_stored_as(origin.keyspace))
            || other.is_stored_as(self.id)
    }

    /// Returns the page size in bytes.
    #[inline]
    pub(crate) fn page_bytes(&self) -> usize {
        debug_assert!(is_page_bytes(1 << self.page_bytes_log2), "keyspace {} has no page size", self.id);
        1 << self.page_bytes_log2
    }

    /// Marks the keyspace as dropped. The caller holds the epoch latch exclusively.
    pub(super) fn set_dropped(&self, epoch_guard: &EpochGuard<'_>) {
        let before = self.dropped_in.swap(epoch_guard.epoch().0, Ordering::AcqRel);
        assert!(before == 0, "keyspace {} is dropped twice", self.id);
    }

    /// Returns `true` if the keyspace was dropped. Its pages are freed in the background. Under the epoch latch the
    /// answer does not change.
    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped_in.load(Ordering::Acquire) != 0
    }

    /// Returns `true` if the checkpoint that ends this epoch does not include the keyspace, because it was dropped.
    pub(crate) fn is_dropped_by(&self, epoch: Epoch) -> bool {
        debug_assert!(epoch != Epoch(0), "no checkpoint ends epoch 0");
        let dropped_in = self.dropped_in.load(Ordering::Acquire);
        dropped_in != 0 && dropped_in <= epoch.0
    }

    /// Returns `false` if no row of the keyspace that the caller has locked has changed since the snapshot. That is
    /// certain if no commit to the keyspace was published since then, because a transaction holds its row locks until
    /// its changes are published and noted in `changed_at`. Bulk loads and runs acquire no row locks, so the caller's
    /// commit compares its rows with runs that are attached from now on.
    #[inline]
    pub(crate) fn may_have_changed(&self, snapshot: Timestamp, published: impl FnOnce() -> Timestamp) -> bool {
        // The order matters: a load is published before it withdraws its announcement.
        self.load_gate.is_attaching()
            || published() > snapshot
                && (self.changed_at.load(Ordering::Acquire) > snapshot.0
                    || self.load_gate.is_loaded_since(snapshot)
                    || self.runs.are_attached_since(snapshot))
    }

    /// Records that entries of the page table may have been lost.
    pub(crate) fn expect_lost_pages(&self) {
        self.has_lost_pages.store(true, Ordering::Release);
    }

    /// Returns `true` if a node may name a page that is missing from the table.
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.has_lost_pages.load(Ordering::Acquire)
    }

    /// Records that rows may have values on pages of their own. Called before a leaf refers to such a value.
    #[inline]
    pub(crate) fn expect_values(&self) {
        // Load first: a cache line that is only read stays in the caches of all processors.
        if !self.has_values() {
            self.has_values.store(true, Ordering::Release);
        }
    }

    /// Returns `false` if no row has ever had a value on pages of its own.
    #[inline]
    pub(crate) fn has_values(&self) -> bool {
        self.has_values.load(Ordering::Acquire)
    }

    /// Returns the keyspace's name.
    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name.read())
    }

    /// Gives the keyspace another name, and returns the one before.
    pub(super) fn set_name(&self, name: Arc<str>) -> Arc<str> {
        assert!(!name.is_empty(), "a keyspace loses its name");
        std::mem::replace(&mut *self.name.write(), name)
    }

    /// Returns the keyspace's name, quoted for an error message.
    pub(crate) fn quoted_name(&self) -> String {
        if self.id == KeyspaceId::PREPARED { "of prepared transactions".to_owned() } else { quoted(&self.name.read()) }
    }

    /// Describes one of the keyspace's pages for an error message.
    pub(crate) fn quoted_page(&self, page: PageId) -> String {
        format!("page {page} of keyspace {}", self.quoted_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The average is that of the newest images of the leaves.
    #[test]
    fn images_replace_each_other() {
        let on_disk = LeavesOnDisk::default();
        assert_eq!(on_disk.average_rows(), None);
        on_disk.replace(None, Some(0));
        assert_eq!(on_disk.average_rows(), Some(0.0));
        (0..9).for_each(|_| on_disk.replace(None, Some(20)));
        assert_eq!(on_disk.average_rows(), Some(18.0));
        on_disk.replace(Some(20), Some(10));
        assert_eq!(on_disk.average_rows(), Some(17.0));
        on_disk.replace(Some(0), None);
        assert_eq!(on_disk.get(), (9, 170));
        on_disk.add(-10, -500);
        assert_eq!(on_disk.get(), (0, 0));
        on_disk.set(3, 6);
        assert_eq!(on_disk.average_rows(), Some(2.0));
    }
}
