//! Spills that worker threads make on behalf of tasks.

use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::error::Result;
use crate::sync::Mutex;
use crate::task::WaitMode;
use crate::txn::spilled::writes::WriteSpill;
use crate::txn::write_set::{SharedWrites, Spill};

/// A spill that a worker thread makes on behalf of a task. If the task drops its call, the next call of the transaction
/// takes the result.
#[derive(Debug)]
pub(super) struct PendingSpill {
    state: Mutex<SpillState>,
}

#[derive(Debug)]
enum SpillState {
    Running(Option<Waker>),
    Ended(Result<Spill>),
    /// The job was dropped before it began, or its result was taken.
    Gone,
}

/// The job of a pending spill. Ends the spill even if it never runs.
pub(super) struct SpillJob(Arc<PendingSpill>);

impl SpillJob {
    /// Writes the changes in memory to disk. Entries before the position `savepoint` may become the newest of their
    /// rows again.
    pub(super) fn run(self, file: &WriteSpill, writes: Arc<SharedWrites>, savepoint: usize) {
        let spill = writes.set.spill_to(file, savepoint);
        // The owner of the transaction must be the only one to have its changes when it learns of the result.
        drop(writes);
        self.end(SpillState::Ended(spill));
    }

    fn end(&self, state: SpillState) {
        let before = std::mem::replace(&mut *self.0.state.lock(), state);
        assert!(matches!(before, SpillState::Running(_)), "a spill ends twice");
        if let SpillState::Running(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl Drop for SpillJob {
    fn drop(&mut self) {
        let is_running = matches!(*self.0.state.lock(), SpillState::Running(_));
        if is_running {
            self.end(SpillState::Gone);
        }
    }
}

impl PendingSpill {
    pub(super) fn begin() -> (Arc<PendingSpill>, SpillJob) {
        let pending = Arc::new(PendingSpill { state: Mutex::new(SpillState::Running(None)) });
        let job = SpillJob(Arc::clone(&pending));
        (pending, job)
    }

    /// Waits for the result. Returns `None` if the spill has to begin again.
    pub(super) async fn wait(&self, mode: WaitMode<'_>) -> Option<Result<Spill>> {
        mode.until(|waker| {
            let mut state = self.state.lock();
            match &mut *state {
                SpillState::Running(waiting) => {
                    let before = waiting.replace(waker.clone());
                    drop(state);
                    drop(before);
                    Poll::Pending
                }
                SpillState::Ended(_) | SpillState::Gone => match std::mem::replace(&mut *state, SpillState::Gone) {
                    SpillState::Ended(spill) => Poll::Ready(Some(spill)),
                    _ => Poll::Ready(None),
                },
            }
        })
        .await
    }
}
