//! Epoch-based reclamation: a frame that readers may still see is reused only after they have left.
//!
//! Based on K. Fraser, "Practical lock-freedom" (2004). A reader enters by writing the current era into its thread's
//! slot. An unlinked frame is tagged with the current era, and is reused once every thread that holds a guard has
//! entered in a later era.
//!
//! # Invariants
//! 1. If a thread can reach a frame through a page table that it read under the reclaim guard, the era in its slot is
//!    at or below the tag that the frame gets when it is retired.
//! 2. A slot belongs to one thread at a time and counts that thread's guards. Guards nest, and may be dropped in any
//!    order.

use std::sync::OnceLock;

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{CachePadded, thread_index};

/// Number of slots in the first block. Each block has twice as many slots as the one before it.
const FIRST_BLOCK_SLOTS: usize = if cfg!(drumlin_loom) { 2 } else { 64 };
/// The number of blocks, which limits the number of threads. Fixed by the sum of their slots, of which each thread
/// needs one: 64 times (2^16 - 1), about four million.
const BLOCK_COUNT: usize = 16;

/// A thread's part of a reclaimer.
#[derive(Debug, Default)]
struct Slot {
    /// The era of the thread's outermost guard, with the number of its guards in the low bits; 0 if it has no guard.
    held: AtomicU64,
    /// The number of outermost guards taken by all threads that have used the slot, for statistics. It lies in a cache
    /// line that the thread writes anyway.
    entered: std::sync::atomic::AtomicU64,
}

type Block = Box<[CachePadded<Slot>]>;

/// The bits of a slot that count guards. The other 48 hold the era, which increases by one with each retired frame.
const DEPTH_BITS: u32 = 16;
const DEPTH_MAX: u64 = (1 << DEPTH_BITS) - 1;

/// The current era, and a slot for each thread. See the module documentation.
#[derive(Debug)]
pub(crate) struct FrameReclaimer {
    era: CachePadded<AtomicU64>,
    blocks: [OnceLock<Block>; BLOCK_COUNT],
}

/// A guard of this reclaimer. While it lives, no frame that was reachable when it was made is reused. It can't be sent
/// to a different thread. Pages are accessed only through [`ReclaimGuard`](super::ReclaimGuard), which knows the frames
/// that it protects.
#[derive(Debug)]
pub(crate) struct EraGuard<'a> {
    slot: &'a AtomicU64,
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for EraGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Only this thread writes to the slot, so a plain load and store suffice.
        let held = self.slot.load(Ordering::Relaxed);
        debug_assert!(held & DEPTH_MAX > 0, "a guard is dropped in a slot that has none");
        let rest = held - 1;
        self.slot.store(if rest & DEPTH_MAX == 0 { 0 } else { rest }, Ordering::Release);
    }
}

impl FrameReclaimer {
    pub(crate) fn new() -> FrameReclaimer {
        FrameReclaimer { era: CachePadded::new(AtomicU64::new(1)), blocks: [const { OnceLock::new() }; BLOCK_COUNT] }
    }

    /// Keeps the calling thread in the current era until the guard is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> EraGuard<'_> {
        self.enter_as(thread_index())
    }

    #[inline]
    fn enter_as(&self, thread_index: usize) -> EraGuard<'_> {
        debug_assert!(thread_index < FIRST_BLOCK_SLOTS * ((1 << BLOCK_COUNT) - 1), "a thread has no slot");
        let Slot { held: slot, entered } = self.slot(thread_index);
        let held = slot.load(Ordering::Relaxed);
        if held != 0 {
            assert!(held & DEPTH_MAX < DEPTH_MAX, "guards of one thread nest too deep");
            slot.store(held + 1, Ordering::Relaxed);
            return EraGuard { slot, not_send: std::marker::PhantomData };
        }
        // Only this thread writes to the counter, so it needs no atomic addition.
        entered.store(entered.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // Release: if a thread reads this era in `oldest`, it also sees every access that this thread made under
        // earlier guards.
        slot.store((self.era.load(Ordering::Relaxed) << DEPTH_BITS) + 1, Ordering::Release);
        // Make the slot visible before any entry is read. Pairs with the fence in `oldest`.
        fence(Ordering::SeqCst);
        EraGuard { slot, not_send: std::marker::PhantomData }
    }

    #[inline]
    fn slot(&self, index: usize) -> &Slot {
        let shifted = index + FIRST_BLOCK_SLOTS;
        let block = (shifted.ilog2() - FIRST_BLOCK_SLOTS.ilog2()) as usize;
        let slots = self.blocks[block]
            .get_or_init(|| (0..FIRST_BLOCK_SLOTS << block).map(|_| CachePadded::default()).collect());
        &slots[shifted - (FIRST_BLOCK_SLOTS << block)]
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter()).map(|slot| &**slot)
    }

    /// Returns the number of outermost guards taken so far.
    pub(crate) fn entered_count(&self) -> u64 {
        self.slots().map(|slot| slot.entered.load(Ordering::Relaxed)).sum()
    }

    /// Returns the tag for a frame that has just been unlinked.
    pub(crate) fn retire(&self) -> u64 {
        let tag = self.era.fetch_add(1, Ordering::SeqCst);
        assert!(tag < u64::MAX >> DEPTH_BITS, "eras are used up");
        tag
    }

    /// Returns the oldest era that a guard may still hold. Frames with lower tags may be reused.
    pub(crate) fn oldest(&self) -> u64 {
        fence(Ordering::SeqCst);
        let mut oldest = self.era.load(Ordering::SeqCst);
        for slot in self.slots() {
            let held = slot.held.load(Ordering::SeqCst);
            if held != 0 {
                debug_assert!(held & DEPTH_MAX > 0, "a slot keeps an era for no guard");
                oldest = oldest.min(held >> DEPTH_BITS);
            }
        }
        // Order all reads by threads that have dropped their guards before the next write to the frame.
        fence(Ordering::SeqCst);
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame retired while a thread holds a guard waits for that thread, but not for threads that take guards later.
    #[test]
    fn retired_frames_wait_for_pinned_threads() {
        let reclaimer = FrameReclaimer::new();
        let reclaim_guard = reclaimer.enter();
        let tag = reclaimer.retire();
        assert!(reclaimer.oldest() <= tag);
        let inner = reclaimer.enter();
        drop(inner);
        assert!(reclaimer.oldest() <= tag, "an inner pin does not end the outer");
        let inner = reclaimer.enter();
        drop(reclaim_guard);
        assert!(reclaimer.oldest() <= tag, "nor does the outer end an inner");
        drop(inner);
        let later = reclaimer.enter();
        assert!(reclaimer.oldest() > tag);
        drop(later);
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// The guards that the reader takes.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Guards {
        None,
        One,
        /// Two guards. The outer one is dropped before the page is read.
        OuterFirst,
    }

    /// There are two frames, and an entry that refers to the first. A reader takes a guard and reads the page that the
    /// entry refers to, twice. A writer points the entry at the second frame, and refills the first as soon as the
    /// reclaimer allows it.
    #[expect(unsafe_code, reason = "loom's cells are what finds a race")]
    fn read_during_reuse(guards: Guards) {
        struct Frames {
            entry: AtomicU64,
            pages: [UnsafeCell<u64>; 2],
            reclaimer: FrameReclaimer,
        }
        // SAFETY: the model shows whether accesses are ordered.
        unsafe impl Sync for Frames {}
        // SAFETY: as above.
        unsafe impl Send for Frames {}
        loom::model(move || {
            let frames = Arc::new(Frames {
                entry: AtomicU64::new(0),
                pages: [UnsafeCell::new(7), UnsafeCell::new(7)],
                reclaimer: FrameReclaimer::new(),
            });
            // Allocate the blocks of slots before threads race for them.
            drop(frames.reclaimer.enter_as(0));
            let shared = Arc::clone(&frames);
            let reader = thread::spawn(move || {
                for _ in 0..2 {
                    let outer = (guards != Guards::None).then(|| shared.reclaimer.enter_as(0));
                    let inner = (guards == Guards::OuterFirst).then(|| shared.reclaimer.enter_as(0));
                    let reclaim_guard = inner.or(outer);
                    let frame = shared.entry.load(Ordering::Acquire) as usize;
                    // SAFETY: the reclaim guard was taken before the entry was loaded.
                    shared.pages[frame].with(|page| assert_eq!(unsafe { *page }, 7));
                    drop(reclaim_guard);
                }
            });
            frames.entry.store(1, Ordering::Release);
            let tag = frames.reclaimer.retire();
            if tag < frames.reclaimer.oldest() {
                // SAFETY: no thread that could have seen the entry's old value still has its reclaim guard.
                frames.pages[0].with_mut(|page| unsafe { *page = 8 });
            }
            reader.join().unwrap();
        });
    }

    /// A frame is never refilled while a reader sees it, and all reads of its old page happen before the refill.
    #[test]
    fn loom_frames_are_reused_when_readers_have_left() {
        read_during_reuse(Guards::One);
    }

    /// A guard keeps protecting a frame after the guard that it was nested in has been dropped.
    #[test]
    fn loom_a_nested_guard_outlives_the_outer() {
        read_during_reuse(Guards::OuterFirst);
    }

    /// Shows that the model detects the race if there are no guards.
    #[test]
    #[should_panic(expected = "ausality violation")]
    fn loom_without_pins_a_reader_sees_a_frame_reused() {
        read_during_reuse(Guards::None);
    }
}
