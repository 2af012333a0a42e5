//! Files of advice: `lock`, `probe`, `resident`, `counts-0`, `counts-1`. Nothing rests on them, and a newer one is
//! written over the one before it.
//!
//! # Invariants
//! 1. The database writes to such a file only after its first bytes have proved that it is one. A folder, a pipe, a
//!    symbolic link or a foreign file of that name stays as it is, and the opening does without the advice.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::format::BLOCK_BYTES;
use crate::io::{FileRef, FolderRef, OpenOptions};

/// The blocks in which a file's first written byte is looked for. A file whose head was not written yet, or was lost
/// in a power cut, begins with zeros.
const HEAD_BLOCKS: u64 = 16;

/// Opens a file of advice to be written, or makes it. `is_ours` judges its first block that is not zero, which the
/// file's end may cut short; a file of zeros alone has nothing to lose.
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
    Err(io::Error::other("it is somebody else's file, and left as it is"))
}

/// Like [`open_to_write`]. A file that can't be opened is reported once and turns `is_on` off; a full disk, which may
/// pass, does not.
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
            log::warn!("opening {}: {error}. It is not written while the database is open", path(folder));
            is_on.store(false, Ordering::Relaxed);
            None
        }
    }
}
