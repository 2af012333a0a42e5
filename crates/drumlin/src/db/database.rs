//! The database handle.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use super::config::{Config, check_page_bytes};
use super::handle::Handle;
use super::keyspace::{Keyspace, KeyspaceInfo, KeyspaceOptions};
use super::limits::Limits;
use super::snapshot::Snapshot;
use super::transaction::{Transaction, TxOptions};
use crate::error::{Error, Result};
use crate::format::{KeyspaceId, Timestamp};
use crate::store::{
    Change, CheckProgress, CheckReport, CheckpointReport, CompactReport, Opening, Settings, Stats, Store,
};
use crate::task::{Rooted, WaitMode, ready};

/// A handle to an open database, cheap to clone and usable from any thread. Its clones, keyspaces, snapshots,
/// transactions, ranges and value readers all keep the database open. Dropping the last of these handles closes it.
///
/// Calls with a keyspace or savepoint of a different database, or of an earlier opening of this database, fail with
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
#[derive(Clone)]
pub struct Database {
    pub(super) handle: Arc<Handle>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let store = self.handle.store_here();
        write!(f, "Database({:?} at {})", store.path, store.engine.clock.visible())
    }
}

impl Config {
    /// Opens the database in the folder `path` (`.` is the current one; `~` is not expanded). Creates the database, and
    /// the folders above it, if it does not exist. Recovers it if it was not closed.
    ///
    /// Takes a few milliseconds if the database was closed. Otherwise, recovery reads the log since the last checkpoint
    /// and each page that the log changes: about half a second for 8 MB of log with 65,000 random updates in a keyspace
    /// of four million rows, none of which is in memory.
    ///
    /// # Errors
    /// [`Error::NotADatabase`], [`Error::NewerFormat`], [`Error::OlderFormat`], [`Error::Locked`],
    /// [`Error::Corrupted`], [`Error::BudgetTooSmall`], [`Error::Io`]; [`Error::NotClosed`] for a database that is
    /// opened for [reading only](Config::read_only); [`Error::Invalid`] for a setting or path that is not allowed.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Database> {
        self.check()?;
        if !self.settings.in_memory && path.as_ref().as_os_str().is_empty() {
            let hint = "the path is empty: give the folder of the database, or `.` for the current one";
            return Err(Error::Invalid(hint.into()));
        }
        Database::open_with(&self.settings, path.as_ref())
    }
}

impl Database {
    /// Opens the database in the folder `path` with the default [`Config`]. Creates the database if it does not exist,
    /// and recovers it if it was not closed.
    ///
    /// # Errors
    /// The errors of [`Config::open`].
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

    /// Returns the keyspace with this name, creating it with the default page size if it does not exist. When this
    /// returns, the keyspace's creation is durable, even if another thread created it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is empty or over 255 bytes; the errors of a commit if the keyspace is
    /// created.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.keyspace_with(name, KeyspaceOptions::default())
    }

    /// Like [`keyspace`](Database::keyspace), with options that apply if the keyspace is created.
    ///
    /// # Errors
    /// The errors of [`keyspace`](Database::keyspace), and [`Error::Invalid`] for a page size that is not allowed.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let store = self.store()?;
        let open = match store.durable_keyspace(name)? {
            Some(open) => open,
            None => {
                let page_bytes = options.page_bytes.unwrap_or(store.page_bytes);
                check_page_bytes(page_bytes)?;
                store.create_keyspace(name, page_bytes)?
            }
        };
        Ok(Keyspace::new(&self.handle, open))
    }

    /// Returns the keyspace with this name. If another thread is creating or dropping it, waits for the log, so that a
    /// power cut cannot change the answer.
    ///
    /// # Errors
    /// [`Error::NoSuchKeyspace`]; [`Error::OutcomeUnknown`] or [`Error::Failed`] if the log fails first.
    pub fn existing_keyspace(&self, name: &str) -> Result<Keyspace> {
        let open =
            self.store()?.durable_keyspace(name)?.ok_or_else(|| Error::NoSuchKeyspace { name: name.to_owned() })?;
        Ok(Keyspace::new(&self.handle, open))
    }

    /// Returns all keyspaces, sorted by name. A keyspace that is being created is listed once its creation is durable.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let Ok(store) = self.store() else { return Vec::new() };
        (store.keyspaces.all().iter())
            .filter(|open| store.has_created(open) && open.tree.pages.id != KeyspaceId::PREPARED)
            .map(|open| KeyspaceInfo {
                name: open.name().to_string(),
                id: open.tree.pages.id,
                page_bytes: open.tree.pages.page_bytes(),
                page_count: open.tree.pages.table.page_count(),
            })
            .collect()
    }

    /// Drops a keyspace and all its rows. Its handles then return [`Error::KeyspaceDropped`]. O(1): neither the call
    /// nor a concurrent commit waits for the keyspace's pages, which a background thread frees. Their space on disk can
    /// be used again after the next checkpoint. No space is lost if the process is killed before.
    ///
    /// # Errors
    /// [`Error::NoSuchKeyspace`], and the errors of a commit.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.store()?.alter(&[Change::Drop { name: name.to_owned() }])
    }

    /// Waits until all commits that have returned are durable. Only [`Relaxed`](crate::Durability::Relaxed) commits can
    /// be pending. Syncs at most once, and returns immediately if no sync is needed.
    ///
    /// ```
    /// use drumlin::Durability;
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert_with("a", "1", Durability::Relaxed)?;
    /// k.insert_with("b", "2", Durability::Relaxed)?;
    /// db.sync()?; // no power cut can lose these rows now
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if the log fails before they are durable.
    pub fn sync(&self) -> Result<()> {
        ready(self.sync_in(WaitMode::Blocking))
    }

    #[inline(never)]
    pub(crate) fn sync_in(&self, mode: WaitMode<'_>) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            let engine = &self.store()?.engine;
            engine.show_durable(mode, engine.clock.published()).await
        })
    }

    /// Returns the timestamp up to which all commits are durable. Only [`Relaxed`](crate::Durability::Relaxed) commits
    /// return before they are. Costs a few nanoseconds.
    ///
    /// ```
    /// use drumlin::Durability;
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// let mut batch = db.batch()?;
    /// batch.insert(&k, "a", "1")?;
    /// let timestamp = batch.commit_with(Durability::Relaxed)?;
    /// db.sync()?;
    /// assert!(db.durable()? >= timestamp);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn durable(&self) -> Result<Timestamp> {
        Ok(self.store()?.engine.log().durable())
    }

    /// Returns the absolute path of the database's folder. The path of an in-memory database names no real folder.
    ///
    /// ```
    /// # let folder = std::env::temp_dir().join(format!("drumlin-doc-path-{}", std::process::id()));
    /// let db = drumlin::Database::open(folder.join("shop.drumlin"))?;
    /// assert!(db.path().ends_with("shop.drumlin"));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.handle.store_here().path
    }

    /// Returns the options that [`begin`](Database::begin) uses: the defaults, with the durability of
    /// [`Config::durability`](crate::Config::durability). In contrast, [`TxOptions::default`] does not depend on a
    /// database, so its durability is `Full`.
    ///
    /// ```
    /// use drumlin::{Isolation, TxOptions};
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let tx = db.begin_with(TxOptions { isolation: Isolation::Serializable, ..db.tx_options() })?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn tx_options(&self) -> TxOptions {
        TxOptions { durability: self.handle.store_here().durability, ..TxOptions::default() }
    }

    /// Begins a transaction with the database's options: snapshot isolation, and full durability unless
    /// [`Config::durability`](crate::Config::durability) says otherwise.
    ///
    /// # Errors
    /// [`Error::Closed`], or [`Error::Failed`] once the database accepts no more commits.
    pub fn begin(&self) -> Result<Transaction> {
        self.begin_with(self.tx_options())
    }

    /// Begins a transaction with the given options.
    ///
    /// # Errors
    /// [`Error::Closed`], or [`Error::Failed`] once the database accepts no more commits.
    pub fn begin_with(&self, options: TxOptions) -> Result<Transaction> {
        Transaction::begin(&self.handle, options)
    }

    /// Takes a snapshot of all keyspaces for reading, at almost no cost. While it is open, old versions of rows that
    /// change must be retained, so drop it when it is no longer needed.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.handle, self.handle.open_visible_snapshot())
    }

    /// Makes a checkpoint: writes all changed pages to the data file, so that reopening has nothing to recover.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Closed`], [`Error::Failed`].
    pub fn checkpoint(&self) -> Result<CheckpointReport> {
        let store = self.store()?;
        store.check_writable()?;
        store.checkpoint()
    }

    /// Packs the data file as tightly as possible. Returns the free space at its end, and spare log segments, to the
    /// file system. Reads and commits continue during the call. Afterwards, the file is no longer than before, except
    /// for one segment that the last checkpoint may occupy. O(data).
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Closed`], [`Error::Failed`].
    pub fn compact(&self) -> Result<CompactReport> {
        let store = self.store()?;
        store.check_writable()?;
        store.compact()
    }

    /// Reads and verifies every page, table and log record. O(data). The report lists all corruption found. The check
    /// also counts rows, so the next [`count`](Keyspace::count) does not read leaves, even if the database is closed
    /// and reopened first.
    ///
    /// # Errors
    /// Only errors that prevent the check itself.
    pub fn check(&self) -> Result<CheckReport> {
        self.check_with(|_| ())
    }

    /// Like [`check`](Database::check), and calls `progress` from time to time.
    ///
    /// # Errors
    /// Same as [`check`](Database::check).
    pub fn check_with(&self, mut progress: impl FnMut(CheckProgress)) -> Result<CheckReport> {
        self.store()?.check(&mut progress)
    }

    /// Returns current sizes, and counters since the database was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.handle.store_in_process().map(|store| store.stats()).unwrap_or_default()
    }

    /// Returns the limits, in bytes, that follow from the memory budget and the page size.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().memory(64 << 20).open("")?;
    /// println!("a transaction writes up to {} bytes", db.limits().transaction_log_bytes);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn limits(&self) -> Limits {
        let store = self.handle.store_here();
        Limits::new(&store.engine.budget, store.page_bytes, store.engine.version_disk_bytes_max())
    }

    /// Returns a report of what opening the database found and recovered.
    #[must_use]
    pub fn opening(&self) -> &Opening {
        &self.handle.store_here().opening
    }

    /// Makes a checkpoint and closes the database. Dropping the last handle does the same, but can only log errors.
    ///
    /// When it returns, the folder can be opened again, even if other handles of this database still exist. Their calls
    /// fail with [`Error::Closed`]. An iterator or stream first returns the rows that it has already copied, and a
    /// value reader the bytes that it has in memory; then they fail with this error. [`stats`](Database::stats) still
    /// works. Closing does not wait for calls in flight in other threads or tasks. Such a call either completes or
    /// fails with `Closed`: if a commit returns `Ok`, the closed database contains it; if it returns `Closed`, the
    /// database does not. The pages' memory is freed when the last handle is dropped.
    ///
    /// A second close waits for the first and returns its result.
    ///
    /// ```
    /// # let folder = std::env::temp_dir().join(format!("drumlin-doc-close-{}", std::process::id()));
    /// # let path = folder.join("shop.drumlin");
    /// use drumlin::{Database, Error};
    ///
    /// let db = Database::open(&path)?;
    /// let orders = db.keyspace("orders")?; // another part of the program holds this
    /// orders.insert("1", "three apples")?;
    /// db.close()?;
    /// assert!(matches!(orders.get("1"), Err(Error::Closed)));
    ///
    /// let db = Database::open(&path)?; // even though the old handle still exists
    /// assert_eq!(db.keyspace("orders")?.get("1")?.unwrap(), "three apples");
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`checkpoint`](Database::checkpoint); [`Error::Failed`] with the first failure if the database had
    /// stopped accepting commits. The database is closed even after an error. No durable commit is lost, because the
    /// log contains it. `Relaxed` commits that were not durable yet may be lost if the log failed.
    pub fn close(self) -> Result<()> {
        self.handle.close()
    }
}
