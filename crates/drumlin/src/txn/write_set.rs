//! The uncommitted changes of a transaction.
//!
//! # Invariants
//!
//! 1. No page contains any of these changes before the commit, so an abort only drops the write set. Large values are
//!    shared with their readers.
//! 2. Entries are only appended, and each refers to the previous entry of the same key. So a savepoint is just a number
//!    of entries, and rolling back to it restores the older entries.
//! 3. Changes that outgrow memory are spilled (`spilled/writes.rs`). All of them come before the entries in memory.
//! 4. A removed range is an entry too. It comes after an entry for each of the transaction's own rows in the range,
//!    which removes the row. So an entry of a row always comes before the ranges that cover its key.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use super::values::LargeValue;
use crate::counts::CountedTree;
use crate::error::Result;
use crate::format::{ExtentAddress, ExtentRef, KeyspaceId, record};
use crate::memory::{Grant, grown_capacity, reserve};
use crate::space::runs::{RemovedKeys, RemovedRange};
use crate::txn::spilled::writes::{SpilledChange, SpilledWrites, WriteSpill};

/// The last change that a transaction made to a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    Put(&'a [u8]),
    PutLarge(&'a Arc<LargeValue>),
    Remove,
}

#[derive(Clone, Debug)]
enum Kept {
    Put(Range<usize>),
    PutLarge(Arc<LargeValue>),
    Remove,
    /// Removes the rows of a range. The entry's key is the lower end; this is the upper one.
    RemoveRange(Option<Range<usize>>),
}

#[derive(Clone, Debug)]
struct Entry {
    keyspace: KeyspaceId,
    key: Range<usize>,
    kept: Kept,
    /// The previous entry of the same key, if any.
    previous: Option<u32>,
}

/// The newest entry of a key. `head` is the number formed by the eight bytes of the key that follow the index's shared
/// bytes. If two heads differ, they are ordered like their keys.
#[derive(Clone, Copy, Debug)]
struct Newest {
    head: u64,
    entry: u32,
}

/// The newest entry of each key of one keyspace, in key order.
///
/// The index is divided into parts of up to [`PART_ENTRIES`]. A search usually compares only numbers that are adjacent
/// in memory. An insertion in the middle moves the entries of at most one part. If rows arrive in order, they fill the
/// parts completely.
#[derive(Clone, Debug, Default)]
struct Index {
    parts: Vec<Vec<Newest>>,
    /// The length of a prefix that all keys share. It need not be the longest such prefix.
    shared_bytes: usize,
}

/// The maximum number of entries in a part. A full part has 2 KiB.
const PART_ENTRIES: usize = 128;

/// A position in an index: a part, and one of its entries or the end of the part.
type Position = (usize, usize);

/// Returns the first eight bytes of `rest`, a key without the shared bytes, as a number.
#[inline]
fn head_of(rest: &[u8]) -> u64 {
    let mut head = [0; 8];
    let count = rest.len().min(head.len());
    head[..count].copy_from_slice(&rest[..count]);
    u64::from_be_bytes(head)
}

impl Index {
    /// Returns the position of a key's entry, or the position at which it would be inserted.
    fn find<'k>(&self, key: &[u8], key_of: impl Fn(u32) -> &'k [u8]) -> std::result::Result<Position, Position> {
        let Some(first) = self.parts.first().map(|part| part[0]) else { return Err((0, 0)) };
        let shared = &key_of(first.entry)[..self.shared_bytes];
        if !key.starts_with(shared) {
            let last = self.parts.len() - 1;
            return Err(if key < shared { (0, 0) } else { (last, self.parts[last].len()) });
        }
        let head = head_of(&key[self.shared_bytes..]);
        let compare = |newest: &Newest| newest.head.cmp(&head).then_with(|| key_of(newest.entry).cmp(key));
        debug_assert!(self.parts.last().is_none_or(|part| !part.is_empty()), "an index has an empty part");
        let part = self.parts.partition_point(|part| compare(&part[0]).is_le()).saturating_sub(1);
        let found = self.parts[part].binary_search_by(compare);
        found.map(|at| (part, at)).map_err(|at| (part, at))
    }

    /// If `key` does not begin with the shared bytes, shortens them to at most half their length, so that this rarely
    /// happens.
    fn share<'k>(&mut self, key: &[u8], key_of: impl Fn(u32) -> &'k [u8]) {
        let Some(first) = self.parts.first().map(|part| part[0]) else {
            self.shared_bytes = key.len();
            return;
        };
        let shared = &key_of(first.entry)[..self.shared_bytes];
        if key.starts_with(shared) {
            return;
        }
        let common_bytes = key.iter().zip(shared).take_while(|(left, right)| left == right).count();
        assert!(common_bytes < self.shared_bytes, "a key has the shared bytes and is taken for another");
        self.shared_bytes = common_bytes.min(self.shared_bytes / 2);
        for newest in self.parts.iter_mut().flatten() {
            newest.head = head_of(&key_of(newest.entry)[self.shared_bytes..]);
        }
    }

    /// Makes an entry the newest for its key. Returns the entry that it replaces.
    fn insert<'k>(&mut self, entry: u32, key_of: impl Fn(u32) -> &'k [u8]) -> Option<u32> {
        let key = key_of(entry);
        self.share(key, &key_of);
        let newest = Newest { head: head_of(&key[self.shared_bytes..]), entry };
        let is_last = self.parts.last().and_then(|part| part.last()).is_none_or(|last| key_of(last.entry) < key);
        let (part, at) = match self.parts.len() {
            0 => (0, 0),
            count if is_last => (count - 1, self.parts[count - 1].len()),
            _ => match self.find(key, &key_of) {
                Ok((part, at)) => return Some(std::mem::replace(&mut self.parts[part][at].entry, entry)),
                Err(place) => place,
            },
        };
        match self.parts.get_mut(part) {
            Some(entries) if entries.len() < PART_ENTRIES => entries.insert(at, newest),
            Some(entries) => {
                // An entry after all others of the part begins a new part, so rows that arrive in order fill the parts
                // completely.
                let half = if at == PART_ENTRIES { at } else { PART_ENTRIES / 2 };
                let mut upper = entries.split_off(half);
                let (to, at) = if at < half { (entries, at) } else { (&mut upper, at - half) };
                to.insert(at, newest);
                self.parts.insert(part + 1, upper);
            }
            None => self.parts.push(vec![newest]),
        }
        assert!(self.parts[part].len() <= PART_ENTRIES, "a part has {} entries", self.parts[part].len());
        debug_assert!(self.find(key_of(entry), &key_of).is_ok(), "an entry can't be found where it was put");
        None
    }

    /// Replaces an entry with `previous`, or removes the key if there is no previous entry.
    fn undo<'k>(&mut self, entry: u32, previous: Option<u32>, key_of: impl Fn(u32) -> &'k [u8]) {
        let (part, at) = self.find(key_of(entry), &key_of).expect("an entry is undone that is not there");
        assert_eq!(self.parts[part][at].entry, entry, "another entry than the newest is undone");
        match previous {
            Some(previous) => self.parts[part][at].entry = previous,
            None => {
                self.parts[part].remove(at);
                if self.parts[part].is_empty() {
                    self.parts.remove(part);
                }
            }
        }
    }

    /// Returns the entries between two positions, in key order.
    fn between(&self, start: Position, end: Position) -> impl DoubleEndedIterator<Item = u32> {
        let count = self.parts.len();
        assert!(start.0 <= count && end.0 <= count, "places {start:?} to {end:?} of an index of {count} parts");
        let parts = if start < end { start.0.min(count)..(end.0 + 1).min(count) } else { 0..0 };
        parts.flat_map(move |part| {
            let entries = &self.parts[part];
            let from = if part == start.0 { start.1 } else { 0 };
            let to = if part == end.0 { end.1 } else { entries.len() };
            entries[from..to].iter().map(|newest| newest.entry)
        })
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WriteSet {
    trees: BTreeMap<KeyspaceId, (CountedTree, Index)>,
    arena: Vec<u8>,
    entries: Vec<Entry>,
    /// The number of removed ranges, their union for each keyspace, and the bytes of their keys.
    range_count: usize,
    removed: BTreeMap<KeyspaceId, RemovedKeys>,
    removed_bytes: usize,
    large_bytes: usize,
    /// The size in bytes of the commit's record, which contains only the newest change of each row.
    record_bytes: usize,
    /// The number of rows in that record.
    row_count: usize,
    /// The changes that have been spilled, and the number of entries that they came from.
    spilled: SpilledWrites,
    spilled_count: usize,
    /// The large values that the spilled changes put.
    spilled_large: Arc<Vec<Arc<LargeValue>>>,
    spilled_large_bytes: usize,
}

/// The changes of a write set after those in memory have been written to disk.
#[derive(Debug)]
pub(crate) struct Spill {
    writes: SpilledWrites,
    large: Vec<Arc<LargeValue>>,
}

impl Spill {
    pub(crate) fn writes(&self) -> &SpilledWrites {
        &self.writes
    }
}

/// A write set and its memory. A transaction shares the set with its scans, and each scan sees the set as it was when
/// the scan began. If a scan shares the set, the transaction copies the set before changing it.
#[derive(Debug)]
pub(crate) struct SharedWrites {
    pub(crate) set: WriteSet,
    pub(crate) memory: Grant,
}

impl SharedWrites {
    pub(crate) fn new(memory: Grant) -> Arc<SharedWrites> {
        Arc::new(SharedWrites { set: WriteSet::default(), memory })
    }

    /// Makes the caller the only owner of `writes`, with `bytes` of memory. Returns `false` if there is not enough
    /// memory.
    pub(crate) fn secure(writes: &mut Arc<SharedWrites>, bytes: usize) -> bool {
        if let Some(unshared) = Arc::get_mut(writes) {
            return unshared.memory.cover(bytes as u64);
        }
        let mut memory = writes.memory.another();
        if !memory.cover(bytes as u64) {
            return false;
        }
        *writes = Arc::new(SharedWrites { set: writes.set.clone(), memory });
        true
    }

    /// Replaces the changes in memory by spilled ones. Open scans keep the set that they share. With `keeps_memory`,
    /// the next changes use the memory of these. Allocating it again takes a fifth of the time of a large transaction,
    /// most of it in page faults.
    pub(crate) fn replace(writes: &mut Arc<SharedWrites>, spill: Spill, keeps_memory: bool) {
        match Arc::get_mut(writes) {
            Some(unshared) => {
                unshared.set.replace(spill, keeps_memory);
                let is_smaller = unshared.memory.resize(unshared.set.memory_bytes_with(&[], 0) as u64);
                assert!(is_smaller, "a write set grows as it is spilled");
            }
            None => {
                let mut set = writes.set.without_entries();
                set.replace(spill, false);
                *writes = Arc::new(SharedWrites { set, memory: writes.memory.another() });
            }
        }
    }

    /// Deallocates the memory that a spill has left for the next changes. Returns `false` if there is none, or if it is
    /// in use.
    pub(crate) fn free_unused(writes: &mut Arc<SharedWrites>) -> bool {
        let Some(SharedWrites { set, .. }) = Arc::get_mut(writes) else { return false };
        let is_unused = set.entries.is_empty() && set.arena.capacity() + set.entries.capacity() > 0;
        if is_unused {
            (set.arena, set.entries) = (Vec::new(), Vec::new());
        }
        is_unused
    }

    /// Returns the set for changes. The caller must have [secured](Self::secure) it.
    pub(crate) fn unshared(writes: &mut Arc<SharedWrites>) -> &mut WriteSet {
        &mut Arc::get_mut(writes).expect("secured a moment ago").set
    }
}

/// Empties a vector. Keeps its memory if at least half of it was used.
fn emptied<T>(mut vector: Vec<T>) -> Vec<T> {
    if vector.len() < vector.capacity() / 2 {
        return Vec::new();
    }
    vector.clear();
    vector
}

/// Returns the memory of a large value that has been written.
fn large_value_bytes(value: &Arc<LargeValue>) -> usize {
    size_of::<LargeValue>() + value.addresses.capacity() * size_of::<ExtentAddress>()
}

/// The memory of an index entry in a part that is half full, with a share of the part's header.
const INDEX_ENTRY_BYTES: usize = 2 * size_of::<Newest>() + 2;

/// The memory of a keyspace whose index has one entry, in a map that is half full. The smallest vector has a capacity
/// of four.
const TREE_BYTES: usize =
    2 * size_of::<(KeyspaceId, (CountedTree, Index))>() + 4 * (size_of::<Vec<Newest>>() + size_of::<Newest>());

impl WriteSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.spilled.is_empty()
    }

    /// Returns the spilled changes. They come before those in memory.
    pub(crate) fn spilled(&self) -> &SpilledWrites {
        &self.spilled
    }

    /// Returns the large value that a spilled change puts.
    pub(crate) fn spilled_large(&self, number: u32) -> &Arc<LargeValue> {
        assert!((number as usize) < self.spilled_large.len(), "large value {number} was not spilled");
        &self.spilled_large[number as usize]
    }

    /// Returns `true` if there are changes in memory that can be spilled. Removed ranges stay in memory.
    pub(crate) fn can_spill(&self) -> bool {
        self.range_count == 0 && !self.entries.is_empty()
    }

    /// Writes the changes in memory to disk. Entries before the position `savepoint` may become the newest of their
    /// rows again.
    pub(crate) fn spill_to(&self, spill: &WriteSpill, savepoint: usize) -> Result<Spill> {
        assert!(self.range_count == 0, "a removed range is spilled");
        assert!(!self.entries.is_empty(), "nothing is spilled");
        let mut writer = spill.begin();
        let mut large = self.spilled_large.to_vec();
        let mut of_row = Vec::new();
        for (&keyspace, (_, index)) in &self.trees {
            for newest in index.between((0, 0), (index.parts.len(), 0)) {
                of_row.push(newest);
                let mut entry = newest;
                while let Some(previous) = self.entries[entry as usize].previous {
                    if self.spilled_count + (previous as usize) < savepoint {
                        of_row.push(previous);
                    }
                    entry = previous;
                }
                debug_assert!(of_row.is_sorted_by(|left, right| left > right), "entries of a row are out of order");
                for entry in of_row.drain(..).rev() {
                    let position = (self.spilled_count + entry as usize) as u64;
                    let change = match self.change(entry) {
                        Change::Put(value) => SpilledChange::Put(value),
                        Change::PutLarge(value) => {
                            large.push(Arc::clone(value));
                            SpilledChange::PutLarge(large.len() as u32 - 1)
                        }
                        Change::Remove => SpilledChange::Remove,
                    };
                    writer.push(keyspace, self.key(entry), position, change)?;
                }
            }
        }
        assert!(large.len() >= self.spilled_large.len(), "large values are lost");
        let writes = self.spilled.with(spill, writer, savepoint as u64)?;
        assert!(!writes.is_empty(), "changes are lost");
        crate::coverage::mark!("the changes of a transaction were spilled");
        Ok(Spill { writes, large })
    }

    /// Returns the rows with changes in memory, in the order of keyspace and key.
    pub(crate) fn changed_keys(&self) -> impl Iterator<Item = (KeyspaceId, &[u8])> {
        self.trees.iter().flat_map(move |(&keyspace, (_, index))| {
            index.between((0, 0), (index.parts.len(), 0)).map(move |entry| (keyspace, self.key(entry)))
        })
    }

    fn without_entries(&self) -> WriteSet {
        let (spilled_count, spilled) = (self.position(), self.spilled.clone());
        WriteSet { spilled, spilled_count, ..WriteSet::default() }
    }

    fn replace(&mut self, Spill { writes, large }: Spill, keeps_memory: bool) {
        let empty = self.without_entries();
        let WriteSet { arena, entries, .. } = std::mem::replace(self, empty);
        if keeps_memory {
            (self.arena, self.entries) = (emptied(arena), emptied(entries));
        }
        assert!(self.entries.is_empty() && self.record_bytes == 0, "changes are in memory and spilled");
        self.spilled = writes;
        self.spilled_large_bytes = large.iter().map(large_value_bytes).sum();
        self.spilled_large = Arc::new(large);
    }

    /// Returns the memory of the set after an entry with this key and a value of this size is added.
    pub(crate) fn memory_bytes_with(&self, key: &[u8], value_bytes: usize) -> usize {
        let arena_bytes = grown_capacity(&self.arena, key.len() + value_bytes);
        let entry_count = grown_capacity(&self.entries, 1);
        let tree_bytes = (self.trees.len() + 1) * TREE_BYTES;
        let removed_bytes = self.range_count * size_of::<RemovedRange>() + self.removed_bytes;
        arena_bytes
            + entry_count * (size_of::<Entry>() + INDEX_ENTRY_BYTES)
            + self.large_bytes
            + self.spilled_large_bytes
            + tree_bytes
            + removed_bytes
    }

    /// Returns the memory that the entries in memory use, without free capacity.
    pub(crate) fn entry_bytes(&self) -> usize {
        self.arena.len() + self.entries.len() * (size_of::<Entry>() + INDEX_ENTRY_BYTES)
    }

    /// Returns the memory of the set after a range is removed.
    pub(crate) fn memory_bytes_with_range(&self, keyspace: KeyspaceId, range: &RemovedRange) -> usize {
        let (count, key_bytes) =
            self.rows_in(keyspace, range).fold((0, 0), |(count, bytes), (key, _)| (count + 1, bytes + key.len()));
        let range_bytes = range.lower.len() + range.upper.as_ref().map_or(0, Vec::len);
        let arena_bytes = grown_capacity(&self.arena, key_bytes + range_bytes);
        let entry_count = grown_capacity(&self.entries, count + 1);
        let removed_bytes = (self.range_count + 1) * size_of::<RemovedRange>() + self.removed_bytes + range_bytes;
        let tree_bytes = (self.trees.len() + 1) * TREE_BYTES;
        arena_bytes
            + entry_count * (size_of::<Entry>() + INDEX_ENTRY_BYTES)
            + self.large_bytes
            + self.spilled_large_bytes
            + tree_bytes
            + removed_bytes
    }

    /// Returns the number of ranges that the transaction has removed.
    pub(crate) fn range_count(&self) -> usize {
        self.range_count
    }

    /// Returns the keys of a keyspace whose rows the transaction has removed by ranges.
    pub(crate) fn removed(&self, keyspace: KeyspaceId) -> Option<&RemovedKeys> {
        self.removed.get(&keyspace)
    }

    /// Returns the keyspaces with removed ranges, in order.
    pub(crate) fn removals(&self) -> impl Iterator<Item = (&CountedTree, &RemovedKeys)> {
        self.removed.iter().map(|(keyspace, removed)| (&self.trees[keyspace].0, removed))
    }

    /// Returns the transaction's own changes in a range.
    fn rows_in(
        &self,
        keyspace: KeyspaceId,
        RemovedRange { lower, upper }: &RemovedRange,
    ) -> impl Iterator<Item = (&[u8], Change<'_>)> {
        let upper = upper.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.range(keyspace, (Bound::Included(lower), upper))
    }

    /// Returns the number of rows with a change.
    pub(crate) fn row_count(&self) -> usize {
        self.row_count
    }

    /// Returns the bytes that the changes take in a commit's record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Returns `true` if the commit changes more rows than `row_count` or its record is longer than `record_bytes`.
    pub(crate) fn is_longer_than(&self, row_count: usize, record_bytes: usize) -> bool {
        self.row_count > row_count || self.record_bytes > record_bytes
    }

    /// Returns the size of the commit's record with one more change, if it exceeds `limit_bytes`. Looks up the change
    /// that the new one would replace only if the size is near the limit.
    pub(crate) fn record_bytes_above(
        &self,
        limit_bytes: usize,
        keyspace: KeyspaceId,
        key: &[u8],
        change: &Change<'_>,
    ) -> Option<usize> {
        let bytes_max = self.record_bytes + record_bytes(key, change);
        if bytes_max <= limit_bytes {
            return None;
        }
        let replaced_bytes = self.own_row(keyspace, key).map_or(0, |replaced| record_bytes(key, &replaced));
        assert!(replaced_bytes <= self.record_bytes, "a row has a change that is not counted");
        let bytes = bytes_max - replaced_bytes;
        (bytes > limit_bytes).then_some(bytes)
    }

    /// Returns the number of entries, spilled ones included. A savepoint stores this number.
    pub(crate) fn position(&self) -> usize {
        self.spilled_count + self.entries.len()
    }

    fn key(&self, entry: u32) -> &[u8] {
        &self.arena[self.entries[entry as usize].key.clone()]
    }

    pub(crate) fn put(&mut self, tree: &CountedTree, key: &[u8], value: &[u8]) {
        let key = self.keep(key);
        let value = self.keep(value);
        self.push(tree, key, Kept::Put(value));
    }

    pub(crate) fn put_large(&mut self, tree: &CountedTree, key: &[u8], value: Arc<LargeValue>) {
        self.large_bytes += large_value_bytes(&value);
        let key = self.keep(key);
        self.push(tree, key, Kept::PutLarge(value));
    }

    pub(crate) fn remove(&mut self, tree: &CountedTree, key: &[u8]) {
        let key = self.keep(key);
        self.push(tree, key, Kept::Remove);
    }

    /// Removes the rows of a range, which must not be empty. O(own rows in the range).
    pub(crate) fn remove_range(&mut self, tree: &CountedTree, range: RemovedRange) {
        assert!(!range.is_empty(), "a range without keys is removed");
        let keyspace = tree.pages.id;
        let is_put = |(key, change): (&[u8], Change<'_>)| (!matches!(change, Change::Remove)).then(|| key.to_vec());
        let own: Vec<Vec<u8>> = self.rows_in(keyspace, &range).filter_map(is_put).collect();
        for key in own {
            self.remove(tree, &key);
        }
        let lower = self.keep(&range.lower);
        let upper = range.upper.as_deref().map(|upper| self.keep(upper));
        reserve(&mut self.entries, 1);
        self.entries.push(Entry { keyspace, key: lower, kept: Kept::RemoveRange(upper), previous: None });
        self.trees.entry(keyspace).or_insert_with(|| (tree.clone(), Index::default()));
        self.record_bytes += self.record_bytes_of(self.entries.len() as u32 - 1);
        self.add_removed(keyspace, range);
    }

    fn add_removed(&mut self, keyspace: KeyspaceId, range: RemovedRange) {
        self.range_count += 1;
        self.removed_bytes += range.lower.len() + range.upper.as_ref().map_or(0, Vec::len);
        self.removed.entry(keyspace).or_default().add(range);
        assert!(self.removed.len() <= self.range_count, "a keyspace has removed keys without a range");
    }

    /// Computes the removed ranges again, after entries have been undone.
    fn restore_removed(&mut self) {
        self.range_count = 0;
        self.removed_bytes = 0;
        self.removed.clear();
        for entry in 0..self.entries.len() {
            if let Entry { keyspace, key, kept: Kept::RemoveRange(upper), .. } = &self.entries[entry] {
                let upper = upper.clone().map(|upper| self.arena[upper].to_vec());
                let range = RemovedRange { lower: self.arena[key.clone()].to_vec(), upper };
                self.add_removed(*keyspace, range);
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.arena.len();
        reserve(&mut self.arena, bytes.len());
        self.arena.extend_from_slice(bytes);
        start..self.arena.len()
    }

    fn push(&mut self, tree: &CountedTree, key_range: Range<usize>, kept: Kept) {
        let keyspace = tree.pages.id;
        let number = u32::try_from(self.entries.len()).expect("memory ends before entry numbers");
        reserve(&mut self.entries, 1);
        self.entries.push(Entry { keyspace, key: key_range, kept, previous: None });
        let (arena, entries) = (&self.arena, &self.entries);
        let key_of = |entry: u32| &arena[entries[entry as usize].key.clone()];
        let (_, index) = self.trees.entry(keyspace).or_insert_with(|| (tree.clone(), Index::default()));
        let previous = index.insert(number, key_of);
        assert!(previous.is_none_or(|previous| previous < number), "an entry replaces a later one");
        let is_its_own = |previous: u32| {
            self.entries[previous as usize].keyspace == keyspace && self.key(previous) == self.key(number)
        };
        debug_assert!(previous.is_none_or(is_its_own), "an entry replaces another row's");
        self.entries[number as usize].previous = previous;
        self.record_bytes += self.record_bytes_of(number);
        match previous {
            Some(previous) => self.record_bytes -= self.record_bytes_of(previous),
            None => self.row_count += 1,
        }
        assert!(self.row_count <= self.entries.len(), "{} rows of {} entries", self.row_count, self.entries.len());
        debug_assert!(
            self.record_bytes >= self.row_count * record::REMOVE_BYTES,
            "rows that a record takes no bytes for"
        );
    }

    /// Returns the size of an entry in the commit's record, in bytes.
    fn record_bytes_of(&self, entry: u32) -> usize {
        if let Kept::RemoveRange(upper) = &self.entries[entry as usize].kept {
            return record::REMOVE_RANGE_BYTES + self.key(entry).len() + upper.as_ref().map_or(0, Range::len);
        }
        record_bytes(self.key(entry), &self.change(entry))
    }

    fn change(&self, entry: u32) -> Change<'_> {
        match &self.entries[entry as usize].kept {
            Kept::Put(value) => Change::Put(&self.arena[value.clone()]),
            Kept::PutLarge(value) => Change::PutLarge(value),
            Kept::Remove => Change::Remove,
            Kept::RemoveRange(_) => unreachable!("a removed range is taken for a row"),
        }
    }

    fn index(&self, keyspace: KeyspaceId) -> Option<&Index> {
        self.trees.get(&keyspace).map(|(_, index)| index)
    }

    /// Returns the transaction's last change of a row: a put, a removal, or the removal of a range that contains its
    /// key.
    pub(crate) fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<Change<'_>> {
        let is_removed = || self.removed(keyspace).is_some_and(|removed| removed.covers(key));
        self.own_row(keyspace, key).or_else(|| is_removed().then_some(Change::Remove))
    }

    /// Returns the transaction's last put or removal of this row. Does not consider removed ranges.
    fn own_row(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<Change<'_>> {
        let index = self.index(keyspace)?;
        let (part, at) = index.find(key, |entry| self.key(entry)).ok()?;
        let entry = index.parts[part][at].entry;
        debug_assert!(self.key(entry) == key, "the index leads to another row's change");
        Some(self.change(entry))
    }

    /// Returns the changed rows of a keyspace within bounds, in key order.
    pub(crate) fn range(
        &self,
        keyspace: KeyspaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = (&[u8], Change<'_>)> {
        let index = self.index(keyspace);
        let within = index.map(|index| {
            let at_or_above = |key: &[u8]| index.find(key, |entry| self.key(entry)).unwrap_or_else(|place| place);
            let above = |key: &[u8]| match index.find(key, |entry| self.key(entry)) {
                Ok((part, at)) => (part, at + 1),
                Err(place) => place,
            };
            let start = match bounds.0 {
                Bound::Unbounded => (0, 0),
                Bound::Included(key) => at_or_above(key),
                Bound::Excluded(key) => above(key),
            };
            let end = match bounds.1 {
                Bound::Unbounded => (index.parts.len(), 0),
                Bound::Included(key) => above(key),
                Bound::Excluded(key) => at_or_above(key),
            };
            index.between(start, end)
        });
        within.into_iter().flatten().map(|entry| (self.key(entry), self.change(entry)))
    }

    /// Returns the newest change of every row, in the order of (keyspace, key). Omits rows that a removed range covers
    /// and that were not put afterwards.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&CountedTree, &[u8], Change<'_>)> {
        self.trees.iter().flat_map(|(&keyspace, (tree, _))| {
            let removed = self.removed(keyspace);
            let is_left_out = move |key: &[u8], change: &Change<'_>| {
                matches!(change, Change::Remove) && removed.is_some_and(|removed| removed.covers(key))
            };
            self.range(keyspace, (Bound::Unbounded, Bound::Unbounded))
                .filter(move |(key, change)| !is_left_out(key, change))
                .map(move |(key, change)| (tree, key, change))
        })
    }

    /// Undoes all entries starting at `position`.
    pub(crate) fn roll_back(&mut self, position: usize) {
        assert!(position <= self.position(), "entry {position} of {} is rolled back to", self.position());
        self.roll_back_entries(position.saturating_sub(self.spilled_count));
        if position < self.spilled_count {
            assert!(self.entries.is_empty(), "later changes are kept than earlier ones");
            self.spilled.undo_from(position as u64);
            self.spilled_count = position;
        }
        assert_eq!(self.position(), position, "a roll-back ends elsewhere");
    }

    /// Undoes all entries in memory from this one on.
    fn roll_back_entries(&mut self, position: usize) {
        let mut are_ranges_undone = false;
        while self.entries.len() > position {
            self.record_bytes -= self.record_bytes_of(self.entries.len() as u32 - 1);
            let undone = self.entries.len() as u32 - 1;
            if let Entry { key, kept: Kept::RemoveRange(_), .. } = &self.entries[undone as usize] {
                self.arena.truncate(key.start);
                self.entries.pop();
                are_ranges_undone = true;
                continue;
            }
            let (keyspace, previous) = (self.entries[undone as usize].keyspace, self.entries[undone as usize].previous);
            assert!(previous.is_none_or(|previous| previous < undone), "an entry is undone and a later one restored");
            let (arena, entries) = (&self.arena, &self.entries);
            let key_of = |entry: u32| &arena[entries[entry as usize].key.clone()];
            self.trees.get_mut(&keyspace).expect("entered").1.undo(undone, previous, key_of);
            let entry = self.entries.pop().expect("counted");
            match previous {
                Some(previous) => self.record_bytes += self.record_bytes_of(previous),
                None => self.row_count -= 1,
            }
            debug_assert!(
                self.row_count + self.range_count > 0 || self.record_bytes == 0,
                "{} bytes of no rows",
                self.record_bytes
            );
            self.arena.truncate(entry.key.start);
            if let Kept::PutLarge(value) = entry.kept {
                self.large_bytes -= large_value_bytes(&value);
            }
        }
        if are_ranges_undone {
            self.restore_removed();
        }
        let counted_bytes = self.arena.len() + self.large_bytes + self.record_bytes;
        debug_assert!(position > 0 || counted_bytes == 0, "a write set of no entries counts {counted_bytes} bytes");
    }
}

/// Returns the size of a change in the commit's record, in bytes.
fn record_bytes(key: &[u8], change: &Change<'_>) -> usize {
    key.len()
        + match change {
            Change::Put(value) => record::PUT_BYTES + value.len(),
            Change::PutLarge(value) => record::PUT_LARGE_BYTES + value.addresses.len() * ExtentRef::BYTES,
            Change::Remove => record::REMOVE_BYTES,
        }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// An index finds, replaces, undoes and lists entries like an ordered map. This holds for any order and number of
    /// keys, even if the first eight bytes of all keys are the same.
    #[test]
    fn an_index_is_an_ordered_map() {
        for (seed, count, step) in [(1u64, 3000u64, 1), (2, 3000, 7919), (3, 900, 4), (4, 5, 3)] {
            let mut random = drumlin_testing::Random(seed);
            let mut keys: Vec<Vec<u8>> = Vec::new();
            let (mut index, mut map) = (Index::default(), BTreeMap::new());
            let mut previous = Vec::new();
            for number in 0..count {
                // Sorted, scattered and repeated keys; short keys, and long ones with a common prefix.
                let chosen = (number * step) % if seed == 3 { 300 } else { 3001 };
                let begins = if chosen % 3 == 0 { &b"in common"[..] } else { &b""[..] };
                keys.push([begins, &chosen.to_be_bytes()[chosen as usize % 4..]].concat());
                let entry = number as u32;
                previous.push(index.insert(entry, |entry| &keys[entry as usize]));
                assert_eq!(previous[number as usize], map.insert(keys[number as usize].clone(), entry));
            }
            for _ in 0..300 {
                let [low, high] = [(); 2].map(|()| &keys[random.below(count) as usize][..]);
                let place = |key| index.find(key, |entry| &keys[entry as usize]).unwrap();
                let expected: Vec<u32> = if low < high {
                    map.range(low.to_vec()..high.to_vec()).map(|(_, entry)| *entry).collect()
                } else {
                    Vec::new()
                };
                assert!(index.between(place(low), place(high)).eq(expected.iter().copied()));
                assert!(index.between(place(low), place(high)).rev().eq(expected.iter().rev().copied()));
            }
            for number in (count / 3..count).rev() {
                let before = previous[number as usize];
                index.undo(number as u32, before, |entry| &keys[entry as usize]);
                match before {
                    Some(before) => map.insert(keys[number as usize].clone(), before),
                    None => map.remove(&keys[number as usize]),
                };
            }
            assert!(index.between((0, 0), (index.parts.len(), 0)).eq(map.values().copied()));
        }
    }
}
