//! Measures how much a held snapshot slows down writers, and how much writers slow down a scan of a snapshot.
//!
//! `scan` reads all rows of a snapshot, either alone or while two writers update random rows without pausing. The cases
//! alternate. The program prints the rates of each round and, at the end, the median rates relative to those of the
//! scan alone and of the writers alone. A third case scans a second database while the writers update the first: the
//! slowdown in this case is the cost of sharing the cores and the drive. Any further slowdown in the second case is the
//! cost of old versions.
//!
//! For each engine of the build, `hold` holds a snapshot while two writers update random rows. It prints the updates
//! per second without and with the snapshot, and the bytes on disk. At the end, it compares every row of the snapshot
//! with its version at the start.
//!
//! ```text
//! cargo run --release -p drumlin-bench [--features peers] --example held_snapshot -- scan [ROWS [ROUNDS]]
//! cargo run --release -p drumlin-bench [--features peers] --example held_snapshot -- hold [ROWS [SECONDS [ENGINE…]]]
//! ```
//!
//! Each engine has 64 MiB of memory and relaxed commits: with durable commits, the device's syncs would set the
//! writers' pace. The files are in the system's temporary directory.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drumlin_bench::engine::{Durability, Engine, HeldSnapshot, Order, Peer, Result, Row, Settings};
use drumlin_bench::engines;
use drumlin_bench::rows::{AllRows, Chooser, SEED, fill, key, version};

const VALUE_BYTES: usize = 100;
const WRITERS: u64 = 2;
const SETTINGS: Settings = Settings {
    memory_bytes: 64 << 20,
    durability: Durability::Relaxed,
    threads: 1 + WRITERS as usize,
    two_phases: false,
};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| arguments.get(index).map_or(Ok(default), |text| text.parse());
    match arguments.first().map(String::as_str) {
        Some("scan") => scan(number(1, 5_000_000)?, number(2, 3)?),
        Some("hold") => {
            let (rows, seconds) = (number(1, 1_000_000)?, number(2, 60)?);
            let named = arguments.iter().skip(3).map(|name| engines::named(name).ok_or(format!("no engine {name}")));
            let named = named.collect::<std::result::Result<Vec<Peer>, _>>()?;
            println!("{:10} {:>12} {:>12} {:>6}  files in MB: before, with, after", "engine", "alone/s", "held/s", "");
            for peer in if named.is_empty() { engines::all() } else { named } {
                hold(&peer, rows, Duration::from_secs(seconds))?;
            }
            Ok(())
        }
        _ => Err("which: scan or hold?".into()),
    }
}

/// Creates a database and loads rows into it.
fn load(peer: &Peer, folder: &Path, rows: u64) -> Result<Box<dyn Engine>> {
    let engine = (peer.open)(folder, &SETTINGS)?;
    engine.bulk_load(&mut AllRows::new(rows, VALUE_BYTES, Order::Sorted), Order::Sorted)?;
    engine.sync()?;
    engine.settle()?;
    Ok(engine)
}

/// Updates random rows until `stop` is set, and counts the updates.
fn write(engine: &dyn Engine, rows: u64, seed: u64, stop: &AtomicBool, count: &AtomicU64) -> Result<()> {
    let mut session = engine.session()?;
    let mut chooser = Chooser::new(SEED ^ seed, rows, None);
    let mut row: [Row; 1] = Default::default();
    while !stop.load(Ordering::Relaxed) {
        let number = chooser.draw();
        row[0] = (key(number), std::mem::take(&mut row[0].1));
        fill(&mut row[0].1, number, seed << 32 | count.load(Ordering::Relaxed), VALUE_BYTES);
        session.write(&row)?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs `body` while the writers update rows. Returns the result of `body` and the updates per second.
fn beside_writers<T>(engine: &dyn Engine, rows: u64, body: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    static TURN: AtomicU64 = AtomicU64::new(1);
    let stop = AtomicBool::new(false);
    let counts = [const { AtomicU64::new(0) }; WRITERS as usize];
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let writers: Vec<_> = counts
            .iter()
            .map(|count| {
                let (seed, stop) = (TURN.fetch_add(1, Ordering::Relaxed), &stop);
                scope.spawn(move || write(engine, rows, seed, stop, count))
            })
            .collect();
        let result = body();
        let updates: u64 = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let rate = updates as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().expect("a writer does not panic")?;
        }
        Ok((result?, rate))
    })
}

/// Returns the versions of all rows in a snapshot.
fn versions(snapshot: &mut dyn HeldSnapshot, rows: u64) -> Result<Vec<u64>> {
    let mut versions = Vec::with_capacity(usize::try_from(rows)?);
    let mut is_right = true;
    snapshot.scan(&mut |found, value| {
        let number = versions.len() as u64;
        let version = version(value, number, VALUE_BYTES);
        is_right &= found == key(number) && version.is_some();
        versions.push(version.unwrap_or_default());
    })?;
    if is_right && versions.len() as u64 == rows {
        return Ok(versions);
    }
    Err(format!("the snapshot has {} rows of {rows}, or others", versions.len()).into())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures, in alternation, a scan alone, a scan with writers, a scan of a second database while writers update the
/// first, and the writers alone.
fn scan(rows: u64, rounds: u64) -> Result<()> {
    let drumlin = engines::named("drumlin").ok_or("Drumlin is built in")?;
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    let updated = &*load(&drumlin, folders[0].path(), rows)?;
    let other = &*load(&drumlin, folders[1].path(), rows)?;
    let scan = |engine: &dyn Engine| -> Result<f64> {
        let mut snapshot = engine.hold()?.ok_or("it has snapshots")?;
        let begun = Instant::now();
        versions(&mut *snapshot, rows)?;
        Ok(rows as f64 / begun.elapsed().as_secs_f64())
    };
    let pause = || {
        std::thread::sleep(Duration::from_secs(5));
        Ok(0.0)
    };
    // The scan's rows per second and the writers' updates per second, for each case.
    let mut rounds_of_cases = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        let round = [
            (scan(updated)?, 0.0),
            beside_writers(updated, rows, || scan(updated))?,
            beside_writers(updated, rows, || scan(other))?,
            beside_writers(updated, rows, pause)?,
        ];
        for (rates, (scanned, updates)) in rounds_of_cases.iter_mut().zip(round) {
            println!("{scanned:12.0} rows/s {updates:10.0} updates/s");
            rates.push((scanned, updates));
        }
    }
    let [scan_alone, together, apart, writers_alone] = rounds_of_cases.map(|rates| {
        let (scanned, updates) = rates.into_iter().unzip();
        (median(scanned), median(updates))
    });
    for (case, (scanned, updates)) in [("the same database", together), ("another database", apart)] {
        let (scanned, updates) = (scanned / scan_alone.0, updates / writers_alone.1);
        println!("scan of {case}: {scanned:.2} of its rate alone; writers: {updates:.2} of theirs");
    }
    Ok(())
}

/// Returns the number of bytes that the files of a folder occupy on disk.
fn disk_bytes(folder: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path())?,
            Ok(metadata) => metadata.blocks() * 512,
            // The engine removed this file after the directory was listed.
            Err(_) => 0,
        };
    }
    Ok(bytes)
}

/// Measures the rate of updates for `duration` without a held snapshot, and then with one. At the end, compares the
/// snapshot's rows with those that it had at the start.
fn hold(peer: &Peer, rows: u64, duration: Duration) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let engine = load(peer, folder.path(), rows)?;
    let engine = &*engine;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let sleep = || {
        std::thread::sleep(duration);
        Ok(())
    };
    let Some(first) = engine.hold()? else { return Ok(()) };
    drop(first);
    let ((), alone) = beside_writers(engine, rows, sleep)?;
    let before = disk_bytes(folder.path())?;
    let mut snapshot = engine.hold()?.ok_or("it had one")?;
    let then = versions(&mut *snapshot, rows)?;
    let ((), held) = beside_writers(engine, rows, sleep)?;
    let with = disk_bytes(folder.path())?;
    let outcome = match versions(&mut *snapshot, rows) {
        Ok(now) if now == then => "right to the last row".to_owned(),
        Ok(_) => "WRONG ROWS".to_owned(),
        Err(error) => format!("ended: {error}"),
    };
    drop(snapshot);
    beside_writers(engine, rows, || {
        std::thread::sleep(Duration::from_secs(5));
        Ok(())
    })?;
    let after = disk_bytes(folder.path())?;
    println!(
        "{:10} {alone:12.0} {held:12.0} {:6.2}  {:.0}, {:.0}, {:.0}; {outcome}",
        peer.name,
        held / alone,
        mb(before),
        mb(with),
        mb(after)
    );
    Ok(())
}
