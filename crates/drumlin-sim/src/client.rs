//! A client: what it asks of the database, drawn from its seed, and what it makes of the answers.
//!
//! A client blocks its thread, or is a task that shares a thread with others and uses the asynchronous calls; the latter
//! drops some futures at one of their waits. What is checked is the same for both.
//!
//! A wrong answer is a panic, which ends the simulation and is its report.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use drumlin::io::sim::{self, Disk, Random};
use drumlin::{
    AsyncValueReader, Database, Durability, Error, Isolation, Keyspace, KeyspaceOptions, Snapshot, Transaction,
    TxOptions, Value, ValueReader,
};
use futures_io::{AsyncRead, AsyncSeek};

use crate::model::{Content, Deed, Model, SpaceNumber, tell};
use crate::tasks::{self, Timer, or_drop};
use crate::world::Plan;

/// Keyspaces that are always there, and those that come and go.
pub const LASTING: [(&str, usize); 3] = [("rows", 512), ("more", 2048), (HOT, 1024)];
pub const PASSING: [&str; 3] = ["passing a", "passing b", "passing c"];

/// Few rows, so that clients meet.
const HOT: &str = "hot";
const HOT_ROWS: u64 = 12;

/// What all clients of a life share.
#[derive(Debug)]
pub struct Life {
    pub db: Database,
    pub disk: Disk,
    pub model: Model,
    pub plan: Plan,
    pub counts: Counts,
    /// The disk held other bytes than were written before this life began.
    pub was_damaged: bool,
    /// A row was put in this life: space was set aside for removing.
    pub has_put: AtomicBool,
}

/// What was done, over all lives.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<[AtomicU64; COUNTS]>);

const COUNTS: usize = 11;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    Reads,
    Scans,
    Transactions,
    Conflicts,
    /// For want of space; and those of them that only removed, after a row had been put.
    Refused,
    RefusedRemovals,
    Snapshots,
    SnapshotsTooOld,
    Checkpoints,
    /// Futures dropped before they were ready, and those of them whose commit stands.
    Dropped,
    DroppedLate,
}

impl Counts {
    pub fn add(&self, what: Count) {
        self.0[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    #[must_use]
    pub fn get(&self, what: Count) -> u64 {
        self.0[what as usize].load(Ordering::Relaxed)
    }
}

/// The client goes no further in this life.
#[derive(Clone, Copy, Debug)]
pub struct Stop;

/// What a client has called: some errors come of some calls only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// What looks at no moment of the past and waits for no row.
    Plain,
    /// A change that is a transaction of its own.
    Change,
    /// The same that only removes.
    Removal,
    /// The same, of a value whose reader fails.
    FailingSource,
    /// What reads at one moment.
    Snapshot,
    Transaction,
}

/// How a client calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Face {
    Blocking,
    Tasks,
}

/// The call by a client's own face.
macro_rules! by_face {
    ($face:expr, $blocking:expr, $task:expr) => {
        match $face {
            Face::Blocking => $blocking,
            Face::Tasks => $task.await,
        }
    };
}

struct Client {
    life: Arc<Life>,
    random: Random,
    face: Face,
    timer: Timer,
    /// Taken a while ago.
    snapshot: Option<Snapshot>,
}

/// The bounds of a scan, or what of it was read.
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A client that blocks its thread: so many steps, or until the database accepts no more.
pub fn run(life: Arc<Life>, seed: u64, steps: u64) {
    let client = Client { life, random: Random(seed), face: Face::Blocking, timer: Timer::default(), snapshot: None };
    let life = pin!(client.live(steps)).poll(&mut Context::from_waker(Waker::noop()));
    assert!(life.is_ready(), "a client that blocks waited as a task does");
}

/// Clients that share a thread, each a task.
pub fn run_tasks(life: &Arc<Life>, mut random: Random, count: u64, steps: u64) {
    let timer = Timer::default();
    let mut client = || {
        let (life, random, timer) = (Arc::clone(life), Random(random.next()), timer.clone());
        Client { life, random, face: Face::Tasks, timer, snapshot: None }
    };
    let clients: Vec<Client> = (0..count).map(|_| client()).collect();
    let tasks = clients.into_iter().map(|client| Box::pin(client.live(steps)) as tasks::Task).collect();
    tasks::run(tasks, &timer, random);
}

/// After all clients have ended: nobody holds a row of the keyspace that they fought over.
///
/// # Errors
/// If a row can't be locked.
pub fn lock_hot_rows(db: &Database) -> Result<(), Error> {
    let keyspace = db.existing_keyspace(HOT)?;
    let lock_timeout = Duration::from_secs(1);
    let options = TxOptions { isolation: Isolation::ReadCommitted, lock_timeout, ..TxOptions::default() };
    let mut tx = db.begin_with(options)?;
    for number in 0..HOT_ROWS {
        tx.get_for_update(&keyspace, hot(number))?;
    }
    Ok(())
}

impl Client {
    async fn live(mut self, steps: u64) {
        for _ in 0..steps {
            if self.step().await.is_err() || self.life.disk.is_off() {
                break;
            }
            let think_nanos = self.life.plan.think_nanos;
            if think_nanos > 0 {
                let nanos = self.random.below(2 * think_nanos);
                self.sleep(Duration::from_nanos(nanos)).await;
            }
        }
        sim::on_timestamp(None);
    }

    async fn sleep(&self, duration: Duration) {
        by_face!(self.face, sim::sleep(duration), self.timer.sleep(duration));
    }

    /// After how many waits the next future is dropped, if it is.
    fn waits_max(&mut self) -> Option<u64> {
        (self.face == Face::Tasks && self.random.chance(12)).then(|| self.random.below(8))
    }

    /// Awaits it, or drops it at one of its waits.
    async fn or_drop<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let waits_max = self.waits_max();
        let result = or_drop(waits_max, future).await;
        if result.is_none() {
            self.life.counts.add(Count::Dropped);
        }
        result
    }

    /// Does what takes a timestamp on whatever thread it runs: here where that may block, else on a thread of its own.
    async fn elsewhere<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        if self.face == Face::Blocking {
            return body();
        }
        let answer: Arc<Mutex<(Option<T>, Option<Waker>)>> = Arc::new(Mutex::new((None, None)));
        let place = Arc::clone(&answer);
        let body = move || {
            let value = body();
            let waker = {
                let mut answer = place.lock().expect("nobody panics with it");
                answer.0 = Some(value);
                answer.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        };
        let thread = sim::spawn("definer", Box::new(body)).expect("a thread");
        let value = poll_fn(|context| {
            let mut answer = answer.lock().expect("nobody panics with it");
            answer.1 = Some(context.waker().clone());
            answer.0.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        let _ = sim::join(thread);
        value
    }

    async fn step(&mut self) -> Result<(), Stop> {
        match self.random.below(1000) {
            0..350 => self.autocommit().await,
            350..600 => self.transaction().await,
            600..680 => self.plain_reads().await,
            680..760 => self.plain_scan().await,
            760..860 => self.snapshot_reads().await,
            860..880 => self.stream().await,
            880..900 => self.create().await,
            900..912 => self.drop_keyspace().await,
            912..940 => self.large_transaction().await,
            940..1000 if self.life.plan.runs && self.random.chance(60) => self.run_of_rows().await,
            940..1000 if self.random.below(60) < self.life.plan.upkeep_weight => self.upkeep().await,
            _ => {
                let micros = self.random.below(3000);
                self.sleep(Duration::from_micros(micros)).await;
                Ok(())
            }
        }
    }

    // ── what there is ──────────────────────────────────────────────────────────────────────────────────────────────

    /// A keyspace, and what the model knows it by; `None` if it was not there.
    fn open(&self, name: &str) -> Option<(Keyspace, SpaceNumber)> {
        let before = self.life.model.space(name)?;
        let opened = self.life.db.existing_keyspace(name);
        let is_lasting = LASTING.iter().any(|(lasting, _)| *lasting == name);
        assert!(opened.is_ok() || !is_lasting, "keyspace {name:?} is gone: {opened:?}");
        let keyspace = opened.ok()?;
        (self.life.model.space(name) == Some(before)).then_some((keyspace, before))
    }

    fn any_keyspace(&mut self) -> Option<(Keyspace, SpaceNumber)> {
        let name = match self.random.below(100) {
            0..40 => LASTING[0].0,
            40..65 => LASTING[1].0,
            65..88 => LASTING[2].0,
            _ => PASSING[self.random.below(3) as usize],
        };
        self.open(name)
    }

    fn key(&mut self, space: SpaceNumber) -> Vec<u8> {
        let name = self.life.model.name(space);
        let count = if name == HOT { HOT_ROWS } else { self.life.plan.key_count };
        let number = self.random.below(count);
        if name == HOT { hot(number) } else { numbered(number) }
    }

    fn content(&mut self) -> Content {
        let length = match self.random.below(1000) {
            0..60 => 0,
            60..900 => self.random.below(self.life.plan.value_bytes),
            900..970 => 200 + self.random.below(3000),
            970..992 => 3000 + self.random.below(30_000),
            _ if self.life.plan.large_values => 65_000 + self.random.below(150_000),
            _ => self.random.below(5000),
        };
        Content { length: length as usize, seed: self.random.next() }
    }

    fn some_content(&mut self) -> Option<Content> {
        self.random.chance(75).then(|| self.content())
    }

    fn durability(&mut self) -> Durability {
        if self.random.chance(self.life.plan.relaxed_percent) { Durability::Relaxed } else { Durability::Full }
    }

    fn saw(&self, timestamp: u64) {
        if self.life.plan.relaxed_percent == 0 {
            self.life.model.seen(timestamp);
        }
    }

    // ── answers ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// What an error means for this client, where it is one that may be: something must have gone wrong before it does.
    fn accept(&self, error: &Error, call: Call, space: Option<SpaceNumber>) -> Result<(), Stop> {
        let is_off = self.life.disk.is_off();
        let harm = self.life.disk.harm();
        let is_damaged = self.life.was_damaged || harm.has_damaged();
        match error {
            Error::Conflict { .. } if !matches!(call, Call::Plain | Call::Snapshot) => {
                self.life.counts.add(Count::Conflicts);
            }
            Error::SnapshotTooOld { .. } if matches!(call, Call::Snapshot | Call::Transaction) => {
                self.life.counts.add(Count::SnapshotsTooOld);
            }
            Error::TransactionTooLarge { .. } if call == Call::Transaction => {}
            Error::Source { .. } if call == Call::FailingSource => {}
            Error::DiskFull { .. } if is_off || harm.refused_full > 0 => {
                self.life.counts.add(Count::Refused);
                if call == Call::Removal && !is_off && self.life.has_put.load(Ordering::Relaxed) {
                    self.life.counts.add(Count::RefusedRemovals);
                }
            }
            Error::Io { .. } if is_off || harm.has_failed_changes() || harm.reads_failed > 0 => {}
            // What a failed sync dropped may be read before anyone has been told that it failed.
            Error::Damaged { .. } if is_damaged || harm.syncs_failed > 0 => {}
            Error::KeyspaceDropped { .. } | Error::NoSuchKeyspace { .. }
                if space.is_some_and(|space| self.life.model.is_dropped(space)) => {}
            // A transaction that meets a failing read during its checkpoint ends the database for now. A full disk does not.
            Error::Failed { .. } | Error::OutcomeUnknown { .. }
                if is_off || is_damaged || harm.reads_failed > 0 || harm.has_failed_changes() =>
            {
                return Err(Stop);
            }
            other => panic!("an error that can't be, of {call:?}: {other} ({other:?})"),
        }
        if is_off { Err(Stop) } else { Ok(()) }
    }

    /// Whether something has gone wrong that may be the cause of any error.
    fn may_fail(&self) -> bool {
        let harm = self.life.disk.harm();
        self.life.disk.is_off() || self.life.was_damaged || harm.has_damaged() || harm.has_failed()
    }

    /// Runs a commit that does `deed`, and enters it where it gets its timestamp. `None` where it failed and may have, or
    /// was dropped.
    async fn commit<T>(
        &mut self,
        deed: Deed,
        is_full: bool,
        call: Call,
        space: Option<SpaceNumber>,
        commit: impl Future<Output = Result<T, Error>>,
    ) -> Result<Option<(u64, T)>, Stop> {
        let puts = deed.puts();
        let taken = Rc::new(RefCell::new((0, Some(deed))));
        let model = self.life.model.clone();
        let told = Rc::clone(&taken);
        let result = self
            .or_drop(async move {
                let mut commit = pin!(commit);
                poll_fn(|context| {
                    // Others have their turns on this thread between two polls.
                    let (told, model) = (Rc::clone(&told), model.clone());
                    sim::on_timestamp(Some(Box::new(move |timestamp| {
                        let deed = told.borrow_mut().1.take().expect("a commit gets one timestamp");
                        told.borrow_mut().0 = timestamp.0;
                        model.enter(timestamp.0, deed);
                    })));
                    let polled = commit.as_mut().poll(context);
                    sim::on_timestamp(None);
                    polled
                })
                .await
            })
            .await;
        let taken = taken.borrow().0;
        match result {
            Some(result) => {
                // Removing what is not there may be nothing to commit.
                assert!(
                    taken > 0 || !puts || result.is_err(),
                    "a commit that puts rows was acknowledged and never made"
                );
                self.settle(taken, result, is_full, call, space)
            }
            None => {
                // With a timestamp it stands, though nobody is told: the model has it.
                if taken > 0 {
                    self.life.counts.add(Count::DroppedLate);
                }
                Ok(None)
            }
        }
    }

    /// A commit was answered.
    fn settle<T>(
        &self,
        taken: u64,
        result: Result<T, Error>,
        is_full: bool,
        call: Call,
        space: Option<SpaceNumber>,
    ) -> Result<Option<(u64, T)>, Stop> {
        match result {
            Ok(value) => {
                if taken > 0 {
                    self.life.model.answer(taken, is_full);
                    if call == Call::Change {
                        self.life.has_put.store(true, Ordering::Relaxed);
                    }
                }
                Ok(Some((taken, value)))
            }
            Err(error) => {
                assert!(
                    taken == 0 || matches!(error, Error::OutcomeUnknown { .. }),
                    "commit {taken} was taken and failed: {error}"
                );
                self.accept(&error, call, space)?;
                Ok(None)
            }
        }
    }

    fn check_value(
        &self,
        space: SpaceNumber,
        key: &[u8],
        at: u64,
        wanted: Option<Content>,
        found: Option<&[u8]>,
        how: &str,
    ) {
        let is_right = match (wanted, found) {
            (None, None) => true,
            (Some(wanted), Some(found)) => wanted.is(found),
            _ => false,
        };
        assert!(
            is_right,
            "{how}: row {} of {:?} at commit {at} is {}, should be {wanted:?}",
            key.escape_ascii(),
            self.life.model.name(space),
            found.map_or("absent".to_owned(), tell)
        );
    }

    // ── commits ────────────────────────────────────────────────────────────────────────────────────────────────────

    async fn autocommit(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let key = self.key(space);
        let content = self.some_content();
        let deed = Deed::Rows(vec![(space, key.clone(), content)]);
        let face = self.face;
        match content {
            None => {
                let remove = async { by_face!(face, keyspace.remove(&key), keyspace.remove_async(&key)) };
                self.commit(deed, true, Call::Removal, Some(space), remove).await?
            }
            Some(content) if content.length > 2000 && self.random.chance(40) => {
                let mut reader = Slow::new(content);
                if self.random.chance(20) {
                    reader.fails_at = Some(self.random.below(content.length as u64) as usize);
                }
                let fails = reader.fails_at.is_some();
                let insert = async {
                    by_face!(face, keyspace.insert_from(&key, reader), keyspace.insert_from_async(&key, reader))
                        .map(drop)
                };
                let call = if fails { Call::FailingSource } else { Call::Change };
                let done = self.commit(deed, true, call, Some(space), insert).await?;
                assert!(done.is_none() || !fails, "a value was stored whose reader failed");
                done
            }
            Some(content) => {
                let durability = self.durability();
                let value = content.bytes();
                let insert = async {
                    by_face!(
                        face,
                        keyspace.insert_with(&key, &value, durability),
                        keyspace.insert_with_async(&key, &value, durability)
                    )
                };
                self.commit(deed, durability == Durability::Full, Call::Change, Some(space), insert).await?
            }
        };
        Ok(())
    }

    async fn transaction(&mut self) -> Result<(), Stop> {
        if self.life.plan.reads_all && self.random.chance(15) {
            return self.closure().await;
        }
        let count = 1 + self.random.below(10);
        self.transact(count).await
    }

    /// A transaction that is made again where it conflicts: it copies one row to another.
    async fn closure(&mut self) -> Result<(), Stop> {
        self.life.counts.add(Count::Transactions);
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let (from, to, content) = (self.key(space), self.key(space), self.content());
        let mut rows = vec![(space, from.clone(), Some(content)), (space, to.clone(), Some(content))];
        rows.dedup();
        let (db, model, value) = (self.life.db.clone(), self.life.model.clone(), content.bytes());
        let check = move |snapshot: u64, key: &[u8], found: Option<Value>| {
            let wanted = model.at(space, key, snapshot);
            let is_right = match (&wanted, &found) {
                (Some(wanted), Some(found)) => wanted.is(found),
                (wanted, found) => wanted.is_none() && found.is_none(),
            };
            let may = is_right || model.is_dropped(space);
            assert!(may, "closure: row {} at {snapshot} is not {wanted:?}", key.escape_ascii());
        };
        let parts = Arc::new((keyspace, from, to, value, check));
        let options = TxOptions { lock_timeout: Duration::from_millis(20), ..TxOptions::default() };
        let face = self.face;
        let commit = async move {
            if face == Face::Blocking {
                let (keyspace, from, to, value, check) = &*parts;
                return db.transact_with(options, |tx| {
                    check(tx.snapshot_timestamp().0, from, tx.get(keyspace, from)?);
                    tx.insert(keyspace, from, value)?;
                    tx.insert(keyspace, to, value)
                });
            }
            db.transact_async(|tx| {
                let parts = Arc::clone(&parts);
                Box::pin(async move {
                    let (keyspace, from, to, value, check) = &*parts;
                    check(tx.snapshot_timestamp().0, from, tx.get_async(keyspace, from).await?);
                    tx.insert_async(keyspace, from, value).await?;
                    tx.insert_async(keyspace, to, value).await
                })
            })
            .await
        };
        let done = self.commit(Deed::Rows(rows), true, Call::Transaction, Some(space), commit).await?;
        assert!(done.is_none_or(|(taken, ())| taken > 0), "a closure's transaction was answered and never made");
        Ok(())
    }

    async fn large_transaction(&mut self) -> Result<(), Stop> {
        let count = 30 + self.random.below(300);
        self.transact(count).await
    }

    /// Neighbouring rows are put, or removed, all in one transaction: what leaves and inner nodes split and merge by.
    async fn run_of_rows(&mut self) -> Result<(), Stop> {
        self.life.counts.add(Count::Transactions);
        let name = LASTING[self.random.below(2) as usize].0;
        let Some((keyspace, space)) = self.open(name) else { return Ok(()) };
        let is_put = self.random.chance(50);
        let first = self.random.below(self.life.plan.key_count);
        let count = if is_put { 30 + self.random.below(200) } else { 100 + self.random.below(900) };
        let mut tx = match self.life.db.begin() {
            Ok(tx) => tx,
            Err(error) => return self.accept(&error, Call::Plain, None),
        };
        let mut rows = Vec::new();
        for number in first..(first + count).min(self.life.plan.key_count) {
            let key = numbered(number);
            let length = self.random.below(self.life.plan.value_bytes) as usize;
            let content = is_put.then(|| Content { length, seed: self.random.next() });
            let face = self.face;
            let done = match content {
                Some(content) => {
                    let value = content.bytes();
                    by_face!(face, tx.insert(&keyspace, &key, &value), tx.insert_async(&keyspace, &key, &value))
                }
                None => by_face!(face, tx.remove(&keyspace, &key), tx.remove_async(&keyspace, &key)),
            };
            match done {
                Ok(()) => rows.push((space, key, content)),
                Err(error @ Error::TransactionTooLarge { .. }) => {
                    self.accept(&error, Call::Transaction, Some(space))?;
                    break;
                }
                Err(error) => return self.accept(&error, Call::Transaction, Some(space)),
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let face = self.face;
        let commit = async move { by_face!(face, tx.commit(), tx.commit_async()) };
        self.commit(Deed::Rows(rows), true, Call::Transaction, Some(space), commit).await?;
        Ok(())
    }

    async fn transact(&mut self, count: u64) -> Result<(), Stop> {
        self.life.counts.add(Count::Transactions);
        let isolation = match self.random.below(100) {
            0..50 => Isolation::Snapshot,
            50..75 if self.life.plan.serializable => Isolation::Serializable,
            50..75 => Isolation::Snapshot,
            _ => Isolation::ReadCommitted,
        };
        let durability = self.durability();
        let lock_timeout = Duration::from_micros(100 << self.random.below(14));
        let answered = self.life.model.answered();
        let options = TxOptions { isolation, durability, lock_timeout };
        let mut tx = match self.life.db.begin_with(options) {
            Ok(tx) => tx,
            Err(error) => return self.accept(&error, Call::Plain, None),
        };
        let snapshot = tx.snapshot_timestamp().0;
        assert!(
            answered <= snapshot && snapshot <= self.life.model.last(),
            "a transaction began at {snapshot}; {answered} was answered, {} the last",
            self.life.model.last()
        );
        let mut own: BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>> = BTreeMap::new();
        let mut marks = Vec::new();
        let mut reads: Vec<(SpaceNumber, Bounds)> = Vec::new();
        let face = self.face;
        let mut spaces: BTreeMap<SpaceNumber, Keyspace> = BTreeMap::new();
        for _ in 0..count {
            let Some((keyspace, space)) = self.any_keyspace() else { continue };
            spaces.insert(space, keyspace.clone());
            let key = self.key(space);
            let done = match self.random.below(100) {
                0..55 => {
                    let content = self.some_content();
                    let streamed = content.is_some_and(|content| content.length > 2000) && self.random.chance(40);
                    let change = async {
                        match content {
                            None => by_face!(face, tx.remove(&keyspace, &key), tx.remove_async(&keyspace, &key)),
                            Some(content) if streamed => {
                                let reader = Slow::new(content);
                                by_face!(
                                    face,
                                    tx.insert_from(&keyspace, &key, reader),
                                    tx.insert_from_async(&keyspace, &key, reader)
                                )
                                .map(drop)
                            }
                            Some(content) => by_face!(
                                face,
                                tx.insert(&keyspace, &key, content.bytes()),
                                tx.insert_async(&keyspace, &key, content.bytes())
                            ),
                        }
                    };
                    match self.or_drop(change).await {
                        Some(Ok(())) => {
                            own.insert((space, key), content);
                            Ok(())
                        }
                        Some(error) => error,
                        // Nothing of it remains, and the transaction goes on.
                        None => Ok(()),
                    }
                }
                55..70 if self.life.plan.reads_all && self.random.chance(40) => {
                    let read = self.tx_read(&tx, &keyspace, space, &key, &own, isolation, snapshot).await;
                    if let Ok(bounds) = &read {
                        reads.push((space, bounds.clone()));
                    }
                    read.map(drop)
                }
                55..70 => {
                    let got = self.tx_get(&tx, &keyspace, space, &key, &own, isolation, snapshot).await;
                    if got.is_ok() {
                        reads.push((space, (Bound::Included(key.clone()), Bound::Included(key))));
                    }
                    got
                }
                70..80 => self.tx_lock(&mut tx, &keyspace, space, &key, &own, isolation, snapshot).await,
                80..88 => {
                    let read = self.tx_scan(&tx, &keyspace, space, &own, isolation, snapshot).await;
                    reads.extend(read.into_iter().map(|bounds| (space, bounds)));
                    Ok(())
                }
                88..94 => {
                    marks.push((tx.savepoint(), own.clone()));
                    Ok(())
                }
                _ => match marks.len() {
                    0 => Ok(()),
                    length => {
                        let index = self.random.below(length as u64) as usize;
                        let (mark, then) = marks[index].clone();
                        marks.truncate(index + 1);
                        tx.rollback_to(mark).map(|()| own = then)
                    }
                },
            };
            if let Err(error) = done {
                self.accept(&error, Call::Transaction, Some(space))?;
                if error.is_conflict() || matches!(error, Error::SnapshotTooOld { .. }) || self.random.chance(50) {
                    return Ok(());
                }
            }
            if self.random.chance(3) {
                let micros = self.random.below(2000);
                self.sleep(Duration::from_micros(micros)).await;
            }
        }
        if self.random.chance(12) {
            tx.abort();
            return Ok(());
        }
        let rows: Vec<_> = own.into_iter().map(|((space, key), content)| (space, key, content)).collect();
        let dropped = rows.iter().map(|row| row.0).find(|space| self.life.model.is_dropped(*space));
        let any = dropped.or(rows.first().map(|row| row.0));
        let is_empty = rows.is_empty();
        let deed = Deed::Rows(rows.clone());
        let model = self.life.model.clone();
        let is_full = durability == Durability::Full;
        let used: Vec<SpaceNumber> = spaces.into_keys().collect();
        let commit = async move {
            let result = by_face!(face, tx.commit(), tx.commit_async());
            // Which of them was dropped, if one was, is known by now.
            match result {
                Err(Error::KeyspaceDropped { name }) => {
                    assert!(used.iter().any(|space| model.is_dropped(*space)), "keyspace {name:?} was not dropped");
                    Err(Error::Conflict { reason: "a keyspace was dropped" })
                }
                other => other,
            }
        };
        let done = self.commit(deed, is_full, Call::Transaction, any, commit).await?;
        let Some((taken, answered)) = done else { return Ok(()) };
        if is_empty {
            assert_eq!(taken, 0, "a transaction without changes was given a timestamp");
            // What it read is what its caller may tell others.
            let durable = self.life.db.stats().durable.0;
            assert!(snapshot <= durable, "a transaction read commit {snapshot} and ended well; {durable} is durable");
            self.life.model.seen(snapshot);
            return Ok(());
        }
        if taken == 0 {
            // It removed what was not there.
            return Ok(());
        }
        assert_eq!(taken, answered.0, "a commit returned another timestamp than it was given");
        if isolation == Isolation::Serializable {
            for (space, bounds) in &reads {
                let between = self.life.model.change_within(*space, bounds, snapshot, taken);
                assert!(
                    between.is_none(),
                    "serializable commit {taken} with the snapshot {snapshot} read {bounds:?} of {:?}, where {between:?} changed a row",
                    self.life.model.name(*space)
                );
            }
        }
        if isolation != Isolation::ReadCommitted {
            for (space, key, _) in &rows {
                let between = self.life.model.change_between(*space, key, snapshot, taken);
                assert!(
                    between.is_none(),
                    "commit {taken} with the snapshot {snapshot} changed row {} of {:?}, and so did {between:?}",
                    key.escape_ascii(),
                    self.life.model.name(*space)
                );
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "what a transaction is made of")]
    async fn tx_get(
        &mut self,
        tx: &Transaction,
        keyspace: &Keyspace,
        space: SpaceNumber,
        key: &[u8],
        own: &BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>>,
        isolation: Isolation,
        snapshot: u64,
    ) -> Result<(), Error> {
        let window = self.life.model.window();
        let face = self.face;
        let found = async { by_face!(face, tx.get(keyspace, key), tx.get_async(keyspace, key)) };
        let Some(found) = self.or_drop(found).await else { return Ok(()) };
        let found = found?;
        self.life.counts.add(Count::Reads);
        match own.get(&(space, key.to_vec())) {
            Some(content) => self.check_value(space, key, snapshot, *content, found.as_deref(), "own write"),
            None if isolation != Isolation::ReadCommitted => {
                let wanted = self.life.model.at(space, key, snapshot);
                self.check_value(space, key, snapshot, wanted, found.as_deref(), "transaction");
            }
            None => {
                if let Err(flaw) = self.life.model.check_plain(window, space, key, found.as_deref()) {
                    panic!("read committed: {flaw}");
                }
            }
        }
        Ok(())
    }

    /// A value as a stream, or how many rows a range has. Returns what it read of.
    #[allow(clippy::too_many_arguments, reason = "what a transaction is made of")]
    async fn tx_read(
        &mut self,
        tx: &Transaction,
        keyspace: &Keyspace,
        space: SpaceNumber,
        key: &[u8],
        own: &BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>>,
        isolation: Isolation,
        snapshot: u64,
    ) -> Result<Bounds, Error> {
        let face = self.face;
        let nothing = (Bound::Included(key.to_vec()), Bound::Excluded(key.to_vec()));
        let exact = isolation != Isolation::ReadCommitted;
        if self.random.chance(50) {
            let bounds = self.bounds(space);
            let within = bounds.clone();
            let count = async { by_face!(face, tx.count(keyspace, within), tx.count_async(keyspace, within)) };
            let Some(count) = self.or_drop(count).await else { return Ok(nothing) };
            let count = count?;
            let mut rows = self.life.model.rows_at(space, snapshot);
            for ((_, key), content) in own.iter().filter(|((of, _), _)| *of == space) {
                match content {
                    Some(content) => drop(rows.insert(key.clone(), *content)),
                    None => drop(rows.remove(key)),
                }
            }
            let wanted = rows.range(bounds.clone()).count() as u64;
            let may = !exact || count == wanted || self.life.model.is_dropped(space);
            assert!(may, "a transaction counted {count} rows of {bounds:?} at {snapshot}, {wanted} are there");
            return Ok(bounds);
        }
        let read = async {
            match face {
                Face::Blocking => tx.read(keyspace, key).map(|reader| reader.map(Reader::Blocking)),
                Face::Tasks => tx.read_async(keyspace, key).await.map(|reader| reader.map(Reader::Task)),
            }
        };
        let Some(reader) = self.or_drop(read).await else { return Ok(nothing) };
        let reader = reader?;
        self.life.counts.add(Count::Reads);
        let wanted = match own.get(&(space, key.to_vec())) {
            Some(content) => *content,
            None => self.life.model.at(space, key, snapshot),
        };
        if let (Some(mut reader), true) = (reader, exact) {
            assert!(wanted.is_some() || self.life.model.is_dropped(space), "a transaction read a row that is absent");
            if let Some(wanted) = wanted {
                self.read_parts(&mut reader, space, &wanted.bytes()).await;
            }
        } else {
            let may = !exact || wanted.is_none() || self.life.model.is_dropped(space);
            assert!(may, "a transaction did not find row {} at {snapshot}", key.escape_ascii());
        }
        Ok((Bound::Included(key.to_vec()), Bound::Included(key.to_vec())))
    }

    #[allow(clippy::too_many_arguments, reason = "what a transaction is made of")]
    async fn tx_lock(
        &mut self,
        tx: &mut Transaction,
        keyspace: &Keyspace,
        space: SpaceNumber,
        key: &[u8],
        own: &BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>>,
        isolation: Isolation,
        snapshot: u64,
    ) -> Result<(), Error> {
        let face = self.face;
        let found = async { by_face!(face, tx.get_for_update(keyspace, key), tx.get_for_update_async(keyspace, key)) };
        let Some(found) = self.or_drop(found).await else { return Ok(()) };
        let found = found?;
        self.life.counts.add(Count::Reads);
        let wanted = match own.get(&(space, key.to_vec())) {
            Some(content) => *content,
            // With the row locked nobody changes it.
            None => self.life.model.newest(space, key),
        };
        let newest = self.life.model.newest_change(space, key);
        assert!(
            isolation == Isolation::ReadCommitted || newest <= snapshot || self.life.model.is_dropped(space),
            "get_for_update at snapshot {snapshot} of a row that {newest} changed"
        );
        self.check_value(space, key, snapshot, wanted, found.as_deref(), "get_for_update");
        Ok(())
    }

    async fn tx_scan(
        &mut self,
        tx: &Transaction,
        keyspace: &Keyspace,
        space: SpaceNumber,
        own: &BTreeMap<(SpaceNumber, Vec<u8>), Option<Content>>,
        isolation: Isolation,
        snapshot: u64,
    ) -> Vec<Bounds> {
        let bounds = self.bounds(space);
        let from = if isolation != Isolation::ReadCommitted { snapshot } else { self.life.model.answered() };
        let range = tx.range(keyspace, bounds.clone());
        let to = if isolation != Isolation::ReadCommitted { snapshot } else { self.life.model.last() };
        let own: BTreeMap<Vec<u8>, Option<Content>> = (own.iter())
            .filter(|((of, _), _)| *of == space)
            .map(|((_, key), content)| (key.clone(), *content))
            .collect();
        self.scan(range, space, &bounds, from, to, &own, "transaction").await
    }

    async fn create(&mut self) -> Result<(), Stop> {
        let name = PASSING[self.random.below(3) as usize];
        let page_bytes = 512 << self.random.below(4);
        let db = self.life.db.clone();
        let options = KeyspaceOptions::new().page_bytes(page_bytes);
        // It may be there already: then no timestamp is taken.
        let model = self.life.model.clone();
        let create = move || {
            let taken = Arc::new(AtomicU64::new(0));
            let told = Arc::clone(&taken);
            sim::on_timestamp(Some(Box::new(move |timestamp| {
                told.store(timestamp.0, Ordering::Relaxed);
                model.enter(timestamp.0, Deed::Create(name.to_owned()));
            })));
            let result = db.keyspace_with(name, options);
            sim::on_timestamp(None);
            (taken.load(Ordering::Relaxed), result)
        };
        let (taken, result) = self.elsewhere(create).await;
        self.settle(taken, result, true, Call::Plain, None)?;
        Ok(())
    }

    async fn drop_keyspace(&mut self) -> Result<(), Stop> {
        let name = PASSING[self.random.below(3) as usize];
        let Some(space) = self.life.model.space(name) else { return Ok(()) };
        let db = self.life.db.clone();
        let model = self.life.model.clone();
        // Between the look and the drop another may have dropped it, and one more created it anew: which one is dropped is
        // known when the timestamp is taken.
        let drop = move || {
            let taken = Arc::new(AtomicU64::new(0));
            let told = Arc::clone(&taken);
            sim::on_timestamp(Some(Box::new(move |timestamp| {
                told.store(timestamp.0, Ordering::Relaxed);
                let space = model.space(name).expect("what is dropped is there");
                model.enter(timestamp.0, Deed::Drop(space));
            })));
            let result = db.drop_keyspace(name);
            sim::on_timestamp(None);
            (taken.load(Ordering::Relaxed), result)
        };
        let (taken, result) = self.elsewhere(drop).await;
        match result {
            Ok(()) => {
                assert!(taken > 0, "a keyspace was dropped without a commit");
                self.life.model.answer(taken, true);
                Ok(())
            }
            Err(Error::NoSuchKeyspace { .. }) => Ok(()),
            Err(error) => {
                assert!(taken == 0 || matches!(error, Error::OutcomeUnknown { .. }), "drop {taken} failed: {error}");
                self.accept(&error, Call::Plain, Some(space))
            }
        }
    }

    // ── reads ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async fn plain_reads(&mut self) -> Result<(), Stop> {
        if self.random.chance(15) {
            return self.plain_look().await;
        }
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let window = self.life.model.window();
        let count = if self.random.chance(40) { 2 + self.random.below(30) } else { 1 };
        let keys: Vec<Vec<u8>> = (0..count).map(|_| self.key(space)).collect();
        let face = self.face;
        let get = async {
            if count == 1 {
                let found = by_face!(face, keyspace.get(&keys[0]), keyspace.get_async(&keys[0]));
                found.map(|found| vec![found])
            } else {
                by_face!(face, keyspace.get_many(&keys), keyspace.get_many_async(&keys))
            }
        };
        let Some(found) = self.or_drop(get).await else { return Ok(()) };
        match found {
            Ok(found) => {
                assert_eq!(found.len(), keys.len());
                for (key, value) in keys.iter().zip(found) {
                    self.life.counts.add(Count::Reads);
                    self.check_plain(window, space, key, value.as_ref());
                }
                Ok(())
            }
            Err(error) => self.accept(&error, Call::Plain, Some(space)),
        }
    }

    /// Whether a row is there.
    async fn plain_look(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let window = self.life.model.window();
        let key = self.key(space);
        let face = self.face;
        let look = async { by_face!(face, keyspace.contains_key(&key), keyspace.contains_key_async(&key)) };
        match self.or_drop(look).await {
            None => {}
            Some(Ok(is_there)) => {
                self.life.counts.add(Count::Reads);
                let may = self.life.model.was(window, space, &key, is_there) || self.life.model.is_dropped(space);
                assert!(may, "contains_key says {is_there} of row {}, which it was not", key.escape_ascii());
            }
            Some(Err(error)) => self.accept(&error, Call::Plain, Some(space))?,
        }
        Ok(())
    }

    /// How many rows a range has.
    async fn plain_count(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let bounds = self.bounds(space);
        let (from, within) = (self.life.model.answered(), bounds.clone());
        let face = self.face;
        let count = async { by_face!(face, keyspace.count(within), keyspace.count_async(within)) };
        match self.or_drop(count).await {
            None => {}
            Some(Ok(count)) => {
                let mut moments = self.life.model.changes_above(space, from);
                moments.insert(from);
                let counted = |moment| self.life.model.rows_at(space, moment).range(bounds.clone()).count() as u64;
                let may =
                    moments.into_iter().any(|moment| counted(moment) == count) || self.life.model.is_dropped(space);
                assert!(may, "{count} rows of {bounds:?} counted, as many as there never were since commit {from}");
            }
            Some(Err(error)) => self.accept(&error, Call::Snapshot, Some(space))?,
        }
        Ok(())
    }

    fn check_plain(&self, window: crate::model::Window, space: SpaceNumber, key: &[u8], found: Option<&Value>) {
        match self.life.model.check_plain(window, space, key, found.map(|value| &value[..])) {
            Ok(timestamp) => self.saw(timestamp),
            // What is read of a keyspace as it is being dropped is its last state, or nothing.
            Err(_) if self.life.model.is_dropped(space) => {}
            Err(flaw) => panic!("plain read: {flaw}"),
        }
    }

    fn bounds(&mut self, space: SpaceNumber) -> Bounds {
        let bound = |random: &mut Random, key: Vec<u8>| match random.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        };
        let (one, other) = (self.key(space), self.key(space));
        let (low, high) = if one <= other { (one, other) } else { (other, one) };
        let lower = bound(&mut self.random, low);
        let upper = bound(&mut self.random, high);
        match (&lower, &upper) {
            (Bound::Excluded(one), Bound::Excluded(other)) if one == other => (lower, Bound::Unbounded),
            _ => (lower, upper),
        }
    }

    async fn plain_scan(&mut self) -> Result<(), Stop> {
        if self.random.chance(15) {
            return self.plain_count().await;
        }
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let prefix = self.random.chance(15).then(|| self.key(space)[..3].to_vec());
        let bounds = match &prefix {
            Some(prefix) => (Bound::Included(prefix.clone()), Bound::Excluded(after(prefix))),
            None => self.bounds(space),
        };
        let from = self.life.model.answered();
        let range = prefix.map_or_else(|| keyspace.range(bounds.clone()), |prefix| keyspace.prefix(prefix));
        let to = self.life.model.last();
        self.scan(range, space, &bounds, from, to, &BTreeMap::new(), "plain").await;
        Ok(())
    }

    /// Reads a range from both ends and compares it with the model at the moments from `from` to `to`. Returns what of it
    /// was read.
    #[allow(clippy::too_many_arguments, reason = "what a scan is made of")]
    async fn scan(
        &mut self,
        mut range: drumlin::Range,
        space: SpaceNumber,
        bounds: &Bounds,
        from: u64,
        to: u64,
        own: &BTreeMap<Vec<u8>, Option<Content>>,
        how: &str,
    ) -> Vec<Bounds> {
        self.life.counts.add(Count::Scans);
        let mut front: Vec<(Value, Value)> = Vec::new();
        let mut back: Vec<(Value, Value)> = Vec::new();
        let style = self.random.below(3);
        let limit = if self.random.chance(50) { usize::MAX } else { self.random.below(40) as usize };
        let mut is_whole = true;
        let face = self.face;
        loop {
            if front.len() + back.len() >= limit {
                is_whole = false;
                break;
            }
            let forward = match style {
                0 => true,
                1 => false,
                _ => self.random.chance(50),
            };
            let next = async {
                if forward {
                    by_face!(face, range.next(), range.next_async())
                } else {
                    by_face!(face, range.next_back(), range.next_back_async())
                }
            };
            // Dropped, it has taken no row away.
            let Some(row) = self.or_drop(next).await else { continue };
            match row {
                None => break,
                Some(Ok(row)) if forward => front.push(row),
                Some(Ok(row)) => back.push(row),
                Some(Err(error)) => {
                    // What came before it must be right all the same.
                    if self.accept(&error, Call::Snapshot, Some(space)).is_err() {
                        return Vec::new();
                    }
                    is_whole = false;
                    break;
                }
            }
        }
        drop(range);
        let mut moments = vec![from];
        if to > from {
            moments.extend(self.life.model.changes_above(space, from).into_iter().filter(|moment| *moment <= to));
        }
        let mut flaw = String::new();
        for &moment in &moments {
            match self.compare(space, bounds, moment, own, &front, &back, is_whole) {
                Ok(()) => {
                    if how == "plain" && moments.len() == 1 {
                        self.saw(moment);
                    }
                    return covered(bounds, &front, &back, is_whole);
                }
                Err(other) => flaw = other,
            }
        }
        if self.life.model.is_dropped(space) {
            return Vec::new();
        }
        panic!("{how} scan of {bounds:?} between commits {from} and {to}: {flaw}");
    }

    #[allow(clippy::too_many_arguments, reason = "what a scan is made of")]
    fn compare(
        &self,
        space: SpaceNumber,
        bounds: &Bounds,
        moment: u64,
        own: &BTreeMap<Vec<u8>, Option<Content>>,
        front: &[(Value, Value)],
        back: &[(Value, Value)],
        is_whole: bool,
    ) -> Result<(), String> {
        let mut rows = self.life.model.rows_at(space, moment);
        for (key, content) in own {
            match content {
                Some(content) => drop(rows.insert(key.clone(), *content)),
                None => drop(rows.remove(key)),
            }
        }
        let mut wanted = rows.range(bounds.clone());
        for (key, value) in front {
            compare_row(wanted.next(), key, value)?;
        }
        for (key, value) in back {
            compare_row(wanted.next_back(), key, value)?;
        }
        match wanted.next() {
            Some((key, _)) if is_whole => Err(format!("row {} is missing", key.escape_ascii())),
            _ => Ok(()),
        }
    }

    async fn snapshot_reads(&mut self) -> Result<(), Stop> {
        let keeps = self.life.plan.keeps_snapshots;
        let snapshot = match self.snapshot.take() {
            Some(snapshot) if self.random.chance(if keeps { 100 } else { 80 }) => snapshot,
            _ => {
                self.life.counts.add(Count::Snapshots);
                let answered = self.life.model.answered();
                let snapshot = self.life.db.snapshot();
                let at = snapshot.timestamp().0;
                assert!(
                    answered <= at && at <= self.life.model.last(),
                    "a snapshot was taken at {at}; {answered} was answered, {} the last",
                    self.life.model.last()
                );
                self.saw(at);
                snapshot
            }
        };
        let at = snapshot.timestamp().0;
        let face = self.face;
        for _ in 0..1 + self.random.below(6) {
            let Some((keyspace, space)) = self.any_keyspace() else { continue };
            if self.life.plan.reads_all && self.random.chance(15) {
                let key = self.key(space);
                let look = async {
                    by_face!(face, snapshot.contains_key(&keyspace, &key), snapshot.contains_key_async(&keyspace, &key))
                };
                let Some(found) = self.or_drop(look).await else { continue };
                match found {
                    Ok(is_there) => {
                        let wanted = self.life.model.at(space, &key, at).is_some();
                        let may = is_there == wanted || self.life.model.is_dropped(space);
                        assert!(may, "contains_key says {is_there} of row {} at {at}", key.escape_ascii());
                    }
                    Err(error) => self.accept(&error, Call::Snapshot, Some(space))?,
                }
            } else if self.random.chance(50) {
                let key = self.key(space);
                let get = async { by_face!(face, snapshot.get(&keyspace, &key), snapshot.get_async(&keyspace, &key)) };
                let Some(found) = self.or_drop(get).await else { continue };
                match found {
                    Ok(found) => {
                        self.life.counts.add(Count::Reads);
                        if !self.life.model.is_dropped(space) {
                            let wanted = self.life.model.at(space, &key, at);
                            self.check_value(space, &key, at, wanted, found.as_deref(), "snapshot");
                        }
                    }
                    Err(error @ Error::SnapshotTooOld { .. }) => return self.accept(&error, Call::Snapshot, None),
                    Err(error) => self.accept(&error, Call::Snapshot, Some(space))?,
                }
            } else if self.random.chance(25) {
                let bounds = self.bounds(space);
                let within = bounds.clone();
                let count = async {
                    by_face!(face, snapshot.count(&keyspace, within), snapshot.count_async(&keyspace, within))
                };
                let Some(count) = self.or_drop(count).await else { continue };
                match count {
                    Ok(count) => {
                        let wanted = self.life.model.rows_at(space, at).range(bounds).count() as u64;
                        let is_right = count == wanted || self.life.model.is_dropped(space);
                        assert!(is_right, "{count} rows counted at {at}, {wanted} are there");
                    }
                    Err(error) => self.accept(&error, Call::Snapshot, Some(space))?,
                }
            } else {
                let bounds = self.bounds(space);
                let range = snapshot.range(&keyspace, bounds.clone());
                self.scan(range, space, &bounds, at, at, &BTreeMap::new(), "snapshot").await;
            }
        }
        if self.random.chance(if keeps { 100 } else { 70 }) {
            self.snapshot = Some(snapshot);
        }
        Ok(())
    }

    /// A value as a stream, here and there.
    async fn stream(&mut self) -> Result<(), Stop> {
        if self.life.plan.reads_all && self.random.chance(50) {
            return self.plain_stream().await;
        }
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let snapshot = self.life.db.snapshot();
        let at = snapshot.timestamp().0;
        self.saw(at);
        let key = self.key(space);
        let face = self.face;
        let open = async {
            match face {
                Face::Blocking => snapshot.read(&keyspace, &key).map(|reader| reader.map(Reader::Blocking)),
                Face::Tasks => snapshot.read_async(&keyspace, &key).await.map(|reader| reader.map(Reader::Task)),
            }
        };
        let Some(reader) = self.or_drop(open).await else { return Ok(()) };
        let reader = match reader {
            Ok(reader) => reader,
            Err(error) => return self.accept(&error, Call::Snapshot, Some(space)),
        };
        let wanted = self.life.model.at(space, &key, at);
        if self.life.model.is_dropped(space) {
            return Ok(());
        }
        let Some(mut reader) = reader else {
            assert!(wanted.is_none(), "stream: row {} at {at} is absent", key.escape_ascii());
            return Ok(());
        };
        let wanted = wanted.unwrap_or_else(|| panic!("stream: row {} at {at} is there", key.escape_ascii())).bytes();
        self.read_parts(&mut reader, space, &wanted).await;
        Ok(())
    }

    /// Reads a value here and there.
    async fn read_parts(&mut self, reader: &mut Reader, space: SpaceNumber, wanted: &[u8]) {
        assert_eq!(reader.len(), wanted.len() as u64, "stream: a value's length");
        for _ in 0..4 {
            let from = self.random.below(wanted.len() as u64 + 1) as usize;
            let mut part = vec![0; self.random.below(10_000).min((wanted.len() - from) as u64) as usize];
            let Some(read) = self.or_drop(reader.read_part(from as u64, &mut part)).await else { continue };
            match read {
                Ok(()) => assert!(part == wanted[from..from + part.len()], "stream: bytes from {from}"),
                Err(error) => {
                    let dropped = self.life.model.is_dropped(space);
                    let may = dropped || self.may_fail() || error.to_string().contains("too old");
                    assert!(may, "stream: {error}");
                    return;
                }
            }
        }
    }

    /// A row's newest value as a stream, whole.
    async fn plain_stream(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let window = self.life.model.window();
        let key = self.key(space);
        let face = self.face;
        let read = async {
            let reader = match face {
                Face::Blocking => keyspace.read(&key).map(|reader| reader.map(Reader::Blocking)),
                Face::Tasks => keyspace.read_async(&key).await.map(|reader| reader.map(Reader::Task)),
            };
            match reader {
                Ok(Some(mut reader)) => {
                    let mut bytes = vec![0; reader.len() as usize];
                    Ok(reader.read_part(0, &mut bytes).await.map(|()| Some(bytes)))
                }
                Ok(None) => Ok(Ok(None)),
                Err(error) => Err(error),
            }
        };
        match self.or_drop(read).await {
            None => Ok(()),
            Some(Ok(Ok(found))) => {
                self.life.counts.add(Count::Reads);
                match self.life.model.check_plain(window, space, &key, found.as_deref()) {
                    Ok(timestamp) => self.saw(timestamp),
                    Err(_) if self.life.model.is_dropped(space) => {}
                    Err(flaw) => panic!("plain stream: {flaw}"),
                }
                Ok(())
            }
            Some(Ok(Err(error))) => {
                let dropped = self.life.model.is_dropped(space);
                let may = dropped || self.may_fail() || error.to_string().contains("too old");
                assert!(may, "plain stream: {error}");
                Ok(())
            }
            Some(Err(error)) => self.accept(&error, Call::Snapshot, Some(space)),
        }
    }

    // ── upkeep ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async fn upkeep(&mut self) -> Result<(), Stop> {
        let (face, db) = (self.face, self.life.db.clone());
        let done = match self.random.below(10) {
            0..6 => {
                self.life.counts.add(Count::Checkpoints);
                let checkpoint = async { by_face!(face, db.checkpoint(), db.checkpoint_async()) };
                self.or_drop(checkpoint).await.map_or(Ok(()), |done| done.map(drop))
            }
            6..8 => {
                let compact = async { by_face!(face, db.compact(), db.compact_async()) };
                self.or_drop(compact).await.map_or(Ok(()), |done| done.map(drop))
            }
            8 => {
                drop(db.stats());
                Ok(())
            }
            _ => match by_face!(face, db.check(), db.check_async()) {
                Ok(report) => {
                    let is_clean = report.damage.is_empty() || self.may_fail();
                    assert!(is_clean, "check found damage: {:?}", report.damage);
                    Ok(())
                }
                Err(error) => Err(error),
            },
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) => self.accept(&error, Call::Plain, None),
        }
    }
}

fn compare_row(wanted: Option<(&Vec<u8>, &Content)>, key: &Value, value: &Value) -> Result<(), String> {
    match wanted {
        None => Err(format!("row {} is too much", key.escape_ascii())),
        Some((wanted, _)) if wanted[..] != key[..] => {
            Err(format!("row {} comes where {} should", key.escape_ascii(), wanted.escape_ascii()))
        }
        Some((_, content)) if !content.is(value) => {
            Err(format!("row {} is {}, should be {content:?}", key.escape_ascii(), tell(value)))
        }
        Some(_) => Ok(()),
    }
}

/// The key of a row of the keyspace with few.
fn hot(number: u64) -> Vec<u8> {
    format!("{number:05}").into_bytes()
}

/// The first key that does not begin with this one.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut after = prefix.to_vec();
    *after.last_mut().expect("a key of digits") += 1;
    after
}

/// The key of a number; some are long.
fn numbered(number: u64) -> Vec<u8> {
    let mut key = format!("{number:05}").into_bytes();
    if key[4] % 10 == 3 {
        key.extend([b'k'; 100]);
    }
    key
}

/// What of a scan's bounds was read.
fn covered(bounds: &Bounds, front: &[(Value, Value)], back: &[(Value, Value)], is_whole: bool) -> Vec<Bounds> {
    if is_whole {
        return vec![bounds.clone()];
    }
    let end = |rows: &[(Value, Value)]| rows.last().map(|(key, _)| Bound::Included(key.to_vec()));
    let from_front = end(front).map(|last| (bounds.0.clone(), last));
    let from_back = end(back).map(|last| (last, bounds.1.clone()));
    from_front.into_iter().chain(from_back).collect()
}

/// A value as a stream, by either face.
enum Reader {
    Blocking(ValueReader),
    Task(AsyncValueReader),
}

impl Reader {
    fn len(&self) -> u64 {
        match self {
            Reader::Blocking(reader) => reader.len(),
            Reader::Task(reader) => reader.len(),
        }
    }

    /// Fills the buffer with what begins at `from`.
    async fn read_part(&mut self, from: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        match self {
            Reader::Blocking(reader) => reader.seek(SeekFrom::Start(from)).and_then(|_| reader.read_exact(buffer)),
            Reader::Task(reader) => {
                poll_fn(|context| Pin::new(&mut *reader).poll_seek(context, SeekFrom::Start(from))).await?;
                let mut rest = buffer;
                while !rest.is_empty() {
                    let count = poll_fn(|context| Pin::new(&mut *reader).poll_read(context, rest)).await?;
                    if count == 0 {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                    rest = &mut rest[count..];
                }
                Ok(())
            }
        }
    }
}

/// A reader that gives a little at a time, and may fail.
struct Slow {
    bytes: Vec<u8>,
    position: usize,
    fails_at: Option<usize>,
    /// A task has been asked to come again.
    has_waited: bool,
}

impl Slow {
    fn new(content: Content) -> Slow {
        Slow { bytes: content.bytes(), position: 0, fails_at: None, has_waited: false }
    }
}

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.fails_at.is_some_and(|at| self.position >= at) {
            return Err(std::io::Error::other("the source ran dry"));
        }
        let count = buffer.len().min(self.bytes.len() - self.position).min(7000);
        buffer[..count].copy_from_slice(&self.bytes[self.position..self.position + count]);
        self.position += count;
        Ok(count)
    }
}

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        self.has_waited = !self.has_waited;
        if self.has_waited {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.read(buffer))
    }
}

#[cfg(test)]
mod tests {
    use drumlin::io::sim::Medium;

    use super::*;
    use crate::world::Trouble;

    /// What becomes of a client of a new database in a world without trouble.
    fn with_client(body: impl FnOnce(&mut Client, Keyspace, SpaceNumber) + Send + 'static) -> Result<(), String> {
        let plan = Plan { trouble: Trouble::None, relaxed_percent: 0, ..Plan::of(1) };
        let outcome = sim::run(plan.schedule, move || {
            let disk = Disk::new(Medium::default(), 1);
            let db = plan.config(&disk).open("/db").expect("a new database");
            let model = Model::default();
            let told = model.clone();
            sim::on_timestamp(Some(Box::new(move |timestamp| told.enter(timestamp.0, Deed::Create(HOT.to_owned())))));
            let keyspace = db.keyspace(HOT).expect("a new keyspace");
            model.answer(model.last(), true);
            let space = model.space(HOT).expect("just made");
            let life = Arc::new(Life {
                db,
                disk,
                model,
                plan,
                counts: Counts::default(),
                was_damaged: false,
                has_put: AtomicBool::default(),
            });
            let mut client =
                Client { life, random: Random(1), face: Face::Blocking, timer: Timer::default(), snapshot: None };
            body(&mut client, keyspace, space);
        });
        outcome.result
    }

    /// A future of a client that blocks is ready at once.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it waited as a task does"),
        }
    }

    /// An answer without a commit behind it is noticed where rows were to be put.
    #[test]
    fn a_commit_that_is_acknowledged_and_never_made_is_noticed() {
        let commit = |content: Option<Content>| {
            with_client(move |client, _, space| {
                let deed = Deed::Rows(vec![(space, b"key".to_vec(), content)]);
                let _ = now(client.commit(deed, true, Call::Change, Some(space), async { Ok(()) }));
            })
        };
        assert_eq!(commit(None), Ok(()), "nothing was there to remove");
        let found = commit(Some(Content { length: 3, seed: 1 })).expect_err("a lost commit");
        assert!(found.contains("acknowledged and never made"), "{found}");
    }

    /// An error that no such call ends in, or whose cause has not been, is noticed.
    #[test]
    fn an_error_that_can_not_be_is_noticed() {
        type Make = fn() -> Error;
        let conflict: Make = || Error::Conflict { reason: "" };
        let failed: Make = || Error::Failed { reason: "".into() };
        let too_old: Make = || Error::SnapshotTooOld { timestamp: drumlin::Timestamp(1) };
        let accepts = |error: Make, call| {
            with_client(move |client, _, _| {
                let _ = client.accept(&error(), call, None);
            })
            .is_ok()
        };
        assert!(accepts(conflict, Call::Change) && accepts(conflict, Call::Transaction));
        assert!(!accepts(conflict, Call::Plain) && !accepts(conflict, Call::Snapshot));
        assert!(accepts(too_old, Call::Snapshot) && accepts(too_old, Call::Transaction));
        assert!(!accepts(too_old, Call::Change) && !accepts(too_old, Call::Plain));
        assert!(!accepts(failed, Call::Change) && !accepts(failed, Call::Transaction));
    }

    /// A row that stays locked, or a keyspace that is gone, is noticed.
    #[test]
    fn a_row_that_stays_locked_is_noticed() {
        let outcome = with_client(|client, keyspace, _| {
            let db = client.life.db.clone();
            lock_hot_rows(&db).expect("nobody has them");
            let mut tx = db.begin().expect("a transaction");
            tx.get_for_update(&keyspace, hot(7)).expect("a lock");
            assert!(matches!(lock_hot_rows(&db), Err(Error::Conflict { .. })));
            drop(tx);
            lock_hot_rows(&db).expect("nobody has them any more");
            assert!(client.open(HOT).is_some());
            db.drop_keyspace(HOT).expect("a drop that the model is not told of");
            client.open(HOT);
        });
        let found = outcome.expect_err("the keyspace is gone");
        assert!(found.contains("is gone"), "{found}");
    }
}
