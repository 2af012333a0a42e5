//! The definition of a collection.

use std::fmt::Debug;

use crate::codec::Codec;
use crate::encoding::Key;
use crate::error::BoxError;
use crate::parts::Parts;

/// A type whose values are documents of a collection.
///
/// ```
/// use drumlin_collections::{Collection, Index, Parts, Postcard};
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
/// ```
///
/// Documents are rows of the keyspace with the collection's name. Its other keyspaces have names that begin with it and
/// a slash.
pub trait Collection: Sized + Send + Sync + 'static {
    /// The type of the documents' keys. It can't change once there are documents: opening the collection with keys of
    /// another type is an [error](crate::Error::OtherTypes).
    type Key: Key + Debug + Send + Sync;
    /// The documents' form as bytes: [`Postcard`](crate::Postcard), or one of your own. Another one needs another
    /// [version](Collection::VERSION).
    type Codec: Codec<Self>;
    /// The collection's name, unique in the database: not empty, without a slash, and short, since those of its
    /// keyspaces, which begin with it, may have 255 bytes.
    const NAME: &'static str;
    /// The version of the documents' schema, 1 by default. It is stored with each document; change it with the form of
    /// the documents, and have [`migrate`](Collection::migrate) read the older ones. Opening a collection of another
    /// version builds its indexes and views again, in the background.
    const VERSION: u32 = 1;

    /// The document's key. It has to be a function of the document alone.
    fn key(&self) -> Self::Key;

    /// The indexes and views of the collection, and its settings. None by default.
    fn parts() -> Parts<Self> {
        Parts::new()
    }

    /// Makes a document of one that was written with an older [`VERSION`](Collection::VERSION), whenever it is read. It
    /// is stored in the new form when it is next written.
    ///
    /// ```
    /// # use drumlin_collections::{BoxError, Codec, Collection, Postcard};
    /// # use serde::{Deserialize, Serialize};
    /// /// Version 1 had no country.
    /// #[derive(Serialize, Deserialize)]
    /// struct CustomerV1 {
    ///     name: String,
    /// }
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Customer {
    ///     name: String,
    ///     country: Option<String>,
    /// }
    ///
    /// impl Collection for Customer {
    ///     type Key = String;
    ///     type Codec = Postcard;
    ///     const NAME: &'static str = "customers";
    ///     const VERSION: u32 = 2;
    ///
    ///     fn key(&self) -> String {
    ///         self.name.clone()
    ///     }
    ///
    ///     fn migrate(version: u32, bytes: &[u8]) -> Result<Customer, BoxError> {
    ///         let CustomerV1 { name } = match version {
    ///             1 => Postcard::decode(bytes)?,
    ///             _ => return Err("there was no such version".into()),
    ///         };
    ///         Ok(Customer { name, country: None })
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// Any: they become [`Error::Migration`](crate::Error::Migration). The default has no migrations.
    fn migrate(version: u32, bytes: &[u8]) -> Result<Self, BoxError> {
        let _ = bytes;
        Err(format!("it has no migration from version {version}").into())
    }
}
