//! Changes to a row that depend on its value, within a transaction. The corresponding calls of a keyspace, each a
//! transaction of its own, are in `atomic.rs`.

use std::future::Future;
use std::ops::Bound;

use super::bounds::{KeyRange, OwnedBounds};
use super::range::Steps;
use super::transaction::Transaction;
use super::{Keyspace, LockMode, Value, bounds};
use crate::error::Result;
use crate::task::{Rooted, WaitMode, ready};
use crate::tree::Direction;

/// Changes to rows that depend on their value. Each call locks its row, like
/// [`get_for_update`](Transaction::get_for_update), and uses the value that the transaction sees. No other transaction
/// can change that value before the commit. [`Keyspace`] has the same calls, but each of them is a transaction of its
/// own.
impl Transaction {
    /// Removes the row and returns its value, or `None` if there is no such row.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let (jobs, running) = (db.keyspace("jobs")?, db.keyspace("running")?);
    /// jobs.insert("1", "wash")?;
    /// db.transact(|tx| match tx.take(&jobs, "1")? {
    ///     Some(job) => tx.insert(&running, "1", job),
    ///     None => Ok(()),
    /// })?;
    /// assert_eq!(running.get("1")?.unwrap(), "wash");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`get_for_update`](Transaction::get_for_update) and [`insert`](Transaction::insert).
    pub fn take(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ready(self.take_in(WaitMode::Blocking, keyspace, key.as_ref()))
    }

    #[inline(never)]
    pub(super) fn take_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Rooted<impl Future<Output = Result<Option<Value>>>> {
        Rooted::new(async move {
            let found = self.get_locked_in(mode, keyspace, key, LockMode::Exclusive).await?;
            if found.is_some() {
                self.remove_in(mode, keyspace, key).await?;
            }
            Ok(found)
        })
    }

    /// Puts the row and returns its previous value, or `None` if there was no such row.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut tx = db.begin()?;
    /// assert!(tx.replace(&k, "a", "1")?.is_none());
    /// assert_eq!(tx.replace(&k, "a", "2")?.unwrap(), "1");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`take`](Transaction::take).
    pub fn replace(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Value>> {
        ready(self.replace_in(WaitMode::Blocking, keyspace, key.as_ref(), value.as_ref()))
    }

    #[inline(never)]
    pub(super) fn replace_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Rooted<impl Future<Output = Result<Option<Value>>>> {
        Rooted::new(async move {
            let before = self.get_locked_in(mode, keyspace, key, LockMode::Exclusive).await?;
            self.insert_in(mode, keyspace, key, value).await?;
            Ok(before)
        })
    }

    /// Puts the row unless there is already one with this key. Returns `true` if it was put. Does not read a large
    /// existing value.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut tx = db.begin()?;
    /// assert!(tx.insert_if_absent(&k, "a", "1")?);
    /// assert!(!tx.insert_if_absent(&k, "a", "2")?);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`take`](Transaction::take).
    pub fn insert_if_absent(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool> {
        ready(self.insert_if_absent_in(WaitMode::Blocking, keyspace, key.as_ref(), value.as_ref()))
    }

    #[inline(never)]
    pub(super) fn insert_if_absent_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Rooted<impl Future<Output = Result<bool>>> {
        Rooted::new(async move {
            let is_absent = !self.contains_for_update_in(mode, keyspace, key).await?;
            if is_absent {
                self.insert_in(mode, keyspace, key, value).await?;
            }
            Ok(is_absent)
        })
    }

    /// Replaces the row's value with the result of `change`. `None` means that there is no row, before or after the
    /// call. Returns the value that `change` returned.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut tx = db.begin()?;
    /// let longer = tx.update(&k, "a", |old| Some([old.unwrap_or_default(), b"x"].concat()))?;
    /// assert_eq!(longer.unwrap(), b"x");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`take`](Transaction::take).
    pub fn update<V: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<V>> {
        ready(self.update_in(WaitMode::Blocking, keyspace, key.as_ref(), change))
    }

    pub(super) async fn update_in<V: AsRef<[u8]>>(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        change: impl FnOnce(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<V>> {
        let before = self.get_locked_in(mode, keyspace, key, LockMode::Exclusive).await?;
        let after = {
            let _running = self.body().enter();
            change(before.as_deref())
        };
        match &after {
            Some(value) => self.insert_in(mode, keyspace, key, value.as_ref()).await?,
            None if before.is_some() => self.remove_in(mode, keyspace, key).await?,
            None => {}
        }
        Ok(after)
    }

    /// Changes the row to `new` if its value is `expected`. `None` means that there is no row. If the row has a
    /// different value, the inner result is `Err(found)` with that value, and the row is unchanged.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let k = db.keyspace("k")?;
    /// let mut tx = db.begin()?;
    /// assert_eq!(tx.compare_and_swap(&k, "a", None, Some(b"1"))?, Ok(()));
    /// assert_eq!(tx.compare_and_swap(&k, "a", None, Some(b"2"))?, Err(Some("1".into())));
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`take`](Transaction::take).
    pub fn compare_and_swap(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), Option<Value>>> {
        ready(self.compare_and_swap_in(WaitMode::Blocking, keyspace, key.as_ref(), expected, new))
    }

    #[inline(never)]
    pub(super) fn compare_and_swap_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Rooted<impl Future<Output = Result<Result<(), Option<Value>>>>> {
        Rooted::new(async move {
            let found = self.get_locked_in(mode, keyspace, key, LockMode::Exclusive).await?;
            if found.as_deref() != expected {
                return Ok(Err(found));
            }
            match new {
                Some(value) => self.insert_in(mode, keyspace, key, value).await?,
                None if found.is_some() => self.remove_in(mode, keyspace, key).await?,
                None => {}
            }
            Ok(Ok(()))
        })
    }

    /// Removes and returns the first row in key order, or returns `None` if there are no rows. O(log n), plus O(log n)
    /// for each leaf whose rows the transaction has removed.
    ///
    /// If two transactions want the same row, the second waits for the first to end. If the first has removed the row,
    /// the second has a conflict, or, with [`Isolation::ReadCommitted`](crate::Isolation::ReadCommitted), gets the next
    /// row. By contrast, [`pop_first_in`](Transaction::pop_first_in) skips a locked row without waiting.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let (jobs, running) = (db.keyspace("jobs")?, db.keyspace("running")?);
    /// jobs.insert("1", "wash")?;
    /// db.transact(|tx| match tx.pop_first(&jobs)? {
    ///     Some((key, job)) => tx.insert(&running, key, job),
    ///     None => Ok(()),
    /// })?;
    /// assert!(jobs.is_empty()? && !running.is_empty()?);
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`first`](crate::Reader::first) and [`take`](Transaction::take).
    pub fn pop_first(&mut self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        ready(self.pop_in(WaitMode::Blocking, keyspace, Direction::Forward))
    }

    /// Removes and returns the last row in key order. Otherwise like [`pop_first`](Transaction::pop_first).
    ///
    /// # Errors
    /// Same as [`pop_first`](Transaction::pop_first).
    pub fn pop_last(&mut self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        ready(self.pop_in(WaitMode::Blocking, keyspace, Direction::Backward))
    }

    /// Removes and returns the first row of a range that no other transaction has locked, or changed since this one
    /// began. Never waits for a row and never conflicts: returns `None` if there is no such row. O(log n), plus a step
    /// of a scan for each row that is skipped.
    ///
    /// Like [`Keyspace::pop_first_in`], this skips locked rows. Later calls find them once they are unlocked. So many
    /// workers can each take a job and hold it until they commit. With
    /// [`Isolation::Serializable`](crate::Isolation::Serializable), a skipped row counts as read: if the owner of its
    /// lock changes it, this transaction has a conflict. With
    /// [`Isolation::ReadCommitted`](crate::Isolation::ReadCommitted), the call also finds jobs that were inserted after
    /// the transaction began.
    ///
    /// ```
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let jobs = db.keyspace("jobs")?;
    /// jobs.insert("1", "wash")?;
    /// jobs.insert("2", "dry")?;
    /// let (mut one, mut other) = (db.begin()?, db.begin()?);
    /// let (_, job) = one.pop_first_in(&jobs, ..)?.expect("both are free");
    /// assert_eq!(job, "wash");
    /// let (_, job) = other.pop_first_in(&jobs, ..)?.expect("one is free");
    /// assert_eq!(job, "dry");
    /// other.commit()?; // its job is done
    /// drop(one); // its job returns to the queue
    /// assert_eq!(jobs.first()?.expect("it is there").1, "wash");
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`first`](crate::Reader::first) and [`insert`](Transaction::insert), except
    /// [`LockTimeout`](crate::Error::LockTimeout).
    pub fn pop_first_in(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Option<(Value, Value)>> {
        ready(self.pop_free_in(WaitMode::Blocking, keyspace, bounds::owned(&range), Direction::Forward))
    }

    /// Removes and returns the last row of a range that no other transaction has locked, or changed since this one
    /// began. Otherwise like [`pop_first_in`](Transaction::pop_first_in).
    ///
    /// # Errors
    /// Same as [`pop_first_in`](Transaction::pop_first_in).
    pub fn pop_last_in(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Option<(Value, Value)>> {
        ready(self.pop_free_in(WaitMode::Blocking, keyspace, bounds::owned(&range), Direction::Backward))
    }

    #[inline(never)]
    pub(super) fn pop_free_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        (mut lower, mut upper): OwnedBounds,
        direction: Direction,
    ) -> Rooted<impl Future<Output = Result<Option<(Value, Value)>>>> {
        Rooted::new(async move {
            loop {
                let mut keys = self.rows(keyspace)?.scan((lower.clone(), upper.clone())).one_at_first().keys();
                // While the scan is open, a removal has to copy the write set. So end the scan as soon as a row is
                // locked.
                let key = loop {
                    let Some(key) = keys.next_in(mode, direction).await.transpose()? else { return Ok(None) };
                    if self.lock_if_free(mode, keyspace, &key).await? {
                        break key;
                    }
                };
                drop(keys);
                if let Some(value) = self.take_in(mode, keyspace, &key).await? {
                    return Ok(Some((key, value)));
                }
                // Another transaction has removed the row since the scan read it. This is possible only under read
                // committed.
                match direction {
                    Direction::Forward => lower = Bound::Excluded(key.to_vec()),
                    Direction::Backward => upper = Bound::Excluded(key.to_vec()),
                }
            }
        })
    }

    #[inline(never)]
    pub(super) fn pop_in(
        &mut self,
        mode: WaitMode<'_>,
        keyspace: &Keyspace,
        direction: Direction,
    ) -> Rooted<impl Future<Output = Result<Option<(Value, Value)>>>> {
        Rooted::new(async move {
            loop {
                let mut keys = self.rows(keyspace)?.scan(bounds::ALL).one_at_first().keys();
                let Some(key) = keys.next_in(mode, direction).await.transpose()? else { return Ok(None) };
                // Drop the scan first: while it is open, a removal has to copy the write set.
                drop(keys);
                if let Some(value) = self.take_in(mode, keyspace, &key).await? {
                    return Ok(Some((key, value)));
                }
                // Another transaction has removed the row since the scan read it. This is possible only under read
                // committed.
            }
        })
    }
}
