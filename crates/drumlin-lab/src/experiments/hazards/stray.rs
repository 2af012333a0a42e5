//! A store through a stray pointer: into a mapping, and into a frame in the program's own memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use drumlin_io::AlignedBuffer;
use serde::{Deserialize, Serialize};

use super::{BEFORE, CHANGED, Endings, end_text, of_counts};
use crate::compare::Claim;
use crate::map::{self, Map, Mode};
use crate::measure::Sample;
use crate::report::{Chapter, Judgement, Table};
use crate::session::Session;
use crate::worker::{Ending, Measurement};

const FILE_BYTES: usize = 64 << 10;
/// The offset of the byte that the stray store changes.
const STRAY: usize = 20_001;

/// The memory that the store hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Place {
    Mapping,
    ReadOnlyMapping,
    Frame,
}

impl Place {
    const ALL: [Place; 3] = [Place::Mapping, Place::ReadOnlyMapping, Place::Frame];
}

/// Makes one stray store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    place: Place,
}

/// The observations of a process that survived to report them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observation {
    /// `true` if read(2) finds the stray byte in the file.
    is_in_file: bool,
}

impl Measurement for Task {
    const NAME: &'static str = "hazards: stray stores";
    type Result = Observation;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Observation> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        match self.place {
            Place::Frame => {
                let mut frame = AlignedBuffer::zeroed(FILE_BYTES);
                file.read_exact_at(&mut frame, 0)?;
                let address = frame.as_ptr().addr() + STRAY;
                map::stray_store(&mut frame, address, CHANGED);
            }
            Place::Mapping | Place::ReadOnlyMapping => {
                let mode = if self.place == Place::Mapping { Mode::Shared } else { Mode::ReadOnly };
                let mut map = Map::new(&file, FILE_BYTES, mode)?;
                let address = map.address() + STRAY;
                map::stray_store(&mut map, address, CHANGED);
            }
        }
        let mut byte = [0];
        file.read_exact_at(&mut byte, STRAY as u64)?;
        Ok(Observation { is_in_file: byte[0] != BEFORE })
    }
}

pub(super) fn show(session: &Session<'_>, chapter: &mut Chapter, table: &mut Table, rounds: u64) -> io::Result<()> {
    session.step("hazards: stray stores", 0.3);
    let mut all = [Endings::default(), Endings::default(), Endings::default()];
    for round in 0..rounds {
        for (place, found) in Place::ALL.into_iter().zip(&mut all) {
            let path = super::filled_file(session, &format!("stray-{place:?}-{round}"), FILE_BYTES as u64)?;
            found.push(session.job(Task { path, place }, None)?.0);
        }
    }
    for (place, found) in Place::ALL.into_iter().zip(&all) {
        let name = match place {
            Place::Mapping => "A stray store into a writable mapping",
            Place::ReadOnlyMapping => "The same into a mapping for reading",
            Place::Frame => "The same into a frame of the program's own",
        };
        let text = match found.endings.first() {
            Some(Ending::Done(Observation { is_in_file: true })) => "no error; the byte is in the file".to_owned(),
            Some(Ending::Done(Observation { is_in_file: false })) => {
                "no error; the file is as it was: a clean frame is not written".to_owned()
            }
            Some(other) => end_text(other),
            None => continue,
        };
        table.row(vec![name.into(), text.into()]);
    }
    CLAIM.put(chapter, &all);
    Ok(())
}

const CLAIM: Claim<[Endings<Observation>; 3]> =
    Claim { source: "S1", text: "A stray pointer into a writable mapping changes the file, and nothing tells.", judge };

/// Judges the rounds of a writable mapping, of a read-only mapping, and of a frame.
fn judge(all: &[Endings<Observation>; 3]) -> Judgement {
    let is_in_file = |ending: &Ending<Observation>| matches!(ending, Ending::Done(seen) if seen.is_in_file);
    let is_killed = |ending: &Ending<Observation>| matches!(ending, Ending::Killed(_));
    let [mapping, read_only, frame] = all;
    let changed = mapping.count(is_in_file);
    let why = format!(
        "In the file, without an error, {changed}; a mapping for reading ended the process {}; from a clean frame it \
         reached the file {}.",
        read_only.count(is_killed),
        frame.count(is_in_file)
    );
    of_counts(&[changed], why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Holds;

    /// A stray store into a mapping changes the file; a stray store into a frame does not.
    #[test]
    fn stray_bytes_reach_the_file_through_a_mapping_only() {
        let folder = tempfile::tempdir().unwrap();
        for (place, expected) in [(Place::Mapping, true), (Place::Frame, false)] {
            let path = folder.path().join(format!("{place:?}"));
            std::fs::write(&path, [BEFORE; FILE_BYTES]).unwrap();
            assert_eq!(Task { path, place }.perform(|_| {}).unwrap().is_in_file, expected, "{place:?}");
        }
    }

    /// The claim can get every verdict.
    #[test]
    fn stray_stores_are_judged() {
        let rounds = |endings| Endings { endings };
        let seen = |is_in_file| Ending::Done(Observation { is_in_file });
        let others = || (rounds(vec![Ending::Killed(libc::SIGSEGV)]), rounds(vec![seen(false)]));
        let judged = |endings| {
            let (read_only, frame) = others();
            judge(&[rounds(endings), read_only, frame]).holds
        };
        assert_eq!(judged(vec![seen(true), seen(true)]), Holds::Yes);
        assert_eq!(judged(vec![seen(false)]), Holds::No);
        assert_eq!(judged(vec![seen(true), Ending::Killed(libc::SIGSEGV)]), Holds::Partly);
        assert_eq!(judged(vec![]), Holds::Inconclusive);
    }
}
