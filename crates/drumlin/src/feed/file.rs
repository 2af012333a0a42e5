//! The files of a feed: their names, and writing one.

use std::io;

use super::names::Names;
use crate::format::changes::{ChangeRecord, FileHeader, RECORD_HEADER_BYTES, RecordKind};
use crate::format::{BLOCK_BYTES, Timestamp};
use crate::io::{AlignedBuffer, FileRef, Folder, OpenOptions, Persist};

/// The name of the folder of change files, in the folder of the database.
pub(crate) const FOLDER_NAME: &str = "changes";

/// The offset of a file's first record.
pub(super) const RECORDS_OFFSET: u64 = BLOCK_BYTES as u64;

pub(super) fn name(number: u64) -> String {
    format!("{number}.changes")
}

/// Returns the number that a change file's name contains.
pub(super) fn parse_name(found: &str) -> Option<u64> {
    let number = found.strip_suffix(".changes")?.parse().ok()?;
    (name(number) == found).then_some(number)
}

/// Opens a change file for reading.
pub(super) fn open(folder: &dyn Folder, number: u64) -> io::Result<FileRef> {
    folder.open(&name(number), OpenOptions { direct: true, ..OpenOptions::default() })
}

/// The first block of a change file.
#[derive(Debug)]
pub(super) enum FoundHeader {
    Header(FileHeader),
    /// The creation of the file was not completed.
    Unfinished,
    /// The reason why it is no header.
    Foreign(String),
}

/// Reads the header of a change file.
pub(super) fn read_header(file: &FileRef) -> io::Result<FoundHeader> {
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    file.read_up_to(&mut block, 0)?;
    Ok(match FileHeader::decode(&block) {
        Ok(header) => FoundHeader::Header(header),
        Err(_) if FileHeader::is_begun(&block) => FoundHeader::Unfinished,
        Err(reason) => FoundHeader::Foreign(reason),
    })
}

/// Frees disk space for a write that found none. Returns `false` if there is nothing left to free.
pub(super) type MakeSpace<'m> = &'m mut dyn FnMut() -> bool;

/// Repeats `write` while it finds the disk full and space can be made.
fn with_space<T>(make_space: MakeSpace<'_>, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
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

/// A change file that is being written. Bytes are appended to a buffer, which is written in whole blocks. A block that
/// was written in part is written again with the bytes that follow in it. After an error, the file is not continued.
#[derive(Debug)]
pub(super) struct FileWriter {
    file: FileRef,
    header: FileHeader,
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

impl FileWriter {
    /// Creates a file with the names of keyspaces, durably.
    pub(super) fn create(
        folder: &dyn Folder,
        header: FileHeader,
        names: &Names,
        buffer_bytes: usize,
        make_space: MakeSpace<'_>,
    ) -> io::Result<FileWriter> {
        assert!(buffer_bytes.is_multiple_of(BLOCK_BYTES) && buffer_bytes > BLOCK_BYTES, "a buffer of {buffer_bytes}");
        let options = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
        let file = with_space(make_space, || folder.open(&name(header.number), options))?;
        let mut buffer = AlignedBuffer::zeroed(buffer_bytes);
        header.encode(&mut buffer[..BLOCK_BYTES]);
        let mut writer =
            FileWriter { file, header, buffer, start: 0, filled: BLOCK_BYTES, written: 0, is_dirty: false };
        let mut record = vec![0; RECORD_HEADER_BYTES];
        names.encode(&mut record);
        let begun = (writer.append(RecordKind::Names, header.after, header.time_ms, &mut record, make_space))
            .and_then(|()| writer.flush(make_space))
            .and_then(|()| writer.sync())
            .and_then(|()| folder.sync());
        if begun.is_err()
            && let Err(error) = folder.remove(&name(header.number))
        {
            log::debug!("{}: removing a change file that was not begun: {error}", folder.path().display());
        }
        begun.map(|()| writer)
    }

    pub(super) fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Returns the offset at which the next record will begin.
    pub(super) fn end(&self) -> u64 {
        self.start + self.filled as u64
    }

    /// Returns the number of bytes that the file lacks.
    pub(super) fn unwritten_bytes(&self) -> usize {
        self.filled - self.written
    }

    /// Appends a record whose body follows [`RECORD_HEADER_BYTES`] bytes in `record`.
    pub(super) fn append(
        &mut self,
        kind: RecordKind,
        timestamp: Timestamp,
        time_ms: u64,
        record: &mut Vec<u8>,
        make_space: MakeSpace<'_>,
    ) -> io::Result<()> {
        let body_bytes = record.len() - RECORD_HEADER_BYTES;
        let body_bytes = u32::try_from(body_bytes).expect("the log has no record of this length");
        ChangeRecord { kind, timestamp, time_ms, body_bytes }.seal(&self.header, self.end(), record);
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
    pub(super) fn flush(&mut self, make_space: MakeSpace<'_>) -> io::Result<()> {
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
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.is_dirty {
            self.file.sync_data()?;
            self.is_dirty = false;
        }
        Ok(())
    }
}
