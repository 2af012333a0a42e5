//! What the integration tests share: a small deterministic generator and folders that remove themselves.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of it, and none is a library")]

pub mod disk;
pub mod history;
pub mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use drumlin::io::Backend;
use drumlin::io::fault::FaultyBackend;
use drumlin::{Config, IoBackend, Keyspace};

/// SplitMix64 (Steele, Lea, Flood 2014): enough randomness for tests, and the same from the same seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// A database's folder in the system's temporary directory, removed when dropped.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::Builder::new().prefix("drumlin-test-").tempdir().unwrap())
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("db")
    }
}

/// How long the segments of a [`small`] database's data file are.
pub const SEGMENT_BYTES: u64 = 256 << 10;

/// Small everything, so that splits, evictions, segment switches and checkpoints happen in tests.
pub fn small() -> Config {
    Config::new()
        .memory(8 << 20)
        .page_bytes(1024)
        .segment_bytes(SEGMENT_BYTES)
        .log_segment_bytes(1 << 20)
        .checkpoint_log_bytes(2 << 20)
}

/// A [`small`] database in memory, on a disk that fails when it is told to.
pub fn faulty() -> (FaultyBackend, Config) {
    let faulty = FaultyBackend::new(drumlin::io::in_memory());
    let backend: Arc<dyn Backend> = Arc::new(faulty.clone());
    (faulty, small().backend(backend))
}

/// What a keyspace should hold.
pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// It holds what it should.
pub fn compare(keyspace: &Keyspace, model: &Model) {
    for (key, value) in model {
        let found = keyspace.get(key).unwrap();
        assert!(found.as_deref() == Some(&value[..]), "row {}", key.escape_ascii());
    }
    assert_eq!(keyspace.count(..).unwrap(), model.len() as u64);
}

/// A short value, mostly; now and then a large one.
pub fn some_value(random: &mut Random) -> Vec<u8> {
    let length = match random.below(40) {
        0 => 70_000 + random.below(200_000),
        1..6 => 300 + random.below(6000),
        _ => random.below(120),
    };
    random.bytes(length as usize)
}

/// Both backends that work on real files.
pub const BACKENDS: [IoBackend; 2] = [IoBackend::Uring, IoBackend::Portable];

/// A number from the environment.
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
