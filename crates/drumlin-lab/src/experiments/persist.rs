//! `persist`: storing through calls against storing through a mapping and writing the cache lines back (S5).
//!
//! S5's claim is that ten threads with 1 GB each store three times as fast. It is judged only on persistent memory that
//! is mapped with DAX. On tmpfs the medium is memory, but a call costs what it costs anywhere; small records show that
//! cost, which is the lab's own question. All areas together are larger than the processor's cache.
//!
//! A store completes before its cache lines have left the processor's cache, and reading the clock does not wait for a
//! fence. So the clock is read once for several small records, and then only the last of them can still be in flight.

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
enum Way {
    /// write(2) alone.
    Call,
    /// write(2) followed by fdatasync.
    CallSynced,
    /// A copy into the mapping, which nothing makes durable.
    Mapped,
    /// A copy into the mapping whose cache lines are written back and fenced. It is durable on persistent memory.
    MappedPersisted,
}

impl Way {
    const ALL: [Way; 4] = [Way::Call, Way::CallSynced, Way::Mapped, Way::MappedPersisted];

    fn name(self) -> String {
        match self {
            Way::Call => "write(2)".to_owned(),
            Way::CallSynced => "write(2) + fdatasync".to_owned(),
            Way::Mapped => "mapped, copied".to_owned(),
            Way::MappedPersisted => {
                format!("mapped, {}", LineFlush::find().map_or("no line write-back", LineFlush::name))
            }
        }
    }
}

/// Stores records of one size with some threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    way: Way,
    bytes: usize,
    threads: usize,
    /// The size of all areas. Each thread has an area of its own and overwrites it sequentially, repeatedly.
    area_bytes: usize,
    dax: bool,
    timing: Timing,
}

impl Measurement for Task {
    const NAME: &'static str = "persist";
    type Result = Load;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Load> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        let flush = match self.way {
            Way::MappedPersisted => Some(
                LineFlush::find()
                    .ok_or_else(|| io::Error::other("this processor has no instruction to write a cache line back"))?,
            ),
            _ => None,
        };
        let mode = if self.dax { Mode::Persistent } else { Mode::Shared };
        let mut map = Map::new(&file, self.area_bytes, mode)?;
        if matches!(self.way, Way::Mapped | Way::MappedPersisted) {
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
                // Each mutex is held for the whole run: it hands one thread exclusive access to its part.
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
                        match self.way {
                            Way::Call => file.write_all_at(&record, base + place as u64)?,
                            Way::CallSynced => {
                                file.write_all_at(&record, base + place as u64)?;
                                file.sync_data()?;
                            }
                            Way::Mapped | Way::MappedPersisted => {
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

/// Returns the number of records between two clock readings: as many as fill a page.
fn batch_records(bytes: usize) -> u32 {
    (4096 / bytes).max(1) as u32
}

#[derive(Debug)]
struct Case {
    place: &'static str,
    path: PathBuf,
    way: Way,
    bytes: usize,
    threads: usize,
}

const SIZES: [(usize, usize); 2] = [(64 << 10, THREADS), (64, 1)];

/// Returns the size of all threads' areas: twice the processor's cache, so that stores reach the medium. It is smaller
/// if there is too little space, or if the processor is emulated and has no cache.
fn area_bytes(space_bytes: u64, is_emulated: bool) -> u64 {
    let wanted = if is_emulated { 80 << 20 } else { (2 * machine::cache_bytes()).max(AREA_BYTES_MIN) };
    wanted.min(space_bytes / 4 * 3) / PAGE_MULTIPLE * PAGE_MULTIPLE
}

const PAGE_MULTIPLE: u64 = 4096 * THREADS as u64;

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    Session::turns_seconds(Way::ALL.len() * SIZES.len(), session.pacing.rounds, turn_seconds(session))
}

/// Estimates the time of a turn, including the first touch of the area.
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
    let rooms = prefault::memory_rooms(64 << 20);
    if rooms.is_empty() {
        chapter.note("Neither tmpfs nor persistent memory is writable here.");
    }
    for (place, room) in &rooms {
        let area =
            area_bytes(temp_folder::space_bytes(room.path())?.min(machine.memory_bytes / 2), machine.is_emulated());
        let (path, file) = room.file("persist", area)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, area)?;
        let mut cases = Vec::new();
        for (bytes, threads) in SIZES {
            cases.extend(Way::ALL.map(|way| Case { place, path: path.clone(), way, bytes, threads }));
        }
        let timing = session.pacing.slice;
        let turns = session.turns(
            &cases,
            session.pacing.rounds,
            turn_seconds(session),
            |case| format!("persist: {}, {}", case.place, case.way.name()),
            |case, _| {
                let (path, way, bytes, threads) = (case.path.clone(), case.way, case.bytes, case.threads);
                let dax = case.place == "DAX";
                (Task { path, way, bytes, threads, area_bytes: area as usize, dax, timing }, None)
            },
        );
        std::fs::remove_file(&path)?;
        for (bytes, threads) in SIZES {
            show(chapter, (bytes, threads), area, &cases, &turns);
        }
        let found = Found::of(place, area, machine, &cases, &turns);
        for claim in CLAIMS {
            chapter.judged(claim.source, format!("On {place}, {}", claim.text), (claim.judge)(&found));
        }
    }
    if rooms.iter().all(|(name, _)| *name != "DAX") {
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
    turns: &Rounds<Load>,
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
    for (case, turns) in cases.iter().zip(turns).filter(|(case, _)| case.bytes == bytes) {
        let name = format!("{}: {}", case.place, case.way.name());
        let Some(load) = turns.middle(Load::bytes_per_second) else {
            if let Some(failure) = &turns.failure {
                let cells =
                    vec![name.into(), Cell::Missing, Cell::Missing, Cell::Missing, Cell::Missing, Cell::Missing];
                table.row(cells).source(format!("not possible here: {failure}"));
            }
            continue;
        };
        let durable = match (case.place, case.way) {
            ("DAX", Way::CallSynced | Way::MappedPersisted) => "yes",
            ("DAX", _) => "no",
            _ => "no: memory",
        };
        let row = table.row(vec![
            turns.label(&name).into(),
            turns.median(Load::bytes_per_second).into(),
            load.latency.p50_us.into(),
            load.latency.p99_us.into(),
            turns.median(|load| load.counters.cpu_seconds * 1e9 / load.bytes as f64).into(),
            durable.into(),
        ]);
        match case.way {
            Way::Call if bytes > 4096 => row.source("S5: 5 GB/s (12 DIMMs)"),
            Way::MappedPersisted if bytes > 4096 => row.source("S5: 15 GB/s (12 DIMMs)"),
            _ => {}
        }
    }
    chapter.tables.push(table);
}

/// The figures on which the verdicts for one place rest.
#[derive(Debug)]
struct Found {
    is_dax: bool,
    is_emulated: bool,
    /// All areas together exceed the processor's cache.
    is_beyond_cache: bool,
    /// The rate of storing through the mapping with write-back, over that of write(2): large records by ten threads,
    /// small ones by one.
    large: Option<Ratio>,
    small: Option<Ratio>,
}

impl Found {
    fn of(place: &str, area_bytes: u64, machine: &Machine, cases: &[Case], turns: &Rounds<Load>) -> Found {
        let over = |(bytes, _): (usize, usize)| {
            let case = |way| cases.iter().position(|case| case.way == way && case.bytes == bytes);
            turns.ratio(case(Way::MappedPersisted)?, case(Way::Call)?, Load::bytes_per_second)
        };
        Found {
            is_dax: place == "DAX",
            is_emulated: machine.is_emulated(),
            is_beyond_cache: area_bytes > machine::cache_bytes() + machine::cache_bytes() / 2,
            large: over(SIZES[0]),
            small: over(SIZES[1]),
        }
    }
}

/// The claims about a place. S5 has ten threads with 1 GB each and says nothing of small records.
const CLAIMS: [Claim<Found>; 2] = [
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

fn three_times(found: &Found) -> Judgement {
    let Some(ratio) = found.large else { return nothing() };
    let why = format!("Records of 64 KiB, mapped and written back: {} the rate of write(2).", ratio.show());
    match () {
        () if !found.is_dax => Judgement::cannot_tell("persistent memory that is mapped with DAX", why),
        () if found.is_emulated => Judgement::cannot_tell("a processor that is not emulated", why),
        () if !found.is_beyond_cache => Judgement::cannot_tell("room for areas larger than the processor's cache", why),
        () => ratio.judge_at_least(Size::of(3.0), why),
    }
}

fn small_records(found: &Found) -> Judgement {
    let Some(ratio) = found.small else { return nothing() };
    let why = format!("Mapped and written back they have {} the rate of write(2).", ratio.show());
    if found.is_emulated {
        return Judgement::cannot_tell("a processor that is not emulated", why);
    }
    ratio.judge_at_least(Size::bound(1.1), why)
}

fn nothing() -> Judgement {
    Judgement::cannot_tell("figures: the cases did not run", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Holds;

    /// Every way stores its bytes, each thread in its own part.
    #[test]
    fn every_way_stores() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let area_bytes = 16 << 20;
        file.as_file().set_len(area_bytes as u64).unwrap();
        for way in Way::ALL {
            let timing = Timing { seconds: 0.02, sample_seconds: 0.0 };
            let path = file.path().to_owned();
            let task = Task { path, way, bytes: 64, threads: 2, area_bytes, dax: false, timing };
            match task.perform(|_| {}) {
                Ok(done) => assert!(done.latency.count > 0, "{way:?}"),
                Err(error) => assert!(way == Way::MappedPersisted, "{way:?}: {error}"),
            }
            let mut bytes = [9; 64];
            file.as_file().read_exact_at(&mut bytes, area_bytes as u64 / 2).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 1), "{way:?}");
        }
    }

    /// The time of small records includes their write-back: their latencies add up to most of the run.
    #[test]
    fn latencies_add_up_to_the_run() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let area_bytes = 64 << 20;
        file.as_file().set_len(area_bytes as u64).unwrap();
        let timing = Timing { seconds: 0.3, sample_seconds: 0.0 };
        let path = file.path().to_owned();
        let task = Task { path, way: Way::MappedPersisted, bytes: 64, threads: 1, area_bytes, dax: false, timing };
        let Ok(done) = task.perform(|_| {}) else { return }; // The processor has no instruction to write a line back.
        let timed = done.latency.mean_us * done.latency.count as f64 / 1e6;
        assert!(timed > done.seconds / 2.0, "{timed} s of {} s are timed: {:?}", done.seconds, done.latency);
    }

    /// Each claim can get every verdict. The claim about small records is the lab's own.
    #[test]
    fn claims_come_out_each_way() {
        let found = |median: f64, least: f64| {
            let ratio = Some(Ratio { median, least, most: median * 1.05, noise: 1.02 });
            Found { is_dax: true, is_emulated: false, is_beyond_cache: true, large: ratio, small: ratio }
        };
        for (found, large, small) in [
            (found(4.0, 3.5), Holds::Yes, Holds::Yes),
            (found(2.0, 1.8), Holds::Partly, Holds::Yes),
            // Figures of an example report: less than a third of the claimed effect, but faster.
            (found(1.33, 1.28), Holds::NotInSize, Holds::Yes),
            (found(0.9, 0.8), Holds::No, Holds::No),
            (found(3.0, 0.9), Holds::CannotTell, Holds::CannotTell),
            (Found { large: None, small: None, ..found(1.0, 1.0) }, Holds::CannotTell, Holds::CannotTell),
            (Found { is_emulated: true, ..found(4.0, 3.5) }, Holds::CannotTell, Holds::CannotTell),
        ] {
            assert_eq!((three_times(&found).holds, small_records(&found).holds), (large, small), "{found:?}");
        }
        assert_eq!(CLAIMS.map(|claim| claim.source), ["S5", "Drumlin"]);
        assert_eq!(three_times(&Found { is_dax: false, ..found(4.0, 3.5) }).holds, Holds::CannotTell);
        assert_eq!(three_times(&Found { is_beyond_cache: false, ..found(4.0, 3.5) }).holds, Holds::CannotTell);
    }
}
