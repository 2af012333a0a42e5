//! Two passes over an uncached file that is smaller than memory. The cold pass reads each page once; the warm pass
//! reads the same pages again.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use drumlin_io::AlignedBuffer;
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::figures::{self, Form};
use crate::map::{Advice, Map, Mode};
use crate::measure::Sample;
use crate::report::{Chapter, Table};
use crate::session::Session;
use crate::temp_folder;
use crate::worker::Measurement;

const PAGE_BYTES: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Method {
    Mapped(Advice),
    /// read(2) through the page cache.
    Call,
    /// read(2) with `O_DIRECT` into a buffer. Nothing is cached.
    Direct,
}

impl Method {
    const ALL: [Method; 4] =
        [Method::Mapped(Advice::Normal), Method::Mapped(Advice::Random), Method::Call, Method::Direct];

    fn name(self) -> String {
        match self {
            Method::Mapped(advice) => format!("mapped, {}", advice.name()),
            Method::Call => "read(2)".to_owned(),
            Method::Direct => "read(2), direct".to_owned(),
        }
    }
}

/// Measures a cold and a warm pass over a file, with one of the methods.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    path: PathBuf,
    method: Method,
    is_random: bool,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observation {
    cold_seconds: f64,
    warm_seconds: f64,
    /// The bytes that the device read during the cold pass, per byte of the file.
    device_bytes: f64,
}

impl Measurement for Task {
    const NAME: &'static str = "calls: cold start";
    type Result = Observation;

    fn perform(self, _observe: impl FnMut(&Sample)) -> io::Result<Observation> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        temp_folder::forget_cached(&file)?;
        let reader = if self.method == Method::Direct { temp_folder::open_direct(&self.path, false)? } else { file };
        let bytes = reader.metadata()?.len() as usize;
        let map = match self.method {
            Method::Mapped(advice) => {
                let map = Map::new(&reader, bytes, Mode::Shared)?;
                map.advise(advice)?;
                Some(map)
            }
            _ => None,
        };
        let mut buffer = AlignedBuffer::zeroed(PAGE_BYTES);
        let mut pass = || -> io::Result<f64> {
            let start = Instant::now();
            for place in places(bytes / PAGE_BYTES, self.is_random) {
                let at = place * PAGE_BYTES;
                match &map {
                    Some(map) => buffer.copy_from_slice(&map[at..at + PAGE_BYTES]),
                    None => reader.read_exact_at(&mut buffer, at as u64)?,
                }
                black_box(&buffer);
            }
            Ok(start.elapsed().as_secs_f64())
        };
        let before = Counters::now();
        let cold_seconds = pass()?;
        let device = Counters::now().since(&before).device_read_bytes;
        let warm_seconds = pass()?;
        Ok(Observation { cold_seconds, warm_seconds, device_bytes: device as f64 / bytes as f64 })
    }
}

/// Returns the index of each page once, in order or scattered. To scatter them, it multiplies by an odd factor modulo
/// `pages`, a power of two.
fn places(pages: usize, is_random: bool) -> impl Iterator<Item = usize> {
    assert!(pages.is_power_of_two(), "{pages} pages");
    (0..pages).map(move |index| if is_random { index.wrapping_mul(0x9E37_79B1) % pages } else { index })
}

fn bytes(session: &Session<'_>) -> u64 {
    if session.settings.quick { 16 << 20 } else { 64 << 20 }
}

/// Estimates the duration of a trial. The slowest passes make 10,000 reads a second; the average of all passes is
/// assumed to be 20,000.
fn turn_seconds(session: &Session<'_>) -> f64 {
    0.1 + bytes(session) as f64 / PAGE_BYTES as f64 / 2e4
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    Session::rounds_seconds(2 * Method::ALL.len(), session.pacing.rounds, turn_seconds(session))
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    let bytes = bytes(session);
    let path = session.temp_folder.filled("cold", bytes, |_| !session.interrupted())?;
    let cases: Vec<(Method, bool)> =
        [true, false].into_iter().flat_map(|order| Method::ALL.map(|method| (method, order))).collect();
    let trials = session.run_rounds(
        &cases,
        session.pacing.rounds,
        turn_seconds(session),
        |(method, _)| format!("calls: a cold start, {}", method.name()),
        |&(method, is_random), _| (Task { path: path.clone(), method, is_random }, None),
    );
    std::fs::remove_file(&path)?;
    let mut table = Table::new(
        format!("From a cold start: {} in pieces of 4 KiB, smaller than memory", figures::size(bytes)),
        &[
            ("", Form::Text),
            ("first pass", Form::Seconds),
            ("second pass", Form::Seconds),
            ("both", Form::Seconds),
            ("device bytes per byte", Form::Ratio),
        ],
    );
    for ((method, is_random), trials) in cases.iter().zip(&trials) {
        table.row(vec![
            format!("{}: {}", if *is_random { "random" } else { "in order" }, method.name()).into(),
            trials.median(|seen| seen.cold_seconds).into(),
            trials.median(|seen| seen.warm_seconds).into(),
            trials.median(|seen| seen.cold_seconds + seen.warm_seconds).into(),
            trials.median(|seen| seen.device_bytes).into(),
        ]);
    }
    chapter.tables.push(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both orders visit each page exactly once.
    #[test]
    fn passes_read_each_page_once() {
        let mut found: Vec<usize> = places(256, true).collect();
        assert!(found.windows(2).any(|pair| pair[0] > pair[1]));
        found.sort_unstable();
        assert!(found.into_iter().eq(places(256, false)));
    }

    /// Both passes succeed with every read method.
    #[test]
    fn every_way_reads() {
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = temp_folder.filled("file", 1 << 20, |_| true).unwrap();
        for method in Method::ALL {
            let Ok(seen) = (Task { path: path.clone(), method, is_random: true }).perform(|_| {}) else {
                assert_eq!(method, Method::Direct, "a file system in memory has no direct reads");
                continue;
            };
            assert!(seen.cold_seconds > 0.0 && seen.warm_seconds > 0.0);
        }
    }
}
