//! Copies of leaves that a running checkpoint has still to write, made so that commits need not wait for it.
//!
//! A checkpoint owes an image of every page that was dirty when it began. If a commit changes such a leaf first, it
//! copies the page into a free frame, and the checkpoint encodes and appends that *checkpoint copy* later. (Copy on
//! update; Cao and others, "Fast checkpoint recovery algorithms for frequently consistent applications", SIGMOD 2011,
//! compare such methods.) If no frame is free, the commit appends the image itself. So it does for inner nodes, because
//! each change replaces their frame.
//!
//! # Invariants
//! 1. A leaf has at most one copy: the page as of the end of the epoch before the newest one. The leaf is dirty of the
//!    newest epoch.
//! 2. A leaf with a copy is pinned, so it stays in its frame. A leaf that is to be removed loses its copy first.
//! 3. The header names the copy until its image has been appended, so a checkpoint that finds neither an old change
//!    nor a copy owes nothing.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::Ordering;

use super::Pool;
use super::frames::{FrameWrite, Frames, NewFrame};
use crate::format::Epoch;
use crate::format::extent::{KIND_OFFSET, Kind};
use crate::space::FrameIndex;

/// The share of the frames' memory (one in this many) that copies may take. Each also pins a leaf, so copies may hold
/// half of the frames. The checkpoint writes and frees copies without taking a frame, so threads that wait for a frame
/// get one.
const COPY_SHARE: usize = 4;

/// The copy of a leaf, which stays until it is [freed](Self::free). The holder has latched the leaf exclusively, or has
/// locked it against capturing it twice.
pub(super) struct CheckpointCopy<'p> {
    frames: &'p Frames,
    live: FrameIndex,
    /// The frame belongs to the header of the leaf until the copy is freed.
    copy: ManuallyDrop<NewFrame<'p>>,
}

impl CheckpointCopy<'_> {
    /// Returns the epoch whose checkpoint has to write the copy.
    pub(super) fn epoch(&self) -> Epoch {
        self.copy.header().dirty().expect("a copy is owed to a checkpoint")
    }

    /// Frees the copy, whose image was appended or is not needed, and unpins the leaf.
    pub(super) fn free(self) {
        let copy = ManuallyDrop::into_inner(self.copy);
        self.frames.set_dirty(copy.frame, None);
        let copied_bytes = self.frames.copied_bytes.fetch_sub(copy.len(), Ordering::Relaxed);
        assert!(copied_bytes >= copy.len(), "a copy is freed that was not counted");
        let header = self.frames.header(self.live);
        assert!(header.copy() == Some(copy.frame) && !header.is_idle(), "a leaf has lost its copy: {header:?}");
        header.set_copy(None);
        drop(copy);
        self.frames.unpin(self.live);
    }
}

impl Deref for CheckpointCopy<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.copy
    }
}

impl Frames {
    /// Returns the copy of the leaf in a frame.
    pub(super) fn checkpoint_copy(&self, live: FrameIndex) -> Option<CheckpointCopy<'_>> {
        let frame = self.header(live).copy()?;
        Some(CheckpointCopy { frames: self, live, copy: ManuallyDrop::new(NewFrame { frames: self, frame }) })
    }
}

impl Pool {
    /// Copies a leaf that was last changed in `epoch`, whose checkpoint is being made. Returns `false` if the page is
    /// an inner node, or if too few frames are free. O(page size).
    pub(super) fn make_copy(&self, epoch: Epoch, write: &FrameWrite<'_>) -> bool {
        let page_bytes = write.len();
        if write[KIND_OFFSET] != Kind::Leaf as u8 || !self.has_room_for_copy(page_bytes) {
            return false;
        }
        let Some(mut copy) = self.frames.try_take(page_bytes) else { return false };
        copy.copy_from_slice(write);
        copy.set_dirty(epoch);
        // From here on, the frame belongs to the leaf's header.
        let frame = ManuallyDrop::new(copy).frame;
        let header = write.header();
        debug_assert!(header.copy().is_none(), "a leaf gets a second copy: {header:?}");
        debug_assert_eq!(header.dirty(), Some(epoch), "a copy is made of another epoch");
        header.pin();
        header.set_copy(Some(frame));
        self.frames.copied_bytes.fetch_add(page_bytes, Ordering::Relaxed);
        assert!(header.copy() == Some(frame), "a leaf's header names another copy");
        true
    }

    /// Returns `true` if one more copy leaves enough frames for others.
    fn has_room_for_copy(&self, page_bytes: usize) -> bool {
        if self.frames.copied_bytes.load(Ordering::Relaxed) + page_bytes > self.copied_bytes_max() {
            return false;
        }
        let (available, low_water) = (self.frames.available(page_bytes), self.low_water(page_bytes));
        if available <= low_water {
            self.wake_background();
        }
        available > low_water / 2
    }

    fn copied_bytes_max(&self) -> usize {
        self.frames.limit_bytes() / COPY_SHARE
    }

    /// Returns `true` if copies take so much memory that the checkpoint should free them as fast as it can.
    pub(crate) fn has_many_copies(&self) -> bool {
        self.frames.copied_bytes.load(Ordering::Relaxed) > self.copied_bytes_max() / 2
    }
}
