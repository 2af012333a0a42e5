//! Advice files: `lock`, `probe`, `resident`, `counts-0`, `counts-1`. The database does not depend on them, and each
//! new version overwrites the last.
//!
//! # Invariants
//! 1. The database writes to such a file only after the file's first bytes have proved that it is an advice file. A
//!    folder, a pipe, a symbolic link or a foreign file of that name is left alone, and the opening does without the
//!    advice.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::format::BLOCK_BYTES;
use crate::io::{FileRef, FolderRef, OpenOptions};

/// The number of blocks searched for a file's first nonzero byte. A file begins with zeros if its head was not written
/// yet or was lost in a power cut.
const HEAD_BLOCKS: u64 = 16;

/// Opens an advice file for writing, creating it if necessary. `is_ours` decides whether the file may be overwritten,
/// from its first block that is not all zeros, which the end of the file may cut short. A file of zeros may be
/// overwritten.
pub(super) fn open_to_write(folder: &FolderRef, name: &str, is_ours: fn(&[u8]) -> bool) -> io::Result<FileRef> {
    let file = folder.open(name, OpenOptions { write: true, create: true, ..OpenOptions::default() })?;
    let mut block = [0; BLOCK_BYTES];
    for index in 0..HEAD_BLOCKS {
        let bytes = file.read_up_to(&mut block, index * BLOCK_BYTES as u64)?;
        let block = &block[..bytes];
        if block.is_empty() || is_ours(block) {
            return Ok(file);
        }
        if block.iter().any(|byte| *byte != 0) {
            break;
        }
    }
    Err(io::Error::other("it belongs to something else and was left unchanged"))
}

/// Like [`open_to_write`], but turns `is_on` off and logs a warning if the file cannot be opened. A full disk may be
/// temporary, so it turns nothing off.
pub(super) fn open_or_turn_off(
    is_on: &AtomicBool,
    folder: &FolderRef,
    name: &str,
    is_ours: fn(&[u8]) -> bool,
) -> Option<FileRef> {
    let path = |folder: &FolderRef| Path::display(&folder.path().join(name)).to_string();
    match open_to_write(folder, name, is_ours) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            log::debug!("opening {}: {error}", path(folder));
            None
        }
        Err(error) => {
            log::warn!("opening {}: {error}. This file is not used until the database is reopened", path(folder));
            is_on.store(false, Ordering::Relaxed);
            None
        }
    }
}
