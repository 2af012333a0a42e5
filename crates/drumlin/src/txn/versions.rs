//! Old versions of rows. They are retained in memory, by leaf, while a snapshot may need them.
//!
//! A page holds the newest version of each row. A commit that changes rows of a leaf adds an *undo record* to the leaf.
//! For each of these rows, the record contains the old version, or a mark that the row did not exist. If a leaf is
//! newer than snapshot s, a reader at s searches the undo records of commits after s, oldest first. The first record
//! that has the key contains the row's version at s. If no record has the key, that version is in the page.
//!
//! # Invariants
//! 1. The undo records of a leaf are read and changed only under the leaf's latch, and ascend by timestamp.
//! 2. Undo records belong to a page number and survive the eviction of the page. When a split or merge moves rows,
//!    their undo records move with them.
//! 3. An undo record is dropped once the visible horizon and every registered snapshot have passed its commit. If they
//!    have passed the commit before it unlatches the leaf, the commit adds no undo record.
//! 4. If only undo records refer to a large value, its pages are freed with these records. Checkpoints list such
//!    values, so that the next opening frees them.

use std::collections::VecDeque;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::hash::HashMap;
use crate::sync::Mutex;

use super::old_rows::{OldRows, OldVersion, old_row_bytes};
use super::spilled::{Needed, Sifter, Spilled, SpilledRow};
use super::undo::{LEAF_BYTES, UndoRecord, UndoRecords, UndoRows};
use crate::error::Result;
use crate::format::catalogue::Orphan;
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, PageId, Timestamp};
use crate::memory::{Account, Budget, Held};
use crate::space::runs::RemovedKeys;
use crate::space::{CheckpointDebt, PageSpace};
use crate::tree::Direction;
use crate::tree::node::RowValue;

type Shard = HashMap<(KeyspaceId, PageId), UndoRecords>;

/// The undo records of all leaves, and the large values to which only they refer.
#[derive(Debug)]
pub(crate) struct Versions {
    shards: Box<[Mutex<Shard>]>,
    /// Large values to which only versions refer, by keyspace and first page.
    held: Mutex<HashMap<(KeyspaceId, PageId), LargeRef>>,
    debt: Arc<CheckpointDebt>,
    budget: Arc<Budget>,
    /// The bytes of versions that remained after the last garbage collection.
    swept_bytes: AtomicU64,
    /// The id of the running spill, or 0; and the number of splits and merges that are currently moving versions.
    spill: AtomicU32,
    moving: AtomicU32,
}

/// Garbage is collected only once versions use this much memory, which is enough for a few thousand small rows.
const COLLECTED_BYTES_MIN: u64 = if cfg!(feature = "sim") { 4 << 10 } else { 512 << 10 };

impl Versions {
    /// Creates an empty version store. It reports to `debt` the number of large values to which only versions refer.
    pub(crate) fn new(budget: &Arc<Budget>, debt: Arc<CheckpointDebt>) -> Versions {
        Versions {
            shards: (0..64).map(|_| Mutex::default()).collect(),
            held: Mutex::default(),
            debt,
            budget: Arc::clone(budget),
            swept_bytes: AtomicU64::new(0),
            spill: AtomicU32::new(0),
            moving: AtomicU32::new(0),
        }
    }

    fn shard(&self, keyspace: KeyspaceId, page: PageId) -> &Mutex<Shard> {
        let mixed = (u64::from(keyspace.0) << 32 | u64::from(page.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(mixed >> 58) as usize]
    }

    /// Adds the undo record of a commit to a leaf. The caller holds the leaf's latch exclusively.
    pub(crate) fn add(&self, keyspace: KeyspaceId, page: PageId, timestamp: Timestamp, undo: UndoRecord) {
        self.put(keyspace, page, timestamp, undo, |bytes| self.take(bytes));
    }

    /// Like [`add`](Self::add), but takes the memory from `memory`, which was reserved earlier. The memory that the
    /// record needs then belongs to the versions.
    pub(crate) fn add_within(
        &self,
        keyspace: KeyspaceId,
        page: PageId,
        timestamp: Timestamp,
        undo: UndoRecord,
        memory: &mut Held<'_>,
    ) {
        self.put(keyspace, page, timestamp, undo, |bytes| memory.keep(bytes as u64));
    }

    /// Adds an undo record and calls `account` with the record's memory.
    #[inline]
    fn put(
        &self,
        keyspace: KeyspaceId,
        page: PageId,
        timestamp: Timestamp,
        mut undo: UndoRecord,
        account: impl FnOnce(usize),
    ) {
        assert!(!undo.is_empty(), "an undo record has no rows");
        assert!(undo.timestamp == Timestamp(0), "an undo record of {} is added again", undo.timestamp);
        undo.timestamp = timestamp;
        for reference in undo.large() {
            let mut held = self.held.lock();
            held.insert((keyspace, reference.first_page), reference);
            self.debt.set_orphan_count(held.len());
        }
        let bytes = undo.bytes();
        let mut shard = self.shard(keyspace, page).lock();
        // A running spill may have passed this shard already, even though it covers this commit: a commit can become
        // visible before its undo record is added.
        undo.missed_by = self.spill.load(Ordering::SeqCst);
        let undo_records = shard.entry((keyspace, page)).or_default();
        account(bytes + if undo_records.is_empty() { LEAF_BYTES } else { 0 });
        // Timestamps can be equal during recovery, which applies the rows of many commits together in several steps.
        undo_records.push(undo);
    }

    /// Returns the row's version at the snapshot, and the first commit after the snapshot that changed the row. Returns
    /// `None` if no undo record contains such a change. The caller holds the leaf's latch.
    pub(crate) fn find(
        &self,
        keyspace: KeyspaceId,
        page: PageId,
        key: &[u8],
        snapshot: Timestamp,
    ) -> Option<(Timestamp, OldVersion)> {
        let shard = self.shard(keyspace, page).lock();
        let mut newer = shard.get(&(keyspace, page))?.iter().filter(|undo| undo.timestamp > snapshot);
        newer.find_map(|undo| Some((undo.timestamp, undo.find(key)?)))
    }

    /// Returns the newest commit whose undo record contains the row. The caller holds the leaf's latch.
    pub(crate) fn newest_change(&self, keyspace: KeyspaceId, page: PageId, key: &[u8]) -> Option<Timestamp> {
        let shard = self.shard(keyspace, page).lock();
        let undo_records = shard.get(&(keyspace, page))?;
        undo_records.iter().rev().find(|undo| undo.find(key).is_some()).map(|undo| undo.timestamp)
    }

    /// Returns `true` if the keyspace has undo records, or large values to which only undo records refer. O(leaves with
    /// undo records).
    pub(crate) fn has_any(&self, keyspace: KeyspaceId) -> bool {
        let is_of = |&(of, _): &(KeyspaceId, PageId)| of == keyspace;
        self.shards.iter().any(|shard| shard.lock().keys().any(is_of)) || self.held.lock().keys().any(is_of)
    }

    /// Returns `true` if a row for which `matters` returns `true` has changed since the snapshot. The caller holds the
    /// leaf's latch.
    pub(crate) fn any_changed(
        &self,
        keyspace: KeyspaceId,
        page: PageId,
        snapshot: Timestamp,
        matters: impl Fn(&[u8]) -> bool,
    ) -> bool {
        let shard = self.shard(keyspace, page).lock();
        let undo_records = shard.get(&(keyspace, page)).into_iter().flatten().rev();
        debug_assert!(
            undo_records.clone().is_sorted_by(|newer, older| newer.timestamp >= older.timestamp),
            "undo records of page {page} are out of order"
        );
        undo_records.take_while(|undo| undo.timestamp > snapshot).any(|undo| undo.iter().any(|(key, _)| matters(key)))
    }

    /// Returns `true` if a commit after the snapshot has changed a row with one of these keys. The caller holds the
    /// exclusive epoch latch, so that no versions move. O(leaves with versions).
    pub(crate) fn any_changed_in(&self, keyspace: KeyspaceId, keys: &RemovedKeys, snapshot: Timestamp) -> bool {
        assert!(!keys.is_empty(), "changes of no keys are looked for");
        let has_changed = |undo_records: &UndoRecords| {
            let newer = undo_records.iter().rev().take_while(|undo| undo.timestamp > snapshot);
            newer.into_iter().any(|undo| undo.iter().any(|(key, _)| keys.covers(key)))
        };
        self.shards.iter().any(|shard| {
            let shard = shard.lock();
            shard.iter().any(|((of, _), undo_records)| *of == keyspace && has_changed(undo_records))
        })
    }

    /// Adds to `old` the old versions of the leaf's rows that lie within the bounds and have changed since the
    /// snapshot. Adds as many as fit in `bytes_max`, starting where the scan starts. The remaining rows lie beyond
    /// `last`. The caller holds the leaf's latch.
    pub(crate) fn rows_at(
        &self,
        (keyspace, page): (KeyspaceId, PageId),
        snapshot: Timestamp,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        bytes_max: usize,
        mut old: OldRows,
    ) -> OldRows {
        let shard = self.shard(keyspace, page).lock();
        old.fit(direction, bytes_max);
        for undo in shard.get(&(keyspace, page)).into_iter().flatten().filter(|undo| undo.timestamp > snapshot) {
            for (key, was) in undo.iter().filter(|(key, _)| RangeBounds::<[u8]>::contains(&bounds, *key)) {
                old.add(key, undo.timestamp, was, direction, bytes_max);
            }
        }
        debug_assert!(
            old.last.is_none() || old.last.as_ref() == old.farthest(direction),
            "a row after the last is returned"
        );
        debug_assert_eq!(
            old.rows.iter().map(|(key, (_, was))| old_row_bytes(key, was.stored_bytes())).sum::<usize>(),
            old.bytes,
            "old rows have other bytes than are counted"
        );
        debug_assert!(
            old.bytes <= bytes_max || old.rows.len() == 1,
            "old versions of {} bytes, of {bytes_max}",
            old.bytes
        );
        old
    }

    /// Returns the memory of all versions in bytes, including the memory that running commits have reserved.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.budget.taken_bytes(Account::Versions)
    }

    fn take(&self, bytes: usize) {
        self.budget.take(Account::Versions, bytes as u64);
    }

    fn give(&self, bytes: usize) {
        self.budget.give(Account::Versions, bytes as u64);
    }

    /// Releases the memory of a shard's dropped records. Called once per shard, because commits contend for this
    /// account.
    fn shrink(&self, shard: &mut Shard, freed_bytes: usize) {
        self.give(freed_bytes);
        if shard.len() < shard.capacity() / 8 {
            let count = shard.len();
            shard.shrink_to(2 * count);
        }
    }

    /// Returns `true` if garbage collection is worthwhile: the versions use twice as much memory as the last collection
    /// left. Near the limit, a smaller increase is enough.
    pub(crate) fn wants_collection(&self) -> bool {
        let most = self.budget.version_bytes_max();
        let few = (most / 8).min(COLLECTED_BYTES_MIN);
        let left = self.swept_bytes.load(Ordering::Relaxed);
        self.memory_bytes() > (2 * left).clamp(few, most.max(left + few))
    }

    /// Drops the undo records of commits up to `horizon`. Returns the large values to which they referred. Concurrent
    /// calls are safe but pointless.
    pub(crate) fn collect_garbage(&self, horizon: Timestamp) -> Vec<(KeyspaceId, LargeRef)> {
        let mut freed = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let mut freed_bytes = 0;
            shard.retain(|&(keyspace, _), undo_records| {
                while let Some(undo) = undo_records.pop_up_to(horizon) {
                    freed_bytes += undo.bytes();
                    freed.extend(undo.large().map(|reference| (keyspace, reference)));
                }
                let is_needed = |undo: &UndoRecord| undo.timestamp > horizon;
                debug_assert!(undo_records.iter().all(is_needed), "undo records of a leaf are out of order");
                if undo_records.is_empty() {
                    freed_bytes += LEAF_BYTES;
                } else {
                    undo_records.shrink();
                }
                !undo_records.is_empty()
            });
            self.shrink(&mut shard, freed_bytes);
        }
        self.swept_bytes.store(self.memory_bytes(), Ordering::Relaxed);
        freed
    }

    /// Removes a large value whose pages have been freed, so that checkpoints no longer list it. Compares the whole
    /// reference, because a different value in the table may have reused the first page number.
    pub(crate) fn release_value(&self, keyspace: KeyspaceId, reference: &LargeRef) {
        let mut held = self.held.lock();
        let key = (keyspace, reference.first_page);
        if held.get(&key) == Some(reference) {
            held.remove(&key);
            self.debt.set_orphan_count(held.len());
        }
    }

    /// Records the number of pages of large values that no reader needs and that are waiting to be freed.
    pub(crate) fn set_unfreed_pages(&self, count: u64) {
        self.debt.set_unfreed_pages(count);
    }

    /// Returns the large values to which only versions refer. A checkpoint has to list them.
    pub(crate) fn orphans(&self) -> Vec<Orphan> {
        (self.held.lock().iter())
            .map(|(&(keyspace, first_page), reference)| Orphan {
                keyspace,
                first_page,
                page_count: reference.chunk_count,
            })
            .collect()
    }

    /// Drops the undo records and large values of a dropped keyspace.
    pub(crate) fn drop_keyspace(&self, keyspace: KeyspaceId) {
        for shard in &self.shards {
            let mut freed_bytes = 0;
            shard.lock().retain(|&(of, _), undo_records| {
                if of == keyspace {
                    freed_bytes += LEAF_BYTES + undo_records.iter().map(UndoRecord::bytes).sum::<usize>();
                }
                of != keyspace
            });
            self.give(freed_bytes);
        }
        let mut held = self.held.lock();
        held.retain(|&(of, _), _| of != keyspace);
        self.debt.set_orphan_count(held.len());
    }
}

/// Copies of versions that a spill will sort and write.
#[derive(Debug, Default)]
struct Gathered {
    rows: Vec<u8>,
    /// The keyspace and commit of each row, and its offset in `rows`.
    row_offsets: Vec<(KeyspaceId, Timestamp, u32)>,
}

impl Gathered {
    fn row(&self, (keyspace, timestamp, offset): (KeyspaceId, Timestamp, u32)) -> SpilledRow<'_> {
        let rest = &self.rows[offset as usize..];
        let (key, was) = UndoRows { rest }.next().expect("a row begins here");
        SpilledRow { keyspace, key, timestamp, was }
    }

    fn bytes(&self) -> u64 {
        (self.rows.capacity() + self.row_offsets.capacity() * size_of::<(KeyspaceId, Timestamp, u32)>()) as u64
    }
}

/// A keyspace and key. A spill writes the rows between two adjacent pivots in one step.
type Pivot = (KeyspaceId, Vec<u8>);

impl Versions {
    /// Writes the versions of visible commits to a run, except versions that no snapshot needs, and removes all of them
    /// from memory. Returns the large values to which only the unneeded versions referred, and `true` if memory
    /// contained versions of visible commits. Only one thread at a time may spill.
    ///
    /// O(versions). Sorts the key space one part at a time, so it needs memory for an eighth of the versions.
    pub(crate) fn spill(&self, spilled: &Spilled, needed: &Needed) -> Result<(Vec<(KeyspaceId, LargeRef)>, bool)> {
        let spill = self.begin_spill();
        let moved = self.spill_as(spill, spilled, needed);
        let before = self.spill.swap(0, Ordering::SeqCst);
        assert!(before == spill, "two spills at once");
        moved
    }

    fn begin_spill(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
        let before = self.spill.swap(number, Ordering::SeqCst);
        assert!(before == 0, "two spills at once");
        // A split or merge moves versions within microseconds, and waits for no other thread during the move.
        while self.moving.load(Ordering::SeqCst) > 0 {
            crate::sync::yield_now();
        }
        number
    }

    fn spill_as(&self, number: u32, spilled: &Spilled, needed: &Needed) -> Result<(Vec<(KeyspaceId, LargeRef)>, bool)> {
        let pivots = self.pivots(needed.visible);
        let mut writer = spilled.begin();
        let mut sifter = Sifter::new(needed);
        let mut unneeded = Vec::new();
        for part in 0..=pivots.len() {
            let bounds = (part.checked_sub(1).map(|before| &pivots[before]), pivots.get(part));
            let mut gathered = self.gather(needed.visible, bounds);
            assert!(bounds.0.is_none_or(|from| bounds.1.is_none_or(|to| from < to)), "parts are out of order");
            let mut memory = self.budget.grant(Account::Spilled);
            memory.take(gathered.bytes());
            let mut row_offsets = std::mem::take(&mut gathered.row_offsets);
            row_offsets
                .sort_unstable_by(|left, right| gathered.row(*left).sort_key().cmp(&gathered.row(*right).sort_key()));
            // A version that moved to a different leaf while versions were being gathered may have been found in both
            // leaves.
            row_offsets.dedup_by(|left, right| gathered.row(*left).sort_key() == gathered.row(*right).sort_key());
            for row_offset in row_offsets {
                let row = gathered.row(row_offset);
                if sifter.keeps(row.keyspace, row.key, row.timestamp) {
                    writer.push(row)?;
                } else if let Some(RowValue::Large(reference)) = row.was {
                    unneeded.push((row.keyspace, reference));
                }
            }
        }
        spilled.publish(writer)?;
        let has_left = self.drop_spilled(needed.visible, number);
        Ok((unneeded, has_left))
    }

    /// Returns keys that divide the versions of commits up to `up_to` into about eight parts with equal numbers of
    /// bytes.
    fn pivots(&self, up_to: Timestamp) -> Vec<Pivot> {
        /// The number of parts of equal size in which versions are gathered for spilling.
        const PART_COUNT: usize = 8;
        /// The maximum number of rows whose keys are sampled to find the boundaries between the parts.
        const SAMPLE_ROWS_MAX: usize = 64;
        let all_bytes = self.memory_bytes() as usize;
        let step = (all_bytes / SAMPLE_ROWS_MAX).max(4 << 10);
        let mut samples: Vec<Pivot> = Vec::new();
        let mut bytes = 0;
        for shard in &self.shards {
            for (&(keyspace, _), undo_records) in &*shard.lock() {
                for undo in undo_records.iter().take_while(|undo| undo.timestamp <= up_to) {
                    bytes += undo.rows.len();
                    if bytes >= step * (samples.len() + 1) {
                        let (key, _) = undo.iter().next().expect("an undo record has rows");
                        samples.push((keyspace, key.to_vec()));
                    }
                }
            }
        }
        samples.sort_unstable();
        samples.dedup();
        debug_assert!(samples.is_sorted_by(|left, right| left < right), "pivots are out of order");
        let each = samples.len().div_ceil(PART_COUNT).max(2);
        samples.into_iter().skip(each - 1).step_by(each).collect()
    }

    /// Copies the versions of commits up to `up_to` whose rows lie between two pivots.
    fn gather(&self, up_to: Timestamp, (from, to): (Option<&Pivot>, Option<&Pivot>)) -> Gathered {
        let mut gathered = Gathered::default();
        for shard in &self.shards {
            for (&(keyspace, _), undo_records) in &*shard.lock() {
                for undo in undo_records.iter().take_while(|undo| undo.timestamp <= up_to) {
                    let mut rows = undo.iter();
                    loop {
                        let row = rows.rest;
                        let Some((key, _)) = rows.next() else { break };
                        let is_below = |pivot: &Pivot| (keyspace, key) < (pivot.0, &pivot.1[..]);
                        if from.is_some_and(is_below) || !to.is_none_or(is_below) {
                            continue;
                        }
                        gathered.row_offsets.push((keyspace, undo.timestamp, gathered.rows.len() as u32));
                        gathered.rows.extend_from_slice(&row[..row.len() - rows.rest.len()]);
                    }
                }
            }
        }
        assert!(gathered.rows.len() <= u32::MAX as usize, "{} bytes of versions at once", gathered.rows.len());
        debug_assert!(
            gathered.row_offsets.is_sorted_by_key(|(_, _, offset)| *offset),
            "rows are gathered out of order"
        );
        gathered
    }

    /// Drops the undo records of commits up to `up_to`, which the spill has written to a run. Retains records that were
    /// added or moved during the spill, because it may have missed them. Returns `true` if there were records of either
    /// kind.
    fn drop_spilled(&self, up_to: Timestamp, spill: u32) -> bool {
        let mut has_any = false;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let mut freed_bytes = 0;
            shard.retain(|_, undo_records| {
                let is_old = |undo: &UndoRecord| undo.timestamp <= up_to;
                has_any |= undo_records.iter().any(is_old);
                freed_bytes += undo_records.retain(|undo| !is_old(undo) || undo.missed_by == spill);
                if undo_records.is_empty() {
                    freed_bytes += LEAF_BYTES;
                }
                !undo_records.is_empty()
            });
            self.shrink(&mut shard, freed_bytes);
        }
        self.swept_bytes.store(self.memory_bytes(), Ordering::Relaxed);
        has_any
    }

    /// Returns `true` if only versions refer to the value and its pages have not been freed.
    pub(crate) fn holds(&self, keyspace: KeyspaceId, reference: &LargeRef) -> bool {
        self.held.lock().get(&(keyspace, reference.first_page)) == Some(reference)
    }
}

impl Versions {
    /// Moves the versions of rows that have moved from one leaf to another: the versions of the rows starting at
    /// `separator`, or of all rows if it is `None`. The caller has latched both leaves.
    pub(crate) fn rows_moved(&self, pages: &PageSpace, from: PageId, to: PageId, separator: Option<&[u8]>) {
        assert!(from != to, "rows move from page {from} to itself");
        // A spill that begins after this line waits for the move. `move_rows` sees a spill that began earlier.
        self.moving.fetch_add(1, Ordering::SeqCst);
        self.move_rows(pages, from, to, separator, self.spill.load(Ordering::SeqCst));
        self.moving.fetch_sub(1, Ordering::SeqCst);
    }

    fn move_rows(&self, pages: &PageSpace, from: PageId, to: PageId, separator: Option<&[u8]>, spill: u32) {
        let (moved, kept) = {
            let mut shard = self.shard(pages.id, from).lock();
            let Some(mut undo_records) = shard.remove(&(pages.id, from)).map(UndoRecords::into_queue) else { return };
            undo_records.iter_mut().for_each(|undo| undo.missed_by = spill);
            match separator {
                None => {
                    self.give(LEAF_BYTES);
                    (undo_records, VecDeque::new())
                }
                Some(separator) => {
                    self.give(LEAF_BYTES);
                    let mut moved = VecDeque::new();
                    let mut kept = VecDeque::new();
                    for undo in undo_records {
                        let mut sides = [UndoRecord::new(), UndoRecord::new()];
                        for (key, was) in undo.iter() {
                            sides[usize::from(key >= separator)].push(key, was);
                        }
                        let (lower, upper) = (sides[0].rows.len(), sides[1].rows.len());
                        assert!(lower + upper == undo.rows.len(), "old versions are lost where a leaf is split");
                        self.give(undo.bytes());
                        for (side, list) in sides.into_iter().zip([&mut kept, &mut moved]) {
                            if !side.rows.is_empty() {
                                self.take(side.bytes());
                                list.push_back(UndoRecord {
                                    timestamp: undo.timestamp,
                                    missed_by: undo.missed_by,
                                    ..side
                                });
                            }
                        }
                    }
                    (moved, kept)
                }
            }
        };
        if !kept.is_empty() {
            self.take(LEAF_BYTES);
            let replaced = self.shard(pages.id, from).lock().insert((pages.id, from), UndoRecords::Queue(kept));
            assert!(replaced.is_none(), "old versions were left to page {from} while its rows moved");
        }
        if !moved.is_empty() {
            let mut shard = self.shard(pages.id, to).lock();
            let there = shard.entry((pages.id, to)).or_default();
            assert!(there.is_empty() || separator.is_none(), "page {to} is new and has old versions");
            if there.is_empty() {
                self.take(LEAF_BYTES);
            } else {
                crate::coverage::mark!("versions of two merged leaves were combined");
            }
            let mut queue = std::mem::take(there).into_queue();
            queue.extend(moved);
            queue.make_contiguous().sort_by_key(|undo| undo.timestamp);
            assert!(!queue.is_empty(), "undo records are moved to page {to}, and lost");
            *there = UndoRecords::Queue(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ValueId;

    fn undo(rows: &[(&[u8], Option<&[u8]>)]) -> UndoRecord {
        let mut undo = UndoRecord::new();
        for (key, was) in rows {
            undo.push(key, was.map(RowValue::Inline));
        }
        undo
    }

    const KEYSPACE: KeyspaceId = KeyspaceId(1);

    /// Each snapshot sees the row as of the snapshot's timestamp; a snapshot after all changes sees the row in the
    /// page.
    #[test]
    fn each_snapshot_sees_its_own_version() {
        let versions = Versions::new(&Arc::new(Budget::new(8 << 20, 1)), Arc::default());
        let page = PageId(1);
        versions.add(KEYSPACE, page, Timestamp(5), undo(&[(b"a", None), (b"b", Some(b"old"))]));
        versions.add(KEYSPACE, page, Timestamp(9), undo(&[(b"a", Some(b"first"))]));
        let find = |key: &[u8], at| versions.find(KEYSPACE, page, key, Timestamp(at)).map(|(_, was)| was);
        assert_eq!(find(b"a", 4), Some(OldVersion::Absent));
        assert_eq!(find(b"a", 5), Some(OldVersion::Inline((*b"first").into())));
        assert_eq!(find(b"a", 9), None);
        assert_eq!(find(b"b", 4), Some(OldVersion::Inline((*b"old").into())));
        assert_eq!(find(b"b", 5), None);
        assert_eq!(versions.newest_change(KEYSPACE, page, b"a"), Some(Timestamp(9)));
    }

    /// If memory is limited, a call returns only the old versions of a leaf's first rows in the scan's direction,
    /// whatever the order of their commits, and the last of these rows' keys.
    #[test]
    fn what_rows_were_is_returned_in_parts() {
        let versions = Versions::new(&Arc::new(Budget::new(8 << 20, 1)), Arc::default());
        let page = PageId(1);
        let keys: Vec<[u8; 1]> = (0..100).map(|key| [key]).collect();
        // The rows are spread over 10 commits and changed twice. The snapshot sees the older of the two old versions.
        for commit in 0..20u8 {
            let rows: Vec<(&[u8], Option<&[u8]>)> = (keys.iter().filter(|[key]| key % 10 == (commit * 7) % 10))
                .map(|key| (&key[..], if commit < 10 { Some(&key[..]) } else { None }))
                .collect();
            versions.add(KEYSPACE, page, Timestamp(5 + u64::from(commit)), undo(&rows));
        }
        let all = (Bound::Unbounded, Bound::Unbounded);
        let at = |bounds, direction, bytes_max| {
            let old =
                versions.rows_at((KEYSPACE, page), Timestamp(4), bounds, direction, bytes_max, OldRows::default());
            assert!(
                old.rows.iter().all(|(key, (_, was))| *was == OldVersion::Inline(key[..].into())),
                "the wrong version"
            );
            (old.rows.keys().map(|key| key[0]).collect::<Vec<_>>(), old.last.map(|key| key[0]))
        };
        assert_eq!(at(all, Direction::Forward, usize::MAX), ((0..100).collect(), None));
        let ten = 10 * old_row_bytes(b"k", 1);
        assert_eq!(at(all, Direction::Forward, ten), ((0..10).collect(), Some(9)));
        assert_eq!(at(all, Direction::Backward, ten), ((90..100).collect(), Some(90)));
        let middle: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Excluded(&[30]), Bound::Included(&[50]));
        assert_eq!(at(middle, Direction::Forward, ten), ((31..41).collect(), Some(40)));
        assert_eq!(at(middle, Direction::Backward, ten), ((41..51).collect(), Some(41)));
        assert_eq!(at(all, Direction::Forward, 0), (vec![0], Some(0)), "one at least");
    }

    /// Only changes after the snapshot count, and only if they affect rows that matter.
    #[test]
    fn changes_are_those_after_the_snapshot() {
        let versions = Versions::new(&Arc::new(Budget::new(8 << 20, 1)), Arc::default());
        let page = PageId(1);
        versions.add(KEYSPACE, page, Timestamp(5), undo(&[(b"a", None)]));
        versions.add(KEYSPACE, page, Timestamp(9), undo(&[(b"b", None)]));
        let changed = |key: &[u8], at| versions.any_changed(KEYSPACE, page, Timestamp(at), |changed| changed == key);
        assert!(changed(b"a", 4) && !changed(b"a", 5));
        assert!(changed(b"b", 5) && changed(b"b", 8) && !changed(b"b", 9));
        assert!(!changed(b"c", 0));
    }

    /// A freed value is identified by its value id: its page number may already belong to a different replaced value.
    #[test]
    fn a_value_is_released_alone() {
        let versions = Versions::new(&Arc::new(Budget::new(8 << 20, 1)), Arc::default());
        let replaced = |id| {
            let reference = LargeRef { length: 100_000, id: ValueId(id), first_page: PageId(9), chunk_count: 2 };
            let mut undo = UndoRecord::new();
            undo.push(b"a", Some(RowValue::Large(reference)));
            versions.add(KEYSPACE, PageId(1), Timestamp(id), undo);
            reference
        };
        let (first, second) = (replaced(5), replaced(6));
        versions.release_value(KEYSPACE, &first);
        assert_eq!(versions.orphans().len(), 1);
        versions.release_value(KEYSPACE, &second);
        assert_eq!(versions.orphans().len(), 0);
    }

    /// Splits and merges move versions with their rows, and keep them in commit order.
    #[test]
    fn versions_follow_their_rows() {
        let versions = Versions::new(&Arc::new(Budget::new(8 << 20, 1)), Arc::default());
        let pages = PageSpace::new(KEYSPACE, 4096, "k", &Budget::of_pages(1 << 20));
        let (left, right) = (PageId(1), PageId(2));
        let find = |page, key: &[u8]| versions.find(KEYSPACE, page, key, Timestamp(4)).map(|(_, was)| was);
        versions.add(KEYSPACE, left, Timestamp(5), undo(&[(b"a", None), (b"x", Some(b"1"))]));
        versions.rows_moved(&pages, left, right, Some(b"m"));
        assert_eq!(find(left, b"x"), None);
        assert_eq!(find(right, b"x"), Some(OldVersion::Inline((*b"1").into())));
        versions.add(KEYSPACE, left, Timestamp(6), undo(&[(b"a", Some(b"2"))]));
        versions.rows_moved(&pages, right, left, None);
        assert_eq!(find(left, b"x"), Some(OldVersion::Inline((*b"1").into())));
        assert_eq!(find(left, b"a"), Some(OldVersion::Absent));
        versions.collect_garbage(Timestamp(6));
        assert_eq!(versions.memory_bytes(), 0);
    }
}
