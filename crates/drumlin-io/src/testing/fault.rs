//! A backend for tests. It wraps a real backend, records all changes to the medium, and makes chosen requests fail or
//! wait.
//!
//! # Invariants
//! 1. A request that fails because of a fault leaves the file unchanged. The exception is a durable write whose *sync*
//!    fails: its bytes have been written.
//! 2. A fault counts the requests that arrive after it was set, over all files, in order of arrival.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

pub use super::disorder::Disorder;
use super::disorder::DisorderlyCompletions;
use crate::{
    AlignedBuffer, Backend, BackendFile, Completion, FileRef, Lock, OpenOptions, Persist, Queue, QueueOptions,
    SyncMethod,
};

/// The system's error code for a failed transfer.
pub const EIO: i32 = 5;

/// The system's error code for a full disk.
pub const ENOSPC: i32 = 28;

/// The unit in which file systems usually allocate space.
const SPACE_BLOCK_BYTES: u64 = 4096;

/// An operation that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Operation {
    /// A read, through a file or a queue.
    Read,
    /// A write, durable or not, through a file or a queue.
    Write,
    /// A sync of a file or folder, or the sync that is part of a durable write.
    Sync,
    /// Allocating space.
    Allocate,
    /// Changing a file's length.
    SetLen,
    /// Freeing a part of a file.
    Punch,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
    /// Opening a file.
    Open,
    /// Listing a folder.
    List,
    /// Starting a thread.
    Spawn,
    /// Waiting for a queue's requests. Requests that have finished are still returned.
    Wait,
}

/// A change to the medium. Changes are recorded in the order of their requests. In a golden file, each line is the text
/// form of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields repeat the arguments of the calls they record")]
pub enum Event {
    /// A write, through a file or a queue. A queue's writes are always `Persist::Later`.
    Write { file: String, offset: u64, bytes: u64, persist: Persist },
    /// A call of [`BackendFile::sync_data`] or [`BackendFile::sync_all`].
    Sync { file: String, method: SyncMethod },
    /// A call of [`BackendFile::allocate`].
    Allocate { file: String, offset: u64, bytes: u64 },
    /// A call of [`BackendFile::set_len`].
    SetLen { file: String, bytes: u64 },
    /// A call of [`BackendFile::punch`].
    Punch { file: String, offset: u64, bytes: u64 },
    /// The opening of a file that did not exist.
    Create { file: String },
    /// A call of [`Backend::rename`].
    Rename { from: String, to: String },
    /// A call of [`Backend::remove`].
    Remove { file: String },
    /// A call of [`Backend::sync_dir`].
    SyncDir { folder: String },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Write { file, offset, bytes, persist: Persist::Later } => {
                write!(f, "write {file} {offset}+{bytes}")
            }
            Event::Write { file, offset, bytes, persist: Persist::Now(method) } => {
                write!(f, "write {file} {offset}+{bytes} {method}")
            }
            Event::Sync { file, method } => write!(f, "sync {file} {method}"),
            Event::Allocate { file, offset, bytes } => write!(f, "allocate {file} {offset}+{bytes}"),
            Event::SetLen { file, bytes } => write!(f, "set-len {file} {bytes}"),
            Event::Punch { file, offset, bytes } => write!(f, "punch {file} {offset}+{bytes}"),
            Event::Create { file } => write!(f, "create {file}"),
            Event::Rename { from, to } => write!(f, "rename {from} {to}"),
            Event::Remove { file } => write!(f, "remove {file}"),
            Event::SyncDir { folder } => write!(f, "sync-dir {folder}"),
        }
    }
}

/// A fault that has been set.
struct Fault {
    operation: Operation,
    /// The number of requests that will still succeed before the fault strikes.
    spared: u64,
    code: i32,
    lasting: bool,
}

#[derive(Default)]
struct Shared {
    trace: Mutex<Option<Vec<Event>>>,
    faults: Mutex<Vec<Fault>>,
    space: Mutex<Space>,
    gate: Mutex<Gate>,
    changed: Condvar,
    /// The prefix of the names of threads that can't be started.
    refused_threads: Mutex<Option<&'static str>>,
    disorder: Mutex<Option<Disorder>>,
    /// The completions that disorderly queues withhold.
    kept_back: Mutex<Vec<Weak<DisorderlyCompletions>>>,
}

/// Holds a chosen request until it is released.
#[derive(Default)]
struct Gate {
    held: Option<Held>,
    waiting: usize,
}

/// The request to hold.
struct Held {
    operation: Operation,
    /// Returns `true` if requests with this path and offset count.
    counts: fn(&Path, u64) -> bool,
    /// The number of counted requests that will still pass before the held one.
    spared: u64,
}

impl Shared {
    /// Counts a request, and holds it if it is the chosen request.
    fn pass_gate(&self, operation: Operation, path: &Path, offset: u64) {
        let mut gate = self.gate.lock();
        match &mut gate.held {
            Some(held) if held.operation == operation && (held.counts)(path, offset) => {
                if held.spared > 0 {
                    held.spared -= 1;
                    return;
                }
            }
            _ => return,
        }
        gate.held = None;
        gate.waiting += 1;
        self.changed.notify_all();
        while gate.waiting > 0 {
            self.changed.wait(&mut gate);
        }
    }

    fn record(&self, event: impl FnOnce() -> Event) {
        if let Some(trace) = &mut *self.trace.lock() {
            trace.push(event());
        }
    }

    /// Counts a request of this kind, and makes it fail if a fault is due.
    fn strike(&self, operation: Operation) -> io::Result<()> {
        let mut faults = self.faults.lock();
        let mut struck = None;
        faults.retain_mut(|fault| {
            if fault.operation != operation {
                return true;
            }
            if fault.spared > 0 {
                fault.spared -= 1;
                return true;
            }
            struck.get_or_insert(fault.code);
            fault.lasting
        });
        struck.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
    }
}

/// The blocks that files occupy, and their limit.
#[derive(Default)]
struct Space {
    limit_bytes: Option<u64>,
    used_blocks: u64,
    files: HashMap<PathBuf, Blocks>,
}

/// Maps the first block of each range of blocks to the range's end. The ranges neither overlap nor touch.
#[derive(Default)]
struct Blocks(BTreeMap<u64, u64>);

impl Blocks {
    /// Returns the ranges that touch or overlap `range`.
    fn touching(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.0.range(..range.start).next_back();
        let rest = self.0.range(range.start..=range.end);
        let found = before.into_iter().chain(rest).map(|(start, end)| *start..*end);
        found.filter(|found| found.end >= range.start).collect()
    }

    fn missing(&self, range: &Range<u64>) -> u64 {
        let overlap = |found: Range<u64>| found.end.min(range.end).saturating_sub(found.start.max(range.start));
        range.end - range.start - self.touching(range).into_iter().map(overlap).sum::<u64>()
    }

    fn insert(&mut self, range: Range<u64>) {
        let mut whole = range.clone();
        for found in self.touching(&range) {
            self.0.remove(&found.start);
            whole = whole.start.min(found.start)..whole.end.max(found.end);
        }
        self.0.insert(whole.start, whole.end);
    }

    /// Drops all blocks at or after `start`, and returns their number.
    fn truncate(&mut self, start: u64) -> u64 {
        let before = self.count();
        drop(self.0.split_off(&start));
        if let Some(mut last) = self.0.last_entry() {
            *last.get_mut() = (*last.get()).min(start);
        }
        before - self.count()
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }
}

impl Space {
    /// Allocates the missing blocks of `offset..offset + bytes` in a file. If that would exceed the limit, fails and
    /// allocates no block.
    fn take(&mut self, path: &Path, offset: u64, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let range = offset / SPACE_BLOCK_BYTES..(offset + bytes).div_ceil(SPACE_BLOCK_BYTES);
        let blocks = self.files.entry(path.to_owned()).or_default();
        let missing = blocks.missing(&range);
        let used_blocks = self.used_blocks + missing;
        if missing > 0 && self.limit_bytes.is_some_and(|limit| used_blocks * SPACE_BLOCK_BYTES > limit) {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        blocks.insert(range);
        self.used_blocks = used_blocks;
        Ok(())
    }

    fn truncate(&mut self, path: &Path, bytes: u64) {
        if let Some(blocks) = self.files.get_mut(path) {
            self.used_blocks -= blocks.truncate(bytes.div_ceil(SPACE_BLOCK_BYTES));
        }
    }

    fn remove(&mut self, path: &Path) {
        self.used_blocks -= self.files.remove(path).map_or(0, |blocks| blocks.count());
    }
}

/// A backend that wraps another backend and injects faults. All clones share the faults and the record.
///
/// # Examples
/// ```
/// use std::io::ErrorKind;
/// use std::sync::Arc;
/// use drumlin_io::testing::fault::{ENOSPC, FaultyBackend, Operation};
/// use drumlin_io::{Backend, OpenOptions, Persist};
///
/// let faulty = FaultyBackend::new(drumlin_io::in_memory());
/// let backend: Arc<dyn Backend> = Arc::new(faulty.clone());
/// faulty.start_trace();
/// let file = backend.open("log".as_ref(), OpenOptions { write: true, create: true, ..Default::default() })?;
/// faulty.fail_nth(Operation::Write, 2, ENOSPC);
/// file.write_at(b"first", 0, Persist::Later)?;
/// assert_eq!(file.write_at(b"second", 5, Persist::Later).unwrap_err().kind(), ErrorKind::StorageFull);
/// file.sync_data()?;
/// assert_eq!(faulty.take_trace(), "create log\nwrite log 0+5\nsync log data-sync\n");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct FaultyBackend {
    inner: Arc<dyn Backend>,
    shared: Arc<Shared>,
}

/// Returns the number of requests that pass before the `nth` one.
fn spared(nth: u64) -> u64 {
    assert!(nth > 0, "the next request is number 1");
    nth - 1
}

impl FaultyBackend {
    /// Wraps `inner`. Initially, no changes are recorded and no requests fail.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> FaultyBackend {
        FaultyBackend { inner, shared: Arc::new(Shared::default()) }
    }

    /// Starts recording changes, with an empty record.
    pub fn start_trace(&self) {
        *self.shared.trace.lock() = Some(Vec::new());
    }

    /// Returns the changes recorded so far, all of which succeeded, and empties the record.
    ///
    /// # Panics
    /// If recording has not been started.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(self.shared.trace.lock().as_mut().expect("start_trace comes first"))
    }

    /// Like [`take_events`](Self::take_events), but returns text with one line per change.
    #[must_use]
    pub fn take_trace(&self) -> String {
        self.take_events().iter().map(|event| format!("{event}\n")).collect()
    }

    /// Makes the `nth` request of a kind, counted from now (1 is the next), fail with the system's error `code`.
    pub fn fail_nth(&self, operation: Operation, nth: u64, code: i32) {
        self.set_fault(Fault { operation, spared: spared(nth), code, lasting: false });
    }

    /// Makes the `nth` request of a kind, counted from now (1 is the next), and all later requests of this kind fail
    /// with the system's error `code`.
    pub fn fail_from(&self, operation: Operation, nth: u64, code: i32) {
        self.set_fault(Fault { operation, spared: spared(nth), code, lasting: true });
    }

    fn set_fault(&self, fault: Fault) {
        self.shared.faults.lock().push(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.shared.faults.lock().clear();
    }

    /// Holds the `nth` request of a kind, counted from now (1 is the next), before it has any effect, until it is
    /// [released](Self::release). All other requests pass. The kinds are opening, listing, reading, writing, and
    /// durable writes (which count as `Sync`).
    pub fn hold_nth(&self, operation: Operation, nth: u64) {
        self.hold_nth_at(operation, nth, |_, _| true);
    }

    /// Like [`hold_nth`](Self::hold_nth), but counts only requests whose path and offset `counts` accepts. The offset
    /// is 0 for requests without one.
    pub fn hold_nth_at(&self, operation: Operation, nth: u64, counts: fn(&Path, u64) -> bool) {
        use Operation::{List, Open, Read, Sync, Write};
        assert!(matches!(operation, Open | List | Read | Write | Sync), "only these wait");
        self.shared.gate.lock().held = Some(Held { operation, counts, spared: spared(nth) });
    }

    /// Waits until a request is held. Returns `false` if `timeout` expires first.
    #[must_use]
    pub fn wait_for_held(&self, timeout: Duration) -> bool {
        let end = std::time::Instant::now() + timeout;
        let mut gate = self.shared.gate.lock();
        while gate.waiting == 0 {
            let left = end.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return false;
            }
            self.shared.changed.wait_for(&mut gate, left);
        }
        true
    }

    /// Lets the held request continue.
    pub fn release(&self) {
        *self.shared.gate.lock() = Gate::default();
        self.shared.changed.notify_all();
    }

    /// Makes it impossible to start threads whose names begin with `name`, as on a backend without threads. Without its
    /// own threads, the log prepares segments and writes records on the threads that depend on them, in a fixed order.
    pub fn refuse_threads(&self, name: &'static str) {
        *self.shared.refused_threads.lock() = Some(name);
    }

    /// Makes the completions of all queues created from now on late, out of order, or lost. Each queue has its own
    /// random generator, started from the seed.
    ///
    /// A lost request stays in flight, with its buffer in the queue, until [`time_out`](Self::time_out) answers it with
    /// an error or the queue is dropped. This models a device that loses a request and is reset after a timeout. The
    /// bytes may or may not have been transferred.
    pub fn disorder(&self, disorder: Disorder) {
        *self.shared.disorder.lock() = Some(disorder);
    }

    /// Answers every request that has been [lost](Self::disorder) so far with the error [`EIO`].
    pub fn time_out(&self) {
        self.shared.kept_back.lock().retain(|kept_back| {
            let kept_back = kept_back.upgrade();
            kept_back.iter().for_each(|kept_back| kept_back.time_out(EIO));
            kept_back.is_some()
        });
    }

    fn wrap(&self, inner: Box<dyn Queue>) -> Box<dyn Queue> {
        let disorder = self.shared.disorder.lock().map(|disorder| Arc::new(DisorderlyCompletions::new(disorder)));
        self.shared.kept_back.lock().extend(disorder.as_ref().map(Arc::downgrade));
        Box::new(FaultyQueue { inner, shared: Arc::clone(&self.shared), failed: Mutex::default(), disorder })
    }

    /// Limits the total space of all files, counted in blocks of 4,096 bytes. A request that would exceed the limit
    /// fails with `StorageFull` and allocates no block. `None` removes the limit. A file counts once it has been opened
    /// through this backend.
    pub fn set_space_limit(&self, bytes: Option<u64>) {
        self.shared.space.lock().limit_bytes = bytes;
    }

    /// Returns the space that all files use, in bytes.
    #[must_use]
    pub fn space_used(&self) -> u64 {
        self.shared.space.lock().used_blocks * SPACE_BLOCK_BYTES
    }
}

impl fmt::Debug for FaultyBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyBackend({:?})", self.inner)
    }
}

/// Returns the last component of a path. Traces omit the folders, because their names differ between runs.
fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

impl Backend for FaultyBackend {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<FileRef> {
        self.shared.strike(Operation::Open)?;
        self.shared.pass_gate(Operation::Open, path, 0);
        let existed = self.inner.exists(path)?;
        let inner = self.inner.open(path, options)?;
        if !existed {
            self.shared.record(|| Event::Create { file: name_of(path) });
        }
        let mut space = self.shared.space.lock();
        if !space.files.contains_key(path) {
            let limit = space.limit_bytes.take();
            let counted = inner.len().and_then(|bytes| space.take(path, 0, bytes));
            space.limit_bytes = limit;
            counted?;
        }
        drop(space);
        Ok(Arc::new(FaultyFile { inner, shared: Arc::clone(&self.shared) }))
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>> {
        Ok(self.wrap(self.inner.queue(depth)?))
    }

    fn queue_with(&self, options: QueueOptions) -> io::Result<Box<dyn Queue>> {
        Ok(self.wrap(self.inner.queue_with(options)?))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        self.shared.pass_gate(Operation::List, path, 0);
        self.shared.strike(Operation::List)?;
        self.inner.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.shared.strike(Operation::Rename)?;
        self.inner.rename(from, to)?;
        self.shared.record(|| Event::Rename { from: name_of(from), to: name_of(to) });
        let mut space = self.shared.space.lock();
        space.remove(to);
        if let Some(blocks) = space.files.remove(from) {
            space.files.insert(to.to_owned(), blocks);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.shared.strike(Operation::Remove)?;
        self.inner.remove(path)?;
        self.shared.record(|| Event::Remove { file: name_of(path) });
        self.shared.space.lock().remove(path);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.shared.strike(Operation::Sync)?;
        self.inner.sync_dir(path)?;
        self.shared.record(|| Event::SyncDir { folder: name_of(path) });
        Ok(())
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.inner.absolute(path)
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }

    fn wall_clock(&self) -> Duration {
        self.inner.wall_clock()
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }

    fn process_id(&self) -> u32 {
        self.inner.process_id()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<thread::JoinHandle<()>> {
        self.shared.strike(Operation::Spawn)?;
        if self.shared.refused_threads.lock().is_some_and(|refused| name.starts_with(refused)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.inner.spawn(name, body)
    }
}

#[derive(Clone)]
struct FaultyFile {
    inner: FileRef,
    shared: Arc<Shared>,
}

impl FaultyFile {
    fn name(&self) -> String {
        name_of(self.inner.path())
    }

    /// Performs the checks before a write: first for an injected fault, then for free space.
    fn admit_write(&self, offset: u64, bytes: usize) -> io::Result<()> {
        self.shared.strike(Operation::Write)?;
        self.shared.space.lock().take(self.inner.path(), offset, bytes as u64)
    }

    fn record_write(&self, offset: u64, bytes: usize, persist: Persist) {
        self.shared.record(|| Event::Write { file: self.name(), offset, bytes: bytes as u64, persist });
    }

    fn sync(&self, method: SyncMethod, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.shared.strike(Operation::Sync)?;
        sync()?;
        self.shared.record(|| Event::Sync { file: self.name(), method });
        Ok(())
    }
}

impl fmt::Debug for FaultyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyFile({:?})", self.inner)
    }
}

impl BackendFile for FaultyFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.shared.strike(Operation::SetLen)?;
        self.inner.set_len(bytes)?;
        self.shared.record(|| Event::SetLen { file: self.name(), bytes });
        self.shared.space.lock().truncate(self.inner.path(), bytes);
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.shared.strike(Operation::Allocate)?;
        self.shared.space.lock().take(self.inner.path(), offset, bytes)?;
        self.inner.allocate(offset, bytes)?;
        self.shared.record(|| Event::Allocate { file: self.name(), offset, bytes });
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.shared.strike(Operation::Read)?;
        self.shared.pass_gate(Operation::Read, self.inner.path(), offset);
        self.inner.read_at(buffer, offset)
    }

    fn read_up_to(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.shared.strike(Operation::Read)?;
        self.shared.pass_gate(Operation::Read, self.inner.path(), offset);
        self.inner.read_up_to(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64, persist: Persist) -> io::Result<()> {
        let operation = if persist == Persist::Later { Operation::Write } else { Operation::Sync };
        self.shared.pass_gate(operation, self.inner.path(), offset);
        self.admit_write(offset, buffer.len())?;
        if persist != Persist::Later
            && let Err(error) = self.shared.strike(Operation::Sync)
        {
            self.inner.write_at(buffer, offset, Persist::Later)?;
            self.record_write(offset, buffer.len(), Persist::Later);
            return Err(error);
        }
        self.inner.write_at(buffer, offset, persist)?;
        self.record_write(offset, buffer.len(), persist);
        Ok(())
    }

    fn write_unaligned(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.shared.pass_gate(Operation::Write, self.inner.path(), offset);
        self.admit_write(offset, buffer.len())?;
        self.inner.write_unaligned(buffer, offset)?;
        self.record_write(offset, buffer.len(), Persist::Later);
        Ok(())
    }

    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.shared.strike(Operation::Punch)?;
        self.inner.punch(offset, bytes)?;
        self.shared.record(|| Event::Punch { file: self.name(), offset, bytes });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(SyncMethod::DataSync, || self.inner.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync(SyncMethod::FullSync, || self.inner.sync_all())
    }

    fn supports(&self, method: SyncMethod) -> bool {
        self.inner.supports(method)
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.inner.try_lock(lock)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A queue of the wrapped backend. Writes are recorded when they are pushed, so that the record is in the order of the
/// requests.
struct FaultyQueue {
    inner: Box<dyn Queue>,
    shared: Arc<Shared>,
    failed: Mutex<Vec<Completion>>,
    disorder: Option<Arc<DisorderlyCompletions>>,
}

impl FaultyQueue {
    /// Returns the wrapped backend's file. If the request must fail before it reaches that file, returns the error.
    fn admit<'a>(
        &self,
        file: &'a FileRef,
        admit: impl FnOnce(&FaultyFile) -> io::Result<()>,
    ) -> io::Result<&'a FileRef> {
        assert!(self.in_flight() < self.depth(), "more requests than the queue's depth of {}", self.depth());
        let Some(file) = file.as_any().downcast_ref::<FaultyFile>() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file belongs to another backend"));
        };
        admit(file)?;
        Ok(&file.inner)
    }

    fn fail(&self, token: u64, buffer: AlignedBuffer, error: io::Error) {
        self.failed.lock().push(Completion { token, buffer, result: Err(error), transferred: 0 });
    }

    fn pushed(&self) {
        self.disorder.iter().for_each(|disorder| disorder.pushed());
    }
}

impl Queue for FaultyQueue {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        let kept_back = self.disorder.as_ref().map_or(0, |disorder| disorder.count());
        self.inner.in_flight() + self.failed.lock().len() + kept_back
    }

    fn push_read(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        match self.admit(file, |_| self.shared.strike(Operation::Read)) {
            Ok(file) => {
                self.shared.pass_gate(Operation::Read, file.path(), offset);
                self.inner.push_read(file, offset, buffer, token);
            }
            Err(error) => self.fail(token, buffer, error),
        }
        self.pushed();
    }

    fn push_write(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        let admitted = self.admit(file, |file| {
            file.admit_write(offset, buffer.len())?;
            file.record_write(offset, buffer.len(), Persist::Later);
            Ok(())
        });
        match admitted {
            Ok(file) => self.inner.push_write(file, offset, buffer, token),
            Err(error) => self.fail(token, buffer, error),
        }
        self.pushed();
    }

    fn submit(&self) -> io::Result<()> {
        self.inner.submit()
    }

    fn wait(&self, minimum: usize, finished: &mut Vec<Completion>) -> io::Result<()> {
        let failed = {
            let mut failed = self.failed.lock();
            let count = failed.len();
            finished.append(&mut failed);
            count
        };
        let minimum = minimum.saturating_sub(failed);
        match &self.disorder {
            Some(disorder) => disorder.wait(self.inner.as_ref(), minimum, finished)?,
            None => self.inner.wait(minimum, finished)?,
        }
        self.shared.strike(Operation::Wait)
    }

    fn interrupt(&self) {
        self.disorder.iter().for_each(|disorder| disorder.interrupt());
        self.inner.interrupt();
    }

    fn register(&self, buffers: &[AlignedBuffer]) -> bool {
        self.inner.register(buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_memory;

    const CREATE: OpenOptions = OpenOptions { write: true, create: true, create_new: false, direct: false };

    fn faulty() -> (FaultyBackend, FileRef) {
        let backend = FaultyBackend::new(in_memory());
        let file = backend.open(Path::new("data"), CREATE).unwrap();
        (backend, file)
    }

    /// A trace contains every change to the medium, and nothing else. Golden tests compare traces.
    #[test]
    fn a_trace_holds_each_change_in_order() {
        let (backend, file) = faulty();
        backend.start_trace();
        backend.create_dir_all(Path::new("d")).unwrap();
        let second = backend.open(Path::new("d/log"), CREATE).unwrap();
        second.allocate(0, 8192).unwrap();
        second.write_at(&[1; 10], 4096, Persist::Now(SyncMethod::DurableWrite)).unwrap();
        let queue = backend.queue(2).unwrap();
        queue.push_write(&file, 0, AlignedBuffer::zeroed(4096), 1);
        queue.push_read(&second, 0, AlignedBuffer::zeroed(4096), 2);
        queue.wait(2, &mut Vec::new()).unwrap();
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        file.read_buffer(0, 1).unwrap();
        second.set_len(5).unwrap();
        backend.rename(Path::new("d/log"), Path::new("d/old")).unwrap();
        backend.sync_dir(Path::new("d")).unwrap();
        backend.remove(Path::new("data")).unwrap();
        let expected = "create log\nallocate log 0+8192\nwrite log 4096+10 durable-write\nwrite data 0+4096\n\
                        sync data data-sync\nsync data full-sync\nset-len log 5\nrename log old\nsync-dir d\nremove data\n";
        assert_eq!(backend.take_trace(), expected);
        assert_eq!(backend.take_trace(), "");
    }

    /// Only the nth request fails, whether it goes through a file or a queue. A failed write does not change the file.
    #[test]
    fn the_nth_request_fails() {
        let (backend, file) = faulty();
        let write = |offset| file.write_at(b"x", offset, Persist::Later);
        backend.fail_nth(Operation::Write, 3, EIO);
        write(0).unwrap();
        write(1).unwrap();
        let queue = backend.queue(4).unwrap();
        queue.push_write(&file, 2, AlignedBuffer::zeroed(1), 5);
        queue.push_write(&file, 1, AlignedBuffer::zeroed(1), 6);
        assert_eq!(queue.in_flight(), 2);
        let mut finished = Vec::new();
        queue.wait(2, &mut finished).unwrap();
        let failed: Vec<_> = finished.iter().map(|done| (done.token, done.result.is_err())).collect();
        assert_eq!(failed, [(5, true), (6, false)]);
        assert_eq!(finished[0].result.as_ref().unwrap_err().raw_os_error(), Some(EIO));
        assert_eq!(file.len().unwrap(), 2);
        write(2).unwrap();

        backend.fail_from(Operation::Sync, 2, EIO);
        file.sync_data().unwrap();
        assert!(file.sync_data().is_err() && file.sync_all().is_err() && backend.sync_dir(Path::new("")).is_err());
        file.write_at(b"y", 9, Persist::Now(SyncMethod::DataSync)).unwrap_err();
        assert_eq!(file.len().unwrap(), 10, "the bytes of a durable write precede its sync");
        backend.heal();
        file.sync_data().unwrap();

        for operation in [Operation::Allocate, Operation::SetLen, Operation::Rename, Operation::Open, Operation::Read] {
            backend.fail_nth(operation, 1, ENOSPC);
        }
        assert_eq!(file.allocate(0, 1).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(file.set_len(1).is_err() && file.read_buffer(0, 1).is_err());
        assert!(backend.rename(Path::new("data"), Path::new("b")).is_err());
        assert!(backend.open(Path::new("data"), CREATE).is_err());
    }

    /// Each allocated block is counted once. Truncating and removing files frees their blocks.
    #[test]
    fn the_disk_is_full_at_its_limit() {
        let (backend, file) = faulty();
        backend.set_space_limit(Some(4 * 4096));
        file.write_at(&[1; 4097], 0, Persist::Later).unwrap();
        assert_eq!(backend.space_used(), 8192);
        file.allocate(4096, 8192).unwrap();
        assert_eq!(backend.space_used(), 3 * 4096);
        let full = |result: io::Result<()>| assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
        full(file.allocate(0, 5 * 4096));
        full(file.write_at(&[1; 2], 4 * 4096 - 1, Persist::Later));
        assert_eq!(backend.space_used(), 3 * 4096, "what failed took nothing");
        file.write_at(&[2; 3 * 4096], 0, Persist::Later).unwrap();
        let other = backend.open(Path::new("other"), CREATE).unwrap();
        other.write_at(&[1; 1], 1 << 40, Persist::Later).unwrap();
        full(other.write_at(&[1; 1], 0, Persist::Later));
        backend.set_space_limit(Some(5 * 4096));
        other.write_at(&[1; 1], 0, Persist::Later).unwrap();
        file.set_len(4097).unwrap();
        assert_eq!(backend.space_used(), 4 * 4096);
        backend.rename(Path::new("other"), Path::new("data")).unwrap();
        assert_eq!(backend.space_used(), 2 * 4096, "what was replaced is gone");
        backend.remove(Path::new("data")).unwrap();
        assert_eq!(backend.space_used(), 0);
    }

    /// `Blocks` agrees with a plain set of block numbers.
    #[test]
    fn blocks_agree_with_a_set() {
        let mut blocks = Blocks::default();
        let mut model = std::collections::BTreeSet::new();
        let mut state = 7u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (start, length) = (state >> 40 & 63, state >> 50 & 15);
            if state >> 60 == 0 {
                blocks.truncate(start);
                model.retain(|block| *block < start);
            } else if length > 0 {
                let range = start..start + length;
                let missing = range.clone().filter(|block| !model.contains(block)).count() as u64;
                assert_eq!(blocks.missing(&range), missing);
                blocks.insert(range.clone());
                model.extend(range);
            }
            assert_eq!(blocks.count(), model.len() as u64);
        }
    }
}
