//! Drumlin: an embedded, transactional storage engine for data larger than memory.
#![deny(missing_docs)]

mod error;
mod format;
pub mod io;
#[allow(dead_code, unused_imports, reason = "the tree's operations, which use all of it, are not here yet")]
mod tree;
#[allow(dead_code, unused_imports, reason = "transactions are not here yet")]
mod txn;

pub use error::{Error, Recourse, Result};
pub use format::{Epoch, Incarnation, KeyspaceId, PageId, SegmentId, Timestamp};
