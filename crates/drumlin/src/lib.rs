//! Drumlin: an embedded, transactional storage engine for data larger than memory.
#![deny(missing_docs)]

mod error;
mod format;
pub mod io;
#[allow(dead_code, reason = "the transaction layer, which is its caller, comes later")]
mod seglog;

pub use error::{Error, Recourse, Result};
pub use format::{Epoch, Incarnation, KeyspaceId, PageId, SegmentId, Timestamp};

#[doc(hidden)]
pub use seglog::measure as log_measure;
