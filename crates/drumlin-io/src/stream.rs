//! Reads a range of a file sequentially, with a constant number of requests in flight ahead of the reader.
//!
//! # Invariants
//! 1. Until the end of the range is near, there are always `StreamOptions::requests` requests that are in flight or
//!    finished but not taken. Each buffer taken makes room for the next request, which is submitted before the buffer
//!    is returned.
//! 2. Buffers are returned in the order of the range, whatever the order in which they finish.
//! 3. A direct file is read in whole blocks. Its last, partial block is read by a separate call, because a request of a
//!    queue succeeds only if all its bytes are transferred.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::Arc;

use super::read::{BufferHome, read_unit_bytes};
use super::{AlignedBuffer, Backend, BackendFile, Completion, FileRef, Queue, ReadBuffer};
use crate::BLOCK_BYTES;
use crate::backend::disk::end_of_file;

/// The settings of a stream. A stream takes `request_bytes` × `requests` of memory, plus the buffers that are still in
/// use. For a longer range, the first `requests` + 1 buffers are allocated together, in huge pages of 2 MiB if they
/// fill at least half of one. That memory is kept while any of these buffers is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    /// Bytes of one request, rounded up to a multiple of 4,096. Default 512 KiB: a drive's rate does not rise with
    /// larger requests.
    pub request_bytes: usize,
    /// Requests in flight, at least 1. Default 5: enough to keep a drive busy while one buffer is processed.
    pub requests: usize,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions { request_bytes: 512 << 10, requests: 5 }
    }
}

impl StreamOptions {
    fn checked(self) -> StreamOptions {
        let request_bytes = self.request_bytes.max(1).next_multiple_of(BLOCK_BYTES);
        StreamOptions { request_bytes, requests: self.requests.max(1) }
    }

    /// Returns the home of the buffers of a stream over `range_bytes`.
    pub(super) fn home(self, range_bytes: u64) -> Arc<BufferHome> {
        // The buffers of the requests in flight, and the one that the reader holds. A short range needs fewer.
        let count = self.requests.saturating_add(1);
        let is_long = range_bytes >= (self.request_bytes as u64).saturating_mul(count as u64);
        BufferHome::new(self.request_bytes, self.requests, if is_long { count } else { 0 })
    }
}

/// One request of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) bytes: usize,
    /// The bytes of the request that are within the range.
    pub(super) visible: Range<usize>,
    /// The request is in the file's last, partial block (invariant 3).
    pub(super) tail: bool,
}

impl Part {
    /// Reads a tail. If there are fewer bytes than when the stream was opened, the file was truncated.
    pub(super) fn read_tail(&self, file: &dyn BackendFile, mut buffer: AlignedBuffer) -> io::Result<AlignedBuffer> {
        debug_assert!(self.tail);
        if file.read_up_to(&mut buffer, self.offset)? < self.visible.end {
            return Err(end_of_file());
        }
        Ok(buffer)
    }
}

/// The requests of a range, in order.
#[derive(Debug)]
pub(super) struct Plan {
    range: Range<u64>,
    /// The offset of the next request.
    next: u64,
    /// Up to here the file can be read in whole blocks.
    blocks_end: u64,
    request_bytes: usize,
}

impl Plan {
    pub(super) fn new(file: &dyn BackendFile, range: Range<u64>, options: &mut StreamOptions) -> io::Result<Plan> {
        *options = options.checked();
        let file_bytes = file.len()?;
        if range.start > range.end {
            let text = format!("the range {}..{} ends before it starts", range.start, range.end);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if range.end > file_bytes {
            let text = format!("the range ends at {}, {} at {file_bytes}", range.end, file.path().display());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(Plan::of_unit(range, file_bytes, read_unit_bytes(file) as u64, options.request_bytes))
    }

    fn of_unit(range: Range<u64>, file_bytes: u64, unit: u64, request_bytes: usize) -> Plan {
        let blocks_end = range.end.next_multiple_of(unit).min(file_bytes - file_bytes % unit);
        Plan { next: range.start - range.start % unit, range, blocks_end, request_bytes }
    }
}

impl Iterator for Plan {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.next >= self.range.end || self.range.is_empty() {
            return None;
        }
        let offset = self.next;
        let tail = offset >= self.blocks_end;
        let bytes = if tail { BLOCK_BYTES } else { self.request_bytes.min((self.blocks_end - offset) as usize) };
        self.next = offset + bytes as u64;
        let visible_start = self.range.start.saturating_sub(offset) as usize;
        let visible_end = (self.range.end - offset).min(bytes as u64) as usize;
        Some(Part { offset, bytes, visible: visible_start..visible_end, tail })
    }
}

/// The state of one request.
enum Progress {
    InFlight,
    /// A tail, which is read when its turn comes.
    Due,
    Finished(io::Result<AlignedBuffer>),
}

/// Reads a range of a file sequentially, a constant number of requests ahead.
///
/// [`next_buffer`](ReadStream::next_buffer) returns what was read without copying it; the stream also implements
/// [`Read`] and [`BufRead`]. It begins to read when it is opened. The range need not be aligned, even in a direct file.
/// After an error the stream is at its end.
///
/// # Examples
/// ```
/// use std::io::Read;
/// use drumlin_io::{IoBackend, OpenOptions, Persist, ReadStream, StreamOptions};
///
/// let backend = drumlin_io::backend(IoBackend::Auto)?;
/// let path = std::env::temp_dir().join(format!("drumlin-{:016x}", backend.random()));
/// let file = backend.open(&path, OpenOptions { write: true, create_new: true, ..Default::default() })?;
/// file.write_at(b"rolling hills left by the ice", 0, Persist::Later)?;
///
/// let mut stream = ReadStream::open(backend.as_ref(), &file, 8..13, StreamOptions::default())?;
/// assert_eq!(stream.next_buffer()?.as_deref(), Some(&b"hills"[..]));
/// assert!(stream.next_buffer()?.is_none());
///
/// let mut text = String::new();
/// ReadStream::open(backend.as_ref(), &file, 0..7, StreamOptions::default())?.read_to_string(&mut text)?;
/// assert_eq!(text, "rolling");
/// backend.remove(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ReadStream {
    file: FileRef,
    queue: Box<dyn Queue>,
    plan: Plan,
    home: Arc<BufferHome>,
    requests: usize,
    /// Oldest first. The first one has the number `first`.
    parts: VecDeque<(Part, Progress)>,
    first: u64,
    finished: Vec<Completion>,
    /// The rest of the buffer that [`Read`] copies from.
    current: ReadBuffer,
}

impl ReadStream {
    /// Begins to read `range`, given in bytes, of `file`, which must belong to this `backend`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before the range does, `InvalidInput` if the range ends before it starts, and
    /// any error that the system reports.
    pub fn open(
        backend: &dyn Backend,
        file: &FileRef,
        range: Range<u64>,
        mut options: StreamOptions,
    ) -> io::Result<ReadStream> {
        let range_bytes = range.end.saturating_sub(range.start);
        let plan = Plan::new(file.as_ref(), range, &mut options)?;
        let mut stream = ReadStream {
            file: FileRef::clone(file),
            queue: backend.queue(options.requests)?,
            plan,
            home: options.home(range_bytes),
            requests: options.requests,
            parts: VecDeque::with_capacity(options.requests),
            first: 0,
            finished: Vec::new(),
            current: ReadBuffer::empty(),
        };
        stream.fill()?;
        Ok(stream)
    }

    /// Returns the next bytes of the range: one request's worth, or the rest of the range, or `None` at its end.
    ///
    /// # Errors
    /// Any error that the system reports; `UnexpectedEof` if the file was truncated in the meantime. The stream then
    /// ends.
    pub fn next_buffer(&mut self) -> io::Result<Option<ReadBuffer>> {
        if !self.current.is_empty() {
            return Ok(Some(std::mem::replace(&mut self.current, ReadBuffer::empty())));
        }
        let result = self.advance();
        if result.is_err() {
            self.parts.clear();
            self.plan.next = u64::MAX;
        }
        result
    }

    fn advance(&mut self) -> io::Result<Option<ReadBuffer>> {
        while let Some((_, Progress::InFlight)) = self.parts.front() {
            self.queue.wait(1, &mut self.finished)?;
            for completion in self.finished.drain(..) {
                let (_, progress) = &mut self.parts[(completion.token - self.first) as usize];
                *progress = Progress::Finished(completion.result.map(|()| completion.buffer));
            }
        }
        let Some((part, progress)) = self.parts.pop_front() else { return Ok(None) };
        self.first += 1;
        let buffer = match progress {
            Progress::Finished(result) => result?,
            Progress::Due => part.read_tail(self.file.as_ref(), self.home.take(part.bytes))?,
            Progress::InFlight => unreachable!("waited for above"),
        };
        self.fill()?;
        Ok(Some(ReadBuffer::of_home(buffer, part.visible, &self.home)))
    }

    /// Submits requests until there are enough (invariant 1).
    fn fill(&mut self) -> io::Result<()> {
        while self.parts.len() < self.requests
            && let Some(part) = self.plan.next()
        {
            let token = self.first + self.parts.len() as u64;
            if part.tail {
                self.parts.push_back((part, Progress::Due));
            } else {
                self.queue.push_read(&self.file, part.offset, self.home.take(part.bytes), token);
                self.parts.push_back((part, Progress::InFlight));
            }
        }
        self.queue.submit()
    }
}

impl BufRead for ReadStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.is_empty()
            && let Some(buffer) = self.next_buffer()?
        {
            self.current = buffer;
        }
        Ok(&self.current)
    }

    fn consume(&mut self, bytes: usize) {
        self.current.advance(bytes);
    }
}

impl Read for ReadStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(target.len());
        target[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl fmt::Debug for ReadStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadStream({:?} of {:?}, {} in flight)", self.plan.range, self.file, self.queue.in_flight())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The visible parts are exactly the range, in order. All but the tail consist of whole blocks.
    #[test]
    fn a_plan_covers_its_range_and_no_more() {
        for unit in [1, 4096] {
            for file_bytes in [0, 1, 4095, 4096, 4097, 20_480, 30_001] {
                for start in [0, 1, 4095, 4096, 8191, 20_000] {
                    for end in [0, 1, 4096, 4097, 20_480, 30_000, 30_001] {
                        if start > end || end > file_bytes {
                            continue;
                        }
                        let mut position = start;
                        for part in Plan::of_unit(start..end, file_bytes, unit, 8192) {
                            assert_eq!(part.offset + part.visible.start as u64, position);
                            assert!(!part.visible.is_empty() && part.visible.end <= part.bytes);
                            assert!(part.offset.is_multiple_of(unit) && part.bytes <= 8192);
                            let within = part.offset + part.bytes as u64 <= file_bytes;
                            assert!(part.tail != (within && (part.bytes as u64).is_multiple_of(unit)));
                            position = part.offset + part.visible.end as u64;
                        }
                        assert_eq!(position, end);
                    }
                }
            }
        }
    }
}
