//! Closing a database that other threads are using: their calls end, and the folder can be reopened immediately.

use crate::support;

use std::future::Future;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use drumlin::{Config, Database, Durability, Error, Field, Isolation, Keyspace, Sum, TxOptions};
use drumlin_io::testing::fault::Operation;
use futures_util::StreamExt;
use smol::block_on;
use smol::io::AsyncReadExt;
use support::{BACKENDS, Folder, Random, small};

fn fill(db: &Database, rows: u32) -> Keyspace {
    let k = db.keyspace("k").unwrap();
    for row in 0..rows {
        k.insert_with(row.to_be_bytes(), [7; 60], Durability::Relaxed).unwrap();
    }
    k.insert("large", vec![7; 700_000]).unwrap();
    k
}

/// Returns the library's error that an `io::Error` wraps, or `None` for a success.
fn of_io<T>(result: std::io::Result<T>) -> Option<Error> {
    result.err().map(|error| error.into_inner().unwrap().downcast_ref::<Error>().unwrap().clone())
}

/// Calls through handles of each kind return `Closed` if the handle was created before the database was closed and its
/// folder reopened. No such handle keeps the folder locked.
#[test]
fn every_handle_ends_with_the_database() {
    for backend in BACKENDS {
        let folder = Folder::new();
        let config = small().io_backend(backend);
        let db = config.open(folder.path()).unwrap();
        let k = fill(&db, 4000);
        let k = &k;
        let tx = |key: &str| {
            let mut tx = db.begin().unwrap();
            tx.insert(k, key, "1").unwrap();
            tx
        };
        let serializable = TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() };
        let mut batch = db.batch().unwrap();
        batch.insert(k, "batched", "1").unwrap();
        let mut load = db.bulk_load("loaded").unwrap();
        load.insert("a", "1").unwrap();
        let mut idle_load = db.bulk_load("loaded too").unwrap();
        idle_load.insert("a", "1").unwrap();
        let (mut range, mut back, mut keys, mut values) = (k.iter(), k.iter(), k.iter().keys(), k.iter().values());
        let (mut readers, mut shown, mut task_range) = (k.iter().readers(), k.iter(), k.iter());
        let mut stream = k.iter().into_stream();
        assert!(range.next().is_some() && back.next_back().is_some() && keys.next().is_some());
        assert!(values.next().is_some() && readers.next().is_some() && block_on(task_range.next_async()).is_some());
        assert!(block_on(stream.next()).is_some());
        let mut reader = k.read("large").unwrap().unwrap();
        let mut task_reader = block_on(k.read_async("large")).unwrap().unwrap();
        reader.read_exact(&mut [0; 10]).unwrap();
        let (snapshot, clone) = (db.snapshot(), db.clone());
        let (mut writes, commits, mut locks) = (tx("written"), tx("committed"), tx("locked"));
        let mut reads = db.begin_with(serializable).unwrap();
        let mut savepoints = tx("saved");
        let savepoint = savepoints.savepoint();

        let again = db.clone();
        db.close().unwrap();
        let reopened = config.open(folder.path()).expect("the folder is free");

        let all = ControlFlow::<()>::Continue;
        let errors: Vec<(&str, Option<Error>)> = vec![
            ("get", k.get("large").err()),
            ("get_async", block_on(k.get_async("large")).err()),
            ("get_many", k.get_many(&["large"]).err()),
            ("contains_key", k.contains_key("large").err()),
            ("insert", k.insert("late", "1").err()),
            ("insert_async", block_on(k.insert_async("late", "1")).err()),
            ("insert_from", k.insert_from("late", &[7; 300_000][..]).err()),
            ("update", k.update("late", |_| Some("1")).err()),
            ("pop_first", k.pop_first().err()),
            ("count", k.count(..).err()),
            ("aggregate", k.aggregate(&Sum::of(Field::<u8>::big_endian(0)), ..).err()),
            ("remove_range", k.remove_range(..).err()),
            ("iter", k.iter().find_map(Result::err)),
            ("range", range.find_map(Result::err)),
            ("range from the back", back.rev().find_map(Result::err)),
            ("keys", keys.find_map(Result::err)),
            ("values", values.find_map(Result::err)),
            ("readers", readers.find_map(Result::err)),
            ("for_each_row", shown.for_each_row(|_, _| all(())).err()),
            (
                "next_async",
                block_on(async {
                    while let Some(row) = task_range.next_async().await {
                        row?;
                    }
                    Ok(())
                })
                .err(),
            ),
            (
                "stream",
                block_on(async {
                    while let Some(row) = stream.next().await {
                        row?;
                    }
                    Ok(())
                })
                .err(),
            ),
            ("read", of_io(reader.read_to_end(&mut Vec::new()))),
            ("read_async", of_io(block_on(task_reader.read_to_end(&mut Vec::new())))),
            ("snapshot", snapshot.get(k, "large").err()),
            ("snapshot's range", snapshot.iter(k).find_map(Result::err)),
            ("read of a transaction", writes.get(k, "large").err()),
            ("write of a transaction", writes.insert(k, "late", "1").err()),
            ("lock of a transaction", locks.get_for_update(k, "large").err()),
            ("commit", commits.commit().err()),
            ("commit of reads", {
                let read = reads.get(k, "large").err();
                let written = reads.insert(k, "late", "1").err();
                read.and(written)
            }),
            ("batch", batch.commit().err()),
            ("row of a load", load.insert("b", "1").err()),
            ("load", idle_load.finish().err()),
            ("begin", clone.begin().err()),
            ("transact", clone.transact(|tx| tx.insert(k, "late", "1")).err()),
            ("transact_async", block_on(clone.transact_async(|_| Box::pin(async { Ok(()) }))).err()),
            ("keyspace", clone.keyspace("k").err()),
            ("existing_keyspace", clone.existing_keyspace("k").err()),
            ("drop_keyspace", clone.drop_keyspace("k").err()),
            ("bulk_load", clone.bulk_load("others").err()),
            ("sync", clone.sync().err()),
            ("checkpoint", clone.checkpoint().err()),
            ("checkpoint_async", block_on(clone.checkpoint_async()).err()),
            ("compact", clone.compact().err()),
            ("check", clone.check().err()),
        ];
        for (call, error) in &errors {
            assert!(matches!(error, Some(Error::Closed)), "{call} by {backend:?}: {error:?}");
        }
        savepoints.rollback_to(savepoint).unwrap_or_default();
        assert!(clone.keyspaces().is_empty() && clone.stats().commits > 4000 && clone.path() == reopened.path());
        again.close().unwrap();
        block_on(clone.close_async()).unwrap();

        let rows = reopened.existing_keyspace("k").unwrap();
        assert_eq!(rows.count(..).unwrap(), 4001, "nothing of the late calls is there");
        assert_eq!(rows.get("large").unwrap().unwrap(), [7; 700_000]);
        assert!(reopened.check().unwrap().corruption.is_empty());
        assert!(matches!(config.open(folder.path()), Err(Error::Locked { .. })), "it is open");
    }
}

/// While the database is closed and reopened, threads that read, write, scan and load get correct results or `Closed`,
/// and never an error about corruption. Acknowledged rows are present afterwards.
#[test]
fn a_database_is_closed_during_calls_of_other_threads() {
    let folder = Folder::new();
    // Use less memory than the data needs, so that calls read and write the disk.
    let config = small().memory(8 << 20).checkpoint_log_bytes(1 << 20);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut late = Vec::new();
    let mut before = 0;
    for round in 0..4 {
        let db = config.open(folder.path()).unwrap();
        let k = if round == 0 { fill(&db, 60_000) } else { db.keyspace("k").unwrap() };
        assert!(db.keyspace("new").unwrap().count(..).unwrap() >= before, "a row that was acknowledged is missing");
        before = acknowledged.load(Ordering::SeqCst);
        for number in 0..5u64 {
            let (k, db, acknowledged) = (k.clone(), db.clone(), Arc::clone(&acknowledged));
            let new = db.keyspace("new").unwrap();
            late.push(std::thread::spawn(move || {
                let mut random = Random(round * 5 + number);
                for turn in 0.. {
                    let key = (random.below(60_000) as u32).to_be_bytes();
                    let done = match number {
                        0 => k.get(key).map(|value| assert_eq!(value.unwrap(), [7; 60])),
                        1 => new.insert([&[round as u8, number as u8][..], &u32::to_be_bytes(turn)].concat(), [1; 300]),
                        2 => k.range(key..).take(3000).try_for_each(|row| row.map(drop)),
                        3 => k.insert_from("stream", &random.bytes(900_000)[..]).map(drop),
                        _ => db.bulk_load("loads").and_then(|mut load| {
                            (0..3000u32).try_for_each(|row| load.insert(row.to_be_bytes(), [2; 100]))?;
                            load.finish().map(drop)?;
                            db.drop_keyspace("loads")
                        }),
                    };
                    match done {
                        Ok(()) if number == 1 => drop(acknowledged.fetch_add(1, Ordering::SeqCst)),
                        Ok(()) | Err(Error::NoSuchKeyspace { .. }) => {}
                        Err(Error::Closed) => return,
                        Err(other) => panic!("thread {number} in round {round}: {other:?}"),
                    }
                }
            }));
        }
        while acknowledged.load(Ordering::SeqCst) < before + 50 * (round + 1) {
            std::thread::yield_now();
        }
        db.close().unwrap();
    }
    let db = config.open(folder.path()).unwrap();
    late.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(db.existing_keyspace("k").unwrap().count(..).unwrap(), 60_001 + u64::from(has_stream(&db)));
    assert_eq!(db.keyspace("new").unwrap().count(..).unwrap(), acknowledged.load(Ordering::SeqCst));
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{:?}", report.corruption);
}

/// A thread of the database performs a task's commit of many rows. The task gets the successful result even if it polls
/// only after the database was closed.
#[test]
fn a_commit_that_was_made_says_so_after_closing() {
    const ROWS: u32 = 600;
    let folder = Folder::new();
    let db = small().open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let mut tx = db.begin().unwrap();
    (0..ROWS).for_each(|row| tx.insert(&k, row.to_be_bytes(), [7; 20]).unwrap());
    let before = db.stats().commits;
    let mut commit = Box::pin(tx.commit_async());
    assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let begun = std::time::Instant::now();
    while db.stats().commits == before {
        assert!(begun.elapsed() < Duration::from_secs(60), "no thread makes the commit");
        std::thread::yield_now();
    }
    db.close().unwrap();
    block_on(commit).unwrap();
    let again = small().open(folder.path()).unwrap();
    assert_eq!(again.existing_keyspace("k").unwrap().count(..).unwrap(), u64::from(ROWS));
}

fn has_stream(db: &Database) -> bool {
    db.existing_keyspace("k").unwrap().contains_key("stream").unwrap()
}

/// A write in flight ends before the folder can be reopened. A future that was dropped or leaked leaves nothing locked,
/// and the rest of its operation is abandoned.
#[test]
fn a_write_under_way_ends_before_the_folder_is_free() {
    let (disk, config) = support::faulty();
    // Provide enough memory for several writers of large values.
    let config = config.memory(64 << 20);
    let db = config.open("/db").unwrap();
    let k = fill(&db, 100);
    let context = &mut Context::from_waker(Waker::noop());
    let value = vec![1; 900_000];
    let mut dropped = Box::pin(k.insert_async("dropped", &value));
    let _ = dropped.as_mut().poll(context);
    drop(dropped);
    let mut leaked = Box::pin(k.insert_async("leaked", &value));
    let _ = leaked.as_mut().poll(context);
    let mut polled_late = Box::pin(k.insert_async("late", &value));
    assert!(polled_late.as_mut().poll(context).is_pending(), "it waits for its chunks");
    disk.hold_nth_at(Operation::Write, 1, |path, offset| path.ends_with("data") && offset >= support::SEGMENT_BYTES);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| k.insert_from("held", &Random(9).bytes(900_000)[..]).map(drop));
        assert!(disk.wait_for_held(Duration::from_secs(10)));
        let closer = scope.spawn(|| db.close());
        while !matches!(k.insert("sealed", "1"), Err(Error::Closed)) {
            std::thread::yield_now();
        }
        assert!(matches!(config.open("/db"), Err(Error::Locked { .. })), "a write is under way");
        disk.release();
        closer.join().unwrap().unwrap();
        let reopened = config.open("/db").expect("the folder is free");
        let written = writer.join().unwrap();
        assert!(matches!(written, Ok(()) | Err(Error::Closed)), "{written:?}");
        let rows = reopened.existing_keyspace("k").unwrap();
        assert_eq!(rows.contains_key("held").unwrap(), written.is_ok());
        let late = block_on(smol::future::or(async { Some(polled_late.await) }, async {
            smol::Timer::after(Duration::from_secs(10)).await;
            None
        }));
        let late = late.expect("it is answered after the database was closed");
        assert!(matches!(late, Ok(()) | Err(Error::Closed)), "{late:?}");
        assert_eq!(rows.contains_key("late").unwrap(), late.is_ok());
        rows.insert("next", vec![3; 900_000]).unwrap();
        assert!(reopened.check().unwrap().corruption.is_empty());
        assert_eq!(rows.get("next").unwrap().unwrap(), vec![3; 900_000]);
    });
    std::mem::forget(leaked);
}

/// A failed database also releases its folder, and handles of a closed database return `Closed`, even for rows in
/// memory.
#[test]
fn a_failed_database_is_reopened_while_its_handles_live() {
    let (disk, config) = support::faulty();
    let db = config.open("/db").unwrap();
    let k = fill(&db, 100);
    disk.fail_from(Operation::Write, 1, drumlin_io::testing::fault::EIO);
    k.insert("b", "1").unwrap_err();
    disk.heal();
    assert!(matches!(db.close(), Err(Error::Failed { .. })));
    let reopened = config.open("/db").unwrap();
    assert_eq!(reopened.existing_keyspace("k").unwrap().count(..).unwrap(), 101);
    assert!(matches!(k.get("a"), Err(Error::Closed)) && matches!(k.insert("b", "1"), Err(Error::Closed)));
    let db = Config::in_memory().open("").unwrap();
    let k = db.keyspace("k").unwrap();
    db.close().unwrap();
    assert!(matches!(k.get("a"), Err(Error::Closed)));
}
