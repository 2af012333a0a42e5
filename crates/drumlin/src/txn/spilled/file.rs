//! A file of spilled rows. Its blocks are allocated to runs and released when a run is dropped.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::block::is_block;
use crate::io::{AlignedBuffer, FileRef, FolderRef, OpenOptions, Persist, Process};
use crate::sync::Mutex;

/// The name of the file of old versions. It exists only while versions are spilled.
pub(crate) const VERSIONS_NAME: &str = "versions";
/// The name of the file of changes of transactions. It exists only while changes are spilled.
pub(crate) const WRITES_NAME: &str = "writes";

/// The file and its free blocks. The file is never synced, because no snapshot and no transaction outlives the process.
#[derive(Debug)]
pub(super) struct SpillFile {
    folder: FolderRef,
    name: &'static str,
    pub(super) block_bytes: usize,
    state: Mutex<FileState>,
    /// The process that opened the database. A fork of it must not release blocks that the parent uses.
    process: Process,
}

#[derive(Debug, Default)]
struct FileState {
    /// `true` once the database is closed.
    is_closed: bool,
    file: Option<FileRef>,
    /// The blocks below the end of the file that do not belong to a run.
    free: BTreeSet<u32>,
    /// The number of blocks in the file, including free ones.
    end: u32,
}

impl SpillFile {
    pub(super) fn new(folder: FolderRef, name: &'static str, block_bytes: usize) -> Arc<SpillFile> {
        Arc::new(SpillFile { folder, name, block_bytes, state: Mutex::default(), process: Process::here() })
    }

    /// Returns `true` in the process that opened the database, and `false` in a fork of it.
    pub(super) fn is_here(&self) -> bool {
        self.process.is_here()
    }

    /// Removes the file that a killed process may have left behind.
    pub(super) fn remove_left(&self) -> io::Result<()> {
        let Ok(file) = self.folder.open(self.name, OpenOptions::default()) else { return Ok(()) };
        let mut head = [0; 16];
        let bytes = file.read_up_to(&mut head, 0)?;
        if is_block(&head[..bytes]) || head.iter().all(|byte| *byte == 0) {
            self.folder.remove(self.name)
        } else {
            Ok(())
        }
    }

    /// Allocates a block and returns its number. The first block creates the file.
    pub(super) fn allocate(&self) -> io::Result<u32> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(io::Error::other("the database is closed"));
        }
        if state.file.is_none() {
            let options = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
            state.file = Some(self.folder.open(self.name, options)?);
        }
        let number = state.free.pop_first().unwrap_or(state.end);
        state.end = state.end.max(number + 1);
        debug_assert!(!state.free.contains(&number), "block {number} is taken twice");
        debug_assert!(state.free.iter().all(|free| *free < state.end), "a block beyond the end is free");
        Ok(number)
    }

    /// Writes a block that has been allocated.
    pub(super) fn write(&self, number: u32, block: &AlignedBuffer) -> io::Result<()> {
        assert!(block.len() == self.block_bytes, "a block of {} bytes", block.len());
        self.of_block(number)?.write_at(block, self.offset(number), Persist::Later)
    }

    /// Reads a block, which must belong to a run, into `block`.
    pub(super) fn read(&self, number: u32, block: &mut AlignedBuffer) -> io::Result<()> {
        assert!(block.len() == self.block_bytes, "a block of {} bytes", block.len());
        self.of_block(number)?.read_at(block, self.offset(number))
    }

    /// Returns the file, for an access to a block that is allocated.
    fn of_block(&self, number: u32) -> io::Result<FileRef> {
        let state = self.state.lock();
        if state.is_closed {
            return Err(io::Error::other("the database is closed"));
        }
        assert!(number < state.end && !state.free.contains(&number), "block {number} is used, which no run has");
        Ok(state.file.clone().expect("a run has blocks of a file"))
    }

    /// Releases blocks. If the last blocks of the file are now free, truncates it. If all blocks are free, removes it.
    pub(super) fn release(&self, numbers: &[u32]) {
        if !self.is_here() {
            return;
        }
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
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
            (Some(_), 0) => self.folder.remove(self.name),
            (Some(file), end) => file.set_len(self.offset(end)),
        };
        if state.end == 0 {
            state.file = None;
        }
        if let Err(error) = ended {
            log::debug!("cutting {}: {error}", self.path().display());
        }
    }

    /// Removes the file. Its blocks can't be used any more. Called when the database closes: afterwards, a file of this
    /// name may be that of another process.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        let has_file = state.file.is_some();
        assert!(!state.is_closed, "a file is closed twice");
        *state = FileState { is_closed: true, ..FileState::default() };
        if has_file && let Err(error) = self.folder.remove(self.name) {
            log::debug!("removing {}: {error}", self.path().display());
        }
    }

    /// Returns the length of the file in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.offset(self.state.lock().end)
    }

    fn offset(&self, number: u32) -> u64 {
        u64::from(number) * self.block_bytes as u64
    }

    /// Returns the path of the database.
    pub(super) fn folder_path(&self) -> PathBuf {
        self.folder.path().to_path_buf()
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join(self.name)
    }
}
