//! Help and completions.

use crate::support::Bench;

/// Every shell gets a script that knows the commands.
#[test]
fn completions() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = bench.ok(&["completions", shell]);
        assert!(script.contains("keyspaces") && script.contains("checkpoint"), "{shell}");
    }
}

/// Help tells the exit codes; each command has help of its own.
#[test]
fn help() {
    let bench = Bench::new();
    let help = bench.ok(&["--help"]);
    assert!(help.contains("Exit codes:") && help.contains("in use by another process"), "{help}");
    for command in ["tour", "index", "load", "dump", "get", "put", "rm", "scan", "keyspaces", "stats", "check"] {
        assert!(bench.ok(&[command, "--help"]).contains("Usage"), "{command}");
    }
    assert!(bench.ok(&["--version"]).starts_with("drumlin "));
}
