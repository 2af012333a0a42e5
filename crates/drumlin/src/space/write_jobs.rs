//! Full buffers on their way to the disk. A thread that fills a buffer, or waits for one, writes all buffers that are
//! waiting.

use super::write_queue::overlap;
use super::{FrameIndex, Space};
use crate::error::Result;
use crate::format::ExtentAddress;

impl Space {
    /// Returns `true` if the buffers that are waiting or being written exhaust their part of the budget.
    pub(crate) fn is_near_full(&self) -> bool {
        self.write_jobs.jobs.lock().is_near_full()
    }

    /// Returns `true` if a buffer waits to be written.
    pub(crate) fn has_waiting_writes(&self) -> bool {
        !self.write_jobs.jobs.lock().waiting.is_empty()
    }

    /// Returns the number of buffers that are waiting or being written.
    #[cfg(test)]
    pub(crate) fn write_count(&self) -> usize {
        let jobs = self.write_jobs.jobs.lock();
        jobs.waiting.len() + jobs.running.len()
    }

    /// Writes waiting buffers until [`is_near_full`](Self::is_near_full) returns `false`.
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

    /// Writes buffers until none is waiting, and calls `written` with the frames of each buffer. When this returns,
    /// other threads may still be writing buffers.
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

    /// Waits until every buffer enqueued so far has been written.
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

    /// Returns `true` if an appended extent can be read from the file. If it is still in an appender's buffer, enqueues
    /// the buffer.
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

    /// Waits until an appended extent can be read from the file, enqueuing and writing its buffer if necessary.
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
