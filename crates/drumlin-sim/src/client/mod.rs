//! A client: what it asks of the database, drawn from its seed, and what it makes of the answers.
//!
//! A client blocks its thread, or is a task that shares a thread with others and uses the asynchronous calls; the
//! latter drops some futures at one of their waits. What is checked is the same for both.
//!
//! A wrong answer is a panic, which ends the simulation and is its report.

pub(crate) mod aggregates;
mod answers;
mod changes;
mod commits;
mod reads;
mod scans;
mod streams;
#[cfg(test)]
mod tests;
mod transaction;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use drumlin::internals::io::sim::{self, Disk, Random};
use drumlin::{Database, Durability, Error, Isolation, Keyspace, Snapshot, TxOptions};

use self::answers::Call;
pub use self::commits::recorded;
use crate::model::{Content, Model, SpaceNumber};
use crate::plan::Plan;
use crate::tasks::{self, Timer, or_drop};

/// Keyspaces that are always there, and those that come and go.
pub const DURABLE: [(&str, usize); 4] = [("rows", 512), ("more", 2048), (HOT, 1024), (QUEUE, 512)];
pub const PASSING: [&str; 3] = ["passing a", "passing b", "passing c"];

/// Few rows, so that clients meet.
const HOT: &str = "hot";
const HOT_ROWS: u64 = 12;

/// Changed by one client at a time.
const QUEUE: &str = "queue";

/// The state that all clients of a run share.
#[derive(Debug)]
pub struct Lifetime {
    pub db: Database,
    pub disk: Disk,
    pub model: Model,
    pub plan: Plan,
    pub counts: Counts,
    /// The disk held other bytes than were written before this life began.
    pub was_damaged: bool,
    /// A row was put in this life: space was set aside for removing.
    pub has_put: AtomicBool,
    /// A client changes the queue.
    pub queue_is_busy: AtomicBool,
}

/// The operations done, over all runs.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<[AtomicU64; COUNTS]>);

const COUNTS: usize = Count::DroppedLate as usize + 1;

/// A kind of operation that is counted.
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
    /// Calls that were refused because others have the memory that is for them.
    MemoryInUse,
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

/// The face by which a client calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Face {
    Blocking,
    Tasks,
}

/// The call by a client's own face.
macro_rules! by_face {
    ($face:expr, $blocking:expr, $task:expr) => {
        match $face {
            $crate::client::Face::Blocking => $blocking,
            $crate::client::Face::Tasks => $task.await,
        }
    };
}
use by_face;

struct Client {
    life: Arc<Lifetime>,
    random: Random,
    face: Face,
    timer: Timer,
    /// Taken a while ago.
    snapshot: Option<Snapshot>,
}

/// A client that blocks its thread: so many steps, or until the database accepts no more.
pub fn run(life: Arc<Lifetime>, seed: u64, steps: u64) {
    let client = Client { life, random: Random(seed), face: Face::Blocking, timer: Timer::default(), snapshot: None };
    let life = pin!(client.live(steps)).poll(&mut Context::from_waker(Waker::noop()));
    assert!(life.is_ready(), "a client that blocks waited as a task does");
}

/// Clients that share a thread, each a task.
pub fn run_tasks(life: &Arc<Lifetime>, mut random: Random, count: u64, steps: u64) {
    let timer = Timer::default();
    let mut client = || {
        let (life, random, timer) = (Arc::clone(life), Random(random.next()), timer.clone());
        Client { life, random, face: Face::Tasks, timer, snapshot: None }
    };
    let clients: Vec<Client> = (0..count).map(|_| client()).collect();
    let tasks = clients.into_iter().map(|client| Box::pin(client.live(steps)) as tasks::Task).collect();
    tasks::run(tasks, &timer, random);
}

/// Checks, after all clients have ended, that no row is locked of the keyspace that they contended for.
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
            0..220 => self.autocommit().await,
            220..310 => self.conditional().await,
            310..330 => self.batch().await,
            330..350 => self.queue().await,
            350..600 => self.transaction().await,
            600..680 => self.plain_reads().await,
            680..760 => self.plain_scan().await,
            760..860 => self.snapshot_reads().await,
            860..880 => self.stream().await,
            880..900 => self.create().await,
            900..912 => self.drop_keyspace().await,
            912..934 => self.large_transaction().await,
            934..940 => self.bulk_load().await,
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
        let is_durable = DURABLE.iter().any(|(acknowledged, _)| *acknowledged == name);
        assert!(opened.is_ok() || !is_durable, "keyspace {name:?} is gone: {opened:?}");
        let keyspace = opened.ok()?;
        (self.life.model.space(name) == Some(before)).then_some((keyspace, before))
    }

    fn any_keyspace(&mut self) -> Option<(Keyspace, SpaceNumber)> {
        let name = match self.random.below(100) {
            0..40 => DURABLE[0].0,
            40..65 => DURABLE[1].0,
            65..88 => DURABLE[2].0,
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
                    let is_clean = report.corruption.is_empty() || self.may_fail();
                    assert!(is_clean, "check found damage: {:?}", report.corruption);
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

/// The key of a row of the keyspace with few.
fn hot(number: u64) -> Vec<u8> {
    format!("{number:05}").into_bytes()
}

/// The key of a number; some are long.
#[must_use]
pub fn numbered(number: u64) -> Vec<u8> {
    let mut key = format!("{number:05}").into_bytes();
    if key[4] % 10 == 3 {
        key.extend([b'k'; 100]);
    }
    key
}
