//! The handle that keeps a database open.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::io::{OpenIn, Process};
use crate::store::Store;
use crate::task::{Rooted, WaitMode};
use crate::txn::snapshots::SnapshotHandle;

/// Keeps a database open. All public handles of an opening share one `Handle`. The database is closed when the last
/// reference to it is dropped.
pub(crate) struct Handle {
    store: Arc<Store>,
    /// The process that opened the database.
    process: Process,
    /// Identifies the process that opened the database, until the database is closed.
    open_in: OpenIn,
    /// The number of this opening, unique within the process.
    number: u64,
}

impl Handle {
    pub(crate) fn new(store: Arc<Store>) -> Handle {
        static OPENING_COUNT: AtomicU64 = AtomicU64::new(0);
        let number = OPENING_COUNT.fetch_add(1, Ordering::Relaxed);
        Handle { store, process: Process::here(), open_in: OpenIn::here(), number }
    }

    /// Returns the store without checks, for callers that have already checked the process.
    #[inline]
    pub(super) fn store_here(&self) -> &Store {
        &self.store
    }

    /// Returns the number of this opening, unique within the process.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Pauses before a retry. The pause is random, and its average doubles with each attempt, so two transactions that
    /// collided are unlikely to collide again.
    #[inline(never)]
    pub(super) fn pause(&self, mode: WaitMode<'_>, attempt: u32) -> Rooted<impl Future<Output = ()>> {
        Rooted::new(async move {
            let pause_us = 50u64 << attempt.min(10);
            let random = self.store.engine.backend.random() % pause_us;
            let pause = Duration::from_micros((pause_us / 2 + random).min(50_000));
            match mode {
                WaitMode::Blocking => crate::sync::sleep(pause),
                WaitMode::Tasks(tasks) => tasks.timer.sleep(pause).await,
            }
        })
    }

    /// Opens a snapshot at the timestamp that plain reads see.
    pub(crate) fn open_visible_snapshot(&self) -> Arc<SnapshotHandle> {
        self.store.open_snapshot(|| self.store.engine.clock.visible())
    }

    /// Returns the store of this handle. Fails with [`Error::Closed`] once the database is closed, and with
    /// [`Error::Forked`] in a fork of the process that opened it.
    #[inline]
    pub(crate) fn store(&self) -> Result<&Arc<Store>> {
        if self.open_in.is_here() { Ok(&self.store) } else { Err(self.not_open()) }
    }

    #[cold]
    fn not_open(&self) -> Error {
        self.store_in_process().err().unwrap_or(Error::Closed)
    }

    /// Returns the store, closed or not. Fails with [`Error::Forked`] in a fork of the process that opened the
    /// database: its files, rings and locks belong to the parent, and the fork has copies of in-memory locks that other
    /// threads may have held.
    pub(super) fn store_in_process(&self) -> Result<&Arc<Store>> {
        if self.process.is_here() { Ok(&self.store) } else { Err(Error::Forked { path: self.store.path.clone() }) }
    }

    /// Closes the database and releases its folder.
    pub(super) fn close(&self) -> Result<()> {
        let result = self.store_in_process()?.close();
        // Do this before releasing the folder: after that, another opening may change the files.
        self.open_in.close();
        self.store.release();
        result
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // Leak the store, because only the parent process may close it.
            std::mem::forget(Arc::clone(&self.store));
            return;
        }
        if self.store.is_closed() {
            return;
        }
        if let Err(error) = self.close() {
            log::error!("closing {}: {error}; nothing that was durable is lost", self.store.path.display());
        }
    }
}
