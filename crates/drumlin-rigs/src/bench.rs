//! Power cuts without a virtual machine: a real file system of the host's kernel, on a drive that the rig simulates.
//!
//! The drive is a file of the rig's own FUSE file system (`fuse`). A loop device on this file holds ext4, xfs or btrfs.
//! A writer runs on that file system in its own process, and the rig records every request that reaches the drive. Then
//! the rig rebuilds the drive in a state in which a power cut may leave it, mounts it (the kernel recovers the file
//! system), opens the database (Drumlin recovers it) and verifies it. The requests of that recovery are recorded too,
//! and sometimes cut.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use crate::counters::Count;
use crate::drive::{Cutter, Drive, History, Image, Loss, Sector};
use crate::fuse::{self, Mounted, SharedDrive};
use crate::host::{self, FileSystem, LoopDevice};
use crate::writers::{PREPARED, Verdict, Writer};

/// XFS needs at least 300 MiB. Blocks that were never written occupy no memory.
pub const DRIVE_BYTES: u64 = 384 << 20;
/// A trace ends once this many bytes have been written, because it is held in memory.
const TRACE_BYTES_MAX: usize = 192 << 20;
/// Identifies one life of a writer, from its start until it is killed. Needed to verify states of the life's history
/// later.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct About {
    pub system: FileSystem,
    pub writer: String,
    pub seed: u64,
    /// For each thread, the step after the last step that was verified before this life.
    pub from: Vec<u64>,
}

impl About {
    pub fn writer(&self) -> Result<Writer> {
        self.writer.parse().map_err(anyhow::Error::msg)
    }
}

/// A power cut: the moment at which it happens, and the writes that it loses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    pub moment: usize,
    pub loss: Loss,
    pub seed: u64,
}

/// The result of verifying a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Whole(Vec<u64>),
    Lost(String),
    Wrong(String),
    NotMounted(String),
}

impl Outcome {
    pub fn count(&self) -> Count {
        let mut count = Count { states: 1, ..Count::default() };
        match self {
            Outcome::Whole(_) => {}
            Outcome::Lost(_) => count.lost = 1,
            Outcome::Wrong(_) => count.wrong = 1,
            Outcome::NotMounted(_) => count.not_mounted = 1,
        }
        count
    }

    /// Returns the reason why the state is not sound, or `None` if it is sound.
    pub fn reason(&self) -> Option<String> {
        match self {
            Outcome::Whole(_) => None,
            Outcome::Lost(reason) => Some(format!("lost: {reason}")),
            Outcome::Wrong(reason) => Some(format!("wrong: {reason}")),
            Outcome::NotMounted(reason) => Some(format!("not mounted: {reason}")),
        }
    }
}

/// The simulated drive, and the folder on which it is mounted.
#[derive(Debug)]
pub struct Bench {
    drive: SharedDrive,
    _fuse: Mounted,
    folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Result<Bench> {
        let folder = host::mount_folder()?;
        let drive = SharedDrive::default();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("drive"))?;
        std::fs::create_dir(path("mounted"))?;
        let fuse = fuse::serve(&drive, DRIVE_BYTES, &path("drive"))?;
        Ok(Bench { drive, _fuse: fuse, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn attach(&self) -> Result<LoopDevice> {
        LoopDevice::attach(&self.path("drive/disk"))
    }

    /// Returns a drive with a new file system.
    pub fn make(&self, system: FileSystem) -> Result<Image> {
        self.drive.replace(Drive::default());
        system.make(self.attach()?.path())?;
        Ok(self.drive.replace(Drive::default()).into_parts().0)
    }

    /// Runs the writer on a drive, then kills it. Returns the drive's history up to that point.
    pub fn trace(&self, about: &About, start: Image, life: Duration) -> Result<History> {
        let writer = about.writer()?;
        self.drive.replace(Drive::new(start));
        let moment = {
            let device = self.attach()?;
            let _mount = about.system.mount(device.path(), &self.path("mounted"))?;
            let mut child = self.spawn(about)?;
            let watched = self.watch(&mut child, writer, life);
            let moment = self.drive.lock().moment();
            let ended = child.try_wait()?;
            child.kill().and_then(|()| child.wait()).context("ending the writer")?;
            watched?;
            ensure!(ended.is_none(), "the writer ended by itself: {ended:?}");
            moment
        };
        let mut history = self.drive.replace(Drive::default()).into_parts().1;
        history.events.truncate(moment);
        ensure!(
            history.moment_of(PREPARED).is_some() || writer == Writer::Drumlin,
            "the writer did nothing in {life:?}"
        );
        Ok(history)
    }

    fn spawn(&self, about: &About) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("write").args(["--writer", &about.writer, "--seed", &about.seed.to_string()]);
        command.arg("--folder").arg(self.path("mounted")).arg("--acks").arg(self.path("drive/acks"));
        let from = about.from.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        if !from.is_empty() {
            command.args(["--from", &from]);
        }
        // Shield the writer from Ctrl-C: the rig detects the signal itself and kills the writer.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting the writer")
    }

    /// Waits until the writer has run for the duration of its life.
    fn watch(&self, child: &mut Child, writer: Writer, life: Duration) -> Result<()> {
        let begun = Instant::now();
        // Opening may take a long time, so the life begins at the first acknowledgement.
        let mut ready = None;
        let limit = Duration::from_secs(60);
        let mut events_seen = 0;
        let (mut bytes, mut acked) = (0, 0);
        loop {
            std::thread::sleep(Duration::from_millis(10));
            ensure!(!host::is_interrupted(), "interrupted");
            if child.try_wait()?.is_some() || begun.elapsed() > limit {
                return Ok(());
            }
            let drive = self.drive.lock();
            for event in &drive.events()[events_seen..] {
                match event {
                    crate::drive::Event::Write { bytes: written, .. } => bytes += written.len(),
                    crate::drive::Event::Flush => {}
                    crate::drive::Event::Acked(_) => {
                        acked += 1;
                        ready.get_or_insert_with(Instant::now);
                    }
                }
            }
            events_seen = drive.moment();
            let is_over = ready.is_some_and(|ready: Instant| ready.elapsed() > life);
            if is_over || bytes > TRACE_BYTES_MAX || writer.acked_at_most().is_some_and(|most| acked >= most) {
                return Ok(());
            }
        }
    }

    /// Mounts, recovers and verifies a state in which the steps of `acked` were acknowledged. Returns the outcome and
    /// the history of the recovery. The history begins with those acknowledgements.
    fn verify(&self, about: &About, image: Image, acked: &[u64]) -> Result<(Outcome, History)> {
        let writer = about.writer()?;
        let mut drive = Drive::new(image);
        acked.iter().for_each(|what| drive.report(*what));
        self.drive.replace(drive);
        let outcome = {
            let device = self.attach()?;
            match about.system.mount(device.path(), &self.path("mounted")) {
                Err(error) => Outcome::NotMounted(format!("{error:#}")),
                Ok(_mount) => {
                    let report = |what| self.drive.lock().report(what);
                    match writer.verify(&self.path("mounted"), about.seed, &about.from, acked, &report) {
                        Verdict::Whole(next) => Outcome::Whole(next),
                        Verdict::Lost(reason) => Outcome::Lost(reason),
                        Verdict::Wrong(reason) => Outcome::Wrong(reason),
                    }
                }
            }
        };
        let history = self.drive.replace(Drive::default()).into_parts().1;
        Ok((outcome, history))
    }

    /// Creates the state after a cut and verifies it. Returns the state with the history of its recovery. If the file
    /// system does not survive a torn state, recreates the state with sectors of 4 KiB.
    fn verify_cut(
        &self,
        about: &About,
        cutter: &mut Cutter<'_>,
        cut: Cut,
        random: &mut Random,
        acked: &[u64],
    ) -> Result<(Replayed, History)> {
        let mut image = cutter.cut(cut.moment, cut.loss, Sector::Small, random);
        let (mut outcome, mut seen) = self.verify(about, image.clone(), acked)?;
        let is_made_again = matches!(outcome, Outcome::NotMounted(_)) && cut.loss.tears();
        if is_made_again {
            image = cutter.cut(cut.moment, cut.loss, Sector::Large, &mut Random(cut.seed));
            (outcome, seen) = self.verify(about, image.clone(), acked)?;
        }
        let count = Count { large_sectors: u64::from(is_made_again), ..outcome.count() };
        Ok((Replayed { count, outcome, image, within: None }, seen))
    }

    /// Creates the state after a cut and verifies it. One in five recoveries is cut too.
    pub fn replay(&self, about: &About, cutter: &mut Cutter<'_>, history: &History, cut: Cut) -> Result<Replayed> {
        let mut random = Random(cut.seed);
        let acked = history.acked(cut.moment);
        let (mut replayed, recovery) = self.verify_cut(about, cutter, cut, &mut random, &acked)?;
        let is_whole = matches!(replayed.outcome, Outcome::Whole(_));
        if !is_whole || about.writer()? != Writer::Drumlin || !random.chance(20) {
            return Ok(replayed);
        }
        let moment = acked.len() + random.below((recovery.events.len() - acked.len()) as u64 + 1) as usize;
        let again = Cut { moment, loss: cut.loss, seed: random.next() };
        let acked = recovery.acked(moment);
        let (second, _) =
            self.verify_cut(about, &mut Cutter::new(&recovery), again, &mut Random(again.seed), &acked)?;
        replayed.count.add(&second.count);
        replayed.count.cut_again += 1;
        if !matches!(second.outcome, Outcome::Whole(_)) {
            replayed.outcome = second.outcome;
            replayed.within = Some((recovery, again));
        }
        Ok(replayed)
    }
}

/// A state that was verified.
#[derive(Debug)]
pub struct Replayed {
    pub outcome: Outcome,
    /// The counts of this state and, if its recovery was cut, of the state after that cut.
    pub count: Count,
    /// The drive after the cut, before any recovery.
    pub image: Image,
    /// If this is the outcome of a recovery that was cut, the history of that recovery and its cut.
    pub within: Option<(History, Cut)>,
}

/// Returns ascending moments at which to cut a history. Half of them are right after an acknowledgement.
pub fn moments(about: &About, history: &History, count: usize, random: &mut Random) -> Result<Vec<usize>> {
    // Skip the preparation of a log, which the cuts do not test.
    let first = if about.writer()? == Writer::Drumlin { 0 } else { history.moment_of(PREPARED).unwrap_or(0) + 1 };
    let last = history.events.len();
    ensure!(first <= last, "the trace ends before the writer began");
    let mut moments: Vec<usize> = (0..count)
        .map(|_| {
            let moment = first + random.below((last - first) as u64 + 1) as usize;
            if random.chance(50) {
                let is_ack = |event: &crate::drive::Event| event.acked().is_some();
                history.events[moment..].iter().position(is_ack).map_or(moment, |ahead| moment + ahead + 1)
            } else {
                moment
            }
        })
        .collect();
    moments.sort_unstable();
    Ok(moments)
}
