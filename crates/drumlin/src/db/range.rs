//! Scans, forwards and backwards.
//!
//! A scan copies the rows of one leaf at a time and latches nothing in between. So it never blocks a writer, and splits
//! and merges do not disturb it. It finds the next leaf by the fence of the last one.

use std::future::Future;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::Handle;
use super::bounds::OwnedBounds;
use super::leaf_copy::{self, CHANGES_BYTES_MAX, Copied, CopiedRows, Copier, Fetched, Want};
use super::salvage::{Gap, Salvaged};
use super::shortage::Shortage;
use super::value::Value;
use super::value_reader::{Content, ValueReader};
use crate::error::{Error, QuotedKey, Result};
use crate::format::{ChunkNumber, PageId};
use crate::memory::{Account, Grant};
use crate::pool::Stop;
use crate::store::read_ahead::ReadAhead;
use crate::task::{Boxed, Rooted, WaitMode, ready, turn};
use crate::tree::node::{EMPTY_LEAF, Leaf};
use crate::tree::{Direction, Target, Tree, Unreadable};
use crate::txn::read_set::SharedReads;
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::spilled::FetchedRows;
use crate::txn::values::{Part, UpcomingValues};
use crate::txn::write_set::SharedWrites;

/// An iterator over the rows of a range in key order, from both ends, as of one snapshot.
///
/// Each step costs one row, and O(log n) more at the end of a leaf; [`for_each_row`](Range::for_each_row) costs less. A
/// scan copies up to a leaf's rows at once. The first copies are limited to 16 KiB, and all of them are smaller while
/// many scans share their sixteenth of the memory budget. If none of it is left, a step fails with
/// [`MemoryInUse`](Error::MemoryInUse). The [`Value`]s that the scan yields are outside of the budget, and each keeps
/// all rows in memory that were copied with it. The iterator ends after its first error; [`salvage`](Range::salvage)
/// continues past rows that can't be read. Until it is dropped, it keeps the database open, as any handle does, and the
/// versions that its snapshot needs. A range of a read-committed transaction continues at a newer snapshot if its own
/// is ended.
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
pub struct Range(State);

enum State {
    Scanning(Box<Scan>),
    /// A refused scan: yields the error, then ends.
    Refused(Option<Error>),
}

struct Scan {
    handle: Arc<Handle>,
    tree: Tree,
    snapshot: Arc<SnapshotHandle>,
    /// Set for a reader of the newest commits: the newest commit that it has seen. If the snapshot is ended, such a
    /// scan continues at a newer one.
    latest: Option<Arc<AtomicU64>>,
    /// The bounds of the keys not fetched yet.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    fetched_all: bool,
    /// The rows copied at either end. After the last fetch, one end may also consume the rows copied at the other.
    front: CopiedRows,
    back: CopiedRows,
    /// The scanning transaction's own changes, if it has any within the bounds.
    own: Option<Arc<SharedWrites>>,
    /// The read set of the scanning transaction, if it is serializable.
    reads: Option<SharedReads>,
    /// The shortage flag of the scanning transaction.
    shortage: Shortage,
    ahead_forward: ReadAhead,
    ahead_backward: ReadAhead,
    upcoming: UpcomingValues,
    /// The rows that the next copy takes from its leaf.
    want: Want,
    /// The maximum number of bytes of each value to read, if the rows are shown to a reducer.
    reduced_bytes_max: Option<u64>,
    /// Memory of `front` and `back`, which use `front_bytes` and `back_bytes` of it.
    memory: Grant,
    front_bytes: u64,
    back_bytes: u64,
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            State::Scanning(scan) => {
                let [lower, upper] = [&scan.lower, &scan.upper].map(|bound| bound.as_ref().map(|key| QuotedKey(key)));
                write!(f, "Range({lower:?} to {upper:?} at {})", scan.snapshot.timestamp)
            }
            State::Refused(Some(error)) => write!(f, "Range(refused: {error})"),
            State::Refused(None) => write!(f, "Range(refused)"),
        }
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Returns the bound of the keys on the other side of this one.
fn complement(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
    }
}

/// Returns the leaf that a scan between two bounds begins with.
fn first_leaf<'b>(direction: Direction, lower: &'b Bound<Vec<u8>>, upper: &'b Bound<Vec<u8>>) -> Target<'b> {
    match (direction, lower, upper) {
        (Direction::Forward, Bound::Unbounded, _) => Target::At(&[]),
        (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _) => Target::At(key),
        (Direction::Backward, _, Bound::Unbounded) => Target::Last,
        (Direction::Backward, _, Bound::Included(key)) => Target::At(key),
        (Direction::Backward, _, Bound::Excluded(key)) => Target::Below(key),
    }
}

impl Range {
    pub(super) fn new(
        handle: Arc<Handle>,
        tree: Tree,
        snapshot: Arc<SnapshotHandle>,
        bounds: OwnedBounds,
        own: Option<Arc<SharedWrites>>,
        reads: Option<SharedReads>,
        shortage: Shortage,
    ) -> Range {
        let (lower, upper) = bounds;
        let memory = handle.store_here().engine.budget.grant(Account::Copies);
        let mut scan = Scan {
            handle,
            tree,
            snapshot,
            latest: None,
            lower,
            upper,
            fetched_all: false,
            front: CopiedRows::default(),
            back: CopiedRows::default(),
            own,
            reads,
            shortage,
            ahead_forward: ReadAhead::new(Direction::Forward),
            ahead_backward: ReadAhead::new(Direction::Backward),
            upcoming: UpcomingValues::default(),
            want: Want::All,
            reduced_bytes_max: None,
            memory,
            front_bytes: 0,
            back_bytes: 0,
        };
        scan.fetched_all = scan.is_exhausted();
        Range(State::Scanning(Box::new(scan)))
    }

    /// Lets the scan continue at a newer snapshot if its own is ended, and record in `latest` what it has seen.
    pub(super) fn of_latest(mut self, latest: Option<Arc<AtomicU64>>) -> Range {
        if let State::Scanning(scan) = &mut self.0 {
            scan.latest = latest;
        }
        self
    }

    /// Returns a range that yields only this error.
    pub(crate) fn refused(error: Error) -> Range {
        Range(State::Refused(Some(error)))
    }

    /// Limits the first copy to one row, for callers that need only one.
    pub(super) fn one_at_first(mut self) -> Range {
        if let State::Scanning(scan) = &mut self.0 {
            scan.want = Want::One;
        }
        self
    }

    /// Makes [`show_rows`](Self::show_rows) read only `bytes_max` bytes of each value outside of its leaf, in memory of
    /// the budget.
    pub(super) fn for_reducer(mut self, bytes_max: usize) -> Range {
        if let State::Scanning(scan) = &mut self.0 {
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

    /// Returns the rows of the range with their values as streams. A step reads nothing of a value outside of its leaf,
    /// so rows of any size need little memory. Otherwise like the range.
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

    /// Returns the readable rows of the range, and the gaps between them. Otherwise like the range, but forwards only.
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

    /// Calls `look` with each remaining row in key order until it breaks. Returns the value that it broke with. Another
    /// call, or the iterator, continues after that row.
    ///
    /// This is the fastest way to read many rows: the slices point into the scan's own copies, so that a row costs no
    /// allocation, no reference count and no [`Value`]. Values outside of their leaf are read into one vector. O(rows),
    /// plus O(log n) at the end of each leaf. `look` runs under no latch: it may write, wait, or call the database. The
    /// scan still sees its own snapshot.
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
    /// Those of the iterator's steps. The range ends after the first error.
    pub fn for_each_row<B>(&mut self, mut look: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>) -> Result<ControlFlow<B>> {
        ready(self.show_rows(WaitMode::Blocking, Direction::Forward, &mut look))
    }

    /// Like [`for_each_row`](Range::for_each_row), from the last row to the first.
    ///
    /// # Errors
    /// Those of [`for_each_row`](Range::for_each_row).
    pub fn for_each_row_back<B>(
        &mut self,
        mut look: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        ready(self.show_rows(WaitMode::Blocking, Direction::Backward, &mut look))
    }

    /// Calls `look` with each remaining row.
    pub(super) async fn show_rows<B>(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
        look: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        match &mut self.0 {
            State::Scanning(scan) => {
                let shown = scan.show_rows(mode, direction, look).await;
                scan.ended_by(shown)
            }
            State::Refused(error) => error.take().map_or(Ok(ControlFlow::Continue(())), Err),
        }
    }

    /// Returns the next row's key without reading its value.
    pub(super) async fn next_key_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<Value>> {
        match &mut self.0 {
            State::Scanning(scan) => scan.next_key_in(mode, direction).await,
            State::Refused(error) => error.take().map(Err),
        }
    }

    /// Returns the next row or gap.
    #[inline(never)]
    fn salvage_in(&mut self, mode: WaitMode<'_>) -> Rooted<impl Future<Output = Option<Result<Salvaged>>>> {
        Rooted::new(async move {
            match &mut self.0 {
                State::Scanning(scan) => scan.salvage_in(mode).await,
                State::Refused(error) => error.take().map(Err),
            }
        })
    }

    /// Counts the remaining rows. O(leaves), because it visits each of them.
    #[inline(never)]
    pub(crate) fn count_rows(self, mode: WaitMode<'_>) -> Rooted<impl Future<Output = Result<u64>>> {
        Rooted::new(async move {
            match self.0 {
                State::Scanning(mut scan) => {
                    let count = scan.count_rows(mode).await;
                    scan.shortage.noting(count)
                }
                State::Refused(error) => error.map_or(Ok(0), Err),
            }
        })
    }
}

/// The state of a copy of one leaf's rows.
struct Copying {
    direction: Direction,
    want: Want,
    memory: Grant,
    /// The memory that the rows copied at the other end take.
    kept_bytes: u64,
    rows: CopiedRows,
    /// The spilled versions of the leaf's rows, if they were fetched.
    fetched: Option<FetchedRows>,
}

/// The result of a copy of one leaf's rows.
struct CopyMade {
    copied: Copied,
    /// The leaf's fence in the direction of the scan.
    fence: Option<Bound<Vec<u8>>>,
    is_next_in_memory: bool,
}

/// The outcome of an attempt to copy rows.
enum Step {
    Copied(CopyMade),
    /// Versions between these fences may have been spilled and must be fetched.
    Fetch(Option<Vec<u8>>, Option<Vec<u8>>),
    /// Versions were spilled during the copy, so it must be repeated.
    Again,
}

/// Returns `true` if other rows may be readable.
fn is_of_medium(error: &Error) -> bool {
    matches!(error, Error::Corrupted { .. } | Error::Io { .. })
}

/// A scan of rows, keys or values. Its blocking and asynchronous steps and its stream are all built on this trait.
pub(super) trait Steps {
    /// The item that a step yields: a row, or a part of it.
    type Item;

    /// Returns `None` for a refused range, which never waits.
    fn handle(&self) -> Option<Arc<Handle>>;

    /// Returns the next item, if it was copied already and needs no waiting.
    fn at_hand(&mut self, direction: Direction) -> Option<Self::Item>;

    /// Returns the next item, waiting as `mode` says. If the future is dropped, no row is lost.
    fn next_in(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
    ) -> impl Future<Output = Option<Result<Self::Item>>> + Send;
}

/// Makes the next step of a scan, blocking this thread if necessary.
#[inline]
fn step_blocking<S: Steps>(scan: &mut S, direction: Direction) -> Option<Result<S::Item>> {
    match scan.at_hand(direction) {
        Some(item) => Some(Ok(item)),
        None => ready(scan.next_in(WaitMode::Blocking, direction)),
    }
}

/// Makes the next step of a scan as a task.
pub(super) async fn step<S: Steps>(scan: &mut S, direction: Direction) -> Option<Result<S::Item>> {
    if let Some(item) = scan.at_hand(direction) {
        return Some(Ok(item));
    }
    match scan.handle().as_ref().map(|handle| handle.store()) {
        Some(Ok(store)) => scan.next_in(store.as_task().await, direction).await,
        // This step never waits.
        None | Some(Err(_)) => ready(scan.next_in(WaitMode::Blocking, direction)),
    }
}

impl Scan {
    fn is_exhausted(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
            | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
            (Bound::Unbounded, Bound::Excluded(upper)) => upper.is_empty(),
            _ => false,
        }
    }

    /// Records in the read set that the keys between these bounds were read.
    fn record(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<()> {
        let Some(reads) = &self.reads else { return Ok(()) };
        // The smallest key that is greater than `key`.
        let behind = |key: &[u8]| [key, &[0]].concat();
        let first = match lower {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => behind(key),
        };
        let end = match upper {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
        };
        reads.lock().add_interval(&self.tree, &first, end.as_deref())
    }

    /// Returns a copier for the rows that are not fetched yet.
    fn copier(&self, direction: Direction, want: Want) -> Copier<'_> {
        Copier {
            want,
            versions: &self.handle.store_here().engine.versions,
            keyspace: self.tree.pages.id,
            snapshot: self.snapshot.timestamp,
            bounds: (as_slice(&self.lower), as_slice(&self.upper)),
            own: self.own.as_ref().map(|own| &own.set),
            direction,
        }
    }

    /// Returns the leaf as the scan's snapshot sees it: before a bulk load filled the keyspace, it was one empty leaf.
    fn leaf_seen<'l>(&self, read: &'l [u8]) -> Leaf<'l> {
        Leaf::new(if self.tree.pages.is_loaded_since(self.snapshot.timestamp) { &EMPTY_LEAF } else { read })
    }

    /// Copies as many rows of the next leaf as are wanted, replacing the copied rows at that end. Returns their number.
    async fn copy_leaf(&mut self, mode: WaitMode<'_>, direction: Direction) -> Result<usize> {
        mode.work(turn::LEAF).await;
        let want = std::mem::take(&mut self.want);
        let (memory, rows) = (self.take_memory(), std::mem::take(self.side_mut(direction)));
        let (ahead, kept_bytes) = match direction {
            Direction::Forward => (&mut self.ahead_forward, self.back_bytes),
            Direction::Backward => (&mut self.ahead_backward, self.front_bytes),
        };
        let target = first_leaf(direction, &self.lower, &self.upper);
        ahead.step(&self.handle.store()?.engine, &self.tree, target, (&self.lower, &self.upper));
        let mut copying = Copying { direction, want, memory, kept_bytes, rows, fetched: None };
        let made = match self.try_copy(&mut copying, PageId::ROOT) {
            Ok(Step::Copied(made)) => made,
            stopped => self.copy_waiting(mode, &mut copying, stopped).await?,
        };
        let CopyMade { copied: Copied { count, bytes, stop }, fence, is_next_in_memory } = made;
        let Copying { memory, rows, .. } = copying;
        mode.worked(turn::ROW * count as u32);
        match direction {
            Direction::Forward => self.ahead_forward.note_next(is_next_in_memory),
            Direction::Backward => self.ahead_backward.note_next(is_next_in_memory),
        }
        self.snapshot.check()?;
        self.go_on_from(direction, stop.map(Bound::Excluded).or(fence))?;
        match direction {
            Direction::Forward => (self.front, self.front_bytes) = (rows, bytes),
            Direction::Backward => (self.back, self.back_bytes) = (rows, bytes),
        }
        self.memory = memory;
        Ok(count)
    }

    /// Copies rows of one leaf, to which it descends from the page `from`.
    fn try_copy(&self, copying: &mut Copying, from: PageId) -> Result<Step, Stop> {
        let Copying { direction, want, kept_bytes, ref mut memory, ref mut rows, ref mut fetched } = *copying;
        let (spilled, snapshot) = (&self.handle.store_here().engine.spilled, self.snapshot.timestamp);
        let target = first_leaf(direction, &self.lower, &self.upper);
        let (read, next) = self.tree.read_leaf_of_scan(from, target, direction)?;
        if let Some(next) = next {
            // The leaf is loaded into the processor's cache while these rows are copied and used.
            self.tree.pool.frames.prefetch(next);
        }
        let leaf = self.leaf_seen(&read);
        let (is_newer, published) = (leaf.newest() > snapshot, spilled.published());
        let (lower, upper) = (leaf.lower_fence(), leaf.upper_fence());
        if is_newer && spilled.may_have(snapshot) {
            let are_fetched = fetched.as_ref().is_some_and(|rows| rows.are_of(lower, upper, published));
            if !are_fetched {
                return Ok(Step::Fetch(lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec)));
            }
        }
        let old = fetched.take().filter(|_| is_newer).map(|rows| rows.old).unwrap_or_default();
        let copier = self.copier(direction, want);
        let copied = copier.copy(&leaf, read.page(), memory, kept_bytes, old, rows).map_err(Stop::Error)?;
        let fence = match direction {
            Direction::Forward => upper.map(|fence| Bound::Included(fence.to_vec())),
            Direction::Backward => lower.map(|fence| Bound::Excluded(fence.to_vec())),
        };
        // If versions left memory during the copy, the copy may have missed them.
        let is_whole = !is_newer || spilled.published() == published;
        Ok(if is_whole {
            Step::Copied(CopyMade { copied, fence, is_next_in_memory: next.is_some() })
        } else {
            Step::Again
        })
    }

    /// Completes a copy that was not made at the first attempt: brings pages into memory, fetches spilled versions, and
    /// retries.
    fn copy_waiting<'a>(
        &'a self,
        mode: WaitMode<'a>,
        copying: &'a mut Copying,
        mut stopped: Result<Step, Stop>,
    ) -> Boxed<'a, Result<CopyMade>> {
        Box::pin(async move {
            loop {
                let step = match stopped {
                    Ok(step) => step,
                    Err(stop) => self.tree.going_on(mode, stop, |from| self.try_copy(copying, from)).await?,
                };
                match step {
                    Step::Copied(made) => return Ok(made),
                    Step::Again => {}
                    Step::Fetch(lower, upper) => {
                        let room = leaf_copy::reserve(&mut copying.memory, copying.kept_bytes, CHANGES_BYTES_MAX)?;
                        let bounds = (as_slice(&self.lower), as_slice(&self.upper));
                        let (keyspace, fences, snapshot) =
                            (self.tree.pages.id, (lower, upper), self.snapshot.timestamp);
                        let spilled = &self.handle.store()?.engine.spilled;
                        let rows = spilled.fetch(mode, keyspace, fences, bounds, snapshot, copying.direction, room);
                        copying.fetched = Some(rows.await?);
                    }
                }
                mode.work(turn::LEAF).await;
                stopped = self.try_copy(copying, PageId::ROOT);
            }
        })
    }

    /// Like [`copy_leaf`](Self::copy_leaf). If the snapshot was ended and the scan may see a newer one, it uses that
    /// one.
    async fn copy_next(&mut self, mode: WaitMode<'_>, direction: Direction) -> Result<usize> {
        loop {
            match self.copy_leaf(mode, direction).await {
                Err(Error::SnapshotTooOld { .. }) if self.renew()? => {}
                copied => return copied,
            }
        }
    }

    /// Opens a newer snapshot. Returns `false` if the scan must show one moment.
    fn renew(&mut self) -> Result<bool> {
        let Some(seen) = &self.latest else { return Ok(false) };
        crate::coverage::mark!("a scan went on at a newer snapshot");
        self.snapshot = self.handle.store()?.open_latest(seen);
        Ok(true)
    }

    /// Opens a newer snapshot, and discards the rows that were copied and not handed out, because their large values
    /// may have been freed. The scan fetches them again. Returns `false` if the scan must show one moment.
    fn renew_rows(&mut self, direction: Direction) -> Result<bool> {
        if !self.renew()? {
            return Ok(false);
        }
        let rows = self.side(direction);
        let other = match direction {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        let [next, last] = [direction, other].map(|end| Bound::Included(rows.key(end).to_vec()));
        let (near, far) = match direction {
            Direction::Forward => (&mut self.lower, &mut self.upper),
            Direction::Backward => (&mut self.upper, &mut self.lower),
        };
        *near = next;
        if self.fetched_all {
            *far = last;
        }
        self.fetched_all = false;
        self.side_mut(direction).clear();
        Ok(true)
    }

    /// Continues with the keys from this bound on, and records that those before it were read. `None` means that all
    /// were.
    fn go_on_from(&mut self, direction: Direction, bound: Option<Bound<Vec<u8>>>) -> Result<()> {
        let Some(bound) = bound else {
            self.fetched_all = true;
            return self.record(as_slice(&self.lower), as_slice(&self.upper));
        };
        let end = match direction {
            Direction::Forward => &mut self.lower,
            Direction::Backward => &mut self.upper,
        };
        let before = std::mem::replace(end, bound);
        self.fetched_all = self.is_exhausted();
        let (lower, upper) = match (direction, self.fetched_all) {
            (Direction::Forward, false) => (as_slice(&before), complement(&self.lower)),
            (Direction::Forward, true) => (as_slice(&before), as_slice(&self.upper)),
            (Direction::Backward, false) => (complement(&self.upper), as_slice(&before)),
            (Direction::Backward, true) => (as_slice(&self.lower), as_slice(&before)),
        };
        self.record(lower, upper)
    }

    /// Takes the grant, which comes back together with the copied rows. If the call fails in between, an empty grant is
    /// left.
    fn take_memory(&mut self) -> Grant {
        let nothing = self.memory.another();
        std::mem::replace(&mut self.memory, nothing)
    }

    /// Returns the copied rows at this end.
    #[inline]
    fn side(&self, direction: Direction) -> &CopiedRows {
        match direction {
            Direction::Forward => &self.front,
            Direction::Backward => &self.back,
        }
    }

    #[inline]
    fn side_mut(&mut self, direction: Direction) -> &mut CopiedRows {
        match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        }
    }

    /// Copies rows until there is a next one. Returns `false` at the end of the range.
    #[inline(never)]
    fn fetch(&mut self, mode: WaitMode<'_>, direction: Direction) -> Rooted<impl Future<Output = Result<bool>>> {
        Rooted::new(async move {
            while self.side(direction).is_empty() {
                if self.fetched_all {
                    std::mem::swap(&mut self.front, &mut self.back);
                    std::mem::swap(&mut self.front_bytes, &mut self.back_bytes);
                    return Ok(!self.side(direction).is_empty());
                }
                self.copy_next(mode, direction).await?;
            }
            Ok(true)
        })
    }

    /// Reads the value of the next row, which was not copied with it, into `value`.
    #[inline(never)]
    fn read_value(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
        fetched: &Fetched,
        value: Vec<u8>,
    ) -> Rooted<impl Future<Output = Result<Vec<u8>>>> {
        Rooted::new(async move {
            // Check first: a forked process must not read anything.
            let handle = Arc::clone(&self.handle);
            let store = handle.store()?;
            match fetched {
                Fetched::Inline(_) => unreachable!("a value that was copied is read"),
                Fetched::Large(reference) => {
                    let rows = if direction == Direction::Forward { &self.front } else { &self.back };
                    self.upcoming.step(mode, &self.tree, rows.references(direction)).await;
                    store.read_large(mode, &self.tree, reference, &self.snapshot, value).await
                }
                Fetched::Own(own) => store.read_own(mode, &self.tree, own, &self.snapshot, value).await,
            }
        })
    }

    /// Reads the value to show for the next row, replacing the content of `value`. For a reducer, reads only as much as
    /// it needs, and returns the memory reserved for that.
    #[inline(never)]
    fn read_shown(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
        fetched: &Fetched,
        value: Vec<u8>,
    ) -> Rooted<impl Future<Output = Result<(Vec<u8>, Option<Grant>)>>> {
        Rooted::new(async move {
            let Some(bytes_max) = self.reduced_bytes_max else {
                return Ok((self.read_value(mode, direction, fetched, value).await?, None));
            };
            let handle = Arc::clone(&self.handle);
            let store = handle.store()?;
            let wanted = fetched.bytes().min(bytes_max);
            let memory = store.reduced_memory(mode, wanted).await?;
            if wanted == fetched.bytes() {
                return Ok((self.read_value(mode, direction, fetched, value).await?, Some(memory)));
            }
            let (mut prefix, mut number) = (value, ChunkNumber(0));
            prefix.clear();
            while (prefix.len() as u64) < wanted {
                let part = Part { start: 0, length: wanted as usize - prefix.len() };
                prefix = match fetched {
                    Fetched::Inline(_) => unreachable!("a value that was copied is read"),
                    Fetched::Large(reference) => {
                        store.read_chunk(mode, &self.tree, reference, number, &self.snapshot, part, prefix).await?
                    }
                    Fetched::Own(own) => {
                        store.read_own_chunk(mode, &self.tree, own, number, &self.snapshot, part, prefix).await?
                    }
                };
                number.0 += 1;
            }
            Ok((prefix, Some(memory)))
        })
    }

    /// Returns the next row, which must exist. The row counts as passed only after its value was read, so a dropped
    /// call loses no row.
    async fn hand_out(&mut self, mode: WaitMode<'_>, direction: Direction) -> Result<(Value, Value)> {
        let rows = self.side(direction);
        let key = rows.key(direction);
        let value = match rows.value(direction) {
            Fetched::Inline(span) => rows.part(span),
            elsewhere => self.read_value(mode, direction, &elsewhere, Vec::new()).await?.into(),
        };
        self.side_mut(direction).pass(direction);
        Ok((key, value))
    }

    async fn next_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<(Value, Value)>> {
        loop {
            let result = match self.fetch(mode, direction).await {
                Ok(false) => return None,
                Ok(true) => self.hand_out(mode, direction).await,
                Err(error) => Err(error),
            };
            let result = match result {
                error @ Err(Error::SnapshotTooOld { .. }) if !self.side(direction).is_empty() => {
                    match self.renew_rows(direction) {
                        Ok(true) => continue,
                        Ok(false) => error,
                        Err(error) => Err(error),
                    }
                }
                result => result,
            };
            return Some(self.ended_by(result));
        }
    }

    /// Calls `look` with each remaining row until it breaks.
    async fn show_rows<B>(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
        look: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        let mut value = Vec::new();
        loop {
            if let ControlFlow::Break(result) = self.side_mut(direction).show(direction, look) {
                return Ok(ControlFlow::Break(result));
            }
            if !self.fetch(mode, direction).await? {
                return Ok(ControlFlow::Continue(()));
            }
            let rows = self.side(direction);
            let key = rows.key(direction);
            match rows.value(direction) {
                Fetched::Inline(_) => {}
                elsewhere => {
                    let memory;
                    (value, memory) = match self.read_shown(mode, direction, &elsewhere, value).await {
                        Err(Error::SnapshotTooOld { .. }) if self.renew_rows(direction)? => {
                            value = Vec::new();
                            continue;
                        }
                        shown => shown?,
                    };
                    self.side_mut(direction).pass(direction);
                    if let ControlFlow::Break(result) = look(&key, &value) {
                        return Ok(ControlFlow::Break(result));
                    }
                    if memory.is_some() {
                        value = Vec::new();
                    }
                }
            }
        }
    }

    /// Like `next_in` forwards, but skips what cannot be read.
    async fn salvage_in(&mut self, mode: WaitMode<'_>) -> Option<Result<Salvaged>> {
        let direction = Direction::Forward;
        let result = match self.fetch(mode, direction).await {
            Ok(false) => return None,
            Ok(true) => match self.hand_out(mode, direction).await {
                Ok((key, value)) => Ok(Salvaged::Row(key, value)),
                Err(error) if is_of_medium(&error) => {
                    let key = Bound::Included(self.side(direction).key(direction).to_vec());
                    self.side_mut(direction).pass(direction);
                    Ok(Salvaged::Gap(Gap { start: key.clone(), end: key, error }))
                }
                Err(error) => Err(error),
            },
            Err(error) if is_of_medium(&error) => self.pass_over_unreadable(mode, error).await,
            Err(error) => Err(error),
        };
        Some(self.ended_by(result))
    }

    /// Continues after the unreadable node that the next leaf depends on. Returns `error` if there is none.
    async fn pass_over_unreadable(&mut self, mode: WaitMode<'_>, error: Error) -> Result<Salvaged> {
        let key = match &self.lower {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) | Bound::Excluded(key) => key.clone(),
        };
        let Some(Unreadable { upper, error, .. }) = self.tree.unreadable(mode, &key).await? else {
            return Err(error);
        };
        let start = self.lower.clone();
        match upper {
            Some(upper) => {
                assert!(upper > key, "a scan goes on before where it was");
                self.lower = Bound::Included(upper);
                self.fetched_all = self.is_exhausted();
            }
            None => self.fetched_all = true,
        }
        let end = match &self.lower {
            Bound::Included(next) if !self.fetched_all => Bound::Excluded(next.clone()),
            _ => self.upper.clone(),
        };
        Ok(Salvaged::Gap(Gap { start, end, error }))
    }

    async fn next_key_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<Value>> {
        let key = self.fetch(mode, direction).await;
        let key = key.map(|_| self.side_mut(direction).take_key(direction)).transpose()?;
        Some(self.ended_by(key))
    }

    /// Returns the next row, which must exist, with its value as a stream.
    fn take_reader(&mut self, direction: Direction) -> (Value, ValueReader) {
        let rows = self.side(direction);
        let key = rows.key(direction);
        let content = match rows.value(direction) {
            Fetched::Inline(span) => Content::Copied(rows.part(span)),
            Fetched::Large(reference) => Content::Placed(reference),
            Fetched::Own(own) => Content::Own(own),
        };
        self.side_mut(direction).pass(direction);
        (key, ValueReader::new(&self.handle, &self.tree, Arc::clone(&self.snapshot), content))
    }

    async fn next_reader_in(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
    ) -> Option<Result<(Value, ValueReader)>> {
        let row = self.fetch(mode, direction).await;
        let row = row.map(|is_there| is_there.then(|| self.take_reader(direction))).transpose()?;
        Some(self.ended_by(row))
    }

    /// Passes on the result of a step. An error ends the scan at both ends.
    fn ended_by<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.fetched_all = true;
            self.front.clear();
            self.back.clear();
        }
        self.shortage.noting(result)
    }

    async fn count_rows(&mut self, mode: WaitMode<'_>) -> Result<u64> {
        let mut count = (self.front.len() + self.back.len()) as u64;
        while !self.fetched_all {
            self.want = Want::Count;
            count += self.copy_next(mode, Direction::Forward).await? as u64;
        }
        Ok(count)
    }
}

impl Steps for Range {
    type Item = (Value, Value);

    fn handle(&self) -> Option<Arc<Handle>> {
        match &self.0 {
            State::Scanning(scan) => Some(Arc::clone(&scan.handle)),
            State::Refused(_) => None,
        }
    }

    #[inline]
    fn at_hand(&mut self, direction: Direction) -> Option<(Value, Value)> {
        let State::Scanning(scan) = &mut self.0 else { return None };
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
                State::Scanning(scan) => scan.next_in(mode, direction).await,
                State::Refused(error) => error.take().map(Err),
            }
        })
    }
}

impl Iterator for Range {
    type Item = Result<(Value, Value)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        step_blocking(self, Direction::Forward)
    }
}

impl DoubleEndedIterator for Range {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        step_blocking(self, Direction::Backward)
    }
}

/// An iterator over the keys of a range, from both ends. It reads no values. Created by [`Range::keys`]; otherwise like
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
    fn at_hand(&mut self, direction: Direction) -> Option<Value> {
        let State::Scanning(scan) = &mut self.0.0 else { return None };
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

impl Iterator for Keys {
    type Item = Result<Value>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        step_blocking(self, Direction::Forward)
    }
}

impl DoubleEndedIterator for Keys {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        step_blocking(self, Direction::Backward)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys of {:?}", self.0)
    }
}

/// An iterator over the values of a range in key order, from both ends. Created by [`Range::values`]; otherwise like
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
    fn at_hand(&mut self, direction: Direction) -> Option<Value> {
        self.0.at_hand(direction).map(|(_, value)| value)
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

impl Iterator for Values {
    type Item = Result<Value>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        step_blocking(self, Direction::Forward)
    }
}

impl DoubleEndedIterator for Values {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        step_blocking(self, Direction::Backward)
    }
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Values of {:?}", self.0)
    }
}

/// An iterator over the rows of a range with their values as streams, from both ends. Created by [`Range::readers`];
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
    fn at_hand(&mut self, direction: Direction) -> Option<(Value, ValueReader)> {
        let State::Scanning(scan) = &mut self.0.0 else { return None };
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
                State::Scanning(scan) => scan.next_reader_in(mode, direction).await,
                State::Refused(error) => error.take().map(Err),
            }
        })
    }
}

impl Iterator for Readers {
    type Item = Result<(Value, ValueReader)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        step_blocking(self, Direction::Forward)
    }
}

impl DoubleEndedIterator for Readers {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        step_blocking(self, Direction::Backward)
    }
}

impl std::fmt::Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Readers of {:?}", self.0)
    }
}

/// An iterator over the readable rows of a range in key order and the gaps between them, for saving the rest of a
/// corrupted database. Created by [`Range::salvage`].
///
/// A corrupted leaf is one gap, a corrupted inner node is one gap for all leaves beneath it, and a corrupted large
/// value is one gap for its row. It costs as much as the range, plus O(log n) for each gap. The iterator ends after its
/// first error; unreadable pages are gaps, not errors.
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
    /// Like `next` of the iterator, for tasks; otherwise like [`Range::next_async`].
    pub async fn next_async(&mut self) -> Option<Result<Salvaged>> {
        match self.0.handle().as_ref().map(|handle| handle.store()) {
            Some(Ok(store)) => self.0.salvage_in(store.as_task().await).await,
            // This step never waits.
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

impl std::fmt::Debug for Salvage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Salvage of {:?}", self.0)
    }
}
