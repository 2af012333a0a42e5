//! The number of segments that recent checkpoint intervals did not need.

use std::collections::VecDeque;

/// A free segment goes back to the file system after this many checkpoint intervals have not needed it.
/// Measured: decision 007, together with `WASTE_SHARE_MAX`.
const UNNEEDED_INTERVALS: usize = 8;

/// Counts of segments that stayed free throughout recent checkpoint intervals.
#[derive(Debug, Default)]
pub(super) struct Unneeded {
    /// The newest is last; at most [`UNNEEDED_INTERVALS`].
    counts: VecDeque<u64>,
}

impl Unneeded {
    /// Adds the count of one more checkpoint interval. Returns the smallest of the recent counts once there are enough,
    /// and 0 until then.
    pub(super) fn push(&mut self, count: u64) -> u64 {
        self.counts.push_back(count);
        if self.counts.len() < UNNEEDED_INTERVALS {
            return 0;
        }
        let least = self.counts.iter().copied().min().expect("a count was pushed");
        self.counts.pop_front();
        least
    }
}
