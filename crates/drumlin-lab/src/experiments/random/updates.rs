//! A worker's updates at random offsets of a file larger than memory: through a shared mapping, and in the frames of a
//! small buffer pool with direct reads and writes.
//!
//! In the pool, each thread has its own part of the file and its own frames, and each page has only one frame that can
//! hold it. A miss writes the frame's page back and reads the requested page. This is the simplest possible pool, so
//! any real pool should do at least as well.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use drumlin_io::AlignedBuffer;
use serde::{Deserialize, Serialize};

use super::BLOCK_BYTES;
use super::task::Places;
use crate::map::{Advice, Map, Mode};
use crate::measure::{Load, Pace, Sample, Timing, load};
use crate::temp_folder;
use crate::worker::Measurement;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Method {
    Mapped,
    /// A buffer pool whose frames occupy this much memory in total.
    Pool {
        bytes: u64,
    },
}

/// Updates one word of a random page at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(super) path: PathBuf,
    pub(super) range_bytes: u64,
    pub(super) method: Method,
    pub(super) threads: usize,
    pub(super) timing: Timing,
    pub(super) seed: u64,
}

impl Measurement for Task {
    const NAME: &'static str = "updates";
    type Result = Load;

    fn perform(self, observe: impl FnMut(&Sample)) -> io::Result<Load> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        temp_folder::forget_cached(&file)?;
        let part_bytes = self.range_bytes / self.threads as u64 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let places = |thread: usize| Places::new(self.seed * 1000 + thread as u64, part_bytes, BLOCK_BYTES as u64);
        let done = match self.method {
            Method::Mapped => {
                let map = Map::new(&file, self.range_bytes as usize, Mode::Shared)?;
                map.advise(Advice::Random)?;
                load(self.threads, self.timing, observe, |thread, pace| {
                    let (start, mut places) = (thread as u64 * part_bytes, places(thread));
                    while pace.go_on() {
                        let (place, started) = (start + places.next(), Instant::now());
                        map.word(place as usize).fetch_add(1, Ordering::Relaxed);
                        pace.done(started, BLOCK_BYTES as u64);
                    }
                    Ok(())
                })?
            }
            Method::Pool { bytes } => {
                let direct = temp_folder::open_direct(&self.path, true)?;
                let frames = (bytes / self.threads as u64 / BLOCK_BYTES as u64).max(1) as usize;
                load(self.threads, self.timing, observe, |thread, pace| {
                    let mut pool = Pool::new(&direct, thread as u64 * part_bytes, frames);
                    pool.update(&mut places(thread), pace)
                })?
            }
        };
        // Write back now; otherwise the next trial would wait for pages that this one dirtied.
        file.sync_data()?;
        temp_folder::forget_cached(&file)?;
        Ok(done)
    }
}

/// One thread's frames.
struct Pool<'f> {
    file: &'f File,
    /// The offset of the part that this thread updates.
    start: u64,
    frames: AlignedBuffer,
    /// The page that each frame holds, as its index in the part.
    pages: Vec<Option<u64>>,
}

impl Pool<'_> {
    fn new(file: &File, start: u64, frames: usize) -> Pool<'_> {
        Pool { file, start, frames: AlignedBuffer::zeroed(frames * BLOCK_BYTES), pages: vec![None; frames] }
    }

    fn update(&mut self, places: &mut Places, pace: &mut Pace<'_>) -> io::Result<()> {
        while pace.go_on() {
            let (page, started) = (places.next() / BLOCK_BYTES as u64, Instant::now());
            let frame = self.fetch(page)?;
            let word = u64::from_le_bytes(frame[..8].try_into().expect("eight bytes"));
            frame[..8].copy_from_slice(&word.wrapping_add(1).to_le_bytes());
            pace.done(started, BLOCK_BYTES as u64);
        }
        Ok(())
    }

    /// Returns the frame that holds this page. Every page in a frame has been updated, so a miss first writes the
    /// frame's old page back.
    fn fetch(&mut self, page: u64) -> io::Result<&mut [u8]> {
        let index = (page % self.pages.len() as u64) as usize;
        let frame = &mut self.frames[index * BLOCK_BYTES..][..BLOCK_BYTES];
        let offset = |page: u64| self.start + page * BLOCK_BYTES as u64;
        if self.pages[index] != Some(page) {
            if let Some(other) = self.pages[index].take() {
                self.file.write_all_at(frame, offset(other))?;
            }
            self.file.read_exact_at(frame, offset(page))?;
            self.pages[index] = Some(page);
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No update is lost: each is either in the file or in a frame.
    #[test]
    fn no_update_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, vec![0; 16 * BLOCK_BYTES]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut pool = Pool::new(&file, 4 * BLOCK_BYTES as u64, 3);
        for step in 0..60u64 {
            pool.fetch(step * 7 % 12).unwrap()[0] += 1;
        }
        for page in 0..12 {
            assert_eq!(pool.fetch(page).unwrap()[0], 5, "{page}");
        }
    }

    /// Both methods complete updates.
    #[test]
    fn both_ways_update() {
        let folder = tempfile::tempdir().unwrap();
        let temp_folder = temp_folder::TempFolder::create(folder.path()).unwrap();
        let path = temp_folder.filled("data", 1 << 20, |_| true).unwrap();
        let timing = Timing { seconds: 0.02, sample_seconds: 0.0 };
        for method in [Method::Mapped, Method::Pool { bytes: 64 << 10 }] {
            let task = Task { path: path.clone(), range_bytes: 1 << 20, method, threads: 2, timing, seed: 1 };
            match task.perform(|_| {}) {
                Ok(load) => assert!(load.operations > 0, "{method:?}"),
                Err(error) => assert_ne!(method, Method::Mapped, "{error}"),
            }
        }
    }
}
