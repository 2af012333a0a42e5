//! Cleaning: moving what lives out of sparse segments, so that they serve again.
//!
//! Nodes in memory are made dirty, so that the next checkpoint writes them elsewhere. All else is copied as it lies on disk; of
//! a value in memory the frame is told the new place.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::checkpoint::CheckpointReport;
use super::core::Core;
use crate::collections::HashSet;
use crate::error::{Error, Result};
use crate::format::extent::{Identity, KIND_OFFSET, Kind};
use crate::format::{PageId, Place, SegmentId};
use crate::space::{Guard, PageSpace, Word};

/// What compacting did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompactReport {
    /// The data file's length before.
    pub bytes_before: u64,
    /// And after.
    pub bytes_after: u64,
    /// How long it took.
    pub duration: Duration,
}

/// A database under endless updates may take this much more than what lives in it before segments are emptied.
const WASTE_SHARE_MAX: f64 = 0.35;
/// Segments that are fuller than this are left alone then.
const LIVE_SHARE_MAX: f64 = 0.80;
/// Compacting leaves segments alone that are fuller than this: extents of a quarter of a megabyte do not pack closer.
const PACKED_SHARE_MIN: f64 = 0.80;
/// Rounds in which compacting moves the file's end to its front.
const COMPACT_ROUNDS_MAX: usize = 16;
/// Segments emptied in one go: one pass over the page tables finds what lives in all of them.
const VICTIM_COUNT_MAX: usize = 256;

impl Core {
    /// Empties sparse segments if waste has grown past its share.
    pub(crate) fn clean_up(&self) -> Result<()> {
        let _alone = self.cleaning.lock();
        let segments = &self.engine.space.segments;
        for _ in 0..16 {
            let usage = segments.usage();
            let used_bytes = (usage.segment_count - usage.free_count).saturating_sub(1) * segments.segment_bytes();
            let wasted_bytes = used_bytes.saturating_sub(usage.live_bytes);
            if used_bytes < 16 * segments.segment_bytes() || (wasted_bytes as f64) < used_bytes as f64 * WASTE_SHARE_MAX
            {
                break;
            }
            let victims = self.take_sparse(wasted_bytes / 2);
            if victims.is_empty() || self.upkeep.state.lock().stop {
                break;
            }
            self.evacuate(&victims)?;
            self.checkpoint_after(false)?;
        }
        // What is free beyond a quarter goes back to the file system.
        let usage = segments.usage();
        let keep = (usage.segment_count / 4).max(8);
        if usage.free_count > keep * 2 {
            segments
                .shrink(keep as u32)
                .map_err(|error| crate::Error::io("shrinking", self.engine.space.path(), error))?;
        }
        Ok(())
    }

    /// Frees what can be freed on a full disk: what was replaced since the last checkpoint, and then what packing the
    /// sparsest segments into the little space that there is gains. What is moved goes where the checkpoint writes: each
    /// segment begun counts here.
    pub(crate) fn make_space(&self) -> Result<CheckpointReport> {
        let _alone = self.cleaning.lock();
        self.engine.sweep();
        self.engine.space.tight.store(true, Ordering::Release);
        let made = self.make_space_alone();
        self.engine.space.tight.store(false, Ordering::Release);
        made
    }

    fn make_space_alone(&self) -> Result<CheckpointReport> {
        /// Below this share, tables and summaries are moved out of a segment whatever else is in it.
        const NEARLY_EMPTY_SHARE: f64 = 0.25;
        let space = &self.engine.space;
        let segments = &space.segments;
        let mut made: Option<CheckpointReport> = None;
        // No other checkpoint begins meanwhile: what is moved would go to its epoch, and take the segments that it counts on.
        let base = &mut self.base.lock();
        loop {
            let free_count = segments.usage().free_count;
            let nearly_empty = segments.sparse(NEARLY_EMPTY_SHARE, VICTIM_COUNT_MAX);
            base.evacuate(nearly_empty.iter().map(|(segment, _)| segment.0));
            let mut victims: Vec<SegmentId> = Vec::new();
            // Commits are accepted meanwhile, which must not count on the same space.
            let promised = self.engine.promise_moves(|| {
                let writable_bytes = segments.usage().free_count * segments.segment_bytes() + space.room_bytes();
                let budget_bytes = (writable_bytes * 3 / 4).saturating_sub(self.engine.checkpoint_bytes(0));
                let mut moved_bytes = 0;
                victims.clear();
                for (segment, live_bytes) in segments.sparse(LIVE_SHARE_MAX, VICTIM_COUNT_MAX) {
                    if moved_bytes + live_bytes > budget_bytes {
                        break;
                    }
                    moved_bytes += live_bytes;
                    victims.push(segment);
                }
                moved_bytes
            });
            if victims.is_empty()
                && let Some(report) = made
            {
                return Ok(report);
            }
            base.evacuate(victims.iter().map(|segment| segment.0));
            let has_emptied = self.empty(&victims)? || !victims.is_empty() && base.must_evacuate(space);
            drop(promised);
            let report = self.checkpoint_of(base, has_emptied)?;
            let free_now = segments.usage().free_count;
            // Enough was done for now; the first round may only free what the second needs.
            let goal = 2 * u64::from(space.spare_segments()) + 8;
            let is_enough = free_now >= goal || (made.is_some() && free_now <= free_count);
            if is_enough || self.upkeep.state.lock().stop {
                return Ok(report);
            }
            made = Some(report);
        }
    }

    /// The sparsest segments, as many as promise to free `goal_bytes`.
    fn take_sparse(&self, goal_bytes: u64) -> Vec<SegmentId> {
        let segments = &self.engine.space.segments;
        let mut freed_bytes = 0;
        (segments.sparse(LIVE_SHARE_MAX, VICTIM_COUNT_MAX).into_iter())
            .take_while(|(_, live_bytes)| {
                let go_on = freed_bytes < goal_bytes;
                freed_bytes += segments.segment_bytes() - live_bytes;
                go_on
            })
            .map(|(segment, _)| segment)
            .collect()
    }

    /// Moves everything that lives in the victims elsewhere, tables with the next checkpoint, after which they are free.
    fn evacuate(&self, victims: &[SegmentId]) -> Result<()> {
        self.base.lock().evacuate(victims.iter().map(|segment| segment.0));
        self.empty(victims).map(drop)
    }

    /// Moves the pages in the victims elsewhere, as far as there is space. Returns whether there were any to be moved.
    fn empty(&self, victims: &[SegmentId]) -> Result<bool> {
        let victims: HashSet<u32> = victims.iter().map(|segment| segment.0).collect();
        self.engine.update_reserve();
        let mut has_emptied = false;
        let mut moved = Ok(());
        for pages in self.engine.space.page_spaces() {
            moved = self.empty_keyspace(&pages, &victims, &mut has_emptied);
            if moved.is_err() {
                break;
            }
        }
        self.engine.space.seal_moved();
        match moved {
            // The checkpoint that follows frees what the moved extents left.
            Ok(()) | Err(Error::DiskFull { .. }) => Ok(has_emptied),
            Err(error) => Err(error),
        }
    }

    fn empty_keyspace(&self, pages: &Arc<PageSpace>, victims: &HashSet<u32>, has_emptied: &mut bool) -> Result<()> {
        let engine = &self.engine;
        let space = &engine.space;
        let inside = |place: Place| !place.is_none() && victims.contains(&space.segments.segment_of(place).0);
        let mut as_they_lie: Vec<(Place, PageId)> = Vec::new();
        for (page, word) in pages.table.iter() {
            match word {
                Word::Reading(place) if inside(place) => {
                    crate::witness::mark!("a segment was emptied while a page in it was read");
                }
                Word::Disk(place) if inside(place) => {
                    as_they_lie.push((place, page));
                }
                Word::Leaf(frame) | Word::Fixed(frame) => {
                    let place = engine.pool.frames.header(frame).place();
                    if inside(place) && self.is_value_in_memory(pages, page) {
                        as_they_lie.push((place, page));
                    } else if inside(place) {
                        *has_emptied |= self.touch(pages, page)?;
                    }
                }
                _ => {}
            }
        }
        // In the order of the disk.
        as_they_lie.sort_unstable();
        self.move_extents(pages, &as_they_lie, has_emptied)
    }

    fn is_value_in_memory(&self, pages: &PageSpace, page: PageId) -> bool {
        let pool = &self.engine.pool;
        let pin = pool.pin();
        pin.fixed(&pages.table, page).is_some_and(|(_, bytes)| bytes[KIND_OFFSET] == Kind::Value as u8)
    }

    /// Makes a node in memory dirty, so that it is written elsewhere. `false` where it is none any more.
    fn touch(&self, pages: &PageSpace, page: PageId) -> Result<bool> {
        let engine = &self.engine;
        // Where every segment counts, the caller has counted.
        if !engine.space.tight.load(Ordering::Acquire) {
            engine.secure_rewrite(pages.page_bytes)?;
        }
        engine.pool.relieve()?;
        let guard = engine.space.enter();
        let (Word::Leaf(frame) | Word::Fixed(frame)) = pages.table.load(page) else { return Ok(false) };
        let Some(write) = engine.pool.frames.write(frame, Identity { keyspace: pages.id, page }) else {
            return Ok(false);
        };
        let word = pages.table.load(page);
        // A value that has the number by now was written since the segment was closed.
        let is_node = write[KIND_OFFSET] != Kind::Value as u8;
        let is_it = is_node && (word == Word::Leaf(frame) || word == Word::Fixed(frame));
        if is_it {
            engine.pool.append_owed(&guard, &write)?;
            engine.pool.mark_dirty(&guard, &write);
        }
        Ok(is_it)
    }

    /// Copies extents as they lie to a segment of the current epoch and redirects their pages.
    fn move_extents(&self, pages: &PageSpace, found: &[(Place, PageId)], has_moved: &mut bool) -> Result<()> {
        /// Bytes copied between two looks at what else there is to do.
        const STEP_BYTES: u64 = 512 << 10;
        let engine = &self.engine;
        let space = &engine.space;
        let mut rest = found;
        while !rest.is_empty() && !self.upkeep.state.lock().stop {
            let mut bytes = 0;
            let count = rest.iter().take_while(|(place, _)| {
                bytes += place.length();
                bytes <= STEP_BYTES || bytes == place.length()
            });
            let (step, later) = rest.split_at(count.count());
            rest = later;
            let mut moved: Vec<(PageId, Place, Place)> = Vec::with_capacity(step.len());
            let mut ended = Ok(());
            let places: Vec<Place> = step.iter().map(|(place, _)| *place).collect();
            let read = engine.pool.read_past(&places, |index, bytes| {
                let (place, page) = step[index];
                let bytes = match bytes {
                    _ if ended.is_err() => return,
                    Ok(bytes) => bytes,
                    Err(error) => {
                        log::warn!("page {page} of keyspace {} stays where it is: {error}", pages.id);
                        return;
                    }
                };
                match space.verify(place, bytes) {
                    Ok(header) => {
                        let guard = space.enter();
                        match space.append_moved(guard.epoch(), &bytes[..header.stored_bytes]) {
                            Ok(new) => moved.push((page, place, new)),
                            Err(error) => ended = Err(error),
                        }
                    }
                    // Damage stays where it is, to be found by whoever needs it.
                    Err(_) => log::warn!("page {page} of keyspace {} is damaged and stays where it is", pages.id),
                }
            });
            // What was appended is in use, whatever ended the rest.
            let ended = ended.and(read);
            space.flush_moved();
            space.wait_for_jobs(engine.pool.on_written())?;
            let guard = space.enter();
            for (page, old, new) in moved {
                if self.redirect(&guard, pages, page, old, new) {
                    space.segments.release(old, guard.epoch());
                    *has_moved = true;
                } else {
                    crate::witness::mark!("a page changed while its extent was moved");
                    space.segments.discard(new);
                }
            }
            drop(guard);
            ended?;
        }
        Ok(())
    }

    /// Says that the page is at `new` now: in the table, or in the frame where it is in memory. `false` where it has a newer image
    /// than the one at `old`, or will have. The entry that tells of it comes before that of any later change.
    fn redirect(&self, guard: &Guard<'_>, pages: &PageSpace, page: PageId, old: Place, new: Place) -> bool {
        let space = &self.engine.space;
        loop {
            let exchange = || pages.table.exchange(page, Word::Disk(old), Word::Disk(new));
            if space.record_change(guard, pages.id, page, new, exchange) {
                return true;
            }
            let word = pages.table.load(page);
            match word {
                // It was evicted just now.
                Word::Disk(place) if place == old => {}
                Word::Leaf(frame) | Word::Fixed(frame) => {
                    let identity = Identity { keyspace: pages.id, page };
                    let Some(write) = self.engine.pool.frames.write(frame, identity) else { continue };
                    if pages.table.load(page) != word {
                        continue;
                    }
                    let is_its_own = write.header().place() == old && write.header().dirty().is_none();
                    if is_its_own {
                        write.header().set_place(new);
                        // While the latch is held: whoever changes or frees the page next has the later entry.
                        space.record(guard.epoch(), pages.id, page, new);
                    }
                    return is_its_own;
                }
                _ => return false,
            }
        }
    }

    /// Gives the file's free end back, but for the reserve: on a disk that others fill it might not be had again.
    fn shrink(&self) -> Result<()> {
        let space = &self.engine.space;
        self.engine.update_reserve();
        let keep = space.reserve.load(Ordering::Relaxed) + space.spare_segments();
        space.segments.shrink(keep).map_err(|error| Error::io("shrinking", space.path(), error))
    }

    /// See [`Database::compact`](crate::Database::compact).
    pub(crate) fn compact(&self) -> Result<CompactReport> {
        let began = self.now();
        let space = &self.engine.space;
        let file_bytes = || space.file().len().map_err(|error| crate::Error::io("measuring", space.path(), error));
        let bytes_before = file_bytes()?;
        self.make_space()?;
        let _alone = self.cleaning.lock();
        match self.pack() {
            // It is packed as tightly as the space allows.
            Ok(()) | Err(Error::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        self.shrink()?;
        Ok(CompactReport { bytes_before, bytes_after: file_bytes()?, duration: self.now() - began })
    }

    fn pack(&self) -> Result<()> {
        let space = &self.engine.space;
        let segments = &space.segments;
        // First what is sparse is packed, behind the end where no segment is free: the file may grow meanwhile.
        let sparse = segments.sparse(PACKED_SHARE_MIN, usize::MAX);
        let sparse: Vec<SegmentId> = sparse.into_iter().map(|(segment, _)| segment).collect();
        for victims in sparse.chunks(VICTIM_COUNT_MAX) {
            self.evacuate(victims)?;
            self.checkpoint_after(false)?;
        }
        // Then what lies at the end goes to the front, as long as that makes the file shorter. The front has as many segments
        // as are in use, and what is left free.
        for _ in 0..COMPACT_ROUNDS_MAX {
            // What the checkpoint before still held is free after another.
            self.checkpoint_after(false)?;
            self.shrink()?;
            let usage = segments.usage();
            let room = usage.free_count.saturating_sub(u64::from(space.reserve.load(Ordering::Relaxed))) as usize;
            let first = (usage.segment_count - usage.free_count) as u32 + space.spare_segments();
            let mut victims = segments.from(first);
            victims.reverse();
            victims.truncate(room.min(VICTIM_COUNT_MAX));
            if victims.is_empty() {
                break;
            }
            self.evacuate(&victims)?;
            self.checkpoint_after(false)?;
            self.checkpoint_after(false)?;
            self.shrink()?;
            if segments.usage().segment_count >= usage.segment_count {
                break;
            }
        }
        Ok(())
    }
}
