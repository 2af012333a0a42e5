//! Help and completions.

use crate::support::Bench;

/// Every shell gets a script that contains the commands.
#[test]
fn completions() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = bench.ok(&["completions", shell]);
        assert!(["keyspaces", "checkpoint", "count", "du"].iter().all(|command| script.contains(command)), "{shell}");
    }
}

/// The manual has a page for every command, and `man` without a folder prints the main page.
#[test]
fn manual_pages() {
    let bench = Bench::new();
    assert!(bench.ok(&["man"]).contains(".TH drumlin 1"));
    bench.ok(&["man", "share/man1"]);
    for page in ["drumlin.1", "drumlin-load.1", "drumlin-extract.1", "drumlin-count.1", "drumlin-du.1"] {
        let text = std::fs::read_to_string(bench.path().join("share/man1").join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
}

/// If the user types the name that another program gives to a command, the error names the equivalent command here.
/// Control characters are escaped.
#[test]
fn other_names() {
    let bench = Bench::new();
    for (typed, command) in [("ls", "scan"), ("delete", "rm"), ("size", "du"), ("import", "load"), ("gett", "get")] {
        let message = bench.fails(2, &[typed, "db"]);
        assert!(message.contains(typed) && message.contains(command), "{message}");
    }
    for args in [&["a\x1b[31m"][..], &["get", "\x1b[31m", "k"], &["load", "db", "\x07.csv"]] {
        let answer = bench.run(args);
        assert!(answer.code != Some(0) && !answer.stderr.contains(['\x1b', '\x07']), "{}", answer.stderr);
    }
}

/// The help lists the exit codes, and each command has its own help.
#[test]
fn help() {
    let bench = Bench::new();
    let help = bench.ok(&["--help"]);
    assert!(help.contains("Exit codes:") && help.contains("in use by another process"), "{help}");
    let commands =
        ["tour", "index", "load", "dump", "get", "put", "rm", "scan", "count", "du", "keyspaces", "stats", "check"];
    for command in commands {
        assert!(bench.ok(&[command, "--help"]).contains("Usage"), "{command}");
        assert_eq!(bench.ok(&["help", command]), bench.ok(&[command, "--help"]));
    }
    assert_eq!(bench.ok(&["help"]), help);
    assert!(bench.ok(&["--version"]).starts_with("drumlin "));
}
