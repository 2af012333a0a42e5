//! Bulk loading into empty collections.
//!
//! The documents, and the rows of each index and view, are loaded into their own keyspaces by separate engine loads.
//! The records of the parts in `NAME/meta` are written last. If the process or machine dies during a load, the next
//! opening drops incomplete indexes and views and rebuilds them from the documents.

use std::any::TypeId;
use std::sync::Arc;

use crate::collection::Collection;
use crate::collections::{Collections, check_names, open_parts};
use crate::core::Core;
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::hub::lock;
use crate::off_thread::off_thread;
use crate::open::{OpenCollection, Prepared, part_record};
use crate::parts::Parts;

/// A bulk load of documents into an empty collection, along with the rows of its indexes and views. Much faster than
/// transactions: see [`drumlin::BulkLoad`]. Created by [`Collections::bulk_load`].
///
/// Documents may be inserted in any order; key order is the fastest. The rows of indexes and views are sorted in memory
/// and on disk. [`finish`](BulkLoad::finish) attaches everything to the collection and opens it. **Until then the
/// collection has no documents:** if the load is dropped, or its process or machine dies, nothing that it loaded
/// remains. Only a crash during `finish` can leave the documents without their indexes and views. In that case, a
/// background thread builds the indexes and views the next time the collection is opened.
///
/// The collection can't be opened while it is being loaded. If the collection keeps a [history](crate::Parts::history),
/// the history of a loaded document begins the next time the document is written.
///
/// ```
/// use drumlin_collections::{Collection, Collections, Index, Parts, Postcard};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order {
///     id: u64,
///     customer: u64,
/// }
///
/// impl Order {
///     const BY_CUSTOMER: Index<Order, u64> = Index::new("by customer", |order| order.customer);
/// }
///
/// impl Collection for Order {
///     type Key = u64;
///     type Codec = Postcard;
///     const NAME: &'static str = "orders";
///
///     fn key(&self) -> u64 {
///         self.id
///     }
///
///     fn parts() -> Parts<Order> {
///         Parts::new().index(Order::BY_CUSTOMER)
///     }
/// }
///
/// let collections = Collections::new(&drumlin::Config::in_memory().open("")?);
/// let mut load = collections.bulk_load::<Order>()?;
/// for id in 0..10_000 {
///     load.insert(&Order { id, customer: id % 100 })?;
/// }
/// let orders = load.finish()?; // durable from here on
/// assert_eq!(orders.index(&Order::BY_CUSTOMER).count(7..=7)?, 100);
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub struct BulkLoad<C: Collection> {
    /// The collection that is being loaded. No other handle can see it yet. The load uses it to encode documents and to
    /// derive their rows.
    open: OpenCollection<C>,
    documents: Load,
    parts: Vec<Load>,
    collections: Collections,
    _loading: Loading,
}

/// A load of one keyspace.
struct Load {
    load: drumlin::BulkLoad,
    /// The number of rows inserted so far.
    row_count: u64,
}

/// A guard that marks a collection as being loaded until the guard is dropped.
struct Loading {
    core: Arc<Core>,
    name: &'static str,
}

impl Drop for Loading {
    fn drop(&mut self) {
        lock(&self.core.loading).remove(self.name);
    }
}

impl<C: Collection> std::fmt::Debug for BulkLoad<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BulkLoad({:?}, {} documents)", C::NAME, self.documents.row_count)
    }
}

impl Collections {
    /// Starts a bulk load of a collection that has no documents and is not open. Much faster than inserting the
    /// documents: see [`BulkLoad`].
    ///
    /// # Errors
    /// [`Error::Definition`] if the collection has documents or is open; and the errors of [`open`](Collections::open).
    pub fn bulk_load<C: Collection>(&self) -> Result<BulkLoad<C>> {
        let opened = lock(&self.core.opened);
        if opened.contains_key(&TypeId::of::<C>()) {
            return Err(Error::definition(C::NAME, "it is already open; load it before opening it"));
        }
        self.check_free::<C>(&opened)?;
        let parts = C::parts();
        check_names(&parts)?;
        BulkLoad::begin(self, parts)
    }

    /// Asynchronous [`bulk_load`](Collections::bulk_load). Uses a separate thread for the duration of the call.
    ///
    /// # Errors
    /// See [`bulk_load`](Collections::bulk_load).
    pub async fn bulk_load_async<C: Collection>(&self) -> Result<BulkLoad<C>> {
        let collections = self.clone();
        off_thread(C::NAME, move || collections.bulk_load::<C>()).await
    }
}

impl Load {
    fn begin(db: &drumlin::Database, name: &str) -> Result<Load> {
        Ok(Load { load: db.bulk_load(name)?, row_count: 0 })
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.load.insert(key, value)?;
        self.row_count += 1;
        Ok(())
    }

    async fn insert_async(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.load.insert_async(key, value).await?;
        self.row_count += 1;
        Ok(())
    }

    /// Returns `true` if no two rows had the same key.
    fn finish(self) -> Result<bool> {
        Ok(self.load.finish()?.rows == self.row_count)
    }
}

impl<C: Collection> BulkLoad<C> {
    /// Starts a load. The caller has checked that the collection is not in use. It holds the lock that prevents others
    /// from opening the collection.
    pub(crate) fn begin(collections: &Collections, parts: Parts<C>) -> Result<BulkLoad<C>> {
        let core = &collections.core;
        let db = &core.shared.db;
        if !db.keyspace(C::NAME)?.is_empty()? {
            return Err(Error::definition(C::NAME, "it has documents; only an empty collection can be bulk loaded"));
        }
        let open = open_parts(&core.shared, parts)?;
        let documents = Load::begin(db, C::NAME)?;
        let mut loads = Vec::new();
        for part in &open.parts {
            // A part whose record is missing does not belong to the collection. If the load does not finish, the next
            // opening therefore drops the part's keyspace.
            open.meta.remove(part.keyspace.name())?;
            loads.push(Load::begin(db, &part.keyspace.name())?);
        }
        lock(&core.loading).insert(C::NAME);
        let _loading = Loading { core: Arc::clone(core), name: C::NAME };
        Ok(BulkLoad { open, documents, parts: loads, collections: collections.clone(), _loading })
    }

    /// Adds a document. If several documents have the same key, the last one wins. Amortised O(bytes of the document
    /// and of its rows in indexes and views).
    ///
    /// # Errors
    /// [`Error::Encode`] and [`Error::Panicked`] from functions of the collection, and [`drumlin::Error::KeyTooLong`]:
    /// the document is skipped, and the load can continue. Any other [`Error::Store`] ends the load: see
    /// [`drumlin::BulkLoad::insert`].
    pub fn insert(&mut self, document: &C) -> Result<()> {
        let prepared = self.open.prepare(document)?;
        self.check_keys(&prepared)?;
        self.documents.insert(&prepared.key, &prepared.row)?;
        for (load, rows) in self.parts.iter_mut().zip(&prepared.part_rows) {
            rows.iter().try_for_each(|row| load.insert(&row.key, &row.value))?;
        }
        Ok(())
    }

    /// Asynchronous [`insert`](BulkLoad::insert). A database error may stem from an earlier document, and always ends
    /// the load. Dropping the future ends the load too.
    ///
    /// # Errors
    /// See [`insert`](BulkLoad::insert).
    pub async fn insert_async(&mut self, document: &C) -> Result<()> {
        let prepared = self.open.prepare(document)?;
        self.check_keys(&prepared)?;
        self.documents.insert_async(&prepared.key, &prepared.row).await?;
        for (load, rows) in self.parts.iter_mut().zip(&prepared.part_rows) {
            for row in rows {
                load.insert_async(&row.key, &row.value).await?;
            }
        }
        Ok(())
    }

    /// Fails if the key of the document or of one of its rows is too long. The caller checks this before it loads any
    /// row of the document.
    fn check_keys(&self, prepared: &Prepared) -> Result<()> {
        let keyspaces = self.open.parts.iter().map(|part| &part.keyspace);
        let part_rows = keyspaces
            .zip(&prepared.part_rows)
            .flat_map(|(keyspace, rows)| rows.iter().map(move |row| (keyspace, &row.key)));
        for (keyspace, key) in part_rows.chain([(&self.open.documents, &prepared.key)]) {
            let limit_bytes = keyspace.key_bytes_max();
            if key.len() > limit_bytes {
                let (key_bytes, keyspace) = (key.len(), keyspace.name());
                return Err(drumlin::Error::KeyTooLong { key_bytes, limit_bytes, keyspace }.into());
            }
        }
        Ok(())
    }

    /// Attaches the documents, indexes and views to the collection, and opens it. All of them are durable when the call
    /// returns.
    ///
    /// If two rows of an index or view had the same key, its loaded rows are discarded. This happens if a document was
    /// inserted twice, or if two documents have the same key in a unique index. A background thread then builds the
    /// index or view from the documents, as if it had been [added to existing documents](crate::Documents::wait_built).
    /// If a unique index can't be built, [`wait_built`](crate::Documents::wait_built) returns the error.
    ///
    /// # Errors
    /// See [`drumlin::BulkLoad::finish`] and [`Collections::open`]. After an error, either all documents are stored or
    /// none of them.
    pub fn finish(self) -> Result<Documents<C>> {
        let BulkLoad { open, documents, parts, collections, _loading } = self;
        let db = &collections.core.shared.db;
        // If a document was inserted twice, the rows derived from its first version were loaded too.
        let are_whole = documents.finish()?;
        let mut records = db.batch()?;
        for (part, load) in open.parts.iter().zip(parts) {
            if load.finish()? && are_whole {
                records.insert(&open.meta, part.keyspace.name(), part_record::READY)?;
            }
        }
        records.commit_with(drumlin::Durability::Full)?;
        drop((open, _loading));
        collections.open::<C>()
    }

    /// Asynchronous [`finish`](BulkLoad::finish). Uses a separate thread, which continues even if the future is
    /// dropped.
    ///
    /// # Errors
    /// See [`finish`](BulkLoad::finish).
    pub async fn finish_async(self) -> Result<Documents<C>> {
        off_thread(C::NAME, move || self.finish()).await
    }
}
