//! Scans, forwards and backwards.
//!
//! A scan copies rows out of one leaf at a time and latches nothing in between, so it never blocks a writer, and splits
//! and merges do not disturb it. It finds the next leaf by the fence of the last one.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::ops::{Bound, Range as Span, RangeBounds};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Handle;
use super::value::Value;
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::memory::{Account, Grant, heap_bytes};
use crate::pool::Stop;
use crate::store::Store;
use crate::store::read_ahead::ReadAhead;
use crate::task::{WaitMode, ready};
use crate::tree::node::{Leaf, RowValue};
use crate::tree::{Direction, Target, Tree};
use crate::txn::engine::Engine;
use crate::txn::read_set::SharedReads;
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::values::{self, LargeValue, Part};
use crate::txn::versions::OldVersion;
use crate::txn::write_set::{Change, SharedWrites};

/// The rows of a range in key order, as of one snapshot: an iterator from both ends.
///
/// Each step costs one row, and O(log n) at the end of a leaf. A scan copies up to a leaf's rows at once, beginning
/// with 16 KiB, and fewer while many scans share the sixteenth of the memory budget that is for their copies. If none
/// of it is left, a step fails with [`MemoryInUse`](Error::MemoryInUse). The [`Value`]s that it yields are not in the
/// budget, and each keeps all rows in memory that were copied with it. The iterator ends after its first error. Until
/// it is dropped, it keeps the database open, like any handle, and the versions that its snapshot needs.
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
    ahead_forward: ReadAhead,
    ahead_backward: ReadAhead,
    /// The row being handed out, and the end that it is from.
    taken: Option<(Direction, Row)>,
    /// Memory of `front` and `back`, which take `front_bytes` and `back_bytes`.
    memory: Grant,
    front_bytes: u64,
    back_bytes: u64,
}

/// Memory of a row besides its bytes: as it is collected and as it is kept.
const ROW_BYTES: usize = size_of::<Row>() + size_of::<(Span<u32>, Fetched)>();
/// The least that a scan copies at once, unless a single row is larger.
const BATCH_BYTES_MIN: u64 = 1 << 10;
/// The most that a new scan copies at once while no others have memory; each leaf raises it by as much again. Pages of
/// up to 8 KiB are copied whole.
const BATCH_BYTES_FIRST: u64 = 16 << 10;
/// The most that it copies at once of its transaction's own changes, and of old versions.
const CHANGES_BYTES_MAX: usize = 64 << 10;

#[derive(Clone)]
struct Row {
    rows: Arc<Vec<u8>>,
    key: Span<u32>,
    value: Fetched,
}

#[derive(Clone)]
enum Fetched {
    Inline(Span<u32>),
    Large(LargeRef),
    /// Put by the scanning transaction: written to extents, but in no page table before the commit.
    Own(Arc<LargeValue>),
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            State::Scanning(scan) => {
                write!(f, "Range({:?} to {:?} at {})", scan.lower, scan.upper, scan.snapshot.timestamp)
            }
            State::Refused(error) => write!(f, "Range({error:?})"),
        }
    }
}

/// Rows copied out of a leaf.
struct Batch {
    rows: Vec<u8>,
    spans: Vec<(Span<u32>, Fetched)>,
}

impl Batch {
    fn keep(&mut self, bytes: &[u8]) -> Span<u32> {
        let start = self.rows.len() as u32;
        self.rows.extend_from_slice(bytes);
        start..self.rows.len() as u32
    }

    fn push(&mut self, prefix: &[u8], suffix: &[u8], value: RowValue<'_>) {
        let start = self.rows.len() as u32;
        self.rows.extend_from_slice(prefix);
        self.rows.extend_from_slice(suffix);
        let key = start..self.rows.len() as u32;
        let value = match value {
            RowValue::Inline(value) => Fetched::Inline(self.keep(value)),
            RowValue::Large(reference) => Fetched::Large(reference),
        };
        self.spans.push((key, value));
    }

    fn push_old(&mut self, key: &[u8], was: &OldVersion) {
        match was {
            OldVersion::Absent => {}
            OldVersion::Inline(value) => self.push(key, &[], RowValue::Inline(value)),
            OldVersion::Large(reference) => self.push(key, &[], RowValue::Large(*reference)),
        }
    }

    /// The heap memory of the batch.
    fn memory_bytes(&self) -> u64 {
        (self.rows.capacity() + self.spans.capacity() * ROW_BYTES) as u64
    }

    fn finish(self) -> VecDeque<Row> {
        let rows = Arc::new(self.rows);
        self.spans.into_iter().map(|(key, value)| Row { rows: Arc::clone(&rows), key, value }).collect()
    }
}

/// The rows copied from a leaf.
struct Copied {
    rows: VecDeque<Row>,
    bytes: u64,
    /// The last copied key, if the leaf has more rows.
    stop: Option<Vec<u8>>,
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Returns `true` if a range that ends at `fence` ends before one that ends at `upper`.
fn is_below(fence: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(upper) | Bound::Excluded(upper) => fence <= upper,
    }
}

/// Returns `true` if a range that begins at `fence` begins after one that begins at `lower`.
fn is_above(fence: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Unbounded => true,
        Bound::Included(lower) | Bound::Excluded(lower) => fence > lower,
    }
}

fn inline_bytes(value: &RowValue<'_>) -> usize {
    if let RowValue::Inline(value) = value { value.len() } else { 0 }
}

/// The position of the next leaf.
enum Next {
    From(Vec<u8>),
    Nowhere,
}

impl Range {
    pub(crate) fn new(
        handle: Arc<Handle>,
        tree: Tree,
        snapshot: Arc<SnapshotHandle>,
        bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
        own: Option<Arc<SharedWrites>>,
        reads: Option<SharedReads>,
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
            ahead_forward: ReadAhead::new(Direction::Forward),
            ahead_backward: ReadAhead::new(Direction::Backward),
            taken: None,
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

    /// Returns `None` for a refused range, which waits for nothing.
    pub(crate) fn handle(&self) -> Option<Arc<Handle>> {
        match &self.0 {
            State::Scanning(scan) => Some(Arc::clone(&scan.handle)),
            State::Refused(_) => None,
        }
    }

    /// The body of [`next`](Iterator::next) and [`next_back`](DoubleEndedIterator::next_back), waiting as `mode` says.
    /// Dropping the future loses no row.
    pub(crate) async fn next_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<(Value, Value)>> {
        match &mut self.0 {
            State::Scanning(scan) => scan.next_in(mode, direction).await,
            State::Refused(error) => error.take().map(Err),
        }
    }

    /// Counts the remaining rows. O(rows): visits every leaf.
    pub(crate) async fn count_rows(self, mode: WaitMode<'_>) -> Result<u64> {
        match self.0 {
            State::Scanning(mut scan) => scan.count_rows(mode).await,
            State::Refused(error) => error.map_or(Ok(0), Err),
        }
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

    /// The rows of the leaf that lie within what is left to fetch, as the scan's moment saw them: those next to its
    /// end, as many as there is `memory` for beside `kept_bytes`.
    fn copy_rows(
        &self,
        leaf: &Leaf<'_>,
        page: crate::format::PageId,
        direction: Direction,
        memory: &mut Grant,
        kept_bytes: u64,
    ) -> Result<Copied> {
        let forward = direction == Direction::Forward;
        let at = |bound: Bound<&[u8]>, start: bool| match bound {
            Bound::Unbounded if start => 0,
            Bound::Unbounded => leaf.len(),
            Bound::Included(key) if start => leaf.lower_bound(key),
            Bound::Excluded(key) if !start => leaf.lower_bound(key),
            Bound::Included(key) | Bound::Excluded(key) => match leaf.search(key) {
                Ok(index) => index + 1,
                Err(index) => index,
            },
        };
        let (mut lower, mut upper) = (as_slice(&self.lower), as_slice(&self.upper));
        let (mut start, mut end) = (at(lower, true), at(upper, false));
        end = end.max(start);
        let bytes_of_all = leaf.live_bytes() + (end - start) * (leaf.prefix().len() + ROW_BYTES);
        let own_bytes = if self.own.is_some() { CHANGES_BYTES_MAX } else { 0 };
        let is_newer = leaf.newest() > self.snapshot.timestamp;
        let old_bytes = if is_newer { CHANGES_BYTES_MAX } else { 0 };
        let mut room = Self::secure(memory, kept_bytes, bytes_of_all + own_bytes + old_bytes)?;

        // What does not fit is left for later. `nearest` keeps the nearer of two ends.
        let mut stop: Option<Vec<u8>> = None;
        let nearest = |stop: &mut Option<Vec<u8>>, last: Vec<u8>| {
            if stop.as_ref().is_none_or(|stop| if forward { last < *stop } else { last > *stop }) {
                *stop = Some(last);
            }
        };
        let mut key = Vec::new();
        let mut old = BTreeMap::new();
        if is_newer {
            // What rows were is there beside the copies of them.
            room /= 2;
            // Bounds of what is left to fetch: the leaf's rows are within its own.
            let versions = &self.handle.store_here().engine.versions;
            let (of, at) = ((self.tree.pages.id, page), self.snapshot.timestamp);
            let found = versions.rows_at(of, at, (lower, upper), direction, room.min(CHANGES_BYTES_MAX));
            found.last.into_iter().for_each(|last| nearest(&mut stop, last));
            old = found.rows;
        }
        if bytes_of_all > room {
            let mut bytes = 0;
            let order: &mut dyn Iterator<Item = usize> =
                if forward { &mut (start..end) } else { &mut (start..end).rev() };
            for index in order {
                leaf.key_into(index, &mut key);
                bytes += key.len() + ROW_BYTES + inline_bytes(&leaf.value(index));
                let is_last = if forward { index + 1 == end } else { index == start };
                if bytes >= room && !is_last {
                    nearest(&mut stop, std::mem::take(&mut key));
                    break;
                }
            }
        }
        let mut own: BTreeMap<&[u8], Change<'_>> = BTreeMap::new();
        if let Some(writes) = &self.own {
            // Bounds of what is left to fetch and of the leaf.
            let within = match (forward, leaf.upper_fence(), leaf.lower_fence()) {
                (true, Some(fence), _) if is_below(fence, upper) => (lower, Bound::Excluded(fence)),
                (false, _, Some(fence)) if is_above(fence, lower) => (Bound::Included(fence), upper),
                _ => (lower, upper),
            };
            let mut changes = writes.set.range(self.tree.pages.id, within);
            let mut bytes = 0;
            while let Some((key, change)) = if forward { changes.next() } else { changes.next_back() } {
                if bytes >= room.min(CHANGES_BYTES_MAX) {
                    let last = if forward { own.keys().next_back() } else { own.keys().next() };
                    nearest(&mut stop, last.expect("of some bytes").to_vec());
                    break;
                }
                bytes += key.len() + ROW_BYTES + if let Change::Put(value) = change { value.len() } else { 0 };
                own.insert(key, change);
            }
        }
        if let Some(stop) = &stop {
            if forward {
                upper = Bound::Included(stop);
            } else {
                lower = Bound::Included(stop);
            }
            (start, end) = (at(lower, true), at(upper, false));
            end = end.max(start);
            own.retain(|key, _| (lower, upper).contains(*key));
        }

        let mut batch = Batch { rows: Vec::new(), spans: Vec::new() };
        let is_plain = old.is_empty() && own.is_empty();
        if is_plain {
            if stop.is_none() {
                batch.rows.reserve_exact(leaf.live_bytes() + (end - start) * leaf.prefix().len());
            }
            batch.spans.reserve_exact(end - start);
            for index in start..end {
                let (suffix, value) = leaf.row(index);
                batch.push(leaf.prefix(), suffix, value);
            }
        } else {
            // The slow way: rows, what they were, and what the transaction made of them, merged by key.
            let mut old = old.into_iter().filter(|(key, _)| (lower, upper).contains(&key[..])).peekable();
            let mut own = own.into_iter().peekable();
            let mut index = start;
            loop {
                let in_leaf = (index < end).then(|| {
                    leaf.key_into(index, &mut key);
                    &key[..]
                });
                let in_old = old.peek().map(|(key, _)| &key[..]);
                let in_own = own.peek().map(|(key, _)| *key);
                let Some(next) = [in_leaf, in_old, in_own].into_iter().flatten().min() else { break };
                let [is_in_leaf, is_in_old, is_in_own] = [in_leaf, in_old, in_own].map(|key| key == Some(next));
                let next = next.to_vec();
                let was = if is_in_old { old.next() } else { None };
                match (if is_in_own { own.next() } else { None }, was) {
                    (Some((_, Change::Remove)), _) => {}
                    (Some((_, Change::Put(value))), _) => batch.push(&next, &[], RowValue::Inline(value)),
                    (Some((_, Change::PutLarge(value))), _) => {
                        let span = batch.keep(&next);
                        batch.spans.push((span, Fetched::Own(Arc::clone(value))));
                    }
                    (None, Some((_, was))) => batch.push_old(&next, &was),
                    (None, None) => batch.push(&next, &[], leaf.value(index)),
                }
                index += usize::from(is_in_leaf);
            }
        }
        if bytes_of_all > room || !is_plain {
            batch.rows.shrink_to_fit();
            batch.spans.shrink_to_fit();
        }
        let bytes = batch.memory_bytes();
        let needed = kept_bytes + bytes;
        // Not for every leaf: the part is shared by all scans.
        let is_much = memory.bytes() > needed + needed / 2;
        if !(if is_much { memory.resize(needed) } else { memory.cover(needed) }) {
            return Err(Error::copies_in_memory(memory.limit_bytes()));
        }
        Ok(Copied { rows: batch.finish(), bytes, stop })
    }

    /// Reserves up to `wanted` bytes beside `kept_bytes`; returns how many there are.
    fn secure(memory: &mut Grant, kept_bytes: u64, wanted: usize) -> Result<usize> {
        // A call that was dropped half-way has released the memory of its rows.
        if !memory.cover(kept_bytes) {
            return Err(Error::copies_in_memory(memory.limit_bytes()));
        }
        let room = memory.bytes() - kept_bytes;
        if room >= wanted as u64 {
            return Ok(room as usize);
        }
        let alone = BATCH_BYTES_FIRST.min(memory.limit_bytes() / 8);
        let more = memory.cover_share(BATCH_BYTES_MIN, wanted as u64 - room, alone);
        match room + more.unwrap_or(0) {
            0 => Err(Error::copies_in_memory(memory.limit_bytes())),
            room => Ok(room as usize),
        }
    }

    async fn fetch_forward(&mut self, mode: WaitMode<'_>) -> Result<()> {
        let engine = Arc::clone(&self.handle.store()?.engine);
        let key = match &self.lower {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) | Bound::Excluded(key) => key.clone(),
        };
        self.ahead_forward.step(&engine, &self.tree, Target::At(&key), (&self.lower, &self.upper));
        let mut memory = self.take_memory();
        let fetched = self.tree.awaiting(mode, || -> Result<_, Stop> {
            let read = self.tree.read_leaf(Target::At(&key))?;
            let leaf = Leaf::new(&read);
            let fence = leaf.upper_fence().map(<[u8]>::to_vec);
            let copied = self.copy_rows(&leaf, read.page(), Direction::Forward, &mut memory, self.back_bytes)?;
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
        Ok(())
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
        let mut memory = self.take_memory();
        let fetched = self.tree.awaiting(mode, || -> Result<_, Stop> {
            let read = self.tree.read_leaf(target)?;
            let leaf = Leaf::new(&read);
            let fence = leaf.lower_fence().map(<[u8]>::to_vec);
            let copied = self.copy_rows(&leaf, read.page(), Direction::Backward, &mut memory, self.front_bytes)?;
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

    async fn hand_out(&self, mode: WaitMode<'_>, row: &Row) -> Result<(Value, Value)> {
        let key = Value::part(&row.rows, row.key.clone());
        let value = match &row.value {
            Fetched::Inline(span) => Value::part(&row.rows, span.clone()),
            Fetched::Large(reference) => {
                self.handle.store()?.read_large(mode, &self.tree, reference, &self.snapshot).await?.into()
            }
            Fetched::Own(value) => self.handle.store()?.read_own(mode, &self.tree, value, &self.snapshot).await?.into(),
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
                Direction::Forward => self.fetch_forward(mode).await?,
                Direction::Backward => self.fetch_backward(mode).await?,
            }
        }
    }

    async fn next_in(&mut self, mode: WaitMode<'_>, direction: Direction) -> Option<Result<(Value, Value)>> {
        match self.taken.take() {
            Some((Direction::Forward, row)) => self.front.push_front(row),
            Some((Direction::Backward, row)) => self.back.push_back(row),
            None => {}
        }
        let result = match self.step(mode, direction).await {
            Ok(None) => return None,
            Ok(Some(row)) => {
                let (_, row) = self.taken.insert((direction, row));
                let row = row.clone();
                self.hand_out(mode, &row).await
            }
            Err(error) => Err(error),
        };
        self.taken = None;
        if result.is_err() {
            self.end();
        }
        Some(result)
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
            self.fetch_forward(mode).await?;
            count += self.front.len() as u64;
        }
        Ok(count)
    }
}

impl Iterator for Range {
    type Item = Result<(Value, Value)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        // The usual case: a row that is copied already.
        if let State::Scanning(scan) = &mut self.0
            && scan.taken.is_none()
            && let Some(Row { value: Fetched::Inline(_), .. }) = scan.front.front()
            && let Some(Row { rows, key, value: Fetched::Inline(span) }) = scan.front.pop_front()
        {
            return Some(Ok((Value::part(&rows, key), Value::part(&rows, span))));
        }
        ready(self.next_in(WaitMode::Blocking, Direction::Forward))
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        ready(self.next_in(WaitMode::Blocking, Direction::Backward))
    }
}

/// The bounds of all keys with a prefix.
pub(crate) fn prefix_bounds(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return (Bound::Included(prefix.to_vec()), Bound::Excluded(end));
        }
    }
    (Bound::Included(prefix.to_vec()), Bound::Unbounded)
}

/// The bytes of a large value as a stream: `Read` and `Seek`. Keeps the database open, like any handle.
///
/// Keeps up to 256 KiB in memory, and less while many readers and scans share their sixteenth of the budget: then each
/// reads the same 256 KiB chunks again, for smaller parts of them. If no memory is left for a reader, reading fails
/// with [`MemoryInUse`](Error::MemoryInUse) in the [`std::io::Error`], and can be tried again once others have been
/// dropped.
pub struct ValueReader {
    handle: Arc<Handle>,
    tree: Tree,
    snapshot: Arc<SnapshotHandle>,
    content: Content,
    position: u64,
    piece: Option<Piece>,
}

/// The part of a value that is in memory: less than a chunk while many readers share the budget.
struct Piece {
    start: u64,
    bytes: Vec<u8>,
    _memory: Grant,
}

impl Piece {
    /// The bytes from `position` on, if the piece has any of them.
    fn from(&self, position: u64) -> Option<&[u8]> {
        let offset = usize::try_from(position.checked_sub(self.start)?).ok()?;
        self.bytes.get(offset..).filter(|bytes| !bytes.is_empty())
    }
}

/// The least that a reader keeps of a value in memory.
const PIECE_BYTES_MIN: u64 = 1 << 10;

#[derive(Clone)]
pub(crate) enum Content {
    Bytes(Arc<(Vec<u8>, Grant)>),
    Placed(LargeRef),
    /// Put by the reading transaction, and readable whatever became of it since.
    Own(Arc<LargeValue>),
}

impl Content {
    /// A copy of a value's bytes.
    pub(crate) fn bytes(bytes: &[u8], engine: &Engine) -> Result<Content> {
        let mut memory = engine.budget.grant(Account::Copies);
        if !memory.resize(heap_bytes(bytes.len()) as u64) {
            return Err(Error::copies_in_memory(memory.limit_bytes()));
        }
        Ok(Content::Bytes(Arc::new((bytes.to_vec(), memory))))
    }
}

impl std::fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValueReader({} of {} bytes)", self.position, self.len())
    }
}

impl ValueReader {
    pub(crate) fn new(
        handle: &Arc<Handle>,
        tree: &Tree,
        snapshot: Arc<SnapshotHandle>,
        content: Content,
    ) -> ValueReader {
        ValueReader { handle: Arc::clone(handle), tree: tree.clone(), snapshot, content, position: 0, piece: None }
    }

    /// The value's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.0.len() as u64,
            Content::Placed(reference) => reference.length,
            Content::Own(value) => value.length,
        }
    }

    /// Returns `true` if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The position from which bytes must be read; `None` if those at the position are in memory.
    fn wanted(&self) -> Option<u64> {
        let is_there = matches!(self.content, Content::Bytes(_))
            || self.piece.as_ref().is_some_and(|piece| piece.from(self.position).is_some());
        (self.position < self.len() && !is_there).then_some(self.position)
    }

    /// Reads a piece: the rest of a chunk from `start` on, or as much of it as memory allows.
    async fn load(
        store: &Store,
        mode: WaitMode<'_>,
        tree: &Tree,
        content: &Content,
        snapshot: &SnapshotHandle,
        start: u64,
    ) -> Result<Piece> {
        let payload = values::chunk_payload_bytes(&store.engine.pool);
        let (chunk_bytes, length) = match content {
            Content::Placed(reference) if reference.chunk_count == 1 => (reference.length, reference.length),
            Content::Placed(reference) => (payload, reference.length),
            Content::Own(value) => (payload, value.length),
            Content::Bytes(_) => unreachable!("they are there already"),
        };
        let (index, skipped) = (start / chunk_bytes, start % chunk_bytes);
        let rest = (chunk_bytes - skipped).min(length - start);
        let mut memory = store.engine.budget.grant(Account::Copies);
        let alone = memory.limit_bytes() / 8;
        let Some(piece_bytes) = memory.cover_share(PIECE_BYTES_MIN, rest, alone) else {
            return Err(Error::copies_in_memory(memory.limit_bytes()));
        };
        let part = Part { start: skipped as usize, length: piece_bytes as usize };
        let bytes = match content {
            Content::Placed(reference) => {
                store.read_chunk(mode, tree, reference, index as u32, snapshot, part, Vec::new()).await?
            }
            Content::Own(value) => {
                store.read_own_chunk(mode, tree, value, index as usize, snapshot, part, Vec::new()).await?
            }
            Content::Bytes(_) => unreachable!("looked at above"),
        };
        Ok(Piece { start, bytes, _memory: memory })
    }

    /// Copies the bytes in memory from the position on: at least one, unless the value has ended.
    fn copy(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.position >= self.len() || buffer.is_empty() {
            return Ok(0);
        }
        let available = match &self.content {
            Content::Bytes(bytes) => Some(&bytes.0[self.position as usize..]),
            _ => self.piece.as_ref().and_then(|piece| piece.from(self.position)),
        };
        let Some(available) = available else {
            let reason = "a chunk of the value is shorter than it should be";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, reason));
        };
        let count = available.len().min(buffer.len());
        buffer[..count].copy_from_slice(&available[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl std::io::Read for ValueReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Some(start) = self.wanted() {
            // Its memory serves the next piece.
            self.piece = None;
            let (store, mode) = (self.handle.store().map_err(std::io::Error::other)?, WaitMode::Blocking);
            let loading = ValueReader::load(store, mode, &self.tree, &self.content, &self.snapshot, start);
            self.piece = Some(ready(loading).map_err(std::io::Error::other)?);
        }
        self.copy(buffer)
    }
}

impl std::io::Seek for ValueReader {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        let position = match to {
            std::io::SeekFrom::Start(position) => Some(position),
            std::io::SeekFrom::End(offset) => self.len().checked_add_signed(offset),
            std::io::SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, "a position before the beginning of the value")
        })?;
        Ok(self.position)
    }
}

/// The bytes of a large value as a stream for tasks: [`futures_io::AsyncRead`] and [`futures_io::AsyncSeek`]. Keeps the
/// database open, like any handle.
pub struct AsyncValueReader {
    reader: ValueReader,
    /// The piece that is being read, and where it begins.
    loading: Option<(u64, Loading)>,
}

type Loading = Pin<Box<dyn Future<Output = Result<Piece>> + Send>>;

impl std::fmt::Debug for AsyncValueReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Async{:?}", self.reader)
    }
}

impl AsyncValueReader {
    pub(crate) fn new(reader: ValueReader) -> AsyncValueReader {
        AsyncValueReader { reader, loading: None }
    }

    /// The value's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.reader.len()
    }

    /// Returns `true` if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reader.is_empty()
    }
}

impl futures_io::AsyncRead for AsyncValueReader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        if let Some(start) = this.reader.wanted() {
            this.reader.piece = None;
            let loading = match &mut this.loading {
                Some((of, loading)) if *of == start => loading,
                other => {
                    // A piece at another position releases its memory first.
                    *other = None;
                    let ValueReader { handle, tree, snapshot, content, .. } = &this.reader;
                    let (handle, tree) = (Arc::clone(handle), tree.clone());
                    let (snapshot, content) = (Arc::clone(snapshot), content.clone());
                    let loading = async move {
                        let store = handle.store()?;
                        ValueReader::load(store, store.as_task(), &tree, &content, &snapshot, start).await
                    };
                    &mut other.insert((start, Box::pin(loading))).1
                }
            };
            let Poll::Ready(loaded) = loading.as_mut().poll(context) else { return Poll::Pending };
            this.loading = None;
            this.reader.piece = Some(loaded.map_err(std::io::Error::other)?);
        }
        Poll::Ready(this.reader.copy(buffer))
    }
}

impl futures_io::AsyncSeek for AsyncValueReader {
    fn poll_seek(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        to: std::io::SeekFrom,
    ) -> Poll<std::io::Result<u64>> {
        Poll::Ready(std::io::Seek::seek(&mut self.get_mut().reader, to))
    }
}
