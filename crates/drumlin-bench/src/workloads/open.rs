//! Measures the opening of a database after a close and after a kill.

use std::time::{Duration, Instant};

use super::{Figures, Turn};
use crate::driver::Outcome;
use crate::engine::{Result, Row};
use crate::measure::{Meter, histogram, record};
use crate::rows::{Chooser, SEED, fill, key, version};

/// The number of rows updated before the kill. The updates write about 30 MB of log.
const CRASH_UPDATES: u64 = 250_000;
/// The number of rows per commit of these updates.
const CRASH_BATCH_ROWS: usize = 10;

/// Measures the time to open the database and get one row.
pub(super) fn measure(turn: &Turn<'_>) -> Result<Figures> {
    let data = turn.workload.data;
    let meter = Meter::start(turn.folder);
    let begun = Instant::now();
    let engine = turn.open()?;
    let mut is_right = false;
    let number = data.rows / 2;
    engine.session()?.get(key(number), &mut |value| is_right = version(value, number, data.value_bytes).is_some())?;
    let elapsed = begun.elapsed();
    let costs = meter.costs();
    if !is_right {
        return Err(format!("row {number} is not what was written").into());
    }
    let begun = Instant::now();
    engine.close()?;
    let closing = begun.elapsed();
    let mut latencies = histogram();
    record(&mut latencies, elapsed);
    let outcome =
        Outcome { operations: 1, units: 1, elapsed, latencies, timeline: Vec::new(), longest_gap: Duration::ZERO };
    let mut figures = Figures::measured(&outcome, costs);
    figures.more.insert("seconds to close".to_owned(), closing.as_secs_f64());
    Ok(figures)
}

/// Updates rows, makes the updates durable, and kills this process without closing the database.
pub(crate) fn crash(turn: &Turn<'_>) -> Result<()> {
    let data = turn.workload.data;
    let engine = turn.open()?;
    let mut session = engine.session()?;
    let mut chooser = Chooser::new(SEED ^ turn.turn, data.rows, None);
    let mut batch: Vec<Row> = vec![Default::default(); CRASH_BATCH_ROWS];
    let updates = CRASH_UPDATES.min(data.rows / 2);
    for update in 0..updates / CRASH_BATCH_ROWS as u64 {
        for (key_bytes, value) in &mut batch {
            let number = chooser.draw();
            *key_bytes = key(number);
            fill(value, number, update + 1, data.value_bytes);
        }
        session.write(&batch)?;
    }
    engine.sync()?;
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    unreachable!("the process was killed")
}
