//! `drumlin prepared`: lists transactions that a lost coordinator has left prepared, and ends them.

use drumlin::Config;
use serde_json::Value;

use crate::support::Bench;

/// The transactions are listed with their ids, ages and rows. One is committed, one aborted; a wrong id has code 3.
#[test]
fn prepared_transactions_are_listed_and_ended() {
    let bench = Bench::new();
    let db = Config::new().open(bench.path().join("db")).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for (id, count) in [(&b"transfer 7"[..], 2), (b"\x00\xff", 1)] {
        let mut tx = db.begin().unwrap();
        (0..count).for_each(|row| tx.insert(&keyspace, [id, &[b'0' + row]].concat(), "1").unwrap());
        tx.prepare(id).unwrap();
    }
    db.close().unwrap();
    let listed = bench.ok(&["prepared", "db"]);
    assert!(listed.contains("transfer 7") && listed.contains("\\x00\\xff"), "{listed}");
    let lines: Vec<Value> =
        bench.ok(&["prepared", "db", "--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[1]["id"], &lines[1]["rows"]), (2, &"transfer 7".into(), &2.into()));
    assert!(bench.fails(1, &["rm", "db", "--all"]).contains("transfer 7"));
    assert!(bench.fails(3, &["prepared", "db", "--commit", "transfer 8"]).contains("transfer 8"));
    assert_eq!(bench.ok(&["count", "db"]).trim(), "0");
    assert_eq!(bench.ok(&["prepared", "db", "--commit", "transfer 7"]).trim(), "committed transfer 7");
    assert_eq!(bench.ok(&["prepared", "db", "--hex", "--abort", "00ff"]).trim(), "aborted \\x00\\xff");
    assert_eq!(bench.ok(&["count", "db"]).trim(), "2");
    assert_eq!(bench.ok(&["prepared", "db", "--json"]), "");
}
