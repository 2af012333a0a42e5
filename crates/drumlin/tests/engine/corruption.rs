//! Damages every file of a closed database and of a killed one: flips, zeroes and overwrites bytes, and truncates
//! files.
//!
//! However the files are damaged, the engine never panics and never returns a wrong answer. Either an error names a
//! file, or all rows are correct. Undamaged parts stay readable, and if a check finds nothing, all rows are correct.
//! One kind of damage is indistinguishable from a normal end of the log: the loss of its last records and everything
//! after them. So a damaged log may also end early, at a commit boundary. `DRUMLIN_TEST_MUTATIONS` is the number of
//! mutations per test (default 100).

use crate::rescue::{SEGMENTS, SUMMARY, TABLE, extents};
use crate::support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use drumlin::{Config, Database, Error};
use drumlin_io::{Backend, OpenOptions, Persist};
use support::{Random, number, small};

pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) const FOLDER: &str = "/db";
const ROWS: u64 = 1200;
const COMMITS: u64 = 40;

fn config(backend: &Arc<dyn Backend>) -> Config {
    // The large limit prevents automatic checkpoints, so the log keeps all commits since the sample's last checkpoint.
    small().checkpoint_log_bytes(64 << 20).backend(Arc::clone(backend))
}

pub(crate) fn read_files(backend: &dyn Backend) -> Files {
    let mut files = Files::new();
    for folder in [PathBuf::from(FOLDER), Path::new(FOLDER).join("log")] {
        for path in backend.list(&folder).unwrap() {
            let Ok(file) = backend.open(&path, OpenOptions::default()) else { continue };
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.read_at(&mut bytes, 0).unwrap();
            files.insert(path, bytes);
        }
    }
    files
}

pub(crate) fn disk_of(files: &Files) -> Arc<dyn Backend> {
    let backend = drumlin_io::in_memory();
    backend.create_dir_all(&Path::new(FOLDER).join("log")).unwrap();
    for (path, bytes) in files {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = backend.open(path, options).unwrap();
        file.write_at(bytes, 0, Persist::Later).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
    }
    backend
}

/// The files, and the rows after each commit since the checkpoint. The last entry has the rows that must be present.
struct Sample {
    files: Files,
    states: Vec<Rows>,
}

impl Sample {
    fn new(killed: bool) -> Sample {
        let backend = drumlin_io::in_memory();
        let db = config(&backend).open(FOLDER).unwrap();
        let keyspace = db.keyspace("rows").unwrap();
        let mut random = Random(5);
        let mut rows = Rows::new();
        for number in 0..ROWS {
            let key = format!("row {:05}", number * 7919 % ROWS).into_bytes();
            let length = match number % 100 {
                0 => 30_000,
                1..4 => 2000 + random.below(5000),
                _ => random.below(80),
            };
            let value = random.bytes(length as usize);
            keyspace.insert_with(&key, &value, drumlin::Durability::Relaxed).unwrap();
            rows.insert(key, value);
        }
        db.checkpoint().unwrap();
        // Make a second checkpoint, so that both superblocks and summaries are in use.
        rows.insert(b"a".to_vec(), b"b".to_vec());
        keyspace.insert(b"a", b"b").unwrap();
        db.checkpoint().unwrap();
        let mut states = vec![rows.clone()];
        for commit in 0..COMMITS {
            // Each commit fills more than a block of the log, so that a damaged block affects at most three.
            let mut tx = db.begin().unwrap();
            for _ in 0..3 {
                let key = format!("row {:05}", random.below(ROWS + 100)).into_bytes();
                let value = random.bytes(1800);
                tx.insert(&keyspace, &key, &value).unwrap();
                rows.insert(key, value);
            }
            if commit % 20 == 7 {
                let value = random.bytes(40_000);
                tx.insert(&keyspace, b"large", &value).unwrap();
                rows.insert(b"large".to_vec(), value);
            }
            tx.insert(&keyspace, b"commit", commit.to_be_bytes()).unwrap();
            rows.insert(b"commit".to_vec(), commit.to_be_bytes().to_vec());
            tx.commit().unwrap();
            states.push(rows.clone());
        }
        let mut files = read_files(&*backend);
        if !killed {
            drop(keyspace);
            db.close().unwrap();
            files = read_files(&*backend);
            states = vec![rows];
        }
        Sample { files, states }
    }

    /// Opens damaged files and reads everything. `log_ends` allows the log to end early.
    fn verify(&self, files: &Files, log_ends: bool, figures: &mut Figures) -> Result<(), String> {
        let backend = disk_of(files);
        let examined = config(&backend).examine(FOLDER);
        if read_files(&*backend) != *files {
            return Err("an examination changed a file".into());
        }
        let db = match config(&backend).open(FOLDER) {
            Ok(db) => db,
            Err(error) => {
                figures.refused += 1;
                if matches!(error, Error::Corrupted { .. })
                    && !examined.as_ref().is_ok_and(|found| !found.corruption.is_empty())
                {
                    return Err(format!("{error}, and an examination found {examined:?}"));
                }
                return match error {
                    Error::Corrupted { path, .. } if path.starts_with(FOLDER) => Ok(()),
                    // The damage is in the bytes that identify the format.
                    Error::NewerFormat { .. } | Error::OlderFormat { .. } | Error::NotADatabase { .. } => Ok(()),
                    other => Err(format!("opening: {other:?}")),
                };
            }
        };
        let result = self.verify_open(&db, log_ends, figures);
        // Writing and closing must not panic, with any kind of damage.
        if let Ok(keyspace) = db.existing_keyspace("rows") {
            let _ = keyspace.insert(b"row 01150", b"new");
            let _ = keyspace.remove(b"row 00007");
        }
        let _ = db.checkpoint();
        let _ = db.close();
        result
    }

    fn verify_open(&self, db: &Database, log_ends: bool, figures: &mut Figures) -> Result<(), String> {
        let damaged = |error: Error| match error {
            Error::Corrupted { path, .. } if path.starts_with(FOLDER) => Ok(()),
            other => Err(format!("reading: {other:?}")),
        };
        let keyspace = db.existing_keyspace("rows").map_err(|error| format!("{error}"))?;
        let at = match keyspace.get(b"commit") {
            Ok(Some(value)) => Some(u64::from_be_bytes(value[..].try_into().unwrap()) as usize + 1),
            Ok(None) => Some(0),
            Err(error) => {
                damaged(error)?;
                None
            }
        };
        let last = self.states.len() - 1;
        let possible: Vec<usize> = match at {
            _ if last == 0 => vec![0],
            Some(at) => vec![at],
            None => (0..=last).collect(),
        };
        if !log_ends && possible.iter().all(|&at| at < last) {
            return Err(format!("{possible:?} of {last} commits are there"));
        }
        if possible[0] < last {
            figures.ended_early += 1;
        }
        let mut unreadable = 0;
        let candidates: Vec<&Rows> = possible.iter().map(|&at| &self.states[at]).collect();
        let mut keys: Vec<&Vec<u8>> = self.states[last].keys().collect();
        keys.extend(candidates.iter().flat_map(|rows| rows.keys()));
        keys.sort_unstable();
        keys.dedup();
        for key in &keys {
            match keyspace.get(key) {
                Ok(value) => {
                    let value = value.as_deref();
                    if !candidates.iter().any(|rows| rows.get(*key).map(Vec::as_slice) == value) {
                        return Err(format!("row {} has a wrong value", key.escape_ascii()));
                    }
                }
                Err(error) => {
                    damaged(error)?;
                    unreadable += 1;
                }
            }
        }
        // A scan returns the same rows until it fails.
        let mut scanned = 0;
        for row in &keyspace {
            match row {
                Ok((key, value)) => {
                    scanned += 1;
                    if !candidates.iter().any(|rows| rows.get(&key[..]).is_some_and(|known| known[..] == value[..])) {
                        return Err(format!("a scan met a wrong row {}", key.escape_ascii()));
                    }
                }
                Err(error) => damaged(error)?,
            }
        }
        if unreadable == 0 && !candidates.iter().any(|rows| rows.len() == scanned) {
            return Err(format!("a scan met {scanned} rows"));
        }
        let report = db.check().map_err(|error| format!("check: {error}"))?;
        if unreadable > 0 {
            figures.partly_readable += 1;
            if report.corruption.is_empty() {
                return Err(format!("{unreadable} rows are unreadable, and the check found nothing"));
            }
            if report.corruption.iter().any(|damage| damage.cost.is_empty() || damage.reason.is_empty()) {
                return Err("damage without its cost".into());
            }
        }
        figures.noticed += u64::from(unreadable == 0 && !report.corruption.is_empty());
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Figures {
    refused: u64,
    partly_readable: u64,
    /// Openings after which all rows were readable, although the check found damage.
    noticed: u64,
    ended_early: u64,
}

/// Damages a file in one of several ways. Returns a description of the damage.
pub(crate) fn tamper(bytes: &mut Vec<u8>, random: &mut Random) -> String {
    if bytes.is_empty() {
        bytes.extend([7; 100]);
        return "100 bytes added".into();
    }
    // Prefer a nonzero byte, because most of a file may be empty.
    let mut at = random.below(bytes.len() as u64) as usize;
    for _ in 0..40 {
        if bytes[at] != 0 || random.chance(5) {
            break;
        }
        at = random.below(bytes.len() as u64) as usize;
    }
    if random.chance(15) {
        at = random.below(bytes.len().min(40_000) as u64) as usize;
    }
    let until = |length: usize| at..(at + length).min(bytes.len());
    match random.below(10) {
        0..4 => {
            bytes[at] ^= 1 << random.below(8);
            format!("a bit of byte {at} flipped")
        }
        4 => {
            bytes[at] = random.next() as u8;
            format!("byte {at} set")
        }
        5 => {
            let range = until(512);
            bytes[range].fill(0);
            format!("512 bytes from {at} zeroed")
        }
        6 => {
            at = at / 4096 * 4096;
            let range = at..(at + 4096).min(bytes.len());
            bytes[range].fill(0);
            format!("the block at {at} zeroed")
        }
        7 => {
            let range = until(64);
            let noise = random.bytes(range.len());
            bytes[range].copy_from_slice(&noise);
            format!("64 bytes from {at} overwritten")
        }
        8 => {
            // Copy a block to the wrong place.
            let from = random.below(bytes.len() as u64) as usize / 4096 * 4096;
            at = at / 4096 * 4096;
            let length = 4096.min(bytes.len() - at).min(bytes.len() - from);
            bytes.copy_within(from..from + length, at);
            format!("the block at {from} copied over that at {at}")
        }
        _ => {
            bytes.truncate(at);
            format!("cut off at {at}")
        }
    }
}

static PANICS: AtomicU64 = AtomicU64::new(0);

fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(info);
        }));
    });
}

fn mutate(killed: bool, seed: u64, chosen: impl Fn(&Path) -> bool) -> Figures {
    count_panics();
    let sample = Sample::new(killed);
    let mut figures = Figures::default();
    sample.verify(&sample.files, false, &mut figures).unwrap();
    assert!(config(&disk_of(&sample.files)).examine(FOLDER).unwrap().corruption.is_empty());
    let paths: Vec<&PathBuf> = sample.files.keys().filter(|path| chosen(path)).collect();
    for mutation in 0..number("DRUMLIN_TEST_MUTATIONS", 100) {
        let mut random = Random(seed << 32 ^ mutation);
        let path = paths[random.below(paths.len() as u64) as usize];
        let mut files = sample.files.clone();
        let how = tamper(files.get_mut(path).unwrap(), &mut random);
        let in_log = path.parent().is_some_and(|folder| folder.ends_with("log"));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut seen = Figures::default();
            (sample.verify(&files, in_log && killed, &mut seen), seen)
        }));
        let place = format!("mutation {mutation}, {}: {how}", path.display());
        let (result, seen) = result.unwrap_or_else(|_| panic!("{place}: a panic"));
        if let Err(reason) = result {
            panic!("{place}: {reason}");
        }
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{place}: a panic on another thread");
        figures.refused += seen.refused;
        figures.partly_readable += seen.partly_readable;
        figures.noticed += seen.noticed;
        figures.ended_early += seen.ended_early;
    }
    println!("killed: {killed}, {paths:?}: {figures:?}");
    figures
}

fn is_data(path: &Path) -> bool {
    path.ends_with("data")
}

/// With a damaged data file, a closed database returns errors or correct results, and undamaged parts stay readable.
#[test]
fn a_damaged_data_file_is_noticed() {
    let figures = mutate(false, 1, is_data);
    assert!(figures.partly_readable > 0 && figures.refused > 0, "{figures:?}");
}

/// Recovery detects damage to the data file of a killed database, because it reads the file and the log.
#[test]
fn a_damaged_data_file_is_noticed_by_recovery() {
    let figures = mutate(true, 2, is_data);
    assert!(figures.refused > 0, "{figures:?}");
}

/// With a damaged log or lock file, a killed database reports the damage or recovers a whole number of commits.
#[test]
fn a_damaged_log_is_noticed() {
    let figures = mutate(true, 3, |path| !is_data(path));
    assert!(figures.refused > 0, "{figures:?}");
}

/// A closed database needs neither its log nor its lock file.
#[test]
fn a_closed_database_is_whole_without_its_log() {
    mutate(false, 4, |path| !is_data(path));
}

/// If the catalogue, a summary or a chunk of a page table is damaged on disk while the database is open, a check finds
/// it, and the next checkpoint repairs it.
#[test]
fn a_checkpoint_repairs_what_a_check_found() {
    let backend = drumlin_io::in_memory();
    // Use enough memory to avoid automatic checkpoints, because the number of checkpoints determines which structures
    // exist.
    let db = config(&backend).memory(64 << 20).page_bytes(512).open(FOLDER).unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    let data = Path::new(FOLDER).join("data");
    let file = backend.open(&data, OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
    let mut rows = Rows::new();
    let mut repaired = Vec::new();
    let mut random = Random(1);
    let mut put = |rows: &mut Rows, count: u64| {
        let mut tx = db.begin().unwrap();
        for _ in 0..count {
            let (key, value) = (random.bytes(8), random.bytes(100));
            tx.insert(&keyspace, &key, &value).unwrap();
            rows.insert(key, value);
        }
        tx.commit().unwrap();
    };
    // Write enough pages to require a base image.
    for _ in 0..30 {
        put(&mut rows, 500);
    }
    db.checkpoint().unwrap();
    for structure in ["the catalogue", "the table of segments", "a summary", "chunk"] {
        // The newest checkpoint wrote the structure near the end. The checkpoint that repairs a summary writes a base
        // image, so the next one has chunks.
        let before = read_files(&*backend).remove(&data).unwrap();
        // The damaged structure is also in memory, so pages can still be changed, created and freed.
        put(&mut rows, 200);
        db.checkpoint().unwrap();
        let report = db.check().unwrap();
        assert!(report.corruption.is_empty(), "{repaired:?}: {report:?}");
        let after = read_files(&*backend).remove(&data).unwrap();
        let changed = (0..after.len()).rev().filter(|&at| before.get(at) != Some(&after[at]));
        // A few attempts are enough. On a machine so slow that the idle database has been compacted by now, all of them
        // may fail.
        let found = changed.step_by(50).take(2000).find_map(|at| {
            file.write_at(&[after[at] ^ 0x10], at as u64, Persist::Later).unwrap();
            let report = db.check().unwrap();
            let damage = report.corruption.into_iter().find(|damage| damage.what.starts_with(structure));
            if damage.is_none() {
                file.write_at(&[after[at]], at as u64, Persist::Later).unwrap();
            }
            damage
        });
        let found = found.unwrap_or_else(|| panic!("{structure} is nowhere"));
        assert!(found.cost.contains("checkpoint"), "{found:?}");
        repaired.push(found.what);
    }
    put(&mut rows, 200);
    db.checkpoint().unwrap();
    // Reopen it as after a kill: nothing in memory is written.
    let db = config(&disk_of(&read_files(&*backend))).open(FOLDER).unwrap();
    let keyspace = db.existing_keyspace("rows").unwrap();
    let there: Rows =
        keyspace.iter().map(|row| row.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!(there == rows, "{} rows of {} are there", there.len(), rows.len());
    let report = db.check().unwrap();
    assert!(report.corruption.is_empty(), "{report:?}");
}

/// With any page corrupted, a salvage returns each row as it was stored or reports a gap around its key. A check and an
/// examination report the same keys.
#[test]
fn a_salvage_loses_no_more_than_the_gaps() {
    let sample = Sample::new(false);
    let rows = sample.states.last().unwrap();
    let data = Path::new(FOLDER).join("data");
    let used = sample.files[&data].iter().rposition(|&byte| byte != 0).unwrap() as u64;
    let mut random = Random(77);
    let (mut gap_count, mut lost_count) = (0, 0);
    for _ in 0..number("DRUMLIN_TEST_MUTATIONS", 60) {
        let mut files = sample.files.clone();
        for _ in 0..=random.below(3) {
            let at = 8192 + random.below(used - 8192) as usize;
            files.get_mut(&data).unwrap()[at] ^= 0x40;
        }
        let backend = disk_of(&files);
        let Ok(db) = config(&backend).create(false).open(FOLDER) else { continue };
        let Ok(keyspace) = db.existing_keyspace("rows") else { continue };
        let mut left = rows.clone();
        let mut gaps = Vec::new();
        for step in keyspace.iter().salvage() {
            match step.unwrap() {
                drumlin::Salvaged::Row(key, value) => assert!(left.remove(&key[..]).is_some_and(|was| value == was)),
                drumlin::Salvaged::Gap(gap) => gaps.push((gap.start, gap.end)),
                _ => unreachable!("there are rows and gaps"),
            }
        }
        let report = db.check().unwrap();
        let examined = {
            drop(keyspace);
            db.close().ok();
            config(&backend).examine(FOLDER).unwrap()
        };
        for key in left.keys() {
            assert!(gaps.iter().any(|gap| std::ops::RangeBounds::contains(gap, key)), "{}", key.escape_ascii());
            for report in [&report, &examined] {
                let is_reported =
                    report.corruption.iter().filter_map(|corruption| corruption.keys.as_ref()).any(|keys| {
                        keys.lower.as_ref().is_none_or(|lower| lower <= key)
                            && keys.upper.as_ref().is_none_or(|upper| key < upper)
                    });
                assert!(is_reported, "{} is lost, and not in {report:#?}", key.escape_ascii());
            }
        }
        gap_count += gaps.len();
        lost_count += left.len();
    }
    assert!(gap_count > 10 && lost_count > 10, "{gap_count} gaps, {lost_count} rows");
}

/// A database that can't be opened can be salvaged. A keyspace with an undamaged page table is complete. Rows of other
/// keyspaces are correct or in reported gaps. Every corruption is listed, and nothing is written.
#[test]
fn what_does_not_open_is_salvaged() {
    let backend = drumlin_io::in_memory();
    let db = config(&backend).open(FOLDER).unwrap();
    let mut rows = Rows::new();
    let value = |number: u32| (0..40).map(|index| (number.wrapping_mul(2_654_435_761) >> (index % 24)) as u8).collect();
    rows.extend((0..20_000u32).map(|number| (number.to_be_bytes().to_vec(), value(number))));
    for name in ["one", "other"] {
        let keyspace = db.keyspace(name).unwrap();
        for (key, value) in &rows {
            keyspace.insert_with(key, value, drumlin::Durability::Relaxed).unwrap();
        }
    }
    // Closing leaves no request for a checkpoint, which would include the next row.
    db.close().unwrap();
    let db = config(&backend).open(FOLDER).unwrap();
    // This row is only in the log, which a salvage skips if the database was not closed.
    db.keyspace("one").unwrap().insert("late", "late").unwrap();
    let killed = read_files(&*backend);
    db.close().unwrap();
    rows.insert(b"late".to_vec(), b"late".to_vec());
    let closed = read_files(&*backend);
    let data = Path::new(FOLDER).join("data");
    let (mut whole_count, mut gap_count, mut nothing_count) = (0, 0, 0);
    for (files, is_closed) in [(&closed, true), (&killed, false)] {
        let is_of_tables = |kind| [TABLE, SUMMARY, SEGMENTS].contains(&kind);
        let tables = extents(&files[&data]).into_iter().filter(|(_, kind, _)| is_of_tables(*kind));
        let bytes = tables.flat_map(|(offset, _, length)| offset..offset + length);
        for at in bytes.step_by(if is_closed { 709 } else { 2003 }) {
            let mut files = files.clone();
            files.get_mut(&data).unwrap()[at] ^= 0x40;
            let backend = disk_of(&files);
            let Err(error) = config(&backend).create(false).open(FOLDER) else { continue };
            assert!(matches!(error, Error::Corrupted { .. }), "{error}");
            let before = read_files(&*backend);
            let db = match config(&backend).salvage(true).open(FOLDER) {
                Err(Error::Corrupted { .. }) => {
                    nothing_count += 1;
                    continue;
                }
                opened => opened.unwrap(),
            };
            let skipped = &db.opening().skipped;
            let is_log_left_out = skipped.iter().any(|error| matches!(error, Error::NotClosed { commits: 1, .. }));
            assert_eq!(is_log_left_out, !is_closed, "{skipped:?}");
            assert!(skipped.iter().any(|error| matches!(error, Error::Corrupted { .. })), "{skipped:?}");
            // In this case, the page tables are outdated.
            let is_outdated = format!("{skipped:?}").contains("a summary of changes");
            let mut gaps_of = BTreeMap::new();
            for name in ["one", "other"] {
                let mut left = rows.clone();
                if name == "other" || !is_closed {
                    left.remove(&b"late"[..]);
                }
                let mut gaps = Vec::new();
                for step in db.existing_keyspace(name).unwrap().iter().salvage() {
                    match step.unwrap() {
                        drumlin::Salvaged::Row(key, value) => {
                            assert!(left.remove(&key[..]).is_some_and(|was| value == was), "{key:?}");
                        }
                        drumlin::Salvaged::Gap(gap) => gaps.push((gap.start, gap.end)),
                        _ => unreachable!("there are rows and gaps"),
                    }
                }
                for key in left.keys() {
                    let is_reported = is_outdated || gaps.iter().any(|gap| std::ops::RangeBounds::contains(gap, key));
                    assert!(is_reported, "{} of {name} at {at}: {skipped:?}", key.escape_ascii());
                }
                gaps_of.insert(name, gaps.len());
            }
            let text = format!("{skipped:?}");
            for (name, gaps) in &gaps_of {
                let is_named = text.contains(&format!("keyspace \\\"{name}\\\""));
                assert!(is_named || is_outdated || *gaps == 0, "{gaps} gaps in {name}: {text}");
            }
            whole_count += usize::from(gaps_of.values().any(|gaps| *gaps == 0));
            gap_count += usize::from(gaps_of.values().any(|gaps| *gaps > 0));
            assert!(matches!(db.keyspace("new"), Err(Error::ReadOnly { .. })));
            assert!(db.check().unwrap().corruption.len() >= skipped.len() - usize::from(is_log_left_out));
            drop(db);
            assert!(read_files(&*backend) == before, "a salvage wrote");
        }
    }
    println!("{whole_count} with a whole keyspace, {gap_count} with gaps, nothing left of {nothing_count}");
    assert!(whole_count > 3 && gap_count > 3, "{whole_count} with a whole keyspace, {gap_count} with gaps");
}
