//! Pipes: values are unchanged, readers may stop early, and there are no escape codes.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::Bench;

/// A value passes through a pipe byte for byte.
#[test]
fn values_are_raw() {
    let bench = Bench::new();
    let value: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    bench.ok_with(&["put", "db", "all bytes"], &value);
    assert_eq!(bench.run(&["get", "db", "all bytes"]).stdout, value);
}

/// If the reader stops early, the command ends quietly.
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

/// Colours and progress appear only on a terminal.
#[test]
fn no_escape_codes() {
    let bench = Bench::new();
    bench.write("rows.csv", "k,v\na,1\n");
    for args in [&["load", "db", "rows.csv"][..], &["stats", "db"], &["check", "db"], &["get", "db", "missing"]] {
        let answer = bench.run(args);
        assert!(!answer.stdout.contains(&0x1b) && !answer.stderr.contains('\x1b'), "{args:?}");
    }
}

/// If stdout is closed, the command fails before it starts; /dev/null is a valid output.
#[test]
fn a_closed_stdout() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    let program = env!("CARGO_BIN_EXE_drumlin");
    let run = |command: &str, to: &str| {
        let mut shell = std::process::Command::new("sh");
        let script = format!("'{program}' {command} {to}");
        shell.args(["-c", &script]).current_dir(bench.path()).stdin(Stdio::null()).output().unwrap()
    };
    for command in ["get db a", "scan db", "rm db a", "--help", "help", "--version", "dump db", "completions bash"] {
        let output = run(command, ">&-");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {message}");
        assert!(message.contains("stdout is closed"), "{command}: {message}");
        assert_eq!(
            run(command.replace("rm db a", "scan db").as_str(), ">/dev/null").status.code(),
            Some(0),
            "{command}"
        );
        assert_eq!(
            run(command.replace("rm db a", "scan db").as_str(), "1<>/dev/null").status.code(),
            Some(0),
            "{command}"
        );
    }
    assert_eq!(run("put db b 2", ">&-").status.code(), Some(0), "it prints nothing");
    assert_eq!(bench.ok(&["scan", "db"]), "a\t1\nb\t2\n");
}
