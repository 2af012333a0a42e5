//! A record: its body before it is appended, and its position afterwards.

use crate::format::log::{RECORD_HEADER_BYTES, record_bytes};
use crate::format::{StreamId, StreamPosition, Timestamp, checksum};

/// The body of a record with its checksum, which is computed without holding any lock.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    checksum: u64,
    names_extents: bool,
}

impl Body {
    pub(crate) fn new(bytes: Vec<u8>) -> Body {
        let checksum = checksum(&bytes, 0);
        Body { bytes, checksum, names_extents: false }
    }

    /// Creates the body of a record that names values in extents. The extents must become durable before the record
    /// does. See [`Hooks::before_write`](super::Hooks::before_write).
    pub(crate) fn naming_extents(bytes: Vec<u8>) -> Body {
        Body { names_extents: true, ..Body::new(bytes) }
    }

    /// Creates a body with other bytes, which name the same extents.
    pub(crate) fn with_bytes(&self, bytes: Vec<u8>) -> Body {
        Body { names_extents: self.names_extents, ..Body::new(bytes) }
    }

    pub(super) fn names_extents(&self) -> bool {
        self.names_extents
    }

    /// Returns the vector from which the body was made, for reuse.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn checksum(&self) -> u64 {
        self.checksum
    }
}

/// The position of an appended record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Appended {
    pub(crate) timestamp: Timestamp,
    pub(crate) stream: StreamId,
    /// The position in the stream after the record.
    pub(crate) end: StreamPosition,
    /// Set if the stream's buffer is filling up.
    pub(crate) is_near_full: bool,
    /// Set if the stream needs its next window. The caller must then request it.
    pub(crate) wants_preparation: bool,
}

impl Appended {
    /// Returns the position of the record's body, which has this length.
    pub(crate) fn body_position(&self, body_bytes: usize) -> StreamPosition {
        let before = record_bytes(body_bytes) - RECORD_HEADER_BYTES;
        assert!(before as u64 <= self.end.0, "a body of {body_bytes} bytes ends at {}", self.end);
        StreamPosition(self.end.0 - before as u64)
    }
}
