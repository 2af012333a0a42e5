//! Small numbers for threads: indexes of slots in tables, and tags by which threads recognise their own entries.

use std::cell::Cell;
use std::sync::atomic::{AtomicU16, Ordering};

use super::{Mutex, thread_number};

/// The free indexes of threads that have ended, and the lowest index that was never used. Free indexes are reused
/// first.
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

/// Returns the index of the calling thread: a small number, unique among living threads.
#[inline]
pub fn thread_index() -> usize {
    if let Some(number) = thread_number() {
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

/// The number of a thread. A number is reused only after 65,535 other threads have received theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadTag(u16);

impl ThreadTag {
    /// The tag of no thread. (Of one thread in 65,536, if there were that many.)
    pub const NONE: ThreadTag = ThreadTag(u16::MAX);
}

/// Returns the tag of the calling thread.
#[inline]
pub fn thread_tag() -> ThreadTag {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    thread_local! {
        static TAG: Cell<Option<ThreadTag>> = const { Cell::new(None) };
    }
    if let Some(number) = thread_number() {
        return ThreadTag(number as u16);
    }
    TAG.with(|tag| match tag.get() {
        Some(tag) => tag,
        None => {
            let new = ThreadTag(NEXT.fetch_add(1, Ordering::Relaxed));
            tag.set(Some(new));
            new
        }
    })
}
