//! The page-table changes of both epochs that are not in any checkpoint on disk yet: see invariant 4 in the
//! documentation of `space`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::summary::TableChange;
use crate::format::{Epoch, ExtentAddress, KeyspaceId, PageId};
use crate::memory;
use crate::sync::{CachePadded, Mutex, MutexGuard};

const _: () = assert!(size_of::<TableChange>() as u64 == memory::CHANGE_BYTES);

/// A chunk of a page table that a bulk load has written. No page of the chunk was in use before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkImage {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) chunk: usize,
    pub(crate) address: ExtentAddress,
}

/// The logged page-table changes of one epoch.
#[derive(Debug, Default)]
pub(super) struct EpochChanges {
    /// Changes that no summary contains yet.
    pub(super) fresh: Vec<TableChange>,
    /// Changes that a summary contains. They are kept for folding.
    pub(super) summarised: Vec<TableChange>,
    /// The addresses of the epoch's summaries.
    pub(super) summaries: Vec<ExtentAddress>,
    /// Base-image chunks written by bulk loads, and the sequence number of the next change at that time. A chunk
    /// supersedes the earlier changes of its pages.
    pub(super) images: Vec<(ChunkImage, u32)>,
    next_sequence: u32,
}

impl EpochChanges {
    fn push(&mut self, keyspace: KeyspaceId, page: PageId, address: ExtentAddress) {
        let sequence = self.next_sequence;
        assert!(self.fresh.last().is_none_or(|last| last.sequence < sequence), "changes are out of order");
        assert!(page != PageId::NONE || address.is_none(), "page 0 is logged at {address:?}");
        self.next_sequence += 1;
        memory::reserve(&mut self.fresh, 1);
        self.fresh.push(TableChange { keyspace, page, address, sequence });
    }
}

/// The logged changes of the two epochs, indexed by the parity of the epoch.
#[derive(Debug, Default)]
pub(super) struct TableLog {
    changes: [Mutex<EpochChanges>; 2],
    /// The number of changes of each epoch, readable without the locks.
    counts: [CachePadded<AtomicU64>; 2],
}

impl TableLog {
    /// Locks the changes of an epoch.
    pub(super) fn lock(&self, epoch: Epoch) -> MutexGuard<'_, EpochChanges> {
        self.changes[(epoch.0 & 1) as usize].lock()
    }

    fn count_of(&self, epoch: Epoch) -> &AtomicU64 {
        &self.counts[(epoch.0 & 1) as usize]
    }

    /// Begins an epoch. The changes of the epoch before last, which had the same parity, must have been
    /// [taken](Self::take).
    pub(super) fn begin(&self, epoch: Epoch) {
        let mut changes = self.lock(epoch);
        assert_eq!(self.count(epoch), 0, "the epoch before last has changes that count");
        assert!(changes.fresh.is_empty(), "the epoch before last has changes in no summary");
        assert!(changes.summaries.is_empty(), "the epoch before last has summaries in no checkpoint");
        assert!(changes.images.is_empty(), "the epoch before last has chunks in no checkpoint");
        changes.next_sequence = 0;
    }

    pub(super) fn push(&self, epoch: Epoch, keyspace: KeyspaceId, page: PageId, address: ExtentAddress) {
        self.push_if(epoch, keyspace, page, address, || true);
    }

    /// Calls `change`, and if it returns `true`, logs the change. No later change of the page is logged before this
    /// one.
    pub(super) fn push_if(
        &self,
        epoch: Epoch,
        keyspace: KeyspaceId,
        page: PageId,
        address: ExtentAddress,
        change: impl FnOnce() -> bool,
    ) -> bool {
        let mut changes = self.lock(epoch);
        let changed = change();
        if changed {
            changes.push(keyspace, page, address);
            // Count under the lock, so that a thread that estimates the next checkpoint's writes misses no change.
            self.count_of(epoch).fetch_add(1, Ordering::Relaxed);
        }
        changed
    }

    pub(super) fn push_image(&self, epoch: Epoch, image: ChunkImage) {
        assert!(!image.address.is_none(), "a chunk of pages is nowhere");
        let mut changes = self.lock(epoch);
        let next_sequence = changes.next_sequence;
        memory::reserve(&mut changes.images, 1);
        changes.images.push((image, next_sequence));
    }

    /// Takes the changes of an epoch whose checkpoint is being made.
    pub(super) fn take(&self, epoch: Epoch) -> EpochChanges {
        let mut changes = self.lock(epoch);
        self.count_of(epoch).store(0, Ordering::Relaxed);
        std::mem::take(&mut *changes)
    }

    /// Returns the number of logged changes of an epoch.
    pub(super) fn count(&self, epoch: Epoch) -> u64 {
        self.count_of(epoch).load(Ordering::Acquire)
    }

    /// Returns the number of logged changes of both epochs.
    pub(super) fn len(&self) -> usize {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed) as usize).sum()
    }

    /// Returns the memory used by the changes, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let capacity = |changes: &Mutex<EpochChanges>| {
            let changes = changes.lock();
            changes.fresh.capacity() + changes.summarised.capacity()
        };
        (self.changes.iter().map(capacity).sum::<usize>() * size_of::<TableChange>()) as u64
    }
}
