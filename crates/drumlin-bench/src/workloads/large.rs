//! Measures one transaction of as many changes as there are rows, and the concurrent commits of another thread.

use std::time::{Duration, Instant};

use super::tables::{OTHER, tables, with_other_commits};
use super::{Figures, Turn};
use crate::driver::Outcome;
use crate::engine::{Changes, Key, Result, Session};
use crate::measure::{Meter, histogram, record};
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

/// Reads some of the rows that the transaction has changed, and verifies them. Returns the time that this took.
fn read_some(session: &mut dyn Session, change: Change, rows: u64, value_bytes: usize) -> Result<Duration> {
    let begun = Instant::now();
    let first = if change == Change::Insert { rows } else { 0 };
    for read in 0..READS {
        let number = first + read * 7919 % rows;
        let mut found_version = None;
        let is_there = session.get(key(number), &mut |value| found_version = version(value, number, value_bytes))?;
        let expected = (change != Change::Remove).then_some(InOrder::version(change));
        if found_version != expected || is_there != expected.is_some() {
            return Err(format!("row {number} is of version {found_version:?}, not {expected:?}").into());
        }
    }
    Ok(begun.elapsed())
}

/// Measures the transaction from its first change to the end of its commit, then reads some of its rows. A thread
/// commits rows to another table before, during and after it.
pub(super) fn measure(turn: &Turn<'_>, change: Change) -> Result<Figures> {
    let data = turn.workload.data;
    let engine = turn.open()?;
    let tables = tables(&*engine)?;
    tables.create(&[OTHER.to_owned()], &[])?;
    engine.sync()?;
    let meter = Meter::start(turn.folder);
    let ((elapsed, reading), commits) = with_other_commits(turn, tables, PAUSE, || {
        let mut session = engine.session()?;
        let begun = Instant::now();
        session.change_at_once(&mut InOrder::new(change, data.rows, data.value_bytes))?;
        Ok((begun.elapsed(), read_some(&mut *session, change, data.rows, data.value_bytes)?))
    })?;
    let costs = meter.costs();
    engine.close()?;
    let mut latencies = histogram();
    record(&mut latencies, elapsed);
    let (timeline, longest_gap) = (Vec::new(), Duration::ZERO);
    let outcome = Outcome { operations: 1, units: data.rows, elapsed, latencies, timeline, longest_gap };
    let mut figures = Figures::measured(&outcome, costs);
    figures.more.insert("us of a get right after the commit".to_owned(), reading.as_secs_f64() * 1e6 / READS as f64);
    commits.report(&mut figures);
    Ok(figures)
}
