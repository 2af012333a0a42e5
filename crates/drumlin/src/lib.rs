//! Drumlin: an embedded, transactional storage engine for data larger than memory.
#![deny(missing_docs)]

mod error;
mod format;
pub mod io;
#[allow(dead_code, unused_imports, reason = "the transaction layer, which is its caller, comes later")]
mod seglog;

pub use error::{Error, Recourse, Result};
pub use format::{Epoch, Incarnation, KeyspaceId, PageId, SegmentId, Timestamp};
