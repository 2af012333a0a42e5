//! The `memory` backend: its files live only as long as the backend itself. It serves databases that don't have to
//! survive the process.
//!
//! Files are sparse: a chunk uses memory only after it is first written. Syncs do nothing, and requests may have any
//! alignment.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::sync::{Mutex, RwLock};

use super::disk::{end_of_file, random};
use super::lock::Locks;
use super::{AlignedBuffer, Backend, BackendFile, Completion, FileRef, Lock, OpenOptions, Persist, Queue};

/// The size of a chunk. It is large enough that finding a chunk costs little compared with copying it, and small enough
/// that a short file uses little memory.
const CHUNK_BYTES: usize = 64 << 10;

/// Creates a backend that keeps its files in memory. Each backend has its own files, which are freed with its last
/// handle.
///
/// # Examples
/// ```
/// use drumlin_io::{OpenOptions, Persist};
/// use std::path::Path;
///
/// let backend = drumlin_io::in_memory();
/// let file = backend.open(Path::new("log"), OpenOptions { write: true, create: true, ..Default::default() })?;
/// file.write_at(b"esker", 1 << 40, Persist::Later)?;
/// assert_eq!(file.len()?, (1 << 40) + 5);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn in_memory() -> Arc<dyn Backend> {
    Arc::new(MemoryBackend { started: Instant::now(), names: Mutex::default() })
}

struct MemoryBackend {
    started: Instant,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    files: BTreeMap<PathBuf, Arc<Contents>>,
    folders: BTreeSet<PathBuf>,
}

impl Names {
    /// Returns `true` if the folder exists. Roots always exist. So does the empty path, which is the folder of a
    /// relative name.
    fn has_folder(&self, path: &Path) -> bool {
        path.parent().is_none() || self.folders.contains(path)
    }
}

#[derive(Default)]
struct Contents {
    bytes: RwLock<Bytes>,
    locks: Mutex<Locks>,
}

#[derive(Default)]
struct Bytes {
    length: u64,
    chunks: BTreeMap<u64, Box<[u8]>>,
}

/// Splits a range at chunk boundaries. For each part, yields its chunk, its offset in the chunk, and its range relative
/// to the start of the whole range.
fn parts(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == bytes {
            return None;
        }
        let position = offset + done as u64;
        let inside = (position % CHUNK_BYTES as u64) as usize;
        let count = (CHUNK_BYTES - inside).min(bytes - done);
        let part = done..done + count;
        done += count;
        Some((position / CHUNK_BYTES as u64, inside, part))
    })
}

impl Bytes {
    fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let count = self.length.saturating_sub(offset).min(buffer.len() as u64) as usize;
        for (chunk, inside, part) in parts(offset, count) {
            let target = &mut buffer[part];
            match self.chunks.get(&chunk) {
                Some(bytes) => target.copy_from_slice(&bytes[inside..inside + target.len()]),
                None => target.fill(0),
            }
        }
        count
    }

    fn write(&mut self, buffer: &[u8], offset: u64) {
        for (chunk, inside, part) in parts(offset, buffer.len()) {
            let source = &buffer[part];
            let bytes = self.chunks.entry(chunk).or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
            bytes[inside..inside + source.len()].copy_from_slice(source);
        }
        self.length = self.length.max(offset + buffer.len() as u64);
    }

    /// Fills a range with zeros. The file's length does not change.
    fn punch(&mut self, offset: u64, bytes: u64) {
        let bytes = bytes.min(self.length.saturating_sub(offset)) as usize;
        for (chunk, inside, part) in parts(offset, bytes) {
            match part.len() {
                CHUNK_BYTES => drop(self.chunks.remove(&chunk)),
                count => {
                    if let Some(bytes) = self.chunks.get_mut(&chunk) {
                        bytes[inside..inside + count].fill(0);
                    }
                }
            }
        }
    }

    /// Sets the length. Bytes that are cut off will read as zeros if the file grows later.
    fn set_len(&mut self, length: u64) {
        self.length = length;
        drop(self.chunks.split_off(&length.div_ceil(CHUNK_BYTES as u64)));
        let inside = (length % CHUNK_BYTES as u64) as usize;
        if inside > 0
            && let Some(last) = self.chunks.get_mut(&(length / CHUNK_BYTES as u64))
        {
            last[inside..].fill(0);
        }
    }
}

fn check_end(offset: u64, bytes: u64) -> io::Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the range exceeds the largest file offset")),
    }
}

struct MemoryFile {
    path: PathBuf,
    contents: Arc<Contents>,
    writable: bool,
    lock: Mutex<Option<Lock>>,
}

impl MemoryFile {
    fn check_write(&self, offset: u64, bytes: u64) -> io::Result<()> {
        if !self.writable {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file is open for reading only"));
        }
        check_end(offset, bytes)
    }
}

impl BackendFile for MemoryFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.contents.bytes.read().length)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.check_write(bytes, 0)?;
        self.contents.bytes.write().set_len(bytes);
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.check_write(offset, bytes)?;
        let mut contents = self.contents.bytes.write();
        contents.length = contents.length.max(offset + bytes);
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_up_to(buffer, offset)? == buffer.len() { Ok(()) } else { Err(end_of_file()) }
    }

    fn read_up_to(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        check_end(offset, buffer.len() as u64)?;
        Ok(self.contents.bytes.read().read(buffer, offset))
    }

    fn write_at(&self, buffer: &[u8], offset: u64, _: Persist) -> io::Result<()> {
        self.check_write(offset, buffer.len() as u64)?;
        if !buffer.is_empty() {
            self.contents.bytes.write().write(buffer, offset);
        }
        Ok(())
    }

    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.check_write(offset, bytes)?;
        self.contents.bytes.write().punch(offset, bytes);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn alignment(&self) -> usize {
        1
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        Ok(self.contents.locks.lock().try_take(&mut self.lock.lock(), lock))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.contents.locks.lock().release(&mut self.lock.lock());
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryFile({})", self.path.display())
    }
}

/// A queue whose requests finish as soon as they are pushed.
struct MemoryQueue {
    depth: usize,
    finished: Mutex<Vec<Completion>>,
}

impl MemoryQueue {
    fn finish(&self, token: u64, buffer: AlignedBuffer, transferred: io::Result<usize>) {
        let (result, transferred) = match transferred {
            Ok(count) if count < buffer.len() => (Err(end_of_file()), count),
            Ok(count) => (Ok(()), count),
            Err(error) => (Err(error), 0),
        };
        let mut finished = self.finished.lock();
        assert!(finished.len() < self.depth, "more requests than the queue's depth of {}", self.depth);
        finished.push(Completion { token, buffer, result, transferred });
    }
}

impl Queue for MemoryQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.finished.lock().len()
    }

    fn push_read(&self, file: &FileRef, offset: u64, mut buffer: AlignedBuffer, token: u64) {
        let transferred = file.read_up_to(&mut buffer, offset);
        self.finish(token, buffer, transferred);
    }

    fn push_write(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        let transferred = file.write_at(&buffer, offset, Persist::Later).map(|()| buffer.len());
        self.finish(token, buffer, transferred);
    }

    fn submit(&self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&self, _: usize, finished: &mut Vec<Completion>) -> io::Result<()> {
        finished.append(&mut self.finished.lock());
        Ok(())
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryBackend({} files)", self.names.lock().files.len())
    }
}

impl Backend for MemoryBackend {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<FileRef> {
        let mut names = self.names.lock();
        let contents = match names.files.get(path) {
            Some(_) if options.create_new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(contents) => Arc::clone(contents),
            None if names.folders.contains(path) => return Err(io::ErrorKind::IsADirectory.into()),
            None if !(options.create || options.create_new) => return Err(io::ErrorKind::NotFound.into()),
            None if !path.parent().is_some_and(|folder| names.has_folder(folder)) => {
                return Err(io::ErrorKind::NotFound.into());
            }
            None => {
                let contents = Arc::<Contents>::default();
                names.files.insert(path.to_owned(), Arc::clone(&contents));
                contents
            }
        };
        let (path, writable) = (path.to_owned(), options.write);
        Ok(Arc::new(MemoryFile { path, contents, writable, lock: Mutex::default() }))
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>> {
        if depth == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a queue needs a depth of at least 1"));
        }
        Ok(Box::new(MemoryQueue { depth, finished: Mutex::default() }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        if path.ancestors().any(|folder| names.files.contains_key(folder)) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        names.folders.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let names = self.names.lock();
        if !names.has_folder(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = |found: &&PathBuf| found.parent() == Some(path);
        Ok(names.files.keys().filter(inside).chain(names.folders.iter().filter(inside)).cloned().collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let names = self.names.lock();
        Ok(names.files.contains_key(path) || names.folders.contains(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let contents = names.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.files.insert(to.to_owned(), contents);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.names.lock().files.remove(path).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if self.names.lock().has_folder(path) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn wall_clock(&self) -> Duration {
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
    }

    fn random(&self) -> u64 {
        random()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<thread::JoinHandle<()>> {
        thread::Builder::new().name(name.to_owned()).spawn(body)
    }
}
