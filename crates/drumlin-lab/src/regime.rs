//! The conditions under which reads are measured, and the devices and processes that make them.
//!
//! A source's finding rests on conditions: a raw block device, 128 KiB of read-ahead, a medium faster than eviction,
//! pages evicted by the kernel's own thread. Each [`Regime`] provides some of them. What a regime needs and this
//! machine does not give (root, loop devices, memory) is the condition that its verdicts miss.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::counters;
use crate::figures;
use crate::map::Ballast;
use crate::measure::Sample;
use crate::session::{Session, plain};
use crate::worker::{self, Held, Measurement};

/// A set of conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Regime {
    /// A raw block device over the session's file, with direct I/O and 128 KiB of read-ahead, in a limited group.
    Device,
    /// The session's file itself, with the machine's own read-ahead, in a limited group.
    File,
    /// A block device over memory: a medium faster than eviction. Its memory is outside of the group's limit.
    Memory,
    /// The device without a group, on a machine short of memory: the kernel's own thread evicts, as in S1.
    Pressure,
}

impl Regime {
    pub(crate) const ALL: [Regime; 4] = [Regime::Device, Regime::File, Regime::Memory, Regime::Pressure];

    /// The regime in a table's title.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Regime::Device => "raw device, 128 KiB of read-ahead",
            Regime::File => "plain file, the machine's read-ahead",
            Regime::Memory => "device in memory",
            Regime::Pressure => "the whole machine short of memory",
        }
    }
}

/// A file or device to read, with the limit under which to read it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) limit_bytes: Option<u64>,
}

/// The place to read in a regime, or the condition that is missing.
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

/// The device in memory, of the file's size.
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

/// Memory that a balloon leaves to the machine: for other processes and for the page cache under test.
pub(crate) fn left_bytes(session: &Session<'_>) -> u64 {
    (session.memory_bytes() * 2).max(512 << 20)
}

/// More memory than this is not taken: to touch it would take longer than to measure.
const BALLOON_BYTES_MAX: u64 = 48 << 30;

/// The rate at which a balloon fills, for the estimated time of a run.
const BALLOON_BYTES_PER_SECOND: f64 = 2.5e9;

/// The approximate time until [`pressure`] has taken the memory.
pub(crate) fn pressure_seconds(session: &Session<'_>) -> f64 {
    let bytes = counters::memory_available_bytes().saturating_sub(left_bytes(session));
    if bytes > BALLOON_BYTES_MAX || !session.settings.fill_memory {
        0.0
    } else {
        bytes as f64 / BALLOON_BYTES_PER_SECOND
    }
}

/// Takes the machine's memory up to a small rest, locked, until the answer is dropped. The process that holds it is the
/// first that the kernel ends should memory run out. The inner error is the condition that is missing.
pub(crate) fn pressure(session: &Session<'_>) -> io::Result<Result<Held, String>> {
    let (left, available) = (left_bytes(session), counters::memory_available_bytes());
    let bytes = available.saturating_sub(left);
    if session.file_bytes() * 2 < left * 3 {
        return Ok(Err(format!("a file larger than {}, the memory left to the machine", figures::size(left))));
    }
    if bytes > BALLOON_BYTES_MAX {
        return Ok(Err(format!("a machine with less memory ({} would have to be held)", figures::bytes(bytes as f64))));
    }
    session.step("taking the machine's memory", pressure_seconds(session));
    match worker::hold(Balloon { left_bytes: left }, &|| session.interrupted()) {
        Ok(held) => Ok(Ok(held)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
        Err(error) => Ok(Err(format!("locked memory ({})", plain(&error)))),
    }
}

/// Holds memory, locked, until it is killed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Balloon {
    /// Memory that the kernel still counts as available in the end.
    left_bytes: u64,
}

/// Memory is taken in pieces, so that what others take meanwhile is taken into account.
const PIECE_BYTES: u64 = 256 << 20;

impl Measurement for Balloon {
    const NAME: &'static str = "balloon";
    type Result = ();

    /// Passes one sample on when the memory is taken.
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
