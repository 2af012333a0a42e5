//! The figures of a run. They are stored as JSON and can be merged with the figures of other runs.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::audit::Audit;
use crate::engine::{Capabilities, Peer};
use crate::measure::median;
use crate::plan::{Job, RaftJob, Workload};
use crate::workloads::Figures;

/// The version of the JSON format.
const VERSION: u32 = 1;

/// The figures of a single run, or of several merged runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The version of the JSON format.
    pub version: u32,
    /// Facts about the machine, by name.
    pub machine: Vec<(String, String)>,
    pub engines: Vec<EngineFacts>,
    /// The workloads that were run, in the order of the table.
    pub workloads: Vec<Measured>,
    /// The counts of flushes that reached the device, by engine.
    pub audits: Vec<Audit>,
}

/// An engine, as the report lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineFacts {
    pub name: String,
    /// The version of the engine's crate.
    pub version: String,
    pub settings: String,
    /// The capabilities that the engine lacks, in words.
    pub lacks: Vec<String>,
}

impl EngineFacts {
    /// Returns the facts of an engine of this build.
    #[must_use]
    pub fn of(peer: &Peer) -> EngineFacts {
        EngineFacts {
            name: peer.name.to_owned(),
            version: peer.version.to_owned(),
            settings: peer.settings.to_owned(),
            lacks: lacks(&peer.capabilities),
        }
    }
}

/// The lack of an engine whose rows don't outlive its process.
const NO_RECOVERY: &str = "no recovery after a kill";

fn lacks(capabilities: &Capabilities) -> Vec<String> {
    let all = [
        (capabilities.one_writer, "one writer at a time"),
        (!capabilities.multi_get, "no get of many rows: one get after another"),
        (!capabilities.transactions, "no transactions that read and write"),
        (!capabilities.atomic_batches, "batches are not atomic"),
        (!capabilities.recovers, NO_RECOVERY),
    ];
    all.into_iter().filter(|(lacks, _)| *lacks).map(|(_, text)| text.to_owned()).collect()
}

/// A workload with the figures for each engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub name: String,
    /// The workload's row in the table of docs/benchmarks.md.
    pub row: String,
    /// A description of the workload.
    pub title: String,
    /// The unit of the rates.
    pub unit: String,
    /// A description of the initial rows and of the limits.
    pub setting: String,
    /// The date of the run, in UTC.
    pub date: String,
    /// `true` if the run used small data and short measurements. Its figures are not comparable.
    pub quick: bool,
    /// `true` if each commit had to be durable.
    pub durable: bool,
    /// The size of all keys and values in bytes.
    pub user_bytes: u64,
    /// The engine's memory budget.
    pub budget_bytes: u64,
    /// The engines, in the order of their turns.
    pub entries: Vec<Entry>,
}

/// The turns of one engine in one workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub engine: String,
    /// The turns that the engine finished.
    pub turns: Vec<Turn>,
    /// The reason why the engine took no further turns, if it stopped early.
    pub failure: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Turn {
    pub figures: Figures,
    /// The peak memory of the group, including the page cache.
    pub group_bytes_max: Option<u64>,
}

impl Entry {
    /// Returns the median of a figure over all turns.
    pub fn median(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        median(&self.turns.iter().map(|turn| figure(&turn.figures)).collect::<Vec<_>>())
    }

    /// Returns the lowest and the highest value of a figure over all turns.
    pub fn range(&self, figure: impl Fn(&Figures) -> f64) -> (f64, f64) {
        let values = self.turns.iter().map(|turn| figure(&turn.figures));
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    }

    /// Returns the turn with the median rate.
    #[must_use]
    pub fn typical(&self) -> Option<&Turn> {
        let rate = self.median(|figures| figures.rate);
        self.turns.iter().find(|turn| turn.figures.rate.total_cmp(&rate).is_eq())
    }
}

/// Describes the initial data and the limits in words.
fn setting(workload: &Workload) -> String {
    let data = workload.data;
    let limits = format!("budget {} MiB in a group of {} MiB", data.budget_bytes >> 20, data.group_bytes() >> 20);
    if let Job::Shop { size, .. } = workload.job {
        return format!("{size}; {limits}");
    }
    if let Job::Logs(job) = workload.job {
        let loaded = if data.rows > 0 { format!("{} entries", data.rows) } else { "entries".to_owned() };
        return format!("{} logs, {loaded} of {} B; {limits}", job.logs(), data.value_bytes);
    }
    if let Job::Raft(job) = workload.job {
        let loaded = if job == RaftJob::Snapshot { format!("{} rows of 1 KiB, ", data.rows) } else { String::new() };
        let clients =
            if workload.threads == 1 { "1 client".to_owned() } else { format!("{} clients", workload.threads) };
        return format!("3 nodes in one process, {loaded}{clients}, requests of {} B; {limits}", data.value_bytes);
    }
    let order = if data.order == crate::engine::Order::Sorted { "in order" } else { "at random" };
    let updated = if data.updates > 0 { format!(", then {} random updates", data.updates) } else { String::new() };
    let loaded = if workload.begins_empty() { "to be loaded" } else { "loaded" };
    let caches = match workload.caches {
        crate::plan::Caches::Cold => "cold",
        crate::plan::Caches::Filled => "filled by a scan",
        crate::plan::Caches::Warmed => "warmed by the same work",
    };
    format!("{} rows of {} B {loaded} {order}{updated}; {limits}; caches {caches}", data.rows, data.value_bytes)
}

impl Measured {
    /// Creates a workload's entry before any engine has run it.
    #[must_use]
    pub fn new(workload: &Workload, date: String, quick: bool) -> Measured {
        Measured {
            name: workload.name.to_owned(),
            row: workload.row.to_owned(),
            title: workload.title.to_owned(),
            unit: workload.unit().to_owned(),
            setting: setting(workload),
            date,
            quick,
            durable: workload.durability == crate::engine::Durability::Full,
            user_bytes: workload.data.user_bytes(),
            budget_bytes: workload.data.budget_bytes,
            entries: Vec::new(),
        }
    }

    /// Returns the entry of an engine that has finished a turn, or `None`.
    #[must_use]
    pub fn entry(&self, engine: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.engine == engine && !entry.turns.is_empty())
    }

    /// Returns the median share of the machine's CPU time that other processes and the kernel used during the
    /// measurements. It includes the kernel's work for the engine.
    #[must_use]
    pub fn other_work(&self) -> f64 {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as f64;
        let turns = self.entries.iter().flat_map(|entry| &entry.turns);
        let shares = turns.map(|turn| {
            let costs = &turn.figures.costs;
            let others = (costs.machine_cpu_seconds - costs.cpu_seconds).max(0.0);
            others / (turn.figures.seconds.max(1e-9) * processors)
        });
        median(&shares.collect::<Vec<_>>()).min(1.0)
    }
}

impl Results {
    /// Returns results without figures.
    #[must_use]
    pub fn new(machine: Vec<(String, String)>) -> Results {
        Results { version: VERSION, machine, engines: Vec::new(), workloads: Vec::new(), audits: Vec::new() }
    }

    /// Returns `true` if the workload's commits must be durable, but the engine can't recover, or the audit found that
    /// it acknowledges such commits before they are. In that case, its rate is for a weaker guarantee.
    #[must_use]
    pub fn breaks_promise(&self, workload: &Measured, engine: &str) -> bool {
        let is_volatile =
            |facts: &EngineFacts| facts.name == engine && facts.lacks.iter().any(|lack| lack == NO_RECOVERY);
        let acknowledges_early = |audit: &Audit| audit.engine == engine && audit.acknowledges_early();
        workload.durable && (self.engines.iter().any(is_volatile) || self.audits.iter().any(acknowledges_early))
    }

    /// Reads the results of an earlier run from JSON.
    ///
    /// # Errors
    /// If the file can't be read or has a different version.
    pub fn read(path: &Path) -> std::io::Result<Results> {
        let results: Results = serde_json::from_slice(&std::fs::read(path)?)?;
        if results.version != VERSION {
            let text = format!("{} is of version {}, not {VERSION}", path.display(), results.version);
            return Err(std::io::Error::other(text));
        }
        Ok(results)
    }

    /// Writes the results as JSON.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, serde_json::to_vec_pretty(self)?)
    }

    /// Merges the figures of a newer run. The newer workloads, engines and audits replace those with the same names,
    /// and the newer facts about the machine replace the old ones.
    pub fn merge(&mut self, newer: Results) {
        self.machine = newer.machine;
        for engine in newer.engines {
            put(&mut self.engines, engine, |engine| engine.name.clone());
        }
        for workload in newer.workloads {
            put(&mut self.workloads, workload, |workload| workload.name.clone());
        }
        for audit in newer.audits {
            put(&mut self.audits, audit, |audit| audit.engine.clone());
        }
        self.sort();
    }

    /// Sorts workloads in the order of the table in docs/benchmarks.md, and engines in the order of
    /// [`all`](crate::engines::all).
    fn sort(&mut self) {
        let place = |name: &str| crate::plan::WORKLOADS.iter().position(|workload| workload.name == name);
        self.workloads.sort_by_key(|workload| place(&workload.name));
        let known = crate::engines::all();
        let place = |name: &str| known.iter().position(|peer| peer.name == name).unwrap_or(usize::MAX);
        self.engines.sort_by_key(|engine| place(&engine.name));
    }
}

fn put<T>(all: &mut Vec<T>, item: T, name: impl Fn(&T) -> String) {
    match all.iter_mut().find(|other| name(other) == name(&item)) {
        Some(other) => *other = item,
        None => all.push(item),
    }
}
