//! `persist`: stores by system calls, compared with stores through a mapping whose cache lines are then written back
//! (S5).
//!
//! S5's claim is that ten threads with 1 GB each store three times as fast. This claim is judged only on persistent
//! memory that is mapped with DAX. On tmpfs the medium is memory, but a call costs as much as on any file system; small
//! records show that cost, a question of the lab's own. The areas of all threads together exceed the processor's cache.
//!
//! A store completes before its cache lines have left the processor's cache, and reading the clock does not wait for a
//! fence. So the clock is read once for several small records: only the last of them can still be in flight then.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::compare::{Claim, Ratio, Size};
use crate::experiments::{Experiment, prefault};
use crate::figures::{self, Form};
use crate::flush::LineFlush;
use crate::machine::{self, Machine};
use crate::map::{Map, Mode};
use crate::measure::{Load, Sample, Timing, load};
use crate::report::{Cell, Chapter, Judgement, Table};
use crate::session::{Rounds, Session};
use crate::temp_folder;
use crate::worker::Measurement;

/// The number of threads that wrote in S5.
const THREADS: usize = 10;
/// The minimum size of all threads' areas together.
const AREA_BYTES_MIN: u64 = 640 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Method {
    /// write(2) alone.
    Call,
    /// write(2) followed by fdatasync.
    CallSynced,
    /// A copy into the mapping, without making it durable.
    Mapped,
    /// A copy into the mapping whose cache lines are written back and fenced. It is durable on persistent memory.
    MappedPersisted,
}

impl Method {
    const ALL: [Method; 4] = [Method::Call, Method::CallSynced, Method::Mapped, Method::MappedPersisted];

    fn name(self) -> String {
        match self {
            Method::Call => "write(2)".to_owned(),
            Method::CallSynced => "write(2) + fdatasync".to_owned(),
            Method::Mapped => "mapped, copied".to_owned(),
            Method::MappedPersisted => {
                format!("mapped, {}", LineFlush::find().map_or("no line write-back", LineFlush::name))
            }
        }
    }
}

/// Stores records of one size with some threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    method: Method,
    bytes: usize,
    threads: usize,
    /// The total size of all areas. Each thread overwrites its own area sequentially, over and over.
    area_bytes: usize,
    dax: bool,
    timing: Timing,
}

impl Measurement for Task {
    const NAME: &'static str = "persist";
    type Result = Load;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Load> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        let flush = match self.method {
            Method::MappedPersisted => Some(
                LineFlush::find()
                    .ok_or_else(|| io::Error::other("this processor has no instruction to write a cache line back"))?,
            ),
            _ => None,
        };
        let mode = if self.dax { Mode::Persistent } else { Mode::Shared };
        let mut map = Map::new(&file, self.area_bytes, mode)?;
        if matches!(self.method, Method::Mapped | Method::MappedPersisted) {
            // Touch each page first, because `prefault` measures the first touch.
            for page in map.chunks_mut(4096) {
                page[0] = 1;
            }
        }
        let part_bytes = self.area_bytes / self.threads / 4096 * 4096;
        let parts: Vec<std::sync::Mutex<&mut [u8]>> = map.chunks_mut(part_bytes).map(std::sync::Mutex::new).collect();
        load(
            self.threads,
            self.timing,
            |_| {},
            |thread, pace| {
                // The thread holds the mutex of its part for the whole run. The mutex only gives it exclusive access to
                // the part.
                let mut part = parts[thread].lock().expect("one thread a part");
                let record = vec![thread as u8; self.bytes];
                let base = (thread * part_bytes) as u64;
                let mut place = 0;
                let batch = batch_records(self.bytes);
                while pace.go_on() {
                    let started = std::time::Instant::now();
                    for _ in 0..batch {
                        if place + self.bytes > part_bytes {
                            place = 0;
                        }
                        match self.method {
                            Method::Call => file.write_all_at(&record, base + place as u64)?,
                            Method::CallSynced => {
                                file.write_all_at(&record, base + place as u64)?;
                                file.sync_data()?;
                            }
                            Method::Mapped | Method::MappedPersisted => {
                                let target = &mut part[place..place + self.bytes];
                                target.copy_from_slice(std::hint::black_box(&record));
                                if let Some(flush) = flush {
                                    flush.persist(target);
                                }
                            }
                        }
                        place += self.bytes;
                    }
                    pace.done_all(started, batch, u64::from(batch) * self.bytes as u64);
                }
                Ok(())
            },
        )
    }
}

/// Returns the number of records between two readings of the clock: as many as fill a page.
fn batch_records(bytes: usize) -> u32 {
    (4096 / bytes).max(1) as u32
}

#[derive(Debug)]
struct Case {
    place: &'static str,
    path: PathBuf,
    method: Method,
    bytes: usize,
    threads: usize,
}

const SIZES: [(usize, usize); 2] = [(64 << 10, THREADS), (64, 1)];

/// Returns the size of all threads' areas together: twice the processor's cache, so that stores reach the medium. It is
/// smaller if there is too little space, or if the processor is emulated and has no cache.
fn area_bytes(space_bytes: u64, is_emulated: bool) -> u64 {
    let wanted = if is_emulated { 80 << 20 } else { (2 * machine::cache_bytes()).max(AREA_BYTES_MIN) };
    wanted.min(space_bytes / 4 * 3) / PAGE_MULTIPLE * PAGE_MULTIPLE
}

const PAGE_MULTIPLE: u64 = 4096 * THREADS as u64;

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    Session::rounds_seconds(Method::ALL.len() * SIZES.len(), session.pacing.rounds, turn_seconds(session))
}

/// Estimates the duration of a trial, including the first touch of the area.
fn turn_seconds(session: &Session<'_>) -> f64 {
    session.pacing.slice.seconds + 0.1
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Persist.name(),
        "Storing through calls and through a mapping",
        "On persistent memory a store is durable once its cache lines are written back: no call, no copy, no sync. \
         Without such memory, tmpfs shows the processor's part of the cost.",
    )
}

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    let folders = prefault::memory_folders(64 << 20);
    if folders.is_empty() {
        chapter.note("Neither tmpfs nor persistent memory is writable here.");
    }
    for (place, temp_folder) in &folders {
        let area = area_bytes(
            temp_folder::space_bytes(temp_folder.path())?.min(machine.memory_bytes / 2),
            machine.is_emulated(),
        );
        let (path, file) = temp_folder.file("persist", area)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, area)?;
        let mut cases = Vec::new();
        for (bytes, threads) in SIZES {
            cases.extend(Method::ALL.map(|method| Case { place, path: path.clone(), method, bytes, threads }));
        }
        let timing = session.pacing.slice;
        let trials = session.run_rounds(
            &cases,
            session.pacing.rounds,
            turn_seconds(session),
            |case| format!("persist: {}, {}", case.place, case.method.name()),
            |case, _| {
                let (path, method, bytes, threads) = (case.path.clone(), case.method, case.bytes, case.threads);
                let dax = case.place == "DAX";
                (Task { path, method, bytes, threads, area_bytes: area as usize, dax, timing }, None)
            },
        );
        std::fs::remove_file(&path)?;
        for (bytes, threads) in SIZES {
            show(chapter, (bytes, threads), area, &cases, &trials);
        }
        let found = Findings::of(place, area, machine, &cases, &trials);
        for claim in CLAIMS {
            chapter.judged(claim.source, format!("On {place}, {}", claim.text), (claim.judge)(&found));
        }
    }
    if folders.iter().all(|(name, _)| *name != "DAX") {
        chapter.note(
            "No file system on persistent memory (dax) is mounted here, and tmpfs shows the cost of calls, not of a \
             medium. scripts/persist-in-guest runs this in an emulated machine that has one.",
        );
    }
    Ok(())
}

/// Adds the table of one record size.
fn show(
    chapter: &mut Chapter,
    (bytes, threads): (usize, usize),
    area_bytes: u64,
    cases: &[Case],
    trials: &Rounds<Load>,
) {
    let mut table = Table::new(
        format!(
            "Records of {} by {}, an area of {} in all{}",
            figures::size(bytes as u64),
            figures::plural(threads as u64, "thread"),
            figures::bytes(area_bytes as f64),
            match batch_records(bytes) {
                1 => String::new(),
                records => format!("; percentiles of the mean of {records} records"),
            }
        ),
        &[
            ("", Form::Text),
            ("rate", Form::Bandwidth),
            ("p50", Form::Micros),
            ("p99", Form::Micros),
            ("CPU per GB", Form::Seconds),
            ("durable", Form::Text),
        ],
    );
    for (case, trials) in cases.iter().zip(trials).filter(|(case, _)| case.bytes == bytes) {
        let name = format!("{}: {}", case.place, case.method.name());
        let Some(load) = trials.middle(Load::bytes_per_second) else {
            if let Some(failure) = &trials.failure {
                let cells =
                    vec![name.into(), Cell::Missing, Cell::Missing, Cell::Missing, Cell::Missing, Cell::Missing];
                table.row(cells).source(format!("not possible here: {failure}"));
            }
            continue;
        };
        let durable = match (case.place, case.method) {
            ("DAX", Method::CallSynced | Method::MappedPersisted) => "yes",
            ("DAX", _) => "no",
            _ => "no: memory",
        };
        let row = table.row(vec![
            trials.label(&name).into(),
            trials.median(Load::bytes_per_second).into(),
            load.latency.p50_us.into(),
            load.latency.p99_us.into(),
            trials.median(|load| load.counters.cpu_seconds * 1e9 / load.bytes as f64).into(),
            durable.into(),
        ]);
        match case.method {
            Method::Call if bytes > 4096 => row.source("S5: 5 GB/s (12 DIMMs)"),
            Method::MappedPersisted if bytes > 4096 => row.source("S5: 15 GB/s (12 DIMMs)"),
            _ => {}
        }
    }
    chapter.tables.push(table);
}

/// The figures on which the verdicts for one place rest.
#[derive(Debug)]
struct Findings {
    is_dax: bool,
    is_emulated: bool,
    /// `true` if all areas together exceed the processor's cache.
    is_beyond_cache: bool,
    /// The rate of storing through the mapping with write-back, divided by that of write(2): large records by ten
    /// threads, small records by one thread.
    large: Option<Ratio>,
    small: Option<Ratio>,
}

impl Findings {
    fn of(place: &str, area_bytes: u64, machine: &Machine, cases: &[Case], trials: &Rounds<Load>) -> Findings {
        let over = |(bytes, _): (usize, usize)| {
            let case = |method| cases.iter().position(|case| case.method == method && case.bytes == bytes);
            trials.ratio(case(Method::MappedPersisted)?, case(Method::Call)?, Load::bytes_per_second)
        };
        Findings {
            is_dax: place == "DAX",
            is_emulated: machine.is_emulated(),
            is_beyond_cache: area_bytes > machine::cache_bytes() + machine::cache_bytes() / 2,
            large: over(SIZES[0]),
            small: over(SIZES[1]),
        }
    }
}

/// The claims about a place. S5 measured ten threads with 1 GB each, and no small records.
const CLAIMS: [Claim<Findings>; 2] = [
    Claim {
        source: "S5",
        text: "ten threads store three times as fast through a mapping as through the file API.",
        judge: three_times,
    },
    Claim {
        source: "Drumlin",
        text: "a mapping spares the call: records of 64 B are stored faster, written back each.",
        judge: small_records,
    },
];

fn three_times(found: &Findings) -> Judgement {
    let Some(ratio) = found.large else { return nothing() };
    let why = format!("Records of 64 KiB, mapped and written back: {} the rate of write(2).", ratio.show());
    match () {
        () if !found.is_dax => Judgement::inconclusive("persistent memory that is mapped with DAX", why),
        () if found.is_emulated => Judgement::inconclusive("a processor that is not emulated", why),
        () if !found.is_beyond_cache => {
            Judgement::inconclusive("room for areas larger than the processor's cache", why)
        }
        () => ratio.judge_at_least(Size::of(3.0), why),
    }
}

fn small_records(found: &Findings) -> Judgement {
    let Some(ratio) = found.small else { return nothing() };
    let why = format!("Mapped and written back they have {} the rate of write(2).", ratio.show());
    if found.is_emulated {
        return Judgement::inconclusive("a processor that is not emulated", why);
    }
    ratio.judge_at_least(Size::bound(1.1), why)
}

fn nothing() -> Judgement {
    Judgement::inconclusive("figures: the cases did not run", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Holds;

    /// Every method stores its bytes, each thread in its own part.
    #[test]
    fn every_way_stores() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let area_bytes = 16 << 20;
        file.as_file().set_len(area_bytes as u64).unwrap();
        for method in Method::ALL {
            let timing = Timing { seconds: 0.02, sample_seconds: 0.0 };
            let path = file.path().to_owned();
            let task = Task { path, method, bytes: 64, threads: 2, area_bytes, dax: false, timing };
            match task.perform(|_| {}) {
                Ok(done) => assert!(done.latency.count > 0, "{method:?}"),
                Err(error) => assert!(method == Method::MappedPersisted, "{method:?}: {error}"),
            }
            let mut bytes = [9; 64];
            file.as_file().read_exact_at(&mut bytes, area_bytes as u64 / 2).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 1), "{method:?}");
        }
    }

    /// The time of a small record includes its write-back: the latencies add up to most of the run.
    #[test]
    fn latencies_add_up_to_the_run() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let area_bytes = 64 << 20;
        file.as_file().set_len(area_bytes as u64).unwrap();
        let timing = Timing { seconds: 0.3, sample_seconds: 0.0 };
        let path = file.path().to_owned();
        let task =
            Task { path, method: Method::MappedPersisted, bytes: 64, threads: 1, area_bytes, dax: false, timing };
        let Ok(done) = task.perform(|_| {}) else { return }; // The processor has no instruction to write a line back.
        let timed = done.latency.mean_us * done.latency.count as f64 / 1e6;
        assert!(timed > done.seconds / 2.0, "{timed} s of {} s are timed: {:?}", done.seconds, done.latency);
    }

    /// Each claim can get every verdict. The claim about small records is the lab's own.
    #[test]
    fn claims_come_out_each_way() {
        let found = |median: f64, least: f64| {
            let ratio = Some(Ratio { median, least, most: median * 1.05, noise: 1.02 });
            Findings { is_dax: true, is_emulated: false, is_beyond_cache: true, large: ratio, small: ratio }
        };
        for (found, large, small) in [
            (found(4.0, 3.5), Holds::Yes, Holds::Yes),
            (found(2.0, 1.8), Holds::Partly, Holds::Yes),
            // Figures of an example report: storing is faster, but by less than a third of the claimed effect.
            (found(1.33, 1.28), Holds::NotInSize, Holds::Yes),
            (found(0.9, 0.8), Holds::No, Holds::No),
            (found(3.0, 0.9), Holds::Inconclusive, Holds::Inconclusive),
            (Findings { large: None, small: None, ..found(1.0, 1.0) }, Holds::Inconclusive, Holds::Inconclusive),
            (Findings { is_emulated: true, ..found(4.0, 3.5) }, Holds::Inconclusive, Holds::Inconclusive),
        ] {
            assert_eq!((three_times(&found).holds, small_records(&found).holds), (large, small), "{found:?}");
        }
        assert_eq!(CLAIMS.map(|claim| claim.source), ["S5", "Drumlin"]);
        assert_eq!(three_times(&Findings { is_dax: false, ..found(4.0, 3.5) }).holds, Holds::Inconclusive);
        assert_eq!(three_times(&Findings { is_beyond_cache: false, ..found(4.0, 3.5) }).holds, Holds::Inconclusive);
    }
}
