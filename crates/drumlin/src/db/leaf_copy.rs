//! Copies a leaf's rows as a scan's snapshot sees them.
//!
//! A copy holds as many rows as fit into memory, starting where the scan enters the leaf. It merges three sources by
//! key: the leaf, old versions of its rows, and the changes of the scan's own transaction. For lack of memory, each
//! source may end early. The copy stops where the first of them ends.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, Range as Span, RangeBounds};
use std::sync::Arc;

use super::value::Value;
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, PageId, Timestamp};
use crate::memory::Grant;
use crate::space::runs::RemovedKeys;
use crate::tree::Direction;
use crate::tree::node::{Leaf, RowValue, large_ref};
use crate::txn::old_rows::{OldRows, OldVersion};
use crate::txn::values::LargeValue;
use crate::txn::versions::Versions;
use crate::txn::write_set::{Change, WriteSet};

/// Memory per row in addition to its key and value.
const ROW_BYTES: usize = size_of::<CopiedRow>();
/// The minimum size of a copy, unless a single row is larger.
const BATCH_BYTES_MIN: u64 = 1 << 10;
/// The maximum size of a new scan's first copy if no other scan holds memory. Each further leaf raises the limit by
/// this amount. Pages of up to 8 KiB are copied whole.
const BATCH_BYTES_FIRST: u64 = 16 << 10;
/// The buffer of copied bytes grows in steps of this size, so that it rarely has to grow for the next leaf.
const BYTES_STEP: usize = 1 << 10;
/// The number of rows by which the list of copied rows grows.
const ROWS_STEP: usize = 16;
/// The maximum size of the transaction's own changes that one copy merges. The same limit applies to old versions.
pub(super) const CHANGES_BYTES_MAX: usize = 64 << 10;

/// Rows that a scan has copied but not returned yet. The scan can take them from either end. The next copy reuses their
/// memory, unless a [`Value`] still refers to it.
#[derive(Default)]
pub(super) struct CopiedRows {
    /// `None` before the first copy.
    bytes: Option<Arc<Vec<u8>>>,
    rows: Vec<CopiedRow>,
    /// The indexes of the rows that have not been returned yet.
    left: Span<usize>,
}

struct CopiedRow {
    key: Span<u32>,
    value: Fetched,
}

impl CopiedRows {
    pub(super) fn len(&self) -> usize {
        self.left.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Removes the rows but keeps their memory, unless a value refers to it.
    pub(super) fn clear(&mut self) {
        match self.bytes.as_mut().and_then(Arc::get_mut) {
            Some(bytes) => bytes.clear(),
            None => self.bytes = None,
        }
        self.rows.clear();
        self.left = 0..0;
    }

    /// Returns the index of the next row, which must exist.
    #[inline]
    fn next(&self, direction: Direction) -> usize {
        debug_assert!(!self.is_empty(), "no row is left");
        match direction {
            Direction::Forward => self.left.start,
            Direction::Backward => self.left.end - 1,
        }
    }

    /// Advances past the row that the scan has just returned.
    #[inline]
    pub(super) fn pass(&mut self, direction: Direction) {
        debug_assert!(!self.is_empty(), "a row is passed that is not there");
        match direction {
            Direction::Forward => self.left.start += 1,
            Direction::Backward => self.left.end -= 1,
        }
    }

    #[inline]
    fn bytes(&self) -> &Arc<Vec<u8>> {
        self.bytes.as_ref().expect("rows that are left have bytes")
    }

    /// Returns the key of the next row, which must exist.
    pub(super) fn key(&self, direction: Direction) -> Value {
        Value::part(self.bytes(), self.rows[self.next(direction)].key.clone())
    }

    /// Returns the value of the next row, which must exist.
    pub(super) fn value(&self, direction: Direction) -> Fetched {
        self.rows[self.next(direction)].value.clone()
    }

    /// Returns a value within the copied bytes.
    pub(super) fn part(&self, span: Span<u32>) -> Value {
        Value::part_of(Arc::clone(self.bytes()), span)
    }

    /// Takes the next row, if there is one and its value was copied.
    #[inline]
    pub(super) fn take(&mut self, direction: Direction) -> Option<(Value, Value)> {
        if self.is_empty() {
            return None;
        }
        let CopiedRow { key, value: Fetched::Inline(value) } = &self.rows[self.next(direction)] else { return None };
        let row = (Value::part(self.bytes(), key.clone()), self.part(value.clone()));
        self.pass(direction);
        Some(row)
    }

    /// Takes the next row's key if there is one.
    #[inline]
    pub(super) fn take_key(&mut self, direction: Direction) -> Option<Value> {
        if self.is_empty() {
            return None;
        }
        let key = self.key(direction);
        self.pass(direction);
        Some(key)
    }

    /// Calls `look` with each row until `look` breaks, or until a row whose value was not copied. Moves past the rows
    /// that were shown.
    #[inline]
    pub(super) fn show<B>(
        &mut self,
        direction: Direction,
        look: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        while !self.is_empty() {
            let CopiedRow { key, value: Fetched::Inline(value) } = &self.rows[self.next(direction)] else { break };
            let [key, value] = [key, value].map(|span| span.start as usize..span.end as usize);
            // Move past the row before calling `look`, which may panic.
            self.pass(direction);
            look(&self.bytes()[key], &self.bytes()[value])?;
        }
        ControlFlow::Continue(())
    }

    /// Returns the references to values stored outside of the leaf, in scan order.
    pub(super) fn references(&self, direction: Direction) -> impl Iterator<Item = LargeRef> {
        let rows = &self.rows[self.left.clone()];
        (0..rows.len()).filter_map(move |index| {
            let row = match direction {
                Direction::Forward => &rows[index],
                Direction::Backward => &rows[rows.len() - 1 - index],
            };
            if let Fetched::Large(reference) = row.value { Some(reference) } else { None }
        })
    }
}

#[derive(Clone)]
pub(super) enum Fetched {
    Inline(Span<u32>),
    Large(LargeRef),
    /// A large value that the scanning transaction has put. Its extents are already written, but no page table refers
    /// to them before the commit.
    Own(Arc<LargeValue>),
}

impl Fetched {
    /// Returns the length of the value.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Fetched::Inline(span) => u64::from(span.end - span.start),
            Fetched::Large(reference) => reference.length,
            Fetched::Own(value) => value.length,
        }
    }
}

/// The rows that a scan needs from a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Want {
    #[default]
    All,
    /// At most one row.
    One,
    /// Only the number of rows. They are copied only if old versions or the transaction's own changes have to be
    /// merged.
    Count,
}

/// The result of copying rows from a leaf.
pub(super) struct Copied {
    /// The number of rows, including those that were counted but not copied.
    pub(super) count: usize,
    /// The memory that the copied rows use.
    pub(super) bytes: u64,
    /// The last copied key, if the leaf has more rows.
    pub(super) stop: Option<Vec<u8>>,
}

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The parameters of a copy.
pub(super) struct Copier<'s> {
    pub(super) versions: &'s Versions,
    pub(super) keyspace: KeyspaceId,
    pub(super) snapshot: Timestamp,
    /// The bounds of the keys to copy.
    pub(super) bounds: Bounds<'s>,
    /// The changes of the scanning transaction.
    pub(super) own: Option<&'s WriteSet>,
    /// `Forward` copies the first rows within the bounds, `Backward` the last.
    pub(super) direction: Direction,
    pub(super) want: Want,
}

impl Copier<'_> {
    /// Copies the rows of a latched leaf into `into`, replacing the rows there. Copies as many rows as fit into
    /// `memory` in addition to `kept_bytes`.
    pub(super) fn copy(
        &self,
        leaf: &Leaf<'_>,
        page: PageId,
        memory: &mut Grant,
        kept_bytes: u64,
        spilled: OldRows,
        into: &mut CopiedRows,
    ) -> Result<Copied> {
        into.clear();
        let mut part = LeafPart::new(leaf, self.bounds, self.direction);
        let bytes_of_all = part.memory_bytes();
        let is_newer = leaf.newest() > self.snapshot;
        if self.want == Want::Count && !is_newer && self.own.is_none() {
            return Ok(Copied { count: part.rows.len(), bytes: CopyTarget::new(into).memory_bytes(), stop: None });
        }
        let changes_bytes =
            [is_newer, self.own.is_some()].map(|are_there| if are_there { CHANGES_BYTES_MAX } else { 0 });
        let mut available_bytes = reserve(memory, kept_bytes, bytes_of_all + changes_bytes[0] + changes_bytes[1])?;
        if self.want == Want::One {
            // A copy always includes the first row, whatever its size, so the minimum suffices. The minimum is 2,
            // because it is halved below and must stay positive.
            available_bytes = 2;
        }

        let mut old = BTreeMap::new();
        if is_newer {
            // The old versions and their copies are in memory at the same time.
            available_bytes /= 2;
            old = self.old_versions(page, available_bytes.min(CHANGES_BYTES_MAX), spilled, &mut part);
        }
        if bytes_of_all > available_bytes {
            part.stop_within(available_bytes);
        }
        let mut own = BTreeMap::new();
        if let Some(writes) = self.own {
            own = self.own_changes(writes, available_bytes.min(CHANGES_BYTES_MAX), &mut part);
        }
        if part.stop.is_some() {
            part.drop_rows_behind_stop();
            own.retain(|key, _| RangeBounds::<[u8]>::contains(&part.bounds(), *key));
        }

        let removed = self.own.and_then(|own| own.removed(self.keyspace));
        let is_plain = old.is_empty() && own.is_empty() && removed.is_none();
        let mut batch = CopyTarget::new(into);
        match is_plain {
            true => batch.copy(&part),
            false => batch.merge(&part, old, own, removed),
        }
        // The vectors may have more capacity than the available memory: they may have been allocated for earlier rows,
        // and vectors that grow row by row have excess capacity.
        if bytes_of_all > available_bytes || !is_plain || batch.memory_bytes() > available_bytes as u64 {
            batch.shrink();
        }
        let bytes = batch.memory_bytes();
        fit(memory, kept_bytes + bytes)?;
        into.left = 0..into.rows.len();
        Ok(Copied { count: into.len(), bytes, stop: part.stop })
    }

    /// Returns up to `bytes_max` bytes of old versions of the leaf's rows, from memory and from `spilled`. If there is
    /// no space for all of them, ends the part where the returned versions end.
    fn old_versions(
        &self,
        page: PageId,
        bytes_max: usize,
        spilled: OldRows,
        part: &mut LeafPart<'_>,
    ) -> BTreeMap<Vec<u8>, (Timestamp, OldVersion)> {
        // The leaf's rows are within its fences, so the scan's bounds suffice.
        let leaf = (self.keyspace, page);
        let found = self.versions.rows_at(leaf, self.snapshot, self.bounds, self.direction, bytes_max, spilled);
        found.last.into_iter().for_each(|last| part.stop_at(last));
        found.rows
    }

    /// Returns up to about `bytes_max` bytes of the transaction's own changes between the leaf's fences. If there is no
    /// space for all of them, ends the part where the returned changes end.
    fn own_changes<'w>(
        &self,
        writes: &'w WriteSet,
        bytes_max: usize,
        part: &mut LeafPart<'_>,
    ) -> BTreeMap<&'w [u8], Change<'w>> {
        let (lower, upper) = self.bounds;
        let within = match (self.direction, part.leaf.upper_fence(), part.leaf.lower_fence()) {
            (Direction::Forward, Some(fence), _) if is_below(fence, upper) => (lower, Bound::Excluded(fence)),
            (Direction::Backward, _, Some(fence)) if is_above(fence, lower) => (Bound::Included(fence), upper),
            _ => (lower, upper),
        };
        let mut changes = writes.range(self.keyspace, within);
        let mut next = || match self.direction {
            Direction::Forward => changes.next(),
            Direction::Backward => changes.next_back(),
        };
        let mut own = BTreeMap::new();
        let mut last: &[u8] = &[];
        let mut bytes = 0;
        while let Some((key, change)) = next() {
            if bytes >= bytes_max {
                part.stop_at(last.to_vec());
                break;
            }
            last = key;
            bytes += key.len() + ROW_BYTES + if let Change::Put(value) = change { value.len() } else { 0 };
            own.insert(key, change);
        }
        own
    }
}

/// The rows of a leaf that are copied: those within the scan's bounds, up to the key where the copy stops.
struct LeafPart<'a> {
    leaf: &'a Leaf<'a>,
    lower: Bound<&'a [u8]>,
    upper: Bound<&'a [u8]>,
    direction: Direction,
    /// The part's last key, if lack of memory ends the part before the end of the leaf.
    stop: Option<Vec<u8>>,
    /// The indexes of the part's rows in the leaf.
    rows: Span<usize>,
    /// If the leaf's heap is copied in one piece, keys must be assembled from prefix and suffix. This is their total
    /// length, or 0 if the leaf has no prefix.
    keys_bytes: usize,
}

impl<'a> LeafPart<'a> {
    fn new(leaf: &'a Leaf<'a>, (lower, upper): Bounds<'a>, direction: Direction) -> LeafPart<'a> {
        let rows = rows_within(leaf, (lower, upper));
        let prefix_bytes = leaf.prefix().len();
        let key_bytes = |index| prefix_bytes + leaf.key_suffix(index).len();
        let keys_bytes = if prefix_bytes == 0 { 0 } else { rows.clone().map(key_bytes).sum() };
        LeafPart { leaf, lower, upper, direction, stop: None, rows, keys_bytes }
    }

    /// Returns `true` if the part has most of the leaf's rows, so that copying the leaf's whole heap copies few
    /// unwanted bytes.
    fn is_copied_whole(&self) -> bool {
        self.stop.is_none() && 2 * self.rows.len() > self.leaf.len()
    }

    /// Returns the scan's bounds, shortened to the end of the part.
    fn bounds(&self) -> Bounds<'_> {
        match (&self.stop, self.direction) {
            (None, _) => (self.lower, self.upper),
            (Some(stop), Direction::Forward) => (self.lower, Bound::Included(stop)),
            (Some(stop), Direction::Backward) => (Bound::Included(stop), self.upper),
        }
    }

    /// Returns an upper bound for the memory that a copy of the part's rows needs.
    fn memory_bytes(&self) -> usize {
        let (heap_bytes, prefixes_bytes) = (self.leaf.heap().len(), self.rows.len() * self.leaf.prefix().len());
        (heap_bytes + self.keys_bytes.max(prefixes_bytes)).next_multiple_of(BYTES_STEP)
            + self.rows.len().next_multiple_of(ROWS_STEP) * ROW_BYTES
    }

    /// Ends the part at this key, unless it already ends earlier.
    fn stop_at(&mut self, last: Vec<u8>) {
        let is_nearer = |stop: &Vec<u8>| match self.direction {
            Direction::Forward => last < *stop,
            Direction::Backward => last > *stop,
        };
        if self.stop.as_ref().is_none_or(is_nearer) {
            self.stop = Some(last);
        }
    }

    /// Ends the part at the row whose copy reaches `bytes_max`.
    fn stop_within(&mut self, bytes_max: usize) {
        let mut bytes = 0;
        let Span { start, end } = self.rows;
        let order: &mut dyn Iterator<Item = usize> = match self.direction {
            Direction::Forward => &mut (start..end),
            Direction::Backward => &mut (start..end).rev(),
        };
        let last_index = match self.direction {
            Direction::Forward => end.saturating_sub(1),
            Direction::Backward => start,
        };
        for index in order {
            let (row, ..) = self.leaf.row(index);
            bytes += self.leaf.prefix().len() + row.len() + ROW_BYTES;
            if bytes >= bytes_max && index != last_index {
                let mut key = Vec::new();
                self.leaf.key_into(index, &mut key);
                self.stop_at(key);
                return;
            }
        }
    }

    fn drop_rows_behind_stop(&mut self) {
        self.rows = rows_within(self.leaf, self.bounds());
    }
}

/// Returns the indexes of a leaf's rows within bounds.
fn rows_within(leaf: &Leaf<'_>, (lower, upper): Bounds<'_>) -> Span<usize> {
    let above = |key| match leaf.search(key) {
        Ok(index) => index + 1,
        Err(index) => index,
    };
    let start = match lower {
        Bound::Unbounded => 0,
        // If the scan enters from the previous leaf, it starts at the fence and needs no search.
        Bound::Included(key) if leaf.lower_fence().is_some_and(|fence| key <= fence) => 0,
        Bound::Included(key) => leaf.lower_bound(key),
        Bound::Excluded(key) => above(key),
    };
    let end = match upper {
        Bound::Unbounded => leaf.len(),
        Bound::Included(key) => above(key),
        Bound::Excluded(key) => leaf.lower_bound(key),
    };
    start..end.max(start)
}

/// Returns `true` unless the upper bound `fence` is above the upper bound `upper`.
fn is_below(fence: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(upper) | Bound::Excluded(upper) => fence <= upper,
    }
}

/// Returns `true` if the lower bound `fence` is above the lower bound `lower`.
fn is_above(fence: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Unbounded => true,
        Bound::Included(lower) | Bound::Excluded(lower) => fence > lower,
    }
}

/// Reserves memory for a copy of up to `wanted` bytes in addition to `kept_bytes`. Returns the number of bytes that the
/// copy may use.
pub(super) fn reserve(memory: &mut Grant, kept_bytes: u64, wanted: usize) -> Result<usize> {
    // If a call was dropped, it may have released the memory of the kept rows. Make sure that their memory is reserved.
    if !memory.cover(kept_bytes) {
        return Err(Error::copies_in_memory(memory.limit_bytes()));
    }
    let available_bytes = memory.bytes() - kept_bytes;
    if available_bytes >= wanted as u64 {
        return Ok(available_bytes as usize);
    }
    let most_unshared = BATCH_BYTES_FIRST.min(memory.limit_bytes() / 8);
    let more = memory.cover_share(BATCH_BYTES_MIN, wanted as u64 - available_bytes, most_unshared);
    match available_bytes + more.unwrap_or(0) {
        0 => Err(Error::copies_in_memory(memory.limit_bytes())),
        available_bytes => Ok(available_bytes as usize),
    }
}

/// Releases the memory beyond `needed` bytes if it is more than half of `needed`. A smaller excess is retained: all
/// scans share the account, and this runs for each leaf.
fn fit(memory: &mut Grant, needed: u64) -> Result<()> {
    let is_much = memory.bytes() > needed + needed / 2;
    let fits = if is_much { memory.resize(needed) } else { memory.cover(needed) };
    if fits { Ok(()) } else { Err(Error::copies_in_memory(memory.limit_bytes())) }
}

/// The memory into which rows of a leaf are copied.
struct CopyTarget<'c> {
    bytes: &'c mut Vec<u8>,
    rows: &'c mut Vec<CopiedRow>,
}

impl CopyTarget<'_> {
    fn new(into: &mut CopiedRows) -> CopyTarget<'_> {
        let bytes = into.bytes.get_or_insert_default();
        let bytes = Arc::get_mut(bytes).expect("no value shows a part of what was cleared");
        assert!(into.rows.is_empty() && bytes.is_empty(), "rows are copied over others");
        CopyTarget { bytes, rows: &mut into.rows }
    }

    /// Copies the rows of a part of a leaf unchanged.
    fn copy(&mut self, part: &LeafPart<'_>) {
        self.rows.reserve_exact(part.rows.len().next_multiple_of(ROWS_STEP));
        if part.is_copied_whole() { self.copy_heap(part) } else { self.copy_rows(part) }
    }

    /// Copies the leaf's heap in one piece, which reads memory sequentially, and appends the assembled keys.
    fn copy_heap(&mut self, part: &LeafPart<'_>) {
        let (leaf, prefix) = (part.leaf, part.leaf.prefix());
        let heap = leaf.heap();
        self.bytes.reserve_exact((heap.len() + part.keys_bytes).next_multiple_of(BYTES_STEP));
        self.bytes.extend_from_slice(heap);
        for index in part.rows.clone() {
            let (suffix, value, is_large) = leaf.row_in_heap(index);
            let key = if prefix.is_empty() {
                suffix.start as u32..suffix.end as u32
            } else {
                let start = self.bytes.len() as u32;
                self.bytes.extend_from_slice(prefix);
                self.bytes.extend_from_slice(&heap[suffix]);
                start..self.bytes.len() as u32
            };
            let value = match is_large {
                false => Fetched::Inline(value.start as u32..value.end as u32),
                true => Fetched::Large(large_ref(&heap[value])),
            };
            self.rows.push(CopiedRow { key, value });
        }
    }

    /// Copies the part's rows one by one.
    fn copy_rows(&mut self, part: &LeafPart<'_>) {
        let (leaf, prefix) = (part.leaf, part.leaf.prefix());
        if part.stop.is_none() {
            self.bytes.reserve_exact(leaf.heap().len() + part.rows.len() * prefix.len());
        }
        for index in part.rows.clone() {
            // Copy the row in one piece, including the length of its value.
            let (row, suffix_bytes, value) = leaf.row(index);
            let start = self.bytes.len() as u32;
            if !prefix.is_empty() {
                self.bytes.extend_from_slice(prefix);
            }
            self.bytes.extend_from_slice(row);
            let end = self.bytes.len() as u32;
            let key = start..start + (prefix.len() + suffix_bytes) as u32;
            let value = match value {
                RowValue::Inline(value) => Fetched::Inline(end - value.len() as u32..end),
                RowValue::Large(reference) => Fetched::Large(reference),
            };
            self.rows.push(CopiedRow { key, value });
        }
    }

    /// Copies the rows of a part of a leaf. Merges their old versions and the transaction's changes by key, and leaves
    /// out rows with keys that the transaction has `removed`.
    fn merge(
        &mut self,
        part: &LeafPart<'_>,
        old: BTreeMap<Vec<u8>, (Timestamp, OldVersion)>,
        own: BTreeMap<&[u8], Change<'_>>,
        removed: Option<&RemovedKeys>,
    ) {
        let bounds = part.bounds();
        let mut old = old.into_iter().filter(|(key, _)| RangeBounds::<[u8]>::contains(&bounds, &key[..])).peekable();
        let mut own = own.into_iter().peekable();
        let Span { start: mut index, end } = part.rows;
        let mut key = Vec::new();
        loop {
            let in_leaf = (index < end).then(|| {
                part.leaf.key_into(index, &mut key);
                &key[..]
            });
            let in_old = old.peek().map(|(key, _)| &key[..]);
            let in_own = own.peek().map(|(key, _)| *key);
            let Some(next) = [in_leaf, in_old, in_own].into_iter().flatten().min() else { return };
            let [is_in_leaf, is_in_old, is_in_own] = [in_leaf, in_old, in_own].map(|key| key == Some(next));
            let next = next.to_vec();
            let was = if is_in_old { old.next() } else { None };
            match (if is_in_own { own.next() } else { None }, was) {
                (Some((_, Change::Remove)), _) => {}
                (Some((_, Change::Put(value))), _) => self.push(&next, RowValue::Inline(value)),
                (Some((_, Change::PutLarge(value))), _) => {
                    let key = self.keep(&next);
                    self.rows.push(CopiedRow { key, value: Fetched::Own(Arc::clone(value)) });
                }
                (None, _) if removed.is_some_and(|removed| removed.covers(&next)) => {}
                (None, Some((_, (_, was)))) => self.push_old(&next, &was),
                (None, None) => self.push(&next, part.leaf.value(index)),
            }
            index += usize::from(is_in_leaf);
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> Span<u32> {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len() as u32
    }

    fn push(&mut self, key: &[u8], value: RowValue<'_>) {
        let key = self.keep(key);
        let value = match value {
            RowValue::Inline(value) => Fetched::Inline(self.keep(value)),
            RowValue::Large(reference) => Fetched::Large(reference),
        };
        self.rows.push(CopiedRow { key, value });
    }

    fn push_old(&mut self, key: &[u8], was: &OldVersion) {
        match was {
            OldVersion::Absent => {}
            OldVersion::Inline(value) => self.push(key, RowValue::Inline(value)),
            OldVersion::Large(reference) => self.push(key, RowValue::Large(*reference)),
        }
    }

    fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.rows.shrink_to_fit();
    }

    /// Returns the heap memory of the copied rows.
    fn memory_bytes(&self) -> u64 {
        (self.bytes.capacity() + self.rows.capacity() * ROW_BYTES) as u64
    }
}
