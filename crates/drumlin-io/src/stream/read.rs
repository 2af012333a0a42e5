//! Reads a range of a file sequentially, with a constant number of requests in flight ahead of the reader.
//!
//! # Invariants
//! 1. Until the end of the range is near, exactly `StreamOptions::requests` requests are in flight, or have finished
//!    without having been taken by the reader. When the reader takes a buffer, the next request begins before the
//!    buffer is returned. So a slow reader holds no more memory than a fast one.
//! 2. Buffers are returned in the order of the range, regardless of the order in which their requests finish.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_io::{AsyncBufRead, AsyncRead};

use super::StreamOptions;
use crate::BLOCK_BYTES;
use crate::driver::Operation;
use crate::file::File;
use crate::read::{BufferHome, ReadBuffer};

/// Reads a range of a file sequentially, prefetching with a constant number of requests.
///
/// [`next_buffer`](Self::next_buffer) returns the bytes without copying them. A `ReadStream` is also a [`Stream`] of
/// buffers, and implements [`AsyncRead`] and [`AsyncBufRead`], and for blocking threads [`Read`] and [`BufRead`]. It
/// begins to read when it is opened. The range may have any alignment, even in a direct file. An error ends the stream.
///
/// For a long range, the first `requests` + 1 buffers are allocated as a group, in huge pages of 2 MiB if they fill at
/// least half of a huge page. The group's memory is freed when its last buffer is dropped.
///
/// # Examples
/// ```
/// use std::io::Read;
/// use drumlin_io::{Driver, File, ReadStream, StreamOptions};
///
/// let driver = Driver::new()?;
/// let path = std::env::temp_dir().join(format!("drumlin-{:016x}", driver.backend().random()));
/// let file = File::create(&driver, &path).wait()?;
/// file.write_at(0, b"rolling hills left by the ice").wait()?;
///
/// // For a task:
/// driver.block_on(async {
///     let mut stream = ReadStream::open(&file, 8..13, StreamOptions::default())?;
///     while let Some(buffer) = stream.next_buffer().await? {
///         assert_eq!(&buffer[..], b"hills");
///     }
///     Ok::<(), std::io::Error>(())
/// })?;
/// // For a thread:
/// let mut text = String::new();
/// ReadStream::open(&file, 0..7, StreamOptions::default())?.read_to_string(&mut text)?;
/// assert_eq!(text, "rolling");
/// driver.remove(&path).wait()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ReadStream {
    file: File,
    /// The part of the range that has no requests yet.
    rest: Range<u64>,
    options: StreamOptions,
    home: Arc<BufferHome>,
    /// The requests in flight or not yet taken, oldest first.
    requests: VecDeque<Operation<ReadBuffer>>,
    /// The unread rest of the buffer from which [`Read`] copies.
    current: ReadBuffer,
}

impl ReadStream {
    /// Begins to read `range`, which is in bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before the range does, `InvalidInput` if the range ends before it starts, and
    /// any error that the system reports.
    pub fn open(file: &File, range: Range<u64>, options: StreamOptions) -> io::Result<ReadStream> {
        let options = options.checked();
        let file_bytes = file.len()?;
        if range.start > range.end {
            let text = format!("the range {}..{} ends before it starts", range.start, range.end);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if range.end > file_bytes {
            let text = format!("the range ends at {}, {} at {file_bytes}", range.end, file.path().display());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        // One buffer for each request in flight, and one that the reader holds. A short range needs fewer buffers.
        let count = options.requests.saturating_add(1);
        let is_long = range.end - range.start >= (options.request_bytes as u64).saturating_mul(count as u64);
        let home = BufferHome::new(options.request_bytes, options.requests, if is_long { count } else { 0 });
        let requests = VecDeque::with_capacity(options.requests);
        let mut stream =
            ReadStream { file: file.clone(), rest: range, options, home, requests, current: ReadBuffer::empty() };
        stream.fill();
        Ok(stream)
    }

    /// Begins requests until their number agrees with invariant 1.
    fn fill(&mut self) {
        while self.requests.len() < self.options.requests && !self.rest.is_empty() {
            let start = self.rest.start;
            // All requests but the first start at a block boundary.
            let block_start = start - start % BLOCK_BYTES as u64;
            let end = block_start.saturating_add(self.options.request_bytes as u64).min(self.rest.end);
            let home = |_| Some(Arc::clone(&self.home));
            let request = self.file.read_with_home(start, (end - start) as usize, false, home);
            self.requests.push_back(request.begin());
            self.rest.start = end;
        }
    }

    /// Returns the next bytes of the range. They are those of one request, or the rest of the current buffer if part of
    /// it was read. Returns `None` at the end of the range. If the future is dropped, no bytes are lost: the next call
    /// returns them.
    ///
    /// # Errors
    /// Any error that the system reports; `UnexpectedEof` if the file was truncated in the meantime. An error ends the
    /// stream.
    pub async fn next_buffer(&mut self) -> io::Result<Option<ReadBuffer>> {
        std::future::poll_fn(|context| self.poll_next_buffer(context)).await
    }

    /// Like [`next_buffer`](Self::next_buffer), for hand-written futures. Wakes only the waker of the latest call.
    pub fn poll_next_buffer(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<ReadBuffer>>> {
        if !self.current.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::replace(&mut self.current, ReadBuffer::empty()))));
        }
        let Some(request) = self.requests.front_mut() else { return Poll::Ready(Ok(None)) };
        let Poll::Ready(result) = Pin::new(request).poll(context) else { return Poll::Pending };
        self.requests.pop_front();
        match result {
            Ok(buffer) => {
                self.fill();
                Poll::Ready(Ok(Some(buffer)))
            }
            Err(error) => {
                self.requests.clear();
                self.rest.start = self.rest.end;
                Poll::Ready(Err(error))
            }
        }
    }
}

impl BufRead for ReadStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.is_empty() {
            let driver = self.file.driver().clone();
            self.current = driver.block_on(self.next_buffer())?.unwrap_or_else(ReadBuffer::empty);
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
        self.current.advance(count);
        Ok(count)
    }
}

impl AsyncBufRead for ReadStream {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let stream = self.get_mut();
        if stream.current.is_empty() {
            match stream.poll_next_buffer(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(buffer)) => stream.current = buffer.unwrap_or_else(ReadBuffer::empty),
            }
        }
        Poll::Ready(Ok(&stream.current))
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        self.get_mut().current.advance(bytes);
    }
}

impl AsyncRead for ReadStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        let count = match self.as_mut().poll_fill_buf(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(available)) => {
                let count = available.len().min(target.len());
                target[..count].copy_from_slice(&available[..count]);
                count
            }
        };
        self.get_mut().current.advance(count);
        Poll::Ready(Ok(count))
    }
}

impl Stream for ReadStream {
    type Item = io::Result<ReadBuffer>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_next_buffer(context).map(Result::transpose)
    }
}

impl fmt::Debug for ReadStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadStream({} requests, then {:?} of {:?})", self.requests.len(), self.rest, self.file)
    }
}
