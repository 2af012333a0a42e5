//! Reclaims disk space: empties segments, so that they can be reused or given back to the file system.
//!
//! A [`Reclaimer`] works towards a list of [`Goal`]s, in passes. A pass chooses *victims*, the segments to be emptied,
//! moves the live extents in them elsewhere (`moving.rs`), and usually makes the checkpoint that frees the victims.
//! Goals differ in the victims that they choose, in the kind of pass, and in the condition under which they are
//! reached: [`next_pass`](Reclaimer::next_pass) decides all three.
//!
//! The reclaimer calls checkpoints, and no checkpoint calls the reclaimer: [`Store::checkpoint`] combines the two.
//!
//! Lock order: the reclaimer's lock, then `page_tables`.

mod emptied;
mod moving;

use std::collections::VecDeque;
use std::time::Duration;

use super::checkpoint::CheckpointReport;
use super::state::Store;
use super::unneeded::Unneeded;
use crate::error::{Error, Result};
use crate::format::SegmentId;
use crate::hash::HashSet;
use crate::space::{Purpose, Reclaims, SpaceReservation};
use crate::sync::MutexGuard;
use emptied::{Emptied, Left};

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
    /// The length of the data file before compaction.
    pub bytes_before: u64,
    /// The length of the data file after compaction.
    pub bytes_after: u64,
    /// The time that compaction took.
    pub duration: Duration,
}

/// A goal of the reclaimer: the state to be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    /// At most [`WASTE_SHARE_MAX`] of the used space is waste.
    LimitWaste,
    /// Segments that recent checkpoint intervals did not need are given back to the file system.
    ReturnUnneeded,
    /// The file is as short as its live extents allow: extents at its end are moved to its front.
    ShortenFile,
    /// Like `ShortenFile`, but in small passes, only if much is free, and until the maintenance thread gets a request.
    ShortenIdleFile,
    /// No sparse segment is left.
    PackSparse,
    /// There is enough free space for commits on a disk that was full. To get there, the reclaimer first frees the
    /// space of extents replaced since the last checkpoint, and then packs the sparsest segments into the little space
    /// left.
    MakeSpace,
}

/// The goals that the maintenance thread pursues after each checkpoint.
pub(super) const AFTER_CHECKPOINT: &[Goal] = &[Goal::LimitWaste, Goal::ReturnUnneeded];

/// The waste that a database under constant updates may have, as a share of the bytes in use. A limit of 20 % made
/// updates write a tenth more, and the file was no shorter.
/// Measured: decision 007.
const WASTE_SHARE_MAX: f64 = 0.22;
/// The share of the bytes in use that a pass frees in addition to the excess. If each pass frees more, there are fewer
/// passes, and each pass has to read all page tables to find the live extents of its victims.
/// Measured: decision 007, together with [`WASTE_SHARE_MAX`].
const CLEANED_SHARE_MIN: f64 = 1.0 / 32.0;
/// The share of waste above which segments are emptied with their own checkpoints: twice [`WASTE_SHARE_MAX`].
/// Measured: decision 007, together with [`WASTE_SHARE_MAX`].
const URGENT_SHARE_MIN: f64 = 0.45;
/// Waste is not limited while fewer bytes are in use than this many segments hold: a single open segment would be 1/16
/// of them.
const WASTEFUL_SEGMENTS_MIN: u64 = 16;
/// The share of live bytes above which a segment is not emptied, because extents of up to 256 KiB cannot be packed more
/// tightly.
const LIVE_SHARE_MAX: f64 = 0.80;
/// The share of live bytes up to which the extents in a segment that kept snapshots pin are moved out of it. Until the
/// last of these snapshots is dropped, the moved extents take space twice.
const PINNED_SHARE_MAX: f64 = 0.25;
/// When packing, chunks of page tables are moved out of a segment whose share of live bytes is below this, whatever
/// else the segment contains.
const TABLES_SHARE_MAX: f64 = 0.25;
/// The minimum number of free segments for which giving them back is worth the moves.
const GIVEN_BACK_SEGMENTS_MIN: u64 = 8;
/// Giving segments back is worth the moves if at least one in this many of the file's segments is free.
const GIVEN_BACK_SHARE_MIN: u64 = 16;
/// The maximum number of segments emptied in one pass. A single scan of the page tables finds the live extents of all
/// of them.
const VICTIM_SEGMENTS_MAX: usize = 256;
/// The same limit while commits may arrive that have to wait for the end of the pass: 4 MiB of segments of 256 KiB.
const BRIEF_VICTIM_SEGMENTS_MAX: usize = 16;
/// The maximum number of passes for one goal, even if the goal has not been reached by then. A pass empties up to
/// [`VICTIM_SEGMENTS_MAX`] segments.
const PASSES_MAX: usize = 16;

/// Reclaims space. Only one reclaimer exists at a time.
pub(crate) struct Reclaimer<'s> {
    store: &'s Store,
    unneeded: MutexGuard<'s, Unneeded>,
}

/// The kind of pass, with the segments to be emptied.
#[derive(Debug)]
enum Pass {
    /// Move the live extents out of these segments, and leave it to the next checkpoint to free the segments.
    Move(Vec<SegmentId>),
    /// Move the live extents, and make the checkpoint that frees the segments.
    MoveAndFree(Vec<SegmentId>),
    /// Move the live extents into segments that the checkpoint writes to anyway, and make that checkpoint, which frees
    /// the victims. On a full disk, the moves and the checkpoint cannot each begin a segment.
    Pack(HashSet<SegmentId>),
}

/// The progress towards a goal.
#[derive(Default)]
struct Progress<'s> {
    /// The number of passes that have ended.
    passes: usize,
    is_reached: bool,
    /// The number of segments in the file before the last pass.
    segment_count: u64,
    /// The segments that [`Goal::PackSparse`] has yet to empty.
    sparse: VecDeque<SegmentId>,
    /// The space reserved for packing, because commits continue during a pass. The next two fields are the numbers of
    /// free segments and of pages waiting to be freed, both before the last pass.
    packing: Option<SpaceReservation<'s>>,
    free_segments: u64,
    unfreed_pages: u64,
}

/// The result of reclaiming space.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    /// The last checkpoint that a pass for [`Goal::MakeSpace`] made.
    checkpoint: Option<CheckpointReport>,
    /// The reason why extents were left in their segments, if any were.
    left: Option<Left>,
    /// `true` if the file became shorter, so that another call may shorten it further.
    pub(crate) is_shorter: bool,
}

impl Store {
    /// Makes the current state of the database durable in the data file. If the disk is full, reclaims space for that.
    pub(crate) fn checkpoint(&self) -> Result<CheckpointReport> {
        let _urgent = self.engine.space.share.urgent();
        self.checkpoint_at_leisure()
    }

    /// Like [`checkpoint`](Self::checkpoint), but rests between pages while no thread waits for the checkpoint.
    pub(super) fn checkpoint_at_leisure(&self) -> Result<CheckpointReport> {
        // Unlock the page tables before space is reclaimed: a reclaimer locks them.
        let made = self.checkpoint_of(&mut self.lock_page_tables(), Reclaims::Nothing);
        let made = match made {
            Err(Error::DiskFull { .. }) => {
                let reclaimed = self.reclaim(&[Goal::MakeSpace]);
                reclaimed.map(|reclaimed| reclaimed.checkpoint.expect("making space makes checkpoints"))
            }
            made => made,
        };
        self.maintenance.checkpoint_ended();
        made
    }

    /// Reclaims space for these goals, one after another. If another thread is reclaiming, waits for it first.
    pub(crate) fn reclaim(&self, goals: &[Goal]) -> Result<Reclaimed> {
        self.free_dropped()?;
        self.reclaimer().run(goals)
    }

    fn reclaimer(&self) -> Reclaimer<'_> {
        Reclaimer { store: self, unneeded: self.unneeded.lock() }
    }

    /// Gives the free segments of a failed load back to the file system, except for as many segments as were free
    /// before the load. If the disk was full and the load had to wait, checkpoints may have written segments after
    /// those of the load. In that case, this function moves the extents at the end of the file to its front.
    pub(crate) fn give_back_load(&self, free_segments_before: u64) {
        let space = &self.engine.space;
        let given_back = self.engine.check_failure().and_then(|()| space.shrink(free_segments_before)).and_then(|()| {
            let kept_count = free_segments_before.max(space.state().kept_segments());
            let surplus = space.segments.usage().free_count.saturating_sub(kept_count);
            if self.is_worth_giving_back(surplus) { self.reclaim(&[Goal::ShortenIdleFile]).map(drop) } else { Ok(()) }
        });
        if let Err(error) = given_back {
            log::debug!("{} did not give back the space of a failed load: {error}", self.path.display());
        }
    }

    fn is_worth_giving_back(&self, free_segments: u64) -> bool {
        let segment_count = self.engine.space.segments.usage().segment_count;
        free_segments >= GIVEN_BACK_SEGMENTS_MIN.max(segment_count / GIVEN_BACK_SHARE_MIN)
    }

    /// Implements [`Database::compact`](crate::Database::compact).
    pub(crate) fn compact(&self) -> Result<CompactReport> {
        let began = self.now();
        let space = &self.engine.space;
        let file_bytes = || space.file().len().map_err(|error| Error::io("measuring", space.path(), error));
        let bytes_before = file_bytes()?;
        self.checkpoint()?;
        let mut packed = self.reclaim(&[Goal::PackSparse, Goal::ShortenFile]);
        let is_full = match &packed {
            Ok(reclaimed) => reclaimed.left == Some(Left::NoSpace),
            Err(error) => matches!(error, Error::DiskFull { .. }),
        };
        if is_full {
            // Packing into the checkpoint's own segments may free space for moving the rest.
            crate::coverage::mark!("compacting made space on a full disk");
            packed = self.reclaim(&[Goal::MakeSpace, Goal::PackSparse, Goal::ShortenFile]);
        }
        match packed {
            // The file is packed as tightly as the space allows.
            Ok(_) | Err(Error::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        space.shrink(0)?;
        self.engine.log().remove_idle();
        Ok(CompactReport { bytes_before, bytes_after: file_bytes()?, duration: self.now() - began })
    }
}

impl<'s> Reclaimer<'s> {
    fn run(mut self, goals: &[Goal]) -> Result<Reclaimed> {
        let segments = &self.store.engine.space.segments;
        let segment_count = segments.usage().segment_count;
        let mut reclaimed = Reclaimed::default();
        for &goal in goals {
            let pursued = self.pursue(goal, &mut reclaimed);
            if goal == Goal::MakeSpace {
                // Even if this attempt failed, another one would gain no space.
                self.store.engine.space.set_packed();
            }
            pursued?;
        }
        reclaimed.is_shorter = segments.usage().segment_count < segment_count;
        Ok(reclaimed)
    }

    /// Makes passes until the goal is reached or another pass would gain nothing.
    fn pursue(&mut self, goal: Goal, reclaimed: &mut Reclaimed) -> Result<()> {
        let mut progress = Progress::default();
        while let Some(pass) = self.next_pass(goal, &mut progress)? {
            match pass {
                Pass::Move(victims) => drop(self.move_out(&victims.into_iter().collect())?),
                Pass::MoveAndFree(victims) => reclaimed.left = reclaimed.left.or(self.move_and_free(&victims)?),
                Pass::Pack(victims) => {
                    let packing = progress.packing.as_mut().expect("packing has space reserved");
                    reclaimed.checkpoint = Some(self.pack(&victims, packing)?);
                }
            }
            progress.passes += 1;
        }
        Ok(())
    }

    /// Chooses the next pass for a goal. Returns `None` if the goal is reached or no pass would bring it closer.
    fn next_pass(&mut self, goal: Goal, progress: &mut Progress<'s>) -> Result<Option<Pass>> {
        match goal {
            Goal::LimitWaste => Ok(self.wasteful(progress)),
            Goal::ReturnUnneeded => self.unneeded(progress),
            Goal::ShortenFile => self.end_of_file(progress, VICTIM_SEGMENTS_MAX, || true),
            Goal::ShortenIdleFile => {
                let free_count = self.store.engine.space.segments.usage().free_count;
                if progress.passes == 0 && !self.store.is_worth_giving_back(free_count) {
                    return Ok(None);
                }
                crate::coverage::mark!("the file of an idle database was shortened");
                let maintenance = &self.store.maintenance;
                self.end_of_file(progress, BRIEF_VICTIM_SEGMENTS_MAX, || !maintenance.state.lock().is_wanted())
            }
            Goal::PackSparse => Ok(self.sparse(progress)),
            Goal::MakeSpace => self.movable(progress),
        }
    }

    /// If there is too much waste, returns a pass over the sparsest segments. Their number is chosen so that the pass
    /// frees the excess.
    fn wasteful(&self, progress: &mut Progress<'s>) -> Option<Pass> {
        let segments = &self.store.engine.space.segments;
        let usage = segments.usage();
        let used_bytes = (usage.segment_count - usage.free_count).saturating_sub(1) * segments.segment_bytes();
        // Nothing can be gained from a pinned segment.
        let wasted_bytes = used_bytes.saturating_sub(usage.live_bytes + usage.pinned_bytes);
        let share_bytes = |share: f64| (used_bytes as f64 * share) as u64;
        let excess_bytes = wasted_bytes.saturating_sub(share_bytes(WASTE_SHARE_MAX));
        let is_bearable = used_bytes < WASTEFUL_SEGMENTS_MIN * segments.segment_bytes() || excess_bytes == 0;
        if progress.passes == 0 && is_bearable && !self.must_stop() {
            return self.sparse_pinned();
        }
        if progress.is_reached || progress.passes == PASSES_MAX || is_bearable {
            return None;
        }
        let victims = self.take_sparse(excess_bytes + share_bytes(CLEANED_SHARE_MIN));
        if victims.is_empty() || self.must_stop() {
            return None;
        }
        progress.is_reached = wasted_bytes < share_bytes(URGENT_SHARE_MIN);
        Some(if progress.is_reached { Pass::Move(victims) } else { Pass::MoveAndFree(victims) })
    }

    /// Returns a pass over segments that kept snapshots pin and of which little is live. The pass frees no segment. But
    /// without it, later snapshots would pin the same segments for the sake of a few extents, and under a rotation of
    /// snapshots their space might never be free again.
    fn sparse_pinned(&self) -> Option<Pass> {
        let segments = &self.store.engine.space.segments;
        let victims = segments.sparse_pinned(PINNED_SHARE_MAX, BRIEF_VICTIM_SEGMENTS_MAX);
        if victims.is_empty() {
            return None;
        }
        crate::coverage::mark!("extents were moved out of segments that kept snapshots pin");
        Some(Pass::Move(victims))
    }

    /// Gives back the free segments that recent checkpoint intervals did not need. Returns a pass over the used
    /// segments at the end of the file, so that a later call can give these back too.
    fn unneeded(&mut self, progress: &Progress<'s>) -> Result<Option<Pass>> {
        if progress.passes > 0 {
            return Ok(None);
        }
        let space = &self.store.engine.space;
        let segments = &space.segments;
        let usage = segments.usage();
        let unneeded_count = self.unneeded.push(segments.take_unneeded()).min(usage.free_count);
        // These segments have been free for a long time, so half the usual gain justifies the moves.
        if !self.store.is_worth_giving_back(2 * unneeded_count) || unneeded_count < GIVEN_BACK_SEGMENTS_MIN {
            return Ok(None);
        }
        *self.unneeded = Unneeded::default();
        space.shrink(usage.free_count.saturating_sub(unneeded_count))?;
        let mut end = segments.from(SegmentId(usage.segment_count.saturating_sub(unneeded_count) as u32));
        end.drain(..end.len().saturating_sub(BRIEF_VICTIM_SEGMENTS_MAX));
        if end.is_empty() {
            return Ok(None);
        }
        crate::coverage::mark!("the end of the file was emptied between two checkpoints");
        Ok(Some(Pass::Move(end)))
    }

    /// Gives back the free end of the file. Returns a pass over the used segments after its *front*, which is just long
    /// enough for the segments in use and the segments that must stay free.
    fn end_of_file(
        &self,
        progress: &mut Progress<'s>,
        victims_max: usize,
        go_on: impl Fn() -> bool,
    ) -> Result<Option<Pass>> {
        let space = &self.store.engine.space;
        let segments = &space.segments;
        if progress.passes > 0 {
            self.store.checkpoint_after(Reclaims::Nothing)?;
            space.shrink(0)?;
            if segments.usage().segment_count >= progress.segment_count || progress.passes == PASSES_MAX {
                return Ok(None);
            }
        }
        // This checkpoint frees the segments that the previous checkpoint still needed.
        self.store.checkpoint_after(Reclaims::Nothing)?;
        space.shrink(0)?;
        let usage = segments.usage();
        progress.segment_count = usage.segment_count;
        let state = space.state();
        let first = (usage.segment_count - usage.free_count + state.spare_segments()) as u32;
        let mut victims = segments.from(SegmentId(first));
        victims.reverse();
        victims.truncate(victims_max.min(state.idle_segments() as usize));
        Ok((!victims.is_empty() && go_on()).then_some(Pass::MoveAndFree(victims)))
    }

    /// Returns a pass over the segments that were sparse when work on the goal began. If no segment is free, their
    /// extents go to new segments at the end, and the file grows temporarily.
    fn sparse(&self, progress: &mut Progress<'s>) -> Option<Pass> {
        if progress.passes == 0 {
            let sparse = self.store.engine.space.segments.sparse(LIVE_SHARE_MAX, usize::MAX);
            progress.sparse = sparse.into_iter().map(|(segment, _)| segment).collect();
        }
        let count = progress.sparse.len().min(VICTIM_SEGMENTS_MAX);
        (count > 0).then(|| Pass::MoveAndFree(progress.sparse.drain(..count).collect()))
    }

    /// Returns a pass over as many of the sparsest segments as fit into the space left. Returns `None` once there is
    /// enough free space, or once a pass has gained none.
    fn movable(&self, progress: &mut Progress<'s>) -> Result<Option<Pass>> {
        let engine = &self.store.engine;
        let space = &engine.space;
        let free_segments = space.segments.free_count();
        let unfreed_pages = space.unfreed_pages();
        // A pass can free only as many values as the memory for changes allows. The next pass frees more.
        let is_freeing = match progress.passes {
            0 => false,
            1 => unfreed_pages > 0,
            _ => unfreed_pages > 0 && unfreed_pages < progress.unfreed_pages,
        };
        if progress.passes == 0 {
            engine.collect_garbage();
            engine.give_up_spilled();
            progress.packing = Some(space.reserve(Purpose::Pack, 0)?);
        } else {
            // The first pass may do no more than free the space that the second one needs. So never stop for lack of
            // progress before the second pass has ended.
            let is_of_no_use = progress.passes > 1 && free_segments <= progress.free_segments && !is_freeing;
            if space.state().is_relieved() || is_of_no_use || self.must_stop() {
                return Ok(None);
            }
        }
        (progress.free_segments, progress.unfreed_pages) = (space.segments.free_count(), space.unfreed_pages());
        let victims = self.take_movable(progress.packing.as_mut().expect("reserved by the first pass"));
        let is_worth = progress.passes == 0 || is_freeing || !victims.is_empty();
        Ok(is_worth.then_some(Pass::Pack(victims)))
    }

    /// Returns as many of the sparsest segments as can be moved into the free space, and reserves that space.
    fn take_movable(&self, packing: &mut SpaceReservation<'_>) -> HashSet<SegmentId> {
        let space = &self.store.engine.space;
        loop {
            let movable_bytes = space.state().movable_bytes();
            let mut moved_bytes = 0;
            let mut victims = HashSet::default();
            for (segment, live_bytes) in space.segments.sparse(LIVE_SHARE_MAX, VICTIM_SEGMENTS_MAX) {
                if moved_bytes + live_bytes > movable_bytes {
                    break;
                }
                moved_bytes += live_bytes;
                victims.insert(segment);
            }
            // A commit may have reserved some of the space since we measured it.
            if packing.resize(moved_bytes) {
                return victims;
            }
        }
    }

    /// Returns enough of the sparsest segments to free `goal_bytes`, but no more than can be emptied before the
    /// page-table changes fill their memory, and at least one.
    fn take_sparse(&self, goal_bytes: u64) -> Vec<SegmentId> {
        let segments = &self.store.engine.space.segments;
        let movable_bytes = self.movable_bytes();
        let (mut freed_bytes, mut moved_bytes) = (0, 0);
        (segments.sparse(LIVE_SHARE_MAX, VICTIM_SEGMENTS_MAX).into_iter())
            .take_while(|(_, live_bytes)| {
                let go_on = freed_bytes < goal_bytes && (freed_bytes == 0 || moved_bytes + live_bytes <= movable_bytes);
                freed_bytes += segments.segment_bytes() - live_bytes;
                moved_bytes += live_bytes;
                go_on
            })
            .map(|(segment, _)| segment)
            .collect()
    }

    /// Estimates the bytes that can be moved in the newest epoch while commits continue. They are the number of
    /// page-table changes that still fit into their memory, multiplied by the mean length of an extent.
    fn movable_bytes(&self) -> u64 {
        let space = &self.store.engine.space;
        let count_max = self.store.engine.budget.epoch_changes_max();
        let movable_count = (count_max - count_max / 8).saturating_sub(space.epoch_change_count());
        let page_count: u64 = space.page_spaces().iter().map(|pages| pages.table.page_count()).sum();
        space.segments.usage().live_bytes / page_count.max(1) * movable_count
    }

    /// Moves the live extents out of the victims, as far as disk space and the memory for changes allow. The next
    /// checkpoint moves the chunks of page tables and frees the segments.
    fn move_out(&self, victims: &HashSet<SegmentId>) -> Result<Emptied> {
        self.store.lock_page_tables().evacuate(victims.iter().copied());
        match self.store.engine.space.reserve(Purpose::Move, 0) {
            Ok(moves) => self.empty(victims, &moves),
            // The next checkpoint will free the extents that have been released.
            Err(Error::DiskFull { .. }) => Ok(Emptied { left: Some(Left::NoSpace), ..Emptied::default() }),
            Err(error) => Err(error),
        }
    }

    /// Moves the live extents out of the victims. Ends with a checkpoint, which moves the chunks of page tables and
    /// frees the segments. Makes further checkpoints whenever the page-table changes fill their memory. If pages are
    /// left in the victims, returns the reason.
    fn move_and_free(&self, victims: &[SegmentId]) -> Result<Option<Left>> {
        let segments = &self.store.engine.space.segments;
        let uses: Vec<_> = victims.iter().map(|victim| (*victim, segments.segment_use(*victim))).collect();
        // In the first round, commits may have used up the memory for page-table changes. After a checkpoint, commits
        // leave an eighth of it.
        let mut is_first = true;
        loop {
            // A victim that was freed and reused contains only new extents.
            let is_left = |(victim, segment_use): &&(SegmentId, _)| segments.segment_use(*victim) == *segment_use;
            let victims: HashSet<SegmentId> = uses.iter().filter(is_left).map(|(victim, _)| *victim).collect();
            let emptied = self.move_out(&victims)?;
            self.store.checkpoint_after(Reclaims::Nothing)?;
            let is_moving = emptied.page_count > 0 || std::mem::take(&mut is_first);
            if emptied.left != Some(Left::ManyChanges) || !is_moving || self.must_stop() {
                return Ok(emptied.left);
            }
        }
    }

    /// Moves the live extents of the victims into the segments of the checkpoint that this function makes.
    fn pack(&self, victims: &HashSet<SegmentId>, packing: &mut SpaceReservation<'_>) -> Result<CheckpointReport> {
        let space = &self.store.engine.space;
        // No other checkpoint may begin while extents are moved. Otherwise, the moved extents would belong to its
        // epoch, and would take segments that it relies on.
        let page_tables = &mut self.store.lock_page_tables();
        let nearly_empty = space.segments.sparse(TABLES_SHARE_MAX, VICTIM_SEGMENTS_MAX);
        page_tables.evacuate(nearly_empty.iter().map(|(segment, _)| *segment));
        page_tables.evacuate(victims.iter().copied());
        let emptied = self.empty(victims, packing)?;
        let has_emptied = emptied.page_count > 0 || !victims.is_empty() && page_tables.must_evacuate(space);
        assert!(packing.resize(0), "nothing is admitted always");
        self.store.checkpoint_of(page_tables, if has_emptied { Reclaims::Segments } else { Reclaims::Nothing })
    }

    /// Returns `true` if the database is being closed.
    fn must_stop(&self) -> bool {
        self.store.maintenance.state.lock().stop
    }
}

#[cfg(test)]
mod tests {
    use drumlin_testing::Random;

    use super::*;
    use crate::{Config, KeyspaceOptions};

    /// Segments that none of the last eight intervals needed are given back. If one of these intervals had a burst, the
    /// segments that the burst used are retained.
    #[test]
    fn what_a_burst_needed_is_kept() {
        let mut unneeded = Unneeded::default();
        let pushed = |unneeded: &mut Unneeded, counts: &[u64]| -> Vec<u64> {
            counts.iter().map(|&count| unneeded.push(count)).collect()
        };
        assert_eq!(pushed(&mut unneeded, &[50; 7]), [0; 7]);
        assert_eq!(pushed(&mut unneeded, &[50, 60, 9]), [50, 50, 9]);
        assert_eq!(pushed(&mut unneeded, &[50; 8]), [9, 9, 9, 9, 9, 9, 9, 50]);
    }

    /// A pass chooses no more segments than it can empty before the page-table changes fill their memory, and frees
    /// each of them.
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
        let reclaimer = store.reclaimer();
        db.checkpoint().unwrap();
        db.checkpoint().unwrap();
        let segments = &store.engine.space.segments;
        let sparse = segments.sparse(LIVE_SHARE_MAX, VICTIM_SEGMENTS_MAX);
        let victims = reclaimer.take_sparse(u64::MAX);
        assert!(
            (1..sparse.len() / 4).contains(&victims.len()),
            "{} of {} sparse segments",
            victims.len(),
            sparse.len()
        );
        assert!(victims.iter().eq(sparse.iter().map(|(segment, _)| segment).take(victims.len())), "not the sparsest");
        let uses: Vec<_> = victims.iter().map(|victim| (*victim, segments.segment_use(*victim))).collect();
        let emptied = reclaimer.move_out(&victims.iter().copied().collect()).unwrap();
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
