//! The policy for disk space: how much of it each purpose may take. It is a pure function of a [`SpaceState`].
//! README.md shows it as a table, which a test generates.
//!
//! # Rules
//! 1. *Coverage.* A purpose that makes pages dirty leaves enough free segments for the checkpoint that writes these
//!    pages.
//! 2. *Yielding.* A purpose that only takes space also leaves the space that packing needs. So removals, and packing
//!    after them, still find space when puts no longer do.
//! 3. *Monotonicity.* More free space never turns a grant into a refusal, and more claims never turn a refusal into a
//!    grant. Reserved bytes count the same as requested ones.

use std::fmt;

/// The minimum number of bytes of pages per byte of their entries in summaries. Fixed by the format: an entry has 24
/// bytes, and a page at least 512. The ratio 24 / 512 is rounded up to 1 / 20.
const ENTRY_SHARE: u64 = 20;

/// The part of a segment that can certainly be used, in quarters. The rest may be wasted: up to a 64 KiB page at the
/// end of a 256 KiB segment, or partial blocks at flushes.
const USED_QUARTERS: u64 = 3;

/// The segments that packing needs in addition to those for tables: one for the checkpoint before it, one for the
/// extents that it moves, and one for the checkpoint after it. Each of the three fits into one segment if the tables
/// do.
const PACKING_SEGMENTS_MIN: u64 = 3;

/// Packing also needs this multiple of the table bytes beyond the first segment. The checkpoint before packing may free
/// nothing and rewrite every table, and so may the checkpoint after it.
const PACKING_TABLES_FACTOR: u64 = 2;

/// Puts and values leave room for two packings: one for the removals that follow them, and one that these removals must
/// in turn leave room for.
const PUT_PACKING_FACTOR: u64 = 2;

/// A reclaimer stops making space once this many segments are free in addition to twice the spare segments. The file
/// grows by the same number in one step.
const RELIEVED_SEGMENTS: u64 = 8;

/// The purpose for which space is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Pages that a commit with new rows makes dirty.
    Put,
    /// Pages that a commit makes dirty by removing rows only.
    Remove,
    /// Pages that recovery makes dirty. Their space was available when the commit was originally made.
    Replay,
    /// Segments of an epoch's appender.
    Pages,
    /// Segments of large values.
    Value,
    /// Pages and segments to which the reclaimer moves extents in order to empty sparse segments.
    Move,
    /// Like `Move`, but on a full disk, where extents are moved into the checkpoint's own segments.
    Pack,
    /// All writes of a checkpoint. The checkpoint itself reserves no bytes.
    Checkpoint(Reclaims),
    /// Images of dirty pages, written before a checkpoint that frees this much.
    WriteBack(Reclaims),
}

/// The space that a checkpoint frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reclaims {
    /// At least one segment, once the checkpoint is durable.
    Segments,
    /// Possibly no segment, so the next checkpoint has to find space too.
    Nothing,
}

/// The space that a reservation must leave free beyond its own bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Margin {
    /// Space for waste at the ends of segments, plus the space that the purpose leaves to other purposes.
    Full,
    /// No margin. A purpose that frees space falls back to it if the full margin is not available.
    Least,
}

/// The result of [`admit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// There is enough space with the full margin.
    Granted,
    /// There is enough space only with the least margin. The full margin would require this many free segments.
    Scarce { segments: u64 },
    /// There is not enough space. The full margin and the least margin would require these numbers of free segments.
    Short { segments: u64, least_segments: u64 },
}

/// The free space, and the bytes that claim parts of it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct SpaceState {
    pub(crate) segment_bytes: u64,
    pub(crate) free_segments: u64,
    /// The bytes left in the open segment of the epoch's pages.
    pub(crate) open_segment_bytes: u64,
    pub(crate) dirty_bytes: u64,
    /// The bytes that are reserved now.
    pub(crate) reserved_bytes: u64,
    /// The maximum number of bytes that a checkpoint writes in addition to pages: summaries or a base image, the
    /// segment table, and the catalogue.
    pub(crate) table_bytes: u64,
}

/// The free space that a purpose requires: the sum of these parts, in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Demand {
    cover: Cover,
    /// The number of packings for which space must remain.
    packings: u64,
    /// The number of later checkpoints, each writing only tables, for which space must remain.
    table_checkpoints: u64,
    /// Segments that the purpose takes immediately.
    taken: u64,
}

/// The rule by which the bytes of the next checkpoint are converted to segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cover {
    /// The bytes are not counted.
    Nothing,
    /// Free segments must hold the bytes, although up to a quarter of each segment may be wasted.
    Wasteful,
    /// The rest of the open segment and whole free segments must hold the bytes.
    Tight,
    /// All writable space must hold the bytes together with the packed bytes, although up to a quarter of the space may
    /// be wasted.
    Packed,
}

const NOTHING: Demand = Demand { cover: Cover::Nothing, packings: 0, table_checkpoints: 0, taken: 0 };

impl Demand {
    /// Returns the number of segments that must be free if `bytes` more are reserved.
    fn segments(self, state: &SpaceState, bytes: u64) -> u64 {
        let cover_segments = match self.cover {
            Cover::Nothing => 0,
            Cover::Wasteful => state.needed_segments(bytes),
            Cover::Tight => state.least_segments(bytes),
            Cover::Packed => state.packed_segments(bytes),
        };
        cover_segments
            + self.packings * state.packing_segments()
            + self.table_checkpoints * (state.table_segments() + 1)
            + self.taken
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cover = match self.cover {
            Cover::Nothing => None,
            Cover::Wasteful => Some("cover".to_owned()),
            Cover::Tight => Some("tight".to_owned()),
            Cover::Packed => Some("packed".to_owned()),
        };
        let times = |count: u64, what: &str| (count > 0).then(|| format!("{count} × {what}"));
        let taken = (self.taken > 0).then(|| self.taken.to_string());
        let parts = [cover, times(self.packings, "packing"), times(self.table_checkpoints, "tables"), taken];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "0" } else { "" })?;
        f.write_str(&parts.join(" + "))
    }
}

impl Purpose {
    /// The policy: returns the demands at the full margin and at the least margin. The segments that values and moves
    /// are about to take count here, not among the reserved bytes.
    fn demands(self, state: &SpaceState, bytes: u64) -> (Demand, Demand) {
        let cover = Demand { cover: Cover::Wasteful, ..NOTHING };
        let tight = Demand { cover: Cover::Tight, ..NOTHING };
        let packed = Demand { cover: Cover::Packed, ..NOTHING };
        let put = Demand { packings: PUT_PACKING_FACTOR, ..cover };
        match self {
            Purpose::Put => (put, put),
            Purpose::Value => alike(Demand { taken: 1, ..put }),
            // A move may end before a segment is empty, so that the checkpoint after it frees nothing.
            Purpose::Move => alike(Demand { table_checkpoints: 1, taken: 1, ..cover }),
            Purpose::Remove => (Demand { packings: 1, ..cover }, tight),
            // The commit had its space before the crash, so a full disk is no reason to refuse it.
            Purpose::Replay => (put, NOTHING),
            // These bytes were already reserved when the pages became dirty.
            Purpose::Pages => alike(NOTHING),
            Purpose::Pack => alike(if bytes == 0 { NOTHING } else { packed }),
            Purpose::Checkpoint(frees) => {
                let table_checkpoints = frees.checkpoints_after();
                (Demand { table_checkpoints, ..cover }, Demand { table_checkpoints, ..tight })
            }
            // The image is at most as long as its page, and the flush after it wastes less than that length. So the
            // write-back fits into the open segment and needs no new one.
            Purpose::WriteBack(_) if state.open_segment_bytes >= 2 * bytes => alike(NOTHING),
            Purpose::WriteBack(frees) => alike(Demand { table_checkpoints: 1 + frees.checkpoints_after(), ..NOTHING }),
        }
    }

    /// Returns `true` if the purpose has a least margin that differs from the full margin.
    pub(super) fn has_least_margin(self) -> bool {
        matches!(self, Purpose::Remove | Purpose::Replay | Purpose::Checkpoint(_))
    }

    /// Returns `true` if commits reserve for this purpose, so that the [allowance](super::reservation) may pay for it.
    pub(super) fn is_of_commits(self) -> bool {
        matches!(self, Purpose::Put | Purpose::Remove)
    }
}

fn alike(demand: Demand) -> (Demand, Demand) {
    (demand, demand)
}

impl Reclaims {
    /// Returns the number of later checkpoints for which this one must leave space. A checkpoint that frees nothing
    /// must leave space for one more, which will free the extents that this one has replaced.
    fn checkpoints_after(self) -> u64 {
        match self {
            Reclaims::Segments => 0,
            Reclaims::Nothing => 1,
        }
    }
}

/// Decides whether a purpose may reserve this many bytes.
pub(crate) fn admit(state: &SpaceState, purpose: Purpose, bytes: u64) -> Admission {
    assert!(state.open_segment_bytes <= state.segment_bytes, "an open segment has more room than there is: {state:?}");
    let (full, least) = purpose.demands(state, bytes);
    let (segments, least_segments) = (full.segments(state, bytes), least.segments(state, bytes));
    assert!(least_segments <= segments, "{purpose:?} needs more at less margin: {state:?}");
    assert!(full == least || purpose.has_least_margin(), "{purpose:?} has a least margin");
    if state.free_segments >= segments {
        Admission::Granted
    } else if state.free_segments >= least_segments {
        Admission::Scarce { segments }
    } else {
        Admission::Short { segments, least_segments }
    }
}

impl SpaceState {
    /// Returns the maximum number of bytes that a checkpoint writes if `more_bytes` more are reserved.
    fn checkpoint_bytes(&self, more_bytes: u64) -> u64 {
        let page_bytes = self.dirty_bytes + self.reserved_bytes + more_bytes;
        page_bytes + page_bytes / ENTRY_SHARE + self.table_bytes
    }

    /// Returns the number of free segments that certainly hold [these bytes](Self::checkpoint_bytes), even if space is
    /// wasted.
    fn needed_segments(&self, more_bytes: u64) -> u64 {
        self.checkpoint_bytes(more_bytes) / (self.segment_bytes * USED_QUARTERS / 4) + 1
    }

    /// Returns the number of free segments that, together with the rest of the open segment, hold these bytes if little
    /// space is wasted.
    fn least_segments(&self, more_bytes: u64) -> u64 {
        match self.checkpoint_bytes(more_bytes).saturating_sub(self.open_segment_bytes * USED_QUARTERS / 4) {
            0 => 0,
            bytes => bytes / self.segment_bytes + 1,
        }
    }

    /// Returns the number of free segments that, together with the rest of the open segment, hold `moved_bytes` and the
    /// next checkpoint.
    fn packed_segments(&self, moved_bytes: u64) -> u64 {
        let writable_bytes = (4 * (self.checkpoint_bytes(0) + moved_bytes)).div_ceil(USED_QUARTERS);
        writable_bytes.saturating_sub(self.open_segment_bytes).div_ceil(self.segment_bytes)
    }

    /// Returns the number of segments that the tables fill, rounded down.
    fn table_segments(&self) -> u64 {
        self.table_bytes / self.segment_bytes
    }

    /// Returns the number of segments that packing needs.
    fn packing_segments(&self) -> u64 {
        assert!(self.segment_bytes > 0, "a space has no segments: {self:?}");
        let beyond_bytes = self.table_bytes.saturating_sub(self.segment_bytes);
        PACKING_SEGMENTS_MIN + (PACKING_TABLES_FACTOR * beyond_bytes).div_ceil(self.segment_bytes)
    }

    /// Returns the number of segments that commits with new rows must leave free.
    pub(crate) fn spare_segments(&self) -> u64 {
        PUT_PACKING_FACTOR * self.packing_segments()
    }

    /// Returns the number of free segments that the file retains when it shrinks. On a disk that other programs fill,
    /// the space might not be available later.
    pub(crate) fn kept_segments(&self) -> u64 {
        self.needed_segments(0) + self.spare_segments()
    }

    /// Returns the number of free segments beyond those that the next checkpoint needs.
    pub(crate) fn idle_segments(&self) -> u64 {
        self.free_segments.saturating_sub(self.needed_segments(0))
    }

    /// Returns the maximum number of bytes that can be moved into free space before the next checkpoint.
    pub(crate) fn movable_bytes(&self) -> u64 {
        let writable_bytes = self.free_segments * self.segment_bytes + self.open_segment_bytes;
        (writable_bytes * USED_QUARTERS / 4).saturating_sub(self.checkpoint_bytes(0))
    }

    /// Returns `true` if enough segments are free, so that the reclaimer may stop making space.
    pub(crate) fn is_relieved(&self) -> bool {
        self.free_segments >= 2 * self.spare_segments() + RELIEVED_SEGMENTS
    }

    /// Returns `true` if twice as much space is free as a commit of `bytes` needs. A disk that was full counts as full
    /// until then, so that the answer does not flip with each segment.
    pub(super) fn has_plenty(&self, bytes: u64) -> bool {
        self.free_segments >= 2 * self.needed_segments(bytes) + self.spare_segments()
    }

    /// Asserts rule 1 for bytes that have just been reserved.
    pub(super) fn assert_covered(&self, purpose: Purpose, bytes: u64) {
        let covers = match purpose {
            Purpose::Put | Purpose::Value | Purpose::Move => self.free_segments >= self.needed_segments(bytes),
            Purpose::Remove | Purpose::Checkpoint(_) => self.free_segments >= self.least_segments(bytes),
            // Packing may use all writable space. The bytes of the other purposes are already part of the sums.
            Purpose::Pack => bytes <= self.movable_bytes(),
            Purpose::Replay | Purpose::Pages | Purpose::WriteBack(_) => true,
        };
        assert!(covers, "{bytes} bytes for {purpose:?} are not covered by {self:?}");
    }
}

#[cfg(test)]
mod tests;
