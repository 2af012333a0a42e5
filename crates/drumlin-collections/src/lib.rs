//! Typed documents, secondary indexes and views on [Drumlin](drumlin), by its public face alone.
//!
//! - [`Collection`]: a trait of a type whose values are documents: their key, their form as bytes, and their [`Parts`].
//! - [`Collections`] opens collections of a database, and runs transactions over them.
//! - [`Documents`]: the documents of one collection. Each call is a transaction of its own.
//! - [`Index`] and [`View`]: constants that find documents by other keys, and that map and reduce them. Their rows
//!   change in the transaction that changes the document.
//! - [`ItemStream`]: documents and rows as a stream that owns what it reads, such as a response body.
//! - [`BulkLoad`]: a load of many documents into an empty collection.
//! - [`encoding`]: keys as bytes that sort like the values they encode. Usable without the rest.
//!
//! ```
//! use drumlin_collections::encoding::prefix;
//! use drumlin_collections::{Collection, Collections, Index, Parts, Postcard, View};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order {
//!     id: u64,
//!     customer: String,
//!     month: u32,
//!     cents: u64,
//! }
//!
//! impl Order {
//!     const BY_CUSTOMER: Index<Order, String> = Index::new("by customer", |order| order.customer.clone());
//!     const REVENUE: View<Order, (u32, String), u64> =
//!         View::new("revenue", |order: &Order, emit| emit((order.month, order.customer.clone()), order.cents))
//!             .reducing(|a, b| a + b);
//! }
//!
//! impl Collection for Order {
//!     type Key = u64;
//!     type Codec = Postcard;
//!     const NAME: &'static str = "orders";
//!
//!     fn key(&self) -> u64 {
//!         self.id
//!     }
//!
//!     fn parts() -> Parts<Order> {
//!         Parts::new().index(Order::BY_CUSTOMER).view(Order::REVENUE)
//!     }
//! }
//!
//! let db = drumlin::Config::in_memory().open("")?;
//! let collections = Collections::new(&db);
//! let orders = collections.open::<Order>()?;
//! collections.transact(|tx| {
//!     tx.insert(&orders, &Order { id: 1, customer: "ann".into(), month: 202611, cents: 300 })?;
//!     tx.insert(&orders, &Order { id: 2, customer: "bob".into(), month: 202611, cents: 500 })?;
//!     tx.insert(&orders, &Order { id: 3, customer: "ann".into(), month: 202612, cents: 700 })
//! })?;
//! for order in orders.index(&Order::BY_CUSTOMER).get("ann") {
//!     println!("order {}", order?.id); // 1, 3
//! }
//! assert_eq!(orders.view(&Order::REVENUE).reduce(prefix((202611,)))?, Some(800));
//! # Ok::<(), drumlin_collections::Error>(())
//! ```
//!
//! # What is kept where
//!
//! A collection's documents are the rows of the keyspace of its name. `NAME/meta` tells which index or view has been
//! built how far, `NAME/history` has past versions, and each index and view has a keyspace whose name has its version
//! and the schema's. Rows of these keyspaces that are written by other means than this crate leave indexes and views
//! untrue.
//!
//! # Views
//!
//! A view's reduce over any range takes O(log n): the engine keeps its states for parts of the view
//! ([`drumlin::Reducer`]). It sees exactly what its snapshot or transaction sees. Groups are folded row by row, and so
//! are ranges with documents that expire.
//!
//! # Existing data
//!
//! An index or view that is added to a collection with documents is built by a background thread while writers go on,
//! resumes after a crash, and refuses to be read until it is [ready](Documents::wait_built). One with another version,
//! or of a collection with another [schema](Collection::VERSION), is dropped when the collection is opened, and built
//! again. The types of keys and values are remembered by name: a collection, index or view that is opened with others,
//! and without another version, is an [error](Error::OtherTypes).
//!
//! # Functions that panic
//!
//! Functions of indexes and views, and reduces, run within [`catch_unwind`](std::panic::catch_unwind), before anything
//! is written: the call fails with [`Error::Panicked`], unless the program was built with `panic = "abort"`.
#![deny(missing_docs)]

mod building;
mod bulk_load;
mod changes;
mod codec;
mod collection;
mod collections;
mod core;
mod documents;
pub mod encoding;
mod error;
mod history;
mod hub;
mod indexed;
mod mode;
mod off_thread;
mod open;
mod part_rows;
mod parts;
mod reading;
mod removal;
mod shared;
mod stream;
mod transaction;
mod versions;
mod view_reducer;
mod viewed;

pub use bulk_load::BulkLoad;
pub use changes::{Change, Changes, Event};
pub use codec::{Codec, Postcard};
pub use collection::Collection;
pub use collections::Collections;
pub use documents::Documents;
pub use error::{BoxError, DocumentKey, Error, PartName, Result};
pub use indexed::{Found, IndexKeys, Indexed};
pub use parts::{Index, Parts, Retention, View};
pub use reading::{Reading, Rows};
pub use stream::ItemStream;
pub use transaction::{Savepoint, Transaction};
pub use versions::{AsOf, Version, Versions};
pub use viewed::{Groups, ViewRow, ViewRows, Viewed};
