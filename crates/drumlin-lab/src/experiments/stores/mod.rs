//! Commits of 1 KiB by store (S2's first table): Drumlin, and other stores if they are built in.
//!
//! Each trial opens a new store in its own folder. The calls that ask for durability are counted in a separate run,
//! because counting slows them down. Flushes are counted at the device while commits are timed.

mod claims;
#[cfg(feature = "peers")]
mod peers;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use drumlin::{Config, Database, IoBackend, Keyspace};
use serde::{Deserialize, Serialize};

use crate::block_counts::BlockCounts;
use crate::experiments::places::Place;
use crate::figures::Form;
use crate::measure::{Latencies, Load, Sample, Timing, load};
use crate::report::{Cell, Chapter, Table};
use crate::session::{Counted, Rounds, Session};
use crate::sync_calls::{self, SyncCounts};
use crate::worker::Measurement;

const VALUE: [u8; 1024] = [0xA5; 1024];

/// The number of commits that each writer makes before its commits are counted. They create files and tables.
const WARM_COMMITS: u64 = 20;

/// The number of commits that each writer makes while calls are counted.
const COUNTED_COMMITS: u64 = 200;

/// The numbers of writers. Comparing the two rates shows if commits queue.
const WRITERS: [usize; 2] = [1, 8];

/// A measured store, which its writers share.
trait Store: Sync {
    /// Returns a writer: a function that commits one new row, which is durable when the function returns.
    fn writer(&self) -> Result<Commit<'_>, String>;
}

type Commit<'a> = Box<dyn FnMut([u8; 8], &[u8]) -> Result<(), String> + 'a>;
type Opened = Result<Box<dyn Store>, String>;
type Open = fn(&Path) -> Opened;

struct Drumlin {
    rows: Keyspace,
    _database: Database,
}

fn open_drumlin(folder: &Path, backend: IoBackend) -> Opened {
    let config = Config::new().memory(64 << 20).io_backend(backend);
    let database = config.open(folder).map_err(|error| error.to_string())?;
    let rows = database.keyspace("rows").map_err(|error| error.to_string())?;
    Ok(Box::new(Drumlin { rows, _database: database }))
}

fn drumlin(folder: &Path) -> Opened {
    open_drumlin(folder, IoBackend::Auto)
}

/// Opens Drumlin without io_uring, because the filter that counts calls does not see a ring's requests. With either
/// backend, the engine syncs at the same points.
fn drumlin_without_ring(folder: &Path) -> Opened {
    open_drumlin(folder, IoBackend::Portable)
}

impl Store for Drumlin {
    fn writer(&self) -> Result<Commit<'_>, String> {
        Ok(Box::new(|key, value| self.rows.insert(key, value).map_err(|error| error.to_string())))
    }
}

/// A store that the lab can measure.
struct Candidate {
    name: &'static str,
    open: Open,
    /// Opens the store for a run that counts its calls.
    open_counted: Open,
    source: Option<&'static str>,
}

#[cfg(feature = "peers")]
const fn candidate(name: &'static str, open: Open, source: Option<&'static str>) -> Candidate {
    Candidate { name, open, open_counted: open, source }
}

const DRUMLIN: Candidate =
    Candidate { name: "Drumlin", open: drumlin, open_counted: drumlin_without_ring, source: None };

#[cfg(not(feature = "peers"))]
static STORES: [Candidate; 1] = [DRUMLIN];

#[cfg(feature = "peers")]
static STORES: [Candidate; 7] = [
    DRUMLIN,
    candidate("Nebari", peers::nebari, Some("S2: 2.67 ms")),
    candidate("SQLite, rollback journal", peers::sqlite_rollback, Some("S2: 4.12 ms")),
    candidate("SQLite, WAL, synchronous=FULL", peers::sqlite_wal, None),
    candidate("sled, flush after each", peers::sled, Some("S2: 38.9 us")),
    candidate("redb", peers::redb, None),
    candidate("LMDB (heed)", peers::lmdb, None),
];

/// Commits rows to one store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    folder: PathBuf,
    store: usize,
    writers: usize,
    timing: Timing,
    commits_max: u64,
    disk: Option<String>,
    /// `true` if the run counts calls instead of timing commits.
    counts_calls: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Committed {
    pub(crate) load: Load,
    /// The latencies of single commits.
    latencies: Vec<(u64, u64)>,
    block: Option<BlockCounts>,
    /// The sync calls and the number of commits that made them, if calls were counted.
    calls: Option<(SyncCounts, u64)>,
}

impl Counted for Committed {
    fn operations(&self) -> u64 {
        self.load.latency.count
    }
}

impl Committed {
    fn flushes_per_commit(&self) -> Option<f64> {
        Some(self.block?.flushes as f64 / self.load.latency.count.max(1) as f64)
    }
}

impl Measurement for Task {
    const NAME: &'static str = "stores";
    type Result = Committed;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Committed> {
        let candidate = STORES.get(self.store).ok_or(io::ErrorKind::NotFound)?;
        std::fs::create_dir(&self.folder)?;
        if self.counts_calls { self.count(candidate) } else { self.time(candidate) }
    }
}

impl Task {
    fn time(&self, candidate: &Candidate) -> io::Result<Committed> {
        let store = (candidate.open)(&self.folder).map_err(io::Error::other)?;
        self.commit_concurrently(store.as_ref(), 0, WARM_COMMITS).map_err(io::Error::other)?;
        let taken = AtomicU64::new(0);
        let recorded = std::sync::Mutex::new(Latencies::new());
        let counts = || self.disk.as_deref().and_then(BlockCounts::of);
        let before = counts();
        let load = load(
            self.writers,
            self.timing,
            |_| {},
            |index, pace| {
                let mut commit = store.writer().map_err(io::Error::other)?;
                let mut own = Latencies::new();
                while pace.go_on() && taken.fetch_add(1, Ordering::Relaxed) < self.commits_max {
                    let started = Instant::now();
                    commit(key(index, WARM_COMMITS + own.count()), &VALUE).map_err(io::Error::other)?;
                    own.record(started.elapsed());
                    pace.done(started, VALUE.len() as u64);
                }
                recorded.lock().expect("nothing panics while it is held").add(&own);
                Ok(())
            },
        )?;
        let block = before.and_then(|before| Some(counts()?.since(before)));
        let latencies = recorded.into_inner().expect("nothing panics while it is held").buckets();
        Ok(Committed { load, latencies, block, calls: None })
    }

    fn count(&self, candidate: &Candidate) -> io::Result<Committed> {
        let calls = sync_calls::count(|calls| {
            let store = (candidate.open_counted)(&self.folder)?;
            self.commit_concurrently(store.as_ref(), 0, WARM_COMMITS)?;
            let before = calls.now();
            self.commit_concurrently(store.as_ref(), WARM_COMMITS, COUNTED_COMMITS)?;
            Ok::<_, String>(calls.now().since(before))
        })?;
        let calls = calls.map_err(io::Error::other)?;
        Ok(Committed { calls: Some((calls, COUNTED_COMMITS * self.writers as u64)), ..Committed::default() })
    }

    /// Commits this many rows with each writer. All writers run concurrently.
    fn commit_concurrently(&self, store: &dyn Store, first: u64, commits: u64) -> Result<(), String> {
        std::thread::scope(|scope| {
            let write = |index: usize| {
                let mut commit = store.writer()?;
                (first..first + commits).try_for_each(|number| commit(key(index, number), &VALUE))
            };
            let handles: Vec<_> = (0..self.writers).map(|index| scope.spawn(move || write(index))).collect();
            handles.into_iter().try_for_each(|handle| handle.join().expect("writing does not panic"))
        })
    }
}

/// Returns keys that ascend for each writer and differ between writers.
fn key(writer: usize, number: u64) -> [u8; 8] {
    ((writer as u64) << 48 | number).to_be_bytes()
}

/// A case: a store and a number of writers.
#[derive(Clone, Copy)]
struct Case {
    store: usize,
    writers: usize,
}

fn cases() -> Vec<Case> {
    WRITERS.into_iter().flat_map(|writers| (0..STORES.len()).map(move |store| Case { store, writers })).collect()
}

fn trial_seconds(session: &Session<'_>) -> f64 {
    session.pacing.slice.seconds
}

/// Estimates the duration of the measurements for one place.
pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let cases = cases().len();
    Session::rounds_seconds(cases, session.pacing.rounds, trial_seconds(session)) + cases as f64 * COUNT_SECONDS
}

/// The approximate time, in seconds, to count the calls of one store.
const COUNT_SECONDS: f64 = 0.3;

/// The measurements of commits on one file system.
pub(super) struct Measured {
    place: String,
    rounds: Rounds<Committed>,
    /// The calls per commit for each case.
    calls: Vec<Option<Calls>>,
}

/// Sync calls per commit, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Calls {
    syncs: f64,
    durable_writes: f64,
    ranges: f64,
    /// `true` if the store created an io_uring, so that calls may be missing.
    has_ring: bool,
}

impl Calls {
    fn of((counts, commits): (SyncCounts, u64)) -> Calls {
        let each = |count: u64| count as f64 / commits.max(1) as f64;
        Calls {
            syncs: each(counts.syncs),
            durable_writes: each(counts.durable_writes),
            ranges: each(counts.ranges),
            has_ring: counts.rings > 0,
        }
    }

    /// Formats the calls like `2 sync + 0.12 durable write`.
    fn show(&self) -> String {
        let kinds = [(self.syncs, "sync"), (self.durable_writes, "durable write"), (self.ranges, "range")];
        let shown = kinds.into_iter().filter(|(count, _)| *count >= 0.005);
        let words: Vec<String> = shown.map(|(count, kind)| format!("{} {kind}", two_digits(count))).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(" + ") }
    }
}

/// Formats a number like `2`, `1.25` or `0.13`.
fn two_digits(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Measures all stores on a file system and adds their tables.
pub(super) fn run(session: &Session<'_>, place: &Place, chapter: &mut Chapter) -> Measured {
    let cases = cases();
    let timing = Timing { seconds: trial_seconds(session), sample_seconds: 0.0 };
    let number = AtomicU64::new(0);
    let folder = || {
        let number = number.fetch_add(1, Ordering::Relaxed);
        // The previous trial's store is no longer in use.
        let _ = std::fs::remove_dir_all(place.path(&format!("store-{}", number.wrapping_sub(1))));
        place.path(&format!("store-{number}"))
    };
    let task = |case: &Case, counts_calls| Task {
        folder: folder(),
        store: case.store,
        writers: case.writers,
        timing,
        commits_max: if session.settings.quick { 2000 } else { 10_000 },
        disk: place.disk.clone(),
        counts_calls,
    };
    let name = |case: &Case| format!("sync: commits by {} on {}", STORES[case.store].name, place.name);
    let rounds =
        session.run_rounds(&cases, session.pacing.rounds, timing.seconds, name, |case, _| (task(case, false), None));
    let count = |case: &Case| {
        session.step(&format!("sync: counting the syncs of {}", STORES[case.store].name), COUNT_SECONDS);
        let (outcome, _) = session.job(task(case, true), None).ok()?;
        outcome.result().ok()?.calls.map(Calls::of)
    };
    let calls = cases.iter().map(count).collect();
    let _ = std::fs::remove_dir_all(folder());
    let measured = Measured { place: place.name.clone(), rounds, calls };
    show(chapter, &measured);
    measured
}

fn show(chapter: &mut Chapter, measured: &Measured) {
    for writers in WRITERS {
        let who = if writers == 1 { "one writer".to_owned() } else { format!("{writers} writers") };
        let mut table = Table::new(
            format!("A commit of one row of 1 KiB by {who}, on {}", measured.place),
            &[
                ("", Form::Text),
                ("commits/s", Form::Rate),
                ("mean", Form::Micros),
                ("p50", Form::Micros),
                ("p99", Form::Micros),
                ("max", Form::Micros),
                ("flushes", Form::Ratio),
                ("sync calls", Form::Text),
            ],
        );
        for (index, case) in cases().iter().enumerate().filter(|(_, case)| case.writers == writers) {
            let candidate = &STORES[case.store];
            let trials = &measured.rounds[index];
            if let Some(failure) = &trials.failure {
                chapter.note(format!("{} could not be measured on {}: {failure}.", candidate.name, measured.place));
            }
            let latency = Latencies::of_buckets(trials.results.iter().map(|result| &result.latencies)).summary();
            if latency.count == 0 {
                continue;
            }
            let flushes = trials.median(|result| result.flushes_per_commit().unwrap_or(f64::NAN));
            let row = table.row(vec![
                trials.label(candidate.name).into(),
                trials.median(|result| result.load.operations_per_second()).into(),
                latency.mean_us.into(),
                latency.p50_us.into(),
                latency.p99_us.into(),
                latency.max_us.into(),
                flushes.into(),
                measured.calls[index].map_or(Cell::Missing, |calls| calls.show().into()),
            ]);
            if writers == 1 {
                row.source = candidate.source.map(str::to_owned);
            }
        }
        chapter.tables.push(table);
    }
}

/// Adds the notes that apply to the tables of all stores, and the verdicts.
pub(super) fn conclude(chapter: &mut Chapter, measured: &[Measured]) {
    chapter.note(
        "Flushes are those of the device for each commit; on a disk that others use, theirs are among them. Sync calls \
         are counted apart: syncs (fsync, fdatasync), durable writes (O_DSYNC, RWF_DSYNC) and ranges \
         (sync_file_range, which flushes nothing). Drumlin's are those of its backend without io_uring.",
    );
    if cfg!(not(feature = "peers")) {
        chapter.note(
            "If built with `--features peers`, the lab also measures commits of Nebari, SQLite, sled, redb and LMDB.",
        );
    }
    claims::put(chapter, measured);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every built-in store commits with several writers, and its calls can be counted.
    #[test]
    fn every_store_commits() {
        let folder = tempfile::tempdir().unwrap();
        for (store, candidate) in STORES.iter().enumerate() {
            // sled's threads outlive the store. Threads left over from an earlier case would run without the filter,
            // and the threads of this case remain under it, so test sled only with the filter.
            let is_sled = candidate.name.starts_with("sled");
            for (writers, counts_calls) in [(1, false), (3, false), (2, true)] {
                if is_sled && !counts_calls {
                    continue;
                }
                let task = Task {
                    folder: folder.path().join(format!("{store}-{writers}")),
                    store,
                    writers,
                    // The case ends after a number of commits, however slow the drive is.
                    timing: Timing { seconds: 3600.0, sample_seconds: 0.0 },
                    commits_max: 30,
                    disk: None,
                    counts_calls,
                };
                match task.perform(|_| {}) {
                    Ok(Committed { calls: Some((calls, commits)), .. }) => {
                        let all = calls.syncs + calls.durable_writes + calls.ranges;
                        assert!(all > 0 && commits == 2 * COUNTED_COMMITS, "{}: {calls:?}", candidate.name);
                    }
                    Ok(committed) => assert_eq!(committed.operations(), 30, "{}", candidate.name),
                    // The kernel does not permit a filter here.
                    Err(error) => {
                        assert!(counts_calls && error.raw_os_error().is_some(), "{}: {error}", candidate.name);
                    }
                }
            }
        }
    }

    /// Calls are described by kind. A kind that did not occur is left out.
    #[test]
    fn calls_are_counted_by_kind() {
        let counts = SyncCounts { syncs: 400, durable_writes: 25, ranges: 0, rings: 0 };
        assert_eq!(Calls::of((counts, 200)).show(), "2 sync + 0.12 durable write");
        assert_eq!(Calls::of((SyncCounts::default(), 200)).show(), "none");
    }
}
