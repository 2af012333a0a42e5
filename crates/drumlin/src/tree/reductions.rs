//! Reductions of the rows beneath each page: for each reducer that a keyspace was asked for, the states of its pages.
//!
//! They lie beside the counts and follow the same rules (`tree/counts.rs`), but for one thing: a sum could be corrected
//! by a row's old and new value, a minimum could not. So a state is that of the rows at the base, and only pages
//! beneath which no row was changed since are answered from it. Folding a change makes the states on its way void.
//!
//! # Invariants
//! 1. A page has a stamp. Another one takes its place whenever the page's fences change or a change beneath it is
//!    folded. A state is that of its page as long as the page's stamp is the one that was read before the rows were.
//! 2. A state is stored only if no change in the list up to the snapshot that it was made of lies in its page. So it
//!    holds at the base too, and for each snapshot up to which none does.
//! 3. From [`Reductions::since`] on the list has every change of a row, replaced values among them. No state is used
//!    for or made of an older snapshot.
//!
//! States are bytes here: `db/reducer.rs` knows what they are. No function of a user runs under a lock or a latch.
//!
//! The states of a few dozen reducers are kept, those that were used last. Tables of states take memory of the counts'
//! account until their last user drops them.

use std::any::TypeId;
use std::sync::Arc;

use super::count_entries::{CountEntries, CountEntry};
use crate::collections::HashMap;
use crate::format::{PageId, Timestamp};
use crate::memory::{Account, Budget, heap_bytes};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The longest name of a reducer, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 1 << 10;

/// Reducers whose states are kept, at most. A small budget keeps fewer: with the longest names, their tables take an
/// eighth of the counts' account.
const KEPT_MAX: u64 = 32;

/// Two reducers with the same identity give the same answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReducerId {
    pub(crate) kind: TypeId,
    pub(crate) name: String,
}

/// The reductions of a keyspace.
pub(crate) struct Reductions {
    /// A stamp for each page.
    pub(super) stamps: CountEntries,
    /// The newest commit when reductions began.
    pub(super) since: Timestamp,
    /// In the order of their last use.
    kept: Mutex<Vec<Arc<KeptReduction>>>,
    kept_max: usize,
    budget: Arc<Budget>,
}

/// Parts of a reducer's states, each under a lock of its own.
const PART_COUNT: usize = 64;
/// Pages side by side in a part.
const PART_PAGES: usize = 64;

/// Bytes of a state that need no memory of their own.
const INLINE_BYTES: usize = 22;

/// The bytes of a state: of most reducers a number or two.
enum StateBytes {
    Inline(u8, [u8; INLINE_BYTES]),
    Boxed(Box<[u8]>),
}

impl StateBytes {
    fn new(bytes: &[u8]) -> StateBytes {
        let mut inline = [0; INLINE_BYTES];
        let kept = match inline.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                StateBytes::Inline(bytes.len() as u8, inline)
            }
            None => StateBytes::Boxed(bytes.into()),
        };
        debug_assert_eq!(kept.as_slice(), bytes, "a state is kept as another");
        kept
    }

    #[inline]
    fn as_slice(&self) -> &[u8] {
        match self {
            StateBytes::Inline(length, bytes) => &bytes[..usize::from(*length)],
            StateBytes::Boxed(bytes) => bytes,
        }
    }
}

/// A page's state, and the stamp that it belongs to.
struct KeptState {
    stamp: u64,
    bytes: StateBytes,
}

impl KeptState {
    /// Its entry in a table that is three quarters full; for longer states an allocation, and what the allocator adds.
    fn memory_bytes_of(state_bytes: usize) -> u64 {
        let entry_bytes = (size_of::<(PageId, KeptState)>() + 1) as u64 * 4 / 3;
        entry_bytes + if state_bytes > INLINE_BYTES { state_bytes as u64 + 16 } else { 0 }
    }
}

/// The states of a reducer.
pub(crate) struct KeptReduction {
    id: ReducerId,
    parts: [Mutex<HashMap<PageId, KeptState>>; PART_COUNT],
    budget: Arc<Budget>,
    /// Taken of the budget.
    bytes: AtomicU64,
}

/// Bytes of a table of states without any, but for the reducer's name.
const TABLE_BYTES: u64 = size_of::<KeptReduction>() as u64 + 16;

impl Drop for KeptReduction {
    fn drop(&mut self) {
        self.budget.give(Account::Counts, self.bytes.load(Ordering::Relaxed));
    }
}

impl std::fmt::Debug for KeptReduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeptReduction({})", self.id.name)
    }
}

impl KeptReduction {
    /// Pages with numbers side by side share a part: those of a load are neighbours in the tree, too.
    fn part_of(page: PageId) -> usize {
        const { assert!(PART_COUNT.is_power_of_two() && PART_PAGES.is_power_of_two()) };
        page.0 as usize / PART_PAGES % PART_COUNT
    }
}

/// States, in the order of their pages' keys.
#[derive(Debug, Default)]
pub(crate) struct States {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl States {
    pub(super) fn with_capacity(count: usize) -> States {
        States { bytes: Vec::with_capacity(count * INLINE_BYTES), ends: Vec::with_capacity(count) }
    }

    fn push(&mut self, state: &[u8]) {
        self.bytes.extend_from_slice(state);
        self.ends.push(self.bytes.len());
        debug_assert!(self.ends.is_sorted(), "a state ends before the one in front of it");
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        debug_assert!(self.ends.last().is_none_or(|end| *end == self.bytes.len()), "bytes behind the last state");
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

impl Reductions {
    pub(super) fn new(now: Timestamp, budget: &Arc<Budget>) -> Reductions {
        let tables_bytes = budget.limit_bytes(Account::Counts) / 8;
        let kept_max = (tables_bytes / (TABLE_BYTES + NAME_BYTES_MAX as u64)).clamp(1, KEPT_MAX) as usize;
        Reductions {
            stamps: CountEntries::new(),
            since: now,
            kept: Mutex::default(),
            kept_max,
            budget: Arc::clone(budget),
        }
    }

    /// The states of a reducer; `None` if reductions began after the snapshot, or there is no memory for a table. A new
    /// table takes the place of the one that was used least recently.
    pub(crate) fn of(&self, id: &ReducerId, snapshot: Timestamp) -> Option<Arc<KeptReduction>> {
        assert!(id.name.len() <= NAME_BYTES_MAX, "a name of {} bytes is kept", id.name.len());
        if snapshot < self.since {
            return None;
        }
        let mut kept = self.kept.lock();
        if let Some(at) = kept.iter().position(|kept| kept.id == *id) {
            kept[at..].rotate_left(1);
            return kept.last().map(Arc::clone);
        }
        let made = Arc::new(KeptReduction::new(id.clone(), &self.budget)?);
        let evicted = (kept.len() == self.kept_max).then(|| kept.remove(0));
        kept.push(Arc::clone(&made));
        // It may have many states: other reducers are found while they are freed.
        drop(kept);
        drop(evicted);
        Some(made)
    }

    /// Appends the states of pages at the base, up to the first that has none. Returns how many have.
    pub(super) fn states(
        &self,
        reduction: &KeptReduction,
        pages: impl Iterator<Item = PageId>,
        states: &mut States,
    ) -> usize {
        let mut locked: Option<(usize, MutexGuard<'_, HashMap<PageId, KeptState>>)> = None;
        let before = states.len();
        for page in pages {
            let CountEntry::Unknown(stamp) = self.stamps.load(page) else { break };
            let part = KeptReduction::part_of(page);
            if locked.as_ref().is_none_or(|(of, _)| *of != part) {
                // Never two at once.
                drop(locked.take());
                locked = Some((part, reduction.parts[part].lock()));
            }
            let kept = locked.as_ref().and_then(|(_, states)| states.get(&page));
            let Some(kept) = kept.filter(|kept| kept.stamp == stamp) else { break };
            states.push(kept.bytes.as_slice());
        }
        assert!(states.len() >= before, "states are lost");
        states.len() - before
    }

    /// Returns `true` if the page's state is kept.
    pub(super) fn has_state(&self, reduction: &KeptReduction, page: PageId) -> bool {
        self.states(reduction, std::iter::once(page), &mut States::default()) > 0
    }
}

impl KeptReduction {
    /// A table without states; `None` if counts have taken five eighths of their memory. Half of it is for states, and
    /// the rest for the list of changes.
    fn new(id: ReducerId, budget: &Arc<Budget>) -> Option<KeptReduction> {
        let bytes = TABLE_BYTES + heap_bytes(id.name.capacity()) as u64;
        if budget.taken_bytes(Account::Counts) + bytes > budget.limit_bytes(Account::Counts) / 8 * 5 {
            return None;
        }
        budget.take(Account::Counts, bytes);
        let parts = std::array::from_fn(|_| Mutex::default());
        Some(KeptReduction { id, parts, budget: Arc::clone(budget), bytes: AtomicU64::new(bytes) })
    }

    /// The memory that a state takes.
    pub(super) fn memory_bytes_of(state: &[u8]) -> u64 {
        KeptState::memory_bytes_of(state.len())
    }

    /// Puts a page's state in place of the one before.
    pub(super) fn store(&self, page: PageId, stamp: u64, state: &[u8]) {
        debug_assert!(page != PageId::NONE, "page 0 has no rows");
        let kept = KeptState { stamp, bytes: StateBytes::new(state) };
        // Before another thread can replace it.
        let needed_bytes = Self::memory_bytes_of(state);
        self.budget.take(Account::Counts, needed_bytes);
        self.bytes.fetch_add(needed_bytes, Ordering::Relaxed);
        let replaced = self.parts[Self::part_of(page)].lock().insert(page, kept);
        let freed_bytes = replaced.map_or(0, |replaced| Self::memory_bytes_of(replaced.bytes.as_slice()));
        let before = self.bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
        assert!(freed_bytes <= before, "states give back {freed_bytes} bytes of {before}");
        self.budget.give(Account::Counts, freed_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States come back as they were pushed, empty ones too.
    #[test]
    fn states_keep_their_order() {
        let mut states = States::default();
        let pushed: [&[u8]; 4] = [b"one", b"", b"three", b"4"];
        pushed.iter().for_each(|state| states.push(state));
        assert_eq!(states.iter().collect::<Vec<_>>(), pushed);
        assert_eq!(states.len(), 4);
    }

    /// Bytes of all lengths are kept, with or without memory of their own.
    #[test]
    fn states_of_all_lengths_are_kept() {
        for length in 0..2 * INLINE_BYTES {
            let bytes: Vec<u8> = (0..length as u8).collect();
            assert_eq!(StateBytes::new(&bytes).as_slice(), bytes);
        }
    }

    /// The states of the reducers that were used last are kept, and memory is taken for no others: of any number of
    /// names.
    #[test]
    fn the_reducers_used_last_are_kept() {
        let budget = Arc::new(Budget::new(64 << 20, 1));
        let reductions = Reductions::new(Timestamp(1), &budget);
        let of = |name: String| reductions.of(&ReducerId { kind: TypeId::of::<u8>(), name }, Timestamp(1)).unwrap();
        let taken = || budget.taken_bytes(Account::Counts);
        let (used, page, state) = (of("used".into()), PageId(7), [1; 100]);
        used.store(page, 1, &state);
        assert_eq!(taken(), TABLE_BYTES + heap_bytes(4) as u64 + KeptReduction::memory_bytes_of(&state));
        used.store(page, 2, b"less");
        assert_eq!(taken(), TABLE_BYTES + heap_bytes(4) as u64 + KeptReduction::memory_bytes_of(b"less"));
        for number in 0..1000 {
            of(format!("{number:0NAME_BYTES_MAX$}"));
            assert!(taken() <= budget.limit_bytes(Account::Counts) / 8, "{} bytes of {number} names", taken());
            assert!(Arc::ptr_eq(&of("used".into()), &used), "a reducer is dropped that is used");
        }
        assert_eq!(reductions.kept.lock().len() as u64, KEPT_MAX);
        (0..KEPT_MAX).for_each(|number| drop(of(number.to_string())));
        assert!(!Arc::ptr_eq(&of("used".into()), &used), "a reducer is kept that is not used");
        let with_evicted = taken();
        drop(used);
        assert!(taken() < with_evicted, "memory is given back while states are in use");
        drop(reductions);
        assert_eq!(taken(), 0);
    }

    /// A stamp that is voided, or whose page's fences change, is another one afterwards.
    #[test]
    fn stamps_change() {
        let stamps = CountEntries::new();
        let page = PageId(9);
        let stamp = |stamps: &CountEntries| match stamps.load_made(page, drop) {
            CountEntry::Unknown(stamp) => stamp,
            other => panic!("{other:?}"),
        };
        let first = stamp(&stamps);
        stamps.void(page);
        let second = stamp(&stamps);
        stamps.unsettle(page, drop);
        stamps.void(page);
        assert_eq!(stamps.load(page), CountEntry::Changing);
        stamps.settle(page);
        let third = stamp(&stamps);
        stamps.renew(page, drop);
        let stamps = [first, second, third, stamp(&stamps)];
        assert!(stamps.is_sorted_by(|one, next| one < next), "{stamps:?}");
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::sync::{Arc, Mutex, RwLock};
    use loom::thread;

    use super::*;
    use crate::sync::atomic::{AtomicU64, Ordering};

    const PAGE: PageId = PageId(2);

    /// The part of the protocol that a model leaves out.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Without {
        Nothing,
        /// A fold leaves the page its stamp.
        Voiding,
        /// The stamp is read behind the rows.
        StampFirst,
    }

    /// A page with a row that commit 2 changes.
    struct Page {
        stamps: CountEntries,
        published: AtomicU64,
        /// Commits whose changes are in the list.
        list: Mutex<Vec<u64>>,
        /// The commit up to which changes are folded.
        base: RwLock<u64>,
        state: Mutex<Option<(u64, u64)>>,
        leaf: Mutex<()>,
        without: Without,
    }

    impl Page {
        /// The row as commit `snapshot` left it.
        fn row(snapshot: u64) -> u64 {
            snapshot * 10
        }

        fn stamp(&self) -> u64 {
            match self.stamps.load_made(PAGE, drop) {
                CountEntry::Unknown(stamp) => stamp,
                other => unreachable!("{other:?}"),
            }
        }

        fn commit(&self) {
            let latched = self.leaf.lock().unwrap();
            self.list.lock().unwrap().push(2);
            drop(latched);
            self.published.store(2, Ordering::Release);
        }

        fn fold(&self) {
            let mut base = self.base.write().unwrap();
            self.list.lock().unwrap().clear();
            if self.without != Without::Voiding {
                self.stamps.void(PAGE);
            }
            *base = 2;
        }

        fn make(&self) {
            let snapshot = self.published.load(Ordering::Acquire);
            let stamp = {
                let base = self.base.read().unwrap();
                if snapshot < *base || self.list.lock().unwrap().iter().any(|commit| *commit <= snapshot) {
                    return;
                }
                (self.without != Without::StampFirst).then(|| self.stamp())
            };
            // The rows are read in between, under the leaf's latch.
            drop(self.leaf.lock().unwrap());
            let row = Self::row(snapshot);
            let stamp = stamp.unwrap_or_else(|| self.stamp());
            *self.state.lock().unwrap() = Some((stamp, row));
        }

        /// The state that is used, if any is.
        fn reduce(&self) {
            let snapshot = self.published.load(Ordering::Acquire);
            let base = self.base.read().unwrap();
            if snapshot < *base || self.list.lock().unwrap().iter().any(|commit| *commit <= snapshot) {
                return;
            }
            let stamp = self.stamp();
            let state = *self.state.lock().unwrap();
            if let Some((of, row)) = state
                && of == stamp
            {
                assert_eq!(row, Self::row(snapshot), "a state of another snapshot");
            }
        }
    }

    /// A thread makes a state, another one commits and folds; a state that is used is of its snapshot.
    fn reduce_beside_fold(without: Without) {
        loom::model(move || {
            let page = Arc::new(Page {
                stamps: CountEntries::new(),
                published: AtomicU64::new(1),
                list: Mutex::default(),
                base: RwLock::new(0),
                state: Mutex::new(None),
                leaf: Mutex::default(),
                without,
            });
            // Levels are made before threads meet: their making is no part of the protocol.
            page.stamp();
            let making = {
                let page = Arc::clone(&page);
                thread::spawn(move || page.make())
            };
            let writing = {
                let page = Arc::clone(&page);
                thread::spawn(move || {
                    page.commit();
                    page.fold();
                })
            };
            page.reduce();
            making.join().unwrap();
            writing.join().unwrap();
            page.reduce();
        });
    }

    #[test]
    fn loom_states_beside_a_fold_are_right() {
        reduce_beside_fold(Without::Nothing);
    }

    /// The model finds what it is for.
    #[test]
    #[should_panic(expected = "a state of another snapshot")]
    fn loom_states_that_a_fold_leaves_are_wrong() {
        reduce_beside_fold(Without::Voiding);
    }

    /// As above.
    #[test]
    #[should_panic(expected = "a state of another snapshot")]
    fn loom_states_with_a_later_stamp_are_wrong() {
        reduce_beside_fold(Without::StampFirst);
    }
}
