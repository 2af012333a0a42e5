//! Reading a collection as of one view: a snapshot's or a transaction's.

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

/// The documents of a collection as of one view: those of [`Documents::at`](crate::Documents::at) and
/// [`Documents::now`](crate::Documents::now).
///
/// A reading of a snapshot that it was [given](crate::Documents::at_snapshot) owns all that it reads by, and is a
/// `Reading<'static, C>`, as are its iterators. Where a reader was [lent](crate::Documents::at), they live as long as
/// that.
///
/// All methods may fail with [`Error::Store`](crate::Error::Store) for what Drumlin's [`Reader`] refuses, and with
/// [`Error::Decode`](crate::Error::Decode) or [`Error::Migration`](crate::Error::Migration) for a document that can't
/// be read.
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
    /// Those of all methods: see [`Reading`].
    pub fn get(&self, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        ready(self.get_in(Mode::Blocking, encoded(&key)))
    }

    /// Asynchronous [`get`](Reading::get).
    ///
    /// # Errors
    /// Those of [`get`](Reading::get).
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

    /// Returns `true` if there is a document with this key. Reads it only if documents [expire](crate::Parts::expires).
    /// O(log n).
    ///
    /// # Errors
    /// Those of all methods: see [`Reading`].
    pub fn contains(&self, key: impl EncodeAs<C::Key>) -> Result<bool> {
        ready(self.contains_in(Mode::Blocking, encoded(&key)))
    }

    /// Asynchronous [`contains`](Reading::contains).
    ///
    /// # Errors
    /// Those of [`contains`](Reading::contains).
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

    /// The number of documents in a range of keys. Those that have [expired](crate::Parts::expires) and are not yet
    /// removed are counted. Costs what [`drumlin::Keyspace::count`] does: O(log n) once the rows have been counted.
    ///
    /// # Errors
    /// Those of all methods: see [`Reading`].
    pub fn count(&self, bounds: impl KeyBounds<C::Key>) -> Result<u64> {
        ready(self.count_in(Mode::Blocking, bounds.row_bounds()))
    }

    /// Asynchronous [`count`](Reading::count).
    ///
    /// # Errors
    /// Those of [`count`](Reading::count).
    pub async fn count_async(&self, bounds: impl KeyBounds<C::Key>) -> Result<u64> {
        let bounds = bounds.row_bounds();
        self.count_in(Mode::Async, bounds).await
    }

    async fn count_in(&self, mode: Mode, bounds: RowBounds) -> Result<u64> {
        Ok(mode.count(self.at.reader(), &self.open.documents, &bounds).await?)
    }

    /// The number of all documents: [`count`](Reading::count) of `..`.
    ///
    /// # Errors
    /// Those of [`count`](Reading::count).
    pub fn len(&self) -> Result<u64> {
        self.count(..)
    }

    /// Asynchronous [`len`](Reading::len).
    ///
    /// # Errors
    /// Those of [`count`](Reading::count).
    pub async fn len_async(&self) -> Result<u64> {
        self.count_async(..).await
    }

    /// Returns `true` if there are no documents to [count](Reading::count). O(log n).
    ///
    /// # Errors
    /// Those of all methods: see [`Reading`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(ready(Mode::Blocking.is_empty(self.at.reader(), &self.open.documents))?)
    }

    /// Asynchronous [`is_empty`](Reading::is_empty).
    ///
    /// # Errors
    /// Those of [`is_empty`](Reading::is_empty).
    pub async fn is_empty_async(&self) -> Result<bool> {
        Ok(Mode::Async.is_empty(self.at.reader(), &self.open.documents).await?)
    }

    /// The document with the least key. O(log n).
    ///
    /// # Errors
    /// Those of all methods: see [`Reading`].
    pub fn first(&self) -> Result<Option<C>> {
        self.iter().next().transpose()
    }

    /// Asynchronous [`first`](Reading::first).
    ///
    /// # Errors
    /// Those of [`first`](Reading::first).
    pub async fn first_async(&self) -> Result<Option<C>> {
        let mut documents = self.iter();
        documents.next_async().await.transpose()
    }

    /// The document with the greatest key. O(log n).
    ///
    /// # Errors
    /// Those of all methods: see [`Reading`].
    pub fn last(&self) -> Result<Option<C>> {
        self.iter().next_back().transpose()
    }

    /// Asynchronous [`last`](Reading::last).
    ///
    /// # Errors
    /// Those of [`last`](Reading::last).
    pub async fn last_async(&self) -> Result<Option<C>> {
        let mut documents = self.iter();
        documents.next_back_async().await.transpose()
    }

    /// Returns many documents, with many reads of the device in flight at once.
    ///
    /// # Errors
    /// Those of all methods: see [`Reading`].
    pub fn get_many(&self, keys: &[impl EncodeAs<C::Key>]) -> Result<Vec<Option<C>>> {
        ready(self.get_many_in(Mode::Blocking, keys.iter().map(encoded).collect()))
    }

    /// Asynchronous [`get_many`](Reading::get_many).
    ///
    /// # Errors
    /// Those of [`get_many`](Reading::get_many).
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

    /// The documents of a range of keys, in the order of their keys.
    pub fn range(&self, bounds: impl KeyBounds<C::Key>) -> Rows<C> {
        Rows { rows: self.at.reader().range(&self.open.documents, bounds.row_bounds()), open: Arc::clone(&self.open) }
    }

    /// All documents, in the order of their keys.
    pub fn iter(&self) -> Rows<C> {
        self.range(..)
    }

    /// The documents by the keys of an index.
    pub fn index<K: Key + Debug + 'static>(&self, index: &Index<C, K>) -> Indexed<'r, C, K> {
        Indexed::new(PartRows::new(&self.open, self.at.clone(), index.part_name()), *index)
    }

    /// The rows of a view.
    pub fn view<K: Key + Debug, V: DeserializeOwned>(&self, view: &View<C, K, V>) -> Viewed<'r, C, K, V> {
        Viewed::new(PartRows::new(&self.open, self.at.clone(), view.part_name()), *view)
    }

    /// The versions of a document that are kept, from the oldest to the newest.
    ///
    /// # Errors
    /// [`Error::Definition`](crate::Error::Definition) if the collection keeps no [history](crate::Parts::history).
    pub fn versions(&self, key: impl EncodeAs<C::Key>) -> Result<Versions<C>> {
        Versions::of(&self.open, self.at.reader(), &encoded(&key))
    }

    /// One version of a document, by its number. None if it is not kept, or not there yet. O(log n).
    ///
    /// # Errors
    /// Those of [`versions`](Reading::versions), and those of all methods: see [`Reading`].
    pub fn version(&self, key: impl EncodeAs<C::Key>, number: u64) -> Result<Option<Version<C>>> {
        ready(Versions::one(Mode::Blocking, &self.open, self.at.reader(), &encoded(&key), number))
    }

    /// Asynchronous [`version`](Reading::version).
    ///
    /// # Errors
    /// Those of [`version`](Reading::version).
    pub async fn version_async(&self, key: impl EncodeAs<C::Key>, number: u64) -> Result<Option<Version<C>>> {
        let key = encoded(&key);
        Versions::one(Mode::Async, &self.open, self.at.reader(), &key, number).await
    }

    /// The document as it was at a time. None if there was none, or its version is not kept. O(versions since then).
    ///
    /// # Errors
    /// Those of [`version`](Reading::version).
    pub fn as_of(&self, time: SystemTime, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        ready(Versions::as_of(Mode::Blocking, &self.open, self.at.reader(), &encoded(&key), time))
    }

    /// Asynchronous [`as_of`](Reading::as_of).
    ///
    /// # Errors
    /// Those of [`as_of`](Reading::as_of).
    pub async fn as_of_async(&self, time: SystemTime, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        let key = encoded(&key);
        Versions::as_of(Mode::Async, &self.open, self.at.reader(), &key, time).await
    }

    /// The documents of a range of keys as they were at a time, as far as their versions are kept. Reads all versions
    /// of the range.
    ///
    /// # Errors
    /// Those of [`versions`](Reading::versions).
    pub fn range_as_of(&self, time: SystemTime, bounds: impl KeyBounds<C::Key>) -> Result<AsOf<C>> {
        AsOf::of(&self.open, self.at.reader(), bounds.row_bounds(), time)
    }
}

/// Documents in the order of their keys: an iterator from both ends, an asynchronous one by
/// [`next_async`](Rows::next_async), and a stream by [`into_stream`](Rows::into_stream). It shows the state as of its
/// beginning.
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
    /// The next document.
    pub async fn next_async(&mut self) -> Option<Result<C>> {
        self.step(Mode::Async, false).await
    }

    /// The next document from the end.
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
