//! Reading many rows needs few disk reads: one per leaf if rows have an ordinary size, and one for many neighbouring
//! values if they are longer.

use std::sync::Arc;

use drumlin::{Config, Database, Durability, Keyspace};
use drumlin_io::Backend;

use crate::support::Random;

const ROWS: u32 = 2_000;

fn value(number: u32, length: usize) -> Vec<u8> {
    Random(u64::from(number) + 1).bytes(length)
}

/// Returns a database with rows of this length, inserted in key order. It has been closed and reopened without warm
/// start, so none of its pages are in memory.
fn stage(length: usize) -> (Database, Keyspace) {
    let backend: Arc<dyn Backend> = drumlin_io::in_memory();
    let open = || {
        let db = Config::new().memory(32 << 20).warm_start(false).backend(Arc::clone(&backend)).open("/db").unwrap();
        let keyspace = db.keyspace("rows").unwrap();
        (db, keyspace)
    };
    let (db, keyspace) = open();
    for number in 0..ROWS {
        keyspace.insert_with(number.to_be_bytes(), value(number, length), Durability::Relaxed).unwrap();
    }
    drop(keyspace);
    db.close().unwrap();
    open()
}

/// Returns the number of disk reads that `body` makes.
fn reads_of(db: &Database, body: impl FnOnce()) -> u64 {
    let before = db.stats().device_reads;
    body();
    db.stats().device_reads - before
}

/// `get_many`, and a range from either end, read values stored outside of their leaves together if these values are
/// adjacent on disk.
#[test]
fn values_outside_of_leaves_are_read_together() {
    let numbers = 500..756u32;
    let keys: Vec<_> = numbers.clone().map(u32::to_be_bytes).collect();
    let range = keys[0]..=keys[keys.len() - 1];
    let check = |number: u32, found: &[u8]| assert!(found == value(number, 3_000), "row {number}");

    let (db, keyspace) = stage(3_000);
    let reads = reads_of(&db, || {
        let found = keyspace.get_many(&keys).unwrap();
        numbers.clone().zip(found).for_each(|(number, found)| check(number, &found.unwrap()));
    });
    assert!(reads < 64, "{reads} reads of 256 values");

    let (db, keyspace) = stage(3_000);
    let reads = reads_of(&db, || {
        let rows = keyspace.range(range.clone());
        numbers.clone().zip(rows).for_each(|(number, row)| check(number, &row.unwrap().1));
    });
    assert!(reads < 64, "{reads} reads of 256 values");

    let (db, keyspace) = stage(3_000);
    let reads = reads_of(&db, || {
        let rows = keyspace.range(range.clone()).rev();
        numbers.clone().rev().zip(rows).for_each(|(number, row)| check(number, &row.unwrap().1));
    });
    assert!(reads < 64, "{reads} reads of 256 values");

    let (db, keyspace) = stage(3_000);
    let reads = reads_of(&db, || {
        assert_eq!(keyspace.range(range.clone()).keys().count(), keys.len());
    });
    assert!(reads < 16, "{reads} reads for keys alone");

    let (db, keyspace) = stage(3_000);
    let reads = reads_of(&db, || {
        let found = smol::block_on(keyspace.get_many_async(&keys)).unwrap();
        numbers.clone().zip(found).for_each(|(number, found)| check(number, &found.unwrap()));
    });
    // Reads of tasks are not merged: there is one for each value, and no value is read twice.
    assert!(reads <= 300, "{reads} reads of 256 values");
}

/// A row of 1 KiB is stored in its leaf, and reading it needs one disk read if the inner nodes are in memory.
#[test]
fn a_row_of_one_kib_is_one_read() {
    let (db, keyspace) = stage(1_024);
    assert_eq!(keyspace.get(0u32.to_be_bytes()).unwrap().unwrap(), value(0, 1_024));
    let reads = reads_of(&db, || {
        for number in (100..ROWS).step_by(100) {
            assert_eq!(keyspace.get(number.to_be_bytes()).unwrap().unwrap(), value(number, 1_024));
        }
    });
    // Inner nodes of the lowest level have over a hundred leaves each.
    assert!(reads <= 19 + 12, "{reads} reads of 19 rows");
}
