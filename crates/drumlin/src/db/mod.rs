//! The public API: databases, keyspaces, transactions, snapshots.

mod aggregate;
mod alteration;
mod asynchronous;
mod atomic;
mod batch;
mod bounds;
mod bulk_load;
mod config;
mod counting;
mod database;
mod exact_sum;
mod handle;
mod in_transaction;
mod keyspace;
mod leaf_copy;
mod limits;
mod locking;
mod locks;
mod range;
mod reader;
mod reducer;
mod removal;
mod rows;
mod salvage;
mod scan;
mod shortage;
mod snapshot;
mod stream;
mod transact;
mod transaction;
mod value;
mod value_reader;

#[cfg(test)]
mod tests;

pub use crate::store::{LockWait, MemoryPart, Stats};
pub use crate::txn::locks::LockMode;
pub use alteration::Alteration;
pub use batch::Batch;
pub use bounds::KeyRange;
pub use bulk_load::{BulkLoad, LoadReport};
pub use config::Config;
pub use database::Database;
pub use keyspace::{Keyspace, KeyspaceInfo, KeyspaceOptions};
pub use limits::Limits;
pub use locks::{Interrupter, LockWaiter, LockedRow};
pub use range::{Keys, Range, Readers, Salvage, Values};
pub use reader::Reader;
pub use reducer::{Field, Max, Min, Number, ReduceError, Reducer, Sum};
pub use salvage::{Gap, Salvaged};
pub use snapshot::Snapshot;
pub use stream::RowStream;
pub use transact::Attempt;
pub use transaction::{Isolation, Savepoint, Transaction, TxOptions};
pub use value::Value;
pub use value_reader::{AsyncValueReader, ValueReader};
