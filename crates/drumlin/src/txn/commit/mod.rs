//! Commits of rows, and the steps that every commit takes.
//!
//! # The life of a commit
//! 1. *Admit* (`admission.rs`), called separately: the commit reserves memory for its record and for the pages that it
//!    will pin, both in one step. Commits are served in the order of their requests, and hold only row locks while they
//!    wait.
//! 2. *Prepare* (`prepare.rs`): the commit waits for everything that is not ready. It folds runs into the leaves that
//!    it will change (`txn/fold.rs`), encodes the record, reserves disk space for the pages that it will make dirty,
//!    appends medium values, and reserves log space. If it has several rows, it reads and pins their leaves, and splits
//!    leaves that have no room for the rows. It reserves memory for the versions last; `admission.rs` gives the reason
//!    for this order.
//! 3. *Latch* (`latch.rs`), under the epoch latch: the commit latches its leaves in key order. On the way, it validates
//!    the leaves that a serializable transaction has read. If a leaf is missing or too full, or a run is not folded
//!    into it, the commit releases all latches, makes that leaf ready, and latches its leaves from the start. The leaf
//!    of a single row is always read and split this way.
//! 4. *Apply* (`apply.rs`): the log assigns the timestamp and the record's position (`sink.rs`), unless it is sealed or
//!    has failed. After that, nothing waits, fails or can be cancelled: the commit changes the rows, retains their old
//!    versions, is marked as applied, and releases its latches.
//! 5. *Settle* (`settle.rs`): the commit waits until its record is durable (unless it is `Relaxed`) and readers see it.
//!
//! A small commit that has everything ready takes the same steps without waiting (`at_once.rs`). Recovery puts commits
//! that are already in the log through the same steps, without appending to it (`replay.rs`).

mod admission;
mod apply;
pub(crate) mod at_once;
mod latch;
mod prepare;
mod ranges;
pub(crate) mod ready;
mod replay;
mod settle;
mod sink;

use std::borrow::Cow;

pub(crate) use prepare::{Removals, Row};
use ready::Gate;
use sink::{LiveLog, LogSpace};
pub(crate) use sink::{LockedRows, RowsSeen};

use crate::error::{Error, Result};
use crate::format::KeyspaceId;
use crate::format::record::{self, Operation};
use crate::memory::{Account, Grant};
use crate::seglog::{Appended, Body};
use crate::space::SpaceReservation;
use crate::task::{Boxed, WaitMode};
use crate::txn::engine::Engine;
use crate::txn::read_set::Reads;
use crate::txn::write_set::Change;

/// The point at which a commit returns.
///
/// ```
/// use drumlin::{Config, Durability};
///
/// let db = Config::in_memory().durability(Durability::Relaxed).open("")?;
/// let cache = db.keyspace("cache")?; // its commits return before they are on the device
/// let accounts = cache.with_durability(Durability::Full); // commits through this handle wait for the device
/// db.sync()?; // all commits so far are on the device
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// Returns once the commit is on the device.
    #[default]
    Full,
    /// Returns once the commit is applied. A power failure may lose the newest commits, but the remaining ones are
    /// complete and without gaps. The record is written soon afterwards.
    Relaxed,
}

/// Memory for the record of a commit and for the pages that it pins, held until the commit is applied.
pub(crate) struct Admitted {
    work: Grant,
    pinned: Grant,
    /// The maximum size of the record's body.
    body_bytes_max: usize,
}

/// The content of a commit's record.
#[derive(Clone, Copy)]
pub(crate) enum Recorded<'a, 'g> {
    /// The rows that the commit changes.
    Rows,
    /// The changes of the rows, and ranges whose other rows are removed. There may be no changed rows.
    RowsAndRanges(&'a Removals<'a>),
    /// The id of a prepared transaction. The changes of the rows are in the keyspace of prepared transactions. The
    /// record repeats them if the database keeps changes for readers. With a gate, the commit waits for its signal
    /// before it is applied.
    Prepared { id: &'a [u8], feed_changes: &'a [u8], gate: Option<&'a Gate<'g>> },
}

/// Returns the body of the record that commits a prepared transaction. `body` must be empty.
fn prepared_body(id: &[u8], changes: &[u8], mut body: Vec<u8>) -> Body {
    assert!(body.is_empty(), "a record is appended to another");
    record::encode(KeyspaceId::PREPARED, &Operation::CommitPrepared { id, changes }, &mut body);
    Body::new(body)
}

impl Admitted {
    /// Gives back the memory of a commit that accounts for it otherwise.
    fn give_back(&mut self) {
        let is_smaller = self.work.resize(0) && self.pinned.resize(0);
        assert!(is_smaller, "memory was not given back");
    }
}

/// A commit that has changed its rows and appended its record to the log, but may not be durable yet.
pub(crate) struct Applied<'e> {
    logged: Appended,
    reserved_pages: SpaceReservation<'e>,
}

impl Engine {
    /// Applies a commit if nothing in its read set has changed. The rows must be in ascending order of (keyspace, key),
    /// without duplicates. The caller holds the row locks and has [admitted](Self::admit) the rows. After this function
    /// returns, the caller releases the row locks, releases the memory that *Admit* reserved, and
    /// [settles](Self::settle) the commit.
    ///
    /// If the future is dropped before the commit is applied, the commit leaves no trace. Once it is applied, this
    /// function does not wait, and `settle` waits only after it has done all work that must follow a commit, so the
    /// work does not depend on the future being polled.
    ///
    /// A commit that succeeds releases what it holds in this order:
    /// - in `Latched::apply`: the latches of leaves that were only read, the latches of changed leaves, the epoch latch
    ///   and the reclaim guard;
    /// - at the end of `apply_when_ready`: the pins of reads and of rows; by then, medium values belong to their rows;
    /// - then, in this function: the record's bytes and the memory for versions;
    /// - in the caller, once the commit is published: the row locks, then the memory that *Admit* reserved;
    /// - in `settle`, before it waits for the record to be durable: the reservation of disk space.
    pub(crate) fn apply<'e: 'a, 'a>(
        &'e self,
        mode: WaitMode<'a>,
        rows: &'a [Row<'a>],
        reads: Option<Reads<'a>>,
        seen: RowsSeen<'a>,
        admitted: Admitted,
        durability: Durability,
    ) -> Boxed<'a, Result<(Applied<'e>, Admitted)>> {
        self.apply_as(mode, rows, reads, seen, admitted, Recorded::Rows, durability)
    }

    /// Like [`apply`](Self::apply), with the given record.
    #[expect(clippy::too_many_arguments, reason = "the parts of one commit")]
    pub(crate) fn apply_as<'e: 'a, 'a, 'g: 'a>(
        &'e self,
        mode: WaitMode<'a>,
        rows: &'a [Row<'a>],
        reads: Option<Reads<'a>>,
        seen: RowsSeen<'a>,
        admitted: Admitted,
        recorded: Recorded<'a, 'g>,
        durability: Durability,
    ) -> Boxed<'a, Result<(Applied<'e>, Admitted)>> {
        Box::pin(async move {
            debug_assert!(rows.is_sorted_by(|left, right| left.order() < right.order()), "rows out of order");
            let (gate, removals) = match recorded {
                Recorded::Rows => (None, None),
                Recorded::RowsAndRanges(removals) => (None, Some(removals)),
                Recorded::Prepared { gate, .. } => (gate, None),
            };
            assert!(!rows.is_empty() || removals.is_some());
            self.check_failure()?;
            if let Some(removals) = removals {
                self.prepare_removals(mode, removals).await?;
            }
            self.fold_above_rows(mode, rows).await?;
            let body = match recorded {
                Recorded::Rows | Recorded::RowsAndRanges(_) => {
                    let removed_bytes = removals.map_or(0, Removals::record_bytes);
                    self.encode(rows, removals, Vec::with_capacity(admitted.body_bytes_max + removed_bytes))?
                }
                Recorded::Prepared { id, feed_changes, .. } => prepared_body(id, feed_changes, Vec::new()),
            };
            let body_bytes = body.bytes().len();
            let mut old_bytes = match (self.keeps_old_values, gate) {
                (true, None) => self.old_value_bytes(mode, rows).await?,
                // What a ready commit reserves must be small, because others wait for it.
                _ => 0,
            };
            old_bytes = old_bytes.min(self.log().body_bytes_max().saturating_sub(body_bytes));
            let reserved_pages = self.reserve_pages(mode, rows).await?;
            let medium = self.append_medium_values(mode, rows).await?;
            let log = self.log();
            let stream = if gate.is_some() { 0 } else { crate::sync::thread_index() % log.stream_count() };
            let reservation = self.reserve_log(mode, stream, body_bytes + old_bytes).await?;
            let mut prepared = self.prepare(mode, rows, reads).await?;
            if let Some(removals) = removals {
                prepared.version_bytes += self.removed_version_bytes(rows, removals);
                prepared.removals = Some(removals);
            }
            // The record with the old values exists for a moment, so it uses memory for versions.
            let version_bytes_max = self.budget.limit_bytes(Account::Versions) as usize;
            if prepared.version_bytes + 2 * old_bytes > version_bytes_max {
                old_bytes = 0;
            }
            let memory_bytes = prepared.version_bytes + 2 * old_bytes;
            let mut version_memory = self.secure_versions(mode, rows.len(), memory_bytes).await?;
            let (mut mode, mut admitted) = (mode, admitted);
            if let Some(gate) = gate {
                gate.hold(&self.budget, prepared.pinned.bytes(), prepared.version_bytes as u64)?;
                admitted.give_back();
                version_memory.resize(0);
                gate.wait().await;
                // The caller that gives the signal polls once. Pages that are missing now are read within that poll.
                mode = WaitMode::Blocking;
            }
            let ends_prepared = matches!(recorded, Recorded::Prepared { .. });
            let is_relaxed = durability == Durability::Relaxed;
            let space = LogSpace::Reserved(reservation);
            let (clock, old_bytes_max) = (&*self.clock, old_bytes);
            let body_ref = Cow::Borrowed(&body);
            let sink = LiveLog { clock, body: body_ref, old_bytes_max, space, ends_prepared, is_relaxed };
            let logged = self.apply_when_ready(mode, prepared, medium, seen, sink).await?;
            let is_later = |reads: Reads<'_>| reads.snapshot.timestamp < logged.timestamp;
            assert!(reads.is_none_or(is_later), "a transaction commits before its snapshot, at {}", logged.timestamp);
            drop(body);
            // The versions now account for the memory that they use.
            drop(version_memory);
            self.publish(&logged, rows);
            Ok((Applied { logged, reserved_pages }, admitted))
        })
    }

    /// Waits until an applied commit is published, and notes it in the keyspaces of its rows. Its row locks must not be
    /// released earlier.
    #[inline]
    pub(super) fn publish(&self, logged: &Appended, rows: &[Row<'_>]) {
        // The next owner of a row lock assumes that the row is unchanged if nothing has been published since its
        // snapshot, or nothing was noted in the keyspace.
        self.clock.wait_published(logged.timestamp);
        for of_keyspace in rows.chunk_by(|left, right| left.tree.pages.id == right.tree.pages.id) {
            self.snapshots.note_change(&of_keyspace[0].tree.pages.changed_at, logged.timestamp);
        }
    }

    /// Encodes the record of a commit into `body`, which must be empty and have enough capacity.
    pub(super) fn encode(&self, rows: &[Row<'_>], removals: Option<&Removals<'_>>, mut body: Vec<u8>) -> Result<Body> {
        let body_capacity = body.capacity();
        assert!(body.is_empty(), "a record is appended to another");
        let mut names_extents = false;
        let mut range_count = 0;
        for (tree, removed) in removals.into_iter().flat_map(|removals| removals.list) {
            for range in removed.ranges() {
                let (lower, upper) = (&range.lower[..], range.upper.as_deref());
                record::encode(tree.pages.id, &Operation::RemoveRange { lower, upper }, &mut body);
                range_count += 1;
            }
        }
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
        assert!(rows.len() + range_count > 0, "a commit of no rows is recorded");
        debug_assert!(body.len() <= body_capacity, "a record has {} bytes, {body_capacity} were reserved", body.len());
        debug_assert_eq!(
            record::decode(&body).flatten().count(),
            rows.len() + range_count,
            "a record can't be read as it was written"
        );
        let body = if names_extents { Body::naming_extents(body) } else { Body::new(body) };
        let body_bytes_max = self.log().body_bytes_max();
        if body.bytes().len() > body_bytes_max {
            return Err(Error::record_too_large(rows.len(), body.bytes().len() as u64, body_bytes_max as u64));
        }
        Ok(body)
    }
}
