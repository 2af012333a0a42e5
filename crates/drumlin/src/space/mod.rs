//! The data file: segments, extents, page tables, checkpoints.
//!
//! # Invariants
//! 1. *No overwriting.* Each write of a page goes to a new address. The page's old address is released in the epoch of
//!    the new image, and is reused only after the checkpoint that ends that epoch is durable.
//! 2. *The epoch latch.* Every change to a page or a page table happens under the shared epoch latch; a checkpoint
//!    takes the latch exclusively to begin. No thread waits for I/O under it, with one exception: a thread that appends
//!    and finds no free segment grows the file ([`take_segment`](Space::take_segment)). This is rare, because commits
//!    reserve space before they take the latch.
//! 3. *Images belong to the epoch of their change.* A page last changed in epoch e is appended to e's appender,
//!    whenever it is written. At most two epochs exist: the current one, and the one whose checkpoint is being made.
//! 4. *Every change to an entry is logged.* The table as of a checkpoint is the base image plus all changes up to the
//!    checkpoint's epoch, in the order of (epoch, sequence). The entries in memory run ahead of the checkpoint and are
//!    never written themselves.
//!
//! Lock order: epoch latch, frame latch, mover and values, admissions, appender, segments. No other lock is taken under
//! the job queue, the idle buffers or the encoders. The same holds for the logged changes, except that
//! [`summarise`](Space::summarise) appends while it holds them.

pub(crate) mod appender;
pub(crate) mod checkpoint;
pub(crate) mod clones;
mod data_file;
mod debt;
mod epoch;
pub(crate) mod extents;
mod failure;
pub(crate) mod kept;
pub(crate) mod kept_list;
pub(crate) mod kept_tables;
mod load_gate;
pub(crate) mod loading;
mod neighbours;
mod page_space;
mod parts;
mod policy;
pub(crate) mod reservation;
mod reservation_sums;
pub(crate) mod runs;
pub(crate) mod search;
pub(crate) mod segments;
pub(crate) mod superblocks;
pub(crate) mod table;
mod table_log;
mod values;
mod write_jobs;
mod write_queue;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::format::catalogue;
use crate::format::extent::{ExtentError, Header, Kind, PageKey};
use crate::format::{Epoch, ExtentAddress, KeyspaceId, PageId, SegmentUse, Timestamp, extent};
use crate::io::Persist;
use crate::memory::{ENCODER_BYTES_MAX, ENCODER_COUNT};
use crate::sync::Mutex;
use appender::Appender;
pub(crate) use data_file::{BACKGROUND_SHARE, Space};
pub(crate) use debt::CheckpointDebt;
pub(crate) use epoch::EpochGuard;
pub(crate) use page_space::PageSpace;
use page_space::PagesById;
pub(crate) use policy::{Margin, Purpose, Reclaims};
pub(crate) use reservation::SpaceReservation;
use runs::{RemovedRange, Run};
pub(crate) use table::{FrameIndex, PageEntry, PageTable};
pub(crate) use table_log::ChunkImage;

/// Returns the maximum size of a run's entry in the catalogue. It does not change while the run is folded.
fn entry_bytes(pages: &PageSpace, run: &Run) -> u64 {
    let range_bytes = |range: &RemovedRange| {
        catalogue::REMOVED_RANGE_BYTES + (range.lower.len() + range.upper.as_ref().map_or(0, Vec::len)) as u64
    };
    let ranges_bytes: u64 = run.removed.ranges().iter().map(range_bytes).sum();
    catalogue::RUN_BYTES + crate::format::node::key_bytes_max(pages.page_bytes()) as u64 + ranges_bytes
}

impl Space {
    // ── the epoch ──────────────────────────────────────────────────────────────────────────────────────────────────

    /// Latches the epoch exclusively, calls `at_start` with the epoch that is ending, and begins the next epoch.
    pub(crate) fn begin_checkpoint<T>(&self, at_start: impl FnOnce(Epoch) -> T) -> (Epoch, T) {
        let epoch_guard = self.epoch_latch.exclusive();
        let ended = epoch_guard.epoch();
        let value = at_start(ended);
        self.epoch_latch.begin_next(&epoch_guard);
        self.table_log.begin(ended.next());
        assert!(self.epoch_change_count() == 0, "the epoch before last has changes that no checkpoint took");
        (ended, value)
    }

    // ── keyspaces ──────────────────────────────────────────────────────────────────────────────────────────────────

    /// Returns the pages of a keyspace, which may be one of an opened kept snapshot.
    pub(crate) fn page_space(&self, id: KeyspaceId) -> Option<Arc<PageSpace>> {
        if id.is_of_kept() {
            self.kept.pages(id)
        } else {
            self.page_spaces.read().get(&id).map(|pages| Arc::clone(&pages.0))
        }
    }

    /// Counts more bytes that the next catalogue will have.
    pub(super) fn add_catalogue_bytes(&self, bytes: u64) {
        self.keyspace_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts fewer bytes that the next catalogue will have.
    pub(super) fn subtract_catalogue_bytes(&self, bytes: u64) {
        let before = self.keyspace_bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "the catalogue has {before} bytes, and {bytes} are subtracted");
    }

    /// Describes a page for an error message. A dropped keyspace is identified by its id.
    pub(crate) fn quoted_page(&self, page_key: PageKey) -> String {
        match self.page_space(page_key.keyspace) {
            Some(pages) => {
                debug_assert!(pages.id == page_key.keyspace, "a page is told to be another keyspace's");
                pages.quoted_page(page_key.page)
            }
            None => format!("page {} of keyspace {}, which was dropped", page_key.page, page_key.keyspace),
        }
    }

    /// Returns the pages of all keyspaces, except those of kept snapshots.
    pub(crate) fn page_spaces(&self) -> Vec<Arc<PageSpace>> {
        self.page_spaces.read().iter().map(|pages| Arc::clone(&pages.0)).collect()
    }

    pub(crate) fn add_page_space(&self, pages: Arc<PageSpace>) {
        let (name_bytes, origin_count) = (pages.name().len(), pages.origins().len());
        assert!(name_bytes <= usize::from(u16::MAX), "the catalogue has no room for a name");
        self.keyspace_bytes.fetch_add(catalogue::keyspace_bytes(name_bytes, origin_count), Ordering::Relaxed);
        let id = pages.id;
        let is_new = self.page_spaces.write().insert(PagesById(pages));
        assert!(is_new, "keyspace {id} is added twice");
    }

    /// Gives a keyspace another name.
    pub(crate) fn rename_page_space(&self, _epoch_guard: &EpochGuard<'_>, pages: &PageSpace, name: Arc<str>) {
        assert!(!pages.is_dropped(), "a dropped keyspace is renamed");
        assert!(name.len() <= usize::from(u16::MAX), "the catalogue has no room for a name");
        let name_bytes = name.len() as u64;
        let before = pages.set_name(name);
        // In this order, because the number must not become negative.
        self.keyspace_bytes.fetch_add(name_bytes, Ordering::Relaxed);
        self.keyspace_bytes.fetch_sub(before.len() as u64, Ordering::Relaxed);
    }

    /// Marks a keyspace as dropped and logs that, under the exclusive epoch latch. Its pages remain until they are
    /// [freed](crate::pool::Pool::free_dropped), because the running checkpoint may have to write some of them.
    pub(crate) fn drop_page_space(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace) {
        assert!(!pages.is_dropped(), "keyspace {} is dropped twice", pages.id);
        pages.set_dropped(epoch_guard);
        assert!(pages.is_dropped_by(epoch_guard.epoch()), "a drop is left out of its checkpoint");
        self.record(epoch_guard.epoch(), pages.id, PageId::NONE, ExtentAddress::NONE);
        let run_bytes: u64 = pages.runs.all().iter().map(|run| entry_bytes(pages, run)).sum();
        let keyspace_bytes = catalogue::keyspace_bytes(pages.name().len(), pages.origins().len()) + run_bytes;
        let counted_bytes = self.keyspace_bytes.fetch_sub(keyspace_bytes, Ordering::Relaxed);
        assert!(counted_bytes >= keyspace_bytes, "the catalogue's bytes do not count keyspace {}", pages.id);
    }

    /// Forgets a dropped keyspace whose pages are freed. The pages of bulk loads remain, which the loads free.
    pub(crate) fn remove_page_space(&self, pages: &PageSpace) {
        assert!(pages.is_dropped(), "a keyspace in use is removed");
        let is_of_load = |entry: PageEntry| matches!(entry, PageEntry::Unattached(_) | PageEntry::Reserved);
        debug_assert!(pages.table.iter().all(|(_, entry)| is_of_load(entry)), "a dropped keyspace has pages left");
        let removed = self.page_spaces.write().remove(&pages.id);
        assert!(removed, "keyspace {} is removed twice", pages.id);
    }

    /// Returns the names of the keyspaces that are clones, in order.
    pub(crate) fn clone_names(&self) -> Vec<String> {
        let page_spaces = self.page_spaces.read();
        let clones =
            page_spaces.iter().map(|pages| &pages.0).filter(|pages| !pages.origins().is_empty() && !pages.is_dropped());
        let mut names: Vec<String> = clones.map(|pages| pages.name().to_string()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the memory that the page tables of all keyspaces use, in bytes.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.page_spaces.read().iter().map(|pages| pages.0.table.memory_bytes()).sum()
    }

    /// Fails if the budget has no memory for page tables to grow by this many bytes.
    pub(crate) fn check_table_growth(&self, more_bytes: u64) -> Result<()> {
        self.check_budget(self.budget.needed_for_growth(more_bytes))
    }

    /// Fails if the budget has no memory for page tables of this size. Called before the tables are read.
    fn check_opened_tables(&self, bytes: u64) -> Result<()> {
        self.check_budget(self.budget.needed_for_opening(bytes))
    }

    /// Fails if a load or backup of this many bytes can never fit into the budget, whatever else gives way. The page
    /// tables of opened snapshots give way when these are closed.
    pub(crate) fn check_loads(&self, bytes: u64) -> Result<()> {
        let page_spaces = self.page_spaces.read();
        let lasting = page_spaces.iter().map(|pages| &pages.0).filter(|pages| !pages.id.is_of_kept());
        let table_bytes = lasting.map(|pages| pages.table.memory_bytes()).sum();
        self.check_budget(self.budget.needed_for_loads(bytes, table_bytes))
    }

    fn check_budget(&self, needed: Option<u64>) -> Result<()> {
        let given_bytes = self.budget.total_bytes();
        needed.map_or(Ok(()), |minimum_bytes| Err(Error::BudgetTooSmall { given_bytes, minimum_bytes }))
    }

    // ── runs above trees ───────────────────────────────────────────────────────────────────────────────────────────

    /// Adds a run above a keyspace's tree. See [`runs`]. The caller holds the exclusive epoch latch, and publishes the
    /// timestamp afterwards.
    pub(crate) fn attach_run(&self, pages: &PageSpace, run: Run) {
        let timestamp = run.timestamp;
        self.restore_runs(pages, vec![run]);
        pages.runs.note_attached(timestamp);
    }

    /// Adds runs that a checkpoint recorded.
    pub(super) fn restore_runs(&self, pages: &PageSpace, runs: Vec<Run>) {
        let bytes = runs.iter().map(|run| entry_bytes(pages, run)).sum();
        self.keyspace_bytes.fetch_add(bytes, Ordering::Relaxed);
        pages.runs.restore(runs);
    }

    /// Notes that the rows of a run below `freed_to` are folded, before the pages that hold only such rows are freed.
    /// `None` stands for all rows, and removes the run. The caller holds the epoch latch, shared at least, until these
    /// pages are free.
    pub(crate) fn free_run_to(&self, pages: &PageSpace, timestamp: Timestamp, freed_to: Option<Vec<u8>>) {
        if let Some(run) = pages.runs.free_to(timestamp, freed_to) {
            self.keyspace_bytes.fetch_sub(entry_bytes(pages, &run), Ordering::Relaxed);
        }
    }

    /// Removes all runs of a keyspace whose pages are about to be freed. The caller holds the exclusive epoch latch.
    pub(crate) fn clear_runs(&self, pages: &PageSpace) {
        let bytes = pages.runs.clear().iter().map(|run| entry_bytes(pages, run)).sum();
        self.keyspace_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    // ── extents ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Encodes `page` and appends it to the epoch's open segment. A later call of [`run_jobs`](Self::run_jobs) writes
    /// the bytes to the disk and passes `frame` to its callback.
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
        if encoders.len() < ENCODER_COUNT && encoder.buffer_bytes() <= ENCODER_BYTES_MAX {
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
        // Enqueue the buffers before unlocking the appender. So at any moment an extent is either in the appender, or
        // in a job that threads waiting for it can find.
        let mut appender = self.appender(epoch).lock();
        let take = || self.take_segment(Purpose::Pages);
        let address = appender.append(&self.segments, epoch, extent, frame, &mut jobs, take);
        self.write_jobs.enqueue(jobs);
        drop(appender);
        address
    }

    #[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
    fn growth_error(&self, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::StorageFull {
            Error::DiskFull {
                path: self.path.clone(),
                needed_bytes: self.segments.segment_bytes(),
                kept_snapshots: self.kept.all().iter().map(|kept| kept.name.to_string()).collect(),
                clones: self.clone_names(),
                archive_bytes: self.archive_bytes.load(Ordering::Relaxed),
            }
        } else {
            self.fail(&format!("growing {} failed: {error}", self.path.display()))
        }
    }

    /// Appends an extent that is being moved. For packing, the extent goes to the epoch's own segment. Nothing may
    /// refer to the new address until [`flush_moved`](Self::flush_moved) has been called and the jobs have run.
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
        self.write_jobs.enqueue(jobs);
        address
    }

    /// Enqueues the buffers that hold moved extents.
    pub(crate) fn flush_moved(&self, moves: &SpaceReservation<'_>) {
        let mut jobs = Vec::new();
        let mut mover = self.mover.lock();
        mover.0.flush(&mut jobs);
        self.write_jobs.enqueue(jobs);
        drop(mover);
        if moves.purpose() == Purpose::Pack {
            for appender in &self.appenders {
                let mut jobs = Vec::new();
                let mut appender = appender.lock();
                appender.flush(&mut jobs);
                self.write_jobs.enqueue(jobs);
            }
        }
    }

    /// Closes the segment for moved extents, after the last one has been moved.
    pub(crate) fn seal_moved(&self) {
        let mut jobs = Vec::new();
        let mut mover = self.mover.lock();
        mover.0.seal(&self.segments, &mut jobs);
        self.write_jobs.enqueue(jobs);
    }

    /// Returns the number of bytes left in the open segment for the current epoch's pages.
    pub(crate) fn open_segment_bytes(&self) -> u64 {
        self.appender(self.epoch_latch.newest()).lock().open_segment_bytes()
    }

    /// Takes a segment for the rest of this epoch's writes, if the epoch has none. Called before a checkpoint begins.
    /// On a full disk, the last segment might otherwise go to pages of the next epoch that are evicted during the
    /// checkpoint.
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
        self.write_jobs.enqueue(jobs);
    }

    /// Asserts invariant 3: the epoch is the current one, or the one whose checkpoint is being made.
    fn assert_open(&self, epoch: Epoch) {
        let newest = self.epoch_latch.newest();
        assert!(epoch == newest || epoch.next() == newest, "{epoch} has ended, {newest} is current");
    }

    fn appender(&self, epoch: Epoch) -> &Mutex<Appender> {
        &self.appenders[(epoch.0 & 1) as usize]
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
        // Set this after the write: a sync that began before the end of the write may not include it.
        self.unsynced.store(true, Ordering::Release);
        written.map_err(|error| self.fail(&format!("writing {} failed: {error}", self.path.display())))
    }

    /// Records this opening in the superblocks before the file is first written.
    fn begin_writing(&self) -> Result<()> {
        let Some(superblocks) = &self.superblocks else { return Ok(()) };
        superblocks.begin_writing().map_err(|error| self.fail(&format!("recording this opening failed: {error}")))
    }

    /// Makes everything written so far durable. If this fails, the database stops permanently.
    pub(crate) fn sync(&self) -> Result<()> {
        self.check_failure()?;
        // Take the lock first: a caller that finds nothing left to sync must not return before the sync that covers
        // its bytes has ended.
        let _guard = self.syncing.lock();
        // If another thread's sync failed while this one waited for the lock, the device may have dropped the bytes.
        self.check_failure()?;
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

    /// Verifies an extent, and that it belongs at the address from which it was read.
    pub(crate) fn verify(&self, address: ExtentAddress, bytes: &[u8]) -> std::result::Result<Header, ExtentError> {
        let header = extent::verify(bytes)?;
        let mut segment_use = self.segments.segment_use(self.segments.segment_of(address));
        if segment_use == SegmentUse::UNKNOWN {
            segment_use = header.origin.segment_use;
        }
        header.check(self.segments.origin(segment_use))?;
        // The caller's address may belong to an earlier use of the segment.
        if !address.is_of(segment_use) {
            return Err(ExtentError::Use(segment_use));
        }
        Ok(header)
    }

    /// Returns the aligned range of the file that covers an extent: the range's start and length, and the extent's
    /// offset in it.
    pub(crate) fn cover(&self, address: ExtentAddress) -> (u64, usize, usize) {
        let alignment = self.file.alignment() as u64;
        assert!(!address.is_none(), "no extent to be read");
        let start = address.start() / alignment * alignment;
        let end = (address.start() + address.length()).next_multiple_of(alignment);
        (start, (end - start) as usize, (address.start() - start) as usize)
    }

    // ── logged changes ─────────────────────────────────────────────────────────────────────────────────────────────

    /// Logs that a page's entry changed in `epoch`. The caller must hold the epoch latch, and also the page's latch if
    /// the page has been published. So each page's changes are logged in order.
    pub(crate) fn record(&self, epoch: Epoch, keyspace: KeyspaceId, page: PageId, address: ExtentAddress) {
        self.assert_open(epoch);
        self.table_log.push(epoch, keyspace, page, address);
    }

    /// Logs that a bulk load's pages in a chunk were attached. The chunk had no page in use before.
    pub(crate) fn record_image(&self, epoch_guard: &EpochGuard<'_>, image: ChunkImage) {
        self.table_log.push_image(epoch_guard.epoch(), image);
    }

    /// Calls `change`, and if it returns `true`, logs the change like [`record`](Self::record). No later change to the
    /// page is logged before this one.
    pub(crate) fn record_change(
        &self,
        epoch_guard: &EpochGuard<'_>,
        keyspace: KeyspaceId,
        page: PageId,
        address: ExtentAddress,
        change: impl FnOnce() -> bool,
    ) -> bool {
        self.table_log.push_if(epoch_guard.epoch(), keyspace, page, address, change)
    }

    /// Logs that a page is free. Must be called before the page's id is reused, because the next owner's change has to
    /// come later in the log. If the keyspace was dropped, nothing is logged: a single change covers all its pages, and
    /// on a full disk there might be no space for one change per page.
    pub(crate) fn record_free(&self, epoch_guard: &EpochGuard<'_>, pages: &PageSpace, page: PageId) {
        assert!(page != PageId::NONE, "a free page 0 would drop the keyspace");
        if !pages.is_dropped() {
            self.record(epoch_guard.epoch(), pages.id, page, ExtentAddress::NONE);
        }
    }

    /// Returns the number of logged changes in memory, of both epochs.
    pub(crate) fn change_count(&self) -> usize {
        self.table_log.len()
    }

    /// Returns the number of page-table changes in the newest epoch. These are the logged changes, plus one for each
    /// dirty page, which is logged when the page is written. Zero right after a checkpoint has begun. Approximate: a
    /// page that is being written may be counted twice or not at all.
    pub(crate) fn epoch_change_count(&self) -> u64 {
        loop {
            let newest = self.epoch_latch.newest();
            let logged = self.table_log.count(newest);
            let dirty = self.reservations.debt.dirty_pages(newest);
            // Both counts must belong to the same epoch. Once two more checkpoints have begun, the counters belong to a
            // later epoch.
            if self.epoch_latch.newest() == newest {
                return logged + dirty;
            }
        }
    }

    /// Returns the number of pages of unneeded large values that later epochs will free. The newest epoch has no memory
    /// for these changes.
    pub(crate) fn unfreed_pages(&self) -> u64 {
        self.reservations.debt.unfreed_pages.load(Ordering::Relaxed)
    }

    /// Returns `true` if the newest epoch has at most `changes_max` page-table changes, and at most `unfreed_max` pages
    /// wait to be freed in later epochs.
    pub(crate) fn admits_changes(&self, changes_max: u64, unfreed_max: u64) -> bool {
        debug_assert!(changes_max > 0, "commits would wait for an epoch without changes");
        debug_assert!(changes_max <= unfreed_max, "{unfreed_max} pages wait, an epoch has {changes_max} changes");
        self.epoch_change_count() <= changes_max && self.unfreed_pages() <= unfreed_max
    }

    /// Returns the memory used by the logged changes, in bytes.
    pub(crate) fn change_bytes(&self) -> u64 {
        self.table_log.bytes()
    }

    /// Returns an error that names a corrupted extent of the data file.
    pub(crate) fn corrupted(&self, what: &str, address: ExtentAddress, reason: impl std::fmt::Display) -> Error {
        Error::corrupted(&self.path, format!("{what} at {address:?}"), reason)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::format::DatabaseId;
    use crate::format::extent::Encoder;
    use crate::io::fault::FaultyBackend;
    use crate::io::{Backend, OpenOptions};
    use crate::memory::Budget;

    /// A write of the next epoch can't take the last segment: a checkpoint takes its own segment before it begins.
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
