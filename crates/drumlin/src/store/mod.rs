//! An open database below its public face: the state that all handles share, recovery, checkpoints, cleaning and
//! checks.

mod advice;
pub(crate) mod bulk_load;
pub(crate) mod check;
mod checkpoint;
mod cleaner;
mod files;
mod kept_counts;
pub(crate) mod keyspaces;
mod maintenance;
pub(crate) mod read_ahead;
mod recovery;
mod replay;
mod stats;
mod warm_start;

use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

pub use check::{CheckProgress, CheckReport, Corruption, LostKeys};
pub use checkpoint::CheckpointReport;
pub use cleaner::CompactReport;
pub(crate) use stats::Contention;
pub use stats::{MemoryPart, Stats};

pub(crate) use keyspaces::OpenKeyspace;

use files::{Locks, Opener};
use kept_counts::CountsFiles;
use keyspaces::Keyspaces;
use maintenance::Maintenance;
use warm_start::WarmStart;

use crate::error::{Error, LockHolder, Result, quoted};
use crate::format::catalogue::Catalogue;
use crate::format::node::LargeRef;
use crate::format::record::{self, Operation};
use crate::format::{ChunkNumber, KeyspaceId, Timestamp, ValueId};
use crate::io::{Backend, IoBackend, Process, SyncMethod};
use crate::memory::{Account, Grant, SOURCE_BYTES_MAX, heap_bytes};
use crate::seglog::{Appended, Body};
use crate::space::checkpoint::PageTableStore;
use crate::space::{PageTable, Purpose};
use crate::sync::Mutex;
use crate::task::{Boxed, WaitMode, ready};
use crate::tree::Tree;
use crate::txn::engine::{Engine, OwnedValue, ReadAt};
use crate::txn::locks::{Granted, HeldBy, LockError, LockPlace, WAITING_BYTES, lock_bytes};
use crate::txn::read_set::Reads;
use crate::txn::running::{BodyOf, RunningBody};
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::spilled::SpillLimit;
use crate::txn::values::{self, Chunk, LargeValue, Part};
use crate::txn::write_set::Change;
use crate::txn::{TransactionId, engine};

/// The result of opening a database.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// let opening = db.opening();
/// println!("opened in {:?}, {} commits recovered", opening.duration, opening.recovered_records);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opening {
    /// `true` if the database did not exist and was created.
    pub created: bool,
    /// Commits that were in the log but not in the newest checkpoint.
    pub recovered_records: u64,
    /// Bytes of the records of these commits.
    pub recovered_bytes: u64,
    /// The time that opening took.
    pub duration: Duration,
    /// The newest commit.
    pub last: Timestamp,
    /// Corruption that the opening found and worked around: one corrupted superblock if the other is valid, and with
    /// [`Config::salvage`](crate::Config::salvage) any other corruption. A salvage opening also lists
    /// [`Error::NotClosed`] here if the log has commits that no checkpoint holds.
    pub skipped: Vec<Error>,
}

/// The settings of one opening, as [`Config`](crate::Config) describes and checks them.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) memory_bytes: u64,
    pub(crate) log_stream_count: u16,
    pub(crate) page_bytes: usize,
    pub(crate) segment_bytes: u64,
    /// `None` derives it from the size of the file system.
    pub(crate) log_segment_bytes: Option<u64>,
    pub(crate) checkpoint_log_bytes: u64,
    /// The durability of commits that do not name one.
    pub(crate) durability: engine::Durability,
    pub(crate) io_backend: IoBackend,
    pub(crate) in_memory: bool,
    pub(crate) create: bool,
    pub(crate) read_only: bool,
    pub(crate) warm_start: bool,
    /// The disk space that spilled versions may take.
    pub(crate) spill_limit: SpillLimit,
    /// Opens for reading only, and skips whatever is corrupted.
    pub(crate) salvage: bool,
    pub(crate) backend: Option<Arc<dyn Backend>>,
}

/// The state that all handles of an open database share.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) path: PathBuf,
    pub(crate) engine: Arc<Engine>,
    pub(crate) keyspaces: Keyspaces,
    /// Held while keyspaces are created and dropped.
    defining: Mutex<()>,
    /// Held while segments are emptied. Taken before `page_tables`.
    cleaning: Mutex<cleaner::Unneeded>,
    /// The durable state. Locked for as long as a checkpoint is being made.
    pub(crate) page_tables: Mutex<PageTableStore>,
    pub(crate) maintenance: Arc<Maintenance>,
    warm_start: WarmStart,
    counts_files: CountsFiles,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) opening: Opening,
    /// `None` after they were released.
    locks: Mutex<Option<Locks>>,
    sync: SyncMethod,
    pub(crate) page_bytes: usize,
    /// The durability of commits that do not name one.
    pub(crate) durability: engine::Durability,
    checkpoint_log_bytes: u64,
    /// Every call that would write is refused.
    is_read_only: bool,
    /// The database was opened despite corruption, without the corrupted parts.
    is_salvage: bool,
    checkpoints: AtomicU64,
    pub(crate) contention: Contention,
    /// The result of closing. Locked while the database is being closed, so that a second close waits.
    closed: Mutex<Option<Result<()>>>,
}

/// The default time that a write waits for a row that another transaction has locked.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Prefixes of up to this length need no memory of their own: they fit into the copy of a leaf that every reduction
/// has.
const REDUCED_BYTES_FREE: u64 = 4 << 10;

impl Store {
    /// Opens the database at `path`, creating or recovering it, and starts its threads.
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

    /// Returns the wait mode of a call made by a task. First yields to other tasks if its thread's turn is over.
    #[inline]
    pub(crate) async fn as_task(&self) -> WaitMode<'_> {
        self.engine.tasks.begin_call().await
    }

    /// Makes a last checkpoint and stops everything. A second call waits for the first and returns the same result.
    pub(crate) fn close(&self) -> Result<()> {
        let mut closed = self.closed.lock();
        if let Some(result) = &*closed {
            return result.clone();
        }
        // The result if `close_now` panics.
        *closed = Some(Err(Error::Failed { reason: "closing it did not end".into() }));
        let result = self.close_now();
        *closed = Some(result.clone());
        result
    }

    /// Releases the locks of a closed database, so that the folder can be opened again even though other handles still
    /// hold this store. Waits for writes under way.
    pub(crate) fn release(&self) {
        assert!(self.is_closed(), "a database that is open gives up its folder");
        // If two threads close the database, this lock makes the second wait until the first has released.
        let mut locks = self.locks.lock();
        *locks = None;
    }

    /// Returns `true` if the database was closed, or if closing it has begun and panicked.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.lock().is_some()
    }

    fn close_now(&self) -> Result<()> {
        // From here on, no commit gets a timestamp. The checkpoint covers the commits that already have one: it begins
        // only after they are applied.
        let log = self.engine.log();
        log.seal();
        let result = self.engine.check_failure().and_then(|()| {
            if log.last() > self.page_tables.lock().superblock.timestamp {
                self.checkpoint()?;
            }
            Ok(())
        });
        self.stop();
        self.engine.spilled.clear();
        if result.is_ok() {
            self.list_residents();
            self.write_counts_again();
        }
        if result.is_ok() && !self.is_read_only && !self.page_tables.lock().is_closed() {
            // Give back the segments that the last checkpoints freed. Failing to do so leaves a longer file, which is
            // closed all the same.
            if let Err(error) = self.engine.space.shrink(0) {
                log::warn!("did not give back the free end of the file of {}: {error}", self.path.display());
            }
        }
        let covered = {
            // If the database has failed, no checkpoint covers the log's records, so the log must be kept. Check with
            // `page_tables` locked: a checkpoint that fails records the failure before it unlocks them.
            let page_tables = self.page_tables.lock();
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

    /// Returns the keyspace with this name. First waits until its creation is durable, or the newest drop if there is
    /// no such keyspace, so that a power cut cannot take the answer back.
    pub(crate) fn durable_keyspace(&self, name: &str) -> Result<Option<Arc<OpenKeyspace>>> {
        let (open, since) = self.keyspaces.get_since(name);
        self.engine.wait_durable(since)?;
        Ok(open)
    }

    /// Like [`durable_keyspace`](Self::durable_keyspace), but returns `None` instead of waiting.
    pub(crate) fn keyspace_at_hand(&self, name: &str) -> Option<Arc<OpenKeyspace>> {
        self.keyspace(name).filter(|open| self.has_created(open))
    }

    /// Returns `true` if the keyspace's creation is durable.
    pub(crate) fn has_created(&self, open: &OpenKeyspace) -> bool {
        open.created <= self.engine.log().durable()
    }

    pub(crate) fn create_keyspace(&self, name: &str, page_bytes: usize) -> Result<Arc<OpenKeyspace>> {
        let _defining = self.defining.lock();
        if let Some(open) = self.durable_keyspace(name)? {
            crate::coverage::mark!("two created the same keyspace at once");
            return Ok(open);
        }
        self.check_writable()?;
        if name.is_empty() || name.len() > 255 {
            let name = quoted(name);
            return Err(Error::Invalid(format!("{name} can't name a keyspace: names have 1 to 255 bytes")));
        }
        let table_bytes = PageTable::memory_bytes_of(1);
        self.engine.space.check_table_growth(table_bytes)?;
        self.engine.pool.fit_frames(table_bytes)?;
        ready(self.engine.secure_changes(WaitMode::Blocking, 1));
        let Some(id) = self.keyspaces.next() else {
            return Err(Error::Invalid("no more keyspaces can be created: their numbers are used up".into()));
        };
        let mut body = Vec::new();
        record::encode(id, &Operation::Create { page_bytes: page_bytes as u32, name }, &mut body);
        // Space for the first page, which becomes dirty, and for the keyspace's entry in the catalogue.
        let _reserved_pages =
            ready(self.engine.reserve_space(WaitMode::Blocking, Purpose::Put, 2 * page_bytes as u64))?;
        let created = self.log_ddl(&Body::new(body), |take_timestamp| {
            let frame = self.engine.pool.take_frame(page_bytes)?;
            let epoch_guard = self.engine.space.epoch_latch.shared();
            let timestamp = take_timestamp()?;
            let open = self.keyspaces.create_root(&self.engine, id, (name, timestamp), frame, &epoch_guard);
            self.engine.clock.mark_applied(timestamp);
            Ok(open)
        })?;
        Ok(created.0)
    }

    pub(crate) fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let _defining = self.defining.lock();
        let open = self.keyspace(name).ok_or_else(|| Error::NoSuchKeyspace { name: name.to_owned() })?;
        let mut body = Vec::new();
        record::encode(open.tree.pages.id, &Operation::Drop, &mut body);
        let dropped = self.log_ddl(&Body::new(body), |take_timestamp| {
            // While `page_tables` is locked, no checkpoint is running, and the check below shows that none has failed.
            // So no checkpoint still needs the image of a page, and nothing can fail once the record of the drop is
            // appended.
            let _page_tables = self.page_tables.lock();
            self.engine.check_failure()?;
            let epoch_guard = self.engine.space.epoch_latch.exclusive();
            let timestamp = take_timestamp()?;
            let result = self.keyspaces.drop_tree(&self.engine, &open, &epoch_guard, timestamp);
            self.engine.clock.mark_applied(timestamp);
            result
        });
        dropped.map(drop)
    }

    /// Commits a record that changes no rows. If `apply` takes no timestamp, nothing is logged or committed.
    fn log_ddl<T>(
        &self,
        body: &Body,
        apply: impl FnOnce(&mut dyn FnMut() -> Result<Timestamp>) -> Result<T>,
    ) -> Result<(T, Option<Timestamp>)> {
        self.engine.check_failure()?;
        let log = self.engine.log();
        let mut reservation = Some(ready(self.engine.reserve_log(WaitMode::Blocking, 0, body.bytes().len()))?);
        let mut appended = None;
        let value = apply(&mut || {
            let reservation = reservation.take().expect("a commit takes its timestamp once");
            let logged = reservation.append(body)?;
            self.engine.other_records.fetch_add(1, Ordering::Relaxed);
            appended = Some(logged);
            crate::coverage::timestamp_taken(logged.timestamp);
            Ok(logged.timestamp)
        })?;
        let Some(appended) = appended else { return Ok((value, None)) };
        log.wait_durable(&appended)?;
        self.engine.clock.wait_published(appended.timestamp);
        self.engine.clock.show_durable(log.durable());
        Ok((value, Some(appended.timestamp)))
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
        }
    }

    // ── rows ───────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The state that reads outside of transactions and snapshots see.
    pub(crate) const PLAIN: ReadAt = ReadAt::Visible;

    /// Refuses a writing call if the database is open for reading only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only { Err(Error::ReadOnly { path: self.path.clone() }) } else { Ok(()) }
    }

    /// Refuses a write if the database is read-only or the key is too long.
    pub(crate) fn check_write(&self, open: &OpenKeyspace, key: &[u8]) -> Result<()> {
        self.check_writable()?;
        let limit_bytes = open.tree.key_bytes_max();
        if key.len() > limit_bytes {
            return Err(Error::KeyTooLong { key_bytes: key.len(), limit_bytes, keyspace: open.name().to_owned() });
        }
        Ok(())
    }

    /// Drops reducer states for which page tables and bulk loads leave no memory.
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

    pub(crate) fn open_snapshot(&self, choose: impl FnOnce() -> Timestamp) -> Arc<SnapshotHandle> {
        Arc::new(self.engine.snapshots.open_snapshot(self.now(), choose))
    }

    /// Opens a snapshot of the newest commits, and records in `seen` that a read saw them.
    pub(crate) fn open_latest(&self, seen: &AtomicU64) -> Arc<SnapshotHandle> {
        let now = self.open_snapshot(|| self.engine.clock.published());
        seen.fetch_max(now.timestamp.0, Ordering::Relaxed);
        now
    }

    pub(crate) fn next_transaction(&self) -> TransactionId {
        self.engine.transaction_ids.next()
    }

    /// Locks a row, waiting up to `timeout`. Does not wait at all if the call comes from the body of the transaction
    /// that holds the lock.
    pub(crate) async fn lock_row(
        &self,
        mode: WaitMode<'_>,
        owner: TransactionId,
        keyspace: KeyspaceId,
        key: &[u8],
        timeout: Duration,
    ) -> Result<Granted> {
        let locks = &self.engine.locks;
        let HeldBy(holder) = match locks.try_lock(owner, keyspace, key) {
            Ok(granted) => return Ok(granted),
            Err(held) => held,
        };
        self.wait_for_row(mode, owner, holder, keyspace, key, timeout).await
    }

    /// Waits for a row lock that another transaction holds.
    fn wait_for_row<'a>(
        &'a self,
        mode: WaitMode<'a>,
        owner: TransactionId,
        holder: TransactionId,
        keyspace: KeyspaceId,
        key: &'a [u8],
        timeout: Duration,
    ) -> Boxed<'a, Result<Granted>> {
        Box::pin(async move {
            let locks = &self.engine.locks;
            if BodyOf::new(locks, holder).is_running() {
                return Err(self.lock_timeout(keyspace, key, Duration::ZERO, LockHolder::OwnBody));
            }
            let since = self.now();
            let deadline = since.saturating_add(timeout);
            self.contention.lock_waits.fetch_add(1, Ordering::Relaxed);
            let locked = match mode {
                WaitMode::Blocking => locks.lock(owner, keyspace, key, deadline, &|| self.now()),
                WaitMode::Tasks(tasks) => {
                    let mut acquire = pin!(locks.acquire(owner, keyspace, key));
                    let mut alarm = None;
                    let acquired = poll_fn(|context| match acquire.as_mut().poll(context) {
                        Poll::Ready(locked) => Poll::Ready(locked),
                        // Dropping the future gives up its place in the queue, and a lock that was just handed to it.
                        Poll::Pending if self.now() >= deadline => Poll::Ready(Err(LockError::Timeout)),
                        Poll::Pending => {
                            alarm = Some(tasks.timer.wake_at(deadline, context.waker().clone()));
                            Poll::Pending
                        }
                    });
                    acquired.await
                }
            };
            let waited_ns = self.now().saturating_sub(since).as_nanos() as u64;
            self.contention.lock_wait_ns.fetch_add(waited_ns, Ordering::Relaxed);
            locked.map_err(|error| match error {
                LockError::Timeout => {
                    // Several tasks of a thread may hold row locks, so the thread does not identify the owner.
                    let is_own = matches!(mode, WaitMode::Blocking) && locks.is_of_this_thread(keyspace, key);
                    let holder = if is_own { LockHolder::SameThread } else { LockHolder::Other };
                    self.lock_timeout(keyspace, key, timeout, holder)
                }
                LockError::Deadlock => {
                    Error::Conflict { reason: "two transactions wait for rows that the other has locked" }
                }
            })
        })
    }

    fn lock_timeout(&self, keyspace: KeyspaceId, key: &[u8], waited: Duration, holder: LockHolder) -> Error {
        self.contention.lock_timeouts.fetch_add(1, Ordering::Relaxed);
        let pages = self.engine.space.page_space(keyspace);
        let keyspace = pages.map_or_else(|| format!("number {keyspace}"), |pages| pages.name.to_string());
        Error::LockTimeout { keyspace, key: key.to_vec(), waited, holder }
    }

    /// Commits one write outside of a transaction: locks the row and changes its newest version.
    pub(crate) async fn autocommit(
        &self,
        mode: WaitMode<'_>,
        row: engine::Row<'_>,
        durability: engine::Durability,
    ) -> Result<()> {
        let owner = self.next_transaction();
        let rows = [row];
        let mut begun = None;
        let keyspace = row.tree.pages.id;
        let place = self.engine.locks.place(keyspace, row.key);
        if self.engine.locks.try_lock_at(place, owner, keyspace, row.key).is_ok() {
            let lock = RowLock { engine: &self.engine, owner, keyspace, key: row.key, place };
            if let Some(applied) = self.engine.commit_at_once(&rows, lock_bytes(row.key), durability)? {
                self.end_locks(lock);
                return self.engine.settle(mode, &rows, applied, durability).await.map(drop);
            }
            begun = self.engine.try_admit(&rows, lock_bytes(row.key)).map(|admitted| (lock, admitted));
        }
        let (lock, admitted) = match begun {
            Some(begun) => begun,
            None => self.begin_waiting(mode, owner, &rows).await?,
        };
        let (applied, admitted) = self.engine.apply(mode, &rows, None, admitted).await?;
        self.end_locks(lock);
        drop(admitted);
        self.engine.settle(mode, &rows, applied, durability).await.map(drop)
    }

    /// Locks the row, and reserves the memory that the commit needs.
    async fn begin_waiting<'a>(
        &'a self,
        mode: WaitMode<'_>,
        owner: TransactionId,
        rows: &[engine::Row<'a>; 1],
    ) -> Result<(RowLock<'a>, engine::Admitted)> {
        let [engine::Row { tree, key, .. }] = rows;
        let (lock, _memory) = self.lock_waiting(mode, owner, tree, key).await?;
        let admitted = self.engine.admit(mode, rows, None, lock_bytes(key)).await;
        Ok((lock, admitted))
    }

    /// Locks a row and reserves memory for the lock. The memory is reserved first, while no lock is held, because any
    /// number of writers may be waiting for it.
    async fn lock_waiting<'a>(
        &'a self,
        mode: WaitMode<'_>,
        owner: TransactionId,
        tree: &Tree,
        key: &'a [u8],
    ) -> Result<(RowLock<'a>, Grant)> {
        let engine = &self.engine;
        let memory = self.lock_memory(mode, key).await?;
        self.lock_row(mode, owner, tree.pages.id, key, LOCK_TIMEOUT).await?;
        let (keyspace, place) = (tree.pages.id, engine.locks.place(tree.pages.id, key));
        Ok((RowLock { engine, owner, keyspace, key, place }, memory))
    }

    /// Reserves memory for a row lock that may have to be waited for. Waits for the memory in the order of asking.
    pub(crate) async fn lock_memory(&self, mode: WaitMode<'_>, key: &[u8]) -> Result<Grant> {
        let engine = &self.engine;
        let bytes = (lock_bytes(key) + WAITING_BYTES) as u64;
        let memory = engine.reserve_in_turn(mode, Account::Transactions, bytes, LOCK_TIMEOUT).await;
        memory.ok_or_else(|| Error::transactions_in_memory(engine.budget.limit_bytes(Account::Transactions)))
    }

    /// Locks a row like [`lock_newest`](Self::lock_newest), but fails instead of waiting for another owner's lock or
    /// for memory beyond what `memory` already has.
    pub(crate) fn lock_newest_if_free<'a>(
        &'a self,
        tree: &'a Tree,
        key: &'a [u8],
        memory: &mut Option<Grant>,
    ) -> Result<LockedRow<'a>, NotFree> {
        let engine = &self.engine;
        let bytes = lock_bytes(key) as u64;
        if memory.as_ref().is_none_or(|grant| grant.bytes() < bytes) {
            let reserved = engine.reserve_at_once(Account::Transactions, bytes);
            *memory = Some(reserved.ok_or(NotFree::Memory)?);
        }
        let owner = self.next_transaction();
        let (keyspace, place) = (tree.pages.id, engine.locks.place(tree.pages.id, key));
        engine.locks.try_lock_at(place, owner, keyspace, key).map_err(|HeldBy(_)| NotFree::Row)?;
        let lock = RowLock { engine, owner, keyspace, key, place };
        Ok(LockedRow { store: self, tree, lock, _memory: memory.take().expect("it was reserved") })
    }

    /// Locks a row outside of transactions, for a change that depends on its newest value.
    pub(crate) async fn lock_newest<'a>(
        &'a self,
        mode: WaitMode<'_>,
        tree: &'a Tree,
        key: &'a [u8],
    ) -> Result<LockedRow<'a>> {
        let (lock, memory) = self.lock_waiting(mode, self.next_transaction(), tree, key).await?;
        Ok(LockedRow { store: self, tree, lock, _memory: memory })
    }

    /// Called after a call that has seen commits up to `seen` and made none. Waits until no power cut can take back
    /// what it saw, and readers see it. With [`Relaxed`](engine::Durability::Relaxed), it is enough that readers see
    /// it.
    pub(crate) async fn confirm(
        &self,
        mode: WaitMode<'_>,
        seen: Timestamp,
        durability: engine::Durability,
    ) -> Result<()> {
        if durability == engine::Durability::Relaxed && seen <= self.engine.clock.visible() {
            return Ok(());
        }
        self.engine.show_durable(mode, seen).await
    }

    /// Commits rows whose `locks` the caller holds. See [`Engine::apply`].
    pub(crate) async fn commit<L>(
        &self,
        mode: WaitMode<'_>,
        rows: &[engine::Row<'_>],
        reads: Option<Reads<'_>>,
        durability: engine::Durability,
        locks: L,
    ) -> Result<Timestamp> {
        let logged = self.apply(mode, mode.is_task(), rows, reads, durability, locks).await?;
        self.engine.await_written(mode, &logged, durability).await
    }

    /// Does the part of a [commit](Self::commit) that precedes the wait for its log write, and requests that write.
    /// With `for_task`, a task will wait for the write, even if this call itself blocks.
    pub(crate) async fn apply<L>(
        &self,
        mode: WaitMode<'_>,
        for_task: bool,
        rows: &[engine::Row<'_>],
        reads: Option<Reads<'_>>,
        durability: engine::Durability,
        locks: L,
    ) -> Result<Appended> {
        if reads.is_none()
            && let Some(applied) = self.engine.commit_at_once(rows, 0, durability)?
        {
            self.end_locks(locks);
            return Ok(self.engine.request_write(for_task, rows, applied, durability));
        }
        let admitted = self.engine.admit(mode, rows, reads, 0).await;
        let (applied, admitted) = self.engine.apply(mode, rows, reads, admitted).await?;
        self.end_locks(locks);
        drop(admitted);
        Ok(self.engine.request_write(for_task, rows, applied, durability))
    }

    /// Releases the locks of an applied commit, and requests a checkpoint if one is due.
    fn end_locks<L>(&self, locks: L) {
        drop(locks);
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

    /// Reserves memory for a chunk that a source fills. Waits for it, because the sources of other calls may be slow.
    pub(crate) async fn source_memory(&self, mode: WaitMode<'_>) -> Result<Grant> {
        self.check_writable()?;
        let engine = &self.engine;
        let memory = engine.reserve_in_turn(mode, Account::Sources, SOURCE_BYTES_MAX, LOCK_TIMEOUT).await;
        memory.ok_or_else(|| Error::sources_in_memory(engine.budget.limit_bytes(Account::Sources)))
    }

    /// Reserves memory for `bytes` of a value that a reducer is shown. A value larger than this account of the budget
    /// takes the whole account, so it is the only one in memory.
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

    // ── large values ───────────────────────────────────────────────────────────────────────────────────────────────

    /// Returns the value id for a new value.
    pub(crate) fn new_value(&self) -> ValueId {
        ValueId(self.engine.next_value.fetch_add(1, Ordering::Relaxed))
    }

    fn gone(&self, tree: &Tree, snapshot: &SnapshotHandle) -> Error {
        match snapshot.check().and_then(|()| tree.check_dropped()) {
            Err(error) => error,
            Ok(()) => Error::corrupted(
                self.engine.space.path(),
                format!("a value of keyspace {}", tree.pages.quoted_name()),
                "its extents belong to another value",
            ),
        }
    }

    pub(crate) async fn read_large(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        reference: &LargeRef,
        snapshot: &SnapshotHandle,
        into: Vec<u8>,
    ) -> Result<Vec<u8>> {
        match values::read_whole(mode, tree, reference, into).await {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(self.gone(tree, snapshot)),
            // If the snapshot was ended, the value may be gone and its pages may belong to another value.
            Err(error) => snapshot.check().and(Err(error)),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they say which part of which chunk to read, and as of when")]
    pub(crate) async fn read_chunk(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        reference: &LargeRef,
        number: ChunkNumber,
        snapshot: &SnapshotHandle,
        part: Part,
        into: Vec<u8>,
    ) -> Result<Vec<u8>> {
        match values::read_chunk(mode, tree, reference, number, part, into).await {
            Ok(Chunk::Bytes(bytes)) => Ok(bytes),
            Ok(Chunk::Gone) => Err(self.gone(tree, snapshot)),
            Err(error) => snapshot.check().and(Err(error)),
        }
    }

    /// Appends `part` of a chunk to `into`. The chunk belongs to a value that the reading transaction itself has put.
    /// It is read from the extents that it was written to, or through the page table if the transaction has been
    /// committed in the meantime. `snapshot` is older than that commit and so keeps the value.
    #[expect(clippy::too_many_arguments, reason = "they say which part of which chunk to read, and as of when")]
    pub(crate) async fn read_own_chunk(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        value: &LargeValue,
        number: ChunkNumber,
        snapshot: &SnapshotHandle,
        part: Part,
        mut into: Vec<u8>,
    ) -> Result<Vec<u8>> {
        if value.reference().is_none() {
            let length_before = into.len();
            let result;
            (into, result) = values::read_unplaced(mode, tree, value, number, part, into).await;
            if value.reference().is_none() {
                return result.map(|()| into);
            }
            into.truncate(length_before);
        }
        let reference = value.reference().expect("looked at");
        self.read_chunk(mode, tree, reference, number, snapshot, part, into).await
    }

    pub(crate) async fn read_own(
        &self,
        mode: WaitMode<'_>,
        tree: &Tree,
        value: &LargeValue,
        snapshot: &SnapshotHandle,
        mut bytes: Vec<u8>,
    ) -> Result<Vec<u8>> {
        bytes.clear();
        for number in (0..value.addresses.len() as u32).map(ChunkNumber) {
            bytes = self.read_own_chunk(mode, tree, value, number, snapshot, Part::ALL, bytes).await?;
        }
        Ok(bytes)
    }
}

/// A row locked by a call outside of transactions. No other writer changes the row until this is dropped.
pub(crate) struct LockedRow<'a> {
    store: &'a Store,
    tree: &'a Tree,
    lock: RowLock<'a>,
    /// The memory of the lock.
    _memory: Grant,
}

/// The reason why a row could not be locked without waiting.
pub(crate) enum NotFree {
    /// Another owner has locked the row.
    Row,
    Memory,
}

impl LockedRow<'_> {
    /// Returns the newest committed value. Its writer held the row's lock until the change was published, so no newer
    /// one can be missed.
    pub(crate) async fn get<T: OwnedValue>(&self, mode: WaitMode<'_>) -> Result<Option<T>> {
        let mut value = None;
        let found = self.store.engine.get_in(mode, self.tree, self.lock.key, ReadAt::Published, &mut value).await?;
        debug_assert!(found == value.is_some(), "a row without its value");
        Ok(value)
    }

    /// Returns `true` if the row exists.
    pub(crate) async fn exists(&self, mode: WaitMode<'_>) -> Result<bool> {
        Ok(self.store.engine.find_in(mode, self.tree, self.lock.key, ReadAt::Published, |_| ()).await?.is_some())
    }

    /// Records that the caller's closure is running, and that the row stays locked until it returns.
    pub(crate) fn enter_body(&self) -> RunningBody {
        BodyOf::new(&self.store.engine.locks, self.lock.owner).enter()
    }

    /// Commits a change of the row.
    pub(crate) async fn commit(
        self,
        mode: WaitMode<'_>,
        change: Change<'_>,
        durability: engine::Durability,
    ) -> Result<()> {
        let LockedRow { store, tree, lock, _memory } = self;
        let rows = [engine::Row { tree, key: lock.key, change }];
        store.commit(mode, &rows, None, durability, lock).await.map(drop)
    }

    /// Leaves the row unchanged. Waits until the state that was seen is as durable as a change would be.
    pub(crate) async fn leave(self, mode: WaitMode<'_>, durability: engine::Durability) -> Result<()> {
        let LockedRow { store, tree, lock, _memory } = self;
        let engine = &store.engine;
        let visible = engine.clock.visible();
        // Relaxed commits are visible before they are durable, and one of them may have changed this row.
        let may_be_lost = durability == engine::Durability::Full && visible > engine.log().durable();
        let is_unsafe = may_be_lost || engine.changed_since(mode, tree, lock.key, visible).await?;
        let seen = engine.clock.published();
        drop(lock);
        if is_unsafe { store.confirm(mode, seen, durability).await } else { Ok(()) }
    }
}

/// The lock of one row, until it is dropped.
pub(crate) struct RowLock<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) owner: TransactionId,
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: &'a [u8],
    pub(crate) place: LockPlace,
}

impl Drop for RowLock<'_> {
    fn drop(&mut self) {
        self.engine.locks.unlock_at(self.place, self.owner, self.keyspace, self.key);
    }
}
