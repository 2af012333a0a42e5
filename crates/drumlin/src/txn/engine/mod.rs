//! Commits and reads: where write set, tree, versions and log meet.

mod commit;
mod read;
mod room;

use std::future::poll_fn;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

pub(crate) use self::commit::Row;
pub(crate) use self::read::{Found, View};
use super::clock::Clock;
use super::locks::LockTable;
use super::snapshots::Snapshots;
use super::values;
use super::versions::Versions;
use crate::error::{Error, Result};
use crate::format::node::LargeRef;
use crate::format::{KeyspaceId, Timestamp};
use crate::io::Backend;
use crate::memory::Budget;
use crate::pool::Pool;
use crate::seglog::Log;
use crate::space::Space;
use crate::sync::{Mutex, MutexGuard};
use crate::task::{Face, Tasks, ready};

/// When a commit returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When it is on the medium.
    #[default]
    Full,
    /// When it is applied. A power cut may take the newest commits; those that remain are whole and without gaps. The
    /// record is written soon afterwards.
    Relaxed,
}

/// See the module.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) space: Arc<Space>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) locks: LockTable,
    /// There once recovery has ended.
    pub(crate) log: OnceLock<Arc<Log>>,
    pub(crate) next_value: AtomicU64,
    /// Bytes of pages that commits under way may make dirty.
    promised_bytes: AtomicU64,
    pub(crate) next_transaction: AtomicU64,
    pub(crate) commits: AtomicU64,
    /// Bytes of record bodies appended, and how many of them when the newest checkpoint began.
    pub(crate) log_bytes_written: AtomicU64,
    pub(crate) log_bytes_checkpointed: AtomicU64,
    sweeping: Mutex<()>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) make_space: MakeSpace,
    /// What serves operations that wait as tasks.
    pub(crate) tasks: Tasks,
}

/// Has what can be freed freed, by a checkpoint and the cleaner, and waits for it.
pub(crate) type MakeSpace = Arc<dyn Fn() -> Result<()> + Send + Sync>;

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.clock)
    }
}

impl Engine {
    /// An engine that has recovered up to `last`.
    #[allow(clippy::too_many_arguments, reason = "made in one place, where each part is named")]
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        space: Arc<Space>,
        pool: Arc<Pool>,
        versions: Arc<Versions>,
        last: Timestamp,
        next_value: u64,
        budget: Arc<Budget>,
        make_space: MakeSpace,
    ) -> Engine {
        let lock_seed = backend.random();
        let tasks = Tasks::new(&backend);
        Engine {
            backend,
            space,
            pool,
            clock: Arc::new(Clock::new(last)),
            snapshots: Arc::default(),
            versions,
            locks: LockTable::new(64, lock_seed),
            log: OnceLock::new(),
            next_value: AtomicU64::new(next_value),
            promised_bytes: AtomicU64::new(0),
            next_transaction: AtomicU64::new(1),
            commits: AtomicU64::new(0),
            log_bytes_written: AtomicU64::new(0),
            log_bytes_checkpointed: AtomicU64::new(0),
            sweeping: Mutex::default(),
            budget,
            make_space,
            tasks,
        }
    }

    pub(crate) fn log(&self) -> &Log {
        self.log.get().expect("the log is there once the database is open")
    }

    pub(crate) fn check_failure(&self) -> Result<()> {
        self.space.check_failure()?;
        match self.log.get().and_then(|log| log.failure()) {
            Some(reason) => Err(Error::Failed { reason }),
            None => Ok(()),
        }
    }

    /// Drops versions that nobody needs, and past their share of memory ends the oldest snapshots.
    pub(crate) fn sweep(&self) {
        if let Some(alone) = self.sweeping.try_lock() {
            self.sweep_to(&alone, self.budget.version_bytes_max());
        }
    }

    /// The same, to so many bytes.
    fn sweep_to(&self, _alone: &MutexGuard<'_, ()>, bytes_max: u64) {
        loop {
            let freed = self.versions.sweep(self.snapshots.horizon(&self.clock));
            for (keyspace, reference) in freed {
                self.free_value(keyspace, &reference);
            }
            if self.versions.memory_bytes() <= bytes_max || !self.snapshots.end_oldest(&self.clock) {
                return;
            }
        }
    }

    pub(crate) fn free_value(&self, keyspace: KeyspaceId, reference: &LargeRef) {
        let guard = self.space.enter();
        let Some(pages) = self.space.page_space(keyspace) else { return };
        let freed = values::free(&self.pool, &guard, &pages, reference.first_page, reference.chunk_count);
        if let Err(error) = freed {
            log::warn!("the space of a value that was removed is not used again: {error}");
        }
        self.versions.let_go(keyspace, reference);
    }

    /// Waits until every commit up to this one is durable: what was seen of them can't be taken back then.
    pub(crate) fn wait_durable(&self, timestamp: Timestamp) -> Result<()> {
        ready(self.await_durable(Face::Blocking, timestamp))
    }

    /// As [`wait_durable`](Self::wait_durable), by the ways of a face.
    pub(crate) async fn await_durable(&self, face: Face<'_>, timestamp: Timestamp) -> Result<()> {
        let log = self.log();
        if log.durable() >= timestamp {
            return Ok(());
        }
        // Only the timestamp matters: the log writes whatever stream holds it back.
        let place = crate::seglog::Appended { timestamp, stream: 0, end: 0, is_crowded: false };
        match face {
            Face::Blocking => log.wait_durable(&place),
            Face::Tasks(_) => poll_fn(|context| log.poll_durable(&place, context.waker())).await,
        }
    }

    /// Waits until every commit up to this one, which is published, is durable and visible to all readers.
    pub(crate) async fn show_durable(&self, face: Face<'_>, timestamp: Timestamp) -> Result<()> {
        self.await_durable(face, timestamp).await?;
        // The log told the clock when it was durable, which may have been before it was published.
        self.clock.show_durable(self.log().durable());
        Ok(())
    }
}
