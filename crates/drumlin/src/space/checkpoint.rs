//! The durable side of the page tables: base image, summaries, catalogue, superblock.
//!
//! # The order of a checkpoint
//! 1. The cut fixes the timestamp C and ends epoch e (the caller, under the guard).
//! 2. All pages dirty in e have been appended (the pool).
//! 3. Summaries, or a new base image folded from them, are appended; then what has changed of the table of segments, which
//!    says of all that came before in which use of its segment it lies; then the catalogue.
//! 4. Everything is written and synced.
//! 5. The log is durable up to C (the caller's `log_durable`).
//! 6. The superblock is written durably, into the slot that does not hold the newest.
//! 7. Only now what was released in e is free.
//!
//! A power cut between any two of these leaves the superblock before, and everything that it refers to.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::superblocks::Superblocks;
use super::table::{CHUNK_BYTES, CHUNK_PAGES};
use super::{PageSpace, Space};
use crate::collections::{HashMap, HashSet};
use crate::error::{Error, Result};
use crate::format::catalogue::{self, Catalogue, KeyspaceEntry};
use crate::format::extent::{HEADER_BYTES, Header, Identity, Kind, SEGMENT_TABLE_ENTRIES};
use crate::format::summary::{self, Entry};
use crate::format::superblock::{INCARNATION_COUNT_MAX, Superblock};
use crate::format::{BLOCK_BYTES, Epoch, ExtentRef, Incarnation, KeyspaceId, PageId, Place, Timestamp, extent};
use crate::io::AlignedBuffer;

/// Payload of a summary.
const SUMMARY_BYTES: usize = 48 << 10;

/// The catalogue may take this share of the budget while it is read: it is there as bytes and as what they say.
const BUDGET_TO_CATALOGUE: u64 = 4;

/// Entries since the base image at which the next checkpoint folds them in, if they are also an eighth of the pages:
/// reading that many at recovery takes milliseconds.
const FOLD_ENTRY_COUNT_MIN: u64 = 4096;

/// What the newest durable checkpoint is made of; owned by whoever makes the next.
#[derive(Debug)]
pub(crate) struct Base {
    /// What the next superblock says, but for its number and the log's part of it.
    pub(crate) superblock: Superblock,
    superblocks: Arc<Superblocks>,
    /// Place of each chunk of each table's base image.
    chunks: HashMap<KeyspaceId, Vec<Place>>,
    /// Changes since the base image, in order.
    since: Vec<Entry>,
    summaries: Vec<Place>,
    /// The chunks of the table of segments, and the parts of the catalogue.
    segment_table: Vec<Place>,
    catalogue: Vec<Place>,
    /// Chunks and summaries in these segments are to move with the next checkpoint.
    evacuate: HashSet<u32>,
    /// What is damaged where it lies: the next checkpoint writes it anew.
    damaged: Damaged,
    /// Entries since the base image at which it is folded whatever the number of pages: bounds memory.
    fold_entry_count_max: usize,
}

#[derive(Debug, Default)]
struct Damaged {
    chunks: HashSet<(KeyspaceId, usize)>,
    segment_chunks: BTreeSet<u32>,
    summary: bool,
}

/// What a checkpoint records besides pages.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) epoch: Epoch,
    pub(crate) timestamp: Timestamp,
    /// Keyspaces at the cut; their `chunks` are filled in here.
    pub(crate) catalogue: Catalogue,
    /// The places of all pages at the cut, of the [damaged chunks](Base::damaged_chunks).
    pub(crate) damaged_chunks: HashMap<(KeyspaceId, usize), Vec<u64>>,
}

/// A database's state as its newest superblock tells it.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) base: Base,
    pub(crate) catalogue: Catalogue,
}

impl Base {
    pub(crate) fn new(superblock: Superblock, superblocks: Arc<Superblocks>, fold_entry_count_max: usize) -> Base {
        Base {
            superblock,
            superblocks,
            chunks: HashMap::default(),
            since: Vec::new(),
            summaries: Vec::new(),
            segment_table: Vec::new(),
            catalogue: Vec::new(),
            evacuate: HashSet::default(),
            damaged: Damaged::default(),
            fold_entry_count_max,
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let chunks: usize = self.chunks.values().map(|places| places.capacity() * 8).sum();
        let others = self.summaries.capacity() + self.segment_table.capacity() + self.catalogue.capacity();
        (self.since.capacity() * size_of::<Entry>() + others * size_of::<Place>() + chunks) as u64
    }

    /// Everything of the base that lies in these segments moves with the next checkpoint.
    pub(crate) fn evacuate(&mut self, segments: impl IntoIterator<Item = u32>) {
        self.evacuate.extend(segments);
    }

    /// Chunks that can't be read: what they said has to be taken from memory.
    pub(crate) fn damaged_chunks(&self) -> Vec<(KeyspaceId, usize)> {
        self.damaged.chunks.iter().copied().collect()
    }

    /// Writes the superblock with another list of incarnations: the newest checkpoint stays what it is.
    pub(crate) fn raise_incarnation(
        &mut self,
        space: &Space,
        incarnation: Incarnation,
        first: Timestamp,
    ) -> Result<()> {
        let covered = self.superblock.timestamp;
        let incarnations = &mut self.superblock.incarnations;
        assert!(incarnations.last().is_none_or(|&(last, _)| last < incarnation));
        incarnations.push((incarnation, first));
        // A start that the next one's start hides, or that lies at or below the checkpoint together with the next one's,
        // decides about no record any more.
        let mut index = 0;
        while index + 1 < incarnations.len() {
            let (_, next_first) = incarnations[index + 1];
            if incarnations[index].1 >= next_first || next_first <= covered.next() {
                incarnations.remove(index);
            } else {
                index += 1;
            }
        }
        if incarnations.len() > INCARNATION_COUNT_MAX {
            return Err(Error::Invalid(format!(
                "the database was stopped {INCARNATION_COUNT_MAX} times without a checkpoint"
            )));
        }
        self.write_superblock(space)
    }

    fn write_superblock(&mut self, space: &Space) -> Result<()> {
        space.traffic.writes.fetch_add(1, Ordering::Relaxed);
        space.traffic.write_bytes.fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
        let checkpoint = self.superblock.clone();
        self.superblocks
            .write(|next| *next = Superblock { log: std::mem::take(&mut next.log), ..checkpoint })
            .map_err(|error| space.fail(&format!("writing the superblock failed: {error}")))
    }

    /// Steps 3 to 7 of the module's order. On an error the database accepts no more commits.
    pub(crate) fn complete(
        &mut self,
        space: &Space,
        cut: Cut,
        written: impl Fn(&[super::FrameIndex]),
        log_durable: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (epoch, timestamp) = (cut.epoch, cut.timestamp);
        let mut catalogue = cut.catalogue;
        let (fresh, summarised, summaries) = {
            let mut entries = space.entries(epoch).lock();
            let taken = std::mem::take(&mut *entries);
            (taken.fresh, taken.summarised, taken.summaries)
        };
        self.summaries.extend(summaries);
        let entries_start = self.since.len();
        self.since.extend(&summarised);
        let fresh_start = self.since.len();
        self.since.extend(&fresh);
        // The catalogue names their tables no more.
        let dropped: Vec<KeyspaceId> = dropped(&self.since[entries_start..]).collect();
        for place in dropped.into_iter().filter_map(|keyspace| self.chunks.remove(&keyspace)).flatten() {
            release(space, place, epoch);
        }

        let page_count = space.page_count();
        let is_damaged = self.damaged.summary || !cut.damaged_chunks.is_empty();
        if self.since.len() as u64 >= unfolded_entries_max(page_count)
            || is_damaged
            || self.since.len() >= self.fold_entry_count_max
            || self.must_evacuate(space)
        {
            crate::witness::mark!("a checkpoint wrote a new base image");
            self.fold(space, epoch, cut.damaged_chunks)?;
        } else {
            let fresh = self.since[fresh_start..].to_vec();
            for part in fresh.chunks(SUMMARY_BYTES / summary::ENTRY_BYTES) {
                self.summaries.push(append_summary(space, epoch, part)?);
            }
        }

        for entry in &mut catalogue.keyspaces {
            entry.chunks = self.chunks.get(&entry.id).cloned().unwrap_or_default();
        }
        catalogue.summaries = self.summaries.clone();
        self.write_segment_table(space, epoch)?;
        catalogue.segments = self.segment_table.iter().map(|place| space.segments.name(*place)).collect();
        let catalogue_bytes = self.write_catalogue(space, epoch, &catalogue)?;
        space.seal(epoch);
        if cfg!(feature = "plant-reuse-early") {
            space.segments.settle(epoch);
        }
        if cfg!(feature = "plant-swap-superblock") {
            self.cover(epoch, timestamp, catalogue_bytes);
            self.write_superblock(space)?;
            self.superblock.checkpoint -= 1;
        }
        space.wait_for_jobs(written)?;
        if !cfg!(feature = "plant-remove-sync") {
            space.sync()?;
        }
        log_durable()?;
        self.cover(epoch, timestamp, catalogue_bytes);
        self.write_superblock(space)?;
        self.evacuate.clear();
        self.damaged = Damaged::default();
        self.note_summaries(space);
        space.segments.settle(epoch);
        Ok(())
    }

    /// Writes the chunks of the table of segments that have changed, are damaged, or lie where all is moved.
    fn write_segment_table(&mut self, space: &Space, epoch: Epoch) -> Result<()> {
        let segments = &space.segments;
        let mut changed = segments.take_changed_chunks();
        changed.append(&mut self.damaged.segment_chunks);
        let chunk_count = segments.chunk_count() as usize;
        // The file may have become shorter.
        for place in self.segment_table.drain(chunk_count.min(self.segment_table.len())..) {
            release(space, place, epoch);
        }
        self.segment_table.resize(chunk_count, Place::NONE);
        let must_move = |place: &Place| !place.is_none() && self.evacuate.contains(&segments.segment_of(*place).0);
        changed.extend((0..).zip(&self.segment_table).filter(|(_, place)| must_move(place)).map(|(chunk, _)| chunk));
        for chunk in changed {
            let Some(place) = self.segment_table.get_mut(chunk as usize) else { break };
            let payload: Vec<u8> =
                segments.uses_in(chunk).flat_map(|segment_use| segment_use.0.to_le_bytes()).collect();
            release(space, *place, epoch);
            *place = append_payload(space, epoch, Kind::Segments, KeyspaceId(0), chunk as usize, &payload)?;
        }
        Ok(())
    }

    /// Writes the catalogue, each part with the name of the one before it; returns its length.
    fn write_catalogue(&mut self, space: &Space, epoch: Epoch, catalogue: &Catalogue) -> Result<u64> {
        let bytes = catalogue.encode();
        self.catalogue.drain(..).for_each(|place| release(space, place, epoch));
        let mut last = ExtentRef::NONE;
        for (index, part) in bytes.chunks(catalogue::PART_BYTES).enumerate() {
            let payload = [&last.to_bytes()[..], part].concat();
            let place = append_payload(space, epoch, Kind::Catalogue, KeyspaceId(0), index, &payload)?;
            self.catalogue.push(place);
            last = space.segments.name(place);
        }
        self.superblock.catalogue = last;
        Ok(bytes.len() as u64)
    }

    /// Makes the superblock that of the checkpoint.
    fn cover(&mut self, epoch: Epoch, timestamp: Timestamp, catalogue_bytes: u64) {
        self.superblock.checkpoint += 1;
        self.superblock.timestamp = timestamp;
        self.superblock.epoch = epoch;
        self.superblock.catalogue_bytes = catalogue_bytes;
        self.forget_covered_incarnations();
    }

    fn note_summaries(&self, space: &Space) {
        let bytes = self.summaries.len() * size_of::<Place>();
        space.summary_list_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    fn forget_covered_incarnations(&mut self) {
        let covered = self.superblock.timestamp;
        let incarnations = &mut self.superblock.incarnations;
        while incarnations.len() > 1 && incarnations[1].1 <= covered.next() {
            incarnations.remove(0);
        }
    }

    /// Whether something of the base lies in segments that are being emptied.
    pub(crate) fn must_evacuate(&self, space: &Space) -> bool {
        let inside = |place: &Place| !place.is_none() && self.evacuate.contains(&space.segments.segment_of(*place).0);
        !self.evacuate.is_empty() && (self.summaries.iter().any(inside) || self.chunks.values().flatten().any(inside))
    }

    /// Makes a new base image of the old one and the changes since, and releases what it replaces.
    fn fold(&mut self, space: &Space, epoch: Epoch, mut damaged: HashMap<(KeyspaceId, usize), Vec<u64>>) -> Result<()> {
        let since = std::mem::take(&mut self.since);
        let dropped: HashSet<KeyspaceId> = dropped(&since).collect();
        let mut changes: BTreeMap<(KeyspaceId, usize), Vec<Entry>> = BTreeMap::new();
        for entry in since {
            if !dropped.contains(&entry.keyspace) {
                let chunk = entry.page.0 as usize / CHUNK_PAGES;
                changes.entry((entry.keyspace, chunk)).or_default().push(entry);
            }
        }
        for (&keyspace, places) in &self.chunks {
            for (chunk, place) in places.iter().enumerate() {
                let must_move = || self.evacuate.contains(&space.segments.segment_of(*place).0);
                if !place.is_none() && (must_move() || damaged.contains_key(&(keyspace, chunk))) {
                    changes.entry((keyspace, chunk)).or_default();
                }
            }
        }
        for ((keyspace, chunk), entries) in changes {
            let places = self.chunks.entry(keyspace).or_default();
            if places.len() <= chunk {
                places.resize(chunk + 1, Place::NONE);
            }
            let old = places[chunk];
            let mut words = match damaged.remove(&(keyspace, chunk)) {
                Some(words) => words,
                None if old.is_none() => vec![0; CHUNK_PAGES],
                None => read_chunk(space, keyspace, chunk, old)?,
            };
            for entry in entries {
                words[entry.page.0 as usize % CHUNK_PAGES] = entry.place.to_bits();
            }
            let new = if words.iter().all(|word| *word == 0) {
                Place::NONE
            } else {
                let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                append_payload(space, epoch, Kind::Table, keyspace, chunk, &payload)?
            };
            self.chunks.get_mut(&keyspace).expect("entered above")[chunk] = new;
            release(space, old, epoch);
        }
        self.summaries.drain(..).for_each(|place| release(space, place, epoch));
        Ok(())
    }

    /// Reads what the superblock refers to and fills page tables and segment states. Page tables larger than
    /// the whole budget of `memory_bytes` are refused before they are made.
    pub(crate) fn load(mut self, space: &Space, memory_bytes: u64) -> Result<Loaded> {
        let catalogue = if self.superblock.epoch == Epoch(0) {
            Catalogue { next_keyspace: 1, next_value: 1, ..Catalogue::default() }
        } else {
            self.read_catalogue(space, memory_bytes)?
        };
        self.read_segment_table(space, &catalogue.segments)?;
        self.summaries = catalogue.summaries.clone();
        self.note_summaries(space);
        for &place in &self.summaries {
            restore(space, "a summary", place)?;
            self.since.extend(read_summary(space, place)?);
        }
        let mut changes: HashMap<KeyspaceId, BTreeMap<usize, Vec<Entry>>> = HashMap::default();
        for entry in &self.since {
            if entry.page == PageId::NONE {
                changes.remove(&entry.keyspace);
            } else {
                let chunk = entry.page.0 as usize / CHUNK_PAGES;
                changes.entry(entry.keyspace).or_default().entry(chunk).or_default().push(*entry);
            }
        }
        let chunk_count = |keyspace: &KeyspaceEntry| {
            let changed = changes.get(&keyspace.id).and_then(BTreeMap::last_key_value);
            keyspace.chunks.len().max(changed.map_or(0, |(chunk, _)| chunk + 1))
        };
        let table_bytes = catalogue.keyspaces.iter().map(chunk_count).sum::<usize>() as u64 * CHUNK_BYTES;
        if table_bytes > memory_bytes {
            return Err(Error::BudgetTooSmall { given_bytes: memory_bytes, minimum_bytes: 2 * table_bytes });
        }
        for keyspace in &catalogue.keyspaces {
            let chunk_count = chunk_count(keyspace);
            let KeyspaceEntry { id, page_bytes, chunks, name } = keyspace;
            if !crate::format::node::is_page_bytes(*page_bytes as usize) {
                let flaw = format!("keyspace {name:?} has pages of {page_bytes} bytes");
                return Err(Error::damaged(space.path(), "the catalogue", flaw));
            }
            let pages = Arc::new(PageSpace::new(*id, *page_bytes as usize, name.len()));
            let changed = changes.get(id);
            for chunk in 0..chunk_count {
                let place = chunks.get(chunk).copied().unwrap_or(Place::NONE);
                let mut words = if place.is_none() {
                    vec![0; CHUNK_PAGES]
                } else {
                    restore(space, "a page table", place)?;
                    read_chunk(space, *id, chunk, place)?
                };
                for entry in changed.and_then(|changed| changed.get(&chunk)).into_iter().flatten() {
                    words[entry.page.0 as usize % CHUNK_PAGES] = entry.place.to_bits();
                }
                for (offset, &word) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
                    let page = chunk * CHUNK_PAGES + offset;
                    let place = Place::from_bits(word).filter(|_| page != 0);
                    let place = place.ok_or_else(|| {
                        Error::damaged(
                            space.path(),
                            format!("the page table of keyspace {name:?}"),
                            "a word in it is malformed",
                        )
                    })?;
                    restore(space, &format!("page {page} of keyspace {name:?}"), place)?;
                }
                pages.table.restore_chunk(chunk, &words);
            }
            self.chunks.insert(*id, chunks.clone());
            space.add_page_space(pages);
        }
        Ok(Loaded { base: self, catalogue })
    }
}

impl Base {
    /// Reads the catalogue from its last part to its first. No more memory is taken than there are parts.
    fn read_catalogue(&mut self, space: &Space, memory_bytes: u64) -> Result<Catalogue> {
        let malformed = || Error::damaged(space.path(), "the catalogue", "it is malformed");
        let catalogue_bytes = self.superblock.catalogue_bytes;
        let part_bytes = catalogue::PART_BYTES as u64;
        let part_count = u32::try_from(catalogue_bytes.div_ceil(part_bytes)).map_err(|_| malformed())?;
        let budget_bytes = BUDGET_TO_CATALOGUE * catalogue_bytes;
        if budget_bytes > memory_bytes {
            return Err(Error::BudgetTooSmall { given_bytes: memory_bytes, minimum_bytes: budget_bytes });
        }
        let mut parts = Vec::new();
        let mut next = self.superblock.catalogue;
        let mut rest_bytes = catalogue_bytes;
        for index in (0..part_count).rev() {
            if next == ExtentRef::NONE {
                return Err(malformed());
            }
            restore_named(space, "the catalogue", next)?;
            let payload = read_payload(space, Kind::Catalogue, KeyspaceId(0), index as usize, next.place)?;
            let expected_bytes = rest_bytes - u64::from(index) * part_bytes;
            if payload.len() as u64 != ExtentRef::BYTES as u64 + expected_bytes {
                return Err(malformed());
            }
            self.catalogue.push(next.place);
            next = ExtentRef::from_bytes(&payload[..ExtentRef::BYTES]).ok_or_else(malformed)?;
            parts.push(payload);
            rest_bytes -= expected_bytes;
        }
        self.catalogue.reverse();
        let bytes: Vec<u8> = parts.iter().rev().flat_map(|part| &part[ExtentRef::BYTES..]).copied().collect();
        Catalogue::decode(&bytes).filter(|_| next == ExtentRef::NONE).ok_or_else(malformed)
    }

    /// Takes over the table of segments, by which everything else is verified.
    fn read_segment_table(&mut self, space: &Space, named: &[ExtentRef]) -> Result<()> {
        let chunk_count = space.segments.chunk_count();
        for &extent in named.iter().filter(|extent| **extent != ExtentRef::NONE) {
            restore_named(space, "the table of segments", extent)?;
        }
        self.segment_table = named.iter().map(|extent| extent.place).collect();
        // The file may have become shorter since the checkpoint.
        for (chunk, &place) in (0..chunk_count).zip(&self.segment_table) {
            if place.is_none() {
                continue;
            }
            let payload = read_payload(space, Kind::Segments, KeyspaceId(0), chunk as usize, place)?;
            if payload.len() != SEGMENT_TABLE_ENTRIES * 8 {
                return Err(space.damaged("the table of segments", place, extent::Flaw::Length));
            }
            space.segments.restore_uses(chunk, &words(&payload));
        }
        Ok(())
    }
}

/// Keyspaces that these entries drop.
fn dropped(entries: &[Entry]) -> impl Iterator<Item = KeyspaceId> + '_ {
    entries.iter().filter(|entry| entry.page == PageId::NONE).map(|entry| entry.keyspace)
}

/// So many entries, where there are so many pages, are folded into the base image.
fn unfolded_entries_max(page_count: u64) -> u64 {
    (page_count / 8).max(FOLD_ENTRY_COUNT_MIN)
}

impl Space {
    /// Bytes that the entries may take in summaries at the next checkpoint: where they are more, it folds them.
    pub(crate) fn summary_bytes(&self) -> u64 {
        let mut entry_count = self.entry_count() as u64;
        if entry_count > FOLD_ENTRY_COUNT_MIN {
            entry_count = entry_count.min(unfolded_entries_max(self.page_count()));
        }
        entry_count * summary::ENTRY_BYTES as u64
    }

    /// Bytes that the next catalogue may take, but for orphans.
    pub(crate) fn catalogue_bytes(&self) -> u64 {
        // A place for each chunk of a table, and for each summary; an extent's name for each chunk of the table of segments.
        let chunk_list_bytes = self.table_bytes() / CHUNK_BYTES * size_of::<Place>() as u64;
        let segment_list_bytes = u64::from(self.segments.chunk_count()) * ExtentRef::BYTES as u64;
        let fresh_list_bytes = (self.entry_count() / (SUMMARY_BYTES / summary::ENTRY_BYTES) + 2) * size_of::<Place>();
        catalogue::HEAD_BYTES
            + self.keyspace_bytes.load(Ordering::Relaxed)
            + self.summary_list_bytes.load(Ordering::Relaxed)
            + chunk_list_bytes
            + segment_list_bytes
            + fresh_list_bytes as u64
    }

    fn page_count(&self) -> u64 {
        self.page_spaces.read().values().map(|pages| pages.table.page_count()).sum()
    }

    /// Ends the epoch's segment.
    fn seal(&self, epoch: Epoch) {
        let mut jobs = Vec::new();
        let mut appender = self.appender(epoch).lock();
        appender.seal(&self.segments, &mut jobs);
        self.enqueue(jobs);
    }

    /// Puts the entries that are in no summary yet into summaries, once they fill one: keeps what a checkpoint has to write
    /// at its end small.
    pub(crate) fn summarise(&self, guard: &super::Guard<'_>) -> Result<()> {
        let epoch = guard.epoch();
        let part = SUMMARY_BYTES / summary::ENTRY_BYTES;
        let unfolded_max = unfolded_entries_max(self.page_count());
        loop {
            let mut entries = self.entries(epoch).lock();
            // What will be folded needs no summary, and nobody has counted on space for it.
            let will_fold = (entries.fresh.len() + entries.summarised.len()) as u64 >= unfolded_max;
            if entries.fresh.len() < part || will_fold {
                return Ok(());
            }
            let rest = entries.fresh.split_off(part);
            let taken = std::mem::replace(&mut entries.fresh, rest);
            match append_summary(self, epoch, &taken) {
                Ok(place) => {
                    entries.summaries.push(place);
                    entries.summarised.extend(taken);
                }
                Err(error) => {
                    entries.fresh.splice(0..0, taken);
                    return Err(error);
                }
            }
        }
    }
}

const MISPLACED: &str = "its place is outside the file, taken twice, or named with another use of its segment; the file may have been cut short";

fn restore(space: &Space, what: &str, place: Place) -> Result<()> {
    if space.segments.restore(place) { Ok(()) } else { Err(space.damaged(what, place, MISPLACED)) }
}

fn restore_named(space: &Space, what: &str, extent: ExtentRef) -> Result<()> {
    if space.segments.restore_named(extent) { Ok(()) } else { Err(space.damaged(what, extent.place, MISPLACED)) }
}

fn release(space: &Space, place: Place, epoch: Epoch) {
    if !place.is_none() {
        space.segments.release(place, epoch);
    }
}

fn append_payload(
    space: &Space,
    epoch: Epoch,
    kind: Kind,
    keyspace: KeyspaceId,
    index: usize,
    payload: &[u8],
) -> Result<Place> {
    let mut page = vec![0; HEADER_BYTES];
    page.extend_from_slice(payload);
    space.append(epoch, Identity { keyspace, page: PageId(index as u32) }, kind, &page, None)
}

fn append_summary(space: &Space, epoch: Epoch, entries: &[Entry]) -> Result<Place> {
    let mut payload = Vec::with_capacity(entries.len() * summary::ENTRY_BYTES);
    for entry in entries {
        summary::encode(entry, &mut payload);
    }
    append_payload(space, epoch, Kind::Summary, KeyspaceId(0), 0, &payload)
}

/// Reads and verifies an extent that is no page: its header and what was in it before compression.
pub(crate) fn read_extent(space: &Space, place: Place) -> Result<(Header, Vec<u8>)> {
    let (start, length, offset) = space.cover(place);
    let mut buffer = AlignedBuffer::zeroed(length);
    space.read(&mut buffer, start).map_err(|error| Error::io("reading", space.path(), error))?;
    open_extent(space, place, &buffer[offset..offset + place.length() as usize])
}

/// Verifies an extent that was read: its header and what was in it before compression.
pub(crate) fn open_extent(space: &Space, place: Place, bytes: &[u8]) -> Result<(Header, Vec<u8>)> {
    let flaw = |flaw| space.damaged("an extent", place, flaw);
    let header = space.verify(place, bytes).map_err(flaw)?;
    let mut page = vec![0; header.raw_bytes.min(Place::EXTENT_BYTES_MAX as usize)];
    extent::decode(bytes, &header, &mut page).map_err(flaw)?;
    Ok((header, page))
}

fn read_payload(space: &Space, kind: Kind, keyspace: KeyspaceId, index: usize, place: Place) -> Result<Vec<u8>> {
    let (header, mut page) = read_extent(space, place)?;
    if header.kind != kind {
        return Err(space.damaged("an extent", place, extent::Flaw::Kind));
    }
    if header.identity != (Identity { keyspace, page: PageId(index as u32) }) {
        return Err(space.damaged("an extent", place, extent::Flaw::Identity(header.identity)));
    }
    page.drain(..HEADER_BYTES);
    Ok(page)
}

fn read_chunk(space: &Space, keyspace: KeyspaceId, chunk: usize, place: Place) -> Result<Vec<u64>> {
    let payload = read_payload(space, Kind::Table, keyspace, chunk, place)?;
    if payload.len() != CHUNK_PAGES * 8 {
        return Err(space.damaged("a page table", place, extent::Flaw::Length));
    }
    Ok(words(&payload))
}

fn words(payload: &[u8]) -> Vec<u64> {
    payload.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

fn read_summary(space: &Space, place: Place) -> Result<Vec<Entry>> {
    let (header, page) = read_extent(space, place)?;
    if header.kind != Kind::Summary {
        return Err(space.damaged("a summary", place, extent::Flaw::Kind));
    }
    summary::decode(&page[HEADER_BYTES..]).ok_or_else(|| space.damaged("a summary", place, extent::Flaw::Length))
}

impl Base {
    /// Verifies everything that is not a page: catalogue, page tables, summaries. Each damage found is handed to `found`
    /// with what it costs; returns the bytes read.
    pub(crate) fn check(&mut self, space: &Space, mut found: impl FnMut(Error, &str)) -> u64 {
        const COST: &str = "the database can't be opened again unless a checkpoint succeeds first";
        let mut bytes = 0;
        let mut is_damaged = |place: Place, what: &str| {
            bytes += place.length();
            let error = match read_extent(space, place) {
                Ok(_) => return false,
                Err(Error::Damaged { flaw, .. }) => space.damaged(what, place, flaw),
                Err(error) => error,
            };
            found(error, COST);
            true
        };
        // The catalogue is written anew by each checkpoint.
        for &place in &self.catalogue {
            is_damaged(place, "the catalogue");
        }
        for (chunk, &place) in (0..).zip(&self.segment_table) {
            if !place.is_none() && is_damaged(place, &format!("the table of segments, chunk {chunk},")) {
                self.damaged.segment_chunks.insert(chunk);
            }
        }
        for &place in &self.summaries {
            self.damaged.summary |= is_damaged(place, "a summary");
        }
        for (&keyspace, places) in &self.chunks {
            for (chunk, &place) in places.iter().enumerate() {
                if !place.is_none() && is_damaged(place, &format!("chunk {chunk} of the page table of {keyspace}")) {
                    self.damaged.chunks.insert((keyspace, chunk));
                }
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::catalogue::Orphan;
    use crate::io::{OpenOptions, SyncMethod};

    const MEMORY_BYTES: u64 = 1 << 30;

    fn stage() -> (Space, Base) {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = crate::io::in_memory().open(std::path::Path::new("data"), options).unwrap();
        file.set_len(64 << 10).unwrap();
        let superblock = Superblock {
            sequence: 1,
            database: 77,
            segment_bytes: 64 << 10,
            checkpoint: 0,
            timestamp: Timestamp(0),
            epoch: Epoch(0),
            catalogue_bytes: 0,
            catalogue: ExtentRef::NONE,
            incarnations: vec![(Incarnation(1), Timestamp(1))],
            log: Vec::new(),
        };
        let base = base(&file, superblock);
        (space(&file, 1), base)
    }

    fn space(file: &crate::io::FileRef, incarnation: u32) -> Space {
        let count = (file.len().unwrap() >> 16) as u32;
        let epoch = Epoch::first_of(Incarnation(incarnation));
        let budget = Arc::new(crate::memory::Budget::new(MEMORY_BYTES, 1));
        Space::new(std::path::Path::new("data"), Arc::clone(file), 77, 64 << 10, count, epoch, budget)
    }

    fn base(file: &crate::io::FileRef, superblock: Superblock) -> Base {
        let superblocks = Superblocks::new(Arc::clone(file), SyncMethod::FullSync, superblock.clone());
        Base::new(superblock, Arc::new(superblocks), 1 << 20)
    }

    fn checkpoint(space: &Space, base: &mut Base, catalogue: &Catalogue) {
        let (epoch, ()) = space.cut(|_| ());
        let cut =
            Cut { epoch, timestamp: Timestamp(1), catalogue: catalogue.clone(), damaged_chunks: HashMap::default() };
        base.complete(space, cut, |_| (), || Ok(())).unwrap();
    }

    fn catalogue(orphan_count: u32, keyspace_count: u32) -> Catalogue {
        let orphan = |first_page| Orphan { keyspace: KeyspaceId(1), first_page: PageId(first_page), page_count: 1 };
        let keyspace =
            |id| KeyspaceEntry { id: KeyspaceId(id), page_bytes: 4096, name: format!("{id:0255}"), chunks: Vec::new() };
        Catalogue {
            next_keyspace: 1 + keyspace_count,
            next_value: 1,
            keyspaces: (1..=keyspace_count).map(keyspace).collect(),
            summaries: Vec::new(),
            segments: Vec::new(),
            orphans: (0..orphan_count).map(orphan).collect(),
        }
    }

    /// The catalogue is as long as it has to be, also longer than what a superblock could list, and is read again; a budget
    /// that has no room for it is refused before it is read.
    #[test]
    fn a_catalogue_has_no_limit() {
        for (orphan_count, keyspace_count) in [(0, 0), (900_000, 0), (3, 36_500), (1_000_000, 100)] {
            let (space, mut base) = stage();
            let written = catalogue(orphan_count, keyspace_count);
            for _ in 0..2 {
                checkpoint(&space, &mut base, &written);
            }
            let superblock = base.superblock.clone();
            assert_eq!(
                superblock.catalogue_bytes,
                written.encode().len() as u64 + 16 * base.segment_table.len() as u64
            );
            let live_bytes = space.segments.usage().live_bytes;
            let again = self::space(space.file(), 2);
            let loaded = self::base(space.file(), superblock.clone()).load(&again, MEMORY_BYTES).unwrap();
            assert_eq!(loaded.catalogue.orphans, written.orphans);
            assert_eq!(loaded.catalogue.keyspaces, written.keyspaces);
            assert_eq!(again.segments.usage().live_bytes, live_bytes, "what lives is what was written");
            if superblock.catalogue_bytes > 1 << 20 {
                let again = self::space(space.file(), 2);
                let refused = self::base(space.file(), superblock).load(&again, 2 << 20);
                assert!(matches!(refused, Err(Error::BudgetTooSmall { .. })), "{refused:?}");
            }
        }
    }

    /// A superblock that verifies and names a catalogue of senseless length, or another part than the last, is damage.
    #[test]
    fn a_misnamed_catalogue_is_damage() {
        let (space, mut base) = stage();
        checkpoint(&space, &mut base, &catalogue(20_000, 0));
        let sound = base.superblock.clone();
        let named = |place: Place| space.segments.name(place);
        let parts: Vec<Place> = base.catalogue.clone();
        assert!(parts.len() > 3);
        let wrong = [
            Superblock { catalogue_bytes: sound.catalogue_bytes - 1, ..sound.clone() },
            Superblock { catalogue_bytes: sound.catalogue_bytes + 1, ..sound.clone() },
            Superblock { catalogue_bytes: 0, ..sound.clone() },
            Superblock { catalogue_bytes: 48 << 10, ..sound.clone() },
            Superblock { catalogue_bytes: sound.catalogue_bytes + (48 << 10), ..sound.clone() },
            Superblock { catalogue_bytes: u64::MAX, ..sound.clone() },
            Superblock { catalogue: named(parts[0]), ..sound.clone() },
            Superblock { catalogue: named(parts[parts.len() - 2]), ..sound.clone() },
            Superblock { catalogue: ExtentRef::NONE, ..sound.clone() },
        ];
        for superblock in wrong {
            let again = self::space(space.file(), 2);
            let loaded = self::base(space.file(), superblock.clone()).load(&again, MEMORY_BYTES);
            assert!(matches!(loaded, Err(Error::Damaged { .. })), "{superblock:?}: {loaded:?}");
        }
    }
}
