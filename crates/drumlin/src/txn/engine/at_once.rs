//! Commits at once: those that wait for nothing before they are applied, in a straight line of calls.
//!
//! A commit of a few rows mostly finds all that it needs: memory, space on the disk and in the log, and its leaves in
//! memory, with room for the rows. [`Engine::commit_at_once`] takes all this and applies the commit. Where one thing is
//! lacking it gives back all that it took, with nothing changed, and the commit goes the way that waits
//! ([`Engine::commit`]).
//!
//! # The same commit, not another kind
//! 1. It takes what the other takes before its timestamp, of every part at least as much, but for pins: nothing is
//!    brought in here, so nothing has to be kept from eviction. Its leaves are latched, and applied, by the same code.
//! 2. It overtakes no other commit. Where others wait in a queue for memory or for the log, it does not take any.
//! 3. It holds nothing while it waits, because it does not wait: the order in which others wait does not matter here.
//! 4. The log gives the record its timestamp and its place in one step, under the latches, or refuses. From then on
//!    nothing fails.

use super::apply::{CommitSink, Unready, Work};
use super::prepare::{Row, incoming_of, row_version_bytes_max};
use super::room::ROW_WORK_BYTES;
use super::{Applied, Engine};
use crate::error::Result;
use crate::format::Timestamp;
use crate::memory::Account;
use crate::seglog::{Appended, Body, Log};
use crate::space::EpochGuard;
use crate::tree::Incoming;
use crate::tree::node::RowValue;
use crate::txn::clock::Clock;
use crate::txn::write_set::Change;

/// The most rows of a commit at once. Of more rows, one mostly has a leaf that is full or missing: the attempt fails.
const ROWS_MAX: usize = 16;

/// The log of an open database, for a commit that has reserved nothing in it.
struct LogAtOnce<'e> {
    clock: &'e Clock,
    log: &'e Log,
    stream: usize,
    body: &'e Body,
}

impl CommitSink for LogAtOnce<'_> {
    type Committed = Appended;

    const IN_ORDER: bool = true;

    fn take_timestamp(&mut self, _epoch_guard: &EpochGuard<'_>) -> Result<(Timestamp, Appended), Unready> {
        let appended = self.log.try_append(self.stream, self.body).map_err(Unready::Error)?;
        let appended = appended.ok_or(Unready::LogSpace)?;
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

/// The longest record of these rows, and the most that their versions take; `None` if a value has an extent of its own,
/// for whose buffer the commit may have to wait.
fn bytes_max(rows: &[Row<'_>]) -> Option<(usize, usize)> {
    let (mut body_bytes, mut version_bytes) = (0, 0);
    for row in rows {
        body_bytes += row.key.len() + 24;
        match row.change {
            Change::Put(value) if value.len() <= row.tree.inline_bytes_max(row.key) => body_bytes += value.len(),
            Change::Put(_) | Change::PutLarge(_) => return None,
            Change::Remove => {}
        }
        version_bytes += row_version_bytes_max(row);
    }
    Some((body_bytes, version_bytes))
}

impl Engine {
    /// Commits rows in ascending order of (keyspace, key), each key once, if that takes no waiting. `None`: nothing has
    /// changed, and the caller [commits](Self::commit) as usual. The caller holds the row locks, which keep
    /// `beside_bytes` of memory, and may release them once this returns.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit); nothing has changed.
    pub(crate) fn commit_at_once(&self, rows: &[Row<'_>], beside_bytes: usize) -> Result<Option<Applied<'_>>> {
        assert!(!rows.is_empty());
        self.check_failure()?;
        if rows.len() > ROWS_MAX {
            return Ok(None);
        }
        debug_assert!(rows.is_sorted_by(|left, right| left.order() < right.order()), "rows out of order");
        let Some((body_bytes_max, version_bytes_max)) = bytes_max(rows) else { return Ok(None) };
        let work_bytes = (body_bytes_max + rows.len() * ROW_WORK_BYTES + beside_bytes) as u64;
        let Some(_work) = self.budget.try_hold(Account::Commits, work_bytes) else { return Ok(None) };
        // The versions account for the memory that they take.
        let version_memory = self.budget.try_hold(Account::Versions, version_bytes_max as u64);
        let (Some(_version_memory), Some(reserved_pages)) = (version_memory, self.try_reserve_pages(rows)?) else {
            return Ok(None);
        };
        let body = self.encode(rows, body_bytes_max)?;
        let log = self.log();
        let stream = crate::sync::thread_index() % log.stream_count();
        let mut sink = LogAtOnce { clock: &self.clock, log, stream, body: &body };
        let (one, more);
        let incoming: &[Incoming<'_>] = match rows {
            [row] => {
                one = [incoming_of(row)];
                &one
            }
            _ => {
                more = rows.iter().map(incoming_of).collect::<Vec<_>>();
                &more
            }
        };
        let work = Work { rows, incoming, reads: None };
        let logged = match self.try_apply(&work, &[], &[], &mut sink) {
            Ok(logged) => logged,
            Err(Unready::Error(error)) => return Err(error),
            Err(Unready::Needs(_) | Unready::Room(_) | Unready::LogSpace) => {
                crate::coverage::mark!("a commit could not be made at once");
                return Ok(None);
            }
        };
        assert!(logged.stream.index() == stream, "a record went to another stream than it was meant for");
        self.publish(&logged, body.bytes().len());
        if logged.wants_preparation {
            log.request_preparation();
        }
        Ok(Some(Applied { logged, reserved_pages }))
    }
}
