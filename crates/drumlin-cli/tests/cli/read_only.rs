//! Databases that the process may read but not write.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;

use crate::support::Bench;

const NOBODY: u32 = 65_534;

/// Removes the write permission from files and folders.
fn protect(path: &Path) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| protect(&entry.unwrap().path()));
        fs::set_permissions(path, Permissions::from_mode(0o555)).unwrap();
    } else {
        fs::set_permissions(path, Permissions::from_mode(0o444)).unwrap();
    }
}

/// Restores the permission, so the folder can be removed.
fn release(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            release(&path);
        }
    }
}

/// Runs the command as a user for whom permissions matter, because root ignores them.
fn run(bench: &Bench, args: &[&str]) -> Output {
    let mut command = bench.command(args);
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(NOBODY);
    }
    command.output().unwrap()
}

/// Read commands succeed, and `check` reports that it can't write. Write commands exit with code 9.
#[test]
fn what_may_not_be_written_is_read() {
    let bench = Bench::new();
    fs::set_permissions(bench.path(), Permissions::from_mode(0o755)).unwrap();
    bench.ok(&["put", "db", "a", "1"]);
    let database = bench.path().join("db");
    let lock = fs::read(database.join("lock")).unwrap();
    protect(&database);
    let reading: [&[&str]; 6] = [
        &["get", "db", "a"],
        &["scan", "db"],
        &["dump", "db", "-"],
        &["check", "db"],
        &["stats", "db"],
        &["keyspaces", "db"],
    ];
    for args in reading {
        let answer = run(&bench, args);
        let stderr = String::from_utf8(answer.stderr).unwrap();
        assert_eq!(answer.status.code(), Some(0), "{args:?}: {stderr}");
        assert!(!answer.stdout.is_empty(), "{args:?}");
        if args[0] == "check" {
            assert!(stderr.starts_with("open for reading only: "), "{stderr}");
            assert!(stderr.contains("db/data: Permission denied"), "{stderr}");
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
        } else {
            assert_eq!(stderr, "", "{args:?}");
        }
    }
    let writing: [&[&str]; 4] =
        [&["put", "db", "a", "2"], &["rm", "db", "a"], &["compact", "db"], &["checkpoint", "db"]];
    for args in writing {
        let answer = run(&bench, args);
        let stderr = String::from_utf8(answer.stderr).unwrap();
        assert_eq!(answer.status.code(), Some(9), "{args:?}: {stderr}");
        assert!(stderr.contains("db can't be written to"), "{args:?}: {stderr}");
    }
    assert_eq!(fs::read(database.join("lock")).unwrap(), lock);
    let answer = run(&bench, &["doctor", "db", "--quick"]);
    let stdout = String::from_utf8(answer.stdout).unwrap();
    assert_ne!(answer.status.code(), Some(9), "{}", String::from_utf8_lossy(&answer.stderr));
    assert!(stdout.contains("reading only") && stdout.contains("not measured"), "{stdout}");
    release(&database);
}

/// Several commands that only read can use the database concurrently, and change no byte of it. A command that writes
/// is refused without waiting.
#[test]
fn readers_share_the_database() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    let database = bench.path().join("db");
    let reader = drumlin::Config::new().read_only(true).memory(16 << 20).open(&database).unwrap();
    let files = || ["data", "lock"].map(|name| fs::read(database.join(name)).unwrap());
    let before = files();
    for args in [&["get", "db", "a"][..], &["scan", "db"], &["stats", "db"], &["keyspaces", "db"], &["dump", "db", "-"]]
    {
        bench.ok(args);
    }
    assert!(before == files(), "a command that reads has written");
    let refused = bench.command(&["put", "db", "a", "2"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(5), "{}", String::from_utf8_lossy(&refused.stderr));
    drop(reader);
    bench.ok(&["put", "db", "a", "2"]);
}

/// `stats` reports the sync method that was chosen when the database was created.
#[test]
fn stats_shows_the_sync_method_of_the_database() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    let probe = bench.path().join("db/probe");
    let text = fs::read_to_string(&probe).unwrap();
    let chosen = text.lines().find(|line| line.starts_with("chosen = ")).unwrap();
    for method in ["durable-write", "data-sync", "full-sync"] {
        fs::write(&probe, text.replace(chosen, &format!("chosen = {method}"))).unwrap();
        let stats = bench.ok(&["stats", "db"]);
        assert!(stats.contains(&format!("durable by {method}")), "{stats}");
    }
}

/// If a process that used the database was killed, the next command recovers the database, whichever command that is.
#[test]
fn a_database_that_was_not_closed_is_recovered_to_read_it() {
    let bench = Bench::new();
    let database = bench.path().join("db");
    let db = drumlin::Config::new().memory(16 << 20).open(&database).unwrap();
    db.keyspace("default").unwrap().insert("a", "1").unwrap();
    let copy = bench.path().join("copy");
    fs::create_dir_all(copy.join("log")).unwrap();
    for (from, to) in [("", ""), ("log", "log")] {
        for entry in fs::read_dir(database.join(from)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), copy.join(to).join(entry.file_name())).unwrap();
            }
        }
    }
    drop(db);
    assert_eq!(bench.ok(&["get", "copy", "a"]).trim_end(), "1");
}
