//! Counts, for each method, how many of the records that it considered durable survive a power cut.
//!
//! Right after the last record was written, the device's content is copied and mounted elsewhere. Bytes that were only
//! in the page cache are lost, and bytes that reached the device are kept. The same happens when a virtual machine is
//! powered off, which is how S2 tested. A drive with a volatile cache may lose more.
//!
//! S2 repeated its test over the same file, and lost records in the first runs only. The lab repeats it too: see
//! [`Run`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use drumlin_io::AlignedBuffer;

use super::method::Method;
use super::task::Target;
use crate::experiments::places::Place;
use crate::mount::FileSystem;
use crate::session::{Session, plain};

/// The approximate duration of the test of one file system.
pub(super) const SECONDS: f64 = 2.0;

const RECORDS: u64 = if cfg!(test) { 20 } else { 200 };
const RECORD_BYTES: usize = 4096;

/// The methods in the order in which they write. Methods with a sync come first, because their sync would otherwise
/// make the metadata of the other files durable too.
pub(super) const METHODS: [Method; 8] = [
    Method::Append,
    Method::Truncated,
    Method::Filled,
    Method::DirectDurable,
    Method::FilledRange,
    Method::NoSync,
    Method::TruncatedRange,
    Method::Buffered,
];

/// A run over the files. It writes records to the same places as the earlier runs, and ends with a power-off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Run {
    /// A run over new files.
    First,
    /// A run over the files left by the first power-off.
    Second,
    /// A run over the same files, after the file system has written back the metadata of the records in these places. A
    /// file system usually does so every few seconds, but the lab mounts its file systems with a longer interval.
    Settled,
}

impl Run {
    pub(super) const ALL: [Run; 3] = [Run::First, Run::Second, Run::Settled];

    pub(super) fn name(self) -> &'static str {
        match self {
            Run::First => "first run",
            Run::Second => "second run, same blocks",
            Run::Settled => "third, metadata written between",
        }
    }
}

/// The shares of records that remained on a file system.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Left {
    pub(super) file_system: FileSystem,
    /// For each of [`Run::ALL`] and each of [`METHODS`], the share of the records that remained.
    pub(super) shares: [Vec<f64>; 3],
}

impl Left {
    pub(super) fn share(&self, run: Run, method: Method) -> f64 {
        METHODS.iter().position(|each| *each == method).map_or(f64::NAN, |index| self.shares[run as usize][index])
    }

    /// Returns `true` if the run itself is valid: all synced records remained, and some of the records that were never
    /// synced were lost.
    pub(super) fn is_sound(&self, run: Run) -> bool {
        let synced = [Method::Append, Method::Truncated, Method::Filled, Method::DirectDurable];
        synced.iter().all(|method| self.share(run, *method) == 1.0) && self.share(run, Method::Buffered) < 1.0
    }
}

/// Writes records with each method, powers the file system off, and counts the records that remain. Makes three runs
/// over the same files.
pub(super) fn run(session: &Session<'_>, place: Place) -> io::Result<Option<Left>> {
    let Some(file_system) = place.made else { return Ok(None) };
    let place_name = place.name.clone();
    let Some(mut mounted) = place.into_mounted() else { return Ok(None) };
    let mut shares = [const { Vec::new() }; 3];
    for run in Run::ALL {
        session
            .step(&format!("sync: the power fails on {place_name}, {}", run.name()), SECONDS / Run::ALL.len() as f64);
        if run == Run::Settled {
            write(mounted.folder(), run, SETTLING)?;
            rustix::fs::syncfs(File::open(mounted.folder())?)?;
        }
        write(mounted.folder(), run, run as u64)?;
        mounted = mounted.power_off(&session.temp_folder)?;
        shares[run as usize] =
            (0..METHODS.len()).map(|index| share_left(&mounted.folder().join(name(index)), run as u64)).collect();
    }
    Ok(Some(Left { file_system, shares }))
}

/// The generation of the records written before those of [`Run::Settled`].
const SETTLING: u64 = 10;

/// Writes the records of a run with each method.
fn write(folder: &Path, run: Run, generation: u64) -> io::Result<()> {
    let open = |(index, method): (usize, &Method)| {
        let path = folder.join(name(index));
        match run {
            Run::First => Target::create(&path, *method),
            _ => Target::reopen(&path, *method),
        }
    };
    let targets: Vec<Target> = METHODS.iter().enumerate().map(open).collect::<io::Result<_>>()?;
    // Make the files themselves durable first, because only the writes to them are tested.
    rustix::fs::syncfs(File::open(folder)?)?;
    for target in &targets {
        let mut ring = target.ring()?;
        for number in 0..RECORDS {
            target.write(&record(generation, number), number * RECORD_BYTES as u64, ring.as_mut())?;
        }
    }
    Ok(())
}

/// Returns a note with the reason why a file system was not tested.
pub(super) fn failure(file_system: FileSystem, error: &io::Error) -> String {
    format!("The power-off of {} could not be tested: {}.", file_system.name(), plain(error))
}

fn name(index: usize) -> String {
    format!("power-{index}")
}

/// Returns a record that differs in every sector from zeros and from every other record of any generation.
fn record(generation: u64, number: u64) -> AlignedBuffer {
    let mut record = AlignedBuffer::zeroed(RECORD_BYTES);
    for word in record.chunks_exact_mut(8) {
        word.copy_from_slice(&(generation * RECORDS + number + 1).to_le_bytes());
    }
    record
}

/// Returns the share of a generation's records that a file holds, or 0 if the file does not exist.
fn share_left(path: &Path, generation: u64) -> f64 {
    let Ok(file) = File::open(path) else { return 0.0 };
    let mut buffer = vec![0; RECORD_BYTES];
    let is_left = |number: &u64| {
        file.read_exact_at(&mut buffer, number * RECORD_BYTES as u64).is_ok()
            && buffer == record(generation, *number)[..]
    };
    (0..RECORDS).filter(is_left).count() as f64 / RECORDS as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::places::{Cache, Places};
    use crate::machine::Machine;
    use crate::run::tests::{Unwatched, settings};

    /// On each file system that can be created here, each run loses records that were never synced and keeps synced
    /// ones. On file systems that overwrite in place, records on blocks of real zeros remain too.
    #[test]
    fn each_run_ends_with_the_power() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::of(folder.path()).unwrap();
        let settings = settings(folder.path(), true, 1 << 20, &FileSystem::ALL);
        let session = Session::begin(&settings, &machine, &Unwatched).unwrap();
        for place in Places::open(&session, &machine).all {
            if place.cache != Cache::Volatile {
                continue;
            }
            let Some(left) = run(&session, place).unwrap() else { continue }; // The folder's own file system stays on.
            for run in Run::ALL {
                assert!(left.is_sound(run), "{run:?}: {left:?}");
                let kept = left.share(run, Method::FilledRange) == 1.0;
                assert_eq!(kept, left.file_system != FileSystem::Btrfs, "{run:?}: {left:?}");
            }
        }
    }
}
