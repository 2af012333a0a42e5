//! Change files: the commits that a database keeps for readers of its change feed.
//!
//! A change file begins with a block that is its header. Only the first 80 bytes of the block are used.
//!
//! ```text
//! FILE HEADER
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  "DRUMCHG" and a newline
//!      8     4  version of change files
//!     12     4  1: old values are kept; 0: they are not
//!     16     8  identity of the database
//!     24     8  number of the file
//!     32     8  timestamp after which its commits begin
//!     40     8  time at which it was created, in milliseconds since 1970
//!     48     8  bytes of changes that are kept at least
//!     56     8  time in milliseconds for which changes are kept at least
//!     64     8  offset in the file before it at which the commits of that file end; 0: there was none
//!     72     8  XXH3-64 of the bytes from 0 to 72
//! ```
//!
//! Records follow. Each begins at a multiple of 8 bytes. Its body has the operations of one commit, in the form of a
//! log record's body ([`record`](super::record)), or the names of the keyspaces at the beginning of the file, as
//! operations that create them.
//!
//! ```text
//! RECORD HEADER
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  XXH3-64 of the bytes from 8 to the end of the body, with a seed: see [`record_seed`]
//!      8     4  "dChg"
//!     12     4  kind. 1: the names of keyspaces; 2: a commit; in archive files also 3: a part of a commit; 4: the end
//!     16     8  timestamp
//!     24     8  time of the commit, in milliseconds since 1970
//!     32     4  bytes of the body, which follows this header and is padded with zeros to a multiple of 8
//!     36     4  zero
//! ```

use super::{DatabaseId, Timestamp, checksum, get_u32, get_u64, put_u32, put_u64};

pub(super) const MAGIC_OFFSET: usize = 0;
pub(super) const VERSION_OFFSET: usize = 8;
pub(super) const OLD_VALUES_OFFSET: usize = 12;
pub(super) const DATABASE_OFFSET: usize = 16;
pub(super) const NUMBER_OFFSET: usize = 24;
pub(super) const AFTER_OFFSET: usize = 32;
pub(super) const TIME_OFFSET: usize = 40;
pub(super) const KEPT_BYTES_OFFSET: usize = 48;
pub(super) const KEPT_TIME_OFFSET: usize = 56;
pub(super) const PREVIOUS_END_OFFSET: usize = 64;
pub(super) const HEADER_CHECKSUM_OFFSET: usize = 72;
/// The length of a file's header. The rest of its block is zero.
pub(super) const FILE_HEADER_BYTES: usize = 80;

pub(super) const CHECKSUM_OFFSET: usize = 0;
pub(super) const RECORD_MAGIC_OFFSET: usize = 8;
pub(super) const KIND_OFFSET: usize = 12;
pub(super) const TIMESTAMP_OFFSET: usize = 16;
pub(super) const RECORD_TIME_OFFSET: usize = 24;
pub(super) const BODY_BYTES_OFFSET: usize = 32;
pub(super) const RECORD_ZERO_OFFSET: usize = 36;
/// The length of a record's header.
pub(crate) const RECORD_HEADER_BYTES: usize = 40;

const _: () = {
    assert!(VERSION_OFFSET == MAGIC_OFFSET + 8);
    assert!(OLD_VALUES_OFFSET == VERSION_OFFSET + 4);
    assert!(DATABASE_OFFSET == OLD_VALUES_OFFSET + 4);
    assert!(NUMBER_OFFSET == DATABASE_OFFSET + 8);
    assert!(AFTER_OFFSET == NUMBER_OFFSET + 8);
    assert!(TIME_OFFSET == AFTER_OFFSET + 8);
    assert!(KEPT_BYTES_OFFSET == TIME_OFFSET + 8);
    assert!(KEPT_TIME_OFFSET == KEPT_BYTES_OFFSET + 8);
    assert!(PREVIOUS_END_OFFSET == KEPT_TIME_OFFSET + 8);
    assert!(HEADER_CHECKSUM_OFFSET == PREVIOUS_END_OFFSET + 8);
    assert!(FILE_HEADER_BYTES == HEADER_CHECKSUM_OFFSET + 8);
    assert!(FILE_HEADER_BYTES <= 512, "a header must fit the unit that a device writes whole");
    assert!(RECORD_MAGIC_OFFSET == CHECKSUM_OFFSET + 8);
    assert!(KIND_OFFSET == RECORD_MAGIC_OFFSET + 4);
    assert!(TIMESTAMP_OFFSET == KIND_OFFSET + 4);
    assert!(RECORD_TIME_OFFSET == TIMESTAMP_OFFSET + 8);
    assert!(BODY_BYTES_OFFSET == RECORD_TIME_OFFSET + 8);
    assert!(RECORD_ZERO_OFFSET == BODY_BYTES_OFFSET + 4);
    assert!(RECORD_HEADER_BYTES == RECORD_ZERO_OFFSET + 4);
    assert!(RECORD_HEADER_BYTES.is_multiple_of(RECORD_ALIGNMENT_BYTES));
};

const MAGIC: u64 = u64::from_le_bytes(*b"DRUMCHG\n");
const VERSION: u32 = 1;
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"dChg");

/// Records begin at multiples of this many bytes.
pub(crate) const RECORD_ALIGNMENT_BYTES: usize = 8;

/// The header of a change file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileHeader {
    pub(crate) database: DatabaseId,
    pub(crate) number: u64,
    /// The commits of the file begin after this timestamp.
    pub(crate) after: Timestamp,
    pub(crate) time_ms: u64,
    /// The retention of the opening that created the file.
    pub(crate) kept_bytes: u64,
    pub(crate) kept_ms: u64,
    pub(crate) old_values: bool,
    /// The offset in the file before this one at which the commit with the timestamp `after` ends. The records that
    /// follow there are superseded. 0 if there was no file.
    pub(crate) previous_end: u64,
}

impl FileHeader {
    /// Writes the header to the start of `block`, and fills the rest with zeros.
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        put_u64(block, MAGIC_OFFSET, MAGIC);
        put_u32(block, VERSION_OFFSET, VERSION);
        put_u32(block, OLD_VALUES_OFFSET, u32::from(self.old_values));
        put_u64(block, DATABASE_OFFSET, self.database.0);
        put_u64(block, NUMBER_OFFSET, self.number);
        put_u64(block, AFTER_OFFSET, self.after.0);
        put_u64(block, TIME_OFFSET, self.time_ms);
        put_u64(block, KEPT_BYTES_OFFSET, self.kept_bytes);
        put_u64(block, KEPT_TIME_OFFSET, self.kept_ms);
        put_u64(block, PREVIOUS_END_OFFSET, self.previous_end);
        let sum = checksum(&block[..HEADER_CHECKSUM_OFFSET], 0);
        put_u64(block, HEADER_CHECKSUM_OFFSET, sum);
    }

    /// Decodes the header at the start of `block`. Returns the reason if it is none.
    pub(crate) fn decode(block: &[u8]) -> Result<FileHeader, String> {
        let is_whole = block.len() >= FILE_HEADER_BYTES
            && get_u64(block, MAGIC_OFFSET) == MAGIC
            && checksum(&block[..HEADER_CHECKSUM_OFFSET], 0) == get_u64(block, HEADER_CHECKSUM_OFFSET);
        if !is_whole {
            return Err("it does not verify as the header of a change file".into());
        }
        let version = get_u32(block, VERSION_OFFSET);
        if version != VERSION {
            return Err(format!("it has version {version}; this Drumlin reads version {VERSION}"));
        }
        Ok(FileHeader {
            database: DatabaseId(get_u64(block, DATABASE_OFFSET)),
            number: get_u64(block, NUMBER_OFFSET),
            after: Timestamp(get_u64(block, AFTER_OFFSET)),
            time_ms: get_u64(block, TIME_OFFSET),
            kept_bytes: get_u64(block, KEPT_BYTES_OFFSET),
            kept_ms: get_u64(block, KEPT_TIME_OFFSET),
            old_values: get_u32(block, OLD_VALUES_OFFSET) != 0,
            previous_end: get_u64(block, PREVIOUS_END_OFFSET),
        })
    }

    /// Returns `true` if a block that is no header may be the beginning of one: it is zeros, or begins like a header of
    /// this version.
    pub(crate) fn is_begun(block: &[u8]) -> bool {
        block.iter().all(|&byte| byte == 0)
            || get_u64(block, MAGIC_OFFSET) == MAGIC && get_u32(block, VERSION_OFFSET) == VERSION
    }

    /// Returns the base of the seeds of all records in the file.
    pub(crate) fn seed(&self) -> u64 {
        let mut identity = [0; 16];
        put_u64(&mut identity, 0, self.database.0);
        put_u64(&mut identity, 8, self.number);
        checksum(&identity, 0)
    }
}

/// Returns the seed for the checksum of a record that begins at `offset` in a file with this base of seeds. So a copy
/// of a record in another place, or in another record's body, never verifies.
fn record_seed(file_seed: u64, offset: u64) -> u64 {
    file_seed.wrapping_add(offset)
}

/// The contents of a record in a change file or an archive file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordKind {
    /// The names of keyspaces. Only in change files.
    Names = 1,
    /// A commit, or the last part of one.
    Commit = 2,
    /// The beginning of a commit, or the next part of it. Another part follows. Only in archive files.
    Part = 3,
    /// The end of an archive file.
    End = 4,
}

/// The header of a record in a change file or an [archive file](super::archive).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChangeRecord {
    pub(crate) kind: RecordKind,
    pub(crate) timestamp: Timestamp,
    pub(crate) time_ms: u64,
    pub(crate) body_bytes: u32,
}

impl ChangeRecord {
    /// Returns the bytes of the record with its padding.
    pub(crate) fn bytes(&self) -> usize {
        (RECORD_HEADER_BYTES + self.body_bytes as usize).next_multiple_of(RECORD_ALIGNMENT_BYTES)
    }

    /// Completes a record whose body begins [`RECORD_HEADER_BYTES`] after the start of `record`: writes the header, and
    /// appends the padding. The record will begin at `offset` in the file.
    pub(crate) fn seal(&self, file_seed: u64, offset: u64, record: &mut Vec<u8>) {
        let end = RECORD_HEADER_BYTES + self.body_bytes as usize;
        assert!(record.len() == end, "the body of a record has another length than its header says");
        assert!(offset.is_multiple_of(RECORD_ALIGNMENT_BYTES as u64), "a record begins at {offset}");
        put_u32(record, RECORD_MAGIC_OFFSET, RECORD_MAGIC);
        put_u32(record, KIND_OFFSET, self.kind as u32);
        put_u64(record, TIMESTAMP_OFFSET, self.timestamp.0);
        put_u64(record, RECORD_TIME_OFFSET, self.time_ms);
        put_u32(record, BODY_BYTES_OFFSET, self.body_bytes);
        put_u32(record, RECORD_ZERO_OFFSET, 0);
        let sum = checksum(&record[RECORD_MAGIC_OFFSET..], record_seed(file_seed, offset));
        put_u64(record, CHECKSUM_OFFSET, sum);
        record.resize(self.bytes(), 0);
    }

    /// Reads the header at the start of `bytes`, which is not verified yet. Returns `None` if there is none.
    pub(crate) fn peek(bytes: &[u8]) -> Option<ChangeRecord> {
        if bytes.len() < RECORD_HEADER_BYTES || get_u32(bytes, RECORD_MAGIC_OFFSET) != RECORD_MAGIC {
            return None;
        }
        let kind = match get_u32(bytes, KIND_OFFSET) {
            1 => RecordKind::Names,
            2 => RecordKind::Commit,
            3 => RecordKind::Part,
            4 => RecordKind::End,
            _ => return None,
        };
        Some(ChangeRecord {
            kind,
            timestamp: Timestamp(get_u64(bytes, TIMESTAMP_OFFSET)),
            time_ms: get_u64(bytes, RECORD_TIME_OFFSET),
            body_bytes: get_u32(bytes, BODY_BYTES_OFFSET),
        })
    }

    /// Returns the body of the record at the start of `bytes`, which was read from `offset`. Returns `None` unless the
    /// record verifies.
    pub(crate) fn verify<'b>(&self, file_seed: u64, offset: u64, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let record = bytes.get(..RECORD_HEADER_BYTES + self.body_bytes as usize)?;
        let sum = checksum(&record[RECORD_MAGIC_OFFSET..], record_seed(file_seed, offset));
        (sum == get_u64(record, CHECKSUM_OFFSET)).then(|| &record[RECORD_HEADER_BYTES..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> FileHeader {
        FileHeader {
            database: DatabaseId(0x1122_3344),
            number: 7,
            after: Timestamp(99),
            time_ms: 1 << 40,
            kept_bytes: 1 << 30,
            kept_ms: 1000,
            old_values: true,
            previous_end: 12_344,
        }
    }

    /// A file's header survives encoding, and any flipped bit is detected.
    #[test]
    fn a_file_header_comes_back() {
        let mut block = [0; 4096];
        assert!(FileHeader::decode(&block).is_err());
        file().encode(&mut block);
        assert_eq!(FileHeader::decode(&block), Ok(file()));
        for bit in 0..FILE_HEADER_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// A record survives encoding, verifies only in its place, and any flipped bit is detected.
    #[test]
    fn a_record_comes_back() {
        let header = ChangeRecord { kind: RecordKind::Commit, timestamp: Timestamp(100), time_ms: 5, body_bytes: 11 };
        let mut bytes = vec![0; RECORD_HEADER_BYTES];
        bytes.extend_from_slice(b"eleven byte");
        header.seal(file().seed(), 4096, &mut bytes);
        assert_eq!((bytes.len(), header.bytes()), (56, 56));
        let read = |bytes: &[u8], file: &FileHeader, offset| {
            ChangeRecord::peek(bytes).is_some_and(|found| found.verify(file.seed(), offset, bytes).is_some())
        };
        assert_eq!(ChangeRecord::peek(&bytes), Some(header));
        assert_eq!(header.verify(file().seed(), 4096, &bytes), Some(&b"eleven byte"[..]));
        assert!(!read(&bytes, &file(), 4104));
        assert!(!read(&bytes, &FileHeader { number: 8, ..file() }, 4096));
        for bit in 0..(RECORD_HEADER_BYTES + 11) * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!read(&bytes, &file(), 4096), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for end in 0..RECORD_HEADER_BYTES + 11 {
            assert!(!read(&bytes[..end], &file(), 4096));
        }
    }
}
