//! Listed ranges: entries with adjacent indexes whose places are in a record of the stream instead of memory.
//!
//! # Invariants
//! 1. A list of places is appended after the entries that it names, and again when one of them is moved. So it lies
//!    above them, and is needed only as long as one of them is.
//! 2. A listed range changes no entry: it is made, replaced and shortened under the lock of its log.

use crate::format::logs::{LIST_HEADER_BYTES, LIST_OFFSET, PLACE_BYTES};
use crate::format::{StreamPosition, get_u32, get_u64};

use super::place::{EntryPlace, live_bytes_of};

/// The parts of the stream among which the live bytes of a listed range are divided. Its entries may be spread over
/// many segments, and memory does not know where each is.
const SHARE_COUNT: u64 = 8;

/// Entries with adjacent indexes whose places are in a record of the stream. 40 bytes, for up to 128 entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListedRange {
    /// The index of the first entry of the list.
    pub(super) first: u64,
    /// The position of the list, from its checksum on.
    pub(super) list: StreamPosition,
    /// No entry of the list lies below this position.
    pub(super) lowest: StreamPosition,
    highest: StreamPosition,
    /// The live bytes of all entries of the list, and of the list.
    bytes: u32,
    /// The number of places in the list.
    listed_count: u8,
    /// The entries at the beginning of the list that were purged.
    purged_count: u8,
    /// The entries of the list that were not cut off, purged ones included.
    uncut_count: u8,
}

const _: () = assert!(size_of::<ListedRange>() == 40 && crate::format::logs::PLACE_COUNT_MAX <= u8::MAX as usize);

impl ListedRange {
    /// The length of an encoded listed range. Fixed by the format.
    pub(super) const BYTES: usize = 40;

    /// Makes a listed range of the entries in a list.
    pub(super) fn new(first: u64, list: StreamPosition, places: &[u8]) -> ListedRange {
        let count = places.len() / PLACE_BYTES;
        let (mut lowest, mut highest) = (list, StreamPosition::START);
        let mut bytes = (LIST_OFFSET + LIST_HEADER_BYTES + places.len()) as u64;
        for place in places.chunks_exact(PLACE_BYTES).map(EntryPlace::decode) {
            let Some(payload_bytes) = place.payload_bytes() else { continue };
            lowest = lowest.min(place.position());
            highest = highest.max(place.position());
            bytes += live_bytes_of(payload_bytes);
        }
        let bytes = u32::try_from(bytes).expect("the entries of a list are in records");
        let count = count as u8;
        let highest = highest.max(lowest);
        ListedRange { first, list, lowest, highest, bytes, listed_count: count, purged_count: 0, uncut_count: count }
    }

    pub(super) fn encode(&self, target: &mut Vec<u8>) {
        for number in [self.first, self.list.0, self.lowest.0, self.highest.0] {
            target.extend(number.to_le_bytes());
        }
        target.extend(self.bytes.to_le_bytes());
        target.extend([self.listed_count, self.purged_count, self.uncut_count, 0]);
    }

    /// Returns `None` if the bytes contradict each other.
    pub(super) fn decode(bytes: &[u8]) -> Option<ListedRange> {
        let position = |at| StreamPosition(get_u64(bytes, at));
        let (listed_count, purged_count, uncut_count) = (bytes[36], bytes[37], bytes[38]);
        let first = get_u64(bytes, 0);
        let (list, lowest, highest) = (position(8), position(16), position(24));
        let is_sound =
            purged_count < uncut_count && uncut_count <= listed_count && lowest <= highest && highest <= list;
        (is_sound && first.checked_add(listed_count.into()).is_some()).then_some(ListedRange {
            first,
            list,
            lowest,
            highest,
            bytes: get_u32(bytes, 32),
            listed_count,
            purged_count,
            uncut_count,
        })
    }

    /// Returns the index of the first entry that was not purged.
    pub(super) fn begin(&self) -> u64 {
        self.first + u64::from(self.purged_count)
    }

    /// Returns the index after the last entry that was not cut off.
    pub(super) fn end(&self) -> u64 {
        self.first + u64::from(self.uncut_count)
    }

    /// Returns the bytes of the list, from its position on.
    pub(super) fn list_bytes(&self) -> usize {
        LIST_HEADER_BYTES + usize::from(self.listed_count) * PLACE_BYTES
    }

    /// Returns the number of an entry in the list.
    pub(super) fn number_of(&self, index: u64) -> usize {
        debug_assert!((self.begin()..self.end()).contains(&index), "entry {index} is not in {self:?}");
        (index - self.first) as usize
    }

    /// Leaves the entries from `begin` on, and below `end`. There is one at least.
    pub(super) fn shorten(&mut self, begin: u64, end: u64) {
        assert!(self.first <= begin && begin < end && end <= self.end(), "{self:?} from {begin} to {end}");
        self.purged_count = (begin - self.first) as u8;
        self.uncut_count = (end - self.first) as u8;
    }

    /// Returns the live bytes. Memory does not know the length of each entry, so those that are left are taken to be
    /// as long as the others.
    pub(super) fn live_bytes(&self) -> u64 {
        let count = u64::from(self.uncut_count - self.purged_count);
        (u64::from(self.bytes) * count / u64::from(self.listed_count)).max(1)
    }

    /// Returns how the live bytes count in the stream: evenly between the lowest entry and the highest. The lowest
    /// position always has some, so that nothing above it is given up.
    pub(super) fn shares(&self) -> impl Iterator<Item = (StreamPosition, u64)> + use<> {
        let (lowest, distance) = (self.lowest, self.highest - self.lowest);
        let live_bytes = self.live_bytes();
        let share_bytes = live_bytes / SHARE_COUNT;
        let shares = (0..SHARE_COUNT).map(move |number| {
            let bytes = if number == 0 { live_bytes - (SHARE_COUNT - 1) * share_bytes } else { share_bytes };
            (lowest + distance / (SHARE_COUNT - 1) * number, bytes)
        });
        shares.filter(|(_, bytes)| *bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(places: &[(u64, Option<u32>)]) -> Vec<u8> {
        places.iter().flat_map(|&(at, bytes)| EntryPlace::new(StreamPosition(at), bytes).encode()).collect()
    }

    /// The shares of a listed range are its live bytes, also after it was shortened, and the lowest position has some.
    #[test]
    fn shares_are_the_live_bytes() {
        let places = list(&[(9000, Some(5)), (100, Some(0)), (70_000, None), (4000, Some(700))]);
        let mut listed_range = ListedRange::new(10, StreamPosition(80_000), &places);
        for (begin, end) in [(10, 14), (11, 14), (11, 13), (12, 13)] {
            listed_range.shorten(begin, end);
            assert_eq!((listed_range.begin(), listed_range.end()), (begin, end));
            let shares: Vec<_> = listed_range.shares().collect();
            assert_eq!(shares.iter().map(|(_, bytes)| bytes).sum::<u64>(), listed_range.live_bytes());
            assert!(shares[0].0 == StreamPosition(100) && shares[0].1 > 0, "{shares:?}");
            assert!(shares.iter().all(|(position, _)| (100..=9000).contains(&position.0)), "{shares:?}");
            let mut bytes = Vec::new();
            listed_range.encode(&mut bytes);
            assert_eq!((bytes.len(), ListedRange::decode(&bytes)), (ListedRange::BYTES, Some(listed_range)));
            bytes[37] = bytes[38];
            assert_eq!(ListedRange::decode(&bytes), None, "nothing is left of it");
        }
    }

    /// A listed range of entries in parts lies at its list.
    #[test]
    fn entries_in_parts_count_elsewhere() {
        let listed_range = ListedRange::new(0, StreamPosition(500), &list(&[(100, None)]));
        assert_eq!(
            (listed_range.lowest, listed_range.shares().next().unwrap().0),
            (StreamPosition(500), StreamPosition(500))
        );
        assert!(listed_range.live_bytes() < 50);
    }
}
