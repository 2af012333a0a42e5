//! Random transactions of all isolation levels, through both APIs, on a few hot rows. The checker decides whether each
//! read and write is consistent with the guarantees of its level.
//!
//! `support/history.rs` lists the checks. `DRUMLIN_TEST_HISTORY_TRANSACTIONS` is the number of transactions (default
//! 12,000), and `DRUMLIN_TEST_SEED` is the seed of the random choices.

use crate::support;

use std::ops::Bound;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use drumlin::Isolation::{ReadCommitted, Serializable, Snapshot};
use drumlin::{
    Config, Database, Durability, Error, Isolation, Keyspace, KeyspaceOptions, Range, Result, TxOptions, Value,
};
use futures_util::future::join_all;
use support::history::{History, Key, Step, Summary, Transaction, Version, check, parse};
use support::{Folder, Random, number, small};

const LEVELS: [Isolation; 3] = [ReadCommitted, Snapshot, Serializable];

/// The number of hot rows. Rows below `CHAINED` always exist, and their writers always read the version that they
/// replace, so the order of their versions is known without asking the engine. All other rows are inserted and removed,
/// and may be written without being read.
const ROWS: Key = 16;
const CHAINED: Key = 6;
/// The number of threads. Every second one runs tasks, which use the asynchronous API.
const THREADS: u64 = 6;
const TASKS: u64 = 3;
/// The number of transactions between two checkpoints.
const PER_CHECKPOINT: u64 = 40;
/// The number of transactions whose history is checked together.
const ROUND: u64 = 4000;

/// Returns a key so long that a page of 512 bytes has room for only a few rows.
fn key(row: Key) -> Vec<u8> {
    format!("hot row {row:04} {}", "-".repeat(70)).into_bytes()
}

fn row(key: &[u8]) -> Key {
    std::str::from_utf8(&key[8..12]).unwrap().parse().unwrap()
}

/// Returns a value whose length depends on the version, so that writes split and merge leaves.
fn value(version: Version) -> Vec<u8> {
    let mut value = [version.writer.to_le_bytes(), version.number.to_le_bytes()].concat();
    value.resize(16 + (version.writer * 31 + version.number * 17) as usize % 90, b'.');
    value
}

fn version(value: &[u8]) -> Version {
    let number = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
    Version { writer: number(0), number: number(8) }
}

/// The API through which a transaction is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Api {
    Blocking,
    Tasks,
}

impl Api {
    /// Lets other threads or tasks run.
    async fn step_aside(self) {
        match self {
            Api::Blocking => std::thread::yield_now(),
            Api::Tasks => smol::future::yield_now().await,
        }
    }
}

/// A transaction, and the API that runs it.
struct Tx(drumlin::Transaction, Api);

impl Tx {
    async fn get(&self, rows: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        match self.1 {
            Api::Blocking => self.0.get(rows, key),
            Api::Tasks => self.0.get_async(rows, key).await,
        }
    }

    async fn get_for_share(&mut self, rows: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        match self.1 {
            Api::Blocking => self.0.get_for_share(rows, key),
            Api::Tasks => self.0.get_for_share_async(rows, key).await,
        }
    }

    async fn get_for_update(&mut self, rows: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        match self.1 {
            Api::Blocking => self.0.get_for_update(rows, key),
            Api::Tasks => self.0.get_for_update_async(rows, key).await,
        }
    }

    async fn insert(&mut self, rows: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        match self.1 {
            Api::Blocking => self.0.insert(rows, key, value),
            Api::Tasks => self.0.insert_async(rows, key, value).await,
        }
    }

    async fn remove(&mut self, rows: &Keyspace, key: &[u8]) -> Result<()> {
        match self.1 {
            Api::Blocking => self.0.remove(rows, key),
            Api::Tasks => self.0.remove_async(rows, key).await,
        }
    }

    async fn next(&self, scan: &mut Range, forward: bool) -> Option<Result<(Value, Value)>> {
        match (self.1, forward) {
            (Api::Blocking, true) => scan.next(),
            (Api::Blocking, false) => scan.next_back(),
            (Api::Tasks, true) => scan.next_async().await,
            (Api::Tasks, false) => scan.next_back_async().await,
        }
    }

    async fn commit(self) -> Result<u64> {
        let timestamp = match self.1 {
            Api::Blocking => self.0.commit()?,
            Api::Tasks => self.0.commit_async().await?,
        };
        Ok(timestamp.0)
    }
}

struct Stage {
    db: Database,
    rows: Keyspace,
    moment: AtomicU64,
    number: AtomicU64,
    /// The highest number of bytes of old versions observed on disk.
    spilled_bytes: AtomicU64,
}

impl Stage {
    fn new(config: &Config, path: &std::path::Path) -> (Stage, History) {
        let db = config.open(path).unwrap();
        let rows = db.keyspace_with("hot", KeyspaceOptions::new().page_bytes(512)).unwrap();
        let mut history = History::default();
        for row in 0..CHAINED {
            let version = Version { writer: 0, number: u64::from(row) };
            rows.insert_with(key(row), value(version), Durability::Relaxed).unwrap();
            history.initial.insert(row, version);
        }
        let [moment, number, spilled_bytes] = [1, 1, 0].map(AtomicU64::new);
        (Stage { db, rows, moment, number, spilled_bytes }, history)
    }

    fn moment(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    /// Runs and records one transaction. A conflict ends it.
    async fn run(&self, api: Api, level: Isolation, random: &mut Random) -> Transaction {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let began = self.moment();
        let mut steps = Vec::new();
        let result = self.steps(api, level, number, &mut steps, random).await;
        let committed = match result {
            Ok(committed) => committed,
            Err(Error::Conflict { .. } | Error::LockTimeout { .. } | Error::SnapshotTooOld { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        Transaction { number, level, began, ended: self.moment(), committed, steps }
    }

    async fn steps(
        &self,
        api: Api,
        level: Isolation,
        number: u64,
        steps: &mut Vec<Step>,
        random: &mut Random,
    ) -> Result<Option<u64>> {
        let durability = if random.chance(10) { Durability::Full } else { Durability::Relaxed };
        let tx = self.db.begin_with(TxOptions { isolation: level, durability, ..TxOptions::default() })?;
        let mut tx = Tx(tx, api);
        for step in 0..1 + random.below(7) {
            if random.chance(30) {
                api.step_aside().await;
            }
            let row = random.below(u64::from(ROWS)) as Key;
            let key = key(row);
            match random.below(10) {
                0..3 => {
                    let found = match random.chance(20) {
                        true => tx.get_for_share(&self.rows, &key).await?,
                        false => tx.get(&self.rows, &key).await?,
                    };
                    let found = found.map(|value| version(&value));
                    steps.push(Step::Read { key: row, found });
                }
                3..5 => self.scan(&tx, row, steps, random).await?,
                _ if row < CHAINED => {
                    // Read committed needs the lock to know which version it replaces; the other levels don't.
                    let locks = level == ReadCommitted || random.chance(30);
                    let found = if locks {
                        tx.get_for_update(&self.rows, &key).await?
                    } else {
                        tx.get(&self.rows, &key).await?
                    };
                    let replaced = found.map(|value| version(&value));
                    let written = Version { writer: number, number: step };
                    tx.insert(&self.rows, &key, &value(written)).await?;
                    steps.push(Step::Read { key: row, found: replaced });
                    steps.push(Step::Write { key: row, version: written, removes: false, replaced });
                }
                kind => {
                    let written = Version { writer: number, number: step };
                    let removes = kind == 9;
                    if removes {
                        tx.remove(&self.rows, &key).await?;
                    } else {
                        tx.insert(&self.rows, &key, &value(written)).await?;
                    }
                    steps.push(Step::Write { key: row, version: written, removes, replaced: None });
                }
            }
        }
        if random.chance(5) {
            tx.0.abort();
            return Ok(None);
        }
        tx.commit().await.map(Some)
    }

    /// Reads a range from either end, possibly stopping before the other end. Records the rows missing from the result
    /// as absent.
    async fn scan(&self, tx: &Tx, first: Key, steps: &mut Vec<Step>, random: &mut Random) -> Result<()> {
        let last = (first + random.below(6) as Key).min(ROWS - 1);
        let mut scan = tx.0.range(&self.rows, (Bound::Included(key(first)), Bound::Included(key(last))));
        let forward = random.chance(50);
        let limit = if random.chance(30) { 2 } else { usize::MAX };
        let mut found: Vec<(Key, Version)> = Vec::new();
        while found.len() < limit
            && let Some(next) = tx.next(&mut scan, forward).await
        {
            let (key, value) = next?;
            found.push((row(&key), version(&value)));
        }
        let covered = match found.last() {
            Some(&(end, _)) if found.len() == limit && forward => first..=end,
            Some(&(end, _)) if found.len() == limit => end..=last,
            _ => first..=last,
        };
        steps.extend(covered.map(|key| Step::Read {
            key,
            found: found.iter().find(|(row, _)| *row == key).map(|(_, version)| *version),
        }));
        Ok(())
    }

    /// Runs transactions in sequence until none are left.
    async fn run_all(
        &self,
        api: Api,
        levels: &[Isolation],
        left: &AtomicU64,
        one_done: &dyn Fn(u64),
        seed: u64,
    ) -> Vec<Transaction> {
        let mut random = Random(seed);
        let mut recorded = Vec::new();
        while let Ok(left) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            let level = levels[random.below(levels.len() as u64) as usize];
            recorded.push(self.run(api, level, &mut random).await);
            one_done(left);
        }
        recorded
    }

    /// Runs one transaction that begins before all others and reads until they have finished. The old versions that it
    /// needs do not fit in memory.
    fn run_old_reader(
        &self,
        level: Isolation,
        begun: &Barrier,
        left: &AtomicU64,
        count: u64,
        seed: u64,
    ) -> Transaction {
        let mut random = Random(seed);
        let (number, began) = (self.number.fetch_add(1, Ordering::Relaxed), self.moment());
        let tx = self.db.begin_with(TxOptions { isolation: level, ..self.db.tx_options() }).unwrap();
        begun.wait();
        let (tx, mut steps) = (Tx(tx, Api::Blocking), Vec::new());
        for pause in (0..100).rev() {
            while left.load(Ordering::Relaxed) > count / 100 * pause {
                std::thread::yield_now();
            }
            let row = random.below(u64::from(ROWS)) as Key;
            smol::block_on(self.scan(&tx, row, &mut steps, &mut random)).unwrap();
            let found = tx.0.get(&self.rows, key(row)).unwrap().map(|value| version(&value));
            steps.push(Step::Read { key: row, found });
        }
        self.spilled_bytes.fetch_max(self.db.stats().version_disk_bytes, Ordering::Relaxed);
        let committed = Some(tx.0.commit().unwrap().0);
        Transaction { number, level, began, ended: self.moment(), committed, steps }
    }

    /// Runs many transactions on several threads and tasks, concurrently with checkpoints and old readers. Ends with a
    /// transaction that reads every row.
    fn record(&self, mut history: History, levels: &[Isolation], count: u64, seed: u64) -> History {
        let left = AtomicU64::new(count);
        let stop = AtomicBool::new(false);
        let of_snapshots: Vec<Isolation> = levels.iter().copied().filter(|level| *level != ReadCommitted).collect();
        let begun = Barrier::new(THREADS as usize + of_snapshots.len());
        let recorded: Vec<Vec<Transaction>> = std::thread::scope(|scope| {
            let (left, stop, begun) = (&left, &stop, &begun);
            let maintenance = scope.spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    self.db.checkpoint().unwrap();
                    // Transactions unpark this thread now and then.
                    std::thread::park();
                }
            });
            let go_on = maintenance.thread().clone();
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let go_on = go_on.clone();
                    scope.spawn(move || {
                        begun.wait();
                        let seed = seed << 8 | thread << 2;
                        let one_done = |left: u64| {
                            if left.is_multiple_of(PER_CHECKPOINT) {
                                go_on.unpark();
                            }
                        };
                        if thread.is_multiple_of(2) {
                            return smol::block_on(self.run_all(Api::Blocking, levels, left, &one_done, seed));
                        }
                        let task = |task| self.run_all(Api::Tasks, levels, left, &one_done, seed | task);
                        smol::block_on(join_all((0..TASKS).map(task))).into_iter().flatten().collect()
                    })
                })
                .collect();
            let old_readers: Vec<_> = of_snapshots
                .into_iter()
                .map(|level| {
                    scope.spawn(move || vec![self.run_old_reader(level, begun, left, count, seed << 8 | 0xFF)])
                })
                .collect();
            let threads = threads.into_iter().chain(old_readers);
            let recorded = threads.map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>();
            stop.store(true, Ordering::Release);
            go_on.unpark();
            maintenance.join().unwrap();
            recorded.into_iter().map(|recorded| recorded.expect("no thread panicked")).collect()
        });
        history.transactions.extend(recorded.into_iter().flatten());
        let (began, tx) =
            (self.moment(), self.db.begin_with(TxOptions { isolation: Serializable, ..TxOptions::default() }));
        let tx = tx.unwrap();
        let mut steps: Vec<Step> = Vec::new();
        for key_number in 0..ROWS {
            let found = tx.get(&self.rows, key(key_number)).unwrap().map(|value| version(&value));
            steps.push(Step::Read { key: key_number, found });
        }
        let committed = Some(tx.commit().unwrap().0);
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        history.transactions.push(Transaction {
            number,
            level: Serializable,
            began,
            ended: self.moment(),
            committed,
            steps,
        });
        history
    }
}

fn in_memory() -> Config {
    Config::in_memory().memory(8 << 20).log_segment_bytes(1 << 20).checkpoint_log_bytes(4 << 20)
}

/// Transactions of all levels run together, and each of them gets the guarantees of its level. The database is on disk
/// in the last round, and in memory in all others.
#[test]
fn every_level_keeps_its_promise() {
    let count = number("DRUMLIN_TEST_HISTORY_TRANSACTIONS", 3 * ROUND);
    let seed = number("DRUMLIN_TEST_SEED", 0);
    let began = Instant::now();
    let mut all = Summary::default();
    let mut spilled_bytes = 0;
    let rounds = count.div_ceil(ROUND);
    for round in 0..rounds {
        let folder = Folder::new();
        let on_files = round + 1 == rounds;
        let config = if on_files { small() } else { in_memory() };
        // Some rounds use a single level, and the rest use several.
        let levels = match round % 6 {
            3 => &LEVELS[1..2],
            4 => &LEVELS[2..],
            5 => &LEVELS[1..],
            _ => &LEVELS[..],
        };
        let (stage, history) = Stage::new(&config, &folder.path());
        let history = stage.record(history, levels, ROUND, seed + round);
        match check(&history) {
            Ok(summary) => all += summary,
            Err(violation) => panic!("round {round} of {levels:?}: {}\n{}", violation.name, violation.story),
        }
        assert!(stage.db.check().unwrap().corruption.is_empty());
        spilled_bytes = spilled_bytes.max(stage.spilled_bytes.into_inner());
    }
    assert!(spilled_bytes > 0, "no old reader read a version from disk");
    println!("{all:?} in {:?}", began.elapsed());
    assert!(all.committed > count / 4, "most transactions end in conflicts: the test says little");
    assert!(all.ambiguous < all.reads / 10, "too many reads say nothing");
}

/// In a history that is recorded at one level and checked at the next stricter level, the checker finds an anomaly that
/// only the stricter level forbids.
#[test]
fn an_engine_that_does_not_validate_is_caught() {
    for (done, taken_for, expected) in [(Snapshot, Serializable, "G2"), (ReadCommitted, Snapshot, "G-nonadjacent")] {
        let caught = (0..50).find_map(|seed| {
            let (stage, history) = Stage::new(&in_memory(), std::path::Path::new(""));
            let mut history = stage.record(history, &[done], ROUND / 2, seed);
            if let Err(violation) = check(&history) {
                panic!("as {done:?} it should be in order: {}\n{}", violation.name, violation.story);
            }
            history.transactions.iter_mut().for_each(|transaction| transaction.level = taken_for);
            check(&history).err()
        });
        let violation = caught.expect("it must be caught");
        println!("{done:?} taken for {taken_for:?}: {}\n{}", violation.name, violation.story);
        assert_eq!(violation.name, expected);
    }
}

// ── tests of the checker ───────────────────────────────────────────────────────────────────────────────────────────

#[track_caller]
fn refused(text: &str, level: Isolation, name: &str) {
    let history = parse(text, &[level]);
    match check(&history) {
        Err(violation) => assert_eq!(violation.name, name, "{text} under {level:?}: {}", violation.story),
        Ok(summary) => panic!("{text} under {level:?} was let pass: {summary:?}"),
    }
}

#[track_caller]
fn allowed(text: &str, level: Isolation) {
    if let Err(violation) = check(&parse(text, &[level])) {
        panic!("{text} under {level:?} is no {}:\n{}", violation.name, violation.story);
    }
}

/// The checker rejects each bad history at the levels that forbid it, and accepts it at all other levels.
#[test]
fn bad_histories_are_refused() {
    let all = [
        ("w1(x) w2(x) w2(y) w1(y) c1 c2 y:2,1", "G0"),
        ("w1(x) r2(x=1) c2 a1", "G1a"),
        ("w1(x) w1(x) c1 r2(x=1*) c2", "G1b"),
        ("w1(x) r1(y=0) w2(y) r2(x=1) c1 c2 r3(y=0) c3", "stale read"),
        ("w1(x) w2(y) r1(y=2) r2(x=1) c1 c2", "G1c"),
        ("w1(x) c1 r2(x=0) c2", "stale read"),
        ("w1(a) c1 r2(a=-) c2", "stale read"),
        ("w1(a) c1 d2(a) c2 r3(a=1) c3", "stale read"),
        ("w1(x) r1(x=0) c1", "own write lost"),
        ("d1(x) r1(x=0) c1", "own write lost"),
        ("w1(x) c1 r2(y=1) c2", "garbage"),
    ];
    for (text, name) in all {
        for level in LEVELS {
            if name == "garbage" {
                continue;
            }
            refused(text, level, name);
        }
    }
    let by_snapshot = [
        // Read skew.
        "r1(x=0) w2(x) w2(y) c2 r1(y=2) c1",
        // A row read twice changes.
        "r1(x=0) w2(x) c2 r1(x=2) c1",
        // A phantom: the row is absent first, and present later.
        "r1(a=-) w2(a) c2 r1(a=2) c1",
        // A row disappears.
        "r1(x=0) d2(x) c2 r1(x=-) c1",
        // A lost update.
        "r1(x=0) r2(x=0) w2(x) c2 w1(x) c1",
        // A lost update of a row that is removed.
        "r1(y=0) w2(y) d2(x) c2 w1(x) c1",
        // A long fork.
        "r1(y=0) r2(x=0) w3(x) w4(y) c3 c4 r1(x=3) r2(y=4) c1 c2",
    ];
    for text in by_snapshot {
        allowed(text, ReadCommitted);
        refused(text, Snapshot, "G-nonadjacent");
        refused(text, Serializable, "G-nonadjacent");
    }
    let by_serializable = [
        // Write skew.
        "r1(x=0) r1(y=0) r2(x=0) r2(y=0) w1(x) w2(y) c1 c2",
        // Write skew by phantoms.
        "r1(a=-) r1(b=-) r2(a=-) r2(b=-) w1(a) w2(b) c1 c2",
        // Write skew by removed rows.
        "r1(x=0) r2(y=0) d1(y) d2(x) c1 c2",
        // The read-only anomaly.
        "r1(x=0) r1(y=0) w2(y) c2 r3(x=0) r3(y=2) c3 w1(x) c1",
    ];
    for text in by_serializable {
        allowed(text, ReadCommitted);
        allowed(text, Snapshot);
        refused(text, Serializable, "G2");
    }
}

/// Good histories are accepted at every level.
#[test]
fn good_histories_pass() {
    let good = [
        "r1(x=0) w1(x) c1 r2(x=1) w2(x) c2 r3(x=2) c3",
        "w1(x) w2(y) c1 c2 r3(x=1) r3(y=2) c3",
        "r1(x=0) w2(x) c2 r1(y=0) c1",
        "w1(a) r1(a=1) d1(a) r1(a=-) c1 r2(a=-) c2",
        "w1(a) c1 d2(a) c2 w3(a) c3 r4(a=3) c4",
        "r1(a=-) w2(a) c2 c1",
        // Removing an absent row is no change, so transaction 1 loses no update.
        "r1(y=0) w2(y) d2(a) c2 w1(a) c1",
        "w1(x) w1(x) a1 r2(x=0) c2",
    ];
    for text in good {
        LEVELS.iter().for_each(|level| allowed(text, *level));
    }
}

/// In a mix of levels, each transaction is held to its own level: a reader at a weaker level closes no cycle.
#[test]
fn levels_are_held_to_what_they_promise() {
    let skew = "r1(x=0) r1(y=0) r2(x=0) r2(y=0) w1(x) w2(y) c1 c2";
    assert_eq!(check(&parse(skew, &[Serializable, Serializable])).unwrap_err().name, "G2");
    for levels in [[Serializable, Snapshot], [Snapshot, Serializable], [Serializable, ReadCommitted]] {
        assert!(check(&parse(skew, &levels)).is_ok(), "{levels:?}");
    }
    let read_skew = "r1(x=0) w2(x) w2(y) c2 r1(y=2) c1";
    assert!(check(&parse(read_skew, &[ReadCommitted, Serializable])).is_ok());
    assert_eq!(check(&parse(read_skew, &[Snapshot, ReadCommitted])).unwrap_err().name, "G-nonadjacent");
}

/// Two writes that replaced the same version are a lost update, in any order of commits.
#[test]
fn two_successors_are_a_lost_update() {
    for level in LEVELS {
        let mut history = parse("r1(x=0) r2(x=0) w1(x) c1 w2(x) c2", &[level]);
        for transaction in &mut history.transactions {
            for step in &mut transaction.steps {
                if let Step::Write { replaced, .. } = step {
                    *replaced = Some(Version { writer: 0, number: 0 });
                }
            }
        }
        assert_eq!(check(&history).unwrap_err().name, "lost update");
    }
}

/// A long cycle is found among many transactions that are in order.
#[test]
fn a_cycle_is_found_among_many() {
    let mut text = String::new();
    for number in 10..1500 {
        text += &format!("r{number}(z={}) w{number}(z) c{number} ", if number == 10 { 0 } else { number - 1 });
    }
    allowed(&text, Serializable);
    refused(&(text.clone() + "r1(x=0) r2(y=0) r3(a=-) w1(y) w2(a) w3(x) c1 c2 c3"), Serializable, "G2");
    allowed(&(text + "r1(x=0) r2(y=0) r3(a=-) w1(y) w2(a) w3(x) c1 c2 c3"), Snapshot);
}
