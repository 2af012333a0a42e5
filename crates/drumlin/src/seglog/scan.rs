//! Recovery: reads the log's records, finds its end, and detects missing records.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::hooks::Hooks;
use super::options::LogOptions;
use super::reader::{Bodies, History, Merge, Reader, Records, chunk_bytes, missing};
use super::segment::{self, BLOCK, Segment, Spare};
use super::spares::Spares;
use super::stream::Stream;
use super::windows::Window;
use super::{Log, LogParts, Origin};
use crate::error::{Error, OnCorruption, Result, sound};
use crate::format::log::RECORD_HEADER_BYTES;
use crate::format::superblock::LogRange;
use crate::format::{
    CheckpointNumber, Incarnation, LOG_STREAM_COUNT_MAX, SlotNumber, StreamId, StreamPosition, Timestamp, UseNumber,
};
use crate::io::{AlignedBuffer, Backend, FolderRef, OpenOptions, Persist};

/// The facts about the log that the superblock holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuperblockLogState<'a> {
    /// The openings of the database and the first timestamp of each. A record of an opening that is too old to be
    /// listed counts if it is below the first timestamp of the first opening listed.
    pub(crate) incarnations: &'a [(Incarnation, Timestamp)],
    /// Sequence number of the newest valid superblock.
    pub(crate) checkpoint: CheckpointNumber,
    /// Everything up to this timestamp is in the checkpoint.
    pub(crate) covered: Timestamp,
    /// The log ranges that the superblock lists: they must exist.
    pub(crate) ranges: &'a [LogRange],
    /// The database was closed, so no record is above `covered` unless a superblock was lost.
    pub(crate) is_closed: bool,
    /// Set if the log's only stream is read by position, so that all listed windows are kept, whatever is covered. The
    /// records above `covered` begin at or after this position, and the log continues there if it was closed.
    pub(crate) covered_position: Option<StreamPosition>,
}

/// The number of bytes of a window that are searched for its first record, to decide whether the previous window is
/// still needed.
const PROBE_BYTES: u64 = 64 << 10;

/// The number of bytes rewritten in one step.
const REWRITE_BYTES: u64 = 1 << 20;

const _: () = assert!(PROBE_BYTES.is_multiple_of(BLOCK) && PROBE_BYTES > 0, "a window is searched to within a block");
const _: () = assert!(REWRITE_BYTES.is_multiple_of(BLOCK) && REWRITE_BYTES > 0, "a part of a block is written again");

/// The verified contents of the segments of a log.
#[derive(Debug)]
pub(crate) struct Scan {
    backend: Arc<dyn Backend>,
    folder: FolderRef,
    options: LogOptions,
    history: History,
    covered: Timestamp,
    ranges: Vec<LogRange>,
    last: Timestamp,
    record_bytes: u64,
    record_count: u64,
    names_extents: bool,
    is_closed: bool,
    streams: BTreeMap<StreamId, StreamScan>,
}

#[derive(Debug, Default)]
struct StreamScan {
    /// The windows in ascending order of use number. Windows whose records are all in the checkpoint become spares.
    windows: Vec<Window>,
    /// Windows whose records are all in the checkpoint, but which are kept because they are read by position.
    held: Vec<Window>,
    /// The position at which the scan begins.
    begin: StreamPosition,
    spares: Vec<Spare>,
    use_number_max: UseNumber,
    slot_max: SlotNumber,
    /// The end of the last record (or record header) that verified, whatever its timestamp.
    verified_end: Option<StreamPosition>,
    /// The position at which a stream without windows continues.
    origin: StreamPosition,
    /// The end of the last record that recovery applies.
    applied_end: Option<StreamPosition>,
    /// The timestamps and positions of records that recovery applies, although they may not be durable.
    uncertain: VecDeque<(Timestamp, StreamPosition)>,
}

impl Scan {
    /// Reads and verifies the whole log, and makes it durable. If the log was closed, reads only its headers and writes
    /// nothing. Fails if the log lacks a record that was once durable and is not in the checkpoint.
    pub(crate) fn open(
        backend: &Arc<dyn Backend>,
        folder: &FolderRef,
        options: &LogOptions,
        known: &SuperblockLogState<'_>,
    ) -> Result<Scan> {
        let access = OpenOptions { write: true, direct: true, ..OpenOptions::default() };
        let scan = Scan::read(backend, folder, options, access, known, &mut Err)?;
        if !scan.is_closed {
            scan.harden()?;
        }
        Ok(scan)
    }

    /// Reads and verifies the whole log, without writing anything. If `on_corruption` continues after an error, the
    /// scan contains the records up to the first missing one.
    pub(crate) fn read(
        backend: &Arc<dyn Backend>,
        folder: &FolderRef,
        options: &LogOptions,
        access: OpenOptions,
        known: &SuperblockLogState<'_>,
        on_corruption: OnCorruption<'_>,
    ) -> Result<Scan> {
        options.check()?;
        let mut scan = Scan {
            backend: Arc::clone(backend),
            folder: Arc::clone(folder),
            options: options.clone(),
            history: History::new(known.incarnations),
            covered: known.covered,
            ranges: known.ranges.to_vec(),
            last: known.covered,
            record_bytes: 0,
            record_count: 0,
            names_extents: false,
            is_closed: false,
            streams: BTreeMap::new(),
        };
        scan.find_segments(access, known.checkpoint, on_corruption)?;
        let is_closed = known.is_closed && scan.is_as_closed(known.incarnations);
        if is_closed && known.covered_position.is_none() {
            scan.is_closed = true;
            scan.streams.values_mut().for_each(StreamScan::set_aside_all);
            return Ok(scan);
        }
        known.ranges.iter().try_for_each(|range| scan.check_range(range, on_corruption))?;
        if let Some(position) = known.covered_position {
            let stream = scan.streams.entry(StreamId(0)).or_default();
            stream.hold(known.ranges, position, known.covered);
            if is_closed {
                scan.is_closed = true;
                return Ok(scan);
            }
        } else {
            for stream in scan.streams.values_mut() {
                sound(stream.set_aside_covered(&scan.history, known.covered), on_corruption)?;
            }
        }
        // Everything below the start of an opening was already on the medium when that opening began.
        let openings_horizon = known.incarnations.iter().map(|&(_, first)| Timestamp(first.0.saturating_sub(1))).max();
        sound(scan.find_end(openings_horizon.unwrap_or_default(), on_corruption), on_corruption)?;
        Ok(scan)
    }

    /// Creates a scan without segments, for a caller that reads only the newest checkpoint of a database.
    pub(crate) fn nothing(
        backend: &Arc<dyn Backend>,
        folder: &FolderRef,
        options: &LogOptions,
        known: &SuperblockLogState<'_>,
    ) -> Scan {
        Scan {
            backend: Arc::clone(backend),
            folder: Arc::clone(folder),
            options: options.clone(),
            history: History::new(known.incarnations),
            covered: known.covered,
            ranges: Vec::new(),
            last: known.covered,
            record_bytes: 0,
            record_count: 0,
            names_extents: false,
            is_closed: true,
            streams: BTreeMap::new(),
        }
    }

    /// Makes durable all writes that a previous process left in caches, so that no record found here can be lost later.
    /// Changes no byte. A sync alone is not enough: after a failed sync, the system may have dropped the writes but
    /// still show them to readers. So the records that are not proven durable are rewritten. At most, these are the
    /// records that were in flight when the process ended.
    fn harden(&self) -> Result<()> {
        // The process that created a segment may have been killed before the segment's name was durable.
        self.folder.sync().map_err(|error| Error::io("syncing", self.folder.path(), error))?;
        for stream in self.streams.values() {
            for window in &stream.windows {
                let synced = window.segment.file.sync_data();
                synced.map_err(|error| Error::io("syncing", window.segment.path(), error))?;
            }
            stream.harden(&self.options)?;
        }
        Ok(())
    }

    fn find_segments(
        &mut self,
        access: OpenOptions,
        checkpoint: CheckpointNumber,
        on_corruption: OnCorruption<'_>,
    ) -> Result<()> {
        let dir = self.folder.path();
        for (name, number) in sound(segment_names(&self.folder), on_corruption)?.unwrap_or_default() {
            let path = dir.join(&name);
            if number.0.0 >= LOG_STREAM_COUNT_MAX {
                let reason = format!("it is of stream {}; there are {LOG_STREAM_COUNT_MAX} at the most", number.0);
                on_corruption(Error::corrupted(&path, "log segment", reason))?;
                continue;
            }
            let stream = self.streams.entry(number.0).or_default();
            stream.slot_max = stream.slot_max.max(number.1);
            let found = segment::inspect(self.folder.as_ref(), &name, access, self.options.database, number);
            match sound(found, on_corruption)? {
                None => {}
                Some(segment::FoundFile::Unused) => stream.spares.push(Spare::unused(name, number.1)),
                Some(segment::FoundFile::Segment(segment)) if segment.header.checkpoint > checkpoint => {
                    let reason = format!(
                        "it names checkpoint {}, but the newest superblock found is {checkpoint}: a superblock is lost",
                        segment.header.checkpoint
                    );
                    on_corruption(Error::corrupted(&path, "log segment header", reason))?;
                }
                Some(segment::FoundFile::Segment(segment)) => {
                    stream.use_number_max = stream.use_number_max.max(segment.header.use_number);
                    let ready = segment.end();
                    let held_bytes = segment.file.len().map_err(|error| Error::io("measuring", &path, error));
                    if let Some(held_bytes) = sound(held_bytes, on_corruption)? {
                        stream.windows.push(Window::new(segment, ready, held_bytes));
                    }
                }
            }
        }
        for stream in self.streams.values_mut() {
            stream.windows.sort_by_key(|window| window.segment.header.use_number);
            for pair in stream.windows.windows(2) {
                if pair[0].segment.header.use_number == pair[1].segment.header.use_number {
                    let reason = format!("it has the use number of {}", pair[0].segment.path().display());
                    on_corruption(Error::corrupted(pair[1].segment.path(), "log segment header", reason))?;
                }
            }
            stream.windows.dedup_by_key(|window| window.segment.header.use_number);
        }
        Ok(())
    }

    /// Returns `true` if the superblock knows every opening that began a segment. If it doesn't know an opening, the
    /// superblock that recorded this opening has been lost, and the opening's segments may hold records.
    fn is_as_closed(&self, incarnations: &[(Incarnation, Timestamp)]) -> bool {
        let newest = incarnations.iter().map(|&(incarnation, _)| incarnation).max();
        let mut windows = self.streams.values().flat_map(|stream| &stream.windows);
        windows.all(|window| Some(window.segment.header.incarnation) <= newest)
    }

    /// Verifies that every window listed in the superblock exists.
    fn check_range(&self, range: &LogRange, on_corruption: OnCorruption<'_>) -> Result<()> {
        let mut position = range.from;
        while position < range.to {
            let mut windows = self.streams.get(&range.stream).into_iter().flat_map(|stream| &stream.windows);
            // If a window was begun twice, the later use counts. Windows are ordered by use number.
            let Some(window) = windows.rfind(|window| window.segment.start() == position) else {
                let what = format!("the log, stream {} from position {position}", range.stream);
                let reason = format!(
                    "a segment is missing, empty or of an earlier time, though the log is needed up to position {}: the \
                     database was not closed",
                    range.to
                );
                on_corruption(Error::corrupted(self.folder.path(), what, reason))?;
                // Continue with the first window after the gap.
                let windows = self.streams.get(&range.stream).into_iter().flat_map(|stream| &stream.windows);
                let starts = windows.map(|window| window.segment.start()).filter(|start| *start > position);
                position = starts.min().unwrap_or(range.to);
                continue;
            };
            position = window.end();
        }
        Ok(())
    }

    /// Returns the size of one read. All streams are read concurrently. They share the memory of the append buffers,
    /// which are not allocated yet.
    fn chunk_bytes(&self) -> usize {
        chunk_bytes(self.options.buffer_bytes, self.streams.len())
    }

    /// Verifies all streams together, in timestamp order, up to the first missing record. That is the end of the log.
    fn find_end(&mut self, openings_horizon: Timestamp, on_corruption: OnCorruption<'_>) -> Result<()> {
        let chunk_bytes = self.chunk_bytes();
        let reader =
            |stream: &StreamScan| Reader::new(stream.segments(), stream.begin, StreamPosition::MAX, chunk_bytes);
        let readers = self.streams.values().map(reader);
        let readers = readers.collect::<Result<_>>()?;
        let mut merge = Merge::new(readers, Bodies::Verified, self.history.clone(), self.covered)?;
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        while let Some(due) = merge.due() {
            let head = &merge.heads[due];
            let found = head.found.expect("the head that is due stands at a record");
            let stream = self.streams.get_mut(&streams[due]).expect("each head has its stream");
            stream.index_record(found.segment, found.timestamp, found.position, found.end);
            assert!(
                stream.uncertain.back().is_none_or(|&(last, _)| last < found.timestamp),
                "records are out of order"
            );
            stream.uncertain.push_back((found.timestamp, found.position));
            stream.forget_certain(head.reader.horizon);
            self.last = found.timestamp;
            self.record_count += 1;
            self.record_bytes += u64::from(found.body_bytes);
            self.names_extents |= found.names_extents;
            merge.step(due)?;
        }
        let lost = merge.next;
        assert_eq!(self.covered.0 + self.record_count, self.last.0, "the records to be applied are not dense");
        let suspect = merge.suspect();
        if streams.len() > 1 && merge.heads.iter().any(|head| head.found.is_some()) {
            crate::coverage::mark!("recovery skipped records after a gap between streams");
        }
        let horizon = merge.drain()?.max(openings_horizon);
        if horizon >= lost {
            on_corruption(missing(lost, horizon, suspect.as_ref(), self.folder.path()))?;
        }
        for (head, stream) in merge.heads.iter().zip(self.streams.values_mut()) {
            let verified_end = head.reader.verified_ends.iter().copied().max().flatten();
            stream.verified_end = stream.verified_end.max(verified_end);
            stream.forget_certain(horizon);
            sound(stream.check_abutting(&head.reader.verified_ends), on_corruption)?;
        }
        Ok(())
    }

    /// Durably erases the records that the starts of openings void, so that the list can drop these starts. This needs
    /// no space and does not change the log's contents. If a power cut interrupts it, the next call finishes the
    /// erasure.
    ///
    /// The header of each void record is overwritten with zeros. Spares are searched too, because a later opening may
    /// mistake a spare for a window with records. Records at or above the start of the opening in progress may stay,
    /// because its start will be listed.
    pub(crate) fn erase_void(&self) -> Result<()> {
        for stream in self.streams.values() {
            let spares = stream.spares.iter().filter_map(|spare| spare.last_use.clone());
            let mut segments: Vec<Arc<Segment>> = stream.segments().into_iter().chain(spares).collect();
            segments.sort_by_key(|segment| segment.header.use_number);
            let mut reader = Reader::whole(segments.clone(), self.chunk_bytes())?;
            let mut void = Vec::new();
            while let Some(found) = reader.next(None)? {
                if !self.history.admits(found.incarnation, found.timestamp) {
                    void.push((found.segment, found.position));
                }
            }
            for (segment, position) in void {
                crate::coverage::mark!("a void record was erased");
                erase_header(&segments[segment..], position, &self.options)?;
            }
        }
        Ok(())
    }

    /// Returns the newest timestamp that recovery must apply. All records between the checkpoint and this timestamp are
    /// present.
    pub(crate) fn last(&self) -> Timestamp {
        self.last
    }

    /// Returns the total length of the record bodies that recovery must apply, in bytes.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    /// Returns `true` if the log was closed, so there is nothing to recover and nothing to make durable.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns the number of records that recovery must apply.
    pub(crate) fn record_count(&self) -> u64 {
        self.record_count
    }

    /// Returns `true` if any of the records that recovery must apply names extents.
    pub(crate) fn names_extents(&self) -> bool {
        assert!(!self.names_extents || self.record_count > 0, "extents are named by no record");
        self.names_extents
    }

    /// Returns the records above the checkpoint. Can be called repeatedly.
    pub(crate) fn records(&self) -> Result<Records> {
        // Use half of the memory here, because the other half is for record bodies.
        let chunk_bytes = chunk_bytes(self.options.buffer_bytes / 2, self.streams.len());
        let mut readers = Vec::new();
        for stream in self.streams.values() {
            let Some(applied_end) = stream.applied_end else { continue };
            // Leave out the windows that were prepared but never used: they hold no records, and such a window may be
            // an earlier use of the same range.
            let used = stream.windows.iter().filter(|window| window.last.is_some());
            let segments = used.map(|window| Arc::clone(&window.segment)).collect();
            readers.push(Reader::new(segments, stream.begin, applied_end, chunk_bytes)?);
        }
        let merge = Merge::new(readers, Bodies::Kept, self.history.clone(), self.covered)?;
        Ok(Records::new(merge, self.last, self.folder.path().to_path_buf()))
    }

    /// Begins appending at the timestamp after [`last`](Scan::last). The superblock must already list `incarnation`
    /// with that timestamp, durably.
    pub(crate) fn start(self, incarnation: Incarnation, checkpoint: CheckpointNumber, hooks: Hooks) -> Result<Log> {
        // A log that is read by position keeps its windows. Those that it does not keep are to be listed no longer.
        let is_held = self.streams.values().any(|stream| stream.verified_end.is_some());
        let origin = if self.is_closed && !is_held { Origin::Closed } else { Origin::Recovered };
        let log = self.assemble(incarnation, checkpoint, hooks);
        log.begin(origin)?;
        Ok(log)
    }

    /// Creates a log that accepts no records and writes nothing. The records that recovery must apply have been
    /// applied, or there are none.
    pub(crate) fn start_read_only(self, incarnation: Incarnation) -> Log {
        let log = self.assemble(incarnation, CheckpointNumber::NONE, Hooks::none());
        log.seal();
        log
    }

    fn assemble(mut self, incarnation: Incarnation, checkpoint: CheckpointNumber, hooks: Hooks) -> Log {
        assert!(
            !self.is_closed || self.last == self.covered,
            "a closed log ends at {}, not {}",
            self.last,
            self.covered
        );
        let is_held = self.streams.values().any(|stream| stream.verified_end.is_some());
        assert!(!self.is_closed || is_held || self.ranges.is_empty(), "a closed log is needed: {:?}", self.ranges);
        self.history.add(incarnation, self.last.next());
        assert_eq!(self.history.newest(), Some(incarnation), "an opening must be newer than those before it");
        let mut old = Vec::new();
        let mut doomed = Vec::new();
        let mut streams = Vec::new();
        for number in (0..self.options.streams).map(StreamId) {
            let scan = self.streams.remove(&number).unwrap_or_default();
            streams.push(scan.resume(number, &self.options, &mut old));
        }
        for scan in self.streams.into_values() {
            scan.retire(&mut old, &mut doomed);
        }
        Log::assemble(LogParts {
            backend: self.backend,
            folder: self.folder,
            options: self.options,
            incarnation,
            history: self.history,
            covered: self.covered,
            last: self.last,
            checkpoint,
            streams,
            old,
            doomed,
            listed: self.ranges,
            hooks,
        })
    }
}

/// Returns the names of the segment files in a log's folder, with their streams and slots.
pub(super) fn segment_names(folder: &FolderRef) -> Result<Vec<(String, (StreamId, SlotNumber))>> {
    let names = folder.list().map_err(|error| Error::io("listing", folder.path(), error))?;
    let number = |name: String| segment::parse_name(&name).map(|number| (name, number));
    Ok(names.into_iter().filter_map(number).collect())
}

/// Overwrites the header of a record with zeros. The record starts in the first of `segments`, and its header may
/// extend into a later one. The other bytes of the header's blocks stay the same.
fn erase_header(segments: &[Arc<Segment>], position: StreamPosition, options: &LogOptions) -> Result<()> {
    let mut segment = &segments[0];
    let mut rest = position..position + RECORD_HEADER_BYTES as u64;
    while !rest.is_empty() {
        if rest.start == segment.end() {
            // As in the reader, if a window was begun twice, the later use counts.
            let follows = |next: &&Arc<Segment>| next.start() == rest.start;
            segment = segments.iter().rfind(follows).expect("the header was read to its end");
        }
        let block_start = rest.start.block_start();
        let end = rest.end.min(block_start + BLOCK);
        let (path, offset) = (segment.path(), segment.offset(block_start));
        let mut block = AlignedBuffer::zeroed(BLOCK as usize);
        segment.file.read_at(&mut block, offset).map_err(|error| Error::io("reading", path, error))?;
        block[(rest.start - block_start) as usize..(end - block_start) as usize].fill(0);
        let written = segment.file.write_at(&block, offset, Persist::Now(options.sync));
        written.map_err(|error| Error::io("writing", path, error))?;
        rest.start = end;
    }
    Ok(())
}

impl StreamScan {
    fn segments(&self) -> Vec<Arc<Segment>> {
        self.windows.iter().map(|window| Arc::clone(&window.segment)).collect()
    }

    /// Turns the windows without records above `covered` into spares. A window has no such records if the first record
    /// of a later window is at or below the first timestamp above `covered`.
    fn set_aside_covered(&mut self, history: &History, covered: Timestamp) -> Result<()> {
        for later in (1..self.windows.len()).rev() {
            let segment = &self.windows[later].segment;
            let limit = segment.end().min(segment.start() + PROBE_BYTES);
            let mut reader = Reader::new(vec![Arc::clone(segment)], segment.start(), limit, PROBE_BYTES as usize)?;
            let first = loop {
                match reader.next(None)? {
                    Some(found) if !history.admits(found.incarnation, found.timestamp) => {}
                    found => break found,
                }
            };
            if first.is_some_and(|first| first.timestamp <= covered.next()) {
                let covered_windows = self.windows.drain(..later);
                self.spares.extend(covered_windows.map(|window| Spare::of(window.segment)));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Keeps all listed windows, because their records are read by position, but starts the scan at `position`: windows
    /// that end at or before it are not scanned. All records with timestamps above `covered` begin at or after it.
    fn hold(&mut self, ranges: &[LogRange], position: StreamPosition, covered: Timestamp) {
        assert!(self.held.is_empty() && self.applied_end.is_none(), "a stream is held that was scanned");
        self.begin = position;
        self.verified_end = Some(position);
        let Some(range) = ranges.iter().find(|range| range.stream == StreamId(0)) else { return };
        let mut next = range.from;
        // If a window was begun twice, the later use counts. A missing window has been reported.
        while let Some(index) = self.windows.iter().rposition(|window| window.segment.start() == next) {
            if next >= position.min(range.to) {
                break;
            }
            self.windows[index].last = Some(covered);
            next = self.windows[index].end();
            if next <= position {
                self.held.push(self.windows.remove(index));
            }
        }
        debug_assert!(self.held.is_sorted_by(|left, right| left.end() == right.segment.start()), "held windows abut");
        let is_covered = |window: &mut Window| window.end() <= position;
        self.spares.extend(self.windows.extract_if(.., is_covered).map(|window| Spare::of(window.segment)));
    }

    /// Turns all windows into spares. The stream continues after them.
    fn set_aside_all(&mut self) {
        self.origin = self.windows.iter().map(Window::end).max().unwrap_or_default();
        assert!(self.origin.is_block_start(), "a stream goes on within a block: {}", self.origin);
        self.spares.extend(self.windows.drain(..).map(|window| Spare::of(window.segment)));
        assert!(self.applied_end.is_none() && self.uncertain.is_empty(), "a stream is set aside that has records");
    }

    /// Indexes a record that recovery will apply, and updates the last record of every window that holds some of its
    /// bytes.
    fn index_record(&mut self, segment: usize, timestamp: Timestamp, position: StreamPosition, end: StreamPosition) {
        self.windows[segment].index_record(timestamp, position);
        let mut reached = segment;
        while self.windows[reached].end() < end {
            let window_end = self.windows[reached].end();
            // As in the reader, if a window was begun twice, the later use counts.
            let follows = |window: &Window| window.segment.start() == window_end;
            reached = self.windows.iter().rposition(follows).expect("the record was read to its end");
            self.windows[reached].last = Some(timestamp);
        }
        self.applied_end = self.applied_end.max(Some(end));
    }

    /// Removes the records at or below `horizon` from `uncertain`, because they are on the medium.
    fn forget_certain(&mut self, horizon: Timestamp) {
        while self.uncertain.front().is_some_and(|(timestamp, _)| *timestamp <= horizon) {
            self.uncertain.pop_front();
        }
    }

    /// Durably rewrites the records that may exist only in caches.
    fn harden(&self, options: &LogOptions) -> Result<()> {
        let Some(&(_, first)) = self.uncertain.front() else { return Ok(()) };
        let mut position = first.block_start();
        let end = self.applied_end.expect("a record that is uncertain is applied").block_end();
        assert!(first < end, "a record at {first} is uncertain, the stream is applied up to {end}");
        while position < end {
            // If a window was begun twice, the later use counts.
            let holds = |window: &&Window| window.segment.start() <= position && position < window.end();
            let window = self.windows.iter().rfind(holds).expect("the records were read from it");
            let path = window.segment.path();
            let file = &window.segment.file;
            let bytes = (end.min(window.end()) - position).min(REWRITE_BYTES);
            let mut blocks = AlignedBuffer::zeroed(bytes as usize);
            let offset = window.segment.offset(position);
            file.read_at(&mut blocks, offset).map_err(|error| Error::io("reading", path, error))?;
            let written = file.write_at(&blocks, offset, Persist::Now(options.sync));
            written.map_err(|error| Error::io("writing", path, error))?;
            position += bytes;
        }
        Ok(())
    }

    /// Returns the stream, ready to continue at the block after the last byte that verifies. It continues in the same
    /// window if there is room, and then in the unused windows that were prepared after it.
    fn resume(mut self, number: StreamId, options: &LogOptions, old: &mut Vec<Window>) -> Stream {
        let begins = self.windows.first().map_or(self.origin, |window| window.segment.start());
        let position = self.verified_end.map_or(begins, StreamPosition::block_end);
        assert!(self.applied_end <= Some(position), "a stream goes on at {position} over {:?}", self.applied_end);
        let mut kept: Vec<Window> = Vec::new();
        let holds = |window: &Window| window.segment.start() <= position && position < window.end();
        let mut next = self.windows.iter().rposition(holds);
        while let Some(index) = next {
            let window = self.windows.remove(index);
            let (start, end) = (window.segment.start(), window.end());
            let ready = if window.segment.is_filled() { end } else { position.max(start) };
            kept.push(Window { ready, ..window });
            // Only the last window may be in use before it is filled.
            let follows = |window: &Window| window.segment.start() == end;
            next = if ready == end { self.windows.iter().rposition(follows) } else { None };
        }
        self.keep_between(position);
        let (use_number_next, slot_next) = (self.use_number_max.next(), self.slot_max.next());
        let is_used = |window: &Window| window.segment.header.use_number < use_number_next;
        assert!(kept.iter().chain(&self.windows).all(is_used), "use {use_number_next} is given out twice");
        let mut spares = Vec::new();
        self.retire(old, &mut spares);
        Stream::new(number.index(), options, position, kept, Spares::new(spares, use_number_next, slot_next))
    }

    /// Returns `true` if a later use of the same range exists. The later use then counts instead of this one.
    fn is_begun_again(&self, index: usize) -> bool {
        let start = self.windows[index].segment.start();
        self.windows[index + 1..].iter().any(|window| window.segment.start() == start)
    }

    /// Verifies that no window is missing between the first window with a record to apply and the last window with any
    /// record. `verified_ends` holds the end of each window's last record.
    fn check_abutting(&self, verified_ends: &[Option<StreamPosition>]) -> Result<()> {
        let mut end = None;
        for (index, window) in self.windows.iter().enumerate() {
            let holds = window.last.is_some() || end.is_some() && verified_ends[index].is_some();
            let follows = end.is_none_or(|end| window.segment.start() == end);
            if holds && !follows {
                let what = format!("the log, stream {}", window.segment.header.stream);
                let reason =
                    format!("a segment is missing before position {}, where records follow", window.segment.start());
                return Err(Error::corrupted(window.segment.path(), what, reason));
            }
            if (holds || end.is_some()) && follows && !self.is_begun_again(index) {
                end = Some(window.end());
            }
        }
        Ok(())
    }

    /// Keeps windows that recovery does not need, but without which the listed range of the stream would have a gap:
    /// those between two windows that it needs, and those that directly follow the last of these, up to `position`.
    /// Recovery skips their records.
    fn keep_between(&mut self, position: StreamPosition) {
        let mut newest = None;
        let mut end = None;
        for index in 0..self.windows.len() {
            let is_begun_again = self.is_begun_again(index);
            let window = &mut self.windows[index];
            let is_between = end == Some(window.segment.start()) && window.end() <= position;
            if window.last.is_some() || is_between && !is_begun_again {
                newest = newest.max(window.last);
                window.last = newest;
                end = Some(window.end());
            }
        }
    }

    /// Separates the windows that still hold records from the spares.
    fn retire(self, old: &mut Vec<Window>, spares: &mut Vec<Spare>) {
        old.extend(self.held);
        for window in self.windows {
            if window.last.is_some() {
                old.push(window);
            } else {
                spares.push(Spare::of(window.segment));
            }
        }
        spares.extend(self.spares);
    }
}
