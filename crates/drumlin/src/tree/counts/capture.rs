//! Row counts as of a checkpoint: read while commits go on, and taken up again by the opening that begins with it.
//!
//! A checkpoint has the tree as it was after commit C. Its counts are the entries that are right within the fences that
//! pages have in it, and the changes up to C that are not in the entries. A [`CountCapture`] begins with the
//! checkpoint, when no commit is half way, and costs nothing then. Until it is dropped:
//!
//! 1. Nothing is folded. A fold under way has the lock of the base, and folds no change after C; [`base`] waits for it.
//! 2. A page is noted before its entry tells of other fences than at C, or of another page that has its number. An
//!    entry is read first, and looked up among the noted pages then: one that was stored within other fences is found.
//!    All other entries are those of the base within the fences at C, also where they are stored later.
//! 3. Changes are added to the list behind those that it had, and no other is moved. Those up to C were in it when the
//!    capture began, for the commits up to C were applied.
//!
//! Counts that have ended, or for which too many pages are noted, have no capture: [`CountCapture::is_whole`] tells,
//! and is asked when all has been read.
//!
//! [`base`]: CountCapture::floor

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CountEntries, CountEntry, Counts, KeptCounts, RowChange};
use crate::format::{PageId, Timestamp};
use crate::memory::{Account, Budget};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Pages that are noted, at most: 64 KiB of a set. A capture lasts for a second where the counts have 200 MB.
const NOTED_MAX: usize = if cfg!(feature = "sim") { 16 } else { 4096 };

/// The part of [`KeptCounts`] that a capture needs.
#[derive(Debug)]
pub(super) struct CaptureState {
    is_open: AtomicBool,
    /// Pages whose fences have changed since the capture began; `None`: too many.
    noted: Mutex<Option<BTreeSet<PageId>>>,
    /// An entry was stored since the last capture began.
    has_news: AtomicBool,
    /// The counts were taken up from a file.
    is_restored: bool,
}

impl CaptureState {
    pub(super) fn new() -> CaptureState {
        CaptureState {
            is_open: AtomicBool::new(false),
            noted: Mutex::new(Some(BTreeSet::new())),
            has_news: AtomicBool::new(true),
            is_restored: false,
        }
    }

    /// Returns `true` if nothing may be folded.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Notes a page before its entry becomes that of other fences.
    pub(super) fn note(&self, page: PageId) {
        if !self.is_open() {
            return;
        }
        let mut noted = self.noted.lock();
        if let Some(pages) = &mut *noted {
            pages.insert(page);
            if pages.len() > NOTED_MAX {
                *noted = None;
            }
        }
    }

    /// Notes that an entry was stored.
    pub(super) fn note_news(&self) {
        if !self.has_news.load(Ordering::Relaxed) {
            self.has_news.store(true, Ordering::Relaxed);
        }
    }
}

/// The counts of a keyspace as of a checkpoint, until this is dropped.
#[derive(Debug)]
pub(crate) struct CountCapture {
    kept: Arc<KeptCounts>,
    /// Pages of the keyspace at the checkpoint have lower numbers.
    number_end: u32,
}

impl Drop for CountCapture {
    fn drop(&mut self) {
        let state = &self.kept.capture;
        let was_open = state.is_open.swap(false, Ordering::AcqRel);
        assert!(was_open, "a capture ends that has not begun");
        *state.noted.lock() = Some(BTreeSet::new());
    }
}

impl CountCapture {
    /// The commit up to which all changes are in the entries, and those after which are in the list.
    pub(crate) fn floor(&self) -> Timestamp {
        self.kept.base().floor
    }

    /// Returns `true` if what was read of the capture so far is right.
    pub(crate) fn is_whole(&self) -> bool {
        self.kept.capture.noted.lock().is_some() && !self.kept.has_ended()
    }

    /// Calls `take` with the changes up to a commit in the list, from the one of this number on, until it returns
    /// `false`. Returns the number of the first that was not taken; `None` where there is none.
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

    /// Adds up to so many counted pages, from this number on, to `into`, each with its rows. Returns the first page
    /// that was not looked at; `None` where there is none.
    pub(crate) fn entries(&self, first: PageId, count_max: usize, into: &mut Vec<(PageId, u32)>) -> Option<PageId> {
        assert!(into.is_empty() && count_max > 0, "no room for {count_max} entries");
        let mut page = first.0;
        while page < self.number_end && into.len() < count_max {
            // A count that is larger is that of an inner node, and is summed from its children on the way.
            if let CountEntry::Rows(rows) = self.kept.entry(PageId(page))
                && let Ok(rows) = u32::try_from(rows)
            {
                into.push((PageId(page), rows));
            }
            page += 1;
        }
        // Looked up after the entries were read.
        if let Some(noted) = &*self.kept.capture.noted.lock() {
            into.retain(|(page, _)| !noted.contains(page));
        }
        debug_assert!(into.is_sorted_by(|left, right| left.0 < right.0), "a page is told of twice");
        (page < self.number_end).then_some(PageId(page))
    }
}

impl KeptCounts {
    /// Ends counts that contradict the pages: those that were taken up from a file, if bytes are damaged that verify.
    /// Others never do, unless they have ended already.
    pub(crate) fn contradict(&self) {
        assert!(self.capture.is_restored || self.has_ended(), "counts contradict the pages");
        self.has_ended.store(true, Ordering::Release);
    }
}

/// Counts that an opening takes up.
#[derive(Debug)]
pub(crate) struct RestoredCounts(KeptCounts);

impl RestoredCounts {
    /// Counts at a base, of pages below a number, that answer for snapshots from `horizon` on. `None` where
    /// there is no memory for them.
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

    /// Adds changes to the list. Returns `false` if it is too long.
    pub(crate) fn add_changes<'k>(&self, changes: impl Iterator<Item = (&'k [u8], Timestamp, bool)>) -> bool {
        self.0.with_list(|list| {
            for (key, timestamp, is_insert) in changes {
                list.push(key, timestamp, if is_insert { RowChange::Inserted } else { RowChange::Removed });
            }
        });
        !self.0.has_ended()
    }

    /// Stores the rows beneath a page. Returns `false` if they are stored already.
    pub(crate) fn add_entry(&self, page: PageId, rows: u32) -> bool {
        self.0.store(page, 0, u64::from(rows))
    }
}

impl Counts {
    /// Begins a capture of the counts that are kept, of pages below a number, at the beginning of a checkpoint: the
    /// epoch latch is exclusive, and no commit is half way.
    pub(crate) fn capture_at_checkpoint(&self, number_end: u64) -> Option<CountCapture> {
        self.is_restructured.store(false, Ordering::Relaxed);
        self.capture(number_end)
    }

    /// Begins a capture as of the newest checkpoint, which no commit has followed; `None` where the tree is no longer
    /// that of the checkpoint. The epoch latch is exclusive.
    pub(crate) fn capture_again(&self, number_end: u64) -> Option<CountCapture> {
        if self.is_restructured.load(Ordering::Relaxed) { None } else { self.capture(number_end) }
    }

    fn capture(&self, number_end: u64) -> Option<CountCapture> {
        let kept = self.kept()?;
        let number_end = u32::try_from(number_end).ok()?;
        let was_open = kept.capture.is_open.swap(true, Ordering::AcqRel);
        assert!(!was_open, "counts are captured twice at once");
        kept.capture.has_news.store(false, Ordering::Relaxed);
        Some(CountCapture { kept, number_end })
    }

    /// Returns `true` if pages were counted since counts were captured last.
    pub(crate) fn has_news(&self) -> bool {
        self.kept().is_some_and(|kept| kept.capture.has_news.load(Ordering::Relaxed))
    }

    /// Takes up counts of an earlier opening, before anything is changed. Returns `false` if their memory did not
    /// suffice.
    pub(crate) fn restore(&self, RestoredCounts(kept): RestoredCounts) -> bool {
        kept.with_list(super::ChangeList::sort);
        assert!(!kept.capture.is_open(), "counts are captured before they are taken up");
        if kept.has_ended() {
            return false;
        }
        kept.capture.has_news.store(false, Ordering::Relaxed);
        let before = self.kept.write().replace(Arc::new(kept));
        assert!(before.is_none(), "counts are taken up beside others");
        self.are_kept.store(true, Ordering::Release);
        true
    }
}
