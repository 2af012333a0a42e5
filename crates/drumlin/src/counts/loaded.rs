//! Counts of a bulk load. They cost no extra reads, because the packer knows the number of rows beneath each node that
//! it writes.

use std::sync::Arc;

use super::kept::KeptCounts;
use super::page_entries::CountEntries;
use crate::format::{PageId, Timestamp};
use crate::memory::Budget;

/// The counts of a tree that is being packed, until the tree is attached.
#[derive(Debug)]
pub(crate) struct LoadedCounts {
    kept: KeptCounts,
    page_count: usize,
}

impl LoadedCounts {
    /// Creates counts without any entries.
    pub(crate) fn new(budget: &Arc<Budget>) -> LoadedCounts {
        LoadedCounts { kept: KeptCounts::new(Timestamp(0), budget), page_count: 0 }
    }

    /// Returns the counts. The caller sets their base.
    pub(super) fn into_kept(self) -> KeptCounts {
        self.kept
    }

    /// Returns the number of pages that have a count.
    pub(crate) fn page_count(&self) -> usize {
        self.page_count
    }

    /// Adds the count of a page that the load has stored. Returns `false` if the counts would need too much memory, by
    /// the same limit as in [`Counts::begin`](super::Counts::begin).
    pub(crate) fn add(&mut self, page: PageId, rows: u64) -> bool {
        let kept = &self.kept;
        assert!(rows > 0, "page {page} of a load has no rows");
        let is_reserved = || kept.has_memory_for(CountEntries::memory_bytes_of(u64::from(page.0) + 1));
        if !kept.entries.has_cell(page) && !is_reserved() {
            return false;
        }
        let is_first = kept.store(page, 0, rows);
        assert!(is_first, "page {page} of a load is stored twice");
        self.page_count += 1;
        true
    }
}
