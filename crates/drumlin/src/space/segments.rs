//! Which parts of the data file are in use.
//!
//! # Invariants
//! 1. A segment is free only when no durable table, and no table that is being made durable, refers into it: what is
//!    released within an epoch is subtracted when the checkpoint that ends the epoch is durable, not before.
//! 2. The file system has given space to every segment that the file reaches over, so writing into one can't find the
//!    disk full. The lack of space shows when segments are secured, before anything depends on them.
//! 3. The lowest free segment is taken first, so that the file's end empties and can be given back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::collections::HashMap;
use crate::sync::Mutex;

use crate::format::{Epoch, Place, SegmentId};
use crate::io::FileRef;

/// Segments by which the file grows where the disk allows.
const GROWTH_SEGMENTS: u32 = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Segments {
    file: FileRef,
    segment_bytes: u64,
    state: Mutex<State>,
    /// Held while the file grows or shrinks, which is I/O; taken before `state`.
    resize: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Indexed by segment; 0 holds the superblocks.
    segments: Vec<Segment>,
    free: BTreeSet<u32>,
    /// Bytes released within each epoch whose checkpoint is not durable yet.
    released: BTreeMap<Epoch, HashMap<u32, u64>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    live_bytes: u64,
    /// Still being appended to: not free even when nothing in it is live.
    open: bool,
}

/// How full the data file is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) segment_count: u64,
    pub(crate) free_count: u64,
    pub(crate) live_bytes: u64,
}

impl Segments {
    /// The segments of a file that reaches over `count` of them, all free but the first.
    pub(crate) fn new(file: FileRef, segment_bytes: u64, count: u32) -> Segments {
        let count = count.max(1);
        let mut segments = vec![Segment::default(); count as usize];
        segments[0] = Segment { live_bytes: segment_bytes, open: true };
        let state = State { segments, free: (1..count).collect(), released: BTreeMap::new() };
        Segments { file, segment_bytes, state: Mutex::new(state), resize: Mutex::new(()) }
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// First byte of a segment in the file.
    pub(crate) fn start(&self, segment: SegmentId) -> u64 {
        u64::from(segment.0) * self.segment_bytes
    }

    /// The segment that a place lies in.
    pub(crate) fn segment_of(&self, place: Place) -> SegmentId {
        SegmentId((place.start() / self.segment_bytes) as u32)
    }

    /// Whether a place read from disk can exist: within one segment, and not among the superblocks.
    pub(crate) fn is_plausible(&self, place: Place) -> bool {
        let first = place.start() / self.segment_bytes;
        let last = (place.start() + place.length() - 1) / self.segment_bytes;
        first == last && first > 0 && first < self.state.lock().segments.len() as u64
    }

    /// Whether `count` segments are free.
    pub(crate) fn has_free(&self, count: u32) -> bool {
        self.state.lock().free.len() >= count as usize
    }

    /// Makes sure that `count` segments are free, growing the file where they are not. `StorageFull` where it can't.
    pub(crate) fn secure(&self, count: u32) -> io::Result<()> {
        if self.has_free(count) {
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
        for segment in segment_count..segment_count + added {
            state.segments.push(Segment::default());
            state.free.insert(segment);
        }
        Ok(())
    }

    fn grow(&self, segment_count: u32, added: u32) -> io::Result<u32> {
        let offset = u64::from(segment_count) * self.segment_bytes;
        self.file.allocate(offset, u64::from(added) * self.segment_bytes)?;
        Ok(added)
    }

    /// Takes the lowest free segment; grows the file where there is none.
    pub(crate) fn take(&self) -> io::Result<SegmentId> {
        loop {
            let mut state = self.state.lock();
            if let Some(segment) = state.free.pop_first() {
                let taken = &mut state.segments[segment as usize];
                assert!(taken.live_bytes == 0 && !taken.open, "a free segment is in use: {segment}");
                taken.open = true;
                return Ok(SegmentId(segment));
            }
            drop(state);
            self.secure(1)?;
        }
    }

    /// As [`take`](Self::take), if `keep` free segments are left behind; `StorageFull` otherwise.
    pub(crate) fn take_beyond(&self, keep: u32) -> io::Result<SegmentId> {
        self.secure(keep + 1)?;
        self.take()
    }

    /// Nothing more is appended to the segment.
    pub(crate) fn close(&self, segment: SegmentId) {
        let mut state = self.state.lock();
        let closed = &mut state.segments[segment.0 as usize];
        assert!(closed.open);
        closed.open = false;
        if closed.live_bytes == 0 {
            state.free.insert(segment.0);
        }
    }

    /// The place is in use now.
    pub(crate) fn retain(&self, place: Place) {
        let segment = self.segment_of(place);
        let mut state = self.state.lock();
        state.segments[segment.0 as usize].live_bytes += place.length();
        assert!(state.segments[segment.0 as usize].live_bytes <= self.segment_bytes, "{segment} is over-full");
    }

    /// As [`retain`](Self::retain), for a place found while opening: its segment leaves the free ones.
    /// `false` where it can't be: outside the file, over two segments, or in a segment that is full already.
    #[must_use]
    pub(crate) fn restore(&self, place: Place) -> bool {
        if !self.is_plausible(place) {
            return false;
        }
        let index = self.segment_of(place).0;
        let mut state = self.state.lock();
        state.free.remove(&index);
        let segment = &mut state.segments[index as usize];
        segment.live_bytes += place.length();
        segment.live_bytes <= self.segment_bytes
    }

    /// The place is not in use from the end of `epoch` on.
    pub(crate) fn release(&self, place: Place, epoch: Epoch) {
        let segment = self.segment_of(place);
        *self.state.lock().released.entry(epoch).or_default().entry(segment.0).or_default() += place.length();
    }

    /// The place was never in any table (a value whose transaction ended without a commit).
    pub(crate) fn discard(&self, place: Place) {
        let segment = self.segment_of(place);
        let mut state = self.state.lock();
        state.subtract(segment.0, place.length());
    }

    /// The checkpoint that ends `epoch` is durable: what was released up to it is free. Returns the segments that became so.
    pub(crate) fn settle(&self, epoch: Epoch) -> u64 {
        let mut state = self.state.lock();
        let free_before = state.free.len();
        let later = state.released.split_off(&epoch.next());
        let settled = std::mem::replace(&mut state.released, later);
        for (segment, bytes) in settled.into_values().flatten() {
            state.subtract(segment, bytes);
        }
        (state.free.len() - free_before) as u64
    }

    /// Gives the file's free end back, but for `keep` free segments.
    pub(crate) fn shrink(&self, keep: u32) -> io::Result<()> {
        let _resize = self.resize.lock();
        let count = {
            let mut state = self.state.lock();
            let mut count = state.segments.len() as u32;
            while state.free.len() as u32 > keep && count > 1 && state.free.contains(&(count - 1)) {
                count -= 1;
                state.free.remove(&count);
            }
            if count as usize == state.segments.len() {
                return Ok(());
            }
            state.segments.truncate(count as usize);
            count
        };
        crate::witness::mark!("the end of the data file was given back");
        self.file.set_len(u64::from(count) * self.segment_bytes)
    }

    /// Segments worth emptying, the emptiest first: closed, with at most `live_share_max` of their bytes live, at most
    /// `count_max`. What has been released but is not settled counts as live no more.
    pub(crate) fn sparse(&self, live_share_max: f64, count_max: usize) -> Vec<(SegmentId, u64)> {
        let state = self.state.lock();
        let limit = (self.segment_bytes as f64 * live_share_max) as u64;
        let mut found: Vec<(SegmentId, u64)> = (state.segments.iter().enumerate().skip(1))
            .filter(|(_, segment)| !segment.open && segment.live_bytes > 0)
            .map(|(index, segment)| (SegmentId(index as u32), segment.live_bytes - state.released_in(index as u32)))
            .filter(|&(_, live)| live > 0 && live <= limit)
            .collect();
        found.sort_unstable_by_key(|&(segment, live)| (live, segment));
        found.truncate(count_max);
        found
    }

    /// Whether the next checkpoint frees a segment, as all of it has been released.
    pub(crate) fn has_released(&self) -> bool {
        let state = self.state.lock();
        let is_released = |(index, segment): (usize, &Segment)| {
            !segment.open && segment.live_bytes > 0 && segment.live_bytes == state.released_in(index as u32)
        };
        state.segments.iter().enumerate().skip(1).any(is_released)
    }

    /// Closed segments in use at or above `first`.
    pub(crate) fn from(&self, first: u32) -> Vec<SegmentId> {
        let state = self.state.lock();
        let used = |segment: &Segment| !segment.open && segment.live_bytes > 0;
        (first.max(1)..state.segments.len() as u32)
            .filter(|&index| used(&state.segments[index as usize]))
            .map(SegmentId)
            .collect()
    }

    pub(crate) fn usage(&self) -> Usage {
        let state = self.state.lock();
        let live = |(index, segment): (usize, &Segment)| segment.live_bytes - state.released_in(index as u32);
        Usage {
            segment_count: state.segments.len() as u64,
            free_count: state.free.len() as u64,
            live_bytes: state.segments.iter().enumerate().skip(1).map(live).sum(),
        }
    }
}

impl State {
    fn subtract(&mut self, segment: u32, bytes: u64) {
        let state = &mut self.segments[segment as usize];
        assert!(state.live_bytes >= bytes, "segment {segment}: {bytes} bytes released of {}", state.live_bytes);
        state.live_bytes -= bytes;
        if state.live_bytes == 0 && !state.open {
            self.free.insert(segment);
        }
    }

    fn released_in(&self, segment: u32) -> u64 {
        self.released.values().filter_map(|epoch| epoch.get(&segment)).sum()
    }
}
