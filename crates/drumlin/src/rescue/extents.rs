//! Reading extents of a damaged data file, many together.

use crate::error::{Error, Result};
use crate::format::extent::{self, ExtentError, HEADER_BYTES, Header, Origin};
use crate::format::{DatabaseId, ExtentAddress, ExtentRef, SegmentUse};
use crate::io::{AlignedBuffer, FileRef};

/// The maximum size of a read in bytes, unless a single extent is longer.
const READ_BYTES_MAX: u64 = 256 << 10;

/// Reads the extents of one database. Unlike the readers of an open database, it reads up to the very end of a file
/// that was cut short.
pub(super) struct ExtentReader {
    pub(super) file: FileRef,
    pub(super) database: DatabaseId,
}

/// A verified extent: its header and its decompressed contents, which begin with the header's bytes.
pub(super) type Extent = (Header, Vec<u8>);

impl ExtentReader {
    /// Reads extents, those close together with one request. Calls `each` for every extent, in the order of addresses,
    /// with its index in `extents`.
    pub(super) fn read(
        &self,
        extents: &[ExtentRef],
        mut each: impl FnMut(usize, Result<Extent>) -> Result<()>,
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..extents.len()).collect();
        order.sort_unstable_by_key(|&index| extents[index].address);
        let mut rest = &order[..];
        while let Some(&first) = rest.first() {
            let (start, mut end) = self.cover(extents[first].address);
            let mut count = 1;
            while let Some(&next) = rest.get(count) {
                let (next_start, next_end) = self.cover(extents[next].address);
                if next_start > end || next_end - start > READ_BYTES_MAX {
                    break;
                }
                end = end.max(next_end);
                count += 1;
            }
            let read = self.read_range(start, end);
            for &index in &rest[..count] {
                let extent = match (&read, count) {
                    (Ok(buffer), _) => self.open(extents[index], buffer, start),
                    (Err(error), 1) => Err(error.clone()),
                    // A block between them may be unreadable.
                    (Err(_), _) => self.read_one(extents[index]),
                };
                each(index, extent)?;
            }
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Reads one extent.
    pub(super) fn read_one(&self, extent: ExtentRef) -> Result<Extent> {
        let (start, end) = self.cover(extent.address);
        self.open(extent, &self.read_range(start, end)?, start)
    }

    fn cover(&self, address: ExtentAddress) -> (u64, u64) {
        let alignment = self.file.alignment() as u64;
        let end = (address.start() + address.length()).next_multiple_of(alignment);
        (address.start() / alignment * alignment, end)
    }

    /// Reads a range of the file, or the part of it that the file has.
    fn read_range(&self, start: u64, end: u64) -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed((end - start) as usize);
        let read = self.file.read_up_to(&mut buffer, start);
        let read = read.map_err(|error| Error::io("reading", self.file.path(), error))?;
        buffer.set_len(read);
        Ok(buffer)
    }

    fn open(&self, extent: ExtentRef, buffer: &[u8], start: u64) -> Result<Extent> {
        let ExtentRef { address, segment_use } = extent;
        let reason =
            |reason: ExtentError| Error::corrupted(self.file.path(), format!("an extent at {address:?}"), reason);
        let bytes = buffer.get((address.start() - start) as usize..).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(address.length() as usize)];
        let header = extent::verify(bytes).map_err(reason)?;
        let segment_use = match segment_use {
            SegmentUse::UNKNOWN => header.origin.segment_use,
            segment_use => segment_use,
        };
        header.check(Origin { database: self.database, segment_use }).map_err(reason)?;
        if !address.is_of(segment_use) {
            return Err(reason(ExtentError::Use(segment_use)));
        }
        decode(&header, bytes).map(|page| (header, page)).map_err(reason)
    }
}

/// Returns the decompressed contents of a verified extent.
pub(super) fn decode(header: &Header, bytes: &[u8]) -> Result<Vec<u8>, ExtentError> {
    if header.raw_bytes < HEADER_BYTES || header.raw_bytes > ExtentAddress::EXTENT_BYTES_MAX as usize {
        return Err(ExtentError::Length);
    }
    let mut page = vec![0; header.raw_bytes];
    extent::decode(bytes, header, &mut page)?;
    Ok(page)
}
