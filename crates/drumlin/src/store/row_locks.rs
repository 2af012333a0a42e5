//! Locking rows: waiting for a lock and for its memory, and changes of a locked row outside of transactions.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use super::state::Store;
use crate::counts::CountedTree;
use crate::error::{Error, LockHolder, Result};
use crate::format::KeyspaceId;
use crate::memory::{Account, Grant};
use crate::task::{Boxed, WaitMode};
use crate::txn::LOCK_TIMEOUT;
use crate::txn::TransactionId;
use crate::txn::commit::{Durability, Row};
use crate::txn::engine::{OwnedValue, ReadAt};
use crate::txn::locks::{Granted, HeldBy, LockError, WAITING_BYTES, lock_bytes};
use crate::txn::row_locks::RowLock;
use crate::txn::running::{BodyOf, RunningBody};
use crate::txn::write_set::Change;
impl Store {
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

    /// Locks a row and reserves memory for the lock. The memory is reserved first, while no lock is held, because any
    /// number of writers may be waiting for it.
    pub(super) async fn lock_waiting<'a>(
        &'a self,
        mode: WaitMode<'_>,
        owner: TransactionId,
        tree: &CountedTree,
        key: &'a [u8],
    ) -> Result<(RowLock<'a>, Grant)> {
        let engine = &self.engine;
        let memory = self.lock_memory(mode, key).await?;
        self.lock_row(mode, owner, tree.pages.id, key, LOCK_TIMEOUT).await?;
        Ok((RowLock::of_held(&engine.locks, owner, tree.pages.id, key), memory))
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
        tree: &'a CountedTree,
        key: &'a [u8],
        memory: &mut Option<Grant>,
    ) -> Result<LockedRow<'a>, NotFree> {
        let engine = &self.engine;
        let bytes = lock_bytes(key) as u64;
        if memory.as_ref().is_none_or(|grant| grant.bytes() < bytes) {
            let reserved = engine.reserve_at_once(Account::Transactions, bytes);
            *memory = Some(reserved.ok_or(NotFree::Memory)?);
        }
        let lock = RowLock::try_new(&engine.locks, self.next_transaction(), tree.pages.id, key);
        let lock = lock.map_err(|HeldBy(_)| NotFree::Row)?;
        Ok(LockedRow { store: self, tree, lock, _memory: memory.take().expect("it was reserved") })
    }

    /// Locks a row outside of transactions, for a change that depends on its newest value.
    pub(crate) async fn lock_newest<'a>(
        &'a self,
        mode: WaitMode<'_>,
        tree: &'a CountedTree,
        key: &'a [u8],
    ) -> Result<LockedRow<'a>> {
        let (lock, memory) = self.lock_waiting(mode, self.next_transaction(), tree, key).await?;
        Ok(LockedRow { store: self, tree, lock, _memory: memory })
    }
}

/// A row locked by a call outside of transactions. No other writer changes the row until this is dropped.
pub(crate) struct LockedRow<'a> {
    store: &'a Store,
    tree: &'a CountedTree,
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
    pub(crate) async fn commit(self, mode: WaitMode<'_>, change: Change<'_>, durability: Durability) -> Result<()> {
        let LockedRow { store, tree, lock, _memory } = self;
        let rows = [Row { tree, key: lock.key, change }];
        store.commit(mode, &rows, None, durability, lock).await.map(drop)
    }

    /// Leaves the row unchanged. Waits until the state that was seen is as durable as a change would be.
    pub(crate) async fn leave(self, mode: WaitMode<'_>, durability: Durability) -> Result<()> {
        let LockedRow { store, tree, lock, _memory } = self;
        let engine = &store.engine;
        let visible = engine.clock.visible();
        // Relaxed commits are visible before they are durable, and one of them may have changed this row.
        let may_be_lost = durability == Durability::Full && visible > engine.log().durable();
        let is_unsafe = may_be_lost || engine.changed_since(mode, tree, lock.key, visible).await?;
        let seen = engine.clock.published();
        drop(lock);
        if is_unsafe { store.confirm(mode, seen, durability).await } else { Ok(()) }
    }
}
