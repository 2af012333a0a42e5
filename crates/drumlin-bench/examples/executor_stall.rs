//! Measures for how long a store stalls an executor, both when its pages are not in memory and during long calls on
//! pages in memory.
//!
//! First, one tokio worker thread runs 256 tasks that read random rows of a database larger than memory, and a timer
//! task that ticks every millisecond. A store with a mapped file blocks the thread at every page that is not in memory,
//! so ticks are late and reads wait for each other. Drumlin's reads are futures, so the thread can run other tasks
//! while a read waits.
//!
//! Then the timer ticks while the tasks make long calls in a row, on a database that fits in memory. Such calls never
//! wait for the drive, so they must yield to the executor on their own.
//!
//! ```text
//! cargo run --release -p drumlin-bench --example executor_stall [disk | cached [SECONDS [CASE]]]
//! ```
//!
//! A memory cgroup limits how many pages of the map (LMDB through heed) are in memory. This requires root and cgroup v1
//! or v2. Without a cgroup, the file's pages are dropped from the page cache before the measurement, and only the first
//! access to each page is slow. The program prints which method it uses. The files, 1.3 GB in total, are in the
//! system's temporary directory.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drumlin::{Database, Durability, Field, Keyspace, Sum, TxOptions};
use drumlin_testing::Random;
use futures_util::TryStreamExt;
use hdrhistogram::Histogram;

const ROWS: u64 = 4_000_000;
const VALUE_BYTES: usize = 100;
const TASKS: u64 = 256;
const SECONDS: u64 = 8;
/// Drumlin's memory budget. The mapped store's memory group has a limit that is 32 MiB higher and includes the page
/// cache.
const MEMORY_BYTES: u64 = 64 << 20;

/// The number of rows of the database that fits in memory.
const CACHED_ROWS: u64 = 2_000_000;
const CACHED_BYTES: u64 = 1 << 30;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut random = Random(number);
    let mut value = [0; VALUE_BYTES];
    for part in value.chunks_mut(8) {
        part.copy_from_slice(&random.next().to_le_bytes()[..part.len()]);
    }
    value
}

/// The lateness of one store's ticks, and the number of its reads.
struct Outcome {
    lateness_us: Histogram<u64>,
    reads: u64,
}

/// Ticks every millisecond for `duration`. Returns how late the ticks were.
async fn tick(duration: Duration) -> Result<Histogram<u64>> {
    let mut lateness_us = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3)?;
    let end = Instant::now() + duration;
    while Instant::now() < end {
        let due = Instant::now() + Duration::from_millis(1);
        tokio::time::sleep_until(due.into()).await;
        lateness_us.saturating_record(due.elapsed().as_micros() as u64);
    }
    Ok(lateness_us)
}

/// Runs the reading tasks and the timer task on one thread.
fn measure<R, F>(read: R) -> Result<Outcome>
where
    R: Fn(u64) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    let stop = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (read, stop, reads) = (read.clone(), Arc::clone(&stop), Arc::clone(&reads));
        tasks.push(runtime.spawn(async move {
            let mut random = Random(task);
            while !stop.load(Ordering::Relaxed) {
                read(random.below(ROWS)).await?;
                reads.fetch_add(1, Ordering::Relaxed);
                // Yield after each read, so that the tasks share the thread fairly with every store.
                tokio::task::yield_now().await;
            }
            Result::<()>::Ok(())
        }));
    }
    let lateness_us = runtime.block_on(runtime.spawn(tick(Duration::from_secs(SECONDS))))??;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        runtime.block_on(task)??;
    }
    Ok(Outcome { lateness_us, reads: reads.load(Ordering::Relaxed) })
}

fn drumlin(folder: &Path) -> Result<Outcome> {
    let path = folder.join("drumlin");
    {
        let db = drumlin::Config::new().memory(512 << 20).open(&path)?;
        let rows = db.keyspace("rows")?;
        let options = TxOptions { durability: Durability::Relaxed, ..Default::default() };
        for first in (0..ROWS).step_by(1000) {
            let mut tx = db.begin_with(options)?;
            for number in first..first + 1000 {
                tx.insert(&rows, key(number), value(number))?;
            }
            tx.commit()?;
        }
        db.close()?;
    }
    let db = drumlin::Config::new().memory(MEMORY_BYTES).open(&path)?;
    let rows = db.existing_keyspace("rows")?;
    let outcome = measure(move |number| {
        let rows = rows.clone();
        async move {
            let found = rows.get_async(key(number)).await?;
            assert!(found.as_deref() == Some(&value(number)[..]), "row {number}");
            Ok(())
        }
    });
    drop(db);
    outcome
}

/// Measures LMDB. The process enters the memory group only after the rows are on disk and their pages have been dropped
/// from the page cache. Otherwise, pages cached earlier would be charged to a different group.
fn mapped(folder: &Path) -> Result<Outcome> {
    let path = folder.join("lmdb");
    fs::create_dir(&path)?;
    let mut options = heed::EnvOpenOptions::new();
    options.map_size(4 << 30);
    {
        let env = open_map(&options, &path)?;
        let rows = table(&env)?;
        let mut tx = env.write_txn()?;
        for number in 0..ROWS {
            rows.put_with_flags(&mut tx, heed::PutFlags::APPEND, &key(number), &value(number))?;
        }
        tx.commit()?;
    }
    // Drop the pages just written, which would otherwise still be in memory.
    let file = fs::File::open(path.join("data.mdb"))?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let group = Group::enter(MEMORY_BYTES + (32 << 20));
    match &group {
        Ok(_) => println!("The map has {} MiB, by a memory cgroup.", (MEMORY_BYTES >> 20) + 32),
        Err(error) => {
            println!("No memory cgroup ({error}): the map's pages were dropped once, and then stay in memory.");
        }
    }
    // Leak the environment, because the tasks share it until the process exits.
    let env: &'static heed::Env = Box::leak(Box::new(open_map(&options, &path)?));
    let rows = table(env)?;
    measure(move |number| async move {
        let tx = env.read_txn()?;
        assert!(rows.get(&tx, &key(number))? == Some(&value(number)[..]), "row {number}");
        Ok(())
    })
}

type Table<'e> = heed::Database<'e, heed::types::Bytes, heed::types::Bytes>;

fn table(env: &heed::Env) -> Result<Table<'_>> {
    let tx = env.write_txn()?;
    let opened = env.create_databases_and_commit(tx, |opener, tx| {
        opener.create_database(tx, None).map(heed::CommitOrAbort::<_, ()>::Commit)
    })?;
    Ok(opened.unwrap_commit())
}

#[expect(unsafe_code, reason = "heed says so of every map: nobody else may change the file")]
fn open_map(options: &heed::EnvOpenOptions, path: &Path) -> Result<heed::Env> {
    let mut options = options.clone();
    // Read-ahead by the kernel slows down random reads of a map.
    // SAFETY: the file is in a folder that only this process uses.
    Ok(unsafe { options.flags(heed::EnvFlags::NO_READ_AHEAD).open(path)? })
}

/// A memory cgroup that contains this process. On drop, the process leaves the group and removes it.
struct Group {
    path: PathBuf,
    home: PathBuf,
}

impl Group {
    fn enter(limit_bytes: u64) -> std::io::Result<Group> {
        let name = format!("drumlin-executor-stall-{}", std::process::id());
        let (root, limit) = if Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
            (PathBuf::from("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")
        } else {
            (PathBuf::from("/sys/fs/cgroup"), "memory.max")
        };
        let group = Group { path: root.join(name), home: root };
        fs::create_dir(&group.path)?;
        fs::write(group.path.join(limit), limit_bytes.to_string())?;
        fs::write(group.path.join("cgroup.procs"), std::process::id().to_string())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.home.join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(&self.path);
    }
}

type Task = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// The database and the counters that the tasks share.
#[derive(Clone)]
struct Cached {
    db: Database,
    rows: Keyspace,
    /// A handle to the same rows, but with relaxed commits.
    relaxed: Keyspace,
    other: Keyspace,
    queue: Keyspace,
    stop: Arc<AtomicBool>,
    /// The number of rows read, written or removed so far.
    done: Arc<AtomicU64>,
}

impl Cached {
    fn open(folder: &Path) -> Result<Cached> {
        let db = drumlin::Config::new().memory(CACHED_BYTES).open(folder.join("cached"))?;
        let mut load = db.bulk_load("rows")?;
        for number in 0..CACHED_ROWS {
            load.insert(key(number), value(number))?;
        }
        load.finish()?;
        let rows = db.existing_keyspace("rows")?;
        for row in &rows {
            row?;
        }
        let relaxed = rows.with_durability(Durability::Relaxed);
        let (other, queue) = (db.keyspace("other")?, db.keyspace("queue")?);
        Ok(Cached { db, rows, relaxed, other, queue, stop: Arc::default(), done: Arc::default() })
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn count(&self, rows: u64) {
        self.done.fetch_add(rows, Ordering::Relaxed);
    }

    async fn stream(self) -> Result<()> {
        while self.goes_on() {
            let mut rows = self.rows.iter().into_stream();
            while self.goes_on() && rows.try_next().await?.is_some() {
                self.count(1);
            }
        }
        Ok(())
    }

    async fn steps(self) -> Result<()> {
        while self.goes_on() {
            let mut rows = self.rows.iter();
            while self.goes_on()
                && let Some(row) = rows.next_async().await
            {
                row?;
                self.count(1);
            }
        }
        Ok(())
    }

    /// Computes sums over 90 fields in turn. The first sum over a field can't use any reduced states from the engine.
    async fn aggregate(self) -> Result<()> {
        let mut salt = 0;
        while self.goes_on() {
            let sum = Sum::of(Field::<u64>::big_endian(salt % 90));
            std::hint::black_box(self.rows.aggregate_async(&sum, ..).await?);
            self.count(CACHED_ROWS);
            salt += 1;
        }
        Ok(())
    }

    async fn remove(self) -> Result<()> {
        let mut first = 0;
        while self.goes_on() && first < CACHED_ROWS {
            self.relaxed.remove_range_async(key(first)..key(first + 100_000)).await?;
            self.count(100_000);
            first += 100_000;
        }
        Ok(())
    }

    async fn get(self) -> Result<()> {
        let mut random = Random(1);
        while self.goes_on() {
            for _ in 0..100_000 {
                let number = random.below(CACHED_ROWS);
                assert!(self.rows.get_async(key(number)).await?.is_some(), "row {number}");
                self.count(1);
                if !self.goes_on() {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn insert(self) -> Result<()> {
        let mut random = Random(2);
        while self.goes_on() {
            let number = random.below(CACHED_ROWS);
            self.relaxed.insert_async(key(number), value(number)).await?;
            self.count(1);
        }
        Ok(())
    }

    async fn get_many(self) -> Result<()> {
        let mut random = Random(3);
        let keys: Vec<[u8; 8]> = (0..20_000).map(|_| key(random.below(CACHED_ROWS))).collect();
        while self.goes_on() {
            let values = self.rows.get_many_async(&keys).await?;
            // Free the values on a different thread, because freeing this many takes a millisecond that is not part of
            // the call.
            tokio::task::spawn_blocking(move || assert!(values.iter().all(Option::is_some)));
            self.count(20_000);
        }
        Ok(())
    }

    async fn commit(self) -> Result<()> {
        let mut random = Random(4);
        while self.goes_on() {
            let first = random.below(CACHED_ROWS - 12_000);
            let mut batch = self.db.batch()?;
            for number in first..first + 12_000 {
                batch.insert_async(&self.rows, key(number), value(number)).await?;
            }
            batch.commit_with_async(Durability::Relaxed).await?;
            self.count(12_000);
        }
        Ok(())
    }

    async fn pop(self) -> Result<()> {
        while self.goes_on() {
            assert!(self.queue.pop_first_async().await?.is_none());
        }
        Ok(())
    }

    async fn produce(self) -> Result<()> {
        let mut number = 0;
        while self.goes_on() {
            self.other.insert_async(key(number), value(number)).await?;
            self.count(1);
            number += 1;
        }
        Ok(())
    }

    async fn idle(self) -> Result<()> {
        Ok(())
    }

    /// Runs a case while the timer ticks. Returns how late the ticks were, and the rows processed per second.
    fn measure(&self, seconds: u64, tasks: impl Fn(&Cached) -> Vec<Task>) -> Result<(Histogram<u64>, f64)> {
        self.stop.store(false, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
        let began = Instant::now();
        let ticking = runtime.spawn(tick(Duration::from_secs(seconds)));
        let tasks: Vec<_> = tasks(self).into_iter().map(|task| runtime.spawn(task)).collect();
        let stopper = {
            let stop = Arc::clone(&self.stop);
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_secs(seconds));
                stop.store(true, Ordering::Relaxed);
            })
        };
        for task in tasks {
            runtime.block_on(task)??;
        }
        let rate = self.done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
        let lateness_us = runtime.block_on(ticking)??;
        stopper.join().expect("it sleeps");
        Ok((lateness_us, rate))
    }
}

/// A case: its name, and a function that returns its tasks.
type Case = (&'static str, fn(&Cached) -> Vec<Task>);

const CASES: &[Case] = &[
    ("nothing", |cached| vec![Box::pin(cached.clone().idle())]),
    ("into_stream", |cached| vec![Box::pin(cached.clone().stream())]),
    ("next_async", |cached| vec![Box::pin(cached.clone().steps())]),
    ("aggregate_async", |cached| vec![Box::pin(cached.clone().aggregate())]),
    ("get_async", |cached| vec![Box::pin(cached.clone().get())]),
    ("get_many_async", |cached| vec![Box::pin(cached.clone().get_many())]),
    ("insert_async", |cached| vec![Box::pin(cached.clone().insert())]),
    ("commit of 12,000", |cached| vec![Box::pin(cached.clone().commit())]),
    ("producer alone", |cached| vec![Box::pin(cached.clone().produce())]),
    ("producer, 16 pop", |cached| {
        let mut tasks: Vec<Task> = vec![Box::pin(cached.clone().produce())];
        tasks.extend((0..16).map(|_| -> Task { Box::pin(cached.clone().pop()) }));
        tasks
    }),
    ("remove_range_async", |cached| vec![Box::pin(cached.clone().remove())]),
];

fn cached(folder: &Path, seconds: u64, only: Option<&str>) -> Result<()> {
    println!("\nOne worker thread and {CACHED_ROWS} rows of {VALUE_BYTES} bytes in memory, {seconds} s each.\n");
    println!("{:<22} {:>36} {:>10}", "while running", "lateness of a 1 ms tick, ms", "rows/s");
    println!("{:<22} {:>8} {:>8} {:>8} {:>9}", "", "p50", "p99", "p99.9", "max");
    let cached = Cached::open(folder)?;
    for (name, tasks) in CASES.iter().filter(|(name, _)| only.is_none_or(|only| name.starts_with(only))) {
        let (lateness_us, rate) = cached.measure(seconds, tasks)?;
        print(name, &lateness_us, rate);
    }
    Ok(())
}

fn print(name: &str, lateness_us: &Histogram<u64>, rate: f64) {
    let ms = |quantile: f64| lateness_us.value_at_quantile(quantile) as f64 / 1000.0;
    println!(
        "{name:<22} {:>8.2} {:>8.2} {:>8.2} {:>9.2} {rate:>10.0}",
        ms(0.5),
        ms(0.99),
        ms(0.999),
        lateness_us.max() as f64 / 1000.0
    );
}

fn on_disk(folder: &Path) -> Result<()> {
    println!(
        "One worker thread, {TASKS} tasks reading {ROWS} rows of {VALUE_BYTES} bytes at random, {SECONDS} s each."
    );
    println!("Drumlin has {} MiB.", MEMORY_BYTES >> 20);
    let ours = drumlin(folder)?;
    let theirs = mapped(folder)?;
    println!("\n{:<22} {:>36} {:>10}", "", "lateness of a 1 ms tick, ms", "reads/s");
    println!("{:<22} {:>8} {:>8} {:>8} {:>9}", "", "p50", "p99", "p99.9", "max");
    print("drumlin, get_async", &ours.lateness_us, ours.reads as f64 / SECONDS as f64);
    print("lmdb, mapped", &theirs.lateness_us, theirs.reads as f64 / SECONDS as f64);
    Ok(())
}

fn main() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("drumlin-stall-").tempdir()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let part = arguments.first().map(String::as_str);
    if part != Some("cached") {
        on_disk(folder.path())?;
    }
    if part != Some("disk") {
        let seconds = arguments.get(1).map_or(Ok(SECONDS), |seconds| seconds.parse())?;
        cached(folder.path(), seconds, arguments.get(2).map(String::as_str))?;
    }
    Ok(())
}
