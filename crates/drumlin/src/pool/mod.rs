//! The buffer pool: pages in memory, brought in by faults, written back in batches, evicted by a clock.
//!
//! # Invariants
//! 1. A page is in at most one frame: a fault first moves the page's entry from `OnDisk` to `Reading`, and only one
//!    thread succeeds.
//! 2. An image is appended while its frame is latched and the epoch latch is held, to the appender of the epoch that
//!    changed it.
//! 3. A frame is not evicted while its image is on its way to the disk, because a read of the page would come too
//!    early.
//! 4. Damage is reported only if the page's entry is still the one that the read began with.
//! 5. A value in a frame is a medium one that was faulted by its value id, and is never dirty: if its extent moves,
//!    only the frame's address changes. Chunks of large values are never in a frame.
//!
//! Lock order: epoch latch, frame latch, then those of `space`. Latches of several frames are taken parents first, then
//! in key order.

mod buffers;
mod bulk;
mod fetch;
mod frames;
mod groups;
mod pins;
pub(crate) mod reclaim;
mod residents;
mod write_back;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::hash::HashMap;
use crate::sync::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::format::advice::ResidentPage;
use crate::format::extent::{ExtentError, HEADER_BYTES, Kind, PageKey, TABLE_PAGES, VALUE_BYTES_OFFSET};
use crate::format::node::is_page_bytes;
use crate::format::{ExtentAddress, KeyspaceId, PageId, ValueId, extent, get_u64};
use crate::io::{AlignedBuffer, Backend, Process, Queue};
use crate::memory::{Account, Budget};
use crate::space::{EpochGuard, FrameIndex, PageEntry, PageSpace, Space};
use buffers::Buffers;
use frames::INNER_CHANCES;
pub(crate) use frames::{
    FrameHeader, FrameRead, FrameWrite, Frames, ImmutablePages, NewFrame, PAGE_BYTES_MAX, PAGE_BYTES_MIN, ReclaimGuard,
    Residency,
};
pub(crate) use residents::Resident;
use write_back::Elevator;

/// Pages evicted, or written back, in one batch.
const BATCH_PAGES: usize = 128;

/// The number of attempts to evict a page before a thread waits for others to unpin or write one.
const ROUNDS_MAX: u32 = 10_000;
/// The longest wait for a frame.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two attempts to get a frame. Threads poll because nothing signals that a frame is free.
const FRAME_PAUSE: Duration = Duration::from_micros(100);

/// The resource that a core operation lacks. The operation has changed nothing; the caller provides it and calls again.
#[derive(Clone, Debug)]
pub(crate) enum Needs {
    /// A page that is not in memory.
    Page(Arc<PageSpace>, PageId),
    /// A frame for a new page of this many bytes.
    Frame(usize),
    /// Room among the images on their way to the disk.
    Writes,
}

/// The reason why a core operation ended without its result. An [`Error`] converts into it by `map_err(Stop::Error)`,
/// not by `From`: the compiler would list such a `From` to users whenever `?` can't infer a type.
#[derive(Debug)]
pub(crate) enum Stop {
    Needs(Needs),
    Error(Error),
}

impl From<Needs> for Stop {
    fn from(needs: Needs) -> Stop {
        Stop::Needs(needs)
    }
}

/// Counters of page accesses.
#[derive(Debug, Default)]
pub(crate) struct CacheStats {
    pub(crate) misses: AtomicU64,
}

/// Verifies the bytes of a node read from disk, of the kind that its extent states. Passed in by the store, since only
/// the tree knows nodes.
pub(crate) type VerifyNode = fn(&[u8], Kind) -> Result<(), String>;

/// Returns the first bytes of a node's lower fence as a number that sorts like the keys. Passed in for the same reason.
pub(crate) type KeyOrder = fn(&[u8]) -> u128;

/// Functions on nodes that the pool needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes {
    pub(crate) verify: VerifyNode,
    pub(crate) key_order: KeyOrder,
}

/// A page that a fault brings in, and what its reader expects in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    page: PageId,
    frame_bytes: usize,
    content: WantedContent,
}

/// The content that a fault expects. An outdated parent may name a page number that has been reused, so a page with
/// other content is not loaded.
#[derive(Clone, Copy, Debug)]
enum WantedContent {
    /// A leaf or an inner node.
    Node,
    /// The medium value with this value id. A large value's chunks are never in memory.
    Value(ValueId),
}

impl Wanted {
    /// A leaf or an inner node.
    pub(crate) fn node(pages: &PageSpace, page: PageId) -> Wanted {
        Wanted { page, frame_bytes: pages.page_bytes, content: WantedContent::Node }
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// A page that an earlier opening had in memory. Returns `None` if the listed page can't be the same page now.
    pub(crate) fn resident(pages: &PageSpace, listed: &ResidentPage) -> Option<Wanted> {
        let frame_bytes = listed.frame_bytes as usize;
        match listed.value {
            None => (frame_bytes == pages.page_bytes).then(|| Wanted::node(pages, listed.page)),
            Some(_) if !is_page_bytes(frame_bytes) => None,
            Some(value) => Some(Wanted::value(listed.page, frame_bytes, value)),
        }
    }

    /// A medium value, to be read into a frame of this many bytes.
    pub(crate) fn value(page: PageId, frame_bytes: usize, value_id: ValueId) -> Wanted {
        Wanted { page, frame_bytes, content: WantedContent::Value(value_id) }
    }
}

/// The behaviour of a thread if there is no frame or buffer for its next read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OnShortage {
    Wait,
    /// The thread has reads in flight that others wait for, so it must not wait itself.
    ReadLater,
}

impl OnShortage {
    /// Returns the behaviour of the thread that owns this queue.
    fn of(queue: &dyn Queue) -> OnShortage {
        if queue.in_flight() == 0 { OnShortage::Wait } else { OnShortage::ReadLater }
    }
}

/// The buffer pool of a database. See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) space: Arc<Space>,
    pub(crate) frames: Frames,
    /// The process that opened the pool. In a forked child, drops free nothing.
    pub(crate) process: Process,
    nodes: Nodes,
    backend: Arc<dyn Backend>,
    page_locks: Box<[PageLocks]>,
    read_service: fetch::ReadService,
    buffers: Buffers,
    queues: Mutex<Vec<Queues>>,
    pub(crate) cache: CacheStats,
    /// Held by the thread that chooses what to write back.
    writing_back: Mutex<()>,
    /// Elevators by page size.
    elevators: Mutex<BTreeMap<usize, Elevator>>,
    /// Held by the thread that gives up frames for page tables. Other threads wait until it is done.
    fitting: Mutex<()>,
    background: Background,
    /// Each scan that reads ahead holds a clone. The count tells how many scans share the memory for it.
    pub(crate) scans_ahead: Arc<()>,
}

/// The locks of one shard of the pages.
#[derive(Debug, Default)]
struct PageLocks {
    /// Tasks that wait for a page that another thread or task is reading. Threads wait on `arrived` with this lock.
    waiting: Mutex<Vec<(KeyspaceId, PageId, Waker)>>,
    arrived: Condvar,
    /// Held while the image of a dirty page is appended, because the epoch latch and the frame's are only shared then.
    capturing: Mutex<()>,
}

struct Queues(Box<dyn Queue>);

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue(depth {})", self.0.depth())
    }
}

/// Limit on requests queued for the threads that read ahead.
const AHEAD_REQUESTS_MAX: usize = 16;

/// Work that a thread which reads ahead may do for another room.
pub(crate) trait DeferredTask: Send + Sync + std::fmt::Debug {
    /// Does the work, unless another thread has begun it or it was abandoned.
    fn run(&self, pool: &Pool);
}

/// Work for the threads that read ahead, whose results are needed later.
#[derive(Debug)]
enum Ahead {
    Read(Arc<PageSpace>, Vec<Wanted>),
    DeferredTask(Arc<dyn DeferredTask>),
}

#[derive(Debug, Default)]
struct Background {
    wanted: Mutex<bool>,
    wake: Condvar,
    ahead: Mutex<VecDeque<Ahead>>,
    wake_ahead: Condvar,
    stop: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    has_threads: AtomicBool,
}

/// The part of the file that one request reads.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    end: u64,
}

impl Span {
    fn length(self) -> usize {
        debug_assert!(self.start < self.end, "nothing is read from {} to {}", self.start, self.end);
        (self.end - self.start) as usize
    }

    /// Extends the span over one more extent, given by what it [covers](Space::cover), or starts the span with it.
    /// Returns `false` if two requests are better, or the span would exceed `bytes_max`.
    fn join(span: &mut Option<Span>, (start, length, _): (u64, usize, usize), bytes_max: usize) -> bool {
        debug_assert!(length > 0, "an extent of no bytes at {start}");
        let end = start + length as u64;
        match span {
            None => *span = Some(Span { start, end }),
            Some(span) => {
                let is_near = start >= span.start && start <= span.end + GROUP_GAP_BYTES;
                if !is_near || end > span.start + bytes_max as u64 {
                    return false;
                }
                span.end = span.end.max(end);
            }
        }
        true
    }
}

/// Size of a buffer for one extent of any page size, at any offset in its block.
const SCRATCH_BYTES: usize = PAGE_BYTES_MAX + 2 * 4096;
/// Maximum bytes of a single read. Larger reads are not faster.
const GROUP_BYTES_MAX: usize = 256 << 10;
/// Size of a buffer for a chunk of a large value at any offset in its block, both as stored and decompressed.
const PAIR_BYTES: usize = 2 * GROUP_BYTES_MAX + (32 << 10);
/// Maximum gap between extents that are read together. One more request costs as much as reading 16 KiB more.
const GROUP_GAP_BYTES: u64 = 16 << 10;

/// Reads that one thread keeps in flight.
const QUEUE_DEPTH: usize = 64;
/// Limit on idle queues kept for reuse. Each is a ring with its memory and a descriptor.
const QUEUE_COUNT_MAX: usize = 16;

impl Pool {
    pub(crate) fn new(space: Arc<Space>, backend: Arc<dyn Backend>, budget: &Arc<Budget>, nodes: Nodes) -> Pool {
        Pool {
            frames: Frames::new(Arc::clone(budget), space.debt()),
            space,
            process: Process::here(),
            nodes,
            backend,
            page_locks: (0..64).map(|_| PageLocks::default()).collect(),
            read_service: fetch::ReadService::default(),
            buffers: Buffers::new(budget.limit_bytes(Account::Reads) as usize),
            queues: Mutex::default(),
            cache: CacheStats::default(),
            writing_back: Mutex::default(),
            elevators: Mutex::default(),
            fitting: Mutex::default(),
            background: Background::default(),
            scans_ahead: Arc::default(),
        }
    }

    /// Keeps the calling thread's view of immutable pages valid.
    #[inline]
    pub(crate) fn reclaim_guard(&self) -> ReclaimGuard<'_> {
        self.frames.reclaim_guard()
    }

    /// Reserves address space for frames of this size, enough for the whole budget.
    pub(crate) fn reserve_frames(&self, page_bytes: usize) -> Result<()> {
        self.frames.reserve(page_bytes).map_err(|error| {
            let what = format!("reserving memory for frames of {page_bytes} bytes: {error}");
            Error::Invalid(format!("{what}. Lower Config::memory"))
        })
    }

    // ── faults ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Brings a page into memory, unless it is there already or free.
    pub(crate) fn fault(&self, pages: &PageSpace, wanted: Wanted) -> Result<()> {
        let Wanted { page, frame_bytes, .. } = wanted;
        loop {
            match pages.table.load(page) {
                PageEntry::OnDisk(address) if address.length() > frame_bytes as u64 => {
                    return Err(self.space.corrupted(&pages.quoted_page(page), address, ExtentError::Length));
                }
                PageEntry::OnDisk(address) => {
                    self.space.check_open()?;
                    let frame = self.take_frame(frame_bytes)?;
                    if pages.table.exchange(page, PageEntry::OnDisk(address), PageEntry::Reading(address)) {
                        self.cache.misses.fetch_add(1, Ordering::Relaxed);
                        let mut buffer = self.buffers.take(self.space.cover(address).1);
                        let result = self.read_into(pages, wanted, address, frame, &mut buffer);
                        self.buffers.give(buffer);
                        return result;
                    }
                }
                PageEntry::Reading(_) => {
                    crate::coverage::mark!("a page was wanted while another thread read it");
                    self.wait_for_arrival(pages, page);
                }
                _ => return Ok(()),
            }
        }
    }

    fn read_into(
        &self,
        pages: &PageSpace,
        wanted: Wanted,
        address: ExtentAddress,
        frame: NewFrame<'_>,
        buffer: &mut AlignedBuffer,
    ) -> Result<()> {
        let (start, _, offset) = self.space.cover(address);
        let result = self.space.read(buffer, start);
        self.arrive(pages, wanted, address, frame, result, &buffer[offset..])
    }

    /// Ends a read: verifies the extent and publishes the page, or restores the entry and returns the error.
    fn arrive(
        &self,
        pages: &PageSpace,
        wanted: Wanted,
        address: ExtentAddress,
        frame: NewFrame<'_>,
        result: std::io::Result<()>,
        bytes: &[u8],
    ) -> Result<()> {
        debug_assert!(address.length() <= frame.len() as u64, "an extent is read that is longer than its frame");
        let page = wanted.page;
        let page_key = PageKey { keyspace: pages.id, page };
        let reading = PageEntry::Reading(address);
        let outcome = match result {
            Ok(()) => self.decode_into_frame(page_key, wanted.content, address, frame, bytes),
            Err(error) => Err(Error::io("reading", self.space.path(), error)),
        };
        let result = match outcome {
            Ok(entry) => {
                if !pages.table.exchange(page, reading, entry) {
                    // The keyspace was dropped during the read.
                    crate::coverage::mark!("a page was read after its keyspace was dropped");
                    self.withdraw(entry, page_key);
                }
                Ok(())
            }
            Err(error) => {
                if pages.table.exchange(page, reading, PageEntry::OnDisk(address)) {
                    Err(self.space.read_error(error))
                } else {
                    Ok(())
                }
            }
        };
        self.announce_arrival(pages, page);
        result
    }

    /// Wakes the threads and tasks that wait for a read of this page. Its entry already shows that the read has ended.
    fn announce_arrival(&self, pages: &PageSpace, page: PageId) {
        let locks = self.page_locks(pages, page);
        let tasks: Vec<Waker> = {
            let mut waiting = locks.waiting.lock();
            let of_page =
                |(keyspace, other, _): &mut (KeyspaceId, PageId, Waker)| *keyspace == pages.id && *other == page;
            waiting.extract_if(.., of_page).map(|(_, _, waker)| waker).collect()
        };
        locks.arrived.notify_all();
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Decodes an extent into the frame if it holds the wanted page. Returns the entry that publishes it.
    fn decode_into_frame(
        &self,
        page_key: PageKey,
        wanted: WantedContent,
        address: ExtentAddress,
        mut frame: NewFrame<'_>,
        bytes: &[u8],
    ) -> Result<PageEntry> {
        let what = || self.space.quoted_page(page_key);
        let corrupted = |reason: ExtentError| self.space.corrupted(&what(), address, reason);
        let bytes = &bytes[..address.length() as usize];
        let header = self.space.verify(address, bytes).map_err(corrupted)?;
        // A value's extents are numbered within the value, so the value id identifies it instead.
        let numbered = match wanted {
            WantedContent::Node => page_key,
            WantedContent::Value(_) => PageKey { page: header.page_key.page, ..page_key },
        };
        if header.page_key != numbered {
            return Err(corrupted(ExtentError::PageKey(header.page_key)));
        }
        if header.raw_bytes > frame.len() {
            return Err(corrupted(ExtentError::Length));
        }
        let raw_bytes = header.raw_bytes;
        extent::decode(bytes, &header, &mut frame[..raw_bytes]).map_err(corrupted)?;
        let leaf = match (wanted, header.kind) {
            (WantedContent::Node, Kind::Leaf | Kind::Inner) => {
                (self.nodes.verify)(&frame, header.kind)
                    .map_err(|reason| self.space.corrupted(&what(), address, reason))?;
                header.kind == Kind::Leaf
            }
            (WantedContent::Value(id), Kind::Value) => {
                if raw_bytes < VALUE_BYTES_OFFSET || ValueId(get_u64(&frame, HEADER_BYTES)) != id {
                    return Err(corrupted(ExtentError::PageKey(header.page_key)));
                }
                false
            }
            _ => return Err(corrupted(ExtentError::Kind)),
        };
        frame.header().set_address(address);
        let frame = frame.into_published(page_key);
        Ok(if leaf { PageEntry::Leaf(frame) } else { PageEntry::Immutable(frame) })
    }

    fn withdraw(&self, entry: PageEntry, page_key: PageKey) {
        let (PageEntry::Leaf(frame) | PageEntry::Immutable(frame)) = entry else {
            unreachable!("an extent is decoded into a frame")
        };
        let write = self.frames.write(frame, page_key);
        debug_assert!(write.is_some(), "a page that no entry shows was taken out of its frame");
        if let Some(write) = write {
            write.unlink(Residency::of(entry, frame));
        }
    }

    fn page_locks(&self, pages: &PageSpace, page: PageId) -> &PageLocks {
        &self.page_locks[(page.0 ^ pages.id.0.rotate_left(16)) as usize % self.page_locks.len()]
    }

    fn wait_for_arrival(&self, pages: &PageSpace, page: PageId) {
        let locks = self.page_locks(pages, page);
        let mut waiting = locks.waiting.lock();
        while matches!(pages.table.load(page), PageEntry::Reading(_)) {
            locks.arrived.wait(&mut waiting);
        }
    }

    pub(crate) fn take_queue(&self) -> Result<Box<dyn Queue>> {
        match self.queues.lock().pop() {
            Some(queue) => {
                assert_eq!(queue.0.in_flight(), 0, "a queue that was kept has reads in flight");
                Ok(queue.0)
            }
            None => self
                .backend
                .queue(QUEUE_DEPTH)
                .map_err(|error| Error::io("making an I/O queue for", self.space.path(), error)),
        }
    }

    fn give_queue(&self, queue: Box<dyn Queue>) {
        assert_eq!(queue.in_flight(), 0, "a queue is kept with reads in flight");
        let mut queues = self.queues.lock();
        if queues.len() < QUEUE_COUNT_MAX {
            queues.push(Queues(queue));
        }
    }

    // ── frames ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Takes a frame for a page, evicting others if none is free. Waits; not for use under the epoch latch.
    pub(crate) fn take_frame(&self, page_bytes: usize) -> Result<NewFrame<'_>> {
        self.reserve_frames(page_bytes)?;
        let (mut rounds, mut deadline) = (0, None);
        loop {
            if let Some(frame) = self.frames.try_take(page_bytes) {
                if rounds == 0 && self.frames.available(page_bytes) < self.low_water(page_bytes) {
                    self.wake_background();
                }
                return Ok(frame);
            }
            rounds += 1;
            // After a few turns of the clock no page has a chance left. Pages that survive many turns are pinned or
            // can't be written.
            if rounds > ROUNDS_MAX {
                if let Some(stopped) = self.space.failure() {
                    return Err(stopped.into_error());
                }
                // Commits pin at most half of the frames. The others are being read into, which does not last.
                let now = self.backend.now();
                let deadline = *deadline.get_or_insert(now.saturating_add(FRAME_TIMEOUT));
                if now >= deadline {
                    return Err(Error::pages_in_memory(self.frames.limit_bytes() as u64));
                }
                crate::sync::park_timeout(FRAME_PAUSE);
            }
            if self.evict_for(page_bytes)? == 0 {
                crate::coverage::mark!("no page could be evicted for a frame");
                // Frames with images on their way to the disk become evictable once these have been written, however
                // slow the disk is.
                let _ = self.space.wait_for_jobs(self.on_written());
                crate::sync::yield_now();
            }
        }
    }

    fn low_water(&self, page_bytes: usize) -> usize {
        let count = self.frames.limit_bytes() / page_bytes;
        // At most an eighth: a pool of a few frames would otherwise keep no pages.
        (count / 32).clamp(4, 4096).min(count.div_ceil(8))
    }

    fn frames_wanted(&self, page_bytes: usize) -> usize {
        (self.low_water(page_bytes) * 2).min(BATCH_PAGES)
    }

    /// Evicts a batch of clean pages. If there are too few, writes dirty ones back, so that the next call can evict
    /// them. Returns the number of pages evicted.
    pub(crate) fn evict_for(&self, page_bytes: usize) -> Result<usize> {
        // Evict pages of the wanted size, unless another size takes more than twice as much memory.
        let sizes = self.frames.sizes();
        let own = sizes.iter().find(|(size, _)| *size == page_bytes).map_or(0, |&(size, count)| size * count);
        let largest = sizes.iter().copied().max_by_key(|&(size, count)| size * count);
        let victim_bytes = match largest {
            Some((size, count)) if size != page_bytes && own * 2 < size * count => size,
            _ => page_bytes,
        };
        let evicted = self.evict_victims(page_bytes, victim_bytes)?;
        if evicted > 0 {
            return Ok(evicted);
        }
        // All frames of that size may be pinned.
        for (size, _) in sizes.into_iter().filter(|(size, count)| *size != victim_bytes && *count > 0) {
            let evicted = self.evict_victims(page_bytes, size)?;
            if evicted > 0 {
                return Ok(evicted);
            }
        }
        Ok(0)
    }

    /// Shrinks the pool until page tables, with `more_table_bytes`, have their memory: gives back free frames first,
    /// then evicts pages in batches. If no more can be evicted, leaves the rest to the next caller. Waits; not for use
    /// under the epoch latch.
    pub(crate) fn fit_frames(&self, more_table_bytes: u64) -> Result<()> {
        if !self.frames.is_over_limit(more_table_bytes) {
            return Ok(());
        }
        let _guard = self.fitting.lock();
        let mut turns_in_vain = 0;
        loop {
            self.frames.give_back_excess(more_table_bytes);
            if !self.frames.is_over_limit(more_table_bytes) {
                crate::coverage::mark!("frames gave up memory for page tables");
                return Ok(());
            }
            // Each turn of the clock takes one chance from every page.
            let largest = self.frames.sizes().into_iter().max_by_key(|(page_bytes, count)| page_bytes * count);
            let Some((page_bytes, _)) = largest.filter(|_| turns_in_vain <= INNER_CHANCES) else { return Ok(()) };
            if self.evict_for(page_bytes)? > 0 {
                turns_in_vain = 0;
            } else {
                turns_in_vain += 1;
                let _ = self.space.wait_for_jobs(self.on_written());
            }
        }
    }

    /// Evicts a batch of pages of `victim_bytes` for pages of `page_bytes`.
    fn evict_victims(&self, page_bytes: usize, victim_bytes: usize) -> Result<usize> {
        let wanted = (self.frames_wanted(page_bytes) * page_bytes).div_ceil(victim_bytes).max(1);
        let failure = self.space.failure();
        // After a failure nothing can be written, so skip all dirty pages in search of clean ones.
        let dirty_max = if failure.is_some() { usize::MAX } else { BATCH_PAGES };
        let (mut evicted, dirty) = self.evict(victim_bytes, wanted, dirty_max);
        match failure {
            None if evicted < wanted && !dirty.is_empty() => self.write_back(victim_bytes, &dirty)?,
            Some(stopped) if evicted == 0 => {
                // Each turn takes one chance from every page. These turns use up the remaining ones.
                for _ in 0..INNER_CHANCES {
                    evicted = self.evict(victim_bytes, wanted, dirty_max).0;
                    if evicted > 0 {
                        break;
                    }
                }
                if evicted == 0 && !dirty.is_empty() {
                    return Err(stopped.into_error());
                }
            }
            _ => {}
        }
        if victim_bytes != page_bytes {
            self.frames.give_back_free(page_bytes);
        }
        Ok(evicted)
    }

    /// One turn of the clock: evicts up to `wanted` clean pages that have no chance left, and collects up to
    /// `dirty_max` dirty ones.
    fn evict(&self, page_bytes: usize, wanted: usize, dirty_max: usize) -> (usize, Vec<FrameIndex>) {
        let mut evicted = 0;
        let mut dirty = Vec::new();
        for frame in self.frames.turn(page_bytes) {
            if evicted >= wanted || dirty.len() >= dirty_max {
                break;
            }
            let header = self.frames.header(frame);
            if header.page_key().is_none() || !header.is_idle() || header.take_reference() {
                continue;
            }
            if header.dirty().is_some() {
                dirty.push(frame);
            } else if self.try_evict(frame) {
                evicted += 1;
            }
        }
        (evicted, dirty)
    }

    /// Evicts one page if it is clean and not pinned.
    fn try_evict(&self, frame: FrameIndex) -> bool {
        let Some(page_key) = self.frames.header(frame).page_key() else { return false };
        let Some(pages) = self.space.page_space(page_key.keyspace) else { return false };
        let Some(write) = self.frames.try_write(frame, page_key) else { return false };
        let address = write.header().address();
        if !write.header().is_idle() || write.header().dirty().is_some() || address.is_none() {
            crate::coverage::mark!("a page chosen for eviction was in use again");
            return false;
        }
        for entry in [PageEntry::Leaf(frame), PageEntry::Immutable(frame)] {
            if pages.table.exchange(page_key.page, entry, PageEntry::OnDisk(address)) {
                // A page is pinned or made dirty only under its latch, which this thread holds.
                assert!(write.header().is_idle() && write.header().dirty().is_none(), "a page in use is evicted");
                write.unlink(Residency::of(entry, frame));
                return true;
            }
        }
        false
    }

    /// Returns the addresses of all pages in these chunks of page tables. The caller holds the epoch latch exclusively,
    /// so no address changes; pages may still be read and evicted.
    pub(crate) fn addresses_in(&self, chunks: &[(KeyspaceId, usize)]) -> HashMap<(KeyspaceId, usize), Vec<u64>> {
        let addresses = |&(keyspace, chunk): &(KeyspaceId, usize)| {
            let pages = self.space.page_space(keyspace)?;
            let numbers = (chunk * TABLE_PAGES..(chunk + 1) * TABLE_PAGES).map(|number| PageId(number as u32));
            Some(((keyspace, chunk), numbers.map(|page| self.address_of(&pages, page).to_bits()).collect()))
        };
        chunks.iter().filter_map(addresses).collect()
    }

    /// Returns the address of the page's newest image on disk.
    fn address_of(&self, pages: &PageSpace, page: PageId) -> ExtentAddress {
        loop {
            let entry = pages.table.load(page);
            match entry {
                PageEntry::Free | PageEntry::Reserved | PageEntry::Unattached(_) => return ExtentAddress::NONE,
                PageEntry::OnDisk(address) | PageEntry::Reading(address) => return address,
                PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => {
                    let header = self.frames.header(frame);
                    let address = header.address();
                    // If the check fails, the page was evicted, and the frame may hold another one.
                    let is_its_own = header.page_key() == Some(PageKey { keyspace: pages.id, page });
                    if is_its_own && pages.table.load(page) == entry {
                        return address;
                    }
                }
            }
        }
    }

    // ── removing pages ─────────────────────────────────────────────────────────────────────────────────────────────

    /// Removes a latched page from its keyspace. The caller has called [`prepare_change`](Self::prepare_change) under
    /// the same epoch guard.
    pub(crate) fn free_page(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace, write: FrameWrite<'_>) {
        let (page, frame) = (write.page(), write.frame());
        assert!(write.page_key().keyspace == pages.id, "a page is freed in another keyspace");
        let dirty = write.header().dirty();
        assert!(dirty.is_none_or(|epoch| epoch == epoch_guard.epoch()), "a page is freed whose image is due");
        let address = write.header().address();
        self.space.record_free(epoch_guard, pages, page);
        let entry = pages.table.free(page);
        if !address.is_none() {
            self.space.segments.release(address, epoch_guard.epoch());
        }
        write.unlink(Residency::of(entry, frame));
    }

    /// Removes a page that is on disk, being read or not, from its keyspace. Returns `false` if its entry has changed.
    pub(crate) fn free_on_disk(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        page: PageId,
        entry: PageEntry,
    ) -> bool {
        let (PageEntry::OnDisk(address) | PageEntry::Reading(address)) = entry else {
            unreachable!("{entry:?} is not on disk")
        };
        // Claim the page: from here on no thread moves it or begins to read it, and a read in flight finds its entry
        // changed.
        if !pages.table.exchange(page, entry, PageEntry::Reserved) {
            return false;
        }
        self.space.record_free(epoch_guard, pages, page);
        self.space.segments.release(address, epoch_guard.epoch());
        let claimed = pages.table.free(page);
        assert!(claimed == PageEntry::Reserved, "page {page} became {claimed:?} while it was claimed to be freed");
        self.announce_arrival(pages, page);
        true
    }

    /// Empties the frames of a keyspace that is being dropped, and releases their extents. Only write-back and eviction
    /// may still work on it.
    pub(crate) fn discard(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) -> Result<()> {
        assert!(pages.dropped.load(Ordering::Acquire), "the pages of a keyspace in use are discarded");
        self.free_pages(epoch_guard, pages)
    }

    /// Empties a keyspace during recovery. All its pages become free, except those of unattached bulk loads. The caller
    /// holds the exclusive epoch latch.
    pub(crate) fn clear(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) -> Result<()> {
        assert!(!pages.dropped.load(Ordering::Acquire), "a keyspace that is dropped is cleared");
        self.free_pages(epoch_guard, pages)
    }

    fn free_pages(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) -> Result<()> {
        for (page, _) in pages.table.iter() {
            loop {
                let entry = pages.table.load(page);
                if matches!(entry, PageEntry::OnDisk(_) | PageEntry::Reading(_)) {
                    // A read may begin or end at any moment. It must not bring a page into a dropped keyspace.
                    if self.free_on_disk(epoch_guard, pages, page, entry) {
                        break;
                    }
                    continue;
                }
                let (PageEntry::Leaf(frame) | PageEntry::Immutable(frame)) = entry else { break };
                let page_key = PageKey { keyspace: pages.id, page };
                let Some(write) = self.frames.write(frame, page_key) else { continue };
                if pages.table.load(page) != PageEntry::Leaf(frame)
                    && pages.table.load(page) != PageEntry::Immutable(frame)
                {
                    continue;
                }
                self.append_due_image(epoch_guard, &write)?;
                self.free_page(epoch_guard, pages, write);
                break;
            }
        }
        Ok(())
    }

    // ── the background writer ──────────────────────────────────────────────────────────────────────────────────────

    fn wake_background(&self) {
        let mut wanted = self.background.wanted.lock();
        if !*wanted {
            *wanted = true;
            self.background.wake.notify_one();
        }
    }

    /// The body of the background writer: refills elevators, and keeps frames free ahead of need.
    pub(crate) fn run_background(&self) {
        loop {
            {
                let mut wanted = self.background.wanted.lock();
                while !*wanted && !self.background.stop.load(Ordering::Acquire) {
                    self.background.wake.wait(&mut wanted);
                }
                *wanted = false;
            }
            if self.background.stop.load(Ordering::Acquire) {
                return;
            }
            self.extend_elevators();
            for (page_bytes, _) in self.frames.sizes() {
                self.keep_free(page_bytes);
            }
        }
    }

    /// Evicts pages until frames of a size are free ahead of need. Gives up after `INNER_CHANCES + 1` turns in a row
    /// that evict nothing: the remaining pages are in use, or too few to keep any frame free. Returns the number of
    /// turns.
    pub(crate) fn keep_free(&self, page_bytes: usize) -> u32 {
        let mut turns = 0;
        let mut turns_in_vain = 0;
        while self.frames.available(page_bytes) < self.low_water(page_bytes) * 2 && turns_in_vain <= INNER_CHANCES {
            turns += 1;
            match self.evict_for(page_bytes) {
                _ if self.background.stop.load(Ordering::Acquire) => break,
                Ok(0) => turns_in_vain += 1,
                Ok(_) => turns_in_vain = 0,
                Err(_) => break,
            }
        }
        turns
    }

    /// Starts the background threads, unless they run or were stopped.
    pub(crate) fn start_background(self: &Arc<Self>) -> std::io::Result<()> {
        let mut threads = self.background.threads.lock();
        if self.background.stop.load(Ordering::Acquire) || self.background.has_threads.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        assert!(threads.is_empty(), "background threads are started twice");
        // Two threads read ahead, so that one can wait for the device while the other decompresses.
        type Body = fn(&Pool);
        let bodies: [(&str, Body); 3] = [
            ("drumlin-ahead", Pool::run_read_ahead),
            ("drumlin-ahead", Pool::run_read_ahead),
            ("drumlin-evict", Pool::run_background),
        ];
        for (name, body) in bodies {
            let pool = Arc::clone(self);
            threads.push(self.backend.spawn(name, Box::new(move || body(&pool)))?);
        }
        Ok(())
    }

    /// Returns the background threads for the caller to join, after they have been [stopped](Self::stop_background).
    pub(crate) fn take_threads(&self) -> Vec<JoinHandle<()>> {
        assert!(self.background.stop.load(Ordering::Acquire), "threads are waited for that go on");
        std::mem::take(&mut *self.background.threads.lock())
    }

    /// Hands pages to the threads that read ahead. If they have not begun a page by the time the scan needs it, the
    /// scan reads it itself.
    pub(crate) fn read_ahead(self: &Arc<Self>, pages: &Arc<PageSpace>, wanted: Vec<Wanted>) {
        self.enqueue_ahead(Ahead::Read(Arc::clone(pages), wanted));
    }

    /// Hands a deferred task to the threads that read ahead. None of them may do it, if they are busy.
    pub(crate) fn send_deferred_task(self: &Arc<Self>, task: Arc<dyn DeferredTask>) {
        self.enqueue_ahead(Ahead::DeferredTask(task));
    }

    /// Hands work to the threads that read ahead. Drops the work if their queue is full or no thread can be started.
    fn enqueue_ahead(self: &Arc<Self>, work: Ahead) {
        let reads_nothing = matches!(&work, Ahead::Read(_, wanted) if wanted.is_empty());
        debug_assert!(!reads_nothing, "no page is read ahead");
        if !self.background.has_threads.load(Ordering::Acquire)
            && let Err(error) = self.start_background()
        {
            log::debug!("starting a thread that reads {} ahead: {error}", self.space.path().display());
        }
        let mut requests = self.background.ahead.lock();
        if requests.len() < AHEAD_REQUESTS_MAX {
            requests.push_back(work);
            self.background.wake_ahead.notify_one();
        }
    }

    /// The body of a thread that reads ahead.
    pub(crate) fn run_read_ahead(&self) {
        loop {
            let work = {
                let mut requests = self.background.ahead.lock();
                loop {
                    if self.background.stop.load(Ordering::Acquire) {
                        return;
                    }
                    match requests.pop_front() {
                        Some(work) => break work,
                        None => self.background.wake_ahead.wait(&mut requests),
                    }
                }
            };
            match work {
                // If a page can't be read, its next reader gets the error.
                Ahead::Read(pages, wanted) => drop(self.fault_many(&pages, &wanted)),
                Ahead::DeferredTask(task) => task.run(self),
            }
        }
    }

    pub(crate) fn stop_background(&self) {
        self.stop_fetching();
        self.background.stop.store(true, Ordering::Release);
        {
            let _requests = self.background.ahead.lock();
            self.background.wake_ahead.notify_all();
        }
        let _wanted = self.background.wanted.lock();
        self.background.wake.notify_all();
    }

    /// Calls `body` with a buffer from the budget for reads. Waits only for the disk, and `body` must not wait for
    /// anything else either.
    pub(crate) fn with_buffer<T>(&self, length: usize, body: impl FnOnce(&mut AlignedBuffer) -> T) -> T {
        let mut buffer = self.buffers.take(length);
        assert!(buffer.len() >= length, "a buffer of {} bytes is too short for {length}", buffer.len());
        let value = body(&mut buffer);
        self.buffers.give(buffer);
        value
    }

    /// Returns the bytes of all buffers for reads.
    pub(crate) fn read_buffer_bytes(&self) -> u64 {
        self.buffers.bytes()
    }
}
