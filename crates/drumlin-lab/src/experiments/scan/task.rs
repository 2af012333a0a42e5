//! A worker's scan of a file or block device from start to end.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use drumlin_io::{AlignedBuffer, Driver, OpenOptions, ReadStream, StreamOptions};
use serde::{Deserialize, Serialize};

use crate::map::{self, Advice, Map, Mode};
use crate::measure::{Load, Pace, Sample, Timing, load};
use crate::ring::{ReadRing, RingOptions};
use crate::temp_folder;
use crate::worker::Measurement;

/// The distance between the words that a scan reads: one in each page, so that a mapping has to bring in every page.
const PAGE_BYTES: usize = 4096;

/// A scan of a mapping counts this many bytes as one operation, so that its rate over time can be shown.
pub(super) const STEP_BYTES: usize = 128 << 10;

/// A method of reading a file sequentially.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Method {
    Mapped(Advice),
    Buffered,
    /// One request at a time.
    Direct,
    Ring {
        depth: usize,
        options: RingOptions,
    },
    /// Drumlin's stream, whose bytes are either copied out by `Read` or used in place in the stream's buffers.
    Stream {
        requests: usize,
        copied: bool,
    },
}

/// A sequential read of a whole file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(super) path: PathBuf,
    pub(super) method: Method,
    pub(super) request_bytes: usize,
    pub(super) threads: usize,
    pub(super) timing: Timing,
}

fn look(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(PAGE_BYTES).map(|page| u64::from_le_bytes(page[..8].try_into().expect("eight bytes")));
    words.fold(0, |all, word| all ^ word)
}

impl Measurement for Task {
    const NAME: &'static str = "scan";
    type Result = Load;

    fn perform(self, observe: impl FnMut(&Sample)) -> io::Result<Load> {
        let buffered = File::options().read(true).write(true).open(&self.path)?;
        temp_folder::forget_cached(&buffered)?;
        let bytes = map::length(&buffered)?;
        let map = match self.method {
            Method::Mapped(advice) => {
                let map = Map::new(&buffered, bytes as usize, Mode::Shared)?;
                map.advise(advice)?;
                Some(map)
            }
            Method::Buffered => {
                rustix::fs::fadvise(&buffered, 0, None, rustix::fs::Advice::Sequential)?;
                None
            }
            _ => None,
        };
        // Each thread scans its own part.
        let part_bytes = (bytes / self.threads as u64) >> 20 << 20;
        load(self.threads, self.timing, observe, |thread, pace| {
            let start = thread as u64 * part_bytes;
            let range = start..start + part_bytes;
            match (self.method, &map) {
                (Method::Mapped(_), Some(map)) => {
                    for step in map[range.start as usize..range.end as usize].chunks(STEP_BYTES) {
                        let started = Instant::now();
                        pace.check ^= look(step);
                        pace.done(started, step.len() as u64);
                        if !pace.go_on() {
                            break;
                        }
                    }
                    Ok(())
                }
                (Method::Buffered, _) => self.read_each(&buffered, range, pace),
                (Method::Direct, _) => self.read_each(&temp_folder::open_direct(&self.path, false)?, range, pace),
                (Method::Ring { depth, options }, _) => {
                    let file = temp_folder::open_direct(&self.path, false)?;
                    self.read_in_flight(&mut ReadRing::new(&file, depth, self.request_bytes, options)?, range, pace)
                }
                (Method::Stream { requests, copied }, _) => self.read_stream(requests, copied, range, pace),
                (Method::Mapped(_), None) => unreachable!("mapped above"),
            }
        })
    }
}

impl Task {
    /// Creates a scan by one thread with `depth` requests in flight.
    pub(crate) fn in_flight(path: &Path, request_bytes: usize, depth: usize, timing: Timing) -> Task {
        let method = Method::Ring { depth, options: RingOptions::default() };
        Task { path: path.to_owned(), method, request_bytes, threads: 1, timing }
    }

    fn read_each(&self, file: &File, range: Range<u64>, pace: &mut Pace<'_>) -> io::Result<()> {
        let mut buffer = AlignedBuffer::zeroed(self.request_bytes);
        for offset in range.step_by(self.request_bytes) {
            let started = Instant::now();
            file.read_exact_at(&mut buffer, offset)?;
            pace.check ^= look(&buffer);
            pace.done(started, buffer.len() as u64);
            if !pace.go_on() {
                break;
            }
        }
        Ok(())
    }

    fn read_in_flight(&self, ring: &mut ReadRing, range: Range<u64>, pace: &mut Pace<'_>) -> io::Result<()> {
        let mut offsets = range.step_by(self.request_bytes);
        loop {
            while pace.go_on() && ring.has_room() {
                let Some(offset) = offsets.next() else { break };
                ring.push(offset);
            }
            if ring.in_flight() == 0 {
                return Ok(());
            }
            ring.wait(|started, bytes| {
                pace.check ^= look(bytes);
                pace.done(started, bytes.len() as u64);
            })?;
        }
    }

    fn read_stream(&self, requests: usize, copied: bool, range: Range<u64>, pace: &mut Pace<'_>) -> io::Result<()> {
        let driver = Driver::new()?;
        let options = OpenOptions { direct: true, ..OpenOptions::default() };
        let file = drumlin_io::File::open(&driver, &self.path, options).wait()?;
        let options = StreamOptions { request_bytes: self.request_bytes, requests };
        let bytes = range.end - range.start;
        let mut stream = ReadStream::open(&file, range, options)?;
        if copied {
            let mut buffer = vec![0; self.request_bytes];
            for _ in 0..bytes / self.request_bytes as u64 {
                let started = Instant::now();
                stream.read_exact(&mut buffer)?;
                pace.check ^= look(&buffer);
                pace.done(started, buffer.len() as u64);
                if !pace.go_on() {
                    break;
                }
            }
            return Ok(());
        }
        let mut started = Instant::now();
        while let Some(buffer) = driver.block_on(stream.next_buffer())? {
            pace.check ^= look(&buffer);
            pace.done(started, buffer.len() as u64);
            started = Instant::now();
            if !pace.go_on() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every method reads the whole file and sees the same bytes.
    #[test]
    fn every_method_reads_all() {
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = temp_folder.filled("data", 4 << 20, |_| true).unwrap();
        let ring = |options| Method::Ring { depth: 3, options };
        let methods = [
            (Method::Buffered, 1),
            (Method::Mapped(Advice::Sequential), 1),
            (Method::Direct, 1),
            (Method::Stream { requests: 4, copied: true }, 1),
            (Method::Stream { requests: 8, copied: false }, 1),
            (ring(RingOptions::default()), 1),
            (ring(RingOptions { registered: true, huge: true, polled: false }), 1),
            (Method::Mapped(Advice::Normal), 4),
        ];
        let mut checks = Vec::new();
        for (method, threads) in methods {
            let timing = Timing { seconds: 60.0, sample_seconds: 0.0 };
            match (Task { path: path.clone(), method, request_bytes: 128 << 10, threads, timing }).perform(|_| {}) {
                Ok(load) => {
                    assert_eq!(load.bytes, 4 << 20, "{method:?}");
                    // Several threads add up their checksums, so their sum differs from the checksum of a single
                    // thread.
                    if threads == 1 {
                        checks.push(load.check);
                    }
                }
                Err(error) => {
                    let can_be_refused = matches!(method, Method::Direct | Method::Ring { .. });
                    assert!(can_be_refused, "{method:?}: {error}");
                }
            }
        }
        assert!(checks.len() > 3 && checks.iter().all(|check| *check == checks[0]), "{checks:?}");
    }
}
