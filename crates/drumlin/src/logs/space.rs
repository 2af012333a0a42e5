//! Writing the index down, and giving space back, in the background.
//!
//! The stream is reclaimed from its oldest end. A window without live entries is given up once the written index covers
//! it. If the stream is longer than twice the live bytes and a quarter of a segment, the live entries of the oldest
//! windows are moved to the tail: they are appended again in records of their own, and their logs take over the new
//! places.

use std::sync::Arc;

use super::index::{self, IndexFile, IndexWriter};
use super::maintenance::{Due, WrittenIndex};
use super::shared::{Pin, Shared, Wait};
use super::state::FoundEntry;
use crate::error::{Error, Result};
use crate::format::logs::{
    CHANGE_BYTES_MAX, ENTRY_HEADER_BYTES, EntryPart, encode_copied_entry, encode_entry, encode_move, encode_moved,
    encode_part, entry_seed,
};
use crate::format::{CheckpointNumber, StreamPosition, get_u64};
use crate::seglog::{Body, Claim};

/// The entries that one record moves, in bytes.
const MOVE_BYTES_MAX: usize = 256 << 10;

/// The windows that are emptied at once when the disk is full, at most: an append waits for it.
const EMPTIED_COUNT_MAX: usize = 8;

impl Shared {
    /// Starts a round of maintenance if one is due. The thread makes it, or the caller if there is no thread or if
    /// several rounds are due.
    pub(super) async fn maintain_if_due(self: &Arc<Self>, wait: Wait) {
        match self.maintenance.due() {
            Due::Nothing => {}
            Due::Thread => self.maintenance.request_round(),
            Due::Caller if wait == Wait::Thread => self.maintain(false),
            Due::Caller => {
                let shared = Arc::clone(self);
                self.workers.run(move || shared.maintain(false)).await;
            }
        }
    }

    /// The body of the thread.
    pub(super) fn maintain_until_stopped(&self) {
        while self.maintenance.wait() {
            self.maintain(false);
        }
    }

    /// Makes a round of maintenance. A failure is not the caller's: it is met again, or has failed the stream.
    pub(super) fn maintain(&self, is_disk_full: bool) {
        let mut index = self.maintenance.begin_round();
        self.told(self.reclaim(&mut index, is_disk_full), "reclaiming the space");
        self.told(self.list_places(), "listing the entries");
        let appended_bytes = self.stream.tail().1 - index.position.min(self.stream.tail().1);
        if appended_bytes > self.sizes.replay_bytes_max {
            self.told(self.write_index(&mut index, false), "writing the index");
        }
        self.told(self.copy_index(&mut index), "copying the index");
    }

    /// Makes room in the memory of the index.
    pub(super) fn make_memory(&self) {
        let _round = self.maintenance.index.lock();
        self.told(self.list_places(), "listing the entries");
    }

    /// Logs a failure.
    fn told(&self, done: Result<()>, action: &str) {
        match done {
            Ok(()) => {}
            Err(Error::DiskFull { .. }) => log::debug!("{action} of {}: no space", self.path().display()),
            Err(error) => log::warn!("{action} of {}: {error}", self.path().display()),
        }
    }

    /// Writes the index now, so that the next opening has nothing to replay.
    pub(super) fn write_index_now(&self, is_closing: bool) -> Result<()> {
        let mut index = self.maintenance.index.lock();
        self.write_index(&mut index, is_closing)?;
        self.told(self.copy_index(&mut index), "copying the index");
        Ok(())
    }

    /// Copies the index to the other file, unless it is there already.
    fn copy_index(&self, index: &mut WrittenIndex) -> Result<()> {
        if index.is_copied || index.number == 0 {
            return Ok(());
        }
        // Both heads must name this index, because the one before is overwritten.
        self.head.write(|_| {}).map_err(|error| Error::io("writing the head of", self.path(), error))?;
        let files = (IndexFile::Own, IndexFile::Other);
        index::copy(&self.folder, self.identity, index.number, index.index_bytes, files)?;
        index.is_copied = true;
        Ok(())
    }

    fn write_index(&self, index: &mut WrittenIndex, is_closing: bool) -> Result<()> {
        let number = index.number + 1;
        let (covered, position) = self.stream.tail();
        let mut writer = IndexWriter::new(&self.folder, self.identity, number, self.sizes.index_buffer_bytes)?;
        for (log, cell) in self.cells() {
            let state = cell.state.lock();
            if !state.bounds.exists {
                continue;
            }
            // No record of this log can be appended while its lock is held.
            writer.copy(log, self.stream.last(), &state);
            drop(state);
            writer.write_copied()?;
        }
        let index_bytes = writer.finish()?;
        // Everything that was copied must be durable before the index counts.
        self.stream.wait_durable_up_to(self.stream.last())?;
        let written = self.head.write(|head| {
            (head.index, head.index_bytes) = (number, index_bytes);
            (head.covered, head.position) = (covered, position);
            head.is_closed = is_closing;
            // The scan of the next opening begins after all records of earlier openings.
            head.incarnations = vec![self.incarnation];
        });
        written.map_err(|error| Error::io("writing the head of", self.path(), error))?;
        *index = WrittenIndex { number, index_bytes, is_copied: false, position };
        self.drop_unused_cells();
        Ok(())
    }

    /// Returns a position below which no state refers to the stream.
    fn floor(&self) -> StreamPosition {
        let (_, tail) = self.stream.tail();
        let pinned = self.pins.lock().iter().copied().min();
        let live = self.live.lock().floor();
        live.into_iter().chain(pinned).fold(tail, StreamPosition::min)
    }

    /// Gives up the windows that nothing needs. Returns `true` if there were any.
    fn truncate(&self, index: &WrittenIndex) -> Result<bool> {
        let limit = self.floor().min(index.position);
        let has_dead =
            |windows: &[(StreamPosition, StreamPosition)]| windows.first().is_some_and(|(_, end)| *end <= limit);
        let is_all_dead = limit >= self.stream.tail().1;
        if !has_dead(&self.stream.full_windows()) && !is_all_dead {
            return Ok(false);
        }
        self.stream.wait_durable_up_to(self.stream.last())?;
        let before = self.stream.live_bytes();
        self.stream.truncate_below(limit, CheckpointNumber(index.number));
        Ok(self.stream.live_bytes() < before)
    }

    /// Gives up windows. If the stream is too long, or the disk is full, first moves the live entries out of them.
    fn reclaim(&self, index: &mut WrittenIndex, is_disk_full: bool) -> Result<()> {
        self.truncate(index)?;
        while let Some(ends) = self.windows_to_empty(is_disk_full) {
            let before = self.stream.live_bytes();
            // From the oldest on, so that each one that is emptied can be given up, also if there is no space for more.
            let moved = ends.into_iter().try_for_each(|end| self.move_below(end));
            if !matches!(moved, Ok(()) | Err(Error::DiskFull { .. })) {
                return moved;
            }
            self.write_index(index, false)?;
            if !self.truncate(index)? || self.stream.live_bytes() >= before {
                moved?;
                break;
            }
            if is_disk_full {
                break;
            }
        }
        if self.stream.file_bytes() > 2 * self.live.lock().total() + 4 * self.sizes.segment_bytes {
            self.stream.remove_idle();
        }
        Ok(())
    }

    /// Returns the ends of the oldest windows, in ascending order, if it is time to move the live entries out of them.
    fn windows_to_empty(&self, is_disk_full: bool) -> Option<Vec<StreamPosition>> {
        let windows = self.stream.full_windows();
        let (begin, _) = *windows.first()?;
        let (stream_bytes, segment_bytes) = (self.stream.live_bytes(), self.sizes.segment_bytes);
        let live = self.live.lock();
        let dead_bytes = |end: StreamPosition| (end - begin).saturating_sub(live.below(end));
        let mut ends = windows.iter().map(|(_, end)| *end);
        let count = if is_disk_full {
            // A little space at once is better than much of it later.
            1 + ends.take(EMPTIED_COUNT_MAX).position(|end| dead_bytes(end) >= segment_bytes / 4)?
        } else if stream_bytes > 2 * live.total() + segment_bytes / 4 {
            // Go beyond what the bound asks for: the index is written for each step.
            let goal_bytes = live.total() / 4 * 7;
            let is_enough = |end: StreamPosition| stream_bytes - dead_bytes(end).min(stream_bytes) <= goal_bytes;
            ends.position(is_enough).map_or(windows.len(), |at| at + 1)
        } else {
            return None;
        };
        Some(windows[..count].iter().map(|(_, end)| *end).collect())
    }

    /// Returns the longest body of a record that moves entries.
    pub(super) fn move_bytes_max(&self) -> usize {
        MOVE_BYTES_MAX.min(self.body_bytes_max())
    }

    /// Moves the live entries that begin below `end` to the tail.
    fn move_below(&self, end: StreamPosition) -> Result<()> {
        let bytes_max = self.move_bytes_max() - CHANGE_BYTES_MAX;
        for (log, cell) in self.cells() {
            if cell.state.lock().floor >= end {
                continue;
            }
            let mut from = 0;
            loop {
                let found = cell.state.lock().listed_range_below(end, from);
                let Some(listed_range) = found else { break };
                from = listed_range.end();
                self.move_listed_range(log, &cell, &listed_range, end)?;
            }
            from = 0;
            loop {
                let found = cell.state.lock().entries_below(end, from, bytes_max as u64 / 2);
                let Some((last, _)) = found.last() else { break };
                from = last + 1;
                self.move_entries(log, &found)?;
            }
            // The next windows have nothing of this log below this position. What is appended lies above the tail.
            let mut state = cell.state.lock();
            state.floor = state.lowest().unwrap_or(self.stream.tail().1);
        }
        Ok(())
    }

    /// Appends copies of entries. They are not verified, so that one that is damaged moves with the others, and its
    /// checksum with it.
    fn move_entries(&self, log: u64, found: &[(u64, FoundEntry)]) -> Result<()> {
        self.stream.wait_durable_up_to(self.stream.last())?;
        let mut entries = Vec::new();
        let mut count = 0;
        let pin = Pin::new(self);
        let moved = found.iter().try_for_each(|(index, entry)| {
            let is_read = match entry.place.payload_bytes() {
                Some(payload_bytes) => {
                    let mut bytes = vec![0; ENTRY_HEADER_BYTES + payload_bytes as usize];
                    let is_read = self.stream.read_at(entry.place.position(), &mut bytes)?;
                    if is_read {
                        encode_moved(&mut entries, *index, entry.position());
                        encode_copied_entry(&mut entries, &bytes[ENTRY_HEADER_BYTES..], get_u64(&bytes, 0));
                    }
                    is_read
                }
                None => match self.move_parts(&entry.parts)? {
                    Some(parts) => {
                        let mut payload = Vec::new();
                        parts.iter().for_each(|part| part.encode(&mut payload));
                        encode_moved(&mut entries, *index, entry.position());
                        encode_entry(&mut entries, &payload, true, entry_seed(self.identity, log, *index));
                        true
                    }
                    None => false,
                },
            };
            // An entry that is gone was purged.
            count += u32::from(is_read);
            Ok(())
        });
        let committed = moved.and_then(|()| {
            if count == 0 {
                return Ok(());
            }
            let mut body = Vec::with_capacity(CHANGE_BYTES_MAX + entries.len());
            encode_move(&mut body, log, count);
            body.extend(&entries);
            let reservation = self.stream.reserve_with(body.len(), Claim::Urgent)?;
            self.commit_in(reservation, &Body::new(body)).map(|_| ())
        });
        drop(pin);
        committed
    }

    /// Appends copies of the parts of an entry. Returns `None` if they are gone.
    fn move_parts(&self, parts: &[EntryPart]) -> Result<Option<Vec<EntryPart>>> {
        let mut moved = Vec::new();
        for part in parts {
            let mut content = vec![0; part.bytes as usize];
            if !self.stream.read_at(part.position, &mut content)? {
                return Ok(None);
            }
            let body = encode_part(&content);
            let reservation = self.stream.reserve_with(body.len(), Claim::Urgent)?;
            moved.push(self.append_part(reservation, body, part.checksum)?);
        }
        Ok(Some(moved))
    }
}

/// Runs the maintenance on a thread. Returns `None` if the backend has no threads.
pub(super) fn start(shared: &Arc<Shared>) -> Result<Option<std::thread::JoinHandle<()>>> {
    let body = Arc::clone(shared);
    match shared.backend.spawn("drumlin-logs", Box::new(move || body.maintain_until_stopped())) {
        Ok(thread) => {
            shared.maintenance.set_has_thread();
            Ok(Some(thread))
        }
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(Error::io("starting a thread for", shared.path(), error)),
    }
}
