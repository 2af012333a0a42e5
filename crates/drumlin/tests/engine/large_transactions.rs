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

/// Puts so many rows that the transaction spills them: the even ones below twice `MANY`.
fn put_many(tx: &mut Transaction, keyspace: &Keyspace) -> drumlin::Result<()> {
    (0..MANY).try_for_each(|row| tx.insert(keyspace, row_key(2 * row), [7; 100]))
}

/// A transaction in which a write that finds a locked row fails at once.
fn impatient(db: &Database) -> Transaction {
    db.begin_with(TxOptions { lock_timeout: Duration::ZERO, ..db.tx_options() }).unwrap()
}

/// A spilled row is locked like any other: for transactions, calls outside of them, batches, pops and range deletes.
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

/// A transaction of tasks spills on another thread. A call that is dropped while it does so changes nothing, and the
/// next call goes on.
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

/// Several keyspaces are changed by one commit, at one timestamp. One that is dropped meanwhile makes the commit fail.
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
/// large value may be gone, and the reader is told so.
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
