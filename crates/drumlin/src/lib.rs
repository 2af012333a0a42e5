//! Drumlin: an embedded, transactional storage engine for data larger than memory.
#![deny(missing_docs)]

mod collections;
mod db;
mod error;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod io;
mod memory;
mod pool;
mod seglog;
mod space;
mod sync;
mod task;
mod tree;
mod txn;
mod witness;

pub use db::{
    AsyncValueReader, Attempt, CheckProgress, CheckReport, CheckpointReport, CompactReport, Config, Damage, Database,
    Isolation, Keyspace, KeyspaceInfo, KeyspaceOptions, MemoryPart, Opening, Range, Savepoint, Snapshot, Stats,
    Transaction, TxOptions, Value, ValueReader,
};
pub use error::{Error, Recourse, Result};
pub use format::{Epoch, Incarnation, KeyspaceId, PageId, SegmentId, Timestamp};
pub use io::IoBackend;
pub use txn::engine::Durability;

#[doc(hidden)]
pub use seglog::measure as log_measure;

/// The README's program, so that it goes on compiling.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
