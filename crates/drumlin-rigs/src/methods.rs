//! The table of methods: which method of writing a log survives a power cut on which file system.

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use drumlin_testing::documents;

use crate::bench::{About, Bench};
use crate::counters::Count;
use crate::cuts::{Model, cut_trace};
use crate::host::{self, FileSystem};
use crate::writers::Writer;

/// The name of the table in docs/durability.md.
const TABLE: &str = "methods";

/// A measurement of all methods.
#[derive(Clone, Debug)]
pub struct Methods {
    pub systems: Vec<FileSystem>,
    /// The number of states of each trace, under each model of the drive.
    pub states: usize,
    /// The number of traces of each method.
    pub rounds: u64,
    /// `true` if the table is also written into docs/durability.md.
    pub updates_docs: bool,
}

/// The results of one method on one file system, under each model of the drive.
#[derive(Clone, Copy, Default, Debug)]
struct Outcome {
    /// The drive's cache is retained; the page cache is lost.
    kept: Count,
    /// The drive's cache is lost too.
    lost: Count,
}

fn wrong_count(count: &Count) -> u64 {
    count.lost + count.wrong + count.not_mounted
}

impl Outcome {
    /// Returns the failures: sound methods that lost records, and broken methods that had to be caught but were not.
    fn failures(&self, writer: Writer, system: FileSystem) -> Vec<String> {
        let must_be_caught = [writer.is_lazy(), !writer.is_sound()];
        let mut failures = Vec::new();
        for ((model, count), must_be_caught) in
            [("kept", &self.kept), ("lost", &self.lost)].into_iter().zip(must_be_caught)
        {
            if writer.is_sound() && wrong_count(count) > 0 {
                failures.push(format!("{writer} lost something on {system} ({model}): {count:?}"));
            }
            if must_be_caught && count.lost == 0 {
                failures.push(format!("{writer} was not caught on {system} ({model})"));
            }
        }
        failures
    }
}

/// Returns the titles of the table. They name the number of states and the kernel.
fn titles(systems: &[FileSystem], states: u64, kernel: &str) -> Vec<String> {
    let columns = systems.iter().flat_map(|system| [format!("{system} kept"), format!("{system} lost")]);
    [format!("lost of {states} states, Linux {kernel}")].into_iter().chain(columns).collect()
}

fn row(writer: Writer, outcomes: &[Outcome]) -> Vec<String> {
    let cells =
        outcomes.iter().flat_map(|outcome| [&outcome.kept, &outcome.lost]).map(|count| wrong_count(count).to_string());
    [writer.title()].into_iter().chain(cells).collect()
}

/// Returns the first two numbers of the kernel's version.
fn kernel() -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(release.trim().split('.').take(2).collect::<Vec<_>>().join("."))
}

impl Methods {
    /// Prints the table row by row. Fails if a sound method lost records, or if a broken method had to be caught but
    /// was not.
    pub fn run(&self) -> Result<()> {
        let is_whole = self.systems == FileSystem::ALL;
        ensure!(is_whole || !self.updates_docs, "--update-docs writes the whole table: measure all file systems");
        host::require(&self.systems)?;
        let bench = Bench::new()?;
        println!(
            "kept: the host's page cache is lost, the drive's cache is not. lost: the drive's cache is lost too.\n"
        );
        let titles = titles(&self.systems, self.states as u64 * self.rounds, &kernel()?);
        println!("| {} |\n|{}", titles.join(" | "), " --- |".repeat(titles.len()));
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for writer in Writer::all() {
            let mut outcomes = Vec::new();
            for &system in &self.systems {
                let outcome = self.measure(&bench, writer, system)?;
                failures.extend(outcome.failures(writer, system));
                outcomes.push(outcome);
            }
            let row = row(writer, &outcomes);
            println!("| {} |", row.join(" | "));
            rows.push(row);
        }
        println!("\nzfs is not in this kernel and was not measured.");
        if self.updates_docs {
            documents::write_table(&documents::durability_page(), TABLE, titles, rows)?;
        }
        if !failures.is_empty() {
            bail!("{}", failures.join("\n"));
        }
        Ok(())
    }

    fn measure(&self, bench: &Bench, writer: Writer, system: FileSystem) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for round in 1..=self.rounds {
            let about = About { system, writer: writer.to_string(), seed: round, from: Vec::new() };
            let start = bench.make(system)?;
            let history = bench.trace(&about, start, Duration::from_secs(2))?;
            outcome.kept.add(&cut_trace(bench, &about, &history, self.states, Model::Kept)?);
            outcome.lost.add(&cut_trace(bench, &about, &history, self.states, Model::Lost)?);
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in docs/durability.md has the titles that a run writes, and a row for each method.
    #[test]
    fn the_document_has_the_form_of_the_table() {
        let text = fs::read_to_string(documents::durability_page()).unwrap();
        let tables = documents::tables(&text).unwrap();
        let table = tables.iter().find(|table| table.name == TABLE).unwrap();
        let rows: Vec<_> = Writer::all().into_iter().map(|writer| row(writer, &[Outcome::default(); 3])).collect();
        let titles = titles(&FileSystem::ALL, 20, "6.18");
        assert_eq!(table.titles[1..], titles[1..]);
        assert!(table.titles[0].starts_with("lost of ") && table.titles[0].contains(" states, Linux "));
        let firsts = |rows: &[Vec<String>]| rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>();
        assert_eq!(firsts(&table.rows), firsts(&rows));
        assert!(table.rows.iter().flat_map(|row| &row[1..]).all(|cell| cell.parse::<u64>().is_ok()));
    }

    /// A sound method that loses a record is a failure, and so is a broken method that loses none.
    #[test]
    fn a_wrong_outcome_is_a_failure() {
        let [sound, lazy] = ["append-fsync", "append-nosync"].map(|name| name.parse::<Writer>().unwrap());
        let clean = Outcome::default();
        let caught = Count { lost: 1, states: 1, ..Count::default() };
        let all_lost = Outcome { kept: caught, lost: caught };
        assert!(clean.failures(sound, FileSystem::Ext4).is_empty());
        assert_eq!(all_lost.failures(sound, FileSystem::Ext4).len(), 2);
        assert_eq!(clean.failures(lazy, FileSystem::Ext4).len(), 2);
        assert!(all_lost.failures(lazy, FileSystem::Ext4).is_empty());
    }
}
