//! `stall`: stalls of a task scheduler whose tasks touch cold mapped pages (S3).
//!
//! A scheduler with one thread per processor, like those of asynchronous runtimes, runs reader tasks and one heartbeat
//! task, which only schedules itself again. A reader that touches a cold page blocks its thread in the kernel, unseen
//! by the scheduler. A reader that reads asynchronously leaves the thread to other tasks until its bytes arrive. Any
//! other task of the program would have waited for as long as the time between two beats.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drumlin::IoBackend;
use drumlin::internals::io::{AlignedBuffer, OpenOptions};
use serde::{Deserialize, Serialize};

use crate::experiments::Experiment;
use crate::experiments::random::BLOCK_BYTES;
use crate::figures::{self, Form};
use crate::map::{Advice, Map, Mode};
use crate::measure::{Latencies, Sample, Summary};
use crate::report::{Chapter, Holds, Plot, Scale, Table};
use crate::session::{Session, Turns};
use crate::temp_folder;
use crate::worker::Measurement;

/// One run of the scheduler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    mapped: bool,
    threads: usize,
    readers: usize,
    seconds: f64,
}

/// The observations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    reads_per_second: f64,
    beats_per_second: f64,
    /// Times between two beats.
    gaps: Summary,
    /// The share of the time in which all threads were blocked in a page fault.
    all_blocked: f64,
}

/// A task that is ready to run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    Heartbeat,
    Reader,
}

/// The tasks that are ready, and the state of the threads.
struct Scheduler {
    ready: Mutex<VecDeque<Ready>>,
    stop: AtomicBool,
    reads: AtomicU64,
    last_beat: Mutex<(Instant, Latencies)>,
    blocked: Vec<AtomicBool>,
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

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// A random block of the file; another at each call.
fn place(state: &mut u64, blocks: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % blocks
}

impl Measurement for Task {
    const NAME: &'static str = "stall";
    type Result = Seen;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Seen> {
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
        };
        let (scheduler, map, task) = (&scheduler, &map, &self);
        let blocks = bytes / BLOCK_BYTES as u64;
        let start = Instant::now();
        let all_blocked = std::thread::scope(|scope| -> io::Result<f64> {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    scope.spawn(move || {
                        if task.mapped {
                            run_mapped(scheduler, thread, map, blocks);
                            Ok(())
                        } else {
                            run_async(scheduler, thread, task, blocks)
                        }
                    })
                })
                .collect();
            let (mut looks, mut blocked) = (0u64, 0u64);
            while start.elapsed() < Duration::from_secs_f64(self.seconds) {
                std::thread::sleep(Duration::from_micros(200));
                looks += 1;
                blocked += u64::from(scheduler.blocked.iter().all(|each| each.load(Ordering::Relaxed)));
            }
            scheduler.stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().expect("a scheduler's thread panicked")?;
            }
            Ok(blocked as f64 / looks.max(1) as f64)
        })?;
        let seconds = start.elapsed().as_secs_f64();
        let gaps = scheduler.last_beat.lock().expect("nothing panics while it is held").1.summary();
        Ok(Seen {
            reads_per_second: scheduler.reads.load(Ordering::Relaxed) as f64 / seconds,
            beats_per_second: gaps.count as f64 / seconds,
            gaps,
            all_blocked,
        })
    }
}

fn run_mapped(scheduler: &Scheduler, thread: usize, map: &Map, blocks: u64) {
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ (thread as u64 + 1);
    while scheduler.goes_on() {
        match scheduler.next() {
            Some(Ready::Heartbeat) => {
                scheduler.beat();
                scheduler.put(Ready::Heartbeat);
            }
            Some(Ready::Reader) => {
                let at = place(&mut state, blocks) as usize * BLOCK_BYTES;
                scheduler.blocked[thread].store(true, Ordering::Relaxed);
                std::hint::black_box(map[at]);
                scheduler.blocked[thread].store(false, Ordering::Relaxed);
                scheduler.reads.fetch_add(1, Ordering::Relaxed);
                scheduler.put(Ready::Reader);
            }
            None => std::thread::yield_now(),
        }
    }
}

fn run_async(scheduler: &Scheduler, thread: usize, task: &Task, blocks: u64) -> io::Result<()> {
    let backend = drumlin::internals::io::backend(IoBackend::Auto)?;
    let file = backend.open(&task.path, OpenOptions { direct: true, ..OpenOptions::default() })?;
    let mut queue = backend.queue(task.readers.max(1))?;
    let mut buffers: Vec<AlignedBuffer> = (0..task.readers).map(|_| AlignedBuffer::zeroed(BLOCK_BYTES)).collect();
    let mut finished = Vec::new();
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ (thread as u64 + 1);
    while scheduler.goes_on() {
        match scheduler.next() {
            Some(Ready::Heartbeat) => {
                scheduler.beat();
                scheduler.put(Ready::Heartbeat);
            }
            Some(Ready::Reader) => {
                let at = place(&mut state, blocks) * BLOCK_BYTES as u64;
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

struct Case {
    name: String,
    mapped: bool,
    readers: usize,
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(16)
}

fn cases() -> Vec<Case> {
    let threads = threads();
    let mut cases = vec![Case { name: "no readers".to_owned(), mapped: true, readers: 0 }];
    for (mapped, kind) in [(true, "mapped"), (false, "asynchronous")] {
        for readers in [1, threads, threads * 8] {
            let name = format!("{kind}, {}", figures::plural(readers as u64, "reader"));
            cases.push(Case { name, mapped, readers });
        }
    }
    cases
}

fn case_seconds(session: &Session<'_>) -> f64 {
    session.pacing.series.seconds / 5.0
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    cases().len() as f64 * case_seconds(session)
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
    let cases = cases();
    let turns = session.turns(
        &cases,
        1,
        seconds,
        |case| format!("stall: {}", case.name),
        |case, _| {
            let (mapped, readers) = (case.mapped, case.readers);
            let task = Task { path: path.clone(), mapped, threads: threads(), readers, seconds };
            (task, Some(session.memory_bytes()))
        },
    );
    show(chapter, &cases, &turns);
    verdict(chapter, &turns);
    Ok(())
}

fn show(chapter: &mut Chapter, cases: &[Case], turns: &[Turns<Seen>]) {
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
        ],
    );
    let mut plot = Plot::new(
        "Waits of all other tasks",
        ("share of waits that took at most", Form::Share, Scale::Tail),
        ("between two beats", Form::Micros, Scale::Logarithmic),
    );
    for (case, turns) in cases.iter().zip(turns) {
        let Some(seen) = turns.results.first() else {
            if let Some(failure) = &turns.failure {
                chapter.note(format!("{}: {failure}", case.name));
            }
            continue;
        };
        table.row(vec![
            case.name.clone().into(),
            seen.reads_per_second.into(),
            seen.beats_per_second.into(),
            seen.gaps.p50_us.into(),
            seen.gaps.p99_us.into(),
            seen.gaps.p999_us.into(),
            seen.gaps.max_us.into(),
            seen.all_blocked.into(),
        ]);
        if case.readers == threads() || case.readers == 0 {
            plot.line(&case.name, seen.gaps.quantiles.clone());
        }
    }
    chapter.tables.push(table);
    chapter.plots.push(plot);
}

/// Compares mapped and asynchronous readers, as many as there are threads.
fn verdict(chapter: &mut Chapter, turns: &[Turns<Seen>]) {
    let seen = |index: usize| turns[index].results.first();
    if let (Some(mapped), Some(asynchronous)) = (seen(2), seen(5)) {
        chapter.verdict(
            "S3",
            "A runtime with N threads stops altogether once N tasks touch cold mapped pages.",
            if mapped.all_blocked > 0.2 { Holds::Yes } else { Holds::Partly },
            format!(
                "With as many readers as threads, all threads were blocked in a fault for {} of the time; the heart \
                 beat {} times per second, with asynchronous reads {} times.",
                Form::Share.show(mapped.all_blocked),
                Form::Rate.show(mapped.beats_per_second),
                Form::Rate.show(asynchronous.beats_per_second)
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both schedulers read and beat.
    #[test]
    fn both_schedulers_run() {
        let folder = tempfile::tempdir().unwrap();
        let room = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = room.filled("data", 2 << 20, |_| true).unwrap();
        for mapped in [true, false] {
            let task = Task { path: path.clone(), mapped, threads: 2, readers: 2, seconds: 0.05 };
            let seen = task.perform(|_| {}).unwrap();
            assert!(seen.reads_per_second > 0.0 && seen.beats_per_second > 0.0, "{mapped}: {seen:?}");
        }
    }
}
