//! `--json` prints valid JSON, one object per line, in every command that prints figures.

use serde_json::Value;

use crate::support::Bench;

fn parse(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Every command prints its answer as objects, and prints nothing else to stdout.
#[test]
fn every_command_speaks_json() {
    let bench = Bench::new();
    bench.write("rows.csv", "k,v\na,1\nb,2\n");
    bench.write("tree/file", "content");
    let put: &[&str] = &["put", "db", "z", "26"];
    let commands: &[&[&str]] = &[
        put,
        &["load", "db", "rows.csv", "--key", "k"],
        &["get", "db", "a"],
        &["scan", "db"],
        &["scan", "db", "--count"],
        &["count", "db"],
        &["dump", "db", "out.rows"],
        &["keyspaces", "db", "--count"],
        &["stats", "db"],
        &["check", "db"],
        &["checkpoint", "db"],
        &["compact", "db"],
        &["rm", "db", "z"],
        &["index", "indexed", "tree"],
        &["du", "indexed"],
    ];
    for command in commands {
        let lines = parse(&bench.ok(&[command, &["--json"][..]].concat()));
        assert!(!lines.is_empty() && lines.iter().all(Value::is_object), "{command:?}: {lines:?}");
    }
}

/// With `--json`, an error is also an object, and the only line on stderr: its message, kind, exit code and hints.
#[test]
fn errors_are_json() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    let errors: [(&[&str], i32, &str); 5] = [
        (&["get", "db", "missing"], 3, "not_found"),
        (&["stats", "nowhere"], 3, "not_found"),
        (&["load", "db", "missing.csv"], 7, "bad_input"),
        (&["get", "db"], 2, "usage"),
        (&["list"], 2, "usage"),
    ];
    for (args, code, kind) in errors {
        let answer = bench.run(&[args, &["--json"]].concat());
        let lines = parse(&answer.stderr);
        assert_eq!((answer.code, lines.len()), (Some(code), 1), "{args:?}: {}", answer.stderr);
        assert_eq!((lines[0]["kind"].as_str(), lines[0]["exit_code"].as_i64()), (Some(kind), Some(code.into())));
        assert!(!lines[0]["error"].as_str().unwrap().is_empty() && lines[0]["hints"].is_array(), "{lines:?}");
    }
}

/// Bytes that are not UTF-8 are distinguished from text.
#[test]
fn bytes_are_base64() {
    let bench = Bench::new();
    bench.ok_with(&["put", "db", "--hex", "ff00"], b"\xfe");
    let lines = parse(&bench.ok(&["scan", "db", "--json"]));
    assert_eq!(lines[0]["key"]["base64"], "/wA=");
    assert_eq!(lines[0]["value"]["base64"], "/g==");
}

/// Every benchmark has the fields that scripts rely on.
#[test]
fn benches_keep_their_contract() {
    const FIELDS: [&str; 16] = [
        "name",
        "ops_per_second",
        "limit_per_second",
        "ratio_to_limit",
        "p50_us",
        "p99_us",
        "p999_us",
        "cpu_us_per_op",
        "device_reads_per_op",
        "device_read_bytes",
        "device_write_bytes",
        "budget_bytes",
        "resident_bytes_max",
        "data_bytes",
        "io_backend",
        "sync_method",
    ];
    let bench = Bench::new();
    for name in ["load", "get", "scan", "commit", "mixed"] {
        let options =
            ["--path", "bench", "--keys", "500", "--value-size", "100", "--threads", "2", "--memory", "64MiB"];
        let more = ["--distribution", "zipf", "--order", "sorted", "--read-percent", "50", "--durability", "full"];
        let args = [&["bench", name][..], &options, &more, &["--seconds", "0.05", "--json"]].concat();
        let lines = parse(&bench.ok(&args));
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["name"], name);
        for field in FIELDS {
            assert!(lines[0].get(field).is_some(), "{name} lacks {field}");
        }
        assert!(lines[0]["ops_per_second"].as_f64().unwrap() > 0.0);
        assert!(lines[0]["p50_us"].as_f64().unwrap() <= lines[0]["p999_us"].as_f64().unwrap());
    }
}
