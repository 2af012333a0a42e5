//! The counts that a keyspace caches: the entries of its pages, and the list of later changes.

use std::sync::{Arc, OnceLock};

use super::capture_state::CaptureState;
use super::change_list::{ChangeList, RowChange};
use super::page_entries::{CountEntries, CountEntry};
use super::page_states::{KeptReduction, Reductions, StateLevel};
use crate::format::{PageId, Timestamp};
use crate::memory::{Account, Budget};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{CachePadded, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, thread_index};

/// The base: the point in time whose rows the entries count.
#[derive(Debug)]
pub(crate) struct CountState {
    /// Changes up to this commit may have been folded, so the counts can't answer for earlier snapshots.
    pub(crate) horizon: Timestamp,
    /// All changes up to this commit have been folded.
    pub(crate) floor: Timestamp,
    /// Incremented by each fold.
    pub(crate) generation: u64,
}

/// The number of parts that commits append to before they are merged into the list. Each part has its own lock.
const PART_COUNT: usize = 8;

/// The maximum size of the list under any budget. It is limited because the offset of a key in the list has only four
/// bytes.
const LIST_BYTES_MAX: u64 = 512 << 20;

/// The number of unsorted changes at which the list is folded. Scanning 2,048 changes takes 10 us; folding them takes 1
/// ms.
/// Measured: the figures above.
pub(crate) const UNSORTED_CHANGES_MAX: usize = if cfg!(feature = "sim") { 32 } else { 2048 };

/// The counts that a keyspace caches: its entries and its list of changes. See the module.
pub(crate) struct KeptCounts {
    pub(super) entries: CountEntries,
    pub(super) invalidated: AtomicBool,
    pub(super) base: RwLock<CountState>,
    list: Mutex<ChangeList>,
    parts: [CachePadded<Mutex<ChangeList>>; PART_COUNT],
    /// Reductions of the rows' values, which begin with the first aggregate.
    pub(super) reductions: OnceLock<Reductions>,
    pub(super) capture: CaptureState,
    budget: Arc<Budget>,
    /// Bytes taken from the budget.
    bytes: AtomicU64,
    /// Limits on the size of the list and of each part, in bytes.
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

/// The reason why the counts can't answer for a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoAnswer {
    /// The sums are void, because changes have been folded since they were begun.
    Folded,
    /// The snapshot is older than the counts, or the counts have ended.
    Never,
}

impl KeptCounts {
    pub(super) fn new(now: Timestamp, budget: &Arc<Budget>) -> KeptCounts {
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
    /// the change was not added, either because the counts had ended, or because the list is full, which ends them.
    pub(super) fn add(&self, key: &[u8], timestamp: Timestamp, change: RowChange) -> bool {
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
    pub(super) fn with_list<R>(&self, look: impl FnOnce(&mut ChangeList) -> R) -> R {
        let mut list = self.list.lock();
        let before = list.memory_bytes();
        let mut parts_bytes = 0;
        for part in &self.parts {
            let mut part = part.lock();
            if !part.changes.is_empty() {
                list.append(&mut part);
                // Free a large buffer. Future changes may go to other parts.
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
    /// latch of the leaf that contains these keys.
    pub(super) fn all_changes(&self, lower: &[u8], upper: Option<&[u8]>) -> i64 {
        self.with_list(|list| list.sum(lower, upper, Timestamp(u64::MAX)))
    }

    /// Fails if sums made in generation `generation` are not valid for the snapshot.
    fn check(&self, base: &CountState, generation: u64, snapshot: Timestamp) -> Result<(), NoAnswer> {
        assert!(generation <= base.generation && base.floor <= base.horizon, "{base:?} goes back");
        if self.invalidated() || snapshot < base.horizon {
            return Err(NoAnswer::Never);
        }
        if base.generation == generation { Ok(()) } else { Err(NoAnswer::Folded) }
    }

    /// Returns the net number of rows that the changes in a range, up to a published snapshot, add to the sum made in
    /// this generation.
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

    /// Calls `visit`, in no particular order, for each change in a range up to a snapshot, with the key and 1 for an
    /// insert, -1 for a removal or 0 for a replaced value. The caller holds `base`, and adds these changes to the rows
    /// at the base.
    pub(super) fn visit_changes(
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
    pub(super) fn first_changed(
        &self,
        base: &CountState,
        (lower, upper): (&[u8], Option<&[u8]>),
        up_to: Timestamp,
    ) -> Option<Vec<u8>> {
        debug_assert!(up_to >= base.horizon || self.invalidated(), "changes up to {up_to} are folded: {base:?}");
        self.with_list(|list| list.first_changed(lower, upper, up_to).map(<[u8]>::to_vec))
    }

    /// Returns the current generation if its sums and states are valid for the snapshot.
    pub(crate) fn generation_for(&self, snapshot: Timestamp) -> Result<u64, NoAnswer> {
        let base = self.base();
        self.check(&base, base.generation, snapshot)?;
        Ok(base.generation)
    }

    /// Fails if rows summed in this generation are not valid for the snapshot.
    pub(crate) fn check_answer(&self, generation: u64, snapshot: Timestamp) -> Result<(), NoAnswer> {
        self.check(&self.base(), generation, snapshot)
    }

    /// Returns `Some` if the list should be folded, because it has more than `unsorted_max` unsorted changes or needs
    /// too much memory. The value is `true` if it needs too much memory. The fold may then include changes that older
    /// snapshots don't see.
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
    /// `fold` returns `true`. Counting is blocked until the caller drops the returned guard. Does nothing while a
    /// capture is open.
    pub(super) fn fold(
        &self,
        up_to: Timestamp,
        mut fold: impl FnMut(&[u8], i64) -> bool,
    ) -> RwLockWriteGuard<'_, CountState> {
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
    pub(super) fn entry(&self, page: PageId) -> CountEntry {
        self.entries.load(page)
    }

    /// Stores the number of rows beneath a page, replacing the stamp that was read before they were counted. Returns
    /// `false` if the page's fences have changed since, or if another thread has stored a count first.
    pub(super) fn store(&self, page: PageId, stamp: u64, rows: u64) -> bool {
        self.capture.set_new_entries();
        self.entries.store(page, stamp, rows, |bytes| self.take(bytes))
    }

    /// Adds folded changes to the count of a page above them, if the page has one, and voids the page's reductions.
    pub(super) fn add_folded(&self, page: PageId, change: i64) {
        if !self.entries.add(page, change) {
            self.mark_inconsistent();
        }
        if let Some(reductions) = self.reductions.get() {
            reductions.stamps.void(page);
        }
    }

    /// Returns `true` if the keyspace caches reductions.
    pub(crate) fn has_reductions(&self) -> bool {
        self.reductions.get().is_some()
    }

    /// Returns the reductions, if the keyspace caches any.
    pub(crate) fn reductions(&self) -> Option<&Reductions> {
        self.reductions.get()
    }

    pub(super) fn begin_change(&self, page: PageId) {
        self.entries.begin_change(page, |bytes| self.take(bytes));
        if let Some(reductions) = self.reductions.get() {
            reductions.stamps.begin_change(page, |bytes| self.take(bytes));
        }
    }

    pub(super) fn end_change(&self, page: PageId) {
        self.entries.end_change(page);
        if let Some(reductions) = self.reductions.get() {
            reductions.stamps.end_change(page);
        }
    }

    pub(super) fn renew(&self, page: PageId) {
        self.entries.renew(page, |bytes| self.take(bytes));
        if let Some(reductions) = self.reductions.get() {
            reductions.stamps.renew(page, |bytes| self.take(bytes));
        }
    }

    /// Caches a page's state of a reduction under `stamp`, which the caller read before the page's rows. Returns
    /// `false` if the memory for states is exhausted, or if the page's stamp has changed since.
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
    pub(super) fn stamp(&self, page: PageId) -> Option<u64> {
        let reductions = self.reductions.get().expect("reductions have begun");
        match reductions.stamps.load_made(page, |bytes| self.take(bytes)) {
            CountEntry::Unknown(stamp) => Some(stamp),
            CountEntry::Changing => None,
            CountEntry::Rows(_) => unreachable!("a stamp is no count"),
        }
    }

    /// Returns `true` if the account has room for this many bytes and would still have half of its limit left for the
    /// list.
    pub(super) fn has_memory_for(&self, bytes: u64) -> bool {
        let limit_bytes = self.budget.limit_bytes(Account::Counts);
        self.budget.taken_bytes(Account::Counts) + bytes <= limit_bytes / 2
    }

    /// Returns `true` if changes may be missing from the list.
    pub(crate) fn invalidated(&self) -> bool {
        self.invalidated.load(Ordering::Acquire)
    }
}
