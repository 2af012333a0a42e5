//! Bulk loads: filling an empty collection.
//!
//! The documents, and the rows of each index and view, are loads of their own keyspaces. A part's record in `NAME/meta`
//! is written last, so whatever a load leaves that dies on its way is built from the documents, or dropped, by the next
//! opening.

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

/// A load of many documents into an empty collection, with its indexes and views: much faster than transactions, as
/// [`drumlin::BulkLoad`] is. Made by [`Collections::bulk_load`].
///
/// Documents may come in any order, and are loaded fastest in that of their keys. The rows of indexes and views are
/// sorted in memory and on disk. [`finish`](BulkLoad::finish) gives them to the collection and opens it. **Until then
/// it has no documents:** a load that is dropped, or whose process or machine dies, leaves none. Only `finish` may be
/// cut off when the documents are there and indexes are not: these are then built by a background thread when the
/// collection is opened.
///
/// The collection can't be opened while it is loaded. A collection that keeps a [history](crate::Parts::history) begins
/// that of a loaded document with its next write.
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
    /// The collection as it will be, unknown to others. It makes the rows.
    open: OpenCollection<C>,
    documents: Load,
    parts: Vec<Load>,
    collections: Collections,
    _loading: Loading,
}

/// A load of one keyspace.
struct Load {
    load: drumlin::BulkLoad,
    /// The rows that were given to it.
    row_count: u64,
}

/// The mark of a collection that is being loaded.
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
    /// Begins a load of many documents into a collection that has none and is not open. Much faster than to insert
    /// them: see [`BulkLoad`].
    ///
    /// # Errors
    /// [`Error::Definition`] if the collection has documents, or is open; and those of [`open`](Collections::open).
    pub fn bulk_load<C: Collection>(&self) -> Result<BulkLoad<C>> {
        let opened = lock(&self.core.opened);
        if opened.contains_key(&TypeId::of::<C>()) {
            return Err(Error::definition(C::NAME, "it is open: load it before it is opened"));
        }
        self.check_free::<C>(&opened)?;
        let parts = C::parts();
        check_names(&parts)?;
        BulkLoad::begin(self, parts)
    }

    /// Asynchronous [`bulk_load`](Collections::bulk_load). Occupies a thread of its own meanwhile.
    ///
    /// # Errors
    /// Those of [`bulk_load`](Collections::bulk_load).
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

    /// Returns `true` if each row had a key of its own.
    fn finish(self) -> Result<bool> {
        Ok(self.load.finish()?.rows == self.row_count)
    }
}

impl<C: Collection> BulkLoad<C> {
    /// Begins a load of a collection whose name is free, while it can't be opened.
    pub(crate) fn begin(collections: &Collections, parts: Parts<C>) -> Result<BulkLoad<C>> {
        let core = &collections.core;
        let db = &core.shared.db;
        if !db.keyspace(C::NAME)?.is_empty()? {
            return Err(Error::definition(C::NAME, "it has documents, and only an empty one is loaded in bulk"));
        }
        let open = open_parts(&core.shared, parts)?;
        let documents = Load::begin(db, C::NAME)?;
        let mut loads = Vec::new();
        for part in &open.parts {
            // From here on its rows are no part of the collection: the next opening drops them.
            open.meta.remove(part.keyspace.name())?;
            loads.push(Load::begin(db, part.keyspace.name())?);
        }
        lock(&core.loading).insert(C::NAME);
        let _loading = Loading { core: Arc::clone(core), name: C::NAME };
        Ok(BulkLoad { open, documents, parts: loads, collections: collections.clone(), _loading })
    }

    /// Adds a document. Of documents with the same key the latest counts. Amortised O(bytes), for it and its rows in
    /// indexes and views.
    ///
    /// # Errors
    /// [`Error::Encode`] and [`Error::Panicked`] by functions of the collection, and keys that are too long: the load
    /// goes on without the document. After any other [`Error::Store`] it has ended: see
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

    /// Asynchronous [`insert`](BulkLoad::insert). An error of the database may be that of a document before, and always
    /// ends the load. So does dropping the future.
    ///
    /// # Errors
    /// Those of [`insert`](BulkLoad::insert).
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

    /// Refuses a document some of whose rows would be refused.
    fn check_keys(&self, prepared: &Prepared) -> Result<()> {
        let keyspaces = self.open.parts.iter().map(|part| &part.keyspace);
        let part_rows = keyspaces
            .zip(&prepared.part_rows)
            .flat_map(|(keyspace, rows)| rows.iter().map(move |row| (keyspace, &row.key)));
        for (keyspace, key) in part_rows.chain([(&self.open.documents, &prepared.key)]) {
            let limit_bytes = keyspace.key_bytes_max();
            if key.len() > limit_bytes {
                let (key_bytes, keyspace) = (key.len(), keyspace.name().to_owned());
                return Err(drumlin::Error::KeyTooLong { key_bytes, limit_bytes, keyspace }.into());
            }
        }
        Ok(())
    }

    /// Gives documents, indexes and views to the collection, and opens it. They are durable when it returns.
    ///
    /// An index or view some of whose rows had the same key is not taken over: because a document came twice, or since
    /// documents have the same key of a unique index. It is built from the documents by a background thread instead, as
    /// one that is [added to existing documents](crate::Documents::wait_built). What is wrong with a unique index is
    /// then told by [`wait_built`](crate::Documents::wait_built).
    ///
    /// # Errors
    /// Those of [`drumlin::BulkLoad::finish`] and of [`Collections::open`]. The documents are there, or none is.
    pub fn finish(self) -> Result<Documents<C>> {
        let BulkLoad { open, documents, parts, collections, _loading } = self;
        let db = &collections.core.shared.db;
        // A document that came twice has left rows of its first form.
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

    /// Asynchronous [`finish`](BulkLoad::finish). Occupies a thread of its own, which goes on if the future is dropped.
    ///
    /// # Errors
    /// Those of [`finish`](BulkLoad::finish).
    pub async fn finish_async(self) -> Result<Documents<C>> {
        off_thread(C::NAME, move || self.finish()).await
    }
}
