//! Active snapshots: the timestamps at which readers still see the database.
//!
//! # Unchanged keyspaces
//! A transaction that has locked a row need not read it to find out if it has changed, as long as no row of its
//! keyspace has changed since the transaction's snapshot. So a keyspace records a commit that changed it
//! ([`note_change`](Snapshots::note_change)). If every commit did so, all committers would write to one cache line. A
//! commit therefore leaves the record alone if it is newer than all snapshots so far: a transaction that reads at one
//! of these learns from it that the keyspace has changed. So each snapshot causes at most one store for each keyspace
//! that is changed afterwards.
//!
//! *Why no change is missed.* Let s be a snapshot, and t > s a commit to the keyspace. The commit is published, issues
//! a `SeqCst` fence, and loads the newest snapshot. `open_snapshot` stores s as the newest snapshot, issues a `SeqCst`
//! fence, and loads the published timestamp again, until it is still s. If the commit's fence came first, that load
//! would return t or more. So the snapshot's fence comes first, and the commit finds a newest snapshot of at least s.
//! It then leaves a record above s, or finds one. It does so before it releases its row locks, and the transaction
//! looks after it has locked the row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::{Mutex, atomic};

use super::clock::Clock;
use super::spilled::Needed;
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::io::Process;

#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    registered: Mutex<BTreeMap<u64, Registered>>,
    /// The number of snapshots that are registered or about to be registered, including those that have been ended.
    open_count: atomic::AtomicU64,
    /// The newest timestamp at which a snapshot was opened. Changes under the lock of `registered`.
    newest: atomic::AtomicU64,
    /// Snapshots below this timestamp have been ended.
    ended_below: AtomicU64,
    /// The number of snapshots that have been ended, for statistics.
    ended_count: AtomicU64,
    /// The reason why snapshots were last ended.
    ended_why: Mutex<Option<Arc<str>>>,
    /// The process that opened the database. A fork of it registers no snapshots: the lock may be held by a thread that
    /// does not exist in the fork.
    process: Process,
}

#[derive(Debug)]
struct Registered {
    count: u64,
    since: Duration,
}

/// An active snapshot. The versions that its reader needs are retained until the handle is dropped or the snapshot is
/// ended.
#[derive(Debug)]
pub(crate) struct SnapshotHandle {
    /// `None` for a kept snapshot, whose pages need no versions.
    snapshots: Option<Arc<Snapshots>>,
    pub(crate) timestamp: Timestamp,
}

impl Drop for SnapshotHandle {
    fn drop(&mut self) {
        let Some(snapshots) = self.snapshots.as_ref().filter(|snapshots| snapshots.process.is_here()) else { return };
        let mut registered = snapshots.registered.lock();
        let entry = registered.get_mut(&self.timestamp.0).expect("registered until dropped");
        assert!(entry.count > 0, "a snapshot is registered no times");
        entry.count -= 1;
        if entry.count == 0 {
            registered.remove(&self.timestamp.0);
        }
        let open_count = snapshots.open_count.fetch_sub(1, Ordering::Release);
        assert!(open_count > 0, "a snapshot that is not counted is registered");
    }
}

impl SnapshotHandle {
    /// Returns an error if the snapshot has been ended to free the space of its versions.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match &self.snapshots {
            Some(snapshots) if self.timestamp.0 < snapshots.ended_below.load(Ordering::Acquire) => {
                Err(snapshots.too_old(self.timestamp))
            }
            _ => Ok(()),
        }
    }

    /// Returns the snapshot at which the pages of a kept snapshot are read.
    pub(crate) fn of_kept(timestamp: Timestamp) -> SnapshotHandle {
        SnapshotHandle { snapshots: None, timestamp }
    }
}

impl Snapshots {
    /// Registers a snapshot at the timestamp that `choose` returns. Calls `choose` under the lock. Otherwise, a version
    /// that the snapshot needs could be dropped before the snapshot is registered. Calls it again until it returns the
    /// same timestamp twice.
    pub(crate) fn open_snapshot(self: &Arc<Self>, now: Duration, choose: impl Fn() -> Timestamp) -> SnapshotHandle {
        if !self.process.is_here() {
            return SnapshotHandle { snapshots: Some(Arc::clone(self)), timestamp: Timestamp(0) };
        }
        let mut registered = self.registered.lock();
        self.open_count.fetch_add(1, Ordering::Relaxed);
        let mut timestamp = choose();
        loop {
            if self.newest.load(Ordering::Relaxed) < timestamp.0 {
                self.newest.store(timestamp.0, Ordering::Relaxed);
            }
            // The snapshot is counted, and noted as the newest, before its timestamp is chosen. Pairs with the fences
            // in `are_open_besides` and `note_change`.
            atomic::fence(Ordering::SeqCst);
            let chosen = choose();
            if chosen == timestamp {
                break;
            }
            timestamp = chosen;
        }
        debug_assert!(
            timestamp.0 >= self.ended_below.load(Ordering::Acquire),
            "a snapshot at {timestamp} is opened that has been ended"
        );
        registered.entry(timestamp.0).or_insert(Registered { count: 0, since: now }).count += 1;
        SnapshotHandle { snapshots: Some(Arc::clone(self)), timestamp }
    }

    /// Returns `false` if no snapshot is or will be registered below the visible horizon, except for the caller's
    /// `own_count`, at which no reader will read again. A snapshot that is opened after this call sees everything that
    /// was visible or published before the call.
    #[inline]
    pub(crate) fn are_open_besides(&self, own_count: u64) -> bool {
        atomic::fence(Ordering::SeqCst);
        let open_count = self.open_count.load(Ordering::Acquire);
        debug_assert!(own_count <= open_count, "a transaction's snapshot is not counted");
        open_count > own_count
    }

    /// Notes in a keyspace's record that this commit, which is published, has changed rows of the keyspace. The caller
    /// still holds their locks. See the module.
    #[inline]
    pub(crate) fn note_change(&self, changed_at: &atomic::AtomicU64, timestamp: Timestamp) {
        // Without a snapshot, no reader asks. One that is opened later sees this commit.
        if self.are_open_besides(0) && changed_at.load(Ordering::Acquire) <= self.newest.load(Ordering::Relaxed) {
            changed_at.fetch_max(timestamp.0, Ordering::AcqRel);
        }
    }

    /// Returns the timestamp up to which replaced versions are no longer needed.
    pub(crate) fn horizon(&self, clock: &Clock) -> Timestamp {
        let registered = self.registered.lock();
        let visible = clock.visible();
        let ended = self.ended_below.load(Ordering::Acquire);
        assert!(ended <= visible.0, "snapshots below {ended} were ended, {visible} is visible");
        let oldest = registered.range(ended..).next().map_or(visible, |(&oldest, _)| Timestamp(oldest));
        visible.min(oldest)
    }

    /// Returns the snapshots whose versions are needed, and the visible horizon. Later snapshots are at this horizon or
    /// above it.
    pub(crate) fn needed(&self, clock: &Clock) -> Needed {
        let registered = self.registered.lock();
        let ended = self.ended_below.load(Ordering::Acquire);
        let snapshots: Vec<Timestamp> = registered.range(ended..).map(|(&timestamp, _)| Timestamp(timestamp)).collect();
        debug_assert!(snapshots.last().is_none_or(|last| *last <= clock.published()), "a snapshot of the future");
        Needed { snapshots, visible: clock.visible() }
    }

    /// Returns the oldest snapshot that has not been ended, and the time at which it was opened.
    pub(crate) fn oldest(&self) -> Option<(Timestamp, Duration)> {
        let registered = self.registered.lock();
        let ended = self.ended_below.load(Ordering::Acquire);
        registered.range(ended..).next().map(|(&oldest, entry)| (Timestamp(oldest), entry.since))
    }

    /// Returns the number of snapshots that have not been ended.
    pub(crate) fn count(&self) -> u64 {
        let ended = self.ended_below.load(Ordering::Acquire);
        self.registered.lock().range(ended..).map(|(_, entry)| entry.count).sum()
    }

    /// Returns the number of snapshots that have been ended so far.
    pub(crate) fn ended_count(&self) -> u64 {
        self.ended_count.load(Ordering::Relaxed)
    }

    #[cold]
    fn too_old(&self, timestamp: Timestamp) -> Error {
        // In a fork, the lock may be held forever by a thread that does not exist there.
        let reason = if self.process.is_here() { self.ended_why.lock().clone() } else { None };
        Error::SnapshotTooOld { timestamp, reason: reason.unwrap_or_else(|| "its old versions are gone".into()) }
    }

    /// Ends the oldest snapshot. Returns `false` if no snapshot is below the visible horizon.
    pub(crate) fn end_oldest(&self, clock: &Clock, why: &str) -> bool {
        let registered = self.registered.lock();
        let ended = self.ended_below.load(Ordering::Acquire);
        let Some((&oldest, entry)) = registered.range(ended..).next() else { return false };
        if oldest >= clock.visible().0 {
            return false;
        }
        crate::coverage::mark!("a snapshot was ended to free memory of versions");
        *self.ended_why.lock() = Some(why.into());
        self.ended_below.store(oldest + 1, Ordering::Release);
        self.ended_count.fetch_add(entry.count, Ordering::Relaxed);
        true
    }
}

#[cfg(all(test, drumlin_loom))]
mod models {
    use loom::thread;

    use super::*;

    /// Runs two threads: a commit that adds an undo record only if a snapshot is open, and a transaction that opens a
    /// snapshot.
    fn explore(open: fn(&Arc<Snapshots>, &Clock) -> SnapshotHandle) {
        loom::model(move || {
            let (snapshots, clock) = (Arc::new(Snapshots::default()), Arc::new(Clock::new(Timestamp(0))));
            let shared = (Arc::clone(&snapshots), Arc::clone(&clock));
            let opener = thread::spawn(move || open(&shared.0, &shared.1));
            clock.mark_applied(Timestamp(1));
            let leaves_none = clock.try_show_relaxed(Timestamp(1)) && !snapshots.are_open_besides(0);
            let snapshot = opener.join().unwrap();
            assert!(!leaves_none || snapshot.timestamp >= Timestamp(1), "a version is missing");
        });
    }

    /// Either the commit sees the snapshot or the snapshot sees the commit, whether the snapshot is at the published or
    /// the visible horizon.
    #[test]
    fn loom_a_version_is_left_for_each_snapshot_before_it() {
        explore(|snapshots, clock| snapshots.open_snapshot(Duration::ZERO, || clock.published()));
        explore(|snapshots, clock| snapshots.open_snapshot(Duration::ZERO, || clock.visible()));
    }

    /// A commit that leaves no version for its own transaction's snapshot leaves one for every other before it.
    #[test]
    fn loom_a_version_is_left_for_each_other_snapshot() {
        loom::model(|| {
            let (snapshots, clock) = (Arc::new(Snapshots::default()), Arc::new(Clock::new(Timestamp(0))));
            let own = snapshots.open_snapshot(Duration::ZERO, || clock.published());
            let shared = (Arc::clone(&snapshots), Arc::clone(&clock));
            let opener = thread::spawn(move || shared.0.open_snapshot(Duration::ZERO, || shared.1.visible()));
            clock.mark_applied(Timestamp(1));
            let leaves_none = clock.try_show_relaxed(Timestamp(1)) && !snapshots.are_open_besides(1);
            let snapshot = opener.join().unwrap();
            drop(own);
            assert!(!leaves_none || snapshot.timestamp >= Timestamp(1), "a version is missing");
        });
    }

    /// The model fails if the timestamp is chosen before the snapshot is counted, which proves that the model can find
    /// this bug.
    #[test]
    #[should_panic(expected = "a version is missing")]
    fn loom_a_snapshot_that_is_counted_late_is_found() {
        explore(|snapshots, clock| {
            let early = clock.visible();
            snapshots.open_snapshot(Duration::ZERO, || early)
        });
    }

    /// Runs two threads: two commits to a keyspace, and a transaction that then locks a row of it. `open` opens the
    /// snapshot of the transaction.
    fn explore_changes(open: fn(&Arc<Snapshots>, &Clock) -> SnapshotHandle) {
        loom::model(move || {
            let (snapshots, clock) = (Arc::new(Snapshots::default()), Arc::new(Clock::new(Timestamp(0))));
            // This snapshot makes the first commit leave a note.
            let _earlier = snapshots.open_snapshot(Duration::ZERO, || Timestamp(0));
            let changed_at = atomic::AtomicU64::new(0);
            let shared = (Arc::clone(&snapshots), Arc::clone(&clock));
            let opener = thread::spawn(move || open(&shared.0, &shared.1));
            for timestamp in [Timestamp(1), Timestamp(2)] {
                clock.mark_applied(timestamp);
                snapshots.note_change(&changed_at, timestamp);
            }
            let snapshot = opener.join().unwrap();
            let may_have_changed = changed_at.load(Ordering::Acquire) > snapshot.timestamp.0;
            assert!(may_have_changed || snapshot.timestamp >= Timestamp(2), "a change is missed");
        });
    }

    /// A commit after a snapshot leaves a note, or finds one that is newer than the snapshot.
    #[test]
    fn loom_a_change_of_a_keyspace_is_noted_for_each_snapshot_before_it() {
        explore_changes(|snapshots, clock| snapshots.open_snapshot(Duration::ZERO, || clock.published()));
    }

    /// The model fails if the snapshot's timestamp is not chosen again once it is noted as the newest.
    #[test]
    #[should_panic(expected = "a change is missed")]
    fn loom_a_snapshot_that_is_noted_late_is_found() {
        explore_changes(|snapshots, clock| {
            let early = clock.published();
            snapshots.open_snapshot(Duration::ZERO, || early)
        });
    }
}
