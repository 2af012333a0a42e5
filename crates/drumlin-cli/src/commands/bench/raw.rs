//! The raw device, measured through `drumlin_io` alone: the rate that the store would reach if it added no overhead.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drumlin::IoBackend;
use drumlin_io::{AlignedBuffer, Backend, FileRef, OpenOptions, Persist, SyncMethod};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rustix::fs::{Advice, SeekFrom, fadvise};

use super::measure::per_second;
use crate::failure::{Failure, Result};

/// The request size of a sequential read, and the number of requests in flight. S4: a few large requests in flight
/// saturate any drive.
const SCAN_BYTES: usize = 512 << 10;
const SCAN_DEPTH: usize = 8;

/// The size of a durable write.
const WRITE_BYTES: usize = 4096;
/// Size of the file that is written: small enough for any drive to treat as a working set.
const WRITE_FILE_BYTES: u64 = 64 << 20;

fn backend() -> Result<Arc<dyn Backend>> {
    drumlin_io::backend(IoBackend::Auto).map_err(|error| Failure::other(format!("starting the I/O backend: {error}")))
}

/// Reads from one file of the database. They are direct, except for half of the sequential reads.
#[derive(Debug)]
pub(super) struct Reads {
    backend: Arc<dyn Backend>,
    file: FileRef,
    /// The same file, opened for reads through the page cache.
    buffered: FileRef,
    path: PathBuf,
    written: Vec<Range<u64>>,
}

impl Reads {
    pub(super) fn open(path: &Path) -> Result<Reads> {
        let failed = |error: std::io::Error| Failure::file("reading", path, &error);
        let backend = backend()?;
        let file = backend.open(path, OpenOptions { direct: true, ..OpenOptions::default() }).map_err(failed)?;
        let buffered = backend.open(path, OpenOptions::default()).map_err(failed)?;
        let written = written(path).map_err(failed)?;
        Ok(Reads { backend, file, buffered, path: path.to_path_buf(), written })
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::file("reading", &self.path, error)
    }

    /// Reads the whole file once, so that any cache below the device (such as a host's) is as warm as it will be for
    /// the store.
    pub(super) fn warm(&self) -> Result<()> {
        self.sequential_direct(Duration::MAX).map(|_| ())
    }

    /// Returns the bytes per second of sequential direct reads, up to the end of the file or the time limit.
    pub(super) fn sequential_direct(&self, limit: Duration) -> Result<f64> {
        let start = Instant::now();
        let places = Places::new(&self.written, SCAN_BYTES as u64);
        let done = self.read(places.all(), SCAN_BYTES, SCAN_DEPTH, start, limit)?;
        Ok(per_second(done as f64 * SCAN_BYTES as f64, start.elapsed()))
    }

    /// Returns the bytes per second of sequential reads through the page cache, with the kernel's read-ahead. The file
    /// is dropped from the page cache first.
    pub(super) fn sequential_buffered(&self, limit: Duration) -> Result<f64> {
        let advised = File::open(&self.path).map_err(|error| self.failed(&error))?;
        // A file system without a page cache ignores the advice.
        let _ = fadvise(&advised, 0, None, Advice::DontNeed);
        let start = Instant::now();
        let mut buffer = AlignedBuffer::zeroed(SCAN_BYTES);
        let mut done = 0;
        for offset in Places::new(&self.written, SCAN_BYTES as u64).all() {
            done += self.count(self.buffered.read_at(&mut buffer, offset))?;
            if start.elapsed() >= limit {
                break;
            }
        }
        let elapsed = start.elapsed();
        // Drop the file from the page cache again, because this memory is not part of the store's memory limit.
        let _ = fadvise(&advised, 0, None, Advice::DontNeed);
        Ok(per_second(done as f64 * SCAN_BYTES as f64, elapsed))
    }

    /// Reads at random offsets on several threads, each with `depth` requests in flight. Returns the reads per second.
    pub(super) fn random(&self, bytes: usize, threads: u64, depth: usize, seed: u64, limit: Duration) -> Result<f64> {
        let places = Places::new(&self.written, bytes as u64);
        if places.count == 0 {
            return Err(Failure::other(format!("{} is too small to be read raw", self.path.display())));
        }
        let start = Instant::now();
        let read = |thread: u64| {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(1000) + thread);
            let offsets = std::iter::repeat_with(|| places.at(random.random_range(0..places.count)));
            self.read(offsets, bytes, depth, start, limit)
        };
        let done = std::thread::scope(|scope| {
            let read = &read;
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || read(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a reading thread panicked")).sum::<Result<u64>>()
        })?;
        Ok(per_second(done as f64, start.elapsed()))
    }

    /// Returns 1 if the read completed, or 0 if it hit space that the store has since returned to the file system.
    fn count(&self, result: io::Result<()>) -> Result<u64> {
        match result {
            Ok(()) => Ok(1),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Reads at the given offsets until there are no more or the time is up. Returns the number of reads.
    fn read(
        &self,
        mut offsets: impl Iterator<Item = u64>,
        bytes: usize,
        depth: usize,
        start: Instant,
        limit: Duration,
    ) -> Result<u64> {
        let mut done = 0;
        if depth == 1 {
            let mut buffer = AlignedBuffer::zeroed(bytes);
            for offset in offsets {
                done += self.count(self.file.read_at(&mut buffer, offset))?;
                if start.elapsed() >= limit {
                    break;
                }
            }
            return Ok(done);
        }
        let queue = self.backend.queue(depth).map_err(|error| self.failed(&error))?;
        // Use huge pages if the buffers are large enough: with small pages, a drive transfers half as many bytes per
        // second.
        let mut buffers = AlignedBuffer::group(depth, bytes);
        let mut finished = Vec::with_capacity(depth);
        loop {
            while start.elapsed() < limit
                && let Some(buffer) = buffers.pop()
            {
                match offsets.next() {
                    Some(offset) => queue.push_read(&self.file, offset, buffer, 0),
                    None => {
                        buffers.push(buffer);
                        break;
                    }
                }
            }
            if queue.in_flight() == 0 {
                return Ok(done);
            }
            queue.wait(1, &mut finished).map_err(|error| self.failed(&error))?;
            for completion in finished.drain(..) {
                done += self.count(completion.result)?;
                buffers.push(completion.buffer);
            }
        }
    }
}

/// Returns the ranges of the file that have been written at least once. A read of a range that is only allocated
/// returns zeros without asking the device, which would make the device look faster than it is.
fn written(path: &Path) -> io::Result<Vec<Range<u64>>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut ranges = Vec::new();
    let mut position = 0;
    loop {
        // ENXIO means that there is no data after this position. If the file system can't tell, treat the whole file as
        // written.
        let start = match rustix::fs::seek(&file, SeekFrom::Data(position)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(ranges),
            Err(_) if ranges.is_empty() => {
                ranges.push(0..bytes);
                return Ok(ranges);
            }
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?;
        ranges.push(start..end);
        position = end;
    }
}

/// The aligned positions for requests of one size within the given ranges.
struct Places<'a> {
    ranges: &'a [Range<u64>],
    bytes: u64,
    /// The cumulative number of positions up to the end of each range.
    ends: Vec<u64>,
    count: u64,
}

impl Places<'_> {
    fn new(ranges: &[Range<u64>], bytes: u64) -> Places<'_> {
        let mut count = 0;
        let ends = ranges.iter().map(|range| {
            count += Self::first(range, bytes).map_or(0, |first| (range.end - first) / bytes);
            count
        });
        let ends = ends.collect();
        Places { ranges, bytes, ends, count }
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        (0..self.count).map(|index| self.at(index))
    }

    fn first(range: &Range<u64>, bytes: u64) -> Option<u64> {
        Some(range.start.next_multiple_of(bytes)).filter(|&first| first < range.end)
    }

    fn at(&self, index: u64) -> u64 {
        let range = self.ends.partition_point(|&end| end <= index);
        let before = if range == 0 { 0 } else { self.ends[range - 1] };
        let first = Self::first(&self.ranges[range], self.bytes).expect("a range with places has a first");
        first + (index - before) * self.bytes
    }
}

/// Durable writes of consecutive blocks in a file filled with zeros, which is removed at the end.
#[derive(Debug)]
pub(super) struct Writes {
    file: FileRef,
    path: PathBuf,
    method: SyncMethod,
    buffer: AlignedBuffer,
    next_offset: u64,
}

impl Writes {
    /// Creates the file next to the database. Writes use the database's sync method.
    pub(super) fn create(database: &Path, method: &str) -> Result<Writes> {
        let method = [SyncMethod::DurableWrite, SyncMethod::DataSync, SyncMethod::FullSync]
            .into_iter()
            .find(|known| known.name() == method)
            .ok_or_else(|| Failure::other(format!("the sync method {method:?} can't be measured raw")))?;
        let mut path = database.as_os_str().to_owned();
        path.push(format!(".raw-{}", std::process::id()));
        let path = PathBuf::from(path);
        let failed = |error: std::io::Error| Failure::file("writing", &path, &error);
        let options = OpenOptions { write: true, create: true, direct: true, ..OpenOptions::default() };
        let file = backend()?.open(&path, options).map_err(failed)?;
        let writes =
            Writes { file, path: path.clone(), method, buffer: AlignedBuffer::zeroed(WRITE_BYTES), next_offset: 0 };
        let zeros = AlignedBuffer::zeroed(1 << 20);
        for offset in (0..WRITE_FILE_BYTES).step_by(zeros.len()) {
            writes.file.write_at(&zeros, offset, Persist::Later).map_err(failed)?;
        }
        writes.file.sync_all().map_err(failed)?;
        Ok(writes)
    }

    /// Returns the durable writes per second of one thread.
    pub(super) fn run(&mut self, limit: Duration) -> Result<f64> {
        let start = Instant::now();
        let mut done = 0u64;
        while start.elapsed() < limit {
            self.buffer[..8].copy_from_slice(&done.to_le_bytes());
            self.file
                .write_at(&self.buffer, self.next_offset, Persist::Now(self.method))
                .map_err(|error| Failure::file("writing", &self.path, &error))?;
            self.next_offset = (self.next_offset + WRITE_BYTES as u64) % WRITE_FILE_BYTES;
            done += 1;
        }
        Ok(per_second(done as f64, start.elapsed()))
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        // If this fails, the file stays behind. It only wastes space, and its name explains its purpose.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions are aligned, within their ranges, and in ascending order.
    #[test]
    fn places_lie_in_ranges() {
        let ranges = [1..9, 16..17, 100..132];
        let places = Places::new(&ranges, 8);
        let all: Vec<u64> = (0..places.count).map(|index| places.at(index)).collect();
        assert_eq!(all, [104, 112, 120]);
        let places = Places::new(&ranges, 1);
        assert_eq!(places.count, 8 + 1 + 32);
        assert!((0..places.count).all(|index| ranges.iter().any(|range| range.contains(&places.at(index)))));
    }

    /// Finds the written range of a file with holes.
    #[test]
    fn holes_are_skipped() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        file.as_file().write_all_at(&[1; 4096], 4 << 20).unwrap();
        let ranges = written(file.path()).unwrap();
        assert!(ranges.iter().any(|range| range.contains(&(4 << 20))));
    }
}
