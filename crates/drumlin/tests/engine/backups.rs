//! Backups: what is restored is what was backed up, and a backup that is not whole is refused.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use drumlin::{BackupOptions, Database, Durability, Error};
use drumlin_io::testing::fault::{FaultyBackend, Operation};
use drumlin_io::testing::sim::{Disk, Medium};

use crate::kept_snapshots::{Ends, assert_pairs, filled, value, write, write_pairs};
use crate::runs::{compare, config, end_life, key, load, some_rows};
use crate::support::{Folder, Model, Random, number, small};

/// A backup that was written as a stream, and the rows that it has.
struct Made {
    bytes: Vec<u8>,
    /// The number of the backup since which it has the changes.
    base: Option<usize>,
    rows: Model,
}

/// Restores a backup and those before it into a new database, and compares its rows.
fn restore(made: &[Made], last: usize, random: &mut Random, place: &str) {
    let mut chain = vec![last];
    while let Some(base) = made[*chain.last().unwrap()].base {
        chain.push(base);
    }
    chain.reverse();
    let disk = Disk::new(Medium::default(), 1);
    let target = config(&disk);
    let streams = chain.iter().map(|backup| &made[*backup].bytes[..]);
    let info = target.restore_from(streams, "/restored").unwrap_or_else(|error| panic!("{place}: {error}"));
    assert_eq!(info.keyspaces, ["k"], "{place}");
    let restored = target.open("/restored").unwrap_or_else(|error| panic!("{place}: {error}"));
    assert_eq!(restored.opening().last, info.timestamp, "{place}");
    let keyspace = restored.keyspace("k").unwrap();
    compare(&restored.snapshot(), &keyspace, &made[last].rows, random, place);
    let report = restored.check().unwrap();
    assert!(report.corruption.is_empty(), "{place}: {report:#?}");
    // It can be written to like any other database.
    keyspace.insert(key(5), "after the restore").unwrap();
    restored.checkpoint().unwrap();
    assert_eq!(restored.keyspace("k").unwrap().get(key(5)).unwrap().unwrap(), "after the restore");
}

/// Full and incremental backups among commits, loads, range deletes, compactions and power cuts. Each can be restored.
#[test]
fn what_is_restored_is_what_was_backed_up() {
    let first = number("DRUMLIN_TEST_SEED", 0);
    for seed in first..first + number("DRUMLIN_TEST_ROUNDS", 6) {
        let mut random = Random(seed);
        let mut disk = Disk::new(Medium::default(), seed);
        let mut db = config(&disk).open("/db").unwrap();
        let mut keyspace = db.keyspace("k").unwrap();
        let mut rows = Model::new();
        let mut made: Vec<Made> = Vec::new();
        // The backups whose snapshots are kept.
        let mut kept: BTreeMap<String, usize> = BTreeMap::new();
        for step in 0..60 {
            let place = format!("seed {seed}, step {step}");
            match random.below(12) {
                0 => {
                    let loaded = some_rows(&mut random, 1000, 400);
                    load(&db, "k", &loaded).unwrap();
                    rows.extend(loaded);
                }
                1 => {
                    let [lower, upper] = [0; 2].map(|_| key(random.below(1000)));
                    if lower < upper {
                        keyspace.remove_range(lower.clone()..upper.clone()).unwrap();
                        rows.retain(|key, _| *key < lower || *key >= upper);
                    }
                }
                2..6 => {
                    for (key, value) in some_rows(&mut random, 1000, 150) {
                        if random.one_in(4) {
                            keyspace.remove(&key).unwrap();
                            rows.remove(&key);
                        } else {
                            keyspace.insert_with(&key, &value, Durability::Relaxed).unwrap();
                            rows.insert(key, value);
                        }
                    }
                    db.sync().unwrap();
                }
                6..9 => {
                    let mut options = BackupOptions::new();
                    if step % 2 == 0 {
                        options = options.urgent();
                    }
                    let base = kept.iter().nth(random.below(3) as usize).map(|(name, base)| (name.clone(), *base));
                    if let Some((name, _)) = &base {
                        options = options.since(name);
                    }
                    let name = format!("{step}");
                    let is_kept = random.one_in(2);
                    if is_kept {
                        options = options.keep(&name);
                    }
                    let mut bytes = Vec::new();
                    let report =
                        db.backup_into(&mut bytes, &options).unwrap_or_else(|error| panic!("{place}: {error}"));
                    assert_eq!(report.bytes, bytes.len() as u64, "{place}");
                    made.push(Made { bytes, base: base.map(|(_, base)| base), rows: rows.clone() });
                    if is_kept {
                        kept.insert(name, made.len() - 1);
                    }
                    let names: Vec<String> = db.kept_snapshots().into_iter().map(|info| info.name).collect();
                    assert!(names.iter().eq(kept.keys()), "{place}: {names:?} are kept");
                }
                9 if kept.len() > 2 => {
                    let (name, _) = kept.pop_first().unwrap();
                    db.drop_snapshot(&name).unwrap();
                }
                10 => drop(db.compact().unwrap()),
                _ => {
                    disk = end_life(&disk, (db, keyspace), random.one_in(2), &mut random, seed);
                    db = config(&disk).open("/db").unwrap_or_else(|error| panic!("{place}: {error}"));
                    keyspace = db.keyspace("k").unwrap();
                }
            }
            if !made.is_empty() && random.one_in(6) {
                let last = random.below(made.len() as u64) as usize;
                restore(&made, last, &mut random, &format!("{place}, backup {last}"));
            }
        }
    }
}

fn backup(db: &Database, options: &BackupOptions) -> Vec<u8> {
    let mut bytes = Vec::new();
    db.backup_into(&mut bytes, options).unwrap();
    bytes
}

fn new() -> BackupOptions {
    BackupOptions::new()
}

/// All kinds of keyspaces and rows are restored: page sizes, large values, runs that are not folded, and prepared
/// transactions, which stay prepared.
#[test]
fn everything_is_restored() {
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), 2000);
    let wide = db.keyspace_with("wide", drumlin::KeyspaceOptions::new().page_bytes(16 << 10)).unwrap();
    let large = Random(3).bytes(900_000);
    wide.insert("large", &large).unwrap();
    wide.insert("medium", &large[..40_000]).unwrap();
    db.keyspace("empty").unwrap();
    db.keyspace("dropped").unwrap().insert("a", "b").unwrap();
    db.drop_keyspace("dropped").unwrap();
    db.alter().rename("k", "renamed").commit().unwrap();
    let snapshot = db.snapshot();
    load(&db, "renamed", &(5000u64..6000).map(|row| (row.to_be_bytes().to_vec(), value(row, 1))).collect()).unwrap();
    let mut tx = db.begin().unwrap();
    tx.insert(&keyspace, "prepared", "value").unwrap();
    tx.insert(&keyspace, "prepared large", &large[..300_000]).unwrap();
    tx.prepare("an id").unwrap();
    let bytes = backup(&db, &new());
    drop(snapshot);
    let target = folder.path().with_file_name("restored");
    let info = small().restore_from([&bytes[..]], &target).unwrap();
    assert_eq!(info.keyspaces, ["empty", "renamed", "wide"]);
    let restored = small().open(&target).unwrap();
    let keyspace = restored.existing_keyspace("renamed").unwrap();
    assert_eq!(keyspace.len().unwrap(), 3000);
    assert_eq!(keyspace.get(5500u64.to_be_bytes()).unwrap().unwrap(), value(5500, 1));
    let wide = restored.existing_keyspace("wide").unwrap();
    assert_eq!(wide.key_bytes_max(), 4 << 10);
    assert_eq!(wide.get("large").unwrap().unwrap(), large);
    assert_eq!(wide.get("medium").unwrap().unwrap(), &large[..40_000]);
    assert!(restored.existing_keyspace("dropped").is_err());
    assert_eq!(restored.prepared().unwrap().len(), 1);
    assert!(keyspace.get("prepared").unwrap().is_none());
    restored.commit_prepared("an id").unwrap();
    assert_eq!(keyspace.get("prepared").unwrap().unwrap(), "value");
    assert_eq!(keyspace.get("prepared large").unwrap().unwrap(), &large[..300_000]);
    let report = restored.check().unwrap();
    assert!(report.corruption.is_empty(), "{report:#?}");
    restored.close().unwrap();
    assert!(small().examine(&target).unwrap().corruption.is_empty());
}

/// An incremental backup has only what has changed.
#[test]
fn an_increment_is_as_long_as_its_changes() {
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), 20_000);
    let full = backup(&db, &new().keep("sunday"));
    write(&keyspace, 500..700, 2);
    let changes = backup(&db, &new().since("sunday").keep("monday"));
    assert!(changes.len() * 20 < full.len(), "{} bytes, the full one {}", changes.len(), full.len());
    let nothing = backup(&db, &new().since("monday"));
    assert!(nothing.len() < 4000, "{} bytes for no change", nothing.len());
    let target = folder.path().with_file_name("restored");
    small().restore_from([&full[..], &changes, &nothing], &target).unwrap();
    let keyspace = small().open(&target).unwrap().keyspace("k").unwrap();
    assert_eq!(keyspace.get(600u64.to_be_bytes()).unwrap().unwrap(), value(600, 2));
    assert_eq!(keyspace.get(700u64.to_be_bytes()).unwrap().unwrap(), value(700, 1));
}

/// Backups that do not follow each other are refused, with the reason, and nothing is restored.
#[test]
fn a_broken_chain_is_refused() {
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), 500);
    let full = backup(&db, &new().keep("a"));
    write(&keyspace, 0..50, 2);
    let first = backup(&db, &new().since("a").keep("b"));
    write(&keyspace, 50..90, 3);
    let second = backup(&db, &new().since("b"));
    let other_folder = Folder::new();
    let (other, _) = filled(&small(), other_folder.path(), 500);
    let of_other = backup(&other, &new().keep("a"));
    let target = folder.path().with_file_name("restored");
    let refused = |chain: &[&[u8]], expected: &str| {
        let result = small().restore_from(chain.iter().copied(), &target);
        let is_expected = matches!(&result, Err(Error::UnusableBackup { reason, .. }) if reason.contains(expected));
        assert!(is_expected, "{expected}: {result:?}");
        assert!(small().create(false).open(&target).is_err(), "{expected}: something was restored");
    };
    refused(&[&first], "only the changes since");
    refused(&[&full, &second], "the backup before it ends at");
    refused(&[&full, &first, &full], "it is a full backup");
    refused(&[&of_other, &first], "another database");
    assert!(matches!(small().restore_from(Vec::<&[u8]>::new(), &target), Err(Error::Invalid(_))));
    assert!(matches!(db.backup_into(Vec::new(), &new().since("none")), Err(Error::NoSuchSnapshot { .. })));
    let same = db.backup_into(Vec::new(), &new().keep("a").since("a"));
    assert!(matches!(&same, Err(Error::Invalid(why)) if why.contains("not older")), "{same:?}");
    assert!(same.unwrap_err().to_string().contains("was kept before"));
    let older = db.backup_into(Vec::new(), &new().keep("a").since("b"));
    assert!(matches!(&older, Err(Error::Invalid(why)) if why.contains("not older")), "{older:?}");
    small().restore_from([&full[..], &first, &second], &target).unwrap();
    let again = small().restore_from([&full[..]], &target);
    assert!(matches!(&again, Err(Error::Invalid(why)) if why.contains("not empty")), "{again:?}");
    assert_eq!(small().open(&target).unwrap().keyspace("k").unwrap().len().unwrap(), 500);
}

/// Any change of a backup is found, wherever it is, and wherever the backup ends: when it is verified, and when it is
/// restored.
#[test]
fn damaged_backups_are_refused() {
    let folder = Folder::new();
    let (db, _) = filled(&small(), folder.path(), 8000);
    let path = folder.path().with_file_name("backup");
    let report = db.backup_to(&path, &new()).unwrap();
    assert!(report.parts > 3, "{report:?}");
    let whole = backup(&db, &new());
    let info = small().verify_backup_from(&whole[..]).unwrap();
    assert_eq!(info.bytes, whole.len() as u64);
    assert_eq!((info.timestamp, info.pages, info.since), (report.timestamp, report.pages, None));
    let is_refused = |result: drumlin::Result<drumlin::BackupInfo>, place: &str| {
        assert!(matches!(result, Err(Error::UnusableBackup { .. })), "{place}: {result:?}");
    };
    let mut random = Random(1);
    for _ in 0..60 {
        let mut damaged = whole.clone();
        let at = random.below(whole.len() as u64) as usize;
        damaged[at] ^= 1 << random.below(8);
        is_refused(small().verify_backup_from(&damaged[..]), &format!("flipped at {at}"));
        let end = random.below(whole.len() as u64) as usize;
        is_refused(small().verify_backup_from(&whole[..end]), &format!("cut at {end}"));
    }
    let target = folder.path().with_file_name("restored");
    is_refused(small().restore_from([&whole[..whole.len() / 2]], &target), "restoring half");
    let part = |number: u32| path.join(format!("part-{number:06}"));
    small().verify_backup(&path).unwrap();
    for number in 0..report.parts {
        let bytes = std::fs::read(part(number)).unwrap();
        std::fs::remove_file(part(number)).unwrap();
        is_refused(small().verify_backup(&path), &format!("without part {number}"));
        std::fs::write(part(number), &bytes[..bytes.len() - 1]).unwrap();
        is_refused(small().verify_backup(&path), &format!("part {number} cut"));
        std::fs::write(part(number), &bytes).unwrap();
    }
    std::fs::copy(part(2), part(1)).unwrap();
    is_refused(small().verify_backup(&path), "part 2 twice");
    is_refused(small().verify_backup(folder.path().with_file_name("none")), "no folder");
    is_refused(small().verify_backup(folder.path()), "a database");
    // After all these attempts, the target can still be restored into.
    small().restore_from([&whole[..]], &target).unwrap();
    assert_eq!(small().open(&target).unwrap().keyspace("k").unwrap().len().unwrap(), 8000);
}

/// A backup of a kept snapshot that was interrupted is continued: parts that are there are not written again, and a
/// damaged one is.
#[test]
fn an_interrupted_backup_is_continued() {
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), 20_000);
    let path = folder.path().with_file_name("backup");
    let options = new().keep("a");
    let report = db.backup_to(&path, &options).unwrap();
    assert_eq!(report.parts_found, 0);
    let part = |number: u32| path.join(format!("part-{number:06}"));
    let bytes: Vec<Vec<u8>> = (0..report.parts).map(|number| std::fs::read(part(number)).unwrap()).collect();
    // As if the machine had stopped in the middle.
    std::fs::write(part(2), &bytes[2][..1000]).unwrap();
    (3..report.parts).for_each(|number| std::fs::remove_file(part(number)).unwrap());
    write(&keyspace, 0..20_000, 2);
    let again = db.backup_to(&path, &options).unwrap();
    assert_eq!((again.parts_found, again.parts, again.bytes), (2, report.parts, report.bytes));
    assert!(report.snapshot_age.is_none() && again.snapshot_age.is_some(), "{report:?}, {again:?}");
    for (number, bytes) in (0..).zip(&bytes) {
        assert!(std::fs::read(part(number)).unwrap() == *bytes, "part {number} differs");
    }
    let other = db.backup_to(&path, &new());
    assert!(matches!(&other, Err(Error::Invalid(why)) if why.contains("another backup")), "{other:?}");
    std::fs::write(path.join("notes"), "").unwrap();
    let foreign = db.backup_to(&path, &options);
    assert!(matches!(&foreign, Err(Error::Invalid(why)) if why.contains("notes")), "{foreign:?}");
    assert_eq!(db.kept_snapshots().len(), 1, "the snapshots of failed backups are kept");
}

/// A writer that fails, like a pipe that breaks.
struct Broken(usize);

impl Write for Broken {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A target that fails ends the backup with an error and leaves the database as it was. So does a damaged page, which
/// the error names.
#[test]
fn failing_backups_leave_nothing() {
    let disk = FaultyBackend::new(drumlin_io::in_memory());
    let config = small().backend(Arc::new(disk.clone()));
    let (db, keyspace) = filled(&config, "/db", 20_000);
    let broken = db.backup_into(Broken(3 << 20), &new());
    let is_broken =
        |error: &Error| matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe);
    assert!(broken.as_ref().is_err_and(is_broken), "{broken:?}");
    disk.set_space_limit(Some(disk.space_used() + (1 << 20)));
    let full = db.backup_to("/backup", &new().keep("a"));
    assert!(matches!(full, Err(Error::DiskFull { .. })), "{full:?}");
    disk.set_space_limit(None);
    let report = db.backup_to("/backup", &new().keep("a")).unwrap();
    assert!(report.parts_found > 0, "{report:?}");
    db.drop_snapshot("a").unwrap();
    disk.set_space_limit(Some(disk.space_used() + (1 << 20)));
    let full = config.restore(["/backup"], "/restored");
    assert!(matches!(full, Err(Error::DiskFull { .. })), "{full:?}");
    disk.set_space_limit(None);
    disk.fail_nth(Operation::Write, 20, 5);
    assert!(matches!(config.restore(["/backup"], "/restored"), Err(Error::Io { .. } | Error::Failed { .. })));
    config.restore(["/backup"], "/restored").unwrap();
    assert_eq!(config.open("/restored").unwrap().keyspace("k").unwrap().len().unwrap(), 20_000);
    assert_eq!(keyspace.len().unwrap(), 20_000);
    assert!(db.kept_snapshots().is_empty());
    assert!(db.check().unwrap().corruption.is_empty());
}

/// A kill in the middle of a backup leaves nothing: neither its snapshot nor the space that this pinned.
#[test]
fn a_killed_backup_leaves_no_snapshot() {
    /// Turns the disk off after some bytes.
    struct Kill<'d>(&'d Disk, usize);

    impl Write for Kill<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.1 = self.1.saturating_sub(bytes.len());
            if self.1 == 0 {
                self.0.turn_off();
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let disk = Disk::new(Medium::default(), 1);
    let (db, keyspace) = filled(&config(&disk), "/db", 10_000);
    db.keep_snapshot("kept").unwrap();
    assert!(db.backup_into(Kill(&disk, 1 << 20), &new()).is_err());
    drop((db, keyspace));
    let medium = disk.medium().cut(drumlin_io::testing::sim::Loss::ALL[0], &mut drumlin_io::testing::sim::Random(1));
    let disk = Disk::new(medium, 2);
    let db = config(&disk).open("/db").unwrap();
    let names: Vec<String> = db.kept_snapshots().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["kept"]);
    db.drop_snapshot("kept").unwrap();
    db.checkpoint().unwrap();
    assert_eq!(db.stats().kept_snapshot_bytes, 0);
    assert!(db.check().unwrap().corruption.is_empty());
}

/// Backups are made while other threads write. Each has a state between two commits.
#[test]
fn backups_are_made_while_others_write() {
    const ROWS: u64 = 3000;
    let folder = Folder::new();
    let (db, keyspace) = filled(&small(), folder.path(), ROWS);
    let is_done = AtomicBool::new(false);
    let backups: Vec<Vec<u8>> = std::thread::scope(|scope| {
        write_pairs(scope, &db, &keyspace, ROWS, &is_done);
        let _ends = Ends(&is_done);
        let mut backups = vec![backup(&db, &new().keep("0"))];
        for round in 1..5u32 {
            backups.push(backup(&db, &new().since(&(round - 1).to_string()).keep(&round.to_string())));
            db.drop_snapshot(&(round - 1).to_string()).unwrap();
        }
        backups
    });
    for end in 1..=backups.len() {
        let target = folder.path().with_file_name(format!("restored-{end}"));
        small().restore_from(backups[..end].iter().map(|bytes| &bytes[..]), &target).unwrap();
        let keyspace = small().open(&target).unwrap().keyspace("k").unwrap();
        assert_pairs(ROWS, |row| keyspace.get(row.to_be_bytes()).unwrap().unwrap(), &format!("backup {end}"));
    }
}

/// In the smallest budget, a database with many pages is backed up while a snapshot is open, and restored.
#[test]
fn backups_fit_into_the_smallest_budget() {
    const ROWS: u64 = 70_000;
    let folder = Folder::new();
    let config = small().page_bytes(512);
    let db = config.open(folder.path()).unwrap();
    let rows: Model = (0..ROWS).map(|row| (row.to_be_bytes().to_vec(), Random(row).bytes(300))).collect();
    load(&db, "k", &rows).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let full = backup(&db, &new().keep("a"));
    write(&keyspace, (0..ROWS).step_by(1000), 2);
    let snapshot = db.open_snapshot("a").unwrap();
    let increment = backup(&db, &new().since("a"));
    assert!(increment.len() * 20 < full.len(), "{} and {} bytes", full.len(), increment.len());
    assert_eq!(snapshot.get(&keyspace, 1000u64.to_be_bytes()).unwrap().unwrap(), Random(1000).bytes(300));
    let target = folder.path().with_file_name("restored");
    config.restore_from([&full[..], &increment[..]], &target).unwrap();
    let restored = config.open(&target).unwrap().keyspace("k").unwrap();
    assert_eq!(restored.len().unwrap(), ROWS);
    assert_eq!(restored.get(1000u64.to_be_bytes()).unwrap().unwrap(), value(1000, 2));
    assert_eq!(restored.get(1001u64.to_be_bytes()).unwrap().unwrap(), Random(1001).bytes(300));
}

/// A database is closed while it is backed up. The backup either completes or reports the closing, and can be made
/// afterwards.
#[test]
fn closing_ends_a_backup() {
    for round in 0..5u64 {
        let folder = Folder::new();
        let (db, keyspace) = filled(&small(), folder.path(), 10_000);
        drop(keyspace);
        let (path, other) = (folder.path().with_file_name("backup"), db.clone());
        let made = std::thread::scope(|scope| {
            let making = scope.spawn(|| other.backup_to(&path, &new().keep("a")));
            let part = path.join(format!("part-{round:06}"));
            while !part.exists() && !making.is_finished() {
                std::thread::yield_now();
            }
            let _ = db.close();
            making.join().unwrap()
        });
        drop(other);
        assert!(matches!(made, Ok(_) | Err(Error::Closed)), "{made:?}");
        let db = small().open(folder.path()).unwrap();
        assert!(db.check().unwrap().corruption.is_empty());
        db.backup_to(&path, &new().keep("a")).unwrap();
        let target = folder.path().with_file_name("restored");
        small().restore([&path], &target).unwrap();
        assert_eq!(small().open(&target).unwrap().keyspace("k").unwrap().len().unwrap(), 10_000);
    }
}

/// If page tables leave too little of the budget for a backup, the error says which budget suffices. In that one, or
/// once a keyspace has been dropped, the same call makes a backup that can be restored.
#[test]
fn a_backup_needs_memory_beside_page_tables() {
    let config = small().memory(8 << 20).backend(drumlin_io::in_memory());
    let (db, k) = filled(&config, "/db", 60_000);
    let mut count = 0;
    while db.clone_keyspace("k", &count.to_string()).is_ok() {
        count += 1;
        assert!(count < 500, "the page tables of {count} clones fit into 8 MiB");
    }
    let options = BackupOptions::new();
    let refused = db.backup_into(std::io::sink(), &options).unwrap_err();
    let Error::BudgetTooSmall { given_bytes, minimum_bytes } = refused else { panic!("{refused:?}") };
    assert!(given_bytes == 8 << 20 && minimum_bytes > given_bytes, "{minimum_bytes} bytes instead of {given_bytes}");
    assert!(db.kept_snapshots().is_empty(), "a backup that was refused has left its snapshot");
    assert!(matches!(db.backup_to("/backup", &options), Err(Error::BudgetTooSmall { .. })));
    drop(k);
    db.close().unwrap();
    let db = config.clone().memory(minimum_bytes).open("/db").unwrap();
    db.backup_to("/backup", &options).unwrap();
    db.close().unwrap();
    let info = config.clone().memory(minimum_bytes).restore(["/backup"], "/restored").unwrap();
    assert_eq!(info.keyspaces.len(), count + 1);
    let db = config.open("/db").unwrap();
    for clone in 0..count / 2 {
        db.drop_keyspace(&clone.to_string()).unwrap();
    }
    db.checkpoint().unwrap();
    db.backup_into(std::io::sink(), &options).unwrap();
}

/// An urgent backup has the same bytes as one that rests, and the same parts.
#[test]
fn an_urgent_backup_is_the_same() {
    for memory_bytes in [8 << 20, 64 << 20] {
        let config = small().memory(memory_bytes).backend(drumlin_io::in_memory());
        let (db, _) = filled(&config, "/db", 40_000);
        let patient = backup(&db, &new().keep("state"));
        assert!(patient.len() > 3 << 20, "it has few parts");
        assert_eq!(backup(&db, &new().keep("state").urgent()), patient);
        let parts = db.backup_to("/parts", &new().keep("state").urgent()).unwrap().parts;
        let again = db.backup_to("/parts", &new().keep("state")).unwrap();
        assert_eq!((again.parts_found, again.parts), (parts, parts));
        let found = db.backup_to("/parts", &new().keep("state").urgent()).unwrap();
        assert_eq!(found.parts_found, parts);
    }
}

/// A backup that is refused for its snapshots creates no folder, which would look like a backup.
#[test]
fn a_refused_backup_leaves_no_folder() {
    let folder = Folder::new();
    let db = small().open(folder.path().join("db")).unwrap();
    db.keyspace("k").unwrap().insert("a", "1").unwrap();
    db.keep_snapshot("old").unwrap();
    let target = folder.path().join("backup");
    for options in [new().since("unknown"), new().since("old").keep("old")] {
        let refused = db.backup_to(&target, &options);
        assert!(matches!(refused, Err(Error::NoSuchSnapshot { .. } | Error::Invalid(_))), "{refused:?}");
        assert!(!target.exists());
    }
    db.backup_to(&target, &new().since("old").keep("new")).unwrap();
    small().verify_backup(&target).unwrap();
}

/// While a backup is written into a folder, another one is refused, so that their parts never mix.
#[test]
fn two_backups_into_one_folder_do_not_mix() {
    let config = small().backend(drumlin_io::in_memory());
    let databases = [1, 2].map(|number| filled(&config, format!("/db {number}"), 20_000).0);
    for round in 0..8 {
        let target = format!("/backup {round}");
        let made: Vec<_> = std::thread::scope(|scope| {
            let back_up = |db: &Database| {
                let (db, target) = (db.clone(), target.clone());
                scope.spawn(move || db.backup_to(target, &new()))
            };
            let threads = databases.each_ref().map(back_up);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{made:?}");
        let refused = made.iter().find_map(|made| made.as_ref().err());
        assert!(matches!(refused, Some(Error::Invalid(reason)) if reason.contains("another backup")), "{made:?}");
        config.verify_backup(&target).unwrap();
    }
}
