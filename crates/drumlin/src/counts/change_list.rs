//! The list of changes since the rows were counted: the key, commit and effect of each row that a commit changed.

use crate::format::Timestamp;

/// The effect of a commit on a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowChange {
    Inserted,
    Removed,
    /// The row's value was replaced.
    Replaced,
}

impl RowChange {
    pub(super) fn sign(self) -> i64 {
        match self {
            RowChange::Inserted => 1,
            RowChange::Removed => -1,
            RowChange::Replaced => 0,
        }
    }
}

/// A row that a commit changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountChange {
    /// The first eight bytes of the key, as a number.
    head: u64,
    pub(super) timestamp: Timestamp,
    key_start: u32,
    key_bytes: u16,
    pub(super) change: RowChange,
}

impl CountChange {
    pub(super) fn sign(&self) -> i64 {
        self.change.sign()
    }
}

/// Returns the first eight bytes of a key as a number, padded with zeros. The numbers sort in the order of the keys,
/// but different keys may have the same number.
fn head_of(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let bytes = key.len().min(8);
    head[..bytes].copy_from_slice(&key[..bytes]);
    u64::from_be_bytes(head)
}

/// A key together with its head, for comparisons with the list.
#[derive(Clone, Copy)]
struct Headed<'k> {
    head: u64,
    key: &'k [u8],
}

impl<'k> Headed<'k> {
    fn new(key: &'k [u8]) -> Headed<'k> {
        Headed { head: head_of(key), key }
    }
}

/// Changes and their keys. The first `sorted_count` changes are sorted by key; later changes are in order of arrival.
#[derive(Default)]
pub(super) struct ChangeList {
    pub(super) changes: Vec<CountChange>,
    keys: Vec<u8>,
    pub(super) sorted_count: usize,
}

impl ChangeList {
    pub(super) fn push(&mut self, key: &[u8], timestamp: Timestamp, change: RowChange) {
        assert!(timestamp != Timestamp(0), "a change of no commit");
        let key_start = u32::try_from(self.keys.len()).expect("the list is bounded");
        let key_bytes = u16::try_from(key.len()).expect("a key has a quarter of a page at most");
        self.keys.extend_from_slice(key);
        self.changes.push(CountChange { head: head_of(key), timestamp, key_start, key_bytes, change });
    }

    #[inline]
    pub(super) fn key(&self, change: &CountChange) -> &[u8] {
        let start = change.key_start as usize;
        &self.keys[start..start + usize::from(change.key_bytes)]
    }

    #[inline]
    fn is_below(&self, change: &CountChange, bound: Headed<'_>) -> bool {
        change.head < bound.head || change.head == bound.head && self.key(change) < bound.key
    }

    /// Moves the changes of another list to the end of this one.
    pub(super) fn append(&mut self, other: &mut ChangeList) {
        let moved = u32::try_from(self.keys.len()).expect("the list is bounded");
        self.changes.extend(
            other.changes.drain(..).map(|change| CountChange { key_start: change.key_start + moved, ..change }),
        );
        self.keys.append(&mut other.keys);
        debug_assert!(other.sorted_count == 0, "a part of the list is in order");
    }

    /// Returns the changes whose keys are at least `lower` and below `upper`: first those from the sorted part, then
    /// the rest.
    fn parts_within<'c>(
        &'c self,
        lower: &'c [u8],
        upper: Option<&'c [u8]>,
    ) -> (impl Iterator<Item = &'c CountChange>, impl Iterator<Item = &'c CountChange>) {
        let (lower, upper) = (Headed::new(lower), upper.map(Headed::new));
        debug_assert!(upper.is_none_or(|upper| lower.key <= upper.key), "a range that ends before it begins");
        let (sorted, recent) = self.changes.split_at(self.sorted_count);
        let start = sorted.partition_point(|change| self.is_below(change, lower));
        let end = upper.map_or(sorted.len(), |upper| sorted.partition_point(|change| self.is_below(change, upper)));
        let is_in = move |change: &&CountChange| {
            !self.is_below(change, lower) && upper.is_none_or(|upper| self.is_below(change, upper))
        };
        (sorted[start..end.max(start)].iter(), recent.iter().filter(is_in))
    }

    /// Returns the changes whose keys are at least `lower` and below `upper`.
    pub(super) fn within<'c>(
        &'c self,
        lower: &'c [u8],
        upper: Option<&'c [u8]>,
    ) -> impl Iterator<Item = &'c CountChange> {
        let (sorted, recent) = self.parts_within(lower, upper);
        sorted.chain(recent)
    }

    /// Returns the lowest changed key that is at least `lower` and below `upper`, considering only changes up to commit
    /// `up_to`.
    pub(super) fn first_changed(&self, lower: &[u8], upper: Option<&[u8]>, up_to: Timestamp) -> Option<&[u8]> {
        let (mut sorted, recent) = self.parts_within(lower, upper);
        let first = sorted.find(|change| change.timestamp <= up_to).map(|change| self.key(change));
        let seen = recent.filter(|change| change.timestamp <= up_to);
        let found = seen.map(|change| self.key(change)).chain(first).min();
        debug_assert!(found.is_none_or(|key| key >= lower && upper.is_none_or(|upper| key < upper)));
        found
    }

    pub(super) fn sum(&self, lower: &[u8], upper: Option<&[u8]>, up_to: Timestamp) -> i64 {
        self.within(lower, upper).filter(|change| change.timestamp <= up_to).map(CountChange::sign).sum()
    }

    pub(super) fn sort(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        changes.sort_unstable_by(|left, right| {
            let keys = left.head.cmp(&right.head).then_with(|| self.key(left).cmp(self.key(right)));
            keys.then(left.timestamp.cmp(&right.timestamp))
        });
        self.changes = changes;
        self.sorted_count = self.changes.len();
        let is_sorted = |left: &CountChange, right: &CountChange| self.key(left) <= self.key(right);
        debug_assert!(self.changes.is_sorted_by(is_sorted), "heads are in another order than keys");
    }

    /// Drops the changes for which `is_kept` returns `false`. The list must be sorted.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&[u8], &CountChange) -> bool) {
        assert!(self.sorted_count == self.changes.len(), "a list is folded out of order");
        let mut kept = ChangeList::default();
        for change in &self.changes {
            let key = self.key(change);
            if is_kept(key, change) {
                kept.push(key, change.timestamp, change.change);
            }
        }
        kept.sorted_count = kept.changes.len();
        assert!(kept.sorted_count <= self.sorted_count, "a fold makes changes");
        *self = kept;
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.changes.capacity() * size_of::<CountChange>() + self.keys.capacity()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums by range and commit are correct, even if only a part of the list is sorted.
    #[test]
    fn changes_are_summed_by_range_and_commit() {
        let mut list = ChangeList::default();
        let keys: Vec<Vec<u8>> = (0..200u32).map(|number| format!("a common start {number:03}").into_bytes()).collect();
        let changes = |number: usize| {
            let change = match number % 4 {
                0 => RowChange::Removed,
                1 => RowChange::Replaced,
                _ => RowChange::Inserted,
            };
            (1 + number as u64 % 7, change)
        };
        for number in (0..200).map(|number| number * 77 % 200) {
            let (timestamp, change) = changes(number);
            list.push(&keys[number], Timestamp(timestamp), change);
            if number == 50 {
                list.sort();
            }
        }
        for (lower, upper, up_to) in [(0, 200, 9), (3, 150, 9), (0, 200, 3), (20, 21, 7), (40, 40, 9)] {
            let seen = (lower..upper).map(changes).filter(|(timestamp, _)| *timestamp <= up_to);
            let expected: i64 = seen.map(|(_, change)| change.sign()).sum();
            let upper = keys.get(upper).map(|key| &key[..]);
            assert_eq!(list.sum(&keys[lower], upper, Timestamp(up_to)), expected, "{lower} to {upper:?}");
        }
        for (lower, up_to) in [(0, 9), (33, 9), (33, 1), (150, 3), (0, 0)] {
            let mut seen = (lower..200).filter(|number| changes(*number).0 <= up_to);
            let expected = seen.next().map(|number| &keys[number][..]);
            assert_eq!(
                list.first_changed(&keys[lower], None, Timestamp(up_to)),
                expected,
                "from {lower} up to {up_to}"
            );
        }
        list.sort();
        list.retain(|_, change| change.timestamp > Timestamp(3));
        assert_eq!(list.sum(b"", None, Timestamp(3)), 0);
    }
}
