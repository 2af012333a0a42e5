//! Counts how often an engine's durable commits flush the device, on a separate file system.
//!
//! An acknowledged commit may still be in the drive's volatile cache, unless the engine has made the drive flush that
//! cache or write the commit through. If one thread makes durable commits one by one, each commit needs about one
//! flush. The flushes are counted on a loop device that no other process uses, which requires root. Without root, they
//! are counted on the device that holds the engine's folder, and include the flushes of other processes.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::engine::{Durability, Engine, Peer, Result, Settings};
use crate::measure::Meter;
use crate::rows::{fill, key};

/// The number of commits whose flushes are counted.
const COMMITS: u64 = 500;
/// The size of a value in bytes, as in the benchmark of S2.
const VALUE_BYTES: usize = 1024;
const IMAGE_BYTES: u64 = 2 << 30;
/// An engine with fewer flushes per commit than this acknowledges commits before they are durable.
const FLUSHES_MIN: f64 = 0.9;

/// The result of counting one engine's flushes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Audit {
    pub engine: String,
    /// Flushes of the device per durable commit.
    pub flushes_per_commit: f64,
    /// Bytes written to the device per commit of a row of 1 KiB.
    pub bytes_per_commit: f64,
    /// `true` if no other process used the device.
    pub alone: bool,
}

impl Audit {
    /// Returns `true` if the engine acknowledges commits that may be lost with the drive's cache.
    #[must_use]
    pub fn acknowledges_early(&self) -> bool {
        self.flushes_per_commit < FLUSHES_MIN
    }
}

/// Commits rows one after another. Returns the number of flushes and of bytes written per commit. Runs in the worker
/// process.
pub(crate) fn perform(peer: &Peer, folder: &Path) -> Result<(f64, f64)> {
    if crate::logs::peers().iter().any(|other| other.name == peer.name) {
        return crate::workloads::audit_logs(peer.name, folder, COMMITS, VALUE_BYTES);
    }
    let settings = Settings { memory_bytes: 64 << 20, durability: Durability::Full, threads: 1, two_phases: false };
    let engine = (peer.open)(folder, &settings)?;
    let counted = commits(&*engine, folder)?;
    engine.close()?;
    Ok(counted)
}

fn commits(engine: &dyn Engine, folder: &Path) -> Result<(f64, f64)> {
    let mut session = engine.session()?;
    let mut row = [(key(0), Vec::new())];
    let mut commit = |number: u64| {
        row[0].0 = key(number);
        fill(&mut row[0].1, number, 0, VALUE_BYTES);
        session.write(&row)
    };
    // Do not count the flushes of the first commits, which make files grow.
    (0..100).try_for_each(&mut commit)?;
    let meter = Meter::start(folder);
    (100..100 + COMMITS).try_for_each(&mut commit)?;
    let costs = meter.costs();
    let per_commit = |count: u64| count as f64 / COMMITS as f64;
    Ok((per_commit(costs.device_flushes), per_commit(costs.device_write_bytes)))
}

/// A mounted file system within an image file. Dropping it unmounts and removes it.
#[derive(Debug)]
pub(crate) struct LoopMount {
    image: PathBuf,
    folder: PathBuf,
}

impl LoopMount {
    /// Creates an ext4 file system below `parent` and mounts it.
    pub(crate) fn create(parent: &Path) -> std::io::Result<LoopMount> {
        let mount = LoopMount { image: parent.join("audit.image"), folder: parent.join("audit") };
        std::fs::create_dir(&mount.folder)?;
        std::fs::File::create(&mount.image)?.set_len(IMAGE_BYTES)?;
        call(Command::new("mkfs.ext4").arg("-q").arg(&mount.image))?;
        call(Command::new("mount").args(["-o", "loop"]).arg(&mount.image).arg(&mount.folder))?;
        Ok(mount)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // This fails if the image was never mounted.
        let _ = call(Command::new("umount").arg(&self.folder));
        let _ = std::fs::remove_dir(&self.folder);
        let _ = std::fs::remove_file(&self.image);
    }
}

fn call(command: &mut Command) -> std::io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(std::io::Error::other(format!("{}: {said}", command.get_program().display())))
}
