//! Summaries: the page-table changes in an epoch.
//!
//! The payload of an extent of kind `Summary`, after the extent's header, is a list of entries:
//!
//! ```text
//! OFFSET  SIZE  DESCRIPTION
//!      0     4  keyspace
//!      4     4  page; 0: the keyspace was dropped, and all its pages with it
//!      8     8  the page's new address; 0: it was freed
//!     16     4  sequence number within the epoch: of two entries for a page, the higher one counts
//!     20     4  zero
//! ```

use super::{ExtentAddress, KeyspaceId, PageId, get_u32, get_u64, put_u32, put_u64};

pub(crate) const KEYSPACE_OFFSET: usize = 0;
pub(crate) const PAGE_OFFSET: usize = 4;
pub(crate) const ADDRESS_OFFSET: usize = 8;
pub(crate) const SEQUENCE_OFFSET: usize = 16;
pub(crate) const ZERO_OFFSET: usize = 20;
pub(crate) const TABLE_CHANGE_BYTES: usize = 24;

const _: () = {
    assert!(PAGE_OFFSET == KEYSPACE_OFFSET + 4);
    assert!(ADDRESS_OFFSET == PAGE_OFFSET + 4);
    assert!(SEQUENCE_OFFSET == ADDRESS_OFFSET + 8);
    assert!(ZERO_OFFSET == SEQUENCE_OFFSET + 4);
    assert!(TABLE_CHANGE_BYTES == ZERO_OFFSET + 4);
};

/// A change to a page's entry in its page table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableChange {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) page: PageId,
    /// The page's new address, or [`ExtentAddress::NONE`] if it was freed.
    pub(crate) address: ExtentAddress,
    pub(crate) sequence: u32,
}

/// Appends the change to `out`.
pub(crate) fn encode(change: &TableChange, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + TABLE_CHANGE_BYTES, 0);
    let bytes = &mut out[start..];
    put_u32(bytes, KEYSPACE_OFFSET, change.keyspace.0);
    put_u32(bytes, PAGE_OFFSET, change.page.0);
    put_u64(bytes, ADDRESS_OFFSET, change.address.to_bits());
    put_u32(bytes, SEQUENCE_OFFSET, change.sequence);
}

/// Decodes all changes in a payload. Returns `None` if the payload is malformed.
pub(crate) fn decode(payload: &[u8]) -> Option<Vec<TableChange>> {
    if !payload.len().is_multiple_of(TABLE_CHANGE_BYTES) {
        return None;
    }
    payload
        .chunks_exact(TABLE_CHANGE_BYTES)
        .map(|bytes| {
            let address = get_u64(bytes, ADDRESS_OFFSET);
            Some(TableChange {
                keyspace: KeyspaceId(get_u32(bytes, KEYSPACE_OFFSET)),
                page: PageId(get_u32(bytes, PAGE_OFFSET)),
                address: if address == 0 { ExtentAddress::NONE } else { ExtentAddress::from_bits(address)? },
                sequence: get_u32(bytes, SEQUENCE_OFFSET),
            })
        })
        .collect()
}
