//! A block of a run: rows sorted by keyspace, key and number. In the file `versions`, a row is an old version, and its
//! number is the commit that replaced it. In the file `writes`, a row is a change of a transaction (`writes.rs`).
//!
//! ```text
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  "DrumVers"
//!      8     8  checksum of what follows
//!     16     8  number of the run, unique within the process
//!     24     4  bytes of rows
//!     28     4  zeros
//!     32        rows
//!
//! A row
//!      0     4  keyspace
//!      4     8  the row's number
//!     12     4  length of the key
//!     16     4  length of the value; its two highest values mark an absent row and a large value's reference
//!     20     k  key
//!   20+k     v  the value
//! ```

use crate::format::node::{LARGE_REF_BYTES, LargeRef};
use crate::format::{KeyspaceId, Timestamp, checksum, get_u32, get_u64, put_u32, put_u64};
use crate::io::AlignedBuffer;
use crate::tree::node::RowValue;

/// The size of a block of old versions. The longest row fills half of it: the largest page has 64 KiB, and a row fills
/// at most half a page.
pub(super) const VERSION_BLOCK_BYTES: usize = 64 << 10;
/// The size of a block of changes. The longest row has a key of 16 KiB and a value of 64 KiB.
pub(super) const WRITE_BLOCK_BYTES: usize = if cfg!(feature = "sim") { 80 << 10 } else { 128 << 10 };

const MAGIC: &[u8; 8] = b"DrumVers";
const CHECKSUM_OFFSET: usize = 8;
const RUN_OFFSET: usize = 16;
const ROWS_BYTES_OFFSET: usize = 24;
const ROWS_OFFSET: usize = 32;

/// The size of the fields before a row's key. Fixed by the layout of a row.
const ROW_HEAD_BYTES: usize = 20;
const ABSENT: u32 = u32::MAX;
const LARGE: u32 = u32::MAX - 1;

/// Returns `true` if the bytes begin like a block. A file of spilled versions begins with a block.
pub(super) fn is_block(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// A row of a block: in the file `versions`, a row as it was before a commit changed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SpilledRow<'b> {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: &'b [u8],
    pub(crate) timestamp: Timestamp,
    pub(crate) was: Option<RowValue<'b>>,
}

impl<'b> SpilledRow<'b> {
    /// Returns the row's position in the order of a run.
    pub(crate) fn sort_key(&self) -> (KeyspaceId, &'b [u8], Timestamp) {
        (self.keyspace, self.key, self.timestamp)
    }

    fn bytes(&self) -> usize {
        ROW_HEAD_BYTES + self.key.len() + self.was.map_or(0, |was| was.stored_bytes())
    }
}

/// A block that is being filled.
#[derive(Debug)]
pub(super) struct BlockBuffer {
    block: AlignedBuffer,
    end: usize,
}

impl BlockBuffer {
    /// Creates an empty block of this size.
    pub(super) fn new(block_bytes: usize) -> BlockBuffer {
        BlockBuffer { block: AlignedBuffer::zeroed(block_bytes), end: ROWS_OFFSET }
    }

    /// Appends a row. Returns `false` if the block has no room for it.
    pub(super) fn push(&mut self, row: SpilledRow<'_>) -> bool {
        let block_bytes = self.block.len();
        assert!(row.bytes() <= block_bytes - ROWS_OFFSET, "a row of {} bytes fits no block", row.bytes());
        if row.bytes() > block_bytes - self.end {
            return false;
        }
        let (key_end, at) = (self.end + ROW_HEAD_BYTES + row.key.len(), self.end);
        assert!(row.timestamp > Timestamp(0), "a row was changed by no commit");
        put_u32(&mut self.block, at, row.keyspace.0);
        put_u64(&mut self.block, at + 4, row.timestamp.0);
        put_u32(&mut self.block, at + 12, row.key.len() as u32);
        self.block[at + ROW_HEAD_BYTES..key_end].copy_from_slice(row.key);
        let length = match row.was {
            None => ABSENT,
            Some(RowValue::Inline(value)) => {
                self.block[key_end..key_end + value.len()].copy_from_slice(value);
                assert!(value.len() < LARGE as usize, "a value's length reads as a mark");
                value.len() as u32
            }
            Some(RowValue::Large(reference)) => {
                self.block[key_end..key_end + LARGE_REF_BYTES].copy_from_slice(&reference.to_bytes());
                LARGE
            }
        };
        put_u32(&mut self.block, at + 16, length);
        self.end += row.bytes();
        assert!(self.end <= block_bytes, "rows reach beyond their block");
        debug_assert_eq!(Rows { rest: &self.block[at..self.end] }.next(), Some(row), "a row can't be read as written");
        true
    }

    /// Completes the block for this run and returns it for writing. After that, the buffer counts as empty, even if the
    /// write fails.
    pub(super) fn seal(&mut self, run: u64) -> &AlignedBuffer {
        assert!(self.end > ROWS_OFFSET, "a block without rows is written");
        self.block[self.end..].fill(0);
        self.block[..8].copy_from_slice(MAGIC);
        put_u64(&mut self.block, RUN_OFFSET, run);
        put_u32(&mut self.block, ROWS_BYTES_OFFSET, (self.end - ROWS_OFFSET) as u32);
        put_u32(&mut self.block, ROWS_BYTES_OFFSET + 4, 0);
        let sum = checksum(&self.block[RUN_OFFSET..], 0);
        put_u64(&mut self.block, CHECKSUM_OFFSET, sum);
        self.end = ROWS_OFFSET;
        debug_assert!(verify(&self.block, run), "a block does not verify as it is written");
        &self.block
    }
}

/// Returns `true` if the bytes are a valid block of the run.
pub(super) fn verify(block: &[u8], run: u64) -> bool {
    assert!(block.len() >= VERSION_BLOCK_BYTES, "a block of {} bytes", block.len());
    is_block(block)
        && get_u64(block, CHECKSUM_OFFSET) == checksum(&block[RUN_OFFSET..], 0)
        && get_u64(block, RUN_OFFSET) == run
        && get_u32(block, ROWS_BYTES_OFFSET) as usize <= block.len() - ROWS_OFFSET
}

/// Returns the rows of a block that has been [verified](verify).
pub(super) fn rows(block: &[u8]) -> Rows<'_> {
    rows_from(block, 0)
}

/// Like [`rows`], but begins with the row at this offset.
pub(super) fn rows_from(block: &[u8], offset: usize) -> Rows<'_> {
    let all = &block[ROWS_OFFSET..][..get_u32(block, ROWS_BYTES_OFFSET) as usize];
    assert!(offset <= all.len(), "a row at {offset} of {} bytes", all.len());
    Rows { rest: &all[offset..] }
}

/// The rows of a block; see [`rows`].
#[derive(Clone, Debug)]
pub(super) struct Rows<'b> {
    rest: &'b [u8],
}

impl Rows<'_> {
    /// Returns the offset of the next row in `block`, which must be the block of these rows. Returns `None` at the end.
    pub(super) fn offset(&self, block: &[u8]) -> Option<usize> {
        let all = get_u32(block, ROWS_BYTES_OFFSET) as usize;
        debug_assert!(self.rest.len() <= all, "rows are of another block");
        (!self.rest.is_empty()).then(|| all - self.rest.len())
    }
}

impl<'b> Iterator for Rows<'b> {
    type Item = SpilledRow<'b>;

    fn next(&mut self) -> Option<SpilledRow<'b>> {
        if self.rest.is_empty() {
            return None;
        }
        let (head, rest) = self.rest.split_at(ROW_HEAD_BYTES);
        let (key, rest) = rest.split_at(get_u32(head, 12) as usize);
        let (was, rest) = match get_u32(head, 16) {
            ABSENT => (None, rest),
            LARGE => {
                let (bytes, rest) = rest.split_first_chunk().expect("a reference");
                (Some(RowValue::Large(LargeRef::from_bytes(bytes))), rest)
            }
            length => {
                let (value, rest) = rest.split_at(length as usize);
                (Some(RowValue::Inline(value)), rest)
            }
        };
        self.rest = rest;
        Some(SpilledRow { keyspace: KeyspaceId(get_u32(head, 0)), key, timestamp: Timestamp(get_u64(head, 4)), was })
    }
}
