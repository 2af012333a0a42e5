//! Many threads use a few hot keyspaces with small pages, with checkpoints, compaction and eviction under a small
//! budget.
//!
//! These invariants hold at all times: all reads of one snapshot see the same sum over all accounts; rows that are
//! never removed are found, in order; a value contains its row's key. `DRUMLIN_TEST_SECONDS` is the duration (default
//! 5). The test is also meant to run under ThreadSanitizer and AddressSanitizer.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drumlin::{Database, Durability, Error, Isolation, Keyspace, KeyspaceOptions, TxOptions};
use support::{BACKENDS, Folder, Random, number, small};

const ACCOUNTS: u64 = 400;
const START: u64 = 1000;

fn amount(value: &[u8]) -> u64 {
    u64::from_be_bytes(value[..8].try_into().unwrap())
}

fn sum(rows: impl Iterator<Item = drumlin::Result<(drumlin::Value, drumlin::Value)>>) -> drumlin::Result<Option<u64>> {
    let mut total = 0;
    let mut count = 0;
    for row in rows {
        total += amount(&row?.1);
        count += 1;
    }
    assert_eq!(count, ACCOUNTS);
    Ok(Some(total))
}

/// Returns an account's key, long enough that inner nodes hold few keys and split often.
fn account(number: u64) -> Vec<u8> {
    format!("account/{number:08}/{}", "x".repeat((number % 60) as usize)).into_bytes()
}

/// Returns a value that contains its row's key.
fn stamped(key: &[u8], random: &mut Random) -> Vec<u8> {
    let length = match random.below(200) {
        0 => 70_000 + random.below(100_000),
        1..20 => 500 + random.below(8000),
        _ => random.below(100),
    };
    let mut value = key.to_vec();
    value.push(b'|');
    value.resize(key.len() + 1 + length as usize, key.iter().fold(7, |sum: u8, byte| sum.wrapping_add(*byte)));
    value
}

fn check_stamp(key: &[u8], value: &[u8]) {
    let filler = key.iter().fold(7, |sum: u8, byte| sum.wrapping_add(*byte));
    assert!(value.starts_with(key) && value[key.len()] == b'|', "{} has another's value", key.escape_ascii());
    assert!(value[key.len() + 1..].iter().all(|&byte| byte == filler), "{}: a torn value", key.escape_ascii());
}

/// Returns the key with this number. Rows with even numbers always exist; odd ones are inserted and removed.
fn churned(number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.extend(vec![b'-'; (number.wrapping_mul(7919) % 100) as usize]);
    key
}

const CHURNED: u64 = 4000;

struct Stage {
    db: Database,
    accounts: Keyspace,
    churn: Keyspace,
    stop: AtomicBool,
    done: AtomicU64,
    /// The number of complete scans of churned rows.
    whole_scans: AtomicU64,
}

impl Stage {
    fn goes_on(&self) -> bool {
        self.done.fetch_add(1, Ordering::Relaxed);
        !self.stop.load(Ordering::Acquire)
    }

    /// Moves money between accounts; snapshot isolation keeps the sum constant.
    fn transfer(&self, seed: u64) {
        let mut random = Random(seed);
        while self.goes_on() {
            let durability = if random.chance(80) { Durability::Relaxed } else { Durability::Full };
            let options = TxOptions { durability, ..TxOptions::default() };
            let moved = (|| {
                let mut tx = self.db.begin_with(options)?;
                let mark = tx.savepoint();
                for _ in 0..1 + random.below(6) {
                    let (from, to) = (account(random.below(ACCOUNTS)), account(random.below(ACCOUNTS)));
                    if from == to {
                        continue;
                    }
                    let has = amount(&tx.get_for_update(&self.accounts, &from)?.expect("accounts stay"));
                    let taken = random.below(50).min(has);
                    let fill = vec![0; random.below(60) as usize];
                    tx.insert(&self.accounts, &from, [&(has - taken).to_be_bytes()[..], &fill].concat())?;
                    let has = amount(&tx.get(&self.accounts, &to)?.expect("accounts stay"));
                    tx.insert(&self.accounts, &to, [&(has + taken).to_be_bytes()[..], &fill].concat())?;
                    if random.chance(5) {
                        tx.rollback_to(mark)?;
                    }
                }
                if random.chance(5) {
                    assert_eq!(sum(tx.iter(&self.accounts))?, Some(ACCOUNTS * START), "within a transaction");
                }
                if random.chance(90) { tx.commit().map(drop) } else { Ok(()) }
            })();
            match moved {
                Ok(()) | Err(Error::Conflict { .. } | Error::SnapshotTooOld { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn audit(&self, seed: u64) {
        let mut random = Random(seed);
        while self.goes_on() {
            let looked = match random.below(4) {
                0 => sum(self.accounts.iter()),
                1 => sum(self.accounts.iter().rev()),
                2 => (|| {
                    let snapshot = self.db.snapshot();
                    let first = sum(snapshot.iter(&self.accounts))?;
                    std::thread::sleep(Duration::from_millis(random.below(20)));
                    let mut total = 0;
                    for number in 0..ACCOUNTS {
                        total += amount(&snapshot.get(&self.accounts, account(number))?.expect("accounts stay"));
                    }
                    assert_eq!(first, Some(total), "a snapshot changed");
                    Ok(first)
                })(),
                _ => (|| {
                    let options = TxOptions { isolation: Isolation::ReadCommitted, ..TxOptions::default() };
                    sum(self.db.begin_with(options)?.iter(&self.accounts))
                })(),
            };
            match looked {
                Ok(total) => assert_eq!(total, Some(ACCOUNTS * START)),
                Err(Error::SnapshotTooOld { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn churn(&self, seed: u64) {
        let mut random = Random(seed);
        let mut at = random.below(CHURNED);
        while self.goes_on() {
            // Choose neighbours in most steps, so that leaves fill, split, empty and merge.
            at = if random.chance(3) { random.below(CHURNED) } else { (at + 1) % CHURNED };
            let key = churned(at);
            if at.is_multiple_of(2) || random.chance(45) {
                self.churn.insert_with(&key, stamped(&key, &mut random), Durability::Relaxed).unwrap();
            } else {
                let mut tx = self.db.begin().unwrap();
                let removed = (0..40)
                    .map(|step| (at + 2 * step) % CHURNED)
                    .filter(|number| !number.is_multiple_of(2))
                    .try_for_each(|number| tx.remove(&self.churn, churned(number)));
                let options_differ = removed.and_then(|()| tx.commit().map(drop));
                assert!(matches!(options_differ, Ok(()) | Err(Error::Conflict { .. })), "{options_differ:?}");
            }
        }
    }

    fn look(&self, seed: u64) {
        let mut random = Random(seed);
        while self.goes_on() {
            match random.below(20) {
                0 => {
                    let from = random.below(CHURNED);
                    let mut expected = from.next_multiple_of(2);
                    let mut previous = Vec::new();
                    let mut is_whole = true;
                    for row in self.churn.range(churned(from)..).take(300) {
                        // The writers left more than 512 KiB of versions while this scan read pages from disk.
                        if matches!(row, Err(Error::SnapshotTooOld { .. })) {
                            is_whole = false;
                            break;
                        }
                        let (key, value) = row.unwrap();
                        assert!(previous[..] < key[..], "rows out of order");
                        check_stamp(&key, &value);
                        let number = u64::from_be_bytes(key[..8].try_into().unwrap());
                        if number.is_multiple_of(2) {
                            assert_eq!(number, expected, "a row that nobody removes was not met");
                            expected += 2;
                        }
                        previous = key.to_vec();
                    }
                    self.whole_scans.fetch_add(u64::from(is_whole), Ordering::Relaxed);
                }
                1 => {
                    let keys: Vec<Vec<u8>> = (0..50).map(|_| churned(random.below(CHURNED))).collect();
                    for (key, value) in keys.iter().zip(self.churn.get_many(&keys).unwrap()) {
                        value.iter().for_each(|value| check_stamp(key, value));
                    }
                }
                _ => {
                    let number = random.below(CHURNED);
                    let key = churned(number);
                    let value = self.churn.get(&key).unwrap();
                    assert!(value.is_some() || !number.is_multiple_of(2), "row {number} is always there");
                    value.iter().for_each(|value| check_stamp(&key, value));
                }
            }
        }
    }

    fn maintenance(&self, seed: u64) {
        let mut random = Random(seed);
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(random.below(60)));
            match random.below(10) {
                0 => drop(self.db.compact().unwrap()),
                1 => {
                    let name = format!("short-lived {}", random.below(3));
                    let keyspace = self.db.keyspace_with(&name, KeyspaceOptions::new().page_bytes(512)).unwrap();
                    for number in 0..200u64 {
                        let key = number.to_be_bytes();
                        match keyspace.insert_with(key, vec![1; 600], Durability::Relaxed) {
                            Ok(()) | Err(Error::KeyspaceDropped { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    match self.db.drop_keyspace(&name) {
                        Ok(()) | Err(Error::NoSuchKeyspace { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                _ => drop(self.db.checkpoint().unwrap()),
            }
        }
    }
}

fn stress(config: &drumlin::Config, path: &std::path::Path, seed: u64) -> u64 {
    let db = config.open(path).unwrap();
    let accounts = db.keyspace_with("accounts", KeyspaceOptions::new().page_bytes(512)).unwrap();
    let churn = db.keyspace_with("churn", KeyspaceOptions::new().page_bytes(512)).unwrap();
    for number in 0..ACCOUNTS {
        accounts.insert_with(account(number), START.to_be_bytes(), Durability::Relaxed).unwrap();
    }
    let mut random = Random(seed);
    for number in (0..CHURNED).step_by(2) {
        let key = churned(number);
        churn.insert_with(&key, stamped(&key, &mut random), Durability::Relaxed).unwrap();
    }
    let stage = Stage {
        db,
        accounts,
        churn,
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
        whole_scans: AtomicU64::new(0),
    };
    let ends = Instant::now() + Duration::from_secs(number("DRUMLIN_TEST_SECONDS", 5)) / 2;
    std::thread::scope(|scope| {
        let stage = &stage;
        let roles: [fn(&Stage, u64); 10] = [
            Stage::transfer,
            Stage::transfer,
            Stage::transfer,
            Stage::audit,
            Stage::churn,
            Stage::churn,
            Stage::look,
            Stage::look,
            Stage::maintenance,
            Stage::maintenance,
        ];
        let threads: Vec<_> = (roles.into_iter().enumerate())
            .map(|(number, role)| scope.spawn(move || role(stage, seed ^ (number as u64) << 32)))
            .collect();
        while Instant::now() < ends && threads.iter().all(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        stage.stop.store(true, Ordering::Release);
    });
    let Stage { db, accounts, churn, done, whole_scans, .. } = stage;
    assert!(whole_scans.into_inner() > 0, "no scan among writers came to its end");
    let before: Vec<_> = churn.iter().map(Result::unwrap).collect();
    assert_eq!(sum(accounts.iter()).unwrap(), Some(ACCOUNTS * START));
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{:?}", report.corruption);
    drop((accounts, churn));
    db.close().unwrap();
    let db = config.open(path).unwrap();
    assert_eq!(sum(db.existing_keyspace("accounts").unwrap().iter()).unwrap(), Some(ACCOUNTS * START));
    let after = db.existing_keyspace("churn").unwrap().iter().map(Result::unwrap);
    assert!(after.eq(before), "rows after reopening");
    assert!(db.check().unwrap().corruption.is_empty());
    done.into_inner()
}

/// Transfers, audits, churn, single reads, checkpoints, compactions and dropped keyspaces run concurrently, and every
/// invariant holds, on both backends and in the reopened database.
#[test]
fn many_threads_keep_every_promise() {
    for (seed, backend) in (1..).zip(BACKENDS) {
        let folder = Folder::new();
        let config = small().io_backend(backend);
        println!("{} steps on {backend:?}", stress(&config, &folder.path(), seed));
    }
}
