//! The format of every persistent byte: offsets, encoding, decoding. No I/O happens here.
//!
//! All integers are little-endian. A field's offset is a constant, and compile-time checks assert that the fields of a
//! structure abut. `docs/format.md` documents the structures as tables, which a test compares with the code.

pub(crate) mod address;
pub(crate) mod advice;
pub(crate) mod archive;
pub(crate) mod backup;
pub(crate) mod catalogue;
pub(crate) mod changes;
#[cfg(test)]
mod document;
pub(crate) mod extent;
pub(crate) mod features;
pub(crate) mod ids;
pub(crate) mod log;
pub(crate) mod logs;
pub(crate) mod node;
pub(crate) mod prepared;
pub(crate) mod record;
pub(crate) mod summary;
pub(crate) mod superblock;

pub(crate) use address::{ExtentAddress, ExtentRef};
pub(crate) use ids::{
    CheckpointId, CheckpointNumber, ChunkNumber, DatabaseId, Epoch, Incarnation, PageId, SegmentId, SegmentUse,
    SlotNumber, StreamId, StreamPosition, SuperblockNumber, UseNumber, ValueId, WritingId,
};
pub use ids::{KeyspaceId, Timestamp};

/// The format version that this code writes. It reads no other version.
///
/// Since version 3, the catalogue has the numbers of leaves and rows of each keyspace, and there may be prepared
/// transactions and runs above trees. Since version 2, a row of an inner node consists of a separator and a page
/// number. In version 1, 12 more bytes followed.
pub(crate) const FORMAT_VERSION: u32 = 3;

/// The maximum number of streams of a log. The superblock has room for one range per stream.
pub(crate) const LOG_STREAM_COUNT_MAX: u16 = 64;

/// The unit of direct I/O in bytes. Every file region that is written separately starts and ends on such a boundary.
pub(crate) use drumlin_io::BLOCK_BYTES;

/// Reads a little-endian `u16` at `offset`.
#[inline]
pub(crate) fn get_u16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes[offset..offset + 2].try_into().expect("two bytes"))
}

/// Reads a little-endian `u32` at `offset`.
#[inline]
pub(crate) fn get_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

/// Reads a little-endian `u64` at `offset`.
#[inline]
pub(crate) fn get_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

/// Writes a little-endian `u16` at `offset`.
#[inline]
pub(crate) fn put_u16(bytes: &mut [u8], offset: usize, value: u16) {
    bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
}

/// Writes a little-endian `u32` at `offset`.
#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

/// Writes a little-endian `u64` at `offset`.
#[inline]
pub(crate) fn put_u64(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

/// Returns the checksum that Drumlin uses for all data that it writes: XXH3-64 of `bytes` with `seed`.
#[inline]
pub(crate) fn checksum(bytes: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed)
}

/// The [`checksum`], with seed 0, of bytes that arrive in parts.
pub(crate) use xxhash_rust::xxh3::Xxh3Default as Checksum;
