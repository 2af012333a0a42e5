//! The runs above a keyspace's tree.
//!
//! A *run* is a packed, immutable tree of rows with a root page of its own in the keyspace's page table. It became
//! visible as a whole, by one commit. Its rows come before those of the keyspace's tree until they are *folded*, which
//! means put into the tree's leaves. A bulk load into a keyspace that has rows is attached as a run.
//!
//! # Which rows are folded
//! The timestamp of the newest commit in a leaf tells it: a run at timestamp t is folded into a leaf if and only if the
//! leaf's timestamp is at least t. Folding sets the leaf's timestamp to that of the run, and a commit changes a leaf
//! only after all runs have been folded into it. So the rule holds on disk too, and folding needs no log record.
//!
//! # Who reads a run
//! A reader latches a leaf of the tree, and consults the runs that are not folded into it ([`Runs::list`]). While it
//! holds the list, no page of a run that it may need is freed: pages are freed only after the list has been changed.
//! Once it has latched a leaf of a run, it may let go of the list.
//!
//! Lock order: a leaf of the tree, the list, a leaf of a run.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::{PageId, Timestamp};
use crate::sync::{Mutex, RwLock, RwLockReadGuard};

/// The maximum number of runs of a keyspace. A reader may have to search each of them.
pub(crate) const RUNS_MAX: usize = 4;

/// A run above a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) root: PageId,
    /// The commit that made the run visible.
    pub(crate) timestamp: Timestamp,
    /// All rows below this key are folded, and the pages that hold only such rows are free. It is the lower fence of a
    /// leaf of the run, or empty.
    pub(crate) freed_to: Vec<u8>,
}

/// The runs of one keyspace. See the module.
#[derive(Debug)]
pub(crate) struct Runs {
    /// The timestamp of the newest run in the list, or 0 if there is none.
    newest: AtomicU64,
    /// The timestamp of the newest run that was attached since the database was opened, or 0 if none was.
    attached_at: AtomicU64,
    /// The timestamp of the newest run that has left the list since the database was opened.
    folded_at: AtomicU64,
    /// In ascending order of timestamps.
    list: RwLock<Vec<Run>>,
    /// Held while a part of the oldest run is folded and its pages are freed.
    pub(crate) folding: Mutex<()>,
}

impl Runs {
    pub(super) fn new() -> Runs {
        Runs {
            newest: AtomicU64::new(0),
            attached_at: AtomicU64::new(0),
            folded_at: AtomicU64::new(0),
            list: RwLock::default(),
            folding: Mutex::default(),
        }
    }

    /// Returns the timestamp of the newest run, or 0 if there is none. A leaf with a lower timestamp may lack rows of
    /// runs.
    #[inline]
    pub(crate) fn newest(&self) -> Timestamp {
        Timestamp(self.newest.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.newest() == Timestamp(0)
    }

    /// Returns `true` if a run has been attached since this snapshot. The caller holds the epoch latch, or has read the
    /// published timestamp after the snapshot.
    #[inline]
    pub(crate) fn are_attached_since(&self, snapshot: Timestamp) -> bool {
        self.attached_at.load(Ordering::Acquire) > snapshot.0
    }

    /// Returns `true` if a run was attached since this timestamp and has left the list. The caller holds the list.
    pub(crate) fn are_folded_since(&self, since: Timestamp) -> bool {
        self.folded_at.load(Ordering::Acquire) > since.0
    }

    /// Returns the runs, in ascending order of timestamps.
    pub(crate) fn list(&self) -> RwLockReadGuard<'_, Vec<Run>> {
        self.list.read()
    }

    /// Adds runs to the end of the list.
    pub(super) fn restore(&self, runs: Vec<Run>) {
        let mut list = self.list.write();
        assert!(runs.iter().all(|run| run.root > PageId::ROOT), "a run has the root of the tree: {runs:?}");
        list.extend(runs);
        assert!(list.is_sorted_by(|left, right| left.timestamp < right.timestamp), "runs are attached out of order");
        self.newest.store(list.last().map_or(0, |run| run.timestamp.0), Ordering::Release);
        assert!(self.is_empty() == list.is_empty(), "a run was attached by no commit: {list:?}");
    }

    /// Notes that a run was attached while the database is open.
    pub(super) fn note_attached(&self, timestamp: Timestamp) {
        let before = self.attached_at.fetch_max(timestamp.0, Ordering::AcqRel);
        assert!(before < timestamp.0, "a run at {timestamp} follows one at {before}");
        assert!(self.newest() == timestamp, "a run is noted that is not in the list");
    }

    pub(super) fn free_to(&self, timestamp: Timestamp, freed_to: Option<Vec<u8>>) {
        assert!(timestamp <= self.newest(), "a run is freed that is not in the list");
        let mut list = self.list.write();
        let at = list.iter().position(|run| run.timestamp == timestamp).expect("a run is freed once");
        match freed_to {
            Some(key) => {
                assert!(list[at].freed_to < key, "a run is freed backwards");
                list[at].freed_to = key;
            }
            None => {
                assert!(at == 0, "a run is freed before an older one");
                list.remove(at);
                self.folded_at.fetch_max(timestamp.0, Ordering::AcqRel);
                self.newest.store(list.last().map_or(0, |run| run.timestamp.0), Ordering::Release);
            }
        }
    }

    /// Removes all runs, and returns their number.
    pub(super) fn clear(&self) -> usize {
        let mut list = self.list.write();
        assert!(list.is_empty() == self.is_empty(), "runs are in the list, and no reader looks for them");
        self.newest.store(0, Ordering::Release);
        std::mem::take(&mut *list).len()
    }
}
