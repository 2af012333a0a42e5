//! Counts how many of an engine's durable commits flush the device, on a file system of its own.
//!
//! A commit that was acknowledged may still be in the volatile cache of the drive unless the drive was told to flush
//! it, or to write it through. Commits of one thread that are durable one by one need about one flush each. The count
//! is taken at a loop device that nothing else uses, so it needs root; elsewhere the engine's own device is counted,
//! with the flushes of everybody.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::engine::{Durability, Engine, Peer, Result, Settings};
use crate::measure::Meter;
use crate::rows::{fill, key};

/// Commits that are counted.
const COMMITS: u64 = 500;
/// Bytes of a row's value: S2's.
const VALUE_BYTES: usize = 1024;
/// The size of the file system.
const IMAGE_BYTES: u64 = 2 << 30;
/// Below this, commits are acknowledged before they are safe.
const FLUSHES_MIN: f64 = 0.9;

/// An engine's syncs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Audit {
    /// The engine.
    pub engine: String,
    /// Flushes of the device for each durable commit.
    pub flushes_per_commit: f64,
    /// Bytes written to the device for each commit of a row of 1 KiB.
    pub bytes_per_commit: f64,
    /// The device was the engine's alone.
    pub alone: bool,
}

impl Audit {
    /// Returns `true` if a commit that has returned may be lost with the drive's cache.
    #[must_use]
    pub fn acknowledges_early(&self) -> bool {
        self.flushes_per_commit < FLUSHES_MIN
    }
}

/// Commits rows one after another and counts; within the worker.
pub(crate) fn perform(peer: &Peer, folder: &Path) -> Result<(f64, f64)> {
    let settings = Settings { memory_bytes: 64 << 20, durability: Durability::Full, threads: 1 };
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
    // The first commits make files grow.
    (0..100).try_for_each(&mut commit)?;
    let meter = Meter::start(folder);
    (100..100 + COMMITS).try_for_each(&mut commit)?;
    let costs = meter.costs();
    let per_commit = |count: u64| count as f64 / COMMITS as f64;
    Ok((per_commit(costs.device_flushes), per_commit(costs.device_write_bytes)))
}

/// A file system in a file, mounted; gone when dropped.
#[derive(Debug)]
pub(crate) struct LoopMount {
    image: PathBuf,
    folder: PathBuf,
}

impl LoopMount {
    /// Makes an ext4 file system below `parent`; the error tells why none could be made.
    pub(crate) fn create(parent: &Path) -> std::io::Result<LoopMount> {
        let mount = LoopMount { image: parent.join("audit.image"), folder: parent.join("audit") };
        std::fs::create_dir(&mount.folder)?;
        std::fs::File::create(&mount.image)?.set_len(IMAGE_BYTES)?;
        call(Command::new("mkfs.ext4").arg("-q").arg(&mount.image))?;
        call(Command::new("mount").args(["-o", "loop"]).arg(&mount.image).arg(&mount.folder))?;
        Ok(mount)
    }

    /// The mounted folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Fails if it was never mounted.
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
