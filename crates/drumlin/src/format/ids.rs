//! A type for each kind of number that is kept on disk.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use super::BLOCK_BYTES;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
    ($(#[$doc:meta])* crate $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// The number of a page within its keyspace. Page 0 does not exist; page 1 is the root of the tree for ever.
    ///
    /// 32 bits reach 16 TiB in a keyspace of 4 KiB pages and 256 TiB at 64 KiB, at a page table of 32 GiB.
    PageId(u32)
}
number! {
    /// The number of a keyspace; never used twice in one database.
    KeyspaceId(u32)
}
number! {
    /// The dense number of a commit: 1, 2, 3, … Timestamp 0 is the empty database.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut tx = db.begin()?;
    /// tx.insert(&k, "a", "1")?;
    /// let timestamp = tx.commit()?;
    /// assert_eq!(db.snapshot().timestamp(), timestamp);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    Timestamp(u64)
}
number! {
    /// The time between two checkpoints. The high 32 bits are the incarnation, so that an epoch that a power cut
    /// interrupted can never be mistaken for one of a later opening.
    Epoch(u64)
}
number! {
    /// One opening of the database.
    Incarnation(u32)
}
number! {
    /// The number of a segment: its byte offset in the data file divided by the segment size. Segment 0 holds the
    /// superblocks.
    SegmentId(u32)
}
number! {
    /// The number of a stream of the log.
    crate StreamId(u16)
}
number! {
    /// The number of a segment file within its stream. A file keeps it through all its uses.
    crate SlotNumber(u32)
}
number! {
    /// The number of a checkpoint: that of the first is 1.
    crate CheckpointNumber(u64)
}
number! {
    /// The number of a superblock, by which the newer of the two is told. It is also raised between checkpoints.
    crate SuperblockNumber(u64)
}
number! {
    /// The number of a chunk within a large value, from 0.
    crate ChunkNumber(u32)
}

/// One use of a segment of the data file, from its being taken to its being free again. No two uses in a database have
/// the same number: the opening is in the high 28 bits, what is below counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct SegmentUse(pub(crate) u64);

impl SegmentUse {
    /// The use is unknown: its entry in the table of segments is corrupted.
    pub(crate) const UNKNOWN: SegmentUse = SegmentUse(u64::MAX);
    /// Bits of the count: 2^36 segments of a megabyte are 64 PiB written in one opening.
    pub(super) const COUNT_BITS: u32 = 36;

    /// The first use of an opening.
    pub(crate) fn first_of(incarnation: Incarnation) -> SegmentUse {
        SegmentUse((u64::from(incarnation.0) << SegmentUse::COUNT_BITS) | 1)
    }
}

/// The number of a value that has extents of its own; never used twice in one database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct ValueId(pub(crate) u64);

/// A database's own random number, by which its files and extents are told from those of others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct DatabaseId(pub(crate) u64);

/// A checkpoint's own random number: no two checkpoints have the same, not even those of two copies of a database. 0:
/// it has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct CheckpointId(pub(crate) u64);

/// A random number of one writing of a file of counts, by which its parts are told from older ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct CountsFileId(pub(crate) u64);

/// A byte position in a stream of the log, which is one space of bytes over all its segments. It never turns back:
/// 64 bits are 16 EiB of records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct StreamPosition(pub(crate) u64);

impl StreamPosition {
    /// The beginning of a stream.
    pub(crate) const START: StreamPosition = StreamPosition(0);
    /// Behind every record that a stream can have.
    pub(crate) const MAX: StreamPosition = StreamPosition(u64::MAX);

    /// The start of the block that the position lies in.
    pub(crate) fn block_start(self) -> StreamPosition {
        StreamPosition(self.0 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64)
    }

    /// The first start of a block at or behind the position; [`MAX`](Self::MAX) where there is none.
    pub(crate) fn block_end(self) -> StreamPosition {
        self.0.checked_next_multiple_of(BLOCK_BYTES as u64).map_or(StreamPosition::MAX, StreamPosition)
    }

    pub(crate) fn is_block_start(self) -> bool {
        self.0.is_multiple_of(BLOCK_BYTES as u64)
    }
}

impl Add<u64> for StreamPosition {
    type Output = StreamPosition;

    fn add(self, bytes: u64) -> StreamPosition {
        StreamPosition(self.0 + bytes)
    }
}

impl AddAssign<u64> for StreamPosition {
    fn add_assign(&mut self, bytes: u64) {
        self.0 += bytes;
    }
}

/// The bytes from the position on the right, which is not behind the other.
impl Sub for StreamPosition {
    type Output = u64;

    fn sub(self, earlier: StreamPosition) -> u64 {
        self.0 - earlier.0
    }
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One use of a file of the log as a segment: ascends within a stream, never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct UseNumber(pub(crate) u64);

impl UseNumber {
    /// The first use in a stream.
    pub(crate) const FIRST: UseNumber = UseNumber(1);

    /// The use that follows.
    #[must_use]
    pub(crate) fn next(self) -> UseNumber {
        UseNumber(self.0 + 1)
    }
}

impl fmt::Display for UseNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StreamId {
    /// The stream at this place among a log's.
    pub(crate) fn of_index(index: usize) -> StreamId {
        StreamId(u16::try_from(index).expect("there are fewer streams"))
    }

    /// Its place among the streams of a log.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl SlotNumber {
    /// The slot of a stream's first file.
    pub(crate) const FIRST: SlotNumber = SlotNumber(1);

    /// The slot that follows.
    #[must_use]
    pub(crate) fn next(self) -> SlotNumber {
        SlotNumber(self.0 + 1)
    }
}

impl CheckpointNumber {
    /// The state before the first checkpoint.
    pub(crate) const NONE: CheckpointNumber = CheckpointNumber(0);

    /// The checkpoint that follows.
    #[must_use]
    pub(crate) fn next(self) -> CheckpointNumber {
        CheckpointNumber(self.0 + 1)
    }
}

impl SuperblockNumber {
    /// The number of a new database's first superblock.
    pub(crate) const FIRST: SuperblockNumber = SuperblockNumber(1);

    /// The superblock that follows.
    #[must_use]
    pub(crate) fn next(self) -> SuperblockNumber {
        SuperblockNumber(self.0 + 1)
    }
}

impl ChunkNumber {
    /// The number of the extent in its header, where pages have theirs.
    pub(crate) fn as_page(self) -> PageId {
        PageId(self.0)
    }
}

impl PageId {
    /// No page.
    pub const NONE: PageId = PageId(0);
    /// The root of every tree.
    pub const ROOT: PageId = PageId(1);
}

impl Timestamp {
    /// The timestamp that follows.
    #[must_use]
    pub fn next(self) -> Timestamp {
        Timestamp(self.0 + 1)
    }
}

impl Epoch {
    /// The first epoch of an incarnation.
    #[must_use]
    pub fn first_of(incarnation: Incarnation) -> Epoch {
        Epoch((u64::from(incarnation.0) << 32) | 1)
    }

    /// The epoch that follows within the same incarnation.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }

    /// The opening of the database that the epoch belongs to.
    #[must_use]
    pub fn incarnation(self) -> Incarnation {
        Incarnation((self.0 >> 32) as u32)
    }
}
