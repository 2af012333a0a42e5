//! Invalid input and environment failures cause a clear error with advice. No commit is lost, and nothing panics.
//!
//! `DRUMLIN_TEST_FULL_DISKS` is the number of disks that are filled (default 12).

use crate::support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drumlin::{Config, Database, Durability, Error, Isolation, KeyspaceOptions, Recourse, TxOptions};
use drumlin_io::testing::fault::{EIO, ENOSPC, Event, Operation};
use drumlin_io::{Backend, OpenOptions, Persist};
use support::{Folder, Model, Random, compare, faulty, small, some_value};

/// The system's error number for a file system that is mounted read-only.
const EROFS: i32 = 30;

/// Opening a file, a folder of unrelated files, or a data file of random bytes fails and leaves it unchanged.
#[test]
fn other_things_are_not_databases() {
    let folder = Folder::new();
    let path = folder.path();
    std::fs::write(&path, b"some text").unwrap();
    let error = small().open(&path).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"some text");
    std::fs::remove_file(&path).unwrap();

    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("letter.txt"), b"dear").unwrap();
    let error = small().open(&path).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }) && error.to_string().contains("letter.txt"), "{error:?}");
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);

    for length in [0, 10, 5000, 300_000] {
        std::fs::write(path.join("data"), Random(3).bytes(length)).unwrap();
        let error = small().open(&path).unwrap_err();
        let clear = matches!(error, Error::NotADatabase { .. } | Error::Corrupted { .. });
        assert!(clear, "{length} bytes of noise: {error:?}");
        assert_eq!(std::fs::read(path.join("data")).unwrap(), Random(3).bytes(length));
    }
}

/// With `create(false)`, opening creates no files if there is no database.
#[test]
fn nothing_is_made_without_leave() {
    let folder = Folder::new();
    let error = small().create(false).open(folder.path()).unwrap_err();
    assert!(matches!(&error, Error::NotFound { path } if *path == folder.path()), "{error:?}");
    assert!(!folder.path().exists());
    std::fs::create_dir(folder.path()).unwrap();
    let error = small().create(false).open(folder.path()).unwrap_err();
    assert!(matches!(error, Error::NotADatabase { .. }), "{error:?}");
}

/// A newer format is rejected, and the error contains its number.
#[test]
fn a_newer_format_is_refused() {
    let folder = Folder::new();
    small().open(folder.path()).unwrap().close().unwrap();
    let data = folder.path().join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    for slot in [0, 8 * 4096] {
        bytes[slot + 8] = 99;
    }
    std::fs::write(&data, bytes).unwrap();
    match small().open(folder.path()).unwrap_err() {
        Error::NewerFormat { found: 99, path, .. } => assert_eq!(path, folder.path()),
        other => panic!("{other:?}"),
    }
}

/// A database of the previous format is rejected and left unchanged, and the error explains how to transfer its rows.
#[test]
fn an_older_format_is_refused() {
    let folder = Folder::new();
    small().open(folder.path()).unwrap().close().unwrap();
    let data = folder.path().join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    for slot in [0, 8 * 4096] {
        assert_eq!(bytes[slot + 8], 3, "the format version");
        bytes[slot + 8] = 2;
    }
    std::fs::write(&data, &bytes).unwrap();
    for error in [small().open(folder.path()).unwrap_err(), small().examine(folder.path()).unwrap_err()] {
        assert!(
            matches!(&error, Error::OlderFormat { found: 2, supported: 3, path } if *path == folder.path()),
            "{error:?}"
        );
        assert!(error.to_string().contains("drumlin dump") && error.to_string().contains("drumlin load"), "{error}");
    }
    assert_eq!(std::fs::read(&data).unwrap(), bytes, "a database that was refused has changed");
}

/// If one superblock can't be read or has a newer format, the other one is used.
#[test]
fn one_superblock_is_enough() {
    let (faulty, config) = faulty();
    let db = config.open("/db").unwrap();
    db.keyspace("rows").unwrap().insert(b"k", b"v").unwrap();
    db.checkpoint().unwrap();
    let close = |db: Database| {
        let found = db.existing_keyspace("rows").unwrap().get(b"k").unwrap();
        assert_eq!(found.as_deref(), Some(&b"v"[..]));
        drop(db);
    };
    close(db);
    for slot in [0, 8 * 4096] {
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let file = faulty.open(Path::new("/db/data"), options).unwrap();
        let mut version = [0];
        file.read_at(&mut version, slot + 8).unwrap();
        file.write_at(&[99], slot + 8, Persist::Later).unwrap();
        let db = config.open("/db").unwrap();
        // A check reports the damaged superblock, although the opening has rewritten it.
        let report = db.check().unwrap();
        assert!(report.corruption.is_empty() && report.repaired.len() == 1, "{report:?}");
        assert!(report.repaired[0].what.starts_with("superblock"), "{report:?}");
        close(db);
        // This opening or the next overwrites the superblock of the other format.
        close(config.open("/db").unwrap());
        // Each superblock is tried twice, starting with the one at offset 0.
        let first = if slot == 0 { 1 } else { 2 };
        faulty.fail_nth(Operation::Read, first, EIO);
        faulty.fail_nth(Operation::Read, first + 1, EIO);
        close(config.open("/db").unwrap());
        faulty.heal();
    }
    faulty.fail_from(Operation::Read, 1, EIO);
    let error = config.open("/db").unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
}

/// A closed database whose log was removed can be opened even if one of its superblocks is damaged.
#[test]
fn one_superblock_of_a_closed_database_is_enough() {
    for slot in [0, 8 * 4096] {
        let (faulty, config) = faulty();
        let db = config.open("/db").unwrap();
        let rows = db.keyspace("rows").unwrap();
        for number in 0..200_u64 {
            rows.insert(number.to_be_bytes(), vec![7; 30_000]).unwrap();
        }
        drop((rows, db));
        let data = faulty.open(Path::new("/db/data"), OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
        data.write_at(&[0xaa; 4096], slot, Persist::Later).unwrap();
        let db = config.open("/db").unwrap_or_else(|error| panic!("without the superblock at {slot}: {error}"));
        assert_eq!(db.existing_keyspace("rows").unwrap().count(..).unwrap(), 200);
    }
}

/// An opening rewrites the superblock that it found before it overwrites the other one. The last sync of the previous
/// process may have failed, so that the page cache still shows writes that were lost.
#[test]
fn the_superblock_that_was_found_is_written_again() {
    let (faulty, config) = faulty();
    for round in 0..4 {
        let db = config.open("/db").unwrap();
        db.keyspace("rows").unwrap().insert(b"k", b"v").unwrap();
        if round % 2 == 0 {
            db.checkpoint().unwrap();
        }
        drop(db);
        faulty.start_trace();
        let db = config.open("/db").unwrap();
        db.keyspace("rows").unwrap().insert(b"k", b"v").unwrap();
        let events = faulty.take_events();
        let writes = events.iter().filter_map(|event| match event {
            Event::Write { file, offset, persist: Persist::Now(_), .. } if file == "data" => Some(*offset),
            _ => None,
        });
        let writes: Vec<u64> = writes.take(2).collect();
        assert!(writes == [0, 8 * 4096] || writes == [8 * 4096, 0], "{writes:?} of {events:?}");
    }
}

/// The directory entry of a new database's folder is durable before its data file is renamed, even if the path is
/// relative or a killed creation left the folder behind.
#[test]
fn the_name_of_the_folder_is_durable() {
    for (path, left, above) in [("db", false, ""), ("/a/b/db", false, "b"), ("/above/db", true, "above")] {
        let (faulty, config) = faulty();
        if left {
            faulty.create_dir_all(Path::new(path)).unwrap();
        }
        faulty.start_trace();
        drop(config.open(path).unwrap());
        let wanted = Event::SyncDir { folder: above.to_owned() };
        let events = faulty.take_events();
        assert!(events.contains(&wanted), "{path}: {events:?}");
        assert!(events.iter().position(|event| *event == wanted) < events.iter().position(is_rename), "{events:?}");
    }
}

fn is_rename(event: &Event) -> bool {
    matches!(event, Event::Rename { .. })
}

/// If a process finds the folder empty, but gets the lock only after a different process has created the database, it
/// opens that database.
#[test]
fn a_database_created_concurrently_is_not_overwritten() {
    let (faulty, config) = faulty();
    // The lock file is opened first.
    faulty.hold_nth(Operation::Open, 1);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| config.open("/db").unwrap());
        assert!(faulty.wait_for_held(Duration::from_secs(60)));
        let db = config.open("/db").unwrap();
        db.keyspace("rows").unwrap().insert(b"k", b"v").unwrap();
        db.close().unwrap();
        faulty.release();
        let db = late.join().unwrap();
        let found = db.existing_keyspace("rows").unwrap().get(b"k").unwrap();
        assert_eq!(found.as_deref(), Some(&b"v"[..]));
    });
}

/// If a process finds no data file, and a different process creates one before the first process lists the folder, the
/// first process opens that database.
#[test]
fn a_database_created_concurrently_is_opened() {
    let (faulty, config) = faulty();
    Backend::create_dir_all(&faulty, Path::new("/db")).unwrap();
    faulty.hold_nth(Operation::List, 1);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| config.open("/db"));
        assert!(faulty.wait_for_held(Duration::from_secs(60)));
        config.open("/db").unwrap().close().unwrap();
        faulty.release();
        late.join().unwrap().expect("the database is there");
    });
}

/// Creates keyspaces until there is no memory for one more, and returns the error.
fn fill_tables(db: &Database) -> Error {
    let create = |numbers: std::ops::Range<u32>| {
        let add =
            |step: drumlin::Alteration, number| step.create(&format!("keyspace {number}"), KeyspaceOptions::new());
        numbers.fold(db.alter(), add).commit()
    };
    let mut count = 0;
    for step in [100, 1] {
        loop {
            match create(count..count + step) {
                Ok(()) => count += step,
                Err(error) if step == 1 => return error,
                Err(_) => break,
            }
        }
    }
    unreachable!("the last step creates one keyspace at a time")
}

/// A database that was created with a budget can be reopened with it. Once page tables fill three quarters of the
/// memory for pages, new keyspaces and rows are refused, but removals are not.
#[test]
fn page_tables_leave_memory_for_frames() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let refused = fill_tables(&db);
    assert!(matches!(refused, Error::BudgetTooSmall { .. }), "{refused:?}");
    let stats = db.stats();
    assert!(stats.memory_used_bytes <= stats.memory_budget_bytes, "{stats:?}");
    db.checkpoint().unwrap();
    let rows = db.existing_keyspace("keyspace 7").unwrap();
    assert!(matches!(rows.insert(b"k", b"v"), Err(Error::BudgetTooSmall { .. })));
    rows.remove(b"k").unwrap();
    for number in 0..20 {
        db.drop_keyspace(&format!("keyspace {}", 100 + number)).unwrap();
    }
    db.checkpoint().unwrap();
    rows.insert(b"k", b"v").unwrap();
    drop((rows, db));
    let db = config.open("/db").unwrap();
    assert_eq!(db.existing_keyspace("keyspace 7").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// If page tables would use up a budget, opening fails with an error that names a sufficient budget. Opening with that
/// budget works, and so does opening with the budget under which the tables were created.
#[test]
fn a_budget_too_small_for_page_tables_says_which_works() {
    let (_, config) = faulty();
    let config = |memory_bytes| config.clone().memory(memory_bytes);
    let db = config(24 << 20).open("/db").unwrap();
    let refused = fill_tables(&db);
    assert!(matches!(refused, Error::BudgetTooSmall { given_bytes: 0x180_0000, .. }), "{refused:?}");
    drop(db);
    let Error::BudgetTooSmall { minimum_bytes, .. } = config(10 << 20).open("/db").unwrap_err() else {
        panic!("another error")
    };
    assert!((12 << 20..=25 << 20).contains(&minimum_bytes), "{minimum_bytes}");
    let examined = config(10 << 20).examine("/db");
    assert!(matches!(examined, Err(Error::BudgetTooSmall { .. })), "{examined:?}");
    for memory_bytes in [minimum_bytes, 24 << 20] {
        let db = config(memory_bytes).open("/db").unwrap();
        // Make room for the page-table growth that a put may cause.
        db.drop_keyspace(&db.keyspaces()[0].name).unwrap();
        db.drop_keyspace(&db.keyspaces()[0].name).unwrap();
        db.existing_keyspace("keyspace 7").unwrap().insert(b"k", b"v").unwrap();
        let stats = db.stats();
        assert!(stats.memory_used_bytes <= stats.memory_budget_bytes, "{stats:?}");
    }
}

/// The sync method is measured again only if the file system has changed.
#[test]
fn a_place_that_has_changed_is_measured_again() {
    let folder = Folder::new();
    let probe = folder.path().join("probe");
    drop(small().open(folder.path()).unwrap());
    let measured = std::fs::read_to_string(&probe).unwrap();
    drop(small().open(folder.path()).unwrap());
    assert_eq!(std::fs::read_to_string(&probe).unwrap(), measured);
    let is_place = |line: &&str| line.starts_with("fingerprint");
    let place = measured.lines().find(is_place).unwrap();
    std::fs::write(&probe, measured.replace(place, "fingerprint = elsewhere")).unwrap();
    drop(small().open(folder.path()).unwrap());
    let again = std::fs::read_to_string(&probe).unwrap();
    assert_eq!(again.lines().find(is_place), Some(place), "{again}");
}

/// The process id in the lock file is only informative: a database can be opened even if there is no disk space to
/// write the id.
#[test]
fn a_lock_that_cannot_be_written_locks() {
    let (faulty, config) = faulty();
    drop(config.open("/db").unwrap());
    faulty.fail_nth(Operation::SetLen, 1, ENOSPC);
    let db = config.open("/db").unwrap();
    assert!(matches!(config.open("/db").unwrap_err(), Error::Locked { .. }));
    drop(db);
}

const CHILD_VARIABLE: &str = "DRUMLIN_TEST_LOCK_CHILD";

/// This is not a test, but the code of the second process.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD_VARIABLE) else { return };
    match small().open(path).unwrap_err() {
        Error::Locked { pid, by_this_process: false, .. } => println!("locked by {pid}"),
        other => panic!("{other:?}"),
    }
}

/// If a second handle or a second process opens the database, the error names the process that has it open. Once it is
/// closed, both can open it.
#[test]
fn a_second_opening_names_the_process_that_has_the_database() {
    let folder = Folder::new();
    let db = small().open(folder.path()).unwrap();
    let error = small().open(folder.path()).unwrap_err();
    assert!(
        matches!(error, Error::Locked { pid, by_this_process: true, .. } if pid == std::process::id()),
        "{error:?}"
    );
    // A database that was not closed is locked as long as any handle exists.
    let (keyspace, again) = (db.keyspace("k").unwrap(), db.clone());
    drop(db);
    let error = small().open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("this very process") && error.contains("Keyspace"), "{error}");
    assert!(!error.contains("end that process"), "{error}");
    again.close().unwrap();
    let refused = keyspace.insert("a", "1").unwrap_err();
    assert!(matches!(refused, Error::Closed) && refused.recourse() == Recourse::Reopen, "{refused:?}");
    drop(keyspace);
    let db = small().open(folder.path()).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "errors::child", "--nocapture"])
        .env(CHILD_VARIABLE, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("locked by {}", std::process::id())), "{said}");
    drop(db);
    small().open(folder.path()).unwrap();
}

/// If the medium can't be written, the error names it and gives the system's reason.
#[test]
fn a_medium_for_reading_only_is_named() {
    let (faulty, config) = faulty();
    faulty.fail_from(Operation::Open, 1, EROFS);
    let error = config.open("/db").unwrap_err();
    assert!(error.to_string().contains("Read-only"), "{error}");
}

/// If an opening fails when it starts threads, or in one of its syncs, it leaves behind no running thread, no reference
/// to the backend, and no lock.
#[test]
fn an_opening_that_fails_leaves_nothing_running() {
    const EAGAIN: i32 = 11;
    let (faulty, _) = faulty();
    let backend: Arc<dyn Backend> = Arc::new(faulty.clone());
    let config = small().backend(Arc::clone(&backend));
    config.open("/db").unwrap().close().unwrap();
    let holders = Arc::strong_count(&backend);
    let mut failures = 0;
    loop {
        faulty.fail_nth(Operation::Spawn, failures + 1, EAGAIN);
        match config.open("/db") {
            Ok(_) => break,
            Err(error) => assert!(matches!(error, Error::Io { .. }), "{error:?}"),
        }
        assert_eq!(Arc::strong_count(&backend), holders, "thread {failures} could not be started");
        failures += 1;
    }
    assert!(failures >= 6, "two threads of the log, four of the database");
    faulty.heal();

    // The database was not closed, so opening it writes.
    let db = config.open("/db").unwrap();
    db.keyspace("rows").unwrap().insert("k", "v").unwrap();
    faulty.fail_from(Operation::Write, 1, EIO);
    drop(db);
    faulty.heal();
    let mut failed_openings = 0;
    for nth in 1..=20 {
        faulty.fail_nth(Operation::Sync, nth, EIO);
        failed_openings += u32::from(matches!(config.open("/db"), Err(Error::Failed { .. } | Error::Io { .. })));
        faulty.heal();
        assert_eq!(Arc::strong_count(&backend), holders, "sync {nth} failed");
    }
    assert!(failed_openings > 0);
}

/// The error for a budget that is too small names the minimum, and opening with that minimum works.
#[test]
fn a_budget_too_small_says_which_works() {
    let Error::BudgetTooSmall { given_bytes: 1000, minimum_bytes } =
        Config::in_memory().memory(1000).open("").unwrap_err()
    else {
        panic!("another error")
    };
    for streams in [1, 64] {
        match Config::in_memory().memory(minimum_bytes).log_streams(streams).open("") {
            Ok(db) => drop(db.keyspace("k").unwrap().insert(b"k", vec![0; 60_000])),
            Err(error) => assert!(matches!(error, Error::BudgetTooSmall { .. }), "{error:?}"),
        }
    }
}

/// A transaction can be as large with many log streams as with one: a thirty-second of the memory, and at most 8 MiB.
#[test]
fn more_logs_take_no_value_away() {
    const VALUE_BYTES: usize = 60_000;
    for (memory, streams) in [(8 << 20, 1), (8 << 20, 16), (8 << 20, 64), (256 << 20, 4), (256 << 20, 64)] {
        let config = Config::new().memory(memory).log_streams(streams).log_segment_bytes(1 << 20);
        let config = config.backend(drumlin_io::in_memory());
        let db = config.open("/db").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let share = (memory as usize / 32).min(8 << 20);
        let mut expected = Vec::new();
        // Commit on different threads, so that each uses a separate stream.
        for thread in 0..4u8 {
            let (db, keyspace) = (&db, &keyspace);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    keyspace.insert([thread], vec![thread; 20_000]).unwrap();
                    let mut tx = db.begin().unwrap();
                    for (number, start) in (0..share - 1000).step_by(VALUE_BYTES).enumerate() {
                        let length = (share - 1000 - start).min(VALUE_BYTES);
                        tx.insert(keyspace, [thread, number as u8], vec![thread; length - 50]).unwrap();
                    }
                    tx.commit().unwrap_or_else(|error| panic!("{memory} bytes, {streams} logs: {error}"));
                });
            });
            let lengths =
                (0..share - 1000).step_by(VALUE_BYTES).map(|start| (share - 1000 - start).min(VALUE_BYTES) - 50);
            expected.push(20_000 + lengths.sum::<usize>());
        }
        drop((keyspace, db));
        let db = config.open("/db").unwrap();
        let keyspace = db.existing_keyspace("k").unwrap();
        for (thread, expected) in expected.into_iter().enumerate() {
            let rows = keyspace.prefix([thread as u8]);
            assert_eq!(rows.map(|row| row.unwrap().1.len()).sum::<usize>(), expected);
        }
        db.close().unwrap();
    }
}

/// Keys up to the limit work, and one more byte is rejected. Empty keys and values are allowed.
#[test]
fn keys_have_a_limit_and_may_be_empty() {
    let db = Config::in_memory().open("").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let limit = keyspace.key_bytes_max();
    keyspace.insert(vec![1; limit], b"").unwrap();
    assert_eq!(keyspace.get(vec![1; limit]).unwrap().unwrap(), b"");
    let tried = [
        keyspace.insert(vec![1; limit + 1], b"v"),
        keyspace.remove(vec![1; limit + 1]),
        db.begin().unwrap().insert(&keyspace, vec![1; limit + 1], b"v"),
        keyspace.insert_from(vec![1; limit + 1], &[0; 200_000][..]).map(drop),
    ];
    for result in tried {
        match result.unwrap_err() {
            Error::KeyTooLong { key_bytes, limit_bytes, .. } => {
                assert_eq!((key_bytes, limit_bytes), (limit + 1, limit));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(keyspace.get(vec![1; limit + 1]).unwrap().is_none());
    keyspace.insert(b"", b"").unwrap();
    assert_eq!(keyspace.get(b"").unwrap().unwrap(), b"");
    assert_eq!(keyspace.count(..).unwrap(), 2);
    keyspace.remove(b"").unwrap();
    assert!(keyspace.get(b"").unwrap().is_none());
}

/// Errors name unknown keyspaces. All calls on the handle of a dropped keyspace report that it was dropped, even after
/// a keyspace of the same name was created.
#[test]
fn keyspaces_that_are_not_there() {
    let db = Config::in_memory().open("").unwrap();
    assert!(matches!(db.existing_keyspace("no"), Err(Error::NoSuchKeyspace { name }) if name == "no"));
    assert!(matches!(db.drop_keyspace("no"), Err(Error::NoSuchKeyspace { .. })));
    assert!(matches!(db.keyspace(""), Err(Error::Invalid(_))));
    assert!(matches!(db.keyspace(&"n".repeat(256)), Err(Error::Invalid(_))));
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..2000u64 {
        keyspace.insert_with(number.to_be_bytes(), vec![1; 500], Durability::Relaxed).unwrap();
    }
    let mut tx = db.begin().unwrap();
    tx.insert(&keyspace, b"k", b"v").unwrap();
    let mut scan = keyspace.iter();
    scan.next().unwrap().unwrap();
    db.drop_keyspace("k").unwrap();
    let again = db.keyspace("k").unwrap();
    again.insert(b"new", b"row").unwrap();
    let dropped =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::KeyspaceDropped { .. })), "{result:?}");
    dropped(keyspace.get(b"k").map(drop));
    dropped(keyspace.insert(b"l", b"v"));
    dropped(keyspace.insert(b"l", vec![1; 300_000]));
    dropped(keyspace.remove(b"l"));
    dropped(keyspace.count(..).map(drop));
    dropped(tx.commit().map(drop));
    dropped(scan.find_map(Result::err).map_or(Ok(()), Err));
    assert_eq!(again.count(..).unwrap(), 1);
}

/// A serializable transaction that exceeds its share is refused, and has no effect.
#[test]
fn a_serializable_transaction_has_a_limit() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let options = TxOptions { isolation: Isolation::Serializable, ..db.tx_options() };
    let mut tx = db.begin_with(options).unwrap();
    let mut rows = 0u64;
    let error = loop {
        match tx.insert(&keyspace, rows.to_be_bytes(), [7; 200]) {
            Ok(()) => rows += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error:?}");
    // Writes that do not fit in one log record are refused at the commit.
    let result = tx.commit();
    assert!(matches!(result, Ok(_) | Err(Error::TransactionTooLarge { .. })), "{result:?}");
    let found = keyspace.count(..).unwrap();
    assert_eq!(found, if result.is_ok() { rows } else { 0 });
    keyspace.insert(b"k", b"v").unwrap();
}

/// A write that waits too long for a row fails with a timeout, and its transaction can continue. If two transactions
/// wait for each other, one of them gets a conflict immediately.
#[test]
fn waiting_for_rows_ends() {
    let db = Config::in_memory().open("").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let mut first = db.begin().unwrap();
    first.insert(&keyspace, b"a", b"1").unwrap();
    let options = TxOptions { lock_timeout: Duration::from_millis(50), ..TxOptions::default() };
    let mut second = db.begin_with(options).unwrap();
    let began = Instant::now();
    let error = second.insert(&keyspace, b"a", b"2").unwrap_err();
    assert!(matches!(error, Error::LockTimeout { .. }) && error.recourse() == Recourse::Change, "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(5));
    // Use a row outside of the cycle. The first transaction is older than this commit, so it could not change that row.
    second.insert(&keyspace, b"c", b"2").unwrap();
    second.commit().unwrap();

    let mut second = db.begin().unwrap();
    second.insert(&keyspace, b"b", b"2").unwrap();
    let began = Instant::now();
    let ended = std::thread::scope(|scope| {
        // The transaction that closes the cycle fails, whichever it is, and the other one continues.
        let first = scope.spawn(|| first.insert(&keyspace, b"b", b"1").and_then(|()| first.commit().map(drop)));
        let second = second.insert(&keyspace, b"a", b"2").and_then(|()| second.commit().map(drop));
        [first.join().unwrap(), second]
    });
    assert!(began.elapsed() < Duration::from_secs(5));
    let winner = ended.iter().position(Result::is_ok).expect("one of the two goes on");
    assert!(ended[1 - winner].as_ref().is_err_and(Error::is_conflict), "{ended:?}");
    assert_eq!(keyspace.get(b"b").unwrap().unwrap(), [b"1", b"2"][winner]);
    // If two transactions change the same row, the second one gets a conflict, and its retry sees the change of the
    // first.
    let mut late = db.begin().unwrap();
    keyspace.insert(b"a", b"3").unwrap();
    assert!(late.insert(&keyspace, b"a", b"4").unwrap_err().is_conflict());
}

/// A snapshot whose versions no longer fit in memory reports that and never shows newer rows. A new snapshot works.
#[test]
fn an_old_snapshot_ends_with_an_error() {
    let (_, config) = faulty();
    let db = config.version_disk_bytes(0).open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..500u64 {
        keyspace.insert_with(number.to_be_bytes(), [0; 8], Durability::Relaxed).unwrap();
    }
    let snapshot = db.snapshot();
    let tx = db.begin().unwrap();
    let mut ended = 0;
    for round in 1..200u64 {
        for number in 0..500u64 {
            keyspace.insert_with(number.to_be_bytes(), round.to_be_bytes(), Durability::Relaxed).unwrap();
        }
        for result in [snapshot.get(&keyspace, 7u64.to_be_bytes()), tx.get(&keyspace, 7u64.to_be_bytes())] {
            match result {
                Ok(value) => assert_eq!(value.unwrap(), [0; 8]),
                Err(Error::SnapshotTooOld { timestamp, .. }) => {
                    assert_eq!(timestamp, snapshot.timestamp());
                    ended += 1;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        if ended > 0 {
            break;
        }
    }
    assert!(ended > 0, "the versions of 100,000 changes fit into half a megabyte");
    let error = snapshot.iter(&keyspace).find_map(Result::err).unwrap();
    assert!(matches!(error, Error::SnapshotTooOld { .. }), "{error:?}");
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), 500);
}

/// Makes a write or sync fail. From then on, commits fail with clear errors, reads continue, and reopening recovers
/// every acknowledged commit.
fn fail(operation: Operation, nth: u64, lasting: bool, by_checkpoint: bool) {
    let place = format!("{operation:?} {nth}, lasting: {lasting}");
    let (faulty, config) = faulty();
    let db: Database = config.open("/db").unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    let mut model = Model::new();
    let mut random = Random(nth);
    for number in 0..400u64 {
        let value = some_value(&mut random);
        keyspace.insert_with(number.to_be_bytes(), &value, Durability::Relaxed).unwrap();
        model.insert(number.to_be_bytes().to_vec(), value);
    }
    keyspace.insert(b"durable", b"all before too").unwrap();
    model.insert(b"durable".to_vec(), b"all before too".to_vec());
    if lasting {
        faulty.fail_from(operation, nth, EIO);
    } else {
        faulty.fail_nth(operation, nth, EIO);
    }
    let mut unknown = None;
    let mut failure = None;
    for number in 0..400u64 {
        if by_checkpoint && number == 3 {
            let _ = db.checkpoint();
        }
        let key = number.to_be_bytes().to_vec();
        let value = some_value(&mut random);
        match keyspace.insert(&key, &value) {
            Ok(()) => drop(model.insert(key, value)),
            Err(error) => {
                let clear = match &error {
                    Error::OutcomeUnknown { .. } => {
                        unknown = Some((key, value));
                        true
                    }
                    Error::Failed { .. } => true,
                    _ => false,
                };
                assert!(clear && error.recourse() == Recourse::Reopen, "{place}: {error:?}");
                failure = Some(error);
                break;
            }
        }
    }
    let failure = failure.unwrap_or_else(|| panic!("{place}: nothing failed"));
    // Commits of all kinds are still refused with the reason, even though the fault may be gone.
    faulty.heal();
    let again = keyspace.insert(b"more", b"v").unwrap_err();
    assert!(
        matches!(again, Error::Failed { .. }) && again.to_string().contains("reopen"),
        "{place}: {again:?} after {failure:?}"
    );
    assert!(matches!(keyspace.remove(b"durable"), Err(Error::Failed { .. })), "{place}");
    assert!(matches!(db.checkpoint(), Err(Error::Failed { .. })), "{place}");
    // Reads continue, and show only acknowledged commits.
    compare(&keyspace, &model);
    drop((keyspace, db));
    let db = config.open("/db").unwrap_or_else(|error| panic!("{place}: reopening: {error:?}"));
    let keyspace = db.existing_keyspace("rows").unwrap();
    if let Some((key, value)) = unknown
        && keyspace.get(&key).unwrap().as_deref() == Some(&value[..])
    {
        model.insert(key, value);
    }
    compare(&keyspace, &model);
    keyspace.insert(b"more", b"v").unwrap();
    assert!(db.check().unwrap().corruption.is_empty());
}

/// After a failed write or sync of the log, the data file or the superblock, the database stays failed until it is
/// reopened.
#[test]
fn a_failed_transfer_is_final_until_reopened() {
    for nth in [1, 2, 3, 7, 20] {
        for lasting in [true, false] {
            fail(Operation::Write, nth, lasting, true);
            fail(Operation::Sync, nth, lasting, true);
        }
        fail(Operation::Write, nth, true, false);
        fail(Operation::Sync, nth, true, false);
    }
}

/// A function that returns `std::io` errors can return the library's error with `?`, and callers can find it within the
/// `std::io` error.
#[test]
fn an_error_becomes_one_of_io() {
    fn get(db: &Database) -> std::io::Result<()> {
        db.existing_keyspace("missing")?;
        Ok(())
    }
    let db = Config::in_memory().open("").unwrap();
    let error = get(&db).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    let within = error.get_ref().and_then(|within| within.downcast_ref::<Error>());
    assert!(matches!(within, Some(Error::NoSuchKeyspace { name }) if name == "missing"), "{within:?}");
}

/// Errors shorten long names and keys.
#[test]
fn errors_quote_no_more_than_a_line() {
    let db = Config::in_memory().open("").unwrap();
    let name = "very long ".repeat(500);
    for error in [db.existing_keyspace(&name).unwrap_err(), db.keyspace(&name).unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("(5000 bytes)") && text.len() < 300, "{text}");
    }
    let k = db.keyspace("dropped").unwrap();
    db.drop_keyspace("dropped").unwrap();
    let text = k.insert("a", "1").unwrap_err().to_string();
    assert!(text.contains("keyspace \"dropped\" was dropped"), "{text}");
}
