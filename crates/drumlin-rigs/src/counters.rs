//! The counts of long runs. They are stored in a file, so that a stopped run can be continued.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use drumlin_testing::documents;
use serde::{Deserialize, Serialize};

/// The results of one writer on one file system, for one model of the drive's cache.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Count {
    /// The number of states that were mounted, recovered and verified.
    pub states: u64,
    /// The number of `states` that were created by cutting the recovery of an earlier state.
    #[serde(default)]
    pub cut_again: u64,
    /// The number of states in which acknowledged commits were missing.
    pub lost: u64,
    /// The number of states with a wrong value, with corruption, or with a database that could not be opened.
    pub wrong: u64,
    /// The number of states that the file system survived only with sectors of 4 KiB.
    #[serde(default)]
    pub large_sectors: u64,
    /// The number of states that the file system itself did not survive.
    pub not_mounted: u64,
}

impl Count {
    pub fn is_clean(&self) -> bool {
        (self.lost, self.wrong, self.not_mounted) == (0, 0, 0)
    }

    pub fn add(&mut self, other: &Count) {
        self.states += other.states;
        self.cut_again += other.cut_again;
        self.lost += other.lost;
        self.wrong += other.wrong;
        self.large_sectors += other.large_sectors;
        self.not_mounted += other.not_mounted;
    }
}

/// Named counts, stored in a file.
#[derive(Debug)]
pub struct Counters {
    path: PathBuf,
    counts: BTreeMap<String, Count>,
}

impl Counters {
    /// Opens the counters of this name, with the counts that earlier runs stored.
    pub fn open(name: &str) -> Result<Counters> {
        let path = crate::host::work_folder()?.join(format!("{name}.json"));
        let counts = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))?,
            Err(_) => BTreeMap::new(),
        };
        Ok(Counters { path, counts })
    }

    pub fn get(&self, key: &str) -> Count {
        self.counts.get(key).copied().unwrap_or_default()
    }

    pub fn add(&mut self, key: &str, count: &Count) -> Result<()> {
        self.counts.entry(key.to_owned()).or_default().add(count);
        let new = self.path.with_extension("new");
        fs::write(&new, serde_json::to_vec_pretty(&self.counts)?)?;
        Ok(fs::rename(new, &self.path)?)
    }
}

/// Writes the counts of each file system into a row of docs/testing.md.
pub fn write_row(what: &str, counts: &[(String, Count)]) -> Result<()> {
    let states = counts.iter().map(|(system, count)| format!("{system} {}", documents::figure(count.states)));
    let states = states.collect::<Vec<_>>().join(", ");
    let bad: Vec<String> = (counts.iter().filter(|(_, count)| !count.is_clean()))
        .map(|(system, count)| {
            format!("{system}: {} lost, {} wrong, {} not mounted", count.lost, count.wrong, count.not_mounted)
        })
        .collect();
    let found = if bad.is_empty() { "nothing".to_owned() } else { bad.join("; ") };
    Ok(documents::write_row(&documents::testing_page(), "runs", [what, &states, &found])?)
}
