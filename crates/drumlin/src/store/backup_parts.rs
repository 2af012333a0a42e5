//! The places of a backup's parts: a folder with a file for each, or a stream with one after the other.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::BLOCK_BYTES;
use crate::format::backup::{BackupId, PART_HEADER_BYTES, PartHeader};
use crate::io::{self, AlignedBuffer, Backend, FileRef, FolderRef, Lock, OpenOptions, Persist, Queue};

/// The number of parts that are synced together. A sync of one file usually makes the others cheap, because they share
/// the file system's journal.
const SYNC_PART_COUNT: usize = 32;

/// The number of parts read ahead of the one in use. With two, the drive has a request in flight while the next is
/// being submitted.
const READ_AHEAD_COUNT: usize = 2;

/// The length of the longest part that is read ahead, in bytes. Only the first part of a backup is longer, if there are
/// many keyspaces.
const READ_AHEAD_BYTES_MAX: u64 = 1 << 20;

/// The longest body that a part may have, in bytes. It limits the memory that a damaged length can claim. The first
/// part has the names of all keyspaces.
pub(super) const BODY_BYTES_MAX: u64 = 1 << 30;

/// The place where a backup's parts are written.
pub(crate) trait PartSink {
    /// Returns the body of the first part if an earlier attempt has written it and it is sound.
    fn first_part(&mut self, backup: BackupId) -> Result<Option<Vec<u8>>>;

    /// Returns the checksum of a part that an earlier attempt has written, or `None` if it is not there, is damaged or
    /// belongs to another backup.
    fn find(&mut self, number: u32, backup: BackupId) -> Result<Option<u64>>;

    /// Lets [`put`](Self::put) return before the part is written. Takes memory for a copy of a part.
    fn write_ahead(&mut self) -> Result<()>;

    /// Writes a part, which is durable only after [`finish`](Self::finish). May return before it is written. The next
    /// call then returns its error.
    fn put(&mut self, number: u32, part: &[u8]) -> Result<()>;

    /// Makes all parts durable.
    fn finish(&mut self) -> Result<()>;
}

/// The source of a backup's parts.
pub(crate) trait PartSource {
    /// Returns the name of the backup, for error messages.
    fn name(&self) -> String;

    /// Reads the header of the part with this number, which comes after the last one, or returns `None` at the end.
    fn next_header(&mut self, number: u32) -> Result<Option<[u8; PART_HEADER_BYTES]>>;

    /// Reads the body after the last header. A body that is cut short is returned as far as it goes.
    fn body(&mut self, bytes: u64) -> Result<Vec<u8>>;
}

/// A folder with a file for each part.
pub(crate) struct PartFolder {
    folder: FolderRef,
    reads: PartReads,
    write_ahead: Option<WriteAhead>,
    unsynced: Vec<Written>,
    /// The first part. The writer of a backup locks it, so that no two backups mix.
    lock: Option<FileRef>,
    backend: Arc<dyn Backend>,
}

/// The part that is used, and those after it that are being read.
#[derive(Default)]
struct PartReads {
    /// Created with the first read.
    queue: Option<Box<dyn Queue>>,
    /// The number of parts that are read ahead.
    ahead_count: usize,
    used: Option<PartRead>,
    ahead: VecDeque<PartRead>,
    /// Buffers of parts that were used.
    buffers: Vec<AlignedBuffer>,
}

/// A part that is being read, or has been read.
struct PartRead {
    number: u32,
    /// The length of the file.
    file_bytes: u64,
    /// The bytes of the file up to the longest possible part, once they have been read, or the error.
    read: Option<(AlignedBuffer, std::io::Result<()>)>,
    /// The end of the bytes that were returned.
    position: usize,
}

/// The part that is written while the next one is read.
struct WriteAhead {
    queue: Box<dyn Queue>,
    /// The buffer of the last write that has ended.
    buffer: Option<AlignedBuffer>,
    in_flight: Option<Written>,
}

/// A part that was written, or is being written.
struct Written {
    number: u32,
    file: FileRef,
    bytes: u64,
}

impl WriteAhead {
    /// Waits for the write in flight, and returns the part that is written.
    fn wait(&mut self) -> Result<Option<Written>, (Written, std::io::Error)> {
        let Some(written) = self.in_flight.take() else { return Ok(None) };
        let mut finished = Vec::new();
        let waited = self.queue.wait(1, &mut finished);
        let result = waited.and_then(|()| {
            let completion = finished.pop().expect("one write was in flight");
            self.buffer = Some(completion.buffer);
            completion.result?;
            // The write was padded to whole blocks.
            written.file.set_len(written.bytes)
        });
        match result {
            Ok(()) => Ok(Some(written)),
            Err(error) => Err((written, error)),
        }
    }
}

impl PartReads {
    /// Begins to read the next part ahead. Returns `false` if it does not exist, or is too long to be read ahead.
    fn begin(&mut self, backend: &dyn Backend, folder: &FolderRef, number: u32) -> std::io::Result<bool> {
        let name = file_name(number);
        if !folder.exists(&name)? {
            return Ok(false);
        }
        let file = folder.open(&name, OpenOptions { direct: true, ..OpenOptions::default() })?;
        let file_bytes = file.len()?;
        if file_bytes > READ_AHEAD_BYTES_MAX && !self.ahead.is_empty() {
            return Ok(false);
        }
        let bytes = file_bytes.min(PART_HEADER_BYTES as u64 + BODY_BYTES_MAX) as usize;
        let padded_bytes = bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        let buffer = self.buffers.pop().filter(|buffer| buffer.capacity() >= padded_bytes);
        let mut buffer = buffer.unwrap_or_else(|| AlignedBuffer::zeroed(padded_bytes));
        buffer.set_len(padded_bytes);
        let queue = match &mut self.queue {
            Some(queue) => queue,
            None => self.queue.insert(backend.queue(1 + self.ahead_count)?),
        };
        queue.push_read(&file, 0, buffer, u64::from(number));
        self.ahead.push_back(PartRead { number, file_bytes, read: None, position: 0 });
        queue.submit()?;
        Ok(true)
    }

    /// Waits for a read to end.
    fn wait(&mut self) -> std::io::Result<()> {
        let mut finished = Vec::new();
        self.queue.as_ref().expect("a read is in flight").wait(1, &mut finished)?;
        for completion in finished {
            let part = self.ahead.iter_mut().find(|part| u64::from(part.number) == completion.token);
            let part = part.expect("a read that is in flight has a part");
            let mut buffer = completion.buffer;
            let result = match completion.result {
                // The read was padded to whole blocks.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    buffer.set_len(completion.transferred);
                    Ok(())
                }
                result => result,
            };
            part.read = Some((buffer, result));
        }
        Ok(())
    }

    /// Makes the part with this number the one that is used, and reads those after it ahead. Returns `false` if it does
    /// not exist.
    fn advance(&mut self, backend: &dyn Backend, folder: &FolderRef, number: u32) -> std::io::Result<bool> {
        if let Some((buffer, _)) = self.used.take().and_then(|used| used.read) {
            self.buffers.push(buffer);
        }
        if self.ahead.front().is_some_and(|part| part.number != number) {
            // Dropping the queue waits for the reads in flight.
            self.queue = None;
            self.ahead.clear();
        }
        if self.ahead.is_empty() && !self.begin(backend, folder, number)? {
            return Ok(false);
        }
        while let Some(last) = self.ahead.back()
            && self.ahead.len() <= self.ahead_count
        {
            // An error is returned once the part is used.
            let next = last.number + 1;
            if !self.begin(backend, folder, next).unwrap_or(false) {
                break;
            }
        }
        while self.ahead.front().is_some_and(|part| part.read.is_none()) {
            self.wait()?;
        }
        self.used = self.ahead.pop_front();
        Ok(true)
    }
}

impl PartRead {
    /// Returns the next bytes of the part: as many, or as far as it goes.
    fn take(&mut self, bytes: u64) -> std::io::Result<&[u8]> {
        let (buffer, result) = self.read.as_ref().expect("a part that is used was read");
        if let Err(error) = result {
            return Err(std::io::Error::new(error.kind(), error.to_string()));
        }
        let end = buffer.len().min(usize::try_from(self.file_bytes).unwrap_or(usize::MAX));
        let start = self.position.min(end);
        self.position = start + ((end - start) as u64).min(bytes) as usize;
        Ok(&buffer[start..self.position])
    }
}

fn file_name(number: u32) -> String {
    format!("part-{number:06}")
}

impl PartFolder {
    /// Opens a folder to read a backup.
    pub(crate) fn open(backend: &Arc<dyn Backend>, path: &Path) -> Result<PartFolder> {
        PartFolder::open_with(backend, path, READ_AHEAD_COUNT)
    }

    fn open_with(backend: &Arc<dyn Backend>, path: &Path, ahead_count: usize) -> Result<PartFolder> {
        let exists = backend.exists(path).map_err(|error| Error::io("looking for", path, error))?;
        if !exists {
            let reason = "nothing is at this path".to_owned();
            return Err(Error::UnusableBackup { backup: path.display().to_string(), reason });
        }
        let folder = io::open_folder(backend, path).map_err(|error| Error::io("opening", path, error))?;
        let reads = PartReads { ahead_count, ..PartReads::default() };
        Ok(PartFolder {
            folder,
            reads,
            write_ahead: None,
            unsynced: Vec::new(),
            lock: None,
            backend: Arc::clone(backend),
        })
    }

    /// Opens or creates a folder to write a backup. It must be empty, or have parts of the same backup.
    pub(crate) fn create(backend: &Arc<dyn Backend>, path: &Path) -> Result<PartFolder> {
        backend.create_dir_all(path).map_err(|error| Error::io("creating", path, error))?;
        if let Some(parent) = path.parent() {
            backend.sync_dir(parent).map_err(|error| Error::io("syncing", parent, error))?;
        }
        // Parts that will be written are not read ahead.
        let mut folder = PartFolder::open_with(backend, path, 0)?;
        let names = folder.folder.list().map_err(|error| Error::io("listing", path, error))?;
        match names.iter().find(|name| !name.starts_with("part-")) {
            Some(name) => Err(Error::Invalid(format!(
                "{} is not empty: it holds {name:?}. Back up into an empty or new folder",
                path.display()
            ))),
            None => {
                folder.lock()?;
                Ok(folder)
            }
        }
    }

    /// Locks the folder for writing.
    fn lock(&mut self) -> Result<()> {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = self.folder.open(&file_name(0), options).map_err(|error| self.write_error(0, 0, error))?;
        match file.try_lock(Lock::Exclusive) {
            Ok(false) => {
                let path = self.folder.path().display();
                return Err(Error::Invalid(format!("another backup is being written into {path}")));
            }
            Ok(true) => self.lock = Some(file),
            // Some network file systems have no locks.
            Err(error) => log::debug!("locking {}: {error}", file.path().display()),
        }
        Ok(())
    }

    /// Waits for the part that is being written.
    fn wait(&mut self) -> Result<()> {
        let Some(ahead) = &mut self.write_ahead else { return Ok(()) };
        let written = ahead.wait().map_err(|(part, error)| self.write_error(part.number, part.bytes, error))?;
        self.unsynced.extend(written);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        for written in std::mem::take(&mut self.unsynced) {
            let synced = written.file.sync_all();
            synced.map_err(|error| self.write_error(written.number, written.bytes, error))?;
        }
        self.folder.sync().map_err(|error| Error::io("syncing", self.folder.path(), error))
    }

    fn write_error(&self, number: u32, bytes: u64, error: std::io::Error) -> Error {
        let path = self.path_of(number);
        match error.kind() {
            ErrorKind::StorageFull => Error::disk_full(path, bytes),
            _ => Error::io("writing", &path, error),
        }
    }

    fn path_of(&self, number: u32) -> PathBuf {
        self.folder.path().join(file_name(number))
    }

    /// Returns the next bytes of the part that is used.
    fn take(&mut self, bytes: u64) -> Result<Vec<u8>> {
        let Some(used) = &mut self.reads.used else { return Ok(Vec::new()) };
        let number = used.number;
        let taken = used.take(bytes).map(<[u8]>::to_vec);
        taken.map_err(|error| Error::io("reading", &self.path_of(number), error))
    }

    /// Returns the checksum and the body of a part, or `None` if it is not there or is damaged.
    fn sound_part(&mut self, number: u32, backup: BackupId) -> Result<Option<(u64, Vec<u8>)>> {
        let Some(bytes) = self.next_header(number)? else { return Ok(None) };
        let Ok(header) = PartHeader::decode(&bytes) else { return Ok(None) };
        if header.backup != backup {
            return Err(Error::Invalid(format!(
                "{} holds another backup. Back up into an empty or new folder",
                self.folder.path().display()
            )));
        }
        let length = self.reads.used.as_ref().map_or(0, |used| used.file_bytes);
        if header.number != number || length != header.body_bytes + PART_HEADER_BYTES as u64 {
            return Ok(None);
        }
        let body = self.body(header.body_bytes)?;
        Ok(header.verify(&bytes, &body).ok().map(|sum| (sum, body)))
    }
}

impl PartSink for PartFolder {
    fn first_part(&mut self, backup: BackupId) -> Result<Option<Vec<u8>>> {
        Ok(self.sound_part(0, backup)?.map(|(_, body)| body))
    }

    fn find(&mut self, number: u32, backup: BackupId) -> Result<Option<u64>> {
        Ok(self.sound_part(number, backup)?.map(|(sum, _)| sum))
    }

    fn write_ahead(&mut self) -> Result<()> {
        let queue =
            self.backend.queue(1).map_err(|error| Error::io("making a queue for", self.folder.path(), error))?;
        self.write_ahead = Some(WriteAhead { queue, buffer: None, in_flight: None });
        Ok(())
    }

    fn put(&mut self, number: u32, part: &[u8]) -> Result<()> {
        self.wait()?;
        if self.unsynced.len() >= SYNC_PART_COUNT {
            self.sync()?;
        }
        let bytes = part.len() as u64;
        let direct = self.write_ahead.is_some();
        let options = OpenOptions { write: true, create: true, direct, ..OpenOptions::default() };
        let begun = self.folder.open(&file_name(number), options).and_then(|file| {
            if file.len()? > 0 {
                file.set_len(0)?;
            }
            let Some(ahead) = &mut self.write_ahead else {
                file.write_at(part, 0, Persist::Later)?;
                self.unsynced.push(Written { number, file, bytes });
                return Ok(());
            };
            let padded_bytes = part.len().next_multiple_of(BLOCK_BYTES);
            let buffer = ahead.buffer.take().filter(|buffer| buffer.capacity() >= padded_bytes);
            let mut buffer = buffer.unwrap_or_else(|| AlignedBuffer::zeroed(padded_bytes));
            buffer.set_len(padded_bytes);
            buffer[..part.len()].copy_from_slice(part);
            buffer[part.len()..].fill(0);
            ahead.queue.push_write(&file, 0, buffer, 0);
            ahead.in_flight = Some(Written { number, file, bytes });
            ahead.queue.submit()
        });
        begun.map_err(|error| self.write_error(number, bytes, error))
    }

    fn finish(&mut self) -> Result<()> {
        self.wait()?;
        self.sync()
    }
}

impl PartSource for PartFolder {
    fn name(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn next_header(&mut self, number: u32) -> Result<Option<[u8; PART_HEADER_BYTES]>> {
        let has_part = self.reads.advance(&*self.backend, &self.folder, number);
        if !has_part.map_err(|error| Error::io("reading", &self.path_of(number), error))? {
            return Ok(None);
        }
        // A header that is cut short is no header.
        let mut header = [0; PART_HEADER_BYTES];
        let read = self.take(PART_HEADER_BYTES as u64)?;
        header[..read.len()].copy_from_slice(&read);
        Ok(Some(header))
    }

    fn body(&mut self, bytes: u64) -> Result<Vec<u8>> {
        self.take(bytes)
    }
}

/// A source whose first part can be read twice: the second time, it comes from memory.
pub(crate) struct ReadAhead<'s> {
    source: &'s mut (dyn PartSource + 's),
    /// The first part, once it has been read. The second reading takes its body.
    first: Option<([u8; PART_HEADER_BYTES], Vec<u8>)>,
    /// `true` if the next body is that of the first part.
    is_at_first: bool,
}

impl<'s> ReadAhead<'s> {
    pub(crate) fn new(source: &'s mut (dyn PartSource + 's)) -> ReadAhead<'s> {
        ReadAhead { source, first: None, is_at_first: false }
    }
}

impl PartSource for ReadAhead<'_> {
    fn name(&self) -> String {
        self.source.name()
    }

    fn next_header(&mut self, number: u32) -> Result<Option<[u8; PART_HEADER_BYTES]>> {
        self.is_at_first = number == 0;
        if !self.is_at_first {
            return self.source.next_header(number);
        }
        if self.first.is_none() {
            self.first = self.source.next_header(0)?.map(|header| (header, Vec::new()));
        }
        Ok(self.first.as_ref().map(|(header, _)| *header))
    }

    fn body(&mut self, bytes: u64) -> Result<Vec<u8>> {
        match &mut self.first {
            Some((_, first)) if self.is_at_first && first.is_empty() => {
                *first = self.source.body(bytes)?;
                Ok(first.clone())
            }
            Some((_, first)) if self.is_at_first => Ok(std::mem::take(first)),
            _ => self.source.body(bytes),
        }
    }
}

/// A stream to which the parts are written one after the other.
pub(crate) struct WrittenParts<W>(pub(crate) W);

impl<W: Write> PartSink for WrittenParts<W> {
    fn first_part(&mut self, _backup: BackupId) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn find(&mut self, _number: u32, _backup: BackupId) -> Result<Option<u64>> {
        Ok(None)
    }

    fn put(&mut self, number: u32, part: &[u8]) -> Result<()> {
        self.0.write_all(part).and_then(|()| self.0.flush()).map_err(|error| {
            let path = PathBuf::from(format!("part {number} of the backup's stream"));
            Error::io("writing", &path, error)
        })
    }

    fn write_ahead(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A stream from which the parts are read one after the other.
pub(crate) struct ReadParts<R> {
    pub(crate) reader: R,
    pub(crate) name: String,
}

impl<R: Read> ReadParts<R> {
    /// Returns the streams of several backups, which are named by their numbers.
    pub(crate) fn numbered(backups: impl IntoIterator<Item = R>) -> Vec<ReadParts<R>> {
        let named = |(index, reader)| ReadParts { reader, name: format!("number {}", index + 1) };
        backups.into_iter().enumerate().map(named).collect()
    }

    fn fill(&mut self, bytes: u64) -> Result<Vec<u8>> {
        // A damaged length claims no memory. Almost all parts are shorter than this.
        let mut read = Vec::with_capacity(bytes.min(READ_AHEAD_BYTES_MAX) as usize);
        let result = self.reader.by_ref().take(bytes).read_to_end(&mut read);
        result.map_err(|error| Error::io("reading", Path::new(&self.name), error))?;
        Ok(read)
    }
}

impl<R: Read> PartSource for ReadParts<R> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn next_header(&mut self, _number: u32) -> Result<Option<[u8; PART_HEADER_BYTES]>> {
        let read = self.fill(PART_HEADER_BYTES as u64)?;
        let mut header = [0; PART_HEADER_BYTES];
        header[..read.len()].copy_from_slice(&read);
        Ok((!read.is_empty()).then_some(header))
    }

    fn body(&mut self, bytes: u64) -> Result<Vec<u8>> {
        self.fill(bytes)
    }
}
