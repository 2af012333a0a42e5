//! Sorts rows in memory.

use crate::memory::{Grant, grown_capacity};
use crate::tree::node::common_bytes;

/// Rows are stored in chunks of this many bytes. Each chunk has room for the longest row.
const CHUNK_BYTES: usize = 128 << 10;
/// The maximum number of chunks that a 32-bit offset can address.
const CHUNKS_MAX: usize = u32::MAX as usize / CHUNK_BYTES;
/// The number of bytes before a row's key: the lengths of key and value, and the kind of the value.
/// Fixed by the layout of rows in a chunk.
const HEAD_BYTES: usize = 9;

/// The value of a row in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waiting<'b> {
    Whole(&'b [u8]),
    /// The encoded reference to a value that has already been written.
    Written(&'b [u8]),
}

impl<'b> Waiting<'b> {
    fn bytes(&self) -> &'b [u8] {
        match self {
            Waiting::Whole(bytes) | Waiting::Written(bytes) => bytes,
        }
    }
}

/// The offset of a row in the buffer, and the beginning of its key.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The first eight bytes of the key after the prefix that all keys share. Sorting compares them first, without
    /// touching the key (Graefe, "Implementing Sorting in Database Systems", 2006: poor man's normalized keys).
    key_head: u64,
    offset: u32,
}

/// Rows that are waiting to be sorted. If several rows have the same key, the last one wins.
#[derive(Debug)]
pub(super) struct SortBuffer {
    chunks: Vec<Vec<u8>>,
    /// The chunk that is being filled.
    newest: usize,
    entries: Vec<Entry>,
    /// The length of the prefix that all keys share, in bytes.
    shared_bytes: usize,
    memory: Grant,
}

impl SortBuffer {
    /// The minimum memory of a buffer: one chunk and the entries of its rows, if these have at least 100 bytes each.
    pub(super) const BYTES_MIN: u64 = (CHUNK_BYTES + CHUNK_BYTES / 4) as u64;

    /// Creates a buffer that initially has this memory.
    pub(super) fn new(memory: Grant) -> SortBuffer {
        assert!(memory.bytes() >= Self::BYTES_MIN, "rows are sorted in {} bytes", memory.bytes());
        SortBuffer { chunks: Vec::new(), newest: 0, entries: Vec::new(), shared_bytes: 0, memory }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the memory that the buffer has reserved, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Drops the rows and returns the memory grant.
    pub(super) fn into_memory(self) -> Grant {
        self.memory
    }

    /// Makes room for a row. Returns `false` if the row would need more memory than is left, or if the buffer would
    /// exceed half of the limit for loads: other loads could not begin then. The first row always fits. Amortised O(1).
    pub(super) fn try_reserve(&mut self, key: &[u8], value: Waiting<'_>) -> bool {
        let row_bytes = HEAD_BYTES + key.len() + value.bytes().len();
        assert!(row_bytes <= CHUNK_BYTES, "a row of {row_bytes} bytes waits to be sorted");
        let fits = |chunk: &Vec<u8>| CHUNK_BYTES - chunk.len() >= row_bytes;
        let is_full = self.chunks.get(self.newest).is_some_and(|chunk| !fits(chunk));
        let chunk_count = self.chunks.len().max(self.newest + usize::from(is_full) + 1);
        let capacity = grown_capacity(&self.entries, 1);
        if chunk_count > self.chunks.len() || capacity > self.entries.capacity() {
            // While the entries are moved to a larger vector, both vectors exist.
            let grown = if capacity > self.entries.capacity() { capacity } else { 0 };
            let entry_bytes = (self.entries.capacity() + grown) * size_of::<Entry>();
            let bytes = (chunk_count * CHUNK_BYTES + entry_bytes) as u64;
            let may_take = |bytes| bytes <= self.memory.limit_bytes() / 2;
            let has_memory = bytes <= self.memory.bytes() || may_take(bytes) && self.memory.resize(bytes);
            if !has_memory || chunk_count > CHUNKS_MAX {
                return false;
            }
            self.entries.reserve_exact(capacity - self.entries.len());
            self.chunks.resize_with(chunk_count, || Vec::with_capacity(CHUNK_BYTES));
        }
        self.newest += usize::from(is_full);
        assert!(fits(&self.chunks[self.newest]), "a chunk is full that was just made, or emptied");
        true
    }

    /// Adds a row. Its room must have been [reserved](Self::try_reserve).
    pub(super) fn push(&mut self, key: &[u8], value: Waiting<'_>) {
        assert!(self.entries.len() < self.entries.capacity(), "a row is added without room");
        self.shared_bytes = match self.entries.first() {
            Some(first) => common_bytes(&self.key(*first)[..self.shared_bytes], key),
            None => key.len(),
        };
        let chunk = &mut self.chunks[self.newest];
        let offset = u32::try_from(self.newest * CHUNK_BYTES + chunk.len()).expect("few enough chunks");
        let bytes = value.bytes();
        chunk.extend((key.len() as u32).to_le_bytes());
        chunk.extend((bytes.len() as u32).to_le_bytes());
        chunk.push(u8::from(matches!(value, Waiting::Written(_))));
        chunk.extend_from_slice(key);
        chunk.extend_from_slice(bytes);
        assert!(chunk.len() <= CHUNK_BYTES, "a chunk grows beyond its memory");
        self.entries.push(Entry { key_head: 0, offset });
    }

    fn row(&self, entry: Entry) -> (&[u8], Waiting<'_>) {
        let chunk = &self.chunks[entry.offset as usize / CHUNK_BYTES];
        let row = &chunk[entry.offset as usize % CHUNK_BYTES..];
        let length = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes")) as usize;
        let (key, rest) = row[HEAD_BYTES..].split_at(length(0));
        let bytes = &rest[..length(4)];
        (key, if row[8] == 0 { Waiting::Whole(bytes) } else { Waiting::Written(bytes) })
    }

    fn key(&self, entry: Entry) -> &[u8] {
        self.row(entry).0
    }

    /// Sorts the rows by key, and rows with equal keys by arrival. O(rows log rows).
    pub(super) fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        for entry in &mut entries {
            let key = &self.key(*entry)[self.shared_bytes..];
            let mut head = [0; 8];
            let count = key.len().min(8);
            head[..count].copy_from_slice(&key[..count]);
            entry.key_head = u64::from_be_bytes(head);
        }
        entries.sort_unstable_by(|left, right| {
            let by_key = || self.key(*left).cmp(self.key(*right));
            left.key_head.cmp(&right.key_head).then_with(by_key).then(left.offset.cmp(&right.offset))
        });
        self.entries = entries;
    }

    /// Returns the [sorted](Self::sort) rows. The flag is `false` if a later row with the same key replaces this row.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&[u8], Waiting<'_>, bool)> {
        let next = self.entries.iter().skip(1).map(|entry| Some(self.key(*entry))).chain([None]);
        self.entries.iter().zip(next).map(|(entry, next)| {
            let (key, value) = self.row(*entry);
            debug_assert!(next.is_none_or(|next| key <= next), "rows are not sorted");
            (key, value, next != Some(key))
        })
    }

    /// Removes all rows but retains the memory for reuse.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.chunks.iter_mut().for_each(Vec::clear);
        self.newest = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Account, Budget};
    use std::sync::Arc;

    fn buffer(total: u64) -> SortBuffer {
        buffer_in(&Arc::new(Budget::new(total, 1)))
    }

    fn buffer_in(budget: &Arc<Budget>) -> SortBuffer {
        let mut memory = budget.grant(Account::Loads);
        assert!(memory.resize(SortBuffer::BYTES_MIN));
        SortBuffer::new(memory)
    }

    /// Rows of all lengths are returned in key order, and only the latest row of each key counts.
    #[test]
    fn rows_are_sorted() {
        let mut state = 11u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..60 {
            let mut buffer = buffer(64 << 20);
            let shared = [0, 3, 20][round % 3];
            let mut expected = std::collections::BTreeMap::new();
            for number in 0..[1, 50, 3000][round / 3 % 3] {
                let mut key = vec![b'p'; shared];
                key.extend((0..random(12)).map(|_| [0, 1, 255][random(3)]));
                let value = vec![number as u8; random(300)];
                let kept = if random(5) == 0 { Waiting::Written(&value) } else { Waiting::Whole(&value) };
                assert!(buffer.try_reserve(&key, kept));
                buffer.push(&key, kept);
                expected.insert(key, (value.clone(), matches!(kept, Waiting::Written(_))));
            }
            buffer.sort();
            let found = buffer
                .rows()
                .filter(|(_, _, counts)| *counts)
                .map(|(key, value, _)| (key.to_vec(), (value.bytes().to_vec(), matches!(value, Waiting::Written(_)))));
            assert_eq!(found.collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>(), "round {round}");
        }
    }

    /// A buffer uses up to half of the memory for loads and retains it when cleared. After that, it has room for the
    /// same number of rows as before.
    #[test]
    fn a_full_buffer_refuses_rows() {
        let mut buffer = buffer(16 << 20);
        let fill = |buffer: &mut SortBuffer| {
            let mut count = 0u64;
            while buffer.try_reserve(&count.to_be_bytes(), Waiting::Whole(&[7; 100])) {
                buffer.push(&count.to_be_bytes(), Waiting::Whole(&[7; 100]));
                count += 1;
            }
            count
        };
        let count = fill(&mut buffer);
        let (taken, limit) = (buffer.memory_bytes(), buffer.memory.limit_bytes());
        assert!(taken <= limit / 2 && taken > limit / 2 - (CHUNK_BYTES as u64) - limit / 8, "{taken} of {limit}");
        assert!(count * 117 > taken / 2, "{count} rows in {taken} bytes");
        buffer.clear();
        assert!(buffer.is_empty());
        assert_eq!(fill(&mut buffer), count);
        assert_eq!(buffer.memory_bytes(), taken);
    }

    /// The longest row fits, and so do many short ones, even if other loads have reserved all the remaining memory.
    #[test]
    fn the_least_memory_is_enough() {
        let budget = Arc::new(Budget::new(Budget::bytes_min(1), 1));
        let mut buffer = buffer_in(&budget);
        let mut others = budget.grant(Account::Loads);
        assert!(others.resize(others.limit_bytes() - buffer.memory_bytes()));
        let longest = vec![7; CHUNK_BYTES - HEAD_BYTES - 3];
        assert!(buffer.try_reserve(b"key", Waiting::Whole(&longest)));
        buffer.push(b"key", Waiting::Whole(&longest));
        buffer.clear();
        for number in 0..1000u64 {
            assert!(buffer.try_reserve(&number.to_be_bytes(), Waiting::Whole(&[7; 100])), "row {number}");
            buffer.push(&number.to_be_bytes(), Waiting::Whole(&[7; 100]));
        }
        assert_eq!(buffer.memory_bytes(), SortBuffer::BYTES_MIN);
    }
}
