//! Stalls of an executor by a store whose pages are not in memory.
//!
//! One tokio worker thread runs 256 tasks that read rows at random from a database larger than memory, and a timer task
//! that ticks every millisecond. A store that maps its file stops the thread at every page that is not there: the tick
//! comes late, and the reads wait for each other. Drumlin's reads are futures: the thread goes on.
//!
//! ```text
//! cargo run --release -p drumlin-bench --example executor_stall
//! ```
//!
//! The map (LMDB through heed) is made larger than memory by a memory cgroup where this process may make one (it needs
//! root and cgroup v1 or v2); elsewhere its file's pages are dropped from the cache before it is read, and the first
//! touches are what is measured. It says which. The files, 1.3 GB together, lie in the system's temporary directory.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drumlin_testing::Random;
use hdrhistogram::Histogram;

const ROWS: u64 = 4_000_000;
const VALUE_BYTES: usize = 100;
const TASKS: u64 = 256;
const SECONDS: u64 = 8;
/// The memory that Drumlin may use, and the group of the map, page cache included.
const MEMORY_BYTES: u64 = 64 << 20;

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

/// The ticks and reads of one store.
struct Outcome {
    lateness_us: Histogram<u64>,
    reads: u64,
}

/// Runs the tasks and the tick on one thread.
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
                // As fair as a task can be, whatever the store.
                tokio::task::yield_now().await;
            }
            Result::<()>::Ok(())
        }));
    }
    let tick = runtime.spawn(async {
        let mut lateness_us = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3)?;
        let end = Instant::now() + Duration::from_secs(SECONDS);
        while Instant::now() < end {
            let due = Instant::now() + Duration::from_millis(1);
            tokio::time::sleep_until(due.into()).await;
            lateness_us.saturating_record(due.elapsed().as_micros() as u64);
        }
        Result::<_>::Ok(lateness_us)
    });
    let lateness_us = runtime.block_on(tick)??;
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
        let options = drumlin::TxOptions { durability: drumlin::Durability::Relaxed, ..Default::default() };
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

/// LMDB; the group is entered once the rows are on disk, and the pages that were cached meanwhile are not charged to
/// it.
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
    // What was just written would be in memory still.
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
    // The tasks share it until the process ends.
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
    // SAFETY: the file is in a folder of this process's own; without read-ahead random reads are as fast as a map's can
    // be.
    Ok(unsafe { options.flags(heed::EnvFlags::NO_READ_AHEAD).open(path)? })
}

/// A memory cgroup that this process is in; it leaves and removes it when dropped.
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

fn print(name: &str, outcome: &Outcome) {
    let ms = |quantile: f64| outcome.lateness_us.value_at_quantile(quantile) as f64 / 1000.0;
    let rate = outcome.reads as f64 / SECONDS as f64;
    println!(
        "{name:<22} {:>8.2} {:>8.2} {:>8.2} {:>9.2} {rate:>10.0}",
        ms(0.5),
        ms(0.99),
        ms(0.999),
        outcome.lateness_us.max() as f64 / 1000.0
    );
}

fn main() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("drumlin-stall-").tempdir()?;
    println!(
        "One worker thread, {TASKS} tasks reading {ROWS} rows of {VALUE_BYTES} bytes at random, {SECONDS} s each."
    );
    println!("Drumlin has {} MiB.", MEMORY_BYTES >> 20);
    let ours = drumlin(folder.path())?;
    let theirs = mapped(folder.path())?;
    println!("\n{:<22} {:>36} {:>10}", "", "lateness of a 1 ms tick, ms", "reads/s");
    println!("{:<22} {:>8} {:>8} {:>8} {:>9}", "", "p50", "p99", "p99.9", "max");
    print("drumlin, get_async", &ours);
    print("lmdb, mapped", &theirs);
    Ok(())
}
