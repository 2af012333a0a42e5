//! Commands on a [`Bench`]: recording a trace to a file, replaying a trace, long runs that do both, and the short round
//! for merges.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drumlin_testing::Random;

use crate::bench::{About, Bench, Cut, Outcome, Replayed, moments};
use crate::counters::{self, Count, Counters};
use crate::drive::{Cutter, History, Image, Loss};
use crate::host::{self, FileSystem};
use crate::writers::Writer;

/// Returns the key of a count.
fn key(system: FileSystem, writer: Writer, kept: bool) -> String {
    format!("{system}/{writer}/{}", if kept { "drive cache kept" } else { "drive cache lost" })
}

/// Records a trace to a file.
pub fn trace(system: FileSystem, writer: Writer, seed: u64, seconds: f64, out: &Path) -> Result<()> {
    host::require(&[system])?;
    let bench = Bench::new()?;
    let about = About { system, writer: writer.to_string(), seed, from: Vec::new() };
    let start = bench.make(system)?;
    let history = bench.trace(&about, start, Duration::from_secs_f64(seconds))?;
    save(&about, &history, out)?;
    println!("{}: {}", out.display(), figures(&history));
    Ok(())
}

fn save(about: &About, history: &History, out: &Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(out).with_context(|| format!("creating {}", out.display()))?);
    Ok(history.save(&serde_json::to_string(about)?, &mut file)?)
}

fn figures(history: &History) -> String {
    let events = history.events.len();
    let (acked, mib) = (history.acked(events).len(), history.written_bytes() >> 20);
    let flushes = history.events.iter().filter(|event| matches!(event, crate::drive::Event::Flush)).count();
    format!("{events} events, {flushes} flushes, {mib} MiB written, {acked} acknowledgements")
}

/// Replays a trace from a file: one state, or many.
pub fn replay(path: &Path, one: Option<Cut>, states: usize, seed: u64) -> Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let (about, history) = History::load(&mut BufReader::new(file)).context("reading the trace")?;
    let about: About = serde_json::from_str(&about)?;
    host::require(&[about.system])?;
    let bench = Bench::new()?;
    let mut random = Random(seed);
    let cuts = match one {
        Some(cut) => vec![cut],
        None => choose(&about, &history, states, Model::Both, &mut random)?,
    };
    let mut cutter = Cutter::new(&history);
    let mut count = Count::default();
    for cut in cuts {
        ensure!(!host::is_interrupted(), "interrupted");
        let replayed = bench.replay(&about, &mut cutter, &history, cut)?;
        count.add(&replayed.count);
        if one.is_some() || replayed.outcome.reason().is_some() {
            println!("{cut:?}: {}", replayed.outcome.reason().unwrap_or_else(|| "whole".into()));
        }
    }
    println!("{count:?}");
    ensure!(count.is_clean() || !about.writer()?.is_sound(), "a sound writer lost something");
    Ok(())
}

/// The assumption about the drive's cache: whether a cut loses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Model {
    Kept,
    Lost,
    /// The cache is retained in a fifth of the states, chosen at random, and lost in the other states.
    Both,
}

fn choose(about: &About, history: &History, count: usize, model: Model, random: &mut Random) -> Result<Vec<Cut>> {
    let cuts = moments(about, history, count, random)?.into_iter().map(|moment| {
        let kept = model == Model::Kept || model == Model::Both && random.chance(20);
        let loss = if kept { Loss::None } else { Loss::CACHE_LOST[random.below(4) as usize] };
        Cut { moment, loss, seed: random.next() }
    });
    Ok(cuts.collect())
}

/// A long run: traces of a writer and their states, until each file system has had `goal` states over all runs.
#[derive(Clone, Debug)]
pub struct LongRun {
    pub systems: Vec<FileSystem>,
    pub writer: Writer,
    pub goal: u64,
    pub states_per_trace: usize,
    pub seconds_per_trace: f64,
    pub minutes: f64,
    pub updates_docs: bool,
}

/// A drive after a cut, and the steps verified on it. The next life begins with them.
struct Left {
    image: Image,
    from: Vec<u64>,
    seed: u64,
    lives: u32,
}

impl LongRun {
    /// Runs until the goal is reached, the time has run out, or Ctrl-C is pressed. Fails if any state was lost or
    /// wrong.
    pub fn run(&self) -> Result<()> {
        host::require(&self.systems)?;
        let bench = Bench::new()?;
        let deadline = Instant::now() + Duration::from_secs_f64(self.minutes * 60.0);
        for &system in &self.systems {
            control(&bench, system)?;
        }
        let mut counters = Counters::open("cuts")?;
        let total = |counters: &Counters, system| {
            let mut count = counters.get(&key(system, self.writer, false));
            count.add(&counters.get(&key(system, self.writer, true)));
            count
        };
        let mut lefts: Vec<Option<Left>> = self.systems.iter().map(|_| None).collect();
        let mut clean = true;
        loop {
            let mut is_reached = true;
            for (&system, left) in self.systems.iter().zip(&mut lefts) {
                if total(&counters, system).states >= self.goal {
                    continue;
                }
                is_reached = false;
                if Instant::now() > deadline || host::is_interrupted() {
                    break;
                }
                // Start with the seed after those of the states that earlier runs counted.
                let seed = 1 + total(&counters, system).states;
                clean &= self.round(&bench, system, seed, left, &mut counters)?;
            }
            if is_reached || Instant::now() > deadline || host::is_interrupted() {
                break;
            }
        }
        for &system in &self.systems {
            let count = total(&counters, system);
            println!(
                "{system:5} {}: {} states in all runs ({} with recovery cut, {} with sectors of 4 KiB), {} lost, {} wrong, \
                 {} not mounted",
                self.writer,
                count.states,
                count.cut_again,
                count.large_sectors,
                count.lost,
                count.wrong,
                count.not_mounted
            );
        }
        if self.updates_docs && self.writer == Writer::Drumlin {
            let counts: Vec<_> =
                self.systems.iter().map(|&system| (system.to_string(), total(&counters, system))).collect();
            counters::write_row("power cuts on real file systems", &counts)?;
        }
        ensure!(clean, "acknowledged commits were lost, or something is wrong");
        Ok(())
    }

    /// Records one trace and verifies its states. Returns `true` if no state was lost or wrong, or if the writer is not
    /// sound anyway.
    fn round(
        &self,
        bench: &Bench,
        system: FileSystem,
        seed: u64,
        left: &mut Option<Left>,
        counters: &mut Counters,
    ) -> Result<bool> {
        let mut random = Random(seed);
        // Six of ten lives continue where a cut left off, at most five in a row.
        let (start, from, writer_seed, lives) = match left.take() {
            Some(left) if left.lives < 5 && random.chance(60) => (left.image, left.from, left.seed, left.lives + 1),
            _ => (bench.make(system)?, Vec::new(), seed, 1),
        };
        let about = About { system, writer: self.writer.to_string(), seed: writer_seed, from };
        let begun = Instant::now();
        let history = bench.trace(&about, start, Duration::from_secs_f64(self.seconds_per_trace))?;
        let (traced, begun) = (begun.elapsed(), Instant::now());
        let mut cutter = Cutter::new(&history);
        let mut counted = Count::default();
        for cut in choose(&about, &history, self.states_per_trace, Model::Both, &mut random)? {
            if host::is_interrupted() {
                break;
            }
            let replayed = bench.replay(&about, &mut cutter, &history, cut)?;
            counters.add(&key(system, self.writer, cut.loss == Loss::None), &replayed.count)?;
            counted.add(&replayed.count);
            match replayed.outcome.reason() {
                Some(reason) => report(&about, &history, cut, &replayed, &reason)?,
                None => {
                    let Outcome::Whole(from) = replayed.outcome else { continue };
                    *left = Some(Left { image: replayed.image, from, seed: writer_seed, lives });
                }
            }
        }
        println!(
            "{system:5} seed {seed}, life {lives}: {}, in {:.1} s; {} states in {:.1} s, {}",
            figures(&history),
            traced.as_secs_f32(),
            counted.states,
            begun.elapsed().as_secs_f32(),
            if counted.is_clean() { "all whole".to_owned() } else { format!("{counted:?}") }
        );
        Ok(counted.is_clean() || !self.writer.is_sound())
    }
}

/// Saves the trace of a state that is lost or wrong, and prints the command that reproduces the state.
pub fn report(about: &About, history: &History, cut: Cut, replayed: &Replayed, reason: &str) -> Result<()> {
    let (history, cut, place) = match &replayed.within {
        Some((recovery, again)) => (recovery, *again, "-recovery"),
        None => (history, cut, ""),
    };
    let name = format!("{}-{}-{}-{}{place}.trace", about.system, about.writer, about.seed, cut.moment);
    let folder = host::work_folder()?.join("failures");
    std::fs::create_dir_all(&folder)?;
    let path: PathBuf = folder.join(name);
    let loss = serde_json::to_string(&cut.loss)?.replace('"', "");
    save(about, history, &path)?;
    println!("FOUND on {}: {reason}", about.system);
    println!(
        "  again: drumlin-rigs replay {} --moment {} --loss {loss} --seed {}",
        path.display(),
        cut.moment,
        cut.seed
    );
    Ok(())
}

/// Runs a log writer on a file system, and verifies states of its trace.
fn cut_log(bench: &Bench, system: FileSystem, writer: Writer, seed: u64, states: usize, model: Model) -> Result<Count> {
    let about = About { system, writer: writer.to_string(), seed, from: Vec::new() };
    let start = bench.make(system)?;
    let history = bench.trace(&about, start, Duration::from_secs(5))?;
    cut_trace(bench, &about, &history, states, model)
}

pub(crate) fn cut_trace(bench: &Bench, about: &About, history: &History, states: usize, model: Model) -> Result<Count> {
    let mut cutter = Cutter::new(history);
    let mut count = Count::default();
    for cut in choose(about, history, states, model, &mut Random(about.seed))? {
        ensure!(!host::is_interrupted(), "interrupted");
        let replayed = bench.replay(about, &mut cutter, history, cut)?;
        count.add(&replayed.count);
        if let (Some(reason), true) = (replayed.outcome.reason(), about.writer()?.is_sound()) {
            report(about, history, cut, &replayed, &reason)?;
        }
    }
    Ok(count)
}

/// Shows that the rig catches writers that lose acknowledged records. Without this control, its results would prove
/// nothing.
fn control(bench: &Bench, system: FileSystem) -> Result<()> {
    for name in ["append-nosync", "zeros-syncfilerange"] {
        let writer: Writer = name.parse().map_err(anyhow::Error::msg)?;
        let count = cut_log(bench, system, writer, 1, 8, Model::Lost)?;
        println!("{system:5} control {name}: {} of {} states lost acknowledged records", count.lost, count.states);
        ensure!(count.lost > 0, "the rig does not catch {name} on {system}: its results prove nothing");
    }
    Ok(())
}

/// Runs the round for merges, which takes this many seconds. Prints the parts that it skips, with the reasons.
pub fn short(seconds: u64) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let systems: Vec<FileSystem> = FileSystem::ALL
        .into_iter()
        .filter(|system| {
            let missing = host::missing(&[*system]);
            if !missing.is_empty() {
                println!("SKIPPED: power cuts on {system}; missing: {}", missing.join(", "));
            }
            missing.is_empty()
        })
        .collect();
    if systems.is_empty() {
        return Ok(());
    }
    let bench = Bench::new()?;
    for &system in &systems {
        control(&bench, system)?;
    }
    for seed in 1.. {
        for &system in &systems {
            if Instant::now() > deadline {
                return Ok(());
            }
            let about = About { system, writer: Writer::Drumlin.to_string(), seed, from: Vec::new() };
            let start = bench.make(system)?;
            let history = bench.trace(&about, start, Duration::from_millis(500))?;
            let count = cut_trace(&bench, &about, &history, 8, Model::Both)?;
            println!("{system:5} seed {seed}: {}; {} states", figures(&history), count.states);
            ensure!(count.is_clean(), "acknowledged commits were lost, or something is wrong: {count:?}");
        }
    }
    Ok(())
}
