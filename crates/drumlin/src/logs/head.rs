//! The head of a folder of logs: what must be there when it is opened.
//!
//! # Invariants
//! 1. One write is in flight at a time, into the slot that does not hold the newest head, and each starts from the head
//!    of the write before. So the index and the stream change their parts of it independently.
//! 2. No write follows a failed one: the contents of its slot are unknown, and the other slot is needed.

use std::io;

use crate::error::{Error, Result};
use crate::format::logs::{LogsHead, LogsHeadError};
use crate::format::{BLOCK_BYTES, SuperblockNumber};
use crate::io::{AlignedBuffer, FileRef, FolderRef, OpenOptions, Persist, SyncMethod};
use crate::sync::Mutex;

pub(super) const HEAD_NAME: &str = "head";
pub(super) const NEW_HEAD_NAME: &str = "head.new";

/// The offsets of the two heads. They are several blocks apart, so that no single write can damage both.
const SLOT_OFFSETS: [u64; 2] = [0, 8 * BLOCK_BYTES as u64];

/// The file with the two heads, and the newest one.
#[derive(Debug)]
pub(super) struct HeadFile {
    file: FileRef,
    sync: SyncMethod,
    /// `None` once a write has failed.
    newest: Mutex<Option<LogsHead>>,
}

fn write_slot(file: &FileRef, head: &LogsHead, sync: SyncMethod) -> io::Result<()> {
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    head.encode(&mut block);
    debug_assert_eq!(LogsHead::decode(&block).as_ref(), Ok(head), "a head can't be read as it was written");
    file.write_at(&block, SLOT_OFFSETS[(head.sequence.0 % 2) as usize], Persist::Now(sync))
}

impl HeadFile {
    /// Creates the file under a temporary name, and renames it once it is complete.
    pub(super) fn create(folder: &FolderRef, first: &LogsHead, sync: SyncMethod) -> Result<HeadFile> {
        let failed = |action, error| Error::io(action, &folder.path().join(NEW_HEAD_NAME), error);
        let options = OpenOptions { write: true, create: true, direct: true, ..OpenOptions::default() };
        let file = folder.open(NEW_HEAD_NAME, options).map_err(|error| failed("creating", error))?;
        let file_bytes = SLOT_OFFSETS[1] + BLOCK_BYTES as u64;
        let zeros = AlignedBuffer::zeroed(file_bytes as usize);
        file.write_at(&zeros, 0, Persist::Later).map_err(|error| failed("writing", error))?;
        for sequence in [SuperblockNumber::FIRST, SuperblockNumber::FIRST.next()] {
            let head = LogsHead { sequence, ..first.clone() };
            write_slot(&file, &head, sync).map_err(|error| failed("writing", error))?;
        }
        file.sync_all().map_err(|error| failed("syncing", error))?;
        folder.rename(NEW_HEAD_NAME, HEAD_NAME).map_err(|error| failed("renaming", error))?;
        folder.sync().map_err(|error| Error::io("syncing", folder.path(), error))?;
        // Open it again, so that the handle has the new name.
        HeadFile::open(folder, true, sync)
    }

    /// Reads the newest head.
    pub(super) fn open(folder: &FolderRef, write: bool, sync: SyncMethod) -> Result<HeadFile> {
        let path = folder.path().join(HEAD_NAME);
        let options = OpenOptions { write, direct: true, ..OpenOptions::default() };
        let file = folder.open(HEAD_NAME, options).map_err(|error| Error::io("opening", &path, error))?;
        let mut newest: Option<LogsHead> = None;
        let mut reason = LogsHeadError::Magic;
        for offset in SLOT_OFFSETS {
            let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
            file.read_up_to(&mut block, offset).map_err(|error| Error::io("reading", &path, error))?;
            match LogsHead::decode(&block) {
                Ok(head) if newest.as_ref().is_none_or(|newest| newest.sequence < head.sequence) => newest = Some(head),
                Ok(_) => {}
                Err(other) => reason = other,
            }
        }
        let newest = newest.ok_or_else(|| match reason {
            LogsHeadError::Format(found) => Error::other_format(folder.path(), found),
            other => Error::corrupted(&path, "both heads of the logs", other),
        })?;
        Ok(HeadFile { file, sync, newest: Mutex::new(Some(newest)) })
    }

    /// Returns the head as it was read. Nothing has been written yet.
    pub(super) fn found(&self) -> LogsHead {
        self.newest.lock().clone().expect("no write has failed yet")
    }

    /// Makes the head durable that was read. A failed sync of an earlier process may have left it in caches only, and
    /// the next write overwrites the slot of its predecessor.
    pub(super) fn harden(&self) -> Result<()> {
        let written = self.file.sync_data().and_then(|()| write_slot(&self.file, &self.found(), self.sync));
        written.map_err(|error| Error::io("writing", self.file.path(), error))
    }

    /// Durably writes the next head: the newest one with `change` applied.
    pub(super) fn write(&self, change: impl FnOnce(&mut LogsHead)) -> io::Result<()> {
        let mut newest = self.newest.lock();
        let Some(mut next) = newest.take() else {
            return Err(io::Error::other("writing the head of the logs has failed before"));
        };
        let (index, covered) = (next.index, next.covered);
        change(&mut next);
        assert!(next.index >= index && next.covered >= covered, "a head goes back behind index {index}");
        next.sequence = next.sequence.next();
        write_slot(&self.file, &next, self.sync)?;
        *newest = Some(next);
        Ok(())
    }
}
