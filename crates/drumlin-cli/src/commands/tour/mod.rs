//! `drumlin tour`: shows the engine's guarantees on real data within two minutes.
//!
//! 1. A child process (`drumlin index`) stores a directory tree, with a memory budget of a tenth of the tree's size,
//!    and is killed midway.
//! 2. This process opens the database that the child left, and compares every file in it with the disk.
//! 3. A second child stores the rest.
//! 4. This process queries the database, and shows how much memory all the processes used.
//!
//! The tour has no more access to the database than any user of the public commands.

mod child;
mod narration;
mod place;
mod proof;
mod questions;
mod report;
mod survey;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use drumlin::{Config, Database, Error};

use self::child::Loading;
use self::narration::Narration;
use self::place::Place;
use self::report::{Device, Finish, Killed, Proof, Recovery, Report};
use self::survey::Survey;
use super::index::{self, Store};
use crate::failure::{Exit, Failure, Result};
use crate::own_files::OwnFiles;
use crate::terminal::Output;
use crate::{interrupt, process};

/// The size of the data divided by the memory budget.
const DATA_TO_BUDGET: u64 = 10;

/// See it work: load a tree, kill the load, recover, compare, query
///
/// The tree is only read. The database is created in the system's temporary directory, or below the current one if that
/// is in memory, and replaces the previous tour's database. It stays there for you to explore.
#[derive(Debug, Default, Args)]
pub(crate) struct Tour {
    /// The directory tree [default: the Rust toolchain's own folder]
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Put the database in this folder
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

impl Tour {
    pub(crate) fn run(&self, output: Output) -> Result<()> {
        interrupt::watch();
        let start = Instant::now();
        let narration = Narration::new(output);
        let root = match &self.path {
            Some(path) => index::absolute(path)?,
            None => survey::toolchain()?,
        };
        let previous = OwnFiles::of(place::previous(self.into.as_deref()));
        previous.check_outside(&root)?;
        let mut survey = Survey::of(&root, &previous, output)?;
        if survey.files == 0 {
            return Err(Failure::not_found(format!("there are no files below {}", root.display()))
                .hint("give a directory that has some: drumlin tour PATH"));
        }
        let place = Place::choose(self.into.as_deref(), survey.bytes)?;
        let (device, budget_bytes) = create(&place.database, survey.bytes / DATA_TO_BUDGET)?;
        if place.lies_in(&root) {
            // The tour's folder was created inside the tree, so repeat the survey without the database.
            survey = Survey::of(&root, &OwnFiles::of([&place.database]), output)?;
        }
        narration.opening(&root, &survey, &place, &device, budget_bytes)?;

        let tour = Steps { root: &root, survey: &survey, place: &place, budget_bytes, narration, output };
        let (killed, acknowledged) = tour.load_and_kill()?;
        let recovery = tour.recover_and_compare(&acknowledged)?;
        drop(acknowledged);
        let finish = tour.finish(recovery.proof.found)?;
        let (answers, data_file_bytes) = tour.ask()?;

        let resident =
            [killed.resident_bytes_max, finish.resident_bytes_max, process::resident_bytes_max()].into_iter().flatten();
        let report = Report {
            path: root.display().to_string(),
            database: place.database.display().to_string(),
            files: survey.files,
            data_bytes: survey.bytes,
            budget_bytes,
            resident_bytes_max: resident.max(),
            data_file_bytes,
            seconds: start.elapsed().as_secs_f64(),
            device,
            left_out: finish.left_out.clone(),
            killed,
            recovery,
            finish,
            answers,
        };
        narration.closing(&report, &place)?;
        if output.json() { output.print_json(&report) } else { Ok(()) }
    }
}

/// Creates the database, with a budget of a tenth of the data's size, or the engine's minimum if that is more. Opening
/// the database also probes the device now, before the tour promises anything.
fn create(database: &Path, budget_bytes: u64) -> Result<(Device, u64)> {
    let (database, budget_bytes) = match Config::new().memory(budget_bytes).open(database) {
        Err(Error::BudgetTooSmall { minimum_bytes, .. }) => {
            (Config::new().memory(minimum_bytes).open(database)?, minimum_bytes)
        }
        opened => (opened?, budget_bytes),
    };
    let stats = database.stats();
    database.close()?;
    let device = Device {
        io_backend: stats.io_backend.to_owned(),
        sync_method: stats.sync_method.to_owned(),
        direct_io: stats.direct_io,
    };
    Ok((device, budget_bytes))
}

/// The four steps of the tour, and the state shared by the steps.
struct Steps<'a> {
    root: &'a Path,
    survey: &'a Survey,
    place: &'a Place,
    budget_bytes: u64,
    narration: Narration,
    output: Output,
}

impl Steps<'_> {
    fn load_and_kill(&self) -> Result<(Killed, child::Acknowledged)> {
        self.narration.begin_load()?;
        let loading = Loading::start(self.root, &self.place.database, self.budget_bytes)?;
        let (killed, acknowledged) = loading.kill_midway(self.survey, self.output)?;
        self.narration.killed(&killed)?;
        Ok((killed, acknowledged))
    }

    fn recover_and_compare(&self, acknowledged: &child::Acknowledged) -> Result<Recovery> {
        self.narration.begin_recovery()?;
        let database = self.open()?;
        let opening = database.opening();
        let mut recovery = Recovery {
            seconds: opening.duration.as_secs_f64(),
            records: opening.recovered_records,
            log_bytes: opening.recovered_bytes,
            proof: Proof::default(),
        };
        self.narration.recovered(&recovery)?;
        let store = Store::open_or_create(&database)?;
        recovery.proof = proof::compare(&store, self.root, acknowledged, self.output)?;
        drop(store);
        database.close()?;
        self.narration.proved(&recovery.proof)?;
        if recovery.proof.is_broken() {
            return Err(Failure::new(Exit::Corrupted, "the database is not what was acknowledged")
                .hint(format!("it stays at {}: please report this", self.place.database.display())));
        }
        Ok(recovery)
    }

    fn finish(&self, files_before: u64) -> Result<Finish> {
        self.narration.begin_finish()?;
        let loading = Loading::start(self.root, &self.place.database, self.budget_bytes)?;
        let finish = loading.finish(self.survey, files_before, self.output)?;
        self.narration.finished(&finish)?;
        Ok(finish)
    }

    fn ask(&self) -> Result<(questions::Answers, u64)> {
        self.narration.begin_questions()?;
        let database = self.open()?;
        let store = Store::open_or_create(&database)?;
        let answers = questions::ask(&store, self.survey)?;
        let data_file_bytes = database.stats().data_file_bytes;
        drop(store);
        database.close()?;
        self.narration.answered(&answers, self.survey)?;
        Ok((answers, data_file_bytes))
    }

    fn open(&self) -> Result<Database> {
        Ok(Config::new().memory(self.budget_bytes).create(false).open(&self.place.database)?)
    }
}
