//! `stall`: page faults that stall a task scheduler when its tasks touch cold mapped pages (S3).
//!
//! A scheduler with one thread per processor, like the schedulers of asynchronous runtimes, runs reader tasks and one
//! heartbeat task, which only reschedules itself. The time between two beats is how long any other task of the program
//! would have waited. The three kinds of reader differ in how much of a read the scheduler sees:
//!
//! - *mapped*: a reader that touches a cold page blocks its thread in the kernel, unseen by the scheduler;
//! - *handed over*: a reader calls read(2), which the scheduler sees; the call blocks a different thread, as in Go's
//!   runtime or on a pool for blocking calls, and the scheduler's own thread continues;
//! - *asynchronous*: a reader yields the thread to other tasks until its bytes arrive.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use drumlin::IoBackend;
use drumlin_io::{AlignedBuffer, OpenOptions};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::compare::{Claim, Ratio, Size, Spread};
use crate::counters::Counters;
use crate::experiments::Experiment;
use crate::experiments::random::BLOCK_BYTES;
use crate::figures::{self, Form};
use crate::map::{Advice, Map, Mode};
use crate::measure::{Latencies, Sample, Summary};
use crate::report::{Chapter, Holds, Judgement, MIDDLE_ROUND, Plot, Scale, Table};
use crate::session::{Counted, Rounds, Session, Trials};
use crate::temp_folder;
use crate::worker::Measurement;

/// A reader's method of reading.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
enum Method {
    Mapped,
    HandedOver,
    Asynchronous,
}

impl Method {
    const ALL: [Method; 3] = [Method::Mapped, Method::HandedOver, Method::Asynchronous];

    fn name(self) -> &'static str {
        match self {
            Method::Mapped => "mapped",
            Method::HandedOver => "read(2), handed over",
            Method::Asynchronous => "asynchronous",
        }
    }
}

/// One run of the scheduler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    method: Method,
    seed: u64,
    threads: usize,
    readers: usize,
    seconds: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observation {
    reads_per_second: f64,
    beats_per_second: f64,
    /// The times between two beats.
    gaps: Summary,
    /// The processor time of a scheduler thread per second of the run.
    all_blocked: f64,
    /// Processor time of a scheduler thread per second of the run.
    processor_share: f64,
    /// The bytes that the device read, per read. If 0, the pages were cached.
    device_bytes_per_read: f64,
}

/// A task that is ready to run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    Heartbeat,
    Reader,
}

/// The queue of ready tasks, and the state of the threads.
struct Scheduler {
    ready: Mutex<VecDeque<Ready>>,
    stop: AtomicBool,
    reads: AtomicU64,
    last_beat: Mutex<(Instant, Latencies)>,
    blocked: Vec<AtomicBool>,
    /// The number of reads that were handed over but have not started.
    handed: Mutex<usize>,
    handing: Condvar,
}

impl Scheduler {
    fn beat(&self) {
        let mut last = self.last_beat.lock().expect("nothing panics while it is held");
        let now = Instant::now();
        let gap = now - last.0;
        last.1.record(gap);
        last.0 = now;
    }

    fn next(&self) -> Option<Ready> {
        self.ready.lock().expect("nothing panics while it is held").pop_front()
    }

    fn put(&self, task: Ready) {
        self.ready.lock().expect("nothing panics while it is held").push_back(task);
    }

    /// Hands a read over to a different thread.
    fn hand_over(&self) {
        *self.handed.lock().expect("nothing panics while it is held") += 1;
        self.handing.notify_one();
    }

    /// Waits for a handed-over read. Returns `false` when the run has ended.
    fn take_over(&self) -> bool {
        let mut handed = self.handed.lock().expect("nothing panics while it is held");
        while *handed == 0 && self.goes_on() {
            handed = self.handing.wait(handed).expect("nothing panics while it is held");
        }
        *handed = handed.saturating_sub(1);
        self.goes_on()
    }

    /// Returns `true` once the heartbeat has beaten and, if there are readers, one has read.
    fn has_begun(&self, readers: usize) -> bool {
        (readers == 0 || self.reads.load(Ordering::Relaxed) > 0)
            && self.last_beat.lock().expect("nothing panics while it is held").1.count() > 0
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Returns the index of a random block of the file.
fn place(random: &mut Xoshiro256PlusPlus, blocks: u64) -> u64 {
    random.random_range(0..blocks)
}

impl Measurement for Task {
    const NAME: &'static str = "stall";
    type Result = Observation;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Observation> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        temp_folder::forget_cached(&file)?;
        let bytes = file.metadata()?.len();
        let map = Map::new(&file, bytes as usize, Mode::Shared)?;
        map.advise(Advice::Random)?;
        let mut ready: VecDeque<Ready> = (0..self.readers).map(|_| Ready::Reader).collect();
        ready.push_back(Ready::Heartbeat);
        let scheduler = Scheduler {
            ready: Mutex::new(ready),
            stop: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            last_beat: Mutex::new((Instant::now(), Latencies::new())),
            blocked: (0..self.threads).map(|_| AtomicBool::new(false)).collect(),
            handed: Mutex::new(0),
            handing: Condvar::new(),
        };
        let blocks = bytes / BLOCK_BYTES as u64;
        let before = Counters::now();
        let start = Instant::now();
        let all_blocked = self.run(&scheduler, &file, &map, blocks)?;
        let seconds = start.elapsed().as_secs_f64();
        let Counters { device_read_bytes: device_bytes, cpu_seconds, .. } = Counters::now().since(&before);
        let gaps = scheduler.last_beat.lock().expect("nothing panics while it is held").1.summary();
        let reads = scheduler.reads.load(Ordering::Relaxed);
        Ok(Observation {
            reads_per_second: reads as f64 / seconds,
            beats_per_second: gaps.count as f64 / seconds,
            gaps,
            all_blocked,
            processor_share: cpu_seconds / seconds / self.threads as f64,
            device_bytes_per_read: device_bytes as f64 / reads.max(1) as f64,
        })
    }
}

impl Task {
    /// Runs the scheduler's threads, and the helper threads to which reads are handed over. Returns the share of the
    /// time in which all of the scheduler's threads were in a fault.
    fn run(&self, scheduler: &Scheduler, file: &File, map: &Map, blocks: u64) -> io::Result<f64> {
        std::thread::scope(|scope| {
            let helpers = if self.method == Method::HandedOver { self.readers } else { 0 };
            let helpers: Vec<_> =
                (0..helpers).map(|helper| scope.spawn(move || self.help(scheduler, helper, file, blocks))).collect();
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    scope.spawn(move || match self.method {
                        Method::Mapped => self.run_mapped(scheduler, thread, map, blocks),
                        Method::HandedOver => run_handing(scheduler),
                        Method::Asynchronous => self.run_async(scheduler, thread, blocks),
                    })
                })
                .collect();
            let (mut looks, mut blocked) = (0u64, 0u64);
            let start = Instant::now();
            // On a busy machine, a short run could otherwise end before any thread was scheduled.
            let failed = || threads.iter().chain(&helpers).any(std::thread::ScopedJoinHandle::is_finished);
            while start.elapsed() < Duration::from_secs_f64(self.seconds)
                || !(scheduler.has_begun(self.readers) || failed())
            {
                std::thread::sleep(Duration::from_micros(200));
                looks += 1;
                blocked += u64::from(scheduler.blocked.iter().all(|each| each.load(Ordering::Relaxed)));
            }
            scheduler.stop.store(true, Ordering::Relaxed);
            // Take the lock once: afterwards, no helper is between its check of `stop` and its wait.
            drop(scheduler.handed.lock());
            scheduler.handing.notify_all();
            for thread in threads.into_iter().chain(helpers) {
                thread.join().expect("a scheduler's thread panicked")?;
            }
            Ok(blocked as f64 / looks.max(1) as f64)
        })
    }

    fn generator(&self, thread: usize) -> Xoshiro256PlusPlus {
        Xoshiro256PlusPlus::seed_from_u64(thread as u64 + 1000 * self.seed)
    }

    /// Performs the reads that were handed over.
    fn help(&self, scheduler: &Scheduler, helper: usize, file: &File, blocks: u64) -> io::Result<()> {
        let mut random = self.generator(helper);
        let mut buffer = [0; BLOCK_BYTES];
        while scheduler.take_over() {
            file.read_exact_at(&mut buffer, place(&mut random, blocks) * BLOCK_BYTES as u64)?;
            std::hint::black_box(buffer[0]);
            scheduler.reads.fetch_add(1, Ordering::Relaxed);
            scheduler.put(Ready::Reader);
        }
        Ok(())
    }

    fn run_mapped(&self, scheduler: &Scheduler, thread: usize, map: &Map, blocks: u64) -> io::Result<()> {
        let mut random = self.generator(thread);
        while scheduler.goes_on() {
            match scheduler.next() {
                Some(Ready::Heartbeat) => {
                    scheduler.beat();
                    scheduler.put(Ready::Heartbeat);
                }
                Some(Ready::Reader) => {
                    let at = place(&mut random, blocks) as usize * BLOCK_BYTES;
                    scheduler.blocked[thread].store(true, Ordering::Relaxed);
                    std::hint::black_box(map[at]);
                    scheduler.blocked[thread].store(false, Ordering::Relaxed);
                    scheduler.reads.fetch_add(1, Ordering::Relaxed);
                    scheduler.put(Ready::Reader);
                }
                None => std::thread::yield_now(),
            }
        }
        Ok(())
    }

    fn run_async(&self, scheduler: &Scheduler, thread: usize, blocks: u64) -> io::Result<()> {
        let backend = drumlin_io::backend(IoBackend::Auto)?;
        let file = backend.open(&self.path, OpenOptions { direct: true, ..OpenOptions::default() })?;
        let queue = backend.queue(self.readers.max(1))?;
        let mut buffers: Vec<AlignedBuffer> = (0..self.readers).map(|_| AlignedBuffer::zeroed(BLOCK_BYTES)).collect();
        let mut finished = Vec::new();
        let mut random = self.generator(thread);
        while scheduler.goes_on() {
            match scheduler.next() {
                Some(Ready::Heartbeat) => {
                    scheduler.beat();
                    scheduler.put(Ready::Heartbeat);
                }
                Some(Ready::Reader) => {
                    let at = place(&mut random, blocks) * BLOCK_BYTES as u64;
                    let buffer = buffers.pop().expect("a buffer for each reader");
                    queue.push_read(&file, at, buffer, 0);
                    queue.submit()?;
                }
                None => std::thread::yield_now(),
            }
            if queue.in_flight() > 0 {
                queue.wait(0, &mut finished)?;
                for completion in finished.drain(..) {
                    completion.result?;
                    std::hint::black_box(completion.buffer[0]);
                    buffers.push(completion.buffer);
                    scheduler.reads.fetch_add(1, Ordering::Relaxed);
                    scheduler.put(Ready::Reader);
                }
            }
        }
        Ok(())
    }
}

/// Runs a scheduler thread that hands reads over.
fn run_handing(scheduler: &Scheduler) -> io::Result<()> {
    while scheduler.goes_on() {
        match scheduler.next() {
            Some(Ready::Heartbeat) => {
                scheduler.beat();
                scheduler.put(Ready::Heartbeat);
            }
            Some(Ready::Reader) => scheduler.hand_over(),
            None => std::thread::yield_now(),
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Case {
    method: Method,
    readers: usize,
}

impl Case {
    fn name(self) -> String {
        match self.readers {
            0 => "no readers".to_owned(),
            readers => format!("{}, {}", self.method.name(), figures::plural(readers as u64, "reader")),
        }
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(16)
}

/// Returns the cases. Most verdicts rest on the first case, so it is measured twice. With `is_quick`, the case of a
/// single reader is left out, because no verdict needs it.
fn cases(is_quick: bool) -> Vec<Case> {
    let threads = threads();
    let mut cases =
        vec![Case { method: Method::Mapped, readers: threads }, Case { method: Method::Mapped, readers: 0 }];
    for method in Method::ALL {
        for readers in [1, threads, threads * 8].into_iter().skip(usize::from(is_quick)) {
            let case = Case { method, readers };
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
    }
    cases
}

fn case_seconds(session: &Session<'_>) -> f64 {
    session.pacing.series.seconds / 8.0
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    Session::rounds_seconds(cases(session.settings.quick).len(), session.pacing.rounds, case_seconds(session) + 0.1)
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Stall.name(),
        "A task scheduler and page faults",
        format!(
            "A scheduler of {} runs readers of cold pages and one heartbeat. Every other task waits for as long as the \
             time between two beats.",
            figures::plural(threads() as u64, "thread")
        ),
    )
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    let path = session.file()?.to_owned();
    let seconds = case_seconds(session);
    let cases = cases(session.settings.quick);
    let trials = session.run_rounds(
        &cases,
        session.pacing.rounds,
        seconds + 0.1,
        |case| format!("stall: {}", case.name()),
        |&Case { method, readers }, seed| {
            let task = Task { path: path.clone(), method, seed, threads: threads(), readers, seconds };
            (task, Some(session.memory_bytes()))
        },
    );
    show(chapter, &cases, &trials);
    let found = Findings::of(&cases, &trials);
    for claim in &CLAIMS {
        claim.put(chapter, &found);
    }
    Ok(())
}

fn show(chapter: &mut Chapter, cases: &[Case], trials: &Rounds<Observation>) {
    let mut table = Table::new(
        "Between two beats",
        &[
            ("", Form::Text),
            ("reads/s", Form::Rate),
            ("beats/s", Form::Rate),
            ("p50", Form::Micros),
            ("p99", Form::Micros),
            ("p99.9", Form::Micros),
            ("longest", Form::Micros),
            ("all threads in a fault", Form::Share),
            ("CPU per thread", Form::Share),
        ],
    );
    let mut plot = Plot::new(
        "Waits of all other tasks",
        ("share of waits that took at most", Form::Share, Scale::Tail),
        ("between two beats", Form::Micros, Scale::Logarithmic),
    )
    .drawing(MIDDLE_ROUND);
    let mut rows: Vec<(Case, &Trials<Observation>)> = cases.iter().copied().zip(trials).collect();
    rows.sort_by_key(|(case, _)| (case.readers > 0, *case));
    for (case, trials) in rows {
        if let Some(failure) = &trials.failure {
            chapter.note(format!("{}: {failure}", case.name()));
        }
        let Some(middle) = trials.middle(|seen| seen.beats_per_second) else { continue };
        table.row(vec![
            trials.label(&case.name()).into(),
            trials.median(|seen| seen.reads_per_second).into(),
            trials.median(|seen| seen.beats_per_second).into(),
            trials.median(|seen| seen.gaps.p50_us).into(),
            trials.median(|seen| seen.gaps.p99_us).into(),
            trials.median(|seen| seen.gaps.p999_us).into(),
            trials.median(|seen| seen.gaps.max_us).into(),
            trials.median(|seen| seen.all_blocked).into(),
            trials.median(|seen| seen.processor_share).into(),
        ]);
        if case.readers == threads() || case.readers == 0 {
            plot.line(case.name(), middle.gaps.quantiles.clone());
        }
    }
    chapter.tables.push(table);
    chapter.plots.push(plot);
}

impl Counted for Observation {
    fn operations(&self) -> u64 {
        self.gaps.count
    }
}

/// The figures on which the verdicts rest. Figures that were not measured are `None`.
#[derive(Debug, Default)]
struct Findings {
    /// The share of the time in which all threads were in a fault, with one mapped reader per thread.
    all_blocked: Option<Spread>,
    /// The processor time of a thread per second of the run: with one mapped reader per thread, and with the heartbeat
    /// alone.
    processor_share: Option<Spread>,
    alone_share: Option<Spread>,
    /// The bytes that the device read, per read, with one mapped reader per thread.
    device_bytes_per_read: Option<f64>,
    /// The number of beats with asynchronous readers divided by that with mapped readers, one reader per thread.
    beats: Option<Ratio>,
    /// The 99th percentile of the waits with eight mapped readers per thread, divided by that with readers of the
    /// handed-over kind.
    handed_over: Option<Ratio>,
    /// The 99th percentile of the waits with eight mapped readers per thread, divided by that with asynchronous
    /// readers.
    asynchronous: Option<Ratio>,
}

impl Findings {
    fn of(cases: &[Case], trials: &Rounds<Observation>) -> Findings {
        let at = |method, readers| cases.iter().position(|case| *case == Case { method, readers });
        let (few, many) = (threads(), threads() * 8);
        let beats = |seen: &Observation| seen.beats_per_second;
        let p99 = |seen: &Observation| seen.gaps.p99_us;
        let waits = |method| trials.ratio(at(Method::Mapped, many)?, at(method, many)?, p99);
        Findings {
            all_blocked: trials[0].spread(|seen| seen.all_blocked),
            processor_share: trials[0].spread(|seen| seen.processor_share),
            alone_share: at(Method::Mapped, 0).and_then(|alone| trials[alone].spread(|seen| seen.processor_share)),
            device_bytes_per_read: trials[0].median(|seen| seen.device_bytes_per_read),
            beats: at(Method::Asynchronous, few).and_then(|other| trials.ratio(other, 0, beats)),
            handed_over: waits(Method::HandedOver),
            asynchronous: waits(Method::Asynchronous),
        }
    }
}

const CLAIMS: [Claim<Findings>; 4] = [
    Claim {
        source: "S3",
        text: "A runtime with N threads stops altogether once N tasks touch cold mapped pages.",
        judge: |found| {
            let (Some(blocked), Some(device_bytes), Some(beats)) =
                (found.all_blocked, found.device_bytes_per_read, found.beats)
            else {
                return nothing();
            };
            let why = format!(
                "All threads were in a fault for {} of the time; with asynchronous reads the heart beat {} as often.",
                blocked.show(Form::Share, ""),
                beats.show()
            );
            match () {
                () if device_bytes < BLOCK_BYTES as f64 / 2.0 => {
                    Judgement::inconclusive("cold pages: most of those that were touched were cached", why)
                }
                () if blocked.least >= 0.5 => Judgement::new(Holds::Yes, why),
                () if blocked.most < 0.05 => Judgement::new(Holds::No, why),
                () if blocked.least < 0.05 => {
                    Judgement::inconclusive("a quieter machine: the share of the rounds lies on both sides", why)
                }
                () => Judgement::new(Holds::Partly, why),
            }
        },
    },
    Claim {
        source: "S3",
        text: "A blocking call that the runtime sees and hands to another thread leaves the others running (waits of a \
               tenth).",
        judge: |found| shorter_waits(found.handed_over),
    },
    Claim {
        source: "Drumlin",
        text: "So does an asynchronous read, without another thread.",
        judge: |found| shorter_waits(found.asynchronous),
    },
    Claim {
        source: "S3",
        text: "While it is stopped its processors are idle, with tasks that could run.",
        judge: idle,
    },
];

/// Judges idleness. S3 gives no figure. A processor counts as idle if it is busy for at most a quarter of the time, and
/// as not idle if it is busy for more than half.
fn idle(found: &Findings) -> Judgement {
    let (Some(blocked), Some(share), Some(alone)) = (found.all_blocked, found.processor_share, found.alone_share)
    else {
        return nothing();
    };
    let why = format!(
        "All threads were in a fault for {} of the time. A thread used {} of a processor, the work of faults included, and {} without readers.",
        blocked.show(Form::Share, ""),
        share.show(Form::Share, ""),
        alone.show(Form::Share, "")
    );
    match () {
        () if blocked.least < 0.5 => Judgement::inconclusive("a scheduler that is stopped for most of the time", why),
        () if alone.least < 0.75 => Judgement::inconclusive("a quieter machine: others used its processors", why),
        () if share.most <= 0.25 => Judgement::new(Holds::Yes, why),
        () if share.least > 0.5 => Judgement::new(Holds::No, why),
        () if share.least > 0.25 && share.most <= 0.5 => Judgement::new(Holds::Partly, why),
        () => Judgement::inconclusive("rounds that agree: their shares lie on both sides of a quarter or a half", why),
    }
}

/// Judges the claim that waits are shorter with some other kind of reader than with mapped readers. The claim holds
/// fully only if the waits are at most a tenth as long.
fn shorter_waits(ratio: Option<Ratio>) -> Judgement {
    let Some(ratio) = ratio else { return nothing() };
    let why = format!("With eight readers a thread the 99th percentile is {} as long with mapped pages.", ratio.show());
    ratio.judge_at_least(Size::bound(10.0), why)
}

fn nothing() -> Judgement {
    Judgement::inconclusive("figures: the cases did not run", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With each kind of reader, the scheduler completes reads and beats.
    #[test]
    fn all_schedulers_run() {
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = temp_folder.filled("data", 2 << 20, |_| true).unwrap();
        for method in Method::ALL {
            let task = Task { path: path.clone(), method, seed: 1, threads: 2, readers: 2, seconds: 0.05 };
            let seen = task.perform(|_| {}).unwrap();
            assert!(seen.reads_per_second > 0.0 && seen.beats_per_second > 0.0, "{method:?}: {seen:?}");
        }
        // Without readers, the run does not wait for a first read.
        let alone = Task { path, method: Method::Mapped, seed: 1, threads: 2, readers: 0, seconds: 0.05 };
        let seen = alone.perform(|_| {}).unwrap();
        assert!(seen.reads_per_second == 0.0 && seen.beats_per_second > 0.0, "{seen:?}");
    }

    /// Processors that wait for the drive are idle; processors that a fast drive keeps busy are not. The claim is
    /// inconclusive if faults don't block all threads, or if other programs use the machine. The claim about
    /// asynchronous reads is the lab's own.
    #[test]
    fn idleness_comes_out_each_way() {
        let spread = |least: f64, most: f64| Some(Spread { median: f64::midpoint(least, most), least, most });
        let judge_beside = |alone, blocked: f64, least, most| {
            let (all_blocked, processor_share) = (spread(blocked, 1.0), spread(least, most));
            idle(&Findings { all_blocked, processor_share, alone_share: spread(alone, 1.0), ..Findings::default() })
                .holds
        };
        let judge = |blocked, least, most| judge_beside(0.98, blocked, least, most);
        assert_eq!((judge(0.98, 0.1, 0.2), judge(0.98, 0.7, 0.8)), (Holds::Yes, Holds::No));
        assert_eq!((judge(0.98, 0.3, 0.4), judge(0.98, 0.2, 0.7)), (Holds::Partly, Holds::Inconclusive));
        // Other programs used the processors: even a lone heartbeat got only a fifth of them.
        assert_eq!(judge_beside(0.22, 0.95, 0.17, 0.22), Holds::Inconclusive);
        assert_eq!(
            (judge(0.1, 0.1, 0.2), idle(&Findings::default()).holds),
            (Holds::Inconclusive, Holds::Inconclusive)
        );
        assert_eq!(CLAIMS.map(|claim| claim.source), ["S3", "S3", "Drumlin", "S3"]);
    }

    /// Each claim can get every verdict.
    #[test]
    fn claims_come_out_each_way() {
        let ratio = |median: f64, least: f64| Some(Ratio { median, least, most: median * 1.1, noise: 1.05 });
        let stops = |least: f64, most: f64, device: f64| {
            let all_blocked = Some(Spread { median: f64::midpoint(least, most), least, most });
            let found = Findings {
                all_blocked,
                device_bytes_per_read: Some(device),
                beats: ratio(9.0, 8.0),
                ..Findings::default()
            };
            (CLAIMS[0].judge)(&found).holds
        };
        assert_eq!(stops(0.9, 0.99, 4096.0), Holds::Yes);
        assert_eq!(stops(0.2, 0.9, 4096.0), Holds::Partly);
        assert_eq!(stops(0.0, 0.01, 4096.0), Holds::No);
        assert_eq!(stops(0.0, 0.9, 4096.0), Holds::Inconclusive);
        assert_eq!(stops(0.9, 0.99, 10.0), Holds::Inconclusive);
        for (found, holds) in [
            (ratio(20.0, 18.0), Holds::Yes),
            (ratio(3.0, 2.5), Holds::Partly),
            (ratio(0.8, 0.7), Holds::No),
            (ratio(10.0, 0.9), Holds::Inconclusive),
            (None, Holds::Inconclusive),
        ] {
            assert_eq!((CLAIMS[1].judge)(&Findings { handed_over: found, ..Findings::default() }).holds, holds);
            assert_eq!((CLAIMS[2].judge)(&Findings { asynchronous: found, ..Findings::default() }).holds, holds);
        }
    }
}
