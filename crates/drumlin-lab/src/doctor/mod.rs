//! The doctor: examines a folder's drive, checks the drive's claims and the system's settings, and recommends settings
//! for Drumlin. If the folder holds a database, the doctor also examines the database's health.
//!
//! [`drumlin_io::Probe`] measures the sync methods, as it does for a new database.

mod limits;
mod queue;
mod text;

use std::io;
use std::path::Path;
use std::time::Duration;

use drumlin::{Config, Database, Error, Stats};
use drumlin_io::{IoBackend, Probe, SyncMethod};
use serde::Serialize;

use crate::cgroup;
use crate::experiments::{random, scan, sync};
use crate::figures::{self, Form};
use crate::machine::Machine;
use crate::map::Advice;
use crate::measure::{Load, Timing, median};
use crate::report::Table;
use crate::ring::RingOptions;
use crate::session::{Observer, Pace, plain};
use crate::temp_folder::{self, TempFolder};
use crate::worker::{self, Measurement, Outcome};

/// The size of the measured file. The drive's own cache can't answer all reads of a file this large, and writing it
/// takes only a second or two.
const FILE_BYTES: u64 = 512 << 20;

/// The smallest file whose figures are meaningful. If the disk has no room for a file of this size, the drive is not
/// measured.
const FILE_BYTES_MIN: u64 = 64 << 20;

/// The largest database whose data the doctor reads and verifies. A larger one would take too long.
const CHECKED_BYTES_MAX: u64 = 2 << 30;

const DEPTHS: [usize; 5] = [1, 4, 16, 64, 256];

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Everything is as it should be.
    Fine,
    /// Something works but could be better, or its state cannot be determined.
    Advice,
    /// Data may be lost, or something does not work.
    Wrong,
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The severity of the finding.
    pub severity: Severity,
    /// The subject of the check.
    pub what: &'static str,
    /// The result, in words.
    pub found: String,
    /// The remedy, if there is one.
    pub mend: Option<String>,
}

/// A setting of Drumlin, derived from the measurements.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The setting, as source code.
    pub setting: String,
    /// The figures on which the setting is based.
    pub why: String,
}

/// The findings of the doctor.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// The machine examined.
    pub machine: Machine,
    /// The findings, the most severe first.
    pub findings: Vec<Finding>,
    /// Figures for the drive, and for the database if there is one.
    pub tables: Vec<Table>,
    /// The settings derived from the findings.
    pub settings: Vec<Setting>,
    /// `true` if the user interrupted the examination.
    pub interrupted: bool,
}

impl Diagnosis {
    /// Returns `true` if anything is wrong.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Wrong)
    }

    /// Formats the diagnosis for a terminal of this many columns, with ANSI styles.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        text::render(self, columns)
    }

    fn add(&mut self, severity: Severity, what: &'static str, found: impl Into<String>) {
        self.findings.push(Finding { severity, what, found: found.into(), mend: None });
    }

    fn mend(&mut self, severity: Severity, what: &'static str, found: impl Into<String>, mend: impl Into<String>) {
        self.findings.push(Finding { severity, what, found: found.into(), mend: Some(mend.into()) });
    }

    fn setting(&mut self, setting: impl Into<String>, why: impl Into<String>) {
        self.settings.push(Setting { setting: setting.into(), why: why.into() });
    }
}

/// The length of an examination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Length {
    /// About half a minute.
    #[default]
    Full,
    /// A few seconds. The figures are less certain if the drive has its own cache.
    Quick,
}

impl Length {
    /// Returns the factor by which this length scales the times and sizes of a full examination.
    fn share(self) -> f64 {
        match self {
            Length::Full => 1.0,
            Length::Quick => 0.15,
        }
    }
}

/// Examines a folder and its drive, and the database if the folder holds one.
///
/// # Errors
/// If the folder does not exist. A read-only folder is not an error, but its drive is not measured.
pub fn examine(path: &Path, length: Length, observer: &dyn Observer) -> io::Result<Diagnosis> {
    let is_database = path.join("data").is_file();
    // A database's folder must contain nothing else, so measure the drive in its parent folder.
    let beside = path.canonicalize()?.parent().map(Path::to_path_buf);
    let folder = if is_database { beside.unwrap_or_else(|| path.to_path_buf()) } else { path.to_path_buf() };
    let machine = Machine::of(&folder)?;
    let mut diagnosis =
        Diagnosis { machine, findings: Vec::new(), tables: Vec::new(), settings: Vec::new(), interrupted: false };
    let pace = Pace::new(observer);
    pace.expect(20.0 * length.share());
    let mut sync_method = None;
    if is_database {
        pace.step("doctor: the database", 0.0);
        sync_method = database(&mut diagnosis, path);
    }
    system(&mut diagnosis);
    let steps = Steps { pace, length };
    steps.reach(2.0);
    match drive(&mut diagnosis, &folder, sync_method, &steps) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::Interrupted => diagnosis.interrupted = true,
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            diagnosis.mend(Severity::Wrong, "space", plain(&error), "free some space, or choose another folder");
        }
        Err(error) if may_not_write(&error) => diagnosis.mend(
            Severity::Advice,
            "drive",
            format!("not measured, as nothing can be written to {}: {}", folder.display(), plain(&error)),
            "if it should be writable, look for the kernel's reason in dmesg; a system mounts a failing drive read-only",
        ),
        Err(error) => return Err(error),
    }
    diagnosis.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(diagnosis)
}

/// Returns `true` if the error means that this process has no permission to write.
fn may_not_write(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// A measurement of one load in a new worker. The closure that it receives returns `true` if the user has interrupted
/// the examination.
type Task = Box<dyn Fn(&dyn Fn() -> bool) -> io::Result<Outcome<Load>>>;

fn task<M: Measurement + Clone + 'static>(measurement: M) -> Task
where
    Load: From<M::Result>,
{
    Box::new(move |interrupted| Ok(worker::run(measurement.clone(), None, interrupted)?.map(Load::from)))
}

struct Steps<'a> {
    pace: Pace<'a>,
    length: Length,
}

impl Steps<'_> {
    /// Returns the timing of a measurement that lasts `seconds` in a full examination.
    fn timing(&self, seconds: f64) -> Timing {
        Timing { seconds: seconds * self.length.share(), sample_seconds: 0.0 }
    }

    /// Moves the progress bar to where a full examination would be after `seconds`.
    fn reach(&self, seconds: f64) {
        self.pace.reached(seconds * self.length.share());
    }

    /// Runs every task once in each of `rounds` rounds.
    fn run(&self, tasks: &[(String, Task)], rounds: usize, seconds: f64) -> io::Result<Vec<Vec<Load>>> {
        let mut all: Vec<Vec<Load>> = tasks.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((name, task), loads) in tasks.iter().zip(&mut all) {
                self.pace.step(&format!("doctor: {name}"), seconds * self.length.share());
                match task(&|| self.pace.interrupted())?.result() {
                    Ok(load) => loads.push(load),
                    Err(error) => log_refusal(name, &error),
                }
            }
        }
        Ok(all)
    }
}

/// Logs to stderr why a measurement failed. Its row will be missing from the table.
fn log_refusal(name: &str, error: &io::Error) {
    eprintln!("doctor: {name}: {}", plain(error));
}

/// Checks the limits and settings of the system.
fn system(diagnosis: &mut Diagnosis) {
    match drumlin_io::backend(IoBackend::Uring) {
        Ok(_) => {
            diagnosis.add(Severity::Fine, "io_uring", "works");
            diagnosis.setting("Config::new().io_backend(IoBackend::Auto)", "io_uring works; this is the default");
        }
        Err(error) => {
            let text = plain(&error);
            let (found, mend) =
                text.split_once(". ").unwrap_or((text.as_str(), "allow it; without it Drumlin is slower"));
            diagnosis.mend(Severity::Advice, "io_uring", found, mend);
            diagnosis.setting("Config::new().io_backend(IoBackend::Portable)", "io_uring is refused");
        }
    }
    let pages = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if pages.contains("[never]") {
        diagnosis.mend(
            Severity::Advice,
            "huge pages",
            "disabled: large memory budgets cause more TLB misses",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        );
    } else {
        let mode = if pages.contains("[always]") { "always" } else { "for programs that request them (madvise)" };
        diagnosis.add(Severity::Fine, "huge pages", mode);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match limit {
        Some(bytes) if bytes < 8 << 20 => diagnosis.mend(
            Severity::Advice,
            "locked memory",
            format!(
                "limited to {}: too little for registered buffers, and for rings before Linux 5.12",
                figures::size(bytes)
            ),
            "ulimit -l 65536, or LimitMEMLOCK=64M in the systemd unit",
        ),
        Some(bytes) => diagnosis.add(Severity::Fine, "locked memory", format!("up to {}", figures::size(bytes))),
        None => diagnosis.add(Severity::Fine, "locked memory", "no limit"),
    }
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if files.is_some_and(|files| files < 256) {
        diagnosis.mend(Severity::Advice, "open files", format!("limited to {}", files.unwrap_or(0)), "ulimit -n 1024");
    }
    let memory = cgroup::own_limit_bytes().unwrap_or(u64::MAX).min(diagnosis.machine.memory_bytes);
    let quarter = (memory / 4) >> 20;
    let whose = if memory < diagnosis.machine.memory_bytes { "available to this container" } else { "of this machine" };
    diagnosis.setting(
        format!("Config::new().memory({} << 20)", quarter.max(8)),
        format!(
            "a quarter of the {} {whose}; use more if nothing else needs it: Drumlin takes no more than its budget",
            figures::bytes(memory as f64)
        ),
    );
}

/// Measures the drive. `sync_method` is the method that the database on this drive uses, if there is a database.
fn drive(diagnosis: &mut Diagnosis, folder: &Path, sync_method: Option<&str>, steps: &Steps<'_>) -> io::Result<()> {
    if diagnosis.machine.in_memory {
        diagnosis.mend(
            Severity::Wrong,
            "file system",
            format!("{} is in memory: nothing written there survives a restart", diagnosis.machine.file_system),
            "put the database on a drive's file system",
        );
    }
    steps.pace.step("doctor: the probe of a new database", 0.0);
    let backend = drumlin_io::backend(IoBackend::Auto)?;
    let probe = Probe::run(backend.as_ref(), folder, Duration::from_secs_f64(steps.timing(2.0).seconds))?;
    steps.reach(4.0);
    if let Some(used) = sync_method {
        compare_sync_methods(diagnosis, used, probe.chosen);
    }
    if probe.direct {
        diagnosis.add(Severity::Fine, "direct I/O", "works");
    } else {
        diagnosis.mend(
            Severity::Advice,
            "direct I/O",
            format!("{} refuses O_DIRECT: reads go through the page cache, outside of the budget", probe.file_system),
            "use ext4 or xfs for the database",
        );
    }
    let Machine { drive, virtualised, .. } = &diagnosis.machine;
    let found = queue::findings(drive, virtualised.is_some(), probe.direct);
    diagnosis.findings.extend(queue::nvme_cache(drive).into_iter().chain(found));
    let temp_folder = TempFolder::create(folder)?;
    let space = temp_folder::space_bytes(folder)?;
    let bytes = ((FILE_BYTES as f64 * steps.length.share()) as u64).min(space / 2) >> 20 << 20;
    if bytes < FILE_BYTES_MIN {
        return without_a_file(diagnosis, folder);
    }
    steps.pace.step("doctor: writing a file", 0.0);
    let path = temp_folder.filled("data", bytes, |_| !steps.pace.interrupted())?;
    if steps.pace.interrupted() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    steps.reach(7.0);
    reads(diagnosis, &path, bytes, steps)?;
    durability(diagnosis, &temp_folder, &probe, steps)
}

/// Compares the sync method that a database uses with the method that a new probe chose.
fn compare_sync_methods(diagnosis: &mut Diagnosis, used: &str, chosen: SyncMethod) {
    if used == chosen.name() {
        diagnosis.add(Severity::Fine, "sync method", format!("{used}, as a new database would choose"));
        return;
    }
    diagnosis.mend(
        Severity::Advice,
        "sync method",
        format!("{used}; a new database would choose {chosen}"),
        "close the database and remove its file `probe`: the next opening measures again",
    );
}

/// Reports the free space if the file system has no room for the file to measure.
fn without_a_file(diagnosis: &mut Diagnosis, folder: &Path) -> io::Result<()> {
    let space = rustix::fs::statvfs(folder)?;
    let [free_bytes, total_bytes] =
        [space.f_bavail, space.f_blocks].map(|blocks| blocks.saturating_mul(space.f_frsize));
    let found = format!("{} of {} are free", figures::bytes(free_bytes as f64), figures::bytes(total_bytes as f64));
    if free_bytes < total_bytes / 10 {
        diagnosis.mend(Severity::Wrong, "space", found, "free space: on a full disk commits fail");
    }
    let needed = temp_folder::RESERVE_BYTES + 2 * FILE_BYTES_MIN;
    diagnosis.add(
        Severity::Advice,
        "drive",
        format!("not measured: that needs {} of free space in {}", figures::bytes(needed as f64), folder.display()),
    );
    Ok(())
}

/// Measures reads of the file at different depths and block sizes, sequentially, and through a mapping.
fn reads(diagnosis: &mut Diagnosis, path: &Path, bytes: u64, steps: &Steps<'_>) -> io::Result<()> {
    let tasks = read_tasks(path, bytes, steps);
    // The first of the three rounds brings the caches in and below the drive into the same state for all cases.
    let loads = steps.run(&tasks, 3, 0.35)?;
    let mut table = Table::new(
        "Reading",
        &[
            ("", Form::Text),
            ("reads/s", Form::Rate),
            ("rate", Form::Bandwidth),
            ("p50", Form::Micros),
            ("p99", Form::Micros),
        ],
    );
    for ((name, _), loads) in tasks.iter().zip(&loads).filter(|(_, loads)| !loads.is_empty()) {
        let middle = |of: fn(&Load) -> f64| median(loads.iter().map(of).collect());
        table.row(vec![
            name.clone().into(),
            middle(Load::operations_per_second).into(),
            middle(Load::bytes_per_second).into(),
            middle(|load| load.latency.p50_us).into(),
            middle(|load| load.latency.p99_us).into(),
        ]);
    }
    diagnosis.tables.push(table);
    let rate = |index: usize| median(loads[index].iter().map(Load::operations_per_second).collect());
    page_setting(diagnosis, rate(3), rate(DEPTHS.len()));
    Ok(())
}

/// Returns the tasks that read the file: 4 KiB at random at each depth, larger blocks at random, sequentially, and
/// through a mapping.
fn read_tasks(path: &Path, bytes: u64, steps: &Steps<'_>) -> Vec<(String, Task)> {
    let timing = steps.timing(0.3);
    let ring = |depth| random::Method::Ring { depth, options: RingOptions::default() };
    let read = |method, ask_bytes| {
        let path = path.to_owned();
        task(random::Task {
            path,
            range_bytes: bytes,
            ask_bytes,
            method,
            threads: 1,
            warm_bytes: 0,
            full_seconds: None,
            timing,
            seed: 1,
        })
    };
    let mut tasks: Vec<(String, Task)> =
        DEPTHS.into_iter().map(|depth| (format!("4 KiB, {depth} in flight"), read(ring(depth), 4096))).collect();
    tasks.push(("8 KiB, 64 in flight".to_owned(), read(ring(64), 8192)));
    tasks.push(("16 KiB, 64 in flight".to_owned(), read(ring(64), 16_384)));
    let scanned = steps.timing(1.0);
    tasks.push(("sequential, 8 x 512 KiB".to_owned(), task(scan::Task::in_flight(path, 512 << 10, 8, scanned))));
    tasks.push(("mapped, for comparison".to_owned(), read(random::Method::Mapped(Advice::Random), 4096)));
    tasks
}

/// Recommends a page size. Pages of 4 KiB read the fewest bytes; pages of 8 KiB halve the page tables. So the choice
/// depends on how much longer a larger read takes.
fn page_setting(diagnosis: &mut Diagnosis, small: f64, large: f64) {
    if small <= 0.0 || large <= 0.0 {
        return;
    }
    let share = large / small;
    let bytes = if share > 0.95 { 8192 } else { 4096 };
    diagnosis.setting(
        format!("Config::new().page_bytes({bytes})"),
        format!(
            "8 KiB reads reach {} of the rate of 4 KiB reads{}",
            Form::Share.show(share),
            if bytes == 8192 {
                ": larger pages cost nothing here and compress better"
            } else {
                "; this is the default"
            }
        ),
    );
}

/// Measures sync methods, and judges whether the drive's claims about its cache are plausible.
fn durability(diagnosis: &mut Diagnosis, temp_folder: &TempFolder, probe: &Probe, steps: &Steps<'_>) -> io::Result<()> {
    let timing = steps.timing(0.4);
    let mut table = Table::new(
        "Durable writes of 4 KiB",
        &[("", Form::Text), ("p50", Form::Micros), ("p99", Form::Micros), ("", Form::Text)],
    );
    for figures in probe.methods.iter().filter(|figures| figures.supported) {
        let chosen = if figures.method == probe.chosen { "chosen for a new database" } else { "" };
        let name = match figures.method {
            SyncMethod::DurableWrite => "durable write (RWF_DSYNC)",
            SyncMethod::DataSync => "write + fdatasync",
            SyncMethod::FullSync => "write + fsync",
        };
        table.row(vec![name.into(), figures.median_us.into(), figures.p99_us.into(), chosen.into()]);
    }
    let unsynced = sync::Task::new(temp_folder.path().join("unsynced"), sync::Method::NoSync, 4096, 1, timing);
    let appended = sync::Task::new(temp_folder.path().join("appended"), sync::Method::Append, 4096, 1, timing);
    let grouped = sync::Task::new(temp_folder.path().join("grouped"), sync::Method::DirectDurable, 4096, 8, timing);
    let tasks = [
        ("append + fdatasync".to_owned(), task(appended)),
        ("direct write, no sync".to_owned(), task(unsynced)),
        ("durable write, 8 writers".to_owned(), task(grouped)),
    ];
    let loads = steps.run(&tasks, 1, 0.5)?;
    for ((name, _), load) in tasks.iter().zip(&loads).filter_map(|(task, loads)| Some((task, loads.first()?))) {
        table.row(vec![name.clone().into(), load.latency.p50_us.into(), load.latency.p99_us.into(), "".into()]);
    }
    diagnosis.tables.push(table);
    diagnosis.setting(
        format!("sync method {}", probe.chosen),
        format!("the choice on {}; a new database chooses by the same probe", probe.file_system),
    );
    diagnosis.setting(
        "Config::new().log_streams(1)",
        "the default: concurrent committers share a write; more streams help only if one queue cannot sustain the rate",
    );
    let durable_us =
        probe.methods.iter().find(|figures| figures.method == probe.chosen).map_or(0.0, |figures| figures.median_us);
    let plain_us = loads[1].first().map(|load| load.latency.p50_us);
    if !diagnosis.machine.in_memory {
        let (severity, found, mend) = plausible(&diagnosis.machine, durable_us, plain_us);
        diagnosis.findings.push(Finding { severity, what: "write cache", found, mend });
    }
    Ok(())
}

/// The shortest plausible flush of a flash drive. Without a capacitor, a drive needs longer than this to store a page.
const FLASH_FLUSH_US_MIN: f64 = 60.0;
/// The shortest plausible flush of a spinning disk. A flush waits for half a turn on average: 2 ms at 15,000 rpm.
const TURN_US_MIN: f64 = 1500.0;

fn plausible(machine: &Machine, durable_us: f64, plain_us: Option<f64>) -> (Severity, String, Option<String>) {
    let drive = &machine.drive;
    let us = figures::micros;
    let kernel = drive.cache_believed.as_deref().unwrap_or("unknown");
    if let (Some(claimed), Some(believed)) = (&drive.cache_claimed, &drive.cache_believed)
        && claimed.contains("back")
        && !believed.contains("back")
    {
        return (
            Severity::Wrong,
            format!("the drive has a volatile cache ({claimed}) and the kernel does not flush it ({believed})"),
            Some(format!(
                "echo 'write back' > /sys/block/{}/queue/write_cache",
                drive.name.as_deref().unwrap_or("DRIVE")
            )),
        );
    }
    let measured = match plain_us {
        Some(plain_us) => format!("a durable write takes {}, a write without a sync {}", us(durable_us), us(plain_us)),
        None => format!("a durable write takes {}", us(durable_us)),
    };
    let text = format!("the kernel treats it as {kernel}; {measured}");
    if drive.rotational == Some(true) && durable_us < TURN_US_MIN && machine.virtualised.is_none() {
        return (
            Severity::Wrong,
            format!("{text}: faster than a disk spins, so the data is not on the disk"),
            Some("disable the drive's cache (hdparm -W 0), or use one with a battery".to_owned()),
        );
    }
    match drive.is_flushed() {
        Some(true) if durable_us < FLASH_FLUSH_US_MIN => {
            let who = if machine.virtualised.is_some() { "the host's cache" } else { "a protected cache in the drive" };
            (
                Severity::Advice,
                format!("{text}: too fast for flash alone, so durability depends on {who}"),
                Some(if machine.virtualised.is_some() {
                    "ask the operator of the host whether its cache survives a power cut".to_owned()
                } else {
                    "make sure that the drive has power-loss protection".to_owned()
                }),
            )
        }
        Some(true) => (Severity::Fine, format!("{text}: plausible"), None),
        Some(false) => (Severity::Fine, format!("{text}: durable if the drive tells the truth"), None),
        None => (
            Severity::Advice,
            format!("{text}: the storage below the file system is unknown"),
            Some("find out what that storage promises about flushes".to_owned()),
        ),
    }
}

/// Examines a database's health. Returns the database's sync method, or `None` if it can't be opened.
fn database(diagnosis: &mut Diagnosis, path: &Path) -> Option<&'static str> {
    // Read the stored probe first: opening the database runs a new probe if the drive has changed.
    let stored = std::fs::read_to_string(path.join("probe")).ok().and_then(|text| Probe::decode(&text).ok());
    let opened = match Config::new().create(false).open(path) {
        Err(Error::Io { source, .. }) if may_not_write(&source) => {
            diagnosis.add(Severity::Advice, "database", format!("opened for reading only: {}", plain(&source)));
            Config::new().read_only(true).open(path)
        }
        opened => opened,
    };
    let database = match opened {
        Ok(database) => database,
        Err(Error::Locked { pid: 0, .. }) => {
            diagnosis.mend(
                Severity::Advice,
                "database",
                "in use by another process: only its drive is examined",
                "close it there and run the doctor again",
            );
            return None;
        }
        Err(Error::Locked { pid, .. }) => {
            diagnosis.mend(
                Severity::Advice,
                "database",
                format!("in use by process {pid}: only its drive is examined"),
                "close it there and run the doctor again",
            );
            return None;
        }
        Err(error) => {
            diagnosis.mend(
                Severity::Wrong,
                "database",
                format!("does not open: {error}"),
                format!("`drumlin check {}` says more; restore a backup if it is damaged", path.display()),
            );
            return None;
        }
    };
    let opening = database.opening();
    let stats = database.stats();
    diagnosis.add(
        Severity::Fine,
        "database",
        format!(
            "opened in {}, {} replayed",
            figures::micros(opening.duration.as_secs_f64() * 1e6),
            figures::plural(opening.recovered_records, "log record")
        ),
    );
    if let (Some(stored), Ok(backend)) = (stored, drumlin_io::backend(IoBackend::Auto))
        && !stored.is_current(backend.as_ref(), path).unwrap_or(true)
    {
        diagnosis.add(
            Severity::Advice,
            "probe",
            format!(
                "the drive or file system has changed since it was probed; a new probe chose: {}",
                stats.sync_method
            ),
        );
    }
    check(diagnosis, &database, &stats);
    limits::check(diagnosis, &stats, &database.keyspaces());
    fill(diagnosis, path, &stats);
    if let Err(error) = database.close() {
        diagnosis.add(Severity::Wrong, "database", format!("closing it failed: {error}"));
    }
    Some(stats.sync_method)
}

fn check(diagnosis: &mut Diagnosis, database: &Database, stats: &Stats) {
    if let Some(reason) = &stats.failed {
        diagnosis.mend(Severity::Wrong, "commits", format!("refused: {reason}"), "fix the cause and reopen it");
    }
    if stats.data_file_bytes > CHECKED_BYTES_MAX {
        diagnosis.add(
            Severity::Fine,
            "pages",
            format!(
                "{} not read; `drumlin check {}` verifies them",
                figures::bytes(stats.data_file_bytes as f64),
                stats.path.display()
            ),
        );
        return;
    }
    match database.check() {
        Ok(report) if report.corruption.is_empty() => diagnosis.add(
            Severity::Fine,
            "pages",
            format!("{} and {} verified", figures::plural(report.pages, "page"), figures::plural(report.rows, "row")),
        ),
        Ok(report) => diagnosis.mend(
            Severity::Wrong,
            "pages",
            format!(
                "{} damaged, the first: {}",
                figures::plural(report.corruption.len() as u64, "place"),
                report.corruption[0].reason
            ),
            format!("`drumlin check {}` lists the losses; restore them from a backup", stats.path.display()),
        ),
        Err(error) => diagnosis.add(Severity::Wrong, "pages", format!("could not be verified: {error}")),
    }
}

/// Reports the database's size, its space amplification, and what else occupies space besides live data.
fn fill(diagnosis: &mut Diagnosis, path: &Path, stats: &Stats) {
    diagnosis.tables.push(fill_table(stats));
    // A small file consists mainly of its reserve, so compacting it would gain nothing.
    let is_large = stats.data_file_bytes > 64 << 20;
    let amplification = amplification(stats);
    if is_large && amplification > 2.0 {
        diagnosis.mend(
            Severity::Advice,
            "fill",
            format!("the file is {} times its live data", figures::digits(amplification)),
            format!("drumlin compact {}", path.display()),
        );
    } else {
        diagnosis.add(
            Severity::Fine,
            "fill",
            format!("{} live in {}", show_bytes(stats.live_bytes), show_bytes(stats.data_file_bytes)),
        );
    }
    if stats.log_bytes > 512 << 20 {
        diagnosis.mend(
            Severity::Advice,
            "log",
            format!("{} would be replayed at the next opening", show_bytes(stats.log_bytes)),
            format!("drumlin checkpoint {}, or a smaller checkpoint_log_bytes", path.display()),
        );
    }
    if let Ok(space) = rustix::fs::statvfs(path) {
        let free = space.f_bavail as f64 / space.f_blocks.max(1) as f64;
        if free < 0.05 {
            diagnosis.mend(
                Severity::Wrong,
                "disk",
                format!("{} free: commits will soon fail", Form::Share.show(free)),
                "free space, remove rows and compact, or move the database",
            );
        } else {
            diagnosis.add(Severity::Fine, "disk", format!("{} free", Form::Share.show(free)));
        }
    }
}

fn show_bytes(number: u64) -> String {
    figures::bytes(number as f64)
}

/// Returns the space amplification: the size of the data file divided by that of the live data.
fn amplification(stats: &Stats) -> f64 {
    stats.data_file_bytes as f64 / stats.live_bytes.max(1) as f64
}

/// Returns the size of all segments that are not free.
fn used_bytes(stats: &Stats) -> u64 {
    stats.segments.saturating_sub(stats.free_segments) * stats.segment_bytes
}

fn fill_table(stats: &Stats) -> Table {
    let mut table = Table::new("The database", &[("", Form::Text), ("", Form::Text)]);
    let mut line = |name: &str, text: String| {
        table.row(vec![name.into(), text.into()]);
    };
    let live_share = stats.live_bytes as f64 / used_bytes(stats).max(1) as f64;
    line("data", format!("{} live in a file of {}", show_bytes(stats.live_bytes), show_bytes(stats.data_file_bytes)));
    line(
        "fill",
        format!(
            "{} of the segments in use is live; {} of {} segments are free",
            Form::Share.show(live_share),
            stats.free_segments,
            stats.segments
        ),
    );
    line("space", format!("{} bytes of file for each live byte", figures::digits(amplification(stats))));
    let written = if stats.log_bytes_written > 0 {
        let ratio = stats.device_write_bytes as f64 / stats.log_bytes_written as f64;
        format!("{} bytes of pages for each byte of log since it was opened", figures::digits(ratio))
    } else {
        "nothing has been committed since it was opened".to_owned()
    };
    line("writes", written);
    line("log", format!("{} would be replayed, from commit {}", show_bytes(stats.log_bytes), stats.last_checkpoint.0));
    let pins = pins(stats);
    line("pinned by", if pins.is_empty() { "nothing".to_owned() } else { pins.join("; ") });
    table
}

/// Lists what takes up a lot of space, or may pin it, besides live data.
fn pins(stats: &Stats) -> Vec<String> {
    let mut pins = Vec::new();
    if let Some(snapshot) = stats.oldest_snapshot {
        pins.push(format!("a snapshot of commit {}", snapshot.0));
    }
    if stats.kept_snapshots > 0 {
        let bytes = show_bytes(stats.kept_snapshot_bytes);
        pins.push(format!("{} kept on disk ({bytes})", figures::plural(stats.kept_snapshots, "snapshot")));
    }
    if stats.log_bytes > 64 << 20 {
        pins.push(format!("the log since the last checkpoint ({})", show_bytes(stats.log_bytes)));
    }
    let sparse = used_bytes(stats).saturating_sub(stats.live_bytes + stats.kept_snapshot_bytes);
    if sparse > stats.segment_bytes * 4 {
        pins.push(format!("dead pages in segments that still hold live ones ({})", show_bytes(sparse)));
    }
    let free = stats.free_segments * stats.segment_bytes;
    if free > stats.segment_bytes * 16 {
        pins.push(format!("free segments kept for reuse ({})", show_bytes(free)));
    }
    pins
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Drive;

    fn machine(claimed: &str, believed: &str, rotational: bool, virtualised: bool) -> Machine {
        let mut machine = Machine::of(&std::env::temp_dir()).unwrap();
        machine.virtualised = virtualised.then(|| "a host".to_owned());
        machine.drive = Drive {
            cache_claimed: Some(claimed.to_owned()),
            cache_believed: Some(believed.to_owned()),
            rotational: Some(rotational),
            ..Drive::default()
        };
        machine
    }

    /// A volatile cache that the kernel does not flush is reported as wrong, and so is a spinning disk whose flush is
    /// faster than its rotation. A flash drive with an implausibly fast flush only gets advice.
    #[test]
    fn claims_are_weighed() {
        let severity = |machine: &Machine, us| plausible(machine, us, Some(20.0)).0;
        assert_eq!(severity(&machine("write back", "write through", false, false), 500.0), Severity::Wrong);
        assert_eq!(severity(&machine("write back", "write back", true, false), 300.0), Severity::Wrong);
        assert_eq!(severity(&machine("write back", "write back", true, false), 8000.0), Severity::Fine);
        assert_eq!(severity(&machine("write back", "write back", false, true), 25.0), Severity::Advice);
        assert_eq!(severity(&machine("write back", "write back", false, false), 900.0), Severity::Fine);
        assert_eq!(severity(&machine("write through", "write through", false, false), 20.0), Severity::Fine);
        let mut unknown = machine("", "", false, false);
        unknown.drive = Drive::default();
        assert_eq!(severity(&unknown, 100.0), Severity::Advice);
    }

    /// The doctor reports a sound database as fine, a corrupted one as wrong, and says if a database is in use. It also
    /// reports a sync method that a new database would not choose.
    #[test]
    fn a_database_is_examined() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let fresh = || Diagnosis {
            machine: Machine::of(folder.path()).unwrap(),
            findings: Vec::new(),
            tables: Vec::new(),
            settings: Vec::new(),
            interrupted: false,
        };
        let open = Config::new().open(&path).unwrap();
        open.keyspace("rows").unwrap().insert(b"k", b"v").unwrap();
        let mut used = fresh();
        database(&mut used, &path);
        assert!(!used.is_wrong() && used.findings[0].found.contains("in use"), "{:?}", used.findings);
        open.close().unwrap();
        let mut sound = fresh();
        let sync_method = database(&mut sound, &path).unwrap();
        // The disk that holds the temporary folder may be nearly full, whatever the state of the database.
        sound.findings.retain(|finding| finding.what != "disk");
        assert!(!sound.is_wrong() && sound.tables.len() == 1, "{:?}", sound.findings);
        for method in [SyncMethod::DurableWrite, SyncMethod::DataSync, SyncMethod::FullSync] {
            let mut compared = fresh();
            compare_sync_methods(&mut compared, sync_method, method);
            assert_eq!(compared.findings[0].severity == Severity::Fine, method.name() == sync_method);
        }
        std::fs::write(path.join("data"), [0xFF; 4096]).unwrap();
        let mut damaged = fresh();
        database(&mut damaged, &path);
        assert!(damaged.is_wrong(), "{:?}", damaged.findings);
        assert!(damaged.text(80).contains("does not open"));
    }
}
