//! Runs blocking calls on a separate thread on behalf of futures. Suitable only for rare calls, because each call
//! starts a thread.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use crate::error::{Error, Result};
use crate::hub::lock;

struct Slot<T> {
    /// The result, or the payload of a panic.
    returned: Option<std::thread::Result<T>>,
    waker: Option<Waker>,
}

/// Runs `work` on a new thread and waits for its result. If the future is dropped, `work` still runs to completion.
pub(crate) async fn off_thread<T: Send + 'static>(
    collection: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let slot = Arc::new(Mutex::new(Slot { returned: None, waker: None }));
    let theirs = Arc::clone(&slot);
    let thread = std::thread::Builder::new().name("drumlin-collection".to_owned());
    let spawned = thread.spawn(move || {
        let returned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let mut slot = lock(&theirs);
        slot.returned = Some(returned);
        if let Some(waker) = slot.waker.take() {
            drop(slot);
            waker.wake();
        }
    });
    spawned.map_err(|error| Error::definition(collection, format!("can't start a thread: {error}")))?;
    let returned = poll_fn(|context| {
        let mut slot = lock(&slot);
        let returned = slot.returned.take();
        if returned.is_none() {
            slot.waker = Some(context.waker().clone());
        }
        returned.map_or(Poll::Pending, Poll::Ready)
    });
    returned.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
