//! Records that a method took to be durable, and what is left of them after the power is cut.
//!
//! The device's content is copied at once after the last record and mounted elsewhere: what only the page cache had is
//! lost, what reached the device is kept. So it goes when a virtual machine is switched off, which is how S2 tested. A
//! drive with a volatile cache may lose more.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use drumlin::internals::io::AlignedBuffer;

use super::method::Method;
use super::task::Target;
use crate::experiments::places::Place;
use crate::mount::FileSystem;
use crate::session::{Session, plain};

/// The time that one file system takes.
pub(super) const SECONDS: f64 = 1.0;

const RECORDS: u64 = 200;
const RECORD_BYTES: usize = 4096;

/// Methods that sync come first: their sync would make the metadata of others durable too.
pub(super) const METHODS: [Method; 8] = [
    Method::Append,
    Method::Truncated,
    Method::Filled,
    Method::DirectDurable,
    Method::FilledRange,
    Method::NoSync,
    Method::TruncatedRange,
    Method::Buffered,
];

/// The records that were left on a file system.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Left {
    pub(super) file_system: FileSystem,
    /// Of each of [`METHODS`], the share of its records that was left.
    pub(super) shares: Vec<f64>,
}

impl Left {
    pub(super) fn share(&self, method: Method) -> f64 {
        METHODS.iter().position(|each| *each == method).map_or(f64::NAN, |index| self.shares[index])
    }

    /// Returns `true` if the test itself can be trusted: what was synced is left, what was never synced is not.
    pub(super) fn is_sound(&self) -> bool {
        let synced = [Method::Append, Method::Truncated, Method::Filled, Method::DirectDurable];
        synced.iter().all(|method| self.share(*method) == 1.0) && self.share(Method::Buffered) < 1.0
    }
}

/// Writes records by each method, switches the file system off, and counts what is left.
pub(super) fn run(session: &Session<'_>, place: Place) -> io::Result<Option<Left>> {
    let Some(file_system) = place.made else { return Ok(None) };
    session.step(&format!("sync: the power fails on {}", place.name), SECONDS);
    let targets = METHODS.iter().enumerate().map(|(index, method)| Target::create(&place.path(&name(index)), *method));
    let targets: Vec<Target> = targets.collect::<io::Result<_>>()?;
    // The files are there before the power fails; only their last writes are at stake.
    rustix::fs::syncfs(File::open(&place.folder)?)?;
    for target in &targets {
        let mut ring = target.ring()?;
        for number in 0..RECORDS {
            target.write(&record(number), number * RECORD_BYTES as u64, ring.as_mut())?;
        }
    }
    drop(targets);
    let Some(mounted) = place.into_mounted() else { return Ok(None) };
    let mounted = mounted.power_off(&session.room)?;
    let shares = (0..METHODS.len()).map(|index| share_left(&mounted.folder().join(name(index)))).collect();
    Ok(Some(Left { file_system, shares }))
}

/// The reason for which a file system was not tested, for a note.
pub(super) fn failure(file_system: FileSystem, error: &io::Error) -> String {
    format!("The power-off of {} could not be tested: {}.", file_system.name(), plain(error))
}

fn name(index: usize) -> String {
    format!("power-{index}")
}

/// A record that differs from zeros and from all others, in every sector.
fn record(number: u64) -> AlignedBuffer {
    let mut record = AlignedBuffer::zeroed(RECORD_BYTES);
    for word in record.chunks_exact_mut(8) {
        word.copy_from_slice(&(number + 1).to_le_bytes());
    }
    record
}

/// The share of the records that a file holds; 0 if it is gone.
fn share_left(path: &std::path::Path) -> f64 {
    let Ok(file) = File::open(path) else { return 0.0 };
    let mut buffer = vec![0; RECORD_BYTES];
    let is_left = |number: &u64| {
        file.read_exact_at(&mut buffer, number * RECORD_BYTES as u64).is_ok() && buffer == record(*number)[..]
    };
    (0..RECORDS).filter(is_left).count() as f64 / RECORDS as f64
}
