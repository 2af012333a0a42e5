//! Moves live extents out of segments.
//!
//! A node in memory is marked dirty, and the next checkpoint writes it to a different address. Every other extent is
//! copied byte for byte, or as an extent of its clone. If a copied extent holds a value that is in memory, the value's
//! frame gets the new address.

use std::borrow::Cow;
use std::sync::Arc;

use super::Reclaimer;
use super::emptied::{Emptied, Left};
use crate::error::Result;
use crate::format::extent::{self, KIND_OFFSET, Kind, PageKey};
use crate::format::{ExtentAddress, PageId, SegmentId};
use crate::hash::HashSet;
use crate::space::{EpochGuard, PageEntry, PageSpace, Purpose, SpaceReservation};

/// The bytes that are copied between two checks for a request to stop: two chunks of a large value.
const STEP_BYTES: u64 = 512 << 10;

/// A page whose extent has been copied.
struct Moved {
    page: PageId,
    old: ExtentAddress,
    new: ExtentAddress,
}

impl Reclaimer<'_> {
    /// Moves pages out of the victims, as far as disk space and the memory for changes allow.
    pub(super) fn empty(&self, victims: &HashSet<SegmentId>, moves: &SpaceReservation<'_>) -> Result<Emptied> {
        let emptied = self.empty_keyspaces(victims, moves);
        self.store.engine.space.seal_moved();
        // Return an error only after sealing: even if the disk is full, the next checkpoint frees the extents that were
        // moved away.
        emptied
    }

    /// Returns the number of pages that the next step may move before the changes of the newest epoch fill their
    /// memory; 0 means that moving must wait for the next epoch. Moving may use only the eighth of the memory that
    /// commits leave, because commits continue. Packing has no limit: unless it empties its segments, there may be no
    /// space for a checkpoint.
    fn step_pages(&self, moves: &SpaceReservation<'_>) -> usize {
        if moves.purpose() == Purpose::Pack {
            return usize::MAX;
        }
        let count_max = self.store.engine.budget.epoch_changes_max();
        count_max.saturating_sub(self.store.engine.space.epoch_change_count()).min(count_max / 8) as usize
    }

    fn empty_keyspaces(&self, victims: &HashSet<SegmentId>, moves: &SpaceReservation<'_>) -> Result<Emptied> {
        let mut emptied = Emptied::default();
        for pages in self.store.engine.space.page_spaces().iter().filter(|pages| !pages.is_dropped()) {
            emptied = emptied.and(self.empty_keyspace(pages, victims, moves)?);
            if emptied.left.is_some() {
                break;
            }
        }
        Ok(emptied)
    }

    fn empty_keyspace(
        &self,
        pages: &Arc<PageSpace>,
        victims: &HashSet<SegmentId>,
        moves: &SpaceReservation<'_>,
    ) -> Result<Emptied> {
        let engine = &self.store.engine;
        let space = &engine.space;
        let inside =
            |address: ExtentAddress| !address.is_none() && victims.contains(&space.segments.segment_of(address));
        let mut as_they_lie: Vec<(ExtentAddress, PageId)> = Vec::new();
        let mut emptied = Emptied::default();
        for (page, entry) in pages.table.iter() {
            match entry {
                PageEntry::Reading(address) if inside(address) => {
                    crate::coverage::mark!("a segment was emptied while a page in it was read");
                }
                PageEntry::OnDisk(address) if inside(address) => {
                    as_they_lie.push((address, page));
                }
                PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => {
                    let address = engine.pool.frames.header(frame).address();
                    if inside(address) && self.is_value_in_memory(pages, page) {
                        as_they_lie.push((address, page));
                    } else if inside(address) {
                        if self.step_pages(moves) == 0 {
                            crate::coverage::mark!("moving pages continued after a checkpoint");
                            emptied.left = Some(Left::ManyChanges);
                            break;
                        }
                        match self.touch(pages, page, moves) {
                            Ok(is_touched) => emptied.page_count += u64::from(is_touched),
                            Err(error) => return emptied.ended_by(error),
                        }
                    }
                }
                _ => {}
            }
        }
        // Copy them in disk order.
        as_they_lie.sort_unstable();
        Ok(emptied.and(self.move_extents(pages, &as_they_lie, moves)?))
    }

    fn is_value_in_memory(&self, pages: &PageSpace, page: PageId) -> bool {
        let pool = &self.store.engine.pool;
        let reclaim_guard = pool.reclaim_guard();
        let found = reclaim_guard.pages(&pages.table).get(page);
        found.is_some_and(|(_, bytes)| bytes[KIND_OFFSET] == Kind::Value as u8)
    }

    /// Marks a node in memory dirty, so that the next checkpoint writes it to a different address. Returns `false` if
    /// the page no longer holds a node.
    fn touch(&self, pages: &PageSpace, page: PageId, moves: &SpaceReservation<'_>) -> Result<bool> {
        let engine = &self.store.engine;
        // Packing has already reserved all its space.
        let _reserved_page = match moves.purpose() {
            Purpose::Pack => None,
            purpose => Some(engine.space.reserve(purpose, pages.page_bytes() as u64)?),
        };
        engine.pool.relieve()?;
        let epoch_guard = engine.space.epoch_latch.shared();
        if pages.is_dropped() {
            return Ok(false);
        }
        let (PageEntry::Leaf(frame) | PageEntry::Immutable(frame)) = pages.table.load(page) else { return Ok(false) };
        let Some(write) = engine.pool.frames.write(frame, PageKey { keyspace: pages.id, page }) else {
            return Ok(false);
        };
        let entry = pages.table.load(page);
        // If this page number now belongs to a value, the value was written after the segment was closed. So it is in a
        // different segment and does not have to move.
        let is_node = write[KIND_OFFSET] != Kind::Value as u8;
        let is_it = is_node && (entry == PageEntry::Leaf(frame) || entry == PageEntry::Immutable(frame));
        if is_it {
            engine.pool.append_due_image(&epoch_guard, &write)?;
            engine.pool.mark_dirty(&epoch_guard, &write);
        }
        Ok(is_it)
    }

    /// Copies extents byte for byte to a segment of the current epoch, and points their pages to the copies.
    fn move_extents(
        &self,
        pages: &PageSpace,
        found: &[(ExtentAddress, PageId)],
        moves: &SpaceReservation<'_>,
    ) -> Result<Emptied> {
        let engine = &self.store.engine;
        let space = &engine.space;
        let mut rest = found;
        let mut emptied = Emptied::default();
        while !rest.is_empty() && !self.must_stop() {
            let page_count = self.step_pages(moves);
            if page_count == 0 {
                emptied.left = Some(Left::ManyChanges);
                break;
            }
            let mut bytes = 0;
            let count = rest.iter().take(page_count).take_while(|(address, _)| {
                bytes += address.length();
                bytes <= STEP_BYTES || bytes == address.length()
            });
            let (step, later) = rest.split_at(count.count());
            rest = later;
            // Even if a copy fails, point the pages whose copies succeeded to these copies.
            let (moved, ended) = self.copy_extents(pages, step, moves);
            space.flush_moved(moves);
            space.wait_for_jobs(engine.pool.on_written())?;
            let epoch_guard = space.epoch_latch.shared();
            for Moved { page, old, new } in moved {
                if self.redirect(&epoch_guard, pages, page, old, new) {
                    space.segments.release(old, epoch_guard.epoch());
                    emptied.page_count += 1;
                } else {
                    crate::coverage::mark!("a page changed while its extent was moved");
                    space.segments.discard(new);
                }
            }
            drop(epoch_guard);
            if let Err(error) = ended {
                return emptied.ended_by(error);
            }
        }
        Ok(emptied)
    }

    /// Appends copies of extents to a segment of the current epoch. Leaves corrupted extents in place; their next
    /// reader will report them. Returns the copies made, and the error that ended copying, if there was one.
    fn copy_extents(
        &self,
        pages: &PageSpace,
        found: &[(ExtentAddress, PageId)],
        moves: &SpaceReservation<'_>,
    ) -> (Vec<Moved>, Result<()>) {
        let space = &self.store.engine.space;
        let mut moved = Vec::with_capacity(found.len());
        let mut ended = Ok(());
        let addresses: Vec<ExtentAddress> = found.iter().map(|(address, _)| *address).collect();
        let read = self.store.engine.pool.read_past(&addresses, |index, bytes| {
            let (old, page) = found[index];
            let bytes = match bytes {
                _ if ended.is_err() => return,
                Ok(bytes) => bytes,
                Err(error) => {
                    log::warn!("{} stays where it is: {error}", pages.quoted_page(page));
                    return;
                }
            };
            let Ok(header) = space.verify(old, bytes) else {
                log::warn!("{} is corrupted and stays where it is", pages.quoted_page(page));
                return;
            };
            let epoch_guard = space.epoch_latch.shared();
            let mut copied = Cow::Borrowed(&bytes[..header.stored_bytes]);
            if pages.has_origin(header.page_key.keyspace) {
                crate::coverage::mark!("an extent of an origin was moved for its clone");
                extent::set_keyspace(copied.to_mut(), pages.id);
            }
            match space.append_moved(epoch_guard.epoch(), &copied, moves) {
                Ok(new) => moved.push(Moved { page, old, new }),
                Err(error) => ended = Err(error),
            }
        });
        (moved, ended.and(read))
    }

    /// Points the page to `new`, either in its table entry or, if it is in memory, in its frame. Returns `false` if the
    /// page has an image newer than the one at `old`, or a dirty frame that will be written as such an image, or if its
    /// keyspace was dropped. The change is recorded before any later change of the same page.
    fn redirect(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        page: PageId,
        old: ExtentAddress,
        new: ExtentAddress,
    ) -> bool {
        let space = &self.store.engine.space;
        // The tables of a dropped keyspace are no longer recorded.
        if pages.is_dropped() {
            return false;
        }
        loop {
            let exchange = || pages.table.exchange(page, PageEntry::OnDisk(old), PageEntry::OnDisk(new));
            if space.record_change(epoch_guard, pages.id, page, new, exchange) {
                return true;
            }
            let entry = pages.table.load(page);
            match entry {
                // The page has just been evicted.
                PageEntry::OnDisk(address) if address == old => {}
                PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => {
                    let page_key = PageKey { keyspace: pages.id, page };
                    let Some(write) = self.store.engine.pool.frames.write(frame, page_key) else { continue };
                    if pages.table.load(page) != entry {
                        continue;
                    }
                    let is_its_own = write.header().address() == old && write.header().dirty().is_none();
                    if is_its_own {
                        write.header().set_address(new);
                        // Record this while the latch is held, so that the record of a later change or free comes after
                        // it.
                        space.record(epoch_guard.epoch(), pages.id, page, new);
                    }
                    return is_its_own;
                }
                _ => return false,
            }
        }
    }
}
