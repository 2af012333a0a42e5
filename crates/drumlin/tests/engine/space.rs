//! Disk space of rows: replacing rows needs no additional space, removing rows frees their space, and sparse segments
//! are emptied.

use crate::support;

use drumlin::{Config, Database, Durability};
use drumlin_io::in_memory;
use drumlin_io::testing::sim::{Disk, Medium};
use support::Random;

const ROWS: u64 = 20_000;

fn key(row: u64) -> [u8; 8] {
    row.to_be_bytes()
}

fn value(row: u64, round: u8) -> Vec<u8> {
    [&key(row)[..], &[round; 92]].concat()
}

fn page_count(db: &Database) -> u64 {
    db.keyspaces()[0].page_count
}

/// Replacing many rows of each leaf by rows of the same length, in one transaction, splits no leaf. Neither does
/// replaying the commit after a power cut.
#[test]
fn rows_that_replace_others_split_no_leaf() {
    let config = |disk: &Disk| Config::new().memory(16 << 20).checkpoint_log_bytes(64 << 20).backend(disk.backend());
    let disk = Disk::new(Medium::default(), 1);
    let db = config(&disk).open("/db").unwrap();
    let mut load = db.bulk_load("k").unwrap();
    (0..ROWS).for_each(|row| load.insert(key(row), value(row, 0)).unwrap());
    load.finish().unwrap();
    db.checkpoint().unwrap();
    let pages = page_count(&db);
    let k = db.keyspace("k").unwrap();
    for part in 0..ROWS / 1000 {
        let mut batch = db.batch().unwrap();
        (0..1000).map(|row| part * 1000 + row).for_each(|row| batch.insert(&k, key(row), value(row, 1)).unwrap());
        batch.commit().unwrap();
    }
    assert_eq!(page_count(&db), pages, "after transactions of 1,000 rows");
    let mut random = Random(5);
    for _ in 0..20 {
        let mut batch = db.batch().unwrap();
        for _ in 0..500 {
            let row = random.below(ROWS);
            batch.insert(&k, key(row), value(row, 2)).unwrap();
        }
        batch.commit().unwrap();
    }
    disk.turn_off();
    drop((k, db));
    let db = config(&Disk::new(disk.medium(), 2)).open("/db").unwrap();
    assert_eq!(page_count(&db), pages, "after a power cut");
    let k = db.keyspace("k").unwrap();
    assert_eq!(k.iter().filter(|row| row.as_ref().unwrap().1[99] > 0).count() as u64, ROWS);
}

/// Large incompressible values can be moved with the smallest budget, even if they were written with a larger one.
#[test]
fn values_are_moved_in_little_memory() {
    let noise = |seed: u64| Random(seed).bytes(1 << 20);
    for (written, opened) in [(8 << 20, 8 << 20), (15 << 20, 15 << 20), (256 << 20, 8 << 20)] {
        let backend = in_memory();
        let config = |memory| Config::new().memory(memory).backend(backend.clone());
        let db = config(written).open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        (0..8).for_each(|row| k.insert(key(row), noise(row)).unwrap());
        drop(k);
        db.close().unwrap();
        let db = config(opened).open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        (0..8).filter(|row| *row != 5).for_each(|row| k.remove(key(row)).unwrap());
        let report = db.compact().unwrap();
        assert!(report.bytes_after + (4 << 20) < report.bytes_before, "{report:?}");
        assert!(k.get(key(5)).unwrap().unwrap()[..] == noise(5)[..]);
        assert!(db.check().unwrap().corruption.is_empty());
    }
}

/// A checkpoint frees values that were removed, unless a reader needs them.
#[test]
fn a_checkpoint_frees_values_that_were_removed() {
    let db = Config::in_memory().memory(64 << 20).open("").unwrap();
    let k = db.keyspace("k").unwrap().with_durability(Durability::Relaxed);
    (0..20).for_each(|row| k.insert(key(row), Random(row).bytes(300_000)).unwrap());
    let snapshot = db.snapshot();
    (0..19).for_each(|row| k.remove(key(row)).unwrap());
    db.sync().unwrap();
    db.checkpoint().unwrap();
    assert!(db.stats().live_bytes > 20 * 300_000, "a snapshot reads values that were freed");
    assert_eq!(snapshot.get(&k, key(3)).unwrap().unwrap()[..], Random(3).bytes(300_000)[..]);
    drop(snapshot);
    db.checkpoint().unwrap();
    assert!(db.stats().live_bytes < 2 * 300_000, "{} bytes live of one value", db.stats().live_bytes);
}
