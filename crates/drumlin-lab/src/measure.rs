//! Records latencies of single operations, computes medians, and runs loads on several threads while sampling their
//! progress.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::counters::{self, Counters};

/// The longest latency that the histogram resolves: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// A histogram of the latencies of single operations.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("valid bounds"))
    }

    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        self.record_n(latency, 1);
    }

    #[inline]
    fn record_n(&mut self, latency: Duration, operations: u64) {
        self.0.saturating_record_n(latency.as_nanos() as u64, operations);
    }

    /// Returns the number of operations recorded.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("the same bounds");
    }

    /// Returns the recorded values with their counts, from which [`Latencies::of_buckets`] restores the histogram in a
    /// different process.
    pub(crate) fn buckets(&self) -> Vec<(u64, u64)> {
        self.0.iter_recorded().map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
    }

    /// Combines latencies that other processes recorded.
    pub(crate) fn of_buckets<'b>(parts: impl IntoIterator<Item = &'b Vec<(u64, u64)>>) -> Latencies {
        let mut latencies = Latencies::new();
        for (value, count) in parts.into_iter().flatten() {
            latencies.0.saturating_record_n(*value, *count);
        }
        latencies
    }

    pub(crate) fn summary(&self) -> Summary {
        let histogram = &self.0;
        if histogram.is_empty() {
            return Summary::default();
        }
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let at = |quantile: f64| histogram.value_at_quantile(quantile);
        let (quarter, three_quarters) = (at(0.25), at(0.75));
        let fence = three_quarters + 3 * (three_quarters - quarter);
        // Count the values in the fence's own bucket as being inside the fence.
        let inside = histogram.count_between(0, histogram.highest_equivalent(fence));
        // A quantile is unknown if fewer than one operation is expected beyond it. The list ends with the slowest
        // operation.
        let count = histogram.len();
        let known = QUANTILES.into_iter().filter(|quantile| (1.0 - quantile) * count as f64 >= 1.0);
        let mut quantiles: Vec<(f64, f64)> = known.map(|quantile| (quantile, us(at(quantile)))).collect();
        quantiles.push((1.0 - 0.5 / count as f64, us(histogram.max())));
        Summary {
            count,
            mean_us: histogram.mean() / 1000.0,
            min_us: us(histogram.min()),
            max_us: us(histogram.max()),
            stddev_us: histogram.stdev() / 1000.0,
            p50_us: us(at(0.5)),
            p99_us: us(at(0.99)),
            p999_us: us(at(0.999)),
            outliers: 1.0 - inside as f64 / histogram.len() as f64,
            quantiles,
        }
    }
}

/// The quantiles at which the plot of a distribution has points.
const QUANTILES: [f64; 11] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];

/// A summary of the latencies of single operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) count: u64,
    pub(crate) mean_us: f64,
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
    pub(crate) stddev_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// The share of operations beyond Tukey's outer fence: three interquartile ranges above the third quartile.
    pub(crate) outliers: f64,
    /// Pairs of quantile and latency, for the plot.
    pub(crate) quantiles: Vec<(f64, f64)>,
}

/// Returns the median: the mean of the two middle numbers if the count is even, and 0 if there are no numbers.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => 0.0,
        count if count % 2 == 1 => numbers[middle],
        _ => f64::midpoint(numbers[middle - 1], numbers[middle]),
    }
}

/// The rates of a load during the period since the previous sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Seconds since the load began.
    pub(crate) at_seconds: f64,
    pub(crate) operations_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) device_bytes_per_second: f64,
    pub(crate) faults_major_per_second: f64,
    pub(crate) faults_minor_per_second: f64,
    /// TLB shootdowns per second, on the whole machine.
    pub(crate) tlb_shootdowns_per_second: f64,
    pub(crate) resident_bytes: u64,
}

/// The totals of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) latency: Summary,
    pub(crate) counters: Counters,
    pub(crate) resident_bytes_max: u64,
    /// A checksum of all results. Without it, the compiler could remove a read.
    pub(crate) check: u64,
}

impl Load {
    pub(crate) fn operations_per_second(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }

    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }

    pub(crate) fn cpu_us_per_operation(&self) -> f64 {
        self.counters.cpu_seconds * 1e6 / self.operations.max(1) as f64
    }

    /// Returns the bytes read from the device per byte requested.
    pub(crate) fn read_amplification(&self) -> f64 {
        self.counters.device_read_bytes as f64 / self.bytes.max(1) as f64
    }
}

/// One thread's view of a load.
#[derive(Debug)]
pub(crate) struct Pace<'a> {
    stop: &'a AtomicBool,
    operations: &'a AtomicU64,
    bytes: &'a AtomicU64,
    pub(crate) latencies: Latencies,
    pub(crate) check: u64,
}

impl Pace<'_> {
    /// Returns `true` until the time has run out and at least one operation has completed.
    #[inline]
    pub(crate) fn go_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) || self.latencies.0.is_empty()
    }

    /// Records one operation of this many bytes that began at `started`.
    #[inline]
    pub(crate) fn done(&mut self, started: Instant, bytes: u64) {
        self.done_all(started, 1, bytes);
    }

    /// Records several consecutive operations of `bytes` bytes in total, each with their mean latency.
    #[inline]
    pub(crate) fn done_all(&mut self, started: Instant, operations: u32, bytes: u64) {
        self.latencies.record_n(started.elapsed() / operations, operations.into());
        self.operations.fetch_add(operations.into(), Ordering::Relaxed);
        // Add the bytes after counting the operation: see `Lane::totals`.
        self.bytes.fetch_add(bytes, Ordering::Release);
    }
}

/// The duration of a load and the interval between samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) seconds: f64,
    /// The interval between samples, or 0 for no samples.
    pub(crate) sample_seconds: f64,
}

/// The counters of one thread. They have cache lines of their own, so that counting does not disturb the measurement.
#[repr(align(128))]
#[derive(Default)]
struct Lane {
    operations: AtomicU64,
    bytes: AtomicU64,
    finished: AtomicBool,
}

impl Lane {
    /// Returns the thread's operations and bytes. The bytes may lack those of the last few operations. Retries if the
    /// thread counted an operation between the two reads, because it may complete a million operations while this
    /// thread is not scheduled.
    fn totals(&self) -> (u64, u64) {
        let mut operations = self.operations.load(Ordering::Acquire);
        loop {
            let bytes = self.bytes.load(Ordering::Acquire);
            let again = self.operations.load(Ordering::Acquire);
            if again == operations {
                return (operations, bytes);
            }
            operations = again;
        }
    }
}

/// Returns the total operations and bytes of all threads.
fn totals(lanes: &[Lane]) -> (u64, u64) {
    lanes.iter().map(Lane::totals).fold((0, 0), |(operations, bytes), lane| (operations + lane.0, bytes + lane.1))
}

/// The counters at the previous sample, from which the next sample is computed.
struct Sampler<F> {
    observe: F,
    start: Instant,
    last: Instant,
    operations: u64,
    bytes: u64,
    counters: Counters,
}

impl<F: FnMut(&Sample) -> bool> Sampler<F> {
    fn new(observe: F, start: Instant, counters: Counters) -> Sampler<F> {
        Sampler { observe, start, last: start, operations: 0, bytes: 0, counters }
    }

    /// Takes a sample of the period since the previous sample, and passes it to the observer. Returns `false` if the
    /// observer wants no more samples.
    fn take(&mut self, now: Instant, (operations, bytes): (u64, u64)) -> bool {
        let counters = Counters::now();
        let passed = (now - self.last).as_secs_f64();
        let since = counters.since(&self.counters);
        let go_on = (self.observe)(&Sample {
            at_seconds: (now - self.start).as_secs_f64(),
            operations_per_second: (operations - self.operations) as f64 / passed,
            bytes_per_second: (bytes - self.bytes) as f64 / passed,
            device_bytes_per_second: since.device_read_bytes as f64 / passed,
            faults_major_per_second: since.faults_major as f64 / passed,
            faults_minor_per_second: since.faults_minor as f64 / passed,
            tlb_shootdowns_per_second: since.interrupt("TLB") as f64 / passed,
            resident_bytes: counters::resident_bytes(),
        });
        (self.last, self.operations, self.bytes, self.counters) = (now, operations, bytes, counters);
        go_on
    }

    /// Takes samples until the time has run out and at least one operation has completed, until the observer wants no
    /// more samples, or until all threads have finished. It waits for an operation because, on a busy machine, a short
    /// time could run out before any thread is scheduled.
    fn watch(&mut self, timing: Timing, lanes: &[Lane]) {
        let end = self.start + Duration::from_secs_f64(timing.seconds);
        let is_sampled = timing.sample_seconds > 0.0;
        loop {
            let now = Instant::now();
            let is_over = now >= end && totals(lanes).0 > 0;
            if is_over || lanes.iter().all(|lane| lane.finished.load(Ordering::Relaxed)) {
                return;
            }
            let next_sample = self.last + Duration::from_secs_f64(timing.sample_seconds);
            if is_sampled && now >= next_sample {
                if !self.take(now, totals(lanes)) {
                    return;
                }
                continue;
            }
            let wake = if is_sampled { end.min(next_sample) } else { end };
            // Sleep only briefly, so as to detect promptly when all threads have finished.
            let nap = wake.saturating_duration_since(now);
            std::thread::sleep(nap.clamp(Duration::from_micros(50), Duration::from_millis(5)));
        }
    }
}

/// Runs `work` on this many threads until the time has run out or all threads have finished. Passes a sample to
/// `observe` at each interval. `work` has to call [`Pace::go_on`] after every operation.
pub(crate) fn load(
    threads: usize,
    timing: Timing,
    mut observe: impl FnMut(&Sample),
    work: impl Fn(usize, &mut Pace<'_>) -> io::Result<()> + Sync,
) -> io::Result<Load> {
    let observe = |sample: &Sample| {
        observe(sample);
        true
    };
    load_while(threads, timing, observe, work)
}

/// Runs a [`load`], but ends it early at the first sample for which `observe` returns `false`.
pub(crate) fn load_while(
    threads: usize,
    timing: Timing,
    observe: impl FnMut(&Sample) -> bool,
    work: impl Fn(usize, &mut Pace<'_>) -> io::Result<()> + Sync,
) -> io::Result<Load> {
    let stop = AtomicBool::new(false);
    let lanes: Vec<Lane> = (0..threads).map(|_| Lane::default()).collect();
    let barrier = std::sync::Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let (stop, barrier, work) = (&stop, &barrier, &work);
        let mut handles = Vec::with_capacity(threads);
        for (index, lane) in lanes.iter().enumerate() {
            let body = move || {
                let mut pace = Pace {
                    stop,
                    operations: &lane.operations,
                    bytes: &lane.bytes,
                    latencies: Latencies::new(),
                    check: 0,
                };
                barrier.wait();
                let result = work(index, &mut pace);
                lane.finished.store(true, Ordering::Relaxed);
                result.map(|()| (pace.latencies, pace.check))
            };
            // Use small stacks, because the stacks of many threads would count against the memory limit.
            handles.push(std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, body)?);
        }
        let before = Counters::now();
        barrier.wait();
        let start = Instant::now();
        let mut sampler = Sampler::new(observe, start, before.clone());
        sampler.watch(timing, &lanes);
        // Read the totals before the threads stop, because operations completed after this point do not count.
        let stopped = Instant::now();
        let seconds = (stopped - start).as_secs_f64();
        let (operations, bytes) = totals(&lanes);
        // If memory was so scarce that this thread stalled too, the last sample may be old.
        let since_sample = (stopped - sampler.last).as_secs_f64();
        if timing.sample_seconds > 0.0 && since_sample > timing.sample_seconds / 2.0 {
            sampler.take(stopped, (operations, bytes));
        }
        let counters = Counters::now().since(&before);
        let resident_bytes_max = counters::resident_bytes_max();
        stop.store(true, Ordering::Relaxed);
        cgroup::leave();
        let mut latencies = Latencies::new();
        let mut check = 0u64;
        for handle in handles {
            let (own, own_check) = handle.join().expect("a measuring thread panicked")?;
            latencies.add(&own);
            check = check.wrapping_add(own_check);
        }
        Ok(Load { operations, bytes, seconds, latency: latencies.summary(), counters, resident_bytes_max, check })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rare slow operation is visible in the maximum and as an outlier, but hardly in the mean.
    #[test]
    fn single_slow_operations_show() {
        let mut latencies = Latencies::new();
        for index in 0..999 {
            latencies.record(Duration::from_micros(100 + index % 3));
        }
        latencies.record(Duration::from_millis(20));
        let summary = latencies.summary();
        assert_eq!(summary.count, 1000);
        assert!((summary.p50_us - 101.0).abs() < 1.0 && summary.max_us > 19_900.0, "{summary:?}");
        assert!((summary.outliers - 0.001).abs() < 1e-9, "{summary:?}");
        assert!(summary.quantiles.iter().all(|(quantile, _)| *quantile < 0.9996), "{summary:?}");
        assert!(summary.stddev_us > 500.0 && summary.mean_us < 125.0);
        assert_eq!(Latencies::new().summary(), Summary::default());
    }

    /// Latencies can be sent to a different process, and the latencies of several processes can be combined.
    #[test]
    fn latencies_travel() {
        let mut latencies = Latencies::new();
        for index in 0..500 {
            latencies.record(Duration::from_nanos(1000 + index * 731));
        }
        let buckets = latencies.buckets();
        assert_eq!(Latencies::of_buckets([&buckets]).summary().quantiles, latencies.summary().quantiles);
        assert_eq!(Latencies::of_buckets([&buckets, &buckets]).summary().count, 1000);
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    /// A load ends early if its threads finish early. All operations are counted, and an error of a thread is returned.
    #[test]
    fn a_load_counts_all_work() {
        let timing = Timing { seconds: 60.0, sample_seconds: 0.0 };
        let work = |index: usize, pace: &mut Pace<'_>| {
            for _ in 0..=index {
                pace.done(Instant::now(), 10);
            }
            Ok(())
        };
        let done = load(3, timing, |_| {}, work).unwrap();
        assert_eq!((done.operations, done.bytes, done.latency.count), (6, 60, 6));
        assert!(load(2, timing, |_| {}, |_, _| Err(io::ErrorKind::NotFound.into())).is_err());
    }

    /// Samples arrive while the load runs, and the load ends when the observer wants no more.
    #[test]
    fn a_load_is_sampled() {
        let mut samples = Vec::new();
        let timing = Timing { seconds: 0.2, sample_seconds: 0.05 };
        let work = |_: usize, pace: &mut Pace<'_>| {
            while pace.go_on() {
                pace.done(Instant::now(), 1);
                std::thread::yield_now();
            }
            Ok(())
        };
        let done = load(2, timing, |sample| samples.push(*sample), work).unwrap();
        assert!(done.operations > 0 && !samples.is_empty());
        assert!(samples.iter().all(|sample| sample.resident_bytes > 0));
        let endless = Timing { seconds: 60.0, sample_seconds: 0.01 };
        let mut count = 0;
        let enough = |_: &Sample| {
            count += 1;
            count < 3
        };
        assert!(load_while(2, endless, enough, work).unwrap().seconds < 30.0);
        assert_eq!(count, 3);
    }
}
