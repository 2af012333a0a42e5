//! The parts of a collection beside its documents: indexes, views, an expiry, a history.
//!
//! An index or view is a function from a document to rows of a keyspace of its own. The rows of a document are found
//! again by calling the function on the document as it was, so it has to be a function of the document alone.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoding::{Key, name_of};
use crate::error::{PartKind, PartName, panic_message};

/// A row that an index or view has because of a document.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PartRow {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// The reason for which a document has no rows.
pub(crate) enum Refusal {
    Panicked(String),
    Encode(String),
}

/// The document that rows are made of.
pub(crate) struct Source<'d, C> {
    pub(crate) document: &'d C,
    /// Its key, encoded.
    pub(crate) key: &'d [u8],
    pub(crate) expires: Option<SystemTime>,
}

type RowsOf<C> = dyn Fn(&Source<'_, C>) -> Result<Vec<PartRow>, Refusal> + Send + Sync;

/// An index or view, without its types of keys and values.
pub(crate) struct Part<C> {
    pub(crate) name: PartName,
    pub(crate) version: u32,
    /// A row belongs to one document: its value is that document's key.
    pub(crate) is_unique: bool,
    /// The types of its rows.
    pub(crate) types: String,
    /// Shows a row's key in errors.
    pub(crate) shown: fn(&[u8]) -> String,
    rows: Box<RowsOf<C>>,
}

impl<C> Part<C> {
    /// The rows of a document, in the order of their keys.
    pub(crate) fn rows(&self, source: &Source<'_, C>) -> Result<Vec<PartRow>, Refusal> {
        let made = catch_unwind(AssertUnwindSafe(|| (self.rows)(source)));
        let mut rows = made.unwrap_or_else(|panic| Err(Refusal::Panicked(panic_message(&*panic))))?;
        rows.sort_unstable();
        rows.dedup();
        Ok(rows)
    }
}

/// The parts of a collection beside its documents: see [`Collection::parts`](crate::Collection::parts).
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
    /// None: documents by their keys.
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

    /// Documents end at the time that `expires` tells: reads do not see them from then on, and
    /// [`remove_expired`](crate::Documents::remove_expired) removes them, as does a background thread every minute.
    /// `None`: never.
    ///
    /// A view's rows keep the time that they were made with: give views a new [version](View::version) where a
    /// collection gets an expiry, or another one. That it got or lost one is an [error](crate::Error::OtherTypes)
    /// without; another function is not noticed.
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

    /// Keeps past versions of each document.
    #[must_use]
    pub fn history(mut self, retention: Retention) -> Parts<C> {
        self.history = Some(retention);
        self
    }
}

/// The retention of past versions of a document: see [`Parts::history`]. Versions are removed when their document is
/// written; the newest stays in any case.
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
    /// All versions.
    pub const FOREVER: Retention = Retention { versions: u64::MAX, age: Duration::MAX };

    /// The newest `count` versions of a document, and at least one.
    #[must_use]
    pub const fn versions(count: u64) -> Retention {
        Retention { versions: if count == 0 { 1 } else { count }, ..Retention::FOREVER }
    }

    /// The versions that were the newest at some moment of the last `age`.
    #[must_use]
    pub const fn age(age: Duration) -> Retention {
        Retention { age, ..Retention::FOREVER }
    }
}

/// The keys that a document has in an index.
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

/// An index: finds documents of type `C` by keys of type `K` that are not their own. A constant, named where the
/// collection [lists its parts](crate::Collection::parts) and where it is [asked](crate::Documents::index).
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
///     // No two customers have the same; those without one are not in it.
///     const BY_EMAIL: Index<Customer, String> =
///         Index::optional("by email", |customer: &Customer| customer.email.clone()).unique();
/// }
/// ```
///
/// A row of the index is a key of type `K`, encoded, and the document's key; of a unique index the key alone.
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

    /// An index in which each document has one key.
    #[must_use]
    pub const fn new(name: &'static str, key: fn(&C) -> K) -> Index<C, K> {
        Index::with(name, KeysOf::One(key))
    }

    /// An index in which a document has one key or none.
    #[must_use]
    pub const fn optional(name: &'static str, key: fn(&C) -> Option<K>) -> Index<C, K> {
        Index::with(name, KeysOf::Optional(key))
    }

    /// An index in which a document has any number of keys.
    #[must_use]
    pub const fn many(name: &'static str, keys: fn(&C) -> Vec<K>) -> Index<C, K> {
        Index::with(name, KeysOf::Many(keys))
    }

    /// The same index, in which no two documents may have the same key: writing the second fails with
    /// [`Error::NotUnique`](crate::Error::NotUnique).
    #[must_use]
    pub const fn unique(mut self) -> Index<C, K> {
        self.is_unique = true;
        self
    }

    /// The same index with another version, 1 by default. Opening a collection builds an index again whose version is
    /// not that of its rows: change it with the function. A changed type of keys, or an index that becomes unique or
    /// ceases to be, without another version is an [error](crate::Error::OtherTypes) when the collection is opened; a
    /// function that has changed otherwise is not noticed.
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

/// A view: rows of keys `K` and values `V` that a function, the *map*, makes of each document of type `C`; and a
/// function, the *reduce*, that makes one value of two. A constant, like an [`Index`].
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
/// The map has to be a function of the document alone: its rows are found again by calling it on the document as it
/// was. The reduce has to be associative, and gets the values in the order of keys. A map or reduce that panics, such
/// as by an overflow, harms nothing: the call fails with [`Error::Panicked`](crate::Error::Panicked).
///
/// A row of the view is the key, the document's key, and a number where a document has emitted the same key before; its
/// value is the time at which the document expires, and the value as [`Postcard`](crate::Postcard).
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
    /// A view with this map.
    #[must_use]
    pub const fn new(name: &'static str, map: fn(&C, &mut dyn FnMut(K, V))) -> View<C, K, V> {
        View { name, version: 1, map, reduce: None }
    }

    /// The same view with this reduce.
    #[must_use]
    pub const fn reducing(mut self, reduce: fn(V, V) -> V) -> View<C, K, V> {
        self.reduce = Some(reduce);
        self
    }

    /// The same view with another version, 1 by default. Opening a collection builds a view again whose version is not
    /// that of its rows: change it with the map. A changed reduce needs no new version. Changed types of keys or values
    /// without another version are an [error](crate::Error::OtherTypes) when the collection is opened; a map that has
    /// changed otherwise is not noticed.
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

/// Sorts a document's rows, and appends a number to the keys of those whose key it has emitted before.
fn number_repeated(rows: &mut [PartRow]) {
    // Stable: of equal keys the one that was emitted first stays first, and has no number.
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    for same in rows.chunk_by_mut(|a, b| a.key == b.key) {
        for (number, row) in same.iter_mut().enumerate().skip(1) {
            let number = u32::try_from(number).expect("a document emits fewer rows than memory has bytes for");
            row.key.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// The parts of a view's row value: the time at which its document expires, and the encoded value.
pub(crate) fn view_value<V: DeserializeOwned>(mut bytes: &[u8]) -> Result<(Option<SystemTime>, V), String> {
    let expires = Option::<SystemTime>::decode_from(&mut bytes).map_err(|error| error.to_string())?;
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok((expires, value)),
        Ok(_) => Err("bytes are left over behind the value".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
