//! The handle to a collection's documents, and the corresponding methods of transactions.

use std::fmt::Debug;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use drumlin::{Durability, Keyspace, Reader, Snapshot, TxOptions};

use crate::building;
use crate::changes::Changes;
use crate::collection::Collection;
use crate::committed::DurableChanges;
use crate::core::{Core, Stop};
use crate::encoding::{EncodeAs, Key, KeyBounds, encoded};
use crate::error::{Error, PartName, Result};
use crate::hub::lock;
use crate::indexed::Indexed;
use crate::mode::{Mode, ready};
use crate::off_thread::off_thread;
use crate::open::{OpenCollection, Prepared};
use crate::parts::{Index, View};
use crate::reading::{Reading, Rows};
use crate::transaction::Transaction;
use crate::viewed::Viewed;

/// A handle to the documents of a collection. Cheap to clone and usable from any thread. Each call runs as its own
/// transaction. [`Transaction`] has the same write methods, which take this handle as their first argument.
/// [`at`](Documents::at) reads as of a snapshot, or within a transaction.
///
/// ```
/// use drumlin_collections::{Collection, Collections, Index, Parts, Postcard};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Debug, PartialEq)]
/// struct Customer {
///     id: u64,
///     email: String,
/// }
///
/// impl Customer {
///     const BY_EMAIL: Index<Customer, String> =
///         Index::new("by email", |customer: &Customer| customer.email.clone()).unique();
/// }
///
/// impl Collection for Customer {
///     type Key = u64;
///     type Codec = Postcard;
///     const NAME: &'static str = "customers";
///
///     fn key(&self) -> u64 {
///         self.id
///     }
///
///     fn parts() -> Parts<Customer> {
///         Parts::new().index(Customer::BY_EMAIL)
///     }
/// }
///
/// let db = drumlin::Config::in_memory().open("")?;
/// let customers = Collections::new(&db).open::<Customer>()?;
/// customers.insert(&Customer { id: 1, email: "ann@example.org".into() })?;
/// customers.update(1, |customer| customer.email = "ann@example.com".into())?;
/// let ann = customers.index(&Customer::BY_EMAIL).first("ann@example.com")?.unwrap();
/// assert_eq!(customers.remove(ann.id)?, Some(ann));
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub struct Documents<C: Collection> {
    pub(crate) open: Arc<OpenCollection<C>>,
    pub(crate) core: Arc<Core>,
    /// The durability of commits made through this handle.
    durability: Durability,
}

impl<C: Collection> Clone for Documents<C> {
    fn clone(&self) -> Self {
        Documents { open: Arc::clone(&self.open), core: Arc::clone(&self.core), durability: self.durability }
    }
}

impl<C: Collection> Debug for Documents<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Documents({:?})", C::NAME)
    }
}

/// The kinds of writes of a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Write {
    Put,
    Insert,
}

async fn write<C: Collection>(
    mode: Mode,
    open: &OpenCollection<C>,
    tx: &mut Transaction<'_>,
    write: Write,
    prepared: &Prepared,
) -> Result<()> {
    let key = &prepared.key[..];
    let needs_before = write == Write::Insert || !open.is_plain();
    let before = if needs_before { open.lock_stored(mode, tx, key).await? } else { None };
    if write == Write::Insert && before.as_ref().is_some_and(|before| !open.is_expired(&before.document)) {
        return Err(Error::Exists { collection: C::NAME, key: OpenCollection::<C>::key_shown(key) });
    }
    open.change(mode, tx, key, before.as_ref(), Some(prepared)).await
}

/// Inserts a document. If a different document already has the same key in the unique index, returns that document and
/// inserts nothing.
async fn insert_or_get<C: Collection>(
    mode: Mode,
    open: &OpenCollection<C>,
    tx: &mut Transaction<'_>,
    index: PartName,
    prepared: &Prepared,
) -> Result<Option<C>> {
    let part = open.ready_part(mode, tx, index).await?;
    if !part.part.is_unique {
        return Err(Error::definition(C::NAME, format!("{index} is not unique")));
    }
    let owner = match write(mode, open, tx, Write::Insert, prepared).await {
        Ok(()) => return Ok(None),
        Err(Error::NotUnique { index: of, other, .. }) if of == index => other.bytes().to_vec(),
        // The index key may be taken too. If the call repeats an earlier one, the document with this primary key also
        // owns the index key.
        Err(Error::Exists { collection, key }) => match open.owner(mode, tx, index, prepared).await? {
            Some(owner) => owner,
            None => return Err(Error::Exists { collection, key }),
        },
        Err(error) => return Err(error),
    };
    let stored = open.lock_stored(mode, tx, &owner).await?;
    let stored =
        stored.ok_or_else(|| open.part_error(index, &owner, "the document that it refers to does not exist"))?;
    Ok(Some(stored.document))
}

async fn remove<C: Collection>(
    mode: Mode,
    open: &OpenCollection<C>,
    tx: &mut Transaction<'_>,
    key: &[u8],
) -> Result<Option<C>> {
    let Some(before) = open.lock_stored(mode, tx, key).await? else { return Ok(None) };
    open.change(mode, tx, key, Some(&before), None).await?;
    Ok((!open.is_expired(&before.document)).then_some(before.document))
}

async fn update<C: Collection, R>(
    mode: Mode,
    open: &OpenCollection<C>,
    tx: &mut Transaction<'_>,
    key: &[u8],
    change: impl FnOnce(&mut C) -> R,
) -> Result<Option<R>> {
    let Some(before) = open.lock_stored(mode, tx, key).await? else { return Ok(None) };
    if open.is_expired(&before.document) {
        return Ok(None);
    }
    let mut document = open.decode(key, &before.row)?;
    let returned = change(&mut document);
    let prepared = open.prepare(&document)?;
    if prepared.key != key {
        let shown = OpenCollection::<C>::key_shown;
        return Err(Error::KeyChanged { collection: C::NAME, key: shown(key), new_key: shown(&prepared.key) });
    }
    open.change(mode, tx, key, Some(&before), Some(&prepared)).await?;
    Ok(Some(returned))
}

impl<C: Collection> Documents<C> {
    pub(crate) fn new(open: &Arc<OpenCollection<C>>, core: &Arc<Core>) -> Documents<C> {
        let durability = core.shared.db.tx_options().durability;
        Documents { open: Arc::clone(open), core: Arc::clone(core), durability }
    }

    /// Returns the options for transactions that this handle starts.
    pub(crate) fn options(&self) -> TxOptions {
        TxOptions { durability: self.durability, ..self.core.shared.db.tx_options() }
    }

    /// Returns the keyspace of the documents if writes can go to it directly, because the collection has no parts, no
    /// history and no subscribers.
    pub(crate) fn plain_rows(&self) -> Option<Keyspace> {
        let is_plain = self.open.is_plain() && !self.open.channel.has_subscribers();
        is_plain.then(|| self.open.documents.with_durability(self.durability))
    }
}

/// Reads. Each call sees the newest commit that a power cut can no longer undo.
impl<C: Collection> Documents<C> {
    /// Returns a reading of the documents as of `reader`, which is a [`Snapshot`](drumlin::Snapshot) of the database or
    /// a transaction. In a transaction, the reading includes the transaction's own writes. See [`Reading`].
    pub fn at<'r>(&self, reader: &'r Reader) -> Reading<'r, C> {
        Reading::at(&self.open, reader)
    }

    /// Returns a reading of the documents as of a snapshot. The reading owns the snapshot, so its iterators own
    /// everything they read from.
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
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// # let days = Collections::new(&db).open::<Day>()?;
    /// days.put(&Day(7))?;
    /// let snapshot = db.snapshot();
    /// let counted = std::thread::spawn({
    ///     let reading = days.at_snapshot(snapshot.clone());
    ///     move || reading.iter().count()
    /// });
    /// assert_eq!(counted.join().unwrap(), 1);
    /// # Ok::<(), drumlin_collections::Error>(())
    /// ```
    pub fn at_snapshot(&self, snapshot: Snapshot) -> Reading<'static, C> {
        Reading::snapshot(&self.open, snapshot)
    }

    /// Returns a reading of the current documents. Same as [`at_snapshot`](Documents::at_snapshot) with a new snapshot.
    pub fn now(&self) -> Reading<'static, C> {
        Reading::snapshot(&self.open, self.core.shared.db.snapshot())
    }

    /// Returns the document with this key. O(log n).
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Decode`], [`Error::Migration`].
    pub fn get(&self, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        let key = encoded(&key);
        let row = self.open.documents.get(&key)?;
        row.map_or(Ok(None), |row| self.open.decode_live(&key, &row))
    }

    /// Asynchronous [`get`](Documents::get).
    ///
    /// # Errors
    /// See [`get`](Documents::get).
    pub async fn get_async(&self, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        let key = encoded(&key);
        let row = self.open.documents.get_async(&key).await?;
        row.map_or(Ok(None), |row| self.open.decode_live(&key, &row))
    }

    /// Returns `true` if a document with this key exists: see [`Reading::contains`].
    ///
    /// # Errors
    /// See [`get`](Documents::get).
    pub fn contains(&self, key: impl EncodeAs<C::Key>) -> Result<bool> {
        self.now().contains(key)
    }

    /// Asynchronous [`contains`](Documents::contains).
    ///
    /// # Errors
    /// See [`get`](Documents::get).
    pub async fn contains_async(&self, key: impl EncodeAs<C::Key>) -> Result<bool> {
        self.now().contains_async(key).await
    }

    /// Returns the documents with these keys, all as of one snapshot, keeping many device reads in flight.
    ///
    /// # Errors
    /// See [`get`](Documents::get).
    pub fn get_many(&self, keys: &[impl EncodeAs<C::Key>]) -> Result<Vec<Option<C>>> {
        self.now().get_many(keys)
    }

    /// Asynchronous [`get_many`](Documents::get_many).
    ///
    /// # Errors
    /// See [`get`](Documents::get).
    pub async fn get_many_async(&self, keys: &[impl EncodeAs<C::Key>]) -> Result<Vec<Option<C>>> {
        self.now().get_many_async(keys).await
    }

    /// Returns the number of documents in a range of keys: see [`Reading::count`].
    ///
    /// ```
    /// # use drumlin_collections::{Collection, Collections, Postcard};
    /// # #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
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
    /// assert_eq!((days.len()?, days.count(3..=7)?), (9, 5));
    /// assert_eq!((days.first()?, days.last()?), (Some(Day(1)), Some(Day(9))));
    /// assert!(days.contains(4)? && !days.contains(10)? && !days.is_empty()?);
    /// assert_eq!(days.get_many(&[2, 12])?, [Some(Day(2)), None]);
    /// # Ok::<(), drumlin_collections::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn count(&self, bounds: impl KeyBounds<C::Key>) -> Result<u64> {
        self.now().count(bounds)
    }

    /// Asynchronous [`count`](Documents::count).
    ///
    /// # Errors
    /// See [`count`](Documents::count).
    pub async fn count_async(&self, bounds: impl KeyBounds<C::Key>) -> Result<u64> {
        self.now().count_async(bounds).await
    }

    /// Returns the number of documents. Same as [`count(..)`](Documents::count).
    ///
    /// # Errors
    /// See [`count`](Documents::count).
    pub fn len(&self) -> Result<u64> {
        self.count(..)
    }

    /// Asynchronous [`len`](Documents::len).
    ///
    /// # Errors
    /// See [`count`](Documents::count).
    pub async fn len_async(&self) -> Result<u64> {
        self.count_async(..).await
    }

    /// Returns `true` if [`len`](Documents::len) would be 0. O(log n).
    ///
    /// # Errors
    /// See [`count`](Documents::count).
    pub fn is_empty(&self) -> Result<bool> {
        self.now().is_empty()
    }

    /// Asynchronous [`is_empty`](Documents::is_empty).
    ///
    /// # Errors
    /// See [`count`](Documents::count).
    pub async fn is_empty_async(&self) -> Result<bool> {
        self.now().is_empty_async().await
    }

    /// Returns the document with the smallest key. O(log n).
    ///
    /// # Errors
    /// See [`get`](Documents::get).
    pub fn first(&self) -> Result<Option<C>> {
        self.now().first()
    }

    /// Asynchronous [`first`](Documents::first).
    ///
    /// # Errors
    /// See [`get`](Documents::get).
    pub async fn first_async(&self) -> Result<Option<C>> {
        self.now().first_async().await
    }

    /// Returns the document with the greatest key. O(log n).
    ///
    /// # Errors
    /// See [`get`](Documents::get).
    pub fn last(&self) -> Result<Option<C>> {
        self.now().last()
    }

    /// Asynchronous [`last`](Documents::last).
    ///
    /// # Errors
    /// See [`get`](Documents::get).
    pub async fn last_async(&self) -> Result<Option<C>> {
        self.now().last_async().await
    }

    /// Returns the documents in a range of keys: see [`Reading::range`].
    pub fn range(&self, bounds: impl KeyBounds<C::Key>) -> Rows<C> {
        self.now().range(bounds)
    }

    /// Returns all documents, in key order.
    pub fn iter(&self) -> Rows<C> {
        self.range(..)
    }

    /// Returns a handle to an index, for finding documents by their index keys: see [`Indexed`].
    pub fn index<K: Key + Debug + 'static>(&self, index: &Index<C, K>) -> Indexed<'static, C, K> {
        self.now().index(index)
    }

    /// Returns a handle to a view, for reading and reducing its rows: see [`Viewed`].
    pub fn view<K, V>(&self, view: &View<C, K, V>) -> Viewed<'static, C, K, V>
    where
        K: Key + Debug,
        V: serde::de::DeserializeOwned,
    {
        self.now().view(view)
    }
}

/// Writes. Each call runs as its own transaction, which is durable when the call returns unless the handle's durability
/// is relaxed. The handle's durability is [`Config::durability`](drumlin::Config::durability) unless
/// [`with_durability`](Documents::with_durability) changes it.
impl<C: Collection> Documents<C> {
    /// Returns a handle to the same documents whose calls commit with this durability. Explicit transactions commit
    /// with the durability of their [options](crate::Collections::transact_with).
    ///
    /// ```
    /// # use drumlin_collections::{Collection, Collections, Postcard};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Visit { id: u64 }
    /// # impl Collection for Visit {
    /// #     type Key = u64;
    /// #     type Codec = Postcard;
    /// #     const NAME: &'static str = "visits";
    /// #     fn key(&self) -> u64 { self.id }
    /// # }
    /// # let db = drumlin::Config::in_memory().open("")?;
    /// use drumlin::Durability;
    ///
    /// let visits = Collections::new(&db).open::<Visit>()?.with_durability(Durability::Relaxed);
    /// visits.put(&Visit { id: 1 })?; // returns at once; a power cut may undo the newest writes
    /// db.sync()?; // all writes so far are durable
    /// # Ok::<(), drumlin_collections::Error>(())
    /// ```
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Documents<C> {
        Documents { durability, ..self.clone() }
    }

    /// Stores a document, replacing the one with the same key if it exists. O(log n) for the document and for each row
    /// of its indexes and views that changes.
    ///
    /// # Errors
    /// [`Error::NotUnique`]; [`Error::Panicked`] and [`Error::Encode`] from functions of the collection;
    /// [`Error::Decode`] and [`Error::Migration`] if the existing document can't be read; [`Error::Store`] if the
    /// database returns an error. After an error, the collection is unchanged.
    pub fn put(&self, document: &C) -> Result<()> {
        let prepared = self.open.prepare(document)?;
        if let Some(rows) = self.plain_rows() {
            return Ok(rows.insert(&prepared.key, &prepared.row)?);
        }
        self.write(Write::Put, &prepared)
    }

    /// Stores a document. Fails if a document with the same key exists; otherwise like [`put`](Documents::put).
    ///
    /// # Errors
    /// [`Error::Exists`], and the errors of [`put`](Documents::put).
    pub fn insert(&self, document: &C) -> Result<()> {
        self.write(Write::Insert, &self.open.prepare(document)?)
    }

    fn write(&self, how: Write, prepared: &Prepared) -> Result<()> {
        let shared = &self.core.shared;
        shared.transact(self.options(), |tx| ready(write(Mode::Blocking, &self.open, tx, how, prepared)))
    }

    /// Stores a document and returns `None`. If another document already has the same key in this unique index, stores
    /// nothing and returns the other document. Use it to make a request idempotent in one transaction: when the request
    /// is repeated, the call returns the document that the first attempt stored.
    ///
    /// ```
    /// # use drumlin_collections::{Collection, Collections, Index, Parts, Postcard};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Job { id: u64, request: String }
    /// # impl Job {
    /// #     const BY_REQUEST: Index<Job, String> = Index::new("by request", |job: &Job| job.request.clone()).unique();
    /// # }
    /// # impl Collection for Job {
    /// #     type Key = u64;
    /// #     type Codec = Postcard;
    /// #     const NAME: &'static str = "jobs";
    /// #     fn key(&self) -> u64 { self.id }
    /// #     fn parts() -> Parts<Job> { Parts::new().index(Job::BY_REQUEST) }
    /// # }
    /// # let jobs = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Job>()?;
    /// let enqueue = |id| jobs.insert_or_get(&Job::BY_REQUEST, &Job { id, request: "r1".into() });
    /// assert!(enqueue(1)?.is_none());
    /// assert_eq!(enqueue(2)?.map(|before| before.id), Some(1));
    /// assert_eq!(jobs.len()?, 1);
    /// # Ok::<(), drumlin_collections::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Definition`] if the index is not unique; [`Error::NotReady`] and [`Error::NotBuilt`] while the index is
    /// incomplete; [`Error::NotUnique`] for another unique index; [`Error::Exists`] if a document with the same key
    /// exists, but no document has the index key; and the errors of [`put`](Documents::put).
    pub fn insert_or_get<K>(&self, index: &Index<C, K>, document: &C) -> Result<Option<C>> {
        let (prepared, name) = (self.open.prepare(document)?, index.part_name());
        self.core
            .shared
            .transact(self.options(), |tx| ready(insert_or_get(Mode::Blocking, &self.open, tx, name, &prepared)))
    }

    /// Asynchronous [`insert_or_get`](Documents::insert_or_get).
    ///
    /// # Errors
    /// See [`insert_or_get`](Documents::insert_or_get).
    pub async fn insert_or_get_async<K>(&self, index: &Index<C, K>, document: &C) -> Result<Option<C>> {
        let (prepared, name) = (Arc::new(self.open.prepare(document)?), index.part_name());
        let inserted = self.core.shared.transact_async(self.options(), |mut tx| {
            let (open, prepared) = (Arc::clone(&self.open), Arc::clone(&prepared));
            Box::pin(async move { insert_or_get(Mode::Async, &open, &mut tx, name, &prepared).await })
        });
        inserted.await
    }

    /// Updates a document and returns the result of `change`, or `None` if there is no such document. If other
    /// transactions conflict, `change` may run several times, each time on the newest version of the document.
    ///
    /// # Errors
    /// [`Error::KeyChanged`], and the errors of [`put`](Documents::put).
    pub fn update<R>(&self, key: impl EncodeAs<C::Key>, mut change: impl FnMut(&mut C) -> R) -> Result<Option<R>> {
        let (key, shared) = (encoded(&key), &self.core.shared);
        shared.transact(self.options(), |tx| ready(update(Mode::Blocking, &self.open, tx, &key, &mut change)))
    }

    /// Removes a document and returns it, or `None` if it did not exist.
    ///
    /// # Errors
    /// See [`put`](Documents::put).
    pub fn remove(&self, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        let (key, shared) = (encoded(&key), &self.core.shared);
        shared.transact(self.options(), |tx| ready(remove(Mode::Blocking, &self.open, tx, &key)))
    }

    /// Asynchronous [`put`](Documents::put).
    ///
    /// # Errors
    /// See [`put`](Documents::put).
    pub async fn put_async(&self, document: &C) -> Result<()> {
        let prepared = self.open.prepare(document)?;
        if let Some(rows) = self.plain_rows() {
            return Ok(rows.insert_async(&prepared.key, &prepared.row).await?);
        }
        self.write_async(Write::Put, prepared).await
    }

    /// Asynchronous [`insert`](Documents::insert).
    ///
    /// # Errors
    /// See [`insert`](Documents::insert).
    pub async fn insert_async(&self, document: &C) -> Result<()> {
        let prepared = self.open.prepare(document)?;
        self.write_async(Write::Insert, prepared).await
    }

    async fn write_async(&self, how: Write, prepared: Prepared) -> Result<()> {
        let (shared, prepared) = (&self.core.shared, Arc::new(prepared));
        let written = shared.transact_async(self.options(), |mut tx| {
            let (open, prepared) = (Arc::clone(&self.open), Arc::clone(&prepared));
            Box::pin(async move { write(Mode::Async, &open, &mut tx, how, &prepared).await })
        });
        written.await
    }

    /// Asynchronous [`update`](Documents::update).
    ///
    /// # Errors
    /// See [`update`](Documents::update).
    pub async fn update_async<R: Send + 'static>(
        &self,
        key: impl EncodeAs<C::Key>,
        change: impl FnMut(&mut C) -> R + Send + 'static,
    ) -> Result<Option<R>> {
        let (key, shared, change) = (Arc::new(encoded(&key)), &self.core.shared, Arc::new(Mutex::new(change)));
        let updated = shared.transact_async(self.options(), |mut tx| {
            let (open, key, change) = (Arc::clone(&self.open), Arc::clone(&key), Arc::clone(&change));
            Box::pin(
                async move { update(Mode::Async, &open, &mut tx, &key, |document| (*lock(&change))(document)).await },
            )
        });
        updated.await
    }

    /// Asynchronous [`remove`](Documents::remove).
    ///
    /// # Errors
    /// See [`remove`](Documents::remove).
    pub async fn remove_async(&self, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        let (key, shared) = (Arc::new(encoded(&key)), &self.core.shared);
        let removed = shared.transact_async(self.options(), |mut tx| {
            let (open, key) = (Arc::clone(&self.open), Arc::clone(&key));
            Box::pin(async move { remove(Mode::Async, &open, &mut tx, &key).await })
        });
        removed.await
    }
}

/// Maintenance and subscriptions.
impl<C: Collection> Documents<C> {
    /// Waits until all indexes and views that were [added to existing documents](crate::Parts) are built.
    ///
    /// # Errors
    /// [`Error::NotBuilt`] for the first index or view that could not be built.
    pub fn wait_built(&self) -> Result<()> {
        self.open.wait_built()
    }

    /// Asynchronous [`wait_built`](Documents::wait_built).
    ///
    /// # Errors
    /// See [`wait_built`](Documents::wait_built).
    pub async fn wait_built_async(&self) -> Result<()> {
        poll_fn(|context| self.open.poll_built(context.waker()).map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Removes the documents that have [expired](crate::Parts::expires) and returns their number. A background thread
    /// does the same every minute. O(expired documents), in transactions of at most 64 documents.
    ///
    /// # Errors
    /// See [`remove`](Documents::remove). Documents that the call removed before the error stay removed.
    pub fn remove_expired(&self) -> Result<u64> {
        building::remove_expired(&self.open, &Stop::default())
    }

    /// Asynchronous [`remove_expired`](Documents::remove_expired). Uses a separate thread for the duration of the call.
    ///
    /// # Errors
    /// See [`remove_expired`](Documents::remove_expired).
    pub async fn remove_expired_async(&self) -> Result<u64> {
        let documents = self.clone();
        off_thread(C::NAME, move || documents.remove_expired()).await
    }

    /// Subscribes to the changes that transactions of this process make through collections from now on.
    ///
    /// A change is delivered after its transaction has committed. If a transaction saw or overwrote the writes of
    /// another transaction, its changes are delivered after those of the other. If `capacity` changes are queued, the
    /// next change drops the oldest, which counts as lost. If the outcome of a commit is unknown, for example because
    /// its future was dropped, its changes and all queued changes count as lost.
    ///
    /// Each queued change keeps its document in memory.
    pub fn subscribe(&self, capacity: usize) -> Changes<C> {
        Changes::subscribe(&self.open, capacity)
    }

    /// Returns the durable changes that commits after `since` made to documents, by any program: the durable form of
    /// [`subscribe`](Documents::subscribe). The database must [keep its changes](drumlin::Config::keep_changes).
    ///
    /// Each commit appears whole and once, in the order of timestamps, and after a restart the feed continues after the
    /// last timestamp that was stored. To begin, read the documents, and continue after the timestamp of a snapshot
    /// that is older than the reading.
    ///
    /// # Errors
    /// The errors of [`drumlin::Database::changes`].
    pub fn changes_since(&self, since: drumlin::Timestamp) -> Result<DurableChanges<C>> {
        DurableChanges::since(&self.open, since)
    }
}

/// The writes of [`Documents`], within a transaction. After any error except a conflict, the failed call has changed
/// nothing, and the transaction can continue.
impl Transaction<'_> {
    /// Like [`Documents::put`].
    ///
    /// # Errors
    /// See [`Documents::put`].
    pub fn put<C: Collection>(&mut self, documents: &Documents<C>, document: &C) -> Result<()> {
        let prepared = documents.open.prepare(document)?;
        ready(write(Mode::Blocking, &documents.open, self, Write::Put, &prepared))
    }

    /// Asynchronous [`put`](Transaction::put).
    ///
    /// # Errors
    /// See [`put`](Transaction::put).
    pub async fn put_async<C: Collection>(&mut self, documents: &Documents<C>, document: &C) -> Result<()> {
        let prepared = documents.open.prepare(document)?;
        write(Mode::Async, &documents.open, self, Write::Put, &prepared).await
    }

    /// Like [`Documents::insert`].
    ///
    /// # Errors
    /// See [`Documents::insert`].
    pub fn insert<C: Collection>(&mut self, documents: &Documents<C>, document: &C) -> Result<()> {
        let prepared = documents.open.prepare(document)?;
        ready(write(Mode::Blocking, &documents.open, self, Write::Insert, &prepared))
    }

    /// Asynchronous [`insert`](Transaction::insert).
    ///
    /// # Errors
    /// See [`insert`](Transaction::insert).
    pub async fn insert_async<C: Collection>(&mut self, documents: &Documents<C>, document: &C) -> Result<()> {
        let prepared = documents.open.prepare(document)?;
        write(Mode::Async, &documents.open, self, Write::Insert, &prepared).await
    }

    /// Like [`Documents::insert_or_get`]. A document that it returns stays locked until the transaction ends.
    ///
    /// # Errors
    /// See [`Documents::insert_or_get`].
    pub fn insert_or_get<C: Collection, K>(
        &mut self,
        documents: &Documents<C>,
        index: &Index<C, K>,
        document: &C,
    ) -> Result<Option<C>> {
        let prepared = documents.open.prepare(document)?;
        ready(insert_or_get(Mode::Blocking, &documents.open, self, index.part_name(), &prepared))
    }

    /// Asynchronous [`insert_or_get`](Transaction::insert_or_get).
    ///
    /// # Errors
    /// See [`insert_or_get`](Transaction::insert_or_get).
    pub async fn insert_or_get_async<C: Collection, K>(
        &mut self,
        documents: &Documents<C>,
        index: &Index<C, K>,
        document: &C,
    ) -> Result<Option<C>> {
        let prepared = documents.open.prepare(document)?;
        insert_or_get(Mode::Async, &documents.open, self, index.part_name(), &prepared).await
    }

    /// Like [`Documents::update`], but `change` runs only once.
    ///
    /// # Errors
    /// See [`Documents::update`].
    pub fn update<C: Collection, R>(
        &mut self,
        documents: &Documents<C>,
        key: impl EncodeAs<C::Key>,
        change: impl FnOnce(&mut C) -> R,
    ) -> Result<Option<R>> {
        ready(update(Mode::Blocking, &documents.open, self, &encoded(&key), change))
    }

    /// Asynchronous [`update`](Transaction::update).
    ///
    /// # Errors
    /// See [`update`](Transaction::update).
    pub async fn update_async<C: Collection, R>(
        &mut self,
        documents: &Documents<C>,
        key: impl EncodeAs<C::Key>,
        change: impl FnOnce(&mut C) -> R,
    ) -> Result<Option<R>> {
        let key = encoded(&key);
        update(Mode::Async, &documents.open, self, &key, change).await
    }

    /// Like [`Documents::remove`].
    ///
    /// # Errors
    /// See [`Documents::remove`].
    pub fn remove<C: Collection>(&mut self, documents: &Documents<C>, key: impl EncodeAs<C::Key>) -> Result<Option<C>> {
        ready(remove(Mode::Blocking, &documents.open, self, &encoded(&key)))
    }

    /// Asynchronous [`remove`](Transaction::remove).
    ///
    /// # Errors
    /// See [`remove`](Transaction::remove).
    pub async fn remove_async<C: Collection>(
        &mut self,
        documents: &Documents<C>,
        key: impl EncodeAs<C::Key>,
    ) -> Result<Option<C>> {
        let key = encoded(&key);
        remove(Mode::Async, &documents.open, self, &key).await
    }
}
