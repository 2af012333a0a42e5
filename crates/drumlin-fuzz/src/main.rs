//! Two long-running fuzzers.
//!
//! `drumlin-fuzz --files 100000` damages databases by the hundred thousand and opens them. The scripts for
//! [`drumlin_fuzz::files`] are drawn from seeds. The number of runs is stored in `target/fuzz/files`, from which the
//! next run continues. Scripts that fail are stored in the same folder, as input for the target `files`.
//!
//! `drumlin-fuzz api --seconds 60` runs seeded sequences of calls to the whole public API. Child processes run the
//! seeds, so a sequence that hangs can be killed; `drumlin-fuzz api --seed 7` repeats one seed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use drumlin_testing::{Random, documents};

/// Returns a script of one or a few steps. Half of all scripts recompute no checksums.
fn script(number: u64) -> Vec<u8> {
    let mut random = Random(number);
    let mut bytes: Vec<u8> = (0..10 + random.next() % 40).map(|_| random.next() as u8).collect();
    if random.next().is_multiple_of(2) {
        bytes[1] &= 0x7F;
        bytes.truncate(10);
    }
    bytes
}

fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target")).join("fuzz")
}

/// More peak memory than any database of this size can need.
const PEAK_BYTES_MAX: u64 = 512 << 20;

/// Returns this process's peak memory since the last call, in bytes, or `None` if the system does not report it.
fn take_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    Some(peak.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

fn run(goal: u64) -> std::io::Result<u64> {
    std::fs::create_dir_all(folder())?;
    let counter = folder().join("files");
    let mut done = std::fs::read_to_string(&counter).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0u64);
    let (begun, first, mut failed) = (Instant::now(), done, 0);
    let mut said = Instant::now();
    while done < goal {
        let script = script(done);
        // Running out of memory can't be caught. If it happens, this file still contains the script.
        std::fs::write(folder().join("current"), &script)?;
        let is_whole = std::panic::catch_unwind(|| drumlin_fuzz::files::run(&script)).is_ok();
        let peak = take_peak_bytes().unwrap_or(0);
        if peak > PEAK_BYTES_MAX {
            println!("number {done} took {} MB of memory", peak >> 20);
        }
        if !is_whole || peak > PEAK_BYTES_MAX {
            failed += 1;
            let path = folder().join(format!("failed-{done}"));
            std::fs::write(&path, &script)?;
            println!("FOUND: {}", path.display());
            println!("  again: copy it to fuzz/corpus/files, then cargo test -p drumlin-fuzz");
        }
        done += 1;
        if said.elapsed() > Duration::from_secs(10) || done == goal {
            said = Instant::now();
            let rate = (done - first) as f64 / begun.elapsed().as_secs_f64();
            println!("{done} damaged databases opened ({rate:.0} a second), {failed} failures in this run");
            std::fs::write(&counter, done.to_string())?;
        }
    }
    Ok(failed)
}

/// Writes the count of all runs into docs/testing.md if this run found no failures.
fn write_files(failed: u64) -> std::io::Result<u64> {
    let done = std::fs::read_to_string(folder().join("files"))?.trim().parse().unwrap_or(0);
    if failed == 0 {
        let row = ["damaged databases opened", &documents::figure(done), "no wrong value"];
        documents::write_row(&documents::testing_page(), "runs", row)?;
    }
    Ok(failed)
}

// ── sequences of public calls ──────────────────────────────────────────────────────────────────────────────────────

/// No sequence of calls takes this long, not even in a debug build on a busy machine.
const SEED_DURATION_MAX: Duration = Duration::from_secs(60);

/// A process runs at most this many seeds, because each sequence leaks a database at its end.
const SEEDS_PER_PROCESS: u64 = 10;

/// The body of a child process: runs `count` seeds, beginning with `from`. Prints each seed before running it.
/// Afterwards, prints the memory that the sequence used.
fn api_worker(from: u64, count: u64) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload_as_str().is_some_and(|text| text.contains(drumlin_fuzz::api::ON_PURPOSE)) {
            usual(panic);
        }
    }));
    drumlin_fuzz::api::memory::watch();
    for seed in from..from.saturating_add(count) {
        println!("seed {seed}");
        println!("excess {}", drumlin_fuzz::api::perform(&drumlin_fuzz::api::script(seed)));
    }
}

/// The state shared by the threads that start child processes.
struct Lanes {
    begun: Instant,
    duration: Duration,
    /// The next seed, and the exclusive end of the range.
    next: AtomicU64,
    end: u64,
    done: AtomicU64,
    failed: AtomicU64,
    /// The largest excess of memory used by any sequence.
    excess_bytes: AtomicU64,
}

impl Lanes {
    fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.duration
    }

    /// Runs the next seeds in a new child process. Returns `false` if no seeds are left.
    fn portion(&self) -> std::io::Result<bool> {
        let from = self.next.fetch_add(SEEDS_PER_PROCESS, Ordering::Relaxed);
        let mut left = self.end.saturating_sub(from).min(SEEDS_PER_PROCESS);
        let mut next = from;
        while left > 0 && !self.is_over() {
            let words = ["api-worker".to_owned(), next.to_string(), left.to_string()];
            let mut child = Command::new(std::env::current_exe()?).args(words).stdout(Stdio::piped()).spawn()?;
            let (seed, reason) = self.follow(&mut child, next)?;
            child.wait()?;
            let _ = std::fs::remove_dir_all(drumlin_fuzz::api::folder_of(child.id()));
            if let Some(reason) = reason {
                self.failed.fetch_add(1, Ordering::Relaxed);
                println!("FOUND: seed {seed} {reason}; again: drumlin-fuzz api --seed {seed}");
            }
            // After a failure, a new process runs the remaining seeds.
            left = if reason.is_some() { left.saturating_sub(seed + 1 - next) } else { 0 };
            next = seed + 1;
        }
        Ok(from < self.end && !self.is_over())
    }

    /// Reads the output of a child process to its end. Returns its last seed, and the reason if that seed failed.
    fn follow(&self, child: &mut Child, first: u64) -> std::io::Result<(u64, Option<&'static str>)> {
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut seed = first;
        loop {
            let line = match lines.recv_timeout(SEED_DURATION_MAX) {
                Ok(line) => line,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    child.kill()?;
                    return Ok((seed, Some("hangs")));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Ok((seed, (!child.wait()?.success()).then_some("fails")));
                }
            };
            match line.split_once(' ').map(|(word, number)| (word, number.parse().unwrap_or(0))) {
                Some(("seed", number)) => seed = number,
                Some(("excess", bytes)) => {
                    self.done.fetch_add(1, Ordering::Relaxed);
                    self.excess_bytes.fetch_max(bytes, Ordering::Relaxed);
                    if self.is_over() {
                        child.kill()?;
                        return Ok((seed, None));
                    }
                }
                _ => println!("{line}"),
            }
        }
    }
}

/// Runs seeds on all processors. Returns the number of seeds that failed.
fn api(from: u64, count: u64, duration: Duration) -> std::io::Result<u64> {
    let (next, end, zero) = (AtomicU64::new(from), from.saturating_add(count), AtomicU64::default);
    let lanes =
        Lanes { begun: Instant::now(), duration, next, end, done: zero(), failed: zero(), excess_bytes: zero() };
    std::thread::scope(|scope| {
        let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let go_through = || -> std::io::Result<()> {
            while lanes.portion()? {}
            Ok(())
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(go_through)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    let Lanes { begun, done, failed, excess_bytes, .. } = lanes;
    let (done, failed, excess_bytes) = (done.into_inner(), failed.into_inner(), excess_bytes.into_inner());
    println!(
        "{done} sequences of calls in {:.0} s, {failed} failures; up to {} KiB of memory beyond the budgets",
        begun.elapsed().as_secs_f64(),
        excess_bytes >> 10
    );
    Ok(failed)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().ok();
    let day = Duration::from_secs(1 << 17);
    let ran = match words[..] {
        ["--files", count] => number(count).map(run),
        ["--files", count, "--update-docs"] => number(count).map(|count| run(count).and_then(write_files)),
        ["api", "--seconds", seconds] => number(seconds).map(|seconds| {
            // Begin at a different seed each time.
            let from = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            api(from.as_secs() << 20, u64::MAX, Duration::from_secs(seconds))
        }),
        ["api", "--seed", seed] => number(seed).map(|seed| api(seed, 1, day)),
        ["api", "--seeds", count] => number(count).map(|count| api(0, count, day)),
        ["api-worker", from, count] => number(from).zip(number(count)).map(|(from, count)| {
            api_worker(from, count);
            Ok(0)
        }),
        _ => None,
    };
    let Some(ran) = ran else {
        eprintln!(
            "usage: drumlin-fuzz --files NUMBER [--update-docs] | api (--seconds NUMBER | --seeds NUMBER | --seed NUMBER)"
        );
        return ExitCode::from(2);
    };
    match ran {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("drumlin-fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}
