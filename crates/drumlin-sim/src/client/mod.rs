//! A client draws operations from its seed, runs them on the database, and checks the results.
//!
//! A client either blocks its thread, or is a task that shares a thread with others and uses the asynchronous calls. A
//! task drops some of its futures while they wait. The checks are the same for blocking clients and tasks.
//!
//! A wrong result causes a panic, which ends the simulation; the panic message is the report.

pub(crate) mod aggregates;
mod answers;
mod changes;
mod commits;
mod drops;
pub(crate) mod kept;
mod reads;
mod scans;
mod spills;
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

use drumlin::{Database, Durability, Error, Isolation, KeptSnapshot, Keyspace, LockHolder, Snapshot, TxOptions};
use drumlin_io::testing::sim::{self, Disk, Random};

use self::answers::Call;
pub use self::commits::{altering, recorded};
pub use self::kept::Backups;
use crate::model::{Content, Model, SpaceNumber};
use crate::plan::Plan;
use crate::tasks::{self, Timer, or_drop};

/// The keyspaces that always exist, with their page sizes, and then the keyspaces that are created and dropped.
pub const DURABLE: [(&str, usize); 4] = [("rows", 512), ("more", 2048), (HOT, 1024), (QUEUE, 512)];
pub const PASSING: [&str; 3] = ["passing a", "passing b", "passing c"];

/// A keyspace with so few rows that clients contend for them.
const HOT: &str = "hot";
const HOT_ROWS: u64 = 12;

/// A keyspace that only one client at a time changes.
const QUEUE: &str = "queue";

/// The state shared by all clients of a session.
#[derive(Debug)]
pub struct Session {
    pub db: Database,
    pub disk: Disk,
    pub model: Model,
    pub plan: Plan,
    pub counts: Counts,
    pub backups: Backups,
    /// `true` if the disk was damaged before this session began.
    pub was_damaged: bool,
    /// `true` if a row was put in this session, which makes the engine reserve space for removals.
    pub has_put: AtomicBool,
    /// `true` while a client is changing the queue.
    pub queue_is_busy: AtomicBool,
}

/// Counts of operations over all sessions.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<[AtomicU64; COUNTS]>);

const COUNTS: usize = Count::DroppedLate as usize + 1;

/// The kinds of operations that are counted.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    Reads,
    Scans,
    Transactions,
    Conflicts,
    /// Operations that were refused for lack of space. The second count contains only removals after a row had been
    /// put.
    Refused,
    RefusedRemovals,
    Snapshots,
    SnapshotsTooOld,
    /// Calls that were refused because other operations hold the memory that they need.
    MemoryInUse,
    Checkpoints,
    Kept,
    /// Backups that were restored.
    Backups,
    Clones,
    /// Futures that were dropped before they were ready. The second count contains only those whose commits are valid
    /// nevertheless.
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

/// Tells the client to end its session early.
#[derive(Clone, Copy, Debug)]
pub struct Stop;

/// The API through which a client calls the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Api {
    Blocking,
    Tasks,
}

/// Makes the call through the client's API.
macro_rules! by_api {
    ($api:expr, $blocking:expr, $task:expr) => {
        match $api {
            $crate::client::Api::Blocking => $blocking,
            $crate::client::Api::Tasks => $task.await,
        }
    };
}
use by_api;

struct Client {
    session: Arc<Session>,
    random: Random,
    api: Api,
    timer: Timer,
    /// A snapshot that was kept from an earlier step.
    snapshot: Option<Snapshot>,
    /// A kept snapshot that an earlier step left open.
    kept: Option<KeptSnapshot>,
}

/// Runs a client that blocks its thread, for `steps` steps or until the database accepts no further operations.
pub fn run(session: Arc<Session>, seed: u64, steps: u64) {
    let client = Client {
        session,
        random: Random(seed),
        api: Api::Blocking,
        timer: Timer::default(),
        snapshot: None,
        kept: None,
    };
    let session = pin!(client.live(steps)).poll(&mut Context::from_waker(Waker::noop()));
    assert!(session.is_ready(), "a blocking client waited like a task");
}

/// Runs `count` clients as tasks on one thread.
pub fn run_tasks(session: &Arc<Session>, mut random: Random, count: u64, steps: u64) {
    let timer = Timer::default();
    let mut client = || {
        let (session, random, timer) = (Arc::clone(session), Random(random.next()), timer.clone());
        Client { session, random, api: Api::Tasks, timer, snapshot: None, kept: None }
    };
    let clients: Vec<Client> = (0..count).map(|_| client()).collect();
    let tasks = clients.into_iter().map(|client| Box::pin(client.live(steps)) as tasks::Task).collect();
    tasks::run(tasks, &timer, random);
}

/// Checks that no row of the contended keyspace is still locked after all clients have ended, except by transactions
/// that are prepared.
///
/// # Errors
/// If a row can't be locked.
pub fn lock_hot_rows(db: &Database, model: &Model) -> Result<(), Error> {
    let keyspace = db.existing_keyspace(HOT)?;
    let lock_timeout = Duration::from_secs(1);
    let options = TxOptions { isolation: Isolation::ReadCommitted, lock_timeout, ..TxOptions::default() };
    let mut tx = db.begin_with(options)?;
    let may_be_locked = !model.prepared().is_empty();
    for number in 0..HOT_ROWS {
        match tx.get_for_update(&keyspace, hot(number)) {
            // It may have locked rows that it does not change.
            Err(Error::LockTimeout { holder: LockHolder::Prepared, .. }) if may_be_locked => {}
            locked => drop(locked?),
        }
    }
    Ok(())
}

impl Client {
    async fn live(mut self, steps: u64) {
        for _ in 0..steps {
            if self.step().await.is_err() || self.session.disk.is_off() {
                break;
            }
            let think_nanos = self.session.plan.think_nanos;
            if think_nanos > 0 {
                let nanos = self.random.below(2 * think_nanos);
                self.sleep(Duration::from_nanos(nanos)).await;
            }
        }
        drumlin::simulation::on_timestamp(None);
    }

    async fn sleep(&self, duration: Duration) {
        by_api!(self.api, sim::sleep(duration), self.timer.sleep(duration));
    }

    /// Draws whether to drop the next future, and if so, after how many waits.
    fn waits_max(&mut self) -> Option<u64> {
        (self.api == Api::Tasks && self.random.chance(12)).then(|| self.random.below(8))
    }

    /// Awaits a future, or drops it during one of its waits and returns `None`.
    async fn or_drop<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let waits_max = self.waits_max();
        let result = or_drop(waits_max, future).await;
        if result.is_none() {
            self.session.counts.add(Count::Dropped);
        }
        result
    }

    /// Makes a call that needs a thread-local timestamp callback. A blocking client makes the call on its own thread. A
    /// task makes the call on a separate thread, because other tasks share the task's thread.
    async fn elsewhere<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        if self.api == Api::Blocking {
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
            350..600 if self.session.plan.prepares && self.random.chance(20) => self.end_prepared().await,
            350..600 if self.session.plan.spills && self.random.chance(6) => self.spilling_transaction().await,
            350..600 => self.transaction().await,
            600..760 if self.session.plan.keeps_on_disk && self.random.chance(30) => self.kept_snapshots().await,
            600..680 => self.plain_reads().await,
            680..760 => self.plain_scan().await,
            760..860 => self.snapshot_reads().await,
            860..880 => self.stream().await,
            880..892 => self.create().await,
            892..900 if self.session.plan.clones && self.random.chance(60) => self.clone_keyspace().await,
            892..900 => self.alter().await,
            900..912 if self.session.plan.drops_large => self.drop_while_reading().await,
            900..912 => self.drop_keyspace().await,
            912..934 => self.large_transaction().await,
            934..940 => self.bulk_load().await,
            940..1000 if self.session.plan.runs && self.random.chance(60) => self.run_of_rows().await,
            940..1000 if self.random.below(60) < self.session.plan.maintenance_weight => self.maintenance().await,
            _ => {
                let micros = self.random.below(3000);
                self.sleep(Duration::from_micros(micros)).await;
                Ok(())
            }
        }
    }

    // ── keyspaces, keys and values ─────────────────────────────────────────────────────────────────────────────────

    /// Opens a keyspace. Returns it with its number in the model, or `None` if it does not exist.
    fn open(&self, name: &str) -> Option<(Keyspace, SpaceNumber)> {
        let (before, alterations) = self.session.model.space_now(name);
        let before = before?;
        let opened = self.session.db.existing_keyspace(name);
        let is_durable = DURABLE.iter().any(|(acknowledged, _)| *acknowledged == name);
        assert!(opened.is_ok() || !is_durable, "keyspace {name:?} is gone: {opened:?}");
        let keyspace = opened.ok()?;
        (self.session.model.space_now(name) == (Some(before), alterations)).then_some((keyspace, before))
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
        let name = self.session.model.name(space);
        let count = if name == HOT { HOT_ROWS } else { self.session.plan.key_count };
        let number = self.random.below(count);
        if name == HOT { hot(number) } else { numbered(number) }
    }

    fn content(&mut self) -> Content {
        let length = match self.random.below(1000) {
            0..60 => 0,
            60..900 => self.random.below(self.session.plan.value_bytes),
            900..970 => 200 + self.random.below(3000),
            970..992 => 3000 + self.random.below(30_000),
            _ if self.session.plan.large_values => 65_000 + self.random.below(150_000),
            _ => self.random.below(5000),
        };
        Content { length: length as usize, seed: self.random.next() }
    }

    fn some_content(&mut self) -> Option<Content> {
        self.random.chance(75).then(|| self.content())
    }

    fn durability(&mut self) -> Durability {
        if self.random.chance(self.session.plan.relaxed_percent) { Durability::Relaxed } else { Durability::Full }
    }

    fn saw(&self, timestamp: u64) {
        if self.session.plan.relaxed_percent == 0 {
            self.session.model.seen(timestamp);
        }
    }

    // ── maintenance ────────────────────────────────────────────────────────────────────────────────────────────────

    async fn maintenance(&mut self) -> Result<(), Stop> {
        let (api, db) = (self.api, self.session.db.clone());
        let done = match self.random.below(10) {
            0..6 => {
                self.session.counts.add(Count::Checkpoints);
                let checkpoint = async { by_api!(api, db.checkpoint(), db.checkpoint_async()) };
                self.or_drop(checkpoint).await.map_or(Ok(()), |done| done.map(drop))
            }
            6..8 => {
                let compact = async { by_api!(api, db.compact(), db.compact_async()) };
                self.or_drop(compact).await.map_or(Ok(()), |done| done.map(drop))
            }
            8 => {
                drop(db.stats());
                Ok(())
            }
            _ => match by_api!(api, db.check(), db.check_async()) {
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

/// Returns the key of a row of the contended keyspace.
fn hot(number: u64) -> Vec<u8> {
    format!("{number:05}").into_bytes()
}

/// Returns the key with this number. Every tenth key is long.
#[must_use]
pub fn numbered(number: u64) -> Vec<u8> {
    let mut key = format!("{number:05}").into_bytes();
    if key[4] % 10 == 3 {
        key.extend([b'k'; 100]);
    }
    key
}
