//! Drops futures before they complete. At whichever wait a call is dropped, no change is lost, repeated or half
//! applied.
#![allow(clippy::needless_pass_by_value, reason = "calls are closures that are written where they are passed")]
#![allow(
    clippy::await_holding_refcell_ref,
    reason = "one future at a time is polled, and dropped before the next look"
)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::support;

use drumlin::{
    AsyncValueReader, Commit, Config, Database, Durability, Error, Field, Keyspace, KeyspaceOptions, LockMode, Reader,
    Retention, Salvaged, Sum, Transaction, TxOptions, Value,
};
use drumlin_io::Backend;
use drumlin_testing::futures::{async_methods, block_on, within_polls};
use futures_util::{FutureExt, TryStreamExt};
use smol::io::AsyncReadExt;
use support::{Folder, Model, Random, small};

/// More polls than any call in this file needs.
const POLLS_MAX: usize = 400;
const ROWS: u64 = 300;
const FILLER_ROWS: u64 = 8000;
const LARGE_BYTES: usize = 300_000;
type Row = (Value, Value);

/// Returns a configuration whose pages have room for several rows.
fn config() -> Config {
    small().page_bytes(4096).keep_changes(Retention::bytes(64 << 20))
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn value(number: u64) -> Vec<u8> {
    Random(number).bytes(500)
}

fn large(seed: u64) -> Vec<u8> {
    Random(seed).bytes(LARGE_BYTES)
}

fn sum() -> Sum<u64> {
    Sum::of(Field::<u64>::big_endian(0))
}

/// A database larger than its memory, and the names of the calls that were tried on it.
struct Trial {
    backend: Arc<dyn Backend>,
    db: Database,
    k: Keyspace,
    filler: Keyspace,
    tried: RefCell<BTreeSet<&'static str>>,
    waited: RefCell<BTreeSet<&'static str>>,
}

impl Trial {
    fn new() -> Trial {
        // Reads of this backend are made by other threads too, so that tasks wait for them, but take microseconds.
        let backend = drumlin_io::in_memory();
        let db = config().backend(Arc::clone(&backend)).open("/db").unwrap();
        let mut load = db.bulk_load("filler").unwrap();
        for number in 0..FILLER_ROWS {
            load.insert(key(number), Random(number).bytes(1000)).unwrap();
        }
        load.finish().unwrap();
        let (k, filler) = (db.keyspace("k").unwrap(), db.keyspace("filler").unwrap());
        let trial = Trial { backend, db, k, filler, tried: RefCell::default(), waited: RefCell::default() };
        trial.reset();
        trial
    }

    /// Restores the rows from which every tested change starts.
    fn reset(&self) {
        let put_back = |tx: &mut Transaction| -> drumlin::Result<()> {
            let there: Vec<Value> = tx.keys(&self.k).collect::<drumlin::Result<_>>()?;
            there.iter().try_for_each(|key| tx.remove(&self.k, key))?;
            (0..ROWS).try_for_each(|number| tx.insert(&self.k, key(number), value(number)))?;
            tx.insert(&self.k, b"large", large(1))
        };
        self.db.transact(put_back).unwrap();
    }

    fn state(&self) -> Model {
        self.k.iter().map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
    }

    /// Writes all dirty pages, and evicts them by reading the filler rows.
    fn forget_pages(&self) {
        self.db.checkpoint().unwrap();
        let keys: Vec<[u8; 8]> = (0..FILLER_ROWS).step_by(3).map(key).collect();
        assert!(self.filler.contains_many(&keys).unwrap().into_iter().all(|is_there| is_there));
    }

    /// Uses up the thread's turn, so that the next call yields when it begins. To find the beginning of a turn, repeats
    /// a short call until it yields; that call never waits for anything else. Then makes as many calls as fit into a
    /// turn.
    fn end_turn(&self) {
        let is_ready = || self.db.existing_keyspace_async("k").now_or_never().is_some();
        while is_ready() {}
        let calls = (0..).take_while(|_| is_ready()).count();
        (0..calls).for_each(|_| assert!(is_ready(), "turns differ"));
    }

    /// Repeats a call with one more poll each time until it completes, and calls `dropped` after each dropped future.
    /// Each run yields when it begins.
    fn until_done<T>(
        &self,
        name: &'static str,
        mut call: impl AsyncFnMut(usize) -> T,
        mut dropped: impl FnMut(usize),
    ) -> T {
        self.tried.borrow_mut().insert(name);
        for polls in 1..POLLS_MAX {
            self.end_turn();
            if let Some(answer) = block_on(within_polls(polls, call(polls))) {
                if polls > 1 {
                    self.waited.borrow_mut().insert(name);
                }
                return answer;
            }
            dropped(polls);
        }
        panic!("{name} waits for ever");
    }

    /// Tests a call that reads.
    fn answers<T: PartialEq + Debug>(&self, name: &'static str, expected: T, mut call: impl AsyncFnMut() -> T) {
        self.forget_pages();
        let answer = self.until_done(name, async |_| call().await, |_| self.forget_pages());
        assert_eq!(answer, expected, "{name}");
    }

    /// Tests an iterator, dropping each of its steps at every wait.
    fn steps<T: PartialEq + Debug>(
        &self,
        name: &'static str,
        expected: &[T],
        mut step: impl AsyncFnMut() -> Option<drumlin::Result<T>>,
    ) {
        self.forget_pages();
        let mut found = Vec::new();
        while let Some(item) = self.until_done(name, async |_| step().await, |_| {}) {
            found.push(item.unwrap());
        }
        assert!(found == expected, "{name}: {} rows of {}", found.len(), expected.len());
    }

    /// Tests a call that changes rows. After each dropped future, the rows must be as before or as after the change. At
    /// the end, they must be as the blocking call leaves them. `is_whole` is false for calls that commit in parts.
    fn changes<T: PartialEq + Debug>(
        &self,
        name: &'static str,
        is_whole: bool,
        blocking: impl Fn() -> T,
        call: impl AsyncFn() -> T,
    ) {
        let before = self.state();
        let expected = blocking();
        let after = self.state();
        let ready = || {
            self.reset();
            self.forget_pages();
        };
        ready();
        let look = |_| {
            let state = self.state();
            let is_part = || before.iter().filter(|row| !after.contains_key(row.0)).count() > 0;
            let is_between = state.iter().all(|row| before.get(row.0) == Some(row.1));
            assert!(state == before || state == after || !is_whole && is_part() && is_between, "{name}");
            ready();
        };
        let answer = self.until_done(name, async |_| call().await, look);
        assert_eq!(answer, expected, "{name}");
        assert!(self.state() == after, "{name}: other rows");
        self.reset();
    }

    /// Tests a call that changes rows within a transaction. A dropped future may leave some of its writes in the
    /// transaction, which is then committed.
    fn changes_in_transaction<T: PartialEq + Debug>(
        &self,
        name: &'static str,
        blocking: impl Fn(&mut Transaction) -> T,
        call: impl AsyncFn(&mut Transaction) -> T,
    ) {
        let in_transaction = || {
            let mut tx = self.db.begin().unwrap();
            let answer = blocking(&mut tx);
            tx.commit().unwrap();
            answer
        };
        let tx = RefCell::new(None);
        let before = self.state();
        let expected = in_transaction();
        let after = self.state();
        let ready = || {
            self.reset();
            self.forget_pages();
            *tx.borrow_mut() = Some(self.db.begin().unwrap());
        };
        let commit = || tx.borrow_mut().take().map(|tx: Transaction| tx.commit().unwrap());
        ready();
        let look = |_| {
            commit();
            let state = self.state();
            assert!(state == before || state == after, "{name}");
            ready();
        };
        let answer = self.until_done(name, async |_| call(tx.borrow_mut().as_mut().unwrap()).await, look);
        assert_eq!(answer, expected, "{name}");
        commit();
        assert!(self.state() == after, "{name}: other rows");
        self.reset();
    }
}

/// Every asynchronous call is dropped at each of its waits and then repeated. The result must equal that of the
/// blocking call, iterators must not skip or repeat a row, and changes must be applied completely or not at all.
#[test]
fn any_call_dropped_at_any_wait_changes_no_answer() {
    let trial = Trial::new();
    keyspaces_answer(&trial);
    let snapshot = trial.db.snapshot();
    readers_answer(&trial, &snapshot);
    drop(snapshot);
    ranges_lose_nothing(&trial);
    streams_lose_nothing(&trial);
    feeds_lose_nothing(&trial);
    keyspaces_change_whole_rows(&trial);
    transactions_change_whole_rows(&trial);
    transactions_commit_whole(&trial);
    transactions_are_prepared_whole(&trial);
    loads_are_whole(&trial);
    databases_do_as_before(&trial);
    let tried: BTreeSet<String> = trial.tried.borrow().iter().map(|name| (*name).to_owned()).collect();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../drumlin/src/db");
    assert_eq!(tried, async_methods(&sources), "a call is missing here, or gone there");
    let never_waited: Vec<&str> = trial.tried.borrow().difference(&trial.waited.borrow()).copied().collect();
    assert!(never_waited.is_empty(), "calls that were never dropped: {never_waited:?}");
}

fn keyspaces_answer(trial: &Trial) {
    let k = &trial.k;
    let keys: Vec<[u8; 8]> = (0..ROWS + 9).step_by(7).map(key).collect();
    trial.answers("Keyspace::get_async", k.get(key(7)).unwrap(), async || k.get_async(key(7)).await.unwrap());
    let call = async || {
        let mut value = Vec::new();
        k.get_into_async(b"large", &mut value).await.unwrap().then_some(value)
    };
    trial.answers("Keyspace::get_into_async", Some(large(1)), call);
    let call = async || k.get_with_async(key(7), <[u8]>::to_vec).await.unwrap();
    trial.answers("Keyspace::get_with_async", Some(value(7)), call);
    let call = async || k.contains_key_async(key(7)).await.unwrap();
    trial.answers("Keyspace::contains_key_async", true, call);
    let call = async || k.contains_many_async(&keys).await.unwrap();
    trial.answers("Keyspace::contains_many_async", k.contains_many(&keys).unwrap(), call);
    let call = async || k.get_many_async(&keys).await.unwrap();
    trial.answers("Keyspace::get_many_async", k.get_many(&keys).unwrap(), call);
    trial.answers("Keyspace::first_async", k.first().unwrap(), async || k.first_async().await.unwrap());
    trial.answers("Keyspace::last_async", k.last().unwrap(), async || k.last_async().await.unwrap());
    trial.answers("Keyspace::is_empty_async", false, async || k.is_empty_async().await.unwrap());
    let part = key(9)..key(200);
    trial.answers("Keyspace::count_async", 191, async || k.count_async(part.clone()).await.unwrap());
    // The estimate depends on the leaves that happen to be in memory.
    let call = async || (95..=382).contains(&k.estimate_async(part.clone()).await.unwrap());
    trial.answers("Keyspace::estimate_async", true, call);
    trial.answers("Keyspace::len_async", ROWS + 1, async || k.len_async().await.unwrap());
    trial.answers("Keyspace::rank_async", 77, async || k.rank_async(key(77)).await.unwrap());
    let call = async || k.aggregate_async(&sum(), part.clone()).await.unwrap();
    trial.answers("Keyspace::aggregate_async", k.aggregate(&sum(), part.clone()).unwrap(), call);
    let call = async || k.nth_async(.., 99).await.unwrap();
    trial.answers("Keyspace::nth_async", k.nth(.., 99).unwrap(), call);
    let is_sample = |rows: &[Row]| rows.len() == 9 && rows.iter().all(|row| k.get(&row.0).unwrap().unwrap() == row.1);
    let call = async || is_sample(&k.sample_async(part.clone(), 9).await.unwrap());
    trial.answers("Keyspace::sample_async", true, call);
    let call = async || {
        let mut value = Vec::new();
        k.read_async(b"large").await.unwrap().unwrap().read_to_end(&mut value).await.unwrap();
        value
    };
    trial.answers("Keyspace::read_async", large(1), call);
}

fn readers_answer(trial: &Trial, reader: &Reader) {
    let k = &trial.k;
    let keys: Vec<[u8; 8]> = (0..ROWS + 9).step_by(7).map(key).collect();
    let call = async || reader.get_async(k, key(7)).await.unwrap();
    trial.answers("Reader::get_async", reader.get(k, key(7)).unwrap(), call);
    let call = async || {
        let mut value = Vec::new();
        reader.get_into_async(k, b"large", &mut value).await.unwrap().then_some(value)
    };
    trial.answers("Reader::get_into_async", Some(large(1)), call);
    let call = async || reader.get_with_async(k, key(7), <[u8]>::to_vec).await.unwrap();
    trial.answers("Reader::get_with_async", Some(value(7)), call);
    let call = async || reader.contains_key_async(k, key(7)).await.unwrap();
    trial.answers("Reader::contains_key_async", true, call);
    let call = async || reader.contains_many_async(k, &keys).await.unwrap();
    trial.answers("Reader::contains_many_async", reader.contains_many(k, &keys).unwrap(), call);
    let call = async || reader.get_many_async(k, &keys).await.unwrap();
    trial.answers("Reader::get_many_async", reader.get_many(k, &keys).unwrap(), call);
    let call = async || reader.first_async(k).await.unwrap();
    trial.answers("Reader::first_async", reader.first(k).unwrap(), call);
    let call = async || reader.last_async(k).await.unwrap();
    trial.answers("Reader::last_async", reader.last(k).unwrap(), call);
    trial.answers("Reader::is_empty_async", false, async || reader.is_empty_async(k).await.unwrap());
    let part = key(9)..key(200);
    trial.answers("Reader::count_async", 191, async || reader.count_async(k, part.clone()).await.unwrap());
    trial.answers("Reader::len_async", ROWS + 1, async || reader.len_async(k).await.unwrap());
    trial.answers("Reader::rank_async", 77, async || reader.rank_async(k, key(77)).await.unwrap());
    let call = async || reader.aggregate_async(k, &sum(), part.clone()).await.unwrap();
    trial.answers("Reader::aggregate_async", reader.aggregate(k, &sum(), part.clone()).unwrap(), call);
    let call = async || reader.nth_async(k, .., 99).await.unwrap();
    trial.answers("Reader::nth_async", reader.nth(k, .., 99).unwrap(), call);
    let is_sample = |rows: &[Row]| rows.len() == 9 && rows.iter().all(|row| k.get(&row.0).unwrap().unwrap() == row.1);
    let call = async || is_sample(&reader.sample_async(k, part.clone(), 9).await.unwrap());
    trial.answers("Reader::sample_async", true, call);
    let call = async || {
        let mut value = Vec::new();
        reader.read_async(k, b"large").await.unwrap().unwrap().read_to_end(&mut value).await.unwrap();
        value
    };
    trial.answers("Reader::read_async", large(1), call);
}

fn ranges_lose_nothing(trial: &Trial) {
    let k = &trial.k;
    let rows: Vec<Row> = k.iter().map(Result::unwrap).collect();
    let back: Vec<Row> = rows.iter().rev().cloned().collect();
    let keys = |rows: &[Row]| rows.iter().map(|row| row.0.clone()).collect::<Vec<_>>();
    let values = |rows: &[Row]| rows.iter().map(|row| row.1.clone()).collect::<Vec<_>>();
    let mut range = k.iter();
    trial.steps("Range::next_async", &rows, async || range.next_async().await);
    let mut range = k.iter();
    trial.steps("Range::next_back_async", &back, async || range.next_back_async().await);
    let mut range = k.keys();
    trial.steps("Keys::next_async", &keys(&rows), async || range.next_async().await);
    let mut range = k.keys();
    trial.steps("Keys::next_back_async", &keys(&back), async || range.next_back_async().await);
    let mut range = k.values();
    trial.steps("Values::next_async", &values(&rows), async || range.next_async().await);
    let mut range = k.values();
    trial.steps("Values::next_back_async", &values(&back), async || range.next_back_async().await);
    let read = |(key, mut reader): (Value, AsyncValueReader)| {
        let mut value = Vec::new();
        block_on(reader.read_to_end(&mut value)).unwrap();
        (key, Value::from(value))
    };
    let mut range = k.iter().readers();
    trial.steps("Readers::next_async", &rows, async || Some(range.next_async().await?.map(read)));
    let mut range = k.iter().readers();
    trial.steps("Readers::next_back_async", &back, async || Some(range.next_back_async().await?.map(read)));
    let mut range = k.iter().salvage();
    let step = async || match range.next_async().await? {
        Ok(Salvaged::Row(key, value)) => Some(Ok((key, value))),
        other => panic!("{other:?}"),
    };
    trial.steps("Salvage::next_async", &rows, step);
    for (name, expected) in [("Range::for_each_row_async", &rows), ("Range::for_each_row_back_async", &back)] {
        trial.forget_pages();
        let (mut range, seen) = (k.iter(), RefCell::new(Vec::new()));
        let mut look = |key: &[u8], value: &[u8]| {
            seen.borrow_mut().push((key.to_vec(), value.to_vec()));
            ControlFlow::<()>::Continue(())
        };
        let call = async |_| match name {
            "Range::for_each_row_async" => range.for_each_row_async(&mut look).await.unwrap(),
            _ => range.for_each_row_back_async(&mut look).await.unwrap(),
        };
        assert!(trial.until_done(name, call, |_| {}).is_continue());
        let seen = seen.into_inner();
        assert!(seen.iter().map(|row| (&row.0[..], &row.1[..])).eq(expected.iter().map(|row| (&*row.0, &*row.1))));
    }
}

/// Tests streams, whose methods belong to traits.
fn streams_lose_nothing(trial: &Trial) {
    let k = &trial.k;
    let rows: Vec<Row> = k.iter().map(Result::unwrap).collect();
    let mut stream = k.iter().into_stream();
    trial.steps("RowStream", &rows, async || stream.try_next().await.transpose());
    trial.forget_pages();
    let mut reader = block_on(k.read_async(b"large")).unwrap().unwrap();
    let (mut read, mut piece) = (Vec::new(), vec![0; 10_000]);
    loop {
        let count = trial.until_done("AsyncValueReader", async |_| reader.read(&mut piece).await.unwrap(), |_| {});
        read.extend_from_slice(&piece[..count]);
        if count == 0 {
            break;
        }
    }
    assert!(read == large(1));
    trial.tried.borrow_mut().retain(|name| name.contains(':'));
    assert!(["RowStream", "AsyncValueReader"].iter().all(|name| trial.waited.borrow_mut().remove(name)));
}

fn feeds_lose_nothing(trial: &Trial) {
    let Trial { db, k, .. } = trial;
    let since = db.snapshot().timestamp();
    (0..20).for_each(|number| k.insert(key(number), value(number)).unwrap());
    let until = db.snapshot().timestamp();
    let told = |commit: Commit| (commit.timestamp(), commit.changes().count());
    let expected: Vec<_> = db.changes(since).unwrap().until(until).map(|commit| told(commit.unwrap())).collect();
    assert_eq!(expected.len(), 20);
    let call = async |_| db.changes_async(since).await.unwrap();
    let mut changes = trial.until_done("Database::changes_async", call, |_| {}).until(until);
    trial.steps("Changes::next_async", &expected, async || Some(changes.next_async().await?.map(told)));
    trial.reset();
}

fn keyspaces_change_whole_rows(trial: &Trial) {
    let k = &trial.k;
    let new = &value(1000)[..];
    let source = &large(2)[..];
    let first = &value(7)[..];
    let change = |old: Option<&[u8]>| old.map(|old| old.repeat(2));
    let call = async || k.insert_async(key(7), new).await.unwrap();
    trial.changes("Keyspace::insert_async", true, || k.insert(key(7), new).unwrap(), call);
    let relaxed = Durability::Relaxed;
    let call = async || k.insert_with_async(key(7), new, relaxed).await.unwrap();
    trial.changes("Keyspace::insert_with_async", true, || k.insert_with(key(7), new, relaxed).unwrap(), call);
    let call = async || k.insert_from_async(b"large", source).await.unwrap();
    trial.changes("Keyspace::insert_from_async", true, || k.insert_from(b"large", source).unwrap(), call);
    let call = async || k.remove_async(b"large").await.unwrap();
    trial.changes("Keyspace::remove_async", true, || k.remove(b"large").unwrap(), call);
    let call = async || k.take_async(b"large").await.unwrap();
    trial.changes("Keyspace::take_async", true, || k.take(b"large").unwrap(), call);
    let call = async || k.replace_async(b"large", new).await.unwrap();
    trial.changes("Keyspace::replace_async", true, || k.replace(b"large", new).unwrap(), call);
    let call = async || k.insert_if_absent_async(b"other", new).await.unwrap();
    trial.changes("Keyspace::insert_if_absent_async", true, || k.insert_if_absent(b"other", new).unwrap(), call);
    let call = async || k.update_async(key(7), change).await.unwrap();
    trial.changes("Keyspace::update_async", true, || k.update(key(7), change).unwrap(), call);
    let call = async || k.compare_and_swap_async(key(7), Some(first), Some(new)).await.unwrap();
    let blocking = || k.compare_and_swap(key(7), Some(first), Some(new)).unwrap();
    trial.changes("Keyspace::compare_and_swap_async", true, blocking, call);
    let call = async || k.pop_first_async().await.unwrap();
    trial.changes("Keyspace::pop_first_async", true, || k.pop_first().unwrap(), call);
    let call = async || k.pop_last_async().await.unwrap();
    trial.changes("Keyspace::pop_last_async", true, || k.pop_last().unwrap(), call);
    let call = async || k.pop_first_in_async(key(50)..).await.unwrap();
    trial.changes("Keyspace::pop_first_in_async", true, || k.pop_first_in(key(50)..).unwrap(), call);
    let call = async || k.pop_last_in_async(..key(50)).await.unwrap();
    trial.changes("Keyspace::pop_last_in_async", true, || k.pop_last_in(..key(50)).unwrap(), call);
    let call = async || k.clear_async().await.unwrap();
    trial.changes("Keyspace::clear_async", false, || k.clear().unwrap(), call);
    let call = async || k.remove_prefix_async([0; 7]).await.unwrap();
    trial.changes("Keyspace::remove_prefix_async", false, || k.remove_prefix([0; 7]).unwrap(), call);
    let call = async || k.remove_range_async(key(50)..key(250)).await.unwrap();
    trial.changes("Keyspace::remove_range_async", false, || k.remove_range(key(50)..key(250)).unwrap(), call);
}

fn transactions_change_whole_rows(trial: &Trial) {
    let k = &trial.k;
    let new = &value(1000)[..];
    let source = &large(2)[..];
    let first = &value(7)[..];
    let change = |old: Option<&[u8]>| old.map(|old| old.repeat(2));
    let call = async |tx: &mut Transaction| tx.get_for_update_async(k, b"large").await.unwrap();
    trial.changes_in_transaction(
        "Transaction::get_for_update_async",
        |tx| tx.get_for_update(k, b"large").unwrap(),
        call,
    );
    let call = async |tx: &mut Transaction| tx.get_for_share_async(k, b"large").await.unwrap();
    trial.changes_in_transaction("Transaction::get_for_share_async", |tx| tx.get_for_share(k, b"large").unwrap(), call);
    let call = async |tx: &mut Transaction| tx.lock_row_async(k, b"large", LockMode::Exclusive).await.unwrap();
    let blocking = |tx: &mut Transaction| tx.lock_row(k, b"large", LockMode::Exclusive).unwrap();
    trial.changes_in_transaction("Transaction::lock_row_async", blocking, call);
    let call = async |tx: &mut Transaction| tx.try_lock_row_async(k, b"large", LockMode::Shared).await.unwrap();
    let blocking = |tx: &mut Transaction| tx.try_lock_row(k, b"large", LockMode::Shared).unwrap();
    trial.changes_in_transaction("Transaction::try_lock_row_async", blocking, call);
    let call = async |tx: &mut Transaction| tx.insert_async(k, key(7), new).await.unwrap();
    trial.changes_in_transaction("Transaction::insert_async", |tx| tx.insert(k, key(7), new).unwrap(), call);
    let call = async |tx: &mut Transaction| tx.insert_from_async(k, b"large", source).await.unwrap();
    let blocking = |tx: &mut Transaction| tx.insert_from(k, b"large", source).unwrap();
    trial.changes_in_transaction("Transaction::insert_from_async", blocking, call);
    let call = async |tx: &mut Transaction| tx.remove_async(k, b"large").await.unwrap();
    trial.changes_in_transaction("Transaction::remove_async", |tx| tx.remove(k, b"large").unwrap(), call);
    let call = async |tx: &mut Transaction| tx.take_async(k, b"large").await.unwrap();
    trial.changes_in_transaction("Transaction::take_async", |tx| tx.take(k, b"large").unwrap(), call);
    let call = async |tx: &mut Transaction| tx.replace_async(k, b"large", new).await.unwrap();
    trial.changes_in_transaction("Transaction::replace_async", |tx| tx.replace(k, b"large", new).unwrap(), call);
    let call = async |tx: &mut Transaction| tx.insert_if_absent_async(k, b"other", new).await.unwrap();
    let blocking = |tx: &mut Transaction| tx.insert_if_absent(k, b"other", new).unwrap();
    trial.changes_in_transaction("Transaction::insert_if_absent_async", blocking, call);
    let call = async |tx: &mut Transaction| tx.update_async(k, key(7), change).await.unwrap();
    trial.changes_in_transaction("Transaction::update_async", |tx| tx.update(k, key(7), change).unwrap(), call);
    let call = async |tx: &mut Transaction| tx.compare_and_swap_async(k, key(7), Some(first), Some(new)).await.unwrap();
    let blocking = |tx: &mut Transaction| tx.compare_and_swap(k, key(7), Some(first), Some(new)).unwrap();
    trial.changes_in_transaction("Transaction::compare_and_swap_async", blocking, call);
    let call = async |tx: &mut Transaction| tx.pop_first_async(k).await.unwrap();
    trial.changes_in_transaction("Transaction::pop_first_async", |tx| tx.pop_first(k).unwrap(), call);
    let call = async |tx: &mut Transaction| tx.pop_last_async(k).await.unwrap();
    trial.changes_in_transaction("Transaction::pop_last_async", |tx| tx.pop_last(k).unwrap(), call);
    let call = async |tx: &mut Transaction| tx.pop_first_in_async(k, key(50)..).await.unwrap();
    let blocking = |tx: &mut Transaction| tx.pop_first_in(k, key(50)..).unwrap();
    trial.changes_in_transaction("Transaction::pop_first_in_async", blocking, call);
    let call = async |tx: &mut Transaction| tx.pop_last_in_async(k, ..key(50)).await.unwrap();
    let blocking = |tx: &mut Transaction| tx.pop_last_in(k, ..key(50)).unwrap();
    trial.changes_in_transaction("Transaction::pop_last_in_async", blocking, call);
}

/// Tests transactions and batches of rows in many leaves, and of a large value.
fn transactions_commit_whole(trial: &Trial) {
    let Trial { db, k, .. } = trial;
    let numbers = || (0..ROWS).step_by(30);
    fn write(tx: &mut Transaction, k: &Keyspace) -> drumlin::Result<()> {
        (0..ROWS).step_by(30).try_for_each(|number| tx.insert(k, key(number), value(number + 1)))?;
        tx.insert(k, b"large", large(3))
    }
    let blocking = || db.transact(|tx| write(tx, k)).unwrap();
    let call = async || {
        let mut tx = db.begin().unwrap();
        write(&mut tx, k).unwrap();
        tx.commit_async().await.map(drop).unwrap();
    };
    trial.changes("Transaction::commit_async", true, blocking, call);
    let options = TxOptions::default();
    let written = async || {
        let run = db.transact_async(|tx| {
            let k = k.clone();
            Box::pin(async move { write(tx, &k) })
        });
        run.await.unwrap();
    };
    trial.changes("Database::transact_async", true, blocking, written);
    let written = async || {
        let run = db.try_transact_async(|tx| {
            let k = k.clone();
            Box::pin(async move { write(tx, &k) })
        });
        run.await.unwrap();
    };
    trial.changes("Database::try_transact_async", true, blocking, written);
    let written = async || {
        let run = db.transact_with_async(options, |tx| {
            let k = k.clone();
            Box::pin(async move { write(tx, &k) })
        });
        run.await.unwrap();
    };
    trial.changes("Database::transact_with_async", true, blocking, written);
    let written = async || db.transact_local(async |tx: &mut Transaction| write(tx, k)).await.unwrap();
    trial.changes("Database::transact_local", true, blocking, written);
    let written = async || db.try_transact_local(async |tx: &mut Transaction| write(tx, k)).await.unwrap();
    trial.changes("Database::try_transact_local", true, blocking, written);
    let written = async || db.transact_with_local(options, async |tx: &mut Transaction| write(tx, k)).await.unwrap();
    trial.changes("Database::transact_with_local", true, blocking, written);

    let source = &large(3)[..];
    for (name, durability) in [("Batch::commit_async", None), ("Batch::commit_with_async", Some(Durability::Full))] {
        let call = async || {
            let mut batch = db.batch().unwrap();
            for number in numbers() {
                batch.insert(k, key(number), value(number + 1)).unwrap();
            }
            batch.insert_from(k, b"large", source).unwrap();
            match durability {
                None => batch.commit_async().await.map(drop).unwrap(),
                Some(durability) => batch.commit_with_async(durability).await.map(drop).unwrap(),
            }
        };
        trial.changes(name, true, blocking, call);
    }
    // The batch is committed with any writes that a dropped future left in it.
    for (name, is_stream) in [("Batch::insert_async", false), ("Batch::insert_from_async", true)] {
        let batch = RefCell::new(db.batch().unwrap());
        let before = trial.state();
        let mut after = before.clone();
        after.insert(b"large".to_vec(), source.to_vec());
        let call = async |_| {
            let mut batch = batch.borrow_mut();
            match is_stream {
                false => batch.insert_async(k, b"large", source).await.unwrap(),
                true => assert_eq!(batch.insert_from_async(k, b"large", source).await.unwrap(), LARGE_BYTES as u64),
            }
        };
        let look = |_| {
            batch.replace(db.batch().unwrap()).commit().unwrap();
            let state = trial.state();
            assert!(state == before || state == after, "{name}");
            trial.reset();
        };
        trial.until_done(name, call, look);
        batch.into_inner().commit().unwrap();
        assert!(trial.state() == after, "{name}: other rows");
        trial.reset();
    }
}

/// Tries to prepare transactions, and to end prepared ones. After each dropped future, the transaction is prepared with
/// all its changes and locks, or there is nothing of it.
fn transactions_are_prepared_whole(trial: &Trial) {
    let Trial { db, k, .. } = trial;
    let before = trial.state();
    let mut after = before.clone();
    let begin = || {
        let mut tx = db.begin().unwrap();
        for number in 0..9 {
            tx.insert(k, key(number), value(number + 1)).unwrap();
        }
        tx.insert(k, b"large", large(2)).unwrap();
        tx
    };
    after.extend((0..9).map(|number| (key(number).to_vec(), value(number + 1))));
    after.insert(b"large".to_vec(), large(2));
    // Commits of dropped futures may not be durable yet.
    let is_prepared = || {
        db.sync().unwrap();
        let count = db.prepared().unwrap().len();
        assert_eq!(db.locks().unwrap().len(), 10 * count);
        count == 1
    };
    let look = |_| {
        assert!(trial.state() == before, "a prepared transaction is seen");
        if is_prepared() {
            db.abort_prepared("t").unwrap();
        }
        trial.forget_pages();
    };
    trial.until_done("Transaction::prepare_async", async |_| begin().prepare_async("t").await.unwrap(), look);
    assert!(is_prepared() && trial.state() == before);
    db.abort_prepared("t").unwrap();

    for (name, end) in [
        ("Database::commit_prepared_async", 0),
        ("Database::commit_prepared_with_async", 1),
        ("Database::abort_prepared_async", 2),
        ("Database::ready_prepared_async", 3),
    ] {
        let call = async |_| {
            if !is_prepared() {
                begin().prepare("t").unwrap();
                trial.forget_pages();
                trial.end_turn();
            }
            match end {
                0 => db.commit_prepared_async("t").await.map(drop).unwrap(),
                1 => db.commit_prepared_with_async("t", Durability::Relaxed).await.map(drop).unwrap(),
                2 => db.abort_prepared_async("t").await.unwrap(),
                _ => drop(db.ready_prepared_async("t").await.unwrap().commit().unwrap()),
            }
        };
        let look = |_| {
            let (is_prepared, state) = (is_prepared(), trial.state());
            assert!(state == *if is_prepared || end == 2 { &before } else { &after }, "{name}");
            if !is_prepared {
                trial.reset();
            }
        };
        trial.until_done(name, call, look);
        assert!(!is_prepared() && trial.state() == *if end == 2 { &before } else { &after }, "{name}");
        trial.reset();
    }
}

/// Tests bulk loads, each into a new keyspace.
fn loads_are_whole(trial: &Trial) {
    let db = &trial.db;
    let count = |name: &str| match db.existing_keyspace(name) {
        Ok(k) => k.iter().inspect(|row| assert!(row.is_ok())).count() as u64,
        Err(Error::NoSuchKeyspace { .. }) => 0,
        Err(error) => panic!("{error}"),
    };
    let call = async |polls: usize| {
        let mut load = db.bulk_load_async(&format!("begun {polls}")).await.unwrap();
        load.insert(key(1), "1").unwrap();
        load.finish().unwrap();
    };
    trial.until_done("Database::bulk_load_async", call, |polls| assert_eq!(count(&format!("begun {polls}")), 0));
    let call = async |polls: usize| {
        let mut load = db.bulk_load_async(&format!("filled {polls}")).await.unwrap();
        for number in 0..ROWS {
            load.insert_async(key(number), value(number)).await.unwrap();
        }
        load.finish().unwrap();
    };
    trial.until_done("BulkLoad::insert_async", call, |polls| assert_eq!(count(&format!("filled {polls}")), 0));
    let call = async |polls: usize| {
        let mut load = db.bulk_load(&format!("finished {polls}")).unwrap();
        (0..ROWS).for_each(|number| load.insert(key(number), value(number)).unwrap());
        assert_eq!(load.finish_async().await.unwrap().rows, ROWS);
    };
    let look = |polls| assert!([0, ROWS].contains(&count(&format!("finished {polls}"))));
    trial.until_done("BulkLoad::finish_async", call, look);
}

/// Tests calls on the whole database. Once begun, they run to completion, and they can be repeated.
fn databases_do_as_before(trial: &Trial) {
    let Trial { backend, db, k, .. } = trial;
    let before = trial.state();
    let name = |polls: usize| format!("made {polls}");
    trial.until_done("Database::keyspace_async", async |polls| db.keyspace_async(&name(polls)).await.unwrap(), |_| {});
    let name = |polls: usize| format!("made with {polls}");
    let call = async |polls: usize| {
        db.keyspace_with_async(&name(polls), KeyspaceOptions::default()).await.unwrap();
    };
    trial.until_done("Database::keyspace_with_async", call, |_| {});
    let found = trial.until_done(
        "Database::existing_keyspace_async",
        async |_| db.existing_keyspace_async("k").await.unwrap(),
        |_| {},
    );
    assert_eq!(found.name(), k.name());
    let call = async |polls: usize| {
        let name = format!("dropped {polls}");
        db.keyspace(&name).unwrap().insert("k", "v").unwrap();
        db.drop_keyspace_async(&name).await.unwrap();
        assert!(db.existing_keyspace(&name).is_err());
    };
    let look = |polls| {
        if let Ok(k) = db.existing_keyspace(&format!("dropped {polls}")) {
            // The keyspace may be dropped at any time.
            assert!(matches!(k.get("k"), Ok(Some(_)) | Err(Error::KeyspaceDropped { .. })));
        }
    };
    trial.until_done("Database::drop_keyspace_async", call, look);
    let call = async |polls: usize| {
        let [from, to] = ["renamed", "to"].map(|name| format!("{name} {polls}"));
        db.keyspace(&from).unwrap();
        db.alter().rename(&from, &to).create(&from, KeyspaceOptions::default()).commit_async().await.unwrap();
        assert!(db.existing_keyspace(&from).is_ok() && db.existing_keyspace(&to).is_ok());
    };
    trial.until_done("Alteration::commit_async", call, |_| {});
    let call = async |_| {
        k.insert_with("relaxed", "1", Durability::Relaxed).unwrap();
        db.sync_async().await.unwrap();
    };
    trial.until_done("Database::sync_async", call, |_| {});
    k.remove("relaxed").unwrap();
    trial.until_done("Database::checkpoint_async", async |_| db.checkpoint_async().await.map(drop).unwrap(), |_| {});
    trial.until_done("Database::compact_async", async |_| db.compact_async().await.map(drop).unwrap(), |_| {});
    // A worker continues with a clone, snapshot or backup whose future is dropped.
    let call = async |_| match db.clone_keyspace_async("k", "clone").await {
        Ok(_) | Err(Error::KeyspaceExists { .. }) => {}
        Err(error) => panic!("{error}"),
    };
    trial.until_done("Database::clone_keyspace_async", call, |_| {});
    assert!(db.existing_keyspace("clone").unwrap().get("relaxed").unwrap().is_none());
    let call = async |_| match db.keep_snapshot_async("kept").await {
        Ok(_) | Err(Error::SnapshotExists { .. }) => {}
        Err(error) => panic!("{error}"),
    };
    trial.until_done("Database::keep_snapshot_async", call, |_| {});
    let call = async |_| assert!(db.open_snapshot_async("kept").await.unwrap().get(k, "relaxed").unwrap().is_none());
    trial.until_done("Database::open_snapshot_async", call, |_| {});
    let attempts = std::cell::Cell::new(0);
    let options = drumlin::BackupOptions::new().keep("kept");
    let call = async |_| {
        attempts.set(attempts.get() + 1);
        let target = format!("/backup-{}", attempts.get());
        // The backups of dropped futures go on, and may have all the memory.
        while let Err(error) = db.backup_to_async(&target, &options).await {
            assert!(matches!(error, Error::MemoryInUse { .. }), "{error}");
            std::thread::yield_now();
        }
    };
    trial.until_done("Database::backup_to_async", call, |_| {});
    let last = format!("/backup-{}", attempts.get());
    drumlin::Config::new().backend(Arc::clone(backend)).verify_backup(last).unwrap();
    let call = async |_| match db.drop_snapshot_async("kept").await {
        Ok(()) | Err(Error::NoSuchSnapshot { .. }) => {}
        Err(error) => panic!("{error}"),
    };
    trial.until_done("Database::drop_snapshot_async", call, |_| {});
    let call = async |_| assert!(db.check_async().await.unwrap().corruption.is_empty());
    trial.until_done("Database::check_async", call, |_| {});
    assert!(trial.state() == before);

    // If the future of an opening or closing is dropped, the operation continues, and the next opening waits for it.
    let folder = Folder::new();
    let other = folder.path();
    let opened = |open: &dyn Fn() -> Option<drumlin::Result<Database>>| loop {
        match open()? {
            Err(Error::Locked { .. }) => std::thread::yield_now(),
            db => return Some(db.unwrap()),
        }
    };
    for (name, is_config) in [("Config::open_async", true), ("Database::open_async", false)] {
        let attempt = |polls| {
            opened(&|| match is_config {
                true => block_on(within_polls(polls, config().open_async(&other))),
                false => block_on(within_polls(polls, Database::open_async(&other))),
            })
        };
        let db = (1..POLLS_MAX).find_map(attempt).unwrap();
        db.keyspace("k").unwrap().insert(name, "1").unwrap();
        db.close().unwrap();
        trial.tried.borrow_mut().insert(name);
        trial.waited.borrow_mut().insert(name);
    }
    let open = || opened(&|| Some(config().open(&other))).unwrap();
    for polls in 1..POLLS_MAX {
        let db = open();
        db.keyspace("k").unwrap().insert(key(polls as u64), "1").unwrap();
        if block_on(within_polls(polls, db.close_async())).is_some() {
            assert!(polls > 1);
            break;
        }
    }
    trial.tried.borrow_mut().insert("Database::close_async");
    trial.waited.borrow_mut().insert("Database::close_async");
    assert!(open().keyspace("k").unwrap().len().unwrap() >= 3);
}
