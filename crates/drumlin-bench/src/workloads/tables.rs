//! Measures databases with several tables: the drop of a large one, and the opening of a database with many small ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

/// Measures the call that drops the table of rows, and the commits of another thread before, during and after it.
pub(super) fn measure_drop(turn: &Turn<'_>) -> Result<Figures> {
    let data = turn.workload.data;
    let engine = turn.open()?;
    let tables = tables(&*engine)?;
    tables.create(&[OTHER.to_owned()], &[])?;
    engine.sync()?;
    let pause = if turn.quick { Duration::from_millis(50) } else { turn.duration() };
    let (has_begun, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let meter = Meter::start(turn.folder);
    let (elapsed, [before, after]) = std::thread::scope(|scope| {
        let committing = scope.spawn(|| -> Result<_> {
            let mut latencies = [histogram(), histogram()];
            for number in 0.. {
                if has_ended.load(Ordering::Relaxed) {
                    break;
                }
                let written = row(number % 1000, number, data.value_bytes);
                let begun = Instant::now();
                tables.write(OTHER, &[written])?;
                // A commit that ends after the drop has begun counts as concurrent with it.
                let part = usize::from(has_begun.load(Ordering::Relaxed));
                record(&mut latencies[part], begun.elapsed());
            }
            Ok(latencies)
        });
        std::thread::sleep(pause);
        has_begun.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let dropped = tables.drop_rows();
        let elapsed = begun.elapsed();
        std::thread::sleep(pause);
        has_ended.store(true, Ordering::Relaxed);
        let latencies = committing.join().expect("a committing thread panicked")?;
        dropped.map(|()| (elapsed, latencies))
    })?;
    let costs = meter.costs();
    engine.close()?;
    let mut figures = one(elapsed, costs);
    figures.more.insert("longest commit before, ms".to_owned(), before.max() as f64 / 1e6);
    figures.more.insert("longest commit during and after, ms".to_owned(), after.max() as f64 / 1e6);
    figures.kinds = vec![
        ("commit before".to_owned(), Latencies::of(&before)),
        ("commit during and after".to_owned(), Latencies::of(&after)),
    ];
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
