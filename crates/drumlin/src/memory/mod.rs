//! The memory budget: how it is divided, and how much of each part is taken.
//!
//! # Invariants
//! 1. The parts add up to the budget at most ([`Budget::new`]). They are fixed when the database is opened. Of the
//!    account of pages, page tables take their memory and frames have the rest: the next commit has frames beyond it
//!    given up.
//! 2. Memory is taken from its account before it is allocated. Amounts that vary with the use of the database are held
//!    by a [`Grant`], which returns them on drop; buffers and frames are counted by the lists that own them.
//! 3. An account bounds the sum over the whole database, not the share of one transaction. A request that does not fit
//!    waits, if the wait ends without anybody's help, or fails.
//!
//! Estimates of containers are of their worst ordinary state: trees half full, tables that have just doubled.

mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

pub(crate) use turns::WaitQueue;

/// The purpose of a part of the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Account {
    /// Frames with their headers, and page tables, which grow at the expense of frames.
    Pages,
    /// Append buffers of the log, and what it is read through.
    Log,
    /// Old versions of rows.
    Versions,
    /// Write sets, row locks and read sets of open transactions, and row locks of plain writes that wait.
    Transactions,
    /// The memory of a commit until it is applied: its record, images of its values, and the row lock of a plain write.
    /// Not that of a single row with a short record, which is in a vector of its thread's.
    Commits,
    /// Changes of page tables that no base image has yet.
    TableChanges,
    /// Buffers that extents are read into, and chunks of large values are packed and unpacked in.
    Reads,
    /// Rows and values copied by scans and readers.
    Copies,
    /// Large values on their way through users' code: chunks that sources are about to fill, values that reducers look
    /// at.
    Sources,
    /// Buffers that extents are written from.
    Writes,
    /// The fixed memory of an open database: slots of commits in flight, empty lock tables, queues.
    Fixed,
    /// Of the pages: those that commits under way keep from being evicted. No part of its own.
    Pinned,
    /// Of the pages: page tables. No part of its own.
    Tables,
    /// Of the pages: buffers of bulk loads, in which they write and sort. No part of its own.
    Loads,
    /// Of the pages: counts of rows. No part of its own.
    Counts,
    /// Of the pages: states of reducers, which are dropped if others of the part need the memory. No part of its own.
    States,
    /// Of the pages: what is in memory of versions that were spilled. No part of its own.
    Spilled,
}

const USE_COUNT: usize = Account::ALL.len() + 6;

impl Account {
    pub(crate) const ALL: [Account; 11] = [
        Account::Pages,
        Account::Log,
        Account::Versions,
        Account::Transactions,
        Account::Commits,
        Account::TableChanges,
        Account::Reads,
        Account::Copies,
        Account::Sources,
        Account::Writes,
        Account::Fixed,
    ];

    /// For figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Account::Pages => "pages",
            Account::Log => "log",
            Account::Versions => "versions",
            Account::Transactions => "transactions",
            Account::Commits => "commits",
            Account::TableChanges => "table changes",
            Account::Reads => "read buffers",
            Account::Copies => "copies for readers",
            Account::Sources => "sources of values",
            Account::Writes => "write buffers",
            Account::Fixed => "fixed",
            Account::Pinned => "pinned pages",
            Account::Tables => "page tables",
            Account::Loads => "bulk loads",
            Account::Counts => "counts of rows",
            Account::States => "states of reducers",
            Account::Spilled => "spilled versions",
        }
    }
}

/// Write buffers: of each epoch's appender and of the mover, and as many more on their way to the disk.
pub(crate) const WRITE_BUFFER_COUNT: usize = 6;

/// The memory of a writer of a large value: a chunk, and the bytes read to tell that it is large.
pub(crate) const SOURCE_BYTES_MAX: u64 = (256 << 10) + (64 << 10);

/// Encoders of pages that are kept: of evictions, a checkpoint and a commit at once.
pub(crate) const ENCODER_COUNT: usize = 4;

/// The memory of an encoder that is kept, besides 8 KiB of a compressor: those of pages of up to 8 KiB.
pub(crate) const ENCODER_BYTES_MAX: usize = 12 << 10;

/// Slots of commits in flight, 64 shards of row locks with tables that are kept, encoders, and what is small.
const FIXED_BYTES: u64 = (384 << 10) + (ENCODER_COUNT * (ENCODER_BYTES_MAX + (8 << 10))) as u64;

/// Bytes of a logged change of a page table.
pub(crate) const CHANGE_BYTES: u64 = 24;

/// See the module.
#[derive(Debug)]
pub(crate) struct Budget {
    total_bytes: u64,
    log_streams: u16,
    /// Of the parts in [`Account::ALL`].
    limits: [u64; Account::ALL.len()],
    taken: [CachePadded<AtomicU64>; USE_COUNT],
    /// Commits that wait to begin, and for room for versions.
    pub(crate) commits: WaitQueue,
    pub(crate) versions: WaitQueue,
    /// Writers of large values that wait for a chunk.
    pub(crate) sources: WaitQueue,
    /// Plain writes that wait for the memory of a row lock before they wait for the row.
    pub(crate) locks: WaitQueue,
}

impl Budget {
    /// The least memory that a database with a log of so many streams can work in: 8 MiB. Simulations make do with
    /// less, to see it run short.
    pub(crate) fn bytes_min(log_streams: u16) -> u64 {
        if cfg!(feature = "sim") { (4 << 20) + u64::from(log_streams.saturating_sub(1)) * (64 << 10) } else { 8 << 20 }
    }

    /// Divides `total_bytes`, for a log of so many streams.
    pub(crate) fn new(total_bytes: u64, log_streams: u16) -> Budget {
        let total = total_bytes;
        let mut budget = Budget {
            total_bytes,
            log_streams,
            limits: Default::default(),
            taken: Default::default(),
            commits: WaitQueue::default(),
            versions: WaitQueue::default(),
            sources: WaitQueue::default(),
            locks: WaitQueue::default(),
        };
        // The first stream can take the largest transaction, twice, and the others together as much, or what they need.
        let first = 2 * (budget.transaction_bytes_max() + (16 << 10));
        let others = u64::from(log_streams) - 1;
        let log =
            first + (others * first).min(total / 16).max(others * (32 << 10)) + budget.log_reader_bytes(log_streams);
        let taken = [
            (Account::Log, log),
            (Account::Versions, total / 32 * 3),
            // The largest transaction, a copy of its write set for an open scan, and what both have been granted in
            // advance: of writes, of locks, of reads.
            (Account::Transactions, 2 * budget.transaction_memory_max() + 3 * GRANT_STEP_BYTES_MAX),
            // The largest record, and what comes with it.
            (Account::Commits, budget.transaction_bytes_max() + (total / 64).min(4 << 20)),
            (Account::TableChanges, total / 32),
            // A chunk of a large value, twice, at least.
            (Account::Reads, (total / 32).clamp(544 << 10, 8 << 20)),
            (Account::Copies, (total / 16).saturating_sub(256 << 10).max(total / 32)),
            // A chunk, with what comes before it, at least.
            (Account::Sources, (total / 32).max(SOURCE_BYTES_MAX)),
            (Account::Writes, (WRITE_BUFFER_COUNT * budget.write_buffer_bytes()) as u64),
            (Account::Fixed, FIXED_BYTES),
        ];
        let sum: u64 = taken.iter().map(|(_, bytes)| bytes).sum();
        for (of, bytes) in taken.into_iter().chain([(Account::Pages, total.saturating_sub(sum))]) {
            budget.limits[of as usize] = bytes;
        }
        budget
    }

    /// A budget whose pages have so many bytes.
    #[cfg(test)]
    pub(crate) fn of_pages(bytes: u64) -> Arc<Budget> {
        let mut budget = Budget::new(8 << 20, 1);
        budget.limits[Account::Pages as usize] = bytes;
        Arc::new(budget)
    }

    /// The whole of it.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The most that an account may grant.
    pub(crate) fn limit_bytes(&self, of: Account) -> u64 {
        match of {
            // The other half of the frames serves everybody else.
            Account::Pinned => self.frame_bytes_max() / 2,
            // A quarter is left to frames and their headers, which stay when frames go: a ninth of the memory where
            // pages have 512 bytes. And to what commits add that were let pass before others had grown their tables.
            Account::Tables => table_bytes_max(self.limits[Account::Pages as usize], self.taken_beside_tables()),
            // Reads and writes beside the load need frames too, and so do tables that grow.
            Account::Loads => {
                let bytes = self.limits[Account::Pages as usize];
                let others = [Account::Tables, Account::Counts, Account::Spilled].map(|of| self.taken_bytes(of));
                let others: u64 = others.iter().sum();
                (bytes / 4 * 3).saturating_sub(others).min(bytes / 2)
            }
            // An eighth leaves page tables their three quarters.
            Account::Counts => {
                let bytes = self.limits[Account::Pages as usize];
                let others = [Account::Tables, Account::Loads, Account::Spilled].map(|of| self.taken_bytes(of));
                let others: u64 = others.iter().sum();
                (bytes / 8 * 7).saturating_sub(others).min(bytes / 8)
            }
            // A state is a hundredth of the leaf whose rows it spares. States give way: to loads from their beginning
            // on, and to page tables, which grow by less than the eighth that is left between two checkpoints, when
            // the engine looks at this limit.
            Account::States => {
                let bytes = self.limits[Account::Pages as usize];
                let loads = if self.taken_bytes(Account::Loads) > 0 { bytes / 2 } else { 0 };
                let others = [Account::Tables, Account::Counts, Account::Spilled].map(|of| self.taken_bytes(of));
                let others = others.iter().sum::<u64>() + loads;
                (bytes / 4 * 3).saturating_sub(others).min(bytes / 4)
            }
            // Beyond it nothing more is spilled.
            Account::Spilled => self.limits[Account::Pages as usize] / 8,
            _ => self.limits[of as usize],
        }
    }

    /// The limit of frames with their headers: the account of pages without page tables, buffers of bulk loads, counts
    /// and states.
    /// An eighth of it at least, so that a database whose log has more pages than a commit may add can still be opened,
    /// and rows removed.
    pub(crate) fn frame_bytes_max(&self) -> u64 {
        let bytes = self.limits[Account::Pages as usize];
        let beside = [Account::Tables, Account::Loads, Account::Counts, Account::States, Account::Spilled];
        let taken_bytes = beside.map(|of| self.taken_bytes(of));
        let taken_bytes: u64 = taken_bytes.iter().sum();
        bytes.saturating_sub(taken_bytes).max(bytes / 8)
    }

    /// A budget that is needed for page tables to grow by so many bytes more; `None` where they may in this one. Asked
    /// before a commit adds pages or a keyspace: page tables are never evicted.
    pub(crate) fn needed_for_growth(&self, more_bytes: u64) -> Option<u64> {
        let bytes = self.taken_bytes(Account::Tables) + more_bytes;
        let others = self.taken_beside_tables();
        (bytes > self.limit_bytes(Account::Tables)).then(|| self.total_for_tables(bytes, others))
    }

    /// A budget that is needed for a database to be opened whose page tables take so many bytes; `None` where this one
    /// will do. They may take more than by commits, all but the least that frames have: a database that was made in a
    /// budget can be opened in it.
    pub(crate) fn needed_for_opening(&self, bytes: u64) -> Option<u64> {
        (bytes > self.limits[Account::Pages as usize] / 8 * 7).then(|| self.total_for_tables(bytes, 0))
    }

    /// Bytes that loads and counts have taken of the pages' part. States and spilled versions give way to page tables.
    fn taken_beside_tables(&self) -> u64 {
        self.taken_bytes(Account::Loads) + self.taken_bytes(Account::Counts)
    }

    /// A budget in which page tables may come to so many bytes by commits, while others take as large a share as those
    /// bytes of this one; to 64 KiB the least.
    fn total_for_tables(&self, bytes: u64, others: u64) -> u64 {
        const STEP_BYTES: u64 = 64 << 10;
        const TOTAL_MAX: u64 = 1 << 62;
        let pages_bytes = |budget: &Budget| u128::from(budget.limits[Account::Pages as usize]);
        let carries = |total| {
            let pages = pages_bytes(&Budget::new(total, self.log_streams));
            let others = u128::from(others) * pages / pages_bytes(self);
            table_bytes_max(pages as u64, others as u64) >= bytes
        };
        let mut low = self.total_bytes;
        let mut high = low;
        while !carries(high) && high < TOTAL_MAX {
            low = high;
            high *= 2;
        }
        while high - low > STEP_BYTES {
            let middle = low + (high - low) / 2;
            if carries(middle) { high = middle } else { low = middle }
        }
        high
    }

    /// The bytes granted from an account.
    pub(crate) fn taken_bytes(&self, of: Account) -> u64 {
        self.taken[of as usize].load(Ordering::Relaxed)
    }

    /// The buffers through which a log of so many streams is read while it is open, to examine it: at least a block
    /// each.
    pub(crate) fn log_reader_bytes(&self, log_streams: u16) -> u64 {
        (self.total_bytes / 128).clamp(64 << 10, 2 << 20).max(u64::from(log_streams) * (4 << 10))
    }

    /// The rows that one transaction may put, in bytes of the log.
    pub(crate) fn transaction_bytes_max(&self) -> u64 {
        (self.total_bytes / 32).min(8 << 20)
    }

    /// The most that one transaction may keep in memory: its rows, their index, its locks, its read set.
    pub(crate) fn transaction_memory_max(&self) -> u64 {
        self.total_bytes / 16
    }

    /// The most bytes of leaves that a serializable commit may pin to validate them.
    pub(crate) fn validated_bytes_max(&self) -> u64 {
        self.limit_bytes(Account::Pinned) / 2
    }

    /// Bytes of versions past which the oldest snapshot is ended; what is left of their part is for commits under way.
    pub(crate) fn version_bytes_max(&self) -> u64 {
        self.total_bytes / 16
    }

    /// The most changes of page tables in one epoch before its checkpoint must begin, and the number since the base
    /// image at which a checkpoint folds them. Memory holds this many since the base image, this many of the newest
    /// epoch, and twice this many of the epoch that ends, while they are copied. Vectors grow by quarters, so the part
    /// has five fourths of these four.
    pub(crate) fn epoch_changes_max(&self) -> u64 {
        self.limit_bytes(Account::TableChanges) / CHANGE_BYTES / 5
    }

    /// A buffer that extents are written from: as large as the device works at its bandwidth, less in little memory.
    pub(crate) fn write_buffer_bytes(&self) -> usize {
        if self.total_bytes < 16 << 20 { 128 << 10 } else { 256 << 10 }
    }

    /// A grant of nothing, to be enlarged.
    pub(crate) fn grant(self: &Arc<Self>, of: Account) -> Grant {
        Grant { budget: Arc::clone(self), of, bytes: 0 }
    }

    /// Takes memory of an account for the time of a call, if the account's queue is empty. A refusal changes
    /// nothing.
    pub(crate) fn try_hold(&self, of: Account, bytes: u64) -> Option<Held<'_>> {
        let is_awaited = self.queue(of).is_some_and(WaitQueue::are_awaited);
        (!is_awaited && self.try_take(of, bytes)).then(|| Held { budget: self, of, bytes })
    }

    /// Grants of two accounts, or of neither. A request above the limit takes all of it. The limit is read once: one
    /// that sinks in between would refuse for ever a request beside which nothing is taken. The undoing of a half
    /// announces nothing: its commit may be the first in the queue, and would wake itself for ever.
    pub(crate) fn try_grant_both(self: &Arc<Self>, parts: [(Account, u64); 2]) -> Option<[Grant; 2]> {
        let [first, second] = parts.map(|(of, bytes)| (of, bytes, self.limit_bytes(of)));
        let [first, second] = [first, second].map(|(of, bytes, limit)| (of, bytes.min(limit), limit));
        if !self.try_take_within(first) {
            return None;
        }
        if !self.try_take_within(second) {
            self.taken[first.0 as usize].fetch_sub(first.1, Ordering::SeqCst);
            return None;
        }
        Some([first, second].map(|(of, bytes, _)| Grant { budget: Arc::clone(self), of, bytes }))
    }

    fn try_take(&self, of: Account, bytes: u64) -> bool {
        self.try_take_within((of, bytes, self.limit_bytes(of)))
    }

    /// A refused attempt changes nothing, not even for a moment: the first in a queue, who looks meanwhile, would not
    /// be woken again.
    fn try_take_within(&self, (of, bytes, limit): (Account, u64, u64)) -> bool {
        let enlarged = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        self.taken[of as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, enlarged).is_ok()
    }

    /// Takes what has been granted already, or can't be refused.
    pub(crate) fn take(&self, of: Account, bytes: u64) {
        self.taken[of as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back what was taken.
    pub(crate) fn give(&self, of: Account, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let before = self.taken[of as usize].fetch_sub(bytes, Ordering::SeqCst);
        assert!(before >= bytes, "memory given back twice");
        if let Some(waiting) = self.queue(of) {
            waiting.announce();
        }
    }

    /// The queue of a part that is taken in the order of asking.
    pub(crate) fn queue(&self, of: Account) -> Option<&WaitQueue> {
        match of {
            Account::Commits | Account::Pinned => Some(&self.commits),
            Account::Versions => Some(&self.versions),
            Account::Sources => Some(&self.sources),
            Account::Transactions => Some(&self.locks),
            _ => None,
        }
    }
}

/// Memory that its owner may keep, until it is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    budget: Arc<Budget>,
    of: Account,
    bytes: u64,
}

/// Memory that a call has taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held<'b> {
    budget: &'b Budget,
    of: Account,
    bytes: u64,
}

impl Held<'_> {
    /// Leaves so many of the bytes taken, for an owner that counts them and gives them back itself.
    #[inline]
    pub(crate) fn keep(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} bytes are kept of {self:?}");
        self.bytes -= bytes;
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.budget.give(self.of, self.bytes);
    }
}

/// The most that page tables take of the pages' part, beside what loads and counts have taken of it.
fn table_bytes_max(pages_bytes: u64, others: u64) -> u64 {
    (pages_bytes / 8 * 7).saturating_sub(others).min(pages_bytes / 4 * 3)
}

/// The first step of a grant that is enlarged step by step: a few rows.
const GRANT_BYTES_MIN: u64 = 1 << 10;

/// The most that it covers in advance.
const GRANT_STEP_BYTES_MAX: u64 = 16 << 10;

impl Grant {
    /// The most that its account may grant.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.budget.limit_bytes(self.of)
    }

    /// The bytes that it covers.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A grant of nothing of the same part.
    pub(crate) fn another(&self) -> Grant {
        self.budget.grant(self.of)
    }

    /// Covers so many bytes in all; `false` where the part has no more. In steps of a quarter, up to 16 KiB, so that
    /// what the whole database shares is touched seldom.
    pub(crate) fn cover(&mut self, bytes: u64) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let generous = (bytes + (bytes / 4).min(GRANT_STEP_BYTES_MAX)).max(GRANT_BYTES_MIN);
        let enlarged = [generous, bytes].into_iter().find(|all| self.budget.try_take(self.of, all - self.bytes));
        self.bytes = enlarged.unwrap_or(self.bytes);
        enlarged.is_some()
    }

    /// Covers more than now by `most` bytes, or by fewer, `least` of them at least: by `alone` bytes while nothing of
    /// the part is taken, and by the square of what is left then. Returns by how many; `None` where the part has less.
    /// So who comes early gets enough to work fast, and leaves enough for hundreds who come later.
    pub(crate) fn cover_share(&mut self, least: u64, most: u64, alone: u64) -> Option<u64> {
        let limit = u128::from(self.limit_bytes());
        let left = limit.saturating_sub(u128::from(self.budget.taken_bytes(self.of)));
        let share = (u128::from(alone) * left * left / (limit * limit)) as u64;
        let bytes = [share.clamp(least.min(most), most), least.min(most)];
        let bytes = bytes.into_iter().find(|bytes| self.budget.try_take(self.of, *bytes))?;
        self.bytes += bytes;
        Some(bytes)
    }

    /// Covers more by so many bytes, which can't be refused.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.budget.take(self.of, bytes);
        self.bytes += bytes;
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

/// The bytes of the heap that an allocation takes: units of 16 bytes, a word of them the allocator's.
pub(crate) fn heap_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

/// Up to this many bytes a vector doubles.
const DOUBLED_BYTES_MAX: usize = 4 << 10;

/// The capacity of a vector after [`reserve`].
#[inline]
pub(crate) fn grown_capacity<T>(vector: &Vec<T>, more: usize) -> usize {
    let (length, capacity) = (vector.len() + more, vector.capacity());
    if length <= capacity {
        return capacity;
    }
    let step = if capacity * size_of::<T>() < DOUBLED_BYTES_MAX { capacity } else { capacity / 4 };
    length.max(capacity + step + 4)
}

/// Makes room in a vector, by quarters of its length unless it is small: a vector that doubles holds up to half of its
/// memory in vain.
#[inline]
pub(crate) fn reserve<T>(vector: &mut Vec<T>, more: usize) {
    let capacity = grown_capacity(vector, more);
    vector.reserve_exact(capacity - vector.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts are the whole, and none is empty, at every budget and number of logs that is allowed; in budgets from
    /// 8 MiB on, pages have more than a third of it with one log.
    #[test]
    fn parts_add_up_to_the_budget() {
        for streams in 1..=64 {
            let least = Budget::bytes_min(streams);
            let small = (0..300).map(|step| least + step * (97 << 10));
            for total in small.chain((25..=40).map(|shift| 1 << shift)) {
                let budget = Budget::new(total, streams);
                let parts = Account::ALL.map(|of| budget.limit_bytes(of));
                assert_eq!(parts.iter().sum::<u64>(), total, "{streams} streams");
                assert!(parts.iter().all(|bytes| *bytes > 0), "{parts:?} of {total}, {streams} streams");
                // A value that is not large, whose reader has a copy of it.
                assert!(budget.limit_bytes(Account::Copies) > (64 << 10) + 16);
                let share = match streams {
                    1 => 3,
                    2..=16 => 4,
                    17..=32 => 10,
                    _ => 16,
                };
                let pages = budget.limit_bytes(Account::Pages);
                assert!(total < 8 << 20 || pages > total / share, "{pages} of {total}, {streams} streams");
            }
        }
    }

    /// An attempt that is refused takes nothing, not even for a moment: who looks then may be the only one who waits,
    /// and is not woken again.
    #[test]
    fn a_refused_attempt_takes_nothing() {
        let budget = Arc::new(Budget::new(8 << 20, 1));
        let limit = budget.limit_bytes(Account::Commits);
        let attempts = || (0..20_000).all(|_| !budget.grant(Account::Commits).resize(limit + 1));
        std::thread::scope(|scope| {
            let refused = scope.spawn(attempts);
            while !refused.is_finished() {
                assert!(budget.grant(Account::Commits).resize(limit), "there was no other");
            }
            assert!(refused.join().unwrap());
        });
    }

    /// A call gives back all that it holds at its end. It holds nothing where others wait, or the part has less.
    #[test]
    fn what_others_wait_for_is_not_held() {
        let budget = Budget::new(8 << 20, 1);
        let limit = budget.limit_bytes(Account::Commits);
        let held = budget.try_hold(Account::Commits, limit).expect("nothing is taken");
        assert!(budget.try_hold(Account::Commits, 1).is_none());
        drop(held);
        assert_eq!(budget.taken_bytes(Account::Commits), 0);
        let ticket = budget.commits.join();
        assert!(budget.try_hold(Account::Commits, 1).is_none() && budget.try_hold(Account::Versions, 1).is_some());
        drop(ticket);
        assert!(budget.try_hold(Account::Commits, 1).is_some());
    }

    /// Two parts are granted together or not at all.
    #[test]
    fn two_parts_are_granted_together() {
        let budget = Arc::new(Budget::new(8 << 20, 1));
        let limit = budget.limit_bytes(Account::Pinned);
        let both = |pinned| budget.try_grant_both([(Account::Commits, 100), (Account::Pinned, pinned)]);
        let grants = both(limit + 1);
        assert_eq!((budget.taken_bytes(Account::Commits), budget.taken_bytes(Account::Pinned)), (100, limit));
        assert!(both(1).is_none());
        assert_eq!(budget.taken_bytes(Account::Commits), 100);
        drop(grants);
        assert_eq!(budget.taken_bytes(Account::Commits) + budget.taken_bytes(Account::Pinned), 0);
    }

    /// Page tables take memory from frames, of which commits may hold half; an eighth stays.
    #[test]
    fn page_tables_take_from_frames() {
        let budget = Budget::of_pages(8000);
        budget.take(Account::Tables, 3000);
        assert_eq!((budget.frame_bytes_max(), budget.limit_bytes(Account::Pinned)), (5000, 2500));
        assert!(budget.needed_for_growth(3000).is_none() && budget.needed_for_growth(3001).is_some());
        budget.take(Account::Tables, 5000);
        assert_eq!((budget.frame_bytes_max(), budget.limit_bytes(Account::Pinned)), (1000, 500));
        budget.give(Account::Tables, 8000);
        assert_eq!(budget.frame_bytes_max(), 8000);
        assert!(budget.needed_for_opening(7000).is_none() && budget.needed_for_opening(7001).is_some());
    }

    /// The budget that is named where page tables do not fit carries them, and one a little smaller does not.
    #[test]
    fn a_budget_for_page_tables_is_told() {
        for (total, streams) in [(8 << 20, 1), (8 << 20, 64), (64 << 20, 4)] {
            let budget = Budget::new(total, streams);
            for bytes in [budget.limits[Account::Pages as usize], 100 << 20, 3 << 30] {
                let needed = budget.needed_for_opening(bytes).expect("more than the part");
                assert_eq!(Budget::new(needed, streams).needed_for_growth(bytes), None);
                assert!(Budget::new(needed - (64 << 10), streams).needed_for_growth(bytes).is_some());
            }
        }
    }

    /// Beside a load, which has taken its share, the budget that is named is larger than the one that is too small, and
    /// page tables fit into it beside as large a load.
    #[test]
    fn a_budget_for_page_tables_beside_a_load_is_told() {
        let load_in = |budget: &Arc<Budget>| {
            let mut load = budget.grant(Account::Loads);
            assert!(load.resize(load.limit_bytes()));
            load
        };
        let budget = Arc::new(Budget::new(8 << 20, 1));
        let bytes = budget.limit_bytes(Account::Tables);
        let _load = load_in(&budget);
        let needed = budget.needed_for_growth(bytes).expect("less is left than without a load");
        assert!(needed > 8 << 20, "{needed} bytes are said to be enough, which are there");
        let larger = Arc::new(Budget::new(needed, 1));
        let _load = load_in(&larger);
        assert_eq!(larger.needed_for_growth(bytes), None);
    }

    /// The part of transactions has room for the largest and a copy of it, however their grants have grown.
    #[test]
    fn the_largest_transaction_and_a_copy_fit() {
        for total in [Budget::bytes_min(1), 64 << 20, 1 << 40] {
            let budget = Arc::new(Budget::new(total, 1));
            let most = budget.transaction_memory_max();
            let [mut writes, mut locks, mut copy] = [(); 3].map(|()| budget.grant(Account::Transactions));
            let (write_bytes, lock_bytes) = (most / 4 * 3, most / 4);
            for part in 1..=1000 {
                assert!(writes.cover(write_bytes * part / 1000) && locks.cover(lock_bytes * part / 1000));
            }
            assert!(copy.cover(write_bytes));
        }
    }

    /// A part gives no more than it has, and has all of it again when the grants are gone.
    #[test]
    fn a_part_gives_what_it_has() {
        let budget = Arc::new(Budget::new(8 << 20, 1));
        let limit = budget.limit_bytes(Account::Transactions);
        let (mut first, mut second) = (budget.grant(Account::Transactions), budget.grant(Account::Transactions));
        assert!(first.cover(limit - 100) && !second.cover(200) && second.cover(100));
        assert_eq!(budget.taken_bytes(Account::Transactions), limit);
        assert!(!second.resize(101) && second.resize(10) && first.resize(limit - 10));
        drop((first, second));
        assert_eq!(budget.taken_bytes(Account::Transactions), 0);
    }
}
