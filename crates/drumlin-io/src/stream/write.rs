//! Writes a file sequentially. Several requests are in flight while the writer fills the next buffer.
//!
//! # Invariants
//! 1. `requests` cover the bytes before `position`, and `buffer` holds the bytes from `position` onwards. Requests are
//!    in the order of their offsets, but may finish in any order.
//! 2. Each request but the first starts at a block boundary, and each but the last of a flush ends at one. A partial
//!    block stays in the buffer after a flush, so that it is written as a whole once it is full.
//! 3. After an error, no later request begins.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_io::AsyncWrite;

use super::StreamOptions;
use crate::BLOCK_BYTES;
use crate::backend::AlignedBuffer;
use crate::driver::Operation;
use crate::file::File;
use crate::read::BufferHome;

/// Writes a file sequentially. Bytes are gathered in a buffer. A full buffer is written while the next one is filled.
/// The writer waits only while `StreamOptions::requests` requests are in flight.
///
/// It implements [`AsyncWrite`], and [`Write`] for blocking threads. Dropping the stream loses unflushed bytes. After
/// an error, the current call and all later calls report it. The cause may be a write that an earlier call began.
///
/// # Examples
/// ```
/// use std::io::Write;
/// use drumlin_io::{Driver, File, StreamOptions, WriteStream};
///
/// let driver = Driver::new()?;
/// let path = std::env::temp_dir().join(format!("drumlin-{:016x}", driver.backend().random()));
/// let file = File::create(&driver, &path).wait()?;
/// let mut stream = WriteStream::new(&file, 0, StreamOptions::default());
/// for layer in 0..1000 {
///     writeln!(stream, "layer {layer}")?;
/// }
/// assert_eq!(driver.block_on(stream.finish())?, 9890, "all bytes are durable");
/// assert_eq!(&file.read_at(0, 7).wait()?[..], b"layer 0");
/// driver.remove(&path).wait()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct WriteStream {
    file: File,
    options: StreamOptions,
    home: Arc<BufferHome>,
    /// The requests that have begun, oldest first.
    requests: VecDeque<Operation<AlignedBuffer>>,
    buffer: Option<AlignedBuffer>,
    /// The number of bytes in the buffer.
    filled: usize,
    /// The number of bytes in the buffer that are already in the file.
    flushed: usize,
    /// The offset of the buffer's first byte.
    position: u64,
    failure: Option<(io::ErrorKind, String)>,
}

impl WriteStream {
    /// Creates a stream that writes to `file`, starting at `offset`. If the file is direct and `offset` is not a
    /// multiple of 4,096, the first write goes through the page cache.
    #[must_use]
    pub fn new(file: &File, offset: u64, options: StreamOptions) -> WriteStream {
        let options = options.checked();
        let home = BufferHome::new(options.request_bytes, options.requests + 1, options.requests + 1);
        let requests = VecDeque::with_capacity(options.requests);
        let (file, position) = (file.clone(), offset);
        WriteStream { file, options, home, requests, buffer: None, filled: 0, flushed: 0, position, failure: None }
    }

    /// Returns the offset of the next byte.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position + self.filled as u64
    }

    /// Waits until all bytes are in the file. They are not durable yet.
    ///
    /// # Errors
    /// The errors of [`File::write_at`].
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_flushed(context, true)).await
    }

    /// Waits until all whole blocks are in the file. A partial block at the end may remain in memory. Unlike
    /// [`flush`](Self::flush), does not write this block through the page cache.
    ///
    /// # Errors
    /// The errors of [`File::write_at`].
    pub async fn flush_aligned(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_flushed(context, false)).await
    }

    /// Waits until all bytes are in the file and durable, and returns the end offset.
    ///
    /// # Errors
    /// The errors of [`File::write_at`] and [`File::sync_data`].
    pub async fn finish(mut self) -> io::Result<u64> {
        self.flush().await?;
        self.file.sync_data().await?;
        Ok(self.position())
    }

    pub(crate) fn sync_data(&self) -> Operation<()> {
        self.file.sync_data()
    }

    /// The implementation of [`AsyncWrite::poll_write`].
    fn poll_bytes(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let limit = self.limit();
        if self.filled == limit {
            ready!(self.poll_room(context))?;
            self.write_buffer(limit);
            return self.poll_bytes(context, bytes);
        }
        let buffer = self.buffer.get_or_insert_with(|| self.home.take(self.options.request_bytes));
        let count = bytes.len().min(limit - self.filled);
        buffer[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        // Write a full buffer immediately if the number of requests in flight is below the limit.
        if self.filled == limit && self.requests.len() < self.options.requests {
            self.write_buffer(limit);
        }
        Poll::Ready(Ok(count))
    }

    /// Returns the number of bytes at which the buffer counts as full: its size, or the distance to the next block
    /// boundary if the stream starts inside of a block (invariant 2).
    fn limit(&self) -> usize {
        match (self.position % BLOCK_BYTES as u64) as usize {
            0 => self.options.request_bytes,
            inside => BLOCK_BYTES - inside,
        }
    }

    /// Begins to write the buffer's first `bytes` bytes.
    fn write_buffer(&mut self, bytes: usize) {
        let mut buffer = self.buffer.take().expect("the buffer holds these bytes");
        let rest = self.filled - bytes;
        if rest > 0 {
            let mut next = self.home.take(self.options.request_bytes);
            next[..rest].copy_from_slice(&buffer[bytes..self.filled]);
            self.buffer = Some(next);
        }
        buffer.set_len(bytes);
        self.requests.push_back(self.file.write_at(self.position, buffer).begin());
        self.position += bytes as u64;
        self.filled = rest;
        self.flushed = self.flushed.saturating_sub(bytes);
    }

    /// Waits until the number of requests in flight is below the limit.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.requests.len() >= self.options.requests {
            ready!(self.poll_oldest(context))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_oldest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(request) = self.requests.front_mut() else { return Poll::Ready(Ok(())) };
        let result = ready!(Pin::new(request).poll(context));
        self.requests.pop_front();
        Poll::Ready(match result {
            Ok(buffer) => {
                self.home.put(buffer);
                Ok(())
            }
            Err(error) => {
                self.failure = Some((error.kind(), error.to_string()));
                Err(error)
            }
        })
    }

    fn poll_flushed(&mut self, context: &mut Context<'_>, is_complete: bool) -> Poll<io::Result<()>> {
        self.check()?;
        let inside = (self.position % BLOCK_BYTES as u64) as usize;
        let whole_bytes = ((inside + self.filled) / BLOCK_BYTES * BLOCK_BYTES).saturating_sub(inside);
        if whole_bytes > 0 {
            ready!(self.poll_room(context))?;
            self.write_buffer(whole_bytes);
        }
        while !self.requests.is_empty() {
            ready!(self.poll_oldest(context))?;
        }
        if is_complete && self.flushed < self.filled {
            let tail = AlignedBuffer::from(&self.buffer.as_ref().expect("bytes are in it")[..self.filled]);
            self.flushed = self.filled;
            self.requests.push_back(self.file.write_at(self.position, tail));
            return self.poll_flushed(context, is_complete);
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the error of an earlier call, if one failed.
    fn check(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some((kind, text)) => Err(io::Error::new(*kind, format!("an earlier write failed: {text}"))),
        }
    }
}

impl AsyncWrite for WriteStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_bytes(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flushed(context, true)
    }

    /// Flushes the stream. The bytes are not durable yet; see [`WriteStream::finish`].
    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flushed(context, true)
    }
}

impl Write for WriteStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // If the buffer has room for the bytes, they can be copied without waiting.
        if self.failure.is_none() && self.filled < self.limit() {
            let mut context = Context::from_waker(std::task::Waker::noop());
            if let Poll::Ready(result) = self.poll_bytes(&mut context, bytes) {
                return result;
            }
        }
        let driver = self.file.driver().clone();
        driver.block_on(poll_fn(|context| self.poll_bytes(context, bytes)))
    }

    fn flush(&mut self) -> io::Result<()> {
        let driver = self.file.driver().clone();
        driver.block_on(WriteStream::flush(self))
    }
}

impl fmt::Debug for WriteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteStream(at {} of {:?}, {} in flight)", self.position(), self.file, self.requests.len())
    }
}
