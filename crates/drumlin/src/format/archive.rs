//! Archive files: the durable commits of a database with everything that is needed to make them again.
//!
//! An archive file begins with a block that is its header. Only the first 80 bytes of the block are used.
//!
//! ```text
//! FILE HEADER
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  "DRUMARC" and a newline
//!      8     4  version of archive files
//!     12     4  zero
//!     16     8  identity of the database
//!     24     8  chain: the time at which it was begun, in milliseconds since 1970
//!     32     8  number of the file in its chain, from 1
//!     40     8  timestamp after which its commits begin
//!     48     8  time of the commit with this timestamp, in milliseconds since 1970, or zero if it is not archived
//!     56     8  bytes of files that may wait for their delivery
//!     64     8  timestamp after which the chain begins
//!     72     8  XXH3-64 of the bytes from 0 to 72
//! ```
//!
//! Records follow, whose headers are those of [change files](super::changes). A commit is one record of kind 2, with
//! the operations of the commit, or several records with the same timestamp, the last of which has kind 2 and the
//! others kind 3. The last record has kind 4. Its timestamp and time are those of the last commit, and its body is the
//! number of commits (8 bytes). A file without it was not finished.

use super::{DatabaseId, Timestamp, checksum, get_u32, get_u64, put_u32, put_u64};

pub(super) const MAGIC_OFFSET: usize = 0;
pub(super) const VERSION_OFFSET: usize = 8;
pub(super) const ZERO_OFFSET: usize = 12;
pub(super) const DATABASE_OFFSET: usize = 16;
pub(super) const CHAIN_OFFSET: usize = 24;
pub(super) const NUMBER_OFFSET: usize = 32;
pub(super) const AFTER_OFFSET: usize = 40;
pub(super) const TIME_OFFSET: usize = 48;
pub(super) const LIMIT_OFFSET: usize = 56;
pub(super) const FROM_OFFSET: usize = 64;
pub(super) const HEADER_CHECKSUM_OFFSET: usize = 72;
/// The length of a file's header. The rest of its block is zero.
pub(super) const FILE_HEADER_BYTES: usize = 80;

const _: () = {
    assert!(VERSION_OFFSET == MAGIC_OFFSET + 8);
    assert!(ZERO_OFFSET == VERSION_OFFSET + 4);
    assert!(DATABASE_OFFSET == ZERO_OFFSET + 4);
    assert!(CHAIN_OFFSET == DATABASE_OFFSET + 8);
    assert!(NUMBER_OFFSET == CHAIN_OFFSET + 8);
    assert!(AFTER_OFFSET == NUMBER_OFFSET + 8);
    assert!(TIME_OFFSET == AFTER_OFFSET + 8);
    assert!(LIMIT_OFFSET == TIME_OFFSET + 8);
    assert!(FROM_OFFSET == LIMIT_OFFSET + 8);
    assert!(HEADER_CHECKSUM_OFFSET == FROM_OFFSET + 8);
    assert!(FILE_HEADER_BYTES == HEADER_CHECKSUM_OFFSET + 8);
    assert!(FILE_HEADER_BYTES <= 512, "a header must fit the unit that a device writes whole");
};

const MAGIC: u64 = u64::from_le_bytes(*b"DRUMARC\n");
const VERSION: u32 = 1;

/// A sequence of archive files without a gap, named by the time in milliseconds at which it was begun.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ChainId(pub(crate) u64);

/// The header of an archive file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArchiveHeader {
    pub(crate) database: DatabaseId,
    pub(crate) chain: ChainId,
    pub(crate) number: u64,
    /// The commits of the file begin after this timestamp.
    pub(crate) after: Timestamp,
    /// The time of the commit before the file's first one, or 0 if that commit is in no file.
    pub(crate) time_ms: u64,
    /// The limit of the opening that created the file.
    pub(crate) limit_bytes: u64,
    /// The commits of the chain begin after this timestamp.
    pub(crate) from: Timestamp,
}

impl ArchiveHeader {
    /// Returns the name of the file. Names sort like the files they belong to.
    pub(crate) fn name(&self) -> String {
        format!("{:013}-{:08}{SUFFIX}", self.chain.0, self.number)
    }

    /// Returns the chain and the number that a file's name contains.
    pub(crate) fn parse_name(name: &str) -> Option<(ChainId, u64)> {
        let (chain, number) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        Some((ChainId(digits(chain)?), digits(number)?))
    }

    /// Fills a block with the header and zeros.
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        put_u64(block, MAGIC_OFFSET, MAGIC);
        put_u32(block, VERSION_OFFSET, VERSION);
        put_u64(block, DATABASE_OFFSET, self.database.0);
        put_u64(block, CHAIN_OFFSET, self.chain.0);
        put_u64(block, NUMBER_OFFSET, self.number);
        put_u64(block, AFTER_OFFSET, self.after.0);
        put_u64(block, TIME_OFFSET, self.time_ms);
        put_u64(block, LIMIT_OFFSET, self.limit_bytes);
        put_u64(block, FROM_OFFSET, self.from.0);
        let sum = checksum(&block[..HEADER_CHECKSUM_OFFSET], 0);
        put_u64(block, HEADER_CHECKSUM_OFFSET, sum);
    }

    /// Decodes the header at the start of `block`. Returns the reason if it is none.
    pub(crate) fn decode(block: &[u8]) -> Result<ArchiveHeader, String> {
        let is_whole = block.len() >= FILE_HEADER_BYTES
            && get_u64(block, MAGIC_OFFSET) == MAGIC
            && checksum(&block[..HEADER_CHECKSUM_OFFSET], 0) == get_u64(block, HEADER_CHECKSUM_OFFSET);
        if !is_whole {
            return Err("it does not verify as the header of an archive file".into());
        }
        let version = get_u32(block, VERSION_OFFSET);
        if version != VERSION {
            return Err(format!("it has version {version}; this Drumlin reads version {VERSION}"));
        }
        Ok(ArchiveHeader {
            database: DatabaseId(get_u64(block, DATABASE_OFFSET)),
            chain: ChainId(get_u64(block, CHAIN_OFFSET)),
            number: get_u64(block, NUMBER_OFFSET),
            after: Timestamp(get_u64(block, AFTER_OFFSET)),
            time_ms: get_u64(block, TIME_OFFSET),
            limit_bytes: get_u64(block, LIMIT_OFFSET),
            from: Timestamp(get_u64(block, FROM_OFFSET)),
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
        let mut identity = [0; 24];
        put_u64(&mut identity, 0, self.database.0);
        put_u64(&mut identity, 8, self.chain.0);
        put_u64(&mut identity, 16, self.number);
        checksum(&identity, 0)
    }
}

/// The end of a file's name.
const SUFFIX: &str = ".commits";

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> ArchiveHeader {
        ArchiveHeader {
            database: DatabaseId(77),
            chain: ChainId(1_764_291_600_000),
            number: 12,
            after: Timestamp(99),
            time_ms: 1_764_291_700_000,
            limit_bytes: 1 << 30,
            from: Timestamp(5),
        }
    }

    /// A header survives encoding, and any flipped bit is detected.
    #[test]
    fn an_archive_header_comes_back() {
        let mut block = [0; 4096];
        assert!(ArchiveHeader::decode(&block).is_err() && ArchiveHeader::is_begun(&block));
        header().encode(&mut block);
        assert_eq!(ArchiveHeader::decode(&block), Ok(header()));
        for bit in 0..FILE_HEADER_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(ArchiveHeader::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// A name has the chain and the number, and names sort by both.
    #[test]
    fn names_have_their_place_in_a_chain() {
        let first = header();
        assert_eq!(ArchiveHeader::parse_name(&first.name()), Some((first.chain, 12)));
        assert!(first.name() < ArchiveHeader { number: 101, ..first }.name());
        let later = ArchiveHeader { chain: ChainId(first.chain.0 + 1), ..first };
        assert!(ArchiveHeader { number: 101, ..first }.name() < later.name());
        for other in ["12-7", "12-.commits", "a-1.commits", "+1-2.commits", "12.commits"] {
            assert_eq!(ArchiveHeader::parse_name(other), None, "{other}");
        }
    }
}
