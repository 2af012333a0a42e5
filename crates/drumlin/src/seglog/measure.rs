//! The commit rate of the log on real files. Not part of the public API.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{Body, Hooks, Log, LogOptions, segment};
use crate::error::{Error, Result};
use crate::format::{BLOCK_BYTES, CheckpointNumber, DatabaseId, Incarnation, Timestamp};
use crate::io::{self, AlignedBuffer, Backend, OpenOptions, Persist, SyncMethod};

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct Course {
    /// An empty folder on the file system in question.
    pub dir: PathBuf,
    /// The sync method.
    pub sync: SyncMethod,
    /// Streams of the log.
    pub streams: u16,
    /// Threads that commit.
    pub committers: usize,
    /// Bytes of a record's body.
    pub body_bytes: usize,
    /// The duration of the measurement.
    pub duration: Duration,
}

/// The results of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Commits, or plain writes, per second.
    pub commits: f64,
    /// Durable writes per second.
    pub syncs: f64,
}

/// Measures durable writes of one block, one after another, through a filled file of 16 MiB: the rate of the device
/// itself.
pub fn raw_rate(backend: &Arc<dyn Backend>, course: &Course) -> Result<Rates> {
    let path = course.dir.join("raw");
    let io = |error| Error::io("measuring", &path, error);
    backend.create_dir_all(&course.dir).map_err(io)?;
    let options = OpenOptions { write: true, create: true, direct: true, ..OpenOptions::default() };
    let file = backend.open(&path, options).map_err(io)?;
    let file_bytes = 16 << 20;
    segment::write_zeros(&file, 0, file_bytes).map_err(io)?;
    file.sync_all().map_err(io)?;
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    block.fill(7);
    let start = backend.now();
    let mut count = 0;
    while backend.now() - start < course.duration {
        let offset = count * BLOCK_BYTES as u64 % file_bytes;
        file.write_at(&block, offset, Persist::Now(course.sync)).map_err(io)?;
        count += 1;
    }
    let rate = count as f64 / (backend.now() - start).as_secs_f64();
    drop(file);
    backend.remove(&path).map_err(io)?;
    Ok(Rates { commits: rate, syncs: rate })
}

/// Measures commits that each wait until they are durable.
pub fn commit_rate(backend: &Arc<dyn Backend>, course: &Course) -> Result<Rates> {
    let dir = course.dir.join("log");
    let io = |error| Error::io("opening", &dir, error);
    backend.create_dir_all(&dir).map_err(io)?;
    let folder = io::open_folder(backend, &dir).map_err(io)?;
    let options = LogOptions {
        streams: course.streams,
        segment_bytes: 16 << 20,
        buffer_bytes: 4 << 20,
        reader_bytes: 1 << 20,
        body_bytes: 0,
        sync: course.sync,
        database: DatabaseId(1),
    };
    let log = Log::create(backend, &folder, &options, Incarnation(1), Hooks::none())?;
    // Segments are prepared ahead of need, and reused after a while. Wait for the first, to measure that state.
    while (0..log.stream_count()).any(|stream| log.shared.streams[stream].tail.lock().preparation().is_some()) {
        crate::sync::yield_now();
    }
    let stop = AtomicBool::new(false);
    let commits = AtomicU64::new(0);
    let syncs_before = log.sync_count();
    let start = backend.now();
    let result = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..course.committers)
            .map(|number| {
                let (log, stop, commits) = (&log, &stop, &commits);
                let stream = number % log.stream_count();
                scope.spawn(move || {
                    let mut own = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let body = Body::new(vec![number as u8; course.body_bytes]);
                        let appended = log.reserve(stream, course.body_bytes)?.append(&body)?;
                        log.wait_durable(&appended)?;
                        own += 1;
                    }
                    commits.fetch_add(own, Ordering::Relaxed);
                    Ok(())
                })
            })
            .collect();
        let mut checkpoint = CheckpointNumber::NONE;
        while backend.now() - start < course.duration {
            crate::sync::sleep(Duration::from_millis(50));
            checkpoint = checkpoint.next();
            log.truncate(log.durable(), checkpoint);
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().expect("a committer panicked"))
    });
    let seconds = (backend.now() - start).as_secs_f64();
    let syncs = log.sync_count() - syncs_before;
    log.close(Timestamp(0))?;
    drop(log);
    for name in folder.list().map_err(|error| Error::io("listing", &dir, error))? {
        folder.remove(&name).map_err(|error| Error::io("removing", &dir.join(&name), error))?;
    }
    result.map(|()| Rates { commits: commits.load(Ordering::Relaxed) as f64 / seconds, syncs: syncs as f64 / seconds })
}
