//! Iterators over the rows, keys and values of a range, forwards and backwards.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::bounds::OwnedBounds;
use super::handle::Handle;
use super::leaf_copy::Want;
use super::salvage::Salvaged;
use super::scan::Scan;
use super::shortage::Shortage;
use super::value::Value;
use super::value_reader::ValueReader;
use crate::counts::CountedTree;
use crate::error::{Error, QuotedKey, Result};
use crate::task::{Rooted, WaitMode, ready};
use crate::tree::Direction;
use crate::txn::read_set::SharedReads;
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::write_set::SharedWrites;

/// A double-ended iterator over the rows of a range in key order, as of one snapshot.
///
/// Each step costs O(1), plus O(log n) at the end of a leaf; [`for_each_row`](Range::for_each_row) costs less. A scan
/// copies at most the rows of one leaf at a time. The first copies are limited to 16 KiB, and all copies are smaller
/// while many scans share their sixteenth of the memory budget. If no memory is left in that share, a step fails with
/// [`MemoryInUse`](Error::MemoryInUse). The [`Value`]s that the scan yields do not count towards the budget, and each
/// of them keeps in memory all rows that were copied together with it. The iterator ends after its first error;
/// [`salvage`](Range::salvage) continues past rows that can't be read. Until the iterator is dropped, it keeps the
/// database open, like any handle, and retains the versions that its snapshot needs. If the snapshot of a
/// read-committed transaction's range is ended, the range continues at a newer one.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let orders = db.keyspace("orders")?;
/// for day in ["2026-11-20", "2026-11-21", "2026-11-22"] {
///     orders.insert(day, "an order")?;
/// }
/// let mut rows = orders.range("2026-11-21"..);
/// let (last, _) = rows.next_back().expect("there are two")?;
/// assert_eq!(last, "2026-11-22");
/// let rest: Vec<_> = rows.collect::<drumlin::Result<_>>()?;
/// assert_eq!(rest.len(), 1);
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Range(ScanState);

enum ScanState {
    Scanning(Box<Scan>),
    /// A scan that could not be opened: yields the error, then ends.
    Refused(Option<Error>),
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            ScanState::Scanning(scan) => {
                let [lower, upper] = [&scan.lower, &scan.upper].map(|bound| bound.as_ref().map(|key| QuotedKey(key)));
                write!(f, "Range({lower:?} to {upper:?} at {})", scan.snapshot.timestamp)
            }
            ScanState::Refused(Some(error)) => write!(f, "Range(refused: {error})"),
            ScanState::Refused(None) => write!(f, "Range(refused)"),
        }
    }
}

impl Range {
    pub(super) fn new(
        handle: Arc<Handle>,
        tree: CountedTree,
        snapshot: Arc<SnapshotHandle>,
        bounds: OwnedBounds,
        own: Option<Arc<SharedWrites>>,
        reads: Option<SharedReads>,
        shortage: Shortage,
    ) -> Range {
        let scan = Scan::new(handle, tree, snapshot, bounds, own, reads, shortage);
        Range(ScanState::Scanning(Box::new(scan)))
    }

    /// Lets the scan continue at a newer snapshot if its own is ended. The scan records the newest commit that it has
    /// seen in `latest`.
    pub(super) fn of_latest(mut self, latest: Option<Arc<AtomicU64>>) -> Range {
        if let ScanState::Scanning(scan) = &mut self.0 {
            scan.latest = latest;
        }
        self
    }

    /// Returns a range that yields only this error.
    pub(crate) fn refused(error: Error) -> Range {
        Range(ScanState::Refused(Some(error)))
    }

    /// Limits the first copy to one row, for callers that need only a single row.
    pub(super) fn one_at_first(mut self) -> Range {
        if let ScanState::Scanning(scan) = &mut self.0 {
            scan.want = Want::One;
        }
        self
    }

    /// Makes [`show_rows`](Self::show_rows) read at most `bytes_max` bytes of each value outside of its leaf, into
    /// memory that counts towards the budget.
    pub(super) fn for_reducer(mut self, bytes_max: usize) -> Range {
        if let ScanState::Scanning(scan) = &mut self.0 {
            scan.reduced_bytes_max = Some(bytes_max as u64);
        }
        self
    }

    /// Returns the keys of the range, without reading values. Otherwise like the range.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// k.insert("film", vec![7; 300_000])?;
    /// for key in k.prefix("f").keys() {
    ///     assert_eq!(key?, "film");
    /// }
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    pub fn keys(self) -> Keys {
        Keys(self)
    }

    /// Returns the values of the range. Otherwise like the range.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(k.range("a"..).values().next().unwrap()?, "1");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    pub fn values(self) -> Values {
        Values(self)
    }

    /// Returns the rows of the range with their values as streams. A step does not read a value that is stored outside
    /// of its leaf, so rows of any size need little memory. Otherwise like the range.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let films = db.keyspace("films")?;
    /// films.insert("film", vec![7; 300_000])?;
    /// for row in films.iter().readers() {
    ///     let (_, mut value) = row?;
    ///     assert_eq!(value.len(), 300_000);
    ///     std::io::copy(&mut value, &mut std::io::sink())?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn readers(self) -> Readers {
        Readers(self)
    }

    /// Returns the rows of the range that can be reached, and the gaps between them. Iterates only forwards; otherwise
    /// like the range. If an inner node is corrupted, the gap has all keys below it; [`Rescue`](crate::Rescue) also
    /// reads the leaves there.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// use drumlin::Salvaged;
    ///
    /// let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// for step in k.iter().salvage() {
    ///     match step? {
    ///         Salvaged::Row(key, value) => println!("{key:?}: {value:?}"),
    ///         Salvaged::Gap(gap) => eprintln!("lost, {:?} to {:?}: {}", gap.start, gap.end, gap.error),
    ///         _ => unreachable!("there are rows and gaps"),
    ///     }
    /// }
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    pub fn salvage(self) -> Salvage {
        Salvage(self)
    }

    /// Calls `look` with each remaining row in key order. If `look` returns `Break`, stops and returns its value. The
    /// next call, or the iterator, continues after that row.
    ///
    /// This is the fastest way to read many rows: the slices point into the scan's own copies, so a row costs no
    /// allocation, no reference count and no [`Value`]. Values that are stored outside of their leaf are all read into
    /// the same vector. O(rows), plus O(log n) at the end of each leaf. No latch is held while `look` runs: it can
    /// write, wait, or call the database. The scan still sees its own snapshot.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let k = db.keyspace("k")?;
    /// for (key, value) in [("a", "3"), ("b", "5"), ("c", "8")] {
    ///     k.insert(key, value)?;
    /// }
    /// let mut bytes = 0;
    /// let all: ControlFlow<()> = k.iter().for_each_row(|key, value| {
    ///     bytes += key.len() + value.len();
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert!(all.is_continue() && bytes == 6);
    ///
    /// let find = |key: &[u8], value: &[u8]| match value {
    ///     b"5" => ControlFlow::Break(key.to_vec()),
    ///     _ => ControlFlow::Continue(()),
    /// };
    /// let mut rows = k.iter();
    /// assert_eq!(rows.for_each_row(find)?, ControlFlow::Break(b"b".to_vec()));
    /// assert_eq!(rows.next().expect("one is left")?.0, "c");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of a step of the iterator. The range ends after the first error.
    pub fn for_each_row<B>(&mut self, mut look: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>) -> Result<ControlFlow<B>> {
        ready(self.show_rows(WaitMode::Blocking, Direction::Forward, &mut look))
    }

    /// Like [`for_each_row`](Range::for_each_row), from the last row to the first.
    ///
    /// # Errors
    /// Same as [`for_each_row`](Range::for_each_row).
    pub fn for_each_row_back<B>(
        &mut self,
        mut look: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        ready(self.show_rows(WaitMode::Blocking, Direction::Backward, &mut look))
    }

    /// Calls `look` with each remaining row until `look` returns `Break`.
    pub(super) async fn show_rows<B>(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
        look: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        match &mut self.0 {
            ScanState::Scanning(scan) => {
                let shown = scan.show_rows(mode, direction, look).await;
                scan.ended_by(shown)
            }
            ScanState::Refused(error) => error.take().map_or(Ok(ControlFlow::Continue(())), Err),
        }
    }

    /// Returns the next row's key without reading its value.
    pub(super) async fn next_key_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<Value>> {
        match &mut self.0 {
            ScanState::Scanning(scan) => scan.next_key_in(mode, direction).await,
            ScanState::Refused(error) => error.take().map(Err),
        }
    }

    /// Returns the next row or gap.
    #[inline(never)]
    fn salvage_in(&mut self, mode: WaitMode<'_>) -> Rooted<impl Future<Output = Option<Result<Salvaged>>>> {
        Rooted::new(async move {
            match &mut self.0 {
                ScanState::Scanning(scan) => scan.salvage_in(mode).await,
                ScanState::Refused(error) => error.take().map(Err),
            }
        })
    }

    /// Counts the remaining rows by visiting each leaf. O(leaves).
    #[inline(never)]
    pub(crate) fn count_rows(self, mode: WaitMode<'_>) -> Rooted<impl Future<Output = Result<u64>>> {
        Rooted::new(async move {
            match self.0 {
                ScanState::Scanning(mut scan) => {
                    let count = scan.count_rows(mode).await;
                    scan.shortage.noting(count)
                }
                ScanState::Refused(error) => error.map_or(Ok(0), Err),
            }
        })
    }
}

/// A scan of rows, keys or values. Its blocking and asynchronous steps and its stream are all built on this trait.
pub(super) trait Steps {
    /// The item that a step yields: a row, its key, or its value.
    type Item;

    /// Returns the handle of the database. Returns `None` for a range that could not be opened; its steps never wait.
    fn handle(&self) -> Option<Arc<Handle>>;

    /// Returns the next item if it has already been copied, so that the caller does not have to wait.
    fn next_copied(&mut self, direction: Direction) -> Option<Self::Item>;

    /// Returns the next item, waiting in the given mode. If the future is dropped, no row is lost.
    fn next_in(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
    ) -> impl Future<Output = Option<Result<Self::Item>>> + Send;
}

/// Advances a scan by one step, blocking this thread if necessary.
#[inline]
fn step_blocking<S: Steps>(scan: &mut S, direction: Direction) -> Option<Result<S::Item>> {
    match scan.next_copied(direction) {
        Some(item) => Some(Ok(item)),
        None => ready(scan.next_in(WaitMode::Blocking, direction)),
    }
}

/// Implements double-ended iterators for scans.
macro_rules! iterate_scans {
    ($($scan:ident: $item:ty),+) => {$(
        impl Iterator for $scan {
            type Item = Result<$item>;

            #[inline]
            fn next(&mut self) -> Option<Self::Item> {
                step_blocking(self, Direction::Forward)
            }
        }

        impl DoubleEndedIterator for $scan {
            #[inline]
            fn next_back(&mut self) -> Option<Self::Item> {
                step_blocking(self, Direction::Backward)
            }
        }
    )+};
}

iterate_scans!(Range: (Value, Value), Keys: Value, Values: Value, Readers: (Value, ValueReader));

/// Implements `Debug` for these iterators. The output names the range behind each iterator.
macro_rules! debug_as_parts {
    ($($part:ident),+) => {$(
        impl std::fmt::Debug for $part {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} of {:?}", stringify!($part), self.0)
            }
        }
    )+};
}

debug_as_parts!(Keys, Values, Readers, Salvage);

/// Advances a scan by one step, as a task.
pub(super) async fn step<S: Steps>(scan: &mut S, direction: Direction) -> Option<Result<S::Item>> {
    if let Some(item) = scan.next_copied(direction) {
        return Some(Ok(item));
    }
    match scan.handle().as_ref().map(|handle| handle.store()) {
        Some(Ok(store)) => scan.next_in(store.as_task().await, direction).await,
        // A range never waits if it could not be opened, or if its database is closed.
        None | Some(Err(_)) => ready(scan.next_in(WaitMode::Blocking, direction)),
    }
}

impl Steps for Range {
    type Item = (Value, Value);

    fn handle(&self) -> Option<Arc<Handle>> {
        match &self.0 {
            ScanState::Scanning(scan) => Some(Arc::clone(&scan.handle)),
            ScanState::Refused(_) => None,
        }
    }

    #[inline]
    fn next_copied(&mut self, direction: Direction) -> Option<(Value, Value)> {
        let ScanState::Scanning(scan) = &mut self.0 else { return None };
        scan.side_mut(direction).take(direction)
    }

    #[inline(never)]
    fn next_in(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
    ) -> impl Future<Output = Option<Result<(Value, Value)>>> + Send {
        Rooted::new(async move {
            match &mut self.0 {
                ScanState::Scanning(scan) => scan.next_in(mode, direction).await,
                ScanState::Refused(error) => error.take().map(Err),
            }
        })
    }
}

/// A double-ended iterator over the keys of a range. It reads no values. Created by [`Range::keys`]; otherwise like
/// [`Range`].
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// k.insert("a", "1")?;
/// k.insert("b", "2")?;
/// let keys: drumlin::Keys = k.keys();
/// assert_eq!(keys.rev().next().unwrap()?, "b");
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Keys(pub(super) Range);

impl Steps for Keys {
    type Item = Value;

    fn handle(&self) -> Option<Arc<Handle>> {
        self.0.handle()
    }

    #[inline]
    fn next_copied(&mut self, direction: Direction) -> Option<Value> {
        let ScanState::Scanning(scan) = &mut self.0.0 else { return None };
        scan.side_mut(direction).take_key(direction)
    }

    #[inline(never)]
    fn next_in(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
    ) -> impl Future<Output = Option<Result<Value>>> + Send {
        Rooted::new(async move { self.0.next_key_in(mode, direction).await })
    }
}

/// A double-ended iterator over the values of a range in key order. Created by [`Range::values`]; otherwise like
/// [`Range`].
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// k.insert("a", "1")?;
/// let values: drumlin::Values = k.values();
/// for value in values {
///     assert_eq!(value?, "1");
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Values(pub(super) Range);

impl Steps for Values {
    type Item = Value;

    fn handle(&self) -> Option<Arc<Handle>> {
        self.0.handle()
    }

    #[inline]
    fn next_copied(&mut self, direction: Direction) -> Option<Value> {
        self.0.next_copied(direction).map(|(_, value)| value)
    }

    #[inline(never)]
    fn next_in(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
    ) -> impl Future<Output = Option<Result<Value>>> + Send {
        Rooted::new(async move { self.0.next_in(mode, direction).await.map(|row| row.map(|(_, value)| value)) })
    }
}

/// A double-ended iterator over the rows of a range with their values as streams. Created by [`Range::readers`];
/// otherwise like [`Range`].
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// k.insert("a", "1")?;
/// let rows: drumlin::Readers = k.iter().readers();
/// for row in rows {
///     assert_eq!(std::io::read_to_string(row?.1)?, "1");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Readers(Range);

impl Steps for Readers {
    type Item = (Value, ValueReader);

    fn handle(&self) -> Option<Arc<Handle>> {
        self.0.handle()
    }

    #[inline]
    fn next_copied(&mut self, direction: Direction) -> Option<(Value, ValueReader)> {
        let ScanState::Scanning(scan) = &mut self.0.0 else { return None };
        (!scan.side(direction).is_empty()).then(|| scan.take_reader(direction))
    }

    #[inline(never)]
    fn next_in(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
    ) -> impl Future<Output = Option<Result<(Value, ValueReader)>>> + Send {
        Rooted::new(async move {
            match &mut self.0.0 {
                ScanState::Scanning(scan) => scan.next_reader_in(mode, direction).await,
                ScanState::Refused(error) => error.take().map(Err),
            }
        })
    }
}

/// An iterator over the readable rows of a range in key order and the gaps between them. Use it to recover the intact
/// part of a corrupted database. Created by [`Range::salvage`].
///
/// Each corrupted leaf is a gap. A corrupted inner node is a single gap for all leaves beneath it. A corrupted large
/// value is a gap for its row. Costs as much as iterating over the range, plus O(log n) for each gap. Unreadable pages
/// are reported as gaps, not errors. The iterator ends after its first error.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use drumlin::Salvaged;
///
/// # let k = db.keyspace("k")?;
/// # k.insert("a", "1")?;
/// let mut lost_count = 0;
/// for step in k.iter().salvage() {
///     match step? {
///         Salvaged::Row(key, value) => println!("{key:?}: {value:?}"),
///         Salvaged::Gap(_) => lost_count += 1,
///         _ => {}
///     }
/// }
/// assert_eq!(lost_count, 0);
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct Salvage(Range);

impl Salvage {
    /// The async form of the iterator's `next`; otherwise like [`Range::next_async`].
    pub async fn next_async(&mut self) -> Option<Result<Salvaged>> {
        match self.0.handle().as_ref().map(|handle| handle.store()) {
            Some(Ok(store)) => self.0.salvage_in(store.as_task().await).await,
            // A range never waits if it could not be opened, or if its database is closed.
            None | Some(Err(_)) => ready(self.0.salvage_in(WaitMode::Blocking)),
        }
    }
}

impl Iterator for Salvage {
    type Item = Result<Salvaged>;

    fn next(&mut self) -> Option<Result<Salvaged>> {
        ready(self.0.salvage_in(WaitMode::Blocking))
    }
}
