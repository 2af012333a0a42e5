//! The owner of disk space: every byte that may have to be written is reserved here before anything depends on it.
//!
//! A full disk has to be detected before a commit takes its timestamp, and must never prevent a checkpoint or the
//! removal of rows. So bytes are reserved for a [`Purpose`] *before* pages become dirty, and released when the
//! [`SpaceReservation`] is dropped.
//!
//! # Contract
//! 1. *Reserved before dirty.* `dirty + reserved` bounds the page bytes that the next checkpoint writes. A reservation
//!    covers everything that its holder may make dirty. It does not shrink as pages become dirty: these bytes count
//!    twice until the reservation ends, so that changing a page touches no shared sum.
//! 2. *One policy.* [`admit`] alone decides, from a [`SpaceState`]. It is pure: same state, same answer.
//! 3. *Coverage.* When bytes are reserved, three quarters of the free segments hold `dirty + reserved + tables`; the
//!    last quarter of each is left for waste. At the [least](Margin::Least) margin, the free segments and the rest of
//!    the open one hold them without that allowance. Each purpose but [`Remove`](Purpose::Remove) leaves more than that
//!    free, so operations that free space still find room when those that take space do not.
//! 4. *Sums.* `reserved = direct + Σ granted`, and in each slot of credit `granted ≥ available + in use`. Asserted at
//!    each change, in release builds too, because the numbers are in registers at that point.
//! 5. *Exactness.* While the sums are exact, no thread has credit available, and `reserved` is the sum of the live
//!    reservations.
//! 6. *Segments are taken here.* [`Space::take_segment`] is the only caller of `Segments::take`; an appender receives
//!    it as a function, with the purpose that it serves. Appenders of an epoch take segments for bytes that have been
//!    reserved already. Asking again under the latches that they run under could only fail what must not fail. So their
//!    purpose, [`Pages`](Purpose::Pages), is always granted. Values and moves take segments for bytes that are not
//!    reserved yet, and each segment is admitted separately.
//!
//! # Credit
//! A commit on the hot path does not compute the admission. When a thread reserves space for a commit, it is also
//! granted [`CREDIT_BYTES`], as if more rows were put. It spends them in its own slot, on its own cache line. Bytes
//! spent by commits that have ended are given back when the thread asks for more. Near a full disk, a commit must not
//! be refused because of the credit of idle threads. So when the file can't grow, the sums become *exact*: all slots
//! are emptied under their locks, and each reservation is computed, until [plenty](SpaceState::has_plenty) is free
//! again.
//!
//! Lock order: the admissions, a slot of credit; both before the logged changes, the appender and the segments.
//! Spending credit takes the slot's lock alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Space;
use crate::error::{Error, Result};
use crate::format::catalogue;
use crate::format::{Epoch, SegmentId};
use crate::sync::{CachePadded, Mutex, thread_index};

/// Credit granted to a thread at a time: some 18 commits of one row into pages of 4 KiB. With more, small files would
/// grow just for credit.
const CREDIT_BYTES: u64 = 512 << 10;

/// The credit of all threads is limited to this fraction of the memory budget. About as many bytes can be dirty at all.
const CREDIT_SHARE: u64 = 4;

/// Number of slots of credit: one for each bit of a word. With more threads than slots, threads share them.
const SLOT_COUNT: usize = 64;

const _: () = assert!(SLOT_COUNT == u64::BITS as usize, "a slot has no bit in the word of those that have credit");

/// Segments that removals leave free, in addition to what dirty pages and the next checkpoint need, until sparse
/// segments have been packed. If the tables take up to a segment, and a quarter of each segment is left for waste, then
/// a checkpoint that frees nothing and the one after packing leave room for a segment's worth of extents. Commits with
/// new rows leave twice as many segments.
const PACKING_SEGMENTS_MIN: u64 = 3;
/// Removals also leave this multiple of the tables beyond their first segment. A checkpoint that frees nothing may
/// rewrite every table, and so may the one after packing, so packing must free more than that.
const PACKING_TABLES: u64 = 2;

/// The use that space is reserved for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Pages that a commit with new rows makes dirty.
    Put,
    /// Pages that a commit makes dirty by removing rows only.
    Remove,
    /// Pages that recovery makes dirty. Their space was available when the commit was made.
    Replay,
    /// Segments of an epoch's appender.
    Pages,
    /// Segments of large values.
    Value,
    /// Pages and segments to which the cleaner moves extents when it empties sparse segments.
    Move,
    /// Like `Move`, but on a full disk, where extents are moved into the checkpoint's own segments.
    Pack,
    /// Everything that a checkpoint writes. It reserves no bytes itself.
    Checkpoint(Frees),
    /// Images of dirty pages that are written before such a checkpoint.
    WriteBack(Frees),
}

/// The space that a checkpoint frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frees {
    /// At least one segment, once the checkpoint is durable.
    Segments,
    /// Possibly none, so another checkpoint has to find space after it.
    Nothing,
}

/// The space that a reservation leaves free beyond its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Margin {
    /// Space for waste at the ends of segments, and the space that the purpose leaves for others.
    Full,
    /// No margin. For operations that free space, once no more can be had.
    Least,
}

/// The answer of [`admit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// There is enough space at the full margin.
    Granted,
    /// There is enough space at the least margin. The full margin takes this many free segments.
    Scarce { segments: u64 },
    /// There is not enough space. The two margins take this many free segments.
    Short { segments: u64, least_segments: u64 },
}

/// Free space, and the bytes that have a claim to it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct SpaceState {
    pub(crate) segment_bytes: u64,
    pub(crate) free_segments: u64,
    /// The bytes left in the open segment of the epoch's pages.
    pub(crate) room_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) reserved_bytes: u64,
    /// The bytes that a checkpoint may write in addition to pages: summaries or a base image, the table of segments,
    /// and the catalogue.
    pub(crate) table_bytes: u64,
}

impl SpaceState {
    /// Returns the bytes that a checkpoint may write if `more_bytes` more are reserved.
    fn checkpoint_bytes(&self, more_bytes: u64) -> u64 {
        let page_bytes = self.dirty_bytes + self.reserved_bytes + more_bytes;
        // An entry takes 24 bytes, and a page at least 512.
        page_bytes + page_bytes / 20 + self.table_bytes
    }

    /// Returns the number of free segments that hold them in any case.
    fn needed_segments(&self, more_bytes: u64) -> u64 {
        // Allow for waste: up to one page of 64 KiB at the end of each segment, and partial blocks at flushes.
        self.checkpoint_bytes(more_bytes) / (self.segment_bytes * 3 / 4) + 1
    }

    /// Returns the number of free segments that hold them together with the rest of the open segment, if little is
    /// wasted.
    fn least_segments(&self, more_bytes: u64) -> u64 {
        match self.checkpoint_bytes(more_bytes).saturating_sub(self.room_bytes * 3 / 4) {
            0 => 0,
            bytes => bytes / self.segment_bytes + 1,
        }
    }

    /// Returns the number of segments that the tables take, rounded down.
    fn table_segments(&self) -> u64 {
        self.table_bytes / self.segment_bytes
    }

    /// Returns the number of segments that removals leave free as long as packing may still gain some.
    fn packing_segments(&self) -> u64 {
        assert!(self.segment_bytes > 0, "a space has no segments: {self:?}");
        let beyond_bytes = self.table_bytes.saturating_sub(self.segment_bytes);
        PACKING_SEGMENTS_MIN + (PACKING_TABLES * beyond_bytes).div_ceil(self.segment_bytes)
    }

    /// Returns the number of segments that commits with new rows leave free.
    pub(crate) fn spare_segments(&self) -> u64 {
        2 * self.packing_segments()
    }

    /// Returns the number of free segments that are not given back to the file system. On a disk that other programs
    /// fill, they might not be available again.
    pub(crate) fn kept_segments(&self) -> u64 {
        self.needed_segments(0) + self.spare_segments()
    }

    /// Returns the number of free segments beyond what the next checkpoint needs.
    pub(crate) fn idle_segments(&self) -> u64 {
        self.free_segments.saturating_sub(self.needed_segments(0))
    }

    /// Returns the number of segments that a checkpoint leaves free.
    fn left_by_checkpoint(&self, frees: Frees) -> u64 {
        match frees {
            Frees::Segments => 0,
            Frees::Nothing => self.table_segments() + 1,
        }
    }

    /// Returns the bytes that can be moved into free space before the next checkpoint.
    pub(crate) fn movable_bytes(&self) -> u64 {
        let writable_bytes = self.free_segments * self.segment_bytes + self.room_bytes;
        (writable_bytes * 3 / 4).saturating_sub(self.checkpoint_bytes(0))
    }

    /// Returns `true` if there are so many free segments that no more space needs to be made for now.
    pub(crate) fn is_relieved(&self) -> bool {
        self.free_segments >= 2 * self.spare_segments() + 8
    }

    /// Asserts contract 3 for bytes that were just reserved.
    fn assert_covered(&self, purpose: Purpose, bytes: u64) {
        let covers = match purpose {
            Purpose::Put | Purpose::Value | Purpose::Move => self.free_segments >= self.needed_segments(bytes),
            Purpose::Remove | Purpose::Checkpoint(_) => self.free_segments >= self.least_segments(bytes),
            // Packing is limited by all space that can be written. The other purposes are part of the sums already.
            Purpose::Pack => bytes <= self.movable_bytes(),
            Purpose::Replay | Purpose::Pages | Purpose::WriteBack(_) => true,
        };
        assert!(covers, "{bytes} bytes for {purpose:?} are not covered by {self:?}");
    }

    /// Returns `true` if there is so much free space that credit can be granted and the sums need not be exact.
    fn has_plenty(&self) -> bool {
        self.free_segments >= 2 * self.needed_segments(CREDIT_BYTES) + self.spare_segments()
    }
}

/// The policy: decides whether this many bytes can be reserved. Segments that values and moves are about to take are
/// accounted for by their purpose, not in `bytes`.
pub(crate) fn admit(state: &SpaceState, purpose: Purpose, bytes: u64) -> Admission {
    assert!(state.room_bytes <= state.segment_bytes, "an open segment has more room than there is: {state:?}");
    let needed = state.needed_segments(bytes);
    let spare = state.spare_segments();
    let alike = |segments: u64| (segments, segments);
    let (segments, least_segments) = match purpose {
        Purpose::Put => alike(needed + spare),
        Purpose::Value => alike(needed + spare + 1),
        Purpose::Move => alike(needed + 1),
        Purpose::Remove => (needed + state.packing_segments(), state.least_segments(bytes)),
        Purpose::Replay => (needed + spare, 0),
        Purpose::Pages => alike(0),
        Purpose::Pack if bytes <= state.movable_bytes() => alike(0),
        Purpose::Pack => {
            let writable_bytes = (state.checkpoint_bytes(0) + bytes).div_ceil(3) * 4;
            alike(writable_bytes.saturating_sub(state.room_bytes).div_ceil(state.segment_bytes))
        }
        Purpose::Checkpoint(frees) => {
            let left = state.left_by_checkpoint(frees);
            (needed + left, state.least_segments(bytes) + left)
        }
        Purpose::WriteBack(_) if state.room_bytes >= 2 * bytes => alike(0),
        Purpose::WriteBack(frees) => alike(state.table_segments() + state.left_by_checkpoint(frees) + 1),
    };
    assert!(least_segments <= segments || purpose.has_least_margin(), "{purpose:?} needs more at less margin");
    if state.free_segments >= segments {
        Admission::Granted
    } else if state.free_segments >= least_segments {
        Admission::Scarce { segments }
    } else {
        Admission::Short { segments, least_segments }
    }
}

impl Purpose {
    /// Returns `true` if the purpose has a least margin that differs from the full one.
    fn has_least_margin(self) -> bool {
        matches!(self, Purpose::Remove | Purpose::Replay | Purpose::Checkpoint(_))
    }

    /// Returns `true` if a thread's credit may pay for the purpose.
    fn takes_credit(self) -> bool {
        matches!(self, Purpose::Put | Purpose::Remove)
    }
}

/// Bytes in memory that the next checkpoint writes. The pool and the versions keep the counters up to date.
#[derive(Debug, Default)]
pub(crate) struct CheckpointDebt {
    dirty: CachePadded<DirtyPages>,
    orphan_count: AtomicU64,
    /// Pages of values that nothing needs and that wait to be freed.
    pub(super) unfreed_pages: AtomicU64,
}

/// The bytes of dirty pages, and their number by the parity of the epoch that last changed them.
#[derive(Debug, Default)]
struct DirtyPages {
    bytes: AtomicU64,
    counts: [AtomicU64; 2],
}

impl CheckpointDebt {
    /// Moves a page from the epoch of its previous change to that of its newest. `None` stands for a clean page.
    #[inline]
    pub(crate) fn count_dirty(&self, page_bytes: u64, before: Option<Epoch>, after: Option<Epoch>) {
        if before == after {
            return;
        }
        if let Some(epoch) = after {
            self.dirty_count(epoch).fetch_add(1, Ordering::Relaxed);
        }
        if let Some(epoch) = before {
            let count = self.dirty_count(epoch).fetch_sub(1, Ordering::Relaxed);
            assert!(count > 0, "a page became clean of {epoch}, which had no dirty one");
        }
        match (before, after) {
            (None, Some(_)) => {
                self.dirty.bytes.fetch_add(page_bytes, Ordering::Relaxed);
            }
            (Some(_), None) => {
                let bytes = self.dirty.bytes.fetch_sub(page_bytes, Ordering::Relaxed);
                assert!(bytes >= page_bytes, "{page_bytes} bytes of pages became clean of {bytes} dirty ones");
            }
            _ => {}
        }
    }

    fn dirty_count(&self, epoch: Epoch) -> &AtomicU64 {
        &self.dirty.counts[(epoch.0 & 1) as usize]
    }

    /// Returns the number of dirty pages last changed in an epoch.
    pub(super) fn dirty_pages(&self, epoch: Epoch) -> u64 {
        self.dirty_count(epoch).load(Ordering::Relaxed)
    }

    /// Returns the bytes of dirty pages.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.bytes.load(Ordering::Relaxed)
    }

    /// Sets the number of orphans: large values that only old versions refer to.
    pub(crate) fn set_orphan_count(&self, count: usize) {
        self.orphan_count.store(count as u64, Ordering::Relaxed);
    }

    /// Sets the number of pages of values that nothing needs and that wait for an epoch with memory for their changes.
    pub(crate) fn set_unfreed_pages(&self, count: u64) {
        self.unfreed_pages.store(count, Ordering::Relaxed);
    }

    /// Returns the bytes of the catalogue's list of orphans.
    fn orphan_bytes(&self) -> u64 {
        self.orphan_count.load(Ordering::Relaxed) * catalogue::ORPHAN_BYTES
    }
}

/// The sums of the reserved bytes.
#[derive(Debug)]
pub(super) struct Reservations {
    pub(super) debt: Arc<CheckpointDebt>,
    admissions: Mutex<Admissions>,
    slots: Box<[CachePadded<Mutex<Credit>>]>,
}

#[derive(Debug, Default)]
struct Admissions {
    /// Bytes of reservations that were not paid for with credit.
    direct_bytes: u64,
    /// Bytes granted to all slots, and a bit for each slot that has some.
    credited_bytes: u64,
    credited_slots: u64,
    /// No credit is granted or available.
    is_exact: bool,
    /// Number of reservations for [`Purpose::Pack`].
    packing_count: u32,
    /// The number of [idle segments](SpaceState::idle_segments) left after sparse segments were last packed, while the
    /// disk is still full.
    packed_idle_segments: Option<u64>,
}

impl Admissions {
    fn reserved_bytes(&self) -> u64 {
        self.direct_bytes + self.credited_bytes
    }

    /// Returns `true` if packing gains no more space: the last attempt has ended, and no segment has been taken since.
    fn is_packed(&self, state: &SpaceState) -> bool {
        self.packed_idle_segments.is_some_and(|idle_segments| idle_segments <= state.idle_segments())
    }
}

/// The credit in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Credit {
    /// Bytes that count as reserved for the slot.
    granted_bytes: u64,
    available_bytes: u64,
    /// Bytes of the slot's live reservations.
    in_use_bytes: u64,
}

impl Credit {
    fn assert_sums(&self) {
        assert!(self.granted_bytes >= self.available_bytes + self.in_use_bytes, "credit is spent twice: {self:?}");
    }

    /// Spends credit. Returns `false` if there is too little.
    #[inline]
    fn spend(&mut self, bytes: u64) -> bool {
        let is_enough = bytes <= self.available_bytes;
        if is_enough {
            self.available_bytes -= bytes;
            self.in_use_bytes += bytes;
        }
        self.assert_sums();
        is_enough
    }

    /// Ends a reservation. Its bytes stay granted until the slot is [settled](Self::settle).
    #[inline]
    fn end(&mut self, bytes: u64) {
        assert!(self.in_use_bytes >= bytes, "{bytes} bytes released of {self:?}");
        self.in_use_bytes -= bytes;
        self.assert_sums();
    }

    /// Gives back the bytes of reservations that have ended. Returns how many.
    fn settle(&mut self) -> u64 {
        self.assert_sums();
        let ended_bytes = self.granted_bytes - self.available_bytes - self.in_use_bytes;
        self.granted_bytes -= ended_bytes;
        ended_bytes
    }

    /// Gives back all bytes that no live reservation uses. Returns how many.
    fn empty(&mut self) -> u64 {
        self.available_bytes = 0;
        self.settle()
    }

    /// Fills the slot up with the grant computed by [`wants`](Self::wants), and spends `bytes` of it.
    fn refill(&mut self, bytes: u64) {
        self.granted_bytes += self.wants(bytes);
        self.available_bytes = CREDIT_BYTES;
        self.in_use_bytes += bytes;
        self.assert_sums();
    }

    fn wants(&self, bytes: u64) -> u64 {
        assert!(self.available_bytes <= CREDIT_BYTES);
        bytes + CREDIT_BYTES - self.available_bytes
    }
}

impl Reservations {
    pub(super) fn new() -> Reservations {
        Reservations {
            debt: Arc::default(),
            admissions: Mutex::default(),
            slots: (0..SLOT_COUNT).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Empties all slots, so that unused credit no longer counts as reserved.
    fn collect(&self, admissions: &mut Admissions) -> u64 {
        let mut collected_bytes = 0;
        let mut in_use_bytes = 0;
        for (slot, credit) in self.slots.iter().enumerate() {
            if admissions.credited_slots & 1 << slot != 0 {
                let mut credit = credit.lock();
                collected_bytes += credit.empty();
                in_use_bytes += credit.granted_bytes;
                if credit.granted_bytes == 0 {
                    admissions.credited_slots &= !(1 << slot);
                }
            }
        }
        assert!(admissions.credited_bytes >= collected_bytes, "{collected_bytes} bytes collected of {admissions:?}");
        admissions.credited_bytes -= collected_bytes;
        assert!(admissions.credited_bytes == in_use_bytes, "the slots hold {in_use_bytes} bytes of {admissions:?}");
        collected_bytes
    }
}

/// Tells how much space was lacking for a reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    /// Number of free segments that would have sufficed.
    segments: u64,
    /// Bytes that were reserved by others.
    pub(crate) reserved_bytes: u64,
    /// The reservation would have needed less without credit.
    is_for_credit: bool,
}

/// Reserved disk space. It is released when this is dropped.
#[must_use = "space is released when the reservation is dropped"]
pub(crate) struct SpaceReservation<'s> {
    space: &'s Space,
    purpose: Purpose,
    bytes: u64,
    /// The slot whose credit paid for it.
    slot: Option<usize>,
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
        match self.slot {
            Some(slot) => reservations.slots[slot].lock().end(self.bytes),
            None => {
                let mut admissions = reservations.admissions.lock();
                assert!(admissions.direct_bytes >= self.bytes, "{self:?} is released of {:?}", *admissions);
                admissions.direct_bytes -= self.bytes;
                assert!(admissions.packing_count > 0 || self.purpose != Purpose::Pack, "{self:?} was not counted");
                admissions.packing_count -= u32::from(self.purpose == Purpose::Pack);
            }
        }
    }
}

impl SpaceReservation<'_> {
    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Reserves `bytes` in place of the bytes reserved so far. If they are not admitted, reserves none and returns
    /// `false`.
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        assert!(self.slot.is_none(), "credit is not resized");
        let space = self.space;
        let mut admissions = space.reservations.admissions.lock();
        assert!(admissions.direct_bytes >= self.bytes, "{self:?} is resized of {:?}", *admissions);
        admissions.direct_bytes -= std::mem::take(&mut self.bytes);
        let admission = admit(&space.state_of(&admissions), self.purpose, bytes);
        if admission == Admission::Granted {
            assert!(admissions.packing_count > 0 || self.purpose != Purpose::Pack, "{self:?} was not counted");
            admissions.direct_bytes += bytes;
            self.bytes = bytes;
        }
        admission == Admission::Granted
    }
}

impl Space {
    /// Reserves space from the calling thread's credit. Returns `None` if that is too little.
    #[inline]
    pub(crate) fn spend_credit(&self, purpose: Purpose, bytes: u64) -> Option<SpaceReservation<'_>> {
        if !purpose.takes_credit() {
            return None;
        }
        let slot = thread_index() % SLOT_COUNT;
        let is_spent = self.reservations.slots[slot].lock().spend(bytes);
        is_spent.then(|| SpaceReservation { space: self, purpose, bytes, slot: Some(slot) })
    }

    /// Reserves space, growing the file if too little is free. On a full disk, a purpose that frees space makes do with
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

    /// Reserves space that is free. Also grants credit, unless the sums are exact.
    pub(crate) fn try_reserve(
        &self,
        purpose: Purpose,
        bytes: u64,
        margin: Margin,
    ) -> Result<SpaceReservation<'_>, Shortage> {
        let mut admissions = self.reservations.admissions.lock();
        if !admissions.is_exact && purpose.takes_credit() && bytes <= CREDIT_BYTES {
            let slot = thread_index() % SLOT_COUNT;
            let mut credit = self.reservations.slots[slot].lock();
            let settled_bytes = credit.settle();
            assert!(admissions.credited_bytes >= settled_bytes, "{settled_bytes} bytes settled of {:?}", *admissions);
            admissions.credited_bytes -= settled_bytes;
            let state = self.state_of(&admissions);
            let wanted_bytes = credit.wants(bytes);
            if admissions.credited_bytes + wanted_bytes <= self.budget.total_bytes() / CREDIT_SHARE {
                // Credit is admitted by the rules for a commit with new rows.
                return match admit(&state, Purpose::Put, wanted_bytes) {
                    Admission::Granted => {
                        credit.refill(bytes);
                        admissions.credited_bytes += wanted_bytes;
                        admissions.credited_slots |= 1 << slot;
                        state.assert_covered(Purpose::Put, wanted_bytes);
                        Ok(SpaceReservation { space: self, purpose, bytes, slot: Some(slot) })
                    }
                    Admission::Scarce { segments } | Admission::Short { segments, .. } => {
                        Err(Shortage { segments, reserved_bytes: state.reserved_bytes, is_for_credit: true })
                    }
                };
            }
        }
        self.check_admission(&mut admissions, purpose, bytes, margin)?;
        admissions.direct_bytes += bytes;
        admissions.packing_count += u32::from(purpose == Purpose::Pack);
        Ok(SpaceReservation { space: self, purpose, bytes, slot: None })
    }

    /// Asks the policy for a reservation without credit.
    fn check_admission(
        &self,
        admissions: &mut Admissions,
        purpose: Purpose,
        bytes: u64,
        margin: Margin,
    ) -> Result<(), Shortage> {
        if admissions.is_exact {
            self.reservations.collect(admissions);
        }
        let state = self.state_of(admissions);
        if state.has_plenty() {
            admissions.is_exact = false;
            admissions.packed_idle_segments = None;
        }
        // Do not ask for packing before each removal: packing takes at least one checkpoint.
        let is_packed = purpose == Purpose::Remove && admissions.is_packed(&state);
        let margin = if is_packed { Margin::Least } else { margin };
        let segments = match (admit(&state, purpose, bytes), margin) {
            (Admission::Granted, _) | (Admission::Scarce { .. }, Margin::Least) => {
                state.assert_covered(purpose, bytes);
                return Ok(());
            }
            (Admission::Scarce { segments } | Admission::Short { segments, .. }, Margin::Full) => segments,
            (Admission::Short { least_segments, .. }, Margin::Least) => least_segments,
        };
        Err(Shortage { segments, reserved_bytes: state.reserved_bytes, is_for_credit: false })
    }

    /// Grows the file by the lacking segments. If the disk is full, collects the credit of all threads; if that gains
    /// nothing, fails with [`Error::DiskFull`].
    pub(crate) fn grow(&self, shortage: Shortage) -> Result<()> {
        assert!(shortage.segments > 0, "nothing was short: {shortage:?}");
        self.begin_writing()?;
        let segments = u32::try_from(shortage.segments).unwrap_or(u32::MAX);
        self.segments.ensure_free(segments).or_else(|error| match self.growth_error(error) {
            error @ Error::DiskFull { .. } => {
                let mut admissions = self.reservations.admissions.lock();
                admissions.is_exact = true;
                let collected_bytes = self.reservations.collect(&mut admissions);
                if collected_bytes > 0 || shortage.is_for_credit { Ok(()) } else { Err(error) }
            }
            error => Err(error),
        })
    }

    /// Records that sparse segments have been packed as far as that gains space, on a full disk.
    pub(crate) fn note_packed(&self) {
        let mut admissions = self.reservations.admissions.lock();
        let state = self.state_of(&admissions);
        assert!(state.idle_segments() <= state.free_segments, "more is idle than free: {state:?}");
        admissions.packed_idle_segments = admissions.is_exact.then(|| state.idle_segments());
    }

    /// Collects the unused credit of all threads.
    pub(crate) fn collect_credit(&self) {
        self.reservations.collect(&mut self.reservations.admissions.lock());
    }

    /// Takes a segment for a purpose, growing the file if too few are free.
    pub(crate) fn take_segment(&self, purpose: Purpose) -> Result<SegmentId> {
        let takes = matches!(purpose, Purpose::Pages | Purpose::Value | Purpose::Move);
        assert!(takes, "{purpose:?} has its segments taken by others");
        self.begin_writing()?;
        if purpose == Purpose::Pages {
            return self.segments.take().map_err(|error| self.growth_error(error));
        }
        loop {
            let mut admissions = self.reservations.admissions.lock();
            match self.check_admission(&mut admissions, purpose, 0, Margin::Full) {
                // An epoch's appender, which does not ask the policy, may have taken the last segment.
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

    /// Gives the free end of the file back to the file system, except for `keep` free segments or the
    /// [kept](SpaceState::kept_segments) ones if those are more.
    pub(crate) fn shrink(&self, keep: u64) -> Result<()> {
        // Hold the lock, so that the file does not lose segments that a concurrent admission relies on.
        let mut admissions = self.reservations.admissions.lock();
        self.reservations.collect(&mut admissions);
        let keep = keep.max(self.state_of(&admissions).kept_segments());
        let keep = u32::try_from(keep).unwrap_or(u32::MAX);
        self.segments.shrink(keep).map_err(|error| Error::io("shrinking", self.path(), error))
    }

    /// Returns `true` if the policy would still grant the purpose for bytes that are reserved already.
    pub(crate) fn is_admitted(&self, purpose: Purpose, bytes: u64) -> bool {
        admit(&self.state(), purpose, bytes) == Admission::Granted
    }

    /// Returns the current state of free space and of the claims to it.
    pub(crate) fn state(&self) -> SpaceState {
        self.state_of(&self.reservations.admissions.lock())
    }

    fn state_of(&self, admissions: &Admissions) -> SpaceState {
        // The catalogue's parts have headers, and are stored in units of 64 bytes.
        let catalogue_bytes = self.catalogue_bytes() + self.reservations.debt.orphan_bytes();
        let catalogue_bytes = catalogue_bytes + catalogue_bytes / 256 + 128;
        SpaceState {
            segment_bytes: self.segments.segment_bytes(),
            free_segments: self.segments.free_count(),
            room_bytes: self.room_bytes(),
            dirty_bytes: self.reservations.debt.dirty_bytes(),
            reserved_bytes: admissions.reserved_bytes(),
            // A checkpoint may rewrite the base image and the table of segments, and always writes the catalogue.
            table_bytes: self.summary_bytes() + self.table_bytes() + self.segments.table_bytes() + catalogue_bytes,
        }
    }

    /// Returns the bytes that are reserved, including credit.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reservations.admissions.lock().reserved_bytes()
    }

    /// Returns `true` while extents are being packed. Their bytes count twice in this time.
    pub(crate) fn is_packing(&self) -> bool {
        self.reservations.admissions.lock().packing_count > 0
    }
}

#[cfg(test)]
mod tests;
