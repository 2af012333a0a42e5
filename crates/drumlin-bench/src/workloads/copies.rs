//! Measures backups: whole ones and increments, restoring them, and the commits of another thread during backups.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drumlin_testing::Random;

use super::actors::Shared;
use super::{Figures, Turn};
use crate::driver::{self, Outcome, Pace};
use crate::engine::{Backups, Engine, Result, Row};
use crate::measure::{Latencies, Meter, disk_bytes, files, histogram, median, record};
use crate::plan::{Job, Workload};
use crate::raw;
use crate::rows::{SEED, fill, key, version};

/// The share of the rows that are replaced between a backup and its increment.
const REPLACED_SHARE: f64 = 0.01;
/// The number of rows per commit of the replacements.
const BATCH_ROWS: usize = 100;
/// The number of times that commits are measured without and with backups, in turns.
const ROUNDS: usize = 3;

/// A folder next to the engine's, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(turn: &Turn<'_>, name: &str) -> Result<Scratch> {
        let path = turn.folder.with_extension(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn backups(engine: &dyn Engine) -> Result<&dyn Backups> {
    engine.backups().ok_or_else(|| "this engine makes no backups".into())
}

/// Syncs all files of a folder, because some engines leave that to the caller.
fn sync_files(folder: &Path) -> Result<()> {
    for path in files(folder) {
        std::fs::File::open(path)?.sync_data()?;
    }
    Ok(())
}

fn timed(measured: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    measured()?;
    Ok(begun.elapsed())
}

/// Replaces a share of the rows, drawn at random.
fn replace_some(engine: &dyn Engine, turn: &Turn<'_>) -> Result<()> {
    let data = turn.workload.data;
    let mut session = engine.session()?;
    let mut random = Random(SEED ^ turn.turn);
    let mut left = (data.rows as f64 * REPLACED_SHARE) as usize;
    while left > 0 {
        let rows: Vec<Row> = (0..left.min(BATCH_ROWS))
            .map(|_| {
                let number = random.below(data.rows);
                let mut value = Vec::new();
                fill(&mut value, number, 1, data.value_bytes);
                (key(number), value)
            })
            .collect();
        left -= rows.len();
        session.write(&rows)?;
    }
    drop(session);
    engine.sync()
}

/// Opens a restored database and verifies all rows. Returns the number of rows that have been replaced.
fn verify(turn: &Turn<'_>, folder: &Path) -> Result<u64> {
    let data = turn.workload.data;
    let engine = (turn.peer.open)(folder, &turn.settings())?;
    let mut session = engine.session()?;
    let (mut next, mut replaced, mut wrong) = (0, 0, None);
    session.scan([0; 8], u64::MAX, &mut |found, value| {
        match version(value, next, data.value_bytes) {
            Some(version) if *found == key(next) => replaced += u64::from(version == 1),
            _ => drop(wrong.get_or_insert(next)),
        }
        next += 1;
    })?;
    drop(session);
    engine.close()?;
    match wrong {
        Some(number) => Err(format!("row {number} of the restored database is not what was written").into()),
        None if next != data.rows => Err(format!("{next} of {} rows were restored", data.rows).into()),
        None => Ok(replaced),
    }
}

/// Measures a backup of all rows, an increment after some were replaced, and restoring both.
pub(super) fn measure_backup(turn: &Turn<'_>) -> Result<Figures> {
    let data = turn.workload.data;
    let (kept, restored) = (Scratch::new(turn, "backups")?, Scratch::new(turn, "restored")?);
    raw::heat(turn.folder)?;
    let raw_copy = raw::copy(turn.folder, &kept.0)?;
    let engine = turn.open()?;
    let meter = Meter::start(turn.folder);
    let elapsed = timed(|| backups(&*engine)?.back_up(&kept.0).and_then(|()| sync_files(&kept.0)))?;
    let mut figures = one(elapsed, data.rows, meter.costs());
    let backup_bytes = disk_bytes(&kept.0);
    replace_some(&*engine, turn)?;
    let increment = timed(|| backups(&*engine)?.back_up(&kept.0).and_then(|()| sync_files(&kept.0)))?;
    engine.close()?;
    let restore = turn.peer.restore.ok_or("this engine restores no backups")?;
    let restoring = timed(|| restore(&kept.0, &restored.0).and_then(|()| sync_files(&restored.0)))?;
    if verify(turn, &restored.0)? == 0 {
        return Err("the restored database lacks the increment".into());
    }
    let mut tell = |name: &str, value: f64| {
        figures.more.insert(name.to_owned(), value);
    };
    tell("bytes of the backup", backup_bytes as f64);
    tell("seconds of the backup", elapsed.as_secs_f64());
    tell("seconds of an increment, 1 % of the rows replaced", increment.as_secs_f64());
    tell("seconds of restoring", restoring.as_secs_f64());
    if let Some(rate) = raw_copy {
        tell("bytes a second of a raw copy", rate);
        tell("the backup's share of a raw copy's rate", backup_bytes as f64 / elapsed.as_secs_f64() / rate);
        tell("restoring's share of a raw copy's rate", backup_bytes as f64 / restoring.as_secs_f64() / rate);
    }
    Ok(figures)
}

/// Measures the commits of a thread, in turns without and with backups that are made one after another.
pub(super) fn measure_commits_beside(turn: &Turn<'_>) -> Result<Figures> {
    let commits = Workload { job: Job::Commit(1), ..*turn.workload };
    let shared = Shared::new(&commits, turn.turn);
    let engine = turn.open()?;
    let actor = |thread: usize| shared.actor(&*engine, thread);
    let run = || driver::run(turn.workload.threads, turn.duration(), Pace::Closed, &actor);
    run()?;
    let meter = Meter::start(turn.folder);
    let (mut ratios, mut count, mut last) = (Vec::new(), 0, None);
    let mut latencies = [histogram(), histogram()];
    for _ in 0..ROUNDS {
        let alone = run()?;
        let has_ended = AtomicBool::new(false);
        let (beside, made) = std::thread::scope(|scope| {
            let backing_up = scope.spawn(|| -> Result<u64> {
                let mut made = 0;
                while !has_ended.load(Ordering::Relaxed) || made == 0 {
                    let kept = Scratch::new(turn, "backups")?;
                    backups(&*engine)?.back_up(&kept.0)?;
                    sync_files(&kept.0)?;
                    made += 1;
                }
                Ok(made)
            });
            let beside = run();
            has_ended.store(true, Ordering::Relaxed);
            let made = backing_up.join().expect("a thread that makes backups panicked");
            made.and_then(|made| beside.map(|beside| (beside, made)))
        })?;
        count += made;
        let rate = |outcome: &Outcome| outcome.units as f64 / outcome.elapsed.as_secs_f64();
        ratios.push(rate(&beside) / rate(&alone));
        for (latencies, outcome) in latencies.iter_mut().zip([&alone, &beside]) {
            latencies.add(&outcome.latencies)?;
        }
        last = Some(beside);
    }
    let mut figures = Figures::measured(&last.expect("there are rounds"), meter.costs());
    for (name, latencies) in ["alone", "during backups"].into_iter().zip(&latencies) {
        figures.more.insert(format!("longest commit {name}, ms"), latencies.max() as f64 / 1e6);
        figures.kinds.push((format!("commit {name}"), Latencies::of(latencies)));
    }
    figures.more.insert("the rate during backups, of that without".to_owned(), median(&ratios));
    figures.more.insert("backups".to_owned(), count as f64);
    engine.close()?;
    Ok(figures)
}

fn one(elapsed: Duration, units: u64, costs: crate::measure::Costs) -> Figures {
    let mut latencies = histogram();
    record(&mut latencies, elapsed);
    let outcome =
        Outcome { operations: 1, units, elapsed, latencies, timeline: Vec::new(), longest_gap: Duration::ZERO };
    Figures::measured(&outcome, costs)
}
