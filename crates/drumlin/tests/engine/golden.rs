//! Golden traces: the exact order of writes and syncs. Each file in `tests/traces` is a script of operations, each
//! followed by its effects on the files.
//!
//! A changed trace means a change to the basis of durability, so review it line by line. `DRUMLIN_TEST_BLESS=1` writes
//! the observed traces into the scripts.
//!
//! A script is a list of steps separated by empty lines: comments, the operation, `----`, and the effects. Events are
//! [`drumlin_io::testing::fault::Event`]s in the order in which they were requested. `superblock 0` and `superblock 1`
//! are the slots in `data`, `=` marks a result and `!` an error. `tally` before an operation counts the events of each
//! kind and file; `quiet` omits the events.
//!
//! The database is small, its disk is simulated, and the log has no threads: an operation prepares a segment when it
//! needs one, instead of a thread preparing it in advance.
//!
//! | operation | effect |
//! | --- | --- |
//! | `open [STREAMS]` | opens the database, with this number of log streams |
//! | `close` | closes the database |
//! | `kill` | ends the process; everything written is kept |
//! | `cut` | cuts the power; all uncertain writes are lost |
//! | `keyspace NAME`, `drop NAME` | creates or drops a keyspace |
//! | `insert NAME KEY BYTES`, `remove NAME KEY` | commits one row |
//! | `fill NAME FROM..TO BYTES`, `empty NAME FROM..TO` | commits numbered rows one by one, up to the first refusal |
//! | `transaction NAME FROM..TO BYTES`, `removal NAME FROM..TO` | commits numbered rows together |
//! | `load NAME FROM..TO BYTES` | loads numbered rows in bulk |
//! | `stream NAME KEY BYTES` | commits a value that is read from a stream |
//! | `count NAME` | counts rows |
//! | `checkpoint`, `compact` | calls the method of that name |
//! | `space BYTES`, `space none` | limits the additional space that the files may take, or removes the limit |
//! | `fail write NTH`, `fail sync NTH` | makes this write or sync of the following operations fail |

use crate::support;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use drumlin::{Config, Database, Keyspace, Snapshot};
use drumlin_io::Backend;
use drumlin_io::testing::fault::{EIO, Event, FaultyBackend, Operation};
use drumlin_io::testing::sim::{self, Disk, Loss, Medium};
use support::{Random, small};

/// A step of a script: comments, an operation, and its effects.
struct Step {
    comments: Vec<String>,
    operation: String,
    outcome: Vec<String>,
}

/// Splits the text of a script into its steps. A step without an operation is a comment.
fn parse(text: &str) -> Vec<Step> {
    let steps = text.split("\n\n").map(|paragraph| {
        let (head, outcome) = paragraph.split_once("\n----").unwrap_or((paragraph, ""));
        let (comments, operations): (Vec<&str>, Vec<&str>) =
            head.trim().lines().partition(|line| line.starts_with('#'));
        assert!(operations.len() <= 1, "a step has one operation:\n{head}");
        Step {
            comments: comments.into_iter().map(str::to_owned).collect(),
            operation: operations.concat(),
            outcome: outcome.trim().lines().map(str::to_owned).collect(),
        }
    });
    steps.collect()
}

fn render(steps: &[Step]) -> String {
    let paragraphs = steps.iter().map(|step| {
        let operation = (!step.operation.is_empty()).then(|| [step.operation.clone(), "----".to_owned()]);
        [step.comments.clone(), operation.map(Vec::from).unwrap_or_default(), step.outcome.clone()].concat().join("\n")
    });
    paragraphs.collect::<Vec<_>>().join("\n\n") + "\n"
}

/// Formats an event as a line of the trace, naming the superblocks.
fn line(event: &Event) -> String {
    let text = event.to_string();
    let slots = [("write data 0+4096", "write superblock 0"), ("write data 32768+4096", "write superblock 1")];
    slots.iter().fold(text, |text, (place, name)| text.replace(place, name))
}

/// Counts the events by kind and file, and adds up the bytes of writes.
fn tally(events: &[Event]) -> Vec<String> {
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for event in events {
        let text = line(event);
        let words: Vec<&str> = text.split(' ').collect();
        let is_place = |word: &&str| word.contains('+') || word.parse::<u64>().is_ok();
        let kind = words.iter().filter(|word| !is_place(word)).copied().collect::<Vec<_>>().join(" ");
        let count = counts.entry(kind).or_default();
        let bytes = if let Event::Write { bytes, .. } = event { *bytes } else { 0 };
        *count = (count.0 + 1, count.1 + bytes);
    }
    let of = |bytes: u64| if bytes > 0 { format!(", {bytes} bytes") } else { String::new() };
    counts.into_iter().map(|(kind, (count, bytes))| format!("{count} x {kind}{}", of(bytes))).collect()
}

/// Returns an incompressible value that depends only on the key.
fn value_of(key: &[u8], bytes: usize) -> Vec<u8> {
    Random(key.iter().fold(7, |seed: u64, byte| seed.wrapping_mul(257) + u64::from(*byte))).bytes(bytes)
}

/// Parses a range of numbers, such as `3..7`.
fn numbers(text: &str) -> Range<u64> {
    let (from, to) = text.split_once("..").expect("a range");
    from.parse().unwrap()..to.parse().unwrap()
}

/// The simulated machine on which a script runs.
struct Machine {
    disk: Disk,
    faulty: FaultyBackend,
    db: Option<Database>,
    /// Keeps runs from being folded in the background, at moments that no trace could tell.
    held: Option<Snapshot>,
}

impl Machine {
    fn new(medium: Medium) -> Machine {
        let disk = Disk::new(medium, 4);
        let faulty = FaultyBackend::new(disk.backend());
        faulty.refuse_threads("drumlin-log");
        faulty.start_trace();
        Machine { disk, faulty, db: None, held: None }
    }

    /// Ends the process, and continues with the disk that `after` returns.
    fn end(&mut self, after: impl FnOnce(Medium) -> Medium) {
        self.disk.turn_off();
        self.held = None;
        self.db = None;
        *self = Machine::new(after(self.disk.medium()));
    }

    fn config(&self, streams: u16) -> Config {
        let backend: Arc<dyn Backend> = Arc::new(self.faulty.clone());
        // Only the script makes checkpoints, and no page is evicted to make room.
        small().memory(64 << 20).log_streams(streams).checkpoint_log_bytes(1 << 30).backend(backend)
    }

    fn db(&self) -> &Database {
        self.db.as_ref().expect("the script opens the database first")
    }

    fn keyspace(&self, name: &str) -> Keyspace {
        self.db().existing_keyspace(name).unwrap()
    }

    /// Runs an operation. Returns its result and its effects on the files.
    fn run(&mut self, operation: &str) -> Vec<String> {
        let mut words: Vec<&str> = operation.split(' ').collect();
        let command = words[0];
        words.retain(|word| !["tally", "quiet"].contains(word));
        let answer = self.act(&words);
        let events = self.faulty.take_events();
        let mut outcome = match command {
            "tally" => tally(&events),
            "quiet" => Vec::new(),
            _ => events.iter().map(line).collect(),
        };
        match answer {
            Ok(None) => {}
            Ok(Some(answer)) => outcome.push(format!("= {answer}")),
            Err(error) => outcome.push(format!("! {error}")),
        }
        outcome
    }

    fn act(&mut self, words: &[&str]) -> drumlin::Result<Option<String>> {
        match words {
            ["open", streams @ ..] => {
                let streams = streams.first().map_or(1, |streams| streams.parse().unwrap());
                let db = self.config(streams).open("/db")?;
                let opening = db.opening();
                let answer = if opening.created {
                    "created".into()
                } else {
                    format!("records recovered: {}", opening.recovered_records)
                };
                self.db = Some(db);
                return Ok(Some(answer));
            }
            ["hold"] => self.held = Some(self.db().snapshot()),
            ["close"] => self.db.take().expect("an open database").close()?,
            ["kill"] => self.end(|medium| medium),
            ["cut"] => self.end(|medium| medium.cut(Loss::All, &mut sim::Random(0))),
            ["keyspace", name] => drop(self.db().keyspace(name)?),
            ["drop", name] => self.db().drop_keyspace(name)?,
            ["checkpoint"] => {
                return self.db().checkpoint().map(|report| Some(format!("pages written: {}", report.pages_written)));
            }
            ["compact"] => return self.db().compact().map(|_| None),
            ["count", name] => return self.keyspace(name).count(..).map(|count| Some(format!("rows: {count}"))),
            ["space", "none"] => self.faulty.set_space_limit(None),
            ["space", bytes] => {
                self.faulty.set_space_limit(Some(self.faulty.space_used() + bytes.parse::<u64>().unwrap()));
            }
            ["fail", kind, nth] => {
                let kind = if *kind == "write" { Operation::Write } else { Operation::Sync };
                self.faulty.fail_nth(kind, nth.parse().unwrap(), EIO);
            }
            _ => return self.change_rows(words),
        }
        Ok(None)
    }

    fn change_rows(&self, words: &[&str]) -> drumlin::Result<Option<String>> {
        let rows = self.keyspace(words[1]);
        let bytes = words.get(3).map_or(0, |bytes| bytes.parse().unwrap());
        match words {
            ["insert", _, key, _] => rows.insert(key, value_of(key.as_bytes(), bytes))?,
            ["remove", _, key] => rows.remove(key)?,
            ["stream", _, key, _] => drop(rows.insert_from(key, &value_of(key.as_bytes(), bytes)[..])?),
            ["fill", _, range, _] => {
                return each(range, |key| rows.insert(key, value_of(&key, bytes)));
            }
            ["empty", _, range] => return each(range, |key| rows.remove(key)),
            ["load", name, range, _] => {
                let mut load = self.db().bulk_load(name)?;
                numbers(range).map(u64::to_be_bytes).try_for_each(|key| load.insert(key, value_of(&key, bytes)))?;
                return Ok(Some(format!("rows: {}", load.finish()?.rows)));
            }
            ["transaction", _, range, _] => {
                let mut tx = self.db().begin()?;
                numbers(range)
                    .map(u64::to_be_bytes)
                    .try_for_each(|key| tx.insert(&rows, key, value_of(&key, bytes)))?;
                tx.commit()?;
            }
            ["removal", _, range] => {
                let mut tx = self.db().begin()?;
                numbers(range).try_for_each(|number| tx.remove(&rows, number.to_be_bytes()))?;
                tx.commit()?;
            }
            _ => panic!("no such operation: {words:?}"),
        }
        Ok(None)
    }
}

/// Commits numbered rows one by one. At the first refusal, returns the number of rows committed before it.
fn each(range: &str, commit: impl Fn([u8; 8]) -> drumlin::Result<()>) -> drumlin::Result<Option<String>> {
    let numbers = numbers(range);
    let from = numbers.start;
    for number in numbers {
        if let Err(error) = commit(number.to_be_bytes()) {
            return Ok(Some(format!("refused after {}: {error}", number - from)));
        }
    }
    Ok(None)
}

/// Runs a script and compares its effects with the listed ones, or writes the observed effects into the script.
fn check(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut machine = Machine::new(Medium::default());
    let mut steps = parse(&text);
    for step in steps.iter_mut().filter(|step| !step.operation.is_empty()) {
        step.outcome = machine.run(&step.operation);
    }
    drop((machine.held.take(), machine.db.take()));
    let seen = render(&steps);
    if std::env::var_os("DRUMLIN_TEST_BLESS").is_some() {
        return std::fs::write(path, seen).unwrap();
    }
    for (number, (seen, expected)) in seen.lines().zip(text.lines()).enumerate() {
        assert_eq!(seen, expected, "line {} of {}", number + 1, path.display());
    }
    assert_eq!(seen, text, "{} is longer or shorter than what was seen", path.display());
}

macro_rules! scripts {
    ($($(#[$what:meta])* $name:ident;)*) => {
        $(
            $(#[$what])*
            #[test]
            fn $name() {
                check(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../drumlin/tests/traces/", stringify!($name), ".txt")));
            }
        )*
        const SCRIPTS: &[&str] = &[$(stringify!($name)),*];
    };
}

scripts! {
    /// When a creation or a commit returns, its data is durable. The trace has the order in which it was written.
    commit;
    /// Pages, tables and catalogue are written before the superblock, and the superblocks alternate.
    checkpoint;
    /// An opening makes all data that it finds durable before it writes any new data: after a kill, a power cut and a
    /// clean close.
    recovery;
    /// Sparse segments are freed, and log segments are reused, only once no durable structure needs them.
    cleaning;
    /// A full disk refuses an operation before anything is written, and works again once there is space.
    full_disk;
    /// Many rows in one commit, and large values: there are few writes, and a log record comes after the extents to
    /// which it refers.
    bulk;
    /// A bulk load: its pages, one sync, and only then the record that attaches them.
    bulk_load;
    /// A failed write or sync is final: no operation is retried until the database is reopened.
    failure;
}

/// The statistics count every byte that an open database writes to its data file and its log, including padding,
/// headers and zeros.
#[test]
fn statistics_count_all_bytes_written() {
    let mut machine = Machine::new(Medium::default());
    for operation in ["open 2", "keyspace k"] {
        machine.run(operation);
    }
    let before = machine.db().stats();
    let mut written = [0, 0];
    for operation in ["fill k 0..300 100", "transaction k 300..400 900", "stream k film 600000", "checkpoint"] {
        machine.act(&operation.split(' ').collect::<Vec<_>>()).unwrap();
        for event in machine.faulty.take_events() {
            if let Event::Write { file, bytes, .. } = event {
                written[usize::from(file.ends_with(".seg"))] += bytes;
            }
        }
    }
    let after = machine.db().stats();
    let counted =
        [after.device_write_bytes - before.device_write_bytes, after.log_write_bytes - before.log_write_bytes];
    assert_eq!(counted, written);
    assert!(written[1] > 300 * 4096, "{written:?}");
}

/// Every script has a test.
#[test]
fn no_script_is_forgotten() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../drumlin/tests/traces")).unwrap();
    let mut found: Vec<String> =
        folder.map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()).collect();
    let mut expected: Vec<String> = SCRIPTS.iter().map(|name| (*name).to_owned()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}
