//! The resources that a core operation may lack: a page, a frame, or room among the pending writes.

use std::sync::Arc;

use crate::error::Error;
use crate::format::advice::ResidentPage;
use crate::format::node::is_page_bytes;
use crate::format::{PageId, ValueId};
use crate::space::PageSpace;

/// The resource that a core operation lacks. The operation has changed nothing; the caller provides it and retries.
#[derive(Clone, Debug)]
pub(crate) enum Needs {
    /// A page that is not in memory.
    Page(Arc<PageSpace>, PageId),
    /// A page of a run that is not in memory. The operation's next attempt begins at the root of the tree.
    RunPage(Arc<PageSpace>, PageId),
    /// A frame for a new page of this many bytes.
    Frame(usize),
    /// Room among the images on their way to the disk.
    Writes,
}

/// The reason why a core operation ended without a result. To convert an [`Error`], use `map_err(Stop::Error)`. There
/// is no `From` implementation, because the compiler would suggest it to users whenever `?` can't infer a type.
#[derive(Debug)]
pub(crate) enum Stop {
    Needs(Needs),
    Error(Error),
}

impl From<Needs> for Stop {
    fn from(needs: Needs) -> Stop {
        Stop::Needs(needs)
    }
}

/// A page that a fault brings in, and the content that its reader expects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(super) page: PageId,
    pub(super) frame_bytes: usize,
    pub(super) content: WantedContent,
    /// `true` if a scan reads the page. Background work does not yield to this read, because most of that work may be
    /// the scan's own read-ahead.
    pub(super) is_of_scan: bool,
}

/// The content that a fault expects. An outdated parent may contain a page number that has been reused, so a page with
/// other content is not loaded.
#[derive(Clone, Copy, Debug)]
pub(super) enum WantedContent {
    /// A leaf or an inner node.
    Node,
    /// The medium value with this value id. A large value's chunks are never in memory.
    Value(ValueId),
}

impl Wanted {
    /// Describes the fault of a leaf or an inner node.
    pub(crate) fn node(pages: &PageSpace, page: PageId) -> Wanted {
        Wanted { page, frame_bytes: pages.page_bytes(), content: WantedContent::Node, is_of_scan: false }
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Describes the fault of a page that an earlier opening had in memory. Returns `None` if the listed page can't be
    /// the same page now.
    pub(crate) fn resident(pages: &PageSpace, listed: &ResidentPage) -> Option<Wanted> {
        let frame_bytes = listed.frame_bytes as usize;
        match listed.value {
            None => (frame_bytes == pages.page_bytes()).then(|| Wanted::node(pages, listed.page)),
            Some(_) if !is_page_bytes(frame_bytes) => None,
            Some(value) => Some(Wanted::value(listed.page, frame_bytes, value)),
        }
    }

    /// Describes the fault of a medium value into a frame of this many bytes.
    pub(crate) fn value(page: PageId, frame_bytes: usize, value_id: ValueId) -> Wanted {
        Wanted { page, frame_bytes, content: WantedContent::Value(value_id), is_of_scan: false }
    }
}
