//! Bugs planted in the library, to show that what is meant to find them does.
//!
//! Each is a feature of `drumlin`. It is built in, and the command that is meant for it has to find something within a
//! minute; the same commands find nothing without it.

use std::path::Path;
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

const CRASH_POINTS: &[&str] = &["--minutes", "1", "crash-points", "--recovery", "0"];
const WORLDS: &[&str] = &["--minutes", "1", "--finds", "1", "--from", "0"];
const ROTTEN: &[&str] = &["--minutes", "1", "--finds", "1", "--from", "0", "--trouble", "rot"];

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
        finder: WORLDS,
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

/// Builds each and runs what is to find it; true if all were found. With a name, only those that contain it.
///
/// # Errors
/// If something can't be built or run.
pub fn run(only: &str) -> std::io::Result<bool> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut all_found = true;
    for plant in PLANTS.iter().filter(|plant| plant.feature.contains(only)) {
        println!("{}: {}", plant.feature, plant.bug);
        let built = Command::new(&cargo)
            .current_dir(&workspace)
            .args([
                "build",
                "--quiet",
                "-p",
                "drumlin-sim",
                "--target-dir",
                "target/planted",
                "--features",
                plant.feature,
            ])
            .status()?;
        if !built.success() {
            return Err(std::io::Error::other(format!("{} does not build", plant.feature)));
        }
        let began = Instant::now();
        let output = Command::new(workspace.join("target/planted/debug/drumlin-sim")).args(plant.finder).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let found = !output.status.success() && text.contains("FOUND");
        let report = text.lines().skip_while(|line| !line.contains("FOUND")).take(2).collect::<Vec<_>>().join(" ");
        let report: String = report.chars().take(300).collect();
        let seconds = began.elapsed().as_secs_f64();
        println!("  {} in {seconds:.1} s: {report}", if found { "found" } else { "NOT FOUND" });
        all_found &= found;
    }
    Ok(all_found)
}
