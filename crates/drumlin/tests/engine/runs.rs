//! Bulk loads into keyspaces that have rows: every kind of read sees the loaded rows before those of the keyspace, while
//! they are folded into it and afterwards; snapshots from before the load don't; and a kill at any moment leaves all of a
//! load or nothing.

use crate::support;

use std::ops::Bound;

use drumlin::{Config, Database, Durability, Error, Isolation, Keyspace, Reader, Snapshot, TxOptions};
use drumlin_io::testing::sim::{self, Disk, Loss, Medium};
use support::{Model, Random, number, small, some_value};

fn config(disk: &Disk) -> Config {
    small().page_bytes(512).checkpoint_log_bytes(1 << 30).backend(disk.backend())
}

fn load(db: &Database, name: &str, rows: &Model) -> drumlin::Result<()> {
    let mut load = db.bulk_load(name)?;
    rows.iter().try_for_each(|(key, value)| load.insert(key, value))?;
    assert_eq!(load.finish()?.rows, rows.len() as u64);
    Ok(())
}

fn key(number: u64) -> Vec<u8> {
    match number % 3 {
        0 => format!("{number:05}").into_bytes(),
        1 => format!("{number:05}/with a longer key").into_bytes(),
        _ => format!("{number:05}/with a key that is as long as keys usually are").into_bytes(),
    }
}

/// Returns rows with keys below `end`, about `count` of them, from a part of the keys.
fn some_rows(random: &mut Random, end: u64, count: u64) -> Model {
    let width = 1 + random.below(end);
    let start = random.below(end);
    (0..1 + random.below(count))
        .map(|_| {
            let value = if random.one_in(100) { some_value(random) } else { vec![random.below(256) as u8; random.below(90) as usize] };
            (key((start + random.below(width)) % end), value)
        })
        .collect()
}

fn owned(row: drumlin::Result<(drumlin::Value, drumlin::Value)>) -> (Vec<u8>, Vec<u8>) {
    row.map(|(key, value)| (key.into_vec(), value.into_vec())).unwrap()
}

/// Compares what a reader sees with the rows that it should see, by some kinds of reads.
fn compare(reader: &Reader, keyspace: &Keyspace, rows: &Model, random: &mut Random, place: &str) {
    let cloned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
    assert!(reader.iter(keyspace).map(owned).eq(rows.iter().map(cloned)), "{place}: forward");
    println!("{place}: forward is right");
    assert!(reader.iter(keyspace).rev().map(owned).eq(rows.iter().rev().map(cloned)), "{place}: backward");
    println!("{place}: backward is right");
    assert_eq!(reader.count(keyspace, ..).unwrap(), rows.len() as u64, "{place}: count");
    let mut keys = Vec::new();
    for _ in 0..40 {
        let key = key(random.below(1100));
        assert_eq!(reader.get(keyspace, &key).unwrap().as_deref(), rows.get(&key).map(|value| &value[..]), "{place}");
        keys.push(key);
    }
    let many = reader.get_many(keyspace, &keys).unwrap();
    for (key, value) in keys.iter().zip(many) {
        assert_eq!(value.as_deref(), rows.get(key).map(|value| &value[..]), "{place}: many");
    }
    for _ in 0..3 {
        let [mut lower, mut upper] = [0; 2].map(|_| key(random.below(1100)));
        if lower > upper {
            std::mem::swap(&mut lower, &mut upper);
        }
        let bounds = (
            if random.one_in(2) { Bound::Included(lower.clone()) } else { Bound::Excluded(lower.clone()) },
            if random.one_in(2) || lower == upper { Bound::Included(upper) } else { Bound::Excluded(upper) },
        );
        let expected: Vec<_> = rows.range::<Vec<u8>, _>(bounds.clone()).map(cloned).collect();
        let found = reader.range(keyspace, bounds.clone());
        let mut from_both = (Vec::new(), Vec::new());
        let mut found = found.map(owned);
        loop {
            let (next, to) = if random.one_in(2) { (found.next(), &mut from_both.0) } else { (found.next_back(), &mut from_both.1) };
            let Some(row) = next else { break };
            to.push(row);
        }
        from_both.0.extend(from_both.1.into_iter().rev());
        assert_eq!(from_both.0.len(), expected.len(), "{place}: {bounds:?}");
        assert!(from_both.0 == expected, "{place}: {bounds:?}");
        assert_eq!(reader.count(keyspace, bounds).unwrap(), expected.len() as u64, "{place}");
    }
}

/// A snapshot, and the rows that it sees.
type Seen = (Snapshot, Model);

/// Loads, commits, snapshots, checkpoints, reopenings and power cuts in random order.
#[test]
fn loads_into_keyspaces_with_rows_are_like_other_commits() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 12) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let mut db = config(&disk).open("/db").unwrap();
        let mut keyspace = db.keyspace("k").unwrap();
        let mut rows = Model::new();
        let mut seen: Vec<Seen> = Vec::new();
        for step in 0..60 {
            let place = format!("seed {seed}, step {step}");
            let op = random.below(12);
            println!("{place}: {op}, {} rows, {} seen", rows.len(), seen.len());
            match op {
                0..3 => {
                    if random.one_in(2) && seen.len() < 3 {
                        seen.push((db.snapshot(), rows.clone()));
                    }
                    let loaded = some_rows(&mut random, 1000, 300);
                    load(&db, "k", &loaded).unwrap_or_else(|error| panic!("{place}: {error}"));
                    rows.extend(loaded);
                }
                3..6 => {
                    for _ in 0..random.below(120) {
                        let key = key(random.below(1000));
                        if random.one_in(6) {
                            keyspace.remove(&key).unwrap();
                            rows.remove(&key);
                        } else {
                            let value = vec![random.below(256) as u8; random.below(80) as usize];
                            keyspace.insert_with(&key, &value, Durability::Relaxed).unwrap();
                            rows.insert(key, value);
                        }
                    }
                    db.sync().unwrap();
                }
                6 => {
                    let mut tx = db.begin().unwrap();
                    let changes = some_rows(&mut random, 1000, 100);
                    for (key, value) in &changes {
                        if random.one_in(4) {
                            tx.remove(&keyspace, key).unwrap();
                            rows.remove(key);
                        } else {
                            tx.insert(&keyspace, key, value).unwrap();
                            rows.insert(key.clone(), value.clone());
                        }
                    }
                    compare(&tx, &keyspace, &rows, &mut random, &place);
                    tx.commit().unwrap();
                }
                7 => {
                    let popped = keyspace.pop_first().unwrap().map(|(key, _)| key.into_vec());
                    assert_eq!(popped, rows.pop_first().map(|(key, _)| key), "{place}");
                    let popped = keyspace.pop_last().unwrap().map(|(key, _)| key.into_vec());
                    assert_eq!(popped, rows.pop_last().map(|(key, _)| key), "{place}");
                }
                8 => drop(db.checkpoint().unwrap()),
                9 if !seen.is_empty() => drop(seen.swap_remove(random.below(seen.len() as u64) as usize)),
                10 => {
                    seen.clear();
                    if random.one_in(2) {
                        db.clone().close().unwrap();
                    } else {
                        disk.turn_off();
                    }
                    drop((db, keyspace));
                    let medium = disk.medium().cut(Loss::ALL[random.below(4) as usize], &mut sim::Random(seed));
                    disk = Disk::new(medium, random.next());
                    db = config(&disk).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
                    keyspace = db.keyspace("k").unwrap();
                }
                _ => {
                    let report = db.check().unwrap();
                    assert!(report.corruption.is_empty(), "{place}: {report:#?}");
                }
            }
            if random.one_in(6) {
                compare(&db.snapshot(), &keyspace, &rows, &mut random, &place);
            }
            if let Some((snapshot, rows)) = seen.get(random.below(6) as usize) {
                compare(snapshot, &keyspace, rows, &mut random, &place);
            }
        }
        seen.clear();
        compare(&db.snapshot(), &keyspace, &rows, &mut random, "the end");
    }
}

fn _unused() -> (Option<Error>, Isolation, TxOptions) {
    (None, Isolation::Snapshot, TxOptions::default())
}
