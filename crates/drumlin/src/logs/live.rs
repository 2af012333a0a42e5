//! The live bytes in each part of the stream: where the oldest entry is that is still needed.

use std::collections::VecDeque;

use crate::format::StreamPosition;

/// The largest part of the stream whose live bytes are summed up. Eight bytes for each such part are little memory.
const GRANULE_BYTES_MAX: u64 = 64 << 10;

/// The parts of a segment whose live bytes are summed up, at least, so that one that is nearly dead is noticed.
const SEGMENT_GRANULE_COUNT: u64 = 16;

/// The live bytes in each granule of the stream. An entry counts where it begins, and a listed range in several places.
#[derive(Clone, Debug)]
pub(super) struct LiveBytes {
    granule_bytes: u64,
    /// The number of the first granule in `sums`.
    first: u64,
    sums: VecDeque<u64>,
    total: u64,
}

impl LiveBytes {
    pub(super) fn new(segment_bytes: u64) -> LiveBytes {
        let granule_bytes = (segment_bytes / SEGMENT_GRANULE_COUNT).clamp(1, GRANULE_BYTES_MAX);
        LiveBytes { granule_bytes, first: 0, sums: VecDeque::new(), total: 0 }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn add(&mut self, position: StreamPosition, bytes: u64) {
        let granule = position.0 / self.granule_bytes;
        if self.sums.is_empty() {
            self.first = granule;
        }
        while granule < self.first {
            self.sums.push_front(0);
            self.first -= 1;
        }
        while granule >= self.first + self.sums.len() as u64 {
            self.sums.push_back(0);
        }
        let sum = &mut self.sums[(granule - self.first) as usize];
        *sum += bytes;
        self.total += bytes;
    }

    pub(super) fn remove(&mut self, position: StreamPosition, bytes: u64) {
        let granule = position.0 / self.granule_bytes;
        let sum = &mut self.sums[(granule - self.first) as usize];
        *sum = sum.checked_sub(bytes).expect("more bytes die than were live");
        self.total -= bytes;
        while self.sums.front() == Some(&0) {
            self.sums.pop_front();
            self.first += 1;
        }
    }

    /// Returns the live bytes of the entries that begin below a position, roughly.
    pub(super) fn below(&self, position: StreamPosition) -> u64 {
        let granules = (position.0 / self.granule_bytes).saturating_sub(self.first) as usize;
        self.sums.iter().take(granules).sum()
    }

    /// Returns a position below which nothing is live, or `None` if nothing is live at all.
    pub(super) fn floor(&self) -> Option<StreamPosition> {
        debug_assert!(self.sums.front() != Some(&0), "the first granule has no live bytes");
        (!self.sums.is_empty()).then_some(StreamPosition(self.first * self.granule_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The floor is at or below every live byte, and rises when the oldest bytes die, in whatever order others do.
    #[test]
    fn the_floor_follows_the_oldest_bytes() {
        let mut live = LiveBytes::new(1 << 20);
        assert_eq!(live.floor(), None);
        let at = |granule: u64| StreamPosition(granule * GRANULE_BYTES_MAX + 100);
        for granule in [7, 5, 9] {
            live.add(at(granule), 10);
        }
        assert_eq!((live.floor(), live.total()), (Some(StreamPosition(5 * GRANULE_BYTES_MAX)), 30));
        live.remove(at(7), 10);
        assert_eq!(live.floor(), Some(StreamPosition(5 * GRANULE_BYTES_MAX)));
        live.remove(at(5), 10);
        assert_eq!((live.floor(), live.total()), (Some(StreamPosition(9 * GRANULE_BYTES_MAX)), 10));
        live.remove(at(9), 10);
        assert_eq!((live.floor(), live.total()), (None, 0));
    }
}
