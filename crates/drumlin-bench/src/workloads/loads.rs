//! Loads of rows, either to measure them or to prepare the data of other workloads.

use std::time::{Duration, Instant};

use drumlin_testing::Random;

use super::{Figures, Turn};
use crate::driver::Outcome;
use crate::engine::{Durability, Engine, LOAD_BATCH_ROWS, Peer, Result, Row, Settings, load_in_batches};
use crate::measure::{Meter, disk_bytes, histogram, record};
use crate::plan::{Data, Job};
use crate::rows::{AllRows, SEED, fill, key};

/// The engine's memory budget for a load that is not measured.
const PREPARE_BUDGET_BYTES: u64 = 256 << 20;
/// The number of rows per commit of the updates after a load.
const UPDATE_BATCH_ROWS: u64 = 100;

/// Creates the rows for a workload. Waits until the engine is idle, then closes it.
pub(crate) fn prepare(peer: &Peer, folder: &std::path::Path, data: &Data) -> Result<()> {
    // A larger budget saves minutes on random loads and does not affect the later measurement. But an engine that can't
    // recover restores its cache from a snapshot, so it needs the same budget for the load and the measurement.
    let memory_bytes =
        if peer.capabilities.recovers { PREPARE_BUDGET_BYTES.max(data.budget_bytes) } else { data.budget_bytes };
    let settings = Settings { memory_bytes, durability: Durability::Relaxed, threads: 1, two_phases: false };
    let engine = (peer.open)(folder, &settings)?;
    let mut rows = AllRows::new(data.rows, data.value_bytes, data.order);
    load_in_batches(&mut *engine.session()?, &mut rows, LOAD_BATCH_ROWS)?;
    update(&*engine, data)?;
    engine.sync()?;
    engine.settle()?;
    engine.close()
}

/// Writes new versions of random rows.
fn update(engine: &dyn Engine, data: &Data) -> Result<()> {
    let mut session = engine.session()?;
    let mut random = Random(SEED);
    let mut batch: Vec<Row> = Vec::new();
    for first in (0..data.updates).step_by(UPDATE_BATCH_ROWS as usize) {
        batch.clear();
        for version in first..(first + UPDATE_BATCH_ROWS).min(data.updates) {
            let number = random.below(data.rows);
            let mut value = Vec::new();
            fill(&mut value, number, version + 1, data.value_bytes);
            batch.push((key(number), value));
        }
        session.write(&batch)?;
    }
    Ok(())
}

/// Measures a load of all rows into an empty database, until the rows are durable.
pub(super) fn measure(turn: &Turn<'_>) -> Result<Figures> {
    let data = turn.workload.data;
    let engine = turn.open()?;
    let mut rows = AllRows::new(data.rows, data.value_bytes, data.order);
    let mut latencies = histogram();
    let meter = Meter::start(turn.folder);
    let begun = Instant::now();
    if turn.workload.job == Job::BulkLoad {
        engine.bulk_load(&mut rows, data.order)?;
    } else {
        load_in_batches(&mut *engine.session()?, &mut rows, LOAD_BATCH_ROWS)?;
    }
    engine.sync()?;
    let elapsed = begun.elapsed();
    record(&mut latencies, elapsed);
    let at_once = disk_bytes(turn.folder);
    // The costs of the load include background writes, but its duration does not.
    engine.settle()?;
    let costs_settled = meter.costs();
    let settled = begun.elapsed();
    verify(&*engine, &data)?;
    engine.close()?;
    let outcome = Outcome {
        operations: 1,
        units: data.rows,
        elapsed,
        latencies,
        timeline: Vec::new(),
        longest_gap: Duration::ZERO,
    };
    let mut figures = Figures::measured(&outcome, costs_settled);
    figures.written_user_bytes = data.user_bytes();
    figures.more.insert("disk bytes at the end of the load".to_owned(), at_once as f64);
    figures.more.insert("seconds until the background was idle".to_owned(), settled.as_secs_f64());
    Ok(figures)
}

/// Reads back 1,000 random rows and the first and last rows.
fn verify(engine: &dyn Engine, data: &Data) -> Result<()> {
    let mut session = engine.session()?;
    let mut random = Random(SEED);
    let drawn = (0..1000).map(|_| random.below(data.rows));
    for number in [0, data.rows - 1].into_iter().chain(drawn) {
        let mut is_right = false;
        session.get(key(number), &mut |value| {
            is_right = crate::rows::version(value, number, data.value_bytes) == Some(0);
        })?;
        if !is_right {
            return Err(format!("row {number} of a load is not what was written").into());
        }
    }
    Ok(())
}
