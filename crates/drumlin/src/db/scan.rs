//! Scans copy the rows of a leaf, read their values, and continue at the next leaf.
//!
//! A scan copies the rows of one leaf at a time and holds no latch between leaves. So it never blocks a writer while
//! its caller uses the rows, and splits and merges do not disturb it. It uses the fence of each leaf to find the next
//! one.

use std::future::Future;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::bounds::OwnedBounds;
use super::handle::Handle;
use super::leaf_copy::{self, CHANGES_BYTES_MAX, Copied, CopiedRows, Copier, Fetched, Want};
use super::salvage::{Gap, Salvaged};
use super::shortage::Shortage;
use super::value::Value;
use super::value_reader::{Content, ValueReader};
use crate::counts::{CountedTree, half_open};
use crate::error::{Error, Result};
use crate::format::{ChunkNumber, PageId};
use crate::memory::{Account, Grant};
use crate::pool::{Provider, Stop};
use crate::space::runs::Run;
use crate::store::read_ahead::{ReadAhead, RunAhead};
use crate::task::{Boxed, Rooted, WaitMode, turn};
use crate::tree::node::{EMPTY_LEAF, Leaf};
use crate::tree::{Direction, Target, Unreadable};
use crate::txn::old_rows::OldRows;
use crate::txn::read_set::SharedReads;
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::spilled::FetchedRows;
use crate::txn::spilled::writes::{OwnedChange, SpilledWindow};
use crate::txn::values::{UpcomingValues, ValuePart};
use crate::txn::write_set::{Change, SharedWrites, WriteSet};

/// A scan between two bounds, from either end or both.
pub(super) struct Scan {
    pub(super) handle: Arc<Handle>,
    tree: CountedTree,
    pub(super) snapshot: Arc<SnapshotHandle>,
    /// The newest commit that the reader has seen, if it reads the newest commits. If such a scan's snapshot is ended,
    /// the scan continues at a newer one.
    pub(super) latest: Option<Arc<AtomicU64>>,
    /// The bounds of the keys that have not been fetched yet.
    pub(super) lower: Bound<Vec<u8>>,
    pub(super) upper: Bound<Vec<u8>>,
    fetched_all: bool,
    /// The rows that were copied at either end. Once all rows have been copied, each end may also consume the rows that
    /// the opposite end has copied.
    front: CopiedRows,
    back: CopiedRows,
    /// The scanning transaction's own changes, if it has any within the bounds.
    own: Option<Arc<SharedWrites>>,
    /// The changes of the scanning transaction near the position of the scan, if some of its changes are spilled.
    window: Option<OwnWindow>,
    /// The read set of the scanning transaction, if it is serializable.
    reads: Option<SharedReads>,
    /// The shortage flag of the scanning transaction.
    pub(super) shortage: Shortage,
    ahead_forward: ReadAhead,
    ahead_backward: ReadAhead,
    ahead_in_runs: Vec<RunAhead>,
    upcoming: UpcomingValues,
    /// The rows that the next copy needs from its leaf.
    pub(super) want: Want,
    /// The maximum number of bytes of each value to read, if the rows are shown to a reducer.
    pub(super) reduced_bytes_max: Option<u64>,
    /// Memory for `front` and `back`. They use `front_bytes` and `back_bytes` of it.
    memory: Grant,
    front_bytes: u64,
    back_bytes: u64,
}

/// The maximum memory of the spilled changes that a scan has read.
const WINDOW_BYTES_MAX: u64 = if cfg!(feature = "sim") { 8 << 10 } else { 64 << 10 };

/// The changes of a transaction between two keys: from the lower one, inclusive, to the upper one, exclusive.
struct OwnWindow {
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    writes: WriteSet,
    _memory: Grant,
}

impl OwnWindow {
    /// Returns `true` if the window has the rows from `key` on, or before it. `None` stands for the end of the
    /// keyspace.
    fn covers(&self, key: Option<&[u8]>, direction: Direction) -> bool {
        let (lower, upper) = (self.lower.as_deref(), self.upper.as_deref());
        match (direction, key) {
            (Direction::Forward, None) => lower.is_none(),
            (Direction::Backward, None) => upper.is_none(),
            (Direction::Forward, Some(key)) => {
                lower.is_none_or(|lower| lower <= key) && upper.is_none_or(|upper| key < upper)
            }
            (Direction::Backward, Some(key)) => {
                lower.is_none_or(|lower| lower < key) && upper.is_none_or(|upper| key <= upper)
            }
        }
    }
}

/// Narrows two bounds to the keys from `lower`, inclusive, to `upper`, exclusive.
fn narrowed<'b>(
    bounds: (Bound<&'b [u8]>, Bound<&'b [u8]>),
    lower: Option<&'b [u8]>,
    upper: Option<&'b [u8]>,
) -> (Bound<&'b [u8]>, Bound<&'b [u8]>) {
    let lower = match (bounds.0, lower) {
        (Bound::Included(bound) | Bound::Excluded(bound), Some(lower)) if bound < lower => Bound::Included(lower),
        (Bound::Unbounded, Some(lower)) => Bound::Included(lower),
        (bound, _) => bound,
    };
    let upper = match (bounds.1, upper) {
        (Bound::Included(bound) | Bound::Excluded(bound), Some(upper)) if upper <= bound => Bound::Excluded(upper),
        (Bound::Unbounded, Some(upper)) => Bound::Excluded(upper),
        (bound, _) => bound,
    };
    (lower, upper)
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Turns a lower bound into the upper bound of all keys below it, and an upper bound into the lower bound of all keys
/// above it.
fn complement(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
    }
}

/// Returns the leaf at which a scan between two bounds begins.
fn first_leaf<'b>(direction: Direction, lower: &'b Bound<Vec<u8>>, upper: &'b Bound<Vec<u8>>) -> Target<'b> {
    match (direction, lower, upper) {
        (Direction::Forward, Bound::Unbounded, _) => Target::At(&[]),
        (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _) => Target::At(key),
        (Direction::Backward, _, Bound::Unbounded) => Target::Last,
        (Direction::Backward, _, Bound::Included(key)) => Target::At(key),
        (Direction::Backward, _, Bound::Excluded(key)) => Target::Below(key),
    }
}

/// The progress of copying one leaf's rows. It is retained across retries.
struct Copying {
    direction: Direction,
    want: Want,
    memory: Grant,
    /// The memory used by the rows that were copied at the opposite end.
    kept_bytes: u64,
    rows: CopiedRows,
    /// The spilled versions of the leaf's rows, once they have been fetched.
    fetched: Option<FetchedRows>,
}

/// The result of copying one leaf's rows.
struct CopyMade {
    copied: Copied,
    /// The leaf's fence in the direction of the scan.
    fence: Option<Bound<Vec<u8>>>,
    is_next_in_memory: bool,
    /// `true` if the leaf has further rows in the direction of the scan.
    stays: bool,
}

/// The outcome of one attempt to copy a leaf's rows.
enum Step {
    Copied(CopyMade),
    /// Versions of rows between these fences may have been spilled. They must be fetched first.
    Fetch(Option<Vec<u8>>, Option<Vec<u8>>),
    /// Versions were spilled during the copy, so it must be repeated.
    Again,
}

/// Returns `true` for a storage error. Other rows may still be readable after it.
fn is_of_medium(error: &Error) -> bool {
    matches!(error, Error::Corrupted { .. } | Error::Io { .. })
}

impl Scan {
    /// Begins a scan of a snapshot between bounds. `own` contains the scanning transaction's changes. `reads` is its
    /// read set if it is serializable.
    pub(super) fn new(
        handle: Arc<Handle>,
        tree: CountedTree,
        snapshot: Arc<SnapshotHandle>,
        (lower, upper): OwnedBounds,
        own: Option<Arc<SharedWrites>>,
        reads: Option<SharedReads>,
        shortage: Shortage,
    ) -> Scan {
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
            window: None,
            reads,
            shortage,
            ahead_forward: ReadAhead::new(Direction::Forward),
            ahead_backward: ReadAhead::new(Direction::Backward),
            ahead_in_runs: Vec::new(),
            upcoming: UpcomingValues::default(),
            want: Want::All,
            reduced_bytes_max: None,
            memory,
            front_bytes: 0,
            back_bytes: 0,
        };
        scan.fetched_all = scan.is_exhausted();
        scan
    }

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
        let (first, end) = half_open(lower, upper);
        reads.lock().add_interval(&self.tree, &first, end.as_deref())
    }

    /// Returns a copier for the rows that have not been copied yet.
    fn copier(&self, direction: Direction, want: Want) -> Copier<'_> {
        Copier {
            want,
            versions: &self.handle.store_here().engine.versions,
            keyspace: self.tree.pages.id,
            snapshot: self.snapshot.timestamp,
            bounds: self.bounds(),
            own: match &self.window {
                Some(window) => Some(&window.writes),
                None => self.own.as_ref().map(|own| &own.set),
            },
            direction,
        }
    }

    /// Returns the leaf as the scan's snapshot sees it. If a bulk load has filled the keyspace since the snapshot, this
    /// is an empty leaf.
    fn leaf_seen<'l>(&self, read: &'l [u8]) -> Leaf<'l> {
        Leaf::new(if self.tree.pages.load_gate.is_loaded_since(self.snapshot.timestamp) { &EMPTY_LEAF } else { read })
    }

    /// If the scan stands in a range that its own transaction has removed, moves it to the next row that the
    /// transaction has put into the range, or to the end of the range.
    fn skip_removed(&mut self, direction: Direction) -> Result<()> {
        let keyspace = self.tree.pages.id;
        let Some(writes) = self.own.as_ref().map(|own| &own.set) else { return Ok(()) };
        let Some(removed) = writes.removed(keyspace) else { return Ok(()) };
        let (lower, upper) = (as_slice(&self.lower), as_slice(&self.upper));
        let Some(range) = removed.around(first_leaf(direction, &self.lower, &self.upper)) else { return Ok(()) };
        let is_put = |(_, change): &(&[u8], Change<'_>)| !matches!(change, Change::Remove);
        let next = match direction {
            Direction::Forward => {
                let end = range.upper.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let own = writes.range(keyspace, (lower, end)).find(is_put);
                own.map(|(key, _)| key).or(range.upper.as_deref()).map(|key| Bound::Included(key.to_vec()))
            }
            Direction::Backward => {
                let own = writes.range(keyspace, (Bound::Included(&range.lower), upper)).rev().find(is_put);
                let own = own.map(|(key, _)| Bound::Included(key.to_vec()));
                Some(own.unwrap_or_else(|| Bound::Excluded(range.lower.clone())))
            }
        };
        let here = if direction == Direction::Forward { &self.lower } else { &self.upper };
        if next.as_ref() == Some(here) {
            return Ok(());
        }
        crate::coverage::mark!("a scan skipped a range that its transaction had removed");
        self.go_on_from(direction, next)
    }

    /// If a range delete hides all rows around the position of the scan, moves the scan past them.
    fn skip_hidden(&mut self, direction: Direction) -> Result<()> {
        if self.own.is_some() {
            return Ok(());
        }
        let target = first_leaf(direction, &self.lower, &self.upper);
        let Some(end) = self.tree.removed_around(target, direction, self.snapshot.timestamp) else { return Ok(()) };
        let bound = match direction {
            Direction::Forward => end.map(Bound::Included),
            Direction::Backward => end.map(Bound::Excluded),
        };
        let here = if direction == Direction::Forward { &self.lower } else { &self.upper };
        if bound.as_ref() == Some(here) {
            return Ok(());
        }
        crate::coverage::mark!("a scan skipped rows that a range delete had removed");
        self.go_on_from(direction, bound)
    }

    /// Copies the wanted rows of the next leaf. They replace the rows copied earlier at that end. Returns their number.
    async fn copy_leaf(&mut self, mode: WaitMode<'_>, direction: Direction) -> Result<usize> {
        mode.work(turn::LEAF_UNITS).await;
        self.skip_removed(direction)?;
        if !self.fetched_all && !self.tree.pages.runs.is_empty() {
            self.skip_hidden(direction)?;
        }
        if self.fetched_all {
            return Ok(0);
        }
        self.fill_window(mode, direction).await?;
        let want = std::mem::take(&mut self.want);
        let (memory, rows) = (self.take_memory(), std::mem::take(self.side_mut(direction)));
        let (ahead, kept_bytes) = match direction {
            Direction::Forward => (&mut self.ahead_forward, self.back_bytes),
            Direction::Backward => (&mut self.ahead_backward, self.front_bytes),
        };
        let target = first_leaf(direction, &self.lower, &self.upper);
        ahead.step(&self.handle.store()?.engine, &self.tree, PageId::ROOT, target, (&self.lower, &self.upper));
        if !self.tree.pages.runs.is_empty() {
            self.read_runs_ahead(direction)?;
        }
        let mut copying = Copying { direction, want, memory, kept_bytes, rows, fetched: None };
        let made = match self.try_copy(&mut copying, PageId::ROOT) {
            Ok(Step::Copied(made)) => made,
            stopped => self.copy_waiting(mode, &mut copying, stopped).await?,
        };
        let CopyMade { copied: Copied { count, bytes, stop }, fence, is_next_in_memory, stays } = made;
        let Copying { memory, rows, .. } = copying;
        mode.worked(turn::ROW_UNITS * count as u32);
        match direction {
            Direction::Forward => self.ahead_forward.count_next(is_next_in_memory, stays),
            Direction::Backward => self.ahead_backward.count_next(is_next_in_memory, stays),
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

    /// Prefetches leaves of the runs that the scan sees.
    #[cold]
    fn read_runs_ahead(&mut self, direction: Direction) -> Result<()> {
        let engine = &self.handle.store()?.engine;
        let target = first_leaf(direction, &self.lower, &self.upper);
        let list = self.tree.pages.runs.list();
        let is_seen = |run: &&Run| run.has_rows() && run.timestamp <= self.snapshot.timestamp && !run.has_freed(target);
        for run in list.iter().filter(is_seen) {
            let known = self.ahead_in_runs.iter().position(|ahead| ahead.is_of(run.root, direction));
            let index = known.unwrap_or_else(|| {
                self.ahead_in_runs.push(RunAhead::new(run.root, direction));
                self.ahead_in_runs.len() - 1
            });
            self.ahead_in_runs[index].step(engine, &self.tree, target, (&self.lower, &self.upper));
        }
        Ok(())
    }

    /// Descends from the page `from` to the next leaf, and copies its rows.
    fn try_copy(&self, copying: &mut Copying, from: PageId) -> Result<Step, Stop> {
        let Copying { direction, want, kept_bytes, ref mut memory, ref mut rows, ref mut fetched } = *copying;
        let (spilled, snapshot) = (&self.handle.store_here().engine.spilled, self.snapshot.timestamp);
        let target = first_leaf(direction, &self.lower, &self.upper);
        let (read, next) = self.tree.read_leaf_of_scan(from, target, direction)?;
        if let Some(next) = next {
            // Load the next leaf into the processor's cache while this leaf's rows are copied and used.
            self.tree.pool.frames.prefetch(next);
        }
        let leaf = self.leaf_seen(&read);
        if self.tree.has_runs_above(&leaf)
            && let Some(piece) = self.tree.piece(&leaf, target, direction, snapshot)?
        {
            let bounds = narrowed(self.bounds(), piece.lower.as_deref(), piece.upper.as_deref());
            let copier = Copier { bounds, ..self.copier(direction, want) };
            let rows_of = piece.page.leaf(&read);
            let copied = copier.copy(&rows_of, read.page(), memory, kept_bytes, OldRows::default(), rows);
            let copied = copied.map_err(Stop::Error)?;
            let fence = self.fence(direction, piece.lower.as_deref(), piece.upper.as_deref());
            let stays = match direction {
                Direction::Forward => piece.upper.as_deref() != leaf.upper_fence(),
                Direction::Backward => piece.lower.as_deref() != leaf.lower_fence(),
            };
            return Ok(Step::Copied(CopyMade { copied, fence, is_next_in_memory: next.is_some(), stays }));
        }
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
        let fence = self.fence(direction, lower, upper);
        // If versions were spilled during the copy, the copy may have missed them.
        let is_whole = !is_newer || spilled.published() == published;
        Ok(if is_whole {
            Step::Copied(CopyMade { copied, fence, is_next_in_memory: next.is_some(), stays: false })
        } else {
            Step::Again
        })
    }

    /// Returns the bounds of the keys that can be copied next.
    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let bounds = (as_slice(&self.lower), as_slice(&self.upper));
        match &self.window {
            Some(window) => narrowed(bounds, window.lower.as_deref(), window.upper.as_deref()),
            None => bounds,
        }
    }

    /// Returns the bound at which the scan continues after all rows between these fences have been copied.
    fn fence(&self, direction: Direction, lower: Option<&[u8]>, upper: Option<&[u8]>) -> Option<Bound<Vec<u8>>> {
        let window = self.window.as_ref();
        match direction {
            Direction::Forward => {
                let edge = window.and_then(|window| window.upper.as_deref());
                upper.into_iter().chain(edge).min().map(|fence| Bound::Included(fence.to_vec()))
            }
            Direction::Backward => {
                let edge = window.and_then(|window| window.lower.as_deref());
                lower.into_iter().chain(edge).max().map(|fence| Bound::Excluded(fence.to_vec()))
            }
        }
    }

    /// If the scanning transaction has spilled changes, reads those near the position of the scan.
    async fn fill_window(&mut self, mode: WaitMode<'_>, direction: Direction) -> Result<()> {
        let Some(own) = self.own.as_ref().filter(|own| !own.set.spilled().is_empty()) else { return Ok(()) };
        let position = match (direction, &self.lower, &self.upper) {
            (Direction::Forward, Bound::Unbounded, _) | (Direction::Backward, _, Bound::Unbounded) => None,
            (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _)
            | (Direction::Backward, _, Bound::Excluded(key)) => Some(key.clone()),
            (Direction::Backward, _, Bound::Included(key)) => Some([&key[..], &[0]].concat()),
        };
        if self.window.as_ref().is_some_and(|window| window.covers(position.as_deref(), direction)) {
            return Ok(());
        }
        let (spilled, keyspace) = (own.set.spilled().clone(), self.tree.pages.id);
        self.handle.store()?;
        let bytes_max = (self.memory.limit_bytes() / 16).min(WINDOW_BYTES_MAX) as usize;
        let read = move || spilled.window(keyspace, position.as_deref(), direction, bytes_max);
        let SpilledWindow { rows, lower, upper } = mode.run(read).await?;
        let mut writes = WriteSet::default();
        for (key, change) in rows {
            match change {
                None => {}
                Some(OwnedChange::Put(value)) => writes.put(&self.tree, &key, &value),
                Some(OwnedChange::PutLarge(number)) => {
                    writes.put_large(&self.tree, &key, Arc::clone(own.set.spilled_large(number)));
                }
                Some(OwnedChange::Remove) => writes.remove(&self.tree, &key),
            }
        }
        let within = narrowed((Bound::Unbounded, Bound::Unbounded), lower.as_deref(), upper.as_deref());
        for (key, change) in own.set.range(keyspace, within) {
            match change {
                Change::Put(value) => writes.put(&self.tree, key, value),
                Change::PutLarge(value) => writes.put_large(&self.tree, key, Arc::clone(value)),
                Change::Remove => writes.remove(&self.tree, key),
            }
        }
        let mut memory = self.memory.another();
        memory.take(writes.memory_bytes_with(&[], 0) as u64);
        self.window = Some(OwnWindow { lower, upper, writes, _memory: memory });
        Ok(())
    }

    /// Completes a copy that failed at the first attempt: faults in pages, fetches spilled versions, and retries.
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
                    Err(stop) => {
                        let provider = Provider::of_scan(mode, &self.tree.pool);
                        self.tree.pool.going_on(provider, stop, |from| self.try_copy(copying, from)).await?
                    }
                };
                match step {
                    Step::Copied(made) => return Ok(made),
                    Step::Again => {}
                    Step::Fetch(lower, upper) => {
                        let available_bytes =
                            leaf_copy::reserve(&mut copying.memory, copying.kept_bytes, CHANGES_BYTES_MAX)?;
                        let bounds = (as_slice(&self.lower), as_slice(&self.upper));
                        let (keyspace, fences, snapshot) =
                            (self.tree.pages.id, (lower, upper), self.snapshot.timestamp);
                        let spilled = &self.handle.store()?.engine.spilled;
                        let rows =
                            spilled.fetch(mode, keyspace, fences, bounds, snapshot, copying.direction, available_bytes);
                        copying.fetched = Some(rows.await?);
                    }
                }
                mode.work(turn::LEAF_UNITS).await;
                stopped = self.try_copy(copying, PageId::ROOT);
            }
        })
    }

    /// Like [`copy_leaf`](Self::copy_leaf), but if the snapshot has been ended and the scan may use a newer one,
    /// retries at a newer snapshot.
    async fn copy_next(&mut self, mode: WaitMode<'_>, direction: Direction) -> Result<usize> {
        loop {
            match self.copy_leaf(mode, direction).await {
                Err(Error::SnapshotTooOld { .. }) if self.renew()? => {}
                copied => return copied,
            }
        }
    }

    /// Opens a newer snapshot. Returns `false` if the scan must stay at its first snapshot.
    fn renew(&mut self) -> Result<bool> {
        let Some(seen) = &self.latest else { return Ok(false) };
        crate::coverage::mark!("a scan continued at a newer snapshot");
        self.snapshot = self.handle.store()?.open_published(seen);
        Ok(true)
    }

    /// Opens a newer snapshot and discards the rows that were copied but not returned, because their large values may
    /// have been freed. The scan will fetch these rows at the new snapshot. Returns `false` if the scan must stay at
    /// its first snapshot.
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

    /// Moves the scan's bound to `bound`, and records that the keys before it were read. `None` means that all keys
    /// were read.
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

    /// Takes the grant for the duration of a copy and leaves an empty grant in its place. The grant is returned
    /// together with the copied rows. If the copy fails, the empty grant remains.
    fn take_memory(&mut self) -> Grant {
        let nothing = self.memory.another();
        std::mem::replace(&mut self.memory, nothing)
    }

    /// Returns the copied rows at this end.
    #[inline]
    pub(super) fn side(&self, direction: Direction) -> &CopiedRows {
        match direction {
            Direction::Forward => &self.front,
            Direction::Backward => &self.back,
        }
    }

    #[inline]
    pub(super) fn side_mut(&mut self, direction: Direction) -> &mut CopiedRows {
        match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        }
    }

    /// Copies leaves until there is a next row. Returns `false` at the end of the range.
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

    /// Reads the value of the next row, which was not copied with its key, into `value`.
    #[inline(never)]
    fn read_value(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
        fetched: &Fetched,
        value: Vec<u8>,
    ) -> Rooted<impl Future<Output = Result<Vec<u8>>>> {
        Rooted::new(async move {
            // Check the handle first: a forked process must not read anything.
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

    /// Reads the value to show for the next row, replacing the content of `value`. For a reducer, reads only the prefix
    /// that the reducer needs, and returns the memory reserved for it.
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
                let part = ValuePart { start: 0, length: wanted as usize - prefix.len() };
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

    /// Returns the next row, which must exist. The scan advances past the row only after its value has been read, so
    /// dropping the call loses no row.
    async fn take_next(&mut self, mode: WaitMode<'_>, direction: Direction) -> Result<(Value, Value)> {
        let rows = self.side(direction);
        let key = rows.key(direction);
        let value = match rows.value(direction) {
            Fetched::Inline(span) => rows.part(span),
            elsewhere => self.read_value(mode, direction, &elsewhere, Vec::new()).await?.into(),
        };
        self.side_mut(direction).pass(direction);
        Ok((key, value))
    }

    pub(super) async fn next_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<(Value, Value)>> {
        loop {
            let result = match self.fetch(mode, direction).await {
                Ok(false) => return None,
                Ok(true) => self.take_next(mode, direction).await,
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

    /// Calls `look` with each remaining row until `look` returns `Break`.
    pub(super) async fn show_rows<B>(
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

    /// Like a forward `next_in`, but skips rows that cannot be read, and reports the gaps.
    pub(super) async fn salvage_in(&mut self, mode: WaitMode<'_>) -> Option<Result<Salvaged>> {
        let direction = Direction::Forward;
        let result = match self.fetch(mode, direction).await {
            Ok(false) => return None,
            Ok(true) => match self.take_next(mode, direction).await {
                Ok((key, value)) => Ok(Salvaged::Row(key, value)),
                Err(error) if is_of_medium(&error) => {
                    let key = Bound::Included(self.side(direction).key(direction).to_vec());
                    self.side_mut(direction).pass(direction);
                    Ok(Salvaged::Gap(Gap { start: key.clone(), end: key, error }))
                }
                Err(error) => Err(error),
            },
            Err(error) if is_of_medium(&error) => self.skip_unreadable(mode, error).await,
            Err(error) => Err(error),
        };
        Some(self.ended_by(result))
    }

    /// Moves the scan past the unreadable node on the path to the next leaf. Returns `error` if every node is readable.
    async fn skip_unreadable(&mut self, mode: WaitMode<'_>, error: Error) -> Result<Salvaged> {
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

    pub(super) async fn next_key_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<Value>> {
        let key = self.fetch(mode, direction).await;
        let key = key.map(|_| self.side_mut(direction).take_key(direction)).transpose()?;
        Some(self.ended_by(key))
    }

    /// Returns the next row, which must exist, with its value as a stream.
    pub(super) fn take_reader(&mut self, direction: Direction) -> (Value, ValueReader) {
        let rows = self.side(direction);
        let key = rows.key(direction);
        let content = match rows.value(direction) {
            Fetched::Inline(span) => Content::Copied(rows.part(span)),
            Fetched::Large(reference) => Content::Stored(reference),
            Fetched::Own(own) => Content::Own(own),
        };
        self.side_mut(direction).pass(direction);
        (key, ValueReader::new(&self.handle, &self.tree, Arc::clone(&self.snapshot), content))
    }

    pub(super) async fn next_reader_in(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
    ) -> Option<Result<(Value, ValueReader)>> {
        let row = self.fetch(mode, direction).await;
        let row = row.map(|is_there| is_there.then(|| self.take_reader(direction))).transpose()?;
        Some(self.ended_by(row))
    }

    /// Returns the result of a step unchanged. If it is an error, ends the scan at both ends.
    pub(super) fn ended_by<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.fetched_all = true;
            self.front.clear();
            self.back.clear();
        }
        self.shortage.noting(result)
    }

    pub(super) async fn count_rows(&mut self, mode: WaitMode<'_>) -> Result<u64> {
        let mut count = (self.front.len() + self.back.len()) as u64;
        while !self.fetched_all {
            self.want = Want::Count;
            count += self.copy_next(mode, Direction::Forward).await? as u64;
        }
        Ok(count)
    }
}
