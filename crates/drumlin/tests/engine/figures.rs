//! Statistics of an open database, and its messages in the program's log.

use crate::support;

use std::sync::Mutex;
use std::time::Duration;

use drumlin::{Config, Durability, Error, TxOptions};
use support::{Folder, small};

/// `Stats` counts each conflict, wait for a row lock, lock timeout and retry of `transact`.
#[test]
fn contention_is_counted() {
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("a", "1").unwrap();
    let stats = db.stats();
    assert_eq!((stats.conflicts, stats.transact_retries, stats.lock_waits, stats.lock_timeouts), (0, 0, 0, 0));

    let mut runs = 0;
    db.transact(|tx| {
        tx.get(&k, "a")?;
        if runs < 2 {
            runs += 1;
            k.insert("a", "2")?;
        }
        tx.insert(&k, "a", "3")
    })
    .unwrap();
    let stats = db.stats();
    assert_eq!((stats.conflicts, stats.transact_retries), (2, 2));

    let mut holder = db.begin().unwrap();
    holder.insert(&k, "a", "4").unwrap();
    let waited = Duration::from_millis(20);
    let mut other = db.begin_with(TxOptions { lock_timeout: waited, ..TxOptions::default() }).unwrap();
    assert!(matches!(other.insert(&k, "a", "5"), Err(Error::LockTimeout { .. })));
    let stats = db.stats();
    assert_eq!((stats.lock_waits, stats.lock_timeouts), (1, 1));
    assert!(stats.lock_wait_time >= waited, "{stats:?}");

    // A serializable commit fails with a conflict.
    drop((holder, other));
    let serializable = TxOptions { isolation: drumlin::Isolation::Serializable, ..TxOptions::default() };
    let mut tx = db.begin_with(serializable).unwrap();
    tx.get(&k, "a").unwrap();
    k.insert("a", "6").unwrap();
    tx.insert(&k, "b", "1").unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    assert_eq!(db.stats().conflicts, 3);
}

/// Rows found in memory count as hits, and pages read from disk count as misses.
#[test]
fn hits_and_misses_are_counted() {
    let config = small().backend(drumlin_io::in_memory());
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("a", "1").unwrap();
    drop(k);
    db.close().unwrap();
    let db = config.open("/db").unwrap();
    let k = db.existing_keyspace("k").unwrap();
    k.get("a").unwrap();
    let first = db.stats();
    assert!(first.page_misses > 0, "{first:?}");
    (0..100).for_each(|_| drop(k.get("a").unwrap()));
    let then = db.stats();
    assert_eq!((then.page_hits - first.page_hits, then.page_misses - first.page_misses), (100, 0));
}

/// `Stats` counts each snapshot that is ended because its versions need too much memory.
#[test]
fn ended_snapshots_are_counted() {
    let db = Config::in_memory().memory(8 << 20).version_disk_bytes(0).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    let write = |round: u8| (0..3000u32).for_each(|row| k.insert(row.to_be_bytes(), [round; 200]).unwrap());
    write(0);
    let snapshots = [db.snapshot(), db.snapshot()];
    assert_eq!(db.stats().snapshots_ended, 0);
    (1..4).for_each(write);
    assert!(snapshots.iter().all(|snapshot| matches!(snapshot.get(&k, "a"), Err(Error::SnapshotTooOld { .. }))));
    assert_eq!(db.stats().snapshots_ended, 2);
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// The program's log states how much was recovered. If there was nothing to recover, it has no such message.
#[test]
fn recovery_is_logged() {
    support::alone("figures::recovery_is_logged", &[], || {
        log::set_logger(&Lines).unwrap();
        log::set_max_level(log::LevelFilter::Info);
        let (folder, copy) = (Folder::new(), Folder::new());
        let db = small().open(folder.path()).unwrap();
        let k = db.keyspace("k").unwrap();
        (0..100u32).for_each(|row| k.insert_with(row.to_be_bytes(), "1", Durability::Relaxed).unwrap());
        db.sync().unwrap();
        support::copy_folder(&folder.path(), &copy.path());
        drop(k);
        db.close().unwrap();
        drop(small().open(folder.path()).unwrap());
        let is_of_recovery = |line: &String| line.contains("recovered");
        assert!(!LINES.lock().unwrap().iter().any(is_of_recovery));
        let db = small().open(copy.path()).unwrap();
        let lines: Vec<String> = LINES.lock().unwrap().iter().filter(|line| is_of_recovery(line)).cloned().collect();
        let records = format!("recovered {} records", db.opening().recovered_records);
        assert!(db.opening().recovered_records >= 100);
        assert!(lines.len() == 1 && lines[0].starts_with("INFO") && lines[0].contains(&records), "{lines:?}");
    });
}
