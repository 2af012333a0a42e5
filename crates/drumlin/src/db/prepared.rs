//! Prepared transactions: the first step of a commit that a coordinator decides about.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::handle::Handle;
use super::rows::ReadView;
use super::transaction::{RECORD_BYTES_ON_TASK_MAX, ROWS_ON_TASK_MAX, Transaction, rows_seen};
use super::{Database, Reader};
use crate::coverage;
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::seglog::Appended;
use crate::sync::Exclusive;
use crate::task::{Boxed, Rooted, WaitMode, ready};
use crate::txn::commit::Durability;
use crate::txn::commit::ready::Signal;
use crate::txn::prepared::{HeldLocks, check_id};
use crate::txn::read_set::ReadSet;

/// A transaction that is [prepared](Transaction::prepare) and not committed or aborted yet.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// let mut tx = db.begin()?;
/// tx.insert(&k, "a", "1")?;
/// tx.prepare("transfer 7")?;
/// let found = &db.prepared()?[0];
/// assert_eq!((&found.id[..], found.row_count), (&b"transfer 7"[..], 1));
/// assert_eq!(db.locks()?[0].holders, [found.number]);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PreparedTransaction {
    /// The id under which the transaction was prepared.
    pub id: Vec<u8>,
    /// The time since the prepare, by the clock of the system. Zero if the clock was set back since.
    pub age: Duration,
    /// The number of rows that the transaction changes.
    pub row_count: u64,
    /// The number under which [`Database::locks`] lists the transaction. Each opening of the database assigns a new
    /// one.
    pub number: u64,
}

/// A prepared transaction whose commit is [ready](Database::ready_prepared). It can be sent to another thread. Dropping
/// it leaves the transaction prepared. It keeps the database open, like any handle.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// # let mut tx = db.begin()?;
/// # tx.insert(&k, "a", "1")?;
/// tx.prepare("transfer 7")?;
/// let ready = db.ready_prepared("transfer 7")?;
/// std::thread::spawn(move || ready.commit()).join().unwrap()?;
/// assert_eq!(k.get("a")?.unwrap(), "1");
/// # Ok::<(), drumlin::Error>(())
/// ```
#[must_use = "dropping it leaves the transaction prepared"]
pub struct ReadyTransaction {
    /// The commit, which waits for its signal. It owns all that it has reserved.
    commit: Exclusive<Boxed<'static, Result<Timestamp>>>,
    signal: Arc<Signal>,
}

impl std::fmt::Debug for ReadyTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadyTransaction")
    }
}

impl ReadyTransaction {
    /// Commits the transaction, and returns the commit's timestamp. Takes a few microseconds and waits for nothing: the
    /// commit is visible when this returns and, like a [`Relaxed`](Durability::Relaxed) one, durable soon afterwards.
    /// [`Database::sync`] waits for that; it makes at most one sync for any number of commits. If a power cut comes
    /// first, the transaction is prepared again.
    ///
    /// If other commits have split or filled the pages of its rows since they were pinned, the call makes room for the
    /// rows, which may read a page from the disk.
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::Failed`] if the database has been closed or has failed since, or a read that
    /// failed. The transaction is still prepared then.
    pub fn commit(self) -> Result<Timestamp> {
        let ReadyTransaction { mut commit, signal } = self;
        signal.give();
        ready(commit.get_mut())
    }
}

impl Transaction {
    /// Prepares the transaction under an id of 1 to 140 bytes: its changes are durable when this returns, no reader
    /// sees them, and its rows stay locked, until [`Database::commit_prepared`] or [`Database::abort_prepared`] is
    /// called with the id. Any thread may do so, at any time, and also after the database was closed or its process was
    /// killed: an opening takes the locks again before it returns.
    ///
    /// This is the first phase of a commit over several databases. A coordinator prepares a transaction in each of
    /// them, records its decision, and then commits or aborts all of them. Until it has decided, all calls that change
    /// a locked row wait, and fail with [`Error::LockTimeout`].
    ///
    /// The prepare is durable even if the transaction's own durability is [`Relaxed`](Durability::Relaxed). It takes
    /// one sync, which concurrent commits share. A prepared transaction keeps no part of the log, and only its locks in
    /// memory.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let accounts = db.keyspace("accounts")?;
    /// let mut tx = db.begin()?;
    /// tx.insert(&accounts, "ann", "5")?;
    /// tx.prepare("transfer 7")?;
    /// assert!(accounts.get("ann")?.is_none());
    /// db.commit_prepared("transfer 7")?;
    /// assert_eq!(accounts.get("ann")?.unwrap(), "5");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AlreadyPrepared`] if the id is in use; [`Error::Invalid`] for an id that is empty or too long, or if a
    /// [serializable](crate::Isolation::Serializable) transaction has read rows without locking them, because nothing
    /// would keep them unchanged until its commit, or if the transaction has removed a range; [`Error::MemoryInUse`] if
    /// the locks of prepared transactions would take more than a sixteenth of the memory budget; the errors of
    /// [`commit`](Transaction::commit). After any of these errors, nothing is prepared, and none of the transaction's
    /// changes remain. [`Error::OutcomeUnknown`] if only reopening the database can tell whether it was prepared.
    pub fn prepare(self, id: impl AsRef<[u8]>) -> Result<()> {
        ready(self.prepare_in(WaitMode::Blocking, id.as_ref()))
    }

    #[inline(never)]
    pub(crate) fn prepare_in(self, mode: WaitMode<'_>, id: &[u8]) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            check_id(id)?;
            self.check_conflict()?;
            let time = self.store()?.engine.backend.wall_clock();
            let (handle, logged) = match mode {
                WaitMode::Tasks(tasks)
                    if self.writes().set.is_longer_than(ROWS_ON_TASK_MAX, RECORD_BYTES_ON_TASK_MAX) =>
                {
                    let id = id.to_vec();
                    let body = move || ready(self.apply_prepare(WaitMode::Blocking, true, &id, time));
                    tasks.committers.run(coverage::on_behalf(body)).await?
                }
                _ => self.apply_prepare(mode, mode.is_task(), id, time).await?,
            };
            handle.store_here().engine.await_written(mode, &logged, Durability::Full).await.map(drop)
        })
    }

    /// Like [`prepare`](Transaction::prepare), as if it were called at this time since 1970.
    pub(super) fn prepare_at(self, id: &[u8], time: Duration) -> Result<()> {
        check_id(id)?;
        self.check_conflict()?;
        let (handle, logged) = ready(self.apply_prepare(WaitMode::Blocking, false, id, time))?;
        ready(handle.store_here().engine.await_written(WaitMode::Blocking, &logged, Durability::Full)).map(drop)
    }

    /// Prepares the transaction and requests the log write.
    async fn apply_prepare(
        self,
        mode: WaitMode<'_>,
        for_task: bool,
        id: &[u8],
        time: Duration,
    ) -> Result<(Arc<Handle>, Appended)> {
        let Transaction { reader, mut locks, memory, .. } = self;
        let Reader { handle, view: ReadView { horizon, own, reads, .. }, .. } = reader;
        let store = handle.store()?;
        horizon.check()?;
        if reads.as_deref().is_some_and(|reads| !ReadSet::end(reads).is_empty()) {
            return Err(Error::Invalid(
                "a serializable transaction can't be prepared once it has read rows without locking them: read them \
                 with get_for_share or get_for_update"
                    .into(),
            ));
        }
        locks.end_pending();
        let writes = &own.as_ref().expect("a transaction has writes").set;
        if writes.range_count() > 0 {
            return Err(Error::Invalid("a transaction that has removed a range can't be prepared".into()));
        }
        if !writes.spilled().is_empty() {
            let limit_bytes = store.engine.budget.transaction_memory_max();
            return Err(Error::prepared_too_large(writes.position(), writes.spilled().bytes(), limit_bytes));
        }
        let seen = rows_seen(&horizon, &locks);
        let logged = store.prepare(mode, for_task, id, time, writes, seen, HeldLocks { locks, memory }).await?;
        Ok((handle, logged))
    }
}

impl Database {
    /// Returns the [prepared](Transaction::prepare) transactions, ordered by their ids. A transaction that is being
    /// prepared is listed once that is durable. O(prepared transactions).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let decided = std::collections::HashSet::<Vec<u8>>::new();
    /// // After a restart, a coordinator ends what it finds.
    /// for found in db.prepared()? {
    ///     if decided.contains(&found.id) {
    ///         db.commit_prepared(&found.id)?;
    ///     } else {
    ///         db.abort_prepared(&found.id)?;
    ///     }
    /// }
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn prepared(&self) -> Result<Vec<PreparedTransaction>> {
        let store = self.store()?;
        let now = store.engine.backend.wall_clock();
        let public = |(id, facts): (Vec<u8>, crate::txn::prepared::PreparedFacts)| PreparedTransaction {
            id,
            age: now.saturating_sub(facts.time),
            row_count: u64::from(facts.row_count),
            number: facts.owner.0,
        };
        Ok(store.prepared().into_iter().map(public).collect())
    }

    /// Commits the transaction that was [prepared](Transaction::prepare) under this id, with the database's default
    /// durability ([`Config::durability`](crate::Config::durability)). Returns the commit's timestamp.
    ///
    /// # Errors
    /// [`Error::NotPrepared`] if there is no such transaction; [`Error::PreparedInUse`] if another call is ending it;
    /// [`Error::DiskFull`], [`Error::MemoryInUse`], [`Error::Closed`], [`Error::Failed`]; [`Error::ReadOnly`]. After
    /// any of these errors, the transaction is as prepared as before. [`Error::OutcomeUnknown`] if only reopening the
    /// database can tell whether it was committed or is still prepared.
    pub fn commit_prepared(&self, id: impl AsRef<[u8]>) -> Result<Timestamp> {
        let durability = self.handle.store_here().durability;
        ready(self.commit_prepared_in(WaitMode::Blocking, id.as_ref(), durability))
    }

    /// Like [`commit_prepared`](Database::commit_prepared), with the given durability. A coordinator whose own log has
    /// the decision can commit with [`Relaxed`](Durability::Relaxed): if a power cut takes the commit back, the
    /// transaction is prepared again, and the coordinator repeats its decision.
    ///
    /// ```
    /// use drumlin::Durability;
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// # let mut tx = db.begin()?;
    /// # tx.insert(&k, "a", "1")?;
    /// tx.prepare("transfer 7")?;
    /// db.commit_prepared_with("transfer 7", Durability::Relaxed)?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`commit_prepared`](Database::commit_prepared).
    pub fn commit_prepared_with(&self, id: impl AsRef<[u8]>, durability: Durability) -> Result<Timestamp> {
        ready(self.commit_prepared_in(WaitMode::Blocking, id.as_ref(), durability))
    }

    #[inline(never)]
    pub(crate) fn commit_prepared_in(
        &self,
        mode: WaitMode<'_>,
        id: &[u8],
        durability: Durability,
    ) -> Rooted<impl Future<Output = Result<Timestamp>>> {
        Rooted::new(async move {
            let store = self.store()?;
            let is_long = store.prepared.facts(id).is_some_and(|facts| {
                facts.row_count as usize > ROWS_ON_TASK_MAX || facts.changes_bytes > RECORD_BYTES_ON_TASK_MAX
            });
            let logged = match mode {
                WaitMode::Tasks(tasks) if is_long => {
                    let (store, id) = (Arc::clone(store), id.to_vec());
                    let body = move || ready(store.commit_prepared(WaitMode::Blocking, true, &id, durability));
                    tasks.committers.run(coverage::on_behalf(body)).await?
                }
                _ => store.commit_prepared(mode, mode.is_task(), id, durability).await?,
            };
            store.engine.await_written(mode, &logged, durability).await
        })
    }

    /// Makes the commit of a [prepared](Transaction::prepare) transaction ready, so that
    /// [`ReadyTransaction::commit`] takes a few microseconds. Use it if the order of several commits, also in other
    /// databases, is to be fixed under one lock: make all of them ready first, then lock, and commit each.
    ///
    /// Reads the transaction's rows and pins their pages, and reserves space on the disk and in the log. At most 16
    /// transactions of a database can be ready at the same time; the next call waits for up to 10 seconds until one is
    /// committed or dropped. Other commits do not wait for a ready one, except for its rows, but on a full disk they
    /// can't have the space that it has reserved. A program that leaks one makes the others fewer.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// for id in ["transfer 7", "transfer 8"] {
    ///     let mut tx = db.begin()?;
    ///     tx.insert(&k, id, "1")?;
    ///     tx.prepare(id)?;
    /// }
    /// let (first, second) = (db.ready_prepared("transfer 7")?, db.ready_prepared("transfer 8")?);
    /// let second = second.commit()?;
    /// assert!(second < first.commit()?);
    /// db.sync()?; // both are durable
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`commit_prepared`](Database::commit_prepared). [`Error::MemoryInUse`] also if ready transactions
    /// would pin more than an eighth of the pages in memory, or replace too many rows together, or if 16 stay ready for
    /// 10 seconds.
    pub fn ready_prepared(&self, id: impl AsRef<[u8]>) -> Result<ReadyTransaction> {
        ready(self.ready_prepared_in(WaitMode::Blocking, id.as_ref()))
    }

    #[inline(never)]
    pub(crate) fn ready_prepared_in(
        &self,
        mode: WaitMode<'_>,
        id: &[u8],
    ) -> Rooted<impl Future<Output = Result<ReadyTransaction>>> {
        Rooted::new(async move {
            let signal = Arc::new(Signal::default());
            let (handle, id, own_signal) = (Arc::clone(&self.handle), id.to_vec(), Arc::clone(&signal));
            let is_task = mode.is_task();
            let mut commit: Boxed<'static, Result<Timestamp>> = Box::pin(async move {
                let store = handle.store()?;
                let mode = if is_task { WaitMode::Tasks(&store.engine.tasks) } else { WaitMode::Blocking };
                store.commit_at_signal(mode, &id, &own_signal).await
            });
            let is_ready = |context: &mut Context<'_>| match commit.as_mut().poll(context) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) => unreachable!("a commit is applied without its signal"),
                Poll::Pending if signal.is_awaited() => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            };
            poll_fn(is_ready).await?;
            Ok(ReadyTransaction { commit: Exclusive::new(commit), signal })
        })
    }

    /// Aborts the transaction that was [prepared](Transaction::prepare) under this id: discards its changes and
    /// releases its locks.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// # let mut tx = db.begin()?;
    /// # tx.insert(&k, "a", "1")?;
    /// tx.prepare("transfer 7")?;
    /// db.abort_prepared("transfer 7")?;
    /// assert!(k.get("a")?.is_none() && db.prepared()?.is_empty());
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`commit_prepared`](Database::commit_prepared).
    pub fn abort_prepared(&self, id: impl AsRef<[u8]>) -> Result<()> {
        ready(self.abort_prepared_in(WaitMode::Blocking, id.as_ref()))
    }

    #[inline(never)]
    pub(crate) fn abort_prepared_in(&self, mode: WaitMode<'_>, id: &[u8]) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            let store = self.store()?;
            let logged = store.abort_prepared(mode, id, store.durability).await?;
            store.engine.await_written(mode, &logged, store.durability).await.map(drop)
        })
    }
}
