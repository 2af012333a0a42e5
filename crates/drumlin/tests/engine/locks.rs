//! Row locks as a SQL server uses them: shared locks, interrupted waits, lists of holders and waiters, and new
//! snapshots for statements.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use drumlin::{Config, Database, Error, Isolation, Keyspace, LockMode, Transaction, TxOptions};
use smol::block_on;

use crate::support::Folder;

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

fn is_timeout<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::LockTimeout { .. }))
}

const LEVELS: [Isolation; 3] = [Isolation::Snapshot, Isolation::Serializable, Isolation::ReadCommitted];

/// Shared locks exclude writers but not each other, at every level, for existing and absent rows.
#[test]
fn shared_locks_exclude_writers_only() {
    for isolation in LEVELS {
        for key in ["a", "absent"] {
            let (db, k) = database();
            let (mut first, mut second, mut third) =
                (begin(&db, isolation), begin(&db, isolation), begin(&db, isolation));
            let found = first.get_for_share(&k, key).unwrap();
            assert_eq!(found.as_deref(), (key == "a").then_some(&b"0"[..]));
            assert_eq!(block_on(second.get_for_share_async(&k, key)).unwrap(), found);
            assert!(is_timeout(&third.insert(&k, key, "1")) && is_timeout(&third.get_for_update(&k, key)));
            assert!(is_timeout(&first.insert(&k, key, "1")), "it overtook another holder");
            drop(second);
            first.insert(&k, key, "1").unwrap();
            assert!(is_timeout(&third.get_for_share(&k, key)));
            first.commit().unwrap();
            assert_eq!(k.get(key).unwrap().as_deref(), Some(&b"1"[..]));
            assert!(db.locks().unwrap().is_empty());
        }
    }
}

/// A row that a serializable transaction has locked in shared mode can't change before the transaction's commit, so the
/// commit succeeds without validating it. A row that was read without a lock is still validated.
#[test]
fn a_shared_lock_replaces_validation() {
    let (db, k) = database();
    let mut tx = begin(&db, Isolation::Serializable);
    tx.get_for_share(&k, "a").unwrap();
    tx.insert(&k, "b", "1").unwrap();
    let mut other = begin(&db, Isolation::Serializable);
    assert!(is_timeout(&other.insert(&k, "a", "1")));
    other.get(&k, "b").unwrap();
    other.insert(&k, "c", "1").unwrap();
    tx.commit().unwrap();
    assert!(matches!(other.commit(), Err(Error::Conflict { .. })));
}

/// If a different transaction has changed the row since the snapshot, a shared lock conflicts like an exclusive one,
/// and the row stays unlocked.
#[test]
fn a_shared_lock_of_a_changed_row_conflicts() {
    let (db, k) = database();
    let mut tx = begin(&db, Isolation::Snapshot);
    k.insert("a", "1").unwrap();
    assert!(matches!(tx.get_for_share(&k, "a"), Err(Error::Conflict { .. })));
    assert!(db.locks().unwrap().is_empty());
    let mut latest = begin(&db, Isolation::ReadCommitted);
    assert_eq!(latest.get_for_share(&k, "a").unwrap().as_deref(), Some(&b"1"[..]));
}

/// If two transactions share a lock and both write, one waits and the other gets a conflict immediately. The waiting
/// transaction then gets the lock.
#[test]
fn two_upgrades_are_a_deadlock() {
    let (db, k) = database();
    let (mut first, mut second) = (db.begin().unwrap(), db.begin().unwrap());
    first.get_for_share(&k, "a").unwrap();
    second.get_for_share(&k, "a").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            first.insert(&k, "a", "1").unwrap();
            first.commit().unwrap();
        });
        while db.locks().unwrap()[0].waiters.is_empty() {
            std::thread::yield_now();
        }
        assert!(matches!(second.insert(&k, "a", "2"), Err(Error::Conflict { .. })));
        drop(second);
        waiting.join().unwrap();
    });
    assert_eq!(k.get("a").unwrap().as_deref(), Some(&b"1"[..]));
}

/// If a future that waits for an upgrade is dropped or leaked, the shared lock remains and is released exactly once.
#[test]
fn a_dropped_upgrade_keeps_the_shared_lock() {
    for is_leaked in [false, true] {
        let (db, k) = database();
        let (mut first, mut second) = (db.begin().unwrap(), db.begin().unwrap());
        first.get_for_share(&k, "a").unwrap();
        second.get_for_share(&k, "a").unwrap();
        let mut future = Box::pin(first.insert_async(&k, "a", "1"));
        assert!(block_on(futures_util::future::poll_immediate(&mut future)).is_none());
        if is_leaked {
            std::mem::forget(future);
        } else {
            drop(future);
        };
        first.get_for_share(&k, "a").unwrap();
        assert!(first.try_lock_row(&k, "b", LockMode::Shared).unwrap());
        drop(second);
        assert_eq!(db.locks().unwrap()[0].holders, [first.number()]);
        first.insert(&k, "a", "2").unwrap();
        first.commit().unwrap();
        assert!(db.locks().unwrap().is_empty());
        assert_eq!(k.get("a").unwrap().as_deref(), Some(&b"2"[..]));
    }
}

/// A different thread can interrupt waits, both of blocking calls and of tasks. The transaction keeps its changes and
/// can continue.
#[test]
fn waits_are_interrupted() {
    for is_task in [false, true] {
        let (db, k) = database();
        let (mut holder, mut tx) = (db.begin().unwrap(), db.begin().unwrap());
        holder.insert(&k, "a", "1").unwrap();
        tx.insert(&k, "b", "1").unwrap();
        let interrupter = tx.interrupter();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while db.locks().unwrap().iter().all(|row| row.waiters.is_empty()) {
                    std::thread::yield_now();
                }
                interrupter.interrupt();
            });
            let result = match is_task {
                true => block_on(tx.insert_async(&k, "a", "2")),
                false => tx.insert(&k, "a", "2"),
            };
            assert!(matches!(&result, Err(Error::Interrupted { keyspace, key }) if keyspace == "k" && key == b"a"));
            let text = result.unwrap_err().to_string();
            assert!(text.contains("b\"a\"") && text.contains("\"k\""), "{text}");
        });
        // An interrupt that arrives while no call is waiting ends the next wait, but no later one.
        interrupter.interrupt();
        assert!(matches!(tx.insert(&k, "a", "2"), Err(Error::Interrupted { .. })));
        tx.set_lock_timeout(Duration::from_millis(1));
        assert!(is_timeout(&tx.insert(&k, "a", "2")));
        drop(holder);
        tx.insert(&k, "a", "2").unwrap();
        tx.commit().unwrap();
        interrupter.interrupt();
        assert_eq!(k.get("b").unwrap().as_deref(), Some(&b"1"[..]));
    }
}

/// `locks` lists holders and waiters in order, and the hook is called with them before each wait.
#[test]
fn holders_and_waiters_are_named() {
    let folder = Folder::new();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let hook = Arc::clone(&reported);
    let config = Config::new().memory(8 << 20).on_lock_wait(move |wait| {
        let wait = (wait.waiter, wait.holders.to_vec(), wait.keyspace.to_owned(), wait.key.to_vec(), wait.mode);
        hook.lock().unwrap().push(wait);
    });
    let db = config.open(folder.path()).unwrap();
    let k = db.keyspace("rows").unwrap();
    let [mut first, mut second, mut third] = [(); 3].map(|()| db.begin().unwrap());
    first.get_for_share(&k, "x").unwrap();
    second.get_for_share(&k, "x").unwrap();
    first.insert(&k, "w", "1").unwrap();
    let (third_number, mut holders) = (third.number(), vec![first.number(), second.number()]);
    holders.sort_unstable();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            third.insert(&k, "x", "3").unwrap();
            third.commit().unwrap();
        });
        let rows = loop {
            let rows = db.locks().unwrap();
            if rows.iter().any(|row| !row.waiters.is_empty()) {
                break rows;
            }
        };
        assert_eq!(rows.iter().map(|row| &row.key[..]).collect::<Vec<_>>(), [b"w", b"x"]);
        assert_eq!((&rows[0].keyspace[..], rows[0].mode, rows[0].waiters.len()), ("rows", LockMode::Exclusive, 0));
        let mut found = rows[1].holders.clone();
        found.sort_unstable();
        assert_eq!((found, rows[1].mode), (holders.clone(), LockMode::Shared));
        let waiters: Vec<_> = rows[1].waiters.iter().map(|waiter| (waiter.transaction, waiter.mode)).collect();
        assert_eq!(waiters, [(third_number, LockMode::Exclusive)]);
        drop((first, second));
        waiting.join().unwrap();
    });
    let reported = reported.lock().unwrap();
    let [(waiter, found, keyspace, key, mode)] = &reported[..] else { panic!("{reported:?}") };
    let mut found = found.clone();
    found.sort_unstable();
    assert_eq!(
        (*waiter, found, &keyspace[..], &key[..], *mode),
        (third_number, holders, "rows", &b"x"[..], LockMode::Exclusive)
    );
}

/// A new snapshot sees newer commits, and the transaction keeps its changes, locks, savepoints and open ranges. Rows
/// that other transactions changed before the new snapshot are not a conflict, but rows changed after it are.
#[test]
fn a_snapshot_is_renewed() {
    let (db, k) = database();
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "b", "mine").unwrap();
    let savepoint = tx.savepoint();
    let mut range = tx.range(&k, ..);
    assert_eq!(range.next().unwrap().unwrap().0, "a");
    k.insert("a", "1").unwrap();
    k.insert("d", "1").unwrap();
    assert_eq!(tx.get(&k, "a").unwrap().unwrap(), "0");
    tx.renew_snapshot().unwrap();
    assert_eq!(tx.get(&k, "a").unwrap().unwrap(), "1");
    assert_eq!(tx.get(&k, "b").unwrap().unwrap(), "mine");
    assert_eq!(range.map(|row| row.unwrap().0.to_vec()).collect::<Vec<_>>(), [b"b", b"c"]);
    tx.insert(&k, "a", "2").unwrap();
    k.insert("c", "1").unwrap();
    assert_eq!(db.locks().unwrap().len(), 2);
    tx.rollback_to(savepoint).unwrap();
    tx.insert(&k, "d", "2").unwrap();
    assert!(matches!(tx.insert(&k, "c", "2"), Err(Error::Conflict { .. })));
    drop(tx);
    assert_eq!(k.get("b").unwrap().unwrap(), "0");

    let mut latest = begin(&db, Isolation::ReadCommitted);
    latest.renew_snapshot().unwrap();
    let mut serializable = begin(&db, Isolation::Serializable);
    let refused = serializable.renew_snapshot();
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

/// After its snapshot was ended, a transaction can take a new one and continue with its changes.
#[test]
fn a_transaction_outlives_its_snapshot() {
    let folder = Folder::new();
    let config = Config::new().memory(8 << 20).version_disk_bytes(0).durability(drumlin::Durability::Relaxed);
    let db = config.open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    (0..100u32).for_each(|key| k.insert(key.to_be_bytes(), [0; 200]).unwrap());
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "mine", "1").unwrap();
    let mut changes = 0;
    while !matches!(tx.get(&k, 0u32.to_be_bytes()), Err(Error::SnapshotTooOld { .. })) {
        (0..100u32).for_each(|key| k.insert(key.to_be_bytes(), [1; 200]).unwrap());
        changes += 1;
        assert!(changes < 1000, "the snapshot never ends");
    }
    tx.renew_snapshot().unwrap();
    assert_eq!(tx.get(&k, 0u32.to_be_bytes()).unwrap().unwrap(), [1; 200]);
    tx.commit().unwrap();
    assert_eq!(k.get("mine").unwrap().unwrap(), "1");
}
