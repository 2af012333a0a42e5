//! Clones of keyspaces: page tables that begin with another table's extents.
//!
//! A clone begins as the base image of a keyspace's page table as of the newest checkpoint. It refers to the same
//! extents, and to the same chunks of the table. Nothing marks them as shared:
//!
//! - *Space.* Each table counts the extents to which it refers ([`Segments`](super::segments::Segments)). A page of
//!   either keyspace that changes is written elsewhere, as always, and releases the old extent for its own table.
//! - *Identity.* An extent names its keyspace. A clone also accepts extents of its *origins*: the keyspace from which
//!   it was cloned, and those origins of that one whose extents it had. New extents have its own id.
//! - *Moving.* Whoever moves an extent of an origin makes it one of the clone.
//!
//! # Which origins a clone of a clone has
//! If a clone inherited all origins of the keyspace that is cloned, the list would grow along a chain of clones. So
//! cloning leaves out each origin of which the clone has no extent. It finds this out without reading the extents,
//! from the uses of the segments in which they lie. An extent that a clone shares with an origin existed when the
//! origin was cloned. So it lies in a use that is not newer than the origin's [`last_use`](CloneOrigin::last_use). An
//! extent that was written for the clone lies in a segment that was taken after the cloning began. So its use is newer
//! than [`own_after`](CloneOrigin::own_after). An origin is left out if no extent of the clone lies between the
//! origin's `last_use` and the `own_after` of the next older origin. The checkpoint that is cloned also takes
//! segments, so these ranges may overlap a little, and an origin may stay in the list longer than necessary.
//!
//! The catalogue lists the origins. The first chunk of the clone's page table repeats them, so that a rescue finds them
//! if the catalogue is lost. At first, a clone shares this chunk with the keyspace that was cloned; the next checkpoint
//! writes one for the clone.
//!
//! # Making a clone
//! While [`hold_base_images`](PageTableStore::hold_base_images) is in effect, each checkpoint folds the changes of page
//! tables. So between two checkpoints the newest base image is the keyspace as of the last one. The clone is made while
//! no checkpoint runs, and is published by a log record with a later timestamp. If the log is replayed from that
//! checkpoint, the record finds the same base image; later checkpoints have the clone in their catalogues.

use std::sync::Arc;

use super::PageTable;
use super::checkpoint::PageTableStore;
use super::data_file::Space;
use super::epoch::EpochGuard;
use super::kept_tables::{ChunkReader, page_end};
use super::page_space::PageSpace;
use super::parts::read_parts;
use super::runs::Run;
use super::table::CHUNK_PAGES;
use crate::error::{Error, Result};
use crate::format::catalogue::{Catalogue, CloneOrigin, KeyspaceEntry, Orphan};
use crate::format::extent::Kind;
use crate::format::{ExtentAddress, KeyspaceId, PageId, SegmentId, SegmentUse, Timestamp};
use crate::hash::HashMap;

/// A keyspace as of the newest checkpoint, in the form in which the catalogue records it.
#[derive(Debug)]
pub(crate) struct CloneBase {
    entry: KeyspaceEntry,
    as_of: Timestamp,
    /// Large values to which no row of the keyspace referred. The clone does without them.
    orphans: Vec<Orphan>,
}

/// The pages of a clone that is not published yet. The extents to which they refer are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct ClonedPages<'s> {
    space: &'s Space,
    pub(crate) pages: Arc<PageSpace>,
    /// The chunks of the base image.
    pub(crate) chunks: Vec<ExtentAddress>,
    /// Pages that the base image has and the clone has not.
    left_out: Vec<PageId>,
    /// The bytes that are counted for the clone in each segment.
    shared: Vec<(SegmentId, u64)>,
}

impl PageTableStore {
    /// Makes each checkpoint write a base image from now on, or ends that.
    pub(crate) fn hold_base_images(&mut self, is_held: bool) {
        assert!(self.always_folds != is_held, "two clones are made at once");
        self.always_folds = is_held;
    }

    /// Returns the keyspace as of the newest checkpoint, or `None` if it was created later. Reads the catalogue.
    /// The page tables must be [folded](Self::hold_base_images).
    pub(crate) fn clone_base(&self, space: &Space, keyspace: KeyspaceId) -> Result<Option<CloneBase>> {
        assert!(self.table_changes.is_empty(), "a keyspace is cloned from a base image with changes");
        const WHAT: &str = "the catalogue";
        let (last, bytes) = (self.superblock.catalogue, self.superblock.catalogue_bytes);
        let (_, bytes) = read_parts(space, Kind::Catalogue, last, bytes, WHAT, |_| Ok(()))?;
        let malformed = || Error::corrupted(space.path(), WHAT, "it is malformed");
        let Catalogue { keyspaces, mut orphans, .. } = Catalogue::decode(&bytes).ok_or_else(malformed)?;
        let entry = keyspaces.into_iter().find(|entry| entry.id == keyspace);
        orphans.retain(|orphan| orphan.keyspace == keyspace);
        let as_of = self.superblock.timestamp;
        Ok(entry.map(|entry| CloneBase { entry, as_of, orphans }))
    }

    /// Adds the base image of a clone that has been published.
    pub(crate) fn add_clone(&mut self, keyspace: KeyspaceId, chunks: Vec<ExtentAddress>) {
        let replaced = self.chunks.insert(keyspace, chunks.into());
        assert!(replaced.is_none(), "keyspace {keyspace} is cloned twice");
        self.new_clones.push(keyspace);
    }
}

impl CloneBase {
    /// Returns the memory that the page table of a clone takes, in bytes.
    pub(crate) fn table_bytes(&self) -> u64 {
        debug_assert!(!self.entry.id.is_of_kept(), "the catalogue has a keyspace of an opened snapshot");
        PageTable::memory_bytes_of(page_end(&self.entry))
    }

    /// Makes the pages of a clone with this id and name. Reads the page table. `own_after` is a use of a segment that
    /// is older than all that were taken since the cloned checkpoint began. The caller has made the memory available,
    /// and no checkpoint may begin before the clone is published. O(pages).
    pub(crate) fn read<'s>(
        &self,
        space: &'s Space,
        (id, name): (KeyspaceId, &str),
        own_after: SegmentUse,
    ) -> Result<ClonedPages<'s>> {
        let CloneBase { entry, orphans, .. } = self;
        let pages = PageSpace::new(id, entry.page_bytes as usize, name, &space.budget);
        pages.leaves_on_disk.set(entry.leaf_count, entry.leaf_rows);
        if entry.has_values {
            pages.expect_values();
        }
        let (mut left_out, mut bytes_of) = (Vec::new(), HashMap::default());
        let mut count = |address: ExtentAddress| {
            *bytes_of.entry(space.segments.segment_of(address)).or_insert(0) += address.length();
        };
        let is_orphan = |page: u64| {
            let of_orphan = |orphan: &Orphan| {
                let first = u64::from(orphan.first_page.0);
                (first..first + u64::from(orphan.page_count)).contains(&page)
            };
            orphans.iter().any(of_orphan)
        };
        let mut reader = ChunkReader::new(space);
        for (chunk, &address) in entry.chunks.iter().enumerate().filter(|(_, address)| !address.is_none()) {
            let mut entries = reader.read(entry, chunk)?;
            count(address);
            for (page, word) in (chunk * CHUNK_PAGES..).zip(&mut entries) {
                let Some(address) = ExtentAddress::from_bits(*word) else { continue };
                if !orphans.is_empty() && is_orphan(page as u64) {
                    crate::coverage::mark!("a clone left out a value that only snapshots could see");
                    *word = 0;
                    left_out.push(PageId(page as u32));
                } else {
                    count(address);
                }
            }
            pages.table.restore_chunk(chunk, &entries);
        }
        let pages = Arc::new(pages.with_origins(&self.origins_of_clone(space, bytes_of.keys(), own_after)));
        // Extents of the same checkpoint, so none of them has been freed.
        let shared: Vec<(SegmentId, u64)> = bytes_of.into_iter().collect();
        debug_assert!(shared.iter().all(|(_, bytes)| *bytes > 0), "a segment is shared without extents");
        space.segments.share(&shared);
        let cloned = ClonedPages { space, pages, chunks: entry.chunks.clone(), left_out, shared };
        space.restore_runs(&cloned.pages, entry.runs.iter().cloned().map(Run::from).collect());
        Ok(cloned)
    }
}

impl CloneBase {
    /// Returns the origins of a clone whose extents lie in these segments.
    fn origins_of_clone<'i>(
        &self,
        space: &Space,
        segments: impl Iterator<Item = &'i SegmentId>,
        own_after: SegmentUse,
    ) -> Vec<CloneOrigin> {
        let CloneBase { entry, as_of, .. } = self;
        let mut uses: Vec<SegmentUse> = segments.map(|segment| space.segments.segment_use(*segment)).collect();
        uses.sort_unstable();
        let last_use = uses.last().copied().expect("a keyspace has a root");
        let mut origins = vec![CloneOrigin { keyspace: entry.id, as_of: *as_of, last_use, own_after }];
        origins.extend_from_slice(&entry.origins);
        if last_use == SegmentUse::UNKNOWN {
            // The database was opened despite corruption.
            return origins;
        }
        // From the oldest to the newest, so that each range of uses begins at the origin before it.
        let mut begin = SegmentUse(0);
        let is_held = |origin: &CloneOrigin| {
            let first = uses.partition_point(|segment_use| *segment_use <= begin);
            begin = origin.own_after;
            uses.get(first).is_some_and(|segment_use| *segment_use <= origin.last_use)
        };
        let held: Vec<bool> = origins.iter().rev().map(is_held).collect();
        let mut is_held = held.into_iter().rev();
        origins.retain(|_| {
            let is_held = is_held.next().expect("one for each");
            if !is_held {
                crate::coverage::mark!("a clone left out an origin of which it has no pages");
            }
            is_held
        });
        origins
    }
}

impl ClonedPages<'_> {
    /// Adds the pages to the keyspaces that checkpoints record. Commits by older snapshots see an empty keyspace.
    pub(crate) fn publish(&mut self, epoch_guard: &EpochGuard<'_>, timestamp: Timestamp) {
        let ClonedPages { space, pages, left_out, shared, .. } = self;
        assert!(!shared.is_empty(), "a clone without pages is published, or is published twice");
        pages.load_gate.announce().set_loaded_at(timestamp);
        space.add_page_space(Arc::clone(pages));
        left_out.iter().for_each(|page| space.record(epoch_guard.epoch(), pages.id, *page, ExtentAddress::NONE));
        shared.clear();
    }
}

impl Drop for ClonedPages<'_> {
    fn drop(&mut self) {
        if !self.shared.is_empty() {
            self.space.clear_runs(&self.pages);
            self.space.segments.unshare(&self.shared);
        }
    }
}
