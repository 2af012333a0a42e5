//! Backups: sequences of parts, in files of their own or one after the other in a stream.
//!
//! Integers are little-endian.
//!
//! ```text
//! part:      "DRMLPART"   format (4)   number (4)   identity of the backup (8)   length of the body (8)   XXH3 of these fields and the body (8)   body: records
//! record:    kind (1)   fields
//! 1 head:    identity of the database (8)   identity of the snapshot (8)   its timestamp (8)   time at which it was taken, in milliseconds since 1970 (8)   identity of the base (8), 0 in a full backup   timestamp of the base (8)   segment size (8)   number of pages whose extents are in the order of the disk (8)   length of the catalogue (8)   catalogue, like that of a kept snapshot, without chunks and segments
//! 2 chunk:   keyspace (4)   chunk of its page table (4)   one bit for each of its pages, set if the page is in use (128)
//! 3 extent:  keyspace (4)   page (4)   length (4)   extent
//! 4 end:     number of parts (4)   number of extents (8)   XXH3 of the checksums of all other parts (8)
//! ```
//!
//! The head is the only record of the first part, and the end that of the last. An extent comes after the chunk of its
//! page. In an incremental backup, a chunk that has no record is as in the base, and so is a page in use that has no
//! extent.

use super::extent::TABLE_PAGES;
use super::{DatabaseId, KeyspaceId, PageId, Timestamp, checksum, get_u32, get_u64, put_u32, put_u64};

/// The format of backups that this version writes, and the only one that it reads.
pub(crate) const BACKUP_FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"DRMLPART";
const FORMAT_OFFSET: usize = 8;
const NUMBER_OFFSET: usize = 12;
const BACKUP_OFFSET: usize = 16;
const BODY_BYTES_OFFSET: usize = 24;
const CHECKSUM_OFFSET: usize = 32;

/// The length of a part's header.
pub(crate) const PART_HEADER_BYTES: usize = 40;
/// The length of a chunk's bits.
pub(crate) const CHUNK_BITS_BYTES: usize = TABLE_PAGES / 8;
/// The length of a chunk's record, and of an extent's record without the extent.
pub(crate) const CHUNK_RECORD_BYTES: usize = 9 + CHUNK_BITS_BYTES;
pub(crate) const EXTENT_RECORD_BYTES: usize = 13;
const HEAD_RECORD_BYTES: usize = 73;
const END_RECORD_BYTES: usize = 21;

/// Identifies a kept snapshot, in any database. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SnapshotId(pub(crate) u64);

/// Identifies a backup: all parts of one contain it. Two backups of the same snapshot since the same base have the same
/// identity, and the same parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BackupId(pub(crate) u64);

/// A snapshot as a backup names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SnapshotRef {
    pub(crate) id: SnapshotId,
    pub(crate) timestamp: Timestamp,
}

/// The description at the beginning of a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) database: DatabaseId,
    pub(crate) snapshot: SnapshotRef,
    pub(crate) taken_at_ms: u64,
    /// `None` in a full backup.
    pub(crate) base: Option<SnapshotRef>,
    pub(crate) segment_bytes: u64,
    /// The number of pages whose extents are sorted together. It decides which extents are in which part.
    pub(crate) window_pages: u64,
    /// The encoded catalogue.
    pub(crate) catalogue: Vec<u8>,
}

/// The header of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartHeader {
    pub(crate) number: u32,
    pub(crate) backup: BackupId,
    pub(crate) body_bytes: u64,
    checksum: u64,
}

/// The record at the end of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) part_count: u32,
    pub(crate) extent_count: u64,
    pub(crate) digest: u64,
}

/// A record of a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BackupRecord<'b> {
    Head(Head),
    Chunk { keyspace: KeyspaceId, chunk: u32, in_use: &'b [u8] },
    Extent { keyspace: KeyspaceId, page: PageId, extent: &'b [u8] },
    End(End),
}

impl Head {
    /// Returns the identity of the backup.
    pub(crate) fn backup(&self) -> BackupId {
        let base = self.base.map_or(0, |base| base.id.0);
        let ids = [self.database.0, self.snapshot.id.0, base].map(u64::to_le_bytes).concat();
        BackupId(checksum(&ids, u64::from(BACKUP_FORMAT)))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let base = self.base.unwrap_or(SnapshotRef { id: SnapshotId(0), timestamp: Timestamp(0) });
        out.push(1);
        for field in [
            self.database.0,
            self.snapshot.id.0,
            self.snapshot.timestamp.0,
            self.taken_at_ms,
            base.id.0,
            base.timestamp.0,
            self.segment_bytes,
            self.window_pages,
            self.catalogue.len() as u64,
        ] {
            out.extend(field.to_le_bytes());
        }
        out.extend(&self.catalogue);
    }

    /// Decodes the head in the body of a backup's first part.
    pub(crate) fn decode(body: &[u8]) -> Option<Head> {
        match records(body).next() {
            Some(Ok(BackupRecord::Head(head))) => Some(head),
            _ => None,
        }
    }
}

pub(crate) fn encode_chunk(keyspace: KeyspaceId, chunk: u32, in_use: &[u8; CHUNK_BITS_BYTES], out: &mut Vec<u8>) {
    out.push(2);
    out.extend(keyspace.0.to_le_bytes());
    out.extend(chunk.to_le_bytes());
    out.extend(in_use);
}

/// Appends the record of an extent of this length, whose bytes are zero until the caller fills them in. Returns their
/// place in `out`.
pub(crate) fn encode_extent(
    keyspace: KeyspaceId,
    page: PageId,
    bytes: usize,
    out: &mut Vec<u8>,
) -> std::ops::Range<usize> {
    out.push(3);
    out.extend(keyspace.0.to_le_bytes());
    out.extend(page.0.to_le_bytes());
    out.extend((bytes as u32).to_le_bytes());
    let start = out.len();
    out.resize(start + bytes, 0);
    start..out.len()
}

impl End {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(4);
        out.extend(self.part_count.to_le_bytes());
        out.extend(self.extent_count.to_le_bytes());
        out.extend(self.digest.to_le_bytes());
    }
}

/// Returns a buffer for a part: room for its header.
pub(crate) fn new_part() -> Vec<u8> {
    vec![0; PART_HEADER_BYTES]
}

/// Fills in the header of a part. Returns the part's checksum.
pub(crate) fn seal_part(part: &mut [u8], number: u32, backup: BackupId) -> u64 {
    let body_bytes = (part.len() - PART_HEADER_BYTES) as u64;
    part[..MAGIC.len()].copy_from_slice(&MAGIC);
    put_u32(part, FORMAT_OFFSET, BACKUP_FORMAT);
    put_u32(part, NUMBER_OFFSET, number);
    put_u64(part, BACKUP_OFFSET, backup.0);
    put_u64(part, BODY_BYTES_OFFSET, body_bytes);
    let sum = part_checksum(&part[..PART_HEADER_BYTES], &part[PART_HEADER_BYTES..]);
    put_u64(part, CHECKSUM_OFFSET, sum);
    sum
}

fn part_checksum(header: &[u8], body: &[u8]) -> u64 {
    checksum(body, checksum(&header[..CHECKSUM_OFFSET], 0))
}

/// The reason why bytes are not a part of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartError {
    NoPart,
    Format(u32),
    Checksum,
    Malformed,
}

impl std::fmt::Display for PartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PartError::NoPart => f.write_str("it is not a part of a backup"),
            PartError::Format(found) => {
                write!(f, "it has format {found}, and this version reads format {BACKUP_FORMAT}")
            }
            PartError::Checksum => f.write_str("its checksum does not match"),
            PartError::Malformed => f.write_str("its checksum is right, but its records make no sense"),
        }
    }
}

impl PartHeader {
    pub(crate) fn decode(header: &[u8; PART_HEADER_BYTES]) -> Result<PartHeader, PartError> {
        if !header.starts_with(&MAGIC) {
            return Err(PartError::NoPart);
        }
        let format = get_u32(header, FORMAT_OFFSET);
        if format != BACKUP_FORMAT {
            return Err(PartError::Format(format));
        }
        Ok(PartHeader {
            number: get_u32(header, NUMBER_OFFSET),
            backup: BackupId(get_u64(header, BACKUP_OFFSET)),
            body_bytes: get_u64(header, BODY_BYTES_OFFSET),
            checksum: get_u64(header, CHECKSUM_OFFSET),
        })
    }

    /// Verifies a part with this header. Returns its checksum.
    pub(crate) fn verify(&self, header: &[u8; PART_HEADER_BYTES], body: &[u8]) -> Result<u64, PartError> {
        let is_whole = body.len() as u64 == self.body_bytes && part_checksum(header, body) == self.checksum;
        if is_whole { Ok(self.checksum) } else { Err(PartError::Checksum) }
    }
}

/// Decodes the records of a part's body.
pub(crate) fn records(mut body: &[u8]) -> impl Iterator<Item = Result<BackupRecord<'_>, PartError>> {
    std::iter::from_fn(move || {
        if body.is_empty() {
            return None;
        }
        let Some((record, rest)) = decode_record(body) else {
            body = &[];
            return Some(Err(PartError::Malformed));
        };
        body = rest;
        Some(Ok(record))
    })
}

fn decode_record(body: &[u8]) -> Option<(BackupRecord<'_>, &[u8])> {
    let keyspace = || KeyspaceId(get_u32(body, 1));
    match body[0] {
        1 if body.len() >= HEAD_RECORD_BYTES => {
            let field = |index: usize| get_u64(body, 1 + 8 * index);
            let snapshot = |index: usize| SnapshotRef {
                id: SnapshotId(field(index)),
                timestamp: Timestamp(field(if index == 1 { 2 } else { 5 })),
            };
            let (catalogue, rest) = body[HEAD_RECORD_BYTES..].split_at_checked(usize::try_from(field(8)).ok()?)?;
            let head = Head {
                database: DatabaseId(field(0)),
                snapshot: snapshot(1),
                taken_at_ms: field(3),
                base: (field(4) != 0).then(|| snapshot(4)),
                segment_bytes: field(6),
                window_pages: field(7),
                catalogue: catalogue.to_vec(),
            };
            Some((BackupRecord::Head(head), rest))
        }
        2 if body.len() >= CHUNK_RECORD_BYTES => {
            let (record, rest) = body.split_at(CHUNK_RECORD_BYTES);
            let chunk = get_u32(record, 5);
            let in_use = &record[9..];
            (chunk <= u32::MAX / TABLE_PAGES as u32)
                .then_some((BackupRecord::Chunk { keyspace: keyspace(), chunk, in_use }, rest))
        }
        3 if body.len() >= EXTENT_RECORD_BYTES => {
            let (extent, rest) = body[EXTENT_RECORD_BYTES..].split_at_checked(get_u32(body, 9) as usize)?;
            Some((BackupRecord::Extent { keyspace: keyspace(), page: PageId(get_u32(body, 5)), extent }, rest))
        }
        4 if body.len() >= END_RECORD_BYTES => {
            let end = End { part_count: get_u32(body, 1), extent_count: get_u64(body, 5), digest: get_u64(body, 13) };
            Some((BackupRecord::End(end), &body[END_RECORD_BYTES..]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part survives its bytes. A part that was cut or changed anywhere is refused without a panic.
    #[test]
    fn a_part_survives_its_bytes() {
        let snapshot = |id| SnapshotRef { id: SnapshotId(id), timestamp: Timestamp(10 * id) };
        let head = Head {
            database: DatabaseId(77),
            snapshot: snapshot(5),
            taken_at_ms: 1_700_000_000_000,
            base: Some(snapshot(4)),
            segment_bytes: 1 << 20,
            window_pages: 4096,
            catalogue: b"catalogue".to_vec(),
        };
        let mut part = new_part();
        head.encode(&mut part);
        let mut in_use = [0; CHUNK_BITS_BYTES];
        in_use[3] = 9;
        encode_chunk(KeyspaceId(3), 8, &in_use, &mut part);
        let place = encode_extent(KeyspaceId(3), PageId(8200), 100, &mut part);
        part[place].fill(7);
        let end = End { part_count: 1, extent_count: 1, digest: 99 };
        end.encode(&mut part);
        let sum = seal_part(&mut part, 6, head.backup());
        let opened = |part: &[u8]| {
            let header: &[u8; PART_HEADER_BYTES] = part.first_chunk().ok_or(PartError::NoPart)?;
            let decoded = PartHeader::decode(header)?;
            decoded.verify(header, &part[PART_HEADER_BYTES..]).map(|sum| (decoded, sum))
        };
        let (header, found) = opened(&part).unwrap();
        assert_eq!((header.number, header.backup, found), (6, head.backup(), sum));
        let expected = [
            BackupRecord::Head(head),
            BackupRecord::Chunk { keyspace: KeyspaceId(3), chunk: 8, in_use: &in_use },
            BackupRecord::Extent { keyspace: KeyspaceId(3), page: PageId(8200), extent: &[7; 100] },
            BackupRecord::End(end),
        ];
        assert!(records(&part[PART_HEADER_BYTES..]).map(Result::unwrap).eq(expected));
        for at in 0..part.len() {
            assert!(opened(&part[..at]).is_err(), "cut at {at}");
            let mut flipped = part.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(opened(&flipped).is_err(), "flipped at {at}");
            let _ = records(&part[PART_HEADER_BYTES.max(at)..]).count();
        }
    }
}
