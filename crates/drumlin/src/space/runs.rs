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

use super::{PageSpace, Space};
use crate::format::catalogue;
use crate::format::node::key_bytes_max;
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
    fn restore(&self, runs: Vec<Run>) {
        let mut list = self.list.write();
        list.extend(runs);
        assert!(list.is_sorted_by(|left, right| left.timestamp < right.timestamp), "runs are attached out of order");
        self.newest.store(list.last().map_or(0, |run| run.timestamp.0), Ordering::Release);
    }

    fn free_to(&self, timestamp: Timestamp, freed_to: Option<Vec<u8>>) {
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
    fn clear(&self) -> usize {
        let mut list = self.list.write();
        self.newest.store(0, Ordering::Release);
        std::mem::take(&mut *list).len()
    }
}

/// Returns the maximum size of a run's entry in the catalogue.
fn entry_bytes(pages: &PageSpace) -> u64 {
    catalogue::RUN_BYTES + key_bytes_max(pages.page_bytes) as u64
}

impl Space {
    /// Adds a run above a keyspace's tree. See [`Runs`]. The caller holds the exclusive epoch latch, and publishes the
    /// timestamp afterwards.
    pub(crate) fn attach_run(&self, pages: &PageSpace, root: PageId, timestamp: Timestamp) {
        self.restore_runs(pages, vec![Run { root, timestamp, freed_to: Vec::new() }]);
        pages.runs.attached_at.fetch_max(timestamp.0, Ordering::AcqRel);
    }

    /// Adds runs that a checkpoint recorded.
    pub(super) fn restore_runs(&self, pages: &PageSpace, runs: Vec<Run>) {
        self.keyspace_bytes.fetch_add(runs.len() as u64 * entry_bytes(pages), Ordering::Relaxed);
        pages.runs.restore(runs);
    }

    /// Notes that the rows of a run below `freed_to` are folded, before the pages that hold only such rows are freed.
    /// `None` stands for all rows, and removes the run. The caller holds the epoch latch, shared at least, until these
    /// pages are free.
    pub(crate) fn free_run_to(&self, pages: &PageSpace, timestamp: Timestamp, freed_to: Option<Vec<u8>>) {
        if freed_to.is_none() {
            self.keyspace_bytes.fetch_sub(entry_bytes(pages), Ordering::Relaxed);
        }
        pages.runs.free_to(timestamp, freed_to);
    }

    /// Removes all runs of a keyspace whose pages are about to be freed. The caller holds the exclusive epoch latch.
    pub(crate) fn clear_runs(&self, pages: &PageSpace) {
        let count = pages.runs.clear();
        self.keyspace_bytes.fetch_sub(count as u64 * entry_bytes(pages), Ordering::Relaxed);
    }
}
