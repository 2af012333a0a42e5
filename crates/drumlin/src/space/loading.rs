//! Reading the page tables, and everything else that the newest superblock refers to, when a database is opened or
//! checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::checkpoint::{PageTableStore, append_changes};
use super::extents::{chunk_entries, numbers, open_extent, read_extent, read_payload};
use super::neighbours::NeighbourReader;
use super::parts::read_parts;
use super::runs::Run;
use super::segments::SegmentTableChunk;
use super::table::CHUNK_PAGES;
use super::{ChunkImage, PageSpace, PageTable, Space};
use crate::error::{Error, OnCorruption, Result, sound};
use crate::format::catalogue::{self, Catalogue, KeyspaceEntry};
use crate::format::extent::{HEADER_BYTES, Kind, SEGMENT_TABLE_ENTRIES};
use crate::format::summary::{self, TableChange};
use crate::format::{Epoch, ExtentAddress, ExtentRef, KeyspaceId, PageId, SegmentUse, ValueId, extent};
use crate::hash::HashMap;

/// The catalogue is read only if the budget has room for this many times its size, because it is in memory twice:
/// encoded and decoded.
const CATALOGUE_BUDGET_FACTOR: u64 = 4;

/// The database as its newest superblock describes it.
#[derive(Debug)]
pub(crate) struct LoadedTables {
    pub(crate) page_tables: PageTableStore,
    pub(crate) catalogue: Catalogue,
}

impl PageTableStore {
    /// Reads everything that the superblock refers to, and fills the page tables and segment states. If the catalogue
    /// or the page tables would not fit into the budget of `memory_bytes`, fails before allocating them. If
    /// `on_corruption` continues after an error, the corrupted structure counts as empty.
    pub(crate) fn load(
        mut self,
        space: &Space,
        memory_bytes: u64,
        on_corruption: OnCorruption<'_>,
    ) -> Result<LoadedTables> {
        let catalogue = match self.superblock.epoch {
            Epoch(0) => None,
            _ => sound(self.read_catalogue(space, memory_bytes), on_corruption)?,
        };
        self.corrupted.catalogue = catalogue.is_none() && self.superblock.epoch != Epoch(0);
        let none = || Catalogue { next_keyspace: 1, next_value: ValueId(1), ..Catalogue::default() };
        let catalogue = catalogue.unwrap_or_else(none);
        self.read_segment_table(space, &catalogue.segments, on_corruption)?;
        self.kept.load(space, &catalogue.kept, |what, part| restore_named(space, what, part), on_corruption)?;
        self.summaries = catalogue.summaries.clone();
        self.record_summaries(space);
        for &address in &self.summaries {
            let what = "a summary of changes of the page tables";
            let read = restore(space, what, address).and_then(|()| read_summary(space, address));
            let read = read.map_err(|error| named(error, space, what, address));
            match sound(read, on_corruption)? {
                Some(read) => append_changes(&mut self.table_changes, &read),
                None => self.corrupted.summary = true,
            }
        }
        let changes = self.changes_by_chunk();
        let chunk_count = |keyspace: &KeyspaceEntry| {
            let changed = changes.get(&keyspace.id).and_then(BTreeMap::last_key_value);
            keyspace.chunks.len().max(changed.map_or(0, |(chunk, _)| chunk + 1))
        };
        let table_bytes = |keyspace: &KeyspaceEntry| {
            // A table whose end is wrong must not take more memory than its chunks need.
            let ends = keyspace.page_end.min((chunk_count(keyspace) * CHUNK_PAGES) as u64);
            PageTable::memory_bytes_of(ends)
        };
        space.check_opened_tables(catalogue.keyspaces.iter().map(table_bytes).sum())?;
        let mut unread = Vec::new();
        for keyspace in &catalogue.keyspaces {
            let KeyspaceEntry { id, page_bytes, leaf_count, leaf_rows, has_values, chunks, name, runs, .. } = keyspace;
            if !crate::format::node::is_page_bytes(*page_bytes as usize) {
                let reason = format!("keyspace {name:?} has pages of {page_bytes} bytes");
                on_corruption(Error::corrupted(space.path(), "the catalogue", reason))?;
                continue;
            }
            let pages = PageSpace::new(*id, *page_bytes as usize, name, &space.budget);
            let pages = Arc::new(pages.with_origins(&keyspace.origins));
            pages.leaves_on_disk.set(*leaf_count, *leaf_rows);
            if *has_values {
                pages.expect_values();
            }
            let address = |chunk| chunks.get(chunk).copied().unwrap_or(ExtentAddress::NONE);
            unread
                .extend((0..chunk_count(keyspace)).map(|chunk| (address(chunk), keyspace, chunk, Arc::clone(&pages))));
            self.chunks.insert(*id, chunks.clone().into());
            space.restore_runs(&pages, runs.iter().cloned().map(Run::from).collect());
            space.add_page_space(pages);
        }
        // In disk order: the chunks of many small keyspaces lie next to each other.
        // Clones come last, because extents that they share may be counted twice.
        unread.sort_unstable_by_key(|(address, keyspace, chunk, pages)| {
            (!keyspace.origins.is_empty(), *address, pages.id, *chunk)
        });
        let addresses: Vec<ExtentAddress> = unread.iter().map(|(address, ..)| *address).collect();
        let mut reader = NeighbourReader::new(space);
        for (index, (_, keyspace, chunk, pages)) in unread.into_iter().enumerate() {
            let changed = changes.get(&keyspace.id).and_then(|changed| changed.get(&chunk));
            let entries =
                self.load_chunk(space, keyspace, (chunk, changed), &addresses[index..], &mut reader, on_corruption)?;
            pages.table.restore_chunk(chunk, &entries);
        }
        Ok(LoadedTables { page_tables: self, catalogue })
    }

    /// Returns the page-table changes since the base image, by keyspace and chunk. Omits changes to keyspaces that were
    /// dropped afterwards.
    fn changes_by_chunk(&self) -> HashMap<KeyspaceId, BTreeMap<usize, Vec<TableChange>>> {
        let mut changes: HashMap<KeyspaceId, BTreeMap<usize, Vec<TableChange>>> = HashMap::default();
        for change in &self.table_changes {
            if change.page == PageId::NONE {
                changes.remove(&change.keyspace);
            } else {
                let chunk = change.page.0 as usize / CHUNK_PAGES;
                changes.entry(change.keyspace).or_default().entry(chunk).or_default().push(*change);
            }
        }
        changes
    }

    /// Returns the entries of a table's chunk, made from its base image and the changes since then. `addresses` begin
    /// with the address of the image; those that follow will be read next. Marks the extents that the entries name as
    /// in use.
    fn load_chunk(
        &mut self,
        space: &Space,
        keyspace: &KeyspaceEntry,
        (chunk, changed): (usize, Option<&Vec<TableChange>>),
        addresses: &[ExtentAddress],
        reader: &mut NeighbourReader<'_>,
        on_corruption: OnCorruption<'_>,
    ) -> Result<Vec<u64>> {
        let KeyspaceEntry { id, name, .. } = keyspace;
        let address = addresses[0];
        let mut entries = vec![0; CHUNK_PAGES];
        if !address.is_none() {
            let what = format!("chunk {chunk} of the page table of keyspace {name:?}");
            let read = restore_of(space, keyspace, &what, address)
                .and_then(|()| reader.read(addresses).map_err(|error| Error::io("reading", space.path(), error)))
                .and_then(|bytes| open_extent(space, address, bytes))
                .and_then(|extent| chunk_entries(space, |id| keyspace.is_stored_as(id), chunk, address, extent))
                .map_err(|error| named(error, space, &what, address));
            match sound(read, on_corruption)? {
                Some(read) => entries = read,
                None => drop(self.corrupted.chunks.insert((*id, chunk))),
            }
        }
        assert_eq!(entries.len(), CHUNK_PAGES, "chunk {chunk} of {id} has other entries than its pages");
        for change in changed.into_iter().flatten() {
            assert!(
                change.keyspace == *id && change.page.0 as usize / CHUNK_PAGES == chunk,
                "{change:?} is of another chunk"
            );
            entries[change.page.0 as usize % CHUNK_PAGES] = change.address.to_bits();
        }
        for (offset, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| **entry != 0) {
            let page = chunk * CHUNK_PAGES + offset;
            let address = ExtentAddress::from_bits(*entry).filter(|_| page != 0);
            let address = address.ok_or_else(|| {
                let what = format!("the page table of keyspace {name:?}");
                Error::corrupted(space.path(), what, "an entry in it is malformed")
            });
            let restored = address.and_then(|address| {
                restore_of(space, keyspace, format_args!("page {page} of keyspace {name:?}"), address)
            });
            if let Err(error) = restored {
                // If a summary is damaged, outdated entries are expected, so they are not reported.
                if !self.corrupted.summary {
                    on_corruption(error)?;
                }
                *entry = 0;
            }
        }
        Ok(entries)
    }

    /// Reads the catalogue. Marks its parts as in use.
    fn read_catalogue(&mut self, space: &Space, memory_bytes: u64) -> Result<Catalogue> {
        const WHAT: &str = "the catalogue";
        let catalogue_bytes = self.superblock.catalogue_bytes;
        let budget_bytes = CATALOGUE_BUDGET_FACTOR.saturating_mul(catalogue_bytes);
        let part_count = catalogue_bytes.div_ceil(catalogue::PART_BYTES as u64);
        if budget_bytes > memory_bytes && u32::try_from(part_count).is_ok() {
            return Err(Error::BudgetTooSmall { given_bytes: memory_bytes, minimum_bytes: budget_bytes });
        }
        let restore = |part: ExtentRef| restore_named(space, WHAT, part);
        let last = self.superblock.catalogue;
        let (parts, bytes) = read_parts(space, Kind::Catalogue, last, catalogue_bytes, WHAT, restore)?;
        self.catalogue = parts;
        let malformed = || Error::corrupted(space.path(), WHAT, "it is malformed");
        Catalogue::decode(&bytes).ok_or_else(malformed)
    }

    /// Restores the segment table, which is needed to verify all other extents.
    fn read_segment_table(
        &mut self,
        space: &Space,
        named: &[ExtentRef],
        on_corruption: OnCorruption<'_>,
    ) -> Result<()> {
        let chunk_count = space.segments.chunk_count();
        for (chunk, &extent) in
            (0..).map(SegmentTableChunk).zip(named).filter(|(_, extent)| **extent != ExtentRef::NONE)
        {
            if sound(restore_named(space, "the table of segments", extent), on_corruption)?.is_none() {
                self.corrupted.segment_chunks.insert(chunk);
            }
        }
        self.segment_table = named.iter().map(|extent| extent.address).collect();
        // Leave out the chunks beyond the end of the file, which may have shrunk since the checkpoint.
        for (chunk, &address) in (0..chunk_count).map(SegmentTableChunk).zip(&self.segment_table) {
            if address.is_none() || self.corrupted.segment_chunks.contains(&chunk) {
                continue;
            }
            let read = read_payload(space, Kind::Segments, KeyspaceId(0), chunk.index(), address);
            let read = read.and_then(|payload| match payload.len() == SEGMENT_TABLE_ENTRIES * 8 {
                true => Ok(numbers(&payload).into_iter().map(SegmentUse).collect::<Vec<_>>()),
                false => Err(space.corrupted("the table of segments", address, extent::ExtentError::Length)),
            });
            match sound(read, on_corruption)? {
                Some(uses) => space.segments.restore_uses(chunk, &uses),
                None => drop(self.corrupted.segment_chunks.insert(chunk)),
            }
        }
        self.corrupted.segment_chunks.iter().for_each(|chunk| space.segments.forget_uses(*chunk));
        Ok(())
    }

    /// Verifies every structure that is not a page: catalogue, page tables, summaries. Calls `found` for each error,
    /// with a description of its consequence. Returns the number of bytes read.
    pub(crate) fn check(&mut self, space: &Space, mut found: impl FnMut(Error, &str)) -> u64 {
        const COST: &str = "the database can't be opened again unless a checkpoint succeeds first";
        let mut bytes = 0;
        let mut is_damaged = |address: ExtentAddress, what: &str| {
            bytes += address.length();
            let error = match read_extent(space, address) {
                Ok(_) => return false,
                Err(Error::Corrupted { reason, .. }) => space.corrupted(what, address, reason),
                Err(error) => error,
            };
            found(error, COST);
            true
        };
        // Damage to the catalogue need not be remembered, because each checkpoint rewrites the catalogue.
        for &address in &self.catalogue {
            is_damaged(address, "the catalogue");
        }
        for (chunk, &address) in (0..).map(SegmentTableChunk).zip(&self.segment_table) {
            if !address.is_none() && is_damaged(address, &format!("the table of segments, chunk {},", chunk.0)) {
                self.corrupted.segment_chunks.insert(chunk);
            }
        }
        for &address in &self.summaries {
            self.corrupted.summary |= is_damaged(address, "a summary");
        }
        for (&keyspace, addresses) in &self.chunks {
            for (chunk, &address) in addresses.iter().enumerate() {
                if !address.is_none() && is_damaged(address, &format!("chunk {chunk} of the page table of {keyspace}"))
                {
                    self.corrupted.chunks.insert((keyspace, chunk));
                }
            }
        }
        bytes
    }
}

/// Adds a description of the extent to a read error that reports corruption.
fn named(error: Error, space: &Space, what: &str, address: ExtentAddress) -> Error {
    match error {
        Error::Corrupted { reason, .. } => space.corrupted(what, address, reason),
        other => other,
    }
}

const MISPLACED: &str = "its place is outside the file, taken twice, or named with another use of its segment; the file may have been cut short";

fn restore(space: &Space, what: impl std::fmt::Display, address: ExtentAddress) -> Result<()> {
    if space.segments.restore(address) { Ok(()) } else { Err(space.corrupted(&what.to_string(), address, MISPLACED)) }
}

/// Like [`restore`], for an extent of a keyspace that may be a clone.
fn restore_of(
    space: &Space,
    keyspace: &KeyspaceEntry,
    what: impl std::fmt::Display,
    address: ExtentAddress,
) -> Result<()> {
    if !keyspace.origins.is_empty() && space.segments.is_plausible(address) {
        space.segments.share(&[(space.segments.segment_of(address), address.length())]);
        return Ok(());
    }
    restore(space, what, address)
}

fn restore_named(space: &Space, what: &str, extent: ExtentRef) -> Result<()> {
    if space.segments.restore_named(extent) { Ok(()) } else { Err(space.corrupted(what, extent.address, MISPLACED)) }
}

/// Reads a page-table chunk that a bulk load has written. Returns the address of each page, or `NONE` if the page does
/// not exist.
pub(crate) fn read_image(space: &Space, image: ChunkImage) -> Result<Vec<ExtentAddress>> {
    let ChunkImage { keyspace, chunk, address } = image;
    let is_stored_as = |id| id == keyspace;
    let entries = chunk_entries(space, is_stored_as, chunk, address, read_extent(space, address)?)?;
    let malformed = || Error::corrupted(space.path(), "a page table that was loaded", "an entry in it is malformed");
    let address_of = |bits: u64| match bits {
        0 => Ok(ExtentAddress::NONE),
        _ => ExtentAddress::from_bits(bits).ok_or_else(malformed),
    };
    entries.into_iter().map(address_of).collect()
}

fn read_summary(space: &Space, address: ExtentAddress) -> Result<Vec<TableChange>> {
    let (header, page) = read_extent(space, address)?;
    if header.kind != Kind::Summary {
        return Err(space.corrupted("a summary", address, extent::ExtentError::Kind));
    }
    summary::decode(&page[HEADER_BYTES..])
        .ok_or_else(|| space.corrupted("a summary", address, extent::ExtentError::Length))
}
