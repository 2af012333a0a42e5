//! The memory of the buffer pool: arenas of frames, one per page size, and access to the pages in them.
//!
//! # Invariants
//! 1. A frame is in exactly one of these states: *unused* (never touched, or given back to the system), *free*, *new* (owned
//!    by a [`NewFrame`]), *published* (some page's word names it), *limbo* (unlinked, readers may still look at it).
//! 2. A published leaf's page is read under the frame's latch, shared, and changed under it, exclusive. Whoever takes the
//!    latch compares [`FrameHeader::identity`] with the page wanted: the frame may have been evicted meanwhile.
//! 3. The page of a published *fixed* frame (inner node, value) does not change. It leaves through limbo.
//! 4. `dirty` is the epoch of the newest change that is in no extent, 0 if there is none. It changes under the latch.
//! 5. A frame that is held (by a commit that will change it, by an image on its way to the disk) or dirty is not evicted.
//!    It can be unlinked: then whoever lets go of it last frees it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::holds::Holds;
use super::reclaim::{Entered, Reclaimer};
use crate::format::extent::Identity;
use crate::format::node::is_page_bytes;
pub(crate) use crate::format::node::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::format::{Epoch, KeyspaceId, PageId, Place};
use crate::space::{FrameIndex, PageTable, Word};

/// Turns of the clock that an inner node survives without a use. It has as many rows beneath it as a hundred leaves: where
/// rows are read at random, one chance lost a tenth of the nodes in each turn, and a tenth of the reads had a node to read
/// before the leaf.
pub(super) const INNER_CHANCES: u32 = 4;

const CLASS_COUNT: usize = 8;
const CLASS_SHIFT: u32 = 29;

/// How long whoever holds latches waits for the next before it looks again where the page is.
///
/// Latches are taken in the order of keys, so that nobody waits for somebody who waits for him. But an outdated view may
/// lead to a frame whose page lies elsewhere in the order, or that the caller has latched himself. Such a wait has to end;
/// a millisecond is longer than a latch is held where nobody waits for the disk.
const LATCH_WAIT: std::time::Duration = std::time::Duration::from_millis(1);

/// What is known of the page in a frame; in a cache line of its own.
#[repr(align(64))]
pub(crate) struct FrameHeader {
    latch: RwLock<()>,
    identity: AtomicU64,
    dirty: AtomicU64,
    place: AtomicU64,
    holds: Holds,
    /// Turns of the clock that the page survives without a use.
    chances: AtomicU32,
}

impl FrameHeader {
    fn new() -> FrameHeader {
        FrameHeader {
            latch: RwLock::new(()),
            identity: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            place: AtomicU64::new(0),
            holds: Holds::new(),
            chances: AtomicU32::new(0),
        }
    }

    fn identity_bits(identity: Identity) -> u64 {
        (u64::from(identity.keyspace.0) << 32) | u64::from(identity.page.0)
    }

    /// The page in the frame; `None` where it holds none.
    #[inline]
    pub(crate) fn identity(&self) -> Option<Identity> {
        let bits = self.identity.load(Ordering::Acquire);
        let identity = Identity { keyspace: KeyspaceId((bits >> 32) as u32), page: PageId(bits as u32) };
        (bits != 0).then_some(identity)
    }

    #[inline]
    fn is(&self, identity: Identity) -> bool {
        self.identity.load(Ordering::Acquire) == Self::identity_bits(identity)
    }

    /// The epoch of the newest change that is in no extent.
    #[inline]
    pub(crate) fn dirty(&self) -> Option<Epoch> {
        let epoch = self.dirty.load(Ordering::Acquire);
        (epoch != 0).then_some(Epoch(epoch))
    }

    /// The extent of the page's newest image on disk.
    pub(crate) fn place(&self) -> Place {
        Place::from_bits(self.place.load(Ordering::Acquire)).unwrap_or(Place::NONE)
    }

    pub(crate) fn set_place(&self, place: Place) {
        self.place.store(place.to_bits(), Ordering::Release);
    }

    /// Keeps the frame from being evicted until [`Frames::let_go`]. The caller has latched it.
    pub(crate) fn hold(&self) {
        self.holds.hold();
    }

    /// Whether nobody holds it.
    pub(crate) fn is_idle(&self) -> bool {
        self.holds.is_idle()
    }

    /// Notes a use; writes only if none was noted since the clock's hand passed.
    #[inline]
    pub(crate) fn touch(&self) {
        if self.chances.load(Ordering::Relaxed) == 0 {
            self.chances.store(1, Ordering::Relaxed);
        }
    }

    /// Notes a use of an inner node, which every row beneath it needs: the hand passes it [`INNER_CHANCES`] times.
    #[inline]
    pub(crate) fn touch_inner(&self) {
        if self.chances.load(Ordering::Relaxed) != INNER_CHANCES {
            self.chances.store(INNER_CHANCES, Ordering::Relaxed);
        }
    }

    /// The clock's hand passes: `false` if the page has no chance left.
    pub(crate) fn take_chance(&self) -> bool {
        let chances = self.chances.load(Ordering::Relaxed);
        if chances > 0 {
            // Fails where a use is noted meanwhile, which counts for more than this turn.
            let _ = self.chances.compare_exchange(chances, chances - 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        chances > 0
    }
}

impl std::fmt::Debug for FrameHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrameHeader({:?}, dirty {:?}, {:?})", self.identity(), self.dirty(), self.place())
    }
}

/// Headers that are made together: 16 KiB.
const HEADER_COUNT: usize = 256;
/// Memory that they take.
const HEADERS_BYTES: usize = HEADER_COUNT * size_of::<FrameHeader>();

/// All frames of one page size.
struct Arena {
    page_bytes: usize,
    memory: Mapping,
    /// By [`HEADER_COUNT`], made as frames are used for the first time.
    headers: Box<[OnceLock<Box<[FrameHeader]>>]>,
    frame_count: usize,
    /// Frames in each unit of memory that the system takes back: more than one where frames are smaller than its pages.
    frames_per_unit: usize,
    lists: Mutex<Lists>,
    pub(crate) hand: AtomicUsize,
}

#[derive(Default)]
struct Lists {
    free: Vec<u32>,
    limbo: VecDeque<(u64, u32)>,
    /// Given back to the system.
    cold: Vec<u32>,
    /// Frames from here on were never touched.
    untouched: u32,
}

/// Anonymous memory, reserved and given by the system page by page as it is touched.
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is plain memory; who may access which part of it is decided by the frames' states (module, 1 to 3).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> std::io::Result<Mapping> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping aliases nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        // Fewer misses of the translation cache where the system offers huge pages; without them all works the same.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        Ok(Mapping { start: start.cast(), bytes })
    }

    /// Gives a range back to the system: it reads as zeros when touched again. The system works in whole pages of its own,
    /// and rounds a length up.
    fn give_back(&self, offset: usize, bytes: usize) {
        use rustix::mm::{Advice, madvise};
        assert!(offset + bytes <= self.bytes);
        assert!(bytes.is_multiple_of(rustix::param::page_size()), "what else is in the page would be lost");
        // SAFETY: the range lies in the mapping, and the caller owns it: no frame in it is in use.
        let _ = unsafe { madvise(self.start.add(offset).cast(), bytes, Advice::LinuxDontNeed) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers into the mapping any more: every guard borrows the pool that owns it.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
    }
}

/// All frames of all page sizes, within one limit of bytes.
pub(crate) struct Frames {
    arenas: [OnceLock<Arena>; CLASS_COUNT],
    /// Bytes that the frames may use with their headers at the most, ever; the limit below moves under it.
    capacity_bytes: usize,
    limit_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
    dirty_bytes: AtomicU64,
    reclaimer: Reclaimer,
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frames({} of {} bytes)", self.used_bytes(), self.limit_bytes())
    }
}

/// The class of a page size.
pub(crate) fn class_of(page_bytes: usize) -> usize {
    assert!(is_page_bytes(page_bytes));
    (page_bytes.ilog2() - PAGE_BYTES_MIN.ilog2()) as usize
}

fn split(frame: FrameIndex) -> (usize, usize) {
    ((frame.0 >> CLASS_SHIFT) as usize, (frame.0 & ((1 << CLASS_SHIFT) - 1)) as usize)
}

impl Frames {
    pub(crate) fn new(capacity_bytes: usize) -> Frames {
        Frames {
            arenas: [const { OnceLock::new() }; CLASS_COUNT],
            capacity_bytes,
            limit_bytes: AtomicUsize::new(capacity_bytes),
            used_bytes: AtomicUsize::new(0),
            dirty_bytes: AtomicU64::new(0),
            reclaimer: Reclaimer::new(),
        }
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Moves the limit; frames beyond it are given back as they become free.
    pub(crate) fn set_limit_bytes(&self, bytes: usize) {
        self.limit_bytes.store(bytes.min(self.capacity_bytes), Ordering::Relaxed);
    }

    fn arena(&self, class: usize) -> &Arena {
        self.arenas[class].get().expect("the frame exists")
    }

    /// Reserves address space for frames of a size, if that was not done yet.
    pub(crate) fn reserve(&self, page_bytes: usize) -> std::io::Result<()> {
        self.arena_or_new(class_of(page_bytes)).map(drop)
    }

    fn arena_or_new(&self, class: usize) -> std::io::Result<&Arena> {
        if let Some(arena) = self.arenas[class].get() {
            return Ok(arena);
        }
        let page_bytes = PAGE_BYTES_MIN << class;
        let count = (self.capacity_bytes / page_bytes).clamp(16, (1 << CLASS_SHIFT) - 1);
        let memory = Mapping::new((count * page_bytes).next_multiple_of(rustix::param::page_size()))?;
        let mut headers = Vec::new();
        headers.try_reserve_exact(count.div_ceil(HEADER_COUNT)).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        headers.extend((0..count.div_ceil(HEADER_COUNT)).map(|_| OnceLock::new()));
        let arena = Arena {
            page_bytes,
            memory,
            frames_per_unit: (rustix::param::page_size() / page_bytes).max(1),
            headers: headers.into(),
            frame_count: count,
            lists: Mutex::default(),
            hand: AtomicUsize::new(0),
        };
        // Where two make it at once, the first is taken.
        Ok(self.arenas[class].get_or_init(|| arena))
    }

    /// What of the bytes in use is headers.
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
        // SAFETY: the index is within the arena, whose mapping has room for that many pages.
        (unsafe { arena.memory.start.add(index * arena.page_bytes) }, arena.page_bytes)
    }

    /// Notes the newest change of the page in the frame, or that none is owed to the disk.
    #[inline]
    pub(crate) fn set_dirty(&self, frame: FrameIndex, epoch: Option<Epoch>) {
        let before = self.header(frame).dirty.swap(epoch.map_or(0, |epoch| epoch.0), Ordering::AcqRel);
        let page_bytes = self.page_bytes(frame) as u64;
        match (before != 0, epoch.is_some()) {
            (false, true) => self.dirty_bytes.fetch_add(page_bytes, Ordering::Relaxed),
            (true, false) => self.dirty_bytes.fetch_sub(page_bytes, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Bytes of pages that are dirty.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Begins to bring what a look at the page needs first into the processor's cache: the page's header, the beginning of
    /// its slots, and its end, where the fences are. They arrive while the latch, in another line, is being taken.
    #[inline]
    pub(crate) fn prefetch(&self, frame: FrameIndex) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            const LINE_BYTES: usize = 64;
            const LINES: usize = 5;
            // SAFETY: as below; the header is borrowed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(self.header(frame)).cast()) };
            let (start, page_bytes) = self.page_pointer(frame);
            for line in (0..LINES).chain([page_bytes / LINE_BYTES - 1]) {
                // SAFETY: prefetching reads nothing into the program; the address lies in the mapping.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(line * LINE_BYTES).cast()) };
            }
        }
    }

    /// Bytes of the frame's page.
    pub(crate) fn page_bytes(&self, frame: FrameIndex) -> usize {
        PAGE_BYTES_MIN << split(frame).0
    }

    // ── taking and giving back ─────────────────────────────────────────────────────────────────────────────────────

    /// A frame for a page of this size; `None` where the limit is reached and nothing is free.
    pub(crate) fn try_take(&self, page_bytes: usize) -> Option<NewFrame<'_>> {
        let class = class_of(page_bytes);
        let arena = self.arena_or_new(class).ok()?;
        let mut lists = arena.lists.lock();
        if lists.free.is_empty() && !lists.limbo.is_empty() {
            let oldest = self.reclaimer.oldest();
            while lists.limbo.front().is_some_and(|&(tag, _)| tag < oldest) {
                let (_, index) = lists.limbo.pop_front().expect("looked at");
                lists.free.push(index);
            }
        }
        let index = match lists.free.pop() {
            Some(index) => index,
            None => {
                let untouched = lists.untouched as usize;
                if lists.cold.is_empty() && untouched == arena.frame_count {
                    return None;
                }
                // They stay, whatever becomes of the frames.
                let makes_headers = lists.cold.is_empty() && untouched.is_multiple_of(HEADER_COUNT);
                let bytes = page_bytes + if makes_headers { HEADERS_BYTES } else { 0 };
                let used = self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
                if used + bytes > self.limit_bytes() {
                    self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
                    return None;
                }
                lists.cold.pop().unwrap_or_else(|| {
                    if makes_headers {
                        let headers = (0..HEADER_COUNT).map(|_| FrameHeader::new()).collect();
                        arena.headers[untouched / HEADER_COUNT].set(headers).expect("made once");
                    }
                    lists.untouched += 1;
                    lists.untouched - 1
                })
            }
        };
        drop(lists);
        let frame = FrameIndex(((class as u32) << CLASS_SHIFT) | index);
        let header = self.header(frame);
        assert!(header.identity().is_none() && header.is_idle(), "a free frame is in use");
        self.set_dirty(frame, None);
        header.set_place(Place::NONE);
        Some(NewFrame { frames: self, frame })
    }

    fn give(&self, frame: FrameIndex) {
        let (class, index) = split(frame);
        let arena = self.arena(class);
        let mut lists = arena.lists.lock();
        if self.used_bytes() > self.limit_bytes() && arena.frames_per_unit == 1 {
            arena.memory.give_back(index * arena.page_bytes, arena.page_bytes);
            self.used_bytes.fetch_sub(arena.page_bytes, Ordering::Relaxed);
            lists.cold.push(index as u32);
        } else {
            lists.free.push(index as u32);
        }
    }

    /// Gives free frames of every size but `keep`'s back to the system, so that the limit has room for that size.
    pub(crate) fn give_back_free(&self, keep_page_bytes: usize) {
        for (class, arena) in self.arenas.iter().enumerate().filter_map(|(class, arena)| Some((class, arena.get()?))) {
            if class == class_of(keep_page_bytes) {
                continue;
            }
            let mut lists = arena.lists.lock();
            let oldest = self.reclaimer.oldest();
            while lists.limbo.front().is_some_and(|&(tag, _)| tag < oldest) {
                let (_, index) = lists.limbo.pop_front().expect("looked at");
                lists.free.push(index);
            }
            // By units of the system: one is given back when all frames in it are free.
            let mut free = std::mem::take(&mut lists.free);
            free.sort_unstable();
            let frames_per_unit = arena.frames_per_unit;
            for unit in
                free.chunk_by(|left, right| *left as usize / frames_per_unit == *right as usize / frames_per_unit)
            {
                if unit.len() < frames_per_unit {
                    lists.free.extend(unit);
                    continue;
                }
                let bytes = frames_per_unit * arena.page_bytes;
                arena.memory.give_back(unit[0] as usize * arena.page_bytes, bytes);
                self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
                lists.cold.extend(unit);
            }
        }
    }

    /// Undoes one [`FrameHeader::hold`].
    pub(crate) fn let_go(&self, frame: FrameIndex) {
        if self.header(frame).holds.let_go() {
            self.retire(frame);
        }
    }

    fn retire(&self, frame: FrameIndex) {
        let tag = self.reclaimer.retire();
        let (class, index) = split(frame);
        self.arena(class).lists.lock().limbo.push_back((tag, index as u32));
    }

    /// Free frames of a size, and how many more the limit allows.
    pub(crate) fn available(&self, page_bytes: usize) -> usize {
        let class = class_of(page_bytes);
        let room = self.limit_bytes().saturating_sub(self.used_bytes()) / page_bytes;
        let Some(arena) = self.arenas[class].get() else { return room };
        let lists = arena.lists.lock();
        lists.free.len() + lists.limbo.len() + room
    }

    /// Page sizes that have frames, with the number of frames in use or free.
    pub(crate) fn sizes(&self) -> Vec<(usize, usize)> {
        (self.arenas.iter().filter_map(OnceLock::get))
            .map(|arena| {
                let lists = arena.lists.lock();
                (arena.page_bytes, lists.untouched as usize - lists.cold.len())
            })
            .collect()
    }

    /// The frames of a size, as the clock's hand passes over them from where it stood: one turn.
    pub(crate) fn turn(&self, page_bytes: usize) -> impl Iterator<Item = FrameIndex> + '_ {
        let class = class_of(page_bytes);
        let arena = self.arenas[class].get();
        let count = arena.map_or(0, |arena| arena.lists.lock().untouched as usize);
        arena.into_iter().flat_map(move |arena| (0..count).map(move |_| arena)).map(move |arena| {
            let index = arena.hand.fetch_add(1, Ordering::Relaxed) % count.max(1);
            FrameIndex(((class as u32) << CLASS_SHIFT) | index as u32)
        })
    }

    /// Every frame that holds, or has held, a page.
    pub(crate) fn all(&self) -> impl Iterator<Item = FrameIndex> + '_ {
        (self.arenas.iter().enumerate()).filter_map(|(class, arena)| Some((class, arena.get()?))).flat_map(
            |(class, arena)| {
                let count = arena.lists.lock().untouched;
                (0..count).map(move |index| FrameIndex(((class as u32) << CLASS_SHIFT) | index))
            },
        )
    }

    // ── access ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The page, which its word must show as a leaf in `frame`, latched for reading. `None`: it is there no more.
    #[inline]
    pub(crate) fn read(&self, frame: FrameIndex, identity: Identity) -> Option<FrameRead<'_>> {
        let header = self.header(frame);
        let read = FrameRead { frames: self, frame, _latch: header.latch.read() };
        if header.is(identity) {
            header.touch();
            return Some(read);
        }
        None
    }

    /// The page latched for change. `None`: it is there no more.
    #[inline]
    pub(crate) fn write(&self, frame: FrameIndex, identity: Identity) -> Option<FrameWrite<'_>> {
        let header = self.header(frame);
        let write = FrameWrite { frames: self, frame, _latch: header.latch.write() };
        if header.is(identity) {
            header.touch();
            return Some(write);
        }
        None
    }

    /// As [`read`](Self::read), for a caller that holds other latches: `None` also where the latch is among them, or was not
    /// to be had in time. See [`LATCH_WAIT`].
    pub(crate) fn read_beside(
        &self,
        frame: FrameIndex,
        identity: Identity,
        is_mine: &impl Fn(FrameIndex) -> bool,
    ) -> Option<FrameRead<'_>> {
        let header = self.header(frame);
        let latch = match header.latch.try_read() {
            Some(latch) => latch,
            None if is_mine(frame) || !header.is(identity) => return None,
            None => header.latch.try_read_for(LATCH_WAIT)?,
        };
        let read = FrameRead { frames: self, frame, _latch: latch };
        header.touch();
        header.is(identity).then_some(read)
    }

    /// As [`write`](Self::write), for a caller that holds other latches: as [`read_beside`](Self::read_beside).
    pub(crate) fn write_beside(
        &self,
        frame: FrameIndex,
        identity: Identity,
        is_mine: &impl Fn(FrameIndex) -> bool,
    ) -> Option<FrameWrite<'_>> {
        let header = self.header(frame);
        let latch = match header.latch.try_write() {
            Some(latch) => latch,
            None if is_mine(frame) || !header.is(identity) => return None,
            None => header.latch.try_write_for(LATCH_WAIT)?,
        };
        let write = FrameWrite { frames: self, frame, _latch: latch };
        header.touch();
        header.is(identity).then_some(write)
    }

    /// As [`write`](Self::write), only if nobody holds the latch.
    pub(crate) fn try_write(&self, frame: FrameIndex, identity: Identity) -> Option<FrameWrite<'_>> {
        let header = self.header(frame);
        let write = FrameWrite { frames: self, frame, _latch: header.latch.try_write()? };
        header.is(identity).then_some(write)
    }

    /// Keeps the calling thread's view of these frames' fixed pages valid.
    #[inline]
    pub(crate) fn pin(&self) -> Pin<'_> {
        Pin { frames: self, _entered: self.reclaimer.enter() }
    }
}

/// The way to the fixed pages of one pool: while it lives, none that was reachable when it was made is used anew. It carries
/// the frames that it protects, so that it reaches no others. Not sent to other threads.
pub(crate) struct Pin<'p> {
    frames: &'p Frames,
    _entered: Entered<'p>,
}

impl Pin<'_> {
    /// The frame and the page, if its word shows it in a fixed frame. The use is for the caller to note.
    #[inline]
    pub(crate) fn fixed(&self, table: &PageTable, page: PageId) -> Option<(FrameIndex, &[u8])> {
        let Word::Fixed(frame) = table.load(page) else { return None };
        let (start, bytes) = self.frames.page_pointer(frame);
        // SAFETY: the word, read while pinned, names the frame as fixed: its page was complete before the word was
        // published (Release/Acquire), is not changed while it is published, and the frame is not used anew while the
        // pin lives, which is one of these very frames (module, 3; `reclaim`, 1).
        Some((frame, unsafe { std::slice::from_raw_parts(start, bytes) }))
    }
}

/// A frame that nobody else knows of. Dropped, it is free again.
pub(crate) struct NewFrame<'p> {
    frames: &'p Frames,
    frame: FrameIndex,
}

impl<'p> NewFrame<'p> {
    /// Notes that the page is in no extent, or only an older image of it.
    pub(crate) fn set_dirty(&self, epoch: Epoch) {
        self.frames.set_dirty(self.frame, Some(epoch));
    }

    pub(crate) fn header(&self) -> &FrameHeader {
        self.frames.header(self.frame)
    }

    /// Gives the frame its identity and hands it over: the caller publishes the word.
    pub(crate) fn into_published(self, identity: Identity) -> FrameIndex {
        let frame = self.frame;
        let header = self.frames.header(frame);
        // Not those of the page that was here before.
        header.chances.store(1, Ordering::Relaxed);
        header.identity.store(FrameHeader::identity_bits(identity), Ordering::Release);
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
        // SAFETY: a new frame is reachable through its owner alone (module, 1): those who latch it with an outdated index
        // find its identity empty and do not look at the page.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }
}

impl DerefMut for NewFrame<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, bytes) = self.frames.page_pointer(self.frame);
        // SAFETY: as for `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }
}

/// A page latched for reading.
pub(crate) struct FrameRead<'p> {
    frames: &'p Frames,
    frame: FrameIndex,
    _latch: RwLockReadGuard<'p, ()>,
}

impl FrameRead<'_> {
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
        let (start, bytes) = self.frames.page_pointer(self.frame);
        // SAFETY: the latch is held, shared, so nobody changes the page; or the frame is fixed and nobody does anyway.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }
}

/// A page latched for change. For fixed frames the latch serialises replacement; their page is only read.
pub(crate) struct FrameWrite<'p> {
    frames: &'p Frames,
    frame: FrameIndex,
    _latch: RwLockWriteGuard<'p, ()>,
}

impl FrameWrite<'_> {
    pub(crate) fn header(&self) -> &FrameHeader {
        self.frames.header(self.frame)
    }

    pub(crate) fn frame(&self) -> FrameIndex {
        self.frame
    }

    /// The page of a leaf, to be changed.
    ///
    /// # Panics
    /// If `table` does not show the page as a leaf in this frame.
    #[inline]
    pub(crate) fn leaf_mut(&mut self, table: &PageTable) -> &mut [u8] {
        let page = self.header().identity().expect("checked when the latch was taken").page;
        assert!(table.load(page) == Word::Leaf(self.frame), "only leaves change in place");
        let (start, bytes) = self.frames.page_pointer(self.frame);
        // SAFETY: the latch is held, exclusively, and the word shows a leaf, which is never read without the latch.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// The frame's page is no more: the word does not name it any longer. A leaf's frame is free at once, a fixed one
    /// when its readers have left.
    pub(crate) fn unlink(self, fixed: bool) {
        let frames = self.frames;
        let frame = self.frame;
        let header = frames.header(frame);
        header.identity.store(0, Ordering::Release);
        frames.set_dirty(frame, None);
        drop(self);
        match header.holds.abandon() {
            true if fixed => frames.retire(frame),
            true => frames.give(frame),
            // Whoever lets go of it last frees it.
            false => {}
        }
    }
}

impl Deref for FrameWrite<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (start, bytes) = self.frames.page_pointer(self.frame);
        // SAFETY: the latch is held, exclusively; changes go through `leaf_mut`, which borrows this guard mutably.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Giving free frames back to the system leaves the frames beside them as they are, however small frames are.
    #[test]
    fn memory_given_back_is_nobody_elses() {
        for page_bytes in [PAGE_BYTES_MIN, 1024, 2048, 4096, 8192] {
            let frames = Frames::new(64 * page_bytes + HEADERS_BYTES);
            let mut taken: Vec<_> = (0..64).map(|_| frames.try_take(page_bytes).expect("within the limit")).collect();
            for (number, frame) in taken.iter_mut().enumerate() {
                frame.fill(number as u8 + 1);
            }
            // Beyond the limit a frame is given back as it is dropped, otherwise when another size needs the room.
            frames.set_limit_bytes(32 * page_bytes + HEADERS_BYTES);
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
            // Whole units went back: at least those of the frames from 40 on.
            assert!(frames.used_bytes() - HEADERS_BYTES <= 48 * page_bytes, "{} of {page_bytes}", frames.used_bytes());
            let left = taken.len();
            let again = (left..32).map_while(|_| frames.try_take(page_bytes)).count();
            assert!(left + again <= 64 && again > 0);
        }
    }
}
