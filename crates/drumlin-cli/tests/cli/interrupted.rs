//! Interrupting commands with Ctrl-C.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::Bench;

/// An interrupted load ends with code 130, and leaves a database that opens and contains only whole transactions.
#[test]
fn a_load_ends_between_transactions() {
    let (bench, rows) = interrupted_load(&["--batch", "10"]);
    assert_eq!(rows % 10, 0);
    let last = bench.ok(&["scan", "db", "--reverse", "--limit", "1"]);
    assert!(rows == 0 || last.starts_with(&format!("{rows:08}\t")), "{rows} rows, the last is {last}");
}

/// An interrupted bulk load stores no rows.
#[test]
fn a_load_at_once_leaves_nothing() {
    let (_, rows) = interrupted_load(&[]);
    assert_eq!(rows, 0);
}

/// Interrupts a load. Returns the number of rows that it stored.
fn interrupted_load(options: &[&str]) -> (Bench, u64) {
    let bench = Bench::new();
    let mut load = bench
        .command(&[&["load", "db", "-", "--format", "csv", "--key", "k", "--value", "v"][..], options].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = load.stdin.take().unwrap();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut row = 0;
        // The loop ends when the command closes its end of the pipe.
        while writeln!(stdin, "{}", if row == 0 { "k,v".to_owned() } else { format!("{row:08},{row}") }).is_ok() {
            row += 1;
            // This is more than a pipe holds, so the command must have read some of it.
            if row == 9_000 {
                begun.send(()).unwrap();
            }
        }
    });
    has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
    kill_process(Pid::from_child(&load), Signal::INT).unwrap();
    assert_eq!(load.wait().unwrap().code(), Some(130));
    writer.join().unwrap();
    let rows = bench.ok(&["scan", "db", "--count"]).trim().parse().unwrap();
    (bench, rows)
}

/// An interrupted dump leaves no file.
#[test]
fn a_dump_leaves_no_file() {
    let bench = Bench::new();
    let rows: String = (0..200_000).map(|row| format!("{row}\n")).collect();
    bench.ok_with(&["load", "db", "-", "--format", "csv", "--no-header", "--key", "1"], rows.as_bytes());
    let names = || std::fs::read_dir(bench.path()).unwrap().map(|item| item.unwrap().file_name());
    loop {
        let mut dump =
            bench.command(&["dump", "db", "out.csv"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while names().count() == 1 && dump.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        // This fails if the dump has already ended.
        let _ = kill_process(Pid::from_child(&dump), Signal::INT);
        match dump.wait().unwrap().code() {
            Some(130) => break,
            code => assert_eq!(code, Some(0)),
        }
        std::fs::remove_file(bench.path().join("out.csv")).unwrap();
    }
    assert_eq!(names().collect::<Vec<_>>(), ["db"]);
}

/// An interrupted repair removes its scratch folder, and says what else is left. A backup says how it is continued.
#[test]
fn repairs_and_backups_say_what_is_next() {
    let bench = Bench::new();
    let rows: String = (0..200_000).map(|row| format!("{row}\n")).collect();
    bench.ok_with(&["load", "db", "-", "--format", "csv", "--no-header", "--key", "1"], rows.as_bytes());
    let has = |part: &str| {
        let names = std::fs::read_dir(bench.path()).unwrap().map(|item| item.unwrap().file_name());
        names.into_iter().any(|name| name.to_string_lossy().contains(part))
    };
    for (arguments, begun, next) in [
        (&["repair", "db", "new", "--json"][..], "new.scratch", ["incomplete", "command again"]),
        (&["backup", "db", "new", "--keep", "a", "--json"], "new", ["continues", "continues"]),
    ] {
        loop {
            let mut command = bench.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            while !has(begun) && command.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            // This fails if the command has already ended.
            let _ = kill_process(Pid::from_child(&command), Signal::INT);
            let output = command.wait_with_output().unwrap();
            let message = String::from_utf8(output.stderr).unwrap();
            if output.status.code() == Some(130) {
                let report: serde_json::Value = serde_json::from_str(message.trim()).unwrap();
                let hint = report["hints"][0].as_str().unwrap();
                assert!(report["kind"] == "interrupted" && next.iter().any(|next| hint.contains(next)), "{message}");
                break;
            }
            assert_eq!(output.status.code(), Some(0), "{message}");
            std::fs::remove_dir_all(bench.path().join("new")).unwrap();
        }
        assert!(!has("scratch"));
        let _ = std::fs::remove_dir_all(bench.path().join("new"));
    }
    bench.ok(&["check", "db"]);
}
