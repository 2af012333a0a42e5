//! Remembers shortages of memory that a transaction's calls met.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Remembers that a call of a transaction, or a step of one of its ranges, found memory in use. Then the transaction's
/// body is retried even if it returned an error of its own instead of [`Error::MemoryInUse`].
#[derive(Clone, Debug, Default)]
pub(super) struct Shortage(Option<Arc<AtomicBool>>);

impl Shortage {
    /// Creates one that remembers; the default does not.
    pub(super) fn watched() -> Shortage {
        Shortage(Some(Arc::default()))
    }

    /// Records a call's result and passes it on.
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
