//! Transactions: timestamps, snapshots, versions, write sets, locks, commit.
//!
//! Lock order: row locks, then the epoch latch, leaf latches in the order of (keyspace, key), the log's own, the clock.

use std::sync::Arc;

use crate::error::Result;

pub(crate) mod clock;
pub(crate) mod engine;
pub(crate) mod locks;
pub(crate) mod read_set;
pub(crate) mod snapshots;
pub(crate) mod values;
pub(crate) mod versions;
pub(crate) mod write_set;

/// The number of a running transaction, an autocommit write being one too. Never used twice while the database is open,
/// and never kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TransactionId(pub(crate) u64);

/// Frees space in the data file, by a checkpoint and the cleaner, and waits until that has ended. The engine is
/// handed it.
pub(crate) type MakeSpace = Arc<dyn Fn() -> Result<()> + Send + Sync>;
