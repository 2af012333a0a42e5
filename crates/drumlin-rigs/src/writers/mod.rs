//! The programs that write to the drives: Drumlin, and simple logs, each with its own way to sync. Some of those ways
//! lose records.
//!
//! A writer is a separate process, on the host or in the guest. It reports each acknowledgement by a direct write of
//! one sector to a file or device reserved for this purpose, so the rig sees acknowledgements and block requests in a
//! single order. A writer runs until it is killed. Its seed determines its writes.

mod database;
mod log;
// The scripted workload of the library's tests. Each step is determined by seed, thread and step number.
#[path = "../../../drumlin/tests/support/workload.rs"]
mod workload;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use drumlin_io::AlignedBuffer;
use drumlin_testing::Random;
use rustix::fs::OFlags;

use crate::drive::SECTOR;
pub use log::Method;
use workload::Ack;

/// Reported once the writer has set up everything it needs. A cut before this point may leave any state.
pub const PREPARED: u64 = u64::MAX;

/// Reported by a guest that is waiting for its order.
pub const WAITING: u64 = u64::MAX - 1;

/// The length of the file or device for acknowledgements. It is written as a ring.
pub const ACK_FILE_BYTES: u64 = 1 << 20;

const ACK_MAGIC: &[u8; 8] = b"dRigAck1";

/// Returns the acknowledgements in a write to the acknowledgement file or device.
pub fn acks_in(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(SECTOR).filter(|sector| sector.starts_with(ACK_MAGIC)).map(|sector| {
        let what: [u8; 8] = sector[8..16].try_into().expect("eight bytes");
        u64::from_le_bytes(what)
    })
}

/// Marks the acknowledged step as not necessarily durable.
pub fn not_lasting(acked: u64) -> u64 {
    if acked >= WAITING { acked } else { Ack { full: false, ..Ack::from_bits(acked) }.to_bits() }
}

/// Reports acknowledgements to the rig.
#[derive(Debug)]
pub struct AckReporter {
    file: File,
    next: AtomicU64,
}

impl AckReporter {
    pub fn open(path: &Path) -> Result<AckReporter> {
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().write(true).custom_flags(direct).open(path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        Ok(AckReporter { file, next: AtomicU64::new(0) })
    }

    /// Reports an acknowledgement. Returns once the rig has received it.
    pub fn report(&self, what: u64) -> io::Result<()> {
        let mut sector = AlignedBuffer::zeroed(4096);
        sector[..8].copy_from_slice(ACK_MAGIC);
        sector[8..16].copy_from_slice(&what.to_le_bytes());
        let place = self.next.fetch_add(1, Ordering::Relaxed) * SECTOR as u64 % ACK_FILE_BYTES;
        self.file.write_all_at(&sector[..SECTOR], place)
    }
}

/// A program that writes until it is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    Drumlin,
    Log(Method),
}

impl Writer {
    pub fn all() -> Vec<Writer> {
        Method::ALL.into_iter().map(Writer::Log).chain([Writer::Drumlin]).collect()
    }

    /// Returns the name of the writer in documents.
    pub fn title(self) -> String {
        match self {
            Writer::Drumlin => "Drumlin".to_owned(),
            Writer::Log(method) => method.title(),
        }
    }

    /// Returns `true` if the writer's calls guarantee that acknowledged records are durable.
    pub fn is_sound(self) -> bool {
        match self {
            Writer::Drumlin => true,
            Writer::Log(method) => method.is_sound(),
        }
    }

    /// Returns `true` if the writer may acknowledge a record while the drive has none of it.
    pub fn is_lazy(self) -> bool {
        matches!(self, Writer::Log(method) if method.is_lazy())
    }

    /// Returns the number of acknowledgements after which the writer stops, or `None` if it has no limit.
    pub fn acked_at_most(self) -> Option<u64> {
        match self {
            Writer::Drumlin => None,
            Writer::Log(_) => Some(1 + log::RECORDS),
        }
    }

    /// Writes in `folder` until the process is killed. `from` has the step at which each thread continues, as the last
    /// verification determined it.
    pub fn write(self, folder: &Path, acked: &Path, seed: u64, from: &[u64]) -> Result<()> {
        let reporter = AckReporter::open(acked)?;
        match self {
            Writer::Drumlin => database::write(folder, &reporter, seed, from)?,
            Writer::Log(method) => log::write(method, folder, &reporter, seed)?,
        }
        loop {
            std::thread::park();
        }
    }

    /// Compares the contents of `folder` with the acknowledged steps: `acked` in the writer's life before the cut, and
    /// `from` in earlier lives. Calls `report` for each step that it finds, as soon as readers may have seen that step.
    pub fn verify(self, folder: &Path, seed: u64, from: &[u64], acked: &[u64], report: &dyn Fn(u64)) -> Verdict {
        match self {
            Writer::Drumlin => database::verify(folder, seed, from, acked, report),
            Writer::Log(method) => log::verify(method, folder, seed, acked),
        }
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Writer::Drumlin => f.pad("drumlin"),
            Writer::Log(method) => f.pad(method.name()),
        }
    }
}

impl FromStr for Writer {
    type Err = String;

    fn from_str(text: &str) -> Result<Writer, String> {
        let names = || Writer::all().iter().map(Writer::to_string).collect::<Vec<_>>().join(", ");
        let found = Writer::all().into_iter().find(|writer| writer.to_string() == text);
        found.ok_or_else(|| format!("no writer is called that; there are {}", names()))
    }
}

/// The result of verifying a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything acknowledged is present, and nothing that was never written. Holds the step at which each thread
    /// continues.
    Whole(Vec<u64>),
    /// Acknowledged commits are missing.
    Lost(String),
    /// Data is present that must not be present.
    Wrong(String),
}
