//! Measurements: latencies, CPU time, and the device's bytes and flushes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drumlin_lab::Counters;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that a histogram can record: 10 minutes.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

/// Returns an empty histogram of latencies in nanoseconds, precise to 1 %. It occupies 40 KiB. With a precision of
/// three digits, the histograms of 32 threads would occupy a third of the memory that the group has beyond the engine's
/// budget.
///
/// # Panics
/// Never: the bounds are valid.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2).expect("valid bounds")
}

pub fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1));
}

/// Returns the processor time that this thread has used.
#[must_use]
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Latencies of single operations, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// The number of operations timed.
    pub count: u64,
    pub min_us: f64,
    pub mean_us: f64,
    pub deviation_us: f64,
    /// The median.
    pub p50_us: f64,
    /// 99 % of the latencies are at most this long.
    pub p99_us: f64,
    /// 99.9 % of the latencies are at most this long.
    pub p999_us: f64,
    pub max_us: f64,
    /// The share of operations that took more than 10 times the median.
    pub outliers: f64,
    /// Pairs of quantile and latency, from the median upwards.
    pub tail: Vec<(f64, f64)>,
}

/// The quantiles of [`Latencies::tail`].
const QUANTILES: [f64; 9] = [0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999];

impl Latencies {
    /// Summarises a histogram of nanoseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Latencies {
        if histogram.is_empty() {
            return Latencies::default();
        }
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let quantile = |quantile: f64| micros(histogram.value_at_quantile(quantile));
        let limit = histogram.value_at_quantile(0.5).saturating_mul(10).min(LATENCY_NS_MAX);
        let below = histogram.percentile_below(limit) / 100.0;
        Latencies {
            count: histogram.len(),
            min_us: micros(histogram.min()),
            mean_us: histogram.mean() / 1e3,
            deviation_us: histogram.stdev() / 1e3,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: micros(histogram.max()),
            outliers: 1.0 - below,
            tail: QUANTILES.iter().map(|at| (*at, quantile(*at))).collect(),
        }
    }
}

/// The resources used during a measurement.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Costs {
    /// CPU time of the process, summed over all threads.
    pub cpu_seconds: f64,
    /// The bytes that the device read for this process, including those of page faults.
    pub read_bytes: u64,
    /// Bytes that the process wrote directly or dirtied in the page cache.
    pub write_bytes: u64,
    /// Bytes that all processes together wrote to the whole device during the measurement.
    pub device_write_bytes: u64,
    /// Cache flushes of the whole device by all processes during the measurement.
    pub device_flushes: u64,
    /// CPU time that all processes on the machine used during the measurement.
    pub machine_cpu_seconds: f64,
}

/// Measures the costs since it was started.
#[derive(Debug)]
pub struct Meter {
    before: Counters,
    device: Option<PathBuf>,
    device_before: Device,
    machine_before: f64,
}

impl Meter {
    /// Starts counting. Uses the counters of the device that holds `folder`.
    #[must_use]
    pub fn start(folder: &Path) -> Meter {
        let device = device_of(folder);
        let device_before = device.as_deref().map(Device::now).unwrap_or_default();
        Meter { before: Counters::now(), device, device_before, machine_before: machine_cpu_seconds() }
    }

    /// Returns the costs since the meter was started.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let counters = Counters::now().since(&self.before);
        let device = self.device.as_deref().map(Device::now).unwrap_or_default();
        Costs {
            cpu_seconds: counters.cpu_seconds,
            read_bytes: counters.device_read_bytes,
            write_bytes: counters.device_write_bytes,
            device_write_bytes: device.write_bytes.saturating_sub(self.device_before.write_bytes),
            device_flushes: device.flushes.saturating_sub(self.device_before.flushes),
            machine_cpu_seconds: machine_cpu_seconds() - self.machine_before,
        }
    }
}

/// Returns the CPU time that the machine has spent neither idle nor waiting for I/O.
fn machine_cpu_seconds() -> f64 {
    busy_ticks(&fs::read_to_string("/proc/stat").unwrap_or_default()) as f64
        / rustix::param::clock_ticks_per_second() as f64
}

/// Parses the first line of /proc/stat: user, nice, system, idle, I/O wait, interrupts, soft interrupts.
fn busy_ticks(text: &str) -> u64 {
    let numbers = text.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1);
    let numbers: Vec<u64> = numbers.map_while(|word| word.parse().ok()).take(7).collect();
    numbers.iter().sum::<u64>() - numbers.iter().skip(3).take(2).sum::<u64>()
}

/// A block device's counters since it was attached.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    write_bytes: u64,
    flushes: u64,
}

/// Returns the path of the kernel's statistics file for the device that holds a folder.
fn device_of(folder: &Path) -> Option<PathBuf> {
    let number = fs::metadata(folder).ok()?.dev();
    let path = format!("/sys/dev/block/{}:{}/stat", rustix::fs::major(number), rustix::fs::minor(number));
    Some(PathBuf::from(path)).filter(|path| path.exists())
}

impl Device {
    fn now(stat: &Path) -> Device {
        Device::parse(&fs::read_to_string(stat).unwrap_or_default())
    }

    /// Parses a device's `stat` file. The 7th number counts the 512-byte sectors written, the 16th the flushes.
    fn parse(text: &str) -> Device {
        let numbers: Vec<u64> = text.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
        Device { write_bytes: number(6) * 512, flushes: number(15) }
    }
}

/// Returns the bytes that the files below a folder occupy on disk.
#[must_use]
pub fn disk_bytes(folder: &Path) -> u64 {
    files(folder).iter().filter_map(|path| fs::metadata(path).ok()).map(|metadata| metadata.blocks() * 512).sum()
}

/// Returns all files below a folder.
#[must_use]
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// Writes back the files in a folder and drops them from the page cache.
///
/// # Errors
/// If a file can't be opened or synced, or if its pages can't be dropped.
pub fn drop_caches(folder: &Path) -> std::io::Result<()> {
    for path in files(folder) {
        let file = fs::File::open(path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Returns the median: the lower of the two middle numbers if their count is even, and `NaN` if there are no numbers.
#[must_use]
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Latencies are summarised in the right order and unit. A slow operation counts as an outlier.
    #[test]
    fn latencies_are_summarised() {
        let mut histogram = histogram();
        for micros in 1..=100 {
            record(&mut histogram, Duration::from_micros(micros));
        }
        record(&mut histogram, Duration::from_millis(10));
        let latencies = Latencies::of(&histogram);
        assert!((latencies.p50_us - 51.0).abs() < 1.0, "{latencies:?}");
        assert!((latencies.max_us - 10_000.0).abs() < 100.0 && latencies.min_us >= 1.0);
        assert!((latencies.outliers - 1.0 / 101.0).abs() < 1e-3, "{latencies:?}");
        assert_eq!(Latencies::of(&super::histogram()).count, 0);
    }

    /// The kernel's statistics for a device are parsed, whether or not they include flushes.
    #[test]
    fn device_statistics_are_read() {
        let text = " 1 2 3 4 5 6 70 8 0 10 11 12 13 14 15 160 17\n";
        let device = Device::parse(text);
        assert_eq!((device.write_bytes, device.flushes), (70 * 512, 160));
        assert_eq!(Device::parse("1 2 3 4 5 6 7 8 9 10 11").flushes, 0);
        assert_eq!(busy_ticks("cpu  1 2 3 1000 2000 4 5 9 9 9\ncpu0 1 1 1 1\n"), 1 + 2 + 3 + 4 + 5);
    }

    /// The median is always one of the given numbers.
    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 1.0);
        assert!(median(&[]).is_nan());
    }
}
