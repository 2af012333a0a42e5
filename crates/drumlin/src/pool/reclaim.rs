//! Epoch-based reclamation: a frame that readers may still be looking at is used again only when they have left.
//!
//! After K. Fraser, "Practical lock-freedom" (2004). A reader pins itself by writing the current era into its thread's
//! slot; a frame that has been unlinked is tagged with the era and serves again once every pinned thread entered later.
//!
//! # Invariants
//! 1. A thread that can reach a frame through a page table read while pinned has, in its slot, an era at or below the tag
//!    the frame gets when it is retired.
//! 2. A slot belongs to one thread at a time; pins of one thread nest.

use std::cell::Cell;
use std::sync::OnceLock;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crossbeam_utils::CachePadded;

/// Slots in the first block; each block has twice those of the one before.
const FIRST_BLOCK_SLOTS: usize = if cfg!(drumlin_loom) { 2 } else { 64 };
const BLOCKS: usize = 16;

type Block = Box<[CachePadded<AtomicU64>]>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    era: CachePadded<AtomicU64>,
    blocks: [OnceLock<Block>; BLOCKS],
}

/// A thread that has entered: while it lives, nothing that was reachable when it was made is used anew. Not sent to other
/// threads. What it keeps is reached through [`Pin`](super::Pin) alone, which knows of whose frames it is.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    /// `None` where an outer pin of this thread holds the slot.
    slot: Option<&'a AtomicU64>,
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.store(0, Ordering::Release);
        }
    }
}

impl Reclaimer {
    pub(crate) fn new() -> Reclaimer {
        Reclaimer { era: CachePadded::new(AtomicU64::new(1)), blocks: [const { OnceLock::new() }; BLOCKS] }
    }

    /// Pins the calling thread.
    #[inline]
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.enter_as(thread_index())
    }

    #[inline]
    fn enter_as(&self, thread_index: usize) -> Entered<'_> {
        let slot = self.slot(thread_index);
        if slot.load(Ordering::Relaxed) != 0 {
            return Entered { slot: None, not_send: std::marker::PhantomData };
        }
        // Release: whoever finds this era in `oldest` has all that the thread read under earlier pins behind it.
        slot.store(self.era.load(Ordering::Relaxed), Ordering::Release);
        // The slot must be visible before any word is read: pairs with the fence in `oldest`.
        fence(Ordering::SeqCst);
        Entered { slot: Some(slot), not_send: std::marker::PhantomData }
    }

    #[inline]
    fn slot(&self, index: usize) -> &AtomicU64 {
        let shifted = index + FIRST_BLOCK_SLOTS;
        let block = (shifted.ilog2() - FIRST_BLOCK_SLOTS.ilog2()) as usize;
        let slots = self.blocks[block]
            .get_or_init(|| (0..FIRST_BLOCK_SLOTS << block).map(|_| CachePadded::new(AtomicU64::new(0))).collect());
        &slots[shifted - (FIRST_BLOCK_SLOTS << block)]
    }

    /// The tag for what has just been unlinked.
    pub(crate) fn retire(&self) -> u64 {
        self.era.fetch_add(1, Ordering::SeqCst)
    }

    /// Everything with a tag below this may be used again.
    pub(crate) fn oldest(&self) -> u64 {
        fence(Ordering::SeqCst);
        let mut oldest = self.era.load(Ordering::SeqCst);
        for slot in self.blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter()) {
            let era = slot.load(Ordering::SeqCst);
            if era != 0 {
                oldest = oldest.min(era);
            }
        }
        // Reads of the frame by threads that have left happened before it is written again.
        fence(Ordering::SeqCst);
        oldest
    }
}

/// Indexes of threads that live; the lowest free one is given to the next thread.
static FREE_INDEXES: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

struct ThreadIndex(Cell<usize>);

impl Drop for ThreadIndex {
    fn drop(&mut self) {
        if self.0.get() != usize::MAX {
            FREE_INDEXES.lock().0.push(self.0.get());
        }
    }
}

thread_local! {
    static THREAD_INDEX: ThreadIndex = const { ThreadIndex(Cell::new(usize::MAX)) };
}

/// A small number that no other living thread has.
#[inline]
pub(crate) fn thread_index() -> usize {
    if let Some(number) = crate::sync::thread_number() {
        return number;
    }
    THREAD_INDEX.with(|index| {
        if index.0.get() == usize::MAX {
            let mut free = FREE_INDEXES.lock();
            let next = free.0.pop().unwrap_or_else(|| {
                free.1 += 1;
                free.1 - 1
            });
            index.0.set(next);
        }
        index.0.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is retired while a thread is pinned waits for that thread, and for no later one.
    #[test]
    fn retired_frames_wait_for_pinned_threads() {
        let reclaimer = Reclaimer::new();
        let pin = reclaimer.enter();
        let tag = reclaimer.retire();
        assert!(reclaimer.oldest() <= tag);
        let inner = reclaimer.enter();
        drop(inner);
        assert!(reclaimer.oldest() <= tag, "an inner pin does not end the outer");
        drop(pin);
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

    /// Two frames, one word that names the first; a reader that pins itself and reads what the word names, twice; a writer
    /// that has the word name the second and fills the first anew as soon as it may.
    #[expect(unsafe_code, reason = "loom's cells are what finds a race")]
    fn read_beside_reuse(pins: bool) {
        struct Frames {
            word: AtomicU64,
            pages: [UnsafeCell<u64>; 2],
            reclaimer: Reclaimer,
        }
        // SAFETY: the model is what shows that accesses are ordered.
        unsafe impl Sync for Frames {}
        // SAFETY: as above.
        unsafe impl Send for Frames {}
        loom::model(move || {
            let frames = Arc::new(Frames {
                word: AtomicU64::new(0),
                pages: [UnsafeCell::new(7), UnsafeCell::new(7)],
                reclaimer: Reclaimer::new(),
            });
            // The blocks of slots are there before threads race for them.
            drop(frames.reclaimer.enter_as(0));
            let shared = Arc::clone(&frames);
            let reader = thread::spawn(move || {
                for _ in 0..2 {
                    let pin = pins.then(|| shared.reclaimer.enter_as(0));
                    let frame = shared.word.load(Ordering::Acquire) as usize;
                    // SAFETY: pinned before the word was read.
                    shared.pages[frame].with(|page| assert_eq!(unsafe { *page }, 7));
                    drop(pin);
                }
            });
            frames.word.store(1, Ordering::Release);
            let tag = frames.reclaimer.retire();
            if tag < frames.reclaimer.oldest() {
                // SAFETY: nobody who could have seen the word's old value is still pinned.
                frames.pages[0].with_mut(|page| unsafe { *page = 8 });
            }
            reader.join().unwrap();
        });
    }

    /// A frame is never filled while a reader looks at it, and what readers saw happens before it is filled.
    #[test]
    fn loom_frames_are_reused_when_readers_have_left() {
        read_beside_reuse(true);
    }

    /// The model finds what it is for: without pins it fails.
    #[test]
    #[should_panic(expected = "ausality violation")]
    fn loom_without_pins_a_reader_sees_a_frame_reused() {
        read_beside_reuse(false);
    }
}
