//! The change feed: keeps durable commits readable after checkpoints, and hands them to readers.
//!
//! The log is no place for this: a checkpoint makes its segments reusable, a closed database needs none of them, and
//! what a record names in the data file may be gone. So the *copier* reads durable records from the log and writes what
//! they tell to *change files* in the folder `changes`. Readers read only these files. `format/changes.rs` has the
//! bytes.
//!
//! # Invariants
//! 1. Change files have only commits that are durable in the log, in the order of their timestamps, without gaps.
//! 2. Before a checkpoint at timestamp C is durable, all commits up to C are durable in change files
//!    ([`Feed::keep_up_to`]). So an opening finds each commit in the files or in the log that it replays.
//! 3. An opening begins a new file at the checkpoint from which it has recovered, or at the beginning of the last file
//!    if that is later. Readers ignore what the file before it has after that timestamp: these bytes may exist only in
//!    a cache. They don't count for the retention.
//! 4. A file begins with the names of all keyspaces as of its first timestamp, so it can be read without the database.
//! 5. Files are removed as a whole, oldest first, and only if the retention does not promise them or the disk is full.
//! 6. If a file can't be written, the feed ends: readers get an error, and statistics and the program's log say why.
//!    The next opening removes the files that don't reach its checkpoint, and begins again. No gap is silent.
//!
//! # Lock order
//! `copier` → the state of `Shared`. Checkpoints hold `page_tables` while they lock `copier`. Files are read and
//! written under `copier`, never under the state.

mod copier;
mod file;
mod folder;
mod names;
mod reader;
pub(crate) mod records;
mod retention;
mod scan;
mod shared;
mod translation;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::{BLOCK_BYTES, DatabaseId, Timestamp};
use crate::io::{Backend, FolderRef};
use crate::memory::Budget;
use crate::seglog::Log;
use crate::sync::{Condvar, Mutex};
use copier::{Copier, CopierSettings};
use shared::Shared;

pub(crate) use names::Names;
pub(crate) use reader::{FeedReader, FoundCommit};
pub use retention::Retention;
pub(crate) use shared::FeedFigures;

/// The pause between two copies. A copy after each of many small commits would cost a read and a write for each.
const PAUSE: Duration = Duration::from_millis(1);

/// The minimum size of the buffers of the copier and of readers, in small budgets.
const BUFFER_BYTES_MIN: u64 = 32 << 10;
/// The maximum size of these buffers: larger writes and reads are hardly faster.
const BUFFER_BYTES_MAX: u64 = 512 << 10;

/// Returns the retention of an opening. Without a setting it is that of the last opening that kept changes. An opening
/// that turns retention off removes the files.
pub(crate) fn retention_of(setting: Option<Retention>, parent: &FolderRef, database: DatabaseId) -> Option<Retention> {
    let chosen = match setting {
        None => copier::kept_retention(parent, database),
        Some(retention) if retention.is_some() => Ok(Some(retention)),
        Some(_) => copier::remove_all(parent, database).map(|()| None),
    };
    chosen.unwrap_or_else(|error| {
        log::error!("{}: the files of kept changes: {error}", parent.path().display());
        None
    })
}

/// The change feed of an open database.
#[derive(Debug)]
pub(crate) struct Feed {
    shared: Arc<Shared>,
    copier: Mutex<Copier>,
    parent: FolderRef,
    budget: Arc<Budget>,
    /// The newest durable timestamp that the log has announced.
    durable: AtomicU64,
    /// Set while the thread of the copier sleeps.
    is_sleeping: AtomicBool,
    is_stopped: Mutex<bool>,
    changed: Condvar,
}

impl Feed {
    /// Creates the feed of a database in the folder `parent`, which has recovered from the checkpoint at `covered`.
    /// `names` are the names of keyspaces as of this checkpoint, and `durable` is the newest commit in the log.
    pub(crate) fn new(
        backend: &Arc<dyn Backend>,
        parent: &FolderRef,
        database: DatabaseId,
        retention: Retention,
        budget: &Arc<Budget>,
        (covered, names): (Timestamp, Names),
        durable: Timestamp,
    ) -> Feed {
        let settings = CopierSettings {
            backend: Arc::clone(backend),
            parent: Arc::clone(parent),
            database,
            retention,
            buffer_bytes: buffer_bytes(budget.total_bytes()),
        };
        Feed {
            shared: Arc::new(Shared::new(covered)),
            copier: Mutex::new(Copier::new(settings, (covered, names), durable, budget)),
            parent: Arc::clone(parent),
            budget: Arc::clone(budget),
            durable: AtomicU64::new(durable.0),
            is_sleeping: AtomicBool::new(false),
            is_stopped: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// Called when the durable horizon has advanced. Wakes the thread of the copier if it sleeps.
    pub(crate) fn announce(&self, durable: Timestamp) {
        self.durable.fetch_max(durable.0, Ordering::SeqCst);
        // The thread stores this flag before it looks at `durable` for the last time.
        if self.is_sleeping.load(Ordering::SeqCst) {
            let _guard = self.is_stopped.lock();
            self.changed.notify_all();
        }
    }

    /// Makes all commits up to `timestamp` durable in change files. Called before a checkpoint that covers them is
    /// durable. If the files can't be written, the feed ends, and the checkpoint continues.
    pub(crate) fn keep_up_to(&self, log: &Log, timestamp: Timestamp) {
        assert!(timestamp <= log.durable(), "a checkpoint covers what is not durable");
        let mut copier = self.copier.lock();
        copier.copy(&self.shared, log);
        copier.sync(&self.shared);
        assert!(
            self.shared.has_failed() || timestamp <= self.shared.copied(),
            "commits up to {timestamp} are not in change files"
        );
    }

    /// Waits for durable commits that have not been copied, and for the pause after the last copy. Returns `false`
    /// once the feed is stopped.
    pub(crate) fn wait_for_commits(&self) -> bool {
        let mut is_stopped = self.is_stopped.lock();
        if !*is_stopped {
            self.changed.wait_for(&mut is_stopped, PAUSE);
        }
        self.is_sleeping.store(true, Ordering::SeqCst);
        while !*is_stopped && self.durable.load(Ordering::SeqCst) <= self.shared.copied().0 {
            self.changed.wait(&mut is_stopped);
        }
        self.is_sleeping.store(false, Ordering::SeqCst);
        !*is_stopped
    }

    /// Copies the durable commits. Returns `false` if the feed has ended.
    pub(crate) fn copy(&self, log: &Log) -> bool {
        self.copier.lock().copy(&self.shared, log);
        !self.shared.has_failed()
    }

    /// Ends the thread of the copier, and the waits of readers.
    pub(crate) fn stop(&self) {
        *self.is_stopped.lock() = true;
        self.changed.notify_all();
        self.shared.close();
    }

    /// Creates a reader of the commits after `since`, which must not be above `durable`.
    pub(crate) fn reader(&self, since: Timestamp, durable: Timestamp) -> Result<FeedReader> {
        if since > durable {
            let hint = format!("there is no commit {since} yet: the newest durable one is {durable}");
            return Err(Error::Invalid(hint));
        }
        self.copier.lock().ensure_started(&self.shared);
        let chunk_bytes = buffer_bytes(self.budget.total_bytes());
        FeedReader::live(&self.shared, &self.parent, &self.budget, chunk_bytes, since)
    }

    pub(crate) fn figures(&self) -> FeedFigures {
        self.shared.figures()
    }
}

/// Returns the size of the buffers of the copier and of readers in a database with this budget.
pub(crate) fn buffer_bytes(budget_bytes: u64) -> usize {
    let bytes = (budget_bytes / 256).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX) as usize;
    bytes / BLOCK_BYTES * BLOCK_BYTES
}
