//! `scan`: reading a file larger than memory from start to end (S1 figures 3 and 4, S4's first table).
//!
//! | source | claim | judged by |
//! | --- | --- | --- |
//! | S4 | 4 KiB direct, one at a time: half of the kernel's rate | rates on the raw device, 128 KiB of read-ahead |
//! | S4 | parallel read-ahead, 50 x 4 KiB: 2.5 times the kernel's rate | the same rates |
//! | S4 | 5 x 512 KiB, registered: 7.7 times | the same rates, in huge pages as in Glommio's pool |
//! | S4 | leaving out the copy helps a little | processor time per byte |
//! | S4 | 5 x 512 KiB need 2.5 MB of memory | the control group's memory, less that of reads of 4 KiB |
//! | S1 | a mapping by 20 threads falls once memory is full (figure 3) | its rate while memory fills and when it is full |
//! | S1 | 256 requests in flight reach the drive's rate, a mapping does not | rates of whole scans, 20 threads mapped |
//! | S1 | RANDOM is worse than the other hints | rates of whole scans by 20 threads |
//! | S1 | over ten drives the difference is twentyfold (figure 4) | only if direct reads deliver what several drives do |

mod claims;
mod task;

use std::io;

use crate::experiments::Experiment;
use crate::figures::Form;
use crate::machine::Machine;
use crate::map::Advice;
use crate::measure::{Load, Timing};
use crate::regime::{self, Place, Regime};
use crate::report::{Cell, Chapter, MIDDLE_ROUND, Plot, Scale, Table};
use crate::ring::RingOptions;
use crate::session::{Rounds, Session, Trials};

use task::STEP_BYTES;
pub(crate) use task::{Method, Task};

#[derive(Debug)]
struct Case {
    name: &'static str,
    method: Method,
    request_bytes: usize,
    threads: usize,
    /// `true` if the case is so slow that it scans only part of the file.
    is_slow: bool,
    /// `true` if the report plots the rate over time.
    drawn: bool,
    source: Option<&'static str>,
}

impl Case {
    fn new(name: &'static str, method: Method, request_bytes: usize) -> Case {
        Case { name, method, request_bytes, threads: 1, is_slow: false, drawn: false, source: None }
    }

    fn mapped(name: &'static str, advice: Advice, threads: usize) -> Case {
        Case { threads, ..Case::new(name, Method::Mapped(advice), STEP_BYTES) }
    }

    fn slow(self) -> Case {
        Case { is_slow: true, ..self }
    }

    fn source(mut self, source: &'static str) -> Case {
        self.source = Some(source);
        self
    }

    fn drawn(mut self) -> Case {
        self.drawn = true;
        self
    }
}

/// The indexes of the cases that claims refer to. They are the same in both lists, which begin with the shared cases.
const BUFFERED: usize = 0;
const LARGE: usize = 1;
/// The requests of [`LARGE`] into small pages.
const LARGE_SMALL_PAGES: usize = 2;
const STREAM: usize = 3;
const SMALL: usize = 4;
const COPIED: usize = 5;
const FIO: usize = 6;
const MAPPED: usize = 7;
const MAPPED_ONE: usize = 8;
/// This case exists on the raw device only.
const MAPPED_RANDOM: usize = 9;

/// The request size of S4's streams, which have fifty requests in flight (`examples/storage.rs` of Glommio).
const S4_REQUEST_BYTES: usize = 4 << 10;
const S4_REQUESTS: usize = 50;

/// Returns the cases of the plain file. All of them are measured on the raw device too. `is_quick` leaves out cases
/// that no verdict needs.
fn file_cases(is_quick: bool) -> Vec<Case> {
    let mut cases = shared_cases();
    cases.truncate(if is_quick { STREAM + 1 } else { cases.len() });
    cases
}

fn shared_cases() -> Vec<Case> {
    let stream = |copied| Method::Stream { requests: S4_REQUESTS, copied };
    let ring =
        |depth, registered, huge| Method::Ring { depth, options: RingOptions { registered, huge, polled: false } };
    vec![
        Case::new("buffered, the kernel reads ahead", Method::Buffered, 128 << 10).source("S4: 945 MB/s").drawn(),
        Case::new("5 x 512 KiB, registered, huge pages", ring(5, true, true), 512 << 10)
            .source("S4: 7.29 GB/s (polled)")
            .drawn(),
        Case::new("5 x 512 KiB, registered, small pages", ring(5, true, false), 512 << 10),
        Case::new("stream, 50 x 4 KiB, no copy", stream(false), S4_REQUEST_BYTES).slow().source("S4: 2.45 GB/s"),
        Case::new("direct, 4 KiB, one at a time", Method::Direct, 4096).slow().source("S4: 463 MB/s"),
        Case::new("stream, 50 x 4 KiB, copied", stream(true), S4_REQUEST_BYTES).slow().source("S4: 2.35 GB/s"),
        Case::new("256 x 128 KiB", ring(256, false, false), 128 << 10)
            .source("S1 (fio): the drive's full rate")
            .drawn(),
        Case::mapped("mmap, MADV_SEQUENTIAL, 20 threads", Advice::Sequential, 20)
            .source("S1: falls after about 17 s")
            .drawn(),
        Case::mapped("mmap, MADV_SEQUENTIAL, 1 thread", Advice::Sequential, 1).drawn(),
    ]
}

/// Returns the cases of the raw device. The additional cases explain the rates; `is_quick` leaves out some of them.
fn device_cases(is_quick: bool) -> Vec<Case> {
    let ring = |depth, huge| Method::Ring { depth, options: RingOptions { huge, ..RingOptions::default() } };
    let polled = RingOptions { registered: true, huge: true, polled: true };
    let mut cases = shared_cases();
    cases.extend([
        Case::mapped("mmap, MADV_RANDOM, 20 threads", Advice::Random, 20).slow().source("S1: worse for scans"),
        Case::new("5 x 512 KiB, huge pages, polled", Method::Ring { depth: 5, options: polled }, 512 << 10)
            .source("S4: 7.29 GB/s"),
        Case::new("stream, 5 x 512 KiB, no copy", Method::Stream { requests: 5, copied: false }, 512 << 10),
    ]);
    if !is_quick {
        cases.extend([
            Case::new("stream, 4 x 128 KiB, no copy", Method::Stream { requests: 4, copied: false }, 128 << 10),
            Case::new("1 x 4 MiB, small pages", ring(1, false), 4 << 20),
            Case::new("1 x 4 MiB, huge pages", ring(1, true), 4 << 20),
            Case::mapped("mmap, MADV_NORMAL, 20 threads", Advice::Normal, 20),
        ]);
    }
    cases
}

/// Returns the cases of the raw device and the cases of the plain file.
fn cases(session: &Session<'_>) -> [(Regime, Vec<Case>); 2] {
    let is_quick = session.settings.quick;
    [(Regime::Device, device_cases(is_quick)), (Regime::File, file_cases(is_quick))]
}

fn timing(session: &Session<'_>, case: &Case) -> Timing {
    let share = match (case.is_slow, session.settings.quick) {
        (true, _) => 0.15,
        (false, true) => 0.35,
        (false, false) => 0.4,
    };
    let seconds = session.pacing.series.seconds * share;
    // Sample often, because memory is full after a fraction of a second.
    Timing { seconds, sample_seconds: (seconds / 160.0).clamp(0.01, 0.1) }
}

/// Estimates the mean duration of a trial. A case ends early once it has read the whole file, at 1.7 GB/s on average.
fn turn_seconds(session: &Session<'_>, cases: &[Case]) -> f64 {
    let all = session.file_bytes() as f64 / 1.7e9;
    let seconds: f64 = cases
        .iter()
        .map(|case| timing(session, case).seconds.min(if case.is_slow { f64::INFINITY } else { all }))
        .sum();
    seconds / cases.len().max(1) as f64 + 0.1
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let trials =
        |cases: &[Case]| Session::rounds_seconds(cases.len(), session.pacing.rounds, turn_seconds(session, cases));
    cases(session).iter().map(|(_, cases)| trials(cases)).sum()
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Scan.name(),
        "Reading from start to end",
        "From a file larger than the memory limit, on a raw block device with 128 KiB of read-ahead as the sources had, \
         and as a plain file. S4 says that a few large direct requests in flight are several times as fast as the \
         kernel's read-ahead, S1 that a mapping loses the drive's rate once memory is full.",
    )
}

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    let mut found = Vec::new();
    for (regime, cases) in cases(session) {
        match regime::place(session, regime)? {
            Ok(place) => {
                let rounds = measure(session, regime, &place, &cases);
                show(chapter, regime, &cases, &rounds);
                found.push(Ok(rounds));
            }
            Err(missing) => {
                chapter.note(format!("Not measured: {}. Missing: {missing}.", regime.name()));
                found.push(Err(missing));
            }
        }
    }
    let [device, file] = found.try_into().expect("two regimes");
    claims::judge(chapter, &claims::Figures::of(&device, file.ok().as_ref(), machine, session.read_micros()));
    chapter.note(
        "CPU per GB is the reading process's; the kernel's threads that serve a loop device come on top, the same for all \
         its cases. Memory is the most that the case's control group held, page cache included.",
    );
    chapter.note(
        "A drive takes a request as a list of contiguous pieces of memory: with buffers of 4 KiB pages a piece per page. \
         Huge pages, or the large folios of the page cache, make it a few pieces.",
    );
    if machine.virtualised.is_some() {
        chapter.note(
            "This is a virtual drive: data that the host has cached arrives faster than a drive could deliver it.",
        );
    }
    Ok(())
}

fn measure(session: &Session<'_>, regime: Regime, place: &Place, cases: &[Case]) -> Rounds<Load> {
    session.run_rounds(
        cases,
        session.pacing.rounds,
        turn_seconds(session, cases),
        |case| format!("scan: {}: {}", regime.name(), case.name),
        |case, _| {
            let (method, request_bytes, threads) = (case.method, case.request_bytes, case.threads);
            let timing = timing(session, case);
            (Task { path: place.path.clone(), method, request_bytes, threads, timing }, place.limit_bytes)
        },
    )
}

pub(super) fn cpu_seconds_per_gb(load: &Load) -> f64 {
    load.counters.cpu_seconds * 1e9 / load.bytes.max(1) as f64
}

fn show(chapter: &mut Chapter, regime: Regime, cases: &[Case], rounds: &Rounds<Load>) {
    let mut table = Table::new(
        format!("Whole scans: {}", regime.name()),
        &[
            ("", Form::Text),
            ("rate", Form::Bandwidth),
            ("least", Form::Bandwidth),
            ("most", Form::Bandwidth),
            ("CPU per GB", Form::Seconds),
            ("memory", Form::Bytes),
            ("device bytes per byte", Form::Ratio),
        ],
    );
    let mut plot = Plot::new(
        format!("Sequential reading over time: {}", regime.name()),
        ("time", Form::Seconds, Scale::Linear),
        ("rate", Form::Bandwidth, Scale::Linear),
    )
    .drawing(MIDDLE_ROUND);
    let mut row = |name: String, trials: &Trials<Load>, source: Option<&str>| {
        let rate = trials.spread(Load::bytes_per_second);
        let cells: Vec<Cell> = vec![
            name.into(),
            rate.map(|rate| rate.median).into(),
            rate.map(|rate| rate.least).into(),
            rate.map(|rate| rate.most).into(),
            trials.median(cpu_seconds_per_gb).into(),
            trials.memory_bytes_max().into(),
            trials.median(Load::read_amplification).into(),
        ];
        let refused = trials.failure.as_ref().map(|failure| format!("not possible here: {failure}"));
        table.row(cells).source = refused.or(source.map(str::to_owned));
    };
    for (case, trials) in cases.iter().zip(rounds) {
        row(trials.label(case.name), trials, case.source);
        if let Some(samples) = trials.middle_samples(Load::bytes_per_second).filter(|_| case.drawn) {
            plot.line(case.name, samples.iter().map(|each| (each.at_seconds, each.bytes_per_second)).collect());
        }
    }
    row("the first, again".to_owned(), &rounds.again, None);
    chapter.tables.push(table);
    chapter.plots.push(plot);
}
