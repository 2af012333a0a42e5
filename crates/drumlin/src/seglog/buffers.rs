//! The two buffers of a stream: new records go to one while the other is being written.

use crate::format::{BLOCK_BYTES, StreamPosition, Timestamp};
use crate::io::AlignedBuffer;

/// The timestamps of the first and the last record that are not on the medium yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnwrittenRecords {
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// A buffer, and the range of the stream that it holds. The range starts at a block boundary.
#[derive(Debug)]
pub(super) struct LogBuffer {
    pub(super) buffer: AlignedBuffer,
    pub(super) base: StreamPosition,
    pub(super) used: usize,
    /// The first block may also hold earlier records. They are already on the medium, and are rewritten with the same
    /// bytes.
    pub(super) pending: Option<UnwrittenRecords>,
    /// Set if a pending record names values in extents; see
    /// [`Body::naming_extents`](super::record::Body::naming_extents).
    pub(super) names_extents: bool,
}

impl LogBuffer {
    fn empty(buffer: AlignedBuffer, base: StreamPosition) -> LogBuffer {
        LogBuffer { buffer, base, used: 0, pending: None, names_extents: false }
    }

    pub(super) fn end(&self) -> StreamPosition {
        debug_assert!(self.used <= self.buffer.capacity(), "records overflow their buffer");
        self.base + self.used as u64
    }
}

/// The records of a stream that are not on the medium yet. At most one batch is in flight, and its bytes never change.
/// Every pending record is either in that batch or in the active buffer.
#[derive(Debug)]
pub(super) struct Buffers {
    /// The buffer to which new records are copied.
    active: LogBuffer,
    /// The other buffer, or `None` while that buffer is being written.
    idle: Option<AlignedBuffer>,
    /// The records in flight. Stays set forever if their write fails.
    writing: Option<UnwrittenRecords>,
    /// The end of the last batch whose write was begun.
    writing_end: StreamPosition,
    /// Everything below this position is on the medium.
    durable_position: StreamPosition,
}

impl Buffers {
    /// Creates two empty buffers. The next record starts at `position`.
    pub(super) fn new(buffer_bytes: usize, position: StreamPosition) -> Buffers {
        assert!(position.is_block_start(), "a stream goes on within a block: {position}");
        assert!(buffer_bytes.is_multiple_of(BLOCK_BYTES), "a buffer ends within a block");
        Buffers {
            active: LogBuffer::empty(AlignedBuffer::zeroed(buffer_bytes), position),
            idle: Some(AlignedBuffer::zeroed(buffer_bytes)),
            writing: None,
            writing_end: position,
            durable_position: position,
        }
    }

    /// Returns the maximum size of a record. An empty buffer must hold the record, the earlier records of its first
    /// block, and padding.
    pub(super) fn record_bytes_max(buffer_bytes: usize) -> usize {
        assert!(buffer_bytes > 2 * BLOCK_BYTES, "a buffer of {buffer_bytes} bytes holds no record");
        buffer_bytes - 2 * BLOCK_BYTES
    }

    /// Returns the buffer size that a record of `record_bytes` requires.
    pub(super) fn buffer_bytes_for(record_bytes: usize) -> usize {
        (record_bytes + 2 * BLOCK_BYTES).next_multiple_of(BLOCK_BYTES)
    }

    /// Returns the position after the last record, at or above which the next one begins. While a write is in flight,
    /// [`position`](Self::position) is the next block, and goes back if no record is appended during the write.
    pub(super) fn end(&self) -> StreamPosition {
        let end = match self.writing {
            Some(_) if self.active.pending.is_none() => self.writing_end,
            _ => self.active.end(),
        };
        debug_assert!(end <= self.active.end(), "the end {end} of a stream is above its next record");
        debug_assert!(self.durable_position <= end, "more of a stream is durable than was appended");
        end
    }

    /// Returns the position at which a record that is appended now begins.
    pub(super) fn position(&self) -> StreamPosition {
        debug_assert!(self.durable_position <= self.active.end(), "more of a stream is durable than was appended");
        self.active.end()
    }

    /// Returns the position below which everything is on the medium.
    pub(super) fn durable_position(&self) -> StreamPosition {
        self.durable_position
    }

    /// Returns `true` if the active buffer has room for `bytes`, which must include the reserved bytes.
    ///
    /// One block is kept in reserve. If no record is appended during a write, the next record shares the write's last
    /// block, so that block is copied to the front of the empty buffer.
    pub(super) fn admits(&self, bytes: usize) -> bool {
        self.active.used + bytes <= self.active.buffer.capacity() - BLOCK_BYTES
    }

    /// Returns `true` if the active buffer has room for a reserved record of `bytes`.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.active.used + bytes <= self.active.buffer.capacity()
    }

    /// Returns `true` if more than half of the active buffer is used. Pending records should then be written soon.
    pub(super) fn is_near_full(&self) -> bool {
        self.active.used > self.active.buffer.capacity() / 2
    }

    /// Returns the timestamp of the first record that is not on the medium.
    pub(super) fn floor(&self) -> Option<Timestamp> {
        let ascend = |(older, newer): (UnwrittenRecords, UnwrittenRecords)| older.last < newer.first;
        debug_assert!(self.writing.zip(self.active.pending).is_none_or(ascend), "records of the two buffers ascend");
        self.writing.or(self.active.pending).map(|pending| pending.first)
    }

    /// Returns the timestamp of the last record that is not on the medium.
    pub(super) fn last_pending(&self) -> Option<Timestamp> {
        self.active.pending.or(self.writing).map(|pending| pending.last)
    }

    /// Returns `true` if the next record begins a batch.
    pub(super) fn is_batch_empty(&self) -> bool {
        self.active.pending.is_none()
    }

    /// Returns `true` if there are pending records and no write is in flight.
    pub(super) fn may_write(&self) -> bool {
        self.writing.is_none() && self.active.pending.is_some()
    }

    /// Allocates space for a record. The caller copies the record's bytes into the returned slice.
    pub(super) fn push(&mut self, timestamp: Timestamp, bytes: usize, names_extents: bool) -> &mut [u8] {
        let begin = self.active.used;
        debug_assert!(self.fits(bytes), "a record of {bytes} bytes overflows the buffer");
        debug_assert!(self.last_pending() < Some(timestamp), "records of a stream ascend");
        self.active.used += bytes;
        let first = self.active.pending.map_or(timestamp, |pending| pending.first);
        self.active.pending = Some(UnwrittenRecords { first, last: timestamp });
        self.active.names_extents |= names_extents;
        &mut self.active.buffer[begin..begin + bytes]
    }

    /// Takes the pending records, padded to whole blocks. Until [`complete`](Self::complete) is called, new records go
    /// to the other buffer, starting at the next block, because bytes in flight never change.
    pub(super) fn begin_write(&mut self) -> LogBuffer {
        assert!(self.may_write());
        let buffer = self.idle.take().expect("the idle buffer is free when nothing is being written");
        let padded = self.active.used.next_multiple_of(BLOCK_BYTES);
        self.active.buffer[self.active.used..padded].fill(0);
        let base = self.active.base + padded as u64;
        debug_assert!(base.is_block_start(), "a buffer begins within a block: {base}");
        let batch = std::mem::replace(&mut self.active, LogBuffer::empty(buffer, base));
        self.writing = batch.pending;
        self.writing_end = batch.end();
        debug_assert!(self.writing_end <= base, "a batch ends at {}, above the next buffer", self.writing_end);
        batch
    }

    /// Takes back the batch from [`begin_write`](Self::begin_write), which is now on the medium. If no record was
    /// appended during the write, the next record follows in the batch's last block, and the buffer must have room for
    /// `reserved_bytes` after that position.
    pub(super) fn complete(&mut self, batch: LogBuffer, reserved_bytes: usize) {
        assert_eq!(self.writing, batch.pending, "another batch than was begun is completed");
        assert!(self.durable_position <= batch.end(), "a stream's durable position goes back");
        self.durable_position = batch.end();
        if self.active.pending.is_none() {
            assert_eq!(self.active.used, 0);
            let shared_bytes = batch.used % BLOCK_BYTES;
            let block_start = batch.used - shared_bytes;
            self.active.base = batch.base + block_start as u64;
            self.active.used = shared_bytes;
            self.active.buffer[..shared_bytes].copy_from_slice(&batch.buffer[block_start..batch.used]);
        }
        debug_assert!(self.active.base.is_block_start(), "a buffer begins within a block: {}", self.active.base);
        // The reservations may use the block that `admits` keeps in reserve.
        let reserved = self.active.used + reserved_bytes;
        assert!(reserved <= self.active.buffer.capacity(), "{reserved} bytes are reserved in a buffer");
        assert!(self.idle.is_none(), "a stream has three buffers");
        self.idle = Some(batch.buffer);
        self.writing = None;
    }

    /// Makes the next record start at `position`. No record may be pending.
    pub(super) fn skip_to(&mut self, position: StreamPosition) {
        assert!(self.floor().is_none(), "a stream with pending records goes on elsewhere");
        assert!(self.position() <= position, "a stream that ends at {} goes on at {position}", self.position());
        assert!(position.is_block_start(), "a stream goes on within a block: {position}");
        self.durable_position = position;
        self.active.base = position;
        self.active.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No record begins below an end that was returned before, whether or not a record is appended during a write.
    #[test]
    fn the_end_never_goes_back() {
        for appends_during_write in [false, true] {
            let mut buffers = Buffers::new(4 * BLOCK_BYTES, StreamPosition::START);
            buffers.push(Timestamp(1), 100, false);
            assert_eq!(buffers.end(), StreamPosition::START + 100);
            let batch = buffers.begin_write();
            // The record may follow in the same block, after the write.
            assert_eq!(buffers.end(), StreamPosition::START + 100);
            let before = buffers.end();
            if appends_during_write {
                assert!(buffers.position() >= before);
                buffers.push(Timestamp(2), 100, false);
                assert_eq!(buffers.end(), StreamPosition::START + BLOCK_BYTES as u64 + 100);
            }
            buffers.complete(batch, 0);
            assert!(buffers.end() >= before && buffers.end() == buffers.position());
            let begin = buffers.position();
            buffers.push(Timestamp(3), 100, false);
            assert!(begin >= before, "a record begins at {begin}, below {before}");
        }
    }
}
