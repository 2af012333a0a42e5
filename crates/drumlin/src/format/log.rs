//! The header of a log segment and the header of a log record.
//!
//! The first block of a segment file is its header. Only the first 512 bytes of the block are used, because a device
//! writes this many entirely or not at all. A block of zeros is the header of a segment that has never been used.
//!
//! ```text
//! SEGMENT HEADER
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  "DRUMLOG\0"
//!      8     4  format version
//!     12     2  stream
//!     14     1  1 once all of the window has been written, with zeros or records
//!     15     1  zero
//!     16     4  slot: the number in the file's name
//!     20     4  incarnation that began this use
//!     24     8  identity of the database
//!     32     8  use number: ascends within a stream, never used twice
//!     40     8  position in the stream of the window's first byte
//!     48     8  bytes of the window, which begins after this block
//!     56     8  lowest timestamp that a record starting in the window can have
//!     64     8  durable horizon when this header was written
//!     72     8  sequence number of the newest superblock when this header was written
//!     80     8  XXH3-64 of the bytes from 0 to 80
//! ```
//!
//! A record begins at a multiple of 8 bytes and may extend into the next segment, even within its header.
//!
//! ```text
//! RECORD HEADER
//! OFFSET  SIZE  DESCRIPTION
//!      0     4  "dRec"
//!      4     4  timestamp minus the durable horizon when it was appended
//!      8     8  timestamp
//!     16     6  time when its batch was begun, in milliseconds since 1970
//!     22     2  flags
//!     24     4  incarnation
//!     28     4  bytes of the body, which follows this header and is padded with zeros to a multiple of 8
//!     32     8  XXH3-64 of the body
//!     40     8  XXH3-64 of the bytes from 0 to 40, with a seed that depends on the position: see [`record_seed`]
//! ```

use super::{
    CheckpointNumber, DatabaseId, FORMAT_VERSION, Incarnation, SlotNumber, StreamId, StreamPosition, Timestamp,
    UseNumber, checksum, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64,
};

pub(super) const MAGIC_OFFSET: usize = 0;
pub(super) const VERSION_OFFSET: usize = 8;
pub(super) const STREAM_OFFSET: usize = 12;
pub(super) const FILLED_OFFSET: usize = 14;
pub(super) const ZERO_OFFSET: usize = 15;
pub(super) const SLOT_OFFSET: usize = 16;
pub(super) const INCARNATION_OFFSET: usize = 20;
pub(super) const DATABASE_OFFSET: usize = 24;
pub(super) const USE_OFFSET: usize = 32;
pub(super) const START_OFFSET: usize = 40;
pub(super) const WINDOW_BYTES_OFFSET: usize = 48;
pub(super) const FIRST_OFFSET: usize = 56;
pub(super) const HORIZON_OFFSET: usize = 64;
pub(super) const CHECKPOINT_OFFSET: usize = 72;
pub(super) const CHECKSUM_OFFSET: usize = 80;
/// The length of a segment's header. The rest of its block is zero.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 88;

const _: () = {
    assert!(VERSION_OFFSET == MAGIC_OFFSET + 8);
    assert!(STREAM_OFFSET == VERSION_OFFSET + 4);
    assert!(FILLED_OFFSET == STREAM_OFFSET + 2);
    assert!(ZERO_OFFSET == FILLED_OFFSET + 1);
    assert!(SLOT_OFFSET == ZERO_OFFSET + 1);
    assert!(INCARNATION_OFFSET == SLOT_OFFSET + 4);
    assert!(DATABASE_OFFSET == INCARNATION_OFFSET + 4);
    assert!(USE_OFFSET == DATABASE_OFFSET + 8);
    assert!(START_OFFSET == USE_OFFSET + 8);
    assert!(WINDOW_BYTES_OFFSET == START_OFFSET + 8);
    assert!(FIRST_OFFSET == WINDOW_BYTES_OFFSET + 8);
    assert!(HORIZON_OFFSET == FIRST_OFFSET + 8);
    assert!(CHECKPOINT_OFFSET == HORIZON_OFFSET + 8);
    assert!(CHECKSUM_OFFSET == CHECKPOINT_OFFSET + 8);
    assert!(SEGMENT_HEADER_BYTES == CHECKSUM_OFFSET + 8);
    assert!(SEGMENT_HEADER_BYTES <= 512, "a header must fit the unit that a device writes whole");
};

const SEGMENT_MAGIC: [u8; 8] = *b"DRUMLOG\0";

/// The first block of a segment file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) stream: StreamId,
    pub(crate) slot: SlotNumber,
    pub(crate) database: DatabaseId,
    pub(crate) incarnation: Incarnation,
    pub(crate) use_number: UseNumber,
    pub(crate) start: StreamPosition,
    pub(crate) window_bytes: u64,
    pub(crate) first: Timestamp,
    pub(crate) horizon: Timestamp,
    pub(crate) checkpoint: CheckpointNumber,
    pub(crate) filled: bool,
}

/// The reason why a segment's header is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentHeaderError {
    Magic,
    Checksum,
    Format(u32),
    Window,
}

impl std::fmt::Display for SegmentHeaderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SegmentHeaderError::Magic => f.write_str("it is not the header of a log segment"),
            SegmentHeaderError::Checksum => f.write_str("its checksum does not match"),
            SegmentHeaderError::Format(value) => write!(f, "it has format {value}"),
            SegmentHeaderError::Window => f.write_str("its window makes no sense"),
        }
    }
}

impl SegmentHeader {
    /// Writes the header to the start of `block`, and fills the rest with zeros.
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        block[MAGIC_OFFSET..MAGIC_OFFSET + 8].copy_from_slice(&SEGMENT_MAGIC);
        put_u32(block, VERSION_OFFSET, FORMAT_VERSION);
        put_u16(block, STREAM_OFFSET, self.stream.0);
        block[FILLED_OFFSET] = u8::from(self.filled);
        put_u32(block, SLOT_OFFSET, self.slot.0);
        put_u32(block, INCARNATION_OFFSET, self.incarnation.0);
        put_u64(block, DATABASE_OFFSET, self.database.0);
        put_u64(block, USE_OFFSET, self.use_number.0);
        put_u64(block, START_OFFSET, self.start.0);
        put_u64(block, WINDOW_BYTES_OFFSET, self.window_bytes);
        put_u64(block, FIRST_OFFSET, self.first.0);
        put_u64(block, HORIZON_OFFSET, self.horizon.0);
        put_u64(block, CHECKPOINT_OFFSET, self.checkpoint.0);
        let sum = checksum(&block[..CHECKSUM_OFFSET], 0);
        put_u64(block, CHECKSUM_OFFSET, sum);
    }

    /// Decodes the header at the start of `block`. Returns `None` if the block is all zeros.
    pub(crate) fn decode(block: &[u8]) -> Result<Option<SegmentHeader>, SegmentHeaderError> {
        if block.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if block[MAGIC_OFFSET..MAGIC_OFFSET + 8] != SEGMENT_MAGIC {
            return Err(SegmentHeaderError::Magic);
        }
        if checksum(&block[..CHECKSUM_OFFSET], 0) != get_u64(block, CHECKSUM_OFFSET) {
            return Err(SegmentHeaderError::Checksum);
        }
        let version = get_u32(block, VERSION_OFFSET);
        if version != FORMAT_VERSION {
            return Err(SegmentHeaderError::Format(version));
        }
        let header = SegmentHeader {
            stream: StreamId(get_u16(block, STREAM_OFFSET)),
            slot: SlotNumber(get_u32(block, SLOT_OFFSET)),
            database: DatabaseId(get_u64(block, DATABASE_OFFSET)),
            incarnation: Incarnation(get_u32(block, INCARNATION_OFFSET)),
            use_number: UseNumber(get_u64(block, USE_OFFSET)),
            start: StreamPosition(get_u64(block, START_OFFSET)),
            window_bytes: get_u64(block, WINDOW_BYTES_OFFSET),
            first: Timestamp(get_u64(block, FIRST_OFFSET)),
            horizon: Timestamp(get_u64(block, HORIZON_OFFSET)),
            checkpoint: CheckpointNumber(get_u64(block, CHECKPOINT_OFFSET)),
            filled: block[FILLED_OFFSET] == 1,
        };
        let block_bytes = super::BLOCK_BYTES as u64;
        let whole = header.start.is_block_start() && header.window_bytes.is_multiple_of(block_bytes);
        if !whole || header.window_bytes == 0 || header.start.0.checked_add(header.window_bytes).is_none() {
            return Err(SegmentHeaderError::Window);
        }
        Ok(Some(header))
    }

    /// Returns the base of the seeds for all records that start in this window. [`record_seed`] adds a record's
    /// position.
    pub(crate) fn seed(&self) -> u64 {
        let mut identity = [0; 24];
        put_u64(&mut identity, 0, self.database.0);
        put_u64(&mut identity, 8, u64::from(self.stream.0));
        put_u64(&mut identity, 16, self.use_number.0);
        checksum(&identity, 0)
    }
}

pub(super) const RECORD_MAGIC_OFFSET: usize = 0;
pub(super) const HORIZON_DISTANCE_OFFSET: usize = 4;
pub(super) const TIMESTAMP_OFFSET: usize = 8;
pub(super) const RECORD_TIME_OFFSET: usize = 16;
pub(super) const FLAGS_OFFSET: usize = 22;
pub(super) const RECORD_INCARNATION_OFFSET: usize = 24;
pub(super) const BODY_BYTES_OFFSET: usize = 28;
pub(super) const BODY_CHECKSUM_OFFSET: usize = 32;
pub(super) const RECORD_CHECKSUM_OFFSET: usize = 40;
/// The length of a record's header.
pub(crate) const RECORD_HEADER_BYTES: usize = 48;

const _: () = {
    assert!(HORIZON_DISTANCE_OFFSET == RECORD_MAGIC_OFFSET + 4);
    assert!(TIMESTAMP_OFFSET == HORIZON_DISTANCE_OFFSET + 4);
    assert!(RECORD_TIME_OFFSET == TIMESTAMP_OFFSET + 8);
    assert!(FLAGS_OFFSET == RECORD_TIME_OFFSET + 6);
    assert!(RECORD_INCARNATION_OFFSET == FLAGS_OFFSET + 2);
    assert!(BODY_BYTES_OFFSET == RECORD_INCARNATION_OFFSET + 4);
    assert!(BODY_CHECKSUM_OFFSET == BODY_BYTES_OFFSET + 4);
    assert!(RECORD_CHECKSUM_OFFSET == BODY_CHECKSUM_OFFSET + 8);
    assert!(RECORD_HEADER_BYTES == RECORD_CHECKSUM_OFFSET + 8);
    assert!(RECORD_HEADER_BYTES.is_multiple_of(RECORD_ALIGNMENT_BYTES));
};

/// Records begin at multiples of this many bytes.
pub(crate) const RECORD_ALIGNMENT_BYTES: usize = 8;

/// The first four bytes of every record, as an integer.
pub(crate) const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"dRec");

/// Flag: the record refers to extents that were synced before the record was written.
pub(crate) const FLAG_AFTER_DATA: u16 = 1;

/// The highest time that a record's header has room for, in milliseconds since 1970: 8,900 years.
const RECORD_TIME_MS_MAX: u64 = (1 << 48) - 1;

/// Returns the number of bytes that a record with a body of this length occupies in its stream.
pub(crate) const fn record_bytes(body_bytes: usize) -> usize {
    (RECORD_HEADER_BYTES + body_bytes).next_multiple_of(RECORD_ALIGNMENT_BYTES)
}

/// Returns the seed for the checksum of a record's header. It is specific to the database, stream, segment use and
/// position. So a stale record never verifies, nor does a copy of a record inside another record's body.
pub(crate) fn record_seed(segment_seed: u64, position: StreamPosition) -> u64 {
    segment_seed.wrapping_add(position.0)
}

/// The header before a record's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHeader {
    pub(crate) flags: u16,
    pub(crate) timestamp: Timestamp,
    /// The durable horizon, which is below the timestamp by less than 2^32.
    pub(crate) horizon: Timestamp,
    /// The time when the record's batch was begun, in milliseconds since 1970. Less than 2^48.
    pub(crate) time_ms: u64,
    pub(crate) incarnation: Incarnation,
    pub(crate) body_bytes: u32,
    pub(crate) body_checksum: u64,
}

impl RecordHeader {
    /// Writes the header to the start of `bytes`.
    pub(crate) fn encode(&self, seed: u64, bytes: &mut [u8]) {
        let horizon_distance = u32::try_from(self.timestamp.0 - self.horizon.0);
        put_u32(bytes, RECORD_MAGIC_OFFSET, RECORD_MAGIC);
        let no_room = "the buffers of the log have no room for this number of records";
        put_u32(bytes, HORIZON_DISTANCE_OFFSET, horizon_distance.expect(no_room));
        put_u64(bytes, TIMESTAMP_OFFSET, self.timestamp.0);
        // The upper two bytes are those of the flags.
        put_u64(bytes, RECORD_TIME_OFFSET, self.time_ms.min(RECORD_TIME_MS_MAX));
        put_u16(bytes, FLAGS_OFFSET, self.flags);
        put_u32(bytes, RECORD_INCARNATION_OFFSET, self.incarnation.0);
        put_u32(bytes, BODY_BYTES_OFFSET, self.body_bytes);
        put_u64(bytes, BODY_CHECKSUM_OFFSET, self.body_checksum);
        let sum = checksum(&bytes[..RECORD_CHECKSUM_OFFSET], seed);
        put_u64(bytes, RECORD_CHECKSUM_OFFSET, sum);
    }

    /// Decodes the header at the start of `bytes`. Returns `None` unless it verifies with this seed.
    pub(crate) fn decode(bytes: &[u8], seed: u64) -> Option<RecordHeader> {
        let verifies = get_u32(bytes, RECORD_MAGIC_OFFSET) == RECORD_MAGIC
            && checksum(&bytes[..RECORD_CHECKSUM_OFFSET], seed) == get_u64(bytes, RECORD_CHECKSUM_OFFSET);
        if !verifies {
            return None;
        }
        let timestamp = get_u64(bytes, TIMESTAMP_OFFSET);
        let horizon = timestamp.checked_sub(u64::from(get_u32(bytes, HORIZON_DISTANCE_OFFSET)))?;
        Some(RecordHeader {
            flags: get_u16(bytes, FLAGS_OFFSET),
            timestamp: Timestamp(timestamp),
            horizon: Timestamp(horizon),
            time_ms: get_u64(bytes, RECORD_TIME_OFFSET) & RECORD_TIME_MS_MAX,
            incarnation: Incarnation(get_u32(bytes, RECORD_INCARNATION_OFFSET)),
            body_bytes: get_u32(bytes, BODY_BYTES_OFFSET),
            body_checksum: get_u64(bytes, BODY_CHECKSUM_OFFSET),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment_header() -> SegmentHeader {
        SegmentHeader {
            stream: StreamId(3),
            slot: SlotNumber(9),
            database: DatabaseId(0x1122_3344_5566_7788),
            incarnation: Incarnation(4),
            use_number: UseNumber(17),
            start: StreamPosition(12 * 4096),
            window_bytes: 3 * 4096,
            first: Timestamp(100),
            horizon: Timestamp(98),
            checkpoint: CheckpointNumber(6),
            filled: true,
        }
    }

    /// A segment header survives encoding, zeros decode to no header, and any flipped bit is detected.
    #[test]
    fn a_segment_header_comes_back() {
        let mut block = [0; 4096];
        assert_eq!(SegmentHeader::decode(&block), Ok(None));
        segment_header().encode(&mut block);
        assert_eq!(SegmentHeader::decode(&block), Ok(Some(segment_header())));
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// A record header survives encoding, verifies only with its own seed, and any flipped bit is detected.
    #[test]
    fn a_record_header_comes_back() {
        let header = RecordHeader {
            flags: FLAG_AFTER_DATA,
            timestamp: Timestamp(7),
            horizon: Timestamp(5),
            time_ms: 1_764_291_600_000,
            incarnation: Incarnation(2),
            body_bytes: 11,
            body_checksum: 99,
        };
        let seed = record_seed(segment_header().seed(), StreamPosition(4096));
        let mut bytes = [0; RECORD_HEADER_BYTES];
        header.encode(seed, &mut bytes);
        assert_eq!(RecordHeader::decode(&bytes, seed), Some(header));
        assert_eq!(RecordHeader::decode(&bytes, record_seed(segment_header().seed(), StreamPosition(4104))), None);
        let next_use = SegmentHeader { use_number: UseNumber(18), ..segment_header() };
        assert_eq!(RecordHeader::decode(&bytes, record_seed(next_use.seed(), StreamPosition(4096))), None);
        for bit in 0..RECORD_HEADER_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&bytes, seed), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
