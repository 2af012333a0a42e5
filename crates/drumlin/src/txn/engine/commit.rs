//! Commits.
//!
//! # The life of a commit
//! 1. *Admit*, by the caller: memory for the record and for the pages that will be pinned is reserved together, in the
//!    order of asking, before the commit holds anything but row locks (`room.rs`).
//! 2. *Prepare*, waiting for what is lacking. The record is encoded; disk space for the pages that will become dirty is
//!    reserved, medium values are appended, log space is reserved. If there are several rows, their leaves are brought
//!    in, pinned, and split where the rows do not fit (`prepare.rs`). Memory for the versions is reserved last.
//!    `room.rs` has the reason for this order.
//! 3. *Apply*, under the epoch latch, in one go (`apply.rs`). The leaves are latched in key order, and those that a
//!    serializable transaction has read are validated on the way. If one is missing or too full, everything is
//!    unlatched, the leaf is made ready, and all are latched again; the leaf of a single row is brought in and split in
//!    this way. Then the timestamp is taken with the record's place in the log, which a sealed or failed log refuses.
//!    From here on nothing waits, fails or can be cancelled: the rows are changed, their old versions are kept, the
//!    commit is marked applied.
//! 4. *Settle*: wait until the record is durable (unless `Relaxed`), and until readers see the commit.

use std::future::poll_fn;

use super::apply::{CommitSink, Unready};
use super::prepare::Row;
use super::{Admitted, Applied, Durability, Engine};
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::format::record::{self, Operation};
use crate::seglog::{Appended, Body, Reservation};
use crate::space::EpochGuard;
use crate::task::{WaitMode, turn};
use crate::tree::node::RowValue;
use crate::tree::{Target, Tree};
use crate::txn::clock::Clock;
use crate::txn::read_set::Reads;
use crate::txn::write_set::Change;

/// The log of an open database, for one commit whose record has its space reserved.
struct LiveLog<'e> {
    clock: &'e Clock,
    body: &'e Body,
    reservation: Option<Reservation<'e>>,
}

impl CommitSink for LiveLog<'_> {
    type Committed = Appended;

    const IN_ORDER: bool = true;

    fn take_timestamp(&mut self, _epoch_guard: &EpochGuard<'_>) -> Result<(Timestamp, Appended), Unready> {
        let reservation = self.reservation.take().expect("a commit takes its timestamp once");
        let appended = reservation.append(self.body).map_err(Unready::Error)?;
        assert!(self.clock.published() < appended.timestamp, "a timestamp is given out twice");
        crate::coverage::timestamp_taken(appended.timestamp);
        Ok((appended.timestamp, appended))
    }

    fn keeps(&self, _replaced: Option<&RowValue<'_>>) -> bool {
        true
    }

    fn mark_applied(&self, timestamp: Timestamp) {
        self.clock.mark_applied(timestamp);
    }
}

impl Engine {
    /// Applies a commit of rows in ascending order of (keyspace, key), each key once, if nothing in the read set has
    /// changed. The caller holds the row locks and has [admitted](Self::admit) the rows, and [settles](Self::settle)
    /// the commit. Calls `applied` once the row locks may be released. Dropping the future before that leaves nothing
    /// of the commit. There is no wait after it, and none in `settle` before only the caller's wait remains: nothing
    /// that must follow a commit depends on its future being polled.
    ///
    /// A commit that succeeds releases what it holds in this order:
    /// - in `Latched::apply`: latches of leaves that were read, of changed leaves, then epoch latch and reclaim guard;
    /// - at the end of `apply_when_ready`: pins, of reads and of rows; medium values belong to their rows by then;
    /// - after it, here: the record's bytes, the memory for versions;
    /// - in `applied`, once the commit is published: the row locks;
    /// - after it, here: the memory of *Admit*;
    /// - in `settle`, before the wait for the medium: the reservation of disk space.
    pub(crate) async fn apply(
        &self,
        mode: WaitMode<'_>,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        admitted: Admitted,
        applied: impl FnOnce(),
    ) -> Result<Applied<'_>> {
        assert!(!rows.is_empty());
        debug_assert!(rows.is_sorted_by(|left, right| left.order() < right.order()), "rows out of order");
        self.check_failure()?;
        let body = self.encode(rows, Vec::with_capacity(admitted.body_bytes_max))?;
        let body_bytes = body.bytes().len();
        let reserved_pages = self.reserve_pages(mode, rows).await?;
        let medium = self.append_medium_values(mode, rows).await?;
        let log = self.log();
        let stream = crate::sync::thread_index() % log.stream_count();
        let reservation = Some(self.reserve_log(mode, stream, body_bytes).await?);
        let prepared = self.prepare(mode, rows, reads).await?;
        let version_memory = self.secure_versions(mode, rows.len(), prepared.version_bytes).await?;
        let sink = LiveLog { clock: &self.clock, body: &body, reservation };
        let logged = self.apply_when_ready(mode, prepared, medium, sink).await?;
        let is_later = |reads: Reads<'_>| reads.snapshot.timestamp < logged.timestamp;
        assert!(reads.is_none_or(is_later), "a transaction commits before its snapshot, at {}", logged.timestamp);
        drop(body);
        // The versions account for the memory that they took.
        drop(version_memory);
        self.publish(&logged);
        applied();
        drop(admitted);
        Ok(Applied { logged, reserved_pages })
    }

    /// Waits until an applied commit is published, from where on its row locks may be released.
    #[inline]
    pub(super) fn publish(&self, logged: &Appended) {
        // The next owner of a row's lock that finds nothing published since its snapshot relies on the row being
        // unchanged.
        self.clock.wait_published(logged.timestamp);
    }

    /// Encodes the record of a commit into an empty vector that has room for it.
    pub(super) fn encode(&self, rows: &[Row<'_>], mut body: Vec<u8>) -> Result<Body> {
        let body_capacity = body.capacity();
        assert!(body.is_empty(), "a record is encoded behind another");
        let mut names_extents = false;
        for row in rows {
            let operation = match row.change {
                Change::Put(value) => Operation::Put { key: row.key, value },
                Change::PutLarge(value) => {
                    names_extents = true;
                    let extents = value.addresses.iter().map(|address| self.space.segments.name(*address)).collect();
                    let (length, value_id) = (value.length, value.value_id);
                    Operation::PutLarge { key: row.key, length, value_id, extents }
                }
                Change::Remove => Operation::Remove { key: row.key },
            };
            record::encode(row.tree.pages.id, &operation, &mut body);
        }
        assert!(!rows.is_empty(), "a commit of no rows is recorded");
        debug_assert!(body.len() <= body_capacity, "a record has {} bytes, {body_capacity} were reserved", body.len());
        debug_assert_eq!(
            record::decode(&body).flatten().count(),
            rows.len(),
            "a record can't be read as it was written"
        );
        let body = if names_extents { Body::naming_extents(body) } else { Body::new(body) };
        let body_bytes_max = self.log().body_bytes_max();
        if body.bytes().len() > body_bytes_max {
            return Err(Error::record_too_large(rows.len(), body.bytes().len() as u64, body_bytes_max as u64));
        }
        Ok(body)
    }

    /// Waits until an applied commit is as durable as requested, and shows it to readers. Returns its timestamp.
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

    /// Waits until a commit whose write was requested is as durable as it should be, and shows it to readers. Returns
    /// its timestamp.
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

    /// Requests the write that an applied commit's durability calls for, and shows the commit if it need not be
    /// durable. Merges of the leaves that it emptied are the last to use its disk space. Also drops versions that no
    /// snapshot needs; the commit's own are needed until it is durable, and left to later commits.
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
            // Written even if its task stops waiting. A thread that waits writes it itself.
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
            turn::count(turn::CHANGE * rows.len() as u32 + turn::units_of_bytes(rows.iter().map(value_bytes).sum()));
        }
        logged
    }

    /// Merges the leaves that an applied commit emptied.
    fn merge_after_removals(&self, rows: &[Row<'_>]) {
        if !rows.iter().any(|row| matches!(row.change, Change::Remove)) {
            return;
        }
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
