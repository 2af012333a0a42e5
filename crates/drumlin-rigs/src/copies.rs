//! Tests common ways of copying a database's folder: which copies are reliable, and how the unreliable ones fail.
//!
//! A writer runs in its own process on btrfs, which can take a snapshot of a folder at one instant. Each copy is opened
//! and compared with the commits that were acknowledged before copying began.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drumlin_testing::Random;

use crate::host::{self, FileSystem, LoopDevice, Mount};
use crate::writers::{ACK_FILE_BYTES, PREPARED, Verdict, Writer, acks_in, not_lasting};

const DRIVE_BYTES: u64 = 2 << 30;

/// A method of copying a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copying {
    Snapshot,
    Killed,
    Closed,
    OpenDataFirst,
    OpenLogFirst,
}

impl Copying {
    const ALL: [Copying; 5] =
        [Copying::Snapshot, Copying::Killed, Copying::Closed, Copying::OpenDataFirst, Copying::OpenLogFirst];

    fn title(self) -> &'static str {
        match self {
            Copying::Snapshot => "snapshot of the file system, open",
            Copying::Killed => "copy after a kill",
            Copying::Closed => "copy of a closed database",
            Copying::OpenDataFirst => "copy of an open one, data first",
            Copying::OpenLogFirst => "copy of an open one, log first",
        }
    }

    /// Returns `true` if a copy by this method must be a complete database.
    fn is_sound(self) -> bool {
        !matches!(self, Copying::OpenDataFirst | Copying::OpenLogFirst)
    }
}

/// The results of one copying method.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    copies: u64,
    whole: u64,
    refused: u64,
    lost: u64,
    wrong: u64,
}

/// A folder on btrfs, in which the writer runs.
struct Live {
    // The fields are dropped in this order: the file system is unmounted, its device detached, and its folder removed.
    _mount: Mount,
    _device: LoopDevice,
    folder: tempfile::TempDir,
    seed: u64,
    copy_count: u64,
    acked: Vec<u64>,
}

impl Live {
    fn new(seed: u64) -> Result<Live> {
        let folder = host::mount_folder()?;
        let path = |name: &str| folder.path().join(name);
        fs::File::create(path("drive"))?.set_len(DRIVE_BYTES)?;
        fs::write(path("acks"), vec![0; ACK_FILE_BYTES as usize])?;
        fs::create_dir(path("mounted"))?;
        let device = LoopDevice::attach(&path("drive"))?;
        FileSystem::Btrfs.make(device.path())?;
        let mount = FileSystem::Btrfs.mount(device.path(), &path("mounted"))?;
        let live = Live { _mount: mount, _device: device, folder, seed, copy_count: 0, acked: Vec::new() };
        host::run(Command::new("btrfs").args(["--quiet", "subvolume", "create"]).arg(live.source()))?;
        Ok(live)
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("mounted/live")
    }

    fn spawn(&self) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["write", "--writer", &Writer::Drumlin.to_string(), "--seed", &self.seed.to_string()]);
        command.arg("--folder").arg(self.source()).arg("--acks").arg(self.folder.path().join("acks"));
        // Shield the writer from Ctrl-C; the rig handles it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting the writer")
    }

    /// Reads the writer's new acknowledgements. The file holds the last 2,048.
    fn listen(&mut self) -> Result<()> {
        let acked = fs::read(self.folder.path().join("acks"))?;
        self.acked.extend(acks_in(&acked));
        self.acked.sort_unstable();
        self.acked.dedup();
        Ok(())
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        while !self.acked.contains(&PREPARED) {
            ensure!(begun.elapsed() < Duration::from_secs(60), "the writer is not ready after 60 s");
            std::thread::sleep(Duration::from_millis(5));
            self.listen()?;
        }
        Ok(())
    }

    /// Makes a copy, opens it, and compares it with the commits that were acknowledged before the copying began.
    fn verify_copy(&mut self, copying: Copying, random: &mut Random, count: &mut Count) -> Result<()> {
        self.listen()?;
        self.copy_count += 1;
        let (source, target) = (self.source(), self.folder.path().join(format!("mounted/copy-{}", self.copy_count)));
        match copying {
            Copying::Snapshot => {
                let words = ["--quiet", "subvolume", "snapshot"];
                host::run(Command::new("btrfs").args(words).args([&source, &target]))?;
            }
            Copying::Killed | Copying::Closed => copy(&source, &target, false, &mut || {})?,
            Copying::OpenDataFirst | Copying::OpenLogFirst => {
                let longest = [0, 20, 300][random.index(3)];
                let mut pause = || std::thread::sleep(Duration::from_millis(random.below(longest + 1)));
                copy(&source, &target, copying == Copying::OpenLogFirst, &mut pause)?;
            }
        }
        // Acknowledgements made during copying may or may not be in the copy.
        let known: BTreeSet<u64> = self.acked.iter().copied().collect();
        self.listen()?;
        let acked = self.acked.iter().map(|acked| if known.contains(acked) { *acked } else { not_lasting(*acked) });
        let verdict = Writer::Drumlin.verify(&target, self.seed, &[], &acked.collect::<Vec<_>>(), &|_| {});
        count.copies += 1;
        match &verdict {
            Verdict::Whole(_) => count.whole += 1,
            Verdict::Lost(_) => count.lost += 1,
            Verdict::Wrong(reason) if reason.starts_with("opening: ") => count.refused += 1,
            Verdict::Wrong(_) => count.wrong += 1,
        }
        if let Verdict::Lost(reason) | Verdict::Wrong(reason) = &verdict {
            println!("{}: {reason} (seed {})", copying.title(), self.seed);
        }
        match copying {
            Copying::Snapshot => host::run(Command::new("btrfs").args(["--quiet", "subvolume", "delete"]).arg(&target)),
            _ => Ok(fs::remove_dir_all(&target)?),
        }
    }
}

/// Copies a folder's files, the log's folder first or last, with a pause after each file. Skips files that disappear
/// during copying, as `cp` does.
fn copy(from: &Path, to: &Path, log_first: bool, pause: &mut dyn FnMut()) -> Result<()> {
    fs::create_dir(to)?;
    let mut entries = fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(|entry| ((entry.file_name() == "log") != log_first, entry.file_name()));
    for entry in entries {
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target, log_first, pause)?;
        } else {
            match fs::copy(entry.path(), target) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                copied => drop(copied?),
            }
            pause();
        }
    }
    Ok(())
}

/// Copies each of `rounds` databases by every method, and prints the results. Fails if a copy is incomplete that must
/// be complete.
pub fn run(rounds: u64, seed: u64) -> Result<()> {
    host::require(&[FileSystem::Btrfs])?;
    ensure!(host::has_program("btrfs"), "this rig needs: btrfs (package btrfs-progs)");
    let mut counts = [Count::default(); Copying::ALL.len()];
    for seed in seed..seed + rounds {
        if host::is_interrupted() {
            break;
        }
        round(seed, &mut counts)?;
    }
    println!("{:34} {:>6} {:>6} {:>8} {:>6} {:>6}", "", "copies", "whole", "refused", "older", "wrong");
    let mut is_clean = true;
    for (copying, count) in Copying::ALL.into_iter().zip(counts) {
        let Count { copies, whole, refused, lost, wrong } = count;
        println!("{:34} {copies:>6} {whole:>6} {refused:>8} {lost:>6} {wrong:>6}", copying.title());
        is_clean &= !copying.is_sound() || copies == whole;
    }
    ensure!(is_clean, "a copy that should be the database is not");
    Ok(())
}

fn round(seed: u64, counts: &mut [Count]) -> Result<()> {
    let mut random = Random(seed);
    let mut live = Live::new(seed)?;
    let mut child = live.spawn()?;
    let copied = live.wait_until_ready().and_then(|()| {
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(random.below(400)));
            for copying in [Copying::Snapshot, Copying::OpenDataFirst, Copying::OpenLogFirst] {
                live.verify_copy(copying, &mut random, &mut counts[copying as usize])?;
            }
        }
        ensure!(child.try_wait()?.is_none(), "the writer ended by itself");
        Ok(())
    });
    child.kill().and_then(|()| child.wait()).context("ending the writer")?;
    copied?;
    live.verify_copy(Copying::Killed, &mut random, &mut counts[Copying::Killed as usize])?;
    // This opens, recovers and closes the database.
    let verdict = Writer::Drumlin.verify(&live.source(), seed, &[], &live.acked, &|_| {});
    ensure!(matches!(verdict, Verdict::Whole(_)), "after a kill: {verdict:?}, seed {seed}");
    live.verify_copy(Copying::Closed, &mut random, &mut counts[Copying::Closed as usize])
}
