//! Keys, values, bounds and options, drawn from a script.

use std::ops::Bound;
use std::time::Duration;

use drumlin::{Durability, Isolation, TxOptions};
use drumlin_testing::Random;

use super::futures::Fate;
use crate::Script;

/// Returns the first `count` bytes that a seed's generator yields.
pub(super) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    numbers(seed).bytes(count)
}

/// Returns the random generator for a seed. The multiplication makes neighbouring seeds unrelated.
fn numbers(seed: u64) -> Random {
    Random(seed.wrapping_mul(0xD134_2543_DE82_EF95))
}

/// Returns the script generated from a seed.
pub fn script(seed: u64) -> Vec<u8> {
    let mut random = numbers(seed);
    let length = 40 + random.index(280);
    random.bytes(length)
}

pub(super) fn key(script: &mut Script<'_>) -> Vec<u8> {
    match script.byte() {
        kind @ 0..180 => vec![b'k', kind % 24],
        kind @ 180..240 => [&[b'p'; 40][..], &[kind, script.byte()]].concat(),
        240..250 => Vec::new(),
        _ => vec![b'l'; 128],
    }
}

pub(super) fn value(script: &mut Script<'_>) -> Vec<u8> {
    let (kind, fill) = (script.byte(), script.byte());
    let length = match kind {
        0..200 => usize::from(kind) / 2,
        200..240 => usize::from(kind - 200) * 60,
        240..250 => 60_000 + usize::from(kind) * 20,
        _ => usize::from(kind - 249) * 40_000,
    };
    (0..length).map(|at| fill.wrapping_add((at / 3) as u8)).collect()
}

pub(super) fn bounds(script: &mut Script<'_>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut one = || match script.byte() % 3 {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(script)),
        _ => Bound::Excluded(key(script)),
    };
    (one(), one())
}

pub(super) fn fate(script: &mut Script<'_>) -> Fate {
    Fate { polls: usize::from(script.byte() % 6), leaks: script.byte().is_multiple_of(2) }
}

pub(super) fn options(script: &mut Script<'_>) -> TxOptions {
    let isolation = match script.byte() % 3 {
        0 => Isolation::Snapshot,
        1 => Isolation::Serializable,
        _ => Isolation::ReadCommitted,
    };
    let durability = if script.byte().is_multiple_of(3) { Durability::Full } else { Durability::Relaxed };
    // Every wait ends, even if it has no timeout: a thread never waits for a lock that it holds itself, and deadlocks
    // are detected.
    let lock_timeout = [Duration::ZERO, Duration::from_millis(1), Duration::MAX][usize::from(script.byte() % 3)];
    TxOptions { isolation, durability, lock_timeout, ..TxOptions::default() }
}
