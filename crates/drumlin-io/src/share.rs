//! Limits background work to a share of the requests in flight while the foreground is active.
//!
//! A [`Driver`](crate::Driver) counts its own requests, under its lock. A [`Share`] counts the requests of any number
//! of threads and queues. Both apply the limit of [`background_max`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::backend::Backend;

/// The foreground counts as active for this long after its last request has finished.
pub(crate) const FOREGROUND_LINGER: Duration = Duration::from_millis(1);

/// Returns the maximum number of background requests in flight if there are `foreground_count` foreground requests:
/// `share` of the sum of both, but at least 1. If the foreground is active without requests, it counts as one request.
pub(crate) fn background_max(share: f64, foreground_count: usize) -> usize {
    if share >= 1.0 {
        return usize::MAX;
    }
    ((foreground_count.max(1) as f64 * share / (1.0 - share)) as usize).max(1)
}

/// Makes a program's background requests yield to its foreground requests. For programs that use [queues](crate::Queue)
/// and blocking calls instead of a [`Driver`](crate::Driver), which has its [own share](crate::Driver::background).
///
/// While foreground requests are in flight, or were within the last millisecond, background requests beyond their share
/// are refused. No call waits: a thread whose request is refused collects one of its earlier requests, then retries.
/// Each thread may always have one background request in flight ([`background`](Self::background)), and tries to begin
/// more ([`try_background`](Self::try_background)).
///
/// The counts are atomic, but not synchronised with each other, so a request that begins at the same moment may be
/// missed.
///
/// # Examples
/// ```
/// use drumlin_io::{Share, in_memory};
///
/// let share = Share::new(in_memory(), 0.75);
/// let read = share.foreground();
/// let scan = [share.background(), share.background(), share.background()];
/// assert!(share.try_background().is_none(), "three quarters of the requests in flight");
/// let another_read = share.foreground();
/// assert!(share.try_background().is_some());
/// # drop((read, another_read, scan));
/// ```
#[derive(Default)]
pub struct Share {
    /// The share, and the backend that provides the clock. `None` if there is no limit.
    limit: Option<(f64, Arc<dyn Backend>)>,
    foreground: AtomicUsize,
    background: AtomicUsize,
    urgent: AtomicUsize,
    /// The time at which the last foreground request ended, in nanoseconds; 0 if none has ended yet.
    foreground_ended: AtomicU64,
}

/// A request in flight. Its [`Share`] counts it until this guard is dropped.
#[derive(Debug)]
#[must_use = "a request is counted only as long as this lives"]
pub struct InFlight<'s> {
    share: &'s Share,
    is_foreground: bool,
}

/// Lifts the limit of a [`Share`] until this guard is dropped.
#[derive(Debug)]
#[must_use = "the limit is lifted only as long as this lives"]
pub struct Urgent<'s>(&'s Share);

impl Share {
    /// Limits background requests to `share` (between 0 and 1) of the requests in flight. The backend provides the
    /// clock. [`Share::default`] sets no limit.
    ///
    /// # Panics
    /// If `share` is not between 0 and 1.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, share: f64) -> Share {
        assert!((0.0..=1.0).contains(&share), "the share {share} is not between 0 and 1");
        Share { limit: (share < 1.0).then_some((share, backend)), ..Share::default() }
    }

    /// Begins a foreground request. It is never refused.
    pub fn foreground(&self) -> InFlight<'_> {
        self.foreground.fetch_add(1, Ordering::Relaxed);
        InFlight { share: self, is_foreground: true }
    }

    /// Begins a background request on a thread that has no other background request in flight. It is never refused, so
    /// that background work progresses however busy the foreground is.
    pub fn background(&self) -> InFlight<'_> {
        self.background.fetch_add(1, Ordering::Relaxed);
        InFlight { share: self, is_foreground: false }
    }

    /// Begins one more background request, or returns `None` if that would exceed the share.
    pub fn try_background(&self) -> Option<InFlight<'_>> {
        let count_max = self.background_max();
        let add = |count: usize| (count < count_max).then_some(count + 1);
        self.background.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(InFlight { share: self, is_foreground: false })
    }

    /// Lifts the limit while a foreground thread waits for background work.
    pub fn urgent(&self) -> Urgent<'_> {
        self.urgent.fetch_add(1, Ordering::Relaxed);
        Urgent(self)
    }

    /// Returns `true` while a foreground thread waits for background work ([`urgent`](Self::urgent)).
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) > 0
    }

    /// Returns the numbers of foreground and background requests in flight.
    pub fn in_flight(&self) -> (usize, usize) {
        (self.foreground.load(Ordering::Relaxed), self.background.load(Ordering::Relaxed))
    }

    /// Returns `true` while foreground requests are in flight, and for a millisecond after the last one. Always `false`
    /// without a limit, and while a foreground thread waits for background work ([`urgent`](Self::urgent)).
    pub fn is_foreground_active(&self) -> bool {
        let Some((_, backend)) = &self.limit else { return false };
        let has_ended_lately = || {
            let ended = self.foreground_ended.load(Ordering::Relaxed);
            ended > 0 && backend.now().saturating_sub(Duration::from_nanos(ended)) < FOREGROUND_LINGER
        };
        !self.is_urgent() && (self.foreground.load(Ordering::Acquire) > 0 || has_ended_lately())
    }

    fn background_max(&self) -> usize {
        match &self.limit {
            Some((share, _)) if self.is_foreground_active() => {
                background_max(*share, self.foreground.load(Ordering::Acquire))
            }
            _ => usize::MAX,
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let Share { foreground, background, limit, foreground_ended, .. } = self.share;
        if !self.is_foreground {
            background.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        // Store the time before decrementing the count, so that no thread sees an idle foreground between the two
        // steps.
        if let Some((_, backend)) = limit {
            foreground_ended.store(backend.now().as_nanos() as u64, Ordering::Relaxed);
        }
        foreground.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.urgent.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (foreground, background) = self.in_flight();
        write!(f, "Share({foreground} foreground and {background} background requests in flight)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Background requests are limited to their share while the foreground is active or was active recently. They are
    /// unlimited while the foreground is idle or waits for them. A thread without a background request may always begin
    /// one.
    #[test]
    fn the_background_has_its_share() {
        let clock = crate::in_memory();
        for (share, beside_one, beside_four) in [(0.0, 1, 1), (0.2, 1, 1), (0.5, 1, 4), (0.75, 3, 12), (1.0, 50, 50)] {
            let share = Share::new(Arc::clone(&clock), share);
            let room = || std::iter::from_fn(|| share.try_background()).take(50).collect::<Vec<_>>().len();
            assert_eq!(room(), 50, "the foreground was never active");
            assert!(!share.is_foreground_active());
            let one = share.foreground();
            assert_eq!(share.is_foreground_active(), beside_one < 50, "it is told if there is a limit");
            assert_eq!(room(), beside_one);
            let three = [share.foreground(), share.foreground(), share.foreground()];
            assert_eq!(room(), beside_four);
            let threads = [(); 20].map(|()| share.background());
            assert_eq!(room(), if beside_four == 50 { 50 } else { 0 });
            drop(threads);
            assert!(!share.is_urgent());
            let waiter = share.urgent();
            assert!(share.is_urgent());
            assert_eq!(room(), 50, "the foreground waits for the background");
            assert!(!share.is_foreground_active());
            drop((waiter, three));
            assert_eq!(room(), beside_one);
            drop(one);
            let ended = Duration::from_nanos(share.foreground_ended.load(Ordering::Relaxed));
            let lingering = room();
            if clock.now() < ended + FOREGROUND_LINGER {
                assert_eq!(lingering, beside_one);
            }
            while clock.now() < ended + FOREGROUND_LINGER {
                std::thread::yield_now();
            }
            assert_eq!(room(), 50);
            assert!(!share.is_foreground_active());
            assert_eq!(share.in_flight(), (0, 0));
        }
    }

    #[test]
    #[should_panic(expected = "is not between 0 and 1")]
    fn a_share_is_a_part() {
        let _ = Share::new(crate::in_memory(), 1.5);
    }
}
