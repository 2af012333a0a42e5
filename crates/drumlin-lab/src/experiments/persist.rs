//! `persist`: storing through calls against storing through a mapping with the cache lines written back (S5).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::experiments::{Experiment, prefault};
use crate::figures::{self, Form};
use crate::flush::LineFlush;
use crate::map::{Map, Mode};
use crate::measure::{Load, Sample, Timing, load};
use crate::report::{Cell, Chapter, Holds, Table};
use crate::session::{Session, Turns};
use crate::worker::Measurement;

/// S5 wrote with ten threads.
const THREADS: usize = 10;
/// A part of the file for each thread, written again and again.
const PART_BYTES: usize = 8 << 20;

/// A way of storing bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Way {
    /// write(2).
    Call,
    /// write(2), then fdatasync.
    CallSynced,
    /// Copied into the mapping; nothing makes it durable.
    Mapped,
    /// Copied, lines written back, fenced: durable if the mapping is of persistent memory.
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

/// Stores of one size by some threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    way: Way,
    bytes: usize,
    threads: usize,
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
        let mut map = Map::new(&file, THREADS * PART_BYTES, mode)?;
        // First touches are what `prefault` measures.
        for page in map.chunks_mut(4096) {
            page[0] = 1;
        }
        let parts: Vec<std::sync::Mutex<&mut [u8]>> = map.chunks_mut(PART_BYTES).map(std::sync::Mutex::new).collect();
        load(
            self.threads,
            self.timing,
            |_| {},
            |thread, pace| {
                // Held for the whole run, to give the one thread its part.
                let mut part = parts[thread].lock().expect("one thread a part");
                let record = vec![thread as u8; self.bytes];
                let base = (thread * PART_BYTES) as u64;
                let mut place = 0;
                while pace.go_on() {
                    if place + self.bytes > PART_BYTES {
                        place = 0;
                    }
                    let started = std::time::Instant::now();
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
                    pace.done(started, self.bytes as u64);
                }
                Ok(())
            },
        )
    }
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

fn rounds(session: &Session<'_>) -> usize {
    session.pacing.rounds.div_ceil(2)
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    (Way::ALL.len() * SIZES.len() * rounds(session)) as f64 * (session.pacing.slice.seconds + 0.05)
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Persist.name(),
        "Storing through calls and through a mapping",
        "On persistent memory a store is durable once its cache lines are written back: no call, no copy, no sync. \
         Without such memory, tmpfs shows the processor's part of the cost.",
    )
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    let bytes = (THREADS * PART_BYTES) as u64;
    let rooms = prefault::memory_rooms(bytes);
    if rooms.is_empty() {
        chapter.note("Neither tmpfs nor persistent memory is writable here.");
        return Ok(());
    }
    let mut cases = Vec::new();
    for (place, room) in &rooms {
        let (path, file) = room.file("persist", bytes)?;
        file.set_len(bytes)?;
        for (bytes, threads) in SIZES {
            cases.extend(Way::ALL.map(|way| Case { place, path: path.clone(), way, bytes, threads }));
        }
    }
    let timing = session.pacing.slice;
    let turns = session.turns(
        &cases,
        rounds(session),
        timing.seconds + 0.05,
        |case| format!("persist: {}, {}", case.place, case.way.name()),
        |case, _| {
            let (path, way, bytes, threads) = (case.path.clone(), case.way, case.bytes, case.threads);
            (Task { path, way, bytes, threads, dax: case.place == "DAX", timing }, None)
        },
    );
    for (bytes, threads) in SIZES {
        show(chapter, bytes, threads, &cases, &turns);
    }
    verdict(chapter, cases[0].place, &turns);
    if rooms.iter().all(|(name, _)| *name != "DAX") {
        chapter.note(
            "No file system on persistent memory (dax) is mounted here. On tmpfs the medium is DRAM, and much of what \
             is stored through a mapping without write-back never leaves the processor's cache: the figures show the \
             cost of calls, not of a medium.",
        );
    }
    Ok(())
}

/// The table of records of one size.
fn show(chapter: &mut Chapter, bytes: usize, threads: usize, cases: &[Case], turns: &[Turns<Load>]) {
    let mut table = Table::new(
        format!("Records of {} by {}", figures::size(bytes as u64), figures::plural(threads as u64, "thread")),
        &[
            ("", Form::Text),
            ("rate", Form::Bandwidth),
            ("p50", Form::Micros),
            ("p99", Form::Micros),
            ("durable", Form::Text),
        ],
    );
    for (case, turns) in cases.iter().zip(turns).filter(|(case, _)| case.bytes == bytes) {
        let name = format!("{}: {}", case.place, case.way.name());
        let Some(load) = turns.middle(Load::bytes_per_second) else {
            if let Some(failure) = &turns.failure {
                let cells = vec![name.into(), Cell::Missing, Cell::Missing, Cell::Missing, Cell::Missing];
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
            name.into(),
            turns.median(Load::bytes_per_second).into(),
            load.latency.p50_us.into(),
            load.latency.p99_us.into(),
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

/// Compares the ways at the larger size in the first place, where the first cases are.
fn verdict(chapter: &mut Chapter, place: &str, turns: &[Turns<Load>]) {
    let rate = |way: Way| turns[Way::ALL.iter().position(|each| *each == way)?].median(Load::bytes_per_second);
    if let (Some(call), Some(mapped)) = (rate(Way::Call), rate(Way::MappedPersisted)) {
        chapter.verdict(
            "S5",
            "Storing through a mapping is three times as fast as through the file API.",
            match mapped / call {
                factor if factor > 2.0 => Holds::Yes,
                factor if factor > 1.1 => Holds::Partly,
                _ => Holds::No,
            },
            format!(
                "On {}, records of 64 KiB: mapped and written back {}, write(2) {}.",
                place,
                Form::Bandwidth.show(mapped),
                Form::Bandwidth.show(call)
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way stores its bytes, in its thread's own part.
    #[test]
    fn every_way_stores() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((THREADS * PART_BYTES) as u64).unwrap();
        for way in Way::ALL {
            let timing = Timing { seconds: 0.02, sample_seconds: 0.0 };
            let task = Task { path: file.path().to_owned(), way, bytes: 64, threads: 2, dax: false, timing };
            match task.perform(|_| {}) {
                Ok(done) => assert!(done.latency.count > 0, "{way:?}"),
                Err(error) => assert!(way == Way::MappedPersisted, "{way:?}: {error}"),
            }
            let mut bytes = [9; 64];
            file.as_file().read_exact_at(&mut bytes, PART_BYTES as u64).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 1), "{way:?}");
        }
    }
}
