//! The bulk loads that are attached to a keyspace, as its readers and writers see them.
//!
//! A bulk load takes no row locks, and its pages have no commit timestamps. So readers and writers can't detect it the
//! way they detect other commits. Instead, the keyspace records two facts about loads, for them to query:
//!
//! - *When the newest load was attached.* At that time the keyspace had no row for any reader, so a reader at an
//!   earlier timestamp treats every leaf as empty ([`is_loaded_since`](LoadGate::is_loaded_since)).
//! - *Whether a load is being attached now.* A writer that has locked its row may skip the conflict check if no commit
//!   to the keyspace was published since its snapshot, because other writers hold row locks until they publish. A load
//!   holds no row lock, so it announces itself, and a writer that sees the announcement performs the check
//!   ([`PageSpace::may_have_changed`](super::PageSpace::may_have_changed)).
//!
//! # Protocol
//! The attaching thread holds the exclusive epoch latch and the latch of the root's frame. It proceeds as follows:
//! 1. [`announce`](LoadGate::announce) the load.
//! 2. Check that no row of the keyspace is locked. If any row is, give up.
//! 3. Take the timestamp, and pass it to [`set_loaded_at`](Announcement::set_loaded_at).
//! 4. Publish the timestamp, then replace the root.
//! 5. Drop the announcement.
//!
//! A writer locks its row, then calls `may_have_changed`, which checks for the announcement before it reads the
//! published timestamp. Either the load sees the lock in step 2, or the writer sees the announcement or, after step 5,
//! the published timestamp and the effect of step 3. A reader latches a leaf, then calls `is_loaded_since`. It can
//! reach a leaf of the load only through the new root, so it sees the effect of step 3.
//!
//! The loom models of `load/attach.rs` explore steps 1 to 5 with a concurrent writer. The planted bugs `skip-attaching`
//! and `show-load-early` remove one check each.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::Timestamp;
use crate::sync;

/// The loads of one keyspace, as its readers and writers see them. See the module documentation.
#[derive(Debug)]
pub(crate) struct LoadGate {
    /// The timestamp of the newest commit that attached a load, or 0 if there was none.
    attached_at: AtomicU64,
    is_attaching: sync::atomic::AtomicBool,
}

/// Announces a load while it is being attached. Dropping it reopens the gate.
#[derive(Debug)]
pub(crate) struct Announcement<'g>(&'g LoadGate);

impl LoadGate {
    pub(super) fn new() -> LoadGate {
        LoadGate { attached_at: AtomicU64::new(0), is_attaching: sync::atomic::AtomicBool::new(false) }
    }

    /// Announces that a load is about to be attached.
    pub(crate) fn announce(&self) -> Announcement<'_> {
        let was_attaching = self.is_attaching.swap(true, Ordering::AcqRel);
        assert!(!was_attaching, "two loads are attached to a keyspace at a time");
        Announcement(self)
    }

    /// Returns `true` if a load is being attached that may have missed the caller's row lock.
    #[inline]
    pub(super) fn is_attaching(&self) -> bool {
        self.is_attaching.load(Ordering::Acquire)
    }

    /// Returns `true` if a load has been attached since this snapshot. If so, the keyspace was empty at the snapshot,
    /// although the pages do not show when their rows were added. The caller must hold a leaf's latch, or have read the
    /// published timestamp after the snapshot.
    #[inline]
    pub(crate) fn is_loaded_since(&self, snapshot: Timestamp) -> bool {
        self.attached_at.load(Ordering::Acquire) > snapshot.0
    }
}

impl Announcement<'_> {
    /// Records the timestamp of the commit that attaches the load.
    pub(crate) fn set_loaded_at(&self, timestamp: Timestamp) {
        let before = self.0.attached_at.swap(timestamp.0, Ordering::AcqRel);
        assert!(before < timestamp.0, "a load at {timestamp} follows one at {before}");
    }
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        let was_attaching = self.0.is_attaching.swap(false, Ordering::AcqRel);
        assert!(was_attaching, "an attachment ends twice");
    }
}
