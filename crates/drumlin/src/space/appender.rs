//! Fills segments: packs extents into large buffers, each of which is written by one request.
//!
//! An appender does no I/O itself. It assigns addresses to extents immediately and returns [`WriteJob`]s as buffers
//! fill up, so it can be used under latches. A job is run by the thread that filled the buffer, or by a thread that
//! waits for the buffer.
//!
//! # Invariants
//! 1. An extent lies within one buffer, hence within one job and one segment.
//! 2. A block is written only once: a buffer that is flushed early ends at a block boundary, and the next one begins
//!    there.
//! 3. An extent is sealed when it is packed, because the use of its segment is not known earlier.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::FrameIndex;
use super::segments::Segments;
use crate::error::Result;
use crate::format::{BLOCK_BYTES, Epoch, ExtentAddress, SegmentId, extent};
use crate::io::AlignedBuffer;
use crate::memory::WRITE_BUFFER_COUNT;
use crate::sync::Mutex;

/// The buffers shared by one or more appenders. The pool allocates buffers when no idle one is left. It keeps idle
/// buffers up to its part of the budget.
#[derive(Debug)]
pub(crate) struct WriteBuffers {
    /// The size of a regular buffer. A longer extent gets its own buffer. If the budget is small, even a chunk of a
    /// large value can be that long.
    buffer_bytes: usize,
    idle: Mutex<Vec<AlignedBuffer>>,
}

impl WriteBuffers {
    pub(crate) fn new(buffer_bytes: usize) -> WriteBuffers {
        assert!(buffer_bytes.is_multiple_of(BLOCK_BYTES), "a buffer of {buffer_bytes} bytes ends within a block");
        WriteBuffers { buffer_bytes, idle: Mutex::default() }
    }

    /// Returns an idle or new buffer with arbitrary contents.
    fn take(self: &Arc<Self>) -> WriteBuffer {
        let idle = self.idle.lock().pop();
        let mut buffer = idle.unwrap_or_else(|| AlignedBuffer::zeroed(self.buffer_bytes));
        buffer.set_len(self.buffer_bytes);
        WriteBuffer { buffer: Some(buffer), home: Arc::clone(self) }
    }

    /// Allocates a buffer for an extent that is too long for the regular buffers. It is deallocated after use.
    fn make(self: &Arc<Self>, extent_bytes: u64) -> WriteBuffer {
        let bytes = (extent_bytes as usize).next_multiple_of(BLOCK_BYTES);
        assert!(bytes > self.buffer_bytes, "an extent of {extent_bytes} bytes has room in a buffer that is kept");
        WriteBuffer { buffer: Some(AlignedBuffer::zeroed(bytes)), home: Arc::clone(self) }
    }
}

/// A buffer that returns to its [`WriteBuffers`] when dropped.
#[derive(Debug)]
struct WriteBuffer {
    /// `None` only while it is being dropped.
    buffer: Option<AlignedBuffer>,
    home: Arc<WriteBuffers>,
}

impl Deref for WriteBuffer {
    type Target = AlignedBuffer;

    fn deref(&self) -> &AlignedBuffer {
        self.buffer.as_ref().expect("a buffer that is not dropped")
    }
}

impl DerefMut for WriteBuffer {
    fn deref_mut(&mut self) -> &mut AlignedBuffer {
        self.buffer.as_mut().expect("a buffer that is not dropped")
    }
}

impl Drop for WriteBuffer {
    fn drop(&mut self) {
        let is_kept = |buffer: &mut AlignedBuffer| buffer.capacity() == self.home.buffer_bytes;
        let mut idle = self.home.idle.lock();
        if idle.len() < WRITE_BUFFER_COUNT {
            idle.extend(self.buffer.take_if(is_kept));
        }
    }
}

/// A full buffer on its way to the disk.
#[derive(Debug)]
pub(crate) struct WriteJob {
    pub(crate) offset: u64,
    buffer: WriteBuffer,
    /// The frames of the pages in the buffer. They must not be evicted until the buffer has been written.
    pub(crate) frames: Vec<FrameIndex>,
}

impl WriteJob {
    /// Returns the bytes to be written.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns the range of the file to which the bytes are written.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset + self.buffer.len() as u64
    }
}

#[derive(Debug)]
pub(crate) struct Appender {
    buffers: Arc<WriteBuffers>,
    open: Option<OpenSegment>,
}

#[derive(Debug)]
struct OpenSegment {
    id: SegmentId,
    epoch: Epoch,
    /// The position of the next extent.
    position: u64,
    end: u64,
    buffer_start: u64,
    buffer: WriteBuffer,
    frames: Vec<FrameIndex>,
}

impl Appender {
    pub(crate) fn new(buffers: Arc<WriteBuffers>) -> Appender {
        Appender { buffers, open: None }
    }

    /// Packs one extent and seals it. If this requires a new segment, calls `take` to get it.
    pub(crate) fn append(
        &mut self,
        segments: &Segments,
        epoch: Epoch,
        extent: &[u8],
        frame: Option<FrameIndex>,
        jobs: &mut Vec<WriteJob>,
        take: impl FnOnce() -> Result<SegmentId>,
    ) -> Result<ExtentAddress> {
        let bytes = (extent.len() as u64).next_multiple_of(ExtentAddress::UNIT_BYTES);
        assert!(bytes <= segments.segment_bytes(), "an extent of {bytes} bytes is larger than a segment");
        if let Some(open) = &mut self.open {
            assert!(open.epoch == epoch, "an appender serves one epoch at a time");
            if open.position + bytes > open.buffer_end() {
                open.flush(jobs);
            }
            if open.position + bytes > open.end {
                self.seal(segments, jobs);
            }
        }
        let open = self.open(segments, epoch, take)?;
        if open.position + bytes > open.buffer_end() {
            assert!(open.position == open.buffer_start, "a buffer is thrown away with what is in it");
            open.buffer = open.buffer.home.make(bytes);
        }
        let segment_use = segments.segment_use(open.id);
        let address = ExtentAddress::new(open.position, bytes, segment_use);
        let offset = (open.position - open.buffer_start) as usize;
        open.buffer[offset..offset + extent.len()].copy_from_slice(extent);
        extent::seal(&mut open.buffer[offset..offset + extent.len()], segments.origin(segment_use));
        debug_assert_eq!(
            extent::verify(&open.buffer[offset..offset + extent.len()])
                .and_then(|header| header.check(segments.origin(segment_use))),
            Ok(()),
            "an extent can't be read as it was written"
        );
        open.buffer[offset + extent.len()..offset + bytes as usize].fill(0);
        open.position += bytes;
        assert!(open.position <= open.end, "an extent reaches beyond {}", open.id);
        open.frames.extend(frame);
        segments.retain(address);
        Ok(address)
    }

    /// Returns the open segment, taking a new one if none is open.
    fn open(
        &mut self,
        segments: &Segments,
        epoch: Epoch,
        take: impl FnOnce() -> Result<SegmentId>,
    ) -> Result<&mut OpenSegment> {
        if self.open.is_none() {
            let id = take()?;
            assert!(id != SegmentId(0), "segment 0 holds the superblocks");
            let start = segments.start(id);
            self.open = Some(OpenSegment {
                id,
                epoch,
                position: start,
                end: start + segments.segment_bytes(),
                buffer_start: start,
                buffer: self.buffers.take(),
                frames: Vec::new(),
            });
        }
        Ok(self.open.as_mut().expect("opened above"))
    }

    /// Opens a segment for the epoch if it has none, so that no other purpose can take the last one.
    pub(crate) fn begin(
        &mut self,
        segments: &Segments,
        epoch: Epoch,
        take: impl FnOnce() -> Result<SegmentId>,
    ) -> Result<()> {
        self.open(segments, epoch, take).map(drop)
    }

    /// Returns `true` if the buffer would have to be handed over before an extent of this size is appended.
    pub(crate) fn is_full(&self, extent_bytes: usize) -> bool {
        let bytes = (extent_bytes as u64).next_multiple_of(ExtentAddress::UNIT_BYTES);
        self.open.as_ref().is_some_and(|open| open.position + bytes > open.buffer_end().min(open.end))
    }

    /// Returns the number of bytes left in the open segment.
    pub(crate) fn open_segment_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.end - open.position)
    }

    /// Returns `true` if the extent is still in the buffer, not in a write job.
    pub(crate) fn holds(&self, address: ExtentAddress) -> bool {
        self.open.as_ref().is_some_and(|open| (open.buffer_start..open.position).contains(&address.start()))
    }

    /// Hands over the contents of the buffer as a write job.
    pub(crate) fn flush(&mut self, jobs: &mut Vec<WriteJob>) {
        if let Some(open) = &mut self.open {
            open.flush(jobs);
        }
    }

    /// Deallocates the buffers that are not in use.
    pub(crate) fn free_buffers(&mut self) {
        self.buffers.idle.lock().clear();
    }

    /// Hands over the buffer and closes the segment.
    pub(crate) fn seal(&mut self, segments: &Segments, jobs: &mut Vec<WriteJob>) {
        if let Some(mut open) = self.open.take() {
            open.flush(jobs);
            assert!(open.frames.is_empty(), "frames wait for a buffer that is not written");
            segments.close(open.id);
        }
    }
}

impl OpenSegment {
    /// Returns the offset in the file at which the buffer ends.
    fn buffer_end(&self) -> u64 {
        self.buffer_start + self.buffer.capacity() as u64
    }

    fn flush(&mut self, jobs: &mut Vec<WriteJob>) {
        assert!(self.buffer_start.is_multiple_of(BLOCK_BYTES as u64), "a buffer begins within a block");
        let used = (self.position - self.buffer_start) as usize;
        if used == 0 {
            return;
        }
        let padded = used.next_multiple_of(BLOCK_BYTES);
        assert!(self.buffer_start + padded as u64 <= self.end, "a buffer reaches beyond {}", self.id);
        let another = self.buffer.home.take();
        let mut buffer = std::mem::replace(&mut self.buffer, another);
        buffer[used..padded].fill(0);
        buffer.set_len(padded);
        jobs.push(WriteJob { offset: self.buffer_start, buffer, frames: std::mem::take(&mut self.frames) });
        self.position = self.buffer_start + padded as u64;
        self.buffer_start = self.position;
        // The last buffer of a segment may be shorter than the others.
        let rest = (self.end - self.buffer_start) as usize;
        if rest < self.buffer.len() {
            self.buffer.set_len(rest);
        }
    }
}
