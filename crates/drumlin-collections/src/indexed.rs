//! Finds documents by the keys of an index.

use std::collections::VecDeque;
use std::fmt::Debug;

use drumlin::Value;

use crate::collection::Collection;
use crate::encoding::{EncodeAs, Key, KeyBounds, encoded};
use crate::error::{Error, Result};
use crate::mode::{Mode, ready};
use crate::part_rows::PartRows;
use crate::parts::Index;

/// The maximum number of documents that an iterator prefetches in one batch, to keep many device reads in flight. The
/// first batch is a single document, since many callers want only one.
const READ_AHEAD_MAX: usize = 64;

/// An index of a collection, as of one snapshot or transaction.
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
/// # let orders = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Order>()?;
/// for (id, customer) in [(1, 7), (2, 8), (3, 7)] {
///     orders.put(&Order { id, customer })?;
/// }
/// for order in orders.index(&Order::BY_CUSTOMER).get(7) {
///     println!("{}", order?.id); // 1, 3
/// }
/// let newest = orders.index(&Order::BY_CUSTOMER).get(7).next_back().unwrap()?;
/// assert_eq!(newest.id, 3);
/// assert_eq!(orders.index(&Order::BY_CUSTOMER).range(..8).count(), 2);
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
///
/// To read the next page of a result, start [after](Indexed::after) the last row that was shown.
///
/// All methods fail with [`Error::NotReady`](crate::Error::NotReady) while the index is being built, with
/// [`Error::NotBuilt`](crate::Error::NotBuilt) if the build failed, and with the errors of [`Reading`](crate::Reading).
pub struct Indexed<'r, C: Collection, K> {
    rows: PartRows<'r, C>,
    index: Index<C, K>,
}

impl<C: Collection, K> Debug for Indexed<'_, C, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Indexed({:?}, {})", C::NAME, self.rows.name)
    }
}

impl<'r, C: Collection, K: Key> Indexed<'r, C, K> {
    pub(crate) fn new(rows: PartRows<'r, C>, index: Index<C, K>) -> Indexed<'r, C, K> {
        Indexed { rows, index }
    }

    /// Restricts the index to the rows after the row with this index key and this document key, whether or not that row
    /// exists.
    ///
    /// Use it for pagination: the next page starts where the previous one ended, even among documents with equal index
    /// keys, and even if documents were added or removed in the meantime. [`get`](Indexed::get),
    /// [`range`](Indexed::range), [`keys`](Indexed::keys) and [`count`](Indexed::count) see only the remaining rows.
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
    /// # let orders = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Order>()?;
    /// for id in 1..=5 {
    ///     orders.put(&Order { id, customer: 7 })?;
    /// }
    /// let first: Vec<Order> = orders.index(&Order::BY_CUSTOMER).get(7).take(2).collect::<Result<_, _>>()?;
    /// let last = first.last().expect("there are two");
    /// let next: Vec<Order> =
    ///     orders.index(&Order::BY_CUSTOMER).after(last.customer, last.id).get(7).take(2).collect::<Result<_, _>>()?;
    /// assert_eq!(next.iter().map(|order| order.id).collect::<Vec<_>>(), [3, 4]);
    /// let back = orders.index(&Order::BY_CUSTOMER).before(7, 3).get(7).next_back().unwrap()?;
    /// assert_eq!(back.id, 2);
    /// # Ok::<(), drumlin_collections::Error>(())
    /// ```
    ///
    /// A document that was already shown appears again if it has more keys after that row.
    #[must_use]
    pub fn after(&self, key: impl EncodeAs<K>, document: impl EncodeAs<C::Key>) -> Indexed<'r, C, K> {
        Indexed { rows: self.rows.after(self.row_of(&key, &document)), index: self.index }
    }

    /// Restricts the index to the rows before the row with this index key and this document key: like
    /// [`after`](Indexed::after), for reading pages from the end.
    #[must_use]
    pub fn before(&self, key: impl EncodeAs<K>, document: impl EncodeAs<C::Key>) -> Indexed<'r, C, K> {
        Indexed { rows: self.rows.before(self.row_of(&key, &document)), index: self.index }
    }

    /// Returns the encoded key of a row of the index.
    fn row_of(&self, key: &impl EncodeAs<K>, document: &impl EncodeAs<C::Key>) -> Vec<u8> {
        let mut row = encoded(key);
        // In a unique index, the row's key is the index key alone.
        if !self.index.is_unique {
            document.encode_into(&mut row);
        }
        row
    }

    /// Returns the documents with this index key, in the order of their primary keys.
    pub fn get(&self, key: impl EncodeAs<K>) -> Found<'r, C, K> {
        self.range(&key..=&key)
    }

    /// Returns the first document with this index key. If the index is unique, no other document has this key. O(log
    /// n).
    ///
    /// # Errors
    /// See [`Indexed`].
    pub fn first(&self, key: impl EncodeAs<K>) -> Result<Option<C>> {
        self.get(key).next().transpose()
    }

    /// Asynchronous [`first`](Indexed::first).
    ///
    /// # Errors
    /// See [`first`](Indexed::first).
    pub async fn first_async(&self, key: impl EncodeAs<K>) -> Result<Option<C>> {
        let mut found = self.get(key);
        found.next_async().await.transpose()
    }

    /// Returns the documents whose index keys are in a range, in the order of the index keys. A document with several
    /// keys in the range appears once for each key.
    pub fn range(&self, bounds: impl KeyBounds<K>) -> Found<'r, C, K> {
        Found { keys: self.keys(bounds), front: ReadAhead::default(), back: ReadAhead::default(), read_ahead: 1 }
    }

    /// Returns the index keys in a range, each with the key of its document. The documents are not read. Includes the
    /// keys of documents that have expired but have not been removed yet.
    pub fn keys(&self, bounds: impl KeyBounds<K>) -> IndexKeys<'r, C, K> {
        IndexKeys { rows: self.rows.within(bounds.row_bounds()), index: self.index }
    }

    /// Counts the index keys in a range that [`keys`](Indexed::keys) would return. Costs the same as
    /// [`drumlin::Keyspace::count`].
    ///
    /// # Errors
    /// See [`Indexed`].
    pub fn count(&self, bounds: impl KeyBounds<K>) -> Result<u64> {
        ready(self.rows.within(bounds.row_bounds()).count(Mode::Blocking))
    }

    /// Asynchronous [`count`](Indexed::count).
    ///
    /// # Errors
    /// See [`count`](Indexed::count).
    pub async fn count_async(&self, bounds: impl KeyBounds<K>) -> Result<u64> {
        let rows = self.rows.within(bounds.row_bounds());
        rows.count(Mode::Async).await
    }
}

/// A double-ended iterator over the keys of an index, each with the key of its document. See [`Indexed::keys`].
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
/// # let orders = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Order>()?;
/// orders.put(&Order { id: 1, customer: 7 })?;
/// for pair in orders.index(&Order::BY_CUSTOMER).keys(..) {
///     let (customer, id) = pair?;
///     assert_eq!((customer, id), (7, 1));
/// }
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub struct IndexKeys<'r, C: Collection, K> {
    rows: PartRows<'r, C>,
    index: Index<C, K>,
}

impl<C: Collection, K> Debug for IndexKeys<'_, C, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IndexKeys({:?}, {})", C::NAME, self.rows.name)
    }
}

impl<C: Collection, K: Key> IndexKeys<'_, C, K> {
    /// Returns the next pair.
    pub async fn next_async(&mut self) -> Option<Result<(K, C::Key)>> {
        self.step(Mode::Async, false).await
    }

    /// Returns the next pair from the end.
    pub async fn next_back_async(&mut self) -> Option<Result<(K, C::Key)>> {
        self.step(Mode::Async, true).await
    }

    async fn step(&mut self, mode: Mode, backwards: bool) -> Option<Result<(K, C::Key)>> {
        let row = self.rows.step(mode, backwards).await?;
        Some(row.and_then(|(row, value)| {
            let (key, document) = self.split(&row, &value)?;
            let document = C::Key::decode(&document).map_err(|error| self.rows.row_error(&row, error))?;
            Ok((key, document))
        }))
    }

    /// Splits a row into its index key and the encoded key of its document.
    fn split(&self, row: &[u8], value: &Value) -> Result<(K, Vec<u8>)> {
        let mut rest = row;
        let key = K::decode_from(&mut rest).map_err(|error| self.rows.row_error(row, error))?;
        Ok((key, if self.index.is_unique { value.to_vec() } else { rest.to_vec() }))
    }
}

impl<C: Collection, K: Key> Iterator for IndexKeys<'_, C, K> {
    type Item = Result<(K, C::Key)>;

    fn next(&mut self) -> Option<Self::Item> {
        ready(self.step(Mode::Blocking, false))
    }
}

impl<C: Collection, K: Key> DoubleEndedIterator for IndexKeys<'_, C, K> {
    fn next_back(&mut self) -> Option<Self::Item> {
        ready(self.step(Mode::Blocking, true))
    }
}

/// A double-ended iterator over documents in the order of an index. See [`Indexed::range`].
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
/// # let orders = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Order>()?;
/// # smol::block_on(async {
/// let mut found = orders.index(&Order::BY_CUSTOMER).range(3..);
/// while let Some(order) = found.next_async().await {
///     println!("{}", order?.id);
/// }
/// # Ok::<(), drumlin_collections::Error>(())
/// # })?;
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub struct Found<'r, C: Collection, K> {
    keys: IndexKeys<'r, C, K>,
    front: ReadAhead<C>,
    back: ReadAhead<C>,
    read_ahead: usize,
}

/// The documents and keys prefetched from one end of the range, nearest to that end first. A step stores all of its
/// progress here, so dropping its future loses nothing.
struct ReadAhead<C> {
    /// The documents that have been read. They are nearer to the end than the documents of `keys`.
    documents: VecDeque<Result<C>>,
    /// The keys of documents still to be read.
    keys: Vec<Vec<u8>>,
    /// The error that ended the search for keys. It is returned after the documents of `keys`.
    error: Option<Error>,
}

impl<C> Default for ReadAhead<C> {
    fn default() -> Self {
        ReadAhead { documents: VecDeque::new(), keys: Vec::new(), error: None }
    }
}

impl<C: Collection, K> Debug for Found<'_, C, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Found({:?}, {})", C::NAME, self.keys.rows.name)
    }
}

impl<C: Collection, K: Key> Found<'_, C, K> {
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
            let near = self.end(backwards);
            if let Some(document) = near.documents.pop_front() {
                return Some(document);
            }
            if near.keys.is_empty() {
                self.find_keys(mode, backwards).await;
            }
            let near = self.end(backwards);
            if near.keys.is_empty() && near.error.is_none() {
                // The remaining documents were prefetched from the other end.
                self.read_documents(mode, !backwards).await;
                return self.end(!backwards).documents.pop_back();
            }
            self.read_documents(mode, backwards).await;
        }
    }

    fn end(&mut self, backwards: bool) -> &mut ReadAhead<C> {
        if backwards { &mut self.back } else { &mut self.front }
    }

    /// Finds the keys of the next documents from one end. Adds no keys once the rows are exhausted.
    async fn find_keys(&mut self, mode: Mode, backwards: bool) {
        let Found { keys: index, front, back, read_ahead } = self;
        let end = if backwards { back } else { front };
        while end.keys.len() < *read_ahead {
            let Some(row) = index.rows.step(mode, backwards).await else { break };
            match row.and_then(|(row, value)| index.split(&row, &value)) {
                Ok((_, key)) => end.keys.push(key),
                Err(error) => {
                    end.error = Some(error);
                    break;
                }
            }
        }
        *read_ahead = (*read_ahead * 8).min(READ_AHEAD_MAX);
    }

    /// Reads the documents whose keys were found from one end.
    async fn read_documents(&mut self, mode: Mode, backwards: bool) {
        let Found { keys: IndexKeys { rows: PartRows { open, at, .. }, .. }, front, back, .. } = self;
        let ReadAhead { documents, keys, error } = if backwards { back } else { front };
        if !keys.is_empty() {
            // Keep the keys until their documents have arrived, in case the future is dropped.
            match mode.get_many(at.reader(), &open.documents, keys).await {
                Ok(rows) => {
                    let found = keys.iter().zip(rows);
                    documents.extend(found.filter_map(|(key, row)| open.decode_live(key, &row?).transpose()));
                }
                Err(error) => documents.push_back(Err(error.into())),
            }
            keys.clear();
        }
        documents.extend(error.take().map(Err));
    }
}

impl<C: Collection, K: Key> Iterator for Found<'_, C, K> {
    type Item = Result<C>;

    fn next(&mut self) -> Option<Result<C>> {
        ready(self.step(Mode::Blocking, false))
    }
}

impl<C: Collection, K: Key> DoubleEndedIterator for Found<'_, C, K> {
    fn next_back(&mut self) -> Option<Result<C>> {
        ready(self.step(Mode::Blocking, true))
    }
}
