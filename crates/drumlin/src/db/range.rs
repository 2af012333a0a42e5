//! Scans, forwards and backwards.
//!
//! A scan copies rows out of one leaf at a time and latches nothing in between, so it never blocks a writer, and splits
//! and merges do not disturb it. It finds the next leaf by the fence of the last one.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Bound;
use std::sync::Arc;

use super::Handle;
use super::bounds::OwnedBounds;
use super::leaf_copy::{Copier, Fetched, Row, Want};
use super::salvage::{Gap, Salvaged};
use super::shortage::Shortage;
use super::value::Value;
use crate::error::{Error, QuotedKey, Result};
use crate::memory::{Account, Grant};
use crate::pool::Stop;
use crate::store::read_ahead::ReadAhead;
use crate::task::{WaitMode, ready};
use crate::tree::node::{EMPTY_LEAF, Leaf};
use crate::tree::{Direction, Target, Tree, Unreadable};
use crate::txn::read_set::SharedReads;
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::values::UpcomingValues;
use crate::txn::write_set::SharedWrites;

/// The rows of a range in key order, as of one snapshot: an iterator from both ends.
///
/// Each step costs one row, and O(log n) at the end of a leaf. A scan copies up to a leaf's rows at once, beginning
/// with 16 KiB, and fewer while many scans share the sixteenth of the memory budget that is for their copies. If none
/// of it is left, a step fails with [`MemoryInUse`](Error::MemoryInUse). The [`Value`]s that it yields are not in the
/// budget, and each keeps all rows in memory that were copied with it. The iterator ends after its first error. Until
/// it is dropped, it keeps the database open, like any handle, and the versions that its snapshot needs.
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
    /// A scan that was refused: yields the error, then ends.
    Refused(Option<Error>),
}

struct Scan {
    handle: Arc<Handle>,
    tree: Tree,
    snapshot: Arc<SnapshotHandle>,
    /// The bounds of the keys that are left to fetch.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    fetched_all: bool,
    front: VecDeque<Row>,
    back: VecDeque<Row>,
    /// The scanning transaction's own changes, if there are any within the bounds.
    own: Option<Arc<SharedWrites>>,
    /// The read set of the scanning transaction, if it is serializable.
    reads: Option<SharedReads>,
    /// The scanning transaction's.
    shortage: Shortage,
    ahead_forward: ReadAhead,
    ahead_backward: ReadAhead,
    upcoming: UpcomingValues,
    /// The row being handed out, and the end that it is from.
    taken: Option<(Direction, Row)>,
    /// The rows that the next copy takes of its leaf.
    want: Want,
    /// Memory of `front` and `back`, which take `front_bytes` and `back_bytes`.
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

/// The position of the next leaf.
enum Next {
    From(Vec<u8>),
    Nowhere,
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
            lower,
            upper,
            fetched_all: false,
            front: VecDeque::new(),
            back: VecDeque::new(),
            own,
            reads,
            shortage,
            ahead_forward: ReadAhead::new(Direction::Forward),
            ahead_backward: ReadAhead::new(Direction::Backward),
            upcoming: UpcomingValues::default(),
            taken: None,
            want: Want::All,
            memory,
            front_bytes: 0,
            back_bytes: 0,
        };
        scan.fetched_all = scan.is_exhausted();
        Range(State::Scanning(Box::new(scan)))
    }

    /// A range that yields only this error.
    pub(crate) fn refused(error: Error) -> Range {
        Range(State::Refused(Some(error)))
    }

    /// Has the first copy take one row: for callers that want no more.
    pub(super) fn one_at_first(mut self) -> Range {
        if let State::Scanning(scan) = &mut self.0 {
            scan.want = Want::One;
        }
        self
    }

    /// The keys of the range, without reading values. Like the range otherwise.
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

    /// The values of the range. Like the range otherwise.
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

    /// The rows of the range that can be read, and the gaps between them. Like the range otherwise, but forwards only.
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

    /// The next row's key; the value is not read.
    pub(super) async fn next_key_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<Value>> {
        match &mut self.0 {
            State::Scanning(scan) => scan.next_key_in(mode, direction).await,
            State::Refused(error) => error.take().map(Err),
        }
    }

    /// The next row or gap.
    async fn salvage_in(&mut self, mode: WaitMode<'_>) -> Option<Result<Salvaged>> {
        match &mut self.0 {
            State::Scanning(scan) => scan.salvage_in(mode).await,
            State::Refused(error) => error.take().map(Err),
        }
    }

    /// Counts the remaining rows. O(leaves): visits each.
    pub(crate) async fn count_rows(self, mode: WaitMode<'_>) -> Result<u64> {
        match self.0 {
            State::Scanning(mut scan) => {
                let count = scan.count_rows(mode).await;
                scan.shortage.noting(count)
            }
            State::Refused(error) => error.map_or(Ok(0), Err),
        }
    }
}

/// Returns `true` if other rows may be readable.
fn is_of_medium(error: &Error) -> bool {
    matches!(error, Error::Corrupted { .. } | Error::Io { .. })
}

/// A scan of rows, or of their keys or values: what its blocking and asynchronous steps and its stream are made of.
pub(super) trait Steps {
    /// The part of a row that it yields.
    type Item;

    /// `None` for a refused range, which waits for nothing.
    fn handle(&self) -> Option<Arc<Handle>>;

    /// The next row, if it is copied already and needs no waiting.
    fn at_hand(&mut self) -> Option<Self::Item>;

    /// The next row, waiting as `mode` says. Dropping the future loses no row.
    fn next_in(
        &mut self,
        mode: WaitMode<'_>,
        direction: Direction,
    ) -> impl Future<Output = Option<Result<Self::Item>>> + Send;
}

/// The next step of a scan, as a task.
pub(super) async fn step<S: Steps>(scan: &mut S, direction: Direction) -> Option<Result<S::Item>> {
    match scan.handle().as_ref().map(|handle| handle.store()) {
        Some(Ok(store)) => scan.next_in(store.as_task(), direction).await,
        // It waits for nothing.
        None | Some(Err(_)) => ready(scan.next_in(WaitMode::Blocking, direction)),
    }
}

impl Scan {
    fn is_exhausted(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
            | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
            _ => false,
        }
    }

    /// Records that the keys between these bounds were read.
    fn record(&self, lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>) -> Result<()> {
        let Some(reads) = &self.reads else { return Ok(()) };
        // The smallest larger key.
        let behind = |key: &Vec<u8>| [&key[..], &[0]].concat();
        let first = match lower {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => behind(key),
        };
        let end = match upper {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(key.clone()),
        };
        reads.lock().add_interval(&self.tree, &first, end.as_deref())
    }

    /// Copies rows of the keys that are left to fetch.
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

    /// The leaf as the scan's snapshot sees it: before the keyspace's rows were loaded, it was one empty leaf.
    fn leaf_seen<'l>(&self, read: &'l [u8]) -> Leaf<'l> {
        Leaf::new(if self.tree.pages.is_loaded_since(self.snapshot.timestamp) { &EMPTY_LEAF } else { read })
    }

    /// Copies the rows of the next leaf into `front`, as far as they are wanted. Returns their number.
    async fn fetch_forward(&mut self, mode: WaitMode<'_>) -> Result<usize> {
        let engine = Arc::clone(&self.handle.store()?.engine);
        let key = match &self.lower {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) | Bound::Excluded(key) => key.clone(),
        };
        self.ahead_forward.step(&engine, &self.tree, Target::At(&key), (&self.lower, &self.upper));
        let want = std::mem::take(&mut self.want);
        let mut memory = self.take_memory();
        let fetched = self.tree.awaiting(mode, |from| -> Result<_, Stop> {
            let read = self.tree.read_leaf_from(from, Target::At(&key))?;
            let leaf = self.leaf_seen(&read);
            let fence = leaf.upper_fence().map(<[u8]>::to_vec);
            let copied =
                self.copier(Direction::Forward, want).copy(&leaf, read.page(), &mut memory, self.back_bytes)?;
            Ok((copied, fence.map_or(Next::Nowhere, Next::From)))
        });
        let (copied, next) = fetched.await?;
        self.snapshot.check()?;
        match (copied.stop, next) {
            (Some(stop), _) => {
                let lower = std::mem::replace(&mut self.lower, Bound::Excluded(stop.clone()));
                self.fetched_all = self.is_exhausted();
                self.record(&lower, &Bound::Included(stop))?;
            }
            (None, Next::From(fence)) => {
                let lower = std::mem::replace(&mut self.lower, Bound::Included(fence.clone()));
                self.fetched_all = self.is_exhausted();
                let below_fence = Bound::Excluded(fence);
                self.record(&lower, if self.fetched_all { &self.upper } else { &below_fence })?;
            }
            (None, Next::Nowhere) => {
                self.fetched_all = true;
                self.record(&self.lower, &self.upper)?;
            }
        }
        (self.front, self.front_bytes, self.memory) = (copied.rows, copied.bytes, memory);
        Ok(copied.count)
    }

    /// Takes the grant, which returns together with the copied rows: a call that ends otherwise leaves an empty one.
    fn take_memory(&mut self) -> Grant {
        let nothing = self.memory.another();
        std::mem::replace(&mut self.memory, nothing)
    }

    async fn fetch_backward(&mut self, mode: WaitMode<'_>) -> Result<()> {
        let engine = Arc::clone(&self.handle.store()?.engine);
        let upper = self.upper.clone();
        let target = match &upper {
            Bound::Unbounded => Target::Last,
            Bound::Included(key) => Target::At(key),
            Bound::Excluded(key) if key.is_empty() => {
                self.fetched_all = true;
                return Ok(());
            }
            Bound::Excluded(key) => Target::Below(key),
        };
        self.ahead_backward.step(&engine, &self.tree, target, (&self.lower, &self.upper));
        let want = std::mem::take(&mut self.want);
        let mut memory = self.take_memory();
        let fetched = self.tree.awaiting(mode, |from| -> Result<_, Stop> {
            let read = self.tree.read_leaf_from(from, target)?;
            let leaf = self.leaf_seen(&read);
            let fence = leaf.lower_fence().map(<[u8]>::to_vec);
            let copied =
                self.copier(Direction::Backward, want).copy(&leaf, read.page(), &mut memory, self.front_bytes)?;
            Ok((copied, fence.map_or(Next::Nowhere, Next::From)))
        });
        let (copied, next) = fetched.await?;
        self.snapshot.check()?;
        match (copied.stop, next) {
            (Some(stop), _) => {
                let upper = std::mem::replace(&mut self.upper, Bound::Excluded(stop.clone()));
                self.fetched_all = self.is_exhausted();
                self.record(&Bound::Included(stop), &upper)?;
            }
            (None, Next::From(fence)) => {
                let upper = std::mem::replace(&mut self.upper, Bound::Excluded(fence.clone()));
                self.fetched_all = self.is_exhausted();
                let from_fence = Bound::Included(fence);
                self.record(if self.fetched_all { &self.lower } else { &from_fence }, &upper)?;
            }
            (None, Next::Nowhere) => {
                self.fetched_all = true;
                self.record(&self.lower, &self.upper)?;
            }
        }
        (self.back, self.back_bytes, self.memory) = (copied.rows, copied.bytes, memory);
        Ok(())
    }

    async fn hand_out(&mut self, mode: WaitMode<'_>, direction: Direction, row: &Row) -> Result<(Value, Value)> {
        let key = Value::part(&row.rows, row.key.clone());
        let value = match &row.value {
            Fetched::Inline(span) => Value::part(&row.rows, span.clone()),
            Fetched::Large(reference) => {
                // Before anything is read: a fork must not.
                let handle = Arc::clone(&self.handle);
                let store = handle.store()?;
                let first = std::iter::once(*reference);
                let (front, back) = (self.front.iter(), self.back.iter().rev());
                match direction {
                    Direction::Forward => {
                        self.upcoming.step(mode, &self.tree, first.chain(front.filter_map(Row::reference))).await;
                    }
                    Direction::Backward => {
                        self.upcoming.step(mode, &self.tree, first.chain(back.filter_map(Row::reference))).await;
                    }
                }
                store.read_large(mode, &self.tree, reference, &self.snapshot, Vec::new()).await?.into()
            }
            Fetched::Own(value) => {
                let store = self.handle.store()?;
                store.read_own(mode, &self.tree, value, &self.snapshot, Vec::new()).await?.into()
            }
        };
        Ok((key, value))
    }

    /// Takes the next row, fetching more if none is there.
    async fn step(&mut self, mode: WaitMode<'_>, direction: Direction) -> Result<Option<Row>> {
        loop {
            let row = match direction {
                Direction::Forward => self.front.pop_front(),
                Direction::Backward => self.back.pop_back(),
            };
            if row.is_some() {
                return Ok(row);
            }
            if self.fetched_all {
                return Ok(match direction {
                    Direction::Forward => self.back.pop_front(),
                    Direction::Backward => self.front.pop_back(),
                });
            }
            match direction {
                Direction::Forward => drop(self.fetch_forward(mode).await?),
                Direction::Backward => self.fetch_backward(mode).await?,
            }
        }
    }

    async fn next_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<(Value, Value)>> {
        self.put_back();
        let result = match self.step(mode, direction).await {
            Ok(None) => return None,
            Ok(Some(row)) => {
                let (_, row) = self.taken.insert((direction, row));
                let row = row.clone();
                self.hand_out(mode, direction, &row).await
            }
            Err(error) => Err(error),
        };
        self.taken = None;
        self.ended_by(result)
    }

    /// Like `next_in` forwards, but passes over what can't be read.
    async fn salvage_in(&mut self, mode: WaitMode<'_>) -> Option<Result<Salvaged>> {
        self.put_back();
        let result = match self.step(mode, Direction::Forward).await {
            Ok(None) => return None,
            Ok(Some(row)) => {
                let (_, row) = self.taken.insert((Direction::Forward, row));
                let row = row.clone();
                match self.hand_out(mode, Direction::Forward, &row).await {
                    Ok((key, value)) => Ok(Salvaged::Row(key, value)),
                    Err(error) if is_of_medium(&error) => {
                        let key = Bound::Included(Value::part(&row.rows, row.key.clone()).to_vec());
                        Ok(Salvaged::Gap(Gap { start: key.clone(), end: key, error }))
                    }
                    Err(error) => Err(error),
                }
            }
            Err(error) if is_of_medium(&error) => self.pass_over_unreadable(mode, error).await,
            Err(error) => Err(error),
        };
        self.taken = None;
        self.ended_by(result)
    }

    /// Goes on behind the node that the next leaf can't be read without; `error` if there is none.
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
        self.put_back();
        let row = self.step(mode, direction).await;
        let key = row.map(|row| row.map(|row| Value::part(&row.rows, row.key))).transpose()?;
        self.ended_by(key)
    }

    /// The next row, key and value, if it is copied already with its value.
    #[inline]
    fn at_hand(&mut self) -> Option<(Value, Value)> {
        if self.taken.is_none()
            && let Some(Row { value: Fetched::Inline(_), .. }) = self.front.front()
            && let Some(Row { rows, key, value: Fetched::Inline(span) }) = self.front.pop_front()
        {
            return Some((Value::part(&rows, key), Value::part_of(rows, span)));
        }
        None
    }

    /// Puts back the row of a call that was dropped on its way.
    fn put_back(&mut self) {
        match self.taken.take() {
            Some((Direction::Forward, row)) => self.front.push_front(row),
            Some((Direction::Backward, row)) => self.back.push_back(row),
            None => {}
        }
    }

    /// The result of a step; an error ends the scan.
    fn ended_by<T>(&mut self, result: Result<T>) -> Option<Result<T>> {
        if result.is_err() {
            self.end();
        }
        Some(self.shortage.noting(result))
    }

    /// Ends the scan from both ends.
    fn end(&mut self) {
        self.fetched_all = true;
        self.front.clear();
        self.back.clear();
    }

    async fn count_rows(&mut self, mode: WaitMode<'_>) -> Result<u64> {
        let mut count = (self.front.len() + self.back.len()) as u64;
        while !self.fetched_all {
            self.want = Want::Count;
            count += self.fetch_forward(mode).await? as u64;
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
    fn at_hand(&mut self) -> Option<(Value, Value)> {
        let State::Scanning(scan) = &mut self.0 else { return None };
        scan.at_hand()
    }

    async fn next_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<(Value, Value)>> {
        match &mut self.0 {
            State::Scanning(scan) => scan.next_in(mode, direction).await,
            State::Refused(error) => error.take().map(Err),
        }
    }
}

impl Iterator for Range {
    type Item = Result<(Value, Value)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        // The usual case: a row that is copied already.
        if let State::Scanning(scan) = &mut self.0
            && let Some(row) = scan.at_hand()
        {
            return Some(Ok(row));
        }
        ready(self.next_in(WaitMode::Blocking, Direction::Forward))
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        ready(self.next_in(WaitMode::Blocking, Direction::Backward))
    }
}

/// The keys of a range: an iterator from both ends. Values are not read. Made by [`Range::keys`]; otherwise like
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
    fn at_hand(&mut self) -> Option<Value> {
        self.0.at_hand().map(|(key, _)| key)
    }

    async fn next_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<Value>> {
        self.0.next_key_in(mode, direction).await
    }
}

impl Iterator for Keys {
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        ready(self.next_in(WaitMode::Blocking, Direction::Forward))
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        ready(self.next_in(WaitMode::Blocking, Direction::Backward))
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys of {:?}", self.0)
    }
}

/// The values of a range, in the order of their keys: an iterator from both ends. Made by [`Range::values`]; otherwise
/// like [`Range`].
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
    fn at_hand(&mut self) -> Option<Value> {
        self.0.at_hand().map(|(_, value)| value)
    }

    async fn next_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<Value>> {
        self.0.next_in(mode, direction).await.map(|row| row.map(|(_, value)| value))
    }
}

impl Iterator for Values {
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|row| row.map(|(_, value)| value))
    }
}

impl DoubleEndedIterator for Values {
    fn next_back(&mut self) -> Option<Self::Item> {
        ready(self.next_in(WaitMode::Blocking, Direction::Backward))
    }
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Values of {:?}", self.0)
    }
}

/// The rows of a range that can be read, in key order, and the gaps between them: for saving what is left of a
/// corrupted database. Made by [`Range::salvage`].
///
/// A corrupted leaf is one gap, a corrupted inner node one for all leaves beneath it, and a corrupted large value one
/// for its row. Costs what the range costs, and O(log n) a gap. The iterator ends after its first error; pages that
/// can't be read are none.
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
    /// Like `next` of the iterator; otherwise like [`Range::next_async`].
    pub async fn next_async(&mut self) -> Option<Result<Salvaged>> {
        match self.0.handle().as_ref().map(|handle| handle.store()) {
            Some(Ok(store)) => self.0.salvage_in(store.as_task()).await,
            // It waits for nothing.
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
