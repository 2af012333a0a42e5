//! Cuts the power at every possible point of a script that exercises every feature.
//!
//! The script runs once, and every change that it makes to the disk is recorded. A single client runs most of the
//! script. Then several clients commit while other threads make checkpoints and compact. Each commit runs on a separate
//! thread, so that all log streams are used. The number of streams depends on the seed and changes at the second
//! opening. That opening also does a warm start, which rereads the pages that were in memory when the database was
//! closed. Then the script leaves the database idle until it shortens its file. For half of the seeds, the database is
//! new; for the other half, it has been opened and cut off before.
//!
//! For each point of the recording, the disk is rebuilt in the states that a power cut at that point may leave. If
//! there are few uncertain changes (which a power cut may or may not undo), every subset of them is kept in turn.
//! Otherwise, all of them are lost, then all are kept, and then, up to a bound, each write is lost alone and kept
//! alone. In some further states, drawn at random, writes are torn. One state is that of a killed process, whose
//! uncertain changes are all still in caches.
//!
//! Each of these disks is opened, and compared with the model row by row, by counts and by an aggregate. Each recovery
//! is itself cut after each of its own writes and syncs, and the result is checked in the same way. After the last of
//! these cuts, the last commit of the database must be the same as after the uncut recovery.
//!
//! A second script ([`ScriptKind::Changes`]) keeps its changes, with a retention of a few change files. After each cut,
//! the change files alone must have no commit that the database lacks, and the feed must tell every commit once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drumlin::{
    BulkLoad, Change as RowChange, Commit, Config, Database, Durability, Error, Keyspace, KeyspaceOptions, LockMode,
    OldValue, Retention, Snapshot, Timestamp, TxOptions,
};
use drumlin_io::testing::sim::{self, Change, Disk, Loss, Medium, Random, Schedule};

use crate::client::aggregates::{Fingerprint, fingerprint_of};
use crate::client::altering;
use crate::client::kept::compare_kept;
use crate::follower::Follower;
use crate::model::{Alter, Content, Kept, Model, Operation, SpaceNumber, Tampering};

/// The limits on the disk states that are tried at each point.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// If a cut leaves at most this many uncertain changes, every subset of them is kept in turn.
    pub subsets_of: usize,
    /// If a cut leaves more uncertain changes, up to this many of them are each lost alone and kept alone.
    pub alone_max: usize,
    /// The number of states drawn at random for each point. Some of them have torn sectors.
    pub random: usize,
    /// The number of states that are tried at each point of a recovery. With 0, recoveries are not cut.
    pub of_recovery: usize,
    /// Only every `stride`-th point is tried.
    pub stride: usize,
}

/// The script that a round cuts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScriptKind {
    /// Exercises every feature except the change feed.
    Features,
    /// Writes, ends and removes change files.
    Changes,
}

/// The retention of [`ScriptKind::Changes`]: four files of the minimum size, of which the script writes a dozen.
const KEPT_CHANGES_BYTES: u64 = 128 << 10;

impl ScriptKind {
    fn config(self, disk: &Disk, streams: u16) -> Config {
        let config = Config::new()
            .log_streams(streams)
            // Each additional log stream needs a buffer.
            .memory((5 << 20) + (u64::from(streams - 1) << 19))
            .page_bytes(512)
            .segment_bytes(256 << 10)
            .log_segment_bytes(1 << 20)
            .checkpoint_log_bytes(8 << 20)
            .backend(disk.backend());
        match self {
            ScriptKind::Features => config,
            ScriptKind::Changes => config.keep_changes(Retention::bytes(KEPT_CHANGES_BYTES).with_old_values()),
        }
    }
}

/// The settings of one pass through the points.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub script: ScriptKind,
    pub bounds: Bounds,
    pub seed: u64,
    /// The first point to try.
    pub from: usize,
    pub duration_max: Duration,
    /// The round ends after this many failures.
    pub finds_max: usize,
}

impl Round {
    /// Returns the command that retries one point with the same states.
    fn command(&self, point: usize) -> String {
        let Bounds { subsets_of, alone_max, random, of_recovery, stride: _ } = self.bounds;
        let script = if self.script == ScriptKind::Changes { "--changes " } else { "" };
        format!(
            "cargo run --release -p drumlin-sim -- --finds 1 crash-points {script}--draw {} --point {point} --subsets \
             {subsets_of} --alone {alone_max} --random {random} --recovery {of_recovery}",
            self.seed
        )
    }
}

/// The disk states that a round has tried.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The number of points of the script.
    pub points: usize,
    /// The first point that was not tried.
    pub next: usize,
    pub states: u64,
    pub recovery_states: u64,
    pub finds: Vec<String>,
    /// The coverage marks that the process hit while the script ran.
    pub script_marks: BTreeSet<&'static str>,
}

/// Copies of the model. Each has the number of disk changes that preceded it.
type Moments = Vec<(usize, Model)>;

/// The number of log streams at the first opening and in recoveries.
fn streams(seed: u64) -> u16 {
    1 + (seed % 2) as u16
}

/// The number of openings before the script. Each of them is cut off without a checkpoint. So until the script's first
/// checkpoint, the superblock lists as many openings as it can, and a recovery from a cut in that time erases the
/// records that those openings made void.
fn openings_before(seed: u64) -> u64 {
    if seed % 4 < 2 { 0 } else { 3 }
}

fn schedule(seed: u64) -> Schedule {
    Schedule { seed, switch_one_in: 6, step_nanos_max: 200, points_max: 20_000_000 }
}

/// The running script: its disk, the model, and the copies of the model taken at each step. Clones share all of them.
#[derive(Clone)]
struct Script {
    kind: ScriptKind,
    disk: Disk,
    model: Model,
    moments: Arc<Mutex<Moments>>,
    random: Random,
    streams: u16,
}

/// Begins a load. While a run is folded or a checkpoint is made, its pages may leave no memory for a load. The load
/// must get it soon afterwards.
fn begin_load(db: &Database, name: &str) -> BulkLoad {
    for _ in 0..20 {
        match db.bulk_load(name) {
            Err(Error::MemoryInUse { .. }) => sim::sleep(Duration::from_millis(50)),
            begun => return begun.unwrap_or_else(|error| panic!("a load of {name}: {error}")),
        }
    }
    panic!("a load of {name} finds no memory for a second: {:?}", db.stats().memory);
}

impl Script {
    /// Makes a commit on a separate thread, and records `operation` in the model when the commit gets its timestamp.
    fn commit<T: Send + 'static>(
        &mut self,
        operation: Operation,
        is_full: bool,
        commit: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) {
        self.commit_known(move || operation, is_full, commit);
    }

    /// Like [`commit`](Self::commit), for an operation that is known once the commit gets its timestamp.
    fn commit_known<T: Send + 'static>(
        &mut self,
        operation: impl FnOnce() -> Operation + Send + 'static,
        is_full: bool,
        commit: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) {
        let timestamp = Arc::new(AtomicU64::new(0));
        let (taken, at) = (self.clone(), Arc::clone(&timestamp));
        let work = move || {
            drumlin::simulation::on_timestamp(Some(Box::new(move |timestamp| {
                taken.model.enter(timestamp.0, operation());
                at.store(timestamp.0, Ordering::Relaxed);
                taken.note();
            })));
            commit().unwrap_or_else(|error| panic!("the script met an error: {error}"));
            drumlin::simulation::on_timestamp(None);
        };
        self.spawn("committing", work)();
        self.model.answer(timestamp.load(Ordering::Relaxed), is_full);
        self.note();
    }

    /// Starts a thread that runs concurrently with the script. The returned closure joins it.
    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Box<dyn FnOnce()> {
        let thread = sim::spawn(name, Box::new(body)).expect("a thread");
        Box::new(move || sim::join(thread).expect("it does not panic"))
    }

    fn note(&self) {
        let moment = (self.disk.change_count() as usize, self.model.fork());
        self.moments.lock().expect("nobody panics with it").push(moment);
    }

    fn content(&mut self, length: usize) -> Content {
        Content { length, seed: self.random.next() }
    }

    fn config(&self, streams: u16) -> Config {
        self.kind.config(&self.disk, streams)
    }

    fn run(&mut self) {
        match self.kind {
            ScriptKind::Features => self.use_every_feature(),
            ScriptKind::Changes => self.write_change_files(),
        }
    }

    fn use_every_feature(&mut self) {
        let db = self.config(self.streams).open("/db").expect("a database");
        verify(&db, &self.model).unwrap_or_else(|failure| panic!("the script's opening: {failure}"));
        self.note();
        self.create(&db, "rows", 512);
        self.create(&db, "more", 1024);
        // Put single rows. Some of them have relaxed durability, and some have large values.
        for number in 0..24u64 {
            let length = [10, 100, 150, 700, 5000, 70_000][number as usize % 6];
            self.put(&db, "rows", number % 17, length, number % 7 != 3);
        }
        self.put_from(&db, "rows", 3, 150_000);
        // From now on, half of the seeds hold a snapshot, so that the versions that all later changes replace are
        // spilled.
        let kept = (self.streams == 2).then(|| db.snapshot());
        db.checkpoint().expect("a checkpoint");
        self.note();
        self.keep_on_disk(&db, "first");
        // Run transactions over both keyspaces, with a savepoint. They make leaves split.
        for round in 0..4u64 {
            self.transaction(&db, round, 40);
        }
        // Write so many bytes that the log continues in the next segment in the middle of a batch.
        for number in 0..50 {
            self.put(&db, "more", number % 7, 30_000, number % 10 == 9);
        }
        self.create(&db, "passing", 512);
        for number in 0..6 {
            self.put(&db, "passing", number, 300, true);
        }
        db.checkpoint().expect("a checkpoint");
        self.drop_keyspace(&db, "passing");
        // In one step, names change hands, some of them twice, and keyspaces are created and dropped.
        self.create(&db, "dropped", 512);
        for number in 0..40 {
            self.put(&db, "dropped", number, 300, number % 2 == 0);
        }
        let changes = [
            Alter::Swap("rows".into(), "more".into()),
            Alter::Rename("dropped".into(), "passing".into()),
            Alter::Drop("passing".into()),
            Alter::Create("dropped".into()),
            Alter::Rename("rows".into(), "rows, swapped".into()),
        ];
        self.alter(&db, changes.to_vec());
        for number in 0..5 {
            self.put(&db, "rows, swapped", number, 60, true);
            self.put(&db, "dropped", number, 60, true);
        }
        let changes = [Alter::Rename("rows, swapped".into(), "rows".into()), Alter::Swap("rows".into(), "more".into())];
        self.alter(&db, changes.to_vec());
        // Remove rows, so that leaves merge and segments become sparse.
        for number in 0..12 {
            self.remove(&db, "rows", number);
        }
        db.checkpoint().expect("a checkpoint");
        self.note();
        self.keep_on_disk(&db, "second");
        db.compact().expect("compacting");
        self.note();
        self.write_while_compacting(&db);
        // Make three bulk loads: one has values of all kinds, one runs while checkpoints are made and the file is
        // compacted, and one has so many unordered rows that they are merged from sorted runs.
        const LENGTHS: [usize; 8] = [20, 100, 60, 700, 40, 30, 5000, 10];
        self.create(&db, "loaded", 512);
        self.load(&db, "loaded", &Vec::from_iter(0..300), LENGTHS, false);
        for number in 0..5 {
            self.put(&db, "loaded", 60 * number, 100, number % 2 == 0);
        }
        // This load goes into a keyspace with rows, so it becomes a run above its tree. Commits fold parts of it.
        self.load(&db, "loaded", &Vec::from_iter(150..420), LENGTHS, false);
        for number in 0..5 {
            self.put(&db, "loaded", 80 * number, 100, number % 2 == 1);
        }
        // Remove ranges, alone and together with rows, while neither the load nor the ranges before are folded.
        self.remove_range(&db, "loaded", 100..260);
        self.put(&db, "loaded", 130, 100, true);
        self.replace_range(&db, "loaded", 250..400);
        self.remove_range(&db, "loaded", 380..500);
        self.create(&db, "again", 1024);
        self.load(&db, "again", &Vec::from_iter(0..40), LENGTHS, true);
        self.create(&db, "sorted", 512);
        self.large_transaction(&db, "loaded", "again");
        self.put(&db, "loaded", 45, 100, true);
        let numbers: Vec<u64> = (0..160).map(|number| number * 77 % 160).collect();
        self.load(&db, "sorted", &numbers, [20, 100, 20_000, 700, 20_000, 30, 5000, 20_000], true);
        // Make inner nodes split, then make them merge until the root has a single child.
        self.create(&db, "deep", 512);
        self.deepen(&db, true);
        self.all_at_once(&db);
        self.deepen(&db, false);
        for number in 0..6 {
            self.put(&db, "more", number, 60, true);
        }
        self.clone_and_change(&db);
        self.prepare_and_end(&db);
        if let Some(snapshot) = kept {
            self.compare(&db, &snapshot);
        }
        db.close().expect("closing");
        self.note();
        self.open_again();
    }

    /// Writes a dozen change files, of which the retention removes the first: rows, transactions of all sizes, loads,
    /// range deletes, alterations and dropped keyspaces, with checkpoints, a closing and an opening between them.
    fn write_change_files(&mut self) {
        let db = self.config(self.streams).open("/db").expect("a database");
        verify(&db, &self.model).unwrap_or_else(|failure| panic!("the script's opening: {failure}"));
        self.note();
        self.create(&db, "rows", 512);
        self.create(&db, "more", 1024);
        for number in 0..14 {
            self.put(&db, "rows", number % 5, [10, 700, 9000, 20_000, 70_000][number as usize % 5], number % 3 != 1);
        }
        db.checkpoint().expect("a checkpoint");
        self.note();
        self.transaction(&db, 0, 40);
        self.create(&db, "loaded", 512);
        self.load(&db, "loaded", &Vec::from_iter(0..120), [20, 100, 60, 700, 40, 30, 5000, 10], false);
        self.remove_range(&db, "loaded", 30..60);
        self.replace_range(&db, "loaded", 50..80);
        db.checkpoint().expect("a checkpoint");
        self.create(&db, "again", 1024);
        self.large_transaction(&db, "loaded", "again");
        self.alter(&db, vec![Alter::Rename("again".into(), "renamed".into()), Alter::Create("again".into())]);
        self.drop_keyspace(&db, "renamed");
        // Several clients fill files while another thread makes checkpoints.
        let mut waits = Vec::new();
        for client in 0..2u64 {
            let (mut script, db) = (self.clone(), db.clone());
            script.random = Random(self.random.next());
            waits.push(self.spawn("client", move || {
                for round in 0..8 {
                    script.put(&db, "more", 10 * client + round % 4, 15_000, round % 3 != 0);
                }
            }));
        }
        let other = db.clone();
        waits.push(self.spawn("checkpoints", move || {
            for _ in 0..3 {
                other.checkpoint().expect("a checkpoint");
                sim::sleep(Duration::from_micros(300));
            }
        }));
        waits.into_iter().for_each(|wait| wait());
        for number in 0..3 {
            self.remove(&db, "rows", number);
        }
        db.close().expect("closing");
        self.note();
        let db = self.config(3 - self.streams).open("/db").expect("a closed database");
        for number in 0..6 {
            self.put(&db, "rows", number, 12_000, number % 2 == 0);
        }
        db.checkpoint().expect("a checkpoint");
        self.note();
        self.drop_keyspace(&db, "loaded");
        for number in 0..6 {
            self.put(&db, "more", number, 9000, number % 2 == 1);
        }
        drop(db);
    }

    /// Clones a keyspace with a run and large values, and a clone. Changes all of them, and drops the first ones.
    fn clone_and_change(&mut self, db: &Database) {
        self.clone_keyspace(db, "loaded", "first clone");
        for number in 0..4 {
            self.put(db, "loaded", 70 * number, 80, number % 2 == 0);
            self.put(db, "first clone", 70 * number, 90, number % 2 == 1);
        }
        self.put(db, "first clone", 3, 70_000, true);
        self.clone_keyspace(db, "first clone", "second clone");
        self.remove_range(db, "second clone", 0..90);
        self.load(db, "first clone", &Vec::from_iter(20..80), [20, 100, 60, 700, 40, 30, 5000, 10], false);
        self.drop_keyspace(db, "loaded");
        db.checkpoint().expect("a checkpoint");
        self.note();
        self.put(db, "second clone", 200, 100, true);
        db.compact().expect("compacting");
        self.note();
        self.drop_keyspace(db, "first clone");
        self.put(db, "second clone", 210, 100, true);
    }

    fn clone_keyspace(&mut self, db: &Database, from: &str, to: &str) {
        let space = self.model.space(from).expect("created");
        let (other, from, to) = (db.clone(), from.to_owned(), to.to_owned());
        let name = to.clone();
        let operation = move || {
            let as_of = drumlin::simulation::cloned_as_of().0;
            Operation::Clone { from: space, to: name, as_of }
        };
        self.commit_known(operation, true, move || other.clone_keyspace(&from, &to));
        self.model.end_alteration();
    }

    /// Prepares transactions. Some of them end before the next checkpoint, some after it, and one in the next opening.
    fn prepare_and_end(&mut self, db: &Database) {
        // The first one creates the keyspace of prepared transactions, of which the model knows nothing.
        let before = self.model.last();
        db.begin().and_then(|tx| tx.prepare("first")).expect("a prepared transaction");
        for timestamp in before + 1..=db.stats().durable.0 {
            self.model.enter(timestamp, Operation::Rows(Vec::new()));
        }
        self.note();
        let other = db.clone();
        self.commit(Operation::Rows(Vec::new()), true, move || other.abort_prepared("first"));
        self.prepare(db, "small", &[20, 100, 0]);
        self.prepare(db, "kept", &[150_000, 20, 5000]);
        self.end_prepared(db, "small", true);
        self.prepare(db, "aborted", &[70_000, 30]);
        self.prepare(db, "long", &[40_000, 40_000, 10]);
        db.checkpoint().expect("a checkpoint");
        self.note();
        self.end_prepared(db, "aborted", false);
        self.end_prepared(db, "kept", true);
        self.prepare(db, "again", &[90_000, 90]);
        self.end_prepared(db, "again", true);
        self.prepare(db, "left", &[80_000, 25]);
        self.end_prepared(db, "long", true);
    }

    /// Prepares a transaction that puts rows with values of these lengths.
    fn prepare(&mut self, db: &Database, id: &'static str, lengths: &[usize]) {
        let space = self.model.space("more").expect("created");
        let keyspace = db.existing_keyspace("more").expect("created");
        let mut tx = db.begin().expect("a transaction");
        let mut rows = Vec::new();
        for (number, length) in lengths.iter().enumerate() {
            let (key, content) = (format!("{id} {number}").into_bytes(), self.content(*length));
            tx.insert(&keyspace, &key, content.bytes()).expect("an insert");
            rows.push((space, key, Some(content)));
        }
        self.commit(Operation::Prepare(id.into(), rows), true, move || tx.prepare(id));
    }

    fn end_prepared(&mut self, db: &Database, id: &'static str, commits: bool) {
        let other = db.clone();
        match commits {
            true => self.commit(Operation::CommitPrepared(id.into()), true, move || other.commit_prepared(id)),
            false => self.commit(Operation::AbortPrepared(id.into()), true, move || other.abort_prepared(id)),
        }
    }

    /// Compares the rows that a snapshot sees with the model at the time when the snapshot was taken.
    fn compare(&self, db: &Database, snapshot: &Snapshot) {
        assert!(db.stats().version_disk_bytes > 0, "no versions are on disk");
        for name in ["rows", "more"] {
            let keyspace = db.existing_keyspace(name).expect("created");
            let rows = self.model.rows_at(self.model.space(name).expect("created"), snapshot.timestamp().0);
            let mut wanted = rows.iter();
            for row in snapshot.iter(&keyspace) {
                let (key, value) = row.unwrap_or_else(|error| panic!("the script's snapshot: {error}"));
                let is_it = wanted.next().is_some_and(|(other, content)| other[..] == key[..] && content.is(&value));
                assert!(is_it, "the script's snapshot has another row {} in {name:?}", key.escape_ascii());
            }
            assert!(wanted.next().is_none(), "the script's snapshot lacks rows of {name:?}");
        }
    }

    /// Reopens the database with a different number of streams, so that the log continues with other streams. Commits
    /// only after the warm start has read the resident pages. The maintenance thread makes the checkpoints, because it
    /// shortens an idle file only after one of its own checkpoints.
    fn open_again(&mut self) {
        let config = self.config(3 - self.streams).checkpoint_log_bytes(128 << 10);
        let db = config.open("/db").expect("a closed database");
        while db.stats().is_warming {
            sim::sleep(Duration::from_millis(1));
        }
        for number in 0..5 {
            self.put(&db, "rows", number, 90, number != 2);
        }
        self.transaction(&db, 9, 10);
        self.end_prepared(&db, "left", true);
        self.drop_kept(&db, "first");
        self.be_idle(&db);
        drop(db);
    }

    /// Opens the database and cuts it off in the middle of its commits, so that some may be lost. Returns the disk in
    /// the state that the cut leaves.
    fn be_cut_off(&mut self, opening: u64) -> Medium {
        let db = self.config(self.streams).open("/db").expect("a database that was cut off");
        verify(&db, &self.model).unwrap_or_else(|failure| panic!("opening {opening}: {failure}"));
        if opening == 0 {
            self.create(&db, "before", 512);
        }
        // Let two clients commit concurrently, so that they use both streams. Their values are so long that some are
        // written before any of them is synced.
        let clients = [0, 1].map(|client| {
            let (mut script, db) = (self.clone(), db.clone());
            script.random = Random(self.random.next());
            self.spawn("client", move || {
                (0..12).for_each(|number| script.put(&db, "before", 2 * number + client, 30_000, false));
            })
        });
        clients.into_iter().for_each(|wait| wait());
        self.disk.turn_off();
        drop(db);
        self.disk.medium().cut(Loss::Writes, &mut Random(self.random.next()))
    }

    /// Stores values while the file is being compacted and kept snapshots are dropped, so that segments are reused soon
    /// after they are emptied or unpinned.
    fn write_while_compacting(&mut self, db: &Database) {
        let other = db.clone();
        let compacted = self.spawn("compacting", move || {
            for _ in 0..6 {
                other.compact().expect("compacting");
            }
        });
        let (keeping, other) = (self.clone(), db.clone());
        let kept = self.spawn("keeping", move || {
            for _ in 0..3 {
                keeping.drop_kept(&other, "first");
                keeping.keep_on_disk(&other, "first");
            }
            keeping.drop_kept(&other, "first");
        });
        for number in 0..30 {
            self.put(db, "rows", number % 3, 100_000, true);
        }
        compacted();
        kept();
        self.note();
    }

    /// Stores values that fill eight segments, removes them, and makes a checkpoint due. Then leaves the database idle
    /// until it shortens its file, and afterwards uses the database again.
    fn be_idle(&mut self, db: &Database) {
        for number in 20..25 {
            self.put(db, "rows", number, 600_000, true);
        }
        for number in 20..25 {
            self.remove(db, "rows", number);
        }
        for number in 0..6 {
            self.put(db, "more", number, 30_000, true);
        }
        sim::sleep(Duration::from_secs(6));
        self.note();
        for number in 0..2 {
            self.put(db, "rows", 20 + number, 700, true);
        }
    }

    /// Grows or shrinks a deep tree. It counts rows in between, so that the engine has to maintain counts while nodes
    /// split and merge.
    fn deepen(&mut self, db: &Database, is_put: bool) {
        for first in (0..1200).step_by(150) {
            self.run_of_rows(db, "deep", first..first + 150, is_put);
            self.count(db, "deep");
        }
        self.note();
    }

    /// Compares counts with the model while no client commits.
    fn count(&self, db: &Database, name: &str) {
        let space = self.model.space(name).expect("created");
        let keyspace = db.existing_keyspace(name).expect("created");
        let rows = self.model.rows_at(space, self.model.last());
        check_aggregates(&keyspace, &rows).unwrap_or_else(|failure| panic!("the script: {name:?} {failure}"));
    }

    /// Lets several clients commit concurrently, while one thread counts rows, one makes checkpoints and one compacts.
    fn all_at_once(&mut self, db: &Database) {
        let (other, another) = (db.clone(), db.clone());
        let mut waits: Vec<_> = Vec::new();
        for client in 0..3u64 {
            let (mut script, db) = (self.clone(), db.clone());
            script.random = Random(self.random.next());
            waits.push(self.spawn("client", move || {
                for round in 0..24 {
                    let number = client * 400 + script.random.below(400);
                    let length = [30, 100, 150, 6000][script.random.below(4) as usize];
                    script.put(&db, "deep", number, length, round % 3 != 1);
                    if round % 6 == 3 {
                        let first = client * 400 + round * 12;
                        script.run_of_rows(&db, "deep", first..first + 40, round % 12 == 3);
                    }
                }
            }));
        }
        let counted = db.clone();
        waits.push(self.spawn("counting", move || {
            let deep = counted.existing_keyspace("deep").expect("created");
            for _ in 0..6 {
                let snapshot = counted.snapshot();
                let count = snapshot.count(&deep, ..).expect("a count");
                let walked = snapshot.keys(&deep).try_fold(0, |rows, key| key.map(|_| rows + 1)).expect("a walk");
                assert!(count == walked, "{count} rows are counted at a snapshot where a walk meets {walked}");
                snapshot.aggregate(&deep, &Fingerprint, ..).expect("an aggregate");
                sim::sleep(Duration::from_micros(200));
            }
        }));
        waits.push(self.spawn("checkpoints", move || {
            for _ in 0..4 {
                other.checkpoint().expect("a checkpoint");
                sim::sleep(Duration::from_micros(300));
            }
        }));
        waits.push(self.spawn("compacting", move || {
            for _ in 0..4 {
                another.compact().expect("compacting");
            }
        }));
        let (keeping, other) = (self.clone(), db.clone());
        waits.push(self.spawn("keeping", move || {
            let second = other.open_snapshot("second").expect("kept");
            keeping.keep_on_disk(&other, "third");
            keeping.drop_kept(&other, "second");
            keeping.keep_on_disk(&other, "first");
            keeping.drop_kept(&other, "third");
            drop(second);
        }));
        waits.into_iter().for_each(|wait| wait());
        self.note();
    }

    /// Keeps a snapshot. Until the call returns, a cut may leave the snapshot or not.
    fn keep_on_disk(&self, db: &Database, name: &str) {
        self.model.claim_kept(name).expect("only this thread uses the name");
        self.note();
        let at = db.keep_snapshot(name).expect("a snapshot");
        self.model.settle_kept(name, Kept::At(at.0));
        self.note();
    }

    fn drop_kept(&self, db: &Database, name: &str) {
        self.model.claim_kept(name).expect("only this thread uses the name");
        self.note();
        db.drop_snapshot(name).expect("it is kept");
        self.model.settle_kept(name, Kept::No);
        self.note();
    }

    fn create(&mut self, db: &Database, name: &str, page_bytes: usize) {
        let options = KeyspaceOptions::new().page_bytes(page_bytes);
        let (other, name) = (db.clone(), name.to_owned());
        self.commit(Operation::Create(name.clone()), true, move || other.keyspace_with(&name, options));
    }

    fn drop_keyspace(&mut self, db: &Database, name: &str) {
        let space = self.model.space(name).expect("created");
        let (other, name) = (db.clone(), name.to_owned());
        self.commit(Operation::Drop(space), true, move || other.drop_keyspace(&name));
    }

    fn alter(&mut self, db: &Database, changes: Vec<Alter>) {
        let alteration = altering(db, &changes, KeyspaceOptions::new().page_bytes(1024));
        self.commit(Operation::Alter(changes), true, move || alteration.commit());
    }

    fn put(&mut self, db: &Database, name: &str, number: u64, length: usize, is_full: bool) {
        let space = self.model.space(name).expect("created");
        let keyspace = db.existing_keyspace(name).expect("created");
        let (key, content) = (key(number), self.content(length));
        let durability = if is_full { Durability::Full } else { Durability::Relaxed };
        let value = content.bytes();
        let operation = Operation::Rows(vec![(space, key.clone(), Some(content))]);
        self.commit(operation, is_full, move || keyspace.insert_with(&key, &value, durability));
    }

    fn remove(&mut self, db: &Database, name: &str, number: u64) {
        let space = self.model.space(name).expect("created");
        let keyspace = db.existing_keyspace(name).expect("created");
        let key = key(number);
        let operation = Operation::Rows(vec![(space, key.clone(), None)]);
        self.commit(operation, true, move || keyspace.remove(&key));
    }

    fn remove_range(&mut self, db: &Database, name: &str, numbers: Range<u64>) {
        let space = self.model.space(name).expect("created");
        let keyspace = db.existing_keyspace(name).expect("created");
        let bounds = (Bound::Included(key(numbers.start)), Bound::Excluded(key(numbers.end)));
        let operation = Operation::RemoveRange(space, bounds.clone());
        self.commit(operation, true, move || keyspace.remove_range(bounds));
    }

    /// Removes a range, and puts rows into it and after it, in one transaction.
    fn replace_range(&mut self, db: &Database, name: &str, numbers: Range<u64>) {
        let space = self.model.space(name).expect("created");
        let keyspace = db.existing_keyspace(name).expect("created");
        let bounds = (Bound::Included(key(numbers.start)), Bound::Excluded(key(numbers.end)));
        let removed = self.model.keys_at(space, &bounds, self.model.last());
        let mut rows: BTreeMap<Vec<u8>, Option<Content>> = removed.into_iter().map(|key| (key, None)).collect();
        let mut tx = db.begin().expect("a transaction");
        tx.remove_range(&keyspace, bounds).expect("a removed range");
        for number in [numbers.start, numbers.start + 7, numbers.end] {
            let content = self.content(60);
            tx.insert(&keyspace, key(number), content.bytes()).expect("an insert");
            rows.insert(key(number), Some(content));
        }
        let rows = rows.into_iter().map(|(key, content)| (space, key, content)).collect();
        self.commit(Operation::Load(rows), true, move || tx.commit());
    }

    /// Changes rows of two keyspaces in one transaction that is large enough to spill its changes. Undoes some of the
    /// changes before the commit.
    fn large_transaction(&mut self, db: &Database, name: &str, other: &str) {
        let spaces = [name, other].map(|name| self.model.space(name).expect("created"));
        let keyspaces = [name, other].map(|name| db.existing_keyspace(name).expect("created"));
        let mut tx = db.begin().expect("a transaction");
        let mut rows: BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>> = BTreeMap::new();
        for number in 0..220 {
            let which = usize::from(number % 4 == 3);
            let key = key(number * 37 % 350);
            let length = if number == 40 { 70_000 } else { 20 + number as usize * 6 };
            let content = (number % 3 > 0).then(|| self.content(length));
            match content {
                Some(content) => tx.insert(&keyspaces[which], &key, content.bytes()).expect("an insert"),
                None => tx.remove(&keyspaces[which], &key).expect("a removal"),
            }
            rows.insert((spaces[which], key), content);
        }
        let savepoint = tx.savepoint();
        for number in 100..220 {
            tx.insert(&keyspaces[0], key(number), vec![7; 400]).expect("an insert");
        }
        tx.rollback_to(savepoint).expect("a roll-back");
        let rows = rows.into_iter().map(|((space, key), content)| (space, key, content)).collect();
        self.commit(Operation::Load(rows), true, move || tx.commit());
    }

    /// Stores a value from a reader.
    fn put_from(&mut self, db: &Database, name: &str, number: u64, length: usize) {
        let space = self.model.space(name).expect("created");
        let keyspace = db.existing_keyspace(name).expect("created");
        let (key, content) = (key(number), self.content(length));
        let value = Cursor::new(content.bytes());
        let operation = Operation::Rows(vec![(space, key.clone(), Some(content))]);
        self.commit(operation, true, move || keyspace.insert_from(&key, value));
    }

    /// Puts or removes consecutive rows in one transaction.
    fn run_of_rows(&mut self, db: &Database, name: &str, numbers: Range<u64>, is_put: bool) {
        let space = self.model.space(name).expect("created");
        let keyspace = db.existing_keyspace(name).expect("created");
        let mut tx = db.begin().expect("a transaction");
        let mut rows = Vec::new();
        for number in numbers {
            let (key, content) = (key(number), is_put.then(|| self.content(20)));
            match content {
                Some(content) => tx.insert(&keyspace, &key, content.bytes()).expect("an insert"),
                None => tx.remove(&keyspace, &key).expect("a removal"),
            }
            rows.push((space, key, content));
        }
        self.commit(Operation::Rows(rows), true, move || tx.commit());
    }

    /// Loads rows in bulk into a keyspace, after an earlier load of the same keyspace was dropped. The lengths
    /// of the values repeat every eight rows. If `amid` is set, makes checkpoints and compacts the file during the
    /// load.
    fn load(&mut self, db: &Database, name: &str, numbers: &[u64], lengths: [usize; 8], amid: bool) {
        let space = self.model.space(name).expect("created");
        for is_dropped in [true, false] {
            let mut rows = Vec::new();
            let mut load = begin_load(db, name);
            for &number in numbers {
                let content = self.content(lengths[number as usize % 8]);
                load.insert(key(number), content.bytes()).expect("a row");
                rows.push((space, key(number), Some(content)));
                if amid && number % 16 == 7 {
                    db.checkpoint().expect("a checkpoint");
                    self.note();
                }
                if amid && number % 32 == 15 {
                    db.compact().expect("compacting");
                    self.note();
                }
            }
            if is_dropped {
                continue;
            }
            let content = self.content(150_000);
            load.insert("the last", content.bytes()).expect("a row");
            rows.push((space, b"the last".to_vec(), Some(content)));
            self.commit(Operation::Rows(rows), true, move || load.finish().map(drop));
        }
    }

    fn transaction(&mut self, db: &Database, round: u64, count: u64) {
        let mut tx = db.begin_with(TxOptions::default()).expect("a transaction");
        let mut rows = Vec::new();
        for number in 0..count {
            let name = if number % 3 == 0 { "more" } else { "rows" };
            let space = self.model.space(name).expect("created");
            let keyspace = db.existing_keyspace(name).expect("created");
            let key = key(100 + round * 20 + number);
            let content = (number % 5 != 4).then(|| self.content(20 + (number as usize * 13) % 100));
            match content {
                Some(content) => tx.insert(&keyspace, &key, content.bytes()).expect("an insert"),
                None => tx.remove(&keyspace, &key).expect("a removal"),
            }
            rows.push((space, key, content));
        }
        let mark = tx.savepoint();
        let keyspace = db.existing_keyspace("rows").expect("created");
        tx.insert(&keyspace, b"rolled back", b"x").expect("an insert");
        tx.rollback_to(mark).expect("a savepoint");
        self.commit(Operation::Rows(rows), true, move || tx.commit());
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("row {number:04}").into_bytes()
}

/// Recovers a database and compares it with the model. Returns the changes that the opening made to the disk, and the
/// last commit of the database.
fn recover(
    script: ScriptKind,
    medium: Medium,
    model: &Model,
    streams: u16,
    seed: u64,
) -> Result<(Vec<Change>, u64), String> {
    let model = model.fork();
    let outcome = sim::run(schedule(seed), move || {
        let disk = Disk::new(medium, seed);
        let config = script.config(&disk, streams);
        let in_files = if script == ScriptKind::Changes { read_change_files(&config)? } else { 0 };
        disk.record();
        let db = config.open("/db").map_err(|error| format!("opening: {error}"))?;
        let mut changes = disk.recorded();
        let mut verified = verify(&db, &model);
        if script == ScriptKind::Changes {
            verified = verified.and_then(|last| verify_feed(&db, &model, in_files, last));
            // A cut may also hit the writes that continue the feed.
            changes = disk.recorded();
        }
        // Leave the disk in the state that a killed process leaves.
        disk.turn_off();
        drop(db);
        verified.map(|last| (changes, last))
    });
    outcome.result.and_then(|verified| verified)
}

/// Reads the change files of a database that is not open. Their commits must follow each other. Returns the last one.
fn read_change_files(config: &Config) -> Result<u64, String> {
    let text = |error: Error| format!("reading change files: {error}");
    let (mut changes, mut last) = match config.changes("/db", Timestamp(0)) {
        Ok(changes) => (changes, 0),
        Err(Error::ChangesGone { from, .. }) => (config.changes("/db", from).map_err(text)?, from.0),
        // The folder of the database, or that of its change files, has not been created.
        Err(Error::Invalid(_) | Error::Io { .. }) => return Ok(0),
        Err(error) => return Err(text(error)),
    };
    while let Some(commit) = changes.ready() {
        let at = commit.map_err(text)?.timestamp().0;
        if at != last + 1 {
            return Err(format!("change files have commit {at} after {last}"));
        }
        last = at;
    }
    Ok(last)
}

/// Reads the feed from its beginning, and from a place in its middle. It must have every commit up to `last` once, and
/// lead to the rows of the model. `in_files` is the last commit that the change files had before the opening.
fn verify_feed(db: &Database, model: &Model, in_files: u64, last: u64) -> Result<u64, String> {
    let text = |error: Error| format!("the feed: {error}");
    if in_files > last {
        return Err(format!("change files told commit {in_files}, and the database ends at {last}"));
    }
    // The retention removes files while commits are copied.
    while db.stats().changes_last < Some(Timestamp(last)) {
        if let Some(reason) = db.stats().changes_failure {
            return Err(format!("the feed: {reason}"));
        }
        sim::sleep(Duration::from_micros(100));
    }
    let from = match db.changes(Timestamp(0)) {
        Ok(_) => 0,
        Err(Error::ChangesGone { from, .. }) => from.0,
        Err(error) => return Err(text(error)),
    };
    if from > last {
        return Err(format!("the feed begins at commit {from}, and the database ends at {last}"));
    }
    for since in [from, from + (last - from) / 2] {
        let mut follower = Follower::default();
        follower.skip_to(model, since);
        follower.catch_up(db, model, last).map_err(text)?;
        if follower.commits() != last - since {
            return Err(format!("the feed has {} commits from {since} to {last}", follower.commits()));
        }
        let (_, unknown) = follower.old_values();
        if unknown > 0 {
            return Err(format!("the feed lacks {unknown} old values from {since} to {last}"));
        }
    }
    let commits = db.changes(Timestamp(from)).map_err(text)?.until(Timestamp(last));
    let kept_bytes =
        commits.map(|commit| commit.map(|commit| bytes_of(&commit))).sum::<Result<u64, _>>().map_err(text)?;
    if from > 0 && kept_bytes < KEPT_CHANGES_BYTES {
        return Err(format!("the feed has {kept_bytes} bytes of commits after {from}, fewer than it keeps"));
    }
    Ok(last)
}

/// Returns the bytes of a commit as a retention counts them: see [`Retention::bytes`].
fn bytes_of(commit: &Commit) -> u64 {
    let old_bytes = |old| match old {
        Some(OldValue::Value(value)) => 14 + value.len(),
        Some(_) => 14,
        None => 0,
    };
    let row_bytes = |(change, old)| {
        old_bytes(old)
            + match change {
                RowChange::Put { key, value, .. } => 11 + key.len() + value.len(),
                RowChange::PutLarge { key, .. } | RowChange::Remove { key, .. } => 11 + key.len(),
                _ => 11,
            }
    };
    40 + commit.changes_with_old_values().map(row_bytes).sum::<usize>() as u64
}

fn verify(db: &Database, model: &Model) -> Result<u64, String> {
    let text = |error: Error| error.to_string();
    let last = db.opening().last.0;
    model.reopen(last, Tampering::None)?;
    let mut wanted: Vec<String> = model.spaces().into_iter().map(|(name, _)| name).collect();
    wanted.sort();
    let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
    if names != wanted {
        return Err(format!("at commit {last} the keyspaces are {names:?}, should be {wanted:?}"));
    }
    for (name, space) in model.spaces() {
        let keyspace = db.existing_keyspace(&name).map_err(text)?;
        let rows = model.rows_at(space, last);
        let mut wanted = rows.iter();
        for row in &keyspace {
            let (key, value) = row.map_err(text)?;
            let is_it = wanted.next().is_some_and(|(other, content)| other[..] == key[..] && content.is(&value));
            if !is_it {
                return Err(format!("at commit {last} row {} of {name:?} is wrong", key.escape_ascii()));
            }
        }
        if let Some((key, _)) = wanted.next() {
            return Err(format!("at commit {last} row {} of {name:?} is missing", key.escape_ascii()));
        }
        check_aggregates(&keyspace, &rows).map_err(|reason| format!("at commit {last} {name:?} {reason}"))?;
    }
    let kept: Vec<_> = db.kept_snapshots().into_iter().map(|info| (info.name, info.timestamp.0)).collect();
    model.reopen_kept(&kept)?;
    compare_kept(db, model).map_err(text)?;
    // The model does not know of the first prepared transaction, which changes nothing.
    let mut found: Vec<_> = db.prepared().map_err(text)?.into_iter().map(|found| found.id).collect();
    found.retain(|id| id != b"first");
    let mut wanted: Vec<_> = model.prepared().into_iter().map(|prepared| prepared.id).collect();
    wanted.sort();
    if found != wanted {
        return Err(format!("at commit {last} the prepared transactions are {found:?}, should be {wanted:?}"));
    }
    let mut tx = db.begin().map_err(text)?;
    for (space, key, _) in model.prepared().into_iter().flat_map(|prepared| prepared.rows) {
        let keyspace = db.existing_keyspace(&model.name(space)).map_err(text)?;
        if tx.try_lock_row(&keyspace, &key, LockMode::Exclusive).map_err(text)? {
            return Err(format!("at commit {last} row {} of a prepared transaction is free", key.escape_ascii()));
        }
    }
    Ok(last)
}

/// Checks the number of all rows, the number of rows in the second half, the row in the middle (by its index), and an
/// aggregate of all rows.
fn check_aggregates(keyspace: &Keyspace, rows: &BTreeMap<Vec<u8>, Content>) -> Result<(), String> {
    let half = rows.len() / 2;
    let middle = rows.keys().nth(half);
    let from_middle = Bound::Included(middle.cloned().unwrap_or_default());
    for (bounds, wanted) in
        [((Bound::Unbounded, Bound::Unbounded), rows.len()), ((from_middle, Bound::Unbounded), rows.len() - half)]
    {
        let counted = keyspace.count(bounds.clone()).map_err(|error| error.to_string())?;
        if counted != wanted as u64 {
            return Err(format!("counts {counted} rows in {bounds:?}, should be {wanted}"));
        }
    }
    let found = keyspace.nth(.., half as u64).map_err(|error| error.to_string())?;
    match found.as_ref().map(|(key, _)| &key[..]) == middle.map(|key| &key[..]) {
        true => Ok(()),
        false => Err(format!("has {:?} at place {half}, should have {middle:?}", found.map(|(key, _)| key))),
    }?;
    match keyspace.aggregate(&Fingerprint, ..).map_err(|error| error.to_string())? == fingerprint_of(rows.iter()) {
        true => Ok(()),
        false => Err(format!("reduces its {} rows to what they are not", rows.len())),
    }
}

/// The file that names the process that has the database open. It is never synced, and no other file depends on it.
const LOCK: &str = "/db/lock";

/// Returns the losses to try at a cut. Cuts of recoveries use only the first list.
fn losses(medium: &Medium, bounds: &Bounds) -> (Vec<(Loss, u64)>, Vec<Loss>) {
    let mut losses = vec![(Loss::All, 0), (Loss::Nothing, 0)];
    let count = medium.uncertain_count();
    if count > 0 {
        losses.extend((0..bounds.random as u64).map(|draw| {
            let loss = if draw % 2 == 0 { Loss::Sectors } else { Loss::Writes };
            (loss, draw)
        }));
    }
    let others = if count <= bounds.subsets_of {
        (0..1 << count).map(Loss::Subset).collect()
    } else {
        // Try only the last changes, because earlier ones have probably reached the disk.
        let pending = medium.pending_max();
        let alone = pending.saturating_sub(bounds.alone_max)..pending;
        alone.flat_map(|index| [Loss::Only(index), Loss::AllBut(index)]).collect()
    };
    (losses, others)
}

/// Tries all points of a round, calling `on_progress` after each.
///
/// # Panics
/// If the script itself fails while the power is on.
pub fn run(round: Round, stop: &AtomicBool, on_progress: impl Fn(&Report)) -> Report {
    let began = Instant::now();
    let marks_before = drumlin::simulation::marks();
    let outcome = sim::run(schedule(round.seed), move || {
        let mut script = Script {
            kind: round.script,
            disk: Disk::new(Medium::default(), round.seed),
            model: Model::default(),
            moments: Arc::default(),
            random: Random(round.seed),
            streams: streams(round.seed),
        };
        for opening in 0..openings_before(round.seed) {
            let medium = script.be_cut_off(opening);
            script.disk = Disk::new(medium, round.seed);
        }
        let before = script.disk.medium();
        script.disk.record();
        script.moments.lock().expect("nobody panics with it").clear();
        script.note();
        script.run();
        let moments = std::mem::take(&mut *script.moments.lock().expect("nobody panics with it"));
        (before, script.disk.recorded(), moments)
    });
    let (mut medium, changes, moments) =
        outcome.result.unwrap_or_else(|failure| panic!("the script failed: {failure}"));
    let hit =
        drumlin::simulation::marks().into_iter().zip(marks_before).filter(|((_, after), (_, before))| after > before);
    let script_marks = hit.map(|((mark, _), _)| mark).collect();
    let mut report = Report { points: changes.len() + 1, next: round.from, script_marks, ..Report::default() };
    for point in 0..=changes.len() {
        if point > 0 {
            medium.apply(&changes[point - 1]);
            medium.settle(Path::new(LOCK));
        }
        if point < round.from || !(point - round.from).is_multiple_of(round.bounds.stride) {
            continue;
        }
        if began.elapsed() > round.duration_max || stop.load(Ordering::Relaxed) {
            return report;
        }
        // If a commit was acknowledged during this change, the database may or may not have it.
        let (acknowledged, recorded) = around(&moments, point);
        let model = acknowledged.with_recorded(&recorded);
        let known = report.finds.len();
        go_into(&round, point, &medium, &model, &mut report);
        for find in &mut report.finds[known..] {
            *find += &format!("\n  again: {}", round.command(point));
        }
        report.next = point + 1;
        on_progress(&report);
        if report.finds.len() >= round.finds_max {
            return report;
        }
    }
    report.next = report.points;
    report
}

/// Returns two models: the commits that were acknowledged before the change at `point`, and the commits that had a
/// timestamp by the end of the change.
fn around(moments: &Moments, point: usize) -> (Model, Model) {
    let before = moments.iter().rev().find(|(count, _)| *count <= point).map(|(_, model)| model);
    let after = moments.iter().find(|(count, _)| *count > point).or(moments.last()).map(|(_, model)| model);
    let none = Model::default();
    (before.unwrap_or(&none).clone(), after.unwrap_or(&none).clone())
}

fn go_into(round: &Round, point: usize, medium: &Medium, model: &Model, report: &mut Report) {
    let own_seed = round.seed ^ (point as u64) << 20;
    let (losses, others) = losses(medium, &round.bounds);
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    let mut states = Vec::new();
    if round.bounds.of_recovery > 0 && medium.uncertain_count() > 0 {
        states.push((format!("killed after change {point}"), medium.clone(), own_seed, true));
    }
    let losses = losses.into_iter().map(|(loss, draw)| (loss, draw, true));
    for (loss, draw, is_gone_into) in losses.chain(others.into_iter().map(|loss| (loss, 0, false))) {
        let seed = own_seed ^ draw;
        let after = medium.cut(loss, &mut Random(seed));
        // Skip states that are already listed.
        if seen.insert(after.digest()) {
            states.push((format!("a cut after change {point}, loss {loss:?}, draw {draw}"), after, seed, is_gone_into));
        }
    }
    for (place, state, seed, is_gone_into) in states {
        report.states += 1;
        match recover(round.script, state.clone(), model, streams(round.seed), seed) {
            Err(reason) => report.finds.push(format!("{place}: {reason}")),
            Ok((changes, last)) if is_gone_into => {
                let recovery = Recovery { place: &place, state, changes, last, seed };
                recovery.go_into(round, model, report);
            }
            Ok(_) => {}
        }
    }
}

/// A recovery that will be cut.
struct Recovery<'a> {
    place: &'a str,
    /// The disk before the recovery.
    state: Medium,
    changes: Vec<Change>,
    /// The last commit of the database after the recovery.
    last: u64,
    seed: u64,
}

impl Recovery<'_> {
    fn go_into(self, round: &Round, model: &Model, report: &mut Report) {
        let Recovery { place, state: mut amid, changes, last, seed } = self;
        let mut seen: BTreeSet<(u64, bool)> = BTreeSet::new();
        let after = model.fork();
        if let Err(reason) = after.reopen(last, Tampering::None) {
            report.finds.push(format!("{place}: {reason}"));
        }
        for (step, change) in changes.iter().enumerate() {
            amid.apply(change);
            amid.settle(Path::new(LOCK));
            // After its last change, the recovery has reported its last commit. From then on, a cut must neither lose a
            // commit up to that one nor bring back a later one.
            let is_over = step + 1 == changes.len();
            for draw in 0..round.bounds.of_recovery as u64 {
                let loss = [Loss::All, Loss::Sectors, Loss::Nothing, Loss::Writes][draw as usize % 4];
                let seed = seed ^ (step as u64) << 8 ^ draw << 4;
                let again = amid.cut(loss, &mut Random(seed));
                if !seen.insert((again.digest(), is_over)) {
                    continue;
                }
                report.states += 1;
                report.recovery_states += 1;
                let model = if is_over { &after } else { model };
                if let Err(reason) = recover(round.script, again, model, streams(round.seed), seed) {
                    report.finds.push(format!(
                        "{place}, recovered to commit {last}, then a cut after change {step} of that, loss {loss:?}: {reason}"
                    ));
                }
            }
        }
    }
}
