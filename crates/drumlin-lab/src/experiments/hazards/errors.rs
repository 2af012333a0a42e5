//! A drive's errors, as seen by a program that reads and writes through a mapping or by calls.
//!
//! A file on a drive with bad blocks ([`crate::failing_file`]) produces the drive's own error. If another process
//! truncates a file, the error is the same on every file system.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use drumlin_io::AlignedBuffer;
use serde::{Deserialize, Serialize};

use super::{Endings, end_text, of_counts};
use crate::compare::Claim;
use crate::failing_file::{FILL, FailingFile, UNREADABLE, UNWRITABLE};
use crate::map::{Advice, Map, Mode};
use crate::measure::Sample;
use crate::report::{Chapter, Judgement, Table};
use crate::session::{Session, plain};
use crate::temp_folder;
use crate::worker::{Ending, Measurement};

/// The size of the file that is truncated.
const CUT_BYTES: usize = 64 << 10;

/// An access that fails.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Reads a block that the drive can't read.
    Read { path: PathBuf, mapped: bool },
    /// Changes a block that the drive can't write, and syncs twice.
    Write { path: PathBuf, mapped: bool },
    /// Reads beyond the end of a truncated file.
    Cut { path: PathBuf, mapped: bool },
}

/// The errors that the process received, if it survived to report them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Observation {
    /// The error that the access returned.
    access: Option<String>,
    /// The error of the first sync after the access.
    first_sync: Option<String>,
    /// The error of the second sync after the access.
    second_sync: Option<String>,
    /// `true` if the second sync succeeded although the drive still holds the old bytes.
    is_lost: bool,
}

impl Measurement for Task {
    const NAME: &'static str = "hazards: errors";
    type Result = Observation;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Observation> {
        let error = |result: io::Result<()>| result.err().map(|error| plain(&error));
        match self {
            Task::Read { path, mapped } => {
                let file = File::options().read(true).write(true).open(path)?;
                let access = access(&file, UNREADABLE.end, UNREADABLE.start, mapped)?;
                Ok(Observation { access, ..Observation::default() })
            }
            Task::Cut { path, mapped } => {
                let file = File::options().read(true).write(true).open(path)?;
                let map = Map::new(&file, CUT_BYTES, Mode::Shared)?;
                file.set_len(0)?;
                if mapped {
                    // This access kills the process.
                    std::hint::black_box(map[0]);
                    return Ok(Observation::default());
                }
                Ok(Observation { access: error(file.read_exact_at(&mut [0; 4096], 0)), ..Observation::default() })
            }
            Task::Write { path, mapped: true } => {
                let file = File::options().read(true).write(true).open(&path)?;
                let mut map = Map::new(&file, UNWRITABLE.end, Mode::Shared)?;
                map[UNWRITABLE].fill(super::CHANGED);
                let (first_sync, second_sync) = (error(file.sync_all()), error(file.sync_all()));
                let is_lost = second_sync.is_none() && is_unchanged(&path)?;
                Ok(Observation { access: None, first_sync, second_sync, is_lost })
            }
            Task::Write { path, mapped: false } => {
                let file = temp_folder::open_direct(&path, true)?;
                let mut block = AlignedBuffer::zeroed(UNWRITABLE.len());
                block.fill(super::CHANGED);
                let access = error(file.write_all_at(&block, UNWRITABLE.start as u64));
                Ok(Observation { access, first_sync: error(file.sync_all()), ..Observation::default() })
            }
        }
    }
}

/// Returns `true` if the drive still holds the old bytes of the block that it could not write.
fn is_unchanged(path: &Path) -> io::Result<bool> {
    let mut block = AlignedBuffer::zeroed(UNWRITABLE.len());
    temp_folder::open_direct(path, false)?.read_exact_at(&mut block, UNWRITABLE.start as u64)?;
    Ok(block.iter().all(|byte| *byte == FILL))
}

/// Reads a byte of a file of `bytes` at `place`, through a mapping or by a call. Returns the error of a call; a failing
/// access to the mapping kills the process.
fn access(file: &File, bytes: usize, place: usize, mapped: bool) -> io::Result<Option<String>> {
    if !mapped {
        return Ok(file.read_exact_at(&mut [0; 4096], place as u64).err().map(|error| plain(&error)));
    }
    let map = Map::new(file, bytes, Mode::Shared)?;
    map.advise(Advice::Random)?;
    // This access kills the process.
    std::hint::black_box(map[place]);
    Ok(None)
}

pub(super) fn show(session: &Session<'_>, chapter: &mut Chapter, table: &mut Table, rounds: u64) -> io::Result<()> {
    session.step("hazards: errors of a drive", 2.0);
    let failing = FailingFile::mount(&session.temp_folder.path().join("bad-blocks"));
    let (mut read, mut write) = ([Endings::default(), Endings::default()], [Endings::default(), Endings::default()]);
    if let Ok(failing) = &failing {
        for _ in 0..rounds {
            for (index, mapped) in [true, false].into_iter().enumerate() {
                let path = failing.path().to_owned();
                read[index].push(session.job(Task::Read { path: path.clone(), mapped }, None)?.0);
                write[index].push(session.job(Task::Write { path, mapped }, None)?.0);
            }
        }
    }
    let mut cut = [Endings::default(), Endings::default()];
    for round in 0..rounds {
        for (index, mapped) in [true, false].into_iter().enumerate() {
            let name = format!("cut-{round}-{mapped}");
            let path = super::filled_file(session, &name, CUT_BYTES as u64)?;
            cut[index].push(session.job(Task::Cut { path, mapped }, None)?.0);
        }
    }
    for (name, [mapped, called], kind) in [
        ("A block that the drive can't read (FUSE, EIO)", &read, "touched"),
        ("A block that the drive can't write (FUSE, EIO)", &write, "changed"),
        ("A file that was cut short", &cut, "touched"),
    ] {
        let missing = || match &failing {
            Err(error) => format!("not shown: no FUSE file ({})", plain(error)),
            Ok(_) => "not shown".to_owned(),
        };
        let way = if kind == "changed" { "changed by a direct write" } else { "read by a call" };
        table.row(vec![format!("{name}, {kind} through a mapping").into(), words(mapped, missing).into()]);
        table.row(vec![format!("The same, {way}").into(), words(called, missing).into()]);
    }
    READS_KILL.put(chapter, &(read, cut));
    WRITES_FAIL_LATE.put(chapter, &write);
    Ok(())
}

/// Describes how the first round ended, and in how many rounds the end was the same.
fn words(rounds: &Endings<Observation>, missing: impl Fn() -> String) -> String {
    let Some(first) = rounds.endings.first() else { return missing() };
    let text = |ending: &Ending<Observation>| match ending {
        Ending::Done(seen) => seen.words(),
        other => end_text(other),
    };
    let same = rounds.endings.iter().filter(|ending| text(ending) == text(first)).count();
    format!("{} ({same} of {})", text(first), rounds.endings.len())
}

impl Observation {
    fn words(&self) -> String {
        let sync =
            |error: &Option<String>| error.as_ref().map_or("fine".to_owned(), |error| format!("an error ({error})"));
        match (&self.access, &self.first_sync) {
            (Some(error), _) => format!("the call returned an error: {error}"),
            (None, None) => "no error".to_owned(),
            (None, first) => format!(
                "the store was fine, the first sync {}, the second {}{}",
                sync(first),
                sync(&self.second_sync),
                if self.is_lost { ": the change is lost" } else { "" }
            ),
        }
    }
}

/// The rounds of a failing access, first through a mapping and then by a call.
type Pair = [Endings<Observation>; 2];

const NO_FUSE: &str = "a drive that fails: no FUSE file can be served";

const READS_KILL: Claim<(Pair, Pair)> = Claim {
    source: "S1",
    text: "Errors of a drive reach a program that maps its file as SIGBUS, at any access; a call returns them where it \
           is made.",
    judge: reads_kill,
};

/// Judges reads of a bad block and of a truncated file, each through the mapping and by a call.
fn reads_kill((read, cut): &(Pair, Pair)) -> Judgement {
    let is_killed = |ending: &Ending<Observation>| matches!(ending, Ending::Killed(libc::SIGBUS));
    let is_reported = |ending: &Ending<Observation>| matches!(ending, Ending::Done(seen) if seen.access.is_some());
    if read[0].endings.is_empty() {
        let cut = format!(
            "A file cut short: SIGBUS {}, an error by call {}.",
            cut[0].count(is_killed),
            cut[1].count(is_reported)
        );
        return Judgement::inconclusive(NO_FUSE, cut);
    }
    let counts =
        [read[0].count(is_killed), read[1].count(is_reported), cut[0].count(is_killed), cut[1].count(is_reported)];
    let why = format!(
        "Bad block: SIGBUS {}, an error by call {}; file cut short: SIGBUS {}, an error by call {}.",
        counts[0], counts[1], counts[2], counts[3]
    );
    of_counts(&counts, why)
}

/// S1 covers only read errors, so this claim is the lab's own.
const WRITES_FAIL_LATE: Claim<Pair> = Claim {
    source: "Drumlin",
    text: "A store into a mapping can't fail; the error of its write is reported later, once, without a place, by the \
           first sync.",
    judge: writes_fail_late,
};

/// Judges writes to a bad block, through the mapping and by a call.
fn writes_fail_late(write: &Pair) -> Judgement {
    if write[0].endings.is_empty() {
        return Judgement::inconclusive(NO_FUSE, "");
    }
    let is_late = |ending: &Ending<Observation>| match ending {
        Ending::Done(seen) => seen.access.is_none() && seen.first_sync.is_some(),
        _ => false,
    };
    let is_forgotten = |ending: &Ending<Observation>| matches!(ending, Ending::Done(seen) if seen.is_lost);
    let is_reported = |ending: &Ending<Observation>| matches!(ending, Ending::Done(seen) if seen.access.is_some());
    let counts = [write[0].count(is_late), write[1].count(is_reported)];
    let why = format!(
        "Mapped: the store was fine and the sync failed {}; a second sync was fine, the change gone, {}. By a direct \
         write: an error from the write {}.",
        counts[0],
        write[0].count(is_forgotten),
        counts[1]
    );
    of_counts(&counts, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Holds;

    fn rounds(endings: Vec<Ending<Observation>>) -> Endings<Observation> {
        Endings { endings }
    }

    fn done(access: Option<&str>, first_sync: Option<&str>) -> Ending<Observation> {
        let text = |text: Option<&str>| text.map(str::to_owned);
        Ending::Done(Observation {
            access: text(access),
            first_sync: text(first_sync),
            second_sync: None,
            is_lost: true,
        })
    }

    /// The claim about reads can get every verdict.
    #[test]
    fn reads_are_judged() {
        let killed = || rounds(vec![Ending::Killed(libc::SIGBUS)]);
        let reported = || rounds(vec![done(Some("EIO"), None)]);
        let fine = || rounds(vec![done(None, None)]);
        assert_eq!(reads_kill(&([killed(), reported()], [killed(), reported()])).holds, Holds::Yes);
        assert_eq!(reads_kill(&([fine(), fine()], [fine(), fine()])).holds, Holds::No);
        assert_eq!(reads_kill(&([killed(), reported()], [fine(), reported()])).holds, Holds::Partly);
        assert_eq!(reads_kill(&(Pair::default(), [killed(), reported()])).holds, Holds::Inconclusive);
    }

    /// The claim about writes can get every verdict.
    #[test]
    fn writes_are_judged() {
        let late = || rounds(vec![done(None, Some("EIO"))]);
        let reported = || rounds(vec![done(Some("EIO"), None)]);
        assert_eq!(writes_fail_late(&[late(), reported()]).holds, Holds::Yes);
        assert_eq!(writes_fail_late(&[reported(), late()]).holds, Holds::No);
        assert_eq!(writes_fail_late(&[late(), late()]).holds, Holds::Partly);
        assert_eq!(writes_fail_late(&Default::default()).holds, Holds::Inconclusive);
        assert_eq!(WRITES_FAIL_LATE.source, "Drumlin", "S1 has the errors of reads alone");
    }

    /// For a bad block and for a truncated file, a call returns an error, and the process survives. If a change through
    /// a mapping can't be written, only the first sync reports it.
    #[test]
    fn calls_report_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [super::super::BEFORE; CUT_BYTES]).unwrap();
        assert!(Task::Cut { path, mapped: false }.perform(|_| {}).unwrap().access.is_some());
        let Ok(failing) = FailingFile::mount(&folder.path().join("fuse")) else { return };
        let path = failing.path().to_owned();
        for task in
            [Task::Read { path: path.clone(), mapped: false }, Task::Write { path: path.clone(), mapped: false }]
        {
            assert!(task.perform(|_| {}).unwrap().access.is_some());
        }
        let mapped = Task::Write { path, mapped: true }.perform(|_| {}).unwrap();
        assert!(mapped.access.is_none() && mapped.first_sync.is_some() && mapped.is_lost, "{mapped:?}");
    }
}
