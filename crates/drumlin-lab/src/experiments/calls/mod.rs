//! `calls`: mapped memory compared with system calls while the page cache holds the whole file (S3).
//!
//! - `pieces`: S3's table, with pieces of 1 byte to 10 KiB, and with new and existing files
//! - `cold`: a file smaller than memory, read cold and then warm
//! - `sharing`: two processes that share a mapping
//! - `reserve`: mappings larger than memory and swap, with and without `MAP_NORESERVE`, and two processes that each
//!   reserve most of memory and swap

pub(crate) mod cold;
pub(crate) mod pieces;
pub(crate) mod reserve;
pub(crate) mod sharing;

use std::io;

use crate::experiments::Experiment;
use crate::machine::Machine;
use crate::report::Chapter;
use crate::session::Session;

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    pieces::seconds(session) + cold::seconds(session) + sharing::seconds(session)
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Calls.name(),
        "Mapped memory against system calls",
        "2 GB, piece by piece; the times are extrapolated from shorter runs. S3's read column is too fast to be true, \
         so slicing, touching and copying are measured apart here, and so are new files and touched pages.",
    )
}

pub(super) fn run(session: &Session<'_>, machine: &Machine, chapter: &mut Chapter) -> io::Result<()> {
    pieces::run(session, chapter)?;
    cold::run(session, chapter)?;
    sharing::run(session, chapter)?;
    reserve::run(session, machine, chapter)?;
    chapter.note(
        "Drumlin reads by calls all the same, because this is the cached case. Beyond memory a mapping faults (random, \
         scan), stalls (stall) and cannot report errors (hazards). Within memory Drumlin's own frames are read with \
         neither calls nor faults.",
    );
    Ok(())
}
