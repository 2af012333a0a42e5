//! Calls that change a row depending on its newest value, calls that remove many rows, and batches: alone, with
//! concurrent writers, and with futures that are dropped.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use drumlin::{Config, Database, Durability, Error, Isolation, Keyspace, TxOptions, Value};
use smol::block_on;
use support::Random;

fn opened() -> (Database, Keyspace) {
    let db = Config::in_memory().memory(8 << 20).durability(Durability::Relaxed).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    (db, k)
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

fn add_one(old: Option<&[u8]>) -> Option<[u8; 8]> {
    Some((old.map_or(0, number) + 1).to_be_bytes())
}

fn vec(value: Option<Value>) -> Option<Vec<u8>> {
    value.map(Value::into_vec)
}

/// Each call, blocking and asynchronous, with values of all sizes, returns the same result as an ordered map.
#[test]
fn every_call_answers_as_a_map_does() {
    let (_db, k) = opened();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut random = Random(3);
    for round in 0..3000u32 {
        let key = vec![b'a' + random.below(6) as u8];
        let length = [3, 3, 40, 2000, 100_000][random.index(5)];
        let value = random.bytes(length);
        let before = model.get(&key).cloned();
        let is_task = round % 2 == 0;
        match random.below(9) {
            0 => {
                let taken = if is_task { block_on(k.take_async(&key)) } else { k.take(&key) };
                assert_eq!(vec(taken.unwrap()), before);
                model.remove(&key);
            }
            1 => {
                let replaced = if is_task { block_on(k.replace_async(&key, &value)) } else { k.replace(&key, &value) };
                assert_eq!(vec(replaced.unwrap()), before);
                model.insert(key, value);
            }
            2 => {
                let inserted = match is_task {
                    true => block_on(k.insert_if_absent_async(&key, &value)),
                    false => k.insert_if_absent(&key, &value),
                };
                assert_eq!(inserted.unwrap(), before.is_none());
                model.entry(key).or_insert(value);
            }
            3 => {
                let change = |old: Option<&[u8]>| {
                    assert_eq!(old, before.as_deref());
                    (!value.len().is_multiple_of(3)).then(|| value.clone())
                };
                let updated = if is_task { block_on(k.update_async(&key, change)) } else { k.update(&key, change) };
                match updated.unwrap() {
                    Some(value) => drop(model.insert(key, value)),
                    None => drop(model.remove(&key)),
                }
            }
            4 => {
                let expected = [None, Some(&b"another"[..]), before.as_deref()][random.index(3)];
                let new = [None, Some(&value[..])][random.index(2)];
                let swapped = match is_task {
                    true => block_on(k.compare_and_swap_async(&key, expected, new)),
                    false => k.compare_and_swap(&key, expected, new),
                };
                if expected == before.as_deref() {
                    assert_eq!(swapped.unwrap(), Ok(()));
                    match new {
                        Some(value) => drop(model.insert(key, value.to_vec())),
                        None => drop(model.remove(&key)),
                    }
                } else {
                    assert_eq!(swapped.unwrap().map_err(vec), Err(before));
                }
            }
            5 => {
                let popped = if is_task { block_on(k.pop_first_async()) } else { k.pop_first() };
                assert_eq!(popped.unwrap().map(|(key, value)| (key.into_vec(), value.into_vec())), model.pop_first());
            }
            6 => {
                let popped = if is_task { block_on(k.pop_first_in_async(&key..)) } else { k.pop_first_in(&key..) };
                let expected = model.range(key..).next().map(|(key, _)| key.clone());
                let expected = expected.map(|key| model.remove_entry(&key).unwrap());
                assert_eq!(popped.unwrap().map(|(key, value)| (key.into_vec(), value.into_vec())), expected);
            }
            7 => {
                let popped = if is_task { block_on(k.pop_last_in_async(..&key)) } else { k.pop_last_in(..&key) };
                let expected = model.range(..key).next_back().map(|(key, _)| key.clone());
                let expected = expected.map(|key| model.remove_entry(&key).unwrap());
                assert_eq!(popped.unwrap().map(|(key, value)| (key.into_vec(), value.into_vec())), expected);
            }
            _ => {
                let popped = if is_task { block_on(k.pop_last_async()) } else { k.pop_last() };
                assert_eq!(popped.unwrap().map(|(key, value)| (key.into_vec(), value.into_vec())), model.pop_last());
            }
        }
    }
    assert!(k.iter().map(Result::unwrap).map(|(key, value)| (key.into_vec(), value.into_vec())).eq(model));
}

/// If several threads change the same rows with these calls, each call takes effect exactly once, and no caller has to
/// retry.
#[test]
fn calls_for_one_row_take_effect_one_after_the_other() {
    let (db, k) = opened();
    k.insert("by cas", 0u64.to_be_bytes()).unwrap();
    let won = AtomicU64::new(0);
    let (threads, rounds) = (4, 150);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (db, k, won) = (&db, &k, &won);
            scope.spawn(move || {
                for round in 0..rounds {
                    k.update("updates", add_one).unwrap();
                    block_on(k.update_async("updates by tasks", add_one)).unwrap();
                    let mut found = k.get("by cas").unwrap().unwrap();
                    loop {
                        let next = (number(&found) + 1).to_be_bytes();
                        match k.compare_and_swap("by cas", Some(&found), Some(&next)).unwrap() {
                            Ok(()) => break,
                            Err(other) => found = other.unwrap(),
                        }
                    }
                    let is_mine = k.insert_if_absent(format!("first {round}"), format!("{thread}")).unwrap();
                    won.fetch_add(u64::from(is_mine), Ordering::Relaxed);
                    // Mix in some transactions.
                    db.transact(|tx| {
                        let old = tx.get_for_update(k, "updates")?;
                        tx.insert(k, "updates", add_one(old.as_deref()).unwrap())
                    })
                    .unwrap();
                }
            });
        }
    });
    let all = threads * rounds;
    assert_eq!(number(&k.get("updates").unwrap().unwrap()), 2 * all);
    assert_eq!(number(&k.get("updates by tasks").unwrap().unwrap()), all);
    assert_eq!(number(&k.get("by cas").unwrap().unwrap()), all);
    assert_eq!(won.load(Ordering::Relaxed), rounds);
}

/// While some threads insert rows, others pop them from both ends or take them. Each row goes to exactly one thread.
#[test]
fn every_row_is_popped_once() {
    let (_db, k) = opened();
    let (writers, rows) = (2u32, 400u32);
    let (done, is_full) = (AtomicU64::new(0), AtomicBool::new(false));
    let popped: Vec<Vec<Vec<u8>>> = std::thread::scope(|scope| {
        for writer in 0..writers {
            let (k, done) = (&k, &done);
            scope.spawn(move || {
                let mut random = Random(u64::from(writer));
                for row in 0..rows {
                    let key = [&random.bytes(1)[..], &(row * writers + writer).to_be_bytes()].concat();
                    k.insert(&key, &key).unwrap();
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        let poppers: Vec<_> = (0..3)
            .map(|popper| {
                let (k, done, is_full) = (&k, &done, &is_full);
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    loop {
                        let ends = done.load(Ordering::SeqCst) == u64::from(writers);
                        let row = match popper {
                            0 => k.pop_first().unwrap(),
                            1 => block_on(k.pop_first_async()).unwrap(),
                            _ => k.pop_last().unwrap(),
                        };
                        match row {
                            Some((key, value)) => {
                                assert_eq!(key, value);
                                mine.push(key.into_vec());
                            }
                            None if ends => break mine,
                            None => is_full.store(true, Ordering::Relaxed),
                        }
                    }
                })
            })
            .collect();
        poppers.into_iter().map(|popper| popper.join().unwrap()).collect()
    });
    let all: Vec<Vec<u8>> = popped.into_iter().flatten().map(|key| key[1..].to_vec()).collect();
    let distinct: BTreeSet<&Vec<u8>> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), ((writers * rows) as usize, (writers * rows) as usize));
    assert!(k.is_empty().unwrap());
}

/// Returns the key of a popped row, or `None` if no row was popped.
fn key_of(popped: drumlin::Result<Option<(Value, Value)>>) -> Option<Vec<u8>> {
    popped.unwrap().map(|(key, _)| key.into_vec())
}

/// A pop skips any number of rows that other transactions have locked, and takes them once they are unlocked. In any
/// range, the oldest unlocked row is popped first. If all rows are locked, a pop of a range returns `None`, while other
/// kinds of pop wait.
#[test]
fn pops_pass_over_rows_that_are_locked() {
    let (db, k) = opened();
    let rows = 1200u32;
    let key = |number: u32| number.to_be_bytes();
    let insert_all = || {
        for number in 0..rows {
            k.insert(key(number), [7; 40]).unwrap();
        }
    };
    insert_all();
    // Lock more rows than a scan copies at a time, in several leaves.
    let mut holder = db.begin().unwrap();
    (0..500).chain(700..rows).for_each(|number| drop(holder.get_for_update(&k, key(number)).unwrap()));
    assert_eq!(key_of(k.pop_first()), Some(key(500).into()));
    assert_eq!(key_of(block_on(k.pop_last_async())), Some(key(699).into()));
    assert_eq!(key_of(k.pop_first_in(key(100)..key(502))), Some(key(501).into()));
    assert_eq!(key_of(block_on(k.pop_last_in_async(key(600)..))), Some(key(698).into()));
    for range in [key(0)..key(500), key(800)..key(900), key(500)..key(502), key(9)..key(3)] {
        assert_eq!(key_of(k.pop_first_in(range.clone())), None);
        assert_eq!(key_of(block_on(k.pop_last_in_async(range))), None);
    }
    drop(holder);
    assert_eq!(key_of(k.pop_first_in(..)), Some(key(0).into()));
    assert_eq!(key_of(block_on(k.pop_first_in_async(key(3)..))), Some(key(3).into()));
    assert_eq!(key_of(k.pop_last_in(..)), Some(key(rows - 1).into()));

    // All remaining rows are locked.
    k.clear().unwrap();
    k.insert("a", "1").unwrap();
    k.insert("b", "2").unwrap();
    let mut holder = db.begin().unwrap();
    holder.remove(&k, "a").unwrap();
    holder.get_for_update(&k, "b").unwrap();
    assert_eq!(key_of(k.pop_first_in(..)), None);
    assert!(poll_some(k.pop_first_async(), 30).is_none(), "a pop did not wait for rows that may stay");
    std::thread::scope(|scope| {
        let popper = scope.spawn(|| (key_of(k.pop_first()), key_of(block_on(k.pop_last_async()))));
        holder.commit().unwrap();
        assert_eq!(popper.join().unwrap(), (Some(b"b".to_vec()), None));
    });
}

/// A pop that finds no memory for its row's lock waits for memory. It does not report that there is no row.
#[test]
fn a_pop_waits_for_memory() {
    let (db, k) = opened();
    let other = db.keyspace("other").unwrap();
    k.insert("a", "1").unwrap();
    // Take all the memory that transactions can get: first in large pieces, then row by row.
    let mut holders = Vec::new();
    for bytes in [200, 0] {
        let mut is_full = false;
        while !is_full {
            let mut tx = db.begin().unwrap();
            let mut rows = 0u32..;
            let error = rows.find_map(|row| {
                let number = [(holders.len() as u32).to_be_bytes(), row.to_be_bytes()].concat();
                tx.get_for_update(&other, [number, vec![7; bytes]].concat()).err()
            });
            is_full = matches!(error, Some(Error::MemoryInUse { .. }));
            assert!(is_full || matches!(error, Some(Error::TransactionTooLarge { .. })), "{error:?}");
            holders.push(tx);
        }
    }
    // There may be memory for one more lock.
    let early = poll_some(k.pop_first_in_async(..), 30).map(key_of);
    drop(holders);
    let popped = early.unwrap_or_else(|| key_of(k.pop_first_in(..)));
    assert_eq!(popped, Some(b"a".to_vec()));
}

/// Consumers pop from a range while transactions hold some of its rows for a while, other transactions put rows back,
/// and producers insert. Each row is popped once, and no row remains at the end, not even the oldest.
#[test]
fn consumers_of_a_range_get_every_row_once() {
    let (db, k) = opened();
    let rows = 600u32;
    let (inserted, popped) = (AtomicU64::new(0), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let (db, k, inserted, popped) = (&db, &k, &inserted, &popped);
        for producer in 0..2 {
            scope.spawn(move || {
                for number in (producer..rows).step_by(2) {
                    k.insert(number.to_be_bytes(), number.to_be_bytes()).unwrap();
                    inserted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for consumer in 0..6u64 {
            scope.spawn(move || {
                let mut random = Random(consumer);
                loop {
                    let is_last = inserted.load(Ordering::SeqCst) == u64::from(rows);
                    let row = match consumer {
                        0 | 1 => k.pop_first_in(..),
                        2 => block_on(k.pop_first_in_async(..)),
                        3 => block_on(k.pop_last_in_async(..)),
                        // Take a row in a transaction, and put it back half of the time.
                        _ => {
                            let isolation = [Isolation::Snapshot, Isolation::ReadCommitted][random.index(2)];
                            let mut tx = db.begin_with(TxOptions { isolation, ..db.tx_options() }).unwrap();
                            let row = match consumer {
                                4 => tx.pop_first_in(k, ..),
                                _ => block_on(tx.pop_last_in_async(k, ..)),
                            };
                            std::thread::yield_now();
                            match row {
                                Ok(Some(_)) if random.chance(50) => continue,
                                Ok(Some(row)) => tx.commit().map(|_| Some(row)),
                                row => row,
                            }
                        }
                    };
                    match row.unwrap() {
                        Some((key, value)) => {
                            assert_eq!(key, value);
                            popped.lock().unwrap().push(number(&[&[0; 4][..], &key[..]].concat()));
                        }
                        // Rows that other transactions have popped may reappear.
                        None if is_last && k.is_empty().unwrap() => break,
                        None => std::thread::yield_now(),
                    }
                }
            });
        }
    });
    let mut all = popped.into_inner().unwrap();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..u64::from(rows)), "{} rows were popped", all.len());
}

/// Concurrent transactions that pop from a range each get a different row, without a wait or a conflict. A pop skips
/// rows that other transactions have locked or have changed since the snapshot, but not rows that its own transaction
/// has locked.
#[test]
fn transactions_pop_rows_that_are_free() {
    let (db, k) = opened();
    for isolation in [Isolation::Snapshot, Isolation::ReadCommitted, Isolation::Serializable] {
        for key in ["a", "b", "c", "d", "e"] {
            k.insert(key, "").unwrap();
        }
        let options = TxOptions { isolation, ..db.tx_options() };
        let mut all: Vec<_> = (0..4).map(|_| db.begin_with(options).unwrap()).collect();
        all[0].get_for_update(&k, "a").unwrap();
        assert_eq!(key_of(all[0].pop_first_in(&k, ..)), Some(b"a".to_vec()));
        assert_eq!(key_of(block_on(all[1].pop_first_in_async(&k, ..))), Some(b"b".to_vec()));
        assert_eq!(key_of(all[1].pop_last_in(&k, .."e")), Some(b"d".to_vec()));
        all.remove(0).commit().unwrap();
        drop(all.remove(0));
        // Now "a" is gone, and "b" and "d" are back. The two transactions that began earlier still see "a".
        k.insert("b", "changed since").unwrap();
        let first = key_of(all[0].pop_first_in(&k, ..));
        let after = if isolation == Isolation::ReadCommitted { b"b" } else { b"c" };
        assert_eq!(first, Some(after.to_vec()), "{isolation:?}");
        assert_eq!(key_of(block_on(all[1].pop_last_in_async(&k, ..="e"))), Some(b"e".to_vec()));
        assert_eq!(key_of(all[1].pop_first_in(&k, "x"..)), None);
        for tx in all {
            let committed = tx.commit();
            let is_serial = isolation == Isolation::Serializable;
            assert!(committed.is_ok() || is_serial && committed.unwrap_err().is_conflict());
        }
        k.clear().unwrap();
    }
}

/// If the closure of an update panics, the row stays unchanged and is unlocked, in blocking and asynchronous calls.
#[test]
fn an_update_that_panics_releases_its_row() {
    let (_db, k) = opened();
    k.insert("a", "1").unwrap();
    let began = Instant::now();
    for is_task in [false, true] {
        let panics = |_: Option<&[u8]>| -> Option<[u8; 1]> { panic!("on purpose") };
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            drop(if is_task { block_on(k.update_async("a", panics)) } else { k.update("a", panics) });
        }));
        assert!(panicked.is_err());
        assert_eq!(k.replace("a", "1").unwrap().unwrap(), "1");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "it waited for the row");
}

/// Polls a future this many times, then drops it.
fn poll_some<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(value);
        }
        std::thread::park_timeout(Duration::from_micros(100));
    }
    None
}

/// Dropping a future at any point leaves its row unlocked, and either unchanged or completely changed.
#[test]
fn dropped_futures_do_all_or_nothing() {
    let config = support::small().backend(drumlin_io::in_memory());
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    let began = Instant::now();
    for polls in 0..6 {
        for call in 0..9 {
            for is_held in [false, true] {
                k.clear().unwrap();
                k.insert("a", "1").unwrap();
                k.insert("b", "2").unwrap();
                let mut holder = db.begin().unwrap();
                if is_held {
                    holder.get_for_update(&k, "a").unwrap();
                }
                match call {
                    0 => drop(poll_some(k.take_async("a"), polls)),
                    1 => drop(poll_some(k.replace_async("a", "x"), polls)),
                    2 => drop(poll_some(k.insert_if_absent_async("c", vec![7; 100_000]), polls)),
                    3 => drop(poll_some(k.update_async("a", |_| Some("x")), polls)),
                    4 => drop(poll_some(k.compare_and_swap_async("a", Some(b"1"), None), polls)),
                    5 => drop(poll_some(k.pop_first_async(), polls)),
                    6 => drop(poll_some(k.clear_async(), polls)),
                    7 => drop(poll_some(k.pop_first_in_async(.."c"), polls)),
                    _ => {
                        let mut batch = db.batch().unwrap();
                        batch.insert(&k, "a", "x").unwrap();
                        batch.remove(&k, "b").unwrap();
                        drop(poll_some(batch.commit_async(), polls));
                    }
                }
                drop(holder);
                // The row is unlocked. These commits also wait for the commit whose future was dropped.
                k.insert("settled", "").unwrap();
                k.remove("settled").unwrap();
                let rows: Vec<(Value, Value)> = k.iter().map(Result::unwrap).collect();
                let rows: Vec<(&[u8], &[u8])> = rows.iter().map(|(key, value)| (&key[..], &value[..])).collect();
                let large = vec![7; 100_000];
                let both: [(&[u8], &[u8]); 2] = [(b"a", b"1"), (b"b", b"2")];
                let after: Vec<(&[u8], &[u8])> = match call {
                    // A pop skips the locked row.
                    5 | 7 if is_held => vec![both[0]],
                    0 | 4 | 5 | 7 => vec![both[1]],
                    1 | 3 => vec![(b"a", b"x"), both[1]],
                    2 => vec![both[0], both[1], (b"c", &large)],
                    6 => vec![],
                    _ => vec![(b"a", b"x")],
                };
                assert!(rows == both || rows == after, "call {call}, {polls} polls: {rows:?}");
            }
        }
    }
    assert!(began.elapsed() < Duration::from_secs(60), "a row stayed locked");
}

/// A bulk removal removes rows of all sizes, even if they are more than fit in one transaction, and leaves other
/// keyspaces untouched.
#[test]
fn any_number_of_rows_is_removed() {
    let (db, k) = opened();
    let fill = |k: &Keyspace, rows: u32, bytes: usize| {
        for first in (0..rows).step_by(100) {
            let mut batch = db.batch().unwrap();
            for row in first..(first + 100).min(rows) {
                batch.insert(k, row.to_be_bytes(), vec![7; bytes]).unwrap();
            }
            batch.commit().unwrap();
        }
    };
    fill(&k, 30_000, 20);
    let before = db.snapshot();
    k.remove_range(100u32.to_be_bytes()..200u32.to_be_bytes()).unwrap();
    block_on(k.remove_prefix_async([0, 0, 1])).unwrap();
    assert_eq!(k.count(..).unwrap(), 30_000 - 356);
    assert_eq!(before.count(&k, ..).unwrap(), 30_000);
    drop(before);
    k.clear().unwrap();
    assert!(k.is_empty().unwrap());
    block_on(k.clear_async()).unwrap();
    // Each row occupies a page, so the old values exceed the limit on the values that a transaction can replace.
    let large = db.keyspace_with("large", drumlin::KeyspaceOptions::new().page_bytes(64 << 10)).unwrap();
    for row in 0..200u32 {
        large.insert(row.to_be_bytes(), vec![7; 15_000]).unwrap();
    }
    large.insert("film", vec![7; 500_000]).unwrap();
    large.clear().unwrap();
    assert!(large.is_empty().unwrap());
    assert!(db.check().unwrap().corruption.is_empty());
}

/// A batch is committed completely or not at all, does not conflict with commits made since it began, and locks no row
/// before its commit.
#[test]
fn a_batch_reads_nothing() {
    let (db, k) = opened();
    let other = db.keyspace("other").unwrap();
    k.insert("a", "1").unwrap();
    let mut batch = db.batch().unwrap();
    assert!(batch.is_empty());
    batch.insert(&k, "a", "batch").unwrap();
    batch.insert(&other, "b", vec![7; 200_000]).unwrap();
    block_on(batch.insert_from_async(&other, "c", &[7; 300_000][..])).unwrap();
    batch.remove(&k, "missing").unwrap();
    assert_eq!(batch.len(), 4);
    // An open batch holds no locks, and a concurrent change to its row is not a conflict.
    let options = TxOptions { lock_timeout: Duration::ZERO, ..TxOptions::default() };
    let mut tx = db.begin_with(options).unwrap();
    tx.insert(&k, "a", "transaction").unwrap();
    tx.commit().unwrap();
    assert_eq!(db.stats().snapshots, 0);
    assert!(other.is_empty().unwrap());
    batch.commit_with(Durability::Full).unwrap();
    assert_eq!(k.get("a").unwrap().unwrap(), "batch");
    assert_eq!(other.count(..).unwrap(), 2);
    // A dropped batch has no effect.
    let mut batch = db.batch().unwrap();
    batch.insert(&k, "a", "dropped").unwrap();
    drop(batch);
    assert_eq!(k.get("a").unwrap().unwrap(), "batch");
    db.batch().unwrap().commit().unwrap();
    // A batch rejects a keyspace of a different database, and remains usable.
    let (_foreign_db, foreign) = opened();
    let mut batch = db.batch().unwrap();
    batch.insert(&k, "a", "1").unwrap();
    assert!(matches!(batch.insert(&foreign, "a", "1"), Err(Error::Invalid(_))));
    assert!(matches!(batch.remove(&foreign, "a"), Err(Error::Invalid(_))));
    assert!(matches!(batch.insert(&k, [7; 2000], "1"), Err(Error::KeyTooLong { .. })));
    batch.commit().unwrap();
    assert_eq!(k.get("a").unwrap().unwrap(), "1");
}

/// A batch can be larger than memory.
#[test]
fn a_batch_has_no_limit() {
    const ROWS: u32 = 100_000;
    let (db, k) = opened();
    k.insert(7u32.to_be_bytes(), "before").unwrap();
    let mut batch = db.batch().unwrap();
    (0..ROWS).for_each(|row| batch.insert(&k, (row * 7919 % ROWS).to_be_bytes(), [7; 100]).unwrap());
    assert_eq!(batch.len(), ROWS as usize);
    batch.commit().unwrap();
    assert_eq!(k.count(..).unwrap(), u64::from(ROWS));
    assert_eq!(k.get(7u32.to_be_bytes()).unwrap().unwrap(), [7; 100]);
}

/// Batches and transactions lock the same rows in all orders. Every batch is committed completely, and no call hangs.
#[test]
fn batches_never_fail_for_a_deadlock() {
    let (db, k) = opened();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (db, k, start) = (&db, &k, &start);
            scope.spawn(move || {
                let mut random = Random(thread);
                start.wait();
                for round in 0..100u64 {
                    let value = (thread << 32 | round).to_be_bytes();
                    let mut keys = ["a", "b", "c", "d"];
                    keys.rotate_left(random.index(4));
                    if thread < 2 {
                        let mut batch = db.batch().unwrap();
                        keys.iter().for_each(|key| batch.insert(k, key, value).unwrap());
                        if thread == 0 {
                            batch.commit().unwrap()
                        } else {
                            block_on(batch.commit_async()).unwrap()
                        };
                    } else {
                        let isolation = Isolation::ReadCommitted;
                        let options = TxOptions { isolation, ..db.tx_options() };
                        db.transact_with(options, |tx| keys.iter().try_for_each(|key| tx.insert(k, key, value)))
                            .unwrap();
                    }
                    let snapshot = db.snapshot();
                    let seen: BTreeSet<Vec<u8>> =
                        ["a", "b", "c", "d"].iter().filter_map(|key| vec(snapshot.get(k, key).unwrap())).collect();
                    assert_eq!(seen.len(), 1, "a part of a commit is seen");
                }
            });
        }
    });
}

/// The durability can be set for a handle, for the database and for one call. After `sync`, every commit is durable,
/// and a `Full` commit needs no sync.
#[test]
fn relaxed_commits_are_durable_after_a_sync() {
    let config = support::small().backend(drumlin_io::in_memory());
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    assert_eq!(db.tx_options().durability, Durability::Full);
    k.update("a", add_one).unwrap();
    assert!(db.stats().durable >= db.stats().visible);
    let relaxed = k.with_durability(Durability::Relaxed);
    for _ in 0..50 {
        relaxed.update("a", add_one).unwrap();
        relaxed.insert("b", "").unwrap();
        relaxed.remove("b").unwrap();
        let last = db.stats().visible;
        if number(&k.get("a").unwrap().unwrap()).is_multiple_of(2) {
            db.sync().unwrap();
        } else {
            block_on(db.sync_async()).unwrap();
        }
        assert!(db.durable().unwrap() >= last);
    }
    db.sync().unwrap();
    drop((k, relaxed, db));
    let db = config.clone().durability(Durability::Relaxed).open("/db").unwrap();
    assert_eq!(db.tx_options().durability, Durability::Relaxed);
    assert_eq!(number(&db.existing_keyspace("k").unwrap().get("a").unwrap().unwrap()), 51);
    assert_eq!(db.path(), std::path::Path::new("/db"));
}

/// A closed database rejects these calls and stays intact.
#[test]
fn a_closed_database_refuses_changes() {
    let config = support::small().backend(drumlin_io::in_memory());
    let db = config.open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("a", "1").unwrap();
    let mut batch = db.batch().unwrap();
    batch.insert(&k, "b", "2").unwrap();
    db.clone().close().unwrap();
    let is_refused = |refused: bool| assert!(refused, "it was not refused");
    is_refused(matches!(k.take("a"), Err(Error::Closed)));
    is_refused(matches!(k.replace("a", "2"), Err(Error::Closed)));
    is_refused(matches!(k.insert_if_absent("b", "2"), Err(Error::Closed)));
    is_refused(matches!(k.update("a", add_one), Err(Error::Closed)));
    is_refused(matches!(k.compare_and_swap("a", None, None), Err(Error::Closed)));
    is_refused(matches!(k.pop_first(), Err(Error::Closed)));
    is_refused(matches!(k.clear(), Err(Error::Closed)));
    is_refused(matches!(block_on(k.pop_last_async()), Err(Error::Closed)));
    is_refused(matches!(batch.commit(), Err(Error::Closed)));
    is_refused(matches!(db.batch(), Err(Error::Closed)));
    is_refused(matches!(db.sync(), Err(Error::Closed)));
    is_refused(matches!(db.durable(), Err(Error::Closed)));
    assert_eq!(config.open("/db").unwrap().existing_keyspace("k").unwrap().count(..).unwrap(), 1);
}

/// An async closure may borrow its environment, and is retried after a conflict.
#[test]
fn a_transaction_takes_an_async_closure() {
    let (db, k) = opened();
    block_on(async {
        let mut runs = 0;
        let key = "counter".to_owned();
        let sum = db
            .transact_local(async |tx| {
                runs += 1;
                let before = tx.get_async(&k, &key).await?.map_or(0, |bytes| number(&bytes));
                if runs < 3 {
                    k.update_async(&key, add_one).await?;
                }
                tx.insert_async(&k, &key, (before + 10).to_be_bytes()).await?;
                Ok(before + 10)
            })
            .await
            .unwrap();
        assert_eq!((runs, sum), (3, 12));
        let options = TxOptions { isolation: Isolation::Serializable, ..db.tx_options() };
        let first = db.transact_with_local(options, async |tx| tx.first_async(&k).await).await.unwrap();
        assert_eq!(number(&first.unwrap().1), 12);
    });
}

/// Within a transaction, the calls that depend on a row's value use the version that the transaction sees, and lock the
/// row.
#[test]
fn a_transaction_changes_rows_by_their_values() {
    let (db, k) = opened();
    for key in ["a", "b", "c", "d"] {
        k.insert(key, key).unwrap();
    }
    for isolation in [Isolation::Snapshot, Isolation::Serializable, Isolation::ReadCommitted] {
        let mut tx = db.begin_with(TxOptions { isolation, ..db.tx_options() }).unwrap();
        assert_eq!(tx.take(&k, "a").unwrap().unwrap(), "a");
        assert!(tx.take(&k, "a").unwrap().is_none());
        assert!(tx.insert_if_absent(&k, "a", "new").unwrap() && !tx.insert_if_absent(&k, "b", "new").unwrap());
        assert_eq!(tx.replace(&k, "a", vec![1; 100_000]).unwrap().unwrap(), "new");
        assert_eq!(tx.update(&k, "a", |old| old.map(|old| old.len().to_string())).unwrap().unwrap(), "100000");
        assert_eq!(tx.compare_and_swap(&k, "a", Some(b"100000"), None).unwrap(), Ok(()));
        assert_eq!(tx.compare_and_swap(&k, "b", None, Some(b"x")).unwrap(), Err(Some("b".into())));
        assert_eq!(tx.pop_first(&k).unwrap().unwrap().0, "b");
        assert_eq!(block_on(tx.pop_last_async(&k)).unwrap().unwrap(), ("d".into(), "d".into()));
        // A row that was popped, or found to exist, stays locked until the transaction ends.
        let outside = std::thread::scope(|scope| {
            let write = || {
                let options = TxOptions { lock_timeout: Duration::ZERO, ..db.tx_options() };
                db.begin_with(options)?.insert(&k, "b", "another")
            };
            scope.spawn(write).join().unwrap()
        });
        assert!(matches!(outside, Err(Error::LockTimeout { .. })), "{outside:?}");
        assert_eq!(tx.pop_first(&k).unwrap().unwrap().0, "c");
        assert!(tx.pop_first(&k).unwrap().is_none() && tx.pop_last(&k).unwrap().is_none());
        assert_eq!(k.count(..).unwrap(), 4);
        tx.abort();
    }
}

/// If two transactions pop, the second one waits. Then it gets a conflict or, with read committed, the next row.
#[test]
fn transactions_pop_different_rows() {
    let (db, k) = opened();
    for isolation in [Isolation::Snapshot, Isolation::ReadCommitted] {
        k.insert("a", "").unwrap();
        k.insert("b", "").unwrap();
        let options = TxOptions { isolation, ..db.tx_options() };
        let (mut first, mut second) = (db.begin_with(options).unwrap(), db.begin_with(options).unwrap());
        assert_eq!(first.pop_first(&k).unwrap().unwrap().0, "a");
        let popped = block_on(async {
            let committed = async { first.commit_async().await };
            futures_util::future::join(second.pop_first_async(&k), committed).await.0
        });
        match isolation {
            Isolation::ReadCommitted => assert_eq!(popped.unwrap().unwrap().0, "b"),
            _ => assert!(popped.unwrap_err().is_conflict()),
        }
        drop(second);
        k.clear().unwrap();
    }
}
