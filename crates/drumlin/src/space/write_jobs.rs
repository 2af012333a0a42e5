//! Full buffers on their way to the disk. A thread that fills a buffer, or waits for one, writes all that wait.

use std::collections::VecDeque;

use super::appender::WriteJob;
use super::{FrameIndex, Space};
use crate::error::Result;
use crate::format::{BLOCK_BYTES, ExtentAddress};
use crate::memory::WRITE_BUFFER_COUNT;
use crate::sync::{Condvar, Mutex};

/// The write jobs of a data file. The lock is a leaf.
#[derive(Debug, Default)]
pub(super) struct WriteJobs {
    jobs: Mutex<Jobs>,
    done: Condvar,
}

/// The state that the lock of [`WriteJobs`] guards.
#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<WriteJob>,
    /// Ranges of the file that are being written.
    running: Vec<std::ops::Range<u64>>,
    /// Ranges that could not be written, so their content on disk is wrong.
    failed: Vec<std::ops::Range<u64>>,
}

impl Jobs {
    /// Returns `true` if half of the buffers or more are waiting or being written. The others are being filled.
    fn is_near_full(&self) -> bool {
        self.waiting.len() + self.running.len() >= WRITE_BUFFER_COUNT / 2
    }

    /// Returns `true` if writing the extent at this address failed.
    fn have_failed(&self, address: ExtentAddress) -> bool {
        self.failed.iter().any(|range| range.contains(&address.start()))
    }

    /// Returns `true` if the extent at this address waits to be written or is being written.
    fn contain(&self, address: ExtentAddress) -> bool {
        let waiting = self.waiting.iter().map(WriteJob::range);
        waiting.chain(self.running.iter().cloned()).any(|range| range.contains(&address.start()))
    }
}

fn overlap(one: &std::ops::Range<u64>, other: &std::ops::Range<u64>) -> bool {
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

impl Space {
    /// Returns `true` if the buffers that wait or are being written use up their part of the budget.
    pub(crate) fn is_near_full(&self) -> bool {
        self.write_jobs.jobs.lock().is_near_full()
    }

    /// Returns the number of buffers that wait or are being written.
    #[cfg(test)]
    pub(crate) fn write_count(&self) -> usize {
        let jobs = self.write_jobs.jobs.lock();
        jobs.waiting.len() + jobs.running.len()
    }

    /// Waits until [`is_near_full`](Self::is_near_full) returns `false`, writing buffers that wait.
    pub(crate) fn wait_for_writes(&self, written: impl Fn(&[FrameIndex])) -> Result<()> {
        while self.is_near_full() {
            self.run_jobs(&written)?;
            let mut jobs = self.write_jobs.jobs.lock();
            if jobs.is_near_full() && jobs.waiting.is_empty() {
                self.write_jobs.done.wait(&mut jobs);
            }
        }
        Ok(())
    }

    /// Writes buffers until none waits, and calls `written` with the frames of each. When it returns, other threads may
    /// still be writing.
    pub(crate) fn run_jobs(&self, written: impl Fn(&[FrameIndex])) -> Result<()> {
        loop {
            let job = {
                let mut jobs = self.write_jobs.jobs.lock();
                let Some(job) = jobs.waiting.pop_front() else { return self.check_failure() };
                let range = job.range();
                assert!(!range.is_empty(), "a job writes nothing at {range:?}");
                let overlaps = |other: &std::ops::Range<u64>| overlap(&range, other);
                debug_assert!(!jobs.running.iter().any(overlaps), "two jobs write over each other at {range:?}");
                jobs.running.push(range);
                job
            };
            let in_flight = self.share.background();
            let result = self.write(job.bytes(), job.offset);
            drop(in_flight);
            if result.is_ok() {
                written(&job.frames);
            }
            {
                let mut jobs = self.write_jobs.jobs.lock();
                let running_count = jobs.running.len();
                jobs.running.retain(|range| range.start != job.offset);
                assert!(jobs.running.len() + 1 == running_count, "two jobs write at {}", job.offset);
                if result.is_err() {
                    jobs.failed.push(job.range());
                }
            }
            self.write_jobs.done.notify_all();
            result?;
        }
    }

    /// Waits until every buffer enqueued so far is written.
    pub(crate) fn wait_for_jobs(&self, written: impl Fn(&[FrameIndex])) -> Result<()> {
        loop {
            self.run_jobs(&written)?;
            let mut jobs = self.write_jobs.jobs.lock();
            if jobs.waiting.is_empty() {
                if jobs.running.is_empty() {
                    return self.check_failure();
                }
                self.write_jobs.done.wait(&mut jobs);
            }
        }
    }

    /// Returns `true` if an appended extent can be read back. If it is still in a buffer, enqueues the buffer.
    pub(crate) fn is_written(&self, address: ExtentAddress) -> bool {
        assert!(!address.is_none(), "nothing is written at no address");
        self.flush_appender(address);
        let jobs = self.write_jobs.jobs.lock();
        !jobs.contain(address) && !jobs.have_failed(address)
    }

    fn flush_appender(&self, address: ExtentAddress) {
        for appender in &self.appenders {
            let mut appender = appender.lock();
            if appender.holds(address) {
                let mut jobs = Vec::new();
                appender.flush(&mut jobs);
                self.write_jobs.enqueue(jobs);
            }
        }
    }

    /// Waits until an appended extent can be read back, enqueuing and writing its buffer if necessary.
    pub(crate) fn ensure_written(&self, address: ExtentAddress, written: impl Fn(&[FrameIndex])) -> Result<()> {
        assert!(!address.is_none(), "a write at no address is waited for");
        self.flush_appender(address);
        loop {
            let mut jobs = self.write_jobs.jobs.lock();
            if jobs.have_failed(address) {
                return self.check_failure();
            }
            if !jobs.contain(address) {
                return Ok(());
            }
            if jobs.waiting.is_empty() {
                self.write_jobs.done.wait(&mut jobs);
            } else {
                drop(jobs);
                self.run_jobs(&written)?;
            }
        }
    }
}
