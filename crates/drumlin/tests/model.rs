//! The database against an ordered map: whatever one answers, the other must.

mod support;

use std::collections::BTreeMap;
use std::ops::Bound;

use drumlin::{Database, Durability, Keyspace, TxOptions};
use support::{Folder, Random, SEGMENT_BYTES, small};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(random: &mut Random) -> Vec<u8> {
    match random.below(20) {
        0 => Vec::new(),
        1 => random.bytes(256),
        2..8 => format!("common/prefix/{:03}", random.below(400)).into_bytes(),
        _ => random.below(3000).to_be_bytes().to_vec(),
    }
}

fn value(random: &mut Random) -> Vec<u8> {
    let length = match random.below(100) {
        0 => 200_000 + random.below(400_000) as usize,
        1..3 => 60_000 + random.below(10_000) as usize,
        3..10 => 300 + random.below(6000) as usize,
        10..15 => 0,
        _ => random.below(150) as usize,
    };
    if random.chance(50) { vec![random.next() as u8; length] } else { random.bytes(length) }
}

fn compare(keyspace: &Keyspace, model: &Model) {
    let rows: Vec<_> = keyspace.iter().map(Result::unwrap).collect();
    assert_eq!(rows.len(), model.len(), "{}", keyspace.name());
    for ((key, value), (model_key, model_value)) in rows.iter().zip(model) {
        assert!(key == model_key && value == model_value, "row {key:?}");
    }
    let backward: Vec<_> = keyspace.iter().rev().map(|row| row.unwrap().0).collect();
    assert!(backward.iter().rev().eq(model.keys()));
}

fn compare_range(keyspace: &Keyspace, model: &Model, random: &mut Random) {
    let (a, b) = (key(random), key(random));
    let (lower, upper) = if a <= b { (a, b) } else { (b, a) };
    let bounds = match random.below(4) {
        0 => (Bound::Included(lower), Bound::Included(upper)),
        1 => (Bound::Included(lower), Bound::Excluded(upper)),
        2 if lower < upper => (Bound::Excluded(lower), Bound::Excluded(upper)),
        _ => (Bound::Excluded(lower), Bound::Unbounded),
    };
    let expected: Vec<_> = model.range(bounds.clone()).collect();
    let mut scan = keyspace.range(bounds);
    let (mut front, mut back) = (0, expected.len());
    while front < back {
        let forward = random.chance(60);
        let row = if forward { scan.next() } else { scan.next_back() };
        let (key, value) = row.expect("as many rows as the model has").unwrap();
        let at = if forward { front } else { back - 1 };
        assert!(key == *expected[at].0 && value == *expected[at].1);
        if forward { front += 1 } else { back -= 1 }
    }
    assert!(scan.next().is_none() && scan.next_back().is_none());
}

fn run(seed: u64, steps: u64) {
    let mut random = Random(seed);
    let folder = Folder::new();
    let mut db = small().open(folder.path()).unwrap();
    let mut keyspaces: Vec<Keyspace> = ["a", "b"].map(|name| db.keyspace(name).unwrap()).into();
    let mut models = [Model::new(), Model::new()];
    for step in 0..steps {
        let which = random.below(2) as usize;
        let keyspace = &keyspaces[which];
        match random.below(100) {
            0 => {
                drop(keyspaces);
                if random.chance(50) {
                    db.close().unwrap();
                } else {
                    drop(db);
                }
                db = small().open(folder.path()).unwrap();
                keyspaces = ["a", "b"].map(|name| db.existing_keyspace(name).unwrap()).into();
                for (keyspace, model) in keyspaces.iter().zip(&models) {
                    compare(keyspace, model);
                }
            }
            1 => {
                db.checkpoint().unwrap();
            }
            2 if random.chance(10) => {
                db.compact().unwrap();
            }
            2 => {
                // Empty a part, so that leaves merge.
                let from = random.below(3000).to_be_bytes().to_vec();
                let doomed: Vec<_> = models[which].range(from..).take(100).map(|(key, _)| key.clone()).collect();
                for key in doomed {
                    keyspace.remove(&key).unwrap();
                    models[which].remove(&key);
                }
            }
            3..10 => compare_range(keyspace, &models[which], &mut random),
            10..20 => {
                let key = key(&mut random);
                assert_eq!(keyspace.get(&key).unwrap().map(|value| value.to_vec()), models[which].get(&key).cloned());
            }
            20..35 => {
                let options = TxOptions { durability: Durability::Relaxed, ..TxOptions::default() };
                let mut tx = db.begin_with(options).unwrap();
                let mut after = models.clone();
                for _ in 0..random.below(60) {
                    let which = random.below(2) as usize;
                    let key = key(&mut random);
                    if random.chance(70) {
                        // The smallest budget limits a transaction to a quarter of a megabyte; large values don't
                        // count.
                        let mut value = value(&mut random);
                        if (3000..100_000).contains(&value.len()) {
                            value.truncate(3000);
                        }
                        tx.insert(&keyspaces[which], &key, &value).unwrap();
                        after[which].insert(key, value);
                    } else {
                        tx.remove(&keyspaces[which], &key).unwrap();
                        after[which].remove(&key);
                    }
                }
                for (keyspace, model) in keyspaces.iter().zip(&after) {
                    assert!(
                        tx.iter(keyspace).map(|row| row.unwrap().0).eq(model.keys().cloned().map(drumlin::Value::from))
                    );
                }
                if random.chance(80) {
                    tx.commit().unwrap();
                    models = after;
                }
            }
            _ => {
                let key = key(&mut random);
                if random.chance(75) {
                    let value = value(&mut random);
                    keyspace.insert_with(&key, &value, Durability::Relaxed).unwrap();
                    models[which].insert(key, value);
                } else {
                    keyspace.remove(&key).unwrap();
                    models[which].remove(&key);
                }
            }
        }
        if step % 500 == 499 {
            for (keyspace, model) in keyspaces.iter().zip(&models) {
                compare(keyspace, model);
            }
            let report = db.check().unwrap();
            assert!(report.corruption.is_empty(), "{:?}", report.corruption);
        }
    }
}

/// Random calls, transactions, checkpoints, compactions and reopenings leave what the map has.
#[test]
fn a_database_behaves_like_a_map() {
    let seeds: u64 = std::env::var("DRUMLIN_TEST_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    for seed in 0..seeds {
        run(seed, 1500);
    }
}

/// A database in memory works alike.
#[test]
fn a_database_in_memory_works() {
    let db: Database = drumlin::Config::in_memory().memory(8 << 20).open("").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for n in 0..20_000u64 {
        keyspace.insert_with(n.to_be_bytes(), [7; 100], Durability::Relaxed).unwrap();
    }
    assert_eq!(keyspace.count(..).unwrap(), 20_000);
}

/// Compacting leaves the file no longer than it found it but for the segment of its last checkpoint, and near to what
/// lives in it, however little is sparse; doing it again and again adds nothing.
#[test]
fn compacting_never_lengthens_the_file() {
    let folder = Folder::new();
    let db = small().open(folder.path()).unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    let file_bytes = || std::fs::metadata(folder.path().join("data")).unwrap().len();
    let mut random = Random(5);
    for number in 0..6000u64 {
        let length = if number % 40 == 0 { 90_000 } else { random.below(600) as usize };
        keyspace.insert_with(number.to_be_bytes(), random.bytes(length), Durability::Relaxed).unwrap();
    }
    for keep_one_of in [1, 2, 8] {
        (0..6000u64)
            .filter(|number| number % keep_one_of != 0)
            .for_each(|number| keyspace.remove(number.to_be_bytes()).unwrap());
        let before = file_bytes();
        let report = db.compact().unwrap();
        let after = file_bytes();
        assert!(after <= before.max(report.bytes_before) + SEGMENT_BYTES, "{before} bytes became {after}");
        assert_eq!(report.bytes_after, after);
        for time in 2..5 {
            db.compact().unwrap();
            assert!(file_bytes() <= after + SEGMENT_BYTES, "{after} bytes became {}, time {time}", file_bytes());
        }
        let live = db.stats().live_bytes;
        assert!(after <= live * 3 / 2 + (4 << 20), "{live} bytes live in {after}");
    }
    assert!(db.check().unwrap().corruption.is_empty());
    assert_eq!(keyspace.count(..).unwrap(), 750);
}
