//! The index as it is written down: the states of all logs, in two files in turns.
//!
//! # Invariants
//! 1. Each log is written as of a timestamp of its own, which is taken under the log's lock. Replay skips the log's
//!    changes up to it. So no append waits while the index is written.
//! 2. The head names an index only when the index is on the medium, and everything that it has seen is durable.
//! 3. Once both heads name an index, it is copied over its predecessor in the other file. So damage to one file is
//!    harmless, and the copy is what the next index overwrites.

use std::io::ErrorKind;
use std::path::PathBuf;

use super::listed::ListedRange;
use super::place::EntryPlace;
use super::state::{Bounds, LogState};
use crate::error::{Error, Result};
use crate::format::logs::{CHUNK_BYTES, CHUNK_CONTENT_OFFSET, EntryPart, PART_BYTES, chunk_content, seal_chunk};
use crate::format::{DatabaseId, Timestamp};
use crate::io::{AlignedBuffer, FileRef, FolderRef, OpenOptions, Persist};

pub(super) const INDEX_NAMES: [&str; 2] = ["index-0", "index-1"];

/// The least space that an index file is given. An index can also be written when the disk is full, because its space
/// is allocated before what it has is appended.
const FILE_BYTES_MIN: u64 = 1 << 20;

/// Opens the file of the index with this number.
fn open(folder: &FolderRef, number: u64, write: bool) -> Result<FileRef> {
    let name = INDEX_NAMES[(number % 2) as usize];
    let options = OpenOptions { write, create: write, direct: true, ..OpenOptions::default() };
    folder.open(name, options).map_err(|error| Error::io("opening", &folder.path().join(name), error))
}

/// Gives the files of both indexes the space that an index of `index_bytes` needs. Creates them if they are missing;
/// then the caller makes their names durable. Returns the bytes of an index that has space now.
pub(super) fn allocate_files(folder: &FolderRef, index_bytes: u64) -> Result<u64> {
    let file_bytes = FILE_BYTES_MIN.max(index_bytes.next_multiple_of(FILE_BYTES_MIN));
    for number in 0..2 {
        let file = open(folder, number, true)?;
        let made = file.allocate(0, file_bytes).and_then(|()| file.sync_all());
        made.map_err(|error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Error::disk_full(folder.path().to_path_buf(), file_bytes)
            }
            _ => Error::io("allocating", file.path(), error),
        })?;
    }
    Ok(file_bytes)
}

/// Returns the length of the longest index of states that take so much memory, in bytes.
pub(super) fn bytes_max(memory_bytes: u64) -> u64 {
    // Each part of a state takes more memory than it has bytes in the index.
    (memory_bytes / (CHUNK_BYTES - CHUNK_CONTENT_OFFSET) as u64 + 1) * CHUNK_BYTES as u64
}

/// A file that holds an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IndexFile {
    /// The one that it was written to.
    Own,
    /// The one that it was copied to.
    Other,
}

impl IndexFile {
    fn open(self, folder: &FolderRef, number: u64, write: bool) -> Result<FileRef> {
        open(folder, if self == IndexFile::Own { number } else { number + 1 }, write)
    }
}

/// Durably copies an index of `index_bytes` bytes to the other file. Verifies what it reads.
pub(super) fn copy(
    folder: &FolderRef,
    identity: DatabaseId,
    number: u64,
    index_bytes: u64,
    (from, to): (IndexFile, IndexFile),
) -> Result<()> {
    assert!(from != to && number > 0, "index {number} is copied onto itself");
    let mut reader = IndexReader::new(folder, identity, number, index_bytes, from)?;
    let target = to.open(folder, number, true)?;
    let failed = |error| Error::io("writing", target.path(), error);
    while let Some(chunk) = reader.load_chunk()? {
        target.write_at(&chunk, (reader.chunk_next - 1) * CHUNK_BYTES as u64, Persist::Later).map_err(failed)?;
    }
    target.sync_all().map_err(failed)?;
    folder.sync().map_err(|error| Error::io("syncing", folder.path(), error))
}

/// Writes an index.
pub(super) struct IndexWriter {
    file: FileRef,
    folder: FolderRef,
    identity: DatabaseId,
    number: u64,
    buffer: AlignedBuffer,
    /// The bytes of the current chunk that are used, its header included.
    used: usize,
    /// The offset in the buffer at which the current chunk begins.
    chunk: usize,
    /// The bytes of the file before the buffer.
    written_bytes: u64,
    state: Vec<u8>,
}

impl IndexWriter {
    pub(super) fn new(
        folder: &FolderRef,
        identity: DatabaseId,
        number: u64,
        buffer_bytes: usize,
    ) -> Result<IndexWriter> {
        assert!(buffer_bytes > 0 && buffer_bytes.is_multiple_of(CHUNK_BYTES), "a chunk is written in parts");
        Ok(IndexWriter {
            file: open(folder, number, true)?,
            folder: FolderRef::clone(folder),
            identity,
            number,
            buffer: AlignedBuffer::zeroed(buffer_bytes),
            used: CHUNK_CONTENT_OFFSET,
            chunk: 0,
            written_bytes: 0,
            state: Vec::new(),
        })
    }

    fn failed(&self, action: &'static str, error: std::io::Error) -> Error {
        if error.kind() == ErrorKind::StorageFull {
            return Error::disk_full(self.folder.path().to_path_buf(), CHUNK_BYTES as u64);
        }
        Error::io(action, self.file.path(), error)
    }

    /// Copies the state of a log as of a timestamp. Writes nothing, because the caller holds the log's lock.
    pub(super) fn copy(&mut self, log: u64, timestamp: Timestamp, state: &LogState) {
        let target = &mut self.state;
        let Bounds { first, next, purged, .. } = state.bounds;
        target.clear();
        let counts = [state.listed_ranges.len(), state.values.len(), state.large.len()].map(|count| count as u64);
        for number in [log, timestamp.0, first, next, purged].into_iter().chain(counts) {
            target.extend(number.to_le_bytes());
        }
        state.listed_ranges.iter().for_each(|listed_range| listed_range.encode(target));
        state.places.iter().for_each(|place| target.extend(place.encode()));
        for (name, value) in &state.values {
            target.push(name.len() as u8);
            target.extend(name.as_bytes());
            target.extend((value.len() as u32).to_le_bytes());
            target.extend(&**value);
        }
        for (index, parts) in &state.large {
            target.extend(index.to_le_bytes());
            target.extend((parts.len() as u32).to_le_bytes());
            parts.iter().for_each(|part| part.encode(target));
        }
    }

    /// Writes the state that was copied.
    pub(super) fn write_copied(&mut self) -> Result<()> {
        let state = std::mem::take(&mut self.state);
        let mut rest = &state[..];
        while !rest.is_empty() {
            if self.used == CHUNK_BYTES {
                self.end_chunk()?;
            }
            let bytes = rest.len().min(CHUNK_BYTES - self.used);
            let begin = self.chunk + self.used;
            self.buffer[begin..begin + bytes].copy_from_slice(&rest[..bytes]);
            self.used += bytes;
            rest = &rest[bytes..];
        }
        self.state = state;
        // The copy of a log with many entries is not worth keeping.
        self.state.clear();
        self.state.shrink_to(CHUNK_BYTES);
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<()> {
        let number = (self.written_bytes + self.chunk as u64) / CHUNK_BYTES as u64;
        let chunk = &mut self.buffer[self.chunk..self.chunk + CHUNK_BYTES];
        chunk[self.used..].fill(0);
        seal_chunk(chunk, self.used - CHUNK_CONTENT_OFFSET, self.identity, self.number, number);
        self.chunk += CHUNK_BYTES;
        self.used = CHUNK_CONTENT_OFFSET;
        if self.chunk == self.buffer.len() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let written = self.file.write_at(&self.buffer[..self.chunk], self.written_bytes, Persist::Later);
        written.map_err(|error| self.failed("writing", error))?;
        self.written_bytes += self.chunk as u64;
        self.chunk = 0;
        Ok(())
    }

    /// Makes the index durable. Returns its length in bytes.
    pub(super) fn finish(mut self) -> Result<u64> {
        if self.used > CHUNK_CONTENT_OFFSET || self.written_bytes + self.chunk as u64 == 0 {
            self.end_chunk()?;
        }
        if self.chunk > 0 {
            self.flush()?;
        }
        self.file.sync_all().map_err(|error| self.failed("syncing", error))?;
        self.folder.sync().map_err(|error| Error::io("syncing", self.folder.path(), error))?;
        Ok(self.written_bytes)
    }
}

/// Reads an index.
pub(super) struct IndexReader {
    file: FileRef,
    identity: DatabaseId,
    number: u64,
    file_bytes: u64,
    chunk_next: u64,
    content: Vec<u8>,
    offset: usize,
}

impl IndexReader {
    pub(super) fn new(
        folder: &FolderRef,
        identity: DatabaseId,
        number: u64,
        file_bytes: u64,
        file: IndexFile,
    ) -> Result<IndexReader> {
        let file = file.open(folder, number, false)?;
        Ok(IndexReader { file, identity, number, file_bytes, chunk_next: 0, content: Vec::new(), offset: 0 })
    }

    /// Returns the error for an index that does not make sense.
    fn corrupted(&self, reason: &str) -> Error {
        let path: PathBuf = self.file.path().to_path_buf();
        let offset = self.chunk_next.saturating_sub(1) * CHUNK_BYTES as u64;
        Error::corrupted(&path, format!("the index of the logs at offset {offset}"), reason)
    }

    /// Reads and verifies the next chunk. Returns `None` at the end of the index.
    fn load_chunk(&mut self) -> Result<Option<AlignedBuffer>> {
        let offset = self.chunk_next * CHUNK_BYTES as u64;
        if offset >= self.file_bytes {
            return Ok(None);
        }
        let mut chunk = AlignedBuffer::zeroed(CHUNK_BYTES);
        self.file.read_at(&mut chunk, offset).map_err(|error| Error::io("reading", self.file.path(), error))?;
        self.chunk_next += 1;
        match chunk_content(&chunk, self.identity, self.number, self.chunk_next - 1) {
            Some(_) => Ok(Some(chunk)),
            None => Err(self.corrupted("its checksum does not match")),
        }
    }

    /// Loads the next chunk. Returns `false` at the end of the index.
    fn load(&mut self) -> Result<bool> {
        let Some(chunk) = self.load_chunk()? else { return Ok(false) };
        let content = chunk_content(&chunk, self.identity, self.number, self.chunk_next - 1);
        let content = content.expect("it was verified a moment ago");
        self.content.clear();
        self.content.extend(content);
        self.offset = 0;
        Ok(true)
    }

    fn fill(&mut self, mut target: &mut [u8]) -> Result<()> {
        while !target.is_empty() {
            if self.offset == self.content.len() && !self.load()? {
                return Err(self.corrupted("it ends within the state of a log"));
            }
            let bytes = target.len().min(self.content.len() - self.offset);
            target[..bytes].copy_from_slice(&self.content[self.offset..self.offset + bytes]);
            self.offset += bytes;
            target = &mut target[bytes..];
        }
        Ok(())
    }

    fn u64(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn u32(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn bytes(&mut self, count: usize) -> Result<Vec<u8>> {
        if count as u64 > self.file_bytes {
            return Err(self.corrupted("a value is longer than the index"));
        }
        let mut bytes = vec![0; count];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the next log, with the timestamp as of which its state is.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Timestamp, LogState)>> {
        if self.offset == self.content.len() && (!self.load()? || self.content.is_empty()) {
            return Ok(None);
        }
        let (log, timestamp) = (self.u64()?, Timestamp(self.u64()?));
        let (first, next, purged) = (self.u64()?, self.u64()?, self.u64()?);
        let (listed_range_count, value_count, large_count) = (self.u64()?, self.u64()?, self.u64()?);
        if next < first {
            return Err(self.corrupted("a log ends before it begins"));
        }
        let mut state = LogState::default();
        state.bounds = Bounds { exists: true, first, next, purged };
        let mut begin = first;
        for _ in 0..listed_range_count {
            let mut bytes = [0; ListedRange::BYTES];
            self.fill(&mut bytes)?;
            let listed_range = ListedRange::decode(&bytes)
                .filter(|listed_range| listed_range.begin() == begin && listed_range.end() <= next);
            let listed_range = listed_range.ok_or_else(|| self.corrupted("entries of a log are listed elsewhere"))?;
            begin = listed_range.end();
            state.listed_ranges.push_back(listed_range);
        }
        if next - begin > self.file_bytes {
            return Err(self.corrupted("a log has more entries than the index"));
        }
        state.places.reserve_exact((next - begin) as usize);
        for _ in begin..next {
            let mut bytes = [0; EntryPlace::BYTES];
            self.fill(&mut bytes)?;
            state.places.push_back(EntryPlace::decode(&bytes));
        }
        for _ in 0..value_count {
            let name_bytes = self.bytes(1)?[0];
            let name = String::from_utf8(self.bytes(name_bytes.into())?);
            let name = name.map_err(|_| self.corrupted("a name is not UTF-8"))?;
            let value_bytes = self.u32()?;
            let value = self.bytes(value_bytes as usize)?;
            state.put_value(&name, &value);
        }
        for _ in 0..large_count {
            let (index, count) = (self.u64()?, self.u32()?);
            let parts = (0..count).map(|_| self.bytes(PART_BYTES).map(|bytes| EntryPart::decode(&bytes)));
            let parts = parts.collect::<Result<Box<_>>>()?;
            if parts.is_empty() || !(first..next).contains(&index) || state.large.contains_key(&index) {
                return Err(self.corrupted("an entry has no parts, or has them twice"));
            }
            state.put_parts(index, parts);
        }
        let has_parts =
            |(index, place): (u64, &EntryPlace)| place.payload_bytes().is_some() || state.large.contains_key(&index);
        if !(begin..).zip(&state.places).all(has_parts) {
            return Err(self.corrupted("an entry has no parts"));
        }
        Ok(Some((log, timestamp, state)))
    }
}

/// Reads an index with this content, and writes it again.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz {
    use std::path::Path;

    use super::*;
    use crate::format::logs::LogChange;
    use crate::format::logs::LogChanges;

    const IDENTITY: DatabaseId = DatabaseId(7);

    fn folder() -> FolderRef {
        let backend = crate::io::in_memory();
        backend.create_dir_all(Path::new("/logs")).expect("a folder in memory");
        crate::io::open_folder(&backend, Path::new("/logs")).expect("a folder in memory")
    }

    fn read(folder: &FolderRef, index_bytes: u64) -> Option<Vec<(u64, Timestamp, LogState)>> {
        let mut reader = IndexReader::new(folder, IDENTITY, 2, index_bytes, IndexFile::Own).expect("a file in memory");
        let mut states = Vec::new();
        while let Some(state) = reader.next().ok()? {
            states.push(state);
        }
        Some(states)
    }

    fn write(folder: &FolderRef, states: &[(u64, Timestamp, LogState)]) -> (u64, Vec<u8>) {
        let mut writer = IndexWriter::new(folder, IDENTITY, 2, CHUNK_BYTES).expect("a file in memory");
        let mut content = Vec::new();
        for (log, timestamp, state) in states {
            writer.copy(*log, *timestamp, state);
            content.extend(&writer.state);
            writer.write_copied().expect("a file in memory");
        }
        (writer.finish().expect("a file in memory"), content)
    }

    /// Reads an index with this content, which may fail. If it succeeds, writes the index again and compares the bytes.
    pub(crate) fn index(content: &[u8]) {
        let folder = folder();
        let mut writer = IndexWriter::new(&folder, IDENTITY, 2, CHUNK_BYTES).expect("a file in memory");
        writer.state = content.to_vec();
        writer.write_copied().expect("a file in memory");
        let index_bytes = writer.finish().expect("a file in memory");
        let Some(states) = read(&folder, index_bytes) else { return };
        let (again_bytes, written) = write(&folder, &states);
        let again = read(&folder, again_bytes).expect("it was written as it was read");
        assert_eq!(write(&folder, &again), (again_bytes, written));
    }

    /// Returns the content of an index of two logs.
    pub(crate) fn sample() -> Vec<u8> {
        let mut live = crate::logs::live::LiveBytes::new(64 << 10);
        let mut body = Vec::new();
        crate::format::logs::encode_append(&mut body, 7, 3, 2);
        crate::format::logs::encode_entry(&mut body, b"one", false, 3);
        let mut parts = Vec::new();
        EntryPart { position: crate::format::StreamPosition(4096), bytes: 5, checksum: 6 }.encode(&mut parts);
        crate::format::logs::encode_entry(&mut body, &parts, true, 3);
        crate::format::logs::encode_set(&mut body, 7, "vote", Some(b"yes"));
        let mut state = LogState::default();
        for change in LogChanges::new(&body) {
            let change: LogChange<'_> = change.expect("it was encoded");
            state.apply(&change, Timestamp(9), crate::format::StreamPosition(8192), Timestamp(0), &mut live);
        }
        write(&folder(), &[(7, Timestamp(9), state.clone()), (8, Timestamp(9), state)]).1
    }
}
