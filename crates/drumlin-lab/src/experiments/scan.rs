//! `scan`: reading a file larger than memory from start to end (S1 figures 3 and 4, S4's first table).

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use drumlin::IoBackend;
use drumlin::internals::io::{AlignedBuffer, OpenOptions, ReadStream, StreamOptions};
use serde::{Deserialize, Serialize};

use crate::experiments::Experiment;
use crate::figures::{self, Form};
use crate::machine::Machine;
use crate::map::{Advice, Map, Mode};
use crate::measure::{Load, Pace, Sample, Timing, load};
use crate::report::{Cell, Chapter, Holds, Plot, Scale, Table};
use crate::ring::{ReadRing, RingOptions};
use crate::session::{Session, Turns};
use crate::temp_folder;
use crate::worker::Measurement;

/// The stride of the words that are looked at: one in each page, so that a mapping has to bring every page in.
const PAGE_BYTES: usize = 4096;

/// One step through a mapping: counted as an operation, so that the rate over time can be shown.
const STEP_BYTES: usize = 128 << 10;

/// A way of reading a file from start to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Method {
    Mapped(Advice),
    Buffered,
    /// One request after another.
    Direct,
    Ring {
        depth: usize,
        options: RingOptions,
    },
    /// Drumlin's stream: copied by `Read`, or used in its own buffers.
    Stream {
        requests: usize,
        copied: bool,
    },
}

/// A scan of a whole file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    method: Method,
    request_bytes: usize,
    threads: usize,
    timing: Timing,
}

fn look(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(PAGE_BYTES).map(|page| u64::from_le_bytes(page[..8].try_into().expect("eight bytes")));
    words.fold(0, |all, word| all ^ word)
}

impl Measurement for Task {
    const NAME: &'static str = "scan";
    type Result = Load;

    fn perform(self, observe: impl FnMut(&Sample)) -> io::Result<Load> {
        let buffered = File::options().read(true).write(true).open(&self.path)?;
        temp_folder::forget_cached(&buffered)?;
        let bytes = buffered.metadata()?.len();
        let map = match self.method {
            Method::Mapped(advice) => {
                let map = Map::new(&buffered, bytes as usize, Mode::Shared)?;
                map.advise(advice)?;
                Some(map)
            }
            Method::Buffered => {
                rustix::fs::fadvise(&buffered, 0, None, rustix::fs::Advice::Sequential)?;
                None
            }
            _ => None,
        };
        // Each thread scans a part of its own.
        let part_bytes = (bytes / self.threads as u64) >> 20 << 20;
        load(self.threads, self.timing, observe, |thread, pace| {
            let start = thread as u64 * part_bytes;
            let range = start..start + part_bytes;
            match (self.method, &map) {
                (Method::Mapped(_), Some(map)) => {
                    for step in map[range.start as usize..range.end as usize].chunks(STEP_BYTES) {
                        let started = Instant::now();
                        pace.check ^= look(step);
                        pace.done(started, step.len() as u64);
                        if !pace.go_on() {
                            break;
                        }
                    }
                    Ok(())
                }
                (Method::Buffered, _) => self.read_each(&buffered, range, pace),
                (Method::Direct, _) => self.read_each(&temp_folder::open_direct(&self.path, false)?, range, pace),
                (Method::Ring { depth, options }, _) => {
                    let file = temp_folder::open_direct(&self.path, false)?;
                    self.read_in_flight(&mut ReadRing::new(&file, depth, self.request_bytes, options)?, range, pace)
                }
                (Method::Stream { requests, copied }, _) => self.read_stream(requests, copied, range, pace),
                (Method::Mapped(_), None) => unreachable!("mapped above"),
            }
        })
    }
}

impl Task {
    /// A scan by one thread with this many requests in flight.
    pub(crate) fn in_flight(path: &Path, request_bytes: usize, depth: usize, timing: Timing) -> Task {
        let method = Method::Ring { depth, options: RingOptions::default() };
        Task { path: path.to_owned(), method, request_bytes, threads: 1, timing }
    }

    fn read_each(&self, file: &File, range: Range<u64>, pace: &mut Pace<'_>) -> io::Result<()> {
        let mut buffer = AlignedBuffer::zeroed(self.request_bytes);
        for offset in range.step_by(self.request_bytes) {
            let started = Instant::now();
            file.read_exact_at(&mut buffer, offset)?;
            pace.check ^= look(&buffer);
            pace.done(started, buffer.len() as u64);
            if !pace.go_on() {
                break;
            }
        }
        Ok(())
    }

    fn read_in_flight(&self, ring: &mut ReadRing, range: Range<u64>, pace: &mut Pace<'_>) -> io::Result<()> {
        let mut offsets = range.step_by(self.request_bytes);
        loop {
            while pace.go_on() && ring.has_room() {
                let Some(offset) = offsets.next() else { break };
                ring.push(offset);
            }
            if ring.in_flight() == 0 {
                return Ok(());
            }
            ring.wait(|started, bytes| {
                pace.check ^= look(bytes);
                pace.done(started, bytes.len() as u64);
            })?;
        }
    }

    fn read_stream(&self, requests: usize, copied: bool, range: Range<u64>, pace: &mut Pace<'_>) -> io::Result<()> {
        let backend = drumlin::internals::io::backend(IoBackend::Auto)?;
        let file = backend.open(&self.path, OpenOptions { direct: true, ..OpenOptions::default() })?;
        let options = StreamOptions { request_bytes: self.request_bytes, requests };
        let bytes = range.end - range.start;
        let mut stream = ReadStream::open(backend.as_ref(), &file, range, options)?;
        if copied {
            let mut buffer = vec![0; self.request_bytes];
            for _ in 0..bytes / self.request_bytes as u64 {
                let started = Instant::now();
                stream.read_exact(&mut buffer)?;
                pace.check ^= look(&buffer);
                pace.done(started, buffer.len() as u64);
                if !pace.go_on() {
                    break;
                }
            }
            return Ok(());
        }
        let mut started = Instant::now();
        while let Some(buffer) = stream.next_buffer()? {
            pace.check ^= look(&buffer);
            pace.done(started, buffer.len() as u64);
            started = Instant::now();
            if !pace.go_on() {
                break;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Case {
    name: String,
    method: Method,
    request_bytes: usize,
    threads: usize,
    /// Its rate over time is plotted.
    drawn: bool,
    source: Option<&'static str>,
}

/// The indexes of the claims' cases.
const BUFFERED: usize = 0;
const DIRECT_SMALL: usize = 1;
const STREAM_COPIED: usize = 2;
const STREAM: usize = 3;
const REGISTERED: usize = 4;
const FIO_LIKE: usize = 6;
const MAPPED: usize = 8;

fn cases() -> Vec<Case> {
    let case = |name: &str, method, request_bytes, threads, source| Case {
        name: name.to_owned(),
        method,
        request_bytes,
        threads,
        drawn: false,
        source,
    };
    let ring = |depth, registered, polled| Method::Ring { depth, options: RingOptions { registered, polled } };
    let stream = |copied| Method::Stream { requests: 8, copied };
    let mut cases = vec![
        case("buffered, the kernel reads ahead", Method::Buffered, 128 << 10, 1, Some("S4: 945 MB/s")),
        case("direct, 4 KiB, one at a time", Method::Direct, 4096, 1, Some("S4: 463 MB/s")),
        case("direct, 8 x 128 KiB ahead, copied", stream(true), 128 << 10, 1, Some("S4: 2.35 GB/s")),
        case("direct, 8 x 128 KiB ahead, no copy", stream(false), 128 << 10, 1, Some("S4: 2.45 GB/s")),
        case("5 x 512 KiB, registered", ring(5, true, false), 512 << 10, 1, Some("S4: 7.29 GB/s (polled)")),
        case("5 x 512 KiB, registered, polled", ring(5, true, true), 512 << 10, 1, Some("S4: 7.29 GB/s")),
        case("256 x 128 KiB", ring(256, false, false), 128 << 10, 1, Some("S1 (fio): the drive's full rate")),
        case("64 x 128 KiB, 4 threads", ring(64, false, false), 128 << 10, 4, Some("S1 (fio, RAID 0): 20x mmap")),
    ];
    for advice in Advice::ALL {
        let source = match advice {
            Advice::Sequential => Some("S1: falls after about 17 s"),
            Advice::Normal | Advice::Random => None,
        };
        let name = format!("mmap, MADV_{}, 20 threads", advice.name());
        cases.push(case(&name, Method::Mapped(advice), STEP_BYTES, 20, source));
    }
    for advice in [Advice::Normal, Advice::Sequential] {
        let name = format!("mmap, MADV_{}, 1 thread", advice.name());
        cases.push(case(&name, Method::Mapped(advice), STEP_BYTES, 1, None));
    }
    for (requests, bytes) in [(1, 512 << 10), (32, 4096), (8, 512 << 10), (2, 4 << 20)] {
        let name = format!("{requests} x {}", figures::size(bytes as u64));
        cases.push(case(&name, ring(requests, false, false), bytes, 1, None));
    }
    for index in [BUFFERED, STREAM, FIO_LIKE, MAPPED, MAPPED + 2] {
        cases[index].drawn = true;
    }
    cases
}

fn timing(session: &Session<'_>) -> Timing {
    let seconds = session.pacing.series.seconds * 0.3;
    Timing { seconds, sample_seconds: (seconds / 16.0).clamp(0.05, 1.0) }
}

fn rounds(session: &Session<'_>) -> usize {
    session.pacing.rounds.div_ceil(2)
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    // A case ends early once the file is read: at 1 GB/s.
    let each = timing(session).seconds.min(session.file_bytes() as f64 / 1e9);
    (cases().len() * rounds(session)) as f64 * each
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Scan.name(),
        "Reading from start to end",
        "From a file larger than the memory limit. S4 says that a few large direct requests in flight are several times as \
         fast as the kernel's read-ahead, S1 that a mapping loses the drive's rate once memory is full.",
    )
}

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    let path = session.file()?.to_owned();
    let cases = cases();
    let timing = timing(session);
    let each = timing.seconds.min(session.file_bytes() as f64 / 1e9);
    let turns: Vec<Turns<Load>> = session.turns(
        &cases,
        rounds(session),
        each,
        |case| format!("scan: {}", case.name),
        |case, _| {
            let (method, request_bytes, threads) = (case.method, case.request_bytes, case.threads);
            let task = Task { path: path.clone(), method, request_bytes, threads, timing };
            (task, Some(session.memory_bytes()))
        },
    );
    let mut table = Table::new(
        "Whole scans, medians of turns",
        &[
            ("", Form::Text),
            ("rate", Form::Bandwidth),
            ("CPU per GB", Form::Seconds),
            ("major faults per MB", Form::Ratio),
            ("resident", Form::Bytes),
            ("device bytes per byte", Form::Ratio),
        ],
    );
    let mut plot = Plot::new(
        "Sequential reading over time",
        ("time", Form::Seconds, Scale::Linear),
        ("rate", Form::Bandwidth, Scale::Linear),
    );
    for (case, turns) in cases.iter().zip(&turns) {
        let Some(load) = turns.middle(Load::bytes_per_second) else {
            if let Some(failure) = &turns.failure {
                let mut cells = vec![Cell::from(case.name.clone())];
                cells.resize(table.columns.len(), Cell::Missing);
                table.row(cells).source(format!("not possible here: {failure}"));
            }
            continue;
        };
        let row = table.row(vec![
            case.name.clone().into(),
            turns.median(Load::bytes_per_second).into(),
            turns.median(|load| load.counters.cpu_seconds * 1e9 / load.bytes.max(1) as f64).into(),
            (load.counters.faults_major as f64 * 1e6 / load.bytes.max(1) as f64).into(),
            load.resident_bytes_max.into(),
            load.read_amplification().into(),
        ]);
        row.source = case.source.map(str::to_owned);
        if case.drawn {
            // The turns' samples follow one another; the last turn's are drawn.
            let start = turns.samples.iter().rposition(|sample| sample.at_seconds <= timing.sample_seconds * 1.5);
            let samples = &turns.samples[start.unwrap_or(0)..];
            plot.line(&case.name, samples.iter().map(|each| (each.at_seconds, each.bytes_per_second)).collect());
        }
    }
    chapter.tables.push(table);
    chapter.plots.push(plot);
    verdicts(chapter, machine, &turns);
    if machine.virtualised.is_some() {
        chapter.note(
            "This is a virtual drive: data that the host has cached arrives faster than a drive could deliver it.",
        );
    }
    Ok(())
}

fn verdicts(chapter: &mut Chapter, machine: &Machine, turns: &[Turns<Load>]) {
    let rate = |index: usize| turns[index].median(Load::bytes_per_second);
    let show = |rate: f64| Form::Bandwidth.show(rate);
    if let (Some(buffered), Some(small), Some(stream), Some(large)) =
        (rate(BUFFERED), rate(DIRECT_SMALL), rate(STREAM), rate(REGISTERED))
    {
        chapter.verdict(
            "S4",
            "Direct reads of 4 KiB, one at a time, are slower than the kernel's read-ahead (half).",
            Holds::of(small < buffered),
            format!("{} against {}.", show(small), show(buffered)),
        );
        chapter.verdict(
            "S4",
            "Direct reads with parallel read-ahead beat the kernel's (2.5 times), large requests more so (7.7 times).",
            match stream.max(large) / buffered {
                factor if factor > 2.0 => Holds::Yes,
                factor if factor > 1.1 => Holds::Partly,
                _ => Holds::No,
            },
            format!(
                "Read-ahead {}, 5 x 512 KiB {}, the kernel's {}{}.",
                show(stream),
                show(large),
                show(buffered),
                machine
                    .drive
                    .read_ahead_bytes
                    .map_or(String::new(), |bytes| format!(" with a window of {}", figures::size(bytes)))
            ),
        );
    }
    if let (Some(copied), Some(stream)) = (rate(STREAM_COPIED), rate(STREAM)) {
        chapter.verdict(
            "S4",
            "Avoiding the copy helps a little (4 %).",
            if stream > 1.01 * copied { Holds::Yes } else { Holds::Partly },
            format!("{} without, {} with a copy.", show(stream), show(copied)),
        );
    }
    if let (Some(direct), Some(best)) = (rate(FIO_LIKE), (MAPPED..MAPPED + 5).filter_map(rate).reduce(f64::max)) {
        chapter.verdict(
            "S1",
            "A mapping cannot hold the drive's rate once memory is full; many requests in flight can.",
            match best / direct {
                share if share < 0.6 => Holds::Yes,
                share if share < 0.95 => Holds::Partly,
                _ => Holds::No,
            },
            format!("The best mapping {}, 256 requests in flight {}.", show(best), show(direct)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every method reads the whole file and sees the same bytes.
    #[test]
    fn every_method_reads_all() {
        let folder = tempfile::tempdir().unwrap();
        let room = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = room.filled("data", 4 << 20, |_| true).unwrap();
        let mut checks = Vec::new();
        for case in cases().into_iter().filter(|case| case.threads == 1 || case.threads == 4) {
            let timing = Timing { seconds: 60.0, sample_seconds: 0.0 };
            let (method, request_bytes, threads) = (case.method, case.request_bytes, case.threads);
            match (Task { path: path.clone(), method, request_bytes, threads, timing }).perform(|_| {}) {
                Ok(load) => {
                    assert_eq!(load.bytes, 4 << 20, "{}", case.name);
                    // A thread's own fold is added to the others'.
                    if threads == 1 {
                        checks.push(load.check);
                    }
                }
                Err(error) => {
                    let can_be_refused = matches!(method, Method::Direct | Method::Ring { .. });
                    assert!(can_be_refused, "{}: {error}", case.name);
                }
            }
        }
        assert!(checks.len() > 3 && checks.iter().all(|check| *check == checks[0]), "{checks:?}");
    }
}
