//! The traits that every engine implements here, and facts about each engine that explain its figures.
//!
//! Every workload uses [`Engine`] and [`Session`], so all engines do the same work on the same keys. If an engine lacks
//! an operation, [`Capabilities`] says so and the report shows it: nothing is emulated silently.

use std::path::Path;

/// An error of any engine. A worker reports its text.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of a call of an engine.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// A key: a number in big-endian order, so that keys sort like numbers.
pub type Key = [u8; 8];
/// A row to be written.
pub type Row = (Key, Vec<u8>);

/// The guarantee of a commit that has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Durability {
    /// It survives a power cut, as far as the engine keeps its word.
    Full,
    /// It survives at most the end of the process; [`Engine::sync`] makes it durable.
    Relaxed,
}

/// The settings with which every engine is opened.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes for the engine's own caches and write buffers together, not counting the page cache.
    pub memory_bytes: u64,
    /// The guarantee of each commit.
    pub durability: Durability,
    /// The number of sessions that will be open at once.
    pub threads: usize,
}

/// The order of the rows in a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Order {
    /// Ascending keys.
    Sorted,
    /// Each key once, in an order drawn from the seed.
    Random,
}

/// Facts about an engine, as the report lists them.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Writers queue behind one another, so several threads commit no faster than one.
    pub one_writer: bool,
    /// One call reads many keys. Without it, `get_many` makes one get after another.
    pub multi_get: bool,
    /// It has transactions that read and write. Without them, an update is an atomic change of one row.
    pub transactions: bool,
    /// A batch of writes is applied as a whole or not at all.
    pub atomic_batches: bool,
    /// The files can be opened after the process was killed, and have everything that was synced.
    pub recovers: bool,
    /// It takes part only in the durable insert of 1 KiB.
    pub inserts_only: bool,
}

/// An engine of this build.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The name that selects it.
    pub name: &'static str,
    /// The version of its crate.
    pub version: &'static str,
    /// Its settings here, in a sentence.
    pub settings: &'static str,
    pub capabilities: Capabilities,
    /// Opens the database in an existing folder, and creates it if the folder is empty.
    pub open: fn(&Path, &Settings) -> Result<Box<dyn Engine>>,
}

/// A sequence of rows, each valid until the next.
pub trait Source {
    /// Returns the next row.
    fn next(&mut self) -> Option<(Key, &[u8])>;
}

/// The number of rows in a transaction, for loads of engines that have no faster way.
pub const LOAD_BATCH_ROWS: usize = 1000;

/// An open database with one table of rows. Its methods return the engine's own errors.
pub trait Engine: Send + Sync {
    /// Opens a session for a thread.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Makes everything durable that has been committed.
    fn sync(&self) -> Result<()>;

    /// Loads rows in the engine's fastest way, atomic or not. They need not be durable before [`sync`](Engine::sync).
    fn bulk_load(&self, rows: &mut dyn Source, order: Order) -> Result<()> {
        let _ = order;
        load_in_batches(&mut *self.session()?, rows, LOAD_BATCH_ROWS)
    }

    /// Waits for background work that a load has left behind. Starts none.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Holds a snapshot of the rows while others write. `None` if the engine has none, or no workload asks for it.
    ///
    /// # Errors
    /// The engine's own.
    fn hold(&self) -> Result<Option<Box<dyn HeldSnapshot + '_>>> {
        Ok(None)
    }

    /// Syncs and closes.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A snapshot of the rows.
pub trait HeldSnapshot {
    /// Hands all of its rows to `see`, in the order of keys. Returns the number of rows.
    ///
    /// # Errors
    /// The engine's own.
    fn scan(&mut self, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64>;
}

/// A thread's access to an open database. Its methods return the engine's own errors.
pub trait Session {
    /// Passes the row's value to `see`. Returns `false` if there is no such row.
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Passes the values of many rows to `see`, each with the index of its key in `keys`. Returns how many rows there
    /// are.
    fn get_many(&mut self, keys: &[Key], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let mut found = 0;
        for (index, key) in keys.iter().enumerate() {
            found += usize::from(self.get(*key, &mut |value| see(index, value))?);
        }
        Ok(found)
    }

    /// Passes at most `limit` rows to `see`, in key order, beginning at `first`. Returns how many there were.
    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64>;

    /// Counts the rows from `first` to `end`, which is excluded.
    fn count(&mut self, first: Key, end: Key) -> Result<u64>;

    /// Puts rows in one commit, with the durability that the database was opened with.
    fn write(&mut self, rows: &[Row]) -> Result<()>;

    /// Replaces the value of a row by one computed from it, in one transaction, which is retried after a conflict.
    /// `change` may be called more than once. Fails if there is no such row.
    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()>;
}

/// Loads rows in commits of `batch_rows`.
///
/// # Errors
/// Errors of [`Session::write`].
pub fn load_in_batches(session: &mut dyn Session, rows: &mut dyn Source, batch_rows: usize) -> Result<()> {
    let mut batch: Vec<Row> = Vec::with_capacity(batch_rows);
    let mut used = 0;
    while let Some((key, value)) = rows.next() {
        // Buffers are reused, because allocation is not part of the measurement.
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

/// Returns the error for an update of a row that does not exist.
pub(crate) fn missing_row(key: Key) -> Failure {
    format!("row {} is missing", u64::from_be_bytes(key)).into()
}
