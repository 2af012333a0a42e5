//! Counts rows, and finds them by position. Each operation is written once, for all handles and both wait modes.
//!
//! The result comes from the counts that the keyspace maintains (`counts/mod.rs`). If it has no counts, if the range is
//! small, or if the snapshot is older than the counts, the leaves are walked instead.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Bound;
use std::sync::Arc;

use super::Value;
use super::bounds::OwnedBounds;
use super::rows::{RENEWALS_MAX, Rows};
use crate::counts::count_range::{CountCursor, Seek};
use crate::counts::{KeptCounts, NoAnswer, UNSORTED_CHANGES_MAX, interval_of};
use crate::error::{Error, Result};
use crate::memory::{Account, grown_capacity, heap_bytes, reserve};
use crate::sync::Random;
use crate::task::{Rooted, WaitMode};
use crate::tree::Direction;
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::write_set::Change;

/// The maximum number of attempts to use the counts. An attempt fails if changes are folded in the meantime. After the
/// last attempt, the leaves are walked.
const ATTEMPTS_MAX: usize = 16;

/// A half-open range of keys: its inclusive start, and its exclusive end unless it is unbounded.
pub(super) type Interval = (Vec<u8>, Option<Vec<u8>>);

pub(super) fn interval(bounds: &OwnedBounds) -> Option<Interval> {
    let (lower, upper) = bounds;
    interval_of(lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]))
}

pub(super) fn as_slices((lower, upper): &Interval) -> (&[u8], Option<&[u8]>) {
    (lower, upper.as_deref())
}

impl Rows<'_> {
    /// Returns the number of rows in a range.
    #[inline(never)]
    pub(super) fn count(&self, mode: WaitMode<'_>, bounds: OwnedBounds) -> Rooted<impl Future<Output = Result<u64>>> {
        Rooted::new(async move {
            for _ in 1..RENEWALS_MAX {
                match self.count_at(mode, bounds.clone(), None).await {
                    Err(Error::SnapshotTooOld { .. }) if self.is_latest() => {}
                    counted => return self.noting(counted),
                }
            }
            self.noting(self.count_at(mode, bounds, None).await)
        })
    }

    /// Returns the estimated number of rows in a range.
    #[inline(never)]
    pub(super) fn estimate(
        &self,
        mode: WaitMode<'_>,
        bounds: OwnedBounds,
    ) -> Rooted<impl Future<Output = Result<u64>>> {
        Rooted::new(async move {
            self.store()?;
            let Some(interval) = interval(&bounds) else { return Ok(0) };
            let (lower, upper) = as_slices(&interval);
            self.tree.pool.awaiting(mode, |_| self.tree.estimate(lower, upper)).await
        })
    }

    /// Returns the row at position `index` of a range.
    #[inline(never)]
    pub(super) fn nth(
        &self,
        mode: WaitMode<'_>,
        bounds: OwnedBounds,
        index: u64,
    ) -> Rooted<impl Future<Output = Result<Option<(Value, Value)>>>> {
        Rooted::new(async move {
            for _ in 1..RENEWALS_MAX {
                match self.nth_at(mode, bounds.clone(), index, None).await {
                    Err(Error::SnapshotTooOld { .. }) if self.is_latest() => {}
                    found => return self.noting(found),
                }
            }
            self.noting(self.nth_at(mode, bounds, index, None).await)
        })
    }

    /// Returns `row_count` rows of a range, chosen uniformly at random without replacement, in key order. If the range
    /// has fewer rows, returns all of them.
    #[inline(never)]
    pub(super) fn sample(
        &self,
        mode: WaitMode<'_>,
        bounds: OwnedBounds,
        row_count: usize,
    ) -> Rooted<impl Future<Output = Result<Vec<(Value, Value)>>>> {
        Rooted::new(async move { self.noting(self.sample_at_once(mode, bounds, row_count).await) })
    }

    async fn sample_at_once(
        &self,
        mode: WaitMode<'_>,
        bounds: OwnedBounds,
        row_count: usize,
    ) -> Result<Vec<(Value, Value)>> {
        let store = self.store()?;
        // After this call, the keyspace may have begun to cache counts. The snapshot must be opened later.
        self.count_at(mode, bounds.clone(), None).await?;
        let snapshot = self.open_snapshot()?;
        let total = self.count_at(mode, bounds.clone(), Some(&snapshot)).await?;
        let wanted = (row_count as u64).min(total);
        let mut random = Random(store.engine.backend.random());
        // R. W. Floyd's algorithm: every set of `wanted` ranks is equally likely (Bentley, "Programming Pearls: A
        // sample of brilliance", CACM 1987).
        let mut ranks = BTreeSet::new();
        for last in total - wanted..total {
            let rank = random.below(last + 1);
            if !ranks.insert(rank) {
                ranks.insert(last);
            }
        }
        assert!(ranks.len() as u64 == wanted, "a sample of {wanted} has {} rows", ranks.len());
        let mut rows = Vec::new();
        for rank in ranks {
            rows.extend(self.nth_at(mode, bounds.clone(), rank, Some(&snapshot)).await?);
        }
        Ok(rows)
    }

    async fn count_at(&self, mode: WaitMode<'_>, bounds: OwnedBounds, at: Option<&Arc<SnapshotHandle>>) -> Result<u64> {
        if let Some(interval) = interval(&bounds)
            && !self.has_unlisted_in(&interval)
            && let Some(kept) = self.kept_for(mode, &interval, false, UNSORTED_CHANGES_MAX).await?
            && let Some(count) = self.count_kept(mode, &kept, &interval, at).await?
        {
            return Ok(count);
        }
        // Pass the snapshot explicitly. Otherwise, if it is ended, the scan of a read-committed transaction would
        // continue at a newer snapshot. All steps of a count must see the same commit, so the caller starts over
        // instead.
        let snapshot = at.map_or_else(|| self.open_snapshot(), |at| Ok(Arc::clone(at)))?;
        self.scan_at(bounds, Some(&snapshot)).count_rows(mode).await
    }

    /// Like [`has_unlisted`](Self::has_unlisted). The cached counts and states can't be combined with such changes.
    pub(super) fn has_unlisted_in(&self, interval: &Interval) -> bool {
        let (lower, upper) = as_slices(interval);
        self.has_unlisted((Bound::Included(lower), upper.map_or(Bound::Unbounded, Bound::Excluded)))
    }

    /// Returns the counts to use for a range, with reductions if requested. First folds the list of changes if more
    /// than `unsorted_max` changes are unsorted. Returns `None` if there are no counts yet and the range is too small
    /// to start them, or if there is no memory for counts.
    pub(super) async fn kept_for(
        &self,
        mode: WaitMode<'_>,
        interval: &Interval,
        with_reductions: bool,
        unsorted_max: usize,
    ) -> Result<Option<Arc<KeptCounts>>> {
        let (store, tree) = (self.store()?, self.tree);
        let mut kept = tree.counts.kept().filter(|kept| !with_reductions || kept.has_reductions());
        let (lower, upper) = as_slices(interval);
        if kept.is_none() && tree.has_many_leaves(mode, lower, upper).await? {
            kept = tree.keep_counts(&store.engine.budget, with_reductions, || store.engine.clock.published());
        }
        if let Some(kept) = &kept {
            tree.fold_counts(mode, kept, unsorted_max, |is_large| store.engine.fold_limit(is_large)).await?;
        }
        Ok(kept)
    }

    async fn count_kept(
        &self,
        mode: WaitMode<'_>,
        kept: &KeptCounts,
        interval: &Interval,
        at: Option<&Arc<SnapshotHandle>>,
    ) -> Result<Option<u64>> {
        let at = at.or(self.view.and_then(|view| view.horizon.snapshot()));
        if at.is_some_and(|at| at.timestamp < kept.base().horizon) {
            return Ok(None);
        }
        let (lower, upper) = as_slices(interval);
        for _ in 0..ATTEMPTS_MAX {
            let generation = kept.base().generation;
            let mut cursor = CountCursor::new(lower.to_vec(), upper.map(<[u8]>::to_vec), generation);
            if !self.tree.count_on(mode, kept, &mut cursor, None).await? {
                continue;
            }
            // Open the snapshot last: it must not be older than counts that this call may have started.
            let snapshot = match at {
                Some(at) => Arc::clone(at),
                None => self.open_snapshot()?,
            };
            let changes = match kept.changes_up_to(generation, snapshot.timestamp, (lower, upper)) {
                Ok(changes) => changes,
                Err(NoAnswer::Folded) => continue,
                Err(NoAnswer::Never) => return Ok(None),
            };
            let mut own = 0;
            self.own_changes(mode, interval, &snapshot, |_, change| {
                own += change;
                Ok(())
            })
            .await?;
            snapshot.check()?;
            self.record_interval(lower, upper)?;
            let count = cursor.rows().checked_add_signed(changes + own);
            if count.is_none() {
                kept.mark_inconsistent();
            }
            return Ok(count);
        }
        Ok(None)
    }

    /// Calls `visit`, in key order, with each row of a range that the reading transaction itself has inserted or
    /// removed, and 1 for an inserted row or -1 for a removed one.
    pub(super) async fn own_changes(
        &self,
        mode: WaitMode<'_>,
        (lower, upper): &Interval,
        snapshot: &SnapshotHandle,
        mut visit: impl FnMut(&[u8], i64) -> Result<()>,
    ) -> Result<()> {
        let Some(own) = self.view.and_then(|view| view.own.as_ref()) else { return Ok(()) };
        let engine = &self.store()?.engine;
        let upper = upper.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut from = Bound::Included(lower.clone());
        loop {
            let within = (from.as_ref().map(|key| &key[..]), upper);
            let next = own.set.range(self.tree.pages.id, within).next();
            let Some((key, is_put)) = next.map(|(key, change)| (key, !matches!(change, Change::Remove))) else {
                return Ok(());
            };
            let was_there = engine.has_row_at(mode, self.tree, key, snapshot.timestamp).await?;
            if is_put != was_there {
                visit(key, if is_put { 1 } else { -1 })?;
            }
            from = Bound::Excluded(key.to_vec());
        }
    }

    /// Records an interval in the read set of a serializable transaction.
    pub(super) fn record_interval(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        match self.view.and_then(|view| view.reads.as_ref()) {
            Some(reads) => reads.lock().add_interval(self.tree, lower, upper),
            None => Ok(()),
        }
    }

    async fn nth_at(
        &self,
        mode: WaitMode<'_>,
        bounds: OwnedBounds,
        index: u64,
        at: Option<&Arc<SnapshotHandle>>,
    ) -> Result<Option<(Value, Value)>> {
        if let Some(interval) = interval(&bounds)
            && !self.has_unlisted_in(&interval)
            && let Some(kept) = self.kept_for(mode, &interval, false, UNSORTED_CHANGES_MAX).await?
        {
            let snapshot = match at {
                Some(at) => Arc::clone(at),
                None => self.open_snapshot()?,
            };
            if let Some(found) = self.seek_kept(mode, &kept, &interval, index, &snapshot).await? {
                let Some((from, skipped)) = found else { return Ok(None) };
                let rest = (Bound::Included(from), bounds.1);
                return self.skip(mode, rest, skipped, Some(&snapshot)).await;
            }
        }
        self.skip(mode, bounds, index, at).await
    }

    /// Skips `row_count` rows of the range one by one, and returns the next row.
    async fn skip(
        &self,
        mode: WaitMode<'_>,
        bounds: OwnedBounds,
        row_count: u64,
        at: Option<&Arc<SnapshotHandle>>,
    ) -> Result<Option<(Value, Value)>> {
        let snapshot = at.map_or_else(|| self.open_snapshot(), |at| Ok(Arc::clone(at)))?;
        let mut rows = self.scan_at(bounds, Some(&snapshot));
        for _ in 0..row_count {
            if rows.next_key_in(mode, Direction::Forward).await.transpose()?.is_none() {
                return Ok(None);
            }
        }
        super::range::Steps::next_in(&mut rows, mode, Direction::Forward).await.transpose()
    }

    /// Finds the leaf of the row at position `index` of the range. Returns the leaf's first key in the range, and the
    /// row's position counted from that key. Returns `Some(None)` if the range has too few rows, and `None` if the
    /// counts are not valid for the snapshot.
    async fn seek_kept(
        &self,
        mode: WaitMode<'_>,
        kept: &KeptCounts,
        interval: &Interval,
        index: u64,
        snapshot: &Arc<SnapshotHandle>,
    ) -> Result<Option<Option<(Vec<u8>, u64)>>> {
        let (lower, upper) = as_slices(interval);
        let mut memory = self.store()?.engine.budget.grant(Account::Copies);
        let (mut own, mut key_bytes) = (Vec::new(), 0);
        let add = |key: &[u8], change| {
            key_bytes += heap_bytes(key.len());
            let bytes = grown_capacity(&own, 1) * size_of::<(Vec<u8>, i64)>() + key_bytes;
            if !memory.cover(bytes as u64) {
                return Err(Error::copies_in_memory(memory.limit_bytes()));
            }
            reserve(&mut own, 1);
            own.push((key.to_vec(), change));
            Ok(())
        };
        self.own_changes(mode, interval, snapshot, add).await?;
        let mut seek = Seek { snapshot: snapshot.timestamp, own, remaining: index, found: None };
        for _ in 0..ATTEMPTS_MAX {
            let generation = match kept.generation_for(snapshot.timestamp) {
                Ok(generation) => generation,
                Err(NoAnswer::Folded) => continue,
                Err(NoAnswer::Never) => return Ok(None),
            };
            seek.remaining = index;
            seek.found = None;
            let mut cursor = CountCursor::new(lower.to_vec(), upper.map(<[u8]>::to_vec), generation);
            if !self.tree.count_on(mode, kept, &mut cursor, Some(&mut seek)).await? {
                continue;
            }
            match kept.check_answer(generation, snapshot.timestamp) {
                Ok(()) => {}
                Err(NoAnswer::Folded) => continue,
                Err(NoAnswer::Never) => return Ok(None),
            }
            snapshot.check()?;
            // The counts have covered all keys up to the one found. The scan of the remaining keys records its own
            // reads.
            self.record_interval(lower, seek.found.as_deref().or(upper))?;
            return Ok(Some(seek.found.map(|from| (from, seek.remaining))));
        }
        Ok(None)
    }
}
