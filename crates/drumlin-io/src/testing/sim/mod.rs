//! The simulated disk. A test or the seed of a simulation determines its losses, its faults and its power cuts.
//!
//! # Fault model
//! - *A volatile write cache.* Sectors of 512 bytes are written atomically, in any order. After a power cut, each
//!   sector independently has its last durable version or any version written since. When a durable write ends, its own
//!   sectors are durable, and so is a file length that covers them. The power may be cut while the write is in flight.
//!   A sync makes durable all changes that were made before it began. Names become durable with a sync of their folder,
//!   and lengths with a sync of their file.
//! - *Requests take time*, some a very long time ([`Faults::slow_one_in`]), and finish in any order.
//! - *Writes get lost* although they were reported as done, or *land elsewhere* in the file.
//! - *Reads fail*, once or permanently. *Writes fail*, and so do *opening, renaming and removing files*. *Syncs and
//!   durable writes fail*; the changes that they should have made durable may be readable until the power is cut, but
//!   no later sync makes these changes durable. If a failed sync drops the bytes of a durable write in flight, that
//!   write fails too.
//! - *Bits flip* at rest ([`Disk::rot`]).
//! - *The disk is full* when the files reach a given total length.
//! - *The drive lies*: it reports changes as durable that are only in its cache.
//!
//! Not modelled: sectors that change without a write near them, file-system bugs, and concurrent reads and writes of
//! the same bytes, which the engine avoids.
//!
//! A test may use a [`Disk`] without a simulation. Its requests then take no time, and it uses the system's threads and
//! clock. With the feature `sim`, `run` runs a simulation, whose tasks call `spawn`, `join`, `sleep` and `now`.

mod medium;
#[cfg(feature = "sim")]
mod tasks;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::backend::disk::end_of_file;
use crate::backend::lock::Locks;
pub use crate::sync::Random;
use crate::sync::scheduler::{Task, current};
use crate::{AlignedBuffer, Backend, BackendFile, Completion, FileRef, Lock, OpenOptions, Persist, Queue, SyncMethod};
use medium::{BLOCK_BYTES, ChangeKind, Entry};
pub use medium::{Change, Loss, Medium};
#[cfg(feature = "sim")]
pub use tasks::{Outcome, Schedule, Sleeper, join, note, now, park, run, sleep, spawn};

/// The rates of random faults. A field `…_one_in` of n means that the fault happens in one of n requests on average; 0
/// means never.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Writes that are reported as done but have no effect.
    pub write_lost_one_in: u64,
    /// Writes that land at a different offset of their file.
    pub write_misdirected_one_in: u64,
    /// Writes that fail.
    pub write_fails_one_in: u64,
    /// Reads that fail once, but succeed when retried.
    pub read_fails_one_in: u64,
    /// Reads that fail permanently: all later reads of the request's first block fail too.
    pub read_fails_for_ever_one_in: u64,
    /// Syncs and durable writes that fail. The changes that they should have made durable will never be durable, except
    /// that some of the failed durable writes may still become durable.
    pub sync_fails_one_in: u64,
    /// Calls to open, create, rename or remove a file that fail without effect.
    pub name_fails_one_in: u64,
    /// Requests that are a thousand times slower.
    pub slow_one_in: u64,
    /// Set if the drive reports changes as durable that are not.
    pub lies: bool,
    /// The maximum total length of all files, in bytes, or `None` for no limit.
    pub capacity_bytes: Option<u64>,
}

/// The numbers of faults that have happened, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in Faults")]
pub struct FaultCounts {
    pub writes_lost: u64,
    pub writes_misdirected: u64,
    pub writes_failed: u64,
    pub reads_failed: u64,
    pub syncs_failed: u64,
    pub names_failed: u64,
    pub requests_slow: u64,
    pub lies: u64,
    pub refused_full: u64,
    pub bits_flipped: u64,
}

impl FaultCounts {
    /// Returns `true` if any request failed while the power was on.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.may_fail_reads() || self.refused_full > 0
    }

    /// Returns `true` if faults may have made the disk unreadable: a read has failed, or a change has failed and left
    /// the contents unknown. A full disk does not count.
    #[must_use]
    pub fn may_fail_reads(&self) -> bool {
        self.reads_failed > 0 || self.has_failed_changes()
    }

    /// Returns `true` if a change has failed for any reason but a full disk.
    #[must_use]
    pub fn has_failed_changes(&self) -> bool {
        self.writes_failed + self.syncs_failed + self.names_failed > 0
    }

    /// Returns `true` if some contents may differ from the bytes that were written, or that were reported as durable.
    #[must_use]
    pub fn has_damaged(&self) -> bool {
        self.writes_lost + self.writes_misdirected + self.lies + self.bits_flipped > 0
    }

    /// Adds the counts of a second disk.
    pub fn add(&mut self, other: &FaultCounts) {
        self.writes_lost += other.writes_lost;
        self.writes_misdirected += other.writes_misdirected;
        self.writes_failed += other.writes_failed;
        self.reads_failed += other.reads_failed;
        self.syncs_failed += other.syncs_failed;
        self.names_failed += other.names_failed;
        self.requests_slow += other.requests_slow;
        self.lies += other.lies;
        self.refused_full += other.refused_full;
        self.bits_flipped += other.bits_flipped;
    }
}

#[derive(Debug)]
struct State {
    medium: Medium,
    changes: Option<Vec<Change>>,
    change_count: u64,
    write_count: u64,
    /// The number of changes after which the power is cut.
    off_at: Option<u64>,
    /// The number of the write during which the power is cut.
    off_in_write: Option<u64>,
    off: bool,
    locks: BTreeMap<usize, Locks>,
    random: Random,
    faults: Faults,
    harm: FaultCounts,
    number: u64,
}

/// A simulated disk. Clones share its state.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<State>>,
    started: Instant,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disk")
    }
}

impl Disk {
    /// Creates a disk with these contents. The seed determines all its random decisions.
    #[must_use]
    pub fn new(medium: Medium, seed: u64) -> Disk {
        let number = medium.number_max();
        let state = State {
            medium,
            changes: None,
            change_count: 0,
            write_count: 0,
            off_at: None,
            off_in_write: None,
            off: false,
            locks: BTreeMap::new(),
            random: Random(seed),
            faults: Faults::default(),
            harm: FaultCounts::default(),
            number,
        };
        Disk { state: Arc::new(Mutex::new(state)), started: Instant::now() }
    }

    /// Returns a backend that uses this disk.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sets the rates of faults for all later requests.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Returns the numbers of faults so far, by kind.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.lock().harm
    }

    /// Starts recording all changes.
    pub fn record(&self) {
        self.lock().changes = Some(Vec::new());
    }

    /// Returns the changes recorded since [`record`](Disk::record).
    #[must_use]
    pub fn recorded(&self) -> Vec<Change> {
        self.lock().changes.clone().unwrap_or_default()
    }

    /// Returns the number of changes so far.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.lock().change_count
    }

    /// Cuts the power now. All later requests fail.
    pub fn turn_off(&self) {
        self.lock().off = true;
    }

    /// Cuts the power once `change_count` changes have been made.
    pub fn turn_off_at(&self, change_count: u64) {
        self.lock().off_at = Some(change_count);
    }

    /// Cuts the power during the `nth` write from now (1 is the next). The write's bytes reach the cache, but don't
    /// become durable.
    pub fn turn_off_in_write(&self, nth: u64) {
        let mut state = self.lock();
        state.off_in_write = Some(state.write_count + nth);
    }

    /// Returns the number of writes so far.
    #[must_use]
    pub fn write_count(&self) -> u64 {
        self.lock().write_count
    }

    /// Returns `true` if the power is off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.lock().off
    }

    /// Returns a copy of the disk's contents.
    #[must_use]
    pub fn medium(&self) -> Medium {
        self.lock().medium.clone()
    }

    /// Lets a test examine the contents, or change them without the engine's knowledge.
    pub fn with_medium<T>(&self, look: impl FnOnce(&mut Medium) -> T) -> T {
        look(&mut self.lock().medium)
    }

    /// Flips a bit of a file whose path contains `name`. Returns `false` if there is no bit to flip in any such file.
    #[must_use]
    pub fn rot(&self, name: &str) -> bool {
        let state = &mut *self.lock();
        let flipped = state.medium.rot(name, &mut state.random);
        state.harm.bits_flipped += u64::from(flipped);
        flipped
    }

    fn working(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.off { Err(power_is_off()) } else { Ok(state) }
    }

    /// Makes the calling task sleep for part of its request's duration.
    fn spend(nanos: u64) {
        if let Some(task) = current() {
            task.sleep(Duration::from_nanos(nanos));
        }
    }

    /// Draws the duration of a request, which is at least `least` nanoseconds and less than eight times as long.
    fn draw_nanos(&self, least: u64) -> io::Result<u64> {
        if current().is_none() {
            return self.working().map(|_| 0);
        }
        let mut state = self.working()?;
        let slow_one_in = state.faults.slow_one_in;
        let nanos = least + state.random.below(least * 7);
        if state.random.one_in(slow_one_in) {
            state.harm.requests_slow += 1;
            return Ok(nanos * 1000);
        }
        Ok(nanos)
    }
}

const READ_NANOS: u64 = 15_000;
const WRITE_NANOS: u64 = 15_000;
const SYNC_NANOS: u64 = 60_000;
/// The minimum duration of a change to a name or length, which is fast because it happens in memory.
const NAME_NANOS: u64 = 2_000;

/// Returns `true` if `DRUMLIN_SIM_TRACE` is set, so that every change to a disk is printed.
#[must_use]
pub fn is_told() -> bool {
    static TOLD: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *TOLD.get_or_init(|| std::env::var_os("DRUMLIN_SIM_TRACE").is_some())
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

fn input_output_error() -> io::Error {
    // EIO
    io::Error::from_raw_os_error(5)
}

impl State {
    fn act(&mut self, kind: ChangeKind) {
        if self.off {
            return;
        }
        let is_write = matches!(kind, ChangeKind::Write { .. });
        let change = Change(kind);
        if let Some(task) = current() {
            task.note(change.digest());
            if is_told() {
                eprintln!("{:>14?} {}: {change:?}", task.now(), task.name());
            }
        }
        self.medium.apply(&change);
        if let Some(changes) = &mut self.changes {
            changes.push(change);
        }
        self.change_count += 1;
        self.write_count += u64::from(is_write);
        let is_cut = is_write && self.off_in_write == Some(self.write_count);
        self.off = is_cut || self.off_at.is_some_and(|at| self.change_count >= at);
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn try_name(&mut self) -> io::Result<()> {
        let one_in = self.faults.name_fails_one_in;
        if self.random.one_in(one_in) {
            self.harm.names_failed += 1;
            return Err(input_output_error());
        }
        Ok(())
    }

    fn has_folder(&self, path: &Path) -> bool {
        path.parent().is_none() || self.medium.entry(path) == Some(Entry::Folder)
    }

    /// Fails if the disk has too little space for the file to reach this length.
    fn admit(&mut self, file: usize, length: usize) -> io::Result<()> {
        let Some(capacity) = self.faults.capacity_bytes else { return Ok(()) };
        let more = length.saturating_sub(self.medium.length(file)) as u64;
        if more > 0 && self.medium.bytes() + more > capacity {
            self.harm.refused_full += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Performs a write, possibly with a fault. Returns the number of the pending change, or `None` if the write was
    /// lost.
    fn write(&mut self, file: usize, offset: usize, bytes: &[u8]) -> io::Result<Option<u64>> {
        self.admit(file, offset + bytes.len())?;
        let faults = self.faults.clone();
        if self.random.one_in(faults.write_fails_one_in) {
            self.harm.writes_failed += 1;
            return Err(input_output_error());
        }
        if self.random.one_in(faults.write_lost_one_in) {
            self.harm.writes_lost += 1;
            return Ok(None);
        }
        let mut offset = offset;
        if self.random.one_in(faults.write_misdirected_one_in) {
            let blocks = (self.medium.length(file).saturating_sub(bytes.len()) / BLOCK_BYTES) as u64;
            if blocks > 0 {
                self.harm.writes_misdirected += 1;
                offset = self.random.below(blocks) as usize * BLOCK_BYTES;
            }
        }
        let number = self.next_number();
        self.act(ChangeKind::Write { file, offset, bytes: bytes.into(), number });
        let blocks = offset / BLOCK_BYTES..=(offset + bytes.len().max(1) - 1) / BLOCK_BYTES;
        self.medium.revive(file, &blocks);
        Ok(Some(number))
    }

    fn read(&mut self, file: usize, buffer: &mut [u8], offset: usize) -> io::Result<usize> {
        let blocks = offset / BLOCK_BYTES..=(offset + buffer.len().max(1) - 1) / BLOCK_BYTES;
        let one_in = self.faults.read_fails_for_ever_one_in;
        if self.random.one_in(one_in) {
            self.medium.kill(file, *blocks.start());
        }
        let one_in = self.faults.read_fails_one_in;
        if self.medium.is_dead(file, &blocks) || self.random.one_in(one_in) {
            self.harm.reads_failed += 1;
            return Err(input_output_error());
        }
        Ok(self.medium.read(file, buffer, offset))
    }

    /// Completes a sync. `up_to` is the number of the last change made before the sync began.
    fn sync(&mut self, file: usize, up_to: u64) -> io::Result<()> {
        let one_in = self.faults.sync_fails_one_in;
        if self.random.one_in(one_in) {
            self.harm.syncs_failed += 1;
            self.forget(file, 0, up_to);
            return Err(input_output_error());
        }
        if self.faults.lies {
            self.harm.lies += 1;
        } else {
            self.act(ChangeKind::Sync { file, up_to });
        }
        Ok(())
    }

    /// Completes a durable write. `number` is `None` if the write was lost.
    fn harden(&mut self, file: usize, number: Option<u64>) -> io::Result<()> {
        let one_in = self.faults.sync_fails_one_in;
        if self.random.one_in(one_in) {
            self.harm.syncs_failed += 1;
            if let Some(number) = number
                && self.random.chance(75)
            {
                self.forget(file, number, number);
            }
            return Err(input_output_error());
        }
        match number {
            Some(number) if self.medium.is_forgotten(file, number) => return Err(input_output_error()),
            _ if self.faults.lies => self.harm.lies += 1,
            Some(number) => self.act(ChangeKind::Harden { file, number }),
            None => {}
        }
        Ok(())
    }

    fn forget(&mut self, file: usize, from: u64, up_to: u64) {
        let is_readable = self.random.chance(50);
        self.act(ChangeKind::Forget { file, from, up_to, is_readable });
    }
}

struct DiskFile {
    disk: Disk,
    path: PathBuf,
    file: usize,
    direct: bool,
    write: bool,
    lock: Mutex<Option<Lock>>,
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskFile({})", self.path.display())
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        let lock = self.lock.get_mut().unwrap_or_else(PoisonError::into_inner);
        if lock.is_some() {
            self.disk.lock().locks.entry(self.file).or_default().release(lock);
        }
    }
}

impl DiskFile {
    fn check(&self, buffer: &[u8], offset: u64) {
        if self.direct {
            assert!(buffer.len().is_multiple_of(BLOCK_BYTES), "{} bytes are not aligned", buffer.len());
            assert!(offset.is_multiple_of(BLOCK_BYTES as u64), "offset {offset} is not aligned");
            assert!((buffer.as_ptr() as usize).is_multiple_of(BLOCK_BYTES), "a buffer is not aligned");
        }
    }

    fn check_write(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.check(buffer, offset);
        if self.write { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    fn sync(&self) -> io::Result<()> {
        let nanos = self.disk.draw_nanos(SYNC_NANOS)?;
        let up_to = self.disk.working()?.number;
        Disk::spend(nanos);
        self.disk.working()?.sync(self.file, up_to)
    }

    /// Performs a request that changes a name or length. Its duration depends only on [`NAME_NANOS`].
    fn act(&self, act: impl FnOnce(&mut State) -> io::Result<()>) -> io::Result<()> {
        Disk::spend(self.disk.draw_nanos(NAME_NANOS)?);
        act(&mut *self.disk.working()?)
    }
}

impl BackendFile for DiskFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().medium.length(self.file) as u64)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.act(|state| {
            state.admit(self.file, bytes as usize)?;
            let number = state.next_number();
            state.act(ChangeKind::SetLen { file: self.file, bytes: bytes as usize, number });
            Ok(())
        })
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.act(|state| {
            let length = (offset + bytes) as usize;
            state.admit(self.file, length)?;
            if state.medium.length(self.file) < length {
                let number = state.next_number();
                state.act(ChangeKind::SetLen { file: self.file, bytes: length, number });
            }
            Ok(())
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_up_to(buffer, offset)? == buffer.len() { Ok(()) } else { Err(end_of_file()) }
    }

    fn read_up_to(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check(buffer, offset);
        let nanos = self.disk.draw_nanos(READ_NANOS)?;
        Disk::spend(nanos / 2);
        let read = self.disk.working()?.read(self.file, buffer, offset as usize);
        Disk::spend(nanos / 2);
        read
    }

    fn write_at(&self, buffer: &[u8], offset: u64, persist: Persist) -> io::Result<()> {
        self.check_write(buffer, offset)?;
        let nanos = self.disk.draw_nanos(WRITE_NANOS)?;
        Disk::spend(nanos / 2);
        let number = self.disk.working()?.write(self.file, offset as usize, buffer)?;
        Disk::spend(nanos / 2);
        match persist {
            Persist::Later => self.disk.working().map(drop),
            Persist::Now(SyncMethod::DurableWrite) => {
                Disk::spend(self.disk.draw_nanos(SYNC_NANOS / 2)?);
                self.disk.working()?.harden(self.file, number)
            }
            Persist::Now(_) => self.sync(),
        }
    }

    fn write_unaligned(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.check_write(&[], 0)?;
        let nanos = self.disk.draw_nanos(WRITE_NANOS)?;
        Disk::spend(nanos);
        self.disk.working()?.write(self.file, offset as usize, buffer).map(drop)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn alignment(&self) -> usize {
        if self.direct { BLOCK_BYTES } else { 1 }
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        let mut disk = self.disk.working()?;
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(disk.locks.entry(self.file).or_default().try_take(&mut held, lock))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Backend for Disk {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<FileRef> {
        Disk::spend(self.draw_nanos(NAME_NANOS)?);
        let mut state = self.working()?;
        state.try_name()?;
        let file = match state.medium.entry(path) {
            Some(Entry::Folder) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(Entry::File(_)) if options.create_new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(Entry::File(file)) => file,
            None if options.create || options.create_new => {
                if path.parent().is_some_and(|folder| !state.has_folder(folder)) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                let file = state.medium.file_count();
                state.act(ChangeKind::Name { path: path.to_owned(), entry: Some(Entry::File(file)) });
                if state.off {
                    return Err(power_is_off());
                }
                file
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        drop(state);
        Ok(Arc::new(DiskFile {
            disk: self.clone(),
            path: path.to_owned(),
            file,
            direct: options.direct,
            write: options.write,
            lock: Mutex::default(),
        }))
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(DiskQueue { disk: self.clone(), depth, requests: Mutex::default() }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        Disk::spend(self.draw_nanos(NAME_NANOS)?);
        let mut state = self.working()?;
        for folder in path.ancestors().collect::<Vec<_>>().into_iter().rev().filter(|path| path.parent().is_some()) {
            if !state.has_folder(folder) {
                state.act(ChangeKind::Name { path: folder.to_owned(), entry: Some(Entry::Folder) });
            }
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.working()?;
        if !state.has_folder(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(state.medium.names_in(path).cloned().collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.working()?;
        Ok(path.parent().is_none() || state.medium.entry(path).is_some())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk::spend(self.draw_nanos(NAME_NANOS)?);
        let mut state = self.working()?;
        let entry = state.medium.entry(from).ok_or(io::ErrorKind::NotFound)?;
        state.try_name()?;
        state.act(ChangeKind::Name { path: from.to_owned(), entry: None });
        state.act(ChangeKind::Name { path: to.to_owned(), entry: Some(entry) });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Disk::spend(self.draw_nanos(NAME_NANOS)?);
        let mut state = self.working()?;
        state.medium.entry(path).ok_or(io::ErrorKind::NotFound)?;
        state.try_name()?;
        state.act(ChangeKind::Name { path: path.to_owned(), entry: None });
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        Disk::spend(self.draw_nanos(SYNC_NANOS)?);
        let mut state = self.working()?;
        if !state.has_folder(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let one_in = state.faults.sync_fails_one_in;
        if state.random.one_in(one_in) {
            state.harm.syncs_failed += 1;
            return Err(input_output_error());
        }
        if state.faults.lies {
            state.harm.lies += 1;
        } else {
            state.act(ChangeKind::SyncFolder { path: path.to_owned() });
        }
        Ok(())
    }

    fn now(&self) -> Duration {
        current().map_or_else(|| self.started.elapsed(), |task| task.now())
    }

    /// The simulated year begins with the simulation, so that a seed always writes the same bytes.
    fn wall_clock(&self) -> Duration {
        self.now()
    }

    fn random(&self) -> u64 {
        self.lock().random.next()
    }

    fn process_id(&self) -> u32 {
        1
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
        match current() {
            Some(task) => task.spawn(name, body),
            None => std::thread::Builder::new().name(name.to_owned()).spawn(body),
        }
    }
}

enum Direction {
    /// A read. If its bytes were read when it was pushed, it already has its result.
    Read(Option<io::Result<usize>>),
    Write,
}

struct Request {
    direction: Direction,
    file: FileRef,
    offset: u64,
    buffer: AlignedBuffer,
    token: u64,
}

impl Request {
    fn run(mut self, disk: &Disk) -> Completion {
        let own = self.file.as_any().downcast_ref::<DiskFile>();
        let mut transferred = self.buffer.len();
        let result = match (own, self.direction) {
            (None, _) => Err(io::Error::new(io::ErrorKind::InvalidInput, "the file belongs to another backend")),
            (Some(own), Direction::Write) => {
                own.check(&self.buffer, self.offset);
                disk.working().and_then(|mut state| state.write(own.file, self.offset as usize, &self.buffer).map(drop))
            }
            (Some(own), Direction::Read(found)) => {
                let found = found.unwrap_or_else(|| {
                    disk.working().and_then(|mut state| state.read(own.file, &mut self.buffer, self.offset as usize))
                });
                found.and_then(|count| {
                    transferred = count;
                    if count == self.buffer.len() { Ok(()) } else { Err(end_of_file()) }
                })
            }
        };
        drop(self.file);
        Completion { token: self.token, buffer: self.buffer, result, transferred }
    }
}

/// A queue whose requests are ordered by the time at which they finish.
struct DiskQueue {
    disk: Disk,
    depth: usize,
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    pushed: u64,
    in_flight: BTreeMap<(Duration, u64), Request>,
}

impl DiskQueue {
    /// No task sleeps while it holds this lock. So it is an ordinary lock, unknown to the simulation.
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, mut request: Request) {
        assert!(self.in_flight() < self.depth, "more requests than the queue's depth of {}", self.depth);
        let nanos = self.disk.draw_nanos(READ_NANOS).unwrap_or(0);
        let at = current().map_or(Duration::ZERO, |task| task.now()) + Duration::from_nanos(nanos);
        if let Some(own) = request.file.as_any().downcast_ref::<DiskFile>()
            && matches!(request.direction, Direction::Read(_))
        {
            own.check(&request.buffer, request.offset);
            // A read sees the contents either when it is pushed or when it ends.
            let mut state = self.disk.lock();
            if !state.off && state.random.chance(50) {
                let found = state.read(own.file, &mut request.buffer, request.offset as usize);
                request.direction = Direction::Read(Some(found));
            }
        }
        let mut requests = self.requests();
        requests.pushed += 1;
        let number = requests.pushed;
        requests.in_flight.insert((at, number), request);
    }

    fn request(file: &FileRef, direction: Direction, offset: u64, buffer: AlignedBuffer, token: u64) -> Request {
        Request { direction, file: Arc::clone(file), offset, buffer, token }
    }
}

impl fmt::Debug for DiskQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskQueue({} in flight)", self.in_flight())
    }
}

fn sleep_until(task: &Task, at: Duration) {
    let now = task.now();
    if at > now {
        task.sleep(at - now);
    }
}

impl Queue for DiskQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.requests().in_flight.len()
    }

    fn push_read(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.push(Self::request(file, Direction::Read(None), offset, buffer, token));
    }

    fn push_write(&self, file: &FileRef, offset: u64, buffer: AlignedBuffer, token: u64) {
        self.push(Self::request(file, Direction::Write, offset, buffer, token));
    }

    fn submit(&self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&self, minimum: usize, finished: &mut Vec<Completion>) -> io::Result<()> {
        let task = current();
        let mut count = 0;
        loop {
            let first = self.requests().in_flight.first_key_value().map(|(&(at, _), _)| at);
            let Some(at) = first else { break };
            let is_due = task.as_ref().is_none_or(|task| at <= task.now());
            if count >= minimum && !is_due {
                break;
            }
            if let Some(task) = &task {
                sleep_until(task, at);
            }
            // The request is missing only if another waiting thread has taken it.
            let Some((_, request)) = self.requests().in_flight.pop_first() else { break };
            finished.push(request.run(&self.disk));
            count += 1;
        }
        Ok(())
    }
}

impl Drop for DiskQueue {
    fn drop(&mut self) {
        let _ = self.wait(self.in_flight(), &mut Vec::new());
    }
}
