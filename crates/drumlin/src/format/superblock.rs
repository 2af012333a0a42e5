//! The superblock identifies the newest checkpoint and contains the address of its catalogue.
//!
//! There are two superblocks, at the file offsets [`SLOT_OFFSETS`]; writes alternate between them. If both are valid,
//! the one with the higher sequence number counts.
//!
//! ```text
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  magic: "DRUMLIN" and a newline
//!      8     4  format version
//!     12     4  zero
//!     16     8  XXH3-64 of the bytes from 24 to the end of the block
//!     24     8  sequence number of this superblock
//!     32     8  identity of the database, random
//!     40     8  segment size in bytes
//!     48     8  sequence number of the checkpoint
//!     56     8  timestamp of the checkpoint: it has exactly the state after this commit
//!     64     8  epoch of the checkpoint; 0: there is no checkpoint yet
//!     72     8  length of the catalogue in bytes
//!     80     4  number of incarnations listed (up to 64)
//!     84     4  number of the log's ranges listed (up to 64)
//!     88   768  incarnations, 12 bytes each: number (4), the first timestamp of its commits (8)
//!    856    16  the catalogue's last part: address (8), use of its segment (8)
//!    872  1536  ranges of the log that must exist, 24 bytes each: stream (8), its position from (8) and to (8)
//!   2408     8  1: the database was closed, and the log holds nothing above the checkpoint; 0: it may
//!   2416     8  identity of the checkpoint, random; 0: it has none
//!   2424     8  features that a version must know to read the database
//!   2432     8  features that a version must know to write to it
//!   2440     8  features that a version may ignore
//!   2448  1648  zero
//! ```

use super::features::Features;
use super::{
    BLOCK_BYTES, CheckpointId, CheckpointNumber, DatabaseId, Epoch, ExtentRef, FORMAT_VERSION, Incarnation,
    LOG_STREAM_COUNT_MAX, StreamId, StreamPosition, SuperblockNumber, Timestamp, checksum, get_u32, get_u64, put_u32,
    put_u64,
};

/// The offsets of the two superblocks in the data file. They are several blocks apart, so no single write can damage
/// both.
pub(crate) const SLOT_OFFSETS: [u64; 2] = [0, 8 * BLOCK_BYTES as u64];

pub(crate) const MAGIC: [u8; 8] = *b"DRUMLIN\n";
pub(crate) const INCARNATION_COUNT_MAX: usize = 64;
/// One range for each stream that a log may have.
pub(crate) const LOG_RANGE_COUNT_MAX: usize = LOG_STREAM_COUNT_MAX as usize;

pub(crate) const MAGIC_OFFSET: usize = 0;
pub(crate) const VERSION_OFFSET: usize = 8;
pub(crate) const ZERO_1_OFFSET: usize = 12;
pub(crate) const CHECKSUM_OFFSET: usize = 16;
pub(crate) const SEQUENCE_OFFSET: usize = 24;
pub(crate) const DATABASE_OFFSET: usize = 32;
pub(crate) const SEGMENT_BYTES_OFFSET: usize = 40;
pub(crate) const CHECKPOINT_OFFSET: usize = 48;
pub(crate) const TIMESTAMP_OFFSET: usize = 56;
pub(crate) const EPOCH_OFFSET: usize = 64;
pub(crate) const CATALOGUE_BYTES_OFFSET: usize = 72;
pub(crate) const INCARNATION_COUNT_OFFSET: usize = 80;
pub(crate) const LOG_RANGE_COUNT_OFFSET: usize = 84;
pub(crate) const INCARNATIONS_OFFSET: usize = 88;
pub(crate) const CATALOGUE_OFFSET: usize = 856;
pub(crate) const LOG_RANGES_OFFSET: usize = 872;
pub(crate) const CLOSED_OFFSET: usize = 2408;
pub(crate) const CHECKPOINT_ID_OFFSET: usize = 2416;
pub(crate) const FEATURES_TO_READ_OFFSET: usize = 2424;
pub(crate) const FEATURES_TO_WRITE_OFFSET: usize = 2432;
pub(crate) const FEATURES_IGNORABLE_OFFSET: usize = 2440;
pub(crate) const ZERO_2_OFFSET: usize = 2448;
pub(super) const INCARNATION_BYTES: usize = 12;
pub(super) const LOG_RANGE_BYTES: usize = 24;

const _: () = {
    assert!(VERSION_OFFSET == MAGIC_OFFSET + 8);
    assert!(ZERO_1_OFFSET == VERSION_OFFSET + 4);
    assert!(CHECKSUM_OFFSET == ZERO_1_OFFSET + 4);
    assert!(SEQUENCE_OFFSET == CHECKSUM_OFFSET + 8);
    assert!(DATABASE_OFFSET == SEQUENCE_OFFSET + 8);
    assert!(SEGMENT_BYTES_OFFSET == DATABASE_OFFSET + 8);
    assert!(CHECKPOINT_OFFSET == SEGMENT_BYTES_OFFSET + 8);
    assert!(TIMESTAMP_OFFSET == CHECKPOINT_OFFSET + 8);
    assert!(EPOCH_OFFSET == TIMESTAMP_OFFSET + 8);
    assert!(CATALOGUE_BYTES_OFFSET == EPOCH_OFFSET + 8);
    assert!(INCARNATION_COUNT_OFFSET == CATALOGUE_BYTES_OFFSET + 8);
    assert!(LOG_RANGE_COUNT_OFFSET == INCARNATION_COUNT_OFFSET + 4);
    assert!(INCARNATIONS_OFFSET == LOG_RANGE_COUNT_OFFSET + 4);
    assert!(CATALOGUE_OFFSET == INCARNATIONS_OFFSET + INCARNATION_COUNT_MAX * INCARNATION_BYTES);
    assert!(LOG_RANGES_OFFSET == CATALOGUE_OFFSET + ExtentRef::BYTES);
    assert!(CLOSED_OFFSET == LOG_RANGES_OFFSET + LOG_RANGE_COUNT_MAX * LOG_RANGE_BYTES);
    assert!(CHECKPOINT_ID_OFFSET == CLOSED_OFFSET + 8);
    assert!(FEATURES_TO_READ_OFFSET == CHECKPOINT_ID_OFFSET + 8);
    assert!(FEATURES_TO_WRITE_OFFSET == FEATURES_TO_READ_OFFSET + 8);
    assert!(FEATURES_IGNORABLE_OFFSET == FEATURES_TO_WRITE_OFFSET + 8);
    assert!(ZERO_2_OFFSET == FEATURES_IGNORABLE_OFFSET + 8);
    assert!(ZERO_2_OFFSET + 1648 == BLOCK_BYTES);
};

/// A superblock. See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    pub(crate) sequence: SuperblockNumber,
    pub(crate) database: DatabaseId,
    pub(crate) segment_bytes: u64,
    pub(crate) checkpoint: CheckpointNumber,
    pub(crate) timestamp: Timestamp,
    pub(crate) epoch: Epoch,
    pub(crate) catalogue_bytes: u64,
    /// The last part of the catalogue, which refers to the previous part. `NONE` before the first checkpoint.
    pub(crate) catalogue: ExtentRef,
    /// The latest openings in ascending order, each with the first timestamp that it assigned.
    pub(crate) incarnations: Vec<(Incarnation, Timestamp)>,
    /// The log ranges that must exist. Empty if the database was closed, because the log is not needed then.
    pub(crate) log: Vec<LogRange>,
    /// `true` if the database was closed and no opening has written to it since. In that case, the log contains no
    /// records after the checkpoint.
    pub(crate) is_closed: bool,
    /// The id of the checkpoint. Files that belong to the checkpoint contain this id.
    pub(crate) checkpoint_id: CheckpointId,
    pub(crate) features: Features,
}

/// A range of positions in a stream of the log. The windows of the stream's segments cover it without gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogRange {
    pub(crate) stream: StreamId,
    /// The start of the oldest window that is needed.
    pub(crate) from: StreamPosition,
    /// The end of the newest window.
    pub(crate) to: StreamPosition,
}

/// The reason why a block is not a valid superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SuperblockError {
    Magic,
    Newer(u32),
    Older(u32),
    Version,
    Checksum,
    Fields,
}

impl std::fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SuperblockError::Magic => f.write_str("it does not begin as a superblock"),
            SuperblockError::Newer(value) => write!(f, "it has format {value}"),
            SuperblockError::Older(value) => write!(f, "it has format {value}"),
            SuperblockError::Version => f.write_str("it has format 0, which never was"),
            SuperblockError::Checksum => f.write_str("its checksum does not match"),
            SuperblockError::Fields => f.write_str("its fields make no sense"),
        }
    }
}

impl Superblock {
    /// Encodes the superblock as a block.
    pub(crate) fn encode(&self) -> [u8; BLOCK_BYTES] {
        assert!(self.incarnations.len() <= INCARNATION_COUNT_MAX);
        assert!(self.log.len() <= LOG_RANGE_COUNT_MAX);
        assert!(self.log.is_empty() || !self.is_closed, "a database is closed that needs its log");
        let mut block = [0u8; BLOCK_BYTES];
        let bytes = &mut block[..];
        bytes[MAGIC_OFFSET..MAGIC_OFFSET + 8].copy_from_slice(&MAGIC);
        put_u32(bytes, VERSION_OFFSET, FORMAT_VERSION);
        put_u64(bytes, SEQUENCE_OFFSET, self.sequence.0);
        put_u64(bytes, DATABASE_OFFSET, self.database.0);
        put_u64(bytes, SEGMENT_BYTES_OFFSET, self.segment_bytes);
        put_u64(bytes, CHECKPOINT_OFFSET, self.checkpoint.0);
        put_u64(bytes, TIMESTAMP_OFFSET, self.timestamp.0);
        put_u64(bytes, EPOCH_OFFSET, self.epoch.0);
        put_u64(bytes, CATALOGUE_BYTES_OFFSET, self.catalogue_bytes);
        put_u32(bytes, INCARNATION_COUNT_OFFSET, self.incarnations.len() as u32);
        for (index, (incarnation, first)) in self.incarnations.iter().enumerate() {
            let offset = INCARNATIONS_OFFSET + index * INCARNATION_BYTES;
            put_u32(bytes, offset, incarnation.0);
            put_u64(bytes, offset + 4, first.0);
        }
        bytes[CATALOGUE_OFFSET..CATALOGUE_OFFSET + ExtentRef::BYTES].copy_from_slice(&self.catalogue.to_bytes());
        put_u32(bytes, LOG_RANGE_COUNT_OFFSET, self.log.len() as u32);
        for (index, range) in self.log.iter().enumerate() {
            let offset = LOG_RANGES_OFFSET + index * LOG_RANGE_BYTES;
            put_u64(bytes, offset, u64::from(range.stream.0));
            put_u64(bytes, offset + 8, range.from.0);
            put_u64(bytes, offset + 16, range.to.0);
        }
        put_u64(bytes, CLOSED_OFFSET, u64::from(self.is_closed));
        put_u64(bytes, CHECKPOINT_ID_OFFSET, self.checkpoint_id.0);
        put_u64(bytes, FEATURES_TO_READ_OFFSET, self.features.to_read);
        put_u64(bytes, FEATURES_TO_WRITE_OFFSET, self.features.to_write);
        put_u64(bytes, FEATURES_IGNORABLE_OFFSET, self.features.ignorable);
        let sum = checksum(&bytes[SEQUENCE_OFFSET..], 0);
        put_u64(bytes, CHECKSUM_OFFSET, sum);
        block
    }

    /// Decodes a superblock from untrusted bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        if bytes.len() != BLOCK_BYTES || bytes[MAGIC_OFFSET..MAGIC_OFFSET + 8] != MAGIC {
            return Err(SuperblockError::Magic);
        }
        let version = get_u32(bytes, VERSION_OFFSET);
        if version > FORMAT_VERSION {
            return Err(SuperblockError::Newer(version));
        }
        if version == 0 {
            return Err(SuperblockError::Version);
        }
        if version < FORMAT_VERSION {
            return Err(SuperblockError::Older(version));
        }
        if checksum(&bytes[SEQUENCE_OFFSET..], 0) != get_u64(bytes, CHECKSUM_OFFSET) {
            return Err(SuperblockError::Checksum);
        }
        let incarnation_count = get_u32(bytes, INCARNATION_COUNT_OFFSET) as usize;
        let range_count = get_u32(bytes, LOG_RANGE_COUNT_OFFSET) as usize;
        let segment_bytes = get_u64(bytes, SEGMENT_BYTES_OFFSET);
        if incarnation_count > INCARNATION_COUNT_MAX
            || range_count > LOG_RANGE_COUNT_MAX
            || !segment_bytes.is_power_of_two()
            || segment_bytes < 16 * BLOCK_BYTES as u64
            || get_u64(bytes, CLOSED_OFFSET) > u64::from(range_count == 0)
        {
            return Err(SuperblockError::Fields);
        }
        let catalogue = &bytes[CATALOGUE_OFFSET..CATALOGUE_OFFSET + ExtentRef::BYTES];
        let catalogue = ExtentRef::from_bytes(catalogue).ok_or(SuperblockError::Fields)?;
        let incarnations = (0..incarnation_count)
            .map(|index| {
                let offset = INCARNATIONS_OFFSET + index * INCARNATION_BYTES;
                (Incarnation(get_u32(bytes, offset)), Timestamp(get_u64(bytes, offset + 4)))
            })
            .collect();
        let log = (0..range_count)
            .map(|index| {
                let offset = LOG_RANGES_OFFSET + index * LOG_RANGE_BYTES;
                let stream = u16::try_from(get_u64(bytes, offset)).ok().filter(|stream| *stream < LOG_STREAM_COUNT_MAX);
                let position = |offset| StreamPosition(get_u64(bytes, offset));
                let (from, to) = (position(offset + 8), position(offset + 16));
                stream
                    .filter(|_| from <= to)
                    .map(StreamId)
                    .map(|stream| LogRange { stream, from, to })
                    .ok_or(SuperblockError::Fields)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Superblock {
            sequence: SuperblockNumber(get_u64(bytes, SEQUENCE_OFFSET)),
            database: DatabaseId(get_u64(bytes, DATABASE_OFFSET)),
            segment_bytes,
            checkpoint: CheckpointNumber(get_u64(bytes, CHECKPOINT_OFFSET)),
            timestamp: Timestamp(get_u64(bytes, TIMESTAMP_OFFSET)),
            epoch: Epoch(get_u64(bytes, EPOCH_OFFSET)),
            catalogue_bytes: get_u64(bytes, CATALOGUE_BYTES_OFFSET),
            catalogue,
            incarnations,
            log,
            is_closed: get_u64(bytes, CLOSED_OFFSET) == 1,
            checkpoint_id: CheckpointId(get_u64(bytes, CHECKPOINT_ID_OFFSET)),
            features: Features {
                to_read: get_u64(bytes, FEATURES_TO_READ_OFFSET),
                to_write: get_u64(bytes, FEATURES_TO_WRITE_OFFSET),
                ignorable: get_u64(bytes, FEATURES_IGNORABLE_OFFSET),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ExtentAddress, SegmentUse};

    fn sample() -> Superblock {
        Superblock {
            sequence: SuperblockNumber(9),
            database: DatabaseId(77),
            segment_bytes: 1 << 20,
            checkpoint: CheckpointNumber(4),
            timestamp: Timestamp(1234),
            epoch: Epoch(5),
            catalogue_bytes: 100,
            catalogue: ExtentRef {
                address: ExtentAddress::new(1 << 20, 640, SegmentUse(5)),
                segment_use: SegmentUse(5),
            },
            incarnations: vec![(Incarnation(1), Timestamp(1)), (Incarnation(2), Timestamp(1235))],
            log: vec![
                LogRange { stream: StreamId(0), from: StreamPosition(4096), to: StreamPosition(12288) },
                LogRange { stream: StreamId(63), from: StreamPosition::START, to: StreamPosition::START },
            ],
            is_closed: false,
            checkpoint_id: CheckpointId(3),
            features: Features { to_read: 1, to_write: 2, ignorable: 4 },
        }
    }

    /// A superblock survives encoding. Any flipped bit is detected, except in the zeros before the checksum.
    #[test]
    fn a_superblock_survives_its_block() {
        let mut block = sample().encode();
        assert_eq!(Superblock::decode(&block), Ok(sample()));
        for bit in (0..ZERO_1_OFFSET * 8).chain(CHECKSUM_OFFSET * 8..BLOCK_BYTES * 8) {
            block[bit / 8] ^= 1 << (bit % 8);
            let decoded = Superblock::decode(&block);
            assert!(decoded.is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        let closed = Superblock { log: Vec::new(), is_closed: true, ..sample() };
        assert_eq!(Superblock::decode(&closed.encode()), Ok(closed));
    }
}
