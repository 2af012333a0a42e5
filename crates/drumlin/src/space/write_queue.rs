//! The queue of full buffers that are waiting to be written, and the buffers that are being written.

use std::collections::VecDeque;

use super::appender::WriteJob;
use crate::format::{BLOCK_BYTES, ExtentAddress};
use crate::memory::WRITE_BUFFER_COUNT;
use crate::sync::{Condvar, Mutex};

/// The write jobs of a data file. A thread that holds this lock takes no other.
#[derive(Debug, Default)]
pub(super) struct WriteJobs {
    pub(super) jobs: Mutex<Jobs>,
    pub(super) done: Condvar,
}

/// The state protected by the lock of [`WriteJobs`].
#[derive(Debug, Default)]
pub(super) struct Jobs {
    pub(super) waiting: VecDeque<WriteJob>,
    /// The ranges of the file that are being written.
    pub(super) running: Vec<std::ops::Range<u64>>,
    /// The ranges of the file that could not be written, so their contents on disk are invalid.
    pub(super) failed: Vec<std::ops::Range<u64>>,
}

impl Jobs {
    /// Returns `true` if at least half of the buffers are waiting or being written. The remaining buffers are being
    /// filled.
    pub(super) fn is_near_full(&self) -> bool {
        self.waiting.len() + self.running.len() >= WRITE_BUFFER_COUNT / 2
    }

    /// Returns `true` if the write of the extent at this address failed.
    pub(super) fn have_failed(&self, address: ExtentAddress) -> bool {
        self.failed.iter().any(|range| range.contains(&address.start()))
    }

    /// Returns `true` if the extent at this address is waiting to be written or is being written.
    pub(super) fn contain(&self, address: ExtentAddress) -> bool {
        let waiting = self.waiting.iter().map(WriteJob::range);
        waiting.chain(self.running.iter().cloned()).any(|range| range.contains(&address.start()))
    }
}

pub(super) fn overlap(one: &std::ops::Range<u64>, other: &std::ops::Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl WriteJobs {
    pub(super) fn enqueue(&self, jobs: Vec<WriteJob>) {
        if !jobs.is_empty() {
            let is_whole = |job: &WriteJob| job.bytes().len().is_multiple_of(BLOCK_BYTES);
            assert!(jobs.iter().all(is_whole), "a buffer ends within a block");
            let mut queue = self.jobs.lock();
            let overlaps = |job: &WriteJob| queue.waiting.iter().any(|other| overlap(&job.range(), &other.range()));
            debug_assert!(!jobs.iter().any(overlaps), "two jobs wait to write at the same place");
            queue.waiting.extend(jobs);
        }
    }
}
