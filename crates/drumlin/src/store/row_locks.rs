//! Locks rows: waits for a lock and for its memory, and changes a locked row outside of transactions.

use std::future::{Future, poll_fn};
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::lock_wait::{LockWait, LockWaitHook};
use super::state::Store;
use crate::counts::CountedTree;
use crate::error::{Error, LockHolder, Result};
use crate::format::{KeyspaceId, Timestamp};
use crate::memory::{Account, Grant};
use crate::task::{Boxed, WaitMode};
use crate::txn::LOCK_TIMEOUT;
use crate::txn::TransactionId;
use crate::txn::commit::{Durability, Row, RowsSeen};
use crate::txn::engine::{OwnedValue, ReadAt};
use crate::txn::interrupt::Interrupt;
use crate::txn::locks::{Granted, HeldBy, LockError, LockMode, LockRequest, Unpark, WAITING_BYTES, lock_bytes};
use crate::txn::row_locks::RowLock;
use crate::txn::running::{BodyOf, RunningBody};
use crate::txn::write_set::Change;

/// The outcome of looking for a row, whose lock was acquired, in the spilled changes of other transactions.
enum Checked {
    /// The row is not there, so the caller keeps the lock.
    Kept,
    /// The other transaction has the lock now.
    Replaced,
    /// The lock was released: the other transaction has ended, or others share the lock.
    Released,
}

impl Store {
    /// Locks a row, waiting up to `timeout`, or until `interrupt` ends the wait. Fails immediately if the call comes
    /// from the body of the transaction that holds the lock.
    pub(crate) async fn lock_row(
        &self,
        mode: WaitMode<'_>,
        request: &LockRequest<'_>,
        timeout: Duration,
        interrupt: Option<&Interrupt>,
    ) -> Result<Granted> {
        let LockRequest { owner, keyspace, key, mode: wanted } = *request;
        // A row of which the caller has a shared lock already can't be one that another transaction has spilled.
        let is_upgrade = self.engine.spilled_locks.has_any() && self.engine.locks.is_held_by(owner, keyspace, key);
        let deadline = self.now().saturating_add(timeout);
        let mut request = *request;
        loop {
            let granted = match self.engine.locks.try_request(&request) {
                Ok(granted) => granted,
                Err(HeldBy(_)) => self.wait_for_row(mode, &request, timeout, deadline, interrupt).await?,
            };
            if granted == Granted::AlreadyHeld || is_upgrade {
                return Ok(granted);
            }
            match self.check_spilled(mode, &request).await? {
                Checked::Kept if request.mode == wanted => return Ok(granted),
                Checked::Kept => {
                    self.engine.locks.unlock(owner, keyspace, key);
                    request.mode = wanted;
                }
                Checked::Replaced => {}
                Checked::Released => request.mode = LockMode::Exclusive,
            }
        }
    }

    /// Called after a lock has been acquired. Returns `true` if the caller may keep it. If another transaction has
    /// spilled a change of the row, puts that transaction's lock in place of the caller's, and returns `false`. See
    /// `txn/spilled_locks.rs`.
    pub(crate) async fn keeps_lock(&self, mode: WaitMode<'_>, request: &LockRequest<'_>) -> Result<bool> {
        Ok(matches!(self.check_spilled(mode, request).await?, Checked::Kept))
    }

    async fn check_spilled(&self, mode: WaitMode<'_>, request: &LockRequest<'_>) -> Result<Checked> {
        if !self.engine.spilled_locks.may_have_row(request.owner, request.keyspace, request.key) {
            return Ok(Checked::Kept);
        }
        self.give_way(mode, request).await
    }

    #[cold]
    fn give_way<'a>(&'a self, mode: WaitMode<'a>, request: &'a LockRequest<'a>) -> Boxed<'a, Result<Checked>> {
        Box::pin(async move {
            let engine = &self.engine;
            let LockRequest { owner, keyspace, key, .. } = *request;
            // Released if this call is dropped or fails.
            let lock = RowLock::of_held(&engine.locks, request);
            for other in engine.spilled_locks.others(owner) {
                let writes = other.writes();
                if !writes.may_have_row(keyspace, key) {
                    continue;
                }
                let row = key.to_vec();
                if mode.run(move || writes.has_row(keyspace, &row)).await? {
                    if !other.restore(&engine.locks, Some(owner), keyspace, key)? {
                        return Ok(Checked::Released);
                    }
                    std::mem::forget(lock);
                    return Ok(Checked::Replaced);
                }
            }
            std::mem::forget(lock);
            Ok(Checked::Kept)
        })
    }

    /// Waits for a row lock that another transaction holds.
    fn wait_for_row<'a>(
        &'a self,
        mode: WaitMode<'a>,
        request: &'a LockRequest<'a>,
        timeout: Duration,
        deadline: Duration,
        interrupt: Option<&'a Interrupt>,
    ) -> Boxed<'a, Result<Granted>> {
        Box::pin(async move {
            let locks = &self.engine.locks;
            let LockRequest { owner, keyspace, key, .. } = *request;
            let holders = loop {
                let mut holders = locks.holders(keyspace, key);
                holders.retain(|holder| *holder != owner);
                if !holders.is_empty() {
                    break holders;
                }
                // The lock was released since it was requested.
                if let Ok(granted) = locks.try_request(request) {
                    return Ok(granted);
                }
            };
            if holders.iter().any(|holder| BodyOf::new(locks, *holder).is_running()) {
                return Err(self.lock_timeout(keyspace, key, Duration::ZERO, LockHolder::OwnBody));
            }
            self.report_wait(request, &holders);
            let since = self.now();
            self.contention.lock_waits.fetch_add(1, Ordering::Relaxed);
            let remaining = |waker: &Waker| match deadline.checked_sub(self.now()) {
                _ if interrupt.is_some_and(|interrupt| interrupt.take(waker)) => Err(LockError::Interrupted),
                Some(left) if !left.is_zero() => Ok(left),
                _ => Err(LockError::Timeout),
            };
            let locked = match mode {
                WaitMode::Blocking => {
                    let waker = Waker::from(Arc::new(Unpark(crate::sync::current())));
                    locks.lock_blocking(request, since, &waker, &|| remaining(&waker))
                }
                WaitMode::Tasks(tasks) => {
                    let mut acquire = pin!(locks.acquire(*request, since));
                    let mut alarm = None;
                    let acquired = poll_fn(|context| match acquire.as_mut().poll(context) {
                        Poll::Ready(locked) => Poll::Ready(locked),
                        // After an error, dropping the future leaves the queue, or releases a lock that has just been
                        // handed over.
                        Poll::Pending => match remaining(context.waker()) {
                            Err(error) => Poll::Ready(Err(error)),
                            Ok(_) => {
                                alarm = Some(tasks.timer.wake_at(deadline, context.waker().clone()));
                                Poll::Pending
                            }
                        },
                    });
                    acquired.await
                }
            };
            if let Some(interrupt) = interrupt {
                interrupt.end_wait();
            }
            let waited_ns = self.now().saturating_sub(since).as_nanos() as u64;
            self.contention.lock_wait_ns.fetch_add(waited_ns, Ordering::Relaxed);
            locked.map_err(|error| match error {
                LockError::Timeout => {
                    // Several tasks of a thread may hold row locks, so for a task, the thread does not identify the
                    // owner.
                    let is_own = matches!(mode, WaitMode::Blocking) && locks.is_of_this_thread(keyspace, key);
                    let is_prepared = locks.holders(keyspace, key).iter().any(|holder| self.prepared.is_owner(*holder));
                    let holder = match (is_prepared, is_own) {
                        (true, _) => LockHolder::Prepared,
                        (false, true) => LockHolder::SameThread,
                        (false, false) => LockHolder::Other,
                    };
                    self.lock_timeout(keyspace, key, timeout, holder)
                }
                LockError::Deadlock => {
                    Error::Conflict { reason: "two transactions wait for rows that the other has locked" }
                }
                LockError::Interrupted => {
                    Error::Interrupted { keyspace: self.keyspace_name(keyspace), key: key.to_vec() }
                }
            })
        })
    }

    /// Calls the user's function for a wait that is about to begin.
    fn report_wait(&self, request: &LockRequest<'_>, holders: &[TransactionId]) {
        let Some(LockWaitHook(hook)) = &self.on_lock_wait else { return };
        let holders: Vec<u64> = holders.iter().map(|holder| holder.0).collect();
        let keyspace = &self.keyspace_name(request.keyspace);
        let LockRequest { owner, key, mode, .. } = *request;
        hook(&LockWait { waiter: owner.0, holders: &holders, keyspace, key, mode });
    }

    /// Returns the name of a keyspace, which may have been dropped.
    pub(crate) fn keyspace_name(&self, keyspace: KeyspaceId) -> String {
        let pages = self.engine.space.page_space(keyspace);
        pages.map_or_else(|| format!("number {keyspace}"), |pages| pages.name().to_string())
    }

    fn lock_timeout(&self, keyspace: KeyspaceId, key: &[u8], waited: Duration, holder: LockHolder) -> Error {
        self.contention.lock_timeouts.fetch_add(1, Ordering::Relaxed);
        let keyspace = self.keyspace_name(keyspace);
        Error::LockTimeout { keyspace, key: key.to_vec(), waited, holder }
    }

    /// Locks a row and reserves memory for the lock. Reserves the memory first, while no lock is held, because any
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
        let request = LockRequest { owner, keyspace: tree.pages.id, key, mode: LockMode::Exclusive };
        self.lock_row(mode, &request, LOCK_TIMEOUT, None).await?;
        Ok((RowLock::of_held(&engine.locks, &request), memory))
    }

    /// Reserves memory for a row lock and for the wait for it. Callers that have to wait for memory get it in the order
    /// of their requests.
    pub(crate) async fn lock_memory(&self, mode: WaitMode<'_>, key: &[u8]) -> Result<Grant> {
        let engine = &self.engine;
        let bytes = (lock_bytes(key) + WAITING_BYTES) as u64;
        let memory = engine.reserve_in_turn(mode, Account::Transactions, bytes, LOCK_TIMEOUT).await;
        memory.ok_or_else(|| Error::transactions_in_memory(engine.budget.limit_bytes(Account::Transactions)))
    }

    /// Locks a row like [`lock_newest`](Self::lock_newest), but never waits. Returns an error if another owner has
    /// locked the row, or if the lock needs more memory than `memory` has.
    pub(crate) async fn lock_newest_if_free<'a>(
        &'a self,
        mode: WaitMode<'_>,
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
        // While the call looks for spilled changes, `keeps_lock` owns the lock.
        let lock = ManuallyDrop::new(lock.map_err(|HeldBy(_)| NotFree::Row)?);
        let request = LockRequest { owner: lock.owner, keyspace: lock.keyspace, key, mode: LockMode::Exclusive };
        if !self.keeps_lock(mode, &request).await.map_err(NotFree::Failed)? {
            return Err(NotFree::Row);
        }
        let lock = ManuallyDrop::into_inner(lock);
        let since = engine.clock.published();
        Ok(LockedRow { store: self, tree, lock, since, _memory: memory.take().expect("it was reserved") })
    }

    /// Locks a row outside of transactions, for a change that depends on its newest value.
    pub(crate) async fn lock_newest<'a>(
        &'a self,
        mode: WaitMode<'_>,
        tree: &'a CountedTree,
        key: &'a [u8],
    ) -> Result<LockedRow<'a>> {
        let (lock, memory) = self.lock_waiting(mode, self.next_transaction(), tree, key).await?;
        Ok(LockedRow { store: self, tree, lock, since: self.engine.clock.published(), _memory: memory })
    }
}

/// A row locked by a call outside of transactions. No other writer changes the row until this is dropped.
pub(crate) struct LockedRow<'a> {
    store: &'a Store,
    tree: &'a CountedTree,
    lock: RowLock<'a>,
    /// A timestamp before the row is read.
    since: Timestamp,
    /// The memory of the lock.
    _memory: Grant,
}

/// The reason why a row could not be locked without waiting.
pub(crate) enum NotFree {
    /// Another owner has locked the row.
    Row,
    Memory,
    Failed(Error),
}

impl LockedRow<'_> {
    /// Returns the newest committed value. Its writer held the row's lock until the change was published, so a newer
    /// value cannot be missed.
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
        let LockedRow { store, tree, lock, since, _memory } = self;
        let rows = [Row { tree, key: lock.key, change }];
        store.commit(mode, &rows, RowsSeen::Newest(since), durability, lock).await.map(drop)
    }

    /// Leaves the row unchanged. Waits until the value that the caller saw is as durable as a change would have been.
    pub(crate) async fn leave(self, mode: WaitMode<'_>, durability: Durability) -> Result<()> {
        let LockedRow { store, tree, lock, _memory, .. } = self;
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
