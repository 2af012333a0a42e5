//! An embedded, transactional storage engine for data larger than memory.
//!
//! Drumlin keeps rows, ordered by key, in a folder that your process opens. Keys and values are arbitrary bytes. It
//! bypasses the operating system's page cache and caches pages itself, within a memory budget that you set. A commit is
//! durable when it returns, and every byte read back from disk is verified.
//!
//! - [`Database`]: an open folder. [`Config`] holds its settings.
//! - [`Keyspace`]: a named, ordered map in the database. Each call is a transaction of its own.
//! - [`Transaction`]: reads and writes in several keyspaces, committed together or not at all.
//! - [`Snapshot`]: all keyspaces as of one commit, for reading.
//!
//! These types are handles that can be used from any thread. Cloning a handle is cheap if its type is [`Clone`]. The
//! database is closed when its last handle is dropped.
//!
//! # Open, insert, get
//!
//! ```
//! # let folder = std::env::temp_dir().join(format!("drumlin-doc-guide-{}", std::process::id()));
//! # let path = folder.join("shop.drumlin");
//! let db = drumlin::Database::open(&path)?; // created if it is missing
//! let orders = db.keyspace("orders")?; // created if it is missing
//! orders.insert("2026-11-21/0001", "three apples")?; // durable when it returns
//! assert_eq!(orders.get("2026-11-21/0001")?.unwrap(), "three apples");
//! orders.remove("2026-11-21/0001")?;
//! # db.close()?;
//! # drop(orders);
//! # std::fs::remove_dir_all(folder).unwrap();
//! # Ok::<(), drumlin::Error>(())
//! ```
//!
//! Keys and values can be anything that has bytes: `&str`, `Vec<u8>`, `[u8; 8]`. Rows are ordered by the bytes of their
//! keys, so store numbers in keys as big-endian bytes: [`to_be_bytes`](u64::to_be_bytes). Reads return a [`Value`],
//! which derefs to `[u8]`. The other examples use an in-memory database, [`Config::in_memory`], which also suits tests.
//!
//! # Change rows atomically
//!
//! To change one row, call [`update`](Keyspace::update), [`compare_and_swap`](Keyspace::compare_and_swap),
//! [`take`](Keyspace::take), [`insert_if_absent`](Keyspace::insert_if_absent), [`pop_first`](Keyspace::pop_first) or a
//! similar method. They work on the row's newest value and need no transaction. To change several rows,
//! [`Database::transact`] runs a closure in a transaction, and retries it after a conflict. A queue is a keyspace whose
//! consumers call [`pop_first_in`](Keyspace::pop_first_in), which skips rows that other callers have locked.
//!
//! ```
//! # let db = drumlin::Config::in_memory().open("")?;
//! let (orders, stock) = (db.keyspace("orders")?, db.keyspace("stock")?);
//! stock.insert("apples", 10u64.to_be_bytes())?;
//! db.transact(|tx| {
//!     let apples = tx.get_for_update(&stock, "apples")?.expect("there is a row");
//!     let left = u64::from_be_bytes(apples[..].try_into().expect("eight bytes")) - 3;
//!     tx.insert(&stock, "apples", left.to_be_bytes())?;
//!     tx.insert(&orders, "2026-11-21/0001", "three apples")
//! })?;
//! # Ok::<(), drumlin::Error>(())
//! ```
//!
//! Within the closure, write through `tx`: `stock.insert` would wait for a row that the closure itself has locked, so
//! it fails with [`Error::LockTimeout`]. [`Database::try_transact`] accepts closures with their own error types, such
//! as `anyhow`'s. [`Database::batch`] commits many writes that do not depend on reads.
//!
//! # Ranges
//!
//! ```
//! # let db = drumlin::Config::in_memory().open("")?;
//! # let orders = db.keyspace("orders")?;
//! # orders.insert("2026-11-21/0001", "three apples")?;
//! for row in orders.range("2026-11-21".."2026-11-22").rev() {
//!     let (key, value) = row?;
//!     println!("{key:?}: {value:?}");
//! }
//! let days: Vec<drumlin::Value> = orders.prefix("2026-11-").keys().collect::<Result<_, _>>()?;
//! # Ok::<(), drumlin::Error>(())
//! ```
//!
//! A [`Range`] is a double-ended iterator over the rows as of its creation. [`Range::keys`] reads no values. The first
//! [`Keyspace::count`] reads the leaves; later ones take O(log n), for any range.
//!
//! # Snapshots
//!
//! ```
//! # let db = drumlin::Config::in_memory().open("")?;
//! # let orders = db.keyspace("orders")?;
//! let before = db.snapshot();
//! orders.insert("2026-11-21/0002", "a pear")?;
//! assert!(before.is_empty(&orders)?); // later writes do not change it
//! # Ok::<(), drumlin::Error>(())
//! ```
//!
//! Readers and writers do not block each other. Snapshots and transactions share the reading methods of [`Reader`],
//! which take the keyspace as their first argument. Old versions of rows are kept in memory for open snapshots, so drop
//! a snapshot that is no longer needed.
//!
//! # Async
//!
//! Every call that can wait has an `_async` form, which runs on any executor and needs no runtime. A task that waits
//! for a page, a row or a sync occupies no thread. A future can be dropped at any time, but that does not undo a commit
//! that has already happened: if a write is cancelled by a timeout, it has taken effect either completely or not at
//! all, and a read shows which.
//!
//! ```
//! # smol::block_on(async {
//! # let db = drumlin::Config::in_memory().open_async("").await?;
//! let orders = db.keyspace_async("orders").await?;
//! orders.insert_async("2026-11-21/0001", "three apples").await?;
//! let mut rows = orders.iter(); // into_stream makes it a futures Stream
//! while let Some(row) = rows.next_async().await {
//!     let (key, value) = row?;
//! }
//! # Ok::<(), drumlin::Error>(())
//! # })?;
//! # Ok::<(), drumlin::Error>(())
//! ```
//!
//! For transactions in spawned futures, use [`Database::transact_async`]; for an async closure that may borrow, use
//! [`Database::transact_local`]. A thread that polls futures must not make blocking calls.
//!
//! # Large values
//!
//! Values may have any size. [`Keyspace::insert_from`] stores everything that a reader yields, and [`Keyspace::read`]
//! opens a value as `Read` and `Seek`. Both need little memory, whatever the value's size.
//!
//! # Errors
//!
//! An [`Error`] says what failed, where, and what to do. [`Error::recourse`] sums up what the caller can do: retry the
//! transaction, change the call, reopen the database, or restore data from a backup. A commit that fails leaves nothing
//! behind. The exception is [`Error::OutcomeUnknown`]: only reopening the database shows the outcome. After a failed
//! write or sync, reads still work, but commits fail until the database is reopened.
//!
//! # Durability
//!
//! With [`Durability::Full`], the default, a commit returns once it is durable. This costs a sync, which concurrent
//! commits share. With [`Durability::Relaxed`] it returns without waiting for the sync. A power cut may then lose the
//! newest commits, but never an earlier commit without all later ones. Choose `Relaxed` if the last second's commits
//! can be repeated, as for an import or a cache, and call [`Database::sync`] when they must be safe. Durability can be
//! set for a database ([`Config::durability`]), a handle ([`Keyspace::with_durability`]), a transaction ([`TxOptions`])
//! or a call.
//!
//! # Memory
//!
//! [`Config::memory`] is the budget for everything: pages, tables, logs, versions, locks, open transactions. The
//! default is 256 MiB, the minimum 8 MiB. Pages that do not fit must be reread from disk, so give the database what the
//! machine can spare; [`Database::stats`] shows page misses and the use of each part. The budget does not include
//! values that the program has read and holds on to.
//!
//! # Limits
//!
//! | what is limited | limit |
//! | --- | --- |
//! | a key | a quarter of its keyspace's page: 1,024 bytes, unless [`KeyspaceOptions::page_bytes`] says otherwise |
//! | a value | none; values over 64 KiB are streamed to the disk |
//! | the writes of a transaction | none; some kinds have one: see [`Error::TransactionTooLarge`] |
//! | all open transactions | an eighth of the budget, then [`Error::MemoryInUse`] |
//! | an old snapshot | ends with [`Error::SnapshotTooOld`] if versions exceed [`Config::version_disk_bytes`] |
//! | a wait for a row | 10 seconds, then [`Error::LockTimeout`] |
//! | a folder | one process at a time, or any number that [only read](Config::read_only) |
//!
//! [`Database::limits`] returns these limits and others in bytes.
//!
//! # Features
//!
//! | feature | effect |
//! | --- | --- |
//! | `serde` | [`Value`], [`Stats`] and the types in them can be serialized |
//! | `bytes` | a [`Value`] becomes a `bytes::Bytes` without a copy |
//!
//! `sim` and `fuzzing` are for the project's own tests.
#![deny(missing_docs)]

#[cfg(not(unix))]
compile_error!(
    "Drumlin runs on Linux, and on other Unix systems by the portable backend of drumlin-io, which says what is missing \
     elsewhere"
);

mod archive;
mod counts;
mod coverage;
mod db;
mod error;
mod feed;
mod format;
// This file belongs to drumlin-fuzz. It is compiled as part of this crate because the decoders are private.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
#[path = "../../drumlin-fuzz/src/decoders.rs"]
pub mod fuzzing;
mod hash;
mod io;
mod load;
pub mod logs;
mod memory;
mod pool;
mod rescue;
mod seglog;
mod space;
mod store;
mod task;
mod tree;
mod txn;

pub use archive::Archive;
pub use archive::point::RestorePoint;
pub use archive::reading::ArchivedChain;
pub use db::{
    Alteration, AsyncValueReader, Attempt, BackupInfo, BackupOptions, BackupReport, Batch, BulkLoad, Change,
    ChangeStream, Changes, CloneInfo, Commit, Config, Database, Field, FolderChanges, Gap, Interrupter, Isolation,
    KeptSnapshot, KeptSnapshotInfo, KeyRange, Keys, Keyspace, KeyspaceInfo, KeyspaceOptions, LargeChange, Limits,
    LoadReport, LockMode, LockWait, LockWaiter, LockedRow, Max, MemoryPart, Min, Number, PreparedTransaction, Range,
    Reader, Readers, ReadyTransaction, ReduceError, Reducer, RestoreReport, RowStream, Salvage, Salvaged, Savepoint,
    Snapshot, Stats, Sum, Transaction, TxOptions, Value, ValueReader, Values,
};
pub use drumlin_io::IoBackend;
pub use error::{Error, LockHolder, Recourse, Result};
pub use feed::Retention;
pub use format::record::OldValue;
pub use format::{KeyspaceId, Timestamp};
pub use rescue::{RepairReport, RepairedKeyspace, Rescue, RescuedKeyspace, RescuedRows};
pub use store::{CheckProgress, CheckReport, CheckpointReport, CompactReport, Corruption, LostKeys, Opening};
pub use txn::commit::Durability;
pub use txn::spilled::VersionOverflow;

pub(crate) use drumlin_io::sync;

/// Reports to a simulation which rare paths the engine took, and the timestamps of its commits.
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod simulation {
    pub use crate::coverage::{cloned_as_of, marks, on_timestamp};
}

/// The README, whose program is compiled as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
