//! The memory budget: how it is divided, and how much of each part is taken.
//!
//! # Invariants
//! 1. The parts add up to the budget at most ([`Budget::new`]). They are fixed when the database is opened.
//! 2. Whoever keeps memory takes it from its part before allocating. What varies with the use of the database is a [`Grant`],
//!    given back when it is dropped; buffers and frames are counted by the lists that own them.
//! 3. A part bounds the sum over the whole database, not the share of one transaction. What does not fit waits, where waiting
//!    ends without anybody's help, or gets an error.
//!
//! Estimates of containers are of their worst ordinary state: trees half full, tables that have just doubled.

mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

pub(crate) use turns::Turns;

/// What a part of the budget is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Frames with their headers, and page tables, which grow at the expense of frames.
    Pages,
    /// Append buffers of the log.
    Log,
    /// What rows were before their newest commits.
    Versions,
    /// Write sets, row locks and read sets of open transactions.
    Transactions,
    /// What a commit needs until it is applied: its record, and images of its values.
    Commits,
    /// Changes of page tables that no base image has yet.
    Entries,
    /// Buffers that extents are read into.
    Reads,
    /// Buffers that extents are written from.
    Writes,
    /// What every open database has: slots of commits in flight, empty lock tables, queues.
    Fixed,
    /// Of the pages: those that commits under way keep from being evicted. No part of its own.
    Held,
}

const USE_COUNT: usize = Use::ALL.len() + 1;

impl Use {
    pub(crate) const ALL: [Use; 9] = [
        Use::Pages,
        Use::Log,
        Use::Versions,
        Use::Transactions,
        Use::Commits,
        Use::Entries,
        Use::Reads,
        Use::Writes,
        Use::Fixed,
    ];

    /// For figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Use::Pages => "pages",
            Use::Log => "log",
            Use::Versions => "versions",
            Use::Transactions => "transactions",
            Use::Commits => "commits",
            Use::Entries => "table changes",
            Use::Reads => "read buffers",
            Use::Writes => "write buffers",
            Use::Fixed => "fixed",
            Use::Held => "held pages",
        }
    }
}

/// Write buffers: of each epoch's appender and of the mover, and as many more on their way to the disk.
pub(crate) const WRITE_BUFFER_COUNT: usize = 6;

/// Slots of commits in flight, 64 shards of row locks with tables that are kept, and what is small.
const FIXED_BYTES: u64 = 384 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Budget {
    total_bytes: u64,
    limits: [AtomicU64; USE_COUNT],
    taken: [CachePadded<AtomicU64>; USE_COUNT],
    /// Commits that wait to begin, and for room for versions.
    pub(crate) commits: Turns,
    pub(crate) versions: Turns,
}

impl Budget {
    /// Divides `total_bytes`, for a log of so many streams.
    pub(crate) fn new(total_bytes: u64, log_streams: u16) -> Budget {
        let total = total_bytes;
        let budget = Budget {
            total_bytes,
            limits: Default::default(),
            taken: Default::default(),
            commits: Turns::default(),
            versions: Turns::default(),
        };
        // The first stream can take the largest transaction, twice, and the others together as much, or what they need.
        let first = 2 * (budget.transaction_bytes_max() + (16 << 10));
        let others = u64::from(log_streams) - 1;
        let log = first + (others * first).min(total / 16).max(others * (32 << 10));
        let taken = [
            (Use::Log, log),
            (Use::Versions, total / 32 * 3),
            (Use::Transactions, total / 32 * 3),
            // The largest record, and what comes with it.
            (Use::Commits, budget.transaction_bytes_max() + (total / 64).min(4 << 20)),
            (Use::Entries, total / 32),
            (Use::Reads, (total / 32).clamp(256 << 10, 8 << 20)),
            (Use::Writes, (WRITE_BUFFER_COUNT * budget.write_buffer_bytes()) as u64),
            (Use::Fixed, FIXED_BYTES),
        ];
        let sum: u64 = taken.iter().map(|(_, bytes)| bytes).sum();
        for (of, bytes) in taken.into_iter().chain([(Use::Pages, total.saturating_sub(sum))]) {
            budget.set_limit_bytes(of, bytes);
        }
        budget.set_held_of(budget.limit_bytes(Use::Pages));
        budget
    }

    /// The whole of it.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// What a part may take at the most.
    pub(crate) fn limit_bytes(&self, of: Use) -> u64 {
        self.limits[of as usize].load(Ordering::Relaxed)
    }

    fn set_limit_bytes(&self, of: Use, bytes: u64) {
        self.limits[of as usize].store(bytes, Ordering::Relaxed);
    }

    /// Commits may hold half of the frames, which are so many bytes: the rest serves everybody else.
    pub(crate) fn set_held_of(&self, frame_bytes: u64) {
        self.set_limit_bytes(Use::Held, frame_bytes / 2);
    }

    /// What is granted of a part.
    pub(crate) fn taken_bytes(&self, of: Use) -> u64 {
        self.taken[of as usize].load(Ordering::Relaxed)
    }

    /// The rows that one transaction may put, in bytes of the log.
    pub(crate) fn transaction_bytes_max(&self) -> u64 {
        (self.total_bytes / 32).min(8 << 20)
    }

    /// What one transaction may keep in memory: its rows, their index, its locks, what it has read.
    pub(crate) fn transaction_memory_max(&self) -> u64 {
        self.total_bytes / 16
    }

    /// Bytes of versions past which the oldest snapshot is ended; what is left of their part is for commits under way.
    pub(crate) fn version_bytes_max(&self) -> u64 {
        self.total_bytes / 16
    }

    /// A buffer that extents are written from: as large as the device works at its bandwidth, less in little memory.
    pub(crate) fn write_buffer_bytes(&self) -> usize {
        (self.total_bytes as usize / 64).next_power_of_two().clamp(128 << 10, 256 << 10)
    }

    /// A grant of nothing, to be enlarged.
    pub(crate) fn grant(self: &Arc<Self>, of: Use) -> Grant {
        Grant { budget: Arc::clone(self), of, bytes: 0 }
    }

    fn try_take(&self, of: Use, bytes: u64) -> bool {
        let taken = &self.taken[of as usize];
        if taken.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.limit_bytes(of) {
            return true;
        }
        taken.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    /// Takes what has been granted already, or can't be refused.
    pub(crate) fn take(&self, of: Use, bytes: u64) {
        self.taken[of as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back what was taken.
    pub(crate) fn give(&self, of: Use, bytes: u64) {
        let before = self.taken[of as usize].fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "memory given back twice");
        match of {
            Use::Commits | Use::Held => self.commits.announce(),
            Use::Versions => self.versions.announce(),
            _ => {}
        }
    }
}

/// Memory that somebody may keep, until it is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    budget: Arc<Budget>,
    of: Use,
    bytes: u64,
}

/// What a grant that is enlarged step by step begins with: a few rows.
const GRANT_BYTES_MIN: u64 = 1 << 10;

impl Grant {
    /// What its part may take at the most.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.budget.limit_bytes(self.of)
    }

    /// A grant of nothing of the same part.
    pub(crate) fn another(&self) -> Grant {
        self.budget.grant(self.of)
    }

    /// Covers so many bytes in all; `false` where the part has no more. In steps of a quarter, so that what the whole database
    /// shares is touched seldom.
    pub(crate) fn cover(&mut self, bytes: u64) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let generous = (bytes + bytes / 4).max(GRANT_BYTES_MIN);
        let enlarged = [generous, bytes].into_iter().find(|all| self.budget.try_take(self.of, all - self.bytes));
        self.bytes = enlarged.unwrap_or(self.bytes);
        enlarged.is_some()
    }

    /// Covers exactly so many bytes; `false` where the part has no more.
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes && !self.budget.try_take(self.of, bytes - self.bytes) {
            return false;
        }
        if bytes < self.bytes {
            self.budget.give(self.of, self.bytes - bytes);
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.give(self.of, self.bytes);
    }
}

/// What an allocation takes of the heap: units of 16 bytes, a word of them the allocator's.
pub(crate) fn heap_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

/// The capacity of a vector that grows by [`reserve`].
pub(crate) fn grown_capacity(length: usize, capacity: usize, more: usize) -> usize {
    if length + more <= capacity { capacity } else { (length + more).max(capacity + capacity / 4 + 4) }
}

/// Makes room in a vector by quarters of its length: a vector that doubles holds up to half of its memory in vain.
pub(crate) fn reserve<T>(vector: &mut Vec<T>, more: usize) {
    let capacity = grown_capacity(vector.len(), vector.capacity(), more);
    vector.reserve_exact(capacity - vector.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts are the whole, at every size and number of logs, and pages have more than a third of it.
    #[test]
    fn parts_add_up_to_the_budget() {
        for total in (23..40).map(|shift| 1 << shift) {
            for streams in [1, 2, 16, 64] {
                let budget = Budget::new(total, streams);
                let sum: u64 = Use::ALL.iter().map(|of| budget.limit_bytes(*of)).sum();
                assert_eq!(sum, total);
                let pages = budget.limit_bytes(Use::Pages);
                assert!(pages > total / if streams == 64 { 6 } else { 3 }, "{pages} of {total}, {streams} streams");
            }
        }
    }

    /// A part gives no more than it has, and has all of it again when the grants are gone.
    #[test]
    fn a_part_gives_what_it_has() {
        let budget = Arc::new(Budget::new(8 << 20, 1));
        let limit = budget.limit_bytes(Use::Transactions);
        let (mut first, mut second) = (budget.grant(Use::Transactions), budget.grant(Use::Transactions));
        assert!(first.cover(limit - 100) && !second.cover(200) && second.cover(100));
        assert_eq!(budget.taken_bytes(Use::Transactions), limit);
        assert!(!second.resize(101) && second.resize(10) && first.resize(limit - 10));
        drop((first, second));
        assert_eq!(budget.taken_bytes(Use::Transactions), 0);
    }
}
