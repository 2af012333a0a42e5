//! The host's loop devices and mounts, for the rigs. Reports missing requirements by name, and undoes all changes to
//! the host.
//!
//! Each attachment is a value whose drop detaches it, even after a failure or Ctrl-C. If a rig is killed, the next rig
//! removes its attachments. It recognises them by the process id in the names of their folders.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The file systems that the rigs support.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    Ext4,
    Xfs,
    Btrfs,
}

impl FileSystem {
    pub const ALL: [FileSystem; 3] = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs];

    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// Returns the program that creates this file system, and the name of its package.
    fn maker(self) -> (&'static str, &'static str) {
        match self {
            FileSystem::Ext4 => ("mkfs.ext4", "e2fsprogs"),
            FileSystem::Xfs => ("mkfs.xfs", "xfsprogs"),
            FileSystem::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
        }
    }

    /// Creates this file system on `device`.
    pub fn make(self, device: &Path) -> Result<()> {
        let options: &[&str] = match self {
            // Without these options, the kernel continues to initialise tables for seconds after the mount.
            FileSystem::Ext4 => &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
            FileSystem::Xfs => &["-q", "-f", "-K"],
            FileSystem::Btrfs => &["-q", "-f", "-K"],
        };
        run(Command::new(self.maker().0).args(options).arg(device))
    }

    /// Mounts `device` on `folder`, in the state in which a power cut left it.
    pub fn mount(self, device: &Path, folder: &Path) -> Result<Mount> {
        // Without this option, XFS refuses to mount a second file system with the same UUID.
        let options = if self == FileSystem::Xfs { "nouuid" } else { "defaults" };
        run(Command::new("mount").args(["-t", self.name(), "-o", options]).args([device, folder]))?;
        Ok(Mount(folder.to_path_buf()))
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FileSystem {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<FileSystem> {
        let found = FileSystem::ALL.into_iter().find(|system| system.name() == text);
        found.with_context(|| format!("no file system {text:?}; there are ext4, xfs and btrfs"))
    }
}

/// A mounted file system, unmounted on drop.
#[derive(Debug)]
pub struct Mount(PathBuf);

/// The maximum wait for a busy mount or device: a dropped io_uring takes a while to close its files.
const BUSY_LIMIT: Duration = Duration::from_secs(120);

impl Drop for Mount {
    fn drop(&mut self) {
        let begun = Instant::now();
        while let Err(error) = run(Command::new("umount").arg(&self.0)) {
            if begun.elapsed() > BUSY_LIMIT {
                // If a file system remained mounted, it would write to the drive of the next state.
                eprintln!("drumlin-rigs: {error:#}");
                std::process::exit(1);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A loop device on a file, detached on drop.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    file: PathBuf,
}

impl LoopDevice {
    pub fn attach(file: &Path) -> Result<LoopDevice> {
        let path = output(Command::new("losetup").args(["--direct-io=on", "--find", "--show"]).arg(file))?;
        Ok(LoopDevice { path: PathBuf::from(path.trim()), file: file.to_path_buf() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if the device is still attached to our file. Once it is detached, a different rig may reuse the
    /// device.
    fn is_attached(&self) -> Result<bool> {
        let list = output(Command::new("losetup").args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]))?;
        let is_ours = |line: &str| {
            let (name, file) = line.trim().split_once(' ').unwrap_or_default();
            Path::new(name) == self.path && Path::new(file.trim()) == self.file
        };
        Ok(list.lines().any(is_ours))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let begun = Instant::now();
        // The kernel detaches a busy device later and reports no error, so check that it has been detached.
        while self.is_attached().unwrap_or(true) {
            let detached = run(Command::new("losetup").arg("--detach").arg(&self.path));
            if begun.elapsed() > BUSY_LIMIT {
                eprintln!("drumlin-rigs: {} stays attached: {detached:?}", self.path.display());
                std::process::exit(1);
            }
            if self.is_attached().unwrap_or(true) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Runs a program. If the program fails, the error contains its output; otherwise the output is discarded.
pub fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs a program and returns its output.
pub fn output(command: &mut Command) -> Result<String> {
    let words = || format!("{command:?}").replace('"', "");
    let words = words();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {words}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{words}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns `true` if a program is in the path.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Describes each requirement of power cuts on loop devices that this machine does not meet.
pub fn missing(systems: &[FileSystem]) -> Vec<String> {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root (loop devices and mounts)".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        // Try to open the device, because a container may forbid that.
        if let Err(error) = fs::OpenOptions::new().read(true).write(true).open(device) {
            missing.push(format!("{device} ({error})"));
        }
    }
    let programs = [("fusermount3", "fuse3"), ("losetup", "mount"), ("mount", "mount")];
    for (program, package) in programs.into_iter().chain(systems.iter().map(|system| system.maker())) {
        if !has_program(program) {
            missing.push(format!("{program} (package {package})"));
        }
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    for system in systems {
        let is_known = || known.lines().any(|line| line.ends_with(&format!("\t{system}")));
        if !is_known() && run(Command::new("modprobe").arg(system.name())).is_err() {
            missing.push(format!("{system} in this kernel"));
        }
    }
    missing
}

/// Fails with a list of the requirements that this machine does not meet, if there are any.
pub fn require(systems: &[FileSystem]) -> Result<()> {
    let missing = missing(systems);
    if !missing.is_empty() {
        bail!("this rig needs: {}", missing.join(", "));
    }
    Ok(())
}

/// Returns the rigs' folder below the build folder. It holds counters, failures, and the guest's files.
pub fn work_folder() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let folder = target.join("rigs");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder.canonicalize()?)
}

/// The prefix of folders that hold mounts. The process id follows it.
const FOLDER_PREFIX: &str = "drumlin-rigs-";

/// Creates a folder for mounts of this process.
pub fn mount_folder() -> Result<tempfile::TempDir> {
    let prefix = format!("{FOLDER_PREFIX}{}-", std::process::id());
    Ok(tempfile::Builder::new().prefix(&prefix).tempdir()?)
}

/// Detaches and removes the mounts, devices and folders that killed rigs left behind.
pub fn clean_up() -> Result<()> {
    let is_stale = |path: &str| {
        let rest = path.split_once(FOLDER_PREFIX)?.1;
        let process = rest.split('-').next()?;
        (!Path::new("/proc").join(process).exists()).then_some(())
    };
    let mounts = fs::read_to_string("/proc/mounts")?;
    let stale: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    // Unmount in reverse order, because a drive's file system is on a device whose file is on an earlier mount.
    for path in stale.into_iter().rev().filter(|path| is_stale(path).is_some()) {
        println!("unmounting {path}, which a killed rig left mounted");
        run(Command::new("umount").arg("--lazy").arg(path))?;
    }
    for line in output(Command::new("losetup").args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]))?.lines()
    {
        if is_stale(line).is_some() {
            let device = line.split_whitespace().next().unwrap_or_default();
            println!("detaching {device}, which a killed rig left attached");
            run(Command::new("losetup").arg("--detach").arg(device))?;
        }
    }
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        if is_stale(&entry.path().to_string_lossy()).is_some() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C and SIGTERM set a flag instead of ending the process, so that there is time to detach all devices.
pub fn watch_for_interrupts() -> Result<()> {
    Ok(ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))?)
}

pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
