//! Entries, and iterating over them.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use super::opening::Opening;
use super::shared::LogCell;
use crate::error::Result;

/// An entry of a log. It derefs to its bytes.
///
/// ```
/// use drumlin::logs::{Logs, LogsOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-entry-{}", std::process::id()));
/// # let logs = Logs::open(&folder, &LogsOptions::new())?;
/// let log = logs.log(7);
/// log.append(101, &["a"])?.wait()?;
/// let entry = log.get(101)?;
/// assert_eq!((entry.index(), &entry[..]), (101, &b"a"[..]));
/// # logs.close()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    index: u64,
    bytes: Arc<[u8]>,
}

impl Entry {
    pub(super) fn new(index: u64, bytes: Arc<[u8]>) -> Entry {
        Entry { index, bytes }
    }

    /// Returns the index of the entry.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }
}

impl Deref for Entry {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Entry {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl PartialEq<[u8]> for Entry {
    fn eq(&self, other: &[u8]) -> bool {
        *self.bytes == *other
    }
}

impl PartialEq<&str> for Entry {
    fn eq(&self, other: &&str) -> bool {
        *self.bytes == *other.as_bytes()
    }
}

/// An iterator over the entries in a range of a log. It ends after its first error. See
/// [`Log::range`](super::Log::range).
///
/// ```
/// use drumlin::logs::{Logs, LogsOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-log-range-{}", std::process::id()));
/// # let logs = Logs::open(&folder, &LogsOptions::new())?;
/// let log = logs.log(7);
/// log.append(101, &["a", "b", "c"])?.wait()?;
/// for entry in log.range(102..)? {
///     let entry = entry?;
///     println!("{}: {:?}", entry.index(), &entry[..]);
/// }
/// # logs.close()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Range {
    opening: Arc<Opening>,
    log: u64,
    cell: Arc<LogCell>,
    /// The indexes that have not been returned.
    indexes: std::ops::Range<u64>,
    /// The entries from `indexes.start` on that have been read.
    read: VecDeque<Arc<[u8]>>,
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Range of log {}, from {} to {}", self.log, self.indexes.start, self.indexes.end)
    }
}

impl Range {
    pub(super) fn new(opening: &Arc<Opening>, log: u64, cell: &Arc<LogCell>, indexes: std::ops::Range<u64>) -> Range {
        Range { opening: Arc::clone(opening), log, cell: Arc::clone(cell), indexes, read: VecDeque::new() }
    }

    /// Takes over what was read, and returns the next entry.
    fn take(&mut self, read: Result<Vec<Arc<[u8]>>>) -> Option<Result<Entry>> {
        match read {
            Ok(entries) => {
                self.read = entries.into();
                self.next_read().map(Ok)
            }
            Err(error) => {
                self.indexes.start = self.indexes.end;
                Some(Err(error))
            }
        }
    }

    fn next_read(&mut self) -> Option<Entry> {
        let bytes = self.read.pop_front()?;
        let entry = Entry::new(self.indexes.start, bytes);
        self.indexes.start += 1;
        Some(entry)
    }

    /// Returns the next entry, for a task. A read is made by another thread.
    pub async fn next_async(&mut self) -> Option<Result<Entry>> {
        if let Some(entry) = self.next_read() {
            return Some(Ok(entry));
        }
        if self.indexes.is_empty() {
            return None;
        }
        let (opening, log, cell) = (Arc::clone(&self.opening), self.log, Arc::clone(&self.cell));
        let indexes = self.indexes.clone();
        let read = self.opening.shared.workers.run(move || opening.shared.read(log, &cell, indexes)).await;
        self.take(read)
    }
}

impl Iterator for Range {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if let Some(entry) = self.next_read() {
            return Some(Ok(entry));
        }
        if self.indexes.is_empty() {
            return None;
        }
        let read = self.opening.shared.read(self.log, &self.cell, self.indexes.clone());
        self.take(read)
    }
}
