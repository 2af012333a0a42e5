//! The durable side of the page tables: base image, summaries, catalogue, superblock.
//!
//! # The order of a checkpoint
//! 1. The cut fixes the timestamp C and ends epoch e (the caller, under the guard).
//! 2. All pages dirty in e have been appended (the pool).
//! 3. Summaries, or a new base image folded from them, and the catalogue are appended.
//! 4. Everything is written and synced.
//! 5. The log is durable up to C (the caller's `log_durable`).
//! 6. The superblock is written durably, into the slot that does not hold the newest.
//! 7. Only now what was released in e is free.
//!
//! A power cut between any two of these leaves the superblock before, and everything that it refers to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::superblocks::Superblocks;
use super::table::{CHUNK_BYTES, CHUNK_PAGES};
use super::{PageSpace, Space};
use crate::collections::{HashMap, HashSet};
use crate::error::{Error, Result};
use crate::format::catalogue::{Catalogue, KeyspaceEntry};
use crate::format::extent::{HEADER_BYTES, Header, Identity, Kind};
use crate::format::summary::{self, Entry};
use crate::format::superblock::{self, INCARNATION_COUNT_MAX, Superblock};
use crate::format::{BLOCK_BYTES, Epoch, Incarnation, KeyspaceId, PageId, Place, Timestamp, extent};
use crate::io::AlignedBuffer;

/// Payload of one extent of the catalogue or of a summary.
const PART_BYTES: usize = 48 << 10;

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
    summaries: Vec<(Epoch, Place)>,
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
            evacuate: HashSet::default(),
            damaged: Damaged::default(),
            fold_entry_count_max,
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let chunks: usize = self.chunks.values().map(|places| places.capacity() * 8).sum();
        (self.since.capacity() * size_of::<Entry>() + self.summaries.capacity() * 16 + chunks) as u64
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
        space.traffic.writes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        space.traffic.write_bytes.fetch_add(BLOCK_BYTES as u64, std::sync::atomic::Ordering::Relaxed);
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
            if !place.is_none() {
                space.segments.release(place, epoch);
            }
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
            for part in fresh.chunks(PART_BYTES / summary::ENTRY_BYTES) {
                self.summaries.push((epoch, append_summary(space, epoch, part)?));
            }
        }

        for entry in &mut catalogue.keyspaces {
            entry.chunks = self.chunks.get(&entry.id).cloned().unwrap_or_default();
        }
        catalogue.summaries = self.summaries.clone();
        let bytes = catalogue.encode();
        let old = std::mem::take(&mut self.superblock.catalogue);
        for place in old {
            space.segments.release(place, epoch);
        }
        for (index, part) in bytes.chunks(PART_BYTES).enumerate() {
            self.superblock.catalogue.push(append_payload(space, epoch, Kind::Catalogue, KeyspaceId(0), index, part)?);
        }
        if self.superblock.catalogue.len() > superblock::CATALOGUE_EXTENT_COUNT_MAX {
            return Err(space.fail("the catalogue of the checkpoint is too large"));
        }
        space.seal(epoch);
        if cfg!(feature = "plant-reuse-early") {
            space.segments.settle(epoch);
        }
        if cfg!(feature = "plant-swap-superblock") {
            self.cover(epoch, timestamp, bytes.len());
            self.write_superblock(space)?;
            self.superblock.checkpoint -= 1;
        }
        space.wait_for_jobs(written)?;
        if !cfg!(feature = "plant-remove-sync") {
            space.sync()?;
        }
        log_durable()?;
        self.cover(epoch, timestamp, bytes.len());
        self.write_superblock(space)?;
        self.evacuate.clear();
        self.damaged = Damaged::default();
        space.segments.settle(epoch);
        Ok(())
    }

    /// Makes the superblock that of the checkpoint.
    fn cover(&mut self, epoch: Epoch, timestamp: Timestamp, catalogue_bytes: usize) {
        self.superblock.checkpoint += 1;
        self.superblock.timestamp = timestamp;
        self.superblock.epoch = epoch;
        self.superblock.catalogue_bytes = catalogue_bytes as u32;
        self.forget_covered_incarnations();
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
        !self.evacuate.is_empty()
            && (self.summaries.iter().any(|(_, place)| inside(place)) || self.chunks.values().flatten().any(inside))
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
            if !old.is_none() {
                space.segments.release(old, epoch);
            }
        }
        for (_, place) in self.summaries.drain(..) {
            space.segments.release(place, epoch);
        }
        Ok(())
    }

    /// Reads what the superblock refers to and fills page tables and segment states. Page tables larger than
    /// the whole budget of `memory_bytes` are refused before they are made.
    pub(crate) fn load(mut self, space: &Space, memory_bytes: u64) -> Result<Loaded> {
        let catalogue = if self.superblock.epoch == Epoch(0) {
            Catalogue { next_keyspace: 1, next_value: 1, ..Catalogue::default() }
        } else {
            let mut bytes = Vec::new();
            for (index, &place) in self.superblock.catalogue.iter().enumerate() {
                restore(space, "the catalogue", place)?;
                bytes.extend(read_payload(space, Kind::Catalogue, KeyspaceId(0), index, place)?);
            }
            (Catalogue::decode(&bytes).filter(|_| bytes.len() == self.superblock.catalogue_bytes as usize))
                .ok_or_else(|| Error::damaged(space.path(), "the catalogue", "it is malformed"))?
        };
        self.summaries = catalogue.summaries.clone();
        for &(epoch, place) in &self.summaries {
            restore(space, "a summary", place)?;
            self.since.extend(read_summary(space, epoch, place)?);
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
            let pages = Arc::new(PageSpace::new(*id, *page_bytes as usize));
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
        let part = PART_BYTES / summary::ENTRY_BYTES;
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
                    entries.summaries.push((epoch, place));
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

fn restore(space: &Space, what: &str, place: Place) -> Result<()> {
    let flaw = "its place is outside the file, or taken twice; the file may have been cut short";
    if space.segments.restore(place) { Ok(()) } else { Err(space.damaged(what, place, flaw)) }
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
    let header = extent::verify(bytes).map_err(flaw)?;
    if !place.is_of(header.epoch) {
        return Err(flaw(extent::Flaw::Epoch(header.epoch)));
    }
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
    Ok(payload.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect())
}

fn read_summary(space: &Space, epoch: Epoch, place: Place) -> Result<Vec<Entry>> {
    let (header, page) = read_extent(space, place)?;
    if header.kind != Kind::Summary {
        return Err(space.damaged("a summary", place, extent::Flaw::Kind));
    }
    if header.epoch != epoch {
        return Err(space.damaged("a summary", place, extent::Flaw::Epoch(header.epoch)));
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
        for &place in &self.superblock.catalogue {
            is_damaged(place, "the catalogue");
        }
        for &(_, place) in &self.summaries {
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
