//! Reduces the rows of a range. Each operation is written once, for all handles and both wait modes.
//!
//! The keyspace caches states of the reducer (`counts/page_states.rs`). A call combines the cached states that are
//! valid for its snapshot, and reads the remaining rows.

use std::any::TypeId;
use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::bounds::OwnedBounds;
use super::counting::{Interval, as_slices, interval};
use super::reducer::{ReduceError, Reducer};
use super::rows::{RENEWALS_MAX, Rows};
use crate::counts::KeptCounts;
use crate::counts::page_states::{KeptReduction, NAME_BYTES_MAX, ReducerId, StateLevel, States};
use crate::counts::reduce_range::{Piece, ReduceCursor, Unreduced};
use crate::error::{Error, Result, quoted};
use crate::format::PageId;
use crate::pool::Stop;
use crate::task::{WaitMode, turn};
use crate::tree::node::{Leaf, RowValue};
use crate::tree::{Direction, Target};
use crate::txn::snapshots::SnapshotHandle;

/// The list of changes is folded once it has this many unsorted changes. Until then, each aggregate rereads the leaves
/// that these changes affect.
const REDUCTION_UNSORTED_CHANGES_MAX: usize = if cfg!(feature = "sim") { 4 } else { 64 };

/// After computing this many states that could not be cached, an aggregate computes no more states and only reads rows.
const UNKEPT_STATES_MAX: usize = 16;

/// A reducer whose panics are turned into errors.
struct Guarded<'r, R>(&'r R);

impl<R: Reducer> Guarded<'_, R> {
    fn call<T>(&self, function: impl FnOnce(&R) -> Result<T, ReduceError>) -> Result<T> {
        let reason = match catch_unwind(AssertUnwindSafe(|| function(self.0))) {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                format!("it panicked: {}", text.unwrap_or("for a reason that is no text"))
            }
        };
        // If `name` itself panics, the error has no name.
        let name = catch_unwind(AssertUnwindSafe(|| self.0.name().into_owned())).unwrap_or_default();
        Err(Error::Reducer { name, reason })
    }

    fn combine_all(&self, state: R::State, states: &States) -> Result<R::State> {
        self.call(|reducer| {
            states.iter().try_fold(state, |state, bytes| reducer.combine(state, reducer.decode(bytes)?))
        })
    }

    fn encoded(&self, state: &R::State) -> Result<Vec<u8>> {
        self.call(|reducer| {
            let mut bytes = Vec::new();
            reducer.encode(state, &mut bytes);
            Ok(bytes)
        })
    }
}

/// Returns the first eight bytes of a key, padded with zeros, as a number. If two keys have different heads, the keys
/// sort like the heads.
#[inline]
fn head(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => key.iter().rev().fold(0, |head, byte| head >> 8 | u64::from(*byte) << 56),
    }
}

/// Buffers that hold a copy of a leaf and the key of one of its rows.
#[derive(Default)]
struct LeafCopy {
    page: Vec<u8>,
    key: Vec<u8>,
}

/// The step that follows the rows of a leaf.
enum Next {
    Leaf,
    /// The next rows can only be read by a scan.
    Scan,
    End,
}

/// The state of a reduction that is being computed.
struct Reducing<'a, R: Reducer> {
    rows: &'a Rows<'a>,
    mode: WaitMode<'a>,
    reducer: Guarded<'a, R>,
    snapshot: &'a Arc<SnapshotHandle>,
}

impl<R: Reducer> Reducing<'_, R> {
    /// Calls `take` with each row from `lower` (inclusive) to `upper` (exclusive). Turns panics of `take` into errors,
    /// like panics of the reducer.
    async fn read(
        &self,
        lower: &[u8],
        upper: Option<&[u8]>,
        mut take: impl FnMut(&R, &[u8], &[u8]) -> Result<(), ReduceError>,
    ) -> Result<()> {
        let prefix_bytes = self.reducer.call(|reducer| Ok(reducer.prefix_bytes()))?;
        let mut take =
            |reducer: &R, key: &[u8], value: &[u8]| take(reducer, key, &value[..value.len().min(prefix_bytes)]);
        let Some(rest) = self.read_leaves(lower, upper, &mut take).await? else { return Ok(()) };
        let upper = upper.map_or(Bound::Unbounded, |upper| Bound::Excluded(upper.to_vec()));
        let range = self.rows.scan_at((Bound::Included(rest), upper), Some(self.snapshot));
        let mut range = range.for_reducer(prefix_bytes);
        let mut look = |key: &[u8], value: &[u8]| match self.reducer.call(|reducer| take(reducer, key, value)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        };
        match range.show_rows(self.mode, Direction::Forward, &mut look).await? {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }

    /// Like [`read`](Self::read), but stops at the first row that would need more than its leaf in memory: the leaf is
    /// not in memory, the row may have changed since the snapshot, or its value is stored elsewhere. Returns the key
    /// from which a scan must continue, if any rows remain.
    async fn read_leaves(
        &self,
        lower: &[u8],
        upper: Option<&[u8]>,
        take: &mut impl FnMut(&R, &[u8], &[u8]) -> Result<(), ReduceError>,
    ) -> Result<Option<Vec<u8>>> {
        let (mut from, mut copy) = (lower.to_vec(), LeafCopy::default());
        loop {
            self.mode.work(turn::LEAF_UNITS).await;
            let (row_count, next) = self.read_leaf(&mut from, upper, &mut copy, take)?;
            // Reading a leaf of 34 rows of 100 bytes, including the descent, takes 1 µs. With a lower weight, other
            // tasks' timer ticks were more than two milliseconds late.
            self.mode.worked(turn::ROW_UNITS * row_count as u32 / 4);
            match next {
                Next::Leaf => {}
                Next::Scan => return Ok(Some(from)),
                Next::End => return Ok(None),
            }
        }
    }

    /// Calls `take` with the rows of one leaf. Sets `from` to the key at which to continue, and returns the number of
    /// rows.
    fn read_leaf(
        &self,
        from: &mut Vec<u8>,
        upper: Option<&[u8]>,
        LeafCopy { page, key }: &mut LeafCopy,
        take: &mut impl FnMut(&R, &[u8], &[u8]) -> Result<(), ReduceError>,
    ) -> Result<(usize, Next)> {
        if !self.copy_leaf(from, upper, page)? {
            return Ok((0, Next::Scan));
        }
        let leaf = Leaf::new(page);
        let end = upper.map_or(leaf.len(), |upper| leaf.lower_bound(upper));
        let start = leaf.lower_bound(from);
        let has_large = self.reducer.call(|reducer| {
            for index in start..end {
                leaf.key_into(index, key);
                match leaf.value(index) {
                    RowValue::Inline(value) => take(reducer, key, value)?,
                    RowValue::Large(_) => return Ok(true),
                }
            }
            Ok(false)
        })?;
        let next = match leaf.upper_fence() {
            _ if has_large => {
                from.clone_from(key);
                Next::Scan
            }
            Some(fence) if upper.is_none_or(|upper| fence < upper) => {
                assert!(**from < *fence, "leaves are read backwards");
                from.clear();
                from.extend_from_slice(fence);
                Next::Leaf
            }
            _ => Next::End,
        };
        Ok((end.saturating_sub(start), next))
    }

    /// Copies the leaf that contains a key into `page`, so that no latch is held while the user's functions run.
    /// Returns `false` if the leaf is not in memory, or if the rows that the reader sees below `upper` may differ from
    /// those in the leaf.
    fn copy_leaf(&self, key: &[u8], upper: Option<&[u8]>, page: &mut Vec<u8>) -> Result<bool> {
        let (tree, seen) = (self.rows.tree, self.snapshot.timestamp);
        self.rows.store()?;
        let bounds = (Bound::Included(key), upper.map_or(Bound::Unbounded, Bound::Excluded));
        if self.rows.own_within(bounds).is_some() {
            return Ok(false);
        }
        let read = match tree.read_leaf(Target::At(key)) {
            Ok(read) => read,
            Err(Stop::Needs(_)) => return Ok(false),
            Err(Stop::Error(error)) => return Err(error),
        };
        let leaf = Leaf::new(&read);
        if leaf.newest() > seen || tree.has_runs_above(&leaf) || tree.pages.load_gate.is_loaded_since(seen) {
            return Ok(false);
        }
        page.clear();
        page.extend_from_slice(&read);
        drop(read);
        self.snapshot.check()?;
        Ok(true)
    }

    /// Combines `state` with the state of the rows from `lower` (inclusive) to `upper` (exclusive).
    async fn and_rows(&self, state: R::State, lower: &[u8], upper: Option<&[u8]>) -> Result<R::State> {
        let mut state = Some(state);
        self.read(lower, upper, |reducer, key, value| {
            let before = state.take().expect("it is put back, or the reduction ends");
            state = Some(reducer.combine(before, reducer.row(key, value)?)?);
            Ok(())
        })
        .await?;
        Ok(state.expect("it is put back"))
    }

    /// Computes the states of adjacent pages from their rows, and caches them. Returns `false` if not all of them could
    /// be cached.
    async fn make(
        &self,
        kept: &KeptCounts,
        reduction: &KeptReduction,
        lower: &[u8],
        pages: &[Unreduced],
    ) -> Result<bool> {
        let identity = || self.reducer.call(|reducer| Ok(reducer.identity()));
        let mut states: Vec<Option<R::State>> = Vec::new();
        for _ in pages {
            states.push(Some(identity()?));
        }
        let mut at = 0;
        let upper = pages.last().expect("there are pages").upper.as_deref();
        // Comparing the heads is enough to assign most rows to their page. Comparing the whole key of each row took a
        // quarter of the total time.
        let head_behind = |at: usize| pages[at].upper.as_deref().map_or(u64::MAX, head);
        let mut head_end = head_behind(at);
        self.read(lower, upper, |reducer, key, value| {
            if head(key) >= head_end {
                while pages[at].upper.as_deref().is_some_and(|upper| upper <= key) {
                    at += 1;
                }
                head_end = head_behind(at);
            }
            let before = states[at].take().expect("it is put back, or the reduction ends");
            states[at] = Some(reducer.combine(before, reducer.row(key, value)?)?);
            Ok(())
        })
        .await?;
        let mut are_kept = true;
        for (page, state) in pages.iter().zip(states) {
            let bytes = self.reducer.encoded(&state.expect("it is put back"))?;
            are_kept &= kept.store_state(reduction, (page.page, page.stamp), page.level, &bytes);
        }
        Ok(are_kept)
    }

    /// Computes an inner node's state from those of its children. Returns `false` if the state could not be cached.
    fn make_node(
        &self,
        kept: &KeptCounts,
        reduction: &KeptReduction,
        page: (PageId, u64),
        states: &States,
    ) -> Result<bool> {
        let state = self.reducer.combine_all(self.reducer.call(|reducer| Ok(reducer.identity()))?, states)?;
        Ok(kept.store_state(reduction, page, StateLevel::Inner, &self.reducer.encoded(&state)?))
    }
}

impl Rows<'_> {
    /// Reduces the rows of a range.
    pub(super) async fn aggregate<R: Reducer>(
        &self,
        mode: WaitMode<'_>,
        reducer: &R,
        bounds: OwnedBounds,
    ) -> Result<R::Output> {
        let guarded = Guarded(reducer);
        let mut state = guarded.call(|reducer| Ok(reducer.identity()))?;
        if let Some(interval) = interval(&bounds) {
            for attempt in 1..=RENEWALS_MAX {
                match self.reduce(mode, reducer, state, &interval).await {
                    // Retry: a newer snapshot does not need any old versions yet, so all of their space is available to
                    // it.
                    Err(Error::SnapshotTooOld { .. }) if self.is_latest() && attempt < RENEWALS_MAX => {
                        crate::coverage::mark!("an aggregate restarted at a newer snapshot");
                        state = guarded.call(|reducer| Ok(reducer.identity()))?;
                    }
                    reduced => {
                        state = self.noting(reduced)?;
                        break;
                    }
                }
            }
        }
        guarded.call(|reducer| Ok(reducer.output(state)))
    }

    async fn reduce<R: Reducer>(
        &self,
        mode: WaitMode<'_>,
        reducer: &R,
        state: R::State,
        interval: &Interval,
    ) -> Result<R::State> {
        let (lower, upper) = as_slices(interval);
        // The keyspace must start caching states before the snapshot is opened, so that they are valid for the
        // snapshot.
        let kept = match self.has_unlisted_in(interval) {
            true => None,
            false => self.kept_for(mode, interval, true, REDUCTION_UNSORTED_CHANGES_MAX).await?,
        };
        let snapshot = self.open_snapshot()?;
        let reducing = Reducing { rows: self, mode, reducer: Guarded(reducer), snapshot: &snapshot };
        let name = reducing.reducer.call(|reducer| Ok(reducer.name().into_owned()))?;
        if name.len() > NAME_BYTES_MAX {
            let name = quoted(&name);
            return Err(Error::Invalid(format!(
                "{name} can't name a reducer: names have up to {NAME_BYTES_MAX} bytes"
            )));
        }
        let id = ReducerId { kind: TypeId::of::<R>(), name };
        let kept = kept.and_then(|kept| {
            let reduction = kept.reductions()?.of(&id, snapshot.timestamp)?;
            Some((kept, reduction))
        });
        let state = match kept {
            Some((kept, reduction)) => self.reduce_kept(&reducing, &kept, &reduction, state, interval).await?,
            None => reducing.and_rows(state, lower, upper).await?,
        };
        snapshot.check()?;
        self.record_interval(lower, upper)?;
        Ok(state)
    }

    async fn reduce_kept<R: Reducer>(
        &self,
        reducing: &Reducing<'_, R>,
        kept: &KeptCounts,
        reduction: &KeptReduction,
        mut state: R::State,
        interval: &Interval,
    ) -> Result<R::State> {
        let own_changed = |from: &[u8]| self.own_key_from(from, interval.1.as_deref());
        let mut cursor = ReduceCursor {
            position: interval.0.clone(),
            end: interval.1.clone(),
            is_done: false,
            snapshot: reducing.snapshot.timestamp,
            next_changed: None,
            generation: u64::MAX,
            only_reads: false,
        };
        let mut vain_count = 0;
        while !cursor.is_done {
            let next = self.tree.next_piece(reducing.mode, kept, reduction, &own_changed, &mut cursor);
            let Some(piece) = next.await? else {
                let Ok(generation) = kept.generation_for(cursor.snapshot) else {
                    return reducing.and_rows(state, &cursor.position, cursor.end.as_deref()).await;
                };
                (cursor.generation, cursor.next_changed) = (generation, None);
                continue;
            };
            let is_vain = match piece {
                Piece::States(states) => {
                    state = reducing.reducer.combine_all(state, &states)?;
                    false
                }
                Piece::Rows { upper } => {
                    let upper = match (&upper, &cursor.end) {
                        (Some(upper), Some(end)) => Some(upper.min(end)),
                        (upper, end) => upper.as_ref().or(end.as_ref()),
                    };
                    state = reducing.and_rows(state, &cursor.position, upper.map(|upper| &upper[..])).await?;
                    let upper = upper.cloned();
                    cursor.pass(upper.as_deref());
                    false
                }
                Piece::Pages { lower, pages } => !reducing.make(kept, reduction, &lower, &pages).await?,
                Piece::Node { page, stamp, states } => !reducing.make_node(kept, reduction, (page, stamp), &states)?,
            };
            vain_count += usize::from(is_vain);
            cursor.only_reads = vain_count > UNKEPT_STATES_MAX;
        }
        // The cached states that were used are valid only if the list of changes is complete.
        if kept.invalidated() {
            let (lower, upper) = as_slices(interval);
            let identity = reducing.reducer.call(|reducer| Ok(reducer.identity()))?;
            return reducing.and_rows(identity, lower, upper).await;
        }
        Ok(state)
    }

    /// Returns the first key from `from` (inclusive) to `upper` (exclusive) that the reading transaction has itself
    /// changed.
    fn own_key_from(&self, from: &[u8], upper: Option<&[u8]>) -> Option<Vec<u8>> {
        let own = self.view.and_then(|view| view.own.as_ref())?;
        let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
        let (key, _) = own.set.range(self.tree.pages.id, (Bound::Included(from), upper)).next()?;
        Some(key.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::head;

    /// Keys of any length are ordered like their heads, unless the heads are equal.
    #[test]
    fn heads_are_in_the_order_of_keys() {
        let parts: [&[u8]; 7] =
            [b"", b"\0", b"\x01", b"a", b"abcdefg", b"abcdefgh", b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"];
        let keys: Vec<Vec<u8>> = parts.iter().flat_map(|one| parts.iter().map(|two| [*one, *two].concat())).collect();
        for one in &keys {
            for two in &keys {
                assert!(head(one) >= head(two) || one < two, "{one:?} and {two:?}");
            }
        }
        assert_eq!(head(b"ab"), u64::from_be_bytes(*b"ab\0\0\0\0\0\0"));
        assert_eq!(head(b"abcdefghi"), u64::from_be_bytes(*b"abcdefgh"));
    }
}
