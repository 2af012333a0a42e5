//! `drumlin log`: folders of logs are listed, read and checked, and no byte of them changes.

use std::fs;
use std::path::{Path, PathBuf};

use drumlin::logs::{Logs, LogsOptions};
use serde_json::Value;

use crate::support::Bench;

fn open(path: &Path) -> Logs {
    Logs::open(path, &LogsOptions::new().memory(8 << 20).segment_bytes(1 << 20)).unwrap()
}

/// Creates a folder with three logs. Log 7 has the entries 3 to 99, and a value.
fn create(bench: &Bench) -> PathBuf {
    let path = bench.path().join("logs");
    let logs = open(&path);
    let entries: Vec<String> = (0..100).map(|index| format!("entry {index} of seven\n")).collect();
    logs.log(7).append(0, &entries).unwrap().wait().unwrap();
    logs.log(7).purge_to(2).unwrap().wait().unwrap();
    logs.log(7).set("vote", "node 3").unwrap().wait().unwrap();
    logs.log(8).append(1000, &[&b"\x00\xff"[..]]).unwrap().wait().unwrap();
    logs.log(u64::MAX).set("empty", "").unwrap().wait().unwrap();
    logs.close().unwrap();
    path
}

fn contents(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Logs are listed with their bounds, sizes and values, and entries are read by index. The folder stays as it was.
#[test]
fn logs_are_listed_and_read() {
    let bench = Bench::new();
    let path = create(&bench);
    let before = contents(&path);
    let listed = lines(&bench.ok(&["log", "ls", "logs", "--json"]));
    assert_eq!(listed.len(), 3);
    let first = &listed[0];
    assert_eq!((&first["log"], &first["first"], &first["last"]), (&7.into(), &3.into(), &99.into()));
    assert_eq!((&first["entries"], &first["purged"]), (&97.into(), &2.into()));
    assert_eq!(first["values"], serde_json::json!([{ "name": "vote", "bytes": 6 }]));
    assert!(first["bytes"].as_u64().unwrap() > 97 * 17, "{first}");
    assert_eq!((&listed[2]["log"], &listed[2]["first"]), (&u64::MAX.into(), &Value::Null));
    let text = bench.ok(&["log", "ls", "logs"]);
    assert!(text.lines().count() == 4 && text.contains("vote"), "{text}");

    let read = bench.ok(&["log", "read", "logs", "7", "--from", "98"]);
    assert_eq!(read, "98\tentry 98 of seven\\n\n99\tentry 99 of seven\\n\n");
    assert_eq!(bench.ok(&["log", "read", "logs", "7", "--from", "5", "--to", "6"]), "5\tentry 5 of seven\\n\n");
    assert_eq!(bench.ok(&["log", "read", "logs", "7"]).lines().count(), 97);
    let read = lines(&bench.ok(&["log", "read", "logs", "8", "--json"]));
    assert_eq!(read, [serde_json::json!({ "index": 1000, "value": { "base64": "AP8=" } })]);
    assert_eq!(bench.ok(&["log", "read", "logs", "18446744073709551615"]), "");
    assert!(bench.fails(3, &["log", "read", "logs", "9"]).contains("drumlin log ls"));
    assert!(bench.fails(3, &["log", "read", "logs", "7", "--from", "1"]).contains("begin at 3"));

    let report = &lines(&bench.ok(&["log", "check", "logs", "--json"]))[0];
    assert_eq!((&report["sound"], &report["logs"], &report["entries"]), (&true.into(), &3.into(), &98.into()));
    assert!(bench.ok(&["log", "check", "logs"]).starts_with("sound: 98 entries"));
    assert!(before == contents(&path), "a command that reads has written");
}

/// Every damaged entry is named with its log, index, file and offset. The others are read, and nothing is changed.
#[test]
fn damaged_entries_are_named() {
    let bench = Bench::new();
    let path = create(&bench);
    for damaged in ["entry 20 of seven", "entry 33 of seven", "\x00\u{ff}"] {
        let wanted: Vec<u8> = damaged.chars().map(|char| char as u8).collect();
        for (file, mut bytes) in contents(&path) {
            // The last log's entry has the header of an entry of two bytes before it.
            let found = bytes.windows(wanted.len()).enumerate().position(|(at, window)| {
                window == wanted && (wanted.len() > 2 || at > 8 && bytes[at - 8..at] == [2, 0, 0, 0, 0, 0, 0, 0])
            });
            if let Some(at) = found.filter(|_| file.extension().is_some_and(|extension| extension == "seg")) {
                bytes[at] ^= 4;
                fs::write(file, bytes).unwrap();
            }
        }
    }
    let before = contents(&path);
    let answer = bench.run(&["log", "check", "logs", "--json"]);
    assert_eq!(answer.code, Some(4), "{}", answer.stderr);
    let report: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let named: Vec<(u64, u64)> = report["corruption"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| {
            assert!(found["file"].as_str().unwrap().ends_with(".seg"), "{found}");
            assert!(found["what"].as_str().unwrap().contains("at offset "), "{found}");
            (found["log"].as_u64().unwrap(), found["index"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(named, [(7, 20), (7, 33), (8, 1000)]);
    assert_eq!((&report["sound"], &report["opens"], &report["entries"]), (&false.into(), &true.into(), &98.into()));
    let answer = bench.run(&["log", "check", "logs"]);
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(text.starts_with("damaged: ") && text.contains("entry 33 of log 7 at offset "), "{text}");
    let refused = bench.fails(4, &["log", "read", "logs", "7"]);
    assert!(refused.contains("entry 20 of log 7") && refused.contains("drumlin log check logs"), "{refused}");
    assert_eq!(bench.ok(&["log", "read", "logs", "7", "--from", "34"]).lines().count(), 66);
    assert!(before == contents(&path), "a check has changed a file");
}

/// A folder that can't be opened is reported as damaged, and left as it is.
#[test]
fn a_lost_segment_is_reported() {
    let bench = Bench::new();
    let path = create(&bench);
    let segment = contents(&path).into_iter().find(|(file, bytes)| {
        file.extension().is_some_and(|extension| extension == "seg") && bytes.windows(5).any(|five| five == b"entry")
    });
    fs::remove_file(segment.unwrap().0).unwrap();
    let before = contents(&path);
    let answer = bench.run(&["log", "check", "logs", "--json"]);
    assert_eq!(answer.code, Some(4), "{}", answer.stderr);
    let report: Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!((&report["opens"], &report["corruption"][0]["log"]), (&false.into(), &Value::Null));
    assert!(bench.fails(4, &["log", "ls", "logs"]).contains("drumlin log check logs"));
    assert!(before == contents(&path), "a check has changed a file");
}

/// Commands for logs refuse databases, and commands for databases refuse folders of logs. A missing folder is not
/// created.
#[test]
fn commands_refuse_other_folders() {
    let bench = Bench::new();
    create(&bench);
    bench.ok(&["put", "db", "a", "1"]);
    for command in [&["log", "ls", "db"][..], &["log", "read", "db", "1"], &["log", "check", "db"]] {
        let refused = bench.fails(8, command);
        assert!(refused.contains("is a database") && refused.contains("drumlin check db"), "{refused}");
    }
    for command in [&["get", "logs", "a"][..], &["put", "logs", "a", "1"], &["check", "logs"], &["stats", "logs"]] {
        let refused = bench.fails(8, command);
        assert!(refused.contains("is a folder of logs") && refused.contains("drumlin log ls logs"), "{refused}");
    }
    assert!(bench.fails(3, &["log", "ls", "none"]).contains("there is no folder of logs at none"));
    assert!(!bench.path().join("none").exists());
    fs::create_dir(bench.path().join("empty")).unwrap();
    bench.write("file", "text");
    assert!(bench.fails(8, &["log", "ls", "empty"]).contains("is not a folder of logs"));
    assert!(bench.fails(8, &["log", "check", "file"]).contains("is a file"));
    assert_eq!(fs::read_dir(bench.path().join("empty")).unwrap().count(), 0);
}

/// A folder that a program has open is refused with code 5, and the message names the program. One that was not closed
/// is read as its next opening would find it.
#[test]
fn a_folder_in_use_is_refused() {
    let bench = Bench::new();
    let path = create(&bench);
    let logs = open(&path);
    logs.log(8).append(1001, &["not closed"]).unwrap().wait().unwrap();
    let refused = bench.fails(5, &["log", "ls", "logs"]);
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    let copy = bench.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for (file, bytes) in contents(&path) {
        fs::write(copy.join(file.file_name().unwrap()), bytes).unwrap();
    }
    drop(logs);
    let before = contents(&copy);
    assert_eq!(bench.ok(&["log", "read", "copy", "8", "--from", "1001"]), "1001\tnot closed\n");
    assert!(before == contents(&copy), "a killed folder was changed");
}

/// `bench log` measures durable appends beside the device, and counts the syncs.
#[test]
fn appends_are_measured() {
    let bench = Bench::new();
    let args = ["bench", "log", "--path", "logs", "--logs", "20", "--threads", "4", "--entry-size", "100", "--seconds"];
    let args: Vec<&str> = args.into_iter().chain(["0.3", "--json"]).collect();
    let report: Value = serde_json::from_str(&bench.ok(&args)).unwrap();
    let number = |name: &str| report[name].as_f64().unwrap();
    assert!(number("ops_per_second") > 0.0 && number("limit_per_second") > 0.0, "{report}");
    assert!(number("syncs_per_op") > 0.0 && number("syncs_per_op") <= 1.5, "{report}");
    assert_eq!((&report["name"], &report["logs"], &report["entry_size"]), (&"log".into(), &20.into(), &100.into()));
    let listed = lines(&bench.ok(&["log", "ls", "logs", "--json"]));
    assert_eq!(listed.len(), 20);
    assert!(bench.ok(&["log", "check", "logs"]).starts_with("sound"));
}
