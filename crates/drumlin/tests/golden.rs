//! The exact order of writes and syncs, frozen in a text file.
//!
//! A change of this file is a change of what durability rests on: look at it line by line. `DRUMLIN_TEST_BLESS=1` writes
//! what was seen into `tests/golden/io.txt`.

mod support;

use std::sync::Arc;

use drumlin::io::Backend;
use drumlin::io::fault::FaultyBackend;
use drumlin::{Durability, TxOptions};
use support::small;

const EXPECTED: &str = include_str!("golden/io.txt");

/// A trace that does not depend on when the background prepares log segments, whose lines are left out (but for the superblock
/// that lists them, at the end of a section), nor on the
/// number of the process, which is what is written into the lock.
fn lines(trace: &str, current_segment: &str) -> String {
    let is_other_segment = |line: &&str| line.contains(".seg") && !line.contains(current_segment);
    let is_kept = |line: &&str| !is_other_segment(line) && *line != "sync-dir log" && !line.starts_with("write lock");
    let lines: Vec<&str> = trace.lines().filter(is_kept).collect();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Creation, commits, a large value, a checkpoint, closing and opening do exactly this, in this order.
#[test]
fn the_order_of_writes_and_syncs() {
    let faulty = FaultyBackend::new(drumlin::io::in_memory());
    let backend: Arc<dyn Backend> = Arc::new(faulty.clone());
    let config = small().backend(backend);
    let mut text = String::new();
    let mut section = |title: &str| {
        // Time for threads that prepare.
        std::thread::sleep(std::time::Duration::from_millis(50));
        text += &format!("# {title}\n{}\n", lines(&faulty.take_trace(), "0-1.seg"));
    };
    faulty.start_trace();
    let db = config.open("/db").unwrap();
    section("creation");
    let keyspace = db.keyspace("rows").unwrap();
    section("a keyspace: the data file needs room for its first page; then one durable write of the log");
    keyspace.insert(b"key", b"value").unwrap();
    section("a commit: one durable write of the log");
    keyspace.insert(b"key", b"value").unwrap();
    section("another commit: one durable write, of the same block with the same bytes before the new ones");
    let options = TxOptions { durability: Durability::Full, ..TxOptions::default() };
    let mut tx = db.begin_with(options).unwrap();
    for number in 0..100u64 {
        tx.insert(&keyspace, number.to_be_bytes(), [number as u8; 20]).unwrap();
    }
    tx.commit().unwrap();
    section("a transaction of 100 rows: one durable write");
    keyspace.insert(b"large", [7; 100_000].as_slice()).unwrap();
    section("a large value: its extents, their sync, then the record that names them");
    db.checkpoint().unwrap();
    section("a checkpoint: pages, tables and catalogue in one write, their sync, then the superblock");
    keyspace.insert(b"key", b"newer").unwrap();
    db.checkpoint().unwrap();
    section("a commit and the next checkpoint: the other superblock");
    drop(keyspace);
    db.close().unwrap();
    section("closing: nothing is left to do");
    let db = config.open("/db").unwrap();
    section(
        "opening: what was found is synced, the superblock written again, and the incarnation raised in the other one",
    );
    drop(db);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/io.txt");
    if std::env::var_os("DRUMLIN_TEST_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
        return;
    }
    for (number, (seen, expected)) in text.lines().zip(EXPECTED.lines()).enumerate() {
        assert_eq!(seen, expected, "line {} of {path}; all that was seen:\n{text}", number + 1);
    }
    assert_eq!(text, EXPECTED, "{path} is longer or shorter than what was seen");
}
