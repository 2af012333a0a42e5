//! A tree packed from rows in key order: the result of a bulk load, or one sorted run of it.

use std::sync::Arc;

use super::packing::{CountedPages, Packer, TakenRow};
use super::pages::{LoadPages, Placement};
use super::rows::LoadedRows;
use crate::counts::count_range::LEAVES_WITHOUT;
use crate::counts::loaded::LoadedCounts;
use crate::error::Result;
use crate::format::ChunkNumber;
use crate::format::extent::{Kind, PageKey};
use crate::format::node::LargeRef;
use crate::tree::node::{PackedRow, large_rest, push_value, removal_rest};
use crate::txn::engine::Engine;
use crate::txn::keyspace::OpenKeyspace;
use crate::txn::values::{self, LargeValue};

/// The least and the greatest key of a tree.
pub(super) struct KeyBounds {
    pub(super) first: Vec<u8>,
    pub(super) last: Vec<u8>,
}

/// A tree that is being packed.
#[derive(Debug)]
pub(super) struct PackedTree {
    open: Arc<OpenKeyspace>,
    packer: Packer,
    pages: LoadPages,
    /// The number of rows beneath each page. `None` if rows are not counted, for example in a sorted run.
    counts: Option<LoadedCounts>,
    /// The bytes after the key of the row that is being added.
    rest: Vec<u8>,
    rows: u64,
    /// The key of the first row, if there are rows.
    first_key: Vec<u8>,
}

/// The kind of the bytes after a row's key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// The value itself, after its length.
    Inline,
    /// A reference to a value that has extents of its own.
    Reference,
}

impl PackedTree {
    /// Creates an empty tree. Its pages are written in buffers of `buffer_bytes`.
    pub(super) fn new(engine: &Engine, open: &Arc<OpenKeyspace>, buffer_bytes: usize) -> PackedTree {
        let tree = &open.tree;
        let pages = LoadPages::new(&tree.pool, &tree.pages, buffer_bytes, &engine.reclaim);
        let packer = Packer::new(tree.pages.page_bytes());
        PackedTree {
            open: Arc::clone(open),
            packer,
            pages,
            counts: None,
            rest: Vec::new(),
            rows: 0,
            first_key: Vec::new(),
        }
    }

    /// Starts counting the rows beneath each page. The tree must still be empty.
    pub(super) fn keep_counts(&mut self, engine: &Engine) {
        assert!(self.rows == 0, "rows are counted of a tree that has some");
        self.counts = Some(LoadedCounts::new(&engine.budget));
    }

    /// Returns the number of rows.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the key of the newest row.
    pub(super) fn last_key(&self) -> Option<&[u8]> {
        self.packer.last_key()
    }

    /// Appends a row, which must not have a large value. If the value does not fit into the leaf, writes it separately.
    pub(super) fn push(&mut self, engine: &Engine, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() <= self.open.tree.inline_bytes_max(key) {
            self.rest.clear();
            push_value(value, &mut self.rest);
            return self.push_row(key, Rest::Inline);
        }
        let reference = self.write_medium(engine, value)?;
        self.push_reference(key, reference)
    }

    /// Appends a row whose value has already been written to this tree.
    pub(super) fn push_reference(&mut self, key: &[u8], reference: LargeRef) -> Result<()> {
        self.open.tree.pages.expect_values();
        self.rest.clear();
        self.rest.extend_from_slice(&large_rest(reference));
        self.push_row(key, Rest::Reference)
    }

    /// Appends a row that removes the older row with its key. The tree must become a run.
    pub(super) fn push_removal(&mut self, key: &[u8]) -> Result<()> {
        self.rest.clear();
        self.rest.extend_from_slice(&removal_rest());
        self.pages.count_removal();
        self.push_row(key, Rest::Reference)
    }

    /// Appends a row with this key and the bytes in `self.rest`.
    fn push_row(&mut self, key: &[u8], rest: Rest) -> Result<()> {
        assert!(self.last_key().is_none_or(|last| last < key), "rows of a load are packed out of order");
        if self.rows == 0 {
            self.first_key = key.to_vec();
        }
        let is_large = rest == Rest::Reference;
        let mut sink = CountedPages { pages: &mut self.pages, counts: &mut self.counts };
        self.packer.push(PackedRow { key, rest: &self.rest, is_large }, &mut sink)?;
        self.rows += 1;
        Ok(())
    }

    /// Removes the newest row and frees the space of its value.
    pub(super) fn pop(&mut self) {
        let (rest, is_large) = self.packer.pop().expect("its key was compared");
        self.rows -= 1;
        if is_large {
            self.discard(LargeRef::from_bytes(rest.last_chunk().expect("the rest ends with a reference")));
        }
    }

    /// Removes and returns all rows, and stops counting. Values that were written separately stay in the tree. Returns
    /// `None` if any nodes have already been written.
    pub(super) fn take_rows(&mut self) -> Option<Vec<TakenRow>> {
        let taken = self.packer.take_rows()?;
        assert_eq!(taken.len() as u64, self.rows, "rows are neither pending nor in nodes");
        (self.rows, self.counts) = (0, None);
        Some(taken)
    }

    /// Writes a value that is too long for its leaf but not large.
    fn write_medium(&mut self, engine: &Engine, value: &[u8]) -> Result<LargeRef> {
        let id = engine.new_value();
        let first_page = self.pages.take_numbers(1)?;
        let name = PageKey { keyspace: self.open.tree.pages.id, page: ChunkNumber(0).as_page() };
        self.pages.append(first_page, name, Kind::Value, &values::medium_page(id, value))?;
        let reference = LargeRef { length: value.len() as u64, id, first_page, chunk_count: 1 };
        assert!(reference.is_plausible(), "{reference:?} could not be read again");
        Ok(reference)
    }

    /// Takes over a large value that has already been written. The caller then adds a row that refers to the value.
    pub(super) fn adopt(&mut self, written: &LargeValue) -> Result<LargeRef> {
        let chunk_count = u32::try_from(written.addresses.len()).expect("fewer than 2^32 chunks");
        let first_page = self.pages.take_numbers(written.addresses.len())?;
        let reference = LargeRef { length: written.length, id: written.value_id, first_page, chunk_count };
        assert!(reference.is_plausible(), "{reference:?} could not be read again");
        written.leave_to_load();
        self.pages.adopt(first_page, &written.addresses);
        Ok(reference)
    }

    /// Frees the space of a value to which no row refers.
    pub(super) fn discard(&mut self, reference: LargeRef) {
        self.pages.discard(reference.first_page, reference.chunk_count);
    }

    /// Takes over a value from another load of the same keyspace. Returns its new reference.
    pub(super) fn take_over(&mut self, from: &LoadPages, reference: LargeRef) -> Result<LargeRef> {
        let first_page = self.pages.take_over(from, reference.first_page, reference.chunk_count)?;
        Ok(LargeRef { first_page, ..reference })
    }

    /// Completes the tree as a sorted run, which can be read but is never attached.
    pub(super) fn into_run(mut self) -> Result<LoadedRows> {
        self.packer.finish(&mut CountedPages { pages: &mut self.pages, counts: &mut None })?;
        self.pages.finish_run()?;
        Ok(LoadedRows::new(self.open, self.pages))
    }

    /// Completes the tree, and writes the page tables that attaching it requires. Also returns the bounds of its keys,
    /// and its counts if the tree is large enough to keep them.
    pub(super) fn into_load(mut self, placement: Placement) -> Result<(LoadPages, KeyBounds, Option<LoadedCounts>)> {
        assert!(self.rows > 0, "a load of no rows is attached");
        let last = self.last_key().expect("the newest row is pending").to_vec();
        let keys = KeyBounds { first: std::mem::take(&mut self.first_key), last };
        self.packer.finish(&mut CountedPages { pages: &mut self.pages, counts: &mut self.counts })?;
        self.pages.finish(placement)?;
        let counts = self.counts.filter(|counts| counts.page_count() > LEAVES_WITHOUT);
        Ok((self.pages, keys, counts))
    }
}
