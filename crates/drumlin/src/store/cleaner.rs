//! Cleaning: moves live extents out of sparse segments, so that the segments can be reused.
//!
//! A node in memory is marked dirty, and the next checkpoint writes it to another place. Every other extent is copied
//! byte for byte. If the copied extent is a value in memory, its frame gets the new address.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::checkpoint::CheckpointReport;
use crate::collections::HashSet;
use crate::error::{Error, Result};
use crate::format::extent::{KIND_OFFSET, Kind, PageKey};
use crate::format::{ExtentAddress, PageId, SegmentId};
use crate::space::{EpochGuard, Frees, PageEntry, PageSpace, Purpose, SpaceReservation};

/// The result of compacting a database.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let report = db.compact()?;
/// println!("{} bytes shorter", report.bytes_before.saturating_sub(report.bytes_after));
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompactReport {
    /// The data file's length before.
    pub bytes_before: u64,
    /// The data file's length after.
    pub bytes_after: u64,
    /// The time that compacting took.
    pub duration: Duration,
}

/// Waste that a database under constant updates may have before segments are emptied, as a share of the bytes in use.
const WASTE_SHARE_MAX: f64 = 0.22;
/// The least share that one pass frees: to find the live extents of segments, it reads all page tables.
const CLEANED_SHARE_MIN: f64 = 1.0 / 32.0;
/// Above this share of waste, segments are emptied with checkpoints of their own.
const URGENT_SHARE_MIN: f64 = 0.45;
/// Segments that are fuller than this are not emptied.
const LIVE_SHARE_MAX: f64 = 0.80;
/// Compacting does not empty segments that are fuller than this: extents of up to 256 KiB do not pack more tightly.
const PACKED_SHARE_MIN: f64 = 0.80;
/// A free segment goes back to the file system after this many checkpoint intervals have not needed it.
const UNNEEDED_CHECKPOINTS: usize = 8;
/// The least number of segments to give back at once. They must also be a sixteenth of the file, or a 32nd of it after
/// cleaning.
const GIVEN_BACK_MIN: u64 = 8;
/// The maximum number of rounds in which compacting moves the end of the file to its front.
const COMPACT_ROUNDS_MAX: usize = 16;
/// The most segments emptied in one pass: a single pass over the page tables finds the live extents of all of them.
const VICTIM_COUNT_MAX: usize = 256;
/// The limit for an idle database, where commits may arrive that have to wait until the pass is over.
const PACKED_COUNT_MAX: usize = 16;

/// Counts of segments that stayed free throughout recent checkpoint intervals.
#[derive(Debug, Default)]
pub(super) struct Unneeded {
    /// The newest is last; at most [`UNNEEDED_CHECKPOINTS`].
    counts: VecDeque<u64>,
}

impl Unneeded {
    /// Adds the count of one more checkpoint interval. Returns the smallest of the recent counts once there are enough,
    /// and 0 until then.
    fn note(&mut self, count: u64) -> u64 {
        self.counts.push_back(count);
        if self.counts.len() < UNNEEDED_CHECKPOINTS {
            return 0;
        }
        let least = self.counts.iter().copied().min().expect("noted above");
        self.counts.pop_front();
        least
    }
}

/// The progress of moving pages out of segments.
#[derive(Clone, Copy, Default)]
struct Emptied {
    page_count: u64,
    /// The reason why pages are left, if any are.
    left: Option<Left>,
}

/// A page whose extent was copied.
struct Moved {
    page: PageId,
    old: ExtentAddress,
    new: ExtentAddress,
}

/// The reason why the remaining pages must wait for the next checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// There was no disk space for them.
    NoSpace,
    /// The changes of the page tables filled their memory.
    ManyChanges,
}

impl Emptied {
    fn and(self, more: Emptied) -> Emptied {
        Emptied { page_count: self.page_count + more.page_count, left: self.left.or(more.left) }
    }

    /// Ends moving because of `error`. A full disk is no failure.
    fn ended_by(self, error: Error) -> Result<Emptied> {
        match error {
            Error::DiskFull { .. } => Ok(Emptied { left: Some(Left::NoSpace), ..self }),
            error => Err(error),
        }
    }
}

impl Store {
    /// Empties sparse segments if there is too much waste.
    pub(crate) fn clean_segments(&self) -> Result<()> {
        let unneeded = &mut self.cleaning.lock();
        let segments = &self.engine.space.segments;
        for _ in 0..16 {
            let usage = segments.usage();
            let used_bytes = (usage.segment_count - usage.free_count).saturating_sub(1) * segments.segment_bytes();
            let wasted_bytes = used_bytes.saturating_sub(usage.live_bytes);
            let share_bytes = |share: f64| (used_bytes as f64 * share) as u64;
            let excess_bytes = wasted_bytes.saturating_sub(share_bytes(WASTE_SHARE_MAX));
            if used_bytes < 16 * segments.segment_bytes() || excess_bytes == 0 {
                break;
            }
            let victims = self.take_sparse(excess_bytes + share_bytes(CLEANED_SHARE_MIN));
            if victims.is_empty() || self.maintenance.state.lock().stop {
                break;
            }
            if wasted_bytes < share_bytes(URGENT_SHARE_MIN) {
                // The next checkpoint frees these segments.
                self.move_out(&victims.iter().copied().collect())?;
                break;
            }
            self.evacuate(&victims)?;
        }
        let usage = segments.usage();
        let unneeded_count = unneeded.note(segments.take_unneeded()).min(usage.free_count);
        if unneeded_count >= GIVEN_BACK_MIN.max(usage.segment_count / 32) {
            **unneeded = Unneeded::default();
            self.give_back(unneeded_count)?;
        }
        Ok(())
    }

    /// Gives back to the file system the free segments that recent checkpoint intervals did not need. Live extents at
    /// the end of the file move to its front, so that a later round can give those segments back too.
    fn give_back(&self, unneeded_count: u64) -> Result<()> {
        let segments = &self.engine.space.segments;
        let usage = segments.usage();
        self.engine.space.shrink(usage.free_count.saturating_sub(unneeded_count))?;
        let mut end = segments.from(SegmentId(usage.segment_count.saturating_sub(unneeded_count) as u32));
        end.drain(..end.len().saturating_sub(PACKED_COUNT_MAX));
        if !end.is_empty() {
            crate::coverage::mark!("the end of the file was emptied between two checkpoints");
            self.move_out(&end.into_iter().collect())?;
        }
        Ok(())
    }

    /// Shortens the file of an idle database if that is worth a few checkpoints. Stops when the maintenance thread gets
    /// a request. Returns `true` if the file became shorter, because another round may shorten it more.
    pub(crate) fn pack_file(&self) -> Result<bool> {
        let _alone = self.cleaning.lock();
        let usage = self.engine.space.segments.usage();
        if usage.free_count < GIVEN_BACK_MIN.max(usage.segment_count / 16) {
            return Ok(false);
        }
        crate::coverage::mark!("the file of an idle database was made shorter");
        self.move_end(PACKED_COUNT_MAX, || !self.maintenance.state.lock().is_wanted())?;
        Ok(self.engine.space.segments.usage().segment_count < usage.segment_count)
    }

    /// Gives the free segments of a failed load back to the file system, except for as many as were free before the
    /// load. If the load waited on a full disk, checkpoints may have been written behind its segments; then the end of
    /// the file is moved to its front first.
    pub(crate) fn give_back_load(&self, free_segments_before: u64) {
        let space = &self.engine.space;
        let given_back = self.engine.check_failure().and_then(|()| space.shrink(free_segments_before)).and_then(|()| {
            let usage = space.segments.usage();
            let kept_count = free_segments_before.max(space.state().kept_segments());
            let has_surplus = usage.free_count >= kept_count + GIVEN_BACK_MIN.max(usage.segment_count / 16);
            if has_surplus { self.pack_file().map(drop) } else { Ok(()) }
        });
        if let Err(error) = given_back {
            log::debug!("{} did not give back the space of a failed load: {error}", self.path.display());
        }
    }

    /// Frees as much as possible on a full disk: first what was replaced since the last checkpoint, then what is gained
    /// by packing the sparsest segments into the little space left. Moved extents go to the checkpoint's own segments,
    /// because on a full disk each newly begun segment counts.
    pub(crate) fn make_space(&self) -> Result<CheckpointReport> {
        let _alone = self.cleaning.lock();
        let made = self.make_space_alone();
        self.engine.space.note_packed();
        made
    }

    fn make_space_alone(&self) -> Result<CheckpointReport> {
        self.engine.collect_garbage();
        self.engine.give_up_spilled();
        /// In segments below this share, tables and summaries are moved out too, whatever else the segment holds.
        const NEARLY_EMPTY_SHARE: f64 = 0.25;
        let space = &self.engine.space;
        let segments = &space.segments;
        let mut made: Option<CheckpointReport> = None;
        let mut is_freeing = false;
        // Commits continue while this packs, so the space that extents are moved to is reserved.
        let mut packing = space.reserve(Purpose::Pack, 0)?;
        // No other checkpoint may begin while extents are moved. The moved extents would belong to its epoch, and take
        // segments that it counts on.
        let page_tables = &mut self.page_tables.lock();
        loop {
            let (free_count, unfreed_pages) = (segments.free_count(), space.unfreed_pages());
            let nearly_empty = segments.sparse(NEARLY_EMPTY_SHARE, VICTIM_COUNT_MAX);
            page_tables.evacuate(nearly_empty.iter().map(|(segment, _)| *segment));
            let victims = self.take_movable(&mut packing);
            if victims.is_empty()
                && !is_freeing
                && let Some(report) = made
            {
                return Ok(report);
            }
            page_tables.evacuate(victims.iter().copied());
            let emptied = self.empty(&victims, &packing)?;
            let has_emptied = emptied.page_count > 0 || !victims.is_empty() && page_tables.must_evacuate(space);
            assert!(packing.resize(0), "nothing is admitted always");
            let frees = if has_emptied { Frees::Segments } else { Frees::Nothing };
            let report = self.checkpoint_of(page_tables, frees)?;
            let state = space.state();
            // A round has memory to free only some values, and leaves the others to the next round.
            let left_pages = space.unfreed_pages();
            is_freeing = left_pages > 0 && (made.is_none() || left_pages < unfreed_pages);
            // The first round may only free what the second needs, so its result does not end the loop.
            let is_of_no_use = made.is_some() && state.free_segments <= free_count && !is_freeing;
            let is_enough = state.is_relieved() || is_of_no_use;
            if is_enough || self.maintenance.state.lock().stop {
                return Ok(report);
            }
            made = Some(report);
        }
    }

    /// Returns the sparsest segments, as many as fit into the free space, and reserves that space.
    fn take_movable(&self, packing: &mut SpaceReservation<'_>) -> HashSet<SegmentId> {
        let space = &self.engine.space;
        loop {
            let movable_bytes = space.state().movable_bytes();
            let mut moved_bytes = 0;
            let mut victims = HashSet::default();
            for (segment, live_bytes) in space.segments.sparse(LIVE_SHARE_MAX, VICTIM_COUNT_MAX) {
                if moved_bytes + live_bytes > movable_bytes {
                    break;
                }
                moved_bytes += live_bytes;
                victims.insert(segment);
            }
            // A commit may have reserved some of the space since it was measured.
            if packing.resize(moved_bytes) {
                return victims;
            }
        }
    }

    /// Returns the sparsest segments: as many as should free `goal_bytes` and can be emptied before the changes of page
    /// tables fill their memory, but at least one.
    fn take_sparse(&self, goal_bytes: u64) -> Vec<SegmentId> {
        let segments = &self.engine.space.segments;
        let movable_bytes = self.movable_bytes();
        let (mut freed_bytes, mut moved_bytes) = (0, 0);
        (segments.sparse(LIVE_SHARE_MAX, VICTIM_COUNT_MAX).into_iter())
            .take_while(|(_, live_bytes)| {
                let go_on = freed_bytes < goal_bytes && (freed_bytes == 0 || moved_bytes + live_bytes <= movable_bytes);
                freed_bytes += segments.segment_bytes() - live_bytes;
                moved_bytes += live_bytes;
                go_on
            })
            .map(|(segment, _)| segment)
            .collect()
    }

    /// Estimates the bytes that can be moved in the newest epoch while commits continue: the number of page-table
    /// changes left, multiplied by the mean length of an extent.
    fn movable_bytes(&self) -> u64 {
        let space = &self.engine.space;
        let count_max = self.engine.budget.epoch_changes_max();
        let movable_count = (count_max - count_max / 8).saturating_sub(space.epoch_change_count());
        let page_count: u64 = space.page_spaces().iter().map(|pages| pages.table.page_count()).sum();
        space.segments.usage().live_bytes / page_count.max(1) * movable_count
    }

    /// Moves everything live out of the victims. Ends with a checkpoint, which moves the tables and frees the segments.
    /// Makes further checkpoints whenever the page-table changes fill their memory. Returns the reason if pages are
    /// left.
    fn evacuate(&self, victims: &[SegmentId]) -> Result<Option<Left>> {
        let segments = &self.engine.space.segments;
        let uses: Vec<_> = victims.iter().map(|victim| (*victim, segments.segment_use(*victim))).collect();
        // In the first round, commits may have used up the page-table changes. After a checkpoint they leave an eighth.
        let mut is_first = true;
        loop {
            // A victim that was freed and reused holds only new extents.
            let is_left = |(victim, segment_use): &&(SegmentId, _)| segments.segment_use(*victim) == *segment_use;
            let victims: HashSet<SegmentId> = uses.iter().filter(is_left).map(|(victim, _)| *victim).collect();
            let emptied = self.move_out(&victims)?;
            self.checkpoint_after(Frees::Nothing)?;
            let is_moving = emptied.page_count > 0 || std::mem::take(&mut is_first);
            if emptied.left != Some(Left::ManyChanges) || !is_moving || self.maintenance.state.lock().stop {
                return Ok(emptied.left);
            }
        }
    }

    /// Moves everything live out of the victims, as far as disk space and the memory for changes allow. The next
    /// checkpoint moves the tables and frees the segments.
    fn move_out(&self, victims: &HashSet<SegmentId>) -> Result<Emptied> {
        self.page_tables.lock().evacuate(victims.iter().copied());
        match self.engine.space.reserve(Purpose::Move, 0) {
            Ok(moves) => self.empty(victims, &moves),
            // The next checkpoint frees what has been released.
            Err(Error::DiskFull { .. }) => Ok(Emptied { left: Some(Left::NoSpace), ..Emptied::default() }),
            Err(error) => Err(error),
        }
    }

    /// Moves the pages in the victims elsewhere, as far as disk space and the memory for changes allow.
    fn empty(&self, victims: &HashSet<SegmentId>, moves: &SpaceReservation<'_>) -> Result<Emptied> {
        let emptied = self.empty_keyspaces(victims, moves);
        self.engine.space.seal_moved();
        // On a full disk the checkpoint that follows frees what the moved extents left.
        emptied
    }

    /// Returns how many pages the next step may move before the changes of the newest epoch fill their memory; 0 means
    /// that moving must wait for the next epoch. The limit is the eighth that commits leave, because commits continue.
    /// Packing has no limit: it must empty its segments, or there may be no space for a checkpoint.
    fn step_pages(&self, moves: &SpaceReservation<'_>) -> usize {
        if moves.purpose() == Purpose::Pack {
            return usize::MAX;
        }
        let count_max = self.engine.budget.epoch_changes_max();
        count_max.saturating_sub(self.engine.space.epoch_change_count()).min(count_max / 8) as usize
    }

    fn empty_keyspaces(&self, victims: &HashSet<SegmentId>, moves: &SpaceReservation<'_>) -> Result<Emptied> {
        let mut emptied = Emptied::default();
        for pages in self.engine.space.page_spaces() {
            emptied = emptied.and(self.empty_keyspace(&pages, victims, moves)?);
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
        let engine = &self.engine;
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
                            crate::coverage::mark!("moving pages went on behind a checkpoint");
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
        let pool = &self.engine.pool;
        let reclaim_guard = pool.reclaim_guard();
        let found = reclaim_guard.pages(&pages.table).get(page);
        found.is_some_and(|(_, bytes)| bytes[KIND_OFFSET] == Kind::Value as u8)
    }

    /// Marks a node in memory dirty, so that the next checkpoint writes it elsewhere. Returns `false` if the page no
    /// longer holds a node.
    fn touch(&self, pages: &PageSpace, page: PageId, moves: &SpaceReservation<'_>) -> Result<bool> {
        let engine = &self.engine;
        // Packing has reserved all its space already.
        let _reserved_page = match moves.purpose() {
            Purpose::Pack => None,
            purpose => Some(engine.space.reserve(purpose, pages.page_bytes as u64)?),
        };
        engine.pool.relieve()?;
        let epoch_guard = engine.space.epoch_latch.shared();
        let (PageEntry::Leaf(frame) | PageEntry::Immutable(frame)) = pages.table.load(page) else { return Ok(false) };
        let Some(write) = engine.pool.frames.write(frame, PageKey { keyspace: pages.id, page }) else {
            return Ok(false);
        };
        let entry = pages.table.load(page);
        // A value now under this page id was written after the segment was closed, so it need not move.
        let is_node = write[KIND_OFFSET] != Kind::Value as u8;
        let is_it = is_node && (entry == PageEntry::Leaf(frame) || entry == PageEntry::Immutable(frame));
        if is_it {
            engine.pool.append_owed(&epoch_guard, &write)?;
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
        /// Bytes copied before the next check for a request to stop.
        const STEP_BYTES: u64 = 512 << 10;
        let engine = &self.engine;
        let space = &engine.space;
        let mut rest = found;
        let mut emptied = Emptied::default();
        while !rest.is_empty() && !self.maintenance.state.lock().stop {
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
            // The copies that were made are used even if a later one failed.
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

    /// Appends copies of extents to a segment of the current epoch. Leaves corrupted extents where they are; their next
    /// reader reports them. Returns the copies made, and the error that ended copying, if any.
    fn copy_extents(
        &self,
        pages: &PageSpace,
        found: &[(ExtentAddress, PageId)],
        moves: &SpaceReservation<'_>,
    ) -> (Vec<Moved>, Result<()>) {
        let space = &self.engine.space;
        let mut moved = Vec::with_capacity(found.len());
        let mut ended = Ok(());
        let addresses: Vec<ExtentAddress> = found.iter().map(|(address, _)| *address).collect();
        let read = self.engine.pool.read_past(&addresses, |index, bytes| {
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
            match space.append_moved(epoch_guard.epoch(), &bytes[..header.stored_bytes], moves) {
                Ok(new) => moved.push(Moved { page, old, new }),
                Err(error) => ended = Err(error),
            }
        });
        (moved, ended.and(read))
    }

    /// Points the page to `new`, in its table entry or, if it is in memory, in its frame. Returns `false` if the page
    /// has an image newer than the one at `old`, or a dirty frame that will have one. The change is recorded before any
    /// later change of the same page.
    fn redirect(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        page: PageId,
        old: ExtentAddress,
        new: ExtentAddress,
    ) -> bool {
        let space = &self.engine.space;
        loop {
            let exchange = || pages.table.exchange(page, PageEntry::OnDisk(old), PageEntry::OnDisk(new));
            if space.record_change(epoch_guard, pages.id, page, new, exchange) {
                return true;
            }
            let entry = pages.table.load(page);
            match entry {
                // The page was evicted just now.
                PageEntry::OnDisk(address) if address == old => {}
                PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => {
                    let page_key = PageKey { keyspace: pages.id, page };
                    let Some(write) = self.engine.pool.frames.write(frame, page_key) else { continue };
                    if pages.table.load(page) != entry {
                        continue;
                    }
                    let is_its_own = write.header().address() == old && write.header().dirty().is_none();
                    if is_its_own {
                        write.header().set_address(new);
                        // Recorded while the latch is held, so that the record of a later change or free follows this
                        // one.
                        space.record(epoch_guard.epoch(), pages.id, page, new);
                    }
                    return is_its_own;
                }
                _ => return false,
            }
        }
    }

    /// See [`Database::compact`](crate::Database::compact).
    pub(crate) fn compact(&self) -> Result<CompactReport> {
        let began = self.now();
        let space = &self.engine.space;
        let file_bytes = || space.file().len().map_err(|error| Error::io("measuring", space.path(), error));
        let bytes_before = file_bytes()?;
        self.checkpoint()?;
        if self.pack()? == Some(Left::NoSpace) {
            // Packing into the checkpoint's own segments frees space for moving the rest, if there is any.
            crate::coverage::mark!("compacting made space on a full disk");
            match self.make_space() {
                Ok(_) => drop(self.pack()?),
                // The file is packed as tightly as the space allows.
                Err(Error::DiskFull { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        space.shrink(0)?;
        self.engine.log().remove_idle();
        Ok(CompactReport { bytes_before, bytes_after: file_bytes()?, duration: self.now() - began })
    }

    /// Packs sparse segments and shortens the file. Returns the reason if something was left where it was.
    fn pack(&self) -> Result<Option<Left>> {
        let _alone = self.cleaning.lock();
        match self.pack_alone() {
            Err(Error::DiskFull { .. }) => Ok(Some(Left::NoSpace)),
            packed => packed,
        }
    }

    fn pack_alone(&self) -> Result<Option<Left>> {
        let space = &self.engine.space;
        let segments = &space.segments;
        let mut left = None;
        // Pack the sparse segments first. If no segment is free, their extents go behind the end, and the file grows
        // for now.
        let sparse = segments.sparse(PACKED_SHARE_MIN, usize::MAX);
        let sparse: Vec<SegmentId> = sparse.into_iter().map(|(segment, _)| segment).collect();
        for victims in sparse.chunks(VICTIM_COUNT_MAX) {
            left = left.or(self.evacuate(victims)?);
        }
        left = left.or(self.move_end(VICTIM_COUNT_MAX, || true)?);
        Ok(left)
    }

    /// Moves the extents at the end of the file to its front, at most `count_max` segments at a time, and gives the end
    /// back. Repeats while the file gets shorter and `go_on` returns `true`. The front is as many segments as are in
    /// use, plus those that must stay free. Returns the reason if something was left where it was.
    fn move_end(&self, count_max: usize, go_on: impl Fn() -> bool) -> Result<Option<Left>> {
        let space = &self.engine.space;
        let segments = &space.segments;
        let mut left = None;
        for _ in 0..COMPACT_ROUNDS_MAX {
            // Segments that the previous checkpoint still needed are free after this one.
            self.checkpoint_after(Frees::Nothing)?;
            space.shrink(0)?;
            let usage = segments.usage();
            let state = space.state();
            let room = state.idle_segments() as usize;
            let first = (usage.segment_count - usage.free_count + state.spare_segments()) as u32;
            let mut victims = segments.from(SegmentId(first));
            victims.reverse();
            victims.truncate(room.min(count_max));
            if victims.is_empty() || !go_on() {
                break;
            }
            left = left.or(self.evacuate(&victims)?);
            self.checkpoint_after(Frees::Nothing)?;
            space.shrink(0)?;
            if segments.usage().segment_count >= usage.segment_count {
                break;
            }
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use drumlin_testing::Random;

    use super::*;
    use crate::{Config, KeyspaceOptions};

    /// Segments that none of the last eight intervals needed are given back. After a burst in one of them, the segments
    /// that it took are kept.
    #[test]
    fn what_a_burst_needed_is_kept() {
        let mut unneeded = Unneeded::default();
        let noted = |unneeded: &mut Unneeded, counts: &[u64]| -> Vec<u64> {
            counts.iter().map(|&count| unneeded.note(count)).collect()
        };
        assert_eq!(noted(&mut unneeded, &[50; 7]), [0; 7]);
        assert_eq!(noted(&mut unneeded, &[50, 60, 9]), [50, 50, 9]);
        assert_eq!(noted(&mut unneeded, &[50; 8]), [9, 9, 9, 9, 9, 9, 9, 50]);
    }

    /// Cleaning takes only as many segments as it can empty before page-table changes fill their memory, and frees
    /// each.
    #[test]
    fn segments_that_are_taken_are_freed() {
        const ROWS: u64 = 120_000;
        let db = Config::in_memory().memory(8 << 20).segment_bytes(256 << 10).open("").unwrap();
        db.keyspace_with("k", KeyspaceOptions::new().page_bytes(512)).unwrap();
        let mut load = db.bulk_load("k").unwrap();
        (0..ROWS).for_each(|row| load.insert(row.to_be_bytes(), Random(row).bytes(120)).unwrap());
        load.finish().unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let store = db.store().unwrap();
        (0..ROWS).step_by(8).for_each(|row| keyspace.insert(row.to_be_bytes(), "changed").unwrap());
        let _alone = store.cleaning.lock();
        db.checkpoint().unwrap();
        db.checkpoint().unwrap();
        let segments = &store.engine.space.segments;
        let sparse = segments.sparse(LIVE_SHARE_MAX, VICTIM_COUNT_MAX);
        let victims = store.take_sparse(u64::MAX);
        assert!(
            (1..sparse.len() / 4).contains(&victims.len()),
            "{} of {} sparse segments",
            victims.len(),
            sparse.len()
        );
        assert!(victims.iter().eq(sparse.iter().map(|(segment, _)| segment).take(victims.len())), "not the sparsest");
        let uses: Vec<_> = victims.iter().map(|victim| (*victim, segments.segment_use(*victim))).collect();
        let emptied = store.move_out(&victims.iter().copied().collect()).unwrap();
        assert_eq!(emptied.left, None);
        db.checkpoint().unwrap();
        let live = segments.sparse(1.0, usize::MAX);
        let is_left = |(segment, used): &&(SegmentId, _)| {
            segments.segment_use(*segment) == *used && live.iter().any(|(living, _)| living == segment)
        };
        assert_eq!(uses.iter().find(is_left), None, "segments were taken and not emptied");
        assert!(db.check().unwrap().corruption.is_empty());
    }
}
