//! Hash tables whose iteration order is the same in every run.
//!
//! The standard library seeds its hash tables with a random key in each process, as a defence against keys chosen to
//! collide. Here the engine assigns the keys, which are all numbers, so a cheap hash is enough, and repeatable runs
//! matter more.

use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<NumberHasher>>;
pub(crate) type HashSet<K> = std::collections::HashSet<K, BuildHasherDefault<NumberHasher>>;

/// Hashes by multiplication, like the compiler's own tables (FxHash, in the form of `rustc-hash` 2): the high bits of
/// the product depend on all bits of the number, and the final rotation moves them to the bits that hash tables use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl NumberHasher {
    /// The multiplier of `rustc-hash` 2. Fixed by the hash function.
    const FACTOR: u64 = 0xf135_7aea_2e62_a9c5;

    #[inline]
    fn add(&mut self, number: u64) {
        self.0 = self.0.wrapping_add(number).wrapping_mul(NumberHasher::FACTOR);
    }
}

impl Hasher for NumberHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(size_of::<u64>()) {
            let mut number = [0; size_of::<u64>()];
            number[..part.len()].copy_from_slice(part);
            self.add(u64::from_le_bytes(number));
        }
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.add(number.into());
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}
