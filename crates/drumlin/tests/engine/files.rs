//! Accidents with a database's files, in real folders. Files are removed, emptied, restored and moved, the working
//! directory changes, the lock file disappears, and other programs create files with the same names.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};

use drumlin::{Config, Database, Error};
use support::{Folder, alone, copy_folder, small};

fn config() -> Config {
    small().checkpoint_log_bytes(64 << 20)
}

/// Commits `count` rows of 20 KiB each, with numbers starting at `first`. Fifty rows fill a log segment.
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

/// If the folder of a log stream is elsewhere, the stream creates its segments there, and finds earlier segments there.
/// After a kill, the rows of all streams are present. Without that folder, the database can't be opened.
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
    // In the copy, a folder takes the place of the link.
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

/// If a database was not closed, and its log or any one segment of it is missing, emptied or zeroed, opening fails with
/// an error that names the log.
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
        // Copy the folder as a kill leaves it.
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
                // A spare segment is not needed. Without it, every row is still present.
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

/// A closed database needs no log.
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

/// A database that was opened by a relative path remains usable when the working directory changes. It leaves alone a
/// different database that has the same relative path in the new directory.
#[test]
fn the_working_directory_does_not_matter() {
    alone("files::the_working_directory_does_not_matter", &[], || {
        let before = std::env::current_dir().unwrap();
        let (here, there) = (Folder::new(), Folder::new());
        for folder in [&here, &there] {
            fs::create_dir_all(folder.path()).unwrap();
        }
        // The log of the other database has segments with the same names, and these contain commits. It is as a kill
        // leaves it, because an open database prepares segments in the background.
        let killed = Folder::new();
        let other = config().open(killed.path()).unwrap();
        commit(&other, 0, 240);
        copy_folder(&killed.path(), &there.path().join("shop.drumlin"));
        other.close().unwrap();
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
        assert_rows(&config().open(here.path().join("shop.drumlin")).unwrap(), 300);
        assert_rows(&config().open(there.path().join("shop.drumlin")).unwrap(), 240);
    });
}

/// If a folder is moved while its database is open, it still belongs to the database, and a new database can be created
/// at the old path.
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

/// Removing or replacing the lock file or the data file does not make it possible to open the database twice.
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

/// A foreign file in the log's folder is not overwritten. The database stops accepting commits, and resumes once the
/// file is removed.
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

/// A foreign entry at the path of a database's file.
#[derive(Clone, Copy, Debug)]
enum Foreign {
    File,
    Link,
    DanglingLink,
    Folder,
    Pipe,
}

impl Foreign {
    const ALL: [Foreign; 5] = [Foreign::File, Foreign::Link, Foreign::DanglingLink, Foreign::Folder, Foreign::Pipe];
    const TEXT: &[u8] = b"somebody's\n";

    /// Puts the foreign entry at the path, replacing any existing one. A link points to `target`.
    fn put(self, path: &Path, target: &Path) {
        let _ = fs::remove_file(path);
        match self {
            Foreign::File => fs::write(path, Foreign::TEXT).unwrap(),
            Foreign::Link => {
                fs::write(target, Foreign::TEXT).unwrap();
                std::os::unix::fs::symlink(target, path).unwrap();
            }
            Foreign::DanglingLink => std::os::unix::fs::symlink(target, path).unwrap(),
            Foreign::Folder => fs::create_dir(path).unwrap(),
            Foreign::Pipe => {
                use rustix::fs::{CWD, FileType, Mode, mknodat};
                mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            }
        }
    }

    fn assert_untouched(self, path: &Path, target: &Path) {
        let kind = fs::symlink_metadata(path).unwrap().file_type();
        match self {
            Foreign::File => assert!(kind.is_file() && fs::read(path).unwrap() == Foreign::TEXT, "{path:?}"),
            Foreign::Link => assert!(kind.is_symlink() && fs::read(target).unwrap() == Foreign::TEXT, "{path:?}"),
            Foreign::DanglingLink => assert!(kind.is_symlink() && !target.exists(), "{path:?}"),
            Foreign::Folder => assert!(kind.is_dir() && fs::read_dir(path).unwrap().next().is_none(), "{path:?}"),
            Foreign::Pipe => assert!(!kind.is_file() && !kind.is_dir() && !kind.is_symlink(), "{path:?}"),
        }
    }
}

/// Creates a database of 2,000 rows that has all advice files.
fn with_advice() -> Folder {
    let made = Folder::new();
    let db = config().warm_start(true).open(made.path()).unwrap();
    let rows = db.keyspace("rows").unwrap();
    (0..2000u64).for_each(|number| rows.insert(number.to_be_bytes(), [7; 60]).unwrap());
    db.close().unwrap();
    made
}

/// Inserts row `number` and two more rows. After each of them, counts the rows and makes a checkpoint.
fn work_with_advice(path: &Path, number: u64) {
    let db = config().warm_start(true).open(path).unwrap();
    let rows = db.keyspace("rows").unwrap();
    for number in number..number + 3 {
        rows.insert((number + 1_000_000).to_be_bytes(), [8; 60]).unwrap();
        assert_eq!(rows.len().unwrap(), 2001 + number);
        assert_eq!(rows.iter().count() as u64, 2001 + number);
        db.checkpoint().unwrap();
    }
    db.close().unwrap();
}

/// The database neither overwrites a foreign file with the name of one of its advice files, nor follows a link of that
/// name. It works without that advice file, and writes it once the name is unused.
#[test]
fn files_of_advice_of_others_are_left_alone() {
    let made = with_advice();
    for name in ["lock", "probe", "resident", "counts-0", "counts-1"] {
        for foreign in Foreign::ALL {
            let folder = Folder::new();
            copy_folder(&made.path(), &folder.path());
            let (path, target) = (folder.path().join(name), folder.path().with_extension("else"));
            foreign.put(&path, &target);
            work_with_advice(&folder.path(), 0);
            foreign.assert_untouched(&path, &target);
            match foreign {
                Foreign::Folder => fs::remove_dir(&path).unwrap(),
                _ => fs::remove_file(&path).unwrap(),
            }
            work_with_advice(&folder.path(), 3);
            assert!(fs::metadata(&path).unwrap().len() > 0, "{name} is not written again");
        }
    }
}

fn assert_written_again(folder: &Folder, path: &Path) {
    work_with_advice(&folder.path(), 0);
    assert_eq!(fs::read(path).unwrap()[8..16], *b"DRUMADV\n", "{}", path.display());
    work_with_advice(&folder.path(), 3);
}

/// An advice file of an earlier format is ignored and overwritten.
#[test]
fn advice_of_earlier_formats_is_written_again() {
    let made = with_advice();
    for name in ["resident", "counts-0", "counts-1"] {
        for magic in [b"DRUMRES\n", b"DRUMCNT\n", b"DRUMCNP\n"] {
            let folder = Folder::new();
            copy_folder(&made.path(), &folder.path());
            let path = folder.path().join(name);
            let mut bytes = vec![1; 20_000];
            bytes[8..16].copy_from_slice(magic);
            fs::write(&path, &bytes).unwrap();
            assert_written_again(&folder, &path);
        }
    }
}

/// An advice file whose first block was zeroed by a power cut is rewritten if a later block proves that it is an advice
/// file.
#[test]
fn advice_without_its_first_block_is_written_again() {
    let made = with_advice();
    for name in ["resident", "counts-0", "counts-1"] {
        for part_block in [1, 3, 16] {
            let folder = Folder::new();
            copy_folder(&made.path(), &folder.path());
            let path = folder.path().join(name);
            let mut bytes = vec![1; (part_block + 1) * 4096];
            bytes[..4096].fill(0);
            fs::write(&path, &bytes).unwrap();
            work_with_advice(&folder.path(), 0);
            assert_eq!(fs::read(&path).unwrap(), bytes, "{name} is foreign");
            bytes[part_block * 4096 + 8..][..8].copy_from_slice(b"DRUMADV\n");
            let folder = Folder::new();
            copy_folder(&made.path(), &folder.path());
            let path = folder.path().join(name);
            fs::write(&path, &bytes).unwrap();
            assert_written_again(&folder, &path);
        }
    }
}

/// An advice file that was emptied or zeroed by a power cut is rewritten.
#[test]
fn empty_files_of_advice_are_written_again() {
    for name in ["lock", "probe"] {
        for bytes in [&b""[..], &[0; 5000]] {
            let folder = Folder::new();
            config().open(folder.path()).unwrap().close().unwrap();
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            config().open(folder.path()).unwrap().close().unwrap();
            assert!(fs::read(&path).unwrap().iter().all(|byte| byte.is_ascii() && *byte != 0), "{name}");
        }
    }
}

/// A foreign entry at the path of the data file, the log or a log segment stays unchanged. Even in read-only mode,
/// opening fails with an error that names the entry.
#[test]
fn the_places_of_others_are_not_written_to() {
    for name in ["data", "log/0-1.seg", "log"] {
        for foreign in Foreign::ALL {
            // An empty folder is a valid log without segments.
            if name == "log" && matches!(foreign, Foreign::Folder) {
                continue;
            }
            let folder = Folder::new();
            config().open(folder.path()).unwrap().close().unwrap();
            let (path, target) = (folder.path().join(name), folder.path().with_extension("else"));
            if name == "log" {
                fs::remove_dir_all(&path).unwrap();
            }
            foreign.put(&path, &target);
            for read_only in [false, true] {
                // A closed database that is opened read-only needs no log.
                if read_only && name == "log" && matches!(foreign, Foreign::DanglingLink) {
                    continue;
                }
                let error = config().read_only(read_only).open(folder.path()).unwrap_err();
                let is_named = error.to_string().contains(folder.path().join(name).to_str().unwrap())
                    || matches!(error, Error::NotADatabase { .. });
                assert!(is_named, "{name}, {foreign:?}: {error}");
            }
            foreign.assert_untouched(&path, &target);
        }
    }
}

/// A creation continues with the file of an interrupted creation; any foreign file of that name stays unchanged.
#[test]
fn a_creation_continues_only_with_its_own_file() {
    for foreign in Foreign::ALL {
        let folder = Folder::new();
        fs::create_dir(folder.path()).unwrap();
        let (path, target) = (folder.path().join("data.new"), folder.path().with_extension("else"));
        foreign.put(&path, &target);
        let error = config().open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("data.new"), "{foreign:?}: {error}");
        foreign.assert_untouched(&path, &target);
        assert!(!folder.path().join("data").exists());
    }
    let made = Folder::new();
    config().open(made.path()).unwrap().close().unwrap();
    let whole = fs::read(made.path().join("data")).unwrap();
    for left in [&b""[..], &[0; 300_000], &whole[..4096], &whole[..100]] {
        let folder = Folder::new();
        fs::create_dir(folder.path()).unwrap();
        fs::write(folder.path().join("data.new"), left).unwrap();
        let db = config().open(folder.path()).unwrap();
        commit(&db, 0, 3);
        assert_rows(&db, 3);
    }
}

/// Symbolic links may lead to the data file and the log, if their contents show that they belong to the database.
#[test]
fn data_and_log_may_lie_elsewhere() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    fs::create_dir(elsewhere.path()).unwrap();
    let db = config().open(folder.path()).unwrap();
    commit(&db, 0, 20);
    db.close().unwrap();
    for name in ["data", "log"] {
        fs::rename(folder.path().join(name), elsewhere.path().join(name)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join(name), folder.path().join(name)).unwrap();
    }
    let db = config().open(folder.path()).unwrap();
    assert_rows(&db, 20);
    commit(&db, 20, 200);
    db.close().unwrap();
    assert_rows(&config().open(folder.path()).unwrap(), 220);
    assert!(fs::symlink_metadata(folder.path().join("data")).unwrap().is_symlink());
}
