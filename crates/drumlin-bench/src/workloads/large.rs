//! Measures one transaction of as many changes as there are rows, and the commits of another thread beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::tables::{OTHER, row, tables};
use super::{Figures, Turn};
use crate::driver::Outcome;
use crate::engine::{Changes, Key, Result};
use crate::measure::{Latencies, Meter, histogram, record};
use crate::plan::Change;
use crate::rows::{fill, key, version};

/// The number of rows that are read after the commit.
const READS: u64 = 1000;

/// The pause between two commits of the other thread, so that it leaves a processor to the transaction.
const PAUSE: Duration = Duration::from_millis(1);

/// The changes of a large transaction, in key order.
struct InOrder {
    change: Change,
    next: u64,
    end: u64,
    value: Vec<u8>,
    value_bytes: usize,
}

impl InOrder {
    /// Returns the version of the rows after the changes.
    fn version(change: Change) -> u64 {
        u64::from(change == Change::Replace)
    }

    fn new(change: Change, rows: u64, value_bytes: usize) -> InOrder {
        let next = if change == Change::Insert { rows } else { 0 };
        InOrder { change, next, end: next + rows, value: Vec::new(), value_bytes }
    }
}

impl Changes for InOrder {
    fn next(&mut self) -> Option<(Key, Option<&[u8]>)> {
        let number = (self.next < self.end).then_some(self.next)?;
        self.next += 1;
        if self.change == Change::Remove {
            return Some((key(number), None));
        }
        fill(&mut self.value, number, InOrder::version(self.change), self.value_bytes);
        Some((key(number), Some(&self.value)))
    }
}

/// Measures the transaction from its first change to the end of its commit, then reads some of its rows. A thread
/// commits rows to another table before, during and after it.
pub(super) fn measure(turn: &Turn<'_>, change: Change) -> Result<Figures> {
    let data = turn.workload.data;
    let engine = turn.open()?;
    let tables = tables(&*engine)?;
    tables.create(&[OTHER.to_owned()], &[])?;
    engine.sync()?;
    let pause = if turn.quick { Duration::from_millis(50) } else { turn.duration() };
    let (has_begun, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let meter = Meter::start(turn.folder);
    let (elapsed, reading, [before, beside]) = std::thread::scope(|scope| {
        let committing = scope.spawn(|| -> Result<_> {
            let mut latencies = [histogram(), histogram()];
            for number in 0.. {
                if has_ended.load(Ordering::Relaxed) {
                    break;
                }
                let written = row(number % 1000, number, data.value_bytes);
                let begun = Instant::now();
                tables.write(OTHER, &[written])?;
                // A commit that ends after the transaction has begun counts as concurrent with it.
                let part = usize::from(has_begun.load(Ordering::Relaxed));
                record(&mut latencies[part], begun.elapsed());
                std::thread::sleep(PAUSE);
            }
            Ok(latencies)
        });
        let transaction = || -> Result<_> {
            let mut session = engine.session()?;
            std::thread::sleep(pause);
            has_begun.store(true, Ordering::Relaxed);
            let begun = Instant::now();
            session.change_at_once(&mut InOrder::new(change, data.rows, data.value_bytes))?;
            let elapsed = begun.elapsed();
            let begun = Instant::now();
            let first = if change == Change::Insert { data.rows } else { 0 };
            for read in 0..READS {
                let number = first + read * 7919 % data.rows;
                let mut found_version = None;
                let is_there =
                    session.get(key(number), &mut |value| found_version = version(value, number, data.value_bytes))?;
                let expected = (change != Change::Remove).then_some(InOrder::version(change));
                if found_version != expected || is_there != expected.is_some() {
                    return Err(format!("row {number} is of version {found_version:?}, not {expected:?}").into());
                }
            }
            Ok((elapsed, begun.elapsed()))
        };
        let measured = transaction();
        // Folding, compactions and checkpoints go on after the commit.
        std::thread::sleep(pause);
        has_ended.store(true, Ordering::Relaxed);
        let latencies = committing.join().expect("a committing thread panicked")?;
        measured.map(|(elapsed, reading)| (elapsed, reading, latencies))
    })?;
    let costs = meter.costs();
    engine.close()?;
    let mut latencies = histogram();
    record(&mut latencies, elapsed);
    let (timeline, longest_gap) = (Vec::new(), Duration::ZERO);
    let outcome = Outcome { operations: 1, units: data.rows, elapsed, latencies, timeline, longest_gap };
    let mut figures = Figures::measured(&outcome, costs);
    figures.more.insert("us of a get right after the commit".to_owned(), reading.as_secs_f64() * 1e6 / READS as f64);
    figures.more.insert("longest commit before, ms".to_owned(), before.max() as f64 / 1e6);
    figures.more.insert("longest commit during and after, ms".to_owned(), beside.max() as f64 / 1e6);
    figures.kinds = vec![
        ("commit before".to_owned(), Latencies::of(&before)),
        ("commit during and after".to_owned(), Latencies::of(&beside)),
    ];
    Ok(figures)
}
