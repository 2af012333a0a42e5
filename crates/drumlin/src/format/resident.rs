//! The list of resident pages: the pages that were in memory when the list was written, which the next opening reads
//! before they are first used. It is advice: a wrong entry is ignored, or costs a useless read.
//!
//! The file `resident` is a sequence of blocks, each of which is verified separately. So a list that was only half
//! written still has valid blocks of its own or of the list before:
//!
//! ```text
//! OFFSET   SIZE  DESCRIPTION
//!      0      8  XXH3-64 of the bytes from 8 to the end of the block
//!      8      8  "DRUMRES" and a newline
//!     16      4  version of the list
//!     20      4  number of pages listed
//!     24      8  identity of the database
//!     32   4060  pages, 20 bytes each
//!   4092      4  zero
//! ```
//!
//! A page:
//!
//! ```text
//! OFFSET  SIZE  DESCRIPTION
//!      0     4  keyspace
//!      4     4  page
//!      8     4  bytes of its frame
//!     12     8  identity of the value; 0: a node
//! ```

use super::{DatabaseId, KeyspaceId, PageId, ValueId, checksum, get_u32, get_u64, put_u32, put_u64};

pub(crate) const CHECKSUM_OFFSET: usize = 0;
pub(crate) const MAGIC_OFFSET: usize = 8;
pub(crate) const VERSION_OFFSET: usize = 16;
pub(crate) const COUNT_OFFSET: usize = 20;
pub(crate) const DATABASE_OFFSET: usize = 24;
pub(crate) const PAGES_OFFSET: usize = 32;
pub(crate) const ZERO_OFFSET: usize = PAGES_OFFSET + RESIDENT_BLOCK_PAGES * RESIDENT_PAGE_BYTES;
/// Bytes of a block.
pub(crate) const RESIDENT_BLOCK_BYTES: usize = super::BLOCK_BYTES;

pub(crate) const KEYSPACE_OFFSET: usize = 0;
pub(crate) const PAGE_OFFSET: usize = 4;
pub(crate) const FRAME_BYTES_OFFSET: usize = 8;
pub(crate) const VALUE_OFFSET: usize = 12;
/// Bytes of a page in the list.
pub(crate) const RESIDENT_PAGE_BYTES: usize = 20;

/// Limit on the pages that a block lists.
pub(crate) const RESIDENT_BLOCK_PAGES: usize = (RESIDENT_BLOCK_BYTES - PAGES_OFFSET) / RESIDENT_PAGE_BYTES;

const MAGIC: u64 = u64::from_le_bytes(*b"DRUMRES\n");
const VERSION: u32 = 1;

const _: () = {
    assert!(MAGIC_OFFSET == CHECKSUM_OFFSET + 8);
    assert!(VERSION_OFFSET == MAGIC_OFFSET + 8);
    assert!(COUNT_OFFSET == VERSION_OFFSET + 4);
    assert!(DATABASE_OFFSET == COUNT_OFFSET + 4);
    assert!(PAGES_OFFSET == DATABASE_OFFSET + 8);
    assert!(ZERO_OFFSET <= RESIDENT_BLOCK_BYTES && RESIDENT_BLOCK_BYTES < ZERO_OFFSET + RESIDENT_PAGE_BYTES);
    assert!(PAGE_OFFSET == KEYSPACE_OFFSET + 4);
    assert!(FRAME_BYTES_OFFSET == PAGE_OFFSET + 4);
    assert!(VALUE_OFFSET == FRAME_BYTES_OFFSET + 4);
    assert!(RESIDENT_PAGE_BYTES == VALUE_OFFSET + 8);
};

/// An entry of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResidentPage {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) page: PageId,
    pub(crate) frame_bytes: u32,
    /// `None` if the page is a node.
    pub(crate) value: Option<ValueId>,
}

/// Writes a block that lists these pages.
pub(crate) fn encode(database: DatabaseId, pages: &[ResidentPage], block: &mut [u8]) {
    assert!(block.len() == RESIDENT_BLOCK_BYTES && pages.len() <= RESIDENT_BLOCK_PAGES, "{} pages", pages.len());
    block.fill(0);
    put_u64(block, MAGIC_OFFSET, MAGIC);
    put_u32(block, VERSION_OFFSET, VERSION);
    put_u32(block, COUNT_OFFSET, pages.len() as u32);
    put_u64(block, DATABASE_OFFSET, database.0);
    for (bytes, page) in block[PAGES_OFFSET..].chunks_exact_mut(RESIDENT_PAGE_BYTES).zip(pages) {
        put_u32(bytes, KEYSPACE_OFFSET, page.keyspace.0);
        put_u32(bytes, PAGE_OFFSET, page.page.0);
        put_u32(bytes, FRAME_BYTES_OFFSET, page.frame_bytes);
        put_u64(bytes, VALUE_OFFSET, page.value.map_or(0, |value| value.0));
    }
    let sum = checksum(&block[MAGIC_OFFSET..], 0);
    put_u64(block, CHECKSUM_OFFSET, sum);
}

/// Returns `true` if a file whose first written block is this one is a list of some database.
pub(crate) fn is_list(block: &[u8]) -> bool {
    block.len() >= VERSION_OFFSET && get_u64(block, MAGIC_OFFSET) == MAGIC
}

/// Decodes the pages listed in a block. Returns `None` if it is damaged, of another database or of another version.
pub(crate) fn decode(database: DatabaseId, block: &[u8]) -> Option<Vec<ResidentPage>> {
    let is_sound = block.len() == RESIDENT_BLOCK_BYTES
        && get_u64(block, MAGIC_OFFSET) == MAGIC
        && get_u32(block, VERSION_OFFSET) == VERSION
        && get_u64(block, DATABASE_OFFSET) == database.0
        && get_u64(block, CHECKSUM_OFFSET) == checksum(&block[MAGIC_OFFSET..], 0);
    let count = if is_sound { get_u32(block, COUNT_OFFSET) as usize } else { return None };
    let page = |bytes: &[u8]| {
        let value = get_u64(bytes, VALUE_OFFSET);
        ResidentPage {
            keyspace: KeyspaceId(get_u32(bytes, KEYSPACE_OFFSET)),
            page: PageId(get_u32(bytes, PAGE_OFFSET)),
            frame_bytes: get_u32(bytes, FRAME_BYTES_OFFSET),
            value: (value != 0).then_some(ValueId(value)),
        }
    };
    let listed = block[PAGES_OFFSET..ZERO_OFFSET].chunks_exact(RESIDENT_PAGE_BYTES).map(page);
    (count <= RESIDENT_BLOCK_PAGES).then(|| listed.take(count).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list survives encoding, is valid only in its own database, and any flipped bit is detected.
    #[test]
    fn a_list_comes_back() {
        let page = |number: u32| ResidentPage {
            keyspace: KeyspaceId(number % 3 + 1),
            page: PageId(number),
            frame_bytes: 512 << (number % 8),
            value: number.is_multiple_of(4).then_some(ValueId(1 << 40 | u64::from(number))),
        };
        let (own, other) = (DatabaseId(7), DatabaseId(8));
        let mut block = vec![1; RESIDENT_BLOCK_BYTES];
        for count in [0, 1, 5, RESIDENT_BLOCK_PAGES as u32] {
            let pages: Vec<ResidentPage> = (1..=count).map(page).collect();
            encode(own, &pages, &mut block);
            assert_eq!(decode(own, &block), Some(pages));
            assert_eq!(decode(other, &block), None);
        }
        for bit in (0..block.len() * 8).step_by(7) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(own, &block), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(decode(own, &block[1..]), None);
        assert_eq!(decode(own, &[]), None);
    }
}
