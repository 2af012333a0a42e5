//! Streams: they read or write a range of a file sequentially, with several requests in flight.

mod read;
mod write;

pub use read::ReadStream;
pub use write::WriteStream;

use crate::BLOCK_BYTES;

/// The settings of a stream. A stream uses `request_bytes` × `requests` of memory, plus the buffers that the caller
/// still holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    /// The size of a request in bytes, rounded up to a multiple of 4,096. Default 512 KiB: larger requests don't
    /// increase a drive's throughput.
    pub request_bytes: usize,
    /// The maximum number of requests in flight, at least 1. Default 5, which keeps a drive busy while the caller
    /// processes a buffer.
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
