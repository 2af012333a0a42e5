//! Row counts as of a checkpoint. They are read while commits continue, and restored by the opening that recovers from
//! the checkpoint.
//!
//! A checkpoint contains the tree as it was after commit C. The counts written with it consist of two parts: the
//! entries that match the fences of pages in the checkpoint, and the listed changes up to C that are not in those
//! entries. A [`CountCapture`] begins together with the checkpoint, when no commit is half applied. Beginning it costs
//! nothing. Until it is dropped:
//!
//! 1. Nothing is folded. A fold that is already running holds the base's lock and folds no change after C; [`floor`]
//!    waits for it to end.
//! 2. A page is recorded as changed before its entry starts to describe fences other than those at C, or a new page
//!    with the same id. A reader of the capture first loads an entry and then checks if its page was recorded, so it
//!    never uses an entry that was stored for different fences. The remaining entries are counts at the base within the
//!    fences at C, even if they were stored later.
//! 3. Changes are only appended to the list, and listed changes never move. All changes up to C were in the list when
//!    the capture began, because all commits up to C had been applied.
//!
//! A capture becomes void if the counts end, or if too many changed pages are recorded. So its reader calls
//! [`CountCapture::is_whole`] at the end.
//!
//! [`floor`]: CountCapture::floor

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Counts;
use super::change_list::{ChangeList, RowChange};
use super::kept::KeptCounts;
use super::page_entries::{CountEntries, CountEntry};
use crate::format::{PageId, Timestamp};
use crate::memory::{Account, Budget};
use crate::sync::atomic::Ordering;

/// The counts of a keyspace as of a checkpoint. Dropping it ends the capture.
#[derive(Debug)]
pub(crate) struct CountCapture {
    kept: Arc<KeptCounts>,
    /// All page numbers of the keyspace were below this at the checkpoint.
    number_end: u32,
}

impl Drop for CountCapture {
    fn drop(&mut self) {
        let state = &self.kept.capture;
        let was_open = state.is_open.swap(false, Ordering::AcqRel);
        assert!(was_open, "a capture ends that has not begun");
        *state.changed_pages.lock() = Some(BTreeSet::new());
    }
}

impl CountCapture {
    /// Returns the base of the captured counts: the entries include all changes up to this commit, and the list
    /// contains all later ones.
    pub(crate) fn floor(&self) -> Timestamp {
        self.kept.base().floor
    }

    /// Returns `true` if everything read from the capture so far is valid.
    pub(crate) fn is_whole(&self) -> bool {
        self.kept.capture.changed_pages.lock().is_some() && !self.kept.invalidated()
    }

    /// Calls `take` with the listed changes up to a commit, starting at index `first`, until it returns `false`.
    /// Returns the index of the change that `take` rejected, or `None` if it accepted all of them.
    pub(crate) fn changes(
        &self,
        first: usize,
        up_to: Timestamp,
        mut take: impl FnMut(&[u8], Timestamp, bool) -> bool,
    ) -> Option<usize> {
        self.kept.with_list(|list| {
            assert!(first <= list.changes.len(), "changes were folded while counts are written");
            let mut changes = list.changes.iter().enumerate().skip(first);
            let left = changes.find(|(_, change)| {
                let is_counted = change.timestamp <= up_to && change.change != RowChange::Replaced;
                is_counted && !take(list.key(change), change.timestamp, change.change == RowChange::Inserted)
            });
            left.map(|(number, _)| number)
        })
    }

    /// Appends up to `count_max` counted pages to `into`, starting at page `first`, each with its number of rows.
    /// Returns the page at which to continue, or `None` at the end.
    pub(crate) fn entries(&self, first: PageId, count_max: usize, into: &mut Vec<(PageId, u32)>) -> Option<PageId> {
        assert!(into.is_empty() && count_max > 0, "no room for {count_max} entries");
        let mut page = first.0;
        while page < self.number_end && into.len() < count_max {
            // Omit larger counts, which only inner nodes can have. After the next opening, they are recomputed from the
            // node's children.
            if let CountEntry::Rows(rows) = self.kept.entry(PageId(page))
                && let Ok(rows) = u32::try_from(rows)
            {
                into.push((PageId(page), rows));
            }
            page += 1;
        }
        // Check this only after the entries were loaded (see the module).
        if let Some(changed_pages) = &*self.kept.capture.changed_pages.lock() {
            into.retain(|(page, _)| !changed_pages.contains(page));
        }
        debug_assert!(into.is_sorted_by(|left, right| left.0 < right.0), "a page is told of twice");
        (page < self.number_end).then_some(PageId(page))
    }
}

impl KeptCounts {
    /// Ends counts that contradict the pages. Only counts that have already ended can do so, or counts read from a
    /// corrupted file that passed verification.
    pub(crate) fn mark_inconsistent(&self) {
        assert!(self.capture.is_restored || self.invalidated(), "counts contradict the pages");
        self.invalidated.store(true, Ordering::Release);
    }
}

/// Counts that are being read from a file during an opening.
#[derive(Debug)]
pub(crate) struct RestoredCounts(KeptCounts);

impl RestoredCounts {
    /// Creates counts with this base, for snapshots at or after `horizon`, with room for page numbers below
    /// `number_end`. Returns `None` if there is too little memory.
    pub(crate) fn new(
        floor: Timestamp,
        horizon: Timestamp,
        budget: &Arc<Budget>,
        number_end: u64,
    ) -> Option<RestoredCounts> {
        assert!(floor <= horizon, "counts answer for snapshots before their base");
        let needed_bytes = CountEntries::memory_bytes_of(number_end);
        if budget.taken_bytes(Account::Counts) + needed_bytes > budget.limit_bytes(Account::Counts) {
            return None;
        }
        let mut kept = KeptCounts::new(horizon, budget);
        kept.capture.is_restored = true;
        kept.base.write().floor = floor;
        Some(RestoredCounts(kept))
    }

    /// Adds changes to the list. Returns `false` if the list became too long.
    pub(crate) fn add_changes<'k>(&self, changes: impl Iterator<Item = (&'k [u8], Timestamp, bool)>) -> bool {
        self.0.with_list(|list| {
            for (key, timestamp, is_insert) in changes {
                list.push(key, timestamp, if is_insert { RowChange::Inserted } else { RowChange::Removed });
            }
        });
        !self.0.invalidated()
    }

    /// Stores the number of rows beneath a page. Returns `false` if the page already has a count.
    pub(crate) fn add_entry(&self, page: PageId, rows: u32) -> bool {
        self.0.store(page, 0, u64::from(rows))
    }
}

impl Counts {
    /// Begins a capture for a checkpoint, of pages with ids below `number_end`. Returns `None` if the keyspace has no
    /// counts. The caller holds the exclusive epoch latch, so no commit is half applied.
    pub(crate) fn capture_at_checkpoint(&self, number_end: u64) -> Option<CountCapture> {
        self.is_restructured.store(false, Ordering::Relaxed);
        self.capture(number_end)
    }

    /// Begins a capture as of the newest checkpoint. No commit may have followed it. Returns `None` if the keyspace has
    /// no counts, or if the tree's structure has changed since. The caller holds the exclusive epoch latch.
    pub(crate) fn capture_again(&self, number_end: u64) -> Option<CountCapture> {
        if self.is_restructured.load(Ordering::Relaxed) { None } else { self.capture(number_end) }
    }

    fn capture(&self, number_end: u64) -> Option<CountCapture> {
        let kept = self.kept()?;
        let number_end = u32::try_from(number_end).ok()?;
        let was_open = kept.capture.is_open.swap(true, Ordering::AcqRel);
        assert!(!was_open, "counts are captured twice at once");
        kept.capture.has_new_entries.store(false, Ordering::Relaxed);
        Some(CountCapture { kept, number_end })
    }

    /// Returns `true` if pages have been counted since the last capture.
    pub(crate) fn has_new_entries(&self) -> bool {
        self.kept().is_some_and(|kept| kept.capture.has_new_entries.load(Ordering::Relaxed))
    }

    /// Installs the counts that an earlier opening wrote. Called before replay changes anything. Returns `false` if the
    /// counts ended for lack of memory.
    pub(crate) fn restore(&self, RestoredCounts(kept): RestoredCounts) -> bool {
        kept.with_list(ChangeList::sort);
        assert!(!kept.capture.is_open(), "counts are captured before they are taken up");
        if kept.invalidated() {
            return false;
        }
        kept.capture.has_new_entries.store(false, Ordering::Relaxed);
        let before = self.kept.write().replace(Arc::new(kept));
        assert!(before.is_none(), "counts are taken up beside others");
        self.are_kept.store(true, Ordering::Release);
        true
    }
}
