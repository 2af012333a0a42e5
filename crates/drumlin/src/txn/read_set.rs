//! The read set of a serializable transaction, and its validation.
//!
//! # Invariants
//!
//! 1. Every row that the transaction has read from the database, and every key that it found absent, is in a span. A
//!    span is recorded before its rows are returned.
//! 2. The spans of a keyspace are disjoint.
//! 3. Nothing is recorded once the transaction commits: a scan that continues after that fails.
//!
//! Rows that the transaction has locked need no record, because no other transaction can change them before it ends.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::{KeyspaceId, PageId, Timestamp};
use crate::memory::{Account, Budget, Grant, heap_bytes};
use crate::space::PageSpace;
use crate::sync::Mutex;
use crate::task::WaitMode;
use crate::tree::Tree;
use crate::tree::node::Leaf;

use super::snapshots::SnapshotHandle;
use super::spilled::Spilled;
use super::versions::Versions;

/// The end of a span.
#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    /// The span is a single key.
    OneKey,
    /// The span ends before this key.
    Below(Box<[u8]>),
    /// The span has no upper bound.
    Open,
}

impl End {
    /// Returns `true` if a span from `first` to this end contains the key. The key must not be below `first`.
    fn is_after(&self, first: &[u8], key: &[u8]) -> bool {
        match self {
            End::OneKey => first == key,
            End::Below(end) => key < &end[..],
            End::Open => true,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            End::Below(end) => heap_bytes(end.len()),
            End::OneKey | End::Open => 0,
        }
    }
}

/// The spans of one keyspace, by their first key.
#[derive(Debug, Default)]
struct Spans(BTreeMap<Box<[u8]>, End>);

/// The memory of a span without its keys: its entry in a map that is half full, and a share of the map's inner nodes.
const SPAN_BYTES: usize = 2 * size_of::<(Box<[u8]>, End)>() + 16;

fn span_bytes(first: &[u8], end: &End) -> usize {
    heap_bytes(first.len()) + end.bytes() + SPAN_BYTES
}

impl Spans {
    /// Returns the last span that begins at or before the key.
    fn last_at(&self, key: &[u8]) -> Option<(&[u8], &End)> {
        let range = (Bound::Unbounded, Bound::Included(key));
        self.0.range::<[u8], _>(range).next_back().map(|(first, end)| (&first[..], end))
    }

    fn covers(&self, key: &[u8]) -> bool {
        self.last_at(key).is_some_and(|(first, end)| end.is_after(first, key))
    }

    /// Returns the smallest key at or after `key` that is in a span.
    fn next_from(&self, key: &[u8]) -> Option<Vec<u8>> {
        if self.covers(key) {
            return Some(key.to_vec());
        }
        let range = (Bound::Excluded(key), Bound::Unbounded);
        let next = self.0.range::<[u8], _>(range).next().map(|(first, _)| first.to_vec());
        debug_assert!(next.as_ref().is_none_or(|next| self.covers(next)), "the next key that was read is in no span");
        next
    }

    fn insert(&mut self, first: Box<[u8]>, end: End) -> usize {
        let bytes = span_bytes(&first, &end);
        let replaced = self.0.insert(first, end);
        assert!(replaced.is_none(), "two spans begin with one key");
        bytes
    }

    fn remove(&mut self, first: &[u8]) -> (End, usize) {
        let end = self.0.remove(first).expect("it was found there");
        let bytes = span_bytes(first, &end);
        (end, bytes)
    }

    /// Returns `true` if no span contains the first key of the span after it (invariant 2).
    fn are_disjoint(&self) -> bool {
        self.0.iter().zip(self.0.keys().skip(1)).all(|((first, end), next)| !end.is_after(first, next))
    }

    /// Adds a single key. Returns the number of bytes added.
    fn add_key(&mut self, key: &[u8]) -> usize {
        if self.covers(key) { 0 } else { self.insert(key.into(), End::OneKey) }
    }

    /// Adds the keys from `first` up to but not including `end`, and merges the spans that overlap or touch this
    /// interval. Returns the bytes added and the bytes freed.
    fn add_interval(&mut self, first: &[u8], end: Option<&[u8]>) -> (usize, usize) {
        assert!(end.is_none_or(|end| first < end), "an interval of no key");
        let mut first: Box<[u8]> = first.into();
        let mut end: Option<Box<[u8]>> = end.map(Into::into);
        if let Some((before, End::Below(meets))) = self.last_at(&first)
            && *first <= **meets
        {
            first = before.into();
        } else if let Some((before, End::Open)) = self.last_at(&first) {
            first = before.into();
        }
        let mut freed_bytes = 0;
        loop {
            let range = (Bound::Included(&first[..]), Bound::Unbounded);
            let Some((next, next_end)) = self.0.range::<[u8], _>(range).next() else { break };
            let is_met = end.as_deref().is_none_or(|end| match next_end {
                End::OneKey => **next < *end,
                End::Below(_) | End::Open => **next <= *end,
            });
            if !is_met {
                break;
            }
            let next = next.clone();
            let (next_end, bytes) = self.remove(&next);
            freed_bytes += bytes;
            match (next_end, &mut end) {
                (End::Open, end) => *end = None,
                (End::Below(further), Some(end)) if further > *end => *end = further,
                _ => {}
            }
        }
        debug_assert!(end.as_ref().is_none_or(|end| first < *end), "spans are merged into one of no key");
        let taken_bytes = self.insert(first, end.map_or(End::Open, End::Below));
        debug_assert!(self.are_disjoint(), "spans overlap: {self:?}");
        (taken_bytes, freed_bytes)
    }
}

/// The spans that a transaction has read, and their memory.
#[derive(Debug)]
pub(crate) struct ReadSet {
    /// The spans of each keyspace, in ascending order of keyspace id.
    trees: Vec<(Tree, Spans)>,
    bytes: usize,
    /// The bytes that the writes and locks of the same transaction use.
    pub(crate) extra_bytes: usize,
    limit_bytes: u64,
    memory: Grant,
    ended: bool,
}

impl ReadSet {
    /// Creates the read set of a transaction that has not read or written any rows yet.
    pub(crate) fn new(budget: &Arc<Budget>) -> ReadSet {
        ReadSet {
            trees: Vec::new(),
            bytes: 0,
            extra_bytes: 0,
            limit_bytes: budget.transaction_memory_max(),
            memory: budget.grant(Account::Transactions),
            ended: false,
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    fn spans(&mut self, tree: &Tree) -> &mut Spans {
        let at = match self.trees.binary_search_by_key(&tree.pages.id, |(tree, _)| tree.pages.id) {
            Ok(at) => at,
            Err(at) => {
                assert!(!self.ended, "something is recorded in a read set that is validated");
                self.trees.insert(at, (tree.clone(), Spans::default()));
                debug_assert!(
                    self.trees.is_sorted_by(|(left, _), (right, _)| left.pages.id < right.pages.id),
                    "keyspaces of a read set are out of order"
                );
                at
            }
        };
        &mut self.trees[at].1
    }

    /// Records that the row was read or found absent.
    pub(crate) fn add_key(&mut self, tree: &Tree, key: &[u8]) -> Result<()> {
        self.check_running()?;
        self.bytes += self.spans(tree).add_key(key);
        self.check_size()
    }

    /// Records that all keys from `first` up to but not including `end` were read or found absent.
    pub(crate) fn add_interval(&mut self, tree: &Tree, first: &[u8], end: Option<&[u8]>) -> Result<()> {
        self.check_running()?;
        if end.is_some_and(|end| end <= first) {
            return Ok(());
        }
        let (taken_bytes, freed_bytes) = self.spans(tree).add_interval(first, end);
        assert!(freed_bytes <= self.bytes + taken_bytes, "more of a read set is freed than it takes");
        self.bytes = self.bytes + taken_bytes - freed_bytes;
        self.check_size()
    }

    fn check_running(&self) -> Result<()> {
        if self.ended {
            return Err(Error::Invalid(
                "the scan belongs to a serializable transaction that was committed: finish scans before the commit"
                    .into(),
            ));
        }
        Ok(())
    }

    fn check_size(&mut self) -> Result<()> {
        let bytes = (self.bytes + self.extra_bytes) as u64;
        if bytes > self.limit_bytes {
            return Err(Error::reads_too_large(bytes, self.limit_bytes));
        }
        if !self.memory.cover(self.bytes as u64) {
            return Err(Error::transactions_in_memory(self.memory.limit_bytes()));
        }
        Ok(())
    }

    /// Ends recording and returns the read set for validation.
    pub(crate) fn end(shared: &Mutex<ReadSet>) -> ReadSet {
        let mut set = shared.lock();
        assert!(!set.ended, "what a transaction has read is taken twice");
        let spans = || set.trees.iter().flat_map(|(_, spans)| &spans.0);
        debug_assert_eq!(
            spans().map(|(first, end)| span_bytes(first, end)).sum::<usize>(),
            set.bytes,
            "a read set has other bytes than are counted"
        );
        let ended = ReadSet {
            trees: Vec::new(),
            memory: set.memory.another(),
            ended: true,
            bytes: 0,
            extra_bytes: 0,
            limit_bytes: set.limit_bytes,
        };
        std::mem::replace(&mut *set, ended)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// Returns an upper bound for the bytes of the leaves that contain the keys. Returns `None` if the set has
    /// intervals, because these may span any number of leaves.
    pub(crate) fn leaf_bytes_max(&self) -> Option<u64> {
        (self.trees.iter().map(|(tree, spans)| {
            let are_keys = spans.0.values().all(|end| *end == End::OneKey);
            are_keys.then(|| (spans.0.len() * tree.pages.page_bytes()) as u64)
        }))
        .sum()
    }

    /// Returns an error if a run that was attached after the snapshot, and whose rows are not all folded, has a key
    /// that the transaction has read. Folded rows have left undo records.
    pub(crate) async fn check_runs(&self, mode: WaitMode<'_>, snapshot: Timestamp) -> Result<()> {
        for (tree, spans) in self.trees.iter().filter(|(tree, _)| tree.pages.runs.newest() > snapshot) {
            for (first, end) in &spans.0 {
                let end = match end {
                    End::OneKey => Some([first, &[0][..]].concat()),
                    End::Below(end) => Some(end.to_vec()),
                    End::Open => None,
                };
                if tree.pool.awaiting(mode, |_| tree.have_runs_key(snapshot, first, end.as_deref())).await? {
                    return Err(Error::Conflict {
                        reason: "a bulk load or a range delete has changed rows that this transaction read",
                    });
                }
            }
        }
        Ok(())
    }

    fn covers(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        let found = self.trees.binary_search_by_key(&keyspace, |(tree, _)| tree.pages.id);
        found.is_ok_and(|at| self.trees[at].1.covers(key))
    }
}

/// The input of validation. Validation succeeds if no other transaction has changed a row of the read set since the
/// snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads<'a> {
    pub(crate) set: &'a ReadSet,
    pub(crate) snapshot: &'a SnapshotHandle,
    pub(crate) spilled: &'a Spilled,
    /// The value of [`Spilled::published`] when the commit began.
    pub(crate) published: u64,
}

impl Reads<'_> {
    /// Returns an error if the transaction has read a row of this leaf that has changed since. The caller holds the
    /// leaf's latch, and does not release it before the commit has its timestamp.
    pub(crate) fn validate(&self, versions: &Versions, pages: &PageSpace, page: PageId, leaf: &Leaf<'_>) -> Result<()> {
        let (snapshot, keyspace) = (self.snapshot.timestamp, pages.id);
        if pages.load_gate.is_loaded_since(snapshot) {
            return Err(Error::Conflict { reason: "rows were loaded into a keyspace that this transaction read" });
        }
        if leaf.newest() <= snapshot {
            return Ok(());
        }
        if versions.any_changed(keyspace, page, snapshot, |key| self.set.covers(keyspace, key)) {
            return Err(Error::Conflict { reason: "another transaction has changed rows that this one read" });
        }
        if self.spilled.may_have(snapshot) && self.spilled.published() != self.published {
            return Err(Error::Conflict {
                reason: "what this transaction read may have changed: its commit took long",
            });
        }
        // This check must come last: if the snapshot has not been ended by now, no version was missing during the
        // search above.
        self.snapshot.check()
    }

    /// Returns an error if the transaction has read a row between two fences that has changed since, according to a
    /// version that was spilled before the commit began.
    pub(crate) async fn validate_spilled(
        &self,
        mode: WaitMode<'_>,
        keyspace: KeyspaceId,
        fences: (Option<&[u8]>, Option<&[u8]>),
    ) -> Result<()> {
        let is_read = |key: &[u8]| self.set.covers(keyspace, key);
        if self.spilled.any_changed(mode, keyspace, fences, self.snapshot.timestamp, is_read).await? {
            return Err(Error::Conflict { reason: "another transaction has changed rows that this one read" });
        }
        self.snapshot.check()
    }
}

/// An iteration over the read set in the order of (keyspace, key), leaf by leaf.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    trees: &'a [(Tree, Spans)],
    /// The next key in the read set. It belongs to the first of the trees.
    key: Vec<u8>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(reads: Option<Reads<'a>>) -> Walk<'a> {
        let mut walk = Walk { trees: reads.map_or(&[], |reads| &reads.set.trees), key: Vec::new() };
        walk.seek(Some(Vec::new()));
        walk
    }

    fn seek(&mut self, from: Option<Vec<u8>>) {
        let mut from = from;
        while let Some((_, spans)) = self.trees.first() {
            if let Some(key) = from.as_ref().and_then(|key| spans.next_from(key)) {
                self.key = key;
                return;
            }
            self.trees = &self.trees[1..];
            from = Some(Vec::new());
        }
    }

    /// Returns the next key in the read set whose leaf has not been passed yet.
    pub(crate) fn next(&self) -> Option<(&'a Tree, &[u8])> {
        self.trees.first().map(|(tree, _)| (tree, &self.key[..]))
    }

    /// Passes the leaf that ends at this fence. Returns `true` if the transaction has read keys in it.
    pub(crate) fn pass(&mut self, keyspace: KeyspaceId, upper_fence: Option<&[u8]>) -> bool {
        let is_here = self.trees.first().is_some_and(|(tree, _)| tree.pages.id == keyspace)
            && upper_fence.is_none_or(|fence| self.key[..] < *fence);
        if is_here {
            self.seek(upper_fence.map(<[u8]>::to_vec));
            let is_passed = |(tree, key): (&Tree, &[u8])| {
                tree.pages.id > keyspace || upper_fence.is_some_and(|fence| tree.pages.id == keyspace && fence <= key)
            };
            debug_assert!(self.next().is_none_or(is_passed), "a walk stays in a leaf that it passed");
        }
        is_here
    }
}

/// A read set that a transaction shares with its scans.
pub(crate) type SharedReads = Arc<Mutex<ReadSet>>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Spans contain exactly the added keys, as a comparison with a set of keys shows. They stay disjoint, and count
    /// their bytes correctly.
    #[test]
    fn spans_cover_what_was_added() {
        let mut state = 1u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for _ in 0..300 {
            let mut spans = Spans::default();
            let mut expected: BTreeSet<u8> = BTreeSet::new();
            let mut bytes = 0;
            for _ in 0..below(30) {
                let (first, length) = (below(64) as u8, below(12) as u8);
                match below(12) {
                    0..5 => {
                        bytes += spans.add_key(&[first]);
                        expected.insert(first);
                    }
                    11 => {
                        let (taken, freed) = spans.add_interval(&[first + 40], None);
                        bytes = bytes + taken - freed;
                        expected.extend(first + 40..=u8::MAX);
                    }
                    _ => {
                        let (taken, freed) = spans.add_interval(&[first], Some(&[first + 1 + length]));
                        bytes = bytes + taken - freed;
                        expected.extend(first..first + 1 + length);
                    }
                }
            }
            for key in 0..=u8::MAX {
                assert_eq!(spans.covers(&[key]), expected.contains(&key), "{key} in {spans:?}");
                let next = expected.range(key..).next().map(|key| vec![*key]);
                assert_eq!(spans.next_from(&[key]), next, "from {key} in {spans:?}");
            }
            let counted: usize = spans.0.iter().map(|(first, end)| span_bytes(first, end)).sum();
            assert_eq!(counted, bytes);
            let entries: Vec<_> = spans.0.iter().collect();
            for pair in entries.windows(2) {
                assert!(!pair[0].1.is_after(pair[0].0, pair[1].0), "{spans:?} overlap");
            }
        }
    }

    /// An interval covers the keys between its ends. Two single keys cover nothing between them.
    #[test]
    fn keys_between_are_in_intervals_alone() {
        let mut spans = Spans::default();
        spans.add_key(b"a");
        spans.add_key(b"b");
        assert!(!spans.covers(b"aa"));
        spans.add_interval(b"a", Some(b"b"));
        assert!(spans.covers(b"aa") && spans.covers(b"b") && !spans.covers(b"ba"));
    }
}
