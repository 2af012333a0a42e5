//! The sums of the reserved bytes, and the allowance of commits. The rules are in `reservation.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::debt::CheckpointDebt;
use super::policy::{Purpose, SpaceState};
use crate::sync::{CachePadded, Mutex};

/// The size of an allowance: enough for 18 single-row commits, each with 7 pages of 4 KiB. A larger allowance would
/// make small files grow just for its sake.
pub(super) const ALLOWANCE_BYTES: u64 = 512 << 10;

/// The sums of all reservations.
#[derive(Debug)]
pub(super) struct Reservations {
    pub(super) debt: Arc<CheckpointDebt>,
    pub(super) admissions: Mutex<Admissions>,
    pub(super) allowance: CachePadded<Allowance>,
}

/// The allowance of commits, which take bytes from it without a lock.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    /// The bytes left in the allowance.
    pub(super) left_bytes: AtomicU64,
    /// The bytes of reservations that have ended since the sums were last settled.
    pub(super) ended_bytes: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Admissions {
    /// The bytes of two kinds of reservations: those that were live when the sums were last settled, and later ones
    /// that did not use the allowance.
    pub(super) in_use_bytes: u64,
    /// The size of the current allowance when it was granted.
    granted_bytes: u64,
    /// The number of live reservations for [`Purpose::Pack`].
    pub(super) packing_count: u32,
    /// Set when the file can't grow, and reset once [plenty](SpaceState::has_plenty) of space is free.
    pub(super) full_disk: Option<FullDisk>,
}

/// The state that exists only while the disk is full.
#[derive(Debug, Default)]
pub(super) struct FullDisk {
    /// The number of [idle segments](SpaceState::idle_segments) after the last packing of sparse segments.
    pub(super) packed_idle_segments: Option<u64>,
}

impl FullDisk {
    /// Returns `true` if packing would gain no more space: the last packing has ended, and no segment has been taken
    /// since.
    pub(super) fn is_packed(&self, state: &SpaceState) -> bool {
        self.packed_idle_segments.is_some_and(|idle_segments| idle_segments <= state.idle_segments())
    }
}

impl Admissions {
    pub(super) fn add(&mut self, purpose: Purpose, bytes: u64) {
        self.in_use_bytes += bytes;
        self.packing_count += u32::from(purpose == Purpose::Pack);
    }
}

impl Reservations {
    pub(super) fn new() -> Reservations {
        Reservations { debt: Arc::default(), admissions: Mutex::default(), allowance: CachePadded::default() }
    }

    /// Takes bytes from the allowance. Returns `false` if too little of it is left.
    #[inline]
    pub(super) fn take_allowed(&self, bytes: u64) -> bool {
        let left_bytes = &self.allowance.left_bytes;
        // Relaxed: `settle` sees the subtraction when the reservation ends, or at a later modification of the
        // allowance.
        left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    /// Revokes the allowance, and updates the sum of the live reservations.
    pub(super) fn settle(&self, admissions: &mut Admissions) {
        // Read the ended bytes first: all of them were taken before they ended, so they are among the taken bytes.
        // Acquire pairs with the release in `SpaceReservation::drop`.
        let ended_bytes = self.allowance.ended_bytes.swap(0, Ordering::Acquire);
        let left_bytes = self.allowance.left_bytes.swap(0, Ordering::Relaxed);
        let granted_bytes = std::mem::take(&mut admissions.granted_bytes);
        assert!(left_bytes <= granted_bytes, "{left_bytes} bytes are left of an allowance of {granted_bytes}");
        let taken_bytes = granted_bytes - left_bytes;
        admissions.in_use_bytes += taken_bytes;
        assert!(admissions.in_use_bytes >= ended_bytes, "{ended_bytes} bytes have ended of {admissions:?}");
        admissions.in_use_bytes -= ended_bytes;
    }

    /// Grants an allowance. The sums must have been [settled](Self::settle).
    pub(super) fn grant(&self, admissions: &mut Admissions) {
        assert!(admissions.granted_bytes == 0, "an allowance is granted beside another: {admissions:?}");
        let left_bytes = self.allowance.left_bytes.load(Ordering::Relaxed);
        assert!(left_bytes == 0, "{left_bytes} bytes are left of an allowance that was revoked");
        admissions.granted_bytes = ALLOWANCE_BYTES;
        self.allowance.left_bytes.store(ALLOWANCE_BYTES, Ordering::Relaxed);
    }
}
