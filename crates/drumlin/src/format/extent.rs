//! The header at the beginning of every extent on disk, and the checksum and compression of extents.
//!
//! A page in memory begins with the same 40 bytes. So a page that does not compress is stored unchanged after the
//! header.
//!
//! ```text
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  XXH3-64 of the bytes from 8 to the stored length
//!      8     8  use of the segment that it was written in
//!     16     4  keyspace
//!     20     4  page; for a chunk of a large value, its index within the value
//!     24     4  stored length in bytes, including this header
//!     28     4  decompressed length in bytes, including this header
//!     32     1  kind
//!     33     1  codec: 0 not compressed, 1 lz4 (block format) after the header
//!     34     6  database: the low 48 bits of its identity
//! ```
//!
//! Use and database are the extent's *origin*. It reveals two kinds of failed writes. A lost write leaves an older
//! extent in place, which may be intact and belong to the same page. A misdirected write may leave an extent of a
//! different database.

use lz4_flex::block::{CompressTable, compress_into_with_table};

use super::{DatabaseId, ExtentAddress, KeyspaceId, PageId, SegmentUse, checksum, get_u32, get_u64, put_u32, put_u64};

pub(crate) const CHECKSUM_OFFSET: usize = 0;
pub(crate) const USE_OFFSET: usize = 8;
pub(crate) const KEYSPACE_OFFSET: usize = 16;
pub(crate) const PAGE_OFFSET: usize = 20;
pub(crate) const STORED_BYTES_OFFSET: usize = 24;
pub(crate) const RAW_BYTES_OFFSET: usize = 28;
pub(crate) const KIND_OFFSET: usize = 32;
pub(crate) const CODEC_OFFSET: usize = 33;
pub(crate) const DATABASE_OFFSET: usize = 34;
/// The length of an extent's header, and of a page's.
pub(crate) const HEADER_BYTES: usize = 40;
/// The offset of the value's bytes in a chunk, after the header and the value id.
pub(crate) const VALUE_BYTES_OFFSET: usize = HEADER_BYTES + 8;
/// The number of addresses in an extent of kind `Table`, one per page, 8 bytes each.
pub(crate) const TABLE_PAGES: usize = 1024;

/// The number of entries in an extent of kind `Segments`, 8 bytes each.
pub(crate) const SEGMENT_TABLE_ENTRIES: usize = 512;

const _: () = {
    assert!(USE_OFFSET == CHECKSUM_OFFSET + 8);
    assert!(KEYSPACE_OFFSET == USE_OFFSET + 8);
    assert!(PAGE_OFFSET == KEYSPACE_OFFSET + 4);
    assert!(STORED_BYTES_OFFSET == PAGE_OFFSET + 4);
    assert!(RAW_BYTES_OFFSET == STORED_BYTES_OFFSET + 4);
    assert!(KIND_OFFSET == RAW_BYTES_OFFSET + 4);
    assert!(CODEC_OFFSET == KIND_OFFSET + 1);
    assert!(DATABASE_OFFSET == CODEC_OFFSET + 1);
    assert!(HEADER_BYTES == DATABASE_OFFSET + 6);
};

/// The content of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Leaf = 1,
    Inner = 2,
    /// A chunk of a value that has extents of its own.
    Value = 3,
    /// Part of a page table's base image.
    Table = 4,
    /// Part of a checkpoint's catalogue.
    Catalogue = 5,
    /// Page-table changes in an epoch.
    Summary = 6,
    /// Part of the table of segments.
    Segments = 7,
    /// Part of the catalogue of a kept snapshot.
    Kept = 8,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Leaf,
            2 => Kind::Inner,
            3 => Kind::Value,
            4 => Kind::Table,
            5 => Kind::Catalogue,
            6 => Kind::Summary,
            7 => Kind::Segments,
            8 => Kind::Kept,
            _ => return None,
        })
    }
}

/// The identity of an extent. Readers check that the extent is the expected one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageKey {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) page: PageId,
}

/// The database and the segment use in which an extent was written. Readers check that both are as expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) database: DatabaseId,
    pub(crate) segment_use: SegmentUse,
}

/// The bits of a database's id that fit into an extent's header.
const DATABASE_MASK: u64 = (1 << 48) - 1;

/// The reason why an extent is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExtentError {
    Length,
    Checksum,
    PageKey(PageKey),
    Use(SegmentUse),
    Database,
    Kind,
    Codec,
}

impl std::fmt::Display for ExtentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ExtentError::Length => f.write_str("its lengths make no sense"),
            ExtentError::Checksum => f.write_str("its checksum does not match"),
            ExtentError::PageKey(key) => write!(f, "it belongs to keyspace {}, page {}", key.keyspace, key.page),
            ExtentError::Use(other) => write!(
                f,
                "it was written in use {:#x} of a segment, and not in the one that it should be from",
                other.0
            ),
            ExtentError::Database => f.write_str("it belongs to another database"),
            ExtentError::Kind => f.write_str("its kind is unknown or not the one expected"),
            ExtentError::Codec => f.write_str("it does not decompress"),
        }
    }
}

const CODEC_NONE: u8 = 0;
const CODEC_LZ4: u8 = 1;

/// Compression must save at least this fraction of a page, 1/8. Otherwise, it is not worth decompressing the page on
/// every read.
const COMPRESSION_GAIN_SHARE: usize = 8;

/// Returns the buffer size that is needed to encode a page of this size. It is larger than the stored size, even if the
/// page does not compress.
pub(crate) fn encoded_bytes_max(page_bytes: usize) -> usize {
    HEADER_BYTES + lz4_flex::block::get_maximum_output_size(page_bytes - HEADER_BYTES).max(page_bytes - HEADER_BYTES)
}

/// Encodes pages one after another in the same buffer, so that no new buffer has to be zeroed and freed for each page.
#[derive(Default)]
pub(crate) struct Encoder {
    table: CompressTable,
    buffer: Vec<u8>,
    stored_bytes: usize,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Encoder({} of {} bytes)", self.stored_bytes, self.buffer.len())
    }
}

impl Encoder {
    /// Encodes `page` as an extent. The page must begin with space for a header; its content there is ignored.
    /// Compresses the page if that saves at least an eighth. Once the extent's address has been assigned, the caller
    /// [seals](seal) the extent and pads it to the unit of addresses.
    pub(crate) fn encode(&mut self, page: &[u8], page_key: PageKey, kind: Kind) -> &[u8] {
        let bytes_max = encoded_bytes_max(page.len());
        if self.buffer.len() < bytes_max {
            self.buffer.resize(bytes_max, 0);
        }
        self.stored_bytes = encode_with(page, page_key, kind, &mut self.buffer, &mut self.table);
        self.encoded()
    }

    /// Returns the last extent that was encoded.
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.buffer[..self.stored_bytes]
    }

    /// Returns the size of the encoder's buffer, in bytes.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }
}

/// Like [`Encoder::encode`], but encodes to the beginning of `extent`, which must have [room](encoded_bytes_max) for
/// the page. Returns the stored length.
pub(crate) fn encode_into(page: &[u8], page_key: PageKey, kind: Kind, extent: &mut [u8]) -> usize {
    encode_with(page, page_key, kind, extent, &mut CompressTable::default())
}

fn encode_with(page: &[u8], page_key: PageKey, kind: Kind, extent: &mut [u8], table: &mut CompressTable) -> usize {
    assert!(page.len() > HEADER_BYTES && extent.len() >= encoded_bytes_max(page.len()));
    let body = &page[HEADER_BYTES..];
    let compressed = compress_into_with_table(body, &mut extent[HEADER_BYTES..], table).ok();
    let (codec, body_bytes) = match compressed {
        Some(bytes) if bytes + page.len() / COMPRESSION_GAIN_SHARE <= body.len() => (CODEC_LZ4, bytes),
        _ => {
            extent[HEADER_BYTES..page.len()].copy_from_slice(body);
            (CODEC_NONE, body.len())
        }
    };
    let stored = HEADER_BYTES + body_bytes;
    extent[..HEADER_BYTES].fill(0);
    put_u32(extent, KEYSPACE_OFFSET, page_key.keyspace.0);
    put_u32(extent, PAGE_OFFSET, page_key.page.0);
    put_u32(extent, STORED_BYTES_OFFSET, stored as u32);
    put_u32(extent, RAW_BYTES_OFFSET, page.len() as u32);
    extent[KIND_OFFSET] = kind as u8;
    extent[CODEC_OFFSET] = codec;
    stored
}

/// The header of a verified extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) page_key: PageKey,
    /// The origin, with only those bits of the database's id that fit into the header.
    pub(crate) origin: Origin,
    pub(crate) kind: Kind,
    pub(crate) stored_bytes: usize,
    pub(crate) raw_bytes: usize,
    codec: u8,
}

/// Verifies the checksum of the extent at the start of `bytes` and returns its header. Ignores bytes after the extent.
pub(crate) fn verify(bytes: &[u8]) -> Result<Header, ExtentError> {
    if bytes.len() < HEADER_BYTES {
        return Err(ExtentError::Length);
    }
    let stored_bytes = get_u32(bytes, STORED_BYTES_OFFSET) as usize;
    let raw_bytes = get_u32(bytes, RAW_BYTES_OFFSET) as usize;
    if stored_bytes < HEADER_BYTES || stored_bytes > bytes.len() || raw_bytes < HEADER_BYTES {
        return Err(ExtentError::Length);
    }
    if checksum(&bytes[USE_OFFSET..stored_bytes], 0) != get_u64(bytes, CHECKSUM_OFFSET) {
        return Err(ExtentError::Checksum);
    }
    Ok(Header {
        page_key: PageKey {
            keyspace: KeyspaceId(get_u32(bytes, KEYSPACE_OFFSET)),
            page: PageId(get_u32(bytes, PAGE_OFFSET)),
        },
        origin: Origin { database: database_of(bytes), segment_use: SegmentUse(get_u64(bytes, USE_OFFSET)) },
        kind: Kind::from_byte(bytes[KIND_OFFSET]).ok_or(ExtentError::Kind)?,
        stored_bytes,
        raw_bytes,
        codec: bytes[CODEC_OFFSET],
    })
}

/// Returns `true` if an extent may begin at the start of `bytes`: its lengths and its kind are possible, and it names
/// the database, if one is given. Much faster than [`verify`], for a search.
pub(crate) fn may_begin(bytes: &[u8], database: Option<DatabaseId>) -> bool {
    if bytes.len() < HEADER_BYTES {
        return false;
    }
    let is_length =
        |offset| (HEADER_BYTES..=ExtentAddress::EXTENT_BYTES_MAX as usize).contains(&(get_u32(bytes, offset) as usize));
    Kind::from_byte(bytes[KIND_OFFSET]).is_some()
        && bytes[CODEC_OFFSET] <= CODEC_LZ4
        && is_length(STORED_BYTES_OFFSET)
        && is_length(RAW_BYTES_OFFSET)
        && database.is_none_or(|database| database_of(bytes).0 == database.0 & DATABASE_MASK)
}

impl Header {
    /// Fails if the extent was written in another database or in another use of the segment.
    pub(crate) fn check(&self, expected: Origin) -> Result<(), ExtentError> {
        if self.origin.database.0 != expected.database.0 & DATABASE_MASK {
            return Err(ExtentError::Database);
        }
        if self.origin.segment_use != expected.segment_use {
            return Err(ExtentError::Use(self.origin.segment_use));
        }
        Ok(())
    }
}

fn database_of(bytes: &[u8]) -> DatabaseId {
    let mut database = [0; 8];
    database[..HEADER_BYTES - DATABASE_OFFSET].copy_from_slice(&bytes[DATABASE_OFFSET..HEADER_BYTES]);
    DatabaseId(u64::from_le_bytes(database))
}

/// Makes an extent one of another keyspace. It must be sealed afterwards.
pub(crate) fn set_keyspace(extent: &mut [u8], keyspace: KeyspaceId) {
    debug_assert!(!keyspace.is_of_kept(), "an extent of an opened snapshot");
    extent[KEYSPACE_OFFSET..KEYSPACE_OFFSET + 4].copy_from_slice(&keyspace.0.to_le_bytes());
}

/// Sets the origin and the checksum of an extent. The length of `extent` must be the stored length.
pub(crate) fn seal(extent: &mut [u8], origin: Origin) {
    assert!(extent.len() >= HEADER_BYTES && get_u32(extent, STORED_BYTES_OFFSET) as usize == extent.len());
    put_u64(extent, USE_OFFSET, origin.segment_use.0);
    extent[DATABASE_OFFSET..HEADER_BYTES]
        .copy_from_slice(&origin.database.0.to_le_bytes()[..HEADER_BYTES - DATABASE_OFFSET]);
    let sum = checksum(&extent[USE_OFFSET..], 0);
    put_u64(extent, CHECKSUM_OFFSET, sum);
}

/// Decompresses the extent described by `header` into `page`. The length of `page` must be the decompressed length.
pub(crate) fn decode(bytes: &[u8], header: &Header, page: &mut [u8]) -> Result<(), ExtentError> {
    if page.len() != header.raw_bytes {
        return Err(ExtentError::Length);
    }
    page[..HEADER_BYTES].copy_from_slice(&bytes[..HEADER_BYTES]);
    let body = &bytes[HEADER_BYTES..header.stored_bytes];
    match header.codec {
        CODEC_NONE if body.len() == page.len() - HEADER_BYTES => {
            page[HEADER_BYTES..].copy_from_slice(body);
            Ok(())
        }
        CODEC_LZ4 => match lz4_flex::block::decompress_into(body, &mut page[HEADER_BYTES..]) {
            Ok(length) if length == page.len() - HEADER_BYTES => Ok(()),
            _ => Err(ExtentError::Codec),
        },
        _ => Err(ExtentError::Codec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: PageKey = PageKey { keyspace: KeyspaceId(7), page: PageId(9) };
    const ORIGIN: Origin = Origin { database: DatabaseId(0xFEDC_BA98_7654_3210), segment_use: SegmentUse(3) };

    /// An encoded extent decodes to the same page, whether it is compressed or not, and even if other bytes precede it.
    #[test]
    fn an_extent_comes_back() {
        let mut noise = vec![0u8; 4096];
        let mut state = 1u64;
        for byte in &mut noise {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        let mut encoder = Encoder::default();
        for (page, shrinks) in [(vec![5u8; 4096], true), (noise, false)] {
            let mut out = vec![1, 2, 3];
            out.extend(encoder.encode(&page, WHO, Kind::Leaf));
            assert_eq!(out.len() - 3 < page.len(), shrinks);
            seal(&mut out[3..], ORIGIN);
            out.extend([9; 100]);
            let header = verify(&out[3..]).unwrap();
            assert_eq!((header.page_key, header.kind, header.check(ORIGIN)), (WHO, Kind::Leaf, Ok(())));
            let mut back = vec![0; 4096];
            decode(&out[3..], &header, &mut back).unwrap();
            assert_eq!(back[HEADER_BYTES..], page[HEADER_BYTES..]);
        }
    }

    /// Any flipped bit is detected.
    #[test]
    fn any_flipped_bit_is_noticed() {
        let mut out = Encoder::default().encode(&[5u8; 512], WHO, Kind::Inner).to_vec();
        seal(&mut out, ORIGIN);
        for bit in 0..out.len() * 8 {
            out[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&out).is_err(), "bit {bit}");
            out[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// An extent from another database, or from any other use of its segment, is detected.
    #[test]
    fn another_origin_is_noticed() {
        let mut out = Encoder::default().encode(&[5u8; 512], WHO, Kind::Leaf).to_vec();
        for bit in 0..64 {
            let segment_use = SegmentUse(ORIGIN.segment_use.0 ^ 1 << bit);
            seal(&mut out, Origin { segment_use, ..ORIGIN });
            assert_eq!(verify(&out).unwrap().check(ORIGIN), Err(ExtentError::Use(segment_use)));
        }
        for bit in 0..48 {
            seal(&mut out, Origin { database: DatabaseId(ORIGIN.database.0 ^ 1 << bit), ..ORIGIN });
            assert_eq!(verify(&out).unwrap().check(ORIGIN), Err(ExtentError::Database));
        }
    }
}
