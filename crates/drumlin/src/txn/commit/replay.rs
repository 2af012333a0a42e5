//! Applies commits that are already in the log, during recovery. Several threads apply disjoint sets of rows.

use super::prepare::Row;
use super::sink::{CommitSink, RowsSeen, Unready};
use crate::error::Result;
use crate::format::{KeyspaceId, Timestamp};
use crate::space::{EpochGuard, Purpose};
use crate::task::{WaitMode, ready};
use crate::tree::node::RowValue;
use crate::txn::engine::{Engine, Replaying};
use crate::txn::write_set::Change;

/// The sink of a commit that already has its timestamp. It does not publish the commit, because there are no readers
/// yet.
struct ReplayedCommit {
    timestamp: Timestamp,
    /// `true` if large values among the replaced ones are not freed, because other rows put them again.
    moves_values: bool,
}

impl CommitSink for ReplayedCommit {
    type Committed = ();

    const IN_ORDER: bool = false;

    const FOLD_PURPOSE: Purpose = Purpose::Replay;

    fn record_old_values<'l>(&mut self, _rows: &[Row<'_>], _old: impl Iterator<Item = Option<RowValue<'l>>>) {}

    fn take_timestamp(&mut self, _epoch_guard: &EpochGuard<'_>) -> Result<(Timestamp, ()), Unready> {
        Ok((self.timestamp, ()))
    }

    /// Retains only replaced large values, which have to be freed. No snapshot can need other old versions.
    fn keeps(&self, _row: (KeyspaceId, &[u8]), replaced: Option<&RowValue<'_>>) -> bool {
        !self.moves_values && matches!(replaced, Some(RowValue::Large(_)))
    }

    fn mark_applied(&self, _timestamp: Timestamp) -> bool {
        false
    }
}

impl Engine<Replaying> {
    /// Applies the rows of a commit that is already in the log.
    pub(crate) fn replay(&self, rows: &[Row<'_>], timestamp: Timestamp) -> Result<()> {
        self.replay_as(rows, ReplayedCommit { timestamp, moves_values: false })
    }

    /// Removes rows with large values, whose pages the caller has [taken](crate::pool::Pool::take_pages).
    pub(crate) fn replay_removal_of_moved(&self, rows: &[Row<'_>], timestamp: Timestamp) -> Result<()> {
        self.replay_as(rows, ReplayedCommit { timestamp, moves_values: true })
    }

    fn replay_as(&self, rows: &[Row<'_>], sink: ReplayedCommit) -> Result<()> {
        let timestamp = sink.timestamp;
        debug_assert!(rows.is_sorted_by(|left, right| left.order() < right.order()), "rows out of order");
        assert!(timestamp <= self.clock.published(), "commit {timestamp} is replayed, which the log does not have");
        ready(async {
            self.fold_above_replayed(rows).await?;
            let _reserved_pages = self.reserve_replayed_pages(rows)?;
            let medium = self.append_medium_values(WaitMode::Blocking, rows).await?;
            let prepared = self.prepare(WaitMode::Blocking, rows, None).await?;
            self.apply_when_ready(WaitMode::Blocking, prepared, medium, RowsSeen::Nothing, sink).await
        })?;
        for row in rows.iter().filter(|row| matches!(row.change, Change::Remove)) {
            row.tree.try_merge(row.key);
        }
        Ok(())
    }
}
