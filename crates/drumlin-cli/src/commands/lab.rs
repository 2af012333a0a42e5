//! `drumlin lab`: measures this machine's storage and compares it with published figures.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use drumlin_lab::{Experiment, Observer, Settings};

use crate::failure::{Exit, Failure, Result};
use crate::filesystem::FileSystem;
use crate::interrupt;
use crate::terminal::figures::parse_size;
use crate::terminal::{Output, Progress};

/// Measure this machine's storage, and compare it with published figures
///
/// Each experiment repeats a published measurement and prints the source's figures next to yours. Files are created in
/// a temporary folder and removed at the end, and also after Ctrl-C, which shows the results so far.
#[derive(Debug, Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All experiments, in turn
    All(Options),
    /// 4 KiB reads at random offsets of a file larger than memory
    Random(Options),
    /// Sequential reads of a file larger than memory
    Scan(Options),
    /// Durable writes by every sync method
    Sync(Options),
    /// Mapped memory versus system calls while the file is cached
    Calls(Options),
    /// Page faults that stall a task scheduler
    Stall(Options),
    /// Effects of memory mapping that a database cannot accept
    Hazards(Options),
    /// The first touch of mapped pages
    Prefault(Options),
    /// Stores through a mapping versus writes through system calls
    Persist(Options),
    #[command(hide = true)]
    Worker,
}

#[derive(Clone, Debug, Args)]
struct Options {
    /// The folder for files [default: the system's temporary folder, or the current one if that is in memory]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Short runs on small files
    #[arg(long)]
    quick: bool,
    /// Seconds for each case that is shown over time [default: 20, quick 4]; other cases take a fraction of that
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// The memory limit, smaller than the large file [default: 512MiB, quick 128MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// The size of the large file [default: 4GiB, quick 1GiB, less if space is short]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    file: Option<u64>,
    /// The file systems that `sync` creates on loop devices, as root, in addition to the folder's own; or none
    #[arg(long, value_name = "LIST", value_parser = parse_file_systems, default_value = "ext4,xfs,btrfs")]
    file_systems: FileSystems,
    /// random: also measure with almost all of the machine's memory in use, as root; other programs may stall
    #[arg(long)]
    fill_memory: bool,
    /// Also write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The file systems that `sync` creates.
#[derive(Clone, Debug)]
struct FileSystems(Vec<drumlin_lab::FileSystem>);

fn parse_file_systems(text: &str) -> Result<FileSystems, String> {
    if text == "none" {
        return Ok(FileSystems(Vec::new()));
    }
    let known = drumlin_lab::FileSystem::ALL;
    let find = |name: &str| known.into_iter().find(|each| each.name() == name);
    let parse = |name: &str| find(name).ok_or_else(|| format!("{name}: not one of ext4, xfs, btrfs, none"));
    let mut all = text.split(',').map(parse).collect::<Result<Vec<_>, String>>()?;
    all.dedup();
    Ok(FileSystems(all))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.1..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("between 0.1 and 86400 seconds".to_owned()) }
}

impl Lab {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        let (experiments, options) = match &self.what {
            What::All(options) => (Experiment::ALL.to_vec(), options),
            What::Random(options) => (vec![Experiment::Random], options),
            What::Scan(options) => (vec![Experiment::Scan], options),
            What::Sync(options) => (vec![Experiment::Sync], options),
            What::Calls(options) => (vec![Experiment::Calls], options),
            What::Stall(options) => (vec![Experiment::Stall], options),
            What::Hazards(options) => (vec![Experiment::Hazards], options),
            What::Prefault(options) => (vec![Experiment::Prefault], options),
            What::Persist(options) => (vec![Experiment::Persist], options),
            What::Worker => {
                return drumlin_lab::worker_main()
                    .map_err(|error| Failure::other(format!("the lab's worker: {error}")));
            }
        };
        interrupt::watch_with(drumlin_lab::remove_everything);
        let folder = options.path.clone().unwrap_or_else(default_folder);
        let settings = Settings {
            folder: folder.clone(),
            quick: options.quick,
            seconds: options.seconds,
            memory_bytes: options.memory,
            file_bytes: options.file,
            file_systems: options.file_systems.0.clone(),
            fill_memory: options.fill_memory,
            command: typed(),
        };
        let watcher = Watcher::new(output);
        let report = drumlin_lab::run(&experiments, &settings, &watcher);
        watcher.finish();
        let report = report.map_err(|error| Failure::file("measuring in", &folder, &error))?;
        if let Some(path) = &options.html {
            std::fs::write(path, report.html()).map_err(|error| Failure::file("writing", path, &error))?;
        }
        output.print(&report, || report.text(columns()))?;
        if let Some(path) = &options.html {
            output.remark(&format!("the report is in {}", path.display()));
        }
        if report.interrupted {
            return Err(Failure::new(Exit::Interrupted, "interrupted; the results so far are above"));
        }
        let refused = report.chapters.iter().find_map(|chapter| Some((chapter.name, chapter.failure.as_ref()?)));
        match refused {
            Some((name, failure)) => Err(Failure::other(format!("{name}: {failure}"))),
            None => Ok(()),
        }
    }
}

/// Returns the number of columns: the terminal's width, or that of a page if the output is a file or pipe.
pub(super) fn columns() -> usize {
    Output::columns().unwrap_or(80)
}

/// Returns the system's temporary folder. If that is in memory, where no drive can be measured, returns the current
/// folder.
pub(super) fn default_folder() -> PathBuf {
    let temporary = std::env::temp_dir();
    match FileSystem::of(&temporary) {
        Ok(file_system) if !file_system.is_memory => temporary,
        _ => PathBuf::from("."),
    }
}

/// Returns the command as the user typed it, with the program's bare name.
fn typed() -> String {
    let words = std::env::args_os().enumerate().map(|(index, word)| {
        let word =
            if index == 0 { Path::new(&word).file_name().unwrap_or(OsStr::new("drumlin")).to_owned() } else { word };
        let text = word.to_string_lossy().into_owned();
        if text.contains(' ') { format!("'{text}'") } else { text }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Shows the lab's progress, and forwards Ctrl-C to the lab.
pub(super) struct Watcher {
    output: Output,
    bar: RefCell<Option<Progress>>,
}

impl Watcher {
    pub(super) fn new(output: Output) -> Watcher {
        Watcher { output, bar: RefCell::new(None) }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish();
        }
    }
}

impl Observer for Watcher {
    fn total(&self, seconds: f64) {
        *self.bar.borrow_mut() = Some(Progress::work(self.output, (seconds * 1000.0) as u64));
    }

    fn progress(&self, done_seconds: f64, left_seconds: f64, what: &str) {
        if let Some(bar) = &*self.bar.borrow() {
            bar.set((done_seconds * 1000.0) as u64);
            bar.say_left(Duration::from_secs_f64(left_seconds));
            bar.say(what);
        }
    }

    fn interrupted(&self) -> bool {
        interrupt::requested()
    }
}
