//! An open database below its public API: the state that all handles share, recovery, checkpoints, reclaiming space,
//! and checks.

mod advice;
mod alterations;
pub(crate) mod backup;
pub(crate) mod backup_parts;
pub(crate) mod check;
mod checkpoint;
pub(crate) mod clones;
pub(crate) mod damaged;
mod files;
mod kept_counts;
mod kept_snapshots;
pub(crate) mod keyspaces;
mod large_values;
mod lock_wait;
mod maintenance;
mod prepared;
pub(crate) mod read_ahead;
pub(crate) mod reclaim;
mod recovery;
mod replay;
mod requests;
pub(crate) mod restore;
mod row_locks;
mod settings;
mod state;
mod stats;
mod unneeded;
mod warm_start;
mod warm_state;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use alterations::{Change, OwnedChange};
pub(crate) use kept_snapshots::OpenedSnapshot;

pub use check::{CheckProgress, CheckReport, Corruption, LostKeys};
pub use checkpoint::CheckpointReport;
pub use reclaim::CompactReport;
pub use stats::{MemoryPart, Stats};

pub use lock_wait::LockWait;
pub(crate) use lock_wait::LockWaitHook;
pub(crate) use row_locks::{LockedRow, NotFree};

pub(crate) use crate::txn::LOCK_TIMEOUT;
pub(crate) use crate::txn::keyspace::OpenKeyspace;

use files::Opener;
pub(crate) use settings::Settings;
pub use state::Opening;
pub(crate) use state::Store;

use crate::error::{Error, Result};
use crate::format::catalogue::Catalogue;
use crate::format::{KeyspaceId, Timestamp, ValueId};
use crate::io::Process;
use crate::load::{self, LoadMemory, Loader};
use crate::memory::{Account, Grant, heap_bytes};
use crate::seglog::Appended;
use crate::task::WaitMode;
use crate::txn::TransactionId;
use crate::txn::commit::{Admitted, Durability, LockedRows, Recorded, Removals, Row, RowsSeen};
use crate::txn::locks::lock_bytes;
use crate::txn::read_set::Reads;
use crate::txn::row_locks::{CommitLocks, RowLock};
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::write_set::WriteSet;

/// The maximum length of a value's prefix that needs no extra memory: it fits into the copy of a leaf that every
/// reduction holds anyway.
const REDUCED_BYTES_FREE: u64 = 4 << 10;

impl Store {
    /// Opens the database at `path`, creating or recovering it if necessary, and starts its threads.
    pub(crate) fn open(settings: &Settings, path: &Path) -> Result<Arc<Store>> {
        let backend = settings.choose_backend(path)?;
        let path = if settings.in_memory { PathBuf::from("/memory") } else { path.to_path_buf() };
        let path = backend.absolute(&path).map_err(|error| Error::io("finding", &path, error))?;
        Process::watch().map_err(|error| Error::io("watching for forks of", &path, error))?;
        let began = backend.now();
        let (opener, data) = match settings.read_only {
            true => Opener::open_to_read(settings, &backend, &path)?,
            false => Opener::open(settings, &backend, &path)?,
        };
        let store = Arc::new(opener.recover(data, began)?);
        match store.start_threads() {
            Ok(()) => Ok(store),
            Err(error) => {
                store.stop();
                Err(error)
            }
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.engine.backend.now()
    }

    /// Returns the wait mode for a call made by a task. If the turn of its thread is over, first yields to other tasks.
    #[inline]
    pub(crate) async fn as_task(&self) -> WaitMode<'_> {
        self.engine.tasks.begin_call().await
    }

    /// Makes a last checkpoint and stops all threads. A second call waits for the first and returns the same result.
    pub(crate) fn close(&self) -> Result<()> {
        let mut closed = self.closed.lock();
        if let Some(result) = &*closed {
            return result.clone();
        }
        // If `close_now` panics, this result remains.
        *closed = Some(Err(Error::Failed { reason: "closing it did not end".into() }));
        let result = self.close_now();
        *closed = Some(result.clone());
        result
    }

    /// Releases the locks of a closed database, so that the folder can be reopened even though other handles still hold
    /// this store. Waits for writes in flight.
    pub(crate) fn release(&self) {
        assert!(self.is_closed(), "a database that is open gives up its folder");
        // If two threads close the database, this mutex makes the second one wait until the first one has released the
        // folder's locks.
        let mut locks = self.locks.lock();
        *locks = None;
    }

    /// Returns `true` if the database has been closed, or if closing it has begun and panicked.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.lock().is_some()
    }

    fn close_now(&self) -> Result<()> {
        // Once the log is sealed, no commit gets a timestamp. The checkpoint covers the commits that already have one,
        // because it begins only after they are applied.
        let log = self.engine.log();
        log.seal();
        let result = self.engine.check_failure().and_then(|()| {
            if log.last() > self.lock_page_tables().superblock.timestamp {
                self.checkpoint()?;
            }
            Ok(())
        });
        self.stop();
        self.engine.spilled.clear();
        self.engine.write_spill.close();
        if result.is_ok() {
            self.list_residents();
            self.write_counts_again();
        }
        if result.is_ok() && !self.is_read_only && !self.lock_page_tables().is_closed() {
            // Give back the segments that the last checkpoints freed. If that fails, the file is longer than necessary,
            // but the database is closed properly.
            if let Err(error) = self.engine.space.shrink(0) {
                log::warn!("did not give back the free end of the file of {}: {error}", self.path.display());
            }
        }
        let covered = {
            // If the database has failed, no checkpoint covers the log's records, so the log must be kept. Check with
            // `page_tables` locked: a checkpoint that fails records the failure before it unlocks them.
            let page_tables = self.lock_page_tables();
            if self.engine.check_failure().is_ok() { page_tables.superblock.timestamp } else { Timestamp(0) }
        };
        let closed = log.close(covered);
        self.engine.space.close();
        result.and(closed)
    }

    // ── keyspaces ──────────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn keyspace(&self, name: &str) -> Option<Arc<OpenKeyspace>> {
        self.keyspaces.get(name)
    }

    /// Returns the keyspace with this name. First waits until the commit on which the answer depends is durable: the
    /// one that gave the keyspace its name or, if there is no such keyspace, the newest that took a name away. So no
    /// power cut can invalidate the answer.
    pub(crate) fn durable_keyspace(&self, name: &str) -> Result<Option<Arc<OpenKeyspace>>> {
        let (open, since) = self.keyspaces.get_since(name);
        self.engine.wait_durable(since)?;
        Ok(open)
    }

    /// Like [`durable_keyspace`](Self::durable_keyspace), but returns `None` instead of waiting.
    pub(crate) fn open_keyspace_of(&self, name: &str) -> Option<Arc<OpenKeyspace>> {
        self.keyspace(name).filter(|open| Timestamp(open.named.load(Ordering::Relaxed)) <= self.engine.log().durable())
    }

    /// Returns `true` if the keyspace's creation is durable.
    pub(crate) fn has_created(&self, open: &OpenKeyspace) -> bool {
        open.created <= self.engine.log().durable()
    }

    /// Frees the memory and the disk space of dropped keyspaces, if there are any.
    pub(super) fn free_dropped(&self) -> Result<()> {
        self.keyspaces.free_dropped(&self.engine)
    }

    /// Returns the keyspaces and values that a checkpoint records. Called under the exclusive epoch latch.
    pub(crate) fn catalogue(&self) -> Catalogue {
        let (keyspaces, next_keyspace) = self.keyspaces.entries();
        Catalogue {
            next_keyspace,
            next_value: ValueId(self.engine.next_value.load(Ordering::Relaxed)),
            keyspaces,
            summaries: Vec::new(),
            segments: Vec::new(),
            orphans: self.engine.versions.orphans(),
            kept: Vec::new(),
        }
    }

    // ── rows ───────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Returns an error if the database is open for reading only. Called by every operation that writes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only { Err(Error::ReadOnly { path: self.path.clone() }) } else { Ok(()) }
    }

    /// Returns an error if the database is read-only, the keyspace belongs to a kept snapshot, or the key is too long.
    pub(crate) fn check_write(&self, open: &OpenKeyspace, key: &[u8]) -> Result<()> {
        self.check_writable()?;
        open.check_key(key)?;
        if open.tree.pages.id.is_of_kept() {
            let name = open.tree.pages.quoted_name();
            return Err(Error::Invalid(format!("keyspace {name} belongs to a kept snapshot and can't be changed")));
        }
        Ok(())
    }

    /// Begins a bulk load of a keyspace.
    pub(crate) fn begin_load(&self, open: &Arc<OpenKeyspace>) -> Result<Loader> {
        self.check_writable()?;
        self.engine.check_failure()?;
        let memory = LoadMemory::reserve(&self.engine.budget, open.tree.pages.page_bytes())?;
        self.shed_states();
        self.engine.pool.fit_frames(0)?;
        Ok(Loader::new(&self.engine, Arc::clone(open), memory))
    }

    /// Commits the spilled changes of a transaction. Blocks the thread. Returns `None` if all changes are undone.
    pub(crate) fn commit_spilled(self: &Arc<Self>, writes: &WriteSet, seen: RowsSeen<'_>) -> Result<Option<Timestamp>> {
        self.check_writable()?;
        self.engine.check_failure()?;
        self.shed_states();
        let open =
            |id| self.keyspace_with_id(id).ok_or_else(|| Error::KeyspaceDropped { name: self.keyspace_name(id) });
        let committed = load::commit_spilled(&self.engine, &self.ready, writes, seen, &open);
        self.fold_runs();
        if self.is_checkpoint_due() {
            self.maintenance.ask();
        }
        committed
    }

    /// Drops reducer states if page tables and bulk loads leave no memory for them.
    pub(crate) fn shed_states(&self) {
        if self.engine.budget.taken_bytes(Account::States) == 0 {
            return;
        }
        for open in self.keyspaces.all() {
            if let Some(kept) = open.tree.counts.kept()
                && let Some(reductions) = kept.reductions()
            {
                reductions.shed();
            }
        }
    }

    pub(crate) fn open_snapshot(&self, choose: impl Fn() -> Timestamp) -> Arc<SnapshotHandle> {
        Arc::new(self.engine.snapshots.open_snapshot(self.now(), choose))
    }

    /// Opens a snapshot at the newest published commit, and records in `seen` that a read saw this commit.
    pub(crate) fn open_published(&self, seen: &AtomicU64) -> Arc<SnapshotHandle> {
        let now = self.open_snapshot(|| self.engine.clock.published());
        seen.fetch_max(now.timestamp.0, Ordering::Relaxed);
        now
    }

    pub(crate) fn next_transaction(&self) -> TransactionId {
        self.engine.transaction_ids.next()
    }

    /// Commits one write outside of transactions: locks the row and changes its newest version.
    pub(crate) async fn autocommit(&self, mode: WaitMode<'_>, row: Row<'_>, durability: Durability) -> Result<()> {
        let owner = self.next_transaction();
        let rows = [row];
        let mut begun = None;
        if let Ok(lock) = RowLock::try_new(&self.engine.locks, owner, row.tree.pages.id, row.key)
            && !self.engine.spilled_locks.may_have_row(owner, row.tree.pages.id, row.key)
        {
            if let Some(applied) =
                self.engine.commit_at_once(&rows, lock_bytes(row.key), RowsSeen::Nothing, durability)?
            {
                self.end_locks(lock);
                return self.engine.settle(mode, &rows, applied, durability).await.map(drop);
            }
            begun = self.engine.try_admit(&rows, lock_bytes(row.key)).map(|admitted| (lock, admitted));
        }
        let (lock, admitted) = match begun {
            Some(begun) => begun,
            None => self.begin_waiting(mode, owner, &rows).await?,
        };
        let (applied, admitted) = self.engine.apply(mode, &rows, None, RowsSeen::Nothing, admitted, durability).await?;
        self.end_locks(lock);
        drop(admitted);
        self.engine.settle(mode, &rows, applied, durability).await.map(drop)
    }

    /// Locks the row and reserves the memory that the commit needs, waiting for both.
    async fn begin_waiting<'a>(
        &'a self,
        mode: WaitMode<'_>,
        owner: TransactionId,
        rows: &[Row<'a>; 1],
    ) -> Result<(RowLock<'a>, Admitted)> {
        let [Row { tree, key, .. }] = rows;
        let (lock, _memory) = self.lock_waiting(mode, owner, tree, key).await?;
        let admitted = self.engine.admit(mode, rows, None, lock_bytes(key)).await;
        Ok((lock, admitted))
    }

    /// Called after an operation that has seen commits up to `seen` and committed nothing. Waits until those commits
    /// are visible to readers and no power cut can undo them. With [`Relaxed`](Durability::Relaxed), waits only until
    /// they are visible.
    pub(crate) async fn confirm(&self, mode: WaitMode<'_>, seen: Timestamp, durability: Durability) -> Result<()> {
        if durability == Durability::Relaxed && seen <= self.engine.clock.visible() {
            return Ok(());
        }
        self.engine.show_durable(mode, seen).await
    }

    /// Commits rows whose `locks` the caller holds. See [`Engine::apply`](crate::txn::engine::Engine::apply).
    pub(crate) async fn commit<L: CommitLocks>(
        &self,
        mode: WaitMode<'_>,
        rows: &[Row<'_>],
        seen: RowsSeen<'_>,
        durability: Durability,
        locks: L,
    ) -> Result<Timestamp> {
        let logged = self.apply(mode, mode.is_task(), rows, None, seen, durability, locks).await?;
        self.engine.await_written(mode, &logged, durability).await
    }

    /// Performs the first part of a [commit](Self::commit): everything up to the request for its log write. The caller
    /// then waits for that write. `for_task` means that a task will wait for it, even if this call itself blocks.
    #[expect(clippy::too_many_arguments, reason = "the parts of one commit")]
    pub(crate) async fn apply<L: CommitLocks>(
        &self,
        mode: WaitMode<'_>,
        for_task: bool,
        rows: &[Row<'_>],
        reads: Option<Reads<'_>>,
        seen: RowsSeen<'_>,
        durability: Durability,
        locks: L,
    ) -> Result<Appended> {
        let open = |id| self.keyspace_with_id(id);
        let locked = locks.of_transaction().map(|locks| LockedRows { locks, open: &open });
        let seen = locked.as_ref().map_or(seen, |locked| RowsSeen::Of(locked, &seen));
        if reads.is_none()
            && let Some(applied) = self.engine.commit_at_once(rows, 0, seen, durability)?
        {
            self.end_locks(locks);
            return Ok(self.engine.request_write(for_task, rows, applied, durability));
        }
        let admitted = self.engine.admit(mode, rows, reads, 0).await;
        let (applied, admitted) = self.engine.apply(mode, rows, reads, seen, admitted, durability).await?;
        self.end_locks(locks);
        drop(admitted);
        Ok(self.engine.request_write(for_task, rows, applied, durability))
    }

    /// Like [`apply`](Self::apply), for a commit that also removes ranges.
    #[expect(clippy::too_many_arguments, reason = "the parts of one commit")]
    pub(crate) async fn apply_removing<L: CommitLocks>(
        self: &Arc<Self>,
        mode: WaitMode<'_>,
        for_task: bool,
        rows: &[Row<'_>],
        removals: &Removals<'_>,
        reads: Option<Reads<'_>>,
        seen: RowsSeen<'_>,
        durability: Durability,
        locks: L,
    ) -> Result<Appended> {
        let open = |id| self.keyspace_with_id(id);
        let locked = locks.of_transaction().map(|locks| LockedRows { locks, open: &open });
        let seen = locked.as_ref().map_or(seen, |locked| RowsSeen::Of(locked, &seen));
        let _none_ready = self.ready.none(mode, self.engine.backend.as_ref()).await?;
        let admitted = self.engine.admit(mode, rows, reads, removals.record_bytes()).await;
        let recorded = Recorded::RowsAndRanges(removals);
        let (applied, admitted) = self.engine.apply_as(mode, rows, reads, seen, admitted, recorded, durability).await?;
        self.end_locks(locks);
        drop(admitted);
        let logged = self.engine.request_write(for_task, rows, applied, durability);
        self.fold_runs();
        Ok(logged)
    }

    /// Returns the keyspace with this id, unless it has been dropped.
    pub(crate) fn keyspace_with_id(&self, id: KeyspaceId) -> Option<Arc<OpenKeyspace>> {
        self.keyspaces.get_by_id(&self.engine, id)
    }

    /// Releases the locks of an applied commit, and requests a checkpoint if one is due.
    fn end_locks(&self, locks: impl CommitLocks) {
        locks.release();
        if self.is_checkpoint_due() {
            self.maintenance.ask();
        }
    }

    fn is_checkpoint_due(&self) -> bool {
        let written = self.engine.log_bytes_written();
        let begun = self.engine.log_bytes_checkpointed.load(Ordering::Relaxed);
        written - begun.min(written) > self.checkpoint_log_bytes
            || self.engine.space.epoch_change_count() > self.engine.budget.epoch_changes_max() / 8 * 5
    }

    /// Reserves memory for a chunk that a source will fill. Waits if no memory is left, because other calls with slow
    /// sources may hold theirs for a long time.
    pub(crate) async fn source_memory(&self, mode: WaitMode<'_>) -> Result<Grant> {
        self.check_writable()?;
        self.engine.source_memory(mode).await
    }

    /// Reserves memory for `bytes` of a value that is passed to a reducer. A value that is larger than the whole
    /// account of the budget reserves all of it, so that no other value is in memory for a reducer.
    pub(crate) async fn reduced_memory(&self, mode: WaitMode<'_>, bytes: u64) -> Result<Grant> {
        let engine = &self.engine;
        if bytes <= REDUCED_BYTES_FREE {
            return Ok(engine.budget.grant(Account::Sources));
        }
        let limit_bytes = engine.budget.limit_bytes(Account::Sources);
        let taken_bytes = (heap_bytes(bytes as usize) as u64).min(limit_bytes);
        let memory = engine.reserve_in_turn(mode, Account::Sources, taken_bytes, LOCK_TIMEOUT).await;
        memory.ok_or_else(|| Error::sources_in_memory(limit_bytes))
    }

    /// Returns a new value id.
    pub(crate) fn new_value(&self) -> ValueId {
        self.engine.new_value()
    }
}
