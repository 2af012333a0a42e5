//! Verifies everything on disk of an open database. For a database that is not open, see `store/examine.rs`.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use super::read_ahead::ReadAhead;
use super::{OpenKeyspace, Store};
use crate::error::{Error, Result};
use crate::format::extent::{self, Kind, PageKey};
use crate::format::{ExtentAddress, KeyspaceId, PageId, Timestamp};
use crate::space::{PageEntry, PageSpace, Space};
use crate::task::{WaitMode, ready};
use crate::tree::counting::CountCursor;
use crate::tree::counts::KeptCounts;
use crate::tree::node::{Inner, Leaf, Node, RowValue};
use crate::tree::{Direction, Target, child_fences};

/// The findings of a check.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let report = db.check()?;
/// assert!(report.corruption.is_empty());
/// println!("{} pages and {} log records are sound", report.pages, report.log_records);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Keyspaces whose pages were read.
    pub keyspaces: u64,
    /// Pages read, including those of large values.
    pub pages: u64,
    /// Rows found by scanning every tree. For an [examination](crate::Config::examine), the rows in intact leaves.
    pub rows: u64,
    /// Bytes of extents read.
    pub extent_bytes: u64,
    /// Log records verified. For an [examination](crate::Config::examine), the records that opening would apply.
    pub log_records: u64,
    /// The newest commit that the checkpoint holds.
    pub checkpoint: Timestamp,
    /// The newest commit found: the checkpoint and the intact records of the log contain all commits up to it.
    pub last: Timestamp,
    /// All corruption found, up to [`DAMAGE_COUNT_MAX`](CheckReport::DAMAGE_COUNT_MAX).
    pub corruption: Vec<Corruption>,
    /// The number of findings beyond those listed.
    pub unlisted: u64,
    /// Corruption that opening repaired because nothing depended on it: a corrupted superblock whose counterpart is
    /// valid. A power cut during a superblock write leaves one; so does a device that loses bytes.
    pub mended: Vec<Corruption>,
}

/// One finding of a check: a part of a file that is not as it was written.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// for corruption in db.check()?.corruption { println!("{} of {}: {}. Lost: {}", corruption.what,
/// corruption.file.display(), corruption.reason, corruption.cost); }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Corruption {
    /// The file that is corrupted.
    pub file: PathBuf,
    /// The page, record or structure that is corrupted.
    pub what: String,
    /// The check that failed.
    pub reason: String,
    /// The rows that are lost because of it.
    pub cost: String,
    /// The keys of the lost rows, if a single page is corrupted and the nodes above it show which keys it holds.
    pub keys: Option<LostKeys>,
    page: Option<PageKey>,
}

/// The keys of lost rows.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// for keys in db.check()?.corruption.into_iter().filter_map(|corruption| corruption.keys) {
///     println!("keyspace {:?} has lost keys from {:?} to {:?}", keys.keyspace, keys.lower, keys.upper);
/// }
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LostKeys {
    /// The name of the keyspace.
    pub keyspace: String,
    /// The first key of the lost range, or `None` if the range begins with the first key of the keyspace.
    pub lower: Option<Vec<u8>>,
    /// The first key after the lost range, or `None` if the range has no end.
    pub upper: Option<Vec<u8>>,
}

/// The progress of a check.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// db.check_with(|progress| println!("{} of {} pages", progress.pages_done, progress.pages_total))?;
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckProgress {
    /// Pages verified so far.
    pub pages_done: u64,
    /// The approximate number of all pages.
    pub pages_total: u64,
}

impl Corruption {
    fn of(error: Error, cost: impl Into<String>) -> Corruption {
        let (file, what, reason) = match error {
            Error::Corrupted { path, what, reason } => (path, what, reason),
            Error::Io { action, path, source } => (path, format!("{action} it"), source.to_string()),
            other => (PathBuf::new(), "it".to_owned(), other.to_string()),
        };
        Corruption { file, what, reason, cost: cost.into(), keys: None, page: None }
    }
}

impl std::fmt::Display for LostKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the rows of keyspace {:?}", self.keyspace)?;
        match (&self.lower, &self.upper) {
            (None, None) => f.write_str(", all of them"),
            (Some(lower), None) => write!(f, " from key b\"{}\" on", lower.escape_ascii()),
            (None, Some(upper)) => write!(f, " below key b\"{}\"", upper.escape_ascii()),
            (Some(lower), Some(upper)) if upper.strip_suffix(&[0]) == Some(lower) => {
                write!(f, " of key b\"{}\"", lower.escape_ascii())
            }
            (Some(lower), Some(upper)) => {
                write!(f, " from key b\"{}\" on, below b\"{}\"", lower.escape_ascii(), upper.escape_ascii())
            }
        }
    }
}

/// Finds the keys that corrupted pages hold, by looking at the intact nodes that refer to them.
pub(super) struct KeysOfPages {
    keyspace: KeyspaceId,
    name: String,
    pages: BTreeSet<PageId>,
}

impl KeysOfPages {
    /// Begins with the corrupted pages of one keyspace that a report lists.
    pub(super) fn of(report: &CheckReport, keyspace: KeyspaceId, name: &str) -> KeysOfPages {
        let pages = report.corruption.iter().filter_map(|corruption| corruption.page);
        let pages = pages.filter(|page_key| page_key.keyspace == keyspace).map(|page_key| page_key.page).collect();
        KeysOfPages { keyspace, name: name.to_owned(), pages }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Records the keys of those corrupted pages that this node refers to: its children, or chunks of its large values.
    pub(super) fn look_at(&self, report: &mut CheckReport, page: &[u8]) {
        if self.is_empty() {
            return;
        }
        if Node::new(page).level() > 0 {
            let inner = Inner::new(page);
            for index in (0..inner.len()).filter(|&index| self.pages.contains(&inner.child(index))) {
                let (lower, upper) = child_fences(&inner, index);
                self.note(report, inner.child(index), lower, upper);
            }
            return;
        }
        let leaf = Leaf::new(page);
        for index in 0..leaf.len() {
            let RowValue::Large(reference) = leaf.value(index) else { continue };
            let behind = PageId(reference.first_page.0.saturating_add(reference.chunk_count));
            for &chunk in self.pages.range(reference.first_page..behind) {
                let mut key = Vec::new();
                leaf.key_into(index, &mut key);
                let behind = [&key[..], &[0]].concat();
                self.note(report, chunk, Some(key), Some(behind));
            }
        }
    }

    pub(super) fn note(&self, report: &mut CheckReport, page: PageId, lower: Option<Vec<u8>>, upper: Option<Vec<u8>>) {
        let page_key = PageKey { keyspace: self.keyspace, page };
        let keys = LostKeys { keyspace: self.name.clone(), lower, upper };
        for corruption in report.corruption.iter_mut().filter(|corruption| corruption.page == Some(page_key)) {
            corruption.cost = format!("{keys}; the rest stays readable");
            corruption.keys = Some(keys.clone());
        }
    }
}

impl CheckReport {
    /// The most corruptions listed: a file that was cut short may lack millions of pages.
    pub const DAMAGE_COUNT_MAX: usize = 1000;

    pub(super) fn note(&mut self, error: Error, cost: impl Into<String>) {
        self.push(Corruption::of(error, cost));
    }

    /// Records a corrupted page once.
    pub(super) fn note_page(&mut self, error: Error, keyspace: &str, page_key: PageKey) {
        if self.corruption.iter().any(|known| known.page == Some(page_key)) {
            return;
        }
        let cost = cost_of(keyspace, page_key.page);
        self.push(Corruption { page: Some(page_key), ..Corruption::of(error, cost) });
    }

    fn push(&mut self, damage: Corruption) {
        if self.corruption.len() == CheckReport::DAMAGE_COUNT_MAX {
            self.unlisted += 1;
        } else if !self.corruption.iter().any(|known| known.what == damage.what && known.file == damage.file) {
            self.corruption.push(damage);
        }
    }
}

impl Store {
    pub(crate) fn check(&self, progress: &mut dyn FnMut(CheckProgress)) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        for error in &self.opening.passed_over {
            match self.is_salvage {
                true => report.note(error.clone(), "everything reached through it; the database does not open"),
                false => report.mended.push(Corruption::of(error.clone(), "nothing")),
            }
        }
        let space = &self.engine.space;
        {
            // While `page_tables` is locked, no checkpoint moves what is being checked.
            let mut page_tables = self.page_tables.lock();
            let bytes = page_tables.check(space, |error, cost| report.note(error, cost));
            report.extent_bytes += bytes;
            report.checkpoint = page_tables.superblock.timestamp;
            report.last = self.engine.log().durable();
        }
        match self.engine.log().verify() {
            Ok(verified) => {
                report.log_records = verified.record_count;
                for error in verified.corruption {
                    report
                        .note(error, "commits from this one on are lost if the database is not closed properly first");
                }
            }
            Err(error) => report.note(error, "the log could not be read to its end"),
        }
        let keyspaces: Vec<Arc<OpenKeyspace>> = self.keyspaces.all();
        let pages_total = keyspaces.iter().map(|open| open.tree.pages.table.page_count()).sum();
        for open in &keyspaces {
            report.keyspaces += 1;
            self.check_pages(open, pages_total, &mut report, progress);
            self.check_tree(open, &mut report);
        }
        progress(CheckProgress { pages_done: pages_total, pages_total });
        // By now the files may belong to another opening.
        space.check_open()?;
        Ok(report)
    }

    /// Checks every extent that the keyspace's page table refers to.
    fn check_pages(
        &self,
        open: &OpenKeyspace,
        pages_total: u64,
        report: &mut CheckReport,
        progress: &mut dyn FnMut(CheckProgress),
    ) {
        let pages = &open.tree.pages;
        let mut extents: Vec<(ExtentAddress, PageId)> = pages
            .table
            .iter()
            .filter_map(|(page, entry)| match entry {
                PageEntry::OnDisk(address) | PageEntry::Reading(address) => Some((address, page)),
                PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => {
                    let header = self.engine.pool.frames.header(frame);
                    let address = header.address();
                    (header.dirty().is_none() && !address.is_none()).then_some((address, page))
                }
                _ => None,
            })
            .collect();
        // Read them in disk order.
        extents.sort_unstable();
        let addresses: Vec<ExtentAddress> = extents.iter().map(|(address, _)| *address).collect();
        let read = self.engine.pool.read_past(&addresses, |index, bytes| {
            let (address, page) = extents[index];
            report.pages += 1;
            report.extent_bytes += address.length();
            if report.pages.is_multiple_of(256) {
                progress(CheckProgress { pages_done: report.pages, pages_total });
            }
            let checked = bytes.and_then(|bytes| check_page(&self.engine.space, pages.id, page, address, bytes));
            if let Err(error) = checked {
                // A page that was moved or changed in the meantime is not corrupted.
                if self.is_still_at(pages, page, address) {
                    report.note_page(error, open.name(), open.tree.page_key(page));
                }
            }
        });
        if let Err(error) = read {
            report.note(error, format!("the rest of the pages of keyspace {:?} were not checked", open.name()));
        }
    }

    fn is_still_at(&self, pages: &PageSpace, page: PageId, address: ExtentAddress) -> bool {
        match pages.table.load(page) {
            PageEntry::OnDisk(now) | PageEntry::Reading(now) => now == address,
            PageEntry::Leaf(frame) | PageEntry::Immutable(frame) => {
                let header = self.engine.pool.frames.header(frame);
                header.address() == address && header.dirty().is_none()
            }
            _ => false,
        }
    }

    /// Walks the whole tree. Adds the rows found to the counts that the keyspace keeps.
    fn check_tree(&self, open: &Arc<OpenKeyspace>, report: &mut CheckReport) {
        let found_count = |report: &CheckReport| report.corruption.len() as u64 + report.unlisted;
        let (kept, found_before) = (self.counts_of_check(open), found_count(report));
        self.walk_tree(open, kept.as_deref(), report);
        let Some(kept) = kept.filter(|_| found_count(report) == found_before) else { return };
        // All leaves are counted now, so this adds the inner nodes.
        let mut cursor = CountCursor::new(Vec::new(), None, kept.base().generation);
        if let Err(error) = ready(open.tree.count_on(WaitMode::Blocking, &kept, &mut cursor, None)) {
            log::debug!("counting the rows of keyspace {:?} during a check: {error}", open.name());
        }
    }

    /// Returns the counts that a check adds to: the kept ones, or new ones if the keyspace is large enough. A read-only
    /// database returns none, as it cannot write them for the next opening.
    fn counts_of_check(&self, open: &OpenKeyspace) -> Option<Arc<KeptCounts>> {
        if self.is_read_only {
            return None;
        }
        let is_large = || ready(open.tree.has_many_leaves(WaitMode::Blocking, &[], None)).unwrap_or(false);
        open.tree.counts.kept().or_else(|| is_large().then(|| self.engine.keep_counts(&open.tree)).flatten())
    }

    /// Checks that every key lies between the fences that lead to it, in order.
    fn walk_tree(&self, open: &Arc<OpenKeyspace>, kept: Option<&KeptCounts>, report: &mut CheckReport) {
        let mut lower: Vec<u8> = Vec::new();
        let mut ahead = ReadAhead::new(Direction::Forward);
        let mut keys_of_pages = KeysOfPages::of(report, open.tree.pages.id, open.name());
        loop {
            ahead.step(&self.engine, &open.tree, Target::At(&lower), (&Bound::Unbounded, &Bound::Unbounded));
            let found = open.tree.waiting(|_| {
                let page = open.tree.read_leaf(Target::At(&lower))?;
                let leaf = Leaf::new(&page);
                keys_of_pages.look_at(report, &page);
                Ok((page.page(), leaf.len() as u64, leaf.upper_fence().map(<[u8]>::to_vec)))
            });
            match found {
                Ok((page, rows, upper)) => {
                    report.rows += rows;
                    if let Some(kept) = kept {
                        open.tree.count_leaf(kept, page);
                    }
                    match upper {
                        Some(upper) => lower = upper,
                        None => return,
                    }
                }
                // The keyspace was dropped in the meantime.
                Err(Error::KeyspaceDropped { .. }) => return,
                Err(error) => {
                    // The fences in its parent show where the keys of the unreadable page end.
                    if let Ok(Some(found)) = ready(open.tree.unreadable(WaitMode::Blocking, &lower)) {
                        report.note_page(found.error, open.name(), open.tree.page_key(found.page));
                        keys_of_pages = KeysOfPages::of(report, open.tree.pages.id, open.name());
                        keys_of_pages.note(report, found.page, found.lower, found.upper.clone());
                        match found.upper {
                            Some(upper) => lower = upper,
                            None => return,
                        }
                        continue;
                    }
                    let cost = format!(
                        "rows of keyspace {:?} around key b\"{}\" can't be read",
                        open.name(),
                        lower.escape_ascii()
                    );
                    report.note(error, cost);
                    // Continue after the unreadable leaf if its neighbours show where its keys end.
                    match self.behind(open, &lower) {
                        Some(next) => lower = next,
                        None => return,
                    }
                }
            }
        }
    }

    /// Returns the first key after the unreadable leaf that covers `key`.
    fn behind(&self, open: &OpenKeyspace, key: &[u8]) -> Option<Vec<u8>> {
        let next = open.tree.upcoming(Target::At(key), Direction::Forward, 1).next;
        next.filter(|next| &next[..] > key)
    }
}

/// Verifies the extent of a page that was read: its kind, and its decompressed content.
pub(super) fn check_page(
    space: &Space,
    keyspace: KeyspaceId,
    page: PageId,
    address: ExtentAddress,
    bytes: &[u8],
) -> Result<(Kind, Vec<u8>)> {
    let expected = PageKey { keyspace, page };
    let (header, bytes) = crate::space::checkpoint::open_extent(space, address, bytes)
        .map_err(|error| name_page(space, error, expected, address))?;
    let damaged = |reason: &dyn std::fmt::Display| space.corrupted(&space.quoted_page(expected), address, reason);
    match header.kind {
        Kind::Leaf | Kind::Inner if header.page_key != expected => {
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

fn cost_of(keyspace: &str, page: PageId) -> String {
    format!(
        "the rows of page {page} of keyspace {keyspace:?}; if it is an inner node, those beneath it; the rest stays readable"
    )
}
