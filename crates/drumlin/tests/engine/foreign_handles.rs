//! Handles of two databases, or of two openings of one database, are mixed up. A call with a foreign handle fails with
//! `Invalid` before it can fail with any other error, and both databases stay unchanged.

use crate::support;

use std::io::Read;

use drumlin::{
    Config, Database, Durability, Error, Isolation, Keyspace, LockMode, Recourse, Result, Snapshot, Transaction,
    TxOptions,
};
use smol::block_on;

const ROWS: u32 = 2000;

/// Returns a database whose rows contain its name. Most of the rows are not in memory.
fn database(name: &str) -> (Database, Keyspace) {
    let db = Config::in_memory().memory(8 << 20).page_bytes(512).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    for row in 0..ROWS {
        k.insert_with(row.to_be_bytes(), format!("{name} {row}"), Durability::Relaxed).unwrap();
    }
    k.insert("large", name.repeat(50_000)).unwrap();
    (db, k)
}

fn assert_sound((db, k): &(Database, Keyspace), name: &str) {
    for row in 0..ROWS {
        assert_eq!(k.get(row.to_be_bytes()).unwrap().unwrap(), format!("{name} {row}").as_bytes());
    }
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{:?}", report.corruption);
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>) {
    match result {
        Err(error @ Error::Invalid(_)) => {
            assert!(error.recourse() == Recourse::Change && error.to_string().contains("another database"), "{error}");
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[track_caller]
fn refused_rows(mut range: drumlin::Range) {
    refused(range.next().expect("an error comes first"));
    assert!(range.next().is_none() && range.next_back().is_none() && block_on(range.next_async()).is_none());
}

/// Makes every call of a snapshot that takes a keyspace.
fn ask_snapshot(snapshot: &Snapshot, k: &Keyspace) {
    for key in [&[0, 0, 0, 1][..], b"large", b"missing", &[7; 5000]] {
        refused(snapshot.get(k, key));
        refused(snapshot.contains_key(k, key));
        refused(snapshot.read(k, key));
        refused(block_on(snapshot.get_async(k, key)));
        refused(block_on(snapshot.contains_key_async(k, key)));
        refused(block_on(snapshot.read_async(k, key)));
    }
    refused(snapshot.first(k));
    refused(snapshot.is_empty(k));
    refused(snapshot.get_many(k, &["missing"]));
    refused(block_on(snapshot.last_async(k)));
    refused(snapshot.count(k, ..));
    refused(block_on(snapshot.count_async(k, ..)));
    refused_rows(snapshot.range(k, ..));
    refused_rows(snapshot.iter(k));
    refused_rows(snapshot.prefix(k, "l"));
}

/// A reader that a rejected call must not read from.
struct Untouched;

impl Read for Untouched {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        panic!("the reader was read");
    }
}

impl futures_io::AsyncRead for Untouched {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut [u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        panic!("the reader was read");
    }
}

/// Makes every call of a transaction that takes a keyspace.
fn ask_transaction(tx: &mut Transaction, k: &Keyspace) {
    for key in [&[0, 0, 0, 1][..], b"large", b"missing", &[7; 5000]] {
        refused(tx.get(k, key));
        refused(tx.read(k, key));
        refused(tx.get_for_update(k, key));
        refused(tx.get_for_share(k, key));
        refused(tx.lock_row(k, key, LockMode::Shared));
        refused(tx.try_lock_row(k, key, LockMode::Exclusive));
        refused(tx.remove(k, key));
        refused(tx.insert_from(k, key, Untouched));
        refused(block_on(tx.get_async(k, key)));
        refused(block_on(tx.read_async(k, key)));
        refused(block_on(tx.get_for_update_async(k, key)));
        refused(block_on(tx.get_for_share_async(k, key)));
        refused(block_on(tx.lock_row_async(k, key, LockMode::Shared)));
        refused(block_on(tx.try_lock_row_async(k, key, LockMode::Exclusive)));
        refused(block_on(tx.remove_async(k, key)));
        refused(block_on(tx.insert_from_async(k, key, Untouched)));
        for value in [vec![1], vec![1; 100_000], vec![1; 60_000]] {
            refused(tx.insert(k, key, &value));
            refused(block_on(tx.insert_async(k, key, &value)));
        }
    }
    refused(tx.first(k));
    refused(tx.contains_key(k, "missing"));
    refused(tx.get_many(k, &["missing"]));
    refused(block_on(tx.last_async(k)));
    refused(tx.count(k, ..));
    refused(block_on(tx.count_async(k, ..)));
    refused_rows(tx.range(k, ..));
    refused_rows(tx.iter(k));
    refused_rows(tx.prefix(k, "l"));
}

/// Every call with a keyspace of a different database is rejected, and both databases remain usable.
#[test]
fn keyspaces_of_another_database_are_refused() {
    let (first, second) = (database("first"), database("second"));
    let snapshot = first.0.snapshot();
    ask_snapshot(&snapshot, &second.1);
    for isolation in [Isolation::Snapshot, Isolation::Serializable, Isolation::ReadCommitted] {
        let options = TxOptions { isolation, ..TxOptions::default() };
        let mut tx = first.0.begin_with(options).unwrap();
        tx.insert(&first.1, "mine", "1").unwrap();
        ask_transaction(&mut tx, &second.1);
        tx.commit().unwrap();
        assert_eq!(first.1.get("mine").unwrap().unwrap(), b"1");
    }
    assert_eq!(second.0.stats().snapshots, 0);
    assert_sound(&first, "first");
    assert_sound(&second, "second");
}

/// A handle of a different database is rejected before the call can fail with any other error, even if the transaction
/// has no room for another row.
#[test]
fn handles_of_other_databases_are_refused_first() {
    let (first, second) = (database("first"), database("second"));
    let options = TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() };
    let mut tx = first.0.begin_with(options).unwrap();
    let full = (0u32..).find_map(|row| tx.insert(&first.1, row.to_be_bytes(), [0; 60_000]).err());
    assert!(matches!(full, Some(Error::TransactionTooLarge { .. })));
    ask_transaction(&mut tx, &second.1);
}

/// A savepoint of an earlier opening is rejected, although transactions of the next opening have the same numbers.
#[test]
fn savepoints_of_an_earlier_opening_are_refused() {
    let config = support::small().backend(drumlin_io::in_memory());
    let savepoint = |db: &Database| {
        let mut tx = db.begin().unwrap();
        let savepoint = tx.savepoint();
        tx.insert(&db.keyspace("k").unwrap(), "row", "1").unwrap();
        (tx, savepoint)
    };
    let (_, old) = savepoint(&config.open("/db").unwrap());
    let db = config.open("/db").unwrap();
    let (mut tx, new) = savepoint(&db);
    assert!(matches!(tx.rollback_to(old), Err(Error::Invalid(_))));
    tx.rollback_to(new).unwrap();
}

/// A savepoint of a different database's transaction undoes nothing, regardless of the transactions' numbers.
#[test]
fn savepoints_of_another_database_are_refused() {
    let (first, second) = (database("first"), database("second"));
    for _ in 0..3 {
        let mut tx = first.0.begin().unwrap();
        let mut other = second.0.begin().unwrap();
        let foreign = other.savepoint();
        tx.insert(&first.1, "a", "1").unwrap();
        assert!(matches!(tx.rollback_to(foreign), Err(Error::Invalid(_))));
        let mine = tx.savepoint();
        tx.insert(&first.1, "b", "2").unwrap();
        tx.rollback_to(mine).unwrap();
        assert_eq!(tx.get(&first.1, "a").unwrap().unwrap(), b"1");
        assert!(tx.get(&first.1, "b").unwrap().is_none());
        tx.commit().unwrap();
    }
}
