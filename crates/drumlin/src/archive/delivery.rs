//! Delivers files: copies them to a folder, or runs a command for each.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::setting::Destination;
use super::shared::Shared;
use super::spool;
use crate::format::DatabaseId;
use crate::io::{Backend, FileRef, Folder, FolderRef, OpenOptions, Persist, RunningCommand, open_folder};

/// The number of bytes that are copied at once.
const COPY_BYTES: usize = 256 << 10;

/// The pause after a delivery that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The interval at which a running command is asked whether it has ended.
const POLL_PAUSE: Duration = Duration::from_millis(5);

/// The time for which closing the database waits for a command.
const CLOSING_MAX: Duration = Duration::from_secs(10);

/// Delivers the files of a database's archive in their order.
#[derive(Debug)]
pub(super) struct Deliverer {
    pub(super) backend: Arc<dyn Backend>,
    /// The folder of the database.
    pub(super) parent: FolderRef,
    pub(super) database: DatabaseId,
    pub(super) destination: Destination,
}

impl Deliverer {
    /// Delivers files until the archive is stopped. The files that wait then are tried once more.
    pub(super) fn run(&self, shared: &Shared) {
        while let Some((waiting, is_last_try)) = shared.wait_for_file() {
            let name = waiting.file.header.name();
            match self.deliver(shared, &name, waiting.file.header.number) {
                Ok(()) => shared.take_delivered(),
                Err(reason) => {
                    let reason = format!("{name} was not delivered: {reason}");
                    if shared.note_failure(&reason) {
                        log::warn!("{}: the archive: {reason}", self.parent.path().display());
                    }
                    if is_last_try {
                        return;
                    }
                    shared.pause(RETRY_PAUSE);
                }
            }
        }
    }

    /// Delivers a file, and removes it from the database's folder.
    fn deliver(&self, shared: &Shared, name: &str, number: u64) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let waiting = self.parent.folder(spool::FOLDER_NAME).map_err(text)?;
        match &self.destination {
            Destination::Folder(path) => self.copy_to(&waiting, path, name, number)?,
            Destination::Command { program, arguments } => {
                self.check_path(&waiting)?;
                let mut arguments = arguments.clone();
                arguments.push(waiting.path().join(name).into_os_string());
                self.run_command(shared, program, &arguments)?;
            }
        }
        waiting.remove(name).map_err(text)
    }

    fn run_command(&self, shared: &Shared, program: &Path, arguments: &[OsString]) -> Result<(), String> {
        let with_name = |error: io::Error| format!("{}: {error}", program.display());
        let mut command = RunningCommand::start(program, arguments).map_err(with_name)?;
        let mut stopped_at = None;
        loop {
            if let Some(ended) = command.poll().map_err(with_name)? {
                return ended.map_err(|status| format!("{}: {status}", program.display()));
            }
            let now = self.backend.now();
            if shared.nap(POLL_PAUSE) && now >= *stopped_at.get_or_insert(now) + CLOSING_MAX {
                return Err(format!("{}: it did not end while the database was closed", program.display()));
            }
        }
    }

    /// Fails if the folder of the files is no longer at its path, where another database may have put its own by now.
    fn check_path(&self, waiting: &FolderRef) -> Result<(), String> {
        let found = open_folder(&self.backend, waiting.path()).and_then(|found| is_same_folder(&found, waiting));
        match found {
            Ok(true) => Ok(()),
            _ => Err(format!(
                "{} has been moved, and the command needs its path; close the database, and open it where it is now",
                waiting.path().display()
            )),
        }
    }

    /// Copies a file to a folder, durably. The copy has its name only once it is complete. The folder is created only
    /// for the first file of a chain. If it is gone later, so are the earlier files, or its file system is not mounted.
    fn copy_to(&self, waiting: &FolderRef, path: &Path, name: &str, number: u64) -> Result<(), String> {
        let text = |error: io::Error| format!("{}: {error}", path.display());
        if !self.backend.exists(path).map_err(text)? {
            if number > 1 {
                return Err(format!(
                    "the folder {} is gone, with the earlier files; bring it back, or create it to go on without",
                    path.display()
                ));
            }
            self.backend.create_dir_all(path).map_err(text)?;
            if let Some(parent) = path.parent() {
                self.backend.sync_dir(parent).map_err(text)?;
            }
        }
        let target = open_folder(&self.backend, path).map_err(text)?;
        if is_same_folder(&target, waiting).map_err(text)? {
            // The copy would be the file that is removed when it has been delivered.
            return Err(format!(
                "the database keeps its files in {} until they are delivered; the archive needs another folder",
                path.display()
            ));
        }
        let source = waiting.open(name, OpenOptions::default()).map_err(text)?;
        if target.exists(name).map_err(text)? {
            // The process may have been killed after an earlier delivery.
            let there = target.open(name, OpenOptions::default()).map_err(text)?;
            return match have_same_bytes(&source, &there).map_err(text)? {
                true => target.sync().map_err(text),
                false => Err(format!("{} has another file of this name", path.display())),
            };
        }
        self.check_owner(&target).map_err(|reason| format!("{}: {reason}", path.display()))?;
        let temporary = format!("{name}.new");
        copy(&source, target.as_ref(), &temporary).and_then(|()| target.rename(&temporary, name)).map_err(text)?;
        target.sync().map_err(text)
    }

    /// Fails if the folder has the archive of another database.
    fn check_owner(&self, target: &FolderRef) -> Result<(), String> {
        match spool::owner(target).map_err(|error| error.to_string())? {
            Some(owner) if owner != self.database => Err("it has the archive of another database".into()),
            _ => Ok(()),
        }
    }
}

/// Returns `true` if both are the same folder, even if their paths differ.
fn is_same_folder(one: &FolderRef, other: &FolderRef) -> io::Result<bool> {
    Ok(match (one.identity()?, other.identity()?) {
        (Some(one), Some(other)) => one == other,
        _ => one.path() == other.path(),
    })
}

/// Copies a file to a new file of this name, and makes its bytes durable.
fn copy(source: &FileRef, target: &dyn Folder, name: &str) -> io::Result<()> {
    let file = target.open(name, OpenOptions { write: true, create: true, ..OpenOptions::default() })?;
    file.set_len(0)?;
    let mut offset = 0;
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let read = source.read_up_to(&mut buffer, offset)?;
        if read == 0 {
            return file.sync_all();
        }
        file.write_at(&buffer[..read], offset, Persist::Later)?;
        offset += read as u64;
    }
}

fn have_same_bytes(one: &FileRef, other: &FileRef) -> io::Result<bool> {
    if one.len()? != other.len()? {
        return Ok(false);
    }
    let (mut of_one, mut of_other) = (vec![0; COPY_BYTES], vec![0; COPY_BYTES]);
    let mut offset = 0;
    loop {
        let read = one.read_up_to(&mut of_one, offset)?;
        if read != other.read_up_to(&mut of_other, offset)? {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if of_one[..read] != of_other[..read] {
            return Ok(false);
        }
        if read == 0 {
            return Ok(true);
        }
        offset += read as u64;
    }
}
