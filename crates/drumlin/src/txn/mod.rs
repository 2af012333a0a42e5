//! Transactions: timestamps, snapshots, versions, write sets, locks, commit.
//!
//! Lock order: row locks, then the epoch latch, leaf latches in the order of (keyspace, key), the log's own, the clock.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::error::Result;
use crate::sync::thread_index;

pub(crate) mod clock;
pub(crate) mod engine;
pub(crate) mod locks;
pub(crate) mod old_rows;
pub(crate) mod read_set;
pub(crate) mod running;
pub(crate) mod snapshots;
pub(crate) mod spilled;
pub(crate) mod values;
pub(crate) mod versions;
pub(crate) mod write_set;

/// The number of a running transaction; an autocommit write is one too. Never used twice while the database is open,
/// and never stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TransactionId(pub(crate) u64);

/// Gives out the numbers of transactions. Each thread takes them from a sequence of its own, on a cache line that few
/// other threads touch.
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

/// Sequences of transaction numbers. Threads beyond that many share them.
const SEQUENCE_COUNT: usize = 64;

/// Work of the maintenance thread that commits wait for. Passed to the engine when the database is opened; every call
/// blocks.
pub(crate) trait MakeRoom: std::fmt::Debug + Send + Sync {
    /// Frees space in the data file by running the cleaner and a checkpoint; returns when they have finished.
    fn make_space(&self) -> Result<()>;

    /// Requests checkpoints until `is_enough` holds, which is asked again whenever one begins. Gives up if there is no
    /// disk space for a checkpoint, or if the database closes or fails.
    fn wait_for_checkpoint(&self, is_enough: &dyn Fn() -> bool);

    /// Requests that versions be spilled, or snapshots ended, until they take `bytes_max` of memory at the most. Who
    /// waits for the memory is woken when it is given back.
    fn ask_for_versions(&self, bytes_max: u64);
}
