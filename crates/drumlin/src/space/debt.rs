//! Counters of the bytes that the next checkpoint has to write from memory. Every change to a page updates them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::{Epoch, catalogue};
use crate::sync::CachePadded;

/// The bytes that the next checkpoint will write from memory. The buffer pool and the store of old versions update the
/// counters.
#[derive(Debug, Default)]
pub(crate) struct CheckpointDebt {
    dirty: CachePadded<DirtyPages>,
    orphan_count: AtomicU64,
    /// The number of pages of unneeded large values waiting to be freed.
    pub(super) unfreed_pages: AtomicU64,
}

/// The total size of dirty pages in bytes, and their number by the parity of the epoch that last changed them.
#[derive(Debug, Default)]
struct DirtyPages {
    bytes: AtomicU64,
    counts: [AtomicU64; 2],
}

impl CheckpointDebt {
    /// Moves a page from the epoch of its previous change to the epoch of its newest change. `None` means that the page
    /// is clean.
    #[inline]
    pub(crate) fn count_dirty(&self, page_bytes: u64, before: Option<Epoch>, after: Option<Epoch>) {
        if before == after {
            return;
        }
        if let Some(epoch) = after {
            self.dirty_count(epoch).fetch_add(1, Ordering::Relaxed);
        }
        if let Some(epoch) = before {
            let count = self.dirty_count(epoch).fetch_sub(1, Ordering::Relaxed);
            assert!(count > 0, "a page became clean of {epoch}, which had no dirty one");
        }
        match (before, after) {
            (None, Some(_)) => {
                self.dirty.bytes.fetch_add(page_bytes, Ordering::Relaxed);
            }
            (Some(_), None) => {
                let bytes = self.dirty.bytes.fetch_sub(page_bytes, Ordering::Relaxed);
                assert!(bytes >= page_bytes, "{page_bytes} bytes of pages became clean of {bytes} dirty ones");
            }
            _ => {}
        }
    }

    fn dirty_count(&self, epoch: Epoch) -> &AtomicU64 {
        &self.dirty.counts[(epoch.0 & 1) as usize]
    }

    /// Returns the number of dirty pages last changed in an epoch.
    pub(super) fn dirty_pages(&self, epoch: Epoch) -> u64 {
        self.dirty_count(epoch).load(Ordering::Relaxed)
    }

    /// Returns the total size of dirty pages, in bytes.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.bytes.load(Ordering::Relaxed)
    }

    /// Sets the number of orphans: large values that only old versions refer to.
    pub(crate) fn set_orphan_count(&self, count: usize) {
        self.orphan_count.store(count as u64, Ordering::Relaxed);
    }

    /// Sets the number of pages of unneeded large values. They wait for an epoch with enough memory to log their
    /// changes.
    pub(crate) fn set_unfreed_pages(&self, count: u64) {
        self.unfreed_pages.store(count, Ordering::Relaxed);
    }

    /// Returns the size of the catalogue's list of orphans, in bytes.
    pub(super) fn orphan_bytes(&self) -> u64 {
        self.orphan_count.load(Ordering::Relaxed) * catalogue::ORPHAN_BYTES
    }
}
