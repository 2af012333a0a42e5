//! Directory trees.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::Bench;

/// Files enter the three keyspaces; a second run stores only what changed, and removes what is gone when asked to.
#[test]
fn a_tree_is_stored_and_kept_up_to_date() {
    let bench = Bench::new();
    bench.write("tree/a.txt", "hello");
    bench.write("tree/sub/empty", "");
    bench.write("tree/sub/large", vec![7u8; 3_000_000]);
    symlink("a.txt", bench.path().join("tree/link")).unwrap();
    let summary = bench.ok(&["index", "db", "tree", "--json"]);
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["files_stored"], 4);
    assert_eq!(summary["bytes_stored"], 5 + 3_000_000 + 5);

    assert_eq!(bench.ok(&["get", "db", "a.txt", "-k", "contents"]), "hello");
    assert_eq!(bench.ok(&["get", "db", "link", "-k", "contents"]), "a.txt");
    assert_eq!(bench.run(&["get", "db", "sub/large", "-k", "contents"]).stdout, vec![7u8; 3_000_000]);
    let entry: serde_json::Value = serde_json::from_str(&bench.ok(&["get", "db", "link", "-k", "files"])).unwrap();
    assert_eq!((&entry["kind"], &entry["size"]), (&"symlink".into(), &5.into()));
    let largest = bench.ok(&["scan", "db", "-k", "by_size", "--reverse", "--limit", "1", "--keys-only"]);
    assert!(largest.ends_with("sub/large\n"), "{largest}");

    bench.write("tree/a.txt", "hello again");
    fs::remove_file(bench.path().join("tree/sub/large")).unwrap();
    let summary = bench.ok(&["index", "db", "tree", "--json", "--delete"]);
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["files_stored"], 1);
    assert_eq!(summary["files_unchanged"], 2);
    assert_eq!(summary["files_removed"], 1);
    for keyspace in ["files", "contents", "by_size"] {
        assert_eq!(bench.ok(&["scan", "db", "-k", keyspace, "--count"]), "3\n", "{keyspace}");
    }
}

/// Every stored file is acknowledged once, with its size.
#[test]
fn acknowledgements_name_every_file() {
    let bench = Bench::new();
    (0..50).for_each(|number| drop(bench.write(&format!("tree/{number:02}\tx"), vec![b'x'; number])));
    bench.ok(&["index", "db", "tree", "--acknowledge", "acks"]);
    let acks = fs::read_to_string(bench.path().join("acks")).unwrap();
    let mut acks: Vec<&str> = acks.lines().collect();
    acks.sort_unstable();
    let expected: Vec<String> = (0..50).map(|number| format!("{number:02}\\tx\t{number}")).collect();
    assert_eq!(acks, expected);
}
