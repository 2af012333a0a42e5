//! The anomalies that each isolation level allows or prevents, one per test; deadlocks; scans within transactions.
//!
//! The names of the anomalies follow Berenson et al. (1995) and Adya (1999).

use crate::support;

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Read;
use std::ops::Bound;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use drumlin::Isolation::{ReadCommitted, Serializable, Snapshot};
use drumlin::{
    Config, Database, Durability, Error, Isolation, Keyspace, KeyspaceOptions, Result, Transaction, TxOptions, Value,
};
use drumlin_io::testing::fault::{FaultyBackend, Operation};
use support::{Random, faulty};

const LEVELS: [Isolation; 3] = [ReadCommitted, Snapshot, Serializable];

/// Creates a keyspace `k` with small pages and these rows.
fn stage(rows: &[(&str, i64)]) -> (Database, Keyspace) {
    // Use a large budget, so that long transactions can have many old versions while concurrent writes are fast. Unused
    // memory is not allocated.
    let config = Config::in_memory().memory(512 << 20).log_segment_bytes(1 << 20).checkpoint_log_bytes(4 << 20);
    let db = config.open("").unwrap();
    let keyspace = db.keyspace_with("k", KeyspaceOptions::new().page_bytes(512)).unwrap();
    for (key, value) in rows {
        keyspace.insert(key, value.to_be_bytes()).unwrap();
    }
    (db, keyspace)
}

fn options(isolation: Isolation) -> TxOptions {
    TxOptions { isolation, durability: Durability::Relaxed, ..TxOptions::default() }
}

fn begin(db: &Database, isolation: Isolation) -> Transaction {
    db.begin_with(options(isolation)).unwrap()
}

fn number(value: &[u8]) -> i64 {
    i64::from_be_bytes(value.try_into().unwrap())
}

fn read(tx: &Transaction, keyspace: &Keyspace, key: &str) -> Option<i64> {
    tx.get(keyspace, key).unwrap().map(|value| number(&value))
}

fn write(tx: &mut Transaction, keyspace: &Keyspace, key: &str, value: i64) -> Result<()> {
    tx.insert(keyspace, key, value.to_be_bytes())
}

fn now(keyspace: &Keyspace, key: &str) -> Option<i64> {
    keyspace.get(key).unwrap().map(|value| number(&value))
}

#[track_caller]
fn assert_conflict<T: std::fmt::Debug>(result: Result<T>) {
    match result {
        Err(Error::Conflict { .. }) => {}
        other => panic!("no conflict but {other:?}"),
    }
}

// ── anomalies ──────────────────────────────────────────────────────────────────────────────────────────────────────

/// Dirty read (G1a, G1b): no level sees uncommitted writes, or writes that their transaction later replaced.
#[test]
fn dirty_reads_are_refused_by_all() {
    for level in LEVELS {
        let (db, k) = stage(&[("x", 1)]);
        let mut writer = begin(&db, level);
        write(&mut writer, &k, "x", 2).unwrap();
        write(&mut writer, &k, "y", 2).unwrap();
        let reader = begin(&db, level);
        assert_eq!((read(&reader, &k, "x"), read(&reader, &k, "y")), (Some(1), None), "{level:?}");
        assert_eq!(reader.count(&k, ..).unwrap(), 1);
        write(&mut writer, &k, "x", 3).unwrap();
        writer.commit().unwrap();
        let later = begin(&db, level);
        assert_eq!(read(&later, &k, "x"), Some(3));
        let mut aborted = begin(&db, level);
        write(&mut aborted, &k, "x", 4).unwrap();
        aborted.abort();
        assert_eq!(read(&begin(&db, level), &k, "x"), Some(3));
    }
}

/// Lost update (P4): read committed allows it; at the other levels, the second write fails.
#[test]
fn lost_updates_are_allowed_by_read_committed_alone() {
    for level in LEVELS {
        let (db, k) = stage(&[("x", 100)]);
        let (mut one, mut other) = (begin(&db, level), begin(&db, level));
        let (seen_by_one, seen_by_other) = (read(&one, &k, "x").unwrap(), read(&other, &k, "x").unwrap());
        write(&mut other, &k, "x", seen_by_other + 10).unwrap();
        other.commit().unwrap();
        let result = write(&mut one, &k, "x", seen_by_one + 1);
        if level == ReadCommitted {
            result.unwrap();
            one.commit().unwrap();
            assert_eq!(now(&k, "x"), Some(101), "the other's ten are lost");
        } else {
            assert_conflict(result);
            drop(one);
            assert_eq!(now(&k, "x"), Some(110));
        }
    }
}

/// A row that is locked before it is read loses no update; at read committed, the read then returns its newest version.
#[test]
fn locked_rows_lose_no_update() {
    for level in LEVELS {
        let (db, k) = stage(&[("x", 100)]);
        let mut one = begin(&db, level);
        assert_eq!(read(&one, &k, "x"), Some(100));
        k.insert("x", 110i64.to_be_bytes()).unwrap();
        match one.get_for_update(&k, "x") {
            Ok(value) => {
                assert_eq!(level, ReadCommitted);
                write(&mut one, &k, "x", number(&value.unwrap()) + 1).unwrap();
                one.commit().unwrap();
                assert_eq!(now(&k, "x"), Some(111));
            }
            Err(error) => {
                assert!(error.is_conflict() && level != ReadCommitted, "{level:?}: {error}");
            }
        }
    }
}

/// Read skew (A5A): read committed sees one row before a commit and a different row after it, while the other levels
/// see a single point in time.
#[test]
fn read_skew_is_allowed_by_read_committed_alone() {
    for level in LEVELS {
        let (db, k) = stage(&[("x", 50), ("y", 50)]);
        let reader = begin(&db, level);
        let x = read(&reader, &k, "x").unwrap();
        let mut writer = begin(&db, level);
        write(&mut writer, &k, "x", 25).unwrap();
        write(&mut writer, &k, "y", 75).unwrap();
        writer.commit().unwrap();
        let sum = x + read(&reader, &k, "y").unwrap();
        assert_eq!(sum, if level == ReadCommitted { 125 } else { 100 }, "{level:?}");
        reader.commit().unwrap();
    }
}

/// Write skew (A5B): two doctors go off duty, each seeing that the other is on duty. Only serializable prevents it.
#[test]
fn write_skew_is_refused_by_serializable_alone() {
    for level in LEVELS {
        let (db, k) = stage(&[("alice", 1), ("bob", 1)]);
        let on_duty = |tx: &Transaction| read(tx, &k, "alice").unwrap() + read(tx, &k, "bob").unwrap();
        let (mut alice, mut bob) = (begin(&db, level), begin(&db, level));
        assert_eq!((on_duty(&alice), on_duty(&bob)), (2, 2));
        write(&mut alice, &k, "alice", 0).unwrap();
        write(&mut bob, &k, "bob", 0).unwrap();
        alice.commit().unwrap();
        let result = bob.commit();
        if level == Serializable {
            assert_conflict(result);
            assert_eq!(now(&k, "bob"), Some(1));
        } else {
            result.unwrap();
            assert_eq!(now(&k, "alice").unwrap() + now(&k, "bob").unwrap(), 0, "nobody is on duty");
        }
    }
}

/// If the rows that were read are locked, there is no write skew under snapshot isolation, and a serializable
/// transaction has no conflict at its commit.
#[test]
fn locks_refuse_write_skew() {
    for level in [Snapshot, Serializable] {
        let (db, k) = stage(&[("alice", 1), ("bob", 1)]);
        let mut alice = begin(&db, level);
        let mut bob = db.begin_with(TxOptions { lock_timeout: std::time::Duration::ZERO, ..options(level) }).unwrap();
        alice.get_for_update(&k, "alice").unwrap();
        alice.get_for_update(&k, "bob").unwrap();
        assert!(matches!(bob.get_for_update(&k, "bob"), Err(Error::LockTimeout { .. })));
        drop(bob);
        write(&mut alice, &k, "alice", 0).unwrap();
        alice.commit().unwrap();
    }
}

/// Phantom (P3, A3): a range is read twice. Only read committed sees the row that was inserted in between.
#[test]
fn phantoms_are_seen_by_read_committed_alone() {
    for level in LEVELS {
        let (db, k) = stage(&[("task/1", 1)]);
        let reader = begin(&db, level);
        assert_eq!(reader.prefix(&k, "task/").count(), 1);
        k.insert("task/2", 1i64.to_be_bytes()).unwrap();
        let again = reader.prefix(&k, "task/").count();
        assert_eq!(again, if level == ReadCommitted { 2 } else { 1 }, "{level:?}");
        assert_eq!(reader.count(&k, ..).unwrap(), again as u64);
    }
}

/// Write skew by phantoms (G2): two transactions each see at most eight hours of tasks and add one. Only serializable
/// prevents it. It does so for every kind of read of the range, and even if the range was empty.
#[test]
fn phantoms_that_skew_are_refused_by_serializable_alone() {
    type Look = fn(&Transaction, &Keyspace) -> i64;
    let looks: [Look; 4] = [
        |tx, k| tx.prefix(k, "task/").map(|row| number(&row.unwrap().1)).sum(),
        |tx, k| tx.prefix(k, "task/").rev().map(|row| number(&row.unwrap().1)).sum(),
        |tx, k| tx.count(k, b"task/".to_vec()..b"task0".to_vec()).unwrap() as i64 * 6,
        |tx, k| ["task/2", "task/3"].iter().map(|key| read(tx, k, key).unwrap_or(0)).sum(),
    ];
    for level in LEVELS {
        for (number, look) in looks.iter().enumerate() {
            let (db, k) = stage(&[("a", 0), ("z", 0)]);
            let (mut one, mut other) = (begin(&db, level), begin(&db, level));
            assert!(look(&one, &k) + 6 <= 8 && look(&other, &k) + 6 <= 8);
            write(&mut one, &k, "task/2", 6).unwrap();
            write(&mut other, &k, "task/3", 6).unwrap();
            one.commit().unwrap();
            let result = other.commit();
            if level == Serializable {
                assert_conflict(result);
            } else {
                result.unwrap();
                assert_eq!(look(&begin(&db, level), &k), 12, "{level:?}, look {number}: too much work");
            }
        }
    }
}

/// Long fork: of two unordered writes, one reader sees only the first, and a different reader sees only the second.
/// Snapshots are points in a single order, so they prevent it. Read committed allows it, because it reads each row at a
/// different time.
#[test]
fn long_forks_are_allowed_by_read_committed_alone() {
    for level in LEVELS {
        let (db, k) = stage(&[("x", 0), ("y", 0)]);
        let (one, other) = (begin(&db, level), begin(&db, level));
        let (one_y, other_x) = (read(&one, &k, "y"), read(&other, &k, "x"));
        let (mut of_x, mut of_y) = (begin(&db, level), begin(&db, level));
        write(&mut of_x, &k, "x", 1).unwrap();
        write(&mut of_y, &k, "y", 1).unwrap();
        of_x.commit().unwrap();
        let between = begin(&db, level);
        let between_x = read(&between, &k, "x");
        of_y.commit().unwrap();
        let forked = (read(&one, &k, "x"), one_y, other_x, read(&other, &k, "y"));
        let is_fork = forked == (Some(1), Some(0), Some(0), Some(1));
        assert_eq!(is_fork, level == ReadCommitted, "{level:?}: {forked:?}");
        // A snapshot between the two commits sees only one order.
        assert_eq!(between_x, Some(1));
        assert_eq!(read(&between, &k, "y"), Some(i64::from(level == ReadCommitted)));
    }
}

/// The read-only anomaly (Fekete, O'Neil, O'Neil 2004). Without the report, deposit and withdrawal are serializable.
/// The report shows the deposit but not the withdrawal, which did not see the deposit. At serializable, the withdrawal
/// fails.
#[test]
fn the_read_only_anomaly_is_refused_by_serializable_alone() {
    for level in LEVELS {
        let (db, k) = stage(&[("checking", 0), ("savings", 0)]);
        let mut withdrawal = begin(&db, level);
        let total = read(&withdrawal, &k, "checking").unwrap() + read(&withdrawal, &k, "savings").unwrap();
        let mut deposit = begin(&db, level);
        write(&mut deposit, &k, "savings", 20).unwrap();
        deposit.commit().unwrap();
        let report = begin(&db, level);
        assert_eq!((read(&report, &k, "checking"), read(&report, &k, "savings")), (Some(0), Some(20)));
        report.commit().unwrap();
        // Withdraw ten, and a fee of one because the total falls below zero.
        assert!(total - 10 < 0);
        write(&mut withdrawal, &k, "checking", -11).unwrap();
        let result = withdrawal.commit();
        if level == Serializable {
            assert_conflict(result);
        } else {
            result.unwrap();
            assert_eq!(now(&k, "checking"), Some(-11), "a fee, though the report shows that there was money");
        }
    }
}

/// A conflict ends its transaction: further calls and the commit fail with the same error.
#[test]
fn conflicts_are_not_forgotten() {
    for level in [Snapshot, Serializable] {
        let (db, k) = stage(&[("x", 100)]);
        let mut late = begin(&db, level);
        assert_eq!(read(&late, &k, "x"), Some(100));
        k.insert("x", 110i64.to_be_bytes()).unwrap();
        assert_conflict(write(&mut late, &k, "x", 101));
        assert_conflict(write(&mut late, &k, "x", 101));
        assert_conflict(write(&mut late, &k, "y", 1));
        assert_conflict(late.get_for_update(&k, "x"));
        assert_conflict(late.commit());
        assert_eq!((now(&k, "x"), now(&k, "y")), (Some(110), None), "{level:?}");
    }
}

// ── which changes make a serializable commit conflict ──────────────────────────────────────────────────────────────

/// Runs a serializable transaction that reads. Then a concurrent change is committed. Finally the transaction writes a
/// row that it did not read, and commits.
fn read_change_commit(
    rows: &[(&str, i64)],
    look: impl FnOnce(&mut Transaction, &Keyspace),
    change: impl FnOnce(&Keyspace),
) -> Result<()> {
    let (db, k) = stage(rows);
    let mut tx = begin(&db, Serializable);
    look(&mut tx, &k);
    change(&k);
    write(&mut tx, &k, "mine", 1).unwrap();
    tx.commit().map(drop)
}

/// Validation compares rows, not leaves: changes next to the rows that were read are not a conflict.
#[test]
fn neighbours_are_no_conflict() {
    let rows = [("b", 1), ("d", 2), ("f", 3)];
    let put = |key: &'static str| move |k: &Keyspace| k.insert(key, 9i64.to_be_bytes()).unwrap();
    let get = |tx: &mut Transaction, k: &Keyspace| drop(tx.get(k, "d").unwrap());
    read_change_commit(&rows, get, put("c")).unwrap();
    read_change_commit(&rows, get, put("b")).unwrap();
    assert_conflict(read_change_commit(&rows, get, put("d")));
    assert_conflict(read_change_commit(&rows, get, |k| k.remove("d").unwrap()));
    // Read a row that was absent and still is.
    let absent = |tx: &mut Transaction, k: &Keyspace| assert!(tx.get(k, "c").unwrap().is_none());
    read_change_commit(&rows, absent, |k| k.remove("c").unwrap()).unwrap();
    read_change_commit(&rows, absent, put("ca")).unwrap();
    assert_conflict(read_change_commit(&rows, absent, put("c")));
    let scan = |tx: &mut Transaction, k: &Keyspace| {
        assert_eq!(tx.range(k, b"b".to_vec()..b"f".to_vec()).count(), 2);
    };
    read_change_commit(&rows, scan, put("f")).unwrap();
    read_change_commit(&rows, scan, put("a")).unwrap();
    assert_conflict(read_change_commit(&rows, scan, put("b")));
    assert_conflict(read_change_commit(&rows, scan, put("e")));
    // Reading a value as a stream counts as a read.
    let stream = |tx: &mut Transaction, k: &Keyspace| drop(tx.read(k, "d").unwrap());
    assert_conflict(read_change_commit(&rows, stream, put("d")));
}

/// Included, excluded and open bounds are exact.
#[test]
fn bounds_are_exact() {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let rows = [("b", 1), ("d", 2), ("f", 3)];
    let key = |key: &str| key.as_bytes().to_vec();
    let bounds = [
        ((Excluded(key("b")), Included(key("f"))), vec!["b\0", "c", "d", "f"], vec!["a", "b", "f\0", "g"]),
        ((Included(key("b")), Excluded(key("f"))), vec!["b", "e", "ezz"], vec!["azz", "f", "z"]),
        ((Unbounded, Excluded(key("d"))), vec!["", "a", "czz"], vec!["d", "e"]),
        ((Excluded(key("d")), Unbounded), vec!["d\0", "zzz"], vec!["a", "b", "d"]),
    ];
    for (bound, inside, outside) in bounds {
        for backward in [false, true] {
            let scan = |tx: &mut Transaction, k: &Keyspace| {
                let scan = tx.range(k, bound.clone());
                let rows: Vec<_> = if backward { scan.rev().collect() } else { scan.collect() };
                assert!(rows.iter().all(Result::is_ok));
            };
            for changed in inside.iter().chain(&outside) {
                let result = read_change_commit(&rows, scan, |k| k.insert(changed, 5i64.to_be_bytes()).unwrap());
                assert_eq!(result.is_err(), inside.contains(changed), "{changed:?} beside {bound:?}: {result:?}");
            }
        }
    }
}

/// Rows that a scan has not reached do not count as read, whichever end it starts from.
#[test]
fn scans_read_as_far_as_they_come() {
    let names: Vec<String> = (0..400).map(|number| format!("row/{number:04}/with a key of some length")).collect();
    let rows: Vec<(&str, i64)> = names.iter().map(|name| (&name[..], 1)).collect();
    let change = |number: usize| {
        let name = names[number].clone();
        move |k: &Keyspace| k.insert(name, 9i64.to_be_bytes()).unwrap()
    };
    let few = |tx: &mut Transaction, k: &Keyspace| {
        let mut scan = tx.prefix(k, "row/");
        assert!(scan.next().unwrap().is_ok() && scan.next_back().unwrap().is_ok());
    };
    read_change_commit(&rows, few, change(200)).unwrap();
    assert_conflict(read_change_commit(&rows, few, change(0)));
    assert_conflict(read_change_commit(&rows, few, change(399)));
    let all = |tx: &mut Transaction, k: &Keyspace| {
        let mut scan = tx.prefix(k, "row/");
        let mut count = 0;
        while scan.next().or_else(|| scan.next_back()).is_some() {
            count += 1;
            count += i32::from(scan.next_back().is_some());
        }
        assert_eq!(count, 400);
    };
    for number in [0, 133, 199, 200, 201, 399] {
        assert_conflict(read_change_commit(&rows, all, change(number)));
    }
    read_change_commit(&rows, all, |k| k.insert("rox", 1i64.to_be_bytes()).unwrap()).unwrap();
}

/// A transaction can read its own writes without causing a conflict, but concurrent inserts between them are a
/// conflict.
#[test]
fn own_writes_are_no_conflict() {
    let (db, k) = stage(&[("b", 1), ("d", 1)]);
    let mut tx = begin(&db, Serializable);
    write(&mut tx, &k, "b", 2).unwrap();
    write(&mut tx, &k, "c", 2).unwrap();
    tx.remove(&k, "d").unwrap();
    assert_eq!((read(&tx, &k, "b"), read(&tx, &k, "c"), read(&tx, &k, "d")), (Some(2), Some(2), None));
    assert_eq!(tx.count(&k, b"a".to_vec()..b"e".to_vec()).unwrap(), 2);
    k.insert("z", 1i64.to_be_bytes()).unwrap();
    tx.commit().unwrap();
    assert_eq!((now(&k, "b"), now(&k, "c"), now(&k, "d")), (Some(2), Some(2), None));

    let mut tx = begin(&db, Serializable);
    write(&mut tx, &k, "b", 3).unwrap();
    assert_eq!(tx.count(&k, b"a".to_vec()..b"e".to_vec()).unwrap(), 2);
    k.insert("ba", 1i64.to_be_bytes()).unwrap();
    assert_conflict(tx.commit());
}

/// Rows that were read are still validated after splits and merges have moved them.
#[test]
fn reads_are_found_after_splits_and_merges() {
    let names: Vec<String> = (0..300).map(|number| format!("row/{:04}/{}", number * 2, "x".repeat(40))).collect();
    let rows: Vec<(&str, i64)> = names.iter().map(|name| (&name[..], 1)).collect();
    // Rows inserted between the existing ones make leaves split, and removing them makes leaves merge.
    let grow = |k: &Keyspace| {
        for number in 0..300 {
            k.insert(format!("row/{:04}/between", number * 2 + 1), [7; 40]).unwrap();
        }
    };
    let shrink = |k: &Keyspace| {
        for number in 0..300 {
            k.remove(format!("row/{:04}/between", number * 2 + 1)).unwrap();
        }
    };
    let some = |tx: &mut Transaction, k: &Keyspace| {
        for name in names.iter().step_by(7) {
            tx.get(k, name).unwrap().unwrap();
        }
        assert!(tx.get(k, "row/0100").unwrap().is_none());
    };
    read_change_commit(&rows, some, grow).unwrap();
    let both = |k: &Keyspace| {
        grow(k);
        shrink(k);
    };
    read_change_commit(&rows, some, both).unwrap();
    for changed in [0, 7, 154, 294] {
        let change = |k: &Keyspace| {
            grow(k);
            k.insert(&names[changed], [1; 8]).unwrap();
            shrink(k);
        };
        assert_conflict(read_change_commit(&rows, some, change));
    }
    assert_conflict(read_change_commit(&rows, some, |k| {
        k.insert("row/0100", [1; 8]).unwrap();
        grow(k);
        k.remove("row/0100").unwrap();
        shrink(k);
    }));
    // The range also covers the inserted and removed rows.
    let range = |tx: &mut Transaction, k: &Keyspace| assert_eq!(tx.prefix(k, "row/").count(), 300);
    assert_conflict(read_change_commit(&rows, range, both));
}

/// A commit that splits a leaf that it has read finds its rows in the new leaf, and does not wait for its own latch.
#[test]
fn commits_split_leaves_that_they_have_read() {
    let names: Vec<String> = (0..8).map(|number| format!("row {number}")).collect();
    let rows: Vec<(&str, i64)> = names.iter().map(|name| (&name[..], 1)).collect();
    for value_bytes in (10..120).step_by(5) {
        let (db, k) = stage(&rows);
        let mut tx = begin(&db, Serializable);
        for name in &names {
            tx.get(&k, name).unwrap();
        }
        for new in ["row 10", "row 3+", "row 6+", "row 7+", "row 8", "row 9"] {
            tx.insert(&k, new, vec![1; value_bytes]).unwrap();
        }
        tx.commit().unwrap();
        assert_eq!(k.count(..).unwrap(), 14);
    }
}

/// A serializable transaction that makes no changes never conflicts.
#[test]
fn readers_never_conflict() {
    let (db, k) = stage(&[("x", 1), ("y", 1)]);
    let reader = begin(&db, Serializable);
    assert_eq!(read(&reader, &k, "x"), Some(1));
    k.insert("x", 2i64.to_be_bytes()).unwrap();
    k.insert("y", 2i64.to_be_bytes()).unwrap();
    assert_eq!(read(&reader, &k, "y"), Some(1));
    assert_eq!(reader.iter(&k).count(), 2);
    reader.commit().unwrap();
    // Blind writes read nothing.
    let mut writer = begin(&db, Serializable);
    k.insert("x", 3i64.to_be_bytes()).unwrap();
    write(&mut writer, &k, "z", 1).unwrap();
    writer.commit().unwrap();
}

/// Reads in several keyspaces are validated together.
#[test]
fn keyspaces_are_validated_together() {
    let (db, k) = stage(&[("x", 1)]);
    let others: Vec<Keyspace> = (0..4).map(|number| db.keyspace(&format!("other {number}")).unwrap()).collect();
    for changed in 0..others.len() {
        let mut tx = begin(&db, Serializable);
        for other in others.iter().rev() {
            assert!(tx.get(other, "x").unwrap().is_none());
            assert_eq!(tx.count(other, b"a".to_vec()..b"c".to_vec()).unwrap(), 0);
        }
        write(&mut tx, &others[1], "mine", 1).unwrap();
        write(&mut tx, &k, "mine", 1).unwrap();
        others[changed].insert("b", [1; 8]).unwrap();
        others[changed].remove("b").unwrap();
        assert_conflict(tx.commit());
    }
    assert_eq!(now(&k, "mine"), None);
}

/// If a keyspace is dropped, the commits of serializable transactions that have read it fail.
#[test]
fn dropped_keyspaces_end_those_who_read_them() {
    let (db, k) = stage(&[("x", 1)]);
    let other = db.keyspace("other").unwrap();
    let mut tx = begin(&db, Serializable);
    assert!(tx.get(&other, "x").unwrap().is_none());
    write(&mut tx, &k, "x", 2).unwrap();
    db.drop_keyspace("other").unwrap();
    let result = tx.commit();
    assert!(matches!(result, Err(Error::KeyspaceDropped { .. })), "{result:?}");
    assert_eq!(now(&k, "x"), Some(1));
}

/// Once a serializable transaction has committed, its scans fail, because further rows would not be validated.
#[test]
fn scans_end_with_their_serializable_transaction() {
    let names: Vec<String> = (0..100).map(|number| format!("row/{number:04}/with a key of some length")).collect();
    let rows: Vec<(&str, i64)> = names.iter().map(|name| (&name[..], 1)).collect();
    for level in LEVELS {
        let (db, k) = stage(&rows);
        let mut tx = begin(&db, level);
        let mut scan = tx.iter(&k);
        scan.next().unwrap().unwrap();
        write(&mut tx, &k, "mine", 1).unwrap();
        tx.commit().unwrap();
        let rest: Vec<_> = scan.collect();
        if level == Serializable {
            assert!(matches!(rest.last(), Some(Err(Error::Invalid(_)))), "{:?}", rest.last());
        } else {
            assert_eq!(rest.into_iter().map(Result::unwrap).count(), 99);
        }
    }
}

/// Reads that can't be validated within the budget fail with an error that gives advice, and the commit has no effect.
#[test]
fn too_many_reads_are_refused() {
    let config = Config::in_memory().memory(8 << 20).page_bytes(4096);
    let db = config.open("").unwrap();
    let k = db.keyspace("k").unwrap();
    let mut load = begin(&db, Snapshot);
    const ROWS: u32 = 8000;
    for number in 0..ROWS {
        if number % 200 == 199 {
            load.commit().unwrap();
            load = begin(&db, Snapshot);
        }
        load.insert(&k, number.to_be_bytes(), vec![number as u8; 500]).unwrap();
    }
    load.commit().unwrap();
    // Read one range with more leaves than can be recorded.
    let mut tx = begin(&db, Serializable);
    assert_eq!(tx.count(&k, ..).unwrap(), u64::from(ROWS));
    tx.insert(&k, b"mine", b"1").unwrap();
    let error = tx.commit().unwrap_err();
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error:?}");
    assert!(error.to_string().contains("Isolation::Snapshot"), "{error}");
    assert!(k.get(b"mine").unwrap().is_none());
    // Read many single keys. Recording them needs more memory than one transaction can have.
    let tx = begin(&db, Serializable);
    let mut absent = 0u64;
    let error = loop {
        match tx.get(&k, [&b"absent"[..], &absent.to_be_bytes(), &[b'-'; 200]].concat()) {
            Ok(_) => absent += 1,
            Err(error) => break error,
        }
        assert!(absent < 100_000, "there is a limit");
    };
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error:?}");
    // The transaction can read and validate a part of the range.
    let mut tx = begin(&db, Serializable);
    assert_eq!(tx.count(&k, ..200u32.to_be_bytes().to_vec()).unwrap(), 200);
    tx.insert(&k, b"mine", b"1").unwrap();
    tx.commit().unwrap();
}

// ── deadlocks ──────────────────────────────────────────────────────────────────────────────────────────────────────

/// If two or three transactions wait for each other in a cycle, one gets a conflict and the rest commit.
#[test]
fn a_ring_of_waiters_has_one_victim() {
    for level in LEVELS {
        for count in [2, 3] {
            let names: Vec<String> = (0..count).map(|number| format!("row {number}")).collect();
            let rows: Vec<(&str, i64)> = names.iter().map(|name| (&name[..], 0)).collect();
            let (db, k) = stage(&rows);
            let all_hold = Barrier::new(count);
            let victims = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for mine in 0..count {
                    let (db, k, names, all_hold, victims) = (&db, &k, &names, &all_hold, &victims);
                    scope.spawn(move || {
                        let mut tx = begin(db, level);
                        tx.get_for_update(k, &names[mine]).unwrap();
                        all_hold.wait();
                        match write(&mut tx, k, &names[(mine + 1) % count], mine as i64 + 1) {
                            Ok(()) => drop(tx.commit().unwrap()),
                            Err(Error::Conflict { .. }) => drop(victims.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => panic!("{error}"),
                        }
                    });
                }
            });
            assert_eq!(victims.into_inner(), 1, "{count} under {level:?}");
            let written = names.iter().filter(|name| now(&k, name) != Some(0)).count();
            assert_eq!(written, count - 1);
        }
    }
}

// ── scans within transactions ──────────────────────────────────────────────────────────────────────────────────────

fn keys(rows: impl Iterator<Item = Result<(drumlin::Value, drumlin::Value)>>) -> String {
    rows.map(|row| String::from_utf8(row.unwrap().0.to_vec()).unwrap()).collect()
}

/// A savepoint stays valid until the transaction rolls back to an earlier one, regardless of later writes.
#[test]
fn savepoints_end_with_the_roll_back_that_passes_them() {
    let (db, rows) = stage(&[]);
    let mut tx = db.begin().unwrap();
    let first = tx.savepoint();
    tx.insert(&rows, b"a", b"1").unwrap();
    let second = tx.savepoint();
    tx.insert(&rows, b"b", b"2").unwrap();
    let third = tx.savepoint();
    tx.rollback_to(second).unwrap();
    tx.rollback_to(second).unwrap();
    tx.insert(&rows, b"c", b"3").unwrap();
    tx.insert(&rows, b"d", b"4").unwrap();
    assert!(matches!(tx.rollback_to(third), Err(Error::Invalid(_))));
    tx.rollback_to(first).unwrap();
    tx.insert(&rows, b"e", b"5").unwrap();
    let fourth = tx.savepoint();
    tx.insert(&rows, b"f", b"6").unwrap();
    for passed in [second, third] {
        assert!(matches!(tx.rollback_to(passed), Err(Error::Invalid(_))));
    }
    tx.rollback_to(fourth).unwrap();
    tx.commit().unwrap();
    let keys: Vec<Vec<u8>> = rows.iter().map(|row| row.unwrap().0.to_vec()).filter(|key| key.len() == 1).collect();
    assert!(keys.contains(&b"e".to_vec()) && !keys.iter().any(|key| b"abcdf".contains(&key[0])), "{keys:?}");
}

/// Scans see the transaction's changes, and after a rollback only those made before the savepoint. A scan that has
/// already begun is not affected.
#[test]
fn scans_follow_savepoints() {
    for level in LEVELS {
        let (db, k) = stage(&[("b", 1), ("d", 1), ("f", 1)]);
        let mut tx = begin(&db, level);
        write(&mut tx, &k, "a", 1).unwrap();
        tx.remove(&k, "d").unwrap();
        let first = tx.savepoint();
        assert_eq!((keys(tx.iter(&k)), keys(tx.iter(&k).rev())), ("abf".into(), "fba".into()), "{level:?}");
        tx.remove(&k, "b").unwrap();
        write(&mut tx, &k, "d", 2).unwrap();
        write(&mut tx, &k, "g", 2).unwrap();
        let second = tx.savepoint();
        tx.remove(&k, "a").unwrap();
        tx.remove(&k, "d").unwrap();
        let begun = tx.iter(&k);
        assert_eq!((keys(tx.iter(&k)), tx.count(&k, ..).unwrap()), ("fg".into(), 2));
        tx.rollback_to(second).unwrap();
        assert_eq!((keys(tx.iter(&k)), keys(tx.iter(&k).rev())), ("adfg".into(), "gfda".into()));
        assert_eq!(keys(begun), "fg");
        tx.rollback_to(first).unwrap();
        assert_eq!((keys(tx.iter(&k)), keys(tx.iter(&k).rev())), ("abf".into(), "fba".into()));
        assert!(matches!(tx.rollback_to(second), Err(Error::Invalid(_))));
        write(&mut tx, &k, "c", 3).unwrap();
        tx.commit().unwrap();
        assert_eq!(keys(k.iter()), "abcf");
    }
}

/// Keys are the numbers below this. Rows whose numbers are divisible by 3 exist from the start. Rows with remainder 1
/// are put and removed by concurrent writers, and rows with remainder 2 are put by the transaction.
const NUMBERS: u64 = 600;

fn wide_key(number: u64) -> Vec<u8> {
    format!("{number:05}{}", "-".repeat((number * 7 % 40) as usize)).into_bytes()
}

fn number_of(key: &[u8]) -> u64 {
    std::str::from_utf8(&key[..5]).unwrap().parse().unwrap()
}

struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Scans from either end, or alternately from both ends. Sometimes yields so that leaves split and merge in between.
fn scan(tx: &Transaction, k: &Keyspace, bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>), random: &mut Random) -> Rows {
    let mut scan = tx.range(k, bounds);
    let (mut front, mut back): (Vec<_>, Vec<_>) = Default::default();
    let forward_percent = [100, 0, 50][random.below(3) as usize];
    loop {
        if random.chance(2) {
            std::thread::yield_now();
        }
        let forward = random.chance(forward_percent);
        let Some(row) = (if forward { scan.next() } else { scan.next_back() }) else { break };
        let (key, value) = row.unwrap();
        (if forward { &mut front } else { &mut back }).push((key.to_vec(), value.to_vec()));
    }
    back.reverse();
    front.extend(back);
    assert!(front.windows(2).all(|pair| pair[0].0 < pair[1].0), "rows in order, each once");
    front.into_iter().collect()
}

fn random_bounds(random: &mut Random) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut ends = [random.below(NUMBERS), random.below(NUMBERS)];
    ends.sort_unstable();
    let mut bound = |number| match random.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(wide_key(number)),
        _ => Bound::Included(wide_key(number)),
    };
    let (lower, upper) = (bound(ends[0]), bound(ends[1]));
    // Bounds that the standard map rejects are tested elsewhere.
    let is_refused = matches!((&lower, &upper), (Bound::Excluded(one), Bound::Excluded(other)) if one == other);
    if is_refused { (Bound::Unbounded, Bound::Unbounded) } else { (lower, upper) }
}

/// A transaction's scans show its snapshot overlaid with its own changes, forwards, backwards and from both ends,
/// across leaves, while concurrent writers make leaves split and merge.
#[test]
fn scans_see_own_writes_among_splits_and_merges() {
    let (db, k) = stage(&[]);
    let mut settled = Rows::new();
    for number in (0..NUMBERS).step_by(3) {
        let (key, value) = (wide_key(number), vec![1; (number % 50) as usize]);
        k.insert_with(&key, &value, Durability::Relaxed).unwrap();
        settled.insert(key, value);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2u64 {
            let (k, stop) = (&k, &stop);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !stop.load(Ordering::Acquire) {
                    let (start, grows) = (random.below(NUMBERS / 3), random.chance(50));
                    for step in 0..random.below(80) {
                        let key = wide_key((start + step) % (NUMBERS / 3) * 3 + 1);
                        if grows {
                            k.insert_with(&key, vec![2; random.below(90) as usize], Durability::Relaxed).unwrap();
                        } else {
                            k.remove(&key).unwrap();
                        }
                    }
                }
            });
        }
        // Sets `stop` when the thread ends, even if an assertion fails.
        let _stopped = Stopped(&stop);
        let mut random = Random(7);
        for _ in 0..support::number("DRUMLIN_TEST_SCANS", 60) {
            let level = LEVELS[random.below(3) as usize];
            let mut tx = begin(&db, level);
            let mut expected = scan(&tx, &k, (Bound::Unbounded, Bound::Unbounded), &mut random);
            // Concurrent changes are visible only at read committed, and only in the rows of the concurrent writers.
            let is_mine = |key: &[u8]| level != ReadCommitted || number_of(key) % 3 != 1;
            let check = |tx: &Transaction, expected: &Rows, random: &mut Random| {
                for _ in 0..6 {
                    let bounds = random_bounds(random);
                    let mut found = scan(tx, &k, bounds.clone(), random);
                    found.retain(|key, _| is_mine(key));
                    let rows = expected.range(bounds.clone()).filter(|(key, _)| is_mine(key));
                    assert!(rows.eq(found.iter()), "{bounds:?} under {level:?}");
                    let count = tx.count(&k, bounds).unwrap();
                    assert!(count == found.len() as u64 || level == ReadCommitted);
                }
            };
            let change = |tx: &mut Transaction, expected: &mut Rows, random: &mut Random| {
                for _ in 0..random.below(30) {
                    let mut number = random.below(NUMBERS);
                    number -= u64::from(number % 3 == 1);
                    let key = wide_key(number);
                    if random.chance(60) {
                        let value = random.bytes((number % 70) as usize);
                        tx.insert(&k, &key, &value).unwrap();
                        expected.insert(key, value);
                    } else {
                        tx.remove(&k, &key).unwrap();
                        expected.remove(&key);
                    }
                }
            };
            assert!(settled.iter().all(|(key, value)| expected.get(key) == Some(value)));
            change(&mut tx, &mut expected, &mut random);
            check(&tx, &expected, &mut random);
            let (mark, before) = (tx.savepoint(), expected.clone());
            change(&mut tx, &mut expected, &mut random);
            check(&tx, &expected, &mut random);
            if random.chance(50) {
                tx.rollback_to(mark).unwrap();
                expected = before;
                check(&tx, &expected, &mut random);
            }
            match tx.commit() {
                Ok(_) => settled = expected.into_iter().filter(|(key, _)| number_of(key) % 3 != 1).collect(),
                Err(Error::Conflict { .. }) => assert_eq!(level, Serializable),
                Err(error) => panic!("{error}"),
            }
        }
    });
    let rows: Rows = k.iter().map(|row| row.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!(rows.iter().filter(|(key, _)| number_of(key) % 3 != 1).eq(settled.iter()));
    assert!(db.check().unwrap().corruption.is_empty());
}

// ── durability of reads ────────────────────────────────────────────────────────────────────────────────────────────

/// Releases held requests when the test ends, even if it fails.
struct Released<'d>(&'d FaultyBackend);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Changes row `a` from "old" to "new", and calls `meanwhile` once the change is published but not yet durable, with
/// the value that `before` returned before the change. The log record is held until `meanwhile` releases it or returns.
fn while_a_record_is_held<T>(before: impl Fn(&Database) -> T, meanwhile: impl Fn(&FaultyBackend, &Keyspace, T)) {
    let (disk, config) = support::faulty();
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("a", "old").unwrap();
    let begun = before(&db);
    support::hold_records(&disk);
    std::thread::scope(|scope| {
        let _released = Released(&disk);
        let writer = scope.spawn(|| k.insert("a", "new").unwrap());
        assert!(disk.wait_for_held(Duration::from_secs(60)), "no record is written");
        while db.begin().unwrap().get(&k, "a").unwrap().unwrap() == b"old" {
            std::thread::yield_now();
        }
        assert_eq!(k.get("a").unwrap().unwrap(), b"old");
        meanwhile(&disk, &k, begun);
        disk.release();
        writer.join().unwrap();
    });
}

/// While a commit waits to become durable, its old version needs the same amount of memory as the old version of a
/// finished commit.
#[test]
fn a_commit_on_its_way_counts_its_versions_once() {
    let before = |db: &Database| {
        // The snapshot retains all versions. The leaf already has a version, so later ones need the same amount of
        // memory.
        let snapshot = db.snapshot();
        db.keyspace("k").unwrap().insert("a", "old").unwrap();
        let bytes = db.stats().version_bytes;
        (db.clone(), snapshot, bytes)
    };
    while_a_record_is_held(before, |_, k, (db, _snapshot, bytes)| {
        let on_its_way = db.stats().version_bytes - bytes;
        k.insert_with("a", "new", Durability::Relaxed).unwrap();
        let ended = db.stats().version_bytes - bytes - on_its_way;
        assert_eq!(on_its_way, ended);
    });
}

/// Reads a row that is published but not yet durable, and polls the reader's commit, which must not complete before the
/// record is durable. `read` is the kind of read to use.
fn commit_what_is_on_its_way(level: Isolation, read: impl Fn(&Transaction, &Keyspace) -> Option<Value>) {
    let before = |db: &Database| (db.clone(), begin(db, level));
    while_a_record_is_held(before, |disk, k, (db, early)| {
        // To see the row, a transaction that reads from a snapshot must not begin before this point.
        let tx = if level == ReadCommitted { early } else { begin(&db, level) };
        assert_eq!(read(&tx, k).unwrap(), b"new", "{level:?}");
        let before = db.stats().durable;
        let mut commit = std::pin::pin!(tx.commit_async());
        let poll = commit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending(), "{level:?}: {poll:?}, and {before} is durable");
        disk.release();
        let seen = smol::block_on(commit).unwrap();
        // Later readers see the row that the transaction saw.
        assert_eq!(k.get("a").unwrap().unwrap(), b"new", "{level:?}");
        assert!(before < seen && seen == db.stats().durable && seen == db.stats().visible);
    });
}

/// The commit of a transaction without writes succeeds only once everything that it read is durable, regardless of when
/// the transaction began and of how it read.
#[test]
fn what_was_read_is_durable_when_the_commit_returns() {
    for level in LEVELS {
        commit_what_is_on_its_way(level, |tx, k| tx.get(k, "a").unwrap());
        commit_what_is_on_its_way(level, |tx, k| smol::block_on(tx.get_async(k, "a")).unwrap());
        commit_what_is_on_its_way(level, |tx, k| tx.iter(k).next_back().map(|row| row.unwrap().1));
        commit_what_is_on_its_way(level, |tx, k| {
            let mut value = Vec::new();
            tx.read(k, "a").unwrap()?.read_to_end(&mut value).unwrap();
            Some(value.into())
        });
    }
}

/// A read-committed transaction waits until the rows that it has read are durable, but not for other commits.
#[test]
fn what_was_not_read_is_not_waited_for() {
    let before = |db: &Database| {
        let reader = begin(db, ReadCommitted);
        assert_eq!(reader.get(&db.keyspace("k").unwrap(), "a").unwrap().unwrap(), b"old");
        [begin(db, ReadCommitted), reader]
    };
    while_a_record_is_held(before, |_, _, early| {
        for tx in early {
            let commit = std::pin::pin!(tx.commit_async());
            assert!(commit.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        }
    });
}

/// An open read-committed transaction retains no versions and never becomes too old, and its reads see the newest
/// versions.
#[test]
fn read_committed_does_not_grow_old() {
    let db = Config::in_memory().memory(8 << 20).version_disk_bytes(0).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("large", vec![1; 100_000]).unwrap();
    let old = begin(&db, Snapshot);
    let mut tx = begin(&db, ReadCommitted);
    tx.insert(&k, "mine", "1").unwrap();
    assert_eq!(db.stats().snapshots, 1);
    for round in 0..100u8 {
        for row in 0..200u8 {
            k.insert_with([row], [round; 300], Durability::Relaxed).unwrap();
        }
    }
    assert!(matches!(old.get(&k, [0]), Err(Error::SnapshotTooOld { .. })), "the memory for versions was not used up");
    assert_eq!(tx.get(&k, [0]).unwrap().unwrap(), [99; 300]);
    assert_eq!(tx.get(&k, "large").unwrap().unwrap(), [1; 100_000]);
    assert_eq!(tx.get(&k, "mine").unwrap().unwrap(), b"1");
    assert_eq!(tx.get_for_update(&k, [1]).unwrap().unwrap(), [99; 300]);
    assert_eq!(tx.count(&k, ..).unwrap(), 202);
    tx.commit().unwrap();
    assert_eq!(k.get("mine").unwrap().unwrap(), b"1");
}

/// `count` and `nth` of a read-committed transaction see the state after one commit, even if its snapshot is ended
/// during their scan and a single commit changes rows both before and after the position of the scan.
#[test]
fn counts_of_read_committed_are_of_one_moment() {
    const ROWS: u64 = 200;
    let key = |row: u64| (2 * row).to_be_bytes();
    for is_count in [true, false] {
        let (faulty, config) = faulty();
        let config = config.memory(8 << 20).warm_start(false).version_disk_bytes(0);
        let db = config.open("/db").unwrap();
        let cold = db.keyspace("cold").unwrap();
        (0..ROWS).for_each(|row| cold.insert_with(key(row), [1; 100], Durability::Relaxed).unwrap());
        drop(cold);
        db.close().unwrap();
        let db = config.open("/db").unwrap();
        let (cold, hot) = (db.keyspace("cold").unwrap(), db.keyspace("hot").unwrap());
        // Counts are not kept while a run is above the tree. This snapshot keeps the run from being folded.
        let _before = db.snapshot();
        let mut load = db.bulk_load("cold").unwrap();
        load.insert(key(ROWS), "loaded").unwrap();
        load.finish().unwrap();
        // The run, and the first and the last leaf, are in memory. A scan waits for the device between them.
        assert!(cold.contains_key(key(0)).unwrap() && cold.contains_key(key(ROWS - 1)).unwrap());
        let tx = db.begin_with(TxOptions { isolation: Isolation::ReadCommitted, ..db.tx_options() }).unwrap();
        std::thread::scope(|scope| {
            faulty.hold_nth(Operation::Read, 1);
            let counting = scope.spawn(|| match is_count {
                true => (tx.count(&cold, ..).unwrap(), None),
                false => (ROWS + 1, tx.nth(&cold, .., ROWS - 1).unwrap().map(|(key, _)| key.to_vec())),
            });
            assert!(faulty.wait_for_held(Duration::from_secs(60)));
            let mut batch = db.batch().unwrap();
            batch.insert(&cold, 1u64.to_be_bytes(), "new").unwrap();
            batch.remove(&cold, key(ROWS - 1)).unwrap();
            batch.commit().unwrap();
            let later = db.snapshot();
            for round in 0..100u8 {
                for row in 0..200u8 {
                    hot.insert_with([row], [round; 300], Durability::Relaxed).unwrap();
                }
            }
            let ended = later.get(&hot, [0]);
            assert!(matches!(ended, Err(Error::SnapshotTooOld { .. })), "the memory for versions was not used up");
            faulty.release();
            let (count, last) = counting.join().unwrap();
            assert_eq!(count, ROWS + 1);
            let is_of_one_moment = last
                .as_ref()
                .is_some_and(|last| [key(ROWS - 1), key(ROWS - 2)].contains(&last[..].try_into().unwrap()));
            assert!(is_count || is_of_one_moment, "{last:?}");
        });
    }
}

/// `transact` retries a transaction that became too old, as the error recommends.
#[test]
fn transact_runs_again_what_grew_too_old() {
    let db = Config::in_memory().memory(8 << 20).version_disk_bytes(0).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("a", "old").unwrap();
    let mut attempts = 0;
    let read = db.transact(|tx| {
        attempts += 1;
        if attempts == 1 {
            k.insert("a", "new").unwrap();
            (0..20_000u32)
                .for_each(|row| k.insert_with((row % 200).to_be_bytes(), [1; 300], Durability::Relaxed).unwrap());
        }
        tx.get(&k, "a")
    });
    assert_eq!(read.unwrap().unwrap(), b"new");
    assert_eq!(attempts, 2);
}

/// A transaction uses a leaf for a row that it writes only if the row's keyspace has changed since its snapshot. It
/// finds every such change, even if the keyspace had changed before the snapshot, or other snapshots were opened later.
#[test]
fn writes_use_no_leaf_of_an_unchanged_keyspace() {
    let (db, changed) = stage(&[]);
    let unchanged = db.keyspace("unchanged").unwrap();
    for round in 0..10 {
        let key = |row: i64| format!("{round} {row}");
        write_now(&changed, &key(0), 0);
        write_now(&unchanged, &key(0), 0);
        let mut transactions: Vec<(i64, Transaction)> = Vec::new();
        for row in 1..5 {
            transactions.push((row, begin(&db, Snapshot)));
            write_now(&changed, &key(row), row);
            let later = begin(&db, Snapshot);
            // Both ways of committing: at once, and with so many rows that the commit may wait.
            let mut batch = db.batch().unwrap();
            (0..if row % 2 == 0 { 2 } else { 40 })
                .for_each(|other| batch.insert(&changed, format!("{} other {other}", key(row)), "x").unwrap());
            batch.commit().unwrap();
            drop(later);
        }
        for (first, mut tx) in transactions {
            let used = pages_used(&db);
            (0..5).for_each(|row| write(&mut tx, &unchanged, &key(10 * first + row), row).unwrap());
            assert_eq!(pages_used(&db), used, "a write used a leaf");
            // Rows before the transaction have not changed since, all others have.
            (0..first).for_each(|row| write(&mut tx, &changed, &key(row), row).unwrap());
            assert!(pages_used(&db) > used, "a write used no leaf of a changed keyspace");
            let overtaken = if round % 2 == 0 { key(first) } else { format!("{} other 1", key(first)) };
            assert_conflict(write(&mut tx, &changed, &overtaken, 0));
        }
    }
}

fn write_now(keyspace: &Keyspace, key: &str, value: i64) {
    keyspace.insert(key, value.to_be_bytes()).unwrap();
}

fn pages_used(db: &Database) -> u64 {
    let stats = db.stats();
    stats.page_hits + stats.page_misses
}
