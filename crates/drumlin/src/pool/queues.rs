//! A cache of idle I/O queues.

use crate::io::Queue;
use crate::sync::Mutex;

/// The maximum number of reads that one thread has in flight.
pub(super) const QUEUE_DEPTH: usize = 64;
/// The maximum number of idle queues. Each has a ring, its memory and a file descriptor.
const QUEUE_COUNT_MAX: usize = 16;

/// The behaviour of a thread if there is no frame or buffer for its next read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OnShortage {
    Wait,
    /// Skip the read for now. Other threads wait for the reads that this thread has in flight, so it must not wait
    /// itself.
    ReadLater,
}

impl OnShortage {
    /// Returns the behaviour required of the thread that owns this queue.
    pub(super) fn of(queue: &dyn Queue) -> OnShortage {
        if queue.in_flight() == 0 { OnShortage::Wait } else { OnShortage::ReadLater }
    }
}

/// Queues without reads in flight; at most [`QUEUE_COUNT_MAX`].
#[derive(Default)]
pub(super) struct Queues(Mutex<Vec<Box<dyn Queue>>>);

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queues({} idle)", self.0.lock().len())
    }
}

impl Queues {
    pub(super) fn take(&self) -> Option<Box<dyn Queue>> {
        let queue = self.0.lock().pop()?;
        assert_eq!(queue.in_flight(), 0, "a queue that was kept has reads in flight");
        Some(queue)
    }

    pub(super) fn give(&self, queue: Box<dyn Queue>) {
        assert_eq!(queue.in_flight(), 0, "a queue is kept with reads in flight");
        let mut queues = self.0.lock();
        if queues.len() < QUEUE_COUNT_MAX {
            queues.push(queue);
        }
        debug_assert!(queues.len() <= QUEUE_COUNT_MAX, "{} queues are kept", queues.len());
    }
}
