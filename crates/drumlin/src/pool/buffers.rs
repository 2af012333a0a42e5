//! Buffers that extents are read into, within their part of the budget.
//!
//! A caller with reads in flight must not wait for another buffer: it takes a free one ([`Buffers::try_take`]) or
//! completes a read first. So a caller that waits ([`Buffers::take`]) waits for the disk alone.
//!
//! Each size that is in use may have its share of the memory. A size that has it waits for one of its own buffers, and
//! frees none of another: reads of two sizes in turns go on with the buffers that there are.

use crate::io::AlignedBuffer;
use crate::sync::{Condvar, Mutex};

use super::{GROUP_BYTES_MAX, PAIR_BYTES, SCRATCH_BYTES};

/// For an extent of a small page, for an extent of any page, for several extents read together, for a chunk of a large
/// value twice.
const SIZES: [usize; 4] = [16 << 10, SCRATCH_BYTES, GROUP_BYTES_MAX + SCRATCH_BYTES, PAIR_BYTES];

const _: () = {
    let [page, any, several, pair] = SIZES;
    assert!(page < any && any < several && several < pair, "the first size that is long enough is the shortest such");
};

/// A size is in use while no more buffers than this were taken since one of that size.
const IN_USE_TAKES: u64 = 512;

/// See the module.
#[derive(Debug)]
pub(super) struct Buffers {
    limit_bytes: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By size.
    idle: [Vec<AlignedBuffer>; SIZES.len()],
    /// Bytes of the buffers of each size, idle or taken.
    bytes: [usize; SIZES.len()],
    /// Takes so far, and how many there had been when each size was last asked for.
    take_count: u64,
    last_taken: [u64; SIZES.len()],
}

impl Buffers {
    pub(super) fn new(limit_bytes: usize) -> Buffers {
        Buffers { limit_bytes, state: Mutex::default(), freed: Condvar::new() }
    }

    /// The largest single read. With memory for few buffers only, extents are read one by one: a group would wait until
    /// no other read is in progress.
    pub(super) fn group_bytes_max(&self) -> usize {
        let [_, one, several, _] = SIZES;
        if self.limit_bytes >= 4 * several { GROUP_BYTES_MAX } else { one }
    }

    /// Takes a buffer of this many bytes. Returns `None` if the memory is used up; one buffer is always granted.
    pub(super) fn try_take(&self, length: usize) -> Option<AlignedBuffer> {
        self.state.lock().try_take(length, self.limit_bytes)
    }

    /// Like [`try_take`](Self::try_take), but waits. The caller must have no reads in flight.
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

    /// Subtracts a buffer of this capacity, which a failed queue has dropped.
    pub(super) fn lose(&self, capacity: usize) {
        let class = SIZES.iter().position(|size| *size == capacity).expect("it was taken here");
        let mut state = self.state.lock();
        assert!(capacity <= state.bytes[class], "more buffers are lost than there are");
        state.bytes[class] -= capacity;
        debug_assert!(state.idle_bytes() <= state.all_bytes(), "idle buffers are lost");
        drop(state);
        self.freed.notify_all();
    }

    /// Bytes of all buffers.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().all_bytes() as u64
    }
}

impl State {
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
        let is_alone = self.all_bytes() == SIZES[class];
        assert!(
            self.all_bytes() <= limit_bytes || is_alone,
            "buffers for reads take more than their part of the budget"
        );
        buffer.set_len(length);
        Some(buffer)
    }

    /// Frees an idle buffer of a size other than `class`, the largest first. `None` if there is none, or if sizes in
    /// use have them all and `class` has buffers and its share.
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

    /// Buffers of all sizes together stay within the memory, but one is always granted.
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

    /// Reads of two sizes in turns have half of the memory each and go on with the same buffers; a size that is no
    /// longer asked for gives its half up.
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
