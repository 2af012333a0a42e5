//! Counts that outlive closing and reopening. The first count reads no leaves, and is correct after any kill or power
//! cut.

use crate::support;

use std::fs;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};

use drumlin::{Config, Database, Durability, Keyspace, Reader};
use drumlin_io::testing::sim::{self, Disk, Loss, Medium};
use support::{Folder, Model, Random, copy_folder};

const KEY_MAX: u64 = 30_000;

fn config() -> Config {
    Config::new().memory(32 << 20).page_bytes(1024).log_segment_bytes(1 << 20).durability(Durability::Relaxed)
}

fn key(number: u64) -> Vec<u8> {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec()
}

fn fill(db: &Database, row_count: u64) -> Model {
    let k = db.keyspace("k").unwrap();
    let mut batch = db.batch().unwrap();
    for number in 0..row_count {
        batch.insert(&k, key(number), [7; 60]).unwrap();
        if number % 1000 == 999 {
            std::mem::replace(&mut batch, db.batch().unwrap()).commit().unwrap();
        }
    }
    batch.commit().unwrap();
    (0..row_count).map(|number| (key(number), vec![7; 60])).collect()
}

/// Makes random inserts and removals, and sometimes removes a whole range so that leaves merge.
fn change(k: &Keyspace, model: &mut Model, random: &mut Random, count: u64) {
    for _ in 0..count {
        let number = random.below(KEY_MAX);
        if random.below(2) == 0 {
            k.remove(key(number)).unwrap();
            model.remove(&key(number));
        } else {
            k.insert(key(number), [8; 60]).unwrap();
            model.insert(key(number), vec![8; 60]);
        }
        if random.below(400) == 0 {
            let from = key(number);
            let gone: Vec<_> = model.range(from..).take(60).map(|(key, _)| key.clone()).collect();
            for key in gone {
                k.remove(&key).unwrap();
                model.remove(&key);
            }
        }
    }
}

/// Compares counts of ranges, ranks and the total count with the model.
fn check(reader: &Reader, k: &Keyspace, model: &Model, random: &mut Random) {
    assert_eq!(reader.len(k).unwrap(), model.len() as u64);
    for _ in 0..20 {
        let mut bound = || match random.below(4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(key(random.below(KEY_MAX))),
            _ => Bound::Included(key(random.below(KEY_MAX))),
        };
        let bounds = (bound(), bound());
        let rows: Vec<_> = model.keys().filter(|key| bounds.contains(*key)).collect();
        assert_eq!(reader.count(k, bounds.clone()).unwrap(), rows.len() as u64, "{bounds:?}");
        let index = random.below(rows.len() as u64 + 1);
        let found = reader.nth(k, bounds.clone(), index).unwrap().map(|(key, _)| key.to_vec());
        assert_eq!(found.as_ref(), rows.get(index as usize).copied(), "row {index} of {bounds:?}");
    }
}

fn files(folder: &Path) -> [PathBuf; 2] {
    ["counts-0", "counts-1"].map(|name| folder.join(name))
}

/// Opens the database without a list of resident pages, counts all rows, and returns the number of pages read for the
/// count.
fn first_count(config: &Config, folder: &Path, expected: u64) -> (Database, u64) {
    let _ = fs::remove_file(folder.join("resident"));
    let db = config.open(folder).unwrap();
    let before = db.stats().page_misses;
    assert_eq!(db.existing_keyspace("k").unwrap().len().unwrap(), expected);
    let reads = db.stats().page_misses - before;
    (db, reads)
}

/// After closing, the first count of the next opening reads only inner nodes. This is also true if that opening only
/// counted rows and found no file of counts.
#[test]
fn the_first_count_after_closing_reads_no_leaves() {
    let folder = Folder::new();
    let mut random = Random(1);
    let db = config().open(folder.path()).unwrap();
    let mut model = fill(&db, 20_000);
    db.close().unwrap();
    let (db, walked) = first_count(&config(), &folder.path(), 20_000);
    let snapshot = db.snapshot();
    db.close().unwrap();
    drop(snapshot);
    for round in 0..4 {
        let (db, reads) = first_count(&config(), &folder.path(), model.len() as u64);
        assert!(walked > 300 && reads < 10, "{reads} reads, {walked} without counts");
        let k = db.existing_keyspace("k").unwrap();
        check(&db.snapshot(), &k, &model, &mut random);
        if round > 0 {
            change(&k, &mut model, &mut random, 700 * round);
            let snapshot = db.snapshot();
            let before = model.clone();
            change(&k, &mut model, &mut random, 700 * round);
            check(&snapshot, &k, &before, &mut random);
            check(&db.snapshot(), &k, &model, &mut random);
        }
        db.close().unwrap();
    }
    let written = files(&folder.path()).map(|file| fs::metadata(file).unwrap().modified().unwrap());
    let (db, _) = first_count(&config(), &folder.path(), model.len() as u64);
    db.close().unwrap();
    let again = files(&folder.path()).map(|file| fs::metadata(file).unwrap().modified().unwrap());
    assert_eq!(again, written, "nothing was counted that was not known");
    // A read-only opening also uses the counts, and so does one without warm start.
    let (db, reads) = first_count(&config().read_only(true), &folder.path(), model.len() as u64);
    db.close().unwrap();
    assert!(reads < 10, "{reads} reads");
    let (db, reads) = first_count(&config().warm_start(false), &folder.path(), model.len() as u64);
    db.close().unwrap();
    assert!(reads < 10, "{reads} reads");
}

/// Without warm start, an opening also stores its counts. If it changes rows, it updates the counts that it found.
#[test]
fn counts_are_kept_without_warm_start() {
    let folder = Folder::new();
    let config = || config().warm_start(false);
    let db = config().open(folder.path()).unwrap();
    let mut model = fill(&db, 20_000);
    db.close().unwrap();
    let (db, reads) = first_count(&config(), &folder.path(), model.len() as u64);
    assert!(reads > 300, "{reads} reads");
    db.close().unwrap();
    let (db, reads) = first_count(&config(), &folder.path(), model.len() as u64);
    assert!(reads < 10, "{reads} reads");
    change(&db.keyspace("k").unwrap(), &mut model, &mut Random(1), 10);
    db.close().unwrap();
    let (_, reads) = first_count(&config(), &folder.path(), model.len() as u64);
    assert!(reads < 100, "{reads} reads");
}

/// After a kill, recovery updates the counts with the commits after the checkpoint, which split and merge leaves. The
/// counts are correct, including at snapshots, and leaves are read only beneath changed pages.
#[test]
fn the_first_count_after_a_kill_is_right() {
    for seed in 0..support::number("DRUMLIN_TEST_SEEDS", 3) {
        let (folder, killed) = (Folder::new(), Folder::new());
        let mut random = Random(seed);
        let db = config().open(folder.path()).unwrap();
        let mut model = fill(&db, 20_000);
        let k = db.keyspace("k").unwrap();
        assert_eq!(k.len().unwrap(), 20_000);
        change(&k, &mut model, &mut random, 300 * seed);
        // When the checkpoint begins, some changes have been folded and some are in the list.
        check(&db.snapshot(), &k, &model, &mut random);
        change(&k, &mut model, &mut random, 100);
        db.checkpoint().unwrap();
        let changes = [0, 20, 2000][seed as usize % 3];
        change(&k, &mut model, &mut random, changes);
        db.sync().unwrap();
        copy_folder(&folder.path(), &killed.path());
        let (recovered, reads) = first_count(&config(), &killed.path(), model.len() as u64);
        assert!(changes == 2000 || reads < 250, "{reads} reads after {changes} changes");
        let k = recovered.existing_keyspace("k").unwrap();
        check(&recovered.snapshot(), &k, &model, &mut random);
        for _ in 0..3 {
            let (snapshot, before) = (recovered.snapshot(), model.clone());
            change(&k, &mut model, &mut random, 1500);
            check(&snapshot, &k, &before, &mut random);
            check(&recovered.snapshot(), &k, &model, &mut random);
        }
        drop(k);
        recovered.close().unwrap();
        let (db, _) = first_count(&config(), &killed.path(), model.len() as u64);
        check(&db.snapshot(), &db.existing_keyspace("k").unwrap(), &model, &mut random);
        db.close().unwrap();
    }
}

/// The pages of an unordered load have higher ids than those of its sorted runs, which are freed afterwards. They are
/// counted nevertheless.
#[test]
fn the_first_count_after_a_load_in_no_order_reads_no_leaves() {
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    let mut load = db.bulk_load("k").unwrap();
    (0..150_000).for_each(|number| load.insert(key(number), [7; 60]).unwrap());
    load.finish().unwrap();
    db.keyspace("k").unwrap().len().unwrap();
    db.close().unwrap();
    let (_, reads) = first_count(&config(), &folder.path(), 150_000);
    assert!(reads < 100, "{reads} reads");
}

/// The first count of a loaded keyspace reads no leaves, whether its rows arrived in order, were sorted in memory, or
/// were sorted as runs. Neither does the first count after closing, and commits update the counts correctly.
#[test]
fn the_first_count_of_a_load_reads_no_leaves() {
    for (is_sorted, row_count) in [(true, 60_000), (false, 2_000), (false, 150_000)] {
        let folder = Folder::new();
        let db = config().open(folder.path()).unwrap();
        let key_of = |number: u64| if is_sorted { number.to_be_bytes().to_vec() } else { key(number) };
        let mut load = db.bulk_load("k").unwrap();
        (0..row_count).for_each(|number| load.insert(key_of(number), [7; 60]).unwrap());
        load.finish().unwrap();
        let k = db.existing_keyspace("k").unwrap();
        let before = db.stats().page_misses;
        assert_eq!(k.len().unwrap(), row_count);
        let reads = db.stats().page_misses - before;
        assert!(reads < 10, "{reads} reads of {row_count} rows");
        drop(k);
        db.close().unwrap();
        let (db, reads) = first_count(&config(), &folder.path(), row_count);
        assert!(reads < 10, "{reads} reads of {row_count} rows after closing");
        let k = db.existing_keyspace("k").unwrap();
        let mut model: Model = (0..row_count).map(|number| (key_of(number), vec![7; 60])).collect();
        let snapshot = db.snapshot();
        let unchanged = model.clone();
        change(&k, &mut model, &mut Random(row_count), 3000);
        check(&db.snapshot(), &k, &model, &mut Random(1));
        check(&snapshot, &k, &unchanged, &mut Random(1));
    }
}

/// Snapshots taken before a load, right after it, and after later commits get the correct counts.
#[test]
fn a_load_begins_with_its_counts() {
    let db = config().open(Folder::new().path()).unwrap();
    let before = db.snapshot();
    let mut load = db.bulk_load("k").unwrap();
    (0..20_000).for_each(|number| load.insert(key(number), [7; 60]).unwrap());
    load.finish().unwrap();
    let k = db.existing_keyspace("k").unwrap();
    let mut model: Model = (0..20_000).map(|number| (key(number), vec![7; 60])).collect();
    let loaded = db.snapshot();
    change(&k, &mut model, &mut Random(1), 500);
    assert_eq!(before.len(&k).unwrap(), 0);
    assert_eq!(loaded.len(&k).unwrap(), 20_000);
    check(&db.snapshot(), &k, &model, &mut Random(2));
}

/// A check counts all rows, so the first count of the next opening reads no leaves.
#[test]
fn a_check_keeps_its_counts() {
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    let model = fill(&db, 20_000);
    db.close().unwrap();
    let db = config().open(folder.path()).unwrap();
    assert!(db.check().unwrap().corruption.is_empty());
    db.close().unwrap();
    let (db, reads) = first_count(&config(), &folder.path(), 20_000);
    assert!(reads < 10, "{reads} reads");
    check(&db.snapshot(), &db.existing_keyspace("k").unwrap(), &model, &mut Random(1));
}

/// Rows are removed from a tree with stored counts, then a bulk load replaces the tree, then the process is killed. The
/// removals and the load are only in the log. The first count must not subtract the removals from the rows of the load,
/// whether they are so many that it would fold them, or so few that it would add them up.
#[test]
fn the_first_count_of_a_load_after_a_kill_is_right() {
    for row_count in [1_500, 20_000] {
        let (folder, killed) = (Folder::new(), Folder::new());
        let db = config().open(folder.path()).unwrap();
        fill(&db, row_count);
        let k = db.keyspace("k").unwrap();
        assert_eq!(k.len().unwrap(), row_count);
        db.checkpoint().unwrap();
        (0..row_count).for_each(|number| k.remove(key(number)).unwrap());
        let mut load = db.bulk_load("k").unwrap();
        (0..30_000u64).for_each(|number| load.insert(number.to_be_bytes(), [5; 60]).unwrap());
        assert_eq!(load.finish().unwrap().rows, 30_000);
        copy_folder(&folder.path(), &killed.path());
        let (recovered, _) = first_count(&config(), &killed.path(), 30_000);
        let model = (0..30_000u64).map(|number| (number.to_be_bytes().to_vec(), vec![5; 60])).collect();
        check(&recovered.snapshot(), &recovered.existing_keyspace("k").unwrap(), &model, &mut Random(1));
    }
}

/// A file of counts is ignored if it is damaged or truncated, or belongs to a different database, to a different
/// checkpoint, or to a diverged copy with the same commit and checkpoint number. The count then walks the leaves and is
/// correct.
#[test]
fn a_file_of_another_state_is_skipped() {
    let (folder, other) = (Folder::new(), Folder::new());
    let mut random = Random(3);
    let db = config().open(folder.path()).unwrap();
    let mut model = fill(&db, 20_000);
    let k = db.keyspace("k").unwrap();
    assert_eq!(k.len().unwrap(), 20_000);
    drop(k);
    db.close().unwrap();
    // Two copies diverge, with the same numbers of commits and checkpoints.
    copy_folder(&folder.path(), &other.path());
    for (folder, from) in [(&folder, 0), (&other, 500)] {
        let db = config().open(folder.path()).unwrap();
        let k = db.keyspace("k").unwrap();
        for number in 0..200 {
            k.remove(key(from + number)).unwrap();
        }
        k.insert(key(40_000 + from), "more").unwrap();
        assert_eq!(k.len().unwrap(), 19_801);
        db.close().unwrap();
    }
    (0..200).for_each(|number| drop(model.remove(&key(number))));
    model.insert(key(40_000), b"more".to_vec());
    let sound = files(&folder.path()).map(|file| fs::read(file).unwrap());
    let foreign = files(&other.path()).map(|file| fs::read(file).unwrap());
    for round in 0..60 {
        let mut damaged = sound.clone();
        match round {
            0 => damaged = Default::default(),
            1 => damaged = foreign.clone(),
            2 => damaged.swap(0, 1),
            3 => damaged.iter_mut().for_each(|bytes| bytes.truncate(bytes.len() / 2 / 4096 * 4096)),
            // Combine the head of this copy's file with parts of the other copy's, and vice versa.
            4 => (0..2)
                .for_each(|file| damaged[file].splice(4096.., foreign[file][4096..].iter().copied()).for_each(drop)),
            5 => (0..2).for_each(|file| damaged[file][..4096].copy_from_slice(&foreign[file][..4096])),
            6 => damaged.iter_mut().for_each(|bytes| drop(bytes.drain(4096..8192))),
            _ => damaged.iter_mut().for_each(|bytes| {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }),
        }
        for (file, bytes) in files(&folder.path()).iter().zip(damaged) {
            fs::write(file, bytes).unwrap();
        }
        let (db, reads) = first_count(&config().read_only(true), &folder.path(), model.len() as u64);
        assert!(reads > 300, "round {round}: {reads} reads");
        if round < 8 {
            check(&db.snapshot(), &db.existing_keyspace("k").unwrap(), &model, &mut random);
        }
        db.close().unwrap();
    }
    for (file, bytes) in files(&folder.path()).iter().zip(sound) {
        fs::write(file, bytes).unwrap();
    }
    let (db, reads) = first_count(&config(), &folder.path(), model.len() as u64);
    assert!(reads < 10, "{reads} reads");
    db.close().unwrap();
}

/// After a kill, earlier counts are not used for a keyspace that was cleared and bulk loaded, or dropped and recreated.
#[test]
fn keyspaces_that_are_loaded_or_made_again_begin_without_counts() {
    let (folder, killed) = (Folder::new(), Folder::new());
    let db = config().open(folder.path()).unwrap();
    let names = ["dropped", "loaded"];
    for name in names {
        let k = db.keyspace(name).unwrap();
        for first in (0..20_000).step_by(500) {
            let mut batch = db.batch().unwrap();
            (first..first + 500).for_each(|number| batch.insert(&k, key(number), [7; 60]).unwrap());
            batch.commit().unwrap();
        }
        assert_eq!(k.len().unwrap(), 20_000);
    }
    let loaded = db.keyspace("loaded").unwrap();
    db.checkpoint().unwrap();
    loaded.clear().unwrap();
    assert_eq!(loaded.len().unwrap(), 0);
    let mut load = db.bulk_load("loaded").unwrap();
    for number in 0..30_000u64 {
        load.insert(number.to_be_bytes(), [9; 50]).unwrap();
    }
    load.finish().unwrap();
    db.drop_keyspace("dropped").unwrap();
    let made = db.keyspace("dropped").unwrap();
    (0..2500).for_each(|number| made.insert(key(number), [1; 60]).unwrap());
    db.sync().unwrap();
    copy_folder(&folder.path(), &killed.path());
    let db = config().open(killed.path()).unwrap();
    for (name, expected) in names.iter().zip([2500, 30_000]) {
        let k = db.existing_keyspace(name).unwrap();
        assert_eq!(k.len().unwrap(), expected);
        let half = key(7)..;
        assert_eq!(k.count(half.clone()).unwrap(), k.range(half).keys().count() as u64);
    }
}

/// After a power cut at any write or sync of a session with checkpoints, commits and counts, every count in the next
/// opening equals the number of rows that a walk of the tree finds. The disk retains any subset of the unsynced writes,
/// including those of the files of counts.
#[test]
fn counts_after_a_power_cut_are_those_of_a_walk() {
    let config = |disk: &Disk| {
        Config::new()
            .memory(8 << 20)
            .page_bytes(512)
            .segment_bytes(256 << 10)
            .log_segment_bytes(1 << 20)
            .durability(Durability::Relaxed)
            .backend(disk.backend())
    };
    let mut random = Random(11);
    let disk = Disk::new(Medium::default(), 1);
    let db = config(&disk).open("/db").unwrap();
    let mut model = fill(&db, 1500);
    let k = db.keyspace("k").unwrap();
    assert_eq!(k.len().unwrap(), 1500);
    db.close().unwrap();
    disk.turn_off();
    let mut medium = disk.medium();

    let disk = Disk::new(medium.clone(), 2);
    disk.record();
    let db = config(&disk).open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    for _ in 0..4 {
        change(&k, &mut model, &mut random, 60);
        k.len().unwrap();
        change(&k, &mut model, &mut random, 10);
        db.checkpoint().unwrap();
    }
    change(&k, &mut model, &mut random, 30);
    db.close().unwrap();
    disk.turn_off();
    for change in disk.recorded() {
        for how in Loss::ALL {
            let after = medium.cut(how, &mut sim::Random(random.next()));
            let db = config(&Disk::new(after, random.next())).open("/db").unwrap();
            let k = db.existing_keyspace("k").unwrap();
            for bounds in [key(0).., key(random.below(KEY_MAX)).., key(random.below(KEY_MAX))..] {
                let walked = k.range(bounds.clone()).keys().count() as u64;
                assert_eq!(k.count(bounds).unwrap(), walked);
            }
            assert_eq!(k.len().unwrap(), k.iter().keys().count() as u64);
        }
        medium.apply(&change);
    }
}

/// Measures the first count of a cold database larger than memory, after closing and after a kill. Run with `--ignored
/// --nocapture` to print the reads and times. `DRUMLIN_TEST_ROWS` is the number of rows (default 1,500,000).
#[test]
#[ignore = "takes a minute"]
fn the_first_count_of_many_rows_is_cheap() {
    let rows = support::number("DRUMLIN_TEST_ROWS", 1_500_000);
    let config = || Config::new().memory(64 << 20).durability(Durability::Relaxed);
    let (folder, killed) = (Folder::new(), Folder::new());
    let db = config().open(folder.path()).unwrap();
    let mut load = db.bulk_load("k").unwrap();
    (0..rows).for_each(|number| load.insert(number.to_be_bytes(), [7; 60]).unwrap());
    load.finish().unwrap();
    db.close().unwrap();
    let open = |folder: &Path, expected: u64| {
        let began = std::time::Instant::now();
        let _ = fs::remove_file(folder.join("resident"));
        let db = config().open(folder).unwrap();
        let (opened, before) = (began.elapsed(), db.stats().device_reads);
        let began = std::time::Instant::now();
        assert_eq!(db.existing_keyspace("k").unwrap().len().unwrap(), expected);
        let (counted, reads) = (began.elapsed(), db.stats().device_reads - before);
        println!("opened in {opened:?}, {expected} rows counted in {counted:?} with {reads} reads");
        (db, reads)
    };
    let (db, loaded) = open(&folder.path(), rows);
    db.close().unwrap();
    let (db, reads) = open(&folder.path(), rows);
    assert!(loaded < 100 && reads < 100, "{reads} reads, {loaded} after the load");
    let k = db.existing_keyspace("k").unwrap();
    (0..1000).for_each(|number| k.remove((number * 997 % rows).to_be_bytes()).unwrap());
    db.checkpoint().unwrap();
    (1000..1020).for_each(|number| k.remove((number * 997 % rows).to_be_bytes()).unwrap());
    db.sync().unwrap();
    copy_folder(&folder.path(), &killed.path());
    drop(db);
    let (db, reads) = open(&killed.path(), rows - 1020);
    assert!(reads < 100, "{reads} reads");
    let k = db.existing_keyspace("k").unwrap();
    assert_eq!(k.iter().keys().count() as u64, rows - 1020);
}
