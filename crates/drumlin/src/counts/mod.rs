//! Row counts of a keyspace: the number of rows beneath each page, and a list of the changes since they were counted.
//!
//! Counts are stored separately from the pages, because inner nodes are immutable in memory. A keyspace starts to cache
//! [`KeptCounts`] with its first large count, bulk load or check. Its entries hold the number of rows beneath each page
//! *at the base*: as if none of the changes in the list had been made. A commit adds each row that it inserts or
//! removes to the list; replacing a value adds nothing. So the count of a range at snapshot s is the sum of three
//! numbers: the entries of the pages that lie entirely within the range, the rows at the base in the leaves at its two
//! ends, and the listed changes up to s. Once the list is too long, the changes that every reader sees are *folded*:
//! added to the entries of the pages above them, and removed from the list.
//!
//! In a keyspace that is never counted, this costs one load of a flag per inserted or removed row.
//!
//! Reductions of the rows' values are cached along with the counts (`counts/page_states.rs`). While a keyspace has
//! reductions, the list also contains replaced values, and a fold voids the reductions of the pages whose rows it
//! changes.
//!
//! # Invariants
//! 1. The list contains exactly the inserts and removals since counts began that have not been folded. A change is
//!    added under the exclusive latch of its leaf, before its commit is published. So a thread that has latched a leaf
//!    finds all changes to the leaf's rows, and a reader at s finds all changes up to s. Counts begin under the
//!    exclusive epoch latch, when no commit is half applied.
//! 2. A count in an entry is the number of rows at the base within its page's fences. It is stored by compare-and-swap,
//!    so it can replace only the stamp that was read before the rows were counted.
//! 3. A page's entry becomes `Changing` before the page's fences change, and before any node with the new fences is
//!    published. Once all these nodes are published, it becomes `Unknown` with a new stamp ([`Counts::end_change`]),
//!    unless a second change of the page has begun by then. To sum the children of a node, a thread loads the node,
//!    loads the children's entries, and then checks that the page table still shows the node. If an entry was stored
//!    after its page's fences changed, the parent had already been replaced, so the check fails. If a change removes a
//!    page, the change ends before the page's id is freed. The next page with that id starts with a new stamp, so a
//!    late count of the old page is either not stored or soon replaced by that stamp.
//! 4. A fold changes the entries and the list while it holds the base's lock exclusively; counting holds the lock
//!    shared. Both release it between steps. A fold increments the generation, which tells a count that its earlier
//!    sums are void.
//! 5. When counts end, they are marked as invalid before the first change is missing from the list. From then on, no
//!    answer uses them.
//!
//! Lock order: the epoch latch, the base's lock, a leaf's latch, the list's lock, the lock of one part. A structure
//! change takes only the lock that guards the pointer to the counts and, during a capture, that of the recorded pages.

pub(crate) mod capture;
mod capture_state;
mod change_list;
pub(crate) mod count_range;
mod kept;
pub(crate) mod loaded;
mod page_entries;
pub(crate) mod page_states;
pub(crate) mod reduce_range;

use std::ops::{Bound, Deref};
use std::sync::Arc;

use crate::format::{PageId, Timestamp};
use crate::memory::{Account, Budget};
use crate::space::EpochGuard;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::tree::Tree;
use kept::CountState;
use loaded::LoadedCounts;
use page_entries::CountEntries;
use page_states::Reductions;

pub(crate) use change_list::RowChange;
pub(crate) use kept::{KeptCounts, NoAnswer, UNSORTED_CHANGES_MAX};

/// The B+tree of a keyspace, and the counts of its rows. Cheap to clone. See the module.
#[derive(Clone, Debug)]
pub(crate) struct CountedTree {
    tree: Tree,
    pub(crate) counts: Arc<Counts>,
}

impl CountedTree {
    /// Joins a tree with its counts. The tree's observer must pass structure changes on to `counts`.
    pub(crate) fn new(tree: Tree, counts: Arc<Counts>) -> CountedTree {
        CountedTree { tree, counts }
    }

    /// Begins to cache the keyspace's counts, and with `keeps_reductions` also reductions of its values. Returns `None`
    /// if there is too little memory. Commits pause briefly: those that already have a timestamp are applied first, and
    /// later ones see that counts are kept. `published` is called during the pause and returns the newest commit.
    pub(crate) fn keep_counts(
        &self,
        budget: &Arc<Budget>,
        keeps_reductions: bool,
        published: impl FnOnce() -> Timestamp,
    ) -> Option<Arc<KeptCounts>> {
        let epoch_guard = self.pool.space.epoch_latch.exclusive();
        // A dropped keyspace would never release its counts.
        self.check_dropped().ok()?;
        // The rows of runs are not beneath the pages of the tree, and folding them does not record them.
        if !self.pages.runs.is_empty() {
            return None;
        }
        let begin = if keeps_reductions { Counts::begin_reductions } else { Counts::begin };
        begin(&self.counts, &epoch_guard, published(), budget, self.pages.table.number_end())
    }
}

impl Deref for CountedTree {
    type Target = Tree;

    #[inline]
    fn deref(&self) -> &Tree {
        &self.tree
    }
}

/// The counts of a keyspace, or a note that it has none.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// `true` if the keyspace has counts. Commits read this flag for every row that they insert or remove.
    are_kept: AtomicBool,
    /// `true` if reductions are kept, so that replaced values go into the list too.
    are_values_kept: AtomicBool,
    /// `true` if the fences of any page have changed since the last checkpoint began, or since the database was opened.
    is_restructured: AtomicBool,
    kept: RwLock<Option<Arc<KeptCounts>>>,
}

impl Counts {
    /// Returns the counts, or `None` if the keyspace has none or they have been invalidated.
    #[inline]
    pub(crate) fn kept(&self) -> Option<Arc<KeptCounts>> {
        if !self.are_kept.load(Ordering::Acquire) {
            return None;
        }
        let kept = self.kept.read().clone()?;
        if kept.invalidated() {
            self.end(&kept);
            return None;
        }
        Some(kept)
    }

    /// Begins to cache counts, with room for page numbers below `number_end`. The caller holds the exclusive epoch
    /// latch, so no commit is half applied, and `now` is published. Returns `None` if there is too little memory.
    pub(crate) fn begin(
        &self,
        _epoch_guard: &EpochGuard<'_>,
        now: Timestamp,
        budget: &Arc<Budget>,
        number_end: u64,
    ) -> Option<Arc<KeptCounts>> {
        if let Some(kept) = self.kept() {
            return Some(kept);
        }
        let needed_bytes = CountEntries::memory_bytes_of(number_end) + (64 << 10);
        if budget.taken_bytes(Account::Counts) + needed_bytes > budget.limit_bytes(Account::Counts) / 2 {
            return None;
        }
        let kept = Arc::new(KeptCounts::new(now, budget));
        let before = self.kept.write().replace(Arc::clone(&kept));
        assert!(before.is_none(), "counts begin beside others");
        self.are_kept.store(true, Ordering::Release);
        crate::coverage::mark!("a keyspace began to keep counts");
        Some(kept)
    }

    /// Begins to cache counts, starting with those of a bulk load that commit `at` has attached. The caller holds the
    /// exclusive epoch latch, and earlier counts of the keyspace have ended.
    pub(crate) fn begin_loaded(&self, _epoch_guard: &EpochGuard<'_>, loaded: LoadedCounts, at: Timestamp) {
        let kept = loaded.into_kept();
        assert!(at > Timestamp(0), "a load is attached by no commit");
        if kept.invalidated() {
            return;
        }
        let base = CountState { horizon: at, floor: at, generation: 0 };
        *kept.base.write() = base;
        let before = self.kept.write().replace(Arc::new(kept));
        assert!(before.is_none(), "the counts of a load begin beside others");
        self.are_kept.store(true, Ordering::Release);
        crate::coverage::mark!("a keyspace began to keep the counts of a load");
    }

    /// Begins to cache reductions, and also counts if the keyspace has none yet, like [`begin`](Self::begin). Returns
    /// the counts.
    pub(crate) fn begin_reductions(
        &self,
        epoch_guard: &EpochGuard<'_>,
        now: Timestamp,
        budget: &Arc<Budget>,
        number_end: u64,
    ) -> Option<Arc<KeptCounts>> {
        let kept = self.begin(epoch_guard, now, budget, number_end)?;
        if kept.reductions.get().is_none() {
            // Five eighths is also the limit for tables of states. It leaves room for the list, which is folded at a
            // quarter.
            let needed_bytes = budget.taken_bytes(Account::Counts) + CountEntries::memory_bytes_of(number_end);
            if needed_bytes > budget.limit_bytes(Account::Counts) / 8 * 5 {
                return None;
            }
            let is_new = kept.reductions.set(Reductions::new(now, budget)).is_ok();
            assert!(is_new, "reductions begin beside others");
            self.are_values_kept.store(true, Ordering::Release);
        }
        Some(kept)
    }

    /// Ends these counts. Must be called before the first change is missing from their list.
    fn end(&self, kept: &Arc<KeptCounts>) {
        kept.invalidated.store(true, Ordering::Release);
        let mut current = self.kept.write();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, kept)) {
            self.are_kept.store(false, Ordering::Release);
            self.are_values_kept.store(false, Ordering::Release);
            *current = None;
        }
    }

    /// Ends the counts, if the keyspace has any.
    pub(crate) fn discard(&self) {
        if let Some(kept) = self.kept() {
            self.end(&kept);
        }
    }

    /// Records that a commit changed the row. The caller holds the leaf's exclusive latch, and the commit is not
    /// published yet.
    #[inline]
    pub(crate) fn record_change(&self, key: &[u8], timestamp: Timestamp, change: RowChange) {
        let is_listed = if change == RowChange::Replaced { &self.are_values_kept } else { &self.are_kept };
        if is_listed.load(Ordering::Acquire) {
            self.record_kept(key, timestamp, change);
        }
    }

    fn record_kept(&self, key: &[u8], timestamp: Timestamp, change: RowChange) {
        let is_missing = self.kept.read().as_ref().is_some_and(|kept| !kept.add(key, timestamp, change));
        if is_missing {
            let ended = self.kept();
            debug_assert!(ended.is_none(), "a change is missing in a list that goes on");
        }
    }

    /// Voids the count under this page number, which is about to be given to a new page.
    pub(crate) fn page_created(&self, page: PageId) {
        self.is_restructured.store(true, Ordering::Relaxed);
        if let Some(kept) = self.kept() {
            kept.capture.record_changed_page(page);
            kept.renew(page);
        }
    }

    /// Voids the counts of pages whose fences are about to change. The caller has latched these pages. Their counts
    /// can't be stored until [`end_change`](Self::end_change).
    pub(crate) fn begin_change(&self, pages: &[PageId]) {
        self.is_restructured.store(true, Ordering::Relaxed);
        if let Some(kept) = self.kept() {
            pages.iter().for_each(|&page| kept.capture.record_changed_page(page));
            pages.iter().for_each(|&page| kept.begin_change(page));
        }
    }

    /// Ends a change of fences. Counts can't have begun since [`begin_change`](Self::begin_change), because the caller
    /// holds the epoch latch shared. If the counts ended during the change, their entries stay void.
    pub(crate) fn end_change(&self, pages: &[PageId]) {
        if self.are_kept.load(Ordering::Acquire)
            && let Some(kept) = &*self.kept.read()
        {
            pages.iter().for_each(|&page| kept.end_change(page));
        }
    }
}

/// Converts bounds to an inclusive lower and an exclusive upper bound.
pub(crate) fn half_open(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (Vec<u8>, Option<Vec<u8>>) {
    // Returns the smallest key above `key`.
    let next_key = |key: &[u8]| [key, &[0]].concat();
    let first = match lower {
        Bound::Unbounded => Vec::new(),
        Bound::Included(key) => key.to_vec(),
        Bound::Excluded(key) => next_key(key),
    };
    let end = match upper {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(next_key(key)),
        Bound::Excluded(key) => Some(key.to_vec()),
    };
    (first, end)
}

/// Like [`half_open`], but returns `None` if the range is empty.
pub(crate) fn interval_of(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    Some(half_open(lower, upper)).filter(|(first, end)| end.as_ref().is_none_or(|end| first < end))
}
