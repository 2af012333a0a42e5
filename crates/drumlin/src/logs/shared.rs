//! The state of an open folder of logs: appending records, and reading entries.
//!
//! # Invariants
//! 1. A record gets its place in the stream while the locks of all logs that it changes are held, and changes their
//!    states before they are released. So a log's state is that after all its records in the order of the stream.
//! 2. Nothing is checked or can fail after a record has its timestamp.
//! 3. A part of the stream is given up only if no state refers to it, everything that made it so is durable, and the
//!    written index covers its records.
//!
//! # Lock order
//! `maintaining` → the map of logs → states in ascending order of their logs → `pins` → `live` → `cache` → the stream's
//! locks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::cache::Cache;
use super::callbacks::Callbacks;
use super::head::HeadFile;
use super::index;
use super::listed::ListedRange;
use super::live::LiveBytes;
use super::maintenance::Maintenance;
use super::options::{ENTRY_BYTES_MAX, Sizes, VALUE_BYTES_MAX};
use super::state::{Bounds, Found, FoundEntry, LogState};
use crate::error::{Error, Result};
use crate::format::logs::{
    CHANGE_BYTES_MAX, ENTRY_HEADER_BYTES, EntryFrame, EntryPart, LogChange, LogChanges, NAME_BYTES_MAX, PART_BYTES,
    PART_CONTENT_OFFSET, encode_part, entry_seed, verified_entry,
};
use crate::format::{DatabaseId, Incarnation, StreamPosition, Timestamp, checksum};
use crate::io::{Backend, FolderRef, Process, SyncMethod};
use crate::seglog::{Body, Claim, Log as Stream, Reservation};
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::task::Workers;

/// The memory that a log takes besides what varies: its state, and its place in the map.
pub(super) const LOG_BYTES: u64 = 384;

/// The largest gap between two entries that one read includes. A drive reads this much as fast as it begins a read.
const READ_GAP_BYTES_MAX: u64 = 16 << 10;

/// A log of the map. It exists while there is a handle of it, or the log has records.
#[derive(Debug, Default)]
pub(super) struct LogCell {
    pub(super) state: Mutex<LogState>,
}

/// The state of an open folder of logs. See the module documentation.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) folder: FolderRef,
    pub(super) identity: DatabaseId,
    /// This opening, with its first timestamp.
    pub(super) incarnation: (Incarnation, Timestamp),
    pub(super) sizes: Sizes,
    pub(super) sync: SyncMethod,
    pub(super) stream: Stream,
    pub(super) head: Arc<HeadFile>,
    pub(super) callbacks: Arc<Callbacks>,
    pub(super) logs: RwLock<BTreeMap<u64, Arc<LogCell>>>,
    pub(super) live: Mutex<LiveBytes>,
    pub(super) cache: Mutex<Cache>,
    /// The positions at or after which parts of entries are that no state refers to yet.
    pub(super) pins: Mutex<Vec<StreamPosition>>,
    /// The memory of all states, in bytes.
    pub(super) index_memory_bytes: AtomicU64,
    /// The length of an index for which both files are known to have space, in bytes.
    pub(super) index_space_bytes: AtomicU64,
    pub(super) maintenance: Maintenance,
    pub(super) workers: Workers,
    /// The reads that iterators make ahead.
    pub(super) ahead_count: AtomicUsize,
    pub(super) is_read_only: bool,
    pub(super) is_closed: AtomicBool,
    /// The process that has opened the folder.
    pub(super) process: Process,
}

/// The space in the index files, in bytes, that an append leaves free, so that values can still be set on a full disk.
const INDEX_MARGIN_BYTES: u64 = 64 << 10;

/// The places of entries that are to be read, as far as they are in memory.
enum Located {
    Entries(Vec<FoundEntry>),
    /// Their places are in the list of a listed range, except those of the entries in parts.
    Listed(ListedRange, BTreeMap<u64, Box<[EntryPart]>>),
}

/// Leaves as many entries as one read fetches.
fn cut_to_read(found: &mut Vec<FoundEntry>, bytes_max: u64) {
    let mut bytes = 0;
    let is_near = |entry: &&FoundEntry| {
        bytes += entry.bytes() + ENTRY_HEADER_BYTES as u64;
        bytes <= bytes_max
    };
    let count = found.iter().take_while(is_near).count();
    found.truncate(count.max(1));
}

/// Entries that were read from a log, from an index on.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) entries: Vec<Arc<[u8]>>,
    /// The bytes that were not in memory.
    pub(super) read_bytes: u64,
}

/// The way in which a call waits for space in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// The thread waits, so that the future is ready when it is first polled.
    Thread,
    Task,
}

/// Protects the records that are appended while it exists, to which no state may refer yet.
#[derive(Debug)]
pub(super) struct Pin<'s> {
    shared: &'s Shared,
    position: StreamPosition,
}

impl<'s> Pin<'s> {
    pub(super) fn new(shared: &'s Shared) -> Pin<'s> {
        let mut pins = shared.pins.lock();
        let (_, position) = shared.stream.tail();
        pins.push(position);
        Pin { shared, position }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut pins = self.shared.pins.lock();
        let at = pins.iter().position(|pin| *pin == self.position).expect("pinned until it is dropped");
        pins.swap_remove(at);
    }
}

impl Shared {
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns an error in a fork of the process that opened the folder: the positions at which the stream is written
    /// belong to the parent, and other threads may have held the locks that the fork has copies of.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.process.is_here() { Ok(()) } else { Err(Error::Forked { path: self.path().to_path_buf() }) }
    }

    pub(super) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if self.is_closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Returns the cell of a log, which need not exist.
    pub(super) fn cell(&self, log: u64) -> Arc<LogCell> {
        if let Some(cell) = self.logs.read().get(&log) {
            return Arc::clone(cell);
        }
        let mut logs = self.logs.write();
        let cell = logs.entry(log).or_insert_with(|| {
            self.index_memory_bytes.fetch_add(LOG_BYTES, Ordering::Relaxed);
            Arc::default()
        });
        Arc::clone(cell)
    }

    /// Returns all cells in ascending order of their logs.
    pub(super) fn cells(&self) -> Vec<(u64, Arc<LogCell>)> {
        self.logs.read().iter().map(|(&log, cell)| (log, Arc::clone(cell))).collect()
    }

    /// Drops the cells of logs that don't exist and have no handle.
    pub(super) fn drop_unused_cells(&self) {
        let mut logs = self.logs.write();
        let before = logs.len();
        logs.retain(|_, cell| Arc::strong_count(cell) > 1 || cell.state.lock().bounds.exists);
        self.index_memory_bytes.fetch_sub((before - logs.len()) as u64 * LOG_BYTES, Ordering::Relaxed);
    }

    /// Returns the longest body of a record of small entries.
    pub(super) fn body_bytes_max(&self) -> usize {
        self.stream.body_bytes_max().min(1 << 20)
    }

    /// Returns an error if an entry is too large.
    pub(super) fn check_entry(&self, log: u64, entry: &[u8]) -> Result<()> {
        let descriptor_bytes = entry.len().div_ceil(self.sizes.part_bytes_max) * PART_BYTES;
        let limit = match descriptor_bytes + ENTRY_HEADER_BYTES + CHANGE_BYTES_MAX <= self.body_bytes_max() {
            true => ENTRY_BYTES_MAX,
            false => {
                (self.body_bytes_max() - ENTRY_HEADER_BYTES - CHANGE_BYTES_MAX) / PART_BYTES * self.sizes.part_bytes_max
            }
        };
        self.check_size(log, "an entry", entry.len(), limit.min(ENTRY_BYTES_MAX))
    }

    pub(super) fn check_value(&self, log: u64, name: &str, value: &[u8]) -> Result<()> {
        self.check_size(log, "the name of a value", name.len(), NAME_BYTES_MAX)?;
        self.check_size(log, "a value", value.len(), VALUE_BYTES_MAX)
    }

    pub(super) fn check_size(&self, log: u64, what: &'static str, bytes: usize, limit: usize) -> Result<()> {
        if bytes <= limit {
            return Ok(());
        }
        Err(Error::LogEntryTooLarge { log, what, bytes: bytes as u64, limit_bytes: limit as u64 })
    }

    /// Reserves space in the stream. If the disk is full, first gives back what nothing needs.
    pub(super) async fn reserve(
        self: &Arc<Self>,
        body_bytes: usize,
        claim: Claim,
        wait: Wait,
    ) -> Result<Reservation<'_>> {
        self.check_open()?;
        if self.is_read_only {
            return Err(Error::ReadOnly { path: self.path().to_path_buf() });
        }
        loop {
            let reserved = match wait {
                Wait::Thread => self.stream.reserve_with(body_bytes, claim),
                Wait::Task => self.stream.reserve_as_task_with(body_bytes, claim).await,
            };
            if !matches!(reserved, Err(Error::DiskFull { .. })) {
                return reserved;
            }
            let has_reclaimed = match wait {
                Wait::Thread => self.maintain(true),
                Wait::Task => {
                    let shared = Arc::clone(self);
                    self.workers.run(move || shared.maintain(true)).await
                }
            };
            if !has_reclaimed {
                return reserved;
            }
        }
    }

    /// Returns an error if entries would not follow on, before anything is written for them.
    pub(super) fn check_append(&self, log: u64, first: u64, count: usize) -> Result<()> {
        let entries = vec![EntryFrame { offset: 0, payload: &[], is_in_parts: false }; count.min(1)];
        let mut bounds = self.cell(log).state.lock().bounds;
        bounds.check(&LogChange::Append { log, first, entries })
    }

    /// Appends a part of an entry, in space that was reserved for it.
    pub(super) fn append_part(&self, reservation: Reservation<'_>, body: Vec<u8>, checksum: u64) -> Result<EntryPart> {
        let body = Body::new(body);
        let appended = reservation.append(&body)?;
        let position = appended.body_position(body.bytes().len()) + PART_CONTENT_OFFSET as u64;
        Ok(EntryPart { position, bytes: (body.bytes().len() - PART_CONTENT_OFFSET) as u32, checksum })
    }

    /// Appends a record and applies its changes. If one of them is not allowed, changes nothing.
    pub(super) async fn commit(self: &Arc<Self>, body: Body, claim: Claim, wait: Wait) -> Result<Timestamp> {
        self.allocate_index(body.bytes().len() as u64, claim)?;
        let reservation = match self.reserve(body.bytes().len(), claim, wait).await {
            // The change frees space, or is a value. The files of the index have space for it.
            Err(Error::DiskFull { .. }) if claim == Claim::Urgent => {
                return match wait {
                    Wait::Thread => self.commit_in_index(&body),
                    Wait::Task => {
                        let shared = Arc::clone(self);
                        self.workers.run(move || shared.commit_in_index(&body)).await
                    }
                };
            }
            reserved => reserved?,
        };
        match self.commit_in(reservation, &body) {
            Err(Error::MemoryInUse { .. }) => {}
            committed => return committed,
        }
        match wait {
            Wait::Thread => self.make_memory(),
            Wait::Task => {
                let shared = Arc::clone(self);
                self.workers.run(move || shared.make_memory()).await;
            }
        }
        let reservation = self.reserve(body.bytes().len(), claim, wait).await?;
        self.commit_in(reservation, &body)
    }

    /// Allocates space in the index files, so that the index can be written after a change of this many bytes even if
    /// the disk is full by then.
    fn allocate_index(&self, more_bytes: u64, claim: Claim) -> Result<()> {
        let margin_bytes = if claim == Claim::Ordinary { INDEX_MARGIN_BYTES } else { 0 };
        let memory_bytes = self.index_memory_bytes.load(Ordering::Relaxed) + more_bytes + margin_bytes;
        let needed_bytes = index::bytes_max(memory_bytes);
        if self.is_read_only || needed_bytes <= self.index_space_bytes.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Allocate twice as much, so that this happens rarely. On a nearly full disk, allocate only what is needed.
        let allocated = match index::allocate_files(&self.folder, 2 * needed_bytes) {
            Err(Error::DiskFull { .. }) => index::allocate_files(&self.folder, needed_bytes),
            allocated => allocated,
        };
        match allocated {
            Ok(space_bytes) => drop(self.index_space_bytes.fetch_max(space_bytes, Ordering::Relaxed)),
            // In a copied folder, the index files may have no space allocated. Even then, changes that free space must
            // be possible.
            Err(Error::DiskFull { .. }) if claim != Claim::Ordinary && more_bytes <= INDEX_MARGIN_BYTES => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Like [`commit`](Self::commit), in space that was reserved.
    pub(super) fn commit_in(&self, reservation: Reservation<'_>, record: &Body) -> Result<Timestamp> {
        let body = record.bytes();
        let changes: Vec<LogChange<'_>> =
            LogChanges::new(body).collect::<Result<_, _>>().expect("a record can be read as it was written");
        let mut logs: Vec<u64> = changes.iter().filter_map(LogChange::log).collect();
        logs.sort_unstable();
        logs.dedup();
        let cells: Vec<Arc<LogCell>> = logs.iter().map(|&log| self.cell(log)).collect();
        let mut states: Vec<MutexGuard<'_, LogState>> = cells.iter().map(|cell| cell.state.lock()).collect();
        let mut bounds: Vec<Bounds> = states.iter().map(|state| state.bounds).collect();
        let slot_of = |change: &LogChange<'_>| {
            let log = change.log().expect("a part is appended alone");
            logs.binary_search(&log).expect("each log is in the list")
        };
        changes.iter().try_for_each(|change| bounds[slot_of(change)].check(change))?;
        self.check_memory(changes.iter().map(|change| (change, &*states[slot_of(change)])))?;

        let appended_entries = changes.iter().filter_map(|change| match change {
            LogChange::Append { entries, .. } => Some(entries),
            _ => None,
        });
        let inline = appended_entries.flatten().filter(|entry| !entry.is_in_parts);
        // Copied before the cache is locked, which all logs share.
        let cached: Vec<(u64, Arc<[u8]>)> = inline.map(|entry| (entry.offset as u64, entry.payload.into())).collect();

        let appended = reservation.append(record)?;
        let position = appended.body_position(body.len());
        let horizon = self.stream.durable();
        let memory = |states: &[MutexGuard<'_, LogState>]| states.iter().map(|state| state.memory_bytes()).sum::<u64>();
        let memory_before = memory(&states);
        let dead_bytes = {
            let mut live = self.live.lock();
            let before = live.total();
            for change in &changes {
                states[slot_of(change)].apply(change, appended.timestamp, position, horizon, &mut live);
            }
            before.saturating_sub(live.total())
        };
        self.note_memory(memory_before, memory(&states));
        let evicted = self.cache.lock().add(cached.into_iter().map(|(offset, entry)| (position + offset, entry)));
        drop(states);
        drop(evicted);
        self.maintenance.note(body.len() as u64 + dead_bytes);
        Ok(appended.timestamp)
    }

    /// Counts the memory of states that had `before_bytes` and have `after_bytes`.
    pub(super) fn note_memory(&self, before_bytes: u64, after_bytes: u64) {
        // Both are sums of what the states report, so the total never falls below zero.
        self.index_memory_bytes.fetch_add(after_bytes.wrapping_sub(before_bytes), Ordering::Relaxed);
    }

    /// Returns an error if the index would exceed its part of the memory. Values may exceed it somewhat, so that a vote
    /// is possible when appends are not.
    pub(super) fn check_memory<'c>(
        &self,
        changes: impl Iterator<Item = (&'c LogChange<'c>, &'c LogState)>,
    ) -> Result<()> {
        let (mut entry_bytes, mut value_bytes) = (0, 0);
        for (change, state) in changes {
            match change {
                LogChange::Append { entries, .. } => entry_bytes += state.growth_bytes(entries.len()),
                LogChange::Set { name, value, .. } => value_bytes += (name.len() + value.len()) as u64,
                _ => {}
            }
        }
        let limit_bytes = self.sizes.index_limit_bytes;
        // The lists of what is appended now are made later, and need a little memory for a moment.
        let allowed = if entry_bytes > 0 { limit_bytes - limit_bytes / 32 } else { limit_bytes + limit_bytes / 8 };
        let needed = entry_bytes + value_bytes;
        if needed > 0 && self.index_memory_bytes.load(Ordering::Relaxed) + needed > allowed {
            return Err(Error::MemoryInUse { what: "the indexes and values of logs", limit_bytes });
        }
        Ok(())
    }

    /// Returns the place of an entry, or the listed range that has it.
    pub(super) fn find(&self, log: u64, cell: &LogCell, index: u64) -> Result<Found> {
        let state = cell.state.lock();
        state.bounds.check_index(log, index)?;
        Ok(state.entry(index))
    }

    /// Waits until everything below `end` is on the medium.
    pub(super) fn wait_written(&self, end: StreamPosition) -> Result<()> {
        if end > self.stream.durable_position() { self.stream.wait_durable_up_to(self.stream.last()) } else { Ok(()) }
    }

    pub(super) fn cached(&self, found: &FoundEntry) -> Option<Arc<[u8]>> {
        self.cache.lock().get(found.place.position())
    }

    /// Returns entries from the first index on: one at least, and as many as one read fetches, but none at or after
    /// `end`. Blocks.
    pub(super) fn read(&self, log: u64, cell: &LogCell, indexes: Range<u64>) -> Result<Fetched> {
        self.check_open()?;
        let (mut gone, mut gone_list) = (None, None);
        loop {
            let located = self.locate(log, cell, indexes.clone())?;
            let (found, damaged_list) = match located {
                Located::Entries(found) => (found, None),
                Located::Listed(listed_range, large) => {
                    match self.read_listed(log, &listed_range, &large, indexes.clone())? {
                        Some(mut listed) => {
                            cut_to_read(&mut listed.entries, self.sizes.read_bytes_max);
                            (listed.entries, listed.damaged_list)
                        }
                        None if gone_list == Some(listed_range.list) => {
                            return Err(self.segment_gone(log, indexes.start));
                        }
                        None => {
                            gone_list = Some(listed_range.list);
                            continue;
                        }
                    }
                }
            };
            let ends = found.iter().map(FoundEntry::end).max().expect("there is one entry at least");
            let cached = self.cache.lock().get_all(found.iter().map(|entry| entry.place.position()));
            if cached.iter().any(Option::is_none) && ends > self.stream.durable_position() {
                self.stream.wait_durable_up_to(self.stream.last())?;
            }
            let read =
                self.read_found(log, indexes.start, &found, cached).map_err(|error| match (error, damaged_list) {
                    (Error::Corrupted { .. }, Some(list)) => self.damaged(log, indexes.start, list),
                    (other, _) => other,
                });
            match read? {
                Some(fetched) => return Ok(fetched),
                // The entries were moved since they were looked up, or purged.
                None if gone.as_ref() != Some(&found) => gone = Some(found),
                None => return Err(self.segment_gone(log, indexes.start)),
            }
        }
    }

    /// Like [`read`](Self::read), but returns only entries that are in memory, or `None` if the first is not. Waits for
    /// no device.
    pub(super) fn read_cached(&self, log: u64, cell: &LogCell, indexes: Range<u64>) -> Result<Option<Fetched>> {
        self.check_open()?;
        let Located::Entries(found) = self.locate(log, cell, indexes)? else { return Ok(None) };
        let cached = self.cache.lock().get_all(found.iter().map(|entry| entry.place.position()));
        let entries: Vec<Arc<[u8]>> = cached.into_iter().map_while(|entry| entry).collect();
        Ok((!entries.is_empty()).then_some(Fetched { entries, read_bytes: 0 }))
    }

    /// Returns where entries are, or the list that says so: from the first index on, and as many as one read fetches.
    fn locate(&self, log: u64, cell: &LogCell, indexes: Range<u64>) -> Result<Located> {
        let state = cell.state.lock();
        state.bounds.check_index(log, indexes.start)?;
        let end = indexes.end.min(state.bounds.next);
        let mut found = Vec::new();
        let mut bytes = 0;
        for index in indexes.start..end {
            match state.entry(index) {
                Found::Entry(entry) => {
                    bytes += entry.bytes() + ENTRY_HEADER_BYTES as u64;
                    found.push(entry);
                    if bytes > self.sizes.read_bytes_max {
                        break;
                    }
                }
                Found::Listed(listed_range) if found.is_empty() => {
                    let large = state.large.range(index..listed_range.end());
                    return Ok(Located::Listed(
                        listed_range,
                        large.map(|(&index, parts)| (index, parts.clone())).collect(),
                    ));
                }
                Found::Listed(_) => break,
            }
        }
        cut_to_read(&mut found, self.sizes.read_bytes_max);
        Ok(Located::Entries(found))
    }

    fn segment_gone(&self, log: u64, index: u64) -> Error {
        Error::corrupted(self.path(), format!("entry {index} of log {log}"), "its segment is gone")
    }

    /// Reads entries at their places. Returns `None` if the first of them is gone from there.
    fn read_found(
        &self,
        log: u64,
        first: u64,
        found: &[FoundEntry],
        mut cached: Vec<Option<Arc<[u8]>>>,
    ) -> Result<Option<Fetched>> {
        let mut entries = Vec::with_capacity(found.len());
        let mut read_bytes = 0;
        while entries.len() < found.len() {
            let rest = &found[entries.len()..];
            let index = first + entries.len() as u64;
            if let Some(entry) = cached[entries.len()].take() {
                entries.push(entry);
                continue;
            }
            if rest[0].place.payload_bytes().is_none() {
                match self.read_parts(log, index, &rest[0].parts)? {
                    Some(entry) => {
                        read_bytes += entry.len() as u64;
                        entries.push(entry);
                    }
                    None => break,
                }
                continue;
            }
            // One read for entries that lie close together.
            let begin = rest[0].place.position();
            let mut count = 1;
            while let Some(next) = rest.get(count).filter(|next| next.place.payload_bytes().is_some()) {
                let end = rest[count - 1].end();
                let is_near = (end..=end + READ_GAP_BYTES_MAX).contains(&next.place.position());
                if !is_near || next.end() - begin > self.sizes.read_bytes_max {
                    break;
                }
                count += 1;
            }
            let mut bytes = vec![0; (rest[count - 1].end() - begin) as usize];
            if !self.stream.read_at(begin, &mut bytes)? {
                break;
            }
            read_bytes += bytes.len() as u64;
            for (index, entry) in (index..).zip(&rest[..count]) {
                let position = entry.place.position();
                let bytes = &bytes[(position - begin) as usize..(entry.end() - begin) as usize];
                match verified_entry(bytes, entry_seed(self.identity, log, index)) {
                    Some(payload) => entries.push(payload.into()),
                    None if entries.is_empty() => return Err(self.damaged(log, index, position)),
                    // The caller gets the sound ones, and the error when it asks for this one.
                    None => return Ok(Some(Fetched { entries, read_bytes })),
                }
            }
        }
        Ok((!entries.is_empty()).then_some(Fetched { entries, read_bytes }))
    }

    fn read_parts(&self, log: u64, index: u64, parts: &[EntryPart]) -> Result<Option<Arc<[u8]>>> {
        let total: usize = parts.iter().map(|part| part.bytes as usize).sum();
        let mut entry = vec![0; total];
        let mut rest = &mut entry[..];
        for (number, part) in (0..).zip(parts) {
            let (target, after) = rest.split_at_mut(part.bytes as usize);
            rest = after;
            if !self.stream.read_at(part.position, target)? {
                return Ok(None);
            }
            if checksum(target, self.part_seed(log, index, number)) != part.checksum {
                return Err(self.damaged(log, index, part.position));
            }
        }
        Ok(Some(entry.into()))
    }

    pub(super) fn part_seed(&self, log: u64, index: u64, number: u64) -> u64 {
        entry_seed(self.identity, log, index).wrapping_add(1 + number)
    }

    /// Makes the body of a part and the checksum of its content.
    pub(super) fn encode_part(&self, log: u64, index: u64, number: usize, content: &[u8]) -> (Vec<u8>, u64) {
        (encode_part(content), checksum(content, self.part_seed(log, index, number as u64)))
    }

    /// Returns the error for an entry that does not verify.
    pub(super) fn damaged(&self, log: u64, index: u64, position: StreamPosition) -> Error {
        let (path, offset) = self.stream.place_of(position).unwrap_or_else(|| (self.path().to_path_buf(), position.0));
        let what = format!("entry {index} of log {log} at offset {offset}");
        Error::corrupted(&path, what, "its checksum does not match")
    }
}
