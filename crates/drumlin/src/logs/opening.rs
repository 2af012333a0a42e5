//! Opening and closing a folder of logs.
//!
//! 1. Lock the folder. Read the newest head, or create one.
//! 2. Read the index that the head names.
//! 3. Scan the stream from the position that the index covers. The scan fails if a listed segment or a durable record
//!    is missing. If the folder was closed, it only looks at the headers of the segments.
//! 4. Replay the records that were found.
//! 5. List this opening in the head, and start the stream.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::cache::Cache;
use super::callbacks::{self, Callbacks};
use super::head::{HEAD_NAME, HeadFile, NEW_HEAD_NAME};
use super::index::{self, INDEX_NAMES, IndexFile, IndexReader};
use super::live::LiveBytes;
use super::maintenance::{Maintenance, WrittenIndex};
use super::options::{LogsOptions, Sizes};
use super::shared::{LogCell, Shared};
use super::space;
use super::state::LogState;
use crate::error::{Error, Result};
use crate::format::logs::{LogChanges, LogsHead};
use crate::format::superblock::{INCARNATION_COUNT_MAX, LogRange};
use crate::format::{CheckpointNumber, DatabaseId, Incarnation, StreamId, StreamPosition, SuperblockNumber, Timestamp};
use crate::io::{self, Backend, FileRef, FolderRef, Lock, OpenOptions, Persist, Probe, Process, SyncMethod};
use crate::seglog::{Hooks, LogOptions as StreamOptions, RELAXED_DELAY, Scan, SuperblockLogState};
use crate::sync::{Mutex, RwLock, sleep};
use crate::task::new_workers;

const LOCK_NAME: &str = "lock";
const PROBE_NAME: &str = "probe";
const NO_LOGS: &str = "the folder has no logs";

/// The time spent measuring sync methods when a folder is created.
const PROBE_DURATION: Duration = Duration::from_millis(300);

/// The pause between two looks for the end of the callback that has dropped the last handle.
const CLOSING_PAUSE: Duration = Duration::from_millis(1);

/// An open folder of logs, which its handles share. It is closed when the last of them is dropped.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Holds the lock of the folder.
    lock: FileRef,
}

impl Opening {
    pub(super) fn new(path: &Path, options: &LogsOptions) -> Result<Opening> {
        let sizes = options.sizes()?;
        let backend = match &options.backend {
            Some(backend) => Arc::clone(backend),
            None => io::backend(options.io_backend).map_err(|error| Error::io("starting I/O for", path, error))?,
        };
        let path = &backend.absolute(path).map_err(|error| Error::io("looking for", path, error))?;
        Process::watch().map_err(|error| Error::io("watching for forks of", path, error))?;
        make_folder(&backend, path, options.create && !options.read_only)?;
        let folder = io::open_folder(&backend, path).map_err(|error| Error::io("opening", path, error))?;
        let lock = if options.read_only { lock_to_read(&backend, &folder)? } else { lock(&backend, &folder)? };
        let opened = open_locked(&backend, &folder, options, sizes);
        if opened.is_err() {
            unlock(&folder, &lock);
        }
        let shared = Arc::new(opened?);
        let thread = Mutex::new(if options.read_only { None } else { space::start(&shared)? });
        Ok(Opening { shared, thread, lock })
    }

    /// Writes what is pending and the index, and marks the folder as closed.
    pub(super) fn close(&self) -> Result<()> {
        self.shared.check_process()?;
        if callbacks::is_calling() {
            let reason = "closing logs waits for the thread that calls the callbacks of receipts, so no callback can";
            return Err(Error::Invalid(reason.to_owned()));
        }
        close(&self.shared, &self.thread, &self.lock)
    }
}

fn close(shared: &Shared, thread: &Mutex<Option<JoinHandle<()>>>, lock: &FileRef) -> Result<()> {
    if shared.is_closed.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    shared.maintenance.stop();
    if let Some(thread) = thread.lock().take()
        && crate::sync::join(thread).is_err()
    {
        log::error!("the thread of the logs panicked");
    }
    shared.workers.stop();
    let ended = shared.stream.end().and_then(|()| match shared.stream.failure() {
        Some(reason) => Err(Error::Failed { reason }),
        None if shared.is_read_only => Ok(()),
        None => shared.write_index_now(true),
    });
    unlock(&shared.folder, lock);
    ended
}

impl Drop for Opening {
    fn drop(&mut self) {
        if self.shared.check_process().is_err() {
            // Only the parent process may close it and release its locks.
            std::mem::forget((Arc::clone(&self.shared), Arc::clone(&self.lock)));
            return;
        }
        let (shared, lock) = (Arc::clone(&self.shared), Arc::clone(&self.lock));
        let thread = Mutex::new(self.thread.lock().take());
        let close = move || {
            if let Err(error) = close(&shared, &thread, &lock) {
                log::warn!("closing {}: {error}", shared.path().display());
            }
            shared
        };
        if !callbacks::is_calling() {
            drop(close());
            return;
        }
        // A callback has dropped the last handle. The thread that calls it may be one for which closing waits.
        let path = self.shared.path().display().to_string();
        let wait_and_close = move || {
            let shared = close();
            // Dropping the last reference to `Shared` drops the stream, which joins its thread. The thread in the
            // callback must not do that to itself, so wait until it has dropped its reference.
            while Arc::strong_count(&shared) > 1 {
                sleep(CLOSING_PAUSE);
            }
        };
        if let Err(error) = self.shared.backend.spawn("drumlin-logs-close", Box::new(wait_and_close)) {
            log::error!(
                "{path} stays open until the process ends, because a thread to close it can't be started: {error}"
            );
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}

/// Makes sure that the folder exists. Creates it, and its missing ancestors, durably.
fn make_folder(backend: &Arc<dyn Backend>, path: &Path, create: bool) -> Result<()> {
    let exists = |path: &Path| backend.exists(path).map_err(|error| Error::io("looking for", path, error));
    if exists(path)? {
        return Ok(());
    }
    if !create {
        return Err(Error::NotFound { path: path.to_path_buf() });
    }
    let mut missing = Vec::new();
    for folder in path.ancestors().filter(|folder| !folder.as_os_str().is_empty()) {
        if exists(folder)? {
            break;
        }
        missing.push(folder);
    }
    for folder in missing.into_iter().rev() {
        backend.create_dir_all(folder).map_err(|error| Error::io("creating", folder, error))?;
        if let Some(parent) = folder.parent() {
            backend.sync_dir(parent).map_err(|error| Error::io("syncing", parent, error))?;
        }
    }
    Ok(())
}

/// Locks the folder, and a file in it that says which process has done so: some file systems lock only files. Returns
/// the file, which holds its lock.
fn lock(backend: &Arc<dyn Backend>, folder: &FolderRef) -> Result<FileRef> {
    let failed = |action, error| Error::io(action, &folder.path().join(LOCK_NAME), error);
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let file = folder.open(LOCK_NAME, options).map_err(|error| failed("opening", error))?;
    let is_folder_locked = folder.try_lock(Lock::Exclusive).unwrap_or_else(|error| {
        log::debug!("locking {}: {error}", folder.path().display());
        true
    });
    if !is_folder_locked || !file.try_lock(Lock::Exclusive).map_err(|error| failed("locking", error))? {
        // Processes that read do not write their ids.
        let is_only_read = folder.try_lock(Lock::Shared).unwrap_or(false);
        return Err(locked(backend, folder, (!is_only_read).then_some(&file)));
    }
    // For people to read. A full disk must not keep the logs from opening.
    let text = format!("{}\n", backend.process_id());
    if let Err(error) = file.set_len(0).and_then(|()| file.write_at(text.as_bytes(), 0, Persist::Later)) {
        log::debug!("writing {}: {error}", file.path().display());
    }
    Ok(file)
}

/// Like [`lock`], to read only: others may read too. Writes nothing.
fn lock_to_read(backend: &Arc<dyn Backend>, folder: &FolderRef) -> Result<FileRef> {
    let is_missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let open = |name| folder.open(name, OpenOptions::default());
    // A copy may lack the file.
    let opened = open(LOCK_NAME).or_else(|error| if is_missing(&error) { open(HEAD_NAME) } else { Err(error) });
    let file = opened.map_err(|error| match is_missing(&error) {
        true => Error::NotADatabase { path: folder.path().to_path_buf(), why: NO_LOGS.to_owned() },
        false => Error::io("opening", &folder.path().join(LOCK_NAME), error),
    })?;
    // A medium that can't be written may not support locks, and does not need them.
    let is_locked = |locked: std::io::Result<bool>| {
        locked.unwrap_or_else(|error| {
            log::debug!("locking {}: {error}", folder.path().display());
            true
        })
    };
    if is_locked(folder.try_lock(Lock::Shared)) && is_locked(file.try_lock(Lock::Shared)) {
        return Ok(file);
    }
    Err(locked(backend, folder, Some(&file)))
}

/// Returns the error for a folder that another opening has locked, whose process may have written its id into the file.
fn locked(backend: &Arc<dyn Backend>, folder: &FolderRef, file: Option<&FileRef>) -> Error {
    let read = |file: &FileRef| {
        let mut text = vec![0; file.len().ok()?.min(20) as usize];
        file.read_at(&mut text, 0).ok()?;
        String::from_utf8(text).ok()?.trim().parse().ok()
    };
    let pid = file.and_then(read).unwrap_or(0);
    Error::Locked { path: folder.path().to_path_buf(), pid, by_this_process: pid == backend.process_id() }
}

fn unlock(folder: &FolderRef, file: &FileRef) {
    if let Err(error) = file.unlock().and_then(|()| folder.unlock()) {
        log::debug!("unlocking {}: {error}", folder.path().display());
    }
}

/// Returns the sync method that a measurement chose. It is made when the folder is created, and again when the device,
/// the file system or its mount options have changed.
fn sync_method(backend: &Arc<dyn Backend>, folder: &FolderRef, options: &LogsOptions) -> SyncMethod {
    if options.backend.is_some() || options.read_only {
        return SyncMethod::DurableWrite;
    }
    let found = || {
        let file = folder.open(PROBE_NAME, OpenOptions::default()).ok()?;
        let mut text = vec![0; usize::try_from(file.len().ok()?).ok()?.min(1 << 16)];
        file.read_at(&mut text, 0).ok()?;
        Probe::decode(std::str::from_utf8(&text).ok()?).ok()
    };
    if let Some(probe) = found().filter(|probe| probe.is_current(backend.as_ref(), folder.path()).unwrap_or(false)) {
        return probe.chosen;
    }
    let measured = Probe::run_once(backend.as_ref(), folder.path(), PROBE_DURATION).inspect(|probe| {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let written = folder.open(PROBE_NAME, options).and_then(|file| {
            file.set_len(0)?;
            file.write_at(probe.encode().as_bytes(), 0, Persist::Later)
        });
        if let Err(error) = written {
            log::warn!("writing {PROBE_NAME} in {}: {error}", folder.path().display());
        }
    });
    // This method works everywhere, and the next opening repeats the measurement.
    measured.map_or(SyncMethod::DataSync, |probe| probe.chosen)
}

/// Reads the head. If there is none, and the folder has nothing else, creates one.
fn open_head(
    backend: &Arc<dyn Backend>,
    folder: &FolderRef,
    options: &LogsOptions,
    sync: SyncMethod,
) -> Result<HeadFile> {
    let names = folder.list().map_err(|error| Error::io("listing", folder.path(), error))?;
    if names.iter().any(|name| name == HEAD_NAME) {
        let head = HeadFile::open(folder, !options.read_only, sync)?;
        if options.read_only {
            return Ok(head);
        }
        // A creation may have been killed before it made the name durable.
        folder.sync().map_err(|error| Error::io("syncing", folder.path(), error))?;
        head.harden()?;
        return Ok(head);
    }
    let is_probe = |name: &str| name.starts_with("probe-") && name.ends_with(".tmp");
    let ours = [NEW_HEAD_NAME, LOCK_NAME, PROBE_NAME, INDEX_NAMES[0], INDEX_NAMES[1]];
    if let Some(other) = names.iter().find(|name| !ours.contains(&&name[..]) && !is_probe(name)) {
        if other.ends_with(".seg") {
            let path = folder.path().join(HEAD_NAME);
            return Err(Error::corrupted(&path, "the head of the logs", format!("it is missing, but {other} exists")));
        }
        let why = format!("the folder holds other things ({other:?}) and no head of logs");
        return Err(Error::NotADatabase { path: folder.path().to_path_buf(), why });
    }
    if !options.create || options.read_only {
        return Err(Error::NotADatabase { path: folder.path().to_path_buf(), why: NO_LOGS.to_owned() });
    }
    let first = LogsHead {
        sequence: SuperblockNumber::FIRST,
        folder: DatabaseId(backend.random()),
        index: 0,
        index_bytes: 0,
        covered: Timestamp(0),
        position: StreamPosition::START,
        is_closed: true,
        range: (StreamPosition::START, StreamPosition::START),
        incarnations: Vec::new(),
    };
    index::allocate_files(folder, 0)?;
    HeadFile::create(folder, &first, sync)
}

/// The states of all logs while a folder is opened.
#[derive(Debug)]
struct Recovered {
    /// Each log with the timestamp up to which its state has its records.
    logs: BTreeMap<u64, (Timestamp, LogState)>,
    live: LiveBytes,
}

impl Recovered {
    /// Reads the index. If its file is damaged, reads the copy, and mends the file.
    fn read(folder: &FolderRef, head: &LogsHead, sizes: &Sizes) -> Result<Recovered> {
        let error = match Recovered::read_file(folder, head, sizes, IndexFile::Own) {
            Err(error @ (Error::Corrupted { .. } | Error::Io { .. })) => error,
            read => return read,
        };
        // The copy is only there if nothing has interrupted the making of it.
        let Ok(recovered) = Recovered::read_file(folder, head, sizes, IndexFile::Other) else {
            let advice = "it has no copy, and what the index before it covers has been given up: recover the folder \
                          from a replica or a backup";
            let Error::Corrupted { path, what, reason } = error else { return Err(error) };
            return Err(Error::corrupted(&path, what, format!("{reason}; {advice}")));
        };
        log::warn!("{error}: read the copy of the index, and mending the file");
        // The next index overwrites the copy, and must not overwrite the only one.
        index::copy(folder, head.folder, head.index, head.index_bytes, (IndexFile::Other, IndexFile::Own))?;
        Ok(recovered)
    }

    fn read_file(folder: &FolderRef, head: &LogsHead, sizes: &Sizes, file: IndexFile) -> Result<Recovered> {
        let mut recovered = Recovered { logs: BTreeMap::new(), live: LiveBytes::new(sizes.segment_bytes) };
        if head.index > 0 {
            let mut memory_bytes = 0;
            let mut reader = IndexReader::new(folder, head.folder, head.index, head.index_bytes, file)?;
            while let Some((log, timestamp, mut state)) = reader.next()? {
                state.count_live(&mut recovered.live);
                memory_bytes += state.memory_bytes();
                recovered.logs.insert(log, (timestamp, state));
            }
            // The budget may have been lowered since.
            let limit_bytes = sizes.index_limit_bytes + sizes.index_limit_bytes / 4;
            if memory_bytes > limit_bytes {
                let minimum_bytes = memory_bytes / 3 * 8;
                return Err(Error::BudgetTooSmall { given_bytes: sizes.index_limit_bytes / 3 * 8, minimum_bytes });
            }
        }
        Ok(recovered)
    }

    /// Applies the records above the index.
    fn replay(&mut self, scan: &Scan, covered: Timestamp, path: &Path) -> Result<()> {
        for record in scan.records()? {
            let record = record?;
            for change in LogChanges::new(&record.body) {
                let change = change.map_err(|_| {
                    let what = format!("log record of timestamp {}", record.timestamp);
                    Error::corrupted(path, what, "it is no record of logs")
                })?;
                let Some(log) = change.log() else { continue };
                let (applied, state) = self.logs.entry(log).or_insert_with(|| (covered, LogState::default()));
                if record.timestamp > *applied {
                    let horizon = record.timestamp;
                    state.apply(&change, record.timestamp, record.position, horizon, &mut self.live);
                }
            }
        }
        Ok(())
    }

    /// Verifies that the stream still has all entries.
    fn check_places(&self, from: StreamPosition, path: &Path) -> Result<()> {
        for (log, (_, state)) in &self.logs {
            if state.lowest().is_some_and(|position| position < from) {
                let reason = format!("one of its entries lies below position {from}, where the stream begins");
                return Err(Error::corrupted(path, format!("the index of log {log}"), reason));
            }
        }
        Ok(())
    }
}

fn open_locked(backend: &Arc<dyn Backend>, folder: &FolderRef, options: &LogsOptions, sizes: Sizes) -> Result<Shared> {
    let sync = sync_method(backend, folder, options);
    let head_file = Arc::new(open_head(backend, folder, options, sync)?);
    let head = head_file.found();
    let mut recovered = Recovered::read(folder, &head, &sizes)?;
    let stream_options = StreamOptions {
        streams: 1,
        segment_bytes: sizes.segment_bytes,
        buffer_bytes: sizes.buffer_bytes,
        reader_bytes: sizes.reader_bytes,
        margin_bytes: sizes.margin_bytes(),
        last_bytes: sizes.last_bytes(),
        window_margin_bytes: sizes.emptied_loss_bytes(),
        body_bytes: 0,
        sync,
        relaxed_delay: RELAXED_DELAY,
        database: head.folder,
    };
    let (from, to) = head.range;
    let ranges = if from < to { vec![LogRange { stream: StreamId(0), from, to }] } else { Vec::new() };
    let known = SuperblockLogState {
        incarnations: &head.incarnations,
        checkpoint: CheckpointNumber(head.index),
        covered: head.covered,
        ranges: &ranges,
        is_closed: head.is_closed,
        covered_position: Some(head.position.max(from)),
    };
    let scan = match options.read_only {
        true => {
            let access = OpenOptions { direct: true, ..OpenOptions::default() };
            Scan::read(backend, folder, &stream_options, access, &known, &mut Err)?
        }
        false => Scan::open(backend, folder, &stream_options, &known)?,
    };
    recovered.replay(&scan, head.covered, folder.path())?;
    recovered.check_places(from, folder.path())?;
    let newest = head.incarnations.last().map_or(0, |(incarnation, _)| incarnation.0);
    let incarnation = (Incarnation(newest + 1), scan.last().next());
    if !options.read_only {
        begin_opening(&head_file, &scan, incarnation, folder.path())?;
    }

    let callbacks = Arc::new(Callbacks::default());
    let hooks = {
        let (answered, failed, listed) = (Arc::clone(&callbacks), Arc::clone(&callbacks), Arc::clone(&head_file));
        Hooks {
            on_durable: Box::new(move |horizon| answered.answer(horizon)),
            on_failed: Box::new(move |reason| failed.fail(reason)),
            list: Box::new(move |ranges| {
                let range = ranges.first().map(|range| (range.from, range.to));
                // Without windows, the range is the position at which the stream continues.
                listed.write(|head| head.range = range.unwrap_or((head.range.1, head.range.1)))
            }),
            ..Hooks::none()
        }
    };
    let stream = match options.read_only {
        true => scan.start_read_only(incarnation.0),
        false => scan.start(incarnation.0, CheckpointNumber(head.index), hooks)?,
    };
    let mut index_memory_bytes = 0;
    let logs = recovered.logs.into_iter().filter(|(_, (_, state))| state.bounds.exists);
    let logs = logs.map(|(log, (_, mut state))| {
        state.set_durable();
        index_memory_bytes += state.memory_bytes() + super::shared::LOG_BYTES;
        (log, Arc::new(LogCell { state: Mutex::new(state) }))
    });
    let logs = logs.collect::<BTreeMap<_, _>>();
    let index =
        WrittenIndex { number: head.index, index_bytes: head.index_bytes, is_copied: false, position: head.position };
    Ok(Shared {
        backend: Arc::clone(backend),
        folder: Arc::clone(folder),
        identity: head.folder,
        incarnation,
        sizes,
        sync,
        stream,
        head: head_file,
        callbacks,
        logs: RwLock::new(logs),
        live: Mutex::new(recovered.live),
        cache: Mutex::new(Cache::new(sizes.cache_bytes)),
        pins: Mutex::default(),
        index_memory_bytes: AtomicU64::new(index_memory_bytes),
        index_space_bytes: AtomicU64::new(0),
        maintenance: Maintenance::new(index, sizes.segment_bytes),
        workers: new_workers(backend),
        ahead_count: AtomicUsize::new(0),
        is_read_only: options.read_only,
        is_closed: AtomicBool::new(false),
        process: Process::here(),
    })
}

/// Durably lists an opening, and that the folder is not closed.
fn begin_opening(head_file: &HeadFile, scan: &Scan, incarnation: (Incarnation, Timestamp), path: &Path) -> Result<()> {
    let mut incarnations = head_file.found().incarnations;
    if incarnations.len() == INCARNATION_COUNT_MAX {
        scan.erase_void()?;
        incarnations.clear();
    }
    incarnations.push(incarnation);
    let written = head_file.write(|next| {
        next.incarnations = incarnations;
        next.is_closed = false;
    });
    written.map_err(|error| Error::io("writing the head of", path, error))
}
