//! The file of spilled versions. Its blocks are allocated to runs and released when a run is dropped.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::block::{BLOCK_BYTES, is_block};
use crate::io::{AlignedBuffer, FileRef, FolderRef, OpenOptions, Persist, Process};
use crate::sync::Mutex;

/// The name of the file. The file exists only while there are spilled versions.
pub(crate) const VERSIONS_NAME: &str = "versions";

/// The file and its free blocks. The file is never synced, because no snapshot outlives the process.
#[derive(Debug)]
pub(super) struct SpillFile {
    folder: FolderRef,
    state: Mutex<FileState>,
    /// The process that opened the database. A fork of it must not release blocks that the parent uses.
    process: Process,
}

#[derive(Debug, Default)]
struct FileState {
    file: Option<FileRef>,
    /// The blocks below the end of the file that do not belong to a run.
    free: BTreeSet<u32>,
    /// The number of blocks in the file, including free ones.
    end: u32,
}

impl SpillFile {
    pub(super) fn new(folder: FolderRef) -> Arc<SpillFile> {
        Arc::new(SpillFile { folder, state: Mutex::default(), process: Process::here() })
    }

    /// Removes the file that a killed process may have left behind.
    pub(super) fn remove_left(&self) -> io::Result<()> {
        let Ok(file) = self.folder.open(VERSIONS_NAME, OpenOptions::default()) else { return Ok(()) };
        let mut head = [0; 16];
        let bytes = file.read_up_to(&mut head, 0)?;
        if is_block(&head[..bytes]) || head.iter().all(|byte| *byte == 0) {
            self.folder.remove(VERSIONS_NAME)
        } else {
            Ok(())
        }
    }

    /// Allocates a block, writes it and returns its number. The first block creates the file.
    pub(super) fn append(&self, block: &AlignedBuffer) -> io::Result<u32> {
        assert!(block.len() == BLOCK_BYTES, "a block of {} bytes", block.len());
        let (file, number) = {
            let mut state = self.state.lock();
            let file = match &state.file {
                Some(file) => Arc::clone(file),
                None => {
                    let options = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
                    let file = self.folder.open(VERSIONS_NAME, options)?;
                    state.file.insert(file).clone()
                }
            };
            let number = state.free.pop_first().unwrap_or(state.end);
            state.end = state.end.max(number + 1);
            debug_assert!(!state.free.contains(&number), "block {number} is taken twice");
            debug_assert!(state.free.iter().all(|free| *free < state.end), "a block beyond the end is free");
            (file, number)
        };
        match file.write_at(block, offset(number), Persist::Later) {
            Ok(()) => Ok(number),
            Err(error) => {
                self.release(&[number]);
                Err(error)
            }
        }
    }

    /// Reads a block, which must belong to a run, into `block`.
    pub(super) fn read(&self, number: u32, block: &mut AlignedBuffer) -> io::Result<()> {
        let state = self.state.lock();
        assert!(number < state.end && !state.free.contains(&number), "block {number} is read, which no run has");
        assert!(block.len() == BLOCK_BYTES, "a block of {} bytes", block.len());
        let file = state.file.clone().expect("a run has blocks of a file");
        drop(state);
        file.read_at(block, offset(number))
    }

    /// Releases blocks. If the last blocks of the file are now free, truncates it. If all blocks are free, removes it.
    pub(super) fn release(&self, numbers: &[u32]) {
        if !self.process.is_here() {
            return;
        }
        let mut state = self.state.lock();
        let before = state.end;
        for number in numbers {
            assert!(*number < state.end && state.free.insert(*number), "block {number} is given back twice");
        }
        while state.end > 0 && state.free.last() == Some(&(state.end - 1)) {
            state.end -= 1;
            let end = state.end;
            state.free.remove(&end);
        }
        assert!(state.end <= before, "a file grows as blocks are given back");
        debug_assert!(state.free.iter().all(|free| *free < state.end), "a block beyond the end is free");
        if state.end == before {
            return;
        }
        let ended = match (&state.file, state.end) {
            (None, _) => return,
            (Some(_), 0) => self.folder.remove(VERSIONS_NAME),
            (Some(file), end) => file.set_len(offset(end)),
        };
        if state.end == 0 {
            state.file = None;
        }
        if let Err(error) = ended {
            log::debug!("cutting {VERSIONS_NAME} of {}: {error}", self.folder.path().display());
        }
    }

    /// Returns the length of the file in bytes.
    pub(super) fn bytes(&self) -> u64 {
        offset(self.state.lock().end)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join(VERSIONS_NAME)
    }
}

fn offset(number: u32) -> u64 {
    u64::from(number) * BLOCK_BYTES as u64
}
