//! Writing back dirty pages: a page is copied into the segment of its epoch, written, and marked clean.
//!
//! Pages that are written together are neighbours in the file, so a scan can read them together. A batch of the dirty
//! pages at the clock's hand would consist of leaves from all over the tree. So batches come from an *elevator*, which
//! repeatedly goes through all dirty pages in key order.

use super::Pool;
use super::checkpoint_copies::CheckpointCopy;
use super::elevator::Elevator;
use super::evict::BATCH_PAGES;
use super::frame_header::FrameHeader;
use super::frames::FrameWrite;
use super::needs::{Needs, Stop};
use crate::error::Result;
use crate::format::extent::{KIND_OFFSET, Kind, PageKey};
use crate::format::{Epoch, KeyspaceId};
use crate::space::{EpochGuard, FrameIndex, PageEntry, PageSpace, Purpose, Reclaims};

/// Number of frames after the clock's hand that are searched to fill an elevator: a gigabyte of 4 KiB pages. The search
/// takes 0.2 µs per dirty page.
/// Measured: decision 029.
const ELEVATOR_FRAMES: usize = 256 << 10;

/// The number of pages that a checkpoint writes between two rests: 0.1 ms of encoding.
const PAGES_PER_REST: usize = 16;

/// Keyspace, kind, and the beginning of the lowest key. The key is stored as bytes to avoid padding in the sorted list.
type WriteOrder = (KeyspaceId, u8, [u8; size_of::<u128>()]);

/// The minimum number of pages in an elevator. Fewer pages would lie no closer together than those of a batch at the
/// clock's hand, and would delay the pages that the clock waits for. Simulations have few pages, so their minimum is
/// lower.
const ELEVATOR_PAGES_MIN: usize = if cfg!(feature = "sim") { 8 } else { 8 * BATCH_PAGES };

impl Pool {
    /// Writes a batch of dirty pages of one size, and waits until they can be evicted. The batch comes from the
    /// elevator and is topped up with `frames`.
    pub(super) fn write_back(&self, page_bytes: usize, frames: &[FrameIndex]) -> Result<()> {
        let Some(_guard) = self.writing_back.try_lock() else {
            // Another thread is writing back. The pages that it writes will serve this caller too.
            crate::coverage::mark!("two threads wanted to write back at once");
            drop(self.writing_back.lock());
            return Ok(());
        };
        let is_of_size = |frame: &FrameIndex| self.frames.page_bytes(*frame) == page_bytes;
        debug_assert!(frames.iter().all(is_of_size), "pages of another size are written to evict some of {page_bytes}");
        let mut batch = self.take_from_elevator(page_bytes);
        debug_assert!(batch.iter().all(is_of_size), "the elevator of {page_bytes} has pages of another size");
        batch.extend(frames.iter().take(BATCH_PAGES - batch.len()));
        self.write_back_alone(batch, None)
    }

    /// Takes the next batch from the elevator of a page size. Wakes the background writer to refill the elevator before
    /// it runs empty.
    fn take_from_elevator(&self, page_bytes: usize) -> Vec<FrameIndex> {
        let mut elevators = self.elevators.lock();
        let elevator = elevators.entry(page_bytes).or_default();
        let mut batch = Vec::with_capacity(BATCH_PAGES);
        while batch.len() < BATCH_PAGES
            && let Some(frame) = elevator.rest.pop()
        {
            batch.extend(self.is_due(frame).then_some(frame));
        }
        if !batch.is_empty() {
            crate::coverage::mark!("dirty pages were written back in key order");
        }
        let is_wanted = elevator.rest.len() <= elevator.low && !elevator.is_wanted;
        elevator.is_wanted |= is_wanted;
        drop(elevators);
        if is_wanted {
            self.wake_background();
        }
        batch
    }

    /// Refills the elevators that are about to run empty. O(pages in memory), at most [`ELEVATOR_FRAMES`] per page
    /// size.
    pub(super) fn extend_elevators(&self) {
        let is_wanted = |(page_bytes, elevator): (&usize, &Elevator)| elevator.is_wanted.then_some(*page_bytes);
        let wanted: Vec<usize> = self.elevators.lock().iter().filter_map(is_wanted).collect();
        for page_bytes in wanted {
            // Search without holding the lock, so that other threads can write back.
            let mut next: Vec<FrameIndex> =
                self.frames.ahead(page_bytes, ELEVATOR_FRAMES).filter(|frame| self.is_due(*frame)).collect();
            if next.len() < ELEVATOR_PAGES_MIN {
                next.clear();
            }
            next = self.in_write_order(next.into_iter());
            next.reverse();
            let mut elevators = self.elevators.lock();
            let elevator = elevators.get_mut(&page_bytes).expect("elevators stay");
            elevator.low = next.len() / 4;
            elevator.is_wanted = false;
            // The remaining pages may be in `next` too. They will be clean when their second entry comes up.
            next.append(&mut elevator.rest);
            elevator.rest = next;
        }
    }

    /// Returns `true` if a page is dirty and the clock's hand would write it back too. A page in use is not due,
    /// because it will change again.
    fn is_due(&self, frame: FrameIndex) -> bool {
        let header = self.frames.header(frame);
        header.dirty().is_some() && header.is_idle() && !header.is_referenced()
    }

    /// Writes dirty pages before a checkpoint, as long as enough free space is left for the checkpoint. Called when no
    /// checkpoint is running.
    pub(crate) fn write_back_all(&self, frees: Reclaims) -> Result<()> {
        let _guard = self.writing_back.lock();
        let dirty = self.frames.all().filter(|&frame| self.frames.header(frame).dirty().is_some()).collect();
        self.write_back_alone(dirty, Some(Purpose::WriteBack(frees)))
    }

    fn write_back_alone(&self, frames: Vec<FrameIndex>, purpose: Option<Purpose>) -> Result<()> {
        let mut epochs = [None; 2];
        for frame in self.in_write_order(frames.into_iter()) {
            if let Some(purpose) = purpose
                && !self.space.is_admitted(purpose, self.frames.page_bytes(frame) as u64)
            {
                break;
            }
            if let Some(epoch) = self.capture(frame, None)? {
                epochs[(epoch.0 & 1) as usize] = Some(epoch);
            }
            self.relieve()?;
        }
        for epoch in epochs.into_iter().flatten() {
            // Flush only if the segment still belongs to this epoch: a checkpoint may have ended the epoch.
            let epoch_guard = self.space.epoch_latch.shared();
            let current = epoch_guard.epoch();
            if epoch == current || epoch.next() == current {
                self.space.flush(epoch);
            }
        }
        self.space.wait_for_jobs(|frames| self.written(frames))?;
        let epoch_guard = self.space.epoch_latch.shared();
        self.space.summarise(&epoch_guard)
    }

    fn written(&self, frames: &[FrameIndex]) {
        for &frame in frames {
            self.frames.unpin(frame);
        }
    }

    /// Writes pending images until there is room for one more.
    pub(crate) fn relieve(&self) -> Result<()> {
        self.space.wait_for_writes(|frames| self.written(frames))
    }

    /// Returns the callback that unpins frames whose images have been written.
    pub(crate) fn on_written(&self) -> impl Fn(&[FrameIndex]) + '_ {
        |frames| self.written(frames)
    }

    /// Appends the oldest image that is owed of a page to its epoch's segment: that of its copy, or else that of the
    /// page, which becomes clean. If `only` is given, skips pages of other epochs. Returns the epoch.
    pub(crate) fn capture(&self, frame: FrameIndex, only: Option<Epoch>) -> Result<Option<Epoch>> {
        let epoch_guard = self.space.epoch_latch.shared();
        let header = self.frames.header(frame);
        let Some(page_key) = header.page_key() else { return Ok(None) };
        let Some(pages) = self.space.page_space(page_key.keyspace) else { return Ok(None) };
        let Some(read) = self.frames.peek(frame, page_key) else { return Ok(None) };
        let entry = pages.table.load(page_key.page);
        if entry != PageEntry::Leaf(frame) && entry != PageEntry::Immutable(frame) {
            return Ok(None);
        }
        // Another thread may be capturing the same page under the same shared latches. The second thread finds that
        // nothing is owed.
        let _capturing = self.page_locks(&pages, page_key.page).capturing.lock();
        let Some(dirty) = header.dirty() else { return Ok(None) };
        let current = epoch_guard.epoch();
        assert!(dirty == current || dirty.next() == current, "a page is dirty of an epoch that has ended");
        if let Some(copy) = self.frames.checkpoint_copy(frame) {
            let epoch = copy.epoch();
            self.append_copy(&epoch_guard, &pages, page_key, copy, header)?;
            debug_assert!(only.is_none_or(|only| only == epoch), "a checkpoint began before that of {epoch} ended");
            return Ok(Some(epoch));
        }
        if only.is_some_and(|only| only != dirty) {
            return Ok(None);
        }
        if pages.is_dropped_by(dirty) {
            self.frames.set_dirty(frame, None);
            return Ok(None);
        }
        header.pin();
        match self.append_image(&epoch_guard, dirty, page_key, &read, header, Some(frame)) {
            Ok(()) => {
                self.frames.set_dirty(frame, None);
                if entry == PageEntry::Leaf(frame) {
                    self.count_rows_on_disk(&pages, header, &read);
                }
                Ok(Some(dirty))
            }
            Err(error) => {
                drop(read);
                self.frames.unpin(frame);
                Err(error)
            }
        }
    }

    /// Notes the number of rows in the newest image of a leaf.
    fn count_rows_on_disk(&self, pages: &PageSpace, header: &FrameHeader, leaf: &[u8]) {
        let rows = Some((self.nodes.row_count)(leaf) as u32);
        pages.leaves_on_disk.replace(header.set_rows_on_disk(rows), rows);
    }

    /// Appends the image of a leaf's copy, and frees the copy. If that fails, the copy stays. The leaf stays dirty, so
    /// it won't be evicted before its next image is written.
    fn append_copy(
        &self,
        epoch_guard: &EpochGuard<'_>,
        pages: &PageSpace,
        page_key: PageKey,
        copy: CheckpointCopy<'_>,
        header: &FrameHeader,
    ) -> Result<()> {
        assert_eq!(header.dirty(), Some(epoch_guard.epoch()), "a leaf with a copy did not change");
        let epoch = copy.epoch();
        assert_eq!(epoch.next(), epoch_guard.epoch(), "a copy is owed to a checkpoint that has ended");
        if !pages.is_dropped_by(epoch) {
            crate::coverage::mark!("a checkpoint wrote a copy of a leaf");
            self.append_image(epoch_guard, epoch, page_key, &copy, header, None)?;
            self.count_rows_on_disk(pages, header, &copy);
        }
        copy.free();
        Ok(())
    }

    fn append_image(
        &self,
        _epoch_guard: &EpochGuard<'_>,
        epoch: Epoch,
        page_key: PageKey,
        page: &[u8],
        header: &FrameHeader,
        frame: Option<FrameIndex>,
    ) -> Result<()> {
        let kind = Kind::from_byte(page[KIND_OFFSET]).expect("pages in memory carry their kind");
        assert!(kind != Kind::Value, "a value in memory is never dirty");
        let address = self.space.append(epoch, page_key, kind, page, frame)?;
        let old = header.address();
        assert!(old.is_none() || old.start() != address.start(), "an image is written over the one before it: {old:?}");
        header.set_address(address);
        if !old.is_none() {
            self.space.segments.release(old, epoch);
        }
        self.space.record(epoch, page_key.keyspace, page_key.page, address);
        Ok(())
    }

    /// Prepares a latched page for a change in the current epoch. If the running checkpoint still needs the page's
    /// image of the previous epoch, makes a copy of the page, or appends the image. Fails with [`Needs::Writes`] if
    /// there is no room for one more image on its way to the disk.
    #[inline]
    pub(crate) fn prepare_change(&self, epoch_guard: &EpochGuard<'_>, write: &FrameWrite<'_>) -> Result<(), Stop> {
        match write.header().dirty() {
            Some(epoch) if epoch != epoch_guard.epoch() => self.prepare_owed(epoch_guard, write, epoch),
            _ => Ok(()),
        }
    }

    #[cold]
    fn prepare_owed(&self, epoch_guard: &EpochGuard<'_>, write: &FrameWrite<'_>, epoch: Epoch) -> Result<(), Stop> {
        let current = epoch_guard.epoch();
        assert_eq!(epoch.next(), current, "a page is owed to a checkpoint that has ended");
        if self.make_copy(epoch, write) {
            crate::coverage::mark!("a commit copied a leaf for a checkpoint");
            self.frames.set_dirty(write.frame(), Some(current));
            return Ok(());
        }
        self.check_room_for_image()?;
        self.append_due_image(epoch_guard, write).map_err(Stop::Error)
    }

    fn check_room_for_image(&self) -> Result<(), Stop> {
        if self.space.is_near_full() {
            crate::coverage::mark!("an image due to a checkpoint waited for a write buffer");
            return Err(Needs::Writes.into());
        }
        Ok(())
    }

    /// Prepares a latched page for its removal, or for the removal of its frame, in the current epoch: like
    /// [`prepare_change`](Self::prepare_change), but leaves no copy.
    pub(crate) fn prepare_removal(&self, epoch_guard: &EpochGuard<'_>, write: &FrameWrite<'_>) -> Result<(), Stop> {
        let header = write.header();
        if header.copy().is_some() || header.dirty().is_some_and(|epoch| epoch != epoch_guard.epoch()) {
            self.check_room_for_image()?;
        }
        self.append_due_image(epoch_guard, write).map_err(Stop::Error)
    }

    /// Like [`prepare_removal`](Self::prepare_removal), but does not check for room.
    pub(crate) fn append_due_image(&self, epoch_guard: &EpochGuard<'_>, write: &FrameWrite<'_>) -> Result<()> {
        let (header, page_key) = (write.header(), write.page_key());
        let current = epoch_guard.epoch();
        let pages = || self.space.page_space(page_key.keyspace).expect("a latched page is in a keyspace");
        if let Some(copy) = self.frames.checkpoint_copy(write.frame()) {
            return self.append_copy(epoch_guard, &pages(), page_key, copy, header);
        }
        match header.dirty() {
            Some(epoch) if epoch != current => {
                assert_eq!(epoch.next(), current, "a page is due to a checkpoint that has ended");
                if pages().is_dropped_by(epoch) {
                    self.frames.set_dirty(write.frame(), None);
                    return Ok(());
                }
                crate::coverage::mark!("a page changed that a checkpoint had not copied yet");
                // This write needs no pin: the frame is marked dirty immediately, so it won't be evicted before its
                // next image is written.
                self.append_image(epoch_guard, epoch, page_key, write, header, None)?;
                self.frames.set_dirty(write.frame(), Some(current));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Records a change to a latched page. The caller has called [`prepare_change`](Self::prepare_change) under the
    /// same epoch guard.
    #[inline]
    pub(crate) fn mark_dirty(&self, epoch_guard: &EpochGuard<'_>, write: &FrameWrite<'_>) {
        let header = write.header();
        let current = epoch_guard.epoch();
        assert!(header.dirty().is_none_or(|epoch| epoch == current), "a page changed before its older image was taken");
        self.frames.set_dirty(write.frame(), Some(current));
    }

    /// Sorts frames into the order in which their pages are written: by key, so that a scan finds neighbouring pages
    /// next to each other.
    fn in_write_order(&self, frames: impl Iterator<Item = FrameIndex>) -> Vec<FrameIndex> {
        let ordered = frames.filter_map(|frame| Some((self.write_order(frame)?, frame)));
        let mut ordered: Vec<(WriteOrder, FrameIndex)> = ordered.collect();
        ordered.sort_unstable();
        // Copy into a vector of the exact size, because an elevator retains it.
        let mut frames = Vec::with_capacity(ordered.len());
        frames.extend(ordered.into_iter().map(|(_, frame)| frame));
        frames
    }

    fn write_order(&self, frame: FrameIndex) -> Option<WriteOrder> {
        let page_key = self.frames.header(frame).page_key()?;
        let page = self.frames.peek(frame, page_key)?;
        let kind = page[KIND_OFFSET];
        // The frame may have been reused for a value since it was chosen.
        let is_node = kind == Kind::Leaf as u8 || kind == Kind::Inner as u8;
        let key_order = if is_node { (self.nodes.key_order)(&page) } else { 0 };
        Some((page_key.keyspace, kind, key_order.to_be_bytes()))
    }

    /// Appends every page that was dirty when the checkpoint began. Returns their number. After every few pages, calls
    /// `rest` with the share of the pages that are done.
    pub(crate) fn write_epoch(&self, epoch: Epoch, rest: impl Fn(f64)) -> Result<u64> {
        // Look for the change first: a copy is named before the leaf becomes dirty of the newest epoch.
        let is_due = |header: &FrameHeader| header.dirty() == Some(epoch) || header.copy().is_some();
        let due = self.frames.all().filter(|&frame| is_due(self.frames.header(frame)));
        let due = self.in_write_order(due);
        let mut count = 0;
        for (index, &frame) in due.iter().enumerate() {
            count += u64::from(self.capture(frame, Some(epoch))?.is_some());
            self.relieve()?;
            if (index + 1).is_multiple_of(PAGES_PER_REST) {
                rest((index + 1) as f64 / due.len() as f64);
            }
        }
        debug_assert!(
            self.frames.all().all(|frame| self.frames.header(frame).dirty() != Some(epoch)),
            "a page of {epoch} was left out of its checkpoint"
        );
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::fault::FaultyBackend;
    use crate::{Config, Durability, Error};

    /// A copy whose image could not be appended stays, and the checkpoint can write it later.
    #[test]
    fn a_copy_that_could_not_be_written_stays() {
        let backend = Arc::new(FaultyBackend::new(crate::io::in_memory()));
        let config = Config::new().backend(backend.clone()).memory(16 << 20).durability(Durability::Relaxed);
        let db = config.segment_bytes(256 << 10).open("/db").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let insert = |seed: u64| {
            let mut random = drumlin_testing::Random(seed);
            (0..3000u64).for_each(|row| keyspace.insert(row.to_be_bytes(), random.bytes(500)).unwrap());
        };
        insert(1);
        let pool = &db.store().unwrap().engine.pool;
        let (epoch, ()) = pool.space.begin_checkpoint(|_| ());
        insert(2);
        let has_copy = |frame: &FrameIndex| pool.frames.header(*frame).copy().is_some();
        let copied: Vec<FrameIndex> = pool.frames.all().filter(has_copy).collect();
        // The free segments are reserved for these images, so take them away.
        backend.set_space_limit(Some(backend.space_used()));
        while pool.space.take_segment(Purpose::Pages).is_ok() {}
        let mut refused = 0;
        for frame in &copied {
            match pool.capture(*frame, Some(epoch)) {
                Ok(captured) => assert!(captured == Some(epoch) && !has_copy(frame), "an image is owed twice"),
                Err(error) => {
                    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
                    assert!(has_copy(frame), "a copy was freed whose image was not appended");
                    refused += 1;
                }
            }
        }
        assert!(refused > 20, "{refused} images of {} found no space", copied.len());
        backend.set_space_limit(None);
        assert!(pool.write_epoch(epoch, |_| ()).unwrap() >= refused, "images are missing");
        assert!(!copied.iter().any(has_copy), "copies are left");
        pool.space.fail_quietly("its checkpoint has no end");
    }

    /// Batches come from the elevator instead of from the given frames, and their keys ascend from batch to batch.
    /// Pages that are clean or have been used since are skipped.
    #[test]
    fn an_elevator_ascends() {
        const PAGE_BYTES: usize = 4096;
        let db = Config::in_memory().memory(128 << 20).open("").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        (0..100_000u64).for_each(|row| keyspace.insert((row * 7919 % 100_003).to_be_bytes(), [7; 100]).unwrap());
        let pool = &db.store().unwrap().engine.pool;
        // Stop the background writer. It would extend the elevators too, and pages would be in them twice.
        pool.stop_background();
        pool.take_threads().into_iter().for_each(|thread| thread.join().unwrap());
        for _ in 0..=crate::pool::frame_header::INNER_CHANCES {
            pool.frames.turn(PAGE_BYTES).for_each(|frame| _ = pool.frames.header(frame).take_reference());
        }
        assert!(pool.take_from_elevator(PAGE_BYTES).is_empty(), "an elevator has pages at first");
        pool.extend_elevators();
        let upcoming: Vec<FrameIndex> = pool.elevators.lock()[&PAGE_BYTES].rest.iter().rev().copied().collect();
        assert!(upcoming.len() >= ELEVATOR_PAGES_MIN, "{} pages are dirty", upcoming.len());
        let (used, clean) = (upcoming[3], upcoming[5]);
        pool.frames.header(used).touch();
        pool.capture(clean, None).unwrap().unwrap();
        // The elevator's batch is written, and the page at the clock's hand is not.
        let is_dirty = |frame: FrameIndex| pool.frames.header(frame).dirty().is_some();
        let farthest = *upcoming.last().unwrap();
        pool.write_back(PAGE_BYTES, &[farthest]).unwrap();
        let mut due = upcoming.iter().filter(|frame| **frame != used);
        assert!(due.by_ref().take(BATCH_PAGES + 1).all(|frame| !is_dirty(*frame)), "a page of the batch is dirty");
        assert!(due.all(|frame| is_dirty(*frame)) && is_dirty(farthest), "pages of later batches were written");
        let mut last = None;
        for number in 1..upcoming.len() / BATCH_PAGES {
            let batch = pool.take_from_elevator(PAGE_BYTES);
            assert_eq!(batch.len(), BATCH_PAGES, "batch {number}");
            for frame in batch {
                assert!(frame != used && frame != clean, "a page is written in vain");
                let order = pool.write_order(frame);
                assert!(last < order, "{order:?} comes after {last:?}");
                last = order;
            }
        }
    }
}
