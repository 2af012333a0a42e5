//! Warm start: the pages that were in memory when a database was closed are read again after it was opened, in the
//! background and in the order of the disk.
//!
//! # Invariants
//! 1. The list of resident pages is advice. Nothing rests on it: it is never synced, and one that is missing, torn,
//!    foreign or of another state is no error. Every page in it is looked up in the page table, and verified like any
//!    other that is read.
//! 2. Pages of the list take frames that are free and will not be missed: none is evicted for them. Where no such frame
//!    is left, reading the list has ended.
//! 3. Requests come first. Two reads are in flight at the most; and where requests have missed pages meanwhile, the
//!    reading waits nine times as long as the last block took.
//! 4. While the list is being read, and where closing came before its end, it is not written: what is in memory then is
//!    a part of it.
//!
//! # States
//! Reading (from the opening, where there is a list) → read ([`Store::read_residents`]), or stopped by closing. In the
//! state read alone the list is written: by the maintenance thread behind a checkpoint, and by closing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Store;
use super::advice;
use crate::error::{Error, Result};
use crate::format::DatabaseId;
use crate::format::resident::{self, RESIDENT_BLOCK_BYTES, RESIDENT_BLOCK_PAGES, ResidentPage};
use crate::io::{AlignedBuffer, FileRef, FolderRef, OpenOptions, Persist};
use crate::memory::Account;
use crate::pool::{Pool, Resident, Wanted};
use crate::sync::{Condvar, Mutex};

pub(super) const RESIDENT_NAME: &str = "resident";

/// The times that a block took for which reading waits where requests have missed pages meanwhile.
const PAUSE_FACTOR: u32 = 9;
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The list is written where as many pages have come, or were written, since it was written last: this many at least,
/// and this share of it.
const CHANGES_MIN: u64 = if cfg!(feature = "sim") { 4 } else { 64 };
const CHANGES_SHARE: u64 = 16;

/// Memory for the list while it is read: a block, and the pages in it twice.
const READING_BYTES: u64 =
    (RESIDENT_BLOCK_BYTES + RESIDENT_BLOCK_PAGES * (size_of::<ResidentPage>() + size_of::<Wanted>())) as u64;

/// The warm start of an open database.
#[derive(Debug)]
pub(super) struct WarmStart {
    is_on: AtomicBool,
    folder: FolderRef,
    database: DatabaseId,
    /// Pages read from the list.
    pub(super) page_count: AtomicU64,
    /// Pages that checkpoints have written since the opening.
    written_count: AtomicU64,
    state: Mutex<WarmState>,
    stopped: Condvar,
}

#[derive(Debug, Default)]
struct WarmState {
    /// There is a list that was not read to its end, or may be one.
    is_unread: bool,
    stop: bool,
    /// Pages in the list, and the changes before it was written.
    listed_count: u64,
    listed_at: u64,
}

impl WarmStart {
    pub(super) fn new(is_on: bool, folder: FolderRef, database: DatabaseId) -> WarmStart {
        WarmStart {
            is_on: AtomicBool::new(is_on),
            folder,
            database,
            page_count: AtomicU64::new(0),
            written_count: AtomicU64::new(0),
            state: Mutex::new(WarmState { is_unread: is_on, ..WarmState::default() }),
            stopped: Condvar::new(),
        }
    }

    /// Counts pages that a checkpoint has written.
    pub(super) fn note_written(&self, count: u64) {
        self.written_count.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns `true` while the list is being read.
    pub(super) fn is_reading(&self) -> bool {
        let state = self.state.lock();
        state.is_unread && !state.stop
    }

    /// Ends the reading of the list, and its writing from then on if it was not read to its end.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.stopped.notify_all();
    }

    /// Waits for so long. Returns `false` if reading is to end.
    fn pause(&self, duration: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stop && !duration.is_zero() {
            let _ = self.stopped.wait_for(&mut state, duration);
        }
        !state.stop
    }

    /// Returns `true` if there is a list to be read. It is not written from here on until it has been.
    pub(super) fn begin(&self) -> bool {
        let exists = self.is_on.load(Ordering::Relaxed) && self.folder.exists(RESIDENT_NAME).unwrap_or(false);
        self.state.lock().is_unread = exists;
        exists
    }

    /// Goes on without the list, which has no thread to read it.
    pub(super) fn give_up(&self) {
        self.state.lock().is_unread = false;
    }
}

/// The reading of the list.
struct Reading<'s> {
    store: &'s Store,
    misses: u64,
    listed_count: u64,
}

impl Store {
    /// Reads the pages of the list into memory: the body of the thread that does so.
    pub(super) fn read_residents(&self) {
        let mut reading = Reading { store: self, misses: self.miss_count(), listed_count: 0 };
        let read = reading.run();
        if let Err(error) = &read {
            log::debug!("reading {RESIDENT_NAME} of {}: {error}", self.path.display());
        }
        let mut state = self.warm_start.state.lock();
        if !state.stop {
            state.is_unread = false;
            state.listed_count = reading.listed_count;
            state.listed_at = self.residence_changes();
        }
    }

    fn miss_count(&self) -> u64 {
        self.engine.pool.cache.misses.load(Ordering::Relaxed)
    }

    /// Pages that have come into memory, or were written by checkpoints, since the opening.
    fn residence_changes(&self) -> u64 {
        self.miss_count() + self.warm_start.written_count.load(Ordering::Relaxed)
    }

    /// Writes the list of the pages in memory, if it has changed noticeably. O(n log n).
    pub(super) fn list_residents(&self) {
        let warm_start = &self.warm_start;
        let changes = self.residence_changes();
        {
            let state = warm_start.state.lock();
            let changes_min = CHANGES_MIN.max(state.listed_count / CHANGES_SHARE);
            let is_on = warm_start.is_on.load(Ordering::Relaxed);
            if !is_on || state.is_unread || changes < state.listed_at + changes_min {
                return;
            }
        }
        let Some(file) =
            advice::open_or_turn_off(&warm_start.is_on, &warm_start.folder, RESIDENT_NAME, resident::is_list)
        else {
            return;
        };
        match self.write_residents(&file) {
            Ok(listed_count) => {
                crate::coverage::mark!("a list of resident pages was written");
                let mut state = warm_start.state.lock();
                (state.listed_count, state.listed_at) = (listed_count, changes);
            }
            Err(error) => log::debug!("writing {RESIDENT_NAME} of {}: {error}", self.path.display()),
        }
    }

    /// Writes the list over the one before it. Returns the number of pages in it.
    fn write_residents(&self, file: &FileRef) -> Result<u64> {
        let pool = &self.engine.pool;
        let io = |action, error| Error::io(action, file.path(), error);
        let count_max = pool.resident_count_max();
        let mut memory = self.engine.budget.grant(Account::Copies);
        let bytes = count_max * size_of::<Resident>() + 2 * RESIDENT_BLOCK_BYTES;
        if !memory.resize(bytes as u64) {
            return Err(Error::Invalid("readers have the memory for the list".into()));
        }
        let residents = pool.residents(count_max);
        let mut block = AlignedBuffer::zeroed(RESIDENT_BLOCK_BYTES);
        let mut pages = Vec::with_capacity(RESIDENT_BLOCK_PAGES);
        let (mut offset, mut listed_count) = (0, 0);
        for residents in residents.chunks(RESIDENT_BLOCK_PAGES) {
            pages.clear();
            pages.extend(residents.iter().filter_map(|resident| pool.resident_page(*resident)));
            resident::encode(self.warm_start.database, &pages, &mut block);
            file.write_at(&block, offset, Persist::Later).map_err(|error| io("writing", error))?;
            offset += RESIDENT_BLOCK_BYTES as u64;
            listed_count += pages.len() as u64;
        }
        file.set_len(offset).map_err(|error| io("cutting", error))?;
        Ok(listed_count)
    }
}

impl Reading<'_> {
    fn run(&mut self) -> Result<()> {
        let Store { warm_start, engine, path, .. } = self.store;
        let io = |error| Error::io("reading", &path.join(RESIDENT_NAME), error);
        let mut memory = engine.budget.grant(Account::Copies);
        if !memory.resize(READING_BYTES) {
            return Ok(());
        }
        let file = warm_start.folder.open(RESIDENT_NAME, OpenOptions::default()).map_err(io)?;
        let block_count = file.len().map_err(io)? / RESIDENT_BLOCK_BYTES as u64;
        let mut block = AlignedBuffer::zeroed(RESIDENT_BLOCK_BYTES);
        for index in 0..block_count {
            file.read_at(&mut block, index * RESIDENT_BLOCK_BYTES as u64).map_err(io)?;
            let Some(mut pages) = resident::decode(warm_start.database, &block) else { continue };
            self.listed_count += pages.len() as u64;
            // In the order of the disk they are brought in, but one keyspace after the other.
            pages.sort_unstable_by_key(|page| page.keyspace);
            for pages in pages.chunk_by(|left, right| left.keyspace == right.keyspace) {
                if !self.bring_in(pages)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Brings pages of one keyspace in. Returns `false` if reading is to end.
    fn bring_in(&mut self, listed: &[ResidentPage]) -> Result<bool> {
        let Store { warm_start, engine, .. } = self.store;
        let Some(pages) = engine.space.page_space(listed[0].keyspace) else { return Ok(true) };
        let wanted: Vec<Wanted> = listed.iter().filter_map(|page| Wanted::resident(&pages, page)).collect();
        let has_frames = |pool: &Pool| wanted.iter().any(|wanted| pool.has_spare_frame(wanted.frame_bytes()));
        if wanted.is_empty() {
            return Ok(true);
        }
        if !warm_start.pause(Duration::ZERO) || !has_frames(&engine.pool) {
            return Ok(false);
        }
        let began = self.store.now();
        let count = engine.pool.fault_spare(&pages, &wanted)?;
        if count > 0 {
            crate::coverage::mark!("a page was read that was resident when the database was closed");
        }
        warm_start.page_count.fetch_add(count as u64, Ordering::Relaxed);
        let misses = self.store.miss_count();
        if std::mem::replace(&mut self.misses, misses) == misses {
            return Ok(true);
        }
        let pause = PAUSE_FACTOR * self.store.now().saturating_sub(began);
        Ok(warm_start.pause(pause.min(PAUSE_MAX)))
    }
}
