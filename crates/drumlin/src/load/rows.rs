//! Reads the rows of a sorted run in key order. While the rows of some leaves are being returned, the next leaves are
//! being read.

use std::collections::VecDeque;
use std::sync::Arc;

use super::pages::LoadPages;
use crate::error::Result;
use crate::format::extent::VALUE_BYTES_OFFSET;
use crate::format::node::LargeRef;
use crate::format::{ExtentAddress, PageId};
use crate::pool::{Deferred, Pool};
use crate::space::extents::{open_extent, read_extent};
use crate::tree::node::{Inner, Leaf, Node, RowValue};
use crate::txn::keyspace::OpenKeyspace;

/// The size of a batch of pages that are read together, if memory allows.
const BATCH_BYTES: usize = 128 << 10;

/// Leaves that are being read.
#[derive(Debug)]
struct NextLeaves {
    numbers: Vec<PageId>,
    read: Deferred<Vec<Vec<u8>>>,
}

/// An iterator over the rows of a sorted run. It finds leaves through their parents instead of scanning the file, so it
/// reads large values only on demand.
#[derive(Debug)]
pub(crate) struct LoadedRows {
    /// The maximum number of leaves that are read together.
    batch_pages: usize,
    /// `true` if there is enough memory to read the next leaves while the current ones are in use.
    reads_ahead: bool,
    has_read_root: bool,
    /// The inner nodes above the next leaf to request, from the root down, each with the index of its next child.
    path: Vec<(Vec<u8>, usize)>,
    /// The next leaves. Must be declared before `pages`: fields are dropped in order, and the read must end before
    /// `pages` frees the extents that are being read.
    ahead: Option<NextLeaves>,
    /// Leaves that have been read, in order.
    leaves: VecDeque<Vec<u8>>,
    /// The number of rows already returned from the first of these leaves.
    returned: usize,
    pages: LoadPages,
    open: Arc<OpenKeyspace>,
}

/// Memory that a [`LoadedRows`] needs in addition to its leaves, in pages: inner nodes, and an extent that is being
/// decoded.
const EXTRA_PAGES: usize = 4;

impl LoadedRows {
    pub(super) fn new(open: Arc<OpenKeyspace>, pages: LoadPages) -> LoadedRows {
        let batch_pages = (BATCH_BYTES / open.tree.pages.page_bytes()).max(1);
        LoadedRows {
            batch_pages,
            reads_ahead: true,
            has_read_root: false,
            path: Vec::new(),
            ahead: None,
            leaves: VecDeque::new(),
            returned: 0,
            pages,
            open,
        }
    }

    /// Returns the pages of the run.
    pub(super) fn pages(&self) -> &LoadPages {
        &self.pages
    }

    /// Returns the minimum memory for reading a run, in bytes.
    pub(super) fn bytes_min(page_bytes: usize) -> usize {
        (EXTRA_PAGES + 1) * page_bytes
    }

    /// Limits the memory for reading; `bytes` must be at least [`bytes_min`](Self::bytes_min).
    pub(super) fn limit_memory(&mut self, bytes: usize) {
        let page_bytes = self.open.tree.pages.page_bytes();
        assert!(bytes >= Self::bytes_min(page_bytes), "a load is read in {bytes} bytes");
        let leaves_max = bytes / page_bytes - EXTRA_PAGES;
        self.reads_ahead = leaves_max >= 2;
        self.batch_pages = self.batch_pages.min((leaves_max / 2).max(1));
    }

    /// Steps to the next row and stores its key in `key`. Returns `false` if no rows are left.
    pub(super) fn step(&mut self, key: &mut Vec<u8>) -> Result<bool> {
        loop {
            let Some(page) = self.leaves.front() else {
                if !self.read_leaves()? {
                    return Ok(false);
                }
                continue;
            };
            let leaf = Leaf::new(page);
            if self.returned < leaf.len() {
                leaf.key_into(self.returned, key);
                self.returned += 1;
                return Ok(true);
            }
            self.leaves.pop_front();
            self.returned = 0;
        }
    }

    /// Returns the value of the current row.
    pub(super) fn value(&self) -> RowValue<'_> {
        assert!(self.returned > 0, "the value of no row is asked for");
        Leaf::new(self.leaves.front().expect("the leaf of the newest row")).value(self.returned - 1)
    }

    /// Moves on to the next leaves. Returns `false` if no leaves are left.
    fn read_leaves(&mut self) -> Result<bool> {
        assert!(self.leaves.is_empty(), "leaves are read before the others are done with");
        if !std::mem::replace(&mut self.has_read_root, true) {
            let root = read(&self.open.tree.pool, &[self.pages.root()])?.pop().expect("it was read");
            self.enter(root);
            if !self.leaves.is_empty() {
                return Ok(true);
            }
        }
        let (numbers, leaves) = if let Some(next) = self.ahead.take() {
            (next.numbers, next.read.wait()?)
        } else {
            let Some(numbers) = self.next_numbers()? else { return Ok(false) };
            let leaves = read(&self.open.tree.pool, &self.addresses(&numbers))?;
            (numbers, leaves)
        };
        numbers.into_iter().for_each(|number| self.give_back(number));
        leaves.into_iter().for_each(|leaf| self.enter(leaf));
        if self.reads_ahead
            && let Some(numbers) = self.next_numbers()?
        {
            let addresses = self.addresses(&numbers);
            let read = Deferred::begin(&self.open.tree.pool, move |pool| read(pool, &addresses));
            self.ahead = Some(NextLeaves { numbers, read });
        }
        Ok(true)
    }

    /// Returns the next leaves to read, all with the same parent, or `None` if no leaves are left. Reads the inner
    /// nodes above them.
    fn next_numbers(&mut self) -> Result<Option<Vec<PageId>>> {
        while let Some((page, next)) = self.path.last_mut() {
            let inner = Inner::new(page);
            if *next == inner.len() {
                self.path.pop();
                continue;
            }
            let is_lowest = Node::new(page).level() == 1;
            let end = inner.len().min(*next + if is_lowest { self.batch_pages } else { 1 });
            let children: Vec<PageId> = (*next..end).map(|child| inner.child(child)).collect();
            *next = end;
            if is_lowest {
                return Ok(Some(children));
            }
            let node = read(&self.open.tree.pool, &self.addresses(&children))?.pop().expect("it was read");
            self.give_back(children[0]);
            self.enter(node);
        }
        Ok(None)
    }

    fn addresses(&self, numbers: &[PageId]) -> Vec<ExtentAddress> {
        numbers.iter().map(|number| self.pages.address(*number)).collect()
    }

    /// Frees a page that has been read and will not be needed again.
    fn give_back(&mut self, page: PageId) {
        self.pages.discard(page, 1);
    }

    /// Stores a node that has been read: adds a leaf to the queue, or an inner node to the path.
    fn enter(&mut self, page: Vec<u8>) {
        let above = self.path.last().map(|(page, _)| Node::new(page).level());
        let level = Node::new(&page).level();
        assert!(above.is_none_or(|above| above == level + 1), "a node of level {level} is a child of level {above:?}");
        if level == 0 { self.leaves.push_back(page) } else { self.path.push((page, 0)) }
    }

    /// Reads a value of one chunk and frees its page.
    pub(super) fn take_medium(&mut self, reference: LargeRef) -> Result<Vec<u8>> {
        assert_eq!(reference.chunk_count, 1, "a value of several chunks is read at once");
        let (_, mut value) = read_extent(&self.open.tree.pool.space, self.pages.address(reference.first_page))?;
        value.drain(..VALUE_BYTES_OFFSET);
        assert_eq!(value.len() as u64, reference.length, "a value of a load has another length");
        self.give_back(reference.first_page);
        Ok(value)
    }
}

/// Reads a batch of nodes.
fn read(pool: &Pool, addresses: &[ExtentAddress]) -> Result<Vec<Vec<u8>>> {
    let mut nodes = vec![Vec::new(); addresses.len()];
    let mut failed = None;
    pool.read_past(addresses, |index, bytes| {
        match bytes.and_then(|bytes| open_extent(&pool.space, addresses[index], bytes)) {
            Ok((_, page)) => nodes[index] = page,
            Err(error) => failed = Some(error),
        }
    })?;
    match failed {
        Some(error) => Err(error),
        None => Ok(nodes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::load::packed_tree::PackedTree;

    /// A run returns its rows in order, with and without memory for reading ahead. If a run is dropped halfway, it
    /// frees its remaining pages. The extents of leaves are not freed until the leaves have been read.
    #[test]
    fn the_next_leaves_are_read_ahead() {
        const ROWS: u64 = 30_000;
        let db = Config::in_memory().memory(32 << 20).open("").unwrap();
        let _keyspace = db.keyspace("k").unwrap();
        let store = db.store().unwrap();
        let open = store.keyspaces.get("k").unwrap();
        let page_bytes = open.tree.pages.page_bytes();
        let live_bytes = || store.engine.space.segments.usage().live_bytes;
        let before = live_bytes();
        for (leaves, until) in [(1, ROWS), (2, ROWS), (64, ROWS), (1, 10_000), (64, 10_000)] {
            let mut tree = PackedTree::new(&store.engine, &open, 256 << 10);
            (0..ROWS).for_each(|row| tree.push(&store.engine, &row.to_be_bytes(), &[row as u8; 100]).unwrap());
            let mut rows = tree.into_run().unwrap();
            assert!(live_bytes() > before, "a run lies nowhere");
            rows.limit_memory((EXTRA_PAGES + leaves) * page_bytes);
            let mut key = Vec::new();
            for row in 0..until {
                assert!(rows.step(&mut key).unwrap(), "row {row} is missing, {leaves} leaves at a time");
                assert_eq!(key, row.to_be_bytes(), "{leaves} leaves at a time");
                assert!(matches!(rows.value(), RowValue::Inline(value) if value == [row as u8; 100]));
                let asked = rows.ahead.as_ref().map_or(&[][..], |next| &next.numbers);
                assert!(
                    !rows.addresses(asked).contains(&ExtentAddress::NONE),
                    "leaves are given back before they are read"
                );
                let asked = asked.len();
                assert!(rows.leaves.len() + asked <= leaves, "{} and {asked} leaves are in memory", rows.leaves.len());
                assert!(asked > 0 || leaves == 1 || row > ROWS - 10_000, "nothing is read ahead at row {row}");
            }
            assert_eq!(rows.step(&mut key).unwrap(), until < ROWS);
            drop(rows);
            assert_eq!(live_bytes(), before, "{leaves} leaves at a time, until row {until}");
        }
    }
}
