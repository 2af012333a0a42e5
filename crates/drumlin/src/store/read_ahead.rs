//! Read-ahead: requesting the leaves that a scan will reach next.

use std::ops::Bound;
use std::sync::Arc;

use crate::format::PageId;
use crate::pool::Wanted;
use crate::tree::{Direction, Target, Tree};
use crate::txn::engine::Engine;

/// Leaves that a scan asks for ahead at most: a fourth of those it has seen, so that it reads few in vain at its end.
const AHEAD_PAGES: usize = 1024;
/// Up to so many it asks for four times those it has seen, so that the device is soon busy. No request is for fewer
/// once they are reached: of many leaves more lie beside each other in the file.
const EARLY_PAGES: usize = 256;
/// The most memory of them, of large pages.
const AHEAD_BYTES_MAX: usize = 4 << 20;
/// All scans together have this part of the frames as their goals, and at times half as much again is read ahead. It
/// has to stay until its scan is there: the clock's hand passes over a leaf once because it is new, and once because it
/// was used, so that each turn evicts a third of the frames.
const AHEAD_SHARE: usize = 5;
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
    /// Counts it among the pool's [scans that read ahead](crate::pool::Pool::scans_ahead), once it asks for leaves.
    counted: Option<Arc<()>>,
}

impl ReadAhead {
    pub(crate) fn new(direction: Direction) -> ReadAhead {
        ReadAhead {
            direction,
            leaves_seen: 0,
            leaves_asked: 0,
            next: None,
            ended: false,
            is_next_in_memory: false,
            counted: None,
        }
    }

    /// Notes whether the leaf behind the scan's is in memory. As long as each is, nothing is asked for.
    pub(crate) fn note_next(&mut self, is_in_memory: bool) {
        self.is_next_in_memory = is_in_memory;
    }

    /// The scan goes on to the leaf of `target`: asks for a portion of those behind it once it has gone through one.
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
        if self.leaves_seen <= UNAIDED_LEAVES || self.ended || is_warm {
            return;
        }
        let goal = self.goal(engine, tree);
        if self.leaves_asked > goal / 2 {
            return;
        }
        // One of the threads that read ahead waits for the device while the other decompresses another portion.
        let portion = goal.min(EARLY_PAGES).max(goal.div_ceil(2));
        let (mut wanted, mut asked) = (Vec::new(), 0);
        while asked < portion && !self.ended {
            let from = match &self.next {
                None => target,
                Some(key) => match self.direction {
                    Direction::Forward => Target::At(key),
                    Direction::Backward => Target::Below(key),
                },
            };
            let upcoming = tree.upcoming(from, self.direction, portion - asked);
            if !upcoming.inner.is_empty() {
                // A request of their own: the leaves beneath them can't be asked for before they are there.
                engine.pool.read_ahead(&tree.pages, wanted_nodes(tree, upcoming.inner).collect());
            }
            if upcoming.leaf_count == 0 {
                break;
            }
            wanted.extend(wanted_nodes(tree, upcoming.pages));
            asked += upcoming.leaf_count;
            let is_outside = |key: &Vec<u8>| match (self.direction, lower, upper) {
                (Direction::Forward, _, Bound::Included(end) | Bound::Excluded(end)) => key > end,
                (Direction::Backward, Bound::Included(end) | Bound::Excluded(end), _) => key <= end,
                _ => false,
            };
            self.ended = upcoming.next.as_ref().is_none_or(is_outside);
            self.next = upcoming.next;
        }
        self.leaves_asked += asked;
        if !wanted.is_empty() {
            engine.pool.read_ahead(&tree.pages, wanted);
        }
    }

    /// The leaves to have asked for: those that the scan will come to soon.
    fn goal(&mut self, engine: &Engine, tree: &Tree) -> usize {
        let scans = &engine.pool.scans_ahead;
        self.counted.get_or_insert_with(|| Arc::clone(scans));
        let scan_count = Arc::strong_count(scans) - 1;
        let bytes_max = AHEAD_BYTES_MAX.min(engine.pool.frames.limit_bytes() / AHEAD_SHARE / scan_count);
        let expected = (self.leaves_seen * 4).min(EARLY_PAGES).max(self.leaves_seen / 4);
        expected.min(AHEAD_PAGES).min(bytes_max / tree.pages.page_bytes).max(1)
    }
}

fn wanted_nodes(tree: &Tree, pages: Vec<PageId>) -> impl Iterator<Item = Wanted> {
    pages.into_iter().map(|page| Wanted::node(&tree.pages, page))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Config, KeyspaceOptions};

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

    /// Scans share the frames that they read ahead into, and one has them to itself again when the others are over.
    #[test]
    fn scans_share_what_they_read_ahead() {
        let db = Config::in_memory().memory(16 << 20).open("").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let engine = &db.store().unwrap().engine;
        let scan = || ReadAhead { leaves_seen: 4 * AHEAD_PAGES, ..ReadAhead::new(Direction::Forward) };
        let mut scans: Vec<ReadAhead> = (0..8).map(|_| scan()).collect();
        let mut goals = |count: usize| -> Vec<usize> {
            scans.truncate(count);
            scans.iter_mut().for_each(|scan| _ = scan.goal(engine, keyspace.tree()));
            scans.iter_mut().map(|scan| scan.goal(engine, keyspace.tree())).collect()
        };
        let frame_count = engine.pool.frames.limit_bytes() / 4096;
        for count in [8, 3, 1] {
            let goals = goals(count);
            assert!(goals.iter().sum::<usize>() <= frame_count / AHEAD_SHARE, "{goals:?} of {frame_count}");
            assert!(
                goals.iter().all(|&goal| goal >= frame_count / AHEAD_SHARE / count - 1),
                "{goals:?} of {frame_count}"
            );
        }
    }

    /// Leaves of many parents are asked for together, in both directions, once those parents have come in.
    #[test]
    fn a_portion_has_leaves_of_many_parents() {
        let backend = crate::io::in_memory();
        let open = || {
            let config = Config::new().backend(Arc::clone(&backend)).memory(64 << 20);
            let db = config.warm_start(false).open("/db").unwrap();
            let keyspace = db.keyspace_with("k", KeyspaceOptions::new().page_bytes(512)).unwrap();
            (db, keyspace)
        };
        let (db, keyspace) = open();
        (0..40_000u64).for_each(|row| keyspace.insert(row.to_be_bytes(), [7; 100]).unwrap());
        drop(keyspace);
        db.close().unwrap();
        let (db, keyspace) = open();
        let engine = &db.store().unwrap().engine;
        for (direction, target) in [(Direction::Forward, Target::At(&[])), (Direction::Backward, Target::Last)] {
            let asked = || {
                let mut ahead = ReadAhead { leaves_seen: 4 * AHEAD_PAGES, ..ReadAhead::new(direction) };
                ahead.step(engine, keyspace.tree(), target, (&Bound::Unbounded, &Bound::Unbounded));
                ahead.leaves_asked
            };
            // Of the nodes on the way the lowest are asked for together, before the leaves beneath them.
            let mut together = 0;
            let portion = loop {
                let upcoming = keyspace.tree().upcoming(target, direction, AHEAD_PAGES / 2);
                let Some(&first) = upcoming.inner.first().filter(|_| upcoming.leaf_count == 0) else { break upcoming };
                together = together.max(upcoming.inner.len());
                engine.pool.fault(&keyspace.tree().pages, Wanted::node(&keyspace.tree().pages, first)).unwrap();
            };
            assert!(together > 1, "{together} parents are asked for together");
            assert!(portion.leaf_count < AHEAD_PAGES / 2 / 8, "a parent has {} leaves", portion.leaf_count);
            let end = Instant::now() + Duration::from_secs(20);
            while asked() < AHEAD_PAGES / 2 {
                assert!(Instant::now() < end, "{} leaves are asked for, {direction:?}", asked());
                std::thread::yield_now();
            }
        }
    }
}
