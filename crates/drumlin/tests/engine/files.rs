//! Accidents of a database's files, on real folders: they are removed, emptied, put back, moved; the
//! working directory changes, the lock's file goes, others put theirs in between.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};

use drumlin::{Config, Database, Error};
use support::{Folder, alone, copy_folder, small};

fn config() -> Config {
    small().checkpoint_log_bytes(64 << 20)
}

/// Commits `count` rows of 20 KiB each, from number `first` on: fifty fill a segment of the log.
fn commit(db: &Database, first: u64, count: u64) {
    let keyspace = db.keyspace("rows").unwrap();
    for number in first..first + count {
        keyspace.insert(number.to_be_bytes(), vec![number as u8; 20_000]).unwrap();
    }
}

fn assert_rows(db: &Database, count: u64) {
    let keyspace = db.existing_keyspace("rows").unwrap();
    assert_eq!(keyspace.count(..).unwrap(), count);
    for number in 0..count {
        assert_eq!(keyspace.get(number.to_be_bytes()).unwrap().unwrap(), vec![number as u8; 20_000]);
    }
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder.join("log")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A stream whose folder is elsewhere makes its segments there, and finds those that it made before. Rows of all
/// streams come back after a kill. Without that folder the database does not open.
#[cfg(unix)]
#[test]
fn a_stream_may_have_a_folder_of_its_own() {
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    fs::create_dir_all(elsewhere.path()).unwrap();
    let path = folder.path();
    let open = || config().log_streams(2).open(&path);
    let commit = |db: &Database, first: u32| {
        let rows = db.keyspace("rows").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let rows = &rows;
                scope.spawn(move || {
                    for row in 0..20 {
                        rows.insert((first + thread * 20 + row).to_be_bytes(), b"value").unwrap();
                    }
                });
            }
        });
    };
    let db = open().unwrap();
    commit(&db, 0);
    db.close().unwrap();
    let link = path.join("log/1");
    std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
    open().unwrap().close().unwrap();
    let made_before: Vec<PathBuf> = segments(&path).into_iter().filter(|path| name(path).starts_with("1-")).collect();
    assert!(!made_before.is_empty());
    for segment in made_before {
        fs::rename(&segment, elsewhere.path().join(name(&segment))).unwrap();
    }
    let db = open().unwrap();
    commit(&db, 160);
    let killed = Folder::new();
    copy_folder(&path, &killed.path());
    copy_folder(&elsewhere.path(), &killed.path().join("log/1"));
    db.close().unwrap();
    let there: Vec<PathBuf> = fs::read_dir(elsewhere.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!there.is_empty() && there.iter().all(|path| name(path).starts_with("1-")), "{there:?}");
    assert!(segments(&path).iter().all(|path| !name(path).starts_with("1-")));
    // The copy has a folder in the link's place.
    for path in [&path, &killed.path()] {
        let db = config().log_streams(2).open(path).unwrap();
        assert_eq!(db.keyspace("rows").unwrap().iter().count(), 320);
        assert!(db.check().unwrap().corruption.is_empty());
        db.close().unwrap();
    }
    fs::rename(elsewhere.path(), elsewhere.path().with_extension("away")).unwrap();
    assert!(matches!(open(), Err(Error::Io { action: "opening", .. })), "a device is gone");
    fs::rename(elsewhere.path().with_extension("away"), elsewhere.path()).unwrap();
}

/// The log, or any one segment of it, is missed in whatever way it is gone, where the database was not closed; the
/// message names the log.
#[test]
fn a_database_that_was_killed_needs_its_whole_log() {
    for (streams, checkpoint_after) in [(1, None), (1, Some(130)), (3, Some(20))] {
        let folder = Folder::new();
        let db = config().log_streams(streams).open(folder.path()).unwrap();
        commit(&db, 0, 120);
        if checkpoint_after.is_some() {
            db.checkpoint().unwrap();
        }
        commit(&db, 120, 120);
        // As a kill leaves it.
        let killed = Folder::new();
        copy_folder(&folder.path(), &killed.path());
        drop(db);
        let opens = |path: &Path| match config().log_streams(streams).open(path) {
            Ok(db) => {
                assert_rows(&db, 240);
                Ok(())
            }
            Err(error) => Err(error),
        };
        let is_missed = |path: &Path, what: &str| match opens(path) {
            Err(Error::Corrupted { path: named, .. }) => {
                assert!(named.starts_with(path.join("log")), "{what}: {named:?}");
            }
            other => panic!("{what}: {other:?}"),
        };
        let lost = Folder::new();
        copy_folder(&killed.path(), &lost.path());
        fs::remove_dir_all(lost.path().join("log")).unwrap();
        is_missed(&lost.path(), "the folder");
        fs::create_dir(lost.path().join("log")).unwrap();
        is_missed(&lost.path(), "all segments");
        let mut missed = 0;
        for segment in segments(&killed.path()) {
            for way in ["removed", "emptied", "zeroed"] {
                let lost = Folder::new();
                copy_folder(&killed.path(), &lost.path());
                let path = lost.path().join("log").join(segment.file_name().unwrap());
                match way {
                    "removed" => fs::remove_file(path).unwrap(),
                    "emptied" => fs::write(path, b"").unwrap(),
                    _ => fs::write(&path, vec![0; fs::metadata(&path).unwrap().len() as usize]).unwrap(),
                }
                // A spare is not needed; then every row is there.
                match opens(&lost.path()) {
                    Ok(()) => {}
                    Err(Error::Corrupted { path, .. }) if path.starts_with(lost.path().join("log")) => missed += 1,
                    Err(other) => panic!("{segment:?} {way}: {other:?}"),
                }
            }
        }
        assert!(missed >= 6, "{missed}");
        opens(&killed.path()).unwrap();
    }
}

/// A closed database needs nothing of its log.
#[test]
fn a_database_that_was_closed_needs_no_log() {
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    commit(&db, 0, 120);
    db.close().unwrap();
    fs::remove_dir_all(folder.path().join("log")).unwrap();
    let db = config().open(folder.path()).unwrap();
    assert_rows(&db, 120);
    commit(&db, 120, 60);
    db.close().unwrap();
    for segment in segments(&folder.path()) {
        fs::remove_file(segment).unwrap();
    }
    assert_rows(&config().open(folder.path()).unwrap(), 180);
}

/// A database that was opened by a relative path goes on when the working directory changes, and touches nothing of
/// another that has the same name there.
#[test]
fn the_working_directory_does_not_matter() {
    alone("files::the_working_directory_does_not_matter", &[], || {
        let before = std::env::current_dir().unwrap();
        let (here, there) = (Folder::new(), Folder::new());
        for folder in [&here, &there] {
            fs::create_dir_all(folder.path()).unwrap();
        }
        // The other's log has segments of the same names, with commits in them.
        let other = config().open(there.path().join("shop.drumlin")).unwrap();
        commit(&other, 0, 240);
        let before_files: Vec<_> = segments(&there.path().join("shop.drumlin"))
            .into_iter()
            .map(|path| (fs::read(&path).unwrap(), path))
            .collect();

        std::env::set_current_dir(here.path()).unwrap();
        let db = config().open("shop.drumlin").unwrap();
        std::env::set_current_dir(there.path()).unwrap();
        commit(&db, 0, 240);
        db.checkpoint().unwrap();
        commit(&db, 240, 60);
        std::env::set_current_dir(before).unwrap();
        db.close().unwrap();

        for (bytes, path) in before_files {
            assert!(fs::read(&path).unwrap() == bytes, "{} was written to", path.display());
        }
        other.close().unwrap();
        assert_rows(&config().open(here.path().join("shop.drumlin")).unwrap(), 300);
        assert_rows(&config().open(there.path().join("shop.drumlin")).unwrap(), 240);
    });
}

/// A folder that is moved while the database is open stays the database's; a new one can be made at the old path.
#[test]
fn a_folder_may_be_moved() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path()).unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    let db = config().open(&old).unwrap();
    commit(&db, 0, 20);
    fs::rename(&old, &new).unwrap();
    commit(&db, 20, 220);
    db.checkpoint().unwrap();
    let second = config().open(&old).unwrap();
    commit(&second, 0, 60);
    commit(&db, 240, 60);
    db.close().unwrap();
    second.close().unwrap();
    assert_rows(&config().open(&new).unwrap(), 300);
    assert_rows(&config().open(&old).unwrap(), 60);
}

/// No file that is removed or replaced lets a second handle in: not the one that names the process, nor the data file.
#[test]
fn the_lock_can_not_be_removed() {
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    commit(&db, 0, 20);
    let backup = Folder::new();
    copy_folder(&folder.path(), &backup.path());
    fs::remove_file(folder.path().join("lock")).unwrap();
    assert!(matches!(config().open(folder.path()), Err(Error::Locked { .. })));
    fs::remove_file(folder.path().join("data")).unwrap();
    assert!(matches!(config().open(folder.path()), Err(Error::Locked { .. })));
    fs::copy(backup.path().join("data"), folder.path().join("data")).unwrap();
    assert!(matches!(config().open(folder.path()), Err(Error::Locked { .. })));
    drop(db);
}

/// A foreign file in the log's folder is not written to. The database stops accepting commits, and
/// goes on once the file is gone.
#[test]
fn files_of_others_are_not_written_to() {
    let folder = Folder::new();
    let db = config().open(folder.path()).unwrap();
    commit(&db, 0, 20);
    let log = folder.path().join("log");
    let foreign: Vec<PathBuf> =
        (1..20).map(|slot| log.join(format!("0-{slot}.seg"))).filter(|path| !path.exists()).collect();
    for path in &foreign {
        fs::write(path, b"somebody's").unwrap();
    }
    let keyspace = db.keyspace("rows").unwrap();
    let mut committed = 20;
    let error = loop {
        match keyspace.insert(u64::to_be_bytes(committed), vec![committed as u8; 20_000]) {
            Ok(()) => committed += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Failed { .. } | Error::OutcomeUnknown { .. }), "{error:?}");
    assert!(error.to_string().contains("somebody else"), "{error}");
    drop(keyspace);
    drop(db);
    for path in &foreign {
        assert_eq!(fs::read(path).unwrap(), b"somebody's");
        fs::remove_file(path).unwrap();
    }
    assert_rows(&config().open(folder.path()).unwrap(), committed);
}
