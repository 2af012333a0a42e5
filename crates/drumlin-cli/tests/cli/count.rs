//! Counting rows.

use crate::support::Bench;

/// All rows, those of a prefix and those of a range are counted, as text and as JSON, in any keyspace.
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
