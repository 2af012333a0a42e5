//! Counting rows.

use crate::support::Bench;

/// Counts cover all rows, rows with a prefix and rows in a range, as text and as JSON, in any keyspace.
#[test]
fn rows_are_counted() {
    let bench = Bench::new();
    let rows: String = (0..40_000).map(|row| format!("{row:08}\t{row}\n")).collect();
    let load = ["load", "db", "-", "--format", "tsv", "--no-header", "--key", "1", "--value", "2"];
    bench.ok_with(&load, rows.as_bytes());
    bench.ok(&["put", "db", "-k", "other", "a", "1"]);
    assert_eq!(bench.ok(&["count", "db"]), "40000\n");
    assert_eq!(bench.ok(&["count", "db", "--prefix", "00031"]), "1000\n");
    assert_eq!(bench.ok(&["count", "db", "--from", "00000100", "--to", "00039999"]), "39899\n");
    assert_eq!(bench.ok(&["count", "db", "--from", "1"]), "0\n");
    assert_eq!(bench.ok(&["count", "db", "--hex", "--prefix", "3030303331"]), "1000\n");
    assert_eq!(bench.ok(&["count", "db", "-k", "other", "--json"]), "{\"rows\":1}\n");
    bench.fails(2, &["count", "db", "--prefix", "a", "--from", "b"]);
    bench.fails(3, &["count", "db", "-k", "missing"]);
}

/// The second count reads next to nothing, whichever command counted first.
#[test]
fn counts_are_kept() {
    for count in [&["count", "db"][..], &["scan", "db", "--count"], &["keyspaces", "db", "--count"]] {
        let bench = Bench::new();
        let rows: String = (0..100_000).map(|row: u64| format!("{row:08}\t{:0>60}\n", row * 7919)).collect();
        let load = ["load", "db", "-", "--format", "tsv", "--no-header", "--key", "1", "--value", "2"];
        bench.ok_with(&load, rows.as_bytes());
        // This row was not counted by any load.
        bench.ok(&["put", "db", "more", "1"]);
        let reads = || {
            let config = drumlin::Config::new().memory(16 << 20).read_only(true);
            let db = config.open(bench.path().join("db")).unwrap();
            assert_eq!(db.keyspace("default").unwrap().count(..).unwrap(), 100_001);
            db.stats().device_reads
        };
        bench.ok(count);
        assert!(reads() < 50, "{count:?}");
    }
}

/// If the database can't be written to, a count succeeds. It reports how much it read and why the counts were not
/// stored.
#[test]
fn a_count_that_is_not_kept_says_so() {
    let bench = Bench::new();
    let db = drumlin::Config::new().memory(16 << 20).open(bench.path().join("db")).unwrap();
    let rows = db.keyspace("default").unwrap();
    for row in 0..40_000u64 {
        // Use values that do not compress.
        let value: Vec<u8> = (1..16).flat_map(|part| (row * 16 + part).wrapping_pow(7).to_be_bytes()).collect();
        rows.insert_with(row.to_be_bytes(), value, drumlin::Durability::Relaxed).unwrap();
    }
    drop(rows);
    db.close().unwrap();
    let reader = drumlin::Config::new().memory(16 << 20).read_only(true).open(bench.path().join("db")).unwrap();
    let answer = bench.run(&["count", "db"]);
    assert_eq!((answer.code, &answer.stdout[..]), (Some(0), &b"40000\n"[..]), "{}", answer.stderr);
    assert!(answer.stderr.starts_with("counting read ") && answer.stderr.contains(" MB"), "{}", answer.stderr);
    assert!(answer.stderr.contains("another command reads the database"), "{}", answer.stderr);
    assert_eq!(bench.run(&["count", "db", "--quiet"]).stderr, "");
    drop(reader);
    assert_eq!(bench.run(&["count", "db"]).stderr, "");
}
