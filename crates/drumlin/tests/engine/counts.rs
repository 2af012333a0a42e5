//! Counting the rows of a range is exact for every snapshot, whatever has changed in the tree since.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use drumlin::{Config, Database, Durability, Isolation, Keyspace, Reader, Snapshot, TxOptions};
use smol::block_on;

use crate::support::Random;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn opened() -> (Database, Keyspace) {
    let db = Config::in_memory().memory(256 << 20).durability(Durability::Relaxed).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    (db, k)
}

fn key(number: u64) -> Vec<u8> {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec()
}

/// Inserts rows that fill many leaves and a few levels.
fn filled(k: &Keyspace, row_count: u64) -> Model {
    let rows: Model = (0..row_count).map(|number| (key(number), vec![7; 60])).collect();
    for (key, value) in &rows {
        k.insert(key, value).unwrap();
    }
    rows
}

fn random_bounds(random: &mut Random, key_max: u64) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut bound = || {
        let key = key(random.below(key_max));
        match random.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        }
    };
    (bound(), bound())
}

fn within<'m>(model: &'m Model, bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Vec<&'m Vec<u8>> {
    model.keys().filter(|key| std::ops::RangeBounds::contains(bounds, *key)).collect()
}

/// Compares all count calls for a random range with the model.
fn check(reader: &Reader, k: &Keyspace, model: &Model, random: &mut Random, key_max: u64) {
    let bounds = random_bounds(random, key_max);
    let expected = within(model, &bounds);
    assert_eq!(reader.count(k, bounds.clone()).unwrap(), expected.len() as u64, "{bounds:?}");
    assert_eq!(block_on(reader.count_async(k, bounds.clone())).unwrap(), expected.len() as u64);
    let index = random.below(expected.len() as u64 + 2);
    let found = reader.nth(k, bounds.clone(), index).unwrap();
    assert_eq!(found.as_ref().map(|(key, _)| &key[..]), expected.get(index as usize).map(|key| &key[..]), "{index}");
    let found = block_on(reader.nth_async(k, bounds.clone(), index)).unwrap();
    assert_eq!(found.as_ref().map(|(key, _)| &key[..]), expected.get(index as usize).map(|key| &key[..]));
    let wanted = key(random.below(key_max));
    assert_eq!(reader.rank(k, &wanted).unwrap(), model.range::<Vec<u8>, _>(..wanted).count() as u64);
    assert_eq!(reader.len(k).unwrap(), model.len() as u64);
    let sample = reader.sample(k, bounds, 5).unwrap();
    assert!(sample.len() == expected.len().min(5) && sample.is_sorted_by(|one, next| one.0 < next.0));
    assert!(sample.iter().all(|(key, _)| model.contains_key(&key[..])));
}

/// Counts match a model after inserts, removals and replacements, at snapshots of different ages, and in transactions
/// with uncommitted changes.
#[test]
fn counts_are_those_of_a_model() {
    let (db, k) = opened();
    let mut random = Random(5);
    let mut model = filled(&k, 20_000);
    let key_max = 40_000;
    let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
    for round in 0..60 {
        for _ in 0..random.below(1500) {
            let key = key(random.below(key_max));
            match random.below(3) {
                0 => {
                    k.remove(&key).unwrap();
                    model.remove(&key);
                }
                _ => {
                    k.insert(&key, "new").unwrap();
                    model.insert(key, b"new".to_vec());
                }
            }
        }
        check(&db.snapshot(), &k, &model, &mut random, key_max);
        if round % 5 == 0 {
            snapshots.push((db.snapshot(), model.clone()));
        }
        if snapshots.len() > 3 {
            snapshots.remove(random.below(3) as usize);
        }
        for (snapshot, model) in &snapshots {
            check(snapshot, &k, model, &mut random, key_max);
        }
        let isolation = [Isolation::Snapshot, Isolation::Serializable, Isolation::ReadCommitted][round % 3];
        let mut tx = db.begin_with(TxOptions { isolation, ..TxOptions::default() }).unwrap();
        let mut own = model.clone();
        for _ in 0..20 {
            let key = key(random.below(key_max));
            if random.below(2) == 0 {
                tx.remove(&k, &key).unwrap();
                own.remove(&key);
            } else {
                tx.insert(&k, &key, "own").unwrap();
                own.insert(key, b"own".to_vec());
            }
        }
        check(&tx, &k, &own, &mut random, key_max);
        tx.abort();
    }
}

/// Counts stay correct after removals that merge all leaves, after the keyspace is cleared and loaded in bulk, and
/// after it is replaced by a keyspace of the same name.
#[test]
fn counts_survive_all_that_happens_to_a_keyspace() {
    let (db, k) = opened();
    let model = filled(&k, 30_000);
    assert_eq!(k.len().unwrap(), 30_000);
    let before = db.snapshot();
    for (at, key) in model.keys().enumerate() {
        if at % 100 != 0 {
            k.remove(key).unwrap();
        }
    }
    assert_eq!(k.len().unwrap(), 300);
    assert_eq!(before.len(&k).unwrap(), 30_000);
    drop(before);
    k.clear().unwrap();
    assert_eq!(k.len().unwrap(), 0);
    assert!(k.nth(.., 0).unwrap().is_none());
    let empty = db.snapshot();
    let mut load = db.bulk_load("k").unwrap();
    for (key, value) in &model {
        load.insert(key, value).unwrap();
    }
    load.finish().unwrap();
    assert_eq!(k.len().unwrap(), 30_000);
    assert_eq!(k.len().unwrap(), 30_000);
    assert_eq!(empty.len(&k).unwrap(), 0);
    k.insert("a row more", "").unwrap();
    assert_eq!(k.len().unwrap(), 30_001);
    db.drop_keyspace("k").unwrap();
    assert!(k.len().is_err());
    assert_eq!(db.keyspace("k").unwrap().len().unwrap(), 0);
}

/// A serializable transaction that has counted a range conflicts with a commit that inserts into it.
#[test]
fn a_count_is_a_read_of_its_range() {
    let (db, k) = opened();
    filled(&k, 5_000);
    assert_eq!(k.len().unwrap(), 5_000);
    let mut tx = db.begin_with(TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() }).unwrap();
    let count = tx.count(&k, ..).unwrap();
    tx.insert(&k, "the count", count.to_string()).unwrap();
    k.insert("another row", "").unwrap();
    assert!(tx.commit().is_err_and(|error| error.is_conflict()));
}

const KEY_MAX: u64 = 30_000;

/// While threads insert and remove rows, every count at a snapshot equals the number of rows that a scan of that
/// snapshot finds.
#[test]
fn counts_are_exact_during_writes() {
    let (db, k) = opened();
    filled(&k, KEY_MAX / 2);
    let stop = AtomicBool::new(false);
    let kept: Mutex<Vec<Snapshot>> = Mutex::default();
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (k, db, stop) = (&k, &db, &stop);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !stop.load(Ordering::Relaxed) {
                    if random.below(10) == 0 {
                        // Some commits have many rows.
                        let mut batch = db.batch().unwrap();
                        for _ in 0..20 {
                            batch.insert(k, key(random.below(KEY_MAX)), "batch").unwrap();
                        }
                        batch.commit().unwrap();
                    } else if random.below(2) == 0 {
                        k.insert(key(random.below(KEY_MAX)), vec![1; random.below(200) as usize]).unwrap();
                    } else {
                        k.remove(key(random.below(KEY_MAX))).unwrap();
                    }
                }
            });
        }
        let (db, k, kept) = (&db, &k, &kept);
        let readers: Vec<_> =
            (10..12).map(|seed| scope.spawn(move || check_beside_writers(db, k, kept, seed))).collect();
        let ended: Vec<_> = readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|reader| reader.unwrap());
    });
}

/// Compares counts with scans, at new snapshots and at snapshots that other threads hold.
fn check_beside_writers(db: &Database, k: &Keyspace, kept: &Mutex<Vec<Snapshot>>, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..150 {
        let snapshot = match kept.lock().unwrap().pop() {
            Some(snapshot) if random.below(3) > 0 => snapshot,
            _ => db.snapshot(),
        };
        let bounds = random_bounds(&mut random, KEY_MAX);
        let counted = snapshot.count(k, bounds.clone()).unwrap();
        let walked = snapshot.range(k, bounds.clone()).keys().count() as u64;
        assert_eq!(counted, walked, "{bounds:?} at {}", snapshot.timestamp());
        if walked > 0 {
            let index = random.below(walked);
            let (found, _) = snapshot.nth(k, bounds.clone(), index).unwrap().unwrap();
            let nth = snapshot.range(k, bounds).keys().nth(index as usize).unwrap().unwrap();
            assert_eq!(found, nth, "row {index} at {}", snapshot.timestamp());
        }
        if random.below(4) == 0 {
            kept.lock().unwrap().push(snapshot);
        }
    }
}

/// With little memory, the list of changes soon fills up and cached counts are discarded, but every result is correct.
#[test]
fn counts_that_end_for_their_memory_are_right() {
    let db = Config::in_memory().memory(8 << 20).durability(Durability::Relaxed).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    let mut model = filled(&k, 10_000);
    let mut random = Random(3);
    for _ in 0..10 {
        assert_eq!(k.len().unwrap(), model.len() as u64);
        for _ in 0..random.below(30_000) {
            let key = [key(random.below(1000)), vec![b'k'; 100]].concat();
            if random.below(2) == 0 {
                k.remove(&key).unwrap();
                model.remove(&key);
            } else {
                k.insert(&key, "").unwrap();
                model.insert(key, Vec::new());
            }
        }
    }
    assert_eq!(k.len().unwrap(), model.len() as u64);
}
