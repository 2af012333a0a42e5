//! The header of a frame: the page that it holds, and whether that page is dirty, pinned or recently used.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::pins::PinCount;
use crate::format::extent::PageKey;
use crate::format::{Epoch, ExtentAddress, KeyspaceId, PageId};
use crate::space::{FrameIndex, PageEntry};
use crate::sync::RwLock;

/// The number of turns of the clock's hand that an unused inner node survives. An inner node leads to the rows of a
/// hundred leaves. When inner nodes had a single chance, each turn evicted a tenth of them under random reads, and a
/// tenth of the reads had to load an inner node before the leaf.
/// Measured: decision 014.
pub(super) const INNER_CHANCES: u32 = 4;

/// Describes the page in a frame. Each header has its own cache line.
#[repr(align(64))]
pub(crate) struct FrameHeader {
    pub(super) latch: RwLock<()>,
    pub(super) page_key: AtomicU64,
    pub(super) dirty: AtomicU64,
    address: AtomicU64,
    pub(super) pins: PinCount,
    /// The number of turns of the clock's hand that the page will survive if it is not used.
    pub(super) references: AtomicU32,
    /// One more than the number of rows that the newest image on disk of the leaf has; 0 if it has no image.
    rows_on_disk: AtomicU32,
    /// One more than the index of the frame that holds the leaf's copy; 0 if it has none.
    copy: AtomicU32,
}

impl FrameHeader {
    pub(super) fn new() -> FrameHeader {
        FrameHeader {
            latch: RwLock::new(()),
            page_key: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            address: AtomicU64::new(0),
            pins: PinCount::new(),
            references: AtomicU32::new(0),
            rows_on_disk: AtomicU32::new(0),
            copy: AtomicU32::new(0),
        }
    }

    pub(super) fn page_key_bits(page_key: PageKey) -> u64 {
        (u64::from(page_key.keyspace.0) << 32) | u64::from(page_key.page.0)
    }

    /// Returns the page in the frame, or `None` if the frame holds no page.
    #[inline]
    pub(crate) fn page_key(&self) -> Option<PageKey> {
        let bits = self.page_key.load(Ordering::Acquire);
        let page_key = PageKey { keyspace: KeyspaceId((bits >> 32) as u32), page: PageId(bits as u32) };
        (bits != 0).then_some(page_key)
    }

    #[inline]
    pub(super) fn is(&self, page_key: PageKey) -> bool {
        self.page_key.load(Ordering::Acquire) == Self::page_key_bits(page_key)
    }

    /// Returns the epoch of the newest change that no extent contains yet, or `None` if the page is clean.
    #[inline]
    pub(crate) fn dirty(&self) -> Option<Epoch> {
        let epoch = self.dirty.load(Ordering::Acquire);
        (epoch != 0).then_some(Epoch(epoch))
    }

    /// Returns the address of the page's newest image on disk.
    pub(crate) fn address(&self) -> ExtentAddress {
        ExtentAddress::from_bits(self.address.load(Ordering::Acquire)).unwrap_or(ExtentAddress::NONE)
    }

    /// Sets the number of rows that the newest image on disk of the leaf has. Returns the number before.
    pub(super) fn set_rows_on_disk(&self, rows: Option<u32>) -> Option<u32> {
        debug_assert!(rows.is_none_or(|rows| rows < u32::MAX), "a leaf with {rows:?} rows");
        let before = self.rows_on_disk.swap(rows.map_or(0, |rows| rows + 1), Ordering::Relaxed);
        before.checked_sub(1)
    }

    /// Returns the frame that holds the leaf as the running checkpoint has to write it. See
    /// [`super::checkpoint_copies`].
    pub(super) fn copy(&self) -> Option<FrameIndex> {
        self.copy.load(Ordering::Acquire).checked_sub(1).map(FrameIndex)
    }

    pub(super) fn set_copy(&self, frame: Option<FrameIndex>) {
        self.copy.store(frame.map_or(0, |frame| frame.0 + 1), Ordering::Release);
    }

    pub(crate) fn set_address(&self, address: ExtentAddress) {
        self.address.store(address.to_bits(), Ordering::Release);
    }

    /// Keeps the frame from being evicted until [`Frames::unpin`](super::frames::Frames::unpin). The caller holds the
    /// frame's latch.
    pub(crate) fn pin(&self) {
        debug_assert!(self.page_key().is_some(), "a frame without a page is pinned");
        self.pins.pin();
    }

    /// Returns `true` if the frame is not pinned.
    pub(crate) fn is_idle(&self) -> bool {
        self.pins.is_idle()
    }

    /// Records a use for the clock. To save writes, does so only if the page has no chance left.
    #[inline]
    pub(crate) fn touch(&self) {
        if self.references.load(Ordering::Relaxed) == 0 {
            self.references.store(1, Ordering::Relaxed);
        }
    }

    /// Records a use of an inner node. Every row below the node needs it, so it survives [`INNER_CHANCES`] turns of the
    /// clock's hand.
    #[inline]
    pub(crate) fn touch_inner(&self) {
        if self.references.load(Ordering::Relaxed) != INNER_CHANCES {
            self.references.store(INNER_CHANCES, Ordering::Relaxed);
        }
    }

    /// Returns `true` if the page survives the next turn of the clock's hand.
    pub(crate) fn is_referenced(&self) -> bool {
        self.references.load(Ordering::Relaxed) > 0
    }

    /// Uses up one chance as the clock's hand passes. Returns `false` if none was left.
    pub(crate) fn take_reference(&self) -> bool {
        let references = self.references.load(Ordering::Relaxed);
        debug_assert!(references <= INNER_CHANCES, "a page has {references} chances");
        if references > 0 {
            // If the exchange fails, another thread has recorded a use, which should count for more than this turn.
            let _ = self.references.compare_exchange(references, references - 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        references > 0
    }
}

impl std::fmt::Debug for FrameHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrameHeader({:?}, dirty {:?}, {:?})", self.page_key(), self.dirty(), self.address())
    }
}

/// The way in which readers access a page in memory. It decides when the frame of an unlinked page is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Residency {
    /// Readers hold the latch. Unlinking takes the latch exclusively, so no reader is left.
    Leaf,
    /// Readers hold a reclaim guard. After the page is unlinked, they may still see it until they drop the guard.
    Immutable,
}

impl Residency {
    /// Returns the residency of a page whose entry refers to `frame`.
    pub(crate) fn of(entry: PageEntry, frame: FrameIndex) -> Residency {
        match entry {
            PageEntry::Leaf(shown) if shown == frame => Residency::Leaf,
            PageEntry::Immutable(shown) if shown == frame => Residency::Immutable,
            _ => panic!("the entry of a page in {frame:?} says {entry:?}"),
        }
    }
}
