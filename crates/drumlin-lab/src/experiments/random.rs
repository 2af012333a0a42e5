//! `random`: 4 KiB reads at random offsets of a file larger than memory (S1 figures 2a and 2b, S4's second table).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use drumlin::internals::io::AlignedBuffer;
use serde::{Deserialize, Serialize};

use crate::experiments::Experiment;
use crate::figures::{self, Form};
use crate::machine::Machine;
use crate::map::{Advice, Map, Mode};
use crate::measure::{Load, Pace, Sample, Timing, load, median};
use crate::report::{Cell, Chapter, Holds, Plot, Scale, Table};
use crate::ring::{ReadRing, RingOptions};
use crate::session::{Session, Turns};
use crate::temp_folder;
use crate::worker::Measurement;

pub(crate) const BLOCK_BYTES: usize = 4096;

/// S1 used 100 threads, so that a mapping has as many requests in flight as asynchronous reads do.
const THREADS: usize = 100;

/// S4's number of buffers.
const S4_DEPTH: usize = 20;

/// Bytes requested where read amplification is measured: a small row.
const ROW_BYTES: usize = 1024;
const SMALL_FILES: u64 = 2048;

/// A way of reading a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Method {
    Mapped(Advice),
    Buffered,
    Direct,
    Ring {
        depth: usize,
        options: RingOptions,
    },
    /// Each row is a file of its own, opened for each read; none is read twice.
    SmallFiles,
}

impl Method {
    pub(crate) fn name(self) -> String {
        match self {
            Method::Mapped(advice) => format!("mmap, MADV_{}", advice.name()),
            Method::Buffered => "buffered pread".to_owned(),
            Method::Direct => "direct pread".to_owned(),
            Method::Ring { depth, options } => {
                let kind = match (options.registered, options.polled) {
                    (_, true) => ", polled",
                    (true, false) => ", registered",
                    (false, false) => "",
                };
                format!("direct io_uring, {depth} in flight{kind}")
            }
            Method::SmallFiles => "many small files".to_owned(),
        }
    }
}

/// Reads at random offsets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The file, or the folder of the small files.
    pub(crate) path: PathBuf,
    /// Reads stay within this many bytes from the file's start.
    pub(crate) range_bytes: u64,
    /// Bytes requested at a time; direct reads fetch the blocks around them.
    pub(crate) ask_bytes: usize,
    pub(crate) method: Method,
    pub(crate) threads: usize,
    /// Read the range once in advance, from start to end, so that it is in memory if it fits.
    pub(crate) warm: bool,
    pub(crate) timing: Timing,
    pub(crate) seed: u64,
}

/// Random offsets by Marsaglia's xorshift with a multiplication: random enough for this, and cheap beside a read.
struct Places {
    state: u64,
    count: u64,
    unit: u64,
}

impl Places {
    fn new(seed: u64, range_bytes: u64, unit: u64) -> Places {
        let state = (seed.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Places { state, count: (range_bytes / unit).max(1), unit }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let bits = self.state.wrapping_mul(0x2545_F491_4F6C_DD1D);
        let index = ((u128::from(bits) * u128::from(self.count)) >> 64) as u64;
        index * self.unit
    }
}

/// Uses the bytes read, so that the read cannot be left out.
fn look(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

impl Measurement for Task {
    const NAME: &'static str = "random";
    type Result = Load;

    fn perform(self, observe: impl FnMut(&Sample)) -> io::Result<Load> {
        if self.method == Method::SmallFiles {
            return self.read_files(observe);
        }
        let buffered = File::options().read(true).write(true).open(&self.path)?;
        temp_folder::forget_cached(&buffered)?;
        let map = match self.method {
            Method::Mapped(advice) => {
                let map = Map::new(&buffered, self.range_bytes as usize, Mode::Shared)?;
                map.advise(advice)?;
                Some(map)
            }
            _ => None,
        };
        if self.warm {
            let mut buffer = vec![0; 1 << 20];
            for offset in (0..self.range_bytes).step_by(buffer.len()) {
                buffered.read_exact_at(&mut buffer, offset)?;
            }
        }
        let direct = match self.method {
            Method::Direct | Method::Ring { .. } => Some(temp_folder::open_direct(&self.path, false)?),
            _ => None,
        };
        let ask = self.ask_bytes;
        // The check does not depend on the order of the reads.
        load(self.threads, self.timing, observe, |thread, pace| {
            let unit = (ask as u64).min(BLOCK_BYTES as u64);
            let mut places = Places::new(self.seed * 1000 + thread as u64, self.range_bytes - ask as u64 + unit, unit);
            match (self.method, &map, &direct) {
                (Method::Mapped(_), Some(map), _) => {
                    while pace.go_on() {
                        let (place, started) = (places.next() as usize, Instant::now());
                        pace.check ^= look(&map[place..place + ask]);
                        pace.done(started, ask as u64);
                    }
                    Ok(())
                }
                (Method::Buffered, ..) => read_each(&buffered, ask, ask as u64, &mut places, pace),
                (Method::Direct, _, Some(file)) => {
                    read_each(file, ask.next_multiple_of(BLOCK_BYTES), ask as u64, &mut places, pace)
                }
                (Method::Ring { depth, options }, _, Some(file)) => {
                    let mut ring = ReadRing::new(file, depth, ask.next_multiple_of(BLOCK_BYTES), options)?;
                    read_in_flight(&mut ring, ask as u64, &mut places, pace)
                }
                _ => unreachable!("each method has what it reads from"),
            }
        })
    }
}

impl Task {
    /// Reads each small file once, not in the order of the names.
    fn read_files(self, observe: impl FnMut(&Sample)) -> io::Result<Load> {
        for index in 0..SMALL_FILES {
            temp_folder::forget_cached(&File::open(self.path.join(index.to_string()))?)?;
        }
        load(1, self.timing, observe, |_, pace| {
            let mut buffer = vec![0; self.ask_bytes];
            for index in 0..SMALL_FILES {
                if !pace.go_on() {
                    break;
                }
                let started = Instant::now();
                // An odd factor visits each number below a power of two once.
                let name = (index * 0x9E37_79B9 % SMALL_FILES).to_string();
                File::open(self.path.join(name))?.read_exact_at(&mut buffer, 0)?;
                pace.check ^= look(&buffer);
                pace.done(started, self.ask_bytes as u64);
            }
            Ok(())
        })
    }
}

fn read_each(file: &File, bytes: usize, asked: u64, places: &mut Places, pace: &mut Pace<'_>) -> io::Result<()> {
    let mut buffer = AlignedBuffer::zeroed(bytes);
    let is_direct = bytes.is_multiple_of(BLOCK_BYTES);
    while pace.go_on() {
        let place = places.next();
        let place = if is_direct { place / BLOCK_BYTES as u64 * BLOCK_BYTES as u64 } else { place };
        let started = Instant::now();
        file.read_exact_at(&mut buffer, place)?;
        pace.check ^= look(&buffer);
        pace.done(started, asked);
    }
    Ok(())
}

fn read_in_flight(ring: &mut ReadRing, asked: u64, places: &mut Places, pace: &mut Pace<'_>) -> io::Result<()> {
    loop {
        while pace.go_on() && ring.has_room() {
            ring.push(places.next());
        }
        if ring.in_flight() == 0 {
            return Ok(());
        }
        ring.wait(|started, bytes| {
            pace.check ^= look(bytes);
            pace.done(started, asked);
        })?;
    }
}

/// One case of the experiment.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    method: Method,
    threads: usize,
    range_bytes: u64,
    ask_bytes: usize,
    warm: bool,
    source: Option<&'static str>,
}

impl Case {
    fn new(method: Method, threads: usize, session: &Session<'_>) -> Case {
        let name = if threads > 1 { format!("{}, {threads} threads", method.name()) } else { method.name() };
        let range_bytes = session.file_bytes();
        Case { name, method, threads, range_bytes, ask_bytes: BLOCK_BYTES, warm: false, source: None }
    }

    fn source(mut self, source: &'static str) -> Case {
        self.source = Some(source);
        self
    }

    fn task(&self, path: &Path, timing: Timing, seed: u64) -> Task {
        Task {
            path: path.to_owned(),
            range_bytes: self.range_bytes,
            ask_bytes: self.ask_bytes,
            method: self.method,
            threads: self.threads,
            warm: self.warm,
            timing,
            seed,
        }
    }
}

const DEPTHS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

fn series_cases(session: &Session<'_>) -> Vec<Case> {
    let case = |method| Case::new(method, THREADS, session);
    vec![
        case(Method::Direct).source("S1 (fio): about 900 k/s, steady"),
        case(Method::Mapped(Advice::Random)).source("S1: like fio for 27 s, near zero for 5 s, then half"),
        case(Method::Mapped(Advice::Normal)).source("S1: worse than RANDOM"),
        case(Method::Mapped(Advice::Sequential)).source("S1: worse than RANDOM"),
        case(Method::Buffered),
    ]
}

fn ladder_cases(session: &Session<'_>) -> Vec<Case> {
    let ring = |depth, registered, polled| Method::Ring { depth, options: RingOptions { registered, polled } };
    let mut cases: Vec<Case> =
        DEPTHS.into_iter().map(|depth| Case::new(ring(depth, false, false), 1, session)).collect();
    cases.push(Case::new(ring(32, true, false), 1, session));
    cases.push(Case::new(ring(32, true, true), 1, session));
    for threads in [1, 8, 32, 100] {
        cases.push(Case::new(Method::Direct, threads, session));
    }
    for threads in [1, 8, 32] {
        cases.push(Case::new(Method::Mapped(Advice::Random), threads, session));
    }
    cases
}

/// S4's table: what fits in memory and what does not, buffered and direct, one thread.
fn range_cases(session: &Session<'_>) -> Vec<Case> {
    let direct = Method::Ring { depth: S4_DEPTH, options: RingOptions { registered: true, polled: false } };
    let small_bytes = (session.memory_bytes() / 4).min(session.file_bytes() / 4) >> 20 << 20;
    let case = |method, is_small: bool, source| {
        let mut case = Case::new(method, 1, session).source(source);
        if is_small {
            case.range_bytes = small_bytes.max(1 << 20);
            case.warm = method == Method::Buffered;
        }
        let kind = if method == Method::Buffered { "buffered" } else { "direct, 20 buffers" };
        case.name = format!("{kind}, range of {}", figures::size(case.range_bytes));
        case
    };
    vec![
        case(Method::Buffered, true, "S4: 693,870/s (1.65 GB)"),
        case(direct, true, "S4: 551,547/s (1.65 GB)"),
        case(Method::Buffered, false, "S4: 237,858/s (53.7 GB)"),
        case(direct, false, "S4: 547,479/s (53.7 GB)"),
    ]
}

fn amplification_cases(session: &Session<'_>) -> Vec<Case> {
    let methods = [
        (Method::SmallFiles, "many small files, opened each time"),
        (Method::Buffered, "one file, buffered pread"),
        (Method::Mapped(Advice::Normal), "one file, mmap, MADV_NORMAL"),
        (Method::Mapped(Advice::Random), "one file, mmap, MADV_RANDOM"),
        (Method::Direct, "one file, direct pread"),
    ];
    let case = |(method, name): (Method, &str)| Case {
        name: name.to_owned(),
        ask_bytes: ROW_BYTES,
        ..Case::new(method, 1, session)
    };
    methods.into_iter().map(case).collect()
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let pacing = session.pacing;
    let ladder = (ladder_cases(session).len() + range_cases(session).len()) as f64;
    let slices = ladder * pacing.rounds as f64 + amplification_cases(session).len() as f64;
    series_cases(session).len() as f64 * pacing.series.seconds + slices * pacing.slice.seconds
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Random.name(),
        "4 KiB reads at random offsets",
        "From a file larger than the memory limit, so that most reads miss. S1 says that mapped files collapse once \
         memory is full and direct reads do not; S4 that direct reads from one thread are as fast beyond memory as \
         within it.",
    )
}

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    let path = session.file()?.to_owned();
    let limit = Some(session.memory_bytes());
    let pacing = session.pacing;
    let measure = |cases: &[Case], rounds: usize, timing: Timing| -> Vec<Turns<Load>> {
        let name = |case: &Case| format!("random: {}", case.name);
        session.turns(cases, rounds, timing.seconds, name, |case, seed| (case.task(&path, timing, seed), limit))
    };

    let series = series_cases(session);
    let courses = measure(&series, 1, pacing.series);
    show_series(chapter, &series, &courses);

    let ladder = ladder_cases(session);
    let steps = measure(&ladder, pacing.rounds, pacing.slice);
    show_ladder(chapter, &ladder, &steps);

    let ranges = range_cases(session);
    let parts = measure(&ranges, pacing.rounds, pacing.slice);
    show_ranges(chapter, &ranges, &parts, session.is_limited());

    if session.interrupted() {
        return Ok(());
    }
    let amplified = amplification_cases(session);
    let files = session.room.path().join("small");
    std::fs::create_dir(&files)?;
    for index in 0..SMALL_FILES {
        std::fs::write(files.join(index.to_string()), [index as u8; ROW_BYTES])?;
    }
    rustix::fs::syncfs(File::open(&files)?)?;
    let rows = session.turns(
        &amplified,
        1,
        pacing.slice.seconds,
        |case| format!("random: {}", case.name),
        |case, seed| {
            let place = if case.method == Method::SmallFiles { &files } else { &path };
            (case.task(place, pacing.slice, seed), limit)
        },
    );
    std::fs::remove_dir_all(&files)?;
    show_amplification(chapter, &amplified, &rows);

    chapter.note("Interrupts and TLB shootdowns are those of the whole machine.");
    if let Some(bytes) = machine.drive.read_ahead_bytes {
        chapter.note(format!(
            "Without advice the kernel reads {} around a fault (S1: 128 KiB). With 100 threads at once that is {}; if \
             memory has less, pages are evicted before they are used, and read again.",
            figures::size(bytes),
            figures::size(bytes * THREADS as u64)
        ));
    }
    if machine.virtualised.is_some() {
        chapter.note(
            "This is a virtual machine: TLB shootdowns done by the hypervisor are not counted, and the drive may \
             answer from the host's cache. The file was read through once in advance, so that all cases find the same \
             state.",
        );
    }
    if !session.is_larger_than_memory() {
        chapter.note("The file is not larger than memory: buffered and mapped cases are answered by the page cache.");
    }
    Ok(())
}

/// The mean rate of the samples between two points of a run, given as shares of its time.
fn rate_between(samples: &[Sample], from: f64, to: f64) -> f64 {
    let end = samples.last().map_or(0.0, |sample| sample.at_seconds);
    let inside = samples.iter().filter(|sample| (from * end..=to * end).contains(&sample.at_seconds));
    let rates: Vec<f64> = inside.map(|sample| sample.operations_per_second).collect();
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// One method's run over time.
struct Series<'a> {
    load: &'a Load,
    samples: &'a [Sample],
}

impl Series<'_> {
    fn each(&self, count: u64) -> f64 {
        count as f64 / self.load.operations.max(1) as f64
    }

    fn shootdowns(&self) -> f64 {
        self.each(self.load.counters.interrupt("TLB"))
    }

    /// Reads per second in the second half.
    fn late_rate(&self) -> f64 {
        rate_between(self.samples, 0.5, 1.0)
    }

    fn rates(&self) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.operations_per_second).collect()
    }

    fn over_time(&self, figure: fn(&Sample) -> f64) -> Vec<(f64, f64)> {
        self.samples.iter().map(|sample| (sample.at_seconds, figure(sample))).collect()
    }
}

/// A column of a table: its title, its form, and the function that makes its cell for a run.
type Column = (&'static str, Form, fn(&Series) -> Cell);

const RATE_COLUMNS: [Column; 5] = [
    ("reads/s", Form::Rate, |run| run.load.operations_per_second().into()),
    ("lowest sample", Form::Rate, |run| run.rates().into_iter().reduce(f64::min).into()),
    ("2nd half", Form::Rate, |run| run.late_rate().into()),
    ("p50", Form::Micros, |run| run.load.latency.p50_us.into()),
    ("p99", Form::Micros, |run| run.load.latency.p99_us.into()),
];

const COST_COLUMNS: [Column; 6] = [
    ("CPU", Form::Micros, |run| run.load.cpu_us_per_operation().into()),
    ("major faults", Form::Ratio, |run| run.each(run.load.counters.faults_major).into()),
    ("TLB shoot- downs", Form::Ratio, |run| run.shootdowns().into()),
    ("other IPIs", Form::Ratio, |run| {
        run.each(run.load.counters.interrupt("RES") + run.load.counters.interrupt("CAL")).into()
    }),
    ("resident", Form::Bytes, |run| run.load.resident_bytes_max.into()),
    ("device bytes per byte", Form::Ratio, |run| run.load.read_amplification().into()),
];

/// A table with the names in its first column, then these columns.
fn table_of(title: &str, columns: &[Column]) -> Table {
    let columns = columns.iter().map(|&(title, form, _)| (title, form));
    Table::new(title, &[("", Form::Text)].into_iter().chain(columns).collect::<Vec<_>>())
}

fn cells_of(case: &Case, columns: &[Column], run: &Series) -> Vec<Cell> {
    let cells = columns.iter().map(|(_, _, cell)| cell(run));
    [Cell::from(case.name.clone())].into_iter().chain(cells).collect()
}

/// A claim, and the function that judges it by the runs and gives the figures.
type Claim = (&'static str, fn(&[Series]) -> (Holds, String));

/// Claims of S1; the runs are those of direct, mapped random, normal and sequential reads.
const SERIES_CLAIMS: [Claim; 4] = [
    ("Direct reads keep a steady rate.", |runs| {
        let rates = runs[0].rates();
        let (direct, lowest) = (median(rates.clone()), rates.iter().copied().fold(f64::MAX, f64::min));
        let figures = format!("Median {}/s, lowest sample {}/s.", Form::Rate.show(direct), Form::Rate.show(lowest));
        (Holds::of(lowest > direct * 0.6), figures)
    }),
    ("Once memory is full, mmap with MADV_RANDOM falls to about half of direct.", |runs| {
        let share = runs[1].late_rate() / runs[0].late_rate().max(1.0);
        let figures = format!(
            "In the second half it reached {} of the direct rate, at {} of CPU per read against {}. S1's drives \
             delivered 900 k/s: the slower the drive, the less eviction holds it back.",
            Form::Share.show(share),
            figures::micros(runs[1].load.cpu_us_per_operation()),
            figures::micros(runs[0].load.cpu_us_per_operation())
        );
        (
            if share < 0.7 {
                Holds::Yes
            } else if share < 0.9 {
                Holds::Partly
            } else {
                Holds::No
            },
            figures,
        )
    }),
    ("NORMAL and SEQUENTIAL are worse than RANDOM: they also read the pages around each fault.", |runs| {
        let [random, normal, sequential] = [1, 2, 3].map(|index: usize| runs[index].late_rate());
        let figures = format!(
            "NORMAL {}/s, SEQUENTIAL {}/s, RANDOM {}/s in the second half.",
            Form::Rate.show(normal),
            Form::Rate.show(sequential),
            Form::Rate.show(random)
        );
        (Holds::of(normal < random && sequential < random), figures)
    }),
    ("Evicting mapped pages costs TLB shootdowns; direct reads cost none.", |runs| {
        let [direct, mapped] = [0, 1].map(|index: usize| runs[index].shootdowns());
        let figures = format!("{} per read mapped, {} direct.", figures::digits(mapped), figures::digits(direct));
        (if mapped > 10.0 * direct.max(0.001) { Holds::Yes } else { Holds::Partly }, figures)
    }),
];

fn show_series(chapter: &mut Chapter, cases: &[Case], courses: &[Turns<Load>]) {
    let mut rates = table_of("Over time, many threads", &RATE_COLUMNS);
    let mut costs = table_of("Cost per read", &COST_COLUMNS);
    let plot = |title: &str, figure: &'static str| {
        Plot::new(title, ("time", Form::Seconds, Scale::Linear), (figure, Form::Rate, Scale::Linear))
    };
    let mut reads = plot("Random 4 KiB reads over time, 100 threads", "reads/s");
    let mut shootdowns = plot("TLB shootdowns over time (whole machine)", "shootdowns/s");
    let mut runs = Vec::new();
    for (case, turns) in cases.iter().zip(courses) {
        let Some(load) = turns.results.first() else {
            no_result(&mut rates, case, turns);
            continue;
        };
        let run = Series { load, samples: &turns.samples };
        rates.row(cells_of(case, &RATE_COLUMNS, &run)).source = case.source.map(str::to_owned);
        costs.row(cells_of(case, &COST_COLUMNS, &run));
        reads.line(case.method.name(), run.over_time(|sample| sample.operations_per_second));
        shootdowns.line(case.method.name(), run.over_time(|sample| sample.tlb_shootdowns_per_second));
        runs.push(run);
    }
    chapter.tables.extend([rates, costs]);
    chapter.plots.extend([reads, shootdowns]);
    if runs.len() < courses.len() || runs.iter().any(|run| run.samples.is_empty()) {
        return;
    }
    for (claim, judge) in SERIES_CLAIMS {
        let (holds, figures) = judge(&runs);
        chapter.verdict("S1", claim, holds, figures);
    }
}

fn no_result(table: &mut Table, case: &Case, turns: &Turns<Load>) {
    if let Some(failure) = &turns.failure {
        let mut cells = vec![Cell::from(case.name.clone())];
        cells.resize(table.columns.len(), Cell::Missing);
        table.row(cells).source(format!("not possible here: {failure}"));
    }
}

fn show_ladder(chapter: &mut Chapter, cases: &[Case], steps: &[Turns<Load>]) {
    let mut table = Table::new(
        "Depth and threads, medians of turns",
        &[
            ("", Form::Text),
            ("reads/s", Form::Rate),
            ("p50", Form::Micros),
            ("p99", Form::Micros),
            ("p99.9", Form::Micros),
            ("CPU", Form::Micros),
        ],
    );
    for (case, turns) in cases.iter().zip(steps) {
        if turns.results.is_empty() {
            no_result(&mut table, case, turns);
            continue;
        }
        table.row(vec![
            case.name.clone().into(),
            turns.median(Load::operations_per_second).into(),
            turns.median(|load| load.latency.p50_us).into(),
            turns.median(|load| load.latency.p99_us).into(),
            turns.median(|load| load.latency.p999_us).into(),
            turns.median(Load::cpu_us_per_operation).into(),
        ]);
    }
    chapter.tables.push(table);
    plot_ladder(chapter, cases, steps);
}

/// Plots rate and latency by depth, and the distribution of some cases.
fn plot_ladder(chapter: &mut Chapter, cases: &[Case], steps: &[Turns<Load>]) {
    let depth = ("in flight", Form::Count, Scale::Logarithmic);
    let latency = ("latency", Form::Micros, Scale::Logarithmic);
    let share = ("share of reads that took at most", Form::Share, Scale::Tail);
    let mut rate_by_depth = Plot::new("Depth against rate", depth, ("reads/s", Form::Rate, Scale::Linear));
    let mut latency_by_depth = Plot::new("Depth against latency", depth, latency);
    let mut distribution = Plot::new("Latencies of single reads", share, latency);
    let [mut rates, mut medians, mut tails, mut direct, mut mapped] = [const { Vec::new() }; 5];
    for (case, turns) in cases.iter().zip(steps) {
        let Some(load) = turns.middle(Load::operations_per_second) else { continue };
        let rate = turns.median(Load::operations_per_second).unwrap_or(0.0);
        match case.method {
            Method::Ring { depth, options } if options == RingOptions::default() => {
                rates.push((depth as f64, rate));
                medians.push((depth as f64, load.latency.p50_us));
                tails.push((depth as f64, load.latency.p99_us));
                if [1, 32, 256].contains(&depth) {
                    distribution.line(format!("io_uring, {depth} in flight"), load.latency.quantiles.clone());
                }
            }
            Method::Direct => direct.push((case.threads as f64, rate)),
            Method::Mapped(_) => {
                mapped.push((case.threads as f64, rate));
                if case.threads == 32 {
                    distribution.line("mmap, MADV_RANDOM, 32 threads", load.latency.quantiles.clone());
                }
            }
            _ => {}
        }
    }
    rate_by_depth.line("io_uring, one thread", rates);
    rate_by_depth.line("direct pread, as many threads", direct);
    rate_by_depth.line("mmap, RANDOM, as many threads", mapped);
    latency_by_depth.line("p50", medians);
    latency_by_depth.line("p99", tails);
    chapter.plots.extend([rate_by_depth, latency_by_depth, distribution]);
}

fn show_ranges(chapter: &mut Chapter, cases: &[Case], parts: &[Turns<Load>], is_limited: bool) {
    let mut table = Table::new(
        "Within memory and beyond it, one thread",
        &[("", Form::Text), ("reads/s", Form::Rate), ("p99", Form::Micros), ("resident", Form::Bytes)],
    );
    for (case, turns) in cases.iter().zip(parts) {
        let Some(load) = turns.middle(Load::operations_per_second) else {
            no_result(&mut table, case, turns);
            continue;
        };
        let row = table.row(vec![
            case.name.clone().into(),
            turns.median(Load::operations_per_second).into(),
            load.latency.p99_us.into(),
            load.resident_bytes_max.into(),
        ]);
        row.source = case.source.map(str::to_owned);
    }
    chapter.tables.push(table);
    let rate = |index: usize| parts[index].median(Load::operations_per_second);
    if let (Some(cached), Some(small), Some(buffered), Some(direct)) = (rate(0), rate(1), rate(2), rate(3)) {
        chapter.verdict(
            "S4",
            "Within memory the page cache is faster than direct reads.",
            Holds::of(cached > small),
            format!("{} against {} reads/s.", Form::Rate.show(cached), Form::Rate.show(small)),
        );
        chapter.verdict(
            "S4",
            "Beyond memory direct reads keep their rate and beat buffered ones (2.3 times).",
            if direct > buffered && direct > 0.7 * small { Holds::Yes } else { Holds::of(direct > buffered) },
            format!(
                "Direct {}/s, {} of its rate within memory; buffered, one request at a time, {}/s.",
                Form::Rate.show(direct),
                Form::Share.show(direct / small.max(1.0)),
                Form::Rate.show(buffered)
            ),
        );
        if is_limited {
            chapter.note("Resident memory excludes the page cache, which buffered reads fill up to the limit.");
        }
    }
}

fn show_amplification(chapter: &mut Chapter, cases: &[Case], rows: &[Turns<Load>]) {
    let mut table = Table::new(
        format!("Bytes read from the device per byte requested, rows of {}", figures::size(ROW_BYTES as u64)),
        &[("", Form::Text), ("device bytes per byte", Form::Ratio), ("rows/s", Form::Rate), ("p99", Form::Micros)],
    );
    for (case, turns) in cases.iter().zip(rows) {
        match turns.results.first() {
            Some(load) => {
                table.row(vec![
                    case.name.clone().into(),
                    load.read_amplification().into(),
                    load.operations_per_second().into(),
                    load.latency.p99_us.into(),
                ]);
            }
            None => no_result(&mut table, case, turns),
        }
    }
    chapter.tables.push(table);
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: usize = 2;

    fn task(path: &Path, method: Method) -> Task {
        Task {
            path: path.to_owned(),
            range_bytes: 1 << 20,
            ask_bytes: BLOCK_BYTES,
            method,
            threads: THREADS,
            warm: false,
            timing: Timing { seconds: 0.02, sample_seconds: 0.0 },
            seed: 1,
        }
    }

    /// Places are aligned, within the range, and reach all of it.
    #[test]
    fn places_cover_the_range() {
        let mut places = Places::new(7, 64 * 4096, 4096);
        let mut seen = [false; 64];
        for _ in 0..2000 {
            let place = places.next();
            assert!(place.is_multiple_of(4096));
            seen[(place / 4096) as usize] = true;
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    /// Operations and bytes are added up while threads work: each may have counted an operation, and not yet its bytes.
    fn is_consistent(load: &Load, operation_bytes: u64) -> bool {
        load.bytes.abs_diff(load.operations * operation_bytes) <= THREADS as u64 * operation_bytes
    }

    /// Every method reads, or says that the folder's file system does not support it.
    #[test]
    fn every_method_reads() {
        let folder = tempfile::tempdir().unwrap();
        let room = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = room.filled("data", 1 << 20, |_| true).unwrap();
        let ring = |registered| Method::Ring { depth: 4, options: RingOptions { registered, polled: false } };
        for method in [Method::Mapped(Advice::Random), Method::Buffered, Method::Direct, ring(false), ring(true)] {
            match task(&path, method).perform(|_| {}) {
                Ok(load) => assert!(load.latency.count > 0 && is_consistent(&load, 4096), "{method:?}: {load:?}"),
                Err(error) => {
                    let refused = matches!(method, Method::Direct | Method::Ring { .. });
                    assert!(refused, "{method:?}: {error}");
                }
            }
        }
    }

    /// Rows smaller than a block are read at their offsets, by direct reads too.
    #[test]
    fn small_rows_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let room = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = room.filled("data", 1 << 20, |_| true).unwrap();
        for method in [Method::Mapped(Advice::Normal), Method::Buffered, Method::Direct] {
            let rows = Task { ask_bytes: ROW_BYTES, ..task(&path, method) };
            match rows.perform(|_| {}) {
                Ok(load) => assert!(is_consistent(&load, ROW_BYTES as u64), "{method:?}: {load:?}"),
                Err(error) => assert_eq!(method, Method::Direct, "{error}"),
            }
        }
    }

    /// Direct reads come at the rate that fio measures: the same file, depth and size, in short turns, medians, within
    /// 5 %. Timed, so not part of the usual run: `cargo test -p drumlin-lab -- --ignored fio --nocapture`.
    #[test]
    #[ignore = "times a drive for two minutes, beside fio"]
    fn agrees_with_fio() {
        /// The rate of a shared drive changes within seconds: many short turns give both the same share of that.
        const TURNS: u64 = 20;
        const SECONDS: f64 = 1.0;
        if std::process::Command::new("fio").arg("--version").output().is_err() {
            println!("fio is not installed");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let room = temp_folder::TempFolder::create(folder.path()).unwrap();
        let bytes = 1 << 30;
        let path = room.filled("data", bytes, |_| true).unwrap();
        let ring = Method::Ring { depth: 32, options: RingOptions::default() };
        for (method, engine, depth) in [(Method::Direct, "psync", 1), (ring, "io_uring", 32)] {
            let by_lab = |seed| {
                let task = Task {
                    range_bytes: bytes,
                    threads: 1,
                    timing: Timing { seconds: SECONDS, sample_seconds: 0.0 },
                    seed,
                    ..task(&path, method)
                };
                task.perform(|_| {}).unwrap().operations_per_second()
            };
            let by_fio = || {
                let output = std::process::Command::new("fio")
                    .args(["--name=check", "--rw=randread", "--bs=4k", "--direct=1", "--thread", "--readonly"])
                    .args(["--time_based", "--norandommap", "--randrepeat=0", "--output-format=json"])
                    // Like the lab: takes all completions, and submits as many requests by one call. One call for each
                    // request is up to a fifth faster on some virtual drives.
                    .args(["--iodepth_batch_complete_min=1", "--iodepth_batch_complete_max=32"])
                    .arg("--iodepth_batch_submit=32")
                    .args([format!("--runtime={SECONDS}"), format!("--size={bytes}"), format!("--iodepth={depth}")])
                    .args([format!("--ioengine={engine}"), format!("--filename={}", path.display())])
                    .output()
                    .unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let json: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
                json["jobs"][0]["read"]["iops"].as_f64().unwrap()
            };
            let mut rates: [Vec<f64>; 2] = Default::default();
            for turn in 0..TURNS {
                // Each goes first in half of the turns.
                let before = turn.is_multiple_of(2).then(|| by_lab(turn));
                rates[1].push(by_fio());
                rates[0].push(before.unwrap_or_else(|| by_lab(turn)));
            }
            let [ours, fio] = rates.map(median);
            println!(
                "{engine}, {depth} in flight: lab {ours:.0}/s, fio {fio:.0}/s, {:+.1} %",
                (ours / fio - 1.0) * 100.0
            );
            assert!((ours / fio - 1.0).abs() < 0.05, "{engine}: {ours} against fio's {fio}");
        }
    }
}
