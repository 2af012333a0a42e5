//! Reading the runs above a tree: a row, the rows of a part of a leaf's range, and what a fold puts into a leaf.
//! `space/runs.rs` has the rules.

use std::ops::Range;

use super::node::{EMPTY_LEAF, Leaf, Node, PackedRow, RowValue, common_bytes, pack, separator_between};
use super::{Direction, RESTARTS_MAX, Target, Tree, child_fences};
use crate::format::node::{LargeRef, SLOT_BYTES, SLOTS_OFFSET};
use crate::format::{PageId, Timestamp};
use crate::pool::{FrameRead, Needs, Stop};
use crate::space::PageEntry;
use crate::space::runs::{RemovedKeys, RemovedRange, Run};

/// The part of a leaf's range for which a read has consulted the runs.
pub(crate) struct Piece<'t> {
    pub(crate) page: PiecePage<'t>,
    /// The keys of the part: from the lower one, inclusive, to the upper one, exclusive.
    pub(crate) lower: Option<Vec<u8>>,
    pub(crate) upper: Option<Vec<u8>>,
}

impl Piece<'_> {
    /// Returns the number of rows; `of_tree` is the leaf in the tree.
    pub(crate) fn row_count(&self, of_tree: &[u8]) -> usize {
        rows_between(&self.page.leaf(of_tree), self.lower.as_deref(), self.upper.as_deref()).len()
    }
}

/// The page that has the rows of a [`Piece`], and maybe others. It is a leaf, possibly one without fences.
pub(crate) enum PiecePage<'t> {
    /// The runs have no rows here.
    OfTree,
    /// Runs remove all rows that the tree and older runs have here.
    Removed,
    /// The tree has no rows here.
    OfRun(FrameRead<'t>),
    Merged(Vec<u8>),
}

impl PiecePage<'_> {
    /// Returns the leaf; `of_tree` is the one in the tree.
    pub(crate) fn leaf<'l>(&'l self, of_tree: &'l [u8]) -> Leaf<'l> {
        match self {
            PiecePage::OfTree => Leaf::new(of_tree),
            PiecePage::Removed => Leaf::new(&EMPTY_LEAF),
            PiecePage::OfRun(read) => Leaf::new(read),
            PiecePage::Merged(page) => Leaf::new(page),
        }
    }
}

/// The newest change of a row in the runs above its leaf.
pub(crate) enum Above<'t> {
    /// The leaf of the run that has the row.
    Row(FrameRead<'t>),
    Removed,
}

/// A part of a leaf's range, and the rows that this part will have once the oldest unfolded run is folded into it.
pub(crate) struct FoldPlan {
    /// The timestamp of the run.
    pub(crate) run: Timestamp,
    /// The timestamp of the leaf. The leaf's rows do not change as long as it has this timestamp.
    pub(crate) newest: Timestamp,
    /// The fences of the part, which are those of the leaf if the part is the whole range.
    pub(crate) lower: Option<Vec<u8>>,
    pub(crate) upper: Option<Vec<u8>>,
    /// `true` if the leaf has to be split at the lower fence of the part, or at the upper one.
    pub(crate) splits_lower: bool,
    pub(crate) splits_upper: bool,
    /// The folded leaf.
    pub(crate) page: Vec<u8>,
    /// The indexes of the rows in `page` that come from the run.
    pub(crate) changed: Vec<usize>,
    /// The keys of the leaf's rows that the run removes, in order.
    pub(crate) removed: Vec<Vec<u8>>,
}

/// The next step of folding runs into the leaf that covers a key.
pub(crate) enum FoldStep {
    Fold(FoldPlan),
    /// All runs are folded into the leaf, which ends at this fence.
    Folded(Option<Vec<u8>>),
}

/// A leaf of a run, and the nodes above it whose last leaf it is.
pub(crate) struct RunEnd {
    pub(crate) pages: Vec<PageId>,
    /// The upper fence of the leaf.
    pub(crate) upper: Option<Vec<u8>>,
}

/// Copies of adjacent leaves of a run.
struct RunLeaves {
    pages: Vec<Vec<u8>>,
    /// The key before which their ranges end.
    end: Option<Vec<u8>>,
}

/// A row of one of several leaves.
#[derive(Clone, Copy)]
struct SourceRow {
    source: usize,
    index: usize,
}

/// Rows of several leaves in key order.
struct Merged<'l> {
    sources: Vec<Leaf<'l>>,
    rows: Vec<SourceRow>,
}

impl<'l> Merged<'l> {
    /// Merges rows of leaves. If several leaves have the same key, uses the row of the first of them.
    fn new(sources: Vec<(Leaf<'l>, Range<usize>)>) -> Merged<'l> {
        let (sources, mut ranges): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
        let mut keys: Vec<Vec<u8>> = vec![Vec::new(); sources.len()];
        let load = |source: usize, ranges: &[Range<usize>], keys: &mut [Vec<u8>]| {
            if !ranges[source].is_empty() {
                sources[source].key_into(ranges[source].start, &mut keys[source]);
            }
        };
        (0..sources.len()).for_each(|source| load(source, &ranges, &mut keys));
        let mut rows = Vec::with_capacity(ranges.iter().map(Range::len).sum());
        loop {
            let left = (0..sources.len()).filter(|&source| !ranges[source].is_empty());
            // The source with the least key, and the first one if several have it.
            let Some(source) = left.min_by(|left, right| keys[*left].cmp(&keys[*right])) else { break };
            rows.push(SourceRow { source, index: ranges[source].start });
            for other in (source..sources.len()).rev() {
                if !ranges[other].is_empty() && keys[other] == keys[source] {
                    ranges[other].start += 1;
                    if other != source {
                        load(other, &ranges, &mut keys);
                    }
                }
            }
            load(source, &ranges, &mut keys);
        }
        assert!(ranges.iter().all(Range::is_empty), "rows are left out of a merge");
        Merged { sources, rows }
    }

    /// Takes out the rows that remove older rows with their keys. Returns the keys of those for which the last source
    /// has such a row.
    fn take_removed(&mut self) -> Vec<Vec<u8>> {
        let (sources, older) = (&self.sources, self.sources.last().expect("a merge has sources"));
        let mut removed = Vec::new();
        self.rows.retain(|row| {
            let is_removal = is_removal(&sources[row.source], row.index);
            if is_removal {
                let mut key = Vec::new();
                sources[row.source].key_into(row.index, &mut key);
                if older.search(&key).is_ok() {
                    removed.push(key);
                }
            }
            !is_removal
        });
        debug_assert!(removed.is_sorted(), "removed keys are out of order");
        removed
    }

    /// Returns the size of a row in a node that cuts off this many bytes of its key.
    fn row_bytes(&self, row: SourceRow, prefix_bytes: usize) -> usize {
        let leaf = &self.sources[row.source];
        SLOT_BYTES + leaf.prefix().len() + leaf.row(row.index).0.len() - prefix_bytes
    }

    fn key_into(&self, row: SourceRow, key: &mut Vec<u8>) {
        self.sources[row.source].key_into(row.index, key);
    }

    fn key(&self, index: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.key_into(self.rows[index], &mut key);
        key
    }

    /// Chooses the rows, from `start` on, of a leaf that begins at `lower`. Returns the index after them, and the key
    /// at which the leaf ends, or `None` if it has all the rows. The rows end at `end`; `is_end` says that this is
    /// where the leaf in the tree ends too, so that no other rows follow.
    fn cut(
        &self,
        start: usize,
        lower: Option<&[u8]>,
        (end, is_end): (Option<&[u8]>, bool),
        prefix_bytes: usize,
    ) -> (usize, Option<Vec<u8>>) {
        assert!(start <= self.rows.len(), "a fold goes on after its last row");
        let page_bytes = self.sources[0].page_bytes();
        let fences_bytes =
            |upper: Option<&[u8]>| SLOTS_OFFSET + [lower, upper].iter().flatten().map(|key| key.len()).sum::<usize>();
        let sizes: Vec<usize> = self.rows[start..].iter().map(|row| self.row_bytes(*row, prefix_bytes)).collect();
        let total: usize = sizes.iter().sum();
        if fences_bytes(end) + total <= page_bytes {
            return (self.rows.len(), None);
        }
        // Divide the last rows evenly, and leave some room in the leaves before them.
        let goal = if is_end && total <= 2 * page_bytes { total / 2 } else { page_bytes / 8 * 7 };
        let (mut count, mut bytes) = (1, sizes[0]);
        while count + 1 < sizes.len() && bytes + sizes[count] <= goal {
            bytes += sizes[count];
            count += 1;
        }
        loop {
            assert!(count < sizes.len(), "a row does not fit into a leaf of its own");
            let boundary = separator_between(&self.key(start + count - 1), &self.key(start + count)).to_vec();
            if count == 1 || fences_bytes(Some(&boundary)) + bytes <= page_bytes {
                return (start + count, Some(boundary));
            }
            count -= 1;
            bytes -= sizes[count];
        }
    }

    /// Packs some of the rows into a leaf with these fences.
    fn pack(&self, page_bytes: usize, fences: (Option<&[u8]>, Option<&[u8]>), rows: Range<usize>) -> Vec<u8> {
        let mut page = vec![0; page_bytes];
        let (mut bytes, mut spans) = (Vec::new(), Vec::with_capacity(rows.len()));
        for row in &self.rows[rows.clone()] {
            let leaf = &self.sources[row.source];
            let start = bytes.len();
            bytes.extend_from_slice(leaf.prefix());
            bytes.extend_from_slice(leaf.key_suffix(row.index));
            spans.push(start..bytes.len());
        }
        let rows = self.rows[rows].iter().zip(spans).map(|(row, key)| {
            let (stored, suffix_bytes, value) = self.sources[row.source].row(row.index);
            let is_large = matches!(value, RowValue::Large(_));
            PackedRow { key: &bytes[key], rest: &stored[suffix_bytes..], is_large }
        });
        pack(&mut page, 0, fences, rows);
        page
    }
}

/// Returns the indexes of a leaf's rows with keys from `lower`, inclusive, to `upper`, exclusive.
fn rows_between(leaf: &Leaf<'_>, lower: Option<&[u8]>, upper: Option<&[u8]>) -> Range<usize> {
    let start = lower.map_or(0, |lower| leaf.lower_bound(lower));
    let end = upper.map_or(leaf.len(), |upper| leaf.lower_bound(upper));
    start..end.max(start)
}

/// Returns `true` if this row of a run removes the older row with its key.
pub(super) fn is_removal(leaf: &Leaf<'_>, index: usize) -> bool {
    assert!(index < leaf.len(), "row {index} of {}", leaf.len());
    matches!(leaf.value(index), RowValue::Large(LargeRef::REMOVED))
}

fn raise(lower: &mut Option<Vec<u8>>, to: Option<&[u8]>) {
    if let Some(to) = to
        && lower.as_deref().is_none_or(|lower| lower < to)
    {
        *lower = Some(to.to_vec());
    }
}

fn reduce(upper: &mut Option<Vec<u8>>, to: Option<&[u8]>) {
    if let Some(to) = to
        && upper.as_deref().is_none_or(|upper| to < upper)
    {
        *upper = Some(to.to_vec());
    }
}

impl RemovedKeys {
    /// Returns the index of the range that has the target, or of the first range after it, or else the number of
    /// ranges.
    fn index_at(&self, target: Target<'_>) -> usize {
        self.ranges().partition_point(|range| match (target, range.upper.as_deref()) {
            (_, None) => false,
            (Target::At(key), Some(upper)) => upper <= key,
            (Target::Below(key), Some(upper)) => upper < key,
            (Target::Last, Some(_)) => true,
        })
    }

    /// Returns the range that has the target.
    pub(crate) fn around(&self, target: Target<'_>) -> Option<&RemovedRange> {
        self.ranges().get(self.index_at(target)).filter(|range| match target {
            Target::At(key) => *range.lower <= *key,
            Target::Below(key) => *range.lower < *key,
            Target::Last => true,
        })
    }

    /// Returns the end of the range before the target and the beginning of the range after it. The target is in no
    /// range.
    fn gap_around(&self, target: Target<'_>) -> (Option<&[u8]>, Option<&[u8]>) {
        let next = self.index_at(target);
        let lower = next.checked_sub(1).and_then(|previous| self.ranges()[previous].upper.as_deref());
        (lower, self.ranges().get(next).map(|range| &range.lower[..]))
    }
}

/// Marks the page that an operation lacks as a page of a run, so that the next attempt begins at the root of the tree.
pub(super) fn of_run(stop: Stop) -> Stop {
    match stop {
        Stop::Needs(Needs::Page(pages, page)) => Needs::RunPage(pages, page).into(),
        stop => stop,
    }
}

/// A leaf of a run that a scan has reached.
pub(crate) struct RunLeaf {
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    /// `true` if the next leaf is in memory, or `None` if another parent has it.
    pub(crate) is_next_in_memory: Option<bool>,
}

impl RunLeaf {
    pub(crate) fn covers(&self, target: Target<'_>) -> bool {
        let (lower, upper) = (self.lower.as_deref().unwrap_or_default(), self.upper.as_deref());
        match target {
            Target::At(key) => lower <= key && upper.is_none_or(|upper| key < upper),
            Target::Below(key) => lower < key && upper.is_none_or(|upper| key <= upper),
            Target::Last => upper.is_none(),
        }
    }
}

impl Run {
    /// Returns `true` if the target is among the keys whose rows have been folded and freed.
    pub(crate) fn has_freed(&self, target: Target<'_>) -> bool {
        match target {
            Target::At(key) => key < &self.freed_to[..],
            Target::Below(key) => key <= &self.freed_to[..],
            Target::Last => false,
        }
    }
}

impl Tree {
    /// Returns the leaf of a run that covers the target. The caller holds the list of runs, and the run has not freed
    /// the target.
    fn read_run_leaf(&self, run: &Run, target: Target<'_>) -> Result<FrameRead<'_>, Stop> {
        for restart in 0..RESTARTS_MAX {
            match self.locate(run.root, target) {
                Ok(Some(located)) => {
                    if let Some(read) = self.read_leaf_at(located, target) {
                        return Ok(read);
                    }
                }
                Ok(None) => {}
                Err(stop) => return Err(of_run(stop)),
            }
            self.pause(restart).map_err(Stop::Error)?;
        }
        Err(Stop::Error(self.lost()))
    }

    /// Returns `true` if a run may have rows that are not folded into this latched leaf.
    #[inline]
    pub(crate) fn has_runs_above(&self, leaf: &Leaf<'_>) -> bool {
        self.pages.runs.newest() > leaf.newest()
    }

    /// Returns the newest change of the key in the runs that a reader at `at` sees and that are not folded into the
    /// key's latched leaf. The change replaces the row in the leaf.
    #[cold]
    pub(crate) fn row_above(&self, leaf: &Leaf<'_>, key: &[u8], at: Timestamp) -> Result<Option<Above<'_>>, Stop> {
        assert!(leaf.covers(key), "a key is looked for above another's leaf");
        let list = self.pages.runs.list();
        let above = list.iter().rev().filter(|run| leaf.newest() < run.timestamp && run.timestamp <= at);
        for run in above {
            if run.has_rows() && !run.has_freed(Target::At(key)) {
                let read = self.read_run_leaf(run, Target::At(key))?;
                let leaf = Leaf::new(&read);
                match leaf.search(key) {
                    Ok(index) if is_removal(&leaf, index) => return Ok(Some(Above::Removed)),
                    Ok(_) => return Ok(Some(Above::Row(read))),
                    Err(_) => {}
                }
            }
            if run.removed.covers(key) {
                return Ok(Some(Above::Removed));
            }
        }
        Ok(None)
    }

    /// Returns `true` if a run that was attached after `since` has a key from `first` on, up to but not including
    /// `end`, or removes such a key.
    pub(crate) fn have_runs_key(&self, since: Timestamp, first: &[u8], end: Option<&[u8]>) -> Result<bool, Stop> {
        let list = self.pages.runs.list();
        for run in list.iter().filter(|run| run.timestamp > since) {
            if run.removed.meets(first, end) {
                return Ok(true);
            }
            if run.has_rows() && self.next_key_in(run, first)?.is_some_and(|key| end.is_none_or(|end| key[..] < *end)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns `false` if no run that was attached after `since` has the key or removes it. If some rows of such a run
    /// are folded already, the answer may be `true` although the run does not have the key.
    pub(crate) fn may_runs_have(&self, since: Timestamp, key: &[u8]) -> Result<bool, Stop> {
        let list = self.pages.runs.list();
        if self.pages.runs.may_have_folded(since, key) {
            return Ok(true);
        }
        assert!(list.is_sorted_by(|left, right| left.timestamp < right.timestamp), "runs are out of order");
        for run in list.iter().filter(|run| run.timestamp > since) {
            let target = Target::At(key);
            if run.removed.covers(key) {
                return Ok(true);
            }
            if run.has_rows()
                && (run.has_freed(target) || Leaf::new(&self.read_run_leaf(run, target)?).search(key).is_ok())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the rows that a reader at `at` sees in that part of a latched leaf's range that includes the target and
    /// ends with a leaf of a run, or `None` if the leaf alone has these rows.
    #[cold]
    pub(crate) fn piece(
        &self,
        leaf: &Leaf<'_>,
        target: Target<'_>,
        direction: Direction,
        at: Timestamp,
    ) -> Result<Option<Piece<'_>>, Stop> {
        let mut lower = leaf.lower_fence().map(<[u8]>::to_vec);
        let mut upper = leaf.upper_fence().map(<[u8]>::to_vec);
        let (mut reads, mut is_removed) = (Vec::new(), false);
        {
            let list = self.pages.runs.list();
            if self.pages.load_gate.is_loaded_since(at) {
                return Ok(None);
            }
            let mut above = list.iter().rev().filter(|run| leaf.newest() < run.timestamp && run.timestamp <= at);
            let Some(newest) = above.next() else { return Ok(None) };
            for run in std::iter::once(newest).chain(above) {
                if run.has_rows() && !run.has_freed(target) {
                    let read = self.read_run_leaf(run, target)?;
                    raise(&mut lower, Node::new(&read).lower_fence());
                    reduce(&mut upper, Node::new(&read).upper_fence());
                    reads.push(read);
                } else if run.has_rows() && direction == Direction::Forward {
                    reduce(&mut upper, Some(&run.freed_to));
                }
                if let Some(range) = run.removed.around(target) {
                    // Older rows can't be seen here.
                    raise(&mut lower, Some(&range.lower));
                    reduce(&mut upper, range.upper.as_deref());
                    is_removed = true;
                    break;
                }
                let gap = run.removed.gap_around(target);
                raise(&mut lower, gap.0);
                reduce(&mut upper, gap.1);
            }
        }
        // Leave out the rows that the read has passed: they might fill the merged page.
        match (direction, target) {
            (Direction::Forward, Target::At(key)) => raise(&mut lower, Some(key)),
            (Direction::Backward, Target::At(key)) => reduce(&mut upper, Some(&[key, &[0]].concat())),
            (Direction::Backward, Target::Below(key)) => reduce(&mut upper, Some(key)),
            (Direction::Forward, Target::Below(_)) | (_, Target::Last) => {}
        }
        let rows_of = |leaf: &Leaf<'_>| rows_between(leaf, lower.as_deref(), upper.as_deref());
        let of_leaf = if is_removed { 0..0 } else { rows_of(leaf) };
        reads.retain(|read| !rows_of(&Leaf::new(read)).is_empty());
        let removes = |read: &FrameRead<'_>| {
            let leaf = Leaf::new(read);
            rows_of(&leaf).any(|index| is_removal(&leaf, index))
        };
        if of_leaf.is_empty() && reads.len() == 1 && !removes(&reads[0]) {
            let page = PiecePage::OfRun(reads.pop().expect("counted"));
            return Ok(Some(Piece { page, lower, upper }));
        }
        if reads.is_empty() {
            let page = if is_removed { PiecePage::Removed } else { PiecePage::OfTree };
            return Ok(Some(Piece { page, lower, upper }));
        }
        let mut sources: Vec<_> = reads.iter().map(|read| Leaf::new(read)).map(|run| (run, rows_of(&run))).collect();
        sources.push((*leaf, of_leaf));
        let mut merged = Merged::new(sources);
        merged.take_removed();
        if merged.rows.is_empty() {
            return Ok(Some(Piece { page: PiecePage::Removed, lower, upper }));
        }
        let (page_bytes, mut bytes, count) = (self.pages.page_bytes(), SLOTS_OFFSET, merged.rows.len());
        let mut fits = |row: &SourceRow| {
            bytes += merged.row_bytes(*row, 0);
            bytes <= page_bytes
        };
        let rows = match direction {
            Direction::Forward => 0..merged.rows.iter().take_while(|row| fits(row)).count(),
            Direction::Backward => count - merged.rows.iter().rev().take_while(|row| fits(row)).count()..count,
        };
        assert!(!rows.is_empty(), "a row does not fit into a page");
        if rows.end < count {
            upper = Some(merged.key(rows.end));
        }
        if rows.start > 0 {
            lower = Some(merged.key(rows.start));
        }
        let page = PiecePage::Merged(merged.pack(page_bytes, (None, None), rows));
        Ok(Some(Piece { page, lower, upper }))
    }

    /// If a removal that a reader at `at` sees hides all rows around the target, returns the end of these keys in the
    /// direction of the scan: the key at which they end, or before which they begin; `None` stands for the end of the
    /// keyspace. Reads no page: leaves into which the removal is not folded have no newer rows.
    #[cold]
    pub(crate) fn removed_around(
        &self,
        target: Target<'_>,
        direction: Direction,
        at: Timestamp,
    ) -> Option<Option<Vec<u8>>> {
        let list = self.pages.runs.list();
        let is_newest_first = |left: &&Run, right: &&Run| left.timestamp > right.timestamp;
        debug_assert!(list.iter().rev().is_sorted_by(is_newest_first), "runs are out of order");
        for run in list.iter().rev().filter(|run| run.timestamp <= at) {
            if run.has_rows() {
                return None;
            }
            let Some(range) = run.removed.around(target) else { continue };
            let end = self.pages.runs.with_folded_ranges(run.timestamp, |folded| {
                if folded.around(target).is_some() {
                    return None;
                }
                let (before, after) = folded.gap_around(target);
                let end = match direction {
                    Direction::Forward => range.upper.as_deref().into_iter().chain(after).min(),
                    Direction::Backward => Some(before.map_or(&range.lower[..], |before| before.max(&range.lower))),
                };
                Some(end.map(<[u8]>::to_vec))
            });
            return end.flatten();
        }
        None
    }

    /// Plans how the oldest run that is not folded into the key's leaf is folded into a part of the leaf's range that
    /// covers the key. Copies a few leaves.
    pub(crate) fn plan_fold(&self, key: &[u8]) -> Result<FoldStep, Stop> {
        let read = self.read_leaf(Target::At(key))?;
        let leaf = Leaf::new(&read);
        let list = self.pages.runs.list();
        let Some(run) = list.iter().find(|run| leaf.newest() < run.timestamp) else {
            return Ok(FoldStep::Folded(leaf.upper_fence().map(<[u8]>::to_vec)));
        };
        if !run.has_rows() {
            return Ok(FoldStep::Fold(self.plan_removal(&leaf, run)));
        }
        let mut from = leaf.lower_fence().unwrap_or_default().to_vec();
        if !run.has_freed(Target::At(key)) {
            // If the range has many rows of the run before the key, begin with the run's leaf that covers the key.
            let first = self.read_run_leaf(run, Target::At((&from[..]).max(&run.freed_to)))?;
            let first = Node::new(&first).upper_fence().map(<[u8]>::to_vec);
            if let Some(first) = first.filter(|first| first[..] <= *key) {
                let nearest = self.read_run_leaf(run, Target::At(key))?;
                let nearest = Node::new(&nearest).lower_fence().unwrap_or_default();
                if *nearest > first[..] {
                    from = nearest.to_vec();
                }
            }
        }
        let RunLeaves { pages: run_leaves, end } = self.run_leaves_from(run, &from, leaf.upper_fence())?;
        let run = run.timestamp;
        drop(list);
        let mut sources: Vec<_> = run_leaves.iter().map(|page| Leaf::new(page)).collect();
        sources.push(leaf);
        let between = |leaf: Leaf<'_>| rows_between(&leaf, Some(&from), end.as_deref());
        let mut merged = Merged::new(sources.into_iter().map(|leaf| (leaf, between(leaf))).collect());
        let mut removed = merged.take_removed();
        let prefix_bytes = match (leaf.lower_fence(), leaf.upper_fence()) {
            (Some(lower), Some(upper)) => common_bytes(lower, upper),
            _ => 0,
        };
        let is_end = end.as_deref() == leaf.upper_fence();
        let (mut start, mut lower) = (0, Some(from).filter(|from| leaf.lower_fence().is_some() || !from.is_empty()));
        loop {
            let (next, boundary) = merged.cut(start, lower.as_deref(), (end.as_deref(), is_end), prefix_bytes);
            let upper = boundary.or_else(|| end.clone());
            if upper.as_deref().is_none_or(|upper| key < upper) {
                let page = merged.pack(self.pages.page_bytes(), (lower.as_deref(), upper.as_deref()), start..next);
                let is_of_run = |index: &usize| merged.rows[start + index].source < run_leaves.len();
                let changed = (0..next - start).filter(is_of_run).collect();
                let splits_lower = lower.as_deref() != leaf.lower_fence();
                let splits_upper = upper.as_deref() != leaf.upper_fence();
                let newest = leaf.newest();
                let is_before =
                    |key: &Vec<u8>, fence: &Option<Vec<u8>>| fence.as_ref().is_some_and(|fence| key < fence);
                debug_assert!(removed.iter().all(|key| leaf.search(key).is_ok()), "a row is removed that is not there");
                removed.retain(|key| !is_before(key, &lower) && (upper.is_none() || is_before(key, &upper)));
                let plan = FoldPlan { run, newest, lower, upper, splits_lower, splits_upper, page, changed, removed };
                return Ok(FoldStep::Fold(plan));
            }
            assert!(next > start || upper > lower, "a fold stays where it is");
            (start, lower) = (next, upper);
        }
    }

    /// Plans how a removal is folded into a leaf.
    fn plan_removal(&self, leaf: &Leaf<'_>, run: &Run) -> FoldPlan {
        let (mut rows, mut removed) = (Vec::with_capacity(leaf.len()), Vec::new());
        let mut index = 0;
        for range in run.removed.ranges() {
            let of_range = rows_between(leaf, Some(&range.lower), range.upper.as_deref());
            rows.extend((index..of_range.start.max(index)).map(|index| SourceRow { source: 0, index }));
            index = index.max(of_range.end);
            for removed_index in of_range {
                let mut key = Vec::new();
                leaf.key_into(removed_index, &mut key);
                removed.push(key);
            }
        }
        rows.extend((index..leaf.len()).map(|index| SourceRow { source: 0, index }));
        assert_eq!(rows.len() + removed.len(), leaf.len(), "a removal loses rows of a leaf");
        let count = rows.len();
        let merged = Merged { sources: vec![*leaf], rows };
        let fences = (leaf.lower_fence(), leaf.upper_fence());
        FoldPlan {
            run: run.timestamp,
            newest: leaf.newest(),
            lower: fences.0.map(<[u8]>::to_vec),
            upper: fences.1.map(<[u8]>::to_vec),
            splits_lower: false,
            splits_upper: false,
            page: merged.pack(self.pages.page_bytes(), fences, 0..count),
            changed: Vec::new(),
            removed,
        }
    }

    /// Returns the first key of a run from `from` on.
    pub(crate) fn next_key_of_run(&self, run: &Run, from: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        let _list = self.pages.runs.list();
        self.next_key_in(run, from)
    }

    /// Like [`next_key_of_run`](Self::next_key_of_run), for a caller that holds the list of runs.
    fn next_key_in(&self, run: &Run, from: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        let mut from = from.max(&run.freed_to).to_vec();
        loop {
            let read = self.read_run_leaf(run, Target::At(&from))?;
            let leaf = Leaf::new(&read);
            let at = leaf.lower_bound(&from);
            if at < leaf.len() {
                leaf.key_into(at, &mut from);
                return Ok(Some(from));
            }
            let Some(upper) = leaf.upper_fence() else { return Ok(None) };
            from = upper.to_vec();
        }
    }

    /// Finds the leaf of a run that covers the target without reading it. Returns `None` if the root is a leaf, or if
    /// an inner node is not in memory. The caller holds the list of runs.
    pub(crate) fn run_leaf_at(&self, root: PageId, target: Target<'_>, direction: Direction) -> Option<RunLeaf> {
        let mut leaf = None;
        let _ = self.descend_from(root, target, |_, _, inner, child| {
            if inner.level() == 1 {
                let next = match direction {
                    Direction::Forward => Some(child + 1).filter(|next| *next < inner.len()),
                    Direction::Backward => child.checked_sub(1),
                };
                let is_in_memory = |next| matches!(self.pages.table.load(inner.child(next)), PageEntry::Leaf(_));
                let (lower, upper) = child_fences(inner, child);
                leaf = Some(RunLeaf { lower, upper, is_next_in_memory: next.map(is_in_memory) });
            }
        });
        leaf
    }

    /// Returns the first leaf of a run that is not freed, and the nodes above it that end with it.
    pub(crate) fn first_run_end(&self, run: &Run) -> Result<RunEnd, Stop> {
        for restart in 0..RESTARTS_MAX {
            let mut path = Vec::new();
            let mut lowest = None;
            let located = self.descend_from(run.root, Target::At(&run.freed_to), |page, _, inner, child| {
                path.push((page, inner.upper_fence().map(<[u8]>::to_vec)));
                if inner.level() == 1 {
                    lowest = Some((inner.child(child), child_fences(inner, child).1));
                }
            });
            let (leaf, upper) = match (lowest, located) {
                (Some(lowest), _) => lowest,
                (None, Ok(Some((page, _)))) => (page, None),
                (None, Ok(None)) => {
                    self.pause(restart).map_err(Stop::Error)?;
                    continue;
                }
                (None, Err(stop)) => return Err(stop),
            };
            assert!(leaf != PageId::ROOT, "a run leads to the root of the tree");
            let ends_here = path.into_iter().filter(|(_, end)| *end == upper).map(|(page, _)| page);
            return Ok(RunEnd { pages: std::iter::once(leaf).chain(ends_here).collect(), upper });
        }
        Err(Stop::Error(self.lost()))
    }

    /// Copies the leaves of a run that cover the keys from `from` on, up to `upper` or until they have two pages of
    /// rows. Also returns the key at which they end, which is at most `upper`.
    fn run_leaves_from(&self, run: &Run, from: &[u8], upper: Option<&[u8]>) -> Result<RunLeaves, Stop> {
        let mut from = from.max(&run.freed_to).to_vec();
        let (mut leaves, mut bytes) = (Vec::new(), 0);
        loop {
            if upper.is_some_and(|upper| *upper <= from[..]) {
                return Ok(RunLeaves { pages: leaves, end: upper.map(<[u8]>::to_vec) });
            }
            if bytes > 2 * self.pages.page_bytes() {
                return Ok(RunLeaves { pages: leaves, end: Some(from) });
            }
            let read = self.read_run_leaf(run, Target::At(&from))?;
            let leaf = Leaf::new(&read);
            bytes += rows_between(&leaf, Some(&from), upper)
                .map(|index| SLOT_BYTES + leaf.row(index).0.len())
                .sum::<usize>();
            leaves.push(read.to_vec());
            match leaf.upper_fence() {
                Some(fence) => from = fence.to_vec(),
                None => return Ok(RunLeaves { pages: leaves, end: upper.map(<[u8]>::to_vec) }),
            }
        }
    }
}
