//! The experiments, one module each: the measurement, its tables and plots, and the verdicts on the sources' claims.
//!
//! Each module has a `Task`, the measurement that a worker makes, and a function `run`, which chooses tasks, runs them
//! in rounds, and fills a chapter of the report.

pub(crate) mod calls;
pub(crate) mod hazards;
pub(crate) mod persist;
mod places;
pub(crate) mod prefault;
pub(crate) mod random;
pub(crate) mod scan;
pub(crate) mod stall;
mod stores;
pub(crate) mod sync;

use std::io;

use crate::machine::Machine;
use crate::regime::Balloon;
use crate::report::Chapter;
use crate::session::Session;
use crate::worker::{Registered, registered};

/// The measurements that workers make.
pub(crate) const MEASUREMENTS: &[Registered] = &[
    registered::<random::Task>(),
    registered::<random::shootdown::Task>(),
    registered::<random::updates::Task>(),
    registered::<scan::Task>(),
    registered::<sync::Task>(),
    registered::<stores::Task>(),
    registered::<calls::pieces::Task>(),
    registered::<calls::cold::Task>(),
    registered::<calls::reserve::Task>(),
    registered::<calls::sharing::Task>(),
    registered::<calls::sharing::Echo>(),
    registered::<stall::Task>(),
    registered::<hazards::early::Task>(),
    registered::<hazards::early::Sync>(),
    registered::<hazards::errors::Task>(),
    registered::<hazards::memory::Task>(),
    registered::<hazards::stray::Task>(),
    registered::<hazards::updates::Task>(),
    registered::<prefault::Task>(),
    registered::<persist::Task>(),
    registered::<Balloon>(),
];

/// An experiment of the lab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Experiment {
    /// Reads of 4 KiB at random offsets of a file larger than memory.
    Random,
    /// Sequential reads of a file larger than memory.
    Scan,
    /// Durable writes by every sync method.
    Sync,
    /// Mapped memory compared with system calls while the file is cached.
    Calls,
    /// Page faults that stall a task scheduler.
    Stall,
    /// Effects of a mapping that a database cannot accept.
    Hazards,
    /// The first touch of mapped pages.
    Prefault,
    /// Stores through a mapping compared with stores through calls.
    Persist,
}

impl Experiment {
    /// All experiments, in the order in which `all` runs them.
    pub const ALL: [Experiment; 8] = [
        Experiment::Random,
        Experiment::Scan,
        Experiment::Sync,
        Experiment::Calls,
        Experiment::Stall,
        Experiment::Hazards,
        Experiment::Prefault,
        Experiment::Persist,
    ];

    /// Returns the name, as users type it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Random => "random",
            Experiment::Scan => "scan",
            Experiment::Sync => "sync",
            Experiment::Calls => "calls",
            Experiment::Stall => "stall",
            Experiment::Hazards => "hazards",
            Experiment::Prefault => "prefault",
            Experiment::Persist => "persist",
        }
    }

    /// Returns `true` if the experiment reads the session's large file.
    pub(crate) fn reads_the_file(self) -> bool {
        matches!(self, Experiment::Random | Experiment::Scan | Experiment::Stall)
    }

    /// Estimates the duration of the experiment.
    pub(crate) fn seconds(self, session: &Session<'_>) -> f64 {
        match self {
            Experiment::Random => random::seconds(session),
            Experiment::Scan => scan::seconds(session),
            Experiment::Sync => sync::seconds(session),
            Experiment::Calls => calls::seconds(session),
            Experiment::Stall => stall::seconds(session),
            Experiment::Hazards => hazards::seconds(session),
            Experiment::Prefault => prefault::seconds(session),
            Experiment::Persist => persist::seconds(session),
        }
    }

    pub(crate) fn chapter(self) -> Chapter {
        match self {
            Experiment::Random => random::chapter(),
            Experiment::Scan => scan::chapter(),
            Experiment::Sync => sync::chapter(),
            Experiment::Calls => calls::chapter(),
            Experiment::Stall => stall::chapter(),
            Experiment::Hazards => hazards::chapter(),
            Experiment::Prefault => prefault::chapter(),
            Experiment::Persist => persist::chapter(),
        }
    }

    pub(crate) fn run(self, session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
        match self {
            Experiment::Random => random::run(session, machine, chapter),
            Experiment::Scan => scan::run(session, machine, chapter),
            Experiment::Sync => sync::run(session, machine, chapter),
            Experiment::Calls => calls::run(session, machine, chapter),
            Experiment::Stall => stall::run(session, chapter),
            Experiment::Hazards => hazards::run(session, chapter),
            Experiment::Prefault => prefault::run(session, machine, chapter),
            Experiment::Persist => persist::run(session, machine, chapter),
        }
    }
}
