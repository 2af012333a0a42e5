//! Applies a commit: latches its leaves, takes its timestamp, changes its rows.
//!
//! The first step latches every leaf and validates the transaction's reads on the way; the result is a [`Latched`]. If
//! a leaf has changed since it was prepared, the attempt ends with no change, and [`Engine::apply_when_ready`] makes
//! the leaf ready and retries. Then the [`CommitSink`] assigns the timestamp, and [`Latched::apply`] changes the rows.
//! `apply` has no result, because once the timestamp is assigned, nothing waits, fails or can be cancelled.

use super::latch::{CommitRows, Latched};
use super::prepare::{MediumValue, MediumValues, PinnedLeaf, Prepared, Row};
use super::sink::{CommitSink, RowsSeen, Unready};
use crate::counts::RowChange;
use crate::error::Result;
use crate::format::node::LargeRef;
use crate::format::{ExtentAddress, PageId, Timestamp, ValueId};
use crate::pool::{FrameWrite, Provider};
use crate::space::{EpochGuard, PageEntry, PageSpace};
use crate::task::{WaitMode, turn};
use crate::tree::node::{Leaf, LeafMut, RowValue};
use crate::txn::engine::Engine;
use crate::txn::undo::{LeafUndo, UndoRecord};
use crate::txn::write_set::Change;

/// Changes a row. `found` is the result of searching its leaf, which has room for the change. The commit is not
/// published yet.
#[inline]
pub(super) fn change_row(
    leaf: &mut LeafMut<'_>,
    row: &Row<'_>,
    timestamp: Timestamp,
    found: Result<usize, usize>,
    value: Option<RowValue<'_>>,
) {
    debug_assert_eq!(leaf.as_leaf().search(row.key), found, "a row is changed that another has moved");
    match (found, value) {
        (Ok(at), Some(value)) => {
            leaf.replace(at, value).expect("room was checked");
            row.tree.counts.record_change(row.key, timestamp, RowChange::Replaced);
        }
        (Err(at), Some(value)) => {
            leaf.insert(at, row.key, value).expect("room was checked");
            row.tree.counts.record_change(row.key, timestamp, RowChange::Inserted);
        }
        (Ok(at), None) => {
            leaf.remove(at);
            row.tree.counts.record_change(row.key, timestamp, RowChange::Removed);
        }
        (Err(_), None) => {}
    }
}

impl Latched<'_> {
    /// Returns the values that the rows have before the commit, in the order of the rows.
    fn old_values<'l>(&'l self, rows: &'l [Row<'_>]) -> impl Iterator<Item = Option<RowValue<'l>>> {
        self.writes.iter().flat_map(|(write, range)| {
            let leaf = Leaf::new(write);
            rows[range.clone()].iter().map(move |row| leaf.search(row.key).ok().map(|at| leaf.value(at)))
        })
    }

    /// Changes the rows, retains their old versions, and marks the commit as applied.
    fn apply<L>(
        self,
        engine: &Engine<L>,
        work: &CommitRows<'_>,
        medium: &[Option<MediumValue>],
        timestamp: Timestamp,
        sink: &impl CommitSink,
    ) {
        let rows = work.rows;
        let Latched { mut writes, reads, _reclaim_guard, epoch_guard } = self;
        let mut undo_records = Vec::with_capacity(writes.len());
        drop(reads);
        // A leaf that was split just before it was latched may contain none of the rows.
        for (write, range) in writes.iter_mut().filter(|(_, range)| !range.is_empty()) {
            let medium = medium.get(range.start..).unwrap_or_default();
            let (rows, page_key) = (&rows[range.clone()], write.page_key());
            let undo = match work.removals.and_then(|removals| removals.of(page_key.keyspace)) {
                None => engine.change_leaf(&epoch_guard, write, rows, medium, timestamp, sink),
                Some(removed) => {
                    engine.change_leaf_removing(&epoch_guard, write, rows, medium, removed, timestamp, sink)
                }
            };
            if !undo.is_empty() {
                undo_records.push(LeafUndo { page_key, undo });
            }
        }
        let is_visible = sink.mark_applied(timestamp);
        engine.keep_versions(undo_records, timestamp, is_visible, work.own_snapshots);
        drop(writes);
    }
}

impl<L> Engine<L> {
    /// Applies a commit once every leaf is in memory and has room. Reads or splits the leaves that are not ready, one
    /// at a time. If the commit has a single row, its leaf is never pinned in advance, so it is always made ready here.
    pub(super) async fn apply_when_ready<S: CommitSink>(
        &self,
        mode: WaitMode<'_>,
        prepared: Prepared<'_, '_>,
        mut medium: MediumValues<'_>,
        seen: RowsSeen<'_>,
        mut sink: S,
    ) -> Result<S::Committed> {
        let Prepared { rows, reads, incoming, pinned, removals, .. } = prepared;
        assert!(medium.values.len() <= rows.len(), "a medium value has no row");
        assert_eq!(incoming.len(), rows.len());
        let (since, own_snapshots) = (seen.since(), seen.own_snapshots());
        let mut work = CommitRows { rows, incoming: &incoming, reads, since, own_snapshots, removals };
        let mut pinned_reads = self.pin_reads(mode, reads, &pinned).await?;
        let mut provider = Provider::new(mode, &self.pool);
        loop {
            mode.work(turn::ROW_UNITS * rows.len() as u32).await;
            match self.try_apply(&work, &pinned.leaves, &medium.values, &mut sink) {
                Ok(committed) => {
                    medium.is_committed = true;
                    return Ok(committed);
                }
                Err(Unready::Error(error)) => return Err(error),
                Err(Unready::Needs(needs)) => {
                    // This is usual for a single row. The leaves of several rows are pinned, so in that case one of the
                    // leaves was split after it was pinned.
                    crate::coverage::mark!("a page was missing when a commit was applied");
                    provider.provide(&needs).await?;
                    // A leaf of the read set may have been split. All leaves of the read set have to be in memory at
                    // the same time.
                    drop(pinned_reads);
                    pinned_reads = self.pin_reads(mode, reads, &pinned).await?;
                }
                Err(Unready::LeafFull(range)) => rows[range.start].tree.split_for(mode, &incoming[range]).await?,
                Err(Unready::Unfolded(row)) => drop(self.fold_above_late(mode, &rows[row], S::FOLD_PURPOSE).await?),
                Err(Unready::Overtaken) => work.since = Some(self.check_runs(mode, rows, reads, seen).await?),
                Err(Unready::LogSpace | Unready::Memory) => unreachable!("a commit lacks what it has reserved"),
            }
        }
    }

    /// Latches all leaves, takes the timestamp and changes the rows. If anything is missing, returns what is missing
    /// and changes nothing.
    pub(super) fn try_apply<S: CommitSink>(
        &self,
        work: &CommitRows<'_>,
        pinned: &[PinnedLeaf],
        medium: &[Option<MediumValue>],
        sink: &mut S,
    ) -> Result<S::Committed, Unready> {
        let latched = self.latch_all(work, pinned)?;
        sink.record_old_values(work.rows, latched.old_values(work.rows));
        // Fails if the log has been sealed or has failed since the reservation.
        let (timestamp, committed) = sink.take_timestamp(&latched.epoch_guard)?;
        if let Some(removals) = work.removals {
            self.attach_removals(removals, timestamp);
        }
        latched.apply(self, work, medium, timestamp, sink);
        Ok(committed)
    }

    /// Adds the undo records of a commit to its leaves, which are still latched. If the commit is visible already and
    /// no snapshot is open but `own_snapshots`, no reader will need them (docs/concurrency.md). Then it adds only those
    /// that name large values, which have to be freed.
    fn keep_versions(&self, undo_records: Vec<LeafUndo>, timestamp: Timestamp, is_visible: bool, own_snapshots: u64) {
        assert!(!is_visible || timestamp <= self.clock.visible(), "commit {timestamp} is taken for a visible one");
        assert!(own_snapshots <= 1, "a transaction has {own_snapshots} snapshots");
        let are_needed = !is_visible || self.snapshots.are_open_besides(own_snapshots);
        if !are_needed {
            crate::coverage::mark!("a commit of several rows left no version, since no snapshot needed it");
        }
        for LeafUndo { page_key, undo } in undo_records {
            if are_needed || undo.names_values() {
                self.versions.add(page_key.keyspace, page_key.page, timestamp, undo);
            }
        }
    }

    /// Changes the rows of one leaf. Returns their old versions. `medium` begins with the entry for the first of these
    /// rows.
    pub(super) fn change_leaf<S: CommitSink>(
        &self,
        epoch_guard: &EpochGuard<'_>,
        write: &mut FrameWrite<'_>,
        rows: &[Row<'_>],
        medium: &[Option<MediumValue>],
        timestamp: Timestamp,
        sink: &S,
    ) -> UndoRecord {
        let pages = &rows[0].tree.pages;
        self.pool.mark_dirty(epoch_guard, write);
        let mut leaf = LeafMut::new(write.leaf_mut(&pages.table));
        debug_assert!(rows.iter().all(|row| leaf.as_leaf().covers(row.key)), "a row is changed in another's leaf");
        let mut undo = UndoRecord::new();
        for (index, row) in rows.iter().enumerate() {
            let found = leaf.as_leaf().search(row.key);
            let value = self.row_value(epoch_guard, row, medium.get(index).copied().flatten());
            let replaced = found.ok().map(|at| leaf.as_leaf().value(at));
            if (replaced.is_some() || value.is_some()) && sink.keeps((pages.id, row.key), replaced.as_ref()) {
                undo.push(row.key, replaced);
            }
            change_row(&mut leaf, row, timestamp, found, value);
        }
        debug_assert!(!S::IN_ORDER || leaf.as_leaf().newest() < timestamp, "commit {timestamp} comes late to its leaf");
        let newest = leaf.as_leaf().newest().max(timestamp);
        leaf.set_newest(newest);
        undo
    }

    /// Returns the row's new value in the form that its leaf stores, or `None` if the row is removed. Assigns page
    /// numbers to the extents of a value that is not inline.
    pub(super) fn row_value<'r>(
        &self,
        epoch_guard: &EpochGuard<'_>,
        row: &Row<'r>,
        medium: Option<MediumValue>,
    ) -> Option<RowValue<'r>> {
        let pages = &row.tree.pages;
        match (row.change, medium) {
            (Change::Remove, None) => None,
            (Change::Put(value), None) => Some(RowValue::Inline(value)),
            (Change::Put(value), Some(MediumValue { value_id, address })) => {
                let length = value.len() as u64;
                Some(RowValue::Large(self.attach_value(epoch_guard, pages, length, value_id, &[address])))
            }
            (Change::PutLarge(value), None) => {
                let addresses = value.take_addresses(&self.pool, epoch_guard);
                let large = self.attach_value(epoch_guard, pages, value.length, value.value_id, &addresses);
                value.set_reference(epoch_guard, pages.id, large);
                Some(RowValue::Large(large))
            }
            (Change::Remove | Change::PutLarge(_), Some(_)) => unreachable!("a medium value is a row's that puts it"),
        }
    }

    /// Assigns page numbers to a value's extents.
    fn attach_value(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        length: u64,
        value_id: ValueId,
        addresses: &[ExtentAddress],
    ) -> LargeRef {
        let chunk_count = u32::try_from(addresses.len()).expect("fewer than 2^32 chunks");
        pages.expect_values();
        let first_page = if addresses.is_empty() { PageId::NONE } else { pages.table.allocate(chunk_count) };
        for (page, &address) in (first_page.0..).zip(addresses) {
            pages.table.store(PageId(page), PageEntry::OnDisk(address));
            self.space.record(epoch_guard.epoch(), pages.id, PageId(page), address);
        }
        let reference = LargeRef { length, id: value_id, first_page, chunk_count };
        assert!(reference.is_plausible(), "{reference:?} could not be read again");
        reference
    }
}
