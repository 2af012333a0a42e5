//! `random`: 4 KiB reads at random offsets of a file larger than memory (S1 figures 2a and 2b, S4's second table).
//!
//! | source | claim | judged by |
//! | --- | --- | --- |
//! | S1 | direct reads keep a steady rate | the slowest fifth of each run against its median, raw device |
//! | S1 | mapped with RANDOM: half of direct once memory is full | device reads while memory is full, in each regime |
//! | S1 | near zero when eviction begins | the lowest sample against those while memory filled, pressure regime |
//! | S1 | NORMAL and SEQUENTIAL are worse than RANDOM | reads, raw device with 128 KiB of read-ahead |
//! | S1 | eviction costs TLB shootdowns | shootdowns a read; not if a hypervisor may hide them |
//! | S1 | and these cost a lot | the cost of one times their number, in a mapped read's processor time |
//! | S4 | within memory the page cache is a quarter faster | 20 in flight on both sides |
//! | S4 | and holds the range, while direct reads hold 20 buffers | memory of the control group |
//! | S4 | direct reads are as fast beyond memory as within | the same reader over both ranges |
//! | S4 | beyond memory direct is 2.3 times buffered, not slower | 20 in flight on both sides, once the cache is full |
//! | S4 | less than half of a read's time is the device's | share of processor time in a direct read, one at a time |
//! | S4 | small reads throw away 87 %, with read-ahead 99 % | device bytes of rows of 512 bytes |
//! | S4 | many files are not slow | the same rows, one file for each |
//! | Drumlin | a pool updates faster than a mapping | updates of random pages, the same memory for both |
//!
//! S1's claims about eviction rest on its 64 processors, and S4's claims about rates on its drive: see
//! [`crate::condition`].

mod claims;
pub(crate) mod shootdown;
mod show;
mod task;
pub(crate) mod updates;

use std::fs::File;
use std::io;
use std::path::Path;

use crate::compare::Spread;
use crate::experiments::Experiment;
use crate::figures;
use crate::machine::Machine;
use crate::map::Advice;
use crate::measure::{Load, Timing};
use crate::regime::{self, Place, Regime};
use crate::report::Chapter;
use crate::ring::RingOptions;
use crate::session::{Rounds, Session};
use updates::Method as UpdateMethod;

use task::SMALL_FILES;
pub(crate) use task::{BLOCK_BYTES, Method, Task};

/// The number of threads in S1: enough for a mapping to have as many requests in flight as asynchronous reads do.
const THREADS: usize = 100;

/// S4's number of buffers.
const S4_DEPTH: usize = 20;

/// The bytes requested by a read that measures read amplification. For such a small row, 87.5 % of a 4 KiB block is
/// wasted.
const ROW_BYTES: usize = 512;

/// The number of threads that update pages.
const UPDATERS: usize = 32;

#[derive(Clone, Debug)]
struct Case {
    name: String,
    method: Method,
    threads: usize,
    range_bytes: u64,
    ask_bytes: usize,
    warm_bytes: u64,
    /// The number of seconds for which the run continues after memory is full.
    full_seconds: Option<f64>,
    source: Option<&'static str>,
}

impl Case {
    fn new(method: Method, threads: usize, session: &Session<'_>) -> Case {
        let name = if threads > 1 { format!("{}, {threads} threads", method.name()) } else { method.name() };
        let range_bytes = session.file_bytes();
        let (ask_bytes, warm_bytes) = (BLOCK_BYTES, 0);
        Case { name, method, threads, range_bytes, ask_bytes, warm_bytes, full_seconds: None, source: None }
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
            warm_bytes: self.warm_bytes,
            full_seconds: self.full_seconds,
            timing,
            seed,
        }
    }
}

/// The indexes of the series that claims refer to. The memory and pressure regimes have only the first two series.
const DIRECT: usize = 0;
const MAPPED: usize = 1;
const NORMAL: usize = 2;
const SEQUENTIAL: usize = 3;

/// Returns the cases of the series: those whose rates are shown over time.
fn courses(session: &Session<'_>, regime: Regime) -> Vec<Case> {
    let case = |method| Case::new(method, THREADS, session);
    let mapped = Case { full_seconds: Some(full_seconds(session, regime)), ..case(Method::Mapped(Advice::Random)) };
    let mut cases = vec![
        case(Method::Direct).source("S1 (fio): about 900 k/s, steady"),
        mapped.source("S1: like fio for 27 s, near zero for 5 s, then half"),
    ];
    if matches!(regime, Regime::Device | Regime::File) {
        cases.extend([
            case(Method::Mapped(Advice::Normal)).source("S1: worse than RANDOM"),
            case(Method::Mapped(Advice::Sequential)).source("S1: worse than RANDOM"),
        ]);
    }
    // S4's claims are judged by the ranges, so no verdict needs this case.
    if regime == Regime::Device || (regime == Regime::File && !session.settings.quick) {
        cases.push(case(Method::Buffered));
    }
    cases
}

const DEPTHS: [usize; 7] = [1, 4, 16, 32, 64, 128, 256];
const DEPTHS_QUICK: [usize; 5] = [1, 4, 32, 128, 256];

fn ladder_cases(session: &Session<'_>) -> Vec<Case> {
    let ring = |depth, options| Case::new(Method::Ring { depth, options }, 1, session);
    let depths: &[usize] = if session.settings.quick { &DEPTHS_QUICK } else { &DEPTHS };
    let mut cases: Vec<Case> = depths.iter().map(|depth| ring(*depth, RingOptions::default())).collect();
    cases.push(ring(32, RingOptions { registered: true, ..RingOptions::default() }));
    cases.push(ring(32, RingOptions { registered: true, polled: true, ..RingOptions::default() }));
    for threads in [1, 32] {
        cases.push(Case::new(Method::Direct, threads, session));
        cases.push(Case::new(Method::Mapped(Advice::Random), threads, session));
    }
    cases
}

/// The indexes of the cases of S4's table.
const WITHIN_DIRECT: usize = 0;
const WITHIN_BUFFERED: usize = 1;
const BEYOND_DIRECT: usize = 2;
const BEYOND_BUFFERED: usize = 3;

/// Returns the cases of S4's table: a range that fits in memory and one that does not, each read buffered and direct,
/// with 20 reads in flight.
fn range_cases(session: &Session<'_>) -> Vec<Case> {
    let options = RingOptions { registered: true, ..RingOptions::default() };
    let direct = Method::Ring { depth: S4_DEPTH, options };
    let small_bytes = (session.memory_bytes() / 4).min(session.file_bytes() / 4) >> 20 << 20;
    let case = |method, threads, is_small: bool| {
        let mut case = Case::new(method, threads, session);
        if is_small {
            case.range_bytes = small_bytes.max(1 << 20);
        }
        if method == Method::Buffered {
            // Fill the page cache first: in the source's 20 s beyond memory, it was full most of the time.
            case.warm_bytes = case.range_bytes.min(session.memory_bytes() / 4 * 5);
        }
        let kind = match (method, threads) {
            (Method::Buffered, 1) => "buffered, 1 thread".to_owned(),
            (Method::Buffered, threads) => format!("buffered, {threads} threads"),
            _ => format!("direct, {S4_DEPTH} in flight"),
        };
        case.name = format!("{kind}, range of {}", figures::size(case.range_bytes));
        case
    };
    vec![
        case(direct, 1, true).source("S4: 551,547/s (1.65 GB)"),
        case(Method::Buffered, S4_DEPTH, true).source("S4: 693,870/s (1.65 GB)"),
        case(direct, 1, false).source("S4: 547,479/s (53.7 GB)"),
        case(Method::Buffered, S4_DEPTH, false).source("S4: 237,858/s (53.7 GB)"),
        case(Method::Buffered, 1, false),
    ]
}

/// The indexes of the small-row cases that claims refer to.
const ROW_DIRECT: usize = 0;
const ROW_BUFFERED: usize = 1;
const ROW_NORMAL: usize = 2;
const ROW_FILES: usize = 4;

fn amplification_cases(session: &Session<'_>) -> Vec<Case> {
    let methods = [
        (Method::Direct, "one file, direct pread"),
        (Method::Buffered, "one file, buffered pread"),
        (Method::Mapped(Advice::Normal), "one file, mmap, MADV_NORMAL"),
        (Method::Mapped(Advice::Random), "one file, mmap, MADV_RANDOM"),
        (Method::SmallFiles, "many small files, opened each time"),
    ];
    let case = |(method, name): (Method, &str)| Case {
        name: name.to_owned(),
        ask_bytes: ROW_BYTES,
        ..Case::new(method, 1, session)
    };
    methods.into_iter().map(case).collect()
}

/// Returns the seconds for which a series continues after memory is full: ten in the pressure regime. A series that
/// does not wait for memory to fill lasts twice as long, except in the pressure regime.
fn full_seconds(session: &Session<'_>, regime: Regime) -> f64 {
    let (is_quick, seconds) = (session.settings.quick, session.pacing.series.seconds);
    match (regime, is_quick) {
        (Regime::Pressure, false) => seconds / 2.0,
        (Regime::Pressure, true) => seconds / 4.0,
        (_, false) => seconds * 0.1,
        (_, true) => seconds * 0.09,
    }
}

/// The assumed rate at which a mapping fills memory. Used to estimate the duration of a run.
const FILL_BYTES_PER_SECOND: f64 = 3e8;

/// Returns the timing of a series. A series that waits for memory to fill may last for one more series' duration.
fn course_timing(session: &Session<'_>, regime: Regime, case: &Case) -> Timing {
    let full = full_seconds(session, regime);
    let seconds = match (case.full_seconds, regime) {
        (Some(_), _) => full + session.pacing.series.seconds,
        (None, Regime::Pressure) => full,
        (None, _) => full * 2.0,
    };
    Timing { seconds, sample_seconds: (full / 20.0).clamp(0.02, 0.1) }
}

/// Estimates the duration of a series in seconds.
fn course_seconds(session: &Session<'_>, regime: Regime, case: &Case) -> f64 {
    let timing = course_timing(session, regime, case);
    let left_bytes = if regime == Regime::Pressure { regime::left_bytes(session) } else { session.memory_bytes() };
    let filling = case.full_seconds.map(|full| full + left_bytes as f64 / FILL_BYTES_PER_SECOND);
    filling.map_or(timing.seconds, |filling| filling.min(timing.seconds)) + START_SECONDS
}

/// Estimates the mean duration of a regime's series.
fn courses_seconds(session: &Session<'_>, regime: Regime) -> f64 {
    let cases = courses(session, regime);
    let all: f64 = cases.iter().map(|case| course_seconds(session, regime, case)).sum();
    // The first series is repeated at the end.
    (all + course_seconds(session, regime, &cases[DIRECT])) / (cases.len() + 1) as f64
}

/// Returns the memory limit of updates, small enough to fill immediately. The pool's frames occupy three quarters of
/// it.
fn updates_limit_bytes(session: &Session<'_>) -> u64 {
    (session.memory_bytes() / 4).max(64 << 20)
}

/// The indexes of the two update methods.
const POOL: usize = 0;
const UPDATED_MAPPED: usize = 1;

fn update_methods(session: &Session<'_>) -> [(&'static str, UpdateMethod); 2] {
    let pool = UpdateMethod::Pool { bytes: updates_limit_bytes(session) / 4 * 3 };
    [("a pool, direct reads and writes", pool), ("mmap, MADV_RANDOM", UpdateMethod::Mapped)]
}

fn updates_timing(session: &Session<'_>) -> Timing {
    let seconds = session.pacing.series.seconds * if session.settings.quick { 0.25 } else { 0.15 };
    Timing { seconds, sample_seconds: seconds / 20.0 }
}

/// The approximate time, in seconds, to make the last updates durable.
const SETTLE_SECONDS: f64 = 0.3;

/// Returns the timing of the cases that are not series: three quarters of a slice.
fn slice_timing(session: &Session<'_>) -> Timing {
    Timing { seconds: session.pacing.slice.seconds * 0.75, sample_seconds: 0.0 }
}

/// The approximate time, in seconds, to start and stop a worker with 100 threads.
const START_SECONDS: f64 = 0.15;

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let rounds = session.pacing.rounds;
    let is_planned = |regime: &Regime| *regime != Regime::Pressure || session.settings.fill_memory;
    let courses = |regime| courses_seconds(session, regime) * (courses(session, regime).len() + 1) as f64;
    let courses: f64 = Regime::ALL.into_iter().filter(is_planned).map(courses).sum();
    let updates = updates_timing(session).seconds + START_SECONDS + SETTLE_SECONDS;
    let others = [ladder_cases(session).len(), range_cases(session).len(), amplification_cases(session).len()];
    let slice = slice_timing(session).seconds + START_SECONDS;
    courses * rounds as f64
        + Session::rounds_seconds(update_methods(session).len(), rounds, updates)
        + others.map(|count| Session::rounds_seconds(count, rounds, slice)).iter().sum::<f64>()
        + regime::pressure_seconds(session)
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Random.name(),
        "4 KiB reads at random offsets",
        "From a file larger than the memory limit, so that most reads miss: on a raw block device, the plain file, a \
         device in memory, and with the whole machine short of memory. S1 says that mapped files collapse once memory \
         is full and direct reads do not; S4 that direct reads from one thread are as fast beyond memory as within it.",
    )
}

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    let mut found = claims::Figures::new(machine);
    for regime in Regime::ALL {
        match run_courses(session, regime)? {
            Ok(rounds) => {
                show::courses(chapter, regime, &courses(session, regime), &rounds);
                found.add_courses(regime, &rounds);
            }
            Err(missing) => {
                chapter.note(format!("Not measured: {}. Missing: {missing}.", regime.name()));
                found.missing.push((regime, missing));
            }
        }
    }
    show::phases(chapter, &found);
    // Use the device if there is one, and the file otherwise.
    let places = [regime::place(session, Regime::Device)?, regime::place(session, Regime::File)?];
    let larger = places.into_iter().find_map(Result::ok);
    let ladder = ladder_cases(session);
    // Direct reads measure the drive whether the file fits in memory or not.
    let any = larger.clone().unwrap_or(Place { path: session.file()?.to_owned(), limit_bytes: None });
    let steps = slices(session, &ladder, &any);
    show::ladder(chapter, &ladder, &steps);
    found.add_ladder(&ladder, &steps, session.read_micros());
    if let Some(place) = larger {
        let ranges = range_cases(session);
        let parts = slices(session, &ranges, &place);
        show::ranges(chapter, &ranges, &parts);
        found.add_ranges(&ranges, &parts, session.memory_bytes());
    }
    if !session.interrupted() {
        let (cases, rows) = run_amplification(session)?;
        show::amplification(chapter, &cases, &rows);
        found.add_rows(&rows);
    }
    if session.is_limited() && !session.interrupted() {
        let updates = run_updates(session)?;
        show::updates(chapter, &update_methods(session), &updates);
        found.add_updates(&updates);
    }
    found.shootdown = run_shootdowns(session, machine);
    claims::judge(chapter, &found);
    notes(session, machine, chapter);
    Ok(())
}

/// Measures a regime's series. If the regime is not available, returns the missing condition.
fn run_courses(session: &Session<'_>, regime: Regime) -> io::Result<Result<Rounds<Load>, String>> {
    let place = match regime::place(session, regime)? {
        Ok(place) => place,
        Err(missing) => return Ok(Err(missing)),
    };
    let mut balloon = match regime {
        Regime::Pressure => match regime::pressure(session)? {
            Ok(balloon) => Some(balloon),
            Err(missing) => return Ok(Err(missing)),
        },
        _ => None,
    };
    let rounds = session.run_rounds(
        &courses(session, regime),
        session.pacing.rounds,
        courses_seconds(session, regime),
        |case| format!("random: {}: {}", regime.name(), case.name),
        |case, seed| (case.task(&place.path, course_timing(session, regime, case), seed), place.limit_bytes),
    );
    if balloon.as_mut().is_some_and(|balloon| !balloon.is_running()) {
        return Ok(Err("memory to hold (the kernel ended the process that held it)".to_owned()));
    }
    Ok(Ok(rounds))
}

fn slices(session: &Session<'_>, cases: &[Case], place: &Place) -> Rounds<Load> {
    let timing = slice_timing(session);
    session.run_rounds(
        cases,
        session.pacing.rounds,
        timing.seconds + START_SECONDS,
        |case| format!("random: by depth and range: {}", case.name),
        |case, seed| (case.task(&place.path, timing, seed), place.limit_bytes),
    )
}

fn run_updates(session: &Session<'_>) -> io::Result<Rounds<Load>> {
    let (path, timing) = (session.file()?, updates_timing(session));
    let task = |method, seed| updates::Task {
        path: path.to_owned(),
        range_bytes: session.file_bytes(),
        method,
        threads: UPDATERS,
        timing,
        seed,
    };
    Ok(session.run_rounds(
        &update_methods(session),
        session.pacing.rounds,
        timing.seconds + START_SECONDS + SETTLE_SECONDS,
        |(name, _)| format!("random: updates: {name}"),
        |(_, method), seed| (task(*method, seed), Some(updates_limit_bytes(session))),
    ))
}

/// Returns the median cost of a shootdown in microseconds, or `None` if it can't be measured.
fn run_shootdowns(session: &Session<'_>, machine: &Machine) -> Option<f64> {
    let path = session.file().ok()?;
    let trial = |_| {
        let task = shootdown::Task { path: path.to_owned(), others: machine.processors.saturating_sub(1) };
        session.job(task, None).ok()?.0.result().ok()?.micros()
    };
    Spread::of(&(0..session.pacing.rounds).filter_map(trial).collect::<Vec<_>>()).map(|cost| cost.median)
}

fn run_amplification(session: &Session<'_>) -> io::Result<(Vec<Case>, Rounds<Load>)> {
    let path = session.file()?.to_owned();
    let files = session.temp_folder.path().join("small");
    std::fs::create_dir(&files)?;
    for index in 0..SMALL_FILES {
        std::fs::write(files.join(index.to_string()), [index as u8; ROW_BYTES])?;
    }
    rustix::fs::syncfs(File::open(&files)?)?;
    let (cases, timing) = (amplification_cases(session), slice_timing(session));
    let rows = session.run_rounds(
        &cases,
        session.pacing.rounds,
        timing.seconds + START_SECONDS,
        |case| format!("random: {}", case.name),
        |case, seed| {
            let place = if case.method == Method::SmallFiles { &files } else { &path };
            (case.task(place, timing, seed), Some(session.memory_bytes()))
        },
    );
    std::fs::remove_dir_all(&files)?;
    Ok((cases, rows))
}

fn notes(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) {
    chapter.note(
        "Memory is full once the mapping's resident memory has grown by less than a tenth of what was read over five \
         samples: what came in otherwise was taken back. Rates of that phase are those of the blocks that came from the \
         device.",
    );
    chapter.note(
        "Device reads are blocks of 4 KiB that came from the device: what the page cache answered is left out. Memory \
         is the most that the case's control group held, page cache included. Interrupts, TLB shootdowns and pages \
         taken back are those of the whole machine.",
    );
    if let Some(bytes) = machine.drive.read_ahead_bytes {
        chapter.note(format!(
            "Without advice the kernel reads {} around a fault on the plain file, 128 KiB on the raw device as in S1. \
             With 100 threads at once that is {} and 12.5 MiB; if memory has less, pages are evicted before they are \
             used, and read again.",
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
}
