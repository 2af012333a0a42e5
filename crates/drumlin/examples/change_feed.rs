//! Follows the change feed while another thread commits, and measures it: rows told per second, the time from a durable
//! commit until a reader has it, and the cost for the writer.
//!
//! Run: `cargo run --release -p drumlin --example change_feed [ROWS]`

use std::time::{Duration, Instant};

use drumlin::{Change, Config, Database, Durability, Error, Retention, Timestamp};

/// The rows of one commit while rows per second are measured.
const BATCH: u64 = 1000;

fn main() -> Result<(), Error> {
    let rows: u64 = std::env::args().nth(1).map_or(2_000_000, |rows| rows.parse().expect("a number of rows"));
    let folder = std::env::temp_dir().join(format!("drumlin-change-feed-{}", std::process::id()));
    let kept = Retention::bytes(4 << 30);
    let settings =
        [("without a feed", Retention::none()), ("with a feed", kept), ("with old values", kept.with_old_values())];
    for (name, retention) in settings {
        let path = folder.join(name);
        let db = Config::new().memory(256 << 20).keep_changes(retention).open(&path)?;
        db.keyspace("rows")?;
        let began = Instant::now();
        write(&db, rows)?;
        let inserted = began.elapsed();
        let began = Instant::now();
        write(&db, rows)?;
        let replaced = began.elapsed();
        let began = Instant::now();
        let single_rows = rows / 10;
        write_single(&db, single_rows)?;
        let rate = |rows: u64, time: Duration| rows as f64 / time.as_secs_f64();
        println!(
            "{name:>15}: {:>9.0} rows/s inserted, {:>9.0} replaced, {:>9.0} replaced one by one",
            rate(rows, inserted),
            rate(rows, replaced),
            rate(single_rows, began.elapsed())
        );
        db.close()?;
    }
    // The same, with a reader at the same time, and then a reader of what is there.
    let path = folder.join("followed");
    let db = Config::new().memory(256 << 20).keep_changes(Retention::bytes(4 << 30)).open(&path)?;
    db.keyspace("rows")?;
    let since = db.snapshot().timestamp();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&db, rows));
        let told = read(&db, since, rows)?;
        println!("{:>15}: {:>9.0} rows/s written and told", "followed", told as f64 / began.elapsed().as_secs_f64());
        writer.join().expect("the writer does not panic")
    })?;
    let began = Instant::now();
    let told = read(&db, since, rows)?;
    println!("{:>15}: {:>9.0} rows/s told", "read again", told as f64 / began.elapsed().as_secs_f64());
    let mut delays = delays(&db)?;
    delays.sort_unstable();
    println!(
        "a reader has a commit after {:?} (median), {:?} (p99)",
        delays[delays.len() / 2],
        delays[delays.len() * 99 / 100]
    );
    db.close()?;
    std::fs::remove_dir_all(folder).expect("the folder can be removed");
    Ok(())
}

fn write(db: &Database, rows: u64) -> Result<(), Error> {
    let keyspace = db.keyspace("rows")?;
    for first in (0..rows).step_by(BATCH as usize) {
        let mut batch = db.batch()?;
        for row in first..first + BATCH {
            batch.insert(&keyspace, row.to_be_bytes(), [row as u8; 100])?;
        }
        batch.commit_with(Durability::Relaxed)?;
    }
    db.sync()
}

/// Replaces rows, each in a commit of its own.
fn write_single(db: &Database, rows: u64) -> Result<(), Error> {
    let keyspace = db.keyspace("rows")?.with_durability(Durability::Relaxed);
    for row in 0..rows {
        keyspace.insert(row.to_be_bytes(), [row as u8; 100])?;
    }
    db.sync()
}

/// Reads commits until they have told this many rows.
fn read(db: &Database, since: Timestamp, rows: u64) -> Result<u64, Error> {
    let mut told = 0;
    for commit in db.changes(since)? {
        let commit = commit?;
        told += commit.changes().filter(|change| matches!(change, Change::Put { .. })).count() as u64;
        if told >= rows {
            break;
        }
    }
    Ok(told)
}

/// Returns the times from when a commit returned until a reader had it.
fn delays(db: &Database) -> Result<Vec<Duration>, Error> {
    let keyspace = db.keyspace("rows")?;
    let mut changes = db.changes(db.snapshot().timestamp())?;
    let mut delays = Vec::new();
    for row in 0..1000u64 {
        keyspace.insert(row.to_be_bytes(), "changed")?;
        let committed = Instant::now();
        changes.next().expect("it waits")?;
        delays.push(committed.elapsed());
    }
    Ok(delays)
}
