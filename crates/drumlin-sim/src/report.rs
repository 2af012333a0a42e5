//! Formats the results of runs as text.

use std::fmt::Write as _;
use std::time::Duration;

use drumlin_io::testing::sim::FaultCounts;
use drumlin_testing::documents::{self, figure};

use crate::cluster;
use crate::explore::Summary;
use crate::progress::{CrashPoints, Worlds};
use crate::world::RunReport;

/// Returns the report of an exploration that ran for this long.
#[must_use]
pub fn of_worlds(summary: &Summary, took: Duration) -> String {
    let seconds = took.as_secs_f64().max(0.001);
    let hours = summary.simulated.as_secs_f64() / 3600.0;
    let mut text = format!("{} in {seconds:.0} s, {hours:.2} simulated hours\n", counted(summary.seeds, "world"));
    text += &of_story(&summary.report);
    let faults = summary.faults.iter().map(|(name, count)| format!("{} {name}", figure(*count)));
    row(&mut text, "faults", &faults.collect::<Vec<_>>().join(", "));
    text += &own_marks();
    for (seed, find) in &summary.finds {
        let _ = writeln!(text, "FOUND by seed {seed}: {find}");
        let fault = summary.fault.map_or(String::new(), |fault| format!(" --fault {}", fault.name()));
        let _ = writeln!(text, "  again: cargo run --release -p drumlin-sim -- --seed {seed}{fault}");
    }
    if summary.finds.is_empty() {
        text += "nothing found\n";
    }
    text
}

/// Returns the report of the operations and faults of one or many worlds.
#[must_use]
pub fn of_story(report: &RunReport) -> String {
    let mut text = String::new();
    let database = [(report.commits, "commit"), (report.rows_checked, "row| compared"), (report.openings, "opening")];
    row(&mut text, "database", &listed(database));
    let ends = [
        (report.cuts, "power cut"),
        (report.cuts_while_opening, "power cut| while opening"),
        (report.kills, "kill"),
        (report.closes, "closing"),
        (report.openings_refused, "opening| refused"),
    ];
    row(&mut text, "ended by", &listed(ends));
    row(&mut text, "clients", &listed(report.counts.iter().map(|(name, count)| (*count, *name))));
    row(&mut text, "disks", &listed(of_harm(&report.harm)));
    let damage = [
        (report.damage_reported, "time| reported"),
        (report.openings_behind, "opening| without the last acknowledged commits, after damage"),
    ];
    row(&mut text, "damage", &listed(damage));
    text
}

/// Returns the report of the events in the worlds of clusters.
#[must_use]
pub fn of_clusters(counts: &cluster::Counts) -> String {
    let mut text = String::new();
    let requests = [
        (counts.entries, "request| applied"),
        (counts.writes, "write| acknowledged"),
        (counts.writes_unknown, "write| without an answer"),
        (counts.reads, "linearizable read"),
    ];
    row(&mut text, "clients", &listed(requests));
    let cluster = [
        (counts.leaders, "term| with a leader"),
        (counts.changes_of_members, "node| removed"),
        (counts.snapshots_sent, "snapshot| sent"),
        (counts.snapshots_resumed, "snapshot| resumed"),
    ];
    row(&mut text, "cluster", &listed(cluster));
    row(&mut text, "network", &listed([(counts.partitions, "partition"), (counts.messages_lost, "message| lost")]));
    let nodes = [
        (counts.openings, "opening"),
        (counts.cuts, "power cut"),
        (counts.cuts_while_opening, "power cut| while opening"),
        (counts.kills, "kill"),
        (counts.closes, "closing"),
        (counts.bits_flipped, "flipped bit"),
        (counts.damage_reported, "node| damaged"),
    ];
    row(&mut text, "nodes", &listed(nodes));
    text
}

fn of_harm(harm: &FaultCounts) -> [(u64, &'static str); 10] {
    [
        (harm.requests_slow, "slow request"),
        (harm.reads_failed, "failed read"),
        (harm.writes_failed, "failed write"),
        (harm.syncs_failed, "failed sync"),
        (harm.names_failed, "failed change| of a name"),
        (harm.refused_full, "request| refused for lack of space"),
        (harm.writes_lost, "lost write"),
        (harm.writes_misdirected, "misdirected write"),
        (harm.bits_flipped, "flipped bit"),
        (harm.lies, "lie| about durability"),
    ]
}

/// Returns the report of the worlds over all runs.
#[must_use]
pub fn of_all_worlds(worlds: &Worlds) -> String {
    let mut text = format!("in total {:.1} simulated hours, {}\n", worlds.hours(), counted(worlds.seeds, "world"));
    let database = [(worlds.commits, "commit"), (worlds.rows_compared, "row| compared"), (worlds.openings, "opening")];
    row(&mut text, "database", &listed(database));
    row(&mut text, "ended by", &listed([(worlds.cuts, "power cut"), (worlds.kills, "kill")]));
    text += &marks(|mark| worlds.hits.get(mark).is_some_and(|hits| *hits > 0));
    for (seed, find) in &worlds.finds {
        let _ = writeln!(text, "FOUND by seed {seed}: {}", find.lines().next().unwrap_or_default());
    }
    text
}

/// Returns the report of the crash points over all runs.
#[must_use]
pub fn of_all_crash_points(points: &CrashPoints) -> String {
    let mut text = format!(
        "in total {}, {} of cut recoveries, {}\n",
        counted(points.states, "state"),
        figure(points.recovery_states),
        counted(points.draw, "whole round")
    );
    for find in &points.finds {
        let _ = writeln!(text, "FOUND: {find}");
    }
    text
}

/// Writes the rows about worlds and marks into docs/testing.md.
///
/// # Errors
/// If the page can't be read or written, or has no such table.
pub fn write_worlds(worlds: &Worlds) -> std::io::Result<()> {
    let [seeds, commits, openings, cuts, kills] =
        [worlds.seeds, worlds.commits, worlds.openings, worlds.cuts, worlds.kills].map(figure);
    let much = format!(
        "{seeds}, {:.0} simulated hours: {commits} commits, {openings} openings, {cuts} power cuts, {kills} kills",
        worlds.hours()
    );
    write_run("simulated worlds", &much, &found(worlds.finds.len()))?;
    let marks = drumlin::simulation::marks();
    let hit = marks.iter().filter(|(mark, _)| worlds.hits.get(*mark).is_some_and(|hits| *hits > 0)).count();
    write_run("marks of rare paths", &format!("{hit} of {} taken", marks.len()), "-")
}

/// Writes the row about crash points into docs/testing.md.
///
/// # Errors
/// If the page can't be read or written, or has no such table.
pub fn write_crash_points(points: &CrashPoints) -> std::io::Result<()> {
    let [states, recovery_states, draw] = [points.states, points.recovery_states, points.draw].map(figure);
    let much = format!(
        "{states} different states, {recovery_states} of them of recoveries cut again; {draw} passes through the script"
    );
    write_run("crash points", &much, &found(points.finds.len()))
}

fn write_run(what: &str, much: &str, found: &str) -> std::io::Result<()> {
    documents::write_row(&documents::testing_page(), "runs", [what, much, found])
}

fn found(count: usize) -> String {
    if count == 0 { "nothing".into() } else { format!("{count} finds") }
}

/// Returns the number of coverage marks that this process has hit, and the names of the marks that it has not hit.
#[must_use]
pub fn own_marks() -> String {
    marks(|mark| drumlin::simulation::marks().iter().any(|(own, hits)| *own == mark && *hits > 0))
}

fn marks(is_hit: impl Fn(&str) -> bool) -> String {
    let marks = drumlin::simulation::marks();
    let missed: Vec<&str> = marks.iter().map(|(mark, _)| *mark).filter(|mark| !is_hit(mark)).collect();
    let mut text = String::new();
    row(&mut text, "marks", &format!("{} of {} rare paths taken", marks.len() - missed.len(), marks.len()));
    for mark in missed {
        row(&mut text, "", &format!("not: {mark}"));
    }
    text
}

fn row(text: &mut String, name: &str, what: &str) {
    /// The maximum length of a line, unless a single part is longer.
    const COLUMNS_MAX: usize = 110;
    let mut line = format!("  {name:<10}");
    let mut is_empty = true;
    for part in what.split_inclusive(", ") {
        if !is_empty && line.len() + part.trim_end().len() > COLUMNS_MAX {
            let _ = writeln!(text, "{}", line.trim_end());
            line = " ".repeat(12);
        }
        line += part;
        is_empty = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

/// Lists the counts that are not zero, each with its noun.
fn listed<'a>(counts: impl IntoIterator<Item = (u64, &'a str)>) -> String {
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let list: Vec<String> = counts.map(|(count, noun)| counted(count, noun)).collect();
    if list.is_empty() { "nothing".to_owned() } else { list.join(", ") }
}

/// Returns a count with its noun, in the plural if needed. A `|` marks the end of the noun if more words follow it.
fn counted(count: u64, noun: &str) -> String {
    let (noun, rest) = noun.split_once('|').unwrap_or((noun, ""));
    format!("{} {noun}{}{rest}", figure(count), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts have thousands separators, nouns have a plural, and zeros are omitted.
    #[test]
    fn counts_read_well() {
        let counts = [(1, "power cut"), (0, "kill"), (1_234_567, "row| compared"), (12, "whole round")];
        assert_eq!(listed(counts), "1 power cut, 1,234,567 rows compared, 12 whole rounds");
        assert_eq!(listed([(0, "kill")]), "nothing");
        let mut text = String::new();
        row(&mut text, "clients", &["123,456 rows compared"; 6].join(", "));
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.len() <= 110) && text.ends_with("compared\n"), "{text}");
    }
}
