//! The traits that every engine implements, and the facts about an engine that explain its figures.
//!
//! Every workload uses [`Engine`] and [`Session`], so all engines perform the same operations on the same keys. If an
//! engine lacks an operation, its [`Capabilities`] and the report say so. No operation is emulated silently.

use std::path::Path;
use std::time::Duration;

/// An error of any engine. A worker process reports the error's text.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of a call to an engine.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// A key: a big-endian number, so that keys sort like numbers.
pub type Key = [u8; 8];
/// A row to write.
pub type Row = (Key, Vec<u8>);

/// The guarantee that a commit makes when it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Durability {
    /// The commit survives a power cut, if the engine keeps its promise.
    Full,
    /// The commit may be lost in a power cut until [`Engine::sync`] makes it durable. At best, it survives the death of
    /// the process.
    Relaxed,
}

/// The settings with which every engine is opened.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The memory for all of the engine's own caches and write buffers, in bytes. The page cache is not included.
    pub memory_bytes: u64,
    /// The durability of each commit.
    pub durability: Durability,
    /// The number of sessions that will be open concurrently.
    pub threads: usize,
    /// `true` if transactions will be committed in two phases, for engines that must know it when they open. Other
    /// operations may then be missing.
    pub two_phases: bool,
}

/// The order of the rows in a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Order {
    /// Ascending keys.
    Sorted,
    /// Each key once, in a random order derived from the seed.
    Random,
}

/// Facts about an engine, as the report lists them.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// The engine allows one writer at a time, so several threads commit no faster than one.
    pub one_writer: bool,
    /// The engine can read many keys in one call. If not, `get_many` makes one get per key.
    pub multi_get: bool,
    /// The engine has transactions that can both read and write. If not, an update changes a single row atomically.
    pub transactions: bool,
    /// The engine applies a batch of writes as a whole or not at all.
    pub atomic_batches: bool,
    /// After a kill, the database's files can be opened, and they contain all rows that were synced.
    pub recovers: bool,
    /// The engine takes part only in the workload of durable 1 KiB inserts.
    pub inserts_only: bool,
    /// The engine can commit in two phases.
    pub two_phases: bool,
    /// The engine has named [`Tables`], and this benchmark uses them.
    pub tables: bool,
    /// The engine can remove all rows of a range by one commit, however many there are.
    pub range_deletes: bool,
    /// The engine can change more rows in one transaction than fit in its memory, and is measured doing so.
    pub large_transactions: bool,
}

/// An engine that is included in this build.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The name that selects the engine on the command line.
    pub name: &'static str,
    /// The version of the engine's crate.
    pub version: &'static str,
    /// The engine's settings in this benchmark, in a sentence.
    pub settings: &'static str,
    pub capabilities: Capabilities,
    /// Opens the database in an existing folder. Creates it if the folder is empty.
    pub open: fn(&Path, &Settings) -> Result<Box<dyn Engine>>,
    /// Makes a database in the second folder of the [backups](Backups) in the first. `None` if the engine makes no
    /// backups while it is open, or is not measured doing so.
    pub restore: Option<fn(&Path, &Path) -> Result<()>>,
}

/// A sequence of rows. Each row is valid until the next one is requested.
pub trait Source {
    /// Returns the next row.
    fn next(&mut self) -> Option<(Key, &[u8])>;
}

/// A sequence of changes of rows. Each change is valid until the next one is requested.
pub trait Changes {
    /// Returns the next key and its new value, or `None` in place of the value to remove the row.
    fn next(&mut self) -> Option<(Key, Option<&[u8]>)>;
}

/// The number of rows per transaction of a load, for engines without a faster method.
pub const LOAD_BATCH_ROWS: usize = 1000;

/// An open database with one table of rows. Its methods return the errors of the engine itself.
pub trait Engine: Send + Sync {
    /// Opens a session for a thread.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Makes all commits so far durable.
    fn sync(&self) -> Result<()>;

    /// Loads rows by the engine's fastest method, whether or not it is atomic. The rows may become durable only with
    /// the next [`sync`](Engine::sync).
    fn bulk_load(&self, rows: &mut dyn Source, order: Order) -> Result<()> {
        let _ = order;
        load_in_batches(&mut *self.session()?, rows, LOAD_BATCH_ROWS)
    }

    /// Waits for the flushes and compactions that a load has left running in the background. Starts none itself.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Takes a snapshot of the rows, which the caller holds while other threads write. Returns `None` if the engine has
    /// no snapshots, or is not measured with a held snapshot.
    ///
    /// # Errors
    /// The engine's own errors.
    fn hold(&self) -> Result<Option<Box<dyn HeldSnapshot + '_>>> {
        Ok(None)
    }

    /// Returns the named tables. Only for engines that [have](Capabilities::tables) them.
    fn tables(&self) -> Option<&dyn Tables> {
        None
    }

    /// Returns the calls that make backups. Only for engines that can [restore](Peer::restore) them.
    fn backups(&self) -> Option<&dyn Backups> {
        None
    }

    /// Syncs and closes the database.
    fn close(self: Box<Self>) -> Result<()>;
}

/// The named tables of a database: the table of rows, and others. Its methods return the errors of the engine itself.
pub trait Tables: Sync {
    /// Creates tables with these names in one transaction, if the engine can, and writes the same rows to each.
    ///
    /// # Errors
    /// The engine's own errors.
    fn create(&self, names: &[String], rows: &[Row]) -> Result<()>;

    /// Passes a row's value to `see`. Returns `false` if the row does not exist.
    ///
    /// # Errors
    /// The engine's own errors; an error if there is no such table.
    fn get(&self, name: &str, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Writes rows in one commit, with the durability that was chosen when the database was opened.
    ///
    /// # Errors
    /// The engine's own errors; an error if there is no such table.
    fn write(&self, name: &str, rows: &[Row]) -> Result<()>;

    /// Drops the table of rows.
    ///
    /// # Errors
    /// The engine's own errors.
    fn drop_rows(&self) -> Result<()>;
}

/// The backups of an open database.
pub trait Backups: Sync {
    /// Writes a backup of the database into a folder. If the folder has an earlier backup, the engine may write only
    /// what has changed since. Other threads may write during the call.
    ///
    /// # Errors
    /// The engine's own errors.
    fn back_up(&self, folder: &Path) -> Result<()>;
}

/// A snapshot of the rows.
pub trait HeldSnapshot {
    /// Passes all rows of the snapshot to `see`, in key order. Returns the number of rows.
    ///
    /// # Errors
    /// The engine's own errors.
    fn scan(&mut self, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64>;
}

/// A thread's access to an open database. Its methods return the errors of the engine itself.
pub trait Session {
    /// Passes the row's value to `see`. Returns `false` if the row does not exist.
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Passes the values of many rows to `see`, each with the index of its key in `keys`. Returns the number of rows
    /// that exist.
    fn get_many(&mut self, keys: &[Key], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let mut found = 0;
        for (index, key) in keys.iter().enumerate() {
            found += usize::from(self.get(*key, &mut |value| see(index, value))?);
        }
        Ok(found)
    }

    /// Passes at most `limit` rows to `see`, in key order, beginning at `first`. Returns the number of rows passed.
    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64>;

    /// Counts the rows from `first` (inclusive) to `end` (exclusive).
    fn count(&mut self, first: Key, end: Key) -> Result<u64>;

    /// Writes rows in one commit, with the durability that was chosen when the database was opened.
    fn write(&mut self, rows: &[Row]) -> Result<()>;

    /// Writes rows in one transaction that is committed in two phases: prepared under an id, durable, and then
    /// committed without another sync, because a coordinator would have recorded its decision. Only for engines that
    /// [can](Capabilities::two_phases).
    ///
    /// # Errors
    /// The engine's own errors.
    fn write_in_two_phases(&mut self, id: &[u8], rows: &[Row]) -> Result<()> {
        let _ = (id, rows);
        Err("this engine has no two phases".into())
    }

    /// Like [`write_in_two_phases`](Session::write_in_two_phases). Returns the processor time that this thread needs
    /// for the last step, which fixes the commit's place in the order of commits. What the engine can do before that
    /// step is not included.
    ///
    /// # Errors
    /// The engine's own errors.
    fn time_commit_step(&mut self, id: &[u8], rows: &[Row]) -> Result<Duration> {
        let _ = (id, rows);
        Err("this engine has no two phases".into())
    }

    /// Removes the rows from `first` (inclusive) to `end` (exclusive) by one commit. Only for engines that
    /// [can](Capabilities::range_deletes).
    ///
    /// # Errors
    /// The engine's own errors.
    fn remove_range(&mut self, first: Key, end: Key) -> Result<()> {
        let _ = (first, end);
        Err("this engine has no range deletes".into())
    }

    /// Makes changes of any number in one transaction. Only for engines that [can](Capabilities::large_transactions).
    ///
    /// # Errors
    /// The engine's own errors.
    fn change_at_once(&mut self, changes: &mut dyn Changes) -> Result<()> {
        let _ = changes;
        Err("this engine has no large transactions".into())
    }

    /// Replaces a row's value with one computed from the old value, in one transaction. After a conflict, the
    /// transaction is retried, so `change` may be called more than once. Fails if the row does not exist.
    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()>;
}

/// Loads rows in commits of `batch_rows` rows each.
///
/// # Errors
/// The errors of [`Session::write`].
pub fn load_in_batches(session: &mut dyn Session, rows: &mut dyn Source, batch_rows: usize) -> Result<()> {
    let mut batch: Vec<Row> = Vec::with_capacity(batch_rows);
    let mut used = 0;
    while let Some((key, value)) = rows.next() {
        // Reuse the buffers, so that their allocation is not part of the measurement.
        if used == batch.len() {
            batch.push((key, value.to_vec()));
        } else {
            batch[used].0 = key;
            value.clone_into(&mut batch[used].1);
        }
        used += 1;
        if used == batch_rows {
            session.write(&batch)?;
            used = 0;
        }
    }
    if used > 0 { session.write(&batch[..used]) } else { Ok(()) }
}

/// Returns the error for updating a row that does not exist.
pub(crate) fn missing_row(key: Key) -> Failure {
    format!("row {} is missing", u64::from_be_bytes(key)).into()
}
