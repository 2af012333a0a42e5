//! Pieces of 1 byte to 10 KiB, written and read through a mapping and by calls: S3's table.
//!
//! S3's read column cannot be right: 2 GB in 0.87 ms would be 2,300 GB/s. The time falls in exact proportion to the
//! bytes per call, as if each call cost the same whatever its size. That happens if a call only takes a slice of the
//! mapping, or touches one byte of it. So a mapping is read in three ways here: by taking slices, by touching one byte
//! of each piece, and by copying every byte, as read(2) does.
//!
//! S3's write column is of a new file, whose every page has to be faulted in. So a new file, the first touch of a file
//! that exists, and pages that were touched before are measured apart, with their faults. Each way has its own file.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::compare::{Claim, Ratio, Size, Spread, all};
use crate::counters;
use crate::figures::{self, Form};
use crate::map::{Map, Mode};
use crate::measure::Sample;
use crate::report::{Cell, Chapter, Holds, Judgement, MEDIANS, Plot, Scale, Table};
use crate::session::{Rounds, Session, Turns};
use crate::worker::Measurement;

/// Bytes that S3 read and wrote; times are shown for this amount.
const SOURCE_BYTES: f64 = 2e9;

const PAGE_BYTES: usize = 4096;

/// Small enough to stay in the page cache.
const FILE_BYTES: usize = 128 << 20;

/// The size whose figures most verdicts rest on comes first: its case is the one that is measured twice.
const SIZES: [usize; 8] = [4096, 1, 100, 512, 1024, 2048, 8192, 10_240];

/// S3's figures for each size: write by mapping and by call, read by mapping and by call.
const SOURCE: [[&str; 4]; 8] = [
    ["2.48 s", "1.74 s", "2.1 ms", "558 ms"],
    ["22.1 s", "> 300 s", "8.22 s", "> 300 s"],
    ["2.84 s", "22.9 s", "86.4 ms", "8.10 s"],
    ["2.51 s", "5.43 s", "16.1 ms", "1.85 s"],
    ["2.48 s", "3.48 s", "8.1 ms", "993 ms"],
    ["2.47 s", "2.34 s", "4.1 ms", "637 ms"],
    ["2.45 s", "1.67 s", "1.1 ms", "445 ms"],
    ["2.49 s", "1.65 s", "0.87 ms", "475 ms"],
];

/// The operation on each piece, and the state of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Way {
    /// Into a file that was made just now and has no blocks yet.
    WriteNewMapped,
    WriteNewCall,
    /// Into a cached file, through a mapping that was made just now.
    WriteFirstMapped,
    /// The same, each page touched before.
    WriteMapped,
    WriteCall,
    /// Takes a slice and reads nothing of it.
    SliceMapped,
    /// Reads one byte of it.
    TouchMapped,
    /// Copies all of it, as read(2) does, through a mapping that was made just now.
    CopyFirstMapped,
    CopyMapped,
    ReadCall,
    /// S3's advice: written by a call, read through the mapping.
    WriteCallReadMapped,
}

impl Way {
    const ALL: [Way; 11] = [
        Way::WriteNewMapped,
        Way::WriteNewCall,
        Way::WriteFirstMapped,
        Way::WriteMapped,
        Way::WriteCall,
        Way::SliceMapped,
        Way::TouchMapped,
        Way::CopyFirstMapped,
        Way::CopyMapped,
        Way::ReadCall,
        Way::WriteCallReadMapped,
    ];

    /// The file's end ends it: what it measures is there once only.
    fn is_once(self) -> bool {
        matches!(self, Way::WriteNewMapped | Way::WriteNewCall | Way::WriteFirstMapped | Way::CopyFirstMapped)
    }
}

/// All ways at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    folder: PathBuf,
    /// Files that are there and cached: one to write by mapping, one to write by call, one to read.
    files: [PathBuf; 3],
    bytes: usize,
    /// Duration of each way.
    seconds: f64,
}

/// One way at one size.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Timed {
    /// For 2 GB.
    seconds: f64,
    /// Page faults for each page of the bytes.
    faults_per_page: f64,
}

impl Measurement for Task {
    const NAME: &'static str = "calls";
    type Result = Vec<Timed>;

    /// In the order of `Way::ALL`.
    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Vec<Timed>> {
        Way::ALL.into_iter().map(|way| self.time(way)).collect()
    }
}

impl Task {
    fn time(&self, way: Way) -> io::Result<Timed> {
        let is_new = matches!(way, Way::WriteNewMapped | Way::WriteNewCall);
        let path = match way {
            Way::WriteNewMapped | Way::WriteNewCall => self.folder.join(format!("new-{}", self.bytes)),
            Way::WriteFirstMapped | Way::WriteMapped => self.files[0].clone(),
            Way::WriteCall | Way::WriteCallReadMapped => self.files[1].clone(),
            _ => self.files[2].clone(),
        };
        let file = File::options().read(true).write(true).create(is_new).truncate(is_new).open(&path)?;
        if is_new {
            file.set_len(FILE_BYTES as u64)?;
        }
        // Mapped by calls too, so that they do the same but for the one thing that is timed.
        let mut map = Map::new(&file, FILE_BYTES, Mode::Shared)?;
        match way {
            Way::WriteMapped => map.chunks_mut(PAGE_BYTES).for_each(|page| page[0] = page[0].wrapping_add(1)),
            _ if way.is_once() => {}
            _ => {
                black_box(map.chunks(PAGE_BYTES).map(|page| u64::from(page[0])).sum::<u64>());
            }
        }
        let result = self.run(way, &file, &mut map);
        if is_new {
            std::fs::remove_file(&path)?;
        }
        result
    }

    fn run(&self, way: Way, file: &File, map: &mut Map) -> io::Result<Timed> {
        let mut piece = vec![7u8; self.bytes];
        let mut sum = 0u64;
        // The clock is read once per batch of calls: reading it costs more than touching a byte.
        let batch = ((256 << 10) / self.bytes).max(1);
        let (mut bytes, mut offset) = (0u64, 0);
        let before = counters::thread_faults();
        let start = Instant::now();
        let limit = Duration::from_secs_f64(self.seconds);
        'timed: loop {
            for _ in 0..batch {
                if offset + self.bytes > FILE_BYTES {
                    offset = 0;
                    if way.is_once() {
                        break 'timed;
                    }
                }
                let range = offset..offset + self.bytes;
                match way {
                    Way::WriteNewMapped | Way::WriteFirstMapped | Way::WriteMapped => {
                        map[range].copy_from_slice(black_box(&piece));
                    }
                    Way::WriteNewCall | Way::WriteCall => file.write_all_at(&piece, offset as u64)?,
                    Way::SliceMapped => {
                        black_box(&map[range]);
                    }
                    Way::TouchMapped => sum += u64::from(black_box(&map[range])[0]),
                    Way::CopyFirstMapped | Way::CopyMapped => {
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
                bytes += self.bytes as u64;
            }
            if start.elapsed() >= limit {
                break;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        black_box(sum);
        let faults = counters::thread_faults() - before;
        let pages = bytes as f64 / PAGE_BYTES as f64;
        Ok(Timed { seconds: seconds * SOURCE_BYTES / bytes as f64, faults_per_page: faults as f64 / pages })
    }
}

fn way_seconds(session: &Session<'_>) -> f64 {
    (session.pacing.slice.seconds / 5.0).max(0.05)
}

/// The approximate time of a turn: the ways that touch each page once end before their time.
fn turn_seconds(session: &Session<'_>) -> f64 {
    way_seconds(session) * Way::ALL.len() as f64 * 0.6 + 0.3
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    3.0 + Session::turns_seconds(SIZES.len(), session.pacing.rounds, turn_seconds(session))
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    session.step("calls: writing three files", 3.0);
    let make = |name: &str| -> io::Result<PathBuf> {
        let path = session.room.filled(name, FILE_BYTES as u64, |_| !session.interrupted())?;
        read_through(&path)?;
        Ok(path)
    };
    let files = [make("calls-mapped")?, make("calls-written")?, make("calls-read")?];
    let seconds = way_seconds(session);
    let folder = session.room.path().to_owned();
    let turns = session.turns(
        &SIZES,
        session.pacing.rounds,
        turn_seconds(session),
        |bytes| format!("calls: pieces of {bytes} B"),
        |&bytes, _| (Task { folder: folder.clone(), files: files.clone(), bytes, seconds }, None),
    );
    for path in &files {
        std::fs::remove_file(path)?;
    }
    for turns in turns.cases.iter().chain([&turns.again]) {
        if let Some(failure) = &turns.failure {
            chapter.note(format!("Not all pieces were measured: {failure}."));
        }
    }
    let tables = [writes(&turns), reads(&turns), both(&turns)];
    chapter.tables.extend(tables);
    chapter.plots.push(plot(&turns));
    let found = Found::of(&turns);
    for claim in &CLAIMS {
        claim.put(chapter, &found);
    }
    Ok(())
}

/// Brings a file into the page cache.
fn read_through(path: &Path) -> io::Result<()> {
    io::copy(&mut File::open(path)?, &mut io::sink())?;
    Ok(())
}

fn index(way: Way) -> usize {
    Way::ALL.iter().position(|each| *each == way).expect("listed")
}

/// The median time of a way, of the turns at one size.
fn time(turns: &Turns<Vec<Timed>>, way: Way) -> Option<f64> {
    turns.median(|times| times[index(way)].seconds)
}

/// The turns at one size, and the source's figures.
type Row<'t> = (usize, &'t Turns<Vec<Timed>>, [&'static str; 4]);

/// The sizes in order.
fn rows(turns: &Rounds<Vec<Timed>>) -> Vec<Row<'_>> {
    let mut rows: Vec<_> =
        SIZES.into_iter().zip(turns).zip(SOURCE).map(|((bytes, turns), source)| (bytes, turns, source)).collect();
    rows.sort_by_key(|(bytes, ..)| *bytes);
    rows
}

fn writes(turns: &Rounds<Vec<Timed>>) -> Table {
    let mut table = Table::new(
        "Writing 2 GB",
        &[
            ("bytes per call", Form::Count),
            ("new file, mapped", Form::Seconds),
            ("new file, write(2)", Form::Seconds),
            ("first touch, mapped", Form::Seconds),
            ("touched, mapped", Form::Seconds),
            ("cached, write(2)", Form::Seconds),
            ("S3: mapped", Form::Text),
            ("S3: write(2)", Form::Text),
        ],
    );
    let ways = [Way::WriteNewMapped, Way::WriteNewCall, Way::WriteFirstMapped, Way::WriteMapped, Way::WriteCall];
    for (bytes, turns, source) in rows(turns) {
        let mut cells: Vec<Cell> = vec![(bytes as u64).into()];
        cells.extend(ways.map(|way| Cell::from(time(turns, way))));
        cells.extend([source[0].into(), source[1].into()]);
        table.row(cells);
    }
    table
}

fn reads(turns: &Rounds<Vec<Timed>>) -> Table {
    let mut table = Table::new(
        "Reading 2 GB, all of it cached",
        &[
            ("bytes per call", Form::Count),
            ("only sliced", Form::Seconds),
            ("1 byte touched", Form::Seconds),
            ("first touch, copied", Form::Seconds),
            ("touched, copied", Form::Seconds),
            ("read(2)", Form::Seconds),
            ("S3: mapped", Form::Text),
            ("S3: read(2)", Form::Text),
        ],
    );
    let ways = [Way::SliceMapped, Way::TouchMapped, Way::CopyFirstMapped, Way::CopyMapped, Way::ReadCall];
    for (bytes, turns, source) in rows(turns) {
        let mut cells: Vec<Cell> = vec![(bytes as u64).into()];
        cells.extend(ways.map(|way| Cell::from(time(turns, way))));
        cells.extend([source[2].into(), source[3].into()]);
        table.row(cells);
    }
    table
}

fn both(turns: &Rounds<Vec<Timed>>) -> Table {
    let mut table = Table::new(
        "S3's advice: write by calls, read by mapping; 2 GB written and read back",
        &[
            ("bytes per call", Form::Count),
            ("write(2), read mapped", Form::Seconds),
            ("both mapped", Form::Seconds),
            ("both by calls", Form::Seconds),
        ],
    );
    for (bytes, turns, _) in rows(turns) {
        let sum = |left, right| time(turns, left).zip(time(turns, right)).map(|(left, right)| left + right);
        table.row(vec![
            (bytes as u64).into(),
            time(turns, Way::WriteCallReadMapped).into(),
            sum(Way::WriteMapped, Way::CopyMapped).into(),
            sum(Way::WriteCall, Way::ReadCall).into(),
        ]);
    }
    table
}

fn plot(turns: &Rounds<Vec<Timed>>) -> Plot {
    let mut plot = Plot::new(
        "Time for 2 GB",
        ("bytes per call", Form::Count, Scale::Logarithmic),
        ("time", Form::Seconds, Scale::Logarithmic),
    )
    .drawing(MEDIANS);
    for (name, way) in [
        ("write, new file mapped", Way::WriteNewMapped),
        ("write(2), new file", Way::WriteNewCall),
        ("read: 1 byte touched", Way::TouchMapped),
        ("read: mapped, copied", Way::CopyMapped),
        ("read(2)", Way::ReadCall),
    ] {
        let points = rows(turns).into_iter().filter_map(|(bytes, turns, _)| Some((bytes as f64, time(turns, way)?)));
        plot.line(name, points.collect());
    }
    plot
}

/// The figures that the verdicts rest on; `None` where something was not measured.
#[derive(Debug, Default)]
struct Found {
    /// Pieces of 4 KiB: sliced, one byte touched, copied; seconds for 2 GB.
    reads: Option<[Spread; 3]>,
    /// read(2) over the mapping's copy, in pieces of one byte.
    read_bytes: Option<Ratio>,
    /// The same in pieces of 8 KiB, and the times of both for 2 GB.
    read_large: Option<(Ratio, [f64; 2])>,
    /// A new file through a mapping over write(2), in pieces of 4 and 10 KiB.
    write_new: Option<[Ratio; 2]>,
    /// write(2) over the mapping, existing file, pages touched before; pieces of 4 KiB.
    write_touched: Option<Ratio>,
    /// Faults a page: new file, pages touched before; pieces of 4 KiB.
    faults: Option<[f64; 2]>,
    /// The time for 2 GB in pieces of 4 KiB through the mapping: new file, pages touched before.
    mapped_seconds: Option<[f64; 2]>,
}

impl Found {
    fn of(turns: &Rounds<Vec<Timed>>) -> Found {
        let case = |bytes: usize| SIZES.iter().position(|each| *each == bytes).expect("listed");
        let spread = |bytes, way| turns[case(bytes)].spread(|times| times[index(way)].seconds);
        let ratio = |bytes, left, right| {
            let case = &turns[case(bytes)];
            // The control is the case of 4 KiB; its noise stands for that of the others.
            let noise = [left, right].map(|way| turns.noise(|times| times[index(way)].seconds));
            let each = |way| case.each(|times| times[index(way)].seconds);
            Ratio::of(&each(left), &each(right), noise[0].max(noise[1]))
        };
        let faults = |way| turns[case(4096)].median(|times| times[index(way)].faults_per_page);
        let medians = |bytes, left, right| Some([spread(bytes, left)?.median, spread(bytes, right)?.median]);
        Found {
            reads: (|| {
                Some([spread(4096, Way::SliceMapped)?, spread(4096, Way::TouchMapped)?, spread(4096, Way::CopyMapped)?])
            })(),
            read_bytes: ratio(1, Way::ReadCall, Way::CopyMapped),
            read_large: ratio(8192, Way::ReadCall, Way::CopyMapped).zip(medians(8192, Way::ReadCall, Way::CopyMapped)),
            write_new: ratio(4096, Way::WriteNewMapped, Way::WriteNewCall)
                .zip(ratio(10_240, Way::WriteNewMapped, Way::WriteNewCall))
                .map(|(small, large)| [small, large]),
            write_touched: ratio(4096, Way::WriteCall, Way::WriteMapped),
            faults: faults(Way::WriteNewMapped).zip(faults(Way::WriteMapped)).map(|(new, old)| [new, old]),
            mapped_seconds: medians(4096, Way::WriteNewMapped, Way::WriteMapped),
        }
    }
}

fn nothing() -> Judgement {
    Judgement::cannot_tell("figures: the cases did not run", "")
}

fn show(seconds: f64) -> String {
    figures::micros(seconds * 1e6)
}

const CLAIMS: [Claim<Found>; 5] = [
    Claim {
        source: "S3",
        text: "Reading 2 GB in pieces of 4 KiB through a mapping takes 2.1 ms.",
        judge: |found| {
            // Twice S3's time, for another machine.
            let limit = 2.0 * 2.1e-3;
            let Some([sliced, touched, copied]) = found.reads else { return nothing() };
            let holds = match () {
                () if copied.median <= limit => Holds::Yes,
                () if touched.median <= limit => Holds::Partly,
                () => Holds::No,
            };
            let why = format!(
                "That would be 950 GB/s. Taking slices takes {}, touching one byte of each piece {}, copying all {}.",
                show(sliced.median),
                show(touched.median),
                show(copied.median)
            );
            Judgement::new(holds, why)
        },
    },
    Claim {
        source: "S3",
        text: "Cached and byte by byte, a mapping reads more than 36 times as fast as calls.",
        judge: |found| {
            let Some(ratio) = found.read_bytes else { return nothing() };
            ratio.judge_at_least(Size::of(36.0), format!("read(2) takes {} as long.", ratio.show()))
        },
    },
    Claim {
        source: "S3",
        text: "In pieces of 8 KiB a mapping reads 400 times as fast as calls.",
        judge: |found| {
            let Some((ratio, [call, mapped])) = found.read_large else { return nothing() };
            let calls = SOURCE_BYTES / 8192.0;
            let why = format!(
                "{}. For 2 GB read(2) takes {}, the same copy from the mapping {}: {} apart, {} a call.",
                ratio.show(),
                show(call),
                show(mapped),
                show((call - mapped).abs()),
                show((call - mapped).abs() / calls)
            );
            ratio.judge_at_least(Size::of(400.0), why)
        },
    },
    Claim {
        source: "S3",
        text: "A new file is written faster by write(2) than through a mapping from 4 KiB on (1.4 times).",
        judge: |found| {
            let Some([small, large]) = found.write_new else { return nothing() };
            let holds = all([small, large].map(|ratio| ratio.at_least(Size::of(1.4))));
            let why = format!("The mapping takes {} as long at 4 KiB, {} at 10 KiB.", small.show(), large.show());
            small.judge(holds, why)
        },
    },
    Claim {
        source: "S3",
        text: "The mapping loses to the faults of the new pages: where they were touched before, it wins.",
        judge: |found| {
            let (Some(ratio), Some([new, touched]), Some([new_seconds, touched_seconds])) =
                (found.write_touched, found.faults, found.mapped_seconds)
            else {
                return nothing();
            };
            let faults = if new < 0.01 { Holds::No } else { Holds::of(touched < new / 10.0) };
            let pages = SOURCE_BYTES / PAGE_BYTES as f64;
            let why = format!(
                "Pages touched before: write(2) takes {} as long. A new file costs {} faults a page and {} more for \
                 2 GB, {} a page.",
                ratio.show(),
                figures::digits(new),
                show((new_seconds - touched_seconds).abs()),
                show((new_seconds - touched_seconds).abs() / pages)
            );
            ratio.judge(all([ratio.at_least(Size::bound(1.1)), faults]), why)
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// All ways are timed, new files are removed, and the source's table has a row for each size.
    #[test]
    fn every_way_is_timed() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a", "b", "c"].map(|name| folder.path().join(name));
        for path in &files {
            File::create(path).unwrap().set_len(FILE_BYTES as u64).unwrap();
        }
        let task = Task { folder: folder.path().to_owned(), files, bytes: 10_240, seconds: 0.0 };
        let times = task.perform(|_| {}).unwrap();
        assert_eq!(times.len(), Way::ALL.len());
        assert!(times.iter().all(|timed| timed.seconds > 0.0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
        assert_eq!(SOURCE.len(), SIZES.len());
    }

    /// A new file's pages are faulted in, as many by each fault as the file system has in a folio; pages that were
    /// touched before are not.
    #[test]
    fn faults_are_those_of_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a", "b", "c"].map(|name| folder.path().join(name));
        File::create(&files[0]).unwrap().set_len(FILE_BYTES as u64).unwrap();
        let task = Task { folder: folder.path().to_owned(), files, bytes: 10_240, seconds: 0.0 };
        let faults = |way| task.time(way).unwrap().faults_per_page;
        let new = faults(Way::WriteNewMapped);
        assert!(new >= 1.0 / HUGE_PAGES, "{new} faults a page of a new file");
        // A sync by another process while the pages are touched makes them clean, and they fault again.
        let touched = (0..20).map(|_| faults(Way::WriteMapped)).find(|touched| *touched < new / 4.0);
        assert!(touched.is_some(), "pages that were touched fault as a new file's do, at {new} faults a page");
    }

    /// The pages of the largest folio, 2 MiB.
    const HUGE_PAGES: f64 = 512.0;

    fn ratio(median: f64) -> Option<Ratio> {
        Some(Ratio { median, least: median * 0.98, most: median * 1.02, noise: 1.02 })
    }

    fn noisy(median: f64) -> Option<Ratio> {
        Some(Ratio { median, least: 0.5, most: median * 500.0, noise: 1.1 })
    }

    fn spread(median: f64) -> Spread {
        Spread { median, least: median, most: median }
    }

    /// Each claim comes out each way.
    #[test]
    fn claims_come_out_each_way() {
        let judged = |index: usize, found: &Found| (CLAIMS[index].judge)(found).holds;
        for (copied, touched, holds) in
            [(0.003, 0.002, Holds::Yes), (0.1, 0.002, Holds::Partly), (0.1, 0.01, Holds::No)]
        {
            let reads = Some([spread(0.001), spread(touched), spread(copied)]);
            assert_eq!(judged(0, &Found { reads, ..Found::default() }), holds);
        }
        for (found, holds) in [
            (ratio(80.0), Holds::Yes),
            (ratio(10.0), Holds::Partly),
            (ratio(0.9), Holds::No),
            (noisy(9.0), Holds::CannotTell),
        ] {
            assert_eq!(judged(1, &Found { read_bytes: found, ..Found::default() }), holds);
        }
        for (found, holds) in [
            (ratio(450.0), Holds::Yes),
            (ratio(20.0), Holds::Partly),
            (ratio(1.98), Holds::NotInSize),
            (ratio(0.9), Holds::No),
            (noisy(9.0), Holds::CannotTell),
        ] {
            let read_large = found.map(|ratio| (ratio, [0.3, 0.1]));
            assert_eq!(judged(2, &Found { read_large, ..Found::default() }), holds);
        }
        for (small, large, holds) in [(1.5, 1.6, Holds::Yes), (1.5, 0.9, Holds::Partly), (0.8, 0.7, Holds::No)] {
            let write_new = ratio(small).zip(ratio(large)).map(|(small, large)| [small, large]);
            assert_eq!(judged(3, &Found { write_new, ..Found::default() }), holds);
        }
        let write_new = noisy(1.2).map(|ratio| [ratio, ratio]);
        assert_eq!(judged(3, &Found { write_new, ..Found::default() }), Holds::CannotTell);
        for (found, faults, holds) in [
            (ratio(5.0), [1.0, 0.0], Holds::Yes),
            (ratio(5.0), [0.0, 0.0], Holds::Partly),
            (ratio(0.8), [0.0, 0.0], Holds::No),
            (noisy(1.05), [1.0, 0.0], Holds::CannotTell),
        ] {
            let (faults, mapped_seconds) = (Some(faults), Some([1.0, 0.1]));
            assert_eq!(judged(4, &Found { write_touched: found, faults, mapped_seconds, ..Found::default() }), holds);
        }
        assert!(CLAIMS.iter().all(|claim| (claim.judge)(&Found::default()).holds == Holds::CannotTell));
    }
}
