//! Measures databases with several tables: the drop of a large one, and the opening of a database with many small ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::{Figures, Turn};
use crate::driver::Outcome;
use crate::engine::{Engine, Result, Row, Tables};
use crate::measure::{Latencies, Meter, drop_caches, histogram, record};
use crate::rows::{fill, key, version};

/// The table to which commits go while another is dropped.
pub(super) const OTHER: &str = "other";
/// The number of rows in each of many tables.
const TABLE_ROWS: u64 = 10;
/// The number of tables that one transaction creates.
const TABLES_AT_ONCE: u64 = 100;

pub(super) fn tables(engine: &dyn Engine) -> Result<&dyn Tables> {
    engine.tables().ok_or_else(|| "this engine has no tables".into())
}

pub(super) fn row(number: u64, version: u64, value_bytes: usize) -> Row {
    let mut value = Vec::new();
    fill(&mut value, number, version, value_bytes);
    (key(number), value)
}

fn one(elapsed: Duration, costs: crate::measure::Costs) -> Figures {
    let mut latencies = histogram();
    record(&mut latencies, elapsed);
    let outcome =
        Outcome { operations: 1, units: 1, elapsed, latencies, timeline: Vec::new(), longest_gap: Duration::ZERO };
    Figures::measured(&outcome, costs)
}

/// The latencies of the commits of another thread.
pub(super) struct OtherCommits {
    /// The commits that ended before the measured operation began.
    before: Histogram<u64>,
    during_and_after: Histogram<u64>,
}

impl OtherCommits {
    /// Adds the longest and the usual latencies to the figures.
    pub(super) fn report(&self, figures: &mut Figures) {
        for (name, latencies) in [("before", &self.before), ("during and after", &self.during_and_after)] {
            figures.more.insert(format!("longest commit {name}, ms"), latencies.max() as f64 / 1e6);
            figures.kinds.push((format!("commit {name}"), Latencies::of(latencies)));
        }
    }
}

/// Runs `measured` while another thread commits rows to another table, with this pause after each commit. The other
/// thread begins `turn.duration()` earlier and ends as much later, because what the operation has left to do in the
/// background may hold up commits too.
pub(super) fn with_other_commits<T>(
    turn: &Turn<'_>,
    tables: &dyn Tables,
    pause: Duration,
    measured: impl FnOnce() -> Result<T>,
) -> Result<(T, OtherCommits)> {
    let value_bytes = turn.workload.data.value_bytes;
    let margin = if turn.quick { Duration::from_millis(50) } else { turn.duration() };
    let (has_begun, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| -> Result<_> {
            let mut latencies = [histogram(), histogram()];
            for number in 0.. {
                if has_ended.load(Ordering::Relaxed) {
                    break;
                }
                let written = row(number % 1000, number, value_bytes);
                let begun = Instant::now();
                tables.write(OTHER, &[written])?;
                // A commit that ends after the operation has begun counts as concurrent with it.
                let part = usize::from(has_begun.load(Ordering::Relaxed));
                record(&mut latencies[part], begun.elapsed());
                std::thread::sleep(pause);
            }
            Ok(latencies)
        });
        std::thread::sleep(margin);
        has_begun.store(true, Ordering::Relaxed);
        let result = measured();
        std::thread::sleep(margin);
        has_ended.store(true, Ordering::Relaxed);
        let [before, during_and_after] = committing.join().expect("a committing thread panicked")?;
        result.map(|result| (result, OtherCommits { before, during_and_after }))
    })
}

/// Measures the call that drops the table of rows, and the commits of another thread before, during and after it.
pub(super) fn measure_drop(turn: &Turn<'_>) -> Result<Figures> {
    let engine = turn.open()?;
    let tables = tables(&*engine)?;
    tables.create(&[OTHER.to_owned()], &[])?;
    engine.sync()?;
    let meter = Meter::start(turn.folder);
    let (elapsed, commits) = with_other_commits(turn, tables, Duration::ZERO, || {
        let begun = Instant::now();
        tables.drop_rows()?;
        Ok(begun.elapsed())
    })?;
    let costs = meter.costs();
    engine.close()?;
    let mut figures = one(elapsed, costs);
    commits.report(&mut figures);
    Ok(figures)
}

/// Measures the opening of a database with many tables of ten rows, then a get from each table.
pub(super) fn measure_opening(turn: &Turn<'_>) -> Result<Figures> {
    let data = turn.workload.data;
    let table_count = (data.rows / TABLE_ROWS).max(1);
    let name = |number: u64| format!("table {number}");
    let rows: Vec<Row> = (0..TABLE_ROWS).map(|number| row(number, 0, data.value_bytes)).collect();
    let engine = turn.open()?;
    for first in (0..table_count).step_by(TABLES_AT_ONCE as usize) {
        let names: Vec<String> = (first..(first + TABLES_AT_ONCE).min(table_count)).map(name).collect();
        tables(&*engine)?.create(&names, &rows)?;
    }
    engine.sync()?;
    engine.settle()?;
    engine.close()?;
    drop_caches(turn.folder)?;
    let meter = Meter::start(turn.folder);
    let begun = Instant::now();
    let engine = turn.open()?;
    let elapsed = begun.elapsed();
    let mut figures = one(elapsed, meter.costs());
    let begun = Instant::now();
    for table in 0..table_count {
        let number = table % TABLE_ROWS;
        let mut is_right = false;
        tables(&*engine)?.get(&name(table), key(number), &mut |value| {
            is_right = version(value, number, data.value_bytes) == Some(0);
        })?;
        if !is_right {
            return Err(format!("row {number} of table {table} is not what was written").into());
        }
    }
    figures.more.insert("tables".to_owned(), table_count as f64);
    figures.more.insert("seconds for a get from each".to_owned(), begun.elapsed().as_secs_f64());
    engine.close()?;
    Ok(figures)
}
