//! Drops old versions that no snapshot needs, spills the remaining ones, and frees large values to which only dropped
//! versions referred.

use super::{Engine, UnfreedValues};
use crate::format::KeyspaceId;
use crate::format::node::LargeRef;
use crate::txn::values;

/// A spill begins when the versions in memory exceed this size or three quarters of the memory for versions, whichever
/// is less. It stops at half of this size or half of the memory for versions, whichever is less. Simulated databases
/// have few versions, so they spill earlier.
const UNSPILLED_BYTES_MAX: u64 = if cfg!(feature = "sim") { 8 << 10 } else { u64::MAX };

/// Values are freed only while the epoch has at most this many page table changes, or fewer if the memory for changes
/// is smaller. Simulations free few values.
const FREED_CHANGES_MAX: u64 = if cfg!(feature = "sim") { 32 } else { u64::MAX };

/// The outcome of an attempt to spill versions.
enum Spill {
    /// Versions left memory.
    Some,
    /// Memory contained no versions that could be spilled.
    Nothing,
    /// The versions could not be written to disk. This is the reason.
    Refused(String),
}

impl Engine {
    /// Drops versions that no snapshot needs, unless another thread is already doing so. If too many versions remain,
    /// requests a spill.
    pub(crate) fn collect_garbage(&self) {
        self.try_collect_all_garbage();
        self.request_spill_of_many();
    }

    /// Drops the versions that no snapshot needs. If another thread is already doing so, first waits for it. If too
    /// many versions remain, requests a spill.
    pub(crate) fn collect_all_garbage(&self) {
        self.drop_unneeded(&mut self.unfreed_values.lock());
        // Commits now wait longer before they start the next collection, so check on their behalf.
        self.request_spill_of_many();
    }

    /// Drops the versions that no snapshot needs, unless another thread is already doing so. Called by a commit that
    /// waits for memory; it requests a spill itself.
    pub(crate) fn try_collect_all_garbage(&self) {
        if let Some(mut unfreed) = self.unfreed_values.try_lock() {
            self.drop_unneeded(&mut unfreed);
        }
    }

    /// Requests a spill if the versions use too much memory.
    #[allow(clippy::unnecessary_min_or_max, reason = "the limit exists only in simulations")]
    fn request_spill_of_many(&self) {
        let most = self.budget.version_bytes_max();
        let (high, low) = match self.spilled.is_on() {
            true => ((most / 4 * 3).min(UNSPILLED_BYTES_MAX), (most / 2).min(UNSPILLED_BYTES_MAX / 2)),
            false => (most, most),
        };
        debug_assert!(low <= high, "a spill that is requested at {high} bytes and frees none");
        if self.versions.memory_bytes() > high {
            self.reclaim.request_spill(low);
        }
    }

    fn drop_unneeded(&self, unfreed: &mut UnfreedValues) {
        let horizon = self.snapshots.horizon(&self.clock);
        debug_assert!(horizon <= self.clock.visible(), "versions are dropped that the next reader needs");
        unfreed.extend(self.versions.collect_garbage(horizon));
        unfreed.extend(self.spilled.drop_up_to(horizon));
        self.free_values(unfreed, self.changes_max_of_frees());
    }

    /// Returns the number of page table changes in an epoch beyond which no more values are freed.
    #[allow(clippy::unnecessary_min_or_max, reason = "the limit exists only in simulations")]
    fn changes_max_of_frees(&self) -> u64 {
        self.budget.epoch_changes_max().min(FREED_CHANGES_MAX)
    }

    /// Frees values that had to wait for this epoch. Leaves half of the memory for the epoch's changes to commits.
    pub(crate) fn free_waiting_values(&self) {
        if self.space.unfreed_pages() > 0
            && let Some(mut unfreed) = self.unfreed_values.try_lock()
        {
            self.free_values(&mut unfreed, self.changes_max_of_frees() / 2);
        }
    }

    /// Drops versions that no snapshot needs and spills others, until the versions in memory use at most `bytes_max`.
    /// If versions can't be spilled, ends the oldest snapshots. If the configuration delays commits instead, returns
    /// `false` while a commit waits: only the end of a snapshot helps then. Called only by the thread that spills.
    pub(crate) fn fit_versions(&self, bytes_max: u64) -> bool {
        let mut unfreed = self.unfreed_values.lock();
        loop {
            self.drop_unneeded(&mut unfreed);
            if self.versions.memory_bytes() <= bytes_max {
                return true;
            }
            match self.spill(&mut unfreed) {
                Spill::Some => {}
                Spill::Refused(_) if self.spilled.delays_commits() => return !self.budget.versions.are_awaited(),
                Spill::Refused(why) if self.snapshots.end_oldest(&self.clock, &why) => {}
                // The remaining versions belong to commits that are still running or not visible yet.
                Spill::Nothing | Spill::Refused(_) => return true,
            }
        }
    }

    /// Ends the snapshots that need spilled versions. Called when the disk is full, because commits need the space more
    /// urgently.
    pub(crate) fn give_up_spilled(&self) {
        let disk_bytes = self.spilled.disk_bytes();
        if disk_bytes == 0 {
            return;
        }
        let why = format!("the disk is full, and the {disk_bytes} bytes of old versions on it gave way to commits");
        let mut unfreed = self.unfreed_values.lock();
        self.drop_unneeded(&mut unfreed);
        while self.spilled.has_any_run() && self.snapshots.end_oldest(&self.clock, &why) {
            crate::coverage::mark!("a full disk took the space of spilled versions");
            self.drop_unneeded(&mut unfreed);
        }
    }

    /// Returns the disk space that versions may use.
    pub(crate) fn version_disk_bytes_max(&self) -> u64 {
        self.spilled.limit_bytes(self.space.segments.usage().live_bytes)
    }

    /// Spills the versions of visible commits and merges runs.
    fn spill(&self, unfreed: &mut UnfreedValues) -> Spill {
        let needed = self.snapshots.needed(&self.clock);
        if needed.snapshots.is_empty() {
            return Spill::Nothing;
        }
        if let Some(why) = self.spilled.refusal(self.version_disk_bytes_max()) {
            return Spill::Refused(why);
        }
        let spilled = self.versions.spill(&self.spilled, &needed).and_then(|(unneeded, has_left)| {
            unfreed.extend(unneeded);
            unfreed.extend(self.spilled.merge(&needed)?);
            Ok(has_left)
        });
        self.free_values(unfreed, self.changes_max_of_frees());
        match spilled {
            Ok(true) => {
                crate::coverage::mark!("versions were spilled");
                Spill::Some
            }
            Ok(false) => Spill::Nothing,
            Err(error) => {
                log::debug!("old versions are not spilled: {error}");
                Spill::Refused(format!("the old versions that it needs could not be written to disk: {error}"))
            }
        }
    }

    /// Frees values until the newest epoch has more than `changes_max` page table changes. The remaining values wait
    /// for later epochs.
    fn free_values(&self, unfreed: &mut UnfreedValues, changes_max: u64) {
        while let Some((keyspace, reference)) = unfreed.front() {
            // The same version may have been both in memory and in a run, so its value may have been freed already.
            if self.versions.holds(*keyspace, reference) {
                // A value may have more pages than an epoch may have changes. Do not let it wait forever.
                let limit = changes_max - u64::from(reference.chunk_count).min(changes_max / 2);
                if self.space.epoch_change_count() > limit {
                    crate::coverage::mark!("freeing values waited for a checkpoint to write earlier changes");
                    break;
                }
                self.free_value(*keyspace, reference);
            }
            unfreed.pop_front();
        }
        if unfreed.is_empty() {
            *unfreed = UnfreedValues::default();
        }
        let page_count = unfreed.iter().map(|(_, reference)| u64::from(reference.chunk_count)).sum();
        self.versions.set_unfreed_pages(page_count);
    }
}

impl<L> Engine<L> {
    pub(crate) fn free_value(&self, keyspace: KeyspaceId, reference: &LargeRef) {
        let epoch_guard = self.space.epoch_latch.shared();
        let Some(pages) = self.space.page_space(keyspace) else { return };
        if pages.is_dropped() {
            return self.versions.release_value(keyspace, reference);
        }
        let freed = values::free(&self.pool, &epoch_guard, &pages, reference.first_page, reference.chunk_count);
        if let Err(error) = freed {
            log::warn!("the space of a value that was removed is not used again: {error}");
        }
        self.versions.release_value(keyspace, reference);
    }
}
