//! Prepared transactions: invisible, durable and locked until they are committed or aborted, over any number of
//! openings.

use std::time::Duration;

use drumlin::{
    CheckReport, Config, Database, Durability, Error, Field, Isolation, Keyspace, KeyspaceOptions, LockHolder,
    LockMode, Sum, Transaction, TxOptions,
};
use drumlin_io::testing::fault::Operation;
use drumlin_io::testing::sim::{Disk, Medium};
use smol::block_on;

use crate::support::{Folder, Model, Random, compare, faulty, small};

/// A database on a simulated disk, which is opened several times.
struct Lives {
    medium: Medium,
    seed: u64,
    streams: u16,
}

/// The end of a life.
#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    /// A kill after a checkpoint.
    CheckpointAndKill,
    Close,
}

const ENDS: [End; 3] = [End::Kill, End::CheckpointAndKill, End::Close];

impl Lives {
    fn new(streams: u16) -> Lives {
        Lives { medium: Medium::default(), seed: 1, streams }
    }

    /// Opens the database for the time of `body`, and ends it.
    fn live<T>(&mut self, end: End, body: impl FnOnce(&Database) -> T) -> T {
        self.seed += 1;
        let disk = Disk::new(self.medium.clone(), self.seed);
        let db = small().log_streams(self.streams).backend(disk.backend()).open("/db").unwrap();
        let result = body(&db);
        match end {
            End::Kill => {}
            End::CheckpointAndKill => drop(db.checkpoint().unwrap()),
            End::Close => return self.close(&disk, db, result),
        }
        disk.turn_off();
        self.medium = disk.medium();
        result
    }

    fn close<T>(&mut self, disk: &Disk, db: Database, result: T) -> T {
        db.close().unwrap();
        self.medium = disk.medium();
        result
    }
}

/// Returns a database with the rows `a` to `c`.
fn database() -> (Database, Keyspace) {
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    for key in ["a", "b", "c"] {
        k.insert(key, "0").unwrap();
    }
    (db, k)
}

/// Begins a transaction that does not wait for locks.
fn begin(db: &Database, isolation: Isolation) -> Transaction {
    db.begin_with(TxOptions { isolation, lock_timeout: Duration::ZERO, ..db.tx_options() }).unwrap()
}

/// Checks that a row is locked by a prepared transaction.
fn is_locked(db: &Database, k: &Keyspace, key: &[u8]) -> bool {
    match begin(db, Isolation::ReadCommitted).lock_row(k, key, LockMode::Exclusive) {
        Ok(()) => false,
        Err(Error::LockTimeout { holder: LockHolder::Prepared, .. }) => true,
        Err(error) => panic!("{error:?}"),
    }
}

fn ids(db: &Database) -> Vec<Vec<u8>> {
    db.prepared().unwrap().into_iter().map(|found| found.id).collect()
}

fn is_intact(report: &CheckReport) -> bool {
    assert!(report.corruption.is_empty(), "{:?}", report.corruption);
    true
}

fn is_invalid<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Invalid(_)))
}

/// No read sees the changes before the commit, other writers find the rows locked, and an abort leaves everything as it
/// was. Counts and reductions agree with the rows.
#[test]
fn nothing_is_visible_before_the_commit() {
    for commits in [true, false] {
        let (db, k) = database();
        let sum = Sum::of(Field::<u64>::big_endian(0));
        let numbers = db.keyspace("numbers").unwrap();
        numbers.insert("1", 5u64.to_be_bytes()).unwrap();
        assert_eq!(numbers.aggregate(&sum, ..).unwrap(), 5);
        let mut tx = db.begin().unwrap();
        tx.insert(&k, "a", "1").unwrap();
        tx.remove(&k, "b").unwrap();
        tx.insert(&k, "d", "1").unwrap();
        tx.insert(&numbers, "2", 7u64.to_be_bytes()).unwrap();
        let number = tx.number();
        tx.prepare("t").unwrap();

        let rows = |k: &Keyspace| k.iter().map(|row| row.unwrap().1[0]).collect::<Vec<u8>>();
        assert_eq!((rows(&k), k.count(..).unwrap(), numbers.aggregate(&sum, ..).unwrap()), (b"000".to_vec(), 3, 5));
        let found = db.prepared().unwrap();
        assert_eq!((found.len(), &found[0].id[..], found[0].row_count), (1, &b"t"[..], 4));
        assert!(found[0].number == number && found[0].age < Duration::from_secs(60));
        for key in ["a", "b", "d"] {
            assert!(is_locked(&db, &k, key.as_bytes()));
        }
        assert!(!is_locked(&db, &k, b"c") && is_locked(&db, &numbers, b"2"));
        assert!(db.locks().unwrap().iter().all(|row| row.holders == [number]) && db.locks().unwrap().len() == 4);

        let snapshot = db.snapshot();
        let other = db.clone();
        std::thread::spawn(move || match commits {
            true => other.commit_prepared("t").map(drop).unwrap(),
            false => other.abort_prepared("t").unwrap(),
        })
        .join()
        .unwrap();
        assert!(db.prepared().unwrap().is_empty() && db.locks().unwrap().is_empty());
        let expected = if commits { (b"101".to_vec(), 3, 12) } else { (b"000".to_vec(), 3, 5) };
        assert_eq!((rows(&k), k.count(..).unwrap(), numbers.aggregate(&sum, ..).unwrap()), expected);
        assert_eq!(snapshot.get(&k, "a").unwrap().unwrap(), "0", "an older snapshot sees the commit");
        k.insert("a", "2").unwrap();
        assert!(is_intact(&db.check().unwrap()));
    }
}

/// A writer that waits for a row of a prepared transaction continues when that transaction ends. Waiting for it is
/// never reported as a deadlock, because a prepared transaction waits for no lock.
#[test]
fn writers_wait_for_the_decision() {
    let (db, k) = database();
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "a", "1").unwrap();
    tx.prepare("t").unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut tx = db.begin_with(TxOptions { isolation: Isolation::ReadCommitted, ..db.tx_options() }).unwrap();
            tx.insert(&k, "b", "2").unwrap();
            tx.insert(&k, "a", "2").unwrap();
            tx.commit().unwrap();
        });
        while db.locks().unwrap().iter().all(|row| row.waiters.is_empty()) {
            std::thread::yield_now();
        }
        db.commit_prepared("t").unwrap();
        waiter.join().unwrap();
    });
    assert_eq!(k.get("a").unwrap().unwrap(), "2");
}

/// The errors of bad ids and calls change nothing.
#[test]
fn bad_calls_change_nothing() {
    let (db, k) = database();
    let prepare = |id: &[u8]| {
        let mut tx = db.begin().unwrap();
        tx.insert(&k, "x", "1").unwrap();
        tx.prepare(id)
    };
    assert!(is_invalid(&prepare(b"")) && is_invalid(&prepare(&[7; 141])));
    assert!(db.prepared().unwrap().is_empty() && !is_locked(&db, &k, b"x"));
    for id in [&[7; 140][..], b"\0", b"t"] {
        prepare(id).unwrap();
        let again = {
            let mut tx = db.begin().unwrap();
            tx.insert(&k, "y", "1").unwrap();
            tx.prepare(id)
        };
        assert!(matches!(&again, Err(Error::AlreadyPrepared { id: found }) if found == id), "{again:?}");
        assert!(!is_locked(&db, &k, b"y") && is_locked(&db, &k, b"x"));
        db.abort_prepared(id).unwrap();
    }
    for unknown in [&b"t"[..], b"", &[7; 1000]] {
        let is_unknown = |error: Error| matches!(error, Error::NotPrepared { id } if id == unknown);
        assert!(is_unknown(db.commit_prepared(unknown).unwrap_err()));
        assert!(is_unknown(db.abort_prepared(unknown).unwrap_err()));
    }
    // A transaction that has had a conflict is not prepared.
    let mut tx = db.begin().unwrap();
    tx.get(&k, "a").unwrap();
    k.insert("a", "1").unwrap();
    assert!(tx.insert(&k, "a", "2").unwrap_err().is_conflict());
    assert!(tx.prepare("t").unwrap_err().is_conflict());
    assert!(db.prepared().unwrap().is_empty() && k.count(..).unwrap() == 3);
}

/// A serializable transaction is prepared if it has locked all that it has read. Its shared locks stay until its end,
/// and so do locks of rows that it does not change.
#[test]
fn serializable_reads_must_be_locked() {
    let (db, k) = database();
    let mut tx = begin(&db, Isolation::Serializable);
    tx.get(&k, "a").unwrap();
    tx.insert(&k, "b", "1").unwrap();
    assert!(is_invalid(&tx.prepare("t")) && db.locks().unwrap().is_empty());
    for isolation in [Isolation::Serializable, Isolation::Snapshot, Isolation::ReadCommitted] {
        let mut tx = begin(&db, isolation);
        tx.get_for_share(&k, "a").unwrap();
        tx.get_for_update(&k, "b").unwrap();
        tx.insert(&k, "c", "1").unwrap();
        tx.prepare("t").unwrap();
        assert_eq!(db.prepared().unwrap()[0].row_count, 1);
        assert!(["a", "b", "c"].iter().all(|key| is_locked(&db, &k, key.as_bytes())));
        assert!(begin(&db, isolation).try_lock_row(&k, "a", LockMode::Shared).unwrap());
        db.commit_prepared("t").unwrap();
        assert!(db.locks().unwrap().is_empty());
    }
}

/// A transaction that changes nothing can be prepared, with and without locks.
#[test]
fn an_empty_transaction_is_prepared() {
    let mut lives = Lives::new(1);
    lives.live(End::Kill, |db| {
        let k = db.keyspace("k").unwrap();
        db.begin().unwrap().prepare("empty").unwrap();
        let mut tx = db.begin().unwrap();
        tx.lock_row(&k, "a", LockMode::Exclusive).unwrap();
        tx.prepare("locks").unwrap();
    });
    lives.live(End::Kill, |db| {
        assert_eq!(ids(db), [b"empty".to_vec(), b"locks".to_vec()]);
        assert!(db.prepared().unwrap().iter().all(|found| found.row_count == 0));
        assert!(is_locked(db, &db.keyspace("k").unwrap(), b"a"));
        db.commit_prepared("empty").unwrap();
        db.commit_prepared("locks").unwrap();
    });
    lives.live(End::Close, |db| assert!(ids(db).is_empty() && db.locks().unwrap().is_empty()));
}

/// Transactions of all sizes of changes and values, in several keyspaces with different pages: they stay prepared over
/// kills and closings, their locks are held again before the first call, and each is then committed or aborted as a
/// whole.
#[test]
fn it_lasts_over_kills_and_closings() {
    for (number, first_end) in ENDS.into_iter().enumerate() {
        for second_end in ENDS {
            for streams in [1, 3] {
                last_over(first_end, second_end, streams, number as u64);
            }
        }
    }
}

fn last_over(first_end: End, second_end: End, streams: u16, seed: u64) {
    let mut random = Random(seed);
    let mut lives = Lives::new(streams);
    // The sizes of the values of each transaction: a few rows, medium values, changes that do not fit into an extent,
    // large values.
    let sizes: [&[usize]; 4] =
        [&[10, 0, 100], &[3000, 20_000, 60_000], &[40_000, 1, 40_000, 90], &[200_000, 5, 600_000]];
    let changes: Vec<Vec<(Vec<u8>, Vec<u8>)>> = (sizes.iter().enumerate())
        .map(|(tx, sizes)| {
            let row = |(row, size): (usize, &usize)| (format!("{tx}/{row}").into_bytes(), random.bytes(*size));
            sizes.iter().enumerate().map(row).collect()
        })
        .collect();
    let keyspaces = |db: &Database| {
        let options = KeyspaceOptions::new().page_bytes(16 << 10);
        [db.keyspace("small").unwrap(), db.keyspace_with("big", options).unwrap()]
    };
    let mut models = [Model::new(), Model::new()];
    lives.live(first_end, |db| {
        let all = keyspaces(db);
        for (k, model) in all.iter().zip(&mut models) {
            for tx in 0..changes.len() {
                // Rows that will be replaced and removed.
                for row in ["0", "removed"] {
                    k.insert(format!("{tx}/{row}"), "old").unwrap();
                    model.insert(format!("{tx}/{row}").into_bytes(), b"old".to_vec());
                }
            }
        }
        for (number, rows) in changes.iter().enumerate() {
            let mut tx = db.begin().unwrap();
            for k in &all {
                rows.iter().for_each(|(key, value)| tx.insert(k, key, value).unwrap());
                tx.remove(k, format!("{number}/removed")).unwrap();
            }
            tx.prepare([number as u8]).unwrap();
        }
        // Other commits come after, so that recoveries have to keep the order.
        for (k, model) in all.iter().zip(&mut models) {
            k.insert("other", "row").unwrap();
            model.insert(b"other".to_vec(), b"row".to_vec());
        }
    });
    let check = |db: &Database, models: &[Model; 2], left: &[usize]| {
        let locks = db.locks().unwrap();
        assert_eq!(locks.len(), left.iter().map(|tx| 2 * (changes[*tx].len() + 1)).sum::<usize>());
        assert_eq!(ids(db), left.iter().map(|tx| vec![*tx as u8]).collect::<Vec<_>>());
        for (k, model) in keyspaces(db).iter().zip(models) {
            compare(k, model);
            for tx in left {
                assert!(changes[*tx].iter().all(|(key, _)| is_locked(db, k, key)));
            }
        }
        let report = db.check().unwrap();
        assert!(report.corruption.is_empty(), "{:?}", report.corruption);
        assert_eq!((report.keyspaces, report.rows), (2, models.iter().map(|model| model.len() as u64).sum::<u64>()));
    };
    lives.live(second_end, |db| {
        check(db, &models, &[0, 1, 2, 3]);
        // Values move while nothing but a prepared transaction refers to them.
        db.compact().unwrap();
        check(db, &models, &[0, 1, 2, 3]);
    });
    for (number, rows) in changes.iter().enumerate() {
        let commits = !(number as u64 + seed).is_multiple_of(3);
        let end = if number % 2 == 0 { first_end } else { second_end };
        lives.live(end, |db| {
            match commits {
                true => db.commit_prepared([number as u8]).map(drop).unwrap(),
                false => db.abort_prepared([number as u8]).unwrap(),
            }
            if commits {
                for model in &mut models {
                    model.extend(rows.iter().cloned());
                    model.remove(format!("{number}/removed").as_bytes());
                }
            }
            let left: Vec<usize> = (number + 1..changes.len()).collect();
            check(db, &models, &left);
        });
        let left: Vec<usize> = (number + 1..changes.len()).collect();
        lives.live(End::Kill, |db| check(db, &models, &left));
    }
}

/// Many transactions are prepared, committed and aborted, also several times under one id, and the process is killed: a
/// recovery replays them in their order.
#[test]
fn a_recovery_replays_decisions_in_order() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let mut lives = Lives::new(1 + (seed % 3) as u16);
        let mut model = Model::new();
        let mut open: Vec<(Vec<u8>, Model)> = Vec::new();
        for _ in 0..5 {
            let end = ENDS[random.below(3) as usize];
            lives.live(end, |db| {
                let k = db.keyspace("k").unwrap();
                assert_eq!(ids(db).len(), open.len());
                compare(&k, &model);
                for _ in 0..60 {
                    let id = vec![random.below(5) as u8];
                    let at = open.iter().position(|(open, _)| *open == id);
                    match at {
                        Some(at) => {
                            let (_, changes) = open.swap_remove(at);
                            if random.chance(70) {
                                db.commit_prepared(&id).unwrap();
                                model.extend(changes);
                            } else {
                                db.abort_prepared(&id).unwrap();
                            }
                        }
                        None => {
                            let mut tx = begin(db, Isolation::ReadCommitted);
                            let mut changes = Model::new();
                            for _ in 0..=random.below(3) {
                                let key = vec![random.below(40) as u8];
                                let value = match random.below(12) {
                                    0 => random.bytes(150_000),
                                    1 => random.bytes(70_000 / 2),
                                    _ => random.bytes(8),
                                };
                                if tx.insert(&k, &key, &value).is_ok() {
                                    changes.insert(key, value);
                                }
                            }
                            tx.prepare(&id).unwrap();
                            open.push((id, changes));
                        }
                    }
                    if random.chance(20) {
                        let key = vec![100 + random.below(5) as u8];
                        k.insert(&key, "plain").unwrap();
                        model.insert(key, b"plain".to_vec());
                    }
                    if random.chance(3) {
                        db.checkpoint().unwrap();
                    }
                }
                compare(&k, &model);
                assert!(is_intact(&db.check().unwrap()));
            });
        }
    }
}

/// The space of large values is freed when their transaction is aborted, and kept as long as it is prepared.
#[test]
fn an_abort_frees_large_values() {
    let mut lives = Lives::new(1);
    let value = Random(1).bytes(3_000_000);
    let live_bytes = |db: &Database| {
        db.compact().unwrap();
        db.stats().live_bytes
    };
    let (before, prepared) = lives.live(End::Kill, |db| {
        let k = db.keyspace("k").unwrap();
        let before = live_bytes(db);
        let mut tx = db.begin().unwrap();
        tx.insert(&k, "film", &value).unwrap();
        tx.prepare("t").unwrap();
        (before, live_bytes(db))
    });
    assert!(prepared > before + 3_000_000);
    lives.live(End::Kill, |db| {
        assert!(live_bytes(db) > before + 3_000_000);
        db.abort_prepared("t").unwrap();
        db.keyspace("k").unwrap().insert("other", "row").unwrap();
        let after = live_bytes(db);
        assert!(after < before + 100_000, "{after} bytes are live, {before} were before");
    });
    lives.live(End::Close, |db| assert!(live_bytes(db) < before + 100_000));
}

/// The reader of a large value of the transaction's own fails once the transaction is prepared, and reads nothing
/// wrong.
#[test]
fn readers_of_own_values_end() {
    use std::io::Read;

    let (db, k) = database();
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "film", vec![7; 600_000]).unwrap();
    let mut reader = tx.read(&k, "film").unwrap().unwrap();
    let mut bytes = vec![0; 10];
    reader.read_exact(&mut bytes).unwrap();
    tx.prepare("t").unwrap();
    let mut rest = Vec::new();
    assert!(reader.read_to_end(&mut rest).is_err() && rest.iter().all(|byte| *byte == 7));
    db.commit_prepared("t").unwrap();
    assert_eq!(k.get("film").unwrap().unwrap(), vec![7; 600_000]);
}

/// A keyspace can't be dropped, and no bulk load attached to it, while a prepared transaction has changed or locked its
/// rows. The error names the transactions.
#[test]
fn keyspaces_with_prepared_rows_stay() {
    let mut lives = Lives::new(1);
    lives.live(End::Close, |db| {
        for (number, id) in ["t1", "t2"].into_iter().enumerate() {
            let k = db.keyspace(&format!("k{number}")).unwrap();
            let both = db.keyspace("both").unwrap();
            let mut tx = db.begin().unwrap();
            tx.insert(&k, "a", "1").unwrap();
            tx.lock_row(&both, id, LockMode::Exclusive).unwrap();
            tx.prepare(id).unwrap();
        }
    });
    lives.live(End::Kill, |db| {
        let names = |name: &str| match db.drop_keyspace(name) {
            Err(Error::PreparedRows { keyspace, ids }) if keyspace == name => ids,
            other => panic!("{other:?}"),
        };
        assert_eq!(names("both"), [b"t1".to_vec(), b"t2".to_vec()]);
        assert_eq!(names("k0"), [b"t1".to_vec()]);
        // Its locked row keeps the load from replacing the root of the keyspace, so the load becomes a run.
        let mut load = db.bulk_load("k0").unwrap();
        load.insert("b", "2").unwrap();
        load.finish().unwrap();
        db.commit_prepared("t1").unwrap();
        assert_eq!(db.existing_keyspace("k0").unwrap().count(..).unwrap(), 2);
        assert_eq!(names("both"), [b"t2".to_vec()]);
        db.drop_keyspace("k0").unwrap();
        db.abort_prepared("t2").unwrap();
        db.drop_keyspace("both").unwrap();
        let gone = db.keyspace("k1").unwrap();
        let mut tx = db.begin().unwrap();
        tx.insert(&gone, "a", "1").unwrap();
        db.drop_keyspace("k1").unwrap();
        assert!(matches!(tx.prepare("t3"), Err(Error::KeyspaceDropped { name }) if name == "k1"));
        assert!(db.prepared().unwrap().is_empty());
    });
}

/// The keyspace of prepared transactions exists from the first prepare on, and no call shows it.
#[test]
fn its_keyspace_is_hidden() {
    let (db, k) = database();
    let timestamp = db.sync().map(|()| db.stats().durable).unwrap();
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "a", "1").unwrap();
    tx.prepare("t").unwrap();
    assert_eq!(db.stats().durable.0, timestamp.0 + 2, "the keyspace was created before the first prepare");
    let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["k"]);
    assert!(is_invalid(&db.keyspace("")) && is_invalid(&db.bulk_load("")));
    assert!(matches!(db.existing_keyspace(""), Err(Error::NoSuchKeyspace { .. })));
    assert!(matches!(db.drop_keyspace(""), Err(Error::NoSuchKeyspace { .. })));
    let report = db.check().unwrap();
    assert_eq!((report.keyspaces, report.rows), (1, 3));
    // Its number does not use up the others.
    let next = db.keyspace("next").unwrap();
    next.insert("a", "1").unwrap();
    assert_eq!(db.keyspaces().len(), 2);
}

/// A read-only opening shows prepared transactions, and can't end them.
#[test]
fn a_reader_sees_them() {
    let folder = Folder::new();
    let db = small().open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "a", "1").unwrap();
    tx.prepare("t").unwrap();
    db.close().unwrap();
    let db = small().read_only(true).open(folder.path()).unwrap();
    assert_eq!(ids(&db), [b"t".to_vec()]);
    assert!(matches!(db.commit_prepared("t"), Err(Error::ReadOnly { .. })));
    assert!(matches!(db.abort_prepared("t"), Err(Error::ReadOnly { .. })));
    assert!(matches!(db.begin().unwrap().prepare("u"), Err(Error::ReadOnly { .. })));
    assert!(db.existing_keyspace("k").unwrap().is_empty().unwrap());
    drop(db);
    assert_eq!(Config::new().open(folder.path()).unwrap().prepared().unwrap().len(), 1);
    assert!(is_intact(&Config::new().examine(folder.path()).unwrap()));
}

/// Once the log has failed, every call says why, and the transactions that were prepared before are there at the next
/// opening.
#[test]
fn a_failed_log_is_told() {
    let (disk, config) = faulty();
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    let prepare = |key: &str, id: &str| {
        let mut tx = db.begin()?;
        tx.insert(&k, key, "1")?;
        tx.prepare(id)
    };
    prepare("a", "t1").unwrap();
    prepare("b", "t2").unwrap();
    let mut late = db.begin().unwrap();
    late.insert(&k, "d", "1").unwrap();
    disk.fail_from(Operation::Sync, 1, 5);
    let lost = prepare("c", "t3");
    assert!(matches!(lost, Err(Error::OutcomeUnknown { .. })), "{lost:?}");
    let is_failed = |error: Option<Error>| matches!(error, Some(Error::Failed { .. }));
    assert!(is_failed(db.commit_prepared("t1").err()) && is_failed(db.abort_prepared("t2").err()));
    assert!(is_failed(late.prepare("t4").err()));
    assert!(db.locks().unwrap().iter().any(|row| row.key == b"a"));
    drop((k, db));
    disk.heal();
    let db = config.open("/db").unwrap();
    let found = ids(&db);
    assert!(found.starts_with(&[b"t1".to_vec(), b"t2".to_vec()]) && found.len() <= 3, "{found:?}");
    db.commit_prepared("t1").unwrap();
    assert_eq!(db.keyspace("k").unwrap().count(..).unwrap(), 1);
}

/// On a full disk, a prepare or commit that finds no space fails and changes nothing, and an abort succeeds.
#[test]
fn a_full_disk_refuses_and_keeps() {
    let (disk, config) = faulty();
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    let value = Random(1).bytes(2_000_000);
    let prepare = |id: &[u8]| {
        let mut tx = db.begin()?;
        tx.insert(&k, id, &value)?;
        (0..200).try_for_each(|row: u32| tx.insert(&k, [id, &row.to_be_bytes()].concat(), &value[..900]))?;
        tx.prepare(id)
    };
    prepare(b"first").unwrap();
    disk.set_space_limit(Some(disk.space_used() + (5 << 20)));
    let mut prepared = Vec::new();
    let refusal = (0..100u8).find_map(|id| match prepare(&[id]) {
        Ok(()) => {
            prepared.push(id);
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(refusal, Some(Error::DiskFull { .. })), "{refusal:?}");
    assert_eq!(ids(&db).len(), prepared.len() + 1);
    for id in prepared {
        db.abort_prepared([id]).unwrap();
    }
    db.commit_prepared("first").unwrap();
    assert_eq!((k.count(..).unwrap(), k.get("first").unwrap().unwrap().len()), (201, value.len()));
    assert!(is_intact(&db.check().unwrap()));
}

/// The locks of prepared transactions may take half of the memory of transactions, so that others can go on. A smaller
/// budget in which they do not fit is refused.
#[test]
fn locks_of_prepared_transactions_are_limited() {
    let folder = Folder::new();
    let config = |mib: u64| small().page_bytes(4096).memory(mib << 20);
    let db = config(32).open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let mut count = 0u32;
    let refusal = loop {
        let mut tx = db.begin().unwrap();
        (0..500u32).for_each(|row| tx.insert(&k, [count.to_be_bytes(), row.to_be_bytes()].concat(), "1").unwrap());
        match tx.prepare(count.to_be_bytes()) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refusal, Error::MemoryInUse { .. }) && count > 10, "{count}: {refusal:?}");
    let mut tx = db.begin().unwrap();
    (0..500u32).for_each(|row| tx.insert(&k, row.to_be_bytes(), "1").unwrap());
    tx.commit().unwrap();
    db.close().unwrap();
    assert!(matches!(config(8).open(folder.path()), Err(Error::BudgetTooSmall { .. })));
    let db = config(32).open(folder.path()).unwrap();
    assert_eq!(ids(&db).len(), count as usize);
    for id in 0..count {
        db.commit_prepared_with(id.to_be_bytes(), Durability::Relaxed).unwrap();
    }
    assert_eq!(db.keyspace("k").unwrap().count(..).unwrap(), u64::from(count) * 500 + 500);
}

/// A prepared transaction keeps no part of the log.
#[test]
fn the_log_does_not_grow() {
    let (db, k) = database();
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "a", "1").unwrap();
    tx.prepare("forgotten").unwrap();
    db.checkpoint().unwrap();
    let before = db.stats().log_bytes;
    for row in 0..3000u32 {
        k.insert_with(row.to_be_bytes(), [7; 1000], Durability::Relaxed).unwrap();
        if row % 500 == 0 {
            db.checkpoint().unwrap();
        }
    }
    assert!(db.stats().log_bytes <= before.max(32 << 20), "{} bytes of log", db.stats().log_bytes);
    db.commit_prepared("forgotten").unwrap();
}

/// The asynchronous calls do the same, for transactions that a task commits itself and for ones that are too long for
/// that.
#[test]
fn tasks_prepare_and_commit() {
    let (db, k) = database();
    for rows in [1u32, 3, 2000] {
        for commits in [true, false] {
            block_on(async {
                let mut tx = db.begin().unwrap();
                for row in 0..rows {
                    tx.insert_async(&k, row.to_be_bytes(), "1").await.unwrap();
                }
                tx.prepare_async("t").await.unwrap();
                assert_eq!(k.count_async(..).await.unwrap(), 3);
                match commits {
                    true => drop(db.commit_prepared_async("t").await.unwrap()),
                    false => db.abort_prepared_async("t").await.unwrap(),
                }
                assert_eq!(k.count_async(..).await.unwrap(), if commits { 3 + u64::from(rows) } else { 3 });
                k.remove_range_async([0u8].as_slice()..&[1u8]).await.unwrap();
                let mut tx = db.begin().unwrap();
                tx.insert_async(&k, "a", "1").await.unwrap();
                tx.prepare_async("u").await.unwrap();
                db.commit_prepared_with_async("u", Durability::Relaxed).await.unwrap();
            });
        }
    }
}

/// Prepares a transaction that inserts these rows.
fn prepare(db: &Database, k: &Keyspace, id: &str, keys: impl IntoIterator<Item = u32>, value: &[u8]) {
    let mut tx = db.begin().unwrap();
    keys.into_iter().for_each(|key| tx.insert(k, key.to_be_bytes(), value).unwrap());
    tx.prepare(id).unwrap();
}

/// A ready transaction is committed by its signal, on another thread too, in the order of the signals; one that is
/// dropped stays prepared. While one is ready, no other call can end it.
#[test]
fn ready_transactions_are_committed_in_any_order() {
    let mut lives = Lives::new(2);
    let large = Random(1).bytes(400_000);
    lives.live(End::Kill, |db| {
        let k = db.keyspace("k").unwrap();
        prepare(db, &k, "small", 0..3, b"small");
        prepare(db, &k, "long", 10..400, &[7; 200]);
        prepare(db, &k, "large", 500..502, &large);
        let empty = db.begin().unwrap();
        empty.prepare("empty").unwrap();
        drop(db.ready_prepared("small").unwrap());
        assert!(matches!(db.ready_prepared("none").err(), Some(Error::NotPrepared { .. })));
        let ready: Vec<_> =
            ["small", "long", "large", "empty"].map(|id| db.ready_prepared(id).unwrap()).into_iter().collect();
        for id in ["small", "empty"] {
            assert!(
                matches!(db.commit_prepared(id), Err(Error::PreparedInUse { id: found }) if found == id.as_bytes())
            );
            assert!(matches!(db.abort_prepared(id), Err(Error::PreparedInUse { .. })));
            assert!(matches!(db.ready_prepared(id).err(), Some(Error::PreparedInUse { .. })));
        }
        assert_eq!((ids(db).len(), k.count(..).unwrap()), (4, 0));
        // Values of a ready transaction move, checkpoints are made, and its neighbours split its leaves.
        db.compact().unwrap();
        (1000..1500u32).for_each(|key| k.insert(key.to_be_bytes(), [8; 100]).unwrap());
        (20_000..20_300u32).for_each(|key| k.insert([0, 0, 0, 5, (key % 256) as u8, (key / 256) as u8], "").unwrap());
        db.checkpoint().unwrap();
        let before = k.count(..).unwrap();
        let mut timestamps = Vec::new();
        for ready in ready.into_iter().rev() {
            timestamps.push(std::thread::scope(|scope| scope.spawn(|| ready.commit().unwrap()).join().unwrap()));
        }
        assert!(timestamps.is_sorted() && ids(db).is_empty() && db.locks().unwrap().is_empty());
        assert_eq!(k.count(..).unwrap(), before + 3 + 390 + 2);
        assert!(k.get(501u32.to_be_bytes()).unwrap().unwrap() == large);
        assert!(is_intact(&db.check().unwrap()));
        db.sync().unwrap();
    });
    lives.live(End::Kill, |db| {
        let k = db.keyspace("k").unwrap();
        assert!(ids(db).is_empty() && k.get(500u32.to_be_bytes()).unwrap().unwrap() == large);
        assert_eq!(k.get(2u32.to_be_bytes()).unwrap().unwrap(), "small");
    });
}

/// No commit waits for ready transactions, however many there are: neither the longest record, nor a commit of as many
/// pages or old rows as there may be.
#[test]
fn ready_transactions_hold_up_no_commit() {
    for log_streams in [1, 3] {
        let db =
            small().page_bytes(4096).log_streams(log_streams).backend(drumlin_io::in_memory()).open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        let mut ready = Vec::new();
        for number in 0..16u32 {
            let id = format!("{number:0140}");
            prepare(&db, &k, &id, (0..3).map(|row| 100 * number + row), &[7; 900]);
            ready.push(db.ready_prepared(&id).unwrap());
        }
        let limit_bytes = db.limits().transaction_log_bytes as usize;
        let value = vec![7; 900];
        for round in 0..3u32 {
            let mut batch = db.batch().unwrap();
            let count = (limit_bytes / (900 + 11 + 4)) as u32;
            (0..count).for_each(|key| batch.insert(&k, (10_000 + key).to_be_bytes(), &value).unwrap());
            batch.commit_with(if round == 0 { Durability::Relaxed } else { Durability::Full }).unwrap();
        }
        ready.into_iter().for_each(|ready| assert!(ready.commit().is_ok()));
        assert!(ids(&db).is_empty());
    }
}

/// Ready transactions pin a part of the pages only, all together.
#[test]
fn ready_transactions_have_a_limit() {
    let (db, k) = database();
    for keys in 0..40u32 {
        let mut batch = db.batch().unwrap();
        (0..100).for_each(|key| batch.insert(&k, (100 * keys + key).to_be_bytes(), [7; 500]).unwrap());
        batch.commit().unwrap();
    }
    let mut ready = Vec::new();
    let refusal = (0..16u32).find_map(|number| {
        prepare(&db, &k, &number.to_string(), (0..40).map(|row| 100 * row + number), b"1");
        match db.ready_prepared(number.to_string()) {
            Ok(one) => {
                ready.push(one);
                None
            }
            Err(error) => Some(error),
        }
    });
    assert!(matches!(refusal, Some(Error::MemoryInUse { .. })) && ready.len() > 1, "{}: {refusal:?}", ready.len());
    let refused = ready.len().to_string();
    drop(ready);
    db.ready_prepared(&refused).unwrap().commit().unwrap();
    assert_eq!(k.get(refused.parse::<u32>().unwrap().to_be_bytes()).unwrap().unwrap(), "1");
}

/// A ready transaction whose database is closed or has failed is refused, and prepared at the next opening.
#[test]
fn a_ready_transaction_may_come_too_late() {
    for fails in [false, true] {
        let (disk, config) = faulty();
        let db = config.open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        prepare(&db, &k, "t", 0..5, b"1");
        let ready = db.ready_prepared("t").unwrap();
        if fails {
            disk.fail_from(Operation::Sync, 1, 5);
            k.insert("x", "1").unwrap_err();
            assert!(matches!(ready.commit(), Err(Error::Failed { .. })));
            drop((k, db));
            disk.heal();
        } else {
            db.close().unwrap();
            assert!(matches!(ready.commit(), Err(Error::Closed)));
            drop(k);
        }
        let db = config.open("/db").unwrap();
        assert_eq!(ids(&db), [b"t".to_vec()]);
        db.ready_prepared("t").unwrap().commit().unwrap();
        assert_eq!(db.keyspace("k").unwrap().get(4u32.to_be_bytes()).unwrap().unwrap(), "1");
    }
}
