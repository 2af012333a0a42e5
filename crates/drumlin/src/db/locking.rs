//! Locks rows within a transaction.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::locks::Interrupter;
use super::rows::Horizon;
use super::transaction::Transaction;
use super::{Keyspace, Value};
#[cfg(doc)]
use super::{Reader, TxOptions};
use crate::error::{Error, Result};
use crate::format::KeyspaceId;
use crate::store::{OpenKeyspace, Store};
use crate::task::{Rooted, WaitMode, ready, turn};
use crate::txn::locks::{Granted, HeldBy, LockMode, LockRequest};
use crate::txn::row_locks::{PendingLock, RowLock, RowLocks};
use crate::txn::snapshots::SnapshotHandle;

impl Transaction {
    /// Like [`get`](Reader::get), but also locks the row: no other transaction can change it until this one ends. With
    /// a [`lock_timeout`](TxOptions::lock_timeout) of zero, a caller can skip rows that other transactions have locked;
    /// see the example at [`LockHolder`](crate::LockHolder).
    ///
    /// # Errors
    /// The errors of [`get`](Reader::get) and [`insert`](Transaction::insert).
    pub fn get_for_update(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.get_locked_in(WaitMode::Blocking, keyspace, key.as_ref(), LockMode::Exclusive))
    }

    /// Like [`get`](Reader::get), but also takes a shared lock on the row: until this transaction ends, no other
    /// transaction can change the row, but others can share the lock. A transaction that holds a shared lock can write
    /// the row; the write waits until the other holders have released their locks. If two holders write, one of them
    /// fails with [`Error::Conflict`].
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let (customers, orders) = (db.keyspace("customers")?, db.keyspace("orders")?);
    /// customers.insert("ann", "")?;
    /// // The customer can't be removed before the order is committed, but other orders can be placed.
    /// db.transact(|tx| match tx.get_for_share(&customers, "ann")? {
    ///     Some(_) => tx.insert(&orders, "1", "ann"),
    ///     None => Ok(()),
    /// })?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`get_for_update`](Transaction::get_for_update).
    pub fn get_for_share(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.get_locked_in(WaitMode::Blocking, keyspace, key.as_ref(), LockMode::Shared))
    }

    /// Locks a row, whether it exists or not, without reading it. Waits up to [`lock_timeout`](TxOptions::lock_timeout)
    /// if another transaction holds a conflicting lock.
    ///
    /// # Errors
    /// Same as [`insert`](Transaction::insert).
    pub fn lock_row(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, lock_mode: LockMode) -> Result<()> {
        ready(self.lock_row_in(WaitMode::Blocking, keyspace, key.as_ref(), lock_mode))
    }

    pub(crate) async fn lock_row_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        lock_mode: LockMode,
    ) -> Result<()> {
        let open = self.open(keyspace)?;
        self.make_room_for_lock(mode, key).await?;
        self.lock_as(mode, open, key, lock_mode).await
    }

    /// Locks a row like [`lock_row`](Transaction::lock_row) and returns `true`. If it would have to wait for another
    /// transaction, returns `false` immediately.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// use drumlin::LockMode;
    ///
    /// # let jobs = db.keyspace("jobs")?;
    /// # ["a", "b"].into_iter().try_for_each(|job| jobs.insert(job, "open"))?;
    /// // Each transaction takes the first job that is not locked.
    /// let mut transactions = [db.begin()?, db.begin()?];
    /// for tx in &mut transactions {
    ///     for job in jobs.range(..) {
    ///         if tx.try_lock_row(&jobs, job?.0, LockMode::Exclusive)? { break }
    ///     }
    /// }
    /// assert_eq!(db.locks()?.len(), 2);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`insert`](Transaction::insert), except [`Error::LockTimeout`].
    pub fn try_lock_row(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, lock_mode: LockMode) -> Result<bool> {
        ready(self.try_lock_row_in(WaitMode::Blocking, keyspace, key.as_ref(), lock_mode))
    }

    pub(crate) async fn try_lock_row_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        lock_mode: LockMode,
    ) -> Result<bool> {
        self.check_conflict()?;
        let open = self.open(keyspace)?;
        self.make_room_for_lock(mode, key).await?;
        let result = self.try_lock(mode, open, key, lock_mode, None).await;
        self.remember(result)
    }

    /// Sets the [`lock_timeout`](TxOptions::lock_timeout) for subsequent calls.
    pub fn set_lock_timeout(&mut self, timeout: Duration) {
        self.options.lock_timeout = timeout;
    }

    /// Returns the number that identifies the transaction in [`Database::locks`](crate::Database::locks) and
    /// [`Config::on_lock_wait`](crate::Config::on_lock_wait). It is unique until the database is closed.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.id.0
    }

    /// Returns a handle that other threads can use to end this transaction's waits for row locks.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// use drumlin::Error;
    ///
    /// # let k = db.keyspace("k")?;
    /// let (mut holder, mut waiter) = (db.begin()?, db.begin()?);
    /// holder.insert(&k, "a", "1")?;
    /// let interrupter = waiter.interrupter();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || interrupter.interrupt());
    ///     assert!(matches!(waiter.insert(&k, "a", "2"), Err(Error::Interrupted { .. })));
    /// });
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    #[must_use]
    pub fn interrupter(&mut self) -> Interrupter {
        Interrupter { interrupt: Arc::clone(self.interrupt.get_or_insert_default()) }
    }

    /// Takes a new snapshot of the newest commits. The transaction retains its changes, locks and savepoints. Later
    /// reads see the new snapshot. Later writes conflict only if another transaction has changed the row since then.
    /// Open ranges and value readers stay on the old snapshot. A transaction at
    /// [`Snapshot`](crate::Isolation::Snapshot) isolation that takes a new snapshot before each statement behaves like
    /// SQL `READ COMMITTED` with consistent statements.
    ///
    /// At [`ReadCommitted`](crate::Isolation::ReadCommitted), each read already sees the newest commits, and this call
    /// does nothing.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut tx = db.begin()?;
    /// tx.insert(&k, "a", "1")?;
    /// k.insert("b", "2")?;
    /// assert!(!tx.contains_key(&k, "b")?);
    /// tx.renew_snapshot()?;
    /// assert!(tx.contains_key(&k, "a")? && tx.contains_key(&k, "b")?);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a [serializable](crate::Isolation::Serializable) transaction, which must read at a single
    /// snapshot; [`Error::Closed`].
    pub fn renew_snapshot(&mut self) -> Result<()> {
        if self.reader.view.reads.is_some() {
            return Err(Error::Invalid(
                "a serializable transaction reads at one snapshot, and can't take a new one. Begin it with \
                 Isolation::Snapshot"
                    .into(),
            ));
        }
        if self.reader.view.horizon.snapshot().is_some() {
            let store = self.store()?;
            let renewed = store.open_snapshot(|| store.engine.clock.published());
            self.reader.view.horizon = Horizon::Fixed(renewed);
        }
        Ok(())
    }

    #[inline(never)]
    pub(crate) fn get_locked_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        lock_mode: LockMode,
    ) -> Rooted<impl Future<Output = Result<Option<Value>>>> {
        Rooted::new(async move {
            self.lock_row_in(mode, keyspace, key, lock_mode).await?;
            // The row can't change while it is locked, so the commit does not have to validate this read.
            self.reader.rows(keyspace)?.get_unrecorded(mode, key).await
        })
    }

    /// Takes an exclusive lock on a row; see [`lock_as`](Self::lock_as).
    pub(super) async fn lock(&mut self, mode: WaitMode<'_>, open: &OpenKeyspace, key: &[u8]) -> Result<()> {
        self.lock_as(mode, open, key, LockMode::Exclusive).await
    }

    /// Locks a row. If another transaction has changed the row since this one's snapshot, fails with a conflict and
    /// records it, because a conflict ends the transaction.
    async fn lock_as(
        &mut self,
        mode: WaitMode<'_>,
        open: &OpenKeyspace,
        key: &[u8],
        lock_mode: LockMode,
    ) -> Result<()> {
        self.check_conflict()?;
        if let Some(planned) = &mut self.locks.planned {
            planned.add(key);
            return self.reader.store()?.check_write(open, key);
        }
        if !self.takes_locks {
            return self.reader.store()?.check_write(open, key);
        }
        let timeout = Some(self.options.lock_timeout);
        let result = self.try_lock(mode, open, key, lock_mode, timeout).await;
        self.remember(result).map(|is_locked| debug_assert!(is_locked, "it waited"))
    }

    /// Records the result if it is a shortage of memory, or a conflict, which ends the transaction.
    fn remember<T>(&mut self, result: Result<T>) -> Result<T> {
        let result = self.reader.store()?.contention.noting(result);
        if let Err(Error::Conflict { reason }) = result {
            self.conflict = Some(reason);
        }
        self.reader.view.shortage.noting(result)
    }

    /// Locks a row, waiting up to `timeout`. If `timeout` is `None` and another transaction has locked the row, returns
    /// `false` instead of waiting.
    async fn try_lock(
        &mut self,
        mode: WaitMode<'_>,
        open: &OpenKeyspace,
        key: &[u8],
        lock_mode: LockMode,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        // Never clone a database handle here: a leaked future would keep the database open forever.
        let Transaction { reader, id, locks, interrupt, .. } = self;
        let store = reader.store()?;
        store.check_write(open, key)?;
        let tree = &open.tree;
        locks.end_pending();
        let request = LockRequest { owner: *id, keyspace: tree.pages.id, key, mode: lock_mode };
        let tried = store.engine.locks.try_request(&request);
        // Another transaction may have the lock although it is not in the lock table.
        let has_spilled = store.engine.spilled_locks.may_have_row(*id, tree.pages.id, key);
        let snapshot = reader.view.horizon.snapshot();
        let may_have_changed = |snapshot: &Arc<SnapshotHandle>| store.engine.may_have_changed(tree, snapshot.timestamp);
        match tried {
            Ok(Granted::AlreadyHeld) => return Ok(true),
            Ok(Granted::Acquired) if !has_spilled && !snapshot.is_some_and(may_have_changed) => {
                locks.add(tree.pages.id, key, lock_mode);
                return Ok(true);
            }
            Err(HeldBy(_)) if timeout.is_none() => return Ok(false),
            Ok(Granted::Acquired) | Err(HeldBy(_)) => {}
        }
        let is_upgrade = tried.is_err() && store.engine.locks.is_held_by(*id, tree.pages.id, key);
        locks.pending = Some(PendingLock { keyspace: tree.pages.id, key: key.into(), is_upgrade });
        let mut granted = Granted::Acquired;
        if tried.is_err() {
            granted = store.lock_row(mode, &request, timeout.unwrap_or_default(), interrupt.as_deref()).await?;
        } else if has_spilled && !store.keeps_lock(mode, &request).await? {
            let Some(timeout) = timeout else {
                locks.pending = None;
                return Ok(false);
            };
            granted = store.lock_row(mode, &request, timeout, interrupt.as_deref()).await?;
        }
        if is_upgrade || granted == Granted::AlreadyHeld {
            // The row was checked when the shared lock was acquired, or the lock was restored for this transaction. The
            // row has not changed since, because the lock protects it.
            locks.pending = None;
            return Ok(true);
        }
        // If the check below fails, the lock must be dropped. Otherwise, the next call would find the lock held and
        // skip the check.
        let lock = RowLock::of_held(&store.engine.locks, &request);
        if let Some(snapshot) = snapshot.filter(|snapshot| may_have_changed(snapshot)) {
            let changed = store.engine.changed_since(mode, tree, key, snapshot.timestamp).await?;
            snapshot.check()?;
            if changed {
                return Err(Error::Conflict { reason: "another transaction changed a row after this one began" });
            }
        }
        locks.pending = None;
        locks.take(lock, lock_mode);
        Ok(true)
    }

    /// Locks a row and returns `true`. Returns `false`, without waiting, if another transaction has locked the row or
    /// has changed it since this transaction's snapshot.
    pub(super) async fn lock_if_free(&mut self, mode: WaitMode<'_>, keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
        self.check_conflict()?;
        let open = self.open(keyspace)?;
        self.make_room(mode, open, key, None, 0).await?;
        match self.try_lock(mode, open, key, LockMode::Exclusive, None).await {
            Err(Error::Conflict { .. }) => Ok(false),
            locked => self.reader.view.shortage.noting(locked),
        }
    }

    /// Acquires the locks of a batch in the order of its rows. After a deadlock, the batch releases its locks and
    /// starts over. This is safe, because a batch has read nothing.
    pub(super) async fn lock_planned(&mut self, mode: WaitMode<'_>) -> Result<()> {
        let Some(planned) = self.locks.planned.take() else {
            let locked = if self.takes_locks { self.lock_removed(mode).await } else { Ok(()) };
            return self.remember(locked);
        };
        let store = Arc::clone(self.store()?);
        let deadline = store.now().saturating_add(self.options.lock_timeout);
        let mut attempt = 0;
        loop {
            self.locks.reserve(&planned);
            let mut locked = self.lock_rows(mode, &store, deadline).await;
            if locked.is_ok() {
                locked = self.lock_removed(mode).await;
            }
            match locked {
                Err(Error::Conflict { .. }) if store.now() < deadline => {
                    self.locks = RowLocks::new(&store.engine, self.id);
                    attempt += 1;
                    self.reader.handle.pause(mode, attempt).await;
                }
                locked => {
                    // A batch has read nothing, so it does not matter which commits came before its locks.
                    self.locks.since = None;
                    return locked;
                }
            }
        }
    }

    /// Waits for the transactions that have locked rows of the removed ranges, by locking these rows.
    async fn lock_removed(&mut self, mode: WaitMode<'_>) -> Result<()> {
        if self.writes().set.range_count() == 0 {
            return Ok(());
        }
        let store = Arc::clone(self.store()?);
        let locks = &store.engine.locks;
        let mut held: Vec<(KeyspaceId, Box<[u8]>)> = Vec::new();
        for (tree, removed) in self.writes().set.removals() {
            let keyspace = tree.pages.id;
            held.extend(locks.held_by_others(self.id, keyspace, removed).into_iter().map(|key| (keyspace, key)));
            for other in store.engine.spilled_locks.others(self.id) {
                let (writes, keys) = (other.writes(), removed.clone());
                // Waiting for one row of the transaction is waiting for its end.
                if let Some(key) = mode.run(move || writes.any_key_in(keyspace, &keys)).await? {
                    other.restore(locks, None, keyspace, &key)?;
                    held.push((keyspace, key));
                }
            }
        }
        let deadline = store.now().saturating_add(self.options.lock_timeout);
        for (keyspace, key) in held {
            mode.work(turn::LOCK_UNITS).await;
            // If the keyspace has been dropped, the commit will fail.
            let Some(open) = store.keyspace_with_id(keyspace) else { continue };
            crate::coverage::mark!("a range delete waited for a locked row");
            self.secure_memory(&key, None)?;
            let timeout = Some(deadline.saturating_sub(store.now()));
            self.try_lock(mode, &open, &key, LockMode::Exclusive, timeout).await?;
        }
        Ok(())
    }

    async fn lock_rows(&mut self, mode: WaitMode<'_>, store: &Store, deadline: Duration) -> Result<()> {
        let Transaction { reader, id, locks, .. } = self;
        let writes = reader.view.own.as_ref().expect("a transaction has writes");
        for (tree, key, _) in writes.set.rows() {
            let keyspace = tree.pages.id;
            mode.work(turn::LOCK_UNITS).await;
            let request = LockRequest { owner: *id, keyspace, key, mode: LockMode::Exclusive };
            let is_acquired = store.engine.locks.try_request(&request).is_ok();
            // Look for spilled changes last: their owner publishes them before it releases its locks.
            if !is_acquired || store.engine.spilled_locks.may_have_row(*id, keyspace, key) {
                locks.pending = Some(PendingLock { keyspace, key: key.into(), is_upgrade: false });
                if !is_acquired || !store.keeps_lock(mode, &request).await? {
                    let timeout = deadline.saturating_sub(store.now());
                    store.lock_row(mode, &request, timeout, None).await?;
                }
                locks.pending = None;
            }
            locks.add(keyspace, key, LockMode::Exclusive);
        }
        Ok(())
    }

    /// Locks the row, whether it exists or not, and returns `true` if it exists. Does not read its value.
    pub(super) async fn contains_for_update_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<bool> {
        let open = self.open(keyspace)?;
        self.make_room_for_lock(mode, key).await?;
        self.lock(mode, open, key).await?;
        self.reader.rows(keyspace)?.contains_unrecorded(mode, key).await
    }
}
