//! Advice files: `lock`, `probe`, `resident`, `counts-0`, `counts-1`. The database works without them. Each new version
//! of such a file overwrites the previous one.
//!
//! # Invariants
//! 1. The database writes to such a file only after the file's first bytes have proved that it is an advice file. If
//!    the name belongs to a folder, a pipe, a symbolic link or a foreign file, the database leaves it alone and opens
//!    without the advice.
//! 2. An advice file is never synced and never removed. A missing, torn, foreign or outdated file is not an error.
//!
//! `resident`, `counts-0` and `counts-1` consist of parts (`format/advice.rs`), which [`AdviceFiles`] writes and reads.
//! Their contents are defined in `warm_start.rs` and `kept_counts.rs`.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::format::advice::{PART_BYTES_MAX, Part, PartBuffer, PartHead, PartKind, is_advice, part_bytes};
use crate::format::{BLOCK_BYTES, CheckpointId, DatabaseId, KeyspaceId, Timestamp, WritingId};
use crate::io::{FileRef, FolderRef, OpenOptions, Persist};
use crate::memory::Account;
use crate::txn::engine::Engine;

/// The name of the file that lists the pages that were in memory.
pub(super) const RESIDENT_NAME: &str = "resident";
/// The names of the files of row counts. Checkpoints with even numbers use the first one.
pub(super) const COUNTS_NAMES: [&str; 2] = ["counts-0", "counts-1"];

/// The number of blocks that a search for a part examines after a file's first block. The second part always begins
/// within them.
const SEARCHED_BLOCKS: usize = PART_BYTES_MAX / BLOCK_BYTES;

/// Opens an advice file for writing, creating it if necessary. `is_ours` decides from the file's first block, which is
/// shorter if the file is, whether the file may be overwritten. If a power cut left zeros there, a later block decides.
/// A file that contains only zeros may be overwritten.
pub(super) fn open_to_write(folder: &FolderRef, name: &str, is_ours: fn(&[u8]) -> bool) -> io::Result<FileRef> {
    let file = folder.open(name, OpenOptions { write: true, create: true, ..OpenOptions::default() })?;
    let mut block = [0; BLOCK_BYTES];
    let mut is_zeros = true;
    for index in 0..=SEARCHED_BLOCKS {
        let bytes = file.read_up_to(&mut block, (index * BLOCK_BYTES) as u64)?;
        let block = &block[..bytes];
        if is_ours(block) || block.is_empty() && is_zeros {
            return Ok(file);
        }
        is_zeros &= block.iter().all(|byte| *byte == 0);
        if block.is_empty() || index == 0 && !is_zeros {
            break;
        }
    }
    Err(io::Error::other("it belongs to something else and was left unchanged"))
}

/// The advice files of one kind in an open database.
#[derive(Debug)]
pub(super) struct AdviceFiles {
    /// `false` once a file could not be opened for writing.
    is_on: AtomicBool,
    folder: FolderRef,
    database: DatabaseId,
}

impl AdviceFiles {
    pub(super) fn new(is_on: bool, folder: FolderRef, database: DatabaseId) -> AdviceFiles {
        AdviceFiles { is_on: AtomicBool::new(is_on), folder, database }
    }

    /// Returns `true` unless a file could not be opened for writing, which ends all writing of these files.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.folder.exists(name).unwrap_or(false)
    }

    /// Overwrites a file with the parts that `write` produces, which are valid for `checkpoint`. Reserves
    /// `memory_bytes` for `write`. Returns `None` on failure.
    pub(super) fn write<T>(
        &self,
        name: &str,
        checkpoint: CheckpointId,
        engine: &Engine,
        memory_bytes: u64,
        write: impl FnOnce(&mut PartWriter) -> io::Result<T>,
    ) -> Option<T> {
        let file = self.open_or_turn_off(name)?;
        let mut memory = engine.budget.grant(Account::Copies);
        if !memory.resize(memory_bytes) {
            log::debug!("readers use the memory that writing {name} needs");
            return None;
        }
        let head = PartHead {
            database: self.database,
            checkpoint,
            writing: WritingId(engine.backend.random()),
            number: 0,
            is_last: false,
            kind: PartKind::Changes,
            base: Timestamp(0),
            keyspace: KeyspaceId(0),
        };
        let mut writer = PartWriter { file, head, offset: 0, series_offset: 0 };
        let written = write(&mut writer).and_then(|written| {
            writer.file.set_len(writer.offset)?;
            Ok(written)
        });
        written.inspect_err(|error| log::debug!("writing {}: {error}", writer.file.path().display())).ok()
    }

    /// Calls `take` with the parts of a file until it returns `false`. Skips blocks that don't verify. Stops before a
    /// part that belongs to a different database or checkpoint.
    pub(super) fn read(
        &self,
        name: &str,
        checkpoint: CheckpointId,
        mut take: impl FnMut(Part<'_>) -> Result<bool>,
    ) -> Result<()> {
        let io = |error| Error::io("reading", &self.folder.path().join(name), error);
        let file = self.folder.open(name, OpenOptions::default()).map_err(io)?;
        let (mut bytes, mut offset) = (Vec::new(), 0);
        loop {
            bytes.resize(BLOCK_BYTES, 0);
            let read_bytes = file.read_up_to(&mut bytes, offset).map_err(io)?;
            if read_bytes == 0 {
                return Ok(());
            }
            bytes.resize(part_bytes(&bytes[..read_bytes]).unwrap_or(BLOCK_BYTES), 0);
            file.read_up_to(&mut bytes[BLOCK_BYTES..], offset + BLOCK_BYTES as u64).map_err(io)?;
            let Some(part) = Part::decode(&bytes) else {
                offset += BLOCK_BYTES as u64;
                continue;
            };
            if (part.head.database, part.head.checkpoint) != (self.database, checkpoint) || !take(part)? {
                return Ok(());
            }
            offset += bytes.len() as u64;
        }
    }

    /// Like [`open_to_write`], but if the file cannot be opened, turns the files off and logs a warning. A full disk
    /// may be temporary, so it does not turn the files off.
    fn open_or_turn_off(&self, name: &str) -> Option<FileRef> {
        let path = self.folder.path().join(name);
        match open_to_write(&self.folder, name, is_advice) {
            Ok(file) => return Some(file),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                log::debug!("opening {}: {error}", path.display());
            }
            Err(error) => {
                log::warn!("opening {}: {error}. This file is not used until the database is reopened", path.display());
                self.is_on.store(false, Ordering::Relaxed);
            }
        }
        None
    }
}

/// Writes the parts of a file.
#[derive(Debug)]
pub(super) struct PartWriter {
    file: FileRef,
    /// The head of the next part.
    head: PartHead,
    /// The offset of the next part, which is also the length of the file.
    offset: u64,
    /// The offset of the first part of the current series.
    series_offset: u64,
}

impl PartWriter {
    /// Begins a series of parts about a keyspace.
    pub(super) fn begin_series(&mut self, keyspace: KeyspaceId, base: Timestamp) {
        self.head = PartHead { keyspace, base, number: 0, ..self.head };
        self.series_offset = self.offset;
    }

    /// Writes the items in the buffer as the next part of the series, and clears the buffer.
    pub(super) fn write(&mut self, kind: PartKind, is_last: bool, buffer: &mut PartBuffer) -> io::Result<()> {
        self.head = PartHead { kind, is_last, ..self.head };
        let part = buffer.seal(&self.head);
        self.file.write_at(part, self.offset, Persist::Later)?;
        self.offset += part.len() as u64;
        self.head.number = if is_last { 0 } else { self.head.number + 1 };
        buffer.clear();
        Ok(())
    }

    /// Lets the next series overwrite the current one, whose last part has not been written.
    pub(super) fn forfeit_series(&mut self) {
        self.offset = self.series_offset;
    }
}
