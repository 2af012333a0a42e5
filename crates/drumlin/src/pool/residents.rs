//! The pages in memory, for the list from which the next opening reads them.

use super::Pool;
use crate::format::extent::{HEADER_BYTES, KIND_OFFSET, Kind};
use crate::format::resident::ResidentPage;
use crate::format::{ValueId, get_u64};
use crate::space::{FrameIndex, PageEntry};

/// A frame, and its place in the list: inner nodes first, since every row needs some; then in the order of the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    place: u64,
    frame: FrameIndex,
}

/// The place bit of pages other than inner nodes. Those that tell where on the disk a page lies are below it.
const BEHIND_INNER_NODES: u64 = 1 << 63;

impl Pool {
    /// Frames that hold, or have held, a page: as many as [`residents`](Self::residents) finds at the most, unless
    /// more come meanwhile.
    pub(crate) fn resident_count_max(&self) -> usize {
        self.frames.sizes().into_iter().map(|(_, count)| count).sum()
    }

    /// The frames of pages in memory that are on the disk too, `count_max` at the most, in the order of the list.
    /// O(n log n). Pages come and go meanwhile.
    pub(crate) fn residents(&self, count_max: usize) -> Vec<Resident> {
        let mut residents = Vec::with_capacity(count_max);
        for frame in self.frames.all() {
            if residents.len() == count_max {
                break;
            }
            let address = self.frames.header(frame).address();
            if address.is_none() {
                continue;
            }
            let Some((_, kind)) = self.resident(frame) else { continue };
            let class = if kind == Kind::Inner { 0 } else { BEHIND_INNER_NODES };
            debug_assert!(address.start() < BEHIND_INNER_NODES, "{address:?} has no place");
            residents.push(Resident { place: class | address.start(), frame });
        }
        residents.sort_unstable_by_key(|resident| resident.place);
        residents
    }

    /// The page in a frame found by [`residents`](Self::residents), if one is still there.
    pub(crate) fn resident_page(&self, resident: Resident) -> Option<ResidentPage> {
        self.resident(resident.frame).map(|(page, _)| page)
    }

    fn resident(&self, frame: FrameIndex) -> Option<(ResidentPage, Kind)> {
        let page_key = self.frames.header(frame).page_key()?;
        let pages = self.space.page_space(page_key.keyspace)?;
        let (value, kind) = match pages.table.load(page_key.page) {
            PageEntry::Leaf(shown) if shown == frame => (None, Kind::Leaf),
            PageEntry::Immutable(_) => {
                let reclaim_guard = self.reclaim_guard();
                let (shown, bytes) = reclaim_guard.pages(&pages.table).get(page_key.page)?;
                let kind = Kind::from_byte(bytes[KIND_OFFSET]).filter(|_| shown == frame)?;
                ((kind == Kind::Value).then(|| ValueId(get_u64(bytes, HEADER_BYTES))), kind)
            }
            _ => return None,
        };
        let frame_bytes = self.frames.page_bytes(frame) as u32;
        assert!(frame_bytes > 0, "a frame of no bytes");
        Some((ResidentPage { keyspace: page_key.keyspace, page: page_key.page, frame_bytes, value }, kind))
    }
}
