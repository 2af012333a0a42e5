//! The end of a commit: its record becomes durable, and readers see it.

use std::future::poll_fn;

use super::prepare::Row;
use super::{Applied, Durability};
use crate::error::Result;
use crate::format::Timestamp;
use crate::seglog::Appended;
use crate::task::{WaitMode, turn};
use crate::tree::{Target, Tree};
use crate::txn::engine::Engine;
use crate::txn::write_set::Change;

impl Engine {
    /// Waits until an applied commit is as durable as requested, and makes it visible to readers. Returns its
    /// timestamp.
    pub(crate) async fn settle(
        &self,
        mode: WaitMode<'_>,
        rows: &[Row<'_>],
        applied: Applied<'_>,
        durability: Durability,
    ) -> Result<Timestamp> {
        let logged = self.request_write(mode.is_task(), rows, applied, durability);
        self.await_written(mode, &logged, durability).await
    }

    /// Waits until a commit whose write has been requested is as durable as `durability` demands, and makes the commit
    /// visible to readers. Returns its timestamp.
    pub(crate) async fn await_written(
        &self,
        mode: WaitMode<'_>,
        logged: &Appended,
        durability: Durability,
    ) -> Result<Timestamp> {
        assert!(logged.timestamp <= self.clock.published(), "a commit is waited for before it is applied");
        match (durability, mode) {
            (Durability::Relaxed, _) => {}
            (Durability::Full, WaitMode::Blocking) => self.log().wait_durable(logged)?,
            (Durability::Full, WaitMode::Tasks(_)) => {
                poll_fn(|context| self.log().poll_durable(logged.timestamp, context.waker())).await?;
            }
        }
        if durability == Durability::Full {
            let durable = self.log().durable();
            assert!(logged.timestamp <= durable, "a commit returns before it is durable");
            self.clock.show_durable(durable);
        }
        debug_assert!(logged.timestamp <= self.clock.visible(), "a commit returns that its author can't see");
        Ok(logged.timestamp)
    }

    /// Requests the write that the commit's durability calls for. Makes a relaxed commit visible now. Merges the leaves
    /// that the commit emptied, then releases its disk space. Also drops versions that no snapshot needs, except the
    /// versions of this commit: a later commit drops them once this one is durable.
    pub(crate) fn request_write(
        &self,
        for_task: bool,
        rows: &[Row<'_>],
        applied: Applied<'_>,
        durability: Durability,
    ) -> Appended {
        let Applied { logged, reserved_pages } = applied;
        assert!(
            logged.timestamp <= self.clock.published(),
            "a commit is shown before those in front of it are applied"
        );
        match durability {
            // Request the write even if the task stops waiting. A blocking caller writes the record itself while it
            // waits.
            Durability::Full if for_task => self.log().request_flush(&logged),
            Durability::Full => {}
            Durability::Relaxed => {
                self.log().request_relaxed_flush(&logged);
                self.clock.show_relaxed(logged.timestamp);
            }
        }
        self.merge_after_removals(rows);
        if self.versions.wants_collection() {
            self.collect_garbage();
        }
        drop(reserved_pages);
        if for_task {
            let value_bytes = |row: &Row<'_>| if let Change::Put(value) = row.change { value.len() } else { 0 };
            turn::count(
                turn::CHANGE_UNITS * rows.len() as u32 + turn::units_of_bytes(rows.iter().map(value_bytes).sum()),
            );
        }
        logged
    }

    /// Ends a commit that was ready: shows it like a relaxed one, and leaves all work that takes long to later commits.
    pub(crate) fn end_ready(&self, rows: &[Row<'_>], applied: Applied<'_>) -> Timestamp {
        let Applied { logged, reserved_pages } = applied;
        self.log().request_relaxed_flush(&logged);
        self.clock.show_relaxed(logged.timestamp);
        self.merge_after_removals(rows);
        drop(reserved_pages);
        logged.timestamp
    }

    /// Merges the leaves that an applied commit has left underfull.
    #[inline]
    fn merge_after_removals(&self, rows: &[Row<'_>]) {
        if rows.iter().any(|row| matches!(row.change, Change::Remove)) {
            self.merge_underfull(rows);
        }
    }

    fn merge_underfull(&self, rows: &[Row<'_>]) {
        debug_assert!(!rows.is_empty(), "a commit without rows leaves no leaf underfull");
        let reclaim_guard = self.pool.reclaim_guard();
        let mut sparse = Vec::new();
        for row in rows.iter().filter(|row| matches!(row.change, Change::Remove)) {
            if let Ok(page) = row.tree.read_leaf(Target::At(row.key))
                && Tree::is_underfull(&page)
            {
                sparse.push(row);
            }
        }
        drop(reclaim_guard);
        for row in sparse {
            row.tree.try_merge(row.key);
        }
    }
}
