//! Kept snapshots: they show the same rows for as long as they are kept, whatever happens to the database, and give
//! their space back when they are dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use drumlin::{Config, Database, Durability, Error, KeptSnapshot, Keyspace, LockMode};
use drumlin_io::testing::fault::FaultyBackend;
use drumlin_io::testing::sim::{Disk, Medium};

use crate::old_versions::wait_until;
use crate::runs::{compare, config, end_life, key, load, some_rows};
use crate::support::{self, Folder, Model, Random, number, small};

/// The rows of each kept snapshot.
type Kept = BTreeMap<String, Model>;

/// Compares one of the kept snapshots with its model.
fn compare_kept(db: &Database, keyspace: &Keyspace, kept: &Kept, random: &mut Random, place: &str) {
    let names: Vec<String> = db.kept_snapshots().into_iter().map(|info| info.name).collect();
    assert!(names.iter().eq(kept.keys()), "{place}: {names:?} are kept");
    let Some((name, rows)) = kept.iter().nth(random.below(kept.len().max(1) as u64) as usize) else { return };
    let place = format!("{place}, snapshot {name}");
    let snapshot = db.open_snapshot(name).unwrap_or_else(|error| panic!("{place}: {error}"));
    compare(&snapshot, keyspace, rows, random, &place);
    compare(&snapshot, &snapshot.keyspace("k").unwrap(), rows, random, &place);
}

/// Keeps and drops snapshots among commits, loads, range deletes, compactions, reopenings and power cuts.
#[test]
fn kept_snapshots_show_what_was_there() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 10) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let mut db = config(&disk).open("/db").unwrap();
        let mut keyspace = db.keyspace("k").unwrap();
        let (mut rows, mut kept) = (Model::new(), Kept::new());
        let mut open: Vec<(KeptSnapshot, Model)> = Vec::new();
        for step in 0..80 {
            let place = format!("seed {seed}, step {step}");
            match random.below(14) {
                0 => {
                    let loaded = some_rows(&mut random, 1000, 400);
                    load(&db, "k", &loaded).unwrap_or_else(|error| panic!("{place}: {error}"));
                    rows.extend(loaded);
                }
                1 => {
                    let [lower, upper] = [0; 2].map(|_| key(random.below(1000)));
                    if lower < upper {
                        keyspace.remove_range(lower.clone()..upper.clone()).unwrap();
                        rows.retain(|key, _| *key < lower || *key >= upper);
                    }
                }
                2..6 => {
                    for (key, value) in some_rows(&mut random, 1000, 200) {
                        if random.one_in(4) {
                            keyspace.remove(&key).unwrap();
                            rows.remove(&key);
                        } else {
                            keyspace.insert_with(&key, &value, Durability::Relaxed).unwrap();
                            rows.insert(key, value);
                        }
                    }
                    db.sync().unwrap();
                }
                6..8 => {
                    let name = format!("{}", random.below(5));
                    match db.keep_snapshot(&name) {
                        Ok(_) => assert!(kept.insert(name, rows.clone()).is_none(), "{place}: kept twice"),
                        Err(Error::SnapshotExists { .. }) => assert!(kept.contains_key(&name), "{place}"),
                        Err(error) => panic!("{place}: {error}"),
                    }
                }
                8 => {
                    let name = format!("{}", random.below(5));
                    match db.drop_snapshot(&name) {
                        Ok(()) => assert!(kept.remove(&name).is_some(), "{place}: dropped twice"),
                        Err(Error::NoSuchSnapshot { .. }) => assert!(!kept.contains_key(&name), "{place}"),
                        Err(error) => panic!("{place}: {error}"),
                    }
                }
                9 if open.len() < 3 => {
                    if let Some((name, rows)) = kept.iter().next() {
                        open.push((db.open_snapshot(name).unwrap(), rows.clone()));
                    }
                }
                10 => open.clear(),
                11 => drop(db.checkpoint().unwrap()),
                12 => drop(db.compact().unwrap()),
                _ => {
                    open.clear();
                    disk = end_life(&disk, (db, keyspace), random.one_in(2), &mut random, seed);
                    db = config(&disk).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
                    keyspace = db.keyspace("k").unwrap();
                }
            }
            if random.one_in(8) {
                compare(&db.snapshot(), &keyspace, &rows, &mut random, &place);
                let report = db.check().unwrap();
                assert!(report.corruption.is_empty(), "{place}: {report:#?}");
            }
            if random.one_in(3) {
                compare_kept(&db, &keyspace, &kept, &mut random, &place);
            }
            if let Some((snapshot, rows)) = open.get(random.below(6) as usize) {
                compare(snapshot, &keyspace, rows, &mut random, &format!("{place}, open {snapshot:?}"));
            }
        }
        open.clear();
        compare(&db.snapshot(), &keyspace, &rows, &mut random, "the end");
        for name in kept.keys() {
            db.drop_snapshot(name).unwrap();
        }
        // A thread that reads ahead may still hold a tree of a snapshot, whose segments the next checkpoint unpins.
        let is_short = (0..1000).any(|_| {
            db.compact().unwrap();
            let stats = db.stats();
            stats.data_file_bytes <= 2 * stats.live_bytes + (4 << 20) && stats.kept_snapshot_bytes == 0
        });
        assert!(is_short, "seed {seed}: {:?}", db.stats());
        compare(&db.snapshot(), &keyspace, &rows, &mut random, "after all snapshots were dropped");
    }
}

pub(crate) fn filled(config: &Config, path: impl AsRef<std::path::Path>, row_count: u64) -> (Database, Keyspace) {
    let db = config.open(path).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    write(&keyspace, 0..row_count, 1);
    (db, keyspace)
}

pub(crate) fn write(keyspace: &Keyspace, rows: impl IntoIterator<Item = u64>, round: u64) {
    for row in rows {
        keyspace.insert_with(row.to_be_bytes(), value(row, round), Durability::Relaxed).unwrap();
    }
}

/// Returns a value that does not compress.
pub(crate) fn value(row: u64, round: u64) -> Vec<u8> {
    Random(row << 8 | round).bytes(200)
}

fn assert_round(reader: &drumlin::Reader, keyspace: &Keyspace, row_count: u64, round: u64) {
    let mut expected = 0u64;
    for row in reader.iter(keyspace) {
        let (key, found) = row.unwrap();
        assert_eq!(key, expected.to_be_bytes(), "round {round}");
        assert!(found == value(expected, round), "round {round}: row {expected}");
        expected += 1;
    }
    assert_eq!(expected, row_count);
    assert_eq!(reader.count(keyspace, ..).unwrap(), row_count);
}

/// A snapshot that is dropped while it is open stays readable, although its segments are due for reuse. Its space is
/// free at the first checkpoint after the last reader is gone. Its tables take memory only while it is open.
#[test]
fn a_dropped_snapshot_lasts_until_its_readers_are_gone() {
    const ROWS: u64 = 20_000;
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), ROWS);
    db.keep_snapshot("a").unwrap();
    let table_bytes = db.stats().table_bytes;
    let snapshot = db.open_snapshot("a").unwrap();
    let rows = snapshot.iter(&keyspace);
    assert!(db.stats().table_bytes > table_bytes + 8 * ROWS / 20, "the tables of the snapshot are not counted");
    db.drop_snapshot("a").unwrap();
    assert!(matches!(db.open_snapshot("a"), Err(Error::NoSuchSnapshot { name }) if name == "a"));
    for round in 2..6 {
        write(&keyspace, 0..ROWS, round);
        db.checkpoint().unwrap();
    }
    assert_round(&snapshot, &keyspace, ROWS, 1);
    assert_round(&db.snapshot(), &keyspace, ROWS, 5);
    let pinned_segments = db.stats().segments - db.stats().free_segments;
    let open_bytes = db.stats().table_bytes;
    drop(snapshot);
    assert_eq!(rows.count() as u64, ROWS, "a range does not keep its snapshot open");
    // A background thread may still be using them.
    wait_until("the tables of a closed snapshot are freed", || {
        open_bytes.saturating_sub(db.stats().table_bytes) > 8 * ROWS / 20
    });
    db.checkpoint().unwrap();
    db.compact().unwrap();
    let stats = db.stats();
    let used_segments = stats.segments - stats.free_segments;
    assert!(used_segments * 3 < pinned_segments * 2, "{used_segments} segments of {pinned_segments} are still in use");
    assert_round(&db.snapshot(), &keyspace, ROWS, 5);
}

/// Snapshots tell what dropping each of them gives back, and that is what it gives back.
#[test]
fn the_space_of_a_snapshot_is_what_dropping_it_frees() {
    const ROWS: u64 = 20_000;
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), ROWS);
    let used_bytes = || {
        let stats = db.stats();
        (stats.segments - stats.free_segments) * stats.segment_bytes
    };
    db.checkpoint().unwrap();
    let before_bytes = used_bytes();
    for (round, name) in [(2, "a"), (3, "b")] {
        db.keep_snapshot(name).unwrap();
        write(&keyspace, 0..ROWS, round);
        db.checkpoint().unwrap();
    }
    for name in ["a", "b"] {
        let bytes = db.kept_snapshots().into_iter().find(|info| info.name == name).unwrap().exclusive_bytes;
        assert!((before_bytes / 2..2 * before_bytes).contains(&bytes), "{name}: {bytes} of {before_bytes}");
        let kept_bytes = used_bytes();
        db.drop_snapshot(name).unwrap();
        db.checkpoint().unwrap();
        let freed_bytes = kept_bytes - used_bytes();
        assert!((bytes * 9 / 10..bytes * 11 / 10).contains(&freed_bytes), "{name}: {freed_bytes} instead of {bytes}");
    }
    assert!(used_bytes() < before_bytes * 3 / 2, "{} bytes of {before_bytes}", used_bytes());
}

/// A rotation of snapshots needs a bounded amount of space, even if every segment has a few rows that never change.
#[test]
fn a_rotation_of_snapshots_does_not_grow() {
    const ROWS: u64 = 10_000;
    const KEPT: u64 = 3;
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), ROWS);
    db.checkpoint().unwrap();
    let first_bytes = db.stats().data_file_bytes;
    for round in 1..30 {
        db.keep_snapshot(&round.to_string()).unwrap();
        if round > KEPT {
            db.drop_snapshot(&(round - KEPT).to_string()).unwrap();
        }
        // In each round, a fifth of the rows get their last change.
        write(&keyspace, (0..ROWS).filter(|row| row % 25 >= round), round);
        db.checkpoint().unwrap();
    }
    let last_bytes = db.stats().data_file_bytes;
    assert!(last_bytes < 8 * first_bytes, "{last_bytes} bytes, {first_bytes} at the beginning");
    assert!(db.check().unwrap().corruption.is_empty());
}

/// Names are checked, and each error says what is wrong. Nothing changes after an error.
#[test]
fn names_of_snapshots_are_checked() {
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), 100);
    for name in ["", &"n".repeat(256)] {
        assert!(matches!(db.keep_snapshot(name), Err(Error::Invalid(why)) if why.contains("255 bytes")));
    }
    assert!(matches!(db.open_snapshot("none"), Err(Error::NoSuchSnapshot { name }) if name == "none"));
    assert!(matches!(db.drop_snapshot("none"), Err(Error::NoSuchSnapshot { .. })));
    let name = "n".repeat(255);
    let timestamp = db.keep_snapshot(&name).unwrap();
    assert!(matches!(db.keep_snapshot(&name), Err(Error::SnapshotExists { .. })));
    keyspace.insert("later", "").unwrap();
    db.close().unwrap();
    let db = small().read_only(true).open(folder.path()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    assert!(matches!(db.keep_snapshot("another"), Err(Error::ReadOnly { .. })));
    assert!(matches!(db.drop_snapshot(&name), Err(Error::ReadOnly { .. })));
    let [info] = &db.kept_snapshots()[..] else { panic!("one is kept") };
    assert_eq!((&info.name, info.timestamp), (&name, timestamp));
    assert!(info.age.as_secs() < 3600);
    let snapshot = db.open_snapshot(&name).unwrap();
    assert_eq!((snapshot.name(), snapshot.timestamp()), (&name[..], timestamp));
    assert_round(&snapshot, &keyspace, 100, 1);
    assert!(keyspace.contains_key("later").unwrap());
}

/// A keyspace is found by its identity, whatever became of its name. A keyspace of the snapshot can be read like any
/// other, and every call that would write it is refused.
#[test]
fn keyspaces_of_a_snapshot_are_read_only() {
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), 1000);
    let large = Random(7).bytes(300_000);
    keyspace.insert("large", &large).unwrap();
    db.keep_snapshot("a").unwrap();
    keyspace.insert("large", "small").unwrap();
    db.alter().rename("k", "renamed").create("k", drumlin::KeyspaceOptions::new()).commit().unwrap();
    let created = db.keyspace("k").unwrap();
    let snapshot = db.open_snapshot("a").unwrap();
    let [info] = &snapshot.keyspaces()[..] else { panic!("one is in the snapshot") };
    assert_eq!((&info.name[..], info.page_bytes), ("k", 1024));
    assert_eq!(snapshot.get(&keyspace, "large").unwrap().unwrap(), large);
    assert!(matches!(snapshot.get(&created, "large"), Err(Error::NoSuchKeyspace { .. })));
    assert!(matches!(snapshot.keyspace("renamed"), Err(Error::NoSuchKeyspace { .. })));
    db.drop_keyspace("renamed").unwrap();
    db.checkpoint().unwrap();
    drop(keyspace);
    let k = snapshot.keyspace("k").unwrap();
    drop(snapshot);
    assert_eq!(k.get("large").unwrap().unwrap(), large);
    assert_eq!(k.len().unwrap(), 1001);
    assert_eq!(k.iter().rev().count(), 1001);
    assert!(k.estimate(..).unwrap() > 300);
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut k.read("large").unwrap().unwrap(), &mut read).unwrap();
    assert_eq!(read, large);
    let refused = |what: &str, result: drumlin::Result<()>| {
        let is_refused = matches!(&result, Err(Error::Invalid(why)) if why.contains("kept snapshot"));
        assert!(is_refused, "{what}: {result:?}");
    };
    refused("insert", k.insert("a", "b"));
    refused("remove", k.remove("large"));
    refused("take", k.take("large").map(drop));
    refused("pop", k.pop_first().map(drop));
    refused("update", k.update("large", |_| Some("x")).map(drop));
    refused("clear", k.clear().map(drop));
    refused("remove_range", k.remove_range("a".."z").map(drop));
    refused("remove_prefix", k.remove_prefix("l").map(drop));
    refused("insert_from", k.insert_from("a", &b"b"[..]).map(drop));
    refused("compare and swap", k.compare_and_swap("large", Some(b"a"), Some(b"b")).map(drop));
    refused("batch", db.batch().unwrap().insert(&k, "a", "b"));
    refused("remove of a batch", db.batch().unwrap().remove(&k, "large"));
    let mut tx = db.begin().unwrap();
    refused("insert of a transaction", tx.insert(&k, "a", "b"));
    refused("remove of a transaction", tx.remove(&k, "large"));
    refused("get of a transaction", tx.get(&k, "large").map(drop));
    refused("lock of a transaction", tx.lock_row(&k, "large", LockMode::Exclusive).map(drop));
    refused("range of a transaction", tx.remove_range(&k, "a".."z").map(drop));
    refused("get of a snapshot", db.snapshot().get(&k, "large").map(drop));
    refused("range of a snapshot", db.snapshot().iter(&k).next().unwrap().map(drop));
    tx.commit().unwrap();
    assert_eq!(k.len().unwrap(), 1001);
}

/// Ends the other threads of a test, even if an assertion fails.
pub(crate) struct Ends<'e>(pub(crate) &'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets two threads write one number to two rows in each transaction, until `is_done`.
pub(crate) fn write_pairs<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    db: &'s Database,
    keyspace: &'s Keyspace,
    row_count: u64,
    is_done: &'s AtomicBool,
) {
    for thread in 0..2 {
        scope.spawn(move || {
            let mut random = Random(thread);
            while !is_done.load(Ordering::Relaxed) {
                let (row, number) = (random.below(row_count / 2), random.next().to_be_bytes());
                let written = db.transact(|tx| {
                    tx.insert(keyspace, row.to_be_bytes(), number)?;
                    tx.insert(keyspace, (row_count - 1 - row).to_be_bytes(), number)
                });
                written.unwrap();
            }
        });
    }
}

/// Checks that no half of a transaction of [`write_pairs`] is there.
pub(crate) fn assert_pairs(row_count: u64, get: impl Fn(u64) -> drumlin::Value, place: &str) {
    for row in 0..row_count / 2 {
        let (one, other) = (get(row), get(row_count - 1 - row));
        let is_as_filled = one == value(row, 1) && other == value(row_count - 1 - row, 1);
        assert!(is_as_filled || one == other, "half a commit is in {place}");
    }
}

/// Snapshots are taken and dropped while other threads write, and each shows a state between two commits.
#[test]
fn snapshots_are_taken_while_others_write() {
    const ROWS: u64 = 3000;
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), ROWS);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        write_pairs(scope, &db, &keyspace, ROWS, &is_done);
        let _ends = Ends(&is_done);
        for round in 0..12u64 {
            let name = round.to_string();
            let timestamp = db.keep_snapshot(&name).unwrap();
            let snapshot = db.open_snapshot(&name).unwrap();
            assert_eq!(snapshot.timestamp(), timestamp);
            assert_pairs(
                ROWS,
                |row| snapshot.get(&keyspace, row.to_be_bytes()).unwrap().unwrap(),
                &format!("snapshot {name}"),
            );
            if round >= 3 {
                db.drop_snapshot(&(round - 3).to_string()).unwrap();
            }
        }
    });
    assert!(db.check().unwrap().corruption.is_empty());
}

/// If the disk is full of what a snapshot keeps, it can still be dropped, which makes room. A snapshot that can't be
/// taken for lack of space leaves nothing.
#[test]
fn a_full_disk_is_relieved_by_dropping_a_snapshot() {
    const ROWS: u64 = 8000;
    let disk = FaultyBackend::new(drumlin_io::in_memory());
    let config = small().backend(Arc::new(disk.clone()));
    let (db, keyspace) = filled(&config, "/db", ROWS);
    db.keep_snapshot("a").unwrap();
    disk.set_space_limit(Some(disk.space_used() + (1 << 20)));
    let full = (0..500_000u64)
        .find_map(|row| keyspace.insert_with(row.to_be_bytes(), value(row, 2), Durability::Relaxed).err())
        .expect("the disk fills");
    assert!(matches!(full, Error::DiskFull { .. }), "{full:?}");
    assert!(full.to_string().contains("kept snapshot"), "{full}");
    let kept = db.keep_snapshot("b");
    if let Err(error) = kept {
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
        assert_eq!(db.kept_snapshots().len(), 1);
    } else {
        db.drop_snapshot("b").unwrap();
    }
    assert_round(&db.open_snapshot("a").unwrap(), &keyspace, ROWS, 1);
    db.drop_snapshot("a").unwrap();
    write(&keyspace, 0..ROWS, 77);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// Damage to a page that only a kept snapshot has is found by both kinds of check, which name the snapshot. The
/// database itself is not affected.
#[test]
fn checks_read_kept_snapshots() {
    const ROWS: u64 = 5000;
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), ROWS);
    db.checkpoint().unwrap();
    let end = db.stats().live_bytes;
    db.keep_snapshot("a").unwrap();
    write(&keyspace, 0..ROWS, 2);
    db.close().unwrap();
    let path = folder.path().join("data");
    let mut bytes = std::fs::read(&path).unwrap();
    // The pages of the snapshot are in the first segments; the superblocks are before them.
    let damaged = (support::SEGMENT_BYTES as usize..end as usize).step_by(50_000);
    damaged.for_each(|offset| bytes[offset + 2000] ^= 1);
    std::fs::write(&path, bytes).unwrap();
    let names_snapshot = |report: &drumlin::CheckReport| {
        report.corruption.iter().any(|corruption| corruption.cost.contains("of kept snapshot a"))
    };
    let report = small().examine(folder.path()).unwrap();
    assert!(names_snapshot(&report), "{report:#?}");
    let db = small().open(folder.path()).unwrap();
    let report = db.check().unwrap();
    assert!(names_snapshot(&report), "{report:#?}");
    let keyspace = db.keyspace("k").unwrap();
    let snapshot = db.open_snapshot("a").unwrap();
    assert!(snapshot.iter(&keyspace).any(|row| matches!(row, Err(Error::Corrupted { .. }))));
}

/// A kept snapshot and its keyspaces are refused by another database, by other snapshots and by transactions, even if
/// all names and ids are the same.
#[test]
fn snapshots_of_two_databases_are_not_mixed_up() {
    let folders = [Folder::new(), Folder::new()];
    let [one, other] = folders.each_ref().map(|folder| filled(&small(), folder.path(), 100));
    let [kept, foreign] = [&one, &other].map(|(db, _)| {
        db.keep_snapshot("a").unwrap();
        db.open_snapshot("a").unwrap()
    });
    let key = 0u64.to_be_bytes();
    let [own, strange] = [&kept, &foreign].map(|snapshot| snapshot.keyspace("k").unwrap());
    assert_eq!(kept.get(&own, key).unwrap().unwrap(), value(0, 1));
    for keyspace in [&other.1, &strange] {
        assert!(matches!(kept.get(keyspace, key), Err(Error::Invalid(_))));
        assert!(matches!(one.0.snapshot().get(keyspace, key), Err(Error::Invalid(_))));
    }
    let mut tx = one.0.begin().unwrap();
    assert!(matches!(tx.get(&own, key), Err(Error::Invalid(_))));
    assert!(matches!(tx.insert(&own, key, "value"), Err(Error::Invalid(_))));
    assert!(matches!(tx.remove_range(&own, ..), Err(Error::Invalid(_))));
    assert!(matches!(one.0.snapshot().get(&own, key), Err(Error::Invalid(_))));
    let again = one.0.open_snapshot("a").unwrap();
    assert!(matches!(again.get(&own, key), Err(Error::NoSuchKeyspace { .. })));
}

/// Names may have any characters, and errors show them escaped.
#[test]
fn names_of_snapshots_may_have_any_characters() {
    const NAMES: [&str; 5] = ["\0", "\n\x1b[2J", "../a/b", "\u{202e}x", " "];
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), 10);
    for name in NAMES {
        keyspace.insert("name", name).unwrap();
        db.keep_snapshot(name).unwrap();
    }
    drop(keyspace);
    db.close().unwrap();
    let db = small().open(folder.path()).unwrap();
    for name in NAMES {
        let snapshot = db.open_snapshot(name).unwrap();
        assert_eq!(snapshot.keyspace("k").unwrap().get("name").unwrap().unwrap(), name);
        let error = db.keep_snapshot(name).unwrap_err().to_string();
        assert!(!error.contains(|character: char| character.is_control()), "{error:?}");
    }
}

/// A snapshot of 2,000 keyspaces can be read, and 30 snapshots are kept and dropped.
#[test]
fn snapshots_have_many_keyspaces() {
    let folder = Folder::new();
    let db = small().memory(64 << 20).open(folder.path()).unwrap();
    let name = |number: u32| format!("keyspace {number}");
    for first in (0..2000).step_by(500) {
        let create =
            |alteration: drumlin::Alteration, number| alteration.create(&name(number), drumlin::KeyspaceOptions::new());
        (first..first + 500).fold(db.alter(), create).commit().unwrap();
    }
    for number in 0..2000 {
        let keyspace = db.keyspace(&name(number)).unwrap();
        keyspace.insert_with("row", number.to_be_bytes(), Durability::Relaxed).unwrap();
    }
    db.keep_snapshot("all").unwrap();
    let changing = db.keyspace(&name(7)).unwrap();
    for round in 0..30u32 {
        changing.insert("row", round.to_be_bytes()).unwrap();
        db.keep_snapshot(&format!("{round}")).unwrap();
    }
    let all = db.open_snapshot("all").unwrap();
    assert_eq!(all.keyspaces().len(), 2000);
    for number in 0..2000 {
        assert_eq!(all.keyspace(&name(number)).unwrap().get("row").unwrap().unwrap(), number.to_be_bytes());
    }
    for round in 0..30u32 {
        let snapshot = db.open_snapshot(&format!("{round}")).unwrap();
        assert_eq!(snapshot.get(&changing, "row").unwrap().unwrap(), round.to_be_bytes());
        drop(snapshot);
        db.drop_snapshot(&format!("{round}")).unwrap();
    }
    assert!(db.check().unwrap().corruption.is_empty());
}
