//! A page of a tree: a leaf or an inner node. The invariants of its fields are in `tree/node`.
//!
//! ```text
//! OFFSET  SIZE  DESCRIPTION
//!      0    40  header of the extent
//!     40     8  newest commit applied to the page; 0 in an inner node
//!     48     2  slots: rows of a leaf, children of an inner node
//!     50     2  heap: bytes from its first row to the fences, including garbage
//!     52     2  garbage: bytes of the heap that belong to no row
//!     54     2  prefix: leading bytes that both fences have in common; no row stores them
//!     56     2  shared: bytes after the prefix with which every row begins; the heads begin after them
//!     58     2  length of the lower fence, 0xFFFF if there is none
//!     60     2  length of the upper fence, 0xFFFF if there is none
//!     62     1  level: 0 for a leaf
//!     63     1  run: number of consecutive insertions after the last row (positive) or before the first (negative)
//!     64   8 n  slots, in the order of their keys
//!      .     .  zeros
//!      .     .  heap: rows in any order, grows towards the slots
//!      .     .  upper fence, whole
//!      .     .  lower fence, whole, up to the end of the page
//!
//! A slot
//!      0     4  head: the first four bytes of the suffix after the shared bytes, big-endian, padded with zeros
//!      4     2  offset of the row in the page
//!      6     2  length of the suffix; bit 15: the value is a reference to a large one
//!
//! A row of a leaf
//!      0     s  suffix: the key without the prefix
//!      s     2  length of the value
//!    s+2     v  value
//!
//! A row of an inner node; the suffix of child 0 is empty
//!      0     s  suffix of the separator: the smallest key that the child may hold, without the prefix
//!      s     4  page of the child
//!
//! A reference to a large value
//!      0     8  length of the value in bytes
//!      8     8  identity
//!     16     4  page of its first chunk
//!     20     4  number of chunks
//! ```

use super::{ExtentAddress, PageId, ValueId, extent, get_u32, get_u64, put_u32, put_u64};

pub(crate) const NEWEST_OFFSET: usize = extent::HEADER_BYTES;
pub(crate) const SLOT_COUNT_OFFSET: usize = 48;
pub(crate) const HEAP_BYTES_OFFSET: usize = 50;
pub(crate) const GARBAGE_BYTES_OFFSET: usize = 52;
pub(crate) const PREFIX_BYTES_OFFSET: usize = 54;
pub(crate) const SHARED_BYTES_OFFSET: usize = 56;
pub(crate) const LOWER_BYTES_OFFSET: usize = 58;
pub(crate) const UPPER_BYTES_OFFSET: usize = 60;
pub(crate) const LEVEL_OFFSET: usize = 62;
pub(crate) const RUN_OFFSET: usize = 63;
/// The offset of the slots. Both headers fit into one cache line, and eight slots fill the next.
pub(crate) const SLOTS_OFFSET: usize = 64;

/// The length field of an absent fence.
pub(crate) const FENCE_ABSENT: u16 = 0xFFFF;

pub(crate) const SLOT_HEAD_OFFSET: usize = 0;
pub(crate) const SLOT_ROW_OFFSET: usize = 4;
pub(crate) const SLOT_SUFFIX_BYTES_OFFSET: usize = 6;
pub(crate) const SLOT_BYTES: usize = 8;
/// Marks a slot whose value is a [`LargeRef`]. This bit is free, because suffixes have at most 16,384 bytes.
pub(crate) const SLOT_LARGE_FLAG: u16 = 0x8000;

/// The number of bytes between a leaf row's suffix and its value.
pub(crate) const VALUE_LENGTH_BYTES: usize = 2;

pub(crate) const CHILD_PAGE_OFFSET: usize = 0;
/// The number of bytes after the suffix in an inner node's row.
pub(crate) const CHILD_BYTES: usize = 4;

pub(super) const LARGE_LENGTH_OFFSET: usize = 0;
pub(super) const LARGE_ID_OFFSET: usize = 8;
pub(super) const LARGE_PAGE_OFFSET: usize = 16;
pub(super) const LARGE_CHUNKS_OFFSET: usize = 20;
/// The length of a reference to a large value.
pub(crate) const LARGE_REF_BYTES: usize = 24;

const _: () = {
    assert!(NEWEST_OFFSET == 40);
    assert!(SLOT_COUNT_OFFSET == NEWEST_OFFSET + 8);
    assert!(HEAP_BYTES_OFFSET == SLOT_COUNT_OFFSET + 2);
    assert!(GARBAGE_BYTES_OFFSET == HEAP_BYTES_OFFSET + 2);
    assert!(PREFIX_BYTES_OFFSET == GARBAGE_BYTES_OFFSET + 2);
    assert!(SHARED_BYTES_OFFSET == PREFIX_BYTES_OFFSET + 2);
    assert!(LOWER_BYTES_OFFSET == SHARED_BYTES_OFFSET + 2);
    assert!(UPPER_BYTES_OFFSET == LOWER_BYTES_OFFSET + 2);
    assert!(LEVEL_OFFSET == UPPER_BYTES_OFFSET + 2);
    assert!(RUN_OFFSET == LEVEL_OFFSET + 1);
    assert!(SLOTS_OFFSET == RUN_OFFSET + 1);

    assert!(SLOT_ROW_OFFSET == SLOT_HEAD_OFFSET + 4);
    assert!(SLOT_SUFFIX_BYTES_OFFSET == SLOT_ROW_OFFSET + 2);
    assert!(SLOT_BYTES == SLOT_SUFFIX_BYTES_OFFSET + 2);

    assert!(CHILD_BYTES == CHILD_PAGE_OFFSET + 4);

    assert!(LARGE_ID_OFFSET == LARGE_LENGTH_OFFSET + 8);
    assert!(LARGE_PAGE_OFFSET == LARGE_ID_OFFSET + 8);
    assert!(LARGE_CHUNKS_OFFSET == LARGE_PAGE_OFFSET + 4);
    assert!(LARGE_REF_BYTES == LARGE_CHUNKS_OFFSET + 4);
};

/// The size of a page is a power of two between these limits. The smallest sizes are for tests, to make splits
/// frequent.
pub(crate) const PAGE_BYTES_MIN: usize = 512;
pub(crate) const PAGE_BYTES_MAX: usize = 65_536;

/// Returns `true` if this is a valid page size.
pub(crate) fn is_page_bytes(bytes: usize) -> bool {
    bytes.is_power_of_two() && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&bytes)
}

/// Returns the length of the longest key: a quarter of the page.
pub(crate) const fn key_bytes_max(page_bytes: usize) -> usize {
    page_bytes / 4
}

/// Returns the length of the longest value that is stored in the page together with a key of this length. Normally, a
/// row may fill at most three eighths of the page. With a long key, the value may still fill a quarter of the page,
/// less the overhead.
///
/// The absolute limit for a row is half a page minus the page's header. Such a row still fits between two fences of the
/// maximum length, a quarter of the page each, so a split is always possible. But rows close to half a page would leave
/// pages half empty, with a single row. That is why the usual limit is three eighths.
pub(crate) const fn inline_bytes_max(page_bytes: usize, key_bytes: usize) -> usize {
    let own_bytes = SLOTS_OFFSET + SLOT_BYTES + VALUE_LENGTH_BYTES;
    let left_by_key = (page_bytes / 8 * 3).saturating_sub(own_bytes + key_bytes);
    let left_by_longest_key = page_bytes / 4 - own_bytes;
    if left_by_key > left_by_longest_key { left_by_key } else { left_by_longest_key }
}

const _: () = {
    // A reference to a large value fits wherever an inline value does.
    assert!(inline_bytes_max(PAGE_BYTES_MIN, key_bytes_max(PAGE_BYTES_MIN)) >= LARGE_REF_BYTES);
    // An inner node between the longest fences has room for two children and the longest separator.
    assert!(PAGE_BYTES_MIN - 3 * key_bytes_max(PAGE_BYTES_MIN) >= SLOTS_OFFSET + 2 * (SLOT_BYTES + CHILD_BYTES));
    // Lengths and offsets fit their fields, and the flag does not overlap the suffix's length.
    assert!(key_bytes_max(PAGE_BYTES_MAX) < SLOT_LARGE_FLAG as usize);
    assert!(PAGE_BYTES_MAX - SLOTS_OFFSET <= u16::MAX as usize);
};

/// A reference to a large value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LargeRef {
    pub(crate) length: u64,
    /// Identifies the value, even after it moves to different extents.
    pub(crate) id: ValueId,
    pub(crate) first_page: PageId,
    pub(crate) chunk_count: u32,
}

impl LargeRef {
    /// The value of a row of a run that removes the older row with its key.
    pub(crate) const REMOVED: LargeRef =
        LargeRef { length: 0, id: ValueId(0), first_page: PageId::NONE, chunk_count: 0 };

    pub(crate) fn to_bytes(self) -> [u8; LARGE_REF_BYTES] {
        let mut bytes = [0; LARGE_REF_BYTES];
        put_u64(&mut bytes, LARGE_LENGTH_OFFSET, self.length);
        put_u64(&mut bytes, LARGE_ID_OFFSET, self.id.0);
        put_u32(&mut bytes, LARGE_PAGE_OFFSET, self.first_page.0);
        put_u32(&mut bytes, LARGE_CHUNKS_OFFSET, self.chunk_count);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; LARGE_REF_BYTES]) -> LargeRef {
        LargeRef {
            length: get_u64(bytes, LARGE_LENGTH_OFFSET),
            id: ValueId(get_u64(bytes, LARGE_ID_OFFSET)),
            first_page: PageId(get_u32(bytes, LARGE_PAGE_OFFSET)),
            chunk_count: get_u32(bytes, LARGE_CHUNKS_OFFSET),
        }
    }

    /// Returns `true` if the reference may be valid: its page numbers are in range, and its chunks can have the sizes
    /// that its length requires.
    pub(crate) fn is_plausible(&self) -> bool {
        let pages_end = self.first_page.0.checked_add(self.chunk_count);
        self.first_page != PageId::NONE && pages_end.is_some() && is_value_length(self.length, self.chunk_count)
    }
}

/// Returns `true` if a value of this length can be stored in this number of extents.
pub(crate) fn is_value_length(length: u64, chunk_count: u32) -> bool {
    let chunk_count = u64::from(chunk_count);
    chunk_count > 0 && (chunk_count..=chunk_count * ExtentAddress::EXTENT_BYTES_MAX).contains(&length)
}
