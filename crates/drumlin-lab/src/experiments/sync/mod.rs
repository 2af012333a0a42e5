//! `sync`: methods of making a write durable: their cost, and whether they work on this machine (S2).
//!
//! | S2 says | judged by |
//! | --- | --- |
//! | growing the file in advance halves a durable append | the means of both on ext4 with a journal |
//! | sync_file_range is many times faster, because it flushes nothing | the means, and the flushes counted at the device |
//! | with the drive's cache off the advantage diminishes | the means on a device that has no volatile cache |
//! | it keeps records on real zeros and loses them on new blocks in the first run; on btrfs it loses both | power-offs |
//! | a mean hides the slow sync, and so do batches | the slowest write against the mean and the slowest batch |
//!
//! The claims about stores, including those about commits that queue, are in `stores`.

mod claims;
mod method;
mod power_off;
mod tables;
mod task;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use method::Method;
pub(crate) use task::{Task, Written};

use crate::compare::Ratio;
use crate::experiments::places::{self, Cache, Place, Places};
use crate::experiments::{Experiment, stores};
use crate::machine::Machine;
use crate::measure::Timing;
use crate::mount::{DeviceCache, FileSystem};
use crate::report::Chapter;
use crate::session::{Rounds, Session, Trials};

/// One method with one write size.
#[derive(Clone, Copy, Debug)]
struct Case {
    method: Method,
    bytes: usize,
    writers: usize,
}

impl Case {
    /// Returns the cases of these methods at S2's size. With `whole`, some methods also write whole blocks, because
    /// only every fourth append of 1 KiB needs a new block.
    fn singles(methods: &[Method], whole: bool) -> Vec<Case> {
        let case = |bytes| move |method: &Method| Case { method: *method, bytes, writers: 1 };
        let blocks: &[Method] = if whole { &[Method::Append, Method::Truncated, Method::Filled] } else { &[] };
        methods.iter().map(case(1024)).chain(blocks.iter().map(case(4096))).collect()
    }

    /// Returns the cases for the folder's own file system if `made` is `None`, and otherwise for a file system that the
    /// lab creates, with or without a volatile cache. The verdicts about metadata rest on ext4, so `is_quick` leaves
    /// out some cases of the other file systems.
    fn of_place(made: Option<(FileSystem, bool)>, is_quick: bool) -> Vec<Case> {
        match made {
            None => Case::singles(&Method::ALL, true),
            Some((FileSystem::Ext4, true)) => Case::singles(&Method::COMPARED, true),
            Some(_) if is_quick => Case::singles(&Method::COMPARED_QUICK, false),
            Some(_) => Case::singles(&Method::COMPARED, true),
        }
    }
}

/// The writes measured on one file system.
#[derive(Debug)]
struct Measured {
    cases: Vec<Case>,
    rounds: Rounds<Written>,
}

impl Measured {
    fn index(&self, method: Method, bytes: usize) -> Option<usize> {
        self.cases.iter().position(|case| case.method == method && case.bytes == bytes)
    }

    fn of(&self, method: Method, bytes: usize) -> Option<&Trials<Written>> {
        Some(&self.rounds[self.index(method, bytes)?])
    }

    /// Returns the mean duration of a write by the method `left`, divided by that of a write by `right`.
    fn ratio(&self, left: Method, right: Method, bytes: usize) -> Option<Ratio> {
        let mean = |written: &Written| written.load.latency.mean_us;
        self.rounds.ratio(self.index(left, bytes)?, self.index(right, bytes)?, mean)
    }

    /// Returns the device's flushes per write of 1 KiB.
    fn flushes(&self, method: Method) -> Option<f64> {
        let trials = self.of(method, 1024)?;
        trials.median(|written| written.flushes_per_write().unwrap_or(f64::NAN)).filter(|flushes| flushes.is_finite())
    }
}

/// Cases in which more and more writers share a file.
#[derive(Debug)]
struct Writers(Rounds<Written>);

impl Writers {
    const METHODS: [Method; 4] = [Method::Append, Method::Filled, Method::DirectDurable, Method::NoSync];
    const COUNTS: [usize; 3] = [1, 8, 32];

    fn cases() -> Vec<Case> {
        let of = |method| Self::COUNTS.map(|writers| Case { method, bytes: 4096, writers });
        Self::METHODS.into_iter().flat_map(of).collect()
    }

    fn of(&self, method: Method, writers: usize) -> &Trials<Written> {
        let is_it = |case: &Case| case.method == method && case.writers == writers;
        &self.0[Self::cases().iter().position(is_it).expect("one of METHODS and COUNTS")]
    }
}

/// Returns the maximum duration of a trial. A trial ends early after enough writes: all rounds together make at least
/// five thousand.
fn timing(session: &Session<'_>) -> Timing {
    Timing { seconds: session.pacing.slice.seconds * 1.5, sample_seconds: 0.0 }
}

fn writes_max(session: &Session<'_>) -> u64 {
    if session.settings.quick { 1700 } else { 10_000 }
}

/// Estimates the duration of a trial, including its worker and file. Most methods run out of time before they reach
/// their number of writes.
fn turn_seconds(session: &Session<'_>) -> f64 {
    timing(session).seconds * 0.8 + 0.05
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let each = |cases: usize| Session::rounds_seconds(cases, session.pacing.rounds, turn_seconds(session));
    let is_quick = session.settings.quick;
    let made = places::wanted(session);
    let of_made = made.iter().map(|(file_system, cache)| {
        let cases = Case::of_place(Some((*file_system, *cache == DeviceCache::Volatile)), is_quick);
        each(cases.len()) + places::PLACE_SECONDS + power_off::SECONDS
    });
    each(Case::of_place(None, is_quick).len())
        + each(Writers::cases().len())
        + of_made.sum::<f64>()
        + stores::seconds(session) * if made.is_empty() || is_quick { 1.0 } else { 2.0 }
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Sync.name(),
        "Durable writes",
        "Every method of making a write durable, one operation at a time, each timed on its own, on the folder's file \
         system and on others that the lab makes on loop devices. S2 found its own database fast because it never \
         synced; a mean over batches would have hidden that.",
    )
}

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    if machine.in_memory {
        return Err(io::Error::other(format!(
            "refused: {} is {}, where a sync does nothing and nothing can be measured; choose a folder on a drive (--path)",
            machine.folder, machine.file_system
        )));
    }
    let Places { all: places, absent } = Places::open(session, machine);
    let measure_place = |place: &Place| {
        let made = place.made.map(|file_system| (file_system, place.cache == Cache::Volatile));
        let cases = Case::of_place(made, session.settings.quick);
        Measured { rounds: measure(session, place, &cases), cases }
    };
    let measured: Vec<Measured> = places.iter().map(measure_place).collect();
    let writers = Writers(measure(session, &places[0], &Writers::cases()));
    tables::compare(chapter, &places, &measured);
    for (place, measured) in places.iter().zip(&measured) {
        tables::show(chapter, place, measured);
    }
    tables::show_writers(chapter, &places[0], &writers);
    tables::show_durability(chapter, &places[0]);
    for (what, why) in &absent {
        chapter.note(format!("{what} could not be made, and was not measured: {why}."));
    }
    let figures = claims::Figures::of(&places, &measured);
    let committed = measure_stores(session, &places, chapter);
    let left = power_offs(session, places, chapter)?;
    tables::show_left(chapter, &left);
    claims::put(chapter, figures, left);
    stores::conclude(chapter, &committed);
    Ok(())
}

/// Measures the cases on one file system. Each has its own files.
fn measure(session: &Session<'_>, place: &Place, cases: &[Case]) -> Rounds<Written> {
    let timing = timing(session);
    let number = AtomicU64::new(0);
    let path = || {
        let number = number.fetch_add(1, Ordering::Relaxed);
        // The previous case's file is no longer in use.
        let _ = std::fs::remove_file(place.path(&format!("sync-{}", number.wrapping_sub(1))));
        place.path(&format!("sync-{number}"))
    };
    let rounds = session.run_rounds(
        cases,
        session.pacing.rounds,
        turn_seconds(session),
        |case| format!("sync: {}, {} B, {} writers, {}", case.method.name(), case.bytes, case.writers, place.name),
        |case, _| {
            let task = Task::new(path(), case.method, case.bytes, case.writers, timing);
            (task.up_to(writes_max(session)).counting(place.disk.clone()), None)
        },
    );
    let _ = path();
    rounds
}

/// Measures commits for each store on the folder's file system and, if the lab created a file system with a journal, on
/// that file system too. The verdicts rest on the file system with a journal, so with `--quick` only that is measured.
fn measure_stores(session: &Session<'_>, places: &[Place], chapter: &mut Chapter) -> Vec<stores::Measured> {
    let journalled = places.iter().skip(1).find(|place| place.has_journal());
    let is_own_wanted = !session.settings.quick || journalled.is_none();
    let chosen = places.iter().take(usize::from(is_own_wanted)).chain(journalled);
    chosen.map_while(|place| (!session.interrupted()).then(|| stores::run(session, place, chapter))).collect()
}

/// Powers off the file systems that the lab created on devices with a volatile cache.
fn power_offs(session: &Session<'_>, places: Vec<Place>, chapter: &mut Chapter) -> io::Result<Vec<power_off::Left>> {
    let mut left = Vec::new();
    for place in places {
        let Some(file_system) = place.made.filter(|_| place.cache == Cache::Volatile) else { continue };
        if session.interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match power_off::run(session, place) {
            Ok(found) => left.extend(found),
            Err(error) => chapter.note(power_off::failure(file_system, &error)),
        }
    }
    Ok(left)
}
