//! Kernel counters of faults, processor time, interrupts, memory and bytes read from the device.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Counters for this process or, where noted, for the whole machine: either their current values, or the difference
/// between two readings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Page faults that needed no I/O.
    pub faults_minor: u64,
    /// Page faults that needed I/O.
    pub faults_major: u64,
    /// Processor time of all threads.
    pub cpu_seconds: f64,
    /// The kernel's part of the processor time. It is counted in clock ticks, which are too coarse for short runs.
    pub system_seconds: f64,
    /// Bytes that devices read for this process, page faults included.
    pub device_read_bytes: u64,
    /// Bytes that this process wrote directly or dirtied in the page cache.
    pub device_write_bytes: u64,
    /// Pages that the kernel's background thread (kswapd) reclaimed, on the whole machine.
    pub kswapd_pages: u64,
    /// Pages that processes reclaimed themselves because none were free (direct reclaim), on the whole machine. Reclaim
    /// in control groups is not included.
    pub direct_reclaim_pages: u64,
    /// Interrupts of the whole machine, by name: `TLB` (shootdowns), `RES` (rescheduling), `CAL` (function calls),
    /// `LOC` (timer), `device` (all numbered interrupts together).
    pub interrupts: BTreeMap<String, u64>,
}

impl Counters {
    /// Reads the counters.
    #[must_use]
    pub fn now() -> Counters {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (faults_minor, faults_major, system_ticks) = parse_stat(&stat);
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        let machine = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        Counters {
            kswapd_pages: field(&machine, "pgsteal_kswapd "),
            direct_reclaim_pages: field(&machine, "pgsteal_direct "),
            faults_minor,
            faults_major,
            cpu_seconds: cpu_time().as_secs_f64(),
            system_seconds: system_ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            device_read_bytes: field(&io, "read_bytes:"),
            device_write_bytes: field(&io, "write_bytes:"),
            interrupts: parse_interrupts(&fs::read_to_string("/proc/interrupts").unwrap_or_default()),
        }
    }

    /// Returns the difference between these counters and earlier ones.
    #[must_use]
    pub fn since(&self, before: &Counters) -> Counters {
        let interrupts = self.interrupts.iter().map(|(name, count)| {
            (name.clone(), count.saturating_sub(before.interrupts.get(name).copied().unwrap_or(0)))
        });
        Counters {
            faults_minor: self.faults_minor.saturating_sub(before.faults_minor),
            faults_major: self.faults_major.saturating_sub(before.faults_major),
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            system_seconds: self.system_seconds - before.system_seconds,
            kswapd_pages: self.kswapd_pages.saturating_sub(before.kswapd_pages),
            direct_reclaim_pages: self.direct_reclaim_pages.saturating_sub(before.direct_reclaim_pages),
            device_read_bytes: self.device_read_bytes.saturating_sub(before.device_read_bytes),
            device_write_bytes: self.device_write_bytes.saturating_sub(before.device_write_bytes),
            interrupts: interrupts.collect(),
        }
    }

    pub(crate) fn interrupt(&self, name: &str) -> u64 {
        self.interrupts.get(name).copied().unwrap_or(0)
    }
}

/// Returns the page faults of the calling thread since it started.
pub(crate) fn thread_faults() -> u64 {
    let (minor, major, _) = parse_stat(&fs::read_to_string("/proc/thread-self/stat").unwrap_or_default());
    minor + major
}

/// Returns the processor time of all threads of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the memory that the kernel could give to a process without swapping.
pub(crate) fn memory_available_bytes() -> u64 {
    field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable:") * 1024
}

/// Returns the resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    status("VmRSS:")
}

/// Returns the peak resident memory of this process, in bytes.
#[must_use]
pub fn resident_bytes_max() -> u64 {
    status("VmHWM:")
}

fn status(name: &str) -> u64 {
    field(&fs::read_to_string("/proc/self/status").unwrap_or_default(), name) * 1024
}

/// Returns the number that follows `name` at the start of a line, or 0 if no line starts with it.
pub(crate) fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_ascii_whitespace().next()).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Parses the minor faults, major faults and kernel ticks in /proc/PID/stat.
fn parse_stat(text: &str) -> (u64, u64, u64) {
    // The second field is the program's name in parentheses. It may contain anything, so count fields after the last
    // ')'.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|word| word.parse().ok()).unwrap_or(0);
    (number(7), number(9), number(12))
}

/// Sums the interrupts over all processors, by name. Numbered interrupts belong to devices and are counted together.
fn parse_interrupts(text: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in text.lines().skip(1) {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let count: u64 = rest.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok()).sum();
        let name = name.trim();
        let name = if name.bytes().all(|byte| byte.is_ascii_digit()) { "device" } else { name };
        *found.entry(name.to_owned()).or_default() += count;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's files are parsed correctly, even if the program's name contains spaces and parentheses.
    #[test]
    fn the_kernels_texts_are_read() {
        let stat = "42 (a ) b) R 1 42 42 0 -1 4194304 111 0 22 0 7 33 0 0 20 0 1 0 5 6 7";
        assert_eq!(parse_stat(stat), (111, 22, 33));
        let interrupts =
            "      CPU0 CPU1\n 35:  1  2  PCI-MSIX  virtio\n 36:  3  4  x\nTLB:  10  20  TLB shootdowns\nERR: 0\n";
        let found = parse_interrupts(interrupts);
        assert_eq!((found["device"], found["TLB"], found["ERR"]), (10, 30, 0));
        assert_eq!(field("a: 1\nread_bytes: 4096\n", "read_bytes:"), 4096);
        assert_eq!(field("", "read_bytes:"), 0);
    }

    /// Computation increases the processor time, and touched memory becomes resident.
    #[test]
    fn counters_move() {
        let before = Counters::now();
        let memory: Vec<u8> = (0..16u32 << 20).map(|index| index as u8).collect();
        let after = Counters::now().since(&before);
        assert!(after.cpu_seconds > 0.0 && after.faults_minor > 0, "{after:?}");
        // Other tests in this process allocate and free memory concurrently, so only require the figures to exceed half
        // of the memory that this test holds.
        let held = memory.len() as u64 / 2;
        assert!(resident_bytes() > held && resident_bytes_max() > held);
    }
}
