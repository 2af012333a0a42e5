//! The callbacks that wait for records to become durable.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::seglog::Log as Stream;
use crate::sync::Mutex;

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// The callbacks that wait for records to become durable.
///
/// # Invariants
/// 1. Each callback is called once. The thread that takes it out of the map, under the lock, calls it.
/// 2. No lock is held during a call.
#[derive(Default)]
pub(super) struct Callbacks {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    by_timestamp: BTreeMap<Timestamp, Vec<Callback>>,
    failure: Option<Arc<str>>,
}

impl std::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "callbacks of {} records", self.waiting.lock().by_timestamp.len())
    }
}

impl Callbacks {
    /// Adds a callback, or calls it if the record is durable already or never will be.
    pub(super) fn add(&self, stream: &Stream, timestamp: Timestamp, callback: Callback) {
        let mut waiting = self.waiting.lock();
        if stream.durable() >= timestamp {
            drop(waiting);
            call(callback, Ok(()));
        } else if let Some(reason) = waiting.failure.clone() {
            drop(waiting);
            call(callback, Err(Error::OutcomeUnknown { reason }));
        } else {
            waiting.by_timestamp.entry(timestamp).or_default().push(callback);
            drop(waiting);
            stream.request_flush_of_first();
        }
    }

    /// Calls the callbacks of the records up to `horizon`, which are durable.
    pub(super) fn answer(&self, horizon: Timestamp) {
        let mut waiting = self.waiting.lock();
        if waiting.by_timestamp.first_key_value().is_none_or(|(first, _)| *first > horizon) {
            return;
        }
        let later = waiting.by_timestamp.split_off(&horizon.next());
        let answered = std::mem::replace(&mut waiting.by_timestamp, later);
        drop(waiting);
        answered.into_values().flatten().for_each(|callback| call(callback, Ok(())));
    }

    /// Calls all callbacks with the failure of the stream, and all that are added later.
    pub(super) fn fail(&self, reason: &Arc<str>) {
        let mut waiting = self.waiting.lock();
        waiting.failure = Some(Arc::clone(reason));
        let answered = std::mem::take(&mut waiting.by_timestamp);
        drop(waiting);
        for callback in answered.into_values().flatten() {
            call(callback, Err(Error::OutcomeUnknown { reason: Arc::clone(reason) }));
        }
    }
}

thread_local! {
    static IS_CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` if this thread is calling a callback. Such a thread may be one of the folder's own, for which closing
/// the folder waits.
pub(super) fn is_calling() -> bool {
    IS_CALLING.get()
}

/// Calls a callback. If it panicked through the writer that calls it, other threads would wait for ever.
fn call(callback: Callback, result: Result<()>) {
    let before = IS_CALLING.replace(true);
    if catch_unwind(AssertUnwindSafe(|| callback(result))).is_err() {
        log::error!("the callback of a receipt panicked");
    }
    IS_CALLING.set(before);
}
