//! Entries, and iterating over them.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use super::opening::Opening;
use super::options::AHEAD_COUNT_MAX;
use super::shared::{Fetched, LogCell, Shared, Wait};
use crate::error::Result;
use crate::sync::Exclusive;
use crate::task::{WaitMode, ready, turn};

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
    /// The reads of what follows on, in order.
    ahead: VecDeque<Ahead>,
    /// The number of reads that are made ahead. It rises with each read, because most ranges are short.
    ahead_count_max: usize,
    /// The number of entries in such a read.
    entry_count: u64,
}

type Fetching = Pin<Box<dyn Future<Output = Result<Fetched>> + Send>>;

/// A read that another thread makes before its entries are asked for. If no caller waits for it, its result is
/// discarded.
struct Ahead {
    shared: Arc<Shared>,
    indexes: std::ops::Range<u64>,
    fetching: Exclusive<Fetching>,
}

impl Ahead {
    /// Starts a read, unless as many are in flight as all iterators may make.
    fn start(opening: &Arc<Opening>, log: u64, cell: &Arc<LogCell>, indexes: std::ops::Range<u64>) -> Option<Ahead> {
        let shared = Arc::clone(&opening.shared);
        let count = &shared.ahead_count;
        let taken = |taken: usize| (taken < AHEAD_COUNT_MAX).then_some(taken + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).ok()?;
        let mut fetching = fetching(opening, log, cell, indexes.clone());
        // The first poll hands the read to a thread. Without threads, it makes the read.
        if let Poll::Ready(fetched) = fetching.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            fetching = Box::pin(std::future::ready(fetched));
        }
        Some(Ahead { shared, indexes, fetching: Exclusive::new(fetching) })
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let before = self.shared.ahead_count.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "more reads end than were begun");
    }
}

/// Returns a future that has a thread read entries. The thread is no handle of the folder: closing waits for it.
fn fetching(opening: &Arc<Opening>, log: u64, cell: &Arc<LogCell>, indexes: std::ops::Range<u64>) -> Fetching {
    let (shared, cell) = (Arc::clone(&opening.shared), Arc::clone(cell));
    Box::pin(async move {
        let reader = Arc::clone(&shared);
        shared.workers.run(move || reader.read(log, &cell, indexes)).await
    })
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Range of log {}, from {} to {}", self.log, self.indexes.start, self.indexes.end)
    }
}

impl Range {
    pub(super) fn new(opening: &Arc<Opening>, log: u64, cell: &Arc<LogCell>, indexes: std::ops::Range<u64>) -> Range {
        Range {
            opening: Arc::clone(opening),
            log,
            cell: Arc::clone(cell),
            indexes,
            read: VecDeque::new(),
            ahead: VecDeque::new(),
            ahead_count_max: 0,
            entry_count: 0,
        }
    }

    /// Reads the next entries, or waits for the thread that reads them.
    async fn fetch(&mut self, wait: Wait) -> Result<Fetched> {
        // A read that is waited for stays in the queue: if the caller drops this future, its next call waits again.
        let fetched = match (self.ahead.front_mut(), wait) {
            (Some(ahead), Wait::Thread) => {
                let fetching = ahead.fetching.get_mut();
                let poll = |waker: &Waker| fetching.as_mut().poll(&mut Context::from_waker(waker));
                WaitMode::Blocking.until(poll).await?
            }
            (Some(ahead), Wait::Task) => ahead.fetching.get_mut().as_mut().await?,
            (None, Wait::Thread) => self.opening.shared.read(self.log, &self.cell, self.indexes.clone())?,
            (None, Wait::Task) => match self.fetch_cached().await? {
                Some(fetched) => fetched,
                None => fetching(&self.opening, self.log, &self.cell, self.indexes.clone()).await?,
            },
        };
        let ahead = self.ahead.pop_front();
        // An entry was damaged or moved. The later reads do not follow on from this one.
        if ahead.is_some_and(|ahead| (fetched.entries.len() as u64) < ahead.indexes.end - ahead.indexes.start) {
            self.ahead.clear();
        }
        Ok(fetched)
    }

    /// Returns the next entries if they are in memory, without a thread. Counts them in the turn of the task.
    async fn fetch_cached(&self) -> Result<Option<Fetched>> {
        turn::Work::call().await;
        let fetched = self.opening.shared.read_cached(self.log, &self.cell, self.indexes.clone())?;
        if let Some(Fetched { entries, .. }) = &fetched {
            let bytes = entries.iter().map(|entry| entry.len()).sum();
            turn::count(turn::ROW_UNITS * entries.len() as u32 + turn::units_of_bytes(bytes));
        }
        Ok(fetched)
    }

    /// Starts the reads of what follows on from entries that were not in memory.
    fn read_ahead(&mut self, fetched: &Fetched) {
        if fetched.read_bytes == 0 {
            self.ahead_count_max = 0;
            return;
        }
        self.ahead_count_max = (2 * self.ahead_count_max).clamp(1, AHEAD_COUNT_MAX);
        self.entry_count = fetched.entries.len() as u64;
        if fetched.read_bytes < self.opening.shared.sizes.read_bytes_max / 2 {
            // A read that would be too long ends early.
            self.entry_count *= 2;
        }
        while self.ahead.len() < self.ahead_count_max {
            let begin = self.indexes.start + fetched.entries.len() as u64;
            let begin = self.ahead.back().map_or(begin, |ahead| ahead.indexes.end);
            let end = self.indexes.end.min(begin.saturating_add(self.entry_count));
            if begin >= end {
                break;
            }
            let Some(ahead) = Ahead::start(&self.opening, self.log, &self.cell, begin..end) else { break };
            self.ahead.push_back(ahead);
        }
    }

    /// Fetches entries after all that were read have been returned. Returns the first of them.
    async fn next_fetched(&mut self, wait: Wait) -> Option<Result<Entry>> {
        if self.indexes.is_empty() {
            return None;
        }
        match self.fetch(wait).await {
            Ok(fetched) => {
                self.read_ahead(&fetched);
                self.read = fetched.entries.into();
                self.next_read().map(Ok)
            }
            Err(error) => {
                self.indexes.start = self.indexes.end;
                self.ahead.clear();
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

    /// Returns the next entry, for a task. Another thread makes reads. No entry is lost if this future is dropped.
    pub async fn next_async(&mut self) -> Option<Result<Entry>> {
        match self.next_read() {
            Some(entry) => Some(Ok(entry)),
            None => self.next_fetched(Wait::Task).await,
        }
    }
}

impl Iterator for Range {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        match self.next_read() {
            Some(entry) => Some(Ok(entry)),
            None => ready(self.next_fetched(Wait::Thread)),
        }
    }
}
