//! Spills the changes of a transaction that outgrows memory, and commits them.

use std::sync::Arc;

use super::handle::Handle;
use super::pending_spill::PendingSpill;
use super::reader::Reader;
use super::rows::ReadView;
use super::transaction::{Transaction, rows_seen};
use crate::coverage;
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::memory::Account;
use crate::store::OpenKeyspace;
use crate::task::{Boxed, WaitMode, ready};
use crate::txn::commit::{LockedRows, RowsSeen};
use crate::txn::row_locks::Planned;
use crate::txn::write_set::{Change, SharedWrites};

impl Transaction {
    /// Reserves memory for changing a row, whose value takes `value_bytes` in the write set. Spills the earlier changes
    /// if there is no memory.
    pub(super) async fn make_room(
        &mut self,
        mode: WaitMode<'_>,
        open: &OpenKeyspace,
        key: &[u8],
        change: Option<&Change<'_>>,
        value_bytes: usize,
    ) -> Result<()> {
        if self.pending_spill.is_some() {
            self.spill(mode).await?;
        }
        let secured = self.secure_row(open, key, change, value_bytes);
        if self.is_secured(secured)? {
            return Ok(());
        }
        self.spill(mode).await?;
        self.secure_row(open, key, change, value_bytes)
    }

    fn secure_row(
        &mut self,
        open: &OpenKeyspace,
        key: &[u8],
        change: Option<&Change<'_>>,
        value_bytes: usize,
    ) -> Result<()> {
        if let Some(change) = change {
            self.check_record(open, key, change)?;
        }
        self.secure_memory(key, Some(value_bytes))
    }

    /// Reserves memory for locking a row. Spills changes if there is no memory.
    pub(super) async fn make_room_for_lock(&mut self, mode: WaitMode<'_>, key: &[u8]) -> Result<()> {
        self.finish_spill(mode).await?;
        let secured = self.secure_memory(key, None);
        if self.is_secured(secured)? {
            return Ok(());
        }
        self.spill(mode).await?;
        self.secure_memory(key, None)
    }

    /// Returns `true` if changes can be spilled. A serializable transaction validates its reads together with its rows,
    /// which must be in memory for that.
    pub(super) fn may_spill(&self) -> bool {
        self.reader.view.reads.is_none() && self.writes().set.can_spill()
    }

    /// Returns `true` if memory was secured, and `false` if it can be once the changes in memory are spilled.
    #[inline]
    fn is_secured(&self, secured: Result<()>) -> Result<bool> {
        match secured {
            Ok(()) => Ok(true),
            Err(Error::TransactionTooLarge { .. } | Error::MemoryInUse { .. }) if self.may_spill() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes the result of a spill whose call was dropped.
    async fn finish_spill(&mut self, mode: WaitMode<'_>) -> Result<()> {
        match &self.pending_spill {
            None => Ok(()),
            Some(_) => self.spill(mode).await,
        }
    }

    /// Writes all changes in memory to disk. The caller must check that this is [possible](Self::may_spill).
    #[cold]
    pub(super) fn spill<'a>(&'a mut self, mode: WaitMode<'a>) -> Boxed<'a, Result<()>> {
        Box::pin(async move {
            let spill = loop {
                let pending = match &self.pending_spill {
                    Some(pending) => Arc::clone(pending),
                    None => self.begin_spill(mode).await?,
                };
                let ended = pending.wait(mode).await;
                self.pending_spill = None;
                if let Some(spill) = ended {
                    break spill?;
                }
            };
            let Transaction { reader, locks, .. } = self;
            let writes = reader.view.own.as_mut().expect("a transaction has writes");
            match &mut locks.planned {
                // A batch does not lock the rows that it has spilled.
                Some(planned) => *planned = Planned::default(),
                None => {
                    let set = &writes.set;
                    locks.spill(spill.writes(), set.changed_keys(), |keyspace, key| set.get(keyspace, key).is_some());
                }
            }
            let is_scarce = locks.engine.budget.is_scarce(Account::Transactions);
            SharedWrites::replace(writes, spill, !is_scarce);
            let lock_bytes = self.locks.memory_bytes_with(&[]) as u64;
            if lock_bytes < self.memory.bytes() {
                let is_smaller = self.memory.resize(lock_bytes);
                assert!(is_smaller, "memory of locks was not given back");
            }
            Ok(())
        })
    }

    /// Begins to write the changes: on a worker thread if a task waits.
    async fn begin_spill(&mut self, mode: WaitMode<'_>) -> Result<Arc<PendingSpill>> {
        let engine = &self.reader.store()?.engine;
        engine.check_failure()?;
        let writes = Arc::clone(self.reader.view.own.as_ref().expect("a transaction has writes"));
        let (file, savepoint) = (Arc::clone(&engine.write_spill), self.savepoint_max);
        let (pending, job) = PendingSpill::begin();
        self.pending_spill = Some(Arc::clone(&pending));
        mode.run(move || job.run(&file, writes, savepoint)).await;
        Ok(pending)
    }

    /// Commits the changes after spilling those in memory, on a thread that may block.
    pub(super) async fn commit_spilled_in(self, mode: WaitMode<'_>) -> Result<Timestamp> {
        let body = move || ready(self.commit_spilled());
        let (handle, timestamp) = match mode {
            WaitMode::Blocking => body()?,
            WaitMode::Tasks(tasks) => tasks.committers.run(coverage::on_behalf(body)).await?,
        };
        // If all changes were undone, what the transaction has read may not be durable yet.
        handle.store_here().engine.show_durable(mode, timestamp).await?;
        Ok(timestamp)
    }

    async fn commit_spilled(mut self) -> Result<(Arc<Handle>, Timestamp)> {
        let mode = WaitMode::Blocking;
        self.finish_spill(mode).await?;
        if self.may_spill() {
            self.spill(mode).await?;
        }
        let Transaction { reader, locks, memory: _memory, .. } = self;
        let Reader { handle, view: ReadView { horizon, own, .. }, .. } = reader;
        let store = handle.store()?;
        horizon.check()?;
        let writes = &own.as_ref().expect("a transaction has writes").set;
        let (seen, open) = (rows_seen(&horizon, &locks), |id| store.keyspace_with_id(id));
        let locked = LockedRows { locks: &locks, open: &open };
        let committed = store.contention.noting(store.commit_spilled(writes, RowsSeen::Of(&locked, &seen)))?;
        let timestamp = committed.unwrap_or_else(|| horizon.seen());
        drop(locks);
        Ok((handle, timestamp))
    }
}
