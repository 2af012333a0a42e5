//! `prefault`: the cost of touching a mapped page for the first time, and the gain from touching it in advance (S5).
//!
//! | claim of S5 | judged by |
//! | --- | --- |
//! | a load with prefault takes 1/7 of the time | the whole, prefault included; on persistent memory only |
//! | first touches take most of a load (87 % of samples) | the same load into pages that were touched before |
//! | a thread that prefaults ahead of the loaders shortens the load | the whole with and without it |
//!
//! Like S5's, a load parses rows of CSV and stores them. A load that only copied rows would spend nearly all its time
//! in faults.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::compare::{Ratio, Size, Spread};
use crate::counters::{self, Counters};
use crate::experiments::Experiment;
use crate::figures::{self, Form};
use crate::machine::{self, Machine};
use crate::map::{self, Map, Mode};
use crate::measure::Sample;
use crate::report::{Chapter, Holds, Judgement, Table};
use crate::session::{Rounds, Session};
use crate::temp_folder::{self, TempFolder};
use crate::worker::Measurement;

const PAGE_BYTES: usize = 4096;
/// The size of a stored row.
const ROW_BYTES: usize = 256;
/// The bytes of one loader's part of the file that a prefaulting thread brings in before it turns to the next loader's
/// part.
const STEP_BYTES: usize = 8 << 20;
/// The minimum processor time for its shares to be reported, in ticks of 1/100 s. Shares of fewer ticks would be too
/// coarse.
const TICKS_MIN: f64 = 20.0;

/// The method by which pages are brought in before rows are stored there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Method {
    Nothing,
    /// The mapping call itself brings the pages in, by `MAP_POPULATE`.
    Populated,
    /// All threads bring in all pages by `MADV_POPULATE_WRITE`, and the load begins afterwards.
    Before,
    /// Separate threads bring pages in by `MADV_POPULATE_WRITE`, ahead of the running load.
    Ahead,
}

impl Method {
    fn name(self, prefaulters: usize) -> String {
        match self {
            Method::Nothing => "no prefault".to_owned(),
            Method::Populated => "MAP_POPULATE, then the load".to_owned(),
            Method::Before => "prefault by all, then the load".to_owned(),
            Method::Ahead => format!("prefault ahead of it, {}", figures::plural(prefaulters as u64, "thread")),
        }
    }
}

/// Loads rows into a mapped file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    bytes: usize,
    method: Method,
    loaders: usize,
    prefaulters: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observation {
    /// The time spent on mapping and prefaulting before the load began.
    prefault_seconds: f64,
    load_seconds: f64,
    /// The duration of a second load into the same pages, which are present by then; 0 if the load was not repeated.
    again_seconds: f64,
    /// Page faults of the loaders.
    faults: u64,
    cpu_seconds: f64,
    system_seconds: f64,
}

impl Observation {
    fn whole_seconds(&self) -> f64 {
        self.prefault_seconds + self.load_seconds
    }
}

impl Measurement for Task {
    const NAME: &'static str = "prefault";
    type Result = Observation;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Observation> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        let text = csv();
        let start = Instant::now();
        let mode = if self.method == Method::Populated { Mode::SharedPopulated } else { Mode::Shared };
        let mut map = Map::new(&file, self.bytes, mode)?;
        if self.method == Method::Before {
            let part_bytes = (self.bytes / (self.loaders + self.prefaulters)).next_multiple_of(PAGE_BYTES);
            std::thread::scope(|scope| -> io::Result<()> {
                let parts: Vec<_> =
                    map.chunks_mut(part_bytes).map(|part| scope.spawn(move || map::populate(part))).collect();
                parts.into_iter().try_for_each(|part| part.join().expect("a prefaulting thread panicked"))
            })?;
        }
        let prefault_seconds = start.elapsed().as_secs_f64();
        let before = Counters::now();
        let (load_seconds, faults) = self.load(&mut map, &text, self.method == Method::Ahead)?;
        let counters = Counters::now().since(&before);
        let again_seconds = if self.method == Method::Nothing { self.load(&mut map, &text, false)?.0 } else { 0.0 };
        Ok(Observation {
            prefault_seconds,
            load_seconds,
            again_seconds,
            faults,
            cpu_seconds: counters.cpu_seconds,
            system_seconds: counters.system_seconds,
        })
    }
}

impl Task {
    /// Parses rows and stores them, each loader in its own part of the file. If `is_ahead`, prefaulting threads run
    /// ahead of the loaders. Returns the duration in seconds, and the loaders' page faults.
    fn load(&self, map: &mut Map, text: &[u8], is_ahead: bool) -> io::Result<(f64, u64)> {
        let part_bytes = (self.bytes / self.loaders).next_multiple_of(PAGE_BYTES);
        let address = map.address();
        let is_over = AtomicBool::new(false);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let prefaulters: Vec<_> = (0..if is_ahead { self.prefaulters } else { 0 })
                .map(|index| {
                    let is_over = &is_over;
                    scope.spawn(move || self.run_ahead(address, part_bytes, index, is_over))
                })
                .collect();
            let loaders: Vec<_> =
                map.chunks_mut(part_bytes).map(|part| scope.spawn(move || store_rows(part, text))).collect();
            let mut faults = 0;
            for loader in loaders {
                faults += loader.join().expect("a loader panicked");
            }
            let seconds = start.elapsed().as_secs_f64();
            is_over.store(true, Ordering::Relaxed);
            for prefaulter in prefaulters {
                prefaulter.join().expect("a prefaulting thread panicked")?;
            }
            Ok((seconds, faults))
        })
    }

    /// Prefaults the first step of each loader's part, then the second step of each, and so on. This thread does every
    /// `prefaulters`-th of these steps.
    fn run_ahead(&self, address: usize, part_bytes: usize, index: usize, is_over: &AtomicBool) -> io::Result<()> {
        let steps = part_bytes.div_ceil(STEP_BYTES);
        for trial in (index..steps * self.loaders).step_by(self.prefaulters) {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let (step, loader) = (trial / self.loaders, trial % self.loaders);
            let start = loader * part_bytes + step * STEP_BYTES;
            let end = (start + STEP_BYTES).min((loader + 1) * part_bytes).min(self.bytes);
            if start < end {
                map::populate_at(address + start, end - start)?;
            }
        }
        Ok(())
    }
}

/// Returns lines of CSV: two whole numbers, an amount, a date and two texts.
fn csv() -> Vec<u8> {
    let mut text = String::new();
    for line in 0..4096u64 {
        let (customer, amount) = (line.wrapping_mul(7_919) % 100_000, line.wrapping_mul(104_729) % 1_000_000);
        text += &format!("{line},{customer},{}.{:02},2021-05-{:02},", amount / 100, amount % 100, line % 28 + 1);
        text += "a text of a length that is usual for a column of names or places,and another that is shorter\n";
    }
    text.into_bytes()
}

/// Fills `part` with rows parsed from the lines of `text`, starting over after the last line. Returns the page faults.
fn store_rows(part: &mut [u8], text: &[u8]) -> u64 {
    let faults = counters::thread_faults();
    let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).cycle();
    for place in part.chunks_exact_mut(ROW_BYTES) {
        let mut at = 0;
        for field in lines.next().expect("there are lines").split(|byte| *byte == b',') {
            let bytes = if field[0].is_ascii_digit() {
                let number = field.iter().filter(|byte| byte.is_ascii_digit());
                let number = number.fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0'));
                place[at..at + 8].copy_from_slice(&number.to_le_bytes());
                8
            } else {
                place[at..at + field.len()].copy_from_slice(field);
                field.len()
            };
            at += bytes;
        }
        place[at..].fill(0);
        std::hint::black_box(&place);
    }
    counters::thread_faults() - faults
}

struct Case {
    folder: PathBuf,
    method: Method,
}

/// The bytes of a load: 2 GiB, so that the cost of faults stands out from the noise. A load is smaller if memory is
/// short, or on an emulated processor, on which no verdict is possible.
const BYTES: usize = 2 << 30;

fn bytes(machine: &Machine) -> usize {
    if machine.is_emulated() {
        return 256 << 20;
    }
    let third = machine.memory_bytes as usize / 3;
    if third >= BYTES { BYTES } else { (third >> 26 << 26).max(64 << 20) }
}

/// Returns the number of loaders and the number of prefaulting threads: half of the processors each.
fn threads(machine: &Machine) -> (usize, usize) {
    let prefaulters = (machine.processors / 2).max(1);
    (machine.processors.saturating_sub(prefaulters).max(1), prefaulters)
}

const DRIVE: &str = "the drive's file system";

fn methods(session: &Session<'_>) -> Vec<Method> {
    let mut methods = vec![Method::Nothing, Method::Before, Method::Ahead];
    if !session.settings.quick {
        methods.push(Method::Populated);
    }
    methods
}

/// Creates folders on tmpfs and on persistent memory, if these are mounted and writable.
pub(super) fn memory_folders(bytes: u64) -> Vec<(&'static str, TempFolder)> {
    let mut found = Vec::new();
    let tmpfs = Path::new("/dev/shm");
    let is_tmpfs = machine::is_folder_in_memory(tmpfs).unwrap_or(false);
    let candidates = [is_tmpfs.then(|| ("tmpfs", tmpfs.to_owned())), machine::dax_folder().map(|path| ("DAX", path))];
    for (name, folder) in candidates.into_iter().flatten() {
        if temp_folder::space_bytes(&folder).is_ok_and(|space| space > bytes + bytes / 8)
            && let Ok(temp_folder) = TempFolder::create(&folder)
        {
            found.push((name, temp_folder));
        }
    }
    found
}

/// The approximate duration of a trial in seconds: a load, and the creation and removal of its file.
const TURN_SECONDS: f64 = 3.0;

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let places = if session.settings.quick { 1.0 } else { 2.0 };
    places * Session::rounds_seconds(methods(session).len(), session.pacing.rounds, TURN_SECONDS)
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Prefault.name(),
        "The first touch of mapped pages",
        "Threads parse rows and store them into a new mapped file, like a bulk load on persistent memory: with and \
         without bringing the pages in, before the load or ahead of it. The time of prefaulting counts.",
    )
}

/// The file of the current case. It is created before each trial of the case and removed before the next trial.
#[derive(Default)]
struct CaseFile {
    count: Cell<u64>,
    path: RefCell<Option<PathBuf>>,
}

impl CaseFile {
    /// Removes the file of the previous case and creates a new one in `folder`.
    fn make(&self, folder: &Path, bytes: usize) -> PathBuf {
        self.remove();
        self.count.set(self.count.get() + 1);
        let path = folder.join(format!("prefault-{}", self.count.get()));
        // Ignore an error: if the file is missing, the worker fails and reports why.
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

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    let bytes = bytes(machine);
    let folders = memory_folders(bytes as u64);
    let mut places: Vec<(&str, &Path)> =
        folders.iter().map(|(name, temp_folder)| (*name, temp_folder.path())).collect();
    let is_dax = machine::dax_folder().is_some_and(|folder| session.temp_folder.path().starts_with(folder));
    // First touches cost several times as much on a drive's file system. So with `--quick`, measure a drive's file
    // system only if there is no other place.
    let is_wanted = places.is_empty() || !session.settings.quick;
    if is_wanted
        && !machine.in_memory
        && !is_dax
        && temp_folder::space_bytes(session.temp_folder.path())? > bytes as u64
    {
        places.push((DRIVE, session.temp_folder.path()));
    }
    let (loaders, prefaulters) = threads(machine);
    for (place, folder) in places {
        let cases: Vec<Case> =
            methods(session).into_iter().map(|method| Case { folder: folder.to_owned(), method }).collect();
        let file = CaseFile::default();
        let trials = session.run_rounds(
            &cases,
            session.pacing.rounds,
            TURN_SECONDS,
            |case| format!("prefault: {place}, {}", case.method.name(prefaulters)),
            |case, _| {
                let path = file.make(&case.folder, bytes);
                (Task { path, bytes, method: case.method, loaders, prefaulters }, None)
            },
        );
        file.remove();
        show(chapter, place, bytes, (loaders, prefaulters), &cases, &trials);
        let found = Findings::of(place, bytes, machine, &cases, &trials);
        for (claim, judge) in CLAIMS {
            chapter.judged("S5", format!("On {place}, {claim}"), judge(&found));
        }
    }
    if folders.iter().all(|(name, _)| *name != "DAX") {
        chapter.note(
            "No file system on persistent memory (dax) is mounted here; tmpfs stands in for it, without the medium. \
             scripts/persist-in-guest runs this in an emulated machine that has one.",
        );
    }
    Ok(())
}

fn show(
    chapter: &mut Chapter,
    place: &str,
    bytes: usize,
    (loaders, prefaulters): (usize, usize),
    cases: &[Case],
    trials: &Rounds<Observation>,
) {
    let pages = bytes as f64 / PAGE_BYTES as f64;
    let mut table = Table::new(
        format!(
            "Parsing and storing {} of rows by {}, on {place}",
            figures::size(bytes as u64),
            figures::plural(loaders as u64, "thread")
        ),
        &[
            ("", Form::Text),
            ("the whole", Form::Seconds),
            ("prefault before", Form::Seconds),
            ("load", Form::Seconds),
            ("load again", Form::Seconds),
            ("first touch of a page", Form::Nanos),
            ("loaders' faults", Form::Count),
            ("CPU", Form::Seconds),
            ("kernel's share", Form::Share),
        ],
    );
    for (case, trials) in cases.iter().zip(trials) {
        if let Some(failure) = &trials.failure {
            chapter.note(format!("{place}, {}: {failure}", case.method.name(prefaulters)));
        }
        let Some(whole) = trials.median(Observation::whole_seconds) else { continue };
        let again = trials.median(|seen| seen.again_seconds).filter(|seconds| *seconds > 0.0);
        let load = trials.median(|seen| seen.load_seconds);
        let touch = load.zip(again).map(|(load, again)| {
            // Sum the time over all loaders.
            (load - again).max(0.0) * loaders as f64 * 1e9 / pages
        });
        let ticks = trials.median(|seen| seen.cpu_seconds * 100.0).unwrap_or(0.0);
        let share = trials.median(|seen| seen.system_seconds / seen.cpu_seconds).filter(|_| ticks >= TICKS_MIN);
        let row = table.row(vec![
            case.method.name(prefaulters).into(),
            whole.into(),
            trials.median(|seen| seen.prefault_seconds).into(),
            load.into(),
            again.into(),
            touch.into(),
            trials.median(|seen| seen.faults as f64).into(),
            trials.median(|seen| seen.cpu_seconds).into(),
            share.into(),
        ]);
        if case.method == Method::Ahead {
            row.source("S5: with prefault 1/7 of the time");
        }
    }
    chapter.tables.push(table);
}

/// The figures on which the verdicts for one place rest.
#[derive(Debug)]
struct Findings {
    is_dax: bool,
    is_emulated: bool,
    bytes: usize,
    /// The total time without prefault divided by that with prefaulting threads running ahead.
    ahead: Option<Ratio>,
    /// The total time without prefault divided by that with all pages prefaulted first.
    before: Option<Ratio>,
    /// The share of a load's time that would be saved if all pages had been touched before.
    touches: Option<Spread>,
}

impl Findings {
    fn of(place: &str, bytes: usize, machine: &Machine, cases: &[Case], trials: &Rounds<Observation>) -> Findings {
        let over =
            |method| trials.ratio(0, cases.iter().position(|case| case.method == method)?, Observation::whole_seconds);
        Findings {
            is_dax: place == "DAX",
            is_emulated: machine.is_emulated(),
            bytes,
            ahead: over(Method::Ahead),
            before: over(Method::Before),
            touches: trials[0].spread(|seen| 1.0 - seen.again_seconds / seen.load_seconds),
        }
    }
}

/// A claim about a place, and the function that judges it.
type PlaceClaim = (&'static str, fn(&Findings) -> Judgement);

const CLAIMS: [PlaceClaim; 3] = [
    ("a load with prefault takes 1/7 of the time, that of prefaulting included.", seventh),
    ("first touches take most of a load (87 % of samples).", first_touches),
    ("a prefaulting thread that runs ahead of the loaders shortens the whole.", ahead_shortens),
];

fn seventh(found: &Findings) -> Judgement {
    let Some(best) = [found.ahead, found.before].into_iter().flatten().max_by(|a, b| a.median.total_cmp(&b.median))
    else {
        return nothing();
    };
    let why = format!("Without prefault the whole takes {} as long as with the better of both methods.", best.show());
    match found {
        Findings { is_dax: false, .. } => Judgement::inconclusive("persistent memory that is mapped with DAX", why),
        Findings { is_emulated: true, .. } => Judgement::inconclusive("a processor that is not emulated", why),
        Findings { bytes: ..BYTES, .. } => Judgement::inconclusive("memory for a load of 2 GiB", why),
        _ => best.judge_at_least(Size::of(7.0), why),
    }
}

fn first_touches(found: &Findings) -> Judgement {
    let Some(touches) = found.touches else { return nothing() };
    let why = format!("Into pages that were touched before, a load is shorter by {}.", touches.show(Form::Share, ""));
    match () {
        () if found.is_emulated => Judgement::inconclusive("a processor that is not emulated", why),
        () if touches.least >= 0.5 => Judgement::new(Holds::Yes, why),
        () if touches.most < 0.1 => Judgement::new(Holds::No, why),
        () if touches.most >= 0.5 => {
            Judgement::inconclusive("a quieter machine: the share of the rounds lies on both sides of a half", why)
        }
        () => Judgement::new(Holds::Partly, why),
    }
}

fn ahead_shortens(found: &Findings) -> Judgement {
    let Some(ahead) = found.ahead else { return nothing() };
    let why = format!("Without it the whole takes {} as long.", ahead.show());
    if found.is_emulated {
        return Judgement::inconclusive("a processor that is not emulated", why);
    }
    ahead.judge_at_least(Size::bound(1.1), why)
}

fn nothing() -> Judgement {
    Judgement::inconclusive("figures: the cases did not run", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prefaulted pages do not fault again during the load. All load methods store the same rows.
    #[test]
    fn prefaulted_pages_do_not_fault() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = 8 << 20;
        let load = |method| {
            let path = folder.path().join(format!("{method:?}"));
            let _ = std::fs::remove_file(&path);
            File::create(&path).unwrap().set_len(bytes as u64).unwrap();
            let seen = Task { path: path.clone(), bytes, method, loaders: 2, prefaulters: 1 }.perform(|_| {});
            seen.map(|seen| (seen.faults, std::fs::read(path).unwrap()))
        };
        let (without, rows) = load(Method::Nothing).unwrap();
        assert!(rows.chunks(ROW_BYTES).all(|row| row[32..].starts_with(b"a text of a length")));
        // Kernels before 5.14 do not support this advice.
        if let Ok((mut with, same)) = load(Method::Before) {
            assert!(same == rows && load(Method::Ahead).unwrap().1 == rows);
            // If another process syncs the file system after the prefault, the pages become clean and fault a second
            // time.
            for _ in 0..20 {
                with = with.min(load(Method::Before).unwrap().0);
                if with < without / 2 + 100 {
                    return;
                }
            }
            panic!("{with} faults after prefaulting, {without} without");
        }
    }

    fn ratio(median: f64, least: f64) -> Option<Ratio> {
        Some(Ratio { median, least, most: median * 1.05, noise: 1.02 })
    }

    fn found(ahead: Option<Ratio>, touches: (f64, f64)) -> Findings {
        let touches = Some(Spread { median: touches.0, least: touches.0, most: touches.1 });
        Findings { is_dax: true, is_emulated: false, bytes: BYTES, ahead, before: None, touches }
    }

    /// Each claim can get every verdict.
    #[test]
    fn claims_come_out_each_way() {
        let share = (0.3, 0.3);
        for (ratio, sevenths, shortens) in [
            (ratio(8.0, 7.5), Holds::Yes, Holds::Yes),
            (ratio(2.2, 2.0), Holds::Partly, Holds::Yes),
            (ratio(1.08, 1.05), Holds::NotInSize, Holds::Partly),
            (ratio(0.9, 0.8), Holds::No, Holds::No),
            (ratio(7.0, 0.8), Holds::Inconclusive, Holds::Inconclusive),
        ] {
            assert_eq!(seventh(&found(ratio, share)).holds, sevenths);
            assert_eq!(ahead_shortens(&found(ratio, share)).holds, shortens);
        }
        for (touches, holds) in [
            ((0.8, 0.9), Holds::Yes),
            ((0.2, 0.4), Holds::Partly),
            ((0.0, 0.05), Holds::No),
            ((0.3, 0.6), Holds::Inconclusive),
        ] {
            assert_eq!(first_touches(&found(ratio(2.0, 1.9), touches)).holds, holds);
        }
        let elsewhere = [
            Findings { is_dax: false, ..found(ratio(8.0, 7.5), share) },
            Findings { is_emulated: true, ..found(ratio(8.0, 7.5), share) },
            Findings { bytes: BYTES / 2, ..found(ratio(8.0, 7.5), share) },
        ];
        assert!(elsewhere.iter().all(|found| seventh(found).holds == Holds::Inconclusive));
    }
}
