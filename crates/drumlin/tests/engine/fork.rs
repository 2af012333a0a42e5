//! A process that forks while it has a database open, as Python's multiprocessing does.
#![allow(unsafe_code, reason = "the standard library has no fork")]

use crate::support;

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drumlin::logs::{Logs, LogsOptions};
use drumlin::{BackupOptions, Durability, Error, Keyspace};
use support::{Folder, alone, small};

/// Runs `body` in a forked child. Returns `true` if the child exited normally and `body` returned `true`.
fn in_a_fork(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs on one thread, calls the library and exits without returning into the test.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let is_right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: exits the child immediately, so that none of the parent's destructors run twice.
        unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
    }
    let began = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: the child was created by this process, and the status is a local variable.
        let waited = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        if waited == child {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        }
        if began.elapsed() > Duration::from_secs(60) {
            // SAFETY: the child was created by this process.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the fork hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[expect(clippy::needless_pass_by_value, reason = "results are made where it is called")]
fn is_forked<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Forked { .. }))
}

/// In a fork, changing and reading logs returns an error that says so, receipts of the parent are answered with it, and
/// dropping the handles does nothing. The parent continues.
#[test]
fn a_fork_touches_no_logs() {
    alone("fork::a_fork_touches_no_logs", &[], || {
        let folder = Folder::new();
        let path = folder.path().with_file_name("logs");
        let logs = Logs::open(&path, &LogsOptions::new()).unwrap();
        let log = logs.log(1);
        log.append(0, &["before"]).unwrap().wait().unwrap();
        let mut entries = log.range(..).unwrap();
        let receipt = log.append(1, &["in flight"]).unwrap();
        let child = in_a_fork(|| {
            let mut batch = logs.batch();
            batch.set(1, "vote", "of the fork");
            let (told, heard) = std::sync::mpsc::channel();
            receipt.then(move |durable| told.send(durable).unwrap());
            let is_refused = is_forked(log.append(2, &["of the fork"]))
                && is_forked(log.get(0))
                && is_forked(log.purge_to(0))
                && is_forked(batch.commit())
                && is_forked(heard.recv().unwrap())
                && entries.next().is_some_and(is_forked)
                && is_forked(log.range(..));
            drop((log.clone(), entries));
            is_refused && is_forked(logs.close())
        });
        assert!(child, "the fork got another answer");
        log.append(2, &["of the parent"]).unwrap().wait().unwrap();
        drop(log);
        let logs = Logs::open(&path, &LogsOptions::new()).unwrap();
        let found: Vec<Vec<u8>> = logs.log(1).range(..).unwrap().map(|entry| entry.unwrap().to_vec()).collect();
        assert_eq!(found, [&b"before"[..], b"in flight", b"of the parent"]);
        assert_eq!(logs.log(1).value("vote"), None);
    });
}

/// In a fork, every call returns an error that says so. Dropping handles there, even the last ones, has no effect and
/// does not hang, whatever the parent's threads were doing. The parent continues, and its database is intact after a
/// kill.
#[test]
fn a_fork_touches_nothing() {
    alone("fork::a_fork_touches_nothing", &[], || {
        let folder = Folder::new();
        let db = small().open(folder.path()).unwrap();
        let keyspace = db.keyspace("rows").unwrap();
        for number in 0..2000u64 {
            keyspace.insert_with(number.to_be_bytes(), [7; 100], Durability::Relaxed).unwrap();
        }
        keyspace.insert(b"film", vec![1; 300_000]).unwrap();
        db.keep_snapshot("kept").unwrap();
        let (stop, next) = (AtomicBool::new(false), AtomicU64::new(2000));
        let committed = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut own = 0;
                        while !stop.load(Ordering::Relaxed) {
                            let number = next.fetch_add(1, Ordering::Relaxed);
                            keyspace.insert(number.to_be_bytes(), [8; 100]).unwrap();
                            own += 1;
                        }
                        own
                    })
                })
                .collect();
            for _ in 0..20 {
                let mut tx = db.begin().unwrap();
                tx.insert(&keyspace, b"own", b"value").unwrap();
                tx.insert(&keyspace, b"large", vec![3; 200_000]).unwrap();
                let snapshot = db.snapshot();
                let kept = db.open_snapshot("kept").unwrap();
                let mut range = keyspace.iter();
                assert!(range.next().unwrap().is_ok());
                let mut reader = keyspace.read(b"film").unwrap().unwrap();
                let handles = (db.clone(), keyspace.clone());
                let mut batch = db.batch().unwrap();
                // The load's newest buffer may be in flight.
                let mut load = db.bulk_load("loaded").unwrap();
                let noise =
                    |number: u32| (0..1000).map(move |at| ((number + at).wrapping_mul(0x9e37_79b1) >> 24) as u8);
                (0..400u32).for_each(|row| load.insert(row.to_be_bytes(), noise(row).collect::<Vec<_>>()).unwrap());
                assert!(in_a_fork(move || {
                    let (db, keyspace): (_, Keyspace) = handles;
                    let is_right = is_forked(keyspace.get(b"k"))
                        && is_forked(keyspace.insert(b"k", b"v"))
                        && is_forked(keyspace.remove(b"k"))
                        && is_forked(keyspace.get_many(&[b"k"]))
                        && is_forked(keyspace.first())
                        && is_forked(keyspace.take(b"k"))
                        && is_forked(keyspace.update(b"k", |_| Some(b"v")))
                        && is_forked(keyspace.pop_first())
                        && is_forked(keyspace.clear())
                        && is_forked(db.batch().map(drop))
                        && is_forked(batch.insert(&keyspace, b"k", b"v"))
                        && is_forked(load.insert(b"k", b"v"))
                        && is_forked(db.sync())
                        && is_forked(keyspace.count(..))
                        && is_forked(keyspace.read(b"film"))
                        && keyspace.iter().next().is_some_and(is_forked)
                        && range.by_ref().any(is_forked)
                        && reader.read(&mut [0; 10]).is_err()
                        && is_forked(tx.get(&keyspace, b"own"))
                        && is_forked(tx.insert(&keyspace, b"k", b"v"))
                        && is_forked(snapshot.get(&keyspace, b"k"))
                        && is_forked(db.snapshot().count(&keyspace, ..))
                        && is_forked(db.begin().map(drop))
                        && is_forked(db.keyspace("rows"))
                        && is_forked(db.keyspace("new"))
                        && is_forked(db.drop_keyspace("rows"))
                        && is_forked(db.checkpoint())
                        && is_forked(db.compact())
                        && is_forked(kept.get(&keyspace, b"film"))
                        && is_forked(db.keep_snapshot("other"))
                        && is_forked(db.open_snapshot("kept"))
                        && is_forked(db.drop_snapshot("kept"))
                        && is_forked(db.backup_into(std::io::sink(), &BackupOptions::new()))
                        && db.kept_snapshots().is_empty()
                        && is_forked(db.check())
                        && is_forked(db.transact(|tx| tx.insert(&keyspace, b"k", b"v")))
                        && db.keyspaces().is_empty()
                        && format!("{}", db.stats().path.display()).is_empty();
                    let is_right = is_right && is_forked(tx.commit().map(drop));
                    drop((snapshot, kept, range, reader, keyspace, load));
                    is_right && is_forked(db.close())
                }));
            }
            // These are the last handles of a database.
            let alone = small().open(folder.path().join("../other")).unwrap();
            alone.keyspace("rows").unwrap().insert(b"k", b"v").unwrap();
            let mut alone = Some(alone);
            assert!(in_a_fork(|| {
                drop(alone.take());
                true
            }));
            let alone = alone.unwrap();
            assert_eq!(&alone.existing_keyspace("rows").unwrap().get(b"k").unwrap().unwrap()[..], b"v");
            alone.close().unwrap();
            stop.store(true, Ordering::Relaxed);
            writers.into_iter().map(|writer| writer.join().unwrap()).sum::<u64>()
        });
        // Copy the folder as a kill would leave it.
        let killed = Folder::new();
        support::copy_folder(&folder.path(), &killed.path());
        let left = small().open(killed.path()).unwrap();
        assert_eq!(left.existing_keyspace("rows").unwrap().count(..).unwrap(), 2000 + 1 + committed);
        assert!(left.check().unwrap().corruption.is_empty());
    });
}

/// Returns the number of bytes that this process has made the disk read.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap();
    line.parse().unwrap()
}

/// In a fork, a range that the parent has begun reads nothing from the disk, and prefetches no values.
#[test]
fn a_fork_reads_no_values_ahead() {
    alone("fork::a_fork_reads_no_values_ahead", &[], || {
        let folder = Folder::new();
        let db = small().open(folder.path()).unwrap();
        let names = ["rows", "others"];
        for (seed, name) in names.into_iter().enumerate() {
            let keyspace = db.keyspace(name).unwrap();
            keyspace.insert([0], "in the leaf").unwrap();
            for number in 1..40u8 {
                keyspace
                    .insert([number], support::Random((seed as u64 + 1) << 8 | u64::from(number)).bytes(5_000))
                    .unwrap();
            }
        }
        db.close().unwrap();
        let db = small().open(folder.path()).unwrap();
        let keyspaces = names.map(|name| db.keyspace(name).unwrap());
        for is_task in [false, true] {
            let next =
                |rows: &mut drumlin::Range| if is_task { smol::block_on(rows.next_async()) } else { rows.next() };
            let [mut rows, mut others] = keyspaces.each_ref().map(Keyspace::iter);
            for rows in [&mut rows, &mut others] {
                assert_eq!(next(rows).unwrap().unwrap().1, "in the leaf");
            }
            assert!(in_a_fork(|| {
                // The system also counts reads of the program's own file. Make the same calls on the other keyspace
                // first, so that all required parts of the program are mapped.
                bytes_read();
                let is_first_forked = next(&mut others).is_some_and(is_forked);
                let before = bytes_read();
                is_first_forked && next(&mut rows).is_some_and(is_forked) && bytes_read() == before
            }));
        }
        for keyspace in &keyspaces {
            let values = keyspace.iter().map(|row| row.unwrap().1);
            assert_eq!(values.filter(|value| value.len() == 5_000).count(), 39);
        }
    });
}

/// A database that its process has closed can be reopened while a fork with copies of its handles is still alive.
#[test]
fn a_fork_keeps_no_lock() {
    alone("fork::a_fork_keeps_no_lock", &[], || {
        let folder = Folder::new();
        let mut db = Some(small().open(folder.path()).unwrap());
        let (mut wait, tell) = std::io::pipe().unwrap();
        // SAFETY: the child reads from a pipe and exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let _ = wait.read(&mut [0]);
            // SAFETY: exits the child immediately.
            unsafe { libc::_exit(0) };
        }
        db.take().unwrap().close().unwrap();
        let again = small().open(folder.path());
        drop(tell);
        // SAFETY: the child was created by this process; it may have already exited.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &mut 0, 0);
        }
        again.unwrap().close().unwrap();
    });
}
