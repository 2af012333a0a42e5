//! Tracks whether a transaction's calls ran short of memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Records that a call of a transaction, or a step of one of its ranges, failed with [`Error::MemoryInUse`]. The
/// transaction's body is then retried even if it returns an error of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Shortage(Option<Arc<AtomicBool>>);

impl Shortage {
    /// Creates a flag that records shortages. A default `Shortage` records nothing.
    pub(super) fn watched() -> Shortage {
        Shortage(Some(Arc::default()))
    }

    /// Returns a call's result unchanged. If it is a shortage of memory, records that.
    pub(super) fn noting<T>(&self, result: Result<T>) -> Result<T> {
        if let (Some(was_met), Err(Error::MemoryInUse { .. })) = (&self.0, &result) {
            was_met.store(true, Ordering::Relaxed);
        }
        result
    }

    pub(super) fn was_met(&self) -> bool {
        self.0.as_ref().is_some_and(|was_met| was_met.load(Ordering::Relaxed))
    }
}
