//! The writers to the drives: Drumlin, and simple logs that sync in one way each, some of them none that lasts.
//!
//! A writer is a process of its own, or a guest's. It tells the world what it acknowledged by one direct write of a
//! sector to a file or device that nothing else writes to, so that the rig sees acknowledgements and block requests in
//! one order. It runs until it is killed. What it wrote is known from its seed.

mod database;
mod log;
// The scripted workload of the library's tests: what a step does follows from seed, thread and number.
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
use drumlin::internals::io::AlignedBuffer;
use drumlin_testing::Random;
use rustix::fs::OFlags;

use crate::drive::SECTOR;
pub use log::Method;
use workload::Ack;

/// Told when all is there that the writer needs; a cut before it may leave anything or nothing.
pub const PREPARED: u64 = u64::MAX;

/// Told by a guest that waits for its order.
pub const WAITING: u64 = u64::MAX - 1;

/// The file or device for acknowledgements: they go round in it.
pub const TOLD_BYTES: u64 = 1 << 20;

const TOLD_MAGIC: &[u8; 8] = b"dRigAck1";

/// The acknowledgements in a write to that file.
pub fn told_in(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(SECTOR).filter(|sector| sector.starts_with(TOLD_MAGIC)).map(|sector| {
        let what: [u8; 8] = sector[8..16].try_into().expect("eight bytes");
        u64::from_le_bytes(what)
    })
}

/// The acknowledgement as that of a step which need not last.
pub fn not_lasting(told: u64) -> u64 {
    if told >= WAITING { told } else { Ack { full: false, ..Ack::from_bits(told) }.to_bits() }
}

/// Tells the world.
#[derive(Debug)]
pub struct Teller {
    file: File,
    next: AtomicU64,
}

impl Teller {
    pub fn open(path: &Path) -> Result<Teller> {
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().write(true).custom_flags(direct).open(path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        Ok(Teller { file, next: AtomicU64::new(0) })
    }

    /// Returns when the rig knows.
    pub fn tell(&self, what: u64) -> io::Result<()> {
        let mut sector = AlignedBuffer::zeroed(4096);
        sector[..8].copy_from_slice(TOLD_MAGIC);
        sector[8..16].copy_from_slice(&what.to_le_bytes());
        let place = self.next.fetch_add(1, Ordering::Relaxed) * SECTOR as u64 % TOLD_BYTES;
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

    /// The name of the writer in documents.
    pub fn title(self) -> String {
        match self {
            Writer::Drumlin => "Drumlin".to_owned(),
            Writer::Log(method) => method.title(),
        }
    }

    /// Returns `true` if what it acknowledged is on the medium by the contracts of the calls it makes.
    pub fn is_sound(self) -> bool {
        match self {
            Writer::Drumlin => true,
            Writer::Log(method) => method.is_sound(),
        }
    }

    /// Returns `true` if it writes nothing at all to the drive before it acknowledges.
    pub fn is_lazy(self) -> bool {
        matches!(self, Writer::Log(method) if method.is_lazy())
    }

    /// The number of acknowledgements after which it stops.
    pub fn told_at_most(self) -> Option<u64> {
        match self {
            Writer::Drumlin => None,
            Writer::Log(_) => Some(1 + log::RECORDS),
        }
    }

    /// Writes in `folder` until it is killed. `from` is what an earlier writer's verification found.
    pub fn write(self, folder: &Path, told: &Path, seed: u64, from: &[u64]) -> Result<()> {
        let teller = Teller::open(told)?;
        match self {
            Writer::Drumlin => database::write(folder, &teller, seed, from)?,
            Writer::Log(method) => log::write(method, folder, &teller, seed)?,
        }
        loop {
            std::thread::park();
        }
    }

    /// Compares what is in `folder` with what was acknowledged: `told` by the writer before the cut, and `from` before
    /// its life. Tells the world what was found, when readers may have seen it.
    pub fn verify(self, folder: &Path, seed: u64, from: &[u64], told: &[u64], tell: &dyn Fn(u64)) -> Verdict {
        match self {
            Writer::Drumlin => database::verify(folder, seed, from, told, tell),
            Writer::Log(method) => log::verify(method, folder, seed, told),
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

/// The contents that a state was found to have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All that was acknowledged, and nothing that never was. Each thread goes on with that step.
    Whole(Vec<u64>),
    /// Acknowledged commits are missing.
    Lost(String),
    /// Something is there that can't be.
    Wrong(String),
}
