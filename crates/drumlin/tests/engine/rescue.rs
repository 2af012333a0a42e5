//! Rescues what is left of damaged databases: with lost superblocks, catalogues, tables, pages, log segments.
//!
//! Whatever is damaged, a rescue returns only rows that were stored. Every row that it does not return is in a gap that
//! it reports. If only structures are damaged, and no leaf, it returns all rows of the newest commit.
//! `DRUMLIN_TEST_RESCUES` is the number of random damages (default 60).

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drumlin::{Config, Database, Durability, KeyspaceOptions, Rescue, Salvaged};
use drumlin_io::Backend;
use support::{Random, number, small};

use super::corruption::{FOLDER, Files, disk_of, read_files, tamper};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
type Keyspaces = BTreeMap<String, Rows>;
type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

const SCRATCH: &str = "/scratch";
const SAVED: &str = "/saved";

fn config(backend: &Arc<dyn Backend>) -> Config {
    small().memory(64 << 20).checkpoint_log_bytes(64 << 20).backend(Arc::clone(backend))
}

fn data() -> PathBuf {
    Path::new(FOLDER).join("data")
}

/// A database that uses every feature, with all rows that it ever had.
#[derive(Clone)]
struct Sample {
    files: Files,
    rows: Keyspaces,
    /// Every row with every value that it had at any time.
    ever: BTreeSet<(String, Vec<u8>, Vec<u8>)>,
}

struct Maker {
    db: Database,
    rows: Keyspaces,
    ever: BTreeSet<(String, Vec<u8>, Vec<u8>)>,
    random: Random,
}

impl Maker {
    fn put(&mut self, name: &str, key: Vec<u8>, value: Vec<u8>) {
        let keyspace = self.db.keyspace(name).unwrap();
        keyspace.insert_with(&key, &value, Durability::Relaxed).unwrap();
        self.note(name, key, value);
    }

    fn note(&mut self, name: &str, key: Vec<u8>, value: Vec<u8>) {
        self.ever.insert((name.to_owned(), key.clone(), value.clone()));
        self.rows.entry(name.to_owned()).or_default().insert(key, value);
    }

    fn remove(&mut self, name: &str, key: &[u8]) {
        self.db.keyspace(name).unwrap().remove(key).unwrap();
        self.rows.entry(name.to_owned()).or_default().remove(key);
    }

    /// Returns a value of a size that is drawn at random: few have extents of their own.
    fn value(&mut self) -> Vec<u8> {
        let length = match self.random.below(40) {
            0 => 10_000 + self.random.below(40_000),
            1..6 => 300 + self.random.below(3000),
            _ => self.random.below(120),
        };
        self.random.bytes(length as usize)
    }

    fn write_some(&mut self, name: &str, count: u64, keys: u64) {
        for _ in 0..count {
            let key = format!("row {:06}", self.random.below(keys)).into_bytes();
            if self.random.chance(15) {
                self.remove(name, &key);
            } else {
                let value = self.value();
                self.put(name, key, value);
            }
        }
    }

    fn load(&mut self, name: &str, count: u64, step: u64) {
        let mut load = self.db.bulk_load(name).unwrap();
        for number in 0..count {
            let key = format!("row {:06}", number * step).into_bytes();
            let value = self.value();
            load.insert(&key, &value).unwrap();
            self.note(name, key, value);
        }
        load.finish().unwrap();
    }
}

impl Sample {
    fn new(killed: bool) -> Sample {
        let backend = drumlin_io::in_memory();
        let db = config(&backend).open(FOLDER).unwrap();
        let mut maker = Maker { db, rows: Keyspaces::new(), ever: BTreeSet::new(), random: Random(11) };
        maker.db.keyspace_with("wide", KeyspaceOptions::new().page_bytes(8192)).unwrap();
        for name in ["rows", "wide", "above", "cleared", "dropped"] {
            maker.write_some(name, 700, 2000);
        }
        maker.load("loaded", 900, 2);
        maker.db.checkpoint().unwrap();
        maker.write_some("loaded", 300, 2000);
        maker.write_some("rows", 300, 2000);
        maker.db.drop_keyspace("dropped").unwrap();
        maker.rows.remove("dropped");
        maker.db.checkpoint().unwrap();
        // Runs and removed ranges stay above the trees for as long as there is a snapshot from before.
        let snapshot = maker.db.snapshot();
        maker.load("above", 300, 7);
        let cleared = maker.db.keyspace("cleared").unwrap();
        cleared.remove_range("row 000400".."row 001200").unwrap();
        let is_cleared = |key: &[u8]| (b"row 000400".as_slice()..b"row 001200").contains(&key);
        maker.rows.get_mut("cleared").unwrap().retain(|key, _| !is_cleared(key));
        maker.write_some("cleared", 40, 2000);
        maker.db.checkpoint().unwrap();
        // The log has the rest.
        maker.write_some("rows", 200, 2200);
        maker.write_some("above", 100, 2000);
        maker.write_some("new", 80, 400);
        cleared.remove_range("row 001500"..).unwrap();
        maker.rows.get_mut("cleared").unwrap().retain(|key, _| key[..] < b"row 001500"[..]);
        let mut tx = maker.db.begin().unwrap();
        tx.insert(&cleared, "prepared", "1").unwrap();
        tx.remove(&cleared, "row 000001").unwrap();
        tx.insert(&cleared, "prepared large", vec![9; 200_000]).unwrap();
        tx.prepare("prepared").unwrap();
        // Decided after the checkpoint, with a large value.
        let rows = maker.db.keyspace("rows").unwrap();
        let mut tx = maker.db.begin().unwrap();
        for (key, length) in [("decided", 10), ("decided large", 150_000)] {
            tx.insert(&rows, key, vec![3; length]).unwrap();
            maker.note("rows", key.into(), vec![3; length]);
        }
        tx.prepare("decided").unwrap();
        maker.db.commit_prepared("decided").unwrap();
        // Loads that only the log names: one becomes a tree, the other a run.
        maker.load("late", 300, 3);
        maker.load("wide", 200, 11);
        maker.db.sync().unwrap();
        let mut files = read_files(&*backend);
        let Maker { db, rows, ever, .. } = maker;
        drop((snapshot, cleared));
        if !killed {
            db.close().unwrap();
            files = read_files(&*backend);
        }
        Sample { files, rows, ever }
    }
}

/// The rows and the gaps of each keyspace.
struct Found {
    rows: Keyspaces,
    gaps: BTreeMap<String, Vec<KeyBounds>>,
}

/// Reads all rows, and checks that counting and repairing find as many.
fn rescue(files: &Files) -> Result<Found, drumlin::Error> {
    let backend = disk_of(files);
    let rescue = Rescue::open(&config(&backend), FOLDER, SCRATCH)?;
    let mut found = Found { rows: Keyspaces::new(), gaps: BTreeMap::new() };
    for name in rescue.keyspaces().into_iter().map(|keyspace| keyspace.name) {
        let (mut rows, mut gaps) = (Rows::new(), Vec::new());
        let mut last: Option<Vec<u8>> = None;
        for step in rescue.rows(&name)? {
            match step? {
                Salvaged::Row(key, value) => {
                    assert!(last.as_ref().is_none_or(|last| last[..] < key[..]), "rows are out of order");
                    last = Some(key.to_vec());
                    rows.insert(key.to_vec(), value.to_vec());
                }
                Salvaged::Gap(gap) => {
                    if std::env::var_os("DRUMLIN_TEST_GAPS").is_some() {
                        println!("{name}: {gap:?}");
                    }
                    gaps.push((gap.start, gap.end));
                }
                _ => unreachable!("there are rows and gaps"),
            }
        }
        found.rows.insert(name.clone(), rows);
        found.gaps.insert(name, gaps);
    }
    let counted = rescue.count()?;
    let saved = rescue.repair(SAVED)?;
    let row_count = found.rows.values().map(|rows| rows.len() as u64).sum::<u64>();
    assert_eq!((counted.rows, saved.rows), (row_count, row_count));
    assert_eq!(saved.is_complete(), found.gaps.values().all(Vec::is_empty) && saved.lost_prepared == 0);
    drop(rescue);
    let unchanged: Files = read_files(&*backend).into_iter().filter(|(path, _)| files.contains_key(path)).collect();
    assert!(unchanged == *files, "a rescue changed a file");
    let db = config(&backend).open(SAVED)?;
    assert_eq!(db.prepared()?.len() as u64, saved.prepared);
    assert_eq!(db.keyspaces().len(), found.rows.len());
    for (name, rows) in &found.rows {
        support::compare(&db.existing_keyspace(name)?, rows);
    }
    assert!(db.check()?.corruption.is_empty());
    Ok(found)
}

impl Found {
    fn is_in_gap(&self, name: &str, key: &[u8]) -> bool {
        self.gaps.get(name).into_iter().flatten().any(|(start, end)| {
            let is_after = match start {
                Bound::Included(start) => &start[..] <= key,
                Bound::Excluded(start) => &start[..] < key,
                Bound::Unbounded => true,
            };
            let is_before = match end {
                Bound::Included(end) => key <= &end[..],
                Bound::Excluded(end) => key < &end[..],
                Bound::Unbounded => true,
            };
            is_after && is_before
        })
    }

    /// Returns the first difference from the rows of the sample, or `None`.
    fn difference(&self, sample: &Sample) -> Option<String> {
        let names: BTreeSet<&String> = self.rows.keys().chain(sample.rows.keys()).collect();
        for name in names {
            let (Some(found), Some(expected)) = (self.rows.get(name), sample.rows.get(name)) else {
                return Some(format!("keyspace {name} is in one of both"));
            };
            for key in found.keys().chain(expected.keys()) {
                if found.get(key) != expected.get(key) {
                    let key = key.escape_ascii();
                    return Some(format!(
                        "row {key} of {name}: {} rows found, {} expected",
                        found.len(),
                        expected.len()
                    ));
                }
            }
            if !self.gaps[name].is_empty() {
                return Some(format!("{name} has gaps: {:?}", self.gaps[name]));
            }
        }
        None
    }

    /// Checks that all rows were stored at some time.
    fn verify_after_any(&self, sample: &Sample, damage: &str) {
        for (name, rows) in &self.rows {
            for (key, value) in rows {
                // The name of the keyspace may be lost.
                let names: Vec<&str> = match name.starts_with("keyspace ") {
                    true => vec!["rows", "wide", "above", "cleared", "dropped", "loaded", "new", "late"],
                    false => vec![name],
                };
                let row = |name: &&str| (name.to_string(), key.clone(), value.clone());
                let was = names.iter().map(row).any(|row| sample.ever.contains(&row));
                assert!(was, "{damage}: row {} of {name} never was", key.escape_ascii());
            }
        }
    }

    /// Checks that all rows were stored at some time, and that rows that are not returned are in a gap.
    fn verify(&self, sample: &Sample, damage: &str) {
        self.verify_after_any(sample, damage);
        for (name, rows) in &sample.rows {
            for key in rows.keys() {
                let is_found = self.rows.get(name).is_some_and(|rows| rows.contains_key(key));
                let is_lost = !self.rows.contains_key(name) || self.is_in_gap(name, key);
                assert!(is_found || is_lost, "{damage}: row {} of {name} is missing", key.escape_ascii());
            }
        }
    }
}

/// The extents of the data file that name its database: offset, kind, length. Some are left from earlier uses.
pub(crate) fn extents(bytes: &[u8]) -> Vec<(usize, u8, usize)> {
    let database = &bytes[32..38];
    let mut found = Vec::new();
    let mut offset = 64 << 10;
    while offset + 40 <= bytes.len() {
        let length = u32::from_le_bytes(bytes[offset + 24..offset + 28].try_into().unwrap()) as usize;
        if &bytes[offset + 34..offset + 40] == database && (1..=7).contains(&bytes[offset + 32]) {
            found.push((offset, bytes[offset + 32], length));
            offset += length.next_multiple_of(64).max(64);
        } else {
            offset += 64;
        }
    }
    found
}

/// Damages all extents of a kind.
fn damage_kind(files: &mut Files, kind: u8) -> usize {
    let bytes = files.get_mut(&data()).unwrap();
    let of_kind: Vec<_> = extents(bytes).into_iter().filter(|(_, other, _)| *other == kind).collect();
    of_kind.iter().for_each(|(offset, _, length)| bytes[offset + length - 1] ^= 1);
    of_kind.len()
}

fn zero_superblocks(files: &mut Files) {
    files.get_mut(&data()).unwrap()[..64 << 10].fill(0);
}

pub(crate) const TABLE: u8 = 4;
const CATALOGUE: u8 = 5;
pub(crate) const SUMMARY: u8 = 6;
pub(crate) const SEGMENTS: u8 = 7;

/// The rows of a sound database are rescued as they are, those that only the log has included.
#[test]
fn a_sound_database_is_rescued_as_it_is() {
    for killed in [false, true] {
        let sample = Sample::new(killed);
        let found = rescue(&sample.files).unwrap();
        assert_eq!(found.difference(&sample), None, "killed: {killed}");
    }
}

/// Without superblocks, the newest catalogue and the log give all rows.
#[test]
fn lost_superblocks_lose_no_row() {
    for killed in [false, true] {
        let mut sample = Sample::new(killed);
        zero_superblocks(&mut sample.files);
        let found = rescue(&sample.files).unwrap();
        assert_eq!(found.difference(&sample), None, "killed: {killed}");
    }
}

/// Without page tables, summaries, or the table of segments, all rows are found by a search, those of runs included.
#[test]
fn lost_tables_lose_no_row() {
    for killed in [false, true] {
        let whole = Sample::new(killed);
        for kinds in [&[SEGMENTS][..], &[TABLE], &[SUMMARY], &[TABLE, SUMMARY, SEGMENTS]] {
            // Without superblocks, a closed database is found as a killed one is.
            let variants = if killed || kinds.len() > 1 { &[true, false][..] } else { &[true] };
            for &has_superblocks in variants {
                let mut sample = whole.clone();
                let count: usize = kinds.iter().map(|kind| damage_kind(&mut sample.files, *kind)).sum();
                assert!(count > 0);
                if !has_superblocks {
                    zero_superblocks(&mut sample.files);
                }
                let found = rescue(&sample.files).unwrap();
                let damage = format!("killed: {killed}, {kinds:?}, superblocks: {has_superblocks}");
                found.verify(&sample, &damage);
                for (name, rows) in &sample.rows {
                    // If a run and its tree have the same row, a search can't tell for sure which is newer.
                    for (key, value) in rows {
                        let row = found.rows[name].get(key);
                        let is_right =
                            if ["above", "wide"].contains(&&**name) { row.is_some() } else { row == Some(value) };
                        let gap = found.is_in_gap(name, key);
                        assert!(is_right, "{damage}: row {} of {name}, in a gap: {gap}", key.escape_ascii());
                    }
                }
            }
        }
    }
}

/// Without a catalogue, keyspaces have no names, but all of their rows. If the superblocks are sound, so is the log.
#[test]
fn a_lost_catalogue_loses_only_names() {
    for killed in [false, true] {
        for has_superblocks in [true, false] {
            let mut sample = Sample::new(killed);
            assert!(damage_kind(&mut sample.files, CATALOGUE) > 0);
            if !has_superblocks {
                zero_superblocks(&mut sample.files);
            }
            let found = rescue(&sample.files).unwrap();
            let damage = format!("killed: {killed}, superblocks: {has_superblocks}");
            for (name, rows) in &sample.rows {
                // The log has the name of a keyspace that it creates.
                let has_most = |other: &&Rows| {
                    let same = rows.iter().filter(|(key, value)| other.get(*key) == Some(value)).count();
                    10 * same >= 9 * rows.len()
                };
                let other = found.rows.values().find(has_most);
                let counts = || {
                    found
                        .rows
                        .iter()
                        .map(|(other, found)| {
                            let same = rows.iter().filter(|(key, value)| found.get(*key) == Some(value)).count();
                            format!("{other}: {} rows, {same} of {}", found.len(), rows.len())
                        })
                        .collect::<Vec<_>>()
                };
                let other =
                    other.unwrap_or_else(|| panic!("{damage}: no keyspace has the rows of {name}: {:?}", counts()));
                let missing = rows.keys().find(|key| !other.contains_key(*key));
                assert_eq!(missing.map(|key| key.escape_ascii().to_string()), None, "{damage}: {name}");
            }
        }
    }
}

/// Creates a database with clones of several kinds: a clone of a clone, of a loaded keyspace and of a dropped one, and
/// a clone that only the log records. It also has a kept snapshot.
fn sample_of_clones(killed: bool, is_compacted: bool) -> Sample {
    let backend = drumlin_io::in_memory();
    let db = config(&backend).open(FOLDER).unwrap();
    let mut maker = Maker { db, rows: Keyspaces::new(), ever: BTreeSet::new(), random: Random(12) };
    let clone = |maker: &mut Maker, from: &str, to: &str| {
        maker.db.clone_keyspace(from, to).unwrap();
        let rows = maker.rows[from].clone();
        maker.rows.insert(to.to_owned(), rows);
    };
    for name in ["rows", "dropped"] {
        maker.write_some(name, 1500, 2000);
    }
    maker.load("loaded", 900, 2);
    clone(&mut maker, "rows", "clone");
    // Both are changed while they share pages, before and after the checkpoints that follow.
    for (name, count) in [("clone", 60), ("rows", 60), ("rows", 20)] {
        maker.write_some(name, count, 2000);
        maker.db.checkpoint().unwrap();
    }
    clone(&mut maker, "clone", "clone of a clone");
    maker.db.keep_snapshot("kept").unwrap();
    for name in ["clone of a clone", "clone", "rows"] {
        maker.write_some(name, 30, 2000);
    }
    clone(&mut maker, "dropped", "clone of a dropped one");
    clone(&mut maker, "loaded", "clone of a loaded one");
    maker.db.drop_keyspace("dropped").unwrap();
    maker.rows.remove("dropped");
    maker.write_some("clone of a dropped one", 30, 2000);
    for name in ["loaded", "clone of a loaded one"] {
        // Only put rows. A rescue that searches the data file may bring back rows that were removed after a bulk load.
        for number in 0..20 {
            maker.put(name, format!("row {:06}", number * 46).into_bytes(), name.into());
        }
    }
    if is_compacted {
        maker.db.compact().unwrap();
    }
    maker.db.checkpoint().unwrap();
    clone(&mut maker, "clone of a clone", "clone in the log");
    for name in ["clone in the log", "clone of a clone", "clone", "rows"] {
        maker.write_some(name, 20, 2000);
    }
    maker.db.sync().unwrap();
    let mut files = read_files(&*backend);
    let Maker { db, rows, ever, .. } = maker;
    if !killed {
        db.close().unwrap();
        files = read_files(&*backend);
    }
    Sample { files, rows, ever }
}

/// If the catalogue or all page tables are lost, keyspaces and their clones are rescued with all rows: each leaf that
/// they share says that it is the origin's.
#[test]
fn clones_without_catalogue_or_tables_are_rescued() {
    for (killed, is_compacted) in [(false, false), (true, false), (false, true), (true, true)] {
        let sample = sample_of_clones(killed, is_compacted);
        for (kinds, has_superblocks) in [
            (&[][..], true),
            (&[TABLE][..], true),
            (&[CATALOGUE], true),
            (&[CATALOGUE], false),
            (&[CATALOGUE, SUMMARY], true),
        ] {
            let damage =
                format!("killed: {killed}, compacted: {is_compacted}, {kinds:?}, superblocks: {has_superblocks}");
            let mut files = sample.files.clone();
            assert!(kinds.is_empty() || kinds.iter().map(|kind| damage_kind(&mut files, *kind)).sum::<usize>() > 0);
            if !has_superblocks {
                zero_superblocks(&mut files);
            }
            let found = rescue(&files).unwrap_or_else(|error| panic!("{damage}: {error}"));
            let counts = || found.rows.iter().map(|(name, rows)| format!("{name}: {}", rows.len())).collect::<Vec<_>>();
            for (name, rows) in &sample.rows {
                let is_it = |other: &&String| match kinds.contains(&CATALOGUE) {
                    true => found.rows[*other] == *rows,
                    false => *other == name,
                };
                let other = found.rows.keys().find(is_it);
                let other = other.unwrap_or_else(|| panic!("{damage}: nothing is like {name}: {:?}", counts()));
                let wrong = rows.iter().find(|(key, value)| found.rows[other].get(*key) != Some(value));
                assert_eq!(wrong.map(|(key, _)| key.escape_ascii().to_string()), None, "{damage}: {name}");
                assert_eq!(found.rows[other].len(), rows.len(), "{damage}: {name} has rows of others");
                assert!(found.gaps[other].is_empty(), "{damage}: {name} has gaps");
            }
        }
    }
}

/// The commits before a damaged log record are rescued, those before the first checkpoint too.
#[test]
fn the_sound_prefix_of_a_log_is_rescued() {
    let backend = drumlin_io::in_memory();
    let db = config(&backend).open(FOLDER).unwrap();
    let keyspace = db.keyspace("rows").unwrap();
    for number in 0..20u8 {
        // Each record fills more than a block of the log.
        keyspace.insert([number], vec![number; 6000]).unwrap();
    }
    let sound = read_files(&*backend);
    let segment = sound.keys().find(|path| path.to_str().unwrap().contains(".seg")).unwrap().clone();
    let offset = sound[&segment].windows(6000).position(|bytes| bytes == [10; 6000]).unwrap();
    for has_superblocks in [true, false] {
        let mut files = sound.clone();
        files.get_mut(&segment).unwrap()[offset + 5] ^= 1;
        if !has_superblocks {
            zero_superblocks(&mut files);
        }
        assert!(config(&disk_of(&files)).open(FOLDER).is_err());
        let found = rescue(&files).unwrap();
        assert!(found.rows["rows"].keys().map(|key| key[0]).eq(0..10), "superblocks: {has_superblocks}");
    }
}

/// Lost log segments cost only commits of the log.
#[test]
fn a_lost_log_leaves_the_checkpoint() {
    let mut sample = Sample::new(true);
    sample.files.retain(|path, _| !path.to_str().unwrap().ends_with(".seg"));
    let found = rescue(&sample.files).unwrap();
    let is_stored = |(name, key, value): (&String, &Vec<u8>, &Vec<u8>)| {
        sample.ever.contains(&(name.clone(), key.clone(), value.clone()))
    };
    for (name, rows) in &found.rows {
        assert!(rows.iter().all(|(key, value)| is_stored((name, key, value))), "{name}");
        assert!(found.gaps[name].is_empty(), "{name}");
    }
    assert_eq!(found.rows.len(), sample.rows.len() - 2, "the log has the last two keyspaces");
    // Nothing changed it after the checkpoint.
    assert!(found.rows["loaded"] == sample.rows["loaded"]);
}

/// Random damage in any file: only rows that were stored are returned, and all others are in gaps.
#[test]
fn random_damage_loses_only_what_is_reported() {
    let samples = [Sample::new(false), Sample::new(true)];
    let (mut refused, mut complete) = (0, 0);
    let count = number("DRUMLIN_TEST_RESCUES", 60);
    for seed in 0..count {
        let mut random = Random(seed);
        let sample = &samples[random.index(2)];
        let mut files = sample.files.clone();
        let mut damage = format!("seed {seed}:");
        for _ in 0..1 + random.below(6) {
            let is_data = random.chance(80);
            let mut paths: Vec<PathBuf> = files.keys().filter(|path| (**path == data()) == is_data).cloned().collect();
            paths.retain(|path| is_data || path.to_str().unwrap().ends_with(".seg"));
            if paths.is_empty() {
                continue;
            }
            let path = &paths[random.index(paths.len())];
            damage += &format!(" {}: {};", path.display(), tamper(files.get_mut(path).unwrap(), &mut random));
        }
        if random.chance(20) {
            zero_superblocks(&mut files);
            damage += " no superblocks";
        }
        match rescue(&files) {
            Ok(found) => {
                found.verify_after_any(sample, &damage);
                complete += u64::from(found.difference(sample).is_none());
            }
            Err(_) => refused += 1,
        }
    }
    println!("{complete} of {count} were complete, {refused} refused");
    // Neither superblocks nor anything else may be left.
    assert!(refused <= count / 50 && complete < count);
}

/// Everything that a rescue needs is checked before anything is written.
#[test]
fn a_rescue_needs_empty_folders_and_memory() {
    let backend = disk_of(&Sample::new(false).files);
    let config = config(&backend);
    let small = Rescue::open(&config.clone().memory(16 << 20), FOLDER, SCRATCH).unwrap_err();
    assert!(matches!(small, drumlin::Error::BudgetTooSmall { minimum_bytes, .. } if minimum_bytes == 32 << 20));
    assert!(!backend.exists(Path::new(SCRATCH)).unwrap());
    let missing = Rescue::open(&config, "/nothing", SCRATCH).unwrap_err();
    assert!(matches!(missing, drumlin::Error::NotFound { .. }));
    let rescue = Rescue::open(&config, FOLDER, SCRATCH).unwrap();
    assert!(matches!(rescue.rows("nothing"), Err(drumlin::Error::NoSuchKeyspace { .. })));
    config.open(SAVED).unwrap().close().unwrap();
    assert!(matches!(rescue.repair(SAVED), Err(drumlin::Error::Invalid(_))));
    assert!(matches!(rescue.repair(FOLDER), Err(drumlin::Error::Locked { .. } | drumlin::Error::Invalid(_))));
    drop(rescue);
    assert!(matches!(Rescue::open(&config, FOLDER, SCRATCH), Err(drumlin::Error::Invalid(_))));
}
