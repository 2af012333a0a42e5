//! Searching the data file for extents, where nothing that refers to them can be read.
//!
//! Every extent begins on a unit of addresses, names its database, and carries its length and a checksum. So a pass
//! over the file finds all sound extents, whatever is damaged around them. The search continues after the end of a
//! sound extent, so bytes that look like an extent within a value are not found.

use std::io;

use crate::error::{Error, Result};
use crate::format::extent::{self, Header};
use crate::format::{BLOCK_BYTES, DatabaseId, ExtentAddress};
use crate::io::{AlignedBuffer, FileRef};

/// The size of the window in bytes: the longest extent, and as many bytes that are read at a time.
const WINDOW_BYTES: usize = 2 << 20;

const _: () = assert!(WINDOW_BYTES as u64 >= 2 * ExtentAddress::EXTENT_BYTES_MAX, "a window holds no longest extent");
const _: () = assert!(WINDOW_BYTES.is_multiple_of(BLOCK_BYTES), "a window ends within a block");

/// The part of the file that is in memory.
struct Window<'f> {
    file: &'f FileRef,
    buffer: AlignedBuffer,
    /// The offset of the buffer's first byte in the file.
    start: u64,
    /// The number of bytes in the buffer that have been read.
    filled: usize,
    is_at_end: bool,
}

impl Window<'_> {
    /// Moves the window so that it begins at the block of `offset`, and reads the bytes that follow.
    fn advance(&mut self, offset: u64) -> Result<()> {
        let block_start = offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let passed = usize::try_from(block_start - self.start).unwrap_or(usize::MAX).min(self.filled);
        self.buffer.copy_within(passed..self.filled, 0);
        self.filled -= passed;
        self.start = block_start;
        // Only the end of the file ends within a block.
        assert!(self.filled.is_multiple_of(BLOCK_BYTES), "the window continues within a block");
        let wanted = self.start + self.filled as u64;
        let read = match self.file.read_up_to(&mut self.buffer[self.filled..], wanted) {
            Ok(read) => read,
            Err(error) => self.read_blocks(error)?,
        };
        self.is_at_end = self.filled + read < WINDOW_BYTES;
        self.filled += read;
        Ok(())
    }

    /// Reads block by block after `error`. Blocks that cannot be read count as zeros. Fails if no block can be read.
    fn read_blocks(&mut self, error: io::Error) -> Result<usize> {
        let length = self.file.len().map_err(|error| Error::io("measuring", self.file.path(), error))?;
        let (mut read, mut sound) = (0, 0);
        for block in self.buffer[self.filled..].chunks_mut(BLOCK_BYTES) {
            let offset = self.start + (self.filled + read) as u64;
            if offset >= length {
                break;
            }
            match self.file.read_up_to(block, offset) {
                Ok(bytes) => sound += bytes,
                Err(_) => block.fill(0),
            }
            read += usize::try_from(length - offset).unwrap_or(usize::MAX).min(block.len());
        }
        match sound {
            0 if self.start == 0 => Err(Error::io("reading", self.file.path(), error)),
            _ => Ok(read),
        }
    }
}

/// Calls `each` for every sound extent in the file, in the order of their offsets, with its offset, its header and its
/// bytes. With `database`, only for extents of this database. Uses 2 MiB of memory. O(file).
pub(crate) fn search_extents(
    file: &FileRef,
    database: Option<DatabaseId>,
    mut each: impl FnMut(u64, Header, &[u8]) -> Result<()>,
) -> Result<()> {
    let buffer = AlignedBuffer::zeroed(WINDOW_BYTES);
    let mut window = Window { file, buffer, start: 0, filled: 0, is_at_end: false };
    window.advance(0)?;
    // No extent begins at the start of the file.
    let mut offset = ExtentAddress::UNIT_BYTES;
    loop {
        let from = usize::try_from(offset - window.start).unwrap_or(usize::MAX).min(window.filled);
        let rest = &window.buffer[from..window.filled];
        // The longest extent may begin here.
        if rest.len() < WINDOW_BYTES / 2 && !window.is_at_end {
            window.advance(offset)?;
            continue;
        }
        if rest.len() < extent::HEADER_BYTES {
            return Ok(());
        }
        let mut bytes = ExtentAddress::UNIT_BYTES;
        if extent::may_begin(rest, database)
            && let Ok(header) = extent::verify(rest)
        {
            bytes = (header.stored_bytes as u64).next_multiple_of(ExtentAddress::UNIT_BYTES);
            each(offset, header, &rest[..header.stored_bytes])?;
        }
        offset += bytes;
    }
}
