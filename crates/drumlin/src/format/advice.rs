//! The parts of advice files. These files only speed up the next opening. They list the pages that were in memory
//! (`resident`), or the row counts that keyspaces had at a checkpoint (`counts-0`, `counts-1`).
//!
//! An advice file is a sequence of parts. Each part consists of whole blocks and is verified separately. Parts form
//! *series*. A series consists of the parts about one keyspace from one writing of the file. They are numbered from 0,
//! and the last part is marked. A series is used completely or not at all. Each part of a list of resident pages is a
//! series of its own. So if the file was only half overwritten, with some parts from the new list and some from the
//! previous one, it remains useful:
//!
//! ```text
//! OFFSET  SIZE  DESCRIPTION
//!      0     8  XXH3-64 of the bytes from 8 to the end of the part
//!      8     8  "DRUMADV" and a newline
//!     16     4  version of advice files
//!     20     4  bytes of the part
//!     24     8  identity of the database
//!     32     8  identity of the checkpoint; 0: valid for any
//!     40     8  identity of this writing, random
//!     48     4  number of the part in its series
//!     52     4  1: the last part of its series; 0: another follows
//!     56     4  kind of the items. 1: changes; 2: entries; 3: resident pages
//!     60     4  number of items
//!     64     8  timestamp of the base; 0: none
//!     72     4  keyspace; 0: each item names its own
//!     76        items
//! ```
//!
//! A change, which is followed by its key; an entry; and a resident page:
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
//!
//!      0     4  keyspace
//!      4     4  page
//!      8     4  bytes of its frame
//!     12     8  identity of the value; 0: a node
//! ```

use super::{
    BLOCK_BYTES, CheckpointId, DatabaseId, KeyspaceId, PageId, Timestamp, ValueId, WritingId, checksum, get_u16,
    get_u32, get_u64, put_u16, put_u32, put_u64,
};

pub(crate) const CHECKSUM_OFFSET: usize = 0;
pub(crate) const MAGIC_OFFSET: usize = 8;
pub(crate) const VERSION_OFFSET: usize = 16;
pub(crate) const BYTES_OFFSET: usize = 20;
pub(crate) const DATABASE_OFFSET: usize = 24;
pub(crate) const CHECKPOINT_ID_OFFSET: usize = 32;
pub(crate) const WRITING_OFFSET: usize = 40;
pub(crate) const NUMBER_OFFSET: usize = 48;
pub(crate) const IS_LAST_OFFSET: usize = 52;
pub(crate) const KIND_OFFSET: usize = 56;
pub(crate) const ITEM_COUNT_OFFSET: usize = 60;
pub(crate) const BASE_OFFSET: usize = 64;
pub(crate) const KEYSPACE_OFFSET: usize = 72;
pub(crate) const ITEMS_OFFSET: usize = 76;
/// The maximum length of a part, in bytes: more than three times the longest key.
pub(crate) const PART_BYTES_MAX: usize = 16 * BLOCK_BYTES;

pub(crate) const CHANGE_TIMESTAMP_OFFSET: usize = 0;
pub(crate) const CHANGE_KEY_BYTES_OFFSET: usize = 8;
pub(crate) const CHANGE_IS_INSERT_OFFSET: usize = 10;
pub(crate) const CHANGE_ZERO_OFFSET: usize = 11;
/// The number of bytes of a change before its key.
pub(crate) const CHANGE_HEAD_BYTES: usize = 12;

pub(crate) const ENTRY_PAGE_OFFSET: usize = 0;
pub(crate) const ENTRY_ROWS_OFFSET: usize = 4;
pub(crate) const ENTRY_BYTES: usize = 8;

pub(crate) const RESIDENT_KEYSPACE_OFFSET: usize = 0;
pub(crate) const RESIDENT_PAGE_OFFSET: usize = 4;
pub(crate) const RESIDENT_FRAME_BYTES_OFFSET: usize = 8;
pub(crate) const RESIDENT_VALUE_OFFSET: usize = 12;
pub(crate) const RESIDENT_BYTES: usize = 20;

const MAGIC: u64 = u64::from_le_bytes(*b"DRUMADV\n");
/// The first bytes of every advice file's magic, including earlier versions.
const MAGIC_PREFIX: &[u8] = b"DRUM";
const VERSION: u32 = 1;

const _: () = {
    assert!(MAGIC_OFFSET == CHECKSUM_OFFSET + 8);
    assert!(VERSION_OFFSET == MAGIC_OFFSET + 8);
    assert!(BYTES_OFFSET == VERSION_OFFSET + 4);
    assert!(DATABASE_OFFSET == BYTES_OFFSET + 4);
    assert!(CHECKPOINT_ID_OFFSET == DATABASE_OFFSET + 8);
    assert!(WRITING_OFFSET == CHECKPOINT_ID_OFFSET + 8);
    assert!(NUMBER_OFFSET == WRITING_OFFSET + 8);
    assert!(IS_LAST_OFFSET == NUMBER_OFFSET + 4);
    assert!(KIND_OFFSET == IS_LAST_OFFSET + 4);
    assert!(ITEM_COUNT_OFFSET == KIND_OFFSET + 4);
    assert!(BASE_OFFSET == ITEM_COUNT_OFFSET + 4);
    assert!(KEYSPACE_OFFSET == BASE_OFFSET + 8);
    assert!(ITEMS_OFFSET == KEYSPACE_OFFSET + 4);
    assert!(CHANGE_KEY_BYTES_OFFSET == CHANGE_TIMESTAMP_OFFSET + 8);
    assert!(CHANGE_IS_INSERT_OFFSET == CHANGE_KEY_BYTES_OFFSET + 2);
    assert!(CHANGE_ZERO_OFFSET == CHANGE_IS_INSERT_OFFSET + 1);
    assert!(CHANGE_HEAD_BYTES == CHANGE_ZERO_OFFSET + 1);
    assert!(ENTRY_ROWS_OFFSET == ENTRY_PAGE_OFFSET + 4);
    assert!(ENTRY_BYTES == ENTRY_ROWS_OFFSET + 4);
    assert!(RESIDENT_PAGE_OFFSET == RESIDENT_KEYSPACE_OFFSET + 4);
    assert!(RESIDENT_FRAME_BYTES_OFFSET == RESIDENT_PAGE_OFFSET + 4);
    assert!(RESIDENT_VALUE_OFFSET == RESIDENT_FRAME_BYTES_OFFSET + 4);
    assert!(RESIDENT_BYTES == RESIDENT_VALUE_OFFSET + 8);
};

/// Returns `true` if `block` shows that a file is an advice file, of any database and version. `block` must be the
/// first block of the file that has been written.
pub(crate) fn is_advice(block: &[u8]) -> bool {
    block.get(MAGIC_OFFSET..).is_some_and(|magic| magic.starts_with(MAGIC_PREFIX))
}

/// The kind of the items in a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartKind {
    Changes = 1,
    Entries = 2,
    Residents = 3,
}

/// The fields of a part except its items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartHead {
    pub(crate) database: DatabaseId,
    /// The checkpoint for which the part is valid, or 0 if it is valid for any checkpoint.
    pub(crate) checkpoint: CheckpointId,
    pub(crate) writing: WritingId,
    /// The number of the part in its series.
    pub(crate) number: u32,
    pub(crate) is_last: bool,
    pub(crate) kind: PartKind,
    /// The entries include all changes up to this commit.
    pub(crate) base: Timestamp,
    pub(crate) keyspace: KeyspaceId,
}

/// A row that a commit inserted or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListedChange<'k> {
    pub(crate) key: &'k [u8],
    pub(crate) timestamp: Timestamp,
    pub(crate) is_insert: bool,
}

/// A page that was in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResidentPage {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) page: PageId,
    pub(crate) frame_bytes: u32,
    /// `None` if the page is a node.
    pub(crate) value: Option<ValueId>,
}

/// A buffer in which parts are built one after another. Each part has as many items as fit.
#[derive(Debug)]
pub(crate) struct PartBuffer {
    bytes: Vec<u8>,
    bytes_max: usize,
    count: u32,
}

impl PartBuffer {
    /// Creates a buffer for parts of up to `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> PartBuffer {
        assert!(bytes_max.is_multiple_of(BLOCK_BYTES) && bytes_max <= PART_BYTES_MAX, "parts of {bytes_max} bytes");
        let mut buffer = PartBuffer { bytes: Vec::with_capacity(bytes_max), bytes_max, count: 0 };
        buffer.clear();
        buffer
    }

    /// Returns the number of items.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Removes all items.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(ITEMS_OFFSET, 0);
        self.count = 0;
    }

    /// Adds a change. Returns `false` if the part is full.
    pub(crate) fn push_change(&mut self, change: ListedChange<'_>) -> bool {
        let mut head = [0; CHANGE_HEAD_BYTES];
        put_u64(&mut head, CHANGE_TIMESTAMP_OFFSET, change.timestamp.0);
        let key_bytes = u16::try_from(change.key.len()).expect("a key has a quarter of a page at most");
        put_u16(&mut head, CHANGE_KEY_BYTES_OFFSET, key_bytes);
        head[CHANGE_IS_INSERT_OFFSET] = u8::from(change.is_insert);
        self.push(&head, change.key)
    }

    /// Adds the number of rows beneath a page. Returns `false` if the part is full.
    pub(crate) fn push_entry(&mut self, page: PageId, rows: u32) -> bool {
        let mut entry = [0; ENTRY_BYTES];
        put_u32(&mut entry, ENTRY_PAGE_OFFSET, page.0);
        put_u32(&mut entry, ENTRY_ROWS_OFFSET, rows);
        self.push(&entry, &[])
    }

    /// Adds a resident page. Returns `false` if the part is full.
    pub(crate) fn push_resident(&mut self, page: ResidentPage) -> bool {
        let mut item = [0; RESIDENT_BYTES];
        put_u32(&mut item, RESIDENT_KEYSPACE_OFFSET, page.keyspace.0);
        put_u32(&mut item, RESIDENT_PAGE_OFFSET, page.page.0);
        put_u32(&mut item, RESIDENT_FRAME_BYTES_OFFSET, page.frame_bytes);
        put_u64(&mut item, RESIDENT_VALUE_OFFSET, page.value.map_or(0, |value| value.0));
        self.push(&item, &[])
    }

    fn push(&mut self, head: &[u8], rest: &[u8]) -> bool {
        if self.bytes.len() + head.len() + rest.len() > self.bytes_max {
            return false;
        }
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(rest);
        self.count += 1;
        true
    }

    /// Completes the part and returns it in its stored form.
    pub(crate) fn seal(&mut self, head: &PartHead) -> &[u8] {
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        put_u32(&mut self.bytes, ITEM_COUNT_OFFSET, self.count);
        seal_part(head, &mut self.bytes);
        &self.bytes
    }
}

/// Completes a part that already contains its items and their number.
pub(crate) fn seal_part(head: &PartHead, part: &mut [u8]) {
    assert!(part.len().is_multiple_of(BLOCK_BYTES) && part.len() <= PART_BYTES_MAX, "a part of {} bytes", part.len());
    put_u64(part, MAGIC_OFFSET, MAGIC);
    put_u32(part, VERSION_OFFSET, VERSION);
    put_u32(part, BYTES_OFFSET, part.len() as u32);
    put_u64(part, DATABASE_OFFSET, head.database.0);
    put_u64(part, CHECKPOINT_ID_OFFSET, head.checkpoint.0);
    put_u64(part, WRITING_OFFSET, head.writing.0);
    put_u32(part, NUMBER_OFFSET, head.number);
    put_u32(part, IS_LAST_OFFSET, u32::from(head.is_last));
    put_u32(part, KIND_OFFSET, head.kind as u32);
    put_u64(part, BASE_OFFSET, head.base.0);
    put_u32(part, KEYSPACE_OFFSET, head.keyspace.0);
    let sum = checksum(&part[MAGIC_OFFSET..], 0);
    put_u64(part, CHECKSUM_OFFSET, sum);
}

/// Returns the length of the part that begins with this block, or `None` if no part begins here.
pub(crate) fn part_bytes(block: &[u8]) -> Option<usize> {
    let is_part = block.len() == BLOCK_BYTES
        && get_u64(block, MAGIC_OFFSET) == MAGIC
        && get_u32(block, VERSION_OFFSET) == VERSION;
    let bytes = if is_part { get_u32(block, BYTES_OFFSET) as usize } else { return None };
    (bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES) && bytes <= PART_BYTES_MAX).then_some(bytes)
}

/// A verified part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'b> {
    pub(crate) head: PartHead,
    pub(crate) count: usize,
    items: &'b [u8],
}

impl<'b> Part<'b> {
    /// Decodes a part from untrusted bytes. Returns `None` if they are not a valid part.
    pub(crate) fn decode(part: &'b [u8]) -> Option<Part<'b>> {
        let bytes = part_bytes(part.get(..BLOCK_BYTES)?)?;
        if bytes != part.len() || get_u64(part, CHECKSUM_OFFSET) != checksum(&part[MAGIC_OFFSET..], 0) {
            return None;
        }
        let kind = match get_u32(part, KIND_OFFSET) {
            1 => PartKind::Changes,
            2 => PartKind::Entries,
            3 => PartKind::Residents,
            _ => return None,
        };
        let head = PartHead {
            database: DatabaseId(get_u64(part, DATABASE_OFFSET)),
            checkpoint: CheckpointId(get_u64(part, CHECKPOINT_ID_OFFSET)),
            writing: WritingId(get_u64(part, WRITING_OFFSET)),
            number: get_u32(part, NUMBER_OFFSET),
            is_last: get_u32(part, IS_LAST_OFFSET) == 1,
            kind,
            base: Timestamp(get_u64(part, BASE_OFFSET)),
            keyspace: KeyspaceId(get_u32(part, KEYSPACE_OFFSET)),
        };
        Some(Part { head, count: get_u32(part, ITEM_COUNT_OFFSET) as usize, items: &part[ITEMS_OFFSET..] })
    }

    /// Returns the changes in a part of kind `Changes`, up to the first malformed change.
    pub(crate) fn changes(&self) -> impl Iterator<Item = ListedChange<'b>> + use<'b> {
        let mut rest = self.items;
        (0..self.count_of(PartKind::Changes)).map_while(move |_| {
            let (head, after_head) = rest.split_at_checked(CHANGE_HEAD_BYTES)?;
            let (key, after_key) = after_head.split_at_checked(usize::from(get_u16(head, CHANGE_KEY_BYTES_OFFSET)))?;
            rest = after_key;
            let is_insert = match head[CHANGE_IS_INSERT_OFFSET] {
                0 => false,
                1 => true,
                _ => return None,
            };
            Some(ListedChange { key, timestamp: Timestamp(get_u64(head, CHANGE_TIMESTAMP_OFFSET)), is_insert })
        })
    }

    /// Returns the pages in a part of kind `Entries`, each with its number of rows.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (PageId, u32)> + use<'b> {
        let entries = self.items.chunks_exact(ENTRY_BYTES).take(self.count_of(PartKind::Entries));
        entries.map(|entry| (PageId(get_u32(entry, ENTRY_PAGE_OFFSET)), get_u32(entry, ENTRY_ROWS_OFFSET)))
    }

    /// Returns the pages in a part of kind `Residents`.
    pub(crate) fn residents(&self) -> impl Iterator<Item = ResidentPage> + use<'b> {
        let items = self.items.chunks_exact(RESIDENT_BYTES).take(self.count_of(PartKind::Residents));
        items.map(|item| {
            let value = get_u64(item, RESIDENT_VALUE_OFFSET);
            ResidentPage {
                keyspace: KeyspaceId(get_u32(item, RESIDENT_KEYSPACE_OFFSET)),
                page: PageId(get_u32(item, RESIDENT_PAGE_OFFSET)),
                frame_bytes: get_u32(item, RESIDENT_FRAME_BYTES_OFFSET),
                value: (value != 0).then_some(ValueId(value)),
            }
        })
    }

    fn count_of(&self, kind: PartKind) -> usize {
        if self.head.kind == kind { self.count } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: PartHead = PartHead {
        database: DatabaseId(1),
        checkpoint: CheckpointId(2),
        writing: WritingId(3),
        number: 4,
        is_last: true,
        kind: PartKind::Changes,
        base: Timestamp(5),
        keyspace: KeyspaceId(6),
    };

    /// Full parts of each kind survive encoding, and any flipped bit or missing byte is detected.
    #[test]
    fn parts_come_back() {
        let keys: Vec<Vec<u8>> = (0..1000).map(|number: usize| vec![number as u8; number * 37 % 1000]).collect();
        fn change(keys: &[Vec<u8>], number: usize) -> ListedChange<'_> {
            let timestamp = Timestamp(number as u64 + 1);
            ListedChange { key: &keys[number], timestamp, is_insert: !number.is_multiple_of(3) }
        }
        let entry = |number: usize| (PageId(number as u32), number as u32 * 3);
        let page = |number: usize| ResidentPage {
            keyspace: KeyspaceId(number as u32 % 3 + 1),
            page: PageId(number as u32),
            frame_bytes: 512 << (number % 8),
            value: number.is_multiple_of(4).then_some(ValueId(1 << 40 | number as u64)),
        };
        for kind in [PartKind::Changes, PartKind::Entries, PartKind::Residents] {
            let mut buffer = PartBuffer::new(PART_BYTES_MAX);
            let mut count = 0;
            while match kind {
                PartKind::Changes => buffer.push_change(change(&keys, count)),
                PartKind::Entries => buffer.push_entry(entry(count).0, entry(count).1),
                PartKind::Residents => buffer.push_resident(page(count)),
            } {
                count += 1;
            }
            assert!(count > 100 && buffer.count() as usize == count);
            let head = PartHead { kind, ..HEAD };
            let mut bytes = buffer.seal(&head).to_vec();
            assert!(bytes.len() == PART_BYTES_MAX && is_advice(&bytes));
            let part = Part::decode(&bytes).unwrap();
            assert_eq!((part.head, part.count), (head, count));
            let of = |of: PartKind| 0..if of == kind { count } else { 0 };
            assert!(part.changes().eq(of(PartKind::Changes).map(|number| change(&keys, number))));
            assert!(part.entries().eq(of(PartKind::Entries).map(entry)));
            assert!(part.residents().eq(of(PartKind::Residents).map(page)));
            for bit in (0..bytes.len() * 8).step_by(677) {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Part::decode(&bytes).is_none(), "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for bytes in [&bytes[1..], &bytes[..BLOCK_BYTES], &[]] {
                assert!(Part::decode(bytes).is_none());
            }
        }
    }

    /// A part has only as many blocks as its items need, and may have no items.
    #[test]
    fn parts_are_as_long_as_their_items() {
        let mut buffer = PartBuffer::new(PART_BYTES_MAX);
        assert_eq!(Part::decode(buffer.seal(&HEAD)).unwrap().count, 0);
        buffer.clear();
        assert!((0..700).all(|number| buffer.push_entry(PageId(number), number)));
        assert_eq!(buffer.seal(&HEAD).len(), 2 * BLOCK_BYTES);
    }
}
