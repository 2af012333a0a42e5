//! Transactions: timestamps, snapshots, versions, write sets, locks, commit.
//!
//! Lock order: row locks, the epoch latch, leaf latches in the order of (keyspace, key), the locks of the log, the
//! clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::sync::{CachePadded, thread_index};

pub(crate) mod clock;
pub(crate) mod commit;
pub(crate) mod engine;
pub(crate) mod fold;
pub(crate) mod interrupt;
pub(crate) mod keyspace;
pub(crate) mod locks;
pub(crate) mod old_rows;
pub(crate) mod prepared;
pub(crate) mod read_set;
pub(crate) mod row_locks;
pub(crate) mod running;
pub(crate) mod snapshots;
pub(crate) mod spilled;
pub(crate) mod spilled_locks;
mod undo;
pub(crate) mod values;
pub(crate) mod versions;
pub(crate) mod write_set;

/// The id of a running transaction. An autocommit write has one too. Ids are never stored, and never reused while the
/// database is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TransactionId(pub(crate) u64);

/// Assigns transaction ids. There are several sequences of ids, and the threads are divided among them, so that few
/// threads write to the same cache line.
#[derive(Debug)]
pub(crate) struct TransactionIds {
    sequences: Box<[CachePadded<AtomicU64>]>,
}

impl Default for TransactionIds {
    fn default() -> TransactionIds {
        TransactionIds { sequences: (0..SEQUENCE_COUNT).map(|_| CachePadded::default()).collect() }
    }
}

impl TransactionIds {
    #[inline]
    pub(crate) fn next(&self) -> TransactionId {
        let sequence = thread_index() % SEQUENCE_COUNT;
        let count = self.sequences[sequence].fetch_add(1, Ordering::Relaxed) + 1;
        TransactionId(count * SEQUENCE_COUNT as u64 + sequence as u64)
    }
}

/// The number of sequences. If there are more threads than this, some of them share a sequence.
const SEQUENCE_COUNT: usize = 64;

/// The default time that a write waits for a row locked by another transaction.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The work of background threads that a commit can wait for. The engine receives an implementation when the database
/// is opened. All calls block, except `request_spill`.
pub(crate) trait Reclaim: std::fmt::Debug + Send + Sync {
    /// Reclaims space in the data file by emptying segments and making a checkpoint. Returns when both are done.
    fn reclaim_space(&self) -> Result<()>;

    /// Requests checkpoints until `is_enough` returns `true`. Calls `is_enough` whenever a checkpoint begins. Gives up
    /// if the disk has no space for a checkpoint, or if the database closes or fails.
    fn wait_for_checkpoint(&self, is_enough: &dyn Fn() -> bool);

    /// Asks the spilling thread to spill versions or end snapshots until the versions in memory use at most
    /// `bytes_max`. Returns immediately. Threads that wait for the memory are woken when it is released.
    fn request_spill(&self, bytes_max: u64);
}
