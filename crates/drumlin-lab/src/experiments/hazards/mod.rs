//! `hazards`: effects of a mapping that a database cannot accept, shown in processes that they may kill (S1, S3).
//!
//! | claim | source | judged by |
//! | --- | --- | --- |
//! | dirty pages are written before their transaction commits (`early`) | S1 | the device, after another process's sync |
//! | a drive's errors arrive as signals (`errors`) | S1 | a FUSE file with bad blocks; a truncated file |
//! | errors of writes are reported late (`errors`) | Drumlin | the same FUSE file |
//! | a stray pointer changes the file (`stray`) | S1 | the file, after a store at a wrong address |
//! | private dirty pages are deadly, shared ones are not (`memory`) | S3 | processes under a memory limit |
//! | a safe update needs one of three protocols (`updates`) | S1 | the file, after a process died during a transaction |
//!
//! Each case is repeated. A claim holds partly if only some of the rounds show its effect.

pub(crate) mod early;
pub(crate) mod errors;
pub(crate) mod memory;
pub(crate) mod stray;
pub(crate) mod updates;

use std::fmt;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::experiments::Experiment;
use crate::figures::Form;
use crate::report::{Chapter, Holds, Judgement, Table};
use crate::session::Session;
use crate::temp_folder;
use crate::worker::{Ending, Outcome};

/// The value of a file's bytes before a change.
const BEFORE: u8 = 0x11;
/// The value of a file's bytes after the change.
const CHANGED: u8 = 0xEE;

/// The way in which the process of a case ended, for each round.
#[derive(Debug)]
struct Endings<T> {
    endings: Vec<Ending<T>>,
}

impl<T> Default for Endings<T> {
    fn default() -> Endings<T> {
        Endings { endings: Vec::new() }
    }
}

impl<T> Endings<T> {
    fn push(&mut self, outcome: Outcome<T>) {
        self.endings.push(outcome.ending);
    }

    fn count(&self, is_seen: impl Fn(&Ending<T>) -> bool) -> Count {
        let seen = self.endings.iter().filter(|ending| is_seen(ending)).count();
        Count { seen, of: self.endings.len() }
    }
}

/// The number of rounds that showed an effect, out of all rounds of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Count {
    seen: usize,
    of: usize,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} times", self.seen, self.of)
    }
}

/// Judges a claim by the rounds that showed its effect: all, some or none. Without any rounds, the judgement is
/// inconclusive.
fn of_counts(counts: &[Count], why: String) -> Judgement {
    if counts.iter().any(|count| count.of == 0) {
        Judgement::inconclusive("rounds that ran", why)
    } else if counts.iter().all(|count| count.seen == count.of) {
        Judgement::new(Holds::Yes, why)
    } else if counts.iter().all(|count| count.seen == 0) {
        Judgement::new(Holds::No, why)
    } else {
        Judgement::new(Holds::Partly, why)
    }
}

/// Describes how a process ended that returned no result.
fn end_text<T>(ending: &Ending<T>) -> String {
    match ending {
        Ending::Done(_) => "survived".to_owned(),
        Ending::Failed(error) => format!("failed: {error}"),
        Ending::Killed(libc::SIGBUS) => "killed by SIGBUS".to_owned(),
        Ending::Killed(libc::SIGSEGV) => "killed by SIGSEGV".to_owned(),
        Ending::Killed(libc::SIGKILL) => "killed by the kernel for lack of memory".to_owned(),
        Ending::Killed(signal) => format!("killed by signal {signal}"),
    }
}

fn rounds(session: &Session<'_>) -> u64 {
    session.pacing.rounds as u64
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let flusher = if session.settings.quick { 0.0 } else { early::FLUSHER_SECONDS };
    4.0 + flusher
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Hazards.name(),
        "What a mapping does behind your back",
        "Each hazard is shown in a process of its own, which may die of it: pages that the kernel writes before their \
         transaction commits, errors that arrive as signals, memory that cannot be given back, and the protocols that \
         make updates safe in spite of it.",
    )
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    let mut table = Table::new("Shown", &[("", Form::Text), ("what happened", Form::Text)]);
    let result = show(session, chapter, &mut table);
    chapter.tables.insert(0, table);
    result
}

fn show(session: &Session<'_>, chapter: &mut Chapter, table: &mut Table) -> io::Result<()> {
    let rounds = rounds(session);
    early::show(session, chapter, table, rounds)?;
    errors::show(session, chapter, table, rounds)?;
    stray::show(session, chapter, table, rounds)?;
    memory::show(session, chapter, table, rounds)?;
    updates::show(session, chapter, rounds)
}

/// Creates a file for a measurement, fills it and syncs it.
fn filled_file(session: &Session<'_>, name: &str, bytes: u64) -> io::Result<PathBuf> {
    let (path, file) = session.temp_folder.file(name, bytes)?;
    let block = vec![BEFORE; 1 << 20];
    let mut offset = 0;
    while offset < bytes {
        let part = (bytes - offset).min(block.len() as u64);
        file.write_all_at(&block[..part as usize], offset)?;
        offset += part;
    }
    file.sync_all()?;
    // Pages that the lab leaves in the page cache would not be charged to the worker's group.
    temp_folder::forget_cached(&file)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If rounds end differently, the claim holds partly. Without any rounds, the judgement is inconclusive.
    #[test]
    fn counts_are_judged() {
        let count = |seen, of| Count { seen, of };
        assert_eq!(of_counts(&[count(3, 3), count(3, 3)], String::new()).holds, Holds::Yes);
        assert_eq!(of_counts(&[count(0, 3), count(0, 3)], String::new()).holds, Holds::No);
        assert_eq!(of_counts(&[count(3, 3), count(2, 3)], String::new()).holds, Holds::Partly);
        assert_eq!(of_counts(&[count(3, 3), count(0, 0)], String::new()).holds, Holds::Inconclusive);
    }
}
