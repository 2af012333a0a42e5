//! An atomic entry for each page. It holds the number of rows beneath the page, or a stamp that shows readers if the
//! page or its fences have changed. `counts/mod.rs` states the invariants.

use std::sync::OnceLock;

use crate::format::PageId;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The bit that marks an entry with a count.
pub(super) const COUNTED_BIT: u64 = 1 << 63;
/// The bit that marks an entry whose page's fences are being changed. The lower bits hold the number of such changes:
/// when a merge of inner nodes has published the parent but has not ended its change, another merge may begin to change
/// the left node.
const CHANGING_BIT: u64 = 1 << 62;

/// Returns `true` if the fences of the page are being changed.
fn is_changing(bits: u64) -> bool {
    bits & (COUNTED_BIT | CHANGING_BIT) == CHANGING_BIT
}

/// The state of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CountEntry {
    /// The number of rows beneath the page at the base.
    Rows(u64),
    /// Not counted. The entry has a different stamp each time it enters this state.
    Unknown(u64),
    /// The page's fences are being changed.
    Changing,
}

/// The number of entries in the first level. Each level has twice as many as the previous one.
const FIRST_LEVEL_ENTRIES: usize = if cfg!(drumlin_loom) { 4 } else { 64 };
/// The number of levels. Fixed by the number of possible pages, 2³².
const LEVEL_COUNT: usize = 31;

/// The entries of all pages, in levels that are allocated on demand.
pub(super) struct CountEntries {
    levels: [OnceLock<Box<[AtomicU64]>>; LEVEL_COUNT],
    stamps: AtomicU64,
}

impl CountEntries {
    pub(super) fn new() -> CountEntries {
        CountEntries { levels: [const { OnceLock::new() }; LEVEL_COUNT], stamps: AtomicU64::new(1) }
    }

    fn locate(page: PageId) -> (usize, usize) {
        let shifted = page.0 as usize + FIRST_LEVEL_ENTRIES;
        let level = (shifted.ilog2() - FIRST_LEVEL_ENTRIES.ilog2()) as usize;
        let offset = shifted - (FIRST_LEVEL_ENTRIES << level);
        debug_assert!(
            level < LEVEL_COUNT && offset < FIRST_LEVEL_ENTRIES << level,
            "page {page} has its entry at {offset}"
        );
        (level, offset)
    }

    #[inline]
    fn cell(&self, page: PageId) -> Option<&AtomicU64> {
        let (level, offset) = Self::locate(page);
        Some(&self.levels[level].get()?[offset])
    }

    /// Returns `true` if a count of the page can be stored without allocating memory.
    pub(super) fn has_cell(&self, page: PageId) -> bool {
        self.cell(page).is_some()
    }

    /// Returns the page's cell. If its level has to be allocated, calls `take` with the size of the level in bytes.
    pub(super) fn cell_or_new(&self, page: PageId, take: impl FnOnce(u64)) -> &AtomicU64 {
        let (level, offset) = Self::locate(page);
        let cells = self.levels[level].get_or_init(|| {
            let count = FIRST_LEVEL_ENTRIES << level;
            take((count * size_of::<u64>()) as u64);
            (0..count).map(|_| AtomicU64::new(0)).collect()
        });
        &cells[offset]
    }

    /// Returns the size of the entries for all page numbers below `number_end`, in bytes.
    pub(super) fn memory_bytes_of(number_end: u64) -> u64 {
        let (level, _) = Self::locate(PageId(number_end.saturating_sub(1).min(u64::from(u32::MAX)) as u32));
        ((FIRST_LEVEL_ENTRIES << (level + 1)) * size_of::<u64>()) as u64
    }

    #[inline]
    pub(super) fn load(&self, page: PageId) -> CountEntry {
        Self::decode(self.cell(page).map_or(0, |cell| cell.load(Ordering::Acquire)))
    }

    /// Like [`load`](Self::load), but allocates the page's cell. Use it if the stamp will be compared later: without a
    /// cell, voiding the page would leave no trace.
    pub(super) fn load_made(&self, page: PageId, take: impl FnOnce(u64)) -> CountEntry {
        Self::decode(self.cell_or_new(page, take).load(Ordering::Acquire))
    }

    #[inline]
    fn decode(bits: u64) -> CountEntry {
        debug_assert!(bits != CHANGING_BIT, "an entry is marked as changing, and nothing changes its page");
        match bits {
            bits if bits & COUNTED_BIT != 0 => CountEntry::Rows(bits & !COUNTED_BIT),
            bits if is_changing(bits) => CountEntry::Changing,
            stamp => CountEntry::Unknown(stamp),
        }
    }

    /// Replaces a stamp with a count. Returns `false` if the entry no longer holds that stamp.
    pub(super) fn store(&self, page: PageId, stamp: u64, rows: u64, take: impl FnOnce(u64)) -> bool {
        assert!(rows < CHANGING_BIT && stamp < CHANGING_BIT, "{rows} rows, or stamp {stamp}, read as a mark");
        let cell = self.cell_or_new(page, take);
        cell.compare_exchange(stamp, COUNTED_BIT | rows, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Adds to the entry's count, if it holds one. Returns `false` if the result would be negative.
    pub(super) fn add(&self, page: PageId, change: i64) -> bool {
        let Some(cell) = self.cell(page) else { return true };
        let mut bits = cell.load(Ordering::Acquire);
        while bits & COUNTED_BIT != 0 {
            let Some(rows) = (bits & !COUNTED_BIT).checked_add_signed(change) else { return false };
            match cell.compare_exchange(bits, COUNTED_BIT | rows, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => bits = now,
            }
        }
        true
    }

    fn next_stamp(&self) -> u64 {
        let stamp = self.stamps.fetch_add(1, Ordering::Relaxed);
        assert!(stamp < CHANGING_BIT, "stamp {stamp} reads as a mark");
        stamp
    }

    /// Gives a page without a count a new stamp. Skips a page whose fences are being changed, because it will get a new
    /// stamp when the change ends.
    pub(super) fn void(&self, page: PageId) {
        let Some(cell) = self.cell(page) else { return };
        let stamp = self.next_stamp();
        let mut before = cell.load(Ordering::Acquire);
        while !is_changing(before) {
            assert!(before & COUNTED_BIT == 0, "the count of page {page} is voided");
            match cell.compare_exchange(before, stamp, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
    }

    /// Marks the entry of a page whose fences are about to change.
    pub(super) fn begin_change(&self, page: PageId, take: impl FnOnce(u64)) {
        let cell = self.cell_or_new(page, take);
        let begin = |bits| Some(if is_changing(bits) { bits + 1 } else { CHANGING_BIT + 1 });
        let before = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin);
        debug_assert!(before.is_ok_and(|bits| bits != CHANGING_BIT), "page {page} is changed by nobody");
    }

    /// Assigns a new stamp to a page whose fences have changed, unless a second change of its fences has not ended.
    pub(super) fn end_change(&self, page: PageId) {
        let stamp = self.next_stamp();
        let cell = self.cell(page).expect("it was made when the change began");
        let end = |bits| Some(if bits == CHANGING_BIT + 1 { stamp } else { bits - 1 });
        let before = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, end);
        assert!(
            before.is_ok_and(|bits| is_changing(bits) && bits != CHANGING_BIT),
            "a change of page {page} ends twice"
        );
    }

    /// Assigns to a new page a stamp that no earlier page with the same id had.
    pub(super) fn renew(&self, page: PageId, take: impl FnOnce(u64)) {
        let stamp = self.next_stamp();
        let before = self.cell_or_new(page, take).swap(stamp, Ordering::AcqRel);
        assert!(!is_changing(before), "page {page} is made while its fences are changed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A count is stored only in place of the stamp that was read, and never while the fences change.
    #[test]
    fn a_count_is_stored_in_place_of_its_stamp() {
        let entries = CountEntries::new();
        let page = PageId(700);
        let CountEntry::Unknown(before) = entries.load(page) else { panic!("a page is counted at once") };
        entries.begin_change(page, drop);
        assert_eq!(entries.load(page), CountEntry::Changing);
        assert!(!entries.store(page, before, 5, drop));
        entries.end_change(page);
        assert!(!entries.store(page, before, 5, drop), "stored in place of an older stamp");
        let CountEntry::Unknown(stamp) = entries.load(page) else { panic!("the change has not ended") };
        assert!(entries.store(page, stamp, 5, drop));
        entries.add(page, -2);
        assert_eq!(entries.load(page), CountEntry::Rows(3));
        entries.begin_change(page, drop);
        entries.add(page, 1);
        assert_eq!(entries.load(page), CountEntry::Changing);
    }

    /// A page whose fences two threads change at the same time can be counted only after both changes have ended.
    #[test]
    fn changes_of_a_page_may_overlap() {
        let entries = CountEntries::new();
        let page = PageId(7);
        entries.begin_change(page, drop);
        entries.begin_change(page, drop);
        entries.void(page);
        entries.end_change(page);
        assert_eq!(entries.load(page), CountEntry::Changing);
        entries.end_change(page);
        assert!(matches!(entries.load(page), CountEntry::Unknown(_)));
    }

    /// Every page number has a cell of its own.
    #[test]
    fn every_page_has_a_cell() {
        let mut before = None;
        for page in (0..2000).chain([u32::MAX / 2, u32::MAX - 1, u32::MAX]).map(PageId) {
            let (level, offset) = CountEntries::locate(page);
            assert!(offset < FIRST_LEVEL_ENTRIES << level && level < LEVEL_COUNT);
            assert!(before < Some((level, offset)));
            before = Some((level, offset));
        }
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    const PARENT: PageId = PageId(1);
    const LEFT: PageId = PageId(2);
    const RIGHT: PageId = PageId(3);

    /// The part of the protocol that is omitted in a run of the model.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Without {
        Nothing,
        /// A count is stored without comparing the stamp.
        Stamps,
        /// Splitting a leaf does not void its count.
        Voiding,
        /// The counting thread does not check that the parent is still current.
        Revalidation,
    }

    /// A parent whose only child is split. The left leaf has two rows, one of which moves to the right leaf.
    struct Leaves {
        entries: CountEntries,
        /// The version of the parent: version 1 has one child, version 2 has two.
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

        /// Returns the number of rows beneath the parent, or `None` if another thread changed an entry or the parent
        /// during the count.
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

    /// Two threads count while a third splits a leaf. Every count that they return or store must be 2.
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

    /// Shows that the model detects a count that is kept across a split.
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
