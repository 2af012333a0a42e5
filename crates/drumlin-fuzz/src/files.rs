//! Damages the files of databases, then opens them.
//!
//! There are three small databases, each created once: the first was closed; the second was killed with commits in its
//! log; the third has two log streams, and was killed, reopened and killed again after a keyspace had been dropped and
//! the file compacted. A script describes the damage to their files.
//!
//! If the script recomputes no checksums, the full promise must hold: a read returns the right value or an error that
//! names a file, although the log may end early, after a complete commit. If the script does recompute checksums, no
//! program can detect the damage. Even then, the engine must not panic, hang, or use unbounded memory.
//!
//! Before a damaged database is opened, `examine` runs on it, and a `Rescue` counts what is left. They must not change
//! a single byte, and the examination must find damage whenever opening does.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use drumlin::fuzzing::Sealed;
use drumlin::{Config, Database, Durability, Error, Rescue};
use drumlin_io::{Backend, OpenOptions, Persist};

use crate::Script;

type Files = BTreeMap<PathBuf, Vec<u8>>;
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const FOLDER: &str = "/db";
const SCRATCH: &str = "/scratch";

fn config(backend: &Arc<dyn Backend>, history: History) -> Config {
    Config::new()
        .log_streams(if history == History::Reopened { 2 } else { 1 })
        .memory(8 << 20)
        .page_bytes(512)
        .segment_bytes(256 << 10)
        .log_segment_bytes(1 << 20)
        .checkpoint_log_bytes(64 << 20)
        .backend(Arc::clone(backend))
}

/// The history of a database before it was damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum History {
    Closed,
    Killed,
    Reopened,
}

/// A database's files, the parts of them that have checksums, and the rows after each commit since the checkpoint.
struct Sample {
    history: History,
    files: Files,
    /// Earlier versions of the files, which the script can restore.
    earlier: Vec<Files>,
    sealed: Vec<(PathBuf, Sealed)>,
    states: Vec<Rows>,
    /// The index in `states` of the state that the last opening recovered.
    opened_at: usize,
}

/// Returns the sample that a script's first byte selects.
fn sample(byte: u8) -> &'static Sample {
    static SAMPLES: OnceLock<[Sample; 3]> = OnceLock::new();
    let samples = SAMPLES.get_or_init(|| [History::Closed, History::Killed, History::Reopened].map(Sample::make));
    &samples[if byte >= 192 { 2 } else { usize::from(byte % 2) }]
}

/// Returns bytes that compress a little and differ for each number.
fn value(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (number.wrapping_mul(0x9E37_79B9) >> (at % 13)) as u8 ^ (at / 7) as u8).collect()
}

impl Sample {
    fn make(history: History) -> Sample {
        let backend = drumlin_io::in_memory();
        let db = config(&backend, history).open(FOLDER).expect("memory takes everything");
        let mut earlier = vec![read_files(&*backend)];
        let mut states = Sample::fill(&db, history).expect("memory takes everything");
        earlier.push(read_files(&*backend));
        let commits = if history == History::Reopened { 0..6 } else { 0..12 };
        Sample::commit(&db, commits, &mut states).expect("memory takes everything");
        earlier.push(read_files(&*backend));
        let mut files = read_files(&*backend);
        let mut opened_at = 0;
        match history {
            History::Closed => {
                db.close().expect("memory takes everything");
                files = read_files(&*backend);
            }
            History::Killed => {}
            History::Reopened => {
                opened_at = states.len() - 1;
                let backend = disk_of(&files);
                let db = config(&backend, history).open(FOLDER).expect("a database that was killed");
                Sample::commit(&db, 6..12, &mut states).expect("memory takes everything");
                files = read_files(&*backend);
            }
        }
        let sealed = files.iter().flat_map(|(path, bytes)| {
            Sealed::find(bytes).into_iter().map(|sealed| (path.clone(), sealed)).collect::<Vec<_>>()
        });
        Sample { history, sealed: sealed.collect(), files, earlier, states, opened_at }
    }

    /// Stores the rows of the checkpoint.
    fn fill(db: &Database, history: History) -> drumlin::Result<Vec<Rows>> {
        let keyspace = db.keyspace("rows")?;
        let mut rows = Rows::new();
        for number in 0..400u64 {
            let key = format!("row {:03}", number * 79 % 400).into_bytes();
            let length = match number % 100 {
                0 => 70_000,
                1..4 => 3000,
                _ => number as usize % 60,
            };
            keyspace.insert_with(&key, value(number, length), Durability::Relaxed)?;
            rows.insert(key, value(number, length));
        }
        if history == History::Reopened {
            let passing = db.keyspace("passing")?;
            for number in 0..200u64 {
                passing.insert_with(number.to_be_bytes(), value(number, 200), Durability::Relaxed)?;
            }
        }
        db.checkpoint()?;
        if history == History::Reopened {
            db.drop_keyspace("passing")?;
            db.compact()?;
        }
        if history != History::Closed {
            keyspace.remove(b"row 100")?;
            rows.remove(&b"row 100"[..]);
            db.checkpoint()?;
        }
        Ok(vec![rows])
    }

    /// Makes commits that stay in the log, and appends the rows after each commit to `states`.
    fn commit(db: &Database, commits: Range<u64>, states: &mut Vec<Rows>) -> drumlin::Result<()> {
        let keyspace = db.existing_keyspace("rows")?;
        let mut rows = states.last().expect("the checkpoint's").clone();
        for commit in commits {
            let mut tx = db.begin()?;
            for part in 0..4 {
                let key = format!("row {:03}", (commit * 37 + part * 101) % 450).into_bytes();
                if part == 3 && commit % 4 == 1 {
                    tx.remove(&keyspace, &key)?;
                    rows.remove(&key);
                } else {
                    let length = if part == 2 && commit == 5 { 70_000 } else { 300 * part as usize };
                    let value = value(commit + 1000 * part, length);
                    tx.insert(&keyspace, &key, &value)?;
                    rows.insert(key, value);
                }
            }
            tx.insert(&keyspace, b"commit", commit.to_be_bytes())?;
            rows.insert(b"commit".to_vec(), commit.to_be_bytes().to_vec());
            // Each thread is assigned a log stream, so commit on new threads to use both streams.
            std::thread::scope(|scope| scope.spawn(|| tx.commit()).join().expect("a commit does not panic"))?;
            states.push(rows.clone());
        }
        Ok(())
    }

    fn state_of(&self, commit: Option<&[u8]>) -> Option<usize> {
        self.states.iter().position(|rows| rows.get(&b"commit"[..]).map(Vec::as_slice) == commit)
    }
}

fn read_files(backend: &dyn Backend) -> Files {
    let mut files = Files::new();
    for folder in [PathBuf::from(FOLDER), Path::new(FOLDER).join("log")] {
        for path in backend.list(&folder).expect("the folder is there") {
            let Ok(file) = backend.open(&path, OpenOptions::default()) else { continue };
            let mut bytes = vec![0; file.len().expect("memory knows its length") as usize];
            file.read_at(&mut bytes, 0).expect("memory is readable");
            files.insert(path, bytes);
        }
    }
    files
}

fn disk_of(files: &Files) -> Arc<dyn Backend> {
    let backend = drumlin_io::in_memory();
    backend.create_dir_all(&Path::new(FOLDER).join("log")).expect("memory takes everything");
    for (path, bytes) in files {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = backend.open(path, options).expect("memory takes everything");
        // Most of a file is zeros, which don't have to be written.
        for (number, block) in bytes.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|&byte| byte != 0)) {
            file.write_at(block, number as u64 * 4096, Persist::Later).expect("memory takes everything");
        }
        file.set_len(bytes.len() as u64).expect("memory takes everything");
    }
    backend
}

/// The damage that a script did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Damage {
    /// `true` if a checksum was recomputed.
    resealed: bool,
    /// `true` if bytes of the log were changed.
    log: bool,
    /// `true` if bytes of a file other than the log were changed.
    data: bool,
    /// `true` if whole files are missing, old, or swapped.
    lost: bool,
}

fn is_log(path: &Path) -> bool {
    path.starts_with(Path::new(FOLDER).join("log"))
}

impl Damage {
    fn note(&mut self, path: &Path) {
        self.log |= is_log(path);
        self.data |= !is_log(path);
    }

    /// Returns the index of the oldest state that the database may have without reporting damage. In a killed database,
    /// damage to the log looks the same as the end of the log, but the superblock records the state with which the last
    /// opening began. A closed database needs its log only if its newest superblock is damaged too.
    fn ends_from(self, sample: &Sample) -> usize {
        match sample.history {
            History::Closed if !self.data => sample.states.len() - 1,
            // The newest superblock lists the log files. So missing files are detected, unless the superblock is
            // damaged too.
            _ if !(self.log || self.data && self.lost) => sample.states.len() - 1,
            _ if !self.data => sample.opened_at,
            _ => 0,
        }
    }
}

/// Removes, empties, zeroes or swaps whole files, or restores earlier versions.
fn lose(sample: &Sample, files: &mut Files, way: u8, script: &mut Script<'_>, done: &mut Damage) {
    let names: Vec<PathBuf> = files.keys().cloned().collect();
    let (Some(path), Some(other)) = (names.get(script.number() % names.len().max(1)), names.first()) else { return };
    done.lost = true;
    match way {
        0 => drop(files.remove(path)),
        1 => drop(files.insert(path.clone(), Vec::new())),
        2 => files.entry(path.clone()).or_default().fill(0),
        3 => {
            let other = names.get(script.number() % names.len()).unwrap_or(other);
            let (Some(one), Some(two)) = (files.get(path).cloned(), files.get(other).cloned()) else { return };
            files.insert(path.clone(), two);
            files.insert(other.clone(), one);
        }
        4 => files.retain(|path, _| !is_log(path)),
        _ => {
            let earlier = &sample.earlier[script.number() % sample.earlier.len()];
            let Some(before) = earlier.get(path) else { return };
            // An old version of a log file may lack the end of the log.
            done.log |= is_log(path);
            files.insert(path.clone(), before.clone());
        }
    }
}

/// Damages the files as the script describes.
fn damage(sample: &Sample, files: &mut Files, script: &mut Script<'_>) -> Damage {
    let mut done = Damage::default();
    let names: Vec<PathBuf> = files.keys().cloned().collect();
    while script.has_more() {
        let kind = script.byte();
        let strings =
            [&b""[..], b"\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00\x00\x00\x00\x80", b"dRec", b"DRUMLIN\n"];
        if kind >= 128 && !sample.sealed.is_empty() {
            // Change a part that has a checksum, and recompute the checksum.
            let (path, sealed) = &sample.sealed[script.number() % sample.sealed.len()];
            let Some(file) = files.get_mut(path) else { continue };
            let Some(part) = file.get_mut(sealed.start..sealed.start + sealed.length) else { continue };
            // Headers are short and matter most, so they receive half of the damage.
            let limit = if kind & 1 == 0 { sealed.length.min(128) } else { sealed.length };
            let at = script.number() % limit;
            let bytes = if kind & 2 == 0 {
                script.bytes(1 + usize::from(kind >> 2 & 7))
            } else {
                strings[usize::from(kind >> 2) % 6]
            };
            let end = part.len().min(at + bytes.len());
            part[at..end].copy_from_slice(&bytes[..end - at]);
            sealed.renew(file);
            done.resealed = true;
            done.note(path);
            continue;
        }
        if kind % 8 == 7 && kind >> 3 < 12 {
            lose(sample, files, kind >> 4, script, &mut done);
            continue;
        }
        let path = &names[script.number() % names.len()];
        let Some(file) = files.get_mut(path) else { continue };
        done.note(path);
        // Damage only the part up to the last byte that is not zero: most of a file may be empty.
        let last = file.iter().rposition(|&byte| byte != 0).map_or(file.len(), |last| last + 1);
        if last == 0 {
            continue;
        }
        let at = script.number() % last;
        let end = |length: usize| last.min(at + length);
        match kind % 8 {
            0 => file[at] ^= 1 << (kind >> 3 & 7),
            1 => file[at..end(512)].fill(0),
            2 => file[at / 4096 * 4096..].iter_mut().take(4096).for_each(|byte| *byte = 0),
            3 => {
                let bytes = script.bytes(usize::from(kind >> 3));
                file[at..end(bytes.len())].copy_from_slice(&bytes[..end(bytes.len()) - at]);
            }
            4 => {
                // A misdirected write.
                let from = script.number() % last / 512 * 512;
                let to = at / 512 * 512;
                let length = 4096.min(last - from.max(to));
                file.copy_within(from..from + length, to);
            }
            5 => file.truncate(at),
            6 => file.extend_from_slice(strings[usize::from(kind >> 3) % 6]),
            _ => file[at] = script.byte(),
        }
    }
    done
}

/// Damages a database as the bytes describe, opens it, and reads and changes it.
pub fn run(bytes: &[u8]) {
    let mut script = Script(bytes);
    let sample = sample(script.byte());
    let mut files = sample.files.clone();
    let done = damage(sample, &mut files, &mut script);
    let backend = disk_of(&files);
    let examined = config(&backend, sample.history).examine(FOLDER);
    let rescuing = config(&backend, sample.history).memory(64 << 20);
    let rescued = Rescue::open(&rescuing, FOLDER, SCRATCH).and_then(|rescue| rescue.count());
    assert!(read_files(&*backend) == files, "an examination or a rescue changed a file");
    if let (Ok(rescued), false) = (&rescued, done.resealed) {
        let rows = sample.states.last().map_or(0, Rows::len) as u64;
        assert!(rescued.rows <= 3 * rows + 1000, "{} rows were rescued of {rows}", rescued.rows);
    }
    let db = match config(&backend, sample.history).open(FOLDER) {
        Ok(db) => db,
        Err(error) => {
            let is_found = examined.as_ref().is_ok_and(|report| !report.corruption.is_empty());
            let is_damage = matches!(error, Error::Corrupted { .. });
            assert!(is_found || !is_damage || done.resealed, "opening: {error:?}; the examination: {examined:?}");
            let of_other_format = matches!(error, Error::NewerFormat { .. } | Error::OlderFormat { .. });
            let names_it = of_other_format || matches!(error, Error::Corrupted { .. } | Error::NotADatabase { .. });
            assert!(names_it || done.resealed, "opening: {error:?}");
            return;
        }
    };
    if done.resealed {
        let _ = read_everything(&db);
    } else {
        verify(&db, sample, done.ends_from(sample));
    }
    if let Ok(keyspace) = db.existing_keyspace("rows") {
        let _ = keyspace.insert(b"row 150", b"new");
        let _ = keyspace.remove(b"row 007");
    }
    let _ = db.checkpoint();
    let _ = db.check();
    let _ = db.close();
}

fn read_everything(db: &Database) -> drumlin::Result<usize> {
    let mut count = 0;
    for info in db.keyspaces() {
        let keyspace = db.existing_keyspace(&info.name)?;
        // If no checksum reveals the damage, a scan may run in circles. So limit the number of rows.
        count += keyspace.iter().take(100_000).take_while(Result::is_ok).count();
        count += keyspace.iter().rev().take(100_000).take_while(Result::is_ok).count();
        assert!(count < 100_000, "a scan does not end");
    }
    for number in 0..450 {
        if let Ok(keyspace) = db.existing_keyspace("rows") {
            let _ = keyspace.get(format!("row {number:03}"));
        }
    }
    let _ = db.check();
    Ok(count)
}

fn verify(db: &Database, sample: &Sample, ends_from: usize) {
    let is_damage = |error: &Error| matches!(error, Error::Corrupted { path, .. } if path.starts_with(FOLDER));
    let keyspace = db.existing_keyspace("rows").expect("the catalogue was read");
    let commit = keyspace.get(b"commit");
    let candidates: Vec<&Rows> = match &commit {
        Ok(commit) => {
            let state = sample.state_of(commit.as_deref()).expect("the row is one that was written");
            assert!(state >= ends_from, "commits are missing: {state}, should be {ends_from} at least");
            vec![&sample.states[state]]
        }
        Err(error) => {
            assert!(is_damage(error), "reading: {error:?}");
            sample.states[ends_from..].iter().collect()
        }
    };
    let mut unreadable = 0;
    for number in 0..450 {
        let key = format!("row {number:03}").into_bytes();
        match keyspace.get(&key) {
            Ok(value) => {
                let is_right = |rows: &&&Rows| rows.get(&key).map(Vec::as_slice) == value.as_deref();
                assert!(candidates.iter().any(|rows| is_right(&rows)), "row {number} has a wrong value");
            }
            Err(error) => {
                assert!(is_damage(&error), "reading: {error:?}");
                unreadable += 1;
            }
        }
    }
    let mut scanned = 0;
    for row in &keyspace {
        match row {
            Ok((key, value)) => {
                scanned += 1;
                let is_right = |rows: &&Rows| rows.get(&key[..]).is_some_and(|known| known[..] == value[..]);
                assert!(candidates.iter().any(is_right), "a scan met a wrong row");
            }
            Err(error) => assert!(is_damage(&error), "scanning: {error:?}"),
        }
    }
    if unreadable == 0 && commit.is_ok() {
        assert_eq!(scanned, candidates[0].len(), "rows of a scan");
    }
    let report = db.check().expect("a check reports damage, it does not fail");
    assert!(
        unreadable == 0 || !report.corruption.is_empty(),
        "{unreadable} rows are unreadable, and the check found nothing"
    );
}
