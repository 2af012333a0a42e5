//! The progress of commits through three stages: published, durable, visible.
//!
//! - *published*: all commits up to this timestamp are applied. When a thread applies a commit that closes a gap, it
//!   advances this timestamp.
//! - *visible*: readers see the database as of this timestamp. It is min(durable, published), raised to the newest
//!   `Relaxed` commit that has returned, so that the commit's caller sees it. Never above published.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

use crate::format::Timestamp;
use crate::sync::{Backoff, CachePadded};

/// The maximum distance between the oldest commit that has not been applied and the newest one that may be marked as
/// applied. No program has this many threads inside commits; if one did, commits would wait in [`Clock::mark_applied`].
const COMMITS_IN_FLIGHT_MAX: usize = if cfg!(drumlin_loom) { 4 } else { 1 << 14 };

#[derive(Debug)]
pub(crate) struct Clock {
    published: CachePadded<AtomicU64>,
    visible: CachePadded<AtomicU64>,
    /// The slot at index t mod size contains t once commit t is applied.
    applied: Box<[AtomicU64]>,
}

impl Clock {
    /// Creates a clock at the last recovered commit.
    pub(crate) fn new(last: Timestamp) -> Clock {
        Clock {
            published: CachePadded::new(AtomicU64::new(last.0)),
            visible: CachePadded::new(AtomicU64::new(last.0)),
            applied: (0..COMMITS_IN_FLIGHT_MAX).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    #[inline]
    pub(crate) fn published(&self) -> Timestamp {
        Timestamp(self.published.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn visible(&self) -> Timestamp {
        Timestamp(self.visible.load(Ordering::Acquire))
    }

    /// Records that the commit's changes are in the pages.
    ///
    /// If the slot is still in use by the commit that is [`COMMITS_IN_FLIGHT_MAX`] timestamps earlier, waits until all
    /// commits up to that one are published. The wait ends whatever latches or locks the caller holds: the oldest
    /// commit that has not been applied never waits here, and a commit waits for no other commit between taking its
    /// timestamp and this call.
    pub(crate) fn mark_applied(&self, timestamp: Timestamp) {
        let published = self.published.load(Ordering::Relaxed);
        assert!(published < timestamp.0, "a commit is published before it is applied");
        if timestamp.0 >= published + COMMITS_IN_FLIGHT_MAX as u64 {
            self.wait_published(Timestamp(timestamp.0 - COMMITS_IN_FLIGHT_MAX as u64 + 1));
        }
        let slot = &self.applied[timestamp.0 as usize % COMMITS_IN_FLIGHT_MAX];
        let earlier = slot.load(Ordering::Relaxed);
        debug_assert!(earlier < timestamp.0, "commit {timestamp} is applied twice");
        debug_assert!(earlier <= self.published().0, "commit {timestamp} takes the slot of one that waits");
        slot.store(timestamp.0, Ordering::Release);
        // Of all threads that mark commits as applied, the one with the last fence sees the slots of all the others. So
        // some thread always advances published all the way.
        fence(Ordering::SeqCst);
        loop {
            let published = self.published.load(Ordering::Acquire);
            let next = published + 1;
            if self.applied[next as usize % COMMITS_IN_FLIGHT_MAX].load(Ordering::Acquire) != next {
                return;
            }
            if next != timestamp.0 {
                crate::coverage::mark!("a commit published earlier applied commits");
            }
            let _ = self.published.compare_exchange(published, next, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Raises visible to the newest commit that is both durable and published.
    pub(crate) fn show_durable(&self, durable: Timestamp) {
        let both = durable.0.min(self.published.load(Ordering::SeqCst));
        self.raise_visible(both);
        debug_assert!(self.is_in_order(), "a commit is visible before it is published");
    }

    /// Raises visible to a commit that returns before it is durable. First waits until all earlier commits are applied.
    pub(crate) fn show_relaxed(&self, timestamp: Timestamp) {
        self.wait_published(timestamp);
        self.raise_visible(timestamp.0);
        debug_assert!(self.is_in_order(), "a commit is visible before it is published");
    }

    /// Raises visible to an applied commit that does not have to be durable, if all earlier commits are applied too.
    /// Otherwise returns `false` without waiting.
    #[inline]
    pub(crate) fn try_show_relaxed(&self, timestamp: Timestamp) -> bool {
        let is_published = self.published() >= timestamp;
        if is_published {
            self.raise_visible(timestamp.0);
            debug_assert!(self.is_in_order(), "a commit is visible before it is published");
        }
        is_published
    }

    /// Load before writing: another commit has often raised the timestamp further already, and a cache line that is
    /// only read stays in the caches of all processors.
    fn raise_visible(&self, timestamp: u64) {
        if self.visible.load(Ordering::SeqCst) < timestamp {
            self.visible.fetch_max(timestamp, Ordering::SeqCst);
        }
    }

    /// Checks that visible is not above published. Loads visible first: published only rises, so a concurrent change
    /// can't make the check fail.
    fn is_in_order(&self) -> bool {
        let visible = self.visible();
        visible <= self.published()
    }

    /// Waits until every commit up to this one is applied. This takes only an instant, because a commit that is being
    /// applied waits for nothing.
    pub(crate) fn wait_published(&self, timestamp: Timestamp) {
        let backoff = Backoff::default();
        while self.published() < timestamp {
            backoff.snooze();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published never passes a gap. The thread that closes a gap advances it.
    #[test]
    fn published_never_passes_a_gap() {
        let clock = Clock::new(Timestamp(7));
        clock.mark_applied(Timestamp(9));
        clock.mark_applied(Timestamp(10));
        assert_eq!(clock.published(), Timestamp(7));
        clock.mark_applied(Timestamp(8));
        assert_eq!(clock.published(), Timestamp(10));
    }

    /// If there are more concurrent commits than slots, the newest commits wait until the oldest is applied. All of
    /// them complete.
    #[test]
    fn more_commits_than_slots_wait_for_the_oldest() {
        let clock = Clock::new(Timestamp(0));
        let newest = COMMITS_IN_FLIGHT_MAX as u64 + 5;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Wait until the other commits have filled the last slot.
                while clock.applied[COMMITS_IN_FLIGHT_MAX - 1].load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                clock.mark_applied(Timestamp(1));
            });
            (2..=newest).for_each(|timestamp| clock.mark_applied(Timestamp(timestamp)));
        });
        assert_eq!(clock.published(), Timestamp(newest));
    }

    /// Visible is limited by both durability and publication.
    #[test]
    fn visible_is_the_lesser_of_durable_and_published() {
        let clock = Clock::new(Timestamp(0));
        clock.mark_applied(Timestamp(1));
        clock.mark_applied(Timestamp(3));
        clock.show_durable(Timestamp(3));
        assert_eq!(clock.visible(), Timestamp(1));
        clock.mark_applied(Timestamp(2));
        clock.show_durable(Timestamp(2));
        assert_eq!(clock.visible(), Timestamp(2));
        clock.show_relaxed(Timestamp(3));
        assert_eq!(clock.visible(), Timestamp(3));
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two threads apply two commits, in either order. In the end, the later commit is published. A thread that sees a
    /// timestamp as published sees all changes of this commit and of the earlier ones.
    #[test]
    #[expect(unsafe_code, reason = "loom's cells are what finds a race")]
    fn loom_published_commits_are_seen_whole() {
        struct Pages([UnsafeCell<u64>; 2]);
        // SAFETY: the model itself checks that accesses are ordered.
        unsafe impl Sync for Pages {}
        // SAFETY: as above.
        unsafe impl Send for Pages {}
        loom::model(|| {
            let clock = Arc::new(Clock::new(Timestamp(0)));
            let pages = Arc::new(Pages([UnsafeCell::new(0), UnsafeCell::new(0)]));
            let committers: Vec<_> = (1..=2u64)
                .map(|timestamp| {
                    let (clock, pages) = (Arc::clone(&clock), Arc::clone(&pages));
                    thread::spawn(move || {
                        // SAFETY: each commit has its own page, which no thread reads before the commit is published.
                        pages.0[timestamp as usize - 1].with_mut(|page| unsafe { *page = timestamp });
                        clock.mark_applied(Timestamp(timestamp));
                        clock.show_durable(Timestamp(timestamp));
                    })
                })
                .collect();
            let published = clock.published();
            let visible = clock.visible();
            for timestamp in 1..=published.0 {
                // SAFETY: the commit is published, so the thread that wrote the page has finished.
                pages.0[timestamp as usize - 1].with(|page| assert_eq!(unsafe { *page }, timestamp));
            }
            for committer in committers {
                committer.join().unwrap();
            }
            assert_eq!(clock.published(), Timestamp(2));
            assert!(visible <= Timestamp(2));
            // Calling `show_durable` once more makes every commit visible.
            clock.show_durable(Timestamp(2));
            assert_eq!(clock.visible(), Timestamp(2));
        });
    }
}
