//! The durable form of the page tables: base image, summaries, catalogue, superblock. `loading.rs` reads them back.
//!
//! The steps of a checkpoint from its summaries to its superblock are methods of [`PageTableStore`]. ARCHITECTURE.md
//! ("The life of a checkpoint") lists all steps; `store/checkpoint.rs` calls them in order. If one of them fails, the
//! database accepts no more commits.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::extents::{append_payload, chunk_entries, read_extent};
use super::kept_list::KeptList;
use super::parts::append_parts;
use super::segments::SegmentTableChunk;
use super::superblocks::Superblocks;
use super::table::{CHUNK_BYTES, CHUNK_PAGES};
use super::table_log::EpochChanges;
use super::{ChunkImage, Space};
use crate::error::Result;
use crate::format::catalogue::{self, Catalogue, CloneOrigin, KeptCatalogue, KeyspaceEntry};
use crate::format::extent::{Kind, SEGMENT_TABLE_ENTRIES};
use crate::format::summary::{self, TableChange};
use crate::format::superblock::{INCARNATION_COUNT_MAX, Superblock};
use crate::format::{
    BLOCK_BYTES, CheckpointId, Epoch, ExtentAddress, ExtentRef, Incarnation, KeyspaceId, PageId, SegmentId, Timestamp,
};
use crate::hash::{HashMap, HashSet};
use crate::io::FolderRef;
use crate::memory::reserve;

/// The number of openings that the superblock may list before they are
/// [forgotten](PageTableStore::forget_incarnations). Outside of simulations, it is the number that fits. Simulations
/// forget openings sooner, to exercise this.
const INCARNATIONS_LISTED_MAX: usize = if cfg!(feature = "sim") { 3 } else { INCARNATION_COUNT_MAX };

/// Payload bytes of a summary.
const SUMMARY_BYTES: usize = 48 << 10;

/// The minimum number of changes since the base image before the next checkpoint folds them in. In addition, they must
/// amount to an eighth of the pages. Reading 4,096 changes during recovery takes milliseconds.
const FOLD_CHANGE_COUNT_MIN: u64 = 4096;

/// The addresses of the chunks of a table's base image. Most tables have one chunk, whose address takes no allocation.
/// A table grows so rarely that longer lists have no spare capacity.
#[derive(Debug)]
pub(crate) enum ChunkAddresses {
    One([ExtentAddress; 1]),
    Others(Box<[ExtentAddress]>),
}

impl Default for ChunkAddresses {
    fn default() -> Self {
        ChunkAddresses::Others(Box::default())
    }
}

impl From<Vec<ExtentAddress>> for ChunkAddresses {
    fn from(addresses: Vec<ExtentAddress>) -> Self {
        match addresses[..] {
            [address] => ChunkAddresses::One([address]),
            _ => ChunkAddresses::Others(addresses.into()),
        }
    }
}

impl Deref for ChunkAddresses {
    type Target = [ExtentAddress];

    fn deref(&self) -> &[ExtentAddress] {
        match self {
            ChunkAddresses::One(address) => address,
            ChunkAddresses::Others(addresses) => addresses,
        }
    }
}

impl DerefMut for ChunkAddresses {
    fn deref_mut(&mut self) -> &mut [ExtentAddress] {
        match self {
            ChunkAddresses::One(address) => address,
            ChunkAddresses::Others(addresses) => addresses,
        }
    }
}

impl ChunkAddresses {
    /// Makes room for `count` addresses, if there are fewer.
    fn lengthen(&mut self, count: usize) {
        assert!(count > 0, "a table has no chunks");
        if self.len() < count {
            let mut longer = self.to_vec();
            longer.resize(count, ExtentAddress::NONE);
            *self = longer.into();
        }
        debug_assert!(self.len() >= count, "{} addresses in place of {count}", self.len());
    }
}

/// The newest durable checkpoint. Owned by the thread that makes the next checkpoint.
#[derive(Debug)]
pub(crate) struct PageTableStore {
    /// The next superblock, except for its number and the part that describes the log.
    pub(crate) superblock: Superblock,
    superblocks: Arc<Superblocks>,
    /// The address of each chunk of each table's base image.
    pub(super) chunks: HashMap<KeyspaceId, ChunkAddresses>,
    /// Changes since the base image, in order. The sequence number of a change is its index in this list.
    pub(super) table_changes: Vec<TableChange>,
    pub(super) summaries: Vec<ExtentAddress>,
    /// The addresses of the segment table's chunks, and of the catalogue's parts.
    pub(super) segment_table: Vec<ExtentAddress>,
    pub(super) catalogue: Vec<ExtentAddress>,
    pub(crate) kept: KeptList,
    /// The segments to be emptied. The next checkpoint moves the chunks, the summaries and the catalogues of kept
    /// snapshots out of them.
    evacuate: HashSet<SegmentId>,
    /// The structures that are corrupted on disk. The next checkpoint rewrites them.
    pub(super) corrupted: Corrupted,
    /// The number of changes since the base image at which they are folded in, regardless of the number of pages. It
    /// limits the memory for the changes.
    change_count_max: usize,
    /// Set while a clone is being made, which needs the page tables as of a checkpoint in a base image.
    pub(super) always_folds: bool,
    /// Clones whose first chunk is still that of their origin. The next checkpoint writes one that names the origins.
    pub(super) new_clones: Vec<KeyspaceId>,
}

#[derive(Debug, Default)]
pub(super) struct Corrupted {
    pub(super) chunks: HashSet<(KeyspaceId, usize)>,
    pub(super) segment_chunks: BTreeSet<SegmentTableChunk>,
    pub(super) summary: bool,
    pub(super) catalogue: bool,
}

impl PageTableStore {
    pub(crate) fn new(
        superblock: Superblock,
        superblocks: Arc<Superblocks>,
        change_count_max: usize,
    ) -> PageTableStore {
        PageTableStore {
            superblock,
            superblocks,
            chunks: HashMap::default(),
            table_changes: Vec::new(),
            summaries: Vec::new(),
            segment_table: Vec::new(),
            catalogue: Vec::new(),
            kept: KeptList::default(),
            evacuate: HashSet::default(),
            corrupted: Corrupted::default(),
            change_count_max,
            always_folds: false,
            new_clones: Vec::new(),
        }
    }

    /// Returns the memory used by the store, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let chunks: usize = self.chunks.values().map(|addresses| addresses.len() * 8).sum();
        let others = self.summaries.capacity() + self.segment_table.capacity() + self.catalogue.capacity();
        let changes = self.table_changes.capacity() * size_of::<TableChange>();
        (changes + others * size_of::<ExtentAddress>() + chunks) as u64 + self.kept.memory_bytes()
    }

    /// Makes the next checkpoint move all page-table structures out of these segments.
    pub(crate) fn evacuate(&mut self, segments: impl IntoIterator<Item = SegmentId>) {
        self.evacuate.extend(segments);
    }

    /// Returns the chunks that can't be read. The next checkpoint writes their entries from memory instead.
    pub(crate) fn corrupted_chunks(&self) -> Vec<(KeyspaceId, usize)> {
        self.corrupted.chunks.iter().copied().collect()
    }

    /// Returns `true` if the list of incarnations is full.
    pub(crate) fn is_incarnation_list_full(&self) -> bool {
        self.superblock.incarnations.len() >= INCARNATIONS_LISTED_MAX
    }

    /// Removes all incarnations from the next superblock. The log must not contain any record that their starts void.
    pub(crate) fn forget_incarnations(&mut self) {
        crate::coverage::mark!("an opening forgot earlier openings");
        self.superblock.incarnations.clear();
    }

    /// Adds this opening to the superblock's list of incarnations and writes the superblock. The newest checkpoint
    /// remains the same.
    pub(crate) fn raise_incarnation(
        &mut self,
        space: &Space,
        incarnation: Incarnation,
        first: Timestamp,
    ) -> Result<()> {
        self.add_incarnation(incarnation, first);
        self.write_superblock(space)
    }

    /// Returns `true` if the newest superblock says that the database was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.superblocks.is_closed()
    }

    /// Adds this opening to the list, but defers writing the superblock until the opening's first write. That write
    /// then also syncs `folders`. The database must be closed.
    pub(crate) fn defer_incarnation(&mut self, incarnation: Incarnation, first: Timestamp, folders: Vec<FolderRef>) {
        self.add_incarnation(incarnation, first);
        self.superblocks.defer(self.superblock.incarnations.clone(), folders);
    }

    /// Adds an opening to the list, which must not be [full](Self::is_incarnation_list_full).
    fn add_incarnation(&mut self, incarnation: Incarnation, first: Timestamp) {
        assert!(!self.is_incarnation_list_full());
        let covered = self.superblock.timestamp;
        let incarnations = &mut self.superblock.incarnations;
        assert!(incarnations.last().is_none_or(|&(last, _)| last < incarnation));
        incarnations.push((incarnation, first));
        // Remove an opening from the list if the next one begins at the same timestamp or before it, or if the
        // checkpoint covers everything up to the next one. In either case, no record depends on it.
        let mut index = 0;
        while index + 1 < incarnations.len() {
            let (_, next_first) = incarnations[index + 1];
            if incarnations[index].1 >= next_first || next_first <= covered.next() {
                incarnations.remove(index);
            } else {
                index += 1;
            }
        }
        assert!(incarnations.last() == Some(&(incarnation, first)), "an opening is left out of the superblock");
    }

    /// Returns `true` if all entries of the page tables are known, except those in [damaged
    /// chunks](Self::corrupted_chunks). If a summary has been lost, any entry may be outdated.
    pub(crate) fn is_table_known(&self) -> bool {
        !self.corrupted.summary
    }

    /// Returns `false` if the catalogue could not be read, so that no keyspace and no table is known.
    pub(crate) fn is_catalogue_known(&self) -> bool {
        !self.corrupted.catalogue
    }

    /// Durably writes the superblock into the slot that does not hold the newest one.
    pub(crate) fn write_superblock(&mut self, space: &Space) -> Result<()> {
        space.traffic.writes.fetch_add(1, Ordering::Relaxed);
        space.traffic.write_bytes.fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
        let checkpoint = self.superblock.clone();
        self.superblocks
            .write(|next| *next = Superblock { log: std::mem::take(&mut next.log), ..checkpoint })
            .map_err(|error| space.fail(&format!("writing the superblock failed: {error}")))
    }

    /// Appends the epoch's page-table changes, either as summaries or as a new base image. `corrupted_chunks` has the
    /// entries of the [damaged chunks](Self::corrupted_chunks) as they were when the checkpoint began.
    pub(crate) fn append_summaries(
        &mut self,
        space: &Space,
        epoch: Epoch,
        corrupted_chunks: HashMap<(KeyspaceId, usize), Vec<u64>>,
    ) -> Result<()> {
        let current = space.epoch_latch.newest();
        assert!(epoch.next() == current, "a checkpoint of {epoch} is completed in {current}");
        let EpochChanges { mut fresh, mut summarised, summaries, images, .. } = space.table_log.take(epoch);
        let supersedes = self.take_images(space, epoch, &images, &mut fresh, &mut summarised);
        self.summaries.extend(summaries);
        let sequences = summarised.iter().chain(&fresh).map(|change| change.sequence);
        assert!(sequences.is_sorted_by(|older, newer| older < newer), "changes of {epoch} are out of order");
        let changes_start = self.table_changes.len();
        append_changes(&mut self.table_changes, &summarised);
        drop(summarised);
        append_changes(&mut self.table_changes, &fresh);
        // The catalogue no longer lists the tables of these keyspaces.
        let dropped: Vec<KeyspaceId> = dropped(&self.table_changes[changes_start..]).collect();
        for addresses in dropped.into_iter().filter_map(|keyspace| self.chunks.remove(&keyspace)) {
            addresses.iter().for_each(|address| release(space, *address, epoch));
        }

        let page_count = space.page_count();
        let is_corrupted = self.corrupted.summary || !corrupted_chunks.is_empty();
        // Also fold if bulk loads superseded changes: only a new base image shows that the summaries' entries for those
        // pages are obsolete.
        if self.table_changes.len() as u64 >= unfolded_changes_max(page_count)
            || is_corrupted
            || supersedes
            || self.table_changes.len() >= self.change_count_max
            || self.must_evacuate(space)
            || self.kept.is_wanted()
            || self.always_folds
            || !self.new_clones.is_empty()
        {
            crate::coverage::mark!("a checkpoint wrote a new base image");
            drop(fresh);
            self.fold(space, epoch, corrupted_chunks)?;
        } else {
            for part in fresh.chunks(SUMMARY_BYTES / summary::TABLE_CHANGE_BYTES) {
                self.summaries.push(append_summary(space, epoch, part)?);
            }
        }
        assert!(self.summaries.is_empty() || !self.table_changes.is_empty(), "summaries of no changes");
        Ok(())
    }

    /// Adds the chunks that bulk loads have written to the base image. Each chunk replaces the old one, and all earlier
    /// logged changes to its pages. Returns `true` if summaries on disk contain such changes. In that case, only a new
    /// base image shows which entries are valid.
    fn take_images(
        &mut self,
        space: &Space,
        epoch: Epoch,
        images: &[(ChunkImage, u32)],
        fresh: &mut Vec<TableChange>,
        summarised: &mut Vec<TableChange>,
    ) -> bool {
        let mut supersedes = false;
        for &(ChunkImage { keyspace, chunk, address }, sequence) in images {
            let addresses = self.chunks.entry(keyspace).or_default();
            addresses.lengthen(chunk + 1);
            release(space, std::mem::replace(&mut addresses[chunk], address), epoch);
            let is_of =
                |change: &TableChange| change.keyspace == keyspace && change.page.0 as usize / CHUNK_PAGES == chunk;
            let count = self.table_changes.len() + summarised.len();
            // A load never uses the chunk of page 0, so the changes that drop a keyspace are retained.
            self.table_changes.retain(|change| !is_of(change));
            summarised.retain(|change| !is_of(change) || change.sequence >= sequence);
            fresh.retain(|change| !is_of(change) || change.sequence >= sequence);
            supersedes |= self.table_changes.len() + summarised.len() < count;
        }
        if supersedes {
            crate::coverage::mark!("a bulk load took page numbers that were in use before");
            (0..).zip(&mut self.table_changes).for_each(|(index, change)| change.sequence = index);
        }
        supersedes
    }

    /// Frees the space released in the epoch, whose checkpoint must be durable.
    pub(crate) fn settle(&mut self, space: &Space, epoch: Epoch) {
        assert!(epoch == self.superblock.epoch, "the superblock does not cover {epoch}");
        self.evacuate.clear();
        self.corrupted = Corrupted::default();
        self.record_summaries(space);
        self.kept.settle(space);
        space.segments.settle(epoch);
    }

    /// Writes the chunks of the segment table that have changed, are damaged, or lie in segments that are being
    /// emptied.
    pub(crate) fn write_segment_table(&mut self, space: &Space, epoch: Epoch) -> Result<()> {
        let segments = &space.segments;
        let mut changed = segments.take_changed_chunks();
        changed.append(&mut self.corrupted.segment_chunks);
        let chunk_count = segments.chunk_count() as usize;
        // Release the chunks beyond the end of the file, which may have shrunk.
        for address in self.segment_table.drain(chunk_count.min(self.segment_table.len())..) {
            release(space, address, epoch);
        }
        self.segment_table.resize(chunk_count, ExtentAddress::NONE);
        let numbered = (0..).map(SegmentTableChunk).zip(&self.segment_table);
        changed.extend(numbered.filter(|(_, address)| self.is_evacuated(space, **address)).map(|(chunk, _)| chunk));
        for chunk in changed {
            let Some(address) = self.segment_table.get_mut(chunk.index()) else { break };
            let payload: Vec<u8> =
                segments.uses_in(chunk).flat_map(|segment_use| segment_use.0.to_le_bytes()).collect();
            assert!(payload.len() == SEGMENT_TABLE_ENTRIES * 8, "a chunk names {} segments", payload.len() / 8);
            release(space, *address, epoch);
            *address = append_payload(space, epoch, Kind::Segments, KeyspaceId(0), chunk.index(), &payload)?;
        }
        Ok(())
    }

    /// Returns the maximum number of bytes that the next checkpoint writes for the catalogues of kept snapshots.
    pub(crate) fn kept_bytes_max(&self, space: &Space) -> u64 {
        self.kept.bytes_max(space, |address| self.is_evacuated(space, address))
    }

    /// Keeps the snapshots that are wanted of this checkpoint, and lists all kept snapshots in the catalogue. Called
    /// once the page tables have been written.
    pub(crate) fn keep_snapshots(
        &mut self,
        space: &Space,
        epoch: Epoch,
        timestamp: Timestamp,
        catalogue: &mut Catalogue,
    ) -> Result<()> {
        let mut kept = std::mem::take(&mut self.kept);
        let kept_all = kept.move_catalogues(space, epoch, |address| self.is_evacuated(space, address)).and_then(|()| {
            if !kept.is_wanted() {
                return Ok(());
            }
            assert!(self.table_changes.is_empty(), "a snapshot is kept without a new base image");
            let mut keyspaces = catalogue.keyspaces.clone();
            self.complete_entries(space, &mut keyspaces);
            let Catalogue { next_keyspace, next_value, .. } = *catalogue;
            let tables = KeptCatalogue { next_keyspace, next_value, keyspaces, segments: Vec::new() };
            kept.keep_wanted(space, epoch, timestamp, tables)
        });
        self.kept = kept;
        kept_all?;
        catalogue.kept = self.kept.entries();
        Ok(())
    }

    /// Writes the base image of a restored keyspace's page table, which has these entries.
    pub(crate) fn write_restored(
        &mut self,
        space: &Space,
        epoch: Epoch,
        keyspace: KeyspaceId,
        entries: &[u64],
    ) -> Result<()> {
        let mut addresses = Vec::with_capacity(entries.len() / CHUNK_PAGES);
        for (chunk, entries) in entries.chunks(CHUNK_PAGES).enumerate() {
            assert!(entries.len() == CHUNK_PAGES, "chunk {chunk} of {keyspace} has {} entries", entries.len());
            addresses.push(append_entries(space, epoch, (keyspace, chunk), entries, &[])?);
        }
        let replaced = self.chunks.insert(keyspace, addresses.into());
        assert!(replaced.is_none(), "keyspace {keyspace} is restored twice");
        Ok(())
    }

    /// Completes the entries of keyspaces, made when the checkpoint began, once its page tables are written.
    fn complete_entries(&self, space: &Space, keyspaces: &mut [KeyspaceEntry]) {
        for entry in keyspaces {
            entry.chunks = self.chunks.get(&entry.id).map(|addresses| addresses.to_vec()).unwrap_or_default();
            // As of now, since the checkpoint has counted the leaves that it wrote.
            if let Some(pages) = space.page_space(entry.id) {
                (entry.leaf_count, entry.leaf_rows) = pages.leaves_on_disk.get();
                entry.has_values = pages.has_values();
            }
        }
    }

    /// Writes the catalogue as it was when the checkpoint began, with the addresses of all tables. Returns its length
    /// in bytes.
    pub(crate) fn write_catalogue(&mut self, space: &Space, epoch: Epoch, mut catalogue: Catalogue) -> Result<u64> {
        self.complete_entries(space, &mut catalogue.keyspaces);
        catalogue.summaries = self.summaries.clone();
        catalogue.segments = self.segment_table.iter().map(|address| space.segments.name(*address)).collect();
        let bytes = catalogue.encode();
        debug_assert!(
            Catalogue::decode(&bytes).as_ref() == Some(&catalogue),
            "a catalogue can't be read as it was written"
        );
        self.catalogue.drain(..).for_each(|address| release(space, address, epoch));
        (self.catalogue, self.superblock.catalogue) = append_parts(space, epoch, Kind::Catalogue, &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Makes the next superblock describe this checkpoint.
    pub(crate) fn cover(&mut self, epoch: Epoch, timestamp: Timestamp, catalogue_bytes: u64, id: CheckpointId) {
        assert!(epoch >= self.superblock.epoch, "the checkpoint of {epoch} follows that of {}", self.superblock.epoch);
        assert!(timestamp >= self.superblock.timestamp, "a checkpoint at {timestamp} follows a later one");
        assert!(catalogue_bytes > 0, "a catalogue is never empty");
        self.superblock.checkpoint = self.superblock.checkpoint.next();
        self.superblock.timestamp = timestamp;
        self.superblock.epoch = epoch;
        self.superblock.catalogue_bytes = catalogue_bytes;
        self.superblock.checkpoint_id = id;
        self.forget_covered_incarnations();
    }

    pub(super) fn record_summaries(&self, space: &Space) {
        let bytes = self.summaries.len() * size_of::<ExtentAddress>();
        space.summary_list_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    fn forget_covered_incarnations(&mut self) {
        let covered = self.superblock.timestamp;
        let incarnations = &mut self.superblock.incarnations;
        while incarnations.len() > 1 && incarnations[1].1 <= covered.next() {
            incarnations.remove(0);
        }
    }

    /// Returns `true` if the extent lies in a segment that is being emptied.
    fn is_evacuated(&self, space: &Space, address: ExtentAddress) -> bool {
        !address.is_none() && self.evacuate.contains(&space.segments.segment_of(address))
    }

    /// Returns `true` if parts of the page tables lie in segments that are being emptied.
    pub(crate) fn must_evacuate(&self, space: &Space) -> bool {
        let inside = |address: &ExtentAddress| self.is_evacuated(space, *address);
        !self.evacuate.is_empty()
            && (self.summaries.iter().any(inside) || self.chunks.values().any(|addresses| addresses.iter().any(inside)))
    }

    /// Writes a new base image, made from the old one and the changes since then. Releases the extents that it
    /// replaces.
    fn fold(
        &mut self,
        space: &Space,
        epoch: Epoch,
        mut corrupted_chunks: HashMap<(KeyspaceId, usize), Vec<u64>>,
    ) -> Result<()> {
        let mut table_changes = std::mem::take(&mut self.table_changes);
        let dropped: HashSet<KeyspaceId> = dropped(&table_changes).collect();
        table_changes.retain(|change| !dropped.contains(&change.keyspace));
        // Sort in place, because the changes may fill all the memory allotted to them.
        table_changes.sort_unstable_by_key(|change| (change.keyspace, change.page.0, change.sequence));
        let chunk_of = |change: &TableChange| (change.keyspace, change.page.0 as usize / CHUNK_PAGES);
        let mut unchanged = BTreeSet::new();
        for (&keyspace, addresses) in &self.chunks {
            for (chunk, address) in addresses.iter().enumerate().filter(|(_, address)| !address.is_none()) {
                if self.is_evacuated(space, *address) || corrupted_chunks.contains_key(&(keyspace, chunk)) {
                    unchanged.insert((keyspace, chunk));
                }
            }
        }
        let new_clones = std::mem::take(&mut self.new_clones);
        unchanged.extend(new_clones.into_iter().filter(|id| self.chunks.contains_key(id)).map(|id| (id, 0)));
        for changes in table_changes.chunk_by(|left, right| chunk_of(left) == chunk_of(right)) {
            let table_chunk = chunk_of(&changes[0]);
            unchanged.remove(&table_chunk);
            self.write_chunk(space, epoch, table_chunk, changes, corrupted_chunks.remove(&table_chunk))?;
        }
        for table_chunk in unchanged {
            self.write_chunk(space, epoch, table_chunk, &[], corrupted_chunks.remove(&table_chunk))?;
        }
        let is_dropped = |keyspace: &KeyspaceId| !self.chunks.contains_key(keyspace);
        assert!(
            corrupted_chunks.keys().all(|(keyspace, _)| is_dropped(keyspace)),
            "a damaged chunk is not written anew"
        );
        self.summaries.drain(..).for_each(|address| release(space, address, epoch));
        Ok(())
    }

    /// Writes a new image of a table's chunk. Applies these changes, in order, to the old entries, or to the `known`
    /// entries if the old image is damaged.
    fn write_chunk(
        &mut self,
        space: &Space,
        epoch: Epoch,
        (keyspace, chunk): (KeyspaceId, usize),
        changes: &[TableChange],
        known: Option<Vec<u64>>,
    ) -> Result<()> {
        debug_assert!(
            changes.is_sorted_by_key(|change| (change.page.0, change.sequence)),
            "changes of chunk {chunk} of {keyspace} are applied out of order"
        );
        let addresses = self.chunks.entry(keyspace).or_default();
        addresses.lengthen(chunk + 1);
        let old = addresses[chunk];
        assert!(old.is_none() || space.segments.is_plausible(old), "chunk {chunk} of {keyspace} lies at {old:?}");
        // A dropped keyspace is gone once its pages are freed, and so are the names of its origins.
        let pages = space.page_space(keyspace);
        let mut entries = match known {
            Some(entries) => entries,
            None if old.is_none() => vec![0; CHUNK_PAGES],
            None => {
                let is_stored_as = |id| pages.as_ref().is_none_or(|pages| pages.is_stored_as(id));
                chunk_entries(space, is_stored_as, chunk, old, read_extent(space, old)?)?
            }
        };
        assert!(entries.len() == CHUNK_PAGES, "a chunk of {} entries", entries.len());
        for change in changes {
            entries[change.page.0 as usize % CHUNK_PAGES] = change.address.to_bits();
        }
        let origins = pages.as_ref().filter(|_| chunk == 0).map_or(&[][..], |pages| pages.origins());
        let new = append_entries(space, epoch, (keyspace, chunk), &entries, origins)?;
        self.chunks.get_mut(&keyspace).expect("entered above")[chunk] = new;
        release(space, old, epoch);
        Ok(())
    }
}

/// Appends a chunk of a table's base image. A chunk without pages has no extent. The first chunk of a clone names the
/// origins, for a rescue without the catalogue.
fn append_entries(
    space: &Space,
    epoch: Epoch,
    (keyspace, chunk): (KeyspaceId, usize),
    entries: &[u64],
    origins: &[CloneOrigin],
) -> Result<ExtentAddress> {
    assert!(chunk == 0 || origins.is_empty(), "chunk {chunk} of {keyspace} names origins");
    if entries.iter().all(|entry| *entry == 0) {
        return Ok(ExtentAddress::NONE);
    }
    let mut payload: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    CloneOrigin::encode_all(origins, &mut payload);
    append_payload(space, epoch, Kind::Table, keyspace, chunk, &payload)
}

/// Appends changes to the list of changes since the base image, continuing the sequence numbers of the list.
pub(super) fn append_changes(since_base: &mut Vec<TableChange>, changes: &[TableChange]) {
    let last = since_base.last().map(|change| change.sequence as usize + 1);
    debug_assert!(last.is_none_or(|count| count == since_base.len()), "changes are not numbered by their places");
    reserve(since_base, changes.len());
    for change in changes {
        let sequence = u32::try_from(since_base.len()).expect("memory bounds them");
        since_base.push(TableChange { sequence, ..*change });
    }
}

/// Returns the keyspaces that these changes drop.
fn dropped(changes: &[TableChange]) -> impl Iterator<Item = KeyspaceId> + '_ {
    changes.iter().filter(|change| change.page == PageId::NONE).map(|change| change.keyspace)
}

/// Returns the number of changes at which a checkpoint folds them into the base image, if there are `page_count` pages.
fn unfolded_changes_max(page_count: u64) -> u64 {
    (page_count / 8).max(FOLD_CHANGE_COUNT_MIN)
}

impl Space {
    /// Returns the maximum size of the summaries that the next checkpoint writes for the changes. If there are too many
    /// changes, the checkpoint folds them instead.
    pub(crate) fn summary_bytes(&self) -> u64 {
        let mut change_count = self.change_count() as u64;
        if change_count > FOLD_CHANGE_COUNT_MIN {
            change_count = change_count.min(unfolded_changes_max(self.page_count()));
        }
        change_count * summary::TABLE_CHANGE_BYTES as u64
    }

    /// Returns the maximum size of the next catalogue, excluding orphans.
    pub(crate) fn catalogue_bytes(&self) -> u64 {
        // One address per chunk of a table and per summary, and one extent reference per chunk of the segment table. A
        // table has at least one chunk on disk, even if it takes less memory than a chunk.
        let chunk_count = self.table_bytes() / CHUNK_BYTES + self.page_spaces.read().len() as u64;
        let chunk_list_bytes = chunk_count * size_of::<ExtentAddress>() as u64;
        let segment_list_bytes = u64::from(self.segments.chunk_count()) * ExtentRef::BYTES as u64;
        let fresh_list_bytes =
            (self.change_count() / (SUMMARY_BYTES / summary::TABLE_CHANGE_BYTES) + 2) * size_of::<ExtentAddress>();
        catalogue::HEAD_BYTES
            + self.keyspace_bytes.load(Ordering::Relaxed)
            + self.summary_list_bytes.load(Ordering::Relaxed)
            + chunk_list_bytes
            + segment_list_bytes
            + fresh_list_bytes as u64
    }

    fn page_count(&self) -> u64 {
        self.page_spaces.read().iter().map(|pages| pages.0.table.page_count()).sum()
    }

    /// Closes the epoch's segment.
    pub(crate) fn seal(&self, epoch: Epoch) {
        let mut jobs = Vec::new();
        let mut appender = self.appender(epoch).lock();
        appender.seal(&self.segments, &mut jobs);
        self.write_jobs.enqueue(jobs);
    }

    /// Writes the changes that are not in a summary yet, once there are enough to fill a summary. This leaves less to
    /// write at the end of a checkpoint.
    pub(crate) fn summarise(&self, epoch_guard: &super::EpochGuard<'_>) -> Result<()> {
        let epoch = epoch_guard.epoch();
        let part = SUMMARY_BYTES / summary::TABLE_CHANGE_BYTES;
        let unfolded_max = unfolded_changes_max(self.page_count());
        loop {
            let mut changes = self.table_log.lock(epoch);
            // Changes that are about to be folded need no summary. No space is reserved for it either.
            let will_fold = (changes.fresh.len() + changes.summarised.len()) as u64 >= unfolded_max;
            if changes.fresh.len() < part || will_fold {
                return Ok(());
            }
            let rest = changes.fresh.split_off(part);
            let taken = std::mem::replace(&mut changes.fresh, rest);
            assert!(taken.is_sorted_by_key(|change| change.sequence), "changes of {epoch} are out of order");
            match append_summary(self, epoch, &taken) {
                Ok(address) => {
                    changes.summaries.push(address);
                    reserve(&mut changes.summarised, taken.len());
                    changes.summarised.extend(taken);
                }
                Err(error) => {
                    changes.fresh.splice(0..0, taken);
                    return Err(error);
                }
            }
        }
    }
}

fn release(space: &Space, address: ExtentAddress, epoch: Epoch) {
    if !address.is_none() {
        space.segments.release(address, epoch);
    }
}

fn append_summary(space: &Space, epoch: Epoch, changes: &[TableChange]) -> Result<ExtentAddress> {
    assert!(!changes.is_empty(), "a summary of nothing");
    let mut payload = Vec::with_capacity(changes.len() * summary::TABLE_CHANGE_BYTES);
    for change in changes {
        summary::encode(change, &mut payload);
    }
    debug_assert!(summary::decode(&payload).as_deref() == Some(changes), "a summary can't be read as it was written");
    append_payload(space, epoch, Kind::Summary, KeyspaceId(0), 0, &payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::format::catalogue::{KeyspaceEntry, Orphan};
    use crate::format::{CheckpointNumber, DatabaseId, SegmentUse, SuperblockNumber, ValueId};
    use crate::io::{OpenOptions, SyncMethod};

    const MEMORY_BYTES: u64 = 1 << 30;

    fn stage() -> (Space, PageTableStore) {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = crate::io::in_memory().open(std::path::Path::new("data"), options).unwrap();
        file.set_len(64 << 10).unwrap();
        let superblock = Superblock {
            sequence: SuperblockNumber::FIRST,
            database: DatabaseId(77),
            segment_bytes: 64 << 10,
            checkpoint: CheckpointNumber::NONE,
            timestamp: Timestamp(0),
            epoch: Epoch(0),
            catalogue_bytes: 0,
            catalogue: ExtentRef::NONE,
            incarnations: vec![(Incarnation(1), Timestamp(1))],
            log: Vec::new(),
            is_closed: false,
            checkpoint_id: CheckpointId::default(),
            features: crate::format::features::Features::default(),
        };
        let page_tables = page_tables(&file, superblock);
        (space(&file, 1), page_tables)
    }

    fn space(file: &crate::io::FileRef, incarnation: u32) -> Space {
        let count = (file.len().unwrap() >> 16) as u32;
        let epoch = Epoch::first_of(Incarnation(incarnation));
        let budget = Arc::new(crate::memory::Budget::new(MEMORY_BYTES, 1));
        Space::new(std::path::Path::new("data"), Arc::clone(file), DatabaseId(77), 64 << 10, count, epoch, budget)
    }

    fn page_tables(file: &crate::io::FileRef, superblock: Superblock) -> PageTableStore {
        let superblocks = Superblocks::new(Arc::clone(file), SyncMethod::FullSync, superblock.clone());
        PageTableStore::new(superblock, Arc::new(superblocks), 1 << 20)
    }

    fn checkpoint(space: &Space, page_tables: &mut PageTableStore, catalogue: &Catalogue) {
        let (epoch, ()) = space.begin_checkpoint(|_| ());
        complete(space, page_tables, epoch, catalogue);
    }

    fn complete(space: &Space, page_tables: &mut PageTableStore, epoch: Epoch, catalogue: &Catalogue) {
        page_tables.append_summaries(space, epoch, HashMap::default()).unwrap();
        page_tables.write_segment_table(space, epoch).unwrap();
        let catalogue_bytes = page_tables.write_catalogue(space, epoch, catalogue.clone()).unwrap();
        space.seal(epoch);
        space.wait_for_jobs(|_| ()).unwrap();
        space.sync().unwrap();
        page_tables.cover(epoch, Timestamp(1), catalogue_bytes, CheckpointId(5));
        page_tables.write_superblock(space).unwrap();
        page_tables.settle(space, epoch);
    }

    fn catalogue(orphan_count: u32, keyspace_count: u32) -> Catalogue {
        let orphan = |first_page| Orphan { keyspace: KeyspaceId(1), first_page: PageId(first_page), page_count: 1 };
        let keyspace = |id| KeyspaceEntry {
            id: KeyspaceId(id),
            page_bytes: 4096,
            page_end: 8,
            leaf_count: u64::from(id),
            leaf_rows: 0,
            has_values: false,
            name: format!("{id:0255}"),
            chunks: Vec::new(),
            runs: Vec::new(),
            origins: Vec::new(),
        };
        Catalogue {
            next_keyspace: 1 + keyspace_count,
            next_value: ValueId(1),
            keyspaces: (1..=keyspace_count).map(keyspace).collect(),
            summaries: Vec::new(),
            segments: Vec::new(),
            orphans: (0..orphan_count).map(orphan).collect(),
            kept: Vec::new(),
        }
    }

    /// A catalogue of any length can be written and read back, even with more parts than a superblock could list. A
    /// catalogue that does not fit into the budget is rejected before it is read.
    #[test]
    fn a_catalogue_has_no_limit() {
        for (orphan_count, keyspace_count) in [(0, 0), (900_000, 0), (3, 36_500), (1_000_000, 100)] {
            let (space, mut page_tables) = stage();
            let written = catalogue(orphan_count, keyspace_count);
            for _ in 0..2 {
                checkpoint(&space, &mut page_tables, &written);
            }
            let superblock = page_tables.superblock.clone();
            assert_eq!(
                superblock.catalogue_bytes,
                written.encode().len() as u64 + 16 * page_tables.segment_table.len() as u64
            );
            let live_bytes = space.segments.usage().live_bytes;
            let again = self::space(space.file(), 2);
            let loaded =
                self::page_tables(space.file(), superblock.clone()).load(&again, MEMORY_BYTES, &mut Err).unwrap();
            assert_eq!(loaded.catalogue.orphans, written.orphans);
            assert_eq!(loaded.catalogue.keyspaces, written.keyspaces);
            assert_eq!(again.segments.usage().live_bytes, live_bytes, "what lives is what was written");
            if superblock.catalogue_bytes > 1 << 20 {
                let again = self::space(space.file(), 2);
                let refused = self::page_tables(space.file(), superblock).load(&again, 2 << 20, &mut Err);
                assert!(matches!(refused, Err(Error::BudgetTooSmall { .. })), "{refused:?}");
            }
        }
    }

    /// Until page-table changes are in a base image, they use little more memory than their own size: vectors grow by a
    /// quarter, and folding allocates no copy. The newest change to each page wins, whichever epoch it belongs to.
    #[test]
    fn changes_are_folded_in_their_memory() {
        const PAGES: u32 = 1300;
        const KEYSPACE: KeyspaceId = KeyspaceId(1);
        let (space, mut page_tables) = stage();
        page_tables.change_count_max = 3 * PAGES as usize;
        let address_of = |round: u32, page: u32| {
            let start = (64 << 10) + u64::from((round * 7 + page) % 100) * 64;
            ExtentAddress::new(start, 64, SegmentUse(7))
        };
        for round in 1..=3 {
            let (epoch, ()) = space.begin_checkpoint(|_| ());
            for page in (1..=PAGES).rev() {
                space.record(epoch.next(), KEYSPACE, PageId(page), address_of(round, page));
            }
            // The changes of both the ending epoch and the new one are in memory.
            let bytes = u64::from(PAGES * round.min(2)) * size_of::<TableChange>() as u64;
            assert!(space.change_bytes() <= bytes + bytes / 4 + 192, "{} for {bytes}", space.change_bytes());
            complete(&space, &mut page_tables, epoch, &catalogue(0, 0));
            let bytes = u64::from((round - 1) * PAGES) * size_of::<TableChange>() as u64;
            let taken = (page_tables.table_changes.capacity() * size_of::<TableChange>()) as u64;
            assert!(taken <= bytes + bytes / 4 + 96, "{taken} for {bytes}");
        }
        assert!(page_tables.chunks.is_empty(), "nothing was folded yet");
        checkpoint(&space, &mut page_tables, &catalogue(0, 0));
        assert!(page_tables.table_changes.is_empty());
        for (chunk, address) in page_tables.chunks[&KEYSPACE].iter().enumerate() {
            let extent = read_extent(&space, *address).unwrap();
            let entries = chunk_entries(&space, |id| id == KEYSPACE, chunk, *address, extent).unwrap();
            for (page, entry) in
                (chunk * CHUNK_PAGES..).zip(entries).filter(|(page, _)| (1..=PAGES as usize).contains(page))
            {
                assert_eq!(entry, address_of(3, page as u32).to_bits(), "page {page}");
            }
        }
    }

    /// A superblock with a valid checksum is reported as corrupted if it states an impossible catalogue length, or
    /// names any part of the catalogue but the last.
    #[test]
    fn a_misnamed_catalogue_is_damage() {
        let (space, mut page_tables) = stage();
        checkpoint(&space, &mut page_tables, &catalogue(20_000, 0));
        let sound = page_tables.superblock.clone();
        let named = |address: ExtentAddress| space.segments.name(address);
        let parts: Vec<ExtentAddress> = page_tables.catalogue.clone();
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
            let loaded = self::page_tables(space.file(), superblock.clone()).load(&again, MEMORY_BYTES, &mut Err);
            assert!(matches!(loaded, Err(Error::Corrupted { .. })), "{superblock:?}: {loaded:?}");
        }
    }
}
