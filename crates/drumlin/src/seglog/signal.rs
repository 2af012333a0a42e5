//! Waking the log's background threads.

use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// Wakes the background threads.
#[derive(Debug, Default)]
pub(super) struct Signal {
    state: Mutex<Wanted>,
    prepare: Condvar,
    flush: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    prepare: bool,
    flush: Option<Urgency>,
    stop: bool,
}

/// The urgency of writing records that no thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum Urgency {
    /// Write within [`GATHERING`]: no task waits for the records either.
    Soon = 1,
    /// Write immediately: a task waits, or the buffer is filling up.
    Now = 2,
}

/// The delay before writing records that no caller waits for. At 300,000 such records per second, writing whenever no
/// write was in flight took a quarter of a processor.
/// Measured: decision 013.
const GATHERING: Duration = Duration::from_millis(1);

/// A log with nothing to prepare for this long counts as idle. Its spare segments are kept this long for the next burst
/// of commits. A later burst has to create segments, with a sync for each 8 MiB.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// The reason why the preparing thread wakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Prepare,
    /// Nothing has had to be prepared for a while.
    Idle,
    Stop,
}

impl Signal {
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
            if self.flush.wait_for(&mut state, GATHERING).timed_out() {
                break;
            }
        }
        state.flush = None;
        !state.stop
    }
}
