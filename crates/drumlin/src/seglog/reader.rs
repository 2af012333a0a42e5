//! Reading a log: the records of one stream by position, and the records of all streams by timestamp.
//!
//! A record that does not verify does not end a stream: the reader continues, in steps of 8 bytes, to the end of its
//! range. The caller compares timestamps with horizons and decides what a gap means.

use std::path::PathBuf;
use std::sync::Arc;

use super::segment::{BLOCK, Segment};
use crate::error::{Error, Result};
use crate::format::log::{
    FLAG_AFTER_DATA, RECORD_ALIGNMENT_BYTES, RECORD_HEADER_BYTES, RECORD_MAGIC, RecordHeader, record_bytes, record_seed,
};
use crate::format::{Checksum, Incarnation, StreamPosition, Timestamp, checksum, get_u32};
use crate::io::AlignedBuffer;

const STEP: u64 = RECORD_ALIGNMENT_BYTES as u64;

/// The maximum size of one read. A drive reaches its full bandwidth at 1 MiB.
const CHUNK_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(CHUNK_BYTES_MAX.is_multiple_of(BLOCK as usize), "a read ends within a block");
const _: () = assert!(RECORD_HEADER_BYTES.is_multiple_of(RECORD_ALIGNMENT_BYTES), "a body begins between two steps");

/// Returns the size of one read if `streams` streams share `memory_bytes`.
pub(super) fn chunk_bytes(memory_bytes: usize, streams: usize) -> usize {
    let block = BLOCK as usize;
    (memory_bytes / streams.max(1) / block * block).clamp(block, CHUNK_BYTES_MAX)
}

/// Says whether a merge keeps record bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bodies {
    /// Bodies are verified but not kept.
    Verified,
    /// Bodies are verified. The body of each stream's current record is kept until it is taken, up to one chunk per
    /// stream.
    Kept,
}

/// Decides which records count, by their incarnations.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// The openings in ascending order, each with its first timestamp.
    openings: Vec<(Incarnation, Timestamp)>,
}

impl History {
    pub(super) fn new(openings: &[(Incarnation, Timestamp)]) -> History {
        let mut openings = openings.to_vec();
        openings.sort_unstable();
        History { openings }
    }

    pub(super) fn add(&mut self, incarnation: Incarnation, first: Timestamp) {
        if self.openings.last().is_none_or(|&(newest, _)| newest < incarnation) {
            self.openings.push((incarnation, first));
        }
    }

    pub(super) fn newest(&self) -> Option<Incarnation> {
        self.openings.last().map(|&(incarnation, _)| incarnation)
    }

    /// Returns `true` if a record counts. Its timestamp must be at or above the start of its own incarnation, if that
    /// is listed, and below the starts of all later incarnations.
    pub(super) fn admits(&self, incarnation: Incarnation, timestamp: Timestamp) -> bool {
        let later = self.openings.partition_point(|&(other, _)| other <= incarnation);
        let own = self.openings[..later].last().filter(|&&(other, _)| other == incarnation);
        own.is_none_or(|&(_, first)| timestamp >= first)
            && self.openings[later..].iter().all(|&(_, first)| timestamp < first)
    }
}

/// Returns the first offset in `bytes`, in steps of 8, at which a record header may begin.
fn find_magic(bytes: &[u8]) -> Option<usize> {
    // The unused part of a log file is all zeros. Skipping them in larger units is faster.
    const ZEROS: [u8; 512] = [0; 512];
    bytes.chunks(ZEROS.len()).enumerate().filter(|(_, part)| **part != ZEROS[..part.len()]).find_map(|(index, part)| {
        let step = part.chunks_exact(RECORD_ALIGNMENT_BYTES).position(|word| get_u32(word, 0) == RECORD_MAGIC)?;
        Some(index * ZEROS.len() + step * RECORD_ALIGNMENT_BYTES)
    })
}

/// A verified record, without its body.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundRecord {
    pub(super) timestamp: Timestamp,
    pub(super) incarnation: Incarnation,
    pub(super) position: StreamPosition,
    pub(super) end: StreamPosition,
    pub(super) body_bytes: u32,
    time_ms: u64,
    body_checksum: u64,
    /// Set if the record names extents. See [`Body::naming_extents`](super::record::Body::naming_extents).
    pub(super) names_extents: bool,
    /// The index of the segment in which the record starts, in the reader's list.
    pub(super) segment: usize,
}

/// The start of bytes that are neither a record nor padding.
#[derive(Clone, Debug)]
pub(super) struct Skipped {
    pub(super) path: PathBuf,
    pub(super) offset: u64,
}

/// Reads one stream.
#[derive(Debug)]
pub(super) struct Reader {
    /// The segments in ascending order of use number.
    segments: Vec<Arc<Segment>>,
    /// The end of the readable bytes of each window. It lies before the window's end if the file is incomplete.
    readable_ends: Vec<StreamPosition>,
    segment: usize,
    position: StreamPosition,
    limit: StreamPosition,
    chunk_bytes: usize,
    chunk: AlignedBuffer,
    chunk_segment: usize,
    chunk_start: StreamPosition,
    /// The newest horizon in any verified header, even if the body that followed the header did not verify.
    pub(super) horizon: Timestamp,
    pub(super) newest_incarnation: Incarnation,
    /// For each segment, the end of the last verified record (or verified header without a valid body) that starts in
    /// it.
    pub(super) verified_ends: Vec<Option<StreamPosition>>,
    /// The first bytes after the last record that are neither a record nor padding.
    pub(super) skipped: Option<Skipped>,
}

impl Reader {
    /// Creates a reader of `segments`. It begins at `position`, which lies in the first segment, stops before `limit`,
    /// and reads `chunk_bytes` at a time.
    pub(super) fn new(
        segments: Vec<Arc<Segment>>,
        position: StreamPosition,
        limit: StreamPosition,
        chunk_bytes: usize,
    ) -> Result<Reader> {
        let is_whole = chunk_bytes > 0 && chunk_bytes.is_multiple_of(BLOCK as usize);
        assert!(is_whole, "a stream is read in parts of {chunk_bytes} bytes");
        debug_assert!(
            segments.first().is_none_or(|first| position <= first.end()),
            "{position} is behind {segments:?}"
        );
        let mut readable_ends = Vec::with_capacity(segments.len());
        for segment in &segments {
            let length = segment.file.len().map_err(|error| Error::io("measuring", segment.path(), error))?;
            let bytes = length.saturating_sub(BLOCK) / BLOCK * BLOCK;
            readable_ends.push(segment.end().min(segment.start() + bytes));
        }
        let horizon = segments.iter().map(|segment| segment.header.horizon).max().unwrap_or_default();
        // A chunk lies within one segment.
        let longest = segments.iter().zip(&readable_ends).map(|(segment, &end)| end - segment.start()).max();
        let mut chunk = AlignedBuffer::zeroed(longest.unwrap_or(0).min(chunk_bytes as u64) as usize);
        chunk.set_len(0);
        Ok(Reader {
            verified_ends: vec![None; segments.len()],
            position: segments.first().map_or(position, |segment| position.max(segment.start())),
            segments,
            readable_ends,
            segment: 0,
            limit,
            chunk_bytes,
            chunk,
            chunk_segment: usize::MAX,
            chunk_start: StreamPosition::START,
            horizon,
            newest_incarnation: Incarnation(0),
            skipped: None,
        })
    }

    /// Creates a reader of all of `segments`.
    pub(super) fn whole(segments: Vec<Arc<Segment>>, chunk_bytes: usize) -> Result<Reader> {
        Reader::new(segments, StreamPosition::START, StreamPosition::MAX, chunk_bytes)
    }

    /// Returns the next record. Its body replaces the contents of `kept`; if the body is longer than a chunk, `kept` is
    /// left empty.
    pub(super) fn next(&mut self, mut kept: Option<&mut Vec<u8>>) -> Result<Option<FoundRecord>> {
        self.skipped = None;
        while let Some(position) = self.candidate()? {
            assert!(
                (position - StreamPosition::START).is_multiple_of(STEP),
                "a record begins between steps: {position}"
            );
            let mut bytes = [0; RECORD_HEADER_BYTES];
            let seed = record_seed(self.segments[self.segment].seed, position);
            let mut rest = &mut bytes[..];
            let is_whole = self.visit(position, RECORD_HEADER_BYTES, |part| {
                let (head, tail) = std::mem::take(&mut rest).split_at_mut(part.len());
                head.copy_from_slice(part);
                rest = tail;
            })?;
            let header = if is_whole { RecordHeader::decode(&bytes, seed) } else { None };
            if let Some(header) = header {
                self.horizon = self.horizon.max(header.horizon);
                self.newest_incarnation = self.newest_incarnation.max(header.incarnation);
                let body_start = position + RECORD_HEADER_BYTES as u64;
                let verified = &mut self.verified_ends[self.segment];
                *verified = (*verified).max(Some(body_start));
                let body_bytes = header.body_bytes as usize;
                if self.holds(body_start + body_bytes as u64) {
                    kept.iter_mut().for_each(|body| body.clear());
                    let is_sound = match &mut kept {
                        Some(body) if body_bytes <= self.chunk_bytes => {
                            self.visit(body_start, body_bytes, |part| body.extend_from_slice(part))?
                                && checksum(body, 0) == header.body_checksum
                        }
                        _ => self.checksum(body_start, body_bytes)? == Some(header.body_checksum),
                    };
                    if is_sound {
                        let end = position + record_bytes(body_bytes) as u64;
                        assert!(body_start <= end, "the record at {position} ends at {end}, within its header");
                        self.verified_ends[self.segment] = Some(end);
                        self.position = end;
                        return Ok(Some(FoundRecord {
                            timestamp: header.timestamp,
                            incarnation: header.incarnation,
                            position,
                            end,
                            body_bytes: header.body_bytes,
                            time_ms: header.time_ms,
                            body_checksum: header.body_checksum,
                            names_extents: header.flags & FLAG_AFTER_DATA != 0,
                            segment: self.segment,
                        }));
                    }
                }
            }
            self.skip(position);
            self.position = position + STEP;
        }
        Ok(None)
    }

    /// Returns the checksum of `bytes` bytes starting at `position`, or `None` if the segments end too early.
    fn checksum(&mut self, position: StreamPosition, bytes: usize) -> Result<Option<u64>> {
        let mut checksum = Checksum::default();
        let is_whole = self.visit(position, bytes, |part| checksum.update(part))?;
        Ok(is_whole.then(|| checksum.digest()))
    }

    /// Reads the body of the last record found, which is longer than a chunk.
    fn read_long(&mut self, found: &FoundRecord) -> Result<Vec<u8>> {
        assert!(self.position == found.end && self.segment == found.segment, "the reader has gone on from {found:?}");
        let mut body = Vec::with_capacity(found.body_bytes as usize);
        let body_start = found.position + RECORD_HEADER_BYTES as u64;
        let is_whole = self.visit(body_start, found.body_bytes as usize, |part| body.extend_from_slice(part))?;
        if is_whole && checksum(&body, 0) == found.body_checksum {
            return Ok(body);
        }
        let what = format!("log record of timestamp {}", found.timestamp);
        Err(Error::corrupted(self.segments[found.segment].path(), what, "it verified before and no longer does"))
    }

    /// Advances to the next position that may hold a record.
    fn candidate(&mut self) -> Result<Option<StreamPosition>> {
        loop {
            while self.segment < self.segments.len() && self.position >= self.readable_ends[self.segment] {
                let window_end = self.segments[self.segment].end();
                self.segment += 1;
                if let Some(segment) = self.segments.get(self.segment) {
                    // The last record may extend into this window.
                    let follows = segment.start() == window_end;
                    self.position = if follows { self.position.max(window_end) } else { segment.start() };
                }
            }
            if self.segment == self.segments.len() || self.position >= self.limit {
                return Ok(None);
            }
            let position = self.position;
            self.load(self.segment, position)?;
            let from = (position - self.chunk_start) as usize;
            let magic = find_magic(&self.chunk[from..]);
            let until = magic.map_or(self.chunk.len(), |offset| from + offset);
            if !self.is_padding(from, until) {
                self.skip(position);
            }
            self.position = self.chunk_start + until as u64;
            if magic.is_some() {
                return Ok(if self.position < self.limit { Some(self.position) } else { None });
            }
        }
    }

    /// Returns `true` if these bytes of the chunk are the padding that was written after a tail block.
    fn is_padding(&self, from: usize, until: usize) -> bool {
        until.is_multiple_of(BLOCK as usize)
            && until - from < BLOCK as usize
            && self.chunk[from..until].iter().all(|&byte| byte == 0)
            || from == until
    }

    fn skip(&mut self, position: StreamPosition) {
        if self.skipped.is_none() {
            let segment = &self.segments[self.segment];
            self.skipped = Some(Skipped { path: segment.path().to_path_buf(), offset: segment.offset(position) });
        }
    }

    /// Returns `true` if all bytes from the current position to `end` can be read.
    fn holds(&self, end: StreamPosition) -> bool {
        let mut segment = self.segment;
        while self.readable_ends[segment] < end {
            match self.successor(segment) {
                Some(next) => segment = next,
                None => return false,
            }
        }
        true
    }

    /// Returns the segment whose window follows without a gap. If that window was begun twice, the later use counts.
    fn successor(&self, segment: usize) -> Option<usize> {
        let end = self.readable_ends[segment];
        (segment + 1..self.segments.len()).rev().find(|&next| self.segments[next].start() == end)
    }

    /// Passes the `bytes` bytes starting at `position` to `take`, in parts. `position` must not lie before the given
    /// segment. Returns `false` if the segments end too early.
    fn visit(&mut self, position: StreamPosition, bytes: usize, mut take: impl FnMut(&[u8])) -> Result<bool> {
        let mut segment = self.segment;
        let mut position = position;
        let end = position + bytes as u64;
        while position < end {
            while position >= self.readable_ends[segment] {
                match self.successor(segment) {
                    Some(next) => segment = next,
                    None => return Ok(false),
                }
            }
            self.load(segment, position)?;
            let from = (position - self.chunk_start) as usize;
            let bytes = (self.chunk.len() - from).min((end - position) as usize);
            take(&self.chunk[from..from + bytes]);
            position += bytes as u64;
        }
        Ok(true)
    }

    /// Loads the chunk that contains `position`, unless it is already loaded.
    fn load(&mut self, segment: usize, position: StreamPosition) -> Result<()> {
        let loaded = self.chunk_start..self.chunk_start + self.chunk.len() as u64;
        if self.chunk_segment == segment && loaded.contains(&position) {
            return Ok(());
        }
        let source = &self.segments[segment];
        let start = position.block_start();
        let readable_end = self.readable_ends[segment];
        assert!(start < readable_end, "reading {position} of {source:?}");
        // Do not read far beyond the limit: a record may extend past it, but rarely by much.
        let wanted_end = self.limit.max(position + 1).block_end();
        let bytes = (readable_end.min(wanted_end) - start).min(self.chunk_bytes as u64);
        debug_assert!(position < start + bytes, "{bytes} bytes from {start} do not reach {position}");
        self.chunk.set_len(bytes as usize);
        self.chunk_segment = segment;
        self.chunk_start = start;
        let read = source.file.read_at(&mut self.chunk, source.offset(start));
        read.map_err(|error| {
            self.chunk_segment = usize::MAX;
            Error::io("reading", self.segments[segment].path(), error)
        })
    }
}

/// One stream of a merge, and its current record.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) reader: Reader,
    pub(super) found: Option<FoundRecord>,
    /// The record's body, if bodies are kept and this body is no longer than a chunk. Longer bodies are read only when
    /// they are taken: otherwise, each of dozens of streams might hold a body of the maximum length in memory.
    body: Vec<u8>,
    /// The bytes that the reader skipped before it reached `found`.
    skipped: Option<Skipped>,
}

/// Merges the records of all log streams in the order of their timestamps.
#[derive(Debug)]
pub(super) struct Merge {
    pub(super) heads: Vec<Head>,
    bodies: Bodies,
    history: History,
    /// The timestamp of the next record.
    pub(super) next: Timestamp,
}

impl Merge {
    /// Creates a merge of the records above `after`.
    pub(super) fn new(readers: Vec<Reader>, bodies: Bodies, history: History, after: Timestamp) -> Result<Merge> {
        let heads = readers.into_iter().map(|reader| Head { reader, found: None, body: Vec::new(), skipped: None });
        let mut merge = Merge { heads: heads.collect(), bodies, history, next: after.next() };
        for head in 0..merge.heads.len() {
            merge.advance(head)?;
        }
        Ok(merge)
    }

    /// Advances a stream to its next record that counts.
    fn advance(&mut self, head: usize) -> Result<()> {
        let head = &mut self.heads[head];
        loop {
            let body = match self.bodies {
                Bodies::Verified => None,
                Bodies::Kept => Some(&mut head.body),
            };
            head.found = head.reader.next(body)?;
            head.skipped = head.reader.skipped.take();
            let Some(found) = head.found else { return Ok(()) };
            if self.history.newest().is_none_or(|newest| newest < found.incarnation) {
                let what = format!("log record of timestamp {}", found.timestamp);
                let reason = format!("it is of opening {}, which the superblock does not know", found.incarnation);
                return Err(Error::corrupted(head.reader.segments[found.segment].path(), what, reason));
            }
            if found.timestamp >= self.next && self.history.admits(found.incarnation, found.timestamp) {
                return Ok(());
            }
        }
    }

    /// Returns the stream whose current record has the next timestamp, or `None` if that record is missing.
    pub(super) fn due(&self) -> Option<usize> {
        self.heads.iter().position(|head| head.found.is_some_and(|found| found.timestamp == self.next))
    }

    /// Takes the record that is due. The merge must keep bodies.
    pub(super) fn take(&mut self, head: usize) -> Result<Record> {
        assert!(self.bodies == Bodies::Kept, "the bodies were not kept");
        let Head { reader, found, body, .. } = &mut self.heads[head];
        let found = found.expect("the head that is due stands at a record");
        assert!(body.len() == found.body_bytes as usize || body.is_empty(), "the body is another record's");
        let body = match found.body_bytes as usize <= reader.chunk_bytes {
            true => std::mem::take(body),
            false => reader.read_long(&found)?,
        };
        self.step(head)?;
        let position = found.position + RECORD_HEADER_BYTES as u64;
        Ok(Record { timestamp: found.timestamp, time_ms: found.time_ms, position, body })
    }

    /// Skips the record that is due without taking its body.
    pub(super) fn step(&mut self, head: usize) -> Result<()> {
        let taken = self.next;
        let is_due = self.heads[head].found.is_some_and(|found| found.timestamp == taken);
        assert!(is_due, "another record is passed than that of timestamp {taken}");
        self.next = taken.next();
        self.advance(head)?;
        match self.due_again(taken) {
            None => Ok(()),
            Some(path) => Err(Error::corrupted(&path, format!("log record of timestamp {taken}"), "it is there twice")),
        }
    }

    fn due_again(&self, taken: Timestamp) -> Option<PathBuf> {
        let heads = self.heads.iter().filter_map(|head| head.found.map(|found| (head, found)));
        let mut again = heads.filter(|(_, found)| found.timestamp == taken);
        again.next().map(|(head, found)| head.reader.segments[found.segment].path().to_path_buf())
    }

    /// Reads all streams to their ends. Returns the newest horizon in them.
    pub(super) fn drain(&mut self) -> Result<Timestamp> {
        for head in 0..self.heads.len() {
            while self.heads[head].found.is_some() {
                self.advance(head)?;
            }
        }
        Ok(self.heads.iter().map(|head| head.reader.horizon).max().unwrap_or_default())
    }

    /// Returns the likely location of the missing record. The guess is best if its stream has later records.
    pub(super) fn suspect(&self) -> Option<Skipped> {
        let between = self.heads.iter().filter(|head| head.found.is_some()).find_map(|head| head.skipped.clone());
        between.or_else(|| self.heads.iter().find_map(|head| head.skipped.clone()))
    }
}

/// Returns the error for the loss of a record that had been durable.
pub(super) fn missing(
    missing: Timestamp,
    horizon: Timestamp,
    suspect: Option<&Skipped>,
    dir: &std::path::Path,
) -> Error {
    debug_assert!(missing <= horizon, "a record above the horizon is no loss");
    let (path, place) = match suspect {
        Some(skipped) => (skipped.path.as_path(), format!(" (at or after offset {})", skipped.offset)),
        None => (dir, String::new()),
    };
    let reason = format!("it is missing or does not verify, though all up to timestamp {horizon} was durable");
    Error::corrupted(path, format!("log record of timestamp {missing}{place}"), reason)
}

/// A record of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) timestamp: Timestamp,
    /// The time when the record's batch was begun, in milliseconds since 1970.
    pub(crate) time_ms: u64,
    /// The position of the body in its stream.
    pub(crate) position: StreamPosition,
    pub(crate) body: Vec<u8>,
}

/// The records between two timestamps, in order and without gaps: the earlier timestamp is excluded, the later one
/// included. The iterator ends after its first error.
#[derive(Debug)]
pub(crate) struct Records {
    merge: Merge,
    last: Timestamp,
    dir: PathBuf,
    over: bool,
}

impl Records {
    pub(super) fn new(merge: Merge, last: Timestamp, dir: PathBuf) -> Records {
        Records { merge, last, dir, over: false }
    }
}

impl Iterator for Records {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        let timestamp = self.merge.next;
        if self.over || timestamp > self.last {
            return None;
        }
        let taken = match self.merge.due() {
            Some(head) => self.merge.take(head),
            None => Err(missing(timestamp, self.last, self.merge.suspect().as_ref(), &self.dir)),
        };
        self.over = taken.is_err();
        assert!(self.over || self.merge.next == timestamp.next(), "the records that are read are not dense");
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::put_u32;

    /// A record's magic is found at every step, whatever bytes precede it, and ignored between steps.
    #[test]
    fn a_magic_is_found_at_every_step() {
        for length in [0, 8, 504, 512, 1032, 4096] {
            for filler in [0u8, 1] {
                let clean = vec![filler; length];
                assert_eq!(find_magic(&clean), None);
                for offset in (0..length).step_by(4) {
                    let mut bytes = clean.clone();
                    put_u32(&mut bytes, offset, RECORD_MAGIC);
                    assert_eq!(find_magic(&bytes), offset.is_multiple_of(RECORD_ALIGNMENT_BYTES).then_some(offset));
                }
            }
        }
    }
}
