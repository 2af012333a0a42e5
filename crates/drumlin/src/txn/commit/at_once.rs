//! Commits without waiting: a straight-line path for commits that can be applied immediately.
//!
//! A commit of a few rows usually finds everything that it needs: memory, space on the disk and in the log, and leaves
//! that are in memory and have room for the rows. [`Engine::commit_at_once`] reserves all of this and applies the
//! commit. If anything is unavailable, it changes nothing and releases its reservations. The caller then uses
//! [`Engine::apply`], which waits.
//!
//! # Compared with `apply`
//!
//! For several rows, the step under the latches is `try_apply`, as in `apply`. For a single row,
//! [`try_apply_one`](Engine::try_apply_one) repeats that step without the lists of leaves, versions and guards: it
//! latches the leaf (`latch_all`), checks that there is room, takes the timestamp (`try_apply`), changes the row and
//! retains its old version (`change_leaf`). This saves a fifth of the instructions of an insert (callgrind: 7,900
//! instead of 10,100). The test `both_ways_of_committing_leave_the_same` compares the two.
//!
//! 1. Before its timestamp, it reserves the same resources as `apply`, each in the maximum amount that the commit may
//!    need. The same code changes the rows. No leaf is pinned: the commit reads no leaf from disk, so its leaves need
//!    no protection from eviction. A single row with a short record needs no memory from the [account of
//!    commits](Account::Commits), because the record is in a vector that the thread reuses.
//! 2. It overtakes no other commit: it reserves no memory or log space for which other commits are queued.
//! 3. The order in which commits reserve does not apply to it, because it never waits while it holds a resource.
//! 4. As in `apply`, it adds no undo record if no snapshot needs one when the leaf is unlatched. A `Relaxed` commit is
//!    visible by then if the commits before it are applied
//!    ([`are_open_besides`](crate::txn::snapshots::Snapshots::are_open_besides)).
//! 5. Under the latches, the log assigns the record's timestamp and its position in one step, or refuses. After that,
//!    nothing can fail.

use std::borrow::Cow;
use std::cell::Cell;
use std::thread::LocalKey;

use super::admission::ROW_WORK_BYTES;
use super::apply::change_row;
use super::latch::CommitRows;
use super::prepare::{Row, incoming_of, old_value_bytes_max, row_version_bytes_max};
use super::sink::{CommitSink, LiveLog, LogSpace, RowsSeen, Unready};
use super::{Applied, Durability, Recorded, prepared_body};
use crate::error::Result;
use crate::memory::Account;
use crate::seglog::Appended;
use crate::tree::Incoming;
use crate::tree::node::{Leaf, LeafMut};
use crate::txn::engine::Engine;
use crate::txn::undo::{UndoRecord, one_version_bytes_max, row_bytes};
use crate::txn::write_set::Change;

/// The maximum number of rows that are committed this way. With more rows, some leaf is likely to be full or not in
/// memory.
const ROWS_MAX: usize = 16;

/// The maximum capacity of a vector that a thread retains. It is enough for the record of a row in a 4 KiB leaf, and
/// for the version that the row replaces. A commit of such a row needs no memory for which other commits wait, because
/// the lock table also retains memory for the row's lock. The thread's own stack is larger than these vectors.
const SPARE_BYTES_MAX: usize = 2 << 10;

thread_local! {
    static SPARE_RECORD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static SPARE_UNDO: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

#[cfg(test)]
thread_local! {
    /// If `true`, commits of this thread use [`Engine::apply`], which waits.
    pub(crate) static IS_OFF: Cell<bool> = const { Cell::new(false) };
}

/// Returns an empty vector with a capacity of at least `bytes_max`: the one that the thread has retained, if any.
#[inline]
fn take_spare(spare: &'static LocalKey<Cell<Vec<u8>>>, bytes_max: usize) -> Vec<u8> {
    // The thread-local vector may have been destroyed already if the thread is ending.
    let mut vector = spare.try_with(Cell::take).unwrap_or_default();
    debug_assert!(vector.capacity() <= SPARE_BYTES_MAX, "a thread keeps {} bytes", vector.capacity());
    vector.clear();
    vector.reserve_exact(bytes_max);
    vector
}

/// Retains a vector for the thread's next commit.
#[inline]
fn give_spare(spare: &'static LocalKey<Cell<Vec<u8>>>, vector: Vec<u8>) {
    if vector.capacity() <= SPARE_BYTES_MAX {
        let _ = spare.try_with(|spare| spare.set(vector));
    }
}

/// Returns the maximum size of these rows' record. Returns `None` if a value needs its own extent, because the commit
/// may then have to wait for a buffer.
#[inline]
fn body_bytes_max(rows: &[Row<'_>]) -> Option<usize> {
    let mut bytes = 0;
    for row in rows {
        bytes += row.key.len() + 24;
        match row.change {
            Change::Put(value) if value.len() <= row.tree.inline_bytes_max(row.key) => bytes += value.len(),
            Change::Put(_) | Change::PutLarge(_) => return None,
            Change::Remove => {}
        }
    }
    Some(bytes)
}

impl Engine {
    /// Commits rows if no waiting is necessary. The rows must be in ascending order of (keyspace, key), without
    /// duplicates. If the caller has to [apply](Self::apply) the commit instead, returns `None` and changes nothing.
    /// The caller holds the row locks, which use `extra_bytes` of memory, and may release them once this returns.
    ///
    /// # Errors
    /// Same as [`apply`](Self::apply). Nothing has changed then.
    pub(crate) fn commit_at_once(
        &self,
        rows: &[Row<'_>],
        extra_bytes: usize,
        seen: RowsSeen<'_>,
        durability: Durability,
    ) -> Result<Option<Applied<'_>>> {
        self.commit_at_once_as(rows, extra_bytes, seen, durability, Recorded::Rows)
    }

    /// Like [`commit_at_once`](Self::commit_at_once), with the given record.
    #[inline]
    pub(crate) fn commit_at_once_as(
        &self,
        rows: &[Row<'_>],
        extra_bytes: usize,
        seen: RowsSeen<'_>,
        durability: Durability,
        recorded: Recorded<'_, '_>,
    ) -> Result<Option<Applied<'_>>> {
        assert!(!rows.is_empty());
        self.check_failure()?;
        #[cfg(test)]
        if IS_OFF.get() {
            return Ok(None);
        }
        if rows.len() > ROWS_MAX {
            return Ok(None);
        }
        debug_assert!(rows.is_sorted_by(|left, right| left.order() < right.order()), "rows out of order");
        let Some(body_bytes_max) = body_bytes_max(rows) else { return Ok(None) };
        let old_bytes_max = if self.keeps_old_values { rows.iter().map(old_value_bytes_max).sum() } else { 0 };
        let _work;
        if rows.len() > 1 || body_bytes_max + old_bytes_max > SPARE_BYTES_MAX {
            let work_bytes = (body_bytes_max + 2 * old_bytes_max + rows.len() * ROW_WORK_BYTES + extra_bytes) as u64;
            let Some(held) = self.budget.try_hold(Account::Commits, work_bytes) else { return Ok(None) };
            _work = held;
        }
        let Some(reserved_pages) = self.try_reserve_pages(rows)? else { return Ok(None) };
        let spare = take_spare(&SPARE_RECORD, body_bytes_max);
        let body = match recorded {
            Recorded::RowsAndRanges(_) => unreachable!("removing ranges may wait"),
            Recorded::Rows => self.encode(rows, None, spare)?,
            Recorded::Prepared { id, feed_changes, gate } => {
                assert!(gate.is_none(), "a ready commit waits for its signal");
                prepared_body(id, feed_changes, spare)
            }
        };
        let ends_prepared = matches!(recorded, Recorded::Prepared { .. });
        let is_relaxed = durability == Durability::Relaxed;
        let log = self.log();
        let stream = crate::sync::thread_index() % log.stream_count();
        let applied = {
            let space = LogSpace::Free { log, stream };
            let old_bytes_max = old_bytes_max.min(log.body_bytes_max().saturating_sub(body.bytes().len()));
            let body = Cow::Borrowed(&body);
            let mut sink = LiveLog { clock: &self.clock, body, old_bytes_max, space, ends_prepared, is_relaxed };
            self.try_apply_rows(rows, seen, &mut sink)
        };
        give_spare(&SPARE_RECORD, body.into_bytes());
        let logged = match applied {
            Ok(logged) => logged,
            Err(Unready::Error(error)) => return Err(error),
            Err(
                Unready::Needs(_)
                | Unready::LeafFull(_)
                | Unready::Unfolded(_)
                | Unready::Overtaken
                | Unready::LogSpace
                | Unready::Memory,
            ) => {
                crate::coverage::mark!("a commit could not be made at once");
                return Ok(None);
            }
        };
        assert!(logged.stream.index() == stream, "a record went to another stream than it was meant for");
        self.publish(&logged, rows);
        if logged.wants_preparation {
            log.request_preparation();
        }
        Ok(Some(Applied { logged, reserved_pages }))
    }

    fn try_apply_rows(
        &self,
        rows: &[Row<'_>],
        seen: RowsSeen<'_>,
        sink: &mut LiveLog<'_>,
    ) -> Result<Appended, Unready> {
        if let [row] = rows {
            return self.try_apply_one(row, seen, sink);
        }
        // This memory is held only until the versions are added, which then account for the memory that they use.
        let version_bytes_max = rows.iter().map(row_version_bytes_max).sum::<usize>();
        let memory = self.budget.try_hold(Account::Versions, version_bytes_max as u64);
        let _memory = memory.ok_or(Unready::Memory)?;
        let incoming: Vec<Incoming<'_>> = rows.iter().map(incoming_of).collect();
        let (since, own_snapshots) = (seen.since(), seen.own_snapshots());
        let work = CommitRows { rows, incoming: &incoming, reads: None, since, own_snapshots, removals: None };
        self.try_apply(&work, &[], &[], sink)
    }

    /// Applies a single row. This needs no list of leaves, and memory only for the version that the row replaces.
    fn try_apply_one(&self, row: &Row<'_>, seen: RowsSeen<'_>, sink: &mut LiveLog<'_>) -> Result<Appended, Unready> {
        // Declared first, so that it is dropped last: dropping it may wake a thread, which must not happen under a
        // latch.
        let mut memory = None;
        let incoming = incoming_of(row);
        let pages = &row.tree.pages;
        let epoch_guard = self.space.epoch_latch.shared();
        if self.is_overtaken(seen.since()) {
            return Err(Unready::Overtaken);
        }
        let mut write = row.tree.write_leaf(row.key, &|_| false)?;
        let leaf = Leaf::new(&write);
        if row.tree.has_runs_above(&leaf) {
            return Err(Unready::Unfolded(0));
        }
        if !crate::tree::fits(&leaf, std::slice::from_ref(&incoming)) {
            return Err(Unready::LeafFull(0..1));
        }
        let found = leaf.search(row.key);
        let replaced = found.ok().map(|at| leaf.value(at));
        sink.record_old_values(std::slice::from_ref(row), std::iter::once(replaced));
        // Removing a row that does not exist replaces no version.
        let undo = if replaced.is_some() || incoming.value_bytes.is_some() {
            let bytes = one_version_bytes_max(row.key, replaced.as_ref());
            let held = self.budget.try_hold(Account::Versions, bytes as u64).ok_or(Unready::Memory)?;
            let vector = take_spare(&SPARE_UNDO, row_bytes(row.key, replaced));
            Some((UndoRecord::of_one(vector, row.key, replaced), memory.insert(held)))
        } else {
            None
        };
        self.pool.prepare_change(&epoch_guard, &write)?;
        let (timestamp, logged) = sink.take_timestamp(&epoch_guard)?;
        let page = write.page();
        self.pool.mark_dirty(&epoch_guard, &write);
        let mut leaf = LeafMut::new(write.leaf_mut(&pages.table));
        assert!(leaf.as_leaf().newest() < timestamp, "commit {timestamp} comes late to its leaf");
        change_row(&mut leaf, row, timestamp, found, self.row_value(&epoch_guard, row, None));
        leaf.set_newest(timestamp);
        let is_visible = sink.mark_applied(timestamp);
        if let Some((mut undo, held)) = undo {
            if is_visible && !undo.names_values() && !self.snapshots.are_open_besides(seen.own_snapshots()) {
                crate::coverage::mark!("a commit left no version, since no snapshot needed it");
            } else {
                let kept = undo.exact(SPARE_BYTES_MAX);
                self.versions.add_within(pages.id, page, timestamp, kept.unwrap_or_else(|| undo.take()), held);
            }
            give_spare(&SPARE_UNDO, undo.into_vector());
        }
        Ok(logged)
    }
}
