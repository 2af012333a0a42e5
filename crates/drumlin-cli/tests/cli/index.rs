//! Storing directory trees.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Stdio};

use crate::support::Bench;

/// Returns the number of rows in each of the four keyspaces.
fn row_counts(bench: &Bench) -> [u64; 4] {
    ["files", "contents", "by_size", "directories"]
        .map(|keyspace| bench.ok(&["count", "db", "-k", keyspace]).trim().parse().unwrap())
}

/// A tree stored by bulk load and one stored by transactions have the same rows, even with the smallest budget.
#[test]
fn both_ways_store_the_same() {
    let bench = Bench::new();
    for number in 0..3000usize {
        let path = format!("tree/{}/{}{}/{number}.txt", number % 7, number % 5, ["", "-", ".d"][number % 3]);
        bench.write(&path, vec![number as u8; number * number % 30_000]);
    }
    bench.write("tree/large", vec![1u8; 5_000_000]);
    bench.ok(&["index", "db", "tree", "--memory", "8MiB"]);
    bench.ok(&["index", "other", "tree", "--acknowledge", "acknowledged"]);
    assert_eq!(row_counts(&bench), [3001, 3001, 3001, 7 + 7 * 15]);
    for keyspace in ["files", "by_size", "directories", "contents"] {
        for database in ["db", "other"] {
            bench.ok(&["dump", database, &format!("{database}.{keyspace}.rows"), "-k", keyspace]);
        }
        let dumped = |database: &str| fs::read(bench.path().join(format!("{database}.{keyspace}.rows"))).unwrap();
        assert!(dumped("db") == dumped("other"), "{keyspace} has other rows");
    }
    let acknowledged = fs::read_to_string(bench.path().join("acknowledged")).unwrap();
    assert_eq!(acknowledged.lines().count(), 3001);
}

/// Returns the number of bytes that a running process has read from files.
fn bytes_read(process: &mut Child) -> Option<u64> {
    process.try_wait().unwrap().is_none().then(|| {
        let io = fs::read_to_string(format!("/proc/{}/io", process.id())).unwrap_or_default();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap_or(0)
    })
}

/// If a run into an empty database is killed, the database has either no files or the whole tree. The next run stores
/// the tree.
#[test]
fn a_killed_run_leaves_nothing_or_all() {
    const FILES: u64 = 400;
    const FILE_BYTES: u64 = 70_000;
    let bench = Bench::new();
    for number in 0..FILES {
        bench.write(&format!("tree/{}/{number}", number % 5), vec![number as u8; FILE_BYTES as usize]);
    }
    // Create the database first, because this test is not about a kill during its creation.
    bench.ok(&["put", "db", "key", "value"]);
    let (nothing, all) = ([0; 4], [FILES, FILES, FILES, 5]);
    for part in 0..=8 {
        let mut index = bench.command(&["index", "db", "tree"]).stdout(Stdio::null()).spawn().unwrap();
        while bytes_read(&mut index).is_some_and(|bytes| bytes < FILES * FILE_BYTES * part / 8) {
            std::thread::yield_now();
        }
        index.kill().unwrap();
        index.wait().unwrap();
        let answer = bench.run(&["du", "db"]);
        if answer.code == Some(0) {
            let counts = row_counts(&bench);
            assert!(counts == nothing || counts == all, "after {part} eighths: {counts:?}");
        } else {
            // The process was killed before the keyspaces existed, or while they were being filled.
            assert_eq!(answer.code, Some(3), "{}", answer.stderr);
        }
    }
    bench.ok(&["index", "db", "tree"]);
    assert_eq!(row_counts(&bench), all);
    assert!(bench.ok(&["check", "db"]).starts_with("sound"));
}

/// A run that is killed while it fills its keyspaces leaves rows that do not count as a tree. The next run drops them.
#[test]
fn a_half_attached_tree_is_none() {
    let bench = Bench::new();
    bench.write("tree/a", "hello");
    bench.ok(&["index", "db", "tree"]);
    bench.ok(&["put", "db", "-k", "contents", "stale", "content"]);
    bench.ok(&["put", "db", "-k", "index_unfinished", "key", ""]);
    for command in [&["du", "db"][..], &["extract", "db", "out"]] {
        assert!(bench.fails(3, command).contains("there is no tree"));
    }
    bench.ok(&["index", "db", "tree"]);
    assert_eq!(row_counts(&bench), [1, 1, 1, 0]);
    assert!(!bench.ok(&["keyspaces", "db"]).contains("index_unfinished"));
}

/// Files are stored in three keyspaces. A second run stores only changes, and removes missing files if asked to.
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

/// Paths that are too long for keys are named and counted, and the rest of the tree is stored: by bulk load, by
/// transactions, and in a second run.
#[test]
fn long_paths_are_named() {
    let bench = Bench::new();
    bench.write("tree/a.txt", "hello");
    bench.write("tree/z.txt", "hello");
    let mut folder = "d".repeat(199);
    (0..4).for_each(|_| folder = format!("{folder}/{}", "d".repeat(199)));
    // The folder has 999 bytes, so names of 16 and of 24 bytes are the longest for files and for directories.
    for (length, content) in [(16, "fits"), (17, "does not"), (24, "nor this")] {
        bench.write(&format!("tree/{folder}/{}", "f".repeat(length)), content);
    }
    bench.write(&format!("tree/{folder}/{}/file", "g".repeat(24)), "below a directory that fits");
    bench.write(&format!("tree/{folder}/{}/file", "g".repeat(25)), "below one that does not");
    for how in [&[][..], &["--acknowledge", "acks"], &["--delete"]] {
        let answer = bench.run(&[&["index", "db", "tree"][..], how].concat());
        let text = String::from_utf8(answer.stdout).unwrap();
        assert_eq!(answer.code, Some(7), "{text}{}", answer.stderr);
        assert!(text.contains("\n5 not stored: the path is longer than keys may be"), "{text}");
        let name = format!("not stored, a path of 1,017 bytes, over 1,016: {folder}/{}\n", "f".repeat(17));
        assert!(answer.stderr.contains(&name), "{}", answer.stderr);
        assert_eq!(row_counts(&bench), [3, 3, 3, 6], "{how:?}");
        if how.is_empty() {
            bench.ok(&["check", "db"]);
            bench.ok(&["extract", "db", "out"]);
            assert!(bench.path().join(format!("out/{folder}/{}", "f".repeat(16))).exists());
        } else if how[0] == "--acknowledge" {
            fs::remove_file(bench.path().join("tree/z.txt")).unwrap();
            bench.write("tree/b.txt", "in its place");
        }
    }
    fs::remove_dir_all(bench.path().join("db")).unwrap();
    bench.fails(7, &["index", "db", "tree", "--acknowledge", "acks"]);
    assert_eq!(row_counts(&bench), [3, 3, 3, 6]);
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

/// `index` leaves out and names a database inside the tree, whether the walk finds the folder itself, a symbolic link
/// in its place, or a hard link to one of its files. `--delete` removes rows of those files that an older version
/// stored.
#[test]
fn a_database_is_not_stored_in_itself() {
    let bench = Bench::new();
    bench.write("tree/a.txt", "hello");
    bench.ok(&["put", "tree/sub/db", "key", "value"]);
    let link = bench.path().join("tree/z.hard");
    fs::hard_link(bench.path().join("tree/sub/db/data"), link).unwrap();
    symlink("tree/sub/db", bench.path().join("elsewhere")).unwrap();
    for database in ["tree/sub/db", "elsewhere"] {
        let summary: serde_json::Value =
            serde_json::from_str(&bench.ok(&["index", database, "tree", "--json"])).unwrap();
        assert_eq!(summary["left_out"], serde_json::json!(["sub/db", "z.hard"]), "{summary}");
        assert_eq!(bench.ok(&["scan", database, "-k", "files", "--keys-only"]), "a.txt\n");
    }
    let text = bench.ok(&["index", "elsewhere", "tree"]);
    assert!(text.contains("the database itself: sub/db\n"), "{text}");

    let entry = bench.ok(&["get", "elsewhere", "-k", "files", "a.txt"]);
    for stored in ["sub/db/data", "sub/db"] {
        bench.ok(&["put", "elsewhere", "-k", "files", stored, &entry]);
    }
    let text = bench.ok(&["index", "elsewhere", "tree", "--delete"]);
    assert!(text.contains("2 removed"), "{text}");
    assert_eq!(bench.ok(&["scan", "elsewhere", "-k", "files", "--keys-only"]), "a.txt\n");

    bench.write("other/b.txt", "hello");
    let log = bench.path().join("other/log");
    fs::rename(bench.path().join("tree/sub/db/log"), &log).unwrap();
    symlink(&log, bench.path().join("tree/sub/db/log")).unwrap();
    let text = bench.ok(&["index", "elsewhere", "other"]);
    assert!(text.contains("indexed 1 file") && text.contains("the database itself: log"), "{text}");
}

/// A command refuses to store the database's own folder or its parts as a tree, and to use the database's own files as
/// a value or an output file.
#[test]
fn a_database_is_no_input_or_output_of_its_own() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "key", "value"]);
    for tree in ["db", "db/log"] {
        assert!(bench.fails(2, &["index", "db", tree]).contains("within the database itself"));
    }
    assert!(bench.fails(2, &["put", "db", "k", "--file", "db/data"]).contains("of the database itself"));
    assert!(bench.fails(2, &["dump", "db", "db/data", "--format", "jsonl"]).contains("of the database itself"));
    let acknowledge = ["index", "db", ".", "--acknowledge", "db/data"];
    assert!(bench.fails(2, &acknowledge).contains("of the database itself"));
    fs::create_dir(bench.path().join("empty")).unwrap();
    assert!(bench.fails(2, &["index", "empty", "empty"]).contains("within the database itself"));
    assert_eq!(bench.ok(&["get", "db", "key"]), "value");
}
