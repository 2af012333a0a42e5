//! Dirty pages on their way to the disk: copied into the segment of their epoch, written, and clean again.

use super::{FrameHeader, FrameWrite, Needs, Pool, Stop};
use crate::error::Result;
use crate::format::extent::{KIND_OFFSET, Kind, PageKey};
use crate::format::{Epoch, KeyspaceId};
use crate::space::{EpochGuard, FrameIndex, Frees, PageEntry, Purpose};

/// Keyspace, kind, and the beginning of the lowest key.
type WriteOrder = (KeyspaceId, u8, u128);

impl Pool {
    /// Writes these frames' pages and waits until they can be evicted.
    pub(super) fn write_back(&self, frames: Vec<FrameIndex>) -> Result<()> {
        let Some(_alone) = self.writing_back.try_lock() else {
            // Another thread is writing back: its pages will do.
            crate::coverage::mark!("two threads wanted to write back at once");
            drop(self.writing_back.lock());
            return Ok(());
        };
        self.write_back_alone(frames, None)
    }

    /// Writes dirty pages ahead of a checkpoint, as long as that leaves the space that the checkpoint needs. No
    /// checkpoint runs meanwhile.
    pub(crate) fn write_back_all(&self, frees: Frees) -> Result<()> {
        let _alone = self.writing_back.lock();
        let dirty = self.frames.all().filter(|&frame| self.frames.header(frame).dirty().is_some()).collect();
        self.write_back_alone(dirty, Some(Purpose::WriteBack(frees)))
    }

    fn write_back_alone(&self, mut frames: Vec<FrameIndex>, purpose: Option<Purpose>) -> Result<()> {
        frames.sort_by_cached_key(|&frame| {
            let page_key = self.frames.header(frame).page_key()?;
            self.write_order(frame, page_key)
        });
        let mut epochs = [None; 2];
        for frame in frames {
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
            // The segment must still be of this epoch: a checkpoint may have ended it meanwhile.
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

    /// Writes waiting images if there is no room for another on its way to the disk.
    pub(crate) fn relieve(&self) -> Result<()> {
        self.space.wait_for_room(|frames| self.written(frames))
    }

    /// The callback that unpins frames whose images have been written.
    pub(crate) fn on_written(&self) -> impl Fn(&[FrameIndex]) + '_ {
        |frames| self.written(frames)
    }

    /// Appends the image of a dirty page to its epoch's segment and marks it clean. With `only`, skips pages of another
    /// epoch. Returns the epoch.
    pub(crate) fn capture(&self, frame: FrameIndex, only: Option<Epoch>) -> Result<Option<Epoch>> {
        let epoch_guard = self.space.epoch_latch.shared();
        let header = self.frames.header(frame);
        let Some(page_key) = header.page_key() else { return Ok(None) };
        let Some(pages) = self.space.page_space(page_key.keyspace) else { return Ok(None) };
        let Some(read) = self.frames.read(frame, page_key) else { return Ok(None) };
        let entry = pages.table.load(page_key.page);
        if entry != PageEntry::Leaf(frame) && entry != PageEntry::Immutable(frame) {
            return Ok(None);
        }
        let Some(epoch) = header.dirty() else { return Ok(None) };
        let current = epoch_guard.epoch();
        assert!(epoch == current || epoch.next() == current, "a page is dirty of an epoch that has ended");
        if only.is_some_and(|only| only != epoch) {
            return Ok(None);
        }
        // Another thread may be capturing the same page under the same shared latches. The second finds it clean.
        let _capturing = self.page_locks(&pages, page_key.page).capturing.lock();
        if header.dirty() != Some(epoch) {
            crate::coverage::mark!("a page was copied by another while it was about to be");
            return Ok(None);
        }
        header.pin();
        match self.append_image(&epoch_guard, epoch, page_key, &read, header, Some(frame)) {
            Ok(()) => {
                self.frames.set_dirty(frame, None);
                Ok(Some(epoch))
            }
            Err(error) => {
                drop(read);
                self.frames.unpin(frame);
                Err(error)
            }
        }
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
        debug_assert!(header.dirty() == Some(epoch), "an image of {epoch} is appended of {header:?}");
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

    /// Prepares a latched page for a change in the current epoch. If the running checkpoint still needs its image of
    /// the epoch before, appends that first, if there is room among the images on their way to the disk.
    pub(crate) fn prepare_change(&self, epoch_guard: &EpochGuard<'_>, write: &FrameWrite<'_>) -> Result<(), Stop> {
        if write.header().dirty().is_some_and(|epoch| epoch != epoch_guard.epoch()) && self.space.is_near_full() {
            crate::coverage::mark!("an image owed to a checkpoint waited for room");
            return Err(Needs::Writes.into());
        }
        Ok(self.append_owed(epoch_guard, write)?)
    }

    /// Like [`prepare_change`](Self::prepare_change), whether or not there is room.
    pub(crate) fn append_owed(&self, epoch_guard: &EpochGuard<'_>, write: &FrameWrite<'_>) -> Result<()> {
        let header = write.header();
        let current = epoch_guard.epoch();
        match header.dirty() {
            Some(epoch) if epoch != current => {
                assert_eq!(epoch.next(), current, "a page is owed to a checkpoint that has ended");
                crate::coverage::mark!("a page changed that a checkpoint had not copied yet");
                // The frame is not pinned for this write: it is dirty again at once, and so not evicted before its next
                // image.
                self.append_image(epoch_guard, epoch, write.page_key(), write, header, None)?;
                self.frames.set_dirty(write.frame(), Some(current));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Records a change of a latched page. The caller has called [`prepare_change`](Self::prepare_change) under the
    /// same epoch guard.
    #[inline]
    pub(crate) fn mark_dirty(&self, epoch_guard: &EpochGuard<'_>, write: &FrameWrite<'_>) {
        let header = write.header();
        let current = epoch_guard.epoch();
        assert!(header.dirty().is_none_or(|epoch| epoch == current), "a page changed before its older image was taken");
        self.frames.set_dirty(write.frame(), Some(current));
    }

    /// The order in which pages are written together: neighbours by key end up side by side, for scans.
    fn write_order(&self, frame: FrameIndex, page_key: PageKey) -> Option<WriteOrder> {
        let page = self.frames.read(frame, page_key)?;
        let kind = page[KIND_OFFSET];
        // The frame may hold a value since it was chosen.
        let is_node = kind == Kind::Leaf as u8 || kind == Kind::Inner as u8;
        Some((page_key.keyspace, kind, if is_node { (self.nodes.key_order)(&page) } else { 0 }))
    }

    /// Appends every page that was dirty when the checkpoint began.
    pub(crate) fn write_epoch(&self, epoch: Epoch) -> Result<u64> {
        let mut frames: Vec<(WriteOrder, FrameIndex)> = Vec::new();
        for frame in self.frames.all() {
            let header = self.frames.header(frame);
            if header.dirty() == Some(epoch)
                && let Some(page_key) = header.page_key()
            {
                frames.extend(self.write_order(frame, page_key).map(|order| (order, frame)));
            }
        }
        frames.sort_unstable();
        let mut count = 0;
        for (_, frame) in frames {
            count += u64::from(self.capture(frame, Some(epoch))?.is_some());
            self.relieve()?;
        }
        debug_assert!(
            self.frames.all().all(|frame| self.frames.header(frame).dirty() != Some(epoch)),
            "a page of {epoch} was left out of its checkpoint"
        );
        Ok(count)
    }
}
