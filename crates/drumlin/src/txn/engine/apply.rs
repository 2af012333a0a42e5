//! Applying a commit: latching its leaves, taking its timestamp, changing its rows.
//!
//! The first step latches every leaf and validates the transaction's reads on the way; the result is a [`Latched`]. If
//! a leaf is not as prepared, the attempt ends with nothing changed, and [`Engine::apply_when_ready`] makes the leaf
//! ready and tries again. Then the [`CommitSink`] assigns the timestamp, and [`Latched::apply`] changes the rows.
//! `apply` returns nothing, because from the timestamp on nothing waits, fails or can be cancelled.

use std::ops::Range;

use super::Engine;
use super::prepare::{LEAVES_AT_ONCE, MediumValue, MediumValues, PinnedLeaf, Prepared, Row, rows_end};
use super::sink::{CommitSink, Unready};
use crate::counts::RowChange;
use crate::error::Result;
use crate::format::node::LargeRef;
use crate::format::{ExtentAddress, PageId, Timestamp, ValueId};
use crate::pool::{FrameRead, FrameWrite, ReclaimGuard, Stop};
use crate::space::{EpochGuard, FrameIndex, PageEntry, PageSpace};
use crate::task::{WaitMode, turn};
use crate::tree::node::{Leaf, LeafMut, RowValue};
use crate::tree::{Incoming, Provider, Tree};
use crate::txn::read_set::{Reads, Walk};
use crate::txn::versions::{UndoRecord, Versions};
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

/// The rows of a commit, and the reads of its transaction.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) rows: &'a [Row<'a>],
    /// The rows in the form that the tree takes.
    pub(super) incoming: &'a [Incoming<'a>],
    pub(super) reads: Option<Reads<'a>>,
}

/// The next leaf of a commit in latching order.
struct NextLeaf<'a, 'k> {
    tree: &'a Tree,
    /// A key that the leaf covers.
    key: &'k [u8],
    /// `true` for a key of the read set, `false` for a key of a row.
    is_read: bool,
}

/// While one leaf is latched, the pinned leaf this many positions ahead is prefetched into the processor's cache.
const LEAVES_AHEAD: usize = 4;

/// The leaves of a commit's rows and of its transaction's read set, in the order of (keyspace, key) in which they are
/// latched.
struct LeavesInOrder<'a> {
    work: &'a Work<'a>,
    /// The first row whose leaf was not passed yet.
    row: usize,
    walk: Walk<'a>,
    /// The pinned leaves that were not passed yet.
    pinned: &'a [PinnedLeaf],
}

impl<'a> LeavesInOrder<'a> {
    fn new(work: &'a Work<'a>, pinned: &'a [PinnedLeaf]) -> LeavesInOrder<'a> {
        LeavesInOrder { work, row: 0, walk: Walk::new(work.reads), pinned }
    }

    fn next(&self) -> Option<NextLeaf<'a, '_>> {
        let row = self.work.rows.get(self.row);
        match (row, self.walk.next()) {
            (Some(row), Some((tree, key))) if (tree.pages.id, key) < row.order() => {
                Some(NextLeaf { tree, key, is_read: true })
            }
            (Some(row), _) => Some(NextLeaf { tree: row.tree, key: row.key, is_read: false }),
            (None, read) => read.map(|(tree, key)| NextLeaf { tree, key, is_read: true }),
        }
    }

    /// Returns `true` if the commit changes a row of the leaf.
    fn has_row_in(&self, tree: &Tree, leaf: &Leaf<'_>) -> bool {
        let row = self.work.rows.get(self.row);
        row.is_some_and(|row| row.tree.pages.id == tree.pages.id && leaf.covers(row.key))
    }

    /// Latches the next leaf exclusively. Usually it is still in the frame in which it was pinned.
    fn latch<'t>(
        &self,
        tree: &'t Tree,
        key: &[u8],
        is_mine: &impl Fn(FrameIndex) -> bool,
    ) -> Result<FrameWrite<'t>, Stop> {
        if let Some(upcoming) = self.pinned.get(LEAVES_AHEAD) {
            tree.pool.frames.prefetch(upcoming.frame);
        }
        let pinned = self.pinned.first().filter(|leaf| leaf.row == self.row);
        match pinned.and_then(|leaf| tree.write_leaf_at(leaf.page, leaf.frame, key, is_mine)) {
            Some(write) => Ok(write),
            None => tree.write_leaf(key, is_mine),
        }
    }

    /// Passes the next leaf, which is latched. Validates the reads in it, and returns the rows that it covers.
    fn pass(&mut self, versions: &Versions, tree: &Tree, page: PageId, leaf: &Leaf<'_>) -> Result<Range<usize>> {
        let keyspace = tree.pages.id;
        let is_read = self.walk.pass(keyspace, leaf.upper_fence());
        if is_read {
            let reads = self.work.reads.expect("nothing is walked along but what was read");
            reads.validate(versions, &tree.pages, page, leaf)?;
        }
        let start = self.row;
        self.row = rows_end(self.work.rows, start, tree, leaf);
        debug_assert!(is_read || start < self.row, "a leaf is passed in which nothing was read and nothing changes");
        let passed = self.pinned.iter().take_while(|leaf| leaf.row < self.row).count();
        self.pinned = &self.pinned[passed..];
        Ok(start..self.row)
    }
}

/// The leaves of a commit, which are latched, validated, and have room for its rows. They may be changed in the current
/// epoch. Until the commit has its timestamp, no other commit can change rows that its transaction has read.
pub(super) struct Latched<'e> {
    writes: Vec<(FrameWrite<'e>, Range<usize>)>,
    /// Leaves that were read and will not change.
    reads: Vec<FrameRead<'e>>,
    _reclaim_guard: ReclaimGuard<'e>,
    epoch_guard: EpochGuard<'e>,
}

impl Latched<'_> {
    fn has(&self, frame: FrameIndex) -> bool {
        self.reads.iter().any(|read| read.frame() == frame)
            || self.writes.iter().any(|(write, _)| write.frame() == frame)
    }

    /// Changes the rows, keeps their old versions, and marks the commit applied.
    fn apply<L>(
        self,
        engine: &Engine<L>,
        rows: &[Row<'_>],
        medium: &[Option<MediumValue>],
        timestamp: Timestamp,
        sink: &impl CommitSink,
    ) {
        let Latched { mut writes, reads, _reclaim_guard, epoch_guard } = self;
        drop(reads);
        // A leaf that was split just before it was latched may hold none of the rows.
        for (write, range) in writes.iter_mut().filter(|(_, range)| !range.is_empty()) {
            let medium = medium.get(range.start..).unwrap_or_default();
            engine.change_leaf(&epoch_guard, write, &rows[range.clone()], medium, timestamp, sink);
        }
        sink.mark_applied(timestamp);
        drop(writes);
    }
}

impl<L> Engine<L> {
    /// Applies a commit once every leaf is in memory and has room. Brings in or splits the leaves that are not ready,
    /// one at a time. The leaf of a single row, which is never pinned, is always made ready here.
    pub(super) async fn apply_when_ready<S: CommitSink>(
        &self,
        mode: WaitMode<'_>,
        prepared: Prepared<'_, '_>,
        mut medium: MediumValues<'_>,
        mut sink: S,
    ) -> Result<S::Committed> {
        let Prepared { rows, reads, incoming, pinned, .. } = prepared;
        assert!(medium.values.len() <= rows.len(), "a medium value has no row");
        assert_eq!(incoming.len(), rows.len());
        let work = Work { rows, incoming: &incoming, reads };
        let mut pinned_reads = self.pin_reads(mode, reads, &pinned).await?;
        let mut provider = Provider::new(mode, &self.pool);
        loop {
            mode.work(turn::ROW * rows.len() as u32).await;
            match self.try_apply(&work, &pinned.leaves, &medium.values, &mut sink) {
                Ok(committed) => {
                    medium.is_committed = true;
                    return Ok(committed);
                }
                Err(Unready::Error(error)) => return Err(error),
                Err(Unready::Needs(needs)) => {
                    // Usual for a single row. The leaves of several rows are pinned, so one of them was split since.
                    crate::coverage::mark!("a commit lacked a page when it was to be applied");
                    provider.provide(&needs).await?;
                    // A leaf of the read set may have been split. All of them have to be in memory at the same time.
                    drop(pinned_reads);
                    pinned_reads = self.pin_reads(mode, reads, &pinned).await?;
                }
                Err(Unready::Room(range)) => rows[range.start].tree.make_room(mode, &incoming[range]).await?,
                Err(Unready::LogSpace | Unready::Memory) => unreachable!("a commit lacks what it has reserved"),
            }
        }
    }

    /// Latches all leaves, takes the timestamp and changes the rows. If something is missing, returns it with nothing
    /// changed.
    pub(super) fn try_apply<S: CommitSink>(
        &self,
        work: &Work<'_>,
        pinned: &[PinnedLeaf],
        medium: &[Option<MediumValue>],
        sink: &mut S,
    ) -> Result<S::Committed, Unready> {
        let latched = self.latch_all(work, pinned)?;
        // Fails if the log was sealed or has failed since the reservation.
        let (timestamp, committed) = sink.take_timestamp(&latched.epoch_guard)?;
        latched.apply(self, work.rows, medium, timestamp, sink);
        Ok(committed)
    }

    fn latch_all<'e>(&'e self, work: &'e Work<'_>, pinned: &'e [PinnedLeaf]) -> Result<Latched<'e>, Unready> {
        let mut latched = Latched {
            epoch_guard: self.space.epoch_latch.shared(),
            _reclaim_guard: self.pool.reclaim_guard(),
            reads: Vec::new(),
            writes: Vec::with_capacity(work.rows.len().min(LEAVES_AT_ONCE)),
        };
        let mut leaves = LeavesInOrder::new(work, pinned);
        while let Some(NextLeaf { tree, key, is_read }) = leaves.next() {
            let is_mine = |frame| latched.has(frame);
            if is_read {
                let read = tree.read_leaf_beside(key, &is_mine)?;
                let leaf = Leaf::new(&read);
                if !leaves.has_row_in(tree, &leaf) {
                    let rows = leaves.pass(&self.versions, tree, read.page(), &leaf).map_err(Unready::Error)?;
                    assert!(rows.is_empty(), "a leaf with rows to change is latched for reading");
                    let is_behind = |last: &FrameRead<'_>| {
                        let keyspace = last.header().page_key().map(|last| last.keyspace);
                        (keyspace, Leaf::new(last).lower_fence()) < (Some(tree.pages.id), leaf.lower_fence())
                    };
                    debug_assert!(latched.reads.last().is_none_or(is_behind), "leaves are latched out of order");
                    latched.reads.push(read);
                    continue;
                }
            }
            let write = leaves.latch(tree, key, &is_mine)?;
            debug_assert!(!latched.has(write.frame()), "a leaf is latched twice");
            let leaf = Leaf::new(&write);
            let rows = leaves.pass(&self.versions, tree, write.page(), &leaf).map_err(Unready::Error)?;
            if !rows.is_empty() {
                if !crate::tree::has_room(&leaf, &work.incoming[rows.clone()]) {
                    return Err(Unready::Room(rows));
                }
                self.pool.prepare_change(&latched.epoch_guard, &write)?;
            }
            let is_behind = |(last, _): &(FrameWrite<'_>, _)| {
                let keyspace = last.page_key().keyspace;
                (keyspace, Leaf::new(last).lower_fence()) < (tree.pages.id, leaf.lower_fence())
            };
            debug_assert!(latched.writes.last().is_none_or(is_behind), "leaves are latched out of order");
            latched.writes.push((write, rows));
        }
        debug_assert_eq!(
            latched.writes.iter().map(|(_, rows)| rows.len()).sum::<usize>(),
            work.rows.len(),
            "rows are left whose leaves are not latched"
        );
        Ok(latched)
    }

    /// Changes the rows of one leaf. `medium` begins with the entry of the first of these rows.
    fn change_leaf<S: CommitSink>(
        &self,
        epoch_guard: &EpochGuard<'_>,
        write: &mut FrameWrite<'_>,
        rows: &[Row<'_>],
        medium: &[Option<MediumValue>],
        timestamp: Timestamp,
        sink: &S,
    ) {
        let pages = &rows[0].tree.pages;
        let page = write.page();
        self.pool.mark_dirty(epoch_guard, write);
        let mut leaf = LeafMut::new(write.leaf_mut(&pages.table));
        debug_assert!(rows.iter().all(|row| leaf.as_leaf().covers(row.key)), "a row is changed in another's leaf");
        let mut undo = UndoRecord::new();
        for (index, row) in rows.iter().enumerate() {
            let found = leaf.as_leaf().search(row.key);
            let value = self.place_value(epoch_guard, row, medium.get(index).copied().flatten());
            let replaced = found.ok().map(|at| leaf.as_leaf().value(at));
            if (replaced.is_some() || value.is_some()) && sink.keeps(replaced.as_ref()) {
                undo.push(row.key, replaced);
            }
            change_row(&mut leaf, row, timestamp, found, value);
        }
        debug_assert!(!S::IN_ORDER || leaf.as_leaf().newest() < timestamp, "commit {timestamp} comes late to its leaf");
        let newest = leaf.as_leaf().newest().max(timestamp);
        leaf.set_newest(newest);
        if !undo.is_empty() {
            self.versions.add(pages.id, page, timestamp, undo);
        }
    }

    /// Returns the row's new value in the form in which its leaf stores it; `None` if the row is removed. Assigns page
    /// numbers to the extents of a value that is not inline.
    pub(super) fn place_value<'r>(
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
                let large = self.attach_value(epoch_guard, pages, value.length, value.value_id, &value.addresses);
                value.set_reference(epoch_guard, large);
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
