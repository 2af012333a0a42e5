//! Old versions of rows that outgrow memory. Snapshots still see their rows, with the help of a file that is created
//! and removed as needed.

use std::cell::RefCell;
use std::ops::Bound;

use drumlin::{
    Config, Database, Durability, Error, Field, Isolation, Keyspace, Snapshot, Sum, Transaction, TxOptions, Value,
    VersionOverflow,
};

use crate::support::{Folder, Model, Random};

const MIB: u64 = 1 << 20;

fn key(number: u64) -> Vec<u8> {
    format!("row {number:08}").into_bytes()
}

/// Returns a configuration with little memory for old versions, whose commits return without waiting for a sync.
fn config() -> Config {
    Config::new()
        .memory(8 * MIB)
        .page_bytes(1024)
        .durability(Durability::Relaxed)
        .warm_start(false)
        .version_disk_bytes(1 << 30)
}

/// Puts, replaces and removes random rows, sometimes many neighbouring ones, so that leaves split and merge.
struct Writer {
    random: Random,
    key_count: u64,
}

impl Writer {
    fn new(seed: u64, key_count: u64) -> Writer {
        Writer { random: Random(seed), key_count }
    }

    fn change(&mut self, db: &Database, k: &Keyspace, model: &mut Model) {
        let at = self.random.below(self.key_count);
        match self.random.below(20) {
            0 => {
                let (from, to) = (key(at), key(at + self.random.below(200)));
                k.remove_range(&from[..]..&to[..]).unwrap();
                model.retain(|key, _| *key < from || *key >= to);
            }
            1..4 => {
                let mut tx = db.begin().unwrap();
                for number in at..at + self.random.below(100) {
                    let value = self.value();
                    tx.insert(k, key(number), &value).unwrap();
                    model.insert(key(number), value);
                }
                tx.commit().unwrap();
            }
            4..7 => {
                k.remove(key(at)).unwrap();
                model.remove(&key(at));
            }
            _ => {
                let value = self.value();
                k.insert(key(at), &value).unwrap();
                model.insert(key(at), value);
            }
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let length = match self.random.below(300) {
            0 => 70_000,
            1..6 => 2_000,
            _ => self.random.below(120),
        };
        self.random.bytes(length as usize)
    }
}

/// Compares a snapshot with the model through every kind of read.
fn compare(snapshot: &Snapshot, k: &Keyspace, model: &Model, random: &mut Random) {
    let rows = |(key, value): (Value, Value)| (key.to_vec(), value.to_vec());
    let mut expected = model.clone().into_iter();
    for row in snapshot.iter(k) {
        assert_eq!(Some(rows(row.unwrap())), expected.next(), "forwards");
    }
    assert_eq!(expected.next(), None);
    let mut expected = model.clone().into_iter().rev();
    for row in snapshot.iter(k).rev() {
        assert_eq!(Some(rows(row.unwrap())), expected.next(), "backwards");
    }
    assert_eq!(expected.next(), None);
    assert_eq!(snapshot.count(k, ..).unwrap(), model.len() as u64);
    let keys: Vec<Vec<u8>> = (0..100).map(|_| key(random.below(3_000))).collect();
    for key in &keys {
        let found = snapshot.get(k, key).unwrap();
        assert_eq!(found.as_deref(), model.get(key).map(|value| &value[..]), "{}", key.escape_ascii());
        assert_eq!(snapshot.contains_key(k, key).unwrap(), model.contains_key(key));
    }
    let many = snapshot.get_many(k, &keys).unwrap();
    assert!(many.iter().zip(&keys).all(|(found, key)| found.as_deref() == model.get(key).map(|value| &value[..])));
    let sum = |model: &Model, from: &[u8]| -> i128 {
        let range = (Bound::Included(from.to_vec()), Bound::Unbounded);
        model.range(range).filter_map(|(_, value)| value.first()).map(|byte| i128::from(*byte)).sum()
    };
    for key in keys.iter().take(8) {
        let bytes = Sum::of(Field::<u8>::big_endian(0));
        assert_eq!(snapshot.aggregate(k, &bytes, &key[..]..).unwrap(), sum(model, key));
        let first = model.range(key.clone()..).next().map(|(key, value)| (key.clone(), value.clone()));
        assert_eq!(snapshot.range(k, &key[..]..).next().map(|row| rows(row.unwrap())), first);
        let last = model.range(..key.clone()).next_back().map(|(key, value)| (key.clone(), value.clone()));
        assert_eq!(snapshot.range(k, ..&key[..]).next_back().map(|row| rows(row.unwrap())), last);
    }
}

fn versions_file(folder: &Folder) -> std::path::PathBuf {
    folder.path().join("versions")
}

/// Waits until the database's background threads have made a condition true.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "never: {what}");
        std::thread::yield_now();
    }
}

/// A relaxed batch leaves old versions only if a snapshot is open. The snapshot still sees the rows as they were.
#[test]
fn batches_leave_versions_only_for_snapshots() {
    const ROWS: u64 = 1000;
    let db = config().memory(64 * MIB).backend(drumlin_io::in_memory()).open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    let write = |round: u8| {
        let mut batch = db.batch().unwrap();
        (0..ROWS).for_each(|number| batch.insert(&k, key(number), [round; 40]).unwrap());
        batch.commit().unwrap();
    };
    write(1);
    write(2);
    assert_eq!(db.stats().version_bytes, 0);
    let snapshot = db.snapshot();
    write(3);
    assert!(db.stats().version_bytes > ROWS * 40);
    for number in 0..ROWS {
        assert_eq!(snapshot.get(&k, key(number)).unwrap().unwrap(), [2; 40]);
        assert_eq!(k.get(key(number)).unwrap().unwrap(), [3; 40]);
    }
}

/// The snapshot of a relaxed transaction needs no old versions of the rows that the transaction itself changes, unless
/// a range of the transaction is still open. After the commit, the range still returns the rows of the snapshot.
#[test]
fn transactions_leave_versions_only_for_other_readers() {
    const ROWS: u64 = 100;
    let db = config().memory(64 * MIB).backend(drumlin_io::in_memory()).open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    let change = |round: u8, rows: u64, look: &dyn Fn(&Transaction)| {
        let mut tx = db.begin().unwrap();
        look(&tx);
        (0..rows).for_each(|number| tx.insert(&k, key(number), [round; 40]).unwrap());
        tx.commit().unwrap();
    };
    change(1, ROWS, &|_| ());
    change(2, ROWS, &|tx| assert_eq!(tx.get(&k, key(7)).unwrap().unwrap(), [1; 40]));
    change(2, 1, &|_| ());
    assert_eq!(db.stats().version_bytes, 0);
    for rows in [1, ROWS] {
        let range = RefCell::new(None);
        change(3, rows, &|tx| *range.borrow_mut() = Some(tx.range(&k, ..)));
        assert!(db.stats().version_bytes > rows * 40);
        let range = range.into_inner().unwrap();
        assert_eq!(range.filter(|row| *row.as_ref().unwrap().1 == [2; 40]).count() as u64, ROWS);
        change(2, rows, &|_| ());
    }
}

/// Snapshots of several ages still see their rows after changes whose versions exceed the memory for versions many
/// times over, across splits and merges. The file is removed with the last of the snapshots.
#[test]
fn snapshots_outlive_the_memory_for_their_versions() {
    let backend = drumlin_io::in_memory();
    let db = config().backend(backend.clone()).open("/db").unwrap();
    let has_file = || backend.exists("/db/versions".as_ref()).unwrap();
    let k = db.keyspace("k").unwrap();
    let (mut writer, mut model, mut random) = (Writer::new(7, 2_500), Model::new(), Random(3));
    (0..4_000).for_each(|_| writer.change(&db, &k, &mut model));
    let mut snapshots = Vec::new();
    for _ in 0..4 {
        snapshots.push((db.snapshot(), model.clone()));
        (0..5_000).for_each(|_| writer.change(&db, &k, &mut model));
        assert!(db.stats().version_disk_bytes > 0, "nothing was spilled");
        assert!(has_file());
        let (snapshot, then) = &snapshots[random.below(snapshots.len() as u64) as usize];
        compare(snapshot, &k, then, &mut random);
    }
    for (snapshot, then) in &snapshots {
        compare(snapshot, &k, then, &mut random);
    }
    // First end the oldest snapshot and some of the middle ones.
    for index in [0, 1, 1, 0] {
        snapshots.remove(index);
        (0..1_500).for_each(|_| writer.change(&db, &k, &mut model));
        for (snapshot, then) in &snapshots {
            compare(snapshot, &k, then, &mut random);
        }
    }
    assert_eq!(db.stats().snapshots, 0);
    wait_until("the file of old versions goes", || {
        (0..100).for_each(|_| writer.change(&db, &k, &mut model));
        db.checkpoint().unwrap();
        !has_file()
    });
    assert_eq!(db.stats().version_disk_bytes, 0);
    crate::support::compare(&k, &model);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// Updates random rows of `numbers`, each in a separate commit, until versions have been spilled.
fn spill(db: &Database, k: &Keyspace, numbers: std::ops::Range<u64>) {
    let mut random = Random(1);
    let before = db.stats().version_disk_bytes;
    for round in 0.. {
        assert!(round < 400, "nothing is spilled");
        for _ in 0..200 {
            let number = numbers.start + random.below(numbers.end - numbers.start);
            k.insert(key(number), random.bytes(60)).unwrap();
        }
        if db.stats().version_disk_bytes > before {
            return;
        }
    }
}

/// Old versions are spilled before they fill their memory, however often checkpoints drop other versions.
#[test]
fn checkpoints_do_not_postpone_spills() {
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let insert = |number: u64| k.insert_with(key(number), [7; 200], Durability::Relaxed).unwrap();
    (0..50).for_each(insert);
    let snapshot = db.snapshot();
    let limits = db.limits();
    let mut number = 0;
    while db.stats().version_bytes < limits.version_bytes / 20 * 17 && db.stats().version_disk_bytes == 0 {
        (number..number + 20).for_each(|number| insert(number % 50));
        number += 20;
        db.checkpoint().unwrap();
    }
    wait_until("a spill", || db.stats().version_disk_bytes > 0);
    assert_eq!(snapshot.get(&k, key(0)).unwrap().as_deref(), Some(&[7; 200][..]));
}

/// While an old snapshot is open, writers conflict with spilled changes, but not with other rows. Unchanged rows in the
/// leaf of a changed row can be written, and serializable transactions that read only such rows can commit.
#[test]
fn conflicts_with_spilled_changes_are_found() {
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    (0..4_000).for_each(|number| k.insert(key(number), [7; 40]).unwrap());
    let serializable = TxOptions { isolation: Isolation::Serializable, ..db.tx_options() };
    let (mut first, mut second) = (db.begin().unwrap(), db.begin().unwrap());
    let mut reader_of_changed = db.begin_with(serializable).unwrap();
    let mut reader_of_others = db.begin_with(serializable).unwrap();
    let changed: Vec<u64> = (0..4_000).step_by(2).collect();
    for round in 0..40 {
        for number in &changed {
            k.insert(key(*number), [round; 60]).unwrap();
        }
    }
    wait_until("versions are spilled", || db.stats().version_disk_bytes > 0);
    // A serializable commit during a spill fails with a conflict. A spill is requested when the versions take three
    // eighths of a MiB. Below a quarter, the newest has been published, and no request has anything left to spill.
    wait_until("no more are spilled", || {
        k.insert(key(0), [40; 60]).unwrap();
        db.stats().version_bytes <= MIB / 4
    });
    assert!(matches!(first.insert(&k, key(100), "mine"), Err(Error::Conflict { .. })));
    second.insert(&k, key(101), "mine").unwrap();
    second.commit().unwrap();
    for number in 0..50 {
        assert_eq!(reader_of_others.get(&k, key(2 * number + 201)).unwrap().unwrap(), [7; 40]);
        assert_eq!(reader_of_changed.get(&k, key(2 * number + 200)).unwrap().unwrap(), [7; 40]);
    }
    reader_of_others.insert(&k, key(3_001), "mine").unwrap();
    reader_of_others.commit().unwrap();
    reader_of_changed.insert(&k, key(3_003), "mine").unwrap();
    assert!(matches!(reader_of_changed.commit(), Err(Error::Conflict { .. })));
    assert_eq!(k.get(key(3_003)).unwrap().unwrap(), [7; 40]);
}

/// If old versions may not use disk space, the oldest snapshot is ended to free them, and new commits continue.
#[test]
fn without_disk_the_oldest_snapshot_ends() {
    let folder = Folder::new();
    let db = config().version_disk_bytes(0).open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    (0..2_000).for_each(|number| k.insert(key(number), [7; 40]).unwrap());
    let snapshot = db.snapshot();
    let ended = (0..200).any(|_| {
        (0..2_000).for_each(|number| k.insert(key(number), [8; 100]).unwrap());
        matches!(snapshot.get(&k, key(5)), Err(Error::SnapshotTooOld { .. }))
    });
    assert!(ended, "the memory for versions was not used up");
    assert!(!versions_file(&folder).exists());
}

/// The database roughly respects the disk limit: it ends the snapshot that would need more space, and writers continue.
#[test]
fn a_limit_on_disk_ends_the_oldest_snapshot() {
    const LIMIT: u64 = MIB;
    let folder = Folder::new();
    let db = config().version_disk_bytes(LIMIT).open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    (0..60_000).for_each(|number| k.insert(key(number), [7; 40]).unwrap());
    let snapshot = db.snapshot();
    let mut most = 0;
    let mut too_old = None;
    for number in 0..60_000 {
        k.insert(key(number), [8; 100]).unwrap();
        most = most.max(db.stats().version_disk_bytes);
        if number % 500 == 0 {
            too_old = snapshot.get(&k, key(5)).err();
        }
        if too_old.is_some() {
            break;
        }
    }
    let error = too_old.expect("the snapshot ends");
    assert!(matches!(error, Error::SnapshotTooOld { .. }) && most > 0, "{error}, {most} bytes on disk");
    let text = error.to_string();
    assert!(text.contains("on disk, and Config::version_disk_bytes allows 1048576. Take a new snapshot"), "{text}");
    assert_eq!(db.stats().snapshots_ended, 1);
    // A spill begins below the limit and writes less than 1 MiB. A merge copies the runs before it drops them.
    assert!(most < 2 * (LIMIT + MIB), "{most} bytes on disk");
    wait_until("the file goes", || {
        db.checkpoint().unwrap();
        !versions_file(&folder).exists()
    });
}

/// Large values that only a snapshot sees live as long as the spilled versions that refer to them.
#[test]
fn large_values_live_as_long_as_they_are_seen() {
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let film = |number: u64| Random(number).bytes(300_000);
    (0..20).for_each(|number| k.insert(key(number), film(number)).unwrap());
    db.checkpoint().unwrap();
    let live_bytes = db.stats().live_bytes;
    let snapshot = db.snapshot();
    (0..10).for_each(|number| k.insert(key(number), film(number + 100)).unwrap());
    (10..15).for_each(|number| k.remove(key(number)).unwrap());
    spill(&db, &k, 1_000..4_000);
    // If values were freed too early, other values would have reused their pages by now.
    (0..10).for_each(|number| k.insert(key(number), film(number + 200)).unwrap());
    spill(&db, &k, 1_000..4_000);
    db.checkpoint().unwrap();
    for number in 0..20 {
        assert!(snapshot.get(&k, key(number)).unwrap().is_some_and(|value| value == film(number)), "film {number}");
    }
    drop(snapshot);
    k.remove_range(key(1_000)..).unwrap();
    wait_until("the values' space is free", || {
        k.insert("a", "1").unwrap();
        db.checkpoint().unwrap();
        db.stats().live_bytes < live_bytes
    });
    assert_eq!(k.count(..).unwrap(), 16);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// A file left by a kill is removed at the next opening. A foreign file of that name stays unchanged, and old snapshots
/// end early because of it. A database that has been through both is undamaged.
#[test]
fn a_file_that_is_left_goes_and_a_foreign_one_stays() {
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    (0..4_000).for_each(|number| k.insert(key(number), [7; 40]).unwrap());
    let snapshot = db.snapshot();
    spill(&db, &k, 0..4_000);
    let killed = Folder::new();
    crate::support::copy_folder(&folder.path(), &killed.path());
    assert!(versions_file(&killed).exists());
    drop(Config::new().read_only(true).open(killed.path()));
    let again = config().open(killed.path()).unwrap();
    assert!(!versions_file(&killed).exists());
    assert_eq!(again.keyspace("k").unwrap().count(..).unwrap(), 4_000);
    drop((again, snapshot, k));
    db.close().unwrap();
    assert!(!versions_file(&folder).exists(), "a closed database has old versions");

    std::fs::write(versions_file(&folder), b"somebody's").unwrap();
    let db = config().open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let snapshot = db.snapshot();
    for round in 0..60 {
        (0..4_000).for_each(|number| k.insert(key(number), [round; 80]).unwrap());
    }
    assert!(matches!(snapshot.get(&k, key(5)), Err(Error::SnapshotTooOld { .. })));
    drop(snapshot);
    assert!(db.stats().version_disk_bytes == 0);
    db.close().unwrap();
    assert_eq!(std::fs::read(versions_file(&folder)).unwrap(), b"somebody's");
}

/// Stops the writers of a test when the test ends, even if the test fails.
struct Stops<'s>(&'s std::sync::atomic::AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// While writers run without pause, scans of all rows and single reads see a consistent snapshot and never end early.
#[test]
fn readers_survive_writers() {
    const ROWS: u64 = 6_000;
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let pair = |number: u64, round: u64| -> [(Vec<u8>, Vec<u8>); 2] {
        let value = [&round.to_be_bytes()[..], &[round as u8; 50]].concat();
        [(key(number), value.clone()), (key(number + ROWS), value)]
    };
    let change = |number: u64, round: u64| {
        db.transact(|tx| pair(number, round).iter().try_for_each(|(key, value)| tx.insert(&k, key, value))).unwrap();
    };
    (0..ROWS).for_each(|number| change(number, 0));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let spilled = std::thread::scope(|scope| {
        for thread in 0..2 {
            let (stop, change) = (&stop, &change);
            scope.spawn(move || {
                let mut random = Random(thread);
                for round in 1.. {
                    change(random.below(ROWS / 2) * 2 + thread, round);
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        let _stops = Stops(&stop);
        let mut spilled = 0;
        for _ in 0..6 {
            let snapshot = db.snapshot();
            let seen: Vec<(Value, Value)> = k_rows(&snapshot, &k);
            let commits = db.stats().commits;
            wait_until("writers go on", || db.stats().commits > commits + 6_000);
            assert!(k_rows(&snapshot, &k) == seen, "a snapshot has changed");
            for (number, (first, second)) in (0..ROWS).zip(seen.iter().zip(&seen[ROWS as usize..])) {
                assert_eq!(first.1, second.1, "half a transaction is seen of row {number}");
                if number % 50 == 0 {
                    assert_eq!(snapshot.get(&k, &first.0).unwrap().unwrap(), first.1);
                }
            }
            spilled = spilled.max(db.stats().version_disk_bytes);
        }
        spilled
    });
    assert!(spilled > 0, "nothing was spilled");
}

fn k_rows(snapshot: &Snapshot, k: &Keyspace) -> Vec<(Value, Value)> {
    snapshot.iter(k).collect::<drumlin::Result<_>>().unwrap()
}

/// Updates rows until the database ends a snapshot.
fn end_a_snapshot(db: &Database, k: &Keyspace) {
    let before = db.stats().snapshots_ended;
    for round in 0..400 {
        (0..500).for_each(|number| k.insert(key(number), [round as u8; 100]).unwrap());
        if db.stats().snapshots_ended > before {
            return;
        }
    }
    panic!("no snapshot was ended");
}

/// If its snapshot is ended, a scan of a read-committed transaction continues with a newer snapshot: from either end,
/// and among rows whose values were replaced and freed. A scan of a snapshot fails.
#[test]
fn read_committed_scans_go_on() {
    const ROWS: u64 = 2_000;
    let folder = Folder::new();
    let db = config().version_disk_bytes(0).open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let value = |number: u64, round: u8| vec![round; if number.is_multiple_of(20) { 2_000 } else { 40 }];
    (0..ROWS).for_each(|number| k.insert(key(number), value(number, 1)).unwrap());
    let tx = db.begin_with(TxOptions { isolation: Isolation::ReadCommitted, ..db.tx_options() }).unwrap();
    let snapshot = db.snapshot();
    let (mut old, mut rows) = (snapshot.iter(&k), tx.iter(&k));
    let (mut front, mut back) = (Vec::new(), Vec::new());
    for round in 2..6 {
        for _ in 0..100 {
            front.push(rows.next().unwrap().unwrap());
            back.push(rows.next_back().unwrap().unwrap());
        }
        old.next().unwrap().unwrap();
        (500..ROWS).for_each(|number| k.insert(key(number), value(number, round)).unwrap());
        end_a_snapshot(&db, &k);
        (0..500).for_each(|number| k.insert(key(number), value(number, round)).unwrap());
        db.checkpoint().unwrap();
    }
    let mut shown = 0;
    let broken: std::ops::ControlFlow<()> = rows
        .for_each_row(|key, value| {
            front.push((key.into(), value.into()));
            shown += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert!(broken.is_continue() && shown == ROWS - 800);
    front.extend(back.into_iter().rev());
    assert_eq!(front.len() as u64, ROWS);
    for (number, (found, content)) in (0..).zip(&front) {
        assert_eq!(*found, key(number));
        let (round, length) = (content[0], value(number, 0).len());
        assert!((1..6).contains(&round) && *content == vec![round; length], "row {number}");
    }
    assert_eq!(front[ROWS as usize / 2].1, vec![5; 2_000], "what is left is read as it is now");
    let error = old.find_map(Result::err).expect("the snapshot was ended");
    let text = error.to_string();
    assert!(text.contains("bytes of memory for versions"), "{text}");
}

/// If the snapshots of a transaction are ended repeatedly, `transact` gives up after three runs, or after the time set
/// in its options.
#[test]
fn transact_gives_up_on_reads_that_end() {
    let folder = Folder::new();
    let db = config().version_disk_bytes(0).open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    for (retry_timeout, runs) in [(std::time::Duration::MAX, 3), (std::time::Duration::ZERO, 1)] {
        let mut count = 0;
        let options = TxOptions { retry_timeout, ..db.tx_options() };
        let ended = db.transact_with(options, |tx| {
            count += 1;
            end_a_snapshot(&db, &k);
            tx.get(&k, key(1))
        });
        assert!(matches!(ended, Err(Error::SnapshotTooOld { .. })));
        assert_eq!(count, runs);
    }
}

/// If the database delays commits instead of ending snapshots, a writer waits until the snapshot is dropped.
#[test]
fn commits_wait_for_a_snapshot_to_end() {
    let config = config().version_disk_bytes(MIB).version_overflow(VersionOverflow::DelayCommits);
    let folder = Folder::new();
    let db = config.open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    (0..60_000).for_each(|number| k.insert(key(number), [7; 40]).unwrap());
    let snapshot = db.snapshot();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..60_000).for_each(|number| k.insert(key(number), [8; 100]).unwrap()));
        wait_until("the space on disk is full", || db.stats().version_disk_bytes >= MIB);
        assert_eq!(snapshot.get(&k, key(5)).unwrap().unwrap(), [7; 40]);
        assert!(!writer.is_finished(), "6 MB of versions are in less than 3");
        drop(snapshot);
        writer.join().unwrap();
    });
    assert_eq!(db.stats().snapshots_ended, 0);
}

/// A commit that waits for a snapshot held by its own thread fails after a while, and no other commit is lost.
#[test]
fn a_delayed_commit_fails_in_the_end() {
    let config = config().version_disk_bytes(MIB).version_overflow(VersionOverflow::DelayCommits);
    let folder = Folder::new();
    let db = config.open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    (0..60_000).for_each(|number| k.insert(key(number), [7; 40]).unwrap());
    let snapshot = db.snapshot();
    let (count, error) = (0..60_000).find_map(|number| Some((number, k.insert(key(number), [8; 100]).err()?))).unwrap();
    assert!(matches!(error, Error::MemoryInUse { .. }), "{error}");
    assert_eq!(k.get(key(count)).unwrap().unwrap(), [7; 40]);
    assert_eq!(snapshot.get(&k, key(5)).unwrap().unwrap(), [7; 40]);
    drop(snapshot);
    k.insert(key(count), [8; 100]).unwrap();
}
