//! The public documentation has an example for every type, and handles are printed as one line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use drumlin::{Config, Isolation, TxOptions};

/// Collects the documentation of every public item of the sources, by name.
fn documented(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            documented(&path, found);
            continue;
        }
        let mut docs = String::new();
        for line in fs::read_to_string(&path).unwrap().lines().map(str::trim_start) {
            if let Some(text) = line.strip_prefix("///") {
                docs.push_str(text);
                docs.push('\n');
                continue;
            }
            // Attributes, including those of several lines, are between the documentation and the item.
            let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
            let name = kinds.iter().find_map(|kind| line.strip_prefix(kind));
            let number = || line.strip_suffix("(u64)").or_else(|| line.strip_suffix("(u32)"));
            let name = name.or_else(|| number().filter(|_| !docs.is_empty()));
            if let Some(name) = name {
                let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                found.entry(name.to_owned()).or_default().push_str(&docs);
            }
            let is_attribute =
                line.starts_with('#') || line.contains(" = \"") || line.ends_with(',') || line.starts_with(")]");
            if !is_attribute {
                docs.clear();
            }
        }
    }
}

/// Each type that `lib.rs` exports has an example in its own documentation.
#[test]
fn every_public_type_has_an_example() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../drumlin/src");
    let root = fs::read_to_string(sources.join("lib.rs")).unwrap();
    let exports = root.split("\npub use ").skip(1).map(|rest| rest.split(';').next().unwrap());
    let names = exports.flat_map(|export| export.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let names: Vec<&str> = names.filter(|name| name.starts_with(char::is_uppercase)).collect();
    assert!(names.len() > 30, "the exports are somewhere else");
    let mut docs = BTreeMap::new();
    documented(&sources, &mut docs);
    documented(&sources.join("../../drumlin-io/src"), &mut docs);
    let has_example = |name: &&str| docs.get(*name).is_some_and(|docs| docs.contains("```\n"));
    let missing: Vec<_> = names.iter().filter(|name| !has_example(name)).collect();
    assert!(missing.is_empty(), "without an example: {missing:?}");
}

/// Handles are printed as one short line, which names the database or keyspace that they belong to and shows no rows.
#[test]
fn handles_print_as_a_line() {
    let db = Config::in_memory().memory(16 << 20).open("").unwrap();
    let k = db.keyspace(&"name ".repeat(51)).unwrap();
    let key = vec![b'k'; 1024];
    k.insert(&key, vec![7; 300_000]).unwrap();
    let mut tx = db.begin_with(TxOptions { isolation: Isolation::Serializable, ..db.tx_options() }).unwrap();
    for row in 0..1000u32 {
        tx.insert(&k, row.to_be_bytes(), [7; 100]).unwrap();
    }
    let savepoint = tx.savepoint();
    let mut batch = db.batch().unwrap();
    batch.insert(&k, "a", "1").unwrap();
    let other = Config::in_memory().open("").unwrap();
    let range = k.range(&key..=&key);
    let all = [
        ("Database", format!("{db:?}")),
        ("Keyspace", format!("{k:?}")),
        ("Transaction", format!("{tx:?}")),
        ("Reader", format!("{:?}", &*tx)),
        ("Snapshot", format!("{:?}", db.snapshot())),
        ("Savepoint", format!("{savepoint:?}")),
        ("Batch", format!("{batch:?}")),
        ("Range", format!("{range:?}")),
        ("Range", format!("{:?}", other.snapshot().iter(&k))),
        ("Keys of Range", format!("{:?}", k.keys())),
        ("Values of Range", format!("{:?}", k.values())),
        ("ValueReader", format!("{:?}", k.read(&key).unwrap().unwrap())),
        ("RowStream", format!("{:?}", k.iter().into_stream())),
    ];
    for (kind, line) in all {
        assert!(line.starts_with(kind) && line.chars().count() < 350 && !line.contains('\n'), "{kind}: {line}");
        let limit = if kind.contains("Range") || kind == "Keyspace" { 350 } else { 200 };
        assert!(line.chars().count() < limit, "{kind}: {line}");
    }
    assert!(format!("{db:?}").contains("/memory"), "{db:?}");
    assert!(format!("{tx:?}").contains("1000 rows"), "{tx:?}");
}
