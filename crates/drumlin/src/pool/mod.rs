//! The buffer pool: pages in memory, brought in by faults, written back in batches, evicted by a clock.
//!
//! # Invariants
//! 1. A page is in one frame at most: a fault first moves the page's word from `Disk` to `Reading`, and one thread succeeds.
//! 2. An image is appended while its frame is latched and the guard is held, to the appender of the epoch that changed it.
//! 3. A frame whose image is on its way to the disk is not evicted before it has arrived: a read would come too early.
//! 4. Damage is reported only if the page's word is still the one that the read began with.
//! 5. A value in memory is a medium one that was asked for by its identity: no chunk of a large one is ever in a frame. It is
//!    never dirty: whoever moves its extent tells the frame the new place.
//!
//! Lock order: guard, latch, then those of `space`. Latches of several frames are taken parents first, then in key order.

mod buffers;
mod bulk;
mod fetch;
mod frames;
mod holds;
pub(crate) mod reclaim;
mod write_back;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use crate::collections::HashMap;
use crate::sync::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::format::extent::{Flaw, HEADER_BYTES, Identity, Kind, TABLE_PAGES, VALUE_BYTES_OFFSET};
use crate::format::{KeyspaceId, PageId, Place, extent, get_u64};
use crate::io::{AlignedBuffer, Backend, Process, Queue};
use crate::memory::{Budget, Use};
use crate::space::{FrameIndex, Guard, PageSpace, Space, Word};
use buffers::Buffers;
use frames::INNER_CHANCES;
pub(crate) use frames::{FrameHeader, FrameRead, FrameWrite, Frames, NewFrame, PAGE_BYTES_MAX, PAGE_BYTES_MIN, Pin};

/// Pages evicted, or written back, at once.
const BATCH_PAGES: usize = 128;

/// What a core operation lacks. It has changed nothing; the caller provides it and calls again.
#[derive(Clone, Debug)]
pub(crate) enum Needs {
    /// A page that is not in memory.
    Page(Arc<PageSpace>, PageId),
    /// A frame for a new page of this many bytes.
    Frame(usize),
    /// Room among the images on their way to the disk.
    Writes,
}

/// Why a core operation ended without its result.
#[derive(Debug)]
pub(crate) enum Stop {
    Needs(Needs),
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Error(error)
    }
}

impl From<Needs> for Stop {
    fn from(needs: Needs) -> Stop {
        Stop::Needs(needs)
    }
}

/// How often pages were found in memory.
#[derive(Debug, Default)]
pub(crate) struct Hits {
    pub(crate) misses: AtomicU64,
}

/// Verifies the bytes of a node read from disk, a leaf or an inner one: the tree's business, handed in by whoever makes
/// the pool.
pub(crate) type VerifyNode = fn(&[u8], bool) -> Result<(), String>;

/// The beginning of the lowest key that a node may hold, as a number that sorts alike; known to the tree alone.
pub(crate) type KeyOrder = fn(&[u8]) -> u128;

/// What the pool needs to know of the pages it keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes {
    pub(crate) verify: VerifyNode,
    pub(crate) key_order: KeyOrder,
}

/// What a fault is to bring in. Whoever was led by what is outdated may ask for a number that is another page's by now: that
/// one is left where it is.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// A leaf or an inner node.
    Node,
    /// The medium value of this identity. A large value's chunks are never in memory.
    Value(u64),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) space: Arc<Space>,
    pub(crate) frames: Frames,
    /// Whose it is: what a fork of it drops stays as it is.
    pub(crate) process: Process,
    nodes: Nodes,
    backend: Arc<dyn Backend>,
    /// Those who wait for a page that somebody else is reading, by the page.
    arrivals: Box<[Arrival]>,
    fetcher: fetch::Fetcher,
    buffers: Buffers,
    queues: Mutex<Vec<Queues>>,
    pub(crate) hits: Hits,
    /// One thread at a time chooses what to write back.
    writing_back: Mutex<()>,
    background: Background,
}

/// Tasks, by what they wait for, and threads.
type Arrival = (Mutex<Vec<(KeyspaceId, PageId, Waker)>>, Condvar);

struct Queues(Box<dyn Queue>);

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue(depth {})", self.0.depth())
    }
}

/// Requests that may wait for the thread that reads ahead.
const AHEAD_REQUESTS_MAX: usize = 16;

#[derive(Debug, Default)]
struct Background {
    wanted: Mutex<bool>,
    wake: Condvar,
    ahead: Mutex<VecDeque<(Arc<PageSpace>, Vec<PageId>)>>,
    wake_ahead: Condvar,
    stop: AtomicBool,
}

/// Extents read together, and the pages they are for.
struct Group<'p> {
    span: Span,
    buffer_bytes: usize,
    pages: Vec<(PageId, Place, NewFrame<'p>)>,
}

/// The part of the file that one request reads.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    end: u64,
}

impl Span {
    fn length(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Reaches over the extent with this cover too, or begins with it; `false` where two requests are better, or it would be
    /// longer than `bytes_max`.
    fn join(span: &mut Option<Span>, (start, length, _): (u64, usize, usize), bytes_max: usize) -> bool {
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

/// A buffer for one extent of any page size, wherever it begins in its block.
const SCRATCH_BYTES: usize = PAGE_BYTES_MAX + 2 * 4096;
/// The most that is read at once: from here on a larger read is not faster.
const GROUP_BYTES_MAX: usize = 256 << 10;
/// Requests handed to the kernel at once, which takes some 5 µs for each: the device begins with the first meanwhile, and
/// pages are decoded while it works.
const SUBMITTED_AT_ONCE: usize = 8;
/// Extents this far from each other are read together: a request more costs as much as 16 KiB more.
const GROUP_GAP_BYTES: u64 = 16 << 10;

/// Reads that one thread keeps in flight.
const QUEUE_DEPTH: usize = 64;
/// Queues that are kept for the next who reads many pages: each is a ring with its memory, and a descriptor.
const QUEUE_COUNT_MAX: usize = 16;

impl Pool {
    pub(crate) fn new(space: Arc<Space>, backend: Arc<dyn Backend>, budget: &Budget, nodes: Nodes) -> Pool {
        Pool {
            space,
            frames: Frames::new(budget.limit_bytes(Use::Pages) as usize),
            process: Process::here(),
            nodes,
            backend,
            arrivals: (0..64).map(|_| (Mutex::default(), Condvar::new())).collect(),
            fetcher: fetch::Fetcher::default(),
            buffers: Buffers::new(budget.limit_bytes(Use::Reads) as usize),
            queues: Mutex::default(),
            hits: Hits::default(),
            writing_back: Mutex::default(),
            background: Background::default(),
        }
    }

    /// Keeps the calling thread's view of fixed pages valid.
    #[inline]
    pub(crate) fn pin(&self) -> Pin<'_> {
        self.frames.pin()
    }

    /// Makes sure that there can be frames of a size: address space for the whole budget, and a header for each.
    pub(crate) fn reserve_frames(&self, page_bytes: usize) -> Result<()> {
        self.frames.reserve(page_bytes).map_err(|error| {
            let what = format!("no memory for the frames that the budget allows ({page_bytes} bytes each): {error}");
            Error::Invalid(format!("{what}. Choose a smaller Config::memory"))
        })
    }

    // ── faults ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Brings a node of `frame_bytes` into memory, or finds that it is there, or that the page is none.
    pub(crate) fn fault(&self, pages: &PageSpace, page: PageId, frame_bytes: usize) -> Result<()> {
        self.fault_wanted(pages, page, frame_bytes, Wanted::Node)
    }

    /// As [`fault`](Pool::fault), for the medium value of this identity.
    pub(crate) fn fault_value(&self, pages: &PageSpace, page: PageId, frame_bytes: usize, identity: u64) -> Result<()> {
        self.fault_wanted(pages, page, frame_bytes, Wanted::Value(identity))
    }

    fn fault_wanted(&self, pages: &PageSpace, page: PageId, frame_bytes: usize, wanted: Wanted) -> Result<()> {
        loop {
            match pages.table.load(page) {
                Word::Disk(place) if place.length() > frame_bytes as u64 => {
                    let what = format!("page {page} of keyspace {}", pages.id);
                    return Err(self.space.damaged(&what, place, Flaw::Length));
                }
                Word::Disk(place) => {
                    let frame = self.take_frame(frame_bytes)?;
                    if pages.table.exchange(page, Word::Disk(place), Word::Reading(place)) {
                        self.hits.misses.fetch_add(1, Ordering::Relaxed);
                        let mut buffer = self.buffers.take(self.space.cover(place).1);
                        let result = self.read_into(pages, page, wanted, place, frame, &mut buffer);
                        self.buffers.give(buffer);
                        return result;
                    }
                }
                Word::Reading(_) => {
                    crate::witness::mark!("a page was wanted that another was reading");
                    self.wait_for_arrival(pages, page);
                }
                _ => return Ok(()),
            }
        }
    }

    fn read_into(
        &self,
        pages: &PageSpace,
        page: PageId,
        wanted: Wanted,
        place: Place,
        frame: NewFrame<'_>,
        buffer: &mut AlignedBuffer,
    ) -> Result<()> {
        let (start, _, offset) = self.space.cover(place);
        let result = self.space.read(buffer, start);
        self.arrive(pages, page, wanted, place, frame, result, &buffer[offset..])
    }

    /// Ends a read: verifies the extent and publishes the page, or puts the word back and says why not.
    #[expect(clippy::too_many_arguments, reason = "what was read, and for whom")]
    fn arrive(
        &self,
        pages: &PageSpace,
        page: PageId,
        wanted: Wanted,
        place: Place,
        frame: NewFrame<'_>,
        result: std::io::Result<()>,
        bytes: &[u8],
    ) -> Result<()> {
        let identity = Identity { keyspace: pages.id, page };
        let reading = Word::Reading(place);
        let outcome = match result {
            Ok(()) => self.admit(identity, wanted, place, frame, bytes),
            Err(error) => Err(Error::io("reading", self.space.path(), error)),
        };
        let result = match outcome {
            Ok(word) => {
                if !pages.table.exchange(page, reading, word) {
                    // The keyspace was dropped meanwhile.
                    crate::witness::mark!("a page arrived whose keyspace had been dropped");
                    self.withdraw(word, identity);
                }
                Ok(())
            }
            Err(error) => {
                if pages.table.exchange(page, reading, Word::Disk(place)) {
                    Err(error)
                } else {
                    Ok(())
                }
            }
        };
        self.announce_arrival(pages, page);
        result
    }

    /// Wakes those who wait for the end of a read of the page, whose word says that it has ended.
    fn announce_arrival(&self, pages: &PageSpace, page: PageId) {
        let (waiting, arrived) = self.arrival(pages, page);
        let tasks: Vec<Waker> = {
            let mut waiting = waiting.lock();
            let of_page =
                |(keyspace, other, _): &mut (KeyspaceId, PageId, Waker)| *keyspace == pages.id && *other == page;
            waiting.extract_if(.., of_page).map(|(_, _, waker)| waker).collect()
        };
        arrived.notify_all();
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Puts an extent's page into the frame, if it is what is wanted; returns the word that publishes it.
    fn admit(
        &self,
        identity: Identity,
        wanted: Wanted,
        place: Place,
        mut frame: NewFrame<'_>,
        bytes: &[u8],
    ) -> Result<Word> {
        let what = || format!("page {} of keyspace {}", identity.page, identity.keyspace);
        let flawed = |flaw: Flaw| self.space.damaged(&what(), place, flaw);
        let bytes = &bytes[..place.length() as usize];
        let header = self.space.verify(place, bytes).map_err(flawed)?;
        // A value's extents are numbered within the value: what tells it apart is its own identity.
        let numbered = match wanted {
            Wanted::Node => identity,
            Wanted::Value(_) => Identity { page: header.identity.page, ..identity },
        };
        if header.identity != numbered {
            return Err(flawed(Flaw::Identity(header.identity)));
        }
        if header.raw_bytes > frame.len() {
            return Err(flawed(Flaw::Length));
        }
        let raw_bytes = header.raw_bytes;
        extent::decode(bytes, &header, &mut frame[..raw_bytes]).map_err(flawed)?;
        let leaf = match (wanted, header.kind) {
            (Wanted::Node, Kind::Leaf | Kind::Inner) => {
                (self.nodes.verify)(&frame, header.kind == Kind::Leaf)
                    .map_err(|flaw| self.space.damaged(&what(), place, flaw))?;
                header.kind == Kind::Leaf
            }
            (Wanted::Value(id), Kind::Value) => {
                if raw_bytes < VALUE_BYTES_OFFSET || get_u64(&frame, HEADER_BYTES) != id {
                    return Err(flawed(Flaw::Identity(header.identity)));
                }
                false
            }
            _ => return Err(flawed(Flaw::Kind)),
        };
        frame.header().set_place(place);
        let frame = frame.into_published(identity);
        Ok(if leaf { Word::Leaf(frame) } else { Word::Fixed(frame) })
    }

    fn withdraw(&self, word: Word, identity: Identity) {
        let (Word::Leaf(frame) | Word::Fixed(frame)) = word else { unreachable!("admit publishes frames") };
        if let Some(write) = self.frames.write(frame, identity) {
            write.unlink(true);
        }
    }

    fn arrival(&self, pages: &PageSpace, page: PageId) -> &Arrival {
        &self.arrivals[(page.0 ^ pages.id.0.rotate_left(16)) as usize % self.arrivals.len()]
    }

    fn wait_for_arrival(&self, pages: &PageSpace, page: PageId) {
        let (lock, arrived) = self.arrival(pages, page);
        let mut guard = lock.lock();
        while matches!(pages.table.load(page), Word::Reading(_)) {
            arrived.wait(&mut guard);
        }
    }

    /// Brings several nodes into memory with many reads in flight. Pages that can't be read are left where they are: who
    /// needs one finds the error when it faults the page itself. Returns the number of pages read.
    pub(crate) fn fault_many(&self, pages: &PageSpace, wanted: &[PageId]) -> Result<usize> {
        if wanted.len() < 2 {
            return Ok(wanted.iter().filter(|page| self.fault(pages, **page, pages.page_bytes).is_ok()).count());
        }
        // In the order of the disk, so that neighbours come in with one read.
        let mut extents: Vec<(Place, PageId)> = (wanted.iter())
            .filter_map(|&page| match pages.table.load(page) {
                Word::Disk(place) if place.length() <= pages.page_bytes as u64 => Some((place, page)),
                _ => None,
            })
            .collect();
        extents.sort_unstable();
        let mut rest = &extents[..];
        let mut queue = self.take_queue()?;
        let mut in_flight: Vec<Option<Group<'_>>> = (0..queue.depth()).map(|_| None).collect();
        let mut idle: Vec<usize> = (0..queue.depth()).collect();
        let mut finished = Vec::new();
        let mut count = 0;
        loop {
            let mut pushed = 0;
            while pushed < SUBMITTED_AT_ONCE
                && !rest.is_empty()
                && let Some(&slot) = idle.last()
            {
                let is_first = queue.in_flight() == 0;
                let (near, length_max) = self.near(rest);
                let buffer =
                    if is_first { Some(self.buffers.take(length_max)) } else { self.buffers.try_take(length_max) };
                let Some(mut buffer) = buffer else { break };
                let mut unclaimed = near;
                let claimed = self.claim_group(pages, &mut unclaimed, is_first);
                rest = &rest[near.len() - unclaimed.len()..];
                let Ok(Some(mut group)) = claimed else {
                    self.buffers.give(buffer);
                    claimed?;
                    // Others have claimed all of these, or there is no frame.
                    if unclaimed.is_empty() {
                        continue;
                    }
                    break;
                };
                idle.pop();
                pushed += 1;
                let length = group.span.length();
                buffer.set_len(length);
                group.buffer_bytes = buffer.capacity();
                self.space.count_read(length);
                queue.push_read(self.space.file(), group.span.start, buffer, slot as u64);
                in_flight[slot] = Some(group);
            }
            if queue.in_flight() == 0 {
                break;
            }
            // While there is more to ask for, only what has arrived by now; then not for each alone: being woken costs more
            // than decoding a page does.
            let go_on = pushed == SUBMITTED_AT_ONCE && !rest.is_empty() && !idle.is_empty();
            let enough = if go_on { 0 } else { queue.in_flight().div_ceil(8) };
            if let Err(error) = queue.wait(enough, &mut finished) {
                // Ends when nothing is in flight any more.
                drop(queue);
                let kind = error.kind();
                self.buffers.lose(in_flight.iter().flatten().map(|group| group.buffer_bytes).sum());
                for (page, place, frame) in in_flight.into_iter().flatten().flat_map(|group| group.pages) {
                    let _ = self.arrive(pages, page, Wanted::Node, place, frame, Err(kind.into()), &[]);
                }
                return Err(Error::io("reading", self.space.path(), error));
            }
            for completion in finished.drain(..) {
                let slot = completion.token as usize;
                let group = in_flight[slot].take().expect("the slot was in flight");
                for (page, place, frame) in group.pages {
                    let offset = (place.start() - group.span.start) as usize;
                    let result = match &completion.result {
                        Ok(()) => Ok(()),
                        Err(error) => Err(error.kind().into()),
                    };
                    // Whoever needs the page meets its error again.
                    let bytes = &completion.buffer[offset..];
                    let arrived = self.arrive(pages, page, Wanted::Node, place, frame, result, bytes);
                    count += usize::from(arrived.is_ok());
                }
                self.buffers.give(completion.buffer);
                idle.push(slot);
            }
        }
        self.hits.misses.fetch_add(count as u64, Ordering::Relaxed);
        self.give_queue(queue);
        Ok(count)
    }

    /// Claims the next extents that lie close together, with frames for their pages. `None` where nothing is left or there
    /// is no frame, unless the caller `may_wait`: with reads of its own in flight a thread must not wait for frames, it
    /// would hold what others wait for.
    fn claim_group<'p>(
        &'p self,
        pages: &PageSpace,
        rest: &mut &[(Place, PageId)],
        may_wait: bool,
    ) -> Result<Option<Group<'p>>> {
        let mut span = None;
        let mut claimed = Vec::new();
        while let [(place, page), later @ ..] = *rest {
            let mut wider = span;
            if !Span::join(&mut wider, self.space.cover(*place), self.buffers.group_bytes_max()) {
                break;
            }
            let frame = match self.frames.try_take(pages.page_bytes) {
                Some(frame) => frame,
                None if may_wait && claimed.is_empty() => self.take_frame(pages.page_bytes)?,
                None => break,
            };
            *rest = later;
            if pages.table.exchange(*page, Word::Disk(*place), Word::Reading(*place)) {
                span = wider;
                claimed.push((*page, *place, frame));
            }
        }
        Ok(span.map(|span| Group { span, buffer_bytes: 0, pages: claimed }))
    }

    /// Those of the extents, from the first on, that may be read together, and the bytes that this takes at the most.
    fn near<'e>(&self, extents: &'e [(Place, PageId)]) -> (&'e [(Place, PageId)], usize) {
        let mut span = None;
        let bytes_max = self.buffers.group_bytes_max();
        let is_near = |(place, _): &&(Place, PageId)| Span::join(&mut span, self.space.cover(*place), bytes_max);
        let count = extents.iter().take_while(is_near).count();
        (&extents[..count], span.map_or(0, Span::length))
    }

    pub(crate) fn take_queue(&self) -> Result<Box<dyn Queue>> {
        match self.queues.lock().pop() {
            Some(queue) => Ok(queue.0),
            None => self
                .backend
                .queue(QUEUE_DEPTH)
                .map_err(|error| Error::io("making an I/O queue for", self.space.path(), error)),
        }
    }

    fn give_queue(&self, queue: Box<dyn Queue>) {
        let mut queues = self.queues.lock();
        if queues.len() < QUEUE_COUNT_MAX {
            queues.push(Queues(queue));
        }
    }

    // ── frames ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// A frame for a page, making room where there is none. Waits; not for use inside the guard.
    pub(crate) fn take_frame(&self, page_bytes: usize) -> Result<NewFrame<'_>> {
        self.reserve_frames(page_bytes)?;
        let mut rounds = 0;
        loop {
            if let Some(frame) = self.frames.try_take(page_bytes) {
                if rounds == 0 && self.frames.available(page_bytes) < self.low_water(page_bytes) {
                    self.wake_background();
                }
                return Ok(frame);
            }
            rounds += 1;
            // A few turns of the clock take every page's chances; what is left after many is held or can't be written.
            if rounds > 10_000 {
                let in_use = || Error::pages_in_memory(self.frames.limit_bytes() as u64);
                return Err(self.space.failure().map_or_else(in_use, |reason| Error::Failed { reason }));
            }
            if self.make_room(page_bytes)? == 0 {
                crate::witness::mark!("a frame was wanted and no page could be evicted");
                // Frames on their way to the disk are free when they have arrived, however slow the disk.
                let _ = self.space.wait_for_jobs(self.on_written());
                crate::sync::yield_now();
            }
        }
    }

    fn low_water(&self, page_bytes: usize) -> usize {
        let count = self.frames.limit_bytes() / page_bytes;
        // Of a pool of a few frames only one, or nothing would stay in it.
        (count / 32).clamp(4, 4096).min(count.div_ceil(8))
    }

    fn frames_wanted(&self, page_bytes: usize) -> usize {
        (self.low_water(page_bytes) * 2).min(BATCH_PAGES)
    }

    /// Evicts a batch of pages, writing dirty ones back first where clean ones do not suffice. Returns the pages evicted.
    pub(crate) fn make_room(&self, page_bytes: usize) -> Result<usize> {
        // Frames of the size wanted, unless another size has most of the memory.
        let sizes = self.frames.sizes();
        let own = sizes.iter().find(|(size, _)| *size == page_bytes).map_or(0, |&(size, count)| size * count);
        let largest = sizes.iter().copied().max_by_key(|&(size, count)| size * count);
        let victim_bytes = match largest {
            Some((size, count)) if size != page_bytes && own * 2 < size * count => size,
            _ => page_bytes,
        };
        let evicted = self.make_room_of(page_bytes, victim_bytes)?;
        if evicted > 0 {
            return Ok(evicted);
        }
        // All frames of that size may be held.
        for (size, _) in sizes.into_iter().filter(|(size, count)| *size != victim_bytes && *count > 0) {
            let evicted = self.make_room_of(page_bytes, size)?;
            if evicted > 0 {
                return Ok(evicted);
            }
        }
        Ok(0)
    }

    /// Evicts a batch of pages of `victim_bytes` for pages of `page_bytes`.
    fn make_room_of(&self, page_bytes: usize, victim_bytes: usize) -> Result<usize> {
        let wanted = (self.frames_wanted(page_bytes) * page_bytes).div_ceil(victim_bytes).max(1);
        let failure = self.space.failure();
        // Where nothing can be written any more, readers live on the pages that are clean, wherever they are.
        let dirty_max = if failure.is_some() { usize::MAX } else { BATCH_PAGES };
        let (mut evicted, dirty) = self.evict(victim_bytes, wanted, dirty_max);
        match failure {
            None if evicted < wanted && !dirty.is_empty() => self.write_back(dirty)?,
            Some(reason) if evicted == 0 => {
                // The turns before took the chances.
                for _ in 0..INNER_CHANCES {
                    evicted = self.evict(victim_bytes, wanted, dirty_max).0;
                    if evicted > 0 {
                        break;
                    }
                }
                if evicted == 0 && !dirty.is_empty() {
                    return Err(Error::Failed { reason });
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
            if header.identity().is_none() || !header.is_idle() || header.take_chance() {
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

    /// Evicts one page if it is clean and nobody uses it.
    fn try_evict(&self, frame: FrameIndex) -> bool {
        let Some(identity) = self.frames.header(frame).identity() else { return false };
        let Some(pages) = self.space.page_space(identity.keyspace) else { return false };
        let Some(write) = self.frames.try_write(frame, identity) else { return false };
        let place = write.header().place();
        if !write.header().is_idle() || write.header().dirty().is_some() || place.is_none() {
            crate::witness::mark!("a page chosen for eviction was in use again");
            return false;
        }
        for (word, fixed) in [(Word::Leaf(frame), false), (Word::Fixed(frame), true)] {
            if pages.table.exchange(identity.page, word, Word::Disk(place)) {
                write.unlink(fixed);
                return true;
            }
        }
        false
    }

    /// The places of all pages in these chunks of page tables. The caller is alone in the guard, so that none changes;
    /// pages may still come and go.
    pub(crate) fn places_in(&self, chunks: &[(KeyspaceId, usize)]) -> HashMap<(KeyspaceId, usize), Vec<u64>> {
        let places = |&(keyspace, chunk): &(KeyspaceId, usize)| {
            let pages = self.space.page_space(keyspace)?;
            let numbers = (chunk * TABLE_PAGES..(chunk + 1) * TABLE_PAGES).map(|number| PageId(number as u32));
            Some(((keyspace, chunk), numbers.map(|page| self.place_of(&pages, page).to_bits()).collect()))
        };
        chunks.iter().filter_map(places).collect()
    }

    /// Where a page was last written to.
    fn place_of(&self, pages: &PageSpace, page: PageId) -> Place {
        loop {
            let word = pages.table.load(page);
            match word {
                Word::Free | Word::Reserved => return Place::NONE,
                Word::Disk(place) | Word::Reading(place) => return place,
                Word::Leaf(frame) | Word::Fixed(frame) => {
                    let header = self.frames.header(frame);
                    let place = header.place();
                    // Otherwise it was evicted, and the frame may be another's.
                    let is_its_own = header.identity() == Some(Identity { keyspace: pages.id, page });
                    if is_its_own && pages.table.load(page) == word {
                        return place;
                    }
                }
            }
        }
    }

    // ── removing pages ─────────────────────────────────────────────────────────────────────────────────────────────

    /// Takes a latched page out of its keyspace. [`prepare_change`](Self::prepare_change) came before, in the same guard.
    pub(crate) fn free_page(&self, guard: &Guard<'_>, pages: &PageSpace, write: FrameWrite<'_>) {
        let identity = write.header().identity().expect("a latched frame holds a page");
        let place = write.header().place();
        self.space.record_free(guard, pages, identity.page);
        let word = pages.table.free(identity.page);
        if !place.is_none() {
            self.space.segments.release(place, guard.epoch());
        }
        write.unlink(matches!(word, Word::Fixed(_)));
    }

    /// Takes a page that is on disk, being read or not, out of its keyspace; `false` if its word is another by now.
    pub(crate) fn free_on_disk(&self, guard: &Guard<'_>, pages: &PageSpace, page: PageId, word: Word) -> bool {
        let (Word::Disk(place) | Word::Reading(place)) = word else { unreachable!("{word:?} is not on disk") };
        // Claimed: nobody moves it or begins to read it from here on, and a read in flight finds its word gone.
        if !pages.table.exchange(page, word, Word::Reserved) {
            return false;
        }
        self.space.record_free(guard, pages, page);
        self.space.segments.release(place, guard.epoch());
        pages.table.free(page);
        self.announce_arrival(pages, page);
        true
    }

    /// Empties the frames of a keyspace that is being dropped, and releases their places. Nobody works on it any more,
    /// but for write-back and eviction.
    pub(crate) fn discard(&self, guard: &Guard<'_>, pages: &PageSpace) -> Result<()> {
        for (page, _) in pages.table.iter() {
            loop {
                let word = pages.table.load(page);
                if matches!(word, Word::Disk(_) | Word::Reading(_)) {
                    // A read may begin or end at any moment: it must not bring a page into a keyspace that is no more.
                    if self.free_on_disk(guard, pages, page, word) {
                        break;
                    }
                    continue;
                }
                let (Word::Leaf(frame) | Word::Fixed(frame)) = word else { break };
                let identity = Identity { keyspace: pages.id, page };
                let Some(write) = self.frames.write(frame, identity) else { continue };
                if pages.table.load(page) != Word::Leaf(frame) && pages.table.load(page) != Word::Fixed(frame) {
                    continue;
                }
                self.append_owed(guard, &write)?;
                self.free_page(guard, pages, write);
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

    /// Keeps frames free ahead of need; the body of a thread.
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
            for (page_bytes, _) in self.frames.sizes() {
                self.keep_free(page_bytes);
            }
        }
    }

    /// Evicts pages until frames of a size are free ahead of need, or it is in vain: as many turns in a row as an inner node
    /// survives, and one more, have evicted nothing. What is left then is in use, or too little to keep any free. Returns the
    /// number of turns.
    pub(crate) fn keep_free(&self, page_bytes: usize) -> u32 {
        let mut turns = 0;
        let mut turns_in_vain = 0;
        while self.frames.available(page_bytes) < self.low_water(page_bytes) * 2 && turns_in_vain <= INNER_CHANCES {
            turns += 1;
            match self.make_room(page_bytes) {
                _ if self.background.stop.load(Ordering::Acquire) => break,
                Ok(0) => turns_in_vain += 1,
                Ok(_) => turns_in_vain = 0,
                Err(_) => break,
            }
        }
        turns
    }

    /// Hands pages to the thread that reads ahead. Forgotten if it is behind: whoever needs them reads them then.
    pub(crate) fn read_ahead(&self, pages: &Arc<PageSpace>, wanted: Vec<PageId>) {
        let mut requests = self.background.ahead.lock();
        if requests.len() < AHEAD_REQUESTS_MAX {
            requests.push_back((Arc::clone(pages), wanted));
            self.background.wake_ahead.notify_one();
        }
    }

    /// Reads what was asked for ahead; the body of a thread.
    pub(crate) fn run_read_ahead(&self) {
        loop {
            let (pages, wanted) = {
                let mut requests = self.background.ahead.lock();
                loop {
                    if self.background.stop.load(Ordering::Acquire) {
                        return;
                    }
                    match requests.pop_front() {
                        Some(request) => break request,
                        None => self.background.wake_ahead.wait(&mut requests),
                    }
                }
            };
            // Whoever needs a page that could not be read meets its error.
            let _ = self.fault_many(&pages, &wanted);
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

    /// Bytes of buffers for reads.
    pub(crate) fn read_buffer_bytes(&self) -> u64 {
        self.buffers.bytes()
    }
}
