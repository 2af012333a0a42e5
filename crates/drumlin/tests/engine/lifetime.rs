//! The lifetime of an open database: which handles extend it, and how it can end.

use crate::support;

use std::future::Future;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use drumlin::{Config, Database, Durability, Error, Isolation, Keyspace, Transaction, TxOptions};
use drumlin_io::Backend;
use drumlin_io::testing::fault::{EIO, FaultyBackend, Operation};
use smol::block_on;

/// Returns a database with rows and a large value, none of which are in memory, on a new disk.
fn opened() -> (Config, Database, Keyspace) {
    let config = support::small().backend(drumlin_io::in_memory());
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

/// Opening, reading and closing a closed database writes only the process id, to the lock file.
#[test]
fn reading_a_closed_database_writes_nothing() {
    let faulty = FaultyBackend::new(drumlin_io::in_memory());
    let config = support::small().backend(Arc::new(faulty.clone()));
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    (0..1000u32).for_each(|row| k.insert_with(row.to_be_bytes(), [7; 60], Durability::Relaxed).unwrap());
    drop((db, k));
    for _ in 0..2 {
        faulty.start_trace();
        let db = config.open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        assert_eq!(k.get(7u32.to_be_bytes()).unwrap().unwrap(), [7; 60]);
        assert_eq!(k.iter().count(), 1000);
        assert!(db.begin().unwrap().commit().is_ok());
        db.sync().unwrap();
        drop(k);
        db.close().unwrap();
        let events = faulty.take_events();
        assert!(events.iter().all(|event| event.to_string().contains("lock")), "{events:?}");
    }
}

/// A range and a value reader, including those of tasks, keep the database open after all other handles are dropped.
/// Once they are dropped too, the folder can be reopened.
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

/// A range ends with its first error, at both ends: rows that it has already fetched from the opposite end are not
/// returned.
#[test]
fn a_range_ends_with_its_first_error() {
    for forward in [true, false] {
        let (_, db, k) = opened();
        let mut range = k.iter();
        // Rows of the leaves at both ends have been fetched when the keyspace is dropped.
        range.next().unwrap().unwrap();
        range.next_back().unwrap().unwrap();
        db.drop_keyspace("k").unwrap();
        let error = std::iter::from_fn(|| if forward { range.next() } else { range.next_back() }).find_map(Result::err);
        assert!(matches!(error, Some(Error::KeyspaceDropped { .. })), "{error:?}");
        assert!(range.next().is_none() && range.next_back().is_none());
        assert!(block_on(range.next_async()).is_none() && block_on(range.next_back_async()).is_none());
    }
}

/// If two threads close a database concurrently, both get the same result, even if closing fails, and no commit is
/// lost.
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

/// Closing a database that no longer accepts commits returns an error, through either API and every time. The folder
/// can be reopened afterwards, and the commits in the log are present.
#[test]
fn closing_after_a_failure_returns_it() {
    for (is_task, log_fails) in [(false, false), (false, true), (true, false), (true, true)] {
        let (disk, config) = support::faulty();
        let db = config.open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        k.insert("a", "1").unwrap();
        disk.fail_from(Operation::Write, 1, EIO);
        if log_fails {
            k.insert("b", "1").unwrap_err();
        } else {
            db.checkpoint().unwrap_err();
        }
        disk.heal();
        let again = db.clone();
        let closed = if is_task { block_on(db.close_async()) } else { db.close() };
        assert!(matches!(closed, Err(Error::Failed { .. })), "{closed:?}");
        let closed = again.close();
        assert!(matches!(closed, Err(Error::Failed { .. })), "{closed:?}");
        drop(k);
        assert_eq!(config.open("/db").unwrap().existing_keyspace("k").unwrap().get("a").unwrap().unwrap(), b"1");
    }
}

/// A leaked step of a range keeps the database open, as a leaked range does. The database can still be closed and
/// reopened.
#[test]
fn a_leaked_step_of_a_range_is_a_leaked_handle() {
    for forward in [true, false] {
        let (config, db, k) = opened();
        let mut range = k.iter();
        let context = &mut Context::from_waker(Waker::noop());
        let is_waiting = if forward {
            let mut step = Box::pin(range.next_async());
            let is_waiting = step.as_mut().poll(context).is_pending();
            std::mem::forget(step);
            is_waiting
        } else {
            let mut step = Box::pin(range.next_back_async());
            let is_waiting = step.as_mut().poll(context).is_pending();
            std::mem::forget(step);
            is_waiting
        };
        assert!(is_waiting, "its page is not in memory");
        drop((range, k));
        let again = db.clone();
        drop(db);
        assert!(matches!(config.open("/db"), Err(Error::Locked { .. })), "it is open");
        again.close().unwrap();
        config.open("/db").unwrap();
    }
}

/// An empty path is rejected, and no files are created in the working directory. A database in memory ignores its path.
#[test]
fn an_empty_path_is_refused() {
    let before = std::fs::read_dir(".").unwrap().count();
    for error in [Database::open("").err(), block_on(Database::open_async("")).err(), support::small().open("").err()] {
        assert!(matches!(&error, Some(Error::Invalid(why)) if why.contains("path is empty")), "{error:?}");
    }
    assert_eq!(std::fs::read_dir(".").unwrap().count(), before);
    Config::in_memory().open("").unwrap();
}

/// A budget that exceeds the address space is rejected immediately.
#[test]
fn a_budget_beyond_all_memory_is_refused() {
    for bytes in [u64::MAX, u64::MAX / 2, 1 << 50, (1 << 40) + 1] {
        let error = Config::in_memory().memory(bytes).open("").err();
        assert!(matches!(&error, Some(Error::Invalid(why)) if why.contains("1 TiB")), "{error:?}");
    }
}

/// A log segment whose size is too large for an index in memory is rejected immediately. The documented maximum is
/// accepted.
#[test]
fn a_log_segment_beyond_its_limit_is_refused() {
    for bytes in [u64::MAX - 4095, 1 << 62, 1 << 40, (1 << 30) + 4096] {
        let error = Config::in_memory().memory(8 << 20).log_segment_bytes(bytes).open("").err();
        assert!(matches!(&error, Some(Error::Invalid(why)) if why.contains("1 GiB")), "{error:?}");
    }
    let db = Config::in_memory().memory(8 << 20).log_segment_bytes(1 << 30).open("").unwrap();
    db.keyspace("k").unwrap().insert("a", "1").unwrap();
}

/// Threads and tasks can wait for a row without a time limit.
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

/// A leaked future that waits for a row does not restrict its transaction, and other transactions wait for the row only
/// until that transaction ends.
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

/// A leaked write future does not keep its database open: the folder can be reopened once the handles are dropped.
#[test]
fn a_leaked_write_keeps_no_database_open() {
    let config = support::small().backend(drumlin_io::in_memory());
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

/// Returns a database on a disk that fails on request, with one row whose page is not in memory.
fn one_row() -> (FaultyBackend, Config, Database, Keyspace) {
    let (disk, config) = support::faulty();
    let db = config.open("/db").unwrap();
    db.keyspace("k").unwrap().insert("first", "1").unwrap();
    db.close().unwrap();
    let db = config.open("/db").unwrap();
    let k = db.existing_keyspace("k").unwrap();
    (disk, config, db, k)
}

/// Opens a closed database after removing its log.
fn reopened_without_log(disk: &FaultyBackend, config: &Config) -> (Database, Keyspace) {
    for segment in disk.list("/db/log".as_ref()).unwrap() {
        disk.remove(&segment).unwrap();
    }
    let db = config.open("/db").unwrap();
    let k = db.existing_keyspace("k").unwrap();
    (db, k)
}

/// Polls a future until it is ready, for at most ten seconds.
fn complete<T>(future: impl Future<Output = T>) -> Option<T> {
    block_on(smol::future::or(async { Some(future.await) }, async {
        smol::Timer::after(Duration::from_secs(10)).await;
        None
    }))
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A commit that has reserved space in the log but has no timestamp yet does not delay closing. It fails afterwards,
/// and has no effect when the database is reopened.
#[test]
fn a_commit_after_closing_has_begun_is_refused() {
    for durability in [Durability::Relaxed, Durability::Full] {
        for is_task in [false, true] {
            let (disk, config, db, k) = one_row();
            let committed = if is_task {
                let woken = Arc::new(Woken(AtomicBool::new(false)));
                let mut commit = std::pin::pin!(k.insert_with_async("late", "1", durability));
                let is_waiting = commit.as_mut().poll(&mut Context::from_waker(&Arc::clone(&woken).into()));
                assert!(is_waiting.is_pending(), "its page is not in memory");
                while !woken.0.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                db.close().unwrap();
                complete(commit).expect("a commit is answered after the database was closed")
            } else {
                disk.hold_nth(Operation::Read, 1);
                std::thread::scope(|scope| {
                    let committer = scope.spawn(|| k.insert_with("late", "1", durability));
                    assert!(disk.wait_for_held(Duration::from_secs(10)), "its page is not in memory");
                    db.close().unwrap();
                    disk.release();
                    committer.join().unwrap()
                })
            };
            assert!(matches!(committed, Err(Error::Closed)), "{durability:?}, {is_task}: {committed:?}");
            drop(k);
            let (_db, k) = reopened_without_log(&disk, &config);
            assert_eq!(k.count(..).unwrap(), 1, "{durability:?}, {is_task}");
        }
    }
}

/// While the checkpoint that closes a database is running, commits are refused and keyspaces are neither created nor
/// dropped. So the checkpoint covers every acknowledged commit, and the log can be removed.
#[test]
fn a_database_that_is_being_closed_takes_no_commit() {
    let (disk, config, db, k) = one_row();
    let again = db.clone();
    k.insert_with("before", "1", Durability::Relaxed).unwrap();
    let mut acknowledged = 2;
    disk.hold_nth(Operation::Sync, 2);
    std::thread::scope(|scope| {
        let closer = scope.spawn(|| db.close());
        assert!(disk.wait_for_held(Duration::from_secs(10)));
        let end = Instant::now() + Duration::from_secs(10);
        let refused = (0..100_000u32).take_while(|_| Instant::now() < end).find_map(|row| {
            let result = k.insert_with(row.to_be_bytes(), "1", Durability::Relaxed);
            acknowledged += u64::from(result.is_ok());
            std::thread::yield_now();
            result.err()
        });
        // If the drop were not refused, it would wait for the checkpoint.
        let refused = refused.map(|error| [Some(error), again.keyspace("new").err(), again.drop_keyspace("k").err()]);
        disk.release();
        closer.join().unwrap().unwrap();
        let refused = refused.expect("a commit is refused while the database is being closed");
        assert!(refused.iter().all(|error| matches!(error, Some(Error::Closed))), "{refused:?}");
    });
    drop((k, again));
    let (db, k) = reopened_without_log(&disk, &config);
    assert_eq!(k.count(..).unwrap(), acknowledged);
    assert_eq!(db.keyspaces().len(), 1);
}

/// Commits whose records are in flight when a database is closed are durable, even if the future of one of them is
/// polled only afterwards.
#[test]
fn commits_in_flight_end_before_the_database_is_closed() {
    let (disk, config, db, k) = one_row();
    k.get("first").unwrap();
    support::hold_records(&disk);
    let full = std::thread::scope(|scope| {
        let full = scope.spawn(|| k.insert("full", "1"));
        assert!(disk.wait_for_held(Duration::from_secs(10)));
        let mut task = Box::pin(k.insert_async("task", "1"));
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let mut dropped = Box::pin(k.insert_async("dropped", "1"));
        let _ = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop(dropped);
        k.insert_with("relaxed", "1", Durability::Relaxed).unwrap();
        let closer = scope.spawn(|| db.close());
        std::thread::sleep(Duration::from_millis(20));
        disk.release();
        closer.join().unwrap().unwrap();
        complete(task).expect("a commit is answered after the database was closed").unwrap();
        full.join().unwrap()
    });
    full.unwrap();
    drop(k);
    let (_db, k) = reopened_without_log(&disk, &config);
    assert_eq!(k.count(..).unwrap(), 5);
}

/// If a keyspace is dropped while the database is being closed, it is gone afterwards if and only if the drop
/// succeeded. The drop has reserved space in the log and waits for a checkpoint.
#[test]
fn a_drop_during_closing_is_whole() {
    let (disk, config, db, k) = one_row();
    let (again, dropper) = (db.clone(), db.clone());
    k.insert("second", "1").unwrap();
    drop(k);
    disk.hold_nth(Operation::Sync, 1);
    let dropped = std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| again.checkpoint());
        assert!(disk.wait_for_held(Duration::from_secs(10)));
        let dropped = scope.spawn(move || dropper.drop_keyspace("k"));
        std::thread::sleep(Duration::from_millis(20));
        let closer = scope.spawn(|| db.close());
        std::thread::sleep(Duration::from_millis(20));
        disk.release();
        checkpoint.join().unwrap().unwrap();
        closer.join().unwrap().unwrap();
        dropped.join().unwrap()
    });
    assert!(matches!(dropped, Ok(()) | Err(Error::Closed)), "{dropped:?}");
    drop(again);
    assert_eq!(config.open("/db").unwrap().existing_keyspace("k").is_err(), dropped.is_ok());
}
