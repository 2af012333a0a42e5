//! Leaves: rows of keys and values.

use std::cmp::Ordering;
use std::ops::{Deref, Range};

use super::{Node, NodeMut, PageFull, SPLIT_WINDOW_SHARE, Slot, head_of, separator_between, slot_offset};
use crate::format::node::{
    HEAP_BYTES_OFFSET, LARGE_REF_BYTES, LargeRef, SLOT_BYTES, SLOT_LARGE_FLAG, SLOT_SUFFIX_BYTES_OFFSET, SLOTS_OFFSET,
    VALUE_LENGTH_BYTES, inline_bytes_max, key_bytes_max,
};
use crate::format::{Timestamp, put_u16};

/// A row's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowValue<'a> {
    /// The value itself, stored in the leaf.
    Inline(&'a [u8]),
    /// A reference to a large value.
    Large(LargeRef),
}

impl RowValue<'_> {
    /// Returns the number of bytes that the value takes up in a leaf.
    #[inline]
    pub(crate) fn stored_bytes(&self) -> usize {
        match self {
            RowValue::Inline(value) => value.len(),
            RowValue::Large(_) => LARGE_REF_BYTES,
        }
    }

    /// Calls `body` with the bytes to store and the flag to set in the slot.
    #[inline]
    fn with_bytes<R>(&self, body: impl FnOnce(&[u8], u16) -> R) -> R {
        match self {
            RowValue::Inline(value) => body(value, 0),
            RowValue::Large(reference) => body(&reference.to_bytes(), SLOT_LARGE_FLAG),
        }
    }
}

/// A change that a leaf has no room for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeafChange<'k> {
    /// Insert a row, which becomes row `index`.
    Insert { index: usize, key: &'k [u8], value_bytes: usize },
    /// Replace the value of row `index` with a longer one.
    Replace { index: usize, value_bytes: usize },
}

/// A plan to split a leaf for a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Split {
    /// The first row that moves to the right leaf: 0 if all rows move, or the number of rows if all stay.
    pub(crate) at: usize,
    /// The new fence, which becomes the left leaf's upper fence and the right leaf's lower fence.
    pub(crate) separator: Vec<u8>,
    /// `true` if the inserted or changed row belongs to the right leaf.
    pub(crate) goes_right: bool,
}

/// A read-only view of a page as a leaf.
#[derive(Clone, Copy)]
pub(crate) struct Leaf<'a>(Node<'a>);

impl<'a> Deref for Leaf<'a> {
    type Target = Node<'a>;

    #[inline]
    fn deref(&self) -> &Node<'a> {
        &self.0
    }
}

/// Decodes the reference that a row stores in place of a large value.
pub(crate) fn large_ref(value: &[u8]) -> LargeRef {
    LargeRef::from_bytes(value.first_chunk().expect("a reference is 24 bytes long"))
}

impl<'a> Leaf<'a> {
    /// Views a page as a leaf.
    #[inline]
    pub(crate) fn new(page: &'a [u8]) -> Leaf<'a> {
        let node = Node::new(page);
        debug_assert_eq!(node.level(), 0, "an inner node taken for a leaf");
        Leaf(node)
    }

    /// Searches for a key. Returns the index of its row or, as an error, the index at which the row would be inserted.
    /// Works for any key.
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let found = self.find(0, key);
        let is_after = |index: usize| index == 0 || self.compare_key(index - 1, key).is_lt();
        let is_before = |index: usize| index == self.len() || self.compare_key(index, key).is_gt();
        debug_assert!(
            found.is_ok() || found.is_err_and(|index| is_after(index) && is_before(index)),
            "a key is missed"
        );
        found
    }

    /// Returns the offsets of the rows that a search for the key would read, without reading the rows: the first row,
    /// which contains the shared bytes, and the row that may have the key.
    #[inline]
    pub(crate) fn compared_rows(&self, key: &[u8]) -> Option<[usize; 2]> {
        let rest = key.get(self.prefix_bytes() + self.shared_bytes()..)?;
        let row = |index: usize| self.slots().get(index).map(|slot| Slot(u64::from_le_bytes(*slot)).row());
        let rows = [row(0)?, row(self.head_lower_bound(0, head_of(rest)))?];
        debug_assert!(rows.iter().all(|row| (self.heap_start()..self.page_bytes()).contains(row)), "rows at {rows:?}");
        Some(rows)
    }

    /// Returns the first row whose key is at least `key`. Works for any key.
    #[inline]
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        self.search(key).unwrap_or_else(|index| index)
    }

    #[inline]
    fn value_of(&self, slot: Slot) -> RowValue<'a> {
        let value = &self.rest_of(slot)[VALUE_LENGTH_BYTES..];
        if slot.is_large() { RowValue::Large(large_ref(value)) } else { RowValue::Inline(value) }
    }

    /// Returns the value of a row.
    #[inline]
    pub(crate) fn value(&self, index: usize) -> RowValue<'a> {
        self.value_of(self.slot(index))
    }

    /// Returns a row's bytes as stored in the leaf, the length of its suffix, and its value. The bytes begin with the
    /// suffix and end with the value, if it is inline.
    #[inline]
    pub(crate) fn row(&self, index: usize) -> (&'a [u8], usize, RowValue<'a>) {
        let slot = self.slot(index);
        let bytes = &self.page[slot.row()..slot.row() + slot.suffix_bytes() + self.rest_bytes_of(slot)];
        (bytes, slot.suffix_bytes(), self.value_of(slot))
    }

    /// Returns the location of a row in the [heap](Node::heap): the range of its key without the node's prefix, the
    /// range of its value, and `true` if the value is a [reference](large_ref).
    #[inline]
    pub(crate) fn row_in_heap(&self, index: usize) -> (Range<usize>, Range<usize>, bool) {
        let slot = self.slot(index);
        let start = slot.row() - self.heap_start();
        let suffix_end = start + slot.suffix_bytes();
        let end = suffix_end + self.rest_bytes_of(slot);
        (start..suffix_end, suffix_end + VALUE_LENGTH_BYTES..end, slot.is_large())
    }

    /// Returns the maximum length of an inline value in row `index`.
    fn inline_bytes_max(&self, index: usize) -> usize {
        debug_assert!(index < self.len(), "there is no row {index}");
        inline_bytes_max(self.page_bytes(), self.prefix_bytes() + self.slot(index).suffix_bytes())
    }

    /// Returns the number of bytes that a row with a key and a value of these lengths takes up.
    #[inline]
    pub(crate) fn row_cost(&self, key_bytes: usize, value_bytes: usize) -> usize {
        SLOT_BYTES + key_bytes - self.prefix_bytes() + VALUE_LENGTH_BYTES + value_bytes
    }

    /// Returns the range of the page to which new rows of `rows_bytes` in total will be written, unless the heap has to
    /// be compacted.
    pub(crate) fn upcoming_bytes(&self, rows_bytes: usize) -> Range<usize> {
        let end = self.heap_start();
        debug_assert!(self.slots_end() <= end, "slots and heap overlap");
        end - rows_bytes.min(self.gap_bytes())..end
    }

    /// Returns the size of this leaf merged with its right neighbour.
    pub(crate) fn merged_bytes(&self, right: &Leaf<'_>) -> usize {
        let prefix_bytes = self.merged_prefix_bytes(right);
        SLOTS_OFFSET
            + self.lower_fence().map_or(0, <[u8]>::len)
            + right.upper_fence().map_or(0, <[u8]>::len)
            + self.rows_cost_under(prefix_bytes)
            + right.rows_cost_under(prefix_bytes)
    }

    /// Returns `true` if the right neighbour's rows fit into this leaf.
    pub(crate) fn can_merge(&self, right: &Leaf<'_>) -> bool {
        self.merged_bytes(right) <= self.page_bytes()
    }

    /// Plans the split of a leaf that has no room for `change`.
    ///
    /// The split is near the middle, by bytes, at a short separator, or at one end during a sorted load. After
    /// [`LeafMut::split_to`], the change is retried in the leaf that now covers its key. If rows are so long that the
    /// change still does not fit, that leaf is split too. The leaf has fewer rows each time, and a row always fits into
    /// a leaf of its own.
    pub(crate) fn split_for(&self, change: &LeafChange<'_>) -> Split {
        let plan = SplitPlan::new(self, change);
        let boundary = plan.choose();
        let (at, goes_right) = plan.outcome(boundary);
        let separator = [self.prefix(), plan.separator_suffix(boundary)].concat();
        debug_assert!(self.covers(&separator), "a leaf is split outside of its fences");
        debug_assert!(self.lower_fence() != Some(&separator[..]), "a leaf is split into itself and nothing");
        Split { at, separator, goes_right }
    }
}

/// The rows of a leaf as they would be after a change. Boundary `b` is just before row `b`.
struct SplitPlan<'l> {
    leaf: Leaf<'l>,
    /// The index of the row that is inserted or replaced.
    index: usize,
    /// The suffix of the inserted row.
    inserted: Option<&'l [u8]>,
    /// The number of bytes that the changed row takes up, before and after the change.
    old_cost: usize,
    new_cost: usize,
    rows: usize,
    rows_cost: usize,
}

impl<'l> SplitPlan<'l> {
    fn new(leaf: &Leaf<'l>, change: &LeafChange<'l>) -> SplitPlan<'l> {
        let (index, inserted, old_cost, new_cost) = match *change {
            LeafChange::Insert { index, key, value_bytes } => {
                debug_assert_eq!(leaf.search(key), Err(index), "a split is planned for a row out of order");
                (index, Some(&key[leaf.prefix_bytes()..]), 0, leaf.row_cost(key.len(), value_bytes))
            }
            LeafChange::Replace { index, value_bytes } => {
                let slot = leaf.slot(index);
                let new_cost = SLOT_BYTES + slot.suffix_bytes() + VALUE_LENGTH_BYTES + value_bytes;
                (index, None, leaf.cost_of(slot), new_cost)
            }
        };
        let rows = leaf.len() + usize::from(inserted.is_some());
        assert!(rows > 1, "a row does not fit into a leaf of its own");
        let rows_cost = leaf.rows_cost() - old_cost + new_cost;
        SplitPlan { leaf: *leaf, index, inserted, old_cost, new_cost, rows, rows_cost }
    }

    /// Returns the index that row `index` has in the leaf, or `None` if it is the inserted row.
    fn leaf_row(&self, index: usize) -> Option<usize> {
        match self.inserted {
            Some(_) if index == self.index => None,
            Some(_) if index > self.index => Some(index - 1),
            _ => Some(index),
        }
    }

    fn suffix(&self, index: usize) -> &'l [u8] {
        match self.leaf_row(index) {
            Some(row) => self.leaf.key_suffix(row),
            None => self.inserted.expect("the inserted row has a key"),
        }
    }

    fn cost(&self, index: usize) -> usize {
        match self.leaf_row(index) {
            Some(row) if index != self.index => self.leaf.cost_of(self.leaf.slot(row)),
            _ => self.new_cost,
        }
    }

    /// Returns the separator of a boundary, without the leaf's prefix.
    fn separator_suffix(&self, boundary: usize) -> &'l [u8] {
        separator_between(self.suffix(boundary - 1), self.suffix(boundary))
    }

    /// Returns the first row of the leaf that moves to the right of a boundary, and `true` if the changed row is on
    /// that side.
    fn outcome(&self, boundary: usize) -> (usize, bool) {
        let goes_right = self.index >= boundary;
        let at = if self.inserted.is_some() && !goes_right { boundary - 1 } else { boundary };
        (at, goes_right)
    }

    /// Returns the number of rows on each side of a boundary, and their cost, both after the change. `left_cost` is the
    /// cost of the rows on the left side.
    fn sides(&self, boundary: usize, left_cost: usize) -> [(usize, usize); 2] {
        [(boundary, left_cost), (self.rows - boundary, self.rows_cost - left_cost)]
    }

    /// Returns `true` if each side of a boundary fits into a page after the change. `left_cost` is the cost of the rows
    /// on the left side.
    fn fits(&self, boundary: usize, left_cost: usize) -> bool {
        self.sides_fit(boundary, self.sides(boundary, left_cost))
    }

    /// Like [`fits`](Self::fits), but before the change.
    fn fits_unchanged(&self, boundary: usize, left_cost: usize) -> bool {
        let mut sides = self.sides(boundary, left_cost);
        let (rows, cost) = &mut sides[usize::from(self.index >= boundary)];
        *rows -= usize::from(self.inserted.is_some());
        *cost = *cost - self.new_cost + self.old_cost;
        self.sides_fit(boundary, sides)
    }

    fn sides_fit(&self, boundary: usize, [left, right]: [(usize, usize); 2]) -> bool {
        let separator = self.separator_suffix(boundary);
        let leaf = &self.leaf;
        leaf.side_bytes(leaf.lower_fence(), separator, left.0, left.1) <= leaf.page_bytes()
            && leaf.side_bytes(leaf.upper_fence(), separator, right.0, right.1) <= leaf.page_bytes()
    }

    /// Returns the boundary at the end of a sorted load, if the change inserts after or before all other rows.
    fn sorted_end(&self) -> Option<usize> {
        self.inserted?;
        let last = self.rows - 1;
        let boundary = match self.index {
            index if index == last && self.leaf.loads_sorted(Ordering::Greater) => last,
            0 if self.leaf.loads_sorted(Ordering::Less) => 1,
            _ => return None,
        };
        let left_cost = if boundary == 1 { self.cost(0) } else { self.rows_cost - self.cost(last) };
        self.fits(boundary, left_cost).then_some(boundary)
    }

    fn choose(&self) -> usize {
        if let Some(boundary) = self.sorted_end() {
            return boundary;
        }
        let window = self.rows_cost / SPLIT_WINDOW_SHARE;
        let mut best = None;
        let mut left_cost = 0;
        for boundary in 1..self.rows {
            left_cost += self.cost(boundary - 1);
            let imbalance = (2 * left_cost).abs_diff(self.rows_cost);
            if imbalance <= window && self.fits(boundary, left_cost) {
                let rank = (self.separator_suffix(boundary).len(), imbalance, boundary);
                best = best.min(Some(rank)).or(Some(rank));
            }
        }
        debug_assert_eq!(left_cost + self.cost(self.rows - 1), self.rows_cost, "rows cost something else one by one");
        best.map_or_else(|| self.choose_among_long_rows(), |(_, _, boundary)| boundary)
    }

    /// Returns the boundary nearest to the middle, preferring boundaries whose sides both fit into pages after the
    /// change.
    ///
    /// At least one boundary has sides that fit before the change. Let row `m` straddle the middle. If both boundaries
    /// next to `m` failed, `m` and the longest fences on either side would fill more than a page.
    #[cold]
    fn choose_among_long_rows(&self) -> usize {
        let mut best = None;
        let mut left_cost = 0;
        for boundary in 1..self.rows {
            left_cost += self.cost(boundary - 1);
            if self.fits_unchanged(boundary, left_cost) {
                let imbalance = (2 * left_cost).abs_diff(self.rows_cost);
                let rank = (!self.fits(boundary, left_cost), imbalance, boundary);
                best = best.min(Some(rank)).or(Some(rank));
            }
        }
        let (_, _, boundary) = best.expect("a leaf that can be split");
        boundary
    }
}

/// A mutable view of a page as a leaf.
pub(crate) struct LeafMut<'a>(NodeMut<'a>);

impl<'a> LeafMut<'a> {
    /// Views a page as a leaf.
    #[inline]
    pub(crate) fn new(page: &'a mut [u8]) -> LeafMut<'a> {
        debug_assert_eq!(Node::new(page).level(), 0, "an inner node taken for a leaf");
        LeafMut(NodeMut { page })
    }

    /// Turns a page into an empty leaf between two fences.
    pub(crate) fn init(page: &'a mut [u8], lower: Option<&[u8]>, upper: Option<&[u8]>) -> LeafMut<'a> {
        let mut node = NodeMut { page };
        node.init(0, lower, upper);
        LeafMut(node)
    }

    /// Returns a read-only view of the leaf.
    #[inline]
    pub(crate) fn as_leaf(&self) -> Leaf<'_> {
        Leaf(self.0.view())
    }

    /// Records the newest commit that was applied to the leaf.
    #[inline]
    pub(crate) fn set_newest(&mut self, newest: Timestamp) {
        self.0.set_newest(newest);
    }

    /// Inserts a row at `index`, the position that [`Leaf::search`] returned for its key.
    #[inline]
    pub(crate) fn insert(&mut self, index: usize, key: &[u8], value: RowValue<'_>) -> Result<(), PageFull> {
        let leaf = self.as_leaf();
        debug_assert!(leaf.covers(key), "a key that belongs elsewhere");
        debug_assert_eq!(leaf.search(key), Err(index), "a key out of order");
        debug_assert!(key.len() <= key_bytes_max(leaf.page_bytes()));
        debug_assert!(value.stored_bytes() <= inline_bytes_max(leaf.page_bytes(), key.len()));
        let rows = leaf.len();
        let suffix = &key[leaf.prefix_bytes()..];
        value.with_bytes(|bytes, flag| {
            let rest = self.0.open_row(index, suffix, VALUE_LENGTH_BYTES + bytes.len(), flag)?;
            self.write_value(rest, bytes);
            self.0.count_run(index, rows);
            Ok(())
        })?;
        let put = self.as_leaf();
        debug_assert_eq!(
            (put.key_suffix(index), put.value(index)),
            (suffix, value),
            "a row can't be read as it was put"
        );
        Ok(())
    }

    #[inline]
    fn write_value(&mut self, rest: usize, value: &[u8]) {
        let to = &mut self.0.page[rest..rest + VALUE_LENGTH_BYTES + value.len()];
        put_u16(to, 0, value.len() as u16);
        to[VALUE_LENGTH_BYTES..].copy_from_slice(value);
    }

    /// Replaces the value of row `index`: in place if the new value is not longer, otherwise in new space.
    pub(crate) fn replace(&mut self, index: usize, value: RowValue<'_>) -> Result<(), PageFull> {
        debug_assert!(value.stored_bytes() <= self.as_leaf().inline_bytes_max(index));
        value.with_bytes(|bytes, flag| {
            let rest = self.resize_rest(index, VALUE_LENGTH_BYTES + bytes.len())?;
            self.write_value(rest, bytes);
            let suffix_bytes = self.as_leaf().slot(index).suffix_bytes() as u16;
            put_u16(self.0.page, slot_offset(index) + SLOT_SUFFIX_BYTES_OFFSET, suffix_bytes | flag);
            Ok(())
        })?;
        debug_assert_eq!(self.as_leaf().value(index), value, "a value can't be read as it was put");
        Ok(())
    }

    /// Resizes the part of a row after its suffix to `rest_bytes`, and returns its offset. The caller must rewrite its
    /// content.
    #[inline]
    fn resize_rest(&mut self, index: usize, rest_bytes: usize) -> Result<usize, PageFull> {
        let leaf = self.as_leaf();
        let slot = leaf.slot(index);
        let (row, suffix_bytes) = (slot.row(), slot.suffix_bytes());
        let old_rest_bytes = leaf.rest_bytes_of(slot);
        let row_bytes = suffix_bytes + rest_bytes;
        if rest_bytes <= old_rest_bytes {
            if rest_bytes < old_rest_bytes {
                self.0.discard(row + row_bytes, old_rest_bytes - rest_bytes);
            }
            return Ok(row + suffix_bytes);
        }
        if row_bytes <= leaf.gap_bytes() {
            let heap_bytes = leaf.heap_bytes() + row_bytes;
            let new_row = leaf.heap_end() - heap_bytes;
            self.0.page.copy_within(row..row + suffix_bytes, new_row);
            self.0.set(HEAP_BYTES_OFFSET, heap_bytes);
            self.0.discard(row, suffix_bytes + old_rest_bytes);
            let flag = if slot.is_large() { SLOT_LARGE_FLAG } else { 0 };
            self.0.set_slot(index, Slot::new(slot.head(), new_row, suffix_bytes, flag));
            return Ok(new_row + suffix_bytes);
        }
        if rest_bytes > leaf.free_bytes() + old_rest_bytes {
            return Err(PageFull);
        }
        self.0.compact(Some((index, rest_bytes)));
        Ok(self.as_leaf().slot(index).row() + suffix_bytes)
    }

    /// Removes row `index`.
    #[inline]
    pub(crate) fn remove(&mut self, index: usize) {
        self.0.remove_row(index);
    }

    /// Moves the rows starting at `at` to `right`, an unused page of the same size. The separator must be greater than
    /// all keys that stay, but not greater than any key that moves.
    pub(crate) fn split_to(&mut self, at: usize, separator: &[u8], right: &mut [u8]) {
        assert_eq!(right.len(), self.0.page.len());
        debug_assert!(at == 0 || self.as_leaf().compare_key(at - 1, separator).is_lt());
        debug_assert!(at == self.as_leaf().len() || self.as_leaf().compare_key(at, separator).is_ge());
        self.0.rebuild(|left, copy| {
            let old = Leaf::new(copy);
            let mut right = NodeMut { page: right };
            right.init(0, Some(separator), old.upper_fence());
            right.push_rows(&old, at..old.len());
            left.init(0, old.lower_fence(), Some(separator));
            left.push_rows(&old, 0..at);
            left.seal();
            left.set_newest(old.newest());
            right.seal();
            right.set_newest(old.newest());
            debug_assert_eq!(left.view().len() + right.view().len(), old.len(), "a split loses rows");
        });
    }

    /// Takes over the right neighbour's rows and range.
    pub(crate) fn merge_from(&mut self, right: &Leaf<'_>) -> Result<(), PageFull> {
        if !self.as_leaf().can_merge(right) {
            return Err(PageFull);
        }
        self.0.rebuild(|left, copy| {
            let old = Leaf::new(copy);
            assert!(old.upper_fence().is_some() && old.upper_fence() == right.lower_fence(), "not neighbours");
            left.init(0, old.lower_fence(), right.upper_fence());
            left.push_rows(&old, 0..old.len());
            left.push_rows(right, 0..right.len());
            left.seal();
            left.set_newest(old.newest().max(right.newest()));
            debug_assert_eq!(left.view().len(), old.len() + right.len(), "a merge loses rows");
            debug_assert_eq!(
                left.view().live_bytes(),
                old.merged_bytes(right),
                "a merge takes other bytes than planned"
            );
        });
        Ok(())
    }
}

impl std::fmt::Debug for Leaf<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut key = Vec::new();
        f.debug_map()
            .entries((0..self.len()).map(|index| {
                self.key_into(index, &mut key);
                (key.escape_ascii().to_string(), self.value(index))
            }))
            .finish()
    }
}
