//! A run of the lab: the folder, the memory limit, the time, and the order in which things happen.

use std::cell::{Cell, OnceCell};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;

use crate::cage::Cage;
use crate::experiments::Experiment;
use crate::figures;
use crate::machine::Machine;
use crate::measure::{Sample, Timing};
use crate::report::Report;
use crate::room::{self, Room};
use crate::worker::{self, Ending, Job, Outcome, Task};

/// What is wanted of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where files are made: in a folder of the lab's own below this one.
    pub folder: PathBuf,
    /// Short runs on small files: four minutes for everything.
    pub quick: bool,
    /// How long a case runs whose course over time is shown. Default 20 seconds, 4 with `quick`; other cases take a
    /// fraction of it.
    pub seconds: Option<f64>,
    /// What "larger than memory" is larger than. Default 512 MiB, 128 MiB with `quick`.
    pub memory_bytes: Option<u64>,
    /// The file that is read. Default 4 GiB, 1 GiB with `quick`, less where the disk is short of space.
    pub file_bytes: Option<u64>,
    /// The command as it was typed, for the report.
    pub command: String,
}

/// Who watches a run.
pub trait Observer {
    /// How long everything will take, about.
    fn total(&self, seconds: f64);
    /// How far it is, and what is being done.
    fn progress(&self, seconds: f64, what: &str);
    /// Whether the user wants it to end. Asked often.
    fn interrupted(&self) -> bool;
}

/// How often and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    /// Cases whose course over time is shown.
    pub(crate) series: Timing,
    /// One turn of a case that is measured in turns with others.
    pub(crate) slice: Timing,
    /// How many turns each has.
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
    pub(crate) room: Room,
    observer: &'a dyn Observer,
    memory: Memory,
    file: OnceCell<PathBuf>,
    done_seconds: Cell<f64>,
}

/// How the file comes to be larger than memory.
#[derive(Debug)]
struct Memory {
    limit_bytes: u64,
    file_bytes: u64,
    caged: bool,
    text: String,
}

/// The results of one case over its turns.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    pub(crate) results: Vec<T>,
    pub(crate) samples: Vec<Sample>,
    /// Why a turn had no result.
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

    /// The turn whose rate is the median: its whole set of figures belongs together.
    pub(crate) fn middle(&self, rate: impl Fn(&T) -> f64) -> Option<&T> {
        let mut sorted: Vec<&T> = self.results.iter().collect();
        sorted.sort_by(|left, right| rate(left).total_cmp(&rate(right)));
        sorted.get(sorted.len() / 2).copied()
    }
}

impl Session<'_> {
    pub(crate) fn interrupted(&self) -> bool {
        self.observer.interrupted()
    }

    /// Says what is being done, which will take so many seconds from here on.
    pub(crate) fn step(&self, what: &str, seconds: f64) {
        self.observer.progress(self.done_seconds.get(), what);
        self.done_seconds.set(self.done_seconds.get() + seconds);
    }

    /// The memory that "larger than memory" is larger than.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.limit_bytes
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.memory.file_bytes
    }

    /// Whether workers are held to a limit by the kernel.
    pub(crate) fn is_caged(&self) -> bool {
        self.memory.caged
    }

    /// Whether the file really is larger than what it may be cached in.
    pub(crate) fn is_larger_than_memory(&self) -> bool {
        self.memory.file_bytes > self.memory.limit_bytes
    }

    /// The file that reads are measured on, made when it is first asked for, and read through once: drives with a
    /// cache behind them would else answer the first experiment slower than the second.
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
            let file = room::open_direct(&path, false).or_else(|_| std::fs::File::open(&path))?;
            let mut buffer = drumlin::io::AlignedBuffer::zeroed(1 << 20);
            for offset in (0..bytes).step_by(buffer.len()) {
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut buffer, offset)?;
                if self.interrupted() {
                    break;
                }
            }
            room::forget_cached(&file)?;
        }
        Ok(self.file.get_or_init(|| path))
    }

    /// What writing and reading the file takes, at 500 MB/s.
    fn file_seconds(&self) -> f64 {
        self.file_bytes() as f64 / 5e8
    }

    /// Runs a job, held to a memory limit where one is given and permitted, and tells the most that was used.
    pub(crate) fn job<T: DeserializeOwned>(
        &self,
        task: Task,
        limit_bytes: Option<u64>,
    ) -> io::Result<(Outcome<T>, Option<u64>)> {
        let cage = limit_bytes.filter(|_| self.is_caged()).map(Cage::create).transpose()?;
        let job = Job { door: cage.as_ref().map(Cage::door), way_out: cage.as_ref().map(Cage::outside), task };
        let outcome = worker::run(&job, &|| self.interrupted())?;
        let used = cage.as_ref().and_then(Cage::used_bytes_max);
        Ok((outcome, used))
    }

    /// Runs each case `rounds` times, in turns. What was done when the user ended the run is there; cases that fail say
    /// why.
    pub(crate) fn turns<C, T: DeserializeOwned>(
        &self,
        cases: &[C],
        rounds: usize,
        seconds: f64,
        name: impl Fn(&C) -> String,
        task: impl Fn(&C, u64) -> (Task, Option<u64>),
    ) -> Vec<Turns<T>> {
        let mut all: Vec<Turns<T>> =
            cases.iter().map(|_| Turns { results: Vec::new(), samples: Vec::new(), failure: None }).collect();
        for round in 0..rounds {
            for (case, turns) in cases.iter().zip(&mut all) {
                // What failed once is not tried again.
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

/// The operating system's words without Rust's "(os error 2)".
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Runs experiments and tells what they found. An experiment that fails says so in its chapter; the others go on.
///
/// # Errors
/// Where the folder cannot be used at all: it is missing, not to be written to, or its disk is too full.
pub fn run(experiments: &[Experiment], settings: &Settings, observer: &dyn Observer) -> io::Result<Report> {
    let start = Instant::now();
    let machine = Machine::of(&settings.folder)?;
    let started = utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs()));
    let room = Room::create(&settings.folder)?;
    let memory = memory(settings, &machine)?;
    let session = Session {
        settings,
        pacing: Pacing::of(settings),
        room,
        observer,
        memory,
        file: OnceCell::new(),
        done_seconds: Cell::new(0.0),
    };
    let estimates: Vec<f64> = experiments.iter().map(|experiment| experiment.seconds(&session)).collect();
    let file_seconds = if experiments.iter().any(|each| each.reads_the_file()) { session.file_seconds() } else { 0.0 };
    observer.total(estimates.iter().sum::<f64>() + file_seconds);
    let mut chapters = Vec::new();
    let mut planned = file_seconds;
    for (experiment, seconds) in experiments.iter().zip(estimates) {
        if session.interrupted() {
            break;
        }
        let mut chapter = experiment.chapter();
        if let Err(error) = experiment.run(&session, &machine, &mut chapter)
            && error.kind() != io::ErrorKind::Interrupted
        {
            chapter.failure = Some(plain(&error));
        }
        if session.interrupted() {
            chapter.failure = Some("interrupted; what had been measured is shown".to_owned());
        }
        chapters.push(chapter);
        planned += seconds;
        session.done_seconds.set(planned);
    }
    Ok(Report {
        version: 1,
        command: settings.command.clone(),
        started,
        seconds: start.elapsed().as_secs_f64(),
        interrupted: session.interrupted(),
        quick: settings.quick,
        machine,
        memory_limit: session.memory.text.clone(),
        chapters,
    })
}

/// Chooses limit and file: by a control group where one is permitted, else by a file larger than all memory.
fn memory(settings: &Settings, machine: &Machine) -> io::Result<Memory> {
    // Half of what may be taken: other files come beside it.
    let space_bytes = room::space_bytes(&settings.folder)? / 2;
    let round = |bytes: u64| (bytes >> 20 << 20).max(64 << 20);
    let wanted = settings.memory_bytes.unwrap_or(if settings.quick { 128 << 20 } else { 512 << 20 });
    match Cage::create(wanted) {
        Ok(cage) => {
            let usual = if settings.quick { 1 << 30 } else { 4 << 30 };
            let file_bytes = round(settings.file_bytes.unwrap_or(usual.max(wanted * 4)).min(space_bytes));
            let text = format!(
                "{}: the workers, page cache included, are held to {}; the file has {}",
                cage.way().name(),
                figures::size(wanted),
                figures::size(file_bytes)
            );
            Ok(Memory { limit_bytes: wanted, file_bytes, caged: true, text })
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
                    "not made true: no control group ({}), and the disk has room for {} only, less than the memory of {}; \
                     buffered and mapped reads come from the page cache",
                    plain(&refusal),
                    figures::size(file_bytes),
                    figures::bytes(memory as f64)
                )
            };
            Ok(Memory { limit_bytes: memory, file_bytes, caged: false, text })
        }
    }
}

/// `2026-11-21 13:40:05 UTC`
fn utc(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let mut year = 1970;
    let mut rest = days;
    let is_leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    while rest >= 365 + u64::from(is_leap(year)) {
        rest -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dates come out right around leap days and ends of years.
    #[test]
    fn dates_are_right() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_735_689_599), "2024-12-31 23:59:59 UTC");
        assert_eq!(utc(1_795_267_805), "2026-11-21 13:30:05 UTC");
    }
}
