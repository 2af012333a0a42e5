//! Allocates the data file's segments, and tracks the current use of each.
//!
//! # Invariants
//! 1. A segment is free only if neither the durable tables nor those being made durable refer to it. Space released in
//!    an epoch is subtracted only after the checkpoint that ends the epoch is durable.
//! 2. The file system has allocated space for every segment of the file, so writing to a segment can't fail for lack of
//!    space. A full disk is detected when the file grows, before anything depends on the new segments.
//! 3. The lowest free segment is taken first, so that the end of the file empties and can be returned to the file
//!    system.
//! 4. Each time a segment is taken, a new *use* of it begins, with a number that was never used before. Every extent in
//!    the segment carries that number. So if a write is lost, the old extent at its address is not mistaken for the new
//!    one.
//! 5. An extent counts once for each page table that refers to it. So each table releases it without regard to others,
//!    and the live bytes of a segment may exceed its length.
//! 6. A segment that a kept snapshot *pins* is not free, whatever its live bytes. The live bytes count only what the
//!    newest tables refer to, so no extent of a pinned segment is ever released on behalf of a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hash::HashMap;
use crate::sync::Mutex;

use crate::format::extent::{Origin, SEGMENT_TABLE_ENTRIES};
use crate::format::{DatabaseId, Epoch, ExtentAddress, ExtentRef, SegmentId, SegmentUse};
use crate::io::FileRef;

/// The number of segments by which the file grows in one step if the disk has room.
const GROWTH_SEGMENTS: u32 = 8;

/// The segments of a data file. See the module documentation.
#[derive(Debug)]
pub(crate) struct Segments {
    file: FileRef,
    /// The id of the database.
    database: DatabaseId,
    segment_bytes: u64,
    /// The largest number of segments that addresses can express.
    segment_count_max: u32,
    state: Mutex<SegmentState>,
    uses: Uses,
    /// Held while the file grows or shrinks, which is I/O. Must be taken before `state`.
    resize: Mutex<()>,
}

#[derive(Debug, Default)]
struct SegmentState {
    /// The state of each segment, indexed by its number. Segment 0 holds the superblocks.
    segments: Vec<Segment>,
    free: BTreeSet<SegmentId>,
    /// The lowest number of free segments since the last call of [`take_unneeded`](Segments::take_unneeded).
    free_count_min: u64,
    /// The number of the next use.
    next_use: SegmentUse,
    /// The chunks of the segment table that have changed since they were last written.
    changed_chunks: BTreeSet<SegmentTableChunk>,
    /// The bytes released in each epoch whose checkpoint is not durable yet.
    released: BTreeMap<Epoch, HashMap<SegmentId, u64>>,
    /// The last epoch of this opening whose checkpoint is durable.
    settled: Epoch,
}

#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    live_bytes: u64,
    /// Set while extents are still being appended to the segment. It is then not free even if it holds no live bytes.
    open: bool,
    /// Set if some extents may count several times, for a keyspace and its clones.
    shared: bool,
    /// The number of kept snapshots that have extents in the segment.
    pin_count: u32,
}

impl Segment {
    fn is_free(self) -> bool {
        self.live_bytes == 0 && !self.open && self.pin_count == 0
    }
}

/// The current or last use of each segment, readable without a lock. Zero if the segment was never used.
#[derive(Debug, Default)]
struct Uses {
    /// Each level has twice as many entries as the previous one.
    levels: [OnceLock<Box<[AtomicU64]>>; Uses::LEVEL_COUNT],
}

impl Uses {
    /// The number of segments in the first level.
    const FIRST_LEVEL_SEGMENTS: u64 = 1024;
    /// Fixed by the number of segments: these levels are enough for all 2³² segments: 2¹⁰ · (2²³ − 1).
    const LEVEL_COUNT: usize = 23;

    fn locate(segment: SegmentId) -> (usize, usize) {
        let shifted = u64::from(segment.0) + Uses::FIRST_LEVEL_SEGMENTS;
        let level = shifted.ilog2() - Uses::FIRST_LEVEL_SEGMENTS.ilog2();
        (level as usize, (shifted - (Uses::FIRST_LEVEL_SEGMENTS << level)) as usize)
    }

    fn get(&self, segment: SegmentId) -> SegmentUse {
        let (level, offset) = Uses::locate(segment);
        SegmentUse(self.levels[level].get().map_or(0, |uses| uses[offset].load(Ordering::Acquire)))
    }

    fn set(&self, segment: SegmentId, segment_use: SegmentUse) {
        let (level, offset) = Uses::locate(segment);
        let uses = self.levels[level]
            .get_or_init(|| (0..Uses::FIRST_LEVEL_SEGMENTS << level).map(|_| AtomicU64::new(0)).collect());
        uses[offset].store(segment_use.0, Ordering::Release);
    }
}

/// Identifies a chunk of the segment table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SegmentTableChunk(pub(crate) u32);

impl SegmentTableChunk {
    /// Returns the chunk that holds a segment's entry.
    fn of(segment: SegmentId) -> SegmentTableChunk {
        SegmentTableChunk(segment.0 / SEGMENT_TABLE_ENTRIES as u32)
    }

    /// Returns the segments whose entries are in this chunk.
    fn segments(self) -> impl Iterator<Item = SegmentId> {
        let first = self.0 * SEGMENT_TABLE_ENTRIES as u32;
        (first..first + SEGMENT_TABLE_ENTRIES as u32).map(SegmentId)
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The fill level of the data file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) segment_count: u64,
    pub(crate) free_count: u64,
    pub(crate) live_bytes: u64,
    /// The bytes of pinned segments that are not live: extents that only kept snapshots refer to, and waste.
    pub(crate) pinned_bytes: u64,
}

impl Segments {
    /// Creates the state of a data file of `count` segments, all of them free except the first. `first_use` must be
    /// greater than all uses ever assigned.
    pub(crate) fn new(
        file: FileRef,
        database: DatabaseId,
        segment_bytes: u64,
        count: u32,
        first_use: SegmentUse,
    ) -> Segments {
        let count = count.max(1);
        let mut segments = vec![Segment::default(); count as usize];
        segments[0] = Segment { live_bytes: segment_bytes, open: true, ..Segment::default() };
        let state = SegmentState {
            segments,
            free: (1..count).map(SegmentId).collect(),
            next_use: first_use,
            ..SegmentState::default()
        };
        Segments {
            file,
            database,
            segment_bytes,
            segment_count_max: Segments::count_max(segment_bytes),
            state: Mutex::new(state),
            uses: Uses::default(),
            resize: Mutex::new(()),
        }
    }

    /// Returns the largest number of segments that a file can have.
    pub(crate) fn count_max(segment_bytes: u64) -> u32 {
        u32::try_from(ExtentAddress::FILE_BYTES_MAX / segment_bytes).unwrap_or(u32::MAX)
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Returns the offset of a segment in the file.
    pub(crate) fn start(&self, segment: SegmentId) -> u64 {
        u64::from(segment.0) * self.segment_bytes
    }

    /// Returns the segment in which an extent lies.
    pub(crate) fn segment_of(&self, address: ExtentAddress) -> SegmentId {
        SegmentId((address.start() / self.segment_bytes) as u32)
    }

    /// Returns the origin that identifies extents written in this use of a segment.
    pub(crate) fn origin(&self, segment_use: SegmentUse) -> Origin {
        Origin { database: self.database, segment_use }
    }

    /// Returns the newest use of any segment.
    pub(crate) fn newest_use(&self) -> SegmentUse {
        SegmentUse(self.state.lock().next_use.0 - 1)
    }

    /// Returns the current or last use of a segment.
    pub(crate) fn segment_use(&self, segment: SegmentId) -> SegmentUse {
        self.uses.get(segment)
    }

    /// Returns a reference to a live extent. It includes the use of the extent's segment, so that the extent can be
    /// verified without the segment table.
    pub(crate) fn name(&self, address: ExtentAddress) -> ExtentRef {
        ExtentRef { address, segment_use: self.segment_use(self.segment_of(address)) }
    }

    /// Returns `true` if an address that was read from disk is possible: it must lie within one segment, and not in the
    /// segment of the superblocks.
    pub(crate) fn is_plausible(&self, address: ExtentAddress) -> bool {
        self.is_within(&self.state.lock(), address)
    }

    fn is_within(&self, state: &SegmentState, address: ExtentAddress) -> bool {
        debug_assert!(address.length() > 0, "an extent of no bytes");
        let first = address.start() / self.segment_bytes;
        let last = (address.start() + address.length() - 1) / self.segment_bytes;
        first == last && first > 0 && first < state.segments.len() as u64
    }

    /// Returns the number of free segments.
    pub(crate) fn free_count(&self) -> u64 {
        self.state.lock().free.len() as u64
    }

    /// Returns the lowest number of free segments since the last call.
    pub(crate) fn take_unneeded(&self) -> u64 {
        let mut state = self.state.lock();
        let free_count = state.free.len() as u64;
        std::mem::replace(&mut state.free_count_min, free_count).min(free_count)
    }

    /// Ensures that `count` segments are free, growing the file if necessary. Fails with `StorageFull` if the file
    /// can't grow.
    pub(super) fn ensure_free(&self, count: u32) -> io::Result<()> {
        if self.free_count() >= u64::from(count) {
            return Ok(());
        }
        let _resize = self.resize.lock();
        let (segment_count, missing) = {
            let state = self.state.lock();
            (state.segments.len() as u32, count.saturating_sub(state.free.len() as u32))
        };
        if missing == 0 {
            return Ok(());
        }
        let added = match self.grow(segment_count, missing.max(GROWTH_SEGMENTS)) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && missing < GROWTH_SEGMENTS => {
                self.grow(segment_count, missing)?
            }
            other => other?,
        };
        let mut state = self.state.lock();
        assert!(state.segments.len() as u32 == segment_count, "the file was resized by two threads at once");
        for segment in segment_count..segment_count + added {
            state.segments.push(Segment::default());
            state.free.insert(SegmentId(segment));
        }
        state.assert_sums();
        Ok(())
    }

    fn grow(&self, segment_count: u32, added: u32) -> io::Result<u32> {
        assert!(added > 0 && segment_count > 0, "{added} segments are added to {segment_count}");
        // Fail here, before anything relies on the space: no address could name an extent past this limit.
        if added > self.segment_count_max.saturating_sub(segment_count) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let offset = u64::from(segment_count) * self.segment_bytes;
        self.file.allocate(offset, u64::from(added) * self.segment_bytes)?;
        Ok(added)
    }

    /// Takes the lowest free segment, or returns `None` if no segment is free.
    pub(super) fn try_take(&self) -> Option<SegmentId> {
        let mut state = self.state.lock();
        let segment = state.free.pop_first()?;
        state.free_count_min = state.free_count_min.min(state.free.len() as u64);
        let taken = state.segment(segment);
        assert!(taken.live_bytes == 0, "a free segment holds {} bytes: {segment}", taken.live_bytes);
        assert!(!taken.open && taken.pin_count == 0, "a free segment is open or pinned: {segment}");
        (taken.open, taken.shared) = (true, false);
        let segment_use = state.next_use;
        state.next_use = SegmentUse(segment_use.0 + 1);
        state.changed_chunks.insert(SegmentTableChunk::of(segment));
        self.uses.set(segment, segment_use);
        Some(segment)
    }

    /// Takes the lowest free segment, growing the file if none is free.
    pub(super) fn take(&self) -> io::Result<SegmentId> {
        loop {
            if let Some(segment) = self.try_take() {
                return Ok(segment);
            }
            self.ensure_free(1)?;
        }
    }

    /// Marks the segment as closed: no more extents will be appended to it. Frees it if it has no live bytes.
    pub(crate) fn close(&self, segment: SegmentId) {
        let mut state = self.state.lock();
        let closed = state.segment(segment);
        assert!(closed.open, "{segment} is closed twice");
        closed.open = false;
        if closed.is_free() {
            let is_new = state.free.insert(segment);
            assert!(is_new, "{segment} was free while it was written to");
        }
    }

    /// Counts the extent as in use.
    pub(crate) fn retain(&self, address: ExtentAddress) {
        let segment = self.segment_of(address);
        let mut state = self.state.lock();
        let retained = state.segment(segment);
        retained.live_bytes += address.length();
        assert!(retained.open, "an extent is put into {segment}, which is closed");
        assert!(retained.live_bytes <= self.segment_bytes || retained.shared, "{segment} is over-full");
    }

    // ── opening ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Like [`retain`](Self::retain), for an extent found while the database is being opened. Its segment no longer
    /// counts as free. Returns `false` if the address is impossible: outside of the file, across two segments, or in a
    /// segment that is already full. The extent's use is verified only when the extent is read, so that one unreadable
    /// page leaves all other pages readable.
    #[must_use]
    pub(crate) fn restore(&self, address: ExtentAddress) -> bool {
        let mut state = self.state.lock();
        if !self.is_within(&state, address) {
            return false;
        }
        let segment = self.segment_of(address);
        let restored = state.segment(segment);
        assert!(!restored.open, "{segment} is written to while the database opens");
        let is_first = restored.live_bytes == 0;
        restored.live_bytes += address.length();
        let fits = restored.live_bytes <= self.segment_bytes || restored.shared;
        if is_first {
            state.free.remove(&segment);
        }
        fits
    }

    /// Like [`restore`](Self::restore), for an extent whose reference includes its use. Also returns `false` if a live
    /// extent in the same segment belongs to a different use.
    #[must_use]
    pub(crate) fn restore_named(&self, extent: ExtentRef) -> bool {
        if !self.is_plausible(extent.address) {
            return false;
        }
        let segment = self.segment_of(extent.address);
        if self.uses.get(segment) != extent.segment_use {
            let mut state = self.state.lock();
            if state.segment(segment).live_bytes > 0 {
                return false;
            }
            state.changed_chunks.insert(SegmentTableChunk::of(segment));
            self.uses.set(segment, extent.segment_use);
        }
        self.restore(extent.address)
    }

    /// Restores a chunk of the segment table. The table may be outdated, so a segment that already has live extents
    /// keeps the use that the references to these extents name.
    pub(crate) fn restore_uses(&self, chunk: SegmentTableChunk, uses: &[SegmentUse]) {
        let state = self.state.lock();
        for (segment, &segment_use) in chunk.segments().zip(uses) {
            if state.segments.get(segment.0 as usize).is_some_and(|segment| segment.live_bytes == 0) {
                self.uses.set(segment, segment_use);
            }
        }
    }

    /// Marks the uses in a damaged chunk of the segment table as unknown, except those that extent references have
    /// already named.
    pub(crate) fn forget_uses(&self, chunk: SegmentTableChunk) {
        self.restore_uses(chunk, &[SegmentUse::UNKNOWN; SEGMENT_TABLE_ENTRIES]);
    }

    // ── clones ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Counts extents as in use by another page table: their bytes in each segment.
    pub(crate) fn share<'s>(&self, bytes_of: impl IntoIterator<Item = &'s (SegmentId, u64)>) {
        let mut state = self.state.lock();
        for &(segment, bytes) in bytes_of {
            assert!(bytes > 0, "no extent of {segment} is shared");
            let shared = state.segment(segment);
            (shared.live_bytes, shared.shared) = (shared.live_bytes + bytes, true);
            state.free.remove(&segment);
        }
    }

    /// Takes back [`share`](Self::share).
    pub(super) fn unshare(&self, bytes_of: &[(SegmentId, u64)]) {
        let mut state = self.state.lock();
        bytes_of.iter().for_each(|&(segment, bytes)| state.subtract(segment, bytes));
        state.assert_sums();
    }

    // ── kept snapshots ─────────────────────────────────────────────────────────────────────────────────────────────

    /// Returns the segments that contain extents of the checkpoint of `epoch`, which must have written all of them.
    /// They may include some that contain only later extents.
    pub(super) fn of_checkpoint(&self, epoch: Epoch) -> Vec<SegmentId> {
        let state = self.state.lock();
        let released = |segment: SegmentId| -> u64 {
            state.released.range(..=epoch).filter_map(|(_, released)| released.get(&segment)).sum()
        };
        let has_extents = |&index: &usize| state.segments[index].live_bytes > released(SegmentId(index as u32));
        (1..state.segments.len()).filter(has_extents).map(|index| SegmentId(index as u32)).collect()
    }

    /// Pins segments for a kept snapshot. Returns `false` if a segment is outside of the file.
    #[must_use]
    pub(super) fn pin(&self, segments: &[SegmentId]) -> bool {
        debug_assert!(segments.is_sorted_by(|one, next| one < next), "a segment is pinned twice by one snapshot");
        let mut state = self.state.lock();
        let end = state.segments.len();
        if segments.iter().any(|segment| segment.0 == 0 || segment.0 as usize >= end) {
            return false;
        }
        for &segment in segments {
            state.segment(segment).pin_count += 1;
            state.free.remove(&segment);
        }
        true
    }

    /// Unpins the segments of a kept snapshot that no longer exists. Frees those that hold nothing else.
    pub(super) fn unpin(&self, segments: &[SegmentId]) {
        let mut state = self.state.lock();
        for &segment in segments {
            let pinned = state.segment(segment);
            assert!(pinned.pin_count > 0, "{segment} is unpinned twice");
            pinned.pin_count -= 1;
            if pinned.is_free() {
                state.free.insert(segment);
            }
        }
        state.assert_sums();
    }

    /// Returns the bytes of these segments, which a kept snapshot pins, that no other snapshot pins and that are not
    /// live.
    pub(super) fn bytes_pinned_once(&self, segments: &[SegmentId]) -> u64 {
        let mut state = self.state.lock();
        let unpinnable = |segment: &SegmentId| {
            let pinned = *state.segment(*segment);
            if pinned.pin_count == 1 && !pinned.open { self.segment_bytes.saturating_sub(pinned.live_bytes) } else { 0 }
        };
        segments.iter().map(unpinnable).sum()
    }

    /// Returns up to `count_max` pinned segments of which at most `live_share_max` is live, emptiest first.
    pub(crate) fn sparse_pinned(&self, live_share_max: f64, count_max: usize) -> Vec<SegmentId> {
        debug_assert!(live_share_max < 1.0, "a full segment is not sparse");
        let mut found = self.state.lock().sparse(self.limit_bytes(live_share_max), |segment| segment.pin_count > 0);
        found.truncate(count_max);
        found.into_iter().map(|(segment, _)| segment).collect()
    }

    fn limit_bytes(&self, live_share_max: f64) -> u64 {
        (self.segment_bytes as f64 * live_share_max) as u64
    }

    // ── the segment table ──────────────────────────────────────────────────────────────────────────────────────────

    /// Returns the number of chunks in the segment table.
    pub(crate) fn chunk_count(&self) -> u32 {
        SegmentTableChunk::of(SegmentId(self.state.lock().segments.len() as u32 - 1)).0 + 1
    }

    /// Returns the maximum number of bytes that a checkpoint writes for the segment table: the size of the whole table.
    pub(crate) fn table_bytes(&self) -> u64 {
        u64::from(self.chunk_count()) * (SEGMENT_TABLE_ENTRIES as u64 * 8 + 64)
    }

    /// Returns the chunks of the segment table that have changed since the last call.
    pub(crate) fn take_changed_chunks(&self) -> BTreeSet<SegmentTableChunk> {
        std::mem::take(&mut self.state.lock().changed_chunks)
    }

    /// Returns the current contents of a chunk of the segment table. They are correct for every segment with live
    /// extents, even while other segments are being taken.
    pub(crate) fn uses_in(&self, chunk: SegmentTableChunk) -> impl Iterator<Item = SegmentUse> + '_ {
        chunk.segments().map(|segment| self.uses.get(segment))
    }

    /// Releases the extent: it is no longer in use once `epoch` has ended.
    pub(crate) fn release(&self, address: ExtentAddress, epoch: Epoch) {
        let segment = self.segment_of(address);
        let mut state = self.state.lock();
        assert!(epoch > state.settled, "{address:?} is released in {epoch}, which is settled");
        *state.released.entry(epoch).or_default().entry(segment).or_default() += address.length();
        let (live_bytes, released_bytes) = (state.segment(segment).live_bytes, state.released_in(segment));
        assert!(released_bytes <= live_bytes, "{segment}: {released_bytes} bytes released of {live_bytes}");
    }

    /// Frees an extent that no table ever referred to, such as a chunk of a value whose transaction did not commit.
    pub(crate) fn discard(&self, address: ExtentAddress) {
        let segment = self.segment_of(address);
        let mut state = self.state.lock();
        state.subtract(segment, address.length());
    }

    /// Returns the epoch of the newest durable checkpoint since the opening.
    pub(crate) fn settled(&self) -> Epoch {
        self.state.lock().settled
    }

    /// Frees the space that was released up to `epoch`, whose checkpoint is durable. Returns the number of segments
    /// freed.
    pub(crate) fn settle(&self, epoch: Epoch) -> u64 {
        let mut state = self.state.lock();
        assert!(epoch > state.settled, "{epoch} is settled after {}", state.settled);
        state.settled = epoch;
        let free_before = state.free.len();
        let later = state.released.split_off(&epoch.next());
        let settled = std::mem::replace(&mut state.released, later);
        for (segment, bytes) in settled.into_values().flatten() {
            state.subtract(segment, bytes);
        }
        state.assert_sums();
        (state.free.len() - free_before) as u64
    }

    /// Returns the free end of the file to the file system, but keeps `keep` free segments.
    pub(crate) fn shrink(&self, keep: u32) -> io::Result<()> {
        let _resize = self.resize.lock();
        let count = {
            let mut state = self.state.lock();
            let mut count = state.segments.len() as u32;
            while state.free.len() as u32 > keep && count > 1 && state.free.contains(&SegmentId(count - 1)) {
                count -= 1;
                let last = state.segments[count as usize];
                assert!(last.is_free(), "the file's end is given back with something in it");
                state.free.remove(&SegmentId(count));
            }
            if count as usize == state.segments.len() {
                return Ok(());
            }
            state.segments.truncate(count as usize);
            state.assert_sums();
            count
        };
        crate::coverage::mark!("the end of the data file was given back");
        self.file.set_len(u64::from(count) * self.segment_bytes)
    }

    /// Returns up to `count_max` segments worth emptying, emptiest first. They are closed and not pinned, and at most
    /// `live_share_max` of each is live. Bytes released in an epoch that is not settled yet do not count as live.
    pub(crate) fn sparse(&self, live_share_max: f64, count_max: usize) -> Vec<(SegmentId, u64)> {
        let mut found = self.state.lock().sparse(self.limit_bytes(live_share_max), |segment| segment.pin_count == 0);
        found.truncate(count_max);
        found
    }

    /// Returns `true` if all bytes of some segment have been released, so that the next checkpoint will free it.
    pub(crate) fn has_released(&self) -> bool {
        let state = self.state.lock();
        let is_released = |(index, segment): (usize, &Segment)| {
            let is_closed = !segment.open && segment.pin_count == 0;
            is_closed && segment.live_bytes > 0 && segment.live_bytes == state.released_in(SegmentId(index as u32))
        };
        state.segments.iter().enumerate().skip(1).any(is_released)
    }

    /// Returns the closed segments in use whose number is at least `first`, except those from which nothing is
    /// gained: pinned ones, and those whose extents several tables share.
    pub(crate) fn from(&self, first: SegmentId) -> Vec<SegmentId> {
        let state = self.state.lock();
        // To move extents that several tables share takes more space than it frees, because each gets a copy.
        let used = |segment: &Segment| {
            !segment.open && (1..=self.segment_bytes).contains(&segment.live_bytes) && segment.pin_count == 0
        };
        (first.0.max(1)..state.segments.len() as u32)
            .filter(|&index| used(&state.segments[index as usize]))
            .map(SegmentId)
            .collect()
    }

    pub(crate) fn usage(&self) -> Usage {
        let state = self.state.lock();
        let released = |index: usize| state.released_in(SegmentId(index as u32));
        let live = |(index, segment): (usize, &Segment)| (segment.live_bytes - released(index)).min(self.segment_bytes);
        let pinned = |(_, segment): &(usize, &Segment)| segment.pin_count > 0 && !segment.open;
        let numbered = || state.segments.iter().enumerate().skip(1);
        Usage {
            segment_count: state.segments.len() as u64,
            free_count: state.free.len() as u64,
            live_bytes: numbered().map(live).sum(),
            pinned_bytes: numbered().filter(pinned).map(|numbered| self.segment_bytes - live(numbered)).sum(),
        }
    }
}

impl SegmentState {
    /// Returns the state of a segment.
    fn segment(&mut self, segment: SegmentId) -> &mut Segment {
        assert!(segment != SegmentId(0), "segment 0 holds the superblocks");
        &mut self.segments[segment.0 as usize]
    }

    /// Returns the closed segments for which `is_of` holds and of which at most `limit_bytes` are live, emptiest first,
    /// with their live bytes.
    fn sparse(&self, limit_bytes: u64, is_of: impl Fn(&Segment) -> bool) -> Vec<(SegmentId, u64)> {
        let mut found: Vec<(SegmentId, u64)> = (self.segments.iter().enumerate().skip(1))
            .filter(|(_, segment)| !segment.open && segment.live_bytes > 0 && is_of(segment))
            .map(|(index, segment)| (SegmentId(index as u32), segment))
            .map(|(index, segment)| (index, segment.live_bytes - self.released_in(index)))
            .filter(|&(_, live)| live > 0 && live <= limit_bytes)
            .collect();
        found.sort_unstable_by_key(|&(segment, live)| (live, segment));
        found
    }

    /// Asserts that every segment except the first is either free or in use. A segment in use is open or pinned, or
    /// holds live bytes.
    fn assert_sums(&self) {
        let used = self.segments.iter().skip(1).filter(|segment| !segment.is_free()).count();
        let (free, all) = (self.free.len(), self.segments.len() - 1);
        assert!(free + used == all, "{free} segments are free, {used} in use, of {all}");
        assert!(
            self.free.last().is_none_or(|last| (last.0 as usize) <= all),
            "a segment behind the file's end is free"
        );
    }

    fn subtract(&mut self, segment: SegmentId, bytes: u64) {
        let state = self.segment(segment);
        assert!(state.live_bytes >= bytes, "segment {segment}: {bytes} bytes released of {}", state.live_bytes);
        state.live_bytes -= bytes;
        let (live_bytes, is_free) = (state.live_bytes, state.is_free());
        debug_assert!(self.released_in(segment) <= live_bytes, "{segment}: more is released than lives");
        if is_free {
            self.free.insert(segment);
        }
    }

    fn released_in(&self, segment: SegmentId) -> u64 {
        self.released.values().filter_map(|epoch| epoch.get(&segment)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Incarnation;
    use crate::io::OpenOptions;

    fn segments(count: u32) -> Segments {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = crate::io::in_memory().open(std::path::Path::new("data"), options).unwrap();
        Segments::new(file, DatabaseId(77), 64 << 10, count, SegmentUse::first_of(Incarnation(3)))
    }

    /// A segment that is freed and retaken within the same epoch gets a new use.
    #[test]
    fn each_use_has_a_number_of_its_own() {
        let segments = segments(2);
        let mut seen = BTreeSet::new();
        for _ in 0..1000 {
            let segment = segments.take().unwrap();
            assert_eq!(segment, SegmentId(1));
            assert!(seen.insert(segments.segment_use(segment).0));
            segments.close(segment);
        }
    }

    /// If a file would have to grow past the highest address, it behaves as if the disk were full.
    #[test]
    fn a_file_ends_where_addresses_do() {
        assert_eq!(u64::from(Segments::count_max(1 << 20)) << 20, ExtentAddress::FILE_BYTES_MAX);
        let last = u64::from(Segments::count_max(1 << 20) - 1) << 20;
        let _ = ExtentAddress::new(last + (1 << 20) - 64, 64, SegmentUse(1));
        let mut segments = segments(2);
        segments.segment_count_max = 12;
        segments.ensure_free(11).unwrap();
        assert_eq!(segments.ensure_free(12).unwrap_err().kind(), io::ErrorKind::StorageFull);
        for _ in 0..11 {
            segments.take().unwrap();
        }
        assert_eq!(segments.take().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    /// The levels of the in-memory table abut, up to the last possible segment.
    #[test]
    fn levels_abut() {
        let uses = Uses::default();
        for segment in (0..10_000).chain([1 << 20, (1 << 20) + 1]) {
            uses.set(SegmentId(segment), SegmentUse(u64::from(segment) + 1));
        }
        for segment in (0..10_000).chain([1 << 20, (1 << 20) + 1]) {
            assert_eq!(uses.get(SegmentId(segment)), SegmentUse(u64::from(segment) + 1));
        }
        let (level, offset) = Uses::locate(SegmentId(u32::MAX));
        assert!(level < Uses::LEVEL_COUNT && (offset as u64) < Uses::FIRST_LEVEL_SEGMENTS << level);
    }

    /// An extent whose reference names a use must agree with all live extents in its segment.
    #[test]
    fn an_extent_named_with_another_use_is_not_restored() {
        let segments = segments(1100);
        let uses: Vec<SegmentUse> = (0..512).map(|segment| SegmentUse(1000 + segment)).collect();
        segments.restore_uses(SegmentTableChunk(1), &uses);
        let address = |number| ExtentAddress::new(600 * (64 << 10), 64, SegmentUse(number));
        assert!(segments.restore(address(1000 + 88)));
        let named = |number| ExtentRef { address: address(number), segment_use: SegmentUse(number) };
        assert!(segments.restore_named(named(1000 + 88)));
        assert!(!segments.restore_named(named(1000 + 88 + 128)), "the same stamp");
        let free =
            ExtentRef { address: ExtentAddress::new(601 * (64 << 10), 64, SegmentUse(5)), segment_use: SegmentUse(5) };
        assert!(segments.restore_named(free), "the table is older");
        segments.restore_uses(SegmentTableChunk(1), &uses);
        assert_eq!(segments.segment_use(SegmentId(601)), SegmentUse(5));
        assert_eq!(segments.take_changed_chunks().into_iter().collect::<Vec<_>>(), [SegmentTableChunk(1)]);
    }
}
