//! Tests every engine of the build on small data. All engines must return the same answers, and a quick run must
//! measure each of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use drumlin_bench::engine::{Durability, Engine, Key, Order, Peer, Row, Session, Settings};
use drumlin_bench::results::Results;
use drumlin_bench::rows::{AllRows, fill, key, version};
use drumlin_bench::{engines, logs, report};
use drumlin_testing::Random;

const ROWS: u64 = 2000;
const VALUE_BYTES: usize = 100;

fn open(peer: &Peer, folder: &Path, durability: Durability) -> Box<dyn Engine> {
    let settings = Settings { memory_bytes: 32 << 20, durability, threads: 2, two_phases: false };
    (peer.open)(folder, &settings).unwrap_or_else(|error| panic!("{}: {error}", peer.name))
}

fn get(session: &mut dyn Session, key: Key) -> Option<Vec<u8>> {
    let mut found = None;
    let exists = session.get(key, &mut |value| found = Some(value.to_vec())).unwrap();
    assert_eq!(exists, found.is_some());
    found
}

/// Makes random writes of all kinds to an engine, and applies the same changes to the model.
fn change(session: &mut dyn Session, model: &mut BTreeMap<Key, Vec<u8>>) {
    let mut random = Random(7);
    for round in 1..300u64 {
        let number = random.below(ROWS + 100);
        let count = 1 + random.below(5);
        if random.chance(50) && model.contains_key(&key(number)) {
            let mut next = Vec::new();
            session
                .update(key(number), &mut |value| {
                    let found = version(value, number, VALUE_BYTES).expect("the row's own value");
                    fill(&mut next, number, found + 1, VALUE_BYTES);
                    next.clone()
                })
                .unwrap();
            model.insert(key(number), next);
        } else {
            let rows: Vec<Row> = (number..number + count)
                .map(|number| {
                    let mut value = Vec::new();
                    fill(&mut value, number, round, VALUE_BYTES);
                    (key(number), value)
                })
                .collect();
            session.write(&rows).unwrap();
            model.extend(rows);
        }
    }
}

/// Compares the results of all read methods with the model.
fn compare(name: &str, session: &mut dyn Session, model: &BTreeMap<Key, Vec<u8>>) {
    for number in (0..ROWS + 120).step_by(7) {
        assert_eq!(get(session, key(number)).as_ref(), model.get(&key(number)), "{name}: row {number}");
    }
    let keys: Vec<Key> = (0..64).map(|index| key(index * 71 % (ROWS + 120))).collect();
    let mut many = BTreeMap::new();
    let found = session.get_many(&keys, &mut |index, value| drop(many.insert(index, value.to_vec()))).unwrap();
    let expected: BTreeMap<usize, Vec<u8>> =
        keys.iter().enumerate().filter_map(|(index, key)| Some((index, model.get(key)?.clone()))).collect();
    assert!(many == expected && found == expected.len(), "{name}: get_many");
    for (first, limit) in [(0, u64::MAX), (17, 100), (ROWS - 3, 10), (ROWS + 1000, 5)] {
        let mut rows = Vec::new();
        let count = session.scan(key(first), limit, &mut |key, value| rows.push((key.to_vec(), value.to_vec())));
        let expected: Vec<(Vec<u8>, Vec<u8>)> = model
            .range(key(first)..)
            .take(usize::try_from(limit).unwrap_or(usize::MAX))
            .map(|(key, value)| (key.to_vec(), value.clone()))
            .collect();
        assert_eq!(count.unwrap(), expected.len() as u64, "{name}: rows from {first}");
        assert!(rows == expected, "{name}: scan from {first}");
        let end = key(first.saturating_add(limit.min(1000)));
        let counted = model.range(key(first)..end).count() as u64;
        assert_eq!(session.count(key(first), end).unwrap(), counted, "{name}: count from {first}");
    }
}

/// Loads, updates and batches produce the same rows in every engine, before and after reopening.
#[test]
fn all_engines_give_the_same_answers() {
    for peer in engines::all().into_iter().filter(|peer| !peer.capabilities.inserts_only) {
        for (order, durability) in [(Order::Random, Durability::Relaxed), (Order::Sorted, Durability::Full)] {
            let folder = tempfile::tempdir().unwrap();
            let mut model = BTreeMap::new();
            for number in 0..ROWS {
                let mut value = Vec::new();
                fill(&mut value, number, 0, VALUE_BYTES);
                model.insert(key(number), value);
            }
            let engine = open(&peer, folder.path(), Durability::Relaxed);
            engine.bulk_load(&mut AllRows::new(ROWS, VALUE_BYTES, order), order).unwrap();
            compare(peer.name, &mut *engine.session().unwrap(), &model);
            engine.sync().unwrap();
            engine.settle().unwrap();
            engine.close().unwrap();
            let engine = open(&peer, folder.path(), durability);
            change(&mut *engine.session().unwrap(), &mut model);
            compare(peer.name, &mut *engine.session().unwrap(), &model);
            engine.close().unwrap();
            let engine = open(&peer, folder.path(), Durability::Relaxed);
            compare(peer.name, &mut *engine.session().unwrap(), &model);
            engine.close().unwrap();
        }
    }
}

/// A backup that is made again into the same folder restores the rows of the second time.
#[test]
fn backups_restore_the_rows() {
    for peer in engines::all() {
        let Some(restore) = peer.restore else { continue };
        let [folder, backups, restored] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let engine = open(&peer, folder.path(), Durability::Relaxed);
        let mut model = BTreeMap::new();
        change(&mut *engine.session().unwrap(), &mut model);
        engine.backups().unwrap().back_up(backups.path()).unwrap();
        let mut session = engine.session().unwrap();
        let added: Vec<Row> = (0..ROWS).step_by(3).map(|number| (key(number), vec![7; VALUE_BYTES])).collect();
        session.write(&added).unwrap();
        model.extend(added);
        engine.backups().unwrap().back_up(backups.path()).unwrap();
        session.write(&[(key(1), vec![8; VALUE_BYTES])]).unwrap();
        drop(session);
        engine.close().unwrap();
        restore(backups.path(), restored.path()).unwrap();
        let engine = open(&peer, restored.path(), Durability::Relaxed);
        compare(peer.name, &mut *engine.session().unwrap(), &model);
        engine.close().unwrap();
    }
}

/// Engines that support only the insert workload retain their rows when reopened.
#[test]
fn engines_that_insert_keep_their_rows() {
    for peer in engines::all().into_iter().filter(|peer| peer.capabilities.inserts_only) {
        let folder = tempfile::tempdir().unwrap();
        let engine = open(&peer, folder.path(), Durability::Full);
        let mut value = Vec::new();
        for number in 0..20 {
            fill(&mut value, number, 0, 1024);
            engine.session().unwrap().write(&[(key(number), value.clone())]).unwrap();
        }
        engine.close().unwrap();
        let engine = open(&peer, folder.path(), Durability::Full);
        assert_eq!(get(&mut *engine.session().unwrap(), key(19)), Some(value), "{}", peer.name);
        engine.close().unwrap();
    }
}

/// Every store of logs returns the entries that were appended and not purged, also after it was closed.
#[test]
fn log_stores_keep_what_was_appended() {
    for peer in logs::all() {
        let folder = tempfile::tempdir().unwrap();
        let open = || (peer.open)(folder.path(), 3, 8 << 20).unwrap_or_else(|error| panic!("{}: {error}", peer.name));
        let store = open();
        let entry = |log: u64, index: u64| format!("entry {index} of log {log}").into_bytes();
        for first in (0..300).step_by(3) {
            for log in 0..3 {
                let entries: Vec<Vec<u8>> = (first..first + 3).map(|index| entry(log, index)).collect();
                if log == 0 {
                    store.append_relaxed(log, first, &entries).unwrap();
                } else {
                    store.append(log, first, &entries).unwrap()().unwrap();
                }
            }
        }
        store.sync().unwrap();
        if peer.reads {
            store.purge(1, 99).unwrap();
        }
        store.close().unwrap();
        let store = open();
        for (log, from) in [(0, 0), (1, 100), (2, 0)].into_iter().filter(|_| peer.reads) {
            let mut next = from;
            let see = &mut |index: u64, found: &[u8]| {
                assert_eq!((index, found), (next, &entry(log, next)[..]), "{}, log {log}", peer.name);
                next += 1;
            };
            assert_eq!(store.read(log, from, 300, see).unwrap(), 300 - from, "{}", peer.name);
        }
        store.close().unwrap();
    }
}

/// A quick run of the program measures each kind of workload with every engine, and verifies the values that it reads.
/// The report names all engines.
#[test]
fn a_quick_run_measures_every_engine() {
    // Avoid the system's temporary folder: it may be in memory, where no write is durable.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let json = folder.path().join("results.json");
    let workloads = [
        "get-memory-2",
        "many-100-256",
        "many-1k-32",
        "commit-8",
        "load-sorted-100",
        "bulk-random-100",
        "ycsb-a",
        "ycsb-d",
        "ycsb-e",
        "ycsb-f",
        "scan-1k-updated",
        "half-1k",
        "count-50k",
        "open-closed",
        "open-killed",
        "backup",
        "kept-snapshots",
        "feed",
        "logs",
        "raft",
        "insert-1k",
        "commerce-small-balanced",
        "commerce-medium-writes-4",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_drumlin-bench"))
        .arg("run")
        .args(workloads)
        .args(["--quick", "--markdown"])
        .arg(folder.path().join("results.md"))
        .arg("--folder")
        .arg(folder.path())
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let results = Results::read(&json).unwrap();
    let prefix = |name: &str| workloads.iter().any(|workload| name.starts_with(workload));
    assert!(results.workloads.len() >= workloads.len() && results.workloads.iter().all(|found| prefix(&found.name)));
    for workload in &results.workloads {
        for entry in &workload.entries {
            let is_known = entry.failure.as_deref().is_some_and(|why| why.contains("cannot"));
            assert!(is_known || entry.failure.is_none(), "{} {}: {:?}", workload.name, entry.engine, entry.failure);
            assert!(is_known || entry.turns[0].figures.rate > 0.0, "{} {}", workload.name, entry.engine);
        }
    }
    let markdown = std::fs::read_to_string(folder.path().join("results.md")).unwrap();
    let page = report::html(&results);
    for peer in engines::all() {
        assert!(markdown.contains(peer.name) && page.contains(peer.name), "{} is missing", peer.name);
    }
    assert!(!page.contains("<script") && !page.contains("http"), "the page needs something else");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "only the results are left: {left:?}");
}
