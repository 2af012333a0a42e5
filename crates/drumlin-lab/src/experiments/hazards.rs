//! `hazards`: effects of a mapping that a database cannot accept, shown in processes that may die of them (S1, S3).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use drumlin::internals::io::AlignedBuffer;
use serde::{Deserialize, Serialize};

use crate::experiments::Experiment;
use crate::figures::{self, Form};
use crate::map::{Map, Mode};
use crate::measure::Sample;
use crate::report::{Cell, Chapter, Holds, Table};
use crate::session::Session;
use crate::temp_folder;
use crate::worker::{self, Ending, Measurement, Outcome};

/// Bytes that are changed and locked in memory: within every limit of locked memory.
const DIRTY_BYTES: usize = 64 << 10;
/// The file's bytes before the change, and after it.
const BEFORE: u8 = 0x11;
const CHANGED: u8 = 0xEE;

/// The kernel writes pages that have been dirty for 30 seconds, and looks for them every 5.
const FLUSHER_SECONDS: f64 = 45.0;

/// The bytes that are dirtied against the memory limit.
const DIRT_LIMIT_BYTES: u64 = 64 << 20;
const DIRT_BYTES: usize = 256 << 20;

/// One hazard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Changes locked pages of a mapping and checks if they reach the device before the process asks for it.
    EarlyWrite { path: PathBuf, by_itself: bool },
    /// Touches a mapping of a file that was cut short.
    CutMapped { path: PathBuf },
    /// Reads a file that was cut short.
    CutRead { path: PathBuf },
    /// Changes more pages than the memory limit allows.
    Dirt { path: PathBuf, private: bool },
    /// The same by direct writes from a small buffer.
    DirtByWrites { path: PathBuf },
}

/// The observations, if the process lived to report them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    text: String,
    dirty_bytes_before: u64,
    is_locked: bool,
    /// The device holds the change.
    is_written: bool,
    seconds: f64,
}

impl Measurement for Task {
    const NAME: &'static str = "hazards";
    type Result = Seen;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Seen> {
        match self {
            Task::EarlyWrite { path, by_itself } => early_write(&path, by_itself),
            Task::CutMapped { path } => {
                let file = File::options().read(true).write(true).open(path)?;
                let map = Map::new(&file, DIRTY_BYTES, Mode::Shared)?;
                file.set_len(0)?;
                // Ends the process.
                let byte = std::hint::black_box(map[0]);
                Ok(Seen { text: format!("read {byte}"), ..Seen::default() })
            }
            Task::CutRead { path } => {
                let file = File::options().read(true).write(true).open(path)?;
                file.set_len(0)?;
                let text = match file.read_exact_at(&mut [0; 4096], 0) {
                    Ok(()) => "read bytes that are not there".to_owned(),
                    Err(error) => format!("an error: {error}"),
                };
                Ok(Seen { text, ..Seen::default() })
            }
            Task::Dirt { path, private } => {
                let file = File::options().read(true).write(true).open(path)?;
                let mode = if private { Mode::Private } else { Mode::Shared };
                let mut map = Map::new(&file, DIRT_BYTES, mode)?;
                for page in map.chunks_mut(4096) {
                    page[0] = CHANGED;
                }
                Ok(Seen { text: "survived".to_owned(), ..Seen::default() })
            }
            Task::DirtByWrites { path } => {
                let file = temp_folder::open_direct(&path, true)?;
                let mut buffer = AlignedBuffer::zeroed(1 << 20);
                buffer.fill(CHANGED);
                for offset in (0..DIRT_BYTES as u64).step_by(buffer.len()) {
                    file.write_all_at(&buffer, offset)?;
                }
                Ok(Seen { text: "survived".to_owned(), ..Seen::default() })
            }
        }
    }
}

fn early_write(path: &Path, by_itself: bool) -> io::Result<Seen> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut map = Map::new(&file, DIRTY_BYTES, Mode::Shared)?;
    let is_locked = map.lock().is_ok();
    map.fill(CHANGED);
    let address = map.address();
    let dirty_bytes_before = dirty_bytes(address)?;
    let start = Instant::now();
    if !by_itself {
        // Any program may sync a file system: this process has not asked for its pages to be written.
        rustix::fs::syncfs(File::open(path.parent().unwrap_or(Path::new("/")))?)?;
    }
    let limit = if by_itself { FLUSHER_SECONDS } else { 5.0 };
    worker::wait_until(Duration::from_secs_f64(limit), || dirty_bytes(address).is_ok_and(|bytes| bytes == 0));
    let seconds = start.elapsed().as_secs_f64();
    let left = dirty_bytes(address)?;
    let mut is_written = false;
    // A direct read would first write dirty pages: only once they are clean does it show what the device held.
    if left == 0 {
        let direct = temp_folder::open_direct(path, false)?;
        let mut block = AlignedBuffer::zeroed(DIRTY_BYTES);
        direct.read_exact_at(&mut block, 0)?;
        is_written = block.iter().all(|byte| *byte == CHANGED);
    }
    Ok(Seen { text: String::new(), dirty_bytes_before, is_locked, is_written, seconds })
}

/// Bytes of the mapping at this address that are waiting to be written.
fn dirty_bytes(address: usize) -> io::Result<u64> {
    let smaps = fs::read_to_string("/proc/self/smaps")?;
    let start = format!("{address:x}-");
    let of_map: String =
        smaps.lines().skip_while(|line| !line.starts_with(&start)).take(30).collect::<Vec<_>>().join("\n");
    let sum = ["Shared_Dirty:", "Private_Dirty:"].into_iter().map(|name| crate::counters::field(&of_map, name));
    Ok(sum.sum::<u64>() * 1024)
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    let flusher = if session.settings.quick { 0.0 } else { FLUSHER_SECONDS };
    6.0 + flusher
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Hazards.name(),
        "What a mapping does behind your back",
        "Each hazard is shown in a process of its own, which may die of it: pages that the kernel writes before their \
         transaction commits, errors that arrive as signals, memory that cannot be given back.",
    )
}

/// The end of a process, in words.
fn told(outcome: &Outcome<Seen>) -> String {
    match &outcome.ending {
        Ending::Done(seen) => seen.text.clone(),
        Ending::Failed(error) => format!("failed: {error}"),
        Ending::Killed(libc::SIGBUS) => "killed by SIGBUS".to_owned(),
        Ending::Killed(libc::SIGKILL) => "killed by the kernel for lack of memory".to_owned(),
        Ending::Killed(signal) => format!("killed by signal {signal}"),
    }
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    let mut table = Table::new("Shown", &[("", Form::Text), ("what happened", Form::Text)]);
    let result = show(session, chapter, &mut table);
    chapter.tables.insert(0, table);
    result
}

fn show(session: &Session<'_>, chapter: &mut Chapter, table: &mut Table) -> io::Result<()> {
    for by_itself in [false, true] {
        show_early_write(session, chapter, table, by_itself)?;
    }
    show_cut_file(session, chapter, table)?;
    show_dirt(session, chapter, table)
}

/// Creates a file for the lab, filled and synced.
fn filled_file(session: &Session<'_>, name: &str, bytes: u64) -> io::Result<PathBuf> {
    let (path, file) = session.room.file(name, bytes)?;
    let block = vec![BEFORE; 1 << 20];
    let mut offset = 0;
    while offset < bytes {
        let part = (bytes - offset).min(block.len() as u64);
        file.write_all_at(&block[..part as usize], offset)?;
        offset += part;
    }
    file.sync_all()?;
    // Pages that the lab has cached would not count against a worker's limit.
    temp_folder::forget_cached(&file)?;
    Ok(path)
}

/// Dirty mapped pages reach the device before their transaction commits.
fn show_early_write(
    session: &Session<'_>,
    chapter: &mut Chapter,
    table: &mut Table,
    by_itself: bool,
) -> io::Result<()> {
    if by_itself && session.settings.quick {
        chapter.note("Without --quick the lab also waits until the kernel writes the page without any sync.");
        return Ok(());
    }
    let cause = if by_itself { "the kernel by itself" } else { "another program's sync" };
    session.step(&format!("hazards: a page written by {cause}"), if by_itself { FLUSHER_SECONDS } else { 1.0 });
    let path = filled_file(session, &format!("early-{by_itself}"), DIRTY_BYTES as u64)?;
    let (outcome, _) = session.job(Task::EarlyWrite { path, by_itself }, None)?;
    let Ending::Done(seen) = &outcome.ending else {
        table.row(vec![format!("Dirty pages, written by {cause}").into(), told(&outcome).into()]);
        return Ok(());
    };
    let locked = if seen.is_locked { "locked in memory (mlock)" } else { "not locked (mlock was refused)" };
    let end = if seen.is_written {
        format!("on the device {} later, uncommitted", figures::micros(seen.seconds * 1e6))
    } else {
        format!("not on the device within {}", figures::micros(seen.seconds * 1e6))
    };
    table.row(vec![
        format!("A transaction's dirty pages, written by {cause}").into(),
        format!("{} changed, {locked}, never synced: {end}", figures::size(seen.dirty_bytes_before)).into(),
    ]);
    chapter.verdict(
        "S1",
        "The kernel may write a dirty mapped page before its transaction commits; mlock does not prevent it.",
        if seen.dirty_bytes_before == 0 { Holds::Unknown } else { Holds::of(seen.is_written) },
        format!("By {cause}: {end}."),
    );
    Ok(())
}

/// A file that is cut short kills a program that has mapped it, and is an error for one that reads it by calls.
fn show_cut_file(session: &Session<'_>, chapter: &mut Chapter, table: &mut Table) -> io::Result<()> {
    session.step("hazards: a file cut short", 1.0);
    let mapped =
        session.job(Task::CutMapped { path: filled_file(session, "cut-mapped", DIRTY_BYTES as u64)? }, None)?.0;
    let read = session.job(Task::CutRead { path: filled_file(session, "cut-read", DIRTY_BYTES as u64)? }, None)?.0;
    table.row(vec!["A file that was cut short, touched through a mapping".into(), told(&mapped).into()]);
    table.row(vec!["The same, read by a call".into(), told(&read).into()]);
    chapter.verdict(
        "S1",
        "Errors of mapped files arrive as SIGBUS, at any access; a call returns an error where it is made.",
        Holds::of(matches!(mapped.ending, Ending::Killed(libc::SIGBUS))),
        format!("Mapped: {}. By a call: {}.", told(&mapped), told(&read)),
    );
    Ok(())
}

/// Dirty pages against a memory limit: private ones cannot be written back.
fn show_dirt(session: &Session<'_>, chapter: &mut Chapter, table: &mut Table) -> io::Result<()> {
    if !session.is_limited() {
        table.row(vec![
            "Dirty MAP_PRIVATE pages against a memory limit".into(),
            Cell::from("not shown: no control group is permitted"),
        ]);
        return Ok(());
    }
    session.step("hazards: dirty pages against the memory limit", 4.0);
    let limit = Some(DIRT_LIMIT_BYTES);
    let path = filled_file(session, "dirt", DIRT_BYTES as u64)?;
    let mut endings = Vec::new();
    for (name, task) in [
        ("MAP_PRIVATE", Task::Dirt { path: path.clone(), private: true }),
        ("MAP_SHARED", Task::Dirt { path: path.clone(), private: false }),
        ("write(2) from 1 MiB of buffers", Task::DirtByWrites { path: path.clone() }),
    ] {
        let (outcome, used) = session.job(task, limit)?;
        let used = used.map_or(String::new(), |bytes| format!(", {} used at most", figures::bytes(bytes as f64)));
        table.row(vec![
            format!(
                "{} changed by {name}, memory limit {}",
                figures::size(DIRT_BYTES as u64),
                figures::size(DIRT_LIMIT_BYTES)
            )
            .into(),
            format!("{}{used}", told(&outcome)).into(),
        ]);
        endings.push(outcome.ending);
    }
    let private_dies = matches!(endings[0], Ending::Killed(libc::SIGKILL));
    let shared_lives = matches!(endings[1], Ending::Done(_));
    chapter.verdict(
        "S3",
        "More dirty shared pages than memory holds are fine; dirty private pages are deadly, since they have nowhere to go.",
        match (private_dies, shared_lives) {
            (true, true) => Holds::Yes,
            (false, _) => Holds::No,
            (true, false) => Holds::Partly,
        },
        format!(
            "Private {}, shared {}.",
            if private_dies { "was killed" } else { "survived" },
            if shared_lives { "survived" } else { "did not survive" }
        ),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that was changed and not synced is dirty. Once the file system is synced it is clean, and on the device.
    #[test]
    fn dirty_pages_are_seen_and_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [BEFORE; DIRTY_BYTES]).unwrap();
        if temp_folder::open_direct(&path, false).is_err() {
            return; // A file system in memory.
        }
        let seen = early_write(&path, false).unwrap();
        assert_eq!(seen.dirty_bytes_before, DIRTY_BYTES as u64);
        assert!(seen.is_written, "{seen:?}");
    }

    /// Reading a file that was cut short is an error, and ends nothing.
    #[test]
    fn a_read_reports_the_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [BEFORE; DIRTY_BYTES]).unwrap();
        assert!(Task::CutRead { path }.perform(|_| {}).unwrap().text.starts_with("an error"));
    }
}
