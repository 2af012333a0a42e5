//! Prepares a commit: the steps that may wait. Appends medium values. If there are several rows, also reads and pins
//! their leaves and makes room in them.
//!
//! The leaf of a single row is neither read nor pinned here. Usually it is in memory and has room.
//! [`apply_when_ready`](Engine::apply_when_ready) checks this under the latch, which it has to acquire anyway. Pinning
//! pays off only with several leaves, if one could be evicted while another is read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::counts::CountedTree;
use crate::error::{Error, Result};
use crate::format::node::LARGE_REF_BYTES;
use crate::format::{ExtentAddress, KeyspaceId, PageId, ValueId, record};
use crate::pool::{FrameRead, Needs, Pool, Provider, Stop};
use crate::space::runs::RemovedKeys;
use crate::space::{FrameIndex, Space};
use crate::task::{WaitMode, turn};
use crate::tree::node::Leaf;
use crate::tree::{Finger, Incoming, Target, Tree};
use crate::txn::engine::Engine;
use crate::txn::read_set::{Reads, Walk};
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::undo::{undo_bytes_max, version_bytes_max};
use crate::txn::values;
use crate::txn::write_set::Change;

/// A row that a commit changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) tree: &'a CountedTree,
    pub(crate) key: &'a [u8],
    pub(crate) change: Change<'a>,
}

impl<'a> Row<'a> {
    /// Returns the row's position in the order of (keyspace, key).
    pub(super) fn order(&self) -> (KeyspaceId, &'a [u8]) {
        (self.tree.pages.id, self.key)
    }
}

/// The ranges that a commit removes.
#[derive(Clone, Copy)]
pub(crate) struct Removals<'a> {
    /// The keyspaces and their removed ranges, in ascending order.
    pub(crate) list: &'a [(&'a CountedTree, &'a RemovedKeys)],
    /// If set, no other commit may have changed a row of the ranges since this snapshot.
    pub(crate) snapshot: Option<&'a SnapshotHandle>,
    /// The value of [`Spilled::published`](crate::txn::spilled::Spilled::published) when the commit began.
    pub(crate) spilled_published: u64,
    /// Returns `true` if a prepared transaction has locked a row with one of these keys.
    pub(crate) meets_prepared: &'a (dyn Fn(KeyspaceId, &RemovedKeys) -> bool + Sync),
}

impl Removals<'_> {
    /// Returns the size of the operations that record the ranges.
    pub(crate) fn record_bytes(&self) -> usize {
        let ranges = self.list.iter().flat_map(|(_, removed)| removed.ranges());
        ranges
            .map(|range| record::REMOVE_RANGE_BYTES + range.lower.len() + range.upper.as_ref().map_or(0, Vec::len))
            .sum()
    }

    pub(super) fn of(&self, keyspace: KeyspaceId) -> Option<&RemovedKeys> {
        let at = self.list.binary_search_by_key(&keyspace, |(tree, _)| tree.pages.id).ok()?;
        Some(self.list[at].1)
    }
}

/// The minimum number of leaves that a commit reads together.
pub(super) const LEAVES_AT_ONCE_MIN: usize = 64;
/// The maximum number of leaves that a commit reads together. With more leaves, more reads are in flight.
const LEAVES_AT_ONCE_MAX: usize = 1024;

/// The number of leaves that are prefetched into the processor's cache before they are pinned.
/// Measured: decision 023, together with the other changes described there.
const LOCATED_LEAVES: usize = 16;

/// A leaf that has been located and is about to be pinned.
struct Located {
    /// The first of the commit's rows that the leaf appears to cover.
    row: usize,
    found: Result<Option<(PageId, FrameIndex)>, Stop>,
}

/// A leaf that a commit has pinned.
#[derive(Clone, Copy)]
pub(super) struct PinnedLeaf {
    /// The first of the commit's rows that the leaf covered when it was pinned.
    pub(super) row: usize,
    pub(super) page: PageId,
    pub(super) frame: FrameIndex,
}

/// A value in its own extent whose row has not been committed yet.
#[derive(Clone, Copy)]
pub(super) struct MediumValue {
    pub(super) value_id: ValueId,
    pub(super) address: ExtentAddress,
}

/// The leaves that a commit has pinned during its preparation to protect them from eviction, in the order of rows.
pub(super) struct PinnedLeaves<'p> {
    pool: &'p Pool,
    pub(super) leaves: Vec<PinnedLeaf>,
}

impl<'p> PinnedLeaves<'p> {
    fn new(pool: &'p Pool) -> PinnedLeaves<'p> {
        PinnedLeaves { pool, leaves: Vec::new() }
    }

    /// Returns the bytes of the pinned leaves.
    pub(super) fn bytes(&self) -> u64 {
        self.leaves.iter().map(|leaf| self.pool.frames.page_bytes(leaf.frame) as u64).sum()
    }

    fn push(&mut self, row: usize, page: &FrameRead<'_>) {
        page.header().pin();
        self.leaves.push(PinnedLeaf { row, page: page.page(), frame: page.frame() });
    }
}

impl Drop for PinnedLeaves<'_> {
    fn drop(&mut self) {
        for leaf in &self.leaves {
            self.pool.frames.unpin(leaf.frame);
        }
    }
}

/// The medium values of a commit, by row. If the commit fails, dropping this releases their extents.
pub(super) struct MediumValues<'e> {
    space: &'e Space,
    pub(super) values: Vec<Option<MediumValue>>,
    pub(super) is_committed: bool,
}

impl Drop for MediumValues<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            // The extents are freed at the end of the epoch, not now. They may still be on their way to the disk, and a
            // late write must not overwrite new data in their place. The checkpoint that ends the epoch waits for these
            // writes.
            let epoch_guard = self.space.epoch_latch.shared();
            for value in self.values.iter().flatten() {
                self.space.segments.release(value.address, epoch_guard.epoch());
            }
        }
    }
}

/// Returns the index after the last row that the leaf covers, counting from `start`. The row at `start` must not
/// precede the leaf.
pub(super) fn rows_end(rows: &[Row<'_>], start: usize, tree: &Tree, leaf: &Leaf<'_>) -> usize {
    let upper = leaf.upper_fence();
    debug_assert!(rows.get(start).is_none_or(|row| {
        row.tree.pages.id != tree.pages.id || leaf.lower_fence().is_none_or(|lower| lower <= row.key)
    }));
    let is_covered = |row: &&Row<'_>| row.tree.pages.id == tree.pages.id && upper.is_none_or(|upper| row.key < upper);
    start + rows[start..].iter().take_while(is_covered).count()
}

/// The rows of a commit, ready to be applied.
pub(super) struct Prepared<'w, 'p> {
    pub(super) rows: &'w [Row<'w>],
    pub(super) reads: Option<Reads<'w>>,
    pub(super) incoming: Vec<Incoming<'w>>,
    pub(super) pinned: PinnedLeaves<'p>,
    /// An upper bound for the bytes of versions that the rows will leave. It stays valid because the rows are locked,
    /// so no other commit can change them.
    pub(super) version_bytes: usize,
    /// The ranges that the commit removes.
    pub(super) removals: Option<&'w Removals<'w>>,
}

/// The progress of pinning the leaves of a commit.
struct Pinning<'w, 'p> {
    rows: &'w [Row<'w>],
    incoming: &'w [Incoming<'w>],
    pinned: PinnedLeaves<'p>,
    version_bytes: usize,
    /// Rows that do not fit in their leaves.
    full: Vec<Range<usize>>,
    /// The number of leaves that are read together.
    at_once: usize,
}

/// The rows whose leaves have not been pinned yet, and the missing pages among these leaves.
#[derive(Default)]
struct Outstanding {
    rows: Vec<usize>,
    missing: Vec<PageId>,
}

impl Pinning<'_, '_> {
    /// Pins the leaf of `row`. Adds the size of the versions that the leaf's rows, starting with `row`, will leave.
    /// Returns the index after these rows.
    fn pin(&mut self, row: usize, page: &FrameRead<'_>) -> usize {
        self.pinned.push(row, page);
        let leaf = Leaf::new(page);
        let end = rows_end(self.rows, row, self.rows[row].tree, &leaf);
        debug_assert!(end > row, "a leaf is pinned for a row that it does not cover");
        let version_bytes_of = |row: &Row<'_>| {
            let was = leaf.search(row.key).ok().map(|index| leaf.value(index).stored_bytes());
            version_bytes_max(row.key, was.unwrap_or(0))
        };
        let rows_bytes = self.rows[row..end].iter().map(version_bytes_of).sum();
        // The fixed part is counted twice, in case the leaf is split.
        self.version_bytes += undo_bytes_max(rows_bytes) + undo_bytes_max(0);
        let incoming = &self.incoming[row..end];
        if crate::tree::fits(&leaf, incoming) {
            // Prefetch the cache lines that we are about to write; a store miss would stall the stores after it.
            page.prefetch(leaf.upcoming_bytes(incoming.iter().map(Incoming::row_bytes).sum()));
        } else {
            self.full.push(row..end);
        }
        end
    }

    /// Pins the leaves of these rows, if they are already in memory. All rows must belong to one tree.
    fn pin_present(&mut self, tree: &Tree, rows: &[usize]) -> Result<Outstanding> {
        // Hold one guard for all descents: the guards nested in it cost almost nothing.
        let reclaim_guard = self.pinned.pool.reclaim_guard();
        debug_assert!(rows.is_sorted(), "rows are pinned out of order");
        let mut finger = Finger::new(tree, &reclaim_guard);
        let mut outstanding = Outstanding::default();
        let mut located = Vec::with_capacity(LOCATED_LEAVES);
        let (mut located_end, mut covered) = (0, 0);
        for (at, &row) in rows.iter().enumerate() {
            let is_enough = outstanding.missing.len() >= self.at_once;
            if at == located_end && !is_enough {
                located_end = self.locate(&mut finger, rows, at, &mut located);
            }
            debug_assert!(
                located.last().is_none_or(|next| row <= next.row),
                "a leaf is located for a row that was passed"
            );
            let entry = located.pop_if(|entry| entry.row == row).map(|entry| entry.found);
            if row < covered {
                continue;
            }
            if is_enough {
                outstanding.rows.push(row);
                continue;
            }
            let key = self.rows[row].key;
            let page = match entry {
                Some(Ok(Some(leaf))) => tree.read_leaf_at(leaf, Target::At(key)).map(Ok),
                Some(Err(stop)) => Some(Err(stop)),
                Some(Ok(None)) | None => None,
            };
            // The leaf may have been split, evicted or merged since it was located.
            match page.unwrap_or_else(|| tree.read_leaf(Target::At(key))) {
                Ok(page) => covered = self.pin(row, &page),
                Err(Stop::Needs(needs)) => {
                    if let Needs::Page(_, page) = needs {
                        outstanding.missing.push(page);
                    }
                    outstanding.rows.push(row);
                }
                Err(Stop::Error(error)) => return Err(error),
            }
        }
        assert!(located.is_empty(), "{} leaves are located for no row", located.len());
        outstanding.missing.sort_unstable();
        outstanding.missing.dedup();
        assert!(outstanding.missing.is_empty() == outstanding.rows.is_empty(), "rows wait and no page is missing");
        Ok(outstanding)
    }

    /// Locates the leaves of the next rows, beginning at position `start` of `rows`, so that they can be prefetched
    /// into the processor's cache together. Adds the first row of each leaf to `located`, in descending order. Returns
    /// the position after the rows that these leaves appear to cover.
    fn locate(&self, finger: &mut Finger<'_>, rows: &[usize], start: usize, located: &mut Vec<Located>) -> usize {
        assert!(located.is_empty(), "leaves are located before the last ones are pinned");
        let mut end = start;
        while let Some(&row) = rows.get(end) {
            let key = self.rows[row].key;
            if located.is_empty() || !finger.is_at(key) {
                if located.len() == LOCATED_LEAVES {
                    break;
                }
                located.push(Located { row, found: finger.locate(key) });
            }
            end += 1;
        }
        located.reverse();
        assert!(end > start && end <= rows.len(), "rows up to {end} of {} are located, from {start} on", rows.len());
        end
    }

    /// Returns an error if the commit pins more leaves than its memory allows. The error gives both amounts in bytes,
    /// computed from the commit's largest page size.
    fn check_count(&self, leaf_count_max: usize, page_bytes: usize) -> Result<()> {
        let count = self.pinned.leaves.len();
        if count <= leaf_count_max {
            return Ok(());
        }
        let [bytes, limit_bytes] = [count, leaf_count_max].map(|count| (count * page_bytes) as u64);
        Err(Error::leaves_too_large(self.rows.len(), bytes, limit_bytes))
    }
}

/// Returns an upper bound for the bytes of versions that a row will leave.
pub(super) fn row_version_bytes_max(row: &Row<'_>) -> usize {
    undo_bytes_max(version_bytes_max(row.key, row.tree.inline_bytes_max(row.key).max(LARGE_REF_BYTES)))
}

/// Returns an upper bound for the bytes of a row's old value in a record.
pub(super) fn old_value_bytes_max(row: &Row<'_>) -> usize {
    record::OLD_VALUE_BYTES + row.tree.inline_bytes_max(row.key)
}

/// Converts the row to the form that the tree accepts.
pub(super) fn incoming_of<'r>(row: &Row<'r>) -> Incoming<'r> {
    let value_bytes = match row.change {
        Change::Put(value) if value.len() <= row.tree.inline_bytes_max(row.key) => Some(value.len()),
        Change::Put(_) | Change::PutLarge(_) => Some(LARGE_REF_BYTES),
        Change::Remove => None,
    };
    Incoming { key: row.key, value_bytes }
}

impl<L> Engine<L> {
    pub(super) async fn append_medium_values(&self, mode: WaitMode<'_>, rows: &[Row<'_>]) -> Result<MediumValues<'_>> {
        let mut medium = MediumValues { space: &self.space, values: Vec::new(), is_committed: false };
        for (index, row) in rows.iter().enumerate() {
            if let Change::Put(value) = row.change
                && value.len() > row.tree.inline_bytes_max(row.key)
            {
                mode.work(turn::units_of_bytes(value.len())).await;
                medium.values.resize(index, None);
                let value_id = ValueId(self.next_value.fetch_add(1, Ordering::Relaxed));
                let address = values::append_medium(row.tree, row.key, value_id, value)?;
                medium.values.push(Some(MediumValue { value_id, address }));
                if self.space.is_near_full() {
                    let pool = Arc::clone(&self.pool);
                    mode.run(move || pool.relieve()).await?;
                }
            }
        }
        debug_assert!(
            medium.values.iter().zip(rows).all(|(value, row)| value.is_none() || matches!(row.change, Change::Put(_))),
            "a medium value is another row's"
        );
        Ok(medium)
    }

    /// Returns the bytes of the rows' old values in the record of their commit. Only a run can change the rows
    /// afterwards, because they are locked. O(leaves).
    pub(super) async fn old_value_bytes(&self, mode: WaitMode<'_>, rows: &[Row<'_>]) -> Result<usize> {
        let (mut start, mut bytes) = (0, 0);
        while start < rows.len() {
            mode.work(turn::ROW_UNITS).await;
            let (row, tree) = (&rows[start], rows[start].tree);
            let of_leaf = tree.pool.awaiting(mode, |from| {
                let page = tree.read_leaf_from(from, Target::At(row.key))?;
                let leaf = Leaf::new(&page);
                let end = rows_end(rows, start, tree, &leaf);
                let stored_bytes = |row: &Row<'_>| leaf.search(row.key).map_or(0, |at| leaf.value(at).stored_bytes());
                let bytes_of = |row: &Row<'_>| record::OLD_VALUE_BYTES + stored_bytes(row);
                Ok((end, rows[start..end].iter().map(bytes_of).sum::<usize>()))
            });
            let (end, leaf_bytes) = of_leaf.await?;
            assert!(end > start, "a leaf is read for a row that it does not cover");
            (start, bytes) = (end, bytes + leaf_bytes);
        }
        Ok(bytes)
    }

    /// Reads and pins the leaves of several rows, and makes room in them. Does nothing for one row or none.
    pub(super) async fn prepare<'w>(
        &self,
        mode: WaitMode<'_>,
        rows: &'w [Row<'w>],
        reads: Option<Reads<'w>>,
    ) -> Result<Prepared<'w, '_>> {
        let incoming: Vec<Incoming<'w>> = rows.iter().map(incoming_of).collect();
        let (pinned, version_bytes) = match rows {
            [] => (PinnedLeaves::new(&self.pool), 0),
            [row] => (PinnedLeaves::new(&self.pool), row_version_bytes_max(row)),
            _ => self.pin_leaves(mode, rows, &incoming, reads).await?,
        };
        Ok(Prepared { rows, reads, incoming, pinned, version_bytes, removals: None })
    }

    /// Reads the leaves of all rows, many at a time, pins them, and makes room in them. Also returns an upper bound for
    /// the bytes of versions that the rows will leave.
    async fn pin_leaves(
        &self,
        mode: WaitMode<'_>,
        rows: &[Row<'_>],
        incoming: &[Incoming<'_>],
        reads: Option<Reads<'_>>,
    ) -> Result<(PinnedLeaves<'_>, usize)> {
        let page_bytes = rows.iter().map(|row| row.tree.pages.page_bytes()).max().expect("rows");
        let leaf_count_max = self.pinned_leaves_max(page_bytes as u64, reads) as usize;
        let pinned = PinnedLeaves::new(&self.pool);
        // Read few enough leaves together, compared with the number of frames, that none is evicted before it is
        // pinned.
        let frame_count = self.pool.frames.limit_bytes() / page_bytes;
        let at_once = (frame_count / 16).clamp(LEAVES_AT_ONCE_MIN, LEAVES_AT_ONCE_MAX);
        let mut pinning = Pinning { rows, incoming, pinned, version_bytes: 0, full: Vec::new(), at_once };
        let mut provider = Provider::new(mode, &self.pool);
        let mut start = 0;
        for rows_of_tree in rows.chunk_by(|left, right| left.tree.pages.id == right.tree.pages.id) {
            let end = start + rows_of_tree.len();
            let mut waiting: Vec<usize> = (start..end).collect();
            while !waiting.is_empty() {
                mode.work(turn::ROW_UNITS * waiting.len() as u32).await;
                let Outstanding { rows, missing } = pinning.pin_present(rows_of_tree[0].tree, &waiting)?;
                pinning.check_count(leaf_count_max, page_bytes)?;
                self.bring_in(mode, rows_of_tree[0].tree, &missing, &mut provider).await?;
                waiting = rows;
            }
            start = end;
        }
        assert_eq!(start, rows.len(), "rows are left whose leaves are not pinned");
        let Pinning { mut pinned, version_bytes, full, .. } = pinning;
        pinned.leaves.sort_unstable_by_key(|leaf| leaf.row);
        debug_assert!(pinned.leaves.is_sorted_by(|left, right| left.row < right.row), "a row has two leaves");
        debug_assert!(pinned.leaves.first().is_some_and(|first| first.row == 0), "the first row has no leaf");
        for range in full {
            rows[range.start].tree.split_for(mode, &incoming[range]).await?;
        }
        Ok((pinned, version_bytes))
    }

    /// Reads pages of a tree together. A single missing page is read through the provider, which returns the read's
    /// error if the page is still needed.
    async fn bring_in(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        missing: &[PageId],
        provider: &mut Provider<'_>,
    ) -> Result<()> {
        let page = match *missing {
            [] => return Ok(()),
            [page] => page,
            [first, ..] => match tree.fault_nodes(mode, missing).await? {
                0 => first,
                _ => return Ok(()),
            },
        };
        provider.provide(&Needs::Page(Arc::clone(&tree.pages), page)).await.map(drop)
    }

    /// Reads and pins the leaves of the read set, except those that are already pinned in `others`. Returns an error if
    /// it finds a conflict.
    pub(super) async fn pin_reads(
        &self,
        mode: WaitMode<'_>,
        reads: Option<Reads<'_>>,
        others: &PinnedLeaves<'_>,
    ) -> Result<PinnedLeaves<'_>> {
        let mut pinned = PinnedLeaves::new(&self.pool);
        let Some(reads) = reads else { return Ok(pinned) };
        let mut pinned_frames: Vec<FrameIndex> = others.leaves.iter().map(|leaf| leaf.frame).collect();
        pinned_frames.sort_unstable();
        let frame_bytes = |frame: &FrameIndex| self.pool.frames.page_bytes(*frame);
        let mut bytes: usize = pinned_frames.iter().map(frame_bytes).sum();
        let limit_bytes = self.budget.validated_bytes_max() as usize;
        let mut walk = Walk::new(Some(reads));
        while let Some((tree, key)) = walk.next() {
            let keyspace = tree.pages.id;
            let fences = tree.pool.awaiting(mode, |from| {
                let page = tree.read_leaf_from(from, Target::At(key))?;
                let leaf = Leaf::new(&page);
                reads.validate(&self.versions, &tree.pages, page.page(), &leaf).map_err(Stop::Error)?;
                if pinned_frames.binary_search(&page.frame()).is_err() {
                    pinned.push(0, &page);
                    bytes += page.len();
                }
                let may_be_spilled =
                    leaf.newest() > reads.snapshot.timestamp && self.spilled.may_have(reads.snapshot.timestamp);
                let lower_fence = may_be_spilled.then(|| leaf.lower_fence().map(<[u8]>::to_vec));
                Ok((lower_fence, leaf.upper_fence().map(<[u8]>::to_vec)))
            });
            let (lower_fence, upper_fence) = fences.await?;
            if let Some(lower_fence) = lower_fence {
                let fences = (lower_fence.as_deref(), upper_fence.as_deref());
                reads.validate_spilled(mode, keyspace, fences).await?;
            }
            if bytes > limit_bytes {
                return Err(Error::reads_too_large(bytes as u64, limit_bytes as u64));
            }
            walk.pass(keyspace, upper_fence.as_deref());
        }
        Ok(pinned)
    }
}
