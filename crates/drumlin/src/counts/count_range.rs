//! Counts the rows of a range from the counts of its pages, and folds changes into these counts.
//!
//! Counting moves a cursor along the range. If the cursor is at the first key of a child, it skips that child and its
//! right siblings by adding their entries. Otherwise it descends into the child; in a leaf it passes individual rows.
//! So the cursor climbs up to the node that covers the range and back down on the other side, visiting O(log n) nodes.
//! If an entry holds no count, the count is computed from the page's children, or from the leaf's rows, and stored.

use std::sync::Arc;

use super::CountedTree;
use super::kept::{CountState, KeptCounts};
use super::page_entries::CountEntry;
use crate::error::Result;
use crate::format::extent::{KIND_OFFSET, Kind};
use crate::format::{PageId, Timestamp};
use crate::pool::{ImmutablePages, Needs, Provider, Stop};
use crate::space::PageEntry;
use crate::task::{WaitMode, turn};
use crate::tree::node::{Inner, Leaf, Node};
use crate::tree::{RESTARTS_MAX, Target};

/// The maximum number of leaves counted without releasing the base's lock. Counting them takes some 15 us, about one
/// turn of a task, and a fold has to wait that long.
/// Measured: the figure above.
const LEAVES_AT_ONCE: u32 = if cfg!(feature = "sim") { 8 } else { 128 };

/// The maximum number of pages read in one batch.
const PAGES_AT_ONCE: usize = 64;

/// The maximum number of leaves that a count may visit before the keyspace starts to cache counts.
pub(crate) const LEAVES_WITHOUT: usize = if cfg!(feature = "sim") { 2 } else { 16 };

/// The reason why a step ended.
pub(super) enum StepError {
    /// Repeat the step: it read outdated pages, or a page's fences are being changed.
    Again,
    /// The step has held the base's lock for long enough.
    Yield,
    /// These pages are not in memory.
    Pages(Vec<PageId>),
    /// Changes were folded, or the counts ended, so all sums made so far are void.
    Folded,
}

/// The progress of a count along its range.
#[derive(Debug)]
pub(crate) struct CountCursor {
    /// The first key that the cursor has not passed.
    position: Vec<u8>,
    end: Option<Vec<u8>>,
    /// The number of rows, as of the base, that the cursor has passed.
    rows: u64,
    pub(crate) generation: u64,
    is_done: bool,
}

impl CountCursor {
    /// Begins a count of the keys that are at least `lower` and below `upper`, in this generation.
    pub(crate) fn new(lower: Vec<u8>, upper: Option<Vec<u8>>, generation: u64) -> CountCursor {
        assert!(upper.as_ref().is_none_or(|upper| lower < *upper), "an empty range is counted");
        CountCursor { position: lower, end: upper, rows: 0, generation, is_done: false }
    }

    /// Returns the number of rows in the range, as of the base.
    pub(crate) fn rows(&self) -> u64 {
        assert!(self.is_done, "a count is asked for its rows on its way");
        self.rows
    }

    /// Moves the cursor past all keys below `fence`, which have `rows` rows. Without a fence, moves it to the end of
    /// the range.
    fn pass(&mut self, rows: u64, fence: Option<&[u8]>) {
        self.rows += rows;
        match fence {
            Some(fence) if self.end.as_deref().is_none_or(|end| fence < end) => {
                assert!(*self.position < *fence, "a count goes back");
                self.position.clear();
                self.position.extend_from_slice(fence);
            }
            _ => self.is_done = true,
        }
    }
}

/// A search for the row at a given position, where a count stops.
#[derive(Debug)]
pub(crate) struct Seek {
    /// The snapshot in which rows are counted.
    pub(crate) snapshot: Timestamp,
    /// The rows that the reader's own transaction has inserted (1) or removed (-1), in key order.
    pub(crate) own: Vec<(Vec<u8>, i64)>,
    /// The number of rows, as the snapshot sees them, that still have to be passed before the row.
    pub(crate) remaining: u64,
    /// The cursor's position, once the row is known to be in the leaf at that position.
    pub(crate) found: Option<Vec<u8>>,
}

impl Seek {
    fn own_within(&self, (lower, upper): (&[u8], Option<&[u8]>)) -> &[(Vec<u8>, i64)] {
        debug_assert!(self.own.is_sorted(), "changes of a reader are out of order");
        debug_assert!(self.own.iter().all(|(_, change)| change.abs() == 1), "a row is inserted twice");
        let index_of = |bound: &[u8]| self.own.partition_point(|(key, _)| key[..] < *bound);
        &self.own[index_of(lower)..upper.map_or(self.own.len(), index_of)]
    }

    /// Passes an interval with `rows` rows plus `changes` net insertions, and returns `true`. If the interval contains
    /// the row sought, returns `false` instead. Returns `None` if the sum is negative, which shows that `rows` was
    /// counted in a different interval.
    fn passes(&mut self, rows: u64, changes: i64) -> Option<bool> {
        let rows = rows.checked_add_signed(changes)?;
        let is_passed = rows <= self.remaining;
        if is_passed {
            self.remaining -= rows;
        }
        Some(is_passed)
    }
}

/// A step of counting, made without releasing the base's lock.
struct Step<'s> {
    tree: &'s CountedTree,
    kept: &'s KeptCounts,
    base: &'s CountState,
    nodes: &'s ImmutablePages<'s>,
    leaves_left: u32,
}

/// Returns `true` if `key` is the first key of the child.
pub(super) fn begins_at(inner: &Inner<'_>, child: usize, key: &[u8]) -> bool {
    match child {
        0 => inner.lower_fence().map_or(key.is_empty(), |lower| lower == key),
        _ => inner.compare_key(child, key).is_eq(),
    }
}

/// Returns the index after the last child that lies entirely below `end`.
pub(super) fn child_end(inner: &Inner<'_>, end: Option<&[u8]>) -> usize {
    match (end, inner.upper_fence()) {
        (None, _) => inner.len(),
        (Some(end), Some(upper)) if upper <= end => inner.len(),
        (Some(end), _) => inner.child_for(end),
    }
}

impl Step<'_> {
    /// Returns the number of rows beneath a page of this level at the base. Counts them if the entry holds no count.
    fn rows_of(&mut self, page: PageId, level: u8) -> Result<u64, StepError> {
        let stamp = match self.kept.entry(page) {
            CountEntry::Rows(rows) => return Ok(rows),
            CountEntry::Changing => return Err(StepError::Again),
            CountEntry::Unknown(stamp) => stamp,
        };
        let rows = match self.nodes.load(page) {
            Ok((frame, bytes)) => {
                if bytes[KIND_OFFSET] != Kind::Inner as u8 || Node::new(bytes).level() != level {
                    return Err(StepError::Again);
                }
                let inner = Inner::new(bytes);
                let mut rows = 0;
                self.children(&inner, 0..inner.len(), |_, child| {
                    rows += child;
                    true
                })?;
                if !self.tree.pages.table.shows(page, PageEntry::Immutable(frame)) {
                    return Err(StepError::Again);
                }
                rows
            }
            Err(PageEntry::Leaf(frame)) if level == 0 => {
                self.leaves_left = self.leaves_left.checked_sub(1).ok_or(StepError::Yield)?;
                let read = self.tree.pool.frames.read(frame, self.tree.page_key(page)).ok_or(StepError::Again)?;
                if !self.tree.pages.table.shows(page, PageEntry::Leaf(frame)) {
                    return Err(StepError::Again);
                }
                let leaf = Leaf::new(&read);
                self.leaf_rows(&leaf, leaf.lower_fence().unwrap_or_default(), leaf.upper_fence())
            }
            Err(PageEntry::OnDisk(_) | PageEntry::Reading(_)) => return Err(StepError::Pages(vec![page])),
            Err(_) => return Err(StepError::Again),
        };
        if self.kept.store(page, stamp, rows) { Ok(rows) } else { Err(StepError::Again) }
    }

    /// Returns the number of rows of a latched leaf at the base, with keys of at least `lower` and below `upper`.
    fn leaf_rows(&self, leaf: &Leaf<'_>, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        debug_assert!(leaf.lower_fence().is_none_or(|fence| fence <= lower), "rows before a leaf are counted in it");
        let end = upper.map_or(leaf.len(), |upper| leaf.lower_bound(upper));
        let rows = end.saturating_sub(leaf.lower_bound(lower)) as u64;
        if leaf.newest() <= self.base.floor {
            return rows;
        }
        let changed = self.kept.all_changes(lower, upper);
        // The result can be negative if the counts have ended and lack changes. That is harmless, because no answer
        // uses them.
        rows.checked_add_signed(-changed).unwrap_or_else(|| {
            self.kept.mark_inconsistent();
            0
        })
    }

    /// Calls `visit` with each of these children of a node, in order, and the number of rows beneath it, until `visit`
    /// returns `false`. If a page is missing, continues counting children that are in memory, so that their counts are
    /// stored.
    fn children(
        &mut self,
        inner: &Inner<'_>,
        children: std::ops::Range<usize>,
        mut visit: impl FnMut(usize, u64) -> bool,
    ) -> Result<(), StepError> {
        let level = inner.level() - 1;
        let mut missing = Vec::new();
        for child in children {
            match self.rows_of(inner.child(child), level) {
                Ok(rows) if missing.is_empty() => {
                    if !visit(child, rows) {
                        return Ok(());
                    }
                }
                Ok(_) => {}
                Err(StepError::Pages(pages)) => missing.extend(pages),
                Err(error) if missing.is_empty() => return Err(error),
                Err(_) => break,
            }
            if missing.len() >= PAGES_AT_ONCE {
                break;
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(StepError::Pages(missing)) }
    }

    /// For each of these children, returns the net number of rows that listed changes add beneath it, as the reader
    /// that seeks the row sees them. The first child begins at the cursor's position.
    fn changes_of_children(
        &self,
        inner: &Inner<'_>,
        children: std::ops::Range<usize>,
        cursor: &CountCursor,
        seek: &Seek,
    ) -> Vec<i64> {
        debug_assert!(children.is_empty() || begins_at(inner, children.start, &cursor.position), "rows before a child");
        let mut sums = vec![0; children.len()];
        let Some(last) = children.clone().next_back() else { return sums };
        let mut upper = Vec::new();
        let has_upper = inner.child_upper_into(last, &mut upper);
        let within = (&cursor.position[..], has_upper.then_some(&upper[..]));
        let mut add = |key: &[u8], change| sums[inner.child_for(key) - children.start] += change;
        self.kept.visit_changes(self.base, within, seek.snapshot, &mut add);
        seek.own_within(within).iter().for_each(|(key, change)| add(key, *change));
        sums
    }

    /// Passes the children of a node that lie entirely within the range, up to the one with the row sought. Returns the
    /// number of children passed, and the number of their rows.
    fn pass_children(
        &mut self,
        inner: &Inner<'_>,
        first: usize,
        cursor: &CountCursor,
        seek: Option<&mut Seek>,
    ) -> Result<(usize, u64), StepError> {
        let child_end = child_end(inner, cursor.end.as_deref());
        let (mut passed, mut sum, mut is_outdated) = (0, 0, false);
        match seek {
            None => self.children(inner, first..child_end.max(first), |_, rows| {
                passed += 1;
                sum += rows;
                true
            })?,
            Some(seek) => {
                let changes = self.changes_of_children(inner, first..child_end.max(first), cursor, seek);
                self.children(inner, first..child_end.max(first), |child, rows| {
                    let passes = seek.passes(rows, changes[child - first]);
                    is_outdated |= passes.is_none();
                    let is_passed = passes == Some(true);
                    passed += usize::from(is_passed);
                    sum += if is_passed { rows } else { 0 };
                    is_passed
                })?;
            }
        }
        assert!(first + passed <= child_end.max(first), "children are passed that reach beyond the range");
        // If a sum is outdated, the page table has a newer version of this node, in which a child covers only part of
        // the interval that it has here.
        if is_outdated { Err(StepError::Again) } else { Ok((passed, sum)) }
    }

    /// Descends to the cursor's position, and passes as many keys as possible within one node.
    fn advance(&mut self, cursor: &mut CountCursor, mut seek: Option<&mut Seek>) -> Result<(), StepError> {
        let mut page = PageId::ROOT;
        let mut level = u8::MAX;
        loop {
            match self.nodes.load(page) {
                Ok((frame, bytes)) => {
                    if bytes[KIND_OFFSET] != Kind::Inner as u8 || Node::new(bytes).level() >= level {
                        return Err(StepError::Again);
                    }
                    self.tree.pool.frames.header(frame).touch_inner();
                    let inner = Inner::new(bytes);
                    level = inner.level();
                    let child = inner.child_for(&cursor.position);
                    if begins_at(&inner, child, &cursor.position) {
                        // If the node turns out to be outdated, its sums are void, and this number of remaining rows is
                        // restored.
                        let before = seek.as_ref().map(|seek| seek.remaining);
                        let passed = self.pass_children(&inner, child, cursor, seek.as_deref_mut());
                        let is_there = self.tree.pages.table.shows(page, PageEntry::Immutable(frame));
                        let (passed, rows) = match passed {
                            Ok(passed) if is_there => passed,
                            failed => {
                                if let (Some(seek), Some(before)) = (seek, before) {
                                    seek.remaining = before;
                                }
                                return Err(failed.err().unwrap_or(StepError::Again));
                            }
                        };
                        if passed > 0 {
                            let mut fence = Vec::new();
                            let has_fence = inner.child_upper_into(child + passed - 1, &mut fence);
                            cursor.pass(rows, has_fence.then_some(&fence[..]));
                            return Ok(());
                        }
                    }
                    page = inner.child(child);
                }
                Err(PageEntry::Leaf(frame)) => {
                    let read = self.tree.pool.frames.read(frame, self.tree.page_key(page)).ok_or(StepError::Again)?;
                    let is_there = self.tree.pages.table.shows(page, PageEntry::Leaf(frame));
                    if !is_there || !Node::new(&read).covers(&cursor.position) {
                        return Err(StepError::Again);
                    }
                    self.pass_leaf(&Leaf::new(&read), cursor, seek);
                    return Ok(());
                }
                Err(PageEntry::OnDisk(_) | PageEntry::Reading(_)) => return Err(StepError::Pages(vec![page])),
                Err(_) => return Err(StepError::Again),
            }
        }
    }

    /// Passes a leaf's rows within an interval, unless the row sought is among them. Returns `true` if it passed them.
    fn passes_leaf(&self, rows: u64, within: (&[u8], Option<&[u8]>), seek: &mut Seek) -> bool {
        let mut changes = 0;
        self.kept.visit_changes(self.base, within, seek.snapshot, |_, change| changes += change);
        changes += seek.own_within(within).iter().map(|(_, change)| change).sum::<i64>();
        seek.passes(rows, changes).unwrap_or_else(|| {
            self.kept.mark_inconsistent();
            false
        })
    }

    fn pass_leaf(&self, leaf: &Leaf<'_>, cursor: &mut CountCursor, seek: Option<&mut Seek>) {
        let fence = leaf.upper_fence();
        let upper = match (fence, cursor.end.as_deref()) {
            (Some(fence), Some(end)) => Some(fence.min(end)),
            (fence, end) => fence.or(end),
        };
        let rows = self.leaf_rows(leaf, &cursor.position, upper);
        if let Some(seek) = seek
            && !self.passes_leaf(rows, (&cursor.position, upper), seek)
        {
            seek.found = Some(cursor.position.clone());
            cursor.is_done = true;
            return;
        }
        cursor.pass(rows, fence);
    }
}

impl CountedTree {
    /// Advances a cursor to the end of its range, or to the row that it seeks. Returns `false` if changes have been
    /// folded or the keyspace's counts were given up; then the caller must start over. O(log n), plus O(leaves beneath
    /// pages without a count).
    pub(crate) async fn count_on(
        &self,
        mode: WaitMode<'_>,
        kept: &KeptCounts,
        cursor: &mut CountCursor,
        mut seek: Option<&mut Seek>,
    ) -> Result<bool> {
        let done = self.walking(mode, || self.count_step(kept, cursor, seek.as_deref_mut())).await?;
        assert!(done.is_none() || cursor.is_done, "a count ends on its way");
        Ok(done.is_some())
    }

    /// Repeats a step until it succeeds, reading the pages that it lacks. Returns `None` if changes have been folded or
    /// the counts have ended.
    pub(super) async fn walking<T>(
        &self,
        mode: WaitMode<'_>,
        mut step: impl FnMut() -> Result<T, StepError>,
    ) -> Result<Option<T>> {
        let mut provider = Provider::new(mode, &self.pool);
        let mut restart = 0;
        while restart < RESTARTS_MAX {
            mode.work(turn::LEAF_UNITS).await;
            match step() {
                Ok(done) => return Ok(Some(done)),
                Err(StepError::Folded) => return Ok(None),
                Err(StepError::Again) => {
                    self.pause(restart)?;
                    restart += 1;
                }
                Err(StepError::Yield) => {
                    self.check_dropped()?;
                    mode.worked(LEAVES_AT_ONCE);
                }
                Err(StepError::Pages(pages)) => {
                    self.bring_in(mode, &mut provider, pages).await?;
                    restart = 0;
                }
            }
        }
        Err(self.lost())
    }

    async fn bring_in(&self, mode: WaitMode<'_>, provider: &mut Provider<'_>, mut pages: Vec<PageId>) -> Result<()> {
        assert!(!pages.is_empty(), "no page is missing");
        pages.sort_unstable();
        pages.dedup();
        // No page was read: other threads are reading the pages, or the pages are unreadable. Wait for the first page,
        // or get its error.
        if pages.len() == 1 || self.fault_nodes(mode, &pages).await? == 0 {
            provider.provide(&Needs::Page(Arc::clone(&self.pages), pages[0])).await?;
        }
        Ok(())
    }

    fn count_step(
        &self,
        kept: &KeptCounts,
        cursor: &mut CountCursor,
        mut seek: Option<&mut Seek>,
    ) -> Result<(), StepError> {
        let reclaim_guard = self.pool.reclaim_guard();
        let nodes = reclaim_guard.pages(&self.pages.table);
        let base = kept.base();
        // Checking for ended counts also avoids an endless wait: if the counts ended during a change of fences, the
        // entries of the changed pages stay `Changing`.
        if base.generation != cursor.generation || kept.invalidated() {
            return Err(StepError::Folded);
        }
        let mut step = Step { tree: self, kept, base: &base, nodes: &nodes, leaves_left: LEAVES_AT_ONCE };
        while !cursor.is_done {
            step.advance(cursor, seek.as_deref_mut())?;
        }
        Ok(())
    }

    /// Counts the rows of a leaf, if it is in memory.
    pub(crate) fn count_leaf(&self, kept: &KeptCounts, page: PageId) {
        let reclaim_guard = self.pool.reclaim_guard();
        let nodes = reclaim_guard.pages(&self.pages.table);
        let base = kept.base();
        let mut step = Step { tree: self, kept, base: &base, nodes: &nodes, leaves_left: 1 };
        // If the leaf is not in memory or its fences are changing, the next count that needs it will count it.
        let _ = step.rows_of(page, 0);
    }

    /// Returns `true` if a range has enough leaves for cached counts to pay off.
    pub(crate) async fn has_many_leaves(&self, mode: WaitMode<'_>, lower: &[u8], upper: Option<&[u8]>) -> Result<bool> {
        self.pool
            .awaiting(mode, |_| {
                let mut many = None;
                let path = self.descend(Target::At(lower), |_, _, inner, child| {
                    if inner.level() == 1 {
                        let is_beyond = match (inner.upper_fence(), upper) {
                            (Some(fence), Some(upper)) => fence < upper,
                            (fence, None) => fence.is_some(),
                            (None, Some(_)) => false,
                        };
                        let last = upper.map_or(inner.len() - 1, |upper| inner.child_for(upper));
                        many = Some(is_beyond || last >= child + LEAVES_WITHOUT);
                    }
                });
                match (many, path) {
                    (Some(many), _) => Ok(many),
                    (None, Ok(_)) => Ok(false),
                    // No inner node was visited: the root is a leaf.
                    (None, Err(stop)) => Err::<bool, Stop>(stop),
                }
            })
            .await
    }

    /// Folds the changes up to a published commit into the counts of the pages above them. If an inner node above a
    /// change is not in memory, the change stays in the list. Returns the missing nodes.
    fn try_fold(&self, kept: &KeptCounts, up_to: Timestamp) -> Vec<PageId> {
        let reclaim_guard = self.pool.reclaim_guard();
        let nodes = reclaim_guard.pages(&self.pages.table);
        let mut missing = Vec::new();
        let mut path = Path::default();
        // If a change of a row stays in the list, so must all later changes of that row: a removal must not be folded
        // before the insert.
        let mut left: Option<Vec<u8>> = None;
        let hold = kept.fold(up_to, |key, change| {
            if left.as_deref() == Some(key) {
                return false;
            }
            if let Err(page) = path.fold(&nodes, kept, key, change) {
                left = Some(key.to_vec());
                if missing.len() < PAGES_AT_ONCE {
                    missing.push(page);
                }
                return false;
            }
            true
        });
        path.end(kept);
        drop(hold);
        missing
    }

    /// Folds changes into the counts if the list has more than `unsorted_max` unsorted changes or needs too much
    /// memory. Reads missing inner nodes above the changes. `fold_limit` returns the newest commit whose changes may be
    /// folded. Its argument is `true` if the list needs too much memory. In that case, changes that older snapshots
    /// don't see may be folded too, and those snapshots can no longer use the counts.
    pub(crate) async fn fold_counts(
        &self,
        mode: WaitMode<'_>,
        kept: &KeptCounts,
        unsorted_max: usize,
        fold_limit: impl FnOnce(bool) -> Timestamp,
    ) -> Result<()> {
        let Some(is_large) = kept.wants_fold(unsorted_max) else { return Ok(()) };
        let up_to = fold_limit(is_large);
        /// The number of rounds after which the remaining changes are left to the next fold.
        const ROUNDS_MAX: usize = 8;
        let mut provider = Provider::new(mode, &self.pool);
        for _ in 0..ROUNDS_MAX {
            let missing = self.try_fold(kept, up_to);
            if missing.is_empty() {
                break;
            }
            crate::coverage::mark!("a fold lacked an inner node");
            self.bring_in(mode, &mut provider, missing).await?;
        }
        Ok(())
    }
}

/// The path of inner nodes in memory from the root to a leaf, and the sum of the changes to be folded into their
/// counts. Keys must arrive in order.
#[derive(Default)]
struct Path<'g> {
    /// The inner nodes on the path, or just the root if it is a leaf.
    pages: Vec<PageId>,
    /// The lowest inner node on the path.
    lowest: Option<Inner<'g>>,
    sum: i64,
}

impl<'g> Path<'g> {
    /// Folds the change of one row. If a page of the path is not in memory, folds nothing and fails with that page.
    fn fold(&mut self, nodes: &ImmutablePages<'g>, kept: &KeptCounts, key: &[u8], change: i64) -> Result<(), PageId> {
        if self.lowest.is_none_or(|lowest| !lowest.covers(key)) {
            self.end(kept);
            self.go_to(nodes, key)?;
        }
        if let Some(lowest) = self.lowest {
            debug_assert!(lowest.level() == 1 && lowest.covers(key), "a change is folded into another leaf");
            kept.add_folded(lowest.child(lowest.child_for(key)), change);
        }
        self.sum += change;
        Ok(())
    }

    /// Adds the sum of the folded changes to the counts of the path's nodes.
    fn end(&mut self, kept: &KeptCounts) {
        let sum = std::mem::take(&mut self.sum);
        self.pages.drain(..).for_each(|page| kept.add_folded(page, sum));
        self.lowest = None;
    }

    fn go_to(&mut self, nodes: &ImmutablePages<'g>, key: &[u8]) -> Result<(), PageId> {
        assert!(self.pages.is_empty() && self.sum == 0, "a path is left before its changes are folded");
        let mut page = PageId::ROOT;
        let mut level = u8::MAX;
        loop {
            let found = match nodes.load(page) {
                Ok((_, bytes)) if bytes[KIND_OFFSET] == Kind::Inner as u8 => Some(Inner::new(bytes)),
                // The root is a leaf.
                Err(PageEntry::Leaf(_)) if page == PageId::ROOT => {
                    self.pages.push(page);
                    return Ok(());
                }
                _ => None,
            };
            // The page number may have been reused for a different node.
            let Some(inner) = found.filter(|inner| inner.level() < level && inner.covers(key)) else {
                self.pages.clear();
                return Err(page);
            };
            self.pages.push(page);
            level = inner.level();
            if level == 1 {
                self.lowest = Some(inner);
                return Ok(());
            }
            page = inner.child(inner.child_for(key));
        }
    }
}
