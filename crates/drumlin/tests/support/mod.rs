//! Code shared by the integration tests: folders that remove themselves, small databases, and models.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of it, and none is a library")]

pub mod history;
pub mod workload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drumlin::{Config, IoBackend, Keyspace};
use drumlin_io::Backend;
use drumlin_io::testing::fault::{FaultyBackend, Operation};

pub use drumlin_testing::Random;

/// A database's folder in the system's temporary directory, removed on drop.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::Builder::new().prefix("drumlin-test-").tempdir().unwrap())
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("db")
    }
}

/// The segment length of a [`small`] database's data file.
pub const SEGMENT_BYTES: u64 = 256 << 10;

/// Returns a configuration with small sizes, so that tests cause splits, evictions, segment switches and checkpoints.
/// Warm start is off, because tests count reads and hold some of them.
pub fn small() -> Config {
    Config::new()
        .memory(8 << 20)
        .page_bytes(1024)
        .segment_bytes(SEGMENT_BYTES)
        .log_segment_bytes(1 << 20)
        .checkpoint_log_bytes(2 << 20)
        .warm_start(false)
}

/// Returns a [`small`] configuration in memory, on a disk that fails on request.
pub fn faulty() -> (FaultyBackend, Config) {
    let faulty = FaultyBackend::new(drumlin_io::in_memory());
    let backend: Arc<dyn Backend> = Arc::new(faulty.clone());
    (faulty, small().backend(backend))
}

/// Holds the next write of log records. Does not hold other writes, such as the preparation of a segment.
pub fn hold_records(disk: &FaultyBackend) {
    let is_records = |path: &Path, offset| path.extension().is_some_and(|extension| extension == "seg") && offset > 0;
    disk.hold_nth_at(Operation::Sync, 1, is_records);
}

/// The rows that a keyspace must have.
pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Copies a database's folder in the state in which a kill would leave it now, provided that nothing is being written.
pub fn copy_folder(from: &Path, to: &Path) {
    for folder in [from.to_path_buf(), from.join("log")] {
        let target = to.join(folder.strip_prefix(from).unwrap());
        std::fs::create_dir_all(&target).unwrap();
        for entry in std::fs::read_dir(&folder).into_iter().flatten().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), target.join(entry.file_name())).unwrap();
            }
        }
    }
}

/// Checks that a keyspace has the rows of the model.
pub fn compare(keyspace: &Keyspace, model: &Model) {
    for (key, value) in model {
        let found = keyspace.get(key).unwrap();
        assert!(found.as_deref() == Some(&value[..]), "row {}", key.escape_ascii());
    }
    assert_eq!(keyspace.count(..).unwrap(), model.len() as u64);
}

/// Returns a value: usually short, sometimes large.
pub fn some_value(random: &mut Random) -> Vec<u8> {
    let length = match random.below(40) {
        0 => 70_000 + random.below(200_000),
        1..6 => 300 + random.below(6000),
        _ => random.below(120),
    };
    random.bytes(length as usize)
}

/// Runs a test, given by its module and name, in a separate process with these environment variables, so that tests
/// that change or measure their process do not affect one another. Prints the memory figures that the process reports.
pub fn alone(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    const VARIABLE: &str = "DRUMLIN_TEST_ALONE";
    if std::env::var(VARIABLE).is_ok_and(|name| name == test) {
        return body();
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(VARIABLE, test).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let [output_text, failed] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    output_text.lines().filter(|line| line.contains("MiB")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{test} failed:\n{failed}");
    assert!(output_text.contains("\nrunning 1 test\n"), "there is no test {test}");
}

/// The backends that work on real files.
#[cfg(not(drumlin_portable))]
pub const BACKENDS: [IoBackend; 2] = [IoBackend::Uring, IoBackend::Portable];
#[cfg(drumlin_portable)]
pub const BACKENDS: [IoBackend; 1] = [IoBackend::Portable];

/// Returns a number from an environment variable, or the default.
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
