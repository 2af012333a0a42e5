//! Dirty pages on their way to the disk: copied into the segment of their epoch, written, and clean again.

use super::{FrameHeader, FrameWrite, Needs, Pool, Stop};
use crate::error::Result;
use crate::format::extent::{Identity, KIND_OFFSET, Kind};
use crate::format::{Epoch, KeyspaceId};
use crate::space::{FrameIndex, Guard, Word};

/// Keyspace, kind, and the beginning of the lowest key.
type WriteOrder = (KeyspaceId, u8, u128);

impl Pool {
    /// Writes these frames' pages and waits until they can be evicted.
    pub(super) fn write_back(&self, frames: Vec<FrameIndex>) -> Result<()> {
        let Some(_alone) = self.writing_back.try_lock() else {
            // Another thread is at it: its pages will do.
            crate::witness::mark!("two threads wanted to write back at once");
            drop(self.writing_back.lock());
            return Ok(());
        };
        self.write_back_alone(frames, None)
    }

    /// Writes all dirty pages, as far as there is space beside `kept_segments`. No checkpoint is being made meanwhile.
    pub(crate) fn write_back_all(&self, kept_segments: u32) -> Result<()> {
        let _alone = self.writing_back.lock();
        let dirty = self.frames.all().filter(|&frame| self.frames.header(frame).dirty().is_some()).collect();
        self.write_back_alone(dirty, Some(kept_segments))
    }

    fn write_back_alone(&self, mut frames: Vec<FrameIndex>, kept_segments: Option<u32>) -> Result<()> {
        frames.sort_by_cached_key(|&frame| {
            let identity = self.frames.header(frame).identity()?;
            self.write_order(frame, identity)
        });
        let mut epochs = [None; 2];
        for frame in frames {
            if let Some(kept_segments) = kept_segments
                && self.space.room_bytes() < 2 * self.frames.page_bytes(frame) as u64
                && !self.space.segments.has_free(kept_segments + 1)
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
            let guard = self.space.enter();
            let current = guard.epoch();
            if epoch == current || epoch.next() == current {
                self.space.flush(epoch);
            }
        }
        self.space.wait_for_jobs(|frames| self.written(frames))?;
        let guard = self.space.enter();
        self.space.summarise(&guard)
    }

    fn written(&self, frames: &[FrameIndex]) {
        for &frame in frames {
            self.frames.let_go(frame);
        }
    }

    /// Makes room among the images on their way to the disk, where there is none: writes those that wait.
    pub(crate) fn relieve(&self) -> Result<()> {
        self.space.wait_for_room(|frames| self.written(frames))
    }

    /// What a checkpoint passes on to have frames released as their images arrive.
    pub(crate) fn on_written(&self) -> impl Fn(&[FrameIndex]) + '_ {
        |frames| self.written(frames)
    }

    /// Appends the image of a dirty page to its epoch's segment and marks it clean; with `only`, pages of that epoch alone.
    /// Returns the epoch.
    pub(crate) fn capture(&self, frame: FrameIndex, only: Option<Epoch>) -> Result<Option<Epoch>> {
        let guard = self.space.enter();
        let header = self.frames.header(frame);
        let Some(identity) = header.identity() else { return Ok(None) };
        let Some(pages) = self.space.page_space(identity.keyspace) else { return Ok(None) };
        let Some(read) = self.frames.read(frame, identity) else { return Ok(None) };
        let word = pages.table.load(identity.page);
        if word != Word::Leaf(frame) && word != Word::Fixed(frame) {
            return Ok(None);
        }
        let Some(epoch) = header.dirty() else { return Ok(None) };
        if only.is_some_and(|only| only != epoch) {
            return Ok(None);
        }
        // Somebody else may be capturing the same page under the same shared latch; the appender's order decides nothing,
        // so only one may: `write_back` and checkpoints exclude each other here.
        let _one = self.arrival(&pages, identity.page).0.lock();
        if header.dirty() != Some(epoch) {
            crate::witness::mark!("a page was copied by another while it was about to be");
            return Ok(None);
        }
        header.hold();
        match self.append_image(&guard, epoch, identity, &read, header, Some(frame)) {
            Ok(()) => {
                self.frames.set_dirty(frame, None);
                Ok(Some(epoch))
            }
            Err(error) => {
                drop(read);
                self.frames.let_go(frame);
                Err(error)
            }
        }
    }

    fn append_image(
        &self,
        _guard: &Guard<'_>,
        epoch: Epoch,
        identity: Identity,
        page: &[u8],
        header: &FrameHeader,
        frame: Option<FrameIndex>,
    ) -> Result<()> {
        let kind = Kind::from_byte(page[KIND_OFFSET]).expect("pages in memory carry their kind");
        assert!(kind != Kind::Value, "a value in memory is never dirty");
        let place = self.space.append(epoch, identity, kind, page, frame)?;
        let old = header.place();
        header.set_place(place);
        if !old.is_none() {
            self.space.segments.release(old, epoch);
        }
        self.space.record(epoch, identity.keyspace, identity.page, place);
        Ok(())
    }

    /// Makes a latched page ready to be changed in the current epoch: where an image of the epoch before is still owed to
    /// the checkpoint being made, it is appended now, if there is room among those on their way to the disk.
    pub(crate) fn prepare_change(&self, guard: &Guard<'_>, write: &FrameWrite<'_>) -> Result<(), Stop> {
        if write.header().dirty().is_some_and(|epoch| epoch != guard.epoch()) && self.space.is_crowded() {
            crate::witness::mark!("an image owed to a checkpoint waited for room");
            return Err(Needs::Writes.into());
        }
        Ok(self.append_owed(guard, write)?)
    }

    /// The same, whether or not there is room.
    pub(crate) fn append_owed(&self, guard: &Guard<'_>, write: &FrameWrite<'_>) -> Result<()> {
        let header = write.header();
        let current = guard.epoch();
        match header.dirty() {
            Some(epoch) if epoch != current => {
                let identity = header.identity().expect("a latched frame holds a page");
                crate::witness::mark!("a page changed that a checkpoint had not copied yet");
                // No write is named for the frame: it is dirty again at once and so not evicted before another image.
                self.append_image(guard, epoch, identity, write, header, None)?;
                self.frames.set_dirty(write.frame(), Some(current));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Notes a change of a latched page. [`prepare_change`](Self::prepare_change) came before, in the same guard.
    #[inline]
    pub(crate) fn mark_dirty(&self, guard: &Guard<'_>, write: &FrameWrite<'_>) {
        let header = write.header();
        let current = guard.epoch();
        assert!(header.dirty().is_none_or(|epoch| epoch == current), "a page changed before its older image was taken");
        self.frames.set_dirty(write.frame(), Some(current));
    }

    /// Where a page belongs among those written together: neighbours by key lie side by side, for scans.
    fn write_order(&self, frame: FrameIndex, identity: Identity) -> Option<WriteOrder> {
        let page = self.frames.read(frame, identity)?;
        let kind = page[KIND_OFFSET];
        // The frame may have become a value's since it was chosen.
        let is_node = kind == Kind::Leaf as u8 || kind == Kind::Inner as u8;
        Some((identity.keyspace, kind, if is_node { (self.nodes.key_order)(&page) } else { 0 }))
    }

    /// Appends every page that was dirty at the cut.
    pub(crate) fn write_epoch(&self, epoch: Epoch) -> Result<u64> {
        let mut frames: Vec<(WriteOrder, FrameIndex)> = Vec::new();
        for frame in self.frames.all() {
            let header = self.frames.header(frame);
            if header.dirty() == Some(epoch)
                && let Some(identity) = header.identity()
            {
                frames.extend(self.write_order(frame, identity).map(|order| (order, frame)));
            }
        }
        frames.sort_unstable();
        let mut count = 0;
        for (_, frame) in frames {
            count += u64::from(self.capture(frame, Some(epoch))?.is_some());
            self.relieve()?;
        }
        Ok(count)
    }
}
