//! The trait that defines a collection.

use std::fmt::Debug;

use crate::codec::Codec;
use crate::encoding::Key;
use crate::error::BoxError;
use crate::parts::Parts;

/// A document type. It defines the collection in which its documents are stored.
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
/// Documents are stored as rows of the keyspace with the collection's name. The names of the collection's other
/// keyspaces consist of this name, a slash and a suffix.
pub trait Collection: Sized + Send + Sync + 'static {
    /// The type of the documents' keys. It can't change once the collection has documents: opening the collection with
    /// a different key type is an [error](crate::Error::OtherTypes).
    type Key: Key + Debug + Send + Sync;
    /// Encodes documents as bytes: [`Postcard`](crate::Postcard), or your own codec. Changing the codec requires a new
    /// [version](Collection::VERSION).
    type Codec: Codec<Self>;
    /// The collection's name, unique within the database. It must not be empty or contain a slash. Keep it short: the
    /// names of the collection's keyspaces start with it and are limited to 255 bytes.
    const NAME: &'static str;
    /// The schema version of the documents, 1 by default. Each document is stored with its version. Increase the
    /// version when the document type changes, and implement [`migrate`](Collection::migrate) to read older documents.
    /// Opening a collection with a new version rebuilds its indexes and views in the background.
    const VERSION: u32 = 1;

    /// Returns the document's key. The key must depend only on the document.
    fn key(&self) -> Self::Key;

    /// Returns the collection's indexes, views and settings. None by default.
    fn parts() -> Parts<Self> {
        Parts::new()
    }

    /// Converts a document that was written with an older [`VERSION`](Collection::VERSION). Each read of such a
    /// document calls this function; the next write of the document stores it in the new format.
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
    /// Any error; it becomes [`Error::Migration`](crate::Error::Migration). The default implementation always fails.
    fn migrate(version: u32, bytes: &[u8]) -> Result<Self, BoxError> {
        let _ = bytes;
        Err(format!("there is no migration from version {version}").into())
    }
}
