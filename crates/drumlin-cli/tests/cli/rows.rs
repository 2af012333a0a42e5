//! put, get, scan, rm, load: single rows and ranges of them.

use crate::support::Bench;

fn letters() -> Bench {
    let bench = Bench::new();
    let rows: String = ('a'..='j').map(|letter| format!("{letter},{letter}{letter}\n")).collect();
    bench
        .ok_with(&["load", "db", "-", "--format", "csv", "--no-header", "--key", "1", "--value", "2"], rows.as_bytes());
    bench
}

/// Ranges begin with --from and end before --to; prefixes, order, limits and counts combine.
#[test]
fn scans() {
    let bench = letters();
    let keys = |args: &[&str]| {
        let all = [&["scan", "db", "--keys-only"][..], args].concat();
        bench.ok(&all).lines().collect::<String>()
    };
    assert_eq!(keys(&[]), "abcdefghij");
    assert_eq!(keys(&["--from", "c", "--to", "f"]), "cde");
    assert_eq!(keys(&["--from", "h"]), "hij");
    assert_eq!(keys(&["--to", "c", "--reverse"]), "ba");
    assert_eq!(keys(&["--reverse", "--limit", "3"]), "jih");
    assert_eq!(keys(&["--prefix", "d"]), "d");
    assert_eq!(keys(&["--from", "z"]), "");
    assert_eq!(keys(&["--from", "f", "--to", "c"]), "");
    assert_eq!(bench.ok(&["scan", "db", "--count", "--from", "c"]), "8\n");
    assert_eq!(bench.ok(&["scan", "db", "--from", "j"]), "j\tjj\n");
}

/// Keys, prefixes, ranges and keyspaces are removed, and only they.
#[test]
fn removals() {
    let bench = letters();
    assert_eq!(bench.ok(&["rm", "db", "a", "c"]), "removed 2 rows\n");
    bench.fails(3, &["rm", "db", "b", "missing"]);
    assert_eq!(bench.ok(&["rm", "db", "--from", "i"]), "removed 2 rows\n");
    assert_eq!(bench.ok(&["rm", "db", "--prefix", "d"]), "removed 1 row\n");
    bench.fails(2, &["rm", "db"]);
    let left: String = bench.ok(&["scan", "db", "--keys-only"]).lines().collect();
    assert_eq!(left, "befgh");
    assert_eq!(bench.ok(&["rm", "db", "--all"]), "removed 5 rows\n");
    bench.fails(3, &["scan", "db"]);
}

/// Any bytes can be a key, shown and typed in two ways; empty keys and values are legal.
#[test]
fn awkward_keys() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "\\x00\\\\\\n\\xff", ""]);
    bench.ok(&["put", "db", "", "nothing"]);
    assert_eq!(bench.ok(&["scan", "db"]), "\tnothing\n\\x00\\\\\\n\\xff\t\n");
    assert_eq!(bench.ok(&["scan", "db", "--hex", "--keys-only"]), "\n005c0aff\n");
    assert_eq!(bench.ok(&["get", "db", "--hex", "005C0aFF"]), "");
    assert_eq!(bench.ok(&["get", "db", ""]), "nothing");
}

/// Values come from the command line, from a file or from stdin.
#[test]
fn values() {
    let bench = Bench::new();
    bench.write("value", "from a file");
    bench.ok(&["put", "db", "a", "typed \\n"]);
    bench.ok(&["put", "db", "b", "--file", "value"]);
    bench.ok_with(&["put", "db", "c"], b"from stdin");
    assert_eq!(bench.ok(&["scan", "db"]), "a\ttyped \\\\n\nb\tfrom a file\nc\tfrom stdin\n");
    bench.fails(3, &["put", "db", "d", "--file", "missing"]);
}

/// Several columns make one key; without a key column, file and line do.
#[test]
fn keys_of_loaded_rows() {
    let bench = Bench::new();
    bench.write("cities.csv", "country,city,people\nFR,Paris,2\nFR,Lyon,1\nDE,Bonn,0\n");
    bench.ok(&["load", "db", "cities.csv", "--key", "country,city", "--value", "people"]);
    assert_eq!(bench.ok(&["scan", "db", "--prefix", "FR\\0"]), "FR\\x00Lyon\t1\nFR\\x00Paris\t2\n");
    bench.ok(&["load", "db", "cities.csv", "-k", "lines"]);
    let first = bench.ok(&["scan", "db", "-k", "lines", "--limit", "1", "--json"]);
    let first: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(first["key"], "cities.csv:000000000002");
    assert_eq!(first["value"], r#"{"country":"FR","city":"Paris","people":"2"}"#);
}

/// Many files load at once, each in its order: the last of several rows with one key stays.
#[test]
fn many_files() {
    let bench = Bench::new();
    let mut args = vec!["load".to_owned(), "db".to_owned()];
    for file in 0..8 {
        let rows: String = (0..2000).map(|row| format!("{file}-{},{row}\n", row % 500)).collect();
        bench.write(&format!("{file}.csv"), format!("k,v\n{rows}"));
        args.push(format!("{file}.csv"));
    }
    args.extend(["--key", "k", "--value", "v", "--threads", "4", "--batch", "64", "--json"].map(str::to_owned));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let summary: serde_json::Value = serde_json::from_str(&bench.ok(&args)).unwrap();
    assert_eq!(summary["rows"], 16_000);
    assert_eq!(bench.ok(&["scan", "db", "--count"]), "4000\n");
    assert_eq!(bench.ok(&["get", "db", "7-499"]), "1999");
}
