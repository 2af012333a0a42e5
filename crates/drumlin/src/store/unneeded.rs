//! The number of free segments that recent checkpoint intervals did not need.

use std::collections::VecDeque;

/// The number of checkpoint intervals after which a free segment is returned to the file system if none of them needed
/// it.
/// Measured: decision 007, together with `WASTE_SHARE_MAX`.
const UNNEEDED_INTERVALS: usize = 8;

/// For each recent checkpoint interval, the number of segments that stayed free throughout.
#[derive(Debug, Default)]
pub(super) struct Unneeded {
    /// The newest number comes last. At most [`UNNEEDED_INTERVALS`] numbers.
    counts: VecDeque<u64>,
}

impl Unneeded {
    /// Adds the number of one more checkpoint interval. Returns the smallest of the recent numbers, or 0 until there
    /// are enough of them.
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
