//! The reading operations. Each operation is written once, for plain calls, snapshots and transactions, and for both
//! wait modes.
//!
//! [`Rows`] are the rows of one keyspace as one reader sees them. The methods of the public handles check that the
//! keyspace belongs to their database, choose the wait mode, and call the operation of the same name here.

use std::future::Future;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Value;
use super::bounds::{self, OwnedBounds};
use super::handle::Handle;
use super::range::{Range, Steps};
use super::shortage::Shortage;
use super::value::ShownValue;
use super::value_reader::{Content, ValueReader};
use crate::counts::{CountedTree, interval_of};
use crate::error::Result;
use crate::format::Timestamp;
use crate::store::Store;
use crate::task::{Boxed, Rooted, WaitMode};
use crate::tree::Direction;
use crate::txn::engine::{Destination, Found, ReadAt};
use crate::txn::read_set::SharedReads;
use crate::txn::snapshots::SnapshotHandle;
use crate::txn::spilled::writes::OwnedChange;
use crate::txn::write_set::{Change, SharedWrites};

/// The commits that are visible to a reader.
pub(super) enum Horizon {
    /// The commits up to one snapshot.
    Fixed(Arc<SnapshotHandle>),
    /// The newest commits at each read. The timestamp is that of the newest commit that any read may have seen. The
    /// reader's ranges share this timestamp.
    Published(Arc<AtomicU64>),
}

/// A read of the newest commits starts over if its snapshot is ended during the read. This is the maximum number of
/// snapshots that it tries.
pub(super) const RENEWALS_MAX: usize = 16;

/// The view of the database that a snapshot or transaction reads from.
pub(super) struct ReadView {
    pub(super) horizon: Horizon,
    /// The transaction's own changes; `None` for a snapshot.
    pub(super) own: Option<Arc<SharedWrites>>,
    /// The read set of a serializable transaction.
    pub(super) reads: Option<SharedReads>,
    pub(super) shortage: Shortage,
}

impl Horizon {
    /// Returns a snapshot for a read that takes several steps.
    pub(super) fn open_snapshot(&self, store: &Store) -> Arc<SnapshotHandle> {
        match self {
            Horizon::Fixed(snapshot) => Arc::clone(snapshot),
            Horizon::Published(seen) => store.open_published(seen),
        }
    }

    /// Returns the newest commit that the reader may have seen.
    pub(super) fn seen(&self) -> Timestamp {
        match self {
            Horizon::Fixed(snapshot) => snapshot.timestamp,
            Horizon::Published(seen) => Timestamp(seen.load(Ordering::Relaxed)),
        }
    }

    /// Returns the fixed snapshot, or `None` if each read sees the newest commits.
    pub(super) fn snapshot(&self) -> Option<&Arc<SnapshotHandle>> {
        match self {
            Horizon::Fixed(snapshot) => Some(snapshot),
            Horizon::Published(_) => None,
        }
    }

    /// Fails if the fixed snapshot has been ended.
    pub(super) fn check(&self) -> Result<()> {
        self.snapshot().map_or(Ok(()), |snapshot| snapshot.check())
    }

    /// Records that a read may have seen the newest published commit.
    fn see_published(&self, store: &Store) {
        if let Horizon::Published(seen) = self {
            seen.fetch_max(store.engine.clock.published().0, Ordering::Relaxed);
        }
    }

    fn read_at(&self) -> ReadAt {
        match self {
            Horizon::Fixed(snapshot) => ReadAt::Timestamp(snapshot.timestamp),
            Horizon::Published(_) => ReadAt::Published,
        }
    }
}

/// A change that the reading transaction has made to a row.
enum OwnChange<'r> {
    InMemory(Change<'r>),
    /// Puts a value that was read from disk.
    Spilled(Vec<u8>),
}

impl OwnChange<'_> {
    fn change(&self) -> Change<'_> {
        match self {
            OwnChange::InMemory(change) => *change,
            OwnChange::Spilled(value) => Change::Put(value),
        }
    }

    fn is_put(&self) -> bool {
        !matches!(self.change(), Change::Remove)
    }
}

/// The rows of one keyspace as one reader sees them.
pub(super) struct Rows<'r> {
    pub(super) handle: &'r Arc<Handle>,
    pub(super) tree: &'r CountedTree,
    /// The view to read from; `None` to read the newest visible commit at each call.
    pub(super) view: Option<&'r ReadView>,
}

impl Rows<'_> {
    pub(super) fn store(&self) -> Result<&Arc<Store>> {
        self.handle.store()
    }

    pub(super) fn noting<T>(&self, result: Result<T>) -> Result<T> {
        match self.view {
            Some(view) => view.shortage.noting(result),
            None => result,
        }
    }

    /// Returns the reading transaction's own change to the row.
    async fn own_change(&self, mode: WaitMode<'_>, key: &[u8]) -> Result<Option<OwnChange<'_>>> {
        let Some(own) = self.view.and_then(|view| view.own.as_ref()) else { return Ok(None) };
        match own.set.get(self.tree.pages.id, key) {
            Some(change) => Ok(Some(OwnChange::InMemory(change))),
            None if own.set.spilled().may_have_row(self.tree.pages.id, key) => {
                self.spilled_change(mode, own, key).await
            }
            None => Ok(None),
        }
    }

    /// Reads the reading transaction's own change to the row from disk.
    #[cold]
    fn spilled_change<'f, 's: 'f>(
        &'s self,
        mode: WaitMode<'f>,
        own: &'s SharedWrites,
        key: &[u8],
    ) -> Boxed<'f, Result<Option<OwnChange<'s>>>> {
        let (writes, keyspace, key) = (own.set.spilled().clone(), self.tree.pages.id, key.to_vec());
        Box::pin(async move {
            self.store()?;
            let found = mode.run(move || writes.find(keyspace, &key)).await?;
            Ok(found.map(|change| match change {
                OwnedChange::Put(value) => OwnChange::Spilled(value),
                OwnedChange::PutLarge(number) => OwnChange::InMemory(Change::PutLarge(own.set.spilled_large(number))),
                OwnedChange::Remove => OwnChange::InMemory(Change::Remove),
            }))
        })
    }

    /// Records the read of a row in the read set of a serializable transaction.
    fn record(&self, key: &[u8]) -> Result<()> {
        match self.view.and_then(|view| view.reads.as_ref()) {
            Some(reads) => self.noting(reads.lock().add_key(self.tree, key)),
            None => Ok(()),
        }
    }

    /// Returns `true` if each read sees the newest commits. Such a read can start over at a newer snapshot.
    pub(super) fn is_latest(&self) -> bool {
        self.view.is_none_or(|view| view.horizon.snapshot().is_none())
    }

    pub(super) fn open_snapshot(&self) -> Result<Arc<SnapshotHandle>> {
        let store = self.store()?;
        Ok(match self.view {
            Some(view) => view.horizon.open_snapshot(store),
            None => self.handle.open_visible_snapshot(),
        })
    }

    #[inline(never)]
    pub(super) fn get(&self, mode: WaitMode<'_>, key: &[u8]) -> Rooted<impl Future<Output = Result<Option<Value>>>> {
        Rooted::new(async move {
            let mut value = None;
            self.get_to(mode, key, &mut value).await?;
            Ok(value)
        })
    }

    /// Like [`get`](Self::get), but does not record the read. For a transaction that has locked the row, so that it
    /// can't change.
    #[inline(never)]
    pub(super) fn get_unrecorded(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
    ) -> Rooted<impl Future<Output = Result<Option<Value>>>> {
        Rooted::new(async move {
            let mut value = None;
            self.noting(self.value(mode, key, &mut value).await)?;
            Ok(value)
        })
    }

    /// Replaces the content of `value` with the row's value. If there is no row, empties `value` and returns `false`.
    /// After an error, `value` is also empty.
    #[inline(never)]
    pub(super) fn get_into(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Rooted<impl Future<Output = Result<bool>>> {
        Rooted::new(async move {
            value.clear();
            let found = self.get_to(mode, key, value).await;
            if !matches!(found, Ok(true)) {
                value.clear();
            }
            found
        })
    }

    /// Calls `look` with the value. No latch is held during the call.
    pub(super) async fn get_with<R>(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let mut shown = ShownValue::new();
        Ok(self.get_into(mode, key, &mut shown.0).await?.then(|| look(&shown.0)))
    }

    /// Reads the row's value into `to`. Returns `false` if there is no row. After an error, `to` may hold a partial
    /// value.
    async fn get_to(&self, mode: WaitMode<'_>, key: &[u8], to: &mut dyn Destination) -> Result<bool> {
        let own = self.own_change(mode, key).await?;
        if own.is_none() {
            self.record(key)?;
        }
        self.noting(self.value_over(mode, key, own, to).await)
    }

    async fn value(&self, mode: WaitMode<'_>, key: &[u8], to: &mut dyn Destination) -> Result<bool> {
        let own = self.own_change(mode, key).await?;
        self.value_over(mode, key, own, to).await
    }

    /// Reads the value of a row that the transaction itself has changed like `own`.
    async fn value_over(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        own: Option<OwnChange<'_>>,
        to: &mut dyn Destination,
    ) -> Result<bool> {
        match own.as_ref().map(OwnChange::change) {
            None => {}
            Some(Change::Put(value)) => {
                to.copy(value);
                return Ok(true);
            }
            Some(Change::PutLarge(value)) => {
                let snapshot = self.open_snapshot()?;
                let read = self.store()?.read_own(mode, self.tree, value, &snapshot, to.take_buffer()).await?;
                to.put(read);
                return Ok(true);
            }
            Some(Change::Remove) => return Ok(false),
        }
        let (store, tree) = (self.store()?, self.tree);
        let Some(ReadView { horizon, .. }) = self.view else {
            return store.engine.get_in(mode, tree, key, ReadAt::Visible, to).await;
        };
        let Horizon::Fixed(snapshot) = horizon else {
            let found = store.engine.get_in(mode, tree, key, ReadAt::Published, to).await?;
            horizon.see_published(store);
            return Ok(found);
        };
        match self.find_committed(mode, key, |value| to.copy(value)).await? {
            None => Ok(false),
            Some(Found::Inline(())) => Ok(true),
            Some(Found::Large(reference)) => {
                let read = store.read_large(mode, tree, &reference, snapshot, to.take_buffer()).await?;
                to.put(read);
                Ok(true)
            }
        }
    }

    /// Finds the committed row, without reading a large value. Calls `take` with an inline value, like the engine's
    /// `find`.
    async fn find_committed<T: Send>(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
        take: impl FnMut(&[u8]) -> T + Send,
    ) -> Result<Option<Found<T>>> {
        let store = self.store()?;
        let Some(ReadView { horizon, .. }) = self.view else {
            return store.engine.find_in(mode, self.tree, key, ReadAt::Visible, take).await;
        };
        let found = self.noting(store.engine.find_in(mode, self.tree, key, horizon.read_at(), take).await)?;
        horizon.check()?;
        horizon.see_published(store);
        Ok(found)
    }

    #[inline(never)]
    pub(super) fn contains_key(&self, mode: WaitMode<'_>, key: &[u8]) -> Rooted<impl Future<Output = Result<bool>>> {
        Rooted::new(async move {
            if self.own_change(mode, key).await?.is_none() {
                self.record(key)?;
            }
            self.contains_unrecorded(mode, key).await
        })
    }

    /// Like [`contains_key`](Self::contains_key), but does not record the read. For a transaction that has locked the
    /// row.
    pub(super) async fn contains_unrecorded(&self, mode: WaitMode<'_>, key: &[u8]) -> Result<bool> {
        if let Some(own) = self.own_change(mode, key).await? {
            return Ok(own.is_put());
        }
        Ok(self.find_committed(mode, key, |_| ()).await?.is_some())
    }

    #[inline(never)]
    pub(super) fn get_many(
        &self,
        mode: WaitMode<'_>,
        keys: &[&[u8]],
    ) -> Rooted<impl Future<Output = Result<Vec<Option<Value>>>>> {
        Rooted::new(async move {
            let engine = &self.store()?.engine;
            let Some(ReadView { horizon, .. }) = self.view else {
                return engine.get_many(mode, self.tree, keys, ReadAt::Visible).await;
            };
            let mut values = vec![None; keys.len()];
            let (mut others, mut other_keys) = (Vec::new(), Vec::new());
            for (key, value) in keys.iter().copied().zip(&mut values) {
                if self.own_change(mode, key).await?.is_some() {
                    *value = self.get(mode, key).await?;
                } else {
                    self.record(key)?;
                    others.push(value);
                    other_keys.push(key);
                }
            }
            let found = self.noting(engine.get_many(mode, self.tree, &other_keys, horizon.read_at()).await);
            // If the snapshot has been ended, a value that it needed may have been freed, and the value's pages may
            // have been reused.
            horizon.check()?;
            for (value, found) in others.into_iter().zip(found?) {
                *value = found;
            }
            horizon.see_published(self.store()?);
            Ok(values)
        })
    }

    #[inline(never)]
    pub(super) fn contains_many(
        &self,
        mode: WaitMode<'_>,
        keys: &[&[u8]],
    ) -> Rooted<impl Future<Output = Result<Vec<bool>>>> {
        Rooted::new(async move {
            let store = self.store()?;
            let mut own = Vec::with_capacity(keys.len());
            for key in keys {
                let is_put = self.own_change(mode, key).await?.map(|own| own.is_put());
                if is_put.is_none() {
                    self.record(key)?;
                }
                own.push(is_put);
            }
            let read_at = self.view.as_ref().map_or(ReadAt::Visible, |view| view.horizon.read_at());
            let found = store.engine.find_many(mode, self.tree, keys, read_at, |_| ()).await?;
            if let Some(ReadView { horizon, .. }) = self.view {
                horizon.check()?;
                horizon.see_published(store);
            }
            Ok(own.into_iter().zip(found).map(|(is_put, found)| is_put.unwrap_or(found.is_some())).collect())
        })
    }

    /// Returns the first or the last row of a range.
    #[inline(never)]
    pub(super) fn end(
        &self,
        mode: WaitMode<'_>,
        bounds: OwnedBounds,
        direction: Direction,
    ) -> Rooted<impl Future<Output = Result<Option<(Value, Value)>>>> {
        Rooted::new(async move { self.scan(bounds).one_at_first().next_in(mode, direction).await.transpose() })
    }

    #[inline(never)]
    pub(super) fn is_empty(&self, mode: WaitMode<'_>) -> Rooted<impl Future<Output = Result<bool>>> {
        Rooted::new(async move {
            let first =
                self.scan(bounds::ALL).one_at_first().next_key_in(mode, Direction::Forward).await.transpose()?;
            Ok(first.is_none())
        })
    }

    pub(super) fn scan(&self, bounds: OwnedBounds) -> Range {
        self.scan_at(bounds, None)
    }

    /// Like [`scan`](Self::scan). If `at` is set, scans at that snapshot, which the reader has opened.
    pub(super) fn scan_at(&self, bounds: OwnedBounds, at: Option<&Arc<SnapshotHandle>>) -> Range {
        let snapshot = match at.map_or_else(|| self.open_snapshot(), |at| Ok(Arc::clone(at))) {
            Ok(snapshot) => snapshot,
            Err(error) => return Range::refused(error),
        };
        let latest = match self.view.map(|view| &view.horizon) {
            Some(Horizon::Published(seen)) if at.is_none() => Some(Arc::clone(seen)),
            _ => None,
        };
        let own = self.own_within((bounds.0.as_ref().map(|key| &key[..]), bounds.1.as_ref().map(|key| &key[..])));
        let reads = self.view.and_then(|view| view.reads.clone());
        let shortage = self.view.map(|view| view.shortage.clone()).unwrap_or_default();
        let range =
            Range::new(Arc::clone(self.handle), self.tree.clone(), snapshot, bounds, own.cloned(), reads, shortage);
        range.of_latest(latest)
    }

    /// Returns the transaction's own changes, if there are any between these bounds.
    pub(super) fn own_within(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Option<&Arc<SharedWrites>> {
        let own = self.view.and_then(|view| view.own.as_ref())?;
        let has_rows = || own.set.range(self.tree.pages.id, bounds).next().is_some();
        (has_rows() || self.has_unlisted(bounds)).then_some(own)
    }

    /// Returns `true` if the write set in memory does not list all changes that the transaction has made between these
    /// bounds, because the transaction has removed a range with keys there, or has spilled changes of the keyspace.
    pub(super) fn has_unlisted(&self, (lower, upper): (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
        let Some(own) = self.view.and_then(|view| view.own.as_ref()) else { return false };
        if own.set.spilled().may_have(self.tree.pages.id) {
            return true;
        }
        let Some(removed) = own.set.removed(self.tree.pages.id) else { return false };
        interval_of(lower, upper).is_some_and(|(lower, upper)| removed.meets(&lower, upper.as_deref()))
    }

    #[inline(never)]
    pub(super) fn read(
        &self,
        mode: WaitMode<'_>,
        key: &[u8],
    ) -> Rooted<impl Future<Output = Result<Option<ValueReader>>>> {
        Rooted::new(async move { self.noting(self.open_value(mode, key).await) })
    }

    async fn open_value(&self, mode: WaitMode<'_>, key: &[u8]) -> Result<Option<ValueReader>> {
        let (store, tree) = (self.store()?, self.tree);
        let own = self.own_change(mode, key).await?;
        let content = match own.as_ref().map(OwnChange::change) {
            Some(Change::Put(value)) => Some(Content::bytes(value, &store.engine)?),
            Some(Change::PutLarge(value)) => Some(Content::Own(Arc::clone(value))),
            Some(Change::Remove) => return Ok(None),
            None => None,
        };
        let snapshot = self.open_snapshot()?;
        let content = match content {
            Some(content) => content,
            None => {
                self.record(key)?;
                snapshot.check()?;
                let read_at = ReadAt::Timestamp(snapshot.timestamp);
                let found = store.engine.find_in(mode, tree, key, read_at, <[u8]>::to_vec).await?;
                // If the snapshot was ended during the read, the version that it should see may have been discarded.
                snapshot.check()?;
                match found {
                    None => return Ok(None),
                    Some(Found::Inline(value)) => Content::bytes(&value, &store.engine)?,
                    Some(Found::Large(reference)) => Content::Stored(reference),
                }
            }
        };
        Ok(Some(ValueReader::new(self.handle, tree, snapshot, content)))
    }
}
