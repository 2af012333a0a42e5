//! The memory of the buffer pool: arenas of frames, one per page size, and access to the pages in them.
//!
//! # Invariants
//! 1. A frame is in exactly one of these states: *unused* (never touched, or given back to the system), *free*, *new*
//!    (owned by a [`NewFrame`]), *checkpoint copy* (a leaf's header names it), *published* (a page's entry refers to
//!    it), *retired* (unlinked, but readers may still see it).
//! 2. A published leaf is read under the frame's shared latch and changed under the exclusive one. The holder of the
//!    latch compares [`FrameHeader::page_key`] with the page it wants, because the page may have been evicted before
//!    the frame was latched.
//! 3. The page of a published *immutable* frame (inner node, value) does not change. Its frame is retired before it is
//!    freed.
//! 4. `dirty` is the epoch of the newest change that no extent contains yet, or 0 if the page is clean. It is changed
//!    under the latch.
//! 5. A frame is not evicted while it is dirty or pinned. Commits pin the frames that they will change, and writes pin
//!    the frames whose images are on their way to the disk. A pinned frame can be unlinked, in which case the last
//!    unpin frees it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

#[cfg(all(target_os = "linux", not(drumlin_portable)))]
use rustix::mm::{Advice, madvise};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::sync::{Mutex, RwLockReadGuard, RwLockWriteGuard};

use super::frame_header::{FrameHeader, Residency};
use super::reclaim::{EraGuard, FrameReclaimer};
use crate::format::extent::PageKey;
use crate::format::node::is_page_bytes;
pub(crate) use crate::format::node::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::format::{Epoch, PageId};
use crate::memory::{Account, Budget};
use crate::space::{CheckpointDebt, FrameIndex, PageEntry, PageTable};

/// The number of page sizes, fixed by their range.
const CLASS_COUNT: usize = 8;
const CLASS_SHIFT: u32 = 29;

const _: () = assert!(PAGE_BYTES_MIN << (CLASS_COUNT - 1) == PAGE_BYTES_MAX, "a page size has no class");
const _: () = assert!(CLASS_COUNT <= 1 << (u32::BITS - CLASS_SHIFT), "a class has no room in a frame's index");

/// The maximum time that a thread waits for a latch while it holds other latches. After that, it looks up the page
/// again.
///
/// Latches are taken in key order, so waits form no cycle. But an outdated view may lead to a frame whose page lies
/// elsewhere in the order, or to a frame that the thread itself has latched, so the wait must be bounded. A thread
/// holds a latch for a millisecond or longer only if it waits for the disk.
const LATCH_WAIT: std::time::Duration = std::time::Duration::from_millis(1);

/// The number of headers in a block, which occupies 2 KiB. Blocks are never freed. If each page size had a larger
/// block, headers would take too much of the little memory that large page tables leave.
pub(super) const HEADER_COUNT: usize = 32;
/// Memory of one block of headers.
pub(super) const HEADERS_BYTES: usize = HEADER_COUNT * size_of::<FrameHeader>();

/// All frames of one page size.
pub(super) struct Arena {
    pub(super) page_bytes: usize,
    pub(super) memory: Mapping,
    /// Blocks of [`HEADER_COUNT`] headers, each allocated when its frames are first used.
    pub(super) headers: Box<[OnceLock<Box<[FrameHeader]>>]>,
    pub(super) frame_count: usize,
    /// The number of frames in the smallest range that can be given back to the system. It is more than 1 if a frame is
    /// smaller than a system page.
    pub(super) frames_per_unit: usize,
    pub(super) lists: Mutex<Lists>,
    pub(super) hand: AtomicUsize,
}

#[derive(Default)]
pub(super) struct Lists {
    pub(super) free: Vec<u32>,
    pub(super) retired: VecDeque<(u64, u32)>,
    /// Frames given back to the system.
    pub(super) decommitted: Vec<u32>,
    /// All frames with this number or a higher one are untouched.
    pub(super) unused: u32,
}

/// Reserved anonymous memory; the system provides each of its pages when the page is first touched.
pub(super) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is plain memory; the states of the frames determine which thread may access which part
// (invariants 1 to 3 of the module). Test: tests/engine/concurrency.rs, whose threads share one pool.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
    const FLAGS: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

    fn new(bytes: usize) -> std::io::Result<Mapping> {
        assert!(bytes.is_multiple_of(rustix::param::page_size()), "a mapping of {bytes} bytes ends within a page");
        // SAFETY: a fresh anonymous mapping does not alias any other memory. Test: `memory_given_back_was_free`, here
        // and below.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, Self::ACCESS, Self::FLAGS)? };
        // Huge pages save TLB misses if the system offers them. Correctness does not depend on them.
        // SAFETY: the range is the mapping just made. No test can fail here, because the system may ignore the advice.
        #[cfg(all(target_os = "linux", not(drumlin_portable)))]
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        Ok(Mapping { start: start.cast(), bytes })
    }

    /// Gives a range back to the system, which will provide fresh memory when the range is next touched. The system
    /// works in whole system pages, and rounds a length up. No caller may expect to read zeros there, because free
    /// frames that were not given back still hold the bytes of their last page.
    pub(super) fn give_back(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        assert!(bytes.is_multiple_of(rustix::param::page_size()), "what else is in the page would be lost");
        assert!(offset.is_multiple_of(rustix::param::page_size()), "the system refuses a range from within a page");
        // SAFETY: the range lies in the mapping, as was just asserted. Test: `memory_given_back_was_free`.
        let first = unsafe { self.start.add(offset).cast() };
        // SAFETY: the caller owns the range: no frame in it is in use. Test: as before.
        #[cfg(all(target_os = "linux", not(drumlin_portable)))]
        let _ = unsafe { madvise(first, bytes, Advice::LinuxDontNeed) };
        // On other systems the advice may free nothing: on macOS the process retains the pages. Mapping fresh memory
        // over the range frees them immediately.
        #[cfg(not(all(target_os = "linux", not(drumlin_portable))))]
        {
            // SAFETY: as above; the old contents of the range have no other owner. Test: as before.
            let mapped = unsafe { mmap_anonymous(first, bytes, Self::ACCESS, Self::FLAGS | MapFlags::FIXED) };
            // If this fails, the range may no longer be mapped, and its frames could not be used.
            assert!(mapped.is_ok_and(|mapped| mapped == first), "the system did not replace {bytes} bytes of memory");
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any longer: every guard borrows the pool that owns it. Test: the
        // compiler, which refuses a guard that outlives its pool.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
    }
}

/// All frames of all page sizes, within one limit of bytes.
pub(crate) struct Frames {
    pub(super) arenas: [OnceLock<Arena>; CLASS_COUNT],
    /// The maximum size of frames and headers together while there are no page tables, in bytes.
    capacity_bytes: usize,
    budget: Arc<Budget>,
    pub(super) used_bytes: AtomicUsize,
    /// The total size of all copies, in bytes.
    pub(super) copied_bytes: AtomicUsize,
    debt: Arc<CheckpointDebt>,
    pub(super) reclaimer: FrameReclaimer,
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frames({} of {} bytes)", self.used_bytes(), self.limit_bytes())
    }
}

/// Returns the class of a page size.
pub(crate) fn class_of(page_bytes: usize) -> usize {
    assert!(is_page_bytes(page_bytes));
    (page_bytes.ilog2() - PAGE_BYTES_MIN.ilog2()) as usize
}

/// Returns the index of a frame, given its class and its number within the class.
pub(super) fn frame_of(class: usize, number: usize) -> FrameIndex {
    debug_assert!(class < CLASS_COUNT && number < 1 << CLASS_SHIFT, "frame {number} of class {class}");
    FrameIndex(((class as u32) << CLASS_SHIFT) | number as u32)
}

pub(super) fn split(frame: FrameIndex) -> (usize, usize) {
    ((frame.0 >> CLASS_SHIFT) as usize, (frame.0 & ((1 << CLASS_SHIFT) - 1)) as usize)
}

impl Frames {
    /// Creates a pool of frames that may use the part of the budget left by page tables. Counts the bytes of dirty
    /// pages in `debt`.
    pub(crate) fn new(budget: Arc<Budget>, debt: Arc<CheckpointDebt>) -> Frames {
        Frames {
            arenas: [const { OnceLock::new() }; CLASS_COUNT],
            capacity_bytes: budget.limit_bytes(Account::Pages) as usize,
            budget,
            used_bytes: AtomicUsize::new(0),
            copied_bytes: AtomicUsize::new(0),
            debt,
            reclaimer: FrameReclaimer::new(),
        }
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Returns the limit on used bytes, which falls as page tables grow. Frames beyond it are given back once they are
    /// free.
    pub(crate) fn limit_bytes(&self) -> usize {
        self.budget.frame_bytes_max() as usize
    }

    /// Returns `true` if the frames would exceed their limit after page tables have grown by this many bytes.
    pub(crate) fn is_over_limit(&self, more_table_bytes: u64) -> bool {
        self.used_bytes() as u64 + more_table_bytes > self.budget.frame_bytes_max()
    }

    pub(super) fn arena(&self, class: usize) -> &Arena {
        self.arenas[class].get().expect("the frame exists")
    }

    /// Reserves address space for frames of a size, if that has not been done yet.
    pub(crate) fn reserve(&self, page_bytes: usize) -> std::io::Result<()> {
        self.arena_or_new(class_of(page_bytes)).map(drop)
    }

    pub(super) fn arena_or_new(&self, class: usize) -> std::io::Result<&Arena> {
        if let Some(arena) = self.arenas[class].get() {
            return Ok(arena);
        }
        let page_bytes = PAGE_BYTES_MIN << class;
        let count = (self.capacity_bytes / page_bytes).clamp(16, (1 << CLASS_SHIFT) - 1);
        let memory = Mapping::new((count * page_bytes).next_multiple_of(rustix::param::page_size()))?;
        let mut headers = Vec::new();
        headers.try_reserve_exact(count.div_ceil(HEADER_COUNT)).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        headers.extend((0..count.div_ceil(HEADER_COUNT)).map(|_| OnceLock::new()));
        let frames_per_unit = (rustix::param::page_size() / page_bytes).max(1);
        assert!((frames_per_unit * page_bytes).is_multiple_of(rustix::param::page_size()), "frames straddle units");
        let arena = Arena {
            page_bytes,
            memory,
            frames_per_unit,
            headers: headers.into(),
            frame_count: count,
            lists: Mutex::default(),
            hand: AtomicUsize::new(0),
        };
        // If two threads race here, the first arena wins.
        Ok(self.arenas[class].get_or_init(|| arena))
    }

    /// Returns the total size of the frame headers in bytes. It counts towards the used bytes.
    pub(crate) fn header_bytes(&self) -> usize {
        let headers = self.arenas.iter().filter_map(OnceLock::get).flat_map(|arena| &arena.headers);
        headers.filter(|made| made.get().is_some()).count() * HEADERS_BYTES
    }

    #[inline]
    pub(crate) fn header(&self, frame: FrameIndex) -> &FrameHeader {
        let (class, index) = split(frame);
        let arena = self.arenas[class].get().expect("the frame exists");
        &arena.headers[index / HEADER_COUNT].get().expect("the frame was used")[index % HEADER_COUNT]
    }

    #[inline]
    fn page_pointer(&self, frame: FrameIndex) -> (*mut u8, usize) {
        let (class, index) = split(frame);
        let arena = self.arenas[class].get().expect("the frame exists");
        assert!(index < arena.frame_count);
        debug_assert!((index + 1) * arena.page_bytes <= arena.memory.bytes, "a frame reaches beyond its arena");
        // SAFETY: the index is within the arena, whose mapping has room for that many pages. Test:
        // `memory_given_back_was_free`, which would find that frames overlap.
        (unsafe { arena.memory.start.add(index * arena.page_bytes) }, arena.page_bytes)
    }

    /// Stores the epoch of the page's newest change, or marks the page clean.
    #[inline]
    pub(crate) fn set_dirty(&self, frame: FrameIndex, epoch: Option<Epoch>) {
        debug_assert!(epoch != Some(Epoch(0)), "epoch 0 marks a page that is clean");
        let before = self.header(frame).dirty.swap(epoch.map_or(0, |epoch| epoch.0), Ordering::AcqRel);
        debug_assert!(epoch.is_none_or(|epoch| before <= epoch.0), "a page is dirty of an epoch after {epoch:?}");
        let before = (before != 0).then_some(Epoch(before));
        self.debt.count_dirty(self.page_bytes(frame) as u64, before, epoch);
    }

    /// Returns the total size of dirty pages, in bytes.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.debt.dirty_bytes()
    }

    /// Prefetches the frame's header, the first cache lines of the page (its header and slots) and the last one (its
    /// fences). They arrive while the latch is being taken.
    #[inline]
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "the intrinsic is of one architecture"))]
    pub(crate) fn prefetch(&self, frame: FrameIndex) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            /// Size of a cache line, fixed by the processor.
            const LINE_BYTES: usize = 64;
            /// Cache lines prefetched at the beginning of a page: its header and its first slots.
            const PREFETCHED_LINES: usize = 5;
            // SAFETY: as below; the header is borrowed. No test can fail here, because a prefetch has no visible
            // effect.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(self.header(frame)).cast()) };
            let (start, page_bytes) = self.page_pointer(frame);
            // SAFETY: prefetching reads no value into the program; the addresses lie in the mapping, since the smallest
            // page has eight cache lines. No test can fail here, as above.
            unsafe {
                for line in 0..PREFETCHED_LINES {
                    _mm_prefetch::<_MM_HINT_T0>(start.add(line * LINE_BYTES).cast());
                }
                _mm_prefetch::<_MM_HINT_T0>(start.add(page_bytes - LINE_BYTES).cast());
            }
        }
    }

    /// Returns the size of the frame's page in bytes.
    pub(crate) fn page_bytes(&self, frame: FrameIndex) -> usize {
        PAGE_BYTES_MIN << split(frame).0
    }

    /// Latches the page in `frame` for reading. Returns `None` if the frame no longer holds it.
    #[inline]
    pub(crate) fn read(&self, frame: FrameIndex, page_key: PageKey) -> Option<FrameRead<'_>> {
        self.used(frame, page_key, self.header(frame).latch.read())
    }

    /// Like [`read`](Self::read), but does not wait. Also returns `None` if a writer holds or awaits the latch.
    #[inline]
    pub(crate) fn try_read(&self, frame: FrameIndex, page_key: PageKey) -> Option<FrameRead<'_>> {
        self.used(frame, page_key, self.header(frame).latch.try_read()?)
    }

    /// Returns the latched page if the frame still holds it, and records a use for the clock.
    #[inline(always)]
    fn used<'p>(
        &'p self,
        frame: FrameIndex,
        page_key: PageKey,
        latch: RwLockReadGuard<'p, ()>,
    ) -> Option<FrameRead<'p>> {
        let header = self.header(frame);
        let read = self.latched(frame, page_key, latch);
        if header.is(page_key) {
            header.touch();
            return Some(read);
        }
        None
    }

    #[inline]
    fn latched<'p>(&'p self, frame: FrameIndex, page_key: PageKey, latch: RwLockReadGuard<'p, ()>) -> FrameRead<'p> {
        let (start, bytes) = self.page_pointer(frame);
        FrameRead { frames: self, frame, page_key, start, bytes, _latch: latch }
    }

    /// Like [`read`](Self::read), but does not record a use for the clock.
    pub(crate) fn peek(&self, frame: FrameIndex, page_key: PageKey) -> Option<FrameRead<'_>> {
        let header = self.header(frame);
        let read = self.latched(frame, page_key, header.latch.read());
        header.is(page_key).then_some(read)
    }

    /// Like [`peek`](Self::peek), but does not wait. Also returns `None` if a writer holds or awaits the latch.
    pub(crate) fn try_peek(&self, frame: FrameIndex, page_key: PageKey) -> Option<FrameRead<'_>> {
        let header = self.header(frame);
        let read = self.latched(frame, page_key, header.latch.try_read()?);
        header.is(page_key).then_some(read)
    }

    /// Latches the page in `frame` for a change. Returns `None` if the frame no longer holds it.
    #[inline]
    pub(crate) fn write(&self, frame: FrameIndex, page_key: PageKey) -> Option<FrameWrite<'_>> {
        let header = self.header(frame);
        let write = FrameWrite { frames: self, frame, page_key, _latch: header.latch.write() };
        if header.is(page_key) {
            header.touch();
            return Some(write);
        }
        None
    }

    /// Like [`read`](Self::read), for a caller that holds other latches. Also returns `None` if the caller itself holds
    /// this latch, or if the wait for it takes longer than [`LATCH_WAIT`].
    pub(crate) fn read_while_holding(
        &self,
        frame: FrameIndex,
        page_key: PageKey,
        is_held_here: &impl Fn(FrameIndex) -> bool,
    ) -> Option<FrameRead<'_>> {
        let header = self.header(frame);
        let latch = match header.latch.try_read() {
            Some(latch) => latch,
            None if is_held_here(frame) || !header.is(page_key) => return None,
            None => header.latch.try_read_for(LATCH_WAIT)?,
        };
        let read = self.latched(frame, page_key, latch);
        header.touch();
        header.is(page_key).then_some(read)
    }

    /// Like [`write`](Self::write), for a caller that holds other latches. See
    /// [`read_while_holding`](Self::read_while_holding).
    pub(crate) fn write_while_holding(
        &self,
        frame: FrameIndex,
        page_key: PageKey,
        is_held_here: &impl Fn(FrameIndex) -> bool,
    ) -> Option<FrameWrite<'_>> {
        let header = self.header(frame);
        let latch = match header.latch.try_write() {
            Some(latch) => latch,
            None if is_held_here(frame) || !header.is(page_key) => return None,
            None => header.latch.try_write_for(LATCH_WAIT)?,
        };
        debug_assert!(!is_held_here(frame), "an exclusive latch was had of a frame that the caller has latched");
        let write = FrameWrite { frames: self, frame, page_key, _latch: latch };
        header.touch();
        header.is(page_key).then_some(write)
    }

    /// Like [`write`](Self::write), but also returns `None` if another thread holds the latch.
    pub(crate) fn try_write(&self, frame: FrameIndex, page_key: PageKey) -> Option<FrameWrite<'_>> {
        let header = self.header(frame);
        let write = FrameWrite { frames: self, frame, page_key, _latch: header.latch.try_write()? };
        header.is(page_key).then_some(write)
    }

    /// Returns the number of reclaim guards taken so far, which equals the number of tree descents.
    pub(crate) fn descent_count(&self) -> u64 {
        self.reclaimer.entered_count()
    }

    /// Keeps the calling thread's view of these frames' immutable pages valid until the guard is dropped.
    #[inline]
    pub(crate) fn reclaim_guard(&self) -> ReclaimGuard<'_> {
        ReclaimGuard { frames: self, _era: self.reclaimer.enter() }
    }
}

/// Access to the immutable pages of one pool. While the guard lives, no frame that was reachable when it was made is
/// reused. It borrows the frames that it protects, and gives access to no other pool's frames. It can't be sent to
/// another thread.
pub(crate) struct ReclaimGuard<'p> {
    frames: &'p Frames,
    _era: EraGuard<'p>,
}

impl ReclaimGuard<'_> {
    /// Returns a view of the table's immutable pages.
    ///
    /// # Panics
    /// If the table belongs to another database, because its entries refer to frames of another pool.
    #[inline]
    pub(crate) fn pages<'g>(&'g self, table: &'g PageTable) -> ImmutablePages<'g> {
        assert!(table.is_within(&self.frames.budget), "a page table is read with the guard of another database");
        ImmutablePages { frames: self.frames, table }
    }
}

/// The immutable pages of a table, accessed under a [`ReclaimGuard`] of the pool that its entries refer to.
pub(crate) struct ImmutablePages<'g> {
    frames: &'g Frames,
    table: &'g PageTable,
}

impl<'g> ImmutablePages<'g> {
    /// Returns the frame and the page, if the page's entry refers to an immutable frame. The caller records the use for
    /// the clock.
    #[inline]
    pub(crate) fn get(&self, page: PageId) -> Option<(FrameIndex, &'g [u8])> {
        self.load(page).ok()
    }

    /// Like [`get`](Self::get), but returns the entry if it does not refer to an immutable frame. Loads the entry only
    /// once.
    #[inline(always)]
    pub(crate) fn load(&self, page: PageId) -> Result<(FrameIndex, &'g [u8]), PageEntry> {
        let entry = self.table.load(page);
        let PageEntry::Immutable(frame) = entry else { return Err(entry) };
        let (start, bytes) = self.frames.page_pointer(frame);
        // SAFETY: the entry, read under the reclaim guard, names the frame as immutable: the page was complete before
        // the entry was published (Release/Acquire) and is not changed while it is published, and the frame is not
        // reused while the guard lives (invariant 3 of the module; invariant 1 of `reclaim`). The table's entries name
        // frames of this pool: `pages`, which made this value, asserted that, and this value borrows the guard. Tests:
        // `loom_frames_are_reused_when_readers_have_left`, `loom_a_nested_guard_outlives_the_outer`,
        // `a_guard_reads_no_other_database`.
        Ok((frame, unsafe { std::slice::from_raw_parts(start, bytes) }))
    }
}

/// A frame that is not published yet. Dropping it frees the frame.
pub(crate) struct NewFrame<'p> {
    pub(super) frames: &'p Frames,
    pub(super) frame: FrameIndex,
}

impl<'p> NewFrame<'p> {
    /// Marks the page dirty: no extent holds its current content.
    pub(crate) fn set_dirty(&self, epoch: Epoch) {
        self.frames.set_dirty(self.frame, Some(epoch));
    }

    pub(crate) fn header(&self) -> &FrameHeader {
        self.frames.header(self.frame)
    }

    /// Assigns the page to the frame. Returns the frame, for the caller to publish in the page's entry.
    pub(crate) fn into_published(self, page_key: PageKey) -> FrameIndex {
        let frame = self.frame;
        let header = self.frames.header(frame);
        // Discard the chances that the previous page had left.
        header.references.store(1, Ordering::Relaxed);
        assert!(header.page_key().is_none(), "a new frame holds a page");
        assert!(FrameHeader::page_key_bits(page_key) != 0, "a frame for no page");
        assert!(header.is_idle(), "a new frame is pinned");
        header.page_key.store(FrameHeader::page_key_bits(page_key), Ordering::Release);
        std::mem::forget(self);
        frame
    }
}

impl Drop for NewFrame<'_> {
    fn drop(&mut self) {
        self.frames.give(self.frame);
    }
}

impl Deref for NewFrame<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, bytes) = self.frames.page_pointer(self.frame);
        // SAFETY: only its owner can reach a new frame (invariant 1 of the module): a thread that latches the frame
        // through an outdated index finds its page key empty and does not access the page. Test:
        // `memory_given_back_was_free`.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }
}

impl DerefMut for NewFrame<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, bytes) = self.frames.page_pointer(self.frame);
        // SAFETY: as for `deref`; in addition, `&mut self` makes the access exclusive. Test: as for `deref`.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }
}

/// A page latched for reading.
pub(crate) struct FrameRead<'p> {
    frames: &'p Frames,
    frame: FrameIndex,
    page_key: PageKey,
    /// The start of the page, computed once when the frame is latched.
    start: *const u8,
    bytes: usize,
    _latch: RwLockReadGuard<'p, ()>,
}

impl FrameRead<'_> {
    /// Prefetches the cache lines of these bytes of the page.
    #[inline]
    pub(crate) fn prefetch(&self, bytes: Range<usize>) {
        debug_assert!(bytes.end <= self.bytes, "bytes beyond a page are prefetched: {bytes:?} of {}", self.bytes);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            /// Size of a cache line, fixed by the processor.
            const LINE_BYTES: usize = 64;
            for at in (bytes.start / LINE_BYTES * LINE_BYTES..bytes.end).step_by(LINE_BYTES) {
                // SAFETY: prefetching reads no value into the program; the address is borrowed. No test can cover this,
                // because a prefetch has no visible effect.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(&self[at]).cast()) };
            }
        }
    }

    /// Returns the number of the page in the frame.
    #[inline]
    pub(crate) fn page(&self) -> PageId {
        self.page_key.page
    }

    pub(crate) fn header(&self) -> &FrameHeader {
        self.frames.header(self.frame)
    }

    pub(crate) fn frame(&self) -> FrameIndex {
        self.frame
    }
}

impl Deref for FrameRead<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: these are the frame's bytes, in an arena that the guard borrows. The shared latch is held, so no
        // thread changes the page; if the frame is immutable, no thread ever does. Test: tests/engine/concurrency.rs,
        // whose readers check the stamp of every row while others write.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

/// A page latched for a change. For immutable frames the latch serialises replacement; their pages are only read.
pub(crate) struct FrameWrite<'p> {
    frames: &'p Frames,
    frame: FrameIndex,
    page_key: PageKey,
    _latch: RwLockWriteGuard<'p, ()>,
}

impl FrameWrite<'_> {
    /// Returns the keyspace and number of the page in the frame.
    #[inline]
    pub(crate) fn page_key(&self) -> PageKey {
        self.page_key
    }

    /// Returns the number of the page in the frame.
    #[inline]
    pub(crate) fn page(&self) -> PageId {
        self.page_key.page
    }

    pub(crate) fn header(&self) -> &FrameHeader {
        self.frames.header(self.frame)
    }

    pub(crate) fn frame(&self) -> FrameIndex {
        self.frame
    }

    /// Returns the page of a leaf for modification.
    ///
    /// # Panics
    /// If `table` does not show the page as a leaf in this frame, or belongs to another database.
    #[inline]
    pub(crate) fn leaf_mut(&mut self, table: &PageTable) -> &mut [u8] {
        assert!(table.is_within(&self.frames.budget), "a leaf is changed by the page table of another database");
        assert!(table.load(self.page()) == PageEntry::Leaf(self.frame), "only leaves change in place");
        let (start, bytes) = self.frames.page_pointer(self.frame);
        // SAFETY: the latch is held exclusively, and the entry shows a leaf, which is never read without the latch. The
        // entry belongs to a table whose entries name frames of this pool, as asserted above. Tests:
        // `only_leaves_change_in_place`, `no_other_database_changes_a_leaf`; tests/engine/concurrency.rs.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Removes the page from the frame. The page's entry must no longer name the frame, which is freed once the page's
    /// readers have left.
    pub(crate) fn unlink(self, residency: Residency) {
        let frames = self.frames;
        let frame = self.frame;
        let header = frames.header(frame);
        assert!(header.is(self.page_key), "a latched frame holds another page");
        header.page_key.store(0, Ordering::Release);
        frames.set_dirty(frame, None);
        drop(self);
        // If the frame is pinned, the last unpin retires it.
        if header.pins.abandon() {
            match residency {
                Residency::Leaf => frames.give(frame),
                Residency::Immutable => frames.retire(frame),
            }
        }
    }
}

impl Deref for FrameWrite<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (start, bytes) = self.frames.page_pointer(self.frame);
        // SAFETY: the latch is held exclusively; changes go through `leaf_mut`, which borrows this guard mutably. Test:
        // tests/engine/concurrency.rs.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::KeyspaceId;

    /// A page is changed in place only if its entry shows it as a leaf in this frame, even if the caller holds the
    /// latch.
    #[test]
    #[should_panic(expected = "only leaves change in place")]
    fn only_leaves_change_in_place() {
        let frames = Frames::new(Budget::of_pages(64 << 10), Arc::default());
        let table = PageTable::new(&frames.budget);
        let page_key = PageKey { keyspace: KeyspaceId(1), page: table.allocate(1) };
        let frame = frames.try_take(PAGE_BYTES_MIN).expect("within the limit").into_published(page_key);
        table.store(page_key.page, PageEntry::Immutable(frame));
        let mut write = frames.write(frame, page_key).expect("published");
        write.leaf_mut(&table)[0] = 1;
    }

    /// Returns a frame that holds a page, and a page table of a different database that shows the page in a frame with
    /// the same number.
    fn foreign(entry: fn(FrameIndex) -> PageEntry) -> (Frames, FrameIndex, PageKey, PageTable) {
        let frames = Frames::new(Budget::of_pages(64 << 10), Arc::default());
        let other = PageTable::new(&Budget::of_pages(64 << 10));
        let page_key = PageKey { keyspace: KeyspaceId(1), page: other.allocate(1) };
        let frame = frames.try_take(PAGE_BYTES_MIN).expect("within the limit").into_published(page_key);
        other.store(page_key.page, entry(frame));
        (frames, frame, page_key, other)
    }

    /// A reclaim guard gives access only to the frames of its own pool.
    #[test]
    #[should_panic(expected = "the guard of another database")]
    fn a_guard_reads_no_other_database() {
        let (frames, _, page_key, other) = foreign(PageEntry::Immutable);
        let reclaim_guard = frames.reclaim_guard();
        let _ = reclaim_guard.pages(&other).get(page_key.page);
    }

    /// A latched page can be modified as a leaf only through the page table of its own database.
    #[test]
    #[should_panic(expected = "the page table of another database")]
    fn no_other_database_changes_a_leaf() {
        let (frames, frame, page_key, other) = foreign(PageEntry::Leaf);
        let mut write = frames.write(frame, page_key).expect("published");
        write.leaf_mut(&other)[0] = 1;
    }

    /// Even the least memory that page tables leave in a budget of 8 MiB has room for the headers of all page sizes and
    /// for a page of any size.
    #[test]
    fn frames_of_every_size_fit_in_little_memory() {
        let frames = Frames::new(Budget::of_pages(1 << 20), Arc::default());
        frames.budget.take(Account::Tables, (1 << 20) - (160 << 10));
        for page_bytes in (PAGE_BYTES_MIN.ilog2()..=PAGE_BYTES_MAX.ilog2()).map(|shift| 1 << shift) {
            frames.give_back_free(page_bytes);
            assert!(frames.try_take(page_bytes).is_some(), "{page_bytes}: {} bytes in use", frames.used_bytes());
        }
    }

    /// Giving free frames back to the system does not change adjacent frames, however small frames are.
    #[test]
    fn memory_given_back_was_free() {
        const FRAME_COUNT: usize = 64;
        let header_bytes = FRAME_COUNT.div_ceil(HEADER_COUNT) * HEADERS_BYTES;
        for page_bytes in [PAGE_BYTES_MIN, 1024, 2048, 4096, 8192] {
            let capacity_bytes = FRAME_COUNT * page_bytes + header_bytes;
            let frames = Frames::new(Budget::of_pages(capacity_bytes as u64), Arc::default());
            let take = |_| frames.try_take(page_bytes).expect("within the limit");
            let mut taken: Vec<_> = (0..FRAME_COUNT).map(take).collect();
            for (number, frame) in taken.iter_mut().enumerate() {
                frame.fill(number as u8 + 1);
            }
            // Beyond the limit, a frame is given back when it is dropped; below it, when another page size needs the
            // memory.
            frames.budget.take(Account::Tables, (FRAME_COUNT / 2 * page_bytes) as u64);
            let mut number = 0;
            taken.retain(|_| {
                number += 1;
                number % 3 != 0 && number < 40
            });
            frames.give_back_free(PAGE_BYTES_MAX);
            for frame in &taken {
                let expected = frame[0];
                assert!(expected != 0 && frame.iter().all(|byte| *byte == expected), "a frame of {page_bytes} bytes");
            }
            // Whole units were given back: at least those of the frames numbered 40 and above.
            assert!(frames.used_bytes() - header_bytes <= 48 * page_bytes, "{} of {page_bytes}", frames.used_bytes());
            let left = taken.len();
            let again = (left..32).map_while(|_| frames.try_take(page_bytes)).count();
            assert!(left + again <= FRAME_COUNT && again > 0);
        }
    }
}
