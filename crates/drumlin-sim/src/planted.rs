//! Bugs planted in the library, to show that what is meant to find them does.
//!
//! Each is a feature of `drumlin`. It is built in, and the command that is meant for it has to find something within a
//! minute; the same commands find nothing without it. The profile `planted` is quick to build and has assertions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A planted bug.
#[derive(Clone, Copy, Debug)]
pub struct Plant {
    pub feature: &'static str,
    /// What it does.
    pub bug: &'static str,
    /// The arguments of the command that is to find it.
    pub finder: &'static [&'static str],
}

// What they go through does not depend on how fast the machine is; their minutes are only there to end them.
const CRASH_POINTS: &[&str] = &["--minutes", "10", "--finds", "1", "crash-points", "--recovery", "0", "--random", "2"];
const WORLDS: &[&str] = &["--minutes", "10", "--finds", "1", "--from", "0", "--seeds", "120"];
const ROTTEN: &[&str] = &["--minutes", "10", "--finds", "1", "--from", "0", "--seeds", "120", "--trouble", "rot"];

/// A bug has to be found in so many seconds of a processor.
const SECONDS_MAX: f64 = 60.0;

/// All of them.
pub const PLANTS: &[Plant] = &[
    Plant {
        feature: "plant-remove-sync",
        bug: "a checkpoint does not sync before its superblock",
        finder: CRASH_POINTS,
    },
    Plant {
        feature: "plant-swap-superblock",
        bug: "the superblock is written before what it names",
        finder: CRASH_POINTS,
    },
    Plant { feature: "plant-lazy-log", bug: "a commit returns before its record is durable", finder: CRASH_POINTS },
    Plant {
        feature: "plant-reuse-early",
        bug: "segments serve again before the checkpoint that frees them is durable",
        finder: CRASH_POINTS,
    },
    Plant {
        feature: "plant-drop-horizon-check",
        bug: "a durable record that is missing is taken for the end of the log",
        finder: ROTTEN,
    },
    Plant {
        feature: "plant-skip-incarnation",
        bug: "records of an earlier opening count that a later one had given up",
        finder: WORLDS,
    },
    Plant {
        feature: "plant-publish-before-apply",
        bug: "a commit is published before its rows are changed",
        finder: WORLDS,
    },
    Plant { feature: "plant-show-before-durable", bug: "readers see what is not durable", finder: WORLDS },
    Plant { feature: "plant-miss-version", bug: "no version says that a row was absent", finder: WORLDS },
];

/// Runs each finder on the library as it is, which must find nothing, then builds each bug and runs its finder; true if that
/// found something. With a name, only those that contain it.
///
/// # Errors
/// If something can't be built or run.
pub fn run(only: &str) -> std::io::Result<bool> {
    let plants: Vec<&Plant> = PLANTS.iter().filter(|plant| plant.feature.contains(only)).collect();
    let mut is_as_meant = true;
    build(None)?;
    let mut controls: Vec<&[&str]> = Vec::new();
    for plant in &plants {
        if !controls.contains(&plant.finder) {
            controls.push(plant.finder);
            println!("without a bug: drumlin-sim {}", plant.finder.join(" "));
            let outcome = find(plant.finder)?;
            println!("  {}: {}", if outcome.found { "FOUND SOMETHING" } else { "nothing found" }, outcome.text);
            is_as_meant &= !outcome.found;
        }
    }
    for plant in plants {
        println!("{}: {}", plant.feature, plant.bug);
        build(Some(plant.feature))?;
        let outcome = find(plant.finder)?;
        let is_caught = outcome.found && outcome.processor_seconds <= SECONDS_MAX;
        println!("  {}: {}", if is_caught { "found" } else { "NOT FOUND" }, outcome.text);
        is_as_meant &= is_caught;
    }
    Ok(is_as_meant)
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn build(feature: Option<&str>) -> std::io::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace());
    command.args(["build", "--quiet", "-p", "drumlin-sim", "--profile", "planted", "--target-dir", "target/planted"]);
    if let Some(feature) = feature {
        command.args(["--features", feature]);
    }
    if command.status()?.success() {
        return Ok(());
    }
    Err(std::io::Error::other(format!("{} does not build", feature.unwrap_or("drumlin-sim"))))
}

struct Outcome {
    found: bool,
    processor_seconds: f64,
    /// How long it took and what it was.
    text: String,
}

/// Runs a finder.
fn find(arguments: &[&str]) -> std::io::Result<Outcome> {
    let began = Instant::now();
    let output = Command::new(workspace().join("target/planted/planted/drumlin-sim")).args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = !output.status.success() && text.contains("FOUND");
    let seconds = text.lines().find_map(|line| line.strip_prefix(PROCESSOR_TIME)?.strip_suffix(" s")?.parse().ok());
    let processor_seconds = seconds.unwrap_or(f64::INFINITY);
    // How to see it again is for a library without the bug.
    let report = text.lines().skip_while(|line| !line.contains("FOUND")).take(2);
    let report: Vec<&str> = report.map(str::trim).filter(|line| !line.starts_with("again:")).collect();
    let report: String = report.into_iter().flat_map(|line| ["\n    ", line]).collect();
    let seconds = began.elapsed().as_secs_f64();
    let text = format!("{processor_seconds:.1} s of a processor, {seconds:.1} s in all{report}");
    Ok(Outcome { found, processor_seconds, text })
}

/// How a finder's line begins that says how long it has kept a processor busy.
pub const PROCESSOR_TIME: &str = "processor time: ";

/// That line, for this process.
#[must_use]
pub fn processor_time() -> String {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    format!("{PROCESSOR_TIME}{:.1} s", time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}
