//! The engine: the parts of a database that commits and reads share. Commits are implemented in `txn/commit`.

mod ddl;
mod garbage;
mod read;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use self::read::{Destination, Found, OwnedValue, ReadAt};
use super::clock::Clock;
use super::locks::LockTable;
use super::snapshots::Snapshots;
use super::spilled::Spilled;
use super::spilled::writes::WriteSpill;
use super::spilled_locks::SpilledLocks;
use super::versions::Versions;
use super::{Reclaim, TransactionIds};
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, Timestamp, ValueId};
use crate::io::Backend;
use crate::memory::Budget;
use crate::pool::Pool;
use crate::seglog::Log;
use crate::space::Space;
use crate::sync::Mutex;
use crate::task::{Tasks, WaitMode, ready};

/// Takes the place of the log during recovery, when no record may be appended.
pub(crate) struct Replaying;

/// The part of a database that commits and reads rows. `L` is the log, or [`Replaying`] during recovery, when there is
/// no log to which records could be appended.
pub(crate) struct Engine<L = Log> {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) space: Arc<Space>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) spilled: Spilled,
    pub(crate) write_spill: Arc<WriteSpill>,
    pub(crate) locks: LockTable,
    pub(crate) spilled_locks: SpilledLocks,
    log: L,
    pub(crate) next_value: AtomicU64,
    pub(crate) transaction_ids: TransactionIds,
    /// The last timestamp before the opening, and the number of timestamps that have since been assigned to records
    /// other than commits of rows.
    first: Timestamp,
    pub(crate) other_records: AtomicU64,
    /// `true` if the record of a commit has the old values of its rows, for the readers of changes.
    pub(crate) keeps_old_values: bool,
    /// The bytes of record bodies between the newest checkpoint and the opening, and the value of
    /// [`log_bytes_written`](Engine::log_bytes_written) when the newest checkpoint began.
    log_bytes_found: u64,
    pub(crate) log_bytes_checkpointed: AtomicU64,
    unfreed_values: Mutex<UnfreedValues>,
    /// The timestamp of the newest run that was attached to a keyspace since the opening, or 0 if none was.
    newest_run: AtomicU64,
    pub(crate) budget: Arc<Budget>,
    pub(crate) reclaim: Arc<dyn Reclaim>,
    /// Services for operations that wait as tasks.
    pub(crate) tasks: Tasks,
}

/// Large values that no reader needs. Their pages are not free yet, because the page table changes for freeing them
/// wait for memory.
type UnfreedValues = VecDeque<(KeyspaceId, LargeRef)>;

impl<L> std::fmt::Debug for Engine<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.clock)
    }
}

impl Engine<Replaying> {
    /// Creates an engine for recovery. Once it has a log, it assigns timestamps starting after `last`.
    #[allow(clippy::too_many_arguments, reason = "made in one place, where each part is named")]
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        space: Arc<Space>,
        pool: Arc<Pool>,
        versions: Arc<Versions>,
        last: Timestamp,
        next_value: ValueId,
        budget: Arc<Budget>,
        reclaim: Arc<dyn Reclaim>,
        spilled: Spilled,
        write_spill: WriteSpill,
    ) -> Engine<Replaying> {
        let lock_seed = backend.random();
        let tasks = Tasks::new(&backend);
        Engine {
            backend,
            space,
            pool,
            clock: Arc::new(Clock::new(last)),
            snapshots: Arc::default(),
            versions,
            spilled,
            write_spill: Arc::new(write_spill),
            locks: LockTable::new(64, lock_seed),
            spilled_locks: SpilledLocks::default(),
            log: Replaying,
            next_value: AtomicU64::new(next_value.0),
            transaction_ids: TransactionIds::default(),
            first: last,
            other_records: AtomicU64::new(0),
            keeps_old_values: false,
            log_bytes_found: 0,
            log_bytes_checkpointed: AtomicU64::new(0),
            unfreed_values: Mutex::default(),
            newest_run: AtomicU64::new(0),
            budget,
            reclaim,
            tasks,
        }
    }

    /// Turns the engine into the engine of an open database, after every record of the log has been applied. New
    /// records will be appended to `log`; the records since the checkpoint occupy `logged_bytes`.
    pub(crate) fn into_live(self, log: Log, logged_bytes: u64) -> Engine {
        assert!(log.last() == self.clock.published(), "the log goes on elsewhere than the clock");
        assert!(self.clock.visible() == self.clock.published(), "a commit was recovered that nobody sees");
        assert!(self.first == log.last(), "a commit was made without a log");
        assert!(log.appended_bytes() == 0, "records were appended before the log was taken over");
        assert!(Arc::strong_count(&self.snapshots) == 1, "a database that recovers has a reader");
        Engine {
            log,
            log_bytes_found: logged_bytes,
            backend: self.backend,
            space: self.space,
            pool: self.pool,
            clock: self.clock,
            snapshots: self.snapshots,
            versions: self.versions,
            spilled: self.spilled,
            write_spill: self.write_spill,
            locks: self.locks,
            spilled_locks: self.spilled_locks,
            next_value: self.next_value,
            transaction_ids: self.transaction_ids,
            first: self.first,
            other_records: self.other_records,
            keeps_old_values: self.keeps_old_values,
            log_bytes_checkpointed: self.log_bytes_checkpointed,
            unfreed_values: self.unfreed_values,
            newest_run: self.newest_run,
            budget: self.budget,
            reclaim: self.reclaim,
            tasks: self.tasks,
        }
    }
}

impl<L> Engine<L> {
    /// Notes that a run has been attached. The caller holds the exclusive epoch latch.
    pub(crate) fn set_newest_run(&self, timestamp: Timestamp) {
        self.newest_run.fetch_max(timestamp.0, Ordering::AcqRel);
    }

    /// Returns `true` if a run has been attached after this timestamp. Called under the epoch latch.
    #[inline]
    pub(crate) fn is_overtaken(&self, since: Option<Timestamp>) -> bool {
        since.is_some_and(|since| self.newest_run.load(Ordering::Acquire) > since.0)
    }
}

impl Engine {
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Returns an unused value id.
    pub(crate) fn new_value(&self) -> ValueId {
        ValueId(self.next_value.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of commits of rows since the opening.
    pub(crate) fn commit_count(&self) -> u64 {
        let (last, others) = (self.log.last().0, self.other_records.load(Ordering::Relaxed));
        (last - self.first.0).saturating_sub(others)
    }

    /// Returns the bytes of record bodies in the log that follow the newest checkpoint made before the opening.
    #[inline]
    pub(crate) fn log_bytes_written(&self) -> u64 {
        self.log_bytes_found + self.log.appended_bytes()
    }

    pub(crate) fn check_failure(&self) -> Result<()> {
        self.space.check_failure()?;
        match self.log.failure() {
            Some(reason) => Err(Error::Failed { reason }),
            None => Ok(()),
        }
    }
}

impl Engine {
    /// Waits until this commit and every earlier one are durable. After that, they can no longer be lost.
    pub(crate) fn wait_durable(&self, timestamp: Timestamp) -> Result<()> {
        ready(self.await_durable(WaitMode::Blocking, timestamp))
    }

    /// Like [`wait_durable`](Self::wait_durable), but waits in the given mode.
    pub(crate) async fn await_durable(&self, mode: WaitMode<'_>, timestamp: Timestamp) -> Result<()> {
        let log = self.log();
        if log.durable() >= timestamp {
            return Ok(());
        }
        match mode {
            WaitMode::Blocking => log.wait_durable_up_to(timestamp)?,
            WaitMode::Tasks(_) => poll_fn(|context| log.poll_durable(timestamp, context.waker())).await?,
        }
        assert!(log.durable() >= timestamp, "the wait for {timestamp} ended before it was durable");
        Ok(())
    }

    /// Waits until this commit, which is published, and every earlier one are durable and visible to all readers.
    pub(crate) async fn show_durable(&self, mode: WaitMode<'_>, timestamp: Timestamp) -> Result<()> {
        assert!(timestamp <= self.clock.published(), "commit {timestamp} is shown before it is published");
        self.await_durable(mode, timestamp).await?;
        // The log may have reported the record as durable before the commit was published.
        self.clock.show_durable(self.log().durable());
        assert!(timestamp <= self.clock.visible(), "commit {timestamp} is durable and not visible");
        Ok(())
    }
}
