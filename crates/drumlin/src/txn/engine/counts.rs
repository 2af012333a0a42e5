//! Kept row counts: when a keyspace begins to keep them, and when changes are folded into them.

use std::sync::Arc;

use super::Engine;
use crate::counts::CountedTree;
use crate::counts::KeptCounts;
use crate::error::Result;
use crate::format::Timestamp;
use crate::task::WaitMode;

impl Engine {
    /// Begins to keep the counts of a keyspace, if there is memory for them. Stops commits briefly: those that have a
    /// timestamp are applied first, and those that get one later see that counts are kept.
    pub(crate) fn keep_counts(&self, tree: &CountedTree) -> Option<Arc<KeptCounts>> {
        let epoch_guard = self.space.epoch_latch.exclusive();
        // A dropped keyspace would never release its counts.
        tree.check_dropped().ok()?;
        let number_end = tree.pages.table.number_end();
        tree.counts.begin(&epoch_guard, self.clock.published(), &self.budget, number_end)
    }

    /// Like [`keep_counts`](Self::keep_counts), and also keeps reductions of the rows' values.
    pub(crate) fn keep_reductions(&self, tree: &CountedTree) -> Option<Arc<KeptCounts>> {
        let epoch_guard = self.space.epoch_latch.exclusive();
        tree.check_dropped().ok()?;
        let number_end = tree.pages.table.number_end();
        tree.counts.begin_reductions(&epoch_guard, self.clock.published(), &self.budget, number_end)
    }

    /// Folds the changes that every reader sees into the counts, if the list of changes has more than `unsorted_max` that
    /// are out of order. If the list takes too much memory, also folds changes that older readers don't see; their
    /// snapshots can no longer use the counts.
    pub(crate) async fn fold_counts(
        &self,
        mode: WaitMode<'_>,
        tree: &CountedTree,
        kept: &KeptCounts,
        unsorted_max: usize,
    ) -> Result<()> {
        let Some(is_large) = kept.wants_fold(unsorted_max) else { return Ok(()) };
        let up_to = if is_large { self.clock.visible() } else { self.snapshots.horizon(&self.clock) };
        assert!(up_to <= self.clock.published(), "changes are folded that are not published");
        tree.fold_counts(mode, kept, up_to).await
    }

    /// Returns `true` if the row existed as of this commit.
    pub(crate) async fn has_row_at(
        &self,
        mode: WaitMode<'_>,
        tree: &CountedTree,
        key: &[u8],
        at: Timestamp,
    ) -> Result<bool> {
        let found = self.find_in(mode, tree, key, super::ReadAt::Timestamp(at), |_| ()).await?;
        Ok(found.is_some())
    }
}
