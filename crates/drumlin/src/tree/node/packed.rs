//! Building a node from a complete, sorted list of rows, in one pass and without searching.

use super::NodeMut;
use crate::format::PageId;
use crate::format::node::{
    CHILD_BYTES, FENCE_ABSENT, LARGE_REF_BYTES, LOWER_BYTES_OFFSET, LargeRef, PAGE_BYTES_MIN, SLOT_LARGE_FLAG,
    UPPER_BYTES_OFFSET, VALUE_LENGTH_BYTES,
};

/// A leaf without rows that covers all keys.
pub(crate) static EMPTY_LEAF: [u8; PAGE_BYTES_MIN] = {
    let mut page = [0; PAGE_BYTES_MIN];
    let absent = FENCE_ABSENT.to_le_bytes();
    (page[LOWER_BYTES_OFFSET], page[LOWER_BYTES_OFFSET + 1]) = (absent[0], absent[1]);
    (page[UPPER_BYTES_OFFSET], page[UPPER_BYTES_OFFSET + 1]) = (absent[0], absent[1]);
    page
};

/// A row to be packed: its key, and the bytes that follow the key's suffix in the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PackedRow<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) rest: &'a [u8],
    pub(crate) is_large: bool,
}

/// Encodes an inline value as the part of a leaf's row that follows the key's suffix, and appends it to `out`.
pub(crate) fn push_value(value: &[u8], out: &mut Vec<u8>) {
    out.extend(u16::try_from(value.len()).expect("a value that stays in its leaf").to_le_bytes());
    out.extend_from_slice(value);
}

/// Encodes a reference to a large value as the part of a leaf's row that follows the key's suffix.
pub(crate) fn large_rest(reference: LargeRef) -> [u8; VALUE_LENGTH_BYTES + LARGE_REF_BYTES] {
    assert!(reference.is_plausible(), "{reference:?} could not be read again");
    rest_of(reference)
}

fn rest_of(reference: LargeRef) -> [u8; VALUE_LENGTH_BYTES + LARGE_REF_BYTES] {
    debug_assert!(LARGE_REF_BYTES <= u16::MAX as usize, "a reference is longer than its length can say");
    let mut rest = [0; VALUE_LENGTH_BYTES + LARGE_REF_BYTES];
    rest[..VALUE_LENGTH_BYTES].copy_from_slice(&(LARGE_REF_BYTES as u16).to_le_bytes());
    rest[VALUE_LENGTH_BYTES..].copy_from_slice(&reference.to_bytes());
    rest
}

/// Encodes the mark of a removed row as the part of a leaf's row that follows the key's suffix. Only runs have such
/// rows.
pub(crate) fn removal_rest() -> [u8; VALUE_LENGTH_BYTES + LARGE_REF_BYTES] {
    rest_of(LargeRef::REMOVED)
}

/// Encodes a child as the part of an inner node's row that follows the key's suffix.
pub(crate) fn child_rest(child: PageId) -> [u8; CHILD_BYTES] {
    super::inner::entry_of(child)
}

/// Turns the page into a node with these rows. The rows must ascend, lie within the fences, and fit. The first key of
/// an inner node equals its lower fence and is not stored.
pub(crate) fn pack<'r>(
    page: &mut [u8],
    level: u8,
    (lower, upper): (Option<&[u8]>, Option<&[u8]>),
    rows: impl Iterator<Item = PackedRow<'r>>,
) {
    let mut node = NodeMut { page };
    node.init(level, lower, upper);
    let prefix_bytes = node.view().prefix_bytes();
    for (index, row) in rows.enumerate() {
        let suffix = if level > 0 && index == 0 { &[][..] } else { &row.key[prefix_bytes..] };
        node.push_row(&[], suffix, row.rest, if row.is_large { SLOT_LARGE_FLAG } else { 0 });
    }
    node.seal();
    debug_assert_eq!(node.view().garbage_bytes(), 0, "a packed node has unused bytes among its rows");
    debug_assert_eq!(super::check(node.page), Ok(()), "a packed node is not sound");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The empty leaf is identical to one made by `pack`.
    #[test]
    fn the_empty_leaf_is_sound() {
        let mut page = [0; PAGE_BYTES_MIN];
        pack(&mut page, 0, (None, None), std::iter::empty());
        assert_eq!(page, EMPTY_LEAF);
        assert_eq!(super::super::check(&EMPTY_LEAF), Ok(()));
    }
}
