//! The buffer pool: pages in memory, brought in by faults, written back in batches, evicted by a clock.
//!
//! # Invariants
//! 1. A page is in at most one frame. A fault first changes the page's entry from `OnDisk` to `Reading`, and only one
//!    thread can do that.
//! 2. An image is appended while its frame is latched and the epoch latch is held, to the appender of the epoch in
//!    which the page was changed.
//! 3. A frame is not evicted while its image is on its way to the disk, because a reread of the page could reach the
//!    disk before the image does.
//! 4. Corruption is reported only if the page's entry has not changed since the read began.
//! 5. A value in a frame is a medium value that was faulted by its value id, and is never dirty: if its extent moves,
//!    only the frame's address changes. Chunks of large values are never in a frame.
//!
//! Lock order: epoch latch, frame latch, then the locks of `space`. If a thread latches several frames, it latches
//! parents before children, and siblings in key order.

mod background;
mod buffers;
mod bulk;
mod checkpoint_copies;
mod deferred;
mod elevator;
mod evict;
mod fault;
mod fetch;
mod frame_header;
mod frames;
mod free_frames;
mod groups;
mod needs;
mod pins;
mod provide;
mod queues;
pub(crate) mod reclaim;
mod removal;
mod requests;
mod residents;

mod span;
mod write_back;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::Waker;
use std::thread::JoinHandle;

use crate::hash::HashMap;
use crate::sync::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::format::extent::{Kind, PageKey, TABLE_PAGES};
use crate::format::{ExtentAddress, KeyspaceId, PageId};
use crate::io::{AlignedBuffer, Backend, Process, Queue};
use crate::memory::{Account, Budget};
use crate::space::{PageEntry, PageSpace, Space};
use buffers::Buffers;
pub(crate) use deferred::Deferred;
use elevator::Elevator;
pub(crate) use frame_header::Residency;
pub(crate) use frames::{
    FrameRead, FrameWrite, Frames, ImmutablePages, NewFrame, PAGE_BYTES_MAX, PAGE_BYTES_MIN, ReclaimGuard,
};
pub(crate) use needs::{Needs, Stop, Wanted};
pub(crate) use provide::Provider;
use queues::{QUEUE_DEPTH, Queues};
use requests::ReadService;
pub(crate) use residents::Resident;

/// Counters of page accesses.
#[derive(Debug, Default)]
pub(crate) struct CacheStats {
    pub(crate) misses: AtomicU64,
}

/// Verifies the bytes of a node read from disk, given the kind of node that its extent states. The store passes this
/// function in, because only the tree knows the layout of nodes.
pub(crate) type VerifyNode = fn(&[u8], Kind) -> Result<(), String>;

/// Returns the first bytes of a node's lower fence as a number that sorts like the keys. The store passes this function
/// in too.
pub(crate) type KeyOrder = fn(&[u8]) -> u128;

/// Returns the number of rows in a leaf. Passed in by the store, too.
pub(crate) type RowCount = fn(&[u8]) -> usize;

/// Functions on nodes, which the store passes in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes {
    pub(crate) verify: VerifyNode,
    pub(crate) key_order: KeyOrder,
    pub(crate) row_count: RowCount,
}

/// The buffer pool of a database. See the module documentation.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) space: Arc<Space>,
    pub(crate) frames: Frames,
    /// The process that opened the pool. In a forked child process, dropping the pool's parts frees nothing.
    pub(crate) process: Process,
    nodes: Nodes,
    backend: Arc<dyn Backend>,
    page_locks: Box<[PageLocks]>,
    read_service: ReadService,
    buffers: Buffers,
    queues: Queues,
    pub(crate) cache: CacheStats,
    /// Held by the thread that chooses the pages to write back.
    writing_back: Mutex<()>,
    /// Elevators by page size.
    elevators: Mutex<BTreeMap<usize, Elevator>>,
    /// Held by the thread that shrinks the pool to make room for page tables. Other threads wait until it has finished.
    fitting: Mutex<()>,
    background: Background,
    /// Each scan that reads ahead holds a clone, so the reference count is 1 more than the number of scans that share
    /// the memory for reading ahead.
    pub(crate) scans_ahead: Arc<()>,
}

/// The locks of one shard of the pages.
#[derive(Debug, Default)]
struct PageLocks {
    /// Tasks that wait for a page that another thread or task is reading. Threads wait on `arrived` with this mutex.
    waiting: Mutex<Vec<(KeyspaceId, PageId, Waker)>>,
    arrived: Condvar,
    /// Held while the image of a dirty page is appended. The epoch latch and the frame's latch do not exclude a second
    /// thread at that time, because they are held only shared.
    capturing: Mutex<()>,
}

/// A task of another module, which a read-ahead thread may run.
pub(crate) trait DeferredTask: Send + Sync + std::fmt::Debug {
    /// Runs the task, unless another thread has begun it or the task was abandoned.
    fn run(&self, pool: &Pool);
}

/// A request to the threads that read ahead. No caller waits for its result.
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

impl Pool {
    pub(crate) fn new(space: Arc<Space>, backend: Arc<dyn Backend>, budget: &Arc<Budget>, nodes: Nodes) -> Pool {
        Pool {
            frames: Frames::new(Arc::clone(budget), space.debt()),
            space,
            process: Process::here(),
            nodes,
            backend,
            page_locks: (0..64).map(|_| PageLocks::default()).collect(),
            read_service: ReadService::default(),
            buffers: Buffers::new(budget.limit_bytes(Account::Reads) as usize),
            queues: Queues::default(),
            cache: CacheStats::default(),
            writing_back: Mutex::default(),
            elevators: Mutex::default(),
            fitting: Mutex::default(),
            background: Background::default(),
            scans_ahead: Arc::default(),
        }
    }

    /// Keeps the calling thread's view of immutable pages valid until the guard is dropped.
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
                    // If this check fails, the page was evicted, and the frame may hold a different page.
                    let is_its_own = header.page_key() == Some(PageKey { keyspace: pages.id, page });
                    if is_its_own && pages.table.load(page) == entry {
                        return address;
                    }
                }
            }
        }
    }

    /// Takes an idle queue, or creates one.
    pub(crate) fn take_queue(&self) -> Result<Box<dyn Queue>> {
        match self.queues.take() {
            Some(queue) => Ok(queue),
            None => self
                .backend
                .queue(QUEUE_DEPTH)
                .map_err(|error| Error::io("making an I/O queue for", self.space.path(), error)),
        }
    }

    /// Calls `body` with a read buffer from the budget. If all buffers are taken, waits for one, and thus only for the
    /// disk. `body` too may wait only for the disk.
    pub(crate) fn with_buffer<T>(&self, length: usize, body: impl FnOnce(&mut AlignedBuffer) -> T) -> T {
        let mut buffer = self.buffers.take(length);
        assert!(buffer.len() >= length, "a buffer of {} bytes is too short for {length}", buffer.len());
        let value = body(&mut buffer);
        self.buffers.give(buffer);
        value
    }

    /// Returns the total size of all read buffers, in bytes.
    pub(crate) fn read_buffer_bytes(&self) -> u64 {
        self.buffers.bytes()
    }
}
