//! The asynchronous API: every call that may wait, as a future for any executor.
//!
//! Each call runs the same code as the one without `_async`. A task that waits for a page, a row or the log occupies no
//! thread. Work that only blocking calls can do (evicting pages, growing the file, writing chunks of large values,
//! creating and dropping keyspaces, checkpoints), or that cannot be divided (applying a commit of many rows), runs on a
//! few threads of the database. No runtime is needed.
//!
//! A task whose pages are all in memory never has to wait. So that other tasks can run, it yields on its own: after
//! about 15 µs of such work on a thread, a call wakes its own task and returns `Pending` once, whether it is one long
//! call or one of many short calls. So even a call that never waits may return `Pending` at its first poll. It
//! continues when it is polled again or repeated.
//!
//! A future may be dropped at any time. A commit that is dropped before it has its timestamp leaves no trace; after
//! that it completes without its future. A future that is kept but not polled keeps its resources: row locks and,
//! during a commit, memory and log space, for which others may wait. So a thread that polls futures must not make
//! blocking calls. Leaking a future (`std::mem::forget`) that owns a transaction or database, or that is a step of a
//! range, is like leaking a handle: the folder stays locked until the process ends, even after `close`, which does not
//! wait for the future. Its part of the memory budget stays taken until the database is closed.

use std::ops::ControlFlow;
use std::sync::Arc;

use futures_io::AsyncRead;

use super::atomic::WhenLocked;
use super::bounds::{self, KeyRange};
use super::range::{Keys, Readers, Steps, Values, step};
use super::reader::Reader;
use super::reducer::Reducer;
use super::{
    AsyncValueReader, Batch, BulkLoad, CheckReport, CheckpointReport, CompactReport, Config, Database, Keyspace,
    KeyspaceOptions, Range, Transaction, Value,
};
use crate::error::Result;
use crate::format::Timestamp;
use crate::task::{WaitMode, ready};
use crate::tree::Direction;
use crate::txn::engine::Durability;
use crate::txn::values::ForTasks;

impl Config {
    /// Like [`open`](Config::open). Recovery, which may take seconds, runs on a thread of its own.
    ///
    /// # Errors
    /// Those of [`open`](Config::open).
    pub async fn open_async(&self, path: impl AsRef<std::path::Path>) -> Result<Database> {
        let (config, path) = (self.clone(), path.as_ref().to_owned());
        let workers = crate::task::Workers::new(config.settings.choose_backend(&path)?);
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
        self.store()?.as_task().await.run(move || body(&database)).await
    }

    /// Like [`open`](Database::open).
    ///
    /// # Errors
    /// Those of [`Config::open`].
    pub async fn open_async(path: impl AsRef<std::path::Path>) -> Result<Database> {
        Config::new().open_async(path).await
    }

    /// Like [`keyspace`](Database::keyspace).
    ///
    /// # Errors
    /// Those of [`keyspace`](Database::keyspace).
    pub async fn keyspace_async(&self, name: &str) -> Result<Keyspace> {
        self.keyspace_with_async(name, KeyspaceOptions::default()).await
    }

    /// Like [`keyspace_with`](Database::keyspace_with).
    ///
    /// # Errors
    /// Those of [`keyspace_with`](Database::keyspace_with).
    pub async fn keyspace_with_async(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let store = self.store()?;
        store.as_task().await;
        if let Some(open) = store.keyspace_at_hand(name) {
            return Ok(Keyspace::new(&self.handle, open));
        }
        let name = name.to_owned();
        self.on_worker(move |database| database.keyspace_with(&name, options)).await
    }

    /// Like [`drop_keyspace`](Database::drop_keyspace).
    ///
    /// # Errors
    /// Those of [`drop_keyspace`](Database::drop_keyspace).
    pub async fn drop_keyspace_async(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.on_worker(move |database| database.drop_keyspace(&name)).await
    }

    /// Like [`bulk_load`](Database::bulk_load).
    ///
    /// # Errors
    /// Those of [`bulk_load`](Database::bulk_load).
    pub async fn bulk_load_async(&self, name: &str) -> Result<BulkLoad> {
        let name = name.to_owned();
        self.on_worker(move |database| database.bulk_load(&name)).await
    }

    /// Like [`sync`](Database::sync).
    ///
    /// # Errors
    /// Those of [`sync`](Database::sync).
    pub async fn sync_async(&self) -> Result<()> {
        self.sync_in(self.store()?.as_task().await).await
    }

    /// Like [`existing_keyspace`](Database::existing_keyspace).
    ///
    /// # Errors
    /// Those of [`existing_keyspace`](Database::existing_keyspace).
    pub async fn existing_keyspace_async(&self, name: &str) -> Result<Keyspace> {
        let store = self.store()?;
        store.as_task().await;
        if let Some(open) = store.keyspace_at_hand(name) {
            return Ok(Keyspace::new(&self.handle, open));
        }
        let name = name.to_owned();
        self.on_worker(move |database| database.existing_keyspace(&name)).await
    }

    /// Like [`checkpoint`](Database::checkpoint).
    ///
    /// # Errors
    /// Those of [`checkpoint`](Database::checkpoint).
    pub async fn checkpoint_async(&self) -> Result<CheckpointReport> {
        self.on_worker(Database::checkpoint).await
    }

    /// Like [`compact`](Database::compact).
    ///
    /// # Errors
    /// Those of [`compact`](Database::compact).
    pub async fn compact_async(&self) -> Result<CompactReport> {
        self.on_worker(Database::compact).await
    }

    /// Like [`check`](Database::check).
    ///
    /// # Errors
    /// Those of [`check`](Database::check).
    pub async fn check_async(&self) -> Result<CheckReport> {
        self.on_worker(Database::check).await
    }

    /// Like [`close`](Database::close).
    ///
    /// # Errors
    /// Those of [`close`](Database::close).
    pub async fn close_async(self) -> Result<()> {
        let workers = crate::task::Workers::new(Arc::clone(&self.handle.store_in_process()?.engine.backend));
        let closed = workers.run(move || self.close()).await;
        workers.stop();
        closed
    }
}

/// Reading.
impl Keyspace {
    /// Like [`get`](Keyspace::get).
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub async fn get_async(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.rows().get(self.store()?.as_task().await, key.as_ref()).await
    }

    /// Like [`get_into`](Keyspace::get_into). Dropping the future may leave the vector empty, without its capacity.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub async fn get_into_async(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.rows().get_into(self.store()?.as_task().await, key.as_ref(), value).await
    }

    /// Like [`get_with`](Keyspace::get_with). `look` itself is not asynchronous.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub async fn get_with_async<R>(&self, key: impl AsRef<[u8]>, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.rows().get_with(self.store()?.as_task().await, key.as_ref(), look).await
    }

    /// Like [`contains_key`](Keyspace::contains_key).
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub async fn contains_key_async(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.rows().contains_key(self.store()?.as_task().await, key.as_ref()).await
    }

    /// Like [`contains_many`](Keyspace::contains_many).
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub async fn contains_many_async<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>> {
        self.rows().contains_many(self.store()?.as_task().await, &bounds::slices(keys)).await
    }

    /// Like [`get_many`](Keyspace::get_many).
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub async fn get_many_async<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        self.rows().get_many(self.store()?.as_task().await, &bounds::slices(keys)).await
    }

    /// Like [`first`](Keyspace::first).
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first).
    pub async fn first_async(&self) -> Result<Option<(Value, Value)>> {
        self.rows().end(self.store()?.as_task().await, bounds::ALL, Direction::Forward).await
    }

    /// Like [`last`](Keyspace::last).
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first).
    pub async fn last_async(&self) -> Result<Option<(Value, Value)>> {
        self.rows().end(self.store()?.as_task().await, bounds::ALL, Direction::Backward).await
    }

    /// Like [`is_empty`](Keyspace::is_empty).
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first).
    pub async fn is_empty_async(&self) -> Result<bool> {
        self.rows().is_empty(self.store()?.as_task().await).await
    }

    /// Like [`count`](Keyspace::count).
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first).
    pub async fn count_async(&self, range: impl KeyRange) -> Result<u64> {
        self.rows().count(self.store()?.as_task().await, bounds::owned(&range)).await
    }

    /// Like [`len`](Keyspace::len).
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first).
    pub async fn len_async(&self) -> Result<u64> {
        self.rows().count(self.store()?.as_task().await, bounds::ALL).await
    }

    /// Like [`rank`](Keyspace::rank).
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first).
    pub async fn rank_async(&self, key: impl AsRef<[u8]>) -> Result<u64> {
        self.rows().count(self.store()?.as_task().await, bounds::owned(&..key)).await
    }

    /// Like [`aggregate`](Keyspace::aggregate).
    ///
    /// # Errors
    /// Those of [`aggregate`](Keyspace::aggregate).
    pub async fn aggregate_async<R: Reducer>(&self, reducer: &R, range: impl KeyRange) -> Result<R::Output> {
        self.rows().aggregate(self.store()?.as_task().await, reducer, bounds::owned(&range)).await
    }

    /// Like [`nth`](Keyspace::nth).
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first).
    pub async fn nth_async(&self, range: impl KeyRange, index: u64) -> Result<Option<(Value, Value)>> {
        self.rows().nth(self.store()?.as_task().await, bounds::owned(&range), index).await
    }

    /// Like [`sample`](Keyspace::sample).
    ///
    /// # Errors
    /// Those of [`first`](Keyspace::first).
    pub async fn sample_async(&self, range: impl KeyRange, row_count: usize) -> Result<Vec<(Value, Value)>> {
        self.rows().sample(self.store()?.as_task().await, bounds::owned(&range), row_count).await
    }

    /// Like [`read`](Keyspace::read).
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub async fn read_async(&self, key: impl AsRef<[u8]>) -> Result<Option<AsyncValueReader>> {
        let reader = self.rows().read(self.store()?.as_task().await, key.as_ref()).await?;
        Ok(reader.map(AsyncValueReader::new))
    }
}

/// Writing.
impl Keyspace {
    /// Like [`insert`](Keyspace::insert).
    ///
    /// # Errors
    /// Those of [`insert`](Keyspace::insert).
    pub async fn insert_async(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_with_async(key, value, self.durability).await
    }

    /// Like [`insert_with`](Keyspace::insert_with).
    ///
    /// # Errors
    /// Those of [`insert`](Keyspace::insert).
    pub async fn insert_with_async(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.insert_in(self.store()?.as_task().await, key.as_ref(), value.as_ref(), durability).await
    }

    /// Like [`insert_from`](Keyspace::insert_from), from an asynchronous reader. Its future holds 320 KiB of the
    /// thirty-second of the memory budget that such writers share. A leaked future (`std::mem::forget`) keeps its part
    /// of the budget until the database is closed, and the memory itself for ever.
    ///
    /// # Errors
    /// Those of [`insert_from`](Keyspace::insert_from).
    pub async fn insert_from_async(&self, key: impl AsRef<[u8]>, reader: impl AsyncRead + Unpin) -> Result<u64> {
        self.insert_from_in(self.store()?.as_task().await, key.as_ref(), ForTasks(reader)).await
    }

    /// Like [`remove`](Keyspace::remove).
    ///
    /// # Errors
    /// Those of [`remove`](Keyspace::remove).
    pub async fn remove_async(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.remove_in(self.store()?.as_task().await, key.as_ref()).await
    }

    /// Like [`take`](Keyspace::take).
    ///
    /// # Errors
    /// Those of [`take`](Keyspace::take).
    pub async fn take_async(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.take_in(self.store()?.as_task().await, key.as_ref()).await
    }

    /// Like [`replace`](Keyspace::replace).
    ///
    /// # Errors
    /// Those of [`replace`](Keyspace::replace).
    pub async fn replace_async(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.replace_in(self.store()?.as_task().await, key.as_ref(), value.as_ref()).await
    }

    /// Like [`insert_if_absent`](Keyspace::insert_if_absent).
    ///
    /// # Errors
    /// Those of [`insert_if_absent`](Keyspace::insert_if_absent).
    pub async fn insert_if_absent_async(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.insert_if_absent_in(self.store()?.as_task().await, key.as_ref(), value.as_ref()).await
    }

    /// Like [`update`](Keyspace::update). `change` itself is not asynchronous.
    ///
    /// # Errors
    /// Those of [`update`](Keyspace::update).
    pub async fn update_async<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<V>> {
        self.update_in(self.store()?.as_task().await, key.as_ref(), change).await
    }

    /// Like [`compare_and_swap`](Keyspace::compare_and_swap).
    ///
    /// # Errors
    /// Those of [`compare_and_swap`](Keyspace::compare_and_swap).
    pub async fn compare_and_swap_async(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), Option<Value>>> {
        self.compare_and_swap_in(self.store()?.as_task().await, key.as_ref(), expected, new).await
    }

    /// Like [`pop_first`](Keyspace::pop_first). When the future is dropped, it either has removed its row or has not.
    /// If it has, the row is gone, although no caller got it. To keep a row until it has been processed, pop it in a
    /// [`Transaction`](Transaction::pop_first_in_async).
    ///
    /// # Errors
    /// Those of [`pop_first`](Keyspace::pop_first).
    pub async fn pop_first_async(&self) -> Result<Option<(Value, Value)>> {
        self.pop_in(self.store()?.as_task().await, bounds::ALL, Direction::Forward, WhenLocked::Wait).await
    }

    /// Like [`pop_last`](Keyspace::pop_last); see [`pop_first_async`](Keyspace::pop_first_async).
    ///
    /// # Errors
    /// Those of [`pop_first`](Keyspace::pop_first).
    pub async fn pop_last_async(&self) -> Result<Option<(Value, Value)>> {
        self.pop_in(self.store()?.as_task().await, bounds::ALL, Direction::Backward, WhenLocked::Wait).await
    }

    /// Like [`pop_first_in`](Keyspace::pop_first_in); see [`pop_first_async`](Keyspace::pop_first_async).
    ///
    /// # Errors
    /// Those of [`pop_first_in`](Keyspace::pop_first_in).
    pub async fn pop_first_in_async(&self, range: impl KeyRange) -> Result<Option<(Value, Value)>> {
        self.pop_in(self.store()?.as_task().await, bounds::owned(&range), Direction::Forward, WhenLocked::Skip).await
    }

    /// Like [`pop_last_in`](Keyspace::pop_last_in); see [`pop_first_async`](Keyspace::pop_first_async).
    ///
    /// # Errors
    /// Those of [`pop_first_in`](Keyspace::pop_first_in).
    pub async fn pop_last_in_async(&self, range: impl KeyRange) -> Result<Option<(Value, Value)>> {
        self.pop_in(self.store()?.as_task().await, bounds::owned(&range), Direction::Backward, WhenLocked::Skip).await
    }

    /// Like [`clear`](Keyspace::clear). A dropped future leaves the rows that it has not reached yet.
    ///
    /// # Errors
    /// Those of [`clear`](Keyspace::clear).
    pub async fn clear_async(&self) -> Result<u64> {
        self.remove_rows(self.store()?.as_task().await, bounds::ALL).await
    }

    /// Like [`remove_prefix`](Keyspace::remove_prefix); see [`clear_async`](Keyspace::clear_async).
    ///
    /// # Errors
    /// Those of [`clear`](Keyspace::clear).
    pub async fn remove_prefix_async(&self, prefix: impl AsRef<[u8]>) -> Result<u64> {
        self.remove_rows(self.store()?.as_task().await, bounds::of_prefix(prefix.as_ref())).await
    }

    /// Like [`remove_range`](Keyspace::remove_range); see [`clear_async`](Keyspace::clear_async).
    ///
    /// # Errors
    /// Those of [`clear`](Keyspace::clear).
    pub async fn remove_range_async(&self, range: impl KeyRange) -> Result<u64> {
        self.remove_rows(self.store()?.as_task().await, bounds::owned(&range)).await
    }
}

impl Range {
    /// Like `next` of the iterator. Dropping the future loses no row. Leaking it keeps the database open, like leaking
    /// a range.
    pub async fn next_async(&mut self) -> Option<Result<(Value, Value)>> {
        step(self, Direction::Forward).await
    }

    /// Like `next_back` of the iterator; otherwise like [`next_async`](Range::next_async).
    pub async fn next_back_async(&mut self) -> Option<Result<(Value, Value)>> {
        step(self, Direction::Backward).await
    }

    /// Like [`for_each_row`](Range::for_each_row). If the future is dropped, no row is lost or shown twice.
    ///
    /// # Errors
    /// Those of [`for_each_row`](Range::for_each_row).
    pub async fn for_each_row_async<B>(
        &mut self,
        look: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        self.for_each_row_in(Direction::Forward, look).await
    }

    /// Like [`for_each_row_async`](Range::for_each_row_async), from the last row to the first.
    ///
    /// # Errors
    /// Those of [`for_each_row`](Range::for_each_row).
    pub async fn for_each_row_back_async<B>(
        &mut self,
        look: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        self.for_each_row_in(Direction::Backward, look).await
    }

    async fn for_each_row_in<B>(
        &mut self,
        direction: Direction,
        mut look: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        match self.handle().as_ref().map(|handle| handle.store()) {
            Some(Ok(store)) => self.show_rows(store.as_task().await, direction, &mut look).await,
            // This step never waits.
            None | Some(Err(_)) => ready(self.show_rows(WaitMode::Blocking, direction, &mut look)),
        }
    }
}

impl Keys {
    /// Like [`Range::next_async`].
    pub async fn next_async(&mut self) -> Option<Result<Value>> {
        step(self, Direction::Forward).await
    }

    /// Like [`Range::next_back_async`].
    pub async fn next_back_async(&mut self) -> Option<Result<Value>> {
        step(self, Direction::Backward).await
    }
}

impl Values {
    /// Like [`Range::next_async`].
    pub async fn next_async(&mut self) -> Option<Result<Value>> {
        step(self, Direction::Forward).await
    }

    /// Like [`Range::next_back_async`].
    pub async fn next_back_async(&mut self) -> Option<Result<Value>> {
        step(self, Direction::Backward).await
    }
}

impl Readers {
    /// Like [`Range::next_async`].
    pub async fn next_async(&mut self) -> Option<Result<(Value, AsyncValueReader)>> {
        Some(step(self, Direction::Forward).await?.map(|(key, value)| (key, AsyncValueReader::new(value))))
    }

    /// Like [`Range::next_back_async`].
    pub async fn next_back_async(&mut self) -> Option<Result<(Value, AsyncValueReader)>> {
        Some(step(self, Direction::Backward).await?.map(|(key, value)| (key, AsyncValueReader::new(value))))
    }
}

impl Reader {
    /// Like [`get`](Reader::get).
    ///
    /// # Errors
    /// Those of [`get`](Reader::get).
    pub async fn get_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.rows(keyspace)?.get(self.store()?.as_task().await, key.as_ref()).await
    }

    /// Like [`get_into`](Reader::get_into). Dropping the future may leave the vector empty, without its capacity.
    ///
    /// # Errors
    /// Those of [`get`](Reader::get).
    pub async fn get_into_async(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        value.clear();
        self.rows(keyspace)?.get_into(self.store()?.as_task().await, key.as_ref(), value).await
    }

    /// Like [`get_with`](Reader::get_with). `look` itself is not asynchronous.
    ///
    /// # Errors
    /// Those of [`get`](Reader::get).
    pub async fn get_with_async<R>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        self.rows(keyspace)?.get_with(self.store()?.as_task().await, key.as_ref(), look).await
    }

    /// Like [`contains_key`](Reader::contains_key).
    ///
    /// # Errors
    /// Those of [`get`](Reader::get).
    pub async fn contains_key_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.rows(keyspace)?.contains_key(self.store()?.as_task().await, key.as_ref()).await
    }

    /// Like [`contains_many`](Reader::contains_many).
    ///
    /// # Errors
    /// Those of [`get`](Reader::get).
    pub async fn contains_many_async<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, keys: &[K]) -> Result<Vec<bool>> {
        self.rows(keyspace)?.contains_many(self.store()?.as_task().await, &bounds::slices(keys)).await
    }

    /// Like [`get_many`](Reader::get_many).
    ///
    /// # Errors
    /// Those of [`get`](Reader::get).
    pub async fn get_many_async<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, keys: &[K]) -> Result<Vec<Option<Value>>> {
        self.rows(keyspace)?.get_many(self.store()?.as_task().await, &bounds::slices(keys)).await
    }

    /// Like [`first`](Reader::first).
    ///
    /// # Errors
    /// Those of [`first`](Reader::first).
    pub async fn first_async(&self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        self.rows(keyspace)?.end(self.store()?.as_task().await, bounds::ALL, Direction::Forward).await
    }

    /// Like [`last`](Reader::last).
    ///
    /// # Errors
    /// Those of [`first`](Reader::first).
    pub async fn last_async(&self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        self.rows(keyspace)?.end(self.store()?.as_task().await, bounds::ALL, Direction::Backward).await
    }

    /// Like [`is_empty`](Reader::is_empty).
    ///
    /// # Errors
    /// Those of [`first`](Reader::first).
    pub async fn is_empty_async(&self, keyspace: &Keyspace) -> Result<bool> {
        self.rows(keyspace)?.is_empty(self.store()?.as_task().await).await
    }

    /// Like [`count`](Reader::count).
    ///
    /// # Errors
    /// Those of [`first`](Reader::first).
    pub async fn count_async(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<u64> {
        self.rows(keyspace)?.count(self.store()?.as_task().await, bounds::owned(&range)).await
    }

    /// Like [`len`](Reader::len).
    ///
    /// # Errors
    /// Those of [`first`](Reader::first).
    pub async fn len_async(&self, keyspace: &Keyspace) -> Result<u64> {
        self.rows(keyspace)?.count(self.store()?.as_task().await, bounds::ALL).await
    }

    /// Like [`rank`](Reader::rank).
    ///
    /// # Errors
    /// Those of [`first`](Reader::first).
    pub async fn rank_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<u64> {
        self.rows(keyspace)?.count(self.store()?.as_task().await, bounds::owned(&..key)).await
    }

    /// Like [`aggregate`](Reader::aggregate).
    ///
    /// # Errors
    /// Those of [`aggregate`](Reader::aggregate).
    pub async fn aggregate_async<R: Reducer>(
        &self,
        keyspace: &Keyspace,
        reducer: &R,
        range: impl KeyRange,
    ) -> Result<R::Output> {
        self.rows(keyspace)?.aggregate(self.store()?.as_task().await, reducer, bounds::owned(&range)).await
    }

    /// Like [`nth`](Reader::nth).
    ///
    /// # Errors
    /// Those of [`first`](Reader::first).
    pub async fn nth_async(
        &self,
        keyspace: &Keyspace,
        range: impl KeyRange,
        index: u64,
    ) -> Result<Option<(Value, Value)>> {
        self.rows(keyspace)?.nth(self.store()?.as_task().await, bounds::owned(&range), index).await
    }

    /// Like [`sample`](Reader::sample).
    ///
    /// # Errors
    /// Those of [`first`](Reader::first).
    pub async fn sample_async(
        &self,
        keyspace: &Keyspace,
        range: impl KeyRange,
        row_count: usize,
    ) -> Result<Vec<(Value, Value)>> {
        self.rows(keyspace)?.sample(self.store()?.as_task().await, bounds::owned(&range), row_count).await
    }

    /// Like [`read`](Reader::read).
    ///
    /// # Errors
    /// Those of [`get`](Reader::get).
    pub async fn read_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<AsyncValueReader>> {
        let reader = self.rows(keyspace)?.read(self.store()?.as_task().await, key.as_ref()).await?;
        Ok(reader.map(AsyncValueReader::new))
    }
}

// A keyspace that is not refused belongs to the transaction's own database, so these calls use the keyspace's store.
impl Transaction {
    /// Like [`get_for_update`](Transaction::get_for_update).
    ///
    /// # Errors
    /// Those of [`get_for_update`](Transaction::get_for_update).
    pub async fn get_for_update_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_for_update_in(keyspace.store()?.as_task().await, keyspace, key.as_ref()).await
    }

    /// Like [`insert`](Transaction::insert).
    ///
    /// # Errors
    /// Those of [`insert`](Transaction::insert).
    pub async fn insert_async(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.insert_in(keyspace.store()?.as_task().await, keyspace, key.as_ref(), value.as_ref()).await
    }

    /// Like [`insert_from`](Transaction::insert_from), from an asynchronous reader. Its future holds 320 KiB of the
    /// thirty-second of the memory budget that such writers share. A leaked future (`std::mem::forget`) keeps its part
    /// of the budget until the database is closed, and the memory itself for ever.
    ///
    /// # Errors
    /// Those of [`insert_from`](Transaction::insert_from).
    pub async fn insert_from_async(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        reader: impl AsyncRead + Unpin,
    ) -> Result<u64> {
        self.insert_from_in(keyspace.store()?.as_task().await, keyspace, key.as_ref(), ForTasks(reader)).await
    }

    /// Like [`remove`](Transaction::remove).
    ///
    /// # Errors
    /// Those of [`remove`](Transaction::remove).
    pub async fn remove_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.remove_in(keyspace.store()?.as_task().await, keyspace, key.as_ref()).await
    }

    /// Like [`take`](Transaction::take).
    ///
    /// # Errors
    /// Those of [`take`](Transaction::take).
    pub async fn take_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.take_in(keyspace.store()?.as_task().await, keyspace, key.as_ref()).await
    }

    /// Like [`replace`](Transaction::replace).
    ///
    /// # Errors
    /// Those of [`take`](Transaction::take).
    pub async fn replace_async(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Value>> {
        self.replace_in(keyspace.store()?.as_task().await, keyspace, key.as_ref(), value.as_ref()).await
    }

    /// Like [`insert_if_absent`](Transaction::insert_if_absent).
    ///
    /// # Errors
    /// Those of [`take`](Transaction::take).
    pub async fn insert_if_absent_async(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool> {
        self.insert_if_absent_in(keyspace.store()?.as_task().await, keyspace, key.as_ref(), value.as_ref()).await
    }

    /// Like [`update`](Transaction::update). `change` itself is not asynchronous.
    ///
    /// # Errors
    /// Those of [`take`](Transaction::take).
    pub async fn update_async<V: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<V>> {
        self.update_in(keyspace.store()?.as_task().await, keyspace, key.as_ref(), change).await
    }

    /// Like [`compare_and_swap`](Transaction::compare_and_swap).
    ///
    /// # Errors
    /// Those of [`take`](Transaction::take).
    pub async fn compare_and_swap_async(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), Option<Value>>> {
        self.compare_and_swap_in(keyspace.store()?.as_task().await, keyspace, key.as_ref(), expected, new).await
    }

    /// Like [`pop_first`](Transaction::pop_first).
    ///
    /// # Errors
    /// Those of [`pop_first`](Transaction::pop_first).
    pub async fn pop_first_async(&mut self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        self.pop_in(keyspace.store()?.as_task().await, keyspace, Direction::Forward).await
    }

    /// Like [`pop_last`](Transaction::pop_last).
    ///
    /// # Errors
    /// Those of [`pop_first`](Transaction::pop_first).
    pub async fn pop_last_async(&mut self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        self.pop_in(keyspace.store()?.as_task().await, keyspace, Direction::Backward).await
    }

    /// Like [`pop_first_in`](Transaction::pop_first_in).
    ///
    /// # Errors
    /// Those of [`pop_first_in`](Transaction::pop_first_in).
    pub async fn pop_first_in_async(
        &mut self,
        keyspace: &Keyspace,
        range: impl KeyRange,
    ) -> Result<Option<(Value, Value)>> {
        self.pop_free_in(keyspace.store()?.as_task().await, keyspace, bounds::owned(&range), Direction::Forward).await
    }

    /// Like [`pop_last_in`](Transaction::pop_last_in).
    ///
    /// # Errors
    /// Those of [`pop_first_in`](Transaction::pop_first_in).
    pub async fn pop_last_in_async(
        &mut self,
        keyspace: &Keyspace,
        range: impl KeyRange,
    ) -> Result<Option<(Value, Value)>> {
        self.pop_free_in(keyspace.store()?.as_task().await, keyspace, bounds::owned(&range), Direction::Backward).await
    }

    /// Like [`commit`](Transaction::commit). Dropping the future before the transaction has its timestamp aborts the
    /// transaction; after that, the commit completes without its future.
    ///
    /// # Errors
    /// Those of [`commit`](Transaction::commit).
    pub async fn commit_async(self) -> Result<Timestamp> {
        let store = Arc::clone(self.store()?);
        self.commit_in(store.as_task().await).await
    }
}

impl Batch {
    /// Like [`insert`](Batch::insert). It waits only if the value is over 64 KiB.
    ///
    /// # Errors
    /// Those of [`insert`](Batch::insert).
    pub async fn insert_async(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.insert_in(keyspace.store()?.as_task().await, keyspace, key.as_ref(), value.as_ref()).await
    }

    /// Like [`insert_from`](Batch::insert_from), from an asynchronous reader. See [`Keyspace::insert_from_async`].
    ///
    /// # Errors
    /// Those of [`insert_from`](Batch::insert_from).
    pub async fn insert_from_async(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        reader: impl AsyncRead + Unpin,
    ) -> Result<u64> {
        self.insert_from_in(keyspace.store()?.as_task().await, keyspace, key.as_ref(), ForTasks(reader)).await
    }

    /// Like [`commit`](Batch::commit). Dropping the future before the batch has its timestamp aborts the batch; after
    /// that, the commit completes without its future.
    ///
    /// # Errors
    /// Those of [`commit`](Batch::commit).
    pub async fn commit_async(self) -> Result<Timestamp> {
        self.transaction.commit_async().await
    }

    /// Like [`commit_with`](Batch::commit_with); see [`commit_async`](Batch::commit_async).
    ///
    /// # Errors
    /// Those of [`commit`](Batch::commit).
    pub async fn commit_with_async(mut self, durability: Durability) -> Result<Timestamp> {
        self.transaction.set_durability(durability);
        self.commit_async().await
    }
}
