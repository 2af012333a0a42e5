//! Aggregates of ranges: exact at every snapshot, after any change to the tree, and cheap when repeated.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use drumlin::{
    Config, Database, Durability, Error, Field, Isolation, Keyspace, Max, Min, Reader, Recourse, ReduceError, Reducer,
    Snapshot, Sum, TxOptions,
};
use smol::block_on;

use crate::support::Random;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

const NUMBER: Field<u32> = Field::big_endian(0);
const FLOAT: Field<f64> = Field::of("a float", |_, value| Some(f64::from(*value.first()?) * 0.1));

/// A fingerprint of the rows of a range: the composition of one linear function per row. It reveals every row that is
/// missing, repeated or out of place.
#[derive(Default)]
struct Fingerprint {
    /// The number of rows read.
    row_count: AtomicU64,
    /// Distinguishes fingerprints that must not share states.
    name: &'static str,
}

fn function_of(key: &[u8], value: &[u8]) -> (u64, u64) {
    let hash =
        |bytes: &[u8]| bytes.iter().fold(7u64, |hash, &byte| hash.rotate_left(9).wrapping_mul(31) ^ u64::from(byte));
    (hash(key) | 1, hash(value))
}

fn composed(left: (u64, u64), right: (u64, u64)) -> (u64, u64) {
    (left.0.wrapping_mul(right.0), left.1.wrapping_mul(right.0).wrapping_add(right.1))
}

impl Reducer for Fingerprint {
    type State = (u64, u64);
    type Output = (u64, u64);

    fn name(&self) -> Cow<'_, str> {
        format!("fingerprint {}", self.name).into()
    }
    fn identity(&self) -> (u64, u64) {
        (1, 0)
    }
    fn row(&self, key: &[u8], value: &[u8]) -> Result<(u64, u64), ReduceError> {
        self.row_count.fetch_add(1, Ordering::Relaxed);
        Ok(function_of(key, value))
    }
    fn combine(&self, left: (u64, u64), right: (u64, u64)) -> Result<(u64, u64), ReduceError> {
        Ok(composed(left, right))
    }
    fn encode(&self, state: &(u64, u64), bytes: &mut Vec<u8>) {
        bytes.extend(state.0.to_be_bytes());
        bytes.extend(state.1.to_be_bytes());
    }
    fn decode(&self, bytes: &[u8]) -> Result<(u64, u64), ReduceError> {
        let (factor, term) = bytes.split_at(8);
        Ok((u64::from_be_bytes(factor.try_into()?), u64::from_be_bytes(term.try_into()?)))
    }
    fn output(&self, state: (u64, u64)) -> (u64, u64) {
        state
    }
}

fn opened() -> (Database, Keyspace) {
    let db = Config::in_memory().memory(256 << 20).durability(Durability::Relaxed).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    (db, k)
}

fn key(number: u64) -> Vec<u8> {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec()
}

/// Returns a value that begins with a number. Some values are too short to have one, and some are stored outside of
/// their leaf.
fn value(random: &mut Random) -> Vec<u8> {
    let length = match random.below(50) {
        0 => random.below(4),
        1 => 2000 + random.below(3000),
        _ => 4 + random.below(100),
    };
    (0..length).map(|_| random.below(256) as u8).collect()
}

fn filled(k: &Keyspace, row_count: u64) -> Model {
    let mut random = Random(row_count);
    let rows: Model = (0..row_count).map(|number| (key(number), value(&mut random))).collect();
    for (key, value) in &rows {
        k.insert(key, value).unwrap();
    }
    rows
}

fn random_bounds(random: &mut Random, key_max: u64) -> Bounds {
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

/// Compares all aggregates of one random range with the model, through blocking and asynchronous calls.
fn check(reader: &Reader, k: &Keyspace, model: &Model, random: &mut Random, key_max: u64) {
    let bounds = random_bounds(random, key_max);
    let rows: Vec<(&Vec<u8>, &Vec<u8>)> = model.iter().filter(|(key, _)| bounds.contains(*key)).collect();
    let fingerprint = rows.iter().map(|(key, value)| function_of(key, value)).fold((1, 0), composed);
    let found = reader.aggregate(k, &Fingerprint::default(), bounds.clone()).unwrap();
    assert_eq!(found, fingerprint, "{} rows of {bounds:?}", rows.len());
    let found = block_on(reader.aggregate_async(k, &Fingerprint::default(), bounds.clone())).unwrap();
    assert_eq!(found, fingerprint);
    let numbers = || rows.iter().filter_map(|(_, value)| Some(u32::from_be_bytes(value.get(..4)?.try_into().unwrap())));
    assert_eq!(reader.aggregate(k, &Sum::of(NUMBER), bounds.clone()).unwrap(), numbers().map(i128::from).sum::<i128>());
    assert_eq!(reader.aggregate(k, &Min::of(NUMBER), bounds.clone()).unwrap(), numbers().min());
    assert_eq!(reader.aggregate(k, &Max::of(NUMBER), bounds.clone()).unwrap(), numbers().max());
    let floats = || rows.iter().filter_map(|(_, value)| value.first().map(|byte| f64::from(*byte) * 0.1));
    let greatest = floats().max_by(f64::total_cmp);
    assert_eq!(reader.aggregate(k, &Max::of(FLOAT), bounds).unwrap(), greatest);
}

/// Aggregates match a model after inserts, removals and replacements, at snapshots of different ages, and in
/// transactions with uncommitted changes.
#[test]
fn aggregates_are_those_of_a_model() {
    let (db, k) = opened();
    let mut random = Random(5);
    let mut model = filled(&k, 8_000);
    let key_max = 16_000;
    let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
    for round in 0..25 {
        for _ in 0..random.below(800) {
            let key = key(random.below(key_max));
            match random.below(4) {
                0 => {
                    k.remove(&key).unwrap();
                    model.remove(&key);
                }
                _ => {
                    let value = value(&mut random);
                    k.insert(&key, &value).unwrap();
                    model.insert(key, value);
                }
            }
        }
        check(&db.snapshot(), &k, &model, &mut random, key_max);
        if round % 4 == 0 {
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
                tx.insert(&k, &key, "own value").unwrap();
                own.insert(key, b"own value".to_vec());
            }
        }
        check(&tx, &k, &own, &mut random, key_max);
        tx.abort();
    }
}

/// The second aggregate of a range reads only the rows at its two ends. After some changes, the next aggregate also
/// reads the changed leaves, and later aggregates only read the ends.
#[test]
fn states_are_kept() {
    let (_db, k) = opened();
    let model = filled(&k, 20_000);
    let read = |bounds: std::ops::Range<Vec<u8>>| {
        let fingerprint = Fingerprint::default();
        let rows = model.range(bounds.clone()).map(|(key, value)| function_of(key, value));
        assert_eq!(k.aggregate(&fingerprint, bounds).unwrap(), rows.fold((1, 0), composed));
        fingerprint.row_count.load(Ordering::Relaxed)
    };
    let (lower, upper) = (vec![0x10, 1, 2, 3], vec![0xE0, 1, 2, 3]);
    let leaf_rows_max = 100;
    let first = read(lower.clone()..upper.clone());
    assert!(first > 14_000, "{first} rows were read for the first aggregate");
    let again = read(lower.clone()..upper.clone());
    assert!(again <= 2 * leaf_rows_max, "{again} rows were read again");
    let between = read(vec![0x30]..vec![0x90]);
    assert!(between <= 2 * leaf_rows_max, "{between} rows were read for a range within");
    // Rewriting the same values changes no result, but invalidates the states of their leaves.
    for (key, value) in model.range(vec![0x20]..vec![0xD0]).step_by(200) {
        k.insert(key, value).unwrap();
    }
    let changed = read(lower.clone()..upper.clone());
    assert!((again + 1..again + 80 * leaf_rows_max).contains(&changed), "{changed} rows were read after changes");
    let settled = read(lower..upper);
    assert!(settled <= 2 * leaf_rows_max, "{settled} rows were read once the changes were folded");
}

/// While threads change rows, every aggregate at a snapshot equals the fold over the same snapshot's rows.
#[test]
fn aggregates_are_exact_during_writes() {
    const KEY_MAX: u64 = 12_000;
    let (db, k) = opened();
    filled(&k, KEY_MAX / 2);
    let stop = AtomicBool::new(false);
    let reduce = |seed: u64| {
        let mut random = Random(seed);
        let mut kept: Vec<Snapshot> = Vec::new();
        let mut compared_count = 0;
        while compared_count < 60 {
            let snapshot = if random.below(3) == 0 { kept.pop() } else { None }.unwrap_or_else(|| db.snapshot());
            let bounds = random_bounds(&mut random, KEY_MAX);
            let reduced = snapshot.aggregate(&k, &Fingerprint::default(), bounds.clone());
            let rows: Result<Vec<_>, _> = snapshot.range(&k, bounds.clone()).collect();
            let (reduced, rows) = match (reduced, rows) {
                (Ok(reduced), Ok(rows)) => (reduced, rows),
                // The writers have created too many versions for an open snapshot.
                (Err(Error::SnapshotTooOld { .. }), _) | (_, Err(Error::SnapshotTooOld { .. })) => continue,
                (Err(error), _) | (_, Err(error)) => panic!("{error}"),
            };
            let folded = rows.iter().map(|(key, value)| function_of(key, value)).fold((1, 0), composed);
            assert_eq!(reduced, folded, "{bounds:?} at {}", snapshot.timestamp());
            compared_count += 1;
            if random.below(4) == 0 {
                kept.push(snapshot);
            }
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                let (k, stop) = (&k, &stop);
                scope.spawn(move || {
                    let mut random = Random(seed);
                    while !stop.load(Ordering::Relaxed) {
                        let key = key(random.below(KEY_MAX));
                        match random.below(3) {
                            0 => k.remove(key).unwrap(),
                            _ => k.insert(key, value(&mut random)).unwrap(),
                        }
                    }
                })
            })
            .collect();
        let reduce = &reduce;
        let readers: Vec<_> = (10..12).map(|seed| scope.spawn(move || reduce(seed))).collect();
        let ended: Vec<_> = readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        ended.into_iter().for_each(|reader| reader.unwrap());
    });
}

/// Aggregates stay correct after removals that merge all leaves, after the keyspace is cleared and loaded in bulk, and
/// after it is replaced by a keyspace of the same name.
#[test]
fn aggregates_survive_all_that_happens_to_a_keyspace() {
    let (db, k) = opened();
    let model = filled(&k, 10_000);
    let sum_of = |model: &Model| -> i128 {
        model
            .values()
            .filter_map(|value| Some(i128::from(u32::from_be_bytes(value.get(..4)?.try_into().unwrap()))))
            .sum()
    };
    let sum = Sum::of(NUMBER);
    assert_eq!(k.aggregate(&sum, ..).unwrap(), sum_of(&model));
    let before = db.snapshot();
    let kept: Model = model.iter().step_by(100).map(|(key, value)| (key.clone(), value.clone())).collect();
    for key in model.keys().filter(|key| !kept.contains_key(*key)) {
        k.remove(key).unwrap();
    }
    assert_eq!(k.aggregate(&sum, ..).unwrap(), sum_of(&kept));
    assert_eq!(before.aggregate(&k, &sum, ..).unwrap(), sum_of(&model));
    drop(before);
    k.clear().unwrap();
    assert_eq!(k.aggregate(&sum, ..).unwrap(), 0);
    let mut load = db.bulk_load("k").unwrap();
    for (key, value) in &model {
        load.insert(key, value).unwrap();
    }
    load.finish().unwrap();
    for _ in 0..2 {
        assert_eq!(k.aggregate(&sum, ..).unwrap(), sum_of(&model));
    }
    db.drop_keyspace("k").unwrap();
    assert!(k.aggregate(&sum, ..).is_err());
    assert_eq!(db.keyspace("k").unwrap().aggregate(&sum, ..).unwrap(), 0);
}

/// A snapshot from before a bulk load does not see the load, although the leaves of a load have no commit timestamp.
#[test]
fn aggregates_before_a_load_do_not_see_it() {
    let (db, k) = opened();
    let before = db.snapshot();
    let mut load = db.bulk_load("k").unwrap();
    (0..50_000u32).for_each(|number| load.insert(number.to_be_bytes(), 1u32.to_be_bytes()).unwrap());
    load.finish().unwrap();
    let sum = Sum::of(NUMBER);
    for _ in 0..2 {
        assert_eq!(k.aggregate(&sum, ..).unwrap(), 50_000);
        assert_eq!(before.aggregate(&k, &sum, ..).unwrap(), 0);
    }
}

/// With little memory, few or no states are cached, but every result is correct.
#[test]
fn aggregates_in_little_memory_are_right() {
    for memory in [8 << 20, 12 << 20, 24 << 20] {
        let db = Config::in_memory().memory(memory).durability(Durability::Relaxed).open("").unwrap();
        let k = db.keyspace_with("k", drumlin::KeyspaceOptions::new().page_bytes(512)).unwrap();
        let mut model = Model::new();
        let mut random = Random(3);
        for round in 0..4 {
            for _ in 0..8_000 {
                let (key, value) = (key(random.below(30_000)), vec![round; random.below(60) as usize]);
                k.insert(&key, &value).unwrap();
                model.insert(key, value);
            }
            for _ in 0..3 {
                check(&db.snapshot(), &k, &model, &mut random, 30_000);
            }
        }
    }
}

/// Sums the first `prefix_bytes` bytes of each value, and records the length of the longest value that it received.
struct FirstBytes {
    prefix_bytes: usize,
    longest: AtomicU64,
}

impl FirstBytes {
    fn of(&self, value: &[u8]) -> u64 {
        value.iter().take(self.prefix_bytes).map(|byte| u64::from(*byte)).sum()
    }
}

impl Reducer for FirstBytes {
    type State = u64;
    type Output = u64;

    fn name(&self) -> Cow<'_, str> {
        format!("first {} bytes", self.prefix_bytes).into()
    }
    fn identity(&self) -> u64 {
        0
    }
    fn row(&self, _key: &[u8], value: &[u8]) -> Result<u64, ReduceError> {
        self.longest.fetch_max(value.len() as u64, Ordering::Relaxed);
        Ok(self.of(value))
    }
    fn prefix_bytes(&self) -> usize {
        self.prefix_bytes
    }
    fn combine(&self, left: u64, right: u64) -> Result<u64, ReduceError> {
        Ok(left + right)
    }
    fn encode(&self, state: &u64, bytes: &mut Vec<u8>) {
        bytes.extend(state.to_be_bytes());
    }
    fn decode(&self, bytes: &[u8]) -> Result<u64, ReduceError> {
        Ok(u64::from_be_bytes(bytes.try_into()?))
    }
    fn output(&self, state: u64) -> u64 {
        state
    }
}

/// A reducer receives only the bytes that it uses. This holds for values of any length, stored in a leaf, in one extent
/// or in several, whether committed or put by the calling transaction.
#[test]
fn reducers_are_shown_the_bytes_that_they_look_at() {
    const LENGTHS: [usize; 9] = [0, 7, 300, 5_000, 65_000, 66_000, 262_100, 262_200, 700_000];
    let (db, k) = opened();
    let mut random = Random(4);
    let mut model = Model::new();
    for (number, length) in LENGTHS.iter().cycle().take(40).enumerate() {
        let (key, value) = (key(number as u64 * 2), random.bytes(*length));
        k.insert(&key, &value).unwrap();
        model.insert(key, value);
    }
    let mut tx = db.begin().unwrap();
    let mut own = model.clone();
    for (number, length) in LENGTHS.iter().enumerate() {
        let (key, value) = (key(number as u64 * 5), random.bytes(*length));
        tx.insert(&k, &key, &value).unwrap();
        own.insert(key, value);
    }
    for prefix_bytes in [0, 1, 8, 4_096, 5_000, 262_128, 262_144, 300_000, 699_999, 700_000, usize::MAX] {
        let reducer = FirstBytes { prefix_bytes, longest: AtomicU64::new(0) };
        for turn in 0..2 {
            for from in [0, 3, 40] {
                let of = |model: &Model| model.range(key(from)..).map(|(_, value)| reducer.of(value)).sum::<u64>();
                let what = format!("the first {prefix_bytes} bytes from row {from} on, turn {turn}");
                assert_eq!(k.aggregate(&reducer, key(from)..).unwrap(), of(&model), "{what}");
                assert_eq!(tx.aggregate(&k, &reducer, key(from)..).unwrap(), of(&own), "{what}, with own rows");
            }
        }
        assert_eq!(reducer.longest.into_inner(), prefix_bytes.min(700_000) as u64);
    }
}

/// The states of two reducers over 3,300 leaves fit into the smallest budget. When repeated, the aggregate of each
/// range reads only the rows at its two ends, and the statistics include the memory of the states.
#[test]
fn reducers_share_the_least_memory() {
    let db = Config::in_memory().memory(8 << 20).page_bytes(1024).open("").unwrap();
    let mut load = db.bulk_load("k").unwrap();
    (0..50_000u64).for_each(|row| load.insert(row.to_be_bytes(), [row as u8; 50]).unwrap());
    load.finish().unwrap();
    let k = db.keyspace("k").unwrap();
    let states = || {
        let stats = db.stats();
        let is_within_pages = |name: &str| ["counts of rows", "states of reducers"].contains(&name);
        let parts = stats.memory.iter().map(|part| match is_within_pages(part.name) {
            true => part.used_bytes,
            false => part.limit_bytes,
        });
        assert_eq!(parts.sum::<u64>(), stats.memory_budget_bytes);
        let part = stats.memory.into_iter().find(|part| part.name == "states of reducers").unwrap();
        assert_eq!(part.limit_bytes, db.limits().state_bytes);
        part.used_bytes
    };
    assert_eq!(states(), 0);
    let reducers = ["first", "second"].map(|name| Fingerprint { name, ..Fingerprint::default() });
    for reducer in &reducers {
        k.aggregate(reducer, ..).unwrap();
    }
    assert!(states() > 2 * 3000 * 28, "{} bytes of states", states());
    let mut random = Random(5);
    for _ in 0..200 {
        let from = random.below(49_000);
        let folded =
            (from..from + 1000).map(|row| function_of(&row.to_be_bytes(), &[row as u8; 50])).fold((1, 0), composed);
        for reducer in &reducers {
            reducer.row_count.store(0, Ordering::Relaxed);
            assert_eq!(k.aggregate(reducer, from.to_be_bytes()..(from + 1000).to_be_bytes()).unwrap(), folded);
            let row_count = reducer.row_count.load(Ordering::Relaxed);
            assert!(row_count <= 40, "{row_count} rows of 1,000 from {from} were read for {}", reducer.name);
        }
    }
}

/// A serializable transaction that has aggregated a range conflicts with a commit that changes a row in the range.
#[test]
fn an_aggregate_is_a_read_of_its_range() {
    let (db, k) = opened();
    let model = filled(&k, 3_000);
    let sum = Sum::of(NUMBER);
    for _ in 0..2 {
        let mut tx = db.begin_with(TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() }).unwrap();
        let total = tx.aggregate(&k, &sum, ..).unwrap();
        tx.insert(&k, "the total", total.to_string()).unwrap();
        k.insert(model.keys().nth(1000).unwrap(), "another value").unwrap();
        assert!(tx.commit().is_err_and(|error| error.is_conflict()));
    }
}

/// The function in which a [`Faulty`] reducer fails.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Name,
    Identity,
    Row,
    RowPanics,
    Overflow,
    CombinePanics,
    Encode,
    Decode,
    Output,
}

/// Counts rows in eight bits, and fails in one of its functions.
struct Faulty(Fault);

impl Reducer for Faulty {
    type State = u8;
    type Output = u8;

    fn name(&self) -> Cow<'_, str> {
        assert!(self.0 != Fault::Name, "on purpose");
        format!("faulty {}", self.0 as u8).into()
    }
    fn identity(&self) -> u8 {
        assert!(self.0 != Fault::Identity, "on purpose");
        0
    }
    fn row(&self, key: &[u8], _: &[u8]) -> Result<u8, ReduceError> {
        assert!(self.0 != Fault::RowPanics || key[0] != 0x80, "on purpose");
        if self.0 == Fault::Row && key[0] == 0x80 { Err("on purpose".into()) } else { Ok(1) }
    }
    fn combine(&self, left: u8, right: u8) -> Result<u8, ReduceError> {
        assert!(self.0 != Fault::CombinePanics || left < 50, "on purpose");
        match self.0 {
            Fault::Overflow => left.checked_add(right).ok_or_else(|| "on purpose".into()),
            _ => Ok(left.wrapping_add(right)),
        }
    }
    fn encode(&self, state: &u8, bytes: &mut Vec<u8>) {
        assert!(self.0 != Fault::Encode, "on purpose");
        bytes.push(*state);
    }
    fn decode(&self, bytes: &[u8]) -> Result<u8, ReduceError> {
        if self.0 == Fault::Decode { Err("on purpose".into()) } else { Ok(bytes[0]) }
    }
    fn output(&self, state: u8) -> u8 {
        assert!(self.0 != Fault::Output, "on purpose");
        state
    }
}

/// If any function of a reducer fails or panics, the call returns an error that names the reducer. The database remains
/// usable, and its other aggregates stay correct.
#[test]
fn reducers_that_fail_harm_nothing() {
    use Fault::{CombinePanics, Decode, Encode, Identity, Name, Output, Overflow, Row, RowPanics};
    let (db, k) = opened();
    let mut model = filled(&k, 6_000);
    let mut random = Random(9);
    for fault in [Name, Identity, Row, RowPanics, Overflow, CombinePanics, Encode, Decode, Output] {
        for _ in 0..2 {
            let error = k.aggregate(&Faulty(fault), ..).unwrap_err();
            assert!(matches!(&error, Error::Reducer { reason, .. } if reason.contains("on purpose")), "{error}");
            assert_eq!(error.recourse(), Recourse::Change);
        }
        let (key, value) = (key(random.below(9_000)), value(&mut random));
        k.insert(&key, &value).unwrap();
        model.insert(key, value);
        check(&db.snapshot(), &k, &model, &mut random, 9_000);
    }
}

/// An exact sum of floats is the same whether rows were loaded in bulk, inserted in order, or inserted at random: it
/// does not depend on the shape of the tree.
#[test]
fn sums_of_floats_do_not_depend_on_the_tree() {
    let (db, _) = opened();
    let mut random = Random(4);
    let mut rows: Vec<(Vec<u8>, [u8; 8])> = (0..5_000)
        .map(|number| (key(number), ((random.below(1 << 40) as f64 - 5e11) * 10f64.powi(random.below(60) as i32 - 30))))
        .map(|(key, number)| (key, number.to_be_bytes()))
        .collect();
    let sum = Sum::of(Field::<f64>::big_endian(0));
    let random_order = db.keyspace("random").unwrap();
    rows.iter().for_each(|(key, number)| random_order.insert(key, number).unwrap());
    rows.sort();
    let in_order = db.keyspace("in order").unwrap();
    rows.iter().for_each(|(key, number)| in_order.insert(key, number).unwrap());
    let mut load = db.bulk_load("loaded").unwrap();
    rows.iter().for_each(|(key, number)| load.insert(key, number).unwrap());
    load.finish().unwrap();
    let loaded = db.keyspace("loaded").unwrap();
    let expected = random_order.aggregate(&sum, ..).unwrap();
    for k in [&random_order, &in_order, &loaded] {
        for _ in 0..2 {
            assert_eq!(k.aggregate(&sum, ..).unwrap().to_bits(), expected.to_bits());
        }
    }
}

/// A reducer with a name of this many bytes.
struct Named(usize);

impl Reducer for Named {
    type State = ();
    type Output = ();

    fn name(&self) -> Cow<'_, str> {
        "n".repeat(self.0).into()
    }
    fn identity(&self) {}
    fn row(&self, _key: &[u8], _value: &[u8]) -> Result<(), ReduceError> {
        Ok(())
    }
    fn combine(&self, (): (), (): ()) -> Result<(), ReduceError> {
        Ok(())
    }
    fn encode(&self, (): &(), _bytes: &mut Vec<u8>) {}
    fn decode(&self, _bytes: &[u8]) -> Result<(), ReduceError> {
        Ok(())
    }
    fn output(&self, (): ()) {}
}

/// The length of a reducer's name is limited, and the error for a longer name quotes only its beginning.
#[test]
fn the_name_of_a_reducer_has_a_limit() {
    let (_db, k) = opened();
    k.insert("a", "1").unwrap();
    k.aggregate(&Named(1024), ..).unwrap();
    let refused = k.aggregate(&Named(1025), ..).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, Error::Invalid(_)) && text.contains("up to 1024 bytes") && text.len() < 200, "{text}");
}
