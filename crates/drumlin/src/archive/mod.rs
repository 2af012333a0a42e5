//! The archive: copies durable commits, with all that they refer to, to files that are delivered elsewhere, so that a
//! backup can be restored to any commit after it.
//!
//! The *copier* reads durable records from the log and writes them to *archive files* in the folder `archive` of the
//! database. The *deliverer* brings each file that has its end to its destination, a folder or a command, and removes
//! it. `format/archive.rs` has the bytes. [`reading`] reads an archive again.
//!
//! # Invariants
//! 1. A chain of archive files has all durable commits after its beginning, in the order of their timestamps. Its files
//!    are numbered. Only durable commits are copied, so nothing in an archive is lost by its database.
//! 2. A record is copied before a checkpoint that covers it is durable ([`Archiver::keep_up_to`]). Until then, its
//!    extents are in place, because a recovery would need them.
//! 3. An opening continues the chain if the newest file in the database's folder reaches the checkpoint from which the
//!    opening has recovered. Otherwise it begins another chain, and an error in the program's log says that there is a
//!    gap. The newest file is never delivered, so that it says how far the chain goes.
//! 4. A file is removed only once it has been delivered. If more bytes wait than the limit allows, or a file can't be
//!    written, the archive ends until the next opening: statistics and the program's log say why. Commits and
//!    checkpoints never fail because of the archive.
//!
//! # Lock order
//! `copier` → the state of `Shared`. Checkpoints hold `page_tables` while they lock `copier`. Files are written under
//! `copier`, never under the state, and delivered under neither.

mod copier;
mod delivery;
mod expansion;
pub(crate) mod point;
pub(crate) mod reading;
mod setting;
mod shared;
mod spool;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::feed::buffer_bytes;
use crate::format::{DatabaseId, Timestamp};
use crate::io::{Backend, FolderRef};
use crate::memory::Budget;
use crate::pool::Pool;
use crate::seglog::Log;
use crate::sync::{Condvar, Mutex};
use copier::{Copier, CopierSettings};
use delivery::Deliverer;
use shared::Shared;

pub use setting::Archive;
pub(crate) use setting::Destination;
pub(crate) use shared::ArchiveFigures;

/// The pause between two copies. A copy after each of many small commits would cost a read and a write for each.
const PAUSE: Duration = Duration::from_millis(2);

/// The surroundings of an archive: the database as its opening has recovered it.
pub(crate) struct ArchiveSource<'s> {
    pub(crate) backend: &'s Arc<dyn Backend>,
    /// The folder of the database.
    pub(crate) parent: &'s FolderRef,
    pub(crate) database: DatabaseId,
    pub(crate) pool: &'s Arc<Pool>,
    pub(crate) budget: &'s Arc<Budget>,
    /// The timestamp of the checkpoint from which the opening has recovered.
    pub(crate) covered: Timestamp,
    /// The newest commit in the log.
    pub(crate) recovered: Timestamp,
    /// Set to the bytes that wait after a delivery has failed.
    pub(crate) held_bytes: &'s Arc<AtomicU64>,
}

/// The archive of an open database.
#[derive(Debug)]
pub(crate) struct Archiver {
    shared: Shared,
    copier: Mutex<Copier>,
    /// `None` if this opening has no setting: the files wait for one that has.
    deliverer: Option<Deliverer>,
    /// The newest durable timestamp that the log has announced.
    durable: AtomicU64,
    /// Set while the thread of the copier sleeps.
    is_sleeping: AtomicBool,
    is_stopped: Mutex<bool>,
    changed: Condvar,
}

impl Archiver {
    /// Creates the archive of an opening. Without a setting, commits are copied if an earlier opening has done so, and
    /// wait for their delivery. An opening that turns the archive off removes the files.
    pub(crate) fn new(setting: Option<&Archive>, source: &ArchiveSource<'_>) -> Option<Archiver> {
        let chosen = match setting {
            None => kept_setting(source),
            Some(Archive { destination: None, .. }) => remove_all(source).map(|()| None),
            Some(archive) => absolute(archive, source.backend).map(Some),
        };
        let archive = chosen.unwrap_or_else(|error| {
            log::error!("{}: the files of the archive: {error}", source.parent.path().display());
            None
        })?;
        let settings = CopierSettings {
            backend: Arc::clone(source.backend),
            parent: Arc::clone(source.parent),
            database: source.database,
            pool: Arc::clone(source.pool),
            limit_bytes: archive.limit_bytes,
            interval: archive.interval,
            buffer_bytes: buffer_bytes(source.budget.total_bytes()),
            covered: source.covered,
            recovered: source.recovered,
        };
        let deliverer = archive.destination.map(|destination| Deliverer {
            backend: Arc::clone(source.backend),
            parent: Arc::clone(source.parent),
            database: source.database,
            destination,
        });
        Some(Archiver {
            shared: Shared::new(source.covered, Arc::clone(source.held_bytes)),
            copier: Mutex::new(Copier::new(settings, source.budget)),
            deliverer,
            durable: AtomicU64::new(source.recovered.0),
            is_sleeping: AtomicBool::new(false),
            is_stopped: Mutex::new(false),
            changed: Condvar::new(),
        })
    }

    /// Called when the durable horizon has advanced. Wakes the thread of the copier if it sleeps.
    pub(crate) fn announce(&self, durable: Timestamp) {
        self.durable.fetch_max(durable.0, Ordering::SeqCst);
        // The thread stores this flag before it looks at `durable` for the last time.
        if self.is_sleeping.load(Ordering::SeqCst) {
            let _guard = self.is_stopped.lock();
            self.changed.notify_all();
        }
    }

    /// Copies all commits up to `timestamp` to files, durably. Called before a checkpoint that covers them is durable.
    /// If the files can't be written, the archive ends, and the checkpoint continues.
    pub(crate) fn keep_up_to(&self, log: &Log, timestamp: Timestamp) {
        assert!(timestamp <= log.durable(), "a checkpoint covers what is not durable");
        let mut copier = self.copier.lock();
        copier.copy(&self.shared, log);
        copier.sync(&self.shared);
        assert!(
            self.shared.has_ended() || timestamp <= self.shared.copied(),
            "commits up to {timestamp} are not in archive files"
        );
    }

    /// Waits for durable commits that have not been copied, and for the pause after the last copy, or until the newest
    /// file is old enough to be delivered. Returns `false` once the archive is stopped.
    pub(crate) fn wait_for_commits(&self) -> bool {
        let due_in = {
            let mut copier = self.copier.lock();
            copier.ensure_started(&self.shared);
            copier.due_in()
        };
        let mut is_stopped = self.is_stopped.lock();
        if !*is_stopped {
            self.changed.wait_for(&mut is_stopped, PAUSE);
        }
        self.is_sleeping.store(true, Ordering::SeqCst);
        let is_idle = || self.durable.load(Ordering::SeqCst) <= self.shared.copied().0;
        while !*is_stopped && is_idle() {
            match due_in {
                None => self.changed.wait(&mut is_stopped),
                Some(due_in) => {
                    if self.changed.wait_for(&mut is_stopped, due_in).timed_out() {
                        break;
                    }
                }
            }
        }
        self.is_sleeping.store(false, Ordering::SeqCst);
        !*is_stopped
    }

    /// Copies the durable commits. Returns `false` if the archive has ended.
    pub(crate) fn copy(&self, log: &Log) -> bool {
        self.copier.lock().copy(&self.shared, log);
        !self.shared.has_ended()
    }

    /// Finds the files that earlier openings have left, and delivers files until the archive is stopped.
    pub(crate) fn deliver(&self) {
        let Some(deliverer) = &self.deliverer else { return };
        self.copier.lock().ensure_started(&self.shared);
        deliverer.run(&self.shared);
    }

    /// Copies what is durable, ends the newest file, and ends the archive's threads. The deliverer first tries to
    /// deliver what waits.
    pub(crate) fn stop(&self, log: &Log) {
        {
            let mut copier = self.copier.lock();
            copier.copy(&self.shared, log);
            copier.end_file(&self.shared);
        }
        *self.is_stopped.lock() = true;
        self.changed.notify_all();
        self.shared.stop();
    }

    pub(crate) fn figures(&self) -> ArchiveFigures {
        self.shared.figures()
    }
}

/// Returns the archive with the absolute path of its folder or program, so that the working directory may change. A
/// program without a folder is searched for when it is run.
fn absolute(archive: &Archive, backend: &Arc<dyn Backend>) -> Result<Archive> {
    let mut archive = archive.clone();
    let path = match &mut archive.destination {
        Some(Destination::Folder(path)) => path,
        Some(Destination::Command { program, .. }) if program.components().count() > 1 => program,
        _ => return Ok(archive),
    };
    *path = backend.absolute(path).map_err(|error| Error::io("finding", path, error))?;
    Ok(archive)
}

/// Returns the setting for an opening that has none, if an earlier one has left files.
fn kept_setting(source: &ArchiveSource<'_>) -> Result<Option<Archive>> {
    let found = spool::find(source.parent, source.database)?;
    let last = found.and_then(|(_, files)| files.last().cloned());
    Ok(last.map(|last| Archive::off().limit_bytes(last.header.limit_bytes)))
}

/// Removes the files that wait in the folder of a database.
fn remove_all(source: &ArchiveSource<'_>) -> Result<()> {
    let Some((folder, files)) = spool::find(source.parent, source.database)? else { return Ok(()) };
    for file in files {
        folder.remove(&file.header.name()).map_err(|error| Error::io("removing a file of", folder.path(), error))?;
    }
    Ok(())
}
