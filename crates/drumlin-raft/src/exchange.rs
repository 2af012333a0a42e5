//! Snapshots of a state: building them, and putting a received one in its place.

use std::sync::Arc;

use crate::codec::EntryId;
use crate::error::{Error, Result};
use crate::machine::StateMachine;
use crate::snapshot::{Kept, Snapshot, Snapshots};
use crate::state::State;
use crate::threads;

/// The pause between looks at whether a snapshot still travels.
#[cfg(feature = "openraft-0-9")]
const TRAVELLING_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

impl<M: StateMachine> State<M> {
    fn snapshots(&self) -> &Snapshots {
        &self.shared.snapshots
    }

    /// Returns `false` while a snapshot is being sent: a newer one would let the log be purged beyond the one that
    /// travels, and its receiver would need another. [`NodeOptions::snapshot_lag_max`] limits how long.
    ///
    /// [`NodeOptions::snapshot_lag_max`]: crate::NodeOptions::snapshot_lag_max
    #[must_use]
    pub fn may_build_snapshot(&self) -> bool {
        !self.snapshots().is_travelling(self.applied_index())
    }

    /// Waits until [`may_build_snapshot`](State::may_build_snapshot) is true. Blocks.
    #[cfg(feature = "openraft-0-9")]
    pub(crate) fn wait_for_travelling(&self) {
        while !self.may_build_snapshot() {
            // Entries that are applied may end the wait as well as the reader.
            drumlin_io::sync::sleep(TRAVELLING_PAUSE);
        }
    }

    /// Keeps a snapshot of the state as of the last entry that was applied, while entries are applied. It is durable
    /// when this returns. If the newest snapshot is of the same entry, returns that. Blocks.
    ///
    /// # Errors
    /// Those of [`drumlin::Database::keep_snapshot`].
    pub fn build_snapshot(&self) -> Result<Snapshot> {
        let snapshots = self.snapshots();
        let _building = snapshots.building.lock();
        loop {
            let generation = self.generation();
            let is_current = || Arc::ptr_eq(&generation, &self.generation());
            if let Some(newest) = &*snapshots.newest.lock()
                && newest.index().is_some()
                && newest.index() == self.applied_index()
            {
                return Ok(snapshots.hand_out(newest));
            }
            let kept = match Kept::keep(&generation.database) {
                Ok(kept) => Arc::new(kept),
                // A snapshot took the place of the state, and the old database was closed.
                Err(_) if !is_current() => continue,
                Err(error) => return Err(error),
            };
            let mut newest = snapshots.newest.lock();
            if is_current() {
                snapshots.replace(&mut newest, &kept);
                return Ok(snapshots.hand_out(&kept));
            }
        }
    }

    /// Returns a snapshot that covers what the log has forgotten, for a node that lacks it. Builds one if the newest
    /// does not. Blocks.
    ///
    /// After a power cut, the state may be ahead of the node's own log: the others have committed entries that were not
    /// durable here. A Raft library then forgets the log up to the state.
    ///
    /// # Errors
    /// Those of [`build_snapshot`](State::build_snapshot), and [`Error::Undecodable`].
    pub fn covering_snapshot(&self) -> Result<Option<Snapshot>> {
        let (purged, newest) = (self.shared.site.purged_index()?, self.newest_snapshot());
        let covered = newest.as_ref().and_then(|snapshot| snapshot.applied()?.applied.as_ref().map(|id| id.index));
        if purged > covered && purged <= self.applied_index() {
            return self.build_snapshot().map(Some);
        }
        Ok(newest)
    }

    /// Returns the newest snapshot, if there is one.
    #[must_use]
    pub fn newest_snapshot(&self) -> Option<Snapshot> {
        let snapshots = self.snapshots();
        snapshots.newest.lock().as_ref().map(|kept| snapshots.hand_out(kept))
    }

    /// Returns an empty snapshot, to be [written](Snapshot::write) what another node sends. It is restored into a
    /// folder of its own while it arrives, in bounded memory.
    #[must_use]
    pub fn receive_snapshot(&self) -> Snapshot {
        Snapshot::receive(&self.shared.site)
    }

    /// Puts a snapshot in the place of the state. A node that is killed has the old state or the new one.
    ///
    /// # Errors
    /// [`Error::UnusableSnapshot`] if it is damaged, cut short, of another cluster or group, of another entry than
    /// `applied`, or older than the state. It is then discarded, and the state stays.
    pub async fn install_snapshot(&self, snapshot: Snapshot, applied: Option<&EntryId>) -> Result<()> {
        let mut loaded = snapshot.load(&self.shared.site).await?;
        if loaded.kept.state.applied.as_ref() != applied {
            return Err(Error::snapshot("its last entry is not the one that was announced"));
        }
        let state = self.clone();
        threads::unblock(move || {
            let mut newest = state.snapshots().newest.lock();
            if loaded.kept.index() < state.applied_index() {
                return Err(Error::snapshot("it is older than the state"));
            }
            state.install(loaded.number, loaded.kept.database.clone())?;
            loaded.is_installed = true;
            let kept = Arc::clone(&loaded.kept);
            state.snapshots().replace(&mut newest, &kept);
            Ok(())
        })
        .await
    }
}
