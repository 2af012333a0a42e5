//! Readers that supply the values to store. They end normally, fail, or panic.

use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::AsyncRead;

use super::answers::ON_PURPOSE;

/// The way in which a reader ends.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum End {
    Whole,
    Fails,
    Panics,
}

pub(super) struct Source {
    bytes: Vec<u8>,
    position: usize,
    end: End,
    /// `true` if the last asynchronous read returned `Pending`. The next one then returns bytes.
    waits: bool,
}

impl Source {
    pub(super) fn new(bytes: &[u8], end: End) -> Source {
        Source { bytes: bytes.to_vec(), position: 0, end, waits: false }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.bytes[self.position..];
        let count = rest.len().min(buffer.len()).min(30_000);
        if count == 0 && !buffer.is_empty() {
            match self.end {
                End::Whole => {}
                End::Fails => return Err(std::io::Error::other("the reader fails on purpose")),
                End::Panics => panic!("{ON_PURPOSE}"),
            }
        }
        buffer[..count].copy_from_slice(&rest[..count]);
        self.position += count;
        Ok(count)
    }
}

impl AsyncRead for Source {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        self.waits = !self.waits;
        if self.waits {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.read(buffer))
    }
}
