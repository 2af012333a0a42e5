//! Read-ahead: requesting the leaves that a scan will reach next.

use std::ops::Bound;

use crate::pool::Wanted;
use crate::tree::{Direction, Target, Tree};
use crate::txn::engine::Engine;

/// Leaves that a scan asks for ahead, once it has seen that it goes on. Half of them are asked for at a time: both
/// threads that read ahead have some, and the device is busy while the scan goes through the other half.
const AHEAD_PAGES: usize = 512;
/// The most memory of them, of large pages.
const AHEAD_BYTES_MAX: usize = 4 << 20;
/// They take this part of the frames at most: what is read ahead must stay until the scan is there.
const AHEAD_SHARE: usize = 2;
/// Leaves read one by one before a scan reads ahead: short ranges read no more than they need.
const UNAIDED_LEAVES: usize = 2;

/// The read-ahead of one scan in one direction.
pub(crate) struct ReadAhead {
    direction: Direction,
    leaves_seen: usize,
    /// Leaves asked for and not reached yet.
    leaves_asked: usize,
    /// The first key of the leaves not asked for yet; `None`: where the scan is.
    next: Option<Vec<u8>>,
    ended: bool,
    /// The leaf behind the one that was seen last was in memory.
    is_next_in_memory: bool,
}

impl ReadAhead {
    pub(crate) fn new(direction: Direction) -> ReadAhead {
        ReadAhead { direction, leaves_seen: 0, leaves_asked: 0, next: None, ended: false, is_next_in_memory: false }
    }

    /// Notes whether the leaf behind the scan's is in memory. As long as each is, nothing is asked for.
    pub(crate) fn note_next(&mut self, is_in_memory: bool) {
        self.is_next_in_memory = is_in_memory;
    }

    /// The scan goes on to the leaf of `target`: asks for as many behind it as it has seen, four times over, up to a
    /// limit.
    pub(crate) fn step(
        &mut self,
        engine: &Engine,
        tree: &Tree,
        target: Target<'_>,
        (lower, upper): (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
    ) {
        self.leaves_seen += 1;
        self.leaves_asked = self.leaves_asked.saturating_sub(1);
        if self.leaves_asked == 0 {
            self.next = None;
        }
        let is_warm = self.leaves_asked == 0 && self.is_next_in_memory;
        let bytes_max = AHEAD_BYTES_MAX.min(engine.pool.frames.limit_bytes() / AHEAD_SHARE);
        let goal = (self.leaves_seen * 4).min(AHEAD_PAGES).min(bytes_max / tree.pages.page_bytes);
        // In portions: asking costs a descent.
        if self.leaves_seen <= UNAIDED_LEAVES || self.ended || is_warm || self.leaves_asked > goal / 2 {
            return;
        }
        while self.leaves_asked < goal && !self.ended {
            let from = match &self.next {
                None => target,
                Some(key) => match self.direction {
                    Direction::Forward => Target::At(key),
                    Direction::Backward => Target::Below(key),
                },
            };
            let upcoming = tree.upcoming(from, self.direction, goal);
            if !upcoming.pages.is_empty() {
                let wanted = upcoming.pages.into_iter().map(|page| Wanted::node(&tree.pages, page)).collect();
                engine.pool.read_ahead(&tree.pages, wanted);
            }
            if upcoming.leaf_count == 0 {
                return;
            }
            self.leaves_asked += upcoming.leaf_count;
            let is_outside = |key: &Vec<u8>| match (self.direction, lower, upper) {
                (Direction::Forward, _, Bound::Included(end) | Bound::Excluded(end)) => key > end,
                (Direction::Backward, Bound::Included(end) | Bound::Excluded(end), _) => key <= end,
                _ => false,
            };
            self.ended = upcoming.next.as_ref().is_none_or(is_outside);
            self.next = upcoming.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    /// A scan asks for nothing as long as each next leaf is in memory, and goes on to ask once it has begun: leaves
    /// that were read ahead are no sign that others are in memory.
    #[test]
    fn a_scan_of_warm_leaves_asks_for_nothing() {
        let db = Config::in_memory().memory(16 << 20).open("").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        (0..20_000u64).for_each(|row| keyspace.insert(row.to_be_bytes(), [7; 100]).unwrap());
        let engine = &db.store().unwrap().engine;
        let mut ahead = ReadAhead::new(Direction::Forward);
        let mut step = |is_next_in_memory| {
            ahead.note_next(is_next_in_memory);
            ahead.step(engine, keyspace.tree(), Target::At(&[]), (&Bound::Unbounded, &Bound::Unbounded));
            ahead.leaves_asked
        };
        assert!((0..10).all(|_| step(true) == 0), "leaves in memory are asked for");
        let goal = step(false);
        assert_eq!(goal, 4 * 11);
        assert!((0..200).all(|_| step(true) > goal / 2 - 1), "a scan runs out of leaves that it has asked for");
    }
}
