//! The settings of a log, and the sizes that follow from them.

use std::time::Duration;

use super::buffers::Buffers;
use super::segment::BLOCK;
use crate::error::{Error, Result};
use crate::format::log::record_bytes;
use crate::format::prepared::ID_BYTES_MAX;
use crate::format::{BLOCK_BYTES, DatabaseId};
use crate::io::SyncMethod;

/// The minimum size of a stream's buffer. Each stream has two.
const BUFFER_BYTES_MIN: usize = 4 * BLOCK_BYTES;

const _: () = {
    let least_bytes = 2 * BLOCK_BYTES + record_bytes(0) + READY_BYTES;
    assert!(BUFFER_BYTES_MIN >= least_bytes, "the least buffer has room for no record");
};

/// The maximum number of commits that are ready, each with a reservation in the first stream for as long as its caller
/// likes. The stream's buffers have room for their records besides the longest record, which so never waits for them.
pub(crate) const READY_COMMITS_MAX: usize = if cfg!(feature = "sim") { 3 } else { 16 };

/// The maximum length of the body of a ready commit's record, which names the id of a prepared transaction.
const READY_BODY_BYTES_MAX: usize = 7 + ID_BYTES_MAX;

/// The bytes of the first stream's buffers that are left to ready commits.
const READY_BYTES: usize = READY_COMMITS_MAX * record_bytes(READY_BODY_BYTES_MAX);

/// The space that a reservation may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// All prepared space except [`LogOptions::margin_bytes`].
    Ordinary,
    /// All prepared space except [`LogOptions::last_bytes`]. So a few more records can be appended on a full disk.
    Urgent,
    /// All prepared space. Only for records that let the log free segments, such as those that move entries.
    Last,
}

/// The settings of a log.
#[derive(Clone, Debug)]
pub(crate) struct LogOptions {
    pub(crate) streams: u16,
    /// Size of a segment file in bytes, including its header; a multiple of 4,096.
    pub(crate) segment_bytes: u64,
    /// Memory for the append buffers of all streams: at least 32 KiB each.
    pub(crate) buffer_bytes: usize,
    /// Memory for reading the log while it is open.
    pub(crate) reader_bytes: usize,
    /// Prepared space that [ordinary](Claim::Ordinary) reservations leave free for urgent and last ones.
    pub(crate) margin_bytes: u64,
    /// The part of the margin that only [last](Claim::Last) reservations may take.
    pub(crate) last_bytes: u64,
    /// Additional prepared space for each window of the stream that only last reservations may take. All windows
    /// together add at most half a segment.
    pub(crate) window_margin_bytes: u64,
    /// The longest body that must fit. If necessary, the first stream gets larger buffers for it.
    pub(crate) body_bytes: usize,
    pub(crate) sync: SyncMethod,
    /// The delay before records that no caller waits for are written.
    pub(crate) relaxed_delay: Duration,
    /// The database's id, which is in every header.
    pub(crate) database: DatabaseId,
}

impl LogOptions {
    pub(super) fn check(&self) -> Result<()> {
        if self.streams == 0 {
            return Err(Error::Invalid("a log needs at least one stream".into()));
        }
        if !self.segment_bytes.is_multiple_of(BLOCK) || self.segment_bytes < 2 * BLOCK {
            let given = self.segment_bytes;
            return Err(Error::Invalid(format!(
                "log segments of {given} bytes are not allowed: use a multiple of 4096, at least 8192"
            )));
        }
        let others = usize::from(self.streams) - 1;
        let minimum_bytes = 2 * (self.first_buffer_bytes_min() + others * BUFFER_BYTES_MIN);
        assert!(self.margin_bytes.is_multiple_of(BLOCK), "a margin of {} bytes ends within a block", self.margin_bytes);
        assert!(self.last_bytes <= self.margin_bytes, "{} bytes are more than the margin", self.last_bytes);
        if self.buffer_bytes < minimum_bytes {
            return Err(Error::BudgetTooSmall {
                given_bytes: self.buffer_bytes as u64,
                minimum_bytes: minimum_bytes as u64,
            });
        }
        Ok(())
    }

    /// Returns the minimum size of the first stream's buffers, which have to hold the longest record.
    fn first_buffer_bytes_min(&self) -> usize {
        Buffers::buffer_bytes_for(record_bytes(self.body_bytes) + READY_BYTES).max(BUFFER_BYTES_MIN)
    }

    /// Returns the size of each of a stream's two buffers. While one is being written, new records go to the other.
    pub(super) fn stream_buffer_bytes(&self, stream: usize) -> usize {
        let streams = usize::from(self.streams);
        let share = self.buffer_bytes / streams / 2;
        let first = share.max(self.first_buffer_bytes_min());
        let bytes = match stream {
            0 => first,
            _ => (self.buffer_bytes / 2 - first) / (streams - 1),
        };
        let bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
        debug_assert!(bytes >= BUFFER_BYTES_MIN, "stream {stream} has buffers of {bytes} bytes");
        bytes
    }

    /// Returns the length of the longest body that a stream accepts.
    pub(super) fn body_bytes_max(&self, stream: usize) -> usize {
        let ready_bytes = if stream == 0 { READY_BYTES } else { 0 };
        let record_max = Buffers::record_bytes_max(self.stream_buffer_bytes(stream)) - ready_bytes;
        (record_max - record_bytes(0)).min(u32::MAX as usize - record_bytes(0))
    }

    /// Returns the prepared space that a reservation has to leave free in a stream with `window_count` windows.
    pub(super) fn margin_bytes(&self, claim: Claim, window_count: usize) -> u64 {
        let of_windows = (window_count as u64 * self.window_margin_bytes).min(self.segment_bytes / 2);
        match claim {
            Claim::Ordinary => self.margin_bytes + of_windows,
            Claim::Urgent => self.last_bytes + of_windows,
            Claim::Last => 0,
        }
    }

    pub(super) fn window_bytes(&self) -> u64 {
        self.segment_bytes - BLOCK
    }
}
