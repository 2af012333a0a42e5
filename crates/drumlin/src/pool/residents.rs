//! The list of pages in memory, which the next opening will prefetch.

use super::Pool;
use crate::format::advice::ResidentPage;
use crate::format::extent::{HEADER_BYTES, KIND_OFFSET, Kind};
use crate::format::{ValueId, get_u64};
use crate::space::{FrameIndex, PageEntry};

/// A frame, and its place in the list. Inner nodes come first, because every row needs some of them. All other pages
/// follow in the order of their addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    place: u64,
    frame: FrameIndex,
}

/// The bit of `disk_order` that is set unless the page is an inner node, so that inner nodes sort first. The bits below
/// hold the page's offset on disk.
const NO_INNER_NODE_BIT: u64 = 1 << 63;

impl Pool {
    /// Returns the number of frames that hold, or have held, a page. [`residents`](Self::residents) finds at most this
    /// number of pages, unless more pages are brought into memory in the meantime.
    pub(crate) fn resident_count_max(&self) -> usize {
        self.frames.sizes().into_iter().map(|(_, count)| count).sum()
    }

    /// Returns the frames of up to `count_max` pages that are both in memory and on disk, in the order of the list. O(n
    /// log n). Other threads may load and evict pages during the call.
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
            let class = if kind == Kind::Inner { 0 } else { NO_INNER_NODE_BIT };
            debug_assert!(address.start() < NO_INNER_NODE_BIT, "{address:?} has no place");
            residents.push(Resident { place: class | address.start(), frame });
        }
        residents.sort_unstable_by_key(|resident| resident.place);
        residents
    }

    /// Returns the page in a frame found by [`residents`](Self::residents), if the frame still holds a page.
    pub(crate) fn resident_page(&self, resident: Resident) -> Option<ResidentPage> {
        self.resident(resident.frame).map(|(page, _)| page)
    }

    fn resident(&self, frame: FrameIndex) -> Option<(ResidentPage, Kind)> {
        let page_key = self.frames.header(frame).page_key().filter(|page_key| !page_key.keyspace.is_of_kept())?;
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
