//! Fuzz targets. Each takes arbitrary bytes, and panics if the library misbehaves.
//!
//! `fuzz/` at the root of the repository hands these functions to libFuzzer. `tests/corpus.rs` replays a corpus of
//! inputs with the stable toolchain. This crate's program damages and opens databases by the hundred thousand, and runs
//! seeded sequences of calls to the whole public API.

pub mod api;
pub mod files;
pub mod logs;
pub mod operations;
mod script;

pub use script::Script;

/// The name of a target, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. `fuzz/fuzz_targets` has a file for each.
pub const TARGETS: [Target; 16] = [
    ("advice", drumlin::fuzzing::advice),
    ("api", api::run),
    ("catalogue", drumlin::fuzzing::catalogue),
    ("changes", drumlin::fuzzing::changes),
    ("extent", drumlin::fuzzing::extent),
    ("files", files::run),
    ("log_headers", drumlin::fuzzing::log_headers),
    ("logs", drumlin::fuzzing::logs),
    ("logs_files", logs::run),
    ("node", drumlin::fuzzing::node),
    ("operations", operations::run),
    ("probe", drumlin::fuzzing::probe),
    ("record", drumlin::fuzzing::record),
    ("rows", drumlin_cli::fuzzing::rows),
    ("summary", drumlin::fuzzing::summary),
    ("superblock", drumlin::fuzzing::superblock),
];

/// Runs a target.
///
/// # Panics
/// If the library misbehaves, or no target has that name.
pub fn run(target: &str, bytes: &[u8]) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target of that name");
    run(bytes);
}
