//! Large values. Their chunks are written immediately, to segments of their own.

use super::{Purpose, Space};
use crate::error::Result;
use crate::format::{BLOCK_BYTES, ExtentAddress, SegmentUse, extent};
use crate::io::AlignedBuffer;

impl Space {
    /// Returns the maximum size of a large value's extent, including the header and the value id. It is 256 KiB, or
    /// less if segments are small.
    pub(crate) fn value_chunk_bytes(&self) -> usize {
        (256usize << 10).min(self.segments.segment_bytes() as usize / 4)
    }

    /// Writes a chunk of a large value immediately. Returns its address, to which no table refers yet.
    pub(crate) fn write_value_chunk(&self, extent: &mut AlignedBuffer, bytes: usize) -> Result<ExtentAddress> {
        let padded = bytes.next_multiple_of(BLOCK_BYTES);
        assert!(bytes > 0, "a chunk of a value has no bytes");
        assert!(padded as u64 <= self.segments.segment_bytes(), "a chunk of {bytes} bytes is larger than a segment");
        extent.set_len(padded);
        extent[bytes..].fill(0);
        let segment_bytes = self.segments.segment_bytes();
        let (address, segment_use) = {
            let mut open = self.values.open.lock();
            if let Some((segment, position)) = *open
                && position + padded as u64 > self.segments.start(segment) + segment_bytes
            {
                *open = None;
                self.segments.close(segment);
            }
            let (segment, position) = match *open {
                Some(place) => place,
                None => {
                    let segment = self.take_segment(Purpose::Value)?;
                    (segment, self.segments.start(segment))
                }
            };
            let end = position + padded as u64;
            assert!(end <= self.segments.start(segment) + segment_bytes, "a chunk passes the end of {segment}");
            *open = Some((segment, end));
            let segment_use = self.segments.segment_use(segment);
            assert!(segment_use != SegmentUse::UNKNOWN, "{segment} is written to in no use of it");
            let address = ExtentAddress::new(position, padded as u64, segment_use);
            assert!(self.segments.segment_of(address) == segment, "a chunk lies outside of its segment");
            self.segments.retain(address);
            (address, segment_use)
        };
        extent::seal(&mut extent[..bytes], self.segments.origin(segment_use));
        debug_assert!(self.verify(address, extent).is_ok(), "a chunk of a value can't be read as it was written");
        let in_flight = self.share.foreground();
        self.write(extent, address.start())?;
        drop(in_flight);
        Ok(address)
    }

    /// Closes the open segment of large values, so that it can be emptied and reused.
    pub(crate) fn seal_values(&self) {
        if let Some((segment, _)) = self.values.open.lock().take() {
            self.segments.close(segment);
        }
    }
}
