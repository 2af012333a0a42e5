//! Reads a collection as of a snapshot, or within a transaction.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;

use drumlin::{Reader, Snapshot};
use serde::de::DeserializeOwned;

use crate::collection::Collection;
use crate::encoding::{EncodeAs, Key, KeyBounds, RowBounds, encoded};
use crate::error::Result;
use crate::indexed::Indexed;
use crate::mode::{Mode, ready};
use crate::open::OpenCollection;
use crate::part_rows::{At, PartRows};
use crate::parts::{Index, View};
use crate::versions::{AsOf, Version, Versions};
use crate::viewed::Viewed;

/// The documents of a collection as of one snapshot or transaction. Returned by
/// [`Documents::at`](crate::Documents::at), [`at_snapshot`](crate::Documents::at_snapshot) and
/// [`now`](crate::Documents::now).
///
/// A reading made by `at_snapshot` or `now` owns its snapshot: it is a `Reading<'static, C>`, and its iterators are
/// `'static` too. A reading made by `at` borrows its reader and can't outlive it.
///
/// Any method may fail with [`Error::Store`](crate::Error::Store) if Drumlin's [`Reader`] returns an error, and with
/// [`Error::Decode`](crate::Error::Decode) or [`Error::Migration`](crate::Error::Migration) if a document can't be
/// read.
///
/// ```
/// # use drumlin_collections::{Collection, Collections, Index, Parts, Postcard};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Order { id: u64, customer: u64 }
/// # impl Order { const BY_CUSTOMER: Index<Order, u64> = Index::new("by customer", |order| order.customer); }
/// # impl Collection for Order {
/// #     type Key = u64;
/// #     type Codec = Postcard;
/// #     const NAME: &'static str = "orders";
/// #     fn key(&self) -> u64 { self.id }
/// #     fn parts() -> Parts<Order> { Parts::new().index(Order::BY_CUSTOMER) }
/// # }
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let collections = Collections::new(&db);
/// let orders = collections.open::<Order>()?;
/// orders.put(&Order { id: 1, customer: 7 })?;
/// let snapshot = db.snapshot();
/// orders.remove(1)?;
/// let before = orders.at(&snapshot);
/// assert!(before.get(1)?.is_some());
/// assert_eq!(before.index(&Order::BY_CUSTOMER).get(7).count(), 1);
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub struct Reading<'r, C: Collection> {
    open: Arc<OpenCollection<C>>,
    at: At<'r>,
}

impl<C: Collection> Debug for Reading<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reading({:?}, {:?})", C::NAME, self.at.reader())
    }
}

impl<'r, C: Collection> Reading<'r, C> {
    pub(crate) fn at(open: &Arc<OpenCollection<C>>, reader: &'r Reader) -> Reading<'r, C> {
        Reading { open: Arc::clone(open), at: At::Reader(reader) }
    }

    pub(crate) fn snapshot(open: &Arc<OpenCollection<C>>, snapshot: Snapshot) -> Reading<'r, C> {
        Reading { open: Arc::clone(open), at: At::Snapshot(snapshot) }
    }

    /// Returns the document with this key. O(log n).
    ///
    /// # Errors
    /// See [`Reading`].
    pub fn get(&self, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        ready(self.get_in(Mode::Blocking, encoded(&key)))
    }

    /// Asynchronous [`get`](Reading::get).
    ///
    /// # Errors
    /// See [`get`](Reading::get).
    pub async fn get_async(&self, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        let key = encoded(&key);
        self.get_in(Mode::Async, key).await
    }

    async fn get_in(&self, mode: Mode, key: Vec<u8>) -> Result<Option<C>> {
        match mode.get(self.at.reader(), &self.open.documents, &key).await? {
            Some(row) => self.open.decode_live(&key, &row),
            None => Ok(None),
        }
    }

    /// Returns `true` if a document with this key exists. Reads the document itself only if the collection's documents
    /// [expire](crate::Parts::expires). O(log n).
    ///
    /// # Errors
    /// See [`Reading`].
    pub fn contains(&self, key: impl EncodeAs<C::Key>) -> Result<bool> {
        ready(self.contains_in(Mode::Blocking, encoded(&key)))
    }

    /// Asynchronous [`contains`](Reading::contains).
    ///
    /// # Errors
    /// See [`contains`](Reading::contains).
    pub async fn contains_async(&self, key: impl EncodeAs<C::Key>) -> Result<bool> {
        let key = encoded(&key);
        self.contains_in(Mode::Async, key).await
    }

    async fn contains_in(&self, mode: Mode, key: Vec<u8>) -> Result<bool> {
        match self.open.expires {
            Some(_) => Ok(self.get_in(mode, key).await?.is_some()),
            None => Ok(mode.contains_key(self.at.reader(), &self.open.documents, &key).await?),
        }
    }

    /// Returns the number of documents in a range of keys, including any that have [expired](crate::Parts::expires) but
    /// have not been removed yet. Costs the same as [`drumlin::Keyspace::count`]: O(log n) once the rows have been
    /// counted.
    ///
    /// # Errors
    /// See [`Reading`].
    pub fn count(&self, bounds: impl KeyBounds<C::Key>) -> Result<u64> {
        ready(self.count_in(Mode::Blocking, bounds.row_bounds()))
    }

    /// Asynchronous [`count`](Reading::count).
    ///
    /// # Errors
    /// See [`count`](Reading::count).
    pub async fn count_async(&self, bounds: impl KeyBounds<C::Key>) -> Result<u64> {
        let bounds = bounds.row_bounds();
        self.count_in(Mode::Async, bounds).await
    }

    async fn count_in(&self, mode: Mode, bounds: RowBounds) -> Result<u64> {
        Ok(mode.count(self.at.reader(), &self.open.documents, &bounds).await?)
    }

    /// Returns the number of documents. Same as [`count(..)`](Reading::count).
    ///
    /// # Errors
    /// See [`count`](Reading::count).
    pub fn len(&self) -> Result<u64> {
        self.count(..)
    }

    /// Asynchronous [`len`](Reading::len).
    ///
    /// # Errors
    /// See [`count`](Reading::count).
    pub async fn len_async(&self) -> Result<u64> {
        self.count_async(..).await
    }

    /// Returns `true` if [`len`](Reading::len) would be 0. O(log n).
    ///
    /// # Errors
    /// See [`Reading`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(ready(Mode::Blocking.is_empty(self.at.reader(), &self.open.documents))?)
    }

    /// Asynchronous [`is_empty`](Reading::is_empty).
    ///
    /// # Errors
    /// See [`is_empty`](Reading::is_empty).
    pub async fn is_empty_async(&self) -> Result<bool> {
        Ok(Mode::Async.is_empty(self.at.reader(), &self.open.documents).await?)
    }

    /// Returns the document with the smallest key. O(log n).
    ///
    /// # Errors
    /// See [`Reading`].
    pub fn first(&self) -> Result<Option<C>> {
        self.iter().next().transpose()
    }

    /// Asynchronous [`first`](Reading::first).
    ///
    /// # Errors
    /// See [`first`](Reading::first).
    pub async fn first_async(&self) -> Result<Option<C>> {
        let mut documents = self.iter();
        documents.next_async().await.transpose()
    }

    /// Returns the document with the greatest key. O(log n).
    ///
    /// # Errors
    /// See [`Reading`].
    pub fn last(&self) -> Result<Option<C>> {
        self.iter().next_back().transpose()
    }

    /// Asynchronous [`last`](Reading::last).
    ///
    /// # Errors
    /// See [`last`](Reading::last).
    pub async fn last_async(&self) -> Result<Option<C>> {
        let mut documents = self.iter();
        documents.next_back_async().await.transpose()
    }

    /// Returns the documents with these keys, keeping many device reads in flight.
    ///
    /// # Errors
    /// See [`Reading`].
    pub fn get_many(&self, keys: &[impl EncodeAs<C::Key>]) -> Result<Vec<Option<C>>> {
        ready(self.get_many_in(Mode::Blocking, keys.iter().map(encoded).collect()))
    }

    /// Asynchronous [`get_many`](Reading::get_many).
    ///
    /// # Errors
    /// See [`get_many`](Reading::get_many).
    pub async fn get_many_async(&self, keys: &[impl EncodeAs<C::Key>]) -> Result<Vec<Option<C>>> {
        let keys = keys.iter().map(encoded).collect();
        self.get_many_in(Mode::Async, keys).await
    }

    async fn get_many_in(&self, mode: Mode, keys: Vec<Vec<u8>>) -> Result<Vec<Option<C>>> {
        let rows = mode.get_many(self.at.reader(), &self.open.documents, &keys).await?;
        let document = |(key, row): (&Vec<u8>, Option<drumlin::Value>)| match row {
            Some(row) => self.open.decode_live(key, &row),
            None => Ok(None),
        };
        keys.iter().zip(rows).map(document).collect()
    }

    /// Returns the documents in a range of keys, in key order.
    pub fn range(&self, bounds: impl KeyBounds<C::Key>) -> Rows<C> {
        Rows { rows: self.at.reader().range(&self.open.documents, bounds.row_bounds()), open: Arc::clone(&self.open) }
    }

    /// Returns all documents, in key order.
    pub fn iter(&self) -> Rows<C> {
        self.range(..)
    }

    /// Returns a handle to an index, for finding documents by their index keys.
    pub fn index<K: Key + Debug + 'static>(&self, index: &Index<C, K>) -> Indexed<'r, C, K> {
        Indexed::new(PartRows::new(&self.open, self.at.clone(), index.part_name()), *index)
    }

    /// Returns a handle to a view, for reading and reducing its rows.
    pub fn view<K: Key + Debug, V: DeserializeOwned>(&self, view: &View<C, K, V>) -> Viewed<'r, C, K, V> {
        Viewed::new(PartRows::new(&self.open, self.at.clone(), view.part_name()), *view)
    }

    /// Returns the kept versions of a document, from the oldest to the newest.
    ///
    /// # Errors
    /// [`Error::Definition`](crate::Error::Definition) if the collection keeps no [history](crate::Parts::history).
    pub fn versions(&self, key: impl EncodeAs<C::Key>) -> Result<Versions<C>> {
        Versions::of(&self.open, self.at.reader(), &encoded(&key))
    }

    /// Returns the version of a document with this number. Returns `None` if the version is no longer kept or does not
    /// exist yet. O(log n).
    ///
    /// # Errors
    /// See [`versions`](Reading::versions) and [`Reading`].
    pub fn version(&self, key: impl EncodeAs<C::Key>, number: u64) -> Result<Option<Version<C>>> {
        ready(Versions::one(Mode::Blocking, &self.open, self.at.reader(), &encoded(&key), number))
    }

    /// Asynchronous [`version`](Reading::version).
    ///
    /// # Errors
    /// See [`version`](Reading::version).
    pub async fn version_async(&self, key: impl EncodeAs<C::Key>, number: u64) -> Result<Option<Version<C>>> {
        let key = encoded(&key);
        Versions::one(Mode::Async, &self.open, self.at.reader(), &key, number).await
    }

    /// Returns the document as it was at the given time. Returns `None` if it did not exist then, or if that version is
    /// no longer kept. O(versions since then).
    ///
    /// # Errors
    /// See [`version`](Reading::version).
    pub fn as_of(&self, time: SystemTime, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        ready(Versions::as_of(Mode::Blocking, &self.open, self.at.reader(), &encoded(&key), time))
    }

    /// Asynchronous [`as_of`](Reading::as_of).
    ///
    /// # Errors
    /// See [`as_of`](Reading::as_of).
    pub async fn as_of_async(&self, time: SystemTime, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        let key = encoded(&key);
        Versions::as_of(Mode::Async, &self.open, self.at.reader(), &key, time).await
    }

    /// Returns the documents in a range of keys as they were at the given time. Leaves out a document if its version at
    /// that time is no longer kept. Reads all versions in the range.
    ///
    /// # Errors
    /// See [`versions`](Reading::versions).
    pub fn range_as_of(&self, time: SystemTime, bounds: impl KeyBounds<C::Key>) -> Result<AsOf<C>> {
        AsOf::of(&self.open, self.at.reader(), bounds.row_bounds(), time)
    }
}

/// A double-ended iterator over documents in key order. [`next_async`](Rows::next_async) advances it asynchronously,
/// and [`into_stream`](Rows::into_stream) converts it to a stream. It shows the documents as of its creation.
///
/// ```
/// # use drumlin_collections::{Collection, Collections, Postcard};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Day(u32);
/// # impl Collection for Day {
/// #     type Key = u32;
/// #     type Codec = Postcard;
/// #     const NAME: &'static str = "days";
/// #     fn key(&self) -> u32 { self.0 }
/// # }
/// # let days = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Day>()?;
/// for day in 1..=9 {
///     days.put(&Day(day))?;
/// }
/// assert_eq!(days.range(3..=7).next_back().unwrap()?.0, 7);
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub struct Rows<C: Collection> {
    rows: drumlin::Range,
    open: Arc<OpenCollection<C>>,
}

impl<C: Collection> Debug for Rows<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rows({:?}, {:?})", C::NAME, self.rows)
    }
}

impl<C: Collection> Rows<C> {
    /// Returns the next document.
    pub async fn next_async(&mut self) -> Option<Result<C>> {
        self.step(Mode::Async, false).await
    }

    /// Returns the next document from the end.
    pub async fn next_back_async(&mut self) -> Option<Result<C>> {
        self.step(Mode::Async, true).await
    }

    async fn step(&mut self, mode: Mode, backwards: bool) -> Option<Result<C>> {
        loop {
            let row = if backwards { mode.next_back(&mut self.rows).await? } else { mode.next(&mut self.rows).await? };
            match row.map_err(Into::into).and_then(|(key, row)| self.open.decode_live(&key, &row)) {
                Ok(Some(document)) => return Some(Ok(document)),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl<C: Collection> Iterator for Rows<C> {
    type Item = Result<C>;

    fn next(&mut self) -> Option<Result<C>> {
        ready(self.step(Mode::Blocking, false))
    }
}

impl<C: Collection> DoubleEndedIterator for Rows<C> {
    fn next_back(&mut self) -> Option<Result<C>> {
        ready(self.step(Mode::Blocking, true))
    }
}
