//! Estimates of the number of rows in a range: within a factor of two for ranges of more than a few leaves.

use std::collections::BTreeSet;
use std::sync::Arc;

use drumlin::{Config, Database, Durability, Keyspace};
use smol::block_on;

use crate::support::{Folder, Random};

type Keys = BTreeSet<Vec<u8>>;

/// The numbers of a keyspace's keys, in the order in which the rows are inserted.
#[derive(Clone, Copy, Debug)]
enum Order {
    Ascending,
    Descending,
    Random,
    /// Hundreds of numbers next to each other, far from the next hundreds.
    Clusters,
    /// Text of very different lengths.
    Words,
}

impl Order {
    const ALL: [Order; 5] = [Order::Ascending, Order::Descending, Order::Random, Order::Clusters, Order::Words];

    fn key(self, number: u64, random: &mut Random) -> Vec<u8> {
        match self {
            Order::Ascending => number.to_be_bytes().to_vec(),
            Order::Descending => (u64::MAX - number).to_be_bytes().to_vec(),
            Order::Random => random.next().to_be_bytes().to_vec(),
            Order::Clusters => {
                [(number / 300).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes(), number.to_be_bytes()].concat()
            }
            Order::Words => {
                let length = 4 + random.below(60) as usize;
                (0..length).map(|_| b'a' + random.below(26) as u8).collect()
            }
        }
    }
}

/// Fills a keyspace with rows whose values have up to `value_bytes_max` bytes.
fn fill(k: &Keyspace, order: Order, row_count: u64, value_bytes_max: u64, random: &mut Random) -> Keys {
    let mut keys = Keys::new();
    for number in 0..row_count {
        let key = order.key(number, random);
        let value = vec![7; random.below(value_bytes_max + 1) as usize];
        k.insert(&key, value).unwrap();
        keys.insert(key);
    }
    keys
}

/// Compares the estimates of random ranges of at least `rows_min` rows with the keys.
fn check(k: &Keyspace, keys: &Keys, rows_min: usize, random: &mut Random, context: &str) {
    let sorted: Vec<&Vec<u8>> = keys.iter().collect();
    for round in 0..60 {
        let length = rows_min + random.below((sorted.len() - rows_min) as u64 + 1) as usize;
        let start = random.below((sorted.len() - length) as u64 + 1) as usize;
        let (lower, upper) = (sorted[start], sorted[start + length - 1]);
        let estimate = match round % 4 {
            0 => k.estimate(lower..=upper),
            1 => block_on(k.estimate_async(lower..=upper)),
            2 if start == 0 => k.estimate(..=upper),
            _ if start + length == sorted.len() => k.estimate(lower..),
            _ => k.estimate(lower..=upper),
        };
        let (estimate, length) = (estimate.unwrap(), length as u64);
        assert!(
            (length.div_ceil(2)..=length * 2).contains(&estimate),
            "{context}: {estimate} rows are estimated, {length} are there, from {start}"
        );
    }
    let (estimate, count) = (k.estimate(..).unwrap(), keys.len() as u64);
    assert!((count.div_ceil(2)..=count * 2).contains(&estimate), "{context}: {estimate} of {count} rows");
}

fn config() -> Config {
    Config::new().durability(Durability::Relaxed).page_bytes(1024).warm_start(false)
}

/// Estimates are within a factor of two for keys and values of many kinds, whether the leaves are in memory or not, and
/// after most rows were removed.
#[test]
fn estimates_are_within_a_factor_of_two() {
    let mut random = Random(38);
    for (memory_bytes, row_count) in [(64 << 20, 8_000), (8 << 20, 16_000)] {
        for order in Order::ALL {
            for value_bytes_max in [0, 60, 400] {
                let context = format!("{order:?}, values of up to {value_bytes_max} bytes, {memory_bytes} of memory");
                let backend = drumlin_io::in_memory();
                let open = || config().memory(memory_bytes).backend(Arc::clone(&backend)).open("/db").unwrap();
                let db = open();
                let k = db.keyspace("k").unwrap();
                let row_count = if value_bytes_max == 400 { row_count / 4 } else { row_count };
                let mut keys = fill(&k, order, row_count, value_bytes_max, &mut random);
                check(&k, &keys, 400, &mut random, &context);
                drop(k);
                db.close().unwrap();
                let db = open();
                let k = db.keyspace("k").unwrap();
                check(&k, &keys, 400, &mut random, &format!("{context}, reopened"));
                let removed: Vec<Vec<u8>> = keys.iter().filter(|_| random.below(10) < 7).cloned().collect();
                for key in &removed {
                    k.remove(key).unwrap();
                    keys.remove(key);
                }
                check(&k, &keys, 400, &mut random, &format!("{context}, most removed"));
                drop(k);
                db.close().unwrap();
                let db = open();
                let k = db.keyspace("k").unwrap();
                check(&k, &keys, 400, &mut random, &format!("{context}, most removed, reopened"));
            }
        }
    }
}

/// The estimate of a bulk load is within a factor of two, before and after reopening.
#[test]
fn loaded_rows_are_estimated() {
    let mut random = Random(7);
    let folder = Folder::new();
    let keys: Keys = (0..30_000u64).map(|number| number.to_be_bytes().to_vec()).collect();
    {
        let db = config().memory(16 << 20).open(folder.path()).unwrap();
        let mut load = db.bulk_load("k").unwrap();
        keys.iter().for_each(|key| load.insert(key, [7; 30]).unwrap());
        load.finish().unwrap();
        check(&db.keyspace("k").unwrap(), &keys, 400, &mut random, "loaded");
        db.close().unwrap();
    }
    let db = config().memory(16 << 20).open(folder.path()).unwrap();
    check(&db.keyspace("k").unwrap(), &keys, 400, &mut random, "reopened");
}

/// Rows that a large transaction inserts or removes count in estimates before they are folded into the tree: the
/// snapshot delays that.
#[test]
fn rows_of_large_transactions_are_estimated() {
    let mut random = Random(38);
    for memory_bytes in [64 << 20, 8 << 20] {
        let db = Config::in_memory().memory(memory_bytes).page_bytes(1024).open("").unwrap();
        let k = db.keyspace("k").unwrap();
        let key = |number: u64| number.to_be_bytes().to_vec();
        let mut keys = Keys::new();
        let mut change = |context: &str, numbers: &mut dyn Iterator<Item = u64>, puts: bool| {
            // A snapshot keeps the changes of each transaction in its run.
            let snapshot = db.snapshot();
            let mut tx = db.begin().unwrap();
            for number in numbers {
                if puts {
                    tx.insert(&k, key(number), [7; 100]).unwrap();
                    keys.insert(key(number));
                } else {
                    tx.remove(&k, key(number)).unwrap();
                    keys.remove(&key(number));
                }
            }
            tx.commit().unwrap();
            if keys.is_empty() {
                let estimate = k.estimate(..).unwrap();
                assert!(estimate < 3000, "{context}, {memory_bytes} of memory: {estimate} rows are estimated");
            } else {
                check(&k, &keys, 400, &mut random, &format!("{context}, {memory_bytes} of memory"));
            }
            snapshot
        };
        let mut snapshots = vec![change("all inserted", &mut (0..20_000), true)];
        snapshots.push(change("half removed", &mut (0..20_000).step_by(2), false));
        snapshots.push(change("others inserted", &mut (20_000..30_000), true));
        snapshots.push(change("all removed", &mut (1..20_000).step_by(2).chain(20_000..30_000), false));
        assert_eq!(k.count(..).unwrap(), 0);
    }
}

/// Ranges of a few rows and small keyspaces in memory are counted exactly; empty and inverted ranges have no rows.
#[test]
fn small_ranges_are_exact() {
    let db = Config::in_memory().memory(64 << 20).page_bytes(1024).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    for count in 0..300u64 {
        assert_eq!(k.estimate(..).unwrap(), count);
        let (lower, upper) = (count / 3, count / 2);
        assert_eq!(k.estimate(lower.to_be_bytes()..upper.to_be_bytes()).unwrap(), upper - lower);
        assert_eq!(k.estimate(..=lower.to_be_bytes()).unwrap(), (lower + 1).min(count));
        k.insert(count.to_be_bytes(), [7; 20]).unwrap();
    }
    assert_eq!(k.estimate(9u64.to_be_bytes()..9u64.to_be_bytes()).unwrap(), 0);
    assert_eq!(k.estimate(9u64.to_be_bytes()..3u64.to_be_bytes()).unwrap(), 0);
    assert_eq!(k.estimate(1000u64.to_be_bytes()..).unwrap(), 0);
}

/// Returns the number of pages that the database has read.
fn reads(db: &Database) -> u64 {
    db.stats().page_misses
}

/// After reopening, an estimate reads only the few inner nodes above the range's ends and its samples, though hundreds
/// of leaves are in the range.
#[test]
fn an_estimate_reads_few_pages() {
    let folder = Folder::new();
    {
        let db = config().memory(16 << 20).open(folder.path()).unwrap();
        let mut load = db.bulk_load("k").unwrap();
        (0..60_000u64).for_each(|number| load.insert(number.to_be_bytes(), [7; 30]).unwrap());
        load.finish().unwrap();
        db.close().unwrap();
    }
    let db = config().memory(16 << 20).open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    assert_eq!(reads(&db), 0);
    let estimate = k.estimate(500u64.to_be_bytes()..59_000u64.to_be_bytes()).unwrap();
    assert!((50_000..70_000).contains(&estimate), "{estimate}");
    let first = reads(&db);
    assert!(first <= 21, "{first} pages were read");
    k.estimate(500u64.to_be_bytes()..59_000u64.to_be_bytes()).unwrap();
    assert_eq!(reads(&db), first, "the same nodes are read again");
}
