//! put, get, scan, rm and load: single rows and ranges.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::support::Bench;

fn letters() -> Bench {
    let bench = Bench::new();
    let rows: String = ('a'..='j').map(|letter| format!("{letter},{letter}{letter}\n")).collect();
    bench
        .ok_with(&["load", "db", "-", "--format", "csv", "--no-header", "--key", "1", "--value", "2"], rows.as_bytes());
    bench
}

/// Ranges begin with --from and end before --to. Prefixes, order, limits and counts can be combined.
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
    assert_eq!(bench.ok(&["scan", "db", "--count", "--reverse"]), "10\n");
    assert_eq!(bench.ok(&["scan", "db", "--count", "--limit", "4", "--keys-only"]), "4\n");
    assert_eq!(bench.ok(&["scan", "db", "--from", "j"]), "j\tjj\n");
}

/// Several keys, from the command line, a file and stdin, are printed one per line. Missing keys are named.
#[test]
fn values_of_many_keys() {
    let bench = letters();
    assert_eq!(bench.ok(&["get", "db", "c", "a"]), "c\tcc\na\taa\n");
    bench.write("keys", "b\n\\x64\n");
    assert_eq!(bench.ok(&["get", "db", "a", "--keys", "keys"]), "a\taa\nb\tbb\nd\tdd\n");
    assert_eq!(bench.ok_with(&["get", "db", "--keys", "-"], b"e\nf"), "e\tee\nf\tff\n");
    let lines = bench.ok(&["get", "db", "--json", "--hex", "61", "62"]);
    assert_eq!(lines.lines().next(), Some(r#"{"key":"a","value":"aa","value_bytes":2}"#));
    let answer = bench.run(&["get", "db", "a", "missing", "b", "also"]);
    assert_eq!((answer.code, &answer.stdout[..]), (Some(3), &b"a\taa\nb\tbb\n"[..]));
    assert!(
        answer.stderr.contains("no key 'missing'") && answer.stderr.contains("2 keys missing"),
        "{}",
        answer.stderr
    );
    bench.fails(7, &["get", "db", "--keys", "missing"]);
    bench.fails(2, &["get", "db"]);
}

/// Keyspaces are listed with their sizes.
#[test]
fn keyspaces_have_sizes() {
    let bench = letters();
    bench.ok_with(
        &["put", "db", "large", "-k", "other"],
        &(0..300_000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>(),
    );
    bench.ok(&["checkpoint", "db"]);
    let lines = bench.ok(&["keyspaces", "db", "--json", "--count"]);
    let sizes: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let bytes = |line: &serde_json::Value| line["disk_bytes"].as_u64().unwrap();
    assert!(bytes(&sizes[0]) > 0 && bytes(&sizes[0]) < 10_000, "{lines}");
    assert!(bytes(&sizes[1]) > 100_000 && bytes(&sizes[1]) < 1_300_000, "{lines}");
    assert!(bench.ok(&["keyspaces", "db"]).contains("on disk"));
}

/// Keyspaces are renamed and exchange their names, with their rows. A name that is missing or in use changes nothing.
#[test]
fn keyspaces_are_renamed() {
    let bench = letters();
    let value = bench.ok(&["get", "db", "a"]);
    bench.ok_with(&["put", "db", "row", "-k", "other"], b"of the other");
    assert_eq!(bench.ok(&["rename", "db", "other", "third"]), "renamed keyspace \"other\" to \"third\"\n");
    assert_eq!(bench.ok(&["get", "db", "row", "-k", "third"]), "of the other");
    bench.fails(3, &["get", "db", "row", "-k", "other"]);
    bench.fails(3, &["rename", "db", "other", "fourth"]);
    let refused = bench.fails(1, &["rename", "db", "third", "default"]);
    assert!(refused.contains("already") && refused.contains("--swap"), "{refused}");
    bench.ok(&["rename", "db", "third", "default", "--swap", "--json"]);
    assert_eq!(bench.ok(&["get", "db", "row"]), "of the other");
    assert_eq!(bench.ok(&["get", "db", "a", "-k", "third"]), value);
    bench.fails(1, &["rename", "db", "third", ""]);
}

/// A clone has the rows of its keyspace, and is written independently. Names that are missing or in use are refused.
#[test]
fn keyspaces_are_cloned() {
    let bench = letters();
    let (value, count) = (bench.ok(&["get", "db", "a"]), bench.ok(&["count", "db"]));
    assert_eq!(bench.ok(&["clone", "db", "default", "copy"]), "cloned keyspace \"default\" as \"copy\"\n");
    let lines = bench.ok(&["keyspaces", "db", "--exclusive", "--json"]);
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["exclusive_bytes"] == 0 && line["disk_bytes"].as_u64().unwrap() > 0, "{lines}");
    }
    assert!(bench.ok(&["keyspaces", "db", "--exclusive"]).contains("exclusive"));
    let stats: serde_json::Value = serde_json::from_str(&bench.ok(&["stats", "db", "--json"])).unwrap();
    let copies = serde_json::json!([{ "kind": "clone", "name": "copy", "exclusive_bytes": 0 }]);
    assert_eq!((&stats["clones"], &stats["copies"]), (&1.into(), &copies));
    assert!(bench.ok(&["stats", "db"]).contains("dropping the clone \"copy\" frees 0"));
    bench.ok_with(&["put", "db", "a", "-k", "copy"], b"changed");
    assert_eq!(bench.ok(&["get", "db", "a", "-k", "copy"]), "changed");
    assert_eq!((bench.ok(&["get", "db", "a"]), bench.ok(&["count", "db"])), (value, count));
    let cloned: serde_json::Value =
        serde_json::from_str(&bench.ok(&["clone", "db", "copy", "third", "--json"])).unwrap();
    assert!(cloned["to"] == "third" && cloned["timestamp"].as_u64().unwrap() > 0, "{cloned}");
    bench.fails(3, &["clone", "db", "missing", "fourth"]);
    let refused = bench.fails(1, &["clone", "db", "default", "copy"]);
    assert!(refused.contains("already"), "{refused}");
    bench.ok(&["rm", "db", "--all", "-k", "default"]);
    assert_eq!(bench.ok(&["get", "db", "a", "-k", "third"]), "changed");
}

/// `rm` removes the rows of the given keys, prefix, range or keyspace, and nothing else.
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

/// Any bytes can form a key, which is shown and typed either escaped or in hexadecimal. Empty keys and values are
/// allowed.
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
    bench.fails(7, &["put", "db", "d", "--file", "missing"]);
}

/// Several columns can form one key. Without a key column, the key is made of file and line.
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

/// Many files are loaded concurrently, each in order: the last of several rows with the same key wins.
#[test]
fn many_files() {
    let bench = Bench::new();
    let mut args = Vec::new();
    for file in 0..8 {
        let rows: String = (0..2000).map(|row| format!("{file}-{},{row}\n", row % 500)).collect();
        bench.write(&format!("{file}.csv"), format!("k,v\n{rows}"));
        args.push(format!("{file}.csv"));
    }
    args.extend(["--key", "k", "--value", "v", "--threads", "4", "--json"].map(str::to_owned));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    // Load with one bulk load, and in batches.
    for (database, batch) in [("at-once", &[][..]), ("batches", &["--batch", "64"])] {
        let loaded = bench.ok(&[&["load", database][..], &args[..], batch].concat());
        let summary: serde_json::Value = serde_json::from_str(&loaded).unwrap();
        assert_eq!((&summary["rows"], &summary["replaced_rows"]), (&16_000.into(), &12_000.into()));
        assert_eq!(bench.ok(&["scan", database, "--count"]), "4000\n");
        assert_eq!(bench.ok(&["get", database, "7-499"]), "1999");
    }
}

/// `load` counts rows whose keys exist, and either replaces the old rows, skips the new ones, or rejects them with
/// their place.
#[test]
fn duplicates() {
    let bench = Bench::new();
    bench.write("rows.csv", "id,v\na,1\nb,2\na,3\nc,4\n");
    let load = |database: &str, how: &[&str]| {
        bench.run(&[&["load", database, "rows.csv", "--key", "id", "--value", "v", "--json"][..], how].concat())
    };
    let summary = |answer: &crate::support::Answer| -> serde_json::Value {
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        serde_json::from_slice(&answer.stdout).unwrap()
    };
    let found = summary(&load("replace", &[]));
    assert_eq!((&found["rows"], &found["replaced_rows"]), (&4.into(), &1.into()));
    assert_eq!(bench.ok(&["scan", "replace"]), "a\t3\nb\t2\nc\t4\n");
    let found = summary(&load("keep", &["--on-duplicate", "keep", "--batch", "2"]));
    assert_eq!((&found["rows"], &found["kept_rows"]), (&3.into(), &1.into()));
    assert_eq!(bench.ok(&["scan", "keep"]), "a\t1\nb\t2\nc\t4\n");
    let answer = load("fail", &["--on-duplicate", "fail"]);
    assert_eq!(answer.code, Some(7));
    assert!(answer.stderr.contains("rows.csv:4:1: a row with its key exists already"), "{}", answer.stderr);
    assert_eq!(bench.ok(&["scan", "fail"]), "a\t1\nb\t2\n");
    let found = summary(&load("skip", &["--on-duplicate", "fail", "--skip-bad"]));
    assert_eq!((&found["rows"], &found["bad_rows"]), (&3.into(), &1.into()));
    assert_eq!(bench.ok(&["scan", "skip"]), "a\t1\nb\t2\nc\t4\n");
    let text = bench.ok(&["load", "replace", "rows.csv", "--key", "id"]);
    assert!(text.starts_with("loaded 4 rows, 4 replaced, from 1 file in "), "{text}");
    bench.write("none.csv", "id,v\n");
    assert_eq!(bench.ok(&["load", "none", "none.csv", "--key", "id"]), "loaded no rows from 1 file\n");
}

/// `load` recognises compressed files and pipes by their content and decompresses them. If the input is damaged, or its
/// form of compression is not supported, the error says so.
#[test]
fn compressed_input() {
    let bench = Bench::new();
    let rows: String = (0..20_000).map(|row| format!("{row},{}\n", row * 7919)).collect();
    let text = format!("id,v\n{rows}");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
    bench.write("plain.csv", &text);
    bench.write("rows.csv.gz", &gzip);
    bench.write("rows.csv.zst", &zstd);
    bench.write("misnamed.csv", &zstd);
    bench.ok(&["load", "plain", "plain.csv", "--key", "id"]);
    let expected = bench.ok(&["dump", "plain"]);
    for (database, file) in [("gz", "rows.csv.gz"), ("zst", "rows.csv.zst"), ("told by content", "misnamed.csv")] {
        bench.ok(&["load", database, file, "--key", "id"]);
        assert!(bench.ok(&["dump", database]) == expected, "{file}");
    }
    bench.ok_with(&["load", "pipe", "-", "--format", "csv", "--key", "id"], b"");
    let answer = bench.run_with(&["load", "pipe", "-", "--format", "csv", "--key", "id"], &gzip);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    assert!(bench.ok(&["dump", "pipe"]) == expected);
    let summary = bench.ok(&["load", "counted", "plain.csv", "rows.csv.gz", "--key", "id", "--json"]);
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["compressed_files"], 1);
    assert_eq!(summary["input_bytes"], text.len() + gzip.len());
    bench.write("padded.csv.gz", [&gzip[..], &[0; 1000]].concat());
    bench.ok(&["load", "padded", "padded.csv.gz", "--key", "id"]);
    assert!(bench.ok(&["dump", "padded"]) == expected);
    bench.write("cut.csv.gz", &gzip[..gzip.len() / 2]);
    let message = bench.fails(7, &["load", "cut", "cut.csv.gz", "--key", "id"]);
    assert!(message.contains("cut.csv.gz") && message.contains("gzip data is damaged or cut off"), "{message}");
    bench.write("rows.csv.xz", b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46");
    let message = bench.fails(7, &["load", "xz", "rows.csv.xz", "--format", "csv"]);
    assert!(message.contains("compressed with xz") && message.contains("xz -dc 'rows.csv.xz' |"), "{message}");
}

/// A row that begins with the magic of a compressed form is read as text, even if a dump wrote it at the start of a
/// file.
#[test]
fn text_that_begins_like_a_compressed_file() {
    let bench = Bench::new();
    for name in ["BZh", "PK\u{3}\u{4}", "P*M\u{18}"] {
        let text = format!("{name},b\n1,2\n");
        bench.ok_with(&["load", "db", "-", "--format", "csv", "--key", "b"], text.as_bytes());
        assert_eq!(bench.ok(&["dump", "db", "--values", "--format", "csv"]), text);
        bench.ok(&["rm", "db", "--all"]);
    }
}

/// Separators other than the default are read and written. If the first line contains one that was not requested, the
/// error suggests the option.
#[test]
fn delimiters() {
    let bench = Bench::new();
    bench.write("rows.csv", "id;name\n1;a,b\n2;\"c;d\"\n");
    let message = bench.fails(7, &["load", "db", "rows.csv", "--key", "id"]);
    assert!(
        message.contains("no column \"id\"; there are: id;name") && message.contains("--delimiter ';'"),
        "{message}"
    );
    let answer = bench.run(&["load", "lines", "rows.csv", "--value", "id;name", "--skip-bad"]);
    assert!(answer.stderr.contains("one field, id;name; --delimiter ';' divides it"), "{answer:?}");
    bench.ok(&["load", "db", "rows.csv", "--key", "id", "--delimiter", ";"]);
    assert_eq!(bench.ok(&["get", "db", "2"]), r#"{"id":"2","name":"c;d"}"#);
    assert_eq!(bench.ok(&["dump", "db", "--values", "--delimiter", ";"]), "id;name\n1;a,b\n2;\"c;d\"\n");
    bench.write("rows.jsonl", "{}\n");
    assert!(bench.fails(2, &["load", "db", "rows.jsonl", "--delimiter", ";"]).contains("rows.jsonl"));
    assert!(bench.fails(2, &["load", "db", "rows.csv", "--delimiter", "ab"]).contains("one ASCII character"));
}

/// Without a key column, no two inputs produce the same keys: names are compared byte by byte, stdin has a name that no
/// file can have, and a file that is given twice is rejected.
#[test]
fn inputs_do_not_share_keys() {
    let bench = Bench::new();
    let names: [&[u8]; 4] = [b"a\xff.csv", b"a\xfe.csv", "a\u{fffd}.csv".as_bytes(), b"stdin"];
    for name in names {
        let path = bench.path().join(OsStr::from_bytes(name));
        std::fs::write(path, format!("v\n{}\n", name.escape_ascii())).unwrap();
    }
    let mut command = bench.command(&["load", "db", "-", "--format", "csv", "--value", "v", "--json"]);
    command.args(names.map(OsStr::from_bytes)).stdin(std::fs::File::open(bench.path().join("stdin")).unwrap());
    let answer = command.output().unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!((&summary["rows"], &summary["replaced_rows"]), (&5.into(), &0.into()));
    let rows = bench.ok(&["scan", "db"]);
    for row in ["-:000000000002\tstdin\n", "stdin:000000000002\tstdin\n", "a\\xff.csv:000000000002\ta\\\\xff.csv\n"] {
        assert!(rows.contains(row), "{row}: {rows}");
    }
    assert_eq!(rows.lines().count(), 5, "{rows}");

    bench.write("rows.csv", "k,v\na,1\n");
    let message = bench.fails(2, &["load", "twice", "rows.csv", "rows.csv"]);
    assert!(message.contains("rows.csv is given twice"), "{message}");
    assert!(!bench.path().join("twice").exists());
    bench.ok(&["load", "twice", "rows.csv", "./rows.csv"]);
    assert_eq!(bench.ok(&["count", "twice"]), "2\n");
    let with_keys = bench.ok(&["load", "keys", "rows.csv", "rows.csv", "--key", "k"]);
    assert!(with_keys.contains("loaded 2 rows, 1 replaced"), "{with_keys}");
}

/// A field that occurs in no row is reported on stderr, in every text form. A field that occurs in at least one row is
/// not reported.
#[test]
fn fields_that_no_row_has_are_named() {
    let bench = Bench::new();
    bench.ok_with(&["load", "db", "-", "--format", "csv", "--key", "id"], b"id,name\n1,a\n2,b\n");
    for format in ["csv", "jsonl"] {
        let answer = bench.run(&["dump", "db", "--format", format, "--columns", "name,nope"]);
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        assert!(answer.stderr.contains("\"nope\"") && !answer.stderr.contains("\"name\""), "{}", answer.stderr);
    }
}
