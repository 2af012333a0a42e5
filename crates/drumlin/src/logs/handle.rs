//! The handles: a folder of logs, and a log in it.

use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;

use super::batch::Batch;
use super::opening::Opening;
use super::options::LogsOptions;
use super::range::{Entry, Range};
use super::receipt::Receipt;
use super::shared::{LogCell, Wait};
use super::state::Found;
use super::stats::{LogSize, LogsStats};
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::task::{ready, turn};

/// An open folder of many logs. Cloning the handle is cheap.
///
/// The folder is closed when the last handle of it is dropped: a [`Logs`], a [`Log`], a [`Receipt`] or a [`Range`]. It
/// can be open once at a time. See the [module](super) for an example.
#[derive(Clone)]
pub struct Logs {
    pub(super) opening: Arc<Opening>,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Logs of {}", self.opening.shared.path().display())
    }
}

impl Logs {
    /// Opens the folder of logs at `path`, and creates it if it does not exist. If it was not closed, reads the index
    /// and what was appended after it.
    ///
    /// # Errors
    /// [`Error::Locked`] if the folder is open already, [`Error::NotADatabase`] if it holds other things,
    /// [`Error::Corrupted`] if a segment or a durable record is missing or damaged, [`Error::NewerFormat`] if a newer
    /// version wrote it.
    pub fn open(path: impl AsRef<Path>, options: &LogsOptions) -> Result<Logs> {
        Ok(Logs { opening: Arc::new(Opening::new(path.as_ref(), options)?) })
    }

    /// Like [`open`](Logs::open), for a task. The work is done on a thread.
    ///
    /// # Errors
    /// Those of [`open`](Logs::open).
    pub async fn open_async(path: impl AsRef<Path>, options: &LogsOptions) -> Result<Logs> {
        let (path, options) = (path.as_ref().to_path_buf(), options.clone());
        let backend = match &options.backend {
            Some(backend) => Arc::clone(backend),
            None => {
                crate::io::backend(options.io_backend).map_err(|error| Error::io("starting I/O for", &path, error))?
            }
        };
        let workers = crate::task::new_workers(&backend);
        let opened = workers.run(move || Logs::open(path, &options)).await;
        workers.stop();
        opened
    }

    /// Returns a handle of a log, which exists from its first append on, or its first value. Any number is allowed.
    #[must_use]
    pub fn log(&self, number: u64) -> Log {
        Log { opening: Arc::clone(&self.opening), number, cell: self.opening.shared.cell(number) }
    }

    /// Returns the numbers of all logs that exist, in ascending order.
    #[must_use]
    pub fn numbers(&self) -> Vec<u64> {
        let cells = self.opening.shared.cells();
        cells.into_iter().filter(|(_, cell)| cell.state.lock().bounds.exists).map(|(number, _)| number).collect()
    }

    /// Returns a batch of changes of several logs, which are made all or not at all.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new(&self.opening)
    }

    /// Ends a log: its entries and values are gone, and an append begins a new one.
    ///
    /// # Errors
    /// [`Error::NoSuchLog`] if there is none.
    pub fn remove(&self, number: u64) -> Result<Receipt> {
        let mut batch = self.batch();
        batch.remove(number);
        batch.commit()
    }

    /// Like [`remove`](Logs::remove), for a task.
    ///
    /// # Errors
    /// Those of [`remove`](Logs::remove).
    pub async fn remove_async(&self, number: u64) -> Result<Receipt> {
        let mut batch = self.batch();
        batch.remove(number);
        batch.commit_async().await
    }

    /// Returns sizes and counters, and the logs that hold most of the space.
    #[must_use]
    pub fn stats(&self) -> LogsStats {
        LogsStats::of(&self.opening.shared)
    }

    /// Closes the folder: writes what is pending and the index, so that the next opening reads no log. Handles that are
    /// left fail with [`Error::Closed`].
    ///
    /// # Errors
    /// [`Error::Failed`] if a write or a sync has failed before, or an error of writing the index; [`Error::Invalid`]
    /// in the callback of a receipt.
    pub fn close(self) -> Result<()> {
        self.opening.close()
    }

    /// Like [`close`](Logs::close), for a task. The work is done on a thread.
    ///
    /// # Errors
    /// Those of [`close`](Logs::close).
    pub async fn close_async(self) -> Result<()> {
        // The folder's own workers are stopped when it is closed.
        let workers = crate::task::new_workers(&self.opening.shared.backend);
        let closed = workers.run(move || self.opening.close()).await;
        workers.stop();
        closed
    }
}

/// A log: entries by index, and small named values. Cloning the handle is cheap, and any thread may use it.
///
/// ```
/// use drumlin::logs::{Logs, LogsOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-log-{}", std::process::id()));
/// let logs = Logs::open(&folder, &LogsOptions::new())?;
/// let log = logs.log(7);
/// log.append(101, &["a", "b", "c"])?.wait()?;
/// log.truncate_after(102)?.wait()?; // cuts off 103
/// log.purge_to(101)?.wait()?;
/// assert_eq!((log.first(), log.last(), log.durable()), (Some(102), Some(102), Some(102)));
/// log.set("vote", b"node 3")?.wait()?;
/// assert_eq!(log.value("vote").unwrap(), b"node 3");
/// # logs.close()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone)]
pub struct Log {
    opening: Arc<Opening>,
    number: u64,
    cell: Arc<LogCell>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (first, last) = (self.first(), self.last());
        write!(f, "Log {} from {first:?} to {last:?} in {}", self.number, self.opening.shared.path().display())
    }
}

impl Log {
    /// Returns the number of the log.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Appends entries with the indexes from `first` on. They can be read when this returns, and are durable when the
    /// receipt is answered.
    ///
    /// `first` must follow on from the last entry. If the log has no entries, it may be any index that was not purged.
    /// Entries that together take more than one record (1 MiB, or a sixteenth of the memory) are several records: a
    /// crash may leave the first of them. A [`Batch`] is never divided.
    ///
    /// # Errors
    /// [`Error::LogIndex`] for a hole or an overlap, [`Error::LogEntryTooLarge`] for an entry over 64 MiB,
    /// [`Error::MemoryInUse`] if the index is full, [`Error::DiskFull`], and [`Error::Failed`] after a failed write or
    /// sync.
    pub fn append<E: AsRef<[u8]>>(&self, first: u64, entries: &[E]) -> Result<Receipt> {
        let appended = ready(self.opening.shared.append(self.number, first, entries, Wait::Thread));
        self.receipt(appended?)
    }

    /// Like [`append`](Log::append), for a task. If the future is dropped, entries may have been appended or not.
    ///
    /// # Errors
    /// Those of [`append`](Log::append).
    pub async fn append_async<E: AsRef<[u8]>>(&self, first: u64, entries: &[E]) -> Result<Receipt> {
        turn::Work::call().await;
        let appended = self.opening.shared.append(self.number, first, entries, Wait::Task).await;
        self.receipt(appended?)
    }

    fn receipt(&self, timestamp: Timestamp) -> Result<Receipt> {
        self.opening.shared.check_open()?;
        Ok(Receipt::new(&self.opening, timestamp))
    }

    /// Cuts off the entries after `last`, or all entries if it is `None`. They never come back, and the cut is durable
    /// before anything that is appended after it.
    ///
    /// # Errors
    /// [`Error::LogPurged`] if entries up to a later index were purged, [`Error::NoSuchLog`], [`Error::Failed`] after a
    /// failed write or sync.
    pub fn truncate_after(&self, last: impl Into<Option<u64>>) -> Result<Receipt> {
        let mut batch = Batch::new(&self.opening);
        batch.truncate_after(self.number, last);
        batch.commit()
    }

    /// Like [`truncate_after`](Log::truncate_after), for a task.
    ///
    /// # Errors
    /// Those of [`truncate_after`](Log::truncate_after).
    pub async fn truncate_after_async(&self, last: impl Into<Option<u64>>) -> Result<Receipt> {
        let mut batch = Batch::new(&self.opening);
        batch.truncate_after(self.number, last);
        batch.commit_async().await
    }

    /// Forgets the entries up to `last`, which may be beyond the last entry: the log then continues after it. Their
    /// space is given back in the background.
    ///
    /// # Errors
    /// [`Error::NoSuchLog`], and [`Error::Failed`] after a failed write or sync.
    pub fn purge_to(&self, last: u64) -> Result<Receipt> {
        let mut batch = Batch::new(&self.opening);
        batch.purge_to(self.number, last);
        batch.commit()
    }

    /// Like [`purge_to`](Log::purge_to), for a task.
    ///
    /// # Errors
    /// Those of [`purge_to`](Log::purge_to).
    pub async fn purge_to_async(&self, last: u64) -> Result<Receipt> {
        let mut batch = Batch::new(&self.opening);
        batch.purge_to(self.number, last);
        batch.commit_async().await
    }

    /// Sets a named value, of 64 KiB at most. It has its place in the order of the log's other changes.
    ///
    /// # Errors
    /// [`Error::LogEntryTooLarge`], [`Error::MemoryInUse`] if values take too much memory, and [`Error::Failed`] after
    /// a failed write or sync.
    pub fn set(&self, name: &str, value: impl AsRef<[u8]>) -> Result<Receipt> {
        let mut batch = Batch::new(&self.opening);
        batch.set(self.number, name, value);
        batch.commit()
    }

    /// Like [`set`](Log::set), for a task.
    ///
    /// # Errors
    /// Those of [`set`](Log::set).
    pub async fn set_async(&self, name: &str, value: impl AsRef<[u8]>) -> Result<Receipt> {
        let mut batch = Batch::new(&self.opening);
        batch.set(self.number, name, value);
        batch.commit_async().await
    }

    /// Removes a named value.
    ///
    /// # Errors
    /// [`Error::NoSuchLog`], and [`Error::Failed`] after a failed write or sync.
    pub fn unset(&self, name: &str) -> Result<Receipt> {
        let mut batch = Batch::new(&self.opening);
        batch.unset(self.number, name);
        batch.commit()
    }

    /// Like [`unset`](Log::unset), for a task.
    ///
    /// # Errors
    /// Those of [`unset`](Log::unset).
    pub async fn unset_async(&self, name: &str) -> Result<Receipt> {
        let mut batch = Batch::new(&self.opening);
        batch.unset(self.number, name);
        batch.commit_async().await
    }

    /// Returns a named value, which may not be durable yet. O(log n) in the number of the log's values.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Vec<u8>> {
        self.cell.state.lock().values.get(name).map(|value| value.to_vec())
    }

    /// Returns the names of the values, in ascending order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.cell.state.lock().values.keys().map(ToString::to_string).collect()
    }

    /// Returns `true` if the log exists: something was appended or set, and it was not removed since.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.cell.state.lock().bounds.exists
    }

    /// Returns the index of the first entry, or `None` if there are none.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        let bounds = self.cell.state.lock().bounds;
        (!bounds.is_empty()).then_some(bounds.first)
    }

    /// Returns the index of the last entry, durable or not, or `None` if there are none.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.cell.state.lock().bounds.last()
    }

    /// Returns the number of entries and their bytes, or `None` if the log does not exist.
    #[must_use]
    pub fn size(&self) -> Option<LogSize> {
        LogSize::of(self.number, &self.cell)
    }

    /// Returns the index up to which the entries were purged.
    #[must_use]
    pub fn purged(&self) -> Option<u64> {
        self.cell.state.lock().bounds.purged.checked_sub(1)
    }

    /// Returns the index of the last durable entry, or `None` if there is none.
    #[must_use]
    pub fn durable(&self) -> Option<u64> {
        let mut state = self.cell.state.lock();
        let next = state.durable_next(self.opening.shared.stream.durable());
        (next > state.bounds.first && !state.bounds.is_empty()).then(|| next - 1)
    }

    /// Returns an entry. A recent one is in memory; an older one takes one read, which is verified.
    ///
    /// # Errors
    /// [`Error::LogPurged`], [`Error::LogEntryMissing`] or [`Error::NoSuchLog`] if there is no such entry,
    /// [`Error::Corrupted`] if it does not verify.
    pub fn get(&self, index: u64) -> Result<Entry> {
        let shared = &self.opening.shared;
        if let Some(entry) = self.cached(index)? {
            return Ok(entry);
        }
        let mut fetched = shared.read(self.number, &self.cell, index..index + 1)?;
        Ok(Entry::new(index, fetched.entries.swap_remove(0)))
    }

    /// Like [`get`](Log::get), for a task. A read is made by another thread.
    ///
    /// # Errors
    /// Those of [`get`](Log::get).
    pub async fn get_async(&self, index: u64) -> Result<Entry> {
        turn::Work::call().await;
        if let Some(entry) = self.cached(index)? {
            return Ok(entry);
        }
        let log = self.clone();
        self.opening.shared.workers.run(move || log.get(index)).await
    }

    fn cached(&self, index: u64) -> Result<Option<Entry>> {
        let shared = &self.opening.shared;
        shared.check_open()?;
        let cached = match shared.find(self.number, &self.cell, index)? {
            Found::Entry(found) => shared.cached(&found),
            Found::Listed(_) => None,
        };
        Ok(cached.map(|bytes| Entry::new(index, bytes)))
    }

    /// Returns an iterator over the entries in a range of indexes, as far as there are entries now. It reads up to
    /// 1 MiB at a time. If it does not find entries in memory, other threads read up to 4 MiB ahead of it, or a
    /// sixteenth of the memory if that is less.
    ///
    /// # Errors
    /// [`Error::NoSuchLog`], or [`Error::LogPurged`] if the range begins at a purged index.
    pub fn range(&self, indexes: impl RangeBounds<u64>) -> Result<Range> {
        self.opening.shared.check_open()?;
        let bounds = self.cell.state.lock().bounds;
        if !bounds.exists {
            return Err(Error::NoSuchLog { log: self.number });
        }
        let start = match indexes.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => bounds.first,
        };
        let end = match indexes.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => u64::MAX,
        };
        let end = end.min(bounds.next);
        if start < end {
            bounds.check_index(self.number, start)?;
        }
        Ok(Range::new(&self.opening, self.number, &self.cell, start..end.max(start)))
    }
}
