//! Buffers for reading extents, within their part of the budget.
//!
//! A caller with reads in flight must not wait for a buffer: it takes a free one ([`Buffers::try_take`]), or completes
//! a read first. So a caller that does wait ([`Buffers::take`]) waits only for the disk.
//!
//! Each size in use is entitled to a share of the memory. Once a size has its share, its callers wait for one of its
//! own buffers instead of freeing a buffer of a different size. So reads that alternate between two sizes keep reusing
//! the same buffers.

use crate::io::AlignedBuffer;
use crate::sync::{Condvar, Mutex};

use super::frames::PAGE_BYTES_MAX;

/// Size of a buffer for one extent of any page size, at any offset in its block.
const SCRATCH_BYTES: usize = PAGE_BYTES_MAX + 2 * 4096;
/// Maximum bytes of a single read. Larger reads are not faster.
const GROUP_BYTES_MAX: usize = 256 << 10;
/// Size of a buffer with room for a chunk of a large value in two forms: as stored, at any offset in its block, and
/// decompressed.
const PAIR_BYTES: usize = 2 * GROUP_BYTES_MAX + (32 << 10);
/// The sizes of buffers. In this order, they hold an extent of a small page, an extent of any page, several extents
/// read together, and a chunk of a large value both as stored and decompressed.
const SIZES: [usize; 4] = [16 << 10, SCRATCH_BYTES, GROUP_BYTES_MAX + SCRATCH_BYTES, PAIR_BYTES];

const _: () = {
    let [page, any, several, pair] = SIZES;
    assert!(page < any && any < several && several < pair, "the first size that is long enough is the shortest such");
};

/// A size counts as in use from the time one of its buffers is taken until this number of buffers of any size have been
/// taken.
const IN_USE_TAKES: u64 = 512;

/// The buffers for reading extents. See the module documentation.
#[derive(Debug)]
pub(super) struct Buffers {
    limit_bytes: usize,
    state: Mutex<SpareBuffers>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct SpareBuffers {
    /// Idle buffers, indexed by size.
    idle: [Vec<AlignedBuffer>; SIZES.len()],
    /// Bytes of the buffers of each size, idle or taken.
    bytes: [usize; SIZES.len()],
    /// Number of takes so far, and its value when each size was last taken.
    take_count: u64,
    last_taken: [u64; SIZES.len()],
}

impl Buffers {
    pub(super) fn new(limit_bytes: usize) -> Buffers {
        Buffers { limit_bytes, state: Mutex::default(), freed: Condvar::new() }
    }

    /// Returns the maximum bytes of a single read. If there is memory for only a few buffers, extents are read one by
    /// one, because a buffer for several extents would not be free until no other read is in flight.
    pub(super) fn group_bytes_max(&self) -> usize {
        let [_, one, several, _] = SIZES;
        if self.limit_bytes >= 4 * several { GROUP_BYTES_MAX } else { one }
    }

    /// Takes a buffer of at least `length` bytes. Returns `None` if the memory is used up, except that one buffer is
    /// always granted.
    pub(super) fn try_take(&self, length: usize) -> Option<AlignedBuffer> {
        self.state.lock().try_take(length, self.limit_bytes)
    }

    /// Like [`try_take`](Self::try_take), but waits for memory. The caller must have no reads in flight.
    pub(super) fn take(&self, length: usize) -> AlignedBuffer {
        let mut state = self.state.lock();
        loop {
            match state.try_take(length, self.limit_bytes) {
                Some(buffer) => return buffer,
                None => self.freed.wait(&mut state),
            }
        }
    }

    pub(super) fn give(&self, buffer: AlignedBuffer) {
        let class = SIZES.iter().position(|size| *size == buffer.capacity()).expect("it was taken here");
        let mut state = self.state.lock();
        assert!(buffer.capacity() <= state.bytes[class], "a buffer comes back that is not counted");
        state.idle[class].push(buffer);
        debug_assert!(state.idle_bytes() <= state.all_bytes(), "more buffers are idle than there are");
        drop(state);
        self.freed.notify_all();
    }

    /// Deducts a buffer of this capacity, which was lost when its queue failed.
    pub(super) fn forfeit(&self, capacity: usize) {
        let class = SIZES.iter().position(|size| *size == capacity).expect("it was taken here");
        let mut state = self.state.lock();
        assert!(capacity <= state.bytes[class], "more buffers are lost than there are");
        state.bytes[class] -= capacity;
        debug_assert!(state.idle_bytes() <= state.all_bytes(), "idle buffers are lost");
        drop(state);
        self.freed.notify_all();
    }

    /// Returns the bytes of all buffers.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().all_bytes() as u64
    }
}

impl SpareBuffers {
    fn all_bytes(&self) -> usize {
        self.bytes.iter().sum()
    }

    fn idle_bytes(&self) -> usize {
        self.idle.iter().flatten().map(AlignedBuffer::capacity).sum()
    }

    fn is_in_use(&self, class: usize) -> bool {
        debug_assert!(self.last_taken[class] <= self.take_count, "a size was taken in the future");
        self.take_count - self.last_taken[class] < IN_USE_TAKES && self.bytes[class] > 0
    }

    fn try_take(&mut self, length: usize, limit_bytes: usize) -> Option<AlignedBuffer> {
        let class = SIZES.iter().position(|size| length <= *size).expect("reads are shorter");
        self.take_count += 1;
        self.last_taken[class] = self.take_count;
        while self.idle[class].is_empty() {
            if self.all_bytes() + SIZES[class] <= limit_bytes || self.all_bytes() == 0 {
                self.bytes[class] += SIZES[class];
                self.idle[class].push(AlignedBuffer::zeroed(SIZES[class]));
            } else {
                self.free_another(class, limit_bytes)?;
            }
        }
        let mut buffer = self.idle[class].pop()?;
        debug_assert_eq!(buffer.capacity(), SIZES[class], "a buffer lies among those of another size");
        let is_only_one = self.all_bytes() == SIZES[class];
        assert!(
            self.all_bytes() <= limit_bytes || is_only_one,
            "buffers for reads take more than their part of the budget"
        );
        buffer.set_len(length);
        Some(buffer)
    }

    /// Frees an idle buffer of a size other than `class`, preferring the largest. Returns `None` if no other size has
    /// an idle buffer, or if `class` has its share and all the idle buffers are of sizes in use.
    fn free_another(&mut self, class: usize, limit_bytes: usize) -> Option<()> {
        assert!(self.idle[class].is_empty(), "a buffer is freed although one is idle");
        let in_use_count = (0..SIZES.len()).filter(|&other| other == class || self.is_in_use(other)).count();
        let has_share = self.bytes[class] > 0 && self.bytes[class] + SIZES[class] > limit_bytes / in_use_count;
        let may_free = |other: &usize| !self.idle[*other].is_empty() && (!has_share || !self.is_in_use(*other));
        let other = (0..SIZES.len()).rev().find(may_free)?;
        debug_assert!(other != class, "an idle buffer of the wanted size is freed");
        self.bytes[other] -= self.idle[other].pop()?.capacity();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The buffers of all sizes together stay within the memory, except that a first buffer is always granted.
    #[test]
    fn buffers_stay_within_their_memory() {
        let buffers = Buffers::new(200 << 10);
        let wide = buffers.try_take(300 << 10).expect("one is always to be had");
        assert!(buffers.try_take(100).is_none());
        buffers.give(wide);
        let small: Vec<_> = std::iter::from_fn(|| buffers.try_take(5000)).collect();
        assert_eq!(small.len(), 12);
        assert!(buffers.bytes() <= 200 << 10);
        small.into_iter().for_each(|buffer| buffers.give(buffer));
        assert_eq!(buffers.take(70_000).len(), 70_000);
        assert!(buffers.bytes() <= 200 << 10);
    }

    /// If reads alternate between two sizes, each size gets half of the memory and keeps reusing the same buffers. If
    /// reads of one size stop, the other size gets its half.
    #[test]
    fn sizes_in_use_keep_their_buffers() {
        let buffers = Buffers::new(2 << 20);
        let take_all = |length| std::iter::from_fn(|| buffers.try_take(length)).collect::<Vec<_>>();
        let give_all = |taken: Vec<AlignedBuffer>| taken.into_iter().for_each(|buffer| buffers.give(buffer));
        let kept_bytes = || buffers.state.lock().bytes;
        take_all(300 << 10).into_iter().for_each(|buffer| buffers.give(buffer));
        let taken = take_all(5000);
        assert!(taken.len() >= 60, "{} small buffers", taken.len());
        give_all(taken);
        let shares = kept_bytes();
        for _ in 0..100 {
            let large = take_all(300 << 10);
            assert!(large.len() >= 2, "{} large buffers", large.len());
            give_all(large);
            give_all(take_all(5000));
            assert_eq!(kept_bytes(), shares, "buffers were freed for others");
        }
        for _ in 0..IN_USE_TAKES {
            let small = buffers.take(5000);
            buffers.give(small);
        }
        let taken = take_all(5000);
        assert_eq!(taken.len(), (2 << 20) / (16 << 10));
        give_all(taken);
    }
}
