//! `sync`: methods of making a write durable, their cost, and whether they do so here (S2).

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use drumlin::internals::io::AlignedBuffer;
use rustix::io::ReadWriteFlags;
use serde::{Deserialize, Serialize};

use crate::experiments::{Experiment, stores};
use crate::figures::{self, Form};
use crate::machine::Machine;
use crate::measure::{Load, Pace, Sample, Timing, load};
use crate::report::{Cell, Chapter, Holds, Plot, Scale, Table};
use crate::ring::SyncRing;
use crate::session::{Session, Turns};
use crate::sys;
use crate::temp_folder;
use crate::worker::Measurement;

/// The number of bytes by which a file grows ahead of need.
const GROWTH_BYTES: u64 = 16 << 20;

/// The size of zero-filled files, which are overwritten again and again.
const FILLED_BYTES: u64 = 16 << 20;

/// No case writes more than this.
const WRITTEN_BYTES_MAX: u64 = 256 << 20;

const SIZES: [usize; 2] = [1024, 4096];
const WRITERS: [usize; 3] = [1, 8, 32];

/// A method by which a write is made durable, or is believed to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Method {
    Append,
    Truncated,
    TruncatedRange,
    Allocated,
    Filled,
    FilledRange,
    FilledDurable,
    DirectDurable,
    DirectDurableOpen,
    Linked,
    NoSync,
}

/// The fate of a write in a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Durable {
    Yes,
    No,
    /// Survives only under conditions that can't be checked from here.
    Perhaps,
}

impl Durable {
    fn word(self) -> &'static str {
        match self {
            Durable::Yes => "yes",
            Durable::No => "no",
            Durable::Perhaps => "perhaps",
        }
    }
}

/// The kernel's view of the drive's write cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cache {
    /// The kernel flushes: it takes the cache to be volatile.
    Volatile,
    /// The kernel does not flush: it takes writes to be kept.
    None,
    Unknown,
}

impl Cache {
    pub(crate) fn of(machine: &Machine) -> Cache {
        match machine.drive.is_flushed() {
            Some(true) => Cache::Volatile,
            Some(false) => Cache::None,
            None => Cache::Unknown,
        }
    }
}

impl Method {
    const ALL: [Method; 11] = [
        Method::Append,
        Method::Truncated,
        Method::TruncatedRange,
        Method::Allocated,
        Method::Filled,
        Method::FilledRange,
        Method::FilledDurable,
        Method::DirectDurable,
        Method::DirectDurableOpen,
        Method::Linked,
        Method::NoSync,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Append => "append + fdatasync",
            Method::Truncated => "ftruncate ahead + fdatasync",
            Method::TruncatedRange => "ftruncate + sync_file_range",
            Method::Allocated => "fallocate ahead + fdatasync",
            Method::Filled => "zero-filled + fdatasync",
            Method::FilledRange => "zero-filled + sync_file_range",
            Method::FilledDurable => "zero-filled + RWF_DSYNC",
            Method::DirectDurable => "same, O_DIRECT + RWF_DSYNC",
            Method::DirectDurableOpen => "same, O_DIRECT | O_DSYNC",
            Method::Linked => "same, io_uring write + fsync",
            Method::NoSync => "same, O_DIRECT, no sync",
        }
    }

    fn is_direct(self) -> bool {
        matches!(self, Method::DirectDurable | Method::DirectDurableOpen | Method::Linked | Method::NoSync)
    }

    /// Returns `true` if its file holds real zeros before it is measured.
    fn is_filled(self) -> bool {
        self.is_direct() || matches!(self, Method::Filled | Method::FilledRange | Method::FilledDurable)
    }

    /// S2's figures on its first machine, if it has the method: with the write cache on, and off.
    fn source(self) -> Option<&'static str> {
        match self {
            Method::Append => Some("S2: 2.63 ms ± 0.15, cache off 5.49 ms"),
            Method::Truncated => Some("S2: 1.24 ms ± 0.86, cache off 2.76 ms"),
            Method::TruncatedRange => Some("S2: 0.19 ms ± 0.65, cache off 2.03 ms"),
            _ => None,
        }
    }

    /// Decides if a write by this method survives a power cut on this file system and cache, and says why.
    pub(crate) fn durable(self, file_system: &str, cache: Cache) -> (Durable, &'static str) {
        let writes_elsewhere = matches!(file_system, "btrfs" | "zfs" | "bcachefs" | "f2fs" | "overlay");
        if matches!(file_system, "tmpfs" | "ramfs") {
            return (Durable::No, "the file system is in memory");
        }
        match self {
            Method::TruncatedRange => (Durable::No, "new blocks: their mapping to the file is not written"),
            Method::FilledRange | Method::NoSync if writes_elsewhere => {
                (Durable::No, "the file system writes to a new place, and does not record it")
            }
            Method::FilledRange | Method::NoSync => match cache {
                Cache::Volatile => (Durable::No, "the drive's cache is volatile and is not flushed"),
                Cache::None => (Durable::Perhaps, "only if the drive really has no volatile cache"),
                Cache::Unknown => (Durable::No, "the drive's cache is unknown"),
            },
            _ => match cache {
                Cache::Volatile => (Durable::Yes, "the drive's cache is bypassed or flushed"),
                Cache::None => (Durable::Yes, "the drive says it has no volatile cache"),
                Cache::Unknown => (Durable::Perhaps, "the file system requests it; the drive is unknown"),
            },
        }
    }
}

/// Durable writes by some writers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    method: Method,
    bytes: usize,
    writers: usize,
    timing: Timing,
}

/// The file of a case, which its writers share: each write takes the next offset.
struct Target {
    file: File,
    next: AtomicU64,
    /// The end of the extended part. Held while it grows: others wait for the space that they need.
    extended: Mutex<u64>,
}

impl Measurement for Task {
    const NAME: &'static str = "sync";
    type Result = Load;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Load> {
        let file = if self.method.is_filled() { self.filled()? } else { self.empty()? };
        let target = Target { file, next: AtomicU64::new(0), extended: Mutex::new(0) };
        load(self.writers, self.timing, |_| {}, |_, pace| self.write(&target, pace))
    }
}

impl Task {
    pub(crate) fn new(path: PathBuf, method: Method, bytes: usize, writers: usize, timing: Timing) -> Task {
        Task { path, method, bytes, writers, timing }
    }

    fn empty(&self) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).open(&self.path)
    }

    fn filled(&self) -> io::Result<File> {
        let file = self.empty()?;
        let zeros = vec![0; 1 << 20];
        for offset in (0..FILLED_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, offset)?;
        }
        file.sync_all()?;
        match self.method {
            Method::DirectDurableOpen => {
                File::options().read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC).open(&self.path)
            }
            method if method.is_direct() => temp_folder::open_direct(&self.path, true),
            _ => Ok(file),
        }
    }

    fn write(&self, target: &Target, pace: &mut Pace<'_>) -> io::Result<()> {
        let bytes = self.bytes as u64;
        let mut buffer = AlignedBuffer::zeroed(self.bytes);
        let mut ring = if self.method == Method::Linked { Some(SyncRing::new()?) } else { None };
        let file = &target.file;
        while pace.go_on() {
            let mut offset = target.next.fetch_add(bytes, Ordering::Relaxed);
            if self.method.is_filled() {
                offset %= FILLED_BYTES;
            } else if offset >= WRITTEN_BYTES_MAX {
                return Ok(());
            }
            buffer[..8].copy_from_slice(&offset.to_le_bytes());
            let started = Instant::now();
            match self.method {
                Method::Append | Method::Filled => {
                    file.write_all_at(&buffer, offset)?;
                    file.sync_data()?;
                }
                Method::Truncated | Method::Allocated => {
                    self.extend(target, offset)?;
                    file.write_all_at(&buffer, offset)?;
                    file.sync_data()?;
                }
                Method::TruncatedRange => {
                    let has_grown = self.extend(target, offset)?;
                    file.write_all_at(&buffer, offset)?;
                    if has_grown {
                        file.sync_data()?;
                    } else {
                        sys::sync_file_range(file, offset, bytes)?;
                    }
                }
                Method::FilledRange => {
                    file.write_all_at(&buffer, offset)?;
                    sys::sync_file_range(file, offset, bytes)?;
                }
                Method::FilledDurable | Method::DirectDurable => {
                    let slices = [io::IoSlice::new(&buffer)];
                    let written = rustix::io::pwritev2(file, &slices, offset, ReadWriteFlags::DSYNC)?;
                    if written != self.bytes {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                }
                Method::DirectDurableOpen | Method::NoSync => file.write_all_at(&buffer, offset)?,
                Method::Linked => {
                    ring.as_mut().expect("made for this method").write(file, &buffer, offset)?;
                }
            }
            pace.done(started, bytes);
        }
        Ok(())
    }

    /// Extends the file for a write at `offset` if necessary. Returns `true` if it grew.
    fn extend(&self, target: &Target, offset: u64) -> io::Result<bool> {
        let mut extended = target.extended.lock().expect("nothing panics while it is held");
        if offset + self.bytes as u64 <= *extended {
            return Ok(false);
        }
        let end = *extended + GROWTH_BYTES;
        if self.method == Method::Allocated {
            rustix::fs::fallocate(&target.file, rustix::fs::FallocateFlags::empty(), *extended, GROWTH_BYTES)?;
        } else {
            target.file.set_len(end)?;
        }
        *extended = end;
        Ok(true)
    }
}

struct Case {
    method: Method,
    bytes: usize,
    writers: usize,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for writers in WRITERS {
        for bytes in SIZES {
            cases.extend(Method::ALL.into_iter().map(|method| Case { method, bytes, writers }));
        }
    }
    cases
}

/// Some thousand operations of each case are enough: there are many cases.
fn timing(session: &Session<'_>) -> Timing {
    Timing { seconds: session.pacing.slice.seconds * 0.6, sample_seconds: 0.0 }
}

fn rounds(session: &Session<'_>) -> usize {
    session.pacing.rounds.div_ceil(2)
}

/// The approximate time that making a case's file takes.
const FILE_SECONDS: f64 = 0.05;

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let turns = (cases().len() * rounds(session)) as f64;
    turns * (timing(session).seconds + FILE_SECONDS) + stores::seconds(session)
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Sync.name(),
        "Durable writes",
        "Every method of making a write durable, one operation at a time, each timed on its own. S2 found its own \
         database fast because it never synced; a mean over batches would have hidden that.",
    )
}

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    if machine.in_memory {
        return Err(io::Error::other(format!(
            "refused: {} is {}, where a sync does nothing and nothing can be measured; choose a folder on a drive (--path)",
            machine.folder, machine.file_system
        )));
    }
    let timing = timing(session);
    let cases = cases();
    let number = AtomicU64::new(0);
    let turns: Vec<Turns<Load>> = session.turns(
        &cases,
        rounds(session),
        timing.seconds + FILE_SECONDS,
        |case| format!("sync: {}, {} B, {} writers", case.method.name(), case.bytes, case.writers),
        |case, _| {
            // No process uses the file of the case before.
            let number = number.fetch_add(1, Ordering::Relaxed);
            let before = session.room.path().join(format!("sync-{}", number.wrapping_sub(1)));
            let _ = std::fs::remove_file(before);
            let path = session.room.path().join(format!("sync-{number}"));
            let task = Task { path, method: case.method, bytes: case.bytes, writers: case.writers, timing };
            (task, None)
        },
    );
    let _ = std::fs::remove_file(session.room.path().join(format!("sync-{}", number.into_inner().wrapping_sub(1))));
    for (size_index, bytes) in SIZES.into_iter().enumerate() {
        for (writers_index, writers) in WRITERS.into_iter().enumerate() {
            let first = (writers_index * SIZES.len() + size_index) * Method::ALL.len();
            show(chapter, bytes, writers, &turns[first..first + Method::ALL.len()]);
        }
    }
    show_durability(chapter, machine);
    if !session.interrupted() {
        stores::run(session, chapter)?;
    }
    verdicts(chapter, machine, &turns);
    verdict_on_queueing(chapter, &turns);
    Ok(())
}

fn show(chapter: &mut Chapter, bytes: usize, writers: usize, turns: &[Turns<Load>]) {
    let mut table = Table::new(
        format!("Writes of {} by {}", figures::size(bytes as u64), figures::plural(writers as u64, "writer")),
        &[
            ("", Form::Text),
            ("writes/s", Form::Rate),
            ("mean", Form::Micros),
            ("min", Form::Micros),
            ("p50", Form::Micros),
            ("p99", Form::Micros),
            ("p99.9", Form::Micros),
            ("max", Form::Micros),
            ("± std. dev.", Form::Micros),
            ("outliers", Form::Share),
        ],
    );
    let mut plot = Plot::new(
        format!("Durable writes of {} by one writer", figures::size(bytes as u64)),
        ("share of writes that took at most", Form::Share, Scale::Tail),
        ("latency", Form::Micros, Scale::Logarithmic),
    );
    for (method, turns) in Method::ALL.into_iter().zip(turns) {
        let Some(load) = turns.middle(Load::operations_per_second) else {
            if let Some(failure) = &turns.failure {
                let mut cells = vec![Cell::from(method.name())];
                cells.resize(table.columns.len(), Cell::Missing);
                table.row(cells).source(format!("not possible here: {failure}"));
            }
            continue;
        };
        let latency = &load.latency;
        let row = table.row(vec![
            method.name().into(),
            turns.median(Load::operations_per_second).into(),
            latency.mean_us.into(),
            latency.min_us.into(),
            latency.p50_us.into(),
            latency.p99_us.into(),
            latency.p999_us.into(),
            latency.max_us.into(),
            latency.stddev_us.into(),
            latency.outliers.into(),
        ]);
        if bytes == 1024 && writers == 1 {
            row.source = method.source().map(str::to_owned);
        }
        plot.line(method.name(), latency.quantiles.clone());
    }
    chapter.tables.push(table);
    if writers == 1 {
        chapter.plots.push(plot);
    }
}

fn show_durability(chapter: &mut Chapter, machine: &Machine) {
    let cache = Cache::of(machine);
    let mut here = Table::new(
        format!("Is it durable here, on {}?", machine.file_system),
        &[("", Form::Text), ("durable", Form::Text), ("because", Form::Text)],
    );
    let mut everywhere = Table::new(
        "Is it durable elsewhere? (write cache: volatile / none)",
        &[("", Form::Text), ("ext4, xfs", Form::Text), ("btrfs, zfs", Form::Text), ("tmpfs", Form::Text)],
    );
    for method in Method::ALL {
        let (durable, why) = method.durable(&machine.file_system, cache);
        here.row(vec![method.name().into(), durable.word().into(), why.into()]);
        let both = |file_system| {
            let word = |cache| method.durable(file_system, cache).0.word();
            format!("{} / {}", word(Cache::Volatile), word(Cache::None))
        };
        everywhere.row(vec![method.name().into(), both("ext4").into(), both("btrfs").into(), "no".into()]);
    }
    chapter.tables.extend([here, everywhere]);
    chapter.note(
        "Durable means guaranteed by contract. Only cutting the power can show whether a drive, or a hypervisor that \
         emulates one, keeps the writes that it reports as flushed.",
    );
    chapter.note(
        "All writers share one file, and each write takes the next offset. Outliers lie above the third quartile by \
         more than three interquartile ranges.",
    );
}

/// Compares the methods, for one writer at the smallest size.
fn verdicts(chapter: &mut Chapter, machine: &Machine, turns: &[Turns<Load>]) {
    let figure = |method: Method, of: fn(&Load) -> f64| {
        let index = Method::ALL.iter().position(|each| *each == method).expect("listed");
        turns[index].middle(Load::operations_per_second).map(of)
    };
    let p50 = |method| figure(method, |load| load.latency.p50_us);
    let us = |number: f64| figures::micros(number);
    if let (Some(append), Some(ahead), Some(filled)) =
        (p50(Method::Append), p50(Method::Truncated), p50(Method::Filled))
    {
        chapter.verdict(
            "S2",
            "Growing the file ahead of need halves the cost of a durable append.",
            if ahead < 0.7 * append { Holds::Yes } else { Holds::No },
            format!("p50 of 1 KiB: append {}, ftruncate ahead {}.", us(append), us(ahead)),
        );
        chapter.verdict(
            "S2",
            "Blocks already filled with zeros are the cheapest to sync: only data is written.",
            Holds::of(filled < append && filled < 1.05 * ahead),
            format!("Zero-filled {}, append {}.", us(filled), us(append)),
        );
    }
    if let (Some(range), Some(sync)) = (p50(Method::FilledRange), p50(Method::Filled)) {
        let volatile = Cache::of(machine) == Cache::Volatile;
        chapter.verdict(
            "S2",
            "sync_file_range is faster because it skips the flush, and so guarantees nothing on a volatile cache.",
            match (range < 0.9 * sync, volatile) {
                (true, _) => Holds::Yes,
                (false, true) => Holds::No,
                (false, false) => Holds::Partly,
            },
            format!("{} against {} with fdatasync.", us(range), us(sync)),
        );
    }
    if let (Some(mean), Some(worst)) =
        (figure(Method::Append, |load| load.latency.mean_us), figure(Method::Append, |load| load.latency.max_us))
    {
        chapter.verdict(
            "S2",
            "A mean hides the slow sync.",
            if worst > 5.0 * mean { Holds::Yes } else { Holds::Unknown },
            format!("append + fdatasync: mean {}, slowest {}.", us(mean), us(worst)),
        );
    }
    if let (Some(none), Some(durable)) = (p50(Method::NoSync), p50(Method::DirectDurable)) {
        chapter.note(format!(
            "A direct write without a sync takes {}, a durable one {}: the difference is the cost of a flush here.",
            us(none),
            us(durable)
        ));
    }
}

/// Compares one writer with many, at the smallest size.
fn verdict_on_queueing(chapter: &mut Chapter, turns: &[Turns<Load>]) {
    let rate = |writers_index: usize, method: Method| {
        let index = Method::ALL.iter().position(|each| *each == method).expect("listed");
        turns[writers_index * SIZES.len() * Method::ALL.len() + index].median(Load::operations_per_second)
    };
    if let (Some(one), Some(many)) = (rate(0, Method::Filled), rate(2, Method::Filled)) {
        let queue = many < 4.0 * one;
        chapter.verdict(
            "S2",
            "Commits that each sync queue behind one another; one sync for many avoids this.",
            if queue { Holds::Yes } else { Holds::No },
            format!(
                "32 writers of one file reach {} times the rate of one ({} against {} writes/s){}.",
                figures::digits(many / one.max(1.0)),
                Form::Rate.show(many),
                Form::Rate.show(one),
                if queue { "" } else { ": the kernel merges flushes that wait for the drive" }
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every method writes, in a file that it creates itself.
    #[test]
    fn every_method_writes() {
        let folder = tempfile::tempdir().unwrap();
        for (index, method) in Method::ALL.into_iter().enumerate() {
            let path = folder.path().join(index.to_string());
            let timing = Timing { seconds: 0.02, sample_seconds: 0.0 };
            let task = Task { path, method, bytes: 4096, writers: 2, timing };
            match task.clone().perform(|_| {}) {
                Ok(load) => assert!(load.latency.count > 0, "{method:?}"),
                Err(error) => assert!(method.is_direct(), "{method:?}: {error}"),
            }
            assert_eq!(task.perform(|_| {}).unwrap_err().kind(), io::ErrorKind::AlreadyExists, "{method:?}");
        }
    }

    /// No method without a flush is called durable on a volatile cache, and none is in memory.
    #[test]
    fn hope_is_not_called_durable() {
        for method in Method::ALL {
            assert_eq!(method.durable("tmpfs", Cache::None).0, Durable::No);
            for file_system in ["ext4", "xfs", "btrfs", "zfs"] {
                let flushes = !matches!(method, Method::TruncatedRange | Method::FilledRange | Method::NoSync);
                let (durable, why) = method.durable(file_system, Cache::Volatile);
                assert_eq!(durable == Durable::Yes, flushes, "{method:?} on {file_system}: {why}");
                assert_eq!(method.durable(file_system, Cache::None).0 == Durable::Yes, flushes, "{method:?}");
                assert_ne!(method.durable(file_system, Cache::Unknown).0, Durable::Yes, "{method:?}");
            }
        }
        assert_eq!(Method::FilledRange.durable("btrfs", Cache::None).0, Durable::No);
        assert_eq!(Method::FilledRange.durable("xfs", Cache::None).0, Durable::Perhaps);
    }
}
