//! A full disk: no commit is lost, removals are not refused, and they make room without reopening the database.

use crate::support;

use drumlin::{Config, Database, Durability, Error, Keyspace, KeyspaceOptions, TxOptions};
use drumlin_io::testing::fault::FaultyBackend;
use support::{Model, Random, compare, faulty, number, some_value};

/// A database on a disk that fills up, and the rows that its keyspace `rows` should have.
struct Filling {
    seed: u64,
    random: Random,
    faulty: FaultyBackend,
    config: Config,
    model: Model,
}

impl Filling {
    fn new(seed: u64) -> Filling {
        let (faulty, config) = faulty();
        Filling { seed, random: Random(seed), faulty, config, model: Model::new() }
    }

    /// Commits, creates keyspaces and makes checkpoints while the disk fills up, until many of these operations have
    /// been refused.
    fn fill(&mut self, db: &Database, keyspace: &Keyspace) {
        let moment = self.random.below(2000);
        let mut refused = 0;
        for step in 0..6000u64 {
            if step == moment {
                self.faulty.set_space_limit(Some(self.faulty.space_used() + self.random.below(3 << 20)));
            }
            match self.step(db, keyspace) {
                Ok(()) => {}
                Err(Error::DiskFull { .. }) => refused += 1,
                Err(other) => panic!("seed {}, step {step}: {other:?}", self.seed),
            }
            if refused > 30 {
                break;
            }
        }
        assert!(refused > 0, "seed {}: the disk was not filled", self.seed);
    }

    fn step(&mut self, db: &Database, keyspace: &Keyspace) -> drumlin::Result<()> {
        let random = &mut self.random;
        let key = format!("{:05}", random.below(9000)).into_bytes();
        match random.below(200) {
            0 => db.checkpoint().map(drop),
            1 => db.keyspace(&format!("another {}", random.below(5))).map(drop),
            2..6 => {
                let value = random.bytes(3000);
                let rows: Vec<_> = (0..20).map(|_| format!("{:05}", random.below(9000)).into_bytes()).collect();
                let mut tx = db.begin()?;
                rows.iter().try_for_each(|key| tx.insert(keyspace, key, &value))?;
                tx.commit()?;
                self.model.extend(rows.into_iter().map(|key| (key, value.clone())));
                Ok(())
            }
            _ => {
                let value = some_value(random);
                keyspace.insert(&key, &value)?;
                self.model.insert(key, value);
                Ok(())
            }
        }
    }

    /// Removes half of the rows, one by one and in bulk, which must succeed and make room.
    fn remove_half(&mut self, db: &Database, keyspace: &Keyspace) {
        let seed = self.seed;
        let doomed: Vec<Vec<u8>> = self.model.keys().step_by(2).cloned().collect();
        let (alone, together) = doomed.split_at(doomed.len() / 2);
        for key in alone {
            keyspace.remove(key).unwrap_or_else(|error| panic!("seed {seed}: removing on a full disk: {error:?}"));
            self.model.remove(key);
        }
        for keys in together.chunks(50) {
            let mut tx = db.begin().unwrap();
            keys.iter().for_each(|key| tx.remove(keyspace, key).unwrap());
            tx.commit().unwrap_or_else(|error| panic!("seed {seed}: removing on a full disk: {error:?}"));
            keys.iter().for_each(|key| drop(self.model.remove(key)));
        }
        db.compact().unwrap_or_else(|error| panic!("seed {seed}: compacting a full disk: {error:?}"));
        compare(keyspace, &self.model);
        keyspace
            .insert(b"room", b"again")
            .unwrap_or_else(|error| panic!("seed {seed}: after removing half: {error:?}"));
        self.model.insert(b"room".to_vec(), b"again".to_vec());
        assert!(db.check().unwrap().corruption.is_empty());
    }

    /// Sometimes reopens the database, which must work while the disk is still full.
    fn reopen(&mut self, db: Database) -> Database {
        if !self.random.chance(50) {
            return db;
        }
        db.close().unwrap();
        self.config.open("/db").unwrap_or_else(|error| panic!("seed {}: opening on a full disk: {error:?}", self.seed))
    }

    /// Gives the disk more space. The database must then accept rows, and still have them after the next opening.
    fn go_on(&mut self, keyspace: &Keyspace) {
        self.faulty.set_space_limit(None);
        for number in 0..300u64 {
            let value = some_value(&mut self.random);
            keyspace.insert(number.to_be_bytes(), &value).unwrap();
            self.model.insert(number.to_be_bytes().to_vec(), value);
        }
    }
}

/// Fills a disk after a random number of steps. After that, all earlier rows must be present, removing and compacting
/// must work, and with more space every operation must work.
fn fill(seed: u64) {
    let mut filling = Filling::new(seed);
    let db = filling.config.open("/db").unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    filling.fill(&db, &keyspace);
    compare(&keyspace, &filling.model);
    filling.remove_half(&db, &keyspace);
    drop(keyspace);
    let db = filling.reopen(db);
    let keyspace = db.existing_keyspace("rows").unwrap();
    compare(&keyspace, &filling.model);
    filling.go_on(&keyspace);
    drop((keyspace, db));
    let db = filling.config.open("/db").unwrap();
    compare(&db.existing_keyspace("rows").unwrap(), &filling.model);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// The disk may fill up at any time (see `fill`).
#[test]
fn a_full_disk_loses_nothing_and_recovers() {
    for seed in 0..number("DRUMLIN_TEST_FULL_DISKS", 12) {
        fill(seed);
    }
}

/// Puts rows until the disk is full.
fn fill_up(keyspace: &drumlin::Keyspace) {
    let mut random = Random(1);
    let mut put = || keyspace.insert(random.next().to_be_bytes(), random.bytes(900));
    let refused = loop {
        if let Err(error) = put() {
            break error;
        }
    };
    assert!(matches!(refused, Error::DiskFull { .. }), "{refused:?}");
}

/// If a load finds the disk full or is dropped, its space is returned, even if the checkpoints that it waited for are
/// stored after its pages in the file. The rows from before the load are still present.
#[test]
fn a_load_that_ends_without_success_gives_its_space_back() {
    for (is_sorted, is_dropped) in [(true, false), (false, false), (true, true), (false, true)] {
        let (faulty, config) = faulty();
        let db = config.open("/db").unwrap();
        let rows = db.keyspace("rows").unwrap();
        (0..5000u64).for_each(|row| rows.insert(row.to_be_bytes(), Random(row).bytes(200)).unwrap());
        db.checkpoint().unwrap();
        let used = faulty.space_used();
        faulty.set_space_limit(Some(used + (24 << 20)));
        let mut load = db.bulk_load("load").unwrap();
        let key = |row: u64| if is_sorted { row } else { row.wrapping_mul(0x9E37_79B9_7F4A_7C15) };
        let rows_max = if is_dropped { 50_000 } else { u64::MAX };
        let loaded = (0..rows_max).try_for_each(|row| load.insert(key(row).to_be_bytes(), Random(row).bytes(250)));
        let taken = faulty.space_used() - used;
        if is_dropped {
            loaded.unwrap();
            assert!(taken > 8 << 20, "{taken} bytes taken");
            drop(load);
        } else {
            assert!(matches!(loaded, Err(Error::DiskFull { .. })), "{loaded:?}");
        }
        let left = faulty.space_used().saturating_sub(used);
        assert!(left < 4 << 20, "sorted: {is_sorted}, dropped: {is_dropped}: {left} bytes are not given back");
        assert_eq!(db.keyspace("load").unwrap().len().unwrap(), 0);
        assert!(rows.iter().enumerate().all(|(row, found)| found.unwrap().1 == Random(row as u64).bytes(200)));
        assert!(db.check().unwrap().corruption.is_empty());
        let mut load = db.bulk_load("load").unwrap();
        (0..1000u64).for_each(|row| load.insert(row.to_be_bytes(), "again").unwrap());
        load.finish().unwrap();
    }
}

/// A bulk load whose rows are already on the disk completes even if the disk is full. It must first merge the empty
/// leaves that removals left in its keyspace, and may use the reserve for removals to do so.
#[test]
fn a_full_disk_lets_a_load_merge_the_empty_leaves_of_its_keyspace() {
    const COUNT: u64 = 60_000;
    let (faulty, config) = faulty();
    let config = config.durability(Durability::Relaxed);
    let db = config.open("/db").unwrap();
    let keyspace = db.keyspace_with("k", KeyspaceOptions::new().page_bytes(512)).unwrap();
    let other = db.keyspace("other").unwrap();
    // Use long keys that differ only in their last bytes, so that leaves have few rows and long fences.
    let key = |row: u64| [&[b'k'; 120][..], &row.to_be_bytes()].concat();
    let mut load = db.bulk_load("k").unwrap();
    (0..COUNT).for_each(|row| load.insert(key(row), Random(row).bytes(60)).unwrap());
    load.finish().unwrap();
    // Remove rows in an order that produces empty leaves whose neighbours are not in memory.
    (0..COUNT).for_each(|row| keyspace.remove(key(row * 7919 % COUNT)).unwrap());
    db.compact().unwrap();
    let pages_before = db.keyspaces().iter().find(|info| info.name == "k").unwrap().page_count;
    assert!(pages_before > 10, "removals merged all leaves but {pages_before}");

    faulty.set_space_limit(Some(faulty.space_used() + (8 << 20)));
    let mut load = db.bulk_load("k").unwrap();
    let rows = 0..5000u64;
    rows.clone().for_each(|row| load.insert(key(row), Random(row).bytes(60)).unwrap());
    fill_up(&other);
    load.finish().expect("the leaves are merged within the reserve");
    assert!(rows.clone().all(|row| keyspace.get(key(row)).unwrap().unwrap() == Random(row).bytes(60)));
    assert_eq!(keyspace.count(..).unwrap(), 5000);
    drop((keyspace, other));
    db.close().unwrap();
    let db = config.open("/db").unwrap();
    assert!(db.check().unwrap().corruption.is_empty());
    assert_eq!(db.keyspace("k").unwrap().count(..).unwrap(), 5000);
}

/// Dropping a keyspace of very many pages does not need disk space for each page, and its space is free after a
/// checkpoint.
#[test]
fn a_large_keyspace_can_be_dropped() {
    let (faulty, config) = faulty();
    let config = config.memory(64 << 20).page_bytes(512);
    let db = config.open("/db").unwrap();
    let (large, small) = (db.keyspace("large").unwrap(), db.keyspace("small").unwrap());
    small.insert(b"a row", b"that is there before").unwrap();
    let relaxed = TxOptions { durability: Durability::Relaxed, ..TxOptions::default() };
    for part in 0..1000u32 {
        let mut tx = db.begin_with(relaxed).unwrap();
        for key in part * 100..part * 100 + 100 {
            tx.insert(&large, key.to_be_bytes(), [b'x'; 300]).unwrap();
        }
        tx.commit().unwrap();
    }
    db.compact().unwrap();
    faulty.set_space_limit(Some(faulty.space_used() + (300 << 10)));
    fill_up(&small);
    drop(large);
    db.drop_keyspace("large").unwrap();
    let free_before = db.stats().free_segments;
    db.checkpoint().expect("a checkpoint after the drop");
    db.checkpoint().expect("another, which uses what the first freed");
    assert!(db.stats().free_segments > free_before + 4, "what was dropped makes no room");
    small.remove(b"a row").unwrap();
    small.insert(b"a row", b"again").unwrap();
    drop(small);
    db.close().unwrap();
    let db = config.open("/db").unwrap();
    assert!(db.check().unwrap().corruption.is_empty());
    assert!(matches!(db.existing_keyspace("large"), Err(Error::NoSuchKeyspace { .. })));
}

/// A checkpoint reserves space for pages in memory at their full size. If the pages compress well, that must not
/// prevent the checkpoint.
#[test]
fn rows_that_compress_can_be_removed() {
    const COUNT: u64 = 12_000;
    let (faulty, config) = faulty();
    let db = config.memory(64 << 20).page_bytes(4096).open("/db").unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    let mut random = Random(5);
    for key in 0..COUNT {
        let value = random.bytes(100).repeat(7);
        keyspace.insert_with(key.to_be_bytes(), value, Durability::Relaxed).unwrap();
        if key % 4000 == 0 {
            db.checkpoint().unwrap();
        }
    }
    db.compact().unwrap();
    faulty.set_space_limit(Some(faulty.space_used() + (2 << 20)));
    let mut keys: Vec<u64> = (0..COUNT).collect();
    for index in (1..keys.len()).rev() {
        keys.swap(index, random.below(index as u64 + 1) as usize);
    }
    for (step, key) in keys.into_iter().enumerate() {
        keyspace.remove(key.to_be_bytes()).unwrap_or_else(|error| panic!("removal {step}: {error:?}"));
    }
    assert_eq!(keyspace.count(..).unwrap(), 0);
}

/// If the page tables occupy several segments, so does the reserve for removals: a checkpoint after removals may have
/// to rewrite all tables before any space is freed.
#[test]
fn rows_of_very_many_pages_can_be_removed() {
    const COUNT: u32 = 100_000;
    let (faulty, config) = faulty();
    let db = config.memory(64 << 20).page_bytes(512).open("/db").unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    let relaxed = TxOptions { durability: Durability::Relaxed, ..TxOptions::default() };
    let mut random = Random(11);
    let mut keys: Vec<u32> = (0..COUNT).collect();
    for keys in keys.chunks(100) {
        let mut tx = db.begin_with(relaxed).unwrap();
        keys.iter().for_each(|key| tx.insert(&keyspace, key.to_be_bytes(), random.bytes(200)).unwrap());
        tx.commit().unwrap();
    }
    db.compact().unwrap();
    faulty.set_space_limit(Some(faulty.space_used() + (1 << 20)));
    fill_up(&keyspace);
    for index in (1..keys.len()).rev() {
        keys.swap(index, random.below(index as u64 + 1) as usize);
    }
    for (step, keys) in keys.chunks(20).enumerate() {
        let mut tx = db.begin_with(relaxed).unwrap();
        keys.iter().for_each(|key| tx.remove(&keyspace, key.to_be_bytes()).unwrap());
        tx.commit().unwrap_or_else(|error| panic!("removal {step}: {error:?}"));
    }
    db.compact().unwrap();
    keyspace.insert(b"room", b"again").unwrap();
}

/// A full disk refuses new keyspaces as it refuses rows, and the reserve for removals remains.
#[test]
fn creating_keyspaces_leaves_the_reserve() {
    let (faulty, config) = faulty();
    let db = config.memory(64 << 20).page_bytes(16 << 10).open("/db").unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    let mut random = Random(7);
    for key in 0..2000u32 {
        keyspace.insert_with(key.to_be_bytes(), random.bytes(900), Durability::Relaxed).unwrap();
    }
    db.compact().unwrap();
    faulty.set_space_limit(Some(faulty.space_used() + (600 << 10)));
    fill_up(&keyspace);
    let refused = (0..300).find_map(|number| db.keyspace(&format!("new {number}")).err());
    assert!(matches!(refused, Some(Error::DiskFull { .. })), "{refused:?}");
    for key in 0..2000u32 {
        keyspace.remove(key.to_be_bytes()).unwrap_or_else(|error| panic!("removal {key}: {error:?}"));
    }
    db.checkpoint().unwrap();
    db.keyspace("one more").expect("there is room again");
}
