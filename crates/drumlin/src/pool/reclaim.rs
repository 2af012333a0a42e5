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
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::sync::Mutex;
use crossbeam_utils::CachePadded;

/// Slots in the first block; each block has twice those of the one before.
const FIRST_BLOCK_SLOTS: usize = 64;
const BLOCKS: usize = 16;

type Block = Box<[CachePadded<AtomicU64>]>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    era: CachePadded<AtomicU64>,
    blocks: [OnceLock<Block>; BLOCKS],
}

/// While it lives, nothing that was reachable when it was made is used anew. Not sent to other threads.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    /// `None` where an outer pin of this thread holds the slot.
    slot: Option<&'a AtomicU64>,
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Pin<'_> {
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
    pub(crate) fn pin(&self) -> Pin<'_> {
        let slot = self.slot(thread_index());
        if slot.load(Ordering::Relaxed) != 0 {
            return Pin { slot: None, not_send: std::marker::PhantomData };
        }
        // Release: whoever finds this era in `oldest` has all that the thread read under earlier pins behind it.
        slot.store(self.era.load(Ordering::Relaxed), Ordering::Release);
        // The slot must be visible before any word is read: pairs with the fence in `oldest`.
        fence(Ordering::SeqCst);
        Pin { slot: Some(slot), not_send: std::marker::PhantomData }
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
        let pin = reclaimer.pin();
        let tag = reclaimer.retire();
        assert!(reclaimer.oldest() <= tag);
        let inner = reclaimer.pin();
        drop(inner);
        assert!(reclaimer.oldest() <= tag, "an inner pin does not end the outer");
        drop(pin);
        let later = reclaimer.pin();
        assert!(reclaimer.oldest() > tag);
        drop(later);
    }
}
