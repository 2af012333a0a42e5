//! Values that have extents of their own.

use std::io::{self, Read};

use super::extents::ExtentReader;
use crate::error::{Error, Result};
use crate::format::extent::{HEADER_BYTES, Kind, VALUE_BYTES_OFFSET};
use crate::format::{ExtentRef, ValueId, get_u64};

/// Values up to this length are read whole when their row is read, in bytes. Longer ones are verified then, and read
/// again when they are saved.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// The value of a row.
#[derive(Clone)]
pub(super) enum FoundValue {
    Whole(Vec<u8>),
    Chunked(ChunkedValue),
}

/// A value in extents.
#[derive(Clone)]
pub(super) struct ChunkedValue {
    pub(super) length: u64,
    pub(super) id: ValueId,
    pub(super) chunks: Vec<ExtentRef>,
}

impl ChunkedValue {
    /// Reads the bytes of a chunk.
    fn read_chunk(&self, extents: &ExtentReader, index: usize) -> Result<Vec<u8>> {
        let extent = self.chunks[index];
        let (header, mut bytes) = extents.read_one(extent)?;
        let is_it = header.kind == Kind::Value
            && header.page_key.page.0 as usize == index
            && bytes.len() >= VALUE_BYTES_OFFSET
            && get_u64(&bytes, HEADER_BYTES) == self.id.0;
        if !is_it {
            let what = format!("a value at {:?}", extent.address);
            return Err(Error::corrupted(extents.file.path(), what, "it belongs to another row"));
        }
        bytes.drain(..VALUE_BYTES_OFFSET);
        Ok(bytes)
    }

    /// Verifies the value. Returns its bytes, if it is not long.
    pub(super) fn verify(self, extents: &ExtentReader) -> Result<FoundValue> {
        let is_kept = self.length <= WHOLE_BYTES_MAX;
        let (mut kept, mut length) = (Vec::new(), 0);
        for index in 0..self.chunks.len() {
            let bytes = self.read_chunk(extents, index)?;
            length += bytes.len() as u64;
            if is_kept {
                kept.extend_from_slice(&bytes);
            }
        }
        if length != self.length {
            let reason = format!("its chunks have {length} bytes, not {}", self.length);
            return Err(Error::corrupted(extents.file.path(), "a value", reason));
        }
        Ok(if is_kept { FoundValue::Whole(kept) } else { FoundValue::Chunked(self) })
    }
}

/// Reads a verified value from the beginning.
pub(super) struct ChunkReader<'r> {
    extents: &'r ExtentReader,
    value: &'r ChunkedValue,
    next: usize,
    bytes: Vec<u8>,
    at: usize,
}

impl<'r> ChunkReader<'r> {
    pub(super) fn new(extents: &'r ExtentReader, value: &'r ChunkedValue) -> ChunkReader<'r> {
        ChunkReader { extents, value, next: 0, bytes: Vec::new(), at: 0 }
    }
}

impl Read for ChunkReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.bytes.len() {
            if self.next == self.value.chunks.len() {
                return Ok(0);
            }
            self.bytes = self.value.read_chunk(self.extents, self.next).map_err(io::Error::other)?;
            (self.at, self.next) = (0, self.next + 1);
        }
        let bytes = buffer.len().min(self.bytes.len() - self.at);
        buffer[..bytes].copy_from_slice(&self.bytes[self.at..self.at + bytes]);
        self.at += bytes;
        Ok(bytes)
    }
}
