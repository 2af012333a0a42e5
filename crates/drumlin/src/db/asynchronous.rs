//! The asynchronous API: a future, for any executor, for every call that can wait.
//!
//! Each call runs the same code as the one without `_async`. A task that waits for a page, a row or the log occupies no
//! thread. Operations that need blocking system calls (evicting pages, growing the file, writing chunks of large
//! values, creating and dropping keyspaces, checkpoints), or that cannot yield midway (applying a commit of many rows),
//! run on a few threads of the database. No runtime is needed.
//!
//! A task whose pages are all in memory never has to wait, and would starve other tasks. So it yields voluntarily:
//! after calls have run on a thread for about 15 µs without waiting, the current call wakes its own task and returns
//! `Pending` once. One long call and many short calls are treated alike. Even a call that never waits may therefore
//! return `Pending` at its first poll. It continues at the next poll, or when the call is repeated.
//!
//! A future may be dropped at any time. A commit that is dropped before it has its timestamp leaves no trace; after
//! that, it completes even if its future is gone. A future that is neither dropped nor polled keeps its row locks and,
//! during a commit, its memory and log space. Other calls may be waiting for these. A thread that polls futures must
//! therefore not make blocking calls. Leaking a future (`std::mem::forget`) that owns a transaction or database, or
//! that is a step of a range, is like leaking a handle: the folder stays locked until the process ends, even after
//! `close`, which does not wait for the future. The future's share of the memory budget is not released until the
//! database is closed.

use std::ops::ControlFlow;
use std::sync::Arc;

use futures_io::AsyncRead;

use super::atomic::WhenLocked;
use super::bounds::{self, KeyRange};
use super::range::{Keys, Readers, Steps, Values, step};
use super::reader::Reader;
use super::reducer::Reducer;
use super::{
    Alteration, AsyncValueReader, BackupOptions, BackupReport, Batch, BulkLoad, Config, Database, KeptSnapshot,
    Keyspace, KeyspaceOptions, LockMode, Range, ReadyTransaction, Transaction, Value,
};
use crate::error::Result;
use crate::format::Timestamp;
use crate::store::{CheckReport, CheckpointReport, CompactReport};
use crate::task::{WaitMode, ready};
use crate::tree::Direction;
use crate::txn::commit::Durability;
use crate::txn::values::ForTasks;

/// Defines asynchronous forms of a handle's methods, which run as tasks of the given store. Each entry consists of a
/// signature, the corresponding blocking method, and the implementation: a future that waits in the given mode and
/// returns a `Result` of the output. An entry's comments are added to its documentation.
macro_rules! async_forms {
    ($store:expr; $(#[$attribute:meta])* impl $handle:ident { $(
        $(#[$note:meta])*
        pub async fn $name:ident $([$($generics:tt)+])? (& $($receiver:ident)+ $(, $argument:ident: $type:ty)* $(,)?)
            -> $output:ty = $like:ident(|$mode:ident| $work:expr);
    )+ }) => {
        $(#[$attribute])*
        impl $handle {
            $(
                #[doc = concat!("Like [`", stringify!($like), "`](", stringify!($handle), "::", stringify!($like), ").")]
                $(#[$note])*
                ///
                /// # Errors
                #[doc = concat!(
                    "The errors of [`", stringify!($like), "`](", stringify!($handle), "::", stringify!($like), ")."
                )]
                pub async fn $name $(<$($generics)+>)? (& $($receiver)+ $(, $argument: $type)*) -> Result<$output> {
                    let $mode = $store.as_task().await;
                    $work.await
                }
            )+
        }
    };
}

impl Config {
    /// Like [`open`](Config::open). Recovery, which may take seconds, runs on a separate thread.
    ///
    /// # Errors
    /// Same as [`open`](Config::open).
    pub async fn open_async(&self, path: impl AsRef<std::path::Path>) -> Result<Database> {
        let (config, path) = (self.clone(), path.as_ref().to_owned());
        let workers = crate::task::new_workers(&config.settings.choose_backend(&path)?);
        let opened = workers.run(move || config.open(path)).await;
        workers.stop();
        opened
    }
}

impl Alteration {
    /// Like [`commit`](Alteration::commit).
    ///
    /// # Errors
    /// Same as [`commit`](Alteration::commit).
    pub async fn commit_async(self) -> Result<()> {
        let database = self.database().clone();
        database.on_worker(move |_| self.commit()).await
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
    /// The errors of [`Config::open`].
    pub async fn open_async(path: impl AsRef<std::path::Path>) -> Result<Database> {
        Config::new().open_async(path).await
    }

    /// Like [`keyspace`](Database::keyspace).
    ///
    /// # Errors
    /// Same as [`keyspace`](Database::keyspace).
    pub async fn keyspace_async(&self, name: &str) -> Result<Keyspace> {
        self.keyspace_with_async(name, KeyspaceOptions::default()).await
    }

    /// Like [`keyspace_with`](Database::keyspace_with).
    ///
    /// # Errors
    /// Same as [`keyspace_with`](Database::keyspace_with).
    pub async fn keyspace_with_async(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let store = self.store()?;
        store.as_task().await;
        if let Some(open) = store.open_keyspace_of(name) {
            return Ok(Keyspace::new(&self.handle, open));
        }
        let name = name.to_owned();
        self.on_worker(move |database| database.keyspace_with(&name, options)).await
    }

    /// Like [`drop_keyspace`](Database::drop_keyspace).
    ///
    /// # Errors
    /// Same as [`drop_keyspace`](Database::drop_keyspace).
    pub async fn drop_keyspace_async(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.on_worker(move |database| database.drop_keyspace(&name)).await
    }

    /// Like [`bulk_load`](Database::bulk_load).
    ///
    /// # Errors
    /// Same as [`bulk_load`](Database::bulk_load).
    pub async fn bulk_load_async(&self, name: &str) -> Result<BulkLoad> {
        let name = name.to_owned();
        self.on_worker(move |database| database.bulk_load(&name)).await
    }

    /// Like [`sync`](Database::sync).
    ///
    /// # Errors
    /// Same as [`sync`](Database::sync).
    pub async fn sync_async(&self) -> Result<()> {
        self.sync_in(self.store()?.as_task().await).await
    }

    /// Like [`existing_keyspace`](Database::existing_keyspace).
    ///
    /// # Errors
    /// Same as [`existing_keyspace`](Database::existing_keyspace).
    pub async fn existing_keyspace_async(&self, name: &str) -> Result<Keyspace> {
        let store = self.store()?;
        store.as_task().await;
        if let Some(open) = store.open_keyspace_of(name) {
            return Ok(Keyspace::new(&self.handle, open));
        }
        let name = name.to_owned();
        self.on_worker(move |database| database.existing_keyspace(&name)).await
    }

    /// Like [`checkpoint`](Database::checkpoint).
    ///
    /// # Errors
    /// Same as [`checkpoint`](Database::checkpoint).
    pub async fn checkpoint_async(&self) -> Result<CheckpointReport> {
        self.on_worker(Database::checkpoint).await
    }

    /// Like [`compact`](Database::compact).
    ///
    /// # Errors
    /// Same as [`compact`](Database::compact).
    pub async fn compact_async(&self) -> Result<CompactReport> {
        self.on_worker(Database::compact).await
    }

    /// Like [`backup_to`](Database::backup_to).
    ///
    /// # Errors
    /// Same as [`backup_to`](Database::backup_to).
    pub async fn backup_to_async(
        &self,
        folder: impl AsRef<std::path::Path>,
        options: &BackupOptions,
    ) -> Result<BackupReport> {
        let (folder, options) = (folder.as_ref().to_owned(), options.clone());
        self.on_worker(move |database| database.backup_to(folder, &options)).await
    }

    /// Like [`clone_keyspace`](Database::clone_keyspace).
    ///
    /// # Errors
    /// Same as [`clone_keyspace`](Database::clone_keyspace).
    pub async fn clone_keyspace_async(&self, from: &str, to: &str) -> Result<Timestamp> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.on_worker(move |database| database.clone_keyspace(&from, &to)).await
    }

    /// Like [`keep_snapshot`](Database::keep_snapshot).
    ///
    /// # Errors
    /// Same as [`keep_snapshot`](Database::keep_snapshot).
    pub async fn keep_snapshot_async(&self, name: &str) -> Result<Timestamp> {
        let name = name.to_owned();
        self.on_worker(move |database| database.keep_snapshot(&name)).await
    }

    /// Like [`open_snapshot`](Database::open_snapshot).
    ///
    /// # Errors
    /// Same as [`open_snapshot`](Database::open_snapshot).
    pub async fn open_snapshot_async(&self, name: &str) -> Result<KeptSnapshot> {
        let name = name.to_owned();
        self.on_worker(move |database| database.open_snapshot(&name)).await
    }

    /// Like [`drop_snapshot`](Database::drop_snapshot).
    ///
    /// # Errors
    /// Same as [`drop_snapshot`](Database::drop_snapshot).
    pub async fn drop_snapshot_async(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.on_worker(move |database| database.drop_snapshot(&name)).await
    }

    /// Like [`check`](Database::check).
    ///
    /// # Errors
    /// Same as [`check`](Database::check).
    pub async fn check_async(&self) -> Result<CheckReport> {
        self.on_worker(Database::check).await
    }

    /// Like [`close`](Database::close).
    ///
    /// # Errors
    /// Same as [`close`](Database::close).
    pub async fn close_async(self) -> Result<()> {
        let workers = crate::task::new_workers(&self.handle.store_in_process()?.engine.backend);
        let closed = workers.run(move || self.close()).await;
        workers.stop();
        closed
    }
}

async_forms! { self.store()?;
/// The asynchronous forms of the reading methods.
impl Keyspace {
    pub async fn get_async(&self, key: impl AsRef<[u8]>) -> Option<Value>
        = get(|mode| self.rows().get(mode, key.as_ref()));
    /// Dropping the future may leave the vector empty, without its capacity.
    pub async fn get_into_async(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> bool
        = get_into(|mode| self.rows().get_into(mode, key.as_ref(), value));
    /// `look` is an ordinary closure, not an asynchronous one.
    pub async fn get_with_async [R](&self, key: impl AsRef<[u8]>, look: impl FnOnce(&[u8]) -> R) -> Option<R>
        = get_with(|mode| self.rows().get_with(mode, key.as_ref(), look));
    pub async fn contains_key_async(&self, key: impl AsRef<[u8]>) -> bool
        = contains_key(|mode| self.rows().contains_key(mode, key.as_ref()));
    pub async fn contains_many_async [K: AsRef<[u8]>](&self, keys: &[K]) -> Vec<bool>
        = contains_many(|mode| self.rows().contains_many(mode, &bounds::slices(keys)));
    pub async fn get_many_async [K: AsRef<[u8]>](&self, keys: &[K]) -> Vec<Option<Value>>
        = get_many(|mode| self.rows().get_many(mode, &bounds::slices(keys)));
    pub async fn first_async(&self) -> Option<(Value, Value)>
        = first(|mode| self.rows().end(mode, bounds::ALL, Direction::Forward));
    pub async fn last_async(&self) -> Option<(Value, Value)>
        = last(|mode| self.rows().end(mode, bounds::ALL, Direction::Backward));
    pub async fn is_empty_async(&self) -> bool = is_empty(|mode| self.rows().is_empty(mode));
    pub async fn count_async(&self, range: impl KeyRange) -> u64
        = count(|mode| self.rows().count(mode, bounds::owned(&range)));
    pub async fn estimate_async(&self, range: impl KeyRange) -> u64
        = estimate(|mode| self.rows().estimate(mode, bounds::owned(&range)));
    pub async fn len_async(&self) -> u64 = len(|mode| self.rows().count(mode, bounds::ALL));
    pub async fn rank_async(&self, key: impl AsRef<[u8]>) -> u64
        = rank(|mode| self.rows().count(mode, bounds::owned(&..key)));
    pub async fn aggregate_async [R: Reducer](&self, reducer: &R, range: impl KeyRange) -> R::Output
        = aggregate(|mode| self.rows().aggregate(mode, reducer, bounds::owned(&range)));
    pub async fn nth_async(&self, range: impl KeyRange, index: u64) -> Option<(Value, Value)>
        = nth(|mode| self.rows().nth(mode, bounds::owned(&range), index));
    pub async fn sample_async(&self, range: impl KeyRange, row_count: usize) -> Vec<(Value, Value)>
        = sample(|mode| self.rows().sample(mode, bounds::owned(&range), row_count));
    pub async fn read_async(&self, key: impl AsRef<[u8]>) -> Option<AsyncValueReader>
        = read(|mode| async { Ok(self.rows().read(mode, key.as_ref()).await?.map(AsyncValueReader::new)) });
}
}

async_forms! { self.store()?;
/// The asynchronous forms of the writing methods.
impl Keyspace {
    pub async fn insert_async(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> ()
        = insert(|mode| self.insert_in(mode, key.as_ref(), value.as_ref(), self.durability));
    pub async fn insert_with_async(
        &self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability,
    ) -> () = insert_with(|mode| self.insert_in(mode, key.as_ref(), value.as_ref(), durability));
    /// The reader is asynchronous. All such writers share a thirty-second of the memory budget, and the future holds
    /// 320 KiB of it. A leaked future (`std::mem::forget`) occupies its part of the budget until the database is
    /// closed, and the memory itself forever.
    pub async fn insert_from_async(&self, key: impl AsRef<[u8]>, reader: impl AsyncRead + Unpin) -> u64
        = insert_from(|mode| self.insert_from_in(mode, key.as_ref(), ForTasks(reader)));
    pub async fn remove_async(&self, key: impl AsRef<[u8]>) -> () = remove(|mode| self.remove_in(mode, key.as_ref()));
    pub async fn take_async(&self, key: impl AsRef<[u8]>) -> Option<Value>
        = take(|mode| self.take_in(mode, key.as_ref()));
    pub async fn replace_async(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Option<Value>
        = replace(|mode| self.replace_in(mode, key.as_ref(), value.as_ref()));
    pub async fn insert_if_absent_async(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> bool
        = insert_if_absent(|mode| self.insert_if_absent_in(mode, key.as_ref(), value.as_ref()));
    /// `change` is an ordinary closure, not an asynchronous one.
    pub async fn update_async [V: AsRef<[u8]>](
        &self, key: impl AsRef<[u8]>, change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Option<V> = update(|mode| self.update_in(mode, key.as_ref(), change));
    pub async fn compare_and_swap_async(
        &self, key: impl AsRef<[u8]>, expected: Option<&[u8]>, new: Option<&[u8]>,
    ) -> Result<(), Option<Value>>
        = compare_and_swap(|mode| self.compare_and_swap_in(mode, key.as_ref(), expected, new));
    /// If the future is dropped after it has removed a row, the caller never gets that row. To keep a row until it has
    /// been processed, pop it in a [`Transaction`](Transaction::pop_first_in_async).
    pub async fn pop_first_async(&self) -> Option<(Value, Value)>
        = pop_first(|mode| self.pop_in(mode, bounds::ALL, Direction::Forward, WhenLocked::Wait));
    /// See [`pop_first_async`](Keyspace::pop_first_async).
    pub async fn pop_last_async(&self) -> Option<(Value, Value)>
        = pop_last(|mode| self.pop_in(mode, bounds::ALL, Direction::Backward, WhenLocked::Wait));
    /// See [`pop_first_async`](Keyspace::pop_first_async).
    pub async fn pop_first_in_async(&self, range: impl KeyRange) -> Option<(Value, Value)>
        = pop_first_in(|mode| self.pop_in(mode, bounds::owned(&range), Direction::Forward, WhenLocked::Skip));
    /// See [`pop_first_async`](Keyspace::pop_first_async).
    pub async fn pop_last_in_async(&self, range: impl KeyRange) -> Option<(Value, Value)>
        = pop_last_in(|mode| self.pop_in(mode, bounds::owned(&range), Direction::Backward, WhenLocked::Skip));
    /// If the future is dropped, the rows that it has not yet reached remain.
    pub async fn clear_async(&self) -> () = clear(|mode| self.remove_keys(mode, bounds::ALL));
    /// See [`clear_async`](Keyspace::clear_async).
    pub async fn remove_prefix_async(&self, prefix: impl AsRef<[u8]>) -> ()
        = remove_prefix(|mode| self.remove_keys(mode, bounds::of_prefix(prefix.as_ref())));
    /// See [`clear_async`](Keyspace::clear_async).
    pub async fn remove_range_async(&self, range: impl KeyRange) -> ()
        = remove_range(|mode| self.remove_keys(mode, bounds::owned(&range)));
}
}

impl Range {
    /// The async form of the iterator's `next`. Dropping the future loses no row. Leaking it keeps the database open,
    /// like leaking a range.
    pub async fn next_async(&mut self) -> Option<Result<(Value, Value)>> {
        step(self, Direction::Forward).await
    }

    /// The async form of the iterator's `next_back`; otherwise like [`next_async`](Range::next_async).
    pub async fn next_back_async(&mut self) -> Option<Result<(Value, Value)>> {
        step(self, Direction::Backward).await
    }

    /// Like [`for_each_row`](Range::for_each_row). If the future is dropped, no row is lost or shown twice.
    ///
    /// # Errors
    /// Same as [`for_each_row`](Range::for_each_row).
    pub async fn for_each_row_async<B>(
        &mut self,
        look: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        self.for_each_row_in(Direction::Forward, look).await
    }

    /// Like [`for_each_row_async`](Range::for_each_row_async), from the last row to the first.
    ///
    /// # Errors
    /// Same as [`for_each_row`](Range::for_each_row).
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
            // A range never waits if it could not be opened, or if its database is closed.
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

async_forms! { self.store()?;
impl Reader {
    pub async fn get_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Option<Value>
        = get(|mode| self.rows(keyspace)?.get(mode, key.as_ref()));
    /// Dropping the future may leave the vector empty, without its capacity.
    pub async fn get_into_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> bool
        = get_into(|mode| self.rows(keyspace)?.get_into(mode, key.as_ref(), value));
    /// `look` is an ordinary closure, not an asynchronous one.
    pub async fn get_with_async [R](
        &self, keyspace: &Keyspace, key: impl AsRef<[u8]>, look: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> = get_with(|mode| self.rows(keyspace)?.get_with(mode, key.as_ref(), look));
    pub async fn contains_key_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> bool
        = contains_key(|mode| self.rows(keyspace)?.contains_key(mode, key.as_ref()));
    pub async fn contains_many_async [K: AsRef<[u8]>](&self, keyspace: &Keyspace, keys: &[K]) -> Vec<bool>
        = contains_many(|mode| self.rows(keyspace)?.contains_many(mode, &bounds::slices(keys)));
    pub async fn get_many_async [K: AsRef<[u8]>](&self, keyspace: &Keyspace, keys: &[K]) -> Vec<Option<Value>>
        = get_many(|mode| self.rows(keyspace)?.get_many(mode, &bounds::slices(keys)));
    pub async fn first_async(&self, keyspace: &Keyspace) -> Option<(Value, Value)>
        = first(|mode| self.rows(keyspace)?.end(mode, bounds::ALL, Direction::Forward));
    pub async fn last_async(&self, keyspace: &Keyspace) -> Option<(Value, Value)>
        = last(|mode| self.rows(keyspace)?.end(mode, bounds::ALL, Direction::Backward));
    pub async fn is_empty_async(&self, keyspace: &Keyspace) -> bool
        = is_empty(|mode| self.rows(keyspace)?.is_empty(mode));
    pub async fn count_async(&self, keyspace: &Keyspace, range: impl KeyRange) -> u64
        = count(|mode| self.rows(keyspace)?.count(mode, bounds::owned(&range)));
    pub async fn len_async(&self, keyspace: &Keyspace) -> u64
        = len(|mode| self.rows(keyspace)?.count(mode, bounds::ALL));
    pub async fn rank_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> u64
        = rank(|mode| self.rows(keyspace)?.count(mode, bounds::owned(&..key)));
    pub async fn aggregate_async [R: Reducer](
        &self, keyspace: &Keyspace, reducer: &R, range: impl KeyRange,
    ) -> R::Output = aggregate(|mode| self.rows(keyspace)?.aggregate(mode, reducer, bounds::owned(&range)));
    pub async fn nth_async(&self, keyspace: &Keyspace, range: impl KeyRange, index: u64) -> Option<(Value, Value)>
        = nth(|mode| self.rows(keyspace)?.nth(mode, bounds::owned(&range), index));
    pub async fn sample_async(
        &self, keyspace: &Keyspace, range: impl KeyRange, row_count: usize,
    ) -> Vec<(Value, Value)> = sample(|mode| self.rows(keyspace)?.sample(mode, bounds::owned(&range), row_count));
    pub async fn read_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Option<AsyncValueReader>
        = read(|mode| async { Ok(self.rows(keyspace)?.read(mode, key.as_ref()).await?.map(AsyncValueReader::new)) });
}
}

// These calls run on the keyspace's store: they fail unless the keyspace belongs to the transaction's own database.
async_forms! { keyspace.store()?;
impl Transaction {
    pub async fn get_for_update_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Option<Value>
        = get_for_update(|mode| self.get_locked_in(mode, keyspace, key.as_ref(), LockMode::Exclusive));
    pub async fn get_for_share_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Option<Value>
        = get_for_share(|mode| self.get_locked_in(mode, keyspace, key.as_ref(), LockMode::Shared));
    pub async fn lock_row_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, lock_mode: LockMode) -> ()
        = lock_row(|mode| self.lock_row_in(mode, keyspace, key.as_ref(), lock_mode));
    pub async fn try_lock_row_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, lock_mode: LockMode) -> bool
        = try_lock_row(|mode| self.try_lock_row_in(mode, keyspace, key.as_ref(), lock_mode));
    pub async fn insert_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> ()
        = insert(|mode| self.insert_in(mode, keyspace, key.as_ref(), value.as_ref()));
    /// The reader is asynchronous. All such writers share a thirty-second of the memory budget, and the future holds
    /// 320 KiB of it. A leaked future (`std::mem::forget`) occupies its part of the budget until the database is
    /// closed, and the memory itself forever.
    pub async fn insert_from_async(
        &mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, reader: impl AsyncRead + Unpin,
    ) -> u64 = insert_from(|mode| self.insert_from_in(mode, keyspace, key.as_ref(), ForTasks(reader)));
    pub async fn remove_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> ()
        = remove(|mode| self.remove_in(mode, keyspace, key.as_ref()));
    pub async fn take_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Option<Value>
        = take(|mode| self.take_in(mode, keyspace, key.as_ref()));
    pub async fn replace_async(
        &mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>,
    ) -> Option<Value> = replace(|mode| self.replace_in(mode, keyspace, key.as_ref(), value.as_ref()));
    pub async fn insert_if_absent_async(
        &mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>,
    ) -> bool = insert_if_absent(|mode| self.insert_if_absent_in(mode, keyspace, key.as_ref(), value.as_ref()));
    /// `change` is an ordinary closure, not an asynchronous one.
    pub async fn update_async [V: AsRef<[u8]>](
        &mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Option<V> = update(|mode| self.update_in(mode, keyspace, key.as_ref(), change));
    pub async fn compare_and_swap_async(
        &mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, expected: Option<&[u8]>, new: Option<&[u8]>,
    ) -> Result<(), Option<Value>>
        = compare_and_swap(|mode| self.compare_and_swap_in(mode, keyspace, key.as_ref(), expected, new));
    pub async fn pop_first_async(&mut self, keyspace: &Keyspace) -> Option<(Value, Value)>
        = pop_first(|mode| self.pop_in(mode, keyspace, Direction::Forward));
    pub async fn pop_last_async(&mut self, keyspace: &Keyspace) -> Option<(Value, Value)>
        = pop_last(|mode| self.pop_in(mode, keyspace, Direction::Backward));
    pub async fn pop_first_in_async(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Option<(Value, Value)>
        = pop_first_in(|mode| self.pop_free_in(mode, keyspace, bounds::owned(&range), Direction::Forward));
    pub async fn pop_last_in_async(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Option<(Value, Value)>
        = pop_last_in(|mode| self.pop_free_in(mode, keyspace, bounds::owned(&range), Direction::Backward));
}
}

impl Transaction {
    /// Like [`commit`](Transaction::commit). Dropping the future before the transaction has its timestamp aborts the
    /// transaction; after that, the commit completes even if its future is dropped.
    ///
    /// # Errors
    /// Same as [`commit`](Transaction::commit).
    pub async fn commit_async(self) -> Result<Timestamp> {
        let store = Arc::clone(self.store()?);
        self.commit_in(store.as_task().await).await
    }

    /// Like [`prepare`](Transaction::prepare). Dropping the future before the prepare has its timestamp aborts the
    /// transaction; after that, it is prepared even without its future.
    ///
    /// # Errors
    /// Same as [`prepare`](Transaction::prepare).
    pub async fn prepare_async(self, id: impl AsRef<[u8]>) -> Result<()> {
        let store = Arc::clone(self.store()?);
        self.prepare_in(store.as_task().await, id.as_ref()).await
    }
}

async_forms! { self.store()?;
/// Prepared transactions.
impl Database {
    /// Dropping the future before the commit has its timestamp leaves the transaction prepared; after that, the commit
    /// completes without its future.
    pub async fn commit_prepared_async(&self, id: impl AsRef<[u8]>) -> Timestamp
        = commit_prepared(|mode| self.commit_prepared_in(mode, id.as_ref(), self.tx_options().durability));
    /// See [`commit_prepared_async`](Database::commit_prepared_async).
    pub async fn commit_prepared_with_async(&self, id: impl AsRef<[u8]>, durability: Durability) -> Timestamp
        = commit_prepared_with(|mode| self.commit_prepared_in(mode, id.as_ref(), durability));
    /// Dropping the future leaves the transaction prepared.
    pub async fn ready_prepared_async(&self, id: impl AsRef<[u8]>) -> ReadyTransaction
        = ready_prepared(|mode| self.ready_prepared_in(mode, id.as_ref()));
    /// See [`commit_prepared_async`](Database::commit_prepared_async).
    pub async fn abort_prepared_async(&self, id: impl AsRef<[u8]>) -> ()
        = abort_prepared(|mode| self.abort_prepared_in(mode, id.as_ref()));
}
}

async_forms! { keyspace.store()?;
impl Batch {
    /// This call waits only if the value is over 64 KiB.
    pub async fn insert_async(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> ()
        = insert(|mode| self.insert_in(mode, keyspace, key.as_ref(), value.as_ref()));
    /// The reader is asynchronous. See [`Keyspace::insert_from_async`].
    pub async fn insert_from_async(
        &mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, reader: impl AsyncRead + Unpin,
    ) -> u64 = insert_from(|mode| self.insert_from_in(mode, keyspace, key.as_ref(), ForTasks(reader)));
}
}

impl Batch {
    /// Like [`commit`](Batch::commit). Dropping the future before the batch has its timestamp aborts the batch; after
    /// that, the commit completes even if its future is dropped.
    ///
    /// # Errors
    /// Same as [`commit`](Batch::commit).
    pub async fn commit_async(self) -> Result<Timestamp> {
        self.transaction.commit_async().await
    }

    /// Like [`commit_with`](Batch::commit_with); see [`commit_async`](Batch::commit_async).
    ///
    /// # Errors
    /// Same as [`commit`](Batch::commit).
    pub async fn commit_with_async(mut self, durability: Durability) -> Result<Timestamp> {
        self.transaction.set_durability(durability);
        self.commit_async().await
    }
}
