//! Scans, forwards and backwards.
//!
//! A scan copies what it needs of one leaf at a time and holds nothing in between: it never blocks a writer, and a leaf
//! that splits or merges meanwhile changes nothing for it. It finds the next leaf by the fence of the last.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::ops::{Bound, Range as Span};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Handle;
use super::core::Core;
use super::value::Value;
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::pool::Stop;
use crate::task::{Face, ready};
use crate::tree::node::{Leaf, RowValue};
use crate::tree::{Target, Tree};
use crate::txn::engine::Engine;
use crate::txn::read_set::SharedReads;
use crate::txn::snapshots::Registration;
use crate::txn::values::{self, LargeValue};
use crate::txn::versions::Was;

/// Leaves that a scan asks for ahead, once it has seen that it goes on: a megabyte of pages of 4 KiB.
const AHEAD_PAGES: usize = 256;
/// Leaves read one by one before a scan reads ahead: short ranges read no more than they need.
const UNAIDED_LEAVES: usize = 2;

/// How far a scan reads ahead of itself.
pub(super) struct Ahead {
    forward: bool,
    leaves_seen: usize,
    /// Leaves asked for and not reached yet.
    leaves_asked: usize,
    /// Where the leaves not asked for begin; `None`: where the scan is.
    next: Option<Vec<u8>>,
    ended: bool,
}

impl Ahead {
    pub(super) fn new(forward: bool) -> Ahead {
        Ahead { forward, leaves_seen: 0, leaves_asked: 0, next: None, ended: false }
    }

    /// The scan goes on to the leaf of `target`: asks for as many behind it as it has seen, four times over, up to a limit.
    pub(super) fn step(
        &mut self,
        engine: &Engine,
        tree: &Tree,
        target: Target<'_>,
        (lower, upper): (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
    ) {
        self.leaves_seen += 1;
        self.leaves_asked = self.leaves_asked.saturating_sub(1);
        if self.leaves_asked == 0 {
            self.next = None;
        }
        let goal = (self.leaves_seen * 4).min(AHEAD_PAGES);
        // In portions: asking costs a descent.
        if self.leaves_seen <= UNAIDED_LEAVES || self.ended || self.leaves_asked > goal / 2 {
            return;
        }
        while self.leaves_asked < goal && !self.ended {
            let from = match &self.next {
                None => target,
                Some(key) if self.forward => Target::At(key),
                Some(key) => Target::Below(key),
            };
            let upcoming = tree.upcoming(from, self.forward, goal);
            if !upcoming.pages.is_empty() {
                engine.pool.read_ahead(&tree.pages, upcoming.pages);
            }
            if upcoming.leaf_count == 0 {
                return;
            }
            self.leaves_asked += upcoming.leaf_count;
            let is_outside = |key: &Vec<u8>| match (self.forward, lower, upper) {
                (true, _, Bound::Included(end) | Bound::Excluded(end)) => key > end,
                (false, Bound::Included(end) | Bound::Excluded(end), _) => key <= end,
                _ => false,
            };
            self.ended = upcoming.next.as_ref().is_none_or(is_outside);
            self.next = upcoming.next;
        }
    }
}

/// The rows of a range, in the order of their keys, as one moment saw them: an iterator from both ends.
///
/// Each step costs the row alone, and O(log n) where a leaf ends. Ends after its first error. Keeps the database open, as
/// any handle does, and until it is dropped the versions that its moment needs.
pub struct Range(State);

enum State {
    Scanning(Box<Scan>),
    /// A scan that can't be: an error, and the end.
    Refused(Option<Error>),
}

struct Scan {
    handle: Arc<Handle>,
    tree: Tree,
    moment: Arc<Registration>,
    /// What is left to fetch lies between these.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    fetched_all: bool,
    front: VecDeque<Row>,
    back: VecDeque<Row>,
    /// Changes of the transaction that scans, within the bounds; `None`: removed.
    own: BTreeMap<Vec<u8>, Option<OwnValue>>,
    /// Where the serializable transaction that scans records what it has read.
    reads: Option<SharedReads>,
    ahead_forward: Ahead,
    ahead_backward: Ahead,
    /// The row that is being handed out, and from which end.
    taken: Option<(bool, Row)>,
}

/// A value in a transaction's write set.
#[derive(Clone)]
pub(crate) enum OwnValue {
    Bytes(Vec<u8>),
    /// In extents; in no table before the transaction is committed.
    Large(Arc<LargeValue>),
}

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
    Own(OwnValue),
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            State::Scanning(scan) => {
                write!(f, "Range({:?} to {:?} at {})", scan.lower, scan.upper, scan.moment.timestamp)
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

    fn push_was(&mut self, key: &[u8], was: &Was) {
        match was {
            Was::Absent => {}
            Was::Inline(value) => self.push(key, &[], RowValue::Inline(value)),
            Was::Large(reference) => self.push(key, &[], RowValue::Large(*reference)),
        }
    }

    fn finish(self) -> VecDeque<Row> {
        let rows = Arc::new(self.rows);
        self.spans.into_iter().map(|(key, value)| Row { rows: Arc::clone(&rows), key, value }).collect()
    }
}

/// Where the next leaf is.
enum Next {
    From(Vec<u8>),
    Nowhere,
}

impl Range {
    pub(crate) fn new(
        handle: Arc<Handle>,
        tree: Tree,
        moment: Arc<Registration>,
        bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
        own: BTreeMap<Vec<u8>, Option<OwnValue>>,
        reads: Option<SharedReads>,
    ) -> Range {
        let (lower, upper) = bounds;
        let mut scan = Scan {
            handle,
            tree,
            moment,
            lower,
            upper,
            fetched_all: false,
            front: VecDeque::new(),
            back: VecDeque::new(),
            own,
            reads,
            ahead_forward: Ahead::new(true),
            ahead_backward: Ahead::new(false),
            taken: None,
        };
        scan.fetched_all = scan.is_exhausted();
        Range(State::Scanning(Box::new(scan)))
    }

    /// One that answers with an error.
    pub(crate) fn refused(error: Error) -> Range {
        Range(State::Refused(Some(error)))
    }

    /// `None`: it was refused, and waits for nothing.
    pub(crate) fn handle(&self) -> Option<Arc<Handle>> {
        match &self.0 {
            State::Scanning(scan) => Some(Arc::clone(&scan.handle)),
            State::Refused(_) => None,
        }
    }

    /// What [`next`](Iterator::next) and [`next_back`](DoubleEndedIterator::next_back) do, by the ways of a face. A future
    /// that is dropped takes no row away.
    pub(crate) async fn next_as(&mut self, face: Face<'_>, forward: bool) -> Option<Result<(Value, Value)>> {
        match &mut self.0 {
            State::Scanning(scan) => scan.next_as(face, forward).await,
            State::Refused(error) => error.take().map(Err),
        }
    }

    /// Counts the rows that are left. O(rows): each leaf is visited.
    pub(crate) async fn count_rows(self, face: Face<'_>) -> Result<u64> {
        match self.0 {
            State::Scanning(mut scan) => scan.count_rows(face).await,
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
        // The smallest key that is larger.
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

    /// The rows of the leaf that lie within what is left to fetch, as the scan's moment saw them.
    fn copy_rows(
        &self,
        leaf: &Leaf<'_>,
        page: crate::format::PageId,
        bound: &Option<Vec<u8>>,
        forward: bool,
    ) -> VecDeque<Row> {
        let at = |bound: &Bound<Vec<u8>>, start: bool| match bound {
            Bound::Unbounded => {
                if start {
                    0
                } else {
                    leaf.len()
                }
            }
            Bound::Included(key) if start => leaf.lower_bound(key),
            Bound::Excluded(key) if !start => leaf.lower_bound(key),
            Bound::Included(key) | Bound::Excluded(key) => match leaf.search(key) {
                Ok(index) => index + 1,
                Err(index) => index,
            },
        };
        let (start, end) = (at(&self.lower, true), at(&self.upper, false));
        let mut batch = Batch { rows: Vec::new(), spans: Vec::new() };
        let in_range = |key: &[u8]| {
            (match &self.lower {
                Bound::Unbounded => true,
                Bound::Included(lower) => key >= &lower[..],
                Bound::Excluded(lower) => key > &lower[..],
            }) && (match &self.upper {
                Bound::Unbounded => true,
                Bound::Included(upper) => key <= &upper[..],
                Bound::Excluded(upper) => key < &upper[..],
            })
        };
        let newer = leaf.newest() > self.moment.timestamp;
        let mut versions = if newer {
            self.handle.core_here().engine.versions.overlay(self.tree.pages.id, page, self.moment.timestamp)
        } else {
            BTreeMap::new()
        };
        if versions.is_empty() && self.own.is_empty() {
            batch.rows.reserve(leaf.live_bytes() + end.saturating_sub(start) * leaf.prefix().len());
            batch.spans.reserve(end.saturating_sub(start));
            for index in start..end.max(start) {
                let (suffix, value) = leaf.row(index);
                batch.push(leaf.prefix(), suffix, value);
            }
            return batch.finish();
        }
        // The slow way: rows, what they were, and what the transaction made of them, by key.
        versions.retain(|key, _| in_range(key));
        let covered = |key: &[u8]| match (bound, forward) {
            (None, _) => true,
            (Some(fence), true) => key < &fence[..],
            (Some(fence), false) => key >= &fence[..],
        };
        let own = self.own.iter().filter(|(key, _)| in_range(key) && leaf.covers(key) && covered(key));
        let mut own: BTreeMap<&[u8], &Option<OwnValue>> = own.map(|(key, value)| (&key[..], value)).collect();
        let mut key = Vec::new();
        let mut keys: BTreeMap<Vec<u8>, Option<usize>> = versions.keys().map(|key| (key.clone(), None)).collect();
        keys.extend(own.keys().map(|key| (key.to_vec(), None)));
        for index in start..end.max(start) {
            leaf.key_into(index, &mut key);
            keys.insert(key.clone(), Some(index));
        }
        for (key, index) in keys {
            match (own.remove(&key[..]), versions.get(&key), index) {
                (Some(None), _, _) => {}
                (Some(Some(value)), _, _) => {
                    let span = batch.keep(&key);
                    batch.spans.push((span, Fetched::Own(value.clone())));
                }
                (None, Some(was), _) => batch.push_was(&key, was),
                (None, None, Some(index)) => batch.push(&key, &[], leaf.value(index)),
                (None, None, None) => {}
            }
        }
        batch.finish()
    }

    async fn fetch_forward(&mut self, face: Face<'_>) -> Result<()> {
        let engine = Arc::clone(&self.handle.core()?.engine);
        let key = match &self.lower {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) | Bound::Excluded(key) => key.clone(),
        };
        self.ahead_forward.step(&engine, &self.tree, Target::At(&key), (&self.lower, &self.upper));
        let fetched = self.tree.awaiting(face, || -> Result<_, Stop> {
            let read = self.tree.read_leaf(Target::At(&key))?;
            let leaf = Leaf::new(&read);
            let fence = leaf.upper_fence().map(<[u8]>::to_vec);
            let page = read.header().identity().expect("a latched leaf has an identity").page;
            let rows = self.copy_rows(&leaf, page, &fence, true);
            Ok((rows, fence.map_or(Next::Nowhere, Next::From)))
        });
        let (rows, next) = fetched.await?;
        self.moment.check()?;
        match next {
            Next::From(fence) => {
                let lower = std::mem::replace(&mut self.lower, Bound::Included(fence.clone()));
                self.fetched_all = self.is_exhausted();
                let below_fence = Bound::Excluded(fence);
                self.record(&lower, if self.fetched_all { &self.upper } else { &below_fence })?;
            }
            Next::Nowhere => {
                self.fetched_all = true;
                self.record(&self.lower, &self.upper)?;
            }
        }
        self.front = rows;
        Ok(())
    }

    async fn fetch_backward(&mut self, face: Face<'_>) -> Result<()> {
        let engine = Arc::clone(&self.handle.core()?.engine);
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
        let fetched = self.tree.awaiting(face, || -> Result<_, Stop> {
            let read = self.tree.read_leaf(target)?;
            let leaf = Leaf::new(&read);
            let fence = leaf.lower_fence().map(<[u8]>::to_vec);
            let page = read.header().identity().expect("a latched leaf has an identity").page;
            let rows = self.copy_rows(&leaf, page, &fence, false);
            Ok((rows, fence.map_or(Next::Nowhere, Next::From)))
        });
        let (rows, next) = fetched.await?;
        self.moment.check()?;
        match next {
            Next::From(fence) => {
                let upper = std::mem::replace(&mut self.upper, Bound::Excluded(fence.clone()));
                self.fetched_all = self.is_exhausted();
                let from_fence = Bound::Included(fence);
                self.record(if self.fetched_all { &self.lower } else { &from_fence }, &upper)?;
            }
            Next::Nowhere => {
                self.fetched_all = true;
                self.record(&self.lower, &self.upper)?;
            }
        }
        self.back = rows;
        Ok(())
    }

    async fn hand_out(&self, face: Face<'_>, row: &Row) -> Result<(Value, Value)> {
        let key = Value::part(&row.rows, row.key.clone());
        let value = match &row.value {
            Fetched::Inline(span) => Value::part(&row.rows, span.clone()),
            Fetched::Large(reference) => {
                self.handle.core()?.read_large(face, &self.tree, reference, &self.moment).await?.into()
            }
            Fetched::Own(OwnValue::Bytes(bytes)) => bytes.clone().into(),
            Fetched::Own(OwnValue::Large(value)) => {
                self.handle.core()?.read_own(face, &self.tree, value, &self.moment).await?.into()
            }
        };
        Ok((key, value))
    }

    /// Brings in rows until there is one to hand out next, and takes it.
    async fn step(&mut self, face: Face<'_>, forward: bool) -> Result<Option<Row>> {
        loop {
            let row = if forward { self.front.pop_front() } else { self.back.pop_back() };
            if row.is_some() {
                return Ok(row);
            }
            if self.fetched_all {
                return Ok(if forward { self.back.pop_front() } else { self.front.pop_back() });
            }
            if forward {
                self.fetch_forward(face).await?;
            } else {
                self.fetch_backward(face).await?;
            }
        }
    }

    async fn next_as(&mut self, face: Face<'_>, forward: bool) -> Option<Result<(Value, Value)>> {
        match self.taken.take() {
            Some((true, row)) => self.front.push_front(row),
            Some((false, row)) => self.back.push_back(row),
            None => {}
        }
        let result = match self.step(face, forward).await {
            Ok(None) => return None,
            Ok(Some(row)) => {
                let (_, row) = self.taken.insert((forward, row));
                let row = row.clone();
                self.hand_out(face, &row).await
            }
            Err(error) => Err(error),
        };
        self.taken = None;
        if result.is_err() {
            self.end();
        }
        Some(result)
    }

    /// Nothing more comes, from either end.
    fn end(&mut self) {
        self.fetched_all = true;
        self.front.clear();
        self.back.clear();
    }

    async fn count_rows(&mut self, face: Face<'_>) -> Result<u64> {
        let mut count = (self.front.len() + self.back.len()) as u64;
        while !self.fetched_all {
            self.fetch_forward(face).await?;
            count += self.front.len() as u64;
        }
        Ok(count)
    }
}

impl Iterator for Range {
    type Item = Result<(Value, Value)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        // The usual case, without the way around.
        if let State::Scanning(scan) = &mut self.0
            && scan.taken.is_none()
            && let Some(Row { value: Fetched::Inline(_), .. }) = scan.front.front()
            && let Some(Row { rows, key, value: Fetched::Inline(span) }) = scan.front.pop_front()
        {
            return Some(Ok((Value::part(&rows, key), Value::part(&rows, span))));
        }
        ready(self.next_as(Face::Blocking, true))
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        ready(self.next_as(Face::Blocking, false))
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

/// The parts of a large value, one after the other: `Read` and `Seek`. Keeps the database open, as any handle does.
pub struct ValueReader {
    handle: Arc<Handle>,
    tree: Tree,
    moment: Arc<Registration>,
    content: Content,
    position: u64,
    chunk: Option<(u64, Vec<u8>)>,
}

#[derive(Clone)]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    Placed(LargeRef),
    /// Put by the transaction that reads, whatever has become of it since.
    Own(Arc<LargeValue>),
}

impl std::fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValueReader({} of {} bytes)", self.position, self.len())
    }
}

impl ValueReader {
    pub(crate) fn new(handle: &Arc<Handle>, tree: &Tree, moment: Arc<Registration>, content: Content) -> ValueReader {
        ValueReader { handle: Arc::clone(handle), tree: tree.clone(), moment, content, position: 0, chunk: None }
    }

    /// The value's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Placed(reference) => reference.length,
            Content::Own(value) => value.length,
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the chunk begins that holds the position, and its number; `None` if the bytes are there already.
    fn wanted(&self) -> Option<(u64, usize)> {
        if self.position >= self.len() {
            return None;
        }
        let payload = values::chunk_payload_bytes(&self.handle.core_here().engine.pool);
        let start = match &self.content {
            Content::Bytes(_) => return None,
            Content::Placed(reference) if reference.chunk_count == 1 => 0,
            Content::Placed(_) | Content::Own(_) => self.position / payload * payload,
        };
        let is_there = self.chunk.as_ref().is_some_and(|(at, _)| *at == start);
        (!is_there).then_some((start, (start / payload) as usize))
    }

    /// Reads a chunk.
    pub(crate) async fn load(
        core: &Core,
        face: Face<'_>,
        tree: &Tree,
        content: &Content,
        moment: &Registration,
        index: usize,
    ) -> std::io::Result<Vec<u8>> {
        let bytes = match content {
            Content::Placed(reference) => core.read_chunk(face, tree, reference, index as u32, moment).await,
            Content::Own(value) => core.read_own_chunk(face, tree, value, index, moment).await,
            Content::Bytes(bytes) => Ok(bytes.clone()),
        };
        bytes.map_err(std::io::Error::other)
    }

    /// Copies from the position on what is there: at least one byte, if there are any.
    fn copy(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.position >= self.len() || buffer.is_empty() {
            return Ok(0);
        }
        let available = match (&self.content, &self.chunk) {
            (Content::Bytes(bytes), _) => &bytes[self.position as usize..],
            (_, Some((start, bytes))) => bytes.get((self.position - start) as usize..).unwrap_or_default(),
            (_, None) => unreachable!("the chunk is loaded first"),
        };
        if available.is_empty() {
            let flaw = "a chunk of the value is shorter than it should be";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, flaw));
        }
        let count = available.len().min(buffer.len());
        buffer[..count].copy_from_slice(&available[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl std::io::Read for ValueReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Some((start, index)) = self.wanted() {
            let (core, face) = (self.handle.core().map_err(std::io::Error::other)?, Face::Blocking);
            let bytes = ready(ValueReader::load(core, face, &self.tree, &self.content, &self.moment, index))?;
            self.chunk = Some((start, bytes));
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

/// A value as a stream for tasks: [`futures_io::AsyncRead`] and [`futures_io::AsyncSeek`]. Keeps the database open, as any
/// handle does.
pub struct AsyncValueReader {
    reader: ValueReader,
    /// The chunk that is being read: where it begins, and its bytes to come.
    loading: Option<(u64, Loading)>,
}

type Loading = Pin<Box<dyn Future<Output = std::io::Result<Vec<u8>>> + Send>>;

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

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reader.is_empty()
    }
}

impl futures_io::AsyncRead for AsyncValueReader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        if let Some((start, index)) = this.reader.wanted() {
            let loading = match &mut this.loading {
                Some((of, loading)) if *of == start => loading,
                other => {
                    let ValueReader { handle, tree, moment, content, .. } = &this.reader;
                    let (handle, tree) = (Arc::clone(handle), tree.clone());
                    let (moment, content) = (Arc::clone(moment), content.clone());
                    let loading = async move {
                        let core = handle.core().map_err(std::io::Error::other)?;
                        ValueReader::load(core, core.as_task(), &tree, &content, &moment, index).await
                    };
                    &mut other.insert((start, Box::pin(loading))).1
                }
            };
            let Poll::Ready(loaded) = loading.as_mut().poll(context) else { return Poll::Pending };
            this.loading = None;
            this.reader.chunk = Some((start, loaded?));
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
