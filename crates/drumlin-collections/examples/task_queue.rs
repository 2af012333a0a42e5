//! A task queue. A task becomes visible at a given time, is leased to one worker at a time, and is retried if it fails.
//!
//! `cargo run --release -p drumlin-collections --example task_queue [FOLDER] [SECONDS]`
//!
//! If FOLDER is given, the example also measures the queue there, with 1 to 64 threads: enqueues, leases and
//! acknowledgements per second, each a durable transaction. Each measurement takes SECONDS, 2 by default. The files are
//! removed.
//!
//! A queue without leases, retries and views can store its tasks as plain rows:
//! [`Keyspace::pop_first_in`](drumlin::Keyspace::pop_first_in) takes the next task, and
//! [`Transaction::pop_first_in`](drumlin::Transaction::pop_first_in) keeps the task locked until the transaction ends.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use drumlin::{Config, Database};
use drumlin_collections::{Collection, Collections, Documents, Error, Index, Parts, Postcard};
use serde::{Deserialize, Serialize};

const TASKS: u32 = 30;
const WORKERS: usize = 3;
const ATTEMPTS_MAX: u32 = 3;
/// A worker that does not finish a task within this time is considered dead, and the task goes to a different worker.
const LEASE: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_millis(2);
/// The thread counts to measure.
const THREADS: [usize; 4] = [1, 4, 16, 64];

#[derive(Serialize, Deserialize)]
struct Task {
    id: u32,
    /// The time from which a worker may take the task; `None` once the task has failed for good.
    visible_after: Option<SystemTime>,
    attempts: u32,
}

impl Task {
    const BY_TIME: Index<Task, SystemTime> = Index::optional("by time", |task| task.visible_after);
}

impl Collection for Task {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "tasks";

    fn key(&self) -> u32 {
        self.id
    }

    fn parts() -> Parts<Task> {
        Parts::new().index(Task::BY_TIME)
    }
}

/// Takes the task that has been visible for the longest time, and hides it from other workers for the duration of a
/// lease. If two workers find the same task, one of them gets a conflict and its transaction runs again.
fn take(collections: &Collections, tasks: &Documents<Task>) -> Result<Option<Task>, Error> {
    collections.transact(|tx| {
        let now = SystemTime::now();
        let next = tasks.at(tx).index(&Task::BY_TIME).range(..=now).next().transpose()?;
        let Some(mut task) = next else { return Ok(None) };
        task.visible_after = Some(now + LEASE);
        task.attempts += 1;
        tx.put(tasks, &task)?;
        Ok(Some(task))
    })
}

/// Returns a failed task to the queue, or abandons it after its last attempt.
fn give_back(tasks: &Documents<Task>, mut task: Task) -> Result<(), Error> {
    let can_retry = task.attempts < ATTEMPTS_MAX;
    task.visible_after = can_retry.then(|| SystemTime::now() + RETRY_DELAY);
    tasks.put(&task)
}

/// Simulates work: every fifth task fails on its first attempt, and task 13 fails on every attempt.
fn work(task: &Task) -> bool {
    task.id != 13 && (!task.id.is_multiple_of(5) || task.attempts > 1)
}

pub(crate) fn run(db: &Database, out: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let collections = Collections::new(db);
    let tasks = collections.open::<Task>()?;
    for id in 1..=TASKS {
        tasks.insert(&Task { id, visible_after: Some(SystemTime::now()), attempts: 0 })?;
    }
    let (attempts, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let worker = || -> Result<(), Error> {
        // Continue while any task is visible, leased or waiting for a retry.
        while tasks.index(&Task::BY_TIME).count(..)? > 0 {
            let Some(task) = take(&collections, &tasks)? else {
                thread::sleep(RETRY_DELAY);
                continue;
            };
            attempts.fetch_add(1, Ordering::Relaxed);
            if work(&task) {
                tasks.remove(task.id)?;
                done.fetch_add(1, Ordering::Relaxed);
            } else {
                give_back(&tasks, task)?;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;

    let (attempts, done) = (attempts.into_inner(), done.into_inner());
    writeln!(out, "{TASKS} tasks, {WORKERS} workers: {done} done in {attempts} attempts")?;
    for task in tasks.iter() {
        let task = task?;
        writeln!(out, "task {} was given up after {} attempts", task.id, task.attempts)?;
    }
    Ok(())
}

/// Calls `step` from many threads until `time` has passed or it returns `false`. Returns the number of successful calls
/// per second and per sync.
fn rate(
    db: &Database,
    threads: usize,
    time: Duration,
    step: impl Fn() -> Result<bool, Error> + Sync,
) -> Result<(f64, f64), Error> {
    let (done, start, syncs_before) = (AtomicU64::new(0), Instant::now(), db.stats().log_syncs);
    let run = || -> Result<(), Error> {
        while start.elapsed() < time && step()? {
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    let (done, syncs) = (done.into_inner() as f64, (db.stats().log_syncs - syncs_before).max(1) as f64);
    Ok((done / start.elapsed().as_secs_f64(), done / syncs))
}

/// Measures the queue with each number of threads, and prints the rates.
fn measure(folder: &Path, time: Duration, out: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir_in(folder)?;
    writeln!(out, "per second (and for each sync)   enqueues        leases          acknowledgements")?;
    for threads in THREADS {
        let db = Config::new().memory(64 << 20).open(folder.path().join(threads.to_string()))?;
        let collections = Collections::new(&db);
        let tasks = collections.open::<Task>()?;
        let (next, leased) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        let enqueue = || {
            let id = next.fetch_add(1, Ordering::Relaxed) as u32;
            tasks.insert(&Task { id, visible_after: Some(SystemTime::now()), attempts: 0 })?;
            Ok(true)
        };
        let lease = || {
            let Some(task) = take(&collections, &tasks)? else { return Ok(false) };
            leased.lock().unwrap_or_else(PoisonError::into_inner).push(task.id);
            Ok(true)
        };
        let acknowledge = || {
            let Some(id) = leased.lock().unwrap_or_else(PoisonError::into_inner).pop() else { return Ok(false) };
            tasks.remove(id)?;
            Ok(true)
        };
        let rates = [
            rate(&db, threads, time, enqueue)?,
            rate(&db, threads, time, lease)?,
            rate(&db, threads, time, acknowledge)?,
        ];
        write!(out, "{threads:>3} threads                   ")?;
        for (rate, for_each_sync) in rates {
            write!(out, " {rate:>7.0} ({for_each_sync:>4.1})")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[allow(dead_code, reason = "a test runs the program without it")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    run(&Config::in_memory().open("")?, &mut out)?;
    let mut arguments = std::env::args().skip(1);
    if let Some(folder) = arguments.next() {
        let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
        measure(Path::new(&folder), Duration::from_secs_f64(seconds), &mut out)?;
    }
    Ok(())
}
