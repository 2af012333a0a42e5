//! Runs operations on threads: as fast as possible, or at a fixed rate.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::engine::Result;
use crate::measure::{histogram, record};

/// The duration of a timeline's buckets.
pub const BUCKET: Duration = Duration::from_millis(100);
/// A wait longer than this sleeps until shortly before its end; a shorter wait spins.
const SLEEP_MIN: Duration = Duration::from_micros(150);
/// An upper bound on how late a sleep may end.
const SLEEP_LATENESS: Duration = Duration::from_micros(60);

/// The operations of one thread. Each thread has its own session.
pub trait Actor {
    /// Performs one operation. Returns the number of units completed: rows, commits or operations.
    ///
    /// # Errors
    /// The engine's error, or an error if a value that was read does not belong to its row.
    fn step(&mut self) -> Result<u64>;
}

/// The combined results of all threads.
#[derive(Debug)]
pub struct Outcome {
    pub operations: u64,
    pub units: u64,
    /// The time from the start of the first operation to the end of the last operation.
    pub elapsed: Duration,
    /// Latencies of single operations, in nanoseconds. At a fixed rate, the latency of an operation counts from the
    /// moment at which it was due.
    pub latencies: Histogram<u64>,
    /// The number of units completed in each time bucket.
    pub timeline: Vec<u64>,
    /// The longest period during which no thread completed an operation.
    pub longest_gap: Duration,
}

/// The pace at which operations start.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Each thread starts an operation as soon as its previous operation has ended.
    Closed,
    /// All threads together start this many operations per second. Operations are due at regular intervals, whether or
    /// not earlier ones have ended.
    Open(f64),
}

struct Share {
    operations: u64,
    units: u64,
    ended: Instant,
    latencies: Histogram<u64>,
    timeline: Vec<u64>,
    ends: Vec<(Instant, Instant)>,
}

/// The shortest gap between the ends of a thread's operations that is recorded. The gaps common to all threads are
/// found among the recorded ones.
const GAP_MIN: Duration = Duration::from_millis(10);

/// Runs an actor on each of `threads` threads for `duration`. Each actor is created on its own thread.
///
/// # Errors
/// The error of the first actor that failed, in the order of threads.
///
/// # Panics
/// If an actor panics.
pub fn run<'a>(
    threads: usize,
    duration: Duration,
    pace: Pace,
    actor: &(dyn Fn(usize) -> Result<Box<dyn Actor + 'a>> + Sync),
) -> Result<Outcome> {
    let barrier = Barrier::new(threads + 1);
    let stop = AtomicBool::new(false);
    let (shares, begun) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let (barrier, stop) = (&barrier, &stop);
                scope.spawn(move || -> Result<Share> {
                    let actor = actor(index);
                    barrier.wait();
                    let due = Due::new(pace, index, threads);
                    let share = work(&mut *actor?, duration, due, stop);
                    if share.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    share
                })
            })
            .collect();
        barrier.wait();
        let begun = Instant::now();
        let shares: Result<Vec<Share>> =
            workers.into_iter().map(|worker| worker.join().expect("no actor panics")).collect();
        shares.map(|shares| (shares, begun))
    })?;
    Ok(merge(shares, begun))
}

/// A thread's schedule: the moments at which its operations are due.
struct Due {
    interval: Option<Duration>,
    next: Instant,
}

impl Due {
    fn new(pace: Pace, index: usize, threads: usize) -> Due {
        let interval = match pace {
            Pace::Closed => None,
            Pace::Open(rate) => Some(Duration::from_secs_f64(threads as f64 / rate.max(0.001))),
        };
        let phase = interval.map_or(Duration::ZERO, |interval| interval.mul_f64(index as f64 / threads as f64));
        Due { interval, next: Instant::now() + phase }
    }

    /// Waits until the next operation is due and returns that moment.
    fn wait(&mut self, now: Instant) -> Instant {
        let Some(interval) = self.interval else { return now };
        let due = self.next;
        self.next += interval;
        let left = due.saturating_duration_since(now);
        if left > SLEEP_MIN {
            std::thread::sleep(left - SLEEP_LATENESS);
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        due
    }
}

fn work(actor: &mut dyn Actor, duration: Duration, mut due: Due, stop: &AtomicBool) -> Result<Share> {
    let begun = Instant::now();
    let mut share =
        Share { operations: 0, units: 0, ended: begun, latencies: histogram(), timeline: Vec::new(), ends: Vec::new() };
    let mut now = begun;
    while now - begun < duration && !stop.load(Ordering::Relaxed) {
        let start = due.wait(now);
        let units = actor.step()?;
        let end = Instant::now();
        record(&mut share.latencies, end - start);
        if end - now > GAP_MIN {
            share.ends.push((now, end));
        }
        let bucket = ((end - begun).as_nanos() / BUCKET.as_nanos()) as usize;
        if bucket >= share.timeline.len() {
            share.timeline.resize(bucket + 1, 0);
        }
        share.timeline[bucket] += units;
        share.operations += 1;
        share.units += units;
        now = end;
    }
    share.ended = now;
    Ok(share)
}

fn merge(shares: Vec<Share>, begun: Instant) -> Outcome {
    let longest_gap = longest_gap(shares.iter().map(|share| &share.ends[..]).collect());
    let mut outcome = Outcome {
        operations: 0,
        units: 0,
        elapsed: Duration::ZERO,
        latencies: histogram(),
        timeline: Vec::new(),
        longest_gap,
    };
    for share in shares {
        outcome.operations += share.operations;
        outcome.units += share.units;
        outcome.elapsed = outcome.elapsed.max(share.ended.saturating_duration_since(begun));
        outcome.latencies.add(share.latencies).expect("the same bounds");
        let length = outcome.timeline.len().max(share.timeline.len());
        outcome.timeline.resize(length, 0);
        outcome.timeline.iter_mut().zip(share.timeline).for_each(|(sum, part)| *sum += part);
    }
    outcome
}

/// Returns the longest period that lies within a gap of every thread.
fn longest_gap(threads: Vec<&[(Instant, Instant)]>) -> Duration {
    let mut threads = threads.into_iter();
    let mut common: Vec<(Instant, Instant)> = threads.next().unwrap_or_default().to_vec();
    for gaps in threads {
        let mut both = Vec::new();
        let (mut left, mut right) = (0, 0);
        while left < common.len() && right < gaps.len() {
            let (start, end) = (common[left].0.max(gaps[right].0), common[left].1.min(gaps[right].1));
            if start < end {
                both.push((start, end));
            }
            if common[left].1 < gaps[right].1 { left += 1 } else { right += 1 }
        }
        common = both;
    }
    common.into_iter().map(|(start, end)| end - start).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause counts only if all threads pause simultaneously.
    #[test]
    fn a_gap_is_common_to_all_threads() {
        let zero = Instant::now();
        let at = |millis: u64| zero + Duration::from_millis(millis);
        let first = [(at(0), at(10)), (at(20), at(50))];
        let second = [(at(5), at(25)), (at(30), at(60))];
        assert_eq!(longest_gap(vec![&first, &second]), Duration::from_millis(20));
        assert_eq!(longest_gap(vec![&first]), Duration::from_millis(30));
        assert_eq!(longest_gap(vec![&first, &[]]), Duration::ZERO);
    }
}
