//! Databases that are opened read-only: what they return, which openings can share them, and that nothing is written.

use crate::support;

use std::future::Future;
use std::sync::Arc;

use drumlin::{Config, Database, Durability, Error, Keyspace};
use drumlin_io::Backend;
use drumlin_io::testing::fault::FaultyBackend;
use smol::block_on;
use support::{Folder, copy_folder, faulty, small};

/// Creates rows of several pages and a large value, and closes the database.
fn closed(config: &Config) {
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    for row in 0..2000u32 {
        k.insert_with(row.to_be_bytes(), [7; 60], Durability::Relaxed).unwrap();
    }
    k.insert("large", vec![7; 300_000]).unwrap();
    db.close().unwrap();
}

fn read_only(faulty: &FaultyBackend) -> Config {
    let backend: Arc<dyn Backend> = Arc::new(faulty.clone());
    small().backend(backend).read_only(true)
}

fn refused<T>(answer: Result<T, Error>) {
    let refusal = answer.err();
    assert!(matches!(refusal, Some(Error::ReadOnly { .. })), "{refusal:?}");
}

fn refused_async<T>(answer: impl Future<Output = Result<T, Error>>) {
    refused(block_on(answer));
}

/// A read-only opening reports the sync method that was measured in the folder, whichever method that is.
#[test]
fn a_reader_reports_the_sync_method_of_the_database() {
    let folder = Folder::new();
    small().open(folder.path()).unwrap().close().unwrap();
    let probe = folder.path().join("probe");
    let text = std::fs::read_to_string(&probe).unwrap();
    let chosen = text.lines().find(|line| line.starts_with("chosen = ")).unwrap();
    for method in ["durable-write", "data-sync", "full-sync"] {
        std::fs::write(&probe, text.replace(chosen, &format!("chosen = {method}"))).unwrap();
        let db = small().read_only(true).open(folder.path()).unwrap();
        assert_eq!(db.stats().sync_method, method);
    }
}

/// Rows, ranges, snapshots, transactions, values as streams, many keys, checks and statistics all work, and no file is
/// written, created or locked by name.
#[test]
fn everything_reads_and_nothing_is_written() {
    let (faulty, config) = faulty();
    closed(&config);
    faulty.start_trace();
    let db = read_only(&faulty).open("/db").unwrap();
    let k = db.existing_keyspace("k").unwrap();
    assert_eq!(k.get(7u32.to_be_bytes()).unwrap().unwrap(), [7; 60]);
    assert_eq!(block_on(k.get_async(7u32.to_be_bytes())).unwrap().unwrap(), [7; 60]);
    assert_eq!(k.get_many(&[7u32.to_be_bytes(), 9999u32.to_be_bytes()]).unwrap().into_iter().flatten().count(), 1);
    assert_eq!(k.iter().rev().count(), 2001);
    assert_eq!(k.count(..).unwrap(), 2001);
    assert_eq!(db.snapshot().prefix(&k, [0, 0]).count(), 2000);
    assert!(k.get("large").unwrap().unwrap() == vec![7; 300_000]);
    let tx = db.begin().unwrap();
    assert!(tx.get(&k, "missing").unwrap().is_none());
    assert_eq!(tx.commit().unwrap(), db.opening().last);
    assert_eq!(db.keyspace("k").unwrap().count(..).unwrap(), 2001);
    db.sync().unwrap();
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty() && report.rows == 2001, "{report:?}");
    let stats = db.stats();
    assert!(stats.memory_used_bytes <= stats.memory_budget_bytes && stats.failed.is_none(), "{stats:?}");
    assert_eq!(stats.device_writes, 0);
    drop(k);
    db.close().unwrap();
    assert_eq!(faulty.take_events(), []);
}

/// Every kind of call that writes is refused, and has no effect.
#[test]
fn calls_that_write_are_refused() {
    let (faulty, config) = faulty();
    closed(&config);
    let db = read_only(&faulty).open("/db").unwrap();
    let k = db.existing_keyspace("k").unwrap();
    refused(k.insert("k", "v"));
    refused(k.insert("k", vec![7; 100_000]));
    refused(k.insert_with("k", "v", Durability::Relaxed));
    refused(k.insert_from("k", &b"v"[..]));
    refused(k.remove("k"));
    refused(k.take(7u32.to_be_bytes()));
    refused(k.replace("k", "v"));
    refused(k.insert_if_absent("k", "v"));
    refused(k.pop_first());
    refused(k.clear());
    refused(k.remove_prefix("none has it"));
    refused_async(k.insert_async("k", "v"));
    refused_async(k.remove_async("k"));
    refused(db.keyspace("other"));
    refused(db.drop_keyspace("k"));
    refused(db.checkpoint());
    refused(db.compact());
    refused_async(db.checkpoint_async());
    let mut tx = db.begin().unwrap();
    refused(tx.insert(&k, "k", "v"));
    refused(tx.remove(&k, "k"));
    assert_eq!(tx.count(&k, ..).unwrap(), 2001);
    tx.commit().unwrap();
    let mut batch = db.batch().unwrap();
    refused(batch.insert(&k, "k", "v"));
    assert_eq!(k.count(..).unwrap(), 2001);
}

/// Any number of readers can have a database open at the same time. A writer can't open it while a reader has it open,
/// nor a reader while a writer does.
#[test]
fn readers_share_and_writers_do_not() {
    let folder = Folder::new();
    let writing = small();
    let reading = small().read_only(true);
    let is_locked = |opened: Result<Database, Error>| matches!(opened, Err(Error::Locked { .. }));
    let db = writing.open(folder.path()).unwrap();
    db.keyspace("k").unwrap().insert("k", "v").unwrap();
    assert!(is_locked(reading.open(folder.path())), "beside the writer");
    drop(db);
    let readers: Vec<Database> = (0..3).map(|_| reading.open(folder.path()).unwrap()).collect();
    let refusal = writing.open(folder.path());
    assert!(matches!(refusal, Err(Error::Locked { pid: 0, .. })), "the readers' process is not known: {refusal:?}");
    assert!(writing.examine(folder.path()).unwrap().corruption.is_empty(), "an examination is a reader");
    for db in readers {
        assert_eq!(db.existing_keyspace("k").unwrap().get("k").unwrap().unwrap(), b"v");
        assert!(is_locked(writing.open(folder.path())), "a reader is left");
    }
    writing.open(folder.path()).unwrap();
}

/// A read-only opening of a killed database fails with the number of commits that would be missing, and leaves it
/// unchanged. After the database was opened for writing and closed, it can be read, even if its log is removed.
#[test]
fn a_database_that_was_not_closed_is_refused() {
    let (folder, killed) = (Folder::new(), Folder::new());
    let reading = small().read_only(true);
    let db = small().open(folder.path()).unwrap();
    let k: Keyspace = db.keyspace("k").unwrap();
    db.checkpoint().unwrap();
    (0..3u8).for_each(|row| k.insert([row], "v").unwrap());
    copy_folder(&folder.path(), &killed.path());
    drop((db, k));
    for _ in 0..2 {
        let refusal = reading.open(killed.path());
        assert!(matches!(refusal, Err(Error::NotClosed { commits: 3, .. })), "{refusal:?}");
    }
    drop(small().open(killed.path()).unwrap());
    std::fs::remove_dir_all(killed.path().join("log")).unwrap();
    for path in [folder.path(), killed.path()] {
        assert_eq!(reading.open(path).unwrap().existing_keyspace("k").unwrap().count(..).unwrap(), 3);
    }
    assert!(!killed.path().join("log").exists());
}

/// Nothing is created if there is no database, and an in-memory database can't be read-only.
#[test]
fn reading_creates_nothing() {
    let folder = Folder::new();
    assert!(small().read_only(true).open(folder.path()).is_err());
    assert!(!folder.path().exists());
    std::fs::create_dir(folder.path()).unwrap();
    let refusal = small().read_only(true).open(folder.path());
    assert!(matches!(refusal, Err(Error::NotADatabase { .. })), "{refusal:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(matches!(Config::in_memory().read_only(true).open(""), Err(Error::Invalid(_))));
}
