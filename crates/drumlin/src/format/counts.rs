//! The file of counts: row counts that keyspaces kept at a checkpoint, for the next opening to use. It is advice: a
//! file that does not verify, or belongs to another checkpoint, is ignored completely.
//!
//! The head is the first block, and is written last. Parts follow it, each a whole number of blocks. All of them carry
//! the identity of this writing of the file, so that a part left by an older writing is not mistaken for a current one:
//!
//! ```text
//! OFFSET   SIZE  DESCRIPTION
//!      0      8  XXH3-64 of the bytes from 8 to the end of the block
//!      8      8  "DRUMCNT" and a newline
//!     16      4  version of the file
//!     20      4  number of keyspaces listed
//!     24      8  identity of the database
//!     32      8  identity of the checkpoint
//!     40      8  timestamp of the checkpoint
//!     48      8  identity of this writing, random
//!     56   4032  keyspaces, 32 bytes each
//!   4088      8  zero
//! ```
//!
//! A keyspace. Its parts follow those of the keyspace before it: first its changes, then its entries.
//!
//! ```text
//! OFFSET  SIZE  DESCRIPTION
//!      0     4  keyspace
//!      4     4  number of parts
//!      8     8  timestamp of the base
//!     16     8  number of changes
//!     24     8  number of entries
//! ```
//!
//! A part:
//!
//! ```text
//! OFFSET   SIZE  DESCRIPTION
//!      0      8  XXH3-64 of the bytes from 8 to the end of the part
//!      8      8  "DRUMCNP" and a newline
//!     16      8  identity of this writing
//!     24      4  index of the part in the file
//!     28      4  bytes of the part
//!     32      4  1: changes; 2: entries
//!     36      4  number of items
//!     40  65496  items
//! ```
//!
//! A change, which is followed by its key, and an entry:
//!
//! ```text
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  timestamp of the commit
//!      8     2  length of the key
//!     10     1  1: the row was inserted; 0: it was removed
//!     11     1  zero
//!
//!      0     4  page
//!      4     4  rows beneath it at the base
//! ```

use super::{
    BLOCK_BYTES, CheckpointId, CountsFileId, DatabaseId, KeyspaceId, PageId, Timestamp, checksum, get_u16, get_u32,
    get_u64, put_u16, put_u32, put_u64,
};

pub(crate) const CHECKSUM_OFFSET: usize = 0;
pub(crate) const MAGIC_OFFSET: usize = 8;

pub(crate) const VERSION_OFFSET: usize = 16;
pub(crate) const COUNT_OFFSET: usize = 20;
pub(crate) const DATABASE_OFFSET: usize = 24;
pub(crate) const CHECKPOINT_ID_OFFSET: usize = 32;
pub(crate) const TIMESTAMP_OFFSET: usize = 40;
pub(crate) const FILE_OFFSET: usize = 48;
pub(crate) const KEYSPACES_OFFSET: usize = 56;
pub(crate) const ZERO_OFFSET: usize = KEYSPACES_OFFSET + KEYSPACE_COUNT_MAX * KEYSPACE_BYTES;
/// Bytes of the head.
pub(crate) const HEAD_BYTES: usize = BLOCK_BYTES;

pub(crate) const ID_OFFSET: usize = 0;
pub(crate) const PART_COUNT_OFFSET: usize = 4;
pub(crate) const FLOOR_OFFSET: usize = 8;
pub(crate) const CHANGE_COUNT_OFFSET: usize = 16;
pub(crate) const ENTRY_COUNT_OFFSET: usize = 24;
/// Bytes of a keyspace in the head.
pub(crate) const KEYSPACE_BYTES: usize = 32;
/// Limit on the keyspaces that the head lists.
pub(crate) const KEYSPACE_COUNT_MAX: usize = (HEAD_BYTES - KEYSPACES_OFFSET) / KEYSPACE_BYTES;

pub(crate) const PART_FILE_OFFSET: usize = 16;
pub(crate) const INDEX_OFFSET: usize = 24;
pub(crate) const BYTES_OFFSET: usize = 28;
pub(crate) const KIND_OFFSET: usize = 32;
pub(crate) const ITEM_COUNT_OFFSET: usize = 36;
pub(crate) const ITEMS_OFFSET: usize = 40;
/// Limit on the bytes of a part: more than three times the longest key.
pub(crate) const PART_BYTES_MAX: usize = 16 * BLOCK_BYTES;

pub(crate) const CHANGE_TIMESTAMP_OFFSET: usize = 0;
pub(crate) const KEY_BYTES_OFFSET: usize = 8;
pub(crate) const IS_INSERT_OFFSET: usize = 10;
pub(crate) const CHANGE_ZERO_OFFSET: usize = 11;
/// Bytes of a change before its key.
pub(crate) const CHANGE_HEAD_BYTES: usize = 12;

pub(crate) const PAGE_OFFSET: usize = 0;
pub(crate) const ROWS_OFFSET: usize = 4;
/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 8;

const MAGIC: u64 = u64::from_le_bytes(*b"DRUMCNT\n");
const PART_MAGIC: u64 = u64::from_le_bytes(*b"DRUMCNP\n");
const VERSION: u32 = 1;

const _: () = {
    assert!(MAGIC_OFFSET == CHECKSUM_OFFSET + 8);
    assert!(VERSION_OFFSET == MAGIC_OFFSET + 8);
    assert!(COUNT_OFFSET == VERSION_OFFSET + 4);
    assert!(DATABASE_OFFSET == COUNT_OFFSET + 4);
    assert!(CHECKPOINT_ID_OFFSET == DATABASE_OFFSET + 8);
    assert!(TIMESTAMP_OFFSET == CHECKPOINT_ID_OFFSET + 8);
    assert!(FILE_OFFSET == TIMESTAMP_OFFSET + 8);
    assert!(KEYSPACES_OFFSET == FILE_OFFSET + 8);
    assert!(ZERO_OFFSET <= HEAD_BYTES && HEAD_BYTES < ZERO_OFFSET + KEYSPACE_BYTES);
    assert!(PART_COUNT_OFFSET == ID_OFFSET + 4);
    assert!(FLOOR_OFFSET == PART_COUNT_OFFSET + 4);
    assert!(CHANGE_COUNT_OFFSET == FLOOR_OFFSET + 8);
    assert!(ENTRY_COUNT_OFFSET == CHANGE_COUNT_OFFSET + 8);
    assert!(KEYSPACE_BYTES == ENTRY_COUNT_OFFSET + 8);
    assert!(PART_FILE_OFFSET == MAGIC_OFFSET + 8);
    assert!(INDEX_OFFSET == PART_FILE_OFFSET + 8);
    assert!(BYTES_OFFSET == INDEX_OFFSET + 4);
    assert!(KIND_OFFSET == BYTES_OFFSET + 4);
    assert!(ITEM_COUNT_OFFSET == KIND_OFFSET + 4);
    assert!(ITEMS_OFFSET == ITEM_COUNT_OFFSET + 4);
    assert!(KEY_BYTES_OFFSET == CHANGE_TIMESTAMP_OFFSET + 8);
    assert!(IS_INSERT_OFFSET == KEY_BYTES_OFFSET + 2);
    assert!(CHANGE_ZERO_OFFSET == IS_INSERT_OFFSET + 1);
    assert!(CHANGE_HEAD_BYTES == CHANGE_ZERO_OFFSET + 1);
    assert!(ROWS_OFFSET == PAGE_OFFSET + 4);
    assert!(ENTRY_BYTES == ROWS_OFFSET + 4);
};

/// The head of a file of counts.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct CountsHead {
    pub(crate) database: DatabaseId,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) timestamp: Timestamp,
    pub(crate) file: CountsFileId,
    pub(crate) keyspaces: Vec<CountedKeyspace>,
}

/// A keyspace whose counts a file has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CountedKeyspace {
    pub(crate) id: KeyspaceId,
    pub(crate) part_count: u32,
    /// All changes up to this commit are in the entries.
    pub(crate) floor: Timestamp,
    pub(crate) change_count: u64,
    pub(crate) entry_count: u64,
}

/// Returns `true` if a file whose first written block is this one has counts of some database. The first written block
/// may be a part, because the head is written last.
pub(crate) fn is_counts(block: &[u8]) -> bool {
    block.len() >= VERSION_OFFSET && [MAGIC, PART_MAGIC].contains(&get_u64(block, MAGIC_OFFSET))
}

impl CountsHead {
    /// Returns the block that is written.
    pub(crate) fn encode(&self) -> Vec<u8> {
        assert!(self.keyspaces.len() <= KEYSPACE_COUNT_MAX, "{} keyspaces", self.keyspaces.len());
        let mut block = vec![0; HEAD_BYTES];
        put_u64(&mut block, MAGIC_OFFSET, MAGIC);
        put_u32(&mut block, VERSION_OFFSET, VERSION);
        put_u32(&mut block, COUNT_OFFSET, self.keyspaces.len() as u32);
        put_u64(&mut block, DATABASE_OFFSET, self.database.0);
        put_u64(&mut block, CHECKPOINT_ID_OFFSET, self.checkpoint.0);
        put_u64(&mut block, TIMESTAMP_OFFSET, self.timestamp.0);
        put_u64(&mut block, FILE_OFFSET, self.file.0);
        for (bytes, keyspace) in block[KEYSPACES_OFFSET..].chunks_exact_mut(KEYSPACE_BYTES).zip(&self.keyspaces) {
            put_u32(bytes, ID_OFFSET, keyspace.id.0);
            put_u32(bytes, PART_COUNT_OFFSET, keyspace.part_count);
            put_u64(bytes, FLOOR_OFFSET, keyspace.floor.0);
            put_u64(bytes, CHANGE_COUNT_OFFSET, keyspace.change_count);
            put_u64(bytes, ENTRY_COUNT_OFFSET, keyspace.entry_count);
        }
        let sum = checksum(&block[MAGIC_OFFSET..], 0);
        put_u64(&mut block, CHECKSUM_OFFSET, sum);
        block
    }

    /// Decodes a block whose bytes may be anything.
    pub(crate) fn decode(block: &[u8]) -> Option<CountsHead> {
        let is_sound = block.len() == HEAD_BYTES
            && get_u64(block, MAGIC_OFFSET) == MAGIC
            && get_u32(block, VERSION_OFFSET) == VERSION
            && get_u64(block, CHECKSUM_OFFSET) == checksum(&block[MAGIC_OFFSET..], 0);
        let count = if is_sound { get_u32(block, COUNT_OFFSET) as usize } else { return None };
        let keyspace = |bytes: &[u8]| CountedKeyspace {
            id: KeyspaceId(get_u32(bytes, ID_OFFSET)),
            part_count: get_u32(bytes, PART_COUNT_OFFSET),
            floor: Timestamp(get_u64(bytes, FLOOR_OFFSET)),
            change_count: get_u64(bytes, CHANGE_COUNT_OFFSET),
            entry_count: get_u64(bytes, ENTRY_COUNT_OFFSET),
        };
        let listed = block[KEYSPACES_OFFSET..ZERO_OFFSET].chunks_exact(KEYSPACE_BYTES).map(keyspace);
        (count <= KEYSPACE_COUNT_MAX).then(|| CountsHead {
            database: DatabaseId(get_u64(block, DATABASE_OFFSET)),
            checkpoint: CheckpointId(get_u64(block, CHECKPOINT_ID_OFFSET)),
            timestamp: Timestamp(get_u64(block, TIMESTAMP_OFFSET)),
            file: CountsFileId(get_u64(block, FILE_OFFSET)),
            keyspaces: listed.take(count).collect(),
        })
    }
}

/// The kind of the items in a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartKind {
    Changes = 1,
    Entries = 2,
}

/// A row that a commit inserted or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListedChange<'k> {
    pub(crate) key: &'k [u8],
    pub(crate) timestamp: Timestamp,
    pub(crate) is_insert: bool,
}

/// A buffer for one part after another, each filled with as many items as fit.
#[derive(Debug)]
pub(crate) struct PartBuffer {
    bytes: Vec<u8>,
    count: u32,
}

impl PartBuffer {
    pub(crate) fn new() -> PartBuffer {
        PartBuffer { bytes: Vec::with_capacity(PART_BYTES_MAX), count: 0 }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Empties the buffer for items of this kind.
    pub(crate) fn begin(&mut self, kind: PartKind) {
        self.bytes.clear();
        self.bytes.resize(ITEMS_OFFSET, 0);
        put_u32(&mut self.bytes, KIND_OFFSET, kind as u32);
        self.count = 0;
    }

    /// Adds a change. Returns `false` if the part is full.
    pub(crate) fn push_change(&mut self, change: ListedChange<'_>) -> bool {
        let mut head = [0; CHANGE_HEAD_BYTES];
        put_u64(&mut head, CHANGE_TIMESTAMP_OFFSET, change.timestamp.0);
        let key_bytes = u16::try_from(change.key.len()).expect("a key has a quarter of a page at most");
        put_u16(&mut head, KEY_BYTES_OFFSET, key_bytes);
        head[IS_INSERT_OFFSET] = u8::from(change.is_insert);
        self.push(&head, change.key)
    }

    /// Adds the number of rows beneath a page. Returns `false` if the part is full.
    pub(crate) fn push_entry(&mut self, page: PageId, rows: u32) -> bool {
        let mut entry = [0; ENTRY_BYTES];
        put_u32(&mut entry, PAGE_OFFSET, page.0);
        put_u32(&mut entry, ROWS_OFFSET, rows);
        self.push(&entry, &[])
    }

    fn push(&mut self, head: &[u8], rest: &[u8]) -> bool {
        if self.bytes.len() + head.len() + rest.len() > PART_BYTES_MAX {
            return false;
        }
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(rest);
        self.count += 1;
        true
    }

    /// Returns the part as it is written.
    pub(crate) fn seal(&mut self, file: CountsFileId, index: u32) -> &[u8] {
        assert!(self.count > 0, "a part of no items");
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        put_u32(&mut self.bytes, ITEM_COUNT_OFFSET, self.count);
        seal_part(file, index, &mut self.bytes);
        &self.bytes
    }
}

/// Completes the header of a part, which makes it a part of this file.
pub(crate) fn seal_part(file: CountsFileId, index: u32, part: &mut [u8]) {
    assert!(part.len().is_multiple_of(BLOCK_BYTES) && part.len() <= PART_BYTES_MAX, "a part of {} bytes", part.len());
    put_u64(part, MAGIC_OFFSET, PART_MAGIC);
    put_u64(part, PART_FILE_OFFSET, file.0);
    put_u32(part, INDEX_OFFSET, index);
    let bytes = part.len() as u32;
    put_u32(part, BYTES_OFFSET, bytes);
    let sum = checksum(&part[MAGIC_OFFSET..], 0);
    put_u64(part, CHECKSUM_OFFSET, sum);
}

/// A verified part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountsPart<'b> {
    /// The part's length in bytes, including its header.
    pub(crate) bytes: usize,
    pub(crate) kind: PartKind,
    pub(crate) count: usize,
    items: &'b [u8],
}

impl<'b> CountsPart<'b> {
    /// Decodes the part with this index from the beginning of `bytes`, which may be anything.
    pub(crate) fn decode(file: CountsFileId, index: u32, bytes: &'b [u8]) -> Option<CountsPart<'b>> {
        if bytes.len() < ITEMS_OFFSET {
            return None;
        }
        let part = bytes.get(..get_u32(bytes, BYTES_OFFSET) as usize)?;
        let is_sound = part.len() >= ITEMS_OFFSET
            && part.len().is_multiple_of(BLOCK_BYTES)
            && part.len() <= PART_BYTES_MAX
            && get_u64(part, MAGIC_OFFSET) == PART_MAGIC
            && get_u64(part, PART_FILE_OFFSET) == file.0
            && get_u32(part, INDEX_OFFSET) == index
            && get_u64(part, CHECKSUM_OFFSET) == checksum(&part[MAGIC_OFFSET..], 0);
        if !is_sound {
            return None;
        }
        let kind = match get_u32(part, KIND_OFFSET) {
            1 => PartKind::Changes,
            2 => PartKind::Entries,
            _ => return None,
        };
        let count = get_u32(part, ITEM_COUNT_OFFSET) as usize;
        Some(CountsPart { bytes: part.len(), kind, count, items: &part[ITEMS_OFFSET..] })
    }

    /// Returns the changes in a part of changes, up to the first that is malformed.
    pub(crate) fn changes(&self) -> impl Iterator<Item = ListedChange<'b>> + use<'b> {
        let mut rest = self.items;
        let count = if self.kind == PartKind::Changes { self.count } else { 0 };
        (0..count).map_while(move |_| {
            let (head, behind) = rest.split_at_checked(CHANGE_HEAD_BYTES)?;
            let (key, behind) = behind.split_at_checked(usize::from(get_u16(head, KEY_BYTES_OFFSET)))?;
            rest = behind;
            let is_insert = match head[IS_INSERT_OFFSET] {
                0 => false,
                1 => true,
                _ => return None,
            };
            Some(ListedChange { key, timestamp: Timestamp(get_u64(head, CHANGE_TIMESTAMP_OFFSET)), is_insert })
        })
    }

    /// Returns the pages in a part of entries, each with its number of rows.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (PageId, u32)> + use<'b> {
        let count = if self.kind == PartKind::Entries { self.count } else { 0 };
        let entries = self.items.chunks_exact(ENTRY_BYTES).take(count);
        entries.map(|entry| (PageId(get_u32(entry, PAGE_OFFSET)), get_u32(entry, ROWS_OFFSET)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head survives encoding, and any flipped bit is detected.
    #[test]
    fn a_head_comes_back() {
        let keyspace = |number: u32| CountedKeyspace {
            id: KeyspaceId(number),
            part_count: 2 * number,
            floor: Timestamp(u64::from(number) + 100),
            change_count: 5,
            entry_count: 7 << 33,
        };
        for count in [0, 1, KEYSPACE_COUNT_MAX as u32] {
            let head = CountsHead {
                database: DatabaseId(1),
                checkpoint: CheckpointId(2),
                timestamp: Timestamp(3),
                file: CountsFileId(4),
                keyspaces: (1..=count).map(keyspace).collect(),
            };
            let mut block = head.encode();
            assert_eq!(CountsHead::decode(&block), Some(head));
            for bit in (0..block.len() * 8).step_by(7) {
                block[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(CountsHead::decode(&block), None, "bit {bit}");
                block[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(CountsHead::decode(&block[1..]), None);
        }
    }

    /// Full parts survive encoding, are valid only in their own file and at their own index, and any flipped bit is
    /// detected.
    #[test]
    fn parts_come_back() {
        let (own, other) = (CountsFileId(7), CountsFileId(8));
        let keys: Vec<Vec<u8>> = (0..1000).map(|number: usize| vec![number as u8; number * 37 % 1000]).collect();
        let mut buffer = PartBuffer::new();
        buffer.begin(PartKind::Changes);
        let mut count = 0;
        let change = |number: usize| ListedChange {
            key: &keys[number],
            timestamp: Timestamp(number as u64 + 1),
            is_insert: !number.is_multiple_of(3),
        };
        while buffer.push_change(change(count)) {
            count += 1;
        }
        assert!(count > 100 && buffer.count() as usize == count);
        let mut bytes = buffer.seal(own, 3).to_vec();
        assert_eq!(bytes.len(), PART_BYTES_MAX);
        let part = CountsPart::decode(own, 3, &bytes).unwrap();
        assert!(part.entries().next().is_none());
        assert!(part.changes().eq((0..count).map(change)));
        assert!(CountsPart::decode(other, 3, &bytes).is_none() && CountsPart::decode(own, 4, &bytes).is_none());
        for bit in (0..bytes.len() * 8).step_by(677) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(CountsPart::decode(own, 3, &bytes).is_none(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        buffer.begin(PartKind::Entries);
        let entries: Vec<_> = (0..700).map(|number| (PageId(number), number * 3)).collect();
        assert!(entries.iter().all(|&(page, rows)| buffer.push_entry(page, rows)));
        let bytes = [buffer.seal(own, 0), &[0; 100]].concat();
        let part = CountsPart::decode(own, 0, &bytes).unwrap();
        assert!(part.bytes == 2 * BLOCK_BYTES && part.changes().next().is_none());
        assert_eq!(part.entries().collect::<Vec<_>>(), entries);
    }
}
