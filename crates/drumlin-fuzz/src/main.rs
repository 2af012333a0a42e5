//! Damages databases by the hundred thousand and opens them: `drumlin-fuzz --files 100000`.
//!
//! Scripts for [`drumlin_fuzz::files`] are drawn from a seed. The count is kept in `target/fuzz/files`, and a run goes
//! on where the one before it ended. What fails is kept beside it, as input of the target `files`.
//!
//! Calls everything public in sequences that a seed decides: `drumlin-fuzz face --seconds 60`. Another process goes through
//! the seeds, so that one that hangs can be ended; `drumlin-fuzz face --seed 7` is one of them again.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// A script of one or a few steps. Half of them make no checksum right again.
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

/// Memory that no database of this size has a use for.
const PEAK_BYTES_MAX: u64 = 512 << 20;

/// The most memory that this process has had since it was asked the last time; `None` where the system does not tell.
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
        // Where memory runs out, nothing can be caught: then it is this one.
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

// ── the face ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// No sequence of calls takes this long, in debug on a busy machine either.
const SEED_DURATION_MAX: Duration = Duration::from_secs(60);

/// Each sequence leaks a database in the end.
const SEEDS_PER_PROCESS: u64 = 10;

/// Goes through seeds from one on, and says each before it begins; the body of the other process.
fn face_worker(from: u64, count: u64) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload_as_str().is_some_and(|text| text.contains(drumlin_fuzz::face::ON_PURPOSE)) {
            usual(panic);
        }
    }));
    for seed in from..from.saturating_add(count) {
        println!("{seed}");
        drumlin_fuzz::face::run(&drumlin_fuzz::face::script(seed));
        let bytes = drumlin_fuzz::face::anonymous_bytes().unwrap_or(0);
        assert!(bytes <= drumlin_fuzz::face::MEMORY_BYTES_MAX, "{bytes} bytes of memory after seed {seed}");
    }
}

/// Has seeds gone through by another process. Returns the seeds that failed.
fn face(from: u64, count: u64, duration: Duration) -> std::io::Result<u64> {
    let begun = Instant::now();
    let (mut next, mut done, mut failed) = (from, 0u64, 0u64);
    while done < count && begun.elapsed() < duration {
        let words = ["face-worker".to_owned(), next.to_string(), (count - done).min(SEEDS_PER_PROCESS).to_string()];
        let mut child = Command::new(std::env::current_exe()?).args(words).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, seeds) = mpsc::channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let first = done;
        let flaw = loop {
            match seeds.recv_timeout(SEED_DURATION_MAX) {
                Ok(_) if done > first && begun.elapsed() >= duration => {
                    child.kill()?;
                    break None;
                }
                Ok(line) => {
                    next = line.parse().unwrap_or(next) + 1;
                    done += 1;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    child.kill()?;
                    break Some("hangs");
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    break (!child.wait()?.success()).then_some("fails");
                }
            }
        };
        child.wait()?;
        if let Some(flaw) = flaw {
            failed += 1;
            println!("FOUND: seed {} {flaw}; again: drumlin-fuzz face --seed {}", next - 1, next - 1);
        }
    }
    println!("{done} sequences of calls in {:.0} s, {failed} failures", begun.elapsed().as_secs_f64());
    Ok(failed)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().ok();
    let day = Duration::from_secs(1 << 17);
    let ran = match words[..] {
        ["--files", count] => number(count).map(run),
        ["face", "--seconds", seconds] => number(seconds).map(|seconds| {
            // Another place each time.
            let from = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            face(from.as_secs() << 20, u64::MAX, Duration::from_secs(seconds))
        }),
        ["face", "--seed", seed] => number(seed).map(|seed| face(seed, 1, day)),
        ["face", "--seeds", count] => number(count).map(|count| face(0, count, day)),
        ["face-worker", from, count] => number(from).zip(number(count)).map(|(from, count)| {
            face_worker(from, count);
            Ok(0)
        }),
        _ => None,
    };
    let Some(ran) = ran else {
        eprintln!("usage: drumlin-fuzz --files NUMBER | face (--seconds NUMBER | --seeds NUMBER | --seed NUMBER)");
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
