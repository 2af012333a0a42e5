//! The operating system's figures for a process: memory, time and processors.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of the whole process so far: user and system time of all threads.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the peak resident memory of this process, or `None` if the system does not report it.
pub(crate) fn resident_bytes_max() -> Option<u64> {
    resident_bytes_max_of("self")
}

/// Returns the peak resident memory of a process, given its id or `self`.
pub(crate) fn resident_bytes_max_of(process: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Resets the peak of [`resident_bytes_max`]. If that is not permitted, the figure remains the peak since the process
/// started, which can only be too high.
pub(crate) fn reset_resident_bytes_max() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Returns the id of a process that has this file open. Other users' processes are found only if the system shows them.
pub(crate) fn user_of(file: &Path) -> Option<u32> {
    let file = fs::canonicalize(file).ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_open = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target == file)
    };
    pids.find(|pid| *pid != std::process::id() && has_open(pid))
}

/// Describes a process for messages: `process 4711 (drumlin)`.
pub(crate) fn described(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim_end()),
        Err(_) => format!("process {pid}"),
    }
}

/// Returns the number of processors that this process may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
