//! Writes and reads pieces of 1 byte to 10 KiB through a mapping and by calls, as in S3's table.
//!
//! S3's read column cannot be right: 2 GB in 0.87 ms would be 2,300 GB/s. The time falls in exact proportion to the
//! bytes per call, as if each call cost the same whatever its size. That happens if each "read" only takes a slice of
//! the mapping, or touches one byte of it. So this experiment reads a mapping by three methods: taking slices, touching
//! one byte of each piece, and copying every byte, as read(2) does.
//!
//! S3's write column measured a new file, whose pages must be faulted in and whose blocks must be allocated. So this
//! experiment measures four cases separately and counts the faults of each: a new file, a file whose blocks `fallocate`
//! has allocated, the first touch of an existing file, and pages that were touched before. Each method has its own
//! file. New files are written twice: see [`Task::time`].

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::compare::{Claim, Ratio, Size, Spread, all};
use crate::counters;
use crate::figures::{self, Form};
use crate::map::{Map, Mode};
use crate::measure::Sample;
use crate::report::{Cell, Chapter, Holds, Judgement, MEDIANS, Plot, Scale, Table};
use crate::session::{Rounds, Session, Trials};
use crate::worker::Measurement;

/// The bytes that S3 read and wrote. Measured times are extrapolated to this amount.
const SOURCE_BYTES: f64 = 2e9;

const PAGE_BYTES: usize = 4096;

/// The size of each file, small enough to stay in the page cache. Times are extrapolated to [`SOURCE_BYTES`].
const FILE_BYTES: usize = 128 << 20;

/// The piece sizes. Most verdicts rest on 4 KiB. It comes first because the first case is measured twice.
const SIZES: [usize; 8] = [4096, 1, 100, 512, 1024, 2048, 8192, 10_240];

/// S3's times for each size. Columns: write by mapping, write by call, read by mapping, read by call.
const SOURCE: [[&str; 4]; 8] = [
    ["2.48 s", "1.74 s", "2.1 ms", "558 ms"],
    ["22.1 s", "> 300 s", "8.22 s", "> 300 s"],
    ["2.84 s", "22.9 s", "86.4 ms", "8.10 s"],
    ["2.51 s", "5.43 s", "16.1 ms", "1.85 s"],
    ["2.48 s", "3.48 s", "8.1 ms", "993 ms"],
    ["2.47 s", "2.34 s", "4.1 ms", "637 ms"],
    ["2.45 s", "1.67 s", "1.1 ms", "445 ms"],
    ["2.49 s", "1.65 s", "0.87 ms", "475 ms"],
];

/// An operation on each piece, together with the state of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Method {
    /// Store into a mapping of a new file without blocks.
    WriteNewMapped,
    WriteNewCall,
    /// Store into a mapping of a new file whose blocks `fallocate` has allocated.
    WriteAllocatedMapped,
    /// Store into a new mapping of a cached file.
    WriteFirstMapped,
    /// Store into a mapping of a cached file, all of whose pages were touched before.
    WriteMapped,
    WriteCall,
    /// Take a slice of the mapping without reading it.
    SliceMapped,
    /// Read one byte of the piece.
    TouchMapped,
    /// Copy the whole piece, as read(2) does, out of a new mapping.
    CopyFirstMapped,
    CopyMapped,
    ReadCall,
}

impl Method {
    const ALL: [Method; 11] = [
        Method::WriteNewMapped,
        Method::WriteNewCall,
        Method::WriteAllocatedMapped,
        Method::WriteFirstMapped,
        Method::WriteMapped,
        Method::WriteCall,
        Method::SliceMapped,
        Method::TouchMapped,
        Method::CopyFirstMapped,
        Method::CopyMapped,
        Method::ReadCall,
    ];

    fn is_of_new_file(self) -> bool {
        matches!(self, Method::WriteNewMapped | Method::WriteNewCall | Method::WriteAllocatedMapped)
    }

    /// Returns `true` if the measurement ends at the end of the file instead of starting over, because its effect
    /// occurs only once per file.
    fn is_once(self) -> bool {
        self.is_of_new_file() || matches!(self, Method::WriteFirstMapped | Method::CopyFirstMapped)
    }
}

/// Measures all methods at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    folder: PathBuf,
    /// Existing, cached files: one for writes by mapping, one for writes by call, and one for reads.
    files: [PathBuf; 3],
    bytes: usize,
    /// The time limit of each method. If the pieces have at least [`PAGES_FROM`] bytes, a new file is written to its
    /// end, unless that takes more than [`NEW_FILE_TIMES`] times the limit.
    seconds: f64,
}

/// The factor by which a new file may exceed [`Task::seconds`].
const NEW_FILE_TIMES: f64 = 5.0;

/// With pieces of at least this size, creating the pages of a new file costs far more than copying into them.
const PAGES_FROM: usize = 512;

/// The measured times of one method at one size.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Timed {
    /// Seconds for 2 GB. If two new files were written, this is the time of the second.
    seconds: f64,
    /// Seconds for 2 GB in the first of two new files.
    first_seconds: f64,
    /// The page faults per page that was read or written.
    faults_per_page: f64,
}

impl Measurement for Task {
    const NAME: &'static str = "calls";
    type Result = Vec<Timed>;

    /// Returns the times in the order of `Method::ALL`.
    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Vec<Timed>> {
        Method::ALL.into_iter().map(|method| self.time(method)).collect()
    }
}

impl Task {
    /// Times one method. New files are written twice: on some virtual machines memory costs more at its first use, and
    /// the first file pays for that.
    fn time(&self, method: Method) -> io::Result<Timed> {
        if method.is_of_new_file() {
            let first_seconds = self.pass(method)?.seconds;
            return Ok(Timed { first_seconds, ..self.pass(method)? });
        }
        self.pass(method)
    }

    fn pass(&self, method: Method) -> io::Result<Timed> {
        let is_new = method.is_of_new_file();
        let path = match method {
            _ if is_new => self.folder.join(format!("new-{}", self.bytes)),
            Method::WriteFirstMapped | Method::WriteMapped => self.files[0].clone(),
            Method::WriteCall => self.files[1].clone(),
            _ => self.files[2].clone(),
        };
        let file = File::options().read(true).write(true).create(is_new).truncate(is_new).open(&path)?;
        match method {
            Method::WriteAllocatedMapped => {
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, FILE_BYTES as u64)?;
            }
            _ if is_new => file.set_len(FILE_BYTES as u64)?,
            _ => {}
        }
        // Map the file for system calls too, so that the timed operation is the only difference between the methods.
        let mut map = Map::new(&file, FILE_BYTES, Mode::Shared)?;
        match method {
            Method::WriteMapped => map.chunks_mut(PAGE_BYTES).for_each(|page| page[0] = page[0].wrapping_add(1)),
            _ if method.is_once() => {}
            _ => {
                black_box(map.chunks(PAGE_BYTES).map(|page| u64::from(page[0])).sum::<u64>());
            }
        }
        let result = self.run(method, &file, &mut map);
        if is_new {
            std::fs::remove_file(&path)?;
        }
        result
    }

    fn run(&self, method: Method, file: &File, map: &mut Map) -> io::Result<Timed> {
        let mut piece = vec![7u8; self.bytes];
        let mut sum = 0u64;
        // Read the clock once per batch of pieces, because reading it costs more than touching a byte.
        let batch = ((256 << 10) / self.bytes).max(1);
        let (mut bytes, mut offset) = (0u64, 0);
        let before = counters::thread_faults();
        let start = Instant::now();
        let times = if method.is_of_new_file() && self.bytes >= PAGES_FROM { NEW_FILE_TIMES } else { 1.0 };
        let limit = Duration::from_secs_f64(self.seconds * times);
        'timed: loop {
            for _ in 0..batch {
                if offset + self.bytes > FILE_BYTES {
                    offset = 0;
                    if method.is_once() {
                        break 'timed;
                    }
                }
                let range = offset..offset + self.bytes;
                match method {
                    Method::WriteNewMapped
                    | Method::WriteAllocatedMapped
                    | Method::WriteFirstMapped
                    | Method::WriteMapped => {
                        map[range].copy_from_slice(black_box(&piece));
                    }
                    Method::WriteNewCall | Method::WriteCall => file.write_all_at(&piece, offset as u64)?,
                    Method::SliceMapped => {
                        black_box(&map[range]);
                    }
                    Method::TouchMapped => sum += u64::from(black_box(&map[range])[0]),
                    Method::CopyFirstMapped | Method::CopyMapped => {
                        piece.copy_from_slice(&map[range]);
                        black_box(&piece);
                    }
                    Method::ReadCall => file.read_exact_at(&mut piece, offset as u64)?,
                }
                offset += self.bytes;
                bytes += self.bytes as u64;
            }
            if start.elapsed() >= limit {
                break;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        black_box(sum);
        let faults = counters::thread_faults() - before;
        let pages = bytes as f64 / PAGE_BYTES as f64;
        let seconds = seconds * SOURCE_BYTES / bytes as f64;
        Ok(Timed { seconds, first_seconds: seconds, faults_per_page: faults as f64 / pages })
    }
}

fn way_seconds(session: &Session<'_>) -> f64 {
    (session.pacing.slice.seconds / 5.0).max(0.05)
}

/// Estimates the duration of a trial. Methods that touch each page only once end early; new files take longer.
fn turn_seconds(session: &Session<'_>) -> f64 {
    way_seconds(session) * Method::ALL.len() as f64 * 0.6 + 0.6
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    3.0 + Session::rounds_seconds(SIZES.len(), session.pacing.rounds, turn_seconds(session))
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    session.step("calls: writing three files", 3.0);
    let make = |name: &str| -> io::Result<PathBuf> {
        let path = session.temp_folder.filled(name, FILE_BYTES as u64, |_| !session.interrupted())?;
        read_through(&path)?;
        Ok(path)
    };
    let files = [make("calls-mapped")?, make("calls-written")?, make("calls-read")?];
    let seconds = way_seconds(session);
    let folder = session.temp_folder.path().to_owned();
    let trials = session.run_rounds(
        &SIZES,
        session.pacing.rounds,
        turn_seconds(session),
        |bytes| format!("calls: pieces of {bytes} B"),
        |&bytes, _| (Task { folder: folder.clone(), files: files.clone(), bytes, seconds }, None),
    );
    for path in &files {
        std::fs::remove_file(path)?;
    }
    for trials in trials.cases.iter().chain([&trials.again]) {
        if let Some(failure) = &trials.failure {
            chapter.note(format!("Not all pieces were measured: {failure}."));
        }
    }
    let tables = [writes(&trials), reads(&trials), both(&trials)];
    chapter.tables.extend(tables);
    chapter.plots.push(plot(&trials));
    let found = Findings::of(&trials);
    for claim in &CLAIMS {
        claim.put(chapter, &found);
    }
    Ok(())
}

/// Reads a file to bring it into the page cache.
fn read_through(path: &Path) -> io::Result<()> {
    io::copy(&mut File::open(path)?, &mut io::sink())?;
    Ok(())
}

fn index(method: Method) -> usize {
    Method::ALL.iter().position(|each| *each == method).expect("listed")
}

/// Returns the median time of a method over the trials at one size.
fn time(trials: &Trials<Vec<Timed>>, method: Method) -> Option<f64> {
    trials.median(|times| times[index(method)].seconds)
}

/// A row of the table: the size, its trials, and the source's times for it.
type Row<'t> = (usize, &'t Trials<Vec<Timed>>, [&'static str; 4]);

/// Returns the rows in ascending order of size.
fn rows(trials: &Rounds<Vec<Timed>>) -> Vec<Row<'_>> {
    let mut rows: Vec<_> =
        SIZES.into_iter().zip(trials).zip(SOURCE).map(|((bytes, trials), source)| (bytes, trials, source)).collect();
    rows.sort_by_key(|(bytes, ..)| *bytes);
    rows
}

fn writes(trials: &Rounds<Vec<Timed>>) -> Table {
    let mut table = Table::new(
        format!(
            "Writing 2 GB, extrapolated from {} at most, of two new files the second",
            figures::size(FILE_BYTES as u64)
        ),
        &[
            ("bytes per call", Form::Count),
            ("new file, mapped", Form::Seconds),
            ("new file, write(2)", Form::Seconds),
            ("fallocated, mapped", Form::Seconds),
            ("first touch, mapped", Form::Seconds),
            ("touched, mapped", Form::Seconds),
            ("cached, write(2)", Form::Seconds),
            ("S3: mapped", Form::Text),
            ("S3: write(2)", Form::Text),
        ],
    );
    let methods = [
        Method::WriteNewMapped,
        Method::WriteNewCall,
        Method::WriteAllocatedMapped,
        Method::WriteFirstMapped,
        Method::WriteMapped,
        Method::WriteCall,
    ];
    for (bytes, trials, source) in rows(trials) {
        let mut cells: Vec<Cell> = vec![(bytes as u64).into()];
        cells.extend(methods.map(|method| Cell::from(time(trials, method))));
        cells.extend([source[0].into(), source[1].into()]);
        table.row(cells);
    }
    table
}

fn reads(trials: &Rounds<Vec<Timed>>) -> Table {
    let mut table = Table::new(
        format!("Reading 2 GB, all of it cached, from {} again and again", figures::size(FILE_BYTES as u64)),
        &[
            ("bytes per call", Form::Count),
            ("only sliced", Form::Seconds),
            ("1 byte touched", Form::Seconds),
            ("first touch, copied", Form::Seconds),
            ("touched, copied", Form::Seconds),
            ("read(2)", Form::Seconds),
            ("S3: mapped", Form::Text),
            ("S3: read(2)", Form::Text),
        ],
    );
    let methods =
        [Method::SliceMapped, Method::TouchMapped, Method::CopyFirstMapped, Method::CopyMapped, Method::ReadCall];
    for (bytes, trials, source) in rows(trials) {
        let mut cells: Vec<Cell> = vec![(bytes as u64).into()];
        cells.extend(methods.map(|method| Cell::from(time(trials, method))));
        cells.extend([source[2].into(), source[3].into()]);
        table.row(cells);
    }
    table
}

/// A method of writing a new file, and a method of reading it.
type Pair = (Method, Method);

/// S3's advice: write by calls and read by mapping. The reader has to create a mapping; a process that also wrote
/// through a mapping would already have one.
const ADVICE: Pair = (Method::WriteNewCall, Method::CopyFirstMapped);
const BOTH_MAPPED: Pair = (Method::WriteNewMapped, Method::CopyMapped);
const BOTH_CALLS: Pair = (Method::WriteNewCall, Method::ReadCall);

fn both(trials: &Rounds<Vec<Timed>>) -> Table {
    let mut table = Table::new(
        "S3's advice, write by calls and read by mapping: 2 GB in a new file, read back",
        &[
            ("bytes per call", Form::Count),
            ("write(2), read mapped", Form::Seconds),
            ("both mapped", Form::Seconds),
            ("both by calls", Form::Seconds),
        ],
    );
    for (bytes, trials, _) in rows(trials) {
        let sum =
            |(write, read)| Cell::from(time(trials, write).zip(time(trials, read)).map(|(write, read)| write + read));
        table.row(vec![(bytes as u64).into(), sum(ADVICE), sum(BOTH_MAPPED), sum(BOTH_CALLS)]);
    }
    table
}

fn plot(trials: &Rounds<Vec<Timed>>) -> Plot {
    let mut plot = Plot::new(
        "Time for 2 GB",
        ("bytes per call", Form::Count, Scale::Logarithmic),
        ("time", Form::Seconds, Scale::Logarithmic),
    )
    .drawing(MEDIANS);
    for (name, method) in [
        ("write, new file mapped", Method::WriteNewMapped),
        ("write(2), new file", Method::WriteNewCall),
        ("read: 1 byte touched", Method::TouchMapped),
        ("read: mapped, copied", Method::CopyMapped),
        ("read(2)", Method::ReadCall),
    ] {
        let points =
            rows(trials).into_iter().filter_map(|(bytes, trials, _)| Some((bytes as f64, time(trials, method)?)));
        plot.line(name, points.collect());
    }
    plot
}

/// The figures on which the verdicts rest. Figures that were not measured are `None`.
#[derive(Debug, Default)]
struct Findings {
    /// Seconds for 2 GB in pieces of 4 KiB, for three methods: taking slices, touching one byte, copying all bytes.
    reads: Option<[Spread; 3]>,
    /// The time of read(2) divided by that of a copy from the mapping, in pieces of one byte.
    read_bytes: Option<Ratio>,
    read_large: Option<Large>,
    /// The time to write a new file through a mapping divided by the time with write(2), in pieces of 4 and of 10 KiB.
    /// `write_new` is for the second of two files, `write_first` for the first.
    write_new: Option<[Ratio; 2]>,
    write_first: Option<[Ratio; 2]>,
    /// Seconds for writing 2 GB of a new file through a mapping, for each size of at least [`PAGES_FROM`].
    new_seconds: Vec<f64>,
    /// The time of write(2) divided by that of the mapping, in pieces of 4 KiB, for an existing file whose pages were
    /// touched before.
    write_touched: Option<Ratio>,
    pages: Option<Pages>,
    /// The time of writing and reading through a mapping, and of doing both by calls, each divided by the time of
    /// following S3's advice, in pieces of 4 KiB. `advice` is for the second of two files, `advice_first` for the
    /// first.
    advice: Option<[Ratio; 2]>,
    advice_first: Option<[Ratio; 2]>,
}

/// Figures for reads in pieces of 8 KiB.
#[derive(Clone, Copy, Debug)]
struct Large {
    /// The time of read(2) divided by that of a copy from the mapping.
    copied: Ratio,
    /// The time of read(2) divided by that of taking slices, which S3's column shows.
    sliced: Ratio,
    /// Seconds for 2 GB, with read(2) and with the copy.
    seconds: [f64; 2],
}

/// The cost of a page when writing through a mapping in pieces of 4 KiB.
#[derive(Clone, Copy, Debug)]
struct Pages {
    /// Seconds for 2 GB: in a new file, in a file with allocated blocks, and in pages that were touched before.
    seconds: [f64; 3],
    /// Faults per page, in the same order.
    faults: [f64; 3],
    /// The additional time of a new file whose blocks are already allocated, as a share of the additional time of a new
    /// file without blocks.
    without_allocation: Spread,
}

impl Findings {
    fn of(trials: &Rounds<Vec<Timed>>) -> Findings {
        let case = |bytes: usize| SIZES.iter().position(|each| *each == bytes).expect("listed");
        let spread = |bytes, method| trials[case(bytes)].spread(|times| times[index(method)].seconds);
        let compare = |bytes, left: &dyn Fn(&Vec<Timed>) -> f64, right: &dyn Fn(&Vec<Timed>) -> f64| {
            // Only the case of 4 KiB is repeated, so its noise stands in for the noise of the other sizes.
            let noise = trials.noise(left).max(trials.noise(right));
            Ratio::of(&trials[case(bytes)].each(left), &trials[case(bytes)].each(right), noise)
        };
        let of_way = |method| move |times: &Vec<Timed>| times[index(method)].seconds;
        let of_first = |method| move |times: &Vec<Timed>| times[index(method)].first_seconds;
        let of_pair = |(write, read)| move |times: &Vec<Timed>| of_way(write)(times) + of_way(read)(times);
        let of_first_pair = |(write, read)| move |times: &Vec<Timed>| of_first(write)(times) + of_way(read)(times);
        let ratio = |bytes, left, right| compare(bytes, &of_way(left), &of_way(right));
        let first = |bytes| compare(bytes, &of_first(Method::WriteNewMapped), &of_first(Method::WriteNewCall));
        let both = |left: Option<Ratio>, right: Option<Ratio>| left.zip(right).map(|(left, right)| [left, right]);
        Findings {
            reads: (|| {
                Some([
                    spread(4096, Method::SliceMapped)?,
                    spread(4096, Method::TouchMapped)?,
                    spread(4096, Method::CopyMapped)?,
                ])
            })(),
            read_bytes: ratio(1, Method::ReadCall, Method::CopyMapped),
            read_large: (|| {
                Some(Large {
                    copied: ratio(8192, Method::ReadCall, Method::CopyMapped)?,
                    sliced: ratio(8192, Method::ReadCall, Method::SliceMapped)?,
                    seconds: [spread(8192, Method::ReadCall)?.median, spread(8192, Method::CopyMapped)?.median],
                })
            })(),
            write_new: both(
                ratio(4096, Method::WriteNewMapped, Method::WriteNewCall),
                ratio(10_240, Method::WriteNewMapped, Method::WriteNewCall),
            ),
            write_first: both(first(4096), first(10_240)),
            new_seconds: rows(trials)
                .into_iter()
                .filter(|(bytes, ..)| *bytes >= PAGES_FROM)
                .filter_map(|(_, trials, _)| time(trials, Method::WriteNewMapped))
                .collect(),
            write_touched: ratio(4096, Method::WriteCall, Method::WriteMapped),
            pages: Pages::of(&trials[case(4096)]),
            advice: both(
                compare(4096, &of_pair(BOTH_MAPPED), &of_pair(ADVICE)),
                compare(4096, &of_pair(BOTH_CALLS), &of_pair(ADVICE)),
            ),
            advice_first: both(
                compare(4096, &of_first_pair(BOTH_MAPPED), &of_first_pair(ADVICE)),
                compare(4096, &of_first_pair(BOTH_CALLS), &of_first_pair(ADVICE)),
            ),
        }
    }
}

impl Pages {
    fn of(trials: &Trials<Vec<Timed>>) -> Option<Pages> {
        let methods = [Method::WriteNewMapped, Method::WriteAllocatedMapped, Method::WriteMapped].map(index);
        let median = |figure: fn(&Timed) -> f64| methods.map(|method| trials.median(|times| figure(&times[method])));
        let [Some(new), Some(allocated), Some(touched)] = median(|timed| timed.seconds) else { return None };
        let [Some(new_faults), Some(allocated_faults), Some(touched_faults)] = median(|timed| timed.faults_per_page)
        else {
            return None;
        };
        let share = |times: &Vec<Timed>| {
            let [new, allocated, touched] = methods.map(|method| times[method].seconds);
            (allocated - touched) / (new - touched)
        };
        Some(Pages {
            seconds: [new, allocated, touched],
            faults: [new_faults, allocated_faults, touched_faults],
            without_allocation: trials.spread(share)?,
        })
    }
}

fn nothing() -> Judgement {
    Judgement::inconclusive("figures: the cases did not run", "")
}

fn show(seconds: f64) -> String {
    figures::micros(seconds * 1e6)
}

const CLAIMS: [Claim<Findings>; 6] = [
    Claim {
        source: "S3",
        text: "Reading 2 GB in pieces of 4 KiB through a mapping takes 2.1 ms.",
        judge: |found| {
            // Allow twice S3's time, because this is a different machine.
            let limit = 2.0 * 2.1e-3;
            let Some([sliced, touched, copied]) = found.reads else { return nothing() };
            let holds = match () {
                () if copied.median <= limit => Holds::Yes,
                () if touched.median <= limit => Holds::Partly,
                () => Holds::No,
            };
            let why = format!(
                "That would be 950 GB/s. Taking slices takes {}, touching one byte of each piece {}, copying all {}.",
                show(sliced.median),
                show(touched.median),
                show(copied.median)
            );
            Judgement::new(holds, why)
        },
    },
    Claim {
        source: "S3",
        text: "Cached and byte by byte, a mapping reads more than 36 times as fast as calls.",
        judge: |found| {
            let Some(ratio) = found.read_bytes else { return nothing() };
            ratio.judge_at_least(Size::of(36.0), format!("read(2) takes {} as long.", ratio.show()))
        },
    },
    Claim { source: "S3", text: "In pieces of 8 KiB a mapping reads 400 times as fast as calls.", judge: large_pieces },
    Claim {
        source: "S3",
        text: "A new file is written faster by write(2) than through a mapping from 4 KiB on (1.4 times).",
        judge: new_file,
    },
    Claim {
        source: "Drumlin",
        text: "A new file is slow through a mapping for the faults themselves, not for the blocks that they allocate.",
        judge: faults_cost,
    },
    Claim { source: "S3", text: "It is best to write by calls and to read by mapping, as LMDB does.", judge: advice },
];

/// Judges by the copy, the only mapped method that does the same work as read(2). S3's column matches the slices, which
/// read nothing.
fn large_pieces(found: &Findings) -> Judgement {
    let Some(Large { copied, sliced, seconds: [call, mapped] }) = found.read_large else { return nothing() };
    let calls = SOURCE_BYTES / 8192.0;
    let why = format!(
        "{} for the same copy: for 2 GB {} against {}, {} a call. Only taking slices, which reads nothing and which \
         S3's column has the times of, gives {}.",
        copied.show(),
        show(call),
        show(mapped),
        show((call - mapped).abs() / calls),
        sliced.show()
    );
    copied.judge_at_least(Size::of(400.0), why)
}

/// If the times of new files differ by more than this factor between pieces of at least [`PAGES_FROM`] bytes, the
/// machine changed its state during the run.
const STATE_FACTOR: f64 = 2.0;

/// The ratio of S3's times, 2.48 s by mapping and 1.74 s by calls.
const NEW_FILE: Size = Size::of(1.4);

fn new_file(found: &Findings) -> Judgement {
    let (Some([small, large]), Some([first_small, first_large])) = (found.write_new, found.write_first) else {
        return nothing();
    };
    let judge = |ratios: [Ratio; 2]| all(ratios.map(|ratio| ratio.at_least(NEW_FILE)));
    // On S3's kernel, each page took one fault.
    let faults = found.pages.map_or(String::new(), |pages| {
        format!(" There are {} faults a page: a large folio comes in by one.", figures::digits(pages.faults[0]))
    });
    let why = format!(
        "Of two new files the mapping takes for the second {} as long at 4 KiB, {} at 10 KiB.{} For the first it takes {} \
         and {}.{faults} The times are those of {}, extrapolated {} times.",
        small.show(),
        large.show(),
        small.excess(NEW_FILE),
        first_small.show(),
        first_large.show(),
        figures::size(FILE_BYTES as u64),
        figures::digits(SOURCE_BYTES / FILE_BYTES as f64)
    );
    let range = Spread::of(&found.new_seconds);
    if let Some(Spread { least, most, .. }) = range.filter(|range| range.most > STATE_FACTOR * range.least) {
        let missing = format!(
            "a machine in one state: new files took {} to {} through the mapping, whatever the pieces",
            show(least),
            show(most)
        );
        return Judgement::inconclusive(missing, why);
    }
    if is_opposite([[small, large], [first_small, first_large]].map(judge)) {
        return Judgement::inconclusive(FIRST_USE, why);
    }
    small.judge(judge([small, large]), why)
}

/// Returns `true` if one judgement confirms the claim, at least partly, and the other refutes it.
fn is_opposite(judgements: [Holds; 2]) -> bool {
    let has = |those: [Holds; 2]| judgements.iter().any(|holds| those.contains(holds));
    has([Holds::Yes, Holds::Partly]) && has([Holds::No, Holds::NotInSize])
}

/// The missing condition if the two new files lead to opposite verdicts.
const FIRST_USE: &str = "memory that costs no more at its first use than later (a virtual machine's may)";

/// Judges why a new file costs more than touched pages. The faults are the cause if most of the additional cost remains
/// once the blocks are allocated. The allocation is the cause if little of it remains.
fn faults_cost(found: &Findings) -> Judgement {
    let (Some(ratio), Some(pages)) = (found.write_touched, found.pages) else { return nothing() };
    let [new, allocated, touched] = pages.seconds;
    let a_page = |seconds: f64| show((seconds - touched).max(0.0) * PAGE_BYTES as f64 / SOURCE_BYTES);
    let faults = pages.faults.map(figures::digits);
    let share = pages.without_allocation;
    let why = format!(
        "Beyond pages that were touched before, a page costs {} in a new file ({} faults a page) and {} in one with \
         its blocks allocated ({}): {} of it. Touched pages: write(2) takes {} as long.",
        a_page(new),
        faults[0],
        a_page(allocated),
        faults[1],
        share.show(Form::Share, ""),
        ratio.show()
    );
    match () {
        () if new < 1.5 * touched => Judgement::inconclusive("a new file that costs more than touched pages", why),
        () if share.least >= 2.0 / 3.0 => Judgement::new(Holds::Yes, why),
        () if share.most <= 1.0 / 3.0 => Judgement::new(Holds::No, why),
        () if share.least > 1.0 / 3.0 && share.most < 2.0 / 3.0 => Judgement::new(Holds::Partly, why),
        () => Judgement::inconclusive("rounds that agree: their shares lie on both sides of a third", why),
    }
}

/// Judges the advice. It rests on both of S3's tables, so it is judged in the case that they share: pages of a new,
/// cached file.
fn advice(found: &Findings) -> Judgement {
    let (Some([mapped, calls]), Some(first)) = (found.advice, found.advice_first) else { return nothing() };
    let part = |ratio: Ratio| ratio.at_least(Size::bound(1.1));
    let why = format!(
        "A new file in pieces of 4 KiB, cached: of two files, for the second both by mapping takes {} as long, both by \
         calls {}; for the first {} and {}. Beyond memory a mapping stalls (stall), and errors of the drive are signals \
         (hazards).",
        mapped.show(),
        calls.show(),
        first[0].show(),
        first[1].show()
    );
    let judge = |ratios: [Ratio; 2]| all(ratios.map(part));
    if is_opposite([[mapped, calls], first].map(judge)) {
        return Judgement::inconclusive(FIRST_USE, why);
    }
    let unsure = if part(mapped) == Holds::Inconclusive { mapped } else { calls };
    unsure.judge(judge([mapped, calls]), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every method is timed, new files are removed, and the source's table has a row for each size.
    #[test]
    fn every_way_is_timed() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a", "b", "c"].map(|name| folder.path().join(name));
        for path in &files {
            File::create(path).unwrap().set_len(FILE_BYTES as u64).unwrap();
        }
        let task = Task { folder: folder.path().to_owned(), files, bytes: 10_240, seconds: 0.0 };
        let times = task.perform(|_| {}).unwrap();
        assert_eq!(times.len(), Method::ALL.len());
        assert!(times.iter().all(|timed| timed.seconds > 0.0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
        assert_eq!(SOURCE.len(), SIZES.len());
    }

    /// The pages of a new file are faulted in, each fault bringing in one folio of the file system. Pages that were
    /// touched before do not fault.
    #[test]
    fn faults_are_those_of_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a", "b", "c"].map(|name| folder.path().join(name));
        File::create(&files[0]).unwrap().set_len(FILE_BYTES as u64).unwrap();
        let task = Task { folder: folder.path().to_owned(), files, bytes: 10_240, seconds: 0.0 };
        let faults = |method| task.time(method).unwrap().faults_per_page;
        let new = faults(Method::WriteNewMapped);
        assert!(new >= 1.0 / HUGE_PAGES, "{new} faults a page of a new file");
        // If another process syncs the file system while the pages are touched, they become clean and fault a second
        // time.
        let touched = (0..20).map(|_| faults(Method::WriteMapped)).find(|touched| *touched < new / 4.0);
        assert!(touched.is_some(), "pages that were touched fault as a new file's do, at {new} faults a page");
    }

    /// The number of pages in the largest folio, which is 2 MiB.
    const HUGE_PAGES: f64 = 512.0;

    fn ratio(median: f64) -> Option<Ratio> {
        Some(Ratio { median, least: median * 0.98, most: median * 1.02, noise: 1.02 })
    }

    fn noisy(median: f64) -> Option<Ratio> {
        Some(Ratio { median, least: 0.5, most: median * 500.0, noise: 1.1 })
    }

    fn spread(median: f64) -> Spread {
        Spread { median, least: median, most: median }
    }

    /// Each claim can get every verdict.
    #[test]
    fn claims_come_out_each_way() {
        let judged = |index: usize, found: &Findings| (CLAIMS[index].judge)(found).holds;
        for (copied, touched, holds) in
            [(0.003, 0.002, Holds::Yes), (0.1, 0.002, Holds::Partly), (0.1, 0.01, Holds::No)]
        {
            let reads = Some([spread(0.001), spread(touched), spread(copied)]);
            assert_eq!(judged(0, &Findings { reads, ..Findings::default() }), holds);
        }
        for (found, holds) in [
            (ratio(80.0), Holds::Yes),
            (ratio(10.0), Holds::Partly),
            (ratio(0.9), Holds::No),
            (noisy(9.0), Holds::Inconclusive),
        ] {
            assert_eq!(judged(1, &Findings { read_bytes: found, ..Findings::default() }), holds);
        }
        for (found, holds) in [
            (ratio(450.0), Holds::Yes),
            (ratio(20.0), Holds::Partly),
            (ratio(1.98), Holds::NotInSize),
            (ratio(0.9), Holds::No),
            (noisy(9.0), Holds::Inconclusive),
        ] {
            let read_large =
                found.map(|copied| Large { copied, sliced: ratio(900.0).unwrap(), seconds: [0.191, 0.0963] });
            let judgement = (CLAIMS[2].judge)(&Findings { read_large, ..Findings::default() });
            assert_eq!(judgement.holds, holds);
            assert!(judgement.why.contains("slices, which reads nothing"), "{}", judgement.why);
        }
        for (small, large, holds) in [(1.5, 1.6, Holds::Yes), (1.5, 0.9, Holds::Partly), (0.8, 0.7, Holds::No)] {
            let write_new = ratio(small).zip(ratio(large)).map(|(small, large)| [small, large]);
            assert_eq!(judged(3, &Findings { write_new, write_first: write_new, ..Findings::default() }), holds);
        }
        let write_new = noisy(1.2).map(|ratio| [ratio, ratio]);
        assert_eq!(
            judged(3, &Findings { write_new, write_first: write_new, ..Findings::default() }),
            Holds::Inconclusive
        );
        for (mapped, calls, holds) in [(1.5, 1.6, Holds::Yes), (1.5, 0.9, Holds::Partly), (0.8, 0.7, Holds::No)] {
            let advice = ratio(mapped).zip(ratio(calls)).map(|(mapped, calls)| [mapped, calls]);
            assert_eq!(judged(5, &Findings { advice, advice_first: advice, ..Findings::default() }), holds);
        }
        let advice = ratio(1.5).zip(noisy(1.05)).map(|(mapped, calls)| [mapped, calls]);
        assert_eq!(judged(5, &Findings { advice, advice_first: advice, ..Findings::default() }), Holds::Inconclusive);
        let [slower, faster] = [1.5, 0.5].map(|factor| Some([ratio(factor).unwrap(); 2]));
        let judgement = (CLAIMS[5].judge)(&Findings { advice: faster, advice_first: slower, ..Findings::default() });
        assert_eq!((judgement.holds, judgement.missing.as_deref()), (Holds::Inconclusive, Some(FIRST_USE)));
        assert!(CLAIMS.iter().all(|claim| (claim.judge)(&Findings::default()).holds == Holds::Inconclusive));
    }

    /// If the times of new files depend on the piece size although their pages cost the same, the machine changed its
    /// state during the run. The extrapolation is reported, and so is an effect far larger than S3's.
    #[test]
    fn new_files_of_two_states_tell_nothing() {
        let example = Some([ratio(3.47).unwrap(), ratio(6.56).unwrap()]);
        let judge_both = |write_new, write_first, new_seconds: &[f64]| {
            new_file(&Findings { write_new, write_first, new_seconds: new_seconds.to_vec(), ..Findings::default() })
        };
        let judge = |new_seconds: &[f64]| judge_both(example, example, new_seconds);
        // The first file pays for memory that the second file reuses, so their verdicts are opposite.
        let faster = Some([ratio(0.6).unwrap(); 2]);
        let judgement = judge_both(faster, example, &[]);
        assert_eq!((judgement.holds, judgement.missing.as_deref()), (Holds::Inconclusive, Some(FIRST_USE)));
        // If the verdict on the first file is inconclusive, it can't be opposite to that on the second.
        assert_eq!(judge_both(faster, Some([noisy(1.2).unwrap(); 2]), &[]).holds, Holds::No);
        // Times of pieces of 512 bytes to 10 KiB from an example report.
        let judgement = judge(&[0.897, 4.09, 3.45, 3.72, 3.84, 4.60]);
        assert_eq!(judgement.holds, Holds::Inconclusive);
        assert!(judgement.missing.unwrap().contains("897 ms to 4.60 s"));
        let judgement = judge(&[3.9, 4.09, 3.45, 3.72, 3.84, 4.60]);
        assert_eq!(judgement.holds, Holds::Yes);
        assert!(
            judgement.why.contains("far more than claimed")
                && judgement.why.contains("128 MiB, extrapolated 14.9 times")
        );
    }

    /// If a file with allocated blocks costs as much as one without, the faults are the cause of a new file's cost;
    /// otherwise the allocation is. Here a page costs 7.18 us against 0.72 us.
    #[test]
    fn the_cause_comes_out_each_way() {
        let judge = |seconds: [f64; 3], least, most| {
            let without_allocation = Spread { median: f64::midpoint(least, most), least, most };
            let pages = Some(Pages { seconds, faults: [0.104, 0.104, 0.0], without_allocation });
            faults_cost(&Findings { write_touched: ratio(11.3), pages, ..Findings::default() })
        };
        let judgement = judge([3.72, 0.565, 0.213], 0.09, 0.12);
        assert_eq!(judgement.holds, Holds::No);
        assert!(
            judgement.why.contains("costs 7.18 us in a new file (0.104 faults a page) and 0.721 us"),
            "{}",
            judgement.why
        );
        assert_eq!(judge([3.72, 3.5, 0.213], 0.9, 0.95).holds, Holds::Yes);
        assert_eq!(judge([3.72, 1.9, 0.213], 0.45, 0.55).holds, Holds::Partly);
        assert_eq!(judge([3.72, 1.9, 0.213], 0.1, 0.9).holds, Holds::Inconclusive);
        assert_eq!(judge([0.22, 0.22, 0.213], 0.9, 0.95).holds, Holds::Inconclusive);
        assert_eq!(CLAIMS[4].source, "Drumlin", "S3 names no cause");
    }
}
