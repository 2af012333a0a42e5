//! Commits that remove ranges of keys.
//!
//! A range delete is attached to its keyspace as a removal, a run without rows (`space/runs.rs`), and folded later. Its
//! commit takes the steps of any other commit, with three differences:
//!
//! - *It holds the epoch latch exclusively* from latching its leaves until it is applied. So no other commit is between
//!   its check that all runs are folded into a leaf, and its timestamp. This takes O(rows that the commit also writes).
//! - *Rows that it puts* are applied together with the removal, by the same timestamp. Their leaves then have this
//!   timestamp, which says that the removal is folded into them. So the commit itself takes the other rows of the range
//!   out of these leaves.
//! - *It locks no row of the range.* Before it reserves anything, it waits for rows that others have locked
//!   (`db/locking.rs`). A transaction that locks a row afterwards, before the removal is attached, finds the removal
//!   when it commits (`Engine::check_runs`). In turn, if the commit has a snapshot, it ends with a conflict if a row of
//!   the range has changed since.

use super::prepare::{MediumValue, Removals, Row};
use super::sink::{CommitSink, Unready};
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::memory::Account;
use crate::pool::FrameWrite;
use crate::space::EpochGuard;
use crate::space::runs::{RemovedKeys, Run};
use crate::task::WaitMode;
use crate::tree::node::Leaf;
use crate::txn::engine::Engine;
use crate::txn::undo::UndoRecord;
use crate::txn::write_set::Change;

const CHANGED: Error =
    Error::Conflict { reason: "another transaction has changed rows of a range that this one removes" };
const PREPARED: Error = Error::Conflict {
    reason: "another transaction was prepared that has locked rows of a range that this one removes",
};

impl<L> Engine<L> {
    /// Checks under the exclusive epoch latch whether the removals may be attached, and discards the keyspaces' counts.
    /// Returns an error if another commit has changed a row of the ranges since the commit's snapshot. The caller has
    /// latched no leaf yet. O(leaves with versions) if the commit has a snapshot.
    pub(super) fn begin_removals(&self, removals: &Removals<'_>) -> Result<(), Unready> {
        debug_assert!(
            removals.list.is_sorted_by_key(|(tree, _)| tree.pages.id),
            "keyspaces of removals are out of order"
        );
        for (tree, removed) in removals.list {
            assert!(!removed.is_empty(), "a commit removes a range without keys");
            let (pages, keyspace) = (&tree.pages, tree.pages.id);
            tree.check_dropped().map_err(Unready::Error)?;
            if (removals.meets_prepared)(keyspace, removed) {
                return Err(Unready::Error(PREPARED));
            }
            if let Some(snapshot) = removals.snapshot {
                let since = snapshot.timestamp;
                if pages.load_gate.is_loaded_since(since) || self.versions.any_changed_in(keyspace, removed, since) {
                    return Err(Unready::Error(CHANGED));
                }
                for range in removed.ranges().iter().filter(|_| pages.runs.newest() > since) {
                    if tree.have_runs_key(since, &range.lower, range.upper.as_deref())? {
                        return Err(Unready::Error(CHANGED));
                    }
                }
                if self.spilled.may_have(since) && self.spilled.published() != removals.spilled_published {
                    let reason = "rows of a range that this transaction removes may have changed: its commit took long";
                    return Err(Unready::Error(Error::Conflict { reason }));
                }
                // If the snapshot has not been ended, no version was missing above.
                snapshot.check().map_err(Unready::Error)?;
            }
        }
        for (tree, _) in removals.list {
            // The counts describe rows that will be removed. End them before latching a leaf: threads that count rows
            // hold the counts while they wait for that latch.
            tree.counts.discard();
        }
        Ok(())
    }

    /// Attaches the removals of a commit to their keyspaces. The caller holds the exclusive epoch latch, and publishes
    /// the timestamp afterwards.
    pub(super) fn attach_removals(&self, removals: &Removals<'_>, timestamp: Timestamp) {
        for &(tree, removed) in removals.list {
            self.space.attach_run(&tree.pages, Run::removal(timestamp, removed.clone()));
        }
        self.set_newest_run(timestamp);
        assert!(self.clock.published() < timestamp, "a removal is attached by a timestamp that is given out");
        crate::coverage::mark!("a range of rows was removed");
    }

    /// Changes the rows of one leaf, and removes all other rows of the leaf with keys that the commit removes.
    #[expect(clippy::too_many_arguments, reason = "those of `change_leaf`, and one more")]
    pub(super) fn change_leaf_removing<S: CommitSink>(
        &self,
        epoch_guard: &EpochGuard<'_>,
        write: &mut FrameWrite<'_>,
        rows: &[Row<'_>],
        medium: &[Option<MediumValue>],
        removed: &RemovedKeys,
        timestamp: Timestamp,
        sink: &S,
    ) -> UndoRecord {
        let leaf = Leaf::new(write);
        let (runs, before) = (&rows[0].tree.pages.runs, leaf.newest());
        runs.note_folded_into(before, timestamp, leaf.lower_fence(), leaf.upper_fence());
        let mut keys = Vec::new();
        for index in 0..leaf.len() {
            let mut key = Vec::new();
            leaf.key_into(index, &mut key);
            if removed.covers(&key) && rows.binary_search_by(|row| row.key.cmp(&key)).is_err() {
                keys.push(key);
            }
        }
        let medium = medium.iter().copied().chain(std::iter::repeat(None));
        let removals = keys.iter().map(|key| (Row { tree: rows[0].tree, key, change: Change::Remove }, None));
        let mut all: Vec<(Row<'_>, Option<MediumValue>)> = rows.iter().copied().zip(medium).chain(removals).collect();
        all.sort_by(|(left, _), (right, _)| left.key.cmp(right.key));
        let (all, medium): (Vec<Row<'_>>, Vec<Option<MediumValue>>) = all.into_iter().unzip();
        assert!(all.len() >= rows.len(), "a commit loses rows among those that it removes");
        debug_assert!(all.is_sorted_by(|left, right| left.key < right.key), "a row is changed and removed");
        self.change_leaf(epoch_guard, write, &all, &medium, timestamp, sink)
    }

    /// Estimates the memory, in bytes, of the versions of removed rows in the leaves into which the commit also puts
    /// rows.
    pub(super) fn removed_version_bytes(&self, rows: &[Row<'_>], removals: &Removals<'_>) -> usize {
        let is_inside = |row: &&Row<'_>| removals.of(row.tree.pages.id).is_some_and(|removed| removed.covers(row.key));
        let page_bytes = rows.iter().filter(is_inside).map(|row| row.tree.pages.page_bytes());
        let limit_bytes = self.budget.limit_bytes(Account::Versions) as usize / 4;
        page_bytes.map(|bytes| 2 * bytes).sum::<usize>().min(limit_bytes)
    }
}

impl Engine {
    /// Waits until the keyspaces have room for another removal each. If one has too many, folds its oldest ones, which
    /// blocks the thread.
    pub(super) async fn prepare_removals(&self, mode: WaitMode<'_>, removals: &Removals<'_>) -> Result<()> {
        assert!(!removals.list.is_empty(), "a commit removes no range");
        for (tree, _) in removals.list {
            self.make_room_for_removal(tree)?;
        }
        self.check_spilled(mode, removals).await
    }

    /// Returns an error if spilled versions show that a row of the ranges has changed since the commit's snapshot.
    async fn check_spilled(&self, mode: WaitMode<'_>, removals: &Removals<'_>) -> Result<()> {
        let Some(snapshot) = removals.snapshot else { return Ok(()) };
        for (tree, removed) in removals.list {
            for range in removed.ranges() {
                let (keyspace, fences) = (tree.pages.id, (Some(&range.lower[..]), range.upper.as_deref()));
                if self.spilled.any_changed(mode, keyspace, fences, snapshot.timestamp, |_| true).await? {
                    return Err(CHANGED);
                }
            }
        }
        snapshot.check()
    }
}
