//! Bulk loads into keyspaces that have rows: every kind of read sees the loaded rows before those of the keyspace,
//! while they are folded into it and afterwards; snapshots from before the load don't; and a kill at any moment leaves
//! all of a load or nothing.

use crate::support;

use std::ops::Bound;

use drumlin::{
    Config, Database, Durability, Error, Isolation, Keyspace, LockMode, Reader, Snapshot, Transaction, TxOptions,
};
use drumlin_io::testing::sim::{self, Disk, Loss, Medium};
use support::{Model, Random, number, small, some_value};

pub(crate) fn config(disk: &Disk) -> Config {
    small().page_bytes(512).checkpoint_log_bytes(1 << 30).backend(disk.backend())
}

pub(crate) fn load(db: &Database, name: &str, rows: &Model) -> drumlin::Result<()> {
    let mut load = db.bulk_load(name)?;
    rows.iter().try_for_each(|(key, value)| load.insert(key, value))?;
    assert_eq!(load.finish()?.rows, rows.len() as u64);
    Ok(())
}

pub(crate) fn key(number: u64) -> Vec<u8> {
    match number % 3 {
        0 => format!("{number:05}").into_bytes(),
        1 => format!("{number:05}/with a longer key").into_bytes(),
        _ => format!("{number:05}/with a key that is as long as keys usually are").into_bytes(),
    }
}

/// Returns up to about `count` rows, with keys from a random part of those below `end`.
pub(crate) fn some_rows(random: &mut Random, end: u64, count: u64) -> Model {
    let width = 1 + random.below(end);
    let start = random.below(end);
    (0..1 + random.below(count))
        .map(|_| {
            let value = if random.one_in(100) {
                some_value(random)
            } else {
                vec![random.below(256) as u8; random.below(90) as usize]
            };
            (key((start + random.below(width)) % end), value)
        })
        .collect()
}

pub(crate) fn owned(row: drumlin::Result<(drumlin::Value, drumlin::Value)>) -> (Vec<u8>, Vec<u8>) {
    row.map(|(key, value)| (key.into_vec(), value.into_vec())).unwrap()
}

/// Checks that a reader sees exactly these rows: by scans in both directions, a count, gets, and random ranges.
pub(crate) fn compare(reader: &Reader, keyspace: &Keyspace, rows: &Model, random: &mut Random, place: &str) {
    let cloned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
    assert!(reader.iter(keyspace).map(owned).eq(rows.iter().map(cloned)), "{place}: forward");
    assert!(reader.iter(keyspace).rev().map(owned).eq(rows.iter().rev().map(cloned)), "{place}: backward");
    assert_eq!(reader.count(keyspace, ..).unwrap(), rows.len() as u64, "{place}: count");
    let mut keys = Vec::new();
    for _ in 0..40 {
        let key = key(random.below(1100));
        assert_eq!(reader.get(keyspace, &key).unwrap().as_deref(), rows.get(&key).map(|value| &value[..]), "{place}");
        keys.push(key);
    }
    let many = reader.get_many(keyspace, &keys).unwrap();
    for (key, value) in keys.iter().zip(many) {
        assert_eq!(value.as_deref(), rows.get(key).map(|value| &value[..]), "{place}: many");
    }
    for _ in 0..3 {
        let [mut lower, mut upper] = [0; 2].map(|_| key(random.below(1100)));
        if lower > upper {
            std::mem::swap(&mut lower, &mut upper);
        }
        let bounds = (
            if random.one_in(2) { Bound::Included(lower.clone()) } else { Bound::Excluded(lower.clone()) },
            if random.one_in(2) || lower == upper { Bound::Included(upper) } else { Bound::Excluded(upper) },
        );
        let expected: Vec<_> = rows.range::<Vec<u8>, _>(bounds.clone()).map(cloned).collect();
        let found = reader.range(keyspace, bounds.clone());
        let mut from_both = (Vec::new(), Vec::new());
        let mut found = found.map(owned);
        loop {
            let (next, to) =
                if random.one_in(2) { (found.next(), &mut from_both.0) } else { (found.next_back(), &mut from_both.1) };
            let Some(row) = next else { break };
            to.push(row);
        }
        from_both.0.extend(from_both.1.into_iter().rev());
        assert_eq!(from_both.0.len(), expected.len(), "{place}: {bounds:?}");
        assert!(from_both.0 == expected, "{place}: {bounds:?}");
        assert_eq!(reader.count(keyspace, bounds).unwrap(), expected.len() as u64, "{place}");
    }
}

/// A snapshot, and the rows that it sees.
pub(crate) type Seen = (Snapshot, Model);

/// Closes the database, or turns its disk off. Returns the disk as a power cut leaves it.
pub(crate) fn end_life(
    disk: &Disk,
    (db, keyspace): (Database, Keyspace),
    is_closed: bool,
    random: &mut Random,
    seed: u64,
) -> Disk {
    if is_closed {
        db.clone().close().unwrap();
    } else {
        disk.turn_off();
    }
    drop((db, keyspace));
    let medium = disk.medium().cut(Loss::ALL[random.below(4) as usize], &mut sim::Random(seed));
    Disk::new(medium, random.next())
}

/// Loads, commits, snapshots, checkpoints, reopenings and power cuts in random order.
#[test]
fn loads_into_keyspaces_with_rows_are_like_other_commits() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 12) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let mut db = config(&disk).open("/db").unwrap();
        let mut keyspace = db.keyspace("k").unwrap();
        let mut rows = Model::new();
        let mut seen: Vec<Seen> = Vec::new();
        for step in 0..60 {
            let place = format!("seed {seed}, step {step}");
            match random.below(12) {
                0..3 => {
                    if random.one_in(2) && seen.len() < 3 {
                        seen.push((db.snapshot(), rows.clone()));
                    }
                    let loaded = some_rows(&mut random, 1000, 300);
                    load(&db, "k", &loaded).unwrap_or_else(|error| panic!("{place}: {error}"));
                    rows.extend(loaded);
                }
                3..6 => {
                    for _ in 0..random.below(120) {
                        let key = key(random.below(1000));
                        if random.one_in(6) {
                            keyspace.remove(&key).unwrap();
                            rows.remove(&key);
                        } else {
                            let value = vec![random.below(256) as u8; random.below(80) as usize];
                            keyspace.insert_with(&key, &value, Durability::Relaxed).unwrap();
                            rows.insert(key, value);
                        }
                    }
                    db.sync().unwrap();
                }
                6 => {
                    let mut tx = db.begin().unwrap();
                    let changes = some_rows(&mut random, 1000, 100);
                    for (key, value) in &changes {
                        if random.one_in(4) {
                            tx.remove(&keyspace, key).unwrap();
                            rows.remove(key);
                        } else {
                            tx.insert(&keyspace, key, value).unwrap();
                            rows.insert(key.clone(), value.clone());
                        }
                    }
                    compare(&tx, &keyspace, &rows, &mut random, &place);
                    tx.commit().unwrap();
                }
                7 => {
                    let popped = keyspace.pop_first().unwrap().map(|(key, _)| key.into_vec());
                    assert_eq!(popped, rows.pop_first().map(|(key, _)| key), "{place}");
                    let popped = keyspace.pop_last().unwrap().map(|(key, _)| key.into_vec());
                    assert_eq!(popped, rows.pop_last().map(|(key, _)| key), "{place}");
                }
                8 => drop(db.checkpoint().unwrap()),
                9 if !seen.is_empty() => drop(seen.swap_remove(random.below(seen.len() as u64) as usize)),
                10 => {
                    seen.clear();
                    disk = end_life(&disk, (db, keyspace), random.one_in(2), &mut random, seed);
                    db = config(&disk).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
                    keyspace = db.keyspace("k").unwrap();
                }
                _ => {
                    let report = db.check().unwrap();
                    assert!(report.corruption.is_empty(), "{place}: {report:#?}");
                }
            }
            if random.one_in(6) {
                compare(&db.snapshot(), &keyspace, &rows, &mut random, &place);
            }
            if let Some((snapshot, rows)) = seen.get(random.below(6) as usize) {
                compare(snapshot, &keyspace, rows, &mut random, &place);
            }
        }
        seen.clear();
        compare(&db.snapshot(), &keyspace, &rows, &mut random, "the end");
    }
}

/// A database with a keyspace of 300 rows.
pub(crate) fn filled(disk: &Disk) -> (Database, Keyspace, Model) {
    let db = config(disk).open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let rows: Model = (0..300).map(|number| (key(number), vec![1; 40])).collect();
    rows.iter().for_each(|(key, value)| keyspace.insert_with(key, value, Durability::Relaxed).unwrap());
    db.sync().unwrap();
    (db, keyspace, rows)
}

/// If a load is attached before a transaction commits, the transaction conflicts with it exactly if it has locked or
/// read one of the loaded rows.
#[test]
fn a_load_conflicts_with_those_who_use_its_rows() {
    for is_folded in [false, true] {
        let disk = Disk::new(Medium::default(), 1);
        let (db, keyspace, _) = filled(&disk);
        let loaded: Model = (100..200).step_by(2).map(|number| (key(number), vec![2; 30])).collect();
        let begin = |isolation| db.begin_with(TxOptions { isolation, ..db.tx_options() }).unwrap();
        let is_conflict = |result: drumlin::Result<drumlin::Timestamp>| match result {
            Ok(_) => false,
            Err(Error::Conflict { .. }) => true,
            Err(other) => panic!("{other:?}"),
        };
        let mut writes = begin(Isolation::Snapshot);
        writes.insert(&keyspace, key(110), "").unwrap();
        let mut writes_another = begin(Isolation::Snapshot);
        writes_another.insert(&keyspace, key(111), "").unwrap();
        let mut reads = begin(Isolation::Serializable);
        assert!(reads.get(&keyspace, key(120)).unwrap().is_some());
        reads.insert(&keyspace, key(1), "").unwrap();
        let mut scans = begin(Isolation::Serializable);
        assert_eq!(scans.range(&keyspace, key(130)..key(133)).count(), 3);
        scans.insert(&keyspace, key(3), "").unwrap();
        let mut scans_others = begin(Isolation::Serializable);
        assert_eq!(scans_others.range(&keyspace, key(210)..key(220)).count(), 10);
        assert!(scans_others.get(&keyspace, key(121)).unwrap().is_some());
        scans_others.insert(&keyspace, key(5), "").unwrap();
        let mut locks = begin(Isolation::ReadCommitted);
        assert!(locks.get_for_update(&keyspace, key(140)).unwrap().is_some());
        locks.insert(&keyspace, key(140), "").unwrap();
        load(&db, "k", &loaded).unwrap();
        let mut late = begin(Isolation::Snapshot);
        late.insert(&keyspace, key(160), "late").unwrap();
        late.commit().unwrap();
        if is_folded {
            // A commit folds the leaves that it changes, even if snapshots are older.
            for number in 100..200 {
                keyspace.insert([&key(number)[..], b"x"].concat(), "").unwrap();
                keyspace.remove([&key(number)[..], b"x"].concat()).unwrap();
            }
        }
        assert!(is_conflict(writes.commit()), "folded {is_folded}: a write");
        assert!(!is_conflict(writes_another.commit()), "folded {is_folded}: a write of another row");
        assert!(is_conflict(reads.commit()), "folded {is_folded}: a read");
        assert!(is_conflict(scans.commit()), "folded {is_folded}: a scan");
        assert!(is_conflict(locks.commit()), "folded {is_folded}: a lock");
        let is_disturbed = is_conflict(scans_others.commit());
        assert!(!is_disturbed, "folded {is_folded}: reads of other rows");
        let updated = keyspace.update(key(180), |was| {
            load(&db, "k", &loaded).unwrap();
            was.map(|was| [was, b"!"].concat())
        });
        assert!(matches!(updated, Err(Error::Conflict { .. })), "folded {is_folded}: {updated:?}");
        assert_eq!(keyspace.get(key(180)).unwrap().unwrap(), [2; 30]);
    }
}

/// A transaction conflicts with a load or a large batch that changes a row that it has locked, although it has not
/// changed this row itself: its changes may depend on it. A transaction that changes nothing does not conflict.
#[test]
fn rows_that_are_only_locked_are_not_overtaken() {
    let locks: [fn(&mut Transaction, &Keyspace); 4] = [
        |tx, k| assert!(tx.get_for_update(k, key(110)).unwrap().is_some()),
        |tx, k| assert!(tx.get_for_share(k, key(110)).unwrap().is_some()),
        |tx, k| tx.lock_row(k, key(110), LockMode::Exclusive).unwrap(),
        |tx, k| assert!(!tx.insert_if_absent(k, key(110), "").unwrap()),
    ];
    let rows: Model = (100..200).step_by(2).map(|number| (key(number), vec![2; 30])).collect();
    for isolation in [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable] {
        for (index, lock) in locks.iter().enumerate() {
            for ending in ["commit", "spilled", "prepare", "range"] {
                if ending == "spilled" && isolation == Isolation::Serializable {
                    continue;
                }
                let is_load = index % 2 == 0;
                let place = format!("{isolation:?}, lock {index}, {ending}");
                let (db, keyspace, _) = filled(&Disk::new(Medium::default(), 1));
                let other = db.keyspace("other").unwrap();
                let begin = || db.begin_with(TxOptions { isolation, ..db.tx_options() }).unwrap();
                let (mut tx, mut reader) = (begin(), begin());
                lock(&mut tx, &keyspace);
                assert!(reader.get_for_update(&keyspace, key(112)).unwrap().is_some());
                match ending {
                    "spilled" => fill(|row| tx.insert(&other, row, [1; 100])),
                    "range" => tx.remove_range(&other, .."z").unwrap(),
                    _ => tx.insert(&other, "a", "depends on the row").unwrap(),
                }
                if is_load {
                    load(&db, "k", &rows).unwrap();
                } else {
                    let (mut batch, filler) = (db.batch().unwrap(), db.keyspace("filler").unwrap());
                    rows.iter().for_each(|(key, value)| batch.insert(&keyspace, key, value).unwrap());
                    // A batch does not lock the rows that it has spilled.
                    fill(|row| batch.insert(&filler, row, [1; 100]));
                    batch.commit().unwrap();
                }
                let ended = match ending {
                    "prepare" => tx.prepare("id").map(drop),
                    _ => tx.commit().map(drop),
                };
                assert!(matches!(ended, Err(Error::Conflict { .. })), "{place}: {ended:?}");
                assert!(other.is_empty().unwrap() && db.prepared().unwrap().is_empty(), "{place}");
                reader.commit().unwrap();
            }
        }
    }
}

/// Changes enough rows for a transaction or batch to be spilled.
fn fill(mut change: impl FnMut([u8; 4]) -> drumlin::Result<()>) {
    (0..3000u32).for_each(|row| change(row.to_be_bytes()).unwrap());
}

/// A transaction whose rows are in a load that is attached before it is prepared conflicts with it. One that is
/// prepared already replaces the rows of the load, as its commit is later. A load waits until a ready commit has ended.
#[test]
fn loads_and_prepared_transactions_follow_each_other() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, mut rows) = filled(&disk);
    let loaded: Model = (100..200).step_by(2).map(|number| (key(number), vec![2; 30])).collect();
    let begin = |number: u64| {
        let mut tx = db.begin().unwrap();
        tx.insert(&keyspace, key(number), "prepared").unwrap();
        tx
    };
    let (overtaken, of_another) = (begin(110), begin(111));
    begin(120).prepare("replaces").unwrap();
    load(&db, "k", &loaded).unwrap();
    assert!(matches!(overtaken.prepare("overtaken"), Err(Error::Conflict { .. })));
    of_another.prepare("of another").unwrap();
    begin(140).prepare("ready").unwrap();
    let ready = db.ready_prepared("ready").unwrap();
    let (finishing, is_finishing) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (db, loaded) = (&db, &loaded);
        let loading = scope.spawn(move || {
            let mut load = db.bulk_load("k").unwrap();
            loaded.iter().for_each(|(key, value)| load.insert(key, value).unwrap());
            finishing.send(()).unwrap();
            load.finish().unwrap();
        });
        is_finishing.recv().unwrap();
        // Checks take long enough for the load to be attached, if it did not wait.
        (0..300)
            .take_while(|_| !loading.is_finished())
            .for_each(|_| assert!(db.check().unwrap().corruption.is_empty()));
        assert!(!loading.is_finished(), "a load was attached while a commit was ready");
        ready.commit().unwrap();
        loading.join().unwrap();
    });
    rows.extend(loaded);
    for (id, number) in [("replaces", 120), ("of another", 111)] {
        db.commit_prepared(id).unwrap();
        rows.insert(key(number), b"prepared".to_vec());
    }
    compare(&db.snapshot(), &keyspace, &rows, &mut Random(1), "after all of them");
}

/// Rows of runs count in estimates, folded or not.
#[test]
fn runs_count_in_estimates() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, mut rows) = filled(&disk);
    let snapshot = db.snapshot();
    for round in 0..3u64 {
        let loaded: Model = (0..1500).map(|number| (key(300 + 3 * number + round), vec![3; 50])).collect();
        load(&db, "k", &loaded).unwrap();
        rows.extend(loaded);
    }
    let compare = |place: &str| {
        for (lower, upper) in [(0, 99_999), (500, 4000), (2000, 2500), (7000, 8000)] {
            let range = key(lower)..key(upper);
            let count = rows.range(range.clone()).count() as u64;
            let estimate = keyspace.estimate(range).unwrap();
            assert!((count / 2..=2 * count + 40).contains(&estimate), "{place}: {estimate} rows instead of {count}");
        }
    };
    compare("above the tree");
    drop(snapshot);
    (0..3000).for_each(|number| keyspace.insert(key(2 * number), "folded").unwrap());
    compare("folded");
}

/// Keyspaces are cleared, dropped, closed and opened, also for reading only, with rows in runs.
#[test]
fn runs_that_are_not_folded_are_kept() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, mut rows) = filled(&disk);
    let snapshot = db.snapshot();
    for round in 0..3 {
        let loaded: Model = (round * 50..500).step_by(3).map(|number| (key(number), vec![round as u8; 30])).collect();
        load(&db, "k", &loaded).unwrap();
        rows.extend(loaded);
    }
    let mut random = Random(1);
    compare(&db.snapshot(), &keyspace, &rows, &mut random, "before closing");
    // The snapshot keeps the runs from being folded.
    db.close().unwrap();
    drop((keyspace, snapshot));
    let db = config(&disk).read_only(true).open("/db").unwrap();
    compare(&db.snapshot(), &db.existing_keyspace("k").unwrap(), &rows, &mut random, "read only");
    let report = db.check().unwrap();
    assert_eq!((report.corruption.len(), report.rows), (0, rows.len() as u64), "{report:#?}");
    drop(db);
    assert!(config(&disk).examine("/db").unwrap().corruption.is_empty());
    let db = config(&disk).open("/db").unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let snapshot = db.snapshot();
    compare(&db.snapshot(), &keyspace, &rows, &mut random, "reopened");
    load(&db, "k", &rows).unwrap();
    keyspace.clear().unwrap();
    assert_eq!(keyspace.iter().count(), 0);
    compare(&snapshot, &keyspace, &rows, &mut random, "before the keyspace was cleared");
    keyspace.insert("a", "1").unwrap();
    load(&db, "k", &rows).unwrap();
    db.drop_keyspace("k").unwrap();
    drop(snapshot);
    db.checkpoint().unwrap();
    assert!(db.check().unwrap().corruption.is_empty());
    let live_bytes = db.stats().live_bytes;
    assert!(live_bytes < 64 << 10, "{live_bytes} bytes are left of a dropped keyspace");
}

/// Once the last snapshot from before a load is closed, the load is folded in the background, and its pages are freed.
#[test]
fn a_run_is_folded_in_the_background() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, mut rows) = filled(&disk);
    let loaded: Model = (0..4000).map(|number| (key(number * 2), vec![3; 50])).collect();
    load(&db, "k", &loaded).unwrap();
    rows.extend(loaded);
    let mut pages = Vec::new();
    while pages.len() < 500
        && !(pages.len() > 20 && pages[pages.len() - 10..].iter().all(|count| count == pages.last().unwrap()))
    {
        pages.push(db.keyspaces()[0].page_count);
        // A check takes long enough for the background to go on.
        assert!(db.check().unwrap().corruption.is_empty());
    }
    db.checkpoint().unwrap();
    compare(&db.snapshot(), &keyspace, &rows, &mut Random(2), "folded");
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{report:#?}");
    let bytes: usize = rows.iter().map(|(key, value)| key.len() + value.len() + 12).sum();
    assert!(db.stats().live_bytes < 2 * bytes as u64, "{} bytes for {bytes}", db.stats().live_bytes);
}

/// A power cut after any write or sync leaves all of a load into a keyspace with rows or nothing of it, and every
/// acknowledged commit. The cuts fall into the load, into later commits, and into the fold.
#[test]
fn a_power_cut_leaves_all_of_a_run_or_nothing() {
    let disk = Disk::new(Medium::default(), 7);
    disk.record();
    let (db, keyspace, before) = filled(&disk);
    db.checkpoint().unwrap();
    let began = disk.change_count();
    let mut loaded: Model = (0..700).map(|number| (key(number * 2), vec![3; 50])).collect();
    loaded.insert(key(77), Random(2).bytes(100_000));
    load(&db, "k", &loaded).unwrap();
    let attached = disk.change_count();
    keyspace.insert(key(10), "changed").unwrap();
    keyspace.remove(key(600)).unwrap();
    let changed = disk.change_count();
    db.checkpoint().unwrap();
    (0..30).for_each(|_| assert!(db.check().unwrap().corruption.is_empty()));
    db.checkpoint().unwrap();
    disk.turn_off();
    let changes = disk.recorded();
    let after: Model = before.iter().chain(&loaded).map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut medium = Medium::default();
    let mut random = Random(number("DRUMLIN_TEST_SEED", 5));
    for moment in 1..=changes.len() as u64 {
        medium.apply(&changes[moment as usize - 1]);
        if moment < began || moment % 3 != 0 && moment > attached {
            continue;
        }
        let loss = Loss::ALL[random.below(4) as usize];
        let cut = Disk::new(medium.cut(loss, &mut sim::Random(random.next())), 1);
        let place = format!("after {moment} of {} changes", changes.len());
        let db = config(&cut).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
        let keyspace = db.keyspace("k").unwrap();
        let is_loaded = keyspace.get(key(1398)).unwrap().is_some();
        assert!(is_loaded || moment < attached, "{place}: an acknowledged load is missing");
        let mut expected = if is_loaded { after.clone() } else { before.clone() };
        if keyspace.get(key(10)).unwrap().unwrap() == b"changed"[..] {
            expected.insert(key(10), b"changed".to_vec());
        }
        if is_loaded && keyspace.get(key(600)).unwrap().is_none() {
            expected.remove(&key(600));
        }
        assert!(moment < changed || expected[&key(10)] == b"changed", "{place}: an acknowledged commit is missing");
        assert!(moment < changed || !expected.contains_key(&key(600)), "{place}: an acknowledged removal is missing");
        compare(&db.snapshot(), &keyspace, &expected, &mut random, &place);
        db.checkpoint().unwrap();
        let report = db.check().unwrap();
        assert!(report.corruption.is_empty(), "{place}: {report:#?}");
    }
}
