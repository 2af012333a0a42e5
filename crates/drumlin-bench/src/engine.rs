//! The one face that all engines have here, and the facts about each that a reader of the figures must know.
//!
//! Every workload is written against [`Engine`] and [`Session`], so that each engine does the same work on the same
//! keys. Where an engine lacks an operation, [`Capabilities`] says so and the report shows it: nothing is imitated
//! silently.

use std::path::Path;

/// Errors of any engine; a worker reports their text.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of an engine's call.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// A key: a number in big-endian order, so that the order of keys is that of numbers.
pub type Key = [u8; 8];
/// A row to be written.
pub type Row = (Key, Vec<u8>);

/// The promise of a commit that has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Durability {
    /// It survives a power cut, as far as the engine keeps its word.
    Full,
    /// It survives the end of the process at most; [`Engine::sync`] makes it durable.
    Relaxed,
}

/// The settings of an opening, the same for each engine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes for the engine's own caches and write buffers together. What the kernel caches comes on top.
    pub memory_bytes: u64,
    /// The promise of each commit.
    pub durability: Durability,
    /// The sessions that will be open at once.
    pub threads: usize,
}

/// The order in which a load brings its rows.
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
    /// Writers queue behind one another; several threads commit no faster than one.
    pub one_writer: bool,
    /// It reads many keys by one call. Without, `get_many` is one get after another.
    pub multi_get: bool,
    /// It has transactions that read and write. Without, an update is an atomic change of one row.
    pub transactions: bool,
    /// A batch of writes is applied as a whole or not at all.
    pub atomic_batches: bool,
    /// The files can be opened again after the process was killed, and hold what had been synced.
    pub recovers: bool,
    /// It takes part in the durable insert of 1 KiB only.
    pub inserts_only: bool,
}

/// An engine that is built in.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The name by which it is chosen.
    pub name: &'static str,
    /// The version of its crate.
    pub version: &'static str,
    /// Its settings here, in a sentence.
    pub settings: &'static str,
    /// Its abilities.
    pub capabilities: Capabilities,
    /// Opens the database in a folder that exists, and creates it if the folder is empty.
    pub open: fn(&Path, &Settings) -> Result<Box<dyn Engine>>,
}

/// Rows that come one after another; each is valid until the next.
pub trait Source {
    /// The next row.
    fn next(&mut self) -> Option<(Key, &[u8])>;
}

/// Rows in a transaction of a load that uses no faster way.
pub const LOAD_BATCH_ROWS: usize = 1000;

/// An open database with one table of rows.
pub trait Engine: Send + Sync {
    /// A thread's access to it.
    ///
    /// # Errors
    /// The engine's own.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Makes durable whatever has been committed.
    ///
    /// # Errors
    /// The engine's own.
    fn sync(&self) -> Result<()>;

    /// Loads rows in the fastest way that the engine has, atomic or not. They need not be durable before
    /// [`sync`](Engine::sync).
    ///
    /// # Errors
    /// The engine's own.
    fn bulk_load(&self, rows: &mut dyn Source, order: Order) -> Result<()> {
        let _ = order;
        load_in_batches(&mut *self.session()?, rows, LOAD_BATCH_ROWS)
    }

    /// Waits for work in the background that a load has left behind. Starts none.
    ///
    /// # Errors
    /// The engine's own.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Syncs and closes.
    ///
    /// # Errors
    /// The engine's own.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A thread's access to an open database.
pub trait Session {
    /// Hands the row's value to `see`. Returns `false` if there is no such row.
    ///
    /// # Errors
    /// The engine's own.
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Hands the values of many rows to `see`, with the place of the key among `keys`. Returns how many there are.
    ///
    /// # Errors
    /// The engine's own.
    fn get_many(&mut self, keys: &[Key], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let mut found = 0;
        for (index, key) in keys.iter().enumerate() {
            found += usize::from(self.get(*key, &mut |value| see(index, value))?);
        }
        Ok(found)
    }

    /// Hands at most `limit` rows to `see`, in the order of keys, from `first` on. Returns how many there were.
    ///
    /// # Errors
    /// The engine's own.
    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64>;

    /// Counts the rows from `first` up to, and without, `end`.
    ///
    /// # Errors
    /// The engine's own.
    fn count(&mut self, first: Key, end: Key) -> Result<u64>;

    /// Puts rows by one commit, of the durability that the database was opened with.
    ///
    /// # Errors
    /// The engine's own.
    fn write(&mut self, rows: &[Row]) -> Result<()>;

    /// Replaces the value of a row by one computed from it, in one transaction. Tries again if another transaction was
    /// in its way. `change` may be called more than once.
    ///
    /// # Errors
    /// The engine's own; or there is no such row.
    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()>;
}

/// Loads rows by commits of `batch_rows`.
///
/// # Errors
/// Those of [`Session::write`].
pub fn load_in_batches(session: &mut dyn Session, rows: &mut dyn Source, batch_rows: usize) -> Result<()> {
    let mut batch: Vec<Row> = Vec::with_capacity(batch_rows);
    let mut used = 0;
    while let Some((key, value)) = rows.next() {
        // Buffers are used again: allocation is no part of the measurement.
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

/// The error of an update of a row that is not there.
pub(crate) fn missing_row(key: Key) -> Failure {
    format!("row {} is missing", u64::from_be_bytes(key)).into()
}
