//! Runs and measures the job of each workload.

mod actors;
mod copies;
mod kept;
mod large;
mod loads;
mod logs;
mod open;
mod prepared;
mod raft;
mod shop;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::driver::{self, Outcome, Pace};
use crate::engine::{Engine, Peer, Result, Settings};
use crate::measure::{Costs, Latencies, Meter, disk_bytes};
use crate::plan::{Caches, Job, Workload};
use crate::raw::{self, RawReads};

pub(crate) use actors::Shared;
pub(crate) use loads::prepare;
pub(crate) use logs::audit as audit_logs;

/// The fixed rate of the steady part, as a share of the highest rate.
const STEADY_SHARE: f64 = 0.7;
/// The shortest warm-up.
const WARM_UP_MIN: Duration = Duration::from_secs(3);
/// A scan over removed rows is as fast as if they had never been there if it takes no longer than this.
const SCAN_OF_NOTHING_MAX: Duration = Duration::from_micros(500);
/// A full scan stops after this time even if it is incomplete.
const SCAN_LIMIT: Duration = Duration::from_secs(30);

/// The folder and the settings of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'t> {
    pub(crate) peer: &'t Peer,
    pub(crate) workload: &'t Workload,
    pub(crate) folder: &'t Path,
    pub(crate) turn: u64,
    /// The duration of each measurement in seconds.
    pub(crate) seconds: f64,
    /// `true` for short runs on small data.
    pub(crate) quick: bool,
}

impl Turn<'_> {
    fn settings(&self) -> Settings {
        Settings {
            memory_bytes: self.workload.data.budget_bytes,
            durability: self.workload.durability,
            threads: self.workload.threads,
            two_phases: matches!(self.workload.job, Job::Prepare | Job::CommitStep),
        }
    }

    fn open(&self) -> Result<Box<dyn Engine>> {
        (self.peer.open)(self.folder, &self.settings())
    }

    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.workload.seconds.unwrap_or(self.seconds))
    }
}

/// The figures of one turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// The number of operations performed.
    pub operations: u64,
    /// The number of units completed. See [`Workload::unit`].
    pub units: u64,
    /// The duration of the operations, in seconds.
    pub seconds: f64,
    /// The number of units per second.
    pub rate: f64,
    /// The latencies of single operations.
    pub latencies: Latencies,
    /// The costs of all operations.
    pub costs: Costs,
    /// Latencies at 70 % of the highest rate. An operation's latency is measured from the moment at which it was due.
    pub steady: Option<Latencies>,
    /// The rate of the steady part, in operations per second.
    pub steady_rate: f64,
    /// The device's limits for reads of the same files, before and after the measurement.
    pub raw: Option<(RawReads, RawReads)>,
    /// The number of units completed in each tenth of a second.
    pub timeline: Vec<u64>,
    /// The longest period during which no operation ended.
    pub longest_pause_seconds: f64,
    /// The bytes of keys and values that the workload wrote.
    pub written_user_bytes: u64,
    /// The size of the files after closing the database.
    pub disk_bytes: u64,
    /// The peak resident memory of the process.
    pub resident_bytes_max: u64,
    /// Latencies by kind of operation, if the workload has several kinds.
    #[serde(default)]
    pub kinds: Vec<(String, Latencies)>,
    /// Other figures, by name.
    pub more: BTreeMap<String, f64>,
}

impl Figures {
    fn measured(outcome: &Outcome, costs: Costs) -> Figures {
        let seconds = outcome.elapsed.as_secs_f64();
        Figures {
            operations: outcome.operations,
            units: outcome.units,
            seconds,
            rate: outcome.units as f64 / seconds,
            latencies: Latencies::of(&outcome.latencies),
            costs,
            timeline: outcome.timeline.clone(),
            longest_pause_seconds: outcome.longest_gap.as_secs_f64(),
            ..Figures::default()
        }
    }
}

/// Updates rows or fills logs, and kills this process.
pub(crate) fn crash(turn: &Turn<'_>) -> Result<()> {
    match turn.workload.job {
        Job::Logs(job) => logs::crash(turn, job),
        _ => open::crash(turn),
    }
}

/// Performs one turn in this process.
pub(crate) fn perform(turn: &Turn<'_>) -> Result<Figures> {
    let mut figures = match turn.workload.job {
        Job::Load | Job::BulkLoad => loads::measure(turn)?,
        Job::Open { .. } => open::measure(turn)?,
        Job::Prepare => prepared::measure(turn)?,
        Job::CommitStep => prepared::measure_step(turn)?,
        Job::Drop => tables::measure_drop(turn)?,
        Job::Tables => tables::measure_opening(turn)?,
        Job::FullScan => full_scan(turn)?,
        Job::RemoveRange => remove_range(turn)?,
        Job::Large(change) => large::measure(turn, change)?,
        Job::Backup => copies::measure_backup(turn)?,
        Job::CommitBesideBackups => copies::measure_commits_beside(turn)?,
        Job::KeptSnapshots => kept::measure_snapshots(turn)?,
        Job::Feed => kept::measure_feed(turn)?,
        Job::Logs(job) => logs::measure(turn, job)?,
        Job::Raft(job) => raft::measure(turn, job)?,
        Job::Shop { size, traffic } => shop::measure(turn, size, traffic)?,
        _ => repeated(turn)?,
    };
    figures.disk_bytes = disk_bytes(turn.folder);
    figures.resident_bytes_max = drumlin_lab::resident_bytes_max();
    Ok(figures)
}

/// Measures the limits of the device if the workload depends on them.
fn raw_reads(turn: &Turn<'_>) -> Result<Option<RawReads>> {
    let matters = turn.workload.data.exceeds_memory && matches!(turn.workload.job, Job::Get(_) | Job::GetMany(_));
    if !matters {
        return Ok(None);
    }
    let duration = if turn.quick { Duration::from_millis(50) } else { Duration::from_secs(1) };
    Ok(raw::reads(turn.folder, duration)?)
}

/// Measures a job that repeats its operation: first as fast as possible, then at a fixed rate.
fn repeated(turn: &Turn<'_>) -> Result<Figures> {
    let workload = turn.workload;
    if workload.data.exceeds_memory {
        raw::heat(turn.folder)?;
    }
    let raw_before = raw_reads(turn)?;
    let engine = turn.open()?;
    let shared = Shared::new(workload, turn.turn);
    let actor = |thread: usize| shared.actor(&*engine, thread);
    let run = |duration, pace| driver::run(workload.threads, duration, pace, &actor);
    match workload.caches {
        Caches::Cold => {}
        Caches::Filled => fill_caches(&*engine, workload)?,
        Caches::Warmed => {
            let least = if turn.quick { Duration::from_millis(50) } else { WARM_UP_MIN };
            run(Duration::from_secs_f64(turn.seconds).max(least), Pace::Closed)?;
        }
    }
    let written_before = shared.written_bytes();
    let meter = Meter::start(turn.folder);
    let outcome = run(turn.duration(), Pace::Closed)?;
    let mut figures = Figures::measured(&outcome, meter.costs());
    figures.written_user_bytes = shared.written_bytes() - written_before;
    if workload.repeats() && workload.seconds.is_none() {
        figures.steady_rate = STEADY_SHARE * outcome.operations as f64 / outcome.elapsed.as_secs_f64();
        let steady = run(turn.duration(), Pace::Open(figures.steady_rate))?;
        figures.steady = Some(Latencies::of(&steady.latencies));
    }
    engine.close()?;
    if let Some(before) = raw_before {
        figures.raw = raw_reads(turn)?.map(|after| (before, after));
    }
    Ok(figures)
}

/// Reads all rows once, to fill the caches. Skipped for inserts, which start without rows.
fn fill_caches(engine: &dyn Engine, workload: &Workload) -> Result<()> {
    if workload.job != Job::Insert {
        engine.session()?.scan([0; 8], u64::MAX, &mut |_, _| {})?;
    }
    Ok(())
}

/// Measures one range delete of all rows except the first and the last. Then scans the two rows that are left, at once
/// and again and again until a scan takes no longer than a get.
fn remove_range(turn: &Turn<'_>) -> Result<Figures> {
    let rows = turn.workload.data.rows;
    let engine = turn.open()?;
    let mut session = engine.session()?;
    let mut latencies = crate::measure::histogram();
    let meter = Meter::start(turn.folder);
    let begun = Instant::now();
    session.remove_range(crate::rows::key(1), crate::rows::key(rows - 1))?;
    let elapsed = begun.elapsed();
    crate::measure::record(&mut latencies, elapsed);
    let mut scans = Vec::new();
    while scans.last().is_none_or(|last| *last > SCAN_OF_NOTHING_MAX) && begun.elapsed() < SCAN_LIMIT {
        let scan_begun = Instant::now();
        let count = session.scan([0; 8], u64::MAX, &mut |_, _| {})?;
        if count != 2 {
            return Err(format!("{count} rows are left of {rows} after a range delete of all but two").into());
        }
        scans.push(scan_begun.elapsed());
    }
    let settled = begun.elapsed();
    let outcome = Outcome {
        operations: 1,
        units: rows - 2,
        elapsed,
        latencies,
        timeline: Vec::new(),
        longest_gap: Duration::ZERO,
    };
    let mut figures = Figures::measured(&outcome, meter.costs());
    let seconds = |scan: Option<&Duration>| scan.map_or(0.0, Duration::as_secs_f64);
    figures.more.insert("seconds of the first scan".to_owned(), seconds(scans.first()));
    figures.more.insert("seconds of the last scan".to_owned(), seconds(scans.last()));
    figures.more.insert("seconds until the place was empty".to_owned(), settled.as_secs_f64());
    drop(session);
    engine.close()?;
    Ok(figures)
}

/// Measures one scan of all rows, and verifies their values.
fn full_scan(turn: &Turn<'_>) -> Result<Figures> {
    let data = turn.workload.data;
    raw::heat(turn.folder)?;
    let engine = turn.open()?;
    let mut session = engine.session()?;
    let mut latencies = crate::measure::histogram();
    let meter = Meter::start(turn.folder);
    let begun = std::time::Instant::now();
    let mut rows = 0;
    // Scan in parts, so that a scan that takes too long can stop.
    let part_rows = (data.rows / 10).max(1);
    while rows < data.rows && begun.elapsed() < SCAN_LIMIT {
        let mut wrong = None;
        let part_begun = std::time::Instant::now();
        let mut next = rows;
        session.scan(crate::rows::key(rows), part_rows, &mut |key, value| {
            let is_right =
                *key == crate::rows::key(next) && crate::rows::version(value, next, data.value_bytes).is_some();
            if !is_right {
                wrong.get_or_insert(next);
            }
            next += 1;
        })?;
        crate::measure::record(&mut latencies, part_begun.elapsed());
        if let Some(number) = wrong {
            return Err(format!("row {number} of a scan is not what was written").into());
        }
        if next == rows {
            return Err(format!("a scan ended after {rows} of {} rows", data.rows).into());
        }
        rows = next;
    }
    let elapsed = begun.elapsed();
    let outcome =
        Outcome { operations: 1, units: rows, elapsed, latencies, timeline: Vec::new(), longest_gap: Duration::ZERO };
    let mut figures = Figures::measured(&outcome, meter.costs());
    let user_bytes = rows * (8 + data.value_bytes as u64);
    figures.more.insert("user bytes a second".to_owned(), user_bytes as f64 / figures.seconds);
    drop(session);
    engine.close()?;
    Ok(figures)
}
