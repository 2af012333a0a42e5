//! The archive: a backup is restored to any commit after it, over checkpoints, closings and kills, or the archive says
//! why not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drumlin::{
    Archive, BackupOptions, Config, Database, Durability, Error, KeyspaceOptions, LockMode, RestorePoint, Timestamp,
};
use drumlin_io::IoBackend;
use drumlin_io::testing::fault::FaultyBackend;
use drumlin_io::testing::sim::{Disk, Medium};

use crate::support::{Folder, Model, Random, alone, copy_folder, number, small, some_value};

/// The rows of all keyspaces, with their page sizes, and the prepared transactions.
#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    keyspaces: BTreeMap<String, (usize, Model)>,
    prepared: Vec<(Vec<u8>, u64)>,
}

impl State {
    fn of(db: &Database) -> State {
        let snapshot = db.snapshot();
        let mut keyspaces = BTreeMap::new();
        for info in db.keyspaces() {
            let keyspace = db.existing_keyspace(&info.name).unwrap();
            let rows = snapshot.iter(&keyspace).map(|row| row.map(|(key, value)| (key.into_vec(), value.into_vec())));
            keyspaces.insert(info.name, (info.page_bytes, rows.collect::<drumlin::Result<Model>>().unwrap()));
        }
        let prepared = db.prepared().unwrap().into_iter().map(|found| (found.id, found.row_count)).collect();
        State { keyspaces, prepared }
    }
}

/// The states of a database after some of its commits.
#[derive(Default)]
struct States(BTreeMap<u64, State>);

impl States {
    /// Notes the state of now. Returns the timestamp of the newest commit.
    fn note(&mut self, db: &Database) -> Timestamp {
        db.sync().unwrap();
        let newest = db.stats().durable;
        self.0.insert(newest.0, State::of(db));
        newest
    }
}

fn commit(timestamp: u64) -> RestorePoint {
    RestorePoint::Commit(Timestamp(timestamp))
}

fn wait_until(mut is_it: impl FnMut() -> bool) {
    while !is_it() {
        std::thread::yield_now();
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Restores a backup to a commit, and compares the state.
fn check(config: &Config, backups: &[String], archive: &str, at: u64, expected: &State, target: &Path, place: &str) {
    let report = config.restore_to(backups, archive, commit(at), target);
    let report = report.unwrap_or_else(|error| panic!("{place}: to {at}: {error}"));
    assert_eq!(report.timestamp, Timestamp(at), "{place}");
    let restored = config.open(target).unwrap_or_else(|error| panic!("{place}: to {at}: {error}"));
    assert_eq!(restored.stats().durable, Timestamp(at), "{place}");
    let state = State::of(&restored);
    assert!(state == *expected, "{place}: the state of {at} is restored as another one");
    assert!(restored.check().unwrap().corruption.is_empty(), "{place}");
    restored.close().unwrap();
}

/// Random histories with loads, large transactions, prepared ones, range deletes, alterations, checkpoints,
/// compactions, closings and kills. Backups that are made among them are restored to commits after them.
#[test]
fn every_point_in_time_is_restored() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 5) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let streams = 1 + random.below(3) as u16;
        let interval = Duration::from_millis(random.below(40));
        let plain = |disk: &Disk| {
            let config = small().page_bytes(512).log_streams(streams).checkpoint_log_bytes(256 << 10);
            config.backend(disk.backend())
        };
        let config = |disk: &Disk| plain(disk).archive(Archive::to_folder("/archive").every(interval));
        let mut db = config(&disk).open("/db").unwrap();
        let mut states = States::default();
        let mut backups: Vec<(u64, String)> = Vec::new();
        let mut renamed = 0;
        for step in 0..60 {
            let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
            let name = match names.len() {
                0 => "0".to_owned(),
                count => names[random.below(count as u64) as usize].clone(),
            };
            match random.below(18) {
                0 => drop(db.keyspace(&format!("{}", random.below(4))).unwrap()),
                1 if names.len() > 2 && db.prepared().unwrap().is_empty() => db.drop_keyspace(&name).unwrap(),
                2 if !names.is_empty() => {
                    renamed += 1;
                    db.alter().rename(&name, &format!("renamed {renamed}")).commit().unwrap();
                }
                3 => {
                    let mut load = db.bulk_load(&name).unwrap();
                    for row in 0..random.below(500) {
                        load.insert(format!("{row:05}"), some_value(&mut random)).unwrap();
                    }
                    load.finish().unwrap();
                }
                4 => {
                    let keyspace = db.keyspace(&name).unwrap();
                    let mut tx = db.begin().unwrap();
                    for _ in 0..random.below(3000) {
                        let key = format!("{:05}", random.below(9000));
                        match random.one_in(5) {
                            true => tx.remove(&keyspace, key).unwrap(),
                            false => tx.insert(&keyspace, key, random.bytes(60)).unwrap(),
                        }
                    }
                    tx.commit().unwrap();
                }
                5 => {
                    let keyspace = db.keyspace(&name).unwrap();
                    let mut tx = db.begin().unwrap();
                    tx.insert(&keyspace, format!("prepared {step}"), some_value(&mut random)).unwrap();
                    tx.insert(&keyspace, format!("also prepared {step}"), random.bytes(70_000)).unwrap();
                    tx.prepare(step.to_string()).unwrap();
                }
                6 => {
                    if let Some(found) = db.prepared().unwrap().first() {
                        match random.one_in(2) {
                            true => drop(db.commit_prepared(&found.id).unwrap()),
                            false => db.abort_prepared(&found.id).unwrap(),
                        };
                    }
                }
                7 => drop(db.checkpoint().unwrap()),
                8 => drop(db.compact().unwrap()),
                9 | 10 => {
                    db.sync().unwrap();
                    match random.one_in(2) {
                        true => db.close().unwrap(),
                        false => disk.turn_off(),
                    }
                    disk = Disk::new(disk.medium(), seed + step);
                    // A tool that knows nothing of the archive opens the database too.
                    if random.one_in(3) {
                        db = plain(&disk).open("/db").unwrap();
                        db.keyspace("of a tool").unwrap().insert(step.to_be_bytes(), "1").unwrap();
                        states.note(&db);
                        match random.one_in(2) {
                            true => db.close().unwrap(),
                            false => disk.turn_off(),
                        }
                        disk = Disk::new(disk.medium(), seed + step);
                    }
                    db = config(&disk).open("/db").unwrap();
                }
                11 => {
                    let keyspace = db.keyspace(&name).unwrap();
                    let (lower, upper) = (random.below(500), random.below(500));
                    if lower < upper {
                        let mut tx = db.begin().unwrap();
                        tx.remove_range(&keyspace, format!("{lower:05}")..format!("{upper:05}")).unwrap();
                        tx.insert(&keyspace, format!("{lower:05}"), "in a removed range").unwrap();
                        tx.commit().unwrap();
                    }
                }
                12 | 13 if !names.is_empty() && names.len() < 8 => {
                    // The commits of another thread come between the checkpoint that is cloned and the clone's record.
                    let written = db.keyspace(&name).unwrap().with_durability(Durability::Relaxed);
                    let has_ended = AtomicBool::new(false);
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            for row in 0.. {
                                written.insert(format!("{:05}", row % 500), format!("{step} {row}")).unwrap();
                                if has_ended.load(Ordering::Relaxed) {
                                    break;
                                }
                            }
                        });
                        db.clone_keyspace(&name, &format!("clone {step}")).unwrap();
                        has_ended.store(true, Ordering::Relaxed);
                    });
                }
                14 if backups.len() < 3 => {
                    let at = states.note(&db).0;
                    let folder = format!("/backup {step}");
                    let report = db.backup_to(&folder, &BackupOptions::new()).unwrap();
                    assert_eq!(report.timestamp.0, at);
                    backups.push((at, folder));
                }
                _ => {
                    let keyspace = db.keyspace(&name).unwrap().with_durability(Durability::Relaxed);
                    for _ in 0..random.below(200) {
                        let key = format!("{:05}", random.below(500));
                        match random.one_in(4) {
                            true => keyspace.remove(key).unwrap(),
                            false => keyspace.insert(key, some_value(&mut random)).unwrap(),
                        }
                    }
                }
            }
            states.note(&db);
        }
        let stats = db.stats();
        assert!(stats.archive_failure.is_none() && !stats.archive_has_ended, "seed {seed}: {stats:#?}");
        db.close().unwrap();

        let chains = plain(&disk).verify_archive("/archive").unwrap();
        assert_eq!(chains.len(), 1, "seed {seed}: {chains:#?}");
        let last = *states.0.keys().last().unwrap();
        assert_eq!((chains[0].from.0, chains[0].to.0), (0, last), "seed {seed}");
        for (backup, (at, folder)) in backups.iter().enumerate() {
            let after: Vec<u64> = states.0.range(at..).map(|(at, _)| *at).collect();
            let mut points: Vec<u64> = (0..5).map(|_| after[random.below(after.len() as u64) as usize]).collect();
            points.extend([*at, last]);
            for (index, point) in points.into_iter().enumerate() {
                let target = format!("/restored {backup} {index}");
                let place = format!("seed {seed}, backup {folder} of {at}");
                let folders = [folder.clone()];
                check(&plain(&disk), &folders, "/archive", point, &states.0[&point], Path::new(&target), &place);
            }
        }
    }
}

/// All kinds of rows, keyspaces and commits are restored, also between the prepare of a transaction and its commit,
/// from a full backup with an incremental one.
#[test]
fn everything_is_archived() {
    let disk = Disk::new(Medium::default(), 1);
    let config = small().backend(disk.backend());
    let db = config.clone().archive(Archive::to_folder("/archive")).open("/db").unwrap();
    db.keyspace("first").unwrap().insert("a", "1").unwrap();
    db.backup_to("/full", &BackupOptions::new().keep("full")).unwrap();
    db.keyspace("first").unwrap().insert("b", "2").unwrap();
    db.backup_to("/changes", &BackupOptions::new().since("full")).unwrap();
    let mut states = States::default();
    let begin = states.note(&db);
    let wide = db.keyspace_with("wide", KeyspaceOptions::new().page_bytes(16 << 10)).unwrap();
    states.note(&db);
    let large = Random(3).bytes(1_900_000);
    wide.insert("large", &large).unwrap();
    states.note(&db);
    wide.insert("medium", &large[..40_000]).unwrap();
    wide.insert("large", "it is gone").unwrap();
    states.note(&db);
    // Loads: into a keyspace without rows, and above rows; with large values.
    for round in 0..2u32 {
        let mut load = db.bulk_load("loaded").unwrap();
        for row in 0..3000u32 {
            load.insert((row * (round + 2)).to_be_bytes(), [round as u8; 100]).unwrap();
        }
        load.insert([255, round as u8], &large[round as usize..400_000]).unwrap();
        load.insert([254, round as u8], &large[..30_000]).unwrap();
        load.finish().unwrap();
        states.note(&db);
    }
    // Rows that are changed, folded and removed before a checkpoint.
    let loaded = db.keyspace("loaded").unwrap();
    loaded.remove_range(500u32.to_be_bytes()..4000u32.to_be_bytes()).unwrap();
    states.note(&db);
    loaded.remove([255, 0]).unwrap();
    db.compact().unwrap();
    states.note(&db);
    // A transaction whose changes are spilled, with removals and a large value.
    let mut tx = db.begin().unwrap();
    for row in 0..40_000u32 {
        match row % 5 {
            0 => tx.remove(&loaded, row.to_be_bytes()).unwrap(),
            _ => tx.insert(&loaded, row.to_be_bytes(), [9; 80]).unwrap(),
        }
    }
    assert!(db.stats().transaction_disk_bytes > 0, "nothing was spilled");
    tx.insert(&wide, "of a large transaction", &large[..700_000]).unwrap();
    tx.commit().unwrap();
    states.note(&db);
    // Prepared transactions with large values and locks, one of them with many rows.
    for id in ["committed", "aborted", "kept"] {
        let mut tx = db.begin().unwrap();
        tx.insert(&wide, id, &large[..200_000]).unwrap();
        tx.insert(&wide, format!("{id} too"), &large[..100_000]).unwrap();
        tx.remove(&wide, format!("{id} not")).unwrap();
        tx.lock_row(&loaded, "locked", LockMode::Shared).unwrap();
        tx.lock_row(&loaded, format!("{id} locked"), LockMode::Exclusive).unwrap();
        for row in 0..1000u32 {
            tx.insert(&wide, format!("{id} {row}"), [5; 90]).unwrap();
        }
        tx.prepare(id).unwrap();
        states.note(&db);
    }
    db.commit_prepared("committed").unwrap();
    states.note(&db);
    db.abort_prepared("aborted").unwrap();
    states.note(&db);
    // Alterations.
    db.alter().rename("first", "other").create("first", KeyspaceOptions::new()).commit().unwrap();
    states.note(&db);
    db.alter().swap("first", "other").commit().unwrap();
    states.note(&db);
    db.drop_keyspace("other").unwrap();
    states.note(&db);
    db.keyspace("first").unwrap().clear().unwrap();
    let last = states.note(&db);
    let ages: Vec<Duration> = db.prepared().unwrap().iter().map(|found| found.age).collect();
    db.close().unwrap();
    let backups = ["/full".to_owned(), "/changes".to_owned()];
    for (index, (at, state)) in states.0.iter().enumerate() {
        let target = format!("/restored {index}");
        check(&config, &backups, "/archive", *at, state, target.as_ref(), "everything");
        if *at == last.0 {
            let restored = config.open(&target).unwrap();
            // The transaction is as old as it was, has its locks, and can be committed.
            assert!(restored.prepared().unwrap()[0].age >= ages[0]);
            restored.commit_prepared("kept").unwrap();
            assert_eq!(restored.keyspace("wide").unwrap().get("kept").unwrap().unwrap(), large[..200_000]);
        }
    }
    assert!(begin < last);
}

/// Makes a database with an archive at `path`, which has a backup and then these commits, each with its time.
fn archived(folder: &Folder, commits: u64) -> Vec<(u64, Duration)> {
    let config = small().archive(Archive::to_folder(folder.path().join("archive")).every(Duration::ZERO));
    let db = config.open(folder.path().join("db")).unwrap();
    let k = db.keyspace("k").unwrap();
    let begin = db.stats().durable.0;
    db.backup_to(folder.path().join("backup"), &BackupOptions::new()).unwrap();
    let mut times = Vec::new();
    for row in 0..commits {
        k.insert(row.to_be_bytes(), "1").unwrap();
        wait_until(|| db.stats().archive_delivered >= Some(Timestamp(begin + row + 1)));
        let time = now();
        times.push((begin + row + 1, time));
        // The next commit has a later time.
        wait_until(|| now() > time + Duration::from_millis(2));
    }
    db.close().unwrap();
    times
}

fn refusal(folder: &Folder, point: RestorePoint) -> String {
    let target = folder.path().join("refused");
    let path = |name: &str| folder.path().join(name);
    let error = small().restore_to([path("backup")], path("archive"), point, &target).unwrap_err();
    assert!(matches!(error, Error::UnusableArchive { .. }), "{error}");
    assert!(!target.join("data").exists(), "a refused restore leaves a database");
    error.to_string()
}

/// A time between two commits restores the first of them. Points before the backup and after the archive are refused
/// with what there is.
#[test]
fn points_are_found_by_time_and_refused_outside() {
    let folder = Folder::new();
    let before = now();
    let times = archived(&folder, 6);
    let path = |name: &str| folder.path().join(name);
    for (index, (at, time)) in times.iter().enumerate().take(5) {
        let target = path(&format!("restored {index}"));
        let point = RestorePoint::Time(*time);
        let report = small().restore_to([path("backup")], path("archive"), point, &target).unwrap();
        assert_eq!((report.timestamp, report.commits), (Timestamp(*at), index as u64 + 1));
        assert!(report.time.unwrap() <= *time && report.backup.timestamp < report.timestamp);
        let restored = small().open(&target).unwrap();
        assert_eq!(restored.keyspace("k").unwrap().len().unwrap(), index as u64 + 1);
        // A target that has a database is refused.
        drop(restored);
        let error = small().restore_to([path("backup")], path("archive"), point, &target).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    let (last, last_time) = *times.last().unwrap();
    let report = small().restore_to([path("backup")], path("archive"), RestorePoint::Newest, path("newest")).unwrap();
    assert_eq!(report.timestamp, Timestamp(last));
    let chains = small().verify_archive(path("archive")).unwrap();
    assert_eq!(RestorePoint::Time(report.time.unwrap()), RestorePoint::Time(chains[0].to_time));
    let at_last = RestorePoint::Time(chains[0].to_time);
    let report = small().restore_to([path("backup")], path("archive"), at_last, path("last")).unwrap();
    assert_eq!(report.timestamp, Timestamp(last));
    let error = refusal(&folder, RestorePoint::Time(last_time + Duration::from_secs(1)));
    assert!(error.contains(&format!("timestamp {last}")) && error.contains("Z"), "{error}");
    assert!(refusal(&folder, commit(last + 1)).contains(&format!("timestamp {last}")));
    let error = refusal(&folder, commit(0));
    assert!(error.contains("before the backup") && error.contains("older backup"), "{error}");
    let error = refusal(&folder, RestorePoint::Time(before));
    assert!(error.contains("before the backup"), "{error}");
}

/// Commits that were copied only by a later opening have the times at which they were made.
#[test]
fn commits_from_before_a_kill_have_their_times() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    let db = small().open(path("db")).unwrap();
    let k = db.keyspace("k").unwrap();
    db.backup_to(path("backup"), &BackupOptions::new()).unwrap();
    let next_time = || {
        let time = now();
        wait_until(|| now() > time + Duration::from_millis(2));
        time
    };
    next_time();
    let times: Vec<(Timestamp, Duration)> = (0..3u8)
        .map(|row| {
            k.insert([row], "1").unwrap();
            (db.stats().durable, next_time())
        })
        .collect();
    copy_folder(&path("db"), &path("killed"));
    next_time();
    drop(db);
    small().archive(Archive::to_folder(path("archive"))).open(path("killed")).unwrap().close().unwrap();
    for (index, (at, time)) in times[..2].iter().enumerate() {
        let target = path(&format!("restored {index}"));
        let point = RestorePoint::Time(*time);
        let report = small().restore_to([path("backup")], path("archive"), point, target).unwrap();
        assert_eq!(report.timestamp, *at);
        assert!(report.time.unwrap() <= *time);
    }
}

/// A file that is missing, damaged, cut short or of another database is named, and nothing is restored.
#[test]
fn damaged_archives_are_refused() {
    let folder = Folder::new();
    let last = archived(&folder, 5).last().unwrap().0;
    let archive = folder.path().join("archive");
    let mut files: Vec<_> = std::fs::read_dir(&archive).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{files:?}");
    let mut random = Random(7);
    for (index, file) in files.iter().enumerate() {
        let name = file.file_name().unwrap().to_str().unwrap();
        let bytes = std::fs::read(file).unwrap();
        let refused = |what: &str| {
            let error = small().verify_archive(&archive).unwrap_err();
            assert!(matches!(error, Error::UnusableArchive { .. }), "{what}: {error}");
            error.to_string()
        };
        for _ in 0..20 {
            // The bytes after the end of the last record are zeros that nothing reads.
            let used = bytes.iter().rposition(|&byte| byte != 0).unwrap() as u64 + 1;
            let at = random.below(used) as usize;
            if (80..4096).contains(&at) {
                continue;
            }
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << random.below(8);
            std::fs::write(file, &flipped).unwrap();
            assert!(refused(&format!("flipped at {at}")).contains(name));
            std::fs::write(file, &bytes[..at]).unwrap();
            assert!(refused(&format!("cut at {at}")).contains(name));
        }
        if index > 0 {
            std::fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
            let error = refusal(&folder, commit(last));
            assert!(error.contains(name), "{error}");
        }
        std::fs::remove_file(file).unwrap();
        if index > 0 && index + 1 < files.len() {
            assert!(refused("missing").contains(&format!("{name} is missing")));
            let error = refusal(&folder, commit(last));
            assert!(error.contains(&format!("{name} is missing")), "{error}");
        } else if index > 0 {
            assert!(refusal(&folder, commit(last)).contains("is not in it"));
        }
        std::fs::write(file, &bytes).unwrap();
    }
    small().verify_archive(&archive).unwrap();
    // The backup of another database.
    let other = small().open(folder.path().join("other")).unwrap();
    other.keyspace("k").unwrap();
    other.backup_to(folder.path().join("backup of other"), &BackupOptions::new()).unwrap();
    let target = folder.path().join("refused");
    let backups = [folder.path().join("backup of other")];
    let error = small().restore_to(backups, &archive, commit(last), &target).unwrap_err();
    assert!(error.to_string().contains("of another database"), "{error}");
    // Another database does not write into this archive.
    other.close().unwrap();
    let config = small().archive(Archive::to_folder(&archive).every(Duration::ZERO));
    let other = config.open(folder.path().join("other")).unwrap();
    other.keyspace("k").unwrap().insert("a", "1").unwrap();
    wait_until(|| other.stats().archive_failure.is_some());
    assert!(other.stats().archive_failure.unwrap().contains("another database"));
    other.close().unwrap();
    small().verify_archive(&archive).unwrap();
    assert!(small().verify_archive(folder.path().join("nothing")).is_err());
}

/// An archive that can't be written holds its files back up to the limit. Then it ends: statistics say why, and the
/// database continues. The next opening begins a chain after the gap, and no restore passes the gap.
#[test]
fn an_archive_that_cannot_be_written_ends() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    let archive = |limit| Archive::to_folder(path("archive")).limit_bytes(limit).every(Duration::ZERO);
    // A folder that is gone is not created again, because its new files would be of no use without the earlier ones.
    let take_away = || std::fs::rename(path("archive"), path("elsewhere")).unwrap();
    let give_back = || {
        assert!(!path("archive").is_dir(), "an archive that was taken away is begun again");
        let _ = std::fs::remove_file(path("archive"));
        std::fs::rename(path("elsewhere"), path("archive")).unwrap();
    };
    let db = small().archive(archive(200 << 10)).open(path("db")).unwrap();
    let k = db.keyspace("k").unwrap();
    db.backup_to(path("backup"), &BackupOptions::new()).unwrap();
    k.insert("a", "1").unwrap();
    let wait = |db: &Database, what: &str, is_it: &dyn Fn(&drumlin::Stats) -> bool| {
        let began = std::time::Instant::now();
        wait_until(|| {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}: {:#?}", db.stats());
            is_it(&db.stats())
        });
    };
    wait(&db, "delivered", &|stats| stats.archive_delivered == Some(stats.durable));
    take_away();
    k.insert("b", "2").unwrap();
    wait(&db, "a failure", &|stats| stats.archive_failure.is_some());
    assert!(!db.stats().archive_has_ended, "the archive ends before the limit");
    // It holds files back, and delivers them once it can.
    give_back();
    wait(&db, "delivered later", &|stats| stats.archive_delivered == Some(stats.durable));
    assert!(db.stats().archive_failure.is_none());
    let complete = db.stats().durable;
    take_away();
    // A file in its place makes the folder unusable too.
    std::fs::write(path("archive"), "").unwrap();
    let mut row = 0u64;
    while !db.stats().archive_has_ended {
        k.insert(row.to_be_bytes(), vec![row as u8; 5000]).unwrap();
        row += 1;
        assert!(row < 100_000, "{:#?}", db.stats());
    }
    let stats = db.stats();
    assert!(stats.archive_failure.as_ref().unwrap().contains("limit"), "{:?}", stats.archive_failure);
    assert!(stats.archive_waiting_bytes > 200 << 10);
    k.insert("after the end", "3").unwrap();
    db.checkpoint().unwrap();
    db.close().unwrap();
    drop(k);
    give_back();
    let db = small().archive(archive(1 << 30)).open(path("db")).unwrap();
    let k = db.keyspace("k").unwrap();
    assert_eq!(k.len().unwrap(), 3 + row);
    db.backup_to(path("later backup"), &BackupOptions::new()).unwrap();
    let begun = db.stats().durable;
    k.insert("in the next chain", "4").unwrap();
    let last = db.stats().durable;
    wait(&db, "delivered at last", &|stats| stats.archive_delivered == Some(stats.durable));
    assert_eq!(db.stats().archive_from, Some(begun));
    db.close().unwrap();
    drop(k);
    let chains = small().verify_archive(path("archive")).unwrap();
    let [one, other] = &chains[..] else { panic!("{chains:#?}") };
    assert!(one.to >= complete && one.to < other.from && other.to == last, "{chains:#?}");
    let state =
        small().restore_to([path("backup")], path("archive"), RestorePoint::Commit(one.to), path("restored")).unwrap();
    assert_eq!(state.timestamp, one.to);
    let error =
        small().restore_to([path("backup")], path("archive"), RestorePoint::Commit(last), path("refused")).unwrap_err();
    assert!(error.to_string().contains("after a gap"), "{error}");
    let newest =
        small().restore_to([path("later backup")], path("archive"), RestorePoint::Newest, path("newest")).unwrap();
    assert_eq!(newest.timestamp, last);
}

/// On a full disk, the error names the bytes that wait for an archive that takes none. Once it does, there is room.
#[test]
fn a_full_disk_names_files_that_wait_for_the_archive() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    let faulty = FaultyBackend::new(drumlin_io::backend(IoBackend::Portable).unwrap());
    let copy = format!("cp \"$1\" '{}/'", path("archive").display());
    let archive = Archive::command("/bin/sh", ["-c", &copy, "sh"]).every(Duration::from_millis(20));
    let config = small().backend(Arc::new(faulty.clone())).durability(Durability::Relaxed);
    let db = config.archive(archive).open(path("db")).unwrap();
    let k = db.keyspace("k").unwrap();
    let mut rows = 0u64;
    let mut fill = || {
        loop {
            match k.insert(rows.to_be_bytes(), Random(rows).bytes(900)) {
                Ok(()) => rows += 1,
                Err(error) => break error,
            }
        }
    };
    k.insert("a", "row").unwrap();
    // The destination does not exist, so the first delivery fails.
    wait_until(|| db.stats().archive_failure.is_some());
    faulty.set_space_limit(Some(faulty.space_used() + (4 << 20)));
    let refused = fill();
    let Error::DiskFull { archive_bytes: bytes @ 1.., .. } = refused else { panic!("{refused:?}") };
    assert!(bytes <= db.stats().archive_waiting_bytes, "{bytes} bytes of {:#?}", db.stats());
    let text = refused.to_string();
    assert!(text.contains(&format!("archive's destination, for which {bytes} bytes wait")), "{text}");
    std::fs::create_dir_all(path("archive")).unwrap();
    wait_until(|| k.insert("after", "the delivery").is_ok());
    wait_until(|| matches!(fill(), Error::DiskFull { archive_bytes: 0, .. }));
}

/// If the database's disk fills up, the archive ends, and its error says why. No commit is lost, the archive has all
/// commits before its end, and the next opening begins another chain.
#[test]
fn a_full_disk_ends_the_archive() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(path("archive")).unwrap();
    let faulty = FaultyBackend::new(drumlin_io::backend(IoBackend::Portable).unwrap());
    // The archive is elsewhere: what the command writes takes no space on the disk of the database.
    let copy = format!("cp \"$1\" '{}'", path("archive").display());
    let archive = Archive::command("/bin/sh", ["-c", &copy, "sh"]).every(Duration::from_millis(20));
    let config = small().backend(Arc::new(faulty.clone())).durability(Durability::Relaxed);
    let open = || config.clone().archive(archive.clone()).open(path("db")).unwrap();
    let db = open();
    let k = db.keyspace("k").unwrap();
    let begin = db.stats().durable.0;
    db.backup_to(path("backup"), &BackupOptions::new()).unwrap();
    let row = |row: u64| (row.to_be_bytes(), Random(row).bytes(900));
    let mut rows = 0;
    let mut put = |db: &Database, count: u64| {
        let k = db.keyspace("k").unwrap();
        (0..count).try_for_each(|_| {
            let (key, value) = row(rows);
            k.insert(key, value).map(|()| rows += 1)
        })
    };
    put(&db, 300).unwrap();
    let mut refused = Ok(());
    faulty.set_space_limit(Some(faulty.space_used() + (3 << 20)));
    for _ in 0..100 {
        refused = put(&db, 1000);
        if refused.is_err() {
            break;
        }
    }
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    // Files of the archive have no reserve, so the archive ends when the disk has no block for one.
    wait_until(|| db.stats().archive_has_ended);
    let failure = db.stats().archive_failure.unwrap();
    assert!(failure.contains("ended after timestamp") && failure.contains("archive"), "{failure}");
    faulty.set_space_limit(None);
    put(&db, 10).unwrap();
    drop(k);
    db.close().unwrap();
    let db = open();
    put(&db, 10).unwrap();
    db.backup_to(path("later backup"), &BackupOptions::new()).unwrap();
    put(&db, 10).unwrap();
    db.sync().unwrap();
    let last = db.stats().durable;
    db.close().unwrap();
    let chains = small().verify_archive(path("archive")).unwrap();
    assert_eq!(chains.len(), 2, "{chains:#?}");
    assert!(chains[0].to.0 >= begin + 300 && chains[0].to < chains[1].from && chains[1].to == last, "{chains:#?}");
    let check = |backup: &str, to: Timestamp, target: &str| {
        let point = RestorePoint::Commit(to);
        small().restore_to([path(backup)], path("archive"), point, path(target)).unwrap();
        let restored = small().open(path(target)).unwrap();
        let restored = restored.keyspace("k").unwrap();
        let found: Vec<_> = restored.iter().map(|row| row.unwrap()).collect();
        assert_eq!(found.len() as u64, to.0 - begin);
        assert!(
            (0..)
                .zip(&found)
                .all(|(number, (key, value))| (&key[..], &value[..]) == (&row(number).0[..], &row(number).1[..]))
        );
    };
    check("backup", chains[0].to, "restored");
    check("later backup", last, "newest");
}

/// An archive that is turned off removes what waits. Turned on again, it begins another chain.
#[test]
fn an_archive_that_was_off_has_a_gap() {
    let disk = Disk::new(Medium::default(), 1);
    let config = || small().backend(disk.backend());
    let life = |config: Config, row: &str| {
        let db = config.open("/db").unwrap();
        db.keyspace("k").unwrap().insert(row, "1").unwrap();
        let stats = db.stats();
        db.close().unwrap();
        stats
    };
    assert_eq!(life(config(), "a").archive_from, None);
    life(config().archive(Archive::to_folder("/archive")), "b");
    let waits = life(config(), "c");
    assert!(waits.archive_from.is_some() && !waits.archive_has_ended, "{waits:#?}");
    assert_eq!(life(config().archive(Archive::off()), "d").archive_from, None);
    assert_eq!(life(config(), "e").archive_from, None);
    let from = life(config().archive(Archive::to_folder("/archive")), "f").archive_from;
    let chains = config().verify_archive("/archive").unwrap();
    assert_eq!(chains.len(), 2, "{chains:#?}");
    assert_eq!(Some(chains[1].from), from);
    assert!(chains[0].to < chains[1].from);
}

/// A command gets the path of each file. One that fails is run again, and what it did not take waits.
#[test]
fn a_command_takes_the_files() {
    let folder = Folder::new();
    let taken = folder.path().join("taken");
    std::fs::create_dir_all(&taken).unwrap();
    let refuse = folder.path().join("refuse");
    // The first argument after the script is `$0`; the path of the file follows.
    let script = r#"test ! -e "$1" || exit 3; cp "$2" "$0/" && sync"#;
    let command = Archive::command(
        "/bin/sh",
        ["-c".into(), script.into(), taken.clone().into_os_string(), refuse.clone().into_os_string()],
    );
    let db = small().archive(command.every(Duration::ZERO)).open(folder.path().join("db")).unwrap();
    let k = db.keyspace("k").unwrap();
    db.backup_to(folder.path().join("backup"), &BackupOptions::new()).unwrap();
    k.insert("a", "1").unwrap();
    wait_until(|| db.stats().archive_delivered == Some(db.stats().durable));
    std::fs::write(&refuse, "").unwrap();
    k.insert("b", "2").unwrap();
    wait_until(|| db.stats().archive_failure.is_some());
    let failure = db.stats().archive_failure.unwrap();
    assert!(failure.contains("/bin/sh") && failure.contains('3'), "{failure}");
    std::fs::remove_file(&refuse).unwrap();
    let last = db.stats().durable;
    db.close().unwrap();
    let target = folder.path().join("restored");
    let backups = [folder.path().join("backup")];
    let report = small().restore_to(backups, &taken, RestorePoint::Newest, target).unwrap();
    assert_eq!(report.timestamp, last);
    assert_eq!(std::fs::read_dir(folder.path().join("db/archive")).unwrap().count(), 1, "a delivered file stays");
}

/// An archive is refused in the folder where the database keeps its files until they are delivered: the copy of a file
/// would be removed with it. A symbolic link to the folder is noticed.
#[test]
fn an_archive_needs_a_folder_of_its_own() {
    let folder = Folder::new();
    let (path, link) = (folder.path().join("db"), folder.path().join("link"));
    small().open(&path).unwrap().close().unwrap();
    std::os::unix::fs::symlink(path.join("archive"), &link).unwrap();
    for archive in [path.join("archive"), link] {
        let config = small().archive(Archive::to_folder(&archive).every(Duration::ZERO));
        let db = config.open(&path).unwrap();
        db.keyspace("k").unwrap().insert("a", "1").unwrap();
        wait_until(|| db.stats().archive_failure.is_some());
        let failure = db.stats().archive_failure.unwrap();
        assert!(failure.contains("another folder"), "{failure}");
        db.close().unwrap();
    }
    // Nothing was lost: another folder gets every file.
    let archive = folder.path().join("archive");
    let db = small().archive(Archive::to_folder(&archive).every(Duration::ZERO)).open(&path).unwrap();
    wait_until(|| db.stats().archive_delivered == Some(db.stats().durable));
    let last = db.stats().durable;
    db.close().unwrap();
    let chains = small().verify_archive(&archive).unwrap();
    assert_eq!((chains.len(), chains[0].to), (1, last), "{chains:#?}");
}

/// A program is found where it was at the opening, even if the working directory changes. If the database's folder is
/// moved, the command does not get the files of another database that took its place.
#[test]
fn a_command_does_not_depend_on_paths_that_change() {
    use std::os::unix::fs::PermissionsExt;
    alone("archive::a_command_does_not_depend_on_paths_that_change", &[], || {
        let folder = Folder::new();
        let taken = folder.path().join("taken");
        std::fs::create_dir_all(&taken).unwrap();
        let program = folder.path().join("upload");
        std::fs::write(&program, "#!/bin/sh\ncp \"$2\" \"$1/\"\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::env::set_current_dir(folder.path()).unwrap();
        let config = || small().archive(Archive::command("./upload", [&taken]).every(Duration::ZERO));
        let db = config().open("db").unwrap();
        std::env::set_current_dir("/").unwrap();
        let k = db.keyspace("k").unwrap();
        let insert = |key| {
            k.insert(key, "1").unwrap();
            db.stats().durable
        };
        let durable = insert("a");
        wait_until(|| db.stats().archive_delivered >= Some(durable));
        std::fs::rename(folder.path().join("db"), folder.path().join("moved")).unwrap();
        copy_folder(&folder.path().join("moved"), &folder.path().join("db"));
        let durable = insert("b");
        wait_until(|| db.stats().archive_failure.is_some());
        let failure = db.stats().archive_failure.unwrap();
        assert!(failure.contains("moved") && db.stats().archive_delivered < Some(durable), "{failure}");
        db.close().unwrap();
        std::env::set_current_dir(folder.path()).unwrap();
        let db = config().open("moved").unwrap();
        wait_until(|| db.stats().archive_delivered == Some(db.stats().durable));
        let last = db.stats().durable;
        db.close().unwrap();
        assert_eq!(small().verify_archive(&taken).unwrap()[0].to, last);
    });
}

/// A bulk load may replace rows that a prepared transaction has locked, and large transactions may put others. The
/// transaction's commit replaces them again.
#[test]
fn loads_over_locked_rows_are_restored() {
    let disk = Disk::new(Medium::default(), 1);
    let config = small().backend(disk.backend());
    let db = config.clone().archive(Archive::to_folder("/archive")).open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("0", "1").unwrap();
    db.backup_to("/backup", &BackupOptions::new()).unwrap();
    let mut states = States::default();
    for id in ["committed", "aborted"] {
        let mut tx = db.begin().unwrap();
        tx.insert(&k, id, "of the prepared one").unwrap();
        tx.lock_row(&k, format!("{id} too"), LockMode::Exclusive).unwrap();
        tx.prepare(id).unwrap();
        states.note(&db);
    }
    // The second load has more rows than fit into the memory of a transaction.
    for row_count in [1, 6000] {
        let mut load = db.bulk_load("k").unwrap();
        for id in ["aborted", "aborted too", "committed", "committed too"] {
            load.insert(id, "of a load").unwrap();
        }
        (0..row_count).for_each(|row| load.insert(format!("row {row:05}"), [row_count as u8; 100]).unwrap());
        load.finish().unwrap();
        states.note(&db);
    }
    db.commit_prepared("committed").unwrap();
    states.note(&db);
    db.abort_prepared("aborted").unwrap();
    states.note(&db);
    db.close().unwrap();
    for (at, state) in &states.0 {
        let target = format!("/restored {at}");
        check(&config, &["/backup".to_owned()], "/archive", *at, state, target.as_ref(), "loads over locked rows");
    }
}

/// A full backup and an incremental one that come as streams are restored to a commit. A stream that ends within its
/// first part is refused.
#[test]
fn streams_are_restored_to_a_point() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    let db = small().archive(Archive::to_folder(path("archive"))).open(path("db")).unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("a", "1").unwrap();
    let (mut full, mut changes) = (Vec::new(), Vec::new());
    db.backup_into(&mut full, &BackupOptions::new().keep("full")).unwrap();
    k.insert("b", "2").unwrap();
    db.backup_into(&mut changes, &BackupOptions::new().since("full")).unwrap();
    k.insert("c", "3").unwrap();
    let wanted = db.stats().durable;
    k.insert("d", "4").unwrap();
    db.close().unwrap();
    let point = RestorePoint::Commit(wanted);
    let report = small().restore_from_to([&full[..], &changes], path("archive"), point, path("restored")).unwrap();
    assert_eq!((report.timestamp, report.commits), (wanted, 1));
    let restored = small().open(path("restored")).unwrap();
    let rows: Vec<_> = restored.keyspace("k").unwrap().iter().map(|row| row.unwrap().0).collect();
    assert_eq!(rows, ["a", "b", "c"]);
    for bytes in [0, 10, 60, 200] {
        let cut = small().restore_from_to([&full[..bytes]], path("archive"), point, path("refused"));
        assert!(matches!(cut, Err(Error::UnusableBackup { .. })), "{bytes} bytes: {cut:?}");
    }
    let cut = small().restore_from_to([&full[..full.len() - 1]], path("archive"), point, path("refused"));
    assert!(matches!(cut, Err(Error::UnusableBackup { .. })), "{cut:?}");
}

/// An interrupted restore leaves nothing that opens as a database, and is made again in the same folder.
#[test]
fn an_interrupted_restore_is_made_again() {
    let folder = Folder::new();
    let last = archived(&folder, 3).last().unwrap().0;
    let path = |name: &str| folder.path().join(name);
    let target = path("restored");
    let restore = || small().restore_to([path("backup")], path("archive"), commit(last), &target);
    restore().unwrap();
    // A kill before the last step: the data file has its temporary name.
    std::fs::rename(target.join("data"), target.join("data.restored")).unwrap();
    assert!(target.join("log").exists());
    small().open(&target).unwrap_err();
    restore().unwrap();
    let restored = small().open(&target).unwrap();
    assert_eq!(restored.keyspace("k").unwrap().len().unwrap(), 3);
    assert!(restored.check().unwrap().corruption.is_empty());
}
