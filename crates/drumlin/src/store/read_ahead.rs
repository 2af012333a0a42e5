//! Read-ahead: prefetches the leaves that a scan is about to reach, in the tree and in each run above it.

use std::ops::Bound;
use std::sync::Arc;

use crate::format::PageId;
use crate::pool::Wanted;
use crate::tree::{Direction, RunLeaf, Target, Tree};
use crate::txn::engine::Engine;

/// The maximum number of leaves that a scan prefetches. It also prefetches at most a quarter of the leaves seen so far,
/// so that few reads are wasted if the scan ends there.
/// Measured: decision 030.
const AHEAD_PAGES: usize = 1024;
/// Up to this number of leaves, a scan prefetches four times the leaves it has seen, so that the device is soon busy.
/// After that, no request asks for fewer leaves, because leaves of a large request are more often neighbours in the
/// file.
/// Measured: decision 030.
const EARLY_PAGES: usize = 256;
/// The maximum memory for the prefetched leaves of one scan. This limit takes effect if pages are large.
const AHEAD_BYTES_MAX: usize = 4 << 20;
/// All scans together aim to prefetch into at most a fifth of the frames, and may overshoot this by half, to 30 %. A
/// prefetched leaf must survive until its scan reaches it. The clock hand skips a leaf once because it is new and once
/// because it was used, so a turn of the hand evicts about a third of the frames, which is more than 30 %.
/// Measured: decision 030.
const AHEAD_SHARE: usize = 5;
/// The number of leaves that a scan reads one by one before it prefetches, so that a short range reads no more than it
/// needs.
const UNAIDED_LEAVES: usize = 2;

/// The read-ahead of one scan in one direction.
pub(crate) struct ReadAhead {
    direction: Direction,
    leaves_seen: usize,
    /// The number of leaves that the scan has requested but not reached.
    leaves_asked: usize,
    /// The first key beyond the leaves requested so far, or `None` for the scan's own position.
    next: Option<Vec<u8>>,
    ended: bool,
    /// `true` if the leaf after the last one seen was in memory.
    is_next_in_memory: bool,
    /// `true` if the scan has not passed its current leaf yet.
    stays: bool,
    /// Counts this scan among the pool's [scans that read ahead](crate::pool::Pool::scans_ahead), starting with its
    /// first request.
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
            stays: false,
            counted: None,
        }
    }

    /// Records whether the leaf after the scan's current one is in memory. As long as each next leaf is in memory, the
    /// scan requests no leaves. `stays` is `true` if the scan has not passed its current leaf yet.
    pub(crate) fn count_next(&mut self, is_in_memory: bool, stays: bool) {
        self.is_next_in_memory = is_in_memory;
        self.stays = stays;
    }

    /// Called when the scan moves on to the leaf of `target` beneath `root`. If at most half of the goal is still ahead
    /// of the scan, requests more leaves.
    pub(crate) fn step(
        &mut self,
        engine: &Engine,
        tree: &Tree,
        root: PageId,
        target: Target<'_>,
        (lower, upper): (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
    ) {
        if std::mem::take(&mut self.stays) {
            return;
        }
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
        // Request a large goal in halves: while one read-ahead thread waits for the device, another can decompress the
        // other half.
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
            let upcoming = tree.upcoming(root, from, self.direction, portion - asked);
            if !upcoming.inner.is_empty() {
                // Inner nodes get a separate request, because the leaves beneath them are known only after the inner
                // nodes have been read.
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

    /// Returns the number of leaves that should be prefetched ahead of the scan's position.
    fn goal(&mut self, engine: &Engine, tree: &Tree) -> usize {
        let scans = &engine.pool.scans_ahead;
        self.counted.get_or_insert_with(|| Arc::clone(scans));
        let scan_count = Arc::strong_count(scans) - 1;
        let bytes_max = AHEAD_BYTES_MAX.min(engine.pool.frames.limit_bytes() / AHEAD_SHARE / scan_count);
        let expected = (self.leaves_seen * 4).min(EARLY_PAGES).max(self.leaves_seen / 4);
        expected.min(AHEAD_PAGES).min(bytes_max / tree.pages.page_bytes()).max(1)
    }
}

/// The read-ahead of one scan in the leaves of a run above the tree.
pub(crate) struct RunAhead {
    root: PageId,
    ahead: ReadAhead,
    /// The leaf that the scan has reached.
    leaf: Option<RunLeaf>,
}

impl RunAhead {
    pub(crate) fn new(root: PageId, direction: Direction) -> RunAhead {
        assert!(root > PageId::ROOT, "the tree is taken for a run");
        RunAhead { root, ahead: ReadAhead::new(direction), leaf: None }
    }

    /// Returns `true` if this is the read-ahead in the run with this root.
    pub(crate) fn is_of(&self, root: PageId, direction: Direction) -> bool {
        (self.root, self.ahead.direction) == (root, direction)
    }

    /// Called when the scan moves on to the target. If another leaf of the run covers it, requests more leaves like
    /// [`ReadAhead::step`].
    pub(crate) fn step(
        &mut self,
        engine: &Engine,
        tree: &Tree,
        target: Target<'_>,
        bounds: (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
    ) {
        if self.leaf.as_ref().is_some_and(|leaf| leaf.covers(target)) {
            return;
        }
        self.leaf = tree.run_leaf_at(self.root, target, self.ahead.direction);
        if let Some(is_next_in_memory) = self.leaf.as_ref().and_then(|leaf| leaf.is_next_in_memory) {
            self.ahead.count_next(is_next_in_memory, false);
        }
        self.ahead.step(engine, tree, self.root, target, bounds);
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

    /// A scan requests no leaves as long as each next leaf is in memory. Once it has begun to prefetch, it continues,
    /// because finding its own prefetched leaves in memory says nothing about the leaves after them.
    #[test]
    fn a_scan_of_warm_leaves_asks_for_nothing() {
        let db = Config::in_memory().memory(16 << 20).open("").unwrap();
        let keyspace = db.keyspace("k").unwrap();
        (0..20_000u64).for_each(|row| keyspace.insert(row.to_be_bytes(), [7; 100]).unwrap());
        let engine = &db.store().unwrap().engine;
        let mut ahead = ReadAhead::new(Direction::Forward);
        let mut step = |is_next_in_memory| {
            ahead.count_next(is_next_in_memory, false);
            ahead.step(engine, keyspace.tree(), PageId::ROOT, Target::At(&[]), (&Bound::Unbounded, &Bound::Unbounded));
            ahead.leaves_asked
        };
        assert!((0..10).all(|_| step(true) == 0), "leaves in memory are asked for");
        let goal = step(false);
        assert_eq!(goal, 4 * 11);
        assert!((0..200).all(|_| step(true) > goal / 2 - 1), "a scan runs out of leaves that it has asked for");
    }

    /// Concurrent scans divide the prefetch frames among themselves. When a scan ends, the remaining scans get its
    /// frames.
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

    /// A portion contains the leaves of many parents once those parents are in memory, in both directions.
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
                ahead.step(engine, keyspace.tree(), PageId::ROOT, target, (&Bound::Unbounded, &Bound::Unbounded));
                ahead.leaves_asked
            };
            // The scan requests the lowest inner nodes on the way together, before the leaves beneath them.
            let mut together = 0;
            let portion = loop {
                let upcoming = keyspace.tree().upcoming(PageId::ROOT, target, direction, AHEAD_PAGES / 2);
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
