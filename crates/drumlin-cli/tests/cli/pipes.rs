//! Pipes: raw values, readers that leave early, no escape codes.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::Bench;

/// A value goes through a pipe byte for byte.
#[test]
fn values_are_raw() {
    let bench = Bench::new();
    let value: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    bench.ok_with(&["put", "db", "all bytes"], &value);
    assert_eq!(bench.run(&["get", "db", "all bytes"]).stdout, value);
}

/// A reader that has seen enough ends the command quietly.
#[test]
fn a_reader_may_leave() {
    let bench = Bench::new();
    let rows: String = (0..50_000).map(|row| format!("{row},{row}\n")).collect();
    bench.ok_with(&["load", "db", "-", "--format", "csv", "--no-header", "--key", "1"], rows.as_bytes());
    for args in [&["scan", "db"][..], &["dump", "db"], &["scan", "db", "--json"]] {
        let mut command = bench.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(command.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(!first.is_empty());
        let output = command.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

/// Nothing but a terminal gets colours or progress.
#[test]
fn no_escape_codes() {
    let bench = Bench::new();
    bench.write("rows.csv", "k,v\na,1\n");
    for args in [&["load", "db", "rows.csv"][..], &["stats", "db"], &["check", "db"], &["get", "db", "missing"]] {
        let answer = bench.run(args);
        assert!(!answer.stdout.contains(&0x1b) && !answer.stderr.contains('\x1b'), "{args:?}");
    }
}
