//! Values larger than the memory that a command may use.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use crate::support::Bench;

/// The size of a large value.
const VALUE_BYTES: usize = 24 << 20;
/// The memory budget of the commands.
const BUDGET: &str = "8MiB";

/// The limit on resident memory: the budget, plus the memory that the command itself and the engine need.
const RESIDENT_BYTES_MAX: u64 = 30 << 20;

/// Creates a database with three values: a large text, large binary data, and a short one.
fn bench() -> Bench {
    let bench = Bench::new();
    let line = b"some \"text\", with\ttabs and caf\xc3\xa9\n";
    let text: Vec<u8> = line.iter().copied().cycle().take(VALUE_BYTES).collect();
    bench.write("text", text);
    let bytes: Vec<u8> = (0..VALUE_BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    bench.write("bytes", bytes);
    bench.ok(&["put", "db", "large/bytes", "--file", "bytes"]);
    bench.ok(&["put", "db", "large/text", "--file", "text"]);
    bench.ok(&["put", "db", "short", "1"]);
    bench
}

/// Runs a command with the budget, and reads at most `bytes_read` of its output. Returns its peak resident memory, by
/// polling the peak that the kernel records.
fn resident_bytes_max(bench: &Bench, args: &[&str], bytes_read: u64) -> u64 {
    let args = [args, &["--memory", BUDGET, "--quiet"]].concat();
    let mut child = bench.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut stdout.take(bytes_read), &mut std::io::sink()));
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let ended = loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        most = most.max(line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10));
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    reader.join().unwrap().unwrap();
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert!(ended.success(), "{args:?}: {message}");
    most
}

/// Commands that list, write or remove rows never hold a whole value that is larger than their budget, even if the
/// reader of their output stops early.
#[test]
fn commands_hold_no_large_value_whole() {
    let bench = bench();
    // Processing text is slow without optimization, so the reader stops within the first value.
    let part = 3_000_000;
    let commands: [(&[&str], u64); 14] = [
        (&["scan", "db", "--keys-only"], u64::MAX),
        (&["scan", "db"], part),
        (&["scan", "db", "--reverse"], part),
        (&["scan", "db", "--json"], part),
        (&["get", "db", "large/text", "short"], part),
        (&["get", "db", "large/text", "--json"], part),
        (&["get", "db", "large/bytes", "--json"], part),
        (&["dump", "db", "--format", "csv"], part),
        (&["dump", "db", "--format", "jsonl"], part),
        (&["dump", "db", "--format", "jsonl", "--values", "--prefix", "large/text"], part),
        (&["dump", "db", "--format", "binary"], u64::MAX),
        (&["dump", "db", "--limit", "0"], u64::MAX),
        (&["rm", "db", "--prefix", "large/"], u64::MAX),
        (&["rm", "db", "--all"], u64::MAX),
    ];
    for (args, bytes_read) in commands {
        let most = resident_bytes_max(&bench, args, bytes_read);
        assert!(most < RESIDENT_BYTES_MAX, "{args:?}: {most} bytes were resident");
    }
}

/// Large values survive a round trip through every format unchanged. A row is written in the same form whether its
/// value is large or short.
#[test]
fn large_values_round_trip() {
    let bench = bench();
    for (file, columns) in [("rows.csv", true), ("rows.tsv", true), ("rows.jsonl", true), ("rows.rows", false)] {
        bench.ok(&["dump", "db", file, "--memory", BUDGET]);
        let columns: &[&str] = if columns { &["--key", "key", "--value", "value"] } else { &[] };
        bench.ok(&[&["load", "copy", file][..], columns].concat());
        for name in ["bytes", "text"] {
            let value = bench.run(&["get", "copy", &format!("large/{name}")]).stdout;
            assert!(value == std::fs::read(bench.path().join(name)).unwrap(), "{name} in {file}");
        }
        std::fs::remove_dir_all(bench.path().join("copy")).unwrap();
        std::fs::remove_file(bench.path().join(file)).unwrap();
    }
}

/// `rm --prefix` removes thousands of rows even if the budget is too small for a transaction of a thousand rows.
#[test]
fn many_rows_are_removed_in_little_memory() {
    let bench = Bench::new();
    let rows: String = (0..3000).map(|row| format!("{row:0>1000}\n")).collect();
    bench
        .ok_with(&["load", "db", "-", "--format", "csv", "--no-header", "--key", "1", "--value", "1"], rows.as_bytes());
    assert_eq!(bench.ok(&["rm", "db", "--prefix", "0", "--memory", BUDGET]), "removed 3,000 rows\n");
    assert_eq!(bench.ok(&["count", "db"]), "0\n");
}
