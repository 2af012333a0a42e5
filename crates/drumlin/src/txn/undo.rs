//! Undo records, and the queue of a leaf's undo records. An undo record contains the old versions of the rows that one
//! commit changed in one leaf.

use std::collections::VecDeque;

use super::old_rows::{HELD_BYTES, OldVersion};
use crate::format::extent::PageKey;
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, PageId, Timestamp};
use crate::memory::{heap_bytes, reserve};
use crate::tree::node::RowValue;

/// The old versions of the rows that one commit changed in one leaf, packed in key order.
///
/// The layout of each row: key length (4 bytes), value length (4; its two highest values mark an absent row and the
/// reference of a large value), key, value.
#[derive(Debug)]
pub(crate) struct UndoRecord {
    pub(super) timestamp: Timestamp,
    pub(super) rows: Vec<u8>,
    pub(super) large_count: u32,
    /// The spill that was running when the record was added, or when a split or merge last moved the record. That spill
    /// may have missed the record, so it must not drop the record.
    pub(super) missed_by: u32,
}

/// The old versions of the rows that a commit has changed in a leaf, before they are added to the versions.
pub(crate) struct LeafUndo {
    pub(crate) page_key: PageKey,
    pub(crate) undo: UndoRecord,
}

/// The memory of an undo record without its rows: its slot in a queue whose capacity has just doubled.
const UNDO_RECORD_BYTES: usize = 2 * size_of::<UndoRecord>();
/// The memory of a leaf's entry in a hash table whose capacity has just doubled.
pub(super) const LEAF_BYTES: usize = 2 * (size_of::<((KeyspaceId, PageId), UndoRecords)>() + 1);
/// Returns the memory that a row needs in an undo record.
pub(crate) fn row_bytes(key: &[u8], was: Option<RowValue<'_>>) -> usize {
    8 + key.len() + was.map_or(0, |was| was.stored_bytes())
}

/// Returns an upper bound for the memory of a commit's undo record for one leaf.
pub(crate) fn undo_bytes_max(rows_bytes: usize) -> usize {
    heap_bytes(rows_bytes + rows_bytes / 4) + size_of::<LeafUndo>() + UNDO_RECORD_BYTES + LEAF_BYTES
}

/// Returns the bytes that one row adds to the `rows_bytes` of [`undo_bytes_max`].
pub(crate) fn version_bytes_max(key: &[u8], was_bytes: usize) -> usize {
    8 + key.len() + was_bytes + HELD_BYTES
}

/// Returns an upper bound for the memory of the undo record of a commit with one row.
#[inline]
pub(crate) fn one_version_bytes_max(key: &[u8], was: Option<&RowValue<'_>>) -> usize {
    let held_bytes = if matches!(was, Some(RowValue::Large(_))) { HELD_BYTES } else { 0 };
    heap_bytes(row_bytes(key, was.copied())) + UNDO_RECORD_BYTES + LEAF_BYTES + held_bytes
}

const ABSENT: u32 = u32::MAX;
const LARGE: u32 = u32::MAX - 1;

impl UndoRecord {
    pub(crate) fn new() -> UndoRecord {
        UndoRecord { timestamp: Timestamp(0), rows: Vec::new(), large_count: 0, missed_by: 0 }
    }

    /// Creates a record of one row, reusing this vector.
    #[inline]
    pub(crate) fn of_one(mut vector: Vec<u8>, key: &[u8], was: Option<RowValue<'_>>) -> UndoRecord {
        vector.clear();
        let mut undo = UndoRecord { rows: vector, ..UndoRecord::new() };
        undo.push(key, was);
        undo
    }

    /// If this record's vector has a capacity of at most `bytes_max`, returns a copy without spare capacity. Otherwise
    /// returns `None`.
    pub(crate) fn exact(&self, bytes_max: usize) -> Option<UndoRecord> {
        let is_spare = self.rows.capacity() <= bytes_max;
        is_spare.then(|| UndoRecord { rows: self.rows.as_slice().into(), ..*self })
    }

    /// Takes the rows out of this record, which is empty afterwards.
    pub(crate) fn take(&mut self) -> UndoRecord {
        std::mem::replace(self, UndoRecord::new())
    }

    /// Returns the vector of the rows, for reuse.
    #[inline]
    pub(crate) fn into_vector(self) -> Vec<u8> {
        self.rows
    }

    /// Returns `true` if the record refers to large values, which are freed when the record is dropped.
    #[inline]
    pub(crate) fn names_values(&self) -> bool {
        self.large_count > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Appends a row. Keys must be appended in ascending order.
    pub(crate) fn push(&mut self, key: &[u8], was: Option<RowValue<'_>>) {
        debug_assert!(self.iter().last().is_none_or(|(last, _)| last < key), "rows of an undo record are out of order");
        let bytes_after = self.rows.len() + row_bytes(key, was);
        reserve(&mut self.rows, row_bytes(key, was));
        self.rows.extend((key.len() as u32).to_le_bytes());
        match was {
            None => {
                self.rows.extend(ABSENT.to_le_bytes());
                self.rows.extend(key);
            }
            Some(RowValue::Inline(value)) => {
                assert!(value.len() < LARGE as usize, "a value's length reads as a mark");
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
        debug_assert_eq!(self.rows.len(), bytes_after, "a row of an undo record has other bytes than are counted");
        debug_assert_eq!(self.iter().last(), Some((key, was)), "an old version can't be read as it was left");
    }

    pub(super) fn iter(&self) -> UndoRows<'_> {
        UndoRows { rest: &self.rows }
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<OldVersion> {
        self.iter()
            .find(|(found, _)| *found >= key)
            .filter(|(found, _)| *found == key)
            .map(|(_, was)| OldVersion::of(was))
    }

    pub(super) fn large(&self) -> impl Iterator<Item = LargeRef> + '_ {
        self.iter().filter_map(|(_, was)| match was {
            Some(RowValue::Large(reference)) => Some(reference),
            _ => None,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        debug_assert_eq!(self.large().count(), self.large_count as usize, "an undo record names other large values");
        heap_bytes(self.rows.capacity()) + UNDO_RECORD_BYTES + self.large_count as usize * HELD_BYTES
    }
}

pub(super) struct UndoRows<'d> {
    pub(super) rest: &'d [u8],
}

impl<'d> Iterator for UndoRows<'d> {
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

/// The undo records of a leaf, in commit order. The usual case is a single record, which needs no queue.
#[derive(Debug)]
pub(super) enum UndoRecords {
    One(UndoRecord),
    Queue(VecDeque<UndoRecord>),
}

impl Default for UndoRecords {
    fn default() -> UndoRecords {
        UndoRecords::Queue(VecDeque::new())
    }
}

impl UndoRecords {
    fn as_slices(&self) -> (&[UndoRecord], &[UndoRecord]) {
        match self {
            UndoRecords::One(undo) => (std::slice::from_ref(undo), &[]),
            UndoRecords::Queue(queue) => queue.as_slices(),
        }
    }

    pub(super) fn iter(&self) -> <&UndoRecords as IntoIterator>::IntoIter {
        self.into_iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.as_slices().0.is_empty()
    }

    /// Appends an undo record.
    pub(super) fn push(&mut self, undo: UndoRecord) {
        assert!(
            self.iter().next_back().is_none_or(|last| last.timestamp <= undo.timestamp),
            "undo records of a leaf ascend"
        );
        *self = match std::mem::take(self) {
            UndoRecords::One(first) => UndoRecords::Queue(VecDeque::from([first, undo])),
            UndoRecords::Queue(queue) if queue.is_empty() => UndoRecords::One(undo),
            UndoRecords::Queue(mut queue) => {
                queue.push_back(undo);
                UndoRecords::Queue(queue)
            }
        };
    }

    /// Removes and returns the first undo record if its commit is not later than `horizon`.
    pub(super) fn pop_up_to(&mut self, horizon: Timestamp) -> Option<UndoRecord> {
        match self {
            UndoRecords::One(undo) if undo.timestamp <= horizon => match std::mem::take(self) {
                UndoRecords::One(undo) => Some(undo),
                UndoRecords::Queue(_) => unreachable!("it has one record"),
            },
            UndoRecords::One(_) => None,
            UndoRecords::Queue(queue) => queue.pop_front_if(|undo| undo.timestamp <= horizon),
        }
    }

    /// Drops the records for which `is_kept` returns `false`. Returns the number of bytes freed.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&UndoRecord) -> bool) -> usize {
        let mut dropped_bytes = 0;
        let mut keep = |undo: &UndoRecord| {
            let keeps = is_kept(undo);
            dropped_bytes += if keeps { 0 } else { undo.bytes() };
            keeps
        };
        match self {
            UndoRecords::One(undo) => {
                if !keep(undo) {
                    *self = UndoRecords::default();
                }
            }
            UndoRecords::Queue(queue) => {
                queue.retain(&mut keep);
                self.shrink();
            }
        }
        dropped_bytes
    }

    /// Shrinks the queue if less than a quarter of its capacity is in use.
    pub(super) fn shrink(&mut self) {
        if let UndoRecords::Queue(queue) = self
            && queue.len() < queue.capacity() / 4
        {
            queue.shrink_to(2 * queue.len());
        }
    }

    pub(super) fn into_queue(self) -> VecDeque<UndoRecord> {
        debug_assert!(self.iter().is_sorted_by_key(|undo| undo.timestamp), "undo records of a leaf are out of order");
        match self {
            UndoRecords::One(undo) => VecDeque::from([undo]),
            UndoRecords::Queue(queue) => queue,
        }
    }
}

impl<'u> IntoIterator for &'u UndoRecords {
    type Item = &'u UndoRecord;
    type IntoIter = std::iter::Chain<std::slice::Iter<'u, UndoRecord>, std::slice::Iter<'u, UndoRecord>>;

    fn into_iter(self) -> Self::IntoIter {
        let (first, last) = self.as_slices();
        first.iter().chain(last)
    }
}
