//! Runs workloads. Within a workload, the engines take turns: A B C A B C.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::audit::{Audit, LoopMount};
use crate::engine::Peer;
use crate::measure::files;
use crate::plan::{Job, LogsJob, Workload};
use crate::results::{EngineFacts, Entry, Measured, Results, Turn};
use crate::worker::{self, Ending, Stage, Task};

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workloads, in the order in which they run.
    pub workloads: Vec<Workload>,
    pub peers: Vec<Peer>,
    /// The folder in which the run creates its own folder. At the end, the run removes only its own folder.
    pub folder: PathBuf,
    /// The number of turns per engine.
    pub turns: u64,
    /// The duration of each measurement in seconds.
    pub seconds: f64,
    /// The factor by which the number of rows and the memory are scaled.
    pub scale: f64,
    /// `true` for short runs on small data.
    pub quick: bool,
    /// `true` if the run also counts the flushes of durable commits.
    pub audit: bool,
}

/// The run's own folder. Removed on drop.
struct OwnFolder(PathBuf);

impl OwnFolder {
    fn create(parent: &Path) -> io::Result<OwnFolder> {
        let path = parent.join(format!("drumlin-bench-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(OwnFolder(path))
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("removing {} failed: {error}", self.0.display());
        }
    }
}

/// Runs the plan. Calls `keep` with the results after each workload, and `say` with a line of text after each turn.
///
/// # Errors
/// If folders or groups can't be created. An engine's failures are part of the results.
pub fn run(
    plan: &Plan,
    mut keep: impl FnMut(&Results) -> io::Result<()>,
    mut say: impl FnMut(&str),
) -> io::Result<Results> {
    let folder = OwnFolder::create(&plan.folder)?;
    let mut results = Results::new(crate::machine::describe(&plan.folder)?);
    results.engines = plan.peers.iter().map(EngineFacts::of).collect();
    if plan.audit {
        results.audits = audits(plan, &folder.0, &mut say)?;
        keep(&results)?;
    }
    for workload in &plan.workloads {
        let measured = Bench { plan, workload: workload.scaled(plan.scale), folder: &folder.0 }.measure(&mut say)?;
        results.workloads.push(measured);
        keep(&results)?;
    }
    Ok(results)
}

/// One workload of a run.
struct Bench<'p> {
    plan: &'p Plan,
    workload: Workload,
    folder: &'p Path,
}

impl Bench<'_> {
    fn measure(&self, say: &mut dyn FnMut(&str)) -> io::Result<Measured> {
        let mut measured = Measured::new(&self.workload, crate::machine::date(), self.plan.quick);
        for peer in &self.plan.peers {
            if !self.workload.is_for(peer) {
                continue;
            }
            let failure = self.workload.refusal(&peer.capabilities).map(str::to_owned);
            measured.entries.push(Entry { engine: peer.name.to_owned(), turns: Vec::new(), failure });
        }
        for turn in 0..self.plan.turns {
            for entry in &mut measured.entries {
                // Do not retry after a failure: the retry would probably take as long and fail too.
                if entry.failure.is_none() {
                    match self.take_turn(&entry.engine, turn)? {
                        Ok(taken) => {
                            say(&line(&self.workload, turn, entry, &taken));
                            entry.turns.push(taken);
                        }
                        Err(failure) => {
                            say(&format!("{}  {}  {failure}", self.workload.name, entry.engine));
                            entry.failure = Some(failure);
                        }
                    }
                }
            }
        }
        self.forget()?;
        Ok(measured)
    }

    /// Returns an engine's folder for the workload. Read-only workloads with the same data share a folder.
    fn place(&self, engine: &str) -> PathBuf {
        let data = self.workload.data.name();
        let own = if self.workload.writes() { format!("-{}", self.workload.name) } else { String::new() };
        self.folder.join(format!("{engine}-{data}{own}"))
    }

    fn take_turn(&self, engine: &str, turn: u64) -> io::Result<Result<Turn, String>> {
        let place = self.place(engine);
        let is_outdated =
            self.workload.begins_empty() && self.workload.job != Job::Insert || self.workload.uses_up_rows();
        if is_outdated && place.exists() {
            fs::remove_dir_all(&place)?;
        }
        if !place.exists() {
            fs::create_dir(&place)?;
            if !self.workload.begins_empty()
                && let Err(why) = self.work(Stage::Prepare, engine, turn)?.answer
            {
                fs::remove_dir_all(&place)?;
                return Ok(Err(format!("loading: {why}")));
            }
        }
        if matches!(self.workload.job, Job::Open { killed: true } | Job::Logs(LogsJob::Open { .. })) {
            let ending = self.work(Stage::Crash, engine, turn)?;
            if ending.signal != Some(9) {
                return Ok(Err(format!("before the kill: {:?}", ending.answer)));
            }
        }
        let ending = self.work(Stage::Measure, engine, turn)?;
        Ok(match ending.answer {
            Ok(answer) => {
                Ok(Turn { figures: serde_json::from_value(answer)?, group_bytes_max: ending.group_bytes_max })
            }
            Err(why) => Err(why),
        })
    }

    fn work(&self, stage: Stage, engine: &str, turn: u64) -> io::Result<Ending> {
        let task = Task {
            stage,
            engine: engine.to_owned(),
            workload: self.workload.name.to_owned(),
            scale: self.plan.scale,
            folder: self.place(engine),
            turn,
            seconds: self.plan.seconds,
            quick: self.plan.quick,
            procs_file: None,
            answer: self.folder.join("answer.json"),
        };
        // Limit the memory only of the measurement, not of the preparation.
        let limit_bytes = (stage == Stage::Measure).then(|| self.workload.data.group_bytes());
        match worker::run(task.clone(), limit_bytes) {
            // If this process is not permitted to create a memory group, figures for data that fits in memory are still
            // useful.
            Err(_) if !self.workload.data.exceeds_memory => worker::run(task, None),
            other => other,
        }
    }

    /// Removes this workload's folders unless a later workload can use their rows.
    fn forget(&self) -> io::Result<()> {
        let later = self.plan.workloads.iter().skip_while(|other| other.name != self.workload.name).skip(1);
        let name = self.workload.data.name();
        let mut later = later.map(|other| other.scaled(self.plan.scale));
        if !self.workload.writes() && later.any(|other| !other.writes() && other.data.name() == name) {
            return Ok(());
        }
        for peer in &self.plan.peers {
            let place = self.place(peer.name);
            if place.exists() {
                fs::remove_dir_all(place)?;
            }
        }
        Ok(())
    }
}

/// Returns the line to print after a turn.
fn line(workload: &Workload, turn: u64, entry: &Entry, taken: &Turn) -> String {
    let figures = &taken.figures;
    let per_unit = |amount: f64| amount / figures.units.max(1) as f64;
    format!(
        "{:<18} {} {:<16} {:>12.0} {}/s  {:>8.2} us CPU  p99 {:>9.1} us",
        workload.name,
        turn + 1,
        entry.engine,
        figures.rate,
        workload.unit(),
        per_unit(figures.costs.cpu_seconds * 1e6),
        figures.latencies.p99_us
    )
}

/// Counts the flushes of each engine's durable commits.
fn audits(plan: &Plan, folder: &Path, say: &mut dyn FnMut(&str)) -> io::Result<Vec<Audit>> {
    let mut audits = Vec::new();
    for peer in &plan.peers {
        let mount = LoopMount::create(folder);
        let place = match &mount {
            Ok(mount) => mount.folder().join(peer.name),
            Err(error) => {
                say(&format!("audit  {}  on the shared device, because no other could be created: {error}", peer.name));
                folder.join(format!("audit-{}", peer.name))
            }
        };
        fs::create_dir(&place)?;
        let task = Task {
            stage: Stage::Audit,
            engine: peer.name.to_owned(),
            workload: "insert-1k".to_owned(),
            scale: 1.0,
            folder: place.clone(),
            turn: 0,
            seconds: 1.0,
            quick: plan.quick,
            procs_file: None,
            answer: folder.join("answer.json"),
        };
        match worker::run(task, None)?.answer {
            Ok(answer) => {
                let (flushes_per_commit, bytes_per_commit) = serde_json::from_value(answer)?;
                say(&format!("audit  {:<16} {flushes_per_commit:.2} flushes a commit", peer.name));
                let engine = peer.name.to_owned();
                audits.push(Audit { engine, flushes_per_commit, bytes_per_commit, alone: mount.is_ok() });
            }
            Err(why) => say(&format!("audit  {}  {why}", peer.name)),
        }
        debug_assert!(!files(&place).is_empty(), "the engine has files");
        fs::remove_dir_all(&place)?;
    }
    Ok(audits)
}
