//! Receipts: waiting until a record is durable, on a thread, in a task, or by a callback.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::opening::Opening;
use crate::error::Result;
use crate::format::Timestamp;

/// Tells when a change of a log is durable. The change is made and can be read, whatever becomes of the receipt.
///
/// A receipt can be waited for by a thread ([`wait`](Receipt::wait)) or a task (`receipt.await`), or call back
/// ([`then`](Receipt::then)). If it is dropped, the change becomes durable within a few milliseconds.
///
/// If a write or a sync fails, every receipt that is not answered yet gets
/// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown), and nothing is
/// acknowledged until the folder is opened again.
///
/// ```
/// use drumlin::logs::{Logs, LogsOptions};
///
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-receipt-{}", std::process::id()));
/// let logs = Logs::open(&folder, &LogsOptions::new())?;
/// let log = logs.log(7);
/// log.append(1, &["one"])?.wait()?; // durable
/// let (answer, answered) = std::sync::mpsc::channel();
/// log.append(2, &["two", "three"])?.then(move |durable| answer.send(durable.is_ok()).unwrap());
/// assert_eq!(log.get(3)?, "three"); // readable at once
/// assert!(answered.recv().unwrap());
/// # logs.close()?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[must_use = "the change may not be durable before its receipt is answered"]
pub struct Receipt {
    opening: Arc<Opening>,
    timestamp: Timestamp,
    is_settled: bool,
}

impl std::fmt::Debug for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Receipt of record {}", self.timestamp)
    }
}

impl Receipt {
    pub(super) fn new(opening: &Arc<Opening>, timestamp: Timestamp) -> Receipt {
        Receipt { opening: Arc::clone(opening), timestamp, is_settled: false }
    }

    /// Waits until the change is durable. If no write is in flight, the calling thread writes.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) if a write or a sync failed first;
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn wait(mut self) -> Result<()> {
        self.is_settled = true;
        self.opening.shared.check_process()?;
        self.opening.shared.stream.wait_durable_up_to(self.timestamp)
    }

    /// Calls `callback` once the change is durable, or will not become so: on the thread that wrote it, or at once.
    /// Callbacks should be short, and must not wait for other changes of the logs. They are called in any order. A
    /// callback can't close the logs. If it drops their last handle, another thread closes them soon after.
    pub fn then(mut self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        self.is_settled = true;
        let shared = &self.opening.shared;
        if let Err(error) = shared.check_process() {
            callback(Err(error));
            return;
        }
        shared.callbacks.add(&shared.stream, self.timestamp, Box::new(callback));
    }

    /// Returns `true` if the change is durable.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.opening.shared.stream.durable() >= self.timestamp
    }
}

impl Future for Receipt {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let shared = &self.opening.shared;
        let polled = match shared.check_process() {
            Ok(()) => shared.stream.poll_durable(self.timestamp, context.waker()),
            Err(error) => Poll::Ready(Err(error)),
        };
        self.is_settled = polled.is_ready();
        polled
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.is_settled && self.opening.shared.check_process().is_ok() && !self.is_durable() {
            self.opening.shared.stream.request_relaxed_flush_of_first();
        }
    }
}
