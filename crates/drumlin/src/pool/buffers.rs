//! Buffers that extents are read into, within their part of the budget.
//!
//! A caller with reads in flight must not wait for another buffer: it takes a free one ([`Buffers::try_take`]) or
//! completes a read first. So a caller that waits ([`Buffers::take`]) waits for the disk alone.

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
    /// Of all buffers, idle or taken.
    bytes: usize,
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
        assert!(buffer.capacity() <= state.bytes, "a buffer comes back that is not counted");
        state.idle[class].push(buffer);
        debug_assert!(state.idle_bytes() <= state.bytes, "more buffers are idle than there are");
        drop(state);
        self.freed.notify_all();
    }

    /// Subtracts buffers of this many bytes, which a failed queue has dropped.
    pub(super) fn lose(&self, bytes: usize) {
        let mut state = self.state.lock();
        assert!(bytes <= state.bytes, "more buffers are lost than there are");
        state.bytes -= bytes;
        debug_assert!(state.idle_bytes() <= state.bytes, "idle buffers are lost");
        drop(state);
        self.freed.notify_all();
    }

    /// Bytes of all buffers.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes as u64
    }
}

impl State {
    fn idle_bytes(&self) -> usize {
        self.idle.iter().flatten().map(AlignedBuffer::capacity).sum()
    }

    fn try_take(&mut self, length: usize, limit_bytes: usize) -> Option<AlignedBuffer> {
        let class = SIZES.iter().position(|size| length <= *size).expect("reads are shorter");
        let mut found = self.idle[class].pop();
        while found.is_none() {
            if self.bytes + SIZES[class] <= limit_bytes || self.bytes == 0 {
                self.bytes += SIZES[class];
                found = Some(AlignedBuffer::zeroed(SIZES[class]));
            } else {
                // Idle buffers of other sizes are freed, the largest first.
                let other = self.idle.iter_mut().rev().find_map(Vec::pop)?;
                assert!(other.capacity() <= self.bytes, "an idle buffer is not counted");
                self.bytes -= other.capacity();
            }
        }
        let mut buffer = found?;
        debug_assert_eq!(buffer.capacity(), SIZES[class], "a buffer lies among those of another size");
        let is_alone = self.bytes == SIZES[class];
        assert!(self.bytes <= limit_bytes || is_alone, "buffers for reads take more than their part of the budget");
        buffer.set_len(length);
        Some(buffer)
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
}
