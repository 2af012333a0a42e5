//! Drumlin: an embedded, transactional storage engine for data larger than memory.
#![deny(missing_docs)]

mod collections;
mod coverage;
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
mod store;
mod sync;
mod task;
mod tree;
mod txn;

pub use db::{
    AsyncValueReader, Attempt, Batch, Config, Database, Gap, Isolation, KeyRange, Keys, Keyspace, KeyspaceInfo,
    KeyspaceOptions, MemoryPart, Range, Reader, RowStream, Salvage, Salvaged, Savepoint, Snapshot, Stats, Transaction,
    TxOptions, Value, ValueReader, Values,
};
pub use error::{Error, Recourse, Result};
pub use format::{Epoch, Incarnation, KeyspaceId, PageId, SegmentId, Timestamp};
pub use io::IoBackend;
pub use store::{CheckProgress, CheckReport, CheckpointReport, CompactReport, Corruption, LostKeys, Opening};
pub use txn::engine::Durability;

#[doc(hidden)]
pub use seglog::measure as log_measure;

/// The README's program, so that it goes on compiling.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
