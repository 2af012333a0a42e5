//! The durable horizon: the timestamp up to which all records are on the medium, in every stream.
//!
//! Streams are written independently, so a record may be on the medium while an older record of another stream is not.
//! Each stream publishes a *floor*, and the horizon stays below all floors.
//!
//! # Invariants
//! 1. A stream's floor is at or below its first record that is not on the medium, or `NO_FLOOR` if all its records are.
//! 2. A floor is lowered before its timestamp is taken. So a thread that sees the timestamp in `last` either sees a
//!    floor that covers it, or finds the record on the medium.
//! 3. Everything at or below the horizon is on the medium. The horizon never moves back.

use crate::format::Timestamp;
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The floor of a stream without pending records.
const NO_FLOOR: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Horizon {
    /// The newest timestamp that was assigned.
    last: CachePadded<AtomicU64>,
    durable: CachePadded<AtomicU64>,
    floors: Box<[CachePadded<AtomicU64>]>,
}

impl Horizon {
    /// Creates the horizon of a log whose records up to `last` are all on the medium.
    pub(super) fn new(stream_count: usize, last: Timestamp) -> Horizon {
        let at = |value| CachePadded::new(AtomicU64::new(value));
        Horizon { last: at(last.0), durable: at(last.0), floors: (0..stream_count).map(|_| at(NO_FLOOR)).collect() }
    }

    #[inline]
    pub(super) fn last(&self) -> Timestamp {
        Timestamp(self.last.load(Ordering::SeqCst))
    }

    #[inline]
    pub(super) fn durable(&self) -> Timestamp {
        Timestamp(self.durable.load(Ordering::SeqCst))
    }

    /// Assigns a timestamp to a record, and returns it with the current horizon. `floor` is the timestamp of the
    /// stream's first record that is not on the medium. The caller must hold the lock of the stream's tail.
    pub(super) fn take(&self, stream: usize, floor: Option<Timestamp>) -> (Timestamp, Timestamp) {
        let is_first = floor.is_none();
        if is_first {
            self.floors[stream].store(self.last.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
        let horizon = self.durable();
        let timestamp = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        if is_first {
            self.floors[stream].store(timestamp, Ordering::SeqCst);
        }
        debug_assert!(floor.is_none_or(|floor| floor.0 < timestamp), "a floor is above the record that is appended");
        assert!(horizon.0 < timestamp, "the horizon covers a timestamp that is only being taken");
        (Timestamp(timestamp), horizon)
    }

    /// Raises the stream's floor to the timestamp of its first record that is not on the medium, or to `NO_FLOOR` if
    /// all its records are. The caller must hold the lock of the stream's tail.
    pub(super) fn raise_floor(&self, stream: usize, floor: Option<Timestamp>) {
        debug_assert!(floor.is_none_or(|floor| floor <= self.last()), "a record is pending that has no timestamp yet");
        assert!(floor.is_none_or(|floor| self.durable() < floor), "the horizon has passed a record that is pending");
        let before = || self.floors[stream].load(Ordering::SeqCst);
        debug_assert!(floor.is_none_or(|floor| before() <= floor.0), "the floor of stream {stream} comes down");
        self.floors[stream].store(floor.map_or(NO_FLOOR, |floor| floor.0), Ordering::SeqCst);
    }

    /// Returns `true` if a record of the stream at or below `timestamp` may be missing from the medium.
    pub(super) fn is_held_back(&self, stream: usize, timestamp: Timestamp) -> bool {
        self.floors[stream].load(Ordering::SeqCst) <= timestamp.0
    }

    /// Advances the horizon as far as the floors allow. Returns the new horizon if it has advanced.
    pub(super) fn advance(&self) -> Option<Timestamp> {
        // Load `last` before the floors: invariant 2.
        let mut horizon = self.last.load(Ordering::SeqCst);
        for floor in &self.floors {
            horizon = horizon.min(floor.load(Ordering::SeqCst).saturating_sub(1));
        }
        let previous = self.durable.fetch_max(horizon, Ordering::SeqCst);
        (previous < horizon).then_some(Timestamp(horizon))
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    /// A model of a log that exercises its horizon: the tails, and a medium with a cell for each record.
    struct Rig {
        horizon: Horizon,
        tails: [Mutex<()>; 2],
        medium: [UnsafeCell<bool>; 2],
    }

    // SAFETY: loom's cells detect all races.
    #[expect(unsafe_code, reason = "loom's cells are what finds a race")]
    unsafe impl Sync for Rig {}
    // SAFETY: as above.
    #[expect(unsafe_code, reason = "loom's cells are what finds a race")]
    unsafe impl Send for Rig {}

    impl Rig {
        /// Assigns the record's timestamp and writes the record to the medium.
        #[expect(unsafe_code, reason = "loom's cells are what finds a race")]
        fn commit(&self, stream: usize, take: impl Fn(&Horizon, usize) -> Timestamp) {
            let tail = self.tails[stream].lock().unwrap();
            let timestamp = take(&self.horizon, stream);
            drop(tail);
            // SAFETY: the cell belongs to this record; no thread reads it before the horizon covers the record.
            self.medium[timestamp.0 as usize - 1].with_mut(|record| unsafe { *record = true });
            let tail = self.tails[stream].lock().unwrap();
            self.horizon.raise_floor(stream, None);
            drop(tail);
            self.horizon.advance();
        }

        /// Asserts that every record that the horizon covers is on the medium.
        #[expect(unsafe_code, reason = "loom's cells are what finds a race")]
        fn look(&self) -> Timestamp {
            let durable = self.horizon.durable();
            for record in &self.medium[..durable.0 as usize] {
                // SAFETY: the horizon covers the record, so the record was written before this read.
                record.with(|record| assert!(unsafe { *record }, "the horizon covers a record that is not there"));
            }
            durable
        }
    }

    fn explore(take: impl Fn(&Horizon, usize) -> Timestamp + Copy + Send + Sync + 'static) {
        loom::model(move || {
            let rig = Arc::new(Rig {
                horizon: Horizon::new(2, Timestamp(0)),
                tails: [Mutex::new(()), Mutex::new(())],
                medium: [UnsafeCell::new(false), UnsafeCell::new(false)],
            });
            let committers = [0, 1].map(|stream| {
                let rig = Arc::clone(&rig);
                thread::spawn(move || rig.commit(stream, take))
            });
            let seen = rig.look();
            for committer in committers {
                committer.join().unwrap();
            }
            assert!(seen <= rig.look());
            // The later of the two threads to raise its floor sees the other thread's raised floor.
            assert_eq!(rig.look(), Timestamp(2));
        });
    }

    /// Two streams with one commit each, and a reader: everything that the horizon covers is on the medium, and the
    /// horizon reaches the last record.
    #[test]
    fn loom_the_horizon_covers_only_what_is_on_the_medium() {
        explore(|horizon, stream| horizon.take(stream, None).0);
    }

    /// Without the first of the two stores, the model fails. So the model can detect this bug.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_floor_that_comes_down_late_is_found() {
        explore(|horizon, stream| {
            let timestamp = horizon.last.fetch_add(1, Ordering::SeqCst) + 1;
            horizon.floors[stream].store(timestamp, Ordering::SeqCst);
            Timestamp(timestamp)
        });
    }
}
