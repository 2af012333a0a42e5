//! The change feed: every durable commit once, whole and in order, over checkpoints, closings, kills and damage.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::time::Duration;

use drumlin::{
    Change, Changes, Commit, Config, Database, Durability, Error, KeyspaceOptions, OldValue, Retention, Timestamp,
    TxOptions,
};
use drumlin_io::testing::sim::{Disk, Medium};
use futures_util::StreamExt;
use smol::block_on;

use crate::support::{Folder, Model, Random, faulty, number, small, some_value};

/// A retention that keeps everything that a test writes.
fn all() -> Retention {
    Retention::bytes(1 << 40)
}

fn put<'c>(keyspace: &'c str, key: &'c str, value: &'c str) -> Change<'c> {
    Change::Put { keyspace, key: key.as_bytes(), value: value.as_bytes() }
}

fn now(db: &Database) -> Timestamp {
    db.sync().unwrap();
    db.snapshot().timestamp()
}

/// Returns all commits after `since`, up to the newest.
fn commits_since(db: &Database, since: u64) -> Vec<Commit> {
    db.changes(Timestamp(since)).unwrap().until(now(db)).collect::<drumlin::Result<_>>().unwrap()
}

/// A copy of a database's rows that follows its feed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Replica {
    keyspaces: BTreeMap<String, Model>,
    position: u64,
}

impl Replica {
    /// Returns the rows of a database.
    fn of(db: &Database) -> Replica {
        let snapshot = db.snapshot();
        let mut keyspaces = BTreeMap::new();
        for info in db.keyspaces() {
            let keyspace = db.existing_keyspace(&info.name).unwrap();
            let rows = snapshot.iter(&keyspace).map(|row| row.map(|(key, value)| (key.into_vec(), value.into_vec())));
            keyspaces.insert(info.name, rows.collect::<drumlin::Result<Model>>().unwrap());
        }
        Replica { keyspaces, position: snapshot.timestamp().0 }
    }

    fn rows(&mut self, keyspace: &str) -> &mut Model {
        self.keyspaces.get_mut(keyspace).expect("the feed names a keyspace that was not created")
    }

    /// Applies a commit, which must follow the last one. `changes` reads the rows and values that it only names.
    fn apply(&mut self, commit: &Commit, changes: &Changes) {
        assert!(self.position < commit.timestamp().0, "{} comes twice or late", commit.timestamp());
        let mut renamed = Vec::new();
        for change in commit.changes() {
            match change {
                Change::Put { keyspace, key, value } => {
                    self.rows(keyspace).insert(key.to_vec(), value.to_vec());
                }
                Change::PutLarge { keyspace, key, length, value } => {
                    if let Some(mut reader) = changes.read_large(key, value).unwrap() {
                        assert_eq!(reader.len(), length);
                        let mut bytes = Vec::new();
                        reader.read_to_end(&mut bytes).unwrap();
                        self.rows(keyspace).insert(key.to_vec(), bytes);
                    }
                }
                Change::Remove { keyspace, key } => drop(self.rows(keyspace).remove(key)),
                Change::RemoveRange { keyspace, lower, upper } => self
                    .rows(keyspace)
                    .retain(|key, _| &key[..] < lower || upper.is_some_and(|upper| upper <= &key[..])),
                Change::Loaded { keyspace, id, first_key, last_key, .. } => {
                    if let Some(loaded) = changes.keyspace_of(id).unwrap() {
                        let rows = loaded.range(first_key..=last_key);
                        let rows = rows.map(|row| row.map(|(key, value)| (key.into_vec(), value.into_vec())));
                        let replica = self.rows(keyspace);
                        replica.retain(|key, _| &key[..] < first_key || last_key < &key[..]);
                        replica.extend(rows.collect::<drumlin::Result<Model>>().unwrap());
                    }
                }
                Change::Create { keyspace } => renamed.push((keyspace.to_owned(), Model::new())),
                Change::Drop { keyspace } => drop(self.keyspaces.remove(keyspace).expect("it was created")),
                Change::Rename { from, to } => {
                    let rows = self.keyspaces.remove(from).expect("it was created");
                    renamed.push((to.to_owned(), rows));
                }
                Change::Clone { from, to, as_of } => {
                    assert_eq!(as_of.0, self.position, "a commit was made during the call");
                    renamed.push((to.to_owned(), self.keyspaces[from].clone()));
                }
                other => panic!("{other:?}"),
            }
        }
        self.keyspaces.extend(renamed);
        self.position = commit.timestamp().0;
    }

    /// Applies all commits up to the newest, and compares the result with the database.
    fn follow(&mut self, db: &Database, place: &str) {
        let mut changes = db.changes(Timestamp(self.position)).unwrap().until(now(db));
        while let Some(commit) = changes.next() {
            self.apply(&commit.unwrap_or_else(|error| panic!("{place}: {error}")), &changes);
        }
        let expected = Replica::of(db);
        self.position = expected.position;
        assert!(*self == expected, "{place}: the rows that the feed told differ from those of the database");
    }
}

/// Every kind of change appears as what it is.
#[test]
fn changes_are_told_as_what_they_are() {
    let db = Config::in_memory().memory(16 << 20).keep_changes(all()).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "a", "1").unwrap();
    tx.insert(&k, "b", "2").unwrap();
    tx.commit().unwrap();
    k.remove("a").unwrap();
    k.remove_range("b".."c").unwrap();
    k.insert("film", vec![7; 100_000]).unwrap();
    db.alter().rename("k", "other").create("k", KeyspaceOptions::default()).commit().unwrap();
    k.insert("in other", "3").unwrap();
    db.drop_keyspace("k").unwrap();
    let commits = commits_since(&db, 0);
    let told: Vec<Vec<Change<'_>>> = commits.iter().map(|commit| commit.changes().collect()).collect();
    assert_eq!(told.len(), 8, "{told:?}");
    assert_eq!(told[0], [Change::Create { keyspace: "k" }]);
    assert_eq!(told[1], [put("k", "a", "1"), put("k", "b", "2")]);
    assert_eq!(told[2], [Change::Remove { keyspace: "k", key: b"a" }]);
    assert_eq!(told[3], [Change::RemoveRange { keyspace: "k", lower: b"b", upper: Some(b"c") }]);
    assert!(matches!(told[4][..], [Change::PutLarge { keyspace: "k", key: b"film", length: 100_000, .. }]));
    let renamed = [Change::Rename { from: "k", to: "other" }, Change::Create { keyspace: "k" }];
    assert!(told[5].len() == 2 && renamed.iter().all(|change| told[5].contains(change)), "{:?}", told[5]);
    assert_eq!(told[6], [put("other", "in other", "3")]);
    assert_eq!(told[7], [Change::Drop { keyspace: "k" }]);
    let timestamps: Vec<u64> = commits.iter().map(|commit| commit.timestamp().0).collect();
    assert_eq!(timestamps, (1..=8).collect::<Vec<u64>>());
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(commits.iter().all(|commit| wall.abs_diff(commit.time()) < Duration::from_secs(600)));
    // A filter leaves out what concerns other keyspaces, and the commits that consist of it.
    let of_other = db.changes(Timestamp(0)).unwrap().keyspaces(["other"]).until(now(&db));
    let of_other: Vec<Commit> = of_other.collect::<drumlin::Result<_>>().unwrap();
    let told: Vec<Vec<Change<'_>>> = of_other.iter().map(|commit| commit.changes().collect()).collect();
    assert_eq!(told, [vec![Change::Rename { from: "k", to: "other" }], vec![put("other", "in other", "3")]]);
}

/// A prepared transaction appears when it is committed, with its large values, even after the database was reopened.
/// An aborted one is never told.
#[test]
fn a_prepared_transaction_is_told_when_it_is_committed() {
    let disk = Disk::new(Medium::default(), 1);
    let config = |disk: &Disk| small().keep_changes(all()).backend(disk.backend());
    let db = config(&disk).open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    for id in ["kept", "aborted", "committed"] {
        let mut tx = db.begin().unwrap();
        tx.insert(&k, format!("{id} a"), "1").unwrap();
        tx.insert(&k, format!("{id} film"), vec![7; 200_000]).unwrap();
        tx.remove(&k, format!("{id} z")).unwrap();
        tx.prepare(id.as_bytes()).unwrap();
    }
    let since = now(&db);
    db.abort_prepared("aborted").unwrap();
    db.commit_prepared("committed").unwrap();
    k.insert("after", "2").unwrap();
    let commits = commits_since(&db, 0);
    let told: Vec<Vec<Change<'_>>> = commits.iter().map(|commit| commit.changes().collect()).collect();
    let [created, committed, after] = &told[..] else { panic!("{told:?}") };
    assert_eq!((&created[..], &after[..]), (&[Change::Create { keyspace: "k" }][..], &[put("k", "after", "2")][..]));
    let [first, Change::PutLarge { key: b"committed film", length: 200_000, .. }, last] = &committed[..] else {
        panic!("{committed:?}")
    };
    assert_eq!(*first, put("k", "committed a", "1"));
    assert_eq!(*last, Change::Remove { keyspace: "k", key: b"committed z" });
    assert!(commits[1].timestamp() > since);
    // A kill, before and after the commit.
    disk.turn_off();
    let disk = Disk::new(disk.medium(), 2);
    let db = config(&disk).open("/db").unwrap();
    assert_eq!(commits_since(&db, 0).len(), 3);
    db.commit_prepared("kept").unwrap();
    disk.turn_off();
    let disk = Disk::new(disk.medium(), 3);
    let db = config(&disk).open("/db").unwrap();
    let commits = commits_since(&db, 0);
    assert_eq!(commits.len(), 4);
    assert_eq!(commits[3].changes().count(), 3);
    let mut replica = Replica::default();
    replica.follow(&db, "from the beginning");
}

/// Random histories with loads, large transactions, prepared ones, alterations, checkpoints, compactions, closings and
/// kills: replicas that follow the feed from time to time, beginning anywhere, have the rows of the database. Three of
/// them keep their position over reopenings.
#[test]
fn replicas_follow_random_histories() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 6) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let streams = 1 + random.below(3) as u16;
        let config = |disk: &Disk| {
            let config = small().page_bytes(512).log_streams(streams).checkpoint_log_bytes(256 << 10);
            config.keep_changes(all()).backend(disk.backend())
        };
        let mut db = config(&disk).open("/db").unwrap();
        let mut replicas: [Replica; 3] = Default::default();
        let mut number = 0;
        for step in 0..60 {
            let place = format!("seed {seed}, step {step}");
            let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
            let name = match names.len() {
                0 => "0".to_owned(),
                count => names[random.below(count as u64) as usize].clone(),
            };
            match random.below(14) {
                0 => drop(db.keyspace(&format!("{}", random.below(4))).unwrap()),
                1 if names.len() > 2 => db.drop_keyspace(&name).unwrap(),
                2 if !names.is_empty() => {
                    number += 1;
                    db.alter().rename(&name, &format!("renamed {number}")).commit().unwrap();
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
                        tx.insert(&keyspace, format!("{:05}", random.below(9000)), random.bytes(60)).unwrap();
                    }
                    tx.commit().unwrap();
                }
                5 => {
                    let keyspace = db.keyspace(&name).unwrap();
                    let mut tx = db.begin().unwrap();
                    tx.insert(&keyspace, "prepared", random.bytes(10)).unwrap();
                    tx.prepare(b"id").unwrap();
                    match random.one_in(2) {
                        true => drop(db.commit_prepared("id").unwrap()),
                        false => db.abort_prepared("id").unwrap(),
                    };
                }
                6 => drop(db.checkpoint().unwrap()),
                7 => drop(db.compact().unwrap()),
                8 => {
                    db.sync().unwrap();
                    let closes = random.one_in(2);
                    if closes {
                        db.close().unwrap();
                    } else {
                        disk.turn_off();
                    }
                    disk = Disk::new(disk.medium(), seed + step);
                    db = config(&disk).open("/db").unwrap();
                }
                9 => {
                    let keyspace = db.keyspace(&name).unwrap();
                    let (lower, upper) = (random.below(500), random.below(500));
                    if lower < upper {
                        keyspace.remove_range(format!("{lower:05}")..format!("{upper:05}")).unwrap();
                    }
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
            for replica in &mut replicas {
                if random.one_in(6) {
                    replica.follow(&db, &place);
                }
            }
            if random.one_in(20) {
                replicas[0] = Replica::of(&db);
            }
        }
        for replica in &mut replicas {
            replica.follow(&db, "at the end");
        }
        Replica::default().follow(&db, "from the beginning");
        assert!(db.check().unwrap().corruption.is_empty());
    }
}

/// Three threads read the feed while others commit. They end at random, and continue where they were, over reopenings.
/// Each gets every commit once.
#[test]
fn readers_that_are_killed_get_each_commit_once() {
    const COMMITS: u64 = 300;
    let disk = Disk::new(Medium::default(), 1);
    let config = |disk: &Disk| {
        small().log_streams(2).checkpoint_log_bytes(128 << 10).keep_changes(all()).backend(disk.backend())
    };
    let mut disk = disk;
    let mut got: [Vec<(u64, u64)>; 3] = Default::default();
    for life in 0..5 {
        let db = config(&disk).open("/db").unwrap();
        let k = db.keyspace("k").unwrap();
        let start = now(&db).0;
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let k = &k;
                scope.spawn(move || {
                    for row in 0..COMMITS {
                        k.insert(format!("{life} {writer} {row}"), vec![7; 500]).unwrap();
                    }
                });
            }
            for (reader, got) in got.iter_mut().enumerate() {
                let db = &db;
                scope.spawn(move || {
                    let mut random = Random(life * 3 + reader as u64);
                    let end = start + 2 * COMMITS;
                    // The last reading of a life may leave commits for the next.
                    while got.last().is_none_or(|&(last, _)| last < end) {
                        let since = got.last().map_or(0, |&(last, _)| last);
                        let count = 1 + random.below(400) as usize;
                        for commit in db.changes(Timestamp(since)).unwrap().until(Timestamp(end)).take(count) {
                            let commit = commit.unwrap();
                            got.push((commit.timestamp().0, commit.changes().count() as u64));
                        }
                        if random.one_in(3) {
                            break;
                        }
                    }
                });
            }
        });
        match life % 2 {
            0 => disk.turn_off(),
            _ => db.close().unwrap(),
        }
        disk = Disk::new(disk.medium(), life);
    }
    let db = config(&disk).open("/db").unwrap();
    for got in &mut got {
        let since = got.last().map_or(0, |&(last, _)| last);
        got.extend(commits_since(&db, since).iter().map(|commit| (commit.timestamp().0, 1)));
        // Each commit but the first, which creates the keyspace, puts a row.
        let expected: Vec<(u64, u64)> = (1..=5 * 2 * COMMITS + 1).map(|timestamp| (timestamp, 1)).collect();
        assert_eq!(*got, expected);
    }
}

/// Within the retention nothing is missing. A feed that begins before it, or is too slow for it, gets an error that
/// says where there is something. Statistics show what is kept.
#[test]
fn the_retention_is_a_promise() {
    const KEPT_BYTES: u64 = 8 << 20;
    let db = Config::in_memory().memory(16 << 20).keep_changes(Retention::bytes(KEPT_BYTES)).open("").unwrap();
    let k = db.keyspace("k").unwrap().with_durability(Durability::Relaxed);
    let mut slow = db.changes(Timestamp(0)).unwrap();
    assert_eq!(slow.next().unwrap().unwrap().timestamp(), Timestamp(1));
    let mut written = 0;
    while written < 4 * KEPT_BYTES {
        k.insert(written.to_be_bytes(), vec![7; 10_000]).unwrap();
        written += 10_000;
        if written.is_multiple_of(1 << 20) {
            db.checkpoint().unwrap();
        }
    }
    db.checkpoint().unwrap();
    let stats = db.stats();
    let from = stats.changes_from.unwrap();
    assert_eq!((stats.changes_last, stats.changes_readers), (Some(stats.durable), 1));
    assert_eq!(stats.changes_lag, stats.durable.0 - 1);
    assert!((KEPT_BYTES..KEPT_BYTES * 5 / 4 + (1 << 20)).contains(&stats.changes_bytes), "{}", stats.changes_bytes);
    let kept = commits_since(&db, from.0);
    assert_eq!(kept.len() as u64, stats.durable.0 - from.0);
    let kept_bytes: u64 = kept.len() as u64 * 10_000;
    assert!(kept_bytes >= KEPT_BYTES * 9 / 10, "{kept_bytes} bytes are kept");
    let before = db.changes(Timestamp(from.0 - 1)).unwrap_err();
    assert!(matches!(before, Error::ChangesGone { from: told, .. } if told == from), "{before}");
    // The slow reader still reads what it has open, and then gets the error.
    let error = slow.by_ref().find_map(Result::err).unwrap();
    assert!(matches!(error, Error::ChangesGone { from: told, .. } if told == from), "{error}");
    assert!(slow.next().is_none(), "a feed goes on after an error");
    let early = db.changes(Timestamp(stats.durable.0 + 1)).unwrap_err();
    assert!(matches!(early, Error::Invalid(_)), "{early}");
}

/// Changes are kept for a time, however few bytes they have.
#[test]
fn changes_are_kept_for_a_time() {
    let folder = Folder::new();
    let config = small().keep_changes(Retention::time(Duration::from_secs(3600)));
    for life in 0..3u64 {
        let db = config.open(folder.path()).unwrap();
        db.keyspace("k").unwrap().insert(life.to_be_bytes(), vec![1; 1000]).unwrap();
        db.close().unwrap();
    }
    let db = config.open(folder.path()).unwrap();
    assert_eq!(commits_since(&db, 0).len(), 4);
    // With a short time, files that are old enough are removed as others follow.
    db.close().unwrap();
    let db = small().keep_changes(Retention::time(Duration::from_millis(50))).open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let began = std::time::Instant::now();
    while db.stats().changes_from == Some(Timestamp(0)) {
        k.insert("a", "1").unwrap();
        assert!(began.elapsed() < Duration::from_secs(60), "old changes stay");
    }
}

/// Without the setting there are no files and no feed. Once changes are kept, later openings continue to keep them,
/// until one turns that off. The next one that keeps changes begins again, and says from where on.
#[test]
fn the_retention_lasts_until_it_is_turned_off() {
    let folder = Folder::new();
    let db = small().open(folder.path()).unwrap();
    assert!(matches!(db.changes(Timestamp(0)), Err(Error::Invalid(_))));
    db.keyspace("k").unwrap();
    db.close().unwrap();
    assert!(!folder.path().join("changes").exists());
    let kept = small().keep_changes(all());
    let db = kept.open(folder.path()).unwrap();
    db.close().unwrap();
    assert!(!folder.path().join("changes").exists(), "an opening that commits nothing wrote something");
    let db = kept.open(folder.path()).unwrap();
    db.keyspace("k").unwrap().insert("a", "1").unwrap();
    assert_eq!(db.stats().changes_from, Some(Timestamp(1)));
    db.close().unwrap();
    let db = small().open(folder.path()).unwrap();
    db.keyspace("k").unwrap().insert("b", "2").unwrap();
    assert_eq!(commits_since(&db, 1).len(), 2);
    db.close().unwrap();
    let db = small().keep_changes(Retention::none()).open(folder.path()).unwrap();
    db.keyspace("k").unwrap().insert("c", "3").unwrap();
    assert!(matches!(db.changes(Timestamp(3)), Err(Error::Invalid(_))));
    assert_eq!(db.stats().changes_from, None);
    db.close().unwrap();
    assert_eq!(std::fs::read_dir(folder.path().join("changes")).unwrap().count(), 0);
    let db = kept.open(folder.path()).unwrap();
    let gap = db.changes(Timestamp(3)).unwrap_err();
    assert!(matches!(gap, Error::ChangesGone { since: Timestamp(3), from: Timestamp(4), .. }), "{gap}");
    db.keyspace("k").unwrap().insert("d", "4").unwrap();
    let commits = commits_since(&db, 4);
    assert_eq!(commits[0].changes().collect::<Vec<_>>(), [put("k", "d", "4")]);
}

/// If a file of changes can't be written, the database continues. The feed ends with an error that gives the reason,
/// and the next opening begins again.
#[test]
fn files_that_cannot_be_written_end_the_feed() {
    let folder = Folder::new();
    let config = small().keep_changes(all());
    let db = config.open(folder.path()).unwrap();
    db.keyspace("k").unwrap().insert("a", "1").unwrap();
    db.close().unwrap();
    let db = config.open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let mut changes = db.changes(Timestamp(0)).unwrap();
    assert!(changes.next().unwrap().is_ok() && changes.next().unwrap().is_ok());
    // The file that this opening would create.
    let obstacle = folder.path().join("changes/2.changes");
    std::fs::create_dir(&obstacle).unwrap();
    let reader = std::thread::spawn(move || changes.next());
    k.insert("b", "2").unwrap();
    let error = reader.join().unwrap().unwrap().unwrap_err();
    assert!(matches!(error, Error::ChangesGone { since: Timestamp(2), .. }), "{error}");
    assert_eq!(db.changes(Timestamp(0)).unwrap().until(Timestamp(2)).count(), 2, "what was kept is not readable");
    k.insert("c", "3").unwrap();
    db.checkpoint().unwrap();
    assert!(db.stats().changes_failure.unwrap().contains("no more changes"));
    drop(k);
    db.close().unwrap();
    std::fs::remove_dir(&obstacle).unwrap();
    let db = config.open(folder.path()).unwrap();
    let gone = db.changes(Timestamp(2)).unwrap_err();
    assert!(matches!(gone, Error::ChangesGone { from: Timestamp(4), .. }), "{gone}");
    db.keyspace("k").unwrap().insert("d", "4").unwrap();
    assert_eq!(commits_since(&db, 4).len(), 1);
    assert_eq!(db.stats().changes_failure, None);
    db.close().unwrap();
    // A foreign file in the place of a file of changes is left alone.
    let foreign = folder.path().join("changes/4.changes");
    std::fs::write(&foreign, "a poem").unwrap();
    let db = config.open(folder.path()).unwrap();
    db.keyspace("k").unwrap().insert("e", "5").unwrap();
    assert!(matches!(db.changes(Timestamp(4)), Err(Error::ChangesGone { .. })));
    db.close().unwrap();
    assert_eq!(std::fs::read(&foreign).unwrap(), b"a poem");
}

/// On a full disk the oldest changes are removed, and the rest stays readable.
#[test]
fn a_full_disk_takes_the_oldest_changes() {
    let (faulty, config) = faulty();
    let db = config.memory(16 << 20).keep_changes(Retention::bytes(32 << 20)).open("/db").unwrap();
    let k = db.keyspace("k").unwrap().with_durability(Durability::Relaxed);
    let fill = |rows: std::ops::Range<u32>| {
        for row in rows {
            match k.insert((row % 100).to_be_bytes(), vec![row as u8; 20_000]) {
                Ok(()) => {}
                Err(Error::DiskFull { .. }) => drop(db.checkpoint()),
                Err(other) => panic!("{other}"),
            }
        }
        db.checkpoint().unwrap();
    };
    fill(0..1000);
    assert_eq!(db.stats().changes_from, Some(Timestamp(0)));
    faulty.set_space_limit(Some(faulty.space_used() + (1 << 20)));
    fill(1000..4000);
    let stats = db.stats();
    let from = stats.changes_from.unwrap();
    assert!(from > Timestamp(0), "the disk was not filled by changes: {} bytes", stats.changes_bytes);
    assert!(stats.changes_failure.is_none(), "{:?}", stats.changes_failure);
    assert_eq!(commits_since(&db, from.0).len() as u64, stats.durable.0 - from.0);
}

/// Damage to a file of changes is an error that names it, wherever it is, and never a wrong or missing commit.
#[test]
fn damaged_changes_are_noticed() {
    let folder = Folder::new();
    let config = small().keep_changes(all());
    let db = config.open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    (0..30u8).for_each(|row| k.insert([row], [row; 100]).unwrap());
    let expected: Vec<_> =
        commits_since(&db, 0).iter().map(|commit| format!("{:?}", commit.changes().collect::<Vec<_>>())).collect();
    db.close().unwrap();
    let path = folder.path().join("changes/1.changes");
    let sound = std::fs::read(&path).unwrap();
    let mut random = Random(1);
    let mut refused = 0;
    for _ in 0..40 {
        let mut bytes = sound.clone();
        let at = random.below(bytes.len() as u64) as usize;
        match random.one_in(4) {
            true => bytes.truncate(at),
            false => bytes[at] ^= 1 << random.below(8),
        }
        std::fs::write(&path, &bytes).unwrap();
        let db = config.open(folder.path()).unwrap();
        let told = db
            .changes(Timestamp(0))
            .and_then(|changes| changes.until(Timestamp(31)).collect::<drumlin::Result<Vec<_>>>());
        match told {
            Ok(commits) => {
                let told: Vec<_> =
                    commits.iter().map(|commit| format!("{:?}", commit.changes().collect::<Vec<_>>())).collect();
                assert_eq!(told, expected);
            }
            Err(Error::Corrupted { .. } | Error::ChangesGone { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        assert_eq!(db.existing_keyspace("k").unwrap().count(..).unwrap(), 30);
        db.close().unwrap();
    }
    assert!(refused > 10, "{refused} damaged files were noticed");
}

/// A task waits for a commit without occupying a thread, and a stream yields commits.
#[test]
fn tasks_follow_the_feed() {
    let db = Config::in_memory().memory(16 << 20).keep_changes(all()).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    let executor = smol::LocalExecutor::new();
    block_on(executor.run(async {
        let mut stream = db.changes(now(&db)).unwrap().into_stream();
        let reader = executor.spawn(async move {
            let mut told = Vec::new();
            while told.len() < 20 {
                told.push(stream.next().await.unwrap().unwrap().timestamp().0);
            }
            told
        });
        for row in 0..20u8 {
            k.insert_async([row], "1").await.unwrap();
            smol::future::yield_now().await;
        }
        assert_eq!(reader.await, (2..22).collect::<Vec<u64>>());
    }));
    // Closing the database ends the waits.
    let mut changes = db.changes(now(&db)).unwrap();
    let waiting = std::thread::spawn(move || changes.next());
    db.close().unwrap();
    assert!(matches!(waiting.join().unwrap(), Some(Err(Error::Closed))));
}

/// The files can be read without opening the database, while another opening writes them, and after it.
#[test]
fn a_folder_is_followed_without_opening_it() {
    let folder = Folder::new();
    let config = small().keep_changes(Retention::bytes(4 << 20));
    assert!(Config::new().changes(folder.path().join("missing"), Timestamp(0)).is_err());
    let db = config.open(folder.path()).unwrap();
    let k = db.keyspace("k").unwrap();
    let began = std::time::Instant::now();
    let mut followed = loop {
        match Config::new().changes(folder.path(), Timestamp(0)) {
            Ok(followed) => break followed,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
        }
    };
    let mut timestamps = Vec::new();
    let end = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            (0..200u32).for_each(|row| k.insert(row.to_be_bytes(), [7; 300]).unwrap());
            now(&db).0
        });
        while timestamps.last() != Some(&201) {
            timestamps.push(followed.next().unwrap().unwrap().timestamp().0);
        }
        writer.join().unwrap()
    });
    assert_eq!(timestamps, (1..=end).collect::<Vec<u64>>());
    assert!(followed.ready().is_none());
    drop(k);
    db.close().unwrap();
    let db = config.open(folder.path()).unwrap();
    db.keyspace("k").unwrap().insert("a", "1").unwrap();
    let commit = followed.next().unwrap().unwrap();
    assert_eq!((commit.timestamp().0, commit.changes().collect::<Vec<_>>()), (end + 1, vec![put("k", "a", "1")]));
    // A reader of removed commits gets an error.
    let k = db.keyspace("k").unwrap().with_durability(Durability::Relaxed);
    (0..2000u32).for_each(|row| k.insert(row.to_be_bytes(), vec![7; 10_000]).unwrap());
    db.checkpoint().unwrap();
    let gone = Config::new().changes(folder.path(), Timestamp(0)).unwrap_err();
    assert!(matches!(gone, Error::ChangesGone { from, .. } if Some(from) == db.stats().changes_from), "{gone}");
}

/// A commit can be read soon after it is durable.
#[test]
fn a_commit_is_told_soon() {
    let db = Config::in_memory().memory(16 << 20).keep_changes(all()).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    let mut changes = db.changes(now(&db)).unwrap();
    let mut delays: Vec<Duration> = (0..50u8)
        .map(|row| {
            let tx = TxOptions::default();
            let mut tx = db.begin_with(tx).unwrap();
            tx.insert(&k, [row], "1").unwrap();
            tx.commit().unwrap();
            let began = std::time::Instant::now();
            changes.next().unwrap().unwrap();
            began.elapsed()
        })
        .collect();
    delays.sort_unstable();
    // Generous, because other tests run at the same time.
    assert!(delays[25] < Duration::from_millis(100), "{delays:?}");
}

/// Passes a child process of `killed_processes_consume_each_commit_once` its part and its paths.
const CHILD_VARIABLE: &str = "DRUMLIN_TEST_CHANGES_CHILD";

fn config_of_writer() -> Config {
    small().log_streams(2).checkpoint_log_bytes(256 << 10).keep_changes(all())
}

/// This is not a test, but the code of the child processes.
#[test]
fn child() {
    let Ok(order) = std::env::var(CHILD_VARIABLE) else { return };
    let words: Vec<&str> = order.split('\n').collect();
    match words[..] {
        ["writer", path] => write_forever(&config_of_writer().open(path).unwrap()),
        ["consumer", path, own] => {
            let own = small().open(own).unwrap();
            loop {
                // The writer may not have created its database yet.
                if let Ok(changes) = Config::new().changes(path, consumed(&own)) {
                    changes.for_each(|commit| consume(&own, &commit.unwrap()));
                }
                std::thread::yield_now();
            }
        }
        _ => panic!("{order:?}"),
    }
}

/// Commits rows, transactions and range deletes, until the process is killed. Prints a byte for each commit.
fn write_forever(db: &Database) {
    let k = db.keyspace("k").unwrap();
    let mut random = Random(now(db).0);
    loop {
        match random.below(8) {
            0 => {
                let mut tx = db.begin().unwrap();
                (0..20).for_each(|_| tx.insert(&k, random.bytes(3), random.bytes(40)).unwrap());
                tx.commit().unwrap();
            }
            1 => k.remove_range(vec![random.below(256) as u8]..vec![255, 255]).unwrap(),
            2 => k.remove(random.bytes(1)).unwrap(),
            _ => k.insert_with(random.bytes(2), random.bytes(200), Durability::Relaxed).unwrap(),
        }
        std::io::stdout().write_all(b"\n").unwrap();
    }
}

/// Returns the last commit that a consumer has stored.
fn consumed(own: &Database) -> Timestamp {
    let commits = own.keyspace("commits").unwrap();
    let last = commits.iter().next_back();
    last.map_or(Timestamp(0), |row| Timestamp(u64::from_be_bytes(row.unwrap().0[..].try_into().unwrap())))
}

fn text_of(commit: &Commit) -> String {
    format!("{:?}", commit.changes().collect::<Vec<_>>())
}

/// Stores a commit: its timestamp is the consumer's position. Each commit must be new.
fn consume(own: &Database, commit: &Commit) {
    let commits = own.keyspace("commits").unwrap();
    let mut tx = own.begin().unwrap();
    let at = commit.timestamp().0.to_be_bytes();
    assert!(tx.get(&commits, at).unwrap().is_none(), "commit {} comes twice", commit.timestamp());
    tx.insert(&commits, at, text_of(commit)).unwrap();
    tx.commit().unwrap();
}

/// On real files, a process writes and three other processes follow its change files. Each of the four is killed again
/// and again at random commits, and continues where it was: the consumers at the position that they store with each
/// commit. In the end, each consumer has every commit once.
#[test]
fn killed_processes_consume_each_commit_once() {
    let seed = number("DRUMLIN_TEST_SEED", 0);
    let mut random = Random(seed);
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path()).unwrap();
    let path = folder.path().join("writer");
    let owns: Vec<_> = (0..3).map(|consumer| folder.path().join(format!("consumer-{consumer}"))).collect();
    let start = |order: String| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "changes::child", "--nocapture", "--test-threads=1"]).env(CHILD_VARIABLE, order);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let orders: Vec<String> = std::iter::once(format!("writer\n{}", path.display()))
        .chain(owns.iter().map(|own| format!("consumer\n{}\n{}", path.display(), own.display())))
        .collect();
    let mut children: Vec<_> = orders.iter().map(|order| start(order.clone())).collect();
    let kill = |child: &mut std::process::Child| {
        child.kill().unwrap();
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().code().is_none(), "a process ended by itself: {text}");
    };
    for _ in 0..number("DRUMLIN_TEST_KILLS", 12) {
        let commits = random.below(600) as usize;
        children[0].stdout.as_mut().unwrap().read_exact(&mut vec![0; commits]).unwrap();
        let victim = random.below(children.len() as u64) as usize;
        kill(&mut children[victim]);
        children[victim] = start(orders[victim].clone());
    }
    children.iter_mut().for_each(kill);
    let db = config_of_writer().open(&path).unwrap();
    let expected: Vec<(u64, String)> =
        commits_since(&db, 0).iter().map(|commit| (commit.timestamp().0, text_of(commit))).collect();
    assert!(expected.iter().map(|(at, _)| *at).eq(1..=expected.len() as u64), "seed {seed}: a commit is missing");
    for own in owns {
        let own = small().open(own).unwrap();
        let before = consumed(&own).0;
        let rest = Config::new().changes(&path, Timestamp(before)).unwrap();
        rest.take(expected.len() - before as usize).for_each(|commit| consume(&own, &commit.unwrap()));
        let rows = own.existing_keyspace("commits").unwrap();
        let found: Vec<(u64, String)> = rows
            .iter()
            .map(|row| row.map(|(key, text)| (u64::from_be_bytes(key[..].try_into().unwrap()), text)))
            .map(|row| row.map(|(at, text)| (at, String::from_utf8(text.into_vec()).unwrap())))
            .collect::<drumlin::Result<_>>()
            .unwrap();
        println!("a consumer had {before} of {} commits when it was killed for the last time", expected.len());
        assert!(found == expected, "seed {seed}: a consumer has other commits");
    }
}

/// Returns the changes of the commits after `since` with their old values, as text.
fn with_old_values(db: &Database, since: u64) -> Vec<Vec<String>> {
    let text = |(change, old): (Change<'_>, Option<OldValue<'_>>)| match change {
        Change::Put { key, .. } | Change::PutLarge { key, .. } | Change::Remove { key, .. } => {
            let old = old.map(|old| match old {
                OldValue::Value(value) => format!("{} bytes of {}", value.len(), value.first().copied().unwrap_or(0)),
                other => format!("{other:?}"),
            });
            format!("{}: {}", key.escape_ascii(), old.unwrap_or("unknown".into()))
        }
        _ => {
            assert_eq!(old, None, "{change:?} has an old value");
            "no row".to_owned()
        }
    };
    commits_since(db, since).iter().map(|commit| commit.changes_with_old_values().map(text).collect()).collect()
}

/// Changes have the values before: absent, inline or large, of single rows, transactions, removals and prepared
/// transactions, in ranges that the same commit removes, after loads, and after a kill that leaves them in the log.
#[test]
fn old_values_are_told_on_request() {
    let disk = Disk::new(Medium::default(), 1);
    let config = |disk: &Disk| small().keep_changes(all().with_old_values()).backend(disk.backend());
    let db = config(&disk).open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("a", [1; 10]).unwrap();
    k.insert("a", [2; 20]).unwrap();
    k.remove("a").unwrap();
    k.remove("a").unwrap();
    k.insert("b", vec![3; 100_000]).unwrap();
    k.insert("b", vec![4; 30_000]).unwrap();
    k.insert("b", [5; 3]).unwrap();
    let mut tx = db.begin().unwrap();
    (0..40).for_each(|row| tx.insert(&k, format!("row {row:02}"), [6; 100]).unwrap());
    tx.insert(&k, "b", vec![7; 100_000]).unwrap();
    tx.commit().unwrap();
    let mut tx = db.begin().unwrap();
    tx.remove_range(&k, "row 10".."row 30").unwrap();
    tx.insert(&k, "row 20", [8; 8]).unwrap();
    tx.insert(&k, "row 35", [8; 8]).unwrap();
    tx.commit().unwrap();
    let mut load = db.bulk_load("k").unwrap();
    load.insert("row 00", [9; 9]).unwrap();
    load.insert("row 99", [9; 9]).unwrap();
    load.finish().unwrap();
    k.insert("row 00", [10; 10]).unwrap();
    k.insert("row 15", [10; 10]).unwrap();
    let mut tx = db.begin().unwrap();
    tx.insert(&k, "row 01", [11; 200]).unwrap();
    tx.insert(&k, "row 02", vec![11; 80_000]).unwrap();
    tx.remove(&k, "row 99").unwrap();
    tx.prepare(b"id").unwrap();
    db.commit_prepared("id").unwrap();
    let row_of = |row: usize| format!("row {row:02}: Absent");
    let mut large = vec!["b: 3 bytes of 5".to_owned()];
    large.extend((0..40).map(row_of));
    let large_before = "b: Large { length: 100000 }";
    let expected: Vec<Vec<String>> = vec![
        vec!["no row".into()],
        vec!["a: Absent".into()],
        vec!["a: 10 bytes of 1".into()],
        vec!["a: 20 bytes of 2".into()],
        vec!["a: Absent".into()],
        vec!["b: Absent".into()],
        vec![large_before.into()],
        vec!["b: Large { length: 30000 }".into()],
        large,
        vec!["no row".into(), "row 20: 100 bytes of 6".into(), "row 35: 100 bytes of 6".into()],
        vec!["no row".into()],
        vec!["row 00: 9 bytes of 9".into()],
        vec!["row 15: Absent".into()],
        vec!["row 01: 100 bytes of 6".into(), "row 02: 100 bytes of 6".into(), "row 99: 9 bytes of 9".into()],
    ];
    assert_eq!(with_old_values(&db, 0), expected);
    // After a kill, the commits are copied again from the log.
    disk.turn_off();
    let disk = Disk::new(disk.medium(), 2);
    let db = config(&disk).open("/db").unwrap();
    assert_eq!(with_old_values(&db, 0), expected);
    assert_eq!(db.existing_keyspace("k").unwrap().get("row 00").unwrap().unwrap()[..], [10; 10]);
    // Later openings continue with the setting, until one turns it off.
    drop(db);
    let reopen = |retention: Option<Retention>, disk: Disk| {
        let disk = Disk::new(disk.medium(), 3);
        let config = small().backend(disk.backend());
        let db = retention.map_or(config.clone(), |retention| config.keep_changes(retention)).open("/db").unwrap();
        let since = now(&db).0;
        db.existing_keyspace("k").unwrap().insert("a", [1; 1]).unwrap();
        let told = with_old_values(&db, since);
        db.close().unwrap();
        (told, disk)
    };
    let (told, disk) = reopen(None, disk);
    assert_eq!(told, [["a: Absent"]]);
    let (told, disk) = reopen(Some(all()), disk);
    assert_eq!(told, [["a: unknown"]]);
    let (told, _) = reopen(Some(all().with_old_values()), disk);
    assert_eq!(told, [["a: 1 bytes of 1"]]);
}

/// Removed ranges, loads, and transactions that outgrew memory tell neither their rows nor old values of them. That
/// differs from a row that was absent.
#[test]
fn old_values_that_are_not_told_differ_from_absent_rows() {
    let config = Config::in_memory().memory(8 << 20).keep_changes(all().with_old_values());
    let db = config.open("").unwrap();
    let k = db.keyspace("k").unwrap();
    k.insert("000001", "old").unwrap();
    k.insert("000003", "old").unwrap();
    let since = now(&db).0;
    k.remove_range("000000".."000002").unwrap();
    let mut load = db.bulk_load("k").unwrap();
    load.insert("000001", "of the load").unwrap();
    load.insert("000003", "of the load").unwrap();
    load.finish().unwrap();
    let mut tx = db.begin().unwrap();
    for row in 0..40_000 {
        tx.insert(&k, format!("{row:06}"), [2; 100]).unwrap();
    }
    tx.commit().unwrap();
    k.insert("a", "absent before").unwrap();
    k.insert("000001", "2s before").unwrap();
    let described = |commit: &Commit| {
        let described = commit.changes_with_old_values().map(|(change, old)| {
            let change = match change {
                Change::RemoveRange { .. } => "a range",
                Change::Loaded { .. } => "a load",
                Change::Put { .. } => "a row",
                other => panic!("{other:?}"),
            };
            let old = match old {
                None => "not told",
                Some(OldValue::Absent) => "absent",
                Some(OldValue::Value(_)) => "a value",
                other => panic!("{other:?}"),
            };
            format!("{change}: {old}")
        });
        described.collect::<Vec<_>>()
    };
    let told: Vec<_> = commits_since(&db, since).iter().map(described).collect();
    let expected = ["a range: not told", "a load: not told", "a load: not told", "a row: absent", "a row: a value"];
    assert_eq!(told, expected.map(|text| vec![text.to_owned()]));
}

/// A load and a transaction that outgrew memory tell the first and the last key of their rows.
#[test]
fn loads_tell_the_range_of_their_keys() {
    let db = Config::in_memory().memory(8 << 20).keep_changes(all()).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    let mut load = db.bulk_load("k").unwrap();
    for row in [500, 20, 7000] {
        load.insert(format!("{row:06}"), [1; 10]).unwrap();
    }
    load.finish().unwrap();
    let other = db.keyspace("other").unwrap();
    let mut tx = db.begin().unwrap();
    for row in 0..40_000 {
        tx.insert(if row % 2 == 0 { &k } else { &other }, format!("{row:06}"), [2; 100]).unwrap();
    }
    tx.remove(&other, "9").unwrap();
    tx.commit().unwrap();
    let commits = commits_since(&db, 0);
    let of_loads = |commit: &Commit| {
        let told = commit.changes().filter_map(|change| match change {
            Change::Loaded { keyspace, rows, first_key, last_key, .. } => {
                Some(format!("{keyspace} {rows} {}-{}", first_key.escape_ascii(), last_key.escape_ascii()))
            }
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    let told: Vec<Vec<String>> = commits.iter().map(of_loads).filter(|told| !told.is_empty()).collect();
    assert_eq!(
        told,
        [vec!["k 3 000020-007000"], vec!["k 20000 000000-039998", "other 20001 000001-9"]],
        "the bounds of loads"
    );
}

/// With the smallest budget, commits can be read whose records are nearly as large as a record may be.
#[test]
fn the_largest_records_are_read() {
    const ROWS: usize = 240;
    let db = Config::in_memory().memory(8 << 20).keep_changes(Retention::bytes(8 << 20).with_old_values());
    let db = db.open("").unwrap();
    let k = db.keyspace("k").unwrap();
    for version in 0..3u8 {
        let since = db.snapshot().timestamp();
        let mut batch = db.batch().unwrap();
        for row in 0..ROWS {
            batch.insert(&k, row.to_be_bytes(), [version; 1000]).unwrap();
        }
        batch.commit().unwrap();
        let commits = commits_since(&db, since.0);
        assert_eq!(commits.len(), 1);
        // It is no transaction that went to disk, whose rows would be told by their number.
        assert!(commits[0].changes().filter(|change| matches!(change, Change::Put { .. })).count() == ROWS);
    }
}
