//! `random`: 4 KiB reads at random offsets of a file larger than memory (S1 figures 2a and 2b, S4's second table).
//!
//! | source | claim | judged by |
//! | --- | --- | --- |
//! | S1 | direct reads keep a steady rate | the least fifth of each run against its median, raw device |
//! | S1 | mapped and RANDOM: half of direct once memory is full | device reads in the second half, in each regime |
//! | S1 | near zero when eviction begins | the least sample against the second half, the machine short of memory |
//! | S1 | NORMAL and SEQUENTIAL are worse than RANDOM | reads, raw device with 128 KiB of read-ahead |
//! | S1 | eviction costs TLB shootdowns | shootdowns a read; not where a hypervisor may hide them |
//! | S4 | within memory the page cache is a fifth faster | 20 at once on both sides |
//! | S4 | direct reads are as fast beyond memory as within | the same reader over both ranges |
//! | S4 | beyond memory direct is 2.3 times buffered | 20 at once on both sides |

mod claims;
mod show;
mod task;

use std::fs::File;
use std::io;
use std::path::Path;

use crate::experiments::Experiment;
use crate::figures;
use crate::machine::Machine;
use crate::map::Advice;
use crate::measure::{Load, Timing};
use crate::regime::{self, Place, Regime};
use crate::report::Chapter;
use crate::ring::RingOptions;
use crate::session::{Rounds, Session};

use task::SMALL_FILES;
pub(crate) use task::{BLOCK_BYTES, Method, Task};

/// S1 used 100 threads, so that a mapping has as many requests in flight as asynchronous reads do.
const THREADS: usize = 100;

/// S4's number of buffers.
const S4_DEPTH: usize = 20;

/// Bytes requested where read amplification is measured: a small row.
const ROW_BYTES: usize = 1024;

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

/// The indexes of a regime's courses that claims are about. The memory and pressure regimes have the first two alone.
const DIRECT: usize = 0;
const MAPPED: usize = 1;
const NORMAL: usize = 2;
const SEQUENTIAL: usize = 3;

/// The cases that are shown over time.
fn courses(session: &Session<'_>, regime: Regime) -> Vec<Case> {
    let case = |method| Case::new(method, THREADS, session);
    let mut cases = vec![
        case(Method::Direct).source("S1 (fio): about 900 k/s, steady"),
        case(Method::Mapped(Advice::Random)).source("S1: like fio for 27 s, near zero for 5 s, then half"),
    ];
    if matches!(regime, Regime::Device | Regime::File) {
        cases.extend([
            case(Method::Mapped(Advice::Normal)).source("S1: worse than RANDOM"),
            case(Method::Mapped(Advice::Sequential)).source("S1: worse than RANDOM"),
        ]);
    }
    // No verdict asks for it: S4's are of the ranges.
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

/// The indexes of S4's cases.
const WITHIN_DIRECT: usize = 0;
const WITHIN_BUFFERED: usize = 1;
const BEYOND_DIRECT: usize = 2;
const BEYOND_BUFFERED: usize = 3;

/// S4's table: what fits in memory and what does not, buffered and direct, 20 at once.
fn range_cases(session: &Session<'_>) -> Vec<Case> {
    let options = RingOptions { registered: true, ..RingOptions::default() };
    let direct = Method::Ring { depth: S4_DEPTH, options };
    let small_bytes = (session.memory_bytes() / 4).min(session.file_bytes() / 4) >> 20 << 20;
    let case = |method, threads, is_small: bool| {
        let mut case = Case::new(method, threads, session);
        if is_small {
            case.range_bytes = small_bytes.max(1 << 20);
            case.warm = method == Method::Buffered;
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

/// A run over time: long enough for memory to fill and for what follows.
fn course_timing(session: &Session<'_>) -> Timing {
    let seconds = session.pacing.series.seconds * if session.settings.quick { 0.18 } else { 0.2 };
    Timing { seconds, sample_seconds: (seconds / 40.0).max(0.02) }
}

/// The share of a slice that the cases without a course take.
fn slice_timing(session: &Session<'_>) -> Timing {
    Timing { seconds: session.pacing.slice.seconds * 0.75, sample_seconds: 0.0 }
}

/// Starting and ending a worker with 100 threads.
const START_SECONDS: f64 = 0.15;

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let rounds = session.pacing.rounds;
    let courses: usize = Regime::ALL.iter().map(|&regime| courses(session, regime).len() + 1).sum();
    let others = [ladder_cases(session).len(), range_cases(session).len(), amplification_cases(session).len()];
    let slice = slice_timing(session).seconds + START_SECONDS;
    let course = course_timing(session).seconds + START_SECONDS;
    (courses * rounds) as f64 * course
        + others.map(|count| Session::turns_seconds(count, rounds, slice)).iter().sum::<f64>()
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
    let mut found = claims::Figures::new(machine.virtualised.is_some());
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
    // The device if there is one, otherwise the file.
    let places = [regime::place(session, Regime::Device)?, regime::place(session, Regime::File)?];
    let larger = places.into_iter().find_map(Result::ok);
    let ladder = ladder_cases(session);
    // Direct reads tell of the drive whether the file fits in memory or not.
    let any = larger.clone().unwrap_or(Place { path: session.file()?.to_owned(), limit_bytes: None });
    show::ladder(chapter, &ladder, &slices(session, &ladder, &any));
    if let Some(place) = larger {
        let ranges = range_cases(session);
        let parts = slices(session, &ranges, &place);
        show::ranges(chapter, &ranges, &parts);
        found.add_ranges(&parts);
    }
    claims::judge(chapter, &found);
    if !session.interrupted() {
        let (cases, rows) = run_amplification(session)?;
        show::amplification(chapter, &cases, &rows);
    }
    notes(session, machine, chapter);
    Ok(())
}

/// Measures a regime's courses, or names the condition that is missing.
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
    let rounds = measure(session, &courses(session, regime), &place, course_timing(session), regime.name());
    if balloon.as_mut().is_some_and(|balloon| !balloon.lives()) {
        return Ok(Err("memory to hold (the kernel ended the process that held it)".to_owned()));
    }
    Ok(Ok(rounds))
}

fn measure(session: &Session<'_>, cases: &[Case], place: &Place, timing: Timing, what: &str) -> Rounds<Load> {
    session.turns(
        cases,
        session.pacing.rounds,
        timing.seconds + START_SECONDS,
        |case| format!("random: {what}: {}", case.name),
        |case, seed| (case.task(&place.path, timing, seed), place.limit_bytes),
    )
}

fn slices(session: &Session<'_>, cases: &[Case], place: &Place) -> Rounds<Load> {
    measure(session, cases, place, slice_timing(session), "by depth and range")
}

fn run_amplification(session: &Session<'_>) -> io::Result<(Vec<Case>, Rounds<Load>)> {
    let path = session.file()?.to_owned();
    let files = session.room.path().join("small");
    std::fs::create_dir(&files)?;
    for index in 0..SMALL_FILES {
        std::fs::write(files.join(index.to_string()), [index as u8; ROW_BYTES])?;
    }
    rustix::fs::syncfs(File::open(&files)?)?;
    let (cases, timing) = (amplification_cases(session), slice_timing(session));
    let rows = session.turns(
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
