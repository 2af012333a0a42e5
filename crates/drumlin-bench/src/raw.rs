//! Measures the device's limits: direct reads of the files of the engine under test, and durable writes next to them.
//!
//! The host may cache the drive's data, and other virtual machines may share the drive. So limits are comparable only
//! if they are for the same blocks and measured at nearly the same time. [`heat`] reads the files once, so that the
//! host's cache is in the same state for each engine.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use drumlin_io::{AlignedBuffer, FileRef, IoBackend, OpenOptions, Persist, Probe, SyncMethod, backend};
use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use crate::measure::files;

const BLOCK_BYTES: usize = 4096;
/// The size of a sequential read in bytes.
const SEQUENTIAL_BYTES: usize = 1 << 20;
/// The number of requests in flight of a copy.
const COPY_DEPTH: usize = 8;
/// The token of a read of a copy. Its write has another.
const IS_READ: u64 = 0;
/// Files smaller than this are ignored.
const FILE_BYTES_MIN: u64 = 1 << 20;

/// Reads per second, by the number of reads in flight.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RawReads {
    pub depth_1: f64,
    pub depth_32: f64,
    pub depth_64: f64,
}

/// Opens the large files of a folder. Returns each file with the number of its whole blocks.
fn open_files(folder: &Path) -> io::Result<Vec<(FileRef, u64)>> {
    let io = backend(IoBackend::Auto)?;
    let mut found = Vec::new();
    for path in files(folder) {
        let file = io.open(&path, OpenOptions { direct: true, ..OpenOptions::default() })?;
        let bytes = file.len()?;
        if bytes >= FILE_BYTES_MIN && file.is_direct() {
            found.push((file, bytes / BLOCK_BYTES as u64));
        }
    }
    Ok(found)
}

/// Measures random reads for `duration` at each depth. Returns `None` if all files are too small, or don't support
/// direct reads.
///
/// # Errors
/// The errors of the reads.
pub fn reads(folder: &Path, duration: Duration) -> io::Result<Option<RawReads>> {
    let files = open_files(folder)?;
    if files.is_empty() {
        return Ok(None);
    }
    let rate = |depth| reads_at(&files, depth, duration);
    Ok(Some(RawReads { depth_1: rate(1)?, depth_32: rate(32)?, depth_64: rate(64)? }))
}

fn reads_at(files: &[(FileRef, u64)], depth: usize, duration: Duration) -> io::Result<f64> {
    let queue = backend(IoBackend::Auto)?.queue(depth)?;
    let total: u64 = files.iter().map(|(_, blocks)| blocks).sum();
    let mut random = Random(depth as u64);
    let mut place = move || {
        let mut block = random.below(total);
        for (file, blocks) in files {
            if block < *blocks {
                return (file, block * BLOCK_BYTES as u64);
            }
            block -= blocks;
        }
        unreachable!("the block is below the total")
    };
    let mut free: Vec<AlignedBuffer> = (0..depth).map(|_| AlignedBuffer::zeroed(BLOCK_BYTES)).collect();
    let mut finished = Vec::new();
    let mut count = 0u64;
    let begun = Instant::now();
    while begun.elapsed() < duration {
        while let Some(buffer) = free.pop() {
            let (file, offset) = place();
            queue.push_read(file, offset, buffer, 0);
        }
        // Reap a quarter of the reads at a time, because reaping them one by one would measure the cost of the calls.
        queue.wait((depth / 4).max(1), &mut finished)?;
        for completion in finished.drain(..) {
            completion.result?;
            count += 1;
            free.push(completion.buffer);
        }
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Copies the large files of a folder into a new file, 1 MiB at a time with several requests in flight, bypassing the
/// page cache, syncs the copy and removes it. Returns the bytes copied per second, or `None` as [`reads`] does.
///
/// # Errors
/// The errors of reading and writing.
pub fn copy(folder: &Path, target: &Path) -> io::Result<Option<f64>> {
    let files = open_files(folder)?;
    if files.is_empty() {
        return Ok(None);
    }
    let path = target.join("raw-copy");
    let io = backend(IoBackend::Auto)?;
    let options = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
    let copy = io.open(&path, options)?;
    let queue = io.queue(COPY_DEPTH)?;
    let mut chunks = files.iter().flat_map(|(file, blocks)| {
        let bytes = blocks * BLOCK_BYTES as u64;
        (0..bytes / SEQUENTIAL_BYTES as u64).map(move |chunk| (file, chunk * SEQUENTIAL_BYTES as u64))
    });
    let mut free: Vec<AlignedBuffer> = (0..COPY_DEPTH).map(|_| AlignedBuffer::zeroed(SEQUENTIAL_BYTES)).collect();
    let (mut finished, mut in_flight, mut read, mut written) = (Vec::new(), 0, 0u64, 0u64);
    let begun = Instant::now();
    loop {
        while let Some(buffer) = free.pop() {
            let Some((file, offset)) = chunks.next() else { break };
            queue.push_read(file, offset, buffer, IS_READ);
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        queue.wait(1, &mut finished)?;
        for completion in finished.drain(..) {
            completion.result?;
            if completion.token == IS_READ {
                queue.push_write(&copy, read, completion.buffer, 1);
                read += SEQUENTIAL_BYTES as u64;
            } else {
                written += SEQUENTIAL_BYTES as u64;
                in_flight -= 1;
                free.push(completion.buffer);
            }
        }
    }
    std::fs::File::open(&path)?.sync_data()?;
    let rate = written as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok((written > 0).then_some(rate))
}

/// Reads the large files of a folder from beginning to end, 1 MiB at a time with several requests in flight, bypassing
/// the page cache. Returns the bytes read per second, or `None` as [`reads`] does.
///
/// # Errors
/// The errors of the reads.
pub fn sequential(folder: &Path) -> io::Result<Option<f64>> {
    let files = open_files(folder)?;
    if files.is_empty() {
        return Ok(None);
    }
    let queue = backend(IoBackend::Auto)?.queue(COPY_DEPTH)?;
    let mut chunks = files.iter().flat_map(|(file, blocks)| {
        let chunks = blocks * BLOCK_BYTES as u64 / SEQUENTIAL_BYTES as u64;
        (0..chunks).map(move |chunk| (file, chunk * SEQUENTIAL_BYTES as u64))
    });
    let mut free: Vec<AlignedBuffer> = (0..COPY_DEPTH).map(|_| AlignedBuffer::zeroed(SEQUENTIAL_BYTES)).collect();
    let (mut finished, mut in_flight, mut read) = (Vec::new(), 0, 0u64);
    let begun = Instant::now();
    loop {
        while let Some(buffer) = free.pop() {
            let Some((file, offset)) = chunks.next() else { break };
            queue.push_read(file, offset, buffer, IS_READ);
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        queue.wait(1, &mut finished)?;
        for completion in finished.drain(..) {
            completion.result?;
            read += SEQUENTIAL_BYTES as u64;
            in_flight -= 1;
            free.push(completion.buffer);
        }
    }
    Ok((read > 0).then(|| read as f64 / begun.elapsed().as_secs_f64()))
}

/// Durable writes of consecutive blocks in a file that was filled with zeros, and is removed at the end.
#[derive(Debug)]
pub struct DurableWrites {
    file: FileRef,
    path: PathBuf,
    method: SyncMethod,
    buffer: AlignedBuffer,
    next_offset: u64,
}

/// The size of the file of [`DurableWrites`].
const WRITTEN_BYTES: u64 = 64 << 20;
/// The time for the choice of the sync method.
const PROBE_DURATION: Duration = Duration::from_millis(300);

impl DurableWrites {
    /// Creates the file, and chooses the fastest method that makes a write durable there.
    ///
    /// # Errors
    /// The errors of creating and writing it.
    pub fn create(folder: &Path) -> io::Result<DurableWrites> {
        let io = backend(IoBackend::Auto)?;
        let method = Probe::run(io.as_ref(), folder, PROBE_DURATION)?.chosen;
        let path = folder.join("raw-writes");
        let options = OpenOptions { write: true, create: true, direct: true, ..OpenOptions::default() };
        let file = io.open(&path, options)?;
        let zeros = AlignedBuffer::zeroed(SEQUENTIAL_BYTES);
        for offset in (0..WRITTEN_BYTES).step_by(SEQUENTIAL_BYTES) {
            file.write_at(&zeros, offset, Persist::Later)?;
        }
        file.sync_all()?;
        Ok(DurableWrites { file, path, method, buffer: AlignedBuffer::zeroed(BLOCK_BYTES), next_offset: 0 })
    }

    /// Returns the durable writes per second of one thread.
    ///
    /// # Errors
    /// The errors of the writes.
    pub fn rate(&mut self, duration: Duration) -> io::Result<f64> {
        let (begun, mut count) = (Instant::now(), 0u64);
        while begun.elapsed() < duration {
            self.buffer[..8].copy_from_slice(&count.to_le_bytes());
            self.file.write_at(&self.buffer, self.next_offset, Persist::Now(self.method))?;
            self.next_offset = (self.next_offset + BLOCK_BYTES as u64) % WRITTEN_BYTES;
            count += 1;
        }
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }
}

impl Drop for DurableWrites {
    fn drop(&mut self) {
        // If this fails, the run removes the file with its folder.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Reads all files of a folder once, bypassing the page cache.
///
/// # Errors
/// The errors of the reads.
pub fn heat(folder: &Path) -> io::Result<()> {
    let mut buffer = AlignedBuffer::zeroed(SEQUENTIAL_BYTES);
    for (file, blocks) in open_files(folder)? {
        let bytes = blocks * BLOCK_BYTES as u64;
        for offset in (0..bytes).step_by(SEQUENTIAL_BYTES) {
            let length = usize::try_from((bytes - offset).min(SEQUENTIAL_BYTES as u64)).expect("at most 1 MiB");
            file.read_at(&mut buffer[..length], offset)?;
        }
    }
    Ok(())
}
