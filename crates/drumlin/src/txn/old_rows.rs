//! Old versions of rows in the form in which a reader collects them.

use std::collections::BTreeMap;

use crate::format::node::{LARGE_REF_BYTES, LargeRef};
use crate::format::{KeyspaceId, PageId, Timestamp};
use crate::memory::heap_bytes;
use crate::tree::Direction;
use crate::tree::node::RowValue;

/// A row as it was before a commit changed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OldVersion {
    Absent,
    Inline(Box<[u8]>),
    Large(LargeRef),
}

impl OldVersion {
    pub(super) fn stored_bytes(&self) -> usize {
        match self {
            OldVersion::Absent => 0,
            OldVersion::Inline(value) => value.len(),
            OldVersion::Large(_) => LARGE_REF_BYTES,
        }
    }

    pub(super) fn of(row: Option<RowValue<'_>>) -> OldVersion {
        match row {
            None => OldVersion::Absent,
            Some(RowValue::Inline(value)) => OldVersion::Inline(value.into()),
            Some(RowValue::Large(reference)) => OldVersion::Large(reference),
        }
    }
}

/// Old versions of the rows of a leaf. If some rows were left out, `last` is the last included key in the scan's
/// direction.
#[derive(Debug, Default)]
pub(crate) struct OldRows {
    /// The old version of each key, and the commit that replaced it.
    pub(crate) rows: BTreeMap<Vec<u8>, (Timestamp, OldVersion)>,
    pub(crate) last: Option<Vec<u8>>,
    pub(super) bytes: usize,
}

impl OldRows {
    /// Returns the key that is last in the scan's direction.
    pub(super) fn farthest(&self, direction: Direction) -> Option<&Vec<u8>> {
        match direction {
            Direction::Forward => self.rows.last_key_value().map(|(key, _)| key),
            Direction::Backward => self.rows.first_key_value().map(|(key, _)| key),
        }
    }

    /// Removes the row that is last in the scan's direction.
    fn pop_farthest(&mut self, direction: Direction) -> Option<(Vec<u8>, (Timestamp, OldVersion))> {
        match direction {
            Direction::Forward => self.rows.pop_last(),
            Direction::Backward => self.rows.pop_first(),
        }
    }

    /// Adds the version of a row that was replaced by the commit at `timestamp`. Ignores it if an older version of the
    /// row is present, or if the row lies beyond `last`. Then removes rows from the end of the scan until the remaining
    /// rows fit in `bytes_max`.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        timestamp: Timestamp,
        was: Option<RowValue<'_>>,
        direction: Direction,
        bytes_max: usize,
    ) {
        debug_assert!(timestamp > Timestamp(0), "a row was changed by no commit");
        let is_after = |last: &Vec<u8>| match direction {
            Direction::Forward => key > &last[..],
            Direction::Backward => key < &last[..],
        };
        if self.last.as_ref().is_some_and(is_after) {
            return;
        }
        if let Some((before, version)) = self.rows.get_mut(key) {
            if timestamp < *before {
                self.bytes -= old_row_bytes(key, version.stored_bytes());
                (*before, *version) = (timestamp, OldVersion::of(was));
                self.bytes += old_row_bytes(key, version.stored_bytes());
            }
        } else {
            self.bytes += old_row_bytes(key, was.map_or(0, |was| was.stored_bytes()));
            self.rows.insert(key.to_vec(), (timestamp, OldVersion::of(was)));
        }
        self.fit(direction, bytes_max);
    }

    /// Removes rows from the end of the scan until the remaining rows use at most `bytes_max`. Leaves one row, however
    /// large it is.
    pub(super) fn fit(&mut self, direction: Direction, bytes_max: usize) {
        while self.bytes > bytes_max && self.rows.len() > 1 {
            let (key, (_, was)) = self.pop_farthest(direction).expect("there are two");
            self.bytes -= old_row_bytes(&key, was.stored_bytes());
            self.last = self.farthest(direction).cloned();
        }
    }
}

/// Returns the memory of a row in a `BTreeMap` whose nodes are half full.
pub(super) fn old_row_bytes(key: &[u8], was_bytes: usize) -> usize {
    2 * size_of::<(Vec<u8>, (Timestamp, OldVersion))>() + heap_bytes(key.len()) + heap_bytes(was_bytes)
}

/// The memory of a large value's entry in a hash table whose capacity has just doubled.
pub(super) const HELD_BYTES: usize = 2 * (size_of::<((KeyspaceId, PageId), LargeRef)>() + 1);
