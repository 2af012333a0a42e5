//! Verifies the pages of a keyspace on disk, and finds the keys that corrupted pages held.

use std::collections::BTreeSet;

use super::report::{CheckProgress, CheckReport, LostKeys};
use crate::error::{Error, Result};
use crate::format::extent::{self, Kind, PageKey};
use crate::format::node::LargeRef;
use crate::format::{ExtentAddress, KeyspaceId, PageId};
use crate::pool::Pool;
use crate::space::runs::Run;
use crate::space::{PageEntry, PageSpace, Space};
use crate::tree::child_fences;
use crate::tree::node::{Inner, Leaf, Node, RowValue};

/// Reads the pages of keyspaces in disk order, and reports corrupted pages.
pub(super) struct Verifier<'v> {
    pub(super) pool: &'v Pool,
    pub(super) pages_total: u64,
    /// `true` if nothing changes pages or runs while they are verified.
    pub(super) is_closed: bool,
    pub(super) report: CheckReport,
    pub(super) progress: &'v mut dyn FnMut(CheckProgress),
}

/// The result of reading the pages of a keyspace.
#[derive(Default)]
pub(super) struct Verified {
    /// The number of rows in intact leaves on disk.
    pub(super) leaf_rows: u64,
    /// The number of corrupted pages that are not reported individually, because the page table may be wrong about
    /// them.
    pub(super) unreported: u64,
}

impl Verifier<'_> {
    /// Verifies every extent that the page table of a keyspace refers to. Reports each corrupted page, or only counts
    /// it if the table is incomplete (`is_table_known` is `false`).
    pub(super) fn verify_pages(&mut self, pages: &PageSpace, name: &str, is_table_known: bool) -> Result<Verified> {
        let Verifier { pool, pages_total, is_closed, report, progress } = self;
        let pool = *pool;
        // An open database walks its trees, because a page may still be there when its run has left the list.
        let has_leaves_of_tree_only = *is_closed && !pages.runs.all().iter().any(Run::has_rows);
        let mut extents = extents_of(pool, pages);
        if pages.id.is_of_kept()
            && let Some(newest) = pages.origins().first().and_then(|origin| pool.space.page_space(origin.keyspace))
        {
            // These extents have been verified as those of the keyspace itself.
            extents.retain(|(address, page)| address_of(pool, &newest, *page) != Some(*address));
        }
        let mut verified = Verified::default();
        report.keyspaces += u64::from(pages.id < KeyspaceId::KEPT_FIRST);
        read_pages(pool, pages, &extents, |(address, page), checked| {
            report.pages += 1;
            report.extent_bytes += address.length();
            if report.pages.is_multiple_of(256) {
                progress(CheckProgress { pages_done: report.pages, pages_total: *pages_total });
            }
            match checked {
                Ok((Kind::Leaf, node)) => {
                    let leaf = Leaf::new(&node);
                    verified.leaf_rows += leaf.len() as u64;
                    if has_leaves_of_tree_only && has_removals(&leaf) {
                        let page_key = PageKey { keyspace: pages.id, page };
                        let error = pool.space.corrupted(&pool.space.quoted_page(page_key), address, ONLY_IN_RUNS);
                        report.report_page(error, name, page_key);
                    }
                }
                Ok(_) => {}
                // The page was moved or changed after it was listed, so the failed read proves nothing.
                Err(_) if !is_still_at(pool, pages, page, address) => {}
                Err(error) if is_table_known => {
                    report.report_page(error, name, PageKey { keyspace: pages.id, page });
                }
                Err(_) => verified.unreported += 1,
            }
        })?;
        Ok(verified)
    }

    /// Rereads all pages, and finds the keys of the corrupted ones in the nodes that refer to them. Retaining all nodes
    /// from the first pass would need memory for every page.
    pub(super) fn find_lost_keys(&mut self, pages: &PageSpace, name: &str) -> Result<()> {
        let keys_of_pages = KeysOfPages::of(&self.report, pages.id, name);
        if keys_of_pages.is_empty() {
            return Ok(());
        }
        let report = &mut self.report;
        read_pages(self.pool, pages, &extents_of(self.pool, pages), |_, checked| {
            if let Ok((Kind::Leaf | Kind::Inner, node)) = checked {
                keys_of_pages.look_at(report, &node);
            }
        })
    }
}

/// The reason why a leaf of a tree is corrupted if it has removals.
pub(super) const ONLY_IN_RUNS: &str = "it has a row that only runs have";

/// Returns `true` if a leaf has rows that remove older rows, as only leaves of runs may have.
pub(super) fn has_removals(leaf: &Leaf<'_>) -> bool {
    (0..leaf.len()).any(|index| matches!(leaf.value(index), RowValue::Large(LargeRef::REMOVED)))
}

/// Returns the extents of a keyspace's pages in disk order, except for pages that have changed since they were written.
fn extents_of(pool: &Pool, pages: &PageSpace) -> Vec<(ExtentAddress, PageId)> {
    let on_disk = |(page, _)| Some((address_of(pool, pages, page)?, page));
    let mut extents: Vec<_> = pages.table.iter().filter_map(on_disk).collect();
    extents.sort_unstable();
    extents
}

/// Returns the address of a page, or `None` if it has changed since it was written.
fn address_of(pool: &Pool, pages: &PageSpace, page: PageId) -> Option<ExtentAddress> {
    match pages.table.load(page) {
        PageEntry::OnDisk(address) | PageEntry::Reading(address) => Some(address),
        PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => {
            let header = pool.frames.header(frame);
            let address = header.address();
            (header.dirty().is_none() && !address.is_none()).then_some(address)
        }
        _ => None,
    }
}

fn is_still_at(pool: &Pool, pages: &PageSpace, page: PageId, address: ExtentAddress) -> bool {
    address_of(pool, pages, page) == Some(address)
}

/// Reads and verifies pages. Calls `each` with the result for each page.
fn read_pages(
    pool: &Pool,
    pages: &PageSpace,
    extents: &[(ExtentAddress, PageId)],
    mut each: impl FnMut((ExtentAddress, PageId), Result<(Kind, Vec<u8>)>),
) -> Result<()> {
    let addresses: Vec<ExtentAddress> = extents.iter().map(|(address, _)| *address).collect();
    pool.read_past(&addresses, |index, bytes| {
        let (address, page) = extents[index];
        each((address, page), bytes.and_then(|bytes| check_page(&pool.space, pages, page, address, bytes)));
    })
}

/// Verifies the kind and the decompressed content of an extent that was read for a page.
fn check_page(
    space: &Space,
    pages: &PageSpace,
    page: PageId,
    address: ExtentAddress,
    bytes: &[u8],
) -> Result<(Kind, Vec<u8>)> {
    let page_key = PageKey { keyspace: pages.id, page };
    let (header, bytes) = crate::space::extents::open_extent(space, address, bytes)
        .map_err(|error| name_page(space, error, page_key, address))?;
    let damaged = |reason: &dyn std::fmt::Display| space.corrupted(&space.quoted_page(page_key), address, reason);
    match header.kind {
        Kind::Leaf | Kind::Inner if header.page_key.page != page || !pages.is_stored_as(header.page_key.keyspace) => {
            Err(damaged(&extent::ExtentError::PageKey(header.page_key)))
        }
        Kind::Leaf | Kind::Inner => {
            crate::tree::check_node(&bytes, header.kind).map_err(|reason| damaged(&reason))?;
            Ok((header.kind, bytes))
        }
        Kind::Value => Ok((header.kind, bytes)),
        _ => Err(damaged(&extent::ExtentError::Kind)),
    }
}

fn name_page(space: &Space, error: Error, page_key: PageKey, address: ExtentAddress) -> Error {
    match error {
        Error::Corrupted { path, reason, .. } => {
            Error::Corrupted { path, what: format!("{} at {address:?}", space.quoted_page(page_key)), reason }
        }
        other => other,
    }
}

/// Finds the keys that corrupted pages hold, by looking at the intact nodes that refer to them.
pub(super) struct KeysOfPages {
    keyspace: KeyspaceId,
    name: String,
    pages: BTreeSet<PageId>,
}

impl KeysOfPages {
    /// Collects the corrupted pages of one keyspace that a report lists.
    pub(super) fn of(report: &CheckReport, keyspace: KeyspaceId, name: &str) -> KeysOfPages {
        let pages = report.corruption.iter().filter_map(|corruption| corruption.page);
        let pages = pages.filter(|page_key| page_key.keyspace == keyspace).map(|page_key| page_key.page).collect();
        KeysOfPages { keyspace, name: name.to_owned(), pages }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Records the keys of the corrupted pages that this node refers to: its children, or chunks of its large values.
    pub(super) fn look_at(&self, report: &mut CheckReport, page: &[u8]) {
        if self.is_empty() {
            return;
        }
        if Node::new(page).level() > 0 {
            let inner = Inner::new(page);
            for index in (0..inner.len()).filter(|&index| self.pages.contains(&inner.child(index))) {
                let (lower, upper) = child_fences(&inner, index);
                self.report_corruption(report, inner.child(index), lower, upper);
            }
            return;
        }
        let leaf = Leaf::new(page);
        for index in 0..leaf.len() {
            let RowValue::Large(reference) = leaf.value(index) else { continue };
            if reference == LargeRef::REMOVED {
                continue;
            }
            let end = PageId(reference.first_page.0.saturating_add(reference.chunk_count));
            for &chunk in self.pages.range(reference.first_page..end) {
                let mut key = Vec::new();
                leaf.key_into(index, &mut key);
                let after = [&key[..], &[0]].concat();
                self.report_corruption(report, chunk, Some(key), Some(after));
            }
        }
    }

    pub(super) fn report_corruption(
        &self,
        report: &mut CheckReport,
        page: PageId,
        lower: Option<Vec<u8>>,
        upper: Option<Vec<u8>>,
    ) {
        let page_key = PageKey { keyspace: self.keyspace, page };
        let keys = LostKeys { keyspace: self.name.clone(), lower, upper };
        for corruption in report.corruption.iter_mut().filter(|corruption| corruption.page == Some(page_key)) {
            corruption.cost = format!("{keys}; the rest stays readable");
            corruption.keys = Some(keys.clone());
        }
    }
}
