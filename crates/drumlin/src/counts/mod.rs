//! Row counts of a keyspace: the number of rows beneath each page, and a list of the changes since they were counted.
//!
//! Counts are stored next to the pages, not in them, because inner nodes are never changed in memory. A keyspace starts
//! to keep [`KeptCounts`] with its first large count, bulk load or check. Its entries give the number of rows beneath
//! each page *at the base*: as if none of the changes in the list had been made. A commit adds each row that it inserts
//! or removes to the list; replacing a value adds nothing. So the count of a range at snapshot s is the sum of three
//! numbers: the entries of the pages that lie entirely within the range, the rows at the base in the leaves at its two
//! ends, and the changes in the list up to s. When the list has grown, the changes that every reader sees are *folded*:
//! added to the entries of the pages above them and removed from the list.
//!
//! A keyspace that is never counted pays one load of a flag for each row that is inserted or removed.
//!
//! Reductions of the rows' values are kept next to the counts (`counts/page_states.rs`). While a keyspace has any, the
//! list also holds the rows whose values were replaced, and a fold voids the reductions of the pages that it touches.
//!
//! # Invariants
//! 1. The list holds exactly the inserts and removals since counts began that have not been folded. A change is added
//!    under the exclusive latch of its leaf, before its commit is published. So a thread that has a leaf latched finds
//!    all changes of the leaf's rows, and a reader at s finds all changes up to s. Counts begin under the exclusive
//!    epoch latch, when no commit is half applied.
//! 2. An entry that holds a count holds the number of rows at the base within its page's fences. A count is stored by
//!    compare-and-swap: it replaces only the stamp that was read before the rows were counted.
//! 3. A page's entry becomes `Changing` before the page's fences change, and before any node with the new fences is
//!    published. Once all these nodes are published it becomes `Unknown` with a new stamp ([`Counts::end_change`]). To
//!    sum the children of a node, a thread loads the node, loads the children's entries, and then checks that the page
//!    table still shows the node. An entry that was stored after its page's fences changed was stored after the parent
//!    was replaced, so the check fails. If a change removes a page, it ends before the page's number is freed. The next
//!    page with that number begins with a stamp of its own, so a late count of the old page is either not stored or not
//!    kept.
//! 4. A fold adds to entries and removes from the list while it holds the lock of the base exclusively; counting holds
//!    it shared. Both release the lock between steps. A fold raises the generation, by which a count notices that the
//!    sums it made before are void.
//! 5. Counts that end are marked as ended before the first change is left out of the list. No answer is taken from them
//!    afterwards.
//!
//! Lock order: the epoch latch, the base, a leaf's latch, the list, a part of the list. A structure change takes only
//! the lock that guards the pointer to the counts.

pub(crate) mod capture;
mod change_list;
pub(crate) mod count_range;
pub(crate) mod loaded;
mod page_entries;
pub(crate) mod page_states;
pub(crate) mod reduce_range;

use std::ops::{Bound, Deref};
use std::sync::{Arc, OnceLock};

use capture::CaptureState;
use change_list::ChangeList;
pub(crate) use change_list::RowChange;

use crate::format::{PageId, Timestamp};
use crate::memory::{Account, Budget};
use crate::space::EpochGuard;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{CachePadded, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, thread_index};

use crate::tree::Tree;
use loaded::LoadedCounts;
use page_entries::CountEntries;
pub(crate) use page_entries::CountEntry;
use page_states::{KeptReduction, Reductions, StateLevel};

/// The point in time as of which the entries are counted.
#[derive(Debug)]
pub(crate) struct CountState {
    /// Changes up to this commit may be folded, so the counts answer no reader at an earlier snapshot.
    pub(crate) horizon: Timestamp,
    /// All changes up to this commit are folded.
    pub(crate) floor: Timestamp,
    /// Raised by each fold.
    pub(crate) generation: u64,
}

/// Number of parts of the list that commits add to. Each part has its own lock.
const PART_COUNT: usize = 8;

/// Limit on the size of the list under any budget: the offset of a key in the list has four bytes.
const LIST_BYTES_MAX: u64 = 512 << 20;

/// Number of unsorted changes at which the list is folded. Looking through 2,048 takes 10 us; folding them takes 1 ms.
/// Measured: the figures above.
pub(crate) const UNSORTED_CHANGES_MAX: usize = if cfg!(feature = "sim") { 32 } else { 2048 };

/// The counts that a keyspace keeps: its entries and its list of changes. See the module.
pub(crate) struct KeptCounts {
    entries: CountEntries,
    invalidated: AtomicBool,
    base: RwLock<CountState>,
    list: Mutex<ChangeList>,
    parts: [CachePadded<Mutex<ChangeList>>; PART_COUNT],
    /// Reductions of the rows' values; set by the first aggregate.
    reductions: OnceLock<Reductions>,
    capture: CaptureState,
    budget: Arc<Budget>,
    /// Bytes taken from the budget.
    bytes: AtomicU64,
    /// Limits on the bytes of the list and of each of its parts.
    list_bytes_max: u64,
    part_bytes_max: u64,
}

impl std::fmt::Debug for KeptCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeptCounts({} bytes)", self.bytes.load(Ordering::Relaxed))
    }
}

impl Drop for KeptCounts {
    fn drop(&mut self) {
        self.budget.give(Account::Counts, self.bytes.load(Ordering::Relaxed));
    }
}

/// The reason why counts do not answer for a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoAnswer {
    /// Changes have been folded since the sums were begun, which makes the sums void.
    Folded,
    /// The snapshot is older than the counts, or the counts have ended.
    Never,
}

impl KeptCounts {
    fn new(now: Timestamp, budget: &Arc<Budget>) -> KeptCounts {
        let list_bytes_max = (budget.limit_bytes(Account::Counts) / 2).min(LIST_BYTES_MAX);
        KeptCounts {
            entries: CountEntries::new(),
            invalidated: AtomicBool::new(false),
            base: RwLock::new(CountState { horizon: now, floor: now, generation: 0 }),
            list: Mutex::default(),
            parts: std::array::from_fn(|_| CachePadded::default()),
            reductions: OnceLock::new(),
            capture: CaptureState::new(),
            budget: Arc::clone(budget),
            bytes: AtomicU64::new(0),
            list_bytes_max,
            part_bytes_max: list_bytes_max / 4,
        }
    }

    fn take(&self, bytes: u64) {
        self.budget.take(Account::Counts, bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.budget.taken_bytes(Account::Counts) > self.budget.limit_bytes(Account::Counts) {
            crate::coverage::mark!("counts were dropped for lack of memory");
            self.invalidated.store(true, Ordering::Release);
        }
    }

    fn give(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(bytes <= before, "counts give back {bytes} bytes of {before}");
        self.budget.give(Account::Counts, bytes);
    }

    /// Updates the accounts for a list that had `before` bytes and now has `now`.
    fn account(&self, before: u64, now: u64) {
        if now > before {
            self.take(now - before);
        } else if now < before {
            self.give(before - now);
        }
    }

    // ── the list ───────────────────────────────────────────────────────────────────────────────────────────────────

    /// Adds a row that a commit changed to the list. The caller holds the leaf's exclusive latch. Returns `false` if
    /// the change was not added because the counts have ended, or end now because the list is full.
    fn add(&self, key: &[u8], timestamp: Timestamp, change: RowChange) -> bool {
        if self.invalidated() {
            return false;
        }
        let mut part = self.parts[thread_index() % PART_COUNT].lock();
        let before = part.memory_bytes();
        if before > self.part_bytes_max {
            crate::coverage::mark!("counts were dropped because their list was too long");
            self.invalidated.store(true, Ordering::Release);
            return false;
        }
        part.push(key, timestamp, change);
        let now = part.memory_bytes();
        drop(part);
        if now != before {
            self.account(before, now);
        }
        true
    }

    /// Merges the parts into the list, and calls `look` with it.
    fn with_list<R>(&self, look: impl FnOnce(&mut ChangeList) -> R) -> R {
        let mut list = self.list.lock();
        let before = list.memory_bytes();
        let mut parts_bytes = 0;
        for part in &self.parts {
            let mut part = part.lock();
            if !part.changes.is_empty() {
                list.append(&mut part);
                // Free a large buffer here, in case few changes are added to this part from now on.
                if part.memory_bytes() > self.part_bytes_max / 2 {
                    parts_bytes += part.memory_bytes();
                    *part = ChangeList::default();
                }
            }
        }
        let result = look(&mut list);
        let now = list.memory_bytes();
        if now > 2 * self.list_bytes_max {
            self.invalidated.store(true, Ordering::Release);
        }
        drop(list);
        self.account(before + parts_bytes, now);
        result
    }

    /// Returns the net number of rows that all listed changes add between `lower` and `upper`. The caller holds the
    /// latch of the leaf with these keys.
    fn all_changes(&self, lower: &[u8], upper: Option<&[u8]>) -> i64 {
        self.with_list(|list| list.sum(lower, upper, Timestamp(u64::MAX)))
    }

    /// Fails if sums made in this generation are not valid for the snapshot.
    fn check(&self, base: &CountState, generation: u64, snapshot: Timestamp) -> Result<(), NoAnswer> {
        assert!(generation <= base.generation && base.floor <= base.horizon, "{base:?} goes back");
        if self.invalidated() || snapshot < base.horizon {
            return Err(NoAnswer::Never);
        }
        if base.generation == generation { Ok(()) } else { Err(NoAnswer::Folded) }
    }

    /// Returns the net number of rows that the changes in a range add up to a published snapshot, to be added to the
    /// rows that were summed in this generation.
    pub(crate) fn changes_up_to(
        &self,
        generation: u64,
        snapshot: Timestamp,
        (lower, upper): (&[u8], Option<&[u8]>),
    ) -> Result<i64, NoAnswer> {
        let base = self.base();
        let sum = self.with_list(|list| list.sum(lower, upper, snapshot));
        self.check(&base, generation, snapshot)?;
        Ok(sum)
    }

    /// Calls `visit`, in no order, with each changed key of a range up to a snapshot, and with 1 for an insert, -1 for
    /// a removal or 0 for a replaced value. The caller holds `base`, and adds these changes to the rows at the base.
    fn visit_changes(
        &self,
        base: &CountState,
        (lower, upper): (&[u8], Option<&[u8]>),
        up_to: Timestamp,
        mut visit: impl FnMut(&[u8], i64),
    ) {
        debug_assert!(up_to >= base.horizon || self.invalidated(), "changes up to {up_to} are folded: {base:?}");
        self.with_list(|list| {
            let seen = list.within(lower, upper).filter(|change| change.timestamp <= up_to);
            seen.for_each(|change| visit(list.key(change), change.sign()));
        });
    }

    /// Returns the lowest key of a range that was changed since the base and up to a snapshot. The caller holds `base`.
    fn first_changed(
        &self,
        base: &CountState,
        (lower, upper): (&[u8], Option<&[u8]>),
        up_to: Timestamp,
    ) -> Option<Vec<u8>> {
        debug_assert!(up_to >= base.horizon || self.invalidated(), "changes up to {up_to} are folded: {base:?}");
        self.with_list(|list| list.first_changed(lower, upper, up_to).map(<[u8]>::to_vec))
    }

    /// Returns the current generation, if its sums and states answer for the snapshot.
    pub(crate) fn generation_for(&self, snapshot: Timestamp) -> Result<u64, NoAnswer> {
        let base = self.base();
        self.check(&base, base.generation, snapshot)?;
        Ok(base.generation)
    }

    /// Fails if rows summed in this generation are not valid for the snapshot.
    pub(crate) fn check_answer(&self, generation: u64, snapshot: Timestamp) -> Result<(), NoAnswer> {
        self.check(&self.base(), generation, snapshot)
    }

    /// Returns `Some` if the list should be folded: it has more than `unsorted_max` unsorted changes, or takes too much
    /// memory. The value is `true` if it takes too much memory, in which case the fold may go beyond what older readers
    /// see.
    pub(crate) fn wants_fold(&self, unsorted_max: usize) -> Option<bool> {
        if self.capture.is_open() {
            return None;
        }
        self.with_list(|list| {
            let is_long = list.changes.len() - list.sorted_count > unsorted_max;
            let is_large = list.memory_bytes() > self.list_bytes_max / 2;
            (is_long || is_large).then_some(is_large)
        })
    }

    /// Sorts the list, and calls `fold` with each change up to a commit, in key order. Removes the changes for which
    /// `fold` returns `true`. Counting is blocked until the returned guard is dropped. Folds nothing while a capture is
    /// open.
    fn fold(&self, up_to: Timestamp, mut fold: impl FnMut(&[u8], i64) -> bool) -> RwLockWriteGuard<'_, CountState> {
        let mut base: RwLockWriteGuard<'_, CountState> = self.base.write();
        if self.capture.is_open() {
            crate::coverage::mark!("a fold was postponed while counts were written");
            return base;
        }
        let mut is_complete = true;
        self.with_list(|list| {
            list.sort();
            list.retain(|key, change| {
                if change.timestamp > up_to {
                    return true;
                }
                let is_folded = fold(key, change.sign());
                is_complete &= is_folded;
                !is_folded
            });
        });
        base.horizon = base.horizon.max(up_to);
        if is_complete {
            base.floor = base.floor.max(up_to);
        }
        assert!(base.floor <= base.horizon, "changes after the horizon are folded: {base:?}");
        base.generation += 1;
        crate::coverage::mark!("changes were folded into counts");
        base
    }

    // ── entries ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Takes the shared lock of the base. No change is folded while the caller holds it.
    pub(crate) fn base(&self) -> RwLockReadGuard<'_, CountState> {
        self.base.read()
    }

    #[inline]
    fn entry(&self, page: PageId) -> CountEntry {
        self.entries.load(page)
    }

    /// Stores the number of rows beneath a page in place of the stamp that was read before they were counted. Returns
    /// `false` if the page's fences have changed since, or another thread stored a count first.
    fn store(&self, page: PageId, stamp: u64, rows: u64) -> bool {
        self.capture.set_new_entries();
        self.entries.store(page, stamp, rows, |bytes| self.take(bytes))
    }

    /// Adds folded changes to the entry of a page above them, if it holds a count, and voids the page's reductions.
    fn add_folded(&self, page: PageId, change: i64) {
        if !self.entries.add(page, change) {
            self.mark_inconsistent();
        }
        if let Some(reductions) = self.reductions.get() {
            reductions.stamps.void(page);
        }
    }

    /// Returns `true` if reductions are kept.
    pub(crate) fn has_reductions(&self) -> bool {
        self.reductions.get().is_some()
    }

    /// Returns the reductions, if they are kept.
    pub(crate) fn reductions(&self) -> Option<&Reductions> {
        self.reductions.get()
    }

    fn begin_change(&self, page: PageId) {
        self.entries.begin_change(page, |bytes| self.take(bytes));
        if let Some(reductions) = self.reductions.get() {
            reductions.stamps.begin_change(page, |bytes| self.take(bytes));
        }
    }

    fn end_change(&self, page: PageId) {
        self.entries.end_change(page);
        if let Some(reductions) = self.reductions.get() {
            reductions.stamps.end_change(page);
        }
    }

    fn renew(&self, page: PageId) {
        self.entries.renew(page, |bytes| self.take(bytes));
        if let Some(reductions) = self.reductions.get() {
            reductions.stamps.renew(page, |bytes| self.take(bytes));
        }
    }

    /// Keeps a page's state, along with the stamp that was read before the page's rows. Returns `false` if there is no
    /// memory for the state, or the page's stamp has changed.
    pub(crate) fn store_state(
        &self,
        reduction: &KeptReduction,
        (page, stamp): (PageId, u64),
        level: StateLevel,
        state: &[u8],
    ) -> bool {
        let reductions = self.reductions.get().expect("reductions have begun");
        if self.invalidated() || !reductions.reserve_state(reduction, level, state.len()) {
            crate::coverage::mark!("a reduction found no memory");
            return false;
        }
        reduction.store(page, stamp, level, state);
        self.stamp(page) == Some(stamp)
    }

    /// Returns the page's stamp, or `None` while its fences are being changed.
    fn stamp(&self, page: PageId) -> Option<u64> {
        let reductions = self.reductions.get().expect("reductions have begun");
        match reductions.stamps.load_made(page, |bytes| self.take(bytes)) {
            CountEntry::Unknown(stamp) => Some(stamp),
            CountEntry::Changing => None,
            CountEntry::Rows(_) => unreachable!("a stamp is no count"),
        }
    }

    /// Returns `true` if the account can take this many more bytes and still have half of its limit left for the list.
    fn has_memory_for(&self, bytes: u64) -> bool {
        let limit_bytes = self.budget.limit_bytes(Account::Counts);
        self.budget.taken_bytes(Account::Counts) + bytes <= limit_bytes / 2
    }

    /// Returns `true` if changes may be missing from the list.
    pub(crate) fn invalidated(&self) -> bool {
        self.invalidated.load(Ordering::Acquire)
    }
}

/// The B+tree of a keyspace, and the counts of its rows. Cheap to clone. See the module.
#[derive(Clone, Debug)]
pub(crate) struct CountedTree {
    tree: Tree,
    pub(crate) counts: Arc<Counts>,
}

impl CountedTree {
    /// Joins a tree with its counts. The tree's observer passes the structure changes on to `counts`.
    pub(crate) fn new(tree: Tree, counts: Arc<Counts>) -> CountedTree {
        CountedTree { tree, counts }
    }

    /// Begins to keep the counts of the keyspace, and with `keeps_reductions` also reductions of its values, if there
    /// is memory for them. Stops commits briefly: those that have a timestamp are applied first, and those that get one
    /// later see that counts are kept. `published` returns the newest commit once commits have stopped.
    pub(crate) fn keep_counts(
        &self,
        budget: &Arc<Budget>,
        keeps_reductions: bool,
        published: impl FnOnce() -> Timestamp,
    ) -> Option<Arc<KeptCounts>> {
        let epoch_guard = self.pool.space.epoch_latch.exclusive();
        // A dropped keyspace would never release its counts.
        self.check_dropped().ok()?;
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

/// The counts of a keyspace, if it keeps them.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Commits read this flag for every row that they insert or remove.
    are_kept: AtomicBool,
    /// Reductions are kept, so replaced rows go to the list too.
    are_values_kept: AtomicBool,
    /// The fences of some page have changed since the last checkpoint began, or since the database was opened.
    is_restructured: AtomicBool,
    kept: RwLock<Option<Arc<KeptCounts>>>,
}

impl Counts {
    /// Returns the counts, unless none are kept or they have been invalidated.
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

    /// Begins to keep counts, with room for pages with numbers below `number_end`. The caller holds the exclusive epoch
    /// latch: no commit is half applied, and `now` is published. Returns `None` if there is no memory for them.
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

    /// Begins with the counts of a bulk load that commit `at` has attached. The caller holds the exclusive epoch latch,
    /// and earlier counts of the keyspace have ended.
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

    /// Begins to keep reductions, and counts if there are none yet, like [`begin`](Self::begin). Returns the counts.
    pub(crate) fn begin_reductions(
        &self,
        epoch_guard: &EpochGuard<'_>,
        now: Timestamp,
        budget: &Arc<Budget>,
        number_end: u64,
    ) -> Option<Arc<KeptCounts>> {
        let kept = self.begin(epoch_guard, now, budget, number_end)?;
        if kept.reductions.get().is_none() {
            // Five eighths, the same limit as for tables of states. The list is folded at a quarter.
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

    /// Ends these counts. Called before the first change is left out of their list.
    fn end(&self, kept: &Arc<KeptCounts>) {
        kept.invalidated.store(true, Ordering::Release);
        let mut current = self.kept.write();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, kept)) {
            self.are_kept.store(false, Ordering::Release);
            self.are_values_kept.store(false, Ordering::Release);
            *current = None;
        }
    }

    /// Ends the counts, if any are kept.
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

    /// Voids the count beneath this page number, which is about to be given to a new page.
    pub(crate) fn page_created(&self, page: PageId) {
        self.is_restructured.store(true, Ordering::Relaxed);
        if let Some(kept) = self.kept() {
            kept.capture.record_changed_page(page);
            kept.renew(page);
        }
    }

    /// Voids the counts of pages whose fences are about to change. The caller has these pages latched. No count of them
    /// can be stored until [`end_change`](Self::end_change).
    pub(crate) fn begin_change(&self, pages: &[PageId]) {
        self.is_restructured.store(true, Ordering::Relaxed);
        if let Some(kept) = self.kept() {
            pages.iter().for_each(|&page| kept.capture.record_changed_page(page));
            pages.iter().for_each(|&page| kept.begin_change(page));
        }
    }

    /// Ends a change of fences. No counts can have begun since [`begin_change`](Self::begin_change), because the caller
    /// shares the epoch latch. If the counts ended during the change, their entries stay void.
    pub(crate) fn end_change(&self, pages: &[PageId]) {
        if self.are_kept.load(Ordering::Acquire)
            && let Some(kept) = &*self.kept.read()
        {
            pages.iter().for_each(|&page| kept.end_change(page));
        }
    }
}

/// Converts bounds to the first key of the range and its exclusive upper bound.
pub(crate) fn half_open(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (Vec<u8>, Option<Vec<u8>>) {
    // The smallest key above `key`.
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

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;
    use crate::counts::page_entries::COUNTED_BIT;

    const PARENT: PageId = PageId(1);
    const LEFT: PageId = PageId(2);
    const RIGHT: PageId = PageId(3);

    /// The part of the protocol that a run of the model leaves out.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Without {
        Nothing,
        /// A count is stored without comparing the stamp.
        Stamps,
        /// A leaf keeps its count while it is split.
        Voiding,
        /// The counting thread does not check that the parent is still current.
        Revalidation,
    }

    /// A parent whose only child is split. The left leaf has two rows, one of which moves to the right leaf.
    struct Leaves {
        entries: CountEntries,
        /// The version of the parent: 1 has one child, 2 has two.
        parent: AtomicU64,
        left: Mutex<u64>,
        right: Mutex<u64>,
        without: Without,
    }

    impl Leaves {
        fn split(&self) {
            let mut left = self.left.lock().unwrap();
            if self.without != Without::Voiding {
                self.entries.begin_change(LEFT, drop);
            }
            *left = 1;
            *self.right.lock().unwrap() = 1;
            self.parent.store(2, Ordering::Release);
            drop(left);
            if self.without != Without::Voiding {
                self.entries.end_change(LEFT);
            }
        }

        fn store(&self, page: PageId, stamp: u64, rows: u64) -> bool {
            if self.without == Without::Stamps {
                self.entries.cell_or_new(page, drop).store(COUNTED_BIT | rows, Ordering::Release);
                return true;
            }
            self.entries.store(page, stamp, rows, drop)
        }

        fn leaf(&self, page: PageId) -> Option<u64> {
            match self.entries.load(page) {
                CountEntry::Rows(rows) => Some(rows),
                CountEntry::Changing => None,
                CountEntry::Unknown(stamp) => {
                    let rows = *if page == LEFT { &self.left } else { &self.right }.lock().unwrap();
                    self.store(page, stamp, rows).then_some(rows)
                }
            }
        }

        /// Returns the number of rows beneath the parent, unless another thread interfered.
        fn count(&self) -> Option<u64> {
            let stamp = match self.entries.load(PARENT) {
                CountEntry::Rows(rows) => return Some(rows),
                CountEntry::Changing => unreachable!("the parent keeps its fences"),
                CountEntry::Unknown(stamp) => stamp,
            };
            let parent = self.parent.load(Ordering::Acquire);
            let mut rows = self.leaf(LEFT)?;
            if parent == 2 {
                rows += self.leaf(RIGHT)?;
            }
            if self.without != Without::Revalidation && self.parent.load(Ordering::Acquire) != parent {
                return None;
            }
            self.store(PARENT, stamp, rows).then_some(rows)
        }
    }

    /// Two threads count while a leaf is split. Every count that they return or store must be two.
    fn count_beside_split(without: Without) {
        loom::model(move || {
            let leaves = Arc::new(Leaves {
                entries: CountEntries::new(),
                parent: AtomicU64::new(1),
                left: Mutex::new(2),
                right: Mutex::new(0),
                without,
            });
            // Allocate the levels before the threads start; allocation is not part of the protocol.
            leaves.entries.cell_or_new(PARENT, drop);
            let counting = {
                let leaves = Arc::clone(&leaves);
                thread::spawn(move || leaves.count())
            };
            let splitting = {
                let leaves = Arc::clone(&leaves);
                thread::spawn(move || leaves.split())
            };
            let found = leaves.count();
            let counted = counting.join().unwrap();
            splitting.join().unwrap();
            assert!([found, counted, leaves.count()].into_iter().flatten().all(|rows| rows == 2), "a wrong count");
            let leaf = leaves.leaf(LEFT).unwrap() + leaves.leaf(RIGHT).unwrap();
            assert_eq!(leaf, 2, "a wrong count of a leaf is kept");
        });
    }

    #[test]
    fn loom_counts_during_a_split_are_right() {
        count_beside_split(Without::Nothing);
    }

    /// Shows that the model detects a count that is stored while the fences change.
    #[test]
    #[should_panic(expected = "ends twice")]
    fn loom_counts_stored_without_their_stamp_are_wrong() {
        count_beside_split(Without::Stamps);
    }

    /// Shows that the model detects a count that is kept over a split.
    #[test]
    #[should_panic(expected = "a wrong count")]
    fn loom_counts_kept_over_a_split_are_wrong() {
        count_beside_split(Without::Voiding);
    }

    /// Shows that the model detects counts that were summed below an outdated parent.
    #[test]
    #[should_panic(expected = "a wrong count")]
    fn loom_counts_of_an_outdated_parent_are_wrong() {
        count_beside_split(Without::Revalidation);
    }
}
