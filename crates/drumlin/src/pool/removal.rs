//! Removing pages from their keyspace, one by one or all together.

use super::Pool;
use super::frame_header::Residency;
use super::frames::FrameWrite;
use crate::error::Result;
use crate::format::extent::PageKey;
use crate::format::{ExtentAddress, PageId};
use crate::space::{EpochGuard, PageEntry, PageSpace};

/// A page that is to be removed.
enum Latched<'p> {
    Frame(FrameWrite<'p>),
    OnDisk(PageEntry),
    /// It is free, or belongs to a bulk load.
    Other,
    /// Its page-table entry has changed, so look again.
    Changed,
}

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
        let entry = pages.table.free_in(epoch_guard.epoch(), page);
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
        let is_claimed = self.claim_on_disk(pages, page, entry);
        if is_claimed {
            self.free_claimed(epoch_guard, pages, page, address);
        }
        is_claimed
    }

    /// Claims a page that is on disk, or being read, so that it can be freed. From now on, no thread moves it or begins
    /// to read it, and a read in flight finds the entry changed. Returns `false` if its entry has changed.
    pub(crate) fn claim_on_disk(&self, pages: &PageSpace, page: PageId, entry: PageEntry) -> bool {
        pages.table.exchange(page, entry, PageEntry::Reserved)
    }

    /// Frees a page that the caller has [claimed](Self::claim_on_disk), and its extent.
    pub(crate) fn free_claimed(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        page: PageId,
        address: ExtentAddress,
    ) {
        self.space.record_free(epoch_guard, pages, page);
        self.space.segments.release(address, epoch_guard.epoch());
        let claimed = pages.table.free_in(epoch_guard.epoch(), page);
        assert!(claimed == PageEntry::Reserved, "page {page} became {claimed:?} while it was claimed to be freed");
        self.announce_arrival(pages, page);
    }

    /// Removes the pages of a large value from their keyspace. Returns their extents, which stay in use: the caller
    /// gives them to pages of another keyspace in the same epoch.
    pub(crate) fn take_pages(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        first: PageId,
        count: u32,
    ) -> Vec<ExtentAddress> {
        let take = |page| loop {
            let entry = pages.table.load(page);
            let (PageEntry::OnDisk(address) | PageEntry::Reading(address)) = entry else {
                unreachable!("page {page} of a large value is {entry:?}")
            };
            // Claim the page, as in `free_on_disk`.
            if pages.table.exchange(page, entry, PageEntry::Reserved) {
                self.space.record_free(epoch_guard, pages, page);
                let claimed = pages.table.free(page);
                assert!(claimed == PageEntry::Reserved, "page {page} became {claimed:?} while it was claimed");
                self.announce_arrival(pages, page);
                return address;
            }
        };
        (0..count).map(|index| take(PageId(first.0 + index))).collect()
    }

    /// Makes the root of a keyspace ready to be [removed](Self::free_root): if the running checkpoint still needs its
    /// image, appends that. The caller holds the exclusive epoch latch until the root is removed.
    pub(crate) fn prepare_root(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) -> Result<()> {
        assert!(!pages.is_dropped(), "keyspace {} is dropped twice", pages.id);
        loop {
            match self.latch_page(pages, PageId::ROOT) {
                Latched::Frame(write) => return self.append_due_image(epoch_guard, &write),
                Latched::OnDisk(_) | Latched::Other => return Ok(()),
                Latched::Changed => {}
            }
        }
    }

    /// Removes the root of a keyspace that was dropped under this epoch guard. From then on no descent reaches a page.
    pub(crate) fn free_root(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) {
        assert!(pages.is_dropped(), "the root of a keyspace in use is freed");
        self.free_if_owned(epoch_guard, pages, PageId::ROOT).expect("the image that is due was appended before");
        debug_assert!(
            pages.table.load(PageId::ROOT) == PageEntry::Free,
            "the root of a dropped keyspace can be reached"
        );
    }

    /// Frees the pages of a dropped keyspace, a few at a time, so that commits and checkpoints can continue. O(pages).
    pub(crate) fn free_dropped(&self, pages: &PageSpace) -> Result<()> {
        assert!(pages.is_dropped(), "the pages of a keyspace in use are discarded");
        /// The number of pages that are freed while a checkpoint has to wait to begin: for less than 100 us.
        const PAGES_AT_ONCE: usize = 256;
        let mut numbers = pages.table.iter().map(|(page, _)| page).peekable();
        while numbers.peek().is_some() {
            {
                let epoch_guard = self.space.epoch_latch.shared();
                for page in numbers.by_ref().take(PAGES_AT_ONCE) {
                    self.free_if_owned(&epoch_guard, pages, page)?;
                    // The running checkpoint needed an image of the page.
                    if self.space.is_near_full() {
                        break;
                    }
                }
            }
            self.relieve()?;
        }
        Ok(())
    }

    /// Empties a keyspace during recovery. Frees all its pages except those of unattached bulk loads. The caller holds
    /// the exclusive epoch latch.
    pub(crate) fn clear(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) -> Result<()> {
        assert!(!pages.is_dropped(), "a keyspace that is dropped is cleared");
        pages.table.iter().try_for_each(|(page, _)| self.free_if_owned(epoch_guard, pages, page))
    }

    /// Frees a page, unless it belongs to a bulk load that is not attached.
    fn free_if_owned(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace, page: PageId) -> Result<()> {
        loop {
            match self.latch_page(pages, page) {
                // A read may begin or end at any moment, but must not bring a page into a dropped keyspace.
                Latched::OnDisk(entry) => {
                    if self.free_on_disk(epoch_guard, pages, page, entry) {
                        return Ok(());
                    }
                }
                Latched::Frame(write) => {
                    self.append_due_image(epoch_guard, &write)?;
                    self.free_page(epoch_guard, pages, write);
                    return Ok(());
                }
                Latched::Other => return Ok(()),
                Latched::Changed => {}
            }
        }
    }

    /// Latches a page for its removal, if it is in memory.
    fn latch_page(&self, pages: &PageSpace, page: PageId) -> Latched<'_> {
        assert!(page != PageId::NONE, "page 0 is removed");
        let entry = pages.table.load(page);
        match entry {
            PageEntry::OnDisk(_) | PageEntry::Reading(_) => Latched::OnDisk(entry),
            PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => {
                let write = self.frames.write(frame, PageKey { keyspace: pages.id, page });
                match write.filter(|_| pages.table.load(page) == entry) {
                    Some(write) => Latched::Frame(write),
                    None => Latched::Changed,
                }
            }
            PageEntry::Free | PageEntry::Reserved | PageEntry::Unattached(_) => Latched::Other,
        }
    }
}
