//! Types for the numbers that are stored on disk.

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
    /// The number of a page within its keyspace. Page 0 does not exist; page 1 is always the root of the tree.
    ///
    /// 32 bits allow for keyspaces of 16 TiB with 4 KiB pages, and of 256 TiB with 64 KiB pages. The page table then
    /// occupies 32 GiB.
    crate PageId(u32)
}
number! {
    /// The id of a keyspace. It is never reused within a database.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// db.keyspace("orders")?;
    /// let ids: Vec<drumlin::KeyspaceId> = db.keyspaces().into_iter().map(|keyspace| keyspace.id).collect();
    /// assert_eq!(ids.len(), 1);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    KeyspaceId(u32)
}
number! {
    /// The number of a commit. Commits are numbered without gaps: 1, 2, 3, … An empty database has timestamp 0.
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
    /// The time between two checkpoints. The high 32 bits are the incarnation. So if a power cut interrupts an epoch,
    /// the epoch can't be mistaken for an epoch of a later opening.
    crate Epoch(u64)
}
number! {
    /// The number of an opening of the database.
    crate Incarnation(u32)
}
number! {
    /// The number of a segment: its byte offset in the data file divided by the segment size. Segment 0 contains the
    /// superblocks.
    crate SegmentId(u32)
}
number! {
    /// The id of a stream of the log.
    crate StreamId(u16)
}
number! {
    /// The number of a segment file within its stream. A file retains its number through all its uses.
    crate SlotNumber(u32)
}
number! {
    /// The number of a checkpoint. The first is 1.
    crate CheckpointNumber(u64)
}
number! {
    /// The sequence number of a superblock. It shows which of the two superblocks is newer. It increases with every
    /// superblock that is written, even between checkpoints.
    crate SuperblockNumber(u64)
}
number! {
    /// The number of a chunk within a large value, starting from 0.
    crate ChunkNumber(u32)
}

/// One use of a segment of the data file, from the time the segment is taken until it is freed. Each use in a database
/// has a different number: the high 28 bits are the opening, and the rest is a counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct SegmentUse(pub(crate) u64);

impl SegmentUse {
    /// An unknown use, because the entry in the table of segments is corrupted.
    pub(crate) const UNKNOWN: SegmentUse = SegmentUse(u64::MAX);
    /// The number of bits in the counter. With segments of 1 MiB, one opening can write 2^36 segments, which is 64 PiB.
    pub(super) const COUNT_BITS: u32 = 36;

    /// Returns the first use of an opening.
    pub(crate) fn first_of(incarnation: Incarnation) -> SegmentUse {
        SegmentUse((u64::from(incarnation.0) << SegmentUse::COUNT_BITS) | 1)
    }
}

/// The id of a value that has extents of its own. It is never reused within a database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct ValueId(pub(crate) u64);

/// A random number that identifies a database, and distinguishes its files and extents from those of other databases.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct DatabaseId(pub(crate) u64);

/// A random number that identifies a checkpoint, or 0 if it has none. Each checkpoint has a different number, even in
/// different copies of a database.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct CheckpointId(pub(crate) u64);

/// A random number that identifies one writing of an advice file, and distinguishes its parts from parts of earlier
/// writings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct WritingId(pub(crate) u64);

/// A byte position in a stream of the log, counted from the stream's beginning across all its segments. It never wraps
/// around: 64 bits are enough for 16 EiB of records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct StreamPosition(pub(crate) u64);

impl StreamPosition {
    /// The beginning of a stream.
    pub(crate) const START: StreamPosition = StreamPosition(0);
    /// A position after every possible record of a stream.
    pub(crate) const MAX: StreamPosition = StreamPosition(u64::MAX);

    /// Returns the start of the block that contains the position.
    pub(crate) fn block_start(self) -> StreamPosition {
        StreamPosition(self.0 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64)
    }

    /// Returns the first block boundary at or after the position, or [`MAX`](Self::MAX) if there is no such boundary.
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

/// Returns the number of bytes from the position on the right, which must be the earlier one, to this position.
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

/// One use of a log file as a segment. The number ascends within a stream and is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct UseNumber(pub(crate) u64);

impl UseNumber {
    /// The first use in a stream.
    pub(crate) const FIRST: UseNumber = UseNumber(1);

    /// Returns the next use.
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
    /// Returns the id of the stream with this index.
    pub(crate) fn of_index(index: usize) -> StreamId {
        StreamId(u16::try_from(index).expect("there are fewer streams"))
    }

    /// Returns the stream's index among the streams of a log.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl SlotNumber {
    /// The slot of a stream's first file.
    pub(crate) const FIRST: SlotNumber = SlotNumber(1);

    /// Returns the next slot.
    #[must_use]
    pub(crate) fn next(self) -> SlotNumber {
        SlotNumber(self.0 + 1)
    }
}

impl CheckpointNumber {
    /// No checkpoint exists yet.
    pub(crate) const NONE: CheckpointNumber = CheckpointNumber(0);

    /// Returns the number of the next checkpoint.
    #[must_use]
    pub(crate) fn next(self) -> CheckpointNumber {
        CheckpointNumber(self.0 + 1)
    }
}

impl SuperblockNumber {
    /// The number of a new database's first superblock.
    pub(crate) const FIRST: SuperblockNumber = SuperblockNumber(1);

    /// Returns the number of the next superblock.
    #[must_use]
    pub(crate) fn next(self) -> SuperblockNumber {
        SuperblockNumber(self.0 + 1)
    }
}

impl ChunkNumber {
    /// Returns the chunk number as a page number. In the header of a chunk's extent, it is stored in place of the page
    /// number.
    pub(crate) fn as_page(self) -> PageId {
        PageId(self.0)
    }
}

impl KeyspaceId {
    /// The keyspace of prepared transactions, which programs do not see. It exists from the first prepare on.
    pub(crate) const PREPARED: KeyspaceId = KeyspaceId(u32::MAX);

    /// Ids from here on identify the keyspaces of opened kept snapshots in memory. No file contains them.
    pub(crate) const KEPT_FIRST: KeyspaceId = KeyspaceId(1 << 31);

    /// Returns `true` if the id identifies a keyspace of a kept snapshot.
    pub(crate) fn is_of_kept(self) -> bool {
        self >= KeyspaceId::KEPT_FIRST && self != KeyspaceId::PREPARED
    }
}

impl PageId {
    /// No page.
    pub(crate) const NONE: PageId = PageId(0);
    /// The root of every tree.
    pub(crate) const ROOT: PageId = PageId(1);
}

impl Timestamp {
    /// Returns the next timestamp.
    #[must_use]
    pub fn next(self) -> Timestamp {
        Timestamp(self.0 + 1)
    }
}

impl Epoch {
    /// Returns the first epoch of an incarnation.
    #[must_use]
    pub(crate) fn first_of(incarnation: Incarnation) -> Epoch {
        Epoch((u64::from(incarnation.0) << 32) | 1)
    }

    /// Returns the next epoch of the same incarnation.
    #[must_use]
    pub(crate) fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }

    /// Returns the opening of the database to which the epoch belongs.
    #[must_use]
    pub(crate) fn incarnation(self) -> Incarnation {
        Incarnation((self.0 >> 32) as u32)
    }
}
