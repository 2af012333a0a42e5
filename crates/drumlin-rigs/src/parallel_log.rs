//! Compares the commit rates of one and two log streams, on one and two slow drives.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use drumlin::{Config, Database, Durability};

use crate::host::{self, FileSystem, LoopDevice};
use crate::slow::{Pace, SlowDrive};

const DRIVE_BYTES: u64 = 1 << 30;

/// The number of log streams, and the number of drives that hold them.
#[derive(Clone, Copy)]
struct Layout {
    name: &'static str,
    streams: u16,
    drives: usize,
}

const LAYOUTS: [Layout; 3] = [
    Layout { name: "1 stream", streams: 1, drives: 1 },
    Layout { name: "2 streams, 1 drive", streams: 2, drives: 1 },
    Layout { name: "2 streams, 2 drives", streams: 2, drives: 2 },
];

/// Measures every layout with each number of committers and each row size, alternating between layouts. Prints the
/// median commits per second.
pub fn run(committers: &[usize], value_bytes: &[usize], rounds: usize, seconds: f64, pace: Pace) -> Result<()> {
    host::require(&[FileSystem::Ext4])?;
    ensure!(rounds > 0, "no rounds");
    let folder = host::mount_folder()?;
    let mut drives = Vec::new();
    for number in 0..2 {
        let path = |name: &str| folder.path().join(format!("{name}-{number}"));
        std::fs::create_dir(path("drive"))?;
        std::fs::create_dir(path("mounted"))?;
        let drive = SlowDrive::serve(pace, DRIVE_BYTES, &path("drive"))?;
        let device = LoopDevice::attach(&path("drive").join("disk"))?;
        FileSystem::Ext4.make(device.path())?;
        let mount = FileSystem::Ext4.mount(device.path(), &path("mounted"))?;
        // The tuple's fields are dropped in this order: the file system is unmounted, the device is detached, the drive
        // is no longer served.
        drives.push((mount, device, drive));
    }
    let set_slow = |slow| drives.iter().for_each(|(_, _, drive)| drive.set_slow(slow));
    println!("{:>5} {:>9}   {}", "rows", "threads", LAYOUTS.map(|each| format!("{:>20}", each.name)).concat());
    for &bytes in value_bytes {
        for &threads in committers {
            let mut rates = [const { Vec::new() }; LAYOUTS.len()];
            for _ in 0..rounds {
                for (layout, rates) in LAYOUTS.iter().zip(&mut rates) {
                    if host::is_interrupted() {
                        return Ok(());
                    }
                    rates.push(turn(folder.path(), *layout, threads, bytes, seconds, &set_slow)?);
                }
            }
            let medians = rates.map(|mut rates| {
                rates.sort_by(f64::total_cmp);
                rates[rates.len() / 2]
            });
            let shown = medians.map(|rate| format!("{:>12.0} ({:>4.2})", rate, rate / medians[0])).concat();
            println!("{bytes:>5} {threads:>9}   {shown}");
        }
    }
    Ok(())
}

/// Returns the commits per second of a new database. Its log streams are on the drives of `layout`, its pages on the
/// host's drive.
fn turn(
    folder: &Path,
    layout: Layout,
    threads: usize,
    value_bytes: usize,
    seconds: f64,
    set_slow: &dyn Fn(bool),
) -> Result<f64> {
    let path = folder.join("database");
    let config = || Config::new().memory(64 << 20).log_streams(layout.streams).log_segment_bytes(32 << 20);
    config().open(&path)?.close()?;
    let of_stream = |stream: u16| folder.join(format!("mounted-{}/{stream}", usize::from(stream) % layout.drives));
    // The probe measured the host's drive and may choose a different sync method each time, so fix the method.
    let probe = std::fs::read_to_string(path.join("probe"))?;
    let chosen =
        |line: &str| if line.starts_with("chosen") { "chosen = data-sync".to_owned() } else { line.to_owned() };
    std::fs::write(path.join("probe"), probe.lines().map(|line| chosen(line) + "\n").collect::<String>())?;
    // Remove the spare log segments, which are on the host's drive; a closed database needs no log.
    for segment in std::fs::read_dir(path.join("log"))? {
        std::fs::remove_file(segment?.path())?;
    }
    for stream in 0..layout.streams {
        std::fs::create_dir(of_stream(stream))?;
        symlink(of_stream(stream), path.join(format!("log/{stream}")))?;
    }
    let database = config().open(&path)?;
    ensure!(database.stats().sync_method == "data-sync", "the sync method was measured again");
    // While the drive is fast, let the database fill segments with zeros, so that the measured commits find them
    // prepared.
    commit(&database, threads, value_bytes, seconds / 10.0)?;
    std::thread::sleep(Duration::from_secs(1));
    set_slow(true);
    let rate = commit(&database, threads, value_bytes, seconds);
    set_slow(false);
    database.close()?;
    std::fs::remove_dir_all(&path)?;
    (0..layout.streams).try_for_each(|stream| std::fs::remove_dir_all(of_stream(stream)))?;
    rate
}

/// Commits from several threads, each one durable row at a time. Returns the commits per second.
fn commit(database: &Database, threads: usize, value_bytes: usize, seconds: f64) -> Result<f64> {
    let rows = database.keyspace("rows")?;
    let (ends, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let committer = |thread: usize| {
            let (rows, ends, commits, barrier) = (&rows, &ends, &commits, &barrier);
            scope.spawn(move || -> drumlin::Result<()> {
                let value = vec![thread as u8; value_bytes];
                barrier.wait();
                for row in (0u64..).map(|row| row % 256) {
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                    rows.insert_with([thread as u64, row].map(u64::to_be_bytes).concat(), &value, Durability::Full)?;
                    commits.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        };
        let all: Vec<_> = (0..threads).map(committer).collect();
        barrier.wait();
        let begun = Instant::now();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let rate = commits.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        ends.store(true, Ordering::Relaxed);
        for thread in all {
            thread.join().expect("a committer panicked")?;
        }
        Ok(rate)
    })
}
