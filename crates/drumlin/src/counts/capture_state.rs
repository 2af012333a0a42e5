//! State that captures of counts need: whether a capture is open, and the pages whose entries it must omit.

use std::collections::BTreeSet;

use crate::format::PageId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The maximum number of recorded pages. Their set then has 64 KiB. Captures are short: 200 MB of counts take a second.
const CHANGED_PAGES_MAX: usize = if cfg!(feature = "sim") { 16 } else { 4096 };

/// The fields of [`KeptCounts`](super::KeptCounts) that captures need.
#[derive(Debug)]
pub(super) struct CaptureState {
    pub(super) is_open: AtomicBool,
    /// Pages whose fences have changed since the capture began, or `None` if too many have.
    pub(super) changed_pages: Mutex<Option<BTreeSet<PageId>>>,
    /// `true` if an entry has been stored since the last capture began.
    pub(super) has_new_entries: AtomicBool,
    /// `true` if the counts were read from a file.
    pub(super) is_restored: bool,
}

impl CaptureState {
    pub(super) fn new() -> CaptureState {
        CaptureState {
            is_open: AtomicBool::new(false),
            changed_pages: Mutex::new(Some(BTreeSet::new())),
            has_new_entries: AtomicBool::new(true),
            is_restored: false,
        }
    }

    /// Returns `true` while a capture is open. Folding is forbidden during that time.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Records a page whose fences are about to change. Must be called before the page's entry changes to describe the
    /// new fences.
    pub(super) fn record_changed_page(&self, page: PageId) {
        if !self.is_open() {
            return;
        }
        let mut changed_pages = self.changed_pages.lock();
        if let Some(pages) = &mut *changed_pages {
            pages.insert(page);
            if pages.len() > CHANGED_PAGES_MAX {
                *changed_pages = None;
            }
        }
    }

    /// Records that an entry was stored.
    pub(super) fn set_new_entries(&self) {
        if !self.has_new_entries.load(Ordering::Relaxed) {
            self.has_new_entries.store(true, Ordering::Relaxed);
        }
    }
}
