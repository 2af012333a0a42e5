//! The most recently read blocks of runs. A scan needs the same block for many leaves.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::Result;
use crate::io::AlignedBuffer;
use crate::memory::{Account, Budget, Grant};
use crate::sync::Mutex;

/// The minimum size of a cache of more than one block. Two runs of old versions do not take turns for one block.
const CACHE_BYTES_MIN: usize = 128 << 10;
/// The maximum number of blocks in a cache.
const BLOCKS_MAX: usize = 256;

/// A cache of blocks, evicted in LRU order.
#[derive(Debug)]
pub(super) struct Cache {
    /// The cached blocks, from the least to the most recently used.
    blocks: Mutex<VecDeque<CachedBlock>>,
    block_bytes: usize,
    count_max: usize,
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct CachedBlock {
    number: u32,
    bytes: Arc<AlignedBuffer>,
    _memory: Grant,
}

impl Cache {
    /// Creates a cache of blocks of this size that may use a third of the memory for spilled rows.
    pub(super) fn new(budget: &Arc<Budget>, block_bytes: usize) -> Cache {
        let count_min = (CACHE_BYTES_MIN / block_bytes).max(1);
        let share = budget.limit_bytes(Account::Spilled) / 3 / block_bytes as u64;
        let count_max = (share as usize).clamp(count_min, BLOCKS_MAX);
        assert!(count_max > 0, "no block is kept");
        Cache { blocks: Mutex::default(), block_bytes, count_max, budget: Arc::clone(budget) }
    }

    /// Returns a block. If it is not in the cache, calls `read` to read it into a buffer.
    pub(super) fn get_or_read(
        &self,
        number: u32,
        read: impl FnOnce(&mut AlignedBuffer) -> Result<()>,
    ) -> Result<Arc<AlignedBuffer>> {
        if let Some(bytes) = self.get(number) {
            return Ok(bytes);
        }
        let mut bytes = AlignedBuffer::zeroed(self.block_bytes);
        read(&mut bytes)?;
        let bytes = Arc::new(bytes);
        let mut memory = self.budget.grant(Account::Spilled);
        memory.take(self.block_bytes as u64);
        let mut dropped = None;
        let mut blocks = self.blocks.lock();
        if blocks.len() == self.count_max {
            dropped = blocks.pop_front();
        }
        blocks.push_back(CachedBlock { number, bytes: Arc::clone(&bytes), _memory: memory });
        assert!(blocks.len() <= self.count_max, "{} blocks are kept", blocks.len());
        drop(blocks);
        drop(dropped);
        Ok(bytes)
    }

    fn get(&self, number: u32) -> Option<Arc<AlignedBuffer>> {
        let mut blocks = self.blocks.lock();
        let at = blocks.iter().rposition(|block| block.number == number)?;
        let block = blocks.remove(at)?;
        assert!(block.number == number, "block {} is found for {number}", block.number);
        let bytes = Arc::clone(&block.bytes);
        blocks.push_back(block);
        Some(bytes)
    }

    /// Removes blocks that a run has released. Other runs will reuse their numbers.
    pub(super) fn forget(&self, numbers: &[u32]) {
        let numbers: std::collections::BTreeSet<u32> = numbers.iter().copied().collect();
        self.blocks.lock().retain(|block| !numbers.contains(&block.number));
    }
}
