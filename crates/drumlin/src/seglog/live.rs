//! The live log: reading, verifying and truncating a log while it is open.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::reader::{self, Bodies, Merge, Reader, Records};
use super::segment::{Segment, Spare};
use super::shared::SharedLog;
use super::windows::{Limit, Window};
use crate::error::{Error, Result};
use crate::format::log::SegmentHeader;
use crate::format::{BLOCK_BYTES, CheckpointNumber, StreamId, StreamPosition, Timestamp};
use crate::io::AlignedBuffer;

/// The result of [`Log::verify`](super::Log::verify).
#[derive(Debug, Default)]
pub(crate) struct Verified {
    pub(crate) segment_count: u64,
    pub(crate) record_count: u64,
    pub(crate) record_bytes: u64,
    /// The damage found. Each entry is an [`Error::Corrupted`] or a read error.
    pub(crate) corruption: Vec<Error>,
}

impl SharedLog {
    pub(super) fn truncate(&self, limit: Limit, checkpoint: CheckpointNumber) {
        let before = self.checkpoint.fetch_max(checkpoint.0, Ordering::SeqCst);
        assert!(before <= checkpoint.0, "checkpoint {checkpoint} follows {before}");
        if let Limit::Covered(covered) = limit {
            let truncated = self.truncated.load(Ordering::SeqCst);
            assert!(truncated <= covered.0, "a checkpoint of {covered} follows a truncation up to {truncated}");
        }
        let mut free: Vec<Arc<Segment>> = Vec::new();
        let old: Vec<Window> = self.old.lock().extract_if(.., |window| limit.passes(window, window.end())).collect();
        for window in old {
            self.give_up(window.last);
            free.push(window.segment);
        }
        for stream in &self.streams {
            let mut tail = stream.tail.lock();
            let (mut segments, mut newest) = tail.take_covered_windows(limit);
            // If there is no space for a second window, reuse the stream's only window.
            if tail.is_disk_full()
                && let Some(window) = tail.take_last_window(limit)
            {
                newest = newest.max(window.last);
                segments.push(window.segment);
                tail.want_window();
            }
            if let Limit::Covered(covered) = limit {
                assert!(newest <= Some(covered), "records above {covered} are given up: {newest:?}");
            }
            self.give_up(newest);
            tail.spares.begin_interval();
            tail.set_disk_full(false);
            drop(tail);
            free.extend(segments);
        }
        if let Err(error) = self.list() {
            self.fail(&format!("listing the segments of {} failed: {error}", self.folder.path().display()));
            return;
        }
        for segment in free {
            match self.streams.get(segment.header.stream.index()) {
                Some(stream) => stream.tail.lock().spares.extend([Spare::of(segment)]),
                None => self.doomed.lock().push(Spare::of(segment)),
            }
        }
        self.request_preparation();
    }

    /// Returns the segment that holds this position of the only stream. While the caller keeps it, the file is not
    /// reused.
    pub(super) fn segment_at(&self, position: StreamPosition) -> Option<Arc<Segment>> {
        let holds = |window: &&Window| window.start() <= position && position < window.end();
        // Windows move from `old` to the spares, and never into `old`.
        debug_assert!(self.streams.len() == 1, "a position is in one of several streams");
        let old = self.old.lock().iter().rfind(holds).map(|window| Arc::clone(&window.segment));
        old.or_else(|| {
            let tail = self.streams[0].tail.lock();
            tail.windows.iter().find(holds).map(|window| Arc::clone(&window.segment))
        })
    }

    pub(super) fn read_at(&self, mut position: StreamPosition, mut target: &mut [u8]) -> Result<bool> {
        let end = position + target.len() as u64;
        assert!(
            end <= self.streams[0].tail.lock().durable_position(),
            "bytes up to {end} are read before they are written"
        );
        while !target.is_empty() {
            let Some(segment) = self.segment_at(position) else { return Ok(false) };
            let bytes = (segment.end() - position).min(target.len() as u64) as usize;
            assert!(bytes > 0, "{segment:?} does not hold {position}");
            let (part, rest) = std::mem::take(&mut target).split_at_mut(bytes);
            let begin = position.block_start();
            let mut blocks = AlignedBuffer::zeroed(((position + bytes as u64).block_end() - begin) as usize);
            let read = segment.file.read_at(&mut blocks, segment.offset(begin));
            read.map_err(|error| Error::io("reading", segment.path(), error))?;
            let skipped_bytes = (position - begin) as usize;
            part.copy_from_slice(&blocks[skipped_bytes..skipped_bytes + bytes]);
            position += bytes as u64;
            target = rest;
        }
        Ok(true)
    }

    pub(super) fn full_windows(&self) -> Vec<(StreamPosition, StreamPosition)> {
        let bounds = |window: &Window| (window.start(), window.end());
        let mut windows: Vec<_> = self.old.lock().iter().map(bounds).collect();
        let tail = self.streams[0].tail.lock();
        let durable = tail.durable_position();
        windows.extend(tail.windows.iter().map(bounds).take_while(|(_, end)| *end <= durable));
        windows.sort_unstable();
        debug_assert!(windows.is_sorted_by(|left, right| left.1 <= right.0), "two windows overlap: {windows:?}");
        debug_assert!(windows.iter().all(|(start, end)| start < end), "a window has no bytes: {windows:?}");
        windows
    }

    pub(super) fn file_bytes(&self) -> u64 {
        let window_bytes = |window: &Window| BLOCK_BYTES as u64 + window.segment.header.window_bytes;
        let spare_bytes = |spare: &Spare| BLOCK_BYTES as u64 + spare.window_bytes;
        let old: u64 = self.old.lock().iter().map(window_bytes).sum();
        let doomed: u64 = self.doomed.lock().iter().map(spare_bytes).sum();
        let streams = self.streams.iter().map(|stream| {
            let tail = stream.tail.lock();
            tail.windows.iter().map(window_bytes).sum::<u64>() + tail.spares.bytes()
        });
        let total = old + doomed + streams.sum::<u64>();
        debug_assert!(total.is_multiple_of(BLOCK_BYTES as u64), "{total} bytes are no whole blocks");
        total
    }

    /// Advances `truncated`: all records at or below `newest` may have been removed.
    fn give_up(&self, newest: Option<Timestamp>) {
        self.truncated.fetch_max(newest.unwrap_or_default().0, Ordering::SeqCst);
    }

    pub(super) fn read_from(&self, after: Timestamp) -> Result<Records> {
        // Load this first. Every record up to this horizon lies before the durable positions, which are read
        // afterwards.
        let durable = self.horizon.durable();
        let sources = self.sources();
        // Use half of the memory here, because the other half is for record bodies.
        let chunk_bytes = reader::chunk_bytes(self.options.reader_bytes / 2, sources.len());
        let truncated = self.truncated.load(Ordering::SeqCst);
        assert!(
            truncated <= self.horizon.durable().0,
            "records up to {truncated} were given up before they were durable"
        );
        if after.0 < truncated {
            return Err(Error::Invalid(format!(
                "the log no longer holds the records after timestamp {after}: those up to {truncated} were truncated"
            )));
        }
        let mut readers = Vec::new();
        for source in sources {
            readers.extend(source.reader_from(after, chunk_bytes)?);
        }
        let merge = Merge::new(readers, Bodies::Kept, self.history.clone(), after)?;
        Ok(Records::new(merge, durable, self.folder.path().to_path_buf()))
    }

    /// Returns the readable part of each stream, including streams of earlier openings. Holds the segments, so that
    /// they are not reused.
    fn sources(&self) -> Vec<Source> {
        let mut sources: Vec<Source> = Vec::new();
        for window in self.old.lock().iter() {
            let number = window.segment.header.stream;
            let source = match sources.iter_mut().find(|source| source.stream == number) {
                Some(source) => source,
                None => {
                    sources.push(Source { stream: number, windows: Vec::new(), limit: StreamPosition::MAX });
                    sources.last_mut().expect("just pushed")
                }
            };
            source.push(window);
            source.limit = window.end();
        }
        for (number, stream) in self.streams.iter().enumerate() {
            let tail = stream.tail.lock();
            let source = match sources.iter_mut().find(|source| source.stream.index() == number) {
                Some(source) => source,
                None => {
                    sources.push(Source {
                        stream: StreamId::of_index(number),
                        windows: Vec::new(),
                        limit: StreamPosition::START,
                    });
                    sources.last_mut().expect("just pushed")
                }
            };
            for window in tail.windows.iter().filter(|window| window.start() < tail.durable_position()) {
                source.push(window);
            }
            source.limit = tail.durable_position();
        }
        sources
    }

    pub(super) fn verify(&self) -> Result<Verified> {
        let mut verified = Verified::default();
        let durable = self.horizon.durable();
        let sources = self.sources();
        let chunk_bytes = reader::chunk_bytes(self.options.reader_bytes, sources.len());
        let truncated = Timestamp(self.truncated.load(Ordering::SeqCst));
        let mut readers = Vec::new();
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        for source in &sources {
            for (segment, _) in &source.windows {
                verified.segment_count += 1;
                if let Err(error) = segment.file.read_at(&mut block, 0) {
                    verified.corruption.push(Error::io("reading", segment.path(), error));
                    continue;
                }
                let reason = match SegmentHeader::decode(&block) {
                    Ok(Some(header))
                        if (SegmentHeader { filled: segment.header.filled, ..header }) == segment.header =>
                    {
                        continue;
                    }
                    Ok(Some(_)) => "it is that of another segment or use".to_string(),
                    Ok(None) => "it is zero".to_string(),
                    Err(reason) => reason.to_string(),
                };
                verified.corruption.push(Error::corrupted(segment.path(), "log segment header", reason));
            }
            readers.extend(source.reader_from(truncated, chunk_bytes)?);
        }
        let mut merge = Merge::new(readers, Bodies::Verified, self.history.clone(), truncated)?;
        while merge.next <= durable {
            if let Some(head) = merge.due() {
                verified.record_count += 1;
                let found = merge.heads[head].found.expect("the head that is due stands at a record");
                verified.record_bytes += u64::from(found.body_bytes);
                merge.step(head)?;
                continue;
            }
            let lost = merge.next;
            verified.corruption.push(reader::missing(lost, durable, merge.suspect().as_ref(), self.folder.path()));
            // Each range of missing timestamps counts as a single corruption.
            match merge.heads.iter().filter_map(|head| head.found).map(|found| found.timestamp).min() {
                Some(next) => merge.next = next,
                None => break,
            }
        }
        let record_count_max = durable.0.saturating_sub(truncated.0);
        assert!(verified.record_count <= record_count_max, "{verified:?} has more than {record_count_max} records");
        Ok(verified)
    }
}

/// A segment held for reading, and the index of its records.
type Held = (Arc<Segment>, Vec<(Timestamp, StreamPosition)>);

/// One stream's segments, readable up to `limit`.
#[derive(Debug)]
struct Source {
    stream: StreamId,
    windows: Vec<Held>,
    limit: StreamPosition,
}

impl Source {
    fn push(&mut self, window: &Window) {
        self.windows.push((Arc::clone(&window.segment), window.index.clone()));
    }

    /// Returns a reader for the records above `after`. It begins at the last index entry that can't lie past the first
    /// of these records.
    fn reader_from(&self, after: Timestamp, chunk_bytes: usize) -> Result<Option<Reader>> {
        let mut first = 0;
        let mut position = StreamPosition::START;
        for (number, (_, index)) in self.windows.iter().enumerate() {
            let below = index.partition_point(|&(timestamp, _)| timestamp <= after.next());
            if below > 0 {
                (first, position) = (number, index[below - 1].1);
            }
        }
        if self.windows.is_empty() {
            return Ok(None);
        }
        let segments = self.windows[first..].iter().map(|(segment, _)| Arc::clone(segment)).collect();
        Reader::new(segments, position, self.limit, chunk_bytes).map(Some)
    }
}
