//! Bulk loads: adding many rows to a keyspace atomically.

use std::io::Read;
use std::sync::Arc;

use super::keyspace::read_head;
use super::{Database, Keyspace};
use crate::error::{Error, Result};
use crate::load::{Loader, write_large};
use crate::task::ready;
use crate::txn::values::{Blocking, MEDIUM_BYTES_MAX};

/// An asynchronous load buffers this many bytes of keys and values before it hands them to a thread that may block.
const PENDING_BYTES_MAX: usize = 64 << 10;

/// Loads many rows into a keyspace, much faster than transactions. Created by
/// [`Database::bulk_load`](crate::Database::bulk_load).
///
/// Rows may be added in any order, but loading is fastest in key order. They are packed into a separate tree, which is
/// written as the rows arrive: each byte once, and nothing to the log. Starting with the first key that is out of
/// order, rows are sorted in memory and, if they do not fit, in runs that are written to the data file and merged by
/// [`finish`](BulkLoad::finish). Each byte is then written twice.
///
/// [`finish`](BulkLoad::finish) attaches the tree to the keyspace in one commit. **Either all rows become visible
/// together, or none of them do:** before the commit, no reader sees any of the rows. A load leaves nothing behind if
/// it is dropped, or if its process or machine crashes. A load that fails or is dropped returns its space to the file
/// system before the call ends, which may take a few checkpoints; after a crash, the space is free at the next opening.
/// Readers and writers of the keyspace continue during the load. Snapshots that were opened before the commit do not
/// see the rows.
///
/// The keyspace may have rows, and may be in use. The load is an upsert: a loaded row replaces an existing row with the
/// same key. The load locks no rows and waits for no transaction. A transaction that began before the load's commit and
/// has changed or locked a row that the load also has, or is serializable and has read one, fails with
/// [`Conflict`](crate::Error::Conflict) when it commits changes. So does a call that reads a row and changes it, like
/// [`update`](crate::Keyspace::update), if the load's commit came in between.
///
/// If the keyspace is empty for all readers and none of its rows is locked, the tree becomes the keyspace's tree.
/// Otherwise the tree becomes a *run* above it. Reads consult both, and a background thread moves the run's rows into
/// the keyspace's pages. The thread waits while a snapshot from before the load is open. Until it is done,
/// [`count`](crate::Keyspace::count) reads the rows of its range. A keyspace has up to four runs;
/// [`finish`](BulkLoad::finish) moves the rows of the oldest one itself if there would be more.
///
/// A load takes memory from the pages' part of the budget: two write buffers (256 KiB each; with a small budget or
/// during other loads, as little as 64 KiB or two pages each), six pages, and 160 KiB or ten pages for sorting. Like
/// any page of the database, each page that it writes needs another 8 bytes. Sorting uses up to a quarter of the pages'
/// part, if other loads leave that much. With more memory, it writes longer runs.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let mut load = db.bulk_load("squares")?;
/// for number in 0..10_000u64 {
///     load.insert(number.to_be_bytes(), (number * number).to_be_bytes())?;
/// }
/// let report = load.finish()?; // the rows are durable and visible now
/// assert_eq!(report.rows, 10_000);
/// assert_eq!(db.keyspace("squares")?.count(..)?, 10_000);
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct BulkLoad {
    keyspace: Keyspace,
    /// `None` after a call has failed or its future has been dropped.
    loader: Option<Box<Loader>>,
    /// Rows that asynchronous calls have added but not yet passed to the loader.
    pending: PendingRows,
}

/// Encoded rows. Each row consists of the lengths of key and value, the key, and the value.
#[derive(Debug, Default)]
struct PendingRows(Vec<u8>);

/// The result of a [`BulkLoad`].
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let report = db.bulk_load("events")?.finish()?;
/// assert_eq!(report.rows, 0);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LoadReport {
    /// The number of rows loaded, counting equal keys once.
    pub rows: u64,
}

impl Drop for BulkLoad {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl std::fmt::Debug for BulkLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = self.loader.as_ref().map_or(0, |loader| loader.rows());
        write!(f, "BulkLoad({:?}, {rows} rows)", self.keyspace.name())
    }
}

impl PendingRows {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.0.extend((key.len() as u64).to_le_bytes());
        self.0.extend((value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(value);
    }

    fn rows(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (lengths, after_lengths) = rest.split_at_checked(16)?;
            let length = |at: usize| u64::from_le_bytes(lengths[at..at + 8].try_into().expect("eight bytes")) as usize;
            let (key, after_key) = after_lengths.split_at(length(0));
            let (value, after_value) = after_key.split_at(length(8));
            rest = after_value;
            Some((key, value))
        })
    }
}

impl BulkLoad {
    fn loader(&mut self) -> Result<&mut Loader> {
        self.keyspace.handle.store()?;
        self.loader.as_deref_mut().ok_or_else(ended)
    }

    /// Adds a row. If several rows have the same key, the last one wins. While keys ascend, this takes amortised
    /// O(bytes) without a search, otherwise O(bytes + log rows). An occasional call also writes a buffer of 256 KiB, or
    /// the sorted rows when their memory is full. A value over 64 KiB is written before the call returns.
    ///
    /// # Errors
    /// [`KeyTooLong`](crate::Error::KeyTooLong): the load can continue without the row. Any other error ends the load
    /// and discards its rows: [`DiskFull`](crate::Error::DiskFull); [`BudgetTooSmall`](crate::Error::BudgetTooSmall) if
    /// the memory budget has no room for the page table; [`KeyspaceDropped`](crate::Error::KeyspaceDropped);
    /// [`Closed`](crate::Error::Closed); [`Failed`](crate::Error::Failed).
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add_pending()?;
        self.add(key.as_ref(), value.as_ref())
    }

    /// Like [`insert`](BulkLoad::insert), but reads the value from `source`. Returns its length in bytes. A value over
    /// 64 KiB is written while it is read, using memory for one chunk. The row is added only after the source has
    /// reached its end, so a source that fails leaves no row.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let mut load = db.bulk_load("contents")?;
    /// let length = load.insert_from("zeros", std::io::Read::take(std::io::repeat(0), 1 << 20))?;
    /// assert_eq!(length, 1 << 20);
    /// load.finish()?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`insert`](BulkLoad::insert), and [`Source`](crate::Error::Source) if the source fails, after
    /// which the load can continue without the row.
    pub fn insert_from(&mut self, key: impl AsRef<[u8]>, source: impl Read) -> Result<u64> {
        self.add_pending()?;
        let mut source = source;
        let head = ready(read_head(&mut Blocking(&mut source)))?;
        if head.len() <= MEDIUM_BYTES_MAX {
            self.add(key.as_ref(), &head)?;
            return Ok(head.len() as u64);
        }
        let mut counted = Counted { source: head.chain(source), bytes: 0 };
        let handle = Arc::clone(&self.keyspace.handle);
        let added = self.loader()?.insert_large(&handle.store()?.engine, key.as_ref(), &mut counted);
        self.end_by(added)?;
        Ok(counted.bytes)
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let handle = Arc::clone(&self.keyspace.handle);
        let store = handle.store()?;
        let added = self.loader()?.insert(&store.engine, key, value);
        self.end_by(added)
    }

    /// Ends the load if `result` is an error that the load can't survive.
    fn end_by<T>(&mut self, result: Result<T>) -> Result<T> {
        if !matches!(result, Ok(_) | Err(Error::KeyTooLong { .. } | Error::Source { .. })) {
            self.give_up();
        }
        result
    }

    fn add_pending(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        for (key, value) in pending.rows() {
            if let Err(error) = self.add(key, value) {
                // The buffered rows after this one are lost. End the load.
                self.give_up();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Like [`insert`](BulkLoad::insert). Rows are buffered up to 64 KiB and then handed to a thread of the database.
    /// An error may therefore concern an earlier row, and always ends the load. Dropping the future also ends the load.
    ///
    /// # Errors
    /// Same as [`insert`](BulkLoad::insert).
    pub async fn insert_async(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.loader()?;
        let (key, value) = (key.as_ref(), value.as_ref());
        if value.len() > MEDIUM_BYTES_MAX {
            return self.insert_large_async(key, value).await;
        }
        self.pending.push(key, value);
        if self.pending.0.len() < PENDING_BYTES_MAX {
            return Ok(());
        }
        let taken = self.take()?;
        self.loader = taken.on_worker(BulkLoad::add_pending).await?.loader.take();
        Ok(())
    }

    /// Adds a row with a large value, written chunk by chunk from the caller's buffer.
    async fn insert_large_async(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let taken = self.take()?;
        let handle = Arc::clone(&self.keyspace.handle);
        let (store, open) = (handle.store()?, &self.keyspace.open);
        let written = match store.check_write(open, key) {
            Ok(()) => write_large(&store.engine, open, store.as_task().await, Blocking(value)).await,
            Err(error) => Err(error),
        };
        let key = key.to_vec();
        // Run this on the worker even after an error, because giving up the load may block.
        let add = move |load: &mut BulkLoad| {
            let written = written?;
            load.add_pending()?;
            let handle = Arc::clone(&load.keyspace.handle);
            load.loader()?.insert_written(&handle.store()?.engine, &key, &written)
        };
        self.loader = taken.on_worker(add).await?.loader.take();
        Ok(())
    }

    /// Calls `body` on a thread that may block. Returns the load, which ends if `body` fails.
    async fn on_worker(mut self, body: impl FnOnce(&mut BulkLoad) -> Result<()> + Send + 'static) -> Result<BulkLoad> {
        let handle = Arc::clone(&self.keyspace.handle);
        handle.store()?.as_task().await.run(move || body(&mut self).map(|()| self)).await
    }

    /// Moves the whole load out of this handle, which can't be used afterwards.
    fn take(&mut self) -> Result<BulkLoad> {
        let loader = Some(self.loader.take().ok_or_else(ended)?);
        Ok(BulkLoad { keyspace: self.keyspace.clone(), loader, pending: std::mem::take(&mut self.pending) })
    }

    /// Attaches the rows to the keyspace. When this returns, they are durable, and visible to every reader that begins
    /// afterwards. O(pages); commits wait about a millisecond for each gigabyte that was loaded.
    ///
    /// # Errors
    /// [`DiskFull`](crate::Error::DiskFull); [`KeyspaceDropped`](crate::Error::KeyspaceDropped);
    /// [`Closed`](crate::Error::Closed); [`Failed`](crate::Error::Failed);
    /// [`TransactionTooLarge`](crate::Error::TransactionTooLarge) if the memory budget has no room for the record that
    /// names the load's pages, 20 bytes for each 1,024 of them; [`Conflict`](crate::Error::Conflict) if the keyspace
    /// has rows and a [ready](crate::Database::ready_prepared) commit has not ended after five seconds. After any of
    /// these errors, the keyspace has none of the load's rows.
    ///
    /// [`OutcomeUnknown`](crate::Error::OutcomeUnknown) if only reopening the database can tell whether the load was
    /// committed.
    pub fn finish(mut self) -> Result<LoadReport> {
        self.add_pending()?;
        let handle = Arc::clone(&self.keyspace.handle);
        let loader = self.loader.take().ok_or_else(ended)?;
        let (store, free_segments_before) = (handle.store()?, loader.free_segments_before());
        let finished = loader.finish(&store.engine, &store.ready);
        if finished.is_err() {
            store.give_back_load(free_segments_before);
        } else {
            store.fold_runs();
        }
        finished.map(|rows| LoadReport { rows })
    }

    /// Ends the load if it has not ended yet, and returns its space to the file system.
    fn give_up(&mut self) {
        let Some(loader) = self.loader.take() else { return };
        let free_segments_before = loader.free_segments_before();
        drop(loader);
        if let Ok(store) = self.keyspace.handle.store()
            && !std::thread::panicking()
        {
            store.give_back_load(free_segments_before);
        }
    }

    /// Like [`finish`](BulkLoad::finish). Once the call has begun, it completes even if its future is dropped.
    ///
    /// # Errors
    /// Same as [`finish`](BulkLoad::finish).
    pub async fn finish_async(self) -> Result<LoadReport> {
        let handle = Arc::clone(&self.keyspace.handle);
        handle.store()?.as_task().await.run(move || self.finish()).await
    }
}

/// A source that counts its bytes.
struct Counted<S> {
    source: S,
    bytes: u64,
}

impl<S: Read> Read for Counted<S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Returns the error for a call to a load that has ended.
fn ended() -> Error {
    Error::Invalid("the load has ended: a call of it failed, or its future was dropped".into())
}

impl Database {
    /// Begins a load of many rows into a keyspace, which may have rows. Creates the keyspace, with the default page
    /// size, if it does not exist. See [`BulkLoad`]. Any number of loads can run concurrently. If two of them load a
    /// row with the same key, the row of the load that finishes last remains.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let mut load = db.bulk_load("events")?;
    /// load.insert("2026-11-21T08:00", "opened")?;
    /// load.insert("2026-11-21T18:00", "closed")?;
    /// load.finish()?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`keyspace`](Database::keyspace); [`KeyspaceDropped`](crate::Error::KeyspaceDropped) if another
    /// thread drops the keyspace during this call; [`MemoryInUse`](crate::Error::MemoryInUse) if other loads have taken
    /// half of the pages' part of the memory budget.
    pub fn bulk_load(&self, name: &str) -> Result<BulkLoad> {
        let keyspace = self.keyspace(name)?;
        let store = self.store()?;
        store.check_writable()?;
        let loader = store.begin_load(&keyspace.open)?;
        Ok(BulkLoad { keyspace, loader: Some(Box::new(loader)), pending: PendingRows::default() })
    }
}
