//! Atomic changes to single rows that depend on the row's newest value. Each change is a separate commit.
//!
//! Each of these calls locks the row, reads its newest committed value and commits the change before it releases the
//! lock. Calls for the same row therefore take effect one after another, and never need a retry.

use super::bounds::{KeyRange, OwnedBounds};
use super::range::Steps;
use super::rows::{Horizon, ReadView, Rows};
use super::shortage::Shortage;
use super::{Keyspace, Value, bounds};
use crate::error::Result;
use crate::store::{LockedRow, NotFree};
use crate::task::{Rooted, WaitMode, ready};
use crate::tree::Direction;
use crate::txn::values::{self, Blocking, MEDIUM_BYTES_MAX};
use crate::txn::write_set::Change;
use std::future::Future;

/// The behaviour of a pop if all rows in its range are locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WhenLocked {
    /// The pop waits for the first locked row.
    Wait,
    /// The pop returns no row.
    Skip,
}

/// Atomic changes to single rows that read the row's newest value first. Each call locks its row, so no other writer
/// changes the row between the read and the commit. Calls from many threads take effect one after another and never
/// need a retry. A call may see a commit that is not durable yet, but when it returns, that commit is as durable as the
/// call's own change. A [`Transaction`](crate::Transaction) has the same calls, for changes that must be committed
/// together.
impl Keyspace {
    /// Removes the row and returns its value. If there is no such row, returns `None` and commits nothing. Durable when
    /// it returns, unless the handle's durability is relaxed. O(log n).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// k.insert("a", "1")?;
    /// assert_eq!(k.take("a")?.unwrap(), "1");
    /// assert!(k.take("a")?.is_none());
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`get`](Keyspace::get) and [`insert`](Keyspace::insert). Also works on a full disk.
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.take_in(WaitMode::Blocking, key.as_ref()))
    }

    #[inline(never)]
    pub(super) fn take_in(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
    ) -> Rooted<impl Future<Output = Result<Option<Value>>>> {
        Rooted::new(async move {
            let row = self.lock_newest(mode, key).await?;
            let Some(value) = row.get::<Value>(mode).await? else {
                row.leave(mode, self.durability).await?;
                return Ok(None);
            };
            row.commit(mode, Change::Remove, self.durability).await?;
            Ok(Some(value))
        })
    }

    /// Puts the row and returns its previous value, or `None` if there was no such row. O(log n).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// assert!(k.replace("a", "1")?.is_none());
    /// assert_eq!(k.replace("a", "2")?.unwrap(), "1");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`get`](Keyspace::get) and [`insert`](Keyspace::insert).
    pub fn replace(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.replace_in(WaitMode::Blocking, key.as_ref(), value.as_ref()))
    }

    #[inline(never)]
    pub(super) fn replace_in(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        value: &[u8],
    ) -> Rooted<impl Future<Output = Result<Option<Value>>>> {
        Rooted::new(async move {
            let row = self.lock_newest(mode, key).await?;
            let before = row.get(mode).await?;
            self.put_locked(mode, row, value).await?;
            Ok(before)
        })
    }

    /// Puts the row unless there is already one with this key. Returns `true` if it was put. O(log n). Does not read a
    /// large existing value.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// assert!(k.insert_if_absent("a", "1")?);
    /// assert!(!k.insert_if_absent("a", "2")?);
    /// assert_eq!(k.get("a")?.unwrap(), "1");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`get`](Keyspace::get) and [`insert`](Keyspace::insert).
    pub fn insert_if_absent(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        ready(self.insert_if_absent_in(WaitMode::Blocking, key.as_ref(), value.as_ref()))
    }

    #[inline(never)]
    pub(super) fn insert_if_absent_in(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        value: &[u8],
    ) -> Rooted<impl Future<Output = Result<bool>>> {
        Rooted::new(async move {
            let row = self.lock_newest(mode, key).await?;
            if row.exists(mode).await? {
                row.leave(mode, self.durability).await?;
                return Ok(false);
            }
            self.put_locked(mode, row, value).await?;
            Ok(true)
        })
    }

    /// Replaces the row's value with the result of `change`. `None` means that there is no row, before or after the
    /// call. Returns the value that `change` returned. O(log n).
    ///
    /// `change` runs once, while the row is locked. Other writers of the row wait for it, so it should be quick. It
    /// must not write the same row through the keyspace: that fails with [`LockTimeout`](crate::Error::LockTimeout). If
    /// it panics, the row is unchanged. If it returns `None` and there is no row, nothing is committed.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let count = |old: Option<&[u8]>| {
    ///     let before = old.map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")));
    ///     Some((before + 1).to_be_bytes())
    /// };
    /// k.update("visits", count)?;
    /// assert_eq!(k.update("visits", count)?, Some(2u64.to_be_bytes()));
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`get`](Keyspace::get) and [`insert`](Keyspace::insert).
    pub fn update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<V>> {
        ready(self.update_in(WaitMode::Blocking, key.as_ref(), change))
    }

    pub(super) async fn update_in<V: AsRef<[u8]>>(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<V>> {
        let (row, before) = self.lock_and_get(mode, key).await?;
        let after = {
            let _running = row.enter_body();
            change(before.as_deref())
        };
        let new = after.as_ref().map(AsRef::as_ref);
        self.change_locked(mode, row, before.is_some(), new).await?;
        Ok(after)
    }

    /// Changes the row to `new` if its value is `expected`. `None` means that there is no row. If the row has a
    /// different value, the inner result is `Err(found)` with that value, and nothing is committed. O(log n).
    ///
    /// If `expected` and `new` are both `None`, the call only checks that the row does not exist.
    /// [`update`](Keyspace::update) avoids the loop that callers of this method usually need.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// assert_eq!(k.compare_and_swap("a", None, Some(b"1"))?, Ok(()));
    /// assert_eq!(k.compare_and_swap("a", None, Some(b"2"))?, Err(Some("1".into())));
    /// assert_eq!(k.compare_and_swap("a", Some(b"1"), None)?, Ok(()));
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`get`](Keyspace::get) and [`insert`](Keyspace::insert).
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), Option<Value>>> {
        ready(self.compare_and_swap_in(WaitMode::Blocking, key.as_ref(), expected, new))
    }

    #[inline(never)]
    pub(super) fn compare_and_swap_in(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Rooted<impl Future<Output = Result<Result<(), Option<Value>>>>> {
        Rooted::new(async move {
            let row = self.lock_newest(mode, key).await?;
            let found = row.get::<Value>(mode).await?;
            if found.as_deref() != expected {
                row.leave(mode, self.durability).await?;
                return Ok(Err(found));
            }
            self.change_locked(mode, row, found.is_some(), new).await?;
            Ok(Ok(()))
        })
    }

    /// Removes and returns the first row in key order that no other caller has locked, or returns `None` if there are
    /// no rows. O(log n), plus one scan step per skipped row.
    ///
    /// Concurrent callers get different rows, and no row is lost. The call skips a row that another caller or a
    /// transaction has locked; once it is unlocked, later calls pop it first. Consumers of a queue therefore do not
    /// wait for each other, and their commits share syncs. If every row is locked, the call waits for the first one, so
    /// `None` means that the keyspace was empty at some point during the call. If a row with a lower key is inserted
    /// during the call, the call may still pop the later row.
    ///
    /// Use [`pop_first_in`](Keyspace::pop_first_in) for a queue whose consumers should skip rows that transactions have
    /// locked, or whose rows become visible at a later time. To keep a job until it is done, pop it with
    /// [`Transaction::pop_first_in`](crate::Transaction::pop_first_in).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// let jobs = db.keyspace("jobs")?;
    /// jobs.insert("1", "wash")?;
    /// jobs.insert("2", "dry")?;
    /// while let Some((key, job)) = jobs.pop_first()? {
    ///     println!("{key:?}: {job:?}");
    /// }
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`first`](Keyspace::first) and [`insert`](Keyspace::insert). Also works on a full disk.
    pub fn pop_first(&self) -> Result<Option<(Value, Value)>> {
        ready(self.pop_in(WaitMode::Blocking, bounds::ALL, Direction::Forward, WhenLocked::Wait))
    }

    /// Removes and returns the last row in key order that no other caller has locked. Otherwise like
    /// [`pop_first`](Keyspace::pop_first).
    ///
    /// # Errors
    /// Same as [`pop_first`](Keyspace::pop_first).
    pub fn pop_last(&self) -> Result<Option<(Value, Value)>> {
        ready(self.pop_in(WaitMode::Blocking, bounds::ALL, Direction::Backward, WhenLocked::Wait))
    }

    /// Removes and returns the first row of a range that no other caller has locked. Never waits for a row: returns
    /// `None` if there are no rows in the range or all of them are locked. Otherwise like
    /// [`pop_first`](Keyspace::pop_first).
    ///
    /// This is SQL's `SKIP LOCKED`: the call skips a row while a transaction has it locked. No row is skipped forever,
    /// because every call begins at the front of the range: the first call after the lock is released pops the row. A
    /// queue that does not choose its next row by key order can lock rows in a transaction that does not wait: see the
    /// example at [`LockHolder`](crate::LockHolder).
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let jobs = db.keyspace("jobs")?;
    /// // The first eight bytes of a job's key are the time at which the job becomes visible.
    /// let key = |time: u64, number: u64| [time.to_be_bytes(), number.to_be_bytes()].concat();
    /// jobs.insert(key(100, 1), "wash")?;
    /// jobs.insert(key(100, 2), "dry")?;
    /// jobs.insert(key(200, 3), "iron")?;
    /// let mut worker = db.begin()?;
    /// worker.get_for_update(&jobs, key(100, 1))?; // works on the job
    /// let now = 150;
    /// let (_, job) = jobs.pop_first_in(..=key(now, u64::MAX))?.expect("the second is free");
    /// assert_eq!(job, "dry");
    /// assert!(jobs.pop_first_in(..=key(now, u64::MAX))?.is_none()); // one job is locked, the other not visible yet
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`pop_first`](Keyspace::pop_first), except [`LockTimeout`](crate::Error::LockTimeout).
    pub fn pop_first_in(&self, range: impl KeyRange) -> Result<Option<(Value, Value)>> {
        ready(self.pop_in(WaitMode::Blocking, bounds::owned(&range), Direction::Forward, WhenLocked::Skip))
    }

    /// Removes and returns the last row of a range that no other caller has locked. Otherwise like
    /// [`pop_first_in`](Keyspace::pop_first_in).
    ///
    /// # Errors
    /// Same as [`pop_first_in`](Keyspace::pop_first_in).
    pub fn pop_last_in(&self, range: impl KeyRange) -> Result<Option<(Value, Value)>> {
        ready(self.pop_in(WaitMode::Blocking, bounds::owned(&range), Direction::Backward, WhenLocked::Skip))
    }

    #[inline(never)]
    pub(super) fn pop_in(
        &self,
        mode: WaitMode<'_>,
        range: OwnedBounds,
        direction: Direction,
        when_locked: WhenLocked,
    ) -> Rooted<impl Future<Output = Result<Option<(Value, Value)>>>> {
        Rooted::new(async move {
            let store = self.store()?;
            store.engine.check_failure()?;
            let mut memory = None;
            loop {
                let snapshot = store.open_snapshot(|| store.engine.clock.published());
                let seen = snapshot.timestamp;
                let view = ReadView {
                    horizon: Horizon::Fixed(snapshot),
                    own: None,
                    reads: None,
                    shortage: Shortage::default(),
                };
                let rows = Rows { view: Some(&view), ..self.rows() };
                let mut keys = rows.scan(range.clone()).one_at_first().keys();
                let (mut first_locked, mut has_passed_removed) = (None, false);
                let needs_memory = loop {
                    let Some(key) = keys.next_in(mode, direction).await.transpose()? else { break None };
                    store.check_write(&self.open, &key)?;
                    let row = match store.lock_newest_if_free(mode, &self.open.tree, &key, &mut memory).await {
                        Ok(row) => row,
                        Err(NotFree::Failed(error)) => return Err(error),
                        Err(NotFree::Memory) => break Some(key.clone()),
                        Err(NotFree::Row) => {
                            first_locked.get_or_insert_with(|| key.clone());
                            continue;
                        }
                    };
                    let Some(value) = row.get::<Value>(mode).await? else {
                        has_passed_removed = true;
                        continue;
                    };
                    // Drop the scan and its snapshot before waiting for the commit.
                    drop((keys, view));
                    row.commit(mode, Change::Remove, self.durability).await?;
                    return Ok(Some((key, value)));
                };
                drop((keys, view));
                if let Some(key) = needs_memory {
                    memory = Some(store.lock_memory(mode, &key).await?);
                    continue;
                }
                if has_passed_removed {
                    // Other callers have popped rows since the snapshot, and may have inserted new ones, so look again.
                    continue;
                }
                let Some(key) = first_locked.filter(|_| when_locked == WhenLocked::Wait) else {
                    store.confirm(mode, seen, self.durability).await?;
                    return Ok(None);
                };
                memory = None;
                let row = self.lock_newest(mode, &key).await?;
                if let Some(value) = row.get(mode).await? {
                    row.commit(mode, Change::Remove, self.durability).await?;
                    return Ok(Some((key, value)));
                }
            }
        })
    }

    #[inline(never)]
    fn lock_and_get<'k>(
        &'k self,
        mode: WaitMode<'k>,
        key: &'k [u8],
    ) -> Rooted<impl Future<Output = Result<(LockedRow<'k>, Option<Value>)>>> {
        Rooted::new(async move {
            let row = self.lock_newest(mode, key).await?;
            let value = row.get(mode).await?;
            Ok((row, value))
        })
    }

    /// Commits the locked row's new value, or its removal if `new` is `None`. If there is no row to remove, only
    /// releases the lock.
    #[inline(never)]
    fn change_locked(
        &self,
        mode: WaitMode<'_>,
        row: LockedRow<'_>,
        was_there: bool,
        new: Option<&[u8]>,
    ) -> Rooted<impl Future<Output = Result<()>>> {
        Rooted::new(async move {
            match new {
                Some(value) => self.put_locked(mode, row, value).await,
                None if was_there => row.commit(mode, Change::Remove, self.durability).await,
                None => row.leave(mode, self.durability).await,
            }
        })
    }

    async fn lock_newest<'k>(&'k self, mode: WaitMode<'_>, key: &'k [u8]) -> Result<LockedRow<'k>> {
        let store = self.store()?;
        store.check_write(&self.open, key)?;
        store.engine.check_failure()?;
        store.lock_newest(mode, &self.open.tree, key).await
    }

    async fn put_locked(&self, mode: WaitMode<'_>, row: LockedRow<'_>, value: &[u8]) -> Result<()> {
        if value.len() <= MEDIUM_BYTES_MAX {
            return row.commit(mode, Change::Put(value), self.durability).await;
        }
        let store = self.store()?;
        let memory = store.source_memory(mode).await?;
        let tree = &self.open.tree;
        let (value_id, reclaim) = (store.new_value(), &store.engine.reclaim);
        let value = values::write_large(mode, tree, value_id, Blocking(value), memory, reclaim).await?;
        // Until the commit is applied, `value` owns its space: if this call fails or is dropped, the space is released.
        row.commit(mode, Change::PutLarge(&value), self.durability).await
    }
}
