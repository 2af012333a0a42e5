//! The public face: databases, keyspaces, transactions, snapshots.

mod asynchronous;
mod config;
mod keyspace;
mod range;
mod snapshot;
mod transaction;
mod value;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use crate::store::{MemoryPart, Stats};
pub use asynchronous::Attempt;
pub use config::Config;
pub use keyspace::{Keyspace, KeyspaceInfo, KeyspaceOptions};
pub use range::{AsyncValueReader, Range, ValueReader};
pub use snapshot::Snapshot;
pub use transaction::{Isolation, Savepoint, Transaction, TxOptions};
pub use value::Value;

use crate::error::{Error, Result};
use crate::io::Process;
use crate::store::{CheckProgress, CheckReport, CheckpointReport, CompactReport, Opening, Settings, Store};
use crate::txn::snapshots::SnapshotHandle;

/// An open database. Cheap to clone; all clones, and all keyspaces, snapshots, transactions, ranges and value readers,
/// are handles of the same one, usable from any thread. The last of them to go closes it.
///
/// A keyspace or savepoint of another database, or of an earlier opening of the same, is refused with
/// [`Error::Invalid`].
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

/// Attempts at a transaction that ends in conflicts, or for want of memory that others hold.
const ATTEMPTS_MAX: u32 = 100;

/// Keeps a database open: shared by everything that a user can hold of it. The last one dropped closes the database.
#[derive(Debug)]
pub(crate) struct Handle {
    store: Arc<Store>,
    /// The process that opened the database.
    process: Process,
    /// Of all openings in this process only this one has it.
    number: u64,
}

impl Handle {
    pub(crate) fn new(store: Arc<Store>) -> Handle {
        static OPENING_COUNT: AtomicU64 = AtomicU64::new(0);
        Handle { store, process: Process::here(), number: OPENING_COUNT.fetch_add(1, Ordering::Relaxed) }
    }

    /// The same for what follows a look at the process.
    #[inline]
    fn store_here(&self) -> &Store {
        &self.store
    }

    /// The moment that plain reads see.
    pub(crate) fn open_visible_snapshot(&self) -> Arc<SnapshotHandle> {
        self.store.open_snapshot(|| self.store.engine.clock.visible())
    }

    /// What the handle is of. [`Error::Forked`] in a fork of the process that opened it: files, rings and locks are the
    /// parent's, and other threads' locks were copied as they were.
    #[inline]
    pub(crate) fn store(&self) -> Result<&Arc<Store>> {
        if self.process.is_here() { Ok(&self.store) } else { Err(Error::Forked { path: self.store.path.clone() }) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // It stays as it is until the process ends: whatever closing it would do is the parent's to do.
            std::mem::forget(Arc::clone(&self.store));
            return;
        }
        if self.store.is_closed() {
            return;
        }
        if let Err(error) = self.store.close() {
            log::error!("closing {}: {error}; nothing that was durable is lost", self.store.path.display());
        }
    }
}

impl Database {
    /// Opens the database at `path`, a folder, with the default [`Config`]; creates it if it is missing and recovers it
    /// if it was not closed.
    ///
    /// # Errors
    /// Those of [`Config::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Database> {
        Config::new().open(path)
    }

    pub(crate) fn open_with(settings: &Settings, path: &Path) -> Result<Database> {
        let store = Store::open(settings, path)?;
        Ok(Database { handle: Arc::new(Handle::new(store)) })
    }

    pub(crate) fn store(&self) -> Result<&Arc<Store>> {
        self.handle.store()
    }

    /// The keyspace with this name, created with the default page size if there is none. That it was created is durable
    /// when this returns, also where another thread creates it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is empty or over 255 bytes; those of a commit where it is being created.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.keyspace_with(name, KeyspaceOptions::default())
    }

    /// Like [`keyspace`](Database::keyspace), with options that count if it is created.
    ///
    /// # Errors
    /// As for [`keyspace`](Database::keyspace), and [`Error::Invalid`] for a page size that can't be.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let store = self.store()?;
        let open = match store.durable_keyspace(name)? {
            Some(open) => open,
            None => {
                let page_bytes = options.page_bytes.unwrap_or(store.page_bytes);
                config::check_page_bytes(page_bytes)?;
                store.create_keyspace(name, page_bytes)?
            }
        };
        Ok(Keyspace::new(&self.handle, open))
    }

    /// The keyspace with this name. Waits for the log where another thread is creating or dropping one, so that a power
    /// cut does not change the answer.
    ///
    /// # Errors
    /// [`Error::NoSuchKeyspace`]; [`Error::OutcomeUnknown`] or [`Error::Failed`] if the log fails first.
    pub fn existing_keyspace(&self, name: &str) -> Result<Keyspace> {
        let open =
            self.store()?.durable_keyspace(name)?.ok_or_else(|| Error::NoSuchKeyspace { name: name.to_owned() })?;
        Ok(Keyspace::new(&self.handle, open))
    }

    /// All keyspaces, by name; one that is being created is listed once that is durable.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let Ok(store) = self.store() else { return Vec::new() };
        (store.keyspaces.all().iter())
            .filter(|open| store.has_created(open))
            .map(|open| KeyspaceInfo {
                name: open.name.clone(),
                id: open.tree.pages.id,
                page_bytes: open.tree.pages.page_bytes,
                page_count: open.tree.pages.table.page_count(),
            })
            .collect()
    }

    /// Drops a keyspace and all its rows. Handles of it answer [`Error::KeyspaceDropped`] from then on. O(pages), with
    /// commits waiting meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSuchKeyspace`], and those of a commit.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.store()?.drop_keyspace(name)
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

    /// Like [`transact`](Database::transact), in transactions of one's own options.
    ///
    /// # Errors
    /// Those of [`transact`](Database::transact).
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

    /// The pause before the next attempt: random, up to twice `pause`, so that two transactions that collided do not
    /// collide again.
    fn pause_before(&self, attempt: u32) -> Duration {
        let pause_us = 50u64 << attempt.min(10);
        let random = self.handle.store.engine.backend.random() % pause_us;
        Duration::from_micros((pause_us / 2 + random).min(50_000))
    }

    /// The state of all keyspaces at this moment, for reading. It costs nothing to take; rows that are changed while it
    /// lives are kept for it in memory, so drop it when done.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let engine = &self.handle.store.engine;
        let snapshot = self.handle.store.open_snapshot(|| engine.clock.visible());
        Snapshot { handle: Arc::clone(&self.handle), snapshot }
    }

    /// Writes everything that is only in the log to its place, so that reopening has nothing to recover.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Failed`].
    pub fn checkpoint(&self) -> Result<CheckpointReport> {
        self.store()?.checkpoint()
    }

    /// Packs the data file as tightly as it goes and gives its end back to the file system. Works in the background of
    /// reads and commits. The file is no longer afterwards than before, but for one segment where the last checkpoint
    /// lies. O(data).
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Failed`].
    pub fn compact(&self) -> Result<CompactReport> {
        self.store()?.compact()
    }

    /// Reads and verifies every page, table and log record. O(data). What is damaged is in the report.
    ///
    /// # Errors
    /// Only those that keep it from looking.
    pub fn check(&self) -> Result<CheckReport> {
        self.check_with(|_| ())
    }

    /// Like [`check`](Database::check), telling `progress` now and then how far it is.
    ///
    /// # Errors
    /// Those of [`check`](Database::check).
    pub fn check_with(&self, progress: impl FnMut(CheckProgress)) -> Result<CheckReport> {
        self.store()?.check(progress)
    }

    /// Figures of this opening.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.store().map(|store| store.stats()).unwrap_or_default()
    }

    /// The result of opening the database.
    #[must_use]
    pub fn opening(&self) -> &Opening {
        &self.handle.store.opening
    }

    /// Makes a checkpoint and closes the database. Dropping the last handle does the same, but can only log errors.
    /// It waits for no commit: one that another handle makes meanwhile is answered with `Ok` and is in the closed
    /// database, or with [`Error::Failed`] and is not. Other handles answer `Failed` to commits afterwards, and to
    /// asynchronous calls that need the disk; the folder is free for another opening when the last of them has gone.
    /// Closing again waits for the first to end, and answers the same.
    ///
    /// # Errors
    /// Those of the checkpoint; [`Error::Failed`] with the first failure if the database accepted no commits any more.
    /// It is closed in either case, and nothing that was durable is lost: the log has it. Relaxed commits that had not
    /// become durable may be lost where the log has failed.
    pub fn close(self) -> Result<()> {
        self.store()?.close()
    }
}
