//! Files and folders of the operating system, which the `uring` and `portable` backends share. These backends differ
//! only in their queues.
//!
//! # Invariants
//! 1. A misaligned request is rejected here with a clear message, even if the kernel would accept it: some kernels
//!    accept such a request on one device and reject it on another.
//! 2. `O_DIRECT` is set after a file is opened, never by the opening call. A file system that rejects the flag would
//!    first create an empty file and leave it behind.
//! 3. An interrupted or short transfer is continued. Any other error is final. The number of bytes transferred before
//!    it is not reported.

use std::fmt;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

#[cfg(all(target_os = "linux", not(drumlin_portable)))]
use super::buffer::{AlignedBuffer, BLOCK_BYTES};
use super::{
    Backend, BackendFile, FileRef, Folder, FolderRef, Lock, OpenOptions, Persist, Queue, QueueOptions, SyncMethod,
};

/// The smallest logical block of any device, in bytes. Some file systems report a smaller alignment for buffers in
/// memory.
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
const ALIGNMENT_BYTES_MIN: usize = 512;

/// An open file of the operating system.
pub(crate) struct DiskFile {
    path: PathBuf,
    handle: fs::File,
    /// The alignment of transfers, in bytes; 1 for a buffered file.
    alignment: usize,
    direct: bool,
    /// A second handle to the file, without `O_DIRECT`. Used for unaligned writes.
    cached: OnceLock<fs::File>,
    /// Set once the kernel or file system has rejected `RWF_DSYNC` on this file. Later writes don't try it.
    durable_write_refused: AtomicBool,
}

impl DiskFile {
    fn open(path: &Path, options: OpenOptions) -> io::Result<DiskFile> {
        let handle = fs::OpenOptions::new()
            .read(true)
            .write(options.write)
            .create(options.create)
            .create_new(options.create_new)
            .open(path)?;
        DiskFile::new(path.to_owned(), handle, options.direct)
    }

    fn new(path: PathBuf, handle: fs::File, direct: bool) -> io::Result<DiskFile> {
        let direct_alignment = if direct { try_direct(&handle)? } else { None };
        Ok(DiskFile {
            path,
            handle,
            alignment: direct_alignment.unwrap_or(1),
            direct: direct_alignment.is_some(),
            cached: OnceLock::new(),
            durable_write_refused: AtomicBool::new(cfg!(not(all(target_os = "linux", not(drumlin_portable))))),
        })
    }

    /// Opens a second handle to the file, which uses the page cache. The path may lead to a different file by now, so
    /// this opens the first handle's entry in `/proc/self/fd`. If `/proc` is not mounted, this opens the path, and
    /// fails if it leads to a different file.
    fn open_cached(&self) -> io::Result<fs::File> {
        let options = || fs::OpenOptions::new().write(true).to_owned();
        let by_descriptor = options().open(format!("/proc/self/fd/{}", self.handle.as_raw_fd()));
        let cached = match by_descriptor {
            Err(error) if error.kind() == io::ErrorKind::NotFound => options().open(&self.path)?,
            result => result?,
        };
        let (own, opened) = (self.handle.metadata()?, cached.metadata()?);
        if (own.dev(), own.ino()) == (opened.dev(), opened.ino()) {
            return Ok(cached);
        }
        let text = format!("{} is another file by now, and without /proc this one can't be found", self.path.display());
        Err(io::Error::new(io::ErrorKind::NotFound, text))
    }

    /// Returns the operating system's handle, for io_uring.
    #[cfg(all(target_os = "linux", not(drumlin_portable)))]
    pub(crate) fn handle(&self) -> &fs::File {
        &self.handle
    }

    /// Enforces invariant 1, and checks that the range does not exceed the system's signed 64-bit offsets.
    pub(crate) fn check_request(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let unit = self.alignment;
        let aligned = offset.is_multiple_of(unit as u64)
            && buffer.len().is_multiple_of(unit)
            && buffer.as_ptr().addr().is_multiple_of(unit);
        if !aligned {
            return Err(misaligned(&self.path, unit, buffer, offset));
        }
        match offset.checked_add(buffer.len() as u64) {
            Some(end) if end <= i64::MAX as u64 => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the range exceeds the largest file offset")),
        }
    }

    fn write_all(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.write_with(buffer, offset, |rest, position| self.handle.write_at(rest, position))
    }

    /// Writes all of `buffer`, calling `write` repeatedly if a transfer is short.
    fn write_with(
        &self,
        buffer: &[u8],
        offset: u64,
        write: impl Fn(&[u8], u64) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut written = 0;
        while written < buffer.len() {
            match write(&buffer[written..], offset + written as u64) {
                Ok(count) => {
                    // A direct write continues at a block boundary, so it rewrites the bytes of the partial block.
                    let progress = count - (written + count) % self.alignment;
                    if count == 0 || progress == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    written += progress;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(space_error(error)),
            }
        }
        Ok(())
    }

    /// Performs a durable write. If the kernel or file system does not support durable writes, performs a write and an
    /// `fdatasync` instead.
    #[cfg(all(target_os = "linux", not(drumlin_portable)))]
    fn write_durable(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        use rustix::io::{ReadWriteFlags, pwritev2};

        if !self.durable_write_refused.load(Ordering::Relaxed) {
            let result = self.write_with(buffer, offset, |rest, position| {
                let written = pwritev2(&self.handle, &[io::IoSlice::new(rest)], position, ReadWriteFlags::DSYNC)?;
                Ok(written)
            });
            let refused = match &result {
                Ok(()) => false,
                // Kernels before 4.6 lack the system call, and kernels before 4.7 the flag. Some file systems reject
                // the flag.
                Err(error) => {
                    matches!(Errno::from_io_error(error), Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL))
                }
            };
            if !refused {
                return result;
            }
            self.durable_write_refused.store(true, Ordering::Relaxed);
        }
        self.write_all(buffer, offset)?;
        self.sync_data()
    }

    #[cfg(not(all(target_os = "linux", not(drumlin_portable))))]
    fn write_durable(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.write_all(buffer, offset)?;
        self.sync_data()
    }

    /// Allocates by writing zeros from the end of the file, on file systems that cannot preallocate. Holes before the
    /// end remain.
    fn extend_with_zeros(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let zeros = super::AlignedBuffer::zeroed(1 << 20);
        let end = offset + bytes;
        let length = self.len()?;
        let mut position = length.next_multiple_of(self.alignment as u64);
        if length < end && position > length {
            self.set_len(position.min(end))?;
        }
        while position < end {
            let count = (end - position).min(zeros.len() as u64) as usize;
            let count_aligned = count.next_multiple_of(self.alignment);
            self.write_all(&zeros[..count_aligned], position)?;
            position += count_aligned as u64;
        }
        if self.len()? > end.max(length) { self.set_len(end.max(length)) } else { Ok(()) }
    }
}

impl BackendFile for DiskFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> io::Result<u64> {
        let metadata = self.handle.metadata()?;
        // A block device's metadata does not include its length, but seeking to its end returns the length.
        if metadata.is_file() { Ok(metadata.len()) } else { (&self.handle).seek(SeekFrom::End(0)) }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.handle.set_len(bytes).map_err(space_error)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        #[cfg(any(all(target_os = "linux", not(drumlin_portable)), target_vendor = "apple", target_os = "freebsd"))]
        loop {
            use rustix::fs::{FallocateFlags, fallocate};
            match fallocate(&self.handle, FallocateFlags::empty(), offset, bytes) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
                Err(error) => return Err(space_error(error)),
            }
        }
        self.extend_with_zeros(offset, bytes)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_up_to(buffer, offset)? == buffer.len() { Ok(()) } else { Err(end_of_file()) }
    }

    fn read_up_to(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check_request(buffer, offset)?;
        let mut filled = 0;
        while filled < buffer.len() {
            match self.handle.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => {
                    filled += count;
                    // A direct read stops inside a block only at the end of the file.
                    if !filled.is_multiple_of(self.alignment) {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, buffer: &[u8], offset: u64, persist: Persist) -> io::Result<()> {
        self.check_request(buffer, offset)?;
        match persist {
            Persist::Later => self.write_all(buffer, offset),
            Persist::Now(SyncMethod::DurableWrite) => self.write_durable(buffer, offset),
            Persist::Now(SyncMethod::DataSync) => {
                self.write_all(buffer, offset)?;
                self.sync_data()
            }
            Persist::Now(SyncMethod::FullSync) => {
                self.write_all(buffer, offset)?;
                self.sync_all()
            }
        }
    }

    fn write_unaligned(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        if self.alignment == 1 {
            return self.write_at(buffer, offset, Persist::Later);
        }
        let cached = match self.cached.get() {
            Some(cached) => cached,
            None => {
                let cached = self.open_cached()?;
                self.cached.get_or_init(|| cached)
            }
        };
        cached.write_all_at(buffer, offset).map_err(space_error)
    }

    #[cfg(all(target_os = "linux", not(drumlin_portable)))]
    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        if bytes == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry_on_intr(|| fallocate(&self.handle, flags, offset, bytes)).map_err(space_error)
    }

    // The standard library retries both calls if a signal interrupts them. This loses no report of a failed write,
    // because an interrupted sync has not reported any failure. On macOS both calls are F_FULLFSYNC.
    fn sync_data(&self) -> io::Result<()> {
        self.handle.sync_data().map_err(space_error)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.handle.sync_all().map_err(space_error)
    }

    fn supports(&self, method: SyncMethod) -> bool {
        method != SyncMethod::DurableWrite || !self.durable_write_refused.load(Ordering::Relaxed)
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        lock_handle(&self.handle, lock)
    }

    fn unlock(&self) -> io::Result<()> {
        self.handle.unlock()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.direct { "direct" } else { "buffered" };
        write!(f, "DiskFile({}, {mode}, alignment {})", self.path.display(), self.alignment)
    }
}

/// Makes `handle` bypass the page cache, and returns the alignment that its transfers now need. Returns `None`
/// if direct I/O is impossible (tmpfs, encrypted files, blocks larger than ours).
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
fn try_direct(handle: &fs::File) -> io::Result<Option<usize>> {
    use rustix::fs::{StatxFlags, fcntl_getfl, fcntl_setfl, statx};

    // Linux 6.1 and later report the alignment. An offset alignment of zero means that this particular file cannot be
    // read directly.
    let alignment = match statx(handle, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(found) if found.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            if found.stx_dio_offset_align == 0 {
                return Ok(None);
            }
            (found.stx_dio_offset_align.max(found.stx_dio_mem_align) as usize).max(ALIGNMENT_BYTES_MIN)
        }
        Ok(_) | Err(_) => BLOCK_BYTES,
    };
    if alignment > BLOCK_BYTES {
        return Ok(None);
    }

    let flags = fcntl_getfl(handle)?;
    if fcntl_setfl(handle, flags | OFlags::DIRECT).is_err() {
        return Ok(None);
    }
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    loop {
        let Err(error) = handle.read_at(&mut block, 0) else { return Ok(Some(alignment)) };
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => {}
            Some(Errno::INVAL | Errno::OPNOTSUPP) => {
                fcntl_setfl(handle, flags)?;
                return Ok(None);
            }
            // A failed read of the first block says nothing about direct I/O. The next reader of the block will report
            // the error.
            _ => return Ok(Some(alignment)),
        }
    }
}

/// Makes `handle` bypass the page cache. `F_NOCACHE` accepts transfers of any alignment, so the alignment is 1.
#[cfg(target_vendor = "apple")]
fn try_direct(handle: &fs::File) -> io::Result<Option<usize>> {
    Ok(rustix::fs::fcntl_nocache(handle, true).ok().map(|()| 1))
}

#[cfg(not(any(all(target_os = "linux", not(drumlin_portable)), target_vendor = "apple")))]
fn try_direct(_: &fs::File) -> io::Result<Option<usize>> {
    Ok(None)
}

/// Returns the error for a misaligned request to the file at `path`.
#[cold]
fn misaligned(path: &Path, unit: usize, buffer: &[u8], offset: u64) -> io::Error {
    let text = format!(
        "misaligned transfer: offset {offset}, {} bytes at address {:#x}; {} is open for direct I/O in multiples of {unit} bytes",
        buffer.len(),
        buffer.as_ptr().addr(),
        path.display()
    );
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Returns the error for a read that reaches the end of the file too early.
#[cold]
pub(crate) fn end_of_file() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the requested bytes")
}

/// Turns the error for an exhausted quota into the one for a full disk, since the remedy is the same.
pub(crate) fn space_error(error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    if error.kind() == io::ErrorKind::QuotaExceeded {
        return io::Error::new(io::ErrorKind::StorageFull, error);
    }
    error
}

/// Creates queues. Only these differ between the disk backends.
type QueueSource = Box<dyn Fn(QueueOptions) -> io::Result<Box<dyn Queue>> + Send + Sync>;

/// The operating system's files, together with one kind of queue.
pub(crate) struct DiskBackend {
    name: &'static str,
    started: Instant,
    queues: QueueSource,
}

impl DiskBackend {
    pub(crate) fn new(name: &'static str, queues: QueueSource) -> DiskBackend {
        DiskBackend { name, started: Instant::now(), queues }
    }
}

impl fmt::Debug for DiskBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskBackend({})", self.name)
    }
}

impl Backend for DiskBackend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<FileRef> {
        Ok(Arc::new(DiskFile::open(path, options)?))
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>> {
        self.queue_with(QueueOptions { depth, shared: false, polled: false })
    }

    fn queue_with(&self, options: QueueOptions) -> io::Result<Box<dyn Queue>> {
        if options.depth == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a queue needs a depth of at least 1"));
        }
        (self.queues)(options)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        sync_folder(&fs::File::open(if path.as_os_str().is_empty() { Path::new(".") } else { path })?)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        std::path::absolute(path)
    }

    fn folder_handle(&self, path: &Path) -> io::Result<Option<FolderRef>> {
        let handle = retry_on_intr(|| rustix::fs::open(path, FOLDER_FLAGS, Mode::empty()))?;
        Ok(Some(Arc::new(DiskFolder { path: path.to_owned(), handle: handle.into() })))
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

/// The flags for opening a folder.
const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// An open folder of the operating system's file system.
struct DiskFolder {
    path: PathBuf,
    handle: fs::File,
}

impl fmt::Debug for DiskFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskFolder({})", self.path.display())
    }
}

impl Folder for DiskFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str, options: OpenOptions) -> io::Result<FileRef> {
        // `NONBLOCK`, because opening a pipe without it would wait for a process to open the other end.
        let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
        flags |= if options.write { OFlags::RDWR } else { OFlags::RDONLY };
        if options.create || options.create_new {
            flags |= OFlags::CREATE;
        }
        if options.create {
            flags |= OFlags::NOFOLLOW;
        }
        if options.create_new {
            flags |= OFlags::EXCL;
        }
        let mode = Mode::from_raw_mode(0o666);
        let opened = retry_on_intr(|| rustix::fs::openat(&self.handle, name, flags, mode));
        let handle = opened.map_err(|error| match error {
            Errno::LOOP | Errno::MLINK if options.create => io::Error::other("refusing to follow a symbolic link"),
            error => space_error(error),
        })?;
        match FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(io::ErrorKind::IsADirectory.into()),
            other => return Err(io::Error::other(format!("it is not a regular file, but {other:?}"))),
        }
        rustix::fs::fcntl_setfl(&handle, rustix::fs::fcntl_getfl(&handle)? - OFlags::NONBLOCK)?;
        Ok(Arc::new(DiskFile::new(self.path.join(name), handle.into(), options.direct)?))
    }

    fn folder(&self, name: &str) -> io::Result<FolderRef> {
        let handle = retry_on_intr(|| rustix::fs::openat(&self.handle, name, FOLDER_FLAGS, Mode::empty()))?;
        Ok(Arc::new(DiskFolder { path: self.path.join(name), handle: handle.into() }))
    }

    fn create_folder(&self, name: &str) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.handle, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(space_error(error)),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.handle)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::statat(&self.handle, name, AtFlags::empty()) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.handle, from, &self.handle, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    fn sync(&self) -> io::Result<()> {
        sync_folder(&self.handle)
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        lock_handle(&self.handle, lock)
    }

    fn unlock(&self) -> io::Result<()> {
        self.handle.unlock()
    }

    fn capacity_bytes(&self) -> io::Result<u64> {
        let space = rustix::fs::fstatvfs(&self.handle)?;
        Ok(space.f_blocks.saturating_mul(space.f_frsize))
    }

    fn identity(&self) -> io::Result<Option<(i128, i128)>> {
        let status = rustix::fs::fstat(&self.handle)?;
        // The types of these numbers differ from system to system.
        Ok(Some((i128::from(status.st_dev), i128::from(status.st_ino))))
    }

    fn is_same(&self, name: &str, file: &FileRef) -> io::Result<bool> {
        let Some(file) = file.as_any().downcast_ref::<DiskFile>() else { return Ok(true) };
        let held = rustix::fs::fstat(&file.handle)?;
        match rustix::fs::statat(&self.handle, name, AtFlags::empty()) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn sync_folder(handle: &fs::File) -> io::Result<()> {
    match handle.sync_all() {
        // A file system that returns this error doesn't need its folders to be synced. PostgreSQL ignores the error
        // too.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

/// Locks with `flock`, whose locks belong to the open file description. The record locks of `fcntl` belong to the
/// process: two handles in one process would both get the lock, and closing either handle would release it.
fn lock_handle(handle: &fs::File, lock: Lock) -> io::Result<bool> {
    let locked = match lock {
        Lock::Exclusive => handle.try_lock(),
        Lock::Shared => handle.try_lock_shared(),
    };
    match locked {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Returns random bits. The standard library keys every `RandomState` from the operating system's generator and a
/// counter, and SipHash turns that key into an unpredictable number.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
