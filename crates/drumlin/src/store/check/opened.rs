//! Verifies an open database.

use std::ops::Bound;
use std::sync::Arc;

use super::kept::verify_kept_snapshots;
use super::pages::{KeysOfPages, ONLY_IN_RUNS, Verifier, has_removals};
use super::report::{CheckProgress, CheckReport};
use crate::counts::KeptCounts;
use crate::counts::count_range::CountCursor;
use crate::error::{Error, Result};
use crate::format::{KeyspaceId, PageId, Timestamp};
use crate::store::read_ahead::ReadAhead;
use crate::store::{OpenKeyspace, Store};
use crate::task::{WaitMode, ready};
use crate::tree::node::Leaf;
use crate::tree::{Direction, Target};

impl Store {
    pub(crate) fn check(&self, progress: &mut dyn FnMut(CheckProgress)) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        for error in &self.opening.skipped {
            match self.is_salvage {
                true => {
                    report
                        .report_corruption(error.clone(), "everything reached through it; the database does not open");
                }
                false => report.report_repaired(error.clone()),
            }
        }
        let space = &self.engine.space;
        {
            // While `page_tables` is locked, no checkpoint moves the extents that are being checked.
            let mut page_tables = self.lock_page_tables();
            let bytes = page_tables.check(space, |error, cost| report.report_corruption(error, cost));
            report.extent_bytes += bytes;
            report.checkpoint = page_tables.superblock.timestamp;
            report.last = self.engine.log().durable();
        }
        match self.engine.log().verify() {
            Ok(verified) => {
                report.log_records = verified.record_count;
                for error in verified.corruption {
                    report.report_corruption(
                        error,
                        "commits from this one on are lost if the database is not closed properly first",
                    );
                }
            }
            Err(error) => report.report_corruption(error, "the log could not be read to its end"),
        }
        let keyspaces: Vec<Arc<OpenKeyspace>> = self.keyspaces.all();
        let pages_total = keyspaces.iter().map(|open| open.tree.pages.table.page_count()).sum();
        let mut verifier = Verifier { pool: &self.engine.pool, pages_total, is_closed: false, report, progress };
        for open in &keyspaces {
            if let Err(error) = verifier.verify_pages(&open.tree.pages, &open.name(), true) {
                let cost = format!("the rest of the pages of keyspace {:?} were not checked", open.name());
                verifier.report.report_corruption(error, cost);
            }
            self.check_tree(open, &mut verifier.report);
        }
        verify_kept_snapshots(&mut verifier)?;
        (verifier.progress)(CheckProgress { pages_done: pages_total, pages_total });
        // The database may have been closed since the check began. If so, the files now belong to a different opening.
        space.check_open()?;
        Ok(verifier.report)
    }

    /// Walks the whole tree, and adds the rows that it counts in each leaf to the counts that the keyspace caches.
    fn check_tree(&self, open: &Arc<OpenKeyspace>, report: &mut CheckReport) {
        let found_count = |report: &CheckReport| report.corruption.len() as u64 + report.unlisted;
        let (kept, found_before) = (self.counts_of_check(open), found_count(report));
        self.walk_tree(open, kept.as_deref(), report);
        let Some(kept) = kept.filter(|_| found_count(report) == found_before) else { return };
        // The walk has counted all leaves. Counting the whole range now also stores the counts of the inner nodes.
        let mut cursor = CountCursor::new(Vec::new(), None, kept.base().generation);
        if let Err(error) = ready(open.tree.count_on(WaitMode::Blocking, &kept, &mut cursor, None)) {
            log::debug!("counting the rows of keyspace {:?} during a check: {error}", open.name());
        }
    }

    /// Returns the counts to which a check adds: the keyspace's own, or new ones if the keyspace has none and is large
    /// enough. Returns `None` for a read-only database, which cannot write counts for the next opening.
    fn counts_of_check(&self, open: &OpenKeyspace) -> Option<Arc<KeptCounts>> {
        if self.is_read_only {
            return None;
        }
        let is_large = || ready(open.tree.has_many_leaves(WaitMode::Blocking, &[], None)).unwrap_or(false);
        let begin = || open.tree.keep_counts(&self.engine.budget, false, || self.engine.clock.published());
        open.tree.counts.kept().or_else(|| if is_large() { begin() } else { None })
    }

    /// Reads every row, and checks that the keys are in order and that each lies between the fences of its leaf.
    fn walk_tree(&self, open: &Arc<OpenKeyspace>, kept: Option<&KeptCounts>, report: &mut CheckReport) {
        let mut lower: Vec<u8> = Vec::new();
        let mut ahead = ReadAhead::new(Direction::Forward);
        let mut keys_of_pages = KeysOfPages::of(report, open.tree.pages.id, &open.name());
        loop {
            ahead.step(
                &self.engine,
                &open.tree,
                PageId::ROOT,
                Target::At(&lower),
                (&Bound::Unbounded, &Bound::Unbounded),
            );
            let found = open.tree.pool.waiting_in_scan(|_| {
                let page = open.tree.read_leaf(Target::At(&lower))?;
                let leaf = Leaf::new(&page);
                keys_of_pages.look_at(report, &page);
                if has_removals(&leaf) {
                    let what = open.tree.pages.quoted_page(page.page());
                    let error = Error::corrupted(self.engine.space.path(), what, ONLY_IN_RUNS);
                    report.report_page(error, &open.name(), open.tree.page_key(page.page()));
                }
                if open.tree.has_runs_above(&leaf)
                    && let Some(piece) =
                        open.tree.piece(&leaf, Target::At(&lower), Direction::Forward, Timestamp(u64::MAX))?
                {
                    let rows = piece.row_count(&page);
                    return Ok((page.page(), rows as u64, piece.upper));
                }
                // A run may have been folded since the last step read a part of this leaf.
                let rows = leaf.len() - leaf.lower_bound(&lower);
                Ok((page.page(), rows as u64, leaf.upper_fence().map(<[u8]>::to_vec)))
            });
            match found {
                Ok((page, rows, upper)) => {
                    report.rows += if open.tree.pages.id == KeyspaceId::PREPARED { 0 } else { rows };
                    if let Some(kept) = kept {
                        open.tree.count_leaf(kept, page);
                    }
                    match upper {
                        Some(upper) => lower = upper,
                        None => return,
                    }
                }
                // The keyspace was dropped during the check.
                Err(Error::KeyspaceDropped { .. }) => return,
                Err(error) => {
                    // The fences in its parent show the key at which the unreadable page ends.
                    if let Ok(Some(found)) = ready(open.tree.unreadable(WaitMode::Blocking, &lower)) {
                        report.report_page(found.error, &open.name(), open.tree.page_key(found.page));
                        keys_of_pages = KeysOfPages::of(report, open.tree.pages.id, &open.name());
                        keys_of_pages.report_corruption(report, found.page, found.lower, found.upper.clone());
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
                    report.report_corruption(error, cost);
                    // Continue after the unreadable leaf if its neighbours show the key at which it ends.
                    match self.after_unreadable(open, &lower) {
                        Some(next) => lower = next,
                        None => return,
                    }
                }
            }
        }
    }

    /// Returns the first key after the unreadable leaf that covers `key`.
    fn after_unreadable(&self, open: &OpenKeyspace, key: &[u8]) -> Option<Vec<u8>> {
        let next = open.tree.upcoming(PageId::ROOT, Target::At(key), Direction::Forward, 1).next;
        next.filter(|next| &next[..] > key)
    }
}
