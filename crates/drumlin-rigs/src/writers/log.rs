//! Logs of numbered records. Each method has its own way of making records durable; some do not make them durable.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Result;
use drumlin_io::AlignedBuffer;
use drumlin_testing::Random;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::ReadWriteFlags;

use super::{AckReporter, PREPARED, Verdict};

pub const RECORDS: u64 = 400;
/// The space for all records, which some methods allocate in advance.
const FILE_BYTES: u64 = RECORDS * DIRECT_RECORD_BYTES as u64;
const RECORD_BYTES: usize = 1024;
const DIRECT_RECORD_BYTES: usize = 4096;

/// The way in which the file grows to its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Growth {
    /// The file grows with every record.
    Append,
    Fallocate,
    Ftruncate,
    /// Zeros are written and synced before the first record.
    Zeros,
}

/// The sync that follows or accompanies a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sync {
    Fdatasync,
    Fsync,
    /// The file is opened with `O_DSYNC`.
    OpenedDsync,
    /// The write carries `RWF_DSYNC`.
    WrittenDsync,
    FileRange,
    Nothing,
}

/// A method of writing a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Method {
    name: &'static str,
    growth: Growth,
    sync: Sync,
    direct: bool,
}

const fn method(name: &'static str, growth: Growth, sync: Sync, direct: bool) -> Method {
    Method { name, growth, sync, direct }
}

impl Method {
    pub const ALL: [Method; 15] = [
        method("append-fdatasync", Growth::Append, Sync::Fdatasync, false),
        method("append-fsync", Growth::Append, Sync::Fsync, false),
        method("append-odsync", Growth::Append, Sync::OpenedDsync, false),
        method("append-rwfdsync", Growth::Append, Sync::WrittenDsync, false),
        method("fallocate-fdatasync", Growth::Fallocate, Sync::Fdatasync, false),
        method("ftruncate-fdatasync", Growth::Ftruncate, Sync::Fdatasync, false),
        method("zeros-fdatasync", Growth::Zeros, Sync::Fdatasync, false),
        method("zeros-direct-odsync", Growth::Zeros, Sync::OpenedDsync, true),
        method("zeros-direct-rwfdsync", Growth::Zeros, Sync::WrittenDsync, true),
        method("append-syncfilerange", Growth::Append, Sync::FileRange, false),
        method("fallocate-syncfilerange", Growth::Fallocate, Sync::FileRange, false),
        method("ftruncate-syncfilerange", Growth::Ftruncate, Sync::FileRange, false),
        method("zeros-syncfilerange", Growth::Zeros, Sync::FileRange, false),
        method("zeros-direct-nosync", Growth::Zeros, Sync::Nothing, true),
        method("append-nosync", Growth::Append, Sync::Nothing, false),
    ];

    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the name of the method in documents.
    pub fn title(self) -> String {
        let growth = match self.growth {
            Growth::Append => "append",
            Growth::Fallocate => "`fallocate`",
            Growth::Ftruncate => "`ftruncate`",
            Growth::Zeros => "zeros written",
        };
        let sync = match self.sync {
            Sync::Fdatasync => "`fdatasync`",
            Sync::Fsync => "`fsync`",
            Sync::OpenedDsync => "`O_DSYNC`",
            Sync::WrittenDsync => "`RWF_DSYNC`",
            Sync::FileRange => "`sync_file_range`",
            Sync::Nothing => "no sync",
        };
        match (self.direct, self.sync) {
            (false, _) => format!("{growth}, {sync}"),
            (true, Sync::Nothing) => format!("{growth}, `O_DIRECT`, {sync}"),
            (true, _) => format!("{growth}, `O_DIRECT` and {sync}"),
        }
    }

    pub fn is_sound(self) -> bool {
        !matches!(self.sync, Sync::FileRange | Sync::Nothing)
    }

    pub fn is_lazy(self) -> bool {
        self.sync == Sync::Nothing && !self.direct
    }

    fn record_bytes(self) -> usize {
        if self.direct { DIRECT_RECORD_BYTES } else { RECORD_BYTES }
    }

    fn open(self, path: &Path) -> io::Result<File> {
        let mut flags = OFlags::empty();
        flags.set(OFlags::DSYNC, self.sync == Sync::OpenedDsync);
        flags.set(OFlags::DIRECT, self.direct);
        OpenOptions::new().write(true).custom_flags(flags.bits().cast_signed()).open(path)
    }

    fn write_record(self, file: &File, record: &[u8], offset: u64) -> io::Result<()> {
        if self.sync == Sync::WrittenDsync {
            let written = rustix::io::pwritev2(file, &[io::IoSlice::new(record)], offset, ReadWriteFlags::DSYNC)?;
            return if written == record.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) };
        }
        file.write_all_at(record, offset)?;
        match self.sync {
            Sync::Fdatasync => file.sync_data(),
            Sync::Fsync => file.sync_all(),
            Sync::FileRange => sync_file_range(file, offset, record.len()),
            Sync::OpenedDsync | Sync::WrittenDsync | Sync::Nothing => Ok(()),
        }
    }
}

/// Writes a range back and waits for it to complete. Neither writes metadata nor flushes the drive's cache.
#[expect(unsafe_code, reason = "no crate in use wraps this call")]
fn sync_file_range(file: &File, offset: u64, length: usize) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the call takes no pointers.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset.cast_signed(), length as i64, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Fills a record with random non-zero words, so that all records differ.
fn fill(record: &mut [u8], seed: u64, number: u64) {
    let mut random = Random(seed ^ number << 32);
    for word in record.chunks_exact_mut(8) {
        word.copy_from_slice(&(random.next() | 1).to_le_bytes());
    }
}

pub fn write(method: Method, folder: &Path, reporter: &AckReporter, seed: u64) -> Result<()> {
    let path = folder.join("log");
    let made = File::create_new(&path)?;
    match method.growth {
        Growth::Append => {}
        Growth::Fallocate => rustix::fs::fallocate(&made, FallocateFlags::empty(), 0, FILE_BYTES)?,
        Growth::Ftruncate => made.set_len(FILE_BYTES)?,
        Growth::Zeros => made.write_all_at(&vec![0; FILE_BYTES as usize], 0)?,
    }
    made.sync_all()?;
    File::open(folder)?.sync_all()?;
    let file = method.open(&path)?;
    reporter.report(PREPARED)?;
    let mut record = AlignedBuffer::zeroed(method.record_bytes());
    for number in 0..RECORDS {
        fill(&mut record, seed, number);
        method.write_record(&file, &record, number * record.len() as u64)?;
        reporter.report(number)?;
    }
    Ok(())
}

pub fn verify(method: Method, folder: &Path, seed: u64, acked: &[u64]) -> Verdict {
    let acked = || acked.iter().filter(|acked| **acked < super::WAITING);
    let bytes = match std::fs::read(folder.join("log")) {
        Ok(bytes) => bytes,
        Err(error) if acked().count() > 0 => return Verdict::Lost(format!("the log can't be read: {error}")),
        Err(_) => return Verdict::Whole(Vec::new()),
    };
    let record_bytes = method.record_bytes();
    let mut record = vec![0; record_bytes];
    let mut lost: Vec<u64> = acked().copied().collect();
    lost.retain(|number| {
        fill(&mut record, seed, *number);
        let start = *number as usize * record_bytes;
        bytes.get(start..start + record_bytes) != Some(&record[..])
    });
    match lost[..] {
        [] => Verdict::Whole(Vec::new()),
        [first, ..] => Verdict::Lost(format!("{} of {} records, first {first}", lost.len(), acked().count())),
    }
}
