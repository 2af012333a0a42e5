//! Inner nodes: children, and the separators between them.
//!
//! Child `i` covers the keys from separator `i` (inclusive) to separator `i + 1` (exclusive). Child 0 has no separator:
//! its range begins at the node's lower fence. A child's entry contains only its page number. This makes nodes wide and
//! the tree low, so each descent reads few inner nodes.

use std::cmp::Ordering;
use std::ops::Deref;

use super::{Node, NodeMut, PageFull, SPLIT_WINDOW_SHARE};
use crate::format::node::{CHILD_BYTES, CHILD_PAGE_OFFSET, SLOT_BYTES, SLOTS_OFFSET};
use crate::format::{PageId, get_u32, put_u32};

/// Encodes a child's entry.
pub(super) fn entry_of(child: PageId) -> [u8; CHILD_BYTES] {
    assert!(child != PageId::NONE, "page 0 is nobody's child");
    let mut entry = [0; CHILD_BYTES];
    put_u32(&mut entry, CHILD_PAGE_OFFSET, child.0);
    entry
}

/// A read-only view of a page as an inner node.
#[derive(Clone, Copy)]
pub(crate) struct Inner<'a>(Node<'a>);

impl<'a> Deref for Inner<'a> {
    type Target = Node<'a>;

    #[inline]
    fn deref(&self) -> &Node<'a> {
        &self.0
    }
}

impl<'a> Inner<'a> {
    /// Views a page as an inner node.
    #[inline]
    pub(crate) fn new(page: &'a [u8]) -> Inner<'a> {
        let node = Node::new(page);
        debug_assert!(node.level() > 0, "a leaf taken for an inner node");
        Inner(node)
    }

    /// Returns the child that covers `key`. For keys outside the node's fences, returns the first or the last child.
    #[inline]
    pub(crate) fn child_for(&self, key: &[u8]) -> usize {
        let child = self.find(1, key).unwrap_or_else(|above| above - 1);
        debug_assert!(child == 0 || self.compare_key(child, key).is_le(), "a key lies before its child");
        debug_assert!(
            child + 1 >= self.len() || self.compare_key(child + 1, key).is_gt(),
            "a key lies after its child"
        );
        child
    }

    /// Returns the child with the greatest keys strictly below `key`, or the first child if the node has no such keys.
    #[inline]
    pub(crate) fn child_below(&self, key: &[u8]) -> usize {
        self.find(1, key).unwrap_or_else(|above| above) - 1
    }

    #[inline]
    fn entry(&self, index: usize) -> &'a [u8] {
        let slot = self.slot(index);
        let start = slot.row() + slot.suffix_bytes();
        &self.page[start..start + CHILD_BYTES]
    }

    /// Returns the page of a child.
    #[inline]
    pub(crate) fn child(&self, index: usize) -> PageId {
        let child = PageId(get_u32(self.entry(index), CHILD_PAGE_OFFSET));
        debug_assert!(child != PageId::NONE, "child {index} is page 0");
        child
    }

    /// Replaces the content of `separator` with the separator before child `index`, which must not be 0.
    pub(crate) fn separator_into(&self, index: usize, separator: &mut Vec<u8>) {
        assert!(index > 0, "child 0 has no separator");
        self.key_into(index, separator);
    }

    /// Replaces the content of `fence` with the lower fence of child `index`. Returns `false` if the child has no lower
    /// fence.
    pub(crate) fn child_lower_into(&self, index: usize, fence: &mut Vec<u8>) -> bool {
        if index > 0 {
            self.key_into(index, fence);
            return true;
        }
        fence.clear();
        self.lower_fence().inspect(|lower| fence.extend_from_slice(lower)).is_some()
    }

    /// Replaces the content of `fence` with the upper fence of child `index`. Returns `false` if the child has no upper
    /// fence.
    pub(crate) fn child_upper_into(&self, index: usize, fence: &mut Vec<u8>) -> bool {
        if index + 1 < self.len() {
            self.key_into(index + 1, fence);
            return true;
        }
        fence.clear();
        self.upper_fence().inspect(|upper| fence.extend_from_slice(upper)).is_some()
    }

    /// Returns `true` if the node has room for one more child with any separator of up to `separator_bytes` within its
    /// fences.
    #[inline]
    pub(crate) fn fits_separator(&self, separator_bytes: usize) -> bool {
        SLOT_BYTES + CHILD_BYTES + separator_bytes.saturating_sub(self.prefix_bytes()) <= self.free_bytes()
    }

    /// Returns the child at which to split the node. It becomes the right node's first child. The split is near the
    /// middle, by bytes, at a short separator, or at one end during a sorted load. The node must have at least two
    /// children.
    pub(crate) fn split_index(&self) -> usize {
        let last = self.len() - 1;
        assert!(last > 0, "an inner node with one child can't be split");
        let cost = |index: usize| self.cost_of(self.slot(index));
        // The separator before the right node's first child moves up to the parent, so it no longer needs space here.
        let right_cost = |at: usize, left_cost: usize| self.rows_cost() - left_cost - self.key_suffix(at).len();
        let fits = |at: usize, left_cost: usize| {
            let separator = self.key_suffix(at);
            // The child without a separator saves nothing if the prefix becomes longer. Each half has one.
            let left = self.side_bytes(self.lower_fence(), separator, at - 1, left_cost);
            let right = self.side_bytes(self.upper_fence(), separator, last - at, right_cost(at, left_cost));
            left <= self.page_bytes() && right <= self.page_bytes()
        };
        if self.loads_sorted(Ordering::Greater) && fits(last, self.rows_cost() - cost(last)) {
            return last;
        }
        if self.loads_sorted(Ordering::Less) && fits(1, cost(0)) {
            return 1;
        }
        let window = self.rows_cost() / SPLIT_WINDOW_SHARE;
        let mut best = None;
        let mut left_cost = 0;
        for at in 1..=last {
            left_cost += cost(at - 1);
            let imbalance = left_cost.abs_diff(right_cost(at, left_cost));
            let separator_bytes = self.key_suffix(at).len();
            // Within the window, the length of the separator decides; outside, the distance from the middle.
            let rank = if imbalance <= window { (0, separator_bytes, imbalance) } else { (imbalance, 0, 0) };
            let rank = (!fits(at, left_cost), rank, at);
            best = best.min(Some(rank)).or(Some(rank));
        }
        let (misfit, _, at) = best.expect("two children at least");
        assert!(!misfit, "an inner node that can't be split");
        at
    }

    /// Returns the size of this node merged with its right neighbour, including the separator between them.
    pub(crate) fn merged_bytes(&self, right: &Inner<'_>) -> usize {
        let prefix_bytes = self.merged_prefix_bytes(right);
        let separator = right.lower_fence().expect("a right neighbour has a lower fence");
        SLOTS_OFFSET
            + self.lower_fence().map_or(0, <[u8]>::len)
            + right.upper_fence().map_or(0, <[u8]>::len)
            + self.rows_cost_under(prefix_bytes)
            + right.rows_cost_under(prefix_bytes)
            + separator.len()
            - prefix_bytes
    }

    /// Returns `true` if the right neighbour's children fit into this node.
    pub(crate) fn can_merge(&self, right: &Inner<'_>) -> bool {
        self.merged_bytes(right) <= self.page_bytes()
    }
}

/// A mutable view of a page as an inner node.
pub(crate) struct InnerMut<'a>(NodeMut<'a>);

impl<'a> InnerMut<'a> {
    /// Views a page as a mutable inner node.
    #[inline]
    pub(crate) fn new(page: &'a mut [u8]) -> InnerMut<'a> {
        debug_assert!(Node::new(page).level() > 0, "a leaf taken for an inner node");
        InnerMut(NodeMut { page })
    }

    /// Turns a page into an inner node between two fences, with one child that covers the whole range.
    pub(crate) fn init(
        page: &'a mut [u8],
        level: u8,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        first_child: PageId,
    ) -> InnerMut<'a> {
        assert!(level > 0, "level 0 is that of leaves");
        let mut node = NodeMut { page };
        node.init(level, lower, upper);
        node.push_row(&[], &[], &entry_of(first_child), 0);
        InnerMut(node)
    }

    /// Returns a read-only view of the node.
    #[inline]
    pub(crate) fn as_inner(&self) -> Inner<'_> {
        Inner(self.0.view())
    }

    /// Inserts a child at `index`. It takes over the keys from `separator` upwards from child `index - 1`.
    pub(crate) fn insert_child(&mut self, index: usize, separator: &[u8], child: PageId) -> Result<(), PageFull> {
        let inner = self.as_inner();
        debug_assert!(inner.covers(separator) && inner.lower_fence() != Some(separator));
        debug_assert_eq!(inner.find(1, separator), Err(index), "a separator out of order");
        let keys = inner.len() - 1;
        let suffix = &separator[inner.prefix_bytes()..];
        let entry = self.0.open_row(index, suffix, CHILD_BYTES, 0)?;
        self.0.page[entry..entry + CHILD_BYTES].copy_from_slice(&entry_of(child));
        self.0.count_run(index - 1, keys);
        debug_assert!(self.as_inner().child(index) == child, "a child can't be read as it was put");
        Ok(())
    }

    /// Removes child `index`, which must not be 0, and the separator before it. Child `index - 1` takes over its range.
    pub(crate) fn remove_child(&mut self, index: usize) {
        assert!(index > 0, "child 0 has no left neighbour");
        self.0.remove_row(index);
    }

    /// Moves the children from `at`, which must not be 0, to `right`, an unused page of the same size. The separator
    /// before child `at` is removed from the node and stored in `separator`, for the parent.
    pub(crate) fn split_to(&mut self, at: usize, right: &mut [u8], separator: &mut Vec<u8>) {
        assert_eq!(right.len(), self.0.page.len());
        assert!(at > 0 && at < self.as_inner().len(), "an inner node without children");
        self.as_inner().separator_into(at, separator);
        self.0.rebuild(|left, copy| {
            let old = Inner::new(copy);
            let mut right = NodeMut { page: right };
            right.init(old.level(), Some(separator), old.upper_fence());
            right.push_row(&[], &[], old.entry(at), 0);
            right.push_rows(&old, at + 1..old.len());
            right.seal();
            left.init(old.level(), old.lower_fence(), Some(separator));
            left.push_row(&[], &[], old.entry(0), 0);
            left.push_rows(&old, 1..at);
            left.seal();
            debug_assert_eq!(left.view().len() + right.view().len(), old.len(), "a split loses children");
        });
    }

    /// Takes over the right neighbour's children and range.
    pub(crate) fn merge_from(&mut self, right: &Inner<'_>) -> Result<(), PageFull> {
        if !self.as_inner().can_merge(right) {
            return Err(PageFull);
        }
        self.0.rebuild(|left, copy| {
            let old = Inner::new(copy);
            let separator = right.lower_fence().expect("a right neighbour has a lower fence");
            assert!(old.upper_fence() == Some(separator) && old.level() == right.level(), "not neighbours");
            left.init(old.level(), old.lower_fence(), right.upper_fence());
            left.push_row(&[], &[], old.entry(0), 0);
            left.push_rows(&old, 1..old.len());
            let prefix_bytes = left.view().prefix_bytes();
            left.push_row(&[], &separator[prefix_bytes..], right.entry(0), 0);
            left.push_rows(right, 1..right.len());
            left.seal();
            debug_assert_eq!(left.view().len(), old.len() + right.len(), "a merge loses children");
            debug_assert_eq!(
                left.view().live_bytes(),
                old.merged_bytes(right),
                "a merge takes other bytes than planned"
            );
        });
        Ok(())
    }
}

impl std::fmt::Debug for Inner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut key = Vec::new();
        f.debug_map()
            .entries((0..self.len()).map(|index| {
                self.key_into(index, &mut key);
                (key.escape_ascii().to_string(), self.child(index))
            }))
            .finish()
    }
}
