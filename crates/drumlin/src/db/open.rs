//! Opening, recovering, closing.
//!
//! # The order of an opening
//! 1. The folder's lock is taken.
//! 2. The newest valid superblock is read, and what it refers to; segment states follow from it.
//! 3. The log is scanned. Nothing has been written so far: damage found up to here leaves everything as it was.
//! 4. Extents that the log names (large values) are marked in use.
//! 5. The incarnation is raised, durably, with the timestamp that it begins at.
//! 6. The log above the checkpoint is applied.
//! 7. The log begins to append, and background threads start.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sync::{Mutex, RwLock};

use super::config::Config;
use super::core::{Core, Named, Upkeep};
use super::{Database, Handle, Opening};
use crate::error::{Error, Result};
use crate::format::catalogue::Orphan;
use crate::format::record::{self, Operation};
use crate::format::superblock::{INCARNATION_COUNT_MAX, Superblock};
use crate::format::{Epoch, ExtentRef, Incarnation, KeyspaceId, PageId, Timestamp};
use crate::io::{self, Backend, FileRef, FolderRef, OpenOptions, Persist, Probe, Process, SyncMethod};
use crate::memory::{Budget, Use};
use crate::pool::{Nodes, Pool};
use crate::seglog::{Hooks, Known, Log, LogOptions, Scan};
use crate::space::checkpoint::{Base, Loaded};
use crate::space::segments::Segments;
use crate::space::superblocks::{self, Superblocks};
use crate::space::{Space, Word};
use crate::txn::engine::{Engine, Row};
use crate::txn::values;
use crate::txn::values::LargeValue;
use crate::txn::versions::Versions;
use crate::txn::write_set::Change;

const DATA_NAME: &str = "data";
const NEW_DATA_NAME: &str = "data.new";
const LOG_NAME: &str = "log";
const LOCK_NAME: &str = "lock";
const PROBE_NAME: &str = "probe";

/// Long enough for a hundred syncs of each method on a slow drive; who creates a database waits for it.
const PROBE_DURATION: std::time::Duration = std::time::Duration::from_millis(300);

impl Database {
    pub(crate) fn open_with(config: &Config, path: &Path) -> Result<Database> {
        let backend = config.choose_backend(path)?;
        let path = if config.in_memory { PathBuf::from("/memory") } else { path.to_path_buf() };
        let path = backend.absolute(&path).map_err(|error| Error::io("finding", &path, error))?;
        Process::watch().map_err(|error| Error::io("watching for forks of", &path, error))?;
        let began = backend.now();
        let core = Opener::open(config, backend, &path)?;
        let duration = core.now() - began;
        let Some(opening) = core.opening.get().cloned() else { unreachable!("set by the opener") };
        let core = Core { opening: OnceLock::from(Opening { duration, ..opening }), ..core };
        let core = Arc::new(core);
        match core.begin() {
            Ok(()) => Ok(Database { handle: Arc::new(Handle::new(core)) }),
            Err(error) => {
                core.stop();
                Err(error)
            }
        }
    }
}

impl Config {
    /// The backend that files at `path` are served by.
    pub(super) fn choose_backend(&self, path: &Path) -> Result<Arc<dyn Backend>> {
        match (&self.backend, self.in_memory) {
            (Some(backend), _) => Ok(Arc::clone(backend)),
            (None, true) => Ok(io::in_memory()),
            (None, false) => io::backend(self.io_backend).map_err(|error| Error::io("setting up I/O for", path, error)),
        }
    }
}

/// An opening, in a folder that is held: from here on no path matters any more.
struct Opener<'c> {
    config: &'c Config,
    backend: Arc<dyn Backend>,
    folder: FolderRef,
}

/// What keeps others out, until it is dropped: the locks of the folder and of the data file.
#[derive(Debug)]
pub(crate) struct Locks {
    folder: FolderRef,
    data: FileRef,
}

impl Drop for Locks {
    fn drop(&mut self) {
        // A fork has copies of the handles, and would keep the locks with them as long as it lives.
        if let Err(error) = self.data.unlock().and_then(|()| self.folder.unlock()) {
            log::debug!("unlocking {}: {error}", self.folder.path().display());
        }
    }
}

impl<'c> Opener<'c> {
    fn open(config: &'c Config, backend: Arc<dyn Backend>, path: &Path) -> Result<Core> {
        let place = Location { backend: &backend, path };
        let folder_is_there = place.exists(path)?;
        if !folder_is_there && !config.create {
            return Err(Error::NotADatabase { path: path.to_path_buf(), why: "there is nothing at this path".into() });
        }
        if !folder_is_there {
            place.make_folder()?;
        }
        let folder = io::open_folder(&backend, path).map_err(|error| place.not_entered("opening", error))?;
        let opener = Opener { config, backend, folder };
        if !opener.lock_folder() {
            return Err(opener.locked());
        }
        // Before anything is put into a folder of other things.
        if folder_is_there && !opener.exists(DATA_NAME)? {
            match opener.check_creatable() {
                // An earlier creation may have been killed before the folder's own name was durable.
                Ok(()) => Location { backend: &opener.backend, path }.make_folder()?,
                // Another process may have made it since it was looked for.
                Err(_) if opener.exists(DATA_NAME)? => {}
                Err(other) => return Err(other),
            }
        }
        // Only now is it certain: another process may have made the database meanwhile.
        let begun = if opener.exists(DATA_NAME)? { None } else { opener.begin_data()? };
        if let Some(data) = begun {
            opener.write_process_id();
            let sync = opener.sync_method(true)?;
            opener.finish_data(&data, sync)?;
            return opener.recover(data, sync, true);
        }
        let data = opener.lock_data(DATA_NAME, OpenOptions::default())?;
        opener.write_process_id();
        let sync = opener.sync_method(false)?;
        if !opener.exists(LOG_NAME)? {
            // A creation was killed before it had made the data file's name durable: the log's must not outlast it.
            opener.sync_folder()?;
        }
        opener.recover(data, sync, false)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn io(&self, action: &'static str, name: &str, error: std::io::Error) -> Error {
        let path = if name.is_empty() { self.path().to_path_buf() } else { self.path().join(name) };
        Error::io(action, &path, error)
    }

    fn exists(&self, name: &str) -> Result<bool> {
        self.folder.exists(name).map_err(|error| {
            let place = Location { backend: &self.backend, path: self.path() };
            place.not_entered("looking for", error)
        })
    }

    /// Where the file system has no locks of folders, that of the data file has to do.
    fn lock_folder(&self) -> bool {
        self.folder.try_lock().unwrap_or_else(|error| {
            log::debug!("locking {}: {error}", self.path().display());
            true
        })
    }

    fn sync_folder(&self) -> Result<()> {
        self.folder.sync().map_err(|error| self.io("syncing", "", error))
    }
}

/// Where a database is, or is to be: what has to be done by paths, before the folder is held.
struct Location<'p> {
    backend: &'p Arc<dyn Backend>,
    path: &'p Path,
}

impl Location<'_> {
    /// Makes the folder and those above it that are missing, one by one, each name durable before the next is made. The
    /// lowest that is there may have been made by a creation that was killed before its name was durable.
    fn make_folder(&self) -> Result<()> {
        let mut missing = Vec::new();
        for folder in self.path.ancestors().filter(|folder| !folder.as_os_str().is_empty()) {
            if self.exists(folder)? {
                match folder.parent().map(|parent| (parent, self.backend.sync_dir(parent))) {
                    // Then it was made by somebody else.
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
    /// A folder without data is made a database only if nothing else is in it.
    fn check_creatable(&self) -> Result<()> {
        let names = self.folder.list().map_err(|error| self.io("listing", "", error))?;
        if names.iter().any(|name| name == LOG_NAME) {
            let path = self.path().join(DATA_NAME);
            return Err(Error::damaged(&path, "the data file", "it is missing, and the log is there"));
        }
        let not_a_database = |why| Error::NotADatabase { path: self.path().to_path_buf(), why };
        // A creation that was killed while it measured leaves the file that it measured with.
        let is_probe = |name: &str| name.starts_with("probe-") && name.ends_with(".tmp");
        let ours = [NEW_DATA_NAME, LOCK_NAME, PROBE_NAME];
        if let Some(other) = names.iter().find(|name| !ours.contains(&name.as_str()) && !is_probe(name)) {
            return Err(not_a_database(format!("the folder holds other things ({other:?}) and no data file")));
        }
        if !self.config.create {
            return Err(not_a_database("the folder is empty".into()));
        }
        Ok(())
    }

    fn locked(&self) -> Error {
        let text = || {
            let file = self.folder.open(LOCK_NAME, OpenOptions::default()).ok()?;
            let mut text = vec![0; file.len().ok()?.min(20) as usize];
            file.read_at(&mut text, 0).ok()?;
            String::from_utf8(text).ok()
        };
        let pid = text().and_then(|text| text.trim().parse().ok());
        Error::Locked { path: self.path().to_path_buf(), pid: pid.unwrap_or(0) }
    }

    /// For people only: a full disk does not keep the database from opening.
    fn write_process_id(&self) {
        let text = format!("{}\n", self.backend.process_id());
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let written = self.folder.open(LOCK_NAME, options).and_then(|file| {
            file.set_len(0)?;
            file.write_at(text.as_bytes(), 0, Persist::Later)
        });
        if let Err(error) = written {
            log::warn!("writing {} in {}: {error}", LOCK_NAME, self.path().display());
        }
    }

    /// Opens the data file and takes its lock, which nothing that happens to names takes away.
    fn lock_data(&self, name: &str, options: OpenOptions) -> Result<FileRef> {
        let options = OpenOptions { write: true, direct: true, ..options };
        let file = self.folder.open(name, options).map_err(|error| self.io("opening", name, error))?;
        if !file.try_lock().map_err(|error| self.io("locking", name, error))? {
            return Err(self.locked());
        }
        // Another file may have been given the name meanwhile.
        if !self.folder.is_same(name, &file).map_err(|error| self.io("looking at", name, error))? {
            return Err(self.locked());
        }
        Ok(file)
    }

    /// The sync method that was measured to be the fastest where the database lies: at its creation, and again once the
    /// device, the file system or its mount options have changed.
    fn sync_method(&self, created: bool) -> Result<SyncMethod> {
        if self.config.backend.is_some() || self.config.in_memory {
            return Ok(SyncMethod::DurableWrite);
        }
        let path = self.path();
        if !created
            && let Some(probe) = self.read_probe()
            && probe.is_current(self.backend.as_ref(), path).unwrap_or(false)
        {
            return Ok(probe.chosen);
        }
        let probe = match Probe::run(self.backend.as_ref(), path, PROBE_DURATION) {
            Ok(probe) => probe,
            Err(error) if created => return Err(self.io("measuring how to sync in", "", error)),
            // The disk may be full. This works everywhere; the next opening measures again.
            Err(error) => {
                let method = SyncMethod::DataSync;
                log::warn!("measuring how to sync in {}: {error}; until then by {method}", path.display());
                return Ok(method);
            }
        };
        if probe.tmpfs {
            log::warn!("{} lies in memory ({}): nothing in it survives a power cut", path.display(), probe.file_system);
        }
        log::info!("{}: durable by {} on {}", path.display(), probe.chosen, probe.file_system);
        let text = probe.encode();
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let written = self.folder.open(PROBE_NAME, options).and_then(|file| {
            file.set_len(0)?;
            file.write_at(text.as_bytes(), 0, Persist::Later)
        });
        // Without it the next opening measures again.
        if let Err(error) = written {
            log::warn!("writing {PROBE_NAME} in {}: {error}", path.display());
        }
        Ok(probe.chosen)
    }

    fn read_probe(&self) -> Option<Probe> {
        let file = self.folder.open(PROBE_NAME, OpenOptions::default()).ok()?;
        let mut text = vec![0; usize::try_from(file.len().ok()?).ok()?.min(1 << 16)];
        file.read_at(&mut text, 0).ok()?;
        Probe::decode(std::str::from_utf8(&text).ok()?).ok()
    }

    /// Begins a data file, under another name until it is whole: a creation that was interrupted leaves nothing that looks like
    /// a database. What such a one left is gone on with. Returns it locked; `None` if another process has made the database
    /// meanwhile.
    fn begin_data(&self) -> Result<Option<FileRef>> {
        self.check_creatable()?;
        let file = self.lock_data(NEW_DATA_NAME, OpenOptions { create: true, ..OpenOptions::default() })?;
        if self.exists(DATA_NAME)? {
            // What was locked is the other's data file, or one that was made here for nothing.
            let _ = self.folder.remove(NEW_DATA_NAME);
            return Ok(None);
        }
        Ok(Some(file))
    }

    fn finish_data(&self, file: &FileRef, sync: SyncMethod) -> Result<()> {
        let segment_bytes = self.config.segment_bytes;
        file.set_len(0).and_then(|()| file.allocate(0, segment_bytes)).map_err(|error| {
            if error.kind() == std::io::ErrorKind::StorageFull {
                Error::DiskFull { path: self.path().to_path_buf(), needed_bytes: segment_bytes }
            } else {
                self.io("allocating", NEW_DATA_NAME, error)
            }
        })?;
        let superblock = Superblock {
            sequence: 1,
            database: self.backend.random(),
            segment_bytes,
            checkpoint: 0,
            timestamp: Timestamp(0),
            epoch: Epoch(0),
            catalogue_bytes: 0,
            catalogue: ExtentRef::NONE,
            incarnations: Vec::new(),
            log: Vec::new(),
        };
        superblocks::write_first(file, &superblock, sync)?;
        self.folder.rename(NEW_DATA_NAME, DATA_NAME).map_err(|error| self.io("renaming", NEW_DATA_NAME, error))?;
        self.sync_folder()
    }

    /// The log's folder, made where the log is not needed and there is none: durably, since what is synced in it is lost if
    /// its own name is. A folder that is there may have been made by a process that ended before the sync.
    fn log_folder(&self, superblock: &Superblock) -> Result<FolderRef> {
        if !superblock.log.is_empty() && !self.exists(LOG_NAME)? {
            let path = self.path().join(LOG_NAME);
            let flaw = "it is missing, though the database was not closed: commits that no checkpoint holds are in it";
            return Err(Error::damaged(&path, "the log", flaw));
        }
        self.folder.create_folder(LOG_NAME).map_err(|error| self.io("creating", LOG_NAME, error))?;
        self.sync_folder()?;
        self.folder.folder(LOG_NAME).map_err(|error| self.io("opening", LOG_NAME, error))
    }

    fn recover(&self, lock: FileRef, sync: SyncMethod, created: bool) -> Result<Core> {
        let backend = &self.backend;
        let data_path = &self.path().join(DATA_NAME);
        let options = OpenOptions { write: true, direct: true, ..OpenOptions::default() };
        let file = self.folder.open(DATA_NAME, options).map_err(|error| self.io("opening", DATA_NAME, error))?;
        let superblocks::Found { newest: superblock, flaw } =
            superblocks::read(&file).map_err(|error| match error {
                Error::NotADatabase { why, .. } => Error::NotADatabase { path: self.path().to_path_buf(), why },
                Error::NewerFormat { found, supported, .. } => {
                    Error::NewerFormat { path: self.path().to_path_buf(), found, supported }
                }
                other => other,
            })?;
        if let Some(flaw) = &flaw {
            log::warn!("{flaw}; the other one is sound, and is gone on with");
        }
        let incarnation = Incarnation(superblock.incarnations.last().map_or(1, |(incarnation, _)| incarnation.0 + 1));
        let budget = Arc::new(Budget::new(self.config.memory_bytes, self.config.log_stream_count));
        // Entries of both epochs and those since the base image, each of 24 bytes in vectors that double.
        let entry_count_max = budget.limit_bytes(Use::Entries) as usize / 24 / 4;
        let frame_bytes_max = budget.limit_bytes(Use::Pages) as usize;
        let length = file.len().map_err(|error| Error::io("measuring", data_path, error))?;
        let segment_count = u32::try_from(length / superblock.segment_bytes)
            .unwrap_or(u32::MAX)
            .min(Segments::count_max(superblock.segment_bytes));
        let space = Arc::new(Space::new(
            data_path,
            Arc::clone(&file),
            superblock.database,
            superblock.segment_bytes,
            segment_count,
            Epoch::first_of(incarnation),
            Arc::clone(&budget),
        ));
        let superblocks = Arc::new(Superblocks::new(Arc::clone(&file), sync, superblock.clone()));
        let base = Base::new(superblock, Arc::clone(&superblocks), entry_count_max);
        let Loaded { base, catalogue } = base.load(&space, self.config.memory_bytes)?;

        let log_folder = self.log_folder(&base.superblock)?;
        let log_options = LogOptions {
            streams: self.config.log_stream_count,
            segment_bytes: self.config.log_segment_bytes,
            buffer_bytes: budget.limit_bytes(Use::Log) as usize,
            body_bytes: budget.transaction_bytes_max() as usize,
            sync,
            database: base.superblock.database,
        };
        let known = Known {
            incarnations: &base.superblock.incarnations.clone(),
            checkpoint: base.superblock.checkpoint,
            covered: base.superblock.timestamp,
            stretches: &base.superblock.log.clone(),
        };
        let scan = if created { None } else { Some(Scan::open(backend, &log_folder, &log_options, &known)?) };
        let last = scan.as_ref().map_or(Timestamp(0), Scan::last);

        let nodes = Nodes {
            verify: |page, is_leaf| crate::tree::check_node(page, is_leaf).map_err(|flaw| flaw.to_string()),
            key_order: crate::tree::key_order,
        };
        let pool = Arc::new(Pool::new(Arc::clone(&space), Arc::clone(backend), &budget, nodes));
        pool.reserve_frames(self.config.page_bytes)?;
        let versions = Arc::new(Versions::new(&budget));
        let upkeep = Arc::new(Upkeep::default());
        let asked = Arc::clone(&upkeep);
        let engine = Engine::new(
            Arc::clone(backend),
            Arc::clone(&space),
            pool,
            versions,
            last,
            // Identities of earlier openings are below: their extents may still lie about.
            (u64::from(incarnation.0) << 40).max(catalogue.next_value),
            Arc::clone(&budget),
            Arc::new(move || asked.make_space()),
        );
        let core = Core {
            path: self.path().to_path_buf(),
            engine: Arc::new(engine),
            keyspaces: RwLock::default(),
            next_keyspace: AtomicU32::new(catalogue.next_keyspace),
            defining: Mutex::default(),
            cleaning: Mutex::default(),
            base: Mutex::new(base),
            upkeep,
            threads: Mutex::default(),
            opening: OnceLock::new(),
            locks: Locks { folder: Arc::clone(&self.folder), data: lock },
            sync,
            frame_bytes_max,
            page_bytes: self.config.page_bytes,
            checkpoint_log_bytes: self.config.checkpoint_log_bytes,
            entry_count_max,
            passed_over: flaw,
            checkpoints: AtomicU64::new(0),
            closed: Mutex::default(),
        };
        for entry in &catalogue.keyspaces {
            let pages = space.page_space(entry.id).expect("made while loading");
            core.keyspaces.write().insert(entry.name.clone(), Arc::new(core.name(&entry.name, pages)));
        }
        core.fit_frames();

        // What a process that was killed had written, its newest superblock among it, may be in caches still; the next
        // superblock takes the place of the one that would be needed then.
        file.sync_data().map_err(|error| Error::io("syncing", data_path, error))?;
        if let Some(scan) = &scan {
            let replay = Replay { core: &core, scan };
            replay.mark_values()?;
            superblocks.write_again().map_err(|error| Error::io("writing", data_path, error))?;
            core.base.lock().raise_incarnation(&space, incarnation, last.next())?;
            core.free_orphans(&catalogue.orphans)?;
            replay.apply()?;
        } else {
            core.base.lock().raise_incarnation(&space, incarnation, last.next())?;
        }
        let hooks = Hooks {
            before_write: {
                let space = Arc::clone(&space);
                Box::new(move || space.sync().map_err(|error| std::io::Error::other(error.to_string())))
            },
            on_durable: {
                let clock = Arc::clone(&core.engine.clock);
                Box::new(move |durable| clock.show_durable(durable))
            },
            list: Box::new(move |stretches| superblocks.write(|next| next.log = stretches.to_vec())),
        };
        let (recovered_records, recovered_bytes) =
            scan.as_ref().map_or((0, 0), |scan| (scan.record_count(), scan.record_bytes()));
        let checkpoint = core.base.lock().superblock.checkpoint;
        let log = match scan {
            Some(scan) => scan.start(incarnation, checkpoint, hooks)?,
            None => Log::create(backend, &log_folder, &log_options, incarnation, hooks)?,
        };
        core.engine.log_bytes_written.store(recovered_bytes, Ordering::Relaxed);
        core.engine.log.set(Arc::new(log)).expect("set once");
        let opening =
            Opening { created, recovered_records, recovered_bytes, duration: std::time::Duration::ZERO, last };
        core.opening.set(opening).expect("set once");
        Ok(core)
    }
}

/// Applies the log above the checkpoint.
struct Replay<'r> {
    core: &'r Core,
    scan: &'r Scan,
}

/// Operations on rows, as they come from the log, until there are enough to sort.
#[derive(Default)]
struct Batch {
    /// Bodies of records, one after the other.
    bytes: Vec<u8>,
    operations: Vec<Replayed>,
    large: Vec<Arc<LargeValue>>,
}

/// One operation on a row; keys and values lie in the batch.
struct Replayed {
    keyspace: KeyspaceId,
    key: Range<usize>,
    change: ReplayedChange,
}

enum ReplayedChange {
    Put(Range<usize>),
    /// An index of the batch's large values.
    PutLarge(usize),
    Remove,
}

/// Bytes of operations that are sorted together: enough that neighbours meet in their leaf.
fn batch_bytes(core: &Core) -> usize {
    (core.engine.budget.transaction_bytes_max() as usize).max(64 << 10)
}

impl Replay<'_> {
    /// Takes the extents that records name out of the free ones, before anything is written.
    fn mark_values(&self) -> Result<()> {
        for record in self.scan.records()? {
            let record = record?;
            for operation in record::decode(&record.body) {
                if let Some((_, Operation::PutLarge { extents, .. })) = operation {
                    for extent in extents {
                        if !self.core.engine.space.segments.restore_named(extent) {
                            return Err(self.malformed(record.timestamp));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn malformed(&self, timestamp: Timestamp) -> Error {
        let what = format!("log record of timestamp {timestamp}");
        Error::damaged(&self.core.path.join(LOG_NAME), what, "it verifies but makes no sense")
    }

    fn apply(&self) -> Result<()> {
        let mut batch = Batch::default();
        let mut newest = Timestamp(0);
        for record in self.scan.records()? {
            let record = record?;
            let base = batch.bytes.len();
            batch.bytes.extend_from_slice(&record.body);
            let place = |part: &[u8]| {
                let start = base + (part.as_ptr() as usize - record.body.as_ptr() as usize);
                start..start + part.len()
            };
            let mut defines = false;
            for operation in record::decode(&record.body) {
                let operation = operation.filter(|_| !defines);
                let (keyspace, operation) = operation.ok_or_else(|| self.malformed(record.timestamp))?;
                // What defines a keyspace is alone in its record.
                defines = matches!(operation, Operation::Create { .. } | Operation::Drop);
                let (key, change) = match operation {
                    Operation::Create { page_bytes, name } => {
                        self.apply_batch(&mut batch, newest)?;
                        self.create(keyspace, page_bytes, name, record.timestamp)?;
                        continue;
                    }
                    Operation::Drop => {
                        self.apply_batch(&mut batch, newest)?;
                        let named = self.named(keyspace).ok_or_else(|| self.malformed(record.timestamp))?;
                        let guard = self.core.engine.space.enter_alone();
                        self.core.uproot(&named, &guard)?;
                        continue;
                    }
                    Operation::Put { key, value } => (key, ReplayedChange::Put(place(value))),
                    Operation::PutLarge { key, length, identity, extents } => {
                        let places = extents.into_iter().map(|extent| extent.place).collect();
                        self.core.engine.next_value.fetch_max(identity.saturating_add(1), Ordering::Relaxed);
                        batch.large.push(Arc::new(LargeValue::of_record(length, identity, places)));
                        (key, ReplayedChange::PutLarge(batch.large.len() - 1))
                    }
                    Operation::Remove { key } => (key, ReplayedChange::Remove),
                };
                batch.operations.push(Replayed { keyspace, key: place(key), change });
            }
            newest = record.timestamp;
            if batch.bytes.len() + batch.operations.len() * size_of::<Replayed>() >= batch_bytes(self.core) {
                self.apply_batch(&mut batch, newest)?;
            }
        }
        self.apply_batch(&mut batch, newest)
    }

    fn named(&self, keyspace: KeyspaceId) -> Option<Arc<Named>> {
        self.core.keyspaces.read().values().find(|named| named.tree.pages.id == keyspace).cloned()
    }

    fn create(&self, id: KeyspaceId, page_bytes: u32, name: &str, timestamp: Timestamp) -> Result<()> {
        super::config::check_page_bytes(page_bytes as usize).map_err(|_| self.malformed(timestamp))?;
        let engine = &self.core.engine;
        match engine.space.secure(3) {
            // Space is what it was when the commit was made.
            Ok(()) | Err(Error::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        let frame = engine.pool.take_frame(page_bytes as usize)?;
        let guard = engine.space.enter();
        self.core.plant(id, name, page_bytes as usize, frame, &guard);
        Ok(())
    }

    /// Applies the newest operation of each row, in the order of keys, some leaves at a time, and empties the batch.
    fn apply_batch(&self, batch: &mut Batch, newest: Timestamp) -> Result<()> {
        /// Few enough that their leaves can be held together.
        const ROWS_MAX: usize = 512;
        let engine = &self.core.engine;
        let Batch { bytes, mut operations, large } = std::mem::take(batch);
        let key = |operation: &Replayed| (operation.keyspace, &bytes[operation.key.clone()]);
        // Stable: of operations on one row the last stays last.
        operations.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut rest = &operations[..];
        while let Some(first) = rest.first() {
            let keyspace = first.keyspace;
            // Creating and dropping are barriers, so a keyspace whose rows are in the batch is there.
            let named = self.named(keyspace).ok_or_else(|| self.malformed(newest))?;
            let mut rows = Vec::with_capacity(ROWS_MAX);
            while let [operation, later @ ..] = rest
                && operation.keyspace == keyspace
                && rows.len() < ROWS_MAX
            {
                rest = later;
                let is_newest = later.first().is_none_or(|next| key(next) != key(operation));
                if !is_newest {
                    if let ReplayedChange::PutLarge(index) = operation.change {
                        // The log still names its extents, until a checkpoint covers it: another opening must find them
                        // unharmed.
                        let epoch = engine.space.enter().epoch();
                        for place in &large[index].places {
                            engine.space.segments.release(*place, epoch);
                        }
                    }
                    continue;
                }
                let change = match &operation.change {
                    ReplayedChange::Put(value) => Change::Put(&bytes[value.clone()]),
                    ReplayedChange::PutLarge(index) => Change::PutLarge(&large[*index]),
                    ReplayedChange::Remove => Change::Remove,
                };
                let tree = &named.tree;
                rows.push(Row { tree, key: &bytes[operation.key.clone()], change });
            }
            if !rows.is_empty() {
                self.replay_rows(&rows, newest)?;
            }
        }
        // Nobody looks at older versions yet.
        for (keyspace, reference) in engine.versions.sweep(Timestamp(u64::MAX)) {
            engine.free_value(keyspace, &reference);
        }
        self.core.fit_frames();
        Ok(())
    }

    /// As few rows at a time as the pool can hold the leaves of.
    fn replay_rows(&self, rows: &[Row<'_>], newest: Timestamp) -> Result<()> {
        match self.core.engine.replay(rows, newest) {
            Err(Error::TransactionTooLarge { .. }) if rows.len() > 1 => {
                let (first, second) = rows.split_at(rows.len() / 2);
                self.replay_rows(first, newest)?;
                self.replay_rows(second, newest)
            }
            other => other,
        }
    }
}

impl Core {
    /// Gives frames the memory that page tables leave.
    pub(crate) fn fit_frames(&self) {
        let tables = self.engine.space.measure_tables() as usize;
        let least = self.frame_bytes_max / 8;
        let frame_bytes = self.frame_bytes_max.saturating_sub(tables).max(least);
        self.engine.pool.frames.set_limit_bytes(frame_bytes);
        self.engine.budget.set_held_of(frame_bytes as u64);
    }

    fn free_orphans(&self, orphans: &[Orphan]) -> Result<()> {
        for orphan in orphans {
            let Some(pages) = self.engine.space.page_space(orphan.keyspace) else { continue };
            // A catalogue may be damaged behind its checksum too.
            let last = u64::from(orphan.first_page.0) + u64::from(orphan.page_count);
            let mut numbers = u64::from(orphan.first_page.0)..last;
            let is_on_disk = |page: u64| {
                u32::try_from(page).is_ok_and(|page| matches!(pages.table.load(PageId(page)), Word::Disk(_)))
            };
            if !numbers.all(is_on_disk) {
                let flaw = format!("it lists pages of keyspace {} as a value's that are none", orphan.keyspace);
                return Err(Error::damaged(&self.path, "the catalogue", flaw));
            }
            let guard = self.engine.space.enter();
            values::free(&self.engine.pool, &guard, &pages, orphan.first_page, orphan.page_count)?;
        }
        Ok(())
    }

    /// The last of an opening.
    fn begin(self: &Arc<Self>) -> Result<()> {
        self.start_threads()?;
        // Each opening that is followed by commits and no checkpoint stays in the superblock, which has room for so many.
        let opening_count = self.base.lock().superblock.incarnations.len();
        if opening_count < INCARNATION_COUNT_MAX / 2 {
            return Ok(());
        }
        match self.checkpoint() {
            // There is room for as many again; until then there may be space.
            Err(Error::DiskFull { .. }) => self.engine.check_failure(),
            done => done.map(drop),
        }
    }

    fn start_threads(self: &Arc<Self>) -> Result<()> {
        let backend = &self.engine.backend;
        let pool = Arc::clone(&self.engine.pool);
        let core = Arc::downgrade(self);
        let upkeep = Arc::clone(&self.upkeep);
        type Body = Box<dyn FnOnce() + Send>;
        // Two, so that one waits for the device while the other decompresses.
        let readers = [(); 2].map(|()| Arc::clone(&self.engine.pool));
        let [reader, other_reader] = readers;
        let bodies: [(&str, Body); 4] = [
            ("drumlin-ahead", Box::new(move || reader.run_read_ahead())),
            ("drumlin-ahead", Box::new(move || other_reader.run_read_ahead())),
            ("drumlin-evict", Box::new(move || pool.run_background())),
            ("drumlin-upkeep", Box::new(move || super::checkpoint::run_upkeep(&core, &upkeep))),
        ];
        for (name, body) in bodies {
            let thread =
                backend.spawn(name, body).map_err(|error| Error::io("starting a thread for", &self.path, error))?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Makes a checkpoint and ends everything. A second call waits for the first, and answers the same.
    pub(crate) fn close(&self) -> Result<()> {
        let mut closed = self.closed.lock();
        if let Some(result) = &*closed {
            return result.clone();
        }
        // Should closing it panic.
        *closed = Some(Err(Error::Failed { reason: "closing it did not end".into() }));
        let result = self.close_now();
        *closed = Some(result.clone());
        result
    }

    fn close_now(&self) -> Result<()> {
        let result = if self.engine.check_failure().is_ok()
            && self.engine.log().last() > self.base.lock().superblock.timestamp
        {
            self.checkpoint().map(drop)
        } else {
            Ok(())
        };
        self.stop();
        let covered = self.base.lock().superblock.timestamp;
        let closed = if self.engine.check_failure().is_ok() { self.engine.log().close(covered) } else { Ok(()) };
        self.engine.space.fail_quietly("it was closed");
        result.and(closed)
    }

    fn stop(&self) {
        self.upkeep.state.lock().stop = true;
        self.upkeep.changed.notify_all();
        self.engine.tasks.stop();
        self.engine.pool.stop_background();
        for thread in self.threads.lock().drain(..) {
            // The last handle may go on one of these threads.
            if thread.thread().id() != crate::sync::current().id() && crate::sync::join(thread).is_err() {
                log::error!("a background thread of {} panicked", self.path.display());
            }
        }
    }
}
