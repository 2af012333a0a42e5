//! `load` restores everything that `dump` writes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::support::Bench;

/// Creates a database with values that are difficult to represent in some format.
fn awkward() -> Bench {
    let bench = Bench::new();
    for (key, value) in [
        ("", &b""[..]),
        ("empty value", b""),
        ("text", "caf\u{e9} \"quoted\", comma\ttab".as_bytes()),
        ("lines", b"one\ntwo\r\nthree"),
        ("\\xff\\x00\\xfe", b"\x00\xff\xfe\x80"),
        ("json", b"{\"base64\": \"AAAA\"}"),
        ("long", &[b'x'; 200_000]),
    ] {
        bench.ok_with(&["put", "db", key], value);
    }
    bench.ok_with(&["put", "db", "streamed"], &(0..=255u8).cycle().take(3_000_001).collect::<Vec<_>>());
    bench
}

fn assert_same(bench: &Bench, left: &str, right: &str) {
    bench.ok(&["dump", left, "left.rows", "--force"]);
    bench.ok(&["dump", right, "right.rows", "--force"]);
    let read = |name: &str| std::fs::read(bench.path().join(name)).unwrap();
    assert!(read("left.rows") == read("right.rows"), "{left} and {right} differ");
}

/// The binary form is restored without any options.
#[test]
fn binary() {
    let bench = awkward();
    bench.ok(&["dump", "db", "all.rows"]);
    bench.ok(&["load", "copy", "all.rows"]);
    assert_same(&bench, "db", "copy");
}

/// The text forms also keep every byte.
#[test]
fn text_forms() {
    let bench = awkward();
    for format in ["csv", "tsv", "jsonl"] {
        let file = format!("all.{format}");
        bench.ok(&["dump", "db", &file]);
        bench.ok(&["load", format, &file, "--key", "key", "--value", "value"]);
        assert_same(&bench, "db", format);
    }
}

/// A dump of selected rows can be piped into `load`, into a different keyspace.
#[test]
fn through_a_pipe() {
    let bench = Bench::new();
    for key in ["a/1", "a/2", "b/1"] {
        bench.ok(&["put", "db", key, key]);
    }
    let dumped = bench.run(&["dump", "db", "--format", "binary", "--prefix", "a/"]);
    bench.ok_with(&["load", "db", "-", "--format", "binary", "-k", "copy"], &dumped.stdout);
    assert_eq!(bench.ok(&["scan", "db", "-k", "copy"]), "a/1\ta/1\na/2\ta/2\n");
}

/// CSV that was loaded is dumped byte for byte, either with all its columns in order or with the requested columns.
#[test]
fn columns_come_back() {
    let bench = Bench::new();
    let text = "id,name,note\n1,Ada,\"a \"\"quote\"\", a comma\"\n2,\"two\nlines\",\n3,\u{e9},\n";
    bench.write("in.csv", text);
    bench.ok(&["load", "db", "in.csv", "--key", "id"]);
    bench.ok(&["dump", "db", "out.csv", "--values"]);
    assert_eq!(std::fs::read_to_string(bench.path().join("out.csv")).unwrap(), text);
    assert_eq!(
        bench.ok(&["dump", "db", "--format", "tsv", "--columns", "note,id", "--limit", "1"]),
        "note\tid\n\"a \"\"quote\"\", a comma\"\t1\n"
    );
    assert_eq!(bench.ok(&["dump", "db", "--columns", "id,none", "--limit", "2"]), "{\"id\":\"1\"}\n{\"id\":\"2\"}\n");
    bench.write("bare.csv", "1,a\n2,b\n");
    bench.ok(&["load", "bare", "bare.csv", "--key", "1", "--no-header"]);
    assert_eq!(bench.ok(&["dump", "bare", "--values", "--format", "csv"]), "1,a\n2,b\n");
    let lines = "{\"k\": 1, \"v\": [1,2]}\n{\"k\": 2, \"w\": null}\n";
    bench.ok_with(&["load", "json", "-", "--format", "jsonl", "--key", "k"], lines.as_bytes());
    assert_eq!(bench.ok(&["dump", "json", "--values"]), lines);
    assert_eq!(bench.ok(&["dump", "json", "--columns", "v,w", "--format", "csv"]), "v,w\n\"[1,2]\",\n,\n");
    bench.ok(&["put", "json", "k", "{\n \"a\": 1 }"]);
    bench.ok(&["put", "json", "l", "no json"]);
    assert_eq!(bench.ok(&["dump", "json", "--values", "--from", "k"]), "{ \"a\": 1 }\n\"no json\"\n");
}

/// If a value lacks the requested columns, the dump ends and names the row. No part of the value is lost silently.
#[test]
fn values_without_the_columns() {
    let bench = Bench::new();
    bench.ok_with(&["load", "db", "-", "--format", "jsonl", "--key", "k"], b"{\"k\":1}\n{\"k\":2,\"w\":5}\n");
    let message = bench.fails(7, &["dump", "db", "--values", "--format", "csv"]);
    assert!(message.contains("key '2'") && message.contains("a field \"w\""), "{message}");
    bench.ok(&["put", "db", "0", "text"]);
    assert!(bench.fails(7, &["dump", "db", "--columns", "k"]).contains("key '0'"));
    bench.fails(2, &["dump", "db", "rows", "--format", "binary", "--values"]);
}

/// An existing file is replaced only with `--force`.
#[test]
fn a_dump_keeps_what_is_there() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    bench.write("out.csv", "mine");
    assert!(bench.fails(1, &["dump", "db", "out.csv"]).contains("--force"));
    assert_eq!(std::fs::read(bench.path().join("out.csv")).unwrap(), b"mine");
    bench.ok(&["dump", "db", "out.csv", "--force"]);
    assert_eq!(std::fs::read(bench.path().join("out.csv")).unwrap(), b"key,value\na,1\n");
    assert!(bench.ok(&["dump", "db", "/dev/null"]).starts_with("wrote 1 row, 2 bytes of keys and values, in "));
    assert!(bench.ok(&["dump", "db", "sized.csv"]).starts_with("wrote 1 row, a file of 14 bytes, in "));
    let sizes: serde_json::Value = serde_json::from_str(&bench.ok(&["dump", "db", "sized.rows", "--json"])).unwrap();
    assert_eq!((&sizes["bytes"], &sizes["file_bytes"]), (&2.into(), &58.into()));
}

/// In a dump, a column with an empty name and a row of one empty cell are both written as non-blank lines. A value
/// without fields can't be written as a line, and is rejected.
#[test]
fn lines_are_never_blank() {
    let bench = Bench::new();
    for (format, text) in
        [("csv", "\"\"\nv\n\"\"\nw\n"), ("tsv", "\"\"\n\"\"\n"), ("csv", "\"\",a\n,\n"), ("csv", "a\n\"\"\n")]
    {
        bench.ok_with(&["load", "db", "-", "--format", format], text.as_bytes());
        let dumped = bench.ok(&["dump", "db", "--values", "--format", format]);
        bench.ok_with(&["load", "again", "-", "--format", format], dumped.as_bytes());
        let values = |database| bench.ok(&["dump", database, "--values"]);
        assert!(values("again") == values("db") && !values("db").is_empty(), "{text:?}: {dumped:?}");
        bench.ok(&["rm", "db", "--all"]);
        bench.ok(&["rm", "again", "--all"]);
    }
    for value in ["{}", "[]"] {
        bench.ok(&["put", "db", "a", value]);
        assert!(bench.fails(7, &["dump", "db", "--values", "--format", "csv"]).contains("no fields"));
    }
}

/// A dump that ends early leaves no file under any name, and leaves the file that it should replace unchanged. A
/// completed dump replaces the file that a link points to, and keeps its permissions.
#[test]
fn a_dump_is_whole_or_not_there() {
    let bench = Bench::new();
    let rows: String = (0..20_000).map(|row| format!("{{\"k\":{row},\"v\":{}}}\n", row * 7919)).collect();
    bench.ok_with(&["load", "db", "-", "--format", "jsonl", "--key", "k"], rows.as_bytes());
    bench.ok(&["put", "db", "z", "no JSON"]);
    let names = || {
        let mut names: Vec<_> = fs::read_dir(bench.path()).unwrap().map(|item| item.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert!(bench.fails(7, &["dump", "db", "out.csv", "--values"]).contains("hint: no file was made"));
    assert_eq!(names(), ["db"]);
    // A process that reaches its file size limit sees the same error as on a full disk.
    let limited = format!("ulimit -f 100; exec '{}' dump db out.csv", env!("CARGO_BIN_EXE_drumlin"));
    let mut shell = std::process::Command::new("sh");
    let ended = shell.args(["-c", &format!("trap '' XFSZ; {limited}")]).current_dir(bench.path()).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert_eq!(names(), ["db"]);

    let mine = bench.write("mine.csv", "mine");
    fs::set_permissions(&mine, fs::Permissions::from_mode(0o600)).unwrap();
    symlink("mine.csv", bench.path().join("link.csv")).unwrap();
    bench.fails(7, &["dump", "db", "link.csv", "--values", "--force"]);
    bench.fails(1, &["dump", "db", "link.csv"]);
    assert_eq!(
        (names(), fs::read(&mine).unwrap()),
        (vec!["db".into(), "link.csv".into(), "mine.csv".into()], b"mine".to_vec())
    );
    bench.ok(&["dump", "db", "link.csv", "--force"]);
    assert_eq!(fs::metadata(&mine).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_to_string(&mine).unwrap().lines().count(), 20_002);
    assert!(fs::symlink_metadata(bench.path().join("link.csv")).unwrap().is_symlink());
    assert_eq!(names().len(), 3);
}
