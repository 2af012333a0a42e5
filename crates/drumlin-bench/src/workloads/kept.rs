//! Measures what only Drumlin has: kept snapshots, and the change feed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drumlin::{Database, Keyspace, Retention};
use drumlin_testing::Random;

use super::{Figures, Turn};
use crate::driver::Outcome;
use crate::engine::Result;
use crate::engines::drumlin::config;
use crate::measure::{Costs, Latencies, Meter, histogram, median, record};
use crate::rows::{SEED, fill, key, version};

/// The number of times that each thing is measured, in turns with what it is compared with.
const ROUNDS: usize = 5;
/// The number of snapshots that are kept while commits are measured.
const SNAPSHOTS: usize = 10;
/// The number of rows in a commit that a feed is measured with.
const COMMIT_ROWS: u64 = 100;
/// The change files have room for all commits of a turn.
const RETENTION_BYTES: u64 = 4 << 30;

/// Repeats an operation for a time. Returns its rate per second.
fn rate(duration: Duration, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < duration {
        step()?;
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Draws rows of a workload's data, and writes new versions of them.
struct Draw {
    random: Random,
    rows: u64,
    value_bytes: usize,
    value: Vec<u8>,
}

impl Draw {
    fn new(turn: &Turn<'_>, part: u64) -> Draw {
        let data = turn.workload.data;
        let random = Random(SEED ^ (turn.turn << 32) ^ part);
        Draw { random, rows: data.rows, value_bytes: data.value_bytes, value: Vec::new() }
    }

    fn get(&mut self, rows: &Keyspace) -> Result<()> {
        let number = self.random.below(self.rows);
        let is_there = rows.get_into(key(number), &mut self.value)?;
        if is_there && version(&self.value, number, self.value_bytes).is_some() {
            return Ok(());
        }
        Err(format!("row {number} is not what was written").into())
    }

    fn replace(&mut self, rows: &Keyspace) -> Result<()> {
        let (number, version) = (self.random.below(self.rows), self.random.next());
        fill(&mut self.value, number, version, self.value_bytes);
        Ok(rows.insert(key(number), &self.value)?)
    }

    fn replace_many(&mut self, db: &Database, rows: &Keyspace) -> Result<()> {
        let mut batch = db.batch()?;
        for _ in 0..COMMIT_ROWS {
            let (number, version) = (self.random.below(self.rows), self.random.next());
            fill(&mut self.value, number, version, self.value_bytes);
            batch.insert(rows, key(number), &self.value)?;
        }
        batch.commit()?;
        Ok(())
    }
}

fn figures(rate: f64, unit_seconds: f64, costs: Costs) -> Figures {
    let elapsed = Duration::from_secs_f64(unit_seconds);
    let units = (rate * unit_seconds) as u64;
    let (latencies, timeline, longest_gap) = (histogram(), Vec::new(), Duration::ZERO);
    Figures::measured(&Outcome { operations: units, units, elapsed, latencies, timeline, longest_gap }, costs)
}

/// Measures gets from a kept snapshot in turns with live ones, then commits with ten kept snapshots in turns with
/// commits with none, and the longest commit during the calls that keep them.
pub(super) fn measure_snapshots(turn: &Turn<'_>) -> Result<Figures> {
    let db = config(&turn.settings()).open(turn.folder.join("drumlin"))?;
    let rows = db.existing_keyspace("rows")?;
    let mut draw = Draw::new(turn, 0);
    db.keep_snapshot("reads")?;
    let opened = db.open_snapshot("reads")?;
    let kept = opened.keyspace("rows")?;
    for keyspace in [&rows, &kept] {
        keyspace.iter().try_for_each(|row| row.map(drop))?;
    }
    let part = turn.duration() / ROUNDS as u32;
    let meter = Meter::start(turn.folder);
    let (mut reads, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let live = rate(part, || draw.get(&rows))?;
        reads.push(rate(part, || draw.get(&kept))?);
        ratios.push(reads[reads.len() - 1] / live);
    }
    let mut figures = figures(median(&reads), turn.duration().as_secs_f64(), meter.costs());
    figures.more.insert("gets from a kept snapshot, of live ones".to_owned(), median(&ratios));
    drop((kept, opened));
    db.drop_snapshot("reads")?;
    rate(part, || draw.replace(&rows))?;
    let (mut commits, mut keeping) = ([histogram(), histogram()], Vec::new());
    ratios.clear();
    for _ in 0..ROUNDS {
        let alone = timed_commits(part, &mut draw, &rows, &mut commits[0])?;
        let has_ended = AtomicBool::new(false);
        // Snapshots are kept while the thread commits, so that the longest commit includes the wait for them.
        std::thread::scope(|scope| -> Result<()> {
            let committing = scope.spawn(|| -> Result<Draw> {
                let mut draw = Draw::new(turn, 1);
                while !has_ended.load(Ordering::Relaxed) {
                    timed_commits(Duration::from_millis(1), &mut draw, &rows, &mut commits[1])?;
                }
                Ok(draw)
            });
            for number in 0..SNAPSHOTS {
                std::thread::sleep(Duration::from_millis(50));
                let begun = Instant::now();
                db.keep_snapshot(&format!("kept {number}"))?;
                keeping.push(begun.elapsed().as_secs_f64());
            }
            has_ended.store(true, Ordering::Relaxed);
            committing.join().expect("a committing thread panicked").map(drop)
        })?;
        ratios.push(rate(part, || draw.replace(&rows))? / alone);
        for number in 0..SNAPSHOTS {
            db.drop_snapshot(&format!("kept {number}"))?;
        }
    }
    figures.more.insert("commits beside ten kept snapshots, of those beside none".to_owned(), median(&ratios));
    figures.more.insert("seconds of keeping a snapshot".to_owned(), median(&keeping));
    for (name, latencies) in ["beside none", "while snapshots are kept"].into_iter().zip(&commits) {
        figures.more.insert(format!("longest commit {name}, ms"), latencies.max() as f64 / 1e6);
        figures.kinds.push((format!("commit {name}"), Latencies::of(latencies)));
    }
    db.close()?;
    Ok(figures)
}

/// Commits for a time and records each latency. Returns the rate.
fn timed_commits(
    duration: Duration,
    draw: &mut Draw,
    rows: &Keyspace,
    latencies: &mut hdrhistogram::Histogram<u64>,
) -> Result<f64> {
    rate(duration, || {
        let begun = Instant::now();
        draw.replace(rows)?;
        record(latencies, begun.elapsed());
        Ok(())
    })
}

/// Measures the rate at which changes are read, the delay between a durable commit and its change, and commits with and
/// without a feed, in turns.
pub(super) fn measure_feed(turn: &Turn<'_>) -> Result<Figures> {
    let path = turn.folder.join("drumlin");
    let open = |retention| config(&turn.settings()).keep_changes(retention).open(&path);
    let part = turn.duration() / ROUNDS as u32;
    let mut draw = Draw::new(turn, 0);
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let mut rates = [0.0; 2];
        for (index, retention) in [Retention::none(), Retention::bytes(RETENTION_BYTES)].into_iter().enumerate() {
            let db = open(retention)?;
            let rows = db.existing_keyspace("rows")?;
            rows.iter().try_for_each(|row| row.map(drop))?;
            rates[index] = rate(part, || draw.replace_many(&db, &rows))?;
            drop(rows);
            db.close()?;
        }
        ratios.push(rates[1] / rates[0]);
    }
    let db = open(Retention::bytes(RETENTION_BYTES))?;
    let rows = db.existing_keyspace("rows")?;
    let since = db.snapshot().timestamp();
    let meter = Meter::start(turn.folder);
    let commits = (turn.workload.data.rows / COMMIT_ROWS).max(1);
    for _ in 0..commits {
        draw.replace_many(&db, &rows)?;
    }
    db.sync()?;
    let begun = Instant::now();
    let (mut count, now) = (0, db.snapshot().timestamp());
    for commit in db.changes(since)?.until(now) {
        count += commit?.changes().count() as u64;
    }
    let elapsed = begun.elapsed().as_secs_f64();
    // A batch may have drawn a row twice.
    if count > commits * COMMIT_ROWS || count < commits * COMMIT_ROWS * 9 / 10 {
        return Err(format!("the feed has {count} rows of {}", commits * COMMIT_ROWS).into());
    }
    let mut figures = figures(count as f64 / elapsed, elapsed, meter.costs());
    let mut delays = histogram();
    let mut feed = db.changes(db.snapshot().timestamp())?;
    let durable = rows.with_durability(drumlin::Durability::Full);
    let (begun, mut number) = (Instant::now(), 0);
    while begun.elapsed() < part {
        number += 1;
        durable.insert(key(number % turn.workload.data.rows), b"a new value")?;
        let committed = Instant::now();
        feed.next().expect("it waits")?;
        record(&mut delays, committed.elapsed());
    }
    figures.kinds.push(("from a durable commit to its change".to_owned(), Latencies::of(&delays)));
    figures
        .more
        .insert("median ms from a durable commit to its change".to_owned(), delays.value_at_quantile(0.5) as f64 / 1e6);
    figures.more.insert("commits with a feed, of those without".to_owned(), median(&ratios));
    drop((feed, rows, durable));
    db.close()?;
    Ok(figures)
}
