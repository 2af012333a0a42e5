//! Databases that earlier builds have written can be opened. The folder `tests/fixtures` has two databases of each
//! format: one that was closed, and one whose process was killed. With `DRUMLIN_TEST_BLESS=1` those of the newest
//! format are written again, which is allowed only until that format is released.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use drumlin::{Database, Durability, KeyspaceOptions};

use crate::support::{Folder, copy_folder, small};

/// The formats of which the repository has databases.
const FORMATS: [u32; 1] = [3];
/// The newest format.
const NEWEST: u32 = FORMATS[FORMATS.len() - 1];
/// The number of bytes of a block of a file. A fixture leaves out blocks of zeros.
const BLOCK_BYTES: usize = 512;

fn fixture(format: u32, state: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../drumlin/tests/fixtures/format-{format}-{state}"))
}

fn files_below(folder: &Path, name: &str, found: &mut BTreeMap<String, PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{name}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            files_below(&path, &format!("{name}/"), found);
        } else {
            found.insert(name, path);
        }
    }
}

/// Packs the files of a folder: name, length, and the blocks that are not zero with their numbers.
fn pack(folder: &Path) -> Vec<u8> {
    let mut files = BTreeMap::new();
    files_below(folder, "", &mut files);
    let mut packed = Vec::new();
    for (name, path) in files {
        let bytes = std::fs::read(path).unwrap();
        let blocks: Vec<(usize, &[u8])> = bytes.chunks(BLOCK_BYTES).enumerate().collect();
        let used: Vec<_> = blocks.into_iter().filter(|(_, block)| block.iter().any(|byte| *byte != 0)).collect();
        packed.extend((name.len() as u32).to_le_bytes());
        packed.extend(name.as_bytes());
        packed.extend((bytes.len() as u64).to_le_bytes());
        packed.extend((used.len() as u32).to_le_bytes());
        for (number, block) in used {
            packed.extend((number as u32).to_le_bytes());
            packed.extend(block);
            packed.resize(packed.len() + BLOCK_BYTES - block.len(), 0);
        }
    }
    packed
}

fn unpack(mut packed: &[u8], folder: &Path) {
    let mut take = |count: usize| {
        let (taken, rest) = packed.split_at(count);
        packed = rest;
        (taken.to_vec(), rest.is_empty())
    };
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
    loop {
        let name_bytes = number(&take(4).0);
        let name = String::from_utf8(take(name_bytes).0).unwrap();
        let length = u64::from_le_bytes(take(8).0.try_into().unwrap());
        let (count, mut is_last) = take(4);
        let mut bytes = vec![0; (length as usize).next_multiple_of(BLOCK_BYTES)];
        for _ in 0..number(&count) {
            let at = number(&take(4).0) * BLOCK_BYTES;
            let (block, ends) = take(BLOCK_BYTES);
            bytes[at..at + BLOCK_BYTES].copy_from_slice(&block);
            is_last = ends;
        }
        bytes.truncate(length as usize);
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        if is_last {
            return;
        }
    }
}

fn value(row: u64) -> Vec<u8> {
    // It compresses well, which keeps the fixtures small.
    vec![row as u8; if row < 1000 { row % 90 } else { 9000 * (row - 999) * (row - 999) } as usize]
}

/// Makes a database with everything that a database can have. Returns it open, with commits that no checkpoint has.
fn make(folder: &Path) -> Database {
    let db = small().open(folder).unwrap();
    let rows = db.keyspace_with("rows", KeyspaceOptions::new().page_bytes(4096)).unwrap();
    for row in 0..400u64 {
        rows.insert_with(row.to_be_bytes(), value(row), Durability::Relaxed).unwrap();
    }
    rows.insert("medium", value(1000)).unwrap();
    rows.insert("large", value(1002)).unwrap();
    db.keyspace("empty").unwrap();
    db.keep_snapshot("kept").unwrap();
    rows.insert(0u64.to_be_bytes(), "changed").unwrap();
    let mut tx = db.begin().unwrap();
    tx.insert(&rows, "prepared", "value").unwrap();
    tx.prepare("an id").unwrap();
    let snapshot = db.snapshot();
    let mut load = db.bulk_load("rows").unwrap();
    (500..600u64).for_each(|row| load.insert(row.to_be_bytes(), value(row)).unwrap());
    load.finish().unwrap();
    rows.remove_range(300u64.to_be_bytes()..320u64.to_be_bytes()).unwrap();
    db.checkpoint().unwrap();
    db.clone_keyspace("rows", "clone").unwrap();
    db.existing_keyspace("clone").unwrap().insert(1u64.to_be_bytes(), "of the clone").unwrap();
    drop(snapshot);
    rows.insert("after the checkpoint", "value").unwrap();
    db.alter().create("second", KeyspaceOptions::new()).commit().unwrap();
    db.keyspace("second").unwrap().insert("a", "b").unwrap();
    db
}

fn check(folder: &Path, place: &str) {
    let db = small().open(folder).unwrap_or_else(|error| panic!("{place}: {error}"));
    let rows = db.existing_keyspace("rows").unwrap();
    for row in (1..300).chain(320..400).chain(500..600u64) {
        assert_eq!(rows.get(row.to_be_bytes()).unwrap().as_deref(), Some(&value(row)[..]), "{place}: row {row}");
    }
    assert_eq!(rows.get(0u64.to_be_bytes()).unwrap().unwrap(), "changed", "{place}");
    assert_eq!(rows.get("large").unwrap().unwrap(), value(1002), "{place}");
    assert_eq!(rows.get("medium").unwrap().unwrap(), value(1000), "{place}");
    assert_eq!(rows.get("after the checkpoint").unwrap().unwrap(), "value", "{place}");
    assert_eq!(rows.len().unwrap(), 483, "{place}");
    let clone = db.existing_keyspace("clone").unwrap();
    assert_eq!(clone.get(1u64.to_be_bytes()).unwrap().unwrap(), "of the clone", "{place}");
    assert_eq!(clone.get("large").unwrap().unwrap(), value(1002), "{place}");
    assert_eq!(clone.len().unwrap(), 482, "{place}");
    assert_eq!(db.existing_keyspace("second").unwrap().get("a").unwrap().unwrap(), "b", "{place}");
    assert!(db.existing_keyspace("empty").unwrap().is_empty().unwrap(), "{place}");
    let kept = db.open_snapshot("kept").unwrap();
    assert_eq!(kept.get(&rows, 0u64.to_be_bytes()).unwrap().unwrap(), value(0), "{place}");
    assert_eq!(kept.len(&rows).unwrap(), 402, "{place}");
    db.commit_prepared("an id").unwrap();
    assert_eq!(rows.get("prepared").unwrap().unwrap(), "value", "{place}");
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{place}: {report:#?}");
    db.close().unwrap();
}

/// Databases of all formats are opened, and have the rows that were put into them.
#[test]
fn databases_of_all_formats_open() {
    if std::env::var_os("DRUMLIN_TEST_BLESS").is_some() {
        let folder = Folder::new();
        let db = make(&folder.path());
        let copy = folder.path().with_file_name("copy");
        copy_folder(&folder.path(), &copy);
        std::fs::create_dir_all(fixture(NEWEST, "").parent().unwrap()).unwrap();
        std::fs::write(fixture(NEWEST, "killed"), pack(&copy)).unwrap();
        db.close().unwrap();
        std::fs::write(fixture(NEWEST, "closed"), pack(&folder.path())).unwrap();
    }
    let mut bytes = 0;
    for format in FORMATS {
        for state in ["closed", "killed"] {
            let packed = std::fs::read(fixture(format, state)).unwrap();
            bytes += packed.len();
            let folder = Folder::new();
            unpack(&packed, &folder.path());
            check(&folder.path(), &format!("format {format}, {state}"));
        }
        assert!(bytes < 200_000, "the databases up to format {format} have {bytes} bytes");
    }
}
