//! Warm start: pages that were in memory when a database was closed are read back into memory after it is reopened,
//! without any request for them. Correctness does not depend on it.

use crate::support;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use drumlin::{Config, Database, Stats};
use support::{Folder, Random, copy_folder};

const ROWS: u64 = 4000;

fn config() -> Config {
    Config::new().memory(32 << 20).log_segment_bytes(1 << 20)
}

/// Returns a value; every eighth value has an extent of its own.
fn value(number: u64) -> Vec<u8> {
    let mut random = Random(number);
    let length = if number.is_multiple_of(8) { 3000 } else { 150 };
    (0..length).map(|_| random.below(256) as u8).collect()
}

fn fill(folder: &Folder, config: &Config, rows: u64) {
    let db = config.open(folder.path()).unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    for first in (0..rows).step_by(100) {
        let mut batch = db.batch().unwrap();
        (first..first + 100).for_each(|number| batch.insert(&keyspace, number.to_be_bytes(), value(number)).unwrap());
        batch.commit().unwrap();
    }
    db.close().unwrap();
}

fn assert_rows(db: &Database, rows: u64) {
    let keyspace = db.existing_keyspace("rows").unwrap();
    for number in 0..rows {
        assert!(keyspace.get(number.to_be_bytes()).unwrap().is_some_and(|found| found[..] == value(number)[..]));
    }
}

/// Waits until the list has been read to its end, and returns the statistics.
fn warmed(db: &Database) -> Stats {
    let began = Instant::now();
    loop {
        let stats = db.stats();
        if !stats.is_warming {
            return stats;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "reading the list does not end");
        std::thread::yield_now();
    }
}

fn list(folder: &Folder) -> PathBuf {
    folder.path().join("resident")
}

/// After closing and reopening, any number of times, rows that were in memory need no read. This includes rows with
/// medium values.
#[test]
fn rows_that_were_in_memory_cost_no_read() {
    let folder = Folder::new();
    fill(&folder, &config(), ROWS);
    // Values with extents of their own are cached when they are read.
    let db = config().open(folder.path()).unwrap();
    assert_rows(&db, ROWS);
    // The list is rewritten only after it has been read to its end.
    warmed(&db);
    db.close().unwrap();
    let written = fs::read(list(&folder)).unwrap();
    for _ in 0..3 {
        let db = config().open(folder.path()).unwrap();
        let before = warmed(&db);
        assert!(before.pages_warmed > 500 && before.page_misses == 0, "{before:?}");
        assert_rows(&db, ROWS);
        let after = db.stats();
        assert_eq!((after.device_reads, after.page_misses), (before.device_reads, 0));
        db.close().unwrap();
        assert_eq!(fs::read(list(&folder)).unwrap(), written, "nothing has changed");
    }
}

/// Without warm start, only requested pages are read, and the list is left unchanged.
#[test]
fn switched_off_it_reads_nothing() {
    let folder = Folder::new();
    fill(&folder, &config().warm_start(false), ROWS);
    assert!(!list(&folder).exists());
    let db = config().open(folder.path()).unwrap();
    assert_rows(&db, ROWS);
    db.close().unwrap();
    let written = fs::read(list(&folder)).unwrap();
    let db = config().warm_start(false).open(folder.path()).unwrap();
    assert!(!db.stats().is_warming);
    assert_rows(&db, ROWS);
    assert_eq!(db.stats().pages_warmed, 0);
    db.close().unwrap();
    let reader = config().read_only(true).open(folder.path()).unwrap();
    assert_eq!(warmed(&reader).pages_warmed, 0);
    assert_rows(&reader, ROWS);
    reader.close().unwrap();
    assert_eq!(fs::read(list(&folder)).unwrap(), written);
}

/// A list that is damaged, truncated, foreign or not a file causes no errors.
#[test]
fn a_damaged_list_harms_nothing() {
    let (folder, other) = (Folder::new(), Folder::new());
    fill(&folder, &config(), ROWS);
    fill(&other, &config(), 2 * ROWS);
    let sound = fs::read(list(&folder)).unwrap();
    let mut random = Random(5);
    for round in 0..8 {
        let mut bytes = sound.clone();
        match round {
            0 => bytes.clear(),
            1 => bytes.truncate(sound.len() / 2 + 77),
            2 => bytes.fill(0),
            3 => bytes = fs::read(list(&other)).unwrap(),
            4 => {}
            _ => (0..round * 10).for_each(|_| {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }),
        }
        fs::write(list(&folder), &bytes).unwrap();
        if round == 4 {
            fs::remove_file(list(&folder)).unwrap();
            fs::create_dir(list(&folder)).unwrap();
        }
        let db = config().open(folder.path()).unwrap();
        let stats = warmed(&db);
        assert!(stats.pages_warmed == 0 || round > 4 || round == 1, "{round}: {stats:?}");
        assert_rows(&db, ROWS);
        assert!(db.check().unwrap().corruption.is_empty());
        db.close().unwrap();
        if round == 4 {
            fs::remove_dir(list(&folder)).unwrap();
        }
    }
}

/// An outdated list, whose pages have moved, have been replaced, or are gone, causes no errors.
#[test]
fn a_list_of_another_state_harms_nothing() {
    let folder = Folder::new();
    fill(&folder, &config(), ROWS);
    let old = fs::read(list(&folder)).unwrap();
    let db = config().open(folder.path()).unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    keyspace.remove_range(1000u64.to_be_bytes()..).unwrap();
    let large = db.keyspace("large").unwrap();
    for number in 0..20u64 {
        large.insert(number.to_be_bytes(), vec![number as u8; 300_000]).unwrap();
        keyspace.insert((5000 + number).to_be_bytes(), vec![number as u8; 5000 + 700 * number as usize]).unwrap();
    }
    db.drop_keyspace("large").unwrap();
    db.checkpoint().unwrap();
    db.compact().unwrap();
    db.close().unwrap();
    drop((keyspace, large));
    fs::write(list(&folder), &old).unwrap();
    let db = config().open(folder.path()).unwrap();
    warmed(&db);
    assert_rows(&db, 1000);
    let keyspace = db.existing_keyspace("rows").unwrap();
    for number in 0..20u64 {
        let found = keyspace.get((5000 + number).to_be_bytes()).unwrap().unwrap();
        assert_eq!(found[..], vec![number as u8; 5000 + 700 * number as usize][..]);
    }
    assert!(db.check().unwrap().corruption.is_empty());
    db.close().unwrap();
}

/// If the data exceeds the memory and the second opening has a smaller budget, that opening stays within its budget,
/// and evicts no page to make room for a page on the list.
#[test]
fn the_budget_is_kept() {
    let folder = Folder::new();
    let rows = 10 * ROWS;
    fill(&folder, &config().memory(64 << 20), rows);
    for memory_bytes in [8 << 20, 12 << 20, 8 << 20] {
        let db = config().memory(memory_bytes).open(folder.path()).unwrap();
        let stats = warmed(&db);
        assert!(stats.pages_warmed > 300, "{stats:?}");
        assert!(stats.memory_used_bytes <= memory_bytes && stats.page_misses == 0, "{stats:?}");
        assert!(stats.frame_bytes >= stats.pages_warmed * 4096, "a page was evicted: {stats:?}");
        assert_rows(&db, rows);
        assert!(db.stats().memory_used_bytes <= memory_bytes);
        db.close().unwrap();
    }
}

/// Closing stops the reading of the list immediately. The part read so far does not replace the list.
#[test]
fn closing_amid_warming_keeps_the_list() {
    let folder = Folder::new();
    fill(&folder, &config(), ROWS);
    let written = fs::read(list(&folder)).unwrap();
    for _ in 0..10 {
        let db = config().open(folder.path()).unwrap();
        db.keyspace("rows").unwrap().get(7u64.to_be_bytes()).unwrap();
        let began = Instant::now();
        db.close().unwrap();
        assert!(began.elapsed() < Duration::from_secs(30));
        assert_eq!(fs::read(list(&folder)).unwrap(), written);
    }
    let db = config().open(folder.path()).unwrap();
    assert!(warmed(&db).pages_warmed > 100);
}

/// After a kill, the list is the one written by the last checkpoint.
#[test]
fn a_checkpoint_writes_the_list() {
    let folder = Folder::new();
    let config = config().checkpoint_log_bytes(1 << 20);
    let db = config.open(folder.path()).unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    let began = Instant::now();
    let mut rows = 0;
    while !list(&folder).exists() {
        keyspace.insert(u64::to_be_bytes(rows), value(rows)).unwrap();
        rows += 1;
        assert!(began.elapsed() < Duration::from_secs(60), "no list is written");
    }
    let killed = Folder::new();
    copy_folder(&folder.path(), &killed.path());
    drop(db);
    let db = config.open(killed.path()).unwrap();
    warmed(&db);
    let committed = db.existing_keyspace("rows").unwrap().count(..).unwrap();
    assert!(committed > 0 && committed <= rows);
    assert_rows(&db, committed);
}
