//! Reading the records of one change file in order.

use std::ops::{Deref, DerefMut};

use super::file::{self, FoundHeader};
use super::names::Names;
use super::records::{RECORDS_OFFSET, RecordScan};
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::format::changes::{FileHeader, RecordKind};
use crate::io::FolderRef;
use crate::memory::Grant;

/// The number of bytes that a scan without a grant reads at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Reads the records of a change file.
#[derive(Debug)]
pub(super) struct FileScan {
    header: FileHeader,
    records: RecordScan,
}

impl Deref for FileScan {
    type Target = RecordScan;

    fn deref(&self) -> &RecordScan {
        &self.records
    }
}

impl DerefMut for FileScan {
    fn deref_mut(&mut self) -> &mut RecordScan {
        &mut self.records
    }
}

impl FileScan {
    /// Opens a file. Its header must verify.
    pub(super) fn open(folder: &FolderRef, number: u64) -> Result<FileScan> {
        FileScan::open_in(folder, number, CHUNK_BYTES, None)
    }

    /// Like [`open`](Self::open). Reads `chunk_bytes` at once, and takes memory for them from the grant.
    pub(super) fn open_in(
        folder: &FolderRef,
        number: u64,
        chunk_bytes: usize,
        memory: Option<Grant>,
    ) -> Result<FileScan> {
        let path = folder.path().join(file::name(number));
        let file = file::open(folder.as_ref(), number).map_err(|error| Error::io("opening", &path, error))?;
        let header = file::read_header(&file).map_err(|error| Error::io("reading", &path, error))?;
        let header = match header {
            FoundHeader::Header(header) => header,
            FoundHeader::Unfinished => return Err(Error::corrupted(&path, "the header", "it does not verify")),
            FoundHeader::Foreign(reason) => return Err(Error::corrupted(&path, "the header", reason)),
        };
        if header.number != number {
            return Err(Error::corrupted(&path, "the header", format!("it belongs to file {}", header.number)));
        }
        let records = RecordScan::new(file, header.seed(), chunk_bytes, memory);
        Ok(FileScan { header, records })
    }

    pub(super) fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Reads the names at the beginning of the file.
    pub(super) fn names(&mut self) -> Result<Names> {
        assert!(self.offset() == RECORDS_OFFSET, "the names of a file are read after its commits");
        let end = self.file_bytes()?;
        let mut names = Names::default();
        let is_read = self.next(end)?.is_some_and(|record| record.kind == RecordKind::Names);
        let is_read = is_read && names.apply(self.body()).is_some();
        is_read
            .then_some(names)
            .ok_or_else(|| Error::corrupted(self.path(), "the names of keyspaces", "they are missing or do not verify"))
    }

    /// Returns the offset after the names at the beginning of the file.
    pub(super) fn after_names(&mut self) -> Result<u64> {
        self.names().map(|_| self.offset())
    }

    /// Reads the file up to the commit with this timestamp. Returns the offset after the commit, or `None` if the file
    /// does not have it. The file begins after a commit, which counts as the first.
    pub(super) fn end_of(&mut self, timestamp: Timestamp) -> Result<Option<u64>> {
        if timestamp == self.header.after {
            return Ok(Some(self.offset()));
        }
        let end = self.file_bytes()?;
        while let Some(record) = self.next(end)? {
            if record.timestamp == timestamp {
                return Ok(Some(self.offset()));
            }
        }
        Ok(None)
    }
}
