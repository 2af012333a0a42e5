//! Runs transactions, and retries them after conflicts with other transactions.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::handle::Handle;
use super::{Database, Transaction, TxOptions};
use crate::error::{Error, Recourse, Result};
use crate::task::{WaitMode, ready};
use crate::txn::running::BodyOf;

/// The maximum number of times that [`Database::transact`] runs a transaction if each run has a conflict or a shortage
/// of memory.
const ATTEMPTS_MAX: u32 = 100;

/// The maximum number of runs of a transaction if its snapshot is ended during each run. More runs are unlikely to
/// help, because each one probably takes as long as the first.
const TOO_OLD_ATTEMPTS_MAX: u32 = 3;

/// One run of the body of [`Database::transact_async`]: `Box::pin(async move { … })`. The box tells the compiler that
/// the future is `Send`, which it cannot infer for the futures of an async closure.
///
/// ```
/// # let db = drumlin::Config::in_memory().open("")?;
/// use drumlin::{Attempt, Keyspace, Transaction};
///
/// # let k = db.keyspace("k")?;
/// fn put(tx: &mut Transaction, k: Keyspace) -> Attempt<'_, ()> {
///     Box::pin(async move { tx.insert_async(&k, "a", "1").await })
/// }
///
/// smol::block_on(db.transact_async(|tx| put(tx, k.clone())))?;
/// # Ok::<(), drumlin::Error>(())
/// ```
pub type Attempt<'t, T, E = Error> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 't>>;

impl Database {
    /// Runs `body` in a transaction and commits it. Retries after a conflict, or if other calls use up the memory that
    /// it needs: up to 100 runs, with pauses that double from 50 µs to 50 ms. If the [snapshot was
    /// ended](Error::SnapshotTooOld), there are at most three runs, because each is likely to take as long as the
    /// first. Does not retry after [`Error::LockTimeout`], because the run has already waited
    /// [`TxOptions::lock_timeout`] for a row, nor after [`TxOptions::retry_timeout`] has passed.
    ///
    /// Any other error ends the transaction and discards its changes. [`Transaction::conflict`] requests a retry. For a
    /// body with its own error type, use [`try_transact`](Database::try_transact).
    ///
    /// ```
    /// // The caller may use any error type, because the body returns Drumlin's own.
    /// fn count_visit(db: &drumlin::Database) -> Result<u8, Box<dyn std::error::Error>> {
    ///     let k = db.keyspace("k")?;
    ///     let visits = db.transact(|tx| {
    ///         let visits = tx.get_for_update(&k, "visits")?.map_or(0, |bytes| bytes[0]) + 1;
    ///         tx.insert(&k, "visits", [visits])?;
    ///         Ok(visits)
    ///     })?;
    ///     Ok(visits)
    /// }
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// assert_eq!(count_visit(&db)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The rows that the body has written stay locked until it returns, so all writes to them must go through `tx`: a
    /// `keyspace.insert` of such a row fails with [`Error::LockTimeout`].
    ///
    /// # Errors
    /// The error of `body` or of the commit, from the last run.
    pub fn transact<T>(&self, body: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        self.transact_with(self.tx_options(), body)
    }

    /// Like [`transact`](Database::transact), for a body with its own error type. This may be any type that a Drumlin
    /// [`Error`] converts into, such as `anyhow::Error`. The body is retried even if it wraps or replaces the Drumlin
    /// error, because the transaction itself records that it had a conflict.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let accounts = db.keyspace("accounts")?;
    /// #[derive(Debug)]
    /// enum Refused {
    ///     NoMoney,
    ///     Store(drumlin::Error),
    /// }
    ///
    /// impl From<drumlin::Error> for Refused {
    ///     fn from(error: drumlin::Error) -> Refused {
    ///         Refused::Store(error)
    ///     }
    /// }
    ///
    /// let paid = db.try_transact(|tx| {
    ///     let Some(money) = tx.get_for_update(&accounts, "ann")? else { return Err(Refused::NoMoney) };
    ///     tx.insert(&accounts, "bob", money)?;
    ///     tx.remove(&accounts, "ann")?;
    ///     Ok(())
    /// });
    /// assert!(matches!(paid, Err(Refused::NoMoney)));
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// A body that never constructs an error itself must name the error type, because `?` alone does not tell the
    /// compiler what to convert into.
    ///
    /// ```
    /// type AnyError = Box<dyn std::error::Error>; // or anyhow::Error
    ///
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// # k.insert("visits", "7")?;
    /// let visits = db.try_transact(|tx| -> Result<u32, AnyError> {
    ///     let visits = match tx.get_for_update(&k, "visits")? {
    ///         Some(text) => std::str::from_utf8(&text)?.parse::<u32>()? + 1,
    ///         None => 1,
    ///     };
    ///     tx.insert(&k, "visits", visits.to_string())?;
    ///     Ok(visits)
    /// })?;
    /// assert_eq!(visits, 8);
    /// # Ok::<(), AnyError>(())
    /// ```
    ///
    /// # Errors
    /// The error of `body`, or the converted error of the commit, from the last run.
    pub fn try_transact<T, E>(&self, body: impl FnMut(&mut Transaction) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + 'static,
    {
        self.transact_with(self.tx_options(), body)
    }

    /// Like [`try_transact`](Database::try_transact), with the given options.
    ///
    /// # Errors
    /// Same as [`try_transact`](Database::try_transact).
    pub fn transact_with<T, E>(
        &self,
        options: TxOptions,
        mut body: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error> + 'static,
    {
        let mut attempts = Attempts::new(&self.handle, options);
        loop {
            let mut transaction = self.begin_with(options)?;
            let returned = {
                let _running = transaction.body().enter();
                body(&mut transaction)
            };
            if let ControlFlow::Break(result) = ready(attempts.end(WaitMode::Blocking, transaction, returned)) {
                return result;
            }
        }
    }

    /// Like [`transact`](Database::transact), as a future that can be spawned on multi-threaded executors. `body`
    /// returns a boxed future that owns everything it uses. For an `async |tx| …` closure, see
    /// [`transact_local`](Database::transact_local).
    ///
    /// The body is called once per run, so it must clone its borrowed arguments for each future. Clones of handles are
    /// cheap; share large arguments in an [`Arc`](std::sync::Arc).
    ///
    /// ```
    /// use drumlin::{Database, Keyspace};
    ///
    /// async fn count_visit(db: &Database, visits: &Keyspace, page: &str) -> drumlin::Result<u8> {
    ///     db.transact_async(|tx| {
    ///         let (visits, page) = (visits.clone(), page.to_owned());
    ///         Box::pin(async move {
    ///             let count = tx.get_for_update_async(&visits, &page).await?.map_or(0, |bytes| bytes[0]) + 1;
    ///             tx.insert_async(&visits, &page, [count]).await?;
    ///             Ok(count)
    ///         })
    ///     })
    ///     .await
    /// }
    ///
    /// # smol::block_on(async {
    /// # let db = drumlin::Config::in_memory().open_async("").await?;
    /// let visits = db.keyspace_async("visits").await?;
    /// assert_eq!(count_visit(&db, &visits, "/index.html").await?, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// # })?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`transact`](Database::transact).
    pub async fn transact_async<T>(
        &self,
        body: impl for<'t> FnMut(&'t mut Transaction) -> Attempt<'t, T>,
    ) -> Result<T> {
        self.transact_with_async(self.tx_options(), body).await
    }

    /// Like [`transact_async`](Database::transact_async), for a body with its own error type: see
    /// [`try_transact`](Database::try_transact). A body that never constructs an error itself must name the error type:
    /// `Ok::<_, anyhow::Error>(visits)`.
    ///
    /// # Errors
    /// Same as [`try_transact`](Database::try_transact).
    pub async fn try_transact_async<T, E>(
        &self,
        body: impl for<'t> FnMut(&'t mut Transaction) -> Attempt<'t, T, E>,
    ) -> Result<T, E>
    where
        E: From<Error> + 'static,
    {
        self.transact_with_async(self.tx_options(), body).await
    }

    /// Like [`try_transact_async`](Database::try_transact_async), with the given options.
    ///
    /// # Errors
    /// Same as [`try_transact`](Database::try_transact).
    pub async fn transact_with_async<T, E>(
        &self,
        options: TxOptions,
        mut body: impl for<'t> FnMut(&'t mut Transaction) -> Attempt<'t, T, E>,
    ) -> Result<T, E>
    where
        E: From<Error> + 'static,
    {
        let mut attempts = Attempts::new(&self.handle, options);
        loop {
            let mut transaction = self.begin_with(options)?;
            let body_of = transaction.body();
            let returned = run(body_of, || body(&mut transaction)).await;
            let mode = self.store()?.as_task().await;
            if let ControlFlow::Break(result) = attempts.end(mode, transaction, returned).await {
                return result;
            }
        }
    }

    /// Like [`transact_async`](Database::transact_async), with an async closure, which may borrow what it uses. Its
    /// future is not `Send`: it can be awaited in `main`, in `block_on` and in tasks that stay on one thread, but
    /// cannot be spawned on a multi-threaded executor. If the compiler says that an *implementation of `Send` is not
    /// general enough*, use `transact_async` instead.
    ///
    /// ```
    /// # smol::block_on(async {
    /// # let db = drumlin::Config::in_memory().open_async("").await?;
    /// let counters = db.keyspace_async("counters").await?;
    /// let visits = db
    ///     .transact_local(async |tx| {
    ///         let visits = tx.get_async(&counters, "visits").await?.map_or(0, |bytes| bytes[0]) + 1;
    ///         tx.insert_async(&counters, "visits", [visits]).await?;
    ///         Ok(visits)
    ///     })
    ///     .await?;
    /// assert_eq!(visits, 1);
    /// # Ok::<(), drumlin::Error>(())
    /// # })?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`transact`](Database::transact).
    pub async fn transact_local<T>(&self, body: impl AsyncFnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        self.transact_with_local(self.tx_options(), body).await
    }

    /// Like [`transact_local`](Database::transact_local), for a body with its own error type: see
    /// [`try_transact`](Database::try_transact).
    ///
    /// # Errors
    /// Same as [`try_transact`](Database::try_transact).
    pub async fn try_transact_local<T, E>(
        &self,
        body: impl AsyncFnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error> + 'static,
    {
        self.transact_with_local(self.tx_options(), body).await
    }

    /// Like [`try_transact_local`](Database::try_transact_local), with the given options.
    ///
    /// # Errors
    /// Same as [`try_transact`](Database::try_transact).
    pub async fn transact_with_local<T, E>(
        &self,
        options: TxOptions,
        mut body: impl AsyncFnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error> + 'static,
    {
        let mut attempts = Attempts::new(&self.handle, options);
        loop {
            let mut transaction = self.begin_with(options)?;
            let body_of = transaction.body();
            let returned = run(body_of, || body(&mut transaction)).await;
            let mode = self.store()?.as_task().await;
            if let ControlFlow::Break(result) = attempts.end(mode, transaction, returned).await {
                return result;
            }
        }
    }
}

/// Runs an async body. It counts as running on this thread while it creates its future and while that future is polled.
async fn run<F: Future>(body_of: BodyOf, body: impl FnOnce() -> F) -> F::Output {
    let future = {
        let _running = body_of.enter();
        body()
    };
    let mut future = pin!(future);
    poll_fn(|context| {
        let _running = body_of.enter();
        future.as_mut().poll(context)
    })
    .await
}

/// Returns `true` if a retry may succeed. After a lock timeout, a retry would only wait for the same row once more.
fn may_run_again(error: &Error) -> bool {
    error.recourse() == Recourse::Retry && !matches!(error, Error::LockTimeout { .. })
}

/// The runs of a transaction's body so far, and their time limit.
struct Attempts<'h> {
    handle: &'h Handle,
    count: u32,
    /// The number of runs whose snapshot was ended.
    too_old_count: u32,
    /// The time at which the first run began.
    begun: Duration,
    /// The time limit, counted from `begun`. No run begins after it.
    timeout: Duration,
}

impl<'h> Attempts<'h> {
    fn new(handle: &'h Handle, options: TxOptions) -> Attempts<'h> {
        let begun = handle.store_here().now();
        Attempts { handle, count: 0, too_old_count: 0, begun, timeout: options.retry_timeout }
    }

    /// Returns `true` if a further run may begin.
    fn are_left(&self) -> bool {
        self.count < ATTEMPTS_MAX
            && self.too_old_count < TOO_OLD_ATTEMPTS_MAX
            && self.handle.store_here().now().saturating_sub(self.begun) < self.timeout
    }

    /// Commits a transaction whose body has returned `Ok`, or drops it. Breaks with the result, or pauses if there will
    /// be a retry.
    async fn end<T, E: From<Error> + 'static>(
        &mut self,
        mode: WaitMode<'_>,
        transaction: Transaction,
        returned: Result<T, E>,
    ) -> ControlFlow<Result<T, E>> {
        self.count += 1;
        self.too_old_count += u32::from(transaction.is_too_old());
        let (error, can_run_again) = match returned {
            Ok(value) => match transaction.commit_in(mode).await {
                Ok(_) => return ControlFlow::Break(Ok(value)),
                Err(error) => {
                    let can_run_again = may_run_again(&error);
                    (E::from(error), can_run_again)
                }
            },
            Err(error) => {
                let own = (&error as &dyn Any).downcast_ref::<Error>();
                let can_run_again = transaction.was_hindered() || own.is_some_and(may_run_again);
                // Drop the transaction before the pause, because other transactions may be waiting for its rows.
                drop(transaction);
                (error, can_run_again)
            }
        };
        if !can_run_again || !self.are_left() {
            return ControlFlow::Break(Err(error));
        }
        drop(error);
        self.handle.store_here().contention.retries.fetch_add(1, Ordering::Relaxed);
        self.handle.pause(mode, self.count).await;
        ControlFlow::Continue(())
    }
}
