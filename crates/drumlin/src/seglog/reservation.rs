//! Reserving space in a stream for a record.

use super::record::{Appended, Body};
use super::shared::SharedLog;
use crate::error::Result;
use crate::format::log::record_bytes;

/// Space reserved in a stream for one record. Its owner must not reserve more space in the same stream, nor wait for a
/// thread that might: the second reservation may have to wait until the first one is used or dropped.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    pub(super) log: &'a SharedLog,
    pub(super) stream: usize,
    pub(super) bytes: usize,
}

impl Reservation<'_> {
    /// Appends the record and assigns its timestamp.
    ///
    /// # Errors
    /// [`Error::Failed`](crate::error::Error::Failed) if the log was sealed or has failed since the reservation. In
    /// this case no timestamp was assigned and no record was appended.
    ///
    /// # Panics
    /// If the body is longer than the reserved length.
    pub(crate) fn append(mut self, body: &Body) -> Result<Appended> {
        assert!(record_bytes(body.bytes().len()) <= self.bytes, "a record is longer than its reservation");
        let shared = self.log;
        let stream = &shared.streams[self.stream];
        let mut tail = stream.tail.lock();
        tail.release(std::mem::take(&mut self.bytes));
        let appended = shared.check_open(&tail).map(|()| shared.append(self.stream, &mut tail, body));
        let has_waiters = tail.is_contended();
        drop(tail);
        if has_waiters {
            stream.announce_space();
        }
        appended
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let stream = &self.log.streams[self.stream];
            let mut tail = stream.tail.lock();
            tail.release(self.bytes);
            let has_waiters = tail.is_contended();
            drop(tail);
            if has_waiters {
                stream.announce_space();
            }
        }
    }
}
