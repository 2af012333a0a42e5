//! The traits of a backend, and the backends for programs: io_uring, the portable one, and memory.

mod buffer;
mod command;
pub(crate) mod disk;
mod folder;
pub(crate) mod lock;
mod memory;
pub(crate) mod portable;
mod process;
pub(crate) mod select;
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
mod uring;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use buffer::{AlignedBuffer, BLOCK_BYTES};
pub use command::RunningCommand;
pub use folder::open_folder;
pub use lock::Lock;
pub use memory::in_memory;
pub use process::{OpenIn, Process};
pub use select::{BACKEND_VARIABLE, IoBackend, backend};

/// A shared handle to an open file.
pub type FileRef = Arc<dyn BackendFile>;

/// Settings for opening a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Open the file for writing too.
    pub write: bool,
    /// Create the file if it does not exist.
    pub create: bool,
    /// Create the file, and fail if it exists already.
    pub create_new: bool,
    /// Bypass the page cache if the file system allows it. To find out whether it does, see [`BackendFile::is_direct`].
    pub direct: bool,
}

/// Says whether the written bytes are durable when a write returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persist {
    /// Not durable: a later sync will make the bytes durable.
    Later,
    /// Durable, by the given method.
    Now(SyncMethod),
}

/// A way to make written bytes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SyncMethod {
    /// The write itself is durable (`RWF_DSYNC`): the kernel requests forced unit access, or flushes the device after
    /// it.
    DurableWrite,
    /// Write, then `fdatasync`.
    DataSync,
    /// Write, then `fsync` (`F_FULLFSYNC` on macOS).
    FullSync,
}

impl SyncMethod {
    /// Returns the name for reports: `durable-write`, `data-sync`, `full-sync`.
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

/// An open file. All I/O is positional: there is no cursor, and any number of threads may use the file concurrently.
#[allow(clippy::len_without_is_empty, reason = "no caller needs to know whether a file is empty")]
pub trait BackendFile: Send + Sync + fmt::Debug {
    /// Returns the path with which the file was opened.
    fn path(&self) -> &Path;
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Truncates or extends the file. An added range reads as zeros, and may use no disk space yet.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Allocates disk space for a range, extending the file if necessary. Fails with `StorageFull` if the disk is full.
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Fills `buffer` from `offset`. Fails with `UnexpectedEof` if the file ends before the buffer is full.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Fills `buffer` from `offset` up to the end of the file, and returns the number of bytes read.
    fn read_up_to(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let available = self.len()?.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.read_at(&mut buffer[..available], offset)?;
        Ok(available)
    }
    /// Writes all of `buffer` at `offset`.
    fn write_at(&self, buffer: &[u8], offset: u64, persist: Persist) -> io::Result<()>;
    /// Writes all of `buffer` at `offset`, without any requirement on alignment. A direct file writes the bytes through
    /// the page cache. This costs a copy, and a read of each block that is only partly overwritten.
    fn write_unaligned(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(buffer, offset, Persist::Later)
    }
    /// Frees the disk space of a range, which reads as zeros afterwards. The file's length does not change. Fails with
    /// `Unsupported` if the file system cannot free parts of a file.
    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let _ = (offset, bytes);
        Err(io::Error::new(io::ErrorKind::Unsupported, "the file system cannot free a part of a file"))
    }
    /// Makes all written bytes, and the file's length, durable (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;
    /// Makes data and all metadata durable (`fsync`; `F_FULLFSYNC` on macOS).
    fn sync_all(&self) -> io::Result<()>;
    /// Returns `false` if an earlier write found that the system does not support this method. Writes then use
    /// [`SyncMethod::DataSync`] instead.
    fn supports(&self, method: SyncMethod) -> bool {
        let _ = method;
        true
    }
    /// Returns the required alignment of offsets, lengths and buffer addresses, in bytes: 1 for a buffered file.
    fn alignment(&self) -> usize;
    /// Returns `true` if the file bypasses the page cache.
    fn is_direct(&self) -> bool;
    /// Takes the file's lock, replacing any lock that this handle holds. The lock is held until this handle is dropped.
    /// Returns `false` if a different handle, in this process or any other, holds a conflicting lock. A shared lock
    /// does not require write permission.
    fn try_lock(&self, lock: Lock) -> io::Result<bool>;
    /// Releases the lock. Unlike dropping the handle, this works even if a fork of the process has a copy of the
    /// handle.
    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
    /// Returns the backend's own type of the file, for its queue.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A shared handle to an open folder.
pub type FolderRef = Arc<dyn Folder>;

/// An open folder. Names refer to entries directly inside the folder.
pub trait Folder: Send + Sync + fmt::Debug {
    /// Returns the path with which the folder was opened. Use it only in messages: the folder may have been moved
    /// since.
    fn path(&self) -> &Path;
    /// Opens a file. Fails if the name refers to anything but a file. With [`OpenOptions::create`], also fails for a
    /// symbolic link, so that a file created in this folder is really inside it.
    fn open(&self, name: &str, options: OpenOptions) -> io::Result<FileRef>;
    /// Opens a folder in this folder.
    fn folder(&self, name: &str) -> io::Result<FolderRef>;
    /// Creates a folder in this folder, if it does not exist yet.
    fn create_folder(&self, name: &str) -> io::Result<()>;
    /// Returns the names of the files and folders in this folder, in no particular order. If a name is not UTF-8,
    /// replacement characters stand for the invalid bytes.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Returns `true` if the name refers to a file or folder.
    fn exists(&self, name: &str) -> io::Result<bool>;
    /// Renames a file, replacing any file of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all creations, renames and removals of files in this folder durable.
    fn sync(&self) -> io::Result<()>;
    /// Locks the folder like [`BackendFile::try_lock`]. A backend that cannot lock folders returns `true`. Its callers
    /// then rely on file locks.
    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        let _ = lock;
        Ok(true)
    }
    /// Releases the lock like [`BackendFile::unlock`].
    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
    /// Returns the size of the folder's file system in bytes, or `u64::MAX` if the size is unlimited.
    fn capacity_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
    /// Returns what identifies the folder whatever its path, such as device and inode, or `None` if only the path does.
    fn identity(&self) -> io::Result<Option<(i128, i128)>> {
        Ok(None)
    }
    /// Returns `true` if the name still refers to `file`. A backend that cannot tell returns `true`.
    fn is_same(&self, name: &str, file: &FileRef) -> io::Result<bool> {
        let _ = (name, file);
        Ok(true)
    }
}

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// The token passed with the request.
    pub token: u64,
    /// The buffer passed with the request.
    pub buffer: AlignedBuffer,
    /// The result. `Ok` means that all requested bytes were transferred.
    pub result: io::Result<()>,
    /// The number of bytes transferred, from the start of the buffer. It is lower than requested if a read reached the
    /// end of the file (`UnexpectedEof`), and unspecified after any other error.
    pub transferred: usize,
}

/// The properties of a [`Queue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueOptions {
    /// The maximum number of requests in flight, at least 1.
    pub depth: usize,
    /// Set if several threads use the queue: some push requests while one waits. If `false`, a single thread at a time
    /// does both. If a request finishes while this thread computes, the thread detects it only when it next waits.
    pub shared: bool,
    /// Set if the device is polled for finished requests, instead of interrupting the processor
    /// (`IORING_SETUP_IOPOLL`). This works only for direct files, on a kernel driver with polled queues: NVMe with the
    /// module parameter `poll_queues`.
    pub polled: bool,
}

/// A queue of requests. Many can be in flight at a time. They are submitted together, and complete in any order.
///
/// Each finished request is returned once, by one call of [`wait`](Queue::wait). So if several threads wait
/// concurrently, a thread may receive a request that another thread is waiting for. Dropping a queue submits the pushed
/// requests and waits for those in flight.
pub trait Queue: Send + Sync {
    /// Returns the maximum number of requests in flight.
    fn depth(&self) -> usize;
    /// Returns the number of requests pushed but not yet returned by [`wait`](Queue::wait).
    fn in_flight(&self) -> usize;
    /// Prepares a read of `buffer.len()` bytes. The caller must keep `in_flight` below `depth`.
    fn push_read(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64);
    /// Prepares a write of `buffer.len()` bytes.
    fn push_write(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64);
    /// Hands the pushed requests to the device without waiting.
    fn submit(&self) -> io::Result<()>;
    /// Submits, waits until at least `minimum` requests have finished (0 only polls), and appends all finished
    /// requests.
    fn wait(&self, minimum: usize, finished: &mut Vec<Completion>) -> io::Result<()>;
    /// Makes the current call of [`wait`](Queue::wait) return early, or the next call if none is running. Has no effect
    /// on a queue that cannot be interrupted: its waits end when a request finishes.
    fn interrupt(&self) {}
    /// Returns a descriptor that becomes readable when a request has finished, or `None` if the queue has no such
    /// descriptor.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Registers the memory of `buffers` with the device. The buffers must form one group ([`AlignedBuffer::group`]).
    /// This queue's transfers to and from registered memory are cheaper. Returns `false` if the queue or the system
    /// cannot register memory. The buffers can be used all the same.
    fn register(&self, buffers: &[AlignedBuffer]) -> bool {
        let _ = buffers;
        false
    }
}

/// An implementation of I/O: files, folders, queues, threads and the clock.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Returns the name of the backend: `uring`, `portable`, `memory` or `sim`.
    fn name(&self) -> &'static str;
    /// Opens a file.
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<FileRef>;
    /// Creates a queue for the calling thread.
    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>>;
    /// Creates a queue with these properties. Fails with `Unsupported` if it cannot be polled.
    fn queue_with(&self, options: QueueOptions) -> io::Result<Box<dyn Queue>> {
        if options.polled {
            let text = format!("the {} backend has no polled queues", self.name());
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        self.queue(options.depth)
    }
    /// Creates a folder and its missing ancestors.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Returns the paths of the files and folders directly in a folder, in no particular order.
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>>;
    /// Returns `true` if the path refers to a file or folder.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Renames a file within its folder, replacing any file of that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes all creations, renames and removals of files in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Returns the absolute form of a path, which stays valid if the working directory changes.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_path_buf())
    }
    /// Returns a handle to a folder, or `None` if the backend refers to folders only by path. See [`open_folder`].
    fn folder_handle(&self, path: &Path) -> io::Result<Option<FolderRef>> {
        let _ = path;
        Ok(None)
    }
    /// Returns the time since an arbitrary fixed moment. The time never goes backwards.
    fn now(&self) -> Duration;
    /// Returns the time since the beginning of 1970 as the system knows it. It may go backwards when the system's clock
    /// is set.
    fn wall_clock(&self) -> Duration;
    /// Returns random bits, for names and ids.
    fn random(&self) -> u64;
    /// Returns the process id.
    fn process_id(&self) -> u32 {
        std::process::id()
    }
    /// Runs a long-lived `body` on a thread of its own.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<std::thread::JoinHandle<()>>;
}
