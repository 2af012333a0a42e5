//! Times single operations on several threads, and records what the process and the device did during that time.

use std::cell::RefCell;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use drumlin::Stats;
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::failure::Result;
use crate::{interrupt, process};

/// The number of turns. Each turn measures both the store and the raw device.
pub(super) const TURNS: u32 = 5;

/// The longest latency that the histogram can record: one minute, with three significant digits.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

pub(super) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("valid bounds")
}

/// The operations of one thread.
pub(super) trait Worker: Send {
    /// Makes one call to the store, timed by the caller. Returns the number of operations in it, or 0 if none are left.
    fn call(&mut self) -> drumlin::Result<u64>;
}

/// The operations of one of the tasks that share a thread.
pub(super) trait Task: Send {
    /// Makes one call to the store, like [`Worker::call`].
    async fn call(&mut self) -> drumlin::Result<u64>;
}

/// The figures for one measured period, or the combined figures for several.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) ops: u64,
    pub(super) elapsed: Duration,
    pub(super) cpu: Duration,
    pub(super) latency_ns: Histogram<u64>,
    pub(super) device_reads: u64,
    pub(super) device_read_bytes: u64,
    pub(super) device_write_bytes: u64,
}

impl Measured {
    pub(super) fn new() -> Measured {
        Measured {
            ops: 0,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
            latency_ns: new_histogram(),
            device_reads: 0,
            device_read_bytes: 0,
            device_write_bytes: 0,
        }
    }

    pub(super) fn ops_per_second(&self) -> f64 {
        per_second(self.ops as f64, self.elapsed)
    }

    pub(super) fn device_reads_per_second(&self) -> f64 {
        per_second(self.device_reads as f64, self.elapsed)
    }

    pub(super) fn add(&mut self, other: &Measured) {
        self.ops += other.ops;
        self.elapsed += other.elapsed;
        self.cpu += other.cpu;
        self.latency_ns.add(&other.latency_ns).expect("the same bounds");
        self.device_reads += other.device_reads;
        self.device_read_bytes += other.device_read_bytes;
        self.device_write_bytes += other.device_write_bytes;
    }
}

pub(super) fn per_second(amount: f64, elapsed: Duration) -> f64 {
    amount / elapsed.as_secs_f64().max(1e-9)
}

/// Returns the median of the numbers, or `None` if there are none.
pub(super) fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => None,
        count if count % 2 == 1 => Some(numbers[middle]),
        _ => Some(f64::midpoint(numbers[middle - 1], numbers[middle])),
    }
}

/// Runs the workers, each on its own thread, until the time is up or they have no operations left.
pub(super) fn measure<W: Worker>(
    workers: Vec<W>,
    limit: Option<Duration>,
    stats: impl Fn() -> Stats,
) -> Result<Measured> {
    measure_threads(workers, |worker| call_until(worker, limit), stats)
}

/// Like [`measure`], but each thread runs several tasks concurrently.
pub(super) fn measure_tasks<T: Task>(
    threads: Vec<Vec<T>>,
    limit: Option<Duration>,
    stats: impl Fn() -> Stats,
) -> Result<Measured> {
    measure_threads(threads, |tasks| call_all_until(tasks, limit), stats)
}

type Called = drumlin::Result<(u64, Histogram<u64>)>;

fn measure_threads<W: Send>(
    workers: Vec<W>,
    work: impl Fn(W) -> Called + Sync,
    stats: impl Fn() -> Stats,
) -> Result<Measured> {
    let before = stats();
    let mut measured = time_threads(workers, work)?;
    let after = stats();
    measured.device_reads = after.device_reads.saturating_sub(before.device_reads);
    measured.device_read_bytes = after.device_read_bytes.saturating_sub(before.device_read_bytes);
    measured.device_write_bytes = written_bytes(&after).saturating_sub(written_bytes(&before));
    Ok(measured)
}

/// Like [`measure`], of a store without statistics of the device.
pub(super) fn time<W: Worker>(workers: Vec<W>, limit: Duration) -> Result<Measured> {
    time_threads(workers, |worker| call_until(worker, Some(limit)))
}

fn time_threads<W: Send>(workers: Vec<W>, work: impl Fn(W) -> Called + Sync) -> Result<Measured> {
    let mut measured = Measured::new();
    let cpu_before = process::cpu_time();
    let barrier = Barrier::new(workers.len() + 1);
    std::thread::scope(|scope| -> Result<()> {
        let (barrier, work) = (&barrier, &work);
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                scope.spawn(move || {
                    barrier.wait();
                    work(worker)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        for thread in threads {
            let (ops, latency_ns) = thread.join().expect("a measured thread panicked")?;
            measured.ops += ops;
            measured.latency_ns.add(latency_ns).expect("the same bounds");
        }
        measured.elapsed = start.elapsed();
        Ok(())
    })?;
    measured.cpu = process::cpu_time().saturating_sub(cpu_before);
    interrupt::check()?;
    Ok(measured)
}

/// Returns the bytes written to the data file and the log.
fn written_bytes(stats: &Stats) -> u64 {
    stats.device_write_bytes + stats.log_write_bytes
}

/// Calls a worker until the time limit. Reads the clock only once per call: the end of one call is the beginning of the
/// next.
fn call_until<W: Worker>(mut worker: W, limit: Option<Duration>) -> Called {
    let mut latency_ns = new_histogram();
    let mut ops = 0;
    let start = Instant::now();
    let mut before = start;
    loop {
        let done = worker.call()?;
        if done == 0 {
            return Ok((ops, latency_ns));
        }
        let now = Instant::now();
        ops += done;
        latency_ns.saturating_record((now - before).as_nanos() as u64);
        before = now;
        if limit.is_some_and(|limit| now - start >= limit) || interrupt::requested() {
            return Ok((ops, latency_ns));
        }
    }
}

/// Runs tasks on one thread, and times the calls of each task separately.
fn call_all_until<T: Task>(tasks: Vec<T>, limit: Option<Duration>) -> Called {
    let called = RefCell::new((0, new_histogram()));
    let start = Instant::now();
    let work = tasks.into_iter().map(async |mut task: T| {
        loop {
            let before = Instant::now();
            let done = task.call().await?;
            let now = Instant::now();
            {
                let (ops, latency_ns) = &mut *called.borrow_mut();
                *ops += done;
                if done > 0 {
                    latency_ns.saturating_record((now - before).as_nanos() as u64);
                }
            }
            if done == 0 || limit.is_some_and(|limit| now - start >= limit) || interrupt::requested() {
                return Ok(());
            }
        }
    });
    pollster::block_on(try_join_all(work))?;
    Ok(called.into_inner())
}

/// The measurements of the store and the raw device, taken in alternation.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) all: Measured,
    pub(super) each: Vec<Measured>,
    /// The raw device's rate in each turn. Empty if the store is not compared with a device.
    pub(super) raw_per_second: Vec<f64>,
}

impl Turns {
    pub(super) fn new() -> Turns {
        Turns { all: Measured::new(), each: Vec::new(), raw_per_second: Vec::new() }
    }

    pub(super) fn add(&mut self, measured: Measured, raw_per_second: Option<f64>) {
        self.all.add(&measured);
        self.each.push(measured);
        self.raw_per_second.extend(raw_per_second);
    }

    pub(super) fn median_of(&self, rate: impl Fn(&Measured) -> f64) -> f64 {
        median(self.each.iter().map(rate).collect()).unwrap_or(0.0)
    }

    pub(super) fn limit(&self) -> Option<f64> {
        median(self.raw_per_second.clone())
    }

    /// Returns the minimum and maximum over all turns.
    pub(super) fn spread_of(&self, rate: impl Fn(&Measured) -> f64) -> Spread {
        Spread::of(self.each.iter().map(rate)).unwrap_or_default()
    }
}

/// The minimum and maximum of several figures.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    pub(super) fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Spread> {
        numbers
            .into_iter()
            .map(|number| Spread { min: number, max: number })
            .reduce(|one, other| Spread { min: one.min.min(other.min), max: one.max.max(other.max) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The median of an even number of turns is the mean of the two in the middle.
    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    /// The spread is the minimum and maximum over any number of turns.
    #[test]
    fn spreads() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0]), Some(Spread { min: 3.0, max: 3.0 }));
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { min: 1.0, max: 3.0 }));
    }
}
