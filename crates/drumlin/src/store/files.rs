//! The folder of a database and its files: creating them durably, locking them, and choosing how they are synced.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::advice::{self, COUNTS_NAMES, RESIDENT_NAME};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::format::features::Features;
use crate::format::superblock::Superblock;
use crate::format::{CheckpointId, CheckpointNumber, DatabaseId, Epoch, ExtentRef, SuperblockNumber, Timestamp};
use crate::io::{self, Backend, FileRef, FolderRef, Gate, Lock, OpenOptions, Persist, Probe, SyncMethod};
use crate::space::superblocks;
use crate::txn::spilled::file::{VERSIONS_NAME, WRITES_NAME};

pub(super) const DATA_NAME: &str = "data";
const NEW_DATA_NAME: &str = "data.new";
/// The name of the data file while a database is being restored.
const RESTORED_DATA_NAME: &str = "data.restored";
pub(super) const LOG_NAME: &str = "log";
const LOCK_NAME: &str = "lock";
const PROBE_NAME: &str = "probe";

/// The smallest default size of log segments, on small file systems.
const LOG_SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// The largest default size of log segments.
const LOG_SEGMENT_BYTES_MAX: u64 = 16 << 20;

/// The time spent measuring sync methods, long enough for a hundred syncs with each method on a slow drive. Creating a
/// database takes this much longer.
const PROBE_DURATION: std::time::Duration = std::time::Duration::from_millis(300);

/// Opens the files of a database. Once it holds a handle of the folder, paths no longer matter.
pub(super) struct Opener<'s> {
    pub(super) settings: &'s Settings,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) folder: FolderRef,
    /// The gate for all access to the folder.
    gate: Arc<Gate>,
    /// `None` until the folder is locked.
    open_here: Option<Arc<OpenHere>>,
}

/// The paths of the folders that this process has locked. Comparing process ids with a lock file is not enough: a
/// process in a different container may have the same id.
static OPEN_HERE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// An entry in [`OPEN_HERE`]. Dropping it removes the entry.
#[derive(Debug)]
struct OpenHere(PathBuf);

impl OpenHere {
    fn new(path: &Path) -> Arc<OpenHere> {
        OPEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_path_buf());
        Arc::new(OpenHere(path.to_path_buf()))
    }

    fn has(path: &Path) -> bool {
        OPEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|open| open == path)
    }
}

impl Drop for OpenHere {
    fn drop(&mut self) {
        let mut open = OPEN_HERE.lock().unwrap_or_else(PoisonError::into_inner);
        let position = open.iter().position(|path| *path == self.0).expect("entered when it was locked");
        open.swap_remove(position);
    }
}

/// The data file, complete and locked, as an opening found or created it.
pub(super) struct DataFile {
    /// The handle that holds the lock.
    pub(super) lock: FileRef,
    pub(super) sync: SyncMethod,
    /// `true` if this opening created the file.
    pub(super) created: bool,
}

impl<'s> Opener<'s> {
    /// Opens or creates the folder at `path` and the data file in it, and locks both.
    pub(super) fn open(
        settings: &'s Settings,
        backend: &Arc<dyn Backend>,
        path: &Path,
    ) -> Result<(Opener<'s>, DataFile)> {
        let location = Location { backend, path };
        let folder_is_there = location.exists(path)?;
        if !folder_is_there && settings.create {
            location.make_folder()?;
        }
        let opener = Opener::enter(settings, Arc::clone(backend), path, Lock::Exclusive)?;
        // Before writing anything into a folder without a database, check that it contains no foreign files.
        if folder_is_there && !opener.exists(opener.data_name())? {
            match opener.check_creatable() {
                // An earlier creation may have been killed before it made the folder's own name durable.
                Ok(()) => Location { backend: &opener.backend, path }.make_folder()?,
                // Another process may have created the data file since the check above.
                Err(_) if opener.exists(opener.data_name())? => {}
                Err(other) => return Err(other),
            }
        }
        // Check again under the lock: another process may have created the database before we took it.
        let begun = if opener.exists(opener.data_name())? { None } else { opener.begin_data()? };
        if let Some(data) = begun {
            opener.write_process_id();
            let sync = opener.sync_method_of_new()?;
            opener.finish_data(&data, sync)?;
            return Ok((opener, DataFile { lock: data, sync, created: true }));
        }
        let writing = OpenOptions { write: true, ..OpenOptions::default() };
        let data = opener.lock_data(opener.data_name(), writing, Lock::Exclusive)?;
        opener.write_process_id();
        let sync = opener.sync_method();
        if !opener.exists(LOG_NAME)? {
            // A creation may have been killed before it made the data file's name durable. That name must become
            // durable before the log's name does.
            opener.sync_folder()?;
        }
        Ok((opener, DataFile { lock: data, sync, created: false }))
    }

    /// Opens the folder at `path`, creating it if necessary, to restore a database into it. The folder must be empty,
    /// except for what an interrupted restore has left.
    pub(super) fn open_to_restore(
        settings: &'s Settings,
        backend: &Arc<dyn Backend>,
        path: &Path,
    ) -> Result<Opener<'s>> {
        let location = Location { backend, path };
        if !location.exists(path)? {
            location.make_folder()?;
        }
        let opener = Opener::enter(settings, Arc::clone(backend), path, Lock::Exclusive)?;
        let names = opener.folder.list().map_err(|error| opener.io("listing", "", error))?;
        let is_begun = names.iter().any(|name| name == RESTORED_DATA_NAME);
        let is_advice = |name: &str| name == RESIDENT_NAME || COUNTS_NAMES.contains(&name);
        let is_of_replay = |name: &str| is_advice(name) || [LOG_NAME, VERSIONS_NAME, WRITES_NAME].contains(&name);
        let is_left =
            |name: &str| [RESTORED_DATA_NAME, LOCK_NAME, PROBE_NAME].contains(&name) || is_begun && is_of_replay(name);
        if let Some(name) = names.iter().find(|name| !is_left(name)) {
            return Err(Error::Invalid(format!(
                "{} is not empty: it holds {name:?}. Restore into an empty or new folder",
                path.display()
            )));
        }
        opener.write_process_id();
        // Remove the log of an interrupted restore, and then the data file that shows that it is one.
        if names.iter().any(|name| name == LOG_NAME) {
            let folder = opener.folder.folder(LOG_NAME).map_err(|error| opener.io("opening", LOG_NAME, error))?;
            for name in folder.list().map_err(|error| opener.io("listing", LOG_NAME, error))? {
                folder.remove(&name).map_err(|error| opener.io("removing a file of", LOG_NAME, error))?;
            }
        }
        Ok(opener)
    }

    /// Opens the folder at `path` and the data file in it for reading only, with shared locks.
    pub(super) fn open_to_read(
        settings: &'s Settings,
        backend: &Arc<dyn Backend>,
        path: &Path,
    ) -> Result<(Opener<'s>, DataFile)> {
        let opener = Opener::enter(settings, Arc::clone(backend), path, Lock::Shared)?;
        if !opener.exists(DATA_NAME)? {
            opener.check_creatable()?;
            return Err(opener.empty());
        }
        let lock = opener.lock_data(DATA_NAME, OpenOptions::default(), Lock::Shared)?;
        let sync = opener.sync_method_of_reader();
        Ok((opener, DataFile { lock, sync, created: false }))
    }

    /// Opens the folder, which must exist, and locks it.
    pub(super) fn enter(
        settings: &'s Settings,
        backend: Arc<dyn Backend>,
        path: &Path,
        lock: Lock,
    ) -> Result<Opener<'s>> {
        let location = Location { backend: &backend, path };
        if !location.exists(path)? {
            return Err(Error::NotFound { path: path.to_path_buf() });
        }
        let folder = io::open_folder(&backend, path).map_err(|error| location.not_entered("opening", error))?;
        let gate = Arc::new(Gate::default());
        let mut opener = Opener { settings, backend, folder: gate.before(folder), gate, open_here: None };
        opener.lock_folder(lock)?;
        opener.open_here = Some(OpenHere::new(path));
        Ok(opener)
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the name of the data file.
    pub(super) fn data_name(&self) -> &'static str {
        if self.settings.is_restoring { RESTORED_DATA_NAME } else { DATA_NAME }
    }

    pub(super) fn io(&self, action: &'static str, name: &str, error: std::io::Error) -> Error {
        let path = if name.is_empty() { self.path().to_path_buf() } else { self.path().join(name) };
        Error::io(action, &path, error)
    }

    pub(super) fn exists(&self, name: &str) -> Result<bool> {
        self.folder.exists(name).map_err(|error| {
            let location = Location { backend: &self.backend, path: self.path() };
            location.not_entered("looking for", error)
        })
    }

    /// Locks the folder. If the file system cannot lock folders, the lock of the data file has to suffice.
    fn lock_folder(&self, lock: Lock) -> Result<()> {
        match self.folder.try_lock(lock) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.locked(self.folder.try_lock(Lock::Shared).unwrap_or(false))),
            Err(error) => {
                log::debug!("locking {}: {error}", self.path().display());
                Ok(())
            }
        }
    }

    pub(super) fn sync_folder(&self) -> Result<()> {
        self.folder.sync().map_err(|error| self.io("syncing", "", error))
    }
}

/// The path of a database, for the steps that precede opening its folder.
struct Location<'p> {
    backend: &'p Arc<dyn Backend>,
    path: &'p Path,
}

impl Location<'_> {
    /// Creates the folder and its missing ancestors one by one, and makes each name durable before creating the next
    /// folder. An earlier creation may have been killed before it made the lowest existing ancestor's name durable, so
    /// that name is synced too.
    fn make_folder(&self) -> Result<()> {
        let mut missing = Vec::new();
        for folder in self.path.ancestors().filter(|folder| !folder.as_os_str().is_empty()) {
            if self.exists(folder)? {
                match folder.parent().map(|parent| (parent, self.backend.sync_dir(parent))) {
                    // The folder belongs to another user.
                    Some((_, Err(error))) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
                    Some((parent, Err(error))) => return Err(Error::io("syncing", parent, error)),
                    _ => {}
                }
                break;
            }
            missing.push(folder);
        }
        for folder in missing.into_iter().rev() {
            self.backend.create_dir_all(folder).map_err(|error| Error::io("creating", folder, error))?;
            if let Some(parent) = folder.parent() {
                self.backend.sync_dir(parent).map_err(|error| Error::io("syncing", parent, error))?;
            }
        }
        Ok(())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.backend.exists(path).map_err(|error| self.not_entered("looking for", error))
    }

    fn not_entered(&self, action: &'static str, error: std::io::Error) -> Error {
        if error.kind() == std::io::ErrorKind::NotADirectory {
            Error::NotADatabase { path: self.path.to_path_buf(), why: "it is a file; a database is a folder".into() }
        } else {
            Error::io(action, self.path, error)
        }
    }
}

impl Opener<'_> {
    /// Checks that a folder without a data file contains no foreign files, so that a database may be created in it.
    pub(super) fn check_creatable(&self) -> Result<()> {
        let names = self.folder.list().map_err(|error| self.io("listing", "", error))?;
        if names.iter().any(|name| name == LOG_NAME) {
            let path = self.path().join(DATA_NAME);
            return Err(Error::corrupted(&path, "the data file", "it is missing, but the log exists"));
        }
        // A creation that was killed while it measured sync methods leaves its test file behind.
        let is_probe = |name: &str| name.starts_with("probe-") && name.ends_with(".tmp");
        let ours = [NEW_DATA_NAME, LOCK_NAME, PROBE_NAME, RESIDENT_NAME];
        let is_ours = |name: &str| ours.contains(&name) || COUNTS_NAMES.contains(&name) || is_probe(name);
        if let Some(other) = names.iter().find(|name| !is_ours(name)) {
            return Err(self.holds_other(other));
        }
        if !self.settings.create {
            return Err(self.empty());
        }
        Ok(())
    }

    fn holds_other(&self, name: &str) -> Error {
        let why = format!("the folder holds other things ({name:?}) and no data file");
        Error::NotADatabase { path: self.path().to_path_buf(), why }
    }

    pub(super) fn empty(&self) -> Error {
        Error::NotADatabase { path: self.path().to_path_buf(), why: "the folder is empty".into() }
    }

    /// Returns the error for a lock that a different handle holds. If a writer holds it, the lock file contains its
    /// process id. Readers write no id.
    fn locked(&self, by_readers: bool) -> Error {
        let text = || {
            let file = self.folder.open(LOCK_NAME, OpenOptions::default()).ok()?;
            let mut text = vec![0; file.len().ok()?.min(20) as usize];
            file.read_at(&mut text, 0).ok()?;
            String::from_utf8(text).ok()
        };
        let path = self.path().to_path_buf();
        let pid = if by_readers { None } else { text().and_then(|text| text.trim().parse().ok()) }.unwrap_or(0);
        let by_this_process = (pid == 0 || pid == self.backend.process_id()) && OpenHere::has(&path);
        Error::Locked { path, pid, by_this_process }
    }

    /// Writes the process id, for people to read. A failure is ignored, because a full disk must not keep the database
    /// from opening.
    fn write_process_id(&self) {
        let text = format!("{}\n", self.backend.process_id());
        let is_number = |text: &[u8]| text.len() <= 20 && text.trim_ascii_end().iter().all(u8::is_ascii_digit);
        let written = advice::open_to_write(&self.folder, LOCK_NAME, is_number).and_then(|file| {
            file.set_len(0)?;
            file.write_at(text.as_bytes(), 0, Persist::Later)
        });
        if let Err(error) = written {
            log::warn!("writing {} in {}: {error}", LOCK_NAME, self.path().display());
        }
    }

    /// Returns the locks to be held while the database is open.
    pub(super) fn locks(&self, data: FileRef) -> Locks {
        Locks {
            folder: Arc::clone(&self.folder),
            data,
            gate: Arc::clone(&self.gate),
            _open_here: self.open_here.clone(),
        }
    }

    /// Opens the data file and locks it. Renaming or removing the file does not release this lock.
    pub(super) fn lock_data(&self, name: &str, options: OpenOptions, lock: Lock) -> Result<FileRef> {
        let file = self.folder.open(name, options).map_err(|error| self.io("opening", name, error))?;
        match file.try_lock(lock) {
            Ok(true) => {}
            Ok(false) => return Err(self.locked(file.try_lock(Lock::Shared).unwrap_or(false))),
            // A read-only medium may not support locks, and does not need them.
            Err(error) if lock == Lock::Shared => log::debug!("locking {}: {error}", file.path().display()),
            Err(error) => return Err(self.io("locking", name, error)),
        }
        // By the time we hold the lock, the name may belong to a different file.
        if !self.folder.is_same(name, &file).map_err(|error| self.io("looking at", name, error))? {
            return Err(self.locked(false));
        }
        Ok(file)
    }

    /// Measures the sync methods for a new database and returns the method chosen.
    fn sync_method_of_new(&self) -> Result<SyncMethod> {
        if self.needs_no_probe() {
            return Ok(SyncMethod::DurableWrite);
        }
        let probe = Probe::run_once(self.backend.as_ref(), self.path(), PROBE_DURATION);
        probe.map(|probe| self.adopt(&probe)).map_err(|error| self.io("measuring how to sync in", "", error))
    }

    /// Returns the sync method that was chosen by a measurement in the database's folder. The measurement is made when
    /// the database is created, and repeated if the device, the file system or its mount options have changed.
    fn sync_method(&self) -> SyncMethod {
        if self.needs_no_probe() {
            return SyncMethod::DurableWrite;
        }
        let path = self.path();
        if let Some(probe) = self.read_probe()
            && probe.is_current(self.backend.as_ref(), path).unwrap_or(false)
        {
            return probe.chosen;
        }
        match Probe::run_once(self.backend.as_ref(), path, PROBE_DURATION) {
            Ok(probe) => self.adopt(&probe),
            // The disk may be full. This method works everywhere, and the next opening will repeat the measurement.
            Err(error) => {
                let method = SyncMethod::DataSync;
                log::warn!(
                    "measuring how to sync in {}: {error}; using {method} until the next opening",
                    path.display()
                );
                method
            }
        }
    }

    /// Returns the sync method that was chosen when the database was last opened for writing. It is reported in
    /// statistics only: a reader never syncs.
    fn sync_method_of_reader(&self) -> SyncMethod {
        if self.needs_no_probe() {
            return SyncMethod::DurableWrite;
        }
        self.read_probe().map_or(SyncMethod::DataSync, |probe| probe.chosen)
    }

    fn needs_no_probe(&self) -> bool {
        self.settings.backend.is_some() || self.settings.in_memory
    }

    /// Records a measurement in the folder, and returns the method that it chose.
    fn adopt(&self, probe: &Probe) -> SyncMethod {
        let path = self.path();
        if probe.tmpfs {
            log::warn!("{} is in memory ({}): nothing in it survives a power cut", path.display(), probe.file_system);
        }
        log::info!("{}: durable by {} on {}", path.display(), probe.chosen, probe.file_system);
        let text = probe.encode();
        let written = advice::open_to_write(&self.folder, PROBE_NAME, Probe::is_text).and_then(|file| {
            file.set_len(0)?;
            file.write_at(text.as_bytes(), 0, Persist::Later)
        });
        // If this file is not written, the next opening repeats the measurement.
        if let Err(error) = written {
            log::warn!("writing {PROBE_NAME} in {}: {error}", path.display());
        }
        probe.chosen
    }

    fn read_probe(&self) -> Option<Probe> {
        let file = self.folder.open(PROBE_NAME, OpenOptions::default()).ok()?;
        let mut text = vec![0; usize::try_from(file.len().ok()?).ok()?.min(1 << 16)];
        file.read_at(&mut text, 0).ok()?;
        Probe::decode(std::str::from_utf8(&text).ok()?).ok()
    }

    /// Begins a data file under a temporary name, or continues one that an interrupted creation left behind. The file
    /// keeps that name until it is complete, so an interrupted creation leaves nothing that looks like a database.
    /// Returns the locked file, or `None` if another process has created the database since the caller looked.
    fn begin_data(&self) -> Result<Option<FileRef>> {
        self.check_creatable()?;
        let options = OpenOptions { write: true, create: true, direct: true, ..OpenOptions::default() };
        let file = self.lock_data(NEW_DATA_NAME, options, Lock::Exclusive)?;
        if !superblocks::is_begun(&file).map_err(|error| self.io("reading", NEW_DATA_NAME, error))? {
            return Err(self.holds_other(NEW_DATA_NAME));
        }
        if self.exists(DATA_NAME)? {
            // Either the other process has already renamed this file, or it is a redundant one that was begun here.
            let _ = self.folder.remove(NEW_DATA_NAME);
            return Ok(None);
        }
        Ok(Some(file))
    }

    fn finish_data(&self, file: &FileRef, sync: SyncMethod) -> Result<()> {
        self.write_first(file, NEW_DATA_NAME, self.settings.segment_bytes, sync)?;
        self.folder.rename(NEW_DATA_NAME, DATA_NAME).map_err(|error| self.io("renaming", NEW_DATA_NAME, error))?;
        self.sync_folder()
    }

    /// Empties the data file and writes its first superblock.
    fn write_first(&self, file: &FileRef, name: &str, segment_bytes: u64, sync: SyncMethod) -> Result<Superblock> {
        file.set_len(0).and_then(|()| file.allocate(0, segment_bytes)).map_err(|error| {
            if error.kind() == std::io::ErrorKind::StorageFull {
                Error::disk_full(self.path().to_path_buf(), segment_bytes)
            } else {
                self.io("allocating", name, error)
            }
        })?;
        let superblock = Superblock {
            sequence: SuperblockNumber::FIRST,
            database: DatabaseId(self.backend.random()),
            segment_bytes,
            checkpoint: CheckpointNumber::NONE,
            timestamp: Timestamp(0),
            epoch: Epoch(0),
            catalogue_bytes: 0,
            catalogue: ExtentRef::NONE,
            incarnations: Vec::new(),
            log: Vec::new(),
            is_closed: false,
            checkpoint_id: CheckpointId::default(),
            features: Features::default(),
        };
        superblocks::write_first(file, &superblock, sync)?;
        Ok(superblock)
    }

    /// Begins a data file with segments of this size under a temporary name. Returns it with its sync method and its
    /// first superblock.
    pub(super) fn begin_restoring(&self, segment_bytes: u64) -> Result<(FileRef, SyncMethod, Superblock)> {
        let options = OpenOptions { write: true, create: true, direct: true, ..OpenOptions::default() };
        let file = self.lock_data(RESTORED_DATA_NAME, options, Lock::Exclusive)?;
        // Restoring syncs a few times, so measuring would not pay. The first opening does it.
        let sync = if self.needs_no_probe() { SyncMethod::DurableWrite } else { SyncMethod::DataSync };
        let superblock = self.write_first(&file, RESTORED_DATA_NAME, segment_bytes, sync)?;
        Ok((file, sync, superblock))
    }

    /// Gives a restored data file, which is complete and durable, its name.
    pub(super) fn finish_restoring(&self) -> Result<()> {
        let renamed = self.folder.rename(RESTORED_DATA_NAME, DATA_NAME);
        renamed.map_err(|error| self.io("renaming", RESTORED_DATA_NAME, error))?;
        self.sync_folder()
    }

    /// Returns the log's folder. Creates it if it does not exist and recovery does not need it. The name of an existing
    /// folder may not be durable yet, even if another process created it. If the name were lost, everything synced in
    /// the folder would be lost too.
    pub(super) fn log_folder(&self, superblock: &Superblock) -> Result<FolderRef> {
        let exists = self.has_log(superblock)?;
        if !exists && self.settings.read_only {
            // Read the log from the database's own folder instead, which contains no log segments either.
            return Ok(Arc::clone(&self.folder));
        }
        if !exists {
            self.folder.create_folder(LOG_NAME).map_err(|error| self.io("creating", LOG_NAME, error))?;
        }
        self.open_log_folder()
    }

    /// Opens the log's folder, which must exist, with the folders of its streams.
    pub(super) fn open_log_folder(&self) -> Result<FolderRef> {
        let is_stream = |name: &str| name.parse::<u16>().is_ok_and(|stream| stream.to_string() == name);
        let folder = self.folder.folder(LOG_NAME).and_then(|folder| io::with_parts(folder, is_stream));
        folder.map_err(|error| self.io("opening", LOG_NAME, error))
    }

    /// Returns the size of new log segments: the configured size, or one that suits the file system.
    pub(super) fn log_segment_bytes(&self) -> u64 {
        self.settings.log_segment_bytes.unwrap_or_else(|| match self.folder.capacity_bytes() {
            Ok(capacity_bytes) => log_segment_bytes_on(capacity_bytes),
            Err(error) => {
                log::debug!("measuring the file system of {}: {error}", self.path().display());
                LOG_SEGMENT_BYTES_MAX
            }
        })
    }

    /// Returns `true` if the log's folder exists. If it is missing and recovery needs it, returns an error.
    pub(super) fn has_log(&self, superblock: &Superblock) -> Result<bool> {
        let exists = self.exists(LOG_NAME)?;
        if !superblock.log.is_empty() && !exists {
            let path = self.path().join(LOG_NAME);
            let reason =
                "it is missing, though the database was not closed: commits that no checkpoint holds are in it";
            return Err(Error::corrupted(&path, "the log", reason));
        }
        Ok(exists)
    }

    /// Reads the superblocks. Fails if the database has features that this version must know to open it, for reading or
    /// for writing.
    pub(super) fn read_superblocks(&self, file: &FileRef, to_write: bool) -> Result<superblocks::FoundSuperblock> {
        let found = superblocks::read(file).map_err(|error| match error {
            Error::NotADatabase { .. } if self.read_probe().is_some() => {
                let reason = "neither exists, but the other files in the folder belong to a database";
                Error::corrupted(file.path(), "both superblocks", reason)
            }
            Error::NotADatabase { why, .. } => Error::NotADatabase { path: self.path().to_path_buf(), why },
            Error::NewerFormat { found, supported, .. } => {
                Error::NewerFormat { path: self.path().to_path_buf(), found, supported }
            }
            Error::OlderFormat { found, supported, .. } => {
                Error::OlderFormat { path: self.path().to_path_buf(), found, supported }
            }
            other => other,
        })?;
        let features = found.newest.features;
        match features.unknown(to_write) {
            0 => Ok(found),
            bits => Err(Error::UnknownFeatures {
                path: self.path().to_path_buf(),
                bits,
                is_readable: features.unknown(false) == 0,
            }),
        }
    }
}

/// Returns the size of log segments on a file system of `capacity_bytes`. It is at most a 64th of the capacity, because
/// each log uses two segments at the same time and retains recent ones. Segments larger than 16 MiB bring no benefit.
fn log_segment_bytes_on(capacity_bytes: u64) -> u64 {
    let share = (capacity_bytes / 64).max(LOG_SEGMENT_BYTES_MIN);
    (1 << share.ilog2()).min(LOG_SEGMENT_BYTES_MAX)
}

/// The locks of the folder and of the data file. While held, they keep out other processes and other openings in this
/// process. Once they are dropped, nothing can be written through the handles of this opening.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(super) folder: FolderRef,
    pub(super) data: FileRef,
    gate: Arc<Gate>,
    _open_here: Option<Arc<OpenHere>>,
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.gate.shut();
        // Unlock explicitly: a forked process has copies of the handles, and would hold the locks for as long as it
        // lives.
        if let Err(error) = self.data.unlock().and_then(|()| self.folder.unlock()) {
            log::debug!("unlocking {}: {error}", self.folder.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::log_segment_bytes_on;

    /// Small file systems get small segments.
    #[test]
    fn log_segments_fit_the_file_system() {
        const MB: u64 = 1 << 20;
        let table = [(0, 1), (107, 1), (128, 2), (300, 4), (1023, 8), (1024, 16), (1 << 30, 16)];
        for (capacity, expected) in table {
            assert_eq!(log_segment_bytes_on(capacity * MB), expected * MB, "on {capacity} MiB");
        }
        assert_eq!(log_segment_bytes_on(u64::MAX), 16 * MB);
    }
}
