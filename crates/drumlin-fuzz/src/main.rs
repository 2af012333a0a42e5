//! Damages databases by the hundred thousand and opens them: `drumlin-fuzz --files 100000`.
//!
//! Scripts for [`drumlin_fuzz::files`] are drawn from a seed. The count is kept in `target/fuzz/files`, and a run goes
//! on where the one before it ended. What fails is kept beside it, as input of the target `files`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
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

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let goal = match &words[..] {
        [option, number] if option == "--files" => number.parse().ok(),
        _ => None,
    };
    let Some(goal) = goal else {
        eprintln!("usage: drumlin-fuzz --files NUMBER");
        return ExitCode::from(2);
    };
    match run(goal) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("drumlin-fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}
