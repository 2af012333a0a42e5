//! Bulk loads are all or nothing: for readers and writers, after power cuts, and on full disks.

use crate::support;

use std::sync::atomic::{AtomicBool, Ordering};

use drumlin::{Config, Database, Durability, Error, Isolation, Keyspace, KeyspaceOptions, TxOptions};
use drumlin_io::testing::sim::{self, Disk, Loss, Medium};
use smol::block_on;
use support::{Model, Random, compare, faulty, number, small};

/// Returns rows with keys of several lengths and prefixes, and values of every kind, few of which are large.
fn some_rows(seed: u64, count: u64) -> Model {
    let mut random = Random(seed);
    let mut rows = Model::new();
    while (rows.len() as u64) < count {
        let prefix = ["", "customer/", "customer/orders/2026/"][random.below(3) as usize];
        let key = format!("{prefix}{:06}", random.below(1_000_000)).into_bytes();
        let length = match random.below(200) {
            0 => 66_000 + random.below(250_000),
            1..6 => 300 + random.below(6000),
            _ => random.below(120),
        };
        rows.insert(key, random.bytes(length as usize));
    }
    rows
}

/// Loads rows into a keyspace.
fn load(db: &Database, name: &str, rows: &Model) -> drumlin::Result<()> {
    let mut load = db.bulk_load(name)?;
    rows.iter().try_for_each(|(key, value)| load.insert(key, value))?;
    assert_eq!(load.finish()?.rows, rows.len() as u64);
    Ok(())
}

/// Loads rows in random order. Every tenth row is loaded twice, first with a different value.
fn load_in_any_order(db: &Database, name: &str, rows: &Model, seed: u64) -> drumlin::Result<()> {
    let mut load = db.bulk_load(name)?;
    insert_in_any_order(rows, seed, |key, value| load.insert(key, value))?;
    assert_eq!(load.finish()?.rows, rows.len() as u64);
    Ok(())
}

fn insert_in_any_order(
    rows: &Model,
    seed: u64,
    mut insert: impl FnMut(&[u8], &[u8]) -> drumlin::Result<()>,
) -> drumlin::Result<()> {
    let mut random = Random(seed);
    let mut order: Vec<_> = rows.iter().collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    for (number, (key, value)) in order.iter().enumerate() {
        if number % 10 == 0 {
            insert(key, &random.bytes([3, 2000, 70_000][number / 10 % 3 * usize::from(number % 500 == 0)]))?;
        }
        if number > 0 && number % 10 == 1 {
            let (key, value) = order[number - 1];
            insert(key, value)?;
        }
        if number % 10 != 0 || number + 1 == order.len() {
            insert(key, value)?;
        }
    }
    Ok(())
}

/// Checks by reads and by scans from either end that the keyspace has exactly these rows, and that the database is
/// undamaged.
fn assert_holds(db: &Database, keyspace: &Keyspace, rows: &Model) {
    compare(keyspace, rows);
    let unwrapped = |row: drumlin::Result<(drumlin::Value, drumlin::Value)>| {
        row.map(|(key, value)| (key.into_vec(), value.into_vec())).unwrap()
    };
    let cloned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
    assert!(keyspace.iter().map(unwrapped).eq(rows.iter().map(cloned)));
    assert!(keyspace.iter().rev().map(unwrapped).eq(rows.iter().rev().map(cloned)));
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{report:#?}");
}

/// Sorted rows of any number and kind, at every page size, are present right after the load, after reopening, after a
/// checkpoint, and with later changes.
#[test]
fn sorted_rows_are_loaded() {
    for (seed, count) in (0..).zip([0, 1, 2, 40, 1000, 9000]) {
        for page_bytes in [512, 4096, 65_536] {
            let backend = drumlin_io::in_memory();
            let config = small().backend(backend);
            let db = config.open("/db").unwrap();
            db.keyspace_with("k", KeyspaceOptions::new().page_bytes(page_bytes)).unwrap();
            let mut rows = some_rows(seed, count);
            load(&db, "k", &rows).unwrap();
            let keyspace = db.keyspace("k").unwrap();
            assert_holds(&db, &keyspace, &rows);
            let mut random = Random(seed);
            for step in 0..300 {
                let key = format!("customer/{:06}", random.below(1_000_000)).into_bytes();
                let length = random.below(400) as usize;
                let value = random.bytes(length);
                keyspace.insert(&key, &value).unwrap();
                rows.insert(key, value);
                if step % 3 == 0 {
                    let key = rows.keys().nth(random.below(rows.len() as u64) as usize).unwrap().clone();
                    keyspace.remove(&key).unwrap();
                    rows.remove(&key);
                }
            }
            drop((db, keyspace));
            let db = config.open("/db").unwrap();
            assert_holds(&db, &db.keyspace("k").unwrap(), &rows);
            db.compact().unwrap();
            assert_holds(&db, &db.keyspace("k").unwrap(), &rows);
        }
    }
}

/// A load accepts rows of every kind in any order, at every page size. It sorts a few rows in memory, and many rows as
/// runs, which it merges more than once if pages are large.
#[test]
fn rows_in_any_order_are_loaded() {
    for (seed, count) in (0..).zip([1, 2, 40, 1000, 30_000]) {
        for page_bytes in [512, 4096, 65_536] {
            let (_, config) = faulty();
            let db = config.open("/db").unwrap();
            db.keyspace_with("k", KeyspaceOptions::new().page_bytes(page_bytes)).unwrap();
            let mut rows = some_rows(seed, count.min(1000));
            let mut random = Random(seed);
            while (rows.len() as u64) < count {
                let length = random.below(120) as usize;
                rows.insert(format!("many/{:08}", random.below(100_000_000)).into_bytes(), random.bytes(length));
            }
            load_in_any_order(&db, "k", &rows, seed).unwrap();
            let user_bytes: usize = rows.iter().map(|(key, value)| key.len() + value.len()).sum();
            // The merged result reuses the space of the runs.
            let file_bytes = db.stats().data_file_bytes as usize;
            println!("{count} rows of {user_bytes} bytes in pages of {page_bytes}: {file_bytes} bytes of file");
            assert_holds(&db, &db.keyspace("k").unwrap(), &rows);
            db.checkpoint().unwrap();
            let live_bytes = db.stats().live_bytes as usize;
            assert!(live_bytes < user_bytes * 2 + (64 << 10), "{live_bytes} bytes live of {user_bytes} loaded");
            let stats = db.stats();
            assert!(stats.memory_used_bytes <= stats.memory_budget_bytes, "{stats:?}");
            drop(db);
            let db = config.open("/db").unwrap();
            assert_holds(&db, &db.keyspace("k").unwrap(), &rows);
        }
    }
}

/// If rows arrive in order for a long time and then out of order, the part packed so far becomes the first run. Later
/// rows with the same keys replace its rows, whichever run they are in.
#[test]
fn the_latest_row_counts_among_runs() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let mut load = db.bulk_load("k").unwrap();
    let mut rows = Model::new();
    let mut insert = |key: u32, value: Vec<u8>| {
        load.insert(key.to_be_bytes(), &value).unwrap();
        rows.insert(key.to_be_bytes().to_vec(), value);
    };
    for key in 0..20_000 {
        insert(key, vec![0; if key % 1000 == 0 { 70_000 } else { 60 }]);
    }
    for round in 1..4u8 {
        for key in (0..20_000).rev().filter(|key| key % (u32::from(round) + 1) == 0) {
            insert(key, vec![round; if key % 3000 == 0 { 90_000 } else { 50 }]);
        }
    }
    assert_eq!(load.finish().unwrap().rows, 20_000);
    assert_holds(&db, &db.keyspace("k").unwrap(), &rows);
    db.checkpoint().unwrap();
    let large_bytes: usize = rows.values().map(Vec::len).filter(|length| *length > 60_000).sum();
    let live_bytes = db.stats().live_bytes as usize;
    assert!(live_bytes < large_bytes + (3 << 20), "{live_bytes} bytes live: values that were replaced are kept");
}

/// If several rows have the same key, the last one wins, even if both values are large.
#[test]
fn the_last_of_equal_keys_counts() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let live_bytes = {
        let mut load = db.bulk_load("k").unwrap();
        for length in [10, 200_000, 3000, 70_000, 5] {
            load.insert("a", vec![length as u8; length]).unwrap();
        }
        load.insert("b", "").unwrap();
        load.insert("b", [1; 90_000]).unwrap();
        assert_eq!(load.finish().unwrap().rows, 2);
        db.checkpoint().unwrap();
        db.stats().live_bytes
    };
    let rows = Model::from([(b"a".to_vec(), vec![5; 5]), (b"b".to_vec(), vec![1; 90_000])]);
    assert_holds(&db, &db.keyspace("k").unwrap(), &rows);
    assert!(live_bytes < 60_000, "{live_bytes} bytes live: values that were replaced are not given back");
}

/// A load can have far more rows than fit in memory.
#[test]
fn a_load_is_larger_than_memory() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let mut load = db.bulk_load("k").unwrap();
    let value = |row: u64| Random(row).bytes(100);
    for row in 0..400_000u64 {
        load.insert(row.to_be_bytes(), value(row)).unwrap();
    }
    let report = load.finish().unwrap();
    assert_eq!(report.rows, 400_000);
    let keyspace = db.keyspace("k").unwrap();
    for row in (0..400_000u64).step_by(997) {
        assert_eq!(keyspace.get(row.to_be_bytes()).unwrap().unwrap(), value(row));
    }
    assert_eq!(keyspace.count(..).unwrap(), 400_000);
    let stats = db.stats();
    assert!(stats.memory_used_bytes <= stats.memory_budget_bytes, "{stats:?}");
    drop((db, keyspace));
    let db = config.open("/db").unwrap();
    assert_eq!(db.keyspace("k").unwrap().count(..).unwrap(), 400_000);
}

/// A load rejects keys that are too long, and continues without those rows.
#[test]
fn what_is_refused_is_not_loaded() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let mut load = db.bulk_load("k").unwrap();
    load.insert("b", "1").unwrap();
    assert!(matches!(load.insert(vec![b'x'; 257], "2"), Err(Error::KeyTooLong { .. })));
    load.insert("c", "3").unwrap();
    assert_eq!(load.finish().unwrap().rows, 2);
    assert_eq!(db.keyspace("k").unwrap().count(..).unwrap(), 2);
}

/// Values can come from sources of any length. A source that fails neither adds nor removes a row, and the load
/// continues.
#[test]
fn values_come_from_sources() {
    for is_sorted in [true, false] {
        let (_, config) = faulty();
        let db = config.open("/db").unwrap();
        let mut load = db.bulk_load("k").unwrap();
        let mut rows = Model::new();
        if !is_sorted {
            load.insert("z", "1").unwrap();
            rows.insert(b"z".to_vec(), b"1".to_vec());
        }
        for (key, length) in [("a", 0), ("b", 10), ("c", 65_536), ("d", 65_537), ("e", 400_000)] {
            let value = Random(length as u64).bytes(length);
            assert_eq!(load.insert_from(key, &value[..]).unwrap(), length as u64);
            rows.insert(key.into(), value);
            let failing = Failing { left: length + 70_000 };
            assert!(matches!(load.insert_from(key, failing), Err(Error::Source { .. })));
        }
        assert_eq!(load.finish().unwrap().rows, rows.len() as u64);
        assert_holds(&db, &db.keyspace("k").unwrap(), &rows);
        db.checkpoint().unwrap();
        assert!(db.stats().live_bytes < 600_000, "{} bytes live", db.stats().live_bytes);
    }
}

/// A source that fails after this many bytes.
struct Failing {
    left: usize,
}

impl std::io::Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.left.min(buffer.len());
        if count == 0 {
            return Err(std::io::Error::other("the source failed"));
        }
        buffer[..count].fill(1);
        self.left -= count;
        Ok(count)
    }
}

/// A dropped load leaves behind no rows and no pages, and uses no space.
#[test]
fn a_load_that_is_dropped_leaves_nothing() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    db.checkpoint().unwrap();
    let (before, pages) = (db.stats(), db.keyspaces()[0].page_count);
    for round in 0..6 {
        let rows = some_rows(round, 3000);
        let mut load = db.bulk_load("k").unwrap();
        if round < 3 {
            rows.iter().for_each(|(key, value)| load.insert(key, value).unwrap());
        } else {
            (0..12_000u32).rev().for_each(|key| load.insert(key.to_be_bytes(), [7; 100]).unwrap());
            insert_in_any_order(&rows, round, |key, value| load.insert(key, value)).unwrap();
        }
        if round % 2 == 0 {
            // A checkpoint during the load records no part of it.
            keyspace.insert("other", [round as u8; 10]).unwrap();
            db.checkpoint().unwrap();
            keyspace.remove("other").unwrap();
        }
        drop(load);
    }
    assert_eq!((keyspace.count(..).unwrap(), db.keyspaces()[0].page_count), (0, pages));
    db.checkpoint().unwrap();
    let after = db.stats();
    assert!(after.live_bytes < before.live_bytes + (16 << 10), "{} bytes, {}", before.live_bytes, after.live_bytes);
    load(&db, "k", &some_rows(7, 500)).unwrap();
}

/// A load succeeds if its keyspace has rows, receives rows during the load, or has locked rows. It also succeeds if
/// only a snapshot still sees rows of the keyspace, and does not change what the snapshot sees.
#[test]
fn a_keyspace_in_use_takes_a_load() {
    let rows = some_rows(5, 2500);
    let old = Model::from([(b"customer/".to_vec(), vec![1]), (b"zebra".to_vec(), vec![2; 70_000])]);
    type Hold = fn(&Database, &Keyspace, &Model) -> Box<dyn std::any::Any>;
    let nothing: Hold = |_, _, _| Box::new(());
    let puts: Hold = |_, keyspace, old| {
        old.iter().for_each(|(key, value)| keyspace.insert(key, value).unwrap());
        Box::new(())
    };
    let sees: Hold = |db, keyspace, old| {
        old.iter().for_each(|(key, value)| keyspace.insert(key, value).unwrap());
        let snapshot = db.snapshot();
        old.keys().for_each(|key| keyspace.remove(key).unwrap());
        Box::new(snapshot)
    };
    let locks: Hold = |db, keyspace, _| {
        let mut tx = db.begin().unwrap();
        tx.insert(keyspace, "locked", "").unwrap();
        Box::new(tx)
    };
    for (before, during, has_old) in [
        (puts, nothing, true),
        (nothing, puts, true),
        (sees, nothing, false),
        (nothing, sees, false),
        (locks, nothing, false),
        (nothing, locks, false),
    ] {
        for is_sorted in [true, false] {
            let (_, config) = faulty();
            let db = config.open("/db").unwrap();
            let keyspace = db.keyspace("k").unwrap();
            let mut held = vec![before(&db, &keyspace, &old)];
            let mut load = db.bulk_load("k").unwrap();
            match is_sorted {
                true => rows.iter().for_each(|(key, value)| load.insert(key, value).unwrap()),
                false => insert_in_any_order(&rows, 3, |key, value| load.insert(key, value)).unwrap(),
            }
            held.push(during(&db, &keyspace, &old));
            db.checkpoint().unwrap();
            load.finish().unwrap();
            let mut expected = if has_old { old.clone() } else { Model::new() };
            expected.extend(rows.clone());
            assert_holds(&db, &keyspace, &expected);
            for held in held {
                match held.downcast::<drumlin::Snapshot>() {
                    Ok(snapshot) => assert_eq!(snapshot.count(&keyspace, ..).unwrap(), old.len() as u64),
                    Err(held) => {
                        if let Ok(tx) = held.downcast::<drumlin::Transaction>() {
                            tx.commit().unwrap();
                            expected.insert(b"locked".to_vec(), Vec::new());
                        }
                    }
                }
            }
            assert_holds(&db, &keyspace, &expected);
            drop((db, keyspace));
            let db = config.open("/db").unwrap();
            assert_holds(&db, &db.keyspace("k").unwrap(), &expected);
        }
    }
}

/// Once the last snapshot that saw removed rows is dropped, their old versions do not prevent a load, even if they have
/// not been collected yet.
#[test]
fn versions_that_no_snapshot_needs_refuse_no_load() {
    let rows = some_rows(6, 500);
    let db = Config::in_memory().open("").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    keyspace.insert("row", "old").unwrap();
    let snapshot = db.snapshot();
    keyspace.remove("row").unwrap();
    drop(snapshot);
    load_in_any_order(&db, "k", &rows, 3).unwrap();
    assert_holds(&db, &keyspace, &rows);
}

/// A keyspace larger than memory accepts a load once all its rows have been removed, in any order, even if some of its
/// leaves can't be merged. If one of those leaves has a row after all, the load finds the row and is refused.
#[test]
fn an_emptied_keyspace_larger_than_memory_takes_a_load() {
    let mut page_count_max = 0;
    for (page_bytes, key_bytes, row_count, stride) in
        [(4096, 8, 150_000u64, None), (4096, 8, 150_000, Some(7919)), (512, 128, 60_000, Some(7919))]
    {
        let (_, config) = faulty();
        let db = config.clone().durability(Durability::Relaxed).open("/db").unwrap();
        let keyspace = db.keyspace_with("k", KeyspaceOptions::new().page_bytes(page_bytes)).unwrap();
        // Long keys that differ only in their last bytes give leaves long fences.
        let key = |row: u64| [&vec![b'k'; key_bytes - 8][..], &row.to_be_bytes()].concat();
        let mut full = db.bulk_load("k").unwrap();
        (0..row_count).for_each(|row| full.insert(key(row), Random(row).bytes(60)).unwrap());
        full.finish().unwrap();
        match stride {
            None => keyspace.clear().unwrap(),
            Some(stride) => (0..row_count).for_each(|row| {
                keyspace.remove(key(row * stride % row_count)).unwrap();
            }),
        }
        db.sync().unwrap();
        let page_count = db.keyspaces()[0].page_count;
        println!("{page_count} pages of {page_bytes} bytes remain");
        page_count_max = page_count_max.max(page_count);
        let rows = some_rows(1, 300);
        let mut above = db.bulk_load("k").unwrap();
        rows.iter().for_each(|(key, value)| above.insert(key, value).unwrap());
        keyspace.insert(key(row_count / 2), "").unwrap();
        above.finish().unwrap();
        assert!(keyspace.contains_key(key(row_count / 2)).unwrap(), "a load has hidden a row");
        keyspace.clear().unwrap();
        load(&db, "k", &rows).unwrap();
        assert_holds(&db, &keyspace, &rows);
        drop((db, keyspace));
        let db = config.open("/db").unwrap();
        assert_holds(&db, &db.keyspace("k").unwrap(), &rows);
    }
    assert!(page_count_max > 10, "removals merged all leaves but {page_count_max}");
}

/// A keyspace that was emptied accepts a load like a new keyspace, if no snapshot sees its rows.
#[test]
fn an_emptied_keyspace_takes_a_load() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for round in 0..5 {
        let rows = some_rows(round, 30);
        load(&db, "k", &rows).unwrap();
        assert_holds(&db, &keyspace, &rows);
        keyspace.clear().unwrap();
        assert_eq!(keyspace.count(..).unwrap(), 0);
        keyspace.insert("x", vec![1; 50_000]).unwrap();
        keyspace.remove("x").unwrap();
    }
}

/// A keyspace that is filled, emptied and refilled, by loads and by transactions, reuses its page numbers. Its rows are
/// correct afterwards, after reopening and after recovery, regardless of when checkpoints were made.
#[test]
fn page_numbers_are_used_again() {
    for ways in 0..16u32 {
        let mut disk = Disk::new(Medium::default(), 3);
        let mut db = cut_config(&disk).open("/db").unwrap();
        db.keyspace("k").unwrap();
        let mut page_counts = Vec::new();
        for round in 0..6u64 {
            let rows: Model = (0..3000 / (round % 3 + 1))
                .map(|row| ((row * (round + 3)).to_be_bytes().to_vec(), Random(row ^ round).bytes(20)))
                .collect();
            if round % 3 == 1 {
                let keyspace = db.keyspace("k").unwrap();
                rows.iter().for_each(|(key, value)| keyspace.insert_with(key, value, Durability::Relaxed).unwrap());
                db.sync().unwrap();
            } else {
                load(&db, "k", &rows).unwrap();
            }
            // Use the keyspace first while it is full, then after it is emptied.
            for is_filled in [true, false] {
                if !is_filled {
                    db.keyspace("k").unwrap().clear().unwrap();
                }
                if ways & if is_filled { 1 } else { 2 } != 0 {
                    db.checkpoint().unwrap();
                }
                if ways & if is_filled { 4 } else { 8 } != 0 {
                    disk.turn_off();
                    drop(db);
                    disk = Disk::new(disk.medium(), round);
                    db = cut_config(&disk).open("/db").unwrap();
                }
                compare(&db.keyspace("k").unwrap(), if is_filled { &rows } else { const { &Model::new() } });
            }
            let report = db.check().unwrap();
            page_counts.push(db.keyspaces()[0].page_count);
            assert!(report.corruption.is_empty(), "ways {ways}, round {round}: {report:#?}");
        }
        db.close().unwrap();
        let db = cut_config(&disk).open("/db").unwrap();
        assert_eq!(db.keyspace("k").unwrap().count(..).unwrap(), 0);
        assert!(db.stats().table_bytes < 64 << 10, "{} bytes of page tables: {page_counts:?}", db.stats().table_bytes);
    }
}

/// Snapshots and transactions from before the load see an empty keyspace, through every kind of read. The load
/// conflicts with the writes and reads of such transactions in the keyspace.
#[test]
fn readers_from_before_do_not_see_the_rows() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let other = db.keyspace("other").unwrap();
    let rows = some_rows(3, 3000);
    let (first, last) = (rows.keys().next().unwrap(), rows.keys().next_back().unwrap());
    let snapshot = db.snapshot();
    let begin = |isolation| db.begin_with(TxOptions { isolation, ..db.tx_options() }).unwrap();
    let mut writer = begin(Isolation::Snapshot);
    let mut reader = begin(Isolation::Serializable);
    let mut scanner = begin(Isolation::Serializable);
    let mut bystander = begin(Isolation::Serializable);
    // Use a row of the load that no later commit changes, so that only the load can conflict.
    let untouched = rows.keys().nth(rows.len() / 2).unwrap();
    assert_eq!(reader.get(&keyspace, untouched).unwrap(), None);
    assert_eq!(scanner.count(&keyspace, ..).unwrap(), 0);
    load(&db, "k", &rows).unwrap();
    for _ in 0..2 {
        assert!(snapshot.is_empty(&keyspace).unwrap());
        assert_eq!(snapshot.get(&keyspace, first).unwrap(), None);
        assert_eq!(snapshot.get_many(&keyspace, &[first, last]).unwrap(), [None, None]);
        assert_eq!(snapshot.count(&keyspace, ..).unwrap(), 0);
        assert_eq!(snapshot.iter(&keyspace).rev().count() + snapshot.prefix(&keyspace, "customer").count(), 0);
        assert!(snapshot.first(&keyspace).unwrap().is_none() && snapshot.last(&keyspace).unwrap().is_none());
        // Changes made after the load make no difference.
        keyspace.insert(first, "changed").unwrap();
        keyspace.remove(last).unwrap();
    }
    assert_eq!(writer.get(&keyspace, untouched).unwrap(), None);
    assert!(writer.insert(&keyspace, untouched, "lost").is_err_and(|error| error.is_conflict()));
    scanner.insert(&other, "c", "").unwrap();
    assert!(scanner.commit().is_err_and(|error| error.is_conflict()));
    reader.insert(&other, "a", "").unwrap();
    assert!(reader.commit().is_err_and(|error| error.is_conflict()));
    bystander.insert(&other, "b", "").unwrap();
    bystander.commit().unwrap();
    assert_eq!(db.snapshot().count(&keyspace, ..).unwrap(), rows.len() as u64 - 1);
}

/// If two loads into the same keyspace run concurrently, both are attached, one after the other. Loads into different
/// keyspaces do not disturb each other.
#[test]
fn loads_run_concurrently() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let rows: Vec<Model> = (0..4).map(|seed| some_rows(seed, 2500)).collect();
    let names = ["k", "k", "l", "m"];
    std::thread::scope(|scope| {
        for (rows, name) in rows.iter().zip(names) {
            let db = &db;
            scope.spawn(move || load(db, name, rows).unwrap());
        }
    });
    let after =
        |first: &Model, second: &Model| first.iter().chain(second).map(|(k, v)| (k.clone(), v.clone())).collect();
    let ways: [Model; 2] = [after(&rows[0], &rows[1]), after(&rows[1], &rows[0])];
    let keyspace = db.keyspace("k").unwrap();
    let is_way = |rows: &&Model| {
        rows.iter().all(|(key, value)| keyspace.get(key).unwrap().is_some_and(|found| found[..] == value[..]))
    };
    let expected = ways.iter().find(is_way).expect("one load after the other");
    assert_holds(&db, &keyspace, expected);
    assert_holds(&db, &db.keyspace("l").unwrap(), &rows[2]);
    assert_holds(&db, &db.keyspace("m").unwrap(), &rows[3]);
}

/// Loads can begin until their memory is used up, which in most budgets allows at least four loads. Each of them can
/// sort rows.
#[test]
fn loads_that_have_begun_can_sort() {
    for (memory, page_bytes, least) in
        [(8 << 20, 512, 4), (8 << 20, 4096, 4), (8 << 20, 65_536, 1), (24 << 20, 65_536, 4)]
    {
        let (_, config) = faulty();
        let db = config.memory(memory).open("/db").unwrap();
        let name = |number: usize| format!("k{number}");
        let mut loads = Vec::new();
        loop {
            let name = name(loads.len());
            db.keyspace_with(&name, KeyspaceOptions::new().page_bytes(page_bytes)).unwrap();
            match db.bulk_load(&name) {
                Ok(load) => loads.push((load, some_rows(loads.len() as u64, 1000))),
                Err(Error::MemoryInUse { .. }) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
        assert!(loads.len() >= least, "{} loads begin in {memory} bytes, of pages of {page_bytes}", loads.len());
        for (load, rows) in &mut loads {
            rows.iter().rev().for_each(|(key, value)| load.insert(key, value).unwrap());
        }
        for (number, (load, rows)) in loads.into_iter().enumerate() {
            load.finish().unwrap();
            assert_holds(&db, &db.keyspace(&name(number)).unwrap(), &rows);
        }
    }
}

/// A load replaces one row so often that whole segments become free. Other writers reuse these segments while the
/// load's newest buffer is still being written. The load must not overwrite their data.
#[test]
fn segments_that_a_load_gives_up_are_not_written_again() {
    let (_, config) = faulty();
    let db = config.segment_bytes(256 << 10).open("/db").unwrap();
    let rows = db.keyspace("rows").unwrap();
    let mut random = Random(7);
    let mut model = Model::new();
    let mut load = db.bulk_load("loaded").unwrap();
    for round in 0..200u64 {
        let value = random.bytes(20_000);
        load.insert("replaced", &value).unwrap();
        let key = (round % 20).to_be_bytes();
        rows.insert(key, &value).unwrap();
        model.insert(key.into(), value.clone());
        if round % 10 == 9 {
            db.checkpoint().unwrap();
        }
        if round == 199 {
            load.insert("the last", &value).unwrap();
        }
    }
    assert_eq!(load.finish().unwrap().rows, 2);
    assert_holds(&db, &rows, &model);
}

/// While a keyspace is being loaded, other threads put rows into it and remove them. The load is either attached
/// between two of their commits or refused. No writer loses a write, and no reader sees part of a load.
#[test]
fn a_keyspace_is_loaded_while_others_write() {
    for seed in 0..24 {
        let (_, config) = faulty();
        let db = config.open("/db").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let rows = some_rows(seed, 1500);
        let stop = AtomicBool::new(false);
        let mut load = db.bulk_load("k").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed);
                while !stop.load(Ordering::Relaxed) {
                    let key = rows.keys().nth(random.below(rows.len() as u64) as usize).unwrap();
                    // Change only rows that are not loaded yet. A load in between is a conflict.
                    let changed = db.transact(|tx| {
                        let was = tx.get(&keyspace, key)?.map(drumlin::Value::into_vec);
                        match was {
                            None if seed % 2 == 0 => tx.insert(&keyspace, key, "of the writer"),
                            Some(was) if was == b"of the writer" => tx.remove(&keyspace, key),
                            Some(was) => {
                                assert!(was == rows[key], "a row has lost what was written");
                                Ok(())
                            }
                            None => Ok(()),
                        }
                    });
                    changed.unwrap();
                    match keyspace.update(key, |was| was.filter(|was| *was == rows[key]).map(<[u8]>::to_vec)) {
                        Ok(_) | Err(Error::Conflict { .. }) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    db.checkpoint().unwrap();
                }
            });
            rows.iter().for_each(|(key, value)| load.insert(key, value).unwrap());
            load.finish().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        assert_holds(&db, &keyspace, &rows);
    }
}

/// If the keyspace is dropped at any time during a load, the load fails with an error and leaks no space.
#[test]
fn a_keyspace_that_is_dropped_ends_its_load() {
    let rows = some_rows(1, 3000);
    for moment in [0, 1500, 3000] {
        let (_, config) = faulty();
        let db = config.open("/db").unwrap();
        let mut load = db.bulk_load("k").unwrap();
        let mut result = Ok(());
        for (row, (key, value)) in rows.iter().enumerate() {
            if row == moment {
                db.drop_keyspace("k").unwrap();
                db.checkpoint().unwrap();
            }
            result = result.and_then(|()| load.insert(key, value));
        }
        if moment == 3000 {
            db.drop_keyspace("k").unwrap();
            result = load.finish().map(drop);
        }
        assert!(matches!(result, Err(Error::KeyspaceDropped { .. })), "{result:?}");
        assert_eq!(db.keyspace("k").unwrap().count(..).unwrap(), 0);
        db.checkpoint().unwrap();
        assert!(db.stats().live_bytes < 64 << 10, "{} bytes live", db.stats().live_bytes);
        assert!(db.check().unwrap().corruption.is_empty());
    }
}

/// If the disk fills up at any point of a load, the load fails and no part of it remains. With more space, a load
/// succeeds.
#[test]
fn a_full_disk_leaves_nothing_of_a_load() {
    let rows = some_rows(2, 4000);
    let mut refused = 0;
    for step in 0..24 {
        let (faulty, config) = faulty();
        let db = config.open("/db").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        db.checkpoint().unwrap();
        let before = db.stats().live_bytes;
        faulty.set_space_limit(Some(faulty.space_used() + step * (256 << 10)));
        let any_order = |db: &Database| load_in_any_order(db, "k", &rows, step);
        let done = if step % 2 == 0 { load(&db, "k", &rows) } else { any_order(&db) };
        match done {
            Ok(()) => assert_holds(&db, &keyspace, &rows),
            Err(Error::DiskFull { .. }) => {
                refused += 1;
                assert_eq!(keyspace.count(..).unwrap(), 0);
                db.checkpoint().unwrap();
                let after = db.stats().live_bytes;
                assert!(after < before + (16 << 10), "{before} bytes before, {after} after");
                faulty.set_space_limit(None);
                any_order(&db).unwrap();
                assert_holds(&db, &keyspace, &rows);
            }
            Err(other) => panic!("step {step}: {other:?}"),
        }
    }
    assert!((3..24).contains(&refused), "{refused} of 24 loads found the disk full");
}

/// If the page table of a load exceeds the budget, the load fails and no part of it remains.
#[test]
fn full_memory_leaves_nothing_of_a_load() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let name = "k";
    db.keyspace_with(name, KeyspaceOptions::new().page_bytes(512)).unwrap();
    let mut load = db.bulk_load(name).unwrap();
    let refused = (0..2_000_000u64).try_for_each(|row| load.insert(row.to_be_bytes(), [7; 110]));
    assert!(matches!(refused, Err(Error::BudgetTooSmall { .. })), "{refused:?}");
    assert!(matches!(load.insert("a", ""), Err(Error::Invalid(_))), "the load goes on");
    assert!(load.finish().is_err());
    assert_eq!(db.keyspace(name).unwrap().count(..).unwrap(), 0);
    db.checkpoint().unwrap();
    assert!(db.stats().live_bytes < 64 << 10, "{} bytes live", db.stats().live_bytes);
    db.keyspace("another").unwrap().insert("a", "b").unwrap();
}

/// Loads also work with futures; dropping a future ends the load.
#[test]
fn tasks_load_too() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    let rows = some_rows(4, 3000);
    block_on(async {
        let mut load = db.bulk_load_async("k").await.unwrap();
        for (key, value) in &rows {
            load.insert_async(key, value).await.unwrap();
        }
        let report = load.finish_async().await.unwrap();
        assert_eq!(report.rows, rows.len() as u64);
        let mut load = db.bulk_load_async("other").await.unwrap();
        let dropped = futures_util::future::poll_immediate(load.insert_async("a", vec![1; 300_000])).await;
        if dropped.is_none() {
            assert!(matches!(load.insert("b", ""), Err(Error::Invalid(_))));
        }
    });
    assert_holds(&db, &db.keyspace("k").unwrap(), &rows);
}

fn cut_config(disk: &Disk) -> Config {
    small().page_bytes(512).checkpoint_log_bytes(1 << 30).backend(disk.backend())
}

/// The last acknowledgement in a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ack {
    Created,
    Loaded,
    Changed,
}

/// Runs one session: a load with checkpoints, then a commit. Returns each acknowledgement with the number of changes to
/// the disk that preceded it.
fn live(disk: &Disk, rows: &Model, is_sorted: bool, moments: [bool; 3]) -> Vec<(u64, Ack)> {
    let mut acks = Vec::new();
    let db = cut_config(disk).open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    acks.push((disk.change_count(), Ack::Created));
    let other = db.keyspace("other").unwrap();
    let mut load = db.bulk_load("k").unwrap();
    let mut number = 0;
    let mut insert = |key: &[u8], value: &[u8]| {
        if moments[0] && number == rows.len() / 2 {
            other.insert("amid", "a checkpoint").unwrap();
            db.checkpoint().unwrap();
        }
        number += 1;
        load.insert(key, value)
    };
    match is_sorted {
        true => rows.iter().try_for_each(|(key, value)| insert(key, value)).unwrap(),
        false => insert_in_any_order(rows, 1, insert).unwrap(),
    }
    load.finish().unwrap();
    acks.push((disk.change_count(), Ack::Loaded));
    if moments[1] {
        db.checkpoint().unwrap();
    }
    let key = rows.keys().next().unwrap();
    keyspace.insert(key, "changed").unwrap();
    keyspace.insert("zz", "new").unwrap();
    acks.push((disk.change_count(), Ack::Changed));
    if moments[2] {
        db.compact().unwrap();
    }
    disk.turn_off();
    acks
}

/// Opens the database after a cut. Checks that the load is complete or absent, that every acknowledged commit is
/// present, and that no space is lost. Returns the recovered disk.
fn assert_whole(medium: Medium, rows: &Model, last_ack: Option<Ack>, place: &str) -> Medium {
    let disk = Disk::new(medium, 1);
    disk.record();
    let db = cut_config(&disk).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
    let keyspace = match db.existing_keyspace("k") {
        Ok(keyspace) => keyspace,
        Err(error) => {
            assert!(last_ack.is_none(), "{place}: the keyspace is gone: {error}");
            return disk.medium();
        }
    };
    let count = keyspace.count(..).unwrap();
    let key = rows.keys().next().unwrap();
    let is_changed = keyspace.get(key).unwrap().is_some_and(|value| value == "changed");
    let is_new = keyspace.contains_key("zz").unwrap();
    assert!(is_changed || !is_new, "{place}: a commit is there without the one before it");
    assert!(last_ack < Some(Ack::Changed) || is_new, "{place}: an acknowledged commit is missing");
    assert!(last_ack < Some(Ack::Loaded) || count > 0, "{place}: an acknowledged load is missing");
    let mut expected = Model::new();
    if count > 0 {
        expected.extend(rows.clone());
        if is_changed {
            expected.insert(key.clone(), b"changed".to_vec());
        }
        if is_new {
            expected.insert(b"zz".to_vec(), b"new".to_vec());
        }
    } else {
        assert!(!is_changed && !is_new, "{place}: commits are there without the load before them");
    }
    compare(&keyspace, &expected);
    let recovered = disk.medium();
    db.checkpoint().unwrap();
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{place}: {report:#?}");
    let (live, most) = (db.stats().live_bytes, if count > 0 { (400 << 10) + count * 20 } else { 24 << 10 });
    assert!(live < most, "{place}: {live} bytes live with {count} rows");
    recovered
}

/// Cuts the power after each write and sync of a session, with every kind of loss, and sometimes again during recovery.
/// Tries one in `step` of these states.
fn cut_everywhere(rows: &Model, is_sorted: bool, moments: [bool; 3], step: usize) {
    let disk = Disk::new(Medium::default(), 7);
    disk.record();
    let acks = live(&disk, rows, is_sorted, moments);
    let changes = disk.recorded();
    let mut medium = Medium::default();
    let mut random = Random(number("DRUMLIN_TEST_SEED", 5));
    let mut states = 0;
    for moment in 0..=changes.len() {
        if moment > 0 {
            medium.apply(&changes[moment - 1]);
        }
        let answered = acks.iter().filter(|(at, _)| *at <= moment as u64).map(|(_, ack)| *ack).max();
        for (way, loss) in Loss::ALL.into_iter().enumerate().filter(|(way, _)| (moment + way) % step == 0) {
            let place = format!("{moments:?}, cut after {moment} of {} changes, way {way}", changes.len());
            let cut = medium.cut(loss, &mut sim::Random(random.next()));
            let recovered = assert_whole(cut, rows, answered, &place);
            states += 1;
            if way == moment % 4 {
                let again = recovered.cut(loss, &mut sim::Random(random.next()));
                assert_whole(again, rows, answered, &format!("{place}, and again amid recovery"));
                states += 1;
            }
        }
    }
    println!("{states} states verified");
}

fn cut_rows(count: u32) -> Model {
    let mut rows: Model = (0..count).map(|row| (row.to_be_bytes().to_vec(), vec![row as u8; 40])).collect();
    rows.insert(b"medium".to_vec(), Random(1).bytes(5000));
    rows.insert(b"large".to_vec(), Random(2).bytes(100_000));
    rows
}

/// After a power cut at any write or sync of a load, the load is complete or absent. Cuts also happen during recovery,
/// and loads run with and without checkpoints before and after their commit.
#[test]
fn a_power_cut_leaves_all_of_a_load_or_nothing() {
    for moments in [[false, false, false], [true, false, false], [true, true, true], [false, false, true]] {
        cut_everywhere(&cut_rows(1500), true, moments, 1);
    }
}

/// After a power cut while rows are sorted as runs and merged, the load is also complete or absent.
#[test]
fn a_power_cut_leaves_all_of_a_sorted_load_or_nothing() {
    cut_everywhere(&cut_rows(20_000), false, [true, true, false], 5);
}

/// Damage to a page of a load that only the log refers to is detected, and the database returns no wrong rows.
#[test]
fn a_damaged_load_is_noticed() {
    let rows: Model = (0..3000u32).map(|row| (row.to_be_bytes().to_vec(), vec![row as u8; 40])).collect();
    let disk = Disk::new(Medium::default(), 7);
    live(&disk, &rows, true, [false, false, false]);
    let sound = disk.medium();
    assert!(cut_config(&Disk::new(sound.clone(), 1)).examine("/db").unwrap().corruption.is_empty());
    let data = sound.files().into_iter().find(|path| path.ends_with("data")).unwrap();
    let length = sound.file_bytes(&data).len();
    let mut found = 0;
    for place in (SEGMENT..length).step_by(4603) {
        let mut medium = sound.clone();
        medium.tamper(&data, |bytes| bytes[place] ^= 8);
        let report = cut_config(&Disk::new(medium.clone(), 1)).examine("/db").unwrap();
        found += usize::from(!report.corruption.is_empty());
        let Ok(db) = cut_config(&Disk::new(medium, 1)).open("/db") else { continue };
        for row in &db.existing_keyspace("k").unwrap() {
            let Ok((key, value)) = row else { break };
            assert!(key == "zz" || value == "changed" || rows[&key.into_vec()] == value.into_vec());
        }
    }
    assert!(found > 10, "{found} findings");
}

const SEGMENT: usize = support::SEGMENT_BYTES as usize;

/// A load writes each byte once, and writes only one record to the log.
#[test]
fn a_load_is_written_once() {
    let (_, config) = faulty();
    let db = config.open("/db").unwrap();
    db.keyspace_with("k", KeyspaceOptions::new().page_bytes(4096)).unwrap();
    let before = db.stats();
    let mut load = db.bulk_load("k").unwrap();
    let mut bytes = 0;
    for row in 0..20_000u64 {
        let value = Random(row).bytes(100);
        bytes += 8 + value.len() as u64;
        load.insert(row.to_be_bytes(), value).unwrap();
    }
    load.finish().unwrap();
    let after = db.stats();
    let written = after.device_write_bytes - before.device_write_bytes;
    assert!((bytes..bytes + bytes / 5).contains(&written), "{written} bytes were written for {bytes}");
    assert!(after.log_bytes_written - before.log_bytes_written < 4096);
}
