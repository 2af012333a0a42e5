//! The page table of a keyspace: one atomic entry per page.
//!
//! Only a page's entry says where the page is; nodes refer to pages by id. So if a page moves, on disk or in memory,
//! only its entry changes.
//!
//! # States of an entry, and transitions
//! ```text
//! Free ── allocate ──▶ Reserved
//! Reserved ── publish (the allocating commit or split) ──▶ Leaf / Immutable / OnDisk
//! OnDisk ── a fault claims it ──▶ Reading
//! Reading ── the same fault ends ──▶ Leaf / Immutable (or OnDisk, if the read failed)
//! OnDisk ── the reclaimer has copied the extent ──▶ OnDisk (elsewhere)
//! Leaf, Immutable ── eviction of a clean frame ──▶ OnDisk
//! Immutable ── a changed copy replaces it ──▶ Immutable (in a different frame)
//! Leaf ── the root's rows go to two children ──▶ Immutable
//! Immutable ── the root's last child replaces it ──▶ Leaf
//! OnDisk, Reading ── the page is claimed to be freed ──▶ Reserved
//! Reserved ── a bulk load has written the page ──▶ Unattached
//! Unattached ── the load is attached ──▶ OnDisk
//! Unattached ── the load discards the page ──▶ Reserved
//! Leaf, Immutable, Reserved, Unattached ── free ──▶ Free (from any state if the keyspace is dropped)
//! ```
//! [`PageEntry::may_become`] lists all transitions; `store` and `exchange` assert it.
//!
//! # Invariants
//! 1. Every change to an entry, except between OnDisk, Reading and resident states, happens under the epoch latch, so a
//!    checkpoint that begins sees no half-done change.
//! 2. The page of a `Leaf` entry is read and written under its frame's latch. The page of an `Immutable` entry never
//!    changes while it is published: its readers need no latch, only a reclaim guard that keeps the frame from being
//!    reused.
//! 3. An `Unattached` page belongs to one bulk load: no node that a reader can reach names it, no checkpoint records
//!    it, and no other thread changes its entry.
//! 4. A table only grows, and its parts never move. So an entry can be read without a lock.
//!
//! # Parts
//! The table of a small keyspace takes little memory. The entries of the first two pages are in the table itself, those
//! of the pages up to 63 in a second part, and those up to 1023 in a third. The other pages have chunks of
//! [`CHUNK_PAGES`] entries each, which a directory of levels leads to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sync::Mutex;

use crate::format::{Epoch, ExtentAddress, PageId};
use crate::memory::{Account, Budget};

/// Identifies a frame in the buffer pool. The top three bits are the frame's size class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct FrameIndex(pub(crate) u32);

/// The state of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageEntry {
    /// The page does not exist.
    Free,
    /// Allocated, but not published yet by the thread that allocated it.
    Reserved,
    /// On disk.
    OnDisk(ExtentAddress),
    /// On disk, with a read in flight.
    Reading(ExtentAddress),
    /// In a frame, whose latch protects the page.
    Leaf(FrameIndex),
    /// In a frame, where it never changes: an inner node or a medium value.
    Immutable(FrameIndex),
    /// On disk. Written by a bulk load that has not been attached yet.
    Unattached(ExtentAddress),
}

const TAG_SHIFT: u32 = ExtentAddress::BITS;
const TAG_ON_DISK: u64 = 0;
const TAG_LEAF: u64 = 1;
const TAG_IMMUTABLE: u64 = 2;
const TAG_READING: u64 = 3;
const TAG_RESERVED: u64 = 4;
const TAG_UNATTACHED: u64 = 5;
const ADDRESS_MASK: u64 = (1 << TAG_SHIFT) - 1;

impl PageEntry {
    /// Returns `true` if the module's state machine allows a transition from this entry to `next`. Does not cover
    /// `allocate` and `free`.
    fn may_become(self, next: PageEntry) -> bool {
        use PageEntry::{Immutable, Leaf, OnDisk, Reading, Reserved, Unattached};
        match (self, next) {
            (Reserved, Unattached(_)) | (Unattached(_), Reserved) => true,
            (Unattached(written), OnDisk(address)) => written == address,
            (Reserved, Leaf(_) | Immutable(_) | OnDisk(_)) => true,
            (OnDisk(address), Reading(read)) | (Reading(read), OnDisk(address)) => address == read,
            (OnDisk(old), OnDisk(new)) => old != new,
            (Reading(_), Leaf(_) | Immutable(_)) => true,
            (Leaf(_) | Immutable(_), OnDisk(_)) => true,
            (Immutable(old), Immutable(new) | Leaf(new)) | (Leaf(old), Immutable(new)) => old != new,
            (OnDisk(_) | Reading(_), Reserved) => true,
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn to_bits(self) -> u64 {
        match self {
            PageEntry::Free => 0,
            PageEntry::Reserved => TAG_RESERVED << TAG_SHIFT,
            PageEntry::OnDisk(address) => {
                debug_assert!(!address.is_none(), "a page on disk that is nowhere would be a free one");
                address.to_bits()
            }
            PageEntry::Reading(address) => (TAG_READING << TAG_SHIFT) | address.to_bits(),
            PageEntry::Unattached(address) => (TAG_UNATTACHED << TAG_SHIFT) | address.to_bits(),
            PageEntry::Leaf(frame) => (TAG_LEAF << TAG_SHIFT) | u64::from(frame.0),
            PageEntry::Immutable(frame) => (TAG_IMMUTABLE << TAG_SHIFT) | u64::from(frame.0),
        }
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> PageEntry {
        match bits >> TAG_SHIFT {
            TAG_LEAF => PageEntry::Leaf(FrameIndex(bits as u32)),
            TAG_IMMUTABLE => PageEntry::Immutable(FrameIndex(bits as u32)),
            TAG_ON_DISK if bits == 0 => PageEntry::Free,
            TAG_ON_DISK => PageEntry::OnDisk(
                ExtentAddress::from_bits(bits).unwrap_or_else(|| panic!("page entry {bits:#x} is malformed")),
            ),
            TAG_READING => PageEntry::Reading(
                ExtentAddress::from_bits(bits & ADDRESS_MASK).expect("an entry in memory is well formed"),
            ),
            TAG_RESERVED => PageEntry::Reserved,
            TAG_UNATTACHED => PageEntry::Unattached(
                ExtentAddress::from_bits(bits & ADDRESS_MASK).expect("an entry in memory is well formed"),
            ),
            tag => unreachable!("page entry with tag {tag}"),
        }
    }
}

/// The number of pages per chunk. Their entries fill 8 KiB. Checkpoints write whole chunks.
pub(crate) const CHUNK_PAGES: usize = crate::format::extent::TABLE_PAGES;

/// The memory for a chunk, in bytes.
pub(crate) const CHUNK_BYTES: u64 = (CHUNK_PAGES * size_of::<AtomicU64>()) as u64;

/// Fixed by the format: page numbers have 32 bits.
const PAGE_COUNT_MAX: u64 = 1 << 32;

/// The number of pages whose entries are in the table itself: page 0, which does not exist, and the root.
const FIRST_PAGES: usize = 2;

/// The end of the pages whose entries are in the first or the second part.
const SECOND_PAGES: usize = 64;

/// The memory that an empty keyspace takes, in bytes: its table with the first entries, its name, locks and counters,
/// and its entries in the maps of keyspaces. A test adds up their sizes.
pub(crate) const KEYSPACE_BYTES: u64 = 474;

/// The number of chunks in the first level of the directory. Each level has twice as many chunks as the previous one.
const FIRST_LEVEL_CHUNKS: usize = 64;

/// The memory for a chunk's slot in the directory, in bytes.
const SLOT_BYTES: u64 = size_of::<OnceLock<Chunk>>() as u64;

/// Fixed by the number of pages: these levels are enough for all 2³² pages: 64 · (2¹⁷ − 1) chunks of 2¹⁰ pages.
const LEVEL_COUNT: usize = 17;

type Part<const PAGES: usize> = Box<[AtomicU64; PAGES]>;
type Chunk = Part<CHUNK_PAGES>;
type Level = Box<[OnceLock<Chunk>]>;

/// The entries of a keyspace with more than [`SECOND_PAGES`] pages.
struct LargeTable {
    /// The rest of the first chunk.
    third: [AtomicU64; CHUNK_PAGES - SECOND_PAGES],
    /// The directory of the other chunks. Slot 0 of the first level stays empty.
    levels: [OnceLock<Level>; LEVEL_COUNT],
}

/// The memory for the second part, in bytes.
const SECOND_BYTES: u64 = ((SECOND_PAGES - FIRST_PAGES) * size_of::<AtomicU64>()) as u64;

/// Returns a part of a table whose pages are all free.
fn new_part<const PAGES: usize>() -> Part<PAGES> {
    let entries: Box<[AtomicU64]> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    entries.try_into().expect("the entries were counted")
}

/// The page table of a keyspace. See the module documentation.
pub(crate) struct PageTable {
    first: [AtomicU64; FIRST_PAGES],
    second: OnceLock<Part<{ SECOND_PAGES - FIRST_PAGES }>>,
    large: OnceLock<Box<LargeTable>>,
    allocation: Mutex<Allocation>,
    /// The memory that the table has taken from the budget, in bytes.
    bytes: AtomicU64,
    budget: Arc<Budget>,
    /// All page numbers are below this limit, which tests lower.
    #[cfg(test)]
    page_count_max: AtomicU64,
}

/// The allocation of page numbers. A page is free if its entry is `Free`. The counts narrow down the search for free
/// pages.
struct Allocation {
    /// The highest page number that has an entry.
    last: u32,
    /// The number of free pages in all chunks.
    free_count: u32,
    /// The page after the last allocated run. The next search starts here.
    cursor: u32,
    /// The number of free pages in the first chunk, or in the part of it that exists.
    first_free_count: u16,
    /// The other chunks, if there are any.
    others: Option<Box<OtherChunks>>,
}

/// The free pages of the chunks after the first. A small keyspace has no such chunks.
#[derive(Default)]
struct OtherChunks {
    /// The number of free pages in each chunk.
    free_counts: Vec<u16>,
    /// For each chunk, the epoch in which a page that a checkpoint may have recorded was last freed.
    freed_in: Vec<Epoch>,
}

impl Allocation {
    /// Returns the exclusive upper bound of the page numbers that have entries.
    fn end(&self) -> usize {
        self.last as usize + 1
    }

    fn chunk_count(&self) -> usize {
        self.end().div_ceil(CHUNK_PAGES)
    }

    /// Returns the number of free pages in a chunk.
    fn free_in(&self, chunk: usize) -> usize {
        debug_assert!(chunk < self.chunk_count(), "chunk {chunk} of {}", self.chunk_count());
        let others = || self.others.as_ref().expect("a chunk after the first");
        usize::from(if chunk == 0 { self.first_free_count } else { others().free_counts[chunk - 1] })
    }

    fn free_in_mut(&mut self, chunk: usize) -> &mut u16 {
        debug_assert!(chunk < self.chunk_count(), "chunk {chunk} of {}", self.chunk_count());
        match chunk {
            0 => &mut self.first_free_count,
            _ => &mut self.others.as_mut().expect("a chunk after the first").free_counts[chunk - 1],
        }
    }

    /// Records that pages of a chunk are no longer free.
    fn take(&mut self, chunk: usize, page_count: usize) {
        let free_count = self.free_in(chunk);
        assert!(free_count >= page_count, "{page_count} pages are taken of a chunk that has {free_count} free");
        *self.free_in_mut(chunk) -= page_count as u16;
        self.free_count -= page_count as u32;
    }

    /// Records that pages of a chunk are free.
    fn give(&mut self, chunk: usize, page_count: usize) {
        *self.free_in_mut(chunk) += page_count as u16;
        self.free_count += page_count as u32;
        let free_count = self.free_in(chunk);
        assert!(free_count <= CHUNK_PAGES, "a chunk has {free_count} free pages");
    }
}

impl std::fmt::Debug for PageTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageTable(pages below {})", self.number_end())
    }
}

impl PageTable {
    /// Creates an empty table. It takes the memory of an empty keyspace from the budget, and more as it grows.
    pub(crate) fn new(budget: &Arc<Budget>) -> PageTable {
        // Page 0 does not exist.
        let free = FIRST_PAGES - 1;
        let (last, free_count) = (FIRST_PAGES as u32 - 1, free as u32);
        let allocation = Allocation { last, free_count, cursor: 0, first_free_count: free as u16, others: None };
        let table = PageTable {
            first: [const { AtomicU64::new(0) }; FIRST_PAGES],
            second: OnceLock::new(),
            large: OnceLock::new(),
            allocation: Mutex::new(allocation),
            bytes: AtomicU64::new(0),
            budget: Arc::clone(budget),
            #[cfg(test)]
            page_count_max: AtomicU64::new(PAGE_COUNT_MAX),
        };
        table.take(KEYSPACE_BYTES);
        table
    }

    /// Returns `true` if the table takes its memory from this budget. Each open database has its own budget. So the
    /// result shows whether the entries name frames of this database's pool.
    #[inline]
    pub(crate) fn is_within(&self, budget: &Arc<Budget>) -> bool {
        Arc::ptr_eq(&self.budget, budget)
    }

    /// Returns `true` if `page_count` page numbers would be left even after the allocations of all commits in progress.
    /// Every commit calls this function first, because it must not run out of page numbers once it has its timestamp.
    /// O(1), without a lock.
    pub(crate) fn has_numbers(&self, page_count: u64) -> bool {
        /// One in this many page numbers is reserved for commits in progress. That is enough for thousands of the
        /// largest commits.
        const IN_PROGRESS_SHARE: u64 = 64;
        let page_count_max = self.page_count_max();
        // The memory includes the directory, so this slightly underestimates the number of page numbers left.
        let reached = self.memory_bytes() / size_of::<AtomicU64>() as u64;
        reached + page_count + page_count_max / IN_PROGRESS_SHARE <= page_count_max
    }

    /// All page numbers are below this limit.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests have a limit in the table")]
    fn page_count_max(&self) -> u64 {
        PAGE_COUNT_MAX
    }

    #[cfg(test)]
    fn page_count_max(&self) -> u64 {
        self.page_count_max.load(Ordering::Relaxed)
    }

    /// Limits page numbers to those below `page_count_max`.
    #[cfg(test)]
    pub(crate) fn limit_pages(&self, page_count_max: u64) {
        self.page_count_max.store(page_count_max, Ordering::Relaxed);
    }

    #[inline]
    fn locate(chunk: usize) -> (usize, usize) {
        let shifted = chunk + FIRST_LEVEL_CHUNKS;
        let level = (shifted.ilog2() - FIRST_LEVEL_CHUNKS.ilog2()) as usize;
        debug_assert!(level < LEVEL_COUNT, "chunk {chunk} is beyond the directory");
        (level, shifted - (FIRST_LEVEL_CHUNKS << level))
    }

    /// Returns a chunk other than the first.
    #[inline]
    fn chunk(&self, chunk: usize) -> Option<&Chunk> {
        let (level, offset) = Self::locate(chunk);
        self.large.get()?.levels[level].get()?[offset].get()
    }

    fn make_chunk(&self, chunk: usize) {
        debug_assert!(chunk > 0, "the first chunk is in three parts");
        let (level, offset) = Self::locate(chunk);
        let large = self.large.get().expect("the first chunk is whole before there is another");
        let slots = large.levels[level].get_or_init(|| {
            let count = FIRST_LEVEL_CHUNKS << level;
            self.take(count as u64 * SLOT_BYTES);
            (0..count).map(|_| OnceLock::new()).collect()
        });
        slots[offset].get_or_init(|| {
            self.take(CHUNK_BYTES);
            new_part()
        });
    }

    /// Makes entries for all pages below `end`. The new ones are free.
    fn grow_to(&self, allocation: &mut Allocation, end: usize) {
        while allocation.end() < end {
            let before = allocation.end();
            let chunk = before / CHUNK_PAGES;
            let after = match before {
                FIRST_PAGES => {
                    self.take(SECOND_BYTES);
                    self.second.get_or_init(new_part);
                    SECOND_PAGES
                }
                SECOND_PAGES => {
                    self.take(size_of::<LargeTable>() as u64);
                    self.large.get_or_init(|| {
                        Box::new(LargeTable {
                            third: [const { AtomicU64::new(0) }; CHUNK_PAGES - SECOND_PAGES],
                            levels: [const { OnceLock::new() }; LEVEL_COUNT],
                        })
                    });
                    CHUNK_PAGES
                }
                _ => {
                    self.make_chunk(chunk);
                    let others = allocation.others.get_or_insert_default();
                    others.free_counts.push(0);
                    others.freed_in.push(Epoch(0));
                    before + CHUNK_PAGES
                }
            };
            debug_assert!(after > before, "a table of {before} entries grows to {after}");
            allocation.last = (after - 1) as u32;
            allocation.give(chunk, after - before);
        }
    }

    fn take(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.budget.take(Account::Tables, bytes);
    }

    /// Returns the page's cell, or `None` past the end of the table.
    #[inline]
    fn cell(&self, page: PageId) -> Option<&AtomicU64> {
        let index = page.0 as usize;
        if index >= CHUNK_PAGES {
            return Some(&self.chunk(index / CHUNK_PAGES)?[index % CHUNK_PAGES]);
        }
        match index {
            0..FIRST_PAGES => Some(&self.first[index]),
            FIRST_PAGES..SECOND_PAGES => Some(&self.second.get()?[index - FIRST_PAGES]),
            _ => Some(&self.large.get()?.third[index - SECOND_PAGES]),
        }
    }

    /// Returns the cells of a chunk, or of the part of it that exists, in order. Each slice comes with its first page.
    fn cells_of(&self, chunk: usize) -> impl Iterator<Item = (usize, &[AtomicU64])> {
        let mut parts: [Option<(usize, &[AtomicU64])>; 3] = [None; 3];
        if chunk == 0 {
            parts[0] = Some((0, &self.first[..]));
            parts[1] = self.second.get().map(|part| (FIRST_PAGES, &part[..]));
            parts[2] = self.large.get().map(|large| (SECOND_PAGES, &large.third[..]));
        } else {
            parts[0] = self.chunk(chunk).map(|part| (chunk * CHUNK_PAGES, &part[..]));
        }
        parts.into_iter().flatten()
    }

    /// Returns the page's current entry.
    #[inline]
    pub(crate) fn load(&self, page: PageId) -> PageEntry {
        self.cell(page).map_or(PageEntry::Free, |cell| PageEntry::from_bits(cell.load(Ordering::Acquire)))
    }

    /// Returns `true` if the page has this entry.
    #[inline]
    pub(crate) fn shows(&self, page: PageId, entry: PageEntry) -> bool {
        debug_assert!(entry != PageEntry::Free, "a page is asked for that does not exist");
        self.cell(page).is_some_and(|cell| cell.load(Ordering::Acquire) == entry.to_bits())
    }

    /// Publishes a new entry. The caller must hold the latches that, according to the module's states, keep other
    /// threads from changing the entry.
    pub(crate) fn store(&self, page: PageId, entry: PageEntry) {
        assert!(page != PageId::NONE, "page 0 does not exist");
        let cell = self.cell(page).expect("the page was allocated");
        let before = PageEntry::from_bits(cell.load(Ordering::Relaxed));
        assert!(before.may_become(entry), "page {page}: {before:?} can't become {entry:?}");
        cell.store(entry.to_bits(), Ordering::Release);
    }

    /// Replaces the entry with `new` if it is `expected`. Returns `false` otherwise.
    pub(crate) fn exchange(&self, page: PageId, expected: PageEntry, new: PageEntry) -> bool {
        assert!(page != PageId::NONE, "page 0 does not exist");
        assert!(expected.may_become(new), "page {page}: {expected:?} can't become {new:?}");
        self.cell(page).is_some_and(|cell| {
            cell.compare_exchange(expected.to_bits(), new.to_bits(), Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    /// Returns the memory used by the table, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the memory that a keyspace takes if its table has entries for the pages below `end`, in bytes.
    pub(crate) fn memory_bytes_of(end: u64) -> u64 {
        if end <= FIRST_PAGES as u64 {
            return KEYSPACE_BYTES;
        }
        if end <= SECOND_PAGES as u64 {
            return KEYSPACE_BYTES + SECOND_BYTES;
        }
        let chunk_count = end.div_ceil(CHUNK_PAGES as u64);
        let mut slot_count = 0;
        if chunk_count > 1 {
            let levels = (0..LEVEL_COUNT).map(|level| (FIRST_LEVEL_CHUNKS as u64) << level);
            for slots in levels {
                slot_count += slots;
                if slot_count >= chunk_count {
                    break;
                }
            }
        }
        // The first chunk is divided among the parts.
        let chunk_bytes = (chunk_count - 1) * CHUNK_BYTES;
        KEYSPACE_BYTES + SECOND_BYTES + size_of::<LargeTable>() as u64 + chunk_bytes + slot_count * SLOT_BYTES
    }

    /// Returns the maximum number of bytes by which `page_count` more pages can make the table grow. O(1), without a
    /// lock.
    pub(crate) fn growth_bytes_max(&self, page_count: u64) -> u64 {
        let chunk_count = page_count.div_ceil(CHUNK_PAGES as u64);
        // The table grows contiguously, by one chunk per `CHUNK_PAGES` pages. A new level of the directory has 64 more
        // slots than all earlier levels together, and any level that the growth skips has fewer slots than there will
        // be chunks.
        let slots = self.memory_bytes() / CHUNK_BYTES + FIRST_LEVEL_CHUNKS as u64 + 2 * chunk_count;
        let growth_bytes = chunk_count * CHUNK_BYTES + slots * SLOT_BYTES;
        if self.large.get().is_some() {
            return growth_bytes;
        }
        // If a few pages are added to a small table, it needs no chunk yet.
        let end_max = SECOND_PAGES as u64 + page_count;
        if self.second.get().is_none() && (FIRST_PAGES as u64 - 1 + page_count) < SECOND_PAGES as u64 {
            return SECOND_BYTES;
        }
        if end_max <= CHUNK_PAGES as u64 {
            return SECOND_BYTES + size_of::<LargeTable>() as u64;
        }
        SECOND_BYTES + size_of::<LargeTable>() as u64 + growth_bytes
    }

    /// Returns the exclusive upper bound of the table's page numbers. Many of the numbers below it may be free.
    pub(crate) fn number_end(&self) -> u64 {
        self.allocation.lock().end() as u64
    }

    /// Returns the number of pages in use.
    pub(crate) fn page_count(&self) -> u64 {
        let allocation = self.allocation.lock();
        debug_assert_eq!(
            (0..allocation.chunk_count()).map(|chunk| allocation.free_in(chunk)).sum::<usize>(),
            allocation.free_count as usize,
            "the chunks have other free pages than are counted"
        );
        // Page 0 does not exist, and is not counted as free either.
        u64::from(allocation.last) - u64::from(allocation.free_count)
    }

    /// Allocates `count` consecutive pages, with the entry `Reserved`. Amortised O(count); never waits.
    pub(crate) fn allocate(&self, count: u32) -> PageId {
        assert!(count > 0);
        let mut allocation = self.allocation.lock();
        let first = self.find_run(&allocation, count as usize).unwrap_or_else(|| {
            // A run at the end of the table may begin with the free pages there.
            allocation.end() - self.free_tail(allocation.end(), count as usize)
        });
        let first = first.max(1);
        let page_count_max = self.page_count_max();
        assert!((first + count as usize) as u64 <= page_count_max, "a keyspace has as many pages as there are numbers");
        self.grow_to(&mut allocation, first + count as usize);
        for index in first..first + count as usize {
            allocation.take(index / CHUNK_PAGES, 1);
            let cell = self.cell(PageId(index as u32)).expect("just made");
            let before = cell.swap(PageEntry::Reserved.to_bits(), Ordering::AcqRel);
            assert!(before == 0, "page {index} given out twice");
        }
        allocation.cursor = ((first + count as usize) % allocation.end()) as u32;
        PageId(first as u32)
    }

    /// Allocates all pages of `count` consecutive chunks that are new, or have had no page in use since the checkpoint
    /// of epoch `settled`, and marks them as reserved. Returns the first of these chunks. For bulk loads. O(chunks).
    pub(crate) fn allocate_chunks(&self, count: usize, settled: Epoch) -> usize {
        let mut allocation = self.allocation.lock();
        let chunk_count = allocation.chunk_count();
        assert!(count > 0 && chunk_count > 0, "{count} chunks are added to a table of {chunk_count}");
        let is_settled =
            |chunk: usize| allocation.others.as_ref().is_some_and(|others| others.freed_in[chunk - 1] <= settled);
        let is_unused = |chunk: &usize| allocation.free_in(*chunk) == CHUNK_PAGES && is_settled(*chunk);
        let mut run = 0;
        // Skip the first chunk, which holds the root.
        let found = (1..chunk_count).find(|chunk| {
            run = if is_unused(chunk) { run + 1 } else { 0 };
            run == count
        });
        let first = found.map_or(chunk_count, |last| last + 1 - count);
        let page_count_max = self.page_count_max();
        assert!(((first + count) * CHUNK_PAGES) as u64 <= page_count_max, "a keyspace has no more page numbers");
        self.grow_to(&mut allocation, (first + count) * CHUNK_PAGES);
        for chunk in first..first + count {
            for cell in &self.chunk(chunk).expect("just made")[..] {
                let before = cell.swap(PageEntry::Reserved.to_bits(), Ordering::AcqRel);
                assert!(before == 0, "a page of chunk {chunk}, which has none, is in use");
            }
            allocation.take(chunk, CHUNK_PAGES);
        }
        first
    }

    /// Enters the pages of a chunk that a bulk load has written. A log record attaches the load. Reserves the page
    /// numbers that the load did not use. Returns `false` if the chunk can't exist, or has pages. Only called while the
    /// database is being opened.
    #[must_use]
    pub(crate) fn restore_unattached(&self, chunk: usize, addresses: &[ExtentAddress]) -> bool {
        let mut allocation = self.allocation.lock();
        if addresses.len() != CHUNK_PAGES || chunk > u32::MAX as usize / CHUNK_PAGES || chunk == 0 {
            return false;
        }
        self.grow_to(&mut allocation, (chunk + 1) * CHUNK_PAGES);
        let cells = self.chunk(chunk).expect("just made");
        for (cell, address) in cells.iter().zip(addresses) {
            let entry = if address.is_none() { PageEntry::Reserved } else { PageEntry::Unattached(*address) };
            if cell.swap(entry.to_bits(), Ordering::AcqRel) != 0 {
                return false;
            }
            allocation.take(chunk, 1);
        }
        true
    }

    /// Allocates the page of the root, which has just been freed. The caller must hold the epoch latch exclusively.
    pub(crate) fn allocate_root(&self) {
        let mut allocation = self.allocation.lock();
        let cell = self.cell(PageId::ROOT).expect("a keyspace has a root");
        let before = cell.swap(PageEntry::Reserved.to_bits(), Ordering::AcqRel);
        assert!(before == 0, "the root is given out while it is in use");
        allocation.take(0, 1);
    }

    /// Returns the number of free pages directly before `end`, but at most `most`.
    fn free_tail(&self, end: usize, most: usize) -> usize {
        (1..=most.min(end.saturating_sub(1)))
            .take_while(|back| self.load(PageId((end - back) as u32)) == PageEntry::Free)
            .last()
            .unwrap_or(0)
    }

    /// Searches for `count` consecutive free pages. Starts after the last allocated run, and examines up to 16 chunks
    /// that have enough free pages.
    fn find_run(&self, allocation: &Allocation, count: usize) -> Option<usize> {
        if (allocation.free_count as usize) < count {
            return None;
        }
        /// The maximum number of chunks that one search examines.
        const CHUNKS_SEARCHED_MAX: usize = 16;
        let chunks = allocation.chunk_count();
        let cursor = allocation.cursor as usize;
        let cursor_chunk = cursor / CHUNK_PAGES;
        // Start after the last allocated run. The pages before it in the same chunk are examined last.
        let starts = (0..=chunks).map(|step| match step {
            0 => cursor,
            _ => (cursor_chunk + step) % chunks * CHUNK_PAGES,
        });
        let promising = starts
            .filter(|start| allocation.free_in(start / CHUNK_PAGES % chunks) >= count.min(CHUNK_PAGES))
            .take(CHUNKS_SEARCHED_MAX);
        for start in promising {
            let mut run = 0;
            // A run may extend into later chunks.
            let end = (start / CHUNK_PAGES + 1) * CHUNK_PAGES + count;
            for index in start.max(1)..end.min(allocation.end()) {
                run = if self.load(PageId(index as u32)) == PageEntry::Free { run + 1 } else { 0 };
                if run == count {
                    return Some(index + 1 - count);
                }
            }
        }
        None
    }

    /// Frees a page that a checkpoint may have recorded, in this epoch. Like [`free`](Self::free).
    pub(crate) fn free_in(&self, epoch: Epoch, page: PageId) -> PageEntry {
        let chunk = page.0 as usize / CHUNK_PAGES;
        // The first chunk holds the root, so no load gets it.
        if chunk > 0 {
            let mut allocation = self.allocation.lock();
            allocation.others.as_mut().expect("a chunk after the first").freed_in[chunk - 1] = epoch;
        }
        self.free(page)
    }

    /// Frees a page. Returns its previous entry. The caller must release the page's extent and frame.
    pub(crate) fn free(&self, page: PageId) -> PageEntry {
        assert!(page != PageId::NONE, "page 0 does not exist");
        let mut allocation = self.allocation.lock();
        let cell = self.cell(page).expect("the page was allocated");
        let before = PageEntry::from_bits(cell.swap(0, Ordering::AcqRel));
        assert!(before != PageEntry::Free, "page {page} freed twice");
        allocation.give(page.0 as usize / CHUNK_PAGES, 1);
        before
    }

    /// Fills a chunk with the entries that a checkpoint recorded. Makes entries for all pages up to the last one in
    /// use. Called only while the database is being opened.
    pub(crate) fn restore_chunk(&self, chunk: usize, entries: &[u64]) {
        assert!(entries.len() == CHUNK_PAGES, "a chunk of {} entries", entries.len());
        let Some(last) = entries.iter().rposition(|entry| *entry != 0) else { return };
        let mut allocation = self.allocation.lock();
        self.grow_to(&mut allocation, chunk * CHUNK_PAGES + last + 1);
        let mut used = 0;
        for (first, cells) in self.cells_of(chunk) {
            for (cell, entry) in cells.iter().zip(&entries[first % CHUNK_PAGES..]) {
                assert!(cell.swap(*entry, Ordering::Release) == 0, "a chunk is restored once");
                used += usize::from(*entry != 0);
            }
        }
        allocation.take(chunk, used);
    }

    /// Returns all pages in use and their entries, in order. May or may not include concurrent changes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageId, PageEntry)> + '_ {
        let chunk_count = self.number_end().div_ceil(CHUNK_PAGES as u64) as usize;
        (0..chunk_count).flat_map(|chunk| self.cells_of(chunk)).flat_map(|(first, cells)| {
            cells.iter().enumerate().filter_map(move |(offset, cell)| {
                let bits = cell.load(Ordering::Acquire);
                (bits != 0).then(|| (PageId((first + offset) as u32), PageEntry::from_bits(bits)))
            })
        })
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        debug_assert_eq!(
            self.memory_bytes(),
            PageTable::memory_bytes_of(self.number_end()),
            "a table has taken other memory than its parts need"
        );
        self.budget.give(Account::Tables, self.memory_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> PageTable {
        PageTable::new(&Budget::of_pages(1 << 30))
    }

    /// A budget of 64 MiB has memory for 50,000 keyspaces of one page, and for a transaction that lets one of them grow
    /// to 1,000 pages.
    #[test]
    fn fifty_thousand_keyspaces_fit_64_mib() {
        let budget = Arc::new(Budget::new(64 << 20, 1));
        let tables: Vec<PageTable> = (0..50_000).map(|_| PageTable::new(&budget)).collect();
        assert_eq!(budget.taken_bytes(Account::Tables), 50_000 * KEYSPACE_BYTES);
        assert_eq!(budget.needed_for_growth(tables[0].growth_bytes_max(900)), None);
        assert_eq!(budget.needed_for_opening(50_000 * KEYSPACE_BYTES), None);
    }

    /// An entry that is encoded and then decoded stays the same.
    #[test]
    fn entries_survive_their_bits() {
        let address = ExtentAddress::new(4096, 300, crate::format::SegmentUse(7));
        for entry in [
            PageEntry::Free,
            PageEntry::Reserved,
            PageEntry::OnDisk(address),
            PageEntry::Reading(address),
            PageEntry::Leaf(FrameIndex(u32::MAX)),
            PageEntry::Immutable(FrameIndex(0)),
            PageEntry::Unattached(address),
        ] {
            assert_eq!(PageEntry::from_bits(entry.to_bits()), entry);
        }
    }

    /// `may_become` allows exactly the transitions of the state machine.
    #[test]
    fn entries_change_by_the_state_machine() {
        let address = |start| ExtentAddress::new(start, 300, crate::format::SegmentUse(7));
        let (here, there) = (PageEntry::OnDisk(address(4096)), PageEntry::OnDisk(address(8192)));
        let reading = PageEntry::Reading(address(4096));
        let [leaf, other_leaf] = [1, 2].map(|frame| PageEntry::Leaf(FrameIndex(frame)));
        let [inner, other_inner] = [3, 4].map(|frame| PageEntry::Immutable(FrameIndex(frame)));
        let unattached = PageEntry::Unattached(address(4096));
        let nodes = [leaf, other_leaf, inner, other_inner];
        let all = [&[PageEntry::Free, PageEntry::Reserved, here, there, reading][..], &nodes, &[unattached]].concat();
        let legal = |entry: PageEntry| all.iter().copied().filter(|next| entry.may_become(*next)).collect::<Vec<_>>();
        assert_eq!(legal(PageEntry::Free), []);
        assert_eq!(legal(PageEntry::Reserved), [here, there, leaf, other_leaf, inner, other_inner, unattached]);
        assert_eq!(legal(unattached), [PageEntry::Reserved, here]);
        assert_eq!(legal(here), [PageEntry::Reserved, there, reading]);
        assert_eq!(legal(reading), [PageEntry::Reserved, here, leaf, other_leaf, inner, other_inner]);
        assert_eq!(legal(leaf), [here, there, inner, other_inner]);
        assert_eq!(legal(inner), [here, there, leaf, other_leaf, other_inner]);
    }

    /// No page is allocated twice, runs are consecutive, and freed pages are reused.
    #[test]
    fn pages_are_given_out_once() {
        let table = table();
        assert_eq!(table.allocate(1), PageId::ROOT);
        let run = table.allocate(3000);
        assert_eq!(run, PageId(2));
        assert_eq!(table.page_count(), 3001);
        let after = table.allocate(1);
        assert_eq!(after, PageId(3002));
        for page in 10..20 {
            table.free(PageId(page));
        }
        let mut again: Vec<u32> = (0..10).map(|_| table.allocate(1).0).collect();
        again.sort_unstable();
        // Both new and freed pages may be allocated, but no page twice.
        again.dedup();
        assert_eq!(again.len(), 10);
        assert_eq!(table.page_count(), 3002);
    }

    /// Repeatedly allocating and freeing runs does not make the table grow.
    #[test]
    fn freed_runs_serve_again() {
        let table = table();
        for _ in 0..1000 {
            let first = table.allocate(700);
            for page in first.0..first.0 + 700 {
                table.free(PageId(page));
            }
        }
        assert!(table.number_end() <= 3 * CHUNK_PAGES as u64, "{} numbers", table.number_end());
    }

    /// A table takes its memory from the budget, at most as much as predicted, and returns it when dropped.
    #[test]
    fn a_table_takes_its_memory_of_the_budget() {
        let table = table();
        let budget = Arc::clone(&table.budget);
        for count in [1, 6, 1, 55, 1, 900, 1, 1000, 1, 70_000, 100_000, 3, 700_000] {
            let before = budget.taken_bytes(Account::Tables);
            let most = table.growth_bytes_max(u64::from(count));
            table.allocate(count);
            let taken = budget.taken_bytes(Account::Tables);
            assert!(taken - before <= most, "{count} pages took {} bytes, {most} were told", taken - before);
            assert_eq!(taken, PageTable::memory_bytes_of(table.number_end()));
        }
        drop(table);
        assert_eq!(budget.taken_bytes(Account::Tables), 0);
    }

    /// The directory's levels abut.
    #[test]
    fn levels_abut() {
        let mut previous = (0, usize::MAX);
        for chunk in 0..10_000 {
            let (level, offset) = PageTable::locate(chunk);
            let expected = if previous.1.wrapping_add(1) < FIRST_LEVEL_CHUNKS << previous.0 {
                (previous.0, previous.1.wrapping_add(1))
            } else {
                (previous.0 + 1, 0)
            };
            assert_eq!((level, offset), expected);
            previous = (level, offset);
        }
        assert!(PageTable::locate(u32::MAX as usize / CHUNK_PAGES).0 < LEVEL_COUNT);
    }
}
