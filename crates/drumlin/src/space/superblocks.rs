//! The two superblocks, and the one way in which they are written.
//!
//! A superblock names the newest checkpoint, the openings, and the log ranges that must exist. Checkpoints and openings
//! change one part, the log the other. Both write through this module, and each change is one durable write into the
//! slot that does not hold the newest superblock.
//!
//! # Invariants
//! 1. Writes are one at a time, and each goes on from the one before: nothing that one of them listed is lost by
//!    another.
//! 2. After a failed write there are no more: the contents of its slot are unknown, and the other slot is needed.

use std::io;

use crate::error::{Error, Result};
use crate::format::superblock::{SLOT_OFFSETS, Superblock, SuperblockError};
use crate::format::{BLOCK_BYTES, CheckpointNumber, SuperblockNumber};
use crate::io::{AlignedBuffer, FileRef, Persist, SyncMethod};
use crate::sync::Mutex;

/// See the module.
#[derive(Debug)]
pub(crate) struct Superblocks {
    file: FileRef,
    sync: SyncMethod,
    /// The newest superblock on the medium; `None` once a write has failed.
    newest: Mutex<Option<Superblock>>,
}

/// The result of reading the superblocks.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) newest: Superblock,
    /// The reason why the other superblock is invalid, if it is.
    pub(crate) reason: Option<Error>,
}

impl Superblocks {
    pub(crate) fn new(file: FileRef, sync: SyncMethod, newest: Superblock) -> Superblocks {
        Superblocks { file, sync, newest: Mutex::new(Some(newest)) }
    }

    /// Writes the next superblock, which is the newest as `change` leaves it.
    pub(crate) fn write(&self, change: impl FnOnce(&mut Superblock)) -> io::Result<()> {
        let mut newest = self.newest.lock();
        let Some(mut next) = newest.take() else {
            return Err(io::Error::other("writing a superblock has failed before"));
        };
        let before = next.sequence;
        let (of, reached) = ((next.database, next.segment_bytes), (next.checkpoint, next.timestamp, next.epoch));
        change(&mut next);
        assert!((next.database, next.segment_bytes) == of, "a superblock becomes another database's");
        assert!((next.checkpoint, next.timestamp, next.epoch) >= reached, "a superblock goes back behind {reached:?}");
        next.sequence = before.next();
        assert!(slot(next.sequence) != slot(before), "the newest superblock is written over");
        write_block(&self.file, &next, slot(next.sequence), self.sync)?;
        *newest = Some(next);
        Ok(())
    }

    /// Writes the newest once more, as it was read: it may be in caches only, dropped by a sync that failed, and the
    /// next one takes the place of the one before it.
    pub(crate) fn write_again(&self) -> io::Result<()> {
        let newest = self.newest.lock();
        let newest = newest.as_ref().expect("nothing was written yet");
        write_block(&self.file, newest, slot(newest.sequence), self.sync)
    }
}

/// The newer of the two superblocks that can be read. One that can't be, or is of a newer format, does not count beside
/// one that is sound: a change of the format has to mark both before it changes anything else.
pub(crate) fn read(file: &FileRef) -> Result<Found> {
    let mut newest: Option<Superblock> = None;
    let mut newer_format = None;
    let mut unreadable = None;
    let mut reasons = Vec::new();
    for (slot, offset) in SLOT_OFFSETS.into_iter().enumerate() {
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        // The other one is older, and not for a read that fails once.
        let read = file.read_at(&mut block, offset).or_else(|_| file.read_at(&mut block, offset));
        if let Err(error) = read {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                reasons.push((slot, "the file ends before it".to_owned()));
            } else {
                reasons.push((slot, error.to_string()));
                unreadable = Some(error);
            }
            continue;
        }
        match Superblock::decode(&block) {
            Ok(found) => {
                if newest.as_ref().is_none_or(|newest| newest.sequence < found.sequence) {
                    newest = Some(found);
                }
            }
            Err(reason) => {
                crate::coverage::mark!("a superblock did not verify");
                if let SuperblockError::Newer(version) = reason {
                    newer_format = Some(version);
                }
                reasons.push((slot, reason.to_string()));
            }
        }
    }
    let path = file.path();
    match (newest, unreadable, newer_format) {
        (Some(newest), ..) => {
            let reason = reasons.into_iter().next();
            let reason = reason.map(|(slot, reason)| Error::corrupted(path, format!("superblock {slot}"), reason));
            Ok(Found { newest, reason })
        }
        (None, Some(error), _) => Err(Error::io("reading", path, error)),
        (None, None, Some(found)) => {
            Err(Error::NewerFormat { path: path.to_path_buf(), found, supported: crate::format::FORMAT_VERSION })
        }
        (None, None, None) if reasons.iter().all(|(_, reason)| *reason == SuperblockError::Magic.to_string()) => {
            Err(Error::NotADatabase { path: path.to_path_buf(), why: "it holds no superblock".into() })
        }
        (None, None, None) => {
            let reasons: Vec<String> = reasons.into_iter().map(|(_, reason)| reason).collect();
            Err(Error::corrupted(path, "both superblocks", reasons.join("; ")))
        }
    }
}

/// Writes the first superblock of a new database, into both slots.
pub(crate) fn write_first(file: &FileRef, superblock: &Superblock, sync: SyncMethod) -> Result<()> {
    assert!(
        superblock.checkpoint == CheckpointNumber::NONE,
        "the first superblock names checkpoint {}",
        superblock.checkpoint
    );
    for offset in SLOT_OFFSETS {
        write_block(file, superblock, offset, sync).map_err(|error| Error::io("writing", file.path(), error))?;
    }
    file.sync_all().map_err(|error| Error::io("syncing", file.path(), error))
}

fn slot(number: SuperblockNumber) -> u64 {
    SLOT_OFFSETS[(number.0 % 2) as usize]
}

fn write_block(file: &FileRef, superblock: &Superblock, offset: u64, sync: SyncMethod) -> io::Result<()> {
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    block.copy_from_slice(&superblock.encode());
    debug_assert_eq!(
        Superblock::decode(&block).as_ref(),
        Ok(superblock),
        "a superblock can't be read as it was written"
    );
    file.write_at(&block, offset, Persist::Now(sync))
}
