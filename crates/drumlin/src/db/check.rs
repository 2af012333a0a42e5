//! Verifying everything that is on disk.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use super::core::{Core, Named};
use super::range::Ahead;
use crate::error::{Error, Result};
use crate::format::extent::{self, Identity, Kind};
use crate::format::{KeyspaceId, PageId, Place};
use crate::space::{PageSpace, Word};
use crate::tree::Target;

/// What a check found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Pages verified, those of large values included.
    pub pages: u64,
    /// Rows met on the way through every tree.
    pub rows: u64,
    /// Bytes of extents read.
    pub extent_bytes: u64,
    /// Log records verified.
    pub log_records: u64,
    /// All damage found.
    pub damage: Vec<Damage>,
    /// What opening found damaged, could do without, and has written anew: a superblock beside one that is sound. A power cut
    /// while it was written leaves one; so does a medium that loses bytes.
    pub mended: Vec<Damage>,
}

/// One thing that is not as it was written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// The page, record or structure.
    pub what: String,
    /// What is wrong with it.
    pub flaw: String,
    /// What is lost by it.
    pub cost: String,
}

/// How far a check is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckProgress {
    /// Pages verified so far.
    pub pages_done: u64,
    /// Pages in all, about.
    pub pages_total: u64,
}

impl Damage {
    fn of(error: Error, cost: impl Into<String>) -> Damage {
        let (file, what, flaw) = match error {
            Error::Damaged { path, what, flaw } => (path, what, flaw),
            Error::Io { action, path, source } => (path, format!("{action} it"), source.to_string()),
            other => (PathBuf::new(), "it".to_owned(), other.to_string()),
        };
        Damage { file, what, flaw, cost: cost.into() }
    }
}

impl CheckReport {
    fn note(&mut self, error: Error, cost: impl Into<String>) {
        let damage = Damage::of(error, cost);
        if !self.damage.iter().any(|known| known.what == damage.what && known.file == damage.file) {
            self.damage.push(damage);
        }
    }
}

impl Core {
    pub(crate) fn check(&self, mut progress: impl FnMut(CheckProgress)) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        if let Some(error) = &self.passed_over {
            report.mended.push(Damage::of(error.clone(), "nothing"));
        }
        let space = &self.engine.space;
        {
            // No checkpoint moves what is being looked at.
            let mut base = self.base.lock();
            let bytes = base.check(space, |error, cost| report.note(error, cost));
            report.extent_bytes += bytes;
        }
        match self.engine.log().verify() {
            Ok(verified) => {
                report.log_records = verified.record_count;
                for error in verified.damage {
                    report
                        .note(error, "commits from this one on are lost if the database is not closed properly first");
                }
            }
            Err(error) => report.note(error, "the log could not be read to its end"),
        }
        let keyspaces: Vec<Arc<Named>> = self.keyspaces.read().values().cloned().collect();
        let pages_total = keyspaces.iter().map(|named| named.tree.pages.table.page_count()).sum();
        for named in &keyspaces {
            self.check_pages(named, pages_total, &mut report, &mut progress);
            self.check_tree(named, &mut report);
        }
        progress(CheckProgress { pages_done: pages_total, pages_total });
        Ok(report)
    }

    /// Every extent that the keyspace's table names.
    fn check_pages(
        &self,
        named: &Named,
        pages_total: u64,
        report: &mut CheckReport,
        progress: &mut impl FnMut(CheckProgress),
    ) {
        let pages = &named.tree.pages;
        let mut extents: Vec<(Place, PageId)> = pages
            .table
            .iter()
            .filter_map(|(page, word)| match word {
                Word::Disk(place) | Word::Reading(place) => Some((place, page)),
                Word::Leaf(frame) | Word::Fixed(frame) => {
                    let header = self.engine.pool.frames.header(frame);
                    let place = header.place();
                    (header.dirty().is_none() && !place.is_none()).then_some((place, page))
                }
                _ => None,
            })
            .collect();
        // In the order of the disk.
        extents.sort_unstable();
        let places: Vec<Place> = extents.iter().map(|(place, _)| *place).collect();
        let read = self.engine.pool.read_past(&places, |index, bytes| {
            let (place, page) = extents[index];
            report.pages += 1;
            report.extent_bytes += place.length();
            if report.pages.is_multiple_of(256) {
                progress(CheckProgress { pages_done: report.pages, pages_total });
            }
            if let Err(error) = bytes.and_then(|bytes| self.check_page(pages, page, place, bytes)) {
                // A page that was moved or changed meanwhile is not damaged.
                if self.is_still_at(pages, page, place) {
                    let cost = cost_of(&named.name, page, &error);
                    report.note(error, cost);
                }
            }
        });
        if let Err(error) = read {
            report.note(error, format!("the rest of the pages of keyspace {:?} were not looked at", named.name));
        }
    }

    fn is_still_at(&self, pages: &PageSpace, page: PageId, place: Place) -> bool {
        match pages.table.load(page) {
            Word::Disk(now) | Word::Reading(now) => now == place,
            Word::Leaf(frame) | Word::Fixed(frame) => {
                let header = self.engine.pool.frames.header(frame);
                header.place() == place && header.dirty().is_none()
            }
            _ => false,
        }
    }

    fn check_page(&self, pages: &PageSpace, page: PageId, place: Place, bytes: &[u8]) -> Result<()> {
        let space = &self.engine.space;
        let (header, bytes) = crate::space::checkpoint::open_extent(space, place, bytes)
            .map_err(|error| name_page(error, pages.id, page, place))?;
        let what = || format!("page {page} of keyspace {}", pages.id);
        let expected = Identity { keyspace: pages.id, page };
        match header.kind {
            Kind::Leaf | Kind::Inner if header.identity != expected => {
                Err(space.damaged(&what(), place, extent::Flaw::Identity(header.identity)))
            }
            Kind::Leaf | Kind::Inner => crate::tree::check_node(&bytes, header.kind == Kind::Leaf)
                .map_err(|flaw| space.damaged(&what(), place, flaw)),
            Kind::Value => Ok(()),
            _ => Err(space.damaged(&what(), place, extent::Flaw::Kind)),
        }
    }

    /// The way through the whole tree: every key is found where the fences say, in order.
    fn check_tree(&self, named: &Arc<Named>, report: &mut CheckReport) {
        let mut lower: Vec<u8> = Vec::new();
        let mut ahead = Ahead::new(true);
        loop {
            ahead.step(&self.engine, &named.tree, Target::At(&lower), (&Bound::Unbounded, &Bound::Unbounded));
            let found = named.tree.waiting(|| {
                let page = named.tree.read_leaf(Target::At(&lower))?;
                let leaf = crate::tree::node::Leaf::new(&page);
                Ok((leaf.len() as u64, leaf.upper_fence().map(<[u8]>::to_vec)))
            });
            match found {
                Ok((rows, upper)) => {
                    report.rows += rows;
                    match upper {
                        Some(upper) => lower = upper,
                        None => return,
                    }
                }
                // It was dropped meanwhile.
                Err(Error::KeyspaceDropped { .. }) => return,
                Err(error) => {
                    let cost = format!(
                        "rows of keyspace {:?} around key b\"{}\" can't be read",
                        named.name,
                        lower.escape_ascii()
                    );
                    report.note(error, cost);
                    // Go on behind what can't be read, if its neighbours tell where that is.
                    match self.behind(named, &lower) {
                        Some(next) => lower = next,
                        None => return,
                    }
                }
            }
        }
    }

    /// Where the leaf after the unreadable one that covers `key` begins.
    fn behind(&self, named: &Named, key: &[u8]) -> Option<Vec<u8>> {
        let next = named.tree.upcoming(Target::At(key), true, 1).next;
        next.filter(|next| &next[..] > key)
    }
}

fn name_page(error: Error, keyspace: KeyspaceId, page: PageId, place: Place) -> Error {
    match error {
        Error::Damaged { path, flaw, .. } => {
            Error::Damaged { path, what: format!("page {page} of keyspace {keyspace} at {place:?}"), flaw }
        }
        other => other,
    }
}

fn cost_of(keyspace: &str, page: PageId, _error: &Error) -> String {
    format!(
        "the rows of page {page} of keyspace {keyspace:?}; if it is an inner node, those beneath it; the rest stays readable"
    )
}
