//! Fuzz targets: each takes any bytes and panics if something is not as it has to be.
//!
//! `fuzz/` at the root of the repository hands these functions to libFuzzer; `tests/corpus.rs` replays what it found
//! worth keeping, with the stable toolchain; the program of this crate damages files by the hundred thousand, and calls
//! everything public in sequences that a seed decides.

pub mod face;
pub mod files;
pub mod operations;
mod script;

pub use script::Script;

/// A target's name and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets; `fuzz/fuzz_targets` has a file for each.
pub const TARGETS: [Target; 14] = [
    ("catalogue", drumlin::fuzzing::catalogue),
    ("counts", drumlin::fuzzing::counts),
    ("extent", drumlin::fuzzing::extent),
    ("face", face::run),
    ("files", files::run),
    ("log_headers", drumlin::fuzzing::log_headers),
    ("node", drumlin::fuzzing::node),
    ("operations", operations::run),
    ("probe", drumlin::fuzzing::probe),
    ("record", drumlin::fuzzing::record),
    ("resident", drumlin::fuzzing::resident),
    ("rows", drumlin_cli::fuzzing::rows),
    ("summary", drumlin::fuzzing::summary),
    ("superblock", drumlin::fuzzing::superblock),
];

/// Runs a target.
///
/// # Panics
/// If something is not as it has to be, or no target has that name.
pub fn run(target: &str, bytes: &[u8]) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target of that name");
    run(bytes);
}
