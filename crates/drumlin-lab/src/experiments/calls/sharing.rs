//! Two processes that share a mapping: measures the round-trip time of a word, and the memory charged to each process.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::counters::field;
use crate::figures::{self, Form};
use crate::map::{Map, Mode};
use crate::measure::{Latencies, Sample, Summary};
use crate::report::{Cell, Chapter, Table};
use crate::session::{Counted, Session};
use crate::worker::{self, Measurement};

const FILE_BYTES: usize = 32 << 20;

/// The channel that carries the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Method {
    /// A word in the mapping, which the receiver polls.
    Mapping,
    /// Two pipes.
    Pipe,
}

/// Repeatedly sends a word to another process and waits for its echo.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    folder: PathBuf,
    method: Method,
    trips: u64,
}

/// The other process, which echoes each word.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Echo(Task);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observation {
    trips: Summary,
    /// The resident memory of this process's mapping, and this process's proportional share of it while the other
    /// process maps the file too.
    resident_bytes: u64,
    share_bytes: u64,
}

impl Counted for Observation {
    fn operations(&self) -> u64 {
        self.trips.count
    }
}

impl Measurement for Task {
    const NAME: &'static str = "calls: sharing";
    type Result = Observation;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Observation> {
        self.send(|echo| worker::run(echo, None, &|| false)?.result())
    }
}

impl Measurement for Echo {
    const NAME: &'static str = "calls: echo";
    type Result = ();

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<()> {
        self.0.echo()
    }
}

/// The offsets of the sent word and of the echoed word in the mapping. Each word has a cache line to itself.
const TO: usize = 0;
const FRO: usize = 128;

/// The time without an answer after which the other process is considered dead or hung.
const PATIENCE: Duration = Duration::from_secs(20);

impl Task {
    fn map(&self) -> io::Result<Map> {
        let file = File::options().read(true).write(true).open(self.folder.join("shared"))?;
        let map = Map::new(&file, FILE_BYTES, Mode::Shared)?;
        black_box(map.chunks(4096).skip(1).map(|page| u64::from(page[0])).sum::<u64>());
        Ok(map)
    }

    /// Sends the words and times the echoes. `start` runs the other process until it ends.
    fn send(&self, start: impl FnOnce(Echo) -> io::Result<()> + Send) -> io::Result<Observation> {
        let map = self.map()?;
        std::thread::scope(|scope| {
            let other = scope.spawn(|| start(Echo(self.clone())));
            let mut latencies = Latencies::new();
            let mut memory = (0, 0);
            let mut pipes = match self.method {
                Method::Pipe => Some((open(&self.folder, "to", true)?, open(&self.folder, "fro", false)?)),
                Method::Mapping => None,
            };
            for trip in 1..=self.trips {
                let begun = Instant::now();
                match &mut pipes {
                    Some((to, fro)) => {
                        to.write_all(&trip.to_le_bytes())?;
                        fro.read_exact(&mut [0; 8])?;
                    }
                    None => {
                        map.word(TO).store(trip, Ordering::Release);
                        wait_for(&map, FRO, trip)?;
                    }
                }
                // Skip the first trip, which includes starting the other process.
                if trip > 1 {
                    latencies.record(begun.elapsed());
                }
                if trip == self.trips / 2 {
                    memory = memory_of(map.address());
                }
            }
            drop(pipes);
            other.join().expect("the thread does not panic")?;
            Ok(Observation { trips: latencies.summary(), resident_bytes: memory.0, share_bytes: memory.1 })
        })
    }

    fn echo(&self) -> io::Result<()> {
        let map = self.map()?;
        let mut pipes = match self.method {
            Method::Pipe => Some((open(&self.folder, "to", false)?, open(&self.folder, "fro", true)?)),
            Method::Mapping => None,
        };
        for trip in 1..=self.trips {
            match &mut pipes {
                Some((to, fro)) => {
                    let mut word = [0; 8];
                    to.read_exact(&mut word)?;
                    fro.write_all(&word)?;
                }
                None => {
                    wait_for(&map, TO, trip)?;
                    map.word(FRO).store(trip, Ordering::Release);
                }
            }
        }
        Ok(())
    }
}

/// Polls a word of the mapping until it equals `value`, yielding the processor from time to time. Fails after
/// [`PATIENCE`].
fn wait_for(map: &Map, place: usize, value: u64) -> io::Result<()> {
    let begun = Instant::now();
    let mut looks = 0u32;
    while map.word(place).load(Ordering::Acquire) != value {
        looks += 1;
        if looks.is_multiple_of(64) {
            std::thread::yield_now();
            if begun.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        std::hint::spin_loop();
    }
    Ok(())
}

fn open(folder: &Path, name: &str, write: bool) -> io::Result<File> {
    File::options().read(!write).write(write).open(folder.join(name))
}

/// Returns the resident bytes of the mapping at this address, and this process's proportional share of them.
fn memory_of(address: usize) -> (u64, u64) {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let start = format!("{address:x}-");
    let of_map: Vec<&str> = smaps.lines().skip_while(|line| !line.starts_with(&start)).take(8).collect();
    let text = of_map.join("\n");
    (field(&text, "Rss:") * 1024, field(&text, "Pss:") * 1024)
}

fn turn_seconds(_session: &Session<'_>) -> f64 {
    0.3
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    Session::rounds_seconds(2, session.pacing.rounds, turn_seconds(session))
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    let folder = session.temp_folder.path().join("sharing");
    std::fs::create_dir(&folder)?;
    let trips = if session.settings.quick { 5_000 } else { 20_000 };
    let trials = session.run_rounds(
        &[Method::Mapping, Method::Pipe],
        session.pacing.rounds,
        turn_seconds(session),
        |_| "calls: two processes".to_owned(),
        |&method, _| {
            // Ignore an error: if a file is missing, the worker fails and reports why.
            let _ = prepare(&folder);
            (Task { folder: folder.clone(), method, trips }, None)
        },
    );
    std::fs::remove_dir_all(&folder)?;
    let mut table = Table::new(
        format!("Two processes that map the same {}: a word to the other and back", figures::size(FILE_BYTES as u64)),
        &[
            ("", Form::Text),
            ("p50", Form::Micros),
            ("p99", Form::Micros),
            ("resident, each", Form::Bytes),
            ("share, each", Form::Bytes),
        ],
    );
    for (name, trials) in
        ["stored and polled in the mapping", "written and read through pipes"].into_iter().zip(&trials)
    {
        table.row(vec![
            trials.label(name).into(),
            trials.median(|seen| seen.trips.p50_us).into(),
            trials.median(|seen| seen.trips.p99_us).into(),
            trials.median(|seen| seen.resident_bytes as f64).into(),
            trials.median(|seen| seen.share_bytes as f64).into(),
        ]);
        if let Some(failure) = &trials.failure {
            table.row(vec![name.into(), Cell::Missing, Cell::Missing, Cell::Missing, Cell::Missing]).source(failure);
        }
    }
    chapter.tables.push(table);
    Ok(())
}

/// Recreates the file and the pipes.
fn prepare(folder: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode as Permissions, mknodat};
    for name in ["to", "fro"] {
        let path = folder.join(name);
        let _ = std::fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Permissions::RUSR | Permissions::WUSR, 0)?;
    }
    std::fs::write(folder.join("shared"), vec![0; FILE_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each word is echoed, both through the mapping and through pipes.
    #[test]
    fn words_come_back() {
        let folder = tempfile::tempdir().unwrap();
        for method in [Method::Mapping, Method::Pipe] {
            prepare(folder.path()).unwrap();
            let task = Task { folder: folder.path().to_owned(), method, trips: 20 };
            // Run the echo on a thread instead of in a process.
            let seen = task.send(|Echo(other)| other.echo()).unwrap();
            assert_eq!(seen.trips.count, 19, "{method:?}");
            assert_eq!(seen.resident_bytes, FILE_BYTES as u64);
        }
    }
}
