//! Reduces the rows of a range with the help of its pages' states.
//!
//! The tree knows nothing about the reducer. It moves a cursor along the range and returns the next step ([`Piece`]):
//! states to combine, rows to read, or pages whose states can be made and cached. The caller performs the step without
//! holding any lock or latch, and asks for the next step. Keys that the cursor has passed are reduced as of the
//! snapshot, so their result stays valid if changes are folded afterwards. Changes are looked up in the list that all
//! readers share, never copied from it, because the list may be long.

use super::CountedTree;
use super::count_range::{StepError, begins_at, child_end};
use super::kept::{CountState, KeptCounts};
use super::page_states::{KeptReduction, Reductions, StateLevel, States};
use crate::error::Result;
use crate::format::extent::{KIND_OFFSET, Kind};
use crate::format::{PageId, Timestamp};
use crate::pool::ImmutablePages;
use crate::space::{FrameIndex, PageEntry};
use crate::task::WaitMode;
use crate::tree::node::{Inner, Node};

/// The maximum number of pages whose rows are read in one step.
const PAGES_AT_ONCE: usize = if cfg!(feature = "sim") { 4 } else { 64 };

/// The progress of a reduction along its range.
#[derive(Debug)]
pub(crate) struct ReduceCursor {
    /// The first key that the cursor has not passed.
    pub(crate) position: Vec<u8>,
    pub(crate) end: Option<Vec<u8>>,
    pub(crate) is_done: bool,
    /// The snapshot whose rows are reduced.
    pub(crate) snapshot: Timestamp,
    /// The changed key that the last lookup found.
    pub(crate) next_changed: Option<NextChanged>,
    /// The generation of counts in which `next_changed` was looked up.
    pub(crate) generation: u64,
    /// `true` if no states are made, because there is too little memory for them.
    pub(crate) only_reads: bool,
}

impl ReduceCursor {
    /// Passes all keys below `upper`, or the rest of the range if `upper` is `None`.
    pub(crate) fn pass(&mut self, upper: Option<&[u8]>) {
        match upper {
            Some(upper) if self.end.as_deref().is_none_or(|end| upper < end) => {
                assert!(*self.position < *upper, "a reduction goes back");
                self.position.clear();
                self.position.extend_from_slice(upper);
            }
            _ => self.is_done = true,
        }
    }
}

/// The result of a lookup: the first changed key at or after `from`. It is cached because it is valid for all pages up
/// to that key.
#[derive(Debug)]
pub(crate) struct NextChanged {
    from: Vec<u8>,
    /// `None` if no key was changed up to the end of the range.
    key: Option<Vec<u8>>,
}

/// Finds the first key that the reader's own transaction has changed, at or after the given key and within the reduced
/// range.
pub(crate) type OwnChanged<'o> = &'o (dyn Fn(&[u8]) -> Option<Vec<u8>> + Sync);

/// A page whose state can be computed and cached.
#[derive(Debug)]
pub(crate) struct Unreduced {
    pub(crate) page: PageId,
    /// The stamp to store along with the state.
    pub(crate) stamp: u64,
    pub(crate) level: StateLevel,
    /// The page's upper fence.
    pub(crate) upper: Option<Vec<u8>>,
}

/// The next step of a reduction.
#[derive(Debug)]
pub(crate) enum Piece {
    /// States of pages that lie entirely within the range. The cursor has passed them.
    States(States),
    /// Rows without a state: from the cursor's position up to this key, exclusive.
    Rows { upper: Option<Vec<u8>> },
    /// Adjacent pages without states, starting at key `lower`. Their states are made from their rows.
    Pages { lower: Vec<u8>, pages: Vec<Unreduced> },
    /// An inner node without a state, and the states of all its children.
    Node { page: PageId, stamp: u64, states: States },
}

/// One attempt to find the next step.
struct Look<'l> {
    tree: &'l CountedTree,
    kept: &'l KeptCounts,
    base: &'l CountState,
    reductions: &'l Reductions,
    reduction: &'l KeptReduction,
    own_changed: OwnChanged<'l>,
    nodes: &'l ImmutablePages<'l>,
}

/// An inner node that a descent has found.
struct FoundNode<'l> {
    page: PageId,
    frame: FrameIndex,
    inner: Inner<'l>,
}

impl<'l> Look<'l> {
    /// Returns the inner node in a page, or `None` if the page is a leaf. The node's level must be below `above`.
    fn node(&self, page: PageId, above: u8) -> Result<Option<FoundNode<'l>>, StepError> {
        match self.nodes.load(page) {
            Ok((frame, bytes)) => {
                if bytes[KIND_OFFSET] != Kind::Inner as u8 || Node::new(bytes).level() >= above {
                    return Err(StepError::Again);
                }
                self.tree.pool.frames.header(frame).touch_inner();
                Ok(Some(FoundNode { page, frame, inner: Inner::new(bytes) }))
            }
            Err(PageEntry::Leaf(_)) => Ok(None),
            Err(PageEntry::OnDisk(_) | PageEntry::Reading(_)) => Err(StepError::Pages(vec![page])),
            Err(_) => Err(StepError::Again),
        }
    }

    /// Fails unless the page table still shows the node. Success proves that the node's children had these fences when
    /// their stamps were read.
    fn check_shown(&self, node: &FoundNode<'_>) -> Result<(), StepError> {
        debug_assert!(node.page != PageId::NONE, "page 0 is no node");
        let is_shown = self.tree.pages.table.shows(node.page, PageEntry::Immutable(node.frame));
        if is_shown { Ok(()) } else { Err(StepError::Again) }
    }

    /// Returns the first key at or after `from` with a change that no state reflects: a listed change up to the
    /// snapshot, or one by the reader's own transaction.
    fn next_changed<'c>(&self, cursor: &'c mut ReduceCursor, from: &[u8]) -> Option<&'c [u8]> {
        let ReduceCursor { end, snapshot, next_changed, .. } = cursor;
        let is_known = next_changed.as_ref().is_some_and(|next: &NextChanged| {
            next.from[..] <= *from && next.key.as_ref().is_none_or(|key| *from <= key[..])
        });
        if !is_known {
            let listed = self.kept.first_changed(self.base, (from, end.as_deref()), *snapshot);
            let key = listed.into_iter().chain((self.own_changed)(from)).min();
            assert!(key.as_ref().is_none_or(|key| *from <= key[..]), "a changed key is before those looked at");
            *next_changed = Some(NextChanged { from: from.to_vec(), key });
        }
        next_changed.as_ref()?.key.as_deref()
    }

    fn is_changed(&self, cursor: &mut ReduceCursor, lower: &[u8], upper: Option<&[u8]>) -> bool {
        debug_assert!(upper.is_none_or(|upper| lower < upper), "a page without keys");
        self.next_changed(cursor, lower).is_some_and(|key| upper.is_none_or(|upper| key < upper))
    }

    /// Returns the lowest level of pages for which states are made. Pages of this level are reduced from their rows,
    /// and pages above it from their children. This is the leaf level, unless there is too little memory for more
    /// states of leaves.
    fn row_level(&self) -> u8 {
        u8::from(!self.reductions.has_leaf_memory(self.reduction))
    }

    fn next(&self, cursor: &mut ReduceCursor) -> Result<Piece, StepError> {
        let (mut page, mut level) = (PageId::ROOT, u8::MAX);
        loop {
            let Some(node) = self.node(page, level)? else {
                // Either the root is a leaf, or an outdated inner node pointed to a page that is a leaf by now.
                if page != PageId::ROOT {
                    return Err(StepError::Again);
                }
                return Ok(Piece::Rows { upper: None });
            };
            level = node.inner.level();
            let child = node.inner.child_for(&cursor.position);
            if begins_at(&node.inner, child, &cursor.position)
                && let Some(piece) = self.pass_children(&node, child, cursor)?
            {
                return Ok(piece);
            }
            if level == 1 {
                return self.rows_from(&node, child, cursor);
            }
            page = node.inner.child(child);
        }
    }

    /// Returns the states of the children, starting with `first`, that lie entirely within the range, up to the first
    /// child without a usable state. If `first` itself has no usable state, returns the first step to make one, or
    /// `None` if the search has to descend into that child.
    fn pass_children(
        &self,
        node: &FoundNode<'l>,
        first: usize,
        cursor: &mut ReduceCursor,
    ) -> Result<Option<Piece>, StepError> {
        let inner = &node.inner;
        let position = cursor.position.clone();
        let child_end = child_end(inner, cursor.end.as_deref());
        // The children before the one with the next changed row are unchanged since the base.
        let unchanged = match self.next_changed(cursor, &position) {
            Some(key) if inner.upper_fence().is_none_or(|upper| key < upper) => child_end.min(inner.child_for(key)),
            _ => child_end,
        };
        let mut states = States::with_capacity(unchanged.saturating_sub(first));
        let pages = (first..unchanged).map(|child| inner.child(child));
        let is_missing = self.reductions.states(self.reduction, pages, &mut states) < unchanged.saturating_sub(first);
        assert!(first + states.len() <= unchanged.max(first), "a changed page is passed by its state");
        if states.len() > 0 {
            self.check_shown(node)?;
            crate::coverage::mark!("a reduction passed pages by their states");
            let mut upper = Vec::new();
            let has_upper = inner.child_upper_into(first + states.len() - 1, &mut upper);
            cursor.pass(has_upper.then_some(&upper[..]));
            return Ok(Some(Piece::States(states)));
        }
        if is_missing && !cursor.only_reads && inner.level() > self.row_level() {
            return self.unreduced(node, first, child_end, cursor).map(Some);
        }
        Ok(None)
    }

    /// Returns the first step to make the state of a child.
    fn unreduced(
        &self,
        node: &FoundNode<'l>,
        child: usize,
        child_end: usize,
        cursor: &mut ReduceCursor,
    ) -> Result<Piece, StepError> {
        assert!(child < child_end && node.inner.level() > 0, "child {child} of {child_end} is to be reduced");
        if node.inner.level() == self.row_level() + 1 {
            return self.unreduced_pages(node, child, child_end, cursor);
        }
        let page = node.inner.child(child);
        let stamp = self.kept.stamp(page).ok_or(StepError::Again)?;
        let Some(below) = self.node(page, node.inner.level())? else { return Err(StepError::Again) };
        self.check_shown(node)?;
        let child_count = below.inner.len();
        let mut states = States::with_capacity(child_count);
        let children = (0..child_count).map(|child| below.inner.child(child));
        let kept_count = self.reductions.states(self.reduction, children, &mut states);
        if kept_count < child_count {
            return self.unreduced(&below, kept_count, child_count, cursor);
        }
        self.check_shown(&below)?;
        Ok(Piece::Node { page, stamp, states })
    }

    /// Returns adjacent children that have neither states nor changed rows, so that states can be made from their rows.
    fn unreduced_pages(
        &self,
        node: &FoundNode<'l>,
        first: usize,
        child_end: usize,
        cursor: &mut ReduceCursor,
    ) -> Result<Piece, StepError> {
        let inner = &node.inner;
        let (at_once, level) =
            if inner.level() == 1 { (PAGES_AT_ONCE, StateLevel::Leaf) } else { (1, StateLevel::Inner) };
        let mut lower = Vec::new();
        inner.child_lower_into(first, &mut lower);
        let (mut from, mut pages) = (lower.clone(), Vec::new());
        for child in (first..child_end).take(at_once) {
            let mut upper = Vec::new();
            let upper = inner.child_upper_into(child, &mut upper).then_some(upper);
            let page = inner.child(child);
            let Some(stamp) = self.kept.stamp(page) else { break };
            let is_kept = child > first && self.reductions.has_state(self.reduction, page);
            if is_kept || self.is_changed(cursor, &from, upper.as_deref()) {
                break;
            }
            from.clear();
            upper.iter().for_each(|upper| from.extend_from_slice(upper));
            pages.push(Unreduced { page, stamp, level, upper });
        }
        assert!(pages.len() <= at_once, "{} pages at once", pages.len());
        self.check_shown(node)?;
        if pages.is_empty() { Err(StepError::Again) } else { Ok(Piece::Pages { lower, pages }) }
    }

    /// Returns the rows from the cursor's position up to the first leaf that has a usable state or could get one.
    fn rows_from(&self, node: &FoundNode<'l>, first: usize, cursor: &mut ReduceCursor) -> Result<Piece, StepError> {
        assert!(node.inner.level() == 1, "rows of a node of level {}", node.inner.level());
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        let mut has_upper = node.inner.child_upper_into(first, &mut upper);
        let makes_states = !cursor.only_reads && self.row_level() == 0;
        for child in (first + 1..node.inner.len()).take(PAGES_AT_ONCE - 1) {
            let is_after = cursor.end.as_ref().is_some_and(|end| *end <= upper);
            std::mem::swap(&mut lower, &mut upper);
            has_upper = node.inner.child_upper_into(child, &mut upper);
            let page = node.inner.child(child);
            let may_have_state = makes_states || self.reductions.has_state(self.reduction, page);
            if is_after || may_have_state && !self.is_changed(cursor, &lower, has_upper.then_some(&upper[..])) {
                std::mem::swap(&mut lower, &mut upper);
                has_upper = true;
                break;
            }
        }
        debug_assert!(!has_upper || upper > cursor.position, "rows that were passed are read");
        self.check_shown(node)?;
        Ok(Piece::Rows { upper: has_upper.then_some(upper) })
    }
}

impl CountedTree {
    /// Returns the next step of a reduction, or `None` if the counts have ended, or if changes have been folded since
    /// the cursor last looked up changed keys.
    pub(crate) async fn next_piece(
        &self,
        mode: WaitMode<'_>,
        kept: &KeptCounts,
        reduction: &KeptReduction,
        own_changed: OwnChanged<'_>,
        cursor: &mut ReduceCursor,
    ) -> Result<Option<Piece>> {
        assert!(!cursor.is_done, "a reduction continues after its end");
        let reductions = kept.reductions().expect("a reduction is kept of none");
        self.walking(mode, || {
            let reclaim_guard = self.pool.reclaim_guard();
            let nodes = reclaim_guard.pages(&self.pages.table);
            let base = kept.base();
            if base.generation != cursor.generation || kept.invalidated() {
                return Err(StepError::Folded);
            }
            Look { tree: self, kept, base: &base, reductions, reduction, own_changed, nodes: &nodes }.next(cursor)
        })
        .await
    }
}
