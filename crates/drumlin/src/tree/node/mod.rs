//! Slotted pages: the nodes of a tree, at any level.
//!
//! This module consists of functions on the bytes of one page, which do no I/O and take no locks. `format/node.rs`
//! describes the layout; [`leaf`] and [`inner`] define the rows of each level.
//!
//! A node covers the keys from its lower fence (inclusive) to its upper fence (exclusive). If a fence is absent, the
//! node is unbounded on that side. Every key between the fences begins with the bytes that both fences have in common.
//! This *prefix* is cut from all keys; the rest of a key is its *suffix*. Each slot holds the first four bytes of its
//! row's suffix as a number, the *head*, so that a search has to compare whole suffixes only among rows with equal
//! heads.
//!
//! A node at an edge of the tree lacks a fence and therefore has no prefix, although its keys may begin with many
//! common bytes, as big-endian numbers do. The root is such a node, and every search passes through it. In these nodes,
//! the heads start after the *shared* bytes, a common beginning of all suffixes. If a new key does not begin with all
//! of the shared bytes, they are shortened.
//!
//! # Invariants
//! 1. The heap ends where the fences begin. Slots and heap never meet: `slots_end <= heap_start`.
//! 2. Rows lie in the heap and do not overlap. The bytes of all rows plus the garbage add up to the heap.
//! 3. Keys ascend strictly and lie within the fences. (Child 0 of an inner node has no key of its own: the node's lower
//!    fence takes its place.)
//! 4. The prefix is exactly the common beginning of both fences. It is empty if either is absent.
//! 5. The shared bytes are a common beginning of all suffixes, but not always the longest. If both fences exist, no
//!    bytes are shared.
//! 6. Every head consists of the first four bytes of its suffix after the shared bytes.
//! 7. Unused bytes are zero: they take up almost no space when compressed, and removed rows can't be recovered from the
//!    disk.
//! 8. The first 40 bytes of a page, the extent's header, are never touched here.
//!
//! [`check()`] verifies the invariants on untrusted bytes. If a page passes, no function of this module panics for
//! arguments within the node's bounds. On other pages, functions may panic but do nothing worse.

mod check;
mod inner;
mod leaf;
mod packed;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::hint::select_unpredictable;

use crate::format::Timestamp;
use crate::format::node::{
    CHILD_BYTES, FENCE_ABSENT, GARBAGE_BYTES_OFFSET, HEAP_BYTES_OFFSET, LEVEL_OFFSET, LOWER_BYTES_OFFSET,
    NEWEST_OFFSET, PAGE_BYTES_MAX, PAGE_BYTES_MIN, PREFIX_BYTES_OFFSET, RUN_OFFSET, SHARED_BYTES_OFFSET, SLOT_BYTES,
    SLOT_COUNT_OFFSET, SLOT_HEAD_OFFSET, SLOT_LARGE_FLAG, SLOT_ROW_OFFSET, SLOT_SUFFIX_BYTES_OFFSET, SLOTS_OFFSET,
    UPPER_BYTES_OFFSET, VALUE_LENGTH_BYTES, is_page_bytes, key_bytes_max,
};
use crate::format::{get_u16, get_u64, put_u16, put_u32, put_u64};

pub(crate) use check::{NodeError, check};
pub(crate) use inner::{Inner, InnerMut};
#[cfg(test)]
use leaf::Split;
pub(crate) use leaf::{Leaf, LeafChange, LeafMut, RowValue, large_ref};
pub(crate) use packed::{EMPTY_LEAF, PackedRow, child_rest, large_rest, pack, push_value, removal_rest};

/// The page has too little room, even with a compacted heap. It was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageFull;

/// The number of consecutive insertions at one end of a node that count as a sorted load. The node is then split at
/// that end.
const SORTED_INSERTIONS: usize = 4;

/// A split may choose a shorter separator if the two halves then differ by at most this share of the bytes: an eighth,
/// so the smaller half keeps at least 7/16.
const SPLIT_WINDOW_SHARE: usize = 8;

/// A slot: the head, the row's offset, the length of its suffix, and the flag of a large value.
#[derive(Clone, Copy)]
struct Slot(u64);

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES, "a slot is one word of the page");
const _: () = assert!(PAGE_BYTES_MAX - 1 <= u16::MAX as usize, "an offset in a page takes more than its two bytes");

impl Slot {
    #[inline]
    fn new(head: u32, row: usize, suffix_bytes: usize, flag: u16) -> Slot {
        debug_assert!(row < PAGE_BYTES_MAX && suffix_bytes < usize::from(SLOT_LARGE_FLAG));
        Slot(
            u64::from(head) << (8 * SLOT_HEAD_OFFSET)
                | (row as u64) << (8 * SLOT_ROW_OFFSET)
                | (suffix_bytes as u64 | u64::from(flag)) << (8 * SLOT_SUFFIX_BYTES_OFFSET),
        )
    }

    #[inline]
    fn head(self) -> u32 {
        (self.0 >> (8 * SLOT_HEAD_OFFSET)) as u32
    }

    #[inline]
    fn row(self) -> usize {
        usize::from((self.0 >> (8 * SLOT_ROW_OFFSET)) as u16)
    }

    #[inline]
    fn suffix_bytes(self) -> usize {
        usize::from((self.0 >> (8 * SLOT_SUFFIX_BYTES_OFFSET)) as u16 & !SLOT_LARGE_FLAG)
    }

    #[inline]
    fn is_large(self) -> bool {
        (self.0 >> (8 * SLOT_SUFFIX_BYTES_OFFSET)) as u16 & SLOT_LARGE_FLAG != 0
    }
}

/// Returns the offset of slot `index` in the page.
#[inline]
fn slot_offset(index: usize) -> usize {
    SLOTS_OFFSET + index * SLOT_BYTES
}

/// The number of bytes of a suffix that are in its slot.
/// Fixed by the format of a slot.
const HEAD_BYTES: usize = 4;

/// Returns the first four bytes as a number, padded with zeros. Heads sort like their strings, but different strings
/// may have equal heads.
#[inline]
fn head_of(suffix: &[u8]) -> u32 {
    match suffix.first_chunk::<HEAD_BYTES>() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => suffix.iter().zip([24, 16, 8]).fold(0, |head, (byte, shift)| head | u32::from(*byte) << shift),
    }
}

/// Returns the length of the common prefix of two strings.
pub(crate) fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    let (a_words, _) = a.as_chunks::<8>();
    let (b_words, _) = b.as_chunks::<8>();
    let mut common = 0;
    for (a_word, b_word) in a_words.iter().zip(b_words) {
        let difference = u64::from_le_bytes(*a_word) ^ u64::from_le_bytes(*b_word);
        if difference != 0 {
            return common + difference.trailing_zeros() as usize / 8;
        }
        common += 8;
    }
    common + a[common..].iter().zip(&b[common..]).take_while(|(x, y)| x == y).count()
}

/// Returns the shortest string that is greater than `left` but not greater than `right`: the beginning of `right`, up
/// to and including the first byte that differs.
pub(crate) fn separator_between<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    debug_assert!(left < right);
    let separator = &right[..common_bytes(left, right) + 1];
    debug_assert!(left < separator, "a separator does not separate");
    separator
}

/// Returns the part of `key` after `common`. If the key does not begin with `common`, fails with the key's order
/// relative to all keys that do.
#[inline]
fn strip<'k>(key: &'k [u8], common: &[u8]) -> Result<&'k [u8], Ordering> {
    if common.is_empty() {
        return Ok(key);
    }
    key.strip_prefix(common).ok_or_else(|| key.cmp(common))
}

/// A read-only view of a page as a node of any level.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    header: &'a [u8; SLOTS_OFFSET],
    page: &'a [u8],
}

impl<'a> Node<'a> {
    /// Views a page as a node.
    #[inline]
    pub(crate) fn new(page: &'a [u8]) -> Node<'a> {
        debug_assert!(is_page_bytes(page.len()), "a node of {} bytes", page.len());
        let header = page.first_chunk().expect("a page is longer than its header");
        Node { header, page }
    }

    #[inline]
    fn field(&self, offset: usize) -> usize {
        usize::from(get_u16(self.header, offset))
    }

    /// Returns the newest commit that was applied to a leaf.
    #[inline]
    pub(crate) fn newest(&self) -> Timestamp {
        Timestamp(get_u64(self.header, NEWEST_OFFSET))
    }

    /// Returns the node's level: 0 for a leaf, and for an inner node one more than its children's level.
    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.header[LEVEL_OFFSET]
    }

    /// Returns the number of rows of a leaf, or of children of an inner node.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.field(SLOT_COUNT_OFFSET)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn page_bytes(&self) -> usize {
        self.page.len()
    }

    /// Returns the index of the first slot with a key.
    #[inline]
    fn first_key(&self) -> usize {
        usize::from(self.level() > 0)
    }

    #[inline]
    fn fence_bytes(&self, offset: usize) -> Option<usize> {
        match get_u16(self.header, offset) {
            FENCE_ABSENT => None,
            bytes => Some(usize::from(bytes)),
        }
    }

    /// Returns `true` if at least one fence is absent.
    #[inline]
    fn is_edge(&self) -> bool {
        get_u16(self.header, LOWER_BYTES_OFFSET) == FENCE_ABSENT
            || get_u16(self.header, UPPER_BYTES_OFFSET) == FENCE_ABSENT
    }

    /// Returns the smallest key that the node may hold, or `None` if the node is unbounded below.
    #[inline]
    pub(crate) fn lower_fence(&self) -> Option<&'a [u8]> {
        let bytes = self.fence_bytes(LOWER_BYTES_OFFSET)?;
        Some(&self.page[self.page.len() - bytes..])
    }

    /// Returns the exclusive upper bound of the node's keys, or `None` if the node is unbounded above.
    #[inline]
    pub(crate) fn upper_fence(&self) -> Option<&'a [u8]> {
        let bytes = self.fence_bytes(UPPER_BYTES_OFFSET)?;
        let start = self.heap_end();
        Some(&self.page[start..start + bytes])
    }

    /// Returns `true` if `key` lies within the fences.
    #[inline]
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        self.lower_fence().is_none_or(|lower| lower <= key) && self.upper_fence().is_none_or(|upper| key < upper)
    }

    /// Returns the prefix of the node's keys, which is not stored in the rows.
    #[inline]
    pub(crate) fn prefix(&self) -> &'a [u8] {
        let bytes = self.field(PREFIX_BYTES_OFFSET);
        if bytes == 0 {
            return &[];
        }
        let start = self.page.len() - self.field(LOWER_BYTES_OFFSET);
        &self.page[start..start + bytes]
    }

    #[inline]
    fn prefix_bytes(&self) -> usize {
        self.field(PREFIX_BYTES_OFFSET)
    }

    #[inline]
    fn shared_bytes(&self) -> usize {
        self.field(SHARED_BYTES_OFFSET)
    }

    #[inline]
    fn heap_bytes(&self) -> usize {
        self.field(HEAP_BYTES_OFFSET)
    }

    #[inline]
    fn garbage_bytes(&self) -> usize {
        self.field(GARBAGE_BYTES_OFFSET)
    }

    #[inline]
    fn fences_bytes(&self) -> usize {
        self.fence_bytes(LOWER_BYTES_OFFSET).unwrap_or(0) + self.fence_bytes(UPPER_BYTES_OFFSET).unwrap_or(0)
    }

    #[inline]
    fn heap_end(&self) -> usize {
        self.page.len() - self.fences_bytes()
    }

    #[inline]
    fn heap_start(&self) -> usize {
        self.heap_end() - self.heap_bytes()
    }

    /// Returns the heap: all rows, and the garbage between them.
    #[inline]
    pub(crate) fn heap(&self) -> &'a [u8] {
        &self.page[self.heap_start()..self.heap_end()]
    }

    #[inline]
    fn slots_end(&self) -> usize {
        slot_offset(self.len())
    }

    /// Returns the number of bytes between slots and heap, which can be used without compacting.
    #[inline]
    fn gap_bytes(&self) -> usize {
        self.heap_start() - self.slots_end()
    }

    /// Returns the size of the node with a compacted heap: header, slots, rows and fences.
    #[inline]
    pub(crate) fn live_bytes(&self) -> usize {
        self.slots_end() + self.heap_bytes() - self.garbage_bytes() + self.fences_bytes()
    }

    /// Returns the number of bytes that would be free if the heap were compacted.
    #[inline]
    pub(crate) fn free_bytes(&self) -> usize {
        self.page.len() - self.live_bytes()
    }

    /// Returns the number of consecutive insertions at the right end (positive) or the left end (negative).
    #[inline]
    fn run(&self) -> i8 {
        self.header[RUN_OFFSET] as i8
    }

    /// Returns `true` if the latest insertions look like a sorted load, ascending if `end` is `Greater` and descending
    /// if it is `Less`.
    fn loads_sorted(&self, end: Ordering) -> bool {
        let keys = self.len() - self.first_key();
        let run = self.run();
        run.cmp(&0) == end && usize::from(run.unsigned_abs()) >= SORTED_INSERTIONS.min(keys.saturating_sub(1))
    }

    #[inline]
    fn slots(&self) -> &'a [[u8; SLOT_BYTES]] {
        self.page[SLOTS_OFFSET..self.slots_end()].as_chunks().0
    }

    #[inline]
    fn slot(&self, index: usize) -> Slot {
        Slot(u64::from_le_bytes(self.slots()[index]))
    }

    #[inline]
    fn suffix_of(&self, slot: Slot) -> &'a [u8] {
        &self.page[slot.row()..slot.row() + slot.suffix_bytes()]
    }

    /// Returns the number of bytes of a row after its suffix.
    #[inline]
    fn rest_bytes_of(&self, slot: Slot) -> usize {
        if self.level() == 0 {
            VALUE_LENGTH_BYTES + usize::from(get_u16(self.page, slot.row() + slot.suffix_bytes()))
        } else {
            CHILD_BYTES
        }
    }

    /// Returns the bytes of a row after its suffix.
    #[inline]
    fn rest_of(&self, slot: Slot) -> &'a [u8] {
        let start = slot.row() + slot.suffix_bytes();
        &self.page[start..start + self.rest_bytes_of(slot)]
    }

    /// Returns the number of bytes that a row takes up, including its slot.
    #[inline]
    fn cost_of(&self, slot: Slot) -> usize {
        SLOT_BYTES + slot.suffix_bytes() + self.rest_bytes_of(slot)
    }

    /// Returns the number of bytes that all rows take up, including their slots.
    #[inline]
    fn rows_cost(&self) -> usize {
        self.len() * SLOT_BYTES + self.heap_bytes() - self.garbage_bytes()
    }

    /// Returns a row's key without the node's prefix. It is empty for child 0 of an inner node.
    #[inline]
    pub(crate) fn key_suffix(&self, index: usize) -> &'a [u8] {
        self.suffix_of(self.slot(index))
    }

    /// Replaces the content of `key` with a row's whole key.
    pub(crate) fn key_into(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.key_suffix(index));
    }

    /// Compares the key of a row to `key`.
    pub(crate) fn compare_key(&self, index: usize, key: &[u8]) -> Ordering {
        match strip(key, self.prefix()) {
            Ok(rest) => self.key_suffix(index).cmp(rest),
            Err(order) => order.reverse(),
        }
    }

    /// Returns the first row, starting at `first`, whose head is at least `head`. This is a binary search in which no
    /// branch depends on the heads.
    #[inline]
    fn head_lower_bound(&self, first: usize, head: u32) -> usize {
        let slots = self.slots();
        debug_assert!(first <= slots.len(), "a search from row {first} of {}", slots.len());
        let head_at = |index: usize| Slot(u64::from_le_bytes(slots[index])).head();
        let mut low = first;
        let mut rows = slots.len().saturating_sub(first);
        while rows > 1 {
            let half = rows / 2;
            low = select_unpredictable(head_at(low + half - 1) < head, low + half, low);
            rows -= half;
        }
        low += usize::from(rows == 1 && head_at(low) < head);
        debug_assert!(low == first || head_at(low - 1) < head, "the row before the one that is found is not below");
        low
    }

    /// Searches for `key` among the rows starting at `first`. Returns the index of its row or, as an error, the index
    /// at which the row would be inserted.
    ///
    /// Works for any key, including one that the node does not cover.
    #[inline]
    fn find(&self, first: usize, key: &[u8]) -> Result<usize, usize> {
        let slots = self.slots();
        let outside = |order: Ordering| if order.is_lt() { first } else { slots.len() };
        let mut rest = strip(key, self.prefix()).map_err(outside)?;
        let shared = self.shared_bytes();
        if shared > 0 && first < slots.len() {
            rest = strip(rest, &self.key_suffix(first)[..shared]).map_err(outside)?;
        }
        let head = head_of(rest);
        let head_at = |index: usize| Slot(u64::from_le_bytes(slots[index])).head();
        let low = self.head_lower_bound(first, head);

        // Compare rows with equal heads. If both suffixes fit into their heads, their lengths decide. In an inner node
        // this avoids reading the row, which is in a different cache line. A leaf's row will be read anyway, so compare
        // it directly.
        let compare = |slot: Slot| match slot.suffix_bytes() - shared {
            bytes if first > 0 && bytes.max(rest.len()) <= HEAD_BYTES => bytes.cmp(&rest.len()),
            _ => self.suffix_of(slot)[shared..].cmp(rest),
        };
        match slots.get(low).map(|slot| Slot(u64::from_le_bytes(*slot))) {
            Some(slot) if slot.head() == head => match compare(slot) {
                Ordering::Equal => Ok(low),
                Ordering::Greater => Err(low),
                Ordering::Less => {
                    let next = low + 1;
                    if next == slots.len() || head_at(next) != head {
                        return Err(next);
                    }
                    slots[next..]
                        .binary_search_by(|slot| {
                            let slot = Slot(u64::from_le_bytes(*slot));
                            slot.head().cmp(&head).then_with(|| compare(slot))
                        })
                        .map(|found| next + found)
                        .map_err(|found| next + found)
                }
            },
            _ => Err(low),
        }
    }

    /// Returns the size of one half of a split: a node with `fence` on one side, a new separator on the other, and
    /// `rows` rows, which take up `rows_cost` in this node. The separator is given without this node's prefix.
    fn side_bytes(&self, fence: Option<&[u8]>, separator_suffix: &[u8], rows: usize, rows_cost: usize) -> usize {
        let prefix_bytes = self.prefix_bytes();
        let (fence_bytes, gain_bytes) = match fence {
            Some(fence) => (fence.len(), common_bytes(&fence[prefix_bytes..], separator_suffix)),
            None => (0, 0),
        };
        let separator_bytes = prefix_bytes + separator_suffix.len();
        SLOTS_OFFSET + fence_bytes + separator_bytes + rows_cost - rows * gain_bytes
    }

    /// Returns the number of bytes that this node's rows would take up in a node with a prefix of `prefix_bytes`, which
    /// must not exceed the length of this node's prefix.
    fn rows_cost_under(&self, prefix_bytes: usize) -> usize {
        assert!(prefix_bytes <= self.prefix_bytes(), "rows of a node are put under a longer prefix");
        let keys = self.len() - self.first_key();
        self.rows_cost() + keys * (self.prefix_bytes() - prefix_bytes)
    }

    /// Returns the length of the prefix that this node would have after a merge with its right neighbour.
    fn merged_prefix_bytes(&self, right: &Node<'_>) -> usize {
        debug_assert!(self.upper_fence().is_some(), "the last node of its level has no right neighbour");
        debug_assert!(self.upper_fence() == right.lower_fence(), "not neighbours");
        match (self.lower_fence(), right.upper_fence()) {
            (Some(lower), Some(upper)) => common_bytes(lower, upper),
            _ => 0,
        }
    }
}

thread_local! {
    /// A copy of the page that is being rebuilt. A thread allocates it at its first rebuild and reuses it afterwards.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A mutable view of a page as a node, with the operations that leaves and inner nodes have in common.
struct NodeMut<'a> {
    page: &'a mut [u8],
}

impl NodeMut<'_> {
    #[inline]
    fn view(&self) -> Node<'_> {
        Node::new(self.page)
    }

    #[inline]
    fn set(&mut self, offset: usize, value: usize) {
        debug_assert!(value <= usize::from(u16::MAX));
        put_u16(self.page, offset, value as u16);
    }

    /// Calls `body` to rewrite the page, with a copy of its old content.
    fn rebuild(&mut self, body: impl FnOnce(&mut Self, &[u8])) {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            scratch.extend_from_slice(self.page);
            body(self, scratch);
        });
    }

    /// Turns the page into an empty node.
    fn init(&mut self, level: u8, lower: Option<&[u8]>, upper: Option<&[u8]>) {
        let page_bytes = self.page.len();
        assert!(page_bytes.is_power_of_two() && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes));
        for fence in [lower, upper].into_iter().flatten() {
            assert!(fence.len() <= key_bytes_max(page_bytes), "a fence of {} bytes", fence.len());
        }
        self.page[NEWEST_OFFSET..].fill(0);
        self.page[LEVEL_OFFSET] = level;
        let lower_start = page_bytes - lower.map_or(0, <[u8]>::len);
        if let Some(lower) = lower {
            self.page[lower_start..].copy_from_slice(lower);
        }
        if let Some(upper) = upper {
            self.page[lower_start - upper.len()..lower_start].copy_from_slice(upper);
        }
        self.set(LOWER_BYTES_OFFSET, lower.map_or(usize::from(FENCE_ABSENT), <[u8]>::len));
        self.set(UPPER_BYTES_OFFSET, upper.map_or(usize::from(FENCE_ABSENT), <[u8]>::len));
        if let (Some(lower), Some(upper)) = (lower, upper) {
            assert!(lower < upper, "fences out of order");
            self.set(PREFIX_BYTES_OFFSET, common_bytes(lower, upper));
        }
    }

    #[inline]
    fn set_newest(&mut self, newest: Timestamp) {
        debug_assert!(newest >= self.view().newest(), "a leaf forgets its newest commit");
        put_u64(self.page, NEWEST_OFFSET, newest.0);
    }

    #[inline]
    fn set_slot(&mut self, index: usize, slot: Slot) {
        put_u64(self.page, slot_offset(index), slot.0);
    }

    /// Inserts a row, but leaves its bytes after the suffix to the caller. Returns the offset at which they must be
    /// written.
    #[inline]
    fn open_row(&mut self, index: usize, suffix: &[u8], rest_bytes: usize, flag: u16) -> Result<usize, PageFull> {
        let row_bytes = suffix.len() + rest_bytes;
        if SLOT_BYTES + row_bytes > self.view().gap_bytes() {
            self.make_gap(SLOT_BYTES + row_bytes)?;
        }
        let head = if self.view().is_edge() { self.share(suffix) } else { head_of(suffix) };
        let node = self.view();
        let rows = node.len();
        let heap_bytes = node.heap_bytes() + row_bytes;
        let row = node.heap_end() - heap_bytes;
        assert!(index <= rows, "row {index} of {rows}");
        if index < rows {
            self.page.copy_within(slot_offset(index)..slot_offset(rows), slot_offset(index + 1));
        }
        self.set_slot(index, Slot::new(head, row, suffix.len(), flag));
        self.page[row..row + suffix.len()].copy_from_slice(suffix);
        self.set(SLOT_COUNT_OFFSET, rows + 1);
        self.set(HEAP_BYTES_OFFSET, heap_bytes);
        debug_assert!(self.view().slots_end() <= row, "slots and heap meet");
        Ok(row + suffix.len())
    }

    /// Updates the number of consecutive insertions at one end, which reveals sorted loads, after a key was inserted at
    /// position `index` among `keys` keys.
    #[inline]
    fn count_run(&mut self, index: usize, keys: usize) {
        debug_assert!(index <= keys, "key {index} of {keys} was inserted");
        let run = self.view().run();
        let run = if index == keys {
            run.max(0).saturating_add(1)
        } else if index == 0 {
            run.min(0).saturating_sub(1)
        } else {
            0
        };
        self.page[RUN_OFFSET] = run as u8;
    }

    /// Shortens the shared bytes of an edge node if a new suffix does not begin with them. Returns the suffix's head.
    fn share(&mut self, suffix: &[u8]) -> u32 {
        let node = self.view();
        let first = node.first_key();
        if node.len() <= first {
            // A lone key shares all its bytes with itself. The next key shortens the shared bytes as needed.
            let shared = if node.len() == first { suffix.len() } else { 0 };
            self.set(SHARED_BYTES_OFFSET, shared);
            return head_of(&suffix[shared..]);
        }
        let shared = node.shared_bytes();
        let common = common_bytes(suffix, &node.key_suffix(first)[..shared]);
        if common < shared {
            self.set_shared(common);
        }
        head_of(&suffix[common..])
    }

    /// Sets the number of bytes that all suffixes share, and recomputes every head.
    #[cold]
    fn set_shared(&mut self, shared: usize) {
        debug_assert!(shared == 0 || self.view().is_edge(), "only a node without a prefix shares bytes besides");
        self.set(SHARED_BYTES_OFFSET, shared);
        for index in self.view().first_key()..self.view().len() {
            let node = self.view();
            let head = head_of(&node.key_suffix(index)[shared..]);
            put_u32(self.page, slot_offset(index) + SLOT_HEAD_OFFSET, head);
        }
    }

    /// Makes a gap of `bytes` by compacting the heap, if enough bytes are free.
    #[cold]
    fn make_gap(&mut self, bytes: usize) -> Result<(), PageFull> {
        if bytes > self.view().free_bytes() {
            return Err(PageFull);
        }
        self.compact(None);
        debug_assert!(bytes <= self.view().gap_bytes());
        Ok(())
    }

    /// Moves all rows together to the end of the heap. With `resized`, the part after one row's suffix gets a new
    /// length and is filled with zeros.
    fn compact(&mut self, resized: Option<(usize, usize)>) {
        self.rebuild(|node, copy| {
            let old = Node::new(copy);
            let mut row = old.heap_end();
            for index in 0..old.len() {
                let slot = old.slot(index);
                let suffix = old.suffix_of(slot);
                let rest_start = match resized {
                    Some((resized_index, rest_bytes)) if resized_index == index => {
                        let rest_start = row - rest_bytes;
                        node.page[rest_start..row].fill(0);
                        rest_start
                    }
                    _ => {
                        let rest = old.rest_of(slot);
                        let rest_start = row - rest.len();
                        node.page[rest_start..row].copy_from_slice(rest);
                        rest_start
                    }
                };
                row = rest_start - suffix.len();
                node.page[row..rest_start].copy_from_slice(suffix);
                put_u16(node.page, slot_offset(index) + SLOT_ROW_OFFSET, row as u16);
            }
            if old.heap_start() < row {
                node.page[old.heap_start()..row].fill(0);
            }
            node.set(HEAP_BYTES_OFFSET, old.heap_end() - row);
            node.set(GARBAGE_BYTES_OFFSET, 0);
            debug_assert!(row >= node.view().slots_end(), "rows and slots overlap");
            let is_kept = resized.is_some() || node.view().live_bytes() == old.live_bytes();
            debug_assert!(is_kept, "a compacted node has lost {} bytes", old.live_bytes());
        });
    }

    /// Frees `bytes` bytes of the heap, starting at `start`.
    #[inline]
    fn discard(&mut self, start: usize, bytes: usize) {
        self.page[start..start + bytes].fill(0);
        let node = self.view();
        debug_assert!(node.heap_start() <= start && start + bytes <= node.heap_end(), "free space outside of the heap");
        if start == node.heap_start() {
            let heap_bytes = node.heap_bytes() - bytes;
            self.set(HEAP_BYTES_OFFSET, heap_bytes);
        } else {
            let garbage_bytes = node.garbage_bytes() + bytes;
            debug_assert!(garbage_bytes <= node.heap_bytes(), "more of a heap is unused than there is");
            self.set(GARBAGE_BYTES_OFFSET, garbage_bytes);
        }
    }

    /// Removes a row.
    #[inline]
    fn remove_row(&mut self, index: usize) {
        let node = self.view();
        let rows = node.len();
        debug_assert!(index < rows, "row {index} of {rows} is removed");
        let slot = node.slot(index);
        let row_bytes = node.cost_of(slot) - SLOT_BYTES;
        let free_bytes = node.free_bytes() + SLOT_BYTES + row_bytes;
        self.discard(slot.row(), row_bytes);
        self.page.copy_within(slot_offset(index + 1)..slot_offset(rows), slot_offset(index));
        self.page[slot_offset(rows - 1)..slot_offset(rows)].fill(0);
        self.set(SLOT_COUNT_OFFSET, rows - 1);
        if rows == 1 {
            self.set(HEAP_BYTES_OFFSET, 0);
            self.set(GARBAGE_BYTES_OFFSET, 0);
        }
        debug_assert_eq!(self.view().free_bytes(), free_bytes, "a removed row leaves other space than it took");
    }

    /// Appends a row after all existing rows, without setting its head. The suffix is passed in two parts.
    fn push_row(&mut self, lead: &[u8], suffix: &[u8], rest: &[u8], flag: u16) {
        let node = self.view();
        let rows = node.len();
        let suffix_bytes = lead.len() + suffix.len();
        let row_bytes = suffix_bytes + rest.len();
        assert!(SLOT_BYTES + row_bytes <= node.gap_bytes(), "a rebuilt page overflows");
        let heap_bytes = node.heap_bytes() + row_bytes;
        let row = node.heap_end() - heap_bytes;
        self.set_slot(rows, Slot::new(0, row, suffix_bytes, flag));
        let to = &mut self.page[row..row + row_bytes];
        to[..lead.len()].copy_from_slice(lead);
        to[lead.len()..suffix_bytes].copy_from_slice(suffix);
        to[suffix_bytes..].copy_from_slice(rest);
        self.set(SLOT_COUNT_OFFSET, rows + 1);
        self.set(HEAP_BYTES_OFFSET, heap_bytes);
    }

    /// Appends rows of a different node after all existing rows, without setting their heads. The nodes may have
    /// different prefixes.
    fn push_rows(&mut self, source: &Node<'_>, rows: std::ops::Range<usize>) {
        let prefix_bytes = self.view().prefix_bytes();
        let source_prefix = source.prefix();
        assert!(source_prefix.starts_with(self.view().prefix()) || self.view().prefix().starts_with(source_prefix));
        let lead = &source_prefix[prefix_bytes.min(source_prefix.len())..];
        let cut = prefix_bytes.saturating_sub(source_prefix.len());
        for index in rows {
            let slot = source.slot(index);
            debug_assert!(
                self.view().prefix()[prefix_bytes - cut..] == source.suffix_of(slot)[..cut],
                "a key loses bytes that its new prefix does not have"
            );
            let flag = if slot.is_large() { SLOT_LARGE_FLAG } else { 0 };
            self.push_row(lead, &source.suffix_of(slot)[cut..], source.rest_of(slot), flag);
        }
    }

    /// Ends a rebuild: computes the shared bytes and the heads.
    fn seal(&mut self) {
        let node = self.view();
        let (first, rows) = (node.first_key(), node.len());
        let shared = if node.is_edge() && first < rows {
            common_bytes(node.key_suffix(first), node.key_suffix(rows - 1))
        } else {
            0
        };
        self.set_shared(shared);
    }
}
