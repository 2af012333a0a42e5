//! Waking the log's background threads.

use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// Wakes the background threads.
#[derive(Debug)]
pub(super) struct Signal {
    state: Mutex<Wanted>,
    prepare: Condvar,
    flush: Condvar,
    /// The delay before records that no caller waits for are written.
    relaxed_delay: Duration,
}

#[derive(Debug, Default)]
struct Wanted {
    prepare: bool,
    flush: Option<Urgency>,
    stop: bool,
}

/// The urgency of a request to write records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum Urgency {
    /// Write after [`LogOptions::relaxed_delay`](super::LogOptions::relaxed_delay): no caller waits for the records.
    Soon = 1,
    /// Write immediately, because a task waits or the buffer is filling up.
    Now = 2,
}

/// The delay before records that no caller waits for are written, unless the user sets it. When the log wrote them as
/// soon as no write was in flight, 300,000 such records per second took a quarter of a processor.
/// Measured: decision 013.
pub(crate) const RELAXED_DELAY: Duration = Duration::from_millis(1);

/// A log that has had nothing to prepare for this long counts as idle. Until then, its spare segments are kept for the
/// next burst of commits. A later burst has to create segments, with a sync for each 8 MiB.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// The reason for waking the thread that prepares segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Prepare,
    /// There has been nothing to prepare for [`IDLE`].
    Idle,
    Stop,
}

impl Signal {
    pub(super) fn new(relaxed_delay: Duration) -> Signal {
        let (prepare, flush) = (Condvar::new(), Condvar::new());
        Signal { state: Mutex::default(), prepare, flush, relaxed_delay }
    }

    pub(super) fn prepare(&self) {
        self.state.lock().prepare = true;
        self.prepare.notify_one();
    }

    pub(super) fn flush(&self, urgency: Urgency) {
        let mut state = self.state.lock();
        state.flush = state.flush.max(Some(urgency));
        drop(state);
        self.flush.notify_one();
    }

    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.prepare.notify_one();
        self.flush.notify_one();
    }

    /// Sleeps until there is a segment to prepare or the log stops. If `has_surplus`, sleeps no longer than [`IDLE`].
    pub(super) fn wait_prepare(&self, has_surplus: bool) -> Call {
        let mut state = self.state.lock();
        while !state.prepare && !state.stop {
            if !has_surplus {
                self.prepare.wait(&mut state);
            } else if self.prepare.wait_for(&mut state, IDLE).timed_out() {
                break;
            }
        }
        let prepare = std::mem::take(&mut state.prepare);
        match (state.stop, prepare) {
            (true, _) => Call::Stop,
            (false, true) => Call::Prepare,
            (false, false) => Call::Idle,
        }
    }

    /// Sleeps until there are records to flush. Returns `false` once the log stops.
    pub(super) fn wait_flush(&self) -> bool {
        let mut state = self.state.lock();
        self.flush.wait_while(&mut state, |wanted| wanted.flush.is_none() && !wanted.stop);
        while state.flush == Some(Urgency::Soon) && !state.stop {
            if self.flush.wait_for(&mut state, self.relaxed_delay).timed_out() {
                break;
            }
        }
        state.flush = None;
        !state.stop
    }
}
