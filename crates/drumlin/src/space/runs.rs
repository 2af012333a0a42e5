//! The runs above a keyspace's tree.
//!
//! A *run* is a packed, immutable tree of rows with a root page of its own in the keyspace's page table. It became
//! visible as a whole, by one commit. Its rows come before those of the keyspace's tree until they are *folded*, which
//! means put into the tree's leaves. A bulk load into a keyspace that has rows is attached as a run.
//!
//! A *removal* is a run without rows and pages. It removes all older rows of a range of keys: those of the tree and
//! those of older runs. Range deletes are attached as removals. Folding one takes the rows out of the tree's leaves.
//!
//! # Which rows are folded
//! Each leaf stores the timestamp of the newest commit that changed it. A run at timestamp t is folded into a leaf if
//! and only if the leaf's timestamp is at least t. Folding sets the leaf's timestamp to that of the run, and a commit
//! changes a leaf only after all runs have been folded into it. So the rule holds on disk too, and folding needs no log
//! record.
//!
//! # Who reads a run
//! A reader latches a leaf of the tree, and consults the runs that are not folded into it ([`Runs::list`]). While it
//! holds the list, no page of a run that it may need is freed: pages are freed only after the list has been changed.
//! Once it has latched a leaf of a run, it may let go of the list.
//!
//! Lock order: a leaf of the tree, the list, a leaf of a run.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::catalogue::RunEntry;
use crate::format::{PageId, Timestamp};
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// The maximum number of runs with rows above one keyspace. A reader may have to search each of them.
pub(crate) const RUNS_MAX: usize = 4;
/// The maximum number of removals of a keyspace. A reader compares its key with each of them, which takes a few
/// nanoseconds.
pub(crate) const REMOVAL_COUNT_MAX: usize = if cfg!(feature = "sim") { 3 } else { 32 };

/// The maximum number of ranges of leaves into which a removal is folded that a keyspace remembers for it. Leaves that
/// adjoin each other are one range.
const FOLDED_RANGE_COUNT_MAX: usize = if cfg!(feature = "sim") { 4 } else { 64 };

/// The number of removals that a keyspace remembers after they are folded.
const FOLDED_REMOVAL_COUNT_MAX: usize = 64;

/// A run above a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The root of the run's rows, or [`PageId::NONE`] for a removal.
    pub(crate) root: PageId,
    /// The commit that made the run visible.
    pub(crate) timestamp: Timestamp,
    /// All rows below this key are folded, and the pages that hold only such rows are free. It is the lower fence of a
    /// leaf of the run, or empty. For a removal, it begins as the first key of the range.
    pub(crate) freed_to: Vec<u8>,
    /// The keys of which the run removes all older rows. Empty for a bulk load.
    pub(crate) removed: RemovedKeys,
    /// The leaves and rows with which the run was attached, for estimates. Unknown after a reopening.
    pub(crate) written: Option<RunRows>,
}

/// The numbers of the leaves and rows of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RunRows {
    pub(crate) leaf_count: u64,
    /// The number of all rows, and of those that only remove the older row with their key.
    pub(crate) row_count: u64,
    pub(crate) removal_count: u64,
}

impl From<RunEntry> for Run {
    /// Returns the run that a catalogue describes.
    fn from(RunEntry { root, timestamp, freed_to, removed: ranges }: RunEntry) -> Run {
        let mut removed = RemovedKeys::default();
        ranges.into_iter().for_each(|(lower, upper)| removed.add(RemovedRange { lower, upper }));
        Run { root, timestamp, freed_to, removed, written: None }
    }
}

/// Ranges of keys whose rows are removed: sorted and disjoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RemovedKeys(Vec<RemovedRange>);

/// A range of keys whose rows are removed: from `lower`, inclusive, to `upper`, exclusive. Without `upper`, the range
/// has all keys from `lower` on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemovedRange {
    pub(crate) lower: Vec<u8>,
    pub(crate) upper: Option<Vec<u8>>,
}

impl RemovedRange {
    /// Returns `true` if the range has no keys.
    pub(crate) fn is_empty(&self) -> bool {
        self.upper.as_ref().is_some_and(|upper| *upper <= self.lower)
    }

    /// Returns `true` if the range ends at this key or before.
    fn ends_by(&self, key: &[u8]) -> bool {
        self.upper.as_deref().is_some_and(|upper| upper <= key)
    }
}

impl RemovedKeys {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn ranges(&self) -> &[RemovedRange] {
        &self.0
    }

    /// Adds a range. O(ranges).
    pub(crate) fn add(&mut self, mut added: RemovedRange) {
        if added.is_empty() {
            return;
        }
        // The ranges that overlap the new one, or touch it.
        let start = self.0.partition_point(|range| range.upper.as_ref().is_some_and(|upper| *upper < added.lower));
        let is_reached = |range: &RemovedRange| added.upper.as_ref().is_none_or(|upper| range.lower <= *upper);
        let count = self.0[start..].iter().take_while(|range| is_reached(range)).count();
        if let Some(first) = self.0[start..start + count].first()
            && first.lower < added.lower
        {
            added.lower.clone_from(&first.lower);
        }
        if let Some(last) = self.0[start..start + count].last() {
            let upper = |range: &RemovedRange| range.upper.clone();
            added.upper = upper(&added).zip(upper(last)).map(|(one, other)| one.max(other));
        }
        self.0.splice(start..start + count, [added]);
        let is_before =
            |left: &RemovedRange, right: &RemovedRange| left.upper.as_ref().is_some_and(|upper| *upper < right.lower);
        debug_assert!(self.0.is_sorted_by(is_before), "ranges of removed keys overlap: {:?}", self.0);
    }

    /// Returns the range that has the key, or the first one after it.
    pub(crate) fn at_or_after(&self, key: &[u8]) -> Option<&RemovedRange> {
        self.0.get(self.0.partition_point(|range| range.ends_by(key)))
    }

    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        debug_assert!(self.0.iter().all(|range| !range.is_empty()), "a range without keys is removed");
        self.at_or_after(key).is_some_and(|range| *range.lower <= *key)
    }

    /// Returns `true` if all keys from `lower` on, up to but not including `upper`, are removed.
    pub(crate) fn covers_range(&self, lower: &[u8], upper: Option<&[u8]>) -> bool {
        debug_assert!(upper.is_none_or(|upper| lower < upper), "a range ends before it begins");
        self.at_or_after(lower).is_some_and(|range| {
            let ends_later = match (upper, range.upper.as_deref()) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(upper), Some(end)) => upper <= end,
            };
            *range.lower <= *lower && ends_later
        })
    }

    /// Returns `true` if a key from `first` on, up to but not including `end`, is removed.
    pub(crate) fn meets(&self, first: &[u8], end: Option<&[u8]>) -> bool {
        debug_assert!(end.is_none_or(|end| first <= end), "a range ends before it begins");
        self.at_or_after(first).is_some_and(|range| end.is_none_or(|end| *range.lower < *end))
    }
}

impl Run {
    /// Returns a run with the rows beneath this root.
    pub(crate) fn of_rows(timestamp: Timestamp, root: PageId, written: Option<RunRows>) -> Run {
        assert!(root > PageId::ROOT, "a run has the root of the tree");
        Run { root, timestamp, freed_to: Vec::new(), removed: RemovedKeys::default(), written }
    }

    /// Returns a removal of these keys.
    pub(crate) fn removal(timestamp: Timestamp, removed: RemovedKeys) -> Run {
        assert!(!removed.is_empty(), "a removal removes nothing");
        let freed_to = removed.ranges().first().map(|range| range.lower.clone()).expect("a removal has ranges");
        Run { root: PageId::NONE, timestamp, freed_to, removed, written: None }
    }

    /// Returns `true` if the run has pages with rows, and `false` if it only removes older rows.
    pub(crate) fn has_rows(&self) -> bool {
        debug_assert!(self.root != PageId::ROOT, "a run has the root of the tree");
        self.root != PageId::NONE
    }
}

/// The runs of one keyspace. See the module.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// State that only keyspaces with runs need. A keyspace that never had a run takes no memory for it.
    state: OnceLock<Box<RunState>>,
}

#[derive(Debug, Default)]
struct RunState {
    /// The timestamp of the newest run in the list, or 0 if there is none.
    newest: AtomicU64,
    /// The timestamp of the newest run that was attached since the database was opened, or 0 if none was.
    attached_at: AtomicU64,
    /// The timestamp of the newest run that has left the list since the database was opened, except for the removals in
    /// `folded_removals`.
    folded_at: AtomicU64,
    /// The removals that were folded last. A commit can tell by them that its rows were not removed, instead of
    /// failing with a conflict.
    folded_removals: Mutex<VecDeque<Run>>,
    /// In ascending order of timestamps.
    list: RwLock<Vec<Run>>,
    /// For removals that were attached since the database was opened, the ranges of the leaves into which each is
    /// folded. A scan reads no other leaves in place of the removed rows. A removal with too many ranges has no entry.
    folded_ranges: Mutex<Vec<(Timestamp, RemovedKeys)>>,
    /// Locked while a part of the oldest run is folded and its pages are freed. If the run is a removal, contains the
    /// first key of the leaf into which it was folded last.
    folding: Mutex<Option<Vec<u8>>>,
}

impl Runs {
    fn state(&self) -> &RunState {
        self.state.get_or_init(Box::default)
    }

    /// Notes that a leaf with these fences had the timestamp `before` and now has a higher one. The caller has latched
    /// the leaf.
    pub(crate) fn note_folded_into(
        &self,
        before: Timestamp,
        now: Timestamp,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
    ) {
        assert!(before < now, "a run is folded into a leaf that has it");
        let Some(state) = self.state.get() else { return };
        let mut folded = state.folded_ranges.lock();
        folded.retain_mut(|(timestamp, ranges)| {
            if before < *timestamp && *timestamp <= now {
                let (lower, upper) = (lower.unwrap_or_default().to_vec(), upper.map(<[u8]>::to_vec));
                ranges.add(RemovedRange { lower, upper });
            }
            ranges.ranges().len() <= FOLDED_RANGE_COUNT_MAX
        });
    }

    /// Calls `look` with the ranges of the leaves into which a removal is folded. Returns `None` if they are not known.
    pub(crate) fn with_folded_ranges<T>(&self, removal: Timestamp, look: impl FnOnce(&RemovedKeys) -> T) -> Option<T> {
        let folded = self.state.get()?.folded_ranges.lock();
        assert!(folded.is_sorted_by_key(|(timestamp, _)| *timestamp), "removals are out of order");
        let at = folded.binary_search_by_key(&removal, |(timestamp, _)| *timestamp).ok()?;
        Some(look(&folded[at].1))
    }

    /// Returns a copy of the list of runs.
    pub(crate) fn all(&self) -> Vec<Run> {
        self.state.get().map_or_else(Vec::new, |state| state.list.read().clone())
    }

    /// Locks the oldest run, while a part of it is folded and its pages are freed.
    pub(crate) fn lock_folding(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.state().folding.lock()
    }

    /// Returns the timestamp of the newest run, or 0 if there is none. A leaf with a lower timestamp may lack rows of
    /// runs.
    #[inline]
    pub(crate) fn newest(&self) -> Timestamp {
        Timestamp(self.state.get().map_or(0, |state| state.newest.load(Ordering::Acquire)))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.newest() == Timestamp(0)
    }

    /// Returns `true` if a run has been attached since this snapshot. The caller holds the epoch latch, or has read the
    /// published timestamp after the snapshot.
    #[inline]
    pub(crate) fn are_attached_since(&self, snapshot: Timestamp) -> bool {
        self.state.get().is_some_and(|state| state.attached_at.load(Ordering::Acquire) > snapshot.0)
    }

    /// Returns `true` if a run was attached since this timestamp, has left the list, and may have had this key or
    /// removed it. The caller holds the list.
    pub(crate) fn may_have_folded(&self, since: Timestamp, key: &[u8]) -> bool {
        let has_removed = |run: &Run| run.timestamp > since && run.removed.covers(key);
        self.state.get().is_some_and(|state| {
            state.folded_at.load(Ordering::Acquire) > since.0 || state.folded_removals.lock().iter().any(has_removed)
        })
    }

    /// Notes that a run has left the list, which the caller holds exclusively.
    fn note_folded(&self, run: &Run) {
        assert!(run.timestamp > Timestamp(0), "a run of no commit was folded");
        let mut forgotten = Some(run.timestamp);
        if !run.has_rows() {
            let mut removals = self.state().folded_removals.lock();
            removals.push_back(run.clone());
            forgotten = if removals.len() > FOLDED_REMOVAL_COUNT_MAX { removals.pop_front() } else { None }
                .map(|forgotten| forgotten.timestamp);
        }
        if let Some(timestamp) = forgotten {
            self.state().folded_at.fetch_max(timestamp.0, Ordering::AcqRel);
        }
    }

    /// Returns the runs, in ascending order of timestamps.
    pub(crate) fn list(&self) -> RwLockReadGuard<'_, Vec<Run>> {
        self.state().list.read()
    }

    /// Returns `true` if the list has `count_max` runs of this kind, or more.
    pub(crate) fn are_many(&self, is_of_kind: fn(&Run) -> bool, count_max: usize) -> bool {
        assert!(count_max > 0, "a keyspace can have no run");
        !self.is_empty() && self.list().iter().filter(|run| is_of_kind(run)).count() >= count_max
    }

    /// Adds runs to the end of the list.
    pub(super) fn restore(&self, runs: Vec<Run>) {
        if runs.is_empty() {
            return;
        }
        let state = self.state();
        let mut list = state.list.write();
        let is_sound = |run: &Run| run.root != PageId::ROOT && (run.has_rows() || !run.removed.is_empty());
        assert!(runs.iter().all(is_sound), "a run has the root of the tree, or nothing: {runs:?}");
        list.extend(runs);
        assert!(list.is_sorted_by(|left, right| left.timestamp < right.timestamp), "runs are attached out of order");
        state.newest.store(list.last().map_or(0, |run| run.timestamp.0), Ordering::Release);
        assert!(self.is_empty() == list.is_empty(), "a run was attached by no commit: {list:?}");
    }

    /// Notes that a run was attached while the database is open.
    pub(super) fn note_attached(&self, timestamp: Timestamp) {
        let before = self.state().attached_at.fetch_max(timestamp.0, Ordering::AcqRel);
        assert!(before < timestamp.0, "a run at {timestamp} follows one at {before}");
        if self.list().last().is_some_and(|run| !run.has_rows()) {
            self.state().folded_ranges.lock().push((timestamp, RemovedKeys::default()));
        }
        assert!(self.newest() == timestamp, "a run is noted that is not in the list");
    }

    /// See [`Space::free_run_to`](super::Space::free_run_to). Returns the run if it has left the list.
    pub(super) fn free_to(&self, timestamp: Timestamp, freed_to: Option<Vec<u8>>) -> Option<Run> {
        assert!(timestamp <= self.newest(), "a run is freed that is not in the list");
        let state = self.state();
        let mut list = state.list.write();
        let at = list.iter().position(|run| run.timestamp == timestamp).expect("a run is freed once");
        match freed_to {
            Some(key) => {
                assert!(list[at].freed_to < key, "a run is freed backwards");
                list[at].freed_to = key;
                None
            }
            None => {
                assert!(at == 0, "a run is freed before an older one");
                let run = list.remove(at);
                state.folded_ranges.lock().retain(|(folded, _)| *folded != timestamp);
                self.note_folded(&run);
                state.newest.store(list.last().map_or(0, |run| run.timestamp.0), Ordering::Release);
                Some(run)
            }
        }
    }

    /// Removes all runs, and returns them.
    pub(super) fn clear(&self) -> Vec<Run> {
        let Some(state) = self.state.get() else { return Vec::new() };
        let mut list = state.list.write();
        assert!(list.is_empty() == self.is_empty(), "runs are in the list, and no reader looks for them");
        state.newest.store(0, Ordering::Release);
        state.folded_ranges.lock().clear();
        debug_assert!(self.is_empty(), "readers look for runs that are gone");
        std::mem::take(&mut *list)
    }
}
