//! The database returns the same results as an ordered map.

use crate::support;

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

/// A database with two keyspaces, and the maps that they must equal.
struct World {
    db: Database,
    keyspaces: Vec<Keyspace>,
    models: [Model; 2],
    random: Random,
    /// Dropped last, after the database has been closed.
    folder: Folder,
}

impl World {
    fn new(seed: u64) -> World {
        let folder = Folder::new();
        let db = small().open(folder.path()).unwrap();
        let keyspaces = ["a", "b"].map(|name| db.keyspace(name).unwrap()).into();
        World { folder, db, keyspaces, models: Default::default(), random: Random(seed) }
    }

    /// Closes or drops the database, reopens it, and checks that all rows are present.
    fn reopened(self) -> World {
        let World { folder, db, keyspaces, models, mut random } = self;
        drop(keyspaces);
        if random.chance(50) {
            db.close().unwrap();
        } else {
            drop(db);
        }
        let db = small().open(folder.path()).unwrap();
        let keyspaces = ["a", "b"].map(|name| db.existing_keyspace(name).unwrap()).into();
        let world = World { folder, db, keyspaces, models, random };
        world.compare();
        world
    }

    fn compare(&self) {
        for (keyspace, model) in self.keyspaces.iter().zip(&self.models) {
            compare(keyspace, model);
        }
    }

    /// Removes neighbouring rows, so that leaves merge.
    fn remove_part(&mut self, which: usize) {
        let from = self.random.below(3000).to_be_bytes().to_vec();
        let doomed: Vec<_> = self.models[which].range(from..).take(100).map(|(key, _)| key.clone()).collect();
        for key in doomed {
            self.keyspaces[which].remove(&key).unwrap();
            self.models[which].remove(&key);
        }
    }

    fn get(&mut self, which: usize) {
        let key = key(&mut self.random);
        let found = self.keyspaces[which].get(&key).unwrap().map(|value| value.to_vec());
        assert_eq!(found, self.models[which].get(&key).cloned());
    }

    /// Runs a transaction that sees its own writes in both keyspaces. It is either committed or has no effect.
    fn transaction(&mut self) {
        let options = TxOptions { durability: Durability::Relaxed, ..TxOptions::default() };
        let mut tx = self.db.begin_with(options).unwrap();
        let mut after = self.models.clone();
        for _ in 0..self.random.below(60) {
            let which = self.random.below(2) as usize;
            let key = key(&mut self.random);
            if self.random.chance(70) {
                // The smallest budget limits a transaction to a quarter of a megabyte, not counting large values.
                let mut value = value(&mut self.random);
                if (3000..100_000).contains(&value.len()) {
                    value.truncate(3000);
                }
                tx.insert(&self.keyspaces[which], &key, &value).unwrap();
                after[which].insert(key, value);
            } else {
                tx.remove(&self.keyspaces[which], &key).unwrap();
                after[which].remove(&key);
            }
        }
        for (keyspace, model) in self.keyspaces.iter().zip(&after) {
            assert!(tx.iter(keyspace).map(|row| row.unwrap().0).eq(model.keys().cloned().map(drumlin::Value::from)));
        }
        if self.random.chance(80) {
            tx.commit().unwrap();
            self.models = after;
        }
    }

    fn write(&mut self, which: usize) {
        let key = key(&mut self.random);
        if self.random.chance(75) {
            let value = value(&mut self.random);
            self.keyspaces[which].insert_with(&key, &value, Durability::Relaxed).unwrap();
            self.models[which].insert(key, value);
        } else {
            self.keyspaces[which].remove(&key).unwrap();
            self.models[which].remove(&key);
        }
    }
}

fn run(seed: u64, steps: u64) {
    let mut world = World::new(seed);
    for step in 0..steps {
        let which = world.random.below(2) as usize;
        match world.random.below(100) {
            0 => world = world.reopened(),
            1 => {
                world.db.checkpoint().unwrap();
            }
            2 if world.random.chance(10) => {
                world.db.compact().unwrap();
            }
            2 => world.remove_part(which),
            3..10 => compare_range(&world.keyspaces[which], &world.models[which], &mut world.random),
            10..20 => world.get(which),
            20..35 => world.transaction(),
            _ => world.write(which),
        }
        if step % 500 == 499 {
            world.compare();
            let report = world.db.check().unwrap();
            assert!(report.corruption.is_empty(), "{:?}", report.corruption);
        }
    }
}

/// After random calls, transactions, checkpoints, compactions and reopenings, the rows equal those of the map.
#[test]
fn a_database_behaves_like_a_map() {
    let seeds: u64 = std::env::var("DRUMLIN_TEST_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    const THREADS: usize = 2;
    std::thread::scope(|scope| {
        for first in 0..THREADS as u64 {
            scope.spawn(move || (first..seeds).step_by(THREADS).for_each(|seed| run(seed, 1000)));
        }
    });
}

/// An in-memory database behaves in the same way.
#[test]
fn a_database_in_memory_works() {
    let db: Database = drumlin::Config::in_memory().memory(8 << 20).open("").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for n in 0..20_000u64 {
        keyspace.insert_with(n.to_be_bytes(), [7; 100], Durability::Relaxed).unwrap();
    }
    assert_eq!(keyspace.count(..).unwrap(), 20_000);
}

/// Compacting lengthens the file by at most the segment of its last checkpoint, and reduces it to about the size of the
/// live data, even if only few segments are sparse. Repeating it does not lengthen the file.
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
