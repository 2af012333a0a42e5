//! What keeps a database open, and how it ends.

mod support;

use std::future::Future;
use std::io::Read;
use std::task::{Context, Waker};
use std::time::Duration;

use drumlin::io::fault::{EIO, Operation};
use drumlin::{Config, Database, Durability, Error, Isolation, Keyspace, Transaction, TxOptions};
use smol::block_on;

/// Rows and a large value on a disk of its own, of which nothing is in memory.
fn opened() -> (Config, Database, Keyspace) {
    let config = support::small().backend(drumlin::io::in_memory());
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    for row in 0..4000u32 {
        k.insert_with(row.to_be_bytes(), [7; 60], Durability::Relaxed).unwrap();
    }
    k.insert("large", vec![7; 300_000]).unwrap();
    drop((db, k));
    let db = config.open("/db").unwrap();
    let k = db.existing_keyspace("k").unwrap();
    (config, db, k)
}

/// A range and a reader of a value are handles like others: they go on when all others have gone, also as tasks, and when
/// they have gone too, the folder is free.
#[test]
fn readers_keep_the_database_open() {
    let (config, db, k) = opened();
    let (mut range, mut task_range) = (k.iter(), k.iter());
    let mut reader = k.read("large").unwrap().unwrap();
    let mut task_reader = block_on(k.read_async("large")).unwrap().unwrap();
    drop((db, k));
    let mut count = 0;
    while let Some(row) = block_on(task_range.next_async()) {
        row.unwrap();
        count += 1;
    }
    assert_eq!(count, 4001);
    drop(task_range);
    assert_eq!(range.by_ref().map(Result::unwrap).collect::<Vec<_>>().len(), 4001);
    assert!(matches!(config.open("/db"), Err(Error::Locked { .. })), "it is open");
    drop(range);
    let mut value = Vec::new();
    reader.read_to_end(&mut value).unwrap();
    assert!(value == [7; 300_000]);
    drop(reader);
    let mut value = Vec::new();
    block_on(smol::io::AsyncReadExt::read_to_end(&mut task_reader, &mut value)).unwrap();
    assert!(value == [7; 300_000]);
    drop(task_reader);
    config.open("/db").unwrap();
}

/// A range ends with its first error, from either end: rows that it has fetched from the other do not follow.
#[test]
fn a_range_ends_with_its_first_error() {
    for forward in [true, false] {
        let (_, db, k) = opened();
        let mut range = k.iter();
        // Of both ends' leaves rows are left when the keyspace goes.
        range.next().unwrap().unwrap();
        range.next_back().unwrap().unwrap();
        db.drop_keyspace("k").unwrap();
        let error = std::iter::from_fn(|| if forward { range.next() } else { range.next_back() }).find_map(Result::err);
        assert!(matches!(error, Some(Error::KeyspaceDropped { .. })), "{error:?}");
        assert!(range.next().is_none() && range.next_back().is_none());
        assert!(block_on(range.next_async()).is_none() && block_on(range.next_back_async()).is_none());
    }
}

/// Of two who close a database at once both get the same answer, also where closing fails, and nothing committed is lost.
#[test]
fn closing_twice_has_one_answer() {
    for fails in [false, true] {
        let (disk, config) = support::faulty();
        let db = config.open("/db").unwrap();
        db.keyspace("k").unwrap().insert("a", "1").unwrap();
        if fails {
            disk.fail_from(Operation::Write, 1, EIO);
        }
        let (first, second) = (db.clone(), db);
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| first.close());
            (second.close(), first.join().unwrap())
        });
        assert!(first.is_err() == second.is_err() && (fails || first.is_ok()), "{first:?}, {second:?}");
        disk.heal();
        assert_eq!(config.open("/db").unwrap().keyspace("k").unwrap().get("a").unwrap().unwrap(), b"1");
    }
}

/// A path that names no folder is refused, and leaves nothing where the process is; in memory the path does not matter.
#[test]
fn an_empty_path_is_refused() {
    let before = std::fs::read_dir(".").unwrap().count();
    for error in [Database::open("").err(), block_on(Database::open_async("")).err(), support::small().open("").err()] {
        assert!(matches!(&error, Some(Error::Invalid(why)) if why.contains("empty path")), "{error:?}");
    }
    assert_eq!(std::fs::read_dir(".").unwrap().count(), before);
    Config::in_memory().open("").unwrap();
}

/// A budget that no address space has is refused at once, however large it is.
#[test]
fn a_budget_beyond_all_memory_is_refused() {
    for bytes in [u64::MAX, u64::MAX / 2, 1 << 50, (1 << 40) + 1] {
        let error = Config::in_memory().memory(bytes).open("").err();
        assert!(matches!(&error, Some(Error::Invalid(why)) if why.contains("1 TiB")), "{error:?}");
    }
}

/// Waiting for a row without a limit is possible, for threads and tasks.
#[test]
fn rows_are_waited_for_without_a_limit() {
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    let options =
        TxOptions { isolation: Isolation::ReadCommitted, lock_timeout: Duration::MAX, ..TxOptions::default() };
    for is_task in [false, true] {
        let mut holder = db.begin().unwrap();
        holder.insert(&k, "row", "1").unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut tx = db.begin_with(options).unwrap();
                match is_task {
                    false => tx.insert(&k, "row", "2"),
                    true => block_on(tx.insert_async(&k, "row", "2")),
                }
                .unwrap();
                tx.commit().unwrap();
            });
            std::thread::sleep(Duration::from_millis(20));
            holder.commit().unwrap();
            waiter.join().unwrap();
        });
        assert_eq!(k.get("row").unwrap().unwrap(), b"2");
    }
}

/// A future that waits for a row and is leaked keeps its transaction from nothing, and others from the row no longer than the
/// transaction lives.
#[test]
fn a_leaked_wait_ends_with_its_transaction() {
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    let leak = |tx: &mut Transaction, key: &str| {
        let mut wait = Box::pin(tx.get_for_update_async(&k, key));
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        std::mem::forget(wait);
    };
    for uses_it in [false, true] {
        let mut holder = db.begin().unwrap();
        holder.get_for_update(&k, "a").unwrap();
        holder.get_for_update(&k, "b").unwrap();
        let mut tx = db.begin().unwrap();
        leak(&mut tx, "a");
        if uses_it {
            leak(&mut tx, "b");
        }
        drop(holder);
        if uses_it {
            tx.get_for_update(&k, "a").unwrap();
            tx.get_for_update(&k, "b").unwrap();
        }
        drop(tx);
        for key in ["a", "b"] {
            let mut next = db.begin_with(TxOptions { lock_timeout: Duration::ZERO, ..TxOptions::default() }).unwrap();
            next.get_for_update(&k, key).unwrap();
        }
    }
}

/// A leaked future of a write keeps its transaction's database from nothing: the folder is free when the handles have gone.
#[test]
fn a_leaked_write_keeps_no_database_open() {
    let config = support::small().backend(drumlin::io::in_memory());
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    let mut holder = db.begin().unwrap();
    holder.get_for_update(&k, "a").unwrap();
    let mut tx = db.begin().unwrap();
    let mut wait = Box::pin(tx.insert_async(&k, "a", "1"));
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    std::mem::forget(wait);
    drop((tx, holder, k, db));
    config.open("/db").unwrap();
}
