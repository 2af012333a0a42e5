//! The epoch latch: see invariants 2 and 3 in the documentation of `space`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::Epoch;
use crate::sync::{ShardedLock, ShardedReadGuard, ShardedWriteGuard};

/// Ensures that the epoch does not change while pages do. Threads that change pages take the latch shared. To begin, a
/// checkpoint takes it exclusively.
#[derive(Debug)]
pub(crate) struct EpochLatch {
    latch: ShardedLock,
    /// Changed only while the latch is held exclusively.
    newest: AtomicU64,
}

/// A guard of the [`EpochLatch`]: the epoch does not change while the guard lives. It is held only briefly, and never
/// across a wait.
#[derive(Debug)]
pub(crate) struct EpochGuard<'a> {
    epoch: Epoch,
    _shared: Option<ShardedReadGuard<'a>>,
    exclusive: Option<ShardedWriteGuard<'a>>,
}

impl EpochLatch {
    pub(super) fn new(epoch: Epoch) -> EpochLatch {
        EpochLatch { latch: ShardedLock::default(), newest: AtomicU64::new(epoch.0) }
    }

    /// Begins the next epoch. The caller must hold the latch exclusively.
    pub(super) fn begin_next(&self, epoch_guard: &EpochGuard<'_>) {
        let ended = epoch_guard.epoch();
        assert!(epoch_guard.exclusive.is_some() && ended == self.newest(), "an epoch began beside its latch");
        assert!(ended.next().incarnation() == ended.incarnation(), "an opening has used up its epochs: {ended}");
        assert!(ended < ended.next(), "epochs do not ascend");
        self.newest.store(ended.next().0, Ordering::Relaxed);
    }

    /// Takes the latch shared.
    #[inline]
    pub(crate) fn shared(&self) -> EpochGuard<'_> {
        let shared = Some(self.latch.read());
        EpochGuard { epoch: self.newest(), _shared: shared, exclusive: None }
    }

    /// Takes the latch exclusively, so that no other thread can change a page.
    pub(crate) fn exclusive(&self) -> EpochGuard<'_> {
        let exclusive = Some(self.latch.write());
        EpochGuard { epoch: self.newest(), _shared: None, exclusive }
    }

    /// Returns the newest epoch without taking the latch, so the epoch may end at any moment.
    pub(super) fn newest(&self) -> Epoch {
        Epoch(self.newest.load(Ordering::Relaxed))
    }
}

impl EpochGuard<'_> {
    /// Returns the current epoch.
    #[inline]
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }
}
