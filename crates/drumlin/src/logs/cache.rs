//! The newest entries, kept in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::format::StreamPosition;

/// The memory that an entry takes in the cache besides its bytes: its place in the list, and its counters.
const OVERHEAD_BYTES: u64 = 64;

/// The entries that were appended last, by the positions at which they were appended. Entries that were cut off, purged
/// or moved are not looked for, so they stay until newer ones push them out.
#[derive(Debug)]
pub(super) struct Cache {
    /// In ascending order of positions.
    entries: VecDeque<(StreamPosition, Arc<[u8]>)>,
    bytes: u64,
    limit_bytes: u64,
}

impl Cache {
    pub(super) fn new(limit_bytes: u64) -> Cache {
        Cache { entries: VecDeque::new(), bytes: 0, limit_bytes }
    }

    /// Adds entries in ascending order of positions. If another thread was quicker with later ones, they are few.
    /// Returns the entries that it evicts, which the caller drops without the cache's lock.
    pub(super) fn add(
        &mut self,
        entries: impl Iterator<Item = (StreamPosition, Arc<[u8]>)>,
    ) -> Vec<(StreamPosition, Arc<[u8]>)> {
        for (position, entry) in entries {
            let bytes = entry.len() as u64 + OVERHEAD_BYTES;
            if bytes > self.limit_bytes / 4 {
                continue;
            }
            let mut at = self.entries.len();
            while at > 0 && self.entries[at - 1].0 > position {
                at -= 1;
            }
            self.entries.insert(at, (position, entry));
            self.bytes += bytes;
        }
        let mut evicted_count = 0;
        while self.bytes > self.limit_bytes {
            self.bytes -= self.entries[evicted_count].1.len() as u64 + OVERHEAD_BYTES;
            evicted_count += 1;
        }
        self.entries.drain(..evicted_count).collect()
    }

    /// Returns the entries that were appended at these positions, as far as they are still there. Finds each without a
    /// search that was appended after the one before it.
    pub(super) fn get_all(&self, positions: impl Iterator<Item = StreamPosition>) -> Vec<Option<Arc<[u8]>>> {
        let first = self.entries.front().map(|(position, _)| *position);
        let mut next = 0;
        let find = |position: StreamPosition| {
            if first.is_none_or(|first| position < first) {
                return None;
            }
            let is_next = self.entries.get(next).is_some_and(|(at, _)| *at == position);
            let search = || self.entries.binary_search_by_key(&position, |(position, _)| *position).ok();
            let at = if is_next { Some(next) } else { search() }?;
            next = at + 1;
            Some(Arc::clone(&self.entries[at].1))
        };
        positions.map(find).collect()
    }

    /// Returns the entry that was appended at this position, if it is still there.
    pub(super) fn get(&self, position: StreamPosition) -> Option<Arc<[u8]>> {
        self.get_all(std::iter::once(position)).swap_remove(0)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries are found by their positions, also if they arrived out of order, and the oldest go first.
    #[test]
    fn the_newest_entries_stay() {
        let mut cache = Cache::new(10 * (OVERHEAD_BYTES + 8));
        let order = [3u64, 1, 2, 5, 4, 9, 7, 8, 6, 12, 11, 10];
        for number in order {
            cache.add([(StreamPosition(number), number.to_le_bytes()[..].into())].into_iter());
        }
        assert!(cache.bytes() <= 10 * (OVERHEAD_BYTES + 8));
        for number in order {
            let found = cache.get(StreamPosition(number));
            assert_eq!(found.as_deref(), (number > 2).then_some(&number.to_le_bytes()[..]), "{number}");
        }
        let all = cache.get_all([2, 3, 4, 6, 5, 12, 20].map(StreamPosition).into_iter());
        let found: Vec<Option<u64>> = all
            .iter()
            .map(|entry| entry.as_ref().map(|entry| u64::from_le_bytes(entry[..].try_into().unwrap())))
            .collect();
        assert_eq!(found, [None, Some(3), Some(4), Some(6), Some(5), Some(12), None]);
        cache.add([(StreamPosition(13), [0; 1000][..].into())].into_iter());
        assert_eq!(cache.get(StreamPosition(13)), None, "one entry would push out all others");
    }
}
