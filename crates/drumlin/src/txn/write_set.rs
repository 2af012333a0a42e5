//! A transaction's private changes.
//!
//! # Invariants
//! 1. Nothing in it is in any page before the commit: an abort drops it. Large values are shared with their readers.
//! 2. Entries are only appended; each knows the previous entry of the same key. So a savepoint is a number of entries,
//!    and rolling back to it restores the older entries.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use super::values::LargeValue;
use crate::format::{ExtentAddress, ExtentRef, KeyspaceId, record};
use crate::memory::{Grant, grown_capacity, heap_bytes, reserve};
use crate::tree::Tree;

/// The transaction's last change of a row.
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
}

#[derive(Clone, Debug)]
struct Entry {
    keyspace: KeyspaceId,
    key: Range<usize>,
    kept: Kept,
    /// The previous entry of the same key.
    previous: Option<u32>,
}

/// The newest entry of each key of one keyspace.
#[derive(Clone, Debug)]
enum Index {
    /// While keys come in ascending order: the entries in that order. A sorted load stays here.
    Ascending(Vec<u32>),
    Sorted(BTreeMap<Box<[u8]>, u32>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WriteSet {
    trees: BTreeMap<KeyspaceId, (Tree, Index)>,
    arena: Vec<u8>,
    entries: Vec<Entry>,
    /// Keys in sorted indexes.
    index_bytes: usize,
    large_bytes: usize,
    /// Of the newest changes of all rows in the commit's record, and their number.
    record_bytes: usize,
    row_count: usize,
}

/// A write set with its memory, shared by a transaction and its scans, which see it as it was when they began. Changing
/// a set that a scan shares copies it first.
#[derive(Debug)]
pub(crate) struct SharedWrites {
    pub(crate) set: WriteSet,
    pub(crate) memory: Grant,
}

impl SharedWrites {
    pub(crate) fn new(memory: Grant) -> Arc<SharedWrites> {
        Arc::new(SharedWrites { set: WriteSet::default(), memory })
    }

    /// Makes the caller the only owner of `writes`, with this many bytes of memory. Returns `false` if there is no
    /// memory.
    pub(crate) fn secure(writes: &mut Arc<SharedWrites>, bytes: usize) -> bool {
        if let Some(alone) = Arc::get_mut(writes) {
            return alone.memory.cover(bytes as u64);
        }
        let mut memory = writes.memory.another();
        if !memory.cover(bytes as u64) {
            return false;
        }
        *writes = Arc::new(SharedWrites { set: writes.set.clone(), memory });
        true
    }

    /// The set, for changes by a caller that has [secured](Self::secure) it.
    pub(crate) fn alone(writes: &mut Arc<SharedWrites>) -> &mut WriteSet {
        &mut Arc::get_mut(writes).expect("secured a moment ago").set
    }
}

/// An entry of a sorted index without its key, in a tree that is half full.
const INDEX_ENTRY_BYTES: usize = 56;

/// A keyspace with an index of one entry, in a tree that is half full.
const TREE_BYTES: usize = 2 * size_of::<(KeyspaceId, (Tree, Index))>() + 32;

impl WriteSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of memory after adding an entry with this key and a value of this many bytes.
    pub(crate) fn memory_bytes_with(&self, key: &[u8], value_bytes: usize) -> usize {
        let arena_bytes = grown_capacity(&self.arena, key.len() + value_bytes);
        let entry_count = grown_capacity(&self.entries, 1);
        let index_bytes = self.index_bytes + heap_bytes(key.len());
        let tree_bytes = (self.trees.len() + 1) * TREE_BYTES;
        arena_bytes
            + entry_count * (size_of::<Entry>() + INDEX_ENTRY_BYTES)
            + index_bytes
            + self.large_bytes
            + tree_bytes
    }

    /// The number of rows with a change.
    pub(crate) fn row_count(&self) -> usize {
        self.row_count
    }

    /// Bytes of the commit's record with one more change, if they are more than `limit_bytes`. Looks up the change that
    /// it replaces near the limit only.
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
        let replaced_bytes = self.get(keyspace, key).map_or(0, |replaced| record_bytes(key, &replaced));
        assert!(replaced_bytes <= self.record_bytes, "a row has a change that is not counted");
        let bytes = bytes_max - replaced_bytes;
        (bytes > limit_bytes).then_some(bytes)
    }

    /// The number of entries, which is what a savepoint stores.
    pub(crate) fn position(&self) -> usize {
        self.entries.len()
    }

    fn key(&self, entry: u32) -> &[u8] {
        &self.arena[self.entries[entry as usize].key.clone()]
    }

    pub(crate) fn put(&mut self, tree: &Tree, key: &[u8], value: &[u8]) {
        let key = self.keep(key);
        let value = self.keep(value);
        self.push(tree, key, Kept::Put(value));
    }

    pub(crate) fn put_large(&mut self, tree: &Tree, key: &[u8], value: Arc<LargeValue>) {
        debug_assert!(value.reference().is_none(), "a value is put again that a commit has named");
        self.large_bytes += size_of::<LargeValue>() + value.addresses.capacity() * size_of::<ExtentAddress>();
        let key = self.keep(key);
        self.push(tree, key, Kept::PutLarge(value));
    }

    pub(crate) fn remove(&mut self, tree: &Tree, key: &[u8]) {
        let key = self.keep(key);
        self.push(tree, key, Kept::Remove);
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.arena.len();
        reserve(&mut self.arena, bytes.len());
        self.arena.extend_from_slice(bytes);
        start..self.arena.len()
    }

    fn push(&mut self, tree: &Tree, key_range: Range<usize>, kept: Kept) {
        let keyspace = tree.pages.id;
        let number = u32::try_from(self.entries.len()).expect("memory ends before entry numbers");
        let key_of = |entry: u32| &self.arena[self.entries[entry as usize].key.clone()];
        let key = &self.arena[key_range.clone()];
        let (_, index) = self.trees.entry(keyspace).or_insert_with(|| (tree.clone(), Index::Ascending(Vec::new())));
        let mut added_bytes = 0;
        if let Index::Ascending(order) = index
            && order.last().is_some_and(|&last| key_of(last) >= key)
        {
            let map: BTreeMap<Box<[u8]>, u32> = order.iter().map(|&entry| (Box::from(key_of(entry)), entry)).collect();
            assert_eq!(map.len(), order.len(), "two changes of one row are newest");
            added_bytes = map.keys().map(|key| heap_bytes(key.len())).sum();
            *index = Index::Sorted(map);
        }
        let previous = match index {
            Index::Ascending(order) => {
                order.push(number);
                None
            }
            Index::Sorted(map) => {
                let previous = map.insert(key.into(), number);
                added_bytes += if previous.is_none() { heap_bytes(key.len()) } else { 0 };
                previous
            }
        };
        self.index_bytes += added_bytes;
        assert!(previous.is_none_or(|previous| previous < number), "an entry replaces a later one");
        let is_its_own = |previous: u32| {
            self.entries[previous as usize].keyspace == keyspace && *self.key(previous) == self.arena[key_range.clone()]
        };
        debug_assert!(previous.is_none_or(is_its_own), "an entry replaces another row's");
        reserve(&mut self.entries, 1);
        self.entries.push(Entry { keyspace, key: key_range, kept, previous });
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

    /// Bytes of an entry in the commit's record.
    fn record_bytes_of(&self, entry: u32) -> usize {
        record_bytes(self.key(entry), &self.change(entry))
    }

    fn change(&self, entry: u32) -> Change<'_> {
        match &self.entries[entry as usize].kept {
            Kept::Put(value) => Change::Put(&self.arena[value.clone()]),
            Kept::PutLarge(value) => Change::PutLarge(value),
            Kept::Remove => Change::Remove,
        }
    }

    fn index(&self, keyspace: KeyspaceId) -> Option<&Index> {
        self.trees.get(&keyspace).map(|(_, index)| index)
    }

    /// The transaction's last change of a row, if any.
    pub(crate) fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<Change<'_>> {
        let entry = match self.index(keyspace)? {
            Index::Ascending(order) => {
                let at = order.binary_search_by(|&entry| self.key(entry).cmp(key)).ok()?;
                order[at]
            }
            Index::Sorted(map) => *map.get(key)?,
        };
        debug_assert!(self.key(entry) == key, "the index leads to another row's change");
        Some(self.change(entry))
    }

    /// Rows of a keyspace that the transaction changed, within bounds, in the order of their keys.
    pub(crate) fn range(
        &self,
        keyspace: KeyspaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = (&[u8], Change<'_>)> {
        let (ascending, sorted) = match self.index(keyspace) {
            Some(Index::Ascending(order)) => {
                let below = |entry: &u32, bound: &[u8], or_at: bool| {
                    let key = self.key(*entry);
                    key < bound || or_at && key == bound
                };
                let start = match bounds.0 {
                    Bound::Unbounded => 0,
                    Bound::Included(key) => order.partition_point(|entry| below(entry, key, false)),
                    Bound::Excluded(key) => order.partition_point(|entry| below(entry, key, true)),
                };
                let end = match bounds.1 {
                    Bound::Unbounded => order.len(),
                    Bound::Included(key) => order.partition_point(|entry| below(entry, key, true)),
                    Bound::Excluded(key) => order.partition_point(|entry| below(entry, key, false)),
                };
                (Some(&order[start.min(end)..end]), None)
            }
            Some(Index::Sorted(map)) => (None, Some(map)),
            None => (None, None),
        };
        let sorted = sorted.filter(|_| !is_empty_range(bounds)).map(|map| map.range::<[u8], _>(bounds));
        let ascending = ascending.into_iter().flatten().copied();
        ascending
            .chain(sorted.into_iter().flatten().map(|(_, &entry)| entry))
            .map(|entry| (self.key(entry), self.change(entry)))
    }

    /// Keyspaces changed, and in each the newest change of every row, both in ascending order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&Tree, &[u8], Change<'_>)> {
        self.trees.iter().flat_map(|(&keyspace, (tree, _))| {
            self.range(keyspace, (Bound::Unbounded, Bound::Unbounded)).map(move |(key, change)| (tree, key, change))
        })
    }

    /// Undoes all entries from `position` on.
    pub(crate) fn roll_back(&mut self, position: usize) {
        assert!(position <= self.entries.len(), "entry {position} of {} is rolled back to", self.entries.len());
        while self.entries.len() > position {
            self.record_bytes -= self.record_bytes_of(self.entries.len() as u32 - 1);
            let entry = self.entries.pop().expect("counted");
            match entry.previous {
                Some(previous) => self.record_bytes += self.record_bytes_of(previous),
                None => self.row_count -= 1,
            }
            debug_assert!(self.row_count > 0 || self.record_bytes == 0, "{} bytes of no rows", self.record_bytes);
            let goes_back = |previous: u32| (previous as usize) < self.entries.len();
            assert!(entry.previous.is_none_or(goes_back), "an entry is undone and a later one restored");
            let key = &self.arena[entry.key.clone()];
            match &mut self.trees.get_mut(&entry.keyspace).expect("entered").1 {
                Index::Ascending(order) => {
                    let undone = order.pop();
                    assert_eq!(undone, Some(self.entries.len() as u32), "another entry than the newest is undone");
                }
                Index::Sorted(map) => match entry.previous {
                    Some(previous) => *map.get_mut(key).expect("indexed") = previous,
                    None => {
                        let undone = map.remove(key);
                        assert_eq!(undone, Some(self.entries.len() as u32), "another entry than the newest is undone");
                        self.index_bytes -= heap_bytes(key.len());
                    }
                },
            }
            self.arena.truncate(entry.key.start);
            if let Kept::PutLarge(value) = entry.kept {
                self.large_bytes -= size_of::<LargeValue>() + value.addresses.capacity() * size_of::<ExtentAddress>();
            }
        }
        let counted_bytes = self.arena.len() + self.index_bytes + self.large_bytes + self.record_bytes;
        debug_assert!(position > 0 || counted_bytes == 0, "a write set of no entries counts {counted_bytes} bytes");
    }
}

/// Bytes of a change in the commit's record.
fn record_bytes(key: &[u8], change: &Change<'_>) -> usize {
    key.len()
        + match change {
            Change::Put(value) => record::PUT_BYTES + value.len(),
            Change::PutLarge(value) => record::PUT_LARGE_BYTES + value.addresses.len() * ExtentRef::BYTES,
            Change::Remove => record::REMOVE_BYTES,
        }
}

/// `BTreeMap::range` panics on these.
fn is_empty_range(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end)) => start >= end,
        _ => false,
    }
}
