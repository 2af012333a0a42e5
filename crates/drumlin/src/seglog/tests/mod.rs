//! The log on a simulated disk: each rule on its own ([`rules`]), then all rules together under power cuts ([`crash`]).

mod crash;
mod rules;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drumlin_testing::Random;

use super::*;
use crate::format::{DatabaseId, StreamId};
use crate::io::SyncMethod;
use crate::io::fault::{EIO, FaultyBackend, Operation};
use crate::io::sim::{self, Faults, Loss, Medium};

const DATABASE: DatabaseId = DatabaseId(0xd0_d0);
const DIR: &str = "/log";

/// Small segments and buffers, so that a few records reach every boundary.
fn options(streams: u16) -> LogOptions {
    LogOptions {
        streams,
        segment_bytes: 9 * 4096,
        buffer_bytes: usize::from(streams) * 64 * 1024,
        reader_bytes: usize::from(streams) * 16 * 1024,
        margin_bytes: 0,
        last_bytes: 0,
        window_margin_bytes: 0,
        body_bytes: 0,
        sync: SyncMethod::DurableWrite,
        relaxed_delay: RELAXED_DELAY,
        database: DATABASE,
    }
}

/// Returns a body of about `bytes` bytes. Different numbers get different bodies.
fn body_of(number: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(number);
    let mut body = number.to_le_bytes().to_vec();
    while body.len() < bytes {
        body.extend(random.next().to_le_bytes());
    }
    body.truncate(bytes.max(8));
    body
}

/// Creates and opens a folder.
fn folder_of(backend: &Arc<dyn Backend>, path: &str) -> FolderRef {
    backend.create_dir_all(Path::new(path)).unwrap();
    crate::io::open_folder(backend, Path::new(path)).unwrap()
}

/// The simulated disk, with the faults that a test injects.
struct Disk {
    disk: sim::Disk,
    faulty: FaultyBackend,
    has_threads: bool,
}

impl Disk {
    fn new(has_threads: bool) -> Arc<Disk> {
        Disk::with(Medium::default(), has_threads)
    }

    fn with(medium: Medium, has_threads: bool) -> Arc<Disk> {
        let disk = sim::Disk::new(medium, 4);
        let faulty = FaultyBackend::new(disk.backend());
        if !has_threads {
            faulty.refuse_threads("");
        }
        Arc::new(Disk { disk, faulty, has_threads })
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.faulty.clone())
    }

    /// Turns the disk off, and returns it in a state that a power cut at this moment might leave.
    fn cut(&self, random: &mut Random) -> Arc<Disk> {
        self.disk.turn_off();
        let after = self.disk.medium().cut(Loss::Sectors, &mut sim::Random(random.next()));
        Disk::with(after, self.has_threads)
    }

    /// Returns the disk as it is if the process ends without a power cut: nothing is lost.
    fn copy(&self) -> Arc<Disk> {
        Disk::with(self.disk.medium(), self.has_threads)
    }

    /// Cuts the power in the middle of a future write: the `writes`-th, counting from now.
    fn cut_after(&self, writes: u64) {
        self.disk.turn_off_in_write(writes);
    }

    /// Puts the disk into the state that a failed sync leaves.
    fn forget_pending(&self) {
        self.disk.with_medium(Medium::forget_pending);
    }

    fn is_off(&self) -> bool {
        self.disk.is_off()
    }

    fn fail_writes(&self) {
        self.faulty.fail_from(Operation::Write, 1, EIO);
    }

    fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.disk.set_faults(Faults { capacity_bytes, ..Faults::default() });
    }

    fn used_bytes(&self) -> u64 {
        self.disk.with_medium(|medium| medium.bytes())
    }

    fn write_count(&self) -> u64 {
        self.disk.write_count()
    }

    /// Holds the next durable write until [`release`](Disk::release) is called.
    fn hold(&self) {
        self.faulty.hold_nth(Operation::Sync, 1);
    }

    /// Waits until a write is held.
    fn wait_held(&self) {
        assert!(self.faulty.wait_for_held(Duration::from_secs(60)), "nothing is written");
    }

    fn release(&self) {
        self.faulty.release();
    }

    fn files(&self) -> Vec<PathBuf> {
        self.disk.with_medium(|medium| medium.files())
    }

    fn bytes(&self, path: &Path) -> Vec<u8> {
        self.disk.with_medium(|medium| medium.file_bytes(path))
    }

    fn tamper(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        self.disk.with_medium(|medium| medium.tamper(path, change));
    }
}

/// A log on its disk, and what the superblock would contain.
struct Rig {
    disk: Arc<Disk>,
    backend: Arc<dyn Backend>,
    options: LogOptions,
    openings: Vec<(Incarnation, Timestamp)>,
    covered: Timestamp,
    checkpoint: CheckpointNumber,
    /// The ranges that must exist, as the log last listed them.
    listed: Arc<Mutex<Vec<LogRange>>>,
    /// Set if the log was closed and no window has been prepared since.
    closed: Arc<AtomicBool>,
}

impl Rig {
    fn new(disk: Arc<Disk>, options: LogOptions) -> Rig {
        Rig {
            backend: disk.backend(),
            disk,
            options,
            openings: Vec::new(),
            covered: Timestamp(0),
            checkpoint: CheckpointNumber::NONE,
            listed: Arc::default(),
            closed: Arc::default(),
        }
    }

    fn move_to(&mut self, disk: Arc<Disk>) {
        self.backend = disk.backend();
        self.disk = disk;
    }

    fn folder(&self) -> FolderRef {
        crate::io::open_folder(&self.backend, Path::new(DIR)).unwrap()
    }

    /// Returns the path of a segment's file.
    fn path(&self, stream: u16, slot: u32) -> PathBuf {
        Path::new(DIR).join(segment::name(StreamId(stream), SlotNumber(slot)))
    }

    /// Returns hooks that remember the listed ranges and whether the log was closed.
    fn hooks(&self) -> Hooks {
        let write = || {
            let disk = Arc::clone(&self.disk);
            move || if disk.is_off() { Err(io::Error::other("the power is off")) } else { Ok(()) }
        };
        let write_ranges = || {
            let (write, listed) = (write(), Arc::clone(&self.listed));
            move |ranges: &[LogRange]| write().map(|()| *listed.lock() = ranges.to_vec())
        };
        let write_closed = || {
            let (write, closed) = (write(), Arc::clone(&self.closed));
            move |is_closed| write().map(|()| closed.store(is_closed, Ordering::SeqCst))
        };
        let (list, open, no_ranges, close) = (write_ranges(), write_closed(), write_ranges(), write_closed());
        Hooks {
            before_window: Box::new(move || open(false)),
            list: Box::new(list),
            on_closed: Box::new(move || no_ranges(&[]).and_then(|()| close(true))),
            ..Hooks::none()
        }
    }

    fn create(&mut self) -> Log {
        self.openings.push((Incarnation(1), Timestamp(1)));
        self.backend.create_dir_all(Path::new(DIR)).unwrap();
        self.backend.sync_dir(Path::new("/")).unwrap();
        Log::create(&self.backend, &self.folder(), &self.options, Incarnation(1), self.hooks()).unwrap()
    }

    fn scan(&self) -> Result<Scan> {
        let ranges = &self.listed.lock().clone();
        let known = SuperblockLogState {
            incarnations: &self.openings,
            checkpoint: self.checkpoint,
            covered: self.covered,
            ranges,
            is_closed: self.closed.load(Ordering::SeqCst),
            covered_position: None,
        };
        Scan::open(&self.backend, &self.folder(), &self.options, &known)
    }

    /// Adds the next opening to the list, as the superblock does before the log starts.
    fn list_opening(&mut self, last: Timestamp) -> Incarnation {
        let incarnation = Incarnation(self.openings.last().map_or(1, |&(newest, _)| newest.0 + 1));
        self.openings.push((incarnation, last.next()));
        incarnation
    }

    fn start(&mut self, scan: Scan) -> Log {
        let incarnation = self.list_opening(scan.last());
        scan.start(incarnation, self.checkpoint, self.hooks()).unwrap()
    }

    fn reopen(&mut self) -> Log {
        let scan = self.scan().unwrap();
        self.start(scan)
    }

    fn truncate(&mut self, log: &Log, covered: Timestamp) {
        self.covered = covered;
        self.checkpoint = self.checkpoint.next();
        log.truncate(covered, self.checkpoint);
    }

    /// Returns the timestamps and bodies that recovery would apply.
    fn recovered(&self) -> Vec<(u64, Vec<u8>)> {
        contents(self.scan().unwrap().records().unwrap())
    }
}

fn contents(records: Records) -> Vec<(u64, Vec<u8>)> {
    records.map(|record| record.map(|record| (record.timestamp.0, record.body)).unwrap()).collect()
}

fn timestamps(records: Records) -> Vec<u64> {
    contents(records).into_iter().map(|(timestamp, _)| timestamp).collect()
}

fn append(log: &Log, stream: usize, body: Vec<u8>) -> Appended {
    log.reserve(stream, body.len()).unwrap().append(&Body::new(body)).unwrap()
}

fn commit(log: &Log, stream: usize, body: Vec<u8>) -> Timestamp {
    let appended = append(log, stream, body);
    log.wait_durable(&appended).unwrap();
    assert!(log.durable() >= appended.timestamp);
    appended.timestamp
}

/// Commits records from the next timestamp up to `last`, on all streams in turn. Their bodies are derived from their
/// numbers.
fn commit_to(log: &Log, last: u64, bytes: usize) {
    while log.last().0 < last {
        let number = log.last().0 + 1;
        commit(log, number as usize % log.stream_count(), body_of(number, bytes));
    }
}

fn expect(first: u64, last: u64, bytes: usize) -> Vec<(u64, Vec<u8>)> {
    (first..=last).map(|number| (number, body_of(number, bytes))).collect()
}

/// Returns the file that the error names, and the whole message. The scan must have found corruption.
fn damage(result: Result<Scan>) -> (PathBuf, String) {
    match result {
        Err(error @ Error::Corrupted { .. }) => {
            let message = error.to_string();
            let Error::Corrupted { path, .. } = error else { unreachable!() };
            (path, message)
        }
        other => panic!("expected damage, found {other:?}"),
    }
}
