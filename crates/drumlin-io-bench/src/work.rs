//! The rows of the table. Each row has its own reads or writes: which ranges they cover, and which bytes they transfer.
//!
//! Block `n` of a file begins and ends with the number `n`, mixed with a seed, so both ends of every block read can be
//! checked.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drumlin_io::{AlignedBuffer, IoBackend, OpenOptions, Persist};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub(crate) const BLOCK_BYTES: usize = 4096;
/// The size of a request in the sequential rows, in bytes.
pub(crate) const REQUEST_BYTES: usize = 512 << 10;
/// The number of sequential requests in flight.
pub(crate) const REQUESTS: usize = 5;
/// The number of ranges in one call of `read_many`.
pub(crate) const RANGES: usize = 256;
/// The number of bytes in one range of `read_many`.
pub(crate) const RANGE_BYTES: usize = 1000;
/// The number of blocks that the ranges of a near call are spread over.
const WINDOW_BLOCKS: u64 = 1024;
const WRITE_BYTES: u64 = 1 << 30;

const READ_FILE: &str = "drumlin-io-bench.read";
const WRITE_FILE: &str = "drumlin-io-bench.write";
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Row {
    /// Random reads of single blocks, with this many in flight.
    Random(usize),
    /// Calls of `read_many`: `false` for ranges scattered over the file, `true` for ranges near each other.
    Many(bool),
    /// Sequential reads.
    Read,
    /// Sequential writes, followed by a sync.
    Write,
}

impl Row {
    pub(crate) fn all() -> Vec<Row> {
        let random = [1, 4, 16, 64, 256].map(Row::Random);
        random.into_iter().chain([Row::Many(false), Row::Many(true), Row::Read, Row::Write]).collect()
    }

    pub(crate) fn name(self) -> String {
        match self {
            Row::Random(depth) => format!("random-{depth}"),
            Row::Many(false) => "many-scattered".to_owned(),
            Row::Many(true) => "many-near".to_owned(),
            Row::Read => "read".to_owned(),
            Row::Write => "write".to_owned(),
        }
    }

    pub(crate) fn title(self) -> String {
        match self {
            Row::Random(depth) => format!("random reads of 4 KiB, {depth} in flight"),
            Row::Many(false) => format!("{RANGES} ranges of 1,000 B at once, scattered"),
            Row::Many(true) => format!("{RANGES} ranges of 1,000 B at once, within 4 MiB"),
            Row::Read => "sequential reads".to_owned(),
            Row::Write => "sequential writes and a sync".to_owned(),
        }
    }

    /// Returns `true` if the row counts bytes, not reads or ranges.
    pub(crate) fn is_sequential(self) -> bool {
        matches!(self, Row::Read | Row::Write)
    }

    /// Returns the number of requests in flight.
    pub(crate) fn depth(self) -> usize {
        match self {
            Row::Random(depth) => depth,
            Row::Many(_) => RANGES,
            Row::Read | Row::Write => REQUESTS,
        }
    }
}

/// The reads or writes of one measurement, shared by the tasks and threads that perform them.
pub(crate) struct Work {
    pub(crate) row: Row,
    pub(crate) path: PathBuf,
    pub(crate) file_bytes: u64,
    duration: Duration,
    next: AtomicU64,
    done: AtomicU64,
    is_over: AtomicBool,
    started: Mutex<Option<(Instant, f64)>>,
}

/// The result of one measurement.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The number of reads, ranges or bytes done.
    pub(crate) units: u64,
    pub(crate) seconds: f64,
    /// The processor time of this process, in user and system mode.
    pub(crate) processor_seconds: f64,
    /// The average number of processors that other processes kept busy.
    pub(crate) other_processors: f64,
}

impl Measured {
    /// Returns the number of units per second.
    pub(crate) fn rate(&self) -> f64 {
        self.units as f64 / self.seconds
    }

    /// Returns the processor time per unit, in seconds.
    pub(crate) fn cost(&self) -> f64 {
        self.processor_seconds / self.units as f64
    }

    pub(crate) fn describe(&self, row: Row) -> String {
        let others = format!("others {:.2}", self.other_processors);
        if row.is_sequential() {
            return format!("{:8.2} GB/s {:8.3} s/GB   {others}", self.rate() / 1e9, self.cost() * 1e9);
        }
        format!("{:8.1} k/s  {:8.2} µs     {others}", self.rate() / 1e3, self.cost() * 1e6)
    }
}

impl Work {
    pub(crate) fn new(row: Row, folder: &Path, duration: Duration) -> io::Result<Arc<Work>> {
        let path = folder.join(if row == Row::Write { WRITE_FILE } else { READ_FILE });
        let file_bytes = fs::metadata(&path)?.len();
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let (is_over, started) = (AtomicBool::new(false), Mutex::new(None));
        Ok(Arc::new(Work { row, path, file_bytes, duration, next, done, is_over, started }))
    }

    /// Starts the measurement, once all preparations are done.
    pub(crate) fn start(&self) {
        *self.started.lock().unwrap() = Some((Instant::now(), process_seconds()));
    }

    /// Ends the measurement.
    pub(crate) fn finish(&self) -> Measured {
        let (started, processor_before) = self.started.lock().unwrap().expect("the measurement has begun");
        let (seconds, processor_seconds) = (started.elapsed().as_secs_f64(), process_seconds() - processor_before);
        let units = self.done.load(Ordering::Relaxed);
        Measured { units, seconds, processor_seconds, other_processors: 0.0 }
    }

    /// Returns the index of the next request, or `None` if the time is up.
    fn next(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Reading the clock is the most expensive step, so random reads check the time only at every 32nd request.
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        if !matches!(self.row, Row::Random(_)) || number % 32 == 31 {
            let (started, _) = self.started.lock().unwrap().expect("the measurement has begun");
            if started.elapsed() >= self.duration {
                self.is_over.store(true, Ordering::Relaxed);
                return None;
            }
        }
        Some(number)
    }

    /// Returns the next block to read.
    pub(crate) fn next_block(&self) -> Option<u64> {
        self.next().map(|number| mix(SEED ^ number) % (self.file_bytes / BLOCK_BYTES as u64))
    }

    /// Returns the offset of the next sequential request.
    pub(crate) fn next_request(&self) -> Option<u64> {
        self.next().map(|number| number * REQUEST_BYTES as u64 % self.file_bytes)
    }

    /// Returns the ranges of the next call of `read_many`. They are distinct, and each starts at a block boundary.
    pub(crate) fn next_ranges(&self) -> Option<Vec<Range<u64>>> {
        let Row::Many(is_near) = self.row else { unreachable!("the row has ranges") };
        let number = self.next()?;
        let blocks = self.file_bytes / BLOCK_BYTES as u64;
        let (window_start, window) = match is_near {
            true => (mix(SEED ^ !number) % (blocks - WINDOW_BLOCKS), WINDOW_BLOCKS),
            false => (0, blocks),
        };
        let part = window / RANGES as u64;
        let range = |index: u64| {
            let block = window_start + index * part + mix(SEED ^ (number * RANGES as u64 + index)) % part;
            let start = block * BLOCK_BYTES as u64;
            start..start + RANGE_BYTES as u64
        };
        // Shuffle the ranges.
        Some((0..RANGES as u64).map(|index| range(index * 101 % RANGES as u64)).collect())
    }

    /// Adds to the number of finished units.
    pub(crate) fn done(&self, units: usize) {
        self.done.fetch_add(units as u64, Ordering::Relaxed);
    }

    /// Checks some of the written blocks.
    pub(crate) fn check_written(&self) -> io::Result<()> {
        if self.row != Row::Write {
            return Ok(());
        }
        let backend = drumlin_io::backend(IoBackend::Portable)?;
        let file = backend.open(&self.path, OpenOptions { direct: true, ..OpenOptions::default() })?;
        let mut buffer = AlignedBuffer::zeroed(REQUEST_BYTES);
        let written = (self.done.load(Ordering::Relaxed)).min(self.file_bytes);
        for offset in (0..written).step_by(REQUEST_BYTES * 16) {
            file.read_at(&mut buffer, offset)?;
            check_blocks(&buffer, offset);
        }
        Ok(())
    }
}

/// Scatters the bits of a number (SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Stamps each block of a buffer with its number. `offset` is the buffer's offset in the file.
pub(crate) fn stamp_blocks(buffer: &mut [u8], offset: u64) {
    for (index, block) in buffer.chunks_mut(BLOCK_BYTES).enumerate() {
        let stamp = (SEED ^ (offset / BLOCK_BYTES as u64 + index as u64)).to_le_bytes();
        block[..8].copy_from_slice(&stamp);
        block[BLOCK_BYTES - 8..].copy_from_slice(&stamp);
    }
}

/// Checks the stamps of whole blocks that were read from `offset`.
pub(crate) fn check_blocks(buffer: &[u8], offset: u64) {
    for (index, block) in buffer.chunks(BLOCK_BYTES).enumerate() {
        let stamp = (SEED ^ (offset / BLOCK_BYTES as u64 + index as u64)).to_le_bytes();
        assert!(block[..8] == stamp && block[BLOCK_BYTES - 8..] == stamp, "wrong bytes at {offset}, block {index}");
    }
}

/// Checks the length and the first stamp of a range that starts at a block boundary.
pub(crate) fn check_range(bytes: &[u8], offset: u64) {
    assert_eq!(bytes.len(), RANGE_BYTES, "a range of {RANGE_BYTES} bytes at {offset}");
    assert_eq!(bytes[..8], (SEED ^ (offset / BLOCK_BYTES as u64)).to_le_bytes(), "wrong bytes at {offset}");
}

/// Creates the files, unless they exist and have the right lengths.
pub(crate) fn make_files(folder: &Path, read_bytes: u64) -> io::Result<()> {
    for (name, bytes) in [(READ_FILE, read_bytes), (WRITE_FILE, WRITE_BYTES)] {
        let path = folder.join(name);
        if fs::metadata(&path).is_ok_and(|found| found.len() == bytes) {
            continue;
        }
        let backend = drumlin_io::backend(IoBackend::Portable)?;
        let options = OpenOptions { write: true, create: true, direct: true, ..OpenOptions::default() };
        let file = backend.open(&path, options)?;
        if !file.is_direct() {
            return Err(io::Error::other(format!("{} can't be read directly", path.display())));
        }
        file.set_len(0)?;
        file.allocate(0, bytes)?;
        let mut buffer = AlignedBuffer::zeroed(8 << 20);
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = mix(index as u64) as u8;
        }
        for offset in (0..bytes).step_by(buffer.len()) {
            stamp_blocks(&mut buffer, offset);
            file.write_at(&buffer, offset, Persist::Later)?;
        }
        file.sync_all()?;
    }
    Ok(())
}

pub(crate) fn remove_files(folder: &Path) -> io::Result<()> {
    fs::remove_file(folder.join(READ_FILE))?;
    fs::remove_file(folder.join(WRITE_FILE))
}

/// Opens the file that the row reads or writes: for direct I/O, or buffered, after evicting the file from the page
/// cache.
pub(crate) fn open(work: &Work, is_direct: bool) -> io::Result<fs::File> {
    let flags = if is_direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
    let file = fs::OpenOptions::new().read(true).write(work.row == Row::Write).custom_flags(flags).open(&work.path)?;
    if !is_direct {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        if !work.row.is_sequential() {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        }
    }
    Ok(file)
}

/// Returns the processor time of this process in user and system mode, in seconds.
pub(crate) fn process_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
