//! The measurement: times the writes of one method, singly and in batches, and counts the flushes that they cause.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drumlin_io::AlignedBuffer;
use rustix::io::ReadWriteFlags;
use serde::{Deserialize, Serialize};

use super::method::Method;
use crate::block_counts::BlockCounts;
use crate::measure::{Latencies, Load, Pace, Sample, Timing, load};
use crate::ring::SyncRing;
use crate::session::Counted;
use crate::sys;
use crate::temp_folder;
use crate::worker::Measurement;

/// The number of bytes by which a file is grown in advance. Every 1,024th write of 1 KiB pays for this.
const GROWTH_BYTES: u64 = 1 << 20;

/// The size of zero-filled files, which are overwritten repeatedly.
pub(super) const FILLED_BYTES: u64 = 16 << 20;

/// The maximum number of bytes that a case writes.
const WRITTEN_BYTES_MAX: u64 = 256 << 20;

/// The number of writes in a batch. A harness that times batches would report the batch's mean.
pub(super) const BATCH_WRITES: u32 = 100;

/// Makes durable writes, with one or more writers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    method: Method,
    bytes: usize,
    writers: usize,
    timing: Timing,
    /// The number of writes after which the task ends early, or 0 for no limit.
    writes_max: u64,
    /// The kernel's name for the disk whose flushes are counted.
    disk: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Written {
    pub(crate) load: Load,
    /// The latencies of single writes as buckets, which can be added up over several rounds.
    pub(super) singles: Vec<(u64, u64)>,
    /// The mean of every [`BATCH_WRITES`] consecutive writes, as buckets.
    pub(super) batches: Vec<(u64, u64)>,
    /// The requests that reached the disk during the writes, or `None` if the disk has no counters.
    pub(crate) block: Option<BlockCounts>,
}

impl From<Written> for Load {
    fn from(written: Written) -> Load {
        written.load
    }
}

impl Counted for Written {
    fn operations(&self) -> u64 {
        self.load.latency.count
    }
}

impl Written {
    pub(super) fn batches_max_us(&self) -> f64 {
        Latencies::of_buckets([&self.batches]).summary().max_us
    }

    /// Returns the disk's flushes per write.
    pub(crate) fn flushes_per_write(&self) -> Option<f64> {
        Some(self.block?.flushes as f64 / self.load.latency.count.max(1) as f64)
    }
}

/// The file of a case. Its writers share the file; each write gets the next offset.
pub(super) struct Target {
    method: Method,
    file: File,
    /// The offset up to which the file has been extended. The mutex is held while the file grows, so other writers wait
    /// for the space that they need.
    extended: Mutex<u64>,
}

impl Measurement for Task {
    const NAME: &'static str = "sync";
    type Result = Written;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Written> {
        let target = Target::create(&self.path, self.method)?;
        let next = AtomicU64::new(0);
        let recorded = Mutex::new((Latencies::new(), Latencies::new()));
        let counts = || self.disk.as_deref().and_then(BlockCounts::of);
        let before = counts();
        let load = load(
            self.writers,
            self.timing,
            |_| {},
            |_, pace| {
                let own = self.write(&target, &next, pace)?;
                let mut all = recorded.lock().expect("nothing panics while it is held");
                all.0.add(&own.0);
                all.1.add(&own.1);
                Ok(())
            },
        )?;
        let block = before.and_then(|before| Some(counts()?.since(before)));
        let (singles, batches) = recorded.into_inner().expect("nothing panics while it is held");
        Ok(Written { load, singles: singles.buckets(), batches: batches.buckets(), block })
    }
}

impl Task {
    pub(crate) fn new(path: PathBuf, method: Method, bytes: usize, writers: usize, timing: Timing) -> Task {
        Task { path, method, bytes, writers, timing, writes_max: 0, disk: None }
    }

    /// Limits the task to this many writes.
    pub(super) fn up_to(self, writes_max: u64) -> Task {
        Task { writes_max, ..self }
    }

    /// Counts the requests that reach the disk with this name during the task.
    pub(super) fn counting(self, disk: Option<String>) -> Task {
        Task { disk, ..self }
    }

    /// Writes until the time has run out. Returns the latencies of single writes and of batches.
    fn write(&self, target: &Target, next: &AtomicU64, pace: &mut Pace<'_>) -> io::Result<(Latencies, Latencies)> {
        let bytes = self.bytes as u64;
        let mut buffer = AlignedBuffer::zeroed(self.bytes);
        let mut ring = target.ring()?;
        let (mut singles, mut batches) = (Latencies::new(), Latencies::new());
        let (mut batch, mut batch_writes) = (Duration::ZERO, 0);
        while pace.go_on() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if (self.writes_max > 0 && number >= self.writes_max) || number * bytes >= WRITTEN_BYTES_MAX {
                break;
            }
            let offset = if self.method.is_filled() { number * bytes % FILLED_BYTES } else { number * bytes };
            buffer[..8].copy_from_slice(&number.to_le_bytes());
            let started = Instant::now();
            target.write(&buffer, offset, ring.as_mut())?;
            let took = started.elapsed();
            pace.done(started, bytes);
            singles.record(took);
            batch += took;
            batch_writes += 1;
            if batch_writes == BATCH_WRITES {
                batches.record(batch / BATCH_WRITES);
                (batch, batch_writes) = (Duration::ZERO, 0);
            }
        }
        Ok((singles, batches))
    }
}

impl Target {
    /// Creates the file, and fills it with zeros if the method overwrites.
    pub(super) fn create(path: &Path, method: Method) -> io::Result<Target> {
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        if method.is_filled() {
            let zeros = vec![0; 1 << 20];
            for offset in (0..FILLED_BYTES).step_by(zeros.len()) {
                file.write_all_at(&zeros, offset)?;
            }
            file.sync_all()?;
        }
        if method == Method::DirectDurableOpen {
            file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC).open(path)?;
        } else if method.is_direct() {
            file = temp_folder::open_direct(path, true)?;
        }
        Ok(Target { method, file, extended: Mutex::new(0) })
    }

    /// Opens the file that an earlier run left. The file is never extended, because its records are overwritten.
    pub(super) fn reopen(path: &Path, method: Method) -> io::Result<Target> {
        let file = if method.is_direct() {
            temp_folder::open_direct(path, true)?
        } else {
            File::options().read(true).write(true).open(path)?
        };
        Ok(Target { method, file, extended: Mutex::new(u64::MAX) })
    }

    /// Creates a writer's ring if the method needs one.
    pub(super) fn ring(&self) -> io::Result<Option<SyncRing>> {
        (self.method == Method::Linked).then(SyncRing::new).transpose()
    }

    /// Writes once. Returns when the method considers the write durable.
    pub(super) fn write(&self, buffer: &AlignedBuffer, offset: u64, ring: Option<&mut SyncRing>) -> io::Result<()> {
        let file = &self.file;
        match self.method {
            Method::Append | Method::Filled => {
                file.write_all_at(buffer, offset)?;
                file.sync_data()?;
            }
            Method::Truncated | Method::Allocated => {
                self.extend(offset + buffer.len() as u64)?;
                file.write_all_at(buffer, offset)?;
                file.sync_data()?;
            }
            Method::TruncatedRange => {
                let has_grown = self.extend(offset + buffer.len() as u64)?;
                file.write_all_at(buffer, offset)?;
                if has_grown {
                    file.sync_data()?;
                } else {
                    sys::sync_file_range(file, offset, buffer.len() as u64)?;
                }
            }
            Method::FilledRange => {
                file.write_all_at(buffer, offset)?;
                sys::sync_file_range(file, offset, buffer.len() as u64)?;
            }
            Method::FilledDurable | Method::DirectDurable => {
                let slices = [io::IoSlice::new(buffer)];
                let written = rustix::io::pwritev2(file, &slices, offset, ReadWriteFlags::DSYNC)?;
                if written != buffer.len() {
                    return Err(io::ErrorKind::WriteZero.into());
                }
            }
            Method::DirectDurableOpen | Method::NoSync | Method::Buffered => file.write_all_at(buffer, offset)?,
            Method::Linked => ring.expect("made for this method").write(file, buffer, offset)?,
        }
        Ok(())
    }

    /// Extends the file if it ends before `end`. Returns `true` if the file grew.
    fn extend(&self, end: u64) -> io::Result<bool> {
        let mut extended = self.extended.lock().expect("nothing panics while it is held");
        if end <= *extended {
            return Ok(false);
        }
        if self.method == Method::Allocated {
            rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), *extended, GROWTH_BYTES)?;
        } else {
            self.file.set_len(*extended + GROWTH_BYTES)?;
        }
        *extended += GROWTH_BYTES;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing = Timing { seconds: 0.02, sample_seconds: 0.0 };

    /// Every method writes, in a file that it creates itself.
    #[test]
    fn every_method_writes() {
        let folder = tempfile::tempdir().unwrap();
        for (index, method) in Method::ALL.into_iter().enumerate() {
            let path = folder.path().join(index.to_string());
            let task = Task::new(path, method, 4096, 2, TIMING);
            match task.clone().perform(|_| {}) {
                Ok(written) => assert!(written.load.latency.count > 0, "{method:?}"),
                Err(error) => assert!(method.is_direct(), "{method:?}: {error}"),
            }
            assert_eq!(task.perform(|_| {}).unwrap_err().kind(), io::ErrorKind::AlreadyExists, "{method:?}");
        }
    }

    /// A task ends after its maximum number of writes. It records every hundred writes as one batch.
    #[test]
    fn writes_are_counted_and_batched() {
        let folder = tempfile::tempdir().unwrap();
        let timing = Timing { seconds: 60.0, sample_seconds: 0.0 };
        let task = Task::new(folder.path().join("file"), Method::FilledRange, 1024, 1, timing).up_to(250);
        let written = task.perform(|_| {}).unwrap();
        let count = |buckets: &[(u64, u64)]| buckets.iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!((count(&written.singles), count(&written.batches), written.operations()), (250, 2, 250));
        assert!(written.batches_max_us() <= 1.01 * written.load.latency.max_us, "{written:?}");
        assert_eq!(written.flushes_per_write(), None, "no disk was named");
    }
}
