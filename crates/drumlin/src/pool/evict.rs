//! Taking frames, and choosing the pages to evict.

use std::time::Duration;

use super::Pool;
use super::frame_header::{INNER_CHANCES, Residency};
use super::frames::NewFrame;
use crate::error::{Error, Result};
use crate::format::extent::{KIND_OFFSET, Kind, PageKey};
use crate::format::node::is_page_bytes;
use crate::space::{FrameIndex, PageEntry};

/// Number of pages evicted, or written back, in one batch.
pub(super) const BATCH_PAGES: usize = 128;

/// The number of attempts to evict a page after which a thread waits for other threads to unpin or write pages.
const ROUNDS_MAX: u32 = 10_000;
/// The longest time that a thread waits for a frame.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two attempts to get a frame. Threads poll, because no notification is sent when a frame is freed.
const FRAME_PAUSE: Duration = Duration::from_micros(100);

impl Pool {
    /// Takes a frame for a page, evicting other pages if no frame is free. Blocks, so must not be called under the
    /// epoch latch.
    pub(crate) fn take_frame(&self, page_bytes: usize) -> Result<NewFrame<'_>> {
        self.reserve_frames(page_bytes)?;
        let (mut rounds, mut deadline) = (0, None);
        loop {
            if let Some(frame) = self.frames.try_take(page_bytes) {
                if rounds == 0 && self.frames.available(page_bytes) < self.low_water(page_bytes) {
                    self.wake_background();
                }
                debug_assert_eq!(frame.len(), page_bytes, "a frame of another size was taken");
                return Ok(frame);
            }
            rounds += 1;
            // After a few turns of the clock, every page has used up its chances. A page that survives many turns is
            // pinned or can't be written.
            if rounds > ROUNDS_MAX {
                if let Some(stopped) = self.space.failure() {
                    return Err(stopped.into_error());
                }
                // Commits pin at most half of the frames. Reads in flight use the rest, and they soon end.
                let now = self.backend.now();
                let deadline = *deadline.get_or_insert(now.saturating_add(FRAME_TIMEOUT));
                if now >= deadline {
                    return Err(Error::pages_in_memory(self.frames.limit_bytes() as u64));
                }
                crate::sync::park_timeout(FRAME_PAUSE);
            }
            if self.evict_for(page_bytes)? == 0 {
                crate::coverage::mark!("no page could be evicted for a frame");
                // Frames whose images are being written become evictable once the writes have ended, however slow the
                // disk is.
                let _ = self.space.wait_for_jobs(self.on_written());
                crate::sync::yield_now();
            }
        }
    }

    pub(super) fn low_water(&self, page_bytes: usize) -> usize {
        let count = self.frames.limit_bytes() / page_bytes;
        // At most an eighth of the frames: otherwise a pool with few frames would hold no pages.
        (count / 32).clamp(4, 4096).min(count.div_ceil(8))
    }

    pub(super) fn frames_wanted(&self, page_bytes: usize) -> usize {
        (self.low_water(page_bytes) * 2).min(BATCH_PAGES)
    }

    /// Evicts a batch of clean pages. If there are too few, writes dirty pages back, so that the next call can evict
    /// them. Returns the number of pages evicted.
    pub(crate) fn evict_for(&self, page_bytes: usize) -> Result<usize> {
        // Evict pages of the wanted size, unless a different size uses more than twice as much memory.
        let sizes = self.frames.sizes();
        let own = sizes.iter().find(|(size, _)| *size == page_bytes).map_or(0, |&(size, count)| size * count);
        let largest = sizes.iter().copied().max_by_key(|&(size, count)| size * count);
        let victim_bytes = match largest {
            Some((size, count)) if size != page_bytes && own * 2 < size * count => size,
            _ => page_bytes,
        };
        debug_assert!(is_page_bytes(victim_bytes), "pages of {victim_bytes} bytes are to be evicted");
        let evicted = self.evict_victims(page_bytes, victim_bytes)?;
        if evicted > 0 {
            return Ok(evicted);
        }
        // If all pages of that size are pinned, try the other sizes.
        for (size, _) in sizes.into_iter().filter(|(size, count)| *size != victim_bytes && *count > 0) {
            let evicted = self.evict_victims(page_bytes, size)?;
            if evicted > 0 {
                return Ok(evicted);
            }
        }
        Ok(0)
    }

    /// Shrinks the pool until `more_table_bytes` of additional page tables fit in the budget. First gives free frames
    /// back to the system, then evicts pages in batches. If no more pages can be evicted, gives up and leaves the
    /// excess to the next caller. Blocks, so must not be called under the epoch latch.
    pub(crate) fn fit_frames(&self, more_table_bytes: u64) -> Result<()> {
        if !self.frames.is_over_limit(more_table_bytes) {
            return Ok(());
        }
        let _guard = self.fitting.lock();
        let mut turns_in_vain = 0;
        loop {
            self.frames.give_back_excess(more_table_bytes);
            if !self.frames.is_over_limit(more_table_bytes) {
                crate::coverage::mark!("frames gave up memory for page tables");
                return Ok(());
            }
            // Each turn of the clock uses up one chance of every page.
            let largest = self.frames.sizes().into_iter().max_by_key(|(page_bytes, count)| page_bytes * count);
            let Some((page_bytes, _)) = largest.filter(|_| turns_in_vain <= INNER_CHANCES) else { return Ok(()) };
            if self.evict_for(page_bytes)? > 0 {
                turns_in_vain = 0;
            } else {
                turns_in_vain += 1;
                let _ = self.space.wait_for_jobs(self.on_written());
            }
        }
    }

    /// Evicts a batch of pages of `victim_bytes` to make room for pages of `page_bytes`.
    pub(super) fn evict_victims(&self, page_bytes: usize, victim_bytes: usize) -> Result<usize> {
        let wanted = (self.frames_wanted(page_bytes) * page_bytes).div_ceil(victim_bytes).max(1);
        let failure = self.space.failure();
        // After a failure no page can be written, so skip all dirty pages in search of clean ones.
        let dirty_max = if failure.is_some() { usize::MAX } else { BATCH_PAGES };
        let (mut evicted, dirty) = self.evict(victim_bytes, wanted, dirty_max);
        match failure {
            None if evicted < wanted && !dirty.is_empty() => self.write_back(victim_bytes, &dirty)?,
            Some(stopped) if evicted == 0 => {
                // Each turn uses up one chance of every page. After these turns, no page has a chance left.
                for _ in 0..INNER_CHANCES {
                    evicted = self.evict(victim_bytes, wanted, dirty_max).0;
                    if evicted > 0 {
                        break;
                    }
                }
                if evicted == 0 && !dirty.is_empty() {
                    return Err(stopped.into_error());
                }
            }
            _ => {}
        }
        if victim_bytes != page_bytes {
            self.frames.give_back_free(page_bytes);
        }
        Ok(evicted)
    }

    /// Turns the clock once: evicts up to `wanted` clean pages that have no chance left, and collects up to `dirty_max`
    /// dirty ones.
    pub(super) fn evict(&self, page_bytes: usize, wanted: usize, dirty_max: usize) -> (usize, Vec<FrameIndex>) {
        let mut evicted = 0;
        let mut dirty = Vec::new();
        for frame in self.frames.turn(page_bytes) {
            if evicted >= wanted || dirty.len() >= dirty_max {
                break;
            }
            let header = self.frames.header(frame);
            if header.page_key().is_none() || !header.is_idle() || header.take_reference() {
                continue;
            }
            if header.dirty().is_some() {
                dirty.push(frame);
            } else if self.try_evict(frame) {
                evicted += 1;
            }
        }
        debug_assert!(evicted <= wanted && dirty.len() <= dirty_max, "{evicted} of {wanted} pages were evicted");
        (evicted, dirty)
    }

    /// Evicts one page if it is clean and not pinned.
    pub(super) fn try_evict(&self, frame: FrameIndex) -> bool {
        let Some(page_key) = self.frames.header(frame).page_key() else { return false };
        let Some(pages) = self.space.page_space(page_key.keyspace) else {
            return page_key.keyspace.is_of_kept() && self.evict_closed(frame, page_key);
        };
        let Some(write) = self.frames.try_write(frame, page_key) else { return false };
        let address = write.header().address();
        if !write.header().is_idle() || write.header().dirty().is_some() || address.is_none() {
            crate::coverage::mark!("a page chosen for eviction was in use again");
            return false;
        }
        for entry in [PageEntry::Leaf(frame), PageEntry::Immutable(frame)] {
            if pages.table.exchange(page_key.page, entry, PageEntry::OnDisk(address)) {
                // A page is pinned or made dirty only under its latch, which this thread holds.
                assert!(write.header().is_idle() && write.header().dirty().is_none(), "a page in use is evicted");
                write.unlink(Residency::of(entry, frame));
                return true;
            }
        }
        false
    }

    /// Evicts a page of a kept snapshot that has been closed. No entry refers to the page anymore.
    fn evict_closed(&self, frame: FrameIndex, page_key: PageKey) -> bool {
        let Some(write) = self.frames.try_write(frame, page_key) else { return false };
        assert!(write.header().dirty().is_none(), "a page of a kept snapshot was changed");
        let is_leaf = write[KIND_OFFSET] == Kind::Leaf as u8;
        write.unlink(if is_leaf { Residency::Leaf } else { Residency::Immutable });
        true
    }
}
