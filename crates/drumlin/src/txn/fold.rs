//! Folding runs: the rows of a run above a tree are put into the tree's leaves.
//!
//! A fold changes no row that a reader sees, so it has no timestamp and no log record. It replaces the rows of a part
//! of a leaf's range, after splitting the leaf where the part begins and ends. A commit folds what lies above the
//! leaves that it changes, and a background thread folds the rest in key order and frees the run's pages on the way.
//!
//! # Older snapshots
//! A snapshot from before the run must not see its rows, which become rows like any others in the leaf. So a fold
//! leaves an undo record with the run's timestamp, as if the run's commit had changed the leaf, unless every reader
//! sees the run. No later commit has changed the leaf, because it would have folded the run first.
//!
//! # Replay
//! Recovery folds what lies above the leaves that it changes by the same rule. A leaf of the checkpoint into which a
//! run was not folded yet is folded again, with the same result.

use std::sync::Arc;

use super::commit::{LockedRows, Row, RowsSeen};
use super::engine::{Engine, Replaying};
use super::keyspace::OpenKeyspace;
use super::read_set::Reads;
use super::undo::{UndoRecord, undo_bytes_max, version_bytes_max};
use crate::counts::CountedTree;
use crate::error::{Error, Result};
use crate::format::extent::PageKey;
use crate::format::node::NEWEST_OFFSET;
use crate::format::{PageId, Timestamp};
use crate::memory::{Account, Grant};
use crate::pool::Stop;
use crate::space::runs::{REMOVAL_COUNT_MAX, RemovedKeys, Run};
use crate::space::{EpochGuard, PageEntry, Purpose};
use crate::task::{WaitMode, ready, turn};
use crate::tree::node::{Leaf, LeafMut, RowValue};
use crate::tree::{FoldPlan, FoldStep, RunEnd, UNLINKED_LEAVES_MAX};

/// The maximum number of pages that one step of a fold makes dirty. It splits a leaf twice, which makes three leaves
/// and two new versions of their parent, and may split the inner nodes on each level above.
const PAGES_MAX: u64 = 12;

/// The condition for folding a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Folding {
    /// Fold a run only once every reader sees it, so that the fold leaves no old versions.
    OnceSeen,
    /// Fold a run immediately, and leave old versions for older snapshots.
    Now,
}

/// The reason why a fold could not be made.
enum FoldError {
    /// There is no memory for the old versions that the fold would leave. Contains their size in bytes.
    Versions(usize),
    Error(Error),
}

impl From<Error> for FoldError {
    fn from(error: Error) -> FoldError {
        FoldError::Error(error)
    }
}

impl<L> Engine<L> {
    /// Folds all runs into the leaf that covers the key. The first fold that leaves old versions uses the memory in
    /// `secured`, if there is some. Returns the leaf's upper fence.
    async fn try_fold_above(
        &self,
        mode: WaitMode<'_>,
        tree: &CountedTree,
        key: &[u8],
        purpose: Purpose,
        secured: &mut Option<Grant>,
    ) -> Result<Option<Vec<u8>>, FoldError> {
        loop {
            mode.work(turn::LEAF_UNITS).await;
            let plan = match tree.pool.awaiting(mode, |_| tree.plan_fold(key)).await? {
                FoldStep::Folded(upper) => return Ok(upper),
                FoldStep::Fold(plan) => plan,
            };
            let pages = &tree.pages;
            self.space.check_table_growth(pages.table.growth_bytes_max(PAGES_MAX))?;
            let _reserved_pages = self.space.reserve(purpose, PAGES_MAX * pages.page_bytes() as u64)?;
            let memory = if self.is_seen_before(plan.run) {
                let rows = Leaf::new(&plan.page);
                let key_bytes = |index: &usize| rows.prefix().len() + rows.key_suffix(*index).len();
                let of_rows = plan.changed.iter().map(|index| version_bytes_max(&[], key_bytes(index)));
                let of_removed = plan.removed.iter().map(|key| version_bytes_max(key, 0));
                let bytes = undo_bytes_max(of_rows.chain(of_removed).sum::<usize>() + pages.page_bytes());
                let secured = secured.take().filter(|secured| secured.bytes() >= bytes as u64);
                let try_hold = || self.budget.try_hold(Account::Versions, bytes as u64);
                let held = if secured.is_none() { Some(try_hold().ok_or(FoldError::Versions(bytes))?) } else { None };
                Some((secured, held))
            } else {
                None
            };
            if plan.splits_lower
                && let Some(lower) = &plan.lower
            {
                tree.split_at(mode, lower).await?;
            }
            if plan.splits_upper
                && let Some(upper) = &plan.upper
            {
                tree.split_at(mode, upper).await?;
            }
            tree.pool.awaiting(mode, |_| self.try_fold(tree, key, &plan)).await?;
            drop(memory);
        }
    }

    /// Returns `true` if a reader may see the database as it was before the run was attached.
    fn is_seen_before(&self, run: Timestamp) -> bool {
        self.snapshots.horizon(&self.clock) < run
    }

    /// Replaces the rows of the leaf by those of the plan, unless the leaf has changed since the plan was made.
    fn try_fold(&self, tree: &CountedTree, key: &[u8], plan: &FoldPlan) -> Result<(), Stop> {
        let epoch_guard = self.space.epoch_latch.shared();
        let mut write = tree.write_leaf(key, &|_| false)?;
        let leaf = Leaf::new(&write);
        let fences = (leaf.lower_fence(), leaf.upper_fence());
        if leaf.newest() != plan.newest || fences != (plan.lower.as_deref(), plan.upper.as_deref()) {
            return Ok(());
        }
        tree.check_dropped().map_err(Stop::Error)?;
        self.pool.prepare_change(&epoch_guard, &write)?;
        let page = write.page();
        let (folded, mut key, mut undo) = (Leaf::new(&plan.page), Vec::new(), UndoRecord::new());
        let is_seen_before = self.is_seen_before(plan.run);
        let mut keep = |key: &[u8]| {
            let was = leaf.search(key).ok().map(|at| leaf.value(at));
            if is_seen_before || matches!(was, Some(RowValue::Large(_))) {
                undo.push(key, was);
            }
        };
        // Undo records have their rows in key order.
        let mut removed = plan.removed.iter().peekable();
        for &index in &plan.changed {
            folded.key_into(index, &mut key);
            while let Some(before) = removed.next_if(|removed| **removed < key) {
                keep(before);
            }
            keep(&key);
        }
        removed.for_each(|removed| keep(removed));
        debug_assert!(plan.removed.is_sorted(), "removed keys of a fold are out of order");
        assert!(
            plan.removed.iter().all(|key| leaf.search(key).is_ok()),
            "a row is removed that the leaf does not have"
        );
        assert!(plan.newest < plan.run, "a run at {} is folded twice", plan.run);
        assert!(plan.changed.len() <= folded.len(), "a fold changes rows that it does not have");
        self.pool.mark_dirty(&epoch_guard, &write);
        let bytes = write.leaf_mut(&tree.pages.table);
        bytes[NEWEST_OFFSET..].copy_from_slice(&plan.page[NEWEST_OFFSET..]);
        LeafMut::new(bytes).set_newest(plan.run);
        tree.pages.runs.note_folded_into(plan.newest, plan.run, plan.lower.as_deref(), plan.upper.as_deref());
        // A leaf that the run does not change may be folded after the run has left the list.
        let is_changed = !plan.changed.is_empty() || !plan.removed.is_empty();
        debug_assert!(!is_changed || tree.counts.kept().is_none(), "counts are kept while rows are in runs");
        if !undo.is_empty() {
            self.versions.add(tree.pages.id, page, plan.run, undo);
        }
        crate::coverage::mark!("a run was folded into a leaf");
        Ok(())
    }

    /// Folds all runs into the leaf of a row that a commit is about to change. Returns the leaf's upper fence.
    pub(super) async fn fold_above_late(
        &self,
        mode: WaitMode<'_>,
        row: &Row<'_>,
        purpose: Purpose,
    ) -> Result<Option<Vec<u8>>> {
        self.try_fold_above(mode, row.tree, row.key, purpose, &mut None).await.map_err(|error| self.fold_error(error))
    }

    fn fold_error(&self, error: FoldError) -> Error {
        match error {
            FoldError::Error(error) => error,
            FoldError::Versions(_) => Error::versions_in_memory(self.budget.limit_bytes(Account::Versions)),
        }
    }
}

/// Returns the rows after those in the same leaf as the first one, which ends at this fence.
fn after_leaf<'r, 'a>(rows: &'r [Row<'a>], upper: Option<&[u8]>) -> &'r [Row<'a>] {
    let keyspace = rows[0].tree.pages.id;
    assert!(upper.is_none_or(|upper| rows[0].key < upper), "a leaf is folded that does not cover its row");
    let is_covered = |row: &Row<'_>| row.tree.pages.id == keyspace && upper.is_none_or(|upper| row.key < upper);
    &rows[rows.partition_point(is_covered)..]
}

/// The maximum number of leaves into which a removal is folded before its progress is recorded.
const REMOVAL_LEAVES: usize = 64;

/// Returns the key from which a removal has to be folded next, after the leaf that ends at `upper`, or `None` if it is
/// folded whole.
fn after_fold(run: &Run, upper: Option<Vec<u8>>) -> Option<Vec<u8>> {
    assert!(!run.has_rows(), "a run with rows is folded as a removal");
    let upper = upper?;
    let range = run.removed.at_or_after(&upper)?;
    Some(upper.max(range.lower.clone()))
}

impl<L> Engine<L> {
    /// Records that a removal is folded into all leaves that it affects below `next`, or into all of them.
    fn finish_removal_to(&self, tree: &CountedTree, run: &Run, next: Option<Vec<u8>>) -> Result<()> {
        assert!(next.as_ref().is_none_or(|next| *next > run.freed_to), "a removal is folded backwards");
        let _epoch_guard = self.space.epoch_latch.shared();
        tree.check_dropped()?;
        if next.is_none() {
            crate::coverage::mark!("a removal was folded whole");
        }
        self.space.free_run_to(&tree.pages, run.timestamp, next);
        Ok(())
    }
}

impl Engine<Replaying> {
    /// Attaches a removal by replaying its log record.
    pub(crate) fn replay_removal(&self, tree: &CountedTree, removed: RemovedKeys, timestamp: Timestamp) -> Result<()> {
        assert!(
            timestamp <= self.clock.published(),
            "a removal at {timestamp} is replayed, which the log does not have"
        );
        self.make_room_for_replayed(tree)?;
        tree.counts.discard();
        let _epoch_guard = self.space.epoch_latch.exclusive();
        self.space.attach_run(&tree.pages, Run::removal(timestamp, removed));
        Ok(())
    }

    /// Folds removals of a keyspace until it may have one more.
    fn make_room_for_replayed(&self, tree: &CountedTree) -> Result<()> {
        while tree.pages.runs.are_many(|run| !run.has_rows(), REMOVAL_COUNT_MAX) {
            let oldest = tree.pages.runs.list().first().cloned();
            // Runs with rows stay until the database is open. The log has few of them.
            let Some(run) = oldest.filter(|run| !run.has_rows()) else { return Ok(()) };
            let mut next = Some(run.freed_to.clone());
            while let Some(from) = next {
                let mut secured = None;
                let folded = self.try_fold_above(WaitMode::Blocking, tree, &from, Purpose::Replay, &mut secured);
                let upper = ready(folded).map_err(|error| self.fold_error(error))?;
                next = after_fold(&run, upper);
            }
            self.finish_removal_to(tree, &run, None)?;
        }
        Ok(())
    }

    /// Folds all runs into the leaves that a commit of the log changes. The rows ascend.
    pub(super) async fn fold_above_replayed(&self, mut rows: &[Row<'_>]) -> Result<()> {
        while let Some(row) = rows.first() {
            if row.tree.pages.runs.is_empty() {
                rows = &rows[1..];
                continue;
            }
            let upper = self.fold_above_late(WaitMode::Blocking, row, Purpose::Replay).await?;
            rows = after_leaf(rows, upper.as_deref());
        }
        Ok(())
    }
}

impl<L> Engine<L> {
    /// Compares the rows that a commit depends on with the runs attached since: its own rows, or all rows that its
    /// transaction has locked. Fails if such a run has one of them, or a row that the transaction has read. Otherwise
    /// returns the timestamp up to which runs have been compared.
    pub(crate) async fn check_runs(
        &self,
        mode: WaitMode<'_>,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        seen: RowsSeen<'_>,
    ) -> Result<Timestamp> {
        // Read first: runs that are attached from here on are looked for again.
        let checked = self.clock.published();
        assert!(seen.since().is_none_or(|since| since <= checked), "a commit has seen what is not published");
        let (locked, seen) = match seen {
            RowsSeen::Of(locked, seen) => (Some(locked), *seen),
            seen => (None, seen),
        };
        match locked {
            None => {
                for row in rows {
                    self.check_row(mode, row.tree, row.key, seen).await?;
                }
            }
            Some(LockedRows { locks, open }) => {
                let mut keyspace: Option<Arc<OpenKeyspace>> = None;
                for (id, key) in locks.rows() {
                    if keyspace.as_ref().is_none_or(|keyspace| keyspace.tree.pages.id != id) {
                        keyspace = open(id);
                    }
                    if let Some(keyspace) = &keyspace {
                        self.check_row(mode, &keyspace.tree, key, seen).await?;
                    }
                }
            }
        }
        if let Some(reads) = reads {
            reads.set.check_runs(mode, reads.snapshot.timestamp).await?;
        }
        if let RowsSeen::Snapshot(snapshot) = seen {
            // If the snapshot has not been ended, no version was missing above.
            snapshot.check()?;
        }
        Ok(checked)
    }

    /// Fails if a run that was attached since has the row.
    async fn check_row(&self, mode: WaitMode<'_>, tree: &CountedTree, key: &[u8], seen: RowsSeen<'_>) -> Result<()> {
        mode.work(turn::ROW_UNITS).await;
        let is_changed = match seen {
            RowsSeen::Snapshot(snapshot) if tree.pages.runs.are_attached_since(snapshot.timestamp) => {
                self.changed_since(mode, tree, key, snapshot.timestamp).await?
            }
            RowsSeen::Newest(since) if tree.pages.runs.are_attached_since(since) => {
                tree.pool.awaiting(mode, |_| tree.may_runs_have(since, key)).await?
            }
            RowsSeen::Nothing | RowsSeen::Snapshot(_) | RowsSeen::Newest(_) | RowsSeen::Of(..) => false,
        };
        if is_changed {
            crate::coverage::mark!("a commit was overtaken by a bulk load");
            let reason = "a bulk load or a range delete has changed a row that this transaction locked";
            return Err(Error::Conflict { reason });
        }
        Ok(())
    }
}

impl Engine {
    /// Folds all runs into the leaves that a commit will change, so that it need not do so once it holds space in the
    /// log. The rows ascend.
    pub(super) async fn fold_above_rows(&self, mode: WaitMode<'_>, rows: &[Row<'_>]) -> Result<()> {
        let mut rows = rows;
        while let Some(row) = rows.first() {
            if row.tree.pages.runs.is_empty() {
                rows = &rows[1..];
                continue;
            }
            let upper = self.fold_above(mode, row.tree, row.key).await?;
            rows = after_leaf(rows, upper.as_deref());
        }
        Ok(())
    }

    /// Folds all runs into the leaf that covers the key. Waits for memory and disk space. Returns the leaf's upper
    /// fence.
    async fn fold_above(&self, mode: WaitMode<'_>, tree: &CountedTree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        /// The number of times that a fold on a full disk reclaims space before it fails.
        const RECLAIMS_MAX: u32 = 2;
        let mut reclaims = 0;
        // If this memory were given back before the next attempt, the attempt would be refused as long as others wait
        // for memory. Several callers could then take turns forever.
        let mut secured = None;
        loop {
            self.check_failure()?;
            // Other memory and space are waited for before the memory for versions.
            if secured.is_none() {
                self.secure_changes(mode, 0).await;
            }
            match self.try_fold_above(mode, tree, key, Purpose::Remove, &mut secured).await {
                Ok(upper) => return Ok(upper),
                Err(FoldError::Error(Error::DiskFull { .. })) if reclaims < RECLAIMS_MAX => {
                    reclaims += 1;
                    secured = None;
                    self.reclaim_space(mode).await?;
                }
                Err(FoldError::Error(error)) => return Err(error),
                Err(FoldError::Versions(bytes)) => secured = Some(self.secure_versions(mode, 1, bytes).await?),
            }
        }
    }

    /// Folds the next part of the oldest run of a keyspace, and frees the pages that are no longer needed. Returns
    /// `false` if there is no run to be folded.
    pub(crate) fn fold_next(&self, tree: &CountedTree, folding: Folding) -> Result<bool> {
        let mode = WaitMode::Blocking;
        let mut folding_from = tree.pages.runs.lock_folding();
        let oldest = tree.pages.runs.list().first().cloned();
        let is_due = |run: &Run| folding == Folding::Now || !self.is_seen_before(run.timestamp);
        let Some(run) = oldest.filter(is_due) else { return Ok(false) };
        if !run.has_rows() {
            self.fold_removal_part(tree, &run, &mut folding_from)?;
            return Ok(true);
        }
        let end = tree.pool.waiting(|_| tree.first_run_end(&run))?.upper;
        let mut folded_to = Some(run.freed_to.clone());
        // Fold the rows of one leaf of the run, and maybe more.
        while let Some(from) = folded_to.as_ref().filter(|folded_to| end.as_ref().is_none_or(|end| *folded_to < end)) {
            folded_to = match tree.pool.waiting(|_| tree.next_key_of_run(&run, from))? {
                Some(key) => {
                    let upper = ready(self.fold_above(mode, tree, &key))?;
                    self.merge_folded(tree, Some(&key));
                    upper
                }
                None => None,
            };
        }
        ready(self.free_run_to(mode, tree, run, folded_to.as_deref()))?;
        Ok(true)
    }

    /// Folds the oldest runs of the keyspace until another removal can be attached.
    pub(super) fn make_room_for_removal(&self, tree: &CountedTree) -> Result<()> {
        while tree.pages.runs.are_many(|run| !run.has_rows(), REMOVAL_COUNT_MAX) {
            crate::coverage::mark!("a range delete waited for the folding of an older one");
            self.fold_next(tree, Folding::Now)?;
        }
        Ok(())
    }

    /// Folds the next part of a removal, a few leaves. `last` is the first key of the leaf that was folded last.
    fn fold_removal_part(&self, tree: &CountedTree, run: &Run, last: &mut Option<Vec<u8>>) -> Result<()> {
        let mode = WaitMode::Blocking;
        let mut next = Some(run.freed_to.clone());
        for _ in 0..REMOVAL_LEAVES {
            let Some(from) = next else { break };
            let mut upper = ready(self.fold_above(mode, tree, &from))?;
            while let Some(unlinked) = self.unlink_after(tree, run, &from)? {
                upper = unlinked;
            }
            self.merge_folded(tree, last.as_deref());
            next = after_fold(run, upper);
            assert!(next.as_ref().is_none_or(|next| *next > from), "a removal is folded backwards");
            *last = Some(from);
        }
        if next.is_none() {
            self.merge_folded(tree, last.as_deref());
            *last = None;
        }
        self.finish_removal_to(tree, run, next)
    }

    /// Unlinks leaves whose rows a removal removes, if they need not be read. Begins after the leaf that covers the
    /// key, into which the removal is folded. Returns the upper fence of the last of these leaves, or `None` if there
    /// are none.
    fn unlink_after(&self, tree: &CountedTree, run: &Run, key: &[u8]) -> Result<Option<Option<Vec<u8>>>> {
        if self.is_seen_before(run.timestamp) {
            return Ok(None);
        }
        ready(self.secure_changes(WaitMode::Blocking, UNLINKED_LEAVES_MAX as u64));
        // The new version of the parent, and the leaf that takes over the range.
        match self.space.reserve(Purpose::Remove, 2 * tree.pages.page_bytes() as u64) {
            Ok(_reserved) => tree.pool.waiting(|_| tree.unlink_after(key, run.timestamp)),
            Err(Error::DiskFull { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Merges the leaf that covers the key with a neighbour if both are nearly empty.
    fn merge_folded(&self, tree: &CountedTree, key: Option<&[u8]>) {
        // A merge changes two nodes, replaces a third, and frees a page.
        let bytes = 4 * tree.pages.page_bytes() as u64;
        if let Some(key) = key
            && self.space.reserve(Purpose::Remove, bytes).is_ok()
        {
            tree.try_merge(key);
        }
    }

    /// Frees the leaves of a run that end at `folded_to` or before, and the nodes above that are no longer needed. All
    /// rows below this key are folded; `None` stands for all rows.
    async fn free_run_to(
        &self,
        mode: WaitMode<'_>,
        tree: &CountedTree,
        mut run: Run,
        folded_to: Option<&[u8]>,
    ) -> Result<()> {
        loop {
            let RunEnd { pages, upper } = tree.pool.awaiting(mode, |_| tree.first_run_end(&run)).await?;
            let is_folded = |upper: &[u8]| folded_to.is_none_or(|folded_to| upper <= folded_to);
            if !upper.as_deref().map_or(folded_to.is_none(), is_folded) {
                return Ok(());
            }
            assert!(!pages.is_empty(), "a run ends without pages");
            assert!(upper.as_deref().is_none_or(|upper| *upper > run.freed_to[..]), "a run is freed backwards");
            self.secure_changes(mode, pages.len() as u64).await;
            let epoch_guard = self.space.epoch_latch.shared();
            tree.check_dropped()?;
            self.space.free_run_to(&tree.pages, run.timestamp, upper.clone());
            for page in pages {
                self.free_run_page(&epoch_guard, tree, page)?;
            }
            drop(epoch_guard);
            match upper {
                Some(upper) => run.freed_to = upper,
                None => {
                    crate::coverage::mark!("a run was folded whole");
                    return Ok(());
                }
            }
        }
    }

    fn free_run_page(&self, epoch_guard: &EpochGuard<'_>, tree: &CountedTree, page: PageId) -> Result<()> {
        let pages = &tree.pages;
        loop {
            assert!(page != PageId::ROOT, "the root of the tree is freed with a run");
            match pages.table.load(page) {
                entry @ (PageEntry::OnDisk(_) | PageEntry::Reading(_)) => {
                    if self.pool.free_on_disk(epoch_guard, pages, page, entry) {
                        // Few pages of a run are inner nodes.
                        let rows = pages.leaves_on_disk.average_rows().map(|rows| rows as u32);
                        pages.leaves_on_disk.replace(rows, None);
                        return Ok(());
                    }
                }
                entry @ (PageEntry::Leaf(frame) | PageEntry::Immutable(frame)) => {
                    let page_key = PageKey { keyspace: pages.id, page };
                    let Some(write) = self.pool.frames.write(frame, page_key) else { continue };
                    if pages.table.load(page) == entry {
                        self.pool.append_due_image(epoch_guard, &write)?;
                        self.pool.free_page(epoch_guard, pages, write);
                        return Ok(());
                    }
                }
                entry => unreachable!("page {page} of a run is {entry:?}"),
            }
        }
    }
}
