//! Resident memory stays within the budget under any workload.
//!
//! Each test runs in a separate process, whose anonymous memory (`RssAnon`) is sampled every millisecond. Apart from
//! the memory of the test itself, it may grow by at most the budget and an allowance ([`allowance_bytes`]).
#![cfg(target_os = "linux")]

use crate::support;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drumlin::{
    Config, Database, Durability, Error, Isolation, Keyspace, KeyspaceOptions, ReduceError, Reducer, Snapshot,
    Transaction, TxOptions,
};
use support::{Folder, Random, copy_folder, number};

const MIB: u64 = 1 << 20;

/// Returns `true` under a sanitizer (`scripts/sanitize`), which needs additional memory and time.
fn is_sanitized() -> bool {
    std::env::var_os("DRUMLIN_TEST_SANITIZED").is_some()
}

/// Returns the number of bytes that a process may use in addition to the budget: for the stacks of the database's dozen
/// threads, for free memory that the allocator retains between used parts (a sixteenth), and for handles, whose memory
/// counts as the program's. A sanitizer stores data about every byte, so under a sanitizer only the database's own
/// figure is checked.
fn allowance_bytes(budget: u64) -> u64 {
    if is_sanitized() { u64::MAX / 2 } else { 2 * MIB + budget / 16 }
}

/// Runs a test in a separate process, with one heap for all threads and with large buffers outside of the heap.
/// Otherwise glibc would raise its threshold for large buffers as they are freed, and would retain free memory between
/// them: as much as the budget if that is 8 MiB. These tests are not about memory that the allocator retains.
fn alone(test: &str, body: impl FnOnce()) {
    support::alone(test, &[("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "65536")], body);
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("a kernel since 4.5");
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Returns the largest anonymous mappings, which help to find the cause of an excess.
fn largest_mappings() -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found: Vec<(u64, String)> = Vec::new();
    let mut name = String::new();
    for line in maps.lines() {
        match line.strip_prefix("Anonymous:") {
            Some(rest) => {
                found.push((rest.split_ascii_whitespace().next().unwrap().parse().unwrap(), name.clone()));
            }
            None if line.contains('-') && !line.contains("kB") => line.clone_into(&mut name),
            None => {}
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    let lines = found.iter().take(8).map(|(kib, name)| format!("{:.1} MiB of {name}", *kib as f64 / 1024.0));
    lines.collect::<Vec<_>>().join("\n")
}

/// Samples the resident memory, and the part of it that belongs to the test.
struct Meter {
    budget: u64,
    before: u64,
    worst: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Meter {
    fn new(budget: u64) -> Meter {
        let (worst, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, ends) = (Arc::clone(&worst), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                seen.fetch_max(resident_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Meter { budget, before: resident_bytes(), worst, stop, thread: Some(thread) }
    }

    /// Checks that the peak resident memory and the database's own figure are within the budget.
    fn check(mut self, db: &Database, what: &str) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let worst = self.worst.load(Ordering::Relaxed).max(resident_bytes());
        let taken = worst.saturating_sub(self.before);
        let stats = db.stats();
        let parts: Vec<String> = stats
            .memory
            .iter()
            .map(|part| format!("{} {} of {}", part.name, part.used_bytes, part.limit_bytes))
            .collect();
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        println!(
            "{what}: {:.1} MiB at a budget of {:.0} MiB; {:.1} MiB told",
            mib(taken),
            mib(self.budget),
            mib(stats.memory_used_bytes)
        );
        if taken > self.budget + allowance_bytes(self.budget) {
            println!("{}", largest_mappings());
        }
        assert!(stats.memory_used_bytes <= self.budget, "{what}: {parts:?}");
        assert!(
            taken <= self.budget + allowance_bytes(self.budget),
            "{what}: {:.1} MiB resident at a budget of {:.0}, {parts:?}",
            mib(taken),
            mib(self.budget)
        );
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn relaxed() -> TxOptions {
    TxOptions { durability: Durability::Relaxed, ..TxOptions::default() }
}

fn fill(db: &Database, keyspace: &Keyspace, rows: u64, value_bytes: usize) {
    for first in (0..rows).step_by(20) {
        let mut tx = db.begin_with(relaxed()).unwrap();
        for number in first..rows.min(first + 20) {
            tx.insert(keyspace, key(number), Random(number).bytes(value_bytes)).unwrap();
        }
        tx.commit().unwrap();
    }
}

/// Returns `true` for the documented error about memory that is in use. The error recommends a retry.
fn is_refused<T>(result: &Result<T, Error>) -> bool {
    let Err(error @ Error::MemoryInUse { .. }) = result else { return false };
    assert_eq!(error.recourse(), drumlin::Recourse::Retry);
    true
}

/// The memory for the writes of all open transactions is limited as a whole, and the error says so.
#[test]
fn open_transactions_stay_within_the_budget() {
    alone("memory::open_transactions_stay_within_the_budget", || {
        let folder = Folder::new();
        let meter = Meter::new(64 * MIB);
        let db = Config::new().memory(64 * MIB).open(folder.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let mut refused = 0;
        let mut open: Vec<Transaction> = Vec::new();
        for number in 0..150u64 {
            let mut tx = db.begin().unwrap();
            for row in 0..1000u64 {
                match tx.insert(&keyspace, key(number << 32 | row), vec![1; 2000]) {
                    Err(Error::TransactionTooLarge { .. }) => break,
                    result if is_refused(&result) => {
                        refused += 1;
                        break;
                    }
                    result => result.unwrap(),
                }
            }
            open.push(tx);
        }
        assert!(refused > 0);
        // The end of a transaction makes room for others.
        open.remove(0).commit().unwrap();
        open.last_mut().unwrap().insert(&keyspace, b"more", vec![1; 2000]).unwrap();
        meter.check(&db, "open transactions");
    });
}

/// The memory for the reads of all open serializable transactions is also limited as a whole.
#[test]
fn serializable_readers_stay_within_the_budget() {
    alone("memory::serializable_readers_stay_within_the_budget", || {
        let folder = Folder::new();
        let meter = Meter::new(32 * MIB);
        let db = Config::new().memory(32 * MIB).open(folder.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let mut open: Vec<Transaction> = Vec::new();
        let mut refused = 0;
        for _ in 0..200 {
            let serializable = TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() };
            let tx = db.begin_with(serializable).unwrap();
            for number in 0..10_000u64 {
                let result = tx.get(&keyspace, key(number * 7));
                if is_refused(&result) {
                    refused += 1;
                    break;
                }
                result.unwrap();
            }
            open.push(tx);
        }
        assert!(refused > 0);
        meter.check(&db, "serializable readers");
    });
}

/// Versions count at their full size, even if no snapshot needs them. With large pages, the version of one row can be
/// as large as a whole small page.
#[test]
fn versions_stay_within_the_budget() {
    alone("memory::versions_stay_within_the_budget", || {
        for (budget, with_snapshot) in [(16 * MIB, false), (64 * MIB, true)] {
            let folder = Folder::new();
            let meter = Meter::new(budget);
            let db = Config::new().memory(budget).page_bytes(64 << 10).open(folder.path()).unwrap();
            let keyspace = db.keyspace("k").unwrap();
            fill(&db, &keyspace, 40, 15_000);
            let mut snapshots: Vec<Snapshot> = Vec::new();
            for number in 0..6000u64 {
                if with_snapshot && number % 1000 == 0 {
                    snapshots.push(db.snapshot());
                }
                let value = Random(number).bytes(15_000);
                keyspace.insert_with(key(number % 40), value, Durability::Relaxed).unwrap();
                let stats = db.stats();
                assert!(stats.version_bytes <= budget / 32 * 3, "{} of versions at {budget}", stats.version_bytes);
            }
            meter.check(&db, "versions");
        }
    });
}

/// Frames of every size have headers, which count towards the budget.
#[test]
fn headers_of_all_page_sizes_stay_within_the_budget() {
    alone("memory::headers_of_all_page_sizes_stay_within_the_budget", || {
        let folder = Folder::new();
        let meter = Meter::new(48 * MIB);
        let db = Config::new().memory(48 * MIB).open(folder.path()).unwrap();
        for shift in 9..=16 {
            let options = KeyspaceOptions::new().page_bytes(1 << shift);
            let keyspace = db.keyspace_with(&format!("{shift}"), options).unwrap();
            fill(&db, &keyspace, (8 * MIB) >> 7, 100);
        }
        meter.check(&db, "pages of all sizes");
    });
}

/// Commits of many leaves make progress even if the memory is too small for all threads together, because a commit
/// reserves all its memory in advance.
#[test]
fn commits_of_many_leaves_do_not_starve_each_other() {
    alone("memory::commits_of_many_leaves_do_not_starve_each_other", || {
        const THREADS: u64 = 8;
        let folder = Folder::new();
        let meter = Meter::new(8 * MIB);
        let db = Config::new().memory(8 * MIB).page_bytes(64 << 10).open(folder.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        fill(&db, &keyspace, 12_000, 1000);
        let ends = Instant::now() + Duration::from_secs(number("DRUMLIN_TEST_SECONDS", 3));
        let commit_all = |thread: u64| {
            let mut random = Random(thread);
            let (mut count, mut longest) = (0, Duration::ZERO);
            while Instant::now() < ends {
                let began = Instant::now();
                let mut tx = db.begin().unwrap();
                for row in 0..16 {
                    // Each thread uses different rows, so that no thread waits for a row.
                    let row_key = key((random.below(750) + row * 750) / THREADS * THREADS + thread);
                    tx.insert(&keyspace, row_key, random.bytes(1000)).unwrap();
                }
                tx.commit().unwrap_or_else(|error| panic!("after {:?}: {error}", began.elapsed()));
                count += 1;
                longest = longest.max(began.elapsed());
            }
            (count, longest)
        };
        let counts: Vec<(u64, Duration)> = std::thread::scope(|scope| {
            let commit_all = &commit_all;
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || commit_all(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(counts.iter().all(|(count, _)| *count > 1), "{counts:?}");
        meter.check(&db, "commits of many leaves");
    });
}

/// Makes random calls until a deadline: open transactions, serializable readers, snapshots, rows of all sizes, dropped
/// futures, scans.
fn work(db: &Database, keyspaces: &[Keyspace], seed: u64, ends: Instant) {
    let mut random = Random(seed);
    let mut open: Vec<Transaction> = Vec::new();
    let mut snapshots: Vec<Snapshot> = Vec::new();
    while Instant::now() < ends {
        let keyspace = &keyspaces[random.below(keyspaces.len() as u64) as usize];
        let row = key(random.below(20_000));
        let length = match random.below(200) {
            0 => 300_000,
            1..10 => 20_000,
            10..60 => 2000,
            _ => 100,
        };
        // Memory in use is a temporary condition. A transaction that is too large ends.
        let done = match random.below(12) {
            0..3 => keyspace.insert_with(row, random.bytes(length), Durability::Relaxed),
            3 => keyspace.remove(row),
            4 => {
                let isolation = if random.chance(50) { Isolation::Serializable } else { Isolation::ReadCommitted };
                open.extend(db.begin_with(TxOptions {
                    isolation,
                    lock_timeout: Duration::ZERO,
                    ..TxOptions::default()
                }));
                Ok(())
            }
            5..8 if !open.is_empty() => {
                let at = random.below(open.len() as u64) as usize;
                let tx = &mut open[at];
                let done = (0..random.below(300)).try_for_each(|_| {
                    // Use only rows of this thread, because a plain write would wait for the row of an open
                    // transaction.
                    let row = key(1 << 40 | random.below(20_000));
                    tx.get(keyspace, key(random.below(20_000)))?;
                    tx.insert(keyspace, row, random.bytes(100))
                });
                if done.is_err() || random.chance(20) {
                    let _ = open.swap_remove(at).commit();
                }
                done
            }
            8 => {
                snapshots.push(db.snapshot());
                Ok(())
            }
            9 => {
                let waker = std::task::Waker::noop();
                let mut insert = std::pin::pin!(keyspace.insert_async(row, random.bytes(length)));
                let _ = insert.as_mut().poll(&mut std::task::Context::from_waker(waker));
                Ok(())
            }
            10 => keyspace.range(row.to_vec()..).take(200).try_for_each(|row| row.map(drop)),
            _ => keyspace.get(row).map(drop),
        };
        match done {
            Ok(()) => {}
            Err(
                Error::MemoryInUse { .. }
                | Error::TransactionTooLarge { .. }
                | Error::SnapshotTooOld { .. }
                | Error::Conflict { .. }
                | Error::LockTimeout { .. },
            ) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
        if open.len() > 20 {
            open.swap_remove(0);
        }
        if snapshots.len() > 20 {
            snapshots.swap_remove(0);
        }
    }
}

/// Several threads make random calls, with budgets and page sizes drawn from seeds.
#[test]
fn random_work_stays_within_the_budget() {
    alone("memory::random_work_stays_within_the_budget", || {
        let first = number("DRUMLIN_TEST_SEED", 0);
        for seed in first..first + number("DRUMLIN_TEST_SEEDS", 2) {
            let mut random = Random(seed);
            let budget = [16, 32, 64][random.below(3) as usize] * MIB;
            let folder = Folder::new();
            let meter = Meter::new(budget);
            let db = Config::new().memory(budget).checkpoint_log_bytes(4 << 20).open(folder.path()).unwrap();
            let keyspaces: Vec<Keyspace> = (0..3)
                .map(|number| {
                    let options = KeyspaceOptions::new().page_bytes(1024 << random.below(7));
                    db.keyspace_with(&number.to_string(), options).unwrap()
                })
                .collect();
            let ends = Instant::now() + Duration::from_secs(number("DRUMLIN_TEST_SECONDS", 2));
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (db, keyspaces) = (&db, &keyspaces[..]);
                    scope.spawn(move || work(db, keyspaces, seed * 100 + thread, ends));
                }
            });
            meter.check(&db, &format!("random work of seed {seed}"));
        }
    });
}

/// A source that yields this many random bytes.
struct Source {
    left: usize,
    random: Random,
}

impl std::io::Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(self.left).min(8 << 10);
        buffer[..count].copy_from_slice(&self.random.bytes(count));
        self.left -= count;
        Ok(count)
    }
}

/// If many values are written and read as streams concurrently, the memory for buffered chunks is limited. Writers wait
/// for each other, and each reader buffers a smaller part of its chunk.
#[test]
fn streams_of_values_stay_within_the_budget() {
    // A writer waits at most ten seconds for other writers, however slow they are.
    let streams: u64 = if is_sanitized() { 50 } else { 200 };
    const VALUE_BYTES: usize = 700_000;
    alone("memory::streams_of_values_stay_within_the_budget", || {
        let folder = Folder::new();
        let threads = std::sync::Barrier::new(streams as usize);
        let meter = Meter::new(32 * MIB);
        let db = Config::new().memory(32 * MIB).open(folder.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        std::thread::scope(|scope| {
            for number in 0..streams {
                let (keyspace, threads) = (&keyspace, &threads);
                let body = move || {
                    threads.wait();
                    let source = Source { left: VALUE_BYTES, random: Random(number) };
                    assert_eq!(keyspace.insert_from(key(number), source).unwrap(), VALUE_BYTES as u64);
                };
                scope.spawn(body);
            }
        });
        let mut readers: Vec<_> = (0..streams).map(|number| keyspace.read(key(number)).unwrap().unwrap()).collect();
        let mut expected: Vec<_> = (0..streams).map(Random).collect();
        for round in 0..7 {
            for (reader, expected) in readers.iter_mut().zip(&mut expected) {
                let mut piece = vec![0; 8 << 10];
                std::io::Read::read_exact(reader, &mut piece).unwrap();
                assert!(piece == expected.bytes(8 << 10), "round {round}");
            }
        }
        meter.check(&db, "streams of values");
    });
}

/// A scan with value readers reads a value only on request. Rows of 32 MiB pass through a budget of 8 MiB, forwards and
/// backwards, and so do short rows among them and rows that a transaction wrote.
#[test]
fn rows_of_any_size_stay_within_the_budget() {
    const VALUE_BYTES: usize = 32 << 20;
    alone("memory::rows_of_any_size_stay_within_the_budget", || {
        let folder = Folder::new();
        let meter = Meter::new(8 * MIB);
        let db = Config::new().memory(8 * MIB).open(folder.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        (0..2).for_each(|number| {
            keyspace.insert_from(key(number), Source { left: VALUE_BYTES, random: Random(number) }).unwrap();
        });
        keyspace.insert(key(2), b"short").unwrap();
        let mut tx = db.begin().unwrap();
        tx.insert_from(&keyspace, key(3), Source { left: VALUE_BYTES, random: Random(3) }).unwrap();
        let row = |step: Option<Result<(drumlin::Value, drumlin::ValueReader), Error>>, number: u64| {
            let (found, mut value) = step.unwrap().unwrap();
            assert_eq!(found, key(number));
            if number == 2 {
                return assert_eq!(std::io::read_to_string(value).unwrap(), "short");
            }
            assert_eq!(value.len(), VALUE_BYTES as u64);
            let mut piece = [0; 1000];
            std::io::Read::read_exact(&mut value, &mut piece).unwrap();
            assert!(piece[..] == Random(number).bytes(1000), "row {number}");
        };
        let mut rows = tx.iter(&keyspace).readers();
        row(rows.next_back(), 3);
        (0..3).for_each(|number| row(rows.next(), number));
        assert!(rows.next().is_none() && rows.next_back().is_none());
        drop(tx);
        let mut rows = keyspace.iter().readers();
        (0..3).rev().for_each(|number| row(rows.next_back(), number));
        assert!(rows.next_back().is_none());
        meter.check(&db, "rows as streams");
    });
}

/// A large value returned by a call is in memory only once, even if it is read into a vector: the process uses the
/// budget plus the value.
#[test]
fn a_large_value_is_in_memory_once() {
    const VALUE_BYTES: usize = 64 << 20;
    alone("memory::a_large_value_is_in_memory_once", || {
        let folder = Folder::new();
        let db = Config::new().memory(8 * MIB).open(folder.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        keyspace.insert_from("a", Source { left: VALUE_BYTES, random: Random(1) }).unwrap();
        let calls: [(&str, &dyn Fn() -> drumlin::Value); 5] = [
            ("get", &|| keyspace.get("a").unwrap().unwrap()),
            ("get of a transaction", &|| db.begin().unwrap().get(&keyspace, "a").unwrap().unwrap()),
            ("a scan", &|| keyspace.iter().next().unwrap().unwrap().1),
            ("get_async", &|| smol::block_on(keyspace.get_async("a")).unwrap().unwrap()),
            ("take", &|| keyspace.take("a").unwrap().unwrap()),
        ];
        for (name, call) in calls {
            let mut meter = Meter::new(8 * MIB);
            meter.before += VALUE_BYTES as u64;
            let value = call();
            let bytes = value.into_vec();
            assert!(bytes.len() == VALUE_BYTES && bytes[..1000] == Random(1).bytes(1000), "{name}");
            meter.check(&db, name);
        }
    });
}

/// Open scans of transactions with many writes refer to those writes instead of copying them. Each scan of rows on disk
/// holds at most one leaf.
#[test]
fn open_scans_stay_within_the_budget() {
    alone("memory::open_scans_stay_within_the_budget", || {
        let folder = Folder::new();
        let meter = Meter::new(64 * MIB);
        let db = Config::new().memory(64 * MIB).page_bytes(64 << 10).open(folder.path()).unwrap();
        let (full, empty) = (db.keyspace("full").unwrap(), db.keyspace("empty").unwrap());
        fill(&db, &full, 80_000, 500);
        let (mut transactions, mut open) = (Vec::new(), Vec::new());
        let mut refused = 0;
        for number in 0..150u64 {
            let mut tx = db.begin().unwrap();
            for row in 0..12 {
                tx.insert(&empty, key(number << 32 | row), vec![row as u8; 2000]).unwrap();
            }
            for scan in 0..8 {
                let mut range = if scan < 6 { tx.iter(&empty) } else { tx.range(&full, key(number * 100).to_vec()..) };
                let row = if scan % 2 == 0 { range.next() } else { range.next_back() };
                let row = row.unwrap();
                refused += u64::from(is_refused(&row));
                if let (Ok((first, value)), true) = (&row, scan < 6) {
                    let at = if scan % 2 == 0 { 0 } else { 11 };
                    assert_eq!((&first[..], &value[..]), (&key(number << 32 | at)[..], &vec![at as u8; 2000][..]));
                }
                open.push(range);
            }
            if number % 10 == 0 {
                // A scan continues to use the write set with which it began.
                let before = tx.iter(&empty);
                tx.remove(&empty, key(number << 32)).unwrap();
                let count = tx.count(&empty, ..);
                assert!(is_refused(&count) || count.unwrap() == 11);
                let rows: Result<Vec<_>, Error> = before.collect();
                assert!(is_refused(&rows) || rows.unwrap().len() == 12);
            }
            transactions.push(tx);
        }
        println!("{refused} of {} scans were refused at 64 MiB", open.len());
        assert!(refused < 400, "{refused} of {}", open.len());
        meter.check(&db, "open scans");
    });
}

/// A killed database recovers within the budget from a log of many streams, which are read in parallel, with records of
/// any length, even if it uses fewer streams than before. Examinations and checks also stay within the budget.
#[test]
fn recovery_stays_within_the_budget() {
    const STREAMS: u64 = 16;
    const ROWS: u64 = 12;
    // Use up to 26,000 bytes: nearly the maximum for such a stream, and longer than one read.
    let value = |row: u64| Random(row).bytes(4_000 + 2_000 * (row as usize % ROWS as usize));
    alone("memory::recovery_stays_within_the_budget", || {
        let (folder, killed) = (Folder::new(), Folder::new());
        let before = resident_bytes();
        let config = |streams| {
            let config = Config::new().memory(8 * MIB).log_streams(streams).log_segment_bytes(MIB);
            config.checkpoint_log_bytes(u64::MAX)
        };
        let db = config(STREAMS as u16).open(folder.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let threads = std::sync::Barrier::new(STREAMS as usize);
        std::thread::scope(|scope| {
            for thread in 0..STREAMS {
                let (keyspace, threads) = (&keyspace, &threads);
                scope.spawn(move || {
                    threads.wait();
                    for row in thread * ROWS..(thread + 1) * ROWS {
                        keyspace.insert_with(key(row), value(row), Durability::Relaxed).unwrap();
                    }
                });
            }
        });
        keyspace.insert(key(STREAMS * ROWS), value(STREAMS * ROWS)).unwrap();
        copy_folder(&folder.path(), &killed.path());
        drop((keyspace, db));
        for streams in [1, STREAMS as u16] {
            // The allocator may have retained the memory of the first opening.
            let meter = Meter { before, ..Meter::new(8 * MIB) };
            let examined = config(streams).examine(killed.path()).unwrap();
            assert!(examined.corruption.is_empty(), "{examined:?}");
            let again = Folder::new();
            copy_folder(&killed.path(), &again.path());
            let db = config(streams).open(again.path()).unwrap();
            assert_eq!(db.opening().recovered_records, STREAMS * ROWS + 2, "none is in a checkpoint");
            assert!(db.check().unwrap().corruption.is_empty());
            meter.check(&db, &format!("recovery of {STREAMS} streams with {streams}"));
            let rows = db.existing_keyspace("k").unwrap().iter().map(Result::unwrap);
            let rows = rows.map(|(key, value)| (key.to_vec(), value.to_vec()));
            assert!(rows.eq((0..=STREAMS * ROWS).map(|row| (key(row).to_vec(), value(row)))));
        }
    });
}

/// A transaction has an open scan, and its writes use nearly all the memory that a transaction can have. It can still
/// write, because there is room for a copy of the write set, while the scan retains the old one.
#[test]
fn a_large_transaction_writes_while_its_scan_is_open() {
    for budget in [8 * MIB, 64 * MIB] {
        let db = Config::in_memory().memory(budget).open("").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        // A serializable transaction keeps its changes in memory.
        let options = TxOptions { isolation: Isolation::Serializable, ..db.tx_options() };
        let mut tx = db.begin_with(options).unwrap();
        let mut rows = 0;
        // The vectors of the write set grow by a quarter at a time, so after the last step it has most of the memory
        // that it can have.
        while tx.insert(&keyspace, key(rows), [1; 100]).is_ok() {
            rows += 1;
        }
        let point = tx.savepoint();
        let mut scan = tx.iter(&keyspace);
        assert_eq!(&scan.next().unwrap().unwrap().0[..], key(0));
        tx.rollback_to(point).unwrap();
        tx.remove(&keyspace, key(0)).ok();
        let mut other = db.begin().unwrap();
        other.insert(&keyspace, b"other", b"value").unwrap();
        assert_eq!(scan.count() as u64, rows - 1);
    }
}

/// Any number of plain writes with the longest keys can wait for rows as tasks. Some of them have been granted the row
/// but have not been polled. Writes without memory for their locks wait in turn, and each of them completes.
#[test]
fn plain_writes_that_wait_stay_within_the_budget() {
    const KEY_BYTES: usize = 16_000;
    const ROWS: usize = 4000;
    alone("memory::plain_writes_that_wait_stay_within_the_budget", || {
        let folder = Folder::new();
        // The keys overlap, so that the test itself stores few bytes.
        let bytes = Random(1).bytes(KEY_BYTES + ROWS);
        let key = |row: usize| &bytes[row..row + KEY_BYTES];
        let db = Config::new().memory(8 * MIB).page_bytes(64 << 10).open(folder.path()).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        let mut writes: Vec<_> = (0..ROWS).map(|row| Some(Box::pin(keyspace.insert_async(key(row), b"")))).collect();
        let meter = Meter::new(8 * MIB);
        for (part, waiting) in writes.chunks_mut(10).enumerate() {
            let mut owner = db.begin().unwrap();
            let taken = (0..10).all(|row| owner.get_for_update(&keyspace, key(part * 10 + row)).is_ok());
            for write in waiting {
                assert!(write.as_mut().unwrap().as_mut().poll(&mut context).is_pending() || !taken);
            }
        }
        let parts = db.stats().memory;
        println!("{parts:?}");
        let ends = Instant::now() + Duration::from_secs(60);
        while writes.iter().any(Option::is_some) {
            assert!(Instant::now() < ends, "{} writes still wait", writes.iter().flatten().count());
            for (row, write) in writes.iter_mut().enumerate() {
                let poll = write.as_mut().map(|write| write.as_mut().poll(&mut context));
                match poll {
                    Some(std::task::Poll::Ready(Ok(()))) => *write = None,
                    // On a busy machine, other writes may take longer than the ten seconds for which a write waits.
                    Some(std::task::Poll::Ready(Err(Error::MemoryInUse { .. }))) => {
                        *write = Some(Box::pin(keyspace.insert_async(key(row), b"")));
                    }
                    Some(std::task::Poll::Ready(Err(error))) => panic!("{error}"),
                    Some(std::task::Poll::Pending) | None => {}
                }
            }
        }
        assert_eq!(keyspace.count(..).unwrap(), ROWS as u64);
        meter.check(&db, "plain writes that wait");
    });
}

/// A snapshot's scan, in either direction, returns all rows as of the snapshot, even after most of them have been
/// removed. Few leaves then hold all old versions, and the scan reads these versions in parts.
#[test]
fn a_scan_of_removed_rows_sees_them_all() {
    const ROWS: u64 = 2000;
    let db = Config::in_memory().memory(32 * MIB).open("").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    fill(&db, &keyspace, ROWS, 20);
    let snapshot = db.snapshot();
    for number in 0..ROWS {
        match number % 100 {
            0 => keyspace.insert_with(key(number), b"new", Durability::Relaxed).unwrap(),
            _ => keyspace.remove(key(number)).unwrap(),
        }
        if number % 4 == 0 {
            let between = [&key(number)[..], b"between"].concat();
            keyspace.insert_with(&between, b"new", Durability::Relaxed).unwrap();
            keyspace.remove(&between).unwrap();
        }
    }
    for backward in [false, true] {
        let mut rows: Vec<_> = if backward {
            snapshot.iter(&keyspace).rev().map(Result::unwrap).collect()
        } else {
            snapshot.iter(&keyspace).map(Result::unwrap).collect()
        };
        if backward {
            rows.reverse();
        }
        assert_eq!(rows.len() as u64, ROWS);
        for (number, (found, value)) in (0..).zip(&rows) {
            assert!(found == &key(number) && value == &Random(number).bytes(20), "row {number}");
        }
    }
    let now: Vec<_> = keyspace.iter().map(|row| row.unwrap().0[..].to_vec()).collect();
    assert_eq!(now, (0..ROWS).step_by(100).map(|number| key(number).to_vec()).collect::<Vec<_>>());
}

/// Counts the rows whose values are at or above a limit.
struct NotBelow(u64);

impl Reducer for NotBelow {
    type State = u64;
    type Output = u64;

    fn name(&self) -> Cow<'_, str> {
        format!("rows not below {}", self.0).into()
    }
    fn identity(&self) -> u64 {
        0
    }
    fn row(&self, _key: &[u8], value: &[u8]) -> Result<u64, ReduceError> {
        Ok(u64::from(u64::from(value[0]) >= self.0))
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

/// A program can use reducers under any number of names, as parameterised reducers do. Only a few of them have cached
/// states.
#[test]
fn reducers_of_many_names_stay_within_the_budget() {
    const ROWS: u64 = 2_000;
    alone("memory::reducers_of_many_names_stay_within_the_budget", || {
        let meter = Meter::new(16 * MIB);
        let db = Config::in_memory().memory(16 * MIB).page_bytes(512).open("").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        (0..ROWS).for_each(|row| keyspace.insert(key(row), [row as u8; 60]).unwrap());
        for number in 0..20_000 {
            let lower = if number % 1000 == 0 { 0 } else { ROWS - 2 };
            let found = keyspace.aggregate(&NotBelow(number), key(lower)..).unwrap();
            assert_eq!(found, (lower..ROWS).filter(|row| row % 256 >= number).count() as u64, "{number}");
        }
        meter.check(&db, "reducers of many names");
    });
}

/// Hundreds of tasks request ranks and aggregates while an older snapshot prevents many changes from being folded. None
/// of the tasks copies the list of changes.
#[test]
fn concurrent_seeks_and_aggregates_stay_within_the_budget() {
    const ROWS: u64 = 120_000;
    const CHANGES: u64 = 2_500;
    const CALLS: u64 = 300;
    let long_key = |number: u64| [&key(number)[..], &[b'k'; 100]].concat();
    alone("memory::concurrent_seeks_and_aggregates_stay_within_the_budget", || {
        let mut numbers: Vec<u64> = (0..ROWS).map(|row| row * 2).collect();
        numbers.extend((0..CHANGES).map(|change| change * 2 * (ROWS / CHANGES) + 1));
        numbers.sort_unstable();
        let folder = Folder::new();
        let meter = Meter::new(64 * MIB);
        let db = Config::new().memory(64 * MIB).open(folder.path()).unwrap();
        let mut load = db.bulk_load("k").unwrap();
        (0..ROWS).for_each(|row| load.insert(long_key(row * 2), Random(row).bytes(600)).unwrap());
        load.finish().unwrap();
        let keyspace = db.keyspace("k").unwrap();
        assert_eq!(keyspace.aggregate(&NotBelow(0), ..).unwrap(), ROWS);
        assert_eq!(keyspace.len().unwrap(), ROWS);
        let older = db.snapshot();
        for (count, number) in numbers.iter().filter(|number| *number % 2 == 1).enumerate() {
            keyspace.insert_with(long_key(*number), b"new", Durability::Relaxed).unwrap();
            if count % 200 == 0 {
                // Count regularly, because cached counts are discarded if their list grows without a count.
                assert_eq!(keyspace.len().unwrap(), ROWS + count as u64 + 1);
            }
        }
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut random = Random(1);
        let mut places: Vec<_> = (0..CALLS)
            .map(|_| random.below(ROWS))
            .map(|place| (place, Box::pin(keyspace.nth_async(.., place))))
            .collect();
        let mut sums: Vec<_> = (0..CALLS / 3)
            .map(|_| random.below(ROWS))
            .map(|place| (place, long_key(numbers[place as usize])))
            .map(|(place, from)| (place, Box::pin(keyspace.aggregate_async(&NotBelow(0), from..))))
            .collect();
        places.retain_mut(|(_, call)| call.as_mut().poll(&mut context).is_pending());
        sums.retain_mut(|(_, call)| call.as_mut().poll(&mut context).is_pending());
        println!("{} places and {} aggregates wait", places.len(), sums.len());
        assert!(places.len() as u64 > CALLS / 3 && sums.len() as u64 > CALLS / 9, "pages are in memory");
        for (place, call) in places {
            let (found, _) = smol::block_on(call).unwrap().expect("there are more rows");
            assert_eq!(&found[..], long_key(numbers[place as usize]), "row {place}");
        }
        // Each of these aggregates reads all changed leaves, so a few of them are enough.
        for (place, call) in sums.into_iter().take(5) {
            assert_eq!(smol::block_on(call).unwrap(), numbers.len() as u64 - place, "from row {place} on");
        }
        assert_eq!(older.len(&keyspace).unwrap(), ROWS);
        meter.check(&db, "places and aggregates");
    });
}

/// Sums the lengths of all values.
struct Bytes;

impl Reducer for Bytes {
    type State = u64;
    type Output = u64;

    fn name(&self) -> Cow<'_, str> {
        "bytes".into()
    }
    fn identity(&self) -> u64 {
        0
    }
    fn row(&self, _key: &[u8], value: &[u8]) -> Result<u64, ReduceError> {
        Ok(value.len() as u64)
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

/// Aggregates read values of all lengths on many threads concurrently. Only one long value at a time is in memory. If a
/// reducer needs only the beginning of a value, only that part is in memory.
#[test]
fn aggregates_of_large_values_stay_within_the_budget() {
    const THREADS: u64 = 12;
    const LONG_BYTES: u64 = 6 * MIB;
    alone("memory::aggregates_of_large_values_stay_within_the_budget", || {
        let folder = Folder::new();
        let db = Config::new().memory(16 * MIB).open(folder.path()).unwrap();
        let (mixed, long) = (db.keyspace("mixed").unwrap(), db.keyspace("long").unwrap());
        let lengths: Vec<u64> = (0..120).map(|row| [900, 20_000, 60_000, 150_000, 400_000, 700_000][row % 6]).collect();
        for (row, length) in (0..).zip(&lengths) {
            mixed.insert_with(key(row), Random(row).bytes(*length as usize), Durability::Relaxed).unwrap();
        }
        long.insert_from("film", std::io::Read::take(std::io::repeat(1), 100 << 20)).unwrap();
        db.sync().unwrap();
        let asked = |keyspace: &Keyspace, from: u64| keyspace.aggregate(&Bytes, key(from)..).unwrap();
        let meter = Meter::new(16 * MIB);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (asked, mixed, lengths) = (&asked, &mixed, &lengths[..]);
                scope.spawn(move || {
                    for round in 0..4 {
                        let from = (thread * 4 + round) % 60;
                        assert_eq!(asked(mixed, from), lengths[from as usize..].iter().sum::<u64>(), "from {from} on");
                    }
                });
            }
        });
        let first = drumlin::Sum::of(drumlin::Field::<u64>::big_endian(0));
        assert_eq!(long.aggregate(&first, ..).unwrap(), 0x0101_0101_0101_0101);
        meter.check(&db, "aggregates of large values");

        long.remove("film").unwrap();
        (0..4).for_each(|row| long.insert(key(row), Random(row).bytes(LONG_BYTES as usize)).unwrap());
        let meter = Meter::new(16 * MIB + LONG_BYTES);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (asked, long) = (&asked, &long);
                scope.spawn(move || assert_eq!(asked(long, thread % 4), (4 - thread % 4) * LONG_BYTES));
            }
        });
        meter.check(&db, "aggregates of values longer than their part");
    });
}

/// A large value that a task adds to a bulk load is written directly, and the load holds only one chunk of it.
#[test]
fn large_values_of_tasks_are_loaded_within_the_budget() {
    const VALUE_BYTES: usize = 100 << 20;
    alone("memory::large_values_of_tasks_are_loaded_within_the_budget", || {
        let folder = Folder::new();
        let value = vec![7; VALUE_BYTES];
        let meter = Meter::new(16 * MIB);
        let db = Config::new().memory(16 * MIB).open(folder.path()).unwrap();
        smol::block_on(async {
            let mut load = db.bulk_load_async("k").await.unwrap();
            load.insert_async("b", "small").await.unwrap();
            load.insert_async("c", &value).await.unwrap();
            load.insert_async("a", "small").await.unwrap();
            load.insert_async("d", &value).await.unwrap();
            load.insert_async("c", &value[1..]).await.unwrap();
            assert_eq!(load.finish_async().await.unwrap().rows, 4);
        });
        let keyspace = db.keyspace("k").unwrap();
        let lengths = ["a", "b", "c", "d"].map(|key| keyspace.read(key).unwrap().unwrap().len());
        assert_eq!(lengths, [5, 5, VALUE_BYTES as u64 - 1, VALUE_BYTES as u64]);
        let mut found = keyspace.read("c").unwrap().unwrap();
        let mut piece = vec![0; 1 << 20];
        std::io::Read::read_exact(&mut found, &mut piece).unwrap();
        assert!(piece.iter().all(|byte| *byte == 7));
        meter.check(&db, "large values of tasks");
    });
}

type Workload = fn(&Database);

/// The workloads under which [`allocators`] measures memory.
const WORKLOADS: [(&str, Workload); 4] = [
    ("rows of 100 bytes", |db| fill_and_read(db, 600_000, 100)),
    ("rows of 1 KiB", |db| fill_and_read(db, 120_000, 1 << 10)),
    ("values of 300 KiB from 4 threads", |db| {
        let keyspace = &db.keyspace("k").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for number in 0..300 {
                        let row = key((thread << 32) | (number % 100));
                        keyspace.insert(row, Random(number).bytes(300 << 10)).unwrap();
                        assert_eq!(keyspace.get(row).unwrap().unwrap().len(), 300 << 10);
                    }
                });
            }
        });
    }),
    ("all kinds from 64 threads", |db| {
        let keyspaces: Vec<Keyspace> = (0..3).map(|number| db.keyspace(&number.to_string()).unwrap()).collect();
        let ends = Instant::now() + Duration::from_secs(20);
        std::thread::scope(|scope| {
            for thread in 0..64 {
                let keyspaces = &keyspaces[..];
                scope.spawn(move || work(db, keyspaces, thread, ends));
            }
        });
    }),
];

fn fill_and_read(db: &Database, rows: u64, value_bytes: usize) {
    let keyspace = db.keyspace("k").unwrap();
    fill(db, &keyspace, rows, value_bytes);
    let mut random = Random(1);
    for _ in 0..rows / 4 {
        assert!(keyspace.get(key(random.below(rows))).unwrap().is_some());
    }
}

/// Prints the resident memory next to the figure that `stats` reports, with the default allocator and with two heaps.
/// The difference is the memory that the allocator retains. The test fails only if a workload fails.
#[test]
#[ignore = "a measurement"]
fn allocators() {
    const VARIABLE: &str = "DRUMLIN_TEST_WORKLOAD";
    const BUDGET: u64 = 64 * MIB;
    if let Ok(number) = std::env::var(VARIABLE) {
        let (name, body) = WORKLOADS[number.parse::<usize>().unwrap()];
        let folder = Folder::new();
        let mut meter = Meter::new(BUDGET);
        let db = Config::new().memory(BUDGET).open(folder.path()).unwrap();
        body(&db);
        meter.stop.store(true, Ordering::Relaxed);
        meter.thread.take().unwrap().join().unwrap();
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        println!(
            "{name}: {:.1} MiB resident at most, {:.1} MiB at the end, {:.1} MiB told",
            mib(meter.worst.load(Ordering::Relaxed).saturating_sub(meter.before)),
            mib(resident_bytes().saturating_sub(meter.before)),
            mib(db.stats().memory_used_bytes)
        );
        return;
    }
    for arenas in [None, Some("2")] {
        println!("{}", arenas.map_or("the allocator as it is".to_owned(), |count| format!("MALLOC_ARENA_MAX={count}")));
        for number in 0..WORKLOADS.len() {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command
                .args(["memory::allocators", "--exact", "--nocapture", "--ignored"])
                .env(VARIABLE, number.to_string());
            command.env_remove("MALLOC_ARENA_MAX");
            command.envs(arenas.map(|count| ("MALLOC_ARENA_MAX", count)));
            let output = command.output().unwrap();
            let (output_text, failed) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{failed}");
            output_text.lines().filter(|line| line.contains("MiB")).for_each(|line| println!("  {line}"));
        }
    }
}
