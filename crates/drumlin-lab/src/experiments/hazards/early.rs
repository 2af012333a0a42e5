//! Dirty pages that reach the device although the process that changed them has not asked for it yet.
//!
//! Here a sync by another process causes the write: any program may sync a file system. The kernel also writes dirty
//! pages on its own after half a minute.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use drumlin_io::AlignedBuffer;
use serde::{Deserialize, Serialize};

use super::{CHANGED, Endings, end_text, of_counts};
use crate::compare::Claim;
use crate::figures;
use crate::machine;
use crate::map::{Map, Mode};
use crate::measure::Sample;
use crate::report::{Chapter, Judgement, Table};
use crate::session::{Session, plain};
use crate::temp_folder;
use crate::worker::{self, Ending, Measurement};

/// The number of bytes that are changed and locked in memory, below the usual limits on locked memory.
const DIRTY_BYTES: usize = 64 << 10;

/// The expected time until the kernel writes a dirty page. Every 5 seconds, the kernel looks for pages that have been
/// dirty for 30 seconds.
pub(super) const FLUSHER_SECONDS: f64 = 32.5;

/// The time limit for the kernel to write the page. After it, the lab concludes that the kernel does not write the
/// page.
const FLUSHER_SECONDS_MAX: f64 = 45.0;

/// The memory that holds the changed page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Place {
    /// A shared mapping, locked in memory.
    Mapping,
    /// A frame in the program's own memory, as in a buffer pool.
    Frame,
}

/// The event that causes dirty pages to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Cause {
    /// A sync by another process.
    OtherProcess,
    /// The kernel's limit on the age of dirty pages.
    Kernel,
}

/// Changes 64 KiB without syncing them, and reads the device after the cause has acted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    place: Place,
    cause: Cause,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observation {
    dirty_bytes_before: u64,
    is_locked: bool,
    /// The device holds the change.
    is_written: bool,
    seconds: f64,
}

impl Measurement for Task {
    const NAME: &'static str = "hazards: early writes";
    type Result = Observation;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Observation> {
        self.look(|folder| {
            let outcome = worker::run(Sync { folder: folder.to_owned() }, None, &|| false)?;
            outcome.result()
        })
    }
}

/// Syncs the file system of a folder. Runs in the other process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sync {
    folder: PathBuf,
}

impl Measurement for Sync {
    const NAME: &'static str = "hazards: sync";
    type Result = ();

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<()> {
        sync_folder(&self.folder)
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(folder)?)?)
}

impl Task {
    /// Changes the bytes and looks for them on the device. `sync` makes another process sync the file system of a
    /// folder.
    fn look(self, sync: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<Observation> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        if machine::is_folder_in_memory(folder)? {
            return Err(io::Error::other("a file system in memory has no device to look at"));
        }
        let file = File::options().read(true).write(true).open(&self.path)?;
        if self.place == Place::Frame {
            let mut frame = AlignedBuffer::zeroed(DIRTY_BYTES);
            temp_folder::open_direct(&self.path, false)?.read_exact_at(&mut frame, 0)?;
            frame.fill(CHANGED);
            let start = Instant::now();
            sync(folder)?;
            let seconds = start.elapsed().as_secs_f64();
            std::hint::black_box(&frame);
            let is_written = is_on_device(&self.path)?;
            return Ok(Observation { dirty_bytes_before: DIRTY_BYTES as u64, is_locked: false, is_written, seconds });
        }
        let mut map = Map::new(&file, DIRTY_BYTES, Mode::Shared)?;
        let is_locked = map.lock().is_ok();
        map.fill(CHANGED);
        let address = map.address();
        let dirty_bytes_before = dirty_bytes(address)?;
        let start = Instant::now();
        if self.cause == Cause::OtherProcess {
            sync(folder)?;
        }
        let limit = if self.cause == Cause::Kernel { FLUSHER_SECONDS_MAX } else { 5.0 };
        worker::wait_until(Duration::from_secs_f64(limit), || dirty_bytes(address).is_ok_and(|bytes| bytes == 0));
        let seconds = start.elapsed().as_secs_f64();
        // A direct read would first write back dirty pages. So it shows what was on the device only if the pages are
        // clean.
        let is_written = dirty_bytes(address)? == 0 && is_on_device(&self.path)?;
        Ok(Observation { dirty_bytes_before, is_locked, is_written, seconds })
    }
}

fn is_on_device(path: &Path) -> io::Result<bool> {
    let mut block = AlignedBuffer::zeroed(DIRTY_BYTES);
    temp_folder::open_direct(path, false)?.read_exact_at(&mut block, 0)?;
    Ok(block.iter().all(|byte| *byte == CHANGED))
}

/// Returns the dirty bytes of the mapping at this address.
fn dirty_bytes(address: usize) -> io::Result<u64> {
    let smaps = fs::read_to_string("/proc/self/smaps")?;
    let start = format!("{address:x}-");
    let of_map: String =
        smaps.lines().skip_while(|line| !line.starts_with(&start)).take(30).collect::<Vec<_>>().join("\n");
    let sum = ["Shared_Dirty:", "Private_Dirty:"].into_iter().map(|name| crate::counters::field(&of_map, name));
    Ok(sum.sum::<u64>() * 1024)
}

pub(super) fn show(session: &Session<'_>, chapter: &mut Chapter, table: &mut Table, rounds: u64) -> io::Result<()> {
    let mut all = Vec::new();
    for (place, cause, rounds) in [
        (Place::Mapping, Cause::OtherProcess, rounds),
        (Place::Frame, Cause::OtherProcess, rounds),
        // The kernel writes only after half a minute, so run a single round.
        (Place::Mapping, Cause::Kernel, u64::from(!session.settings.quick)),
    ] {
        let seconds = if cause == Cause::Kernel { FLUSHER_SECONDS } else { 0.3 } * rounds as f64;
        session.step("hazards: dirty pages written early", seconds);
        let mut found = Endings::default();
        for round in 0..rounds {
            let name = format!("early-{place:?}-{cause:?}-{round}");
            let path = super::filled_file(session, &name, DIRTY_BYTES as u64)?;
            found.push(session.job(Task { path, place, cause }, None)?.0);
        }
        if let Some(text) = words(&found) {
            let what = match (place, cause) {
                (Place::Mapping, Cause::OtherProcess) => "A transaction's dirty pages, synced by another process",
                (Place::Mapping, Cause::Kernel) => "The same, synced by nobody: the kernel by itself",
                (Place::Frame, _) => "The same change in a frame of the program's own",
            };
            table.row(vec![what.into(), text.into()]);
        }
        all.push(found);
    }
    if session.settings.quick {
        chapter.note("Without --quick the lab also waits until the kernel writes the page without any sync.");
    }
    let frame = all.swap_remove(1);
    CLAIM.put(chapter, &(all.swap_remove(0), frame));
    Ok(())
}

/// Describes the result of the first round.
fn words(rounds: &Endings<Observation>) -> Option<String> {
    let first = rounds.endings.first()?;
    let Ending::Done(seen) = first else { return Some(end_text(first)) };
    let locked = if seen.is_locked { ", locked in memory (mlock)" } else { "" };
    let time = figures::micros(seen.seconds * 1e6);
    let end = if seen.is_written { format!("on the device {time} later") } else { "not on the device".to_owned() };
    Some(format!("{} changed{locked}, not committed: {end}", figures::size(seen.dirty_bytes_before)))
}

const CLAIM: Claim<(Endings<Observation>, Endings<Observation>)> = Claim {
    source: "S1",
    text: "The kernel may write a dirty mapped page before its transaction commits; mlock does not prevent it.",
    judge,
};

/// Judges the rounds of the mapping. The control is a frame in the program's own memory: if its change reached the
/// device too, the mapping was not the cause.
fn judge((mapping, frame): &(Endings<Observation>, Endings<Observation>)) -> Judgement {
    let is_told = |ending: &Ending<Observation>| matches!(ending, Ending::Done(seen) if seen.dirty_bytes_before > 0);
    let is_locked = |ending: &Ending<Observation>| matches!(ending, Ending::Done(seen) if seen.is_locked);
    let is_written = |ending: &Ending<Observation>| matches!(ending, Ending::Done(seen) if seen.is_written);
    if let Some(Ending::Failed(error)) = mapping.endings.first() {
        return Judgement::inconclusive(format!("rounds that ran ({})", plain(error)), "");
    }
    if mapping.count(is_told).seen == 0 {
        return Judgement::inconclusive("a kernel that shows which pages of a mapping are dirty", "");
    }
    if frame.count(is_written).seen > 0 {
        return Judgement::inconclusive(
            "a control that differs: a frame of the program's own reached the device too",
            "",
        );
    }
    let written = mapping.count(is_written);
    let why = format!(
        "After another process's sync on the device {written}, uncommitted; locked by mlock {}; a frame of the \
         program's own {}.",
        mapping.count(is_locked),
        frame.count(is_written)
    );
    of_counts(&[written], why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::hazards::BEFORE;
    use crate::report::Holds;

    fn seen(dirty_bytes_before: u64, is_written: bool) -> Ending<Observation> {
        Ending::Done(Observation { dirty_bytes_before, is_locked: true, is_written, seconds: 0.001 })
    }

    fn rounds(endings: Vec<Ending<Observation>>) -> Endings<Observation> {
        Endings { endings }
    }

    /// The claim can get every verdict.
    #[test]
    fn early_writes_are_judged() {
        let judged = |mapping, frame| judge(&(rounds(mapping), rounds(vec![seen(1, frame)]))).holds;
        assert_eq!(judged(vec![seen(1, true), seen(1, true)], false), Holds::Yes);
        assert_eq!(judged(vec![seen(1, true), seen(1, false)], false), Holds::Partly);
        assert_eq!(judged(vec![seen(1, false)], false), Holds::No);
        assert_eq!(judged(vec![seen(0, true)], false), Holds::Inconclusive);
        assert_eq!(judged(vec![seen(1, true)], true), Holds::Inconclusive);
        assert_eq!(judged(vec![Ending::Failed(io::Error::other("no device"))], false), Holds::Inconclusive);
    }

    /// A page that was changed and not synced is dirty. A sync of the file system makes it clean and writes its change
    /// to the device. A change in a frame does not reach the device.
    #[test]
    fn dirty_pages_are_seen_and_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (place, expected) in [(Place::Frame, false), (Place::Mapping, true)] {
            fs::write(&path, []).unwrap();
            if machine::is_folder_in_memory(folder.path()).unwrap() {
                let task = Task { path, place, cause: Cause::OtherProcess };
                assert!(task.look(sync_folder).is_err(), "there is no device");
                return;
            }
            if temp_folder::open_direct(&path, false).is_err() {
                return; // Without direct reads the device can't be checked.
            }
            let task = Task { path: path.clone(), place, cause: Cause::OtherProcess };
            // Another process may sync the file system between the change and the check.
            let is_dirty = (0..20).any(|_| {
                fs::write(&path, [BEFORE; DIRTY_BYTES]).unwrap();
                let seen = task.clone().look(sync_folder).unwrap();
                assert_eq!(seen.is_written, expected, "{place:?}: {seen:?}");
                seen.dirty_bytes_before == DIRTY_BYTES as u64
            });
            assert!(is_dirty, "{place:?}: the change was never seen dirty");
        }
    }
}
