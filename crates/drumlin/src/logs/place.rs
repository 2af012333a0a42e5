//! The place of an entry in the stream.

use crate::format::StreamPosition;
use crate::format::logs::{ENTRY_HEADER_BYTES, PLACE_BYTES};

/// The place of an entry in the stream. Twelve bytes, because a log has one for each entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EntryPlace {
    position: [u32; 2],
    /// The bytes of the entry, or [`IN_PARTS_BYTES`].
    payload_bytes: u32,
}

/// Stands for the length of an entry whose parts are listed in the map of its log's large entries.
const IN_PARTS_BYTES: u32 = u32::MAX;

impl EntryPlace {
    /// The length of an encoded place. Fixed by the format.
    pub(super) const BYTES: usize = PLACE_BYTES;

    pub(super) fn new(position: StreamPosition, payload_bytes: Option<u32>) -> EntryPlace {
        assert!(payload_bytes != Some(IN_PARTS_BYTES), "an entry of 4 GiB is in one record");
        let position = [position.0 as u32, (position.0 >> 32) as u32];
        EntryPlace { position, payload_bytes: payload_bytes.unwrap_or(IN_PARTS_BYTES) }
    }

    /// Returns the position of the entry's header.
    pub(super) fn position(self) -> StreamPosition {
        StreamPosition(u64::from(self.position[0]) | u64::from(self.position[1]) << 32)
    }

    /// Returns the bytes of the entry, or `None` if it is in parts.
    pub(super) fn payload_bytes(self) -> Option<u32> {
        (self.payload_bytes != IN_PARTS_BYTES).then_some(self.payload_bytes)
    }

    pub(super) fn encode(self) -> [u8; EntryPlace::BYTES] {
        let mut bytes = [0; EntryPlace::BYTES];
        bytes[..4].copy_from_slice(&self.position[0].to_le_bytes());
        bytes[4..8].copy_from_slice(&self.position[1].to_le_bytes());
        bytes[8..].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> EntryPlace {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        EntryPlace { position: [number(0), number(4)], payload_bytes: number(8) }
    }
}

/// The bytes that an entry counts in the sum of live bytes: as many as a record has of it.
pub(super) fn live_bytes_of(payload_bytes: u32) -> u64 {
    u64::from(payload_bytes) + ENTRY_HEADER_BYTES as u64
}
