//! Generates rows. Keys, values and random choices are derived from a seed, so they are the same for each engine.
//!
//! The number and version of a row determine its value, so that every value read can be verified. The first half of a
//! value is incompressible and the second half is compressible, so engines that compress store about half of it.

use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use crate::engine::{Key, Order, Source};

/// The seed of all random choices.
pub const SEED: u64 = 0x5EED;
/// The skew of a zipfian choice, as in YCSB.
const SKEW: f64 = 0.99;
/// The size of the header of a value (the row's number and version), in bytes.
const HEADER_BYTES: usize = 16;

/// Returns the key of the row with this number.
#[must_use]
pub fn key(number: u64) -> Key {
    number.to_be_bytes()
}

fn word(number: u64, version: u64, index: u64) -> u64 {
    let mut z = number.rotate_left(32) ^ version.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ index;
    z = (z ^ (z >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z ^ (z >> 29)
}

/// Returns the words of a value after its header.
fn words(number: u64, version: u64, bytes: usize) -> impl Iterator<Item = [u8; 8]> {
    let random_words = (bytes / 2) as u64 / 8;
    (0..)
        .map(move |index| if index < random_words { word(number, version, index) } else { 0x0101 * (number & 0xFF) })
        .map(u64::to_le_bytes)
}

/// Fills `value` with the value of a row. `bytes` is the size of the value, at least 16.
pub fn fill(value: &mut Vec<u8>, number: u64, version: u64, bytes: usize) {
    value.clear();
    value.extend_from_slice(&number.to_le_bytes());
    value.extend_from_slice(&version.to_le_bytes());
    for word in words(number, version, bytes) {
        let left = bytes - value.len();
        if left == 0 {
            return;
        }
        value.extend_from_slice(&word[..left.min(8)]);
    }
}

/// Returns the version of a row's value, or `None` if the value does not belong to this row.
#[must_use]
pub fn version(value: &[u8], number: u64, bytes: usize) -> Option<u64> {
    if value.len() != bytes || value[..8] != number.to_le_bytes() {
        return None;
    }
    let version = u64::from_le_bytes(value[8..HEADER_BYTES].try_into().expect("eight bytes"));
    // Compare whole words inline: calls that compare bytes took half of the time of a scan of small rows.
    let (parts, rest) = value[HEADER_BYTES..].as_chunks::<8>();
    let mut words = words(number, version, bytes);
    let matches = parts.iter().zip(&mut words).all(|(part, word)| *part == word);
    (matches && words.next().is_some_and(|word| *rest == word[..rest.len()])).then_some(version)
}

/// A permutation of `0..count`: a Feistel network over the next power of four. It is applied repeatedly until the
/// result is below `count`.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Permutation {
    /// Returns the permutation of `0..count` with this seed.
    #[must_use]
    pub fn new(count: u64, seed: u64) -> Permutation {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Permutation { count, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// Returns the image of `index`, which must be below `count`.
    #[must_use]
    pub fn at(&self, mut index: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        loop {
            let (mut left, mut right) = (index >> self.half_bits, index & mask);
            for round in 0..4 {
                (left, right) = (right, left ^ (word(right, self.seed, round) & mask));
            }
            index = (left << self.half_bits) | right;
            if index < self.count {
                return index;
            }
        }
    }
}

/// The distribution from which rows are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Choice {
    /// All rows have the same probability.
    Uniform,
    /// A few rows are drawn often, as in YCSB. These rows are scattered among the keys.
    Zipf,
}

/// Draws numbers from a zipfian distribution (Gray et al. 1994). 0 is the most frequent number.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    count: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Returns the distribution over `count` numbers. O(count).
    #[must_use]
    pub fn new(count: u64) -> Zipf {
        let zeta: f64 = (1..=count).map(|rank| (rank as f64).powf(-SKEW)).sum();
        let zeta_two = 1.0 + 0.5f64.powf(SKEW);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - SKEW)) / (1.0 - zeta_two / zeta);
        Zipf { count: count as f64, alpha: 1.0 / (1.0 - SKEW), zeta, eta }
    }

    /// Draws a number.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let unit = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5f64.powf(SKEW) {
            1
        } else {
            let drawn = (self.count * (self.eta * unit - self.eta + 1.0).powf(self.alpha)) as u64;
            drawn.min(self.count as u64 - 1)
        }
    }
}

/// Draws rows of a table.
#[derive(Clone, Debug)]
pub struct Chooser {
    random: Random,
    count: u64,
    zipf: Option<(Zipf, Permutation)>,
}

impl Chooser {
    /// Returns a thread's chooser among `count` rows. Draws are zipfian if `zipf` is given, and uniform otherwise.
    #[must_use]
    pub fn new(seed: u64, count: u64, zipf: Option<Zipf>) -> Chooser {
        let zipf = zipf.map(|zipf| (zipf, Permutation::new(count, SEED)));
        Chooser { random: Random(seed), count, zipf }
    }

    /// Draws the number of a row.
    pub fn draw(&mut self) -> u64 {
        match &self.zipf {
            Some((zipf, scattered)) => scattered.at(zipf.draw(&mut self.random)),
            None => self.random.below(self.count),
        }
    }

    /// Returns the random number generator, for other draws from the same seed.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

/// A source of all rows of a table, for a load.
#[derive(Debug)]
pub struct AllRows {
    next: u64,
    count: u64,
    value_bytes: usize,
    order: Option<Permutation>,
    value: Vec<u8>,
}

impl AllRows {
    /// Returns the rows `0..count` in this order.
    #[must_use]
    pub fn new(count: u64, value_bytes: usize, order: Order) -> AllRows {
        let order = (order == Order::Random).then(|| Permutation::new(count, SEED));
        AllRows { next: 0, count, value_bytes, order, value: Vec::new() }
    }
}

impl Source for AllRows {
    fn next(&mut self) -> Option<(Key, &[u8])> {
        if self.next == self.count {
            return None;
        }
        let number = self.order.map_or(self.next, |order| order.at(self.next));
        self.next += 1;
        fill(&mut self.value, number, 0, self.value_bytes);
        Some((key(number), &self.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value is recognised as that of its row and version, and a change to any byte is detected.
    #[test]
    fn values_are_verified() {
        let mut value = Vec::new();
        for bytes in [16, 100, 1024] {
            fill(&mut value, 77, 3, bytes);
            assert_eq!(value.len(), bytes);
            assert_eq!(version(&value, 77, bytes), Some(3));
            assert_eq!(version(&value, 78, bytes), None);
            for at in [8, 20, bytes / 2 - 1, bytes - 1] {
                if at < bytes && bytes > 16 {
                    value[at] ^= 1;
                    assert_eq!(version(&value, 77, bytes), None, "byte {at} of {bytes}");
                    value[at] ^= 1;
                }
            }
        }
    }

    /// A random order contains each row once and is not sorted.
    #[test]
    fn a_random_order_has_each_row_once() {
        for count in [1, 2, 1000, 4097] {
            let permutation = Permutation::new(count, SEED);
            let mut found: Vec<u64> = (0..count).map(|index| permutation.at(index)).collect();
            assert!(count < 10 || !found.is_sorted());
            found.sort_unstable();
            assert!(found.into_iter().eq(0..count));
        }
    }

    /// The most frequent of 1,000 rows gets about an eighth of all draws, and no draw is out of range.
    #[test]
    fn zipf_has_its_skew() {
        let (zipf, mut random) = (Zipf::new(1000), Random(1));
        let mut counts = vec![0u32; 1000];
        for _ in 0..100_000 {
            counts[usize::try_from(zipf.draw(&mut random)).unwrap()] += 1;
        }
        assert!((11_000..15_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[0] > counts[1] && counts[1] > counts[10] && counts[10] > counts[500]);
    }
}
