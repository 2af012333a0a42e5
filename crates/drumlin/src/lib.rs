//! Drumlin: an embedded, transactional storage engine for data larger than memory.
#![deny(missing_docs)]

mod error;
mod format;
pub mod io;
mod db;
mod pool;
mod seglog;
mod space;
mod tree;
mod txn;

pub use error::{Error, Recourse, Result};
pub use format::{Epoch, Incarnation, KeyspaceId, PageId, SegmentId, Timestamp};
