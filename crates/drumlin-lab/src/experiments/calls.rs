//! `calls`: mapped memory against read(2) and write(2), everything in the page cache (S3's table).
//!
//! S3's read column cannot be right: 2 GB in 0.87 ms would be 2,300 GB/s. The time falls in exact proportion to the
//! bytes per call, as if each call cost the same whatever its size. That happens if a call only takes a slice of the
//! mapping, or touches one byte of it. So a mapping is read in three ways here: by taking slices, by touching one byte
//! of each piece, and by copying every byte, as read(2) does.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::experiments::Experiment;
use crate::figures::{self, Form};
use crate::map::{Map, Mode};
use crate::measure::Sample;
use crate::report::{Cell, Chapter, Holds, Plot, Scale, Table};
use crate::session::{Session, Turns};
use crate::worker::Measurement;

/// Bytes that S3 read and wrote; times are shown for this amount.
const SOURCE_BYTES: f64 = 2e9;

/// Small enough to stay in the page cache, large enough to exceed the processor's.
const FILE_BYTES: usize = 256 << 20;

const SIZES: [usize; 8] = [1, 100, 512, 1024, 2048, 4096, 8192, 10_240];

/// S3's figures for each size: write by mapping and by call, read by mapping and by call.
const SOURCE: [[&str; 4]; 8] = [
    ["22.1 s", "> 300 s", "8.22 s", "> 300 s"],
    ["2.84 s", "22.9 s", "86.4 ms", "8.10 s"],
    ["2.51 s", "5.43 s", "16.1 ms", "1.85 s"],
    ["2.48 s", "3.48 s", "8.1 ms", "993 ms"],
    ["2.47 s", "2.34 s", "4.1 ms", "637 ms"],
    ["2.48 s", "1.74 s", "2.1 ms", "558 ms"],
    ["2.45 s", "1.67 s", "1.1 ms", "445 ms"],
    ["2.49 s", "1.65 s", "0.87 ms", "475 ms"],
];

/// The operation on each piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Way {
    WriteMapped,
    WriteCall,
    /// Takes a slice and reads nothing of it.
    SliceMapped,
    /// Reads one byte of it.
    TouchMapped,
    /// Copies all of it, as read(2) does.
    CopyMapped,
    ReadCall,
    /// S3's advice: written by a call, read through the mapping.
    WriteCallReadMapped,
}

impl Way {
    const ALL: [Way; 7] = [
        Way::WriteMapped,
        Way::WriteCall,
        Way::SliceMapped,
        Way::TouchMapped,
        Way::CopyMapped,
        Way::ReadCall,
        Way::WriteCallReadMapped,
    ];
}

/// All ways at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    bytes: usize,
    /// Duration of each way.
    seconds: f64,
}

impl Measurement for Task {
    const NAME: &'static str = "calls";
    type Result = Vec<f64>;

    /// Seconds for 2 GB by each way, in the order of `Way::ALL`.
    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Vec<f64>> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        let mut map = Map::new(&file, FILE_BYTES, Mode::Shared)?;
        // `prefault` measures faults: here each page is touched, for writing, before anything is timed.
        for page in map.chunks_mut(4096) {
            page[0] = page[0].wrapping_add(1);
        }
        Way::ALL.into_iter().map(|way| self.time(way, &file, &mut map)).collect()
    }
}

impl Task {
    fn time(&self, way: Way, file: &File, map: &mut Map) -> io::Result<f64> {
        let mut piece = vec![7u8; self.bytes];
        let start = Instant::now();
        let limit = Duration::from_secs_f64(self.seconds);
        let mut bytes = 0u64;
        let mut sum = 0u64;
        // The clock is read once per batch of calls: reading it costs more than touching a byte.
        let batch = ((256 << 10) / self.bytes).max(1);
        let mut offset = 0;
        loop {
            for _ in 0..batch {
                if offset + self.bytes > FILE_BYTES {
                    offset = 0;
                }
                let range = offset..offset + self.bytes;
                match way {
                    Way::WriteMapped => map[range].copy_from_slice(black_box(&piece)),
                    Way::WriteCall => file.write_all_at(&piece, offset as u64)?,
                    Way::SliceMapped => {
                        black_box(&map[range]);
                    }
                    Way::TouchMapped => sum += u64::from(black_box(&map[range])[0]),
                    Way::CopyMapped => {
                        piece.copy_from_slice(&map[range]);
                        black_box(&piece);
                    }
                    Way::ReadCall => file.read_exact_at(&mut piece, offset as u64)?,
                    Way::WriteCallReadMapped => {
                        file.write_all_at(&piece, offset as u64)?;
                        piece.copy_from_slice(&map[range]);
                        black_box(&piece);
                    }
                }
                offset += self.bytes;
            }
            bytes += (batch * self.bytes) as u64;
            if start.elapsed() >= limit {
                black_box(sum);
                return Ok(start.elapsed().as_secs_f64() * SOURCE_BYTES / bytes as f64);
            }
        }
    }
}

fn way_seconds(session: &Session<'_>) -> f64 {
    (session.pacing.slice.seconds / 4.0).max(0.05)
}

fn rounds(session: &Session<'_>) -> usize {
    session.pacing.rounds.div_ceil(2)
}

fn turn_seconds(session: &Session<'_>) -> f64 {
    way_seconds(session) * Way::ALL.len() as f64 + 0.1
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    1.0 + (SIZES.len() * rounds(session)) as f64 * turn_seconds(session)
}

pub(super) fn chapter() -> Chapter {
    Chapter::new(
        Experiment::Calls.name(),
        "Mapped memory against system calls, all of it cached",
        "2 GB, piece by piece; the times are extrapolated from shorter runs. S3's read column is too fast to be true, \
         so slicing, touching and copying are measured apart here.",
    )
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    session.step("calls: writing the file", 1.0);
    let path = session.room.filled("calls", FILE_BYTES as u64, |_| !session.interrupted())?;
    let seconds = way_seconds(session);
    let turns = session.turns(
        &SIZES,
        rounds(session),
        turn_seconds(session),
        |bytes| format!("calls: pieces of {bytes} B"),
        |&bytes, _| (Task { path: path.clone(), bytes, seconds }, None),
    );
    std::fs::remove_file(&path)?;
    let tables = [writes(&turns), reads(&turns), both(&turns)];
    chapter.tables.extend(tables);
    let lines = lines(&turns);
    chapter.plots.push(plot(&lines));
    verdicts(chapter, &lines);
    Ok(())
}

/// The median time of a way, of the turns at one size.
fn time(turns: &Turns<Vec<f64>>, way: Way) -> Option<f64> {
    let index = Way::ALL.iter().position(|each| *each == way).expect("listed");
    turns.median(|times| times[index])
}

fn writes(turns: &[Turns<Vec<f64>>]) -> Table {
    let mut table = Table::new(
        "Writing 2 GB",
        &[
            ("bytes per call", Form::Count),
            ("mapped", Form::Seconds),
            ("write(2)", Form::Seconds),
            ("S3: mapped", Form::Text),
            ("S3: write(2)", Form::Text),
        ],
    );
    for ((bytes, turns), source) in SIZES.into_iter().zip(turns).zip(SOURCE) {
        table.row(vec![
            Cell::from(bytes as u64),
            time(turns, Way::WriteMapped).into(),
            time(turns, Way::WriteCall).into(),
            source[0].into(),
            source[1].into(),
        ]);
    }
    table
}

fn reads(turns: &[Turns<Vec<f64>>]) -> Table {
    let mut table = Table::new(
        "Reading 2 GB",
        &[
            ("bytes per call", Form::Count),
            ("mapped, only sliced", Form::Seconds),
            ("mapped, 1 byte touched", Form::Seconds),
            ("mapped, copied", Form::Seconds),
            ("read(2)", Form::Seconds),
            ("S3: mapped", Form::Text),
            ("S3: read(2)", Form::Text),
        ],
    );
    for ((bytes, turns), source) in SIZES.into_iter().zip(turns).zip(SOURCE) {
        table.row(vec![
            Cell::from(bytes as u64),
            time(turns, Way::SliceMapped).into(),
            time(turns, Way::TouchMapped).into(),
            time(turns, Way::CopyMapped).into(),
            time(turns, Way::ReadCall).into(),
            source[2].into(),
            source[3].into(),
        ]);
    }
    table
}

fn both(turns: &[Turns<Vec<f64>>]) -> Table {
    let mut table = Table::new(
        "S3's advice: write by calls, read by mapping; 2 GB written and read back",
        &[
            ("bytes per call", Form::Count),
            ("write(2), read mapped", Form::Seconds),
            ("both mapped", Form::Seconds),
            ("both by calls", Form::Seconds),
        ],
    );
    for (bytes, turns) in SIZES.into_iter().zip(turns) {
        let sum = |left, right| time(turns, left).zip(time(turns, right)).map(|(left, right)| left + right);
        table.row(vec![
            Cell::from(bytes as u64),
            time(turns, Way::WriteCallReadMapped).into(),
            sum(Way::WriteMapped, Way::CopyMapped).into(),
            sum(Way::WriteCall, Way::ReadCall).into(),
        ]);
    }
    table
}

/// The times of each way, in the order of `Way::ALL`, by size.
fn lines(turns: &[Turns<Vec<f64>>]) -> Vec<Vec<(f64, f64)>> {
    let point = |way, bytes: usize, turns| Some((bytes as f64, time(turns, way)?));
    let line = |way| SIZES.into_iter().zip(turns).filter_map(|(bytes, turns)| point(way, bytes, turns)).collect();
    Way::ALL.into_iter().map(line).collect()
}

fn plot(lines: &[Vec<(f64, f64)>]) -> Plot {
    let mut plot = Plot::new(
        "Time for 2 GB, cached",
        ("bytes per call", Form::Count, Scale::Logarithmic),
        ("time", Form::Seconds, Scale::Logarithmic),
    );
    let names = ["write, mapped", "write(2)", "", "read: 1 byte touched", "read: mapped, copied", "read(2)", ""];
    for (name, line) in names.into_iter().zip(lines).filter(|(name, _)| !name.is_empty()) {
        plot.line(name, line.clone());
    }
    plot
}

fn verdicts(chapter: &mut Chapter, lines: &[Vec<(f64, f64)>]) {
    let time = |way: Way, bytes: usize| {
        let index = Way::ALL.iter().position(|each| *each == way).expect("listed");
        lines[index].iter().find(|(size, _)| *size == bytes as f64).map(|(_, time)| *time)
    };
    let show = |seconds: f64| figures::micros(seconds * 1e6);
    if let (Some(sliced), Some(touched), Some(copied)) =
        (time(Way::SliceMapped, 4096), time(Way::TouchMapped, 4096), time(Way::CopyMapped, 4096))
    {
        chapter.verdict(
            "S3",
            "Reading 2 GB in pieces of 4 KiB through a mapping takes 2.1 ms.",
            Holds::No,
            format!(
                "That is 950 GB/s, more than the bandwidth of memory: only the position of each piece was computed. \
                 Slicing takes {} here, touching one byte of each piece {}, copying {}.",
                show(sliced),
                show(touched),
                show(copied)
            ),
        );
    }
    if let (Some(small_mapped), Some(small_call), Some(mapped), Some(call)) =
        (time(Way::CopyMapped, 1), time(Way::ReadCall, 1), time(Way::CopyMapped, 8192), time(Way::ReadCall, 8192))
    {
        chapter.verdict(
            "S3",
            "Cached and byte by byte, a mapping is far faster than calls: each call costs as much as copying hundreds of bytes.",
            Holds::of(small_mapped * 5.0 < small_call),
            format!("1 byte per call: {} mapped, {} by read(2).", show(small_mapped), show(small_call)),
        );
        chapter.verdict(
            "S3",
            "In pieces of 8 KiB a mapping reads 400 times as fast.",
            if mapped * 20.0 < call { Holds::Yes } else { Holds::No },
            format!("Copying takes {}, read(2) {}: the same copy, plus the call.", show(mapped), show(call)),
        );
    }
    if let (Some(mapped), Some(call)) = (time(Way::WriteMapped, 4096), time(Way::WriteCall, 4096)) {
        chapter.verdict(
            "S3",
            "From 2 to 4 KiB on, write(2) is faster than a mapping.",
            Holds::of(call < mapped),
            format!(
                "4 KiB: mapped {}, write(2) {}. S3's mapping faulted in every page of a new file; here each page had been touched.",
                show(mapped),
                show(call)
            ),
        );
    }
    chapter.note(
        "Drumlin reads by calls all the same, because this is the cached case. Beyond memory a mapping faults (random, \
         scan), stalls (stall) and cannot report errors (hazards). Within memory Drumlin's own frames are read with \
         neither calls nor faults.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ways are timed at every size, and the source's table has a row for each.
    #[test]
    fn every_way_is_timed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(FILE_BYTES as u64).unwrap();
        let task = Task { path: file.path().to_owned(), bytes: 10_240, seconds: 0.0 };
        let times = task.perform(|_| {}).unwrap();
        assert_eq!(times.len(), Way::ALL.len());
        assert!(times.iter().all(|time| *time > 0.0));
        assert_eq!(SOURCE.len(), SIZES.len());
    }
}
