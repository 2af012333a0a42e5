//! Small numbers for threads, by which they find slots of their own in tables.

use std::cell::Cell;

use super::{Mutex, thread_number};

/// Indexes of threads that have ended, and the lowest one that was never given; the lowest free one is given next.
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
