//! The conditions under which reads are measured, and the devices and processes that create them.
//!
//! A source's finding rests on conditions, such as a raw block device, 128 KiB of read-ahead, a medium that is faster
//! than eviction, or eviction by the kernel's own thread. Each [`Regime`] provides some of them. If this machine lacks
//! something that a regime needs (root, loop devices, memory), the regime's verdicts name that as the missing
//! condition.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::counters;
use crate::figures;
use crate::map::Ballast;
use crate::measure::Sample;
use crate::session::{Session, plain};
use crate::worker::{self, BackgroundWorker, Measurement};

/// A set of conditions for reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Regime {
    /// A raw block device over the session's file, with direct I/O and 128 KiB of read-ahead, in a group with a memory
    /// limit.
    Device,
    /// The session's file itself, with the machine's own read-ahead, in a group with a memory limit.
    File,
    /// A block device over memory, which is faster than eviction. Its memory does not count against the group's limit.
    Memory,
    /// The raw device without a group, while the whole machine is short of memory. So the kernel's own thread evicts,
    /// as in S1.
    Pressure,
}

impl Regime {
    pub(crate) const ALL: [Regime; 4] = [Regime::Device, Regime::File, Regime::Memory, Regime::Pressure];

    /// Returns the regime's name for the title of a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Regime::Device => "raw device, 128 KiB of read-ahead",
            Regime::File => "plain file, the machine's read-ahead",
            Regime::Memory => "device in memory",
            Regime::Pressure => "the whole machine short of memory",
        }
    }
}

/// A file or device to read, and the memory limit during the reads.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) limit_bytes: Option<u64>,
}

/// Returns the file or device to read in a regime, or the missing condition.
pub(crate) fn place(session: &Session<'_>, regime: Regime) -> io::Result<Result<Place, String>> {
    let limit_bytes = Some(session.memory_bytes());
    let of = |path: &Path, limit_bytes| Place { path: path.to_owned(), limit_bytes };
    if regime == Regime::Pressure && !session.settings.fill_memory {
        return Ok(Err(
            "--fill-memory, which permits the lab to take the machine's memory up to a small rest".to_owned()
        ));
    }
    let path = match regime {
        Regime::File => Ok(session.file()?),
        Regime::Device | Regime::Pressure => {
            let device = session.devices.over_file(session.file()?);
            device.map_err(|error| format!("a loop device ({})", plain(error)))
        }
        Regime::Memory => memory_device(session),
    };
    Ok(match regime {
        Regime::Pressure => path.map(|path| of(path, None)),
        _ if !session.is_limited() && !session.is_larger_than_memory() => {
            Err("a file larger than memory (no control group is permitted, and the disk is too small)".to_owned())
        }
        _ => path.map(|path| of(path, limit_bytes)),
    })
}

/// Returns the device in memory, which is as large as the session's file.
fn memory_device<'s>(session: &'s Session<'_>) -> Result<&'s Path, String> {
    let (bytes, available) = (session.file_bytes(), counters::memory_available_bytes());
    if !session.devices.has_memory() {
        if available < bytes * 2 {
            let free = figures::bytes(available as f64);
            return Err(format!("memory for a device of {} ({free} are free)", figures::size(bytes)));
        }
        session.step(&format!("filling a device of {} in memory", figures::size(bytes)), bytes as f64 / 1e9);
    }
    let device = session.devices.over_memory(bytes, |_| !session.interrupted());
    device.map_err(|error| format!("a loop device over memory ({})", plain(error)))
}

/// Returns the amount of memory that a balloon leaves free for other processes and for the page cache under test.
pub(crate) fn left_bytes(session: &Session<'_>) -> u64 {
    (session.memory_bytes() * 2).max(512 << 20)
}

/// The largest balloon. Touching more memory would take longer than the measurements.
const BALLOON_BYTES_MAX: u64 = 48 << 30;

/// The assumed rate at which a balloon fills. Used to estimate the duration of a run.
const BALLOON_BYTES_PER_SECOND: f64 = 2.5e9;

/// Estimates the seconds that [`pressure`] needs to fill the memory.
pub(crate) fn pressure_seconds(session: &Session<'_>) -> f64 {
    let bytes = counters::memory_available_bytes().saturating_sub(left_bytes(session));
    if bytes > BALLOON_BYTES_MAX || !session.settings.fill_memory {
        0.0
    } else {
        bytes as f64 / BALLOON_BYTES_PER_SECOND
    }
}

/// Allocates and locks almost all of the machine's memory until the returned value is dropped. If memory runs out, the
/// kernel kills the process that holds this memory first. The inner error is the missing condition.
pub(crate) fn pressure(session: &Session<'_>) -> io::Result<Result<BackgroundWorker, String>> {
    let (left, available) = (left_bytes(session), counters::memory_available_bytes());
    let bytes = available.saturating_sub(left);
    if session.file_bytes() * 2 < left * 3 {
        return Ok(Err(format!("a file larger than {}, the memory left to the machine", figures::size(left))));
    }
    if bytes > BALLOON_BYTES_MAX {
        return Ok(Err(format!("a machine with less memory ({} would have to be held)", figures::bytes(bytes as f64))));
    }
    session.step("taking the machine's memory", pressure_seconds(session));
    match worker::start_background(Balloon { left_bytes: left }, &|| session.interrupted()) {
        Ok(held) => Ok(Ok(held)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
        Err(error) => Ok(Err(format!("locked memory ({})", plain(&error)))),
    }
}

/// Holds locked memory until its process is killed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Balloon {
    /// The amount of memory that the kernel should still report as available when the balloon is full.
    left_bytes: u64,
}

/// The balloon allocates memory in pieces of this size. It recomputes the remaining amount after each piece, because
/// other processes allocate memory concurrently.
const PIECE_BYTES: u64 = 256 << 20;

impl Measurement for Balloon {
    const NAME: &'static str = "balloon";
    type Result = ();

    /// Passes on a sample once it holds all of the memory.
    fn perform(self, mut observe: impl FnMut(&Sample)) -> io::Result<()> {
        std::fs::write("/proc/self/oom_score_adj", "1000")?;
        let mut pieces = Vec::new();
        loop {
            let excess = counters::memory_available_bytes().saturating_sub(self.left_bytes);
            if excess < 1 << 20 {
                break;
            }
            pieces.push(Ballast::new(excess.min(PIECE_BYTES) as usize >> 12 << 12)?);
        }
        observe(&Sample::default());
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
}
