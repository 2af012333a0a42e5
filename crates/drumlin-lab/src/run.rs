//! A run of the lab: a sequence of experiments, each with a chapter of the report.

use std::io;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::experiments::{self, Experiment};
use crate::machine::Machine;
use crate::report::Report;
use crate::session::{Observer, Session, Settings, plain};
use crate::worker;

/// Runs experiments and reports their findings. If an experiment fails, its chapter says so, and the remaining
/// experiments run nevertheless.
///
/// # Errors
/// If the folder is missing or not writable, or its disk is too full.
pub fn run(experiments: &[Experiment], settings: &Settings, observer: &dyn Observer) -> io::Result<Report> {
    let start = Instant::now();
    let machine = Machine::of(&settings.folder)?;
    let started = utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs()));
    let session = Session::begin(settings, &machine, observer)?;
    let estimates: Vec<f64> = experiments.iter().map(|experiment| experiment.seconds(&session)).collect();
    let file_seconds = if experiments.iter().any(|each| each.reads_the_file()) { session.file_seconds() } else { 0.0 };
    session.expect(estimates.iter().sum::<f64>() + file_seconds);
    let mut chapters = Vec::new();
    let mut planned = file_seconds;
    for (experiment, seconds) in experiments.iter().zip(estimates) {
        if session.interrupted() {
            break;
        }
        let mut chapter = experiment.chapter();
        let begun = Instant::now();
        if let Err(error) = experiment.run(&session, &machine, &mut chapter)
            && error.kind() != io::ErrorKind::Interrupted
        {
            chapter.failure = Some(plain(&error));
        }
        if session.interrupted() {
            chapter.failure = Some("interrupted; these are the results so far".to_owned());
        }
        (chapter.seconds, chapter.planned_seconds) = (begun.elapsed().as_secs_f64(), seconds);
        chapters.push(chapter);
        planned += seconds;
        session.reached(planned);
    }
    Ok(Report {
        version: 2,
        command: settings.command.clone(),
        started,
        seconds: start.elapsed().as_secs_f64(),
        interrupted: session.interrupted(),
        quick: settings.quick,
        machine,
        memory_limit: session.memory_text().to_owned(),
        drive_state: session.drive_text(),
        chapters,
    })
}

/// Runs this process as a worker. The program's hidden command calls this function.
///
/// # Errors
/// Only if stdin or stdout fails. Errors of the measurement are sent to the process that started the worker.
pub fn worker_main() -> io::Result<()> {
    worker::serve(experiments::MEASUREMENTS)
}

/// Formats a time like `2026-11-21 13:40:05 UTC`.
fn utc(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let mut year = 1970;
    let mut rest = days;
    let is_leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    while rest >= 365 + u64::from(is_leap(year)) {
        rest -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", rest + 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::mount::FileSystem;

    pub(crate) struct Unwatched;

    impl Observer for Unwatched {
        fn total(&self, _: f64) {}
        fn progress(&self, _: f64, _: f64, _: &str) {}
        fn interrupted(&self) -> bool {
            false
        }
    }

    pub(crate) fn settings(folder: &Path, quick: bool, file_bytes: u64, file_systems: &[FileSystem]) -> Settings {
        Settings {
            folder: folder.to_owned(),
            quick,
            seconds: None,
            memory_bytes: None,
            file_bytes: Some(file_bytes),
            file_systems: file_systems.to_vec(),
            fill_memory: true,
            command: String::new(),
        }
    }

    /// The planned duration of each experiment is within a factor of 1.2 of its duration in the example of docs/lab.
    /// The example had all file systems, and the stores of `--features peers`, without which `sync` is shorter.
    #[test]
    fn plans_are_near_the_times_of_the_example() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::of(folder.path()).unwrap();
        let settings = settings(folder.path(), false, 4 << 30, &FileSystem::ALL);
        let session = Session::begin(&settings, &machine, &Unwatched).unwrap();
        for (experiment, took) in [
            (Experiment::Random, 438.0),
            (Experiment::Scan, 224.0),
            (Experiment::Sync, 401.0),
            (Experiment::Calls, 79.2),
            (Experiment::Stall, 84.3),
            (Experiment::Hazards, 36.6),
            (Experiment::Prefault, 88.2),
            (Experiment::Persist, 29.9),
        ] {
            // The first experiment also creates the file.
            let file = if experiment == Experiment::Random { session.file_seconds() } else { 0.0 };
            let planned = experiment.seconds(&session) + file;
            println!("{}: {planned:.0} s planned, {took:.0} s taken", experiment.name());
            if experiment != Experiment::Sync || cfg!(feature = "peers") {
                assert!((took / 1.2..=took * 1.2).contains(&planned), "{}: {planned} s", experiment.name());
            }
        }
    }

    /// The plan for all experiments together is shorter than six minutes with `--quick`, and shorter than half an hour
    /// without it. The plan depends on memory and on the stores that are built in; `--features peers` adds all stores.
    #[test]
    fn plans_keep_within_their_limits() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::of(folder.path()).unwrap();
        for (quick, file_bytes, limit) in [(true, 1 << 30, 360.0), (false, 4 << 30, 1800.0)] {
            let settings = settings(folder.path(), quick, file_bytes, &FileSystem::ALL);
            let session = Session::begin(&settings, &machine, &Unwatched).unwrap();
            let each = Experiment::ALL.map(|experiment| (experiment.name(), experiment.seconds(&session)));
            let planned = session.file_seconds() + each.iter().map(|(_, seconds)| seconds).sum::<f64>();
            println!("quick {quick}: {planned:.0} s, {each:.0?}");
            assert!(planned < limit, "{planned} s: {each:?}");
        }
    }

    /// Dates are correct around leap days and ends of years.
    #[test]
    fn dates_are_right() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_735_689_599), "2024-12-31 23:59:59 UTC");
        assert_eq!(utc(1_795_267_805), "2026-11-21 13:30:05 UTC");
    }
}
