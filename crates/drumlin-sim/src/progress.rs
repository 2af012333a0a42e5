//! Keeps the progress of long runs in files, so that a run can continue where an earlier one stopped.
//!
//! A file is replaced as a whole every few seconds. A killed run loses at most its progress since the last replacement.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::crash_points;
use crate::explore::Summary;

/// The interval between two writes of the file.
pub const STORE_EVERY: Duration = Duration::from_secs(10);

/// The totals over the worlds of all runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Worlds {
    /// The next seed to run.
    pub next_seed: u64,
    pub seeds: u64,
    pub simulated_millis: u64,
    pub commits: u64,
    pub rows_compared: u64,
    pub openings: u64,
    pub cuts: u64,
    pub kills: u64,
    /// The number of hits of each coverage mark.
    pub hits: BTreeMap<String, u64>,
    /// The reports of failures, by seed.
    pub finds: BTreeMap<u64, String>,
}

/// The totals over the crash points of all runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CrashPoints {
    /// The seed and the next point of the current pass.
    pub draw: u64,
    pub point: usize,
    pub states: u64,
    pub recovery_states: u64,
    /// The reports of failures, each with the seed of its pass.
    pub finds: Vec<String>,
}

impl Worlds {
    #[must_use]
    pub fn hours(&self) -> f64 {
        self.simulated_millis as f64 / 3_600_000.0
    }

    /// Returns the totals plus the seeds that this process has run, starting at `next_seed`.
    #[must_use]
    pub fn with(&self, summary: &Summary) -> Worlds {
        let (report, mut sum) = (&summary.report, self.clone());
        sum.next_seed += summary.seeds;
        sum.seeds += summary.seeds;
        sum.simulated_millis += summary.simulated.as_millis() as u64;
        sum.commits += report.commits;
        sum.rows_compared += report.rows_checked;
        sum.openings += report.openings;
        sum.cuts += report.cuts;
        sum.kills += report.kills;
        for (mark, hits) in drumlin::simulation::marks() {
            *sum.hits.entry(mark.to_owned()).or_default() += hits;
        }
        sum.finds.extend(summary.finds.iter().cloned());
        sum
    }
}

impl CrashPoints {
    /// Returns the totals plus the part of the current pass that this process has done.
    #[must_use]
    pub fn with(&self, report: &crash_points::Report) -> CrashPoints {
        let mut sum = self.clone();
        let is_over = report.next >= report.points;
        (sum.draw, sum.point) = if is_over { (self.draw + 1, 0) } else { (self.draw, report.next) };
        sum.states += report.states;
        sum.recovery_states += report.recovery_states;
        sum.finds.extend(report.finds.iter().map(|find| format!("draw {}: {find}", self.draw)));
        sum
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/sim").join(name)
}

/// Loads the progress that was stored under this name, or the default if there is none.
///
/// # Errors
/// If the file can't be read or parsed.
pub fn load<T: DeserializeOwned + Default>(name: &str) -> std::io::Result<T> {
    match std::fs::read(path(name)) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error),
    }
}

/// Stores the progress under this name.
///
/// # Errors
/// Errors of the file system.
pub fn store<T: Serialize>(name: &str, progress: &T) -> std::io::Result<()> {
    let (path, fresh) = (path(name), path(&format!("{name}.new")));
    std::fs::create_dir_all(path.parent().expect("a file in a folder"))?;
    std::fs::write(&fresh, serde_json::to_vec_pretty(progress)?)?;
    std::fs::rename(fresh, path)
}
