//! The state that the experiments of a run share: the folder, the memory limit, the large file, the time.

use std::cell::{Cell, OnceCell};
use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup::Cgroup;
use crate::figures;
use crate::machine::Machine;
use crate::measure::{Sample, Timing};
use crate::temp_folder::{self, TempFolder};
use crate::worker::{self, Ending, Measurement, Outcome};

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder in which the lab makes a folder of its own for its files.
    pub folder: PathBuf,
    /// Short runs on small files: all experiments take four minutes.
    pub quick: bool,
    /// The seconds of a case that is shown over time. Default 20, 4 with `quick`; other cases take a fraction of it.
    pub seconds: Option<f64>,
    /// The memory limit, which the file exceeds. Default 512 MiB, 128 MiB with `quick`.
    pub memory_bytes: Option<u64>,
    /// The size of the file that is read. Default 4 GiB, 1 GiB with `quick`, less if the disk is short of space.
    pub file_bytes: Option<u64>,
    /// The command as it was typed, for the report.
    pub command: String,
}

/// Watches a run.
pub trait Observer {
    /// Reports the approximate time of the whole run.
    fn total(&self, seconds: f64);
    /// Reports the progress, and the work under way.
    fn progress(&self, seconds: f64, what: &str);
    /// Returns `true` once the user wants to stop. Called often.
    fn interrupted(&self) -> bool;
}

/// The number of turns and their duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    /// Cases that are shown over time.
    pub(crate) series: Timing,
    /// One turn of a case that takes turns with others.
    pub(crate) slice: Timing,
    /// The number of turns of each case.
    pub(crate) rounds: usize,
}

impl Pacing {
    fn of(settings: &Settings) -> Pacing {
        let seconds = settings.seconds.unwrap_or(if settings.quick { 4.0 } else { 20.0 });
        let sample_seconds = if seconds < 10.0 { (seconds / 16.0).max(0.05) } else { 1.0 };
        Pacing {
            series: Timing { seconds, sample_seconds },
            slice: Timing { seconds: (seconds / 15.0).min(1.0), sample_seconds: 0.0 },
            rounds: if settings.quick { 3 } else { 5 },
        }
    }
}

/// A run under way.
pub(crate) struct Session<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) pacing: Pacing,
    pub(crate) room: TempFolder,
    observer: &'a dyn Observer,
    memory: Memory,
    file: OnceCell<PathBuf>,
    done_seconds: Cell<f64>,
}

/// The memory limit, the file that exceeds it, and a text about both.
#[derive(Debug)]
struct Memory {
    limit_bytes: u64,
    file_bytes: u64,
    is_limited: bool,
    text: String,
}

/// The results of one case over its turns.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    pub(crate) results: Vec<T>,
    pub(crate) samples: Vec<Sample>,
    /// The reason why a turn had no result.
    pub(crate) failure: Option<String>,
}

impl<T> Turns<T> {
    /// The median of a figure over the turns; `None` without any.
    pub(crate) fn median(&self, figure: impl Fn(&T) -> f64) -> Option<f64> {
        if self.results.is_empty() {
            return None;
        }
        Some(crate::measure::median(self.results.iter().map(figure).collect()))
    }

    /// The turn with the median rate, for figures that belong together.
    pub(crate) fn middle(&self, rate: impl Fn(&T) -> f64) -> Option<&T> {
        let mut sorted: Vec<&T> = self.results.iter().collect();
        sorted.sort_by(|left, right| rate(left).total_cmp(&rate(right)));
        sorted.get(sorted.len() / 2).copied()
    }
}

impl<'a> Session<'a> {
    /// Makes the folder, and chooses the memory limit and the size of the large file.
    pub(crate) fn begin(settings: &'a Settings, machine: &Machine, observer: &'a dyn Observer) -> io::Result<Self> {
        let room = TempFolder::create(&settings.folder)?;
        let memory = memory(settings, machine)?;
        Ok(Session {
            settings,
            pacing: Pacing::of(settings),
            room,
            observer,
            memory,
            file: OnceCell::new(),
            done_seconds: Cell::new(0.0),
        })
    }

    /// Reports the approximate time of the whole run.
    pub(crate) fn expect(&self, seconds: f64) {
        self.observer.total(seconds);
    }

    /// Sets the number of the expected seconds that have passed.
    pub(crate) fn reached(&self, seconds: f64) {
        self.done_seconds.set(seconds);
    }

    /// The memory limit and the way in which it is enforced, in words.
    pub(crate) fn memory_text(&self) -> &str {
        &self.memory.text
    }

    pub(crate) fn interrupted(&self) -> bool {
        self.observer.interrupted()
    }

    /// Reports the next step, which takes about this many seconds.
    pub(crate) fn step(&self, what: &str, seconds: f64) {
        self.observer.progress(self.done_seconds.get(), what);
        self.done_seconds.set(self.done_seconds.get() + seconds);
    }

    /// The memory that the file is to exceed.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.limit_bytes
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.memory.file_bytes
    }

    /// Returns `true` if the kernel holds workers to the limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.memory.is_limited
    }

    /// Returns `true` if the file is larger than the memory that can cache it.
    pub(crate) fn is_larger_than_memory(&self) -> bool {
        self.memory.file_bytes > self.memory.limit_bytes
    }

    /// The file that reads are measured on. It is made on first use, and read through once: otherwise drives with a
    /// cache behind them would answer the first experiment more slowly than the second.
    pub(crate) fn file(&self) -> io::Result<&Path> {
        if let Some(path) = self.file.get() {
            return Ok(path);
        }
        let bytes = self.file_bytes();
        let begun = self.done_seconds.get();
        let text = format!("writing a file of {}", figures::size(bytes));
        let path = self.room.filled("data", bytes, |written| {
            let share = written as f64 / bytes as f64;
            self.observer.progress(begun + share * self.file_seconds(), &text);
            !self.interrupted()
        })?;
        self.done_seconds.set(begun + self.file_seconds());
        if !self.interrupted() {
            let file = temp_folder::open_direct(&path, false).or_else(|_| std::fs::File::open(&path))?;
            let mut buffer = drumlin::internals::io::AlignedBuffer::zeroed(1 << 20);
            for offset in (0..bytes).step_by(buffer.len()) {
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut buffer, offset)?;
                if self.interrupted() {
                    break;
                }
            }
            temp_folder::forget_cached(&file)?;
        }
        Ok(self.file.get_or_init(|| path))
    }

    /// The time that writing and reading the file takes, at 500 MB/s.
    pub(crate) fn file_seconds(&self) -> f64 {
        self.file_bytes() as f64 / 5e8
    }

    /// Runs a job, under a memory limit if one is given and permitted. Also returns the most memory that it used.
    pub(crate) fn job<M: Measurement>(
        &self,
        task: M,
        limit_bytes: Option<u64>,
    ) -> io::Result<(Outcome<M::Result>, Option<u64>)> {
        let cgroup = limit_bytes.filter(|_| self.is_limited()).map(Cgroup::create).transpose()?;
        let outcome = worker::run(task, cgroup.as_ref(), &|| self.interrupted())?;
        let used = cgroup.as_ref().and_then(Cgroup::used_bytes_max);
        Ok((outcome, used))
    }

    /// Runs each case `rounds` times, in turns. If the user stops the run, the results so far are returned; for a case
    /// that fails, the reason.
    pub(crate) fn turns<C, M: Measurement>(
        &self,
        cases: &[C],
        rounds: usize,
        seconds: f64,
        name: impl Fn(&C) -> String,
        task: impl Fn(&C, u64) -> (M, Option<u64>),
    ) -> Vec<Turns<M::Result>> {
        let mut all: Vec<Turns<M::Result>> =
            cases.iter().map(|_| Turns { results: Vec::new(), samples: Vec::new(), failure: None }).collect();
        for round in 0..rounds {
            for (case, turns) in cases.iter().zip(&mut all) {
                // A case that has failed is not tried again.
                if turns.failure.is_some() || self.interrupted() {
                    continue;
                }
                self.step(&name(case), seconds);
                let (task, limit_bytes) = task(case, round as u64);
                match self.job(task, limit_bytes) {
                    Ok((outcome, _)) => {
                        turns.samples.extend(&outcome.samples);
                        match outcome.ending {
                            Ending::Done(result) => turns.results.push(result),
                            _ => turns.failure = outcome.result().err().map(|error| plain(&error)),
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => turns.failure = Some(plain(&error)),
                }
            }
        }
        all
    }
}

/// The operating system's message without Rust's "(os error 2)".
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Chooses limit and file: with a control group if one is permitted, otherwise a file larger than all memory.
fn memory(settings: &Settings, machine: &Machine) -> io::Result<Memory> {
    // Half of the space that may be used: other files are made beside it.
    let space_bytes = temp_folder::space_bytes(&settings.folder)? / 2;
    let round = |bytes: u64| (bytes >> 20 << 20).max(64 << 20);
    let wanted = settings.memory_bytes.unwrap_or(if settings.quick { 128 << 20 } else { 512 << 20 });
    match Cgroup::create(wanted) {
        Ok(cgroup) => {
            let usual = if settings.quick { 1 << 30 } else { 4 << 30 };
            let file_bytes = round(settings.file_bytes.unwrap_or(usual.max(wanted * 4)).min(space_bytes));
            let text = format!(
                "{}: workers are limited to {}, page cache included; the file has {}",
                cgroup.way().name(),
                figures::size(wanted),
                figures::size(file_bytes)
            );
            Ok(Memory { limit_bytes: wanted, file_bytes, is_limited: true, text })
        }
        Err(refusal) => {
            let memory = machine.memory_bytes;
            let file_bytes = round(settings.file_bytes.unwrap_or(memory + memory / 4).min(space_bytes));
            let text = if file_bytes > memory {
                format!(
                    "a file of {} on a machine with {} of memory (no control group: {})",
                    figures::size(file_bytes),
                    figures::bytes(memory as f64),
                    plain(&refusal)
                )
            } else {
                format!(
                    "not enforced: no control group ({}), and the disk has room for only {}, less than the memory of \
                     {}; buffered and mapped reads come from the page cache",
                    plain(&refusal),
                    figures::size(file_bytes),
                    figures::bytes(memory as f64)
                )
            };
            Ok(Memory { limit_bytes: memory, file_bytes, is_limited: false, text })
        }
    }
}
