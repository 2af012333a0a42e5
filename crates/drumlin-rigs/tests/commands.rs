//! If the command line refuses its arguments, it gives the reason and an exit code.

use std::process::Command;

fn rigs(words: &[&str]) -> (Option<i32>, String) {
    let ended = Command::new(env!("CARGO_BIN_EXE_drumlin-rigs")).args(words).output().unwrap();
    (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
}

/// An unknown file system is refused, and the error lists the known file systems.
#[test]
fn an_unknown_file_system_is_refused() {
    let (code, told) = rigs(&["cuts", "--fs", "zfs"]);
    assert_eq!(code, Some(2));
    assert!(told.contains("ext4, xfs, btrfs"), "{told}");
}

/// If a trace is missing, the error names it.
#[test]
fn a_missing_trace_is_named() {
    let (code, told) = rigs(&["replay", "/no/such/trace"]);
    assert_eq!(code, Some(1));
    assert!(told.contains("/no/such/trace"), "{told}");
}
