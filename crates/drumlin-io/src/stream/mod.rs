//! Streams: a range of a file from its start to its end, with several requests in flight.

mod read;
mod write;

pub use read::ReadStream;
pub use write::WriteStream;

use crate::BLOCK_BYTES;

/// The settings of a stream. A stream takes `request_bytes` × `requests` of memory, plus the buffers that are still in
/// use.
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
}
