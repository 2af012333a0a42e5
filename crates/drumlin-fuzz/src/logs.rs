//! Damages the files of folders of logs, then opens them.
//!
//! There are two small folders, each made once: one was closed, the other was killed. Their logs were appended to, cut
//! off, purged, moved and removed. A script describes the damage to their files.
//!
//! Opening fails with an error that names a file, or finds the logs as they were after some change. An entry is read as
//! it was appended, or not at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use drumlin::Error;
use drumlin::logs::{Logs, LogsOptions};
use drumlin_io::{Backend, OpenOptions, Persist};
use drumlin_testing::Random;

use crate::Script;

type Files = BTreeMap<PathBuf, Vec<u8>>;

const FOLDER: &str = "/logs";

/// A log: its entries and values.
type Log = (BTreeMap<u64, Vec<u8>>, BTreeMap<String, Vec<u8>>);

/// All logs.
type State = BTreeMap<u64, Log>;

struct Sample {
    files: Files,
    /// The logs after each change.
    states: Vec<State>,
}

fn options(backend: &Arc<dyn Backend>) -> LogsOptions {
    LogsOptions::new().memory(2 << 20).segment_bytes(64 << 10).backend(Arc::clone(backend))
}

fn read_files(backend: &dyn Backend) -> Files {
    let mut files = Files::new();
    for path in backend.list(Path::new(FOLDER)).expect("a folder in memory") {
        let file = backend.open(&path, OpenOptions::default()).expect("a file in memory");
        let mut bytes = vec![0; file.len().expect("a file in memory") as usize];
        file.read_at(&mut bytes, 0).expect("a file in memory");
        files.insert(path, bytes);
    }
    files
}

fn write_files(files: &Files) -> Arc<dyn Backend> {
    let backend = drumlin_io::in_memory();
    backend.create_dir_all(Path::new(FOLDER)).expect("a folder in memory");
    for (path, bytes) in files {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = backend.open(path, options).expect("a file in memory");
        file.write_at(bytes, 0, Persist::Later).expect("a file in memory");
        file.set_len(bytes.len() as u64).expect("a file in memory");
    }
    backend
}

impl Sample {
    fn make(is_closed: bool) -> Sample {
        let backend = drumlin_io::in_memory();
        let logs = Logs::open(FOLDER, &options(&backend)).expect("a folder in memory");
        let mut random = Random(5);
        let mut states = vec![State::new()];
        for step in 0..300u64 {
            let mut state = states.last().expect("there is one").clone();
            let number = random.below(3);
            let log = logs.log(number);
            let (entries, values) = state.entry(number).or_default();
            let next = log.last().or(log.purged()).map_or(0, |last| last + 1);
            let changed = match random.below(12) {
                0 if log.last().is_some() => {
                    let last = log.last().expect("it has entries");
                    entries.remove(&last);
                    log.truncate_after(last.checked_sub(1))
                }
                1 if log.first().is_some() => {
                    let first = log.first().expect("it has entries");
                    entries.remove(&first);
                    log.purge_to(first)
                }
                2 => {
                    values.insert("vote".into(), step.to_le_bytes().to_vec());
                    log.set("vote", step.to_le_bytes())
                }
                _ => {
                    // Some are in parts.
                    let bytes = if random.below(30) == 0 { 40_000 } else { 1 + random.below(1000) };
                    let entry = random.bytes(bytes as usize);
                    entries.insert(next, entry.clone());
                    log.append(next, &[entry])
                }
            };
            changed.and_then(drumlin::logs::Receipt::wait).expect("a folder in memory");
            states.push(state);
        }
        let mut files = read_files(&*backend);
        if is_closed {
            logs.close().expect("a folder in memory");
            files = read_files(&*backend);
        } else {
            // Its files stay as they are for the sample.
            drop(logs);
        }
        files.retain(|path, _| !path.ends_with("lock"));
        Sample { files, states }
    }
}

fn samples() -> &'static [Sample; 2] {
    static SAMPLES: OnceLock<[Sample; 2]> = OnceLock::new();
    SAMPLES.get_or_init(|| [true, false].map(Sample::make))
}

/// Damages the files as the script describes.
fn damage(files: &mut Files, script: &mut Script<'_>) {
    let names: Vec<PathBuf> = files.keys().cloned().collect();
    while script.has_more() {
        let kind = script.byte();
        let path = &names[script.number() % names.len()];
        let Some(file) = files.get_mut(path) else { continue };
        let used = file.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if used == 0 {
            continue;
        }
        let at = script.number() % used;
        let end = |bytes: usize| used.min(at + bytes);
        match kind % 8 {
            0 | 1 => file[at] ^= 1 << (kind >> 3 & 7),
            2 => file[at..end(512)].fill(0),
            3 => {
                let bytes = script.bytes(usize::from(kind >> 3));
                file[at..end(bytes.len())].copy_from_slice(&bytes[..end(bytes.len()) - at]);
            }
            4 => {
                // A misdirected write.
                let from = script.number() % used / 512 * 512;
                let to = at / 512 * 512;
                let bytes = 4096.min(used - from.max(to));
                file.copy_within(from..from + bytes, to);
            }
            5 => file.truncate(at),
            6 => drop(files.remove(path)),
            _ => file[at] = script.byte(),
        }
    }
}

/// Damages a folder of logs as the bytes describe, opens it, and reads and changes it.
///
/// # Panics
/// If an entry is read that was not appended, or the logs are as they never were.
pub fn run(bytes: &[u8]) {
    let mut script = Script(bytes);
    let sample = &samples()[usize::from(script.byte()) % 2];
    let mut files = sample.files.clone();
    damage(&mut files, &mut script);
    let backend = write_files(&files);
    let logs = match Logs::open(FOLDER, &options(&backend)) {
        Ok(logs) => logs,
        Err(
            Error::Corrupted { .. }
            | Error::Io { .. }
            | Error::NotADatabase { .. }
            | Error::NewerFormat { .. }
            | Error::OlderFormat { .. },
        ) => return,
        Err(other) => panic!("opening a damaged folder: {other:?}"),
    };
    let mut found = State::new();
    let mut damaged: Vec<(u64, u64)> = Vec::new();
    for number in logs.numbers() {
        let log = logs.log(number);
        let (entries, values) = found.entry(number).or_default();
        for index in log.first().map_or(0, |first| first)..log.last().map_or(0, |last| last + 1) {
            match log.get(index) {
                Ok(entry) => drop(entries.insert(index, entry.to_vec())),
                Err(Error::Corrupted { .. } | Error::Io { .. }) => damaged.push((number, index)),
                Err(other) => panic!("reading entry {index} of log {number}: {other:?}"),
            }
        }
        for name in log.names() {
            let value = log.value(&name).expect("it has a name");
            values.insert(name, value);
        }
    }
    // A removed head leaves a folder that begins empty.
    let is_state = |state: &State| {
        state.len() == found.len()
            && state.iter().all(|(number, (entries, values))| {
                found.get(number).is_some_and(|(found, found_values)| {
                    let is_damaged = |index: &u64| damaged.contains(&(*number, *index));
                    values == found_values
                        && entries
                            .iter()
                            .all(|(index, entry)| found.get(index).map_or(is_damaged(index), |it| it == entry))
                        && found.keys().all(|index| entries.contains_key(index))
                })
            })
    };
    assert!(sample.states.iter().any(is_state), "the logs never were like this: {:?}", logs.stats());
    // The logs go on, whatever their old entries are.
    for number in 0..4 {
        let log = logs.log(number);
        let next = log.last().or(log.purged()).map_or(0, |last| last + 1);
        log.append(next, &["after"]).and_then(drumlin::logs::Receipt::wait).expect("it is open");
        assert_eq!(log.get(next).expect("it was appended"), "after");
    }
    if let Err(error) = logs.close() {
        assert!(matches!(error, Error::Failed { .. } | Error::Corrupted { .. } | Error::Io { .. }), "{error:?}");
    }
}
