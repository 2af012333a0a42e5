//! Latches the leaves of a commit, and validates its transaction's reads on the way.

use std::ops::Range;

use super::prepare::{LEAVES_AT_ONCE_MIN, PinnedLeaf, Removals, Row, rows_end};
use super::sink::Unready;
use crate::error::Result;
use crate::format::{PageId, Timestamp};
use crate::pool::{FrameRead, FrameWrite, ReclaimGuard, Stop};
use crate::space::{EpochGuard, FrameIndex};
use crate::tree::node::Leaf;
use crate::tree::{Incoming, Tree};
use crate::txn::engine::Engine;
use crate::txn::read_set::{Reads, Walk};
use crate::txn::versions::Versions;
/// The rows of a commit, and the reads of its transaction.
#[derive(Clone, Copy)]
pub(super) struct CommitRows<'a> {
    pub(super) rows: &'a [Row<'a>],
    /// The rows in the form that the tree accepts.
    pub(super) incoming: &'a [Incoming<'a>],
    pub(super) reads: Option<Reads<'a>>,
    /// No run attached up to this timestamp has changed a row that the commit must find unchanged.
    pub(super) since: Option<Timestamp>,
    /// The number of open snapshots that do not need the versions that the commit replaces.
    pub(super) own_snapshots: u64,
    /// The ranges that the commit removes.
    pub(super) removals: Option<&'a Removals<'a>>,
}

/// The next leaf of a commit in latching order.
struct NextLeaf<'a, 'k> {
    tree: &'a Tree,
    /// A key that the leaf covers.
    key: &'k [u8],
    /// `true` if the key is in the read set, `false` if it is the key of a row.
    is_read: bool,
}

/// The prefetch distance: while one leaf is latched, the pinned leaf this many positions ahead is prefetched into the
/// processor's cache.
const LEAVES_AHEAD: usize = 4;

/// The leaves of a commit's rows and of its transaction's read set, in latching order: by (keyspace, key).
struct LeavesInOrder<'a> {
    work: &'a CommitRows<'a>,
    /// The first row whose leaf has not been passed yet.
    row: usize,
    walk: Walk<'a>,
    /// The pinned leaves that have not been passed yet.
    pinned: &'a [PinnedLeaf],
}

impl<'a> LeavesInOrder<'a> {
    fn new(work: &'a CommitRows<'a>, pinned: &'a [PinnedLeaf]) -> LeavesInOrder<'a> {
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

    /// Latches the next leaf exclusively. Usually, it is still in the frame where it was pinned.
    fn latch<'t>(
        &self,
        tree: &'t Tree,
        key: &[u8],
        is_held_here: &impl Fn(FrameIndex) -> bool,
    ) -> Result<FrameWrite<'t>, Stop> {
        if let Some(upcoming) = self.pinned.get(LEAVES_AHEAD) {
            tree.pool.frames.prefetch(upcoming.frame);
        }
        let pinned = self.pinned.first().filter(|leaf| leaf.row == self.row);
        // The pages of a dropped keyspace are still in their frames for a while, but no descent leads to them.
        let pinned = pinned.filter(|_| !tree.pages.is_dropped());
        match pinned.and_then(|leaf| tree.write_leaf_at(leaf.page, leaf.frame, key, is_held_here)) {
            Some(write) => Ok(write),
            None => tree.write_leaf(key, is_held_here),
        }
    }

    /// Passes the next leaf, which the caller has latched. Validates the reads in it, and returns the rows that it
    /// covers.
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

/// The latched and validated leaves of a commit, with room for its rows. They may be changed in the current epoch.
/// Until the commit has its timestamp, no other commit can change rows that this transaction has read.
pub(super) struct Latched<'e> {
    pub(super) writes: Vec<(FrameWrite<'e>, Range<usize>)>,
    /// Leaves that the transaction has read and that the commit does not change.
    pub(super) reads: Vec<FrameRead<'e>>,
    pub(super) _reclaim_guard: ReclaimGuard<'e>,
    pub(super) epoch_guard: EpochGuard<'e>,
}

impl Latched<'_> {
    fn has(&self, frame: FrameIndex) -> bool {
        self.reads.iter().any(|read| read.frame() == frame)
            || self.writes.iter().any(|(write, _)| write.frame() == frame)
    }
}

impl<L> Engine<L> {
    pub(super) fn latch_all<'e>(
        &'e self,
        work: &'e CommitRows<'_>,
        pinned: &'e [PinnedLeaf],
    ) -> Result<Latched<'e>, Unready> {
        let epoch_latch = &self.space.epoch_latch;
        let mut latched = Latched {
            epoch_guard: if work.removals.is_some() { epoch_latch.exclusive() } else { epoch_latch.shared() },
            _reclaim_guard: self.pool.reclaim_guard(),
            reads: Vec::new(),
            writes: Vec::with_capacity(work.rows.len().min(LEAVES_AT_ONCE_MIN)),
        };
        if self.is_overtaken(work.since) {
            return Err(Unready::Overtaken);
        }
        if let Some(removals) = work.removals {
            self.begin_removals(removals)?;
        }
        let mut leaves = LeavesInOrder::new(work, pinned);
        while let Some(NextLeaf { tree, key, is_read }) = leaves.next() {
            let is_held_here = |frame| latched.has(frame);
            if is_read {
                let read = tree.read_leaf_while_holding(key, &is_held_here)?;
                let leaf = Leaf::new(&read);
                if !leaves.has_row_in(tree, &leaf) {
                    let rows = leaves.pass(&self.versions, tree, read.page(), &leaf).map_err(Unready::Error)?;
                    assert!(rows.is_empty(), "a leaf with rows to change is latched for reading");
                    let is_after = |last: &FrameRead<'_>| {
                        let keyspace = last.header().page_key().map(|last| last.keyspace);
                        (keyspace, Leaf::new(last).lower_fence()) < (Some(tree.pages.id), leaf.lower_fence())
                    };
                    debug_assert!(latched.reads.last().is_none_or(is_after), "leaves are latched out of order");
                    latched.reads.push(read);
                    continue;
                }
            }
            let write = leaves.latch(tree, key, &is_held_here)?;
            debug_assert!(!latched.has(write.frame()), "a leaf is latched twice");
            let leaf = Leaf::new(&write);
            let rows = leaves.pass(&self.versions, tree, write.page(), &leaf).map_err(Unready::Error)?;
            if !rows.is_empty() {
                if tree.has_runs_above(&leaf) {
                    return Err(Unready::Unfolded(rows.start));
                }
                if !crate::tree::fits(&leaf, &work.incoming[rows.clone()]) {
                    return Err(Unready::LeafFull(rows));
                }
                self.pool.prepare_change(&latched.epoch_guard, &write)?;
            }
            let is_after = |(last, _): &(FrameWrite<'_>, _)| {
                let keyspace = last.page_key().keyspace;
                (keyspace, Leaf::new(last).lower_fence()) < (tree.pages.id, leaf.lower_fence())
            };
            debug_assert!(latched.writes.last().is_none_or(is_after), "leaves are latched out of order");
            latched.writes.push((write, rows));
        }
        debug_assert_eq!(
            latched.writes.iter().map(|(_, rows)| rows.len()).sum::<usize>(),
            work.rows.len(),
            "rows are left whose leaves are not latched"
        );
        Ok(latched)
    }
}
