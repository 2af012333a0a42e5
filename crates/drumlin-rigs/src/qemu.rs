//! Power cuts of a whole machine: a small Linux guest in QEMU, on a drive that the rig serves over NBD.
//!
//! The guest is started once; while it waits for an order, its state is saved. Each cycle resumes the guest with a
//! different drive, lets it mount, recover and write, and then kills QEMU and, with it, the guest's kernel and page
//! cache. The rig then creates a drive in a state in which a cut may leave it. The host verifies a copy, and the next
//! guest recovers the created drive itself.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drumlin_testing::Random;

use crate::bench::{About, Bench, DRIVE_BYTES};
use crate::counters::{self, Count, Counters};
use crate::cuts;
use crate::drive::{Cutter, Drive, History, Image, Loss};
use crate::fuse::SharedDrive;
use crate::guest;
use crate::host::{self, FileSystem, output, run};
use crate::nbd::{self, Order};
use crate::writers::{PREPARED, WAITING, Writer};

const PROGRAMS: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("modprobe", "kmod"),
    ("depmod", "kmod"),
    ("cpio", "cpio"),
    ("dpkg-deb", "dpkg"),
];
/// The guest's kernel, from Debian's archive: small, with all three file systems as modules or built in.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "xfs", "btrfs"];
/// The maximum wait without progress. Emulation on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(180);

/// The guest's kernel and initial file system.
struct Guest {
    kernel: PathBuf,
    initramfs: PathBuf,
}

impl Guest {
    /// Creates the parts that are missing.
    fn prepare() -> Result<Guest> {
        let missing: Vec<String> = PROGRAMS
            .into_iter()
            .filter(|(program, _)| !host::has_program(program))
            .map(|(program, package)| format!("{program} (package {package})"))
            .collect();
        ensure!(missing.is_empty(), "this rig needs: {}", missing.join(", "));
        let folder = host::work_folder()?.join("guest");
        fs::create_dir_all(&folder)?;
        let root = folder.join("package");
        if !root.exists() {
            fetch_kernel(&folder, &root)?;
        }
        let boot = fs::read_dir(root.join("boot"))?.flatten().map(|entry| entry.path());
        let kernel = boot.into_iter().find(|path| path.to_string_lossy().contains("/vmlinuz-"));
        let kernel = kernel.context("the kernel package holds no kernel")?;
        let version = kernel.to_string_lossy().rsplit_once("vmlinuz-").expect("it was found by that").1.to_owned();
        let initramfs = make_initramfs(&folder, &root, &version)?;
        Ok(Guest { kernel, initramfs })
    }
}

fn fetch_kernel(folder: &Path, root: &Path) -> Result<()> {
    let depends = output(Command::new("apt-cache").args(["depends", KERNEL_PACKAGE]))?;
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: ")).context("no such kernel")?;
    println!("fetching {package} with apt-get, for the guest");
    run(Command::new("apt-get").args(["download", "-q", package]).current_dir(folder))?;
    let files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let file = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "deb"));
    let file = file.context("apt-get downloaded nothing")?;
    run(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(root))?;
    Ok(fs::remove_file(file)?)
}

/// Creates the initial file system, which contains this program, linked statically, and the modules.
fn make_initramfs(folder: &Path, root: &Path, version: &str) -> Result<PathBuf> {
    println!("building this program statically, for the guest");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = "x86_64-unknown-linux-gnu";
    let built = folder.join("build");
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--release", "--package", "drumlin-rigs", "--target", target]);
    build.arg("--target-dir").arg(&built).current_dir(env!("CARGO_MANIFEST_DIR"));
    run(build.env("RUSTFLAGS", "-Ctarget-feature=+crt-static -Cstrip=symbols"))?;

    let files = folder.join("initramfs");
    let _ = fs::remove_dir_all(&files);
    fs::create_dir_all(files.join("dev"))?;
    fs::copy(built.join(target).join("release/drumlin-rigs"), files.join("init"))?;
    run(Command::new("depmod").arg("--basedir").arg(root).arg(version))?;
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        let mut show = Command::new("modprobe");
        show.args(["--show-depends", "--ignore-install", "--set-version", version, "--dirname"]).arg(root).arg(module);
        for line in output(&mut show)?.lines() {
            let Some(path) = line.trim().strip_prefix("insmod ") else { continue };
            let path = Path::new(path.trim());
            let name = path.file_name().context("a module's file")?.to_string_lossy().into_owned();
            if !order.contains(&name) {
                fs::copy(path, files.join(&name))?;
                order.push(name);
            }
        }
    }
    fs::write(files.join(guest::MODULES), order.join("\n"))?;
    let initramfs = folder.join("initramfs.cpio");
    let script = "find . | cpio --quiet --create --format=newc > ../initramfs.cpio";
    run(Command::new("sh").args(["-c", script]).current_dir(&files))?;
    Ok(initramfs)
}

/// A running virtual machine, killed on drop.
struct Machine {
    child: Child,
    control: BufReader<UnixStream>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine {
    /// Starts QEMU with the guest paused.
    fn start(guest: &Guest, folder: &Path, state: Option<&Path>) -> Result<Machine> {
        let (socket, control) = (folder.join("nbd"), folder.join("control"));
        let _ = fs::remove_file(&control);
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-nodefaults", "-no-reboot", "-display", "none", "-S", "-m", "384", "-cpu", "max"]);
        command.args(["-accel", "tcg,thread=multi", "-smp", "2"]);
        command.arg("-kernel").arg(&guest.kernel).arg("-initrd").arg(&guest.initramfs);
        command.args(["-append", "console=ttyS0 quiet panic=-1 rdinit=/init -- guest"]);
        command.arg("-serial").arg(format!("file:{}", folder.join("console").display()));
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", control.display()));
        for export in ["disk", "acks"] {
            let server = format!("server.type=unix,server.path={}", socket.display());
            command.arg("-blockdev");
            command.arg(format!("driver=nbd,node-name={export},{server},export={export},cache.direct=on"));
            command.arg("-device").arg(format!("virtio-blk-pci,drive={export},write-cache=on"));
        }
        if let Some(state) = state {
            command.arg("-incoming").arg(format!("exec:cat {}", state.display()));
        }
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.stdin(Stdio::null()).spawn().context("starting QEMU")?;
        let begun = Instant::now();
        let stream = loop {
            match UnixStream::connect(&control) {
                Ok(stream) => break stream,
                Err(error) if begun.elapsed() > PATIENCE => return Err(error).context("reaching QEMU"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut machine = Machine { child, control: BufReader::new(stream) };
        machine.read_line()?;
        machine.ask(r#"{"execute": "qmp_capabilities"}"#)?;
        Ok(machine)
    }

    fn read_line(&mut self) -> Result<serde_json::Value> {
        let mut line = String::new();
        self.control.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("QEMU said {line:?}"))
    }

    /// Sends a command and returns its answer. Skips events that arrive before the answer.
    fn ask(&mut self, command: &str) -> Result<serde_json::Value> {
        self.control.get_mut().write_all(command.as_bytes())?;
        loop {
            let answer = self.read_line()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU: {error}");
            }
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
        }
    }

    /// Repeats a command until its answer has one of the statuses in `wanted`.
    fn wait_for(&mut self, command: &str, wanted: &[&str]) -> Result<()> {
        let begun = Instant::now();
        loop {
            let answer = self.ask(command)?;
            let status = answer.get("status").and_then(|status| status.as_str()).unwrap_or_default();
            if wanted.contains(&status) {
                return Ok(());
            }
            ensure!(status != "failed" && begun.elapsed() < PATIENCE, "QEMU: {answer}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The rig: a saved guest, and the drive with which the guest is resumed.
struct Rig {
    guest: Guest,
    drive: SharedDrive,
    order: Order,
    folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Result<Rig> {
        let guest = Guest::prepare()?;
        let folder = host::mount_folder()?;
        let (drive, order) = (SharedDrive::default(), Arc::new(Mutex::new(Vec::new())));
        nbd::serve(&drive, DRIVE_BYTES, &order, &folder.path().join("nbd"))?;
        let rig = Rig { guest, drive, order, folder };
        println!("starting the guest");
        let begun = Instant::now();
        let mut machine = Machine::start(&rig.guest, rig.folder.path(), None)?;
        machine.ask(r#"{"execute": "cont"}"#)?;
        rig.wait(&mut machine, |acked| acked.contains(&WAITING))?;
        // Give the guest time to complete that write and enter the loop in which it waits.
        std::thread::sleep(Duration::from_millis(200));
        machine.ask(r#"{"execute": "stop"}"#)?;
        let uri = format!("exec:cat > {}", rig.state().display());
        machine.ask(&format!(r#"{{"execute": "migrate", "arguments": {{"uri": "{uri}"}}}}"#))?;
        machine.wait_for(r#"{"execute": "query-migrate"}"#, &["completed"])?;
        println!("the guest waits, after {:.1} s; its state is saved", begun.elapsed().as_secs_f32());
        Ok(rig)
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Waits until `is_enough` accepts the acknowledgements.
    fn wait(&self, machine: &mut Machine, mut is_enough: impl FnMut(&[u64]) -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(5));
            ensure!(!host::is_interrupted(), "interrupted");
            let acked = {
                let drive = self.drive.lock();
                drive.events().iter().filter_map(crate::drive::Event::acked).collect::<Vec<u64>>()
            };
            if is_enough(&acked) {
                return Ok(());
            }
            if machine.child.try_wait()?.is_some() || begun.elapsed() > PATIENCE {
                let console = fs::read_to_string(self.folder.path().join("console")).unwrap_or_default();
                let last: Vec<&str> = console.lines().rev().take(20).collect();
                bail!("the guest ended or hangs; it said:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
        }
    }

    /// Runs a guest on a drive until it is ready and has made more than `acknowledgements` acknowledgements, then kills
    /// it.
    fn live(&self, about: &About, start: Image, acknowledgements: usize) -> Result<History> {
        self.drive.replace(Drive::new(start));
        let mut machine = Machine::start(&self.guest, self.folder.path(), Some(&self.state()))?;
        machine.wait_for(r#"{"execute": "query-status"}"#, &["paused", "postmigrate", "prelaunch"])?;
        *self.order.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = guest::encode(about)?;
        machine.ask(r#"{"execute": "cont"}"#)?;
        let lived = self.wait(&mut machine, |acked| acked.contains(&PREPARED) && acked.len() > acknowledgements);
        let moment = self.drive.lock().moment();
        drop(machine);
        self.order.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        lived?;
        let mut history = self.drive.replace(Drive::default()).into_parts().1;
        history.events.truncate(moment);
        Ok(history)
    }
}

/// Cuts the guest's power until each file system has had `goal` cuts over all runs.
pub fn cut(systems: &[FileSystem], goal: u64, minutes: f64, updates_docs: bool) -> Result<()> {
    host::require(systems)?;
    let bench = Bench::new()?;
    let rig = Rig::new()?;
    let deadline = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    for &system in systems {
        control(&rig, &bench, system)?;
    }
    let mut counters = Counters::open("qemu")?;
    let mut lefts: Vec<Option<(About, Image, u32)>> = systems.iter().map(|_| None).collect();
    let mut clean = true;
    loop {
        let mut is_reached = true;
        for (&system, left) in systems.iter().zip(&mut lefts) {
            let done = counters.get(system.name()).states;
            if done >= goal {
                continue;
            }
            is_reached = false;
            if Instant::now() > deadline || host::is_interrupted() {
                break;
            }
            clean &= cycle(&rig, &bench, system, done, left, &mut counters)?;
        }
        if is_reached || Instant::now() > deadline || host::is_interrupted() {
            break;
        }
    }
    for &system in systems {
        let count = counters.get(system.name());
        println!(
            "{system:5}: {} power cuts in all runs, {} lost, {} wrong, {} not mounted",
            count.states, count.lost, count.wrong, count.not_mounted
        );
    }
    if updates_docs {
        let counts: Vec<_> = systems.iter().map(|system| (system.to_string(), counters.get(system.name()))).collect();
        counters::write_row("guests killed whole", &counts)?;
    }
    ensure!(clean, "acknowledged commits were lost, or something is wrong");
    Ok(())
}

fn cycle(
    rig: &Rig,
    bench: &Bench,
    system: FileSystem,
    number: u64,
    left: &mut Option<(About, Image, u32)>,
    counters: &mut Counters,
) -> Result<bool> {
    let mut random = Random(number ^ 0x5EED);
    let fresh = || About { system, writer: Writer::Drumlin.to_string(), seed: 1000 + number, from: Vec::new() };
    let (about, start, lives) = match left.take() {
        Some((about, image, lives)) if lives < 8 => (about, image, lives + 1),
        _ => (fresh(), bench.make(system)?, 1),
    };
    let begun = Instant::now();
    let acknowledgements = random.below(300) as usize;
    let history = rig.live(&about, start, acknowledgements)?;
    let moment = history.events.len();
    let loss = if random.chance(20) { Loss::None } else { Loss::CACHE_LOST[random.below(4) as usize] };
    let cut = crate::bench::Cut { moment, loss, seed: random.next() };
    let replayed = bench.replay(&about, &mut Cutter::new(&history), &history, cut)?;
    // Do not count cuts of the host's recovery, because they are not cuts of the guest.
    let outcome = replayed.outcome.count();
    counters.add(system.name(), &outcome)?;
    let reason = replayed.outcome.reason();
    println!(
        "{system:5} cut {}, life {lives}, loss {loss:?}, {} acknowledgements, {:.1} s: {}",
        number + 1,
        history.acked(moment).len(),
        begun.elapsed().as_secs_f32(),
        reason.as_deref().unwrap_or("whole")
    );
    match reason {
        Some(reason) => cuts::report(&about, &history, cut, &replayed, &reason)?,
        None => {
            if let crate::bench::Outcome::Whole(from) = replayed.outcome {
                *left = Some((About { from, ..about }, replayed.image, lives));
            }
        }
    }
    Ok(outcome.is_clean())
}

/// Shows that this rig also catches writers that lose acknowledged records.
fn control(rig: &Rig, bench: &Bench, system: FileSystem) -> Result<()> {
    for name in ["append-nosync", "zeros-syncfilerange"] {
        let about = About { system, writer: name.to_owned(), seed: 1, from: Vec::new() };
        let history = rig.live(&about, bench.make(system)?, 200)?;
        let cut = crate::bench::Cut { moment: history.events.len(), loss: Loss::All, seed: 1 };
        let replayed = bench.replay(&about, &mut Cutter::new(&history), &history, cut)?;
        let count: Count = replayed.count;
        println!("{system:5} control {name}: {}", replayed.outcome.reason().unwrap_or_else(|| "whole".into()));
        ensure!(count.lost > 0, "the rig does not catch {name} on {system}: its results prove nothing");
    }
    Ok(())
}
