//! Removing pages from their keyspace, singly or all together.

use std::sync::atomic::Ordering;

use super::Pool;
use super::frame_header::Residency;
use super::frames::FrameWrite;
use crate::error::Result;
use crate::format::PageId;
use crate::format::extent::PageKey;
use crate::space::{EpochGuard, PageEntry, PageSpace};

impl Pool {
    /// Removes a latched page from its keyspace. The caller has called [`prepare_change`](Self::prepare_change) under
    /// the same epoch guard.
    pub(crate) fn free_page(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace, write: FrameWrite<'_>) {
        let (page, frame) = (write.page(), write.frame());
        assert!(write.page_key().keyspace == pages.id, "a page is freed in another keyspace");
        let dirty = write.header().dirty();
        assert!(dirty.is_none_or(|epoch| epoch == epoch_guard.epoch()), "a page is freed of which an image is due");
        let address = write.header().address();
        pages.leaves_on_disk.replace(write.header().set_rows_on_disk(None), None);
        self.space.record_free(epoch_guard, pages, page);
        let entry = pages.table.free(page);
        if !address.is_none() {
            self.space.segments.release(address, epoch_guard.epoch());
        }
        write.unlink(Residency::of(entry, frame));
    }

    /// Removes a page that is on disk, or being read, from its keyspace. Returns `false` if its entry has changed.
    pub(crate) fn free_on_disk(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        page: PageId,
        entry: PageEntry,
    ) -> bool {
        let (PageEntry::OnDisk(address) | PageEntry::Reading(address)) = entry else {
            unreachable!("{entry:?} is not on disk")
        };
        // Claim the page: after this no thread moves it or begins to read it, and a read in flight finds the entry
        // changed.
        if !pages.table.exchange(page, entry, PageEntry::Reserved) {
            return false;
        }
        self.space.record_free(epoch_guard, pages, page);
        self.space.segments.release(address, epoch_guard.epoch());
        let claimed = pages.table.free(page);
        assert!(claimed == PageEntry::Reserved, "page {page} became {claimed:?} while it was claimed to be freed");
        self.announce_arrival(pages, page);
        true
    }

    /// Empties the frames of a keyspace that is being dropped, and releases their extents. Only write-back and eviction
    /// may still be active in the keyspace.
    pub(crate) fn discard(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) -> Result<()> {
        assert!(pages.dropped.load(Ordering::Acquire), "the pages of a keyspace in use are discarded");
        self.free_pages(epoch_guard, pages)
    }

    /// Empties a keyspace during recovery. Frees all its pages except those of unattached bulk loads. The caller holds
    /// the exclusive epoch latch.
    pub(crate) fn clear(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) -> Result<()> {
        assert!(!pages.dropped.load(Ordering::Acquire), "a keyspace that is dropped is cleared");
        self.free_pages(epoch_guard, pages)
    }

    fn free_pages(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) -> Result<()> {
        for (page, _) in pages.table.iter() {
            loop {
                let entry = pages.table.load(page);
                if matches!(entry, PageEntry::OnDisk(_) | PageEntry::Reading(_)) {
                    // A read may begin or end at any moment, but must not bring a page into a dropped keyspace.
                    if self.free_on_disk(epoch_guard, pages, page, entry) {
                        break;
                    }
                    continue;
                }
                let (PageEntry::Leaf(frame) | PageEntry::Immutable(frame)) = entry else { break };
                let page_key = PageKey { keyspace: pages.id, page };
                let Some(write) = self.frames.write(frame, page_key) else { continue };
                if pages.table.load(page) != PageEntry::Leaf(frame)
                    && pages.table.load(page) != PageEntry::Immutable(frame)
                {
                    continue;
                }
                self.append_due_image(epoch_guard, &write)?;
                self.free_page(epoch_guard, pages, write);
                break;
            }
        }
        Ok(())
    }
}
