//! `drumlin changes`: prints the commits that a database keeps.

use std::io::{BufRead, BufReader};

use drumlin::{Config, Retention};
use serde_json::{Value, json};

use crate::support::Bench;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Commits are printed in order, one per line, while the database is open and after it. A command that commits
/// continues to keep changes. The command goes on after the last line that was printed, and waits with --follow.
#[test]
fn commits_are_printed_and_followed() {
    let bench = Bench::new();
    bench.ok(&["put", "other", "a", "1"]);
    assert!(bench.fails(1, &["changes", "other"]).contains("keeps no changes"));
    bench.fails(3, &["changes", "missing"]);
    let config = Config::new().keep_changes(Retention::bytes(1 << 20));
    let db = config.open(bench.path().join("db")).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut tx = db.begin().unwrap();
    tx.insert(&keyspace, "a", "1").unwrap();
    tx.insert(&keyspace, b"\xff", "2").unwrap();
    tx.commit().unwrap();
    db.checkpoint().unwrap();
    let told = lines(&bench.ok(&["changes", "db"]));
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0]["changes"], json!([{"change": "create", "keyspace": "default"}]));
    let puts = json!([
        {"change": "put", "keyspace": "default", "key": "a", "value": "1"},
        {"change": "put", "keyspace": "default", "key": {"base64": "/w=="}, "value": "2"},
    ]);
    assert_eq!((&told[1]["timestamp"], &told[1]["changes"]), (&json!(2), &puts));
    drop(keyspace);
    db.close().unwrap();
    bench.ok(&["put", "db", "b", "3"]);
    bench.ok(&["put", "db", "-k", "more", "c", "4"]);
    let told = lines(&bench.ok(&["changes", "db", "--since", "2"]));
    let timestamps: Vec<u64> = told.iter().map(|line| line["timestamp"].as_u64().unwrap()).collect();
    assert_eq!(timestamps, [3, 4, 5]);
    assert_eq!(lines(&bench.ok(&["changes", "db", "-k", "more"])).len(), 2);
    assert_eq!(lines(&bench.ok(&["changes", "db", "--limit", "1"])).len(), 1);
    // It waits for the commits of another process.
    let mut follower = bench.command(&["changes", "db", "--since", "5", "--follow", "--limit", "2"]);
    let mut follower = follower.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(follower.stdout.take().unwrap()).lines();
    for (timestamp, key) in [(6, "d"), (7, "e")] {
        bench.ok(&["put", "db", key, "5"]);
        let line: Value = serde_json::from_str(&printed.next().unwrap().unwrap()).unwrap();
        assert_eq!((&line["timestamp"], &line["changes"][0]["key"]), (&json!(timestamp), &json!(key)));
    }
    assert!(follower.wait().unwrap().success());
}

/// Old values are printed if they are kept, by commands that commit, too. A load has the range of its keys.
#[test]
fn old_values_are_printed_if_they_are_kept() {
    let bench = Bench::new();
    let config = Config::new().keep_changes(Retention::bytes(1 << 20).with_old_values());
    let db = config.open(bench.path().join("db")).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    keyspace.insert("film", vec![7; 100_000]).unwrap();
    let mut load = db.bulk_load("default").unwrap();
    load.insert("loaded", "1").unwrap();
    load.finish().unwrap();
    drop(keyspace);
    db.close().unwrap();
    for value in ["1", "2"] {
        bench.ok(&["put", "db", "a", value]);
    }
    bench.ok(&["put", "db", "film", "3"]);
    let told = lines(&bench.ok(&["changes", "db", "--since", "1"]));
    let changes: Vec<&Value> = told.iter().map(|line| &line["changes"][0]).collect();
    assert_eq!(changes.len(), 5);
    assert_eq!((&changes[0]["change"], &changes[0]["old"]), (&json!("put_large"), &json!("absent")));
    let loaded = json!({"change": "loaded", "keyspace": "default", "rows": 1, "from": "loaded", "to": "loaded"});
    assert_eq!(*changes[1], loaded);
    assert_eq!(changes[2]["old"], json!("absent"));
    assert_eq!((&changes[3]["value"], &changes[3]["old"]), (&json!("2"), &json!({"value": "1"})));
    assert_eq!(changes[4]["old"], json!({"large": {"length": 100_000}}));
}
