//! `prefault`: the cost of the first touch of a mapped page, and the gain of doing it in advance (S5).

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::experiments::Experiment;
use crate::figures::{self, Form};
use crate::machine;
use crate::map::{self, Map, Mode};
use crate::measure::Sample;
use crate::report::{Chapter, Holds, Table};
use crate::session::{Session, Turns};
use crate::temp_folder::{self, TempFolder};
use crate::worker::Measurement;

const PAGE_BYTES: usize = 4096;
/// A row of a load: S5's engine stores rows one after another.
const ROW_BYTES: usize = 256;

/// The preparation before the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Way {
    Nothing,
    /// `MAP_POPULATE`: by the call that maps.
    Populated,
    /// `MADV_POPULATE_WRITE` by this many threads, each for a part of its own.
    Threads(usize),
}

impl Way {
    fn name(self) -> String {
        match self {
            Way::Nothing => "no prefault".to_owned(),
            Way::Populated => "MAP_POPULATE".to_owned(),
            Way::Threads(threads) => format!("prefault, {}", figures::plural(threads as u64, "thread")),
        }
    }
}

/// A load of rows into a mapped file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    bytes: usize,
    way: Way,
    loaders: usize,
}

/// The cost of a load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    prefault_seconds: f64,
    load_seconds: f64,
    second_load_seconds: f64,
    /// Page faults while loading.
    faults: u64,
    /// The kernel's share of the processor time while loading.
    system_share: f64,
}

impl Measurement for Task {
    const NAME: &'static str = "prefault";
    type Result = Seen;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Seen> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        let start = Instant::now();
        let mode = if self.way == Way::Populated { Mode::SharedPopulated } else { Mode::Shared };
        let mut map = Map::new(&file, self.bytes, mode)?;
        if let Way::Threads(threads) = self.way {
            let part_bytes = (self.bytes / threads).next_multiple_of(PAGE_BYTES);
            std::thread::scope(|scope| -> io::Result<()> {
                let parts: Vec<_> =
                    map.chunks_mut(part_bytes).map(|part| scope.spawn(move || map::populate(part))).collect();
                parts.into_iter().try_for_each(|part| part.join().expect("a prefaulting thread panicked"))
            })?;
        }
        let prefault_seconds = start.elapsed().as_secs_f64();
        let before = Counters::now();
        let load_seconds = self.load(&mut map, 1);
        let counters = Counters::now().since(&before);
        let second_load_seconds = self.load(&mut map, 2);
        Ok(Seen {
            prefault_seconds,
            load_seconds,
            second_load_seconds,
            faults: counters.faults_minor + counters.faults_major,
            system_share: counters.system_seconds / counters.cpu_seconds.max(1e-9),
        })
    }
}

impl Task {
    /// Fills the mapping with rows, each loader a part of its own. Returns the seconds.
    fn load(&self, map: &mut Map, byte: u8) -> f64 {
        let start = Instant::now();
        let part_bytes = (self.bytes / self.loaders).next_multiple_of(PAGE_BYTES);
        std::thread::scope(|scope| {
            for part in map.chunks_mut(part_bytes) {
                scope.spawn(move || {
                    let row = [byte; ROW_BYTES];
                    for place in part.chunks_exact_mut(ROW_BYTES) {
                        place.copy_from_slice(std::hint::black_box(&row));
                    }
                });
            }
        });
        start.elapsed().as_secs_f64()
    }
}

struct Case {
    place: &'static str,
    folder: PathBuf,
    way: Way,
}

/// Kept small: on tmpfs the file is memory.
fn bytes(session: &Session<'_>) -> usize {
    if session.settings.quick { 128 << 20 } else { 512 << 20 }
}

const LOADERS: usize = 4;

const DRIVE: &str = "the drive's file system";

fn cases(session: &Session<'_>, rooms: &[(&'static str, TempFolder)]) -> Vec<Case> {
    let mut places = vec![(DRIVE, session.room.path().to_owned())];
    places.extend(rooms.iter().map(|(name, room)| (*name, room.path().to_owned())));
    let ways = [Way::Nothing, Way::Populated, Way::Threads(1), Way::Threads(4)];
    let of_place = |(place, folder): &(&'static str, PathBuf)| {
        let case = |way| Case { place, folder: folder.clone(), way };
        ways.map(case)
    };
    places.iter().flat_map(of_place).collect()
}

/// Folders on tmpfs and on persistent memory, as far as there are any and they are writable.
pub(super) fn memory_rooms(bytes: u64) -> Vec<(&'static str, TempFolder)> {
    let mut found = Vec::new();
    let tmpfs = Path::new("/dev/shm");
    let is_tmpfs = rustix::fs::statfs(tmpfs).is_ok_and(|found| found.f_type as u32 == 0x0102_1994);
    let candidates = [is_tmpfs.then(|| ("tmpfs", tmpfs.to_owned())), machine::dax_folder().map(|path| ("DAX", path))];
    for (name, folder) in candidates.into_iter().flatten() {
        if temp_folder::space_bytes(&folder).is_ok_and(|space| space > bytes * 2)
            && let Ok(room) = TempFolder::create(&folder)
        {
            found.push((name, room));
        }
    }
    found
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    // Two places of four ways, each touched three times at half a GB/s.
    8.0 * rounds(session) as f64 * bytes(session) as f64 * 2.0 / 5e8
}

fn rounds(session: &Session<'_>) -> usize {
    session.pacing.rounds.div_ceil(2)
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Prefault.name(),
        "The first touch of mapped pages",
        "Four threads store rows into a new mapped file, like a bulk load on persistent memory, with and without \
         bringing the pages in first.",
    )
}

/// The file of the case under measurement: one at a time, made before its turn and removed before the next.
#[derive(Default)]
struct CaseFile {
    count: Cell<u64>,
    path: RefCell<Option<PathBuf>>,
}

impl CaseFile {
    /// Removes the file of the case before and makes another in `folder`.
    fn make(&self, folder: &Path, bytes: usize) -> PathBuf {
        self.remove();
        self.count.set(self.count.get() + 1);
        let path = folder.join(format!("prefault-{}", self.count.get()));
        // A file that cannot be made shows as the worker's failure.
        if let Ok(file) = File::options().write(true).create_new(true).open(&path) {
            let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64);
        }
        self.path.replace(Some(path.clone()));
        path
    }

    fn remove(&self) {
        if let Some(path) = self.path.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    let bytes = bytes(session);
    let rooms = memory_rooms(bytes as u64);
    let cases = cases(session, &rooms);
    let file = CaseFile::default();
    let turns = session.turns(
        &cases,
        rounds(session),
        bytes as f64 * 2.0 / 5e8,
        |case| format!("prefault: {}, {}", case.place, case.way.name()),
        |case, _| {
            let task = Task { path: file.make(&case.folder, bytes), bytes, way: case.way, loaders: LOADERS };
            (task, None)
        },
    );
    file.remove();
    show(chapter, bytes, &cases, &turns);
    for place in rooms.iter().map(|(name, _)| *name).chain([DRIVE]) {
        verdict(chapter, place, &cases, &turns);
    }
    if rooms.iter().all(|(name, _)| *name != "DAX") {
        chapter.note(
            "No file system on persistent memory (dax) is mounted here; tmpfs stands in for it, without the medium.",
        );
    }
    Ok(())
}

fn show(chapter: &mut Chapter, bytes: usize, cases: &[Case], turns: &[Turns<Seen>]) {
    let pages = bytes as f64 / PAGE_BYTES as f64;
    let mut table = Table::new(
        format!("Storing {} of rows by {LOADERS} threads", figures::size(bytes as u64)),
        &[
            ("", Form::Text),
            ("pre- fault", Form::Seconds),
            ("load", Form::Seconds),
            ("load again", Form::Seconds),
            ("first touch of a page", Form::Nanos),
            ("faults while loading", Form::Count),
            ("kernel's share", Form::Share),
        ],
    );
    for (case, turns) in cases.iter().zip(turns) {
        let Some(load) = turns.median(|seen| seen.load_seconds) else {
            if let Some(failure) = &turns.failure {
                chapter.note(format!("{}, {}: {failure}", case.place, case.way.name()));
            }
            continue;
        };
        let again = turns.median(|seen| seen.second_load_seconds).unwrap_or(0.0);
        let row = table.row(vec![
            format!("{}: {}", case.place, case.way.name()).into(),
            turns.median(|seen| seen.prefault_seconds).into(),
            load.into(),
            again.into(),
            ((load - again).max(0.0) * 1e9 / pages).into(),
            turns.median(|seen| seen.faults as f64).into(),
            turns.median(|seen| seen.system_share).into(),
        ]);
        if case.way == Way::Threads(4) {
            row.source("S5: with prefault 1/7 of the time");
        }
    }
    chapter.tables.push(table);
}

/// Compares the loads of one place with and without prefaulting.
fn verdict(chapter: &mut Chapter, place: &str, cases: &[Case], turns: &[Turns<Seen>]) {
    let load_seconds = |way: Way| {
        let index = cases.iter().position(|case| case.place == place && case.way == way)?;
        turns[index].median(|seen| seen.load_seconds)
    };
    let (Some(without), Some(with)) = (load_seconds(Way::Nothing), load_seconds(Way::Threads(4))) else { return };
    let factor = without / with.max(1e-9);
    chapter.verdict(
        "S5",
        format!("On {place}, a load into prefaulted pages takes a fraction of the time (1/7)."),
        match factor {
            factor if factor >= 4.0 => Holds::Yes,
            factor if factor >= 1.3 => Holds::Partly,
            _ => Holds::No,
        },
        format!(
            "{} without, {} with: 1/{}.",
            figures::micros(without * 1e6),
            figures::micros(with * 1e6),
            figures::digits(factor)
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prefaulted pages are not faulted in again while loading.
    #[test]
    fn prefaulted_pages_do_not_fault() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = 8 << 20;
        let faults = |way| {
            let path = folder.path().join(format!("{way:?}"));
            File::create(&path).unwrap().set_len(bytes as u64).unwrap();
            Task { path, bytes, way, loaders: 2 }.perform(|_| {}).map(|seen| seen.faults)
        };
        let without = faults(Way::Nothing).unwrap();
        // A kernel before 5.14 has no such advice.
        if let Ok(with) = faults(Way::Threads(2)) {
            assert!(with < without / 2 + 100, "{with} faults after prefaulting, {without} without");
        }
    }
}
