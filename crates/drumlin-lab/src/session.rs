//! The session that the experiments of a run share: its folder, memory limit, large file and progress.

use std::cell::{Cell, OnceCell};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cgroup::Cgroup;
use crate::compare::{self, Ratio, Spread};
use crate::figures;
use crate::loop_device::Devices;
use crate::machine::Machine;
use crate::measure::{Load, Sample, Timing};
use crate::mount::FileSystem;
use crate::temp_folder::{self, TempFolder};
use crate::worker::{self, Ending, Measurement, Outcome};

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder in which the lab creates a temporary folder for its files.
    pub folder: PathBuf,
    /// Makes runs short and files small: all experiments together take less than six minutes.
    pub quick: bool,
    /// The duration of a series (a case whose rate is shown over time), in seconds. Default: 20, or 4 with `quick`.
    /// Other cases last for a fraction of it.
    pub seconds: Option<f64>,
    /// The memory limit. The large file exceeds it. Default: 512 MiB, or 128 MiB with `quick`.
    pub memory_bytes: Option<u64>,
    /// The size of the large file. Default: 4 GiB, or 1 GiB with `quick`; less if the disk is short of space.
    pub file_bytes: Option<u64>,
    /// The file systems that `sync` creates on loop devices, in addition to the folder's own.
    pub file_systems: Vec<FileSystem>,
    /// Permits `random` to take almost all of the machine's memory while it runs. Other programs may stall.
    pub fill_memory: bool,
    /// The command as the user typed it, for the report.
    pub command: String,
}

/// Watches a run.
pub trait Observer {
    /// Reports the approximate duration of the whole run.
    fn total(&self, seconds: f64);
    /// Reports the progress: the planned seconds that are done, the seconds that remain, and the current step.
    fn progress(&self, done_seconds: f64, left_seconds: f64, what: &str);
    /// Returns `true` once the user wants to stop. The lab calls this often.
    fn interrupted(&self) -> bool;
}

/// The progress of a run: its completed steps, weighted by their planned seconds.
pub(crate) struct Pace<'a> {
    observer: &'a dyn Observer,
    begun: Instant,
    total_seconds: Cell<f64>,
    done_seconds: Cell<f64>,
}

/// The estimate assumes that a run takes at most this many times its planned duration.
const OVERRUN_MAX: f64 = 2.0;

impl<'a> Pace<'a> {
    pub(crate) fn new(observer: &'a dyn Observer) -> Pace<'a> {
        Pace { observer, begun: Instant::now(), total_seconds: Cell::new(0.0), done_seconds: Cell::new(0.0) }
    }

    /// Reports the planned duration of the whole run.
    pub(crate) fn expect(&self, seconds: f64) {
        self.total_seconds.set(seconds);
        self.observer.total(seconds);
    }

    /// Reports the next step. Its planned seconds count as done when the following step begins.
    pub(crate) fn step(&self, what: &str, seconds: f64) {
        let done = self.done();
        let left = left_seconds(self.total_seconds.get(), done, self.begun.elapsed().as_secs_f64());
        self.observer.progress(done, left, what);
        self.done_seconds.set(done + seconds);
    }

    /// Sets how many planned seconds are done.
    pub(crate) fn reached(&self, seconds: f64) {
        self.done_seconds.set(seconds);
    }

    pub(crate) fn done(&self) -> f64 {
        self.done_seconds.get()
    }

    pub(crate) fn interrupted(&self) -> bool {
        self.observer.interrupted()
    }
}

/// Estimates the time left: the planned seconds of the remaining steps, multiplied by the factor by which the run has
/// overrun its plan.
fn left_seconds(total: f64, done: f64, elapsed: f64) -> f64 {
    // Assume that a twentieth of the plan took exactly its planned time, so that the first steps do not dominate the
    // estimate.
    let trusted = total / 20.0;
    let overrun = (elapsed + trusted) / (done + trusted);
    (total - done).max(0.0) * if overrun.is_finite() { overrun.clamp(1.0 / OVERRUN_MAX, OVERRUN_MAX) } else { 1.0 }
}

/// The number of trials and their duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    /// The timing of a series: a case whose rate is shown over time.
    pub(crate) series: Timing,
    /// The timing of one trial of a case that takes turns with other cases.
    pub(crate) slice: Timing,
    /// The number of trials of each case; at least [`ROUNDS_MIN`].
    pub(crate) rounds: usize,
}

impl Pacing {
    fn of(settings: &Settings) -> Pacing {
        let seconds = settings.seconds.unwrap_or(if settings.quick { 4.0 } else { 20.0 });
        let sample_seconds = if seconds < 10.0 { (seconds / 16.0).max(0.05) } else { 1.0 };
        Pacing {
            series: Timing { seconds, sample_seconds },
            slice: Timing { seconds: (seconds / 15.0).min(1.0), sample_seconds: 0.0 },
            // More rounds would widen the interval on which verdicts rest; longer trials narrow it.
            rounds: ROUNDS_MIN,
        }
    }
}

/// A running session of the lab.
pub(crate) struct Session<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) pacing: Pacing,
    /// The loop devices. They are dropped before `temp_folder`, which contains their files.
    pub(crate) devices: Devices,
    pub(crate) temp_folder: TempFolder,
    memory: Memory,
    file: OnceCell<PathBuf>,
    /// The rates of single random reads of the large file: before the file was first read through, and after it.
    drive_rates: Cell<Option<(f64, f64)>>,
    pace: Pace<'a>,
}

/// The memory limit, the size of the file that exceeds it, and a description of both.
#[derive(Debug)]
struct Memory {
    limit_bytes: u64,
    file_bytes: u64,
    is_limited: bool,
    text: String,
}

/// The minimum number of rounds on which a verdict may rest.
pub(crate) const ROUNDS_MIN: usize = 3;

/// A case with fewer operations than this, over all rounds, has not reached a steady state.
const STEADY_OPERATIONS: u64 = 1000;

/// A result that knows the number of its operations.
pub(crate) trait Counted {
    fn operations(&self) -> u64;
}

impl Counted for Load {
    fn operations(&self) -> u64 {
        self.operations
    }
}

/// The results of one case over its trials, one in each round.
#[derive(Debug)]
pub(crate) struct Trials<T> {
    pub(crate) results: Vec<T>,
    /// The samples of each trial.
    pub(crate) samples: Vec<Vec<Sample>>,
    /// The peak memory of the case's control group in each trial, page cache included. Empty without a group.
    pub(crate) memory_bytes: Vec<u64>,
    /// The reason why a trial had no result, if any trial had none.
    pub(crate) failure: Option<String>,
}

impl<T> Trials<T> {
    fn new() -> Trials<T> {
        Trials { results: Vec::new(), samples: Vec::new(), memory_bytes: Vec::new(), failure: None }
    }

    /// Returns the figure for each trial.
    pub(crate) fn each(&self, figure: impl Fn(&T) -> f64) -> Vec<f64> {
        self.results.iter().map(figure).collect()
    }

    /// Returns the median of a figure over the trials, or `None` if there are no trials.
    pub(crate) fn median(&self, figure: impl Fn(&T) -> f64) -> Option<f64> {
        self.spread(figure).map(|spread| spread.median)
    }

    /// Returns a figure's median and range over the rounds, or `None` if there are no rounds.
    pub(crate) fn spread(&self, figure: impl Fn(&T) -> f64) -> Option<Spread> {
        Spread::of(&self.each(figure))
    }

    /// Returns the peak memory of the group, as the median over the trials.
    pub(crate) fn memory_bytes_max(&self) -> Option<f64> {
        Spread::of(&self.memory_bytes.iter().map(|bytes| *bytes as f64).collect::<Vec<_>>()).map(|spread| spread.median)
    }

    /// Adds the outcome of a trial.
    fn add(&mut self, outcome: io::Result<(Outcome<T>, Option<u64>)>) {
        match outcome {
            Ok((Outcome { ending: Ending::Done(result), samples }, memory_bytes)) => {
                self.results.push(result);
                self.samples.push(samples);
                self.memory_bytes.extend(memory_bytes);
            }
            Ok((outcome, _)) => self.failure = outcome.result().err().map(|error| plain(&error)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.failure = Some(plain(&error)),
        }
    }

    /// Returns the trial with the median rate, so that several of its figures can be shown together.
    pub(crate) fn middle(&self, rate: impl Fn(&T) -> f64) -> Option<&T> {
        self.results.get(self.middle_index(rate)?)
    }

    /// Returns the samples of the trial with the median rate.
    pub(crate) fn middle_samples(&self, rate: impl Fn(&T) -> f64) -> Option<&[Sample]> {
        self.samples.get(self.middle_index(rate)?).map(Vec::as_slice)
    }

    fn middle_index(&self, rate: impl Fn(&T) -> f64) -> Option<usize> {
        let mut sorted: Vec<usize> = (0..self.results.len()).collect();
        sorted.sort_by(|&left, &right| rate(&self.results[left]).total_cmp(&rate(&self.results[right])));
        sorted.get(sorted.len() / 2).copied()
    }
}

impl<T: Counted> Trials<T> {
    /// Returns the number of operations of all trials.
    pub(crate) fn operations(&self) -> u64 {
        self.results.iter().map(Counted::operations).sum()
    }

    /// Returns the case's name for a table, with a remark if the case reached no steady state.
    pub(crate) fn label(&self, name: &str) -> String {
        match self.operations() {
            0 => name.to_owned(),
            count if count < STEADY_OPERATIONS => {
                format!("{name} (no steady state: {})", figures::plural(count, "operation"))
            }
            _ => name.to_owned(),
        }
    }
}

/// The results of all cases over the rounds.
#[derive(Debug)]
pub(crate) struct Rounds<T> {
    /// The trials of each case.
    pub(crate) cases: Vec<Trials<T>>,
    /// The first case, repeated at the end of each round.
    pub(crate) again: Trials<T>,
}

impl<T> Rounds<T> {
    /// Returns the factor by which the first case's figure differs between the beginning and the end of the rounds.
    pub(crate) fn noise(&self, figure: impl Fn(&T) -> f64) -> f64 {
        self.cases.first().map_or(1.0, |first| compare::noise(&first.each(&figure), &self.again.each(&figure)))
    }

    /// Returns a figure of the case `left` divided by that of the case `right`. Cases are given by their indexes.
    pub(crate) fn ratio(&self, left: usize, right: usize, figure: impl Fn(&T) -> f64) -> Option<Ratio> {
        Ratio::of(&self.cases[left].each(&figure), &self.cases[right].each(&figure), self.noise(&figure))
    }
}

impl<T> Deref for Rounds<T> {
    type Target = [Trials<T>];

    fn deref(&self) -> &[Trials<T>] {
        &self.cases
    }
}

impl<'t, T> IntoIterator for &'t Rounds<T> {
    type Item = &'t Trials<T>;
    type IntoIter = std::slice::Iter<'t, Trials<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.cases.iter()
    }
}

/// Returns the order in which a round runs the cases after the first. The order rotates, so that no case has the same
/// position in every round.
fn order(cases: usize, round: usize, rounds: usize) -> impl Iterator<Item = usize> {
    let others = cases.saturating_sub(1);
    let shift = round * others / rounds.max(1);
    (0..others).map(move |place| 1 + (place + shift) % others)
}

/// Returns the seed for a case in a round.
fn seed(case: usize, round: usize) -> u64 {
    1 + case as u64 + 1000 * round as u64
}

impl<'a> Session<'a> {
    /// Creates the folder, and chooses the memory limit and the size of the large file.
    pub(crate) fn begin(settings: &'a Settings, machine: &Machine, observer: &'a dyn Observer) -> io::Result<Self> {
        let temp_folder = TempFolder::create(&settings.folder)?;
        let memory = memory(settings, machine)?;
        Ok(Session {
            settings,
            pacing: Pacing::of(settings),
            devices: Devices::default(),
            temp_folder,
            memory,
            file: OnceCell::new(),
            drive_rates: Cell::new(None),
            pace: Pace::new(observer),
        })
    }

    /// Reports the planned duration of the whole run.
    pub(crate) fn expect(&self, seconds: f64) {
        self.pace.expect(seconds);
    }

    /// Sets how many planned seconds are done.
    pub(crate) fn reached(&self, seconds: f64) {
        self.pace.reached(seconds);
    }

    /// Describes the memory limit and how it is enforced.
    pub(crate) fn memory_text(&self) -> &str {
        &self.memory.text
    }

    /// Describes the state of the drive. If a cache in or below the drive answers reads, they are faster the second
    /// time. Returns `None` if no experiment read the large file.
    pub(crate) fn drive_text(&self) -> Option<String> {
        let (cold, warm) = self.drive_rates.get()?;
        Some(format!(
            "random 4 KiB reads, one at a time: {}/s before the file was read through once, {}/s after",
            figures::Form::Rate.show(cold),
            figures::Form::Rate.show(warm)
        ))
    }

    /// Returns the time of a single random read of the large file, measured after the file was read through. Returns
    /// `None` before that.
    pub(crate) fn read_micros(&self) -> Option<f64> {
        self.drive_rates.get().map(|(_, warm)| 1e6 / warm)
    }

    pub(crate) fn interrupted(&self) -> bool {
        self.pace.interrupted()
    }

    /// Reports the next step and its planned seconds.
    pub(crate) fn step(&self, what: &str, seconds: f64) {
        self.pace.step(what, seconds);
    }

    /// Returns the amount of memory that the file should exceed.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.limit_bytes
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.memory.file_bytes
    }

    /// Returns `true` if the kernel enforces the limit on workers.
    pub(crate) fn is_limited(&self) -> bool {
        self.memory.is_limited
    }

    /// Returns `true` if the file is larger than the memory that can cache it.
    pub(crate) fn is_larger_than_memory(&self) -> bool {
        self.memory.file_bytes > self.memory.limit_bytes
    }

    /// Returns the file on which reads are measured. The first call creates the file and reads it through once;
    /// otherwise a drive with a cache would answer the first experiment more slowly than the second.
    pub(crate) fn file(&self) -> io::Result<&Path> {
        if let Some(path) = self.file.get() {
            return Ok(path);
        }
        let bytes = self.file_bytes();
        let begun = self.pace.done();
        let text = format!("writing a file of {}", figures::size(bytes));
        let path = self.temp_folder.filled("data", bytes, |written| {
            let share = written as f64 / bytes as f64;
            self.pace.reached(begun + share * self.file_seconds());
            self.pace.step(&text, 0.0);
            !self.interrupted()
        })?;
        self.pace.reached(begun + self.file_seconds());
        if !self.interrupted() {
            let file = temp_folder::open_direct(&path, false).or_else(|_| std::fs::File::open(&path))?;
            let cold = single_reads_per_second(&file, bytes)?;
            let mut buffer = drumlin_io::AlignedBuffer::zeroed(1 << 20);
            for offset in (0..bytes).step_by(buffer.len()) {
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut buffer, offset)?;
                if self.interrupted() {
                    break;
                }
            }
            self.drive_rates.set(Some((cold, single_reads_per_second(&file, bytes)?)));
            temp_folder::forget_cached(&file)?;
        }
        Ok(self.file.get_or_init(|| path))
    }

    /// Estimates the seconds needed to write and read the file, at 500 MB/s.
    pub(crate) fn file_seconds(&self) -> f64 {
        self.file_bytes() as f64 / 5e8
    }

    /// Runs a job, with a memory limit if one is given and permitted. Also returns the peak memory of the limited
    /// group.
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

    /// Runs each case `rounds` times, at least [`ROUNDS_MIN`]. A round consists of the first case, the other cases in
    /// an order that rotates from round to round, and a repetition of the first case. Calls `task` for each trial, with
    /// the case and a seed. If the user interrupts the run, returns the results so far. If a case fails, its trials
    /// hold the reason.
    pub(crate) fn run_rounds<C, M: Measurement>(
        &self,
        cases: &[C],
        rounds: usize,
        seconds: f64,
        name: impl Fn(&C) -> String,
        task: impl Fn(&C, u64) -> (M, Option<u64>),
    ) -> Rounds<M::Result> {
        let mut all = Rounds { cases: cases.iter().map(|_| Trials::new()).collect(), again: Trials::new() };
        let rounds = rounds.max(ROUNDS_MIN);
        let trial = |index: usize, round: usize, trials: &mut Trials<M::Result>| {
            let case = &cases[index % cases.len()];
            // Do not repeat a case that has failed.
            if trials.failure.is_none() && !self.interrupted() {
                self.step(&name(case), seconds);
                let (task, limit_bytes) = task(case, seed(index, round));
                trials.add(self.job(task, limit_bytes));
            }
        };
        for round in 0..rounds {
            if cases.is_empty() {
                break;
            }
            trial(0, round, &mut all.cases[0]);
            for index in order(cases.len(), round, rounds) {
                trial(index, round, &mut all.cases[index]);
            }
            trial(cases.len(), round, &mut all.again);
        }
        all
    }

    /// Estimates the duration of [`Session::run_rounds`] in seconds, for this many cases, rounds and seconds per trial.
    pub(crate) fn rounds_seconds(cases: usize, rounds: usize, seconds: f64) -> f64 {
        ((cases + 1) * rounds.max(ROUNDS_MIN)) as f64 * seconds
    }
}

/// Measures random 4 KiB reads, one at a time, for a fifth of a second.
fn single_reads_per_second(file: &std::fs::File, bytes: u64) -> io::Result<f64> {
    let mut buffer = drumlin_io::AlignedBuffer::zeroed(4096);
    let (start, blocks) = (Instant::now(), bytes / 4096);
    let (mut count, mut place) = (0u32, 0);
    while start.elapsed() < Duration::from_millis(200) {
        // Advance by the golden ratio of the range, so that no two reads are close together.
        place = (place + (blocks as f64 * 0.618_034) as u64) % blocks;
        std::os::unix::fs::FileExt::read_exact_at(file, &mut buffer, place * 4096)?;
        count += 1;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

/// Returns the operating system's message without Rust's suffix "(os error 2)".
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Chooses the memory limit and the size of the file. Without a control group, the file has to exceed the whole
/// machine's memory.
fn memory(settings: &Settings, machine: &Machine) -> io::Result<Memory> {
    // Use half of the available space, because other files are created too.
    let space_bytes = temp_folder::space_bytes(&settings.folder)? / 2;
    let round = |bytes: u64| (bytes >> 20 << 20).max(64 << 20);
    let wanted = settings.memory_bytes.unwrap_or(if settings.quick { 128 << 20 } else { 512 << 20 });
    match Cgroup::create(wanted) {
        Ok(cgroup) => {
            let usual = if settings.quick { 1 << 30 } else { 4 << 30 };
            let file_bytes = round(settings.file_bytes.unwrap_or(usual.max(wanted * 4)).min(space_bytes));
            let text = format!(
                "{}: workers are limited to {}, page cache included; the file has {}",
                cgroup.version().name(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Holds;

    /// Every round has a trial of each case, and no case after the first has the same position in every round.
    #[test]
    fn the_order_rotates() {
        let orders: Vec<Vec<usize>> = (0..3).map(|round| order(7, round, 3).collect()).collect();
        assert_eq!(orders, [[1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 1, 2], [5, 6, 1, 2, 3, 4]]);
        assert_eq!(order(1, 2, 3).count() + order(0, 0, 3).count(), 0);
    }

    /// However slow a step was, the estimated time left differs from the plan's remaining time by at most a fixed
    /// factor.
    #[test]
    fn the_time_left_is_bounded_by_the_plan() {
        for total in [0.0, 30.0, 340.0] {
            for done in [0.0, 0.01, 1.0, total / 2.0, total, total * 2.0] {
                for elapsed in [0.0, 1.0, 60.0, 86_400.0] {
                    let (left, rest) = (left_seconds(total, done, elapsed), (total - done).max(0.0));
                    assert!(
                        (rest / OVERRUN_MAX..=rest * OVERRUN_MAX).contains(&left),
                        "{total} {done} {elapsed}: {left}"
                    );
                }
            }
        }
        assert_eq!(left_seconds(300.0, 100.0, 100.0), 200.0);
        assert!((left_seconds(300.0, 135.0, 210.0) - 247.5).abs() < 1e-9, "one and a half times as slow as planned");
    }

    /// No two trials have the same seed, so they read at different offsets.
    #[test]
    fn each_trial_has_its_seed() {
        let all: std::collections::BTreeSet<u64> =
            (0..50).flat_map(|case| (0..5).map(move |round| seed(case, round))).collect();
        assert_eq!(all.len(), 250);
    }

    fn trials(rates: &[f64]) -> Trials<Load> {
        let mut trials = Trials::new();
        trials.results =
            rates.iter().map(|rate| Load { operations: *rate as u64, seconds: 1.0, ..Load::default() }).collect();
        trials
    }

    /// The noise compares the first case with its repetition, and every ratio includes the noise.
    #[test]
    fn a_ratio_knows_the_noise() {
        let rounds =
            Rounds { cases: vec![trials(&[100.0; 3]), trials(&[200.0, 220.0, 210.0])], again: trials(&[80.0; 3]) };
        let ratio = rounds.ratio(1, 0, Load::operations_per_second).unwrap();
        assert_eq!((ratio.median, ratio.least, ratio.most, ratio.noise), (2.1, 2.0, 2.2, 1.25));
        assert_eq!(ratio.at_least(compare::Size::of(2.0)), Holds::Partly);
    }

    /// A case with few operations is marked in its label.
    #[test]
    fn few_operations_are_no_steady_state() {
        assert_eq!(trials(&[300.0, 300.0, 399.0]).label("mmap"), "mmap (no steady state: 999 operations)");
        assert_eq!(trials(&[300.0, 300.0, 400.0]).label("mmap"), "mmap");
        assert_eq!(trials(&[]).label("mmap"), "mmap");
    }
}
