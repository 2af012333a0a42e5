//! The public face: databases, keyspaces, transactions, snapshots.

mod asynchronous;
mod check;
mod checkpoint;
mod clean;
mod config;
mod core;
mod keyspace;
mod open;
mod range;
mod snapshot;
mod stats;
mod transaction;
mod value;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use asynchronous::Attempt;
pub use check::{CheckProgress, CheckReport, Damage};
pub use checkpoint::CheckpointReport;
pub use clean::CompactReport;
pub use config::Config;
pub use keyspace::{Keyspace, KeyspaceInfo, KeyspaceOptions};
pub use range::{AsyncValueReader, Range, ValueReader};
pub use snapshot::Snapshot;
pub use stats::{MemoryPart, Stats};
pub use transaction::{Isolation, Savepoint, Transaction, TxOptions};
pub use value::Value;

use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::io::Process;
use crate::txn::snapshots::Registration;
use core::Core;

/// An open database. Cheap to clone; all clones, and all keyspaces, snapshots, transactions, ranges and value readers, are
/// handles of the same one, usable from any thread. The last of them to go closes it.
///
/// A keyspace or savepoint of another database, or of an earlier opening of the same, is refused with [`Error::Invalid`].
///
/// ```
/// use drumlin::{Config, Database};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-{}", std::process::id()));
/// # let path = folder.join("shop.drumlin");
/// let db = Database::open(&path)?;
/// let orders = db.keyspace("orders")?;
/// orders.insert(b"2026-11-21/0001", b"three apples")?; // durable when it returns
/// assert_eq!(orders.get(b"2026-11-21/0001")?.unwrap(), b"three apples");
///
/// db.transact(|tx| {
///     tx.insert(&orders, b"2026-11-21/0002", b"a pear")?;
///     tx.remove(&orders, b"2026-11-21/0001")
/// })?;
/// assert_eq!(orders.count(..)?, 1);
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Database {
    handle: Arc<Handle>,
}

/// How often a transaction is tried that ends in conflicts, or for the memory of others.
const ATTEMPTS_MAX: u32 = 100;

/// What keeps a database open: everything that a user can have of it has a part in this one. Closes it when it goes.
#[derive(Debug)]
pub(crate) struct Handle {
    core: Arc<Core>,
    /// The process that opened the database.
    process: Process,
    /// Of all openings in this process only this one has it.
    number: u64,
}

impl Handle {
    pub(crate) fn new(core: Arc<Core>) -> Handle {
        static OPENING_COUNT: AtomicU64 = AtomicU64::new(0);
        Handle { core, process: Process::here(), number: OPENING_COUNT.fetch_add(1, Ordering::Relaxed) }
    }

    /// The same for what follows a look at the process.
    #[inline]
    fn core_here(&self) -> &Core {
        &self.core
    }

    /// The moment that plain reads see.
    pub(crate) fn register_visible(&self) -> Arc<Registration> {
        self.core.register(|| self.core.engine.clock.visible())
    }

    /// What the handle is of. [`Error::Forked`] in a fork of the process that opened it: files, rings and locks are the
    /// parent's, and other threads' locks were copied as they were.
    #[inline]
    pub(crate) fn core(&self) -> Result<&Arc<Core>> {
        if self.process.is_here() { Ok(&self.core) } else { Err(Error::Forked { path: self.core.path.clone() }) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // It stays as it is until the process ends: whatever closing it would do is the parent's to do.
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
        if self.core.closed.lock().is_some() {
            return;
        }
        if let Err(error) = self.core.close() {
            log::error!("closing {}: {error}; nothing committed is lost", self.core.path.display());
        }
    }
}

/// What opening the database did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opening {
    /// It was not there and was made.
    pub created: bool,
    /// Commits that were in the log and not in the newest checkpoint.
    pub recovered_records: u64,
    /// Bytes of those.
    pub recovered_bytes: u64,
    /// How long opening took.
    pub duration: Duration,
    /// The newest commit.
    pub last: Timestamp,
}

impl Database {
    /// Opens the database at `path`, a folder, with the default [`Config`]; creates it if it is missing and recovers it if
    /// it was not closed.
    ///
    /// # Errors
    /// As [`Config::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Database> {
        Config::new().open(path)
    }

    pub(crate) fn core(&self) -> Result<&Arc<Core>> {
        self.handle.core()
    }

    /// The keyspace with this name, created with the default page size if there is none. Creating one is durable when this
    /// returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is empty or over 255 bytes; those of a commit where it is created.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.keyspace_with(name, KeyspaceOptions::default())
    }

    /// As [`keyspace`](Database::keyspace), with options that count if it is created.
    ///
    /// # Errors
    /// As for [`keyspace`](Database::keyspace), and [`Error::Invalid`] for a page size that can't be.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let core = self.core()?;
        let named = match core.keyspace(name) {
            Some(named) => named,
            None => {
                let page_bytes = options.page_bytes.unwrap_or(core.page_bytes);
                config::check_page_bytes(page_bytes)?;
                core.create_keyspace(name, page_bytes)?
            }
        };
        Ok(Keyspace::new(&self.handle, named))
    }

    /// The keyspace with this name.
    ///
    /// # Errors
    /// [`Error::NoSuchKeyspace`].
    pub fn existing_keyspace(&self, name: &str) -> Result<Keyspace> {
        let named = self.core()?.keyspace(name).ok_or_else(|| Error::NoSuchKeyspace { name: name.to_owned() })?;
        Ok(Keyspace::new(&self.handle, named))
    }

    /// All keyspaces, by name.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let Ok(core) = self.core() else { return Vec::new() };
        let keyspaces = core.keyspaces.read();
        (keyspaces.values())
            .map(|named| KeyspaceInfo {
                name: named.name.clone(),
                id: named.tree.pages.id,
                page_bytes: named.tree.pages.page_bytes,
                page_count: named.tree.pages.table.page_count(),
            })
            .collect()
    }

    /// Drops a keyspace and all its rows. Handles of it answer [`Error::KeyspaceDropped`] from then on. O(pages), with
    /// commits waiting meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSuchKeyspace`], and those of a commit.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.core()?.drop_keyspace(name)
    }

    /// Begins a transaction with the defaults: snapshot isolation, full durability.
    ///
    /// # Errors
    /// [`Error::Failed`] once the database accepts no more commits.
    pub fn begin(&self) -> Result<Transaction> {
        self.begin_with(TxOptions::default())
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`Error::Failed`] once the database accepts no more commits.
    pub fn begin_with(&self, options: TxOptions) -> Result<Transaction> {
        Transaction::begin(&self.handle, options)
    }

    /// Runs `body` in a transaction and commits it; runs it again while it ends in [`Error::Conflict`] or
    /// [`Error::MemoryInUse`], after pauses that double from 50 µs to 50 ms, up to 100 times.
    ///
    /// # Errors
    /// Any error of `body` or of the commit but those that were retried.
    pub fn transact<T>(&self, body: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        self.transact_with(TxOptions::default(), body)
    }

    /// As [`transact`](Database::transact), in transactions of one's own options.
    ///
    /// # Errors
    /// As [`transact`](Database::transact).
    pub fn transact_with<T>(
        &self,
        options: TxOptions,
        mut body: impl FnMut(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        let mut attempt = 0;
        loop {
            let mut transaction = self.begin_with(options)?;
            let result = body(&mut transaction).and_then(|value| transaction.commit().map(|_| value));
            attempt += 1;
            match result {
                Err(error) if error.passes() && attempt < ATTEMPTS_MAX => {
                    crate::sync::sleep(self.pause_before(attempt));
                }
                other => return other,
            }
        }
    }

    /// How long to pause before trying again: up to twice the pause, so that two that met do not meet again.
    fn pause_before(&self, attempt: u32) -> Duration {
        let pause_us = 50u64 << attempt.min(10);
        let random = self.handle.core.engine.backend.random() % pause_us;
        Duration::from_micros((pause_us / 2 + random).min(50_000))
    }

    /// The state of all keyspaces at this moment, for reading. It costs nothing to take; rows that are changed while it
    /// lives are kept for it in memory, so drop it when done.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let engine = &self.handle.core.engine;
        let moment = self.handle.core.register(|| engine.clock.visible());
        Snapshot { handle: Arc::clone(&self.handle), moment }
    }

    /// Writes everything that is only in the log to its place, so that reopening has nothing to recover.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Failed`].
    pub fn checkpoint(&self) -> Result<CheckpointReport> {
        self.core()?.checkpoint()
    }

    /// Packs the data file as tightly as it goes and gives its end back to the file system. Works in the background of
    /// reads and commits. The file is no longer afterwards than before, but for one segment where the last checkpoint
    /// lies. O(data).
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Failed`].
    pub fn compact(&self) -> Result<CompactReport> {
        self.core()?.compact()
    }

    /// Reads and verifies every page, table and log record. O(data). What is damaged is in the report.
    ///
    /// # Errors
    /// Only those that keep it from looking.
    pub fn check(&self) -> Result<CheckReport> {
        self.check_with(|_| ())
    }

    /// As [`check`](Database::check), telling `progress` now and then how far it is.
    ///
    /// # Errors
    /// As [`check`](Database::check).
    pub fn check_with(&self, progress: impl FnMut(CheckProgress)) -> Result<CheckReport> {
        self.core()?.check(progress)
    }

    /// Figures of this opening.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core().map(|core| core.stats()).unwrap_or_default()
    }

    /// What opening did.
    #[must_use]
    pub fn opening(&self) -> &Opening {
        self.handle.core.opening.get().expect("set when it was opened")
    }

    /// Makes a checkpoint and closes the database. Dropping the last handle does the same, but can only log errors.
    /// Other handles answer [`Error::Failed`] to commits afterwards, and to asynchronous calls that need the disk; the folder
    /// is free for another opening when the last of them has gone. Closing again waits for the first to end, and answers the
    /// same.
    ///
    /// # Errors
    /// Those of the checkpoint. Nothing committed is lost: the log has it.
    pub fn close(self) -> Result<()> {
        self.core()?.close()
    }
}
