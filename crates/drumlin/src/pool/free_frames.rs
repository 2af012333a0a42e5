//! Taking frames and giving them back: the free, retired and unused frames of each page size, and the clock's hand.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::frame_header::FrameHeader;
use super::frames::{Arena, Frames, HEADER_COUNT, HEADERS_BYTES, Lists, NewFrame, class_of, frame_of, split};
use crate::format::ExtentAddress;
use crate::space::FrameIndex;

/// If no frame is free, and at least this number of frames are retired, those whose readers have left are freed before
/// an unused frame is taken. With fewer retired frames, this is not worthwhile, because it reads the slots of all
/// threads.
const RETIRED_FRAMES_MIN: usize = 8;

impl Frames {
    /// Takes a free frame for a page of this size. Returns `None` if no frame is free and the limit is reached.
    pub(crate) fn try_take(&self, page_bytes: usize) -> Option<NewFrame<'_>> {
        let class = class_of(page_bytes);
        let arena = self.arena_or_new(class).ok()?;
        let mut lists = arena.lists.lock();
        if lists.free.is_empty() && lists.retired.len() >= RETIRED_FRAMES_MIN {
            self.free_retired(&mut lists);
        }
        let index = lists.free.pop().or_else(|| self.take_unused(arena, &mut lists)).or_else(|| {
            self.free_retired(&mut lists);
            lists.free.pop()
        })?;
        debug_assert!(index < lists.unused, "a frame is free that was never used");
        drop(lists);
        let frame = frame_of(class, index as usize);
        let header = self.header(frame);
        assert!(header.page_key().is_none() && header.is_idle(), "a free frame is in use");
        self.set_dirty(frame, None);
        header.set_address(ExtentAddress::NONE);
        header.set_rows_on_disk(None);
        Some(NewFrame { frames: self, frame })
    }

    /// Frees the retired frames whose readers have left.
    fn free_retired(&self, lists: &mut Lists) {
        if lists.retired.is_empty() {
            return;
        }
        let oldest = self.reclaimer.oldest();
        while lists.retired.front().is_some_and(|&(tag, _)| tag < oldest) {
            let (_, index) = lists.retired.pop_front().expect("looked at");
            lists.free.push(index);
        }
    }

    /// Takes a frame that was never used or was given back to the system, if the limit allows one more frame.
    fn take_unused(&self, arena: &Arena, lists: &mut Lists) -> Option<u32> {
        let unused = lists.unused as usize;
        if lists.decommitted.is_empty() && unused == arena.frame_count {
            return None;
        }
        // Headers stay allocated when frames are given back.
        let makes_headers = lists.decommitted.is_empty() && unused.is_multiple_of(HEADER_COUNT);
        let bytes = arena.page_bytes + if makes_headers { HEADERS_BYTES } else { 0 };
        let used = self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        if used + bytes > self.limit_bytes() {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
        Some(lists.decommitted.pop().unwrap_or_else(|| {
            assert!(unused < arena.frame_count, "a frame lies beyond the arena's end");
            if makes_headers {
                let headers = (0..HEADER_COUNT).map(|_| FrameHeader::new()).collect();
                arena.headers[unused / HEADER_COUNT].set(headers).expect("made once");
            }
            lists.unused += 1;
            lists.unused - 1
        }))
    }

    pub(super) fn give(&self, frame: FrameIndex) {
        let header = self.header(frame);
        assert!(header.page_key().is_none(), "a frame with a page is free");
        assert!(header.is_idle(), "a pinned frame is free");
        assert!(header.dirty().is_none(), "a dirty frame is free: {header:?}");
        let (class, index) = split(frame);
        let arena = self.arena(class);
        let mut lists = arena.lists.lock();
        if self.used_bytes() > self.limit_bytes() && arena.frames_per_unit == 1 {
            arena.memory.give_back(index * arena.page_bytes, arena.page_bytes);
            let used_bytes = self.used_bytes.fetch_sub(arena.page_bytes, Ordering::Relaxed);
            assert!(used_bytes >= arena.page_bytes, "a frame is given back that is not counted");
            lists.decommitted.push(index as u32);
        } else {
            lists.free.push(index as u32);
        }
    }

    /// Gives free frames of all other page sizes back to the system, to make room for frames of this size.
    pub(crate) fn give_back_free(&self, keep_page_bytes: usize) {
        self.give_back(Some(class_of(keep_page_bytes)), || true);
    }

    /// Gives free frames back to the system while the frames are [over their limit](Self::is_over_limit).
    pub(crate) fn give_back_excess(&self, more_table_bytes: u64) {
        self.give_back(None, || self.is_over_limit(more_table_bytes));
    }

    /// Gives free frames of all classes except `keep` back to the system while `is_wanted` returns `true`.
    fn give_back(&self, keep: Option<usize>, is_wanted: impl Fn() -> bool) {
        for (class, arena) in self.arenas.iter().enumerate().filter_map(|(class, arena)| Some((class, arena.get()?))) {
            if Some(class) == keep {
                continue;
            }
            let mut lists = arena.lists.lock();
            self.free_retired(&mut lists);
            // The system takes back whole units only, so a unit is given back once all its frames are free.
            let mut free = std::mem::take(&mut lists.free);
            free.sort_unstable();
            let frames_per_unit = arena.frames_per_unit;
            for unit in
                free.chunk_by(|left, right| *left as usize / frames_per_unit == *right as usize / frames_per_unit)
            {
                assert!(unit.len() <= frames_per_unit, "a frame is free twice");
                if unit.len() < frames_per_unit || !is_wanted() {
                    lists.free.extend(unit);
                    continue;
                }
                let bytes = frames_per_unit * arena.page_bytes;
                arena.memory.give_back(unit[0] as usize * arena.page_bytes, bytes);
                let used_bytes = self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
                assert!(used_bytes >= bytes, "frames are given back that are not counted");
                lists.decommitted.extend(unit);
            }
            let out_of_use = lists.free.len() + lists.retired.len() + lists.decommitted.len();
            debug_assert!(out_of_use <= lists.unused as usize, "a frame is in two lists");
        }
    }

    /// Undoes one [`FrameHeader::pin`].
    pub(crate) fn unpin(&self, frame: FrameIndex) {
        if self.header(frame).pins.unpin() {
            self.retire(frame);
        }
    }

    pub(super) fn retire(&self, frame: FrameIndex) {
        let header = self.header(frame);
        assert!(header.page_key().is_none(), "a frame with a page is retired");
        assert!(header.dirty().is_none() && header.is_idle(), "a frame in use is retired: {header:?}");
        let tag = self.reclaimer.retire();
        let (class, index) = split(frame);
        self.arena(class).lists.lock().retired.push_back((tag, index as u32));
    }

    /// Returns the number of frames of a size that are free or retired, plus the number that the limit still allows.
    pub(crate) fn available(&self, page_bytes: usize) -> usize {
        let class = class_of(page_bytes);
        let room = self.limit_bytes().saturating_sub(self.used_bytes()) / page_bytes;
        let Some(arena) = self.arenas[class].get() else { return room };
        let lists = arena.lists.lock();
        lists.free.len() + lists.retired.len() + room
    }

    /// Returns each page size that has frames, with the number of its frames in use or free.
    pub(crate) fn sizes(&self) -> Vec<(usize, usize)> {
        (self.arenas.iter().filter_map(OnceLock::get))
            .map(|arena| {
                let lists = arena.lists.lock();
                (arena.page_bytes, lists.unused as usize - lists.decommitted.len())
            })
            .collect()
    }

    /// Moves the clock's hand by one turn, and yields the frames of this size that it passes.
    pub(crate) fn turn(&self, page_bytes: usize) -> impl Iterator<Item = FrameIndex> + '_ {
        let class = class_of(page_bytes);
        let arena = self.arenas[class].get();
        let count = arena.map_or(0, |arena| arena.lists.lock().unused as usize);
        arena.into_iter().flat_map(move |arena| (0..count).map(move |_| arena)).map(move |arena| {
            let index = arena.hand.fetch_add(1, Ordering::Relaxed) % count.max(1);
            frame_of(class, index)
        })
    }

    /// Returns the frames of a size that the clock's hand will pass next: `frame_count` frames, or a whole turn if
    /// there are fewer. Does not move the hand.
    pub(crate) fn ahead(&self, page_bytes: usize, frame_count: usize) -> impl Iterator<Item = FrameIndex> + '_ {
        let class = class_of(page_bytes);
        let arena = self.arenas[class].get();
        let (count, hand) =
            arena.map_or((0, 0), |arena| (arena.lists.lock().unused as usize, arena.hand.load(Ordering::Relaxed)));
        (0..count.min(frame_count)).map(move |step| frame_of(class, (hand + step) % count))
    }

    /// Returns every frame that holds, or has held, a page.
    pub(crate) fn all(&self) -> impl Iterator<Item = FrameIndex> + '_ {
        (self.arenas.iter().enumerate()).filter_map(|(class, arena)| Some((class, arena.get()?))).flat_map(
            |(class, arena)| {
                let count = arena.lists.lock().unused;
                (0..count).map(move |index| frame_of(class, index as usize))
            },
        )
    }
}
