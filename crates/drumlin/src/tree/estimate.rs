//! Estimating the number of rows of a range from the inner nodes above it.
//!
//! Two descents lead to the leaves at the two ends of the range, one level after the other. Where they part, the number
//! of subtrees between them is known. On each level below, the subtrees at the two ends are counted, and those in
//! between are assumed to have as many children as a few of them that are spread evenly over the range. (PostgreSQL and
//! InnoDB estimate ranges with similar dives into an index.)
//!
//! A leaf is never read from the device. Leaves in memory show how many rows a leaf of the range has, if their latches
//! are free. For the others stands the average of all leaves on disk
//! ([`leaves_on_disk`](crate::space::PageSpace::leaves_on_disk)), or of all leaves with which a run was attached.
//!
//! A row of a run that removes an older row counts as one row less. The rows of a run are in the tree too where it is
//! folded. The share of leaves into which it is not folded is that among the leaves in memory.

use std::sync::Arc;

use super::Tree;
use super::node::{Inner, Leaf};
use super::runs::{is_removal, of_run};
use crate::format::extent::{KIND_OFFSET, Kind};
use crate::format::{PageId, Timestamp};
use crate::pool::{ImmutablePages, Needs, Stop};
use crate::space::PageEntry;
use crate::space::runs::{RemovedKeys, RemovedRange, Run, RunRows};

/// The number of inner nodes of each level that show how many children the others have.
const INNER_SAMPLES: usize = 8;

/// The number of leaves that are looked at if they are in memory.
const LEAF_SAMPLES: usize = 32;

/// The nodes of one level of the tree that may hold rows of the range.
struct LevelNodes<'g> {
    first: Inner<'g>,
    /// The last node, if it is not the first.
    last: Option<Inner<'g>>,
    /// The estimated number of nodes between the first and the last, and some of these nodes.
    between: f64,
    samples: Vec<Inner<'g>>,
}

/// The children of [`LevelNodes`].
struct Children {
    first: PageId,
    last: Option<PageId>,
    between: f64,
    /// Some of the children between the first and the last, in key order.
    candidates: Vec<PageId>,
    /// `true` if the range begins before the first child's rows, and ends after the last child's.
    is_first_whole: bool,
    is_last_whole: bool,
}

/// Returns `count` of the pages, spread evenly.
fn spread(pages: &[PageId], count: usize) -> impl Iterator<Item = PageId> {
    let count = count.min(pages.len());
    (0..count).map(move |index| pages[(2 * index + 1) * pages.len() / (2 * count)])
}

impl LevelNodes<'_> {
    fn children(&self, lower: &[u8], upper: Option<&[u8]>) -> Children {
        let first = &self.first;
        let last = self.last.as_ref().unwrap_or(first);
        let from = first.child_for(lower);
        let to = upper.map_or(last.len() - 1, |upper| last.child_below(upper));
        let is_first_whole = match from {
            0 => first.lower_fence().map_or(lower.is_empty(), |fence| lower <= fence),
            _ => first.compare_key(from, lower).is_ge(),
        };
        let is_last_whole = upper.is_none_or(|upper| match to + 1 {
            next if next < last.len() => last.compare_key(next, upper).is_le(),
            _ => last.upper_fence().is_some_and(|fence| fence <= upper),
        });
        debug_assert!(from < first.len() && to < last.len(), "children {from} and {to} do not exist");
        let mut children = Children {
            first: first.child(from),
            last: None,
            between: 0.0,
            candidates: Vec::new(),
            is_first_whole,
            is_last_whole,
        };
        if self.last.is_none() {
            if from < to {
                children.candidates.extend((from + 1..to).map(|child| first.child(child)));
                children.between = children.candidates.len() as f64;
                children.last = Some(first.child(to));
            }
            return children;
        }
        children.last = Some(last.child(to));
        children.candidates.extend((from + 1..first.len()).map(|child| first.child(child)));
        for node in &self.samples {
            children.candidates.extend((0..node.len()).map(|child| node.child(child)));
        }
        children.candidates.extend((0..to).map(|child| last.child(child)));
        let fanout = match self.samples.len() {
            0 => (first.len() + last.len()) as f64 / 2.0,
            count => self.samples.iter().map(|node| node.len()).sum::<usize>() as f64 / count as f64,
        };
        children.between = (first.len() - 1 - from + to) as f64 + self.between * fanout;
        children
    }
}

/// A tree whose rows are estimated: that of the keyspace, or that of a run.
#[derive(Clone, Copy)]
struct Source {
    root: PageId,
    /// The average number of rows of a leaf that is not in memory, if it is known.
    average: Option<f64>,
    is_run: bool,
}

impl Source {
    /// Returns the number of the leaf's rows in the range. A row that marks a removal counts as -1, because the tree
    /// below still counts the row that it removes.
    fn rows_within(&self, leaf: &Leaf<'_>, lower: &[u8], upper: Option<&[u8]>) -> f64 {
        let start = leaf.lower_bound(lower);
        let end = upper.map_or(leaf.len(), |upper| leaf.lower_bound(upper)).max(start);
        let removals = if self.is_run { (start..end).filter(|index| is_removal(leaf, *index)).count() } else { 0 };
        (end - start) as f64 - 2.0 * removals as f64
    }
}

/// The maximum number of parts of a range that are estimated one by one.
const PART_COUNT_MAX: usize = 8;

impl Tree {
    /// Returns the estimated number of rows whose keys are at least `lower` and below `upper`. If all leaves of a short
    /// range are in memory, the number is exact, except for concurrent changes. Rows of runs count in addition to those
    /// of the tree, or reduce their number if they remove rows. O(log n).
    ///
    /// Lacks inner nodes that are not in memory, and the root, which may be a leaf.
    pub(crate) fn estimate(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<u64, Stop> {
        debug_assert!(upper.is_none_or(|upper| lower < upper), "the rows of an empty range are estimated");
        let mut rows = 0.0;
        let (tree, mut newest) = (self.source_of_tree(), Vec::new());
        for (lower, upper) in self.unremoved(lower, upper) {
            rows += self.restarting(|| self.try_estimate(tree, &lower, upper.as_deref(), &mut newest))?;
        }
        if self.pages.runs.is_empty() {
            return Ok(rows.round() as u64);
        }
        for run in self.pages.runs.list().iter().filter(|run| run.has_rows()) {
            debug_assert!(run.root != PageId::ROOT, "the rows of the tree are counted twice");
            let lower = lower.max(&run.freed_to);
            if upper.is_none_or(|upper| lower < upper) {
                let net = |written: &RunRows| written.row_count as f64 - 2.0 * written.removal_count as f64;
                let average = run.written.map(|written| net(&written) / written.leaf_count.max(1) as f64);
                let source = Source { root: run.root, average: average.or(tree.average), is_run: true };
                let of_run =
                    self.restarting(|| self.try_estimate(source, lower, upper, &mut Vec::new())).map_err(of_run)?;
                let unfolded_count = newest.iter().filter(|newest| **newest < run.timestamp).count();
                rows += if newest.is_empty() { of_run } else { of_run * unfolded_count as f64 / newest.len() as f64 };
            }
        }
        debug_assert!(rows.is_finite(), "{rows} rows are estimated");
        // Below 0 if rows are removed that are not there.
        Ok(rows.round().max(0.0) as u64)
    }

    /// Returns the keyspace's tree. Its average lacks the leaves of runs, unless some of them have been freed.
    fn source_of_tree(&self) -> Source {
        let (mut leaf_count, mut row_count) = self.pages.leaves_on_disk.get();
        if !self.pages.runs.is_empty() {
            let whole = |run: &Run| run.written.filter(|_| run.freed_to.is_empty());
            for written in self.pages.runs.list().iter().filter_map(whole) {
                leaf_count = leaf_count.saturating_sub(written.leaf_count);
                row_count = row_count.saturating_sub(written.row_count);
            }
        }
        let average = (leaf_count > 0).then(|| row_count as f64 / leaf_count as f64);
        Source { root: PageId::ROOT, average, is_run: false }
    }

    /// Returns the parts of a range outside of all unfolded removals, or the whole range if there are more than
    /// [`PART_COUNT_MAX`] parts.
    fn unremoved(&self, lower: &[u8], upper: Option<&[u8]>) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut removed = RemovedKeys::default();
        for run in self.pages.runs.all() {
            for range in run.removed.ranges() {
                let lower = (&range.lower).max(&run.freed_to).clone();
                removed.add(RemovedRange { lower, upper: range.upper.clone() });
            }
        }
        let (mut parts, mut from) = (Vec::new(), Some(lower.to_vec()));
        while let Some(start) = from.filter(|from| upper.is_none_or(|upper| **from < *upper)) {
            let next = removed.at_or_after(&start);
            let next = next.filter(|range| upper.is_none_or(|upper| *range.lower < *upper));
            let end = next.map(|range| range.lower.clone()).or_else(|| upper.map(<[u8]>::to_vec));
            if end.as_ref().is_none_or(|end| start < *end) {
                parts.push((start, end));
            }
            from = next.and_then(|range| range.upper.clone());
        }
        if parts.len() > PART_COUNT_MAX { vec![(lower.to_vec(), upper.map(<[u8]>::to_vec))] } else { parts }
    }

    /// Adds the newest commits of the leaves that are in memory to `newest`.
    fn try_estimate(
        &self,
        source: Source,
        lower: &[u8],
        upper: Option<&[u8]>,
        newest: &mut Vec<Timestamp>,
    ) -> Result<Option<f64>, Stop> {
        let root = source.root;
        let reclaim_guard = self.pool.reclaim_guard();
        let nodes = reclaim_guard.pages(&self.pages.table);
        if let PageEntry::Leaf(frame) = self.pages.table.load(root) {
            let leaf = self.pool.frames.peek(frame, self.page_key(root));
            let leaf = leaf.filter(|_| self.pages.table.shows(root, PageEntry::Leaf(frame)));
            return Ok(leaf.map(|leaf| {
                let leaf = Leaf::new(&leaf);
                newest.push(leaf.newest());
                source.rows_within(&leaf, lower, upper)
            }));
        }
        let Some(root) = self.inner_node(&nodes, root)? else { return Ok(None) };
        let mut level = LevelNodes { first: root, last: None, between: 0.0, samples: Vec::new() };
        loop {
            let children = level.children(lower, upper);
            if level.first.level() == 1 {
                return Ok(Some(self.rows_of_leaves(source, &children, lower, upper, newest)));
            }
            let below = level.first.level() - 1;
            let child = |page| Ok::<_, Stop>(self.inner_node(&nodes, page)?.filter(|node| node.level() == below));
            let Some(first) = child(children.first)? else { return Ok(None) };
            let last = match children.last {
                Some(page) => match child(page)? {
                    Some(last) => Some(last),
                    None => return Ok(None),
                },
                None => None,
            };
            let mut samples = Vec::new();
            for page in spread(&children.candidates, INNER_SAMPLES) {
                samples.extend(child(page)?);
            }
            level = LevelNodes { first, last, between: children.between, samples };
        }
    }

    /// Returns the inner node in this page, or `None` if the page is something else by now.
    fn inner_node<'g>(&self, nodes: &ImmutablePages<'g>, page: PageId) -> Result<Option<Inner<'g>>, Stop> {
        match nodes.load(page) {
            Ok((frame, bytes)) if bytes[KIND_OFFSET] == Kind::Inner as u8 => {
                self.pool.frames.header(frame).touch_inner();
                Ok(Some(Inner::new(bytes)))
            }
            Err(PageEntry::OnDisk(_) | PageEntry::Reading(_)) => Err(Needs::Page(Arc::clone(&self.pages), page).into()),
            _ => Ok(None),
        }
    }

    fn rows_of_leaves(
        &self,
        source: Source,
        leaves: &Children,
        lower: &[u8],
        upper: Option<&[u8]>,
        newest: &mut Vec<Timestamp>,
    ) -> f64 {
        let (mut seen, mut seen_rows) = (0, 0.0);
        let mut see = |page| {
            let (rows_in_leaf, rows, newest_commit) = self.peek_at_leaf(source, page, lower, upper)?;
            seen += 1;
            seen_rows += rows_in_leaf;
            newest.push(newest_commit);
            Some((rows_in_leaf, rows))
        };
        let (first, last) = (see(leaves.first), leaves.last.map(&mut see));
        let sampled = spread(&leaves.candidates, LEAF_SAMPLES).filter(|page| see(*page).is_some()).count();
        let wanted = leaves.candidates.len().min(LEAF_SAMPLES);
        let ends_seen = seen - sampled;
        let ends_rows = [first, last.flatten()].into_iter().flatten().map(|(rows, _)| rows).sum::<f64>();
        let written = source.average;
        // The leaves at the two ends are counted by themselves. They count as samples only if nothing else is known.
        let average = match (sampled, written) {
            (0, None) if ends_seen == 0 => self.rows_of_unknown_leaf(),
            (0, None) => ends_rows / ends_seen as f64,
            (0, Some(written)) => written,
            (sampled, written) => {
                let rows = seen_rows - ends_rows;
                let written = written.unwrap_or(rows / sampled as f64);
                (rows + (wanted - sampled) as f64 * written) / wanted as f64
            }
        };
        let end = |seen: Option<(f64, f64)>, is_whole: bool| match seen {
            Some((_, rows)) => rows,
            None => average * if is_whole { 1.0 } else { 0.5 },
        };
        match last {
            None => end(first, leaves.is_first_whole && leaves.is_last_whole),
            Some(last) => {
                end(first, leaves.is_first_whole) + end(last, leaves.is_last_whole) + leaves.between * average
            }
        }
    }

    /// Returns the number of rows of a leaf, how many of them are in the range, and its newest commit. Returns `None`
    /// if the leaf is not in memory, or if its latch is taken.
    fn peek_at_leaf(
        &self,
        source: Source,
        page: PageId,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Option<(f64, f64, Timestamp)> {
        let PageEntry::Leaf(frame) = self.pages.table.load(page) else { return None };
        let read = self.pool.frames.try_peek(frame, self.page_key(page))?;
        let leaf = self.pages.table.shows(page, PageEntry::Leaf(frame)).then(|| Leaf::new(&read))?;
        Some((source.rows_within(&leaf, &[], None), source.rows_within(&leaf, lower, upper), leaf.newest()))
    }

    /// Returns a guess for a keyspace none of whose leaves was ever written: leaves half full with rows of 64 bytes.
    fn rows_of_unknown_leaf(&self) -> f64 {
        self.pages.page_bytes() as f64 / 2.0 / 64.0
    }
}
