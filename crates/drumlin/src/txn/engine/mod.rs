//! Commits and reads, which combine write set, tree, versions and log.

mod apply;
pub(crate) mod at_once;
mod commit;
mod ddl;
mod prepare;
mod read;
mod replay;
mod room;
mod sink;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use self::prepare::Row;
pub(crate) use self::read::{Destination, Found, OwnedValue, ReadAt};
pub(crate) use self::replay::Replaying;
use super::clock::Clock;
use super::locks::LockTable;
use super::snapshots::Snapshots;
use super::spilled::Spilled;
use super::values;
use super::versions::Versions;
use super::{Reclaim, TransactionIds};
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, Timestamp, ValueId};
use crate::io::Backend;
use crate::memory::{Budget, Grant};
use crate::pool::Pool;
use crate::seglog::{Appended, Log};
use crate::space::{Space, SpaceReservation};
use crate::sync::Mutex;
use crate::task::{Tasks, WaitMode, ready};

/// When a commit returns.
///
/// ```
/// use drumlin::{Config, Durability};
///
/// let db = Config::in_memory().durability(Durability::Relaxed).open("")?;
/// let cache = db.keyspace("cache")?; // its commits return before they are on the medium
/// let accounts = cache.with_durability(Durability::Full); // those of this handle do not
/// db.sync()?; // all commits so far are on the medium
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// Returns once the commit is on the medium.
    #[default]
    Full,
    /// Returns once the commit is applied. A power failure may lose the newest commits; those before them survive whole
    /// and without gaps. The record is written soon afterwards.
    Relaxed,
}

/// Memory that a commit holds until it is applied: for its record, and for the pages that it pins.
pub(crate) struct Admitted {
    _work: Grant,
    _pinned: Grant,
    /// The maximum size of the record's body.
    body_bytes_max: usize,
}

/// A commit that has changed its rows and appended its record to the log, but may not be durable yet.
pub(crate) struct Applied<'e> {
    logged: Appended,
    reserved_pages: SpaceReservation<'e>,
}

/// The commits and reads of a database. `L` is the log, or [`Replaying`] during recovery, when there is no log to
/// append to yet.
pub(crate) struct Engine<L = Log> {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) space: Arc<Space>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) spilled: Spilled,
    pub(crate) locks: LockTable,
    log: L,
    pub(crate) next_value: AtomicU64,
    pub(crate) transaction_ids: TransactionIds,
    /// The last timestamp before the opening; and the number of timestamps since then that were not for commits of
    /// rows.
    first: Timestamp,
    pub(crate) other_records: AtomicU64,
    /// Bytes of record bodies between the newest checkpoint and the opening; and the value of
    /// [`log_bytes_written`](Engine::log_bytes_written) when the newest checkpoint began.
    log_bytes_found: u64,
    pub(crate) log_bytes_checkpointed: AtomicU64,
    sweeping: Mutex<UnfreedValues>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) reclaim: Arc<dyn Reclaim>,
    /// Services for operations that wait as tasks.
    pub(crate) tasks: Tasks,
}

/// Large values that no reader needs and whose pages are not free yet: the changes of page tables that this takes wait
/// for memory.
type UnfreedValues = VecDeque<(KeyspaceId, LargeRef)>;

/// The outcome of an attempt to spill versions.
enum Spill {
    /// Versions left memory.
    Some,
    /// Memory held no versions that a spill could take.
    Nothing,
    /// Versions may not be written to disk, for this reason.
    Refused(String),
}

impl<L> std::fmt::Debug for Engine<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.clock)
    }
}

impl Engine<Replaying> {
    /// Creates an engine for recovery. Once it has a log, the first timestamp that it assigns is the one after `last`.
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
            locks: LockTable::new(64, lock_seed),
            log: Replaying,
            next_value: AtomicU64::new(next_value.0),
            transaction_ids: TransactionIds::default(),
            first: last,
            other_records: AtomicU64::new(0),
            log_bytes_found: 0,
            log_bytes_checkpointed: AtomicU64::new(0),
            sweeping: Mutex::default(),
            budget,
            reclaim,
            tasks,
        }
    }

    /// Turns the engine into that of an open database, once every record of the log is applied. New records are
    /// appended to `log`; the records since the checkpoint take `logged_bytes`.
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
            locks: self.locks,
            next_value: self.next_value,
            transaction_ids: self.transaction_ids,
            first: self.first,
            other_records: self.other_records,
            log_bytes_checkpointed: self.log_bytes_checkpointed,
            sweeping: self.sweeping,
            budget: self.budget,
            reclaim: self.reclaim,
            tasks: self.tasks,
        }
    }
}

impl Engine {
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the value id for a new value.
    pub(crate) fn new_value(&self) -> ValueId {
        ValueId(self.next_value.fetch_add(1, Ordering::Relaxed))
    }

    /// The number of commits of rows since the opening.
    pub(crate) fn commit_count(&self) -> u64 {
        let (last, others) = (self.log.last().0, self.other_records.load(Ordering::Relaxed));
        (last - self.first.0).saturating_sub(others)
    }

    /// Bytes of record bodies appended since the newest checkpoint before the opening.
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

    /// Drops versions that no snapshot needs. If too many are left, requests a spill.
    pub(crate) fn collect_garbage(&self) {
        if let Some(mut unfreed) = self.sweeping.try_lock() {
            self.drop_unneeded(&mut unfreed);
        }
        let most = self.budget.version_bytes_max();
        let (high, low) = match self.spilled.is_on() {
            // Simulated databases have few versions, so they spill at lower limits.
            true if cfg!(feature = "sim") => (8 << 10, 4 << 10),
            true => (most / 4 * 3, most / 2),
            false => (most, most),
        };
        if self.versions.memory_bytes() > high {
            self.reclaim.request_spill(low);
        }
    }

    /// Drops the versions that no snapshot needs. If another thread is doing so, waits for it first.
    pub(crate) fn collect_all_garbage(&self) {
        self.drop_unneeded(&mut self.sweeping.lock());
    }

    fn drop_unneeded(&self, unfreed: &mut UnfreedValues) {
        let horizon = self.snapshots.horizon(&self.clock);
        unfreed.extend(self.versions.collect_garbage(horizon));
        unfreed.extend(self.spilled.drop_up_to(horizon));
        self.free_values(unfreed, self.changes_max_of_frees());
    }

    /// The most changes of page tables in an epoch at which values are freed. Simulations free few values.
    fn changes_max_of_frees(&self) -> u64 {
        if cfg!(feature = "sim") { 32 } else { self.budget.epoch_changes_max() }
    }

    /// Frees values that had to wait for this epoch. Leaves commits half of the memory for its changes.
    pub(crate) fn free_waiting_values(&self) {
        if self.space.unfreed_pages() > 0
            && let Some(mut unfreed) = self.sweeping.try_lock()
        {
            self.free_values(&mut unfreed, self.changes_max_of_frees() / 2);
        }
    }

    /// Drops versions that no snapshot needs and spills the others, until those in memory take at most `bytes_max`. If
    /// versions can't be spilled, ends the oldest snapshots. If the configuration delays commits instead, returns
    /// `false` while a commit waits: then only the end of a snapshot helps. Called only by the thread that spills.
    pub(crate) fn fit_versions(&self, bytes_max: u64) -> bool {
        let mut unfreed = self.sweeping.lock();
        loop {
            self.drop_unneeded(&mut unfreed);
            if self.versions.memory_bytes() <= bytes_max {
                return true;
            }
            match self.spill(&mut unfreed) {
                Spill::Some => {}
                Spill::Refused(_) if self.spilled.delays_commits() => return !self.budget.versions.are_awaited(),
                Spill::Refused(why) if self.snapshots.end_oldest(&self.clock, &why) => {}
                // The remaining versions belong to commits that are running or not visible yet.
                Spill::Nothing | Spill::Refused(_) => return true,
            }
        }
    }

    /// Ends the snapshots that need spilled versions. Called when the disk is full, because writers need the space
    /// more.
    pub(crate) fn give_up_spilled(&self) {
        let disk_bytes = self.spilled.disk_bytes();
        if disk_bytes == 0 {
            return;
        }
        let why = format!("the disk is full, and the {disk_bytes} bytes of old versions on it gave way to commits");
        let mut unfreed = self.sweeping.lock();
        self.drop_unneeded(&mut unfreed);
        while self.spilled.has_any_run() && self.snapshots.end_oldest(&self.clock, &why) {
            crate::coverage::mark!("a full disk took the space of spilled versions");
            self.drop_unneeded(&mut unfreed);
        }
    }

    /// Returns the disk space that versions may take.
    pub(crate) fn version_disk_bytes_max(&self) -> u64 {
        self.spilled.limit_bytes(self.space.segments.usage().live_bytes)
    }

    /// Spills the versions of visible commits and merges runs.
    fn spill(&self, unfreed: &mut UnfreedValues) -> Spill {
        let needed = self.snapshots.needed(&self.clock);
        if needed.snapshots.is_empty() {
            return Spill::Nothing;
        }
        if let Some(why) = self.spilled.refusal(self.version_disk_bytes_max()) {
            return Spill::Refused(why);
        }
        let spilled = self.versions.spill(&self.spilled, &needed).and_then(|(unneeded, has_left)| {
            unfreed.extend(unneeded);
            unfreed.extend(self.spilled.merge(&needed)?);
            Ok(has_left)
        });
        self.free_values(unfreed, self.changes_max_of_frees());
        match spilled {
            Ok(true) => {
                crate::coverage::mark!("versions were spilled");
                Spill::Some
            }
            Ok(false) => Spill::Nothing,
            Err(error) => {
                log::debug!("old versions are not spilled: {error}");
                Spill::Refused(format!("the old versions that it needs could not be written to disk: {error}"))
            }
        }
    }

    /// Frees values as long as the newest epoch has at most `changes_max` changes of page tables. The others wait for
    /// later epochs.
    fn free_values(&self, unfreed: &mut UnfreedValues, changes_max: u64) {
        while let Some((keyspace, reference)) = unfreed.front() {
            // A version may have been in memory and in a run.
            if self.versions.holds(*keyspace, reference) {
                // A value with more pages than an epoch has changes must not wait forever.
                let limit = changes_max - u64::from(reference.chunk_count).min(changes_max / 2);
                if self.space.epoch_change_count() > limit {
                    crate::coverage::mark!("freeing values waited for a checkpoint that takes earlier changes");
                    break;
                }
                self.free_value(*keyspace, reference);
            }
            unfreed.pop_front();
        }
        if unfreed.is_empty() {
            *unfreed = UnfreedValues::default();
        }
        let page_count = unfreed.iter().map(|(_, reference)| u64::from(reference.chunk_count)).sum();
        self.versions.set_unfreed_pages(page_count);
    }
}

impl<L> Engine<L> {
    pub(crate) fn free_value(&self, keyspace: KeyspaceId, reference: &LargeRef) {
        let epoch_guard = self.space.epoch_latch.shared();
        let Some(pages) = self.space.page_space(keyspace) else { return };
        let freed = values::free(&self.pool, &epoch_guard, &pages, reference.first_page, reference.chunk_count);
        if let Err(error) = freed {
            log::warn!("the space of a value that was removed is not used again: {error}");
        }
        self.versions.release_value(keyspace, reference);
    }
}

impl Engine {
    /// Waits until every commit up to this one is durable. After that, none of them can be lost.
    pub(crate) fn wait_durable(&self, timestamp: Timestamp) -> Result<()> {
        ready(self.await_durable(WaitMode::Blocking, timestamp))
    }

    /// Like [`wait_durable`](Self::wait_durable), waiting as `mode` says.
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

    /// Waits until every commit up to this one, which is published, is durable and visible to all readers.
    pub(crate) async fn show_durable(&self, mode: WaitMode<'_>, timestamp: Timestamp) -> Result<()> {
        assert!(timestamp <= self.clock.published(), "commit {timestamp} is shown before it is published");
        self.await_durable(mode, timestamp).await?;
        // The log may have reported the record as durable before the commit was published.
        self.clock.show_durable(self.log().durable());
        assert!(timestamp <= self.clock.visible(), "commit {timestamp} is durable and not visible");
        Ok(())
    }
}
