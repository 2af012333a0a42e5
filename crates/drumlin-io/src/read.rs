//! Buffers of bytes that were read, which are shared instead of copied, and reads of any range into such buffers.

use std::fmt;
use std::io;
use std::ops::{Bound, Deref, Range, RangeBounds};
use std::sync::Arc;

use crate::sync::Mutex;

use super::{AlignedBuffer, BackendFile, Queue};
use crate::BLOCK_BYTES;
use crate::backend::disk::end_of_file;

/// A buffer of bytes that were read. It is reference-counted: cloning and slicing don't copy the bytes.
///
/// When the last clone or slice is dropped, the memory is freed, or returned to the stream or driver that allocated it.
///
/// # Examples
/// ```
/// use drumlin_io::{AlignedBuffer, ReadBuffer};
///
/// let mut bytes = AlignedBuffer::zeroed(11);
/// bytes.copy_from_slice(b"drift field");
/// let all = ReadBuffer::from(bytes);
/// let word = all.slice(6..);
/// drop(all);
/// assert_eq!(&word[..], b"field");
/// ```
#[derive(Clone)]
pub struct ReadBuffer {
    /// `None` if the buffer is empty.
    memory: Option<Arc<Memory>>,
    start: usize,
    end: usize,
}

struct Memory {
    /// `Some` until the memory is dropped.
    buffer: Option<AlignedBuffer>,
    home: Option<Arc<BufferHome>>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let (Some(home), Some(buffer)) = (&self.home, self.buffer.take()) {
            home.put(buffer);
        }
    }
}

/// Retains the buffers of a stream or driver between requests: allocating 512 KiB costs as much as reading 512 KiB.
pub(crate) struct BufferHome {
    shelf: Mutex<Shelf>,
    buffer_bytes: usize,
    buffers_max: usize,
}

struct Shelf {
    buffers: Vec<AlignedBuffer>,
    /// The number of buffers that the first request will allocate as a group, or 0 once it has.
    group_count: usize,
}

impl BufferHome {
    /// Creates a home that retains up to `buffers_max` buffers. The first `group_count` of them are allocated as a
    /// group.
    pub(crate) fn new(buffer_bytes: usize, buffers_max: usize, group_count: usize) -> Arc<BufferHome> {
        let shelf = Mutex::new(Shelf { buffers: Vec::new(), group_count });
        Arc::new(BufferHome { shelf, buffer_bytes, buffers_max })
    }

    /// Returns a buffer of `length` bytes with arbitrary contents.
    pub(crate) fn take(&self, length: usize) -> AlignedBuffer {
        let kept = {
            let mut shelf = self.shelf.lock();
            let group_count = std::mem::take(&mut shelf.group_count);
            if group_count > 0 {
                shelf.buffers = AlignedBuffer::group(group_count, self.buffer_bytes);
            }
            shelf.buffers.pop()
        };
        let mut buffer = kept.unwrap_or_else(|| AlignedBuffer::zeroed(self.buffer_bytes));
        buffer.set_len(length);
        buffer
    }

    /// Allocates the buffers and registers them with `queue`. If registration fails, they are used like ordinary
    /// buffers.
    pub(crate) fn register(&self, queue: &dyn Queue) {
        let mut shelf = self.shelf.lock();
        if shelf.group_count > 0 {
            shelf.buffers = AlignedBuffer::group(std::mem::take(&mut shelf.group_count), self.buffer_bytes);
            if !queue.register(&shelf.buffers) {
                log::warn!("the buffers of the I/O queue could not be registered; reads work, at a higher cost");
            }
        }
    }

    /// Takes a buffer back. Drops it if its size differs or the home already retains enough buffers.
    pub(crate) fn put(&self, buffer: AlignedBuffer) {
        if buffer.capacity() != self.buffer_bytes {
            return;
        }
        let mut shelf = self.shelf.lock();
        if shelf.buffers.len() < self.buffers_max {
            shelf.buffers.push(buffer);
        }
    }
}

impl ReadBuffer {
    /// Returns the `visible` bytes of `buffer`. When the last clone or slice is dropped, the buffer returns to `home`.
    pub(crate) fn of_home(buffer: AlignedBuffer, visible: Range<usize>, home: &Arc<BufferHome>) -> ReadBuffer {
        assert!(visible.start <= visible.end && visible.end <= buffer.len());
        let memory = Arc::new(Memory { buffer: Some(buffer), home: Some(Arc::clone(home)) });
        ReadBuffer { memory: Some(memory), start: visible.start, end: visible.end }
    }

    /// Returns a buffer without bytes or memory.
    pub(crate) fn empty() -> ReadBuffer {
        ReadBuffer { memory: None, start: 0, end: 0 }
    }

    /// Removes the first `bytes` bytes. Drops the reference to the memory if no bytes are left.
    pub(crate) fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "{bytes} bytes consumed of {}", self.len());
        self.start += bytes;
        if self.start == self.end {
            *self = ReadBuffer::empty();
        }
    }

    /// Returns a part of the buffer, without copying.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> ReadBuffer {
        let length = self.len();
        let from = match range.start_bound() {
            Bound::Included(&index) => index,
            Bound::Excluded(&index) => index + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&index) => index + 1,
            Bound::Excluded(&index) => index,
            Bound::Unbounded => length,
        };
        assert!(from <= to && to <= length, "the slice {from}..{to} of {length} bytes");
        ReadBuffer { memory: self.memory.clone(), start: self.start + from, end: self.start + to }
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let buffer = self.memory.as_ref().and_then(|memory| memory.buffer.as_ref());
        buffer.map_or(&[], |buffer| &buffer[self.start..self.end])
    }
}

impl AsRef<[u8]> for ReadBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<AlignedBuffer> for ReadBuffer {
    fn from(buffer: AlignedBuffer) -> ReadBuffer {
        let end = buffer.len();
        ReadBuffer { memory: Some(Arc::new(Memory { buffer: Some(buffer), home: None })), start: 0, end }
    }
}

impl fmt::Debug for ReadBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadBuffer({} bytes)", self.len())
    }
}

/// Returns the unit in which `file` is read: one byte if it is buffered, a block if it is direct.
pub(crate) fn read_unit_bytes(file: &dyn BackendFile) -> usize {
    if file.alignment() == 1 { 1 } else { BLOCK_BYTES }
}

impl dyn BackendFile {
    /// Reads `bytes` bytes at any `offset` in one transfer, regardless of the file's alignment.
    ///
    /// If the file is direct, the blocks around the range are read too, but only the range is visible.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before the range does, and any error that the system reports.
    ///
    /// # Examples
    /// ```
    /// use drumlin_io::{OpenOptions, Persist};
    ///
    /// let backend = drumlin_io::in_memory();
    /// let options = OpenOptions { write: true, create: true, direct: true, ..Default::default() };
    /// let file = backend.open("till".as_ref(), options)?;
    /// file.write_at(b"boulder clay", 0, Persist::Later)?;
    /// assert_eq!(&file.read_buffer(8, 4)?[..], b"clay");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn read_buffer(&self, offset: u64, bytes: usize) -> io::Result<ReadBuffer> {
        let unit = read_unit_bytes(self);
        let before = (offset % unit as u64) as usize;
        let mut buffer = AlignedBuffer::zeroed((before + bytes).next_multiple_of(unit));
        if self.read_up_to(&mut buffer, offset - before as u64)? < before + bytes {
            return Err(end_of_file());
        }
        Ok(ReadBuffer::from(buffer).slice(before..before + bytes))
    }
}
