//! What `dump` writes, `load` reads back.

use crate::support::Bench;

/// A database with all that makes formats stumble.
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
    bench.ok(&["dump", left, "left.rows"]);
    bench.ok(&["dump", right, "right.rows"]);
    let read = |name: &str| std::fs::read(bench.path().join(name)).unwrap();
    assert!(read("left.rows") == read("right.rows"), "{left} and {right} differ");
}

/// The binary form needs nothing said.
#[test]
fn binary() {
    let bench = awkward();
    bench.ok(&["dump", "db", "all.rows"]);
    bench.ok(&["load", "copy", "all.rows"]);
    assert_same(&bench, "db", "copy");
}

/// The text forms keep every byte too.
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

/// From stdout to stdin, a part of the rows, into another keyspace.
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
