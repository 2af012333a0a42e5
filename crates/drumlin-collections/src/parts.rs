//! The parts of a collection: indexes, views, the expiry and the history.
//!
//! An index or view is a function from a document to rows in a keyspace of its own. The function must depend only on
//! the document, because it is called a second time to find the rows of the stored document.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoding::{Key, name_of};
use crate::error::{PartKind, PartName, panic_message};

/// A document's row in an index or view.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PartRow {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// The reason why a document's rows could not be computed.
pub(crate) enum Refusal {
    Panicked(String),
    Encode(String),
}

/// The document from which rows are computed.
pub(crate) struct Source<'d, C> {
    pub(crate) document: &'d C,
    /// The document's encoded key.
    pub(crate) key: &'d [u8],
    pub(crate) expires: Option<SystemTime>,
}

type RowsOf<C> = dyn Fn(&Source<'_, C>) -> Result<Vec<PartRow>, Refusal> + Send + Sync;

/// An index, a view or the expiry, with the types of its keys and values erased.
pub(crate) struct Part<C> {
    pub(crate) name: PartName,
    pub(crate) version: u32,
    /// `true` for a unique index: each row belongs to one document, and its value is the document's key.
    pub(crate) is_unique: bool,
    /// The type names of its rows' keys and values and, for an index, whether it is unique.
    pub(crate) types: String,
    /// Formats the key of a row for error messages.
    pub(crate) shown: fn(&[u8]) -> String,
    rows: Box<RowsOf<C>>,
}

impl<C> Part<C> {
    /// Returns the rows of a document, sorted by key.
    pub(crate) fn rows(&self, source: &Source<'_, C>) -> Result<Vec<PartRow>, Refusal> {
        let made = catch_unwind(AssertUnwindSafe(|| (self.rows)(source)));
        let mut rows = made.unwrap_or_else(|panic| Err(Refusal::Panicked(panic_message(&*panic))))?;
        rows.sort_unstable();
        rows.dedup();
        Ok(rows)
    }
}

/// The indexes, views and settings of a collection: see [`Collection::parts`](crate::Collection::parts).
///
/// ```
/// use drumlin_collections::{Index, Parts, View};
///
/// struct Order {
///     customer: u64,
///     cents: u64,
/// }
///
/// const BY_CUSTOMER: Index<Order, u64> = Index::new("by customer", |order| order.customer);
/// const SPENT: View<Order, u64, u64> =
///     View::new("spent", |order: &Order, emit| emit(order.customer, order.cents)).reducing(|a, b| a + b);
///
/// let parts = Parts::new().index(BY_CUSTOMER).view(SPENT);
/// # drop(parts);
/// ```
pub struct Parts<C> {
    pub(crate) list: Vec<Part<C>>,
    pub(crate) expires: Option<fn(&C) -> Option<SystemTime>>,
    pub(crate) history: Option<Retention>,
}

impl<C> std::fmt::Debug for Parts<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.list.iter().map(|part| part.name.to_string()).collect();
        write!(f, "Parts({})", names.join(", "))
    }
}

impl<C> Default for Parts<C> {
    fn default() -> Parts<C> {
        Parts { list: Vec::new(), expires: None, history: None }
    }
}

impl<C: 'static> Parts<C> {
    /// Creates an empty list: documents can be found only by their own keys.
    #[must_use]
    pub fn new() -> Parts<C> {
        Parts::default()
    }

    /// Adds an index.
    #[must_use]
    pub fn index<K: Key + Debug + 'static>(mut self, index: Index<C, K>) -> Parts<C> {
        let shown = |row: &[u8]| {
            let mut rest = row;
            K::decode_from(&mut rest).map_or_else(|_| row.escape_ascii().to_string(), |key| format!("{key:?}"))
        };
        let rows = move |source: &Source<'_, C>| Ok(index.rows(source));
        let (name, version, is_unique) = (index.part_name(), index.version, index.is_unique);
        let types = format!("{}key {}", if is_unique { "unique " } else { "" }, K::fingerprint());
        self.list.push(Part { name, version, is_unique, types, shown, rows: Box::new(rows) });
        self
    }

    /// Adds a view.
    #[must_use]
    pub fn view<K, V>(mut self, view: View<C, K, V>) -> Parts<C>
    where
        K: Key + Debug + 'static,
        V: Serialize + DeserializeOwned + 'static,
    {
        let shown = |row: &[u8]| row.escape_ascii().to_string();
        let rows = move |source: &Source<'_, C>| view.rows(source);
        self.list.push(Part {
            name: view.part_name(),
            version: view.version,
            is_unique: false,
            types: format!("key {}, value {}", K::fingerprint(), name_of::<V>()),
            shown,
            rows: Box::new(rows),
        });
        self
    }

    /// Makes each document expire at the time that `expires` returns; `None` means never. Reads no longer see an
    /// expired document. [`remove_expired`](crate::Documents::remove_expired) removes all expired documents, and a
    /// background thread calls it every minute.
    ///
    /// The rows of a view store the expiry time that was computed when they were written, so give the views a new
    /// [version](View::version) when you add, remove or change the expiry of a collection. Adding or removing the
    /// expiry without new versions is an [error](crate::Error::OtherTypes); a change to the function is not detected.
    #[must_use]
    pub fn expires(mut self, expires: fn(&C) -> Option<SystemTime>) -> Parts<C> {
        let rows = move |source: &Source<'_, C>| {
            let row = |time: SystemTime| {
                let mut key = time.encode();
                key.extend_from_slice(source.key);
                PartRow { key, value: Vec::new() }
            };
            Ok(source.expires.map(row).into_iter().collect())
        };
        self.list.push(Part {
            name: PartName { kind: PartKind::Expiry, name: "expiry" },
            version: 1,
            is_unique: false,
            types: format!("key {}", SystemTime::fingerprint()),
            shown: |row| row.escape_ascii().to_string(),
            rows: Box::new(rows),
        });
        self.expires = Some(expires);
        self
    }

    /// Keeps past versions of each document for as long as `retention` specifies.
    #[must_use]
    pub fn history(mut self, retention: Retention) -> Parts<C> {
        self.history = Some(retention);
        self
    }
}

/// A rule that determines which past versions of a document are kept: see [`Parts::history`]. Versions that the rule no
/// longer covers are removed the next time the document is written. The newest version is always kept.
///
/// ```
/// use std::time::Duration;
///
/// use drumlin_collections::Retention;
///
/// let ten = Retention::versions(10);
/// let year = Retention::age(Duration::from_secs(365 * 86_400));
/// # drop((ten, year, Retention::FOREVER));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    pub(crate) versions: u64,
    pub(crate) age: Duration,
}

impl Retention {
    /// Keeps all versions.
    pub const FOREVER: Retention = Retention { versions: u64::MAX, age: Duration::MAX };

    /// Keeps the newest `count` versions of each document, and at least one.
    #[must_use]
    pub const fn versions(count: u64) -> Retention {
        Retention { versions: if count == 0 { 1 } else { count }, ..Retention::FOREVER }
    }

    /// Keeps the versions that were the newest at any time within the last `age`.
    #[must_use]
    pub const fn age(age: Duration) -> Retention {
        Retention { age, ..Retention::FOREVER }
    }
}

/// The function that returns a document's index keys.
enum KeysOf<C, K> {
    One(fn(&C) -> K),
    Optional(fn(&C) -> Option<K>),
    Many(fn(&C) -> Vec<K>),
}

impl<C, K> Clone for KeysOf<C, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C, K> Copy for KeysOf<C, K> {}

/// A secondary index: finds documents of type `C` by keys of type `K` instead of by their primary keys. Define it as a
/// constant, add it to the collection's [parts](crate::Collection::parts), and pass it to
/// [`Documents::index`](crate::Documents::index) to use it.
///
/// ```
/// use drumlin_collections::Index;
///
/// struct Customer {
///     name: String,
///     email: Option<String>,
///     tags: Vec<String>,
/// }
///
/// impl Customer {
///     const BY_NAME: Index<Customer, String> = Index::new("by name", |customer| customer.name.clone());
///     const BY_TAG: Index<Customer, String> = Index::many("by tag", |customer| customer.tags.clone());
///     // No two customers may have the same email. Customers without one are not in the index.
///     const BY_EMAIL: Index<Customer, String> =
///         Index::optional("by email", |customer: &Customer| customer.email.clone()).unique();
/// }
/// ```
///
/// The key of an index row is the encoded index key followed by the document's key. In a unique index, the row's key is
/// the index key alone, and its value is the document's key.
pub struct Index<C, K> {
    name: &'static str,
    version: u32,
    pub(crate) is_unique: bool,
    keys: KeysOf<C, K>,
}

impl<C, K> Clone for Index<C, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C, K> Copy for Index<C, K> {}

impl<C, K> std::fmt::Debug for Index<C, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({:?}, version {})", self.name, self.version)
    }
}

impl<C, K> Index<C, K> {
    const fn with(name: &'static str, keys: KeysOf<C, K>) -> Index<C, K> {
        Index { name, version: 1, is_unique: false, keys }
    }

    /// Creates an index in which each document has exactly one key.
    #[must_use]
    pub const fn new(name: &'static str, key: fn(&C) -> K) -> Index<C, K> {
        Index::with(name, KeysOf::One(key))
    }

    /// Creates an index in which each document has at most one key.
    #[must_use]
    pub const fn optional(name: &'static str, key: fn(&C) -> Option<K>) -> Index<C, K> {
        Index::with(name, KeysOf::Optional(key))
    }

    /// Creates an index in which each document has any number of keys.
    #[must_use]
    pub const fn many(name: &'static str, keys: fn(&C) -> Vec<K>) -> Index<C, K> {
        Index::with(name, KeysOf::Many(keys))
    }

    /// Makes the index unique: no two documents may have the same key. Writing a second document with the same key
    /// fails with [`Error::NotUnique`](crate::Error::NotUnique).
    #[must_use]
    pub const fn unique(mut self) -> Index<C, K> {
        self.is_unique = true;
        self
    }

    /// Sets the version, 1 by default. If the version differs from that of the existing rows, opening the collection
    /// rebuilds the index. Change the version whenever the function changes. Changing the key type or uniqueness
    /// without a new version is an [error](crate::Error::OtherTypes) when the collection is opened; other changes to
    /// the function are not detected.
    #[must_use]
    pub const fn version(mut self, version: u32) -> Index<C, K> {
        self.version = version;
        self
    }

    pub(crate) fn part_name(&self) -> PartName {
        PartName { kind: PartKind::Index, name: self.name }
    }
}

impl<C, K: Key> Index<C, K> {
    fn rows(&self, source: &Source<'_, C>) -> Vec<PartRow> {
        let row = |key: K| {
            let mut key = key.encode();
            if self.is_unique {
                return PartRow { key, value: source.key.to_vec() };
            }
            key.extend_from_slice(source.key);
            PartRow { key, value: Vec::new() }
        };
        match self.keys {
            KeysOf::One(of) => vec![row(of(source.document))],
            KeysOf::Optional(of) => of(source.document).map(row).into_iter().collect(),
            KeysOf::Many(of) => of(source.document).into_iter().map(row).collect(),
        }
    }
}

/// A map-reduce view. A function, the *map*, emits rows with keys of type `K` and values of type `V` for each document
/// of type `C`. An optional function, the *reduce*, combines two values into one. Define a view as a constant, like an
/// [`Index`].
///
/// ```
/// use drumlin_collections::View;
///
/// struct Order {
///     month: u32,
///     lines: Vec<(String, u64)>,
/// }
///
/// impl Order {
///     const REVENUE: View<Order, (u32, String), u64> = View::new("revenue", |order: &Order, emit| {
///         for (category, cents) in &order.lines {
///             emit((order.month, category.clone()), *cents);
///         }
///     })
///     .reducing(|a, b| a + b);
/// }
/// ```
///
/// The map must depend only on the document: to find the rows of a stored document, the map is called on the document a
/// second time. The reduce must be associative; it receives the values in key order. If the map or reduce panics, for
/// example on overflow, nothing is changed and the call fails with [`Error::Panicked`](crate::Error::Panicked).
///
/// The key of a view row is the emitted key followed by the document's key. If a document emits the same key several
/// times, a number is appended to the keys of the second and later rows. The row's value is the expiry time of the
/// document, followed by the emitted value encoded with [`Postcard`](crate::Postcard).
pub struct View<C, K, V> {
    name: &'static str,
    version: u32,
    map: fn(&C, &mut dyn FnMut(K, V)),
    pub(crate) reduce: Option<fn(V, V) -> V>,
}

impl<C, K, V> Clone for View<C, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C, K, V> Copy for View<C, K, V> {}

impl<C, K, V> std::fmt::Debug for View<C, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({:?}, version {})", self.name, self.version)
    }
}

impl<C, K, V> View<C, K, V> {
    /// Creates a view with this map function.
    #[must_use]
    pub const fn new(name: &'static str, map: fn(&C, &mut dyn FnMut(K, V))) -> View<C, K, V> {
        View { name, version: 1, map, reduce: None }
    }

    /// Sets the reduce function.
    #[must_use]
    pub const fn reducing(mut self, reduce: fn(V, V) -> V) -> View<C, K, V> {
        self.reduce = Some(reduce);
        self
    }

    /// Sets the version, 1 by default. If the version differs from that of the existing rows, opening the collection
    /// rebuilds the view. Change the version whenever the map changes; a changed reduce needs no new version. Changing
    /// the key or value type without a new version is an [error](crate::Error::OtherTypes) when the collection is
    /// opened; other changes to the map are not detected.
    #[must_use]
    pub const fn version(mut self, version: u32) -> View<C, K, V> {
        self.version = version;
        self
    }

    pub(crate) fn part_name(&self) -> PartName {
        PartName { kind: PartKind::View, name: self.name }
    }

    pub(crate) fn version_number(&self) -> u32 {
        self.version
    }
}

impl<C, K: Key, V: Serialize> View<C, K, V> {
    fn rows(&self, source: &Source<'_, C>) -> Result<Vec<PartRow>, Refusal> {
        let mut rows: Vec<PartRow> = Vec::new();
        let mut refused = None;
        (self.map)(source.document, &mut |key, value| {
            let mut bytes = source.expires.encode();
            match postcard::to_stdvec(&value) {
                Ok(encoded) => bytes.extend_from_slice(&encoded),
                Err(error) => refused = Some(error.to_string()),
            }
            let mut key = key.encode();
            key.extend_from_slice(source.key);
            rows.push(PartRow { key, value: bytes });
        });
        if let Some(reason) = refused {
            return Err(Refusal::Encode(reason));
        }
        number_repeated(&mut rows);
        Ok(rows)
    }
}

/// Sorts the rows of a document by key. If several rows have the same key, appends a number to the keys of all but the
/// first.
fn number_repeated(rows: &mut [PartRow]) {
    // The sort is stable: among rows with equal keys, the one emitted first stays first and gets no number.
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    for same in rows.chunk_by_mut(|a, b| a.key == b.key) {
        for (number, row) in same.iter_mut().enumerate().skip(1) {
            let number = u32::try_from(number).expect("a document emits fewer rows than memory has bytes for");
            row.key.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// Decodes the value of a view row: the document's expiry time and the emitted value.
pub(crate) fn view_value<V: DeserializeOwned>(mut bytes: &[u8]) -> Result<(Option<SystemTime>, V), String> {
    let expires = Option::<SystemTime>::decode_from(&mut bytes).map_err(|error| error.to_string())?;
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok((expires, value)),
        Ok(_) => Err("bytes are left over after the value".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
