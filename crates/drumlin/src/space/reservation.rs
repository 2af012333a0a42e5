//! The owner of disk space: every byte that may have to be written is reserved here before anything depends on it.
//!
//! A full disk has to be detected before a commit takes its timestamp, and must never prevent a checkpoint or the
//! removal of rows. So bytes are reserved for a [`Purpose`] *before* pages become dirty, and released when the
//! [`SpaceReservation`] is dropped.
//!
//! # Contract
//! 1. *Reserved before dirty.* `dirty + reserved` bounds the page bytes that the next checkpoint writes. A reservation
//!    covers everything that its holder may make dirty. It does not shrink as pages become dirty: their bytes count
//!    twice until the reservation ends, so changing a page touches no shared sum.
//! 2. *One policy.* [`admit`] alone decides, from a [`SpaceState`]. It is pure: the same state always gets the same
//!    answer.
//! 3. *Coverage.* When bytes are reserved, three quarters of the free segments hold `dirty + reserved + tables`; the
//!    last quarter of each is left for waste. At the [least](Margin::Least) margin, the free segments and the rest of
//!    the open one hold these bytes without that allowance for waste. Each purpose except [`Remove`](Purpose::Remove)
//!    leaves more than that free, so operations that free space still find room when operations that take space do not.
//! 4. *Sums.* After [`settle`](super::reservation_sums::Reservations::settle), `in_use` is the sum of the live
//!    reservations. This is asserted at each change, even in release builds, because the numbers are in registers at
//!    that point.
//! 5. *Segments are taken here.* [`Space::take_segment`] is the only caller of `Segments::take`; an appender receives
//!    it as a function, together with the purpose that it serves. An epoch's appender takes segments for bytes that
//!    have already been reserved, and does so under latches, where a refusal could not be handled. So its purpose,
//!    [`Pages`](Purpose::Pages), is always granted. Values and moves take segments for bytes that are not reserved yet,
//!    so each of their segments is admitted separately.
//!
//! # The allowance
//! Asking the policy takes some 300 instructions and six locks, so a commit does not ask if the disk is far from full.
//! When a commit does ask, [`ALLOWANCE_BYTES`] more are admitted with it. The next commits, on any thread, subtract
//! their bytes from this allowance with one atomic operation. Subtracted bytes count as reserved until the next commit
//! has to ask, even if their own commit has ended: the pages that it made dirty were not counted when the allowance was
//! admitted. Every query of the policy revokes the allowance first, so an allowance never causes a refusal. On a full
//! disk no allowance is granted, so each commit asks.
//!
//! Lock order: the admissions are locked before the logged changes, the appender and the segments.

use std::sync::atomic::Ordering;

use super::Space;
use super::policy::{Admission, Margin, Purpose, SpaceState, admit};
use super::reservation_sums::ALLOWANCE_BYTES;
use super::reservation_sums::Admissions;
use crate::error::{Error, Result};
use crate::format::SegmentId;

/// The shortage of space that prevented a reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    /// The number of free segments that would have been enough.
    segments: u64,
    /// The bytes that other reservations held at that time.
    pub(crate) reserved_bytes: u64,
    /// Set if the reservation included an allowance, so it would have needed less space without one.
    is_for_allowance: bool,
}

/// Reserved disk space. Dropping this value releases the space.
#[must_use = "space is released when the reservation is dropped"]
pub(crate) struct SpaceReservation<'s> {
    space: &'s Space,
    purpose: Purpose,
    bytes: u64,
}

impl std::fmt::Debug for SpaceReservation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SpaceReservation({:?}, {} bytes)", self.purpose, self.bytes)
    }
}

impl Drop for SpaceReservation<'_> {
    #[inline]
    fn drop(&mut self) {
        let reservations = &self.space.reservations;
        if self.purpose == Purpose::Pack {
            let mut admissions = reservations.admissions.lock();
            assert!(admissions.packing_count > 0, "{self:?} was not counted");
            admissions.packing_count -= 1;
        }
        // Release: the pages that the holder made dirty are counted before the bytes stop counting as reserved.
        reservations.allowance.ended_bytes.fetch_add(self.bytes, Ordering::Release);
    }
}

impl SpaceReservation<'_> {
    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Changes the reservation to `bytes`. If the policy does not admit them, reserves nothing and returns `false`.
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        assert!(!self.purpose.is_of_commits(), "an allowance is not resized");
        let mut admissions = self.space.reservations.admissions.lock();
        self.space.reservations.settle(&mut admissions);
        assert!(admissions.in_use_bytes >= self.bytes, "{self:?} is resized of {:?}", *admissions);
        admissions.in_use_bytes -= std::mem::take(&mut self.bytes);
        let is_granted = admit(&self.space.state_of(&admissions), self.purpose, bytes) == Admission::Granted;
        if is_granted {
            admissions.in_use_bytes += bytes;
            self.bytes = bytes;
        }
        is_granted
    }
}

impl Space {
    /// Reserves space, growing the file if too little is free. On a full disk, purposes that free space fall back to
    /// the least margin.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: nothing is reserved, and the database stays usable.
    pub(crate) fn reserve(&self, purpose: Purpose, bytes: u64) -> Result<SpaceReservation<'_>> {
        let mut margin = Margin::Full;
        loop {
            let shortage = match self.try_reserve(purpose, bytes, margin) {
                Ok(reservation) => return Ok(reservation),
                Err(shortage) => shortage,
            };
            match self.grow(shortage) {
                Err(Error::DiskFull { .. }) if margin == Margin::Full && purpose.has_least_margin() => {
                    margin = Margin::Least;
                }
                grown => grown?,
            }
        }
    }

    /// Reserves space without growing the file: out of the allowance if it suffices, otherwise by asking the policy.
    #[inline]
    pub(crate) fn try_reserve(
        &self,
        purpose: Purpose,
        bytes: u64,
        margin: Margin,
    ) -> Result<SpaceReservation<'_>, Shortage> {
        if !purpose.is_of_commits() || !self.reservations.take_allowed(bytes) {
            self.reserve_by_policy(purpose, bytes, margin)?;
        }
        Ok(SpaceReservation { space: self, purpose, bytes })
    }

    /// Adds `bytes` to the reserved bytes if the policy admits them. For commits, also grants an allowance, unless the
    /// disk is full.
    fn reserve_by_policy(&self, purpose: Purpose, bytes: u64, margin: Margin) -> Result<(), Shortage> {
        let mut admissions = self.reservations.admissions.lock();
        let state = self.settled_state(&mut admissions);
        if purpose.is_of_commits() && bytes <= ALLOWANCE_BYTES && admissions.full_disk.is_none() {
            // An allowance is admitted under the same rule as commits with new rows.
            let admitted_bytes = bytes + ALLOWANCE_BYTES;
            match admit(&state, Purpose::Put, admitted_bytes) {
                Admission::Granted => {
                    state.assert_covered(Purpose::Put, admitted_bytes);
                    self.reservations.grant(&mut admissions);
                }
                Admission::Scarce { segments } | Admission::Short { segments, .. } => {
                    assert!(segments > state.free_segments, "{bytes} bytes are refused at {state:?}");
                    let reserved_bytes = state.reserved_bytes;
                    return Err(Shortage { segments, reserved_bytes, is_for_allowance: true });
                }
            }
        } else {
            check_admission(&admissions, &state, purpose, bytes, margin)?;
        }
        admissions.add(purpose, bytes);
        Ok(())
    }

    /// Grows the file until the required number of segments is free.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the file can't grow. But if only the allowance lacked space, returns no error, and the
    /// caller retries without an allowance.
    pub(crate) fn grow(&self, shortage: Shortage) -> Result<()> {
        assert!(shortage.segments > 0, "nothing was short: {shortage:?}");
        self.begin_writing()?;
        let segments = u32::try_from(shortage.segments).unwrap_or(u32::MAX);
        self.segments.ensure_free(segments).or_else(|error| match self.growth_error(error) {
            error @ Error::DiskFull { .. } => {
                self.reservations.admissions.lock().full_disk.get_or_insert_default();
                if shortage.is_for_allowance { Ok(()) } else { Err(error) }
            }
            error => Err(error),
        })
    }

    /// Records that packing sparse segments would gain no more space, if the disk is still full.
    pub(crate) fn set_packed(&self) {
        let mut admissions = self.reservations.admissions.lock();
        let state = self.settled_state(&mut admissions);
        assert!(state.idle_segments() <= state.free_segments, "more is idle than free: {state:?}");
        if let Some(full_disk) = &mut admissions.full_disk {
            full_disk.packed_idle_segments = Some(state.idle_segments());
        }
    }

    /// Takes a segment for a purpose, growing the file if too few segments are free.
    pub(crate) fn take_segment(&self, purpose: Purpose) -> Result<SegmentId> {
        let takes = matches!(purpose, Purpose::Pages | Purpose::Value | Purpose::Move);
        assert!(takes, "{purpose:?} has its segments taken by others");
        self.begin_writing()?;
        if purpose == Purpose::Pages {
            return self.segments.take().map_err(|error| self.growth_error(error));
        }
        loop {
            let mut admissions = self.reservations.admissions.lock();
            let state = self.settled_state(&mut admissions);
            match check_admission(&admissions, &state, purpose, 0, Margin::Full) {
                // The last segment may have been taken by an epoch's appender, which does not ask the policy.
                Ok(()) => match self.segments.try_take() {
                    Some(segment) => return Ok(segment),
                    None => continue,
                },
                Err(shortage) => {
                    drop(admissions);
                    self.grow(shortage)?;
                }
            }
        }
    }

    /// Returns the free end of the file to the file system. Retains `keep` free segments, or the
    /// [kept](SpaceState::kept_segments) number if that is larger.
    pub(crate) fn shrink(&self, keep: u64) -> Result<()> {
        // Hold the lock, so that the file does not lose segments that a concurrent admission relies on.
        let mut admissions = self.reservations.admissions.lock();
        let keep = keep.max(self.settled_state(&mut admissions).kept_segments());
        let keep = u32::try_from(keep).unwrap_or(u32::MAX);
        self.segments.shrink(keep).map_err(|error| Error::io("shrinking", self.path(), error))
    }

    /// Returns `true` if the policy would still grant bytes that are already reserved for this purpose.
    pub(crate) fn is_admitted(&self, purpose: Purpose, bytes: u64) -> bool {
        admit(&self.state(), purpose, bytes) == Admission::Granted
    }

    /// Returns the current free space and the claims to it. Revokes the allowance.
    pub(crate) fn state(&self) -> SpaceState {
        self.settled_state(&mut self.reservations.admissions.lock())
    }

    /// Settles the sums and returns the state. Clears the full-disk mark once plenty of space is free.
    fn settled_state(&self, admissions: &mut Admissions) -> SpaceState {
        self.reservations.settle(admissions);
        let state = self.state_of(admissions);
        admissions.full_disk.take_if(|_| state.has_plenty(ALLOWANCE_BYTES));
        state
    }

    fn state_of(&self, admissions: &Admissions) -> SpaceState {
        // The parts of the catalogue have headers, and each part is padded to a multiple of 64 bytes.
        let catalogue_bytes = self.catalogue_bytes() + self.reservations.debt.orphan_bytes();
        let catalogue_bytes = catalogue_bytes + catalogue_bytes / 256 + 128;
        SpaceState {
            segment_bytes: self.segments.segment_bytes(),
            free_segments: self.segments.free_count(),
            open_segment_bytes: self.open_segment_bytes(),
            dirty_bytes: self.reservations.debt.dirty_bytes(),
            reserved_bytes: admissions.in_use_bytes,
            // A checkpoint may rewrite the base image and the segment table, and always writes the catalogue.
            table_bytes: self.summary_bytes() + self.table_bytes() + self.segments.table_bytes() + catalogue_bytes,
        }
    }

    /// Returns the total bytes of the live reservations.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.state().reserved_bytes
    }

    /// Returns `true` while extents are being packed. Until packing ends, the bytes of these extents count twice.
    pub(crate) fn is_packing(&self) -> bool {
        self.reservations.admissions.lock().packing_count > 0
    }
}

/// Asks the policy to admit a reservation without an allowance.
fn check_admission(
    admissions: &Admissions,
    state: &SpaceState,
    purpose: Purpose,
    bytes: u64,
    margin: Margin,
) -> Result<(), Shortage> {
    // If packing would gain nothing, fall back to the least margin: each packing takes at least one checkpoint.
    let is_packed = admissions.full_disk.as_ref().is_some_and(|full_disk| full_disk.is_packed(state));
    let margin = if purpose == Purpose::Remove && is_packed { Margin::Least } else { margin };
    let segments = match (admit(state, purpose, bytes), margin) {
        (Admission::Granted, _) | (Admission::Scarce { .. }, Margin::Least) => {
            state.assert_covered(purpose, bytes);
            return Ok(());
        }
        (Admission::Scarce { segments } | Admission::Short { segments, .. }, Margin::Full) => segments,
        (Admission::Short { least_segments, .. }, Margin::Least) => least_segments,
    };
    assert!(segments > state.free_segments, "{bytes} bytes for {purpose:?} are refused at {state:?}");
    Err(Shortage { segments, reserved_bytes: state.reserved_bytes, is_for_allowance: false })
}

#[cfg(test)]
mod tests;
