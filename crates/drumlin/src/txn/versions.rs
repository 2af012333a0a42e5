//! What rows were before their newest commits: kept in memory, by leaf, as long as a snapshot may ask.
//!
//! A page holds the newest version of each row. A commit that changes rows of a leaf leaves a *delta*: for each of these
//! rows what it was before, or that it was absent. A reader at snapshot s whose leaf is newer than s looks at the deltas of
//! commits after s, oldest first: the first that has the key tells what the row was at s; if none has it, the page does.
//!
//! # Invariants
//! 1. The deltas of a leaf are looked at and changed under the leaf's latch, and ascend by timestamp.
//! 2. Deltas outlive their leaf's eviction: they belong to the page's number. At splits and merges they move with the rows.
//! 3. A delta is dropped once visible and every registered snapshot have passed its commit.
//! 4. Pages of large values that only deltas name are freed with them; a checkpoint lists them, so that reopening frees them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::collections::HashMap;
use crate::sync::Mutex;

use crate::format::catalogue::{self, Orphan};
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, PageId, Timestamp};
use crate::memory::{Budget, Use, heap_bytes, reserve};
use crate::space::PageSpace;
use crate::tree::Observer;
use crate::tree::node::RowValue;

/// What a row was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Was {
    Absent,
    Inline(Box<[u8]>),
    Large(LargeRef),
}

/// What one commit replaced in one leaf: rows in the order of their keys, packed.
///
/// Each row: key length (4), value length (4; its two highest values mark an absent row and a large value's reference), key,
/// value.
#[derive(Debug)]
pub(crate) struct Delta {
    timestamp: Timestamp,
    rows: Vec<u8>,
    large_count: u32,
}

/// What a delta takes besides its rows: its place in a queue that has just doubled.
const DELTA_BYTES: usize = 2 * size_of::<Delta>();
/// What a leaf with deltas takes besides them: its entry in a table that has just doubled, and the least queue.
const LEAF_BYTES: usize = 2 * (size_of::<((KeyspaceId, PageId), VecDeque<Delta>)>() + 1) + 2 * size_of::<Delta>();
/// What is noted of a large value: an entry of a table that has just doubled.
const HELD_BYTES: usize = 2 * (size_of::<((KeyspaceId, PageId), LargeRef)>() + 1);

/// What a row takes in a delta.
fn row_bytes(key: &[u8], was: Option<RowValue<'_>>) -> usize {
    8 + key.len() + was.map_or(0, |was| was.stored_bytes())
}

/// What a commit may leave in one leaf: more than it does.
pub(crate) fn delta_bytes_max(rows_bytes: usize) -> usize {
    heap_bytes(rows_bytes + rows_bytes / 4) + DELTA_BYTES + LEAF_BYTES
}

/// What of it is for a row: more than it takes.
pub(crate) fn version_bytes_max(key: &[u8], was_bytes: usize) -> usize {
    8 + key.len() + was_bytes + HELD_BYTES
}

const ABSENT: u32 = u32::MAX;
const LARGE: u32 = u32::MAX - 1;

impl Delta {
    pub(crate) fn new() -> Delta {
        Delta { timestamp: Timestamp(0), rows: Vec::new(), large_count: 0 }
    }

    /// Whether no row is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a row; keys ascend.
    pub(crate) fn push(&mut self, key: &[u8], was: Option<RowValue<'_>>) {
        reserve(&mut self.rows, row_bytes(key, was));
        self.rows.extend((key.len() as u32).to_le_bytes());
        match was {
            None => {
                self.rows.extend(ABSENT.to_le_bytes());
                self.rows.extend(key);
            }
            Some(RowValue::Inline(value)) => {
                self.rows.extend((value.len() as u32).to_le_bytes());
                self.rows.extend(key);
                self.rows.extend(value);
            }
            Some(RowValue::Large(reference)) => {
                self.rows.extend(LARGE.to_le_bytes());
                self.rows.extend(key);
                self.rows.extend(reference.to_bytes());
                self.large_count += 1;
            }
        }
    }

    fn iter(&self) -> DeltaRows<'_> {
        DeltaRows { rest: &self.rows }
    }

    fn find(&self, key: &[u8]) -> Option<Was> {
        self.iter().find(|(found, _)| *found >= key).filter(|(found, _)| *found == key).map(|(_, was)| Was::of(was))
    }

    fn large(&self) -> impl Iterator<Item = LargeRef> + '_ {
        self.iter().filter_map(|(_, was)| match was {
            Some(RowValue::Large(reference)) => Some(reference),
            _ => None,
        })
    }

    fn bytes(&self) -> usize {
        heap_bytes(self.rows.capacity()) + DELTA_BYTES + self.large_count as usize * HELD_BYTES
    }
}

impl Was {
    fn of(row: Option<RowValue<'_>>) -> Was {
        match row {
            None => Was::Absent,
            Some(RowValue::Inline(value)) => Was::Inline(value.into()),
            Some(RowValue::Large(reference)) => Was::Large(reference),
        }
    }
}

struct DeltaRows<'d> {
    rest: &'d [u8],
}

impl<'d> Iterator for DeltaRows<'d> {
    type Item = (&'d [u8], Option<RowValue<'d>>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let key_bytes = number(&self.rest[..4]) as usize;
        let value_bytes = number(&self.rest[4..8]);
        let (key, rest) = self.rest[8..].split_at(key_bytes);
        let (was, rest) = match value_bytes {
            ABSENT => (None, rest),
            LARGE => {
                let (bytes, rest) = rest.split_first_chunk().expect("a reference");
                (Some(RowValue::Large(LargeRef::from_bytes(bytes))), rest)
            }
            _ => {
                let (value, rest) = rest.split_at(value_bytes as usize);
                (Some(RowValue::Inline(value)), rest)
            }
        };
        self.rest = rest;
        Some((key, was))
    }
}

type Shard = HashMap<(KeyspaceId, PageId), VecDeque<Delta>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Versions {
    shards: Box<[Mutex<Shard>]>,
    /// Large values that no row names any more, by keyspace and first page.
    held: Mutex<HashMap<(KeyspaceId, PageId), LargeRef>>,
    held_count: AtomicU64,
    budget: Arc<Budget>,
    /// Bytes that the last sweep left.
    swept_bytes: AtomicU64,
}

/// Bytes that are kept without looking whether they are still needed: a few thousand small rows.
const UNSWEPT_BYTES_MAX: u64 = 512 << 10;

impl Versions {
    pub(crate) fn new(budget: &Arc<Budget>) -> Versions {
        Versions {
            shards: (0..64).map(|_| Mutex::default()).collect(),
            held: Mutex::default(),
            held_count: AtomicU64::new(0),
            budget: Arc::clone(budget),
            swept_bytes: AtomicU64::new(0),
        }
    }

    fn shard(&self, keyspace: KeyspaceId, page: PageId) -> &Mutex<Shard> {
        let mixed = (u64::from(keyspace.0) << 32 | u64::from(page.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(mixed >> 58) as usize]
    }

    /// Adds what a commit replaced in a leaf that the caller has latched for change.
    pub(crate) fn add(&self, keyspace: KeyspaceId, page: PageId, timestamp: Timestamp, mut delta: Delta) {
        delta.timestamp = timestamp;
        for reference in delta.large() {
            let mut held = self.held.lock();
            held.insert((keyspace, reference.first_page), reference);
            self.held_count.store(held.len() as u64, Ordering::Relaxed);
        }
        let bytes = delta.bytes();
        let mut shard = self.shard(keyspace, page).lock();
        let deltas = shard.entry((keyspace, page)).or_default();
        self.take(bytes + if deltas.is_empty() { LEAF_BYTES } else { 0 });
        // Equal at recovery, where rows of many commits are applied together, in several goes.
        debug_assert!(deltas.back().is_none_or(|last| last.timestamp <= timestamp));
        deltas.push_back(delta);
    }

    /// What a row was at the snapshot, if it has changed since. The leaf is latched.
    pub(crate) fn find(&self, keyspace: KeyspaceId, page: PageId, key: &[u8], snapshot: Timestamp) -> Option<Was> {
        let shard = self.shard(keyspace, page).lock();
        let deltas = shard.get(&(keyspace, page))?;
        deltas.iter().filter(|delta| delta.timestamp > snapshot).find_map(|delta| delta.find(key))
    }

    /// The newest commit that changed the row and is still remembered. The leaf is latched.
    pub(crate) fn newest_change(&self, keyspace: KeyspaceId, page: PageId, key: &[u8]) -> Option<Timestamp> {
        let shard = self.shard(keyspace, page).lock();
        let deltas = shard.get(&(keyspace, page))?;
        deltas.iter().rev().find(|delta| delta.find(key).is_some()).map(|delta| delta.timestamp)
    }

    /// Whether a row that `matters` has changed since the snapshot. The leaf is latched.
    pub(crate) fn any_changed(
        &self,
        keyspace: KeyspaceId,
        page: PageId,
        snapshot: Timestamp,
        matters: impl Fn(&[u8]) -> bool,
    ) -> bool {
        let shard = self.shard(keyspace, page).lock();
        let deltas = shard.get(&(keyspace, page)).into_iter().flatten().rev();
        deltas.take_while(|delta| delta.timestamp > snapshot).any(|delta| delta.iter().any(|(key, _)| matters(key)))
    }

    /// All rows of a leaf that have changed since the snapshot, with what they were. The leaf is latched.
    pub(crate) fn overlay(&self, keyspace: KeyspaceId, page: PageId, snapshot: Timestamp) -> BTreeMap<Vec<u8>, Was> {
        let shard = self.shard(keyspace, page).lock();
        let mut rows = BTreeMap::new();
        for delta in shard.get(&(keyspace, page)).into_iter().flatten() {
            if delta.timestamp > snapshot {
                for (key, was) in delta.iter() {
                    rows.entry(key.to_vec()).or_insert_with(|| Was::of(was));
                }
            }
        }
        rows
    }

    /// Bytes of memory, and what commits under way may add.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.budget.taken_bytes(Use::Versions)
    }

    fn take(&self, bytes: usize) {
        self.budget.take(Use::Versions, bytes as u64);
    }

    fn give(&self, bytes: usize) {
        self.budget.give(Use::Versions, bytes as u64);
    }

    /// Whether enough has come together that dropping what nobody needs is worth a look: twice what the last left, and near the
    /// end a little more.
    pub(crate) fn wants_sweep(&self) -> bool {
        let most = self.budget.version_bytes_max();
        let few = (most / 8).min(UNSWEPT_BYTES_MAX);
        let left = self.swept_bytes.load(Ordering::Relaxed);
        self.memory_bytes() > (2 * left).clamp(few, most.max(left + few))
    }

    /// Drops the deltas of commits up to `horizon` and returns the large values that only they named. One thread at a
    /// time is enough.
    pub(crate) fn sweep(&self, horizon: Timestamp) -> Vec<(KeyspaceId, LargeRef)> {
        let mut freed = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.retain(|&(keyspace, _), deltas| {
                while deltas.front().is_some_and(|delta| delta.timestamp <= horizon) {
                    let delta = deltas.pop_front().expect("looked at");
                    self.forget(keyspace, &delta, &mut freed);
                }
                if deltas.is_empty() {
                    self.give(LEAF_BYTES);
                } else if deltas.len() < deltas.capacity() / 4 {
                    deltas.shrink_to(2 * deltas.len());
                }
                !deltas.is_empty()
            });
            if shard.len() < shard.capacity() / 8 {
                let count = shard.len();
                shard.shrink_to(2 * count);
            }
        }
        self.swept_bytes.store(self.memory_bytes(), Ordering::Relaxed);
        freed
    }

    fn forget(&self, keyspace: KeyspaceId, delta: &Delta, freed: &mut Vec<(KeyspaceId, LargeRef)>) {
        self.give(delta.bytes());
        freed.extend(delta.large().map(|reference| (keyspace, reference)));
    }

    /// The pages of a large value are free: a checkpoint need not list them. The first of them may be another's by now, and be
    /// held for that one.
    pub(crate) fn let_go(&self, keyspace: KeyspaceId, reference: &LargeRef) {
        let mut held = self.held.lock();
        let key = (keyspace, reference.first_page);
        if held.get(&key) == Some(reference) {
            held.remove(&key);
            self.held_count.store(held.len() as u64, Ordering::Relaxed);
        }
    }

    /// Bytes that a checkpoint's list of [`orphans`](Self::orphans) takes.
    pub(crate) fn orphan_bytes(&self) -> u64 {
        self.held_count.load(Ordering::Relaxed) * catalogue::ORPHAN_BYTES
    }

    /// Values that only versions name: what a checkpoint lists.
    pub(crate) fn orphans(&self) -> Vec<Orphan> {
        (self.held.lock().iter())
            .map(|(&(keyspace, first_page), reference)| Orphan {
                keyspace,
                first_page,
                page_count: reference.chunk_count,
            })
            .collect()
    }

    /// Forgets everything about a dropped keyspace.
    pub(crate) fn drop_keyspace(&self, keyspace: KeyspaceId) {
        let mut freed = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|&(of, _), deltas| {
                if of == keyspace {
                    for delta in deltas.drain(..) {
                        self.forget(keyspace, &delta, &mut freed);
                    }
                    self.give(LEAF_BYTES);
                }
                of != keyspace
            });
        }
        let mut held = self.held.lock();
        held.retain(|&(of, _), _| of != keyspace);
        self.held_count.store(held.len() as u64, Ordering::Relaxed);
    }
}

impl Observer for Versions {
    fn rows_moved(&self, pages: &PageSpace, from: PageId, to: PageId, separator: Option<&[u8]>) {
        let (moved, kept) = {
            let mut shard = self.shard(pages.id, from).lock();
            let Some(deltas) = shard.remove(&(pages.id, from)) else { return };
            match separator {
                None => {
                    self.give(LEAF_BYTES);
                    (deltas, VecDeque::new())
                }
                Some(separator) => {
                    self.give(LEAF_BYTES);
                    let mut moved = VecDeque::new();
                    let mut kept = VecDeque::new();
                    for delta in deltas {
                        let mut sides = [Delta::new(), Delta::new()];
                        for (key, was) in delta.iter() {
                            sides[usize::from(key >= separator)].push(key, was);
                        }
                        self.give(delta.bytes());
                        for (side, list) in sides.into_iter().zip([&mut kept, &mut moved]) {
                            if !side.rows.is_empty() {
                                self.take(side.bytes());
                                list.push_back(Delta { timestamp: delta.timestamp, ..side });
                            }
                        }
                    }
                    (moved, kept)
                }
            }
        };
        if !kept.is_empty() {
            self.take(LEAF_BYTES);
            self.shard(pages.id, from).lock().insert((pages.id, from), kept);
        }
        if !moved.is_empty() {
            let mut shard = self.shard(pages.id, to).lock();
            let there = shard.entry((pages.id, to)).or_default();
            if there.is_empty() {
                self.take(LEAF_BYTES);
            } else {
                crate::witness::mark!("versions of two merged leaves were put together");
            }
            there.extend(moved);
            there.make_contiguous().sort_by_key(|delta| delta.timestamp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(rows: &[(&[u8], Option<&[u8]>)]) -> Delta {
        let mut delta = Delta::new();
        for (key, was) in rows {
            delta.push(key, was.map(RowValue::Inline));
        }
        delta
    }

    const KEYSPACE: KeyspaceId = KeyspaceId(1);

    /// Each snapshot sees the row as it was then; a snapshot after all changes sees the page.
    #[test]
    fn each_snapshot_sees_its_own_version() {
        let versions = Versions::new(&Arc::new(Budget::new(8 << 20, 1)));
        let page = PageId(1);
        versions.add(KEYSPACE, page, Timestamp(5), delta(&[(b"a", None), (b"b", Some(b"old"))]));
        versions.add(KEYSPACE, page, Timestamp(9), delta(&[(b"a", Some(b"first"))]));
        let find = |key: &[u8], at| versions.find(KEYSPACE, page, key, Timestamp(at));
        assert_eq!(find(b"a", 4), Some(Was::Absent));
        assert_eq!(find(b"a", 5), Some(Was::Inline((*b"first").into())));
        assert_eq!(find(b"a", 9), None);
        assert_eq!(find(b"b", 4), Some(Was::Inline((*b"old").into())));
        assert_eq!(find(b"b", 5), None);
        assert_eq!(versions.overlay(KEYSPACE, page, Timestamp(4)).len(), 2);
        assert_eq!(versions.newest_change(KEYSPACE, page, b"a"), Some(Timestamp(9)));
    }

    /// Only changes after the snapshot count, and only of rows that matter.
    #[test]
    fn changes_are_those_after_the_snapshot() {
        let versions = Versions::new(&Arc::new(Budget::new(8 << 20, 1)));
        let page = PageId(1);
        versions.add(KEYSPACE, page, Timestamp(5), delta(&[(b"a", None)]));
        versions.add(KEYSPACE, page, Timestamp(9), delta(&[(b"b", None)]));
        let changed = |key: &[u8], at| versions.any_changed(KEYSPACE, page, Timestamp(at), |changed| changed == key);
        assert!(changed(b"a", 4) && !changed(b"a", 5));
        assert!(changed(b"b", 5) && changed(b"b", 8) && !changed(b"b", 9));
        assert!(!changed(b"c", 0));
    }

    /// A value that is free is let go by its identity: by then its number may be another's that was replaced too.
    #[test]
    fn a_value_is_let_go_alone() {
        let versions = Versions::new(&Arc::new(Budget::new(8 << 20, 1)));
        let replaced = |id| {
            let reference = LargeRef { length: 100_000, id, first_page: PageId(9), chunk_count: 2 };
            let mut delta = Delta::new();
            delta.push(b"a", Some(RowValue::Large(reference)));
            versions.add(KEYSPACE, PageId(1), Timestamp(id), delta);
            reference
        };
        let (first, second) = (replaced(5), replaced(6));
        versions.let_go(KEYSPACE, &first);
        assert_eq!(versions.orphans().len(), 1);
        versions.let_go(KEYSPACE, &second);
        assert_eq!(versions.orphans().len(), 0);
    }

    /// Versions follow their rows through a split and a merge, in the order of their commits.
    #[test]
    fn versions_follow_their_rows() {
        let versions = Versions::new(&Arc::new(Budget::new(8 << 20, 1)));
        let pages = PageSpace::new(KEYSPACE, 4096, 0);
        let (left, right) = (PageId(1), PageId(2));
        versions.add(KEYSPACE, left, Timestamp(5), delta(&[(b"a", None), (b"x", Some(b"1"))]));
        versions.rows_moved(&pages, left, right, Some(b"m"));
        assert_eq!(versions.find(KEYSPACE, left, b"x", Timestamp(4)), None);
        assert_eq!(versions.find(KEYSPACE, right, b"x", Timestamp(4)), Some(Was::Inline((*b"1").into())));
        versions.add(KEYSPACE, left, Timestamp(6), delta(&[(b"a", Some(b"2"))]));
        versions.rows_moved(&pages, right, left, None);
        assert_eq!(versions.find(KEYSPACE, left, b"x", Timestamp(4)), Some(Was::Inline((*b"1").into())));
        assert_eq!(versions.find(KEYSPACE, left, b"a", Timestamp(4)), Some(Was::Absent));
        versions.sweep(Timestamp(6));
        assert_eq!(versions.memory_bytes(), 0);
    }
}
