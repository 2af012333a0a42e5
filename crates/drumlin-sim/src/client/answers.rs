//! Judges results: whether the faults so far explain an error, and whether the rows are right.

use std::sync::atomic::Ordering;

use drumlin::Error;

use super::{Client, Count, Stop};
use crate::model::{Content, SpaceNumber, Window, describe};

/// The kind of call that a client made. Some kinds of calls can return errors that others can't.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// A read of the newest row versions. It takes no row locks.
    Plain,
    /// A change that commits as its own transaction.
    Change,
    /// A change that commits as its own transaction and only removes rows.
    Removal,
    /// A change that commits as its own transaction and reads its value from a failing reader.
    FailingSource,
    /// Reads of single rows at one snapshot.
    Snapshot,
    /// Reads that copy rows at one snapshot: scans, counts, and values read as streams.
    Copy,
    Transaction,
    Backup,
}

/// Returns `true` if this call may fail because other operations hold all of this part of the memory budget.
fn may_be_in_use(what: &str, call: Call) -> bool {
    match what {
        "writes, locks and reads of open transactions" => {
            matches!(call, Call::Change | Call::Removal | Call::FailingSource | Call::Transaction)
        }
        "the locks of prepared transactions"
        | "prepared transactions that are ready"
        | "the changes of prepared transactions that are ready"
        | "the pages of prepared transactions that are ready"
        | "the old rows of prepared transactions that are ready" => call == Call::Transaction,
        "the buffers of bulk loads" => matches!(call, Call::Transaction | Call::Backup),
        "rows and values copied by open scans and readers" => matches!(call, Call::Copy | Call::Transaction),
        "values being written from readers or shown to reducers" => {
            matches!(call, Call::Change | Call::FailingSource | Call::Copy | Call::Transaction)
        }
        // This happens only in worlds that delay commits.
        "old versions of rows that open snapshots need" => {
            matches!(call, Call::Change | Call::Removal | Call::FailingSource | Call::Transaction)
        }
        _ => false,
    }
}

impl Client {
    /// Accepts an error that the faults so far or the kind of call explain, and updates the counters. Panics on any
    /// other error.
    pub(super) fn accept(&self, error: &Error, call: Call, space: Option<SpaceNumber>) -> Result<(), Stop> {
        let is_off = self.session.disk.is_off();
        let harm = self.session.disk.fault_counts();
        let is_damaged = self.session.was_damaged || harm.has_damaged();
        match error {
            Error::Conflict { .. } | Error::LockTimeout { .. }
                if !matches!(call, Call::Plain | Call::Snapshot | Call::Copy | Call::Backup) =>
            {
                self.session.counts.add(Count::Conflicts);
            }
            Error::SnapshotTooOld { .. } if matches!(call, Call::Snapshot | Call::Copy | Call::Transaction) => {
                self.session.counts.add(Count::SnapshotsTooOld);
            }
            Error::TransactionTooLarge { .. } if call == Call::Transaction => {}
            Error::MemoryInUse { what, .. } if may_be_in_use(what, call) => self.session.counts.add(Count::MemoryInUse),
            // Several clients end the same transactions, and use the same ids.
            Error::AlreadyPrepared { .. } | Error::NotPrepared { .. } | Error::PreparedInUse { .. }
                if self.session.plan.prepares && call == Call::Transaction => {}
            Error::PreparedRows { .. } if self.session.plan.prepares && call == Call::Plain => {}
            Error::Source { .. } if call == Call::FailingSource => {}
            Error::DiskFull { .. } if is_off || harm.refused_full > 0 => {
                self.session.counts.add(Count::Refused);
                if call == Call::Removal && !is_off && self.session.has_put.load(Ordering::Relaxed) {
                    self.session.counts.add(Count::RefusedRemovals);
                }
            }
            Error::Io { .. } if is_off || harm.has_failed_changes() || harm.reads_failed > 0 => {}
            // Until the failure of a sync is known, a read may see the bytes of the write that the sync dropped.
            Error::Corrupted { .. } if is_damaged || harm.syncs_failed > 0 => {}
            Error::KeyspaceDropped { .. } | Error::NoSuchKeyspace { .. }
                if space.is_some_and(|space| self.session.model.is_dropped(space)) => {}
            // If a transaction runs a checkpoint and one of its reads fails, the database refuses calls until it is
            // reopened. A full disk does not have this effect.
            Error::Failed { .. } | Error::OutcomeUnknown { .. }
                if is_off || is_damaged || harm.reads_failed > 0 || harm.has_failed_changes() =>
            {
                return Err(Stop);
            }
            other => panic!("an unexpected error of {call:?}: {other} ({other:?})"),
        }
        if is_off { Err(Stop) } else { Ok(()) }
    }

    /// Returns `true` if a fault has occurred that can make any call fail.
    pub(super) fn may_fail(&self) -> bool {
        let harm = self.session.disk.fault_counts();
        self.session.disk.is_off() || self.session.was_damaged || harm.has_damaged() || harm.has_failed()
    }

    /// Judges the result of a commit. If the commit succeeded, records that in the model.
    pub(super) fn settle<T>(
        &self,
        taken: u64,
        result: Result<T, Error>,
        is_full: bool,
        call: Call,
        space: Option<SpaceNumber>,
    ) -> Result<Option<(u64, T)>, Stop> {
        match result {
            Ok(value) => {
                if taken > 0 {
                    self.session.model.answer(taken, is_full);
                    if call == Call::Change {
                        self.session.has_put.store(true, Ordering::Relaxed);
                    }
                }
                Ok(Some((taken, value)))
            }
            Err(error) => {
                assert!(
                    taken == 0 || matches!(error, Error::OutcomeUnknown { .. }),
                    "commit {taken} was taken and failed: {error}"
                );
                self.accept(&error, call, space)?;
                Ok(None)
            }
        }
    }

    pub(super) fn check_value(
        &self,
        space: SpaceNumber,
        key: &[u8],
        at: u64,
        wanted: Option<Content>,
        found: Option<&[u8]>,
        how: &str,
    ) {
        let is_right = match (wanted, found) {
            (None, None) => true,
            (Some(wanted), Some(found)) => wanted.is(found),
            _ => false,
        };
        assert!(
            is_right,
            "{how}: row {} of {:?} at commit {at} is {}, should be {wanted:?}",
            key.escape_ascii(),
            self.session.model.name(space),
            found.map_or("absent".to_owned(), describe)
        );
    }

    /// Checks that a plain read found the row's newest version.
    pub(super) fn check_plain(&self, window: Window, space: SpaceNumber, key: &[u8], found: Option<&[u8]>) {
        match self.session.model.check_plain(window, space, key, found) {
            Ok(timestamp) => self.saw(timestamp),
            // While a keyspace is being dropped, a read sees its last rows or no rows.
            Err(_) if self.session.model.is_dropped(space) => {}
            Err(reason) => panic!("plain read: {reason}"),
        }
    }
}
