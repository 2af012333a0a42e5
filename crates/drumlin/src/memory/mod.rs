//! The memory budget: its division into parts, and the amount taken from each.
//!
//! # Invariants
//! 1. The parts add up to at most the budget ([`Budget::new`]). They are fixed when the database is opened. Page tables
//!    and frames share the pages account: frames get the part that page tables leave, and the next commit evicts any
//!    excess.
//! 2. Memory is taken from its account before it is allocated. Amounts that vary with the use of the database are held
//!    by a [`Grant`], which returns them on drop. Buffers and frames are counted by the lists that own them.
//! 3. An account limits the sum over the whole database, not the share of one transaction. A request that does not fit
//!    waits if the memory is bound to be freed by operations that do not depend on the request. Otherwise it fails.
//!
//! Container sizes are estimated for the worst case that is common in practice: half-full trees, and hash tables that
//! have just doubled.

mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::CachePadded;

pub(crate) use turns::WaitQueue;

/// The purpose of a part of the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Account {
    /// Frames with their headers, and page tables, which grow at the expense of frames.
    Pages,
    /// Append buffers of the log, and the buffers for reading it.
    Log,
    /// Old versions of rows.
    Versions,
    /// Write sets, row locks and read sets of open transactions, and row locks of waiting plain writes.
    Transactions,
    /// The memory of a commit until it is applied: its record, images of its values, and the row lock of a plain write.
    /// A single row with a short record does not count, because its record is in a thread-local vector.
    Commits,
    /// Page-table changes that are not in a base image yet.
    TableChanges,
    /// Buffers for reading extents, and for packing and unpacking chunks of large values.
    Reads,
    /// Rows and values copied by scans and readers.
    Copies,
    /// Large values on their way to or from user code: chunks that sources are about to fill, and values passed to
    /// reducers.
    Sources,
    /// Buffers for writing extents.
    Writes,
    /// The fixed memory of an open database: slots of commits in flight, empty lock tables, queues.
    Fixed,
    /// Part of `Pages`: pages that commits in progress have pinned.
    Pinned,
    /// Part of `Pages`: page tables.
    Tables,
    /// Part of `Pages`: buffers in which bulk loads write and sort.
    Loads,
    /// Part of `Pages`: counts of rows.
    Counts,
    /// Part of `Pages`: states of reducers. They are dropped if a different use of the pages needs the memory.
    States,
    /// Part of `Pages`: the parts of spilled versions that are in memory.
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

    /// Returns the account's name in statistics.
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

/// The minimum budget of a database with one log stream. Simulations use a lower one, so that memory runs short.
const BUDGET_BYTES_MIN: u64 = if cfg!(feature = "sim") { 4 << 20 } else { 8 << 20 };

/// The amount that each additional log stream adds to the minimum budget.
const STREAM_BYTES_MIN: u64 = if cfg!(feature = "sim") { 64 << 10 } else { 0 };

/// A transaction spills its changes once it has taken one in this many of the bytes that it may take.
const SPILL_SHARE: u64 = if cfg!(feature = "sim") { 3 } else { 1 };

/// The number of write buffers: one for the appender of each of the two epochs, one for the mover, and as many again
/// for writes in flight.
pub(crate) const WRITE_BUFFER_COUNT: usize = 6;

/// The memory that a writer of a large value needs: a chunk, and the bytes that the writer reads before it knows that
/// the value is large.
pub(crate) const SOURCE_BYTES_MAX: u64 = (256 << 10) + (64 << 10);

/// The number of page encoders kept for reuse. They suffice for evictions, a checkpoint and a commit at the same time.
pub(crate) const ENCODER_COUNT: usize = 4;

/// The maximum memory of an encoder kept for reuse, not counting the 8 KiB of its compressor. Encoders of pages up to 8
/// KiB stay below this limit.
pub(crate) const ENCODER_BYTES_MAX: usize = 12 << 10;

/// Slots of commits in flight, the tables that the 64 shards of row locks retain, encoders, and small structures.
const FIXED_BYTES: u64 = (384 << 10) + (ENCODER_COUNT * (ENCODER_BYTES_MAX + (8 << 10))) as u64;

/// The size of a logged page-table change, in bytes.
/// Fixed by the format of a change.
pub(crate) const CHANGE_BYTES: u64 = 24;

/// The memory budget of a database. See the module documentation.
#[derive(Debug)]
pub(crate) struct Budget {
    total_bytes: u64,
    log_streams: u16,
    /// The limits of the accounts in [`Account::ALL`].
    limits: [u64; Account::ALL.len()],
    taken: [CachePadded<AtomicU64>; USE_COUNT],
    /// The queues of commits that wait to begin, and of commits that wait for room for versions.
    pub(crate) commits: WaitQueue,
    pub(crate) versions: WaitQueue,
    /// The queue of writers of large values that wait for a chunk.
    pub(crate) sources: WaitQueue,
    /// The queue of plain writes that need memory for a row lock before they can wait for the row.
    pub(crate) locks: WaitQueue,
}

impl Budget {
    /// Returns the minimum budget of a database with this many log streams.
    pub(crate) fn bytes_min(log_streams: u16) -> u64 {
        BUDGET_BYTES_MIN + u64::from(log_streams.saturating_sub(1)) * STREAM_BYTES_MIN
    }

    /// Divides `total_bytes` among the accounts of a database with this many log streams.
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
        // The first stream can hold the largest transaction twice. The other streams together get up to the same
        // amount, and at least the minimum that they need.
        let first = 2 * (budget.transaction_bytes_max() + (16 << 10));
        let others = u64::from(log_streams) - 1;
        let log =
            first + (others * first).min(total / 16).max(others * (32 << 10)) + budget.log_reader_bytes(log_streams);
        let taken = [
            (Account::Log, log),
            (Account::Versions, total / 32 * 3),
            // The largest transaction, a copy of its write set for an open scan, and the memory that three grants
            // (writes, locks and reads) reserve in advance.
            (Account::Transactions, 2 * budget.transaction_memory_max() + 3 * GRANT_STEP_BYTES_MAX),
            // The largest record, and the memory used along with it.
            (Account::Commits, budget.transaction_bytes_max() + (total / 64).min(4 << 20)),
            (Account::TableChanges, total / 32),
            // At least twice a chunk of a large value.
            (Account::Reads, (total / 32).clamp(544 << 10, 8 << 20)),
            (Account::Copies, (total / 16).saturating_sub(256 << 10).max(total / 32)),
            // At least a chunk, and the bytes that are read before it.
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

    /// Creates a budget whose pages account has this many bytes.
    #[cfg(test)]
    pub(crate) fn of_pages(bytes: u64) -> Arc<Budget> {
        let mut budget = Budget::new(8 << 20, 1);
        budget.limits[Account::Pages as usize] = bytes;
        Arc::new(budget)
    }

    /// Returns the size of the whole budget.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the maximum number of bytes that an account may grant.
    pub(crate) fn limit_bytes(&self, of: Account) -> u64 {
        match of {
            // The other half of the frames serves all other operations.
            Account::Pinned => self.frame_bytes_max() / 2,
            // Page tables leave at least a quarter of the pages account. Frames need part of that quarter. So do their
            // headers, which outlive the frames and use a ninth of the memory if pages have 512 bytes. The rest is a
            // margin for concurrent commits: all of them may pass the check before any has made its page table grow.
            Account::Tables => table_bytes_max(self.limits[Account::Pages as usize], self.taken_by_others()),
            // Reads and writes during the load need frames too, and page tables may grow.
            Account::Loads => {
                let bytes = self.limits[Account::Pages as usize];
                let others = [Account::Tables, Account::Counts, Account::Spilled].map(|of| self.taken_bytes(of));
                let others: u64 = others.iter().sum();
                (bytes / 4 * 3).saturating_sub(others).min(bytes / 2)
            }
            // The remaining eighth ensures that page tables get their three quarters.
            Account::Counts => {
                let bytes = self.limits[Account::Pages as usize];
                let others = [Account::Tables, Account::Loads, Account::Spilled].map(|of| self.taken_bytes(of));
                let others: u64 = others.iter().sum();
                (bytes / 8 * 7).saturating_sub(others).min(bytes / 8)
            }
            // A state uses a hundredth of the memory of the leaf that it saves reading. States give way to page tables,
            // and to loads as soon as one begins. Between two checkpoints, page tables grow by less than the eighth
            // that is left. The engine checks this limit at each checkpoint.
            Account::States => {
                let bytes = self.limits[Account::Pages as usize];
                let loads = if self.taken_bytes(Account::Loads) > 0 { bytes / 2 } else { 0 };
                let others = [Account::Tables, Account::Counts, Account::Spilled].map(|of| self.taken_bytes(of));
                let others = others.iter().sum::<u64>() + loads;
                (bytes / 4 * 3).saturating_sub(others).min(bytes / 4)
            }
            // At this limit, spilling stops.
            Account::Spilled => self.limits[Account::Pages as usize] / 8,
            _ => self.limits[of as usize],
        }
    }

    /// Returns the limit of frames with their headers: the pages account without page tables, buffers of bulk loads,
    /// counts, states and spilled versions. It is at least an eighth of the account. So the database can be opened, and
    /// rows removed, even if its log contains more pages than commits may add.
    pub(crate) fn frame_bytes_max(&self) -> u64 {
        let bytes = self.limits[Account::Pages as usize];
        let accounts = [Account::Tables, Account::Loads, Account::Counts, Account::States, Account::Spilled];
        let taken_bytes = accounts.map(|of| self.taken_bytes(of));
        let taken_bytes: u64 = taken_bytes.iter().sum();
        bytes.saturating_sub(taken_bytes).max(bytes / 8)
    }

    /// Returns `None` if page tables have room to grow by `more_bytes`. Otherwise returns the size of a budget in which
    /// they would have it. Called before pages or a keyspace are added, because page tables are never evicted.
    pub(crate) fn needed_for_growth(&self, more_bytes: u64) -> Option<u64> {
        let bytes = self.taken_bytes(Account::Tables) + more_bytes;
        let others = self.taken_by_others();
        (bytes > self.limit_bytes(Account::Tables)).then(|| self.total_for_tables(bytes, others))
    }

    /// Returns `None` if a load or backup can take this many bytes as soon as everything but page tables of
    /// `table_bytes` gives way. Otherwise returns the size of a budget in which it could.
    pub(crate) fn needed_for_loads(&self, bytes: u64, table_bytes: u64) -> Option<u64> {
        let pages_bytes = self.limits[Account::Pages as usize];
        let can_take = bytes <= pages_bytes / 2 && table_bytes + bytes <= pages_bytes / 4 * 3;
        // Page tables may take three quarters of the pages account, so half of it is two thirds of that.
        (!can_take).then(|| self.total_for_tables((table_bytes + bytes).max(bytes.div_ceil(2) * 3), 0))
    }

    /// Returns `None` if a database with page tables of this size can be opened in this budget. Otherwise returns the
    /// size of a budget that suffices. When a database is opened, its page tables may use everything except the minimum
    /// for frames. That is more than commits let them grow to, so a database created in a budget can always be reopened
    /// in it.
    pub(crate) fn needed_for_opening(&self, bytes: u64) -> Option<u64> {
        (bytes > self.limits[Account::Pages as usize] / 8 * 7).then(|| self.total_for_tables(bytes, 0))
    }

    /// Returns the number of bytes that loads and counts have taken from the pages account. States and spilled versions
    /// do not count, because they give way to page tables.
    fn taken_by_others(&self) -> u64 {
        self.taken_bytes(Account::Loads) + self.taken_bytes(Account::Counts)
    }

    /// Returns the smallest budget, to within 64 KiB, in which commits may let page tables grow to this many bytes.
    /// Assumes that `others` would take the same share of that budget as of this one.
    fn total_for_tables(&self, bytes: u64, others: u64) -> u64 {
        /// The precision of the result.
        const STEP_BYTES: u64 = 64 << 10;
        /// The upper end of the search. Fixed by the arithmetic: twice as much would overflow.
        const TOTAL_BYTES_MAX: u64 = 1 << 62;
        let pages_bytes = |budget: &Budget| u128::from(budget.limits[Account::Pages as usize]);
        let carries = |total| {
            let pages = pages_bytes(&Budget::new(total, self.log_streams));
            let others = u128::from(others) * pages / pages_bytes(self);
            table_bytes_max(pages as u64, others as u64) >= bytes
        };
        let mut low = self.total_bytes;
        let mut high = low;
        while !carries(high) && high < TOTAL_BYTES_MAX {
            low = high;
            high *= 2;
        }
        while high - low > STEP_BYTES {
            let middle = low + (high - low) / 2;
            if carries(middle) { high = middle } else { low = middle }
        }
        high
    }

    /// Returns the number of bytes currently taken from an account.
    pub(crate) fn taken_bytes(&self, of: Account) -> u64 {
        self.taken[of as usize].load(Ordering::Relaxed)
    }

    /// Returns the size of the buffers for reading a log with this many streams while it is open: at least a block per
    /// stream.
    pub(crate) fn log_reader_bytes(&self, log_streams: u16) -> u64 {
        (self.total_bytes / 128).clamp(64 << 10, 2 << 20).max(u64::from(log_streams) * (4 << 10))
    }

    /// Returns the maximum size of the rows that one transaction may put, as stored in the log.
    pub(crate) fn transaction_bytes_max(&self) -> u64 {
        (self.total_bytes / 32).min(8 << 20)
    }

    /// Returns the maximum memory of one transaction, in bytes: its rows, their index, its locks, and its read set.
    pub(crate) fn transaction_memory_max(&self) -> u64 {
        self.total_bytes / 16
    }

    /// Returns the memory of one transaction, in bytes, above which it spills its changes.
    pub(crate) fn spill_bytes(&self) -> u64 {
        self.transaction_memory_max() / SPILL_SHARE
    }

    /// Returns `true` if less than a quarter of an account is left.
    pub(crate) fn is_scarce(&self, of: Account) -> bool {
        let limit_bytes = self.limit_bytes(of);
        self.taken_bytes(of) > limit_bytes - limit_bytes / 4
    }

    /// Returns the maximum number of bytes of leaves that a serializable commit may pin to validate them.
    pub(crate) fn validated_bytes_max(&self) -> u64 {
        self.limit_bytes(Account::Pinned) / 2
    }

    /// Returns the limit on the total size of versions, above which the oldest snapshot ends. The rest of the account
    /// is for commits in progress.
    pub(crate) fn version_bytes_max(&self) -> u64 {
        self.total_bytes / 16
    }

    /// Returns the number of page-table changes in one epoch at which its checkpoint must begin. It is also the number
    /// of changes since the base image at which a checkpoint folds them. Memory holds up to this many changes since the
    /// base image, this many of the newest epoch, and twice this many of the ending epoch while its changes are copied:
    /// four times in all. Vectors grow by a quarter, so the account has room for five times this number.
    pub(crate) fn epoch_changes_max(&self) -> u64 {
        self.limit_bytes(Account::TableChanges) / CHANGE_BYTES / 5
    }

    /// Returns the size of a buffer for writing extents. It is large enough to use a device's full bandwidth, but
    /// smaller in a small budget.
    pub(crate) fn write_buffer_bytes(&self) -> usize {
        if self.total_bytes < 16 << 20 { 128 << 10 } else { 256 << 10 }
    }

    /// Creates an empty grant, to be enlarged later.
    pub(crate) fn grant(self: &Arc<Self>, of: Account) -> Grant {
        Grant { budget: Arc::clone(self), of, bytes: 0 }
    }

    /// Takes memory from an account for the duration of a call. Refuses, without effect, if the account has too little
    /// left or other requests are queued for it.
    #[inline]
    pub(crate) fn try_hold(&self, of: Account, bytes: u64) -> Option<Held<'_>> {
        let is_awaited = self.queue(of).is_some_and(WaitQueue::are_awaited);
        (!is_awaited && self.try_take(of, bytes)).then(|| Held { budget: self, of, bytes })
    }

    /// Grants memory from both accounts or from neither. A request above a limit is reduced to the limit. Each limit is
    /// read only once: if a second read returned a lower limit, a request without competition could be refused forever.
    /// Undoing the first grant wakes no waiter, because the caller may itself be at the head of the queue, and would
    /// wake itself forever.
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

    /// A refused request must not take memory even briefly. The waiter at the head of the queue might check at that
    /// moment, go back to sleep, and never be woken.
    fn try_take_within(&self, (of, bytes, limit): (Account, u64, u64)) -> bool {
        let enlarged = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        self.taken[of as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, enlarged).is_ok()
    }

    /// Takes memory that was already granted, or that can't be refused.
    pub(crate) fn take(&self, of: Account, bytes: u64) {
        self.taken[of as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns memory that was taken.
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

    /// Returns the account's queue, if its requests are served in order.
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

/// Memory that its owner may use until the grant is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    budget: Arc<Budget>,
    of: Account,
    bytes: u64,
}

/// Memory taken for the duration of a call. Dropping it returns the memory.
#[derive(Debug)]
pub(crate) struct Held<'b> {
    budget: &'b Budget,
    of: Account,
    bytes: u64,
}

impl Held<'_> {
    /// Hands `bytes` over to a new owner, which counts and returns them. Dropping this value returns only the rest.
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

/// Returns the maximum number of bytes that page tables may take from the pages account, if loads and counts have taken
/// `others`.
fn table_bytes_max(pages_bytes: u64, others: u64) -> u64 {
    (pages_bytes / 8 * 7).saturating_sub(others).min(pages_bytes / 4 * 3)
}

/// The initial size of a grant that grows in steps: enough for a few rows.
const GRANT_BYTES_MIN: u64 = 1 << 10;

/// The maximum number of bytes that a grant reserves in advance.
const GRANT_STEP_BYTES_MAX: u64 = 16 << 10;

impl Grant {
    /// Returns the maximum number of bytes that the grant's account may grant.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.budget.limit_bytes(self.of)
    }

    /// Returns the number of bytes that the grant covers.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Creates an empty grant from the same account.
    pub(crate) fn another(&self) -> Grant {
        self.budget.grant(self.of)
    }

    /// Makes the grant cover `bytes` in total. Returns `false` if the account has too little left. The grant grows in
    /// steps of a quarter, up to 16 KiB, so that it rarely updates the counter, which all threads share.
    pub(crate) fn cover(&mut self, bytes: u64) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let generous = (bytes + (bytes / 4).min(GRANT_STEP_BYTES_MAX)).max(GRANT_BYTES_MIN);
        let enlarged = [generous, bytes].into_iter().find(|all| self.budget.try_take(self.of, all - self.bytes));
        self.bytes = enlarged.unwrap_or(self.bytes);
        enlarged.is_some()
    }

    /// Enlarges the grant by at least `least` and at most `most` bytes. The amount is `most_unshared` if the account is
    /// untouched, and proportional to the square of the account's free part. So early callers get enough to work fast,
    /// and leave enough for hundreds of later ones. Returns the amount, or `None` if less than `least` is left.
    pub(crate) fn cover_share(&mut self, least: u64, most: u64, most_unshared: u64) -> Option<u64> {
        let limit = u128::from(self.limit_bytes());
        let left = limit.saturating_sub(u128::from(self.budget.taken_bytes(self.of)));
        let share = (u128::from(most_unshared) * left * left / (limit * limit)) as u64;
        let bytes = [share.clamp(least.min(most), most), least.min(most)];
        let bytes = bytes.into_iter().find(|bytes| self.budget.try_take(self.of, *bytes))?;
        self.bytes += bytes;
        Some(bytes)
    }

    /// Enlarges the grant by `bytes`, which can't be refused.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.budget.take(self.of, bytes);
        self.bytes += bytes;
    }

    /// Makes the grant cover exactly `bytes`. Returns `false`, and changes nothing, if the account has too little left.
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

/// Returns the number of heap bytes that an allocation of this size uses: a multiple of 16, including one word for the
/// allocator.
pub(crate) fn heap_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

/// The size up to which a vector doubles, in bytes.
const DOUBLED_BYTES_MAX: usize = 4 << 10;

/// Returns the capacity of a vector after [`reserve`].
#[inline]
pub(crate) fn grown_capacity<T>(vector: &Vec<T>, more: usize) -> usize {
    let (length, capacity) = (vector.len() + more, vector.capacity());
    if length <= capacity {
        return capacity;
    }
    let step = if capacity * size_of::<T>() < DOUBLED_BYTES_MAX { capacity } else { capacity / 4 };
    length.max(capacity + step + 4)
}

/// Makes room in a vector. A small vector doubles. A larger one grows by a quarter, because up to half of the memory of
/// a doubled vector is unused.
#[inline]
pub(crate) fn reserve<T>(vector: &mut Vec<T>, more: usize) {
    let capacity = grown_capacity(vector, more);
    vector.reserve_exact(capacity - vector.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every allowed budget and number of log streams, the parts add up to the budget, and every part has some
    /// memory. In budgets of 8 MiB or more with one stream, pages get more than a third.
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
                // A reader's copy of the longest value that is not large.
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

    /// A refused request must not take memory even briefly. The only waiter might check at that moment, go back to
    /// sleep, and never be woken.
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

    /// Held memory is returned on drop. Nothing is held if a request is queued for the account, or if too little is
    /// left in it.
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

    /// Memory of two accounts is granted together or not at all.
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

    /// Page tables take memory from frames, but leave them an eighth. Commits may pin half of the frames.
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

    /// If page tables do not fit, the error names a budget that is large enough for them. A slightly smaller budget is
    /// not.
    #[test]
    fn an_error_names_a_budget_for_page_tables() {
        for (total, streams) in [(8 << 20, 1), (8 << 20, 64), (64 << 20, 4)] {
            let budget = Budget::new(total, streams);
            for bytes in [budget.limits[Account::Pages as usize], 100 << 20, 3 << 30] {
                let needed = budget.needed_for_opening(bytes).expect("more than the part");
                assert_eq!(Budget::new(needed, streams).needed_for_growth(bytes), None);
                assert!(Budget::new(needed - (64 << 10), streams).needed_for_growth(bytes).is_some());
            }
        }
    }

    /// While a load holds its share, the error names a larger budget than the current one. Page tables fit into that
    /// budget together with a load that has the same share of it.
    #[test]
    fn an_error_names_a_budget_for_page_tables_and_a_load() {
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

    /// If a load or backup can never fit in addition to the page tables, its error names the smallest budget that fits.
    #[test]
    fn an_error_names_a_budget_for_a_backup() {
        const BYTES: u64 = 1 << 20;
        for total in [8 << 20, 64 << 20] {
            let budget = Arc::new(Budget::new(total, 1));
            let most = budget.limits[Account::Pages as usize] / 4 * 3;
            assert_eq!(budget.needed_for_loads(BYTES, most - BYTES), None);
            for (bytes, tables) in [(BYTES, most - BYTES + 1), (BYTES, most), (total, 0), (total, 3 * total)] {
                let needed = budget.needed_for_loads(bytes, tables).expect("it does not fit");
                assert!(needed > total, "{needed} bytes are said to be enough, which are there");
                let larger = Arc::new(Budget::new(needed, 1));
                assert_eq!(larger.needed_for_loads(bytes, tables), None, "{bytes} bytes and tables of {tables}");
                let mut of_tables = larger.grant(Account::Tables);
                assert!(of_tables.resize(tables) && larger.grant(Account::Loads).resize(bytes));
            }
        }
    }

    /// The transactions account has room for the largest transaction and a copy of it, however their grants grow.
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

    /// An account grants no more than its limit. All of it is available once the grants are dropped.
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
