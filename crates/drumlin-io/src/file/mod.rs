//! Files that a driver reads and writes.

mod read_many;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::BLOCK_BYTES;
use crate::backend::{AlignedBuffer, FileRef, OpenOptions, Persist, SyncMethod};
use crate::driver::{Direction, Driver, Operation, Outcome, Transfer, into_buffer, into_read};
use crate::read::{BufferHome, ReadBuffer, read_unit_bytes};
pub use read_many::{ReadMany, ReadManyOptions};

/// The highest offset of a range's end: the system's offsets are signed, and a range may be extended to whole blocks.
const OFFSET_MAX: u64 = i64::MAX as u64 - BLOCK_BYTES as u64;

/// An open file. All I/O is positional: there is no cursor, and any number of tasks and threads may use the file
/// concurrently. Clones share the file; dropping the last clone closes it.
///
/// Ranges may have any alignment. In a direct file, an unaligned range has a cost:
/// - A read transfers the whole blocks of 4 KiB around its range, in one request.
/// - A write of whole blocks goes straight to the device. Any other part goes through the page cache, which copies it
///   and must first read every block that is only partly overwritten. Write whole blocks where speed matters.
///
/// Concurrent writes to overlapping ranges leave a mixture of both. Writes to disjoint ranges never affect each other.
///
/// # Examples
/// ```
/// use drumlin_io::{AlignedBuffer, Driver, File};
///
/// let driver = Driver::new()?;
/// let path = std::env::temp_dir().join(format!("drumlin-{:016x}", driver.backend().random()));
/// // As blocking calls:
/// let file = File::create(&driver, &path).wait()?;
/// let mut block = AlignedBuffer::zeroed(4096);
/// block[..7].copy_from_slice(b"moraine");
/// file.write_at(0, block).wait()?;
/// // As futures, several in flight together:
/// let reads: Vec<_> = (0..4).map(|index| file.read_at(index, 3).begin()).collect();
/// driver.block_on(async {
///     for (read, expected) in reads.into_iter().zip(["mor", "ora", "rai", "ain"]) {
///         assert_eq!(&read.await?[..], expected.as_bytes());
///     }
///     file.sync_data().await
/// })?;
/// driver.remove(&path).wait()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct File {
    driver: Driver,
    file: FileRef,
}

impl File {
    /// Wraps a file that `driver`'s backend has opened.
    #[must_use]
    pub fn new(file: FileRef, driver: Driver) -> File {
        File { driver, file }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Any error that the system reports.
    pub fn open(driver: &Driver, path: impl AsRef<Path>, options: OpenOptions) -> Operation<File> {
        let (driver, path) = (driver.clone(), path.as_ref().to_owned());
        driver.clone().run(move || Ok(File::new(driver.backend().open(&path, options)?, driver)))
    }

    /// Creates a file for reading and writing, direct if the file system allows it. Its name becomes durable with the
    /// next [`Driver::sync_folder`].
    ///
    /// # Errors
    /// `AlreadyExists` if a file with that name exists, and any error that the system reports.
    pub fn create(driver: &Driver, path: impl AsRef<Path>) -> Operation<File> {
        let options = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
        File::open(driver, path, options)
    }

    /// Returns the path with which the file was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the length in bytes. The system knows the length, so this makes no request to the device.
    ///
    /// # Errors
    /// Any error that the system reports.
    #[allow(clippy::len_without_is_empty, reason = "no caller needs to know whether a file is empty")]
    pub fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    /// Returns `true` if the file bypasses the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    /// Returns the alignment that the device requires, in bytes: 1 for a buffered file. Unaligned ranges work too, at a
    /// cost (see [`File`]).
    #[must_use]
    pub fn alignment(&self) -> usize {
        self.file.alignment()
    }

    /// Returns the backend's handle of the file.
    #[must_use]
    pub fn backend_file(&self) -> &FileRef {
        &self.file
    }

    /// Returns the driver of the file.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the same file for use with the given handle of its driver, for instance [`Driver::background`].
    #[must_use]
    pub fn with_driver(&self, driver: &Driver) -> File {
        File { driver: driver.clone(), file: FileRef::clone(&self.file) }
    }

    /// Reads `bytes` bytes from `offset` into one of the driver's buffers. Dropping the result returns the buffer to
    /// the driver.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before the range does, `InvalidInput` if the range exceeds 2^63 bytes, and any
    /// error that the system reports.
    pub fn read_at(&self, offset: u64, bytes: usize) -> Operation<ReadBuffer> {
        self.read(offset, bytes, false)
    }

    /// Like [`read_at`](Self::read_at), but if the file ends before the range does, reads only up to the end of the
    /// file.
    ///
    /// # Errors
    /// Any error that the system reports.
    pub fn read_up_to(&self, offset: u64, bytes: usize) -> Operation<ReadBuffer> {
        self.read(offset, bytes, true)
    }

    fn read(&self, offset: u64, bytes: usize, is_up_to: bool) -> Operation<ReadBuffer> {
        self.read_with_home(offset, bytes, is_up_to, |bytes| self.driver.home(bytes).cloned())
    }

    /// Reads a range. Calls `home` with the number of bytes to transfer. If `home` returns a [`BufferHome`], takes the
    /// buffer from it; otherwise allocates one.
    pub(crate) fn read_with_home(
        &self,
        offset: u64,
        bytes: usize,
        is_up_to: bool,
        home: impl FnOnce(usize) -> Option<Arc<BufferHome>>,
    ) -> Operation<ReadBuffer> {
        if offset.checked_add(bytes as u64).is_none_or(|end| end > OFFSET_MAX) {
            return Operation::ready(self.driver.clone(), Err(too_far(offset, bytes)));
        }
        let unit = read_unit_bytes(self.file.as_ref());
        let before = (offset % unit as u64) as usize;
        let block_bytes = (before + bytes).next_multiple_of(unit);
        let home = home(block_bytes);
        let buffer = match &home {
            Some(home) => home.take(block_bytes),
            None => AlignedBuffer::zeroed(block_bytes),
        };
        let outcome = Outcome { visible: before..before + bytes, is_up_to, home, finish: into_read };
        let (direction, file) = (Direction::Read, FileRef::clone(&self.file));
        let transfer = Transfer { direction, file, offset: offset - before as u64, buffer, outcome };
        Operation::transfer(self.driver.clone(), transfer)
    }

    /// Fills the caller's own buffer from `offset` without a copy, and returns the buffer. Offset and length must be
    /// multiples of [`alignment`](Self::alignment).
    ///
    /// # Errors
    /// `InvalidInput` if offset or length is not aligned, and the errors of [`read_at`](Self::read_at). On an error,
    /// the buffer is dropped.
    pub fn read_into(&self, offset: u64, buffer: AlignedBuffer) -> Operation<AlignedBuffer> {
        self.transfer(Direction::Read, offset, buffer)
    }

    /// Fills `target` from `offset`, blocking the thread. If the file is direct and `target` is not aligned, reads the
    /// bytes into a buffer and copies them.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at).
    pub fn read_exact_at(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        if is_aligned(target, offset, self.file.alignment()) {
            return self.file.read_at(target, offset);
        }
        target.copy_from_slice(&self.read_at(offset, target.len()).wait()?);
        Ok(())
    }

    /// Writes all bytes of a buffer at `offset`, and returns the buffer. Bytes of any other type are first copied into
    /// an [`AlignedBuffer`]. The next [`sync_data`](Self::sync_data) makes the bytes durable.
    ///
    /// # Errors
    /// `StorageFull` if the disk or a quota is full, and any error that the system reports. Even then, some of the
    /// bytes may have been written.
    pub fn write_at(&self, offset: u64, bytes: impl Into<AlignedBuffer>) -> Operation<AlignedBuffer> {
        let buffer = bytes.into();
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > OFFSET_MAX) {
            return Operation::ready(self.driver.clone(), Err(too_far(offset, buffer.len())));
        }
        let unit = read_unit_bytes(self.file.as_ref());
        if is_aligned(&buffer, offset, unit) {
            return self.transfer(Direction::Write, offset, buffer);
        }
        let file = FileRef::clone(&self.file);
        self.driver.run(move || {
            write_parts(&file, offset, &buffer, unit)?;
            Ok(buffer)
        })
    }

    /// Writes the bytes at `offset`, blocking the thread. Aligned bytes are not copied.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at).
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if is_aligned(bytes, offset, read_unit_bytes(self.file.as_ref())) {
            return self.file.write_at(bytes, offset, Persist::Later);
        }
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > OFFSET_MAX) {
            return Err(too_far(offset, bytes.len()));
        }
        self.file.write_unaligned(bytes, offset)
    }

    /// Writes a buffer at `offset`, and makes it durable by the given method before the operation finishes.
    /// [`Probe`](crate::Probe) finds the best method for a device. Offset and length must be aligned.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at), and `InvalidInput` if offset or length is not aligned. If the sync
    /// fails, it is unknown which bytes are durable. Don't retry it: the system may then report success although the
    /// bytes are lost.
    pub fn write_durable(
        &self,
        offset: u64,
        bytes: impl Into<AlignedBuffer>,
        method: SyncMethod,
    ) -> Operation<AlignedBuffer> {
        let (file, buffer) = (FileRef::clone(&self.file), bytes.into());
        self.driver.run(move || {
            file.write_at(&buffer, offset, Persist::Now(method))?;
            Ok(buffer)
        })
    }

    fn transfer(&self, direction: Direction, offset: u64, buffer: AlignedBuffer) -> Operation<AlignedBuffer> {
        let outcome = Outcome { visible: 0..buffer.len(), is_up_to: false, home: None, finish: into_buffer };
        let file = FileRef::clone(&self.file);
        Operation::transfer(self.driver.clone(), Transfer { direction, file, offset, buffer, outcome })
    }

    /// Makes all bytes written so far, and the file's length, durable (`fdatasync`).
    ///
    /// # Errors
    /// Any error that the system reports. After an error, it is unknown which bytes are durable. Don't retry the call:
    /// the system may then report success although the bytes are lost.
    pub fn sync_data(&self) -> Operation<()> {
        self.on_file(|file| file.sync_data())
    }

    /// Makes all bytes written so far and all metadata durable (`fsync`; `F_FULLFSYNC` on macOS).
    ///
    /// # Errors
    /// The errors of [`sync_data`](Self::sync_data).
    pub fn sync_all(&self) -> Operation<()> {
        self.on_file(|file| file.sync_all())
    }

    /// Allocates disk space for a range, extending the file if necessary.
    ///
    /// # Errors
    /// `StorageFull` if the disk has too little free space, and any error that the system reports.
    pub fn allocate(&self, offset: u64, bytes: u64) -> Operation<()> {
        self.on_file(move |file| file.allocate(offset, bytes))
    }

    /// Truncates or extends the file to `bytes`. An added range reads as zeros and uses no disk space yet.
    ///
    /// # Errors
    /// Any error that the system reports.
    pub fn truncate(&self, bytes: u64) -> Operation<()> {
        self.on_file(move |file| file.set_len(bytes))
    }

    /// Frees the disk space of a range, which reads as zeros afterwards. The file's length does not change.
    ///
    /// # Errors
    /// `Unsupported` if the file system cannot free parts of a file, and any error that the system reports.
    pub fn punch(&self, offset: u64, bytes: u64) -> Operation<()> {
        self.on_file(move |file| file.punch(offset, bytes))
    }

    /// Drops this handle without a sync. Closing the last handle can block: if the file was removed, the system frees
    /// its space at that point. So a task should await this call instead of dropping the handle.
    ///
    /// # Errors
    /// None.
    pub fn close(self) -> Operation<()> {
        let File { driver, file } = self;
        driver.run(move || {
            drop(file);
            Ok(())
        })
    }

    fn on_file<T: Send + 'static>(
        &self,
        body: impl FnOnce(&FileRef) -> io::Result<T> + Send + 'static,
    ) -> Operation<T> {
        let file = FileRef::clone(&self.file);
        self.driver.run(move || body(&file))
    }
}

fn is_aligned(bytes: &[u8], offset: u64, unit: usize) -> bool {
    offset.is_multiple_of(unit as u64) && bytes.len().is_multiple_of(unit) && bytes.as_ptr().addr().is_multiple_of(unit)
}

/// Writes a range that is not aligned. If it starts at a block boundary, its whole blocks bypass the page cache. The
/// rest goes through the page cache.
fn write_parts(file: &FileRef, offset: u64, buffer: &[u8], unit: usize) -> io::Result<()> {
    let whole_bytes = if offset.is_multiple_of(unit as u64) { buffer.len() / unit * unit } else { 0 };
    let (whole, rest) = buffer.split_at(whole_bytes);
    if !whole.is_empty() {
        file.write_at(whole, offset, Persist::Later)?;
    }
    file.write_unaligned(rest, offset + whole_bytes as u64)
}

#[cold]
fn too_far(offset: u64, bytes: usize) -> io::Error {
    let text = format!("a range of {bytes} bytes from {offset} exceeds the largest file offset");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({:?})", self.file)
    }
}
