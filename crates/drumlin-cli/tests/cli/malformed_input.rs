//! Malformed rows: reported with file, line and column, or counted.

use crate::support::Bench;

/// Each kind of malformed row is reported with its exact place and exit code 7. Earlier rows stay.
#[test]
fn the_place_is_named() {
    let bench = Bench::new();
    for (name, content, place, what) in [
        ("few.csv", "k,v\na,1\nb\n", "few.csv:3:1", "1 field where 2 are expected"),
        ("many.csv", "k,v\na,1,2\n", "many.csv:2:5", "3 fields where 2 are expected"),
        ("open.csv", "k,v\na,\"1\nb,2\n", "open.csv:2:3", "never closed"),
        ("quote.tsv", "k\tv\na\t\"1\"2\n", "quote.tsv:2:6", "after a closing quote"),
        ("latin.csv", "k,v\na,caf\u{e9}\n", "", ""),
        ("broken.jsonl", "{\"k\":1}\n{\"k\":,}\n", "broken.jsonl:2:6", "expected value"),
        ("lacks.jsonl", "{\"k\":1}\n{\"v\":2}\n", "lacks.jsonl:2:1", "no field \"k\""),
    ] {
        bench.write(name, content);
        if place.is_empty() {
            bench.ok(&["load", "db", name, "--key", "k"]);
            continue;
        }
        let message = bench.fails(7, &["load", "db", name, "--key", "k"]);
        assert!(message.contains(place) && message.contains(what), "{name}: {message}");
    }
    assert_eq!(bench.ok(&["get", "db", "1"]), "{\"k\":1}");
}

/// A row that is not UTF-8 can't be converted to JSON, but its columns can be stored unchanged.
#[test]
fn bytes_that_are_no_text() {
    let bench = Bench::new();
    bench.write("latin.csv", b"k,v\na,caf\xe9\n");
    let message = bench.fails(7, &["load", "db", "latin.csv", "--key", "k"]);
    assert!(message.contains("latin.csv:2:3") && message.contains("UTF-8"), "{message}");
    bench.ok(&["load", "db", "latin.csv", "--key", "k", "--value", "v"]);
    assert_eq!(bench.run(&["get", "db", "a"]).stdout, b"caf\xe9");
}

/// A missing column causes an error that lists the existing columns.
#[test]
fn missing_columns() {
    let bench = Bench::new();
    bench.write("rows.csv", "k,v\na,1\n");
    let message = bench.fails(7, &["load", "db", "rows.csv", "--key", "id"]);
    assert!(message.contains("no column \"id\"; there are: k, v"), "{message}");
}

/// `--skip-bad` stores the good rows and counts the bad ones.
#[test]
fn bad_rows_are_counted() {
    let bench = Bench::new();
    bench.write("rows.csv", "k,v\na,1\nb\nc,3\nd,4,5\n");
    bench.write("more.jsonl", "{\"k\":\"e\"}\nnonsense\n");
    let summary = bench.ok(&["load", "db", "rows.csv", "more.jsonl", "--key", "k", "--skip-bad", "--json"]);
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((&summary["rows"], &summary["bad_rows"]), (&3.into(), &3.into()));
    assert_eq!(bench.ok(&["scan", "db", "--keys-only"]), "a\nc\ne\n");
}

/// A row whose key is too long is a bad row: it is reported with its place and skipped with `--skip-bad`, even in the
/// binary form and even if its value is streamed.
#[test]
fn long_keys_are_bad_rows() {
    let bench = Bench::new();
    let long = "k".repeat(2000);
    let rows = format!("n,k,v\n1,a,1\n2,{long},2\n3,c,3\n");
    bench.write("rows.csv", &rows);
    let message = bench.fails(7, &["load", "db", "rows.csv", "--key", "k"]);
    assert!(message.contains("rows.csv:3:3: a key of 2000 bytes is too long"), "{message}");
    assert!(message.contains("--skip-bad") && message.contains("1 row committed before"), "{message}");
    let answer = bench.run(&["load", "db", "rows.csv", "--key", "k", "--skip-bad"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    assert!(answer.stderr.contains("skipped: rows.csv:3:3: a key of 2000 bytes"), "{}", answer.stderr);
    assert!(String::from_utf8_lossy(&answer.stdout).contains("skipped 1 bad row"));
    assert_eq!(bench.ok(&["scan", "db", "--keys-only"]), "a\nc\n");
    let lines: String = (0..12).map(|row| format!("{{\"k\":\"{}{row}\"}}\n", "k".repeat(1024))).collect();
    let answer =
        bench.run_with(&["load", "db", "-", "--format", "jsonl", "--key", "k", "--skip-bad"], lines.as_bytes());
    assert_eq!(answer.stderr.matches("skipped: stdin:").count(), 12, "each is named: {}", answer.stderr);
}

/// A truncated or changed binary file is rejected, and the damaged row is not stored.
#[test]
fn damaged_binary_files() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    bench.ok(&["put", "db", "b", "2"]);
    bench.ok(&["dump", "db", "all.rows"]);
    let all = std::fs::read(bench.path().join("all.rows")).unwrap();
    bench.write("cut.rows", &all[..all.len() - 1]);
    let message = bench.fails(7, &["load", "cut", "cut.rows"]);
    assert!(message.contains("cut.rows: byte") && message.contains("cut off"), "{message}");
    let mut changed = all.clone();
    changed[30] ^= 1;
    bench.write("changed.rows", changed);
    let message = bench.fails(7, &["load", "changed", "changed.rows"]);
    assert!(message.contains("damaged"), "{message}");
    assert_eq!(bench.ok(&["scan", "changed", "--count"]), "0\n");
}

/// A quote that is never closed, or is closed by a quote in a later row, makes only its own row malformed. All rows
/// after it are stored, from files, pipes and compressed files. Rows of several lines stay whole, and a malformed one
/// is reported with its lines.
#[test]
fn an_open_quote_costs_one_row() {
    let bench = Bench::new();
    let rows: String = (0..5000).map(|row| format!("{row:04},{row}\n")).collect();
    for (name, broken, place) in [
        ("open.csv", "x,\"oops\n", "open.csv:2:3: the quote that opens here is never closed"),
        (
            "closed.csv",
            "x,\"oops\n",
            "closed.csv:2:3: the quote that opens here closes in line 5003, column 7, before more text",
        ),
    ] {
        let last = if name == "closed.csv" { "last,\"a \"\"quote\"\"\nin two lines\"\n" } else { "" };
        let text = format!("k,v\n{broken}{rows}{last}");
        bench.write(name, &text);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
        let zipped = format!("{name}.gz");
        bench.write(&zipped, gzip.finish().unwrap());
        assert!(bench.fails(7, &["load", "stopped", name, "--key", "k"]).contains(place));
        for (file, input) in [(name, ""), (&zipped, ""), ("-", &text)] {
            let args = ["load", "db", file, "--format", "csv", "--key", "k", "--value", "v", "--skip-bad", "--json"];
            let answer = bench.run_with(&args, input.as_bytes());
            let summary: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
            let rows_count = 5000 + u64::from(!last.is_empty());
            assert_eq!((&summary["rows"], &summary["bad_rows"]), (&rows_count.into(), &1.into()), "{file}");
            let place = place.replacen(name, if file == "-" { "stdin" } else { file }, 1);
            assert!(answer.stderr.contains(&place), "{}", answer.stderr);
            assert_eq!(bench.ok(&["count", "db", "--prefix", "49"]), "100\n");
            if !last.is_empty() {
                assert_eq!(bench.ok(&["get", "db", "last"]), "a \"quote\"\nin two lines");
            }
            bench.ok(&["rm", "db", "--all"]);
        }
    }
    bench.write("three.csv", "k,v\na,\"1\n\n2\",3\nb,1\n");
    let answer = bench.run(&["load", "db", "three.csv", "--key", "k", "--skip-bad"]);
    assert!(
        answer.stderr.contains("three.csv:4:4: 3 fields where 2 are expected; the row has lines 2 to 4"),
        "{answer:?}"
    );
}

/// Columns with the same name would be duplicate keys of a JSON object, so the header is rejected. If single columns
/// are stored, only the requested names must be unique. A dump rejects values that have two fields of the same name. A
/// malformed header ends a load even with `--skip-bad`, so that no row is taken for the header.
#[test]
fn headers_say_which_column_is_what() {
    let bench = Bench::new();
    bench.write("two.csv", "a,b,a\n1,2,3\n");
    for more in [&[][..], &["--key", "b"], &["--key", "a", "--value", "b"], &["--value", "a"], &["--skip-bad"]] {
        let message = bench.fails(7, &[&["load", "db", "two.csv"][..], more].concat());
        assert!(message.contains("two.csv:1:5: columns 1 and 3 have the same name, \"a\""), "{message}");
    }
    bench.ok(&["load", "db", "two.csv", "--value", "b"]);
    bench.ok(&["load", "db", "two.csv", "--no-header", "-k", "arrays"]);
    assert_eq!(bench.ok(&["dump", "db", "--values", "--format", "csv", "-k", "arrays"]), "a,b,a\n1,2,3\n");

    bench.ok(&["put", "db", "-k", "twice", "a", "{\"a\":1,\"a\":2}"]);
    for how in [&["--values", "--format", "csv"][..], &["--columns", "a"], &["--columns", "a", "--format", "csv"]] {
        let message = bench.fails(7, &[&["dump", "db", "-k", "twice"][..], how].concat());
        assert!(message.contains("two fields \"a\""), "{message}");
    }
    assert_eq!(bench.ok(&["dump", "db", "-k", "twice", "--columns", "b"]), "{}\n");

    bench.write("open.csv", "a,\"b\n1,2\n3,4\n");
    assert!(bench.fails(7, &["load", "db", "open.csv", "--skip-bad"]).contains("open.csv:1:3: the quote"));
    bench.write("latin.csv", b"pr\xe9nom,pr\xe8nom\n1,2\n");
    assert!(
        bench.fails(7, &["load", "db", "latin.csv", "--skip-bad"]).contains("latin.csv:1:1: the field is not UTF-8")
    );
}
