//! Files, buffers and the clock: everything the engine knows of the outside world.
//!
//! The engine reaches files, threads, time and randomness through [`Backend`] alone, so that a simulated backend can
//! stand in for all of them. The backends are peers: whatever one can do, all can, and the same tests run on each.
//!
//! [`backend`] gives the one for the system's files, [`in_memory`] one without any. A range of a file comes in shared
//! buffers, by one read ([`read_buffer`](trait.File.html#method.read_buffer)) or by a stream that reads ahead
//! ([`ReadStream`], [`AsyncReadStream`]). [`Probe`] finds out how a folder's writes are best made durable.
//!
//! # Invariants
//! 1. Every transfer on a direct file starts, ends and is buffered at multiples of [`File::alignment`].
//! 2. A buffer belongs to the request while it is in flight: it is moved into the [`Queue`] and moved out with its
//!    [`Completion`]. So a buffer in flight is never changed or freed.
//! 3. A failed write or sync is reported once and never retried here: what it means is the caller's to decide.

mod async_stream;
mod buffer;
mod disk;
mod divided_folder;
#[doc(hidden)]
pub mod fault;
mod folder;
mod gate;
mod lock;
mod medium;
mod memory;
mod portable;
mod probe;
mod process;
mod read;
mod select;
#[doc(hidden)]
pub mod sim;
mod stream;
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
mod uring;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use async_stream::AsyncReadStream;
pub use buffer::AlignedBuffer;
pub(crate) use divided_folder::with_parts;
pub use folder::{Folder, FolderRef, open_folder};
pub(crate) use gate::Gate;
pub use lock::Lock;
pub use memory::in_memory;
pub use probe::{MethodFigures, Probe};
pub(crate) use process::{OpenIn, Process};
pub use read::ReadBuffer;
pub use select::{BACKEND_VARIABLE, IoBackend, backend};
pub use stream::{ReadStream, StreamOptions};

/// A shared handle of an open file.
pub type FileRef = Arc<dyn File>;

/// Settings for opening a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Opened for writing too.
    pub write: bool,
    /// Created where it does not exist.
    pub create: bool,
    /// Fails where it exists already.
    pub create_new: bool,
    /// Bypass the page cache where the file system allows it; found out by trying. See [`File::is_direct`].
    pub direct: bool,
}

/// The guarantee that holds when a write returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persist {
    /// Nothing: a later sync makes it durable.
    Later,
    /// The bytes are on the medium, by the given method.
    Now(SyncMethod),
}

/// A way of bringing written bytes to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SyncMethod {
    /// The write itself is durable (`RWF_DSYNC`): the device is asked for forced unit access, or flushed behind it.
    DurableWrite,
    /// Write, then `fdatasync`.
    DataSync,
    /// Write, then `fsync` (`F_FULLFSYNC` on macOS).
    FullSync,
}

impl SyncMethod {
    /// The name that reports use: `durable-write`, `data-sync`, `full-sync`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SyncMethod::DurableWrite => "durable-write",
            SyncMethod::DataSync => "data-sync",
            SyncMethod::FullSync => "full-sync",
        }
    }
}

impl fmt::Display for SyncMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An open file. Positional: there is no cursor, and any number of threads may use it at once.
#[allow(clippy::len_without_is_empty, reason = "whether a file is empty is nothing that anybody asks")]
pub trait File: Send + Sync + fmt::Debug {
    /// The path it was opened by.
    fn path(&self) -> &Path;
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Cuts or extends it; what is extended reads as zeros and may have no space behind it.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Secures space for a range, extending the file over it where needed. `StorageFull` where there is none.
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Fills `buffer` from `offset`; `UnexpectedEof` where the file ends before.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Fills as much of `buffer` from `offset` as the file has, and returns how much that is.
    fn read_up_to(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let available = self.len()?.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.read_at(&mut buffer[..available], offset)?;
        Ok(available)
    }
    /// Writes all of `buffer` at `offset`.
    fn write_at(&self, buffer: &[u8], offset: u64, persist: Persist) -> io::Result<()>;
    /// Brings what was written, and the length, to the medium (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;
    /// Brings data and all metadata to the medium (`fsync`; `F_FULLFSYNC` on macOS).
    fn sync_all(&self) -> io::Result<()>;
    /// Returns `true` if the method was not found missing so far; where it is missing, writes use
    /// [`SyncMethod::DataSync`].
    fn supports(&self, method: SyncMethod) -> bool {
        let _ = method;
        true
    }
    /// The alignment of offsets, lengths and buffer addresses in bytes: 1 for a buffered file.
    fn alignment(&self) -> usize;
    /// Returns `true` if it bypasses the page cache.
    fn is_direct(&self) -> bool;
    /// Takes the file's lock, held until this handle is dropped, in place of one that the handle has; `false` where
    /// another handle, in this process or another, is in the way. A shared lock needs no right to write.
    fn try_lock(&self, lock: Lock) -> io::Result<bool>;
    /// Gives the lock up, also where a fork of the process has a copy of the handle. Dropping the handle alone does not
    /// then.
    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
    /// The backend's own view of the file, for its queue.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// One finished request.
#[derive(Debug)]
pub struct Completion {
    /// The number the request was pushed with.
    pub token: u64,
    /// The buffer it was pushed with.
    pub buffer: AlignedBuffer,
    /// Success means that every byte asked for was transferred.
    pub result: io::Result<()>,
}

/// A thread's own queue of requests: many in flight, submitted together, completed in any order.
///
/// Dropping a queue submits what was pushed and waits for what is in flight.
pub trait Queue: Send {
    /// The number of requests that may be in flight at once.
    fn depth(&self) -> usize;
    /// The number of requests pushed and not yet returned by [`wait`](Queue::wait).
    fn in_flight(&self) -> usize;
    /// Prepares a read of `buffer.len()` bytes. The caller keeps `in_flight` below `depth`.
    fn push_read(&mut self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64);
    /// Prepares a write of `buffer.len()` bytes.
    fn push_write(&mut self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64);
    /// Hands what was pushed to the device without waiting.
    fn submit(&mut self) -> io::Result<()>;
    /// Submits, waits until at least `minimum` requests have finished (0 only looks), and appends all that have.
    fn wait(&mut self, minimum: usize, finished: &mut Vec<Completion>) -> io::Result<()>;
}

/// A way of doing I/O: files, folders, queues, threads and the clock.
pub trait Backend: Send + Sync + fmt::Debug {
    /// `uring`, `portable`, `memory` or `sim`.
    fn name(&self) -> &'static str;
    /// Opens a file.
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<FileRef>;
    /// A queue for the calling thread.
    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>>;
    /// Creates a folder and those above it.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// The files and folders directly in a folder, in no order.
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>>;
    /// Returns `true` if the path is that of a file or folder.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Renames a file within its folder, replacing what was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes names created, renamed or removed in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// The path from the root on, whatever the working directory becomes.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_path_buf())
    }
    /// A handle of a folder; `None` where the backend has none, and knows folders by their paths. See [`open_folder`].
    fn folder_handle(&self, path: &Path) -> io::Result<Option<FolderRef>> {
        let _ = path;
        Ok(None)
    }
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;
    /// Random bits for names and identities.
    fn random(&self) -> u64;
    /// The number that the system knows the process by.
    fn process_id(&self) -> u32 {
        std::process::id()
    }
    /// Runs a long-lived body on a thread of its own.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<std::thread::JoinHandle<()>>;
}
