//! Checks the answers of calls.

use std::panic::{AssertUnwindSafe, catch_unwind};

use drumlin::{Error, LockHolder, Recourse, Result};

/// Returns the recourse that the error's documentation promises.
pub(super) fn documented(error: &Error) -> Recourse {
    match error {
        Error::Conflict { .. } | Error::SnapshotTooOld { .. } | Error::MemoryInUse { .. } => Recourse::Retry,
        Error::LockTimeout { holder: LockHolder::Other | LockHolder::Prepared, .. } => Recourse::Retry,
        Error::PreparedInUse { .. } => Recourse::Retry,
        Error::Closed | Error::Failed { .. } | Error::OutcomeUnknown { .. } => Recourse::Reopen,
        Error::Corrupted { .. } => Recourse::Restore,
        _ => Recourse::Change,
    }
}

/// Returns the value of a result, or `None` for an error that `may` allows. Panics on any other error.
#[track_caller]
pub(super) fn checked<T>(result: Result<T>, may: impl Fn(&Error) -> bool) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error.recourse(), documented(&error), "{error}");
            assert_eq!(error.is_conflict(), matches!(error, Error::Conflict { .. }));
            assert!(may(&error) && !error.to_string().is_empty(), "{error:?}");
            None
        }
    }
}

#[track_caller]
pub(super) fn must<T>(result: Result<T>) -> T {
    checked(result, |_| false).expect("no error may be")
}

#[track_caller]
pub(super) fn refused<T>(result: Result<T>) {
    assert!(checked(result, |error| matches!(error, Error::Invalid(_))).is_none(), "a foreign handle was taken");
}

pub(super) fn is_too_old(error: &Error) -> bool {
    matches!(error, Error::SnapshotTooOld { .. })
}

pub(super) fn is_short_of_memory(error: &Error) -> bool {
    matches!(error, Error::TransactionTooLarge { .. } | Error::MemoryInUse { .. })
}

/// Runs a closure that must panic, without printing the panic.
pub(super) fn panics(body: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(body)).is_err(), "the panic was swallowed");
}

/// The message of deliberate panics.
pub const ON_PURPOSE: &str = "a panic on purpose";

/// Returns `true` if a read through `std::io` failed because its snapshot was too old or its keyspace had been dropped.
pub(super) fn is_gone(error: &std::io::Error) -> bool {
    ["too old", "was dropped"].iter().any(|why| error.to_string().contains(why))
}
