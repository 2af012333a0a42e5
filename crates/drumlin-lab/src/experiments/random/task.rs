//! A worker's reads at random offsets of a file or block device.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use drumlin_io::AlignedBuffer;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::condition::Filling;
use crate::map::{Advice, Map, Mode};
use crate::measure::{Load, Pace, Sample, Timing, load, load_while};
use crate::ring::{ReadRing, RingOptions};
use crate::temp_folder;
use crate::worker::Measurement;

pub(crate) const BLOCK_BYTES: usize = 4096;

/// The number of files for [`Method::SmallFiles`]; a power of two.
pub(super) const SMALL_FILES: u64 = 2048;

/// A method of reading a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Method {
    Mapped(Advice),
    Buffered,
    Direct,
    Ring {
        depth: usize,
        options: RingOptions,
    },
    /// Each row has its own file, which the read opens. No file is read twice.
    SmallFiles,
}

impl Method {
    pub(crate) fn name(self) -> String {
        match self {
            Method::Mapped(advice) => format!("mmap, MADV_{}", advice.name()),
            Method::Buffered => "buffered pread".to_owned(),
            Method::Direct => "direct pread".to_owned(),
            Method::Ring { depth, options } => {
                let kind = match (options.registered, options.polled) {
                    (_, true) => ", polled",
                    (true, false) => ", registered",
                    (false, false) => "",
                };
                format!("direct io_uring, {depth} in flight{kind}")
            }
            Method::SmallFiles => "many small files".to_owned(),
        }
    }
}

/// Reads at random offsets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The file, or the folder of the small files.
    pub(crate) path: PathBuf,
    /// The reads stay within this many bytes from the beginning of the file.
    pub(crate) range_bytes: u64,
    /// The bytes requested at a time. A direct read fetches the whole blocks that contain them.
    pub(crate) ask_bytes: usize,
    pub(crate) method: Method,
    pub(crate) threads: usize,
    /// The number of bytes to read once in advance, from the beginning. If the range fits into memory, this brings all
    /// of it in. Otherwise more bytes than memory are read, to fill the page cache.
    pub(crate) warm_bytes: u64,
    /// The number of seconds to continue after memory is full, within the limit of `timing`. Only mapped reads can
    /// detect that memory is full.
    pub(crate) full_seconds: Option<f64>,
    pub(crate) timing: Timing,
    pub(crate) seed: u64,
}

/// A generator of random offsets that are aligned to a unit.
pub(super) struct Places {
    random: Xoshiro256PlusPlus,
    count: u64,
    unit: u64,
}

impl Places {
    pub(super) fn new(seed: u64, range_bytes: u64, unit: u64) -> Places {
        Places { random: Xoshiro256PlusPlus::seed_from_u64(seed), count: (range_bytes / unit).max(1), unit }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.random.random_range(0..self.count) * self.unit
    }
}

/// Uses the bytes that were read; otherwise the compiler could remove the read.
fn look(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

impl Measurement for Task {
    const NAME: &'static str = "random";
    type Result = Load;

    fn perform(self, mut observe: impl FnMut(&Sample)) -> io::Result<Load> {
        if self.method == Method::SmallFiles {
            return self.read_files(observe);
        }
        let buffered = File::options().read(true).write(true).open(&self.path)?;
        temp_folder::forget_cached(&buffered)?;
        let map = match self.method {
            Method::Mapped(advice) => {
                let map = Map::new(&buffered, self.range_bytes as usize, Mode::Shared)?;
                map.advise(advice)?;
                Some(map)
            }
            _ => None,
        };
        let mut buffer = vec![0; 1 << 20];
        for offset in (0..self.warm_bytes).step_by(buffer.len()) {
            buffered.read_exact_at(&mut buffer, offset)?;
        }
        let direct = match self.method {
            Method::Direct | Method::Ring { .. } => Some(temp_folder::open_direct(&self.path, false)?),
            _ => None,
        };
        let ask = self.ask_bytes;
        let (mut filling, mut full_at) = (Filling::default(), None);
        let watch = |sample: &Sample| {
            observe(sample);
            if full_at.is_none() && filling.is_full(sample) {
                full_at = Some(sample.at_seconds);
            }
            let end = self.full_seconds.zip(full_at).map(|(seconds, full_at)| full_at + seconds);
            end.is_none_or(|end| sample.at_seconds < end)
        };
        // The checksum does not depend on the order of the reads.
        load_while(self.threads, self.timing, watch, |thread, pace| {
            let unit = (ask as u64).min(BLOCK_BYTES as u64);
            let mut places = Places::new(self.seed * 1000 + thread as u64, self.range_bytes - ask as u64 + unit, unit);
            match (self.method, &map, &direct) {
                (Method::Mapped(_), Some(map), _) => {
                    while pace.go_on() {
                        let (place, started) = (places.next() as usize, Instant::now());
                        pace.check ^= look(&map[place..place + ask]);
                        pace.done(started, ask as u64);
                    }
                    Ok(())
                }
                (Method::Buffered, ..) => read_each(&buffered, ask, ask as u64, &mut places, pace),
                (Method::Direct, _, Some(file)) => {
                    read_each(file, ask.next_multiple_of(BLOCK_BYTES), ask as u64, &mut places, pace)
                }
                (Method::Ring { depth, options }, _, Some(file)) => {
                    let mut ring = ReadRing::new(file, depth, ask.next_multiple_of(BLOCK_BYTES), options)?;
                    read_in_flight(&mut ring, ask as u64, &mut places, pace)
                }
                _ => unreachable!("each method has what it reads from"),
            }
        })
    }
}

impl Task {
    /// Reads each small file once, in an order different from that of the names.
    fn read_files(self, observe: impl FnMut(&Sample)) -> io::Result<Load> {
        for index in 0..SMALL_FILES {
            temp_folder::forget_cached(&File::open(self.path.join(index.to_string()))?)?;
        }
        load(1, self.timing, observe, |_, pace| {
            let mut buffer = vec![0; self.ask_bytes];
            for index in 0..SMALL_FILES {
                if !pace.go_on() {
                    break;
                }
                let started = Instant::now();
                // Multiplying by an odd factor modulo a power of two visits each number once.
                let name = (index * 0x9E37_79B9 % SMALL_FILES).to_string();
                File::open(self.path.join(name))?.read_exact_at(&mut buffer, 0)?;
                pace.check ^= look(&buffer);
                pace.done(started, self.ask_bytes as u64);
            }
            Ok(())
        })
    }
}

fn read_each(file: &File, bytes: usize, asked: u64, places: &mut Places, pace: &mut Pace<'_>) -> io::Result<()> {
    let mut buffer = AlignedBuffer::zeroed(bytes);
    let is_direct = bytes.is_multiple_of(BLOCK_BYTES);
    while pace.go_on() {
        let place = places.next();
        let place = if is_direct { place / BLOCK_BYTES as u64 * BLOCK_BYTES as u64 } else { place };
        let started = Instant::now();
        file.read_exact_at(&mut buffer, place)?;
        pace.check ^= look(&buffer);
        pace.done(started, asked);
    }
    Ok(())
}

fn read_in_flight(ring: &mut ReadRing, asked: u64, places: &mut Places, pace: &mut Pace<'_>) -> io::Result<()> {
    loop {
        while pace.go_on() && ring.has_room() {
            ring.push(places.next());
        }
        if ring.in_flight() == 0 {
            return Ok(());
        }
        ring.wait(|started, bytes| {
            pace.check ^= look(bytes);
            pace.done(started, asked);
        })?;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::measure::median;

    const ROW_BYTES: usize = 1024;
    const THREADS: usize = 2;

    fn task(path: &Path, method: Method) -> Task {
        Task {
            path: path.to_owned(),
            range_bytes: 1 << 20,
            ask_bytes: BLOCK_BYTES,
            method,
            threads: THREADS,
            warm_bytes: 0,
            full_seconds: None,
            timing: Timing { seconds: 0.02, sample_seconds: 0.0 },
            seed: 1,
        }
    }

    /// Random offsets are aligned, stay within the range, and reach all of it.
    #[test]
    fn places_cover_the_range() {
        let mut places = Places::new(7, 64 * 4096, 4096);
        let mut seen = [false; 64];
        for _ in 0..2000 {
            let place = places.next();
            assert!(place.is_multiple_of(4096));
            seen[(place / 4096) as usize] = true;
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    /// Returns `true` if the operations match the bytes. Totals are read while threads run, so a thread may have
    /// counted an operation without its bytes.
    fn is_consistent(load: &Load, operation_bytes: u64) -> bool {
        load.bytes.abs_diff(load.operations * operation_bytes) <= THREADS as u64 * operation_bytes
    }

    /// Every method reads, or reports that the folder's file system does not support it.
    #[test]
    fn every_method_reads() {
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = temp_folder.filled("data", 1 << 20, |_| true).unwrap();
        let ring =
            |registered| Method::Ring { depth: 4, options: RingOptions { registered, ..RingOptions::default() } };
        for method in [Method::Mapped(Advice::Random), Method::Buffered, Method::Direct, ring(false), ring(true)] {
            match task(&path, method).perform(|_| {}) {
                Ok(load) => assert!(load.latency.count > 0 && is_consistent(&load, 4096), "{method:?}: {load:?}"),
                Err(error) => {
                    let refused = matches!(method, Method::Direct | Method::Ring { .. });
                    assert!(refused, "{method:?}: {error}");
                }
            }
        }
    }

    /// Rows smaller than a block are read at their offsets, even by direct reads.
    #[test]
    fn small_rows_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = temp_folder.filled("data", 1 << 20, |_| true).unwrap();
        for method in [Method::Mapped(Advice::Normal), Method::Buffered, Method::Direct] {
            let rows = Task { ask_bytes: ROW_BYTES, ..task(&path, method) };
            match rows.perform(|_| {}) {
                Ok(load) => assert!(is_consistent(&load, ROW_BYTES as u64), "{method:?}: {load:?}"),
                Err(error) => assert_eq!(method, Method::Direct, "{error}"),
            }
        }
    }

    /// Direct reads reach the rate that fio measures for the same file, depth and size, within 5 %. Both are medians of
    /// short trials. The test is timed, so it only runs on request: `cargo test -p drumlin-lab -- --ignored fio
    /// --nocapture`.
    #[test]
    #[ignore = "times a drive for two minutes, beside fio"]
    fn agrees_with_fio() {
        /// The rate of a shared drive changes within seconds. Many short trials spread these changes evenly over both
        /// programs, the lab and fio.
        const TURNS: u64 = 20;
        const SECONDS: f64 = 1.0;
        if std::process::Command::new("fio").arg("--version").output().is_err() {
            println!("fio is not installed");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = temp_folder::TempFolder::create(folder.path()).unwrap();
        let bytes = 1 << 30;
        let path = temp_folder.filled("data", bytes, |_| true).unwrap();
        let ring = Method::Ring { depth: 32, options: RingOptions::default() };
        for (method, engine, depth) in [(Method::Direct, "psync", 1), (ring, "io_uring", 32)] {
            let by_lab = |seed| {
                let task = Task {
                    range_bytes: bytes,
                    threads: 1,
                    timing: Timing { seconds: SECONDS, sample_seconds: 0.0 },
                    seed,
                    ..task(&path, method)
                };
                task.perform(|_| {}).unwrap().operations_per_second()
            };
            let by_fio = || {
                let output = std::process::Command::new("fio")
                    .args(["--name=check", "--rw=randread", "--bs=4k", "--direct=1", "--thread", "--readonly"])
                    .args(["--time_based", "--norandommap", "--randrepeat=0", "--output-format=json"])
                    // Configure fio like the lab: reap all completions, then submit as many new requests by a single
                    // call. A call per request is up to a fifth faster on some virtual drives.
                    .args(["--iodepth_batch_complete_min=1", "--iodepth_batch_complete_max=32"])
                    .arg("--iodepth_batch_submit=32")
                    .args([format!("--runtime={SECONDS}"), format!("--size={bytes}"), format!("--iodepth={depth}")])
                    .args([format!("--ioengine={engine}"), format!("--filename={}", path.display())])
                    .output()
                    .unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let json: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
                json["jobs"][0]["read"]["iops"].as_f64().unwrap()
            };
            let mut rates: [Vec<f64>; 2] = Default::default();
            for trial in 0..TURNS {
                // Each program goes first in half of the trials.
                let before = trial.is_multiple_of(2).then(|| by_lab(trial));
                rates[1].push(by_fio());
                rates[0].push(before.unwrap_or_else(|| by_lab(trial)));
            }
            let [ours, fio] = rates.map(median);
            println!(
                "{engine}, {depth} in flight: lab {ours:.0}/s, fio {fio:.0}/s, {:+.1} %",
                (ours / fio - 1.0) * 100.0
            );
            assert!((ours / fio - 1.0).abs() < 0.05, "{engine}: {ours} against fio's {fio}");
        }
    }
}
