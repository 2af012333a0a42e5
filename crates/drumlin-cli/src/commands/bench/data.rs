//! The rows of a benchmark: their keys, the order in which they are written, and their values.
//!
//! The keys of `N` rows are the numbers from 0 to `N - 1`, each written as 16 decimal digits. The write order therefore
//! does not change the rows, and a benchmark can read any row without storing a list of keys.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};

use super::options::{Distribution, Order};

pub(super) const KEY_BYTES: usize = 16;

/// Returns the key of row `index`.
pub(super) fn key(index: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'0'; KEY_BYTES];
    let mut rest = index;
    for digit in key.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    key
}

/// A pseudorandom permutation of the numbers below `count`.
///
/// Xor-shifts and multiplications by odd numbers permute the numbers of `bits` bits. The permutation is repeated until
/// the result is below `count`, which takes less than two rounds on average. The result is still a permutation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permutation {
    count: u64,
    mask: u64,
    shift: u32,
}

impl Permutation {
    pub(super) fn new(count: u64) -> Permutation {
        let bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).max(2);
        Permutation { count, mask: u64::MAX >> (u64::BITS - bits), shift: bits.div_ceil(2) }
    }

    pub(super) fn at(self, index: u64) -> u64 {
        debug_assert!(index < self.count);
        let mut number = index;
        loop {
            for odd in [0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93, 0xA076_1D64_78BD_642F] {
                number = (number.wrapping_add(odd) & self.mask).wrapping_mul(odd) & self.mask;
                number ^= number >> self.shift;
            }
            if number < self.count {
                return number;
            }
        }
    }
}

/// The order in which a benchmark writes its rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteOrder {
    permutation: Option<Permutation>,
}

impl WriteOrder {
    pub(super) fn new(order: Order, count: u64) -> WriteOrder {
        WriteOrder { permutation: (order == Order::Random).then(|| Permutation::new(count)) }
    }

    /// Returns the row that is written at this position.
    pub(super) fn row(self, position: u64) -> u64 {
        self.permutation.map_or(position, |permutation| permutation.at(position))
    }
}

/// Generates the random choices of a benchmark: the rows to read and the bytes of values.
#[derive(Debug)]
pub(super) struct Random {
    generator: Xoshiro256PlusPlus,
    count: u64,
    zipf: Option<(Zipf<f64>, Permutation)>,
}

impl Random {
    /// Creates a generator. With the same seed, it chooses the same rows.
    pub(super) fn new(seed: u64, count: u64, distribution: Distribution) -> Random {
        let zipf = (distribution == Distribution::Zipf).then(|| {
            let zipf = Zipf::new(count as f64, 0.99).expect("a positive count and exponent");
            // Scatter the popular rows, which would otherwise share the first leaves.
            (zipf, Permutation::new(count))
        });
        Random { generator: Xoshiro256PlusPlus::seed_from_u64(seed), count, zipf }
    }

    pub(super) fn row(&mut self) -> u64 {
        match &self.zipf {
            None => self.generator.random_range(0..self.count),
            Some((zipf, permutation)) => {
                let rank = zipf.sample(&mut self.generator) as u64;
                permutation.at(rank.clamp(1, self.count) - 1)
            }
        }
    }

    /// Returns `true` in `percent` of a hundred cases, at random.
    pub(super) fn percent(&mut self, percent: u32) -> bool {
        self.generator.random_range(0..100) < percent
    }

    /// Fills a value: the first half with random bytes, the second with one repeated byte.
    pub(super) fn fill(&mut self, value: &mut [u8]) {
        let half = value.len() / 2;
        self.generator.fill_bytes(&mut value[..half]);
        value[half..].fill(b'.');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For any count, each number below the count occurs exactly once.
    #[test]
    fn permutations_lose_nothing() {
        for count in [1, 2, 3, 4, 5, 7, 8, 9, 100, 255, 256, 257, 1000, 65_537] {
            let permutation = Permutation::new(count);
            let mut numbers: Vec<u64> = (0..count).map(|index| permutation.at(index)).collect();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..count), "{count}");
        }
    }

    /// A permutation scatters its numbers: few neighbours remain neighbours.
    #[test]
    fn permutations_scatter() {
        let permutation = Permutation::new(100_000);
        let near =
            (1..100_000).filter(|&index| permutation.at(index).abs_diff(permutation.at(index - 1)) < 100).count();
        assert!(near < 1000, "{near} neighbours");
    }

    /// Keys sort in numeric order.
    #[test]
    fn keys_sort() {
        assert_eq!(&key(0), b"0000000000000000");
        assert_eq!(&key(9_999_999_999_999_999), b"9999999999999999");
        assert!((0..2000).all(|index| key(index) < key(index + 1)));
    }

    /// Both distributions stay within range. Zipf's favours a few rows.
    #[test]
    fn distributions() {
        for distribution in [Distribution::Uniform, Distribution::Zipf] {
            let mut random = Random::new(3, 1000, distribution);
            let mut times = vec![0u32; 1000];
            (0..100_000).for_each(|_| times[random.row() as usize] += 1);
            let most = *times.iter().max().unwrap();
            assert_eq!(most > 5000, distribution == Distribution::Zipf, "{distribution:?}: {most}");
        }
    }
}
