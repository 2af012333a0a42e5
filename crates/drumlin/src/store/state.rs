//! `Store`: the state that all handles of an open database share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::advice::AdviceFiles;
use super::files::Locks;
use super::keyspaces::Keyspaces;
use super::lock_wait::LockWaitHook;
use super::requests::Maintenance;
use super::unneeded::Unneeded;
use super::warm_state::WarmStart;
use crate::archive::Archiver;
use crate::error::{Error, Result};
use crate::feed::Feed;
use crate::format::Timestamp;
use crate::io::SyncMethod;
use crate::space::checkpoint::PageTableStore;
use crate::sync::Mutex;
use crate::txn::commit::Durability;
use crate::txn::commit::ready::ReadyCommits;
use crate::txn::engine::Engine;
use crate::txn::prepared::PreparedTransactions;

/// The result of opening a database.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let opening = db.opening();
/// println!("opened in {:?}, {} commits recovered", opening.duration, opening.recovered_records);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opening {
    /// `true` if the database did not exist and was created.
    pub created: bool,
    /// The number of commits that were in the log but not in the newest checkpoint.
    pub recovered_records: u64,
    /// The bytes of the records of these commits.
    pub recovered_bytes: u64,
    /// The time that opening took.
    pub duration: Duration,
    /// The timestamp of the newest commit.
    pub last: Timestamp,
    /// Corruption that the opening found and worked around. This is one corrupted superblock if the other is valid, and
    /// with [`Config::salvage`](crate::Config::salvage) any other corruption. A salvage opening also lists
    /// [`Error::NotClosed`] here if the log has commits that no checkpoint includes.
    pub skipped: Vec<Error>,
}

/// The state that all handles of an open database share.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) path: PathBuf,
    pub(crate) engine: Arc<Engine>,
    pub(crate) keyspaces: Keyspaces,
    pub(crate) prepared: PreparedTransactions,
    pub(crate) ready: ReadyCommits,
    /// Held while keyspaces are created and dropped.
    pub(super) defining: Mutex<()>,
    /// Held while space is reclaimed. Locked before `page_tables`.
    pub(super) unneeded: Mutex<Unneeded>,
    /// The durable page tables and superblock. Locked throughout a checkpoint.
    pub(crate) page_tables: Mutex<PageTableStore>,
    pub(crate) maintenance: Arc<Maintenance>,
    /// `None` if no changes are kept for readers.
    pub(crate) feed: Option<Arc<Feed>>,
    /// `None` if the database has no archive.
    pub(super) archiver: Option<Arc<Archiver>>,
    pub(super) warm_start: WarmStart,
    pub(super) counts_files: AdviceFiles,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) opening: Opening,
    /// `None` after the locks were released.
    pub(super) locks: Mutex<Option<Locks>>,
    pub(super) sync: SyncMethod,
    pub(crate) page_bytes: usize,
    /// The durability of commits that do not specify one.
    pub(crate) durability: Durability,
    pub(super) checkpoint_log_bytes: u64,
    /// `true` if calls that would write are refused.
    pub(super) is_read_only: bool,
    /// `true` if the database was opened in salvage mode, which skips corrupted parts.
    pub(super) is_salvage: bool,
    pub(super) checkpoints: AtomicU64,
    pub(crate) contention: Contention,
    pub(super) on_lock_wait: Option<LockWaitHook>,
    /// The result of closing. Locked during closing, so that a second close waits.
    pub(super) closed: Mutex<Option<Result<()>>>,
}

/// Counters of conflicts, retries and waits for rows, for [`Stats`](super::Stats).
#[derive(Debug, Default)]
pub(crate) struct Contention {
    pub(crate) conflicts: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) lock_waits: AtomicU64,
    pub(crate) lock_wait_ns: AtomicU64,
    pub(crate) lock_timeouts: AtomicU64,
}

impl Contention {
    /// Counts the error in `result` if it is a conflict, and returns `result`.
    pub(crate) fn noting<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(Error::Conflict { .. }) = result {
            self.conflicts.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}
