//! Range deletes: every kind of read sees their effect before and after they are folded; snapshots from before them
//! don't; a transaction sees its own; and a kill at any moment leaves all of a commit or nothing.

use crate::runs::{Seen, compare, config, end_life, filled, key, load, owned, some_rows};
use crate::support;

use std::ops::Bound;
use std::sync::mpsc;
use std::time::Duration;

use drumlin::{Durability, Error, Isolation, Savepoint, TxOptions};
use drumlin_io::testing::sim::{self, Disk, Loss, Medium};
use support::{Model, Random, number};

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Returns the bounds of a range: of everything, of one key, of some rows or of many.
fn some_bounds(random: &mut Random) -> Bounds {
    let width = [1, 3, 40, 400, 1000][random.below(5) as usize];
    let lower = random.below(1000);
    let upper = lower + random.below(width);
    let end = |random: &mut Random, key: Vec<u8>| match random.below(8) {
        0 => Bound::Unbounded,
        1..5 => Bound::Included(key),
        _ => Bound::Excluded(key),
    };
    (end(random, key(lower)), end(random, key(upper)))
}

fn remove(rows: &mut Model, (lower, upper): &Bounds) {
    let is_inside = |key: &Vec<u8>| {
        let is_above = match lower {
            Bound::Unbounded => true,
            Bound::Included(lower) => key >= lower,
            Bound::Excluded(lower) => key > lower,
        };
        is_above
            && match upper {
                Bound::Unbounded => true,
                Bound::Included(upper) => key <= upper,
                Bound::Excluded(upper) => key < upper,
            }
    };
    rows.retain(|key, _| !is_inside(key));
}

/// Range deletes, alone and within transactions with savepoints, among loads, commits, snapshots, checkpoints,
/// reopenings and power cuts in random order.
#[test]
fn range_deletes_are_like_other_commits() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 20) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let mut db = config(&disk).open("/db").unwrap();
        let mut keyspace = db.keyspace("k").unwrap();
        let mut rows = Model::new();
        let mut seen: Vec<Seen> = Vec::new();
        for step in 0..80 {
            let place = format!("seed {seed}, step {step}");
            match random.below(13) {
                0 => {
                    let loaded = some_rows(&mut random, 1000, 300);
                    load(&db, "k", &loaded).unwrap_or_else(|error| panic!("{place}: {error}"));
                    rows.extend(loaded);
                }
                1..4 => {
                    for _ in 0..random.below(200) {
                        let key = key(random.below(1000));
                        let value = vec![random.below(256) as u8; random.below(80) as usize];
                        keyspace.insert_with(&key, &value, Durability::Relaxed).unwrap();
                        rows.insert(key, value);
                    }
                    db.sync().unwrap();
                }
                4 | 5 => {
                    if random.one_in(2) && seen.len() < 3 {
                        seen.push((db.snapshot(), rows.clone()));
                    }
                    let bounds = some_bounds(&mut random);
                    keyspace.remove_range(bounds.clone()).unwrap();
                    remove(&mut rows, &bounds);
                }
                6 | 7 => {
                    if random.one_in(2) && seen.len() < 3 {
                        seen.push((db.snapshot(), rows.clone()));
                    }
                    let mut tx = db.begin().unwrap();
                    let before = rows.clone();
                    let mut savepoint: Option<(Savepoint, Model)> = None;
                    for _ in 0..random.below(12) {
                        match random.below(6) {
                            0 => {
                                let bounds = some_bounds(&mut random);
                                tx.remove_range(&keyspace, bounds.clone()).unwrap();
                                remove(&mut rows, &bounds);
                            }
                            1 => {
                                let prefix = format!("{:04}", random.below(100));
                                tx.remove_prefix(&keyspace, &prefix).unwrap();
                                rows.retain(|key, _| !key.starts_with(prefix.as_bytes()));
                            }
                            2 => savepoint = Some((tx.savepoint(), rows.clone())),
                            3 => {
                                if let Some((savepoint, saved)) = savepoint.take() {
                                    tx.rollback_to(savepoint).unwrap();
                                    rows = saved;
                                }
                            }
                            _ => {
                                for (key, value) in some_rows(&mut random, 1000, 30) {
                                    if random.one_in(4) {
                                        tx.remove(&keyspace, &key).unwrap();
                                        rows.remove(&key);
                                    } else {
                                        tx.insert(&keyspace, &key, &value).unwrap();
                                        rows.insert(key, value);
                                    }
                                }
                            }
                        }
                    }
                    compare(&tx, &keyspace, &rows, &mut random, &place);
                    let ends = (tx.first(&keyspace).unwrap(), tx.last(&keyspace).unwrap());
                    let expected = (rows.first_key_value(), rows.last_key_value());
                    let keys = |end: Option<(drumlin::Value, drumlin::Value)>| end.map(|(key, _)| key.into_vec());
                    assert_eq!(keys(ends.0).as_ref(), expected.0.map(|(key, _)| key), "{place}");
                    assert_eq!(keys(ends.1).as_ref(), expected.1.map(|(key, _)| key), "{place}");
                    if random.one_in(5) {
                        tx.abort();
                        rows = before;
                    } else {
                        tx.commit().unwrap();
                    }
                }
                8 => {
                    let mut batch = db.batch().unwrap();
                    let bounds = some_bounds(&mut random);
                    batch.insert(&keyspace, key(500), "lost, or kept").unwrap();
                    rows.insert(key(500), b"lost, or kept".to_vec());
                    batch.remove_range(&keyspace, bounds.clone()).unwrap();
                    remove(&mut rows, &bounds);
                    batch.insert(&keyspace, key(510), "kept").unwrap();
                    rows.insert(key(510), b"kept".to_vec());
                    batch.commit().unwrap();
                }
                9 => drop(db.checkpoint().unwrap()),
                10 if !seen.is_empty() => drop(seen.swap_remove(random.below(seen.len() as u64) as usize)),
                11 => {
                    seen.clear();
                    let is_closed = random.one_in(2);
                    disk = end_life(&disk, (db, keyspace), is_closed, &mut random, seed);
                    if is_closed {
                        let db = config(&disk).read_only(true).open("/db").unwrap();
                        let keyspace = db.existing_keyspace("k").unwrap();
                        compare(&db.snapshot(), &keyspace, &rows, &mut random, &place);
                    }
                    db = config(&disk).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
                    keyspace = db.keyspace("k").unwrap();
                }
                _ => {
                    let report = db.check().unwrap();
                    assert!(report.corruption.is_empty(), "{place}: {report:#?}");
                    assert_eq!(report.rows, rows.len() as u64, "{place}");
                }
            }
            if random.one_in(4) {
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

/// A range delete conflicts exactly with the transactions that use a row of its range.
#[test]
fn range_deletes_conflict_with_those_who_use_their_rows() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, _) = filled(&disk);
    let begin = |isolation| db.begin_with(TxOptions { isolation, ..db.tx_options() }).unwrap();
    let is_conflict = |result: drumlin::Result<drumlin::Timestamp>| match result {
        Ok(_) => false,
        Err(Error::Conflict { .. }) => true,
        Err(other) => panic!("{other:?}"),
    };
    // These transactions begin before the range is removed.
    let mut writes = begin(Isolation::Snapshot);
    let mut writes_another = begin(Isolation::Snapshot);
    writes_another.insert(&keyspace, key(99), "").unwrap();
    let mut reads = begin(Isolation::Serializable);
    assert!(reads.get(&keyspace, key(120)).unwrap().is_some());
    reads.insert(&keyspace, key(1), "").unwrap();
    let mut scans = begin(Isolation::Serializable);
    assert_eq!(scans.range(&keyspace, key(90)..key(103)).count(), 13);
    scans.insert(&keyspace, key(3), "").unwrap();
    let mut scans_others = begin(Isolation::Serializable);
    assert_eq!(scans_others.range(&keyspace, key(210)..key(220)).count(), 10);
    scans_others.insert(&keyspace, key(5), "").unwrap();
    let mut removes_too = begin(Isolation::Snapshot);
    removes_too.remove_range(&keyspace, key(150)..key(160)).unwrap();
    keyspace.remove_range(key(100)..key(200)).unwrap();
    assert!(is_conflict(writes.insert(&keyspace, key(110), "").map(|()| drumlin::Timestamp(0))), "a write");
    assert!(!is_conflict(writes_another.commit()), "a write of another row");
    assert!(is_conflict(reads.commit()), "a read");
    assert!(is_conflict(scans.commit()), "a scan");
    assert!(!is_conflict(scans_others.commit()), "reads of other rows");
    assert!(is_conflict(removes_too.commit()), "a range delete");
    // Another commit changes a row of the range while a transaction that removes the range is open.
    for isolation in [Isolation::Snapshot, Isolation::Serializable, Isolation::ReadCommitted] {
        for is_inside in [false, true] {
            let mut removes = begin(isolation);
            removes.remove_range(&keyspace, key(100)..key(200)).unwrap();
            keyspace.insert(key(if is_inside { 199 } else { 200 }), "since").unwrap();
            let expected = is_inside && isolation != Isolation::ReadCommitted;
            assert_eq!(is_conflict(removes.commit()), expected, "{isolation:?}, inside: {is_inside}");
            assert_eq!(keyspace.contains_key(key(199)).unwrap(), expected, "{isolation:?}");
            keyspace.remove(key(199)).unwrap();
        }
    }
}

/// A range delete waits for a row of its range that another transaction has locked, or fails after the timeout.
#[test]
fn range_deletes_wait_for_locked_rows() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, _) = filled(&disk);
    let mut holder = db.begin().unwrap();
    holder.insert(&keyspace, key(150), "held").unwrap();
    let options = TxOptions { lock_timeout: Duration::ZERO, isolation: Isolation::ReadCommitted, ..db.tx_options() };
    let mut removes = db.begin_with(options).unwrap();
    removes.remove_range(&keyspace, key(100)..key(200)).unwrap();
    assert!(matches!(removes.commit(), Err(Error::LockTimeout { .. })));
    assert!(keyspace.contains_key(key(120)).unwrap());
    let mut beside = db.begin_with(options).unwrap();
    beside.remove_range(&keyspace, key(200)..key(210)).unwrap();
    beside.commit().unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            keyspace.remove_range(key(100)..key(200)).unwrap();
            sender.send(()).unwrap();
        });
        while db.locks().unwrap().iter().all(|lock| lock.waiters.is_empty()) {
            std::thread::yield_now();
        }
        assert!(receiver.try_recv().is_err(), "a locked row was removed");
        holder.commit().unwrap();
        receiver.recv().unwrap();
    });
    assert_eq!(keyspace.range(key(100)..key(200)).count(), 0);
}

/// A range delete waits for the rows of a prepared transaction, which keeps its changes.
#[test]
fn range_deletes_wait_for_prepared_rows() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, _) = filled(&disk);
    let mut tx = db.begin().unwrap();
    tx.insert(&keyspace, key(150), "prepared").unwrap();
    tx.prepare("id").unwrap();
    let options = TxOptions { lock_timeout: Duration::ZERO, isolation: Isolation::ReadCommitted, ..db.tx_options() };
    for _ in 0..2 {
        let mut removes = db.begin_with(options).unwrap();
        removes.remove_range(&keyspace, key(100)..key(200)).unwrap();
        assert!(matches!(removes.commit(), Err(Error::LockTimeout { .. })));
    }
    db.commit_prepared("id").unwrap();
    assert_eq!(keyspace.get(key(150)).unwrap().unwrap(), "prepared");
    keyspace.remove_range(key(100)..key(200)).unwrap();
    assert_eq!(keyspace.range(key(100)..key(200)).count(), 0);
    // An estimate does not wait for a leaf that the background is folding, and guesses instead.
    let is_exact = |_| {
        assert!(db.check().unwrap().corruption.is_empty());
        keyspace.estimate(key(90)..key(210)).unwrap() == 20
    };
    assert!((0..500).any(is_exact), "{} rows are estimated", keyspace.estimate(key(90)..key(210)).unwrap());
}

/// An `update` during which a range is removed conflicts only if the range has its row, whether or not the removal is
/// folded by then.
#[test]
fn range_deletes_do_not_disturb_changes_of_other_rows() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, _) = filled(&disk);
    for is_folded in [false, true] {
        let snapshot = (!is_folded).then(|| db.snapshot());
        let updated = keyspace.update(key(250), |was| {
            keyspace.remove_range(key(100)..key(200)).unwrap();
            // A check takes long enough for the background to go on.
            (0..20).for_each(|_| drop(db.check().unwrap()));
            was.map(|was| [was, b"!"].concat())
        });
        assert!(updated.unwrap().is_some(), "folded: {is_folded}");
        drop(snapshot);
    }
}

/// A call to remove a range that fails leaves the transaction as it was.
#[test]
fn refused_range_deletes_change_nothing() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, rows) = filled(&disk);
    let mut tx = db.begin().unwrap();
    tx.remove_range(&keyspace, key(5)..key(5)).unwrap();
    tx.remove_range(&keyspace, key(6)..key(5)).unwrap();
    assert_eq!(tx.count(&keyspace, ..).unwrap(), rows.len() as u64);
    for number in 0..256 {
        tx.remove_range(&keyspace, key(number)..key(number + 1)).unwrap();
    }
    assert!(matches!(tx.remove_range(&keyspace, ..), Err(Error::Invalid(_))));
    assert!(matches!(tx.prepare("id"), Err(Error::Invalid(_))));
    assert_eq!(keyspace.count(..).unwrap(), rows.len() as u64);
    let mut tx = db.begin().unwrap();
    tx.remove_range(&keyspace, ..key(256)).unwrap();
    tx.commit().unwrap();
    assert_eq!(keyspace.first().unwrap().unwrap().0, key(256));
    let mut dropped = db.begin().unwrap();
    dropped.remove_range(&keyspace, ..).unwrap();
    db.drop_keyspace("k").unwrap();
    assert!(matches!(dropped.commit(), Err(Error::KeyspaceDropped { .. })));
}

/// A removed range is folded in the background, which frees its pages.
#[test]
fn a_removed_range_is_folded_in_the_background() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, _) = filled(&disk);
    let rows: Model = (0..4000).map(|number| (key(number), vec![3; 50])).collect();
    load(&db, "k", &rows).unwrap();
    keyspace.remove_range(key(10)..key(3990)).unwrap();
    let expected: Model = rows.iter().filter(|(at, _)| **at < key(10) || **at >= key(3990)).map(owned_row).collect();
    compare(&db.snapshot(), &keyspace, &expected, &mut Random(1), "before folding");
    let mut rounds = 0;
    while db.keyspaces()[0].page_count > 60 && rounds < 500 {
        // A check takes long enough for the background to go on.
        assert!(db.check().unwrap().corruption.is_empty());
        rounds += 1;
    }
    assert!(rounds < 500, "{} pages are left", db.keyspaces()[0].page_count);
    compare(&db.snapshot(), &keyspace, &expected, &mut Random(1), "folded");
    db.checkpoint().unwrap();
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{report:#?}");
}

fn owned_row((key, value): (&Vec<u8>, &Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    (key.clone(), value.clone())
}

/// Ranges are removed and filled repeatedly while a snapshot keeps the background from folding the removals. Their
/// number stays within its limit.
#[test]
fn many_range_deletes_fold_older_ones() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, before) = filled(&disk);
    let snapshot = db.snapshot();
    for round in 0..100_u64 {
        keyspace.remove_range(key(round)..key(round + 150)).unwrap();
        keyspace.insert(key(round + 100), "again").unwrap();
    }
    let expected: Model = before
        .iter()
        .filter(|(at, _)| **at >= key(249))
        .map(owned_row)
        .chain([(key(199), b"again".to_vec())])
        .collect();
    compare(&db.snapshot(), &keyspace, &expected, &mut Random(1), "now");
    compare(&snapshot, &keyspace, &before, &mut Random(1), "then");
    drop(snapshot);
    assert!(keyspace.iter().map(owned).eq(expected));
}

/// A power cut after any write or sync leaves a prefix of the commits, range deletes included. Some cuts fall into a
/// fold.
#[test]
fn a_power_cut_leaves_all_of_a_range_delete_or_nothing() {
    let disk = Disk::new(Medium::default(), 7);
    disk.record();
    let (db, keyspace, mut rows) = filled(&disk);
    keyspace.insert(key(77), Random(2).bytes(100_000)).unwrap();
    rows.insert(key(77), Random(2).bytes(100_000));
    db.checkpoint().unwrap();
    let mut states = vec![rows.clone()];
    let mut moments = vec![disk.change_count()];
    let mut note = |rows: &Model| {
        states.push(rows.clone());
        moments.push(disk.change_count());
    };
    keyspace.remove_range(key(50)..key(100)).unwrap();
    remove(&mut rows, &(Bound::Included(key(50)), Bound::Excluded(key(100))));
    note(&rows);
    let mut tx = db.begin().unwrap();
    tx.remove_range(&keyspace, key(80)..key(250)).unwrap();
    tx.insert(&keyspace, key(90), "within").unwrap();
    tx.insert(&keyspace, key(260), "beside").unwrap();
    tx.commit().unwrap();
    remove(&mut rows, &(Bound::Included(key(80)), Bound::Excluded(key(250))));
    rows.insert(key(90), b"within".to_vec());
    rows.insert(key(260), b"beside".to_vec());
    note(&rows);
    db.checkpoint().unwrap();
    note(&rows);
    keyspace.insert(key(200), "since").unwrap();
    rows.insert(key(200), b"since".to_vec());
    note(&rows);
    keyspace.remove_prefix("0002").unwrap();
    rows.retain(|key, _| !key.starts_with(b"0002"));
    note(&rows);
    (0..10).for_each(|_| assert!(db.check().unwrap().corruption.is_empty()));
    db.checkpoint().unwrap();
    note(&rows);
    disk.turn_off();
    let changes = disk.recorded();
    let mut medium = Medium::default();
    let mut random = Random(number("DRUMLIN_TEST_SEED", 5));
    for moment in 1..=changes.len() as u64 {
        medium.apply(&changes[moment as usize - 1]);
        if moment < moments[0] {
            continue;
        }
        let loss = Loss::ALL[random.below(4) as usize];
        let cut = Disk::new(medium.cut(loss, &mut sim::Random(random.next())), 1);
        let place = format!("after {moment} of {} changes", changes.len());
        let db = config(&cut).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
        let keyspace = db.keyspace("k").unwrap();
        let found: Model = keyspace.iter().map(owned).collect();
        let acknowledged = moments.iter().take_while(|noted| **noted <= moment).count() - 1;
        assert!(states[acknowledged..].contains(&found), "{place}: no state since the {acknowledged}th");
        compare(&db.snapshot(), &keyspace, &found, &mut random, &place);
        db.checkpoint().unwrap();
        let report = db.check().unwrap();
        assert!(report.corruption.is_empty(), "{place}: {report:#?}");
    }
}

/// A range delete waits until no commit is ready, because the ready commit would have to fold it into a leaf that it
/// changes.
#[test]
fn a_range_delete_waits_for_ready_commits() {
    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace, mut rows) = filled(&disk);
    let snapshot = db.snapshot();
    let mut tx = db.begin().unwrap();
    tx.insert(&keyspace, key(20), "ready").unwrap();
    tx.prepare("t").unwrap();
    let ready = db.ready_prepared("t").unwrap();
    let (removing, is_removing) = mpsc::channel();
    let (at_ready, at_removal) = std::thread::scope(|scope| {
        let removal = scope.spawn(|| {
            let mut tx = db.begin().unwrap();
            tx.remove_range(&keyspace, key(21)..key(22)).unwrap();
            removing.send(()).unwrap();
            tx.commit().unwrap()
        });
        is_removing.recv().unwrap();
        // Checks take long enough for the range to be removed, if that did not wait.
        (0..30).for_each(|_| assert!(db.check().unwrap().corruption.is_empty()));
        (ready.commit().unwrap(), removal.join().unwrap())
    });
    assert!(at_ready < at_removal, "a range was removed while a commit was ready");
    rows.insert(key(20), b"ready".to_vec());
    rows.remove(&key(21));
    compare(&db.snapshot(), &keyspace, &rows, &mut Random(1), "after both");
    drop(snapshot);
}

/// A scan over removed rows reads no leaf in their place, although an older snapshot keeps the rows there. It finds the
/// rows that were put into the range afterwards, from both ends.
#[test]
fn scans_skip_removed_rows() {
    const ROWS: u64 = 20_000;
    let db = support::small().backend(drumlin_io::in_memory()).open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    let rows = (0..ROWS).map(|row| (row.to_be_bytes().to_vec(), vec![7; 100])).collect();
    load(&db, "k", &rows).unwrap();
    let before = db.snapshot();
    k.remove_range(10u64.to_be_bytes()..(ROWS - 10).to_be_bytes()).unwrap();
    let pages = || {
        let stats = db.stats();
        stats.page_hits + stats.page_misses
    };
    let seen = |expected: &[u64]| {
        let used = pages();
        let forward: Vec<u64> = k.keys().map(|key| u64::from_be_bytes(key.unwrap()[..].try_into().unwrap())).collect();
        assert_eq!(forward, expected);
        assert!(k.keys().rev().map(Result::unwrap).eq(expected.iter().rev().map(|row| row.to_be_bytes().to_vec())));
        assert_eq!(k.count(..).unwrap(), expected.len() as u64);
        pages() - used
    };
    let mut expected: Vec<u64> = (0..10).chain(ROWS - 10..ROWS).collect();
    let used = seen(&expected);
    assert!(used < 100, "three scans over {ROWS} removed rows used {used} leaves");
    for row in [15_000u64, 500, 7_777, 500, 15_001] {
        k.insert(row.to_be_bytes(), "new").unwrap();
        expected.push(row);
        expected.sort_unstable();
        expected.dedup();
        let used = seen(&expected);
        assert!(used < 200, "three scans over {ROWS} removed rows used {used} leaves");
    }
    assert_eq!(before.count(&k, ..).unwrap(), ROWS);
    drop(before);
    seen(&expected);
}

/// The fold frees the leaves of a removed range without reading them, unless a row had a value on pages of its own.
/// Rows that were put into the range afterwards stay.
#[test]
fn leaves_of_a_removed_range_are_freed_unread() {
    const ROWS: u64 = 60_000;
    for has_values in [false, true] {
        let disk = Disk::new(Medium::default(), 1);
        let open = || support::small().backend(disk.backend()).open("/db").unwrap();
        let db = open();
        let mut rows: Model = (0..ROWS).map(|row| (row.to_be_bytes().to_vec(), vec![7; 100])).collect();
        if has_values {
            rows.insert(40_000u64.to_be_bytes().to_vec(), vec![8; 5000]);
        }
        load(&db, "k", &rows).unwrap();
        db.close().unwrap();
        let db = open();
        let keyspace = db.keyspace("k").unwrap();
        let (pages, read) = (db.keyspaces()[0].page_count, db.stats().page_misses);
        keyspace.remove_range(10u64.to_be_bytes()..(ROWS - 10).to_be_bytes()).unwrap();
        rows.retain(|row, _| row[..] < 10u64.to_be_bytes()[..] || row[..] >= (ROWS - 10).to_be_bytes()[..]);
        for row in (500..ROWS).step_by(7_000) {
            keyspace.insert(row.to_be_bytes(), "new").unwrap();
            rows.insert(row.to_be_bytes().to_vec(), b"new".to_vec());
        }
        let mut rounds = 0;
        while db.keyspaces()[0].page_count > pages / 20 && rounds < 500 {
            // A check takes long enough for the background to go on.
            assert!(db.check().unwrap().corruption.is_empty());
            rounds += 1;
        }
        assert!(rounds < 500, "{} of {pages} pages are left", db.keyspaces()[0].page_count);
        let read = db.stats().page_misses - read;
        assert_eq!(read < pages / 8, !has_values, "{read} of {pages} pages were read");
        compare(&db.snapshot(), &keyspace, &rows, &mut Random(1), "folded");
        for _ in 0..2 {
            let report = db.check().unwrap();
            assert!(report.corruption.is_empty(), "{report:#?}");
            db.checkpoint().unwrap();
        }
        db.close().unwrap();
        let db = open();
        compare(&db.snapshot(), &db.keyspace("k").unwrap(), &rows, &mut Random(1), "opened again");
    }
}

/// Leaves are unlinked among random puts, snapshots, checkpoints and power cuts, in a keyspace without long values.
#[test]
fn unlinked_leaves_leave_the_rows_around_them() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 12) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let mut db = config(&disk).open("/db").unwrap();
        let mut keyspace = db.keyspace("k").unwrap();
        let mut rows = Model::new();
        let mut snapshot = None;
        for step in 0..60 {
            let place = format!("seed {seed}, step {step}");
            match random.below(8) {
                0..2 => {
                    let first = random.below(3000);
                    let loaded: Model =
                        (first..first + random.below(1500)).map(|row| (key(row), vec![step; 20])).collect();
                    load(&db, "k", &loaded).unwrap();
                    rows.extend(loaded);
                }
                2..4 => {
                    let lower = random.below(3000);
                    let bounds = (Bound::Included(key(lower)), Bound::Excluded(key(lower + random.below(2000))));
                    keyspace.remove_range(bounds.clone()).unwrap();
                    remove(&mut rows, &bounds);
                    for _ in 0..random.below(4) {
                        let row = key(lower + random.below(1000));
                        keyspace.insert_with(&row, [step], Durability::Relaxed).unwrap();
                        rows.insert(row, vec![step]);
                    }
                }
                4 => snapshot = (snapshot.is_none()).then(|| (db.snapshot(), rows.clone())),
                5 => drop(db.checkpoint().unwrap()),
                6 => {
                    // Checks take long enough for the background to go on.
                    (0..random.below(20)).for_each(|_| assert!(db.check().unwrap().corruption.is_empty(), "{place}"));
                }
                _ => {
                    snapshot = None;
                    db.sync().unwrap();
                    disk = end_life(&disk, (db, keyspace), random.one_in(2), &mut random, seed);
                    db = config(&disk).open("/db").unwrap();
                    keyspace = db.keyspace("k").unwrap();
                }
            }
            compare(&db.snapshot(), &keyspace, &rows, &mut random, &place);
            if let Some((snapshot, rows)) = &snapshot {
                compare(snapshot, &keyspace, rows, &mut random, &place);
            }
        }
        drop(snapshot);
        assert!(db.check().unwrap().corruption.is_empty(), "seed {seed}");
    }
}
