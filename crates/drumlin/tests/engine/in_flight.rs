//! A read is in flight while the page or value that it reads is moved, replaced or dropped and its space reused. The
//! reader gets the old row or the current one, and never an error caused by concurrent writes.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use drumlin::{Database, Durability, Error, Keyspace, Result, Value};
use drumlin_io::Backend;
use drumlin_io::testing::fault::{FaultyBackend, Operation};
use support::{Random, small};

const ROWS: u64 = 4000;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn write(rows: &Keyspace, number: u64, seed: u64, bytes: usize) {
    rows.insert_with(key(number), Random(seed ^ number << 8).bytes(bytes), Durability::Relaxed).unwrap();
}

/// Returns a database that was just opened, with its rows on disk, on a backend that can hold reads.
fn opened() -> (FaultyBackend, Database, Keyspace) {
    let backend = FaultyBackend::new(drumlin_io::in_memory());
    let shared: Arc<dyn Backend> = Arc::new(backend.clone());
    let config = small().backend(shared);
    let db = config.open("/db").unwrap();
    let rows = db.keyspace("rows").unwrap();
    for number in 0..ROWS {
        write(&rows, number, 0, 200);
    }
    write(&rows, ROWS, 0, 300_000);
    drop(rows);
    db.close().unwrap();
    let db = config.open("/db").unwrap();
    let rows = db.existing_keyspace("rows").unwrap();
    (backend, db, rows)
}

/// A function that reads a row.
type Get = fn(&Keyspace, u64) -> Result<Option<Value>>;

const APIS: [(&str, Get); 3] = [
    ("blocking", |rows, number| rows.get(key(number))),
    ("many", |rows, number| rows.get_many(&[key(number), key(number)]).map(|found| found[0].clone())),
    ("a task", |rows, number| smol::block_on(rows.get_async(key(number)))),
];

/// Reads a row on a different thread, holds that read while `meanwhile` runs, then releases it.
fn read_during(
    backend: &FaultyBackend,
    rows: &Keyspace,
    number: u64,
    get: Get,
    meanwhile: impl FnOnce(),
) -> Result<Option<Value>> {
    std::thread::scope(|scope| {
        backend.hold_nth(Operation::Read, 1);
        let reader = scope.spawn(|| get(rows, number));
        assert!(backend.wait_for_held(Duration::from_secs(20)), "the row is on disk");
        meanwhile();
        backend.release();
        reader.join().unwrap()
    })
}

/// Rewrites all rows several times, so that free space is overwritten.
fn churn(db: &Database, rows: &Keyspace, numbers: &(impl Iterator<Item = u64> + Clone)) {
    for round in 1..5 {
        numbers.clone().for_each(|number| write(rows, number, round, 200));
        db.checkpoint().unwrap();
        db.compact().unwrap();
    }
}

/// Reading a page succeeds while everything around it is rewritten and moved, and the neighbouring segments are reused.
#[test]
fn a_page_around_which_everything_moves() {
    for (api, get) in APIS {
        let (backend, db, rows) = opened();
        // The inner nodes above the page are in memory, but the page is not.
        let number = ROWS / 2;
        rows.get(key(number - 20)).unwrap();
        let others = (0..number - 20).chain(number + 20..ROWS);
        let found = read_during(&backend, &rows, number, get, || churn(&db, &rows, &others));
        assert!(found.unwrap().unwrap()[..] == Random(number << 8).bytes(200), "{api}");
        assert!(db.check().unwrap().corruption.is_empty(), "{api}");
    }
}

/// Reading a value succeeds while it is replaced or removed, and its extents are overwritten.
#[test]
fn a_value_that_is_replaced() {
    for (api, get) in APIS {
        for replaced in [true, false] {
            let (backend, db, rows) = opened();
            // The leaf with the value's reference is in memory.
            assert!(rows.contains_key(key(ROWS)).unwrap());
            let found = read_during(&backend, &rows, ROWS, get, || {
                if replaced {
                    write(&rows, ROWS, 9, 290_000);
                } else {
                    rows.remove(key(ROWS)).unwrap();
                }
                churn(&db, &rows, &(0..ROWS));
            });
            let found = found.unwrap_or_else(|error| panic!("{api}: {error}"));
            let expected = [Random(ROWS << 8).bytes(300_000), Random(9 ^ ROWS << 8).bytes(290_000)];
            match (found, replaced) {
                // The read returns either the current value or the value from when it began.
                (Some(found), true) => assert!(expected.iter().any(|value| value[..] == found[..]), "{api}"),
                (Some(found), false) => assert!(expected[0][..] == found[..], "{api}"),
                (None, false) => {}
                (None, true) => panic!("{api}: the row was there all the time"),
            }
            assert!(db.check().unwrap().corruption.is_empty(), "{api}");
        }
    }
}

/// Reading a row while its keyspace is dropped and a new keyspace reuses the space returns the row, no row, or the
/// error for a dropped keyspace.
#[test]
fn a_keyspace_that_is_dropped() {
    for (api, get) in APIS {
        for number in [ROWS / 2, ROWS] {
            let (backend, db, rows) = opened();
            let leaf = if number == ROWS { number } else { number - 20 };
            assert!(rows.contains_key(key(leaf)).unwrap());
            let found = read_during(&backend, &rows, number, get, || {
                db.drop_keyspace("rows").unwrap();
                let others = db.keyspace("others").unwrap();
                churn(&db, &others, &(0..ROWS));
            });
            match found {
                Err(Error::KeyspaceDropped { .. }) | Ok(None) => {}
                Ok(Some(value)) => {
                    let bytes = if number == ROWS { 300_000 } else { 200 };
                    assert!(value[..] == Random(number << 8).bytes(bytes), "{api}, row {number}");
                }
                Err(error) => panic!("{api}, row {number}: {error}"),
            }
            assert!(db.check().unwrap().corruption.is_empty(), "{api}");
        }
    }
}
