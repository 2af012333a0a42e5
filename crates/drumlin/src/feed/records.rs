//! Writing and reading the records of a file: those of change files, and those of archive files.

use std::io;
use std::path::Path;

use crate::error::{Error, Result};
use crate::format::changes::{ChangeRecord, RECORD_HEADER_BYTES, RecordKind};
use crate::format::{BLOCK_BYTES, Timestamp};
use crate::io::{AlignedBuffer, FileRef, Persist};
use crate::memory::Grant;

/// The offset of a file's first record.
pub(crate) const RECORDS_OFFSET: u64 = BLOCK_BYTES as u64;

/// Frees disk space for a write that found none. Returns `false` if there is nothing left to free.
pub(crate) type MakeSpace<'m> = &'m mut dyn FnMut() -> bool;

/// Repeats `write` while it finds the disk full and space can be made.
pub(super) fn with_space<T>(make_space: MakeSpace<'_>, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match write() {
            Err(error) if is_full(&error) && make_space() => {}
            written => return written,
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Writes records to a file. Bytes are appended to a buffer, which is written in whole blocks. A block that was written
/// in part is written again with the bytes that follow in it. After an error, the file is not continued.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    file: FileRef,
    /// The base of the seeds of the file's records.
    seed: u64,
    buffer: AlignedBuffer,
    /// The offset in the file of the buffer's first byte, on a block.
    start: u64,
    /// The number of bytes in the buffer.
    filled: usize,
    /// The number of these bytes that the file has.
    written: usize,
    /// Set if bytes were written since the last sync.
    is_dirty: bool,
}

impl RecordWriter {
    /// Creates a writer of an empty file. `encode_header` fills the first block.
    pub(crate) fn new(
        file: FileRef,
        seed: u64,
        buffer_bytes: usize,
        encode_header: impl FnOnce(&mut [u8]),
    ) -> RecordWriter {
        assert!(buffer_bytes.is_multiple_of(BLOCK_BYTES) && buffer_bytes > BLOCK_BYTES, "a buffer of {buffer_bytes}");
        let mut buffer = AlignedBuffer::zeroed(buffer_bytes);
        encode_header(&mut buffer[..BLOCK_BYTES]);
        RecordWriter { file, seed, buffer, start: 0, filled: BLOCK_BYTES, written: 0, is_dirty: false }
    }

    /// Creates a writer that continues a file at `end`, and cuts off what the file has there.
    pub(crate) fn resume(file: FileRef, seed: u64, buffer_bytes: usize, end: u64) -> io::Result<RecordWriter> {
        assert!(buffer_bytes.is_multiple_of(BLOCK_BYTES) && buffer_bytes > BLOCK_BYTES, "a buffer of {buffer_bytes}");
        let block = BLOCK_BYTES as u64;
        let (start, filled) = (end / block * block, (end % block) as usize);
        let mut buffer = AlignedBuffer::zeroed(buffer_bytes);
        if filled > 0 {
            file.read_at(&mut buffer[..BLOCK_BYTES], start)?;
        }
        // Outdated records would verify again in the same places.
        file.set_len(end.next_multiple_of(block))?;
        Ok(RecordWriter { file, seed, buffer, start, filled, written: filled, is_dirty: true })
    }

    /// Returns the offset at which the next record will begin.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.filled as u64
    }

    /// Returns the number of bytes that the file lacks.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.filled - self.written
    }

    /// Appends a record whose body follows [`RECORD_HEADER_BYTES`] bytes in `record`.
    pub(crate) fn append(
        &mut self,
        kind: RecordKind,
        timestamp: Timestamp,
        time_ms: u64,
        record: &mut Vec<u8>,
        make_space: MakeSpace<'_>,
    ) -> io::Result<()> {
        let body_bytes = record.len() - RECORD_HEADER_BYTES;
        let body_bytes = u32::try_from(body_bytes).expect("the log has no record of this length");
        ChangeRecord { kind, timestamp, time_ms, body_bytes }.seal(self.seed, self.end(), record);
        let mut rest = &record[..];
        while !rest.is_empty() {
            let bytes = rest.len().min(self.buffer.len() - self.filled);
            self.buffer[self.filled..self.filled + bytes].copy_from_slice(&rest[..bytes]);
            self.filled += bytes;
            rest = &rest[bytes..];
            if self.filled == self.buffer.len() {
                self.flush(make_space)?;
            }
        }
        Ok(())
    }

    /// Writes the bytes that the file lacks.
    pub(crate) fn flush(&mut self, make_space: MakeSpace<'_>) -> io::Result<()> {
        if self.written == self.filled {
            return Ok(());
        }
        let from = self.written / BLOCK_BYTES * BLOCK_BYTES;
        let until = self.filled.next_multiple_of(BLOCK_BYTES);
        self.buffer[self.filled..until].fill(0);
        let (file, blocks, offset) = (&self.file, &self.buffer[from..until], self.start + from as u64);
        with_space(make_space, || file.write_at(blocks, offset, Persist::Later))?;
        self.written = self.filled;
        self.is_dirty = true;
        if self.filled == self.buffer.len() {
            self.start += self.filled as u64;
            (self.filled, self.written) = (0, 0);
        }
        Ok(())
    }

    /// Makes everything that was flushed durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if self.is_dirty {
            self.file.sync_data()?;
            self.is_dirty = false;
        }
        Ok(())
    }
}

/// Reads the records of a file in order.
#[derive(Debug)]
pub(crate) struct RecordScan {
    file: FileRef,
    /// The base of the seeds of the file's records.
    seed: u64,
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

impl RecordScan {
    /// Creates a scan that reads `chunk_bytes` at once, and takes memory for them from the grant.
    pub(crate) fn new(file: FileRef, seed: u64, chunk_bytes: usize, memory: Option<Grant>) -> RecordScan {
        RecordScan {
            file,
            seed,
            offset: RECORDS_OFFSET,
            chunk: AlignedBuffer::zeroed(0),
            chunk_bytes,
            chunk_start: 0,
            chunk_end: 0,
            body: 0..0,
            memory,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the offset after the last record that was found.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length of the file.
    pub(crate) fn file_bytes(&self) -> Result<u64> {
        self.file.len().map_err(|error| Error::io("measuring", self.file.path(), error))
    }

    /// Gives up the grant, for the scan of another file.
    pub(crate) fn take_memory(&mut self) -> Option<Grant> {
        self.chunk = AlignedBuffer::zeroed(0);
        (self.chunk_start, self.chunk_end) = (0, 0);
        self.memory.take()
    }

    /// Returns the header of the next record that ends at or before `end` and verifies. Its [`body`](Self::body) is
    /// available until the next call.
    pub(crate) fn next(&mut self, end: u64) -> Result<Option<ChangeRecord>> {
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
        if record.verify(self.seed, self.offset, &self.chunk[at..at + record.bytes()]).is_none() {
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
    pub(crate) fn body(&self) -> &[u8] {
        &self.chunk[self.body.clone()]
    }

    /// Returns `true` if the next record can be read from memory.
    pub(crate) fn is_loaded(&self) -> bool {
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
        // A record of more than half of the account might never fit into what others leave of it, so that its reader
        // could not continue. It is read without memory of its own, and let go by the next read.
        let bytes = (length as u64).max(self.chunk_bytes as u64);
        if let Some(memory) = &mut self.memory
            && !memory.resize(bytes)
            && bytes <= memory.limit_bytes() / 2
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
}
