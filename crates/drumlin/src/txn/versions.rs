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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::collections::HashMap;
use crate::sync::Mutex;

use crate::format::catalogue::Orphan;
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, PageId, Timestamp};
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
}

const ABSENT: u32 = u32::MAX;
const LARGE: u32 = u32::MAX - 1;

impl Delta {
    pub(crate) fn new() -> Delta {
        Delta { timestamp: Timestamp(0), rows: Vec::new() }
    }

    /// Whether no row is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a row; keys ascend.
    pub(crate) fn push(&mut self, key: &[u8], was: Option<RowValue<'_>>) {
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
        self.rows.capacity() + size_of::<Delta>() + 48
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
    bytes: AtomicU64,
    delta_count: AtomicUsize,
    /// Deltas at the end of the last sweep: the next is due when there are twice as many.
    swept_count: AtomicUsize,
}

/// Deltas that are kept without looking whether they are still needed.
const UNSWEPT_DELTA_COUNT: usize = 2048;

impl Versions {
    pub(crate) fn new() -> Versions {
        Versions {
            shards: (0..64).map(|_| Mutex::default()).collect(),
            held: Mutex::default(),
            bytes: AtomicU64::new(0),
            delta_count: AtomicUsize::new(0),
            swept_count: AtomicUsize::new(0),
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
            self.held.lock().insert((keyspace, reference.first_page), reference);
        }
        self.bytes.fetch_add(delta.bytes() as u64, Ordering::Relaxed);
        self.delta_count.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.shard(keyspace, page).lock();
        let deltas = shard.entry((keyspace, page)).or_default();
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

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether enough has come together that dropping what nobody needs is worth a look.
    pub(crate) fn wants_sweep(&self) -> bool {
        let count = self.delta_count.load(Ordering::Relaxed);
        count > UNSWEPT_DELTA_COUNT.max(self.swept_count.load(Ordering::Relaxed) * 2)
    }

    /// Drops the deltas of commits up to `horizon` and returns the large values that only they named. One thread at a
    /// time is enough.
    pub(crate) fn sweep(&self, horizon: Timestamp) -> Vec<(KeyspaceId, LargeRef)> {
        let mut freed = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|&(keyspace, _), deltas| {
                while deltas.front().is_some_and(|delta| delta.timestamp <= horizon) {
                    let delta = deltas.pop_front().expect("looked at");
                    self.forget(keyspace, &delta, &mut freed);
                }
                !deltas.is_empty()
            });
        }
        self.swept_count.store(self.delta_count.load(Ordering::Relaxed), Ordering::Relaxed);
        freed
    }

    fn forget(&self, keyspace: KeyspaceId, delta: &Delta, freed: &mut Vec<(KeyspaceId, LargeRef)>) {
        self.bytes.fetch_sub(delta.bytes() as u64, Ordering::Relaxed);
        self.delta_count.fetch_sub(1, Ordering::Relaxed);
        freed.extend(delta.large().map(|reference| (keyspace, reference)));
    }

    /// The pages of a large value are free: a checkpoint need not list them. The first of them may be another's by now, and be
    /// held for that one.
    pub(crate) fn let_go(&self, keyspace: KeyspaceId, reference: &LargeRef) {
        let mut held = self.held.lock();
        let key = (keyspace, reference.first_page);
        if held.get(&key) == Some(reference) {
            held.remove(&key);
        }
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
                }
                of != keyspace
            });
        }
        self.held.lock().retain(|&(of, _), _| of != keyspace);
    }
}

impl Observer for Versions {
    fn rows_moved(&self, pages: &PageSpace, from: PageId, to: PageId, separator: Option<&[u8]>) {
        let (moved, kept) = {
            let mut shard = self.shard(pages.id, from).lock();
            let Some(deltas) = shard.remove(&(pages.id, from)) else { return };
            match separator {
                None => (deltas, VecDeque::new()),
                Some(separator) => {
                    let mut moved = VecDeque::new();
                    let mut kept = VecDeque::new();
                    for delta in deltas {
                        let mut sides = [Delta::new(), Delta::new()];
                        for (key, was) in delta.iter() {
                            sides[usize::from(key >= separator)].push(key, was);
                        }
                        self.bytes.fetch_sub(delta.bytes() as u64, Ordering::Relaxed);
                        self.delta_count.fetch_sub(1, Ordering::Relaxed);
                        for (side, list) in sides.into_iter().zip([&mut kept, &mut moved]) {
                            if !side.rows.is_empty() {
                                self.bytes.fetch_add(side.bytes() as u64, Ordering::Relaxed);
                                self.delta_count.fetch_add(1, Ordering::Relaxed);
                                list.push_back(Delta { timestamp: delta.timestamp, ..side });
                            }
                        }
                    }
                    (moved, kept)
                }
            }
        };
        if !kept.is_empty() {
            self.shard(pages.id, from).lock().insert((pages.id, from), kept);
        }
        if !moved.is_empty() {
            let mut shard = self.shard(pages.id, to).lock();
            let there = shard.entry((pages.id, to)).or_default();
            if !there.is_empty() {
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
        let versions = Versions::new();
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
        let versions = Versions::new();
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
        let versions = Versions::new();
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
        let versions = Versions::new();
        let pages = PageSpace::new(KEYSPACE, 4096);
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
