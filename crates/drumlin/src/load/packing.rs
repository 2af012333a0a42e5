//! Packing: builds a tree bottom up from rows in key order.
//!
//! The leaves are filled from left to right with as many rows as fit, and so is each level above them. A node is
//! complete when the next row does not fit. Only then is its upper fence known, and thus the prefix that is truncated
//! from its keys. Because keys ascend, the prefix can only become shorter as rows are added. So running sums yield the
//! size of the node in constant time per row.
//!
//! This is the textbook's bottom-up bulk loading of a B+tree (Ramakrishnan and Gehrke, *Database Management Systems*,
//! chapter 10; Graefe, "Modern B-Tree Techniques", 2011, on index creation), with prefix truncation.
//!
//! # Invariants
//! 1. Each row of a level lies between the lower fence of its node and the separator before the next row, so the ranges
//!    of adjacent nodes abut.
//! 2. The pending rows of a level fit into a node, up to the last boundary at which the node can end. The newest row is
//!    always pending.
//! 3. Each level holds in memory the rows of one node and one more row.

use super::pages::LoadPages;
use crate::counts::loaded::LoadedCounts;
use crate::error::Result;
use crate::format::PageId;
use crate::format::extent::{Kind, PageKey};
use crate::format::node::{SLOT_BYTES, SLOTS_OFFSET, is_page_bytes};
use crate::tree::node::{PackedRow, child_rest, common_bytes, pack, separator_between};

/// Receives the finished nodes.
pub(crate) trait NodeSink {
    /// Stores a node other than the root that has `rows` rows beneath it. Returns its page.
    fn put_node(&mut self, level: u8, rows: u64, page: &[u8]) -> Result<PageId>;
    /// Stores the root. Its page is not known yet.
    fn put_root(&mut self, level: u8, rows: u64, page: &[u8]) -> Result<()>;
}

/// The pages of a load, and the number of rows beneath each of them if rows are counted.
pub(crate) struct CountedPages<'p> {
    pub(crate) pages: &'p mut LoadPages,
    pub(crate) counts: &'p mut Option<LoadedCounts>,
}

impl CountedPages<'_> {
    fn count(&mut self, page: PageId, rows: u64) {
        self.counts.take_if(|counts| !counts.add(page, rows));
    }
}

impl NodeSink for CountedPages<'_> {
    fn put_node(&mut self, level: u8, rows: u64, page: &[u8]) -> Result<PageId> {
        let number = self.pages.take_numbers(1)?;
        assert!(number != PageId::ROOT, "the root's number is taken for another node");
        append_node(self.pages, number, level, rows, page)?;
        self.count(number, rows);
        Ok(number)
    }

    fn put_root(&mut self, level: u8, rows: u64, page: &[u8]) -> Result<()> {
        self.pages.set_root(if level == 0 { Kind::Leaf } else { Kind::Inner }, page);
        if level == 0 {
            self.pages.count_leaf(rows);
        }
        self.count(PageId::ROOT, rows);
        Ok(())
    }
}

fn append_node(pages: &mut LoadPages, number: PageId, level: u8, rows: u64, page: &[u8]) -> Result<()> {
    if level == 0 {
        pages.count_leaf(rows);
    }
    let name = PageKey { keyspace: pages.keyspace(), page: number };
    pages.append(number, name, if level == 0 { Kind::Leaf } else { Kind::Inner }, page)
}

/// A row whose node is not complete yet. The fields are offsets into the level's buffer: the start of the row, the end
/// of its key, and the end of the bytes after the key.
#[derive(Clone, Copy, Debug)]
struct PendingRow {
    start: usize,
    key_end: usize,
    end: usize,
    is_large: bool,
    /// In a leaf, 1. In an inner node, the number of rows beneath the child.
    row_count: u64,
}

/// A row that was removed from the packer: an owned [`PackedRow`].
#[derive(Debug)]
pub(crate) struct TakenRow {
    pub(crate) key: Vec<u8>,
    pub(crate) rest: Vec<u8>,
    pub(crate) is_large: bool,
}

/// The last boundary at which the pending node can end.
#[derive(Debug, Default)]
struct Boundary {
    rows: usize,
    upper: Vec<u8>,
}

/// One level of the tree.
#[derive(Debug, Default)]
struct Level {
    number: u8,
    /// The lower fence of the node being filled.
    lower: Option<Vec<u8>>,
    bytes: Vec<u8>,
    rows: Vec<PendingRow>,
    boundary: Boundary,
    /// `true` once a node of this level has been stored.
    has_nodes: bool,
}

impl Level {
    fn row(&self, index: usize) -> PackedRow<'_> {
        let PendingRow { start, key_end, end, is_large, .. } = self.rows[index];
        PackedRow { key: &self.bytes[start..key_end], rest: &self.bytes[key_end..end], is_large }
    }

    /// Returns the key of the newest row.
    fn last_key(&self) -> Option<&[u8]> {
        self.rows.last().map(|row| &self.bytes[row.start..row.key_end])
    }

    fn add(&mut self, row: PackedRow<'_>, row_count: u64) {
        debug_assert!(self.last_key().is_none_or(|last| last < row.key), "rows are packed out of order");
        let start = self.bytes.len();
        self.bytes.extend_from_slice(row.key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(row.rest);
        self.rows.push(PendingRow { start, key_end, end: self.bytes.len(), is_large: row.is_large, row_count });
    }

    /// Returns the size, in bytes, of a node with all pending rows and this upper fence.
    fn node_bytes(&self, upper: Option<&[u8]>) -> usize {
        let prefix_bytes = match (&self.lower, upper) {
            (Some(lower), Some(upper)) => common_bytes(lower, upper),
            _ => 0,
        };
        let fence_bytes = self.lower.as_ref().map_or(0, Vec::len) + upper.map_or(0, <[u8]>::len);
        assert!(!self.rows.is_empty(), "a node of no rows is measured");
        let first = &self.rows[0];
        // An inner node does not store its first key, because that is its lower fence.
        let (keys, left_out) = match self.number {
            0 => (self.rows.len(), 0),
            _ => (self.rows.len() - 1, first.key_end - first.start),
        };
        SLOTS_OFFSET + fence_bytes + self.bytes.len() - left_out + self.rows.len() * SLOT_BYTES - keys * prefix_bytes
    }

    /// Returns the upper fence of a node whose last row precedes the key `next`.
    fn upper_before<'k>(&self, next: &'k [u8]) -> &'k [u8] {
        debug_assert!(self.last_key().is_some_and(|last| last < next), "a node ends after the next row");
        match self.number {
            0 => separator_between(self.last_key().expect("a row is pending"), next),
            _ => next,
        }
    }
}

/// Builds a tree bottom up. See the module.
#[derive(Debug)]
pub(crate) struct Packer {
    page_bytes: usize,
    levels: Vec<Level>,
    page: Vec<u8>,
}

impl Packer {
    pub(crate) fn new(page_bytes: usize) -> Packer {
        assert!(is_page_bytes(page_bytes), "nodes of {page_bytes} bytes are packed");
        Packer { page_bytes, levels: vec![Level::default()], page: vec![0; page_bytes] }
    }

    /// Returns the key of the newest row.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.levels[0].last_key()
    }

    /// Removes the newest row. Returns the bytes after its key, and `true` if they are a reference to a large value.
    pub(crate) fn pop(&mut self) -> Option<(Vec<u8>, bool)> {
        let level = &mut self.levels[0];
        let row = level.rows.pop()?;
        let rest = level.bytes[row.key_end..row.end].to_vec();
        level.bytes.truncate(row.start);
        // A boundary lies between two rows, so the rows before it never include the newest.
        assert!(level.boundary.rows <= level.rows.len(), "a row is taken back that a cut counts");
        Some((rest, row.is_large))
    }

    /// Removes all rows and starts over. Returns `None` if any of them are in nodes that have already been stored.
    pub(crate) fn take_rows(&mut self) -> Option<Vec<TakenRow>> {
        let level = &self.levels[0];
        if level.has_nodes {
            return None;
        }
        let row = |index| level.row(index);
        let owned = |PackedRow { key, rest, is_large }| TakenRow { key: key.to_vec(), rest: rest.to_vec(), is_large };
        let rows = (0..level.rows.len()).map(row).map(owned).collect();
        *self = Packer::new(self.page_bytes);
        Some(rows)
    }

    /// Adds a row to the leaf level. Its key must be greater than all previous keys. Amortised O(bytes).
    pub(crate) fn push(&mut self, row: PackedRow<'_>, sink: &mut impl NodeSink) -> Result<()> {
        self.push_at(0, row, 1, sink)
    }

    fn push_at(&mut self, level: usize, row: PackedRow<'_>, row_count: u64, sink: &mut impl NodeSink) -> Result<()> {
        while !self.levels[level].rows.is_empty() {
            let here = &mut self.levels[level];
            let upper = here.upper_before(row.key);
            if here.node_bytes(Some(upper)) <= self.page_bytes {
                here.boundary.rows = here.rows.len();
                here.boundary.upper.clear();
                here.boundary.upper.extend_from_slice(upper);
                break;
            }
            self.complete(level, sink)?;
        }
        self.levels[level].add(row, row_count);
        Ok(())
    }

    /// Completes a node at the last boundary. The rows after it begin the next node.
    fn complete(&mut self, level: usize, sink: &mut impl NodeSink) -> Result<()> {
        let here = &mut self.levels[level];
        let Boundary { rows, upper } = std::mem::take(&mut here.boundary);
        // A row always fits into a node, even between two fences of the maximum length.
        assert!(rows > 0, "a row does not fit into a node of its own");
        assert!(rows <= here.rows.len(), "{rows} rows are completed of {}", here.rows.len());
        let lower = here.lower.replace(upper);
        let upper = self.levels[level].lower.clone();
        self.put(level, rows, (lower, upper), sink)?;
        // The rows after the boundary belong to a new node with a new lower fence. Push them once more.
        let here = &mut self.levels[level];
        let rest = here.rows.split_off(rows);
        here.rows.clear();
        let bytes = std::mem::take(&mut here.bytes);
        for PendingRow { start, key_end, end, is_large, row_count } in rest {
            let row = PackedRow { key: &bytes[start..key_end], rest: &bytes[key_end..end], is_large };
            self.push_at(level, row, row_count, sink)?;
        }
        Ok(())
    }

    /// Stores a node with the first `rows` pending rows, and adds it to the level above.
    fn put(
        &mut self,
        level: usize,
        rows: usize,
        (lower, upper): (Option<Vec<u8>>, Option<Vec<u8>>),
        sink: &mut impl NodeSink,
    ) -> Result<PageId> {
        let here = &self.levels[level];
        let is_root = !here.has_nodes && upper.is_none();
        assert!(rows > 0 || is_root, "a node has no rows");
        debug_assert!(here.boundary.rows <= here.rows.len(), "a boundary lies after the last row");
        pack(&mut self.page, here.number, (lower.as_deref(), upper.as_deref()), (0..rows).map(|index| here.row(index)));
        let number = here.number;
        let row_count = here.rows[..rows].iter().map(|row| row.row_count).sum();
        assert!(row_count >= rows as u64, "a node has {rows} children with {row_count} rows");
        self.levels[level].has_nodes = true;
        if is_root {
            sink.put_root(number, row_count, &self.page)?;
            return Ok(PageId::ROOT);
        }
        let page = sink.put_node(number, row_count, &self.page)?;
        assert!(page != PageId::ROOT, "the root's number is taken for another node");
        if self.levels.len() == level + 1 {
            let number = u8::try_from(level + 1).expect("a tree is not that high");
            self.levels.push(Level { number, ..Level::default() });
        }
        let row = PackedRow { key: lower.as_deref().unwrap_or(&[]), rest: &child_rest(page), is_large: false };
        self.push_at(level + 1, row, row_count, sink)?;
        Ok(page)
    }

    /// Completes the tree up to its root. If no rows were added, the root is an empty leaf.
    pub(crate) fn finish(&mut self, sink: &mut impl NodeSink) -> Result<()> {
        let mut level = 0;
        loop {
            while !self.levels[level].rows.is_empty() && self.levels[level].node_bytes(None) > self.page_bytes {
                self.complete(level, sink)?;
            }
            let here = &mut self.levels[level];
            assert!(!here.rows.is_empty() || level == 0, "a level ends without a node");
            let (rows, lower) = (here.rows.len(), here.lower.take());
            if self.put(level, rows, (lower, None), sink)? == PageId::ROOT {
                return Ok(());
            }
            level += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::node::{VALUE_LENGTH_BYTES, inline_bytes_max, key_bytes_max};
    use crate::tree::node::{Inner, Leaf, Node, RowValue, check, push_value};

    /// Nodes by page number, and the row count reported for each page.
    #[derive(Default)]
    struct Nodes(Vec<Option<Vec<u8>>>, Vec<(PageId, u64)>);

    impl NodeSink for Nodes {
        fn put_node(&mut self, level: u8, rows: u64, page: &[u8]) -> Result<PageId> {
            let number = self.0.len().max(2);
            self.put_at(number, level, page);
            self.1.push((PageId(number as u32), rows));
            Ok(PageId(number as u32))
        }

        fn put_root(&mut self, level: u8, rows: u64, page: &[u8]) -> Result<()> {
            self.put_at(1, level, page);
            self.1.push((PageId::ROOT, rows));
            Ok(())
        }
    }

    impl Nodes {
        fn put_at(&mut self, number: usize, level: u8, page: &[u8]) {
            check(page).unwrap();
            assert_eq!(Node::new(page).level(), level);
            self.0.resize(self.0.len().max(number + 1), None);
            assert!(self.0[number].replace(page.to_vec()).is_none(), "two roots");
        }

        /// Collects the rows beneath a page, and checks that it has these fences.
        fn rows(&self, page: PageId, fences: (Option<&[u8]>, Option<&[u8]>), rows: &mut Vec<(Vec<u8>, Vec<u8>)>) {
            let page = self.0[page.0 as usize].as_ref().unwrap();
            let node = Node::new(page);
            assert_eq!((node.lower_fence(), node.upper_fence()), fences);
            if node.level() == 0 {
                let leaf = Leaf::new(page);
                for index in 0..leaf.len() {
                    let mut key = Vec::new();
                    leaf.key_into(index, &mut key);
                    let RowValue::Inline(value) = leaf.value(index) else { panic!("a large value") };
                    rows.push((key, value.to_vec()));
                }
                return;
            }
            let inner = Inner::new(page);
            let (mut lower, mut upper) = (Vec::new(), Vec::new());
            for index in 0..inner.len() {
                let lower = inner.child_lower_into(index, &mut lower).then_some(&lower[..]);
                let upper = inner.child_upper_into(index, &mut upper).then_some(&upper[..]);
                self.rows(inner.child(index), (lower, upper), rows);
            }
        }
    }

    fn packed(page_bytes: usize, rows: &[(Vec<u8>, Vec<u8>)]) -> Nodes {
        let (mut packer, mut nodes) = (Packer::new(page_bytes), Nodes::default());
        let mut rest = Vec::new();
        for (key, value) in rows {
            rest.clear();
            push_value(value, &mut rest);
            packer.push(PackedRow { key, rest: &rest, is_large: false }, &mut nodes).unwrap();
        }
        packer.finish(&mut nodes).unwrap();
        nodes
    }

    /// Rows of any length, with varying common prefixes, result in a valid tree that contains all of them. The sink
    /// receives the correct number of rows beneath each node.
    #[test]
    fn a_packed_tree_has_its_rows() {
        let mut state = 7u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..400 {
            let page_bytes = 512 << (round % 4);
            let count = [0, 1, 2, 7, 100, 1500][round % 6];
            let key_max = [4, 20, key_bytes_max(page_bytes)][round % 3];
            let value_max = [1, 40, usize::MAX][round / 3 % 3];
            let alphabet = [2, 256][round / 9 % 2];
            let mut rows: Vec<(Vec<u8>, Vec<u8>)> = (0..count)
                .map(|_| {
                    let common = random(key_max + 1);
                    let mut key = vec![b'p'; common];
                    key.extend((0..random(key_max + 1 - common)).map(|_| random(alphabet) as u8));
                    let value_max = value_max.min(inline_bytes_max(page_bytes, key.len()));
                    (key, vec![b'v'; random(value_max + 1)])
                })
                .collect();
            rows.sort();
            rows.dedup_by(|left, right| left.0 == right.0);
            let nodes = packed(page_bytes, &rows);
            let mut found = Vec::new();
            nodes.rows(PageId::ROOT, (None, None), &mut found);
            assert_eq!(found, rows, "round {round}");
            assert_eq!(nodes.1.len(), nodes.0.iter().flatten().count());
            for (page, row_count) in &nodes.1 {
                let node = Node::new(nodes.0[page.0 as usize].as_ref().unwrap());
                let (lower, upper) = (node.lower_fence().unwrap_or_default(), node.upper_fence());
                let beneath =
                    rows.iter().filter(|(key, _)| key[..] >= *lower && upper.is_none_or(|upper| key[..] < *upper));
                assert_eq!(beneath.count() as u64, *row_count, "round {round}, page {page}");
            }
        }
    }

    /// Packed leaves have no room for one more row, assuming that each of the other rows might then lose a byte of the
    /// common prefix.
    #[test]
    fn packed_leaves_are_full() {
        let rows: Vec<_> = (0..10_000u64).map(|row| (row.to_be_bytes().to_vec(), vec![7; 100])).collect();
        let nodes = packed(4096, &rows);
        let is_leaf = |page: &&Vec<u8>| Node::new(page).level() == 0;
        let leaves: Vec<_> = nodes.0.iter().flatten().filter(is_leaf).collect();
        let row_bytes = 8 + SLOT_BYTES + VALUE_LENGTH_BYTES + 100;
        let fits_row = |page: &&&Vec<u8>| Node::new(page).free_bytes() > row_bytes + Node::new(page).len();
        let sparse = leaves.iter().filter(fits_row).count();
        assert!(sparse <= 1, "{sparse} of {} leaves have room for a row", leaves.len());
    }

    /// With 16-byte keys, inner nodes have at least 230 children, except the first and the last node of a level.
    #[test]
    fn packed_inner_nodes_have_many_children() {
        let rows: Vec<_> = (0..6000).map(|row| (format!("user{row:012}").into_bytes(), vec![7; 1400])).collect();
        let nodes = packed(4096, &rows);
        let is_between = |node: &Node<'_>| node.lower_fence().is_some() && node.upper_fence().is_some();
        let inner = nodes.0.iter().flatten().map(|page| Node::new(page)).filter(|node| node.level() == 1);
        let counts: Vec<usize> = inner.filter(is_between).map(|node| node.len()).collect();
        assert!(counts.len() >= 5 && counts.iter().all(|&count| count >= 230), "nodes of {counts:?} children");
    }

    /// The newest row can always be removed, even if it is the first row of its node.
    #[test]
    fn the_newest_row_can_be_taken_back() {
        let (mut packer, mut nodes) = (Packer::new(512), Nodes::default());
        for row in 0..300u32 {
            for value in [[1; 30], [2; 30]] {
                if packer.last_key() == Some(&row.to_be_bytes()[..]) {
                    assert_eq!(packer.pop().unwrap().0[VALUE_LENGTH_BYTES..], [1; 30]);
                }
                let mut rest = Vec::new();
                push_value(&value, &mut rest);
                let row = PackedRow { key: &row.to_be_bytes(), rest: &rest, is_large: false };
                packer.push(row, &mut nodes).unwrap();
            }
        }
        packer.finish(&mut nodes).unwrap();
        let mut found = Vec::new();
        nodes.rows(PageId::ROOT, (None, None), &mut found);
        assert_eq!(found.len(), 300);
        assert!(found.iter().all(|(_, value)| value[..] == [2; 30]));
    }
}
