//! How far commits have come: applied, durable, seen.
//!
//! - *published*: every timestamp up to it is applied. Whoever applies the one that closes a gap advances it.
//! - *visible*: what readers see: min(durable, published), raised to the newest Relaxed commit that has returned, so that
//!   its author sees it; never above published.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::format::Timestamp;
use crate::sync::Backoff;

/// Commits that may be between timestamp and applied at once: bounded by the threads that commit.
const IN_FLIGHT_MAX: usize = 1 << 14;

#[derive(Debug)]
pub(crate) struct Clock {
    published: CachePadded<AtomicU64>,
    visible: CachePadded<AtomicU64>,
    /// Slot t mod size holds t once t is applied.
    applied: Box<[AtomicU64]>,
}

impl Clock {
    /// A clock that stands at the last commit recovered.
    pub(crate) fn new(last: Timestamp) -> Clock {
        Clock {
            published: CachePadded::new(AtomicU64::new(last.0)),
            visible: CachePadded::new(AtomicU64::new(last.0)),
            applied: (0..IN_FLIGHT_MAX).map(|_| AtomicU64::new(0)).collect(),
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

    /// The commit's changes are in the pages.
    pub(crate) fn mark_applied(&self, timestamp: Timestamp) {
        assert!(
            timestamp.0 < self.published.load(Ordering::Relaxed) + IN_FLIGHT_MAX as u64,
            "too many commits in flight"
        );
        self.applied[timestamp.0 as usize % IN_FLIGHT_MAX].store(timestamp.0, Ordering::SeqCst);
        loop {
            let published = self.published.load(Ordering::SeqCst);
            let next = published + 1;
            if self.applied[next as usize % IN_FLIGHT_MAX].load(Ordering::SeqCst) != next {
                return;
            }
            if next != timestamp.0 {
                crate::witness::mark!("a commit published others that were applied before it");
            }
            let _ = self.published.compare_exchange(published, next, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Raises visible to what is durable and applied.
    pub(crate) fn show_durable(&self, durable: Timestamp) {
        let both = durable.0.min(self.published.load(Ordering::SeqCst));
        self.visible.fetch_max(both, Ordering::SeqCst);
    }

    /// Raises visible to a commit that returns before it is durable.
    pub(crate) fn show_relaxed(&self, timestamp: Timestamp) {
        self.wait_published(timestamp);
        self.visible.fetch_max(timestamp.0, Ordering::SeqCst);
    }

    /// Waits until every commit up to this one is applied: an instant, since none of them waits for anything.
    pub(crate) fn wait_published(&self, timestamp: Timestamp) {
        let backoff = Backoff::new();
        while self.published() < timestamp {
            backoff.snooze();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published never passes a gap, and whoever closes the gap advances it.
    #[test]
    fn published_never_passes_a_gap() {
        let clock = Clock::new(Timestamp(7));
        clock.mark_applied(Timestamp(9));
        clock.mark_applied(Timestamp(10));
        assert_eq!(clock.published(), Timestamp(7));
        clock.mark_applied(Timestamp(8));
        assert_eq!(clock.published(), Timestamp(10));
    }

    /// Visible is held back by both durability and publication.
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
