//! Sequences of calls over everything public, by a user who is not careful: two databases whose handles are mixed and dropped in
//! any order, futures dropped and leaked, settings at their extremes, closures and readers that panic, threads.
//!
//! What a call answers is compared with an ordered map for each keyspace; a transaction has maps of its own until it commits. An
//! error must be one that the call may give here, with the recourse that `error.rs` documents. Nothing may panic but what is
//! told to, and the database must go on afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use drumlin::io::Backend;
use drumlin::{
    Config, Database, Durability, Error, IoBackend, Isolation, Keyspace, KeyspaceOptions, Range, Recourse, Result,
    Savepoint, Snapshot, Transaction, TxOptions,
};
use futures_io::{AsyncRead, AsyncSeek};

use crate::Script;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Models = [Model; 2];

const NAMES: [&str; 2] = ["first", "second"];
const BUDGET_BYTES: u64 = 8 << 20;

/// Anonymous memory that a run may have beside the budgets of its two databases: their files, which are in memory too, models,
/// stacks, what the allocator keeps.
const ALLOWANCE_BYTES: u64 = 384 << 20;

/// Anonymous memory that a process may have after a run.
pub const MEMORY_BYTES_MAX: u64 = 2 * BUDGET_BYTES + ALLOWANCE_BYTES;

/// The anonymous memory of this process; `None` where the system does not tell.
pub fn anonymous_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

/// The sequence of a seed, after SplitMix64 (Steele, Lea, Flood 2014).
pub fn script(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0xD134_2543_DE82_EF95);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..100 + next() % 900).map(|_| next() as u8).collect()
}

// ── what was called ────────────────────────────────────────────────────────────────────────────────────────────────

static CALLED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// The public functions that were called so far in this process, as `Type::function`.
pub fn called() -> BTreeSet<&'static str> {
    CALLED.lock().expect("nothing panics with it").clone()
}

/// Notes a call by its name and makes it.
macro_rules! call {
    ($name:literal, $call:expr) => {{
        CALLED.lock().expect("nothing panics with it").insert($name);
        $call
    }};
}

// ── futures ────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// What becomes of a future.
#[derive(Clone, Copy)]
struct Fate {
    polls: usize,
    leaks: bool,
}

/// Polls a future a number of times, then drops or leaks it.
fn poll_some<T>(future: impl Future<Output = T>, fate: Fate) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = Box::pin(future);
    for _ in 0..fate.polls {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        std::thread::park_timeout(Duration::from_micros(200));
    }
    if fate.leaks {
        std::mem::forget(future);
    }
    None
}

// ── errors ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/// What the documentation of each error says can be done.
fn documented(error: &Error) -> Recourse {
    match error {
        Error::Conflict { .. } | Error::SnapshotTooOld { .. } | Error::MemoryInUse { .. } => Recourse::Retry,
        Error::Failed { .. } | Error::OutcomeUnknown { .. } => Recourse::Reopen,
        Error::Damaged { .. } => Recourse::Restore,
        _ => Recourse::Change,
    }
}

/// The result, whose error has to be one that `may` allows.
#[track_caller]
fn checked<T>(result: Result<T>, may: impl Fn(&Error) -> bool) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error.recourse(), documented(&error), "{error}");
            assert_eq!(error.is_conflict(), matches!(error, Error::Conflict { .. }));
            assert!(may(&error) && !error.to_string().is_empty(), "{error:?}");
            None
        }
    }
}

#[track_caller]
fn must<T>(result: Result<T>) -> T {
    checked(result, |_| false).expect("no error may be")
}

#[track_caller]
fn refused<T>(result: Result<T>) {
    assert!(checked(result, |error| matches!(error, Error::Invalid(_))).is_none(), "a foreign handle was taken");
}

fn is_too_old(error: &Error) -> bool {
    matches!(error, Error::SnapshotTooOld { .. })
}

fn is_crowded(error: &Error) -> bool {
    matches!(error, Error::TransactionTooLarge { .. } | Error::MemoryInUse { .. })
}

/// Runs what panics on purpose, quietly.
fn panics(body: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(body)).is_err(), "the panic was swallowed");
}

/// What panics that are part of a sequence say.
pub const ON_PURPOSE: &str = "a panic on purpose";

// ── readers ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// How a reader ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Whole,
    Fails,
    Panics,
}

struct Source {
    bytes: Vec<u8>,
    position: usize,
    end: End,
    /// Once before each part, where tasks read.
    waits: bool,
}

impl Source {
    fn new(bytes: &[u8], end: End) -> Source {
        Source { bytes: bytes.to_vec(), position: 0, end, waits: false }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.bytes[self.position..];
        let count = rest.len().min(buffer.len()).min(30_000);
        if count == 0 && !buffer.is_empty() {
            match self.end {
                End::Whole => {}
                End::Fails => return Err(std::io::Error::other("the reader fails on purpose")),
                End::Panics => panic!("{ON_PURPOSE}"),
            }
        }
        buffer[..count].copy_from_slice(&rest[..count]);
        self.position += count;
        Ok(count)
    }
}

impl AsyncRead for Source {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        self.waits = !self.waits;
        if self.waits {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.read(buffer))
    }
}

// ── the world ──────────────────────────────────────────────────────────────────────────────────────────────────────

/// A database and what it should hold.
struct Side {
    config: Config,
    db: Database,
    keyspaces: Vec<Keyspace>,
    models: Models,
    snapshots: Vec<(Snapshot, Models, Vec<Keyspace>)>,
}

fn key(script: &mut Script<'_>) -> Vec<u8> {
    match script.byte() {
        kind @ 0..180 => vec![b'k', kind % 24],
        kind @ 180..240 => [&[b'p'; 40][..], &[kind, script.byte()]].concat(),
        240..250 => Vec::new(),
        _ => vec![b'l'; 128],
    }
}

fn value(script: &mut Script<'_>) -> Vec<u8> {
    let (kind, fill) = (script.byte(), script.byte());
    let length = match kind {
        0..200 => usize::from(kind) / 2,
        200..240 => usize::from(kind - 200) * 60,
        240..250 => 60_000 + usize::from(kind) * 20,
        _ => usize::from(kind - 249) * 40_000,
    };
    (0..length).map(|at| fill.wrapping_add((at / 3) as u8)).collect()
}

fn bounds(script: &mut Script<'_>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut one = || match script.byte() % 3 {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(script)),
        _ => Bound::Excluded(key(script)),
    };
    (one(), one())
}

fn within<'m>(model: &'m Model, bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Vec<(&'m Vec<u8>, &'m Vec<u8>)> {
    let contains = |key: &Vec<u8>| std::ops::RangeBounds::contains(bounds, key);
    model.iter().filter(|(key, _)| contains(key)).collect()
}

fn fate(script: &mut Script<'_>) -> Fate {
    Fate { polls: usize::from(script.byte() % 6), leaks: script.byte().is_multiple_of(2) }
}

/// Goes through a range from both ends, by both faces, dropping futures on the way.
fn walk(mut range: Range, expected: &[(&Vec<u8>, &Vec<u8>)], may: impl Fn(&Error) -> bool, script: &mut Script<'_>) {
    let _ = format!("{range:?}");
    let (mut front, mut back) = (0, expected.len());
    loop {
        let choice = script.byte();
        let row = match choice % 6 {
            0 => range.next_back(),
            1 => block_on(call!("Range::next_async", range.next_async())),
            2 => block_on(call!("Range::next_back_async", range.next_back_async())),
            // Leaked, it would keep the database open as the range does.
            3 => match poll_some(range.next_async(), Fate { leaks: false, ..fate(script) }) {
                Some(row) => row,
                None => continue,
            },
            _ => range.next(),
        };
        let backward = matches!(choice % 6, 0 | 2);
        let Some(row) = row else { break };
        let Some((key, value)) = checked(row, &may) else {
            assert!(range.next().is_none() && range.next_back().is_none(), "a range goes on after its error");
            return;
        };
        assert!(front < back, "a row too many");
        let at = if backward { back - 1 } else { front };
        assert!(key == *expected[at].0 && value.clone() == *expected[at].1, "a wrong row");
        assert_eq!(call!("Value::into_vec", value.into_vec()), *expected[at].1);
        if backward { back -= 1 } else { front += 1 }
    }
    assert_eq!(front, back, "a row too few");
}

fn read_value(reader: Option<drumlin::ValueReader>, expected: Option<&Vec<u8>>, script: &mut Script<'_>) {
    assert_eq!(reader.is_some(), expected.is_some());
    let (Some(mut reader), Some(expected)) = (reader, expected) else { return };
    let _ = format!("{reader:?}");
    assert_eq!(call!("ValueReader::len", reader.len()), expected.len() as u64);
    assert_eq!(call!("ValueReader::is_empty", reader.is_empty()), expected.is_empty());
    for to in [SeekFrom::End(i64::MAX), SeekFrom::Current(i64::MIN), SeekFrom::Start(u64::MAX)] {
        let _ = reader.seek(to);
        let mut byte = [0];
        assert!(reader.read(&mut byte).is_ok_and(|count| count <= 1));
    }
    let from = (script.number()) % (expected.len() + 1);
    reader.seek(SeekFrom::Start(from as u64)).expect("it is within the value");
    let mut bytes = Vec::new();
    match reader.read_to_end(&mut bytes) {
        Ok(_) => assert!(bytes == expected[from..], "a wrong value"),
        Err(error) => assert!(["too old", "was dropped"].iter().any(|why| error.to_string().contains(why)), "{error}"),
    }
}

fn read_value_async(reader: Option<drumlin::AsyncValueReader>, expected: Option<&Vec<u8>>, script: &mut Script<'_>) {
    assert_eq!(reader.is_some(), expected.is_some());
    let (Some(mut reader), Some(expected)) = (reader, expected) else { return };
    let _ = format!("{reader:?}");
    assert_eq!(call!("AsyncValueReader::len", reader.len()), expected.len() as u64);
    assert_eq!(call!("AsyncValueReader::is_empty", reader.is_empty()), expected.is_empty());
    let from = script.number() % (expected.len() + 1);
    let seek = std::future::poll_fn(|context| Pin::new(&mut reader).poll_seek(context, SeekFrom::Start(from as u64)));
    block_on(seek).expect("it is within the value");
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 50_000]);
    loop {
        let part = std::future::poll_fn(|context| Pin::new(&mut reader).poll_read(context, &mut buffer));
        let count = match poll_some(part, fate(script)) {
            Some(count) => count,
            None => block_on(std::future::poll_fn(|context| Pin::new(&mut reader).poll_read(context, &mut buffer))),
        };
        match count {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) => {
                assert!(["too old", "was dropped"].iter().any(|why| error.to_string().contains(why)), "{error}");
                return;
            }
        }
    }
    assert!(bytes == expected[from..], "a wrong value");
}

fn small(backend: &Arc<dyn Backend>) -> Config {
    let config = call!("Config::new", Config::new());
    let config = call!("Config::memory", config.memory(BUDGET_BYTES));
    let config = call!("Config::page_bytes", config.page_bytes(512));
    let config = call!("Config::segment_bytes", config.segment_bytes(256 << 10));
    let config = call!("Config::log_segment_bytes", config.log_segment_bytes(1 << 20));
    config.backend(Arc::clone(backend))
}

impl Side {
    fn new() -> Side {
        let config = small(&drumlin::io::in_memory());
        let db = must(call!("Config::open", config.open("/db")));
        let keyspaces = NAMES.map(|name| must(call!("Database::keyspace", db.keyspace(name)))).into();
        Side { config, db, keyspaces, models: Default::default(), snapshots: Vec::new() }
    }

    /// Everything committed is visible afterwards, also what a dropped future had begun.
    fn settle(&self) {
        must(self.keyspaces[0].insert("settled", "x"));
        must(self.keyspaces[0].remove("settled"));
    }

    fn check(&self) {
        for (keyspace, model) in self.keyspaces.iter().zip(&self.models) {
            let rows = keyspace.iter().map(must).map(|(key, value)| (key.to_vec(), value.to_vec()));
            assert!(
                rows.eq(model.iter().map(|(key, value)| (key.clone(), value.clone()))),
                "rows are not as they should be"
            );
        }
    }

    // ── one row ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// A write outside of a transaction, by any call; `None`: it was dropped on the way.
    fn write(&mut self, which: usize, script: &mut Script<'_>) {
        let (key, value) = (key(script), value(script));
        let k = &self.keyspaces[which];
        let durability = if script.byte().is_multiple_of(3) { Durability::Full } else { Durability::Relaxed };
        let fate = Fate { leaks: false, ..fate(script) };
        let end = match script.byte() % 8 {
            0 => End::Fails,
            1 => End::Panics,
            _ => End::Whole,
        };
        let mut after = Some(value.clone());
        let source = || Source::new(&value, end);
        let done: Option<Result<()>> = match script.byte() % 10 {
            0 => Some(call!("Keyspace::insert", k.insert(&key, &value))),
            1 | 2 => Some(call!("Keyspace::insert_with", k.insert_with(&key, &value, durability))),
            3 => Some(block_on(call!("Keyspace::insert_async", k.insert_async(&key, &value)))),
            4 => poll_some(call!("Keyspace::insert_with_async", k.insert_with_async(&key, &value, durability)), fate),
            5 if end == End::Panics => {
                panics(|| drop(call!("Keyspace::insert_from", k.insert_from(&key, source()))));
                None
            }
            6 if end == End::Panics => {
                panics(|| drop(block_on(call!("Keyspace::insert_from_async", k.insert_from_async(&key, source())))));
                None
            }
            5 => Some(k.insert_from(&key, source()).map(|count| assert_eq!(count, value.len() as u64))),
            6 => poll_some(k.insert_from_async(&key, source()), fate).map(|result| result.map(drop)),
            7 => {
                after = None;
                Some(call!("Keyspace::remove", k.remove(&key)))
            }
            8 => {
                after = None;
                poll_some(call!("Keyspace::remove_async", k.remove_async(&key)), fate)
            }
            _ => {
                let long = vec![7; k.key_bytes_max() + 1];
                let is_long = |error: &Error| matches!(error, Error::KeyTooLong { .. });
                assert!(checked(k.insert(&long, &value), is_long).is_none());
                assert!(checked(block_on(k.remove_async(&long)), is_long).is_none());
                return;
            }
        };
        let is_source = |error: &Error| matches!(error, Error::Source { .. }) && end == End::Fails;
        match done.map(|result| checked(result, is_source)) {
            Some(Some(())) => {}
            Some(None) => after = self.models[which].get(&key).cloned(),
            None => {
                self.settle();
                let found = must(self.keyspaces[which].get(&key)).map(|value| value.to_vec());
                let before = self.models[which].get(&key);
                assert!(found.as_ref() == before || found == after, "neither as before nor as written");
                after = found;
            }
        }
        match after {
            Some(value) => drop(self.models[which].insert(key, value)),
            None => drop(self.models[which].remove(&key)),
        }
    }

    fn read(&self, which: usize, script: &mut Script<'_>) {
        let (k, model, key) = (&self.keyspaces[which], &self.models[which], key(script));
        let expected = model.get(&key);
        let is_it = |found: Option<drumlin::Value>| assert_eq!(found.as_deref(), expected.map(Vec::as_slice));
        match script.byte() % 12 {
            0 => is_it(must(call!("Keyspace::get", k.get(&key)))),
            1 => is_it(must(block_on(call!("Keyspace::get_async", k.get_async(&key))))),
            2 => poll_some(k.get_async(&key), fate(script)).into_iter().map(must).for_each(is_it),
            3 => assert_eq!(must(call!("Keyspace::contains_key", k.contains_key(&key))), expected.is_some()),
            4 => {
                let found = call!("Keyspace::contains_key_async", k.contains_key_async(&key));
                assert_eq!(must(block_on(found)), expected.is_some());
            }
            5 => {
                let keys = [key.clone(), vec![b'k', 3], vec![9; 4000]];
                let found = must(call!("Keyspace::get_many", k.get_many(&keys)));
                is_it(found[0].clone());
                assert!(found.len() == 3 && found[2].is_none());
            }
            6 => {
                let keys = [&key];
                let found = call!("Keyspace::get_many_async", k.get_many_async(&keys));
                must(block_on(found)).into_iter().for_each(is_it);
            }
            7 => {
                let bounds = bounds(script);
                let expected = within(model, &bounds).len() as u64;
                assert_eq!(must(call!("Keyspace::count", k.count(bounds.clone()))), expected);
                assert_eq!(must(block_on(call!("Keyspace::count_async", k.count_async(bounds)))), expected);
            }
            8 => {
                let bounds = bounds(script);
                walk(call!("Keyspace::range", k.range(bounds.clone())), &within(model, &bounds), is_too_old, script);
            }
            9 => {
                let rows: Vec<_> = model.iter().filter(|(key, _)| key.starts_with(b"k")).collect();
                walk(call!("Keyspace::prefix", k.prefix("k")), &rows, is_too_old, script);
                walk(call!("Keyspace::iter", k.iter()), &model.iter().collect::<Vec<_>>(), is_too_old, script);
            }
            10 => read_value(must(call!("Keyspace::read", k.read(&key))), expected, script),
            _ => {
                let reader = must(block_on(call!("Keyspace::read_async", k.read_async(&key))));
                read_value_async(reader, expected, script);
            }
        }
    }

    // ── snapshots ──────────────────────────────────────────────────────────────────────────────────────────────────

    fn look_back(&mut self, other: &Keyspace, script: &mut Script<'_>) {
        if self.snapshots.len() > 3 {
            self.snapshots.remove(usize::from(script.byte()) % 4);
        }
        self.settle();
        let snapshot = call!("Database::snapshot", self.db.snapshot());
        self.snapshots.push((snapshot, self.models.clone(), self.keyspaces.clone()));
        let at = usize::from(script.byte()) % self.snapshots.len();
        let (snapshot, models, keyspaces) = &self.snapshots[at];
        let which = usize::from(script.byte() % 2);
        let (k, model, key) = (&keyspaces[which], &models[which], key(script));
        let may = |error: &Error| matches!(error, Error::SnapshotTooOld { .. } | Error::KeyspaceDropped { .. });
        let expected = model.get(&key);
        let is_it = |found: Option<drumlin::Value>| assert_eq!(found.as_deref(), expected.map(Vec::as_slice));
        let _ = (call!("Snapshot::timestamp", snapshot.timestamp()), format!("{snapshot:?}"));
        match script.byte() % 8 {
            0 => checked(call!("Snapshot::get", snapshot.get(k, &key)), may).into_iter().for_each(is_it),
            1 => checked(block_on(call!("Snapshot::get_async", snapshot.get_async(k, &key))), may)
                .into_iter()
                .for_each(is_it),
            2 => {
                let found = [
                    call!("Snapshot::contains_key", snapshot.contains_key(k, &key)),
                    block_on(call!("Snapshot::contains_key_async", snapshot.contains_key_async(k, &key))),
                ];
                let found = found.into_iter().filter_map(|found| checked(found, may));
                found.for_each(|found| assert_eq!(found, expected.is_some()));
            }
            3 => {
                let bounds = bounds(script);
                walk(call!("Snapshot::range", snapshot.range(k, bounds.clone())), &within(model, &bounds), may, script);
                let counts = [
                    call!("Snapshot::count", snapshot.count(k, bounds.clone())),
                    block_on(call!("Snapshot::count_async", snapshot.count_async(k, bounds.clone()))),
                ];
                let counts = counts.into_iter().filter_map(|count| checked(count, may));
                counts.for_each(|count| assert_eq!(count, within(model, &bounds).len() as u64));
            }
            4 => walk(call!("Snapshot::iter", snapshot.iter(k)), &model.iter().collect::<Vec<_>>(), may, script),
            5 => {
                if let Some(reader) = checked(call!("Snapshot::read", snapshot.read(k, &key)), may) {
                    read_value(reader, expected, script);
                }
            }
            6 => {
                let reader = block_on(call!("Snapshot::read_async", snapshot.read_async(k, &key)));
                if let Some(reader) = checked(reader, may) {
                    read_value_async(reader, expected, script);
                }
            }
            _ => {
                refused(snapshot.get(other, &key));
                refused(block_on(snapshot.read_async(other, &key)).map(drop));
                refused(snapshot.count(other, ..));
                refused(block_on(snapshot.count_async(other, ..)));
                let mut range = call!("Snapshot::prefix", snapshot.prefix(other, &key));
                refused(range.next().expect("an error comes first").map(drop));
                assert!(range.next().is_none());
            }
        }
    }
}

// ── transactions ───────────────────────────────────────────────────────────────────────────────────────────────────

fn options(script: &mut Script<'_>) -> TxOptions {
    let isolation = match script.byte() % 3 {
        0 => Isolation::Snapshot,
        1 => Isolation::Serializable,
        _ => Isolation::ReadCommitted,
    };
    let durability = if script.byte().is_multiple_of(3) { Durability::Full } else { Durability::Relaxed };
    // Nobody holds what this thread waits for, so even no limit ends.
    let lock_timeout = [Duration::ZERO, Duration::from_millis(1), Duration::MAX][usize::from(script.byte() % 3)];
    TxOptions { isolation, durability, lock_timeout }
}

/// One call of a transaction; `models` are what it sees. `false`: it can't go on.
#[allow(clippy::too_many_lines, reason = "one arm a call")]
fn statement(
    tx: &mut Transaction,
    keyspaces: &[Keyspace],
    models: &mut Models,
    savepoints: &mut Vec<(Savepoint, Models)>,
    script: &mut Script<'_>,
) -> bool {
    let which = usize::from(script.byte() % 2);
    let (k, key) = (&keyspaces[which], key(script));
    let may = is_crowded;
    let is_it = |models: &Models, found: Option<drumlin::Value>| {
        assert_eq!(found.as_deref(), models[which].get(&key).map(Vec::as_slice));
    };
    let put = |models: &mut Models, done: Option<()>, value: Vec<u8>| {
        if done.is_some() {
            models[which].insert(key.clone(), value);
        }
        done.is_some()
    };
    match script.byte() % 20 {
        0 => {
            checked(call!("Transaction::get", tx.get(k, &key)), may).into_iter().for_each(|found| is_it(models, found));
        }
        1 => {
            let found = checked(block_on(call!("Transaction::get_async", tx.get_async(k, &key))), may);
            found.into_iter().for_each(|found| is_it(models, found));
        }
        2 => drop(poll_some(tx.get_async(k, &key), fate(script))),
        3 => {
            let found = checked(call!("Transaction::get_for_update", tx.get_for_update(k, &key)), may);
            found.into_iter().for_each(|found| is_it(models, found));
        }
        4 => {
            let found = call!("Transaction::get_for_update_async", tx.get_for_update_async(k, &key));
            drop(poll_some(found, fate(script)));
        }
        5 | 6 => {
            let value = value(script);
            let done = checked(call!("Transaction::insert", tx.insert(k, &key, &value)), may);
            return put(models, done, value);
        }
        7 => {
            let value = value(script);
            let done = checked(block_on(call!("Transaction::insert_async", tx.insert_async(k, &key, &value))), may);
            return put(models, done, value);
        }
        8 => {
            // Of a transaction that goes on, an insert that was dropped is there or not.
            let value = value(script);
            if poll_some(tx.insert_async(k, &key, &value), fate(script)).is_none() {
                let Some(found) = checked(tx.get(k, &key), may) else { return false };
                assert!(found.as_deref() == models[which].get(&key).map(Vec::as_slice), "a dropped insert is there");
                return true;
            }
            let Some(found) = checked(tx.get(k, &key), may) else { return false };
            match found {
                Some(found) => drop(models[which].insert(key.clone(), found.to_vec())),
                None => drop(models[which].remove(&key)),
            }
        }
        9 => {
            let value = value(script);
            let end = if script.byte().is_multiple_of(4) { End::Fails } else { End::Whole };
            let may = |error: &Error| is_crowded(error) || end == End::Fails && matches!(error, Error::Source { .. });
            let stored = match script.byte() % 2 {
                0 => call!("Transaction::insert_from", tx.insert_from(k, &key, Source::new(&value, end))),
                _ => {
                    let source = Source::new(&value, end);
                    block_on(call!("Transaction::insert_from_async", tx.insert_from_async(k, &key, source)))
                }
            };
            let done = checked(stored, may).map(drop);
            put(models, done, value);
        }
        10 => panics(|| drop(tx.insert_from(k, &key, Source::new(&[1; 100_000], End::Panics)))),
        11 => {
            if checked(call!("Transaction::remove", tx.remove(k, &key)), may).is_some() {
                models[which].remove(&key);
            }
        }
        12 => {
            if checked(block_on(call!("Transaction::remove_async", tx.remove_async(k, &key))), may).is_some() {
                models[which].remove(&key);
            }
        }
        13 => {
            let bounds = bounds(script);
            let expected = within(&models[which], &bounds);
            walk(call!("Transaction::range", tx.range(k, bounds.clone())), &expected, may, script);
            let counts = [
                call!("Transaction::count", tx.count(k, bounds.clone())),
                block_on(call!("Transaction::count_async", tx.count_async(k, bounds.clone()))),
            ];
            let counts = counts.into_iter().filter_map(|count| checked(count, may));
            counts.for_each(|count| assert_eq!(count, expected.len() as u64));
        }
        14 => {
            let rows: Vec<_> = models[which].iter().filter(|(key, _)| key.starts_with(b"p")).collect();
            walk(call!("Transaction::prefix", tx.prefix(k, "p")), &rows, may, script);
            walk(call!("Transaction::iter", tx.iter(k)), &models[which].iter().collect::<Vec<_>>(), may, script);
        }
        15 => {
            if let Some(reader) = checked(call!("Transaction::read", tx.read(k, &key)), may) {
                read_value(reader, models[which].get(&key), script);
            }
        }
        16 => {
            let reader = block_on(call!("Transaction::read_async", tx.read_async(k, &key)));
            if let Some(reader) = checked(reader, may) {
                read_value_async(reader, models[which].get(&key), script);
            }
        }
        17 | 18 => savepoints.push((call!("Transaction::savepoint", tx.savepoint()), models.clone())),
        _ => {
            if let Some((savepoint, kept)) = savepoints.pop() {
                must(call!("Transaction::rollback_to", tx.rollback_to(savepoint)));
                *models = kept;
            }
        }
    }
    true
}

impl Side {
    fn transaction(&mut self, other: &Side, script: &mut Script<'_>) {
        self.settle();
        let options = options(script);
        let mut tx = must(call!("Database::begin_with", self.db.begin_with(options)));
        let mut models = self.models.clone();
        let mut savepoints = Vec::new();
        let mut foreign = must(call!("Database::begin", other.db.begin()));
        let foreign_savepoint = foreign.savepoint();
        for _ in 0..script.byte() % 24 {
            if !statement(&mut tx, &self.keyspaces, &mut models, &mut savepoints, script) {
                break;
            }
            match script.byte() % 16 {
                0 => refused(tx.rollback_to(foreign_savepoint)),
                1 => refused(tx.insert(&other.keyspaces[0], "k", "v")),
                2 => refused(block_on(tx.count_async(&other.keyspaces[0], ..))),
                3 => refused(tx.iter(&other.keyspaces[0]).next_back().expect("an error comes first").map(drop)),
                4 => refused(block_on(tx.get_for_update_async(&other.keyspaces[1], "k")).map(drop)),
                _ => {}
            }
        }
        drop(foreign);
        let may = is_crowded;
        match script.byte() % 8 {
            0 => call!("Transaction::abort", tx.abort()),
            1 => drop(tx),
            2 => {
                let commit = call!("Transaction::commit_async", tx.commit_async());
                let done = poll_some(commit, Fate { leaks: false, ..fate(script) });
                match done.map(|done| checked(done, may)) {
                    Some(Some(_)) => self.models = models,
                    Some(None) => {}
                    None => {
                        self.settle();
                        let is_there = self.holds(&models);
                        assert!(is_there || self.holds(&self.models), "half of a commit");
                        if is_there {
                            self.models = models;
                        }
                    }
                }
            }
            3 => {
                if checked(block_on(tx.commit_async()), may).is_some() {
                    self.models = models;
                }
            }
            _ => {
                if checked(call!("Transaction::commit", tx.commit()), may).is_some() {
                    self.models = models;
                }
            }
        }
        self.check();
    }

    fn holds(&self, models: &Models) -> bool {
        self.keyspaces.iter().zip(models).all(|(keyspace, model)| {
            let rows = keyspace.iter().map(must).map(|(key, value)| (key.to_vec(), value.to_vec()));
            rows.eq(model.iter().map(|(key, value)| (key.clone(), value.clone())))
        })
    }

    /// Two transactions that want the same row, a future that waits and is dropped or leaked.
    fn contention(&mut self, script: &mut Script<'_>) {
        self.settle();
        let k = &self.keyspaces[0];
        let mut holder = must(self.db.begin());
        must(holder.get_for_update(k, "a"));
        must(holder.get_for_update(k, "b"));
        let options = TxOptions { isolation: Isolation::ReadCommitted, ..TxOptions::default() };
        let mut tx = must(self.db.begin_with(options));
        for key in ["a", "b", "a"] {
            assert!(poll_some(tx.get_for_update_async(k, key), fate(script)).is_none(), "a row that is held was got");
        }
        if script.byte().is_multiple_of(2) {
            drop(holder);
            must(tx.insert(k, "a", "contended"));
            must(tx.commit());
            self.models[0].insert(b"a".to_vec(), b"contended".to_vec());
        } else {
            drop(tx);
            drop(holder);
        }
        for key in ["a", "b"] {
            let mut next = must(self.db.begin_with(TxOptions { lock_timeout: Duration::ZERO, ..options }));
            must(next.get_for_update(&self.keyspaces[0], key));
        }
    }

    /// Closures that are run again, and ones that panic.
    fn closures(&mut self, script: &mut Script<'_>) {
        let (db, k) = (&self.db, &self.keyspaces[1]);
        let (again, value) = (usize::from(script.byte() % 4), value(script));
        let conflict = || Error::Conflict { reason: "made up" };
        let mut runs = 0;
        let done = match script.byte() % 4 {
            0 => call!(
                "Database::transact",
                db.transact(|tx| {
                    runs += 1;
                    tx.insert(k, "run", &value)?;
                    if runs <= again { Err(conflict()) } else { Ok(()) }
                })
            ),
            1 => call!(
                "Database::transact_with",
                db.transact_with(options(script), |tx| {
                    runs += 1;
                    tx.insert(k, "run", &value)?;
                    if runs <= again { Err(conflict()) } else { Ok(()) }
                })
            ),
            2 => block_on(call!(
                "Database::transact_async",
                db.transact_async(|tx| {
                    runs += 1;
                    let fails = runs <= again;
                    let (k, value) = (k.clone(), value.clone());
                    Box::pin(async move {
                        tx.insert_async(&k, "run", &value).await?;
                        if fails { Err(Error::Conflict { reason: "made up" }) } else { Ok(()) }
                    })
                })
            )),
            _ => {
                panics(|| {
                    let _ = db.transact(|tx| -> Result<()> {
                        tx.insert(k, "run", "never")?;
                        panic!("{ON_PURPOSE}");
                    });
                });
                panics(|| drop(call!("Database::check_with", db.check_with(|_| panic!("{ON_PURPOSE}")))));
                return;
            }
        };
        if checked(done, is_crowded).is_some() {
            assert_eq!(runs, again + 1);
            self.models[1].insert(b"run".to_vec(), value);
        }
    }

    /// Threads that write rows of their own and read those of all.
    fn threads(&mut self) {
        let k = &self.keyspaces[0];
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    for row in 0..12u8 {
                        must(k.insert_with([b't', thread, row], [row; 30], Durability::Relaxed));
                        assert!(
                            k.iter()
                                .map(must)
                                .all(|(key, value)| key.len() != 3 || key[0] != b't' || *value == [key[2]; 30])
                        );
                    }
                });
            }
        });
        for (thread, row) in (0..4u8).flat_map(|thread| (0..12u8).map(move |row| (thread, row))) {
            self.models[0].insert(vec![b't', thread, row], vec![row; 30]);
        }
    }

    // ── the whole ──────────────────────────────────────────────────────────────────────────────────────────────────

    fn upkeep(&mut self, script: &mut Script<'_>) {
        let db = &self.db;
        let undamaged = |report: drumlin::CheckReport| assert!(report.damage.is_empty(), "{:?}", report.damage);
        match script.byte() % 12 {
            0 => drop(must(call!("Database::checkpoint", db.checkpoint()))),
            1 => drop(must(block_on(call!("Database::checkpoint_async", db.checkpoint_async())))),
            2 => drop(must(call!("Database::compact", db.compact()))),
            3 => drop(must(block_on(call!("Database::compact_async", db.compact_async())))),
            4 => undamaged(must(call!("Database::check", db.check()))),
            5 => undamaged(must(block_on(call!("Database::check_async", db.check_async())))),
            6 => drop(poll_some(db.checkpoint_async(), fate(script))),
            7 => {
                let stats = call!("Database::stats", db.stats());
                assert!(stats.memory_used_bytes <= stats.memory_budget_bytes, "{stats:?}");
                assert!(stats.failed.is_none() && stats.visible <= stats.durable.max(stats.visible));
                let _ = format!("{:?} {db:?}", call!("Database::opening", db.opening()));
                assert_eq!(call!("Database::keyspaces", db.keyspaces()).len(), 2);
                assert_eq!(call!("Keyspace::name", self.keyspaces[0].name()), NAMES[0]);
                assert_eq!(call!("Keyspace::key_bytes_max", self.keyspaces[0].key_bytes_max()), 128);
            }
            8 => {
                let which = usize::from(script.byte() % 2);
                if script.byte().is_multiple_of(2) {
                    must(call!("Database::drop_keyspace", db.drop_keyspace(NAMES[which])));
                } else {
                    must(block_on(call!("Database::drop_keyspace_async", db.drop_keyspace_async(NAMES[which]))));
                }
                let old = &self.keyspaces[which];
                let is_dropped = |error: &Error| matches!(error, Error::KeyspaceDropped { .. });
                assert!(
                    checked(old.get("k"), is_dropped).is_none() && checked(old.insert("k", "v"), is_dropped).is_none()
                );
                let is_missing = |error: &Error| matches!(error, Error::NoSuchKeyspace { .. });
                let missing = call!("Database::existing_keyspace", db.existing_keyspace(NAMES[which]));
                assert!(checked(missing, is_missing).is_none());
                self.keyspaces[which] =
                    must(block_on(call!("Database::keyspace_async", db.keyspace_async(NAMES[which]))));
                self.models[which].clear();
            }
            9 => {
                let page_bytes = [0, 1, 511, 513, 1 << 17, usize::MAX][usize::from(script.byte()) % 6];
                let options = call!("KeyspaceOptions::new", KeyspaceOptions::new());
                let options = call!("KeyspaceOptions::page_bytes", options.page_bytes(page_bytes));
                let is_invalid = |error: &Error| matches!(error, Error::Invalid(_));
                assert!(
                    checked(call!("Database::keyspace_with", db.keyspace_with("odd", options)), is_invalid).is_none()
                );
                let odd = call!("Database::keyspace_with_async", db.keyspace_with_async("odd", options));
                assert!(checked(block_on(odd), is_invalid).is_none());
                for name in ["", &"n".repeat(256), &"n".repeat(100_000)] {
                    assert!(checked(db.keyspace(name), is_invalid).is_none());
                }
            }
            _ => self.check(),
        }
    }

    /// Handles go in some order; while one is left, the folder is locked.
    fn reopen(&mut self, script: &mut Script<'_>) {
        self.settle();
        let config = self.config.clone();
        let (old_db, keyspaces) = (self.db.clone(), std::mem::take(&mut self.keyspaces));
        let snapshots = std::mem::take(&mut self.snapshots);
        let closed = match script.byte() % 4 {
            0 => call!("Database::close", old_db.close()),
            1 => block_on(call!("Database::close_async", old_db.close_async())),
            2 => {
                let (first, second) = (self.db.clone(), old_db);
                std::thread::scope(|scope| {
                    let first = scope.spawn(|| first.close());
                    must(second.close());
                    first.join().expect("closing does not panic")
                })
            }
            _ => {
                drop(old_db);
                Ok(())
            }
        };
        must(closed);
        let mut held: Vec<Box<dyn Send>> = vec![Box::new(keyspaces), Box::new(snapshots)];
        // Whoever waits for the last handle to go finds the database in use until then.
        held.rotate_left(usize::from(script.byte() % 2));
        let range = held.pop();
        drop(held);
        let is_locked = |error: &Error| matches!(error, Error::Locked { .. });
        assert!(checked(config.open("/db"), is_locked).is_none(), "it was opened twice");
        let placeholder = must(call!("Config::in_memory", Config::in_memory()).memory(BUDGET_BYTES).open(""));
        drop(std::mem::replace(&mut self.db, placeholder));
        drop(range);
        let is_task = script.byte().is_multiple_of(2);
        let open = || match is_task {
            false => config.open("/db"),
            true => block_on(call!("Config::open_async", config.open_async("/db"))),
        };
        // What a dropped future had begun, a checkpoint, ends before the last handle goes.
        let begun = std::time::Instant::now();
        let mut opened = open();
        while opened.as_ref().is_err_and(is_locked) && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
            opened = open();
        }
        self.db = must(opened);
        self.keyspaces = NAMES.map(|name| must(self.db.existing_keyspace(name))).into();
        self.check();
    }
}

/// Settings at and beyond their limits: an error that says so, or a database.
fn settings(script: &mut Script<'_>) {
    let mut one = |choices: &[u64]| choices[usize::from(script.byte()) % choices.len()];
    let page_bytes = one(&[0, 1, 511, 512, 4096, 65_536, 131_072, u64::MAX]) as usize;
    let streams = one(&[0, 1, 2, 64, 65, 65_535]) as u16;
    let mut config = Config::in_memory().memory(BUDGET_BYTES).segment_bytes(256 << 10).log_segment_bytes(1 << 20);
    match one(&[0, 1, 2, 3, 4, 5, 6]) {
        0 => config = config.memory(one(&[0, 1, (8 << 20) - 1, 8 << 20, (1 << 40) + 1, u64::MAX])),
        1 => config = config.page_bytes(page_bytes),
        2 => config = config.segment_bytes(one(&[0, 1, 4096, 256 << 10, 1 << 20, 1 << 63, u64::MAX])),
        3 => config = config.log_segment_bytes(one(&[0, 1, 4096, 1 << 20, (1 << 20) + 1, u64::MAX])),
        4 => config = call!("Config::log_streams", config.log_streams(streams)),
        5 => config = call!("Config::checkpoint_log_bytes", config.checkpoint_log_bytes(one(&[0, 1, u64::MAX]))),
        _ => {
            let config = call!("Config::io_backend", Config::new().io_backend(IoBackend::Portable));
            let config = call!("Config::create", config.create(false));
            let missing = |error: &Error| matches!(error, Error::NotADatabase { .. } | Error::Invalid(_));
            assert!(checked(config.open("/nowhere/at/all"), missing).is_none());
            assert!(checked(call!("Database::open", Database::open("")), missing).is_none());
            assert!(checked(block_on(call!("Database::open_async", Database::open_async(""))), missing).is_none());
            return;
        }
    }
    let may = |error: &Error| matches!(error, Error::Invalid(_) | Error::BudgetTooSmall { .. });
    if let Some(db) = checked(config.open(""), may) {
        let k = must(db.keyspace("k"));
        must(k.insert("a", "b"));
        must(db.close());
    }
}

/// Does what the bytes say.
///
/// # Panics
/// If a call answers otherwise than it should.
pub fn run(bytes: &[u8]) {
    let mut script = Script(bytes);
    let [mut one, mut other] = [Side::new(), Side::new()];
    while script.has_more() {
        if script.byte().is_multiple_of(4) {
            std::mem::swap(&mut one, &mut other);
        }
        let which = usize::from(script.byte() % 2);
        match script.byte() % 32 {
            0 => one.reopen(&mut script),
            1 => settings(&mut script),
            2 => one.threads(),
            3 => one.contention(&mut script),
            4..6 => one.closures(&mut script),
            6..9 => one.upkeep(&mut script),
            9..12 => one.look_back(&other.keyspaces[which], &mut script),
            12..18 => one.transaction(&other, &mut script),
            18..24 => one.read(which, &mut script),
            _ => one.write(which, &mut script),
        }
    }
    one.check();
    other.check();
    // What is never dropped does not keep the database from being closed.
    std::mem::forget((must(one.db.begin()), one.db.snapshot(), one.keyspaces[0].iter()));
    must(one.db.clone().close());
    let _ = call!("Error::recourse", Error::Invalid(String::new()).recourse());
    let _ = call!("Error::is_conflict", Error::Invalid(String::new()).is_conflict());
}
