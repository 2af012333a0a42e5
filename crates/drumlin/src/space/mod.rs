//! The data file: segments, extents, page tables, checkpoints.
//!
//! # Invariants
//! 1. *No overwriting.* Each write of a page goes to a new address. The page's old address is released in the epoch of
//!    the new image, and is reused only after the checkpoint that ends that epoch is durable.
//! 2. *The epoch latch.* Every change of a page or of a page table happens under the shared epoch latch; a checkpoint
//!    takes it exclusively to begin. No thread waits for I/O under it, with one exception: a thread that appends and
//!    finds no free segment grows the file ([`take_segment`](Space::take_segment)). Commits reserve space before they
//!    take the latch, so this is rare.
//! 3. *Images belong to the epoch of their change.* A page last changed in epoch e is appended to e's appender,
//!    whenever that happens. At most two epochs exist: the current one, and the one whose checkpoint is being made.
//! 4. *Every change of an entry is logged.* The table as of a checkpoint is the base image plus all changes up to its
//!    epoch, in the order of (epoch, sequence). The entries in memory run ahead of the checkpoint and are never written
//!    themselves.
//!
//! Lock order: epoch latch, frame latch, mover and values, admissions, appender, segments. The job queue, idle buffers
//! and encoders are leaves. So are the logged changes, except that [`summarise`](Space::summarise) appends while it
//! holds them.

pub(crate) mod appender;
pub(crate) mod checkpoint;
mod debt;
mod load_gate;
mod neighbours;
mod policy;
pub(crate) mod reservation;
pub(crate) mod segments;
pub(crate) mod superblocks;
pub(crate) mod table;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sync::{CachePadded, Condvar, Mutex, RwLock, ShardedLock, ShardedReadGuard, ShardedWriteGuard};

use crate::collections::HashMap;
use crate::error::{Error, Result, Stopped, quoted};
use crate::format::catalogue;
use crate::format::extent::{Encoder, ExtentError, Header, Kind, PageKey};
use crate::format::node::is_page_bytes;
use crate::format::summary::TableChange;
use crate::format::{DatabaseId, Epoch, ExtentAddress, KeyspaceId, PageId, SegmentUse, extent};
use crate::io::{FileRef, Persist};
use crate::memory::{self, Budget, ENCODER_BYTES_MAX, ENCODER_COUNT, WRITE_BUFFER_COUNT};
use appender::{Appender, WriteBuffers, WriteJob};
pub(crate) use debt::CheckpointDebt;
use load_gate::LoadGate;
pub(crate) use policy::{Frees, Margin, Purpose};
use reservation::Reservations;
pub(crate) use reservation::SpaceReservation;
use segments::Segments;
use superblocks::Superblocks;
pub(crate) use table::{FrameIndex, PageEntry, PageTable};

/// The pages of one keyspace.
#[derive(Debug)]
pub(crate) struct PageSpace {
    pub(crate) id: KeyspaceId,
    pub(crate) page_bytes: usize,
    /// The keyspace's name, for the catalogue and for errors.
    pub(crate) name: Box<str>,
    pub(crate) table: PageTable,
    /// Set when the keyspace is dropped and its pages are being freed.
    pub(crate) dropped: AtomicBool,
    /// Set if page-table entries were lost when the database was opened despite damage. Nodes may then name pages that
    /// do not exist.
    has_lost_pages: AtomicBool,
    /// The bulk loads that are attached to the keyspace.
    pub(crate) load_gate: LoadGate,
}

impl PageSpace {
    pub(crate) fn new(id: KeyspaceId, page_bytes: usize, name: &str, budget: &Arc<Budget>) -> PageSpace {
        assert!(is_page_bytes(page_bytes), "keyspace {id} has pages of {page_bytes} bytes");
        let (table, dropped) = (PageTable::new(budget), AtomicBool::new(false));
        let (has_lost_pages, load_gate) = (AtomicBool::new(false), LoadGate::new());
        PageSpace { id, page_bytes, name: name.into(), table, dropped, has_lost_pages, load_gate }
    }

    /// Records that entries of the page table may be lost.
    pub(crate) fn expect_lost_pages(&self) {
        self.has_lost_pages.store(true, Ordering::Release);
    }

    /// Returns `true` if a node may name a page that the table has lost.
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.has_lost_pages.load(Ordering::Acquire)
    }

    /// The keyspace's name, quoted for an error.
    pub(crate) fn quoted_name(&self) -> String {
        quoted(&self.name)
    }

    /// Describes one of the keyspace's pages for an error.
    pub(crate) fn quoted_page(&self, page: PageId) -> String {
        format!("page {page} of keyspace {}", self.quoted_name())
    }
}

/// Fixes the current epoch while pages change. Threads that change pages take it shared; a checkpoint takes it
/// exclusively to begin.
#[derive(Debug)]
pub(crate) struct EpochLatch {
    latch: ShardedLock,
    /// Changes under the exclusive latch only.
    newest: AtomicU64,
}

/// Guard of the [`EpochLatch`]: the epoch does not change while it lives. Held briefly, and never across a wait.
#[derive(Debug)]
pub(crate) struct EpochGuard<'a> {
    epoch: Epoch,
    _shared: Option<ShardedReadGuard<'a>>,
    _exclusive: Option<ShardedWriteGuard<'a>>,
}

impl EpochLatch {
    /// Latches the epoch, shared.
    #[inline]
    pub(crate) fn shared(&self) -> EpochGuard<'_> {
        let shared = Some(self.latch.read());
        EpochGuard { epoch: self.newest(), _shared: shared, _exclusive: None }
    }

    /// Latches the epoch exclusively, so that no other thread changes a page.
    pub(crate) fn exclusive(&self) -> EpochGuard<'_> {
        let exclusive = Some(self.latch.write());
        EpochGuard { epoch: self.newest(), _shared: None, _exclusive: exclusive }
    }

    /// Returns the newest epoch without latching it: it may end at any moment.
    fn newest(&self) -> Epoch {
        Epoch(self.newest.load(Ordering::Relaxed))
    }
}

impl EpochGuard<'_> {
    /// The current epoch.
    #[inline]
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }
}

const _: () = assert!(size_of::<TableChange>() as u64 == memory::CHANGE_BYTES);

/// A chunk of a page table as a bulk load has written it. None of the chunk's pages was in use before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkImage {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) chunk: usize,
    pub(crate) address: ExtentAddress,
}

/// The logged changes of page tables of one epoch.
#[derive(Debug, Default)]
struct EpochChanges {
    /// Changes that no summary contains yet.
    fresh: Vec<TableChange>,
    /// Changes that a summary contains, kept for folding.
    summarised: Vec<TableChange>,
    /// The addresses of the epoch's summaries.
    summaries: Vec<ExtentAddress>,
    /// Chunks of base images written by bulk loads, each with the sequence number of the next change. Earlier changes
    /// of the chunk's pages are superseded.
    images: Vec<(ChunkImage, u32)>,
    next_sequence: u32,
}

impl EpochChanges {
    fn push(&mut self, keyspace: KeyspaceId, page: PageId, address: ExtentAddress) {
        let sequence = self.next_sequence;
        assert!(self.fresh.last().is_none_or(|last| last.sequence < sequence), "changes are out of order");
        assert!(page != PageId::NONE || address.is_none(), "page 0 is logged at {address:?}");
        self.next_sequence += 1;
        memory::reserve(&mut self.fresh, 1);
        self.fresh.push(TableChange { keyspace, page, address, sequence });
    }
}

/// Bytes and requests read and written so far.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
}

/// The data file of a database. See the module.
#[derive(Debug)]
pub(crate) struct Space {
    path: PathBuf,
    file: FileRef,
    pub(crate) segments: Segments,
    pub(crate) epoch_latch: EpochLatch,
    /// Indexed by the parity of the epoch.
    appenders: [Mutex<Appender>; 2],
    changes: [Mutex<EpochChanges>; 2],
    /// The lengths of `changes`, readable without the locks.
    change_counts: [CachePadded<AtomicU64>; 2],
    /// Encoders not in use.
    encoders: Mutex<Vec<Encoder>>,
    jobs: Mutex<Jobs>,
    job_done: Condvar,
    values: Mutex<ValueSegment>,
    /// Appender for extents that the reclaimer moves, and the epoch in which they are moved.
    mover: Mutex<(Appender, Epoch)>,
    /// Bytes have been written to the file since the last sync began.
    unsynced: AtomicBool,
    syncing: Mutex<()>,
    page_spaces: RwLock<HashMap<KeyspaceId, Arc<PageSpace>>>,
    /// Bytes of the catalogue's entries for keyspaces, not counting the lists of their tables' chunks, and bytes of its
    /// list of summaries.
    keyspace_bytes: AtomicU64,
    summary_list_bytes: AtomicU64,
    failure: OnceLock<Stopped>,
    /// The database was closed, possibly after a failure. Nothing more is read.
    is_closed: AtomicBool,
    pub(crate) traffic: Traffic,
    reservations: Reservations,
    /// The memory that the database may use.
    budget: Arc<Budget>,
    /// Records this opening before the first write; `None` if that is not needed.
    superblocks: Option<Arc<Superblocks>>,
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<WriteJob>,
    /// Ranges of the file that are being written.
    running: Vec<std::ops::Range<u64>>,
    /// Ranges that could not be written, so their content on disk is wrong.
    failed: Vec<std::ops::Range<u64>>,
}

impl Jobs {
    /// Returns `true` if half of the buffers or more are waiting or being written. The others are being filled.
    fn is_near_full(&self) -> bool {
        self.waiting.len() + self.running.len() >= WRITE_BUFFER_COUNT / 2
    }

    /// Returns `true` if writing the extent at this address failed.
    fn have_failed(&self, address: ExtentAddress) -> bool {
        self.failed.iter().any(|range| range.contains(&address.start()))
    }

    /// Returns `true` if the extent at this address waits to be written or is being written.
    fn contain(&self, address: ExtentAddress) -> bool {
        let waiting = self.waiting.iter().map(WriteJob::range);
        waiting.chain(self.running.iter().cloned()).any(|range| range.contains(&address.start()))
    }
}

/// The segment that chunks of large values are written to.
#[derive(Debug, Default)]
struct ValueSegment {
    open: Option<(crate::format::SegmentId, u64)>,
}

impl Space {
    pub(crate) fn new(
        path: &Path,
        file: FileRef,
        database: DatabaseId,
        segment_bytes: u64,
        segment_count: u32,
        epoch: Epoch,
        budget: Arc<Budget>,
    ) -> Space {
        let buffers = Arc::new(WriteBuffers::new(budget.write_buffer_bytes().min(segment_bytes as usize)));
        let appender = || Appender::new(Arc::clone(&buffers));
        Space {
            path: path.to_path_buf(),
            segments: Segments::new(
                Arc::clone(&file),
                database,
                segment_bytes,
                segment_count,
                SegmentUse::first_of(epoch.incarnation()),
            ),
            file,
            epoch_latch: EpochLatch { latch: ShardedLock::default(), newest: AtomicU64::new(epoch.0) },
            appenders: [Mutex::new(appender()), Mutex::new(appender())],
            changes: Default::default(),
            change_counts: Default::default(),
            encoders: Mutex::default(),
            jobs: Mutex::default(),
            job_done: Condvar::new(),
            values: Mutex::default(),
            mover: Mutex::new((appender(), Epoch(0))),
            unsynced: AtomicBool::new(false),
            syncing: Mutex::default(),
            page_spaces: RwLock::default(),
            keyspace_bytes: AtomicU64::new(0),
            summary_list_bytes: AtomicU64::new(0),
            failure: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            traffic: Traffic::default(),
            reservations: Reservations::new(),
            budget,
            superblocks: None,
        }
    }

    /// Sets the superblocks of this data file. They record the opening when the first segment is taken.
    pub(crate) fn with_superblocks(self, superblocks: Arc<Superblocks>) -> Space {
        Space { superblocks: Some(superblocks), ..self }
    }

    /// Returns the counters of bytes in memory that the next checkpoint has to write.
    pub(crate) fn debt(&self) -> Arc<CheckpointDebt> {
        Arc::clone(&self.reservations.debt)
    }

    pub(crate) fn file(&self) -> &FileRef {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    // ── the epoch
    // ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Latches the epoch exclusively, calls `at_start` with the epoch that ends, and begins the next epoch.
    pub(crate) fn begin_checkpoint<T>(&self, at_start: impl FnOnce(Epoch) -> T) -> (Epoch, T) {
        let _hold = self.epoch_latch.latch.write();
        let ended = self.epoch_latch.newest();
        assert!(ended.next().incarnation() == ended.incarnation(), "an opening has used up its epochs: {ended}");
        assert!(ended < ended.next(), "epochs do not ascend");
        let value = at_start(ended);
        assert!(ended == self.epoch_latch.newest(), "an epoch began beside its latch");
        self.epoch_latch.newest.store(ended.next().0, Ordering::Relaxed);
        let mut changes = self.changes(ended.next()).lock();
        assert!(changes.fresh.is_empty(), "the epoch before last has changes in no summary");
        assert!(changes.summaries.is_empty(), "the epoch before last has summaries in no checkpoint");
        assert!(changes.images.is_empty(), "the epoch before last has chunks in no checkpoint");
        changes.next_sequence = 0;
        drop(changes);
        assert!(self.epoch_change_count() == 0, "the epoch before last has changes that no checkpoint took");
        (ended, value)
    }

    // ── keyspaces ──────────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn page_space(&self, id: KeyspaceId) -> Option<Arc<PageSpace>> {
        self.page_spaces.read().get(&id).cloned()
    }

    /// Describes a page for an error. A dropped keyspace is named by its number.
    pub(crate) fn quoted_page(&self, page_key: PageKey) -> String {
        match self.page_space(page_key.keyspace) {
            Some(pages) => {
                debug_assert!(pages.id == page_key.keyspace, "a page is told to be another keyspace's");
                pages.quoted_page(page_key.page)
            }
            None => format!("page {} of keyspace {}, which was dropped", page_key.page, page_key.keyspace),
        }
    }

    pub(crate) fn page_spaces(&self) -> Vec<Arc<PageSpace>> {
        self.page_spaces.read().values().cloned().collect()
    }

    pub(crate) fn add_page_space(&self, pages: Arc<PageSpace>) {
        assert!(pages.name.len() <= usize::from(u16::MAX), "the catalogue has no room for a name");
        self.keyspace_bytes.fetch_add(catalogue::keyspace_bytes(pages.name.len()), Ordering::Relaxed);
        let replaced = self.page_spaces.write().insert(pages.id, pages);
        assert!(replaced.is_none(), "a keyspace is added twice: {replaced:?}");
    }

    /// Forgets a dropped keyspace and releases the addresses of all its pages. Its frames must be empty, and the epoch
    /// latch held exclusively.
    pub(crate) fn drop_page_space(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) {
        assert!(pages.dropped.load(Ordering::Acquire), "a keyspace in use is dropped");
        self.record(epoch_guard.epoch(), pages.id, PageId::NONE, ExtentAddress::NONE);
        let removed = self.page_spaces.write().remove(&pages.id);
        assert!(removed.is_some(), "keyspace {} is dropped twice", pages.id);
        let keyspace_bytes = catalogue::keyspace_bytes(pages.name.len());
        let counted_bytes = self.keyspace_bytes.fetch_sub(keyspace_bytes, Ordering::Relaxed);
        assert!(counted_bytes >= keyspace_bytes, "the catalogue's bytes do not count keyspace {}", pages.id);
        // A bulk load frees its own pages.
        let is_owned = |entry: &PageEntry| !matches!(entry, PageEntry::Unattached(_) | PageEntry::Reserved);
        let owned = pages.table.iter().filter(|(_, entry)| is_owned(entry));
        let numbers: Vec<PageId> = owned.map(|(page, _)| page).collect();
        for page in numbers {
            match pages.table.free(page) {
                PageEntry::OnDisk(address) | PageEntry::Reading(address) => {
                    self.segments.release(address, epoch_guard.epoch());
                }
                entry => assert!(
                    !matches!(entry, PageEntry::Leaf(_) | PageEntry::Immutable(_)),
                    "page {page} of a keyspace that is dropped is in a frame: {entry:?}"
                ),
            }
        }
    }

    /// Bytes of the page tables of all keyspaces.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.page_spaces.read().values().map(|pages| pages.table.memory_bytes()).sum()
    }

    /// Fails if the budget has no memory for page tables to grow by this many bytes.
    pub(crate) fn check_table_growth(&self, more_bytes: u64) -> Result<()> {
        self.check_budget(self.budget.needed_for_growth(more_bytes))
    }

    /// Fails if the budget has no memory for page tables of this size. Called before they are read.
    fn check_opened_tables(&self, bytes: u64) -> Result<()> {
        self.check_budget(self.budget.needed_for_opening(bytes))
    }

    fn check_budget(&self, needed: Option<u64>) -> Result<()> {
        let given_bytes = self.budget.total_bytes();
        needed.map_or(Ok(()), |minimum_bytes| Err(Error::BudgetTooSmall { given_bytes, minimum_bytes }))
    }

    // ── extents ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Encodes `page` and appends it to the epoch's open segment. The bytes reach the disk with a later
    /// [`run_jobs`](Self::run_jobs), which passes `frame` to its callback.
    pub(crate) fn append(
        &self,
        epoch: Epoch,
        page_key: PageKey,
        kind: Kind,
        page: &[u8],
        frame: Option<FrameIndex>,
    ) -> Result<ExtentAddress> {
        self.check_failure()?;
        let mut encoder = self.encoders.lock().pop().unwrap_or_default();
        let address = self.append_encoded(epoch, encoder.encode(page, page_key, kind), frame);
        let mut encoders = self.encoders.lock();
        if encoders.len() < ENCODER_COUNT && encoder.room_bytes() <= ENCODER_BYTES_MAX {
            encoders.push(encoder);
        }
        address
    }

    pub(crate) fn append_encoded(
        &self,
        epoch: Epoch,
        extent: &[u8],
        frame: Option<FrameIndex>,
    ) -> Result<ExtentAddress> {
        self.assert_open(epoch);
        let mut jobs = Vec::new();
        // Enqueue the buffers before unlocking the appender. So at any moment an extent is either in the appender or in
        // a job that threads waiting for it can find.
        let mut appender = self.appender(epoch).lock();
        let take = || self.take_segment(Purpose::Pages);
        let address = appender.append(&self.segments, epoch, extent, frame, &mut jobs, take);
        self.enqueue(jobs);
        drop(appender);
        address
    }

    #[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
    fn growth_error(&self, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::StorageFull {
            Error::DiskFull { path: self.path.clone(), needed_bytes: self.segments.segment_bytes() }
        } else {
            self.fail(&format!("growing {} failed: {error}", self.path.display()))
        }
    }

    /// Appends an extent that is being moved. When packing, it goes to the epoch's own segment. Nothing refers to its
    /// new address until [`flush_moved`](Self::flush_moved) was called and the jobs have run.
    pub(crate) fn append_moved(
        &self,
        epoch: Epoch,
        extent: &[u8],
        moves: &SpaceReservation<'_>,
    ) -> Result<ExtentAddress> {
        self.check_failure()?;
        if moves.purpose() == Purpose::Pack {
            return self.append_encoded(epoch, extent, None);
        }
        assert!(moves.purpose() == Purpose::Move, "an extent is moved into space for {:?}", moves.purpose());
        let mut jobs = Vec::new();
        let (mover, mover_epoch) = &mut *self.mover.lock();
        if *mover_epoch != epoch {
            assert!(*mover_epoch < epoch, "extents are moved in an epoch that has ended");
            mover.seal(&self.segments, &mut jobs);
            *mover_epoch = epoch;
        }
        let take = || self.take_segment(moves.purpose());
        let address = mover.append(&self.segments, epoch, extent, None, &mut jobs, take);
        self.enqueue(jobs);
        address
    }

    /// Enqueues the buffers with moved extents.
    pub(crate) fn flush_moved(&self, moves: &SpaceReservation<'_>) {
        let mut jobs = Vec::new();
        let mut mover = self.mover.lock();
        mover.0.flush(&mut jobs);
        self.enqueue(jobs);
        drop(mover);
        if moves.purpose() == Purpose::Pack {
            for appender in &self.appenders {
                let mut jobs = Vec::new();
                let mut appender = appender.lock();
                appender.flush(&mut jobs);
                self.enqueue(jobs);
            }
        }
    }

    /// Ends the segment that extents are moved to, after the last of them.
    pub(crate) fn seal_moved(&self) {
        let mut jobs = Vec::new();
        let mut mover = self.mover.lock();
        mover.0.seal(&self.segments, &mut jobs);
        self.enqueue(jobs);
    }

    /// Returns the bytes left in the open segment of the current epoch's pages.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.appender(self.epoch_latch.newest()).lock().room_bytes()
    }

    /// Takes a segment for the rest of this epoch's writes, if it has none. Called before a checkpoint begins: on a
    /// full disk, pages of the next epoch that are evicted during the checkpoint might take the last segment.
    pub(crate) fn begin_segment(&self) -> Result<()> {
        let epoch_guard = self.epoch_latch.shared();
        let take = || self.take_segment(Purpose::Pages);
        self.appender(epoch_guard.epoch()).lock().begin(&self.segments, epoch_guard.epoch(), take)
    }

    /// Enqueues the buffer of the epoch's appender.
    pub(crate) fn flush(&self, epoch: Epoch) {
        let mut jobs = Vec::new();
        let mut appender = self.appender(epoch).lock();
        appender.flush(&mut jobs);
        self.enqueue(jobs);
    }

    /// Asserts invariant 3: the epoch is the current one, or the one whose checkpoint is being made.
    fn assert_open(&self, epoch: Epoch) {
        let newest = self.epoch_latch.newest();
        assert!(epoch == newest || epoch.next() == newest, "{epoch} has ended, {newest} is current");
    }

    fn appender(&self, epoch: Epoch) -> &Mutex<Appender> {
        &self.appenders[(epoch.0 & 1) as usize]
    }

    fn changes(&self, epoch: Epoch) -> &Mutex<EpochChanges> {
        &self.changes[(epoch.0 & 1) as usize]
    }

    fn change_count_of(&self, epoch: Epoch) -> &AtomicU64 {
        &self.change_counts[(epoch.0 & 1) as usize]
    }

    fn enqueue(&self, jobs: Vec<WriteJob>) {
        if !jobs.is_empty() {
            let is_whole = |job: &WriteJob| job.bytes().len().is_multiple_of(crate::format::BLOCK_BYTES);
            assert!(jobs.iter().all(is_whole), "a buffer ends within a block");
            self.jobs.lock().waiting.extend(jobs);
        }
    }

    /// Returns `true` if the buffers that wait or are being written use up their part of the budget.
    pub(crate) fn is_near_full(&self) -> bool {
        self.jobs.lock().is_near_full()
    }

    /// Returns the number of buffers that wait or are being written.
    #[cfg(test)]
    pub(crate) fn write_count(&self) -> usize {
        let jobs = self.jobs.lock();
        jobs.waiting.len() + jobs.running.len()
    }

    /// Waits until [`is_near_full`](Self::is_near_full) returns `false`, writing buffers that wait.
    pub(crate) fn wait_for_room(&self, written: impl Fn(&[FrameIndex])) -> Result<()> {
        while self.is_near_full() {
            self.run_jobs(&written)?;
            let mut jobs = self.jobs.lock();
            if jobs.is_near_full() && jobs.waiting.is_empty() {
                self.job_done.wait(&mut jobs);
            }
        }
        Ok(())
    }

    /// Writes buffers until none waits, and calls `written` with the frames of each. When it returns, other threads may
    /// still be writing.
    pub(crate) fn run_jobs(&self, written: impl Fn(&[FrameIndex])) -> Result<()> {
        loop {
            let job = {
                let mut jobs = self.jobs.lock();
                let Some(job) = jobs.waiting.pop_front() else { return self.check_failure() };
                let range = job.range();
                let overlaps = |other: &std::ops::Range<u64>| other.start < range.end && range.start < other.end;
                debug_assert!(!jobs.running.iter().any(overlaps), "two jobs write over each other at {range:?}");
                jobs.running.push(range);
                job
            };
            let result = self.write(job.bytes(), job.offset);
            if result.is_ok() {
                written(&job.frames);
            }
            {
                let mut jobs = self.jobs.lock();
                let running_count = jobs.running.len();
                jobs.running.retain(|range| range.start != job.offset);
                assert!(jobs.running.len() + 1 == running_count, "two jobs write at {}", job.offset);
                if result.is_err() {
                    jobs.failed.push(job.range());
                }
            }
            self.job_done.notify_all();
            result?;
        }
    }

    /// Waits until every buffer enqueued so far is written.
    pub(crate) fn wait_for_jobs(&self, written: impl Fn(&[FrameIndex])) -> Result<()> {
        loop {
            self.run_jobs(&written)?;
            let mut jobs = self.jobs.lock();
            if jobs.waiting.is_empty() {
                if jobs.running.is_empty() {
                    return self.check_failure();
                }
                self.job_done.wait(&mut jobs);
            }
        }
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_failure()?;
        let segment_bytes = self.segments.segment_bytes();
        let last = offset + bytes.len() as u64 - 1;
        assert!(offset >= segment_bytes, "a write at {offset} hits the superblocks");
        assert!(offset.is_multiple_of(crate::format::BLOCK_BYTES as u64), "a write begins within a block: {offset}");
        assert!(offset / segment_bytes == last / segment_bytes, "a write from {offset} to {last} hits two segments");
        self.traffic.writes.fetch_add(1, Ordering::Relaxed);
        self.traffic.write_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let written = self.file.write_at(bytes, offset, Persist::Later);
        // Set after the write: a sync that began before the write ended may not include it.
        self.unsynced.store(true, Ordering::Release);
        written.map_err(|error| self.fail(&format!("writing {} failed: {error}", self.path.display())))
    }

    /// Records this opening in the superblocks, before the first write to the file.
    fn begin_writing(&self) -> Result<()> {
        let Some(superblocks) = &self.superblocks else { return Ok(()) };
        superblocks.begin_writing().map_err(|error| self.fail(&format!("recording this opening failed: {error}")))
    }

    /// Makes everything written so far durable. A failure is final.
    pub(crate) fn sync(&self) -> Result<()> {
        self.check_failure()?;
        // Take the lock first: a caller that finds nothing to sync must not return before the sync that covers its
        // bytes has ended.
        let _alone = self.syncing.lock();
        if !self.unsynced.swap(false, Ordering::AcqRel) {
            return self.check_failure();
        }
        self.file.sync_data().map_err(|error| self.fail(&format!("syncing {} failed: {error}", self.path.display())))
    }

    /// Fills `buffer` from the file. Offset and length must be multiples of the file's alignment.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.count_read(buffer.len());
        self.file.read_at(buffer, offset)
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        self.traffic.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Verifies an extent read from an address, and that it belongs there.
    pub(crate) fn verify(&self, address: ExtentAddress, bytes: &[u8]) -> std::result::Result<Header, ExtentError> {
        let header = extent::verify(bytes)?;
        let mut segment_use = self.segments.segment_use(self.segments.segment_of(address));
        if segment_use == SegmentUse::UNKNOWN {
            segment_use = header.origin.segment_use;
        }
        header.check(self.segments.origin(segment_use))?;
        // The caller's address may date from an earlier use of the segment.
        if !address.is_of(segment_use) {
            return Err(ExtentError::Use(segment_use));
        }
        Ok(header)
    }

    /// Returns the aligned range of the file that covers an extent: its start, its length, and the extent's offset in
    /// it.
    pub(crate) fn cover(&self, address: ExtentAddress) -> (u64, usize, usize) {
        let alignment = self.file.alignment() as u64;
        assert!(!address.is_none(), "no extent to be read");
        let start = address.start() / alignment * alignment;
        let end = (address.start() + address.length()).next_multiple_of(alignment);
        (start, (end - start) as usize, (address.start() - start) as usize)
    }

    // ── logged changes ─────────────────────────────────────────────────────────────────────────────────────────────

    /// Logs that a page's entry changed in `epoch`. The caller holds the epoch latch. It also holds the page's latch,
    /// unless the page is not published yet, so the changes of each page are logged in order.
    pub(crate) fn record(&self, epoch: Epoch, keyspace: KeyspaceId, page: PageId, address: ExtentAddress) {
        self.assert_open(epoch);
        let mut changes = self.changes(epoch).lock();
        changes.push(keyspace, page, address);
        // Count under the lock, so that a thread that estimates the next checkpoint's writes misses no change.
        self.change_count_of(epoch).fetch_add(1, Ordering::Relaxed);
    }

    /// Logs that a bulk load's pages in a chunk were attached. No page of the chunk was in use before.
    pub(crate) fn record_image(&self, epoch_guard: &EpochGuard<'_>, image: ChunkImage) {
        assert!(!image.address.is_none(), "a chunk of pages is nowhere");
        let mut changes = self.changes(epoch_guard.epoch()).lock();
        let next_sequence = changes.next_sequence;
        memory::reserve(&mut changes.images, 1);
        changes.images.push((image, next_sequence));
    }

    /// Calls `change`, and logs the change like [`record`](Self::record) if it returns `true`. No later change of the
    /// page is logged before this one.
    pub(crate) fn record_change(
        &self,
        epoch_guard: &EpochGuard<'_>,
        keyspace: KeyspaceId,
        page: PageId,
        address: ExtentAddress,
        change: impl FnOnce() -> bool,
    ) -> bool {
        let mut changes = self.changes(epoch_guard.epoch()).lock();
        let changed = change();
        if changed {
            changes.push(keyspace, page, address);
            self.change_count_of(epoch_guard.epoch()).fetch_add(1, Ordering::Relaxed);
        }
        changed
    }

    /// Logs that a page is free. Must precede reusing its number, because the next owner's change has to be the later
    /// one. If the keyspace was dropped, a single change covers all its pages, and none is logged here: on a full disk
    /// there might be no space for one change per page.
    pub(crate) fn record_free(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace, page: PageId) {
        assert!(page != PageId::NONE, "a free page 0 would drop the keyspace");
        if !pages.dropped.load(Ordering::Acquire) {
            self.record(epoch_guard.epoch(), pages.id, page, ExtentAddress::NONE);
        }
    }

    /// Number of logged changes of both epochs in memory.
    pub(crate) fn change_count(&self) -> usize {
        self.change_counts.iter().map(|count| count.load(Ordering::Relaxed) as usize).sum()
    }

    /// Number of page-table changes of the newest epoch: those logged, and one for each dirty page, which is logged
    /// when the page is written. Zero right after a checkpoint has begun. Approximate: a page that is being written may
    /// count twice or not at all.
    pub(crate) fn epoch_change_count(&self) -> u64 {
        loop {
            let newest = self.epoch_latch.newest();
            let logged = self.change_count_of(newest).load(Ordering::Acquire);
            let dirty = self.reservations.debt.dirty_pages(newest);
            // Both counts must be of the same epoch: after two checkpoints have begun, the counters belong to another
            // epoch.
            if self.epoch_latch.newest() == newest {
                return logged + dirty;
            }
        }
    }

    /// Pages of large values that no reader needs and that later epochs free: the newest has no memory for the changes.
    pub(crate) fn unfreed_pages(&self) -> u64 {
        self.reservations.debt.unfreed_pages.load(Ordering::Relaxed)
    }

    /// Returns `true` if the newest epoch has at most `changes_max` changes of page tables, and at most `unfreed_max`
    /// pages wait to be freed in later ones.
    pub(crate) fn has_room_for_changes(&self, changes_max: u64, unfreed_max: u64) -> bool {
        debug_assert!(changes_max > 0, "commits would wait for an epoch without changes");
        debug_assert!(changes_max <= unfreed_max, "{unfreed_max} pages wait, an epoch has {changes_max} changes");
        self.epoch_change_count() <= changes_max && self.unfreed_pages() <= unfreed_max
    }

    /// Bytes of memory that the logged changes take.
    pub(crate) fn change_bytes(&self) -> u64 {
        let capacity = |changes: &Mutex<EpochChanges>| {
            let changes = changes.lock();
            changes.fresh.capacity() + changes.summarised.capacity()
        };
        (self.changes.iter().map(capacity).sum::<usize>() * size_of::<TableChange>()) as u64
    }

    /// Returns `true` if an appended extent can be read back. If it is still in a buffer, enqueues the buffer.
    pub(crate) fn is_written(&self, address: ExtentAddress) -> bool {
        self.hand_on(address);
        let jobs = self.jobs.lock();
        !jobs.contain(address) && !jobs.have_failed(address)
    }

    fn hand_on(&self, address: ExtentAddress) {
        for appender in &self.appenders {
            let mut appender = appender.lock();
            if appender.holds(address) {
                let mut jobs = Vec::new();
                appender.flush(&mut jobs);
                self.enqueue(jobs);
            }
        }
    }

    /// Waits until an appended extent can be read back, enqueuing and writing its buffer if necessary.
    pub(crate) fn ensure_written(&self, address: ExtentAddress, written: impl Fn(&[FrameIndex])) -> Result<()> {
        self.hand_on(address);
        loop {
            let mut jobs = self.jobs.lock();
            if jobs.have_failed(address) {
                return self.check_failure();
            }
            if !jobs.contain(address) {
                return Ok(());
            }
            if jobs.waiting.is_empty() {
                self.job_done.wait(&mut jobs);
            } else {
                drop(jobs);
                self.run_jobs(&written)?;
            }
        }
    }

    // ── large values ───────────────────────────────────────────────────────────────────────────────────────────────

    /// Returns the maximum size of a large value's extent, including its header and the value's identity: 256 KiB, or
    /// less if segments are small.
    pub(crate) fn value_chunk_bytes(&self) -> usize {
        (256usize << 10).min(self.segments.segment_bytes() as usize / 4)
    }

    /// Writes a chunk of a large value immediately. Returns its address, which no table has yet.
    pub(crate) fn write_value_chunk(
        &self,
        extent: &mut crate::io::AlignedBuffer,
        bytes: usize,
    ) -> Result<ExtentAddress> {
        let padded = bytes.next_multiple_of(crate::format::BLOCK_BYTES);
        assert!(padded as u64 <= self.segments.segment_bytes(), "a chunk of {bytes} bytes is larger than a segment");
        extent.set_len(padded);
        extent[bytes..].fill(0);
        let segment_bytes = self.segments.segment_bytes();
        let (address, segment_use) = {
            let mut values = self.values.lock();
            if let Some((segment, position)) = values.open
                && position + padded as u64 > self.segments.start(segment) + segment_bytes
            {
                values.open = None;
                self.segments.close(segment);
            }
            let (segment, position) = match values.open {
                Some(open) => open,
                None => {
                    let segment = self.take_segment(Purpose::Value)?;
                    (segment, self.segments.start(segment))
                }
            };
            values.open = Some((segment, position + padded as u64));
            let segment_use = self.segments.segment_use(segment);
            assert!(segment_use != SegmentUse::UNKNOWN, "{segment} is written to in no use of it");
            let address = ExtentAddress::new(position, padded as u64, segment_use);
            assert!(self.segments.segment_of(address) == segment, "a chunk lies outside of its segment");
            self.segments.retain(address);
            (address, segment_use)
        };
        extent::seal(&mut extent[..bytes], self.segments.origin(segment_use));
        debug_assert!(self.verify(address, extent).is_ok(), "a chunk of a value can't be read as it was written");
        self.write(extent, address.start())?;
        Ok(address)
    }

    /// Ends the open segment of large values, so that it can be emptied and reused.
    pub(crate) fn seal_values(&self) {
        if let Some((segment, _)) = self.values.lock().open.take() {
            self.segments.close(segment);
        }
    }

    // ── failure ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Records that a write or sync failed, after which nothing more is written. Returns the error for the caller.
    pub(crate) fn fail(&self, reason: &str) -> Error {
        debug_assert!(!reason.is_empty(), "a failure has no reason");
        if self.failure.set(Stopped::Failed(reason.into())).is_ok() {
            log::error!("{reason}; the database accepts no more commits until it is reopened");
        }
        self.failure.get().expect("set above").clone().into_error()
    }

    /// Like [`fail`](Self::fail), for callers that report no error.
    pub(crate) fn fail_quietly(&self, reason: &str) {
        let _ = self.failure.set(Stopped::Failed(reason.into()));
    }

    /// Stops all writing because the database is closed. A failure recorded before remains.
    pub(crate) fn close(&self) {
        let _ = self.failure.set(Stopped::Closed);
        let was_closed = self.is_closed.swap(true, Ordering::AcqRel);
        assert!(!was_closed, "a database is closed twice");
        assert!(self.failure.get().is_some(), "a closed database goes on writing");
    }

    pub(crate) fn failure(&self) -> Option<Stopped> {
        self.failure.get().cloned()
    }

    /// Fails if the database was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Returns the error to report for a failed read. If the database has been closed, that is the reason: the file may
    /// belong to another opening by now.
    pub(crate) fn read_error(&self, error: Error) -> Error {
        self.check_open().err().unwrap_or(error)
    }

    pub(crate) fn check_failure(&self) -> Result<()> {
        match self.failure.get() {
            Some(stopped) => Err(stopped.clone().into_error()),
            None => Ok(()),
        }
    }

    /// Returns an error that names a damaged extent of the data file.
    pub(crate) fn corrupted(&self, what: &str, address: ExtentAddress, reason: impl std::fmt::Display) -> Error {
        Error::corrupted(&self.path, format!("{what} at {address:?}"), reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::FaultyBackend;
    use crate::io::{Backend, OpenOptions};

    /// A write of the next epoch can't take the last segment, because the checkpoint in progress has taken it already.
    #[test]
    fn a_checkpoint_has_its_segment_before_it_begins() {
        let backend = FaultyBackend::new(crate::io::in_memory());
        let path = Path::new("data");
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = backend.open(path, options).unwrap();
        let space = Space::new(path, file, DatabaseId(77), 64 << 10, 1, Epoch(1), Arc::new(Budget::new(8 << 20, 1)));
        let page_key = PageKey { keyspace: KeyspaceId(1), page: PageId(1) };
        let extent = Encoder::default().encode(&[1; 100], page_key, Kind::Leaf).to_vec();
        space.segments.ensure_free(1).unwrap();
        let usage = space.segments.usage();
        backend.set_space_limit(Some(backend.space_used()));
        while space.segments.usage().free_count > 1 {
            space.segments.take().unwrap();
        }
        space.begin_segment().unwrap();
        let (ended, ()) = space.begin_checkpoint(|_| ());
        let refused = space.append_encoded(ended.next(), &extent, None);
        assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
        space.append_encoded(ended, &extent, None).expect("the segment that was begun");
        assert_eq!(space.segments.usage().segment_count, usage.segment_count);
    }
}
