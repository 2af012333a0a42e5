//! Requests to the background threads of an open database, and waiting for their completion.

use std::sync::Arc;

use crate::error::Result;
use crate::io::Share;
use crate::sync::{Condvar, Mutex};
use crate::txn::Reclaim;

/// The requests to the background threads, and the progress of these requests.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    pub(crate) state: Mutex<MaintenanceState>,
    pub(crate) changed: Condvar,
    pub(super) spill: Mutex<SpillRequest>,
    pub(super) spill_changed: Condvar,
    pub(super) fold: Mutex<FoldRequest>,
    pub(super) fold_changed: Condvar,
    /// Makes background work urgent while commits wait for it.
    share: Arc<Share>,
}

/// A request to the thread that spills old versions.
#[derive(Debug, Default)]
pub(super) struct SpillRequest {
    /// The bytes that old versions may occupy in memory after the spill.
    pub(super) wanted: Option<u64>,
    pub(super) stop: bool,
}

/// A request to the thread that folds runs.
#[derive(Debug, Default)]
pub(super) struct FoldRequest {
    /// `true` if a run has been attached since the thread last checked.
    pub(super) is_wanted: bool,
    /// `true` once the thread has been started.
    pub(super) is_running: bool,
    pub(super) stop: bool,
}

/// The state of [`Maintenance`] that its lock guards.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceState {
    /// `true` if a checkpoint is requested.
    pub(crate) checkpoint_wanted: bool,
    /// The number of requested checkpoints that have begun. The next two fields are the number that have ended, and
    /// `true` if the newest one failed.
    pub(crate) checkpoints_begun: u64,
    pub(crate) checkpoints_ended: u64,
    pub(crate) is_checkpoint_refused: bool,
    /// `true` if the pages of dropped keyspaces are to be freed.
    pub(super) free_wanted: bool,
    /// `true` if reclaiming space is requested.
    pub(crate) space_wanted: bool,
    /// The number of requested reclaims that have begun. The next field counts those that have ended.
    pub(crate) space_begun: u64,
    pub(crate) space_ended: u64,
    /// `true` if a checkpoint was made since the database was last idle. If so, shortening the file may pay off.
    pub(super) is_unpacked: bool,
    /// `true` while the maintenance thread must not begin anything. See [`Maintenance::pause`].
    pub(super) is_paused: bool,
    /// `true` while the maintenance thread serves requests.
    pub(super) is_working: bool,
    pub(crate) stop: bool,
    pub(crate) failed: bool,
}

impl MaintenanceState {
    /// Returns `true` if the maintenance thread has a request to serve or must stop.
    pub(crate) fn is_wanted(&self) -> bool {
        self.checkpoint_wanted || self.free_wanted || self.space_wanted || self.stop
    }
}

impl Maintenance {
    pub(super) fn new(share: Arc<Share>) -> Maintenance {
        Maintenance { share, ..Maintenance::default() }
    }

    /// Requests a checkpoint.
    pub(crate) fn ask(&self) {
        self.state.lock().checkpoint_wanted = true;
        self.changed.notify_all();
    }

    /// Requests that the pages of dropped keyspaces be freed.
    pub(super) fn ask_to_free(&self) {
        self.state.lock().free_wanted = true;
        self.changed.notify_all();
    }

    /// Makes the maintenance thread pause: it ends its work, and begins no checkpoint and no reclaim until the result
    /// is dropped. In the meantime, commits that can't continue without one fail.
    pub(super) fn pause(&self) -> PausedMaintenance<'_> {
        let mut state = self.state.lock();
        state.is_paused = true;
        while state.is_working && !state.stop && !state.failed {
            self.changed.wait(&mut state);
        }
        PausedMaintenance(self)
    }

    /// Records that a checkpoint was made, so that the file may be shortened once the database is idle.
    pub(super) fn checkpoint_ended(&self) {
        self.state.lock().is_unpacked = true;
        self.changed.notify_all();
    }

    /// Wakes the commits that wait for a checkpoint to begin.
    pub(super) fn announce_checkpoint(&self) {
        // Taking the lock makes sure that no waiter misses the notification between its check and its wait.
        drop(self.state.lock());
        self.changed.notify_all();
    }
}

/// A pause of the maintenance thread, which ends on drop.
pub(super) struct PausedMaintenance<'m>(&'m Maintenance);

impl Drop for PausedMaintenance<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_paused = false;
        self.0.changed.notify_all();
    }
}

impl Reclaim for Maintenance {
    fn request_spill(&self, bytes_max: u64) {
        let mut request = self.spill.lock();
        request.wanted = Some(request.wanted.map_or(bytes_max, |wanted| wanted.min(bytes_max)));
        drop(request);
        self.spill_changed.notify_all();
    }

    /// Requests a reclaim that starts after this call, and waits until it ends.
    fn reclaim_space(&self) -> Result<()> {
        let _urgent = self.share.urgent();
        let mut state = self.state.lock();
        if state.is_paused {
            return Ok(());
        }
        state.space_wanted = true;
        self.changed.notify_all();
        let target = state.space_begun + 1;
        while state.space_ended < target && !state.stop && !state.failed {
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    fn wait_for_checkpoint(&self, is_enough: &dyn Fn() -> bool) {
        let _urgent = self.share.urgent();
        let mut state = self.state.lock();
        while !state.is_paused {
            state.checkpoint_wanted = true;
            self.changed.notify_all();
            let target = state.checkpoints_begun + 1;
            while state.checkpoints_ended < target {
                if is_enough() || state.stop || state.failed {
                    return;
                }
                self.changed.wait(&mut state);
            }
            if is_enough() || state.is_checkpoint_refused {
                return;
            }
        }
    }
}
