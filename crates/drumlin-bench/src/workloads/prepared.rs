//! Measures transactions that are committed in two phases.

use std::time::{Duration, Instant};

use super::{Figures, Turn, repeated};
use crate::driver::Outcome;
use crate::engine::{Result, Row};
use crate::measure::{Meter, histogram, processor_time, record};
use crate::rows::{fill, key};

/// The number of readings of the clock from which its own time is taken.
const CLOCK_READINGS: usize = 1000;

/// Measures two-phase commits by all threads, with the flushes of the device that each took.
pub(super) fn measure(turn: &Turn<'_>) -> Result<Figures> {
    let mut figures = repeated(turn)?;
    let flushes = figures.costs.device_flushes as f64 / figures.operations.max(1) as f64;
    figures.more.insert("device flushes for a commit".to_owned(), flushes);
    Ok(figures)
}

/// Returns the processor time of reading the clock twice.
fn clock_time() -> Duration {
    let reading = || {
        let begun = processor_time();
        processor_time().saturating_sub(begun)
    };
    (0..CLOCK_READINGS).map(|_| reading()).min().unwrap_or_default()
}

/// Measures the processor time of the last step of two-phase commits. The latencies are those of the step, less the
/// time of the clock.
pub(super) fn measure_step(turn: &Turn<'_>) -> Result<Figures> {
    let data = turn.workload.data;
    let engine = turn.open()?;
    let mut session = engine.session()?;
    session.scan([0; 8], u64::MAX, &mut |_, _| {})?;
    let clock = clock_time();
    let mut latencies = histogram();
    let mut rows: [Row; 1] = Default::default();
    let meter = Meter::start(turn.folder);
    let begun = Instant::now();
    let mut operations = 0;
    while begun.elapsed() < turn.duration() {
        let number = operations * 7919 % data.rows;
        rows[0].0 = key(number);
        fill(&mut rows[0].1, number, operations + 1, data.value_bytes);
        let step = session.time_commit_step(b"step", &rows)?;
        record(&mut latencies, step.saturating_sub(clock));
        operations += 1;
    }
    let elapsed = begun.elapsed();
    let costs = meter.costs();
    drop(session);
    engine.close()?;
    let (timeline, longest_gap) = (Vec::new(), Duration::ZERO);
    let mean_us = latencies.mean() / 1e3;
    let outcome = Outcome { operations, units: operations, elapsed, latencies, timeline, longest_gap };
    let mut figures = Figures::measured(&outcome, costs);
    figures.more.insert("us of processor for the commit step".to_owned(), mean_us);
    Ok(figures)
}
