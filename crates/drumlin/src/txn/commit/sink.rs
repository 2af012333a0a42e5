//! The destination of a commit's record, which also assigns the commit's timestamp.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::prepare::Row;
use crate::error::{Error, Result};
use crate::format::record::{self, OldValue, Operation};
use crate::format::{KeyspaceId, Timestamp, prepared};
use crate::pool::{Needs, Stop};
use crate::seglog::{Appended, Body, Log, Reservation};
use crate::space::{EpochGuard, Purpose};
use crate::tree::node::RowValue;
use crate::txn::clock::Clock;
use crate::txn::keyspace::OpenKeyspace;
use crate::txn::row_locks::RowLocks;
use crate::txn::snapshots::SnapshotHandle;

/// The versions of its rows on which a commit depends, and that must not have been replaced since. Other commits can't
/// change the rows, because they are locked. But runs take no row locks.
#[derive(Clone, Copy)]
pub(crate) enum RowsSeen<'a> {
    /// The commit depends on no earlier version of its rows.
    Nothing,
    /// The rows as of a snapshot.
    Snapshot(&'a Arc<SnapshotHandle>),
    /// The newest version of rows that were locked at this timestamp or later.
    Newest(Timestamp),
    /// The given versions of all rows that a transaction has locked, whether the commit changes them or not.
    Of(&'a LockedRows<'a>, &'a RowsSeen<'a>),
}

/// The rows that a transaction has locked, and a function that returns a keyspace unless it has been dropped.
pub(crate) struct LockedRows<'a> {
    pub(crate) locks: &'a RowLocks,
    pub(crate) open: &'a (dyn Fn(KeyspaceId) -> Option<Arc<OpenKeyspace>> + Sync),
}

impl RowsSeen<'_> {
    #[inline]
    pub(crate) fn since(&self) -> Option<Timestamp> {
        match self {
            RowsSeen::Nothing => None,
            RowsSeen::Snapshot(snapshot) => Some(snapshot.timestamp),
            RowsSeen::Newest(since) => Some(*since),
            RowsSeen::Of(_, seen) => seen.since(),
        }
    }

    /// Returns the number of open snapshots at which no reader will read once the commit is applied: 1 if the commit's
    /// transaction has a snapshot and shares it with no range, or else 0.
    #[inline]
    pub(super) fn own_snapshots(&self) -> u64 {
        match self {
            RowsSeen::Snapshot(snapshot) => u64::from(Arc::strong_count(snapshot) == 1),
            RowsSeen::Of(_, seen) => seen.own_snapshots(),
            RowsSeen::Nothing | RowsSeen::Newest(_) => 0,
        }
    }
}

/// The reason why an attempt to apply a commit did not succeed.
pub(super) enum Unready {
    Needs(Needs),
    /// These rows do not fit into their leaves.
    LeafFull(Range<usize>),
    /// Runs are not folded into the leaf of this row.
    Unfolded(usize),
    /// A run was attached after the rows were last compared with what the transaction has seen.
    Overtaken,
    /// The log has no space for the record. Only commits that reserve no log space can end this way.
    LogSpace,
    /// No memory was free for the versions. Only commits that reserve no memory can end this way.
    Memory,
    Error(Error),
}

impl From<Stop> for Unready {
    fn from(stop: Stop) -> Unready {
        match stop {
            Stop::Needs(needs) => Unready::Needs(needs),
            Stop::Error(error) => Unready::Error(error),
        }
    }
}

/// The components that a commit uses in addition to its leaves: the log and clock of an open database, or neither
/// during recovery.
pub(super) trait CommitSink {
    /// `true` if commits are applied to a leaf in the order of their timestamps.
    const IN_ORDER: bool;

    /// The purpose for which space is reserved to fold runs.
    const FOLD_PURPOSE: Purpose;

    /// The information about the commit's record that the caller receives.
    type Committed;

    /// Adds the old values of the rows to the record, if it has old values. The leaves are latched.
    fn record_old_values<'l>(&mut self, rows: &[Row<'_>], old: impl Iterator<Item = Option<RowValue<'l>>>);

    /// Takes the commit's timestamp while all leaves and the epoch are latched. May still fail, because nothing has
    /// changed yet.
    fn take_timestamp(&mut self, epoch_guard: &EpochGuard<'_>) -> Result<(Timestamp, Self::Committed), Unready>;

    /// Returns `true` if the version that the row replaces must be retained; `None` means that there was no row.
    fn keeps(&self, row: (KeyspaceId, &[u8]), replaced: Option<&RowValue<'_>>) -> bool;

    /// Called after every row has been changed, and before the leaves are unlatched. Returns `true` if readers see the
    /// commit now.
    fn mark_applied(&self, timestamp: Timestamp) -> bool;
}

/// The log of an open database, for the record of one commit.
pub(super) struct LiveLog<'e> {
    pub(super) clock: &'e Clock,
    pub(super) body: Cow<'e, Body>,
    /// The maximum number of bytes by which old values lengthen the body; 0: the record has none.
    pub(super) old_bytes_max: usize,
    pub(super) space: LogSpace<'e>,
    /// `true` if the record commits a prepared transaction.
    pub(super) ends_prepared: bool,
    /// `true` if readers may see the commit before it is durable.
    pub(super) is_relaxed: bool,
}

/// The space of a record in the log.
pub(super) enum LogSpace<'e> {
    /// The record uses the space that was reserved for it.
    Reserved(Reservation<'e>),
    /// The record uses free space of a stream. If there is too little, the commit ends with [`Unready::LogSpace`].
    Free {
        log: &'e Log,
        stream: usize,
    },
    Taken,
}

impl LiveLog<'_> {
    /// Adds the old values of the rows to the record.
    fn lengthen_record<'l>(&mut self, rows: &[Row<'_>], old: impl Iterator<Item = Option<RowValue<'l>>>) {
        debug_assert!(self.old_bytes_max > 0, "the record has no space for old values");
        let Cow::Borrowed(body) = self.body else { unreachable!("a commit takes its timestamp once") };
        let is_told = |(row, _): &(&Row<'_>, _)| row.tree.pages.id != KeyspaceId::PREPARED;
        let mut old = rows.iter().zip(old).filter(is_told).map(|(_, old)| match old {
            None => OldValue::Absent,
            Some(RowValue::Inline(value)) => OldValue::Value(value),
            Some(RowValue::Large(reference)) => OldValue::Large { length: reference.length },
        });
        let bytes_max = body.bytes().len() + self.old_bytes_max;
        let mut bytes = Vec::with_capacity(bytes_max);
        match record::decode(body.bytes()).next().flatten() {
            Some((keyspace, Operation::CommitPrepared { id, changes })) => {
                let mut told = Vec::with_capacity(changes.len() + self.old_bytes_max);
                record::with_old_values(changes, &mut old, self.old_bytes_max, &mut told);
                record::encode(keyspace, &Operation::CommitPrepared { id, changes: &told }, &mut bytes);
            }
            // The rows of the keyspace of prepared transactions are not told.
            Some((KeyspaceId::PREPARED, _)) => return,
            _ => record::with_old_values(body.bytes(), &mut old, self.old_bytes_max, &mut bytes),
        }
        assert!(bytes.len() <= bytes_max, "old values take more space than was reserved");
        self.body = Cow::Owned(body.with_bytes(bytes));
    }
}

impl CommitSink for LiveLog<'_> {
    type Committed = Appended;

    const IN_ORDER: bool = true;

    const FOLD_PURPOSE: Purpose = Purpose::Remove;

    #[inline]
    fn record_old_values<'l>(&mut self, rows: &[Row<'_>], old: impl Iterator<Item = Option<RowValue<'l>>>) {
        if self.old_bytes_max > 0 {
            self.lengthen_record(rows, old);
        }
    }

    #[inline]
    fn take_timestamp(&mut self, _epoch_guard: &EpochGuard<'_>) -> Result<(Timestamp, Appended), Unready> {
        let appended = match std::mem::replace(&mut self.space, LogSpace::Taken) {
            LogSpace::Reserved(reservation) => reservation.append(&self.body).map_err(Unready::Error)?,
            LogSpace::Free { log, stream } => {
                let appended = log.try_append(stream, &self.body).map_err(Unready::Error)?;
                appended.ok_or(Unready::LogSpace)?
            }
            LogSpace::Taken => unreachable!("a commit takes its timestamp once"),
        };
        assert!(self.clock.published() < appended.timestamp, "a timestamp is given out twice");
        crate::coverage::timestamp_taken(appended.timestamp);
        Ok((appended.timestamp, appended))
    }

    /// The commit of a prepared transaction removes the rows of its large values, and puts the values elsewhere. If
    /// these versions were kept, dropping them would free the values.
    #[inline]
    fn keeps(&self, (keyspace, key): (KeyspaceId, &[u8]), _replaced: Option<&RowValue<'_>>) -> bool {
        !(self.ends_prepared && keyspace == KeyspaceId::PREPARED && prepared::is_value_key(key))
    }

    #[inline]
    fn mark_applied(&self, timestamp: Timestamp) -> bool {
        self.clock.mark_applied(timestamp);
        // This makes a `Relaxed` commit visible if the commits before it are applied.
        self.is_relaxed && self.clock.try_show_relaxed(timestamp)
    }
}
