//! A run: rows sorted by keyspace, key and number, in blocks that are never rewritten.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::block::{BlockBuffer, SpilledRow, verify};
use super::cache::Cache;
use super::file::SpillFile;
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, Timestamp};
use crate::io::AlignedBuffer;
use crate::memory::{Account, Budget, Grant, heap_bytes};
use crate::pool::{Deferred, Pool};
use crate::tree::node::RowValue;
use crate::txn::old_rows::HELD_BYTES;

/// An immutable run and the index of its blocks. Dropping it releases the blocks.
#[derive(Debug)]
pub(crate) struct Run {
    pub(super) number: u64,
    /// The highest number of a row: the newest commit that replaced a version in this run.
    pub(super) last: Timestamp,
    /// The range of keyspaces to which the rows belong.
    pub(super) keyspaces: RangeInclusive<KeyspaceId>,
    blocks: Vec<BlockKey>,
    /// The large values to which the rows refer.
    pub(super) large: Vec<(KeyspaceId, LargeRef)>,
    file: Arc<SpillFile>,
    cache: Arc<Cache>,
    /// The memory of `blocks` and `large`.
    memory: Grant,
}

/// A block's entry in the index. Its key separates the block from the previous one: all rows of earlier blocks are at
/// or below the key, and all rows of this block are at or above it.
#[derive(Debug)]
struct BlockKey {
    keyspace: KeyspaceId,
    key: Box<[u8]>,
    number: u32,
}

impl BlockKey {
    fn sort_key(&self) -> (KeyspaceId, &[u8]) {
        (self.keyspace, &self.key)
    }
}

impl Run {
    /// Returns the number of blocks.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the memory of the index and the references to large values.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Returns the size of a block.
    pub(super) fn block_bytes(&self) -> usize {
        self.file.block_bytes
    }

    /// Returns the first block that may contain rows at or above this key.
    pub(super) fn first_block(&self, keyspace: KeyspaceId, key: &[u8]) -> usize {
        // The versions of a key may begin at the end of the block before the first block with this key.
        let first = self.blocks.partition_point(|block| block.sort_key() < (keyspace, key)).saturating_sub(1);
        assert!(first < self.len(), "a run has no blocks");
        first
    }

    /// Returns `true` if the block may contain rows at or below this key.
    pub(super) fn reaches(&self, block: usize, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.blocks.get(block).is_some_and(|block| block.sort_key() <= (keyspace, key))
    }

    /// Returns the first key above `key` in the same keyspace at which a block begins. O(log blocks).
    pub(super) fn block_after(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<&[u8]> {
        let next = self.blocks.partition_point(|block| block.sort_key() <= (keyspace, key));
        self.blocks.get(next).filter(|block| block.keyspace == keyspace).map(|block| &block.key[..])
    }

    /// Returns the last key below `key` in the same keyspace at which a block begins, or the last one of the keyspace
    /// if `key` is `None`. O(log blocks).
    pub(super) fn block_before(&self, keyspace: KeyspaceId, key: Option<&[u8]>) -> Option<&[u8]> {
        let is_before = |block: &BlockKey| match key {
            Some(key) => block.sort_key() < (keyspace, key),
            None => block.keyspace <= keyspace,
        };
        let previous = self.blocks.partition_point(is_before).checked_sub(1)?;
        assert!(previous < self.len(), "block {previous} of {}", self.len());
        Some(&self.blocks[previous]).filter(|block| block.keyspace == keyspace).map(|block| &block.key[..])
    }

    /// Reads a block through the cache.
    pub(super) fn read(&self, block: usize) -> Result<Arc<AlignedBuffer>> {
        self.cache.get_or_read(self.blocks[block].number, |bytes| self.read_into(block, bytes))
    }

    /// Reads a block into a buffer, bypassing the cache.
    pub(super) fn read_into(&self, block: usize, bytes: &mut AlignedBuffer) -> Result<()> {
        self.place(block).read(bytes)
    }

    /// Returns where a block is.
    pub(super) fn place(&self, block: usize) -> BlockPlace {
        assert!(block < self.len(), "block {block} of {}", self.len());
        BlockPlace { file: Arc::clone(&self.file), number: self.blocks[block].number, run: self.number }
    }
}

/// A block of a run in its file. The run must exist for as long as this is used.
pub(super) struct BlockPlace {
    file: Arc<SpillFile>,
    number: u32,
    run: u64,
}

impl BlockPlace {
    /// Writes what has been added to the buffer, which is empty afterwards.
    fn write(&self, buffer: &mut BlockBuffer) -> Result<()> {
        let written = self.file.write(self.number, buffer.seal(self.run));
        written.map_err(|error| write_error(&self.file, error))
    }

    /// Reads and verifies the block.
    pub(super) fn read(&self, bytes: &mut AlignedBuffer) -> Result<()> {
        let path = || self.file.path();
        let corrupted = |reason: &str| {
            let at = u64::from(self.number) * self.file.block_bytes as u64;
            Error::corrupted(&path(), format!("a block of spilled rows at byte {at}"), reason)
        };
        match self.file.read(self.number, bytes) {
            Ok(()) if verify(bytes, self.run) => Ok(()),
            Ok(()) => Err(corrupted("its checksum does not match")),
            // The file is too short if a write was lost.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(corrupted("the file ends before it"))
            }
            Err(error) => Err(Error::io("reading", &path(), error)),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // In a forked child, a mutex may have been locked by a thread that exists only in the parent.
        if !self.file.is_here() {
            return;
        }
        let numbers: Vec<u32> = self.blocks.iter().map(|block| block.number).collect();
        self.cache.forget(&numbers);
        self.file.release(&numbers);
    }
}

/// Returns the error of a failed write.
fn write_error(file: &SpillFile, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::disk_full(file.folder_path(), file.block_bytes as u64)
        }
        _ => Error::io("writing", &file.path(), error),
    }
}

/// Writes a run.
pub(crate) struct RunWriter {
    /// A write that a thread of the pool makes while the next block is filled. It is the first field, because its drop
    /// waits for the write, after which the run may release the block.
    writing: Option<Deferred<BlockBuffer>>,
    run: Run,
    buffer: BlockBuffer,
    /// The other buffer, unless it is being written. Without a pool there is only one buffer.
    other: Option<BlockBuffer>,
    pool: Option<Arc<Pool>>,
    /// The index entry of the block in the buffer, once the block has a row; and the key of the last row.
    first: Option<BlockKey>,
    last_key: (KeyspaceId, Vec<u8>),
    _memory: Grant,
}

impl RunWriter {
    /// With a pool, and memory for two blocks, writes a block while the next one is filled.
    pub(super) fn new(
        number: u64,
        file: &Arc<SpillFile>,
        cache: &Arc<Cache>,
        budget: &Arc<Budget>,
        pool: Option<&Arc<Pool>>,
    ) -> RunWriter {
        let mut memory = budget.grant(Account::Spilled);
        memory.take(file.block_bytes as u64);
        let pool = pool.filter(|_| memory.cover(2 * file.block_bytes as u64)).cloned();
        RunWriter {
            writing: None,
            other: pool.is_some().then(|| BlockBuffer::new(file.block_bytes)),
            pool,
            run: Run {
                number,
                last: Timestamp(0),
                keyspaces: KeyspaceId(0)..=KeyspaceId(0),
                blocks: Vec::new(),
                large: Vec::new(),
                file: Arc::clone(file),
                cache: Arc::clone(cache),
                memory: budget.grant(Account::Spilled),
            },
            buffer: BlockBuffer::new(file.block_bytes),
            first: None,
            last_key: (KeyspaceId(0), Vec::new()),
            _memory: memory,
        }
    }

    /// Appends a row. Rows must be added in the order of a run.
    pub(crate) fn push(&mut self, row: SpilledRow<'_>) -> Result<()> {
        let last = (self.last_key.0, &self.last_key.1[..]);
        assert!(last <= (row.keyspace, row.key), "rows of a run are out of order");
        if !self.buffer.push(row) {
            self.write()?;
            let fits = self.buffer.push(row);
            assert!(fits, "an empty block has no room for a row");
        }
        if self.first.is_none() {
            let (keyspace, last) = &self.last_key;
            let key = separator(if *keyspace == row.keyspace { last } else { &[] }, row.key);
            self.first = Some(BlockKey { keyspace: row.keyspace, key: key.into(), number: 0 });
        }
        self.last_key.0 = row.keyspace;
        self.last_key.1.clear();
        self.last_key.1.extend_from_slice(row.key);
        self.run.last = self.run.last.max(row.timestamp);
        if let Some(RowValue::Large(reference)) = row.was {
            self.run.large.push((row.keyspace, reference));
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let Some(first) = self.first.take() else { return Ok(()) };
        let number = self.run.file.allocate().map_err(|error| write_error(&self.run.file, error))?;
        let sort_key = first.sort_key();
        assert!(self.run.blocks.last().is_none_or(|last| last.sort_key() <= sort_key), "blocks are out of order");
        self.run.memory.take((size_of::<BlockKey>() * 2 + heap_bytes(first.key.len())) as u64);
        self.run.blocks.push(BlockKey { number, ..first });
        let place = self.run.place(self.run.len() - 1);
        let Some(pool) = &self.pool else { return place.write(&mut self.buffer) };
        let written = self.writing.take().map(Deferred::wait).transpose()?;
        let empty = written.or(self.other.take()).expect("one buffer is filled while the other is written");
        let mut full = std::mem::replace(&mut self.buffer, empty);
        self.writing = Some(Deferred::begin(pool, move |_| place.write(&mut full).map(|()| full)));
        Ok(())
    }

    /// Writes the last block. Returns the run, or `None` if it has no rows.
    pub(super) fn finish(mut self) -> Result<Option<Run>> {
        self.write()?;
        self.writing.take().map(Deferred::wait).transpose()?;
        let large_bytes = self.run.large.len() * (2 * size_of::<(KeyspaceId, LargeRef)>() + HELD_BYTES);
        self.run.memory.take(large_bytes as u64);
        let Some(first) = self.run.blocks.first() else { return Ok(None) };
        assert!(self.run.last > Timestamp(0), "a run of no commit");
        assert!(first.keyspace <= self.last_key.0, "keyspaces of a run are out of order");
        self.run.keyspaces = first.keyspace..=self.last_key.0;
        Ok(Some(self.run))
    }
}

/// Returns the shortest prefix of `key` that is greater than `last`. If the two are equal, returns `key`.
fn separator<'k>(last: &[u8], key: &'k [u8]) -> &'k [u8] {
    let common = last.iter().zip(key).take_while(|(left, right)| left == right).count();
    debug_assert!(last <= key, "a key is below the one before");
    let separator = &key[..key.len().min(common + 1)];
    debug_assert!(last < separator || last == key, "a separator is not above the key before");
    separator
}
