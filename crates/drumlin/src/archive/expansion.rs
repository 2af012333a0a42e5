//! Turns a log record into operations that need nothing else of the database.
//!
//! A record refers to extents: of large values, and of the pages of bulk loads. They are read from the data file. A
//! record that no durable checkpoint covers may be replayed, so its extents are in place until then, even if the rows
//! have been changed or removed since.

use crate::error::{Error, Result};
use crate::format::extent::{HEADER_BYTES, Kind, TABLE_PAGES, VALUE_BYTES_OFFSET};
use crate::format::node::LargeRef;
use crate::format::record::{self, AttachedRoot, Attachment, Operation};
use crate::format::{ExtentAddress, KeyspaceId, PageId, Timestamp, ValueId, get_u64};
use crate::pool::Pool;
use crate::space::extents::{open_extent, read_extent};
use crate::space::loading::read_image;
use crate::space::{ChunkImage, Space};
use crate::tree::check_node;
use crate::tree::node::{Inner, Leaf, RowValue};

/// The highest level of an inner node, which bounds the depth of a walk through damaged pages that verify.
const LEVEL_COUNT_MAX: u8 = 32;

/// The operations of a commit on their way to the file.
pub(super) struct Expansion<'e> {
    pub(super) pool: &'e Pool,
    pub(super) timestamp: Timestamp,
    /// The length at which the operations of a large commit are written. Leaves of this length are read together, so
    /// that the device is busy.
    pub(super) part_bytes: usize,
    /// The operations that are not written yet.
    pub(super) out: &'e mut Vec<u8>,
    /// Writes the operations, and empties the vector for those that follow.
    pub(super) write: &'e mut dyn FnMut(&mut Vec<u8>) -> Result<()>,
}

impl Expansion<'_> {
    fn space(&self) -> &Space {
        &self.pool.space
    }

    fn malformed(&self) -> Error {
        let what = format!("log record of timestamp {}", self.timestamp);
        Error::corrupted(self.space().path(), what, "it verifies but makes no sense")
    }

    fn push(&mut self, keyspace: KeyspaceId, operation: &Operation<'_>) -> Result<()> {
        record::encode(keyspace, operation, self.out);
        if self.out.len() >= self.part_bytes { (self.write)(self.out) } else { Ok(()) }
    }

    /// Expands the operations of a record.
    pub(super) fn expand(&mut self, body: &[u8]) -> Result<()> {
        let mut attachment: Option<Attachment> = None;
        for operation in record::decode(body) {
            let (keyspace, operation) = operation.ok_or_else(|| self.malformed())?;
            match operation {
                // The restored database has the changes from the prepare.
                Operation::CommitPrepared { id, .. } => {
                    self.push(keyspace, &Operation::CommitPrepared { id, changes: &[] })?;
                }
                Operation::Put { .. }
                | Operation::Remove { .. }
                | Operation::RemoveRange { .. }
                | Operation::Create { .. }
                | Operation::Drop
                | Operation::Rename { .. }
                | Operation::Clone { .. } => self.push(keyspace, &operation)?,
                Operation::PutLarge { key, length, value_id, extents } => {
                    let addresses: Vec<ExtentAddress> = extents.iter().map(|extent| extent.address).collect();
                    self.put_large(keyspace, key, length, value_id, &addresses)?;
                }
                // Operation 22 follows, which comes first in the archive.
                Operation::Attach(attached) => attachment = Some(attached),
                Operation::Loaded { .. } => {
                    let attachment = attachment.take().ok_or_else(|| self.malformed())?;
                    self.push(keyspace, &operation)?;
                    Load { keyspace, attachment: &attachment, chunk: None }.expand(self)?;
                }
                // For the readers of changes.
                Operation::OldValue(_) => {}
                Operation::PutStored { .. }
                | Operation::Lock { .. }
                | Operation::PutReference { .. }
                | Operation::PutInParts { .. }
                | Operation::ValuePart { .. } => return Err(self.malformed()),
            }
        }
        Ok(())
    }

    /// Reads a large value from its extents.
    fn put_large(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        length: u64,
        value_id: ValueId,
        addresses: &[ExtentAddress],
    ) -> Result<()> {
        self.push(keyspace, &Operation::PutInParts { key, length })?;
        let mut found_bytes = 0;
        for (index, &address) in addresses.iter().enumerate() {
            let (header, page) = read_extent(self.space(), address)?;
            let is_it = header.kind == Kind::Value
                && header.page_key.page == PageId(index as u32)
                && page.len() >= VALUE_BYTES_OFFSET
                && ValueId(get_u64(&page, HEADER_BYTES)) == value_id;
            if !is_it {
                return Err(self.space().corrupted("a value", address, "it belongs to something else"));
            }
            let bytes = &page[VALUE_BYTES_OFFSET..];
            found_bytes += bytes.len() as u64;
            self.push(keyspace, &Operation::ValuePart { bytes })?;
        }
        if found_bytes == length { Ok(()) } else { Err(self.malformed()) }
    }
}

/// The pages of a bulk load, or of the changes of a large transaction.
struct Load<'l> {
    keyspace: KeyspaceId,
    attachment: &'l Attachment,
    /// The chunk of the page table that was read last: its number, and the addresses in it.
    chunk: Option<(u32, Vec<ExtentAddress>)>,
}

impl Load<'_> {
    fn expand(&mut self, expansion: &mut Expansion<'_>) -> Result<()> {
        let root = match self.attachment.root {
            AttachedRoot::Tree(root) => root.address,
            AttachedRoot::Run(page) => self.address(expansion, page)?,
        };
        let (kind, page) = self.read_node(expansion, root)?;
        match kind {
            Kind::Leaf => self.expand_leaf(expansion, &page),
            _ => self.expand_inner(expansion, &page, LEVEL_COUNT_MAX),
        }
    }

    /// Returns the address that a page of the load was written to.
    fn address(&mut self, expansion: &Expansion<'_>, page: PageId) -> Result<ExtentAddress> {
        let number = page.0 / TABLE_PAGES as u32;
        if self.chunk.as_ref().is_none_or(|(loaded, _)| *loaded != number) {
            let images = &self.attachment.images;
            let at = images.binary_search_by_key(&number, |(chunk, _)| *chunk).map_err(|_| expansion.malformed())?;
            let (keyspace, chunk, address) = (self.keyspace, number as usize, images[at].1.address);
            let addresses = read_image(expansion.space(), ChunkImage { keyspace, chunk, address })?;
            self.chunk = Some((number, addresses));
        }
        let (_, addresses) = self.chunk.as_ref().expect("it was just read");
        let address = addresses[page.0 as usize % TABLE_PAGES];
        if address.is_none() { Err(expansion.malformed()) } else { Ok(address) }
    }

    fn read_node(&self, expansion: &Expansion<'_>, address: ExtentAddress) -> Result<(Kind, Vec<u8>)> {
        let (header, page) = read_extent(expansion.space(), address)?;
        check_node(&page, header.kind).map_err(|reason| expansion.space().corrupted("a page", address, reason))?;
        Ok((header.kind, page))
    }

    fn expand_inner(&mut self, expansion: &mut Expansion<'_>, page: &[u8], levels_left: u8) -> Result<()> {
        let inner = Inner::new(page);
        if inner.level() > levels_left {
            return Err(expansion.malformed());
        }
        let children: Vec<PageId> = (0..inner.len()).map(|index| inner.child(index)).collect();
        if inner.level() == 1 {
            let count = (expansion.part_bytes / page.len()).max(1);
            return children.chunks(count).try_for_each(|leaves| self.expand_leaves(expansion, leaves));
        }
        for child in children {
            let address = self.address(expansion, child)?;
            let (kind, page) = self.read_node(expansion, address)?;
            if kind != Kind::Inner {
                return Err(expansion.malformed());
            }
            self.expand_inner(expansion, &page, inner.level() - 1)?;
        }
        Ok(())
    }

    /// Reads leaves together, and expands them in order.
    fn expand_leaves(&mut self, expansion: &mut Expansion<'_>, leaves: &[PageId]) -> Result<()> {
        let addresses = leaves.iter().map(|&leaf| self.address(expansion, leaf)).collect::<Result<Vec<_>>>()?;
        let mut pages: Vec<Vec<u8>> = vec![Vec::new(); addresses.len()];
        let mut failed = None;
        let space = expansion.space();
        expansion.pool.read_past(&addresses, |index, bytes| {
            let opened = bytes.and_then(|bytes| open_extent(space, addresses[index], bytes));
            let checked = opened.and_then(|(header, page)| {
                let is_leaf = check_node(&page, header.kind).map(|()| header.kind == Kind::Leaf);
                let is_leaf = is_leaf.map_err(|reason| space.corrupted("a page", addresses[index], reason))?;
                if is_leaf { Ok(page) } else { Err(expansion.malformed()) }
            });
            match checked {
                Ok(page) => pages[index] = page,
                Err(error) => drop(failed.get_or_insert(error)),
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        pages.iter().try_for_each(|page| self.expand_leaf(expansion, page))
    }

    fn expand_leaf(&mut self, expansion: &mut Expansion<'_>, page: &[u8]) -> Result<()> {
        let leaf = Leaf::new(page);
        let mut key = Vec::new();
        for index in 0..leaf.len() {
            leaf.key_into(index, &mut key);
            match leaf.value(index) {
                RowValue::Inline(value) => expansion.push(self.keyspace, &Operation::Put { key: &key, value })?,
                RowValue::Large(LargeRef::REMOVED) => {
                    expansion.push(self.keyspace, &Operation::Remove { key: &key })?;
                }
                RowValue::Large(reference) if !reference.is_plausible() => return Err(expansion.malformed()),
                RowValue::Large(reference) => {
                    let pages = (0..reference.chunk_count).map(|chunk| PageId(reference.first_page.0 + chunk));
                    let addresses =
                        pages.map(|page| self.address(expansion, page)).collect::<Result<Vec<ExtentAddress>>>()?;
                    expansion.put_large(self.keyspace, &key, reference.length, reference.id, &addresses)?;
                }
            }
        }
        Ok(())
    }
}
