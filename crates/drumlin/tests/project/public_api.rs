//! The public API as users expect it: ranges accept any type that has bytes, every reader has the same methods, and
//! they return the same results.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

use drumlin::{Config, Database, Durability, Error, Isolation, Keyspace, Reader, Result, TxOptions, Value};
use futures_util::{StreamExt, TryStreamExt};
use smol::block_on;

fn opened() -> (Database, Keyspace) {
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    (db, k)
}

/// Returns the public methods of a type, read from the sources.
fn methods(of: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../drumlin/src/db");
    let mut methods = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        // Methods for the simulation are not public.
        let text = text.replace("pub fn snapshot_timestamp", "fn snapshot_timestamp");
        for block in text.split(&format!("\nimpl {of} {{\n")).skip(1) {
            let block = block.split("\n}").next().unwrap();
            let lines = block.lines().map(str::trim_start);
            let names = lines.filter_map(|line| line.strip_prefix("pub fn ").or(line.strip_prefix("pub async fn ")));
            methods.extend(names.map(|rest| rest.split(['(', '<', ' ']).next().unwrap().to_owned()));
        }
    }
    assert!(!methods.is_empty(), "{of} is somewhere else");
    methods
}

/// A keyspace has the same reading methods as snapshots and transactions.
#[test]
fn all_readers_have_the_same_methods() {
    let of_readers = methods("Reader");
    let of_keyspaces = methods("Keyspace");
    let missing: Vec<_> = of_readers.difference(&of_keyspaces).collect();
    assert!(missing.is_empty(), "Reader has, and Keyspace has not: {missing:?}");
    let others: Vec<_> = of_keyspaces.difference(&of_readers).map(String::as_str).collect();
    assert_eq!(others, KEYSPACE_ALONE, "methods of Keyspace that Reader has not: add them, or list those that write");
}

/// The methods of a keyspace that do not read, or do more than read.
const KEYSPACE_ALONE: &[&str] = &[
    "clear",
    "clear_async",
    "compare_and_swap",
    "compare_and_swap_async",
    "disk_bytes",
    "estimate",
    "estimate_async",
    "exclusive_bytes",
    "insert",
    "insert_async",
    "insert_from",
    "insert_from_async",
    "insert_if_absent",
    "insert_if_absent_async",
    "insert_with",
    "insert_with_async",
    "key_bytes_max",
    "name",
    "pop_first",
    "pop_first_async",
    "pop_first_in",
    "pop_first_in_async",
    "pop_last",
    "pop_last_async",
    "pop_last_in",
    "pop_last_in_async",
    "remove",
    "remove_async",
    "remove_prefix",
    "remove_prefix_async",
    "remove_range",
    "remove_range_async",
    "replace",
    "replace_async",
    "take",
    "take_async",
    "update",
    "update_async",
    "with_durability",
];

/// Each method of a keyspace that changes rows also exists on a transaction, unless its changes may not fit into one
/// commit.
#[test]
fn transactions_write_by_the_methods_of_keyspaces() {
    let of_transactions = methods("Transaction");
    let others: Vec<_> = (KEYSPACE_ALONE.iter()).filter(|name| !of_transactions.contains(**name)).collect();
    let expected = [
        // These remove any number of rows, in parts.
        "clear",
        "clear_async",
        "disk_bytes",
        // These ignore what a transaction has changed.
        "estimate",
        "estimate_async",
        "exclusive_bytes",
        // A transaction's durability is set in its options.
        "insert_with",
        "insert_with_async",
        "key_bytes_max",
        "name",
        // A transaction removes a range without waiting.
        "remove_prefix_async",
        "remove_range_async",
        "with_durability",
    ];
    assert!(others.into_iter().eq(&expected), "methods that Transaction has not: add them, or list them");
}

/// Every method that can wait has a blocking and an asynchronous form.
#[test]
fn every_call_that_waits_has_both_forms() {
    const NEVER_WAIT: &[&str] = &[
        "Batch::is_empty",
        "Batch::len",
        // These only write to memory, and otherwise wait only as `insert` does.
        "Batch::remove",
        "Batch::remove_prefix",
        "Batch::remove_range",
        "Database::alter",
        "Database::batch",
        "Database::begin",
        "Database::begin_with",
        "Database::durable",
        "Database::keyspaces",
        "Database::limits",
        "Database::opening",
        "Database::path",
        "Database::snapshot",
        "Database::stats",
        "Database::tx_options",
        "Keyspace::disk_bytes",
        "Keyspace::exclusive_bytes",
        "Keyspace::iter",
        "Keyspace::key_bytes_max",
        "Keyspace::keys",
        "Keyspace::name",
        "Keyspace::prefix",
        "Keyspace::range",
        "Keyspace::values",
        "Keyspace::with_durability",
        "Reader::iter",
        "Reader::keys",
        "Reader::prefix",
        "Reader::range",
        "Reader::values",
        "Transaction::abort",
        "Transaction::conflict",
        "Transaction::interrupter",
        "Transaction::number",
        // Their commits wait for locked rows.
        "Transaction::remove_prefix",
        "Transaction::remove_range",
        "Transaction::renew_snapshot",
        "Transaction::rollback_to",
        "Transaction::savepoint",
        "Transaction::set_lock_timeout",
    ];
    // These differ from their other form in more ways than waiting.
    const ALONE: &[&str] = &[
        "Database::backup_into",
        "Database::check_with",
        "Database::clones",
        "Database::kept_snapshots",
        "Database::locks",
        "Database::prepared",
        "Database::transact_local",
        "Database::transact_with_local",
        "Database::try_transact_local",
    ];
    let mut wrong = Vec::new();
    for of in ["Batch", "Database", "Keyspace", "Reader", "Transaction"] {
        let methods = methods(of);
        for name in &methods {
            let full = format!("{of}::{name}");
            let waits = !NEVER_WAIT.contains(&&full[..]) && !ALONE.contains(&&full[..]);
            let other = match name.strip_suffix("_async") {
                Some(blocking) => blocking.to_owned(),
                None => format!("{name}_async"),
            };
            if waits != methods.contains(&other) {
                wrong.push(full);
            }
        }
    }
    assert!(wrong.is_empty(), "with one form alone: {wrong:?}");
}

/// Ranges accept keys of any type, and `..`.
#[test]
fn ranges_take_anything_that_has_bytes() {
    let (db, k) = opened();
    for key in ["a", "ab", "b", "c"] {
        k.insert(key, "").unwrap();
    }
    let keys = |range: drumlin::Range| -> Vec<String> {
        range.keys().map(|key| String::from_utf8(key.unwrap().into_vec()).unwrap()).collect()
    };
    assert_eq!(keys(k.range(..)), ["a", "ab", "b", "c"]);
    assert_eq!(keys(k.range("a".."b")), ["a", "ab"]);
    assert_eq!(keys(k.range("ab".to_owned()..="b".to_owned())), ["ab", "b"]);
    assert_eq!(keys(k.range(b"b"..)), ["b", "c"]);
    assert_eq!(keys(k.range([b'b']..)), ["b", "c"]);
    assert_eq!(keys(k.range(..&b"b"[..])), ["a", "ab"]);
    assert_eq!(keys(k.range(..=vec![b'b'])), ["a", "ab", "b"]);
    assert_eq!(keys(k.range((Bound::Excluded("a"), Bound::Included("b")))), ["ab", "b"]);
    assert_eq!(keys(k.range(k.first().unwrap().unwrap().0..k.last().unwrap().unwrap().0)), ["a", "ab", "b"]);
    let bounds: std::ops::Range<Vec<u8>> = b"a".to_vec()..b"c".to_vec();
    assert_eq!(keys(k.range(&bounds)), ["a", "ab", "b"]);
    // A range that ends before it starts is empty, whereas `BTreeMap` panics.
    let (start, end) = ("c", "a");
    assert_eq!(k.count(start..end).unwrap(), 0);
    assert_eq!(k.count((Bound::Excluded("a"), Bound::Excluded("a"))).unwrap(), 0);

    assert_eq!(k.count(7u64.to_be_bytes()..).unwrap(), 4);
    let snapshot = db.snapshot();
    assert_eq!(snapshot.count(&k, "a"..="b").unwrap(), 3);
    assert_eq!(block_on(snapshot.count_async(&k, "b"..)).unwrap(), 2);
    db.transact(|tx| -> Result<()> {
        tx.insert(&k, "aa", "")?;
        assert_eq!(tx.count(&k, .."b")?, 3);
        Ok(())
    })
    .unwrap();
}

/// Compares the results of all methods of a reader, in both forms, with the model.
fn read_everything(reader: &Reader, k: &Keyspace, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let row = |row: Option<(Value, Value)>| row.map(|(key, value)| (key.into_vec(), value.into_vec()));
    let of_model = |row: Option<(&Vec<u8>, &Vec<u8>)>| row.map(|(key, value)| (key.clone(), value.clone()));
    assert_eq!(row(reader.first(k).unwrap()), of_model(model.first_key_value()));
    assert_eq!(row(reader.last(k).unwrap()), of_model(model.last_key_value()));
    assert_eq!(row(block_on(reader.first_async(k)).unwrap()), of_model(model.first_key_value()));
    assert_eq!(row(block_on(reader.last_async(k)).unwrap()), of_model(model.last_key_value()));
    assert_eq!(reader.is_empty(k).unwrap(), model.is_empty());
    assert_eq!(block_on(reader.is_empty_async(k)).unwrap(), model.is_empty());
    assert_eq!(reader.count(k, ..).unwrap(), model.len() as u64);
    let keys: Vec<Vec<u8>> = reader.keys(k).map(|key| key.unwrap().into_vec()).collect();
    assert!(keys.iter().eq(model.keys()));
    assert!(reader.keys(k).rev().map(|key| key.unwrap().into_vec()).eq(model.keys().rev().cloned()));
    assert!(reader.values(k).map(|value| value.unwrap().into_vec()).eq(model.values().cloned()));
    let rows: Vec<(Value, Value)> = block_on(reader.iter(k).into_stream().try_collect()).unwrap();
    assert!(
        rows.iter()
            .map(|(key, value)| (&key[..], &value[..]))
            .eq(model.iter().map(|(key, value)| (&key[..], &value[..])))
    );
    let mut shown: [Vec<(Vec<u8>, Vec<u8>)>; 4] = Default::default();
    let [forward, backward, forward_async, backward_async] = shown.each_mut().map(|rows| {
        move |key: &[u8], value: &[u8]| -> ControlFlow<()> {
            rows.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        }
    });
    assert!(reader.iter(k).for_each_row(forward).unwrap().is_continue());
    assert!(reader.iter(k).for_each_row_back(backward).unwrap().is_continue());
    assert!(block_on(reader.iter(k).for_each_row_async(forward_async)).unwrap().is_continue());
    assert!(block_on(reader.iter(k).for_each_row_back_async(backward_async)).unwrap().is_continue());
    let in_order: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let reversed: Vec<_> = in_order.iter().rev().cloned().collect();
    assert!(shown == [in_order.clone(), reversed.clone(), in_order, reversed]);
    let values: Vec<Value> = block_on(reader.values(k).into_stream().try_collect()).unwrap();
    assert!(values.iter().map(|value| &value[..]).eq(model.values().map(|value| &value[..])));
    let wanted: Vec<&[u8]> = keys.iter().map(|key| &key[..]).chain([&b"missing"[..], b"0"]).collect();
    let mut value = b"of another row".to_vec();
    for key in &wanted {
        let expected = model.get(*key);
        let is_in = |found: bool, value: &[u8]| {
            assert_eq!((found, value), (expected.is_some(), expected.map_or(&[][..], |expected| &expected[..])));
        };
        assert_eq!(reader.get(k, key).unwrap().as_deref(), expected.map(|value| &value[..]));
        let found = reader.get_into(k, key, &mut value).unwrap();
        is_in(found, &value);
        let found = block_on(reader.get_into_async(k, key, &mut value)).unwrap();
        is_in(found, &value);
        assert_eq!(reader.get_with(k, key, <[u8]>::to_vec).unwrap().as_ref(), expected);
        assert_eq!(block_on(reader.get_with_async(k, key, <[u8]>::to_vec)).unwrap().as_ref(), expected);
    }
    for found in [reader.get_many(k, &wanted).unwrap(), block_on(reader.get_many_async(k, &wanted)).unwrap()] {
        for (key, found) in wanted.iter().zip(found) {
            assert_eq!(found.as_deref(), model.get(*key).map(|value| &value[..]));
            assert_eq!(reader.contains_key(k, key).unwrap(), model.contains_key(*key));
            assert_eq!(block_on(reader.contains_key_async(k, key)).unwrap(), model.contains_key(*key));
        }
    }
}

/// A transaction reads its own changes through every method: rows put and removed, many of them at the front, and large
/// values.
#[test]
fn a_transaction_reads_its_changes_by_every_method() {
    let (db, k) = opened();
    let mut model = BTreeMap::new();
    for row in 0..300u32 {
        let value = vec![row as u8; if row % 100 == 50 { 100_000 } else { 30 }];
        k.insert_with(row.to_be_bytes(), &value, Durability::Relaxed).unwrap();
        model.insert(row.to_be_bytes().to_vec(), value);
    }
    read_everything(&db.snapshot(), &k, &model);
    for isolation in [Isolation::Snapshot, Isolation::Serializable, Isolation::ReadCommitted] {
        let mut model = model.clone();
        let mut tx = db.begin_with(TxOptions { isolation, ..TxOptions::default() }).unwrap();
        for row in 0..200u32 {
            tx.remove(&k, row.to_be_bytes()).unwrap();
            model.remove(&row.to_be_bytes()[..]);
        }
        for (key, value) in [("zz", vec![1; 90_000]), ("z", vec![2])] {
            tx.insert(&k, key, &value).unwrap();
            model.insert(key.into(), value);
        }
        read_everything(&tx, &k, &model);
        for row in 200..300u32 {
            tx.remove(&k, row.to_be_bytes()).unwrap();
            model.remove(&row.to_be_bytes()[..]);
        }
        read_everything(&tx, &k, &model);
        tx.remove(&k, "z").unwrap();
        tx.remove(&k, "zz").unwrap();
        read_everything(&tx, &k, &BTreeMap::new());
    }
    read_everything(&db.snapshot(), &k, &model);
}

/// A loop that reads into the same vector reuses its memory, for values of every size, wherever they are stored.
#[test]
fn reading_into_a_vector_keeps_its_memory() {
    let (db, k) = opened();
    let lengths = [0, 1, 22, 23, 1000, 5000, 70_000, 600_000];
    for (row, length) in lengths.into_iter().enumerate() {
        k.insert(row.to_be_bytes(), vec![row as u8; length]).unwrap();
    }
    let mut tx = db.begin().unwrap();
    for (row, length) in lengths.into_iter().enumerate() {
        tx.insert(&k, (100 + row).to_be_bytes(), vec![row as u8; length]).unwrap();
    }
    let snapshot = db.snapshot();
    let mut value = Vec::with_capacity(700_000);
    let (place, capacity) = (value.as_ptr(), value.capacity());
    for (row, length) in lengths.into_iter().enumerate() {
        assert!(k.get_into(row.to_be_bytes(), &mut value).unwrap());
        assert_eq!(value, vec![row as u8; length]);
        assert!(snapshot.get_into(&k, row.to_be_bytes(), &mut value).unwrap());
        assert_eq!(value, vec![row as u8; length]);
        assert!(tx.get_into(&k, (100 + row).to_be_bytes(), &mut value).unwrap());
        assert_eq!(value, vec![row as u8; length]);
        assert!(block_on(k.get_into_async(row.to_be_bytes(), &mut value)).unwrap());
        assert_eq!(value, vec![row as u8; length]);
        assert!(!k.get_into("missing", &mut value).unwrap() && value.is_empty());
        assert_eq!((value.as_ptr(), value.capacity()), (place, capacity), "after {length} bytes");
    }
    let other = Config::in_memory().open("").unwrap().keyspace("k").unwrap();
    value.push(1);
    assert!(snapshot.get_into(&other, "a", &mut value).is_err() && value.is_empty());
}

/// A closure that receives a value can write that row and rows of the same leaf, read other rows, wait for a thread
/// that writes, and panic, because no latch or lock is held during the call.
#[test]
fn a_closure_that_sees_a_value_holds_nothing() {
    let (db, k) = opened();
    for row in 0..20u32 {
        k.insert(row.to_be_bytes(), row.to_be_bytes()).unwrap();
    }
    let first = 0u32.to_be_bytes();
    let seen = k.get_with(first, |value| {
        k.insert(first, "changed").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| k.insert(1u32.to_be_bytes(), "by another thread").unwrap());
        });
        db.checkpoint().unwrap();
        assert_eq!(k.get_with(first, <[u8]>::to_vec).unwrap().unwrap(), b"changed");
        assert_eq!(k.get_with("none", <[u8]>::to_vec).unwrap(), None);
        value.to_vec()
    });
    assert_eq!(seen.unwrap().unwrap(), first);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = k.get_with(first, |_| panic!("on purpose"));
    }));
    assert!(panicked.is_err());
    k.insert(first, "after the panic").unwrap();
    assert_eq!(k.get_with(first, <[u8]>::to_vec).unwrap().unwrap(), b"after the panic");
}

/// A range that passes rows to a closure can be stopped at any row, from either end, and continued at the next one,
/// with a different call or as an iterator. It visits the same rows as an iterator, including large values, across many
/// leaves.
#[test]
fn a_range_goes_on_where_it_was_broken_off() {
    let (_db, k) = opened();
    for row in 0..400u32 {
        let value = vec![row as u8; if row % 50 == 7 { 5000 } else { 30 }];
        k.insert_with(row.to_be_bytes(), value, Durability::Relaxed).unwrap();
    }
    let expected: Vec<(Value, Value)> = k.iter().map(Result::unwrap).collect();
    for step in [1, 2, 7, 23, 399, 400] {
        let (mut front, mut back, mut range) = (Vec::new(), Vec::new(), k.iter());
        for turn in 0.. {
            let (is_backward, mut count) = (turn % 3 == 1, 0);
            let rows = if is_backward { &mut back } else { &mut front };
            let look = |key: &[u8], value: &[u8]| {
                rows.push((Value::from(key), Value::from(value)));
                count += 1;
                if count == step { ControlFlow::Break(key.to_vec()) } else { ControlFlow::Continue(()) }
            };
            let shown = if is_backward { range.for_each_row_back(look) } else { range.for_each_row(look) };
            match shown.unwrap() {
                ControlFlow::Break(key) => {
                    let rows = if is_backward { &back } else { &front };
                    assert!(rows.last().unwrap().0 == key);
                }
                ControlFlow::Continue(()) => break,
            }
            front.extend(range.next().map(Result::unwrap));
            back.extend(range.next_back().map(Result::unwrap));
        }
        front.extend(back.into_iter().rev());
        assert!(front == expected, "in steps of {step}");
    }
}

/// A closure that receives rows can change these rows and others in the same leaf, and panic: no latch or lock is held,
/// and the range continues after the row at which the closure panicked.
#[test]
fn a_closure_that_sees_rows_holds_nothing() {
    let (db, k) = opened();
    for row in 0..20u32 {
        k.insert(row.to_be_bytes(), row.to_be_bytes()).unwrap();
    }
    let mut range = k.iter();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = range.for_each_row(|key, value| {
            assert_eq!(key, value, "a change is seen by a range that began before it");
            k.insert(key, "changed").unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| k.insert(19u32.to_be_bytes(), "by another thread").unwrap());
            });
            db.checkpoint().unwrap();
            assert!(key != 4u32.to_be_bytes(), "on purpose");
            ControlFlow::<()>::Continue(())
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(range.next().unwrap().unwrap().0, 5u32.to_be_bytes());
    assert_eq!(k.get(4u32.to_be_bytes()).unwrap().unwrap(), "changed");
}

/// The first and last rows are found beyond removed rows that an older snapshot still sees.
#[test]
fn the_ends_are_found_past_what_was_removed() {
    let (db, k) = opened();
    let key = |row: u32| row.to_be_bytes();
    for row in 0..2000u32 {
        k.insert_with(key(row), [7; 50], Durability::Relaxed).unwrap();
    }
    let before = db.snapshot();
    for row in (0..900).chain(1100..2000) {
        db.transact_with(TxOptions { durability: Durability::Relaxed, ..TxOptions::default() }, |tx| {
            tx.remove(&k, key(row))
        })
        .unwrap();
    }
    assert_eq!(k.first().unwrap().unwrap().0, key(900));
    assert_eq!(k.last().unwrap().unwrap().0, key(1099));
    assert_eq!(before.first(&k).unwrap().unwrap().0, key(0));
    assert_eq!(before.last(&k).unwrap().unwrap().0, key(1999));
}

/// The reads of a serializable transaction are validated, whichever method made them.
#[test]
fn serializable_reads_are_recorded_by_every_method() {
    type Read = fn(&Reader, &Keyspace) -> Result<()>;
    let reads: [Read; 9] = [
        |reader, k| reader.first(k).map(drop),
        |reader, k| reader.last(k).map(drop),
        |reader, k| reader.is_empty(k).map(drop),
        |reader, k| reader.contains_key(k, "a").map(drop),
        |reader, k| reader.get_into(k, "a", &mut Vec::new()).map(drop),
        |reader, k| reader.get_with(k, "a", <[u8]>::len).map(drop),
        |reader, k| reader.get_many(k, &["x", "a"]).map(drop),
        |reader, k| reader.keys(k).try_for_each(|key| key.map(drop)),
        |reader, k| reader.iter(k).for_each_row(|_, _| ControlFlow::<()>::Continue(())).map(drop),
    ];
    for read in reads {
        let (db, k) = opened();
        let other = db.keyspace("other").unwrap();
        let mut tx = db.begin_with(TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() }).unwrap();
        read(&tx, &k).unwrap();
        tx.insert(&other, "written", "").unwrap();
        k.insert("a", "").unwrap();
        assert!(tx.commit().is_err_and(|error| error.is_conflict()));
    }
}

/// A stream returns the same rows as the iterator, waits without occupying a thread, ends with its first error, and can
/// be dropped.
#[test]
fn ranges_are_streams() {
    let config = support::small().backend(drumlin_io::in_memory());
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    for row in 0..3000u32 {
        k.insert_with(row.to_be_bytes(), [7; 60], Durability::Relaxed).unwrap();
    }
    k.insert("large", vec![7; 300_000]).unwrap();
    drop((db, k));
    // After reopening, no rows are in memory.
    let db = config.open("/db").unwrap();
    let k = db.existing_keyspace("k").unwrap();
    block_on(async {
        let rows = k.iter().into_stream();
        let count = rows.map(|row| assert_eq!(row.unwrap().1[0], 7)).count().await;
        assert_eq!(count, 3001);
        // Poll a stream once and drop it while it waits for a leaf.
        let mut dropped = k.range(1500u32.to_be_bytes()..).into_stream();
        let _ = futures_util::future::poll_immediate(dropped.next()).await;
        drop(dropped);
        // Read the first part of a range with the iterator, and the rest as a stream.
        let mut range = k.iter();
        assert_eq!(range.next().unwrap().unwrap().0, 0u32.to_be_bytes());
        assert_eq!(range.next_back_async().await.unwrap().unwrap().0, "large");
        assert_eq!(range.into_stream().count().await, 2999);
    });
    let other = Config::in_memory().open("").unwrap().keyspace("k").unwrap();
    let mut refused = db.snapshot().iter(&other).into_stream();
    assert!(matches!(block_on(refused.next()), Some(Err(Error::Invalid(_)))));
    assert!(block_on(refused.next()).is_none());
}

/// Every type that a program can hold can be sent to a different thread and shared between threads.
#[test]
fn all_public_types_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<drumlin::AsyncValueReader>();
    shared::<drumlin::Batch>();
    shared::<Config>();
    shared::<Database>();
    shared::<Error>();
    shared::<Keyspace>();
    shared::<drumlin::Keys>();
    shared::<drumlin::Range>();
    shared::<drumlin::RowStream>();
    shared::<drumlin::Salvage>();
    shared::<drumlin::Snapshot>();
    shared::<drumlin::Transaction>();
    shared::<Value>();
    shared::<drumlin::ValueReader>();
    shared::<drumlin::Values>();
}
