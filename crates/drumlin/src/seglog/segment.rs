//! Segment files: names, headers, and the mapping from stream positions to file offsets.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::format::log::{SegmentHeader, SegmentHeaderError};
use crate::format::{BLOCK_BYTES, DatabaseId, SlotNumber, StreamId, StreamPosition};
use crate::io::{AlignedBuffer, FileRef, Folder, OpenOptions, Persist};

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;

/// The bytes of zeros written before a new segment is used. They are few, because a commit may be waiting.
pub(super) const FIRST_FILL_BYTES: u64 = 1 << 20;

/// Size of a single write of zeros: large enough to use the device's bandwidth, small enough not to delay commits.
const ZEROS_BYTES: usize = 256 << 10;

const _: () = assert!(ZEROS_BYTES.is_multiple_of(BLOCK_BYTES), "a transfer of zeros ends within a block");
const _: () = assert!(FIRST_FILL_BYTES.is_multiple_of(BLOCK), "a segment is filled to within a block");

/// One use of a segment file, for a window of the stream.
pub(super) struct Segment {
    pub(super) file: FileRef,
    pub(super) header: SegmentHeader,
    pub(super) seed: u64,
    /// Set if the header on the medium says that the whole window has been written at least once.
    filled: AtomicBool,
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} use {} from {}", self.path().display(), self.header.use_number, self.start())
    }
}

impl Segment {
    pub(super) fn new(file: FileRef, header: SegmentHeader) -> Arc<Segment> {
        let is_whole = header.start.is_block_start() && header.window_bytes.is_multiple_of(BLOCK);
        assert!(is_whole && header.window_bytes > 0, "a window of {} bytes from {}", header.window_bytes, header.start);
        Arc::new(Segment { file, seed: header.seed(), filled: AtomicBool::new(header.filled), header })
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the position of the window's first byte.
    pub(super) fn start(&self) -> StreamPosition {
        self.header.start
    }

    /// Returns the position after the window's last byte.
    pub(super) fn end(&self) -> StreamPosition {
        self.header.start + self.header.window_bytes
    }

    pub(super) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Durably records that the whole window has been written at least once.
    pub(super) fn set_filled(&self, persist: Persist) -> io::Result<()> {
        assert!(!self.is_filled(), "{self:?} is filled twice");
        write_header(&self.file, &SegmentHeader { filled: true, ..self.header }, persist)?;
        self.filled.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the file offset of a position in the window.
    pub(super) fn offset(&self, position: StreamPosition) -> u64 {
        assert!(self.start() <= position && position <= self.end(), "position {position} outside of {self:?}");
        BLOCK + (position - self.start())
    }
}

/// The spares that are suitable for a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SpareSize {
    /// Spares whose last window had this many bytes.
    Window(u64),
    /// All spares, because the disk is full.
    Any,
}

/// A file that is available for reuse.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) name: String,
    pub(super) slot: SlotNumber,
    /// The size in bytes of the file's last window.
    pub(super) window_bytes: u64,
    /// Set if the whole window has been written before, so that a durable write in it changes no metadata.
    pub(super) filled: bool,
    /// The file's last use, or `None` if it was never used. The file is not rewritten while a reader still holds it.
    pub(super) last_use: Option<Arc<Segment>>,
}

impl Spare {
    pub(super) fn of(segment: Arc<Segment>) -> Spare {
        let name = name(segment.header.stream, segment.header.slot);
        assert!(segment.path().ends_with(&name), "{segment:?} is to be used again as {name}");
        Spare {
            name,
            slot: segment.header.slot,
            window_bytes: segment.header.window_bytes,
            filled: segment.is_filled(),
            last_use: Some(segment),
        }
    }

    /// Creates the spare of a file that was never used.
    pub(super) fn unused(name: String, slot: SlotNumber) -> Spare {
        Spare { name, slot, window_bytes: 0, filled: false, last_use: None }
    }

    pub(super) fn is_free(&self) -> bool {
        self.last_use.as_ref().is_none_or(|segment| Arc::strong_count(segment) == 1)
    }

    /// Returns `true` if the spare may be reused for a window of this size.
    pub(super) fn serves(&self, size: SpareSize) -> bool {
        self.last_use.is_some() && (size == SpareSize::Any || size == SpareSize::Window(self.window_bytes))
    }
}

pub(super) fn name(stream: StreamId, slot: SlotNumber) -> String {
    let name = format!("{stream}-{slot}.seg");
    debug_assert_eq!(parse_name(&name), Some((stream, slot)), "a name can't be read as it was written");
    name
}

/// Returns the stream and the slot that a segment file's name contains.
pub(super) fn parse_name(name: &str) -> Option<(StreamId, SlotNumber)> {
    let (stream, slot) = name.strip_suffix(".seg")?.split_once('-')?;
    Some((StreamId(stream.parse().ok()?), SlotNumber(slot.parse().ok()?)))
}

/// Creates a file under an unused name.
pub(super) fn create(folder: &dyn Folder, name: &str) -> io::Result<FileRef> {
    assert!(parse_name(name).is_some(), "no scan would find a segment of the name {name}");
    folder.open(name, OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() })
}

pub(super) fn write_header(file: &FileRef, header: &SegmentHeader, persist: Persist) -> io::Result<()> {
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    header.encode(&mut block);
    debug_assert_eq!(SegmentHeader::decode(&block), Ok(Some(*header)), "a header can't be read as it was written");
    file.write_at(&block, 0, persist)
}

/// Writes zeros to the file from offset `start` to offset `end`.
pub(super) fn write_zeros(file: &FileRef, start: u64, end: u64) -> io::Result<()> {
    assert!(start <= end, "zeros from {start} to {end}");
    assert!(BLOCK <= start && start <= end, "zeros over the header, or backwards");
    assert!(start.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK), "zeros over parts of blocks");
    let zeros = AlignedBuffer::zeroed(ZEROS_BYTES);
    let mut offset = start;
    while offset < end {
        let bytes = (end - offset).min(ZEROS_BYTES as u64);
        file.write_at(&zeros[..bytes as usize], offset, Persist::Later)?;
        offset += bytes;
    }
    Ok(())
}

/// The kind of file found in the log folder.
#[derive(Debug)]
pub(super) enum FoundFile {
    Segment(Arc<Segment>),
    /// The file was never used, or its creation was not completed.
    Unused,
}

/// Opens a segment file with these options, and verifies that its header matches its name and the database id.
pub(super) fn inspect(
    folder: &dyn Folder,
    name: &str,
    options: OpenOptions,
    database: DatabaseId,
    number: (StreamId, SlotNumber),
) -> Result<FoundFile> {
    let path = &folder.path().join(name);
    let file = folder.open(name, options).map_err(|error| Error::io("opening", path, error))?;
    let length = file.len().map_err(|error| Error::io("measuring", path, error))?;
    // If the file is shorter than this, the missing bytes count as zeros.
    let mut blocks = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
    file.read_up_to(&mut blocks, 0).map_err(|error| Error::io("reading", path, error))?;
    let (header, window) = blocks.split_at(BLOCK_BYTES);
    match SegmentHeader::decode(header) {
        // The header is durable before any record is written after it.
        Ok(None) if window.iter().any(|&byte| byte != 0) => {
            Err(Error::corrupted(path, "log segment header", "it is zero, though records follow it"))
        }
        Ok(None) => Ok(FoundFile::Unused),
        Ok(Some(header)) if header.database != database => {
            Err(Error::corrupted(path, "log segment header", "it belongs to another database"))
        }
        Ok(Some(header)) if (header.stream, header.slot) != number => Err(Error::corrupted(
            path,
            "log segment header",
            format!("it belongs to {}-{}.seg", header.stream, header.slot),
        )),
        Ok(Some(header)) if length < BLOCK + written_bytes_min(&header) => {
            Err(Error::corrupted(path, "log segment", format!("it was cut short, to {length} bytes")))
        }
        Ok(Some(header)) => Ok(FoundFile::Segment(Segment::new(file, header))),
        Err(SegmentHeaderError::Format(found)) => Err(Error::other_format(path, found)),
        Err(reason) => Err(Error::corrupted(path, "log segment header", reason)),
    }
}

/// Returns the minimum number of bytes filled in the window of a segment with this header. They were durable before the
/// header was written.
pub(super) fn written_bytes_min(header: &SegmentHeader) -> u64 {
    if header.filled { header.window_bytes } else { header.window_bytes.min(FIRST_FILL_BYTES) }
}
