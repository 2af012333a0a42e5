//! Typed documents, secondary indexes and views on top of [Drumlin](drumlin), using only its public API.
//!
//! - [`Collection`]: implemented by a document type. It defines the document's key, its encoding and its [`Parts`].
//! - [`Collections`]: opens the collections of a database and runs transactions across them.
//! - [`Documents`]: a handle to the documents of one collection. Each call runs as its own transaction.
//! - [`Index`] and [`View`]: constants that define a secondary index or a map-reduce view. Their rows change in the
//!   same transaction as the document.
//! - [`ItemStream`]: documents or rows as a stream that owns everything it reads from, for example as a response body.
//! - [`BulkLoad`]: loads many documents into an empty collection.
//! - [`encoding`]: encodes keys as bytes that sort like the keys. Usable without the rest of the crate.
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
//! # Keyspaces
//!
//! A collection stores its documents in a keyspace with the collection's name. `NAME/meta` records the build progress
//! of each index and view, and `NAME/history` holds past versions. Each index and view has its own keyspace, whose name
//! includes its version and the schema version. Do not write to these keyspaces except through this crate: indexes and
//! views would become inconsistent with the documents.
//!
//! # Views
//!
//! Reducing any range of a view takes O(log n), because the engine keeps reduced states for parts of the view (see
//! [`drumlin::Reducer`]). The result reflects exactly the rows that the snapshot or transaction sees. Groups are
//! reduced row by row, and so are ranges that contain documents with an expiry time.
//!
//! # Existing data
//!
//! If an index or view is added to a collection that already has documents, a background thread builds it while writers
//! continue. The build resumes after a crash. Reads of the index or view fail until it is
//! [ready](Documents::wait_built). If the version of an index or view, or the [schema version](Collection::VERSION) of
//! the collection, has changed, opening the collection drops the old rows and rebuilds them. The collection records the
//! names of its key and value types; opening it with different types under the same version is an
//! [error](Error::OtherTypes).
//!
//! # Panics in your functions
//!
//! Index, view and reduce functions run inside [`catch_unwind`](std::panic::catch_unwind), before anything is written.
//! If such a function panics, the call fails with [`Error::Panicked`], unless the program is built with `panic =
//! "abort"`.
#![deny(missing_docs)]

mod building;
mod bulk_load;
mod changes;
mod codec;
mod collection;
mod collections;
mod committed;
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
pub use committed::{Committed, DurableChanges};
pub use documents::Documents;
pub use error::{BoxError, DocumentKey, Error, PartName, Result};
pub use indexed::{Found, IndexKeys, Indexed};
pub use parts::{Index, Parts, Retention, View};
pub use reading::{Reading, Rows};
pub use stream::ItemStream;
pub use transaction::{Savepoint, Transaction};
pub use versions::{AsOf, Version, Versions};
pub use viewed::{Groups, ViewRow, ViewRows, Viewed};
