//! Reading extents in order when most of them are adjacent on disk, so that one request reads several. Opening a
//! database reads page-table chunks this way, because a base image appends its chunks in order.

use std::io;

use super::Space;
use crate::format::ExtentAddress;
use crate::io::AlignedBuffer;

/// The maximum size of a read. Larger reads are not faster.
const READ_BYTES_MAX: usize = 256 << 10;

/// The maximum gap between extents that one request reads. Reading 16 KiB more costs as much as an additional request.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// Reads extents that no thread is writing. Caches the bytes around the last extent.
pub(super) struct NeighbourReader<'s> {
    space: &'s Space,
    /// The bytes read last, or `None` before the first read.
    buffer: Option<AlignedBuffer>,
    /// The file offset at which the buffer starts.
    start: u64,
}

impl NeighbourReader<'_> {
    pub(super) fn new(space: &Space) -> NeighbourReader<'_> {
        NeighbourReader { space, buffer: None, start: 0 }
    }

    /// Returns the bytes of the first of `addresses`, which must be plausible. The same request reads those of the
    /// following extents that are nearby. If it fails, the first extent is read alone, so that a bad block does not
    /// affect its neighbours.
    pub(super) fn read(&mut self, addresses: &[ExtentAddress]) -> io::Result<&[u8]> {
        let address = addresses[0];
        assert!(self.space.segments.is_plausible(address), "{address:?} can't be read");
        if self.bytes_of(address).is_none() && !self.fill(addresses) {
            let (start, length, _) = self.space.cover(address);
            let mut single = AlignedBuffer::zeroed(length);
            self.space.read(&mut single, start)?;
            (self.buffer, self.start) = (Some(single), start);
        }
        Ok(self.bytes_of(address).expect("just read"))
    }

    fn bytes_of(&self, address: ExtentAddress) -> Option<&[u8]> {
        let offset = usize::try_from(address.start().checked_sub(self.start)?).ok()?;
        self.buffer.as_ref()?.get(offset..offset + address.length() as usize)
    }

    /// Reads the first of `addresses` together with its neighbours. Returns `false` if the read fails or would be too
    /// large.
    fn fill(&mut self, addresses: &[ExtentAddress]) -> bool {
        let (start, length, _) = self.space.cover(addresses[0]);
        let mut end = start + length as u64;
        for &next in addresses[1..].iter().filter(|address| !address.is_none()) {
            if !self.space.segments.is_plausible(next) {
                break;
            }
            let (next_start, next_length, _) = self.space.cover(next);
            let next_end = next_start + next_length as u64;
            if next_start < start || next_start > end + GAP_BYTES_MAX || next_end > start + READ_BYTES_MAX as u64 {
                break;
            }
            end = end.max(next_end);
        }
        assert!(start < end, "nothing is read from {start} to {end}");
        let length = (end - start) as usize;
        if length > READ_BYTES_MAX {
            return false;
        }
        let kept = self.buffer.take().filter(|buffer| buffer.capacity() == READ_BYTES_MAX);
        let buffer = self.buffer.insert(kept.unwrap_or_else(|| AlignedBuffer::zeroed(READ_BYTES_MAX)));
        buffer.set_len(length);
        self.start = start;
        assert!(length <= buffer.capacity(), "{length} bytes are more than the buffer holds");
        match self.space.read(buffer, start) {
            Ok(()) => true,
            Err(error) => {
                log::debug!("reading {length} bytes at {start} of {}: {error}", self.space.path().display());
                buffer.set_len(0);
                false
            }
        }
    }
}
