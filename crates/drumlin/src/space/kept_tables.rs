//! Reading the catalogue and the page tables of a kept snapshot.

use std::sync::Arc;

use super::extents::{chunk_entries, open_extent};
use super::kept::{CatalogueRef, KeptSnapshot};
use super::neighbours::NeighbourReader;
use super::parts::read_parts;
use super::runs::Run;
use super::table::CHUNK_PAGES;
use super::{PageSpace, PageTable, Space};
use crate::error::{Error, Result};
use crate::format::catalogue::{CloneOrigin, KeptCatalogue, KeyspaceEntry};
use crate::format::extent::Kind;
use crate::format::{ExtentAddress, KeyspaceId};

impl KeptSnapshot {
    pub(super) fn what(name: &str) -> String {
        format!("the catalogue of kept snapshot {name:?}")
    }

    /// Reads the bytes of the snapshot's catalogue.
    pub(super) fn read(&self, space: &Space, catalogue: CatalogueRef) -> Result<Vec<u8>> {
        let CatalogueRef { last, bytes } = catalogue;
        let read = read_parts(space, Kind::Kept, last, bytes, &KeptSnapshot::what(&self.name), |_| Ok(()));
        read.map(|(_, bytes)| bytes)
    }

    /// Reads the snapshot's catalogue. O(chunks of page tables).
    pub(crate) fn read_catalogue(&self, space: &Space) -> Result<KeptCatalogue> {
        loop {
            let catalogue = *self.catalogue.lock();
            let read = self.read(space, catalogue);
            // A checkpoint may have moved the catalogue, and its old place may have been used again.
            if *self.catalogue.lock() == catalogue {
                let malformed = || Error::corrupted(space.path(), KeptSnapshot::what(&self.name), "it is malformed");
                return KeptCatalogue::decode(&read?).ok_or_else(malformed);
            }
        }
    }

    /// Returns the memory that the page tables of the snapshot take while it is open, in bytes.
    pub(crate) fn table_bytes(catalogue: &KeptCatalogue) -> u64 {
        catalogue.keyspaces.iter().map(|keyspace| PageTable::memory_bytes_of(page_end(keyspace))).sum()
    }

    /// Reads the page tables of the snapshot into memory, which the caller has made available. Returns its keyspaces,
    /// with the ids that they have in the database. O(pages).
    pub(crate) fn open(&self, space: &Space, catalogue: &KeptCatalogue) -> Result<Vec<(KeyspaceId, Arc<PageSpace>)>> {
        let mut opened = Vec::with_capacity(catalogue.keyspaces.len());
        let mut unread = Vec::new();
        for keyspace in &catalogue.keyspaces {
            let id = space.kept.new_id();
            let pages = PageSpace::new(id, keyspace.page_bytes as usize, &keyspace.name, &space.budget);
            let newest_use = space.segments.newest_use();
            let itself = CloneOrigin {
                keyspace: keyspace.id,
                as_of: self.timestamp,
                last_use: newest_use,
                own_after: newest_use,
            };
            let pages = pages.with_origins(&[&[itself], &keyspace.origins[..]].concat());
            pages.leaves_on_disk.set(keyspace.leaf_count, keyspace.leaf_rows);
            pages.runs.restore(keyspace.runs.iter().cloned().map(Run::from).collect());
            let pages = Arc::new(pages);
            space.kept.add(&pages);
            let chunks = keyspace.chunks.iter().enumerate().filter(|(_, address)| !address.is_none());
            unread.extend(chunks.map(|(chunk, address)| (*address, opened.len(), chunk)));
            opened.push((keyspace.id, pages));
        }
        // In disk order, as when the database is opened.
        unread.sort_unstable();
        let addresses: Vec<ExtentAddress> = unread.iter().map(|(address, ..)| *address).collect();
        let mut reader = ChunkReader::new(space);
        for (index, &(address, keyspace, chunk)) in unread.iter().enumerate() {
            let (_, pages) = &opened[keyspace];
            let entries = reader
                .read_next(&addresses[index..], |id| pages.is_stored_as(id), chunk)
                .map_err(|error| self.table_error(space, error, pages, address))?;
            pages.table.restore_chunk(chunk, &entries);
        }
        let bytes: u64 = opened.iter().map(|(_, pages)| pages.table.memory_bytes()).sum();
        assert!(bytes <= KeptSnapshot::table_bytes(catalogue), "the tables take {bytes} bytes, more than was said");
        Ok(opened)
    }

    fn table_error(&self, space: &Space, error: Error, pages: &PageSpace, address: ExtentAddress) -> Error {
        let Error::Corrupted { reason, .. } = error else { return error };
        let what = format!("the page table of keyspace {} of kept snapshot {:?}", pages.quoted_name(), self.name);
        space.corrupted(&what, address, reason)
    }
}

/// Returns the exclusive upper bound of the numbers of a keyspace's pages.
pub(super) fn page_end(keyspace: &KeyspaceEntry) -> u64 {
    keyspace.page_end.min((keyspace.chunks.len() * CHUNK_PAGES) as u64)
}

/// Reads chunks of page tables. Most of them lie next to each other.
pub(crate) struct ChunkReader<'s> {
    space: &'s Space,
    reader: NeighbourReader<'s>,
}

impl ChunkReader<'_> {
    pub(crate) fn new(space: &Space) -> ChunkReader<'_> {
        ChunkReader { space, reader: NeighbourReader::new(space) }
    }

    /// Returns the entries of a chunk, which are all 0 if the chunk has no pages.
    pub(crate) fn read(&mut self, keyspace: &KeyspaceEntry, chunk: usize) -> Result<Vec<u64>> {
        let addresses = keyspace.chunks.get(chunk..).unwrap_or_default();
        if addresses.first().is_none_or(|address| address.is_none()) {
            return Ok(vec![0; CHUNK_PAGES]);
        }
        self.read_next(addresses, |id| keyspace.is_stored_as(id), chunk)
    }

    /// Returns the entries of a chunk. `addresses` begin with its address; those that follow will be read next.
    fn read_next(
        &mut self,
        addresses: &[ExtentAddress],
        is_stored_as: impl Fn(KeyspaceId) -> bool,
        chunk: usize,
    ) -> Result<Vec<u64>> {
        let (space, address) = (self.space, addresses[0]);
        if !space.segments.is_plausible(address) {
            return Err(space.corrupted("a page table", address, "its place is outside of the file"));
        }
        let bytes = self.reader.read(addresses).map_err(|error| Error::io("reading", space.path(), error))?;
        let entries = chunk_entries(space, is_stored_as, chunk, address, open_extent(space, address, bytes)?)?;
        debug_assert!(entries.len() == CHUNK_PAGES, "a chunk of {} entries", entries.len());
        for (offset, entry) in entries.iter().enumerate().filter(|(_, entry)| **entry != 0) {
            let page_address = ExtentAddress::from_bits(*entry).filter(|_| chunk + offset > 0);
            if !page_address.is_some_and(|page_address| space.segments.is_plausible(page_address)) {
                return Err(space.corrupted("a page table", address, "an entry in it is malformed"));
            }
        }
        Ok(entries)
    }
}
