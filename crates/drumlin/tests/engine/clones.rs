//! Clones of keyspaces: each keyspace is written independently of the others, whatever happens to the database, and
//! pages that are shared take space once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drumlin::{
    BackupOptions, Change, Config, Database, Durability, Error, Keyspace, KeyspaceOptions, Rescue, Retention, Salvaged,
    Snapshot,
};
use drumlin_io::testing::fault::{FaultyBackend, Operation};
use drumlin_io::testing::sim::{Disk, Medium};

use crate::kept_snapshots::{Ends, assert_pairs, filled, value, write, write_pairs};
use crate::old_versions::wait_until;
use crate::runs::{compare, config, end_life, key, load, some_rows};
use crate::support::{Folder, Model, Random, copy_folder, number, small};

/// The rows of each keyspace, by name.
type Rows = BTreeMap<String, Model>;

/// A snapshot, and the keyspaces that it sees.
type Seen = (Snapshot, Vec<(Keyspace, Model)>);

fn name_of(random: &mut Random) -> String {
    format!("{}", random.below(5))
}

fn some_name(rows: &Rows, random: &mut Random) -> String {
    rows.keys().nth(random.below(rows.len() as u64) as usize).unwrap().clone()
}

fn compare_one(db: &Database, rows: &Rows, random: &mut Random, place: &str) {
    let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
    assert!(names.iter().eq(rows.keys()), "{place}: {names:?}");
    let name = some_name(rows, random);
    let keyspace = db.existing_keyspace(&name).unwrap();
    compare(&db.snapshot(), &keyspace, &rows[&name], random, &format!("{place}, keyspace {name}"));
    assert_eq!(keyspace.len().unwrap(), rows[&name].len() as u64, "{place}, keyspace {name}");
}

fn change(keyspace: &Keyspace, rows: &mut Model, random: &mut Random) {
    for (key, value) in some_rows(random, 1000, 200) {
        if random.one_in(4) {
            keyspace.remove(&key).unwrap();
            rows.remove(&key);
        } else {
            keyspace.insert_with(&key, &value, Durability::Relaxed).unwrap();
            rows.insert(key, value);
        }
    }
}

/// Clones, drops and renames keyspaces among commits, loads, range deletes, snapshots, kept snapshots, compactions,
/// reopenings and power cuts.
#[test]
fn clones_are_written_independently() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 10) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let mut db = config(&disk).open("/db").unwrap();
        let mut rows = Rows::from([("k".to_owned(), Model::new())]);
        db.keyspace("k").unwrap();
        let mut kept: Option<Rows> = None;
        let mut seen: Vec<Seen> = Vec::new();
        for step in 0..100 {
            let place = format!("seed {seed}, step {step}");
            let name = some_name(&rows, &mut random);
            let keyspace = db.existing_keyspace(&name).unwrap();
            match random.below(16) {
                0 => {
                    let loaded = some_rows(&mut random, 1000, 400);
                    load(&db, &name, &loaded).unwrap_or_else(|error| panic!("{place}: {error}"));
                    rows.get_mut(&name).unwrap().extend(loaded);
                }
                1 => {
                    let [lower, upper] = [0; 2].map(|_| key(random.below(1000)));
                    if lower < upper {
                        keyspace.remove_range(lower.clone()..upper.clone()).unwrap();
                        rows.get_mut(&name).unwrap().retain(|key, _| *key < lower || *key >= upper);
                    }
                }
                2..6 => {
                    change(&keyspace, rows.get_mut(&name).unwrap(), &mut random);
                    db.sync().unwrap();
                }
                6..9 => {
                    let to = name_of(&mut random);
                    match db.clone_keyspace(&name, &to) {
                        Ok(_) => {
                            let cloned = rows[&name].clone();
                            assert!(rows.insert(to, cloned).is_none(), "{place}: a name is taken twice");
                        }
                        Err(Error::KeyspaceExists { .. }) => assert!(rows.contains_key(&to), "{place}"),
                        Err(error) => panic!("{place}: {error}"),
                    }
                }
                9 if rows.len() > 1 => {
                    db.drop_keyspace(&name).unwrap();
                    rows.remove(&name);
                    seen.clear();
                }
                10 => {
                    let to = name_of(&mut random);
                    if !rows.contains_key(&to) {
                        db.alter().rename(&name, &to).commit().unwrap();
                        let renamed = rows.remove(&name).unwrap();
                        rows.insert(to, renamed);
                    }
                }
                11 => match kept.take() {
                    Some(_) => db.drop_snapshot("kept").unwrap(),
                    None => {
                        db.keep_snapshot("kept").unwrap();
                        kept = Some(rows.clone());
                    }
                },
                12 if seen.len() < 3 => {
                    let of_names =
                        |(name, rows): (&String, &Model)| (db.existing_keyspace(name).unwrap(), rows.clone());
                    seen.push((db.snapshot(), rows.iter().map(of_names).collect()));
                }
                13 => drop(db.checkpoint().unwrap()),
                14 => drop(db.compact().unwrap()),
                _ => {
                    seen.clear();
                    disk = end_life(&disk, (db, keyspace), random.one_in(2), &mut random, seed);
                    db = config(&disk).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
                }
            }
            if random.one_in(6) {
                let report = db.check().unwrap();
                assert!(report.corruption.is_empty(), "{place}: {report:#?}");
            }
            compare_one(&db, &rows, &mut random, &place);
            if random.one_in(3)
                && let Some(kept) = &kept
            {
                let snapshot = db.open_snapshot("kept").unwrap();
                let name = some_name(kept, &mut random);
                let keyspace = snapshot.keyspace(&name).unwrap();
                compare(&snapshot, &keyspace, &kept[&name], &mut random, &format!("{place}, kept {name}"));
            }
            if let Some((snapshot, of_snapshot)) = seen.get(random.below(6) as usize) {
                let (keyspace, rows) = &of_snapshot[random.below(of_snapshot.len() as u64) as usize];
                compare(snapshot, keyspace, rows, &mut random, &format!("{place}, snapshot of {keyspace:?}"));
            }
        }
        seen.clear();
        if kept.is_some() {
            db.drop_snapshot("kept").unwrap();
        }
        for name in rows.keys() {
            let keyspace = db.existing_keyspace(name).unwrap();
            compare(&db.snapshot(), &keyspace, &rows[name], &mut random, &format!("seed {seed}, the end of {name}"));
        }
        for name in rows.keys() {
            db.drop_keyspace(name).unwrap();
        }
        db.compact().unwrap();
        db.compact().unwrap();
        let stats = db.stats();
        assert!(stats.live_bytes < 300_000, "seed {seed}: {} bytes live in no keyspace", stats.live_bytes);
        assert!(stats.data_file_bytes < 4 << 20, "seed {seed}: {} bytes", stats.data_file_bytes);
    }
}

fn rows_of(keyspace: &Keyspace) -> Model {
    keyspace.iter().map(|row| row.map(|(key, value)| (key.into_vec(), value.into_vec())).unwrap()).collect()
}

/// Checks that the rows of a keyspace are those that [`write`] has written in these rounds.
fn assert_rounds(keyspace: &Keyspace, row_count: u64, round_of: impl Fn(u64) -> u64) {
    let expected: Model = (0..row_count).map(|row| (row.to_be_bytes().to_vec(), value(row, round_of(row)))).collect();
    assert!(rows_of(keyspace) == expected, "other rows in keyspace {:?}", keyspace.name());
    assert_eq!(keyspace.len().unwrap(), row_count);
}

fn used_bytes(db: &Database) -> u64 {
    let stats = db.stats();
    (stats.segments - stats.free_segments) * stats.segment_bytes
}

/// If the process is killed after a clone was made, recovery makes it again, with all that follows in the log: commits
/// to both, a load, a range delete, large values, a rename, and the drop of the origin.
#[test]
fn recovery_makes_a_clone_again() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let disk = Disk::new(Medium::default(), seed);
        let db = config(&disk).open("/db").unwrap();
        let from = db.keyspace("from").unwrap();
        let mut rows = some_rows(&mut random, 1000, 500);
        rows.iter().for_each(|(key, value)| from.insert_with(key, value, Durability::Relaxed).unwrap());
        // Keeps a run above the tree.
        let snapshot = db.snapshot();
        let loaded = some_rows(&mut random, 1000, 300);
        load(&db, "from", &loaded).unwrap();
        rows.extend(loaded);
        from.remove_range(key(300)..key(400)).unwrap();
        rows.retain(|row, _| *row < key(300) || *row >= key(400));
        let as_of = db.clone_keyspace("from", "to").unwrap();
        assert!(as_of < db.snapshot().timestamp());
        let to = db.existing_keyspace("to").unwrap();
        let mut cloned = rows.clone();
        change(&from, &mut rows, &mut random);
        change(&to, &mut cloned, &mut random);
        to.insert("large", vec![seed as u8; 300_000]).unwrap();
        cloned.insert(b"large".to_vec(), vec![seed as u8; 300_000]);
        let loaded = some_rows(&mut random, 1000, 300);
        load(&db, "to", &loaded).unwrap();
        cloned.extend(loaded);
        to.remove_range(key(600)..key(700)).unwrap();
        cloned.retain(|row, _| *row < key(600) || *row >= key(700));
        db.alter().rename("to", "renamed").commit().unwrap();
        let is_dropped = seed % 2 == 0;
        if is_dropped {
            db.drop_keyspace("from").unwrap();
        }
        drop((snapshot, from));
        let mut disk = end_life(&disk, (db, to), false, &mut random, seed);
        for life in 0..3 {
            let place = format!("seed {seed}, life {life}");
            let db = config(&disk).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
            let to = db.existing_keyspace("renamed").unwrap();
            compare(&db.snapshot(), &to, &cloned, &mut random, &place);
            match db.existing_keyspace("from") {
                Ok(from) => compare(&db.snapshot(), &from, &rows, &mut random, &place),
                Err(error) => assert!(is_dropped && matches!(error, Error::NoSuchKeyspace { .. }), "{place}: {error}"),
            }
            let report = db.check().unwrap();
            assert!(report.corruption.is_empty(), "{place}: {report:#?}");
            change(&to, &mut cloned, &mut random);
            db.sync().unwrap();
            disk = end_life(&disk, (db, to), life == 1, &mut random, seed);
        }
    }
}

/// A clone takes no space for rows. What each keyspace says that dropping it gives back is what it gives back, in any
/// order of drops.
#[test]
fn pages_that_are_shared_take_space_once() {
    const ROWS: u64 = 30_000;
    for order in [["k", "one", "two"], ["two", "k", "one"], ["one", "two", "k"]] {
        let (db, k) = filled(&small().backend(drumlin_io::in_memory()), "/db", ROWS);
        db.checkpoint().unwrap();
        let first_bytes = used_bytes(&db);
        db.clone_keyspace("k", "one").unwrap();
        db.clone_keyspace("one", "two").unwrap();
        assert!(used_bytes(&db) < first_bytes * 11 / 10, "{} bytes of {first_bytes}", used_bytes(&db));
        let keyspace = |name: &str| db.existing_keyspace(name).unwrap();
        for name in order {
            assert_eq!(keyspace(name).exclusive_bytes().unwrap(), 0, "{name}");
        }
        write(&keyspace("one"), 0..ROWS / 2, 2);
        write(&keyspace("two"), ROWS / 2..ROWS, 3);
        db.checkpoint().unwrap();
        db.compact().unwrap();
        assert!(used_bytes(&db) < first_bytes * 5 / 2, "{} bytes of {first_bytes}", used_bytes(&db));
        assert_rounds(&k, ROWS, |_| 1);
        assert_rounds(&keyspace("one"), ROWS, |row| if row < ROWS / 2 { 2 } else { 1 });
        assert_rounds(&keyspace("two"), ROWS, |row| if row < ROWS / 2 { 1 } else { 3 });
        for name in order {
            db.compact().unwrap();
            let (before_bytes, exclusive_bytes) = (used_bytes(&db), keyspace(name).exclusive_bytes().unwrap());
            let clones = db.clones();
            assert!(clones.iter().all(|clone| clone.disk_bytes >= clone.exclusive_bytes), "{clones:?}");
            let listed = clones.iter().find(|clone| clone.name == name).map(|clone| clone.exclusive_bytes);
            assert_eq!(listed, (name != "k").then_some(exclusive_bytes), "{clones:?}");
            assert_eq!(db.stats().clones, clones.len() as u64);
            db.drop_keyspace(name).unwrap();
            // The pages are freed in the background, perhaps only after a compaction has begun.
            wait_until(&format!("dropping {name} frees {exclusive_bytes} bytes ({order:?})"), || {
                db.compact().unwrap();
                let freed_bytes = before_bytes.saturating_sub(used_bytes(&db));
                freed_bytes.abs_diff(exclusive_bytes) < first_bytes / 10
            });
            assert!(db.check().unwrap().corruption.is_empty());
        }
        assert!(used_bytes(&db) < first_bytes / 4, "{} bytes are left", used_bytes(&db));
    }
}

/// Compacting leaves pages shared.
#[test]
fn compacting_copies_no_shared_pages() {
    const ROWS: u64 = 30_000;
    let folder = Folder::new();
    let (db, k) = filled(&small(), folder.path(), ROWS);
    write(&db.keyspace("before").unwrap(), 0..ROWS, 5);
    db.clone_keyspace("k", "clone").unwrap();
    db.drop_keyspace("before").unwrap();
    let live_bytes = k.disk_bytes().unwrap();
    for _ in 0..3 {
        db.compact().unwrap();
    }
    let file_bytes = db.stats().data_file_bytes;
    assert!(file_bytes < live_bytes * 5 / 2, "{file_bytes} bytes for {live_bytes}");
    assert!(k.exclusive_bytes().unwrap() < live_bytes / 2, "compacting copied what was shared");
    assert_rounds(&k, ROWS, |_| 1);
    assert_rounds(&db.existing_keyspace("clone").unwrap(), ROWS, |_| 1);
}

/// A rotation of clones needs a bounded amount of space, even if every segment has a few rows that never change.
#[test]
fn a_rotation_of_clones_does_not_grow() {
    const ROWS: u64 = 10_000;
    const KEPT: u64 = 3;
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), ROWS);
    db.checkpoint().unwrap();
    let first_bytes = db.stats().data_file_bytes;
    for round in 1..30 {
        db.clone_keyspace("k", &round.to_string()).unwrap();
        if round > KEPT {
            db.drop_keyspace(&(round - KEPT).to_string()).unwrap();
        }
        // In each round, a fifth of the rows get their last change.
        write(&keyspace, (0..ROWS).filter(|row| row % 25 >= round), round);
        db.checkpoint().unwrap();
    }
    let last_bytes = db.stats().data_file_bytes;
    assert!(last_bytes < 8 * first_bytes, "{last_bytes} bytes, {first_bytes} at the beginning");
    assert_rounds(&db.existing_keyspace("29").unwrap(), ROWS, |row| if row % 25 == 0 { 1 } else { (row % 25).min(28) });
    assert!(db.check().unwrap().corruption.is_empty());
}

/// A snapshot or transaction from before the clone sees it as empty, runs above its tree included. A transaction from
/// before that writes to the clone ends in a conflict.
#[test]
fn older_snapshots_see_an_empty_clone() {
    let db = small().backend(drumlin_io::in_memory()).open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    write(&k, 0..500, 1);
    let oldest = db.snapshot();
    load(&db, "k", &some_rows(&mut Random(1), 1000, 300)).unwrap();
    k.remove_range(100u64.to_be_bytes()..200u64.to_be_bytes()).unwrap();
    let rows = rows_of(&k);
    let before = db.snapshot();
    let mut tx = db.begin().unwrap();
    db.clone_keyspace("k", "clone").unwrap();
    let clone = db.existing_keyspace("clone").unwrap();
    clone.insert("new", "row").unwrap();
    for (reader, place) in [(&oldest, "oldest"), (&before, "before")] {
        assert_eq!(reader.count(&clone, ..).unwrap(), 0, "{place}");
        assert_eq!(reader.iter(&clone).count() + reader.iter(&clone).rev().count(), 0, "{place}");
        assert!(reader.is_empty(&clone).unwrap() && reader.first(&clone).unwrap().is_none(), "{place}");
        for key in rows.keys() {
            assert_eq!(reader.get(&clone, key).unwrap(), None, "{place}");
        }
    }
    assert_eq!(tx.get(&clone, 5u64.to_be_bytes()).unwrap(), None);
    let written = tx.insert(&clone, 5u64.to_be_bytes(), "x").and_then(|()| tx.commit().map(drop));
    assert!(matches!(written, Err(Error::Conflict { .. })), "{written:?}");
    drop((oldest, before));
    assert_eq!(clone.len().unwrap(), rows.len() as u64 + 1);
    assert_eq!(k.len().unwrap(), rows.len() as u64);
}

/// Counts, estimates and reductions of each keyspace are its own.
#[test]
fn counts_belong_to_one_keyspace() {
    const ROWS: u64 = 5000;
    let folder = Folder::new();
    let (mut db, k) = filled(&small(), folder.path(), ROWS);
    assert_eq!(k.len().unwrap(), ROWS);
    db.clone_keyspace("k", "clone").unwrap();
    let clone = db.existing_keyspace("clone").unwrap();
    assert_eq!(clone.len().unwrap(), ROWS);
    (0..ROWS).step_by(2).for_each(|row| clone.remove(row.to_be_bytes()).unwrap());
    (0..ROWS).step_by(5).for_each(|row| k.remove(row.to_be_bytes()).unwrap());
    drop((k, clone));
    for _ in 0..2 {
        let keyspace = |name: &str| db.existing_keyspace(name).unwrap();
        assert_eq!(keyspace("clone").len().unwrap(), ROWS / 2);
        assert_eq!(keyspace("k").len().unwrap(), ROWS - ROWS / 5);
        assert_eq!(keyspace("clone").rank(1000u64.to_be_bytes()).unwrap(), 500);
        assert_eq!(keyspace("k").rank(1000u64.to_be_bytes()).unwrap(), 800);
        let estimate = keyspace("clone").estimate(..).unwrap();
        assert!((ROWS / 4..ROWS * 2).contains(&estimate), "{estimate} of {} rows", ROWS / 2);
        db.close().unwrap();
        db = small().open(folder.path()).unwrap();
    }
}

/// A prepared transaction belongs to the keyspaces that it was prepared with.
#[test]
fn prepared_rows_stay_with_their_keyspace() {
    let folder = Folder::new();
    let (db, k) = filled(&small(), folder.path(), 100);
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "prepared", "value").unwrap();
    tx.prepare("an id").unwrap();
    db.clone_keyspace("k", "clone").unwrap();
    let clone = db.existing_keyspace("clone").unwrap();
    clone.insert("prepared", "not locked here").unwrap();
    assert!(matches!(db.drop_keyspace("k"), Err(Error::PreparedRows { .. })));
    db.commit_prepared("an id").unwrap();
    assert_eq!(k.get("prepared").unwrap().unwrap(), "value");
    assert_eq!(clone.get("prepared").unwrap().unwrap(), "not locked here");
    db.clone_keyspace("k", "later").unwrap();
    assert_eq!(db.existing_keyspace("later").unwrap().get("prepared").unwrap().unwrap(), "value");
    db.drop_keyspace("k").unwrap();
}

/// Values that only a snapshot can see are not in the clone, and take no space in it.
#[test]
fn values_that_only_snapshots_see_are_left_out() {
    let folder = Folder::new();
    let (db, k) = filled(&small(), folder.path(), 100);
    for row in 0..20u64 {
        k.insert(row.to_be_bytes(), Random(row).bytes(200_000)).unwrap();
    }
    let snapshot = db.snapshot();
    write(&k, 0..20, 1);
    db.clone_keyspace("k", "clone").unwrap();
    let clone = db.existing_keyspace("clone").unwrap();
    assert!(clone.disk_bytes().unwrap() < 200_000, "{} bytes", clone.disk_bytes().unwrap());
    assert_eq!(snapshot.get(&k, 3u64.to_be_bytes()).unwrap().unwrap(), Random(3).bytes(200_000));
    assert_rounds(&clone, 100, |_| 1);
    drop((snapshot, k));
    db.drop_keyspace("k").unwrap();
    db.compact().unwrap();
    drop(clone);
    db.close().unwrap();
    let db = small().open(folder.path()).unwrap();
    let clone = db.existing_keyspace("clone").unwrap();
    assert!(clone.disk_bytes().unwrap() < 200_000 && db.stats().live_bytes < 400_000, "{:?}", db.stats());
    assert_rounds(&clone, 100, |_| 1);
}

/// Names are checked, and each error says what is wrong. Nothing changes after an error.
#[test]
fn names_of_clones_are_checked() {
    let folder = Folder::new();
    let (db, k) = filled(&small(), folder.path(), 100);
    for name in ["", &"n".repeat(256)] {
        assert!(matches!(db.clone_keyspace("k", name), Err(Error::Invalid(why)) if why.contains("255 bytes")));
    }
    db.keyspace("taken").unwrap();
    for name in ["k", "taken"] {
        assert!(matches!(db.clone_keyspace("k", name), Err(Error::KeyspaceExists { name: taken }) if taken == name));
    }
    for name in ["none", ""] {
        assert!(matches!(db.clone_keyspace(name, "to"), Err(Error::NoSuchKeyspace { name: found }) if found == name));
    }
    db.drop_keyspace("taken").unwrap();
    assert!(matches!(db.clone_keyspace("taken", "to"), Err(Error::NoSuchKeyspace { .. })));
    db.clone_keyspace("k", "taken").unwrap();
    assert_eq!(db.keyspaces().len(), 2);
    drop(k);
    db.clone().close().unwrap();
    assert!(matches!(db.clone_keyspace("k", "to"), Err(Error::Closed)));
    drop(db);
    let db = small().read_only(true).open(folder.path()).unwrap();
    assert!(matches!(db.clone_keyspace("k", "to"), Err(Error::ReadOnly { .. })));
    assert_rounds(&db.existing_keyspace("taken").unwrap(), 100, |_| 1);
    assert_eq!(db.existing_keyspace("taken").unwrap().exclusive_bytes().unwrap(), 0);
}

/// A clone whose page table does not fit into the memory budget is refused, and nothing is left of it.
#[test]
fn a_clone_needs_memory_for_its_page_table() {
    let backend = drumlin_io::in_memory();
    let config = small().memory(8 << 20).backend(backend);
    let (db, k) = filled(&config, "/db", 60_000);
    let mut count = 0;
    let refused = loop {
        match db.clone_keyspace("k", &count.to_string()) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 500, "the page tables of {count} clones fit into 8 MiB");
    };
    assert!(matches!(refused, Error::BudgetTooSmall { .. }) && count > 0, "{count} clones: {refused:?}");
    assert_eq!(db.keyspaces().len(), count + 1);
    db.drop_keyspace("0").unwrap();
    db.checkpoint().unwrap();
    db.clone_keyspace("k", "another").unwrap();
    assert_rounds(&k, 60_000, |_| 1);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// If a write or sync fails while a clone is made, the call reports it, and after a reopening there is a whole clone or
/// none.
#[test]
fn failures_leave_a_whole_clone_or_none() {
    for (operation, nth) in
        [Operation::Write, Operation::Sync, Operation::Read].into_iter().flat_map(|of| (1..8).map(move |nth| (of, nth)))
    {
        let place = format!("{operation:?} {nth}");
        let backend = Arc::new(FaultyBackend::new(drumlin_io::in_memory()));
        let config = small().backend(backend.clone());
        let (db, k) = filled(&config, "/db", 3000);
        db.checkpoint().unwrap();
        write(&k, 0..300, 2);
        db.sync().unwrap();
        backend.fail_nth(operation, nth, 5);
        let cloned = db.clone_keyspace("k", "clone");
        backend.heal();
        let is_certain = !matches!(cloned, Err(Error::OutcomeUnknown { .. }));
        drop(k);
        let closed = db.close();
        assert!(cloned.is_err() || closed.is_ok(), "{place}: {cloned:?}, {closed:?}");
        let db = config.open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
        let found = db.existing_keyspace("clone");
        assert!(!is_certain || found.is_ok() == cloned.is_ok(), "{place}: {cloned:?}, {found:?}");
        if let Ok(clone) = found {
            assert_rounds(&clone, 3000, |row| if row < 300 { 2 } else { 1 });
        }
        assert_rounds(&db.existing_keyspace("k").unwrap(), 3000, |row| if row < 300 { 2 } else { 1 });
        assert!(db.check().unwrap().corruption.is_empty(), "{place}");
    }
}

/// On a full disk, a clone is refused or made. Dropping clones makes room.
#[test]
fn a_full_disk_is_relieved_by_dropping_a_clone() {
    let backend = Arc::new(FaultyBackend::new(drumlin_io::in_memory()));
    let config = small().backend(backend.clone());
    let (db, k) = filled(&config, "/db", 20_000);
    db.clone_keyspace("k", "clone").unwrap();
    write(&k, 0..20_000, 2);
    db.checkpoint().unwrap();
    backend.set_space_limit(Some(backend.space_used()));
    let mut row = 20_000u64;
    let refused = loop {
        match k.insert(row.to_be_bytes(), value(row, 1)) {
            Ok(()) => row += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&refused, Error::DiskFull { clones, .. } if *clones == ["clone"]), "{refused:?}");
    assert!(refused.to_string().contains("drop the clone \"clone\""), "{refused}");
    match db.clone_keyspace("k", "another") {
        Ok(_) => assert_eq!(db.existing_keyspace("another").unwrap().len().unwrap(), row),
        Err(error) => {
            assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
            assert!(db.existing_keyspace("another").is_err());
        }
    }
    db.drop_keyspace("clone").unwrap();
    for row in row..row + 5000 {
        k.insert(row.to_be_bytes(), value(row, 1)).unwrap_or_else(|error| panic!("row {row}: {error}"));
    }
    assert_eq!(k.len().unwrap(), row + 5000);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// The feed tells a clone as a clone.
#[test]
fn changes_tell_clones() {
    let db = Config::in_memory().memory(16 << 20).keep_changes(Retention::bytes(1 << 40)).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("a", "1").unwrap();
    let since = db.snapshot().timestamp();
    let as_of = db.clone_keyspace("k", "clone").unwrap();
    assert_eq!(as_of, since);
    let clone = db.existing_keyspace("clone").unwrap();
    clone.insert("b", "2").unwrap();
    db.alter().rename("clone", "renamed").create("clone", KeyspaceOptions::new()).commit().unwrap();
    db.drop_keyspace("k").unwrap();
    let until = db.snapshot().timestamp();
    let all: Vec<_> = db.changes(since).unwrap().until(until).collect::<drumlin::Result<_>>().unwrap();
    let told: Vec<Vec<Change<'_>>> = all.iter().map(|commit| commit.changes().collect()).collect();
    assert_eq!(told[0], [Change::Clone { from: "k", to: "clone", as_of }]);
    assert_eq!(told[1], [Change::Put { keyspace: "clone", key: b"b", value: b"2" }]);
    assert_eq!(told.len(), 4, "{told:?}");
    let of_k: Vec<_> =
        db.changes(since).unwrap().keyspaces(["k"]).until(until).collect::<drumlin::Result<_>>().unwrap();
    let told: Vec<Change<'_>> = of_k.iter().flat_map(drumlin::Commit::changes).collect();
    assert_eq!(told, [Change::Clone { from: "k", to: "clone", as_of }, Change::Drop { keyspace: "k" }]);
}

/// A restored clone is a keyspace like any other, whether its backup is full or incremental.
#[test]
fn clones_are_restored_from_backups() {
    const ROWS: u64 = 3000;
    let folder = Folder::new();
    let (db, k) = filled(&small(), folder.path(), ROWS);
    k.insert("large", Random(5).bytes(400_000)).unwrap();
    db.clone_keyspace("k", "one").unwrap();
    write(&db.existing_keyspace("one").unwrap(), 0..100, 2);
    let mut full = Vec::new();
    db.backup_into(&mut full, &BackupOptions::new().keep("full")).unwrap();
    write(&k, 200..300, 3);
    db.clone_keyspace("one", "two").unwrap();
    db.drop_keyspace("k").unwrap();
    write(&db.existing_keyspace("two").unwrap(), 400..500, 4);
    let mut changed = Vec::new();
    db.backup_into(&mut changed, &BackupOptions::new().since("full")).unwrap();
    for (streams, names) in [(vec![&full[..]], vec!["k", "one"]), (vec![&full[..], &changed[..]], vec!["one", "two"])] {
        let disk = Disk::new(Medium::default(), 1);
        let target = config(&disk);
        target.restore_from(streams, "/restored").unwrap();
        let restored = target.open("/restored").unwrap();
        assert!(restored.keyspaces().iter().map(|info| &info.name[..]).eq(names.iter().copied()));
        for name in &names {
            let keyspace = restored.existing_keyspace(name).unwrap();
            assert_eq!(keyspace.get("large").unwrap().unwrap(), Random(5).bytes(400_000), "{name}");
            keyspace.remove("large").unwrap();
            let round_of = |row| match *name {
                "one" if row < 100 => 2,
                "two" if row < 100 => 2,
                "two" if (400..500).contains(&row) => 4,
                _ => 1,
            };
            assert_rounds(&keyspace, ROWS, round_of);
            assert_eq!(keyspace.exclusive_bytes().unwrap(), keyspace.disk_bytes().unwrap(), "{name} shares pages");
        }
        let report = restored.check().unwrap();
        assert!(report.corruption.is_empty(), "{report:#?}");
    }
}

/// A page that is shared and damaged is reported for each keyspace that lost rows by it. A rescue finds all other rows
/// of both, also if the log makes the clone.
#[test]
fn damage_to_shared_pages_is_found() {
    const ROWS: u64 = 4000;
    for is_killed in [false, true] {
        let folder = Folder::new();
        let path = folder.path();
        let (db, k) = filled(&small(), &path, ROWS);
        db.clone_keyspace("k", "clone").unwrap();
        write(&db.existing_keyspace("clone").unwrap(), 0..100, 2);
        write(&k, 3900..ROWS, 3);
        db.sync().unwrap();
        let copy = path.with_file_name("copy");
        if is_killed {
            copy_folder(&path, &copy);
        }
        drop(k);
        db.close().unwrap();
        if !is_killed {
            copy_folder(&path, &copy);
        }
        let rescued = |place: &str| {
            let _ = std::fs::remove_dir_all(path.with_file_name("scratch"));
            let rescue = Rescue::open(&small().memory(64 << 20), &copy, path.with_file_name("scratch")).unwrap();
            ["k", "clone"].map(|name| {
                let (mut rows, mut gap_count) = (Model::new(), 0);
                for step in rescue.rows(name).unwrap() {
                    match step.unwrap_or_else(|error| panic!("{place}: {error}")) {
                        Salvaged::Row(key, value) => drop(rows.insert(key.into_vec(), value.into_vec())),
                        _ => gap_count += 1,
                    }
                }
                (rows, gap_count)
            })
        };
        let round_of = |name: &str, row: u64| match name {
            "clone" if row < 100 => 2,
            "k" if row >= 3900 => 3,
            _ => 1,
        };
        let expected = ["k", "clone"].map(|name| {
            (0..ROWS).map(|row| (row.to_be_bytes().to_vec(), value(row, round_of(name, row)))).collect::<Model>()
        });
        for (index, (rows, gap_count)) in rescued("sound").into_iter().enumerate() {
            assert_eq!(gap_count, 0, "killed: {is_killed}");
            assert!(rows == expected[index], "killed: {is_killed}: {} rows of keyspace {index}", rows.len());
        }
        // A value of a row in the middle, which both keyspaces share. It does not compress.
        let data = copy.join("data");
        let mut bytes = std::fs::read(&data).unwrap();
        let wanted = &value(2000, 1)[..40];
        let places: Vec<usize> =
            (0..bytes.len() - 40).filter(|at| bytes[*at] == wanted[0] && bytes[*at..at + 40] == *wanted).collect();
        assert!(!places.is_empty(), "the row is not in the file");
        places.iter().for_each(|at| bytes[*at] ^= 1);
        std::fs::write(&data, &bytes).unwrap();
        for (index, (rows, gap_count)) in rescued("damaged").into_iter().enumerate() {
            assert!(gap_count > 0 && rows.len() > 3900, "killed: {is_killed}: {} rows of {index}", rows.len());
            assert!(rows.iter().all(|(key, value)| expected[index].get(key) == Some(value)));
        }
        let db = small().open(&copy).unwrap();
        let report = db.check().unwrap();
        for name in ["k", "clone"] {
            let is_its = |found: &&drumlin::Corruption| found.keys.as_ref().is_some_and(|keys| keys.keyspace == name);
            assert!(report.corruption.iter().any(|found| is_its(&found)), "killed: {is_killed}, {name}: {report:#?}");
        }
    }
}

/// Clones are made while other threads write to the keyspace. Each has all rows of a commit or none, and all commits
/// that ended before the call.
#[test]
fn clones_are_made_while_others_write() {
    const ROWS: u64 = 3000;
    let folder = Folder::new();
    let (db, k) = filled(&small(), folder.path(), ROWS);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        write_pairs(scope, &db, &k, ROWS, &is_done);
        let _ends = Ends(&is_done);
        for round in 0..12u64 {
            k.insert("before", round.to_be_bytes()).unwrap();
            let name = round.to_string();
            let as_of = db.clone_keyspace("k", &name).unwrap();
            assert!(as_of <= db.snapshot().timestamp());
            let clone = db.existing_keyspace(&name).unwrap();
            assert_eq!(clone.get("before").unwrap().unwrap(), round.to_be_bytes());
            assert_pairs(ROWS, |row| clone.get(row.to_be_bytes()).unwrap().unwrap(), &name);
            write(&clone, 0..ROWS, 1);
            assert_eq!(clone.len().unwrap(), ROWS + 1);
            if round % 3 == 2 {
                db.drop_keyspace(&name).unwrap();
            }
        }
    });
    assert!(db.check().unwrap().corruption.is_empty());
}

/// Measures how long clones take, and the longest commit beside them, in keyspaces of different sizes. Run it alone:
/// `cargo test --release -p drumlin-testing --test engine clones_take_the_time -- --ignored --nocapture`.
#[test]
#[ignore = "measures, and needs an idle machine"]
fn clones_take_the_time_of_a_checkpoint() {
    const CHANGES: u64 = 5000;
    for row_count in [100_000u64, 1_000_000, 4_000_000] {
        let folder = Folder::new();
        let db = Config::new().memory(256 << 20).open(folder.path()).unwrap();
        let mut load = db.bulk_load("k").unwrap();
        (0..row_count).for_each(|row| load.insert(row.to_be_bytes(), Random(row).bytes(100)).unwrap());
        load.finish().unwrap();
        let k = db.keyspace("k").unwrap();
        // Each round changes the same number of rows, then makes a checkpoint or a clone.
        for is_cloned in [false, true] {
            let is_done = AtomicBool::new(false);
            let (mut total, mut longest) = (Duration::ZERO, Duration::ZERO);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let (mut random, mut longest) = (Random(7), Duration::ZERO);
                    while !is_done.load(Ordering::Relaxed) {
                        let began = Instant::now();
                        let row = random.below(row_count);
                        k.insert_with(row.to_be_bytes(), [row as u8; 100], Durability::Relaxed).unwrap();
                        longest = longest.max(began.elapsed());
                    }
                    longest
                });
                for round in 0..6 {
                    let mut random = Random(round);
                    for _ in 0..CHANGES {
                        let row = random.below(row_count);
                        k.insert_with(row.to_be_bytes(), [round as u8; 100], Durability::Relaxed).unwrap();
                    }
                    let began = Instant::now();
                    match is_cloned {
                        true => drop(db.clone_keyspace("k", &round.to_string()).unwrap()),
                        false => drop(db.checkpoint().unwrap()),
                    }
                    total += began.elapsed();
                }
                is_done.store(true, Ordering::Relaxed);
                longest = writer.join().unwrap();
            });
            let what = if is_cloned { "clone" } else { "checkpoint" };
            println!("{row_count} rows: {:?} for a {what}, longest commit {longest:?}", total / 6);
        }
    }
}
