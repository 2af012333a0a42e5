//! Verification of an untrusted page.

use std::ops::Range;

use super::{Node, common_bytes, head_of};
use crate::format::PageId;
use crate::format::node::{
    CHILD_BYTES, CHILD_PAGE_OFFSET, LARGE_REF_BYTES, LOWER_BYTES_OFFSET, LargeRef, PAGE_BYTES_MAX, PAGE_BYTES_MIN,
    SLOT_BYTES, SLOTS_OFFSET, UPPER_BYTES_OFFSET, VALUE_LENGTH_BYTES, inline_bytes_max, key_bytes_max,
};
use crate::format::{get_u16, get_u32};

/// The reason why a node is invalid. The number is the page size in `PageBytes`, the level in `Level`, and otherwise
/// the index of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeError {
    PageBytes(usize),
    Level(u8),
    FenceBytes,
    FenceOrder,
    Prefix,
    Heap,
    Childless,
    RowBounds(usize),
    RowOverlap(usize),
    RowKey(usize),
    RowValue(usize),
    RowChild(usize),
    RowReference(usize),
    RowOrder(usize),
    RowOutside(usize),
    RowShared(usize),
    RowHead(usize),
    Garbage,
    Unclean,
}

impl std::fmt::Display for NodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NodeError::PageBytes(value) => write!(f, "a page of {value} bytes"),
            NodeError::Level(value) => write!(f, "a node of level {value}, which is not the one expected"),
            NodeError::FenceBytes => f.write_str("its fences are longer than keys may be"),
            NodeError::FenceOrder => f.write_str("its fences are out of order"),
            NodeError::Prefix => f.write_str("its prefix is not what its fences have in common"),
            NodeError::Heap => f.write_str("its slots and its heap overlap"),
            NodeError::Childless => f.write_str("it has no children"),
            NodeError::RowBounds(value) => write!(f, "row {value} reaches beyond the heap"),
            NodeError::RowOverlap(value) => write!(f, "row {value} overlaps another"),
            NodeError::RowKey(value) => write!(f, "row {value} has a key that is too long, or one where none belongs"),
            NodeError::RowValue(value) => write!(f, "row {value} has a value whose length makes no sense"),
            NodeError::RowChild(value) => write!(f, "row {value} names no child"),
            NodeError::RowReference(value) => write!(f, "row {value} names a value that can't be one"),
            NodeError::RowOrder(value) => write!(f, "row {value} is not above the one before it"),
            NodeError::RowOutside(value) => write!(f, "row {value} lies outside the fences"),
            NodeError::RowShared(value) => write!(f, "row {value} does not begin with the bytes that all share"),
            NodeError::RowHead(value) => write!(f, "row {value} has a wrong head"),
            NodeError::Garbage => f.write_str("its count of unused bytes is wrong"),
            NodeError::Unclean => f.write_str("its unused bytes are not zero"),
        }
    }
}

/// Pages up to this size, which is the default, are verified with a smaller bitmap of their bytes, because it is faster
/// to clear.
const PAGE_BYTES_USUAL: usize = 4096;

/// Verifies all invariants of a node in an untrusted page, without allocating. Takes about as long as reading the page
/// once.
pub(crate) fn check(page: &[u8]) -> Result<(), NodeError> {
    if !page.len().is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page.len()) {
        return Err(NodeError::PageBytes(page.len()));
    }
    let node = Node::new(page);
    check_fences(&node)?;
    let available = (page.len() - SLOTS_OFFSET)
        .checked_sub(node.fences_bytes())
        .and_then(|bytes| bytes.checked_sub(node.len() * SLOT_BYTES));
    if available.is_none_or(|bytes| node.heap_bytes() > bytes) {
        return Err(NodeError::Heap);
    }
    if node.level() > 0 && node.is_empty() {
        return Err(NodeError::Childless);
    }
    if page.len() <= PAGE_BYTES_USUAL {
        check_rows(&node, &mut [0; PAGE_BYTES_USUAL / 64])?;
    } else {
        check_rows(&node, &mut [0; PAGE_BYTES_MAX / 64])?;
    }
    check_keys(&node)?;
    if is_zero(&page[node.slots_end()..node.heap_start()]) { Ok(()) } else { Err(NodeError::Unclean) }
}

fn is_zero(bytes: &[u8]) -> bool {
    // There is no early exit, so that the compiler can vectorise the loop.
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

/// Verifies that both fences lie within the page and are in order, and that the prefix is their common beginning.
fn check_fences(node: &Node<'_>) -> Result<(), NodeError> {
    // Fences of at most a quarter page each leave half of the page, so the offsets below can't underflow.
    let fits = |bytes: Option<usize>| bytes.is_none_or(|bytes| bytes <= key_bytes_max(node.page.len()));
    if ![LOWER_BYTES_OFFSET, UPPER_BYTES_OFFSET].into_iter().all(|offset| fits(node.fence_bytes(offset))) {
        return Err(NodeError::FenceBytes);
    }
    let prefix_bytes = match (node.lower_fence(), node.upper_fence()) {
        (Some(lower), Some(upper)) if lower >= upper => return Err(NodeError::FenceOrder),
        (Some(lower), Some(upper)) => common_bytes(lower, upper),
        _ => 0,
    };
    if node.prefix_bytes() != prefix_bytes {
        return Err(NodeError::Prefix);
    }
    Ok(())
}

/// Verifies that every row lies within the heap, overlaps no other row, and has valid content for its kind of node.
/// `used` must have a clear bit for each byte of the page.
fn check_rows(node: &Node<'_>, used: &mut [u64]) -> Result<(), NodeError> {
    assert!(used.len() * 64 >= node.page.len(), "a map of {} words for {} bytes", used.len(), node.page.len());
    let (heap_start, heap_end) = (node.heap_start(), node.heap_end());
    let mut rows_bytes = 0;
    for index in 0..node.len() {
        let slot = node.slot(index);
        let rest = slot.row() + slot.suffix_bytes();
        let rest_bytes_min = if node.level() == 0 { VALUE_LENGTH_BYTES } else { CHILD_BYTES };
        if slot.row() < heap_start || rest + rest_bytes_min > heap_end {
            return Err(NodeError::RowBounds(index));
        }
        if node.prefix_bytes() + slot.suffix_bytes() > key_bytes_max(node.page.len()) {
            return Err(NodeError::RowKey(index));
        }
        let end = if node.level() == 0 {
            let value_bytes = usize::from(get_u16(node.page, rest));
            let sound = if slot.is_large() {
                value_bytes == LARGE_REF_BYTES
            } else {
                value_bytes <= inline_bytes_max(node.page.len(), node.prefix_bytes() + slot.suffix_bytes())
            };
            if !sound {
                return Err(NodeError::RowValue(index));
            }
            let reference = node.page[rest + VALUE_LENGTH_BYTES..].first_chunk().map(LargeRef::from_bytes);
            let is_readable = |reference: LargeRef| reference.is_plausible() || reference == LargeRef::REMOVED;
            if slot.is_large() && reference.is_some_and(|reference| !is_readable(reference)) {
                return Err(NodeError::RowReference(index));
            }
            rest + VALUE_LENGTH_BYTES + value_bytes
        } else {
            if slot.is_large() {
                return Err(NodeError::RowValue(index));
            }
            if get_u32(node.page, rest + CHILD_PAGE_OFFSET) == PageId::NONE.0 {
                return Err(NodeError::RowChild(index));
            }
            rest + CHILD_BYTES
        };
        if end > heap_end {
            return Err(NodeError::RowBounds(index));
        }
        if !claim(used, slot.row(), end) {
            return Err(NodeError::RowOverlap(index));
        }
        rows_bytes += end - slot.row();
    }
    if rows_bytes + node.garbage_bytes() != node.heap_bytes() {
        return Err(NodeError::Garbage);
    }
    if node.garbage_bytes() > 0 && !is_clean(node.page, used, heap_start..heap_end) {
        return Err(NodeError::Unclean);
    }
    Ok(())
}

/// Returns `true` if all bytes in `range` that are not in use are zero.
fn is_clean(page: &[u8], used: &[u64], range: Range<usize>) -> bool {
    assert!(range.end <= page.len());
    let within = |word: usize| range.start.max(word * 64)..range.end.min((word + 1) * 64);
    (range.start / 64..range.end.div_ceil(64)).all(|word| match used[word] {
        u64::MAX => true,
        0 => is_zero(&page[within(word)]),
        bits => within(word).all(|byte| bits >> (byte % 64) & 1 != 0 || page[byte] == 0),
    })
}

/// Marks the bytes from `start` to `end` as used. Returns `false` if any of them was already marked.
fn claim(used: &mut [u64], start: usize, end: usize) -> bool {
    assert!(start < end && end <= used.len() * 64, "bytes {start} to {end} are claimed");
    let (first, last) = (start / 64, (end - 1) / 64);
    let mut taken = 0;
    for (word, bits) in used[first..=last].iter_mut().zip(first..) {
        let from = if bits == first { u64::MAX << (start % 64) } else { u64::MAX };
        let to = if bits == last { u64::MAX >> (63 - (end - 1) % 64) } else { u64::MAX };
        taken |= *word & from & to;
        *word |= from & to;
    }
    taken == 0
}

/// Verifies that the node's keys ascend, lie within its fences, and begin with the prefix that the fences share, and
/// that each slot has the first four bytes of its key.
fn check_keys(node: &Node<'_>) -> Result<(), NodeError> {
    let (first, shared_bytes) = (node.first_key(), node.shared_bytes());
    if first == 1 && (node.slot(0).suffix_bytes() != 0 || node.slot(0).head() != 0) {
        return Err(NodeError::RowKey(0));
    }
    if !node.is_edge() && shared_bytes != 0 {
        return Err(NodeError::RowShared(first));
    }
    if first == node.len() {
        return Ok(());
    }
    let Some(shared) = node.key_suffix(first).get(..shared_bytes) else {
        return Err(NodeError::RowShared(first));
    };
    let mut before: Option<&[u8]> = None;
    for index in first..node.len() {
        let suffix = node.key_suffix(index);
        let Some(rest) = suffix.strip_prefix(shared) else {
            return Err(NodeError::RowShared(index));
        };
        if node.slot(index).head() != head_of(rest) {
            return Err(NodeError::RowHead(index));
        }
        if before.is_some_and(|before| before >= suffix) {
            return Err(NodeError::RowOrder(index));
        }
        before = Some(suffix);
    }
    let prefix_bytes = node.prefix_bytes();
    let smallest = node.key_suffix(first);
    if node
        .lower_fence()
        .is_some_and(|lower| smallest < &lower[prefix_bytes..] || (first == 1 && smallest == &lower[prefix_bytes..]))
    {
        return Err(NodeError::RowOutside(first));
    }
    let last = node.len() - 1;
    if node.upper_fence().is_some_and(|upper| node.key_suffix(last) >= &upper[prefix_bytes..]) {
        return Err(NodeError::RowOutside(last));
    }
    Ok(())
}
