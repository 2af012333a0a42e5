//! The load of the machine, and the tables of results.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::contenders::{DRUMLIN, contenders};
use crate::work::{Measured, Row};

/// The unit in which the files under /proc count processor time.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the processor time of all children of this process that have ended, in seconds.
pub(crate) fn children_seconds() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    // Split after the process name, which is in parentheses. So fields 16 and 17 of proc(5) have the indexes 13 and 14.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    Ok(fields.iter().skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND)
}

/// Returns the busy time of all processors together, in seconds.
pub(crate) fn busy_seconds() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    // The fields are user, nice, system, idle, iowait, irq, softirq. Omit irq and softirq, because most of that time is
    // caused by the measured transfers.
    Ok(ticks.iter().take(3).sum::<f64>() / TICKS_PER_SECOND)
}

/// Returns the average number of processors that other processes have kept busy since `since`.
pub(crate) fn other_processors((since, busy, children): (Instant, f64, f64)) -> io::Result<f64> {
    let others = (busy_seconds()? - busy) - (children_seconds()? - children);
    Ok((others / since.elapsed().as_secs_f64()).max(0.0))
}

/// All measurements of a run.
#[derive(Serialize)]
pub(crate) struct Results {
    machine: Vec<String>,
    rows: Vec<RowResults>,
}

#[derive(Serialize)]
struct RowResults {
    name: String,
    #[serde(skip)]
    row: Row,
    contenders: BTreeMap<&'static str, Vec<Measured>>,
}

impl Results {
    pub(crate) fn new(folder: &Path) -> io::Result<Results> {
        let line_of = |path: &str, key: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split(':').next_back().unwrap_or_default().trim().to_owned()
        };
        let processors = std::thread::available_parallelism()?;
        let processor = line_of("/proc/cpuinfo", "model name");
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
        let block_bytes = rustix::fs::statvfs(folder).map_err(io::Error::from)?.f_frsize;
        let machine = vec![
            format!("{processors} x {processor}, {} of memory", line_of("/proc/meminfo", "MemTotal")),
            format!("Linux {kernel}, blocks of {block_bytes} B"),
        ];
        Ok(Results { machine, rows: Vec::new() })
    }

    pub(crate) fn add(&mut self, row: Row, contender: &'static str, measured: Measured) {
        if self.rows.last().is_none_or(|last| last.row != row) {
            self.rows.push(RowResults { name: row.name(), row, contenders: BTreeMap::new() });
        }
        let last = self.rows.last_mut().expect("it was just added");
        last.contenders.entry(contender).or_default().push(measured);
    }

    /// Writes a table of medians. `better` is `Ordering::Greater` if higher values are better.
    fn table(
        &self,
        f: &mut fmt::Formatter<'_>,
        value: impl Fn(&RowResults, &Measured) -> f64,
        is_more_better: bool,
    ) -> fmt::Result {
        let measured = |name: &str| self.rows.iter().any(|row| row.contenders.contains_key(name));
        let columns: Vec<_> = contenders().into_iter().filter(|contender| measured(contender.name)).collect();
        write!(f, "| row | unit |")?;
        columns.iter().try_for_each(|column| write!(f, " {} |", column.name))?;
        writeln!(f, " {DRUMLIN} / best peer |")?;
        writeln!(f, "| --- | --- |{} --- |", " --- |".repeat(columns.len()))?;
        for row in &self.rows {
            let unit = match (row.row.is_sequential(), is_more_better) {
                (true, true) => "GB/s",
                (true, false) => "s/GB",
                (false, true) => "1,000/s",
                (false, false) => "µs",
            };
            write!(f, "| {} | {unit} |", row.row.title())?;
            let median_of = |name: &str| {
                row.contenders.get(name).map(|all| median(all.iter().map(|one| value(row, one)).collect()))
            };
            for column in &columns {
                match median_of(column.name) {
                    Some(median) => write!(f, " {} |", short(median))?,
                    None => write!(f, " |")?,
                }
            }
            let peers = columns.iter().filter(|column| column.is_peer).filter_map(|column| median_of(column.name));
            let best = peers.reduce(|a, b| if (a > b) == is_more_better { a } else { b });
            match (median_of(DRUMLIN), best) {
                (Some(own), Some(best)) => writeln!(f, " {:.2} |", own / best)?,
                _ => writeln!(f, " |")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        let all = self.rows.iter().flat_map(|row| row.contenders.values().flatten());
        let others: Vec<f64> = all.map(|measured| measured.other_processors).collect();
        if others.is_empty() {
            return Ok(());
        }
        let most = others.iter().copied().fold(0.0, f64::max);
        let count = others.len();
        writeln!(
            f,
            "{count} measurements; other work took {:.2} processors (median), {most:.2} at most\n",
            median(others)
        )?;
        writeln!(f, "Rates:\n")?;
        self.table(f, |row, one| one.rate() / if row.row.is_sequential() { 1e9 } else { 1e3 }, true)?;
        writeln!(f, "\nProcessor time:\n")?;
        self.table(f, |row, one| one.cost() * if row.row.is_sequential() { 1e9 } else { 1e6 }, false)
    }
}

/// Formats a number with three significant digits.
fn short(value: f64) -> String {
    let decimals = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
