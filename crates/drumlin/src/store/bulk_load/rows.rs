//! The rows of a load that is not attached, read back in the order of their keys.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;

use super::OpenKeyspace;
use crate::error::Result;
use crate::format::extent::{Kind, VALUE_BYTES_OFFSET};
use crate::format::node::LargeRef;
use crate::format::{ExtentAddress, PageId};
use crate::pool::Pool;
use crate::pool::load::LoadPages;
use crate::space::PageEntry;
use crate::space::checkpoint::{open_extent, read_extent};
use crate::tree::node::{Leaf, RowValue};
use crate::txn::values::MEDIUM_BYTES_MAX;

/// Bytes of pages that are read together.
const BATCH_BYTES: usize = 128 << 10;

/// A row that was loaded.
pub(crate) enum LoadedRow {
    Whole(Vec<u8>, Vec<u8>),
    /// A value in several chunks.
    Large(Vec<u8>, LoadedValue),
}

/// See the module. Leaves got their numbers in the order of their keys.
#[derive(Debug)]
pub(crate) struct LoadedRows {
    open: Arc<OpenKeyspace>,
    pages: LoadPages,
    /// The place of the first page that was not read.
    next: usize,
    /// Leaves that were read, in order.
    leaves: VecDeque<Vec<u8>>,
    /// The next row of the first of them.
    row: usize,
    /// The root was read, where it is the only leaf.
    has_read_root: bool,
}

impl LoadedRows {
    pub(super) fn new(open: Arc<OpenKeyspace>, pages: LoadPages) -> LoadedRows {
        LoadedRows { open, pages, next: 0, leaves: VecDeque::new(), row: 0, has_read_root: false }
    }

    /// The next row.
    pub(crate) fn next_row(&mut self) -> Result<Option<LoadedRow>> {
        loop {
            let Some(page) = self.leaves.front() else {
                if !self.read_batch()? {
                    return Ok(None);
                }
                continue;
            };
            let leaf = Leaf::new(page);
            if self.row == leaf.len() {
                self.leaves.pop_front();
                self.row = 0;
                continue;
            }
            let mut key = Vec::new();
            leaf.key_into(self.row, &mut key);
            let value = leaf.value(self.row);
            self.row += 1;
            return Ok(Some(match value {
                RowValue::Inline(value) => LoadedRow::Whole(key, value.to_vec()),
                RowValue::Large(reference) if reference.length <= MEDIUM_BYTES_MAX as u64 => {
                    LoadedRow::Whole(key, self.value(reference).read_chunk()?.unwrap_or_default())
                }
                RowValue::Large(reference) => LoadedRow::Large(key, self.value(reference)),
            }));
        }
    }

    /// Reads pages until there is a leaf; `false` where there are no more.
    fn read_batch(&mut self) -> Result<bool> {
        let pool = &self.open.tree.pool;
        let count = (BATCH_BYTES / self.open.tree.pages.page_bytes).max(1);
        while self.leaves.is_empty() {
            let mut addresses: Vec<ExtentAddress> = Vec::with_capacity(count);
            for (behind, address) in self.pages.written_from(self.next).take(count) {
                self.next = behind;
                addresses.push(address);
            }
            if addresses.is_empty() {
                // A load of one leaf has no other pages, or values alone.
                if std::mem::replace(&mut self.has_read_root, true) {
                    return Ok(false);
                }
                addresses.push(self.pages.tables().root);
            }
            let mut leaves = vec![None; addresses.len()];
            let mut failed = None;
            pool.read_past(&addresses, |index, bytes| {
                match bytes.and_then(|bytes| open_extent(&pool.space, addresses[index], bytes)) {
                    Ok((header, page)) => leaves[index] = (header.kind == Kind::Leaf).then_some(page),
                    Err(error) => failed = Some(error),
                }
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
            self.leaves.extend(leaves.into_iter().flatten());
        }
        Ok(true)
    }

    fn value(&self, reference: LargeRef) -> LoadedValue {
        let table = &self.open.tree.pages.table;
        let pages = (reference.first_page.0..reference.first_page.0 + reference.chunk_count).map(PageId);
        let address = |page| match table.load(page) {
            PageEntry::Unattached(address) => address,
            entry => unreachable!("page {page} of a load that is not attached is {entry:?}"),
        };
        let addresses = pages.map(address).collect();
        LoadedValue { pool: Arc::clone(&self.open.tree.pool), addresses, chunk: Vec::new(), position: 0 }
    }
}

/// A value of a load, read chunk by chunk.
pub(crate) struct LoadedValue {
    pool: Arc<Pool>,
    addresses: VecDeque<ExtentAddress>,
    chunk: Vec<u8>,
    position: usize,
}

impl LoadedValue {
    /// The bytes of the next chunk.
    fn read_chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(address) = self.addresses.pop_front() else { return Ok(None) };
        let (_, mut chunk) = read_extent(&self.pool.space, address)?;
        chunk.drain(..VALUE_BYTES_OFFSET);
        Ok(Some(chunk))
    }
}

impl Read for LoadedValue {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.position == self.chunk.len() {
            let read = self.read_chunk().map_err(|error| std::io::Error::other(error.to_string()))?;
            let Some(chunk) = read else { return Ok(0) };
            (self.chunk, self.position) = (chunk, 0);
        }
        let rest = &self.chunk[self.position..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.position += count;
        Ok(count)
    }
}
