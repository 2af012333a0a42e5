//! Reading the records of one change file in order.

use std::io;
use std::path::Path;

use super::file::{self, FoundHeader, RECORDS_OFFSET};
use super::names::Names;
use crate::error::{Error, Result};
use crate::format::changes::{ChangeRecord, FileHeader, RECORD_HEADER_BYTES, RecordKind};
use crate::format::{BLOCK_BYTES, Timestamp};
use crate::io::{AlignedBuffer, FileRef, FolderRef};
use crate::memory::Grant;

/// The number of bytes that a scan without a grant reads at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Reads the records of a change file.
#[derive(Debug)]
pub(super) struct FileScan {
    file: FileRef,
    header: FileHeader,
    /// The offset of the next record.
    offset: u64,
    chunk: AlignedBuffer,
    chunk_bytes: usize,
    chunk_start: u64,
    /// The end of the bytes in the chunk that are final.
    chunk_end: u64,
    /// The body of the last record that was found, in the chunk.
    body: std::ops::Range<usize>,
    memory: Option<Grant>,
}

impl FileScan {
    /// Opens a file. Its header must verify.
    pub(super) fn open(folder: &FolderRef, number: u64) -> Result<FileScan> {
        FileScan::open_in(folder, number, CHUNK_BYTES, None)
    }

    /// Like [`open`](Self::open). Reads `chunk_bytes` at once, and takes memory for them from the grant.
    pub(super) fn open_in(
        folder: &FolderRef,
        number: u64,
        chunk_bytes: usize,
        memory: Option<Grant>,
    ) -> Result<FileScan> {
        let path = folder.path().join(file::name(number));
        let file = file::open(folder.as_ref(), number).map_err(|error| Error::io("opening", &path, error))?;
        let header = file::read_header(&file).map_err(|error| Error::io("reading", &path, error))?;
        let header = match header {
            FoundHeader::Header(header) => header,
            FoundHeader::Unfinished => return Err(Error::corrupted(&path, "the header", "it does not verify")),
            FoundHeader::Foreign(reason) => return Err(Error::corrupted(&path, "the header", reason)),
        };
        if header.number != number {
            return Err(Error::corrupted(&path, "the header", format!("it belongs to file {}", header.number)));
        }
        Ok(FileScan {
            file,
            header,
            offset: RECORDS_OFFSET,
            chunk: AlignedBuffer::zeroed(0),
            chunk_bytes,
            chunk_start: 0,
            chunk_end: 0,
            body: 0..0,
            memory,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(super) fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Returns the offset of the next record.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length of the file.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        self.file.len().map_err(|error| Error::io("measuring", self.file.path(), error))
    }

    /// Gives up the grant, for the scan of another file.
    pub(super) fn take_memory(&mut self) -> Option<Grant> {
        self.chunk = AlignedBuffer::zeroed(0);
        (self.chunk_start, self.chunk_end) = (0, 0);
        self.memory.take()
    }

    /// Returns the header of the next record that ends at or before `end` and verifies. Its [`body`](Self::body) is
    /// available until the next call.
    pub(super) fn next(&mut self, end: u64) -> Result<Option<ChangeRecord>> {
        if !self.load(RECORD_HEADER_BYTES, end)? {
            return Ok(None);
        }
        let at = (self.offset - self.chunk_start) as usize;
        let Some(record) = ChangeRecord::peek(&self.chunk[at..]) else { return Ok(self.forget()) };
        // Don't allocate what a length without a verified checksum asks for.
        if self.offset + record.bytes() as u64 > end || !self.load(record.bytes(), end)? {
            return Ok(None);
        }
        let at = (self.offset - self.chunk_start) as usize;
        if record.verify(&self.header, self.offset, &self.chunk[at..at + record.bytes()]).is_none() {
            return Ok(self.forget());
        }
        let body = at + RECORD_HEADER_BYTES;
        self.body = body..body + record.body_bytes as usize;
        self.offset += record.bytes() as u64;
        Ok(Some(record))
    }

    /// Forgets bytes that are no record, because another process may be writing one there.
    fn forget(&mut self) -> Option<ChangeRecord> {
        self.chunk_end = self.chunk_start;
        None
    }

    /// Returns the body of the last record that was found.
    pub(super) fn body(&self) -> &[u8] {
        &self.chunk[self.body.clone()]
    }

    /// Returns `true` if the next record can be read from memory.
    pub(super) fn is_loaded(&self) -> bool {
        let loaded = self.chunk_end.saturating_sub(self.offset) as usize;
        if self.offset < self.chunk_start || loaded < RECORD_HEADER_BYTES {
            return false;
        }
        let at = (self.offset - self.chunk_start) as usize;
        ChangeRecord::peek(&self.chunk[at..]).is_some_and(|record| record.bytes() <= loaded)
    }

    /// Makes `bytes` bytes from the next record available in the chunk. Returns `false` if they extend past `end`.
    fn load(&mut self, bytes: usize, end: u64) -> Result<bool> {
        let wanted_end = self.offset + bytes as u64;
        if wanted_end > end {
            return Ok(false);
        }
        if self.chunk_start <= self.offset && wanted_end <= self.chunk_end {
            return Ok(true);
        }
        let block = BLOCK_BYTES as u64;
        let start = self.offset / block * block;
        let wanted = (wanted_end - start).max(self.chunk_bytes as u64);
        let length = wanted.min(end - start).next_multiple_of(block) as usize;
        if let Some(memory) = &mut self.memory
            && !memory.resize((length as u64).max(self.chunk_bytes as u64))
        {
            return Err(Error::copies_in_memory(memory.limit_bytes()));
        }
        if self.chunk.capacity() < length || self.chunk.capacity() > 2 * length.max(self.chunk_bytes) {
            self.chunk = AlignedBuffer::zeroed(length.max(self.chunk_bytes.next_multiple_of(BLOCK_BYTES)));
        }
        self.chunk.set_len(length);
        (self.chunk_start, self.chunk_end) = (start, start);
        let read = self.file.read_up_to(&mut self.chunk, start);
        let read = read.map_err(|error: io::Error| Error::io("reading", self.file.path(), error))?;
        self.chunk_end = (start + read as u64).min(end);
        Ok(wanted_end <= self.chunk_end)
    }

    /// Reads the names at the beginning of the file.
    pub(super) fn names(&mut self) -> Result<Names> {
        assert!(self.offset == RECORDS_OFFSET, "the names of a file are read after its commits");
        let end = self.file_bytes()?;
        let mut names = Names::default();
        let is_read = self.next(end)?.is_some_and(|record| record.kind == RecordKind::Names);
        let is_read = is_read && names.apply(self.body()).is_some();
        is_read
            .then_some(names)
            .ok_or_else(|| Error::corrupted(self.path(), "the names of keyspaces", "they are missing or do not verify"))
    }

    /// Returns the offset after the names at the beginning of the file.
    pub(super) fn after_names(&mut self) -> Result<u64> {
        self.names().map(|_| self.offset)
    }

    /// Reads the file up to the commit with this timestamp. Returns the offset after the commit, or `None` if the file
    /// does not have it. The file begins after a commit, which counts as the first.
    pub(super) fn end_of(&mut self, timestamp: Timestamp) -> Result<Option<u64>> {
        if timestamp == self.header.after {
            return Ok(Some(self.offset));
        }
        let end = self.file_bytes()?;
        while let Some(record) = self.next(end)? {
            if record.timestamp == timestamp {
                return Ok(Some(self.offset));
            }
        }
        Ok(None)
    }
}
