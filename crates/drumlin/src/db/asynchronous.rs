//! The asynchronous face: the calls that may wait, as futures for any executor.
//!
//! Each does what the call without `_async` does, on the same code. A task that waits for a page, a row or the log costs no
//! thread; what only blocking calls can do (evicting pages, growing the file, chunks of large values, keyspaces made and
//! dropped, checkpoints) goes to a few threads of the database. Nothing here needs a runtime.
//!
//! A future may be dropped at any time. Before a commit has its timestamp, nothing of it remains; afterwards it completes
//! without its future. One that is kept, and not polled, keeps what it has: rows that it has locked, and in a commit memory
//! and space in the log, for which others wait. So a blocking call has no place on a thread that polls futures.

use std::future::Future;
use std::ops::RangeBounds;
use std::pin::Pin;
use std::sync::Arc;

use futures_io::AsyncRead;

use super::core::Core;
use super::{
    AsyncValueReader, CheckReport, CheckpointReport, CompactReport, Config, Database, Keyspace, KeyspaceOptions, Range,
    Snapshot, Transaction, Value,
};
use crate::error::Result;
use crate::format::Timestamp;
use crate::task::Face;
use crate::txn::engine::Durability;
use crate::txn::values::ForTasks;

/// One run of the body of [`Database::transact_async`].
pub type Attempt<'t, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 't>>;

impl Core {
    pub(crate) fn as_task(&self) -> Face<'_> {
        Face::Tasks(&self.engine.tasks)
    }
}

impl Config {
    /// As [`open`](Config::open): recovery may take seconds, on a thread of its own.
    ///
    /// # Errors
    /// As [`open`](Config::open).
    pub async fn open_async(&self, path: impl AsRef<std::path::Path>) -> Result<Database> {
        let (config, path) = (self.clone(), path.as_ref().to_owned());
        let workers = crate::task::Workers::new(config.choose_backend(&path)?);
        let opened = workers.run(move || config.open(path)).await;
        workers.stop();
        opened
    }
}

impl Database {
    async fn on_worker<T: Send + 'static>(
        &self,
        body: impl FnOnce(&Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let database = self.clone();
        self.core()?.as_task().run(move || body(&database)).await
    }

    /// As [`open`](Database::open).
    ///
    /// # Errors
    /// As [`Config::open`].
    pub async fn open_async(path: impl AsRef<std::path::Path>) -> Result<Database> {
        Config::new().open_async(path).await
    }

    /// As [`keyspace`](Database::keyspace).
    ///
    /// # Errors
    /// As [`keyspace`](Database::keyspace).
    pub async fn keyspace_async(&self, name: &str) -> Result<Keyspace> {
        self.keyspace_with_async(name, KeyspaceOptions::default()).await
    }

    /// As [`keyspace_with`](Database::keyspace_with).
    ///
    /// # Errors
    /// As [`keyspace_with`](Database::keyspace_with).
    pub async fn keyspace_with_async(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        if let Ok(found) = self.existing_keyspace(name) {
            return Ok(found);
        }
        let name = name.to_owned();
        self.on_worker(move |database| database.keyspace_with(&name, options)).await
    }

    /// As [`drop_keyspace`](Database::drop_keyspace).
    ///
    /// # Errors
    /// As [`drop_keyspace`](Database::drop_keyspace).
    pub async fn drop_keyspace_async(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.on_worker(move |database| database.drop_keyspace(&name)).await
    }

    /// As [`transact`](Database::transact); `body` runs again after a conflict. It returns a boxed future, so that the whole
    /// can be spawned on executors of several threads; what it uses it owns: handles are cheap to clone.
    ///
    /// ```
    /// # let block_on = smol::block_on;
    /// # block_on(async {
    /// # let db = drumlin::Config::in_memory().open_async("").await?;
    /// let counters = db.keyspace_async("counters").await?;
    /// db.transact_async(|tx| {
    ///     let counters = counters.clone();
    ///     Box::pin(async move {
    ///         let visits = tx.get_async(&counters, b"visits").await?.map_or(0, |bytes| bytes[0]);
    ///         tx.insert_async(&counters, b"visits", [visits + 1]).await
    ///     })
    /// })
    /// .await?;
    /// # Ok::<(), drumlin::Error>(())
    /// # })?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`transact`](Database::transact).
    pub async fn transact_async<T>(
        &self,
        mut body: impl for<'t> FnMut(&'t mut Transaction) -> Attempt<'t, T>,
    ) -> Result<T> {
        let mut attempt = 0;
        loop {
            let mut transaction = self.begin()?;
            let result = match body(&mut transaction).await {
                Ok(value) => transaction.commit_async().await.map(|_| value),
                Err(error) => Err(error),
            };
            attempt += 1;
            match result {
                Err(error) if error.passes() && attempt < super::ATTEMPTS_MAX => {
                    self.core()?.engine.tasks.timer.sleep(self.pause_before(attempt)).await;
                }
                other => return other,
            }
        }
    }

    /// As [`checkpoint`](Database::checkpoint).
    ///
    /// # Errors
    /// As [`checkpoint`](Database::checkpoint).
    pub async fn checkpoint_async(&self) -> Result<CheckpointReport> {
        self.on_worker(Database::checkpoint).await
    }

    /// As [`compact`](Database::compact).
    ///
    /// # Errors
    /// As [`compact`](Database::compact).
    pub async fn compact_async(&self) -> Result<CompactReport> {
        self.on_worker(Database::compact).await
    }

    /// As [`check`](Database::check).
    ///
    /// # Errors
    /// As [`check`](Database::check).
    pub async fn check_async(&self) -> Result<CheckReport> {
        self.on_worker(Database::check).await
    }

    /// As [`close`](Database::close).
    ///
    /// # Errors
    /// As [`close`](Database::close).
    pub async fn close_async(self) -> Result<()> {
        let workers = crate::task::Workers::new(Arc::clone(&self.core()?.engine.backend));
        let closed = workers.run(move || self.close()).await;
        workers.stop();
        closed
    }
}

impl Keyspace {
    /// As [`get`](Keyspace::get).
    ///
    /// # Errors
    /// As [`get`](Keyspace::get).
    pub async fn get_async(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_as(self.core()?.as_task(), key.as_ref()).await
    }

    /// As [`contains_key`](Keyspace::contains_key).
    ///
    /// # Errors
    /// As [`get`](Keyspace::get).
    pub async fn contains_key_async(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.contains_key_as(self.core()?.as_task(), key.as_ref()).await
    }

    /// As [`get_many`](Keyspace::get_many).
    ///
    /// # Errors
    /// As [`get`](Keyspace::get).
    pub async fn get_many_async<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        self.get_many_as(self.core()?.as_task(), keys).await
    }

    /// As [`insert`](Keyspace::insert).
    ///
    /// # Errors
    /// As [`insert`](Keyspace::insert).
    pub async fn insert_async(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_with_async(key, value, Durability::Full).await
    }

    /// As [`insert_with`](Keyspace::insert_with).
    ///
    /// # Errors
    /// As [`insert`](Keyspace::insert).
    pub async fn insert_with_async(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.insert_as(self.core()?.as_task(), key.as_ref(), value.as_ref(), durability).await
    }

    /// As [`insert_from`](Keyspace::insert_from), from an asynchronous reader.
    ///
    /// # Errors
    /// As [`insert_from`](Keyspace::insert_from).
    pub async fn insert_from_async(&self, key: impl AsRef<[u8]>, reader: impl AsyncRead + Unpin) -> Result<u64> {
        self.insert_from_as(self.core()?.as_task(), key.as_ref(), ForTasks(reader)).await
    }

    /// As [`remove`](Keyspace::remove).
    ///
    /// # Errors
    /// As [`remove`](Keyspace::remove).
    pub async fn remove_async(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.remove_as(self.core()?.as_task(), key.as_ref()).await
    }

    /// As [`count`](Keyspace::count).
    ///
    /// # Errors
    /// As [`get`](Keyspace::get).
    pub async fn count_async<R: RangeBounds<Vec<u8>>>(&self, range: R) -> Result<u64> {
        self.range(range).count_rows(self.core()?.as_task()).await
    }

    /// As [`read`](Keyspace::read).
    ///
    /// # Errors
    /// As [`get`](Keyspace::get).
    pub async fn read_async(&self, key: impl AsRef<[u8]>) -> Result<Option<AsyncValueReader>> {
        let reader = self.read_as(self.core()?.as_task(), key.as_ref()).await?;
        Ok(reader.map(AsyncValueReader::new))
    }
}

impl Range {
    /// As `next` of the iterator. A future that is dropped takes no row away.
    pub async fn next_async(&mut self) -> Option<Result<(Value, Value)>> {
        let Some(handle) = self.handle() else { return self.next() };
        match handle.core() {
            Ok(core) => self.next_as(core.as_task(), true).await,
            Err(_) => self.next(),
        }
    }

    /// As `next_back` of the iterator.
    pub async fn next_back_async(&mut self) -> Option<Result<(Value, Value)>> {
        let Some(handle) = self.handle() else { return self.next_back() };
        match handle.core() {
            Ok(core) => self.next_as(core.as_task(), false).await,
            Err(_) => self.next_back(),
        }
    }
}

// A keyspace that is not refused is one of the transaction's own database.
impl Transaction {
    /// As [`get`](Transaction::get).
    ///
    /// # Errors
    /// As [`get`](Transaction::get).
    pub async fn get_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_as(self.core()?.as_task(), keyspace, key.as_ref()).await
    }

    /// As [`get_for_update`](Transaction::get_for_update).
    ///
    /// # Errors
    /// As [`get_for_update`](Transaction::get_for_update).
    pub async fn get_for_update_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_for_update_as(keyspace.core()?.as_task(), keyspace, key.as_ref()).await
    }

    /// As [`insert`](Transaction::insert).
    ///
    /// # Errors
    /// As [`insert`](Transaction::insert).
    pub async fn insert_async(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.insert_as(keyspace.core()?.as_task(), keyspace, key.as_ref(), value.as_ref()).await
    }

    /// As [`insert_from`](Transaction::insert_from), from an asynchronous reader.
    ///
    /// # Errors
    /// As [`insert_from`](Transaction::insert_from).
    pub async fn insert_from_async(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        reader: impl AsyncRead + Unpin,
    ) -> Result<u64> {
        self.insert_from_as(keyspace.core()?.as_task(), keyspace, key.as_ref(), ForTasks(reader)).await
    }

    /// As [`remove`](Transaction::remove).
    ///
    /// # Errors
    /// As [`remove`](Transaction::remove).
    pub async fn remove_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.remove_as(keyspace.core()?.as_task(), keyspace, key.as_ref()).await
    }

    /// As [`count`](Transaction::count).
    ///
    /// # Errors
    /// As [`get`](Transaction::get).
    pub async fn count_async<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Result<u64> {
        self.range(keyspace, range).count_rows(self.core()?.as_task()).await
    }

    /// As [`read`](Transaction::read).
    ///
    /// # Errors
    /// As [`read`](Transaction::read).
    pub async fn read_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<AsyncValueReader>> {
        let reader = self.read_as(self.core()?.as_task(), keyspace, key.as_ref()).await?;
        Ok(reader.map(AsyncValueReader::new))
    }

    /// As [`commit`](Transaction::commit). A future dropped before the transaction has its timestamp aborts it; afterwards
    /// the transaction completes.
    ///
    /// # Errors
    /// As [`commit`](Transaction::commit).
    pub async fn commit_async(self) -> Result<Timestamp> {
        let core = Arc::clone(self.core()?);
        self.commit_as(core.as_task()).await
    }
}

impl Snapshot {
    /// As [`get`](Snapshot::get).
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub async fn get_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_as(self.handle.core()?.as_task(), keyspace, key.as_ref()).await
    }

    /// As [`contains_key`](Snapshot::contains_key).
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub async fn contains_key_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.contains_key_as(self.handle.core()?.as_task(), keyspace, key.as_ref()).await
    }

    /// As [`count`](Snapshot::count).
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub async fn count_async<R: RangeBounds<Vec<u8>>>(&self, keyspace: &Keyspace, range: R) -> Result<u64> {
        self.range(keyspace, range).count_rows(self.handle.core()?.as_task()).await
    }

    /// As [`read`](Snapshot::read).
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub async fn read_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<AsyncValueReader>> {
        let reader = self.read_as(self.handle.core()?.as_task(), keyspace, key.as_ref()).await?;
        Ok(reader.map(AsyncValueReader::new))
    }
}
