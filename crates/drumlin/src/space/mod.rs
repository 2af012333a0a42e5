//! The data file: segments, extents, page tables, checkpoints.
//!
//! # Invariants
//! 1. *No overwriting.* A page goes to a new place each time it is written; its old place is released in the epoch of the
//!    new image and serves again only after the checkpoint that ends that epoch is durable.
//! 2. *The guard.* Every change of a page or of a page table happens inside the shared guard; a checkpoint takes it alone
//!    to fix its cut. Nobody waits for I/O inside it.
//! 3. *Images belong to the epoch of their change.* A page last changed in epoch e is appended to e's appender, whenever
//!    that happens. Two epochs exist at most: the current one, and the one whose checkpoint is being made.
//! 4. *Every change of a word is an entry.* The table at a cut is the base image plus all entries up to the cut's epoch, in
//!    the order of (epoch, sequence); the words themselves, which run ahead, are never written.
//!
//! Lock order: guard, frame latch, appender, segments; the job queue and the entries are leaves.

pub(crate) mod appender;
pub(crate) mod checkpoint;
pub(crate) mod segments;
pub(crate) mod superblocks;
pub(crate) mod table;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sync::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::collections::HashMap;
use crate::error::{Error, Result};
use crate::format::catalogue;
use crate::format::extent::{Flaw, Header, Identity, Kind};
use crate::format::summary::Entry;
use crate::format::{Epoch, KeyspaceId, PageId, Place, SegmentUse, extent};
use crate::io::{FileRef, Persist};
use crate::memory::{Budget, WRITE_BUFFER_COUNT};
use appender::{Appender, WriteJob};
use segments::Segments;
pub(crate) use table::{FrameIndex, PageTable, Word};

/// The pages of one keyspace.
#[derive(Debug)]
pub(crate) struct PageSpace {
    pub(crate) id: KeyspaceId,
    pub(crate) page_bytes: usize,
    /// Bytes of the keyspace's name, which the catalogue repeats.
    name_bytes: usize,
    pub(crate) table: PageTable,
    /// Set when the keyspace is dropped: its pages are being given back.
    pub(crate) dropped: AtomicBool,
}

impl PageSpace {
    pub(crate) fn new(id: KeyspaceId, page_bytes: usize, name_bytes: usize) -> PageSpace {
        PageSpace { id, page_bytes, name_bytes, table: PageTable::new(), dropped: AtomicBool::new(false) }
    }
}

/// Being inside the guard: the epoch does not change meanwhile. Hold it briefly, and wait for nothing inside.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    epoch: Epoch,
    _held: Held<'a>,
}

#[derive(Debug)]
#[allow(dead_code, reason = "held, not looked at")]
enum Held<'a> {
    Shared(RwLockReadGuard<'a, Epoch>),
    Alone(RwLockWriteGuard<'a, Epoch>),
}

impl Guard<'_> {
    /// The current epoch.
    #[inline]
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// The entries of one epoch.
#[derive(Debug, Default)]
struct Entries {
    /// In no summary yet.
    fresh: Vec<Entry>,
    /// In a summary already; kept for folding.
    summarised: Vec<Entry>,
    /// Where the epoch's summaries are.
    summaries: Vec<Place>,
    next_sequence: u32,
}

/// What has been read and written, in bytes and requests.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Space {
    path: PathBuf,
    file: FileRef,
    pub(crate) segments: Segments,
    guard: RwLock<Epoch>,
    /// By the parity of the epoch.
    appenders: [Mutex<Appender>; 2],
    entries: [Mutex<Entries>; 2],
    jobs: Mutex<Jobs>,
    job_done: Condvar,
    values: Mutex<ValueSegment>,
    /// Takes extents that the cleaner moves, and the epoch in which it does.
    mover: Mutex<(Appender, Epoch)>,
    /// Written to the file by somebody and not brought to the medium yet.
    unsynced: AtomicBool,
    syncing: Mutex<()>,
    page_spaces: RwLock<HashMap<KeyspaceId, Arc<PageSpace>>>,
    /// What the catalogue says of keyspaces, but for their tables' chunks, and of summaries: bytes.
    keyspace_bytes: AtomicU64,
    summary_list_bytes: AtomicU64,
    failure: OnceLock<Arc<str>>,
    pub(crate) traffic: Traffic,
    /// Segments that the dirty pages and the next checkpoint may need: large values and the cleaner leave them alone.
    pub(crate) reserve: AtomicU32,
    /// What of them is for tables, rounded down.
    pub(crate) table_segments: AtomicU32,
    /// Every segment counts: what is moved goes into the checkpoint's.
    pub(crate) tight: AtomicBool,
    /// And what of it the page tables took when they were last measured.
    budget: Arc<Budget>,
    measured_table_bytes: AtomicU64,
}

/// Segments kept free besides what dirty pages and the next checkpoint need, so that rows can be removed, and segments
/// emptied, on a full disk: two for the cleaner and the checkpoint behind it, which frees its victims, two for what commits
/// at once add up to, and two for the catalogue and the table of segments, which every checkpoint writes.
const SPARE_SEGMENTS_MIN: u32 = 6;
/// And so many times what the tables may take: each checkpoint that frees nothing may write them anew, and so does the one
/// behind the emptying of segments, which has to gain more than that.
const SPARE_TABLES: u32 = 4;

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<WriteJob>,
    /// The ranges being written.
    running: Vec<std::ops::Range<u64>>,
    /// The ranges that could not be written: what lies there is not what should.
    failed: Vec<std::ops::Range<u64>>,
}

impl Jobs {
    /// The rest of the buffers are those that are being filled.
    fn is_crowded(&self) -> bool {
        self.waiting.len() + self.running.len() >= WRITE_BUFFER_COUNT / 2
    }

    /// Whether the place could not be written.
    fn have_failed(&self, place: Place) -> bool {
        self.failed.iter().any(|range| range.contains(&place.start()))
    }

    /// Whether the place is on its way to the disk.
    fn contain(&self, place: Place) -> bool {
        let waiting = self.waiting.iter().map(WriteJob::range);
        waiting.chain(self.running.iter().cloned()).any(|range| range.contains(&place.start()))
    }
}

/// The segment that chunks of large values are being put into.
#[derive(Debug, Default)]
struct ValueSegment {
    open: Option<(crate::format::SegmentId, u64)>,
}

impl Space {
    pub(crate) fn new(
        path: &Path,
        file: FileRef,
        database: u64,
        segment_bytes: u64,
        segment_count: u32,
        epoch: Epoch,
        budget: Arc<Budget>,
    ) -> Space {
        let appender = || Appender::new(budget.write_buffer_bytes());
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
            guard: RwLock::new(epoch),
            appenders: [Mutex::new(appender()), Mutex::new(appender())],
            entries: Default::default(),
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
            traffic: Traffic::default(),
            reserve: AtomicU32::new(0),
            table_segments: AtomicU32::new(0),
            tight: AtomicBool::new(false),
            budget,
            measured_table_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn file(&self) -> &FileRef {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    // ── the guard ──────────────────────────────────────────────────────────────────────────────────────────────────

    /// Enters the guard, shared.
    #[inline]
    pub(crate) fn enter(&self) -> Guard<'_> {
        let held = self.guard.read();
        Guard { epoch: *held, _held: Held::Shared(held) }
    }

    /// Enters the guard alone: nobody else changes a page meanwhile.
    pub(crate) fn enter_alone(&self) -> Guard<'_> {
        let held = self.guard.write();
        Guard { epoch: *held, _held: Held::Alone(held) }
    }

    /// Takes the guard alone, runs `at_cut` with the epoch that ends, and begins the next.
    pub(crate) fn cut<T>(&self, at_cut: impl FnOnce(Epoch) -> T) -> (Epoch, T) {
        let mut epoch = self.guard.write();
        let ended = *epoch;
        let value = at_cut(ended);
        *epoch = ended.next();
        let mut entries = self.entries(ended.next()).lock();
        assert!(entries.fresh.is_empty() && entries.summaries.is_empty(), "the epoch before last is settled");
        entries.next_sequence = 0;
        (ended, value)
    }

    // ── keyspaces ──────────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn page_space(&self, id: KeyspaceId) -> Option<Arc<PageSpace>> {
        self.page_spaces.read().get(&id).cloned()
    }

    pub(crate) fn page_spaces(&self) -> Vec<Arc<PageSpace>> {
        self.page_spaces.read().values().cloned().collect()
    }

    pub(crate) fn add_page_space(&self, pages: Arc<PageSpace>) {
        self.keyspace_bytes.fetch_add(catalogue::keyspace_bytes(pages.name_bytes), Ordering::Relaxed);
        self.page_spaces.write().insert(pages.id, pages);
    }

    /// Forgets a dropped keyspace and releases the places of all its pages. Alone in the guard; its frames are empty.
    pub(crate) fn drop_page_space(&self, guard: &Guard<'_>, pages: &PageSpace) {
        self.record(guard.epoch(), pages.id, PageId::NONE, Place::NONE);
        self.page_spaces.write().remove(&pages.id);
        self.keyspace_bytes.fetch_sub(catalogue::keyspace_bytes(pages.name_bytes), Ordering::Relaxed);
        let numbers: Vec<PageId> = pages.table.iter().map(|(page, _)| page).collect();
        for page in numbers {
            if let Word::Disk(place) | Word::Reading(place) = pages.table.free(page) {
                self.segments.release(place, guard.epoch());
            }
        }
    }

    /// Bytes of all page tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.page_spaces.read().values().map(|pages| pages.table.memory_bytes()).sum()
    }

    /// Measures the page tables, for [`check_tables`](Self::check_tables): bytes.
    pub(crate) fn measure_tables(&self) -> u64 {
        let bytes = self.table_bytes();
        self.measured_table_bytes.store(bytes, Ordering::Relaxed);
        bytes
    }

    /// Page tables are never evicted: where they have come to half of the budget, nothing is added any more, so that the
    /// rest can work, and the database can be opened again with the same budget.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`].
    pub(crate) fn check_tables(&self) -> Result<()> {
        let needed_bytes = 2 * self.measured_table_bytes.load(Ordering::Relaxed);
        let given_bytes = self.budget.total_bytes();
        if needed_bytes > given_bytes {
            return Err(Error::BudgetTooSmall { given_bytes, minimum_bytes: needed_bytes });
        }
        Ok(())
    }

    // ── extents ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Encodes `page` and appends it to the epoch's open segment. The bytes reach the disk with a later
    /// [`run_jobs`](Self::run_jobs); `frame` is named there.
    pub(crate) fn append(
        &self,
        epoch: Epoch,
        identity: Identity,
        kind: Kind,
        page: &[u8],
        frame: Option<FrameIndex>,
    ) -> Result<Place> {
        self.check_failure()?;
        let mut extent = Vec::with_capacity(page.len() + page.len() / 64 + 64);
        extent::encode(page, identity, kind, &mut extent);
        self.append_encoded(epoch, &extent, frame)
    }

    pub(crate) fn append_encoded(&self, epoch: Epoch, extent: &[u8], frame: Option<FrameIndex>) -> Result<Place> {
        let mut jobs = Vec::new();
        // Buffers are handed on before the appender's lock is let go: an extent is in the appender, or in a job that
        // whoever waits for it finds, at every moment.
        let mut appender = self.appender(epoch).lock();
        let place = appender.append(&self.segments, epoch, extent, frame, &mut jobs);
        self.enqueue(jobs);
        drop(appender);
        place.map_err(|error| self.growth_error(error))
    }

    #[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
    fn growth_error(&self, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::StorageFull {
            Error::DiskFull { path: self.path.clone(), needed_bytes: self.segments.segment_bytes() }
        } else {
            self.fail(&format!("growing {} failed: {error}", self.path.display()))
        }
    }

    /// Appends an extent that is being moved; nothing refers to its new place before [`flush_moved`](Self::flush_moved) and
    /// the jobs have run.
    pub(crate) fn append_moved(&self, epoch: Epoch, extent: &[u8]) -> Result<Place> {
        self.check_failure()?;
        if self.tight.load(Ordering::Acquire) {
            return self.append_encoded(epoch, extent, None);
        }
        let mut jobs = Vec::new();
        let place = {
            let (mover, mover_epoch) = &mut *self.mover.lock();
            if *mover_epoch != epoch {
                mover.seal(&self.segments, &mut jobs);
                *mover_epoch = epoch;
            }
            mover.keep_segments = self.reserve.load(Ordering::Relaxed).max(1);
            let place = mover.append(&self.segments, epoch, extent, None, &mut jobs);
            self.enqueue(jobs);
            place
        };
        place.map_err(|error| self.growth_error(error))
    }

    /// Hands on everything that was moved.
    pub(crate) fn flush_moved(&self) {
        let mut jobs = Vec::new();
        let mut mover = self.mover.lock();
        mover.0.flush(&mut jobs);
        self.enqueue(jobs);
        drop(mover);
        if self.tight.load(Ordering::Acquire) {
            for appender in &self.appenders {
                let mut jobs = Vec::new();
                let mut appender = appender.lock();
                appender.flush(&mut jobs);
                self.enqueue(jobs);
            }
        }
    }

    /// Ends the segment that extents are moved to, once all are.
    pub(crate) fn seal_moved(&self) {
        let mut jobs = Vec::new();
        let mut mover = self.mover.lock();
        mover.0.seal(&self.segments, &mut jobs);
        self.enqueue(jobs);
    }

    /// Secures `count` free segments; see [`Segments::secure`].
    pub(crate) fn secure(&self, count: u32) -> Result<()> {
        self.segments.secure(count).map_err(|error| self.growth_error(error))
    }

    /// Segments that commits which put rows leave free beyond the [`reserve`](Self::reserve).
    pub(crate) fn spare_segments(&self) -> u32 {
        SPARE_SEGMENTS_MIN + SPARE_TABLES * self.table_segments.load(Ordering::Relaxed)
    }

    /// What is left of the segment that this epoch's pages are written to: bytes.
    pub(crate) fn room_bytes(&self) -> u64 {
        let guard = self.enter();
        let epoch = guard.epoch();
        self.appender(epoch).lock().room_bytes()
    }

    /// Has a segment for what this epoch still writes. Called before a checkpoint's cut: on a full disk there might be none
    /// any more once pages of the next epoch are evicted beside it.
    pub(crate) fn begin_segment(&self) -> Result<()> {
        let guard = self.enter();
        let begun = self.appender(guard.epoch()).lock().begin(&self.segments, guard.epoch());
        begun.map_err(|error| self.growth_error(error))
    }

    /// Hands on what the epoch's appender holds in its buffer.
    pub(crate) fn flush(&self, epoch: Epoch) {
        let mut jobs = Vec::new();
        let mut appender = self.appender(epoch).lock();
        appender.flush(&mut jobs);
        self.enqueue(jobs);
    }

    fn appender(&self, epoch: Epoch) -> &Mutex<Appender> {
        &self.appenders[(epoch.0 & 1) as usize]
    }

    fn entries(&self, epoch: Epoch) -> &Mutex<Entries> {
        &self.entries[(epoch.0 & 1) as usize]
    }

    fn enqueue(&self, jobs: Vec<WriteJob>) {
        if !jobs.is_empty() {
            self.jobs.lock().waiting.extend(jobs);
        }
    }

    /// Whether as many buffers wait, or are being written, as their part of the budget has.
    pub(crate) fn is_crowded(&self) -> bool {
        self.jobs.lock().is_crowded()
    }

    /// Waits until they are fewer, writing those that wait.
    pub(crate) fn wait_for_room(&self, written: impl Fn(&[FrameIndex])) -> Result<()> {
        while self.is_crowded() {
            self.run_jobs(&written)?;
            let mut jobs = self.jobs.lock();
            if jobs.is_crowded() && jobs.waiting.is_empty() {
                self.job_done.wait(&mut jobs);
            }
        }
        Ok(())
    }

    /// Writes waiting buffers until none waits, calling `written` with the frames of each. Other threads may be writing
    /// still when it returns.
    pub(crate) fn run_jobs(&self, written: impl Fn(&[FrameIndex])) -> Result<()> {
        loop {
            let job = {
                let mut jobs = self.jobs.lock();
                let Some(job) = jobs.waiting.pop_front() else { return self.check_failure() };
                jobs.running.push(job.range());
                job
            };
            let result = self.write(&job.buffer, job.offset);
            if result.is_ok() {
                written(&job.frames);
            }
            {
                let mut jobs = self.jobs.lock();
                jobs.running.retain(|range| range.start != job.offset);
                if result.is_err() {
                    jobs.failed.push(job.range());
                }
            }
            self.job_done.notify_all();
            result?;
        }
    }

    /// Waits until every buffer handed on so far is written.
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

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_failure()?;
        self.traffic.writes.fetch_add(1, Ordering::Relaxed);
        self.traffic.write_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let written = self.file.write_at(bytes, offset, Persist::Later);
        // After the write: a sync that began before it ended may not have taken it.
        self.unsynced.store(true, Ordering::Release);
        written.map_err(|error| self.fail(&format!("writing {} failed: {error}", self.path.display())))
    }

    /// Brings everything written so far to the medium. A failure is final.
    pub(crate) fn sync(&self) -> Result<()> {
        self.check_failure()?;
        // Whoever finds nothing to sync must not return before the sync that took it has ended.
        let _alone = self.syncing.lock();
        if !self.unsynced.swap(false, Ordering::AcqRel) {
            return self.check_failure();
        }
        self.file.sync_data().map_err(|error| self.fail(&format!("syncing {} failed: {error}", self.path.display())))
    }

    /// Reads exactly `buffer`; offset and length are multiples of the file's alignment.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.count_read(buffer.len());
        self.file.read_at(buffer, offset)
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        self.traffic.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Verifies the extent that was read from a place, and that it is the one that should be there.
    pub(crate) fn verify(&self, place: Place, bytes: &[u8]) -> std::result::Result<Header, Flaw> {
        let header = extent::verify(bytes)?;
        let segment_use = self.segments.segment_use(self.segments.segment_of(place));
        header.check(self.segments.origin(segment_use))?;
        // The place may be one of an earlier use, which somebody still had.
        if !place.is_of(segment_use) {
            return Err(Flaw::Use(segment_use));
        }
        Ok(header)
    }

    /// The aligned range of the file that covers a place: its start and length, and where the place begins in it.
    pub(crate) fn cover(&self, place: Place) -> (u64, usize, usize) {
        let alignment = self.file.alignment() as u64;
        let start = place.start() / alignment * alignment;
        let end = (place.start() + place.length()).next_multiple_of(alignment);
        (start, (end - start) as usize, (place.start() - start) as usize)
    }

    // ── entries ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Notes that a page's word changed in `epoch`. The caller is inside the guard, and holds what orders the changes of
    /// this page (its latch, or its being unpublished).
    pub(crate) fn record(&self, epoch: Epoch, keyspace: KeyspaceId, page: PageId, place: Place) {
        let mut entries = self.entries(epoch).lock();
        let sequence = entries.next_sequence;
        entries.next_sequence += 1;
        entries.fresh.push(Entry { keyspace, page, place, sequence });
    }

    /// As [`record`](Self::record), if `change` changes the word: nobody's entry of a later change comes before this one.
    pub(crate) fn record_change(
        &self,
        guard: &Guard<'_>,
        keyspace: KeyspaceId,
        page: PageId,
        place: Place,
        change: impl FnOnce() -> bool,
    ) -> bool {
        let mut entries = self.entries(guard.epoch()).lock();
        let changed = change();
        if changed {
            let sequence = entries.next_sequence;
            entries.next_sequence += 1;
            entries.fresh.push(Entry { keyspace, page, place, sequence });
        }
        changed
    }

    /// Notes that a page is free, before its number can be given out again: its next owner's entry must be the later one. Of a
    /// dropped keyspace one entry says it of all pages: on a full disk there might be no space to tell of each.
    pub(crate) fn record_free(&self, guard: &Guard<'_>, pages: &PageSpace, page: PageId) {
        if !pages.dropped.load(Ordering::Acquire) {
            self.record(guard.epoch(), pages.id, page, Place::NONE);
        }
    }

    /// Entries of both epochs, in memory.
    pub(crate) fn entry_count(&self) -> usize {
        self.entries
            .iter()
            .map(|entries| entries.lock())
            .map(|entries| entries.fresh.len() + entries.summarised.len())
            .sum()
    }

    /// Bytes of memory that they take.
    pub(crate) fn entry_bytes(&self) -> u64 {
        let capacity = |entries: &Mutex<Entries>| {
            let entries = entries.lock();
            entries.fresh.capacity() + entries.summarised.capacity()
        };
        (self.entries.iter().map(capacity).sum::<usize>() * size_of::<Entry>()) as u64
    }

    /// Whether an extent that was appended can be read back. What is in a buffer is handed on.
    pub(crate) fn is_written(&self, place: Place) -> bool {
        self.hand_on(place);
        let jobs = self.jobs.lock();
        !jobs.contain(place) && !jobs.have_failed(place)
    }

    fn hand_on(&self, place: Place) {
        for appender in &self.appenders {
            let mut appender = appender.lock();
            if appender.holds(place) {
                let mut jobs = Vec::new();
                appender.flush(&mut jobs);
                self.enqueue(jobs);
            }
        }
    }

    /// Makes sure that an extent just appended can be read back: what is still in a buffer is written.
    pub(crate) fn ensure_written(&self, place: Place, written: impl Fn(&[FrameIndex])) -> Result<()> {
        self.hand_on(place);
        loop {
            let mut jobs = self.jobs.lock();
            if jobs.have_failed(place) {
                return self.check_failure();
            }
            if !jobs.contain(place) {
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

    /// The most bytes of a large value that go into one extent, its header and the value's identity included: a quarter
    /// of a megabyte, less where segments are small.
    pub(crate) fn value_chunk_bytes(&self) -> usize {
        (256usize << 10).min(self.segments.segment_bytes() as usize / 4)
    }

    /// Writes one chunk of a large value at once and returns its place. It is in no table yet.
    pub(crate) fn write_value_chunk(&self, extent: &mut crate::io::AlignedBuffer, bytes: usize) -> Result<Place> {
        let padded = bytes.next_multiple_of(crate::format::BLOCK_BYTES);
        extent.set_len(padded);
        extent[bytes..].fill(0);
        let segment_bytes = self.segments.segment_bytes();
        let (place, segment_use) = {
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
                    let keep = self.reserve.load(Ordering::Relaxed) + self.spare_segments();
                    let segment = self.segments.take_beyond(keep).map_err(|error| self.growth_error(error))?;
                    (segment, self.segments.start(segment))
                }
            };
            values.open = Some((segment, position + padded as u64));
            let segment_use = self.segments.segment_use(segment);
            let place = Place::new(position, padded as u64, segment_use);
            self.segments.retain(place);
            (place, segment_use)
        };
        extent::seal(&mut extent[..bytes], self.segments.origin(segment_use));
        self.write(extent, place.start())?;
        Ok(place)
    }

    /// Ends the segment that values are being put into, so that it can be emptied and reused.
    pub(crate) fn seal_values(&self) {
        if let Some((segment, _)) = self.values.lock().open.take() {
            self.segments.close(segment);
        }
    }

    // ── failure ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// A write or sync failed: nothing is written any more. Returns the error for the caller.
    pub(crate) fn fail(&self, reason: &str) -> Error {
        if self.failure.set(reason.into()).is_ok() {
            log::error!("{reason}; the database accepts no more commits until it is reopened");
        }
        Error::Failed { reason: Arc::clone(self.failure.get().expect("set above")) }
    }

    /// As [`fail`](Self::fail), where nobody needs the error.
    pub(crate) fn fail_quietly(&self, reason: &str) {
        let _ = self.failure.set(reason.into());
    }

    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.failure.get().cloned()
    }

    pub(crate) fn check_failure(&self) -> Result<()> {
        match self.failure.get() {
            Some(reason) => Err(Error::Failed { reason: Arc::clone(reason) }),
            None => Ok(()),
        }
    }

    /// An error that names a damaged place of the data file.
    pub(crate) fn damaged(&self, what: &str, place: Place, flaw: impl std::fmt::Display) -> Error {
        Error::damaged(&self.path, format!("{what} at {place:?}"), flaw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::FaultyBackend;
    use crate::io::{Backend, OpenOptions};

    /// What is written of the next epoch beside a checkpoint does not take the last segment, which the checkpoint has secured.
    #[test]
    fn a_checkpoint_has_its_segment_before_the_cut() {
        let backend = FaultyBackend::new(crate::io::in_memory());
        let path = Path::new("data");
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = backend.open(path, options).unwrap();
        let space = Space::new(path, file, 77, 64 << 10, 1, Epoch(1), Arc::new(Budget::new(8 << 20, 1)));
        let mut extent = Vec::new();
        let identity = Identity { keyspace: KeyspaceId(1), page: PageId(1) };
        extent::encode(&[1; 100], identity, Kind::Leaf, &mut extent);
        space.secure(1).unwrap();
        let usage = space.segments.usage();
        backend.set_space_limit(Some(backend.space_used()));
        while space.segments.usage().free_count > 1 {
            space.segments.take().unwrap();
        }
        space.begin_segment().unwrap();
        let (ended, ()) = space.cut(|_| ());
        let refused = space.append_encoded(ended.next(), &extent, None);
        assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
        space.append_encoded(ended, &extent, None).expect("the segment that was begun");
        assert_eq!(space.segments.usage().segment_count, usage.segment_count);
    }
}
