//! Transactions whose changes outgrow memory: they read their own changes, roll back to savepoints, lock their rows,
//! and commit or abort like any other. A kill at any moment leaves all of a commit or nothing.

use crate::runs::{Seen, compare, config, end_life, key, load, some_rows};
use crate::support;

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use drumlin::{Database, Error, Isolation, Keyspace, LockHolder, LockMode, Savepoint, Transaction, TxOptions};
use drumlin_io::testing::fault::{ENOSPC, Operation};
use drumlin_io::testing::sim::{Disk, Medium};
use drumlin_testing::futures::{block_on, within_polls};
use support::{Model, Random, faulty, number, small, some_value};

/// Enough changes to be spilled several times with the memory of these tests.
const MANY: u64 = 5000;

/// The path of the file in which changes are spilled.
const WRITES: &str = "/db/writes";

fn is_spilled(disk: &Disk) -> bool {
    disk.backend().exists(Path::new(WRITES)).unwrap()
}

/// Changes a random row, within a transaction and a model.
fn change(tx: &mut Transaction, keyspace: &Keyspace, rows: &mut Model, random: &mut Random, key: Vec<u8>) {
    match random.below(12) {
        0..3 => {
            tx.remove(keyspace, &key).unwrap();
            rows.remove(&key);
        }
        3 => {
            let before = tx.replace(keyspace, &key, b"replaced").unwrap();
            assert_eq!(before.as_deref(), rows.insert(key, b"replaced".to_vec()).as_deref());
        }
        4 => {
            let taken = tx.take(keyspace, &key).unwrap();
            assert_eq!(taken.as_deref(), rows.remove(&key).as_deref());
        }
        5 if random.one_in(60) => {
            let value = some_value(random);
            tx.insert(keyspace, &key, &value).unwrap();
            rows.insert(key, value);
        }
        _ => {
            let length = random.below(120) as usize;
            let value = random.bytes(length);
            tx.insert(keyspace, &key, &value).unwrap();
            rows.insert(key, value);
        }
    }
}

/// Large transactions with savepoints, ended in every way, among small ones, loads, range deletes, snapshots,
/// checkpoints, reopenings and power cuts in random order.
#[test]
fn large_transactions_are_like_small_ones() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 8) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let mut db = config(&disk).open("/db").unwrap();
        let mut keyspace = db.keyspace("k").unwrap();
        let mut rows = Model::new();
        let mut seen: Vec<Seen> = Vec::new();
        let mut spilled_count = 0;
        for step in 0..24 {
            let place = format!("seed {seed}, step {step}");
            match random.below(10) {
                0..4 => {
                    if random.one_in(2) && seen.len() < 3 {
                        seen.push((db.snapshot(), rows.clone()));
                    }
                    let isolation = [Isolation::Snapshot, Isolation::ReadCommitted][random.below(2) as usize];
                    let mut tx = db.begin_with(TxOptions { isolation, ..db.tx_options() }).unwrap();
                    let mut own = rows.clone();
                    let mut savepoints: Vec<(Savepoint, Model)> = Vec::new();
                    let (start, width) = (random.below(1000), 1 + random.below(1000));
                    let is_ascending = random.one_in(3);
                    for number in 0..random.below(MANY) {
                        let number = if is_ascending { number * width / MANY } else { random.below(width) };
                        let key = key((start + number) % 1000);
                        change(&mut tx, &keyspace, &mut own, &mut random, key);
                        match random.below(2000) {
                            0..3 => savepoints.push((tx.savepoint(), own.clone())),
                            3 if !savepoints.is_empty() => {
                                savepoints.truncate(1 + random.below(savepoints.len() as u64) as usize);
                                let (savepoint, model) = savepoints.last().unwrap();
                                tx.rollback_to(*savepoint).unwrap();
                                own.clone_from(model);
                            }
                            4 => compare(&tx, &keyspace, &own, &mut random, &place),
                            _ => {}
                        }
                    }
                    spilled_count += u64::from(is_spilled(&disk));
                    compare(&tx, &keyspace, &own, &mut random, &place);
                    match random.below(3) {
                        0 => drop(tx),
                        _ => {
                            tx.commit().unwrap();
                            rows = own;
                        }
                    }
                    assert!(!is_spilled(&disk), "{place}: changes are left on disk");
                    compare(&db.snapshot(), &keyspace, &rows, &mut random, &place);
                }
                4..6 => {
                    for _ in 0..random.below(60) {
                        let key = key(random.below(1000));
                        let value = random.bytes(20);
                        keyspace.insert(&key, &value).unwrap();
                        rows.insert(key, value);
                    }
                }
                6 => {
                    let loaded = some_rows(&mut random, 1000, 300);
                    load(&db, "k", &loaded).unwrap();
                    rows.extend(loaded);
                }
                7 => {
                    let [one, other] = [0; 2].map(|_| key(random.below(1000)));
                    let (lower, upper) = (one.clone().min(other.clone()), one.max(other));
                    keyspace.remove_range(&lower[..]..&upper[..]).unwrap();
                    rows.retain(|key, _| *key < lower || upper <= *key);
                }
                8 => drop(db.checkpoint().unwrap()),
                _ => {
                    for (snapshot, rows) in seen.drain(..) {
                        compare(&snapshot, &keyspace, &rows, &mut random, &place);
                    }
                    disk = end_life(&disk, (db, keyspace), random.one_in(3), &mut random, seed);
                    db = config(&disk).open("/db").unwrap();
                    keyspace = db.keyspace("k").unwrap();
                    compare(&db.snapshot(), &keyspace, &rows, &mut random, &place);
                }
            }
        }
        assert!(spilled_count > 0, "seed {seed}: no transaction outgrew its memory");
        for (snapshot, rows) in seen.drain(..) {
            compare(&snapshot, &keyspace, &rows, &mut random, &format!("seed {seed}, at the end"));
        }
        db.close().unwrap();
    }
}

fn opened() -> (Database, Keyspace) {
    let db = small().backend(drumlin_io::in_memory()).open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    (db, keyspace)
}

fn row_key(row: u64) -> Vec<u8> {
    format!("row {row:06}").into_bytes()
}

/// Puts the even rows below twice `MANY`, which are enough to be spilled.
fn put_many(tx: &mut Transaction, keyspace: &Keyspace) -> drumlin::Result<()> {
    (0..MANY).try_for_each(|row| tx.insert(keyspace, row_key(2 * row), [7; 100]))
}

/// A transaction in which a write that finds a locked row fails at once.
fn impatient(db: &Database) -> Transaction {
    db.begin_with(TxOptions { lock_timeout: Duration::ZERO, ..db.tx_options() }).unwrap()
}

/// A row whose change has been spilled stays locked. Transactions, calls outside of transactions, batches and range
/// deletes wait for it, and pops skip it.
#[test]
fn spilled_rows_are_locked() {
    let (db, k) = opened();
    k.insert(row_key(0), "old").unwrap();
    let mut large = db.begin().unwrap();
    put_many(&mut large, &k).unwrap();
    assert!(db.locks().unwrap().len() < MANY as usize, "nothing was spilled");
    let locked = |result: drumlin::Result<()>| {
        assert!(matches!(result, Err(Error::LockTimeout { holder: LockHolder::Other, .. })), "{result:?}");
    };
    let mut tx = impatient(&db);
    locked(tx.insert(&k, row_key(0), "mine"));
    locked(tx.remove(&k, row_key(20)));
    locked(tx.get_for_share(&k, row_key(40)).map(drop));
    assert!(!tx.try_lock_row(&k, row_key(60), LockMode::Exclusive).unwrap());
    assert!(tx.pop_first_in(&k, ..).unwrap().is_none(), "a row is popped that is locked");
    assert!(k.pop_first_in(..).unwrap().is_none(), "a row is popped that is locked");
    tx.insert(&k, row_key(1), "free").unwrap();
    drop(tx);
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        let (db, k) = (&db, &k);
        let report = |number: u32| {
            let done = done.clone();
            move || done.send(number).unwrap()
        };
        let end = report(0);
        scope.spawn(move || {
            k.insert(row_key(100), "later").unwrap();
            end();
        });
        let end = report(1);
        scope.spawn(move || {
            let mut batch = db.batch().unwrap();
            batch.insert(k, row_key(102), "later").unwrap();
            batch.commit().unwrap();
            end();
        });
        let end = report(2);
        scope.spawn(move || {
            k.remove_range(row_key(200)..row_key(300)).unwrap();
            end();
        });
        let end = report(3);
        scope.spawn(move || {
            block_on(k.update_async(&row_key(104), |old| Some([old.unwrap_or_default(), b"!"].concat()))).unwrap();
            end();
        });
        // The others appear as waiting once they have found the rows on disk.
        while db.locks().unwrap().iter().filter(|row| !row.waiters.is_empty()).count() < 4 {
            std::thread::yield_now();
        }
        assert!(is_done.try_recv().is_err(), "a row was changed that is locked");
        large.commit().unwrap();
        assert!((0..4).all(|_| is_done.recv().is_ok()));
    });
    assert_eq!(k.get(row_key(100)).unwrap().unwrap(), "later");
    assert_eq!(k.get(row_key(102)).unwrap().unwrap(), "later");
    assert_eq!(k.get(row_key(104)).unwrap().unwrap(), [&[7; 100][..], b"!"].concat());
    assert!(k.get(row_key(200)).unwrap().is_none() && k.get(row_key(298)).unwrap().is_none());
    assert_eq!(k.count(..).unwrap(), MANY - 50);
    assert!(db.locks().unwrap().is_empty());
}

/// After an abort, nobody waits any more, and the rows are as before. Nothing is left of the transaction.
#[test]
fn an_abort_frees_the_rows() {
    let (db, k) = opened();
    k.insert(row_key(0), "old").unwrap();
    let mut large = db.begin().unwrap();
    put_many(&mut large, &k).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| k.replace(row_key(0), "new").unwrap());
        while db.locks().unwrap().iter().all(|row| row.waiters.is_empty()) {
            std::thread::yield_now();
        }
        drop(large);
        assert_eq!(waiter.join().unwrap().unwrap(), "old");
    });
    assert_eq!(k.count(..).unwrap(), 1);
    assert!(db.locks().unwrap().is_empty());
}

/// A transaction that waits for a spilled row, while the owner of that row waits for one of its own, is a deadlock.
#[test]
fn deadlocks_over_spilled_rows_are_found() {
    let (db, k) = opened();
    let mut large = db.begin().unwrap();
    put_many(&mut large, &k).unwrap();
    let mut other = db.begin().unwrap();
    other.insert(&k, row_key(1), "").unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.insert(&k, row_key(2), ""));
        while db.locks().unwrap().iter().all(|row| row.waiters.is_empty()) {
            std::thread::yield_now();
        }
        let result = large.insert(&k, row_key(1), "");
        assert!(matches!(result, Err(Error::Conflict { .. })), "{result:?}");
        drop(large);
        waiter.join().unwrap().unwrap();
    });
    other.commit().unwrap();
    assert_eq!(k.count(..).unwrap(), 2);
}

/// The first to commit wins, whether the large transaction is the first or the second, and whatever the other one is.
#[test]
fn large_transactions_conflict_like_small_ones() {
    // A transaction from before the commit conflicts if it changes one of its rows.
    let (db, k) = opened();
    let mut before = db.begin().unwrap();
    let mut large = db.begin().unwrap();
    put_many(&mut large, &k).unwrap();
    large.commit().unwrap();
    assert!(before.get(&k, row_key(4)).unwrap().is_none());
    before.insert(&k, row_key(5), "free").unwrap();
    let result = before.insert(&k, row_key(4), "");
    assert!(matches!(result, Err(Error::Conflict { .. })), "{result:?}");
    // A row that has changed since its snapshot, a load, a range delete, or another large transaction.
    for change in 0..4 {
        let (db, k) = opened();
        k.insert(row_key(1), "").unwrap();
        let mut large = db.begin().unwrap();
        let result = match change {
            0 => {
                k.insert(row_key(8), "first").unwrap();
                put_many(&mut large, &k).and_then(|()| large.commit())
            }
            1 => {
                put_many(&mut large, &k).unwrap();
                load(&db, "k", &Model::from([(row_key(8), b"loaded".to_vec())])).unwrap();
                large.commit()
            }
            2 => {
                // A batch that is spilled locks no rows, like a load.
                put_many(&mut large, &k).unwrap();
                let mut batch = db.batch().unwrap();
                (0..MANY).for_each(|row| batch.insert(&k, row_key(4 * row), [1; 100]).unwrap());
                batch.commit().unwrap();
                large.commit()
            }
            _ => {
                let mut other = impatient(&db);
                put_many(&mut large, &k).unwrap();
                let result = put_many(&mut other, &k);
                assert!(matches!(result, Err(Error::LockTimeout { .. })), "{result:?}");
                (0..MANY).for_each(|row| other.insert(&k, row_key(2 * row + 1), [1; 100]).unwrap());
                // Runs of other rows do not conflict.
                other.commit().unwrap();
                large.commit().unwrap();
                assert_eq!(k.count(..).unwrap(), 2 * MANY);
                continue;
            }
        };
        assert!(matches!(result, Err(Error::Conflict { .. })), "change {change}: {result:?}");
        assert!(change != 1 || k.count(..).unwrap() == 2, "a commit that failed left rows");
    }
}

/// A transaction of tasks spills on another thread. If a call is dropped while its changes are being written, it
/// changes nothing, and the next call takes over what was written.
#[test]
fn a_call_that_spills_can_be_dropped() {
    let (db, k) = opened();
    for polls in 1..4 {
        k.clear().unwrap();
        let mut tx = db.begin().unwrap();
        let mut dropped = Vec::new();
        for row in 0..MANY {
            if block_on(within_polls(polls, tx.insert_async(&k, &row_key(row), &[7; 100]))).is_none() {
                dropped.push(row);
            }
        }
        assert!(!dropped.is_empty() || polls > 1, "no call was dropped");
        // A roll-back undoes what a dropped call was about to write to disk.
        let savepoint = tx.savepoint();
        (0..MANY).for_each(|row| drop(block_on(within_polls(polls, tx.insert_async(&k, &row_key(row), b"undone")))));
        tx.rollback_to(savepoint).unwrap();
        for row in dropped {
            block_on(tx.insert_async(&k, &row_key(row), b"again")).unwrap();
        }
        assert_eq!(block_on(tx.count_async(&k, ..)).unwrap(), MANY);
        block_on(tx.commit_async()).unwrap();
        assert_eq!(k.count(..).unwrap(), MANY);
        assert!(k.iter().all(|row| row.unwrap().1 != "undone"));
    }
}

/// If the disk has no space for the changes or for the runs, the call says so, and nothing of the transaction stays.
#[test]
fn a_full_disk_refuses_a_large_transaction() {
    let mut committed = false;
    for nth in 1.. {
        let (disk, config) = faulty();
        let db = config.open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        k.insert("before", "").unwrap();
        disk.fail_from(Operation::Write, nth, ENOSPC);
        let mut tx = db.begin().unwrap();
        let result = put_many(&mut tx, &k).and_then(|()| tx.commit());
        disk.heal();
        match result {
            Ok(_) => {
                committed = true;
                break;
            }
            Err(Error::DiskFull { .. }) => {}
            // The log or a page could not be written.
            Err(error @ (Error::Failed { .. } | Error::OutcomeUnknown { .. } | Error::Io { .. })) => {
                drop((k, db));
                let db = config.open("/db").unwrap_or_else(|failure| panic!("write {nth}, {error}: {failure}"));
                let count = db.keyspace("k").unwrap().count(..).unwrap();
                assert!(count == 1 || count == 1 + MANY, "write {nth}: {count} rows");
                continue;
            }
            Err(error) => panic!("write {nth}: {error:?}"),
        }
        assert_eq!(k.count(..).unwrap(), 1, "write {nth}");
        let mut tx = db.begin().unwrap();
        put_many(&mut tx, &k).unwrap();
        tx.commit().unwrap();
        assert_eq!(k.count(..).unwrap(), 1 + MANY, "write {nth}");
    }
    assert!(committed);
}

/// Several keyspaces are changed by one commit, at one timestamp. If one of them is dropped before the commit, the
/// commit fails.
#[test]
fn one_commit_changes_many_keyspaces() {
    let (db, _) = opened();
    let names: Vec<String> = (0..12).map(|number| format!("keyspace {number}")).collect();
    let keyspaces: Vec<Keyspace> = names.iter().map(|name| db.keyspace(name).unwrap()).collect();
    for is_dropped in [false, true] {
        let mut tx = db.begin().unwrap();
        for row in 0..MANY {
            tx.insert(&keyspaces[row as usize % 12], row_key(row), [is_dropped as u8; 100]).unwrap();
        }
        if is_dropped {
            db.drop_keyspace(&names[5]).unwrap();
        }
        let before = db.snapshot();
        let result = tx.commit();
        let counts = |reader: &drumlin::Reader| -> u64 {
            keyspaces.iter().filter_map(|keyspace| reader.count(keyspace, ..).ok()).sum()
        };
        if is_dropped {
            assert!(matches!(result, Err(Error::KeyspaceDropped { .. })), "{result:?}");
            assert!(keyspaces[0].iter().all(|row| row.unwrap().1 == [0; 100]));
        } else {
            let timestamp = result.unwrap();
            assert!(timestamp > before.timestamp());
            assert_eq!((counts(&before), counts(&db.snapshot())), (0, MANY));
        }
    }
}

/// A transaction whose rows fit in memory, but not the pages that hold them or the rows as they were, is committed too.
#[test]
fn rows_of_many_pages_are_committed() {
    let (db, k) = opened();
    const ROWS: u64 = 40_000;
    let rows = (0..ROWS).map(|row| (row_key(row), vec![1; 400])).collect();
    load(&db, "k", &rows).unwrap();
    let snapshot = db.snapshot();
    let mut tx = db.begin().unwrap();
    (0..1500).for_each(|row| tx.remove(&k, row_key(row * 23)).unwrap());
    tx.commit().unwrap();
    assert_eq!(k.count(..).unwrap(), ROWS - 1500);
    assert_eq!(snapshot.count(&k, ..).unwrap(), ROWS);
    assert!((0..1500).all(|row| k.get(row_key(row * 23)).unwrap().is_none()));
}

/// A call that a large transaction can't make is refused, and changes nothing.
#[test]
fn limits_of_large_transactions_are_told() {
    let (db, k) = opened();
    let mut tx = db.begin().unwrap();
    put_many(&mut tx, &k).unwrap();
    let error = tx.remove_range(&k, ..).unwrap_err();
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error:?}");
    let error = tx.prepare("id").unwrap_err();
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error:?}");
    assert!(k.is_empty().unwrap() && db.prepared().unwrap().is_empty());
    // A serializable transaction keeps its changes in memory.
    let mut tx = db.begin_with(TxOptions { isolation: Isolation::Serializable, ..db.tx_options() }).unwrap();
    let error = put_many(&mut tx, &k).unwrap_err();
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error:?}");
    drop(tx);
    // A database that is closed ends it, and its file goes.
    let mut tx = db.begin().unwrap();
    put_many(&mut tx, &k).unwrap();
    db.close().unwrap();
    assert!(matches!(tx.insert(&k, "a", ""), Err(Error::Closed)));
    assert!(matches!(tx.get(&k, row_key(4)), Err(Error::Closed)));
    assert!(matches!(tx.commit(), Err(Error::Closed)));
}

/// A transaction can lock as many rows as fit in three quarters of its memory without changing them. Locking another
/// one is refused with an error that tells the limit. The transaction can still change any number of rows, which are
/// spilled in large parts, and it keeps its locks.
#[test]
fn many_rows_are_locked_and_not_changed() {
    for lock_mode in [LockMode::Exclusive, LockMode::Shared] {
        let (db, k) = opened();
        let put = |tx: &mut Transaction| {
            put_many(tx, &k).unwrap();
            (0..MANY / 10).for_each(|row| drop(tx.replace(&k, row_key(2 * row + 1), [7; 100]).unwrap()));
        };
        let mut tx = db.begin().unwrap();
        put(&mut tx);
        let disk_bytes = db.stats().transaction_disk_bytes;
        drop(tx);
        let mut tx = db.begin().unwrap();
        let limit = db.limits().transaction_memory_bytes / 4 * 3;
        let mut count = 0;
        let error = loop {
            match tx.lock_row(&k, format!("locked {count}"), lock_mode) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        match &error {
            Error::TransactionTooLarge { row_count, bytes, limit_bytes, .. } => {
                assert!(*row_count == count + 1 && *limit_bytes == limit && *bytes > limit, "{error:?}");
            }
            error => panic!("{error:?}"),
        }
        assert!(count > limit / 512 && error.to_string().contains(&limit.to_string()), "{count}: {error}");
        assert_eq!(db.locks().unwrap().len() as u64, count);
        put(&mut tx);
        let with_locks_bytes = db.stats().transaction_disk_bytes;
        assert!(with_locks_bytes < 3 * disk_bytes, "{with_locks_bytes} instead of {disk_bytes} bytes were written");
        for number in [0, count / 2, count - 1] {
            let mut other = impatient(&db);
            assert!(matches!(other.insert(&k, format!("locked {number}"), ""), Err(Error::LockTimeout { .. })));
        }
        tx.commit().unwrap();
        assert_eq!(k.count(..).unwrap(), MANY + MANY / 10);
        assert_no_trace(&db, "after the commit");
    }
}

/// Several waiters for a row that is spilled while they wait: each waits for the owner of the row, up to its timeout,
/// and takes part in deadlocks.
#[test]
fn many_wait_for_a_row_that_is_spilled() {
    for lock_mode in [LockMode::Exclusive, LockMode::Shared] {
        let (db, k) = opened();
        let mut large = db.begin().unwrap();
        large.insert(&k, row_key(0), "spilled").unwrap();
        let timeout = Duration::from_millis(500);
        let options = TxOptions { lock_timeout: timeout, ..db.tx_options() };
        std::thread::scope(|scope| {
            let (db, k) = (&db, &k);
            let waiters: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(move || {
                        let mut tx = db.begin_with(options).unwrap();
                        tx.lock_row(k, row_key(0), lock_mode)
                    })
                })
                .collect();
            while db.locks().unwrap().iter().map(|row| row.waiters.len()).sum::<usize>() < 3 {
                std::thread::yield_now();
            }
            put_many(&mut large, k).unwrap();
            for waiter in waiters {
                let result = waiter.join().unwrap();
                assert!(matches!(result, Err(Error::LockTimeout { .. })), "{lock_mode:?}: {result:?}");
            }
        });
        assert!(large.contains_key(&k, row_key(0)).unwrap());
    }
}

/// The spilled changes of a transaction do not count as old versions, so no snapshot is ended for them.
#[test]
fn snapshots_outlive_a_large_transaction() {
    let (db, k) = opened();
    let other = db.keyspace("other").unwrap();
    (0..2000).for_each(|row| k.insert(row_key(row), [0; 200]).unwrap());
    let snapshot = db.snapshot();
    let mut large = db.begin().unwrap();
    put_many(&mut large, &other).unwrap();
    for round in 1..8 {
        assert_eq!(large.count(&other, ..).unwrap(), MANY);
        (0..2000).for_each(|row| k.insert(row_key(row), [round; 200]).unwrap());
    }
    assert!(db.stats().version_disk_bytes > 0, "no version was spilled");
    assert!(snapshot.iter(&k).all(|row| row.unwrap().1 == [0; 200]));
    large.commit().unwrap();
    assert_eq!(other.count(..).unwrap(), MANY);
}

/// Scans and value readers of a large transaction can still be read when it has committed. If the commit failed, a
/// large value may be gone, and the read fails with an error that says so.
#[test]
fn readers_outlive_their_large_transaction() {
    let big: Vec<u8> = (0..300_000u32).map(|byte| byte as u8).collect();
    for is_dropped in [false, true] {
        let (db, k) = opened();
        let other = db.keyspace("other").unwrap();
        let mut tx = db.begin().unwrap();
        tx.insert(&k, "big", &big).unwrap();
        put_many(&mut tx, &k).unwrap();
        tx.insert(&other, "a", "b").unwrap();
        let mut reader = tx.read(&k, "big").unwrap().unwrap();
        let rows = tx.iter(&k);
        if is_dropped {
            db.drop_keyspace("other").unwrap();
        }
        assert_eq!(tx.commit().is_ok(), !is_dropped);
        let mut bytes = Vec::new();
        let read = std::io::Read::read_to_end(&mut reader, &mut bytes);
        match read {
            Ok(_) => assert!(bytes == big),
            Err(error) => assert!(is_dropped && !error.to_string().contains("corrupt"), "{error}"),
        }
        k.insert("big", "small").unwrap();
        let mut count = 0;
        for row in rows {
            match row {
                Ok((key, value)) => assert!(key != "big" || value == big),
                Err(Error::Invalid(_)) if is_dropped => break,
                Err(error) => panic!("{error:?}"),
            }
            count += 1;
        }
        assert!(is_dropped || count == MANY + 1, "{count}");
    }
}

/// A roll-back makes a large transaction independent of the rows that it has undone.
#[test]
fn undone_rows_do_not_conflict() {
    let (db, k) = opened();
    k.insert(row_key(1), "").unwrap();
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "one", "1").unwrap();
    let savepoint = tx.savepoint();
    put_many(&mut tx, &k).unwrap();
    tx.rollback_to(savepoint).unwrap();
    load(&db, "k", &Model::from([(row_key(8), b"loaded".to_vec())])).unwrap();
    tx.commit().unwrap();
    assert_eq!(k.count(..).unwrap(), 3);
}

/// Asserts that no transaction has locks or changes on disk.
fn assert_no_trace(db: &Database, place: &str) {
    assert_eq!(db.stats().transaction_disk_bytes, 0, "{place}");
    assert!(db.locks().unwrap().is_empty(), "{place}");
}

/// Rows of extreme shapes in keyspaces with the least and the greatest pages, some of which get only removals.
#[test]
fn rows_of_all_shapes_are_spilled() {
    for (page_bytes, seed) in [(512, 1), (1024, 2), (65536, 3)] {
        let mut random = Random(seed);
        let disk = Disk::new(Medium::default(), seed);
        let db = small().page_bytes(page_bytes).backend(disk.backend()).open("/db").unwrap();
        let names = ["a", "b", "c"];
        let keyspaces = names.map(|name| db.keyspace(name).unwrap());
        let mut models = [Model::new(), Model::new(), Model::new()];
        let max = page_bytes / 4;
        let key = |random: &mut Random| -> Vec<u8> {
            match random.below(12) {
                0 => Vec::new(),
                1 => vec![b'x'; max],
                2 => [vec![b'x'; max - 2], random.below(200).to_string().as_bytes()[..1].to_vec()].concat(),
                3 => vec![0; random.below(5) as usize],
                4 => vec![255; random.below(5) as usize],
                _ => format!("{}", random.below(3000)).into_bytes(),
            }
        };
        let value = |random: &mut Random| -> Vec<u8> {
            let length = match random.below(300) {
                0 => 65_536,
                1 => 65_537,
                2 => 65_535,
                3 => 4096 + random.below(60_000),
                4 => 70_000 + random.below(300_000),
                5..60 => 0,
                _ => random.below(150),
            };
            random.bytes(length as usize)
        };
        for round in 0..6 {
            let place = format!("page {page_bytes}, round {round}");
            let mut tx = db.begin().unwrap();
            let mut own = models.clone();
            let mut savepoints = Vec::new();
            let removes_only = random.below(4) as usize;
            for _ in 0..3000 {
                let which = random.below(3) as usize;
                let key = key(&mut random);
                if random.one_in(4) || which == removes_only {
                    tx.remove(&keyspaces[which], &key).unwrap();
                    own[which].remove(&key);
                } else {
                    let value = value(&mut random);
                    tx.insert(&keyspaces[which], &key, &value).unwrap();
                    own[which].insert(key, value);
                }
                match random.below(400) {
                    0 => savepoints.push((tx.savepoint(), own.clone())),
                    1 if !savepoints.is_empty() => {
                        let at = random.below(savepoints.len() as u64) as usize;
                        savepoints.truncate(at + 1);
                        tx.rollback_to(savepoints[at].0).unwrap();
                        own = savepoints[at].1.clone();
                    }
                    2 => {
                        let mut scan = tx.range(&keyspaces[which], ..);
                        let expected: Vec<_> = own[which].iter().map(|(k, v)| (k.clone(), v.clone())).collect();
                        let (mut front, mut back) = (Vec::new(), Vec::new());
                        loop {
                            let (next, to) = if random.one_in(2) {
                                (scan.next(), &mut front)
                            } else {
                                (scan.next_back(), &mut back)
                            };
                            let Some(row) = next else { break };
                            let (key, value) = row.unwrap();
                            to.push((key.to_vec(), value.to_vec()));
                        }
                        front.extend(back.into_iter().rev());
                        assert!(front == expected, "{place}");
                        drop(scan);
                        let index = random.below(1 + expected.len() as u64);
                        let nth = tx.nth(&keyspaces[which], .., index).unwrap().map(|(k, v)| (k.to_vec(), v.to_vec()));
                        assert!(nth == expected.get(index as usize).cloned(), "{place}");
                        let first = tx.first(&keyspaces[which]).unwrap().map(|(k, v)| (k.to_vec(), v.to_vec()));
                        assert!(first == expected.first().cloned(), "{place}");
                        let last = tx.last(&keyspaces[which]).unwrap().map(|(k, v)| (k.to_vec(), v.to_vec()));
                        assert!(last == expected.last().cloned(), "{place}");
                        assert_eq!(
                            tx.sample(&keyspaces[which], .., 7).unwrap().len(),
                            expected.len().min(7),
                            "{place}"
                        );
                        let total = tx.count(&keyspaces[which], ..).unwrap();
                        assert_eq!(total, expected.len() as u64, "{place}");
                        let keys: Vec<Vec<u8>> = (0..20).map(|_| key_of(&mut random, &expected)).collect();
                        let found = tx.contains_many(&keyspaces[which], &keys).unwrap();
                        assert!(keys.iter().zip(found).all(|(key, found)| own[which].contains_key(key) == found));
                        let popped = tx.pop_first(&keyspaces[which]).unwrap().map(|(k, v)| (k.to_vec(), v.to_vec()));
                        assert!(popped == own[which].pop_first(), "{place}");
                        let popped = tx.pop_last(&keyspaces[which]).unwrap().map(|(k, v)| (k.to_vec(), v.to_vec()));
                        assert!(popped == own[which].pop_last(), "{place}");
                    }
                    _ => {}
                }
            }
            if random.one_in(3) {
                drop(tx);
            } else {
                tx.commit().unwrap();
                models = own;
            }
            assert_no_trace(&db, &place);
            for (keyspace, model) in keyspaces.iter().zip(&models) {
                assert!(
                    keyspace.iter().map(|row| row.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).eq(model.clone()),
                    "{place}"
                );
                assert_eq!(keyspace.count(..).unwrap(), model.len() as u64, "{place}");
                assert!(
                    keyspace
                        .iter()
                        .rev()
                        .map(|row| row.unwrap())
                        .map(|(k, v)| (k.to_vec(), v.to_vec()))
                        .eq(model.clone().into_iter().rev()),
                    "{place}"
                );
            }
            let report = db.check().unwrap();
            assert!(report.corruption.is_empty(), "{place}: {report:?}");
        }
        for keyspace in &keyspaces {
            keyspace.clear().unwrap();
        }
        // All large values are freed.
        for attempt in 0.. {
            db.checkpoint().unwrap();
            if db.stats().live_bytes < 64 << 10 {
                break;
            }
            assert!(attempt < 10_000, "page {page_bytes}: {} bytes live", db.stats().live_bytes);
            std::thread::yield_now();
        }
        db.close().unwrap();
    }
}

fn key_of(random: &mut Random, rows: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    match rows.len() as u64 {
        0 => b"none".to_vec(),
        _ if random.one_in(3) => format!("{}", random.below(3000)).into_bytes(),
        count => rows[random.below(count) as usize].0.clone(),
    }
}

/// A transaction whose changes are all undone commits nothing, and keeps its locks until then.
#[test]
fn a_large_transaction_may_commit_nothing() {
    let (db, k) = opened();
    let mut tx = db.begin().unwrap();
    let savepoint = tx.savepoint();
    for _ in 0..3 {
        put_many(&mut tx, &k).unwrap();
        tx.rollback_to(savepoint).unwrap();
        assert!(tx.is_empty(&k).unwrap());
    }
    assert!(matches!(impatient(&db).insert(&k, row_key(0), ""), Err(Error::LockTimeout { .. })));
    tx.commit().unwrap();
    assert!(k.is_empty().unwrap());
    assert_no_trace(&db, "nothing");
    // One row is left of many.
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "one", "1").unwrap();
    let savepoint = tx.savepoint();
    put_many(&mut tx, &k).unwrap();
    let scan = tx.iter(&k);
    tx.rollback_to(savepoint).unwrap();
    put_many(&mut tx, &k).unwrap();
    tx.rollback_to(savepoint).unwrap();
    assert_eq!(scan.count() as u64, MANY + 1);
    tx.commit().unwrap();
    assert_eq!(k.count(..).unwrap(), 1);
    assert_no_trace(&db, "one");
}

/// Two large transactions whose calls are dropped at any poll, commits included, leave no lock and no change on disk.
#[test]
fn dropped_calls_lose_no_lock() {
    let (db, k) = opened();
    for seed in 0..3 {
        let mut random = Random(seed);
        let mut txs = [db.begin().unwrap(), impatient(&db)];
        for tx in &mut txs {
            tx.set_lock_timeout(Duration::from_micros(100));
        }
        for _ in 0..12_000 {
            let tx = &mut txs[random.below(2) as usize];
            let row = row_key(random.below(3000));
            let polls = 1 + random.below(4) as usize;
            let ended = match random.below(4) {
                0 => block_on(within_polls(polls, tx.lock_row_async(&k, &row, LockMode::Exclusive))),
                1 => block_on(within_polls(polls, tx.get_async(&k, &row))).map(|result| result.map(drop)),
                2 => block_on(within_polls(polls, tx.remove_async(&k, &row))),
                _ => block_on(within_polls(polls, tx.insert_async(&k, &row, &[7; 300]))),
            };
            match ended {
                None | Some(Ok(())) | Some(Err(Error::LockTimeout { .. })) => {}
                Some(Err(error)) => panic!("seed {seed}: {error:?}"),
            }
        }
        let [one, other] = txs;
        let _ = block_on(within_polls(1 + random.below(4) as usize, one.commit_async()));
        let _ = block_on(other.commit_async());
        while !db.locks().unwrap().is_empty() || db.stats().transaction_disk_bytes > 0 {
            std::thread::yield_now();
        }
    }
}

/// An error while the changes are read again fails the call or the commit, and nothing else.
#[test]
fn an_unreadable_file_fails_the_transaction() {
    for nth in 1..40 {
        let (disk, config) = faulty();
        let db = config.open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        let mut tx = db.begin().unwrap();
        let mut put = || -> drumlin::Result<()> {
            for row in 0..MANY {
                tx.insert(&k, row_key(row * 7919 % MANY), [7; 100])?;
                if row == MANY / 2 {
                    disk.fail_nth(Operation::Read, nth, 5);
                }
            }
            for row in 0..50 {
                tx.get(&k, row_key(row * 100))?;
            }
            tx.count(&k, ..).map(drop)
        };
        let result = put();
        let committed = tx.commit();
        disk.heal();
        assert!(matches!(result, Ok(()) | Err(Error::Io { .. })), "{nth}: {result:?}");
        let count = k.count(..).unwrap();
        assert!(count == 0 || committed.is_ok(), "{count}");
        assert_no_trace(&db, "unreadable");
        k.insert("a", "b").unwrap();
    }
}

/// More large commits than a keyspace may have runs are replayed, with the removals among them.
#[test]
fn many_large_commits_are_replayed() {
    let mut random = Random(5);
    let mut disk = Disk::new(Medium::default(), 5);
    let mut rows = Model::new();
    for life in 0..4 {
        let db = config(&disk).open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        compare(&db.snapshot(), &k, &rows, &mut random, &format!("life {life}"));
        let snapshot = db.snapshot();
        let before = rows.clone();
        for _ in 0..9 {
            let mut tx = db.begin().unwrap();
            for _ in 0..MANY {
                let key = key(random.below(1000));
                change(&mut tx, &k, &mut rows, &mut random, key);
            }
            tx.commit().unwrap();
            compare(&db.snapshot(), &k, &rows, &mut random, &format!("life {life}"));
        }
        compare(&snapshot, &k, &before, &mut random, &format!("life {life}, old"));
        drop(snapshot);
        if life == 2 {
            db.checkpoint().unwrap();
        }
        disk = end_life(&disk, (db, k), life % 2 == 0, &mut random, 5);
    }
}

/// When many large transactions are open, they spill their changes earlier, so that memory is left for each of them and
/// for plain writes.
#[test]
fn large_transactions_leave_memory_for_others() {
    let (db, k) = opened();
    let mut open: Vec<Transaction> = (0..10).map(|_| db.begin().unwrap()).collect();
    for row in 0..MANY {
        for (number, tx) in open.iter_mut().enumerate() {
            tx.insert(&k, [&[number as u8][..], &row_key(row)].concat(), [7; 100]).unwrap();
        }
        if row % 500 == 0 {
            k.insert(row_key(row), "small").unwrap();
        }
    }
    assert!(open.into_iter().all(|tx| tx.commit().is_ok()));
    assert_eq!(k.count(..).unwrap(), 10 * MANY + MANY / 500);
}
