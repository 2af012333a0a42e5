//! The pages of a keyspace: their table, and the state that concerns all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::load_gate::LoadGate;
use super::table::PageTable;
use crate::error::quoted;
use crate::format::node::is_page_bytes;
use crate::format::{KeyspaceId, PageId};
use crate::memory::Budget;

/// The pages of one keyspace.
#[derive(Debug)]
pub(crate) struct PageSpace {
    pub(crate) id: KeyspaceId,
    pub(crate) page_bytes: usize,
    /// The keyspace's name, for the catalogue and for error messages.
    pub(crate) name: Box<str>,
    pub(crate) table: PageTable,
    /// Set once the keyspace has been dropped and its pages are being freed.
    pub(crate) dropped: AtomicBool,
    /// Set if page-table entries were lost when the database was opened despite corruption. In that case nodes may name
    /// pages that do not exist.
    has_lost_pages: AtomicBool,
    /// The bulk loads that are attached to the keyspace.
    pub(crate) load_gate: LoadGate,
}

impl PageSpace {
    pub(crate) fn new(id: KeyspaceId, page_bytes: usize, name: &str, budget: &Arc<Budget>) -> PageSpace {
        assert!(is_page_bytes(page_bytes), "keyspace {id} has pages of {page_bytes} bytes");
        let (table, dropped) = (PageTable::new(budget), AtomicBool::new(false));
        let (has_lost_pages, load_gate) = (AtomicBool::new(false), LoadGate::new());
        PageSpace { id, page_bytes, name: name.into(), table, dropped, has_lost_pages, load_gate }
    }

    /// Records that entries of the page table may have been lost.
    pub(crate) fn expect_lost_pages(&self) {
        self.has_lost_pages.store(true, Ordering::Release);
    }

    /// Returns `true` if a node may name a page that is missing from the table.
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.has_lost_pages.load(Ordering::Acquire)
    }

    /// Returns the keyspace's name, quoted for an error message.
    pub(crate) fn quoted_name(&self) -> String {
        if self.id == KeyspaceId::PREPARED { "of prepared transactions".to_owned() } else { quoted(&self.name) }
    }

    /// Describes one of the keyspace's pages for an error message.
    pub(crate) fn quoted_page(&self, page: PageId) -> String {
        format!("page {page} of keyspace {}", self.quoted_name())
    }
}
