//! Writing the index down, and giving space back, in the background.
//!
//! The stream is reclaimed from its oldest end. A window without live entries is given up once the written index covers
//! it. If the stream is longer than twice the live bytes and a quarter of a segment, the live entries of the oldest
//! windows are moved to the tail: they are appended again in records of their own, and their logs take over the new
//! places.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::index::{self, IndexFile, IndexWriter};
use super::maintenance::{Due, WrittenIndex};
use super::shared::{LogCell, Shared, Wait};
use super::state::LogState;
use crate::error::{Error, Result};
use crate::format::logs::{LogChange, LogChanges};
use crate::format::{BLOCK_BYTES, CheckpointNumber, StreamPosition, Timestamp};
use crate::seglog::Body;
use crate::sync::MutexGuard;

/// The maximum number of attempts to write changes into the index. An attempt fails if another thread appends a record
/// at the same time.
const IN_INDEX_ATTEMPT_COUNT: usize = 16;

impl Shared {
    /// Starts a round of maintenance if one is due. The thread makes it, or the caller if there is no thread or if
    /// several rounds are due.
    pub(super) async fn maintain_if_due(self: &Arc<Self>, wait: Wait) {
        match self.maintenance.due() {
            Due::Nothing => {}
            Due::Thread => self.maintenance.request_round(),
            Due::Caller if wait == Wait::Thread => drop(self.maintain(false)),
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

    /// Makes a round of maintenance. Returns `true` if it gave space back. Returns no error: the next round meets the
    /// same one, or the stream has failed, which all later calls report.
    pub(super) fn maintain(&self, is_disk_full: bool) -> bool {
        let mut index = self.maintenance.begin_round();
        let before = self.stream.live_bytes();
        self.told(self.reclaim(&mut index, is_disk_full), "reclaiming the space");
        let has_reclaimed = self.stream.live_bytes() < before;
        self.told(self.list_places(), "listing the entries");
        let appended_bytes = self.stream.tail().1 - index.position.min(self.stream.tail().1);
        if appended_bytes > self.sizes.replay_bytes_max {
            self.told(self.write_index(&mut index, false), "writing the index");
        }
        self.told(self.copy_index(&mut index), "copying the index");
        has_reclaimed
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
        *index = self.name_index(number, index_bytes, (covered, position), is_closing)?;
        self.drop_unused_cells();
        Ok(())
    }

    /// Durably names an index in the head.
    fn name_index(
        &self,
        number: u64,
        index_bytes: u64,
        (covered, position): (Timestamp, StreamPosition),
        is_closing: bool,
    ) -> Result<WrittenIndex> {
        let written = self.head.write(|head| {
            (head.index, head.index_bytes) = (number, index_bytes);
            (head.covered, head.position) = (covered, position);
            head.is_closed = is_closing;
            // The scan of the next opening begins after all records of earlier openings.
            head.incarnations = vec![self.incarnation];
        });
        written.map_err(|error| Error::io("writing the head of", self.path(), error))?;
        Ok(WrittenIndex { number, index_bytes, is_copied: false, position })
    }

    /// Makes the changes of a record for which the stream has no space, by writing an index that contains them. None of
    /// them may append entries. The changes are durable when this returns. Returns the timestamp of the newest record
    /// of the stream, which is durable too.
    pub(super) fn commit_in_index(&self, record: &Body) -> Result<Timestamp> {
        let changes: Vec<LogChange<'_>> =
            LogChanges::new(record.bytes()).collect::<Result<_, _>>().expect("a record can be read as it was written");
        let changed: Vec<Arc<LogCell>> = changes.iter().filter_map(LogChange::log).map(|log| self.cell(log)).collect();
        let mut index = self.maintenance.index.lock();
        for _ in 0..IN_INDEX_ATTEMPT_COUNT {
            // All records whose changes the index contains must be durable. Waiting calls the callbacks of receipts,
            // so no log may be locked here.
            self.stream.wait_durable_up_to(self.stream.last())?;
            let cells = self.cells();
            let states: Vec<(u64, MutexGuard<'_, LogState>)> =
                cells.iter().map(|(log, cell)| (*log, cell.state.lock())).collect();
            if self.stream.last() > self.stream.durable() {
                continue;
            }
            let durable = self.change_in_index(&mut index, &changes, states)?;
            drop(changed);
            // What was purged can be given up now.
            self.told(self.truncate(&index).map(|_| ()), "giving up windows");
            return Ok(durable);
        }
        Err(Error::disk_full(self.path().to_path_buf(), record.bytes().len() as u64))
    }

    /// Like [`commit_in_index`](Self::commit_in_index), with the states of all logs locked. All records are durable.
    fn change_in_index(
        &self,
        index: &mut WrittenIndex,
        changes: &[LogChange<'_>],
        mut states: Vec<(u64, MutexGuard<'_, LogState>)>,
    ) -> Result<Timestamp> {
        let (durable, tail) = (self.stream.durable(), self.stream.tail());
        let mut after: BTreeMap<u64, LogState> = BTreeMap::new();
        let mut live = self.live.lock().clone();
        for change in changes {
            let log = change.log().expect("a part is appended alone");
            let at = states.binary_search_by_key(&log, |(log, _)| *log).expect("the caller has made its cell");
            let state = after.entry(log).or_insert_with(|| states[at].1.clone());
            state.bounds.clone().check(change)?;
            self.check_memory([(change, &*state)].into_iter())?;
            state.apply(change, durable, tail.1, durable, &mut live);
        }
        let number = index.number + 1;
        let mut writer = IndexWriter::new(&self.folder, self.identity, number, self.sizes.index_buffer_bytes)?;
        for (log, state) in &states {
            let state = after.get(log).unwrap_or(state);
            if state.bounds.exists {
                writer.copy(*log, durable, state);
                writer.write_copied()?;
            }
        }
        let index_bytes = writer.finish()?;
        *index = self.name_index(number, index_bytes, tail, false)?;
        for change in changes {
            let log = change.log().expect("seen above");
            let at = states.binary_search_by_key(&log, |(log, _)| *log).expect("found above");
            let state = &mut states[at].1;
            let memory_before = state.memory_bytes();
            state.apply(change, durable, tail.1, durable, &mut self.live.lock());
            self.note_memory(memory_before, state.memory_bytes());
        }
        Ok(durable)
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
        let was_truncated = self.truncate(index)?;
        // On a full disk, return as soon as some space is free, because a caller is waiting for it.
        while !(is_disk_full && was_truncated)
            && let Some(ends) = self.windows_to_empty(is_disk_full)
        {
            let before = self.stream.live_bytes();
            self.empty(index, &ends)?;
            if self.stream.live_bytes() >= before || is_disk_full {
                break;
            }
        }
        if self.stream.file_bytes() > 2 * self.live.lock().total() + 4 * self.sizes.segment_bytes {
            self.stream.remove_idle();
        }
        Ok(())
    }

    /// Gives up windows up to these ends, after their live entries were moved. If the space does not suffice for all of
    /// them, those that are empty are given up first.
    fn empty(&self, index: &mut WrittenIndex, ends: &[StreamPosition]) -> Result<()> {
        for &end in ends {
            while let Err(error) = self.move_below(end) {
                if !matches!(error, Error::DiskFull { .. }) {
                    return Err(error);
                }
                self.write_index(index, false)?;
                if !self.truncate(index)? {
                    return Err(error);
                }
            }
        }
        self.write_index(index, false)?;
        self.truncate(index)?;
        Ok(())
    }

    /// Returns the number of the oldest windows whose emptying gives space back, if the space that is left suffices for
    /// it: emptying a window that is all live takes more than it gives back.
    fn full_disk_count(&self, windows: &[(StreamPosition, StreamPosition)]) -> Option<usize> {
        let (segment_bytes, loss_bytes) = (self.sizes.segment_bytes, self.sizes.emptied_loss_bytes());
        let file_bytes = self.stream.file_bytes();
        let header_bytes = file_bytes.div_ceil(segment_bytes) * BLOCK_BYTES as u64;
        let mut room_bytes = file_bytes.saturating_sub(header_bytes + self.stream.live_bytes());
        let ends: Vec<StreamPosition> = windows.iter().map(|(_, end)| *end).collect();
        let mut moved_bytes = vec![0; ends.len()];
        self.cells().iter().for_each(|(_, cell)| cell.state.lock().add_moved_bytes(&ends, &mut moved_bytes));
        let (mut gained_bytes, mut lost_bytes) = (0, 0);
        for (count, ((begin, end), moved_bytes)) in (1..).zip(windows.iter().zip(moved_bytes)) {
            let taken_bytes = moved_bytes + loss_bytes;
            if room_bytes < taken_bytes {
                return None;
            }
            let window_bytes = *end - *begin;
            (gained_bytes, lost_bytes) = (gained_bytes + window_bytes, lost_bytes + taken_bytes);
            if gained_bytes >= lost_bytes + segment_bytes / 4 {
                return Some(count);
            }
            room_bytes = room_bytes - taken_bytes + window_bytes;
        }
        None
    }

    /// Returns the ends of the oldest windows, in ascending order, if it is time to move the live entries out of them.
    fn windows_to_empty(&self, is_disk_full: bool) -> Option<Vec<StreamPosition>> {
        let windows = self.stream.full_windows();
        let (begin, _) = *windows.first()?;
        let ends = |count: usize| windows[..count].iter().map(|(_, end)| *end).collect();
        if is_disk_full {
            return self.full_disk_count(&windows).map(ends);
        }
        let (stream_bytes, segment_bytes) = (self.stream.live_bytes(), self.sizes.segment_bytes);
        let live = self.live.lock();
        let dead_bytes = |end: StreamPosition| (end - begin).saturating_sub(live.below(end));
        // The stream also contains the margin that is kept for emptying windows.
        let margin_bytes = (windows.len() as u64 * self.sizes.emptied_loss_bytes()).min(segment_bytes / 2);
        if stream_bytes + margin_bytes <= 2 * live.total() + segment_bytes / 4 {
            return None;
        }
        // Free more than the bound requires, so that this happens less often: each time, the index has to be written.
        let goal_bytes = live.total() / 4 * 7;
        let is_enough =
            |(_, end): &(_, StreamPosition)| stream_bytes - dead_bytes(*end).min(stream_bytes) <= goal_bytes;
        Some(ends(windows.iter().position(is_enough).map_or(windows.len(), |at| at + 1)))
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
