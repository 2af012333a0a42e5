//! The two superblocks. No other module writes them.
//!
//! A superblock names the newest checkpoint, the openings, and the log ranges that must exist. Checkpoints and openings
//! change one part of it, and the log changes the other. Both write through this module. Each change is one durable
//! write into the slot that does not hold the newest superblock.
//!
//! # Invariants
//! 1. Only one write is in flight at a time, and each starts from the superblock of the previous write. So no write
//!    loses anything that an earlier one listed.
//! 2. No write follows a failed one: the contents of its slot are unknown, and the other slot is needed.
//! 3. After a superblock that says *closed*, a new one is written before anything on which an opening depends: data,
//!    log or name. So as long as the closed superblock is the newest, the log holds no record above its checkpoint, and
//!    no number that the next opening will assign is in use.
//!
//! # States
//! Deferred ([`Superblocks::defer`]: a closed database was opened, and nothing has been written yet) → open
//! ([`Superblocks::begin_writing`], before the first write) → closed ([`Superblocks::close`]). A database that was not
//! closed starts out open.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::format::superblock::{MAGIC, SLOT_OFFSETS, Superblock, SuperblockError};
use crate::format::{BLOCK_BYTES, CheckpointNumber, Incarnation, SuperblockNumber, Timestamp};
use crate::io::{AlignedBuffer, FileRef, FolderRef, Persist, SyncMethod};
use crate::sync::Mutex;

/// The two superblocks of a data file. See the module documentation.
#[derive(Debug)]
pub(crate) struct Superblocks {
    file: FileRef,
    sync: SyncMethod,
    /// The newest superblock on the medium, or `None` once a write has failed.
    newest: Mutex<Option<Superblock>>,
    /// The steps that were deferred until this opening's first write.
    deferred: Mutex<Option<Deferred>>,
    is_deferred: AtomicBool,
}

/// The deferred steps of recording an opening.
#[derive(Debug)]
struct Deferred {
    /// The openings that the next superblock will list.
    incarnations: Vec<(Incarnation, Timestamp)>,
    /// The folders in which a previous process may have left unsynced names.
    folders: Vec<FolderRef>,
}

/// The result of reading the superblocks.
#[derive(Debug)]
pub(crate) struct FoundSuperblock {
    pub(crate) newest: Superblock,
    /// The reason why the superblock in the other slot is invalid, if it is invalid.
    pub(crate) reason: Option<Error>,
}

impl Superblocks {
    pub(crate) fn new(file: FileRef, sync: SyncMethod, newest: Superblock) -> Superblocks {
        let (newest, deferred) = (Mutex::new(Some(newest)), Mutex::default());
        Superblocks { file, sync, newest, deferred, is_deferred: AtomicBool::new(false) }
    }

    /// Defers recording this opening of a closed database until its first write. That write will also sync `folders`.
    pub(crate) fn defer(&self, incarnations: Vec<(Incarnation, Timestamp)>, folders: Vec<FolderRef>) {
        assert!(self.is_closed(), "an opening is put off of a database that was not closed");
        *self.deferred.lock() = Some(Deferred { incarnations, folders });
        self.is_deferred.store(true, Ordering::Release);
    }

    /// If recording this opening was deferred, records it now, by a durable superblock that follows the closed one.
    /// Called before each write to any other part of the database. All calls but the first cost one atomic load.
    pub(crate) fn begin_writing(&self) -> io::Result<()> {
        if !self.is_deferred.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut deferred = self.deferred.lock();
        if let Some(Deferred { incarnations, folders }) = &*deferred {
            crate::coverage::mark!("an opening was recorded at its first write");
            // The closed superblock may not be durable yet, and the next write will overwrite the older slot.
            let synced = folders.iter().try_for_each(|folder| folder.sync()).and_then(|()| self.file.sync_data());
            synced.and_then(|()| self.write_again()).inspect_err(|_| *self.newest.lock() = None)?;
            self.write_open(|next| next.incarnations.clone_from(incarnations))?;
            *deferred = None;
            self.is_deferred.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Returns `true` if the newest superblock says that the database was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.newest.lock().as_ref().is_some_and(|newest| newest.is_closed)
    }

    /// Records that the database is closed: the log is not needed, and nothing more will be written. Both superblocks
    /// say so, because the log may be removed afterwards: if one of the two is lost, the other must not require the
    /// log. Does nothing if nothing has been written since the database was last closed.
    pub(crate) fn close(&self) -> io::Result<()> {
        if self.is_closed() {
            assert!(self.is_deferred.load(Ordering::Acquire), "a database was written to that is closed");
            return Ok(());
        }
        self.write_next(|next| {
            next.log.clear();
            next.is_closed = true;
        })?;
        self.write_next(|_| {})
    }

    /// Writes the next superblock: the newest one with `change` applied.
    pub(crate) fn write(&self, change: impl FnOnce(&mut Superblock)) -> io::Result<()> {
        self.begin_writing()?;
        self.write_open(change)
    }

    fn write_open(&self, change: impl FnOnce(&mut Superblock)) -> io::Result<()> {
        self.write_next(|next| {
            change(next);
            next.is_closed = false;
        })
    }

    fn write_next(&self, change: impl FnOnce(&mut Superblock)) -> io::Result<()> {
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

    /// Rewrites the newest superblock as it was read. A failed sync may have left it in caches only, and the next write
    /// will overwrite the slot of its predecessor.
    pub(crate) fn write_again(&self) -> io::Result<()> {
        let newest = self.newest.lock();
        let Some(newest) = newest.as_ref() else {
            return Err(io::Error::other("writing a superblock has failed before"));
        };
        write_block(&self.file, newest, slot(newest.sequence), self.sync)
    }
}

/// Returns the newer of the two superblocks, or the only valid one. A superblock that is unreadable or has a newer
/// format is ignored if the other is valid. So a format change has to mark both superblocks before it changes anything
/// else.
pub(crate) fn read(file: &FileRef) -> Result<FoundSuperblock> {
    let mut newest: Option<Superblock> = None;
    let mut other_format = None;
    let mut unreadable = None;
    let mut reasons = Vec::new();
    for (slot, offset) in SLOT_OFFSETS.into_iter().enumerate() {
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        // Try twice. The other superblock is older, and should not be used because of a transient error.
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
                if let SuperblockError::Newer(version) | SuperblockError::Older(version) = reason {
                    other_format = other_format.max(Some(version));
                }
                reasons.push((slot, reason.to_string()));
            }
        }
    }
    let path = file.path();
    match (newest, unreadable, other_format) {
        (Some(newest), ..) => {
            let reason = reasons.into_iter().next();
            let reason = reason.map(|(slot, reason)| Error::corrupted(path, format!("superblock {slot}"), reason));
            Ok(FoundSuperblock { newest, reason })
        }
        (None, Some(error), _) => Err(Error::io("reading", path, error)),
        (None, None, Some(found)) => Err(Error::other_format(path, found)),
        (None, None, None) if reasons.iter().all(|(_, reason)| *reason == SuperblockError::Magic.to_string()) => {
            Err(Error::NotADatabase { path: path.to_path_buf(), why: "it holds no superblock".into() })
        }
        (None, None, None) => {
            let reasons: Vec<String> = reasons.into_iter().map(|(_, reason)| reason).collect();
            Err(Error::corrupted(path, "both superblocks", reasons.join("; ")))
        }
    }
}

/// Writes the first superblock of a new database into both slots.
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

/// Returns `true` if the file is as an interrupted creation leaves it: empty, or all zeros except for the superblocks.
pub(crate) fn is_begun(file: &FileRef) -> io::Result<bool> {
    let mut buffer = AlignedBuffer::zeroed(64 * BLOCK_BYTES);
    let mut offset = 0;
    loop {
        let bytes = file.read_up_to(&mut buffer, offset)?;
        let offsets = (offset..).step_by(BLOCK_BYTES);
        let is_begun = |(offset, block): (u64, &[u8])| {
            (SLOT_OFFSETS.contains(&offset) && block.starts_with(&MAGIC)) || block.iter().all(|byte| *byte == 0)
        };
        if bytes == 0 || !offsets.zip(buffer[..bytes].chunks(BLOCK_BYTES)).all(is_begun) {
            return Ok(bytes == 0);
        }
        offset += bytes as u64;
        if !bytes.is_multiple_of(BLOCK_BYTES) {
            return Ok(true);
        }
    }
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
