//! `drumlin repair`: saves what is left of damaged databases. `check`, `dump --skip-damage` and `repair` find the same
//! number of rows.

use std::fs;
use std::path::Path;

use drumlin::{Config, Durability, KeyspaceOptions};
use serde_json::Value;

use crate::support::{Answer, Bench};

fn json(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"))
}

/// Runs `check`, `dump --skip-damage` and `repair` on the database `db`. They must find the same number of rows, which
/// is returned together with the report of `repair`. The damaged database stays as it is.
fn saved_rows(bench: &Bench) -> (u64, Value) {
    let contents = || {
        let log = fs::read_dir(bench.path().join("db/log")).into_iter().flatten();
        let files = fs::read_dir(bench.path().join("db")).unwrap().chain(log).flatten();
        // Ignore the file `lock`, which names the process that opens the database.
        let files = files.filter(|item| item.file_name() != "lock");
        let mut files: Vec<_> = files.map(|item| (item.path(), fs::read(item.path()).ok())).collect();
        files.sort();
        files
    };
    let before = contents();
    let check = bench.run(&["check", "db", "--json"]);
    assert_eq!(check.code, Some(4), "{check:?}");
    let dump = bench.run(&["dump", "db", "all.rows", "--all", "--skip-damage", "--force", "--json"]);
    assert_eq!(dump.code, Some(4), "{dump:?}");
    let dry = bench.run(&["repair", "db", "--dry-run", "--json"]);
    assert_eq!(dry.code, Some(4), "{dry:?}");
    let repair = bench.run(&["repair", "db", "saved", "--json"]);
    assert_eq!(repair.code, Some(4), "{repair:?}");
    let report = json(&repair);
    let rows = report["rows"].as_u64().unwrap();
    let others = [&json(&check)["saved_rows"], &json(&dump)["rows"], &json(&dry)["rows"]];
    assert!(others.iter().all(|other| **other == rows), "{rows} rows, and {others:?}");
    assert!(contents() == before, "a file was changed");
    assert_eq!(
        fs::read_dir(bench.path())
            .unwrap()
            .filter(|item| { item.as_ref().unwrap().file_name().to_string_lossy().contains("scratch") })
            .count(),
        0
    );
    assert_eq!(json(&bench.run(&["check", "saved", "--json"]))["sound"], true);
    let counted: u64 = keyspaces(bench, "saved").iter().map(|line| line["rows"].as_u64().unwrap()).sum();
    assert_eq!(counted, rows);
    (rows, report)
}

fn keyspaces(bench: &Bench, database: &str) -> Vec<Value> {
    let lines = bench.ok(&["keyspaces", database, "--count", "--json"]);
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn rows(count: usize) -> String {
    let mut text = String::from("k\tv\n");
    (0..count).for_each(|row| text += &format!("{row:08}\tvalue {row} {}\n", row * 7919));
    text
}

fn zero_superblocks(database: &Path) {
    let data = fs::File::options().write(true).open(database.join("data")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&data, &[0; 64 << 10], 0).unwrap();
}

/// Of a data file that was cut to half, half of the rows are saved, and the report names the keys that are lost.
#[test]
fn half_a_data_file_has_half_of_the_rows() {
    let bench = Bench::new();
    bench.ok_with(&["load", "db", "-", "--format", "tsv", "--key", "k"], rows(300_000).as_bytes());
    let data = bench.path().join("db/data");
    let bytes = fs::read(&data).unwrap();
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    fs::write(&data, &bytes[..used / 2]).unwrap();
    let (saved, report) = saved_rows(&bench);
    assert!((140_000..160_000).contains(&saved), "{saved} rows");
    let lost = report["keyspaces"][0]["lost"].as_array().unwrap();
    assert!(!lost.is_empty());
    assert_eq!(
        bench.ok(&["count", "saved", "-k", report["keyspaces"][0]["name"].as_str().unwrap()]).trim(),
        saved.to_string()
    );
    let text = String::from_utf8(bench.run(&["repair", "db", "--dry-run"]).stdout).unwrap();
    assert!(text.contains("can be saved") && text.contains("lost: the rows of keyspace"), "{text}");
    let text = String::from_utf8(bench.run(&["check", "db"]).stdout).unwrap();
    assert!(text.contains("drumlin repair db SAVED"), "{text}");
}

/// Without superblocks, everything else is saved, with names and settings.
#[test]
fn lost_superblocks_cost_no_row() {
    let bench = Bench::new();
    bench.ok_with(&["load", "db", "-", "--format", "tsv", "--key", "k"], rows(5000).as_bytes());
    bench.ok(&["put", "db", "a", "1", "-k", "other"]);
    let before = keyspaces(&bench, "db");
    zero_superblocks(&bench.path().join("db"));
    assert_eq!(saved_rows(&bench).0, 5001);
    let after = keyspaces(&bench, "saved");
    for (before, after) in before.iter().zip(&after) {
        assert_eq!([&before["name"], &before["rows"]], [&after["name"], &after["rows"]]);
    }
    assert_eq!(bench.ok(&["get", "saved", "a", "-k", "other"]).trim(), "1");
}

/// The commits before a damaged log record are saved, although the database has no checkpoint.
#[test]
fn the_sound_prefix_of_a_log_is_saved() {
    let bench = Bench::new();
    let made = bench.path().join("made");
    let db = Config::new().open(&made).unwrap();
    let keyspace = db.keyspace_with("rows", KeyspaceOptions::new().page_bytes(8192)).unwrap();
    (0..20u8).for_each(|number| keyspace.insert([number], vec![number; 6000]).unwrap());
    // Copy the files as a kill would leave them.
    fs::create_dir_all(bench.path().join("db/log")).unwrap();
    let mut segment = None;
    for folder in ["", "log"] {
        for entry in fs::read_dir(made.join(folder)).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                let copy = bench.path().join("db").join(folder).join(entry.file_name());
                fs::copy(entry.path(), &copy).unwrap();
                segment = Some(copy).filter(|copy| copy.ends_with("0-1.seg") || copy.ends_with("0-0.seg")).or(segment);
            }
        }
    }
    drop((keyspace, db));
    let segment = segment.expect("a log segment");
    let mut bytes = fs::read(&segment).unwrap();
    let record = bytes.windows(6000).position(|bytes| bytes == [10; 6000]).unwrap();
    bytes[record + 100] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let (saved, report) = saved_rows(&bench);
    assert_eq!((saved, &report["log_records"]), (10, &11.into()));
    assert_eq!(keyspaces(&bench, "saved")[0]["page_bytes"], 8192);
}

/// A repair needs a new folder, and names it otherwise.
#[test]
fn a_repair_needs_a_new_folder() {
    let bench = Bench::new();
    bench.ok(&["put", "db", "a", "1"]);
    bench.write("full/file", "x");
    assert!(bench.fails(1, &["repair", "db", "full"]).contains("not an empty folder"));
    assert!(bench.fails(1, &["repair", "db", "db"]).contains("not an empty folder"));
    assert_eq!(bench.run(&["repair", "db"]).code, Some(2));
    assert_eq!(bench.run(&["repair", "nothing", "saved"]).code, Some(3));
    assert!(bench.ok(&["repair", "db", "saved"]).contains("saved 1 row of 1 keyspace"));
    assert_eq!(bench.ok(&["get", "saved", "a"]).trim(), "1");
}

/// `dump --all` and `load --all` carry all keyspaces with their page sizes and rows, large values included.
#[test]
fn all_keyspaces_are_dumped_and_loaded() {
    let bench = Bench::new();
    let db = Config::new().open(bench.path().join("db")).unwrap();
    for (name, page_bytes) in [("one", 4096), ("wide \u{fc}", 16384), ("empty", 8192)] {
        let keyspace = db.keyspace_with(name, KeyspaceOptions::new().page_bytes(page_bytes)).unwrap();
        for number in (0..2000u32).filter(|_| name != "empty") {
            let value = [name.as_bytes(), &number.to_be_bytes()].concat();
            keyspace.insert_with(number.to_be_bytes(), value, Durability::Relaxed).unwrap();
        }
    }
    db.keyspace("one").unwrap().insert("large", vec![7; 3 << 20]).unwrap();
    db.close().unwrap();
    bench.ok(&["dump", "db", "all.rows", "--all"]);
    assert!(bench.ok(&["load", "copy", "all.rows", "--all"]).contains("4,001 rows of 3 keyspaces"));
    let settings = |database| -> Vec<(Value, Value, Value)> {
        let line = |line: &Value| (line["name"].clone(), line["rows"].clone(), line["page_bytes"].clone());
        keyspaces(&bench, database).iter().map(line).collect()
    };
    assert_eq!(settings("copy"), settings("db"));
    let [db, copy] = ["db", "copy"].map(|name| Config::new().open(bench.path().join(name)).unwrap());
    for info in db.keyspaces() {
        let [one, other] = [&db, &copy].map(|db| db.existing_keyspace(&info.name).unwrap());
        assert!(one.iter().map(Result::unwrap).eq(other.iter().map(Result::unwrap)), "{}", info.name);
    }
    drop((db, copy));
    assert!(bench.fails(7, &["load", "copy", "all.rows"]).contains("--all"));
    bench.ok(&["dump", "db", "one.rows", "-k", "one"]);
    assert!(bench.fails(7, &["load", "copy", "one.rows", "--all"]).contains("without --all"));
    assert_eq!(bench.run(&["dump", "db", "all.csv", "--all"]).code, Some(2));
    assert_eq!(bench.run(&["dump", "db", "all.rows", "--all", "-k", "one", "--force"]).code, Some(2));
    // Any damage of the file is noticed.
    let mut bytes = fs::read(bench.path().join("all.rows")).unwrap();
    bytes[20] ^= 1;
    bench.write("damaged.rows", &bytes);
    bench.fails(7, &["load", "third", "damaged.rows", "--all"]);
}
